"""Triton kernels: PPO for a small network (launched by fused.py), and the sums over time of algos/ops.py.

There are no atomic additions: the same inputs give the same bits. Plain torch defines the results: for `learn`
`clipped_loss` of algos/ppo.py and its gradient, for `adam` and `muon` algos/optimizers/, for `advantages` and
`running_returns` algos/ops.py. tests/test_fused.py compares them, in Triton's interpreter if there is no GPU.

Sizes: D numbers of an observation, padded to DP; H units of a layer; A choices; G gates of a recurrent core (0: none);
BM rows of a tile; PART elements of a block. Flags: ACT is the activation (0: relu, 1, 3: tanh, 2: none), NORM whether
observations are normalized, MASKED whether there are action masks, COUNTED whether there are `counts`, CLIPPED whether
values are clipped. UNIT is a factor of observations, DTYPE the precision of matrix products.

The weights of a policy are one flat tensor, in this order: first layer (H, D) and its biases (H,), second layer (H, H)
and its biases, recurrent core (core_kernels.py), actor (A, H) and its biases (A,), critic (1, H) and its bias. `narrow`
is a copy in DTYPE whose first layer is padded to (H, DP), so that its rows are aligned for wide loads. The free log
standard deviations of continuous actions (NUMBERS of them) come before all of these, and `narrow` is without them.
Actions and loss: head_kernels.py.

OVERLAP: a kernel starts before the one before it has ended, and waits for it where it first needs its results or writes
something (`overlap` of nn/launch.py). `learn` gathers its observations while the optimizer of the minibatch before
still runs, and `muon` loads its momentum while `reduce` runs: the last kernel that wrote it, `muon` of the minibatch
before, had ended before `learn` could end.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from shoal.algos.fast.head_kernels import load_coefs, load_stats, load_targets, loss_grads, sample

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # an older Triton: OVERLAP is False then
    gdc_launch_dependents = gdc_wait = None

FLOAT32, BFLOAT16 = tl.float32, tl.bfloat16


@triton.jit
def _activate(x, ACT: tl.constexpr):
    if ACT == 0:
        return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    if ACT == 2:
        return x
    if ACT == 3:  # one instruction; its error is a quarter of that of rounding to bfloat16
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0  # tanh


@triton.jit
def _hidden(z, ACT: tl.constexpr, DTYPE: tl.constexpr):
    """The activation, rounded to DTYPE."""
    h = _activate(z, ACT)
    if ACT == 3:  # two at a time: where the numbers are used one by one too, Triton rounds them one by one
        convert: tl.constexpr = "cvt.rn.bf16x2.f32 $0, $2, $1;"
        return tl.inline_asm_elementwise(convert, "=r,f,f", [h], tl.bfloat16, is_pure=True, pack=2)
    return h.to(DTYPE)


@triton.jit
def _activation_grad(h, ACT: tl.constexpr):
    """The derivative of the activation, from its output."""
    if ACT == 0:
        return tl.where(h > 0.0, 1.0, 0.0)
    if ACT == 2:
        return tl.full(h.shape, 1.0, tl.float32)
    return 1.0 - h * h


@triton.jit
def finished(product, is_true):
    """`product` of a pass of a loop, used at once, so that the pass waits for it. `is_true`: what always holds.

    On Hopper a loop otherwise goes on while the product is computed. Triton 3.6 then keeps a buffer too few for an
    operand that something else uses too: the loads of a later pass overwrite it (triton-lang/triton#7110). They arrive
    after the product is computed, but not always while other processes use the GPU. Operands in registers are as bad:
    ptxas before 13.3 reuses them too early (#11781). tests/in_flight.py finds both in compiled kernels.
    """
    return tl.where(is_true, product, 0.0)


@triton.jit
def _load_obs(obs, at, live, mean, scale, D: tl.constexpr, DP: tl.constexpr, UNIT: tl.constexpr, NORM: tl.constexpr):
    """The policy's inputs: normalized observations `at` (rows,), padded with zeros to (rows, DP)."""
    column = tl.arange(0, DP)
    inside = live[:, None] & (column < D)[None, :]
    x = tl.load(obs + at[:, None] * D + column[None, :], mask=inside, other=0).to(tl.float32)
    if NORM:
        shift = tl.load(mean + column, mask=column < D, other=0.0)
        factor = tl.load(scale + column, mask=column < D, other=0.0)
        x = (x - shift[None, :]) * factor[None, :]
        x = tl.where(x < -10.0, -10.0, tl.where(x > 10.0, 10.0, x))  # nan stays nan, so that the loss shows it
        x = tl.where(inside, x, 0.0)
    return x * UNIT


@triton.jit
def _matrix(narrow, OUT: tl.constexpr, IN: tl.constexpr, DTYPE: tl.constexpr):
    """Loads an (OUT, IN) matrix."""
    row, column = tl.arange(0, OUT), tl.arange(0, IN)
    return tl.load(narrow + row[:, None] * IN + column[None, :]).to(DTYPE)


@triton.jit
def _heads(weights, narrow, H: tl.constexpr, A: tl.constexpr, DTYPE: tl.constexpr):
    """Actor and critic as one (16, H) matrix and (16,) biases: A logits, the value, zeros."""
    row, column = tl.arange(0, 16), tl.arange(0, H)
    # in memory: actor (A, H), its biases (A,), critic (1, H), its bias
    start = tl.where(row < A, row * H, A * H + A)
    wo = tl.load(narrow + start[:, None] + column[None, :], mask=(row <= A)[:, None], other=0.0).to(DTYPE)
    bias = tl.where(row < A, A * H + row, A * H + A + H)
    return wo, tl.load(weights + bias, mask=row <= A, other=0.0)


@triton.jit
def _outputs(
    obs, at, live, weights, narrow, mean, scale,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, A: tl.constexpr, ACT: tl.constexpr, UNIT: tl.constexpr,
    NORM: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """The network's outputs (rows, 16) for the observations `at`.

    `learn` repeats the loads of the weights: a helper would have to return all six of them.
    """
    w1 = _matrix(narrow, H, DP, DTYPE)
    b1 = tl.load(weights + H * D + tl.arange(0, H))
    w2 = _matrix(narrow + H * DP + H, H, H, DTYPE)
    b2 = tl.load(weights + H * D + H + H * H + tl.arange(0, H))
    after: tl.constexpr = H + H * H + H
    wo, bo = _heads(weights + H * D + after, narrow + H * DP + after, H, A, DTYPE)
    x = _load_obs(obs, at, live, mean, scale, D, DP, UNIT, NORM).to(DTYPE)
    h1 = _activate(tl.dot(x, tl.trans(w1)) + b1[None, :], ACT).to(DTYPE)
    h2 = _activate(tl.dot(h1, tl.trans(w2)) + b2[None, :], ACT).to(DTYPE)
    return tl.dot(h2, tl.trans(wo)) + bo[None, :]


@triton.jit
def _log_stds(log_std, table, PARTS: tl.constexpr, NUMBERS: tl.constexpr, BM: tl.constexpr):
    """Free log standard deviations (NUMBERS,) in the columns of their means: (BM, 16)."""
    column = tl.arange(0, 16)
    s = tl.zeros((BM, 16), tl.float32)
    if NUMBERS > 0:
        at = tl.load(table + 3 * PARTS + 16 + column)  # among the stored logits, after the means
        first = tl.min(tl.where(at >= 0, at, 1 << 20), 0)
        s += tl.load(log_std + at - first, mask=at >= 0, other=0.0)[None, :]
    return s


@triton.jit
def act(
    obs, weights, narrow, mean, scale, noise, masks, logits, values, actions, env_actions, log_std, table, bounds, rows,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, A: tl.constexpr, ACT: tl.constexpr, UNIT: tl.constexpr,
    NORM: tl.constexpr, MASKED: tl.constexpr, DTYPE: tl.constexpr, SIZE: tl.constexpr, PARTS: tl.constexpr,
    NUMBERS: tl.constexpr, SQUASH: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """One step of the policy: logits, values and actions for `rows` observations."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    live = row < rows
    o = _outputs(obs, row.to(tl.int64), live, weights, narrow, mean, scale, D, DP, H, A, ACT, UNIT, NORM, DTYPE)
    s = _log_stds(log_std, table, PARTS, NUMBERS, BM)
    sample(
        o, s, row, live, noise, masks, logits, values, actions, env_actions, table, bounds,
        A, SIZE, PARTS, NUMBERS, SQUASH, WIDTH, MASKED, 16,
    )  # fmt: skip


@triton.jit
def learn(
    obs, weights, narrow, mean, scale, masks, order, actions, logprobs, old_values, advantages, returns, counts,
    stats, partial, sums, coefs, log_std, table, bounds, count,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, A: tl.constexpr, ACT: tl.constexpr, UNIT: tl.constexpr,
    NORM: tl.constexpr, MASKED: tl.constexpr, COUNTED: tl.constexpr, CLIPPED: tl.constexpr, DTYPE: tl.constexpr,
    SIZE: tl.constexpr, PARTS: tl.constexpr, NUMBERS: tl.constexpr, SQUASH: tl.constexpr, BM: tl.constexpr,
    ROW: tl.constexpr, OVERLAP: tl.constexpr = False,
):  # fmt: skip
    """The gradient on the transitions `order[:count]`. Each block computes BM of them and stores a row of `partial`.

    A block does not loop over several tiles: sums over tiles do not fit into registers, and spilling them costs more
    than adding them up later (`reduce`).
    """
    block = tl.program_id(0)
    row = block * BM + tl.arange(0, BM)
    live = row < count
    at = tl.load(order + row, mask=live, other=0)
    chosen, logprob, advantage, target, old, weight = load_targets(
        at, live, actions, logprobs, old_values, advantages, returns, counts, SIZE, PARTS, NUMBERS, COUNTED, CLIPPED
    )
    clip, value_clip, value_coef, entropy_coef = load_coefs(coefs)
    x = _load_obs(obs, at, live, mean, scale, D, DP, UNIT, NORM).to(DTYPE)
    if OVERLAP:
        gdc_wait()
    center, factor, share = load_stats(stats)
    w1 = _matrix(narrow, H, DP, DTYPE)
    b1 = tl.load(weights + H * D + tl.arange(0, H))
    w2 = _matrix(narrow + H * DP + H, H, H, DTYPE)
    b2 = tl.load(weights + H * D + H + H * H + tl.arange(0, H))
    after: tl.constexpr = H + H * H + H
    wo, bo = _heads(weights + H * D + after, narrow + H * DP + after, H, A, DTYPE)
    h1 = _hidden(tl.dot(x, tl.trans(w1)) + b1[None, :], ACT, DTYPE)
    h2 = _hidden(tl.dot(h1, tl.trans(w2)) + b2[None, :], ACT, DTYPE)
    o = tl.dot(h2, tl.trans(wo)) + bo[None, :]
    s = _log_stds(log_std, table, PARTS, NUMBERS, BM)
    grads, d_s = loss_grads(
        o, s, at, live, block, masks, actions, chosen, logprob, advantage, target, old, weight, center, factor, share,
        sums, clip, value_clip, value_coef, entropy_coef, table, bounds, A, SIZE, PARTS, NUMBERS, SQUASH, MASKED,
        COUNTED, CLIPPED, 16, BM,
    )  # fmt: skip

    # backward through the network
    out_1 = partial + block.to(tl.int64) * ROW + NUMBERS
    out_2 = out_1 + H * D + H
    out_o = out_2 + H * H + H
    unit, place, column = tl.arange(0, H), tl.arange(0, DP), tl.arange(0, 16)
    if NUMBERS > 0:
        std_at = tl.load(table + 3 * PARTS + 16 + column)
        first_std = tl.min(tl.where(std_at >= 0, std_at, 1 << 20), 0)
        tl.store(out_1 - NUMBERS + std_at - first_std, tl.sum(d_s, 0), mask=std_at >= 0)
    tl.store(out_o + tl.where(column < A, A * H + column, A * H + A + H), tl.sum(grads, 0), mask=column <= A)
    grads = grads.to(DTYPE)
    place_o = tl.where(column < A, column * H, A * H + A)[:, None] + unit[None, :]
    tl.store(out_o + place_o, tl.dot(tl.trans(grads), h2), mask=(column <= A)[:, None])
    grads = tl.dot(grads, wo) * _activation_grad(h2.to(tl.float32), ACT)
    tl.store(out_2 + H * H + unit, tl.sum(grads, 0))
    grads = grads.to(DTYPE)
    tl.store(out_2 + unit[:, None] * H + unit[None, :], tl.dot(tl.trans(grads), h1))
    grads = tl.dot(grads, w2) * _activation_grad(h1.to(tl.float32), ACT)
    tl.store(out_1 + H * D + unit, tl.sum(grads, 0))
    inside = (place < D)[None, :] & (unit >= 0)[:, None]
    tl.store(out_1 + unit[:, None] * D + place[None, :], tl.dot(tl.trans(grads.to(DTYPE)), x), mask=inside)


@triton.jit
def add_metrics(sums, metrics, step, tiles, END: tl.constexpr, BLOCKS: tl.constexpr):
    """Adds the metrics of `tiles` tiles, and with END counts the optimizer step."""
    column, block = tl.arange(0, 8), tl.arange(0, BLOCKS)
    tile_sums = tl.zeros((BLOCKS, 8), tl.float32)
    for first in range(0, tiles, BLOCKS):
        inside = (first + block < tiles)[:, None] & (column < 5)[None, :]
        tile_sums += tl.load(sums + (first + block)[:, None] * 8 + column[None, :], mask=inside, other=0.0)
    tl.store(metrics + column, tl.load(metrics + column, mask=column < 5) + tl.sum(tile_sums, 0), mask=column < 5)
    if END:
        tl.store(step, tl.load(step) + 1.0)


@triton.jit
def reduce(
    partial, sums, gradient, squares, metrics, step, size, row_size, blocks, tiles,
    BEGIN: tl.constexpr, END: tl.constexpr, BLOCKS: tl.constexpr, PART: tl.constexpr, OVERLAP: tl.constexpr = False,
):  # fmt: skip
    """Adds the blocks' rows of `partial` to the gradient (BEGIN: starts from zero), and sums its squares.

    Also adds the metrics of `tiles` tiles, and with END counts the optimizer step.
    """
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    part = tl.program_id(0)
    at, block = part * PART + tl.arange(0, PART), tl.arange(0, BLOCKS)
    rows = tl.zeros((BLOCKS, PART), tl.float32)
    for first in range(0, blocks, BLOCKS):
        inside = (first + block < blocks)[:, None] & (at < size)[None, :]
        place = (first + block).to(tl.int64)[:, None] * row_size + at[None, :]
        rows += tl.load(partial + place, mask=inside, other=0.0)
    grads = tl.sum(rows, 0)
    if not BEGIN:
        grads += tl.load(gradient + at, mask=at < size, other=0.0)
    tl.store(gradient + at, grads, mask=at < size)
    tl.store(squares + part, tl.sum(grads * grads, 0))
    if part == 0:
        add_metrics(sums, metrics, step, tiles, END, BLOCKS)


@triton.jit
def clip_factor(limit, norm):
    """The factor that clips a gradient of this norm to the norm `limit` (0: never)."""
    limit = tl.load(limit)
    return tl.where(limit > 0.0, tl.minimum(limit / (norm + 1e-6), 1.0), 1.0)


@triton.jit
def adam_step(
    weights, gradient, mean, square, step, rate, limit, norm, at, inside, beta1, beta2, eps, decay,
    DECOUPLED: tl.constexpr,
):  # fmt: skip
    """Updates the weights `at` from their gradient; returns them."""
    g, w = tl.load(gradient + at, mask=inside, other=0.0), tl.load(weights + at, mask=inside, other=0.0)
    lr, t = tl.load(rate), tl.load(step)
    g *= clip_factor(limit, norm)
    if DECOUPLED:
        w *= 1.0 - lr * decay
    else:
        g += decay * w
    m = tl.load(mean + at, mask=inside, other=0.0)
    m += (1.0 - beta1) * (g - m)
    v = tl.load(square + at, mask=inside, other=0.0)
    v = beta2 * v + (1.0 - beta2) * g * g
    correction_1 = 1.0 - tl.exp(t * tl.log(beta1))
    correction_2 = 1.0 - tl.exp(t * tl.log(beta2))
    w -= lr / correction_1 * m / (tl.sqrt(v) / tl.sqrt(correction_2) + eps)
    tl.store(weights + at, w, mask=inside)
    tl.store(mean + at, m, mask=inside)
    tl.store(square + at, v, mask=inside)
    return w


@triton.jit
def _adam_part(
    part, weights, narrow, gradient, mean, square, metrics, step, rate, limit, norm, size, beta1, beta2, eps, decay,
    NUMBERS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, G: tl.constexpr,
    RECURRENT: tl.constexpr, MATRICES: tl.constexpr, DECOUPLED: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Adam or AdamW for PART weights. Without MATRICES it skips Muon's."""
    if part == 0:
        tl.store(metrics + 5, tl.load(metrics + 5) + norm)
    at = part * PART + tl.arange(0, PART)
    inside = at < size
    own = at - NUMBERS  # the log standard deviations come first
    if not MATRICES:
        core: tl.constexpr = H * D + H + H * H + H
        inside = inside & ((own < 0) | (own >= H * D)) & ((own < H * D + H) | (own >= core - H))
        if G > 0:
            inside = inside & ((own < core) | (own >= core + G * H * H))
        if RECURRENT:
            inside = inside & ((own < core + G * H * H + G * H) | (own >= core + 2 * G * H * H + G * H))
    w = adam_step(
        weights, gradient, mean, square, step, rate, limit, norm, at, inside, beta1, beta2, eps, decay, DECOUPLED
    )
    copy = tl.where(own < H * D, own // D * DP + own % D, own + H * (DP - D))
    tl.store(narrow + copy, w.to(narrow.dtype.element_ty), mask=inside & (own >= 0))


@triton.jit
def adam(
    weights, narrow, gradient, mean, square, squares, metrics, step, rate, limit, size, parts,
    beta1, beta2, eps, decay, NUMBERS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr,
    G: tl.constexpr, RECURRENT: tl.constexpr, DECOUPLED: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr,
    OVERLAP: tl.constexpr = False,
):  # fmt: skip
    """Clips the gradient to the norm `limit` (0: never) and applies Adam or AdamW."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    _adam_part(
        tl.program_id(0), weights, narrow, gradient, mean, square, metrics, step, rate, limit,
        _norm(squares, parts, PARTS), size, beta1, beta2, eps, decay, NUMBERS, D, DP, H, G, RECURRENT, True, DECOUPLED,
        PART,
    )  # fmt: skip


@triton.jit
def muon(
    weights, narrow, gradient, momentum, square, squares, metrics, step, rate, limit, polynomials, size, parts,
    beta1, beta2, eps, decay, scale_1, scale_2,
    NUMBERS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, G: tl.constexpr,
    RECURRENT: tl.constexpr, MATRICES: tl.constexpr, MOMENTUM: tl.constexpr, STEPS: tl.constexpr, PARTS: tl.constexpr,
    PART: tl.constexpr, DTYPE: tl.constexpr, OVERLAP: tl.constexpr = False,
):  # fmt: skip
    """Clips the gradient, then Muon for the two hidden matrices and a core's gates, one block each, and AdamW for the
    other weights in the blocks after those: see optimizers/muon.py.
    """
    which = tl.program_id(0)
    if which < MATRICES:
        _muon_matrix(
            which, weights, narrow, gradient, momentum, squares, rate, limit, polynomials, parts, decay, scale_1,
            scale_2, NUMBERS, D, DP, H, G, MOMENTUM, STEPS, PARTS, DTYPE, OVERLAP,
        )  # fmt: skip
    else:
        if OVERLAP:
            gdc_wait()
            gdc_launch_dependents()
        _adam_part(
            which - MATRICES, weights, narrow, gradient, momentum, square, metrics, step, rate, limit,
            _norm(squares, parts, PARTS), size, beta1, beta2, eps, decay, NUMBERS, D, DP, H, G, RECURRENT, False, True,
            PART,
        )  # fmt: skip


@triton.jit
def _norm(squares, parts, PARTS: tl.constexpr):
    """The gradient's norm, from the sums of squares of its parts."""
    index = tl.arange(0, PARTS)
    return tl.sqrt(tl.sum(tl.load(squares + index, mask=index < parts, other=0.0), 0))


@triton.jit
def _polynomial(x, coefs, DTYPE: tl.constexpr):
    """For a Newton-Schulz step x -> a x + (b x x^T + c (x x^T)^2) x: what multiplies x, and x rounded.

    Terms are where sums of products begin: that takes no registers beside the sums.
    """
    rounded, b, c = x.to(DTYPE), tl.load(coefs + 1), tl.load(coefs + 2)
    square = tl.dot(rounded, tl.trans(rounded))
    factor = square.to(DTYPE)
    return (c * tl.dot(factor, factor, square * (b / c))).to(DTYPE), rounded


@triton.jit
def _muon_matrix(
    which, weights, narrow, gradient, momentum, squares, rate, limit, polynomials, parts, decay, scale_1, scale_2,
    NUMBERS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, G: tl.constexpr,
    MOMENTUM: tl.constexpr, STEPS: tl.constexpr, PARTS: tl.constexpr, DTYPE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Muon's update of matrix number `which`.

    Loads are placed where they take no time of their own: the momentum before the gradient is there, the weights
    before the last product.
    """
    start, width = tl.where(which == 0, 0, H * D + H), tl.where(which == 0, D, H)
    if which >= 2:
        start += H * H + H + (which - 2) * (H * H) + tl.where(which >= 2 + G, G * H, 0)
    VECTOR: tl.constexpr = 4 if D % 4 == 0 else 2 if D % 2 == 0 else 1  # numbers that are loaded at a time
    start, width = tl.multiple_of(start, 16), tl.multiple_of(width, VECTOR)
    W: tl.constexpr = DP if DP > H else H
    row, column = tl.arange(0, H), tl.arange(0, W)
    at = NUMBERS + start + row[:, None] * width + column[None, :]
    inside = (column < width)[None, :] & (row >= 0)[:, None]
    m = tl.load(momentum + at, mask=inside, other=0.0)
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    g = tl.load(gradient + at, mask=inside, other=0.0)
    g *= clip_factor(limit, _norm(squares, parts, PARTS))
    m += (1.0 - MOMENTUM) * (g - m)
    tl.store(momentum + at, m, mask=inside)
    x = g + MOMENTUM * (m - g)
    x *= 1.0 / tl.maximum(tl.sqrt(tl.sum(tl.sum(x * x, 1), 0)), 1e-7)
    lr = tl.load(rate)
    for k in range(STEPS - 1):
        polynomial, rounded = _polynomial(x, polynomials + 3 * k, DTYPE)
        x = tl.dot(polynomial, rounded, x * tl.load(polynomials + 3 * k))
    polynomial, rounded = _polynomial(x, polynomials + 3 * STEPS - 3, DTYPE)
    w = tl.load(weights + at, mask=inside, other=0.0)
    x = tl.dot(polynomial, rounded, x * tl.load(polynomials + 3 * STEPS - 3))
    w *= 1.0 - lr * decay
    w -= x * (lr * tl.where(which == 0, scale_1, scale_2))
    tl.store(weights + at, w, mask=inside)
    copy = tl.where(which == 0, row[:, None] * DP + column[None, :], at - NUMBERS + H * (DP - D))
    tl.store(narrow + copy, w.to(narrow.dtype.element_ty), mask=inside)


@triton.jit
def advantage_stats(
    advantages, counts, order, stats, metrics, edges, moments,
    COUNTED: tl.constexpr, STANDARDIZE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """For each minibatch `order[edges[k]:edges[k + 1]]`: mean and 1 / std of its advantages, and 1 / its count.

    Without STANDARDIZE mean and 1 / std are those of `moments`, or 0 and 1 if that is None. Also sets the eight metrics
    to zero.
    """
    k = tl.program_id(0)
    if k == 0:
        tl.store(metrics + tl.arange(0, 8), tl.zeros((8,), tl.float32))
    first, last = tl.load(edges + k), tl.load(edges + k + 1)
    if not STANDARDIZE:
        tl.store(stats + k * 4, 0.0 if moments is None else tl.load(moments))
        tl.store(stats + k * 4 + 1, 1.0 if moments is None else tl.load(moments + 1))
    if not STANDARDIZE and not COUNTED:  # nothing to add up
        tl.store(stats + k * 4 + 2, 1.0 / tl.maximum((last - first).to(tl.float32), 1.0))
        return
    pivot = tl.load(advantages + tl.load(order + first))  # subtracted: sums of numbers far from 0 lose precision
    ones, sums, squares = tl.zeros((PART,), tl.float32), tl.zeros((PART,), tl.float32), tl.zeros((PART,), tl.float32)
    for start in range(first, last, PART):
        at = start + tl.arange(0, PART)
        inside = at < last
        index = tl.load(order + at, mask=inside, other=0)
        a = tl.load(advantages + index, mask=inside, other=0.0) - pivot
        n = tl.where(inside, 1.0, 0.0)
        if COUNTED:
            n = tl.load(counts + index, mask=inside, other=0.0)
        ones += n
        sums += a * n
        squares += a * a * n
    total = tl.maximum(tl.sum(ones, 0), 1.0)
    tl.store(stats + k * 4 + 2, 1.0 / total)
    if STANDARDIZE:
        mean = tl.sum(sums, 0) / total
        std = tl.sqrt(tl.maximum(tl.sum(squares, 0) / total - mean * mean, 0.0))
        tl.store(stats + k * 4, pivot + mean)
        tl.store(stats + k * 4 + 1, 1.0 / (std + 1e-8))


@triton.jit
def carry(
    new, state, dones, alive, next_alive, truncated, stored, rows,
    TRUNCATES: tl.constexpr, ALIVE: tl.constexpr, S: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Sets the recurrent state to `new`, or to zero where an episode ended. `stored` gets that of truncated rows."""
    at = tl.program_id(0) * PART + tl.arange(0, PART)
    live = at < rows * S
    row = at // S
    value = tl.load(new + at, mask=live, other=0.0)
    if TRUNCATES:
        tl.store(stored + at, value, mask=live & (tl.load(truncated + row, mask=live, other=0) != 0))
    keep = tl.load(dones + row, mask=live, other=0) == 0
    if ALIVE:
        keep = keep & (tl.load(alive + row, mask=live, other=0) != 0)
        keep = keep & (tl.load(next_alive + row, mask=live, other=0) != 0)
    tl.store(state + at, tl.where(keep, value, 0.0), mask=live)


@triton.jit
def advantages(
    rewards, values, dones, rho, c, out, gamma, lam, steps, rows, PART: tl.constexpr, HELD: tl.constexpr = False
):  # fmt: skip
    """GAE, or with rho and c V-trace's v - V: see `gae` and `vtrace` of algos/ops.py. HELD: gamma, lam are pointers."""
    if HELD:
        gamma, lam = tl.load(gamma).to(tl.float32), tl.load(lam).to(tl.float32)
    row = tl.program_id(0) * PART + tl.arange(0, PART)
    live = row < rows
    advantage = tl.zeros((PART,), tl.float32)
    next_value = tl.load(values + steps * rows + row, mask=live, other=0.0)
    for k in range(steps):
        at = (steps - 1 - k) * rows + row
        reward, value = tl.load(rewards + at, mask=live, other=0.0), tl.load(values + at, mask=live, other=0.0)
        discount = tl.where(tl.load(dones + at, mask=live, other=0) != 0, 0.0, gamma)
        delta = reward + discount * next_value - value
        if rho is not None:
            delta *= tl.load(rho + at, mask=live, other=0.0)
            discount *= tl.load(c + at, mask=live, other=0.0)
        advantage = delta + lam * discount * advantage
        tl.store(out + at, advantage, mask=live)
        next_value = value


@triton.jit
def running_returns(
    rewards, dones, carry, out, gamma, steps, rows, PART: tl.constexpr, HELD: tl.constexpr = False
):  # fmt: skip
    """R_t = r_t + gamma R_{t-1}, from 0 after each done; `carry` is R before step 0, updated in place."""
    if HELD:
        gamma = tl.load(gamma).to(tl.float32)
    row = tl.program_id(0) * PART + tl.arange(0, PART)
    live = row < rows
    previous = tl.load(carry + row, mask=live, other=0.0)
    for t in range(steps):
        at = t * rows + row
        returns = tl.load(rewards + at, mask=live, other=0.0) + gamma * previous
        tl.store(out + at, returns, mask=live)
        previous = tl.where(tl.load(dones + at, mask=live, other=0) != 0, 0.0, returns)
    tl.store(carry + row, previous, mask=live)


@triton.jit
def _mixed(x, keys, BITS: tl.constexpr):
    """A permutation of the numbers below 2^BITS (uint32), drawn by eight keys."""
    mask: tl.constexpr = (1 << BITS) - 1
    half: tl.constexpr = (BITS + 1) // 2
    for k in tl.static_range(4):  # each of these can be undone, so no two numbers become one
        x = (x ^ tl.load(keys + 2 * k).to(tl.uint32)) & mask
        x = (x * (tl.load(keys + 2 * k + 1).to(tl.uint32) | 1)) & mask
        x = x ^ (x >> half)
    return x


@triton.jit
def shuffle(keys, out, count, BITS: tl.constexpr, PART: tl.constexpr):
    """0 .. count - 1 in random order: `out[k]` is the first number below `count` that follows k in a permutation of
    2^BITS, which is a permutation again. It takes 3 us for 524,288 numbers; sorting random ones takes some 65.
    """
    at = tl.program_id(0) * PART + tl.arange(0, PART)
    limit = count.to(tl.uint32)
    x = _mixed(tl.minimum(at, count - 1).to(tl.uint32), keys, BITS)
    while tl.max((x >= limit).to(tl.int32), 0) > 0:
        x = tl.where(x >= limit, _mixed(x, keys, BITS), x)
    tl.store(out + at, x.to(tl.int64), mask=at < count)
