"""The Triton kernels of algos/fused.py and the sums over time of algos/ops.py, for a GPU.

Nothing is added up atomically: the same inputs give the same bits. Each has its plain twin in torch: `learn` is
`any_loss` of algos/ppo.py with its gradient, `adam` is algos/optim.py, `advantages` and `running_returns` are in
algos/ops.py. tests/test_fused.py holds them together, in Triton's interpreter where there is no GPU.

The weights of a policy are one piece of memory, in this order: first layer (H, D) and its biases (H,), second layer
(H, H) and its biases, those of a recurrent core with G gates (algos/core_kernels.py), actor (A, H) and its biases (A,),
critic (1, H) and its bias. `narrow` is a copy of them in the precision of products, with the first layer's rows padded
to (H, DP): rows of any other length cannot be loaded many numbers at a time.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

FLOAT32, BFLOAT16 = tl.float32, tl.bfloat16


@triton.jit
def _activate(x, ACT: tl.constexpr):
    if ACT == 0:
        return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0  # tanh


@triton.jit
def _slope(h, ACT: tl.constexpr):
    """The activation's slope, from what it returned."""
    if ACT == 0:
        return tl.where(h > 0.0, 1.0, 0.0)
    return 1.0 - h * h


@triton.jit
def _see(obs, at, live, mean, scale, D: tl.constexpr, DP: tl.constexpr, UNIT: tl.constexpr, NORM: tl.constexpr):
    """Observations as the policy sees them, padded with zeros: (rows, DP)."""
    column = tl.arange(0, DP)
    inside = live[:, None] & (column < D)[None, :]
    x = tl.load(obs + at[:, None] * D + column[None, :], mask=inside, other=0).to(tl.float32)
    if NORM:
        shift = tl.load(mean + column, mask=column < D, other=0.0)
        slope = tl.load(scale + column, mask=column < D, other=0.0)
        x = (x - shift[None, :]) * slope[None, :]
        x = tl.where(x < -10.0, -10.0, tl.where(x > 10.0, 10.0, x))  # and nan stays nan, for the loss to show it
        x = tl.where(inside, x, 0.0)
    return x * UNIT


@triton.jit
def _matrix(narrow, OUT: tl.constexpr, IN: tl.constexpr, KIND: tl.constexpr):
    """An (OUT, IN) matrix."""
    row, column = tl.arange(0, OUT), tl.arange(0, IN)
    return tl.load(narrow + row[:, None] * IN + column[None, :]).to(KIND)


@triton.jit
def _heads(weights, narrow, H: tl.constexpr, A: tl.constexpr, KIND: tl.constexpr):
    """Actor and critic as one (16, H) matrix and (16,) biases: A logits, then the value, then nothing."""
    row, column = tl.arange(0, 16), tl.arange(0, H)
    # in memory: actor (A, H), its biases (A,), critic (1, H), its bias
    start = tl.where(row < A, row * H, A * H + A)
    wo = tl.load(narrow + start[:, None] + column[None, :], mask=(row <= A)[:, None], other=0.0).to(KIND)
    bias = tl.where(row < A, A * H + row, A * H + A + H)
    return wo, tl.load(weights + bias, mask=row <= A, other=0.0)


@triton.jit
def _choose(o, row, live, noise, masks, logits, values, actions, env_actions, A: tl.constexpr, MASKED: tl.constexpr):
    """Stores values, logits and actions drawn by `noise`, from what the network put out: (rows, 16)."""
    column = tl.arange(0, 16)
    is_choice = (column < A)[None, :]
    place = row[:, None] * A + column[None, :]
    inside = live[:, None] & is_choice
    if MASKED:
        allowed = tl.load(masks + place, mask=inside, other=1)
        o = tl.where(is_choice & (allowed == 0), -1e9, o)
    tl.store(values + row, tl.sum(tl.where((column == A)[None, :], o, 0.0), 1), mask=live)
    tl.store(logits + place, o, mask=inside)
    drawn = o + tl.load(noise + place, mask=inside, other=0.0)
    chosen = tl.argmax(tl.where(is_choice, drawn, -float("inf")), 1)
    chosen = tl.minimum(chosen, A - 1)  # where all are nan, argmax gives any column: the env and the loss index by it
    tl.store(actions + row, chosen.to(tl.int64), mask=live)
    tl.store(env_actions + row, chosen.to(env_actions.dtype.element_ty), mask=live)


@triton.jit
def act(
    obs, weights, narrow, mean, scale, noise, masks, logits, values, actions, env_actions, rows,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, A: tl.constexpr, ACT: tl.constexpr, UNIT: tl.constexpr,
    NORM: tl.constexpr, MASKED: tl.constexpr, KIND: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """One step of the policy: logits, values and actions of `rows` observations."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    live = row < rows
    w1 = _matrix(narrow, H, DP, KIND)
    b1 = tl.load(weights + H * D + tl.arange(0, H))
    w2 = _matrix(narrow + H * DP + H, H, H, KIND)
    b2 = tl.load(weights + H * D + H + H * H + tl.arange(0, H))
    after: tl.constexpr = H + H * H + H
    wo, bo = _heads(weights + H * D + after, narrow + H * DP + after, H, A, KIND)
    x = _see(obs, row.to(tl.int64), live, mean, scale, D, DP, UNIT, NORM).to(KIND)
    h1 = _activate(tl.dot(x, tl.trans(w1)) + b1[None, :], ACT).to(KIND)
    h2 = _activate(tl.dot(h1, tl.trans(w2)) + b2[None, :], ACT).to(KIND)
    o = tl.dot(h2, tl.trans(wo)) + bo[None, :]
    _choose(o, row, live, noise, masks, logits, values, actions, env_actions, A, MASKED)


@triton.jit
def _judge(
    o, at, live, block, masks, actions, logprobs, old_values, advantages, returns, counts, moments, sums,
    clip, value_clip, value_coef, entropy_coef,
    A: tl.constexpr, MASKED: tl.constexpr, COUNTED: tl.constexpr, CLIPPED: tl.constexpr,
):  # fmt: skip
    """The loss's slope by what the network put out (rows, 16): see _ChoiceLoss in algos/ppo.py. Stores metrics' sums.

    `moments` are shift and scale of the advantages and what the loss is divided by.
    """
    column = tl.arange(0, 16)
    is_choice, is_value = (column < A)[None, :], (column == A)[None, :]
    if MASKED:
        allowed = tl.load(masks + at[:, None] * A + column[None, :], mask=live[:, None] & is_choice, other=1)
        o = tl.where(is_choice & (allowed == 0), -1e9, o)

    shift, spread, share = tl.load(moments), tl.load(moments + 1), tl.load(moments + 2)
    each = tl.where(live, share, 0.0)
    if COUNTED:
        each = each * tl.load(counts + at, mask=live, other=0.0)
    z = tl.where(is_choice, o, -float("inf"))
    z = z - tl.max(z, 1)[:, None]
    e = tl.exp(z)
    total = tl.sum(e, 1)
    p = e / total[:, None]
    logp = tl.where(is_choice, z - tl.log(total)[:, None], 0.0)
    entropy = -tl.sum(p * logp, 1)
    chosen = tl.load(actions + at, mask=live, other=0)
    is_chosen = column[None, :] == chosen[:, None]
    log_ratio = tl.sum(tl.where(is_chosen, logp, 0.0), 1) - tl.load(logprobs + at, mask=live, other=0.0)
    ratio = tl.exp(tl.where(live, log_ratio, 0.0))
    advantage = (tl.load(advantages + at, mask=live, other=0.0) - shift) * spread
    free = advantage * ratio
    held = advantage * tl.minimum(tl.maximum(ratio, 1.0 - clip), 1.0 + clip)
    value = tl.sum(tl.where(is_value, o, 0.0), 1)
    target = tl.load(returns + at, mask=live, other=0.0)
    error = value - target
    square, pull = error * error, error
    if CLIPPED:
        old = tl.load(old_values + at, mask=live, other=0.0)
        move = value - old
        step = tl.minimum(tl.maximum(move, -value_clip), value_clip)
        near = old + step - target
        pull = tl.where(square >= near * near, error, tl.where(move == step, near, 0.0))
        square = tl.maximum(square, near * near)
    g = tl.where(free <= held, free, 0.0) * each  # minus the slope by log p of what was chosen
    slope = p * g[:, None] - tl.where(is_chosen, g[:, None], 0.0)
    slope += (entropy_coef * each)[:, None] * p * (logp + entropy[:, None])
    slope = tl.where(is_value, (value_coef * each * pull)[:, None], tl.where(is_choice, slope, 0.0))
    tl.store(sums + block * 8 + 0, -tl.sum(tl.minimum(free, held) * each, 0))
    tl.store(sums + block * 8 + 1, tl.sum(0.5 * square * each, 0))
    tl.store(sums + block * 8 + 2, tl.sum(entropy * each, 0))
    tl.store(sums + block * 8 + 3, tl.sum((ratio - 1.0 - log_ratio) * each, 0))
    tl.store(sums + block * 8 + 4, tl.sum(tl.where(tl.abs(ratio - 1.0) > clip, each, 0.0), 0))
    return slope


@triton.jit
def learn(
    obs, weights, narrow, mean, scale, masks, order, actions, logprobs, old_values, advantages, returns, counts,
    moments, partial, sums, count,
    clip, value_clip, value_coef, entropy_coef,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, A: tl.constexpr, ACT: tl.constexpr, UNIT: tl.constexpr,
    NORM: tl.constexpr, MASKED: tl.constexpr, COUNTED: tl.constexpr, CLIPPED: tl.constexpr, KIND: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """The loss's gradients on the transitions `order[:count]`, BM of them to a block, as a row of `partial` for each.

    A block takes no second tile: sums that live on from one to the next do not fit into registers, and spilling them
    costs more than adding them later.
    """
    block = tl.program_id(0)
    row = block * BM + tl.arange(0, BM)
    live = row < count
    at = tl.load(order + row, mask=live, other=0)
    x = _see(obs, at, live, mean, scale, D, DP, UNIT, NORM).to(KIND)
    w1 = _matrix(narrow, H, DP, KIND)
    b1 = tl.load(weights + H * D + tl.arange(0, H))
    w2 = _matrix(narrow + H * DP + H, H, H, KIND)
    b2 = tl.load(weights + H * D + H + H * H + tl.arange(0, H))
    after: tl.constexpr = H + H * H + H
    wo, bo = _heads(weights + H * D + after, narrow + H * DP + after, H, A, KIND)
    h1 = _activate(tl.dot(x, tl.trans(w1)) + b1[None, :], ACT).to(KIND)
    h2 = _activate(tl.dot(h1, tl.trans(w2)) + b2[None, :], ACT).to(KIND)
    o = tl.dot(h2, tl.trans(wo)) + bo[None, :]
    slope = _judge(
        o, at, live, block, masks, actions, logprobs, old_values, advantages, returns, counts, moments, sums,
        clip, value_clip, value_coef, entropy_coef, A, MASKED, COUNTED, CLIPPED,
    )  # fmt: skip

    # back through the network
    size: tl.constexpr = H * D + H + H * H + H + (A + 1) * (H + 1)
    out_1 = partial + block.to(tl.int64) * size
    out_2 = out_1 + H * D + H
    out_o = out_2 + H * H + H
    unit, place, column = tl.arange(0, H), tl.arange(0, DP), tl.arange(0, 16)
    tl.store(out_o + tl.where(column < A, A * H + column, A * H + A + H), tl.sum(slope, 0), mask=column <= A)
    slope = slope.to(KIND)
    place_o = tl.where(column < A, column * H, A * H + A)[:, None] + unit[None, :]
    tl.store(out_o + place_o, tl.dot(tl.trans(slope), h2), mask=(column <= A)[:, None])
    back = tl.dot(slope, wo) * _slope(h2.to(tl.float32), ACT)
    tl.store(out_2 + H * H + unit, tl.sum(back, 0))
    back = back.to(KIND)
    tl.store(out_2 + unit[:, None] * H + unit[None, :], tl.dot(tl.trans(back), h1))
    back = tl.dot(back, w2) * _slope(h1.to(tl.float32), ACT)
    tl.store(out_1 + H * D + unit, tl.sum(back, 0))
    inside = (place < D)[None, :] & (unit >= 0)[:, None]
    tl.store(out_1 + unit[:, None] * D + place[None, :], tl.dot(tl.trans(back.to(KIND)), x), mask=inside)


@triton.jit
def reduce(
    partial, sums, gradient, squares, metrics, step, size, blocks, tiles,
    BEGIN: tl.constexpr, END: tl.constexpr, BLOCKS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """The blocks' sums to the gradient (BEGIN: from zero), and the sum of its squares. Counts the step at its END.

    Metrics are the sums of `tiles`, which may be more or fewer.
    """
    part = tl.program_id(0)
    at, block = part * PART + tl.arange(0, PART), tl.arange(0, BLOCKS)
    whole = tl.zeros((BLOCKS, PART), tl.float32)
    for first in range(0, blocks, BLOCKS):
        inside = (first + block < blocks)[:, None] & (at < size)[None, :]
        place = (first + block).to(tl.int64)[:, None] * size + at[None, :]
        whole += tl.load(partial + place, mask=inside, other=0.0)
    found = tl.sum(whole, 0)
    if not BEGIN:
        found += tl.load(gradient + at, mask=at < size, other=0.0)
    tl.store(gradient + at, found, mask=at < size)
    tl.store(squares + part, tl.sum(found * found, 0))
    if part == 0:
        column = tl.arange(0, 8)
        more = tl.zeros((BLOCKS, 8), tl.float32)
        for first in range(0, tiles, BLOCKS):
            inside = (first + block < tiles)[:, None] & (column < 5)[None, :]
            more += tl.load(sums + (first + block)[:, None] * 8 + column[None, :], mask=inside, other=0.0)
        tl.store(metrics + column, tl.load(metrics + column, mask=column < 5) + tl.sum(more, 0), mask=column < 5)
        if END:
            tl.store(step, tl.load(step) + 1.0)


@triton.jit
def adam(
    weights, narrow, gradient, mean, square, squares, metrics, step, rate, size, parts,
    limit, beta1, beta2, eps, decay, D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, G: tl.constexpr,
    HIDDEN: tl.constexpr, MATRICES: tl.constexpr, DECOUPLED: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Clips the gradient to the norm `limit` (0: never) and moves the weights by Adam or AdamW; not Muon's matrices."""
    part, every = tl.program_id(0), tl.arange(0, PARTS)
    norm = tl.sqrt(tl.sum(tl.load(squares + every, mask=every < parts, other=0.0), 0))
    if part == 0:
        tl.store(metrics + 5, tl.load(metrics + 5) + norm)
    at = part * PART + tl.arange(0, PART)
    inside = at < size
    if not MATRICES:
        core: tl.constexpr = H * D + H + H * H + H
        inside = inside & (at >= H * D) & ((at < H * D + H) | (at >= core - H))
        if G > 0:
            inside = inside & ((at < core) | (at >= core + G * H * H))
        if HIDDEN:
            inside = inside & ((at < core + G * H * H + G * H) | (at >= core + 2 * G * H * H + G * H))
    g, w = tl.load(gradient + at, mask=inside, other=0.0), tl.load(weights + at, mask=inside, other=0.0)
    lr, t = tl.load(rate), tl.load(step)
    g *= tl.where(limit > 0.0, tl.minimum(limit / (norm + 1e-6), 1.0), 1.0)
    if DECOUPLED:
        w *= 1.0 - lr * decay
    else:
        g += decay * w
    m = tl.load(mean + at, mask=inside, other=0.0)
    m += (1.0 - beta1) * (g - m)
    v = tl.load(square + at, mask=inside, other=0.0)
    v = beta2 * v + (1.0 - beta2) * g * g
    size_1 = 1.0 - tl.exp(t * tl.log(beta1))
    size_2 = 1.0 - tl.exp(t * tl.log(beta2))
    w -= lr / size_1 * m / (tl.sqrt(v) / tl.sqrt(size_2) + eps)
    tl.store(weights + at, w, mask=inside)
    copy = tl.where(at < H * D, at // D * DP + at % D, at + H * (DP - D))
    tl.store(narrow + copy, w.to(narrow.dtype.element_ty), mask=inside)
    tl.store(mean + at, m, mask=inside)
    tl.store(square + at, v, mask=inside)


@triton.jit
def muon(
    weights, narrow, gradient, momentum, squares, rate, parts, limit, decay, scale_1, scale_2, D: tl.constexpr,
    DP: tl.constexpr, H: tl.constexpr, G: tl.constexpr, MOMENTUM: tl.constexpr, STEPS: tl.constexpr,
    PARTS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Muon's move of the two hidden matrices and a core's gates, each in a block of its own: see algos/optim.py."""
    which, every = tl.program_id(0), tl.arange(0, PARTS)
    norm = tl.sqrt(tl.sum(tl.load(squares + every, mask=every < parts, other=0.0), 0))
    start, width = tl.where(which == 0, 0, H * D + H), tl.where(which == 0, D, H)
    if which >= 2:
        start += H * H + H + (which - 2) * (H * H) + tl.where(which >= 2 + G, G * H, 0)
    W: tl.constexpr = DP if DP > H else H
    row, column = tl.arange(0, H), tl.arange(0, W)
    at = start + row[:, None] * width + column[None, :]
    inside = (column < width)[None, :] & (row >= 0)[:, None]
    g = tl.load(gradient + at, mask=inside, other=0.0)
    g *= tl.where(limit > 0.0, tl.minimum(limit / (norm + 1e-6), 1.0), 1.0)
    m = tl.load(momentum + at, mask=inside, other=0.0)
    m += (1.0 - MOMENTUM) * (g - m)
    tl.store(momentum + at, m, mask=inside)
    x = (g + MOMENTUM * (m - g)).to(KIND).to(tl.float32)
    x = x / tl.maximum(tl.sqrt(tl.sum(tl.sum(x * x, 1), 0)), 1e-7)
    for _ in range(STEPS):
        rounded = x.to(KIND)
        square = tl.dot(rounded, tl.trans(rounded)).to(KIND)
        more = (-4.7750 * square.to(tl.float32) + 2.0315 * tl.dot(square, square)).to(KIND)
        x = 3.4445 * rounded.to(tl.float32) + tl.dot(more, rounded)
    lr = tl.load(rate)
    w = tl.load(weights + at, mask=inside, other=0.0) * (1.0 - lr * decay)
    w -= x * (lr * tl.where(which == 0, scale_1, scale_2))
    tl.store(weights + at, w, mask=inside)
    copy = tl.where(which == 0, row[:, None] * DP + column[None, :], at + H * (DP - D))
    tl.store(narrow + copy, w.to(narrow.dtype.element_ty), mask=inside)


@triton.jit
def spread_of_parts(advantages, counts, order, moments, edges, COUNTED: tl.constexpr,
                    STANDARDIZE: tl.constexpr, PART: tl.constexpr):  # fmt: skip
    """For each part `order[edges[k]:edges[k + 1]]`: mean and 1 / spread of its advantages, and 1 / (what counts)."""
    k = tl.program_id(0)
    first, last = tl.load(edges + k), tl.load(edges + k + 1)
    pivot = tl.load(advantages + tl.load(order + first))  # sums of what is far from 0 would lose what differs in it
    one, two, three = tl.zeros((PART,), tl.float32), tl.zeros((PART,), tl.float32), tl.zeros((PART,), tl.float32)
    for start in range(first, last, PART):
        at = start + tl.arange(0, PART)
        inside = at < last
        index = tl.load(order + at, mask=inside, other=0)
        a = tl.load(advantages + index, mask=inside, other=0.0) - pivot
        n = tl.where(inside, 1.0, 0.0)
        if COUNTED:
            n = tl.load(counts + index, mask=inside, other=0.0)
        one += n
        two += a * n
        three += a * a * n
    total = tl.maximum(tl.sum(one, 0), 1.0)
    mean = tl.sum(two, 0) / total
    spread = tl.sqrt(tl.maximum(tl.sum(three, 0) / total - mean * mean, 0.0))
    tl.store(moments + k * 4, pivot + mean if STANDARDIZE else 0.0)
    tl.store(moments + k * 4 + 1, 1.0 / (spread + 1e-8) if STANDARDIZE else 1.0)
    tl.store(moments + k * 4 + 2, 1.0 / total)


@triton.jit
def carry(
    new, state, dones, alive, next_alive, cut, kept, rows,
    CUT: tl.constexpr, ALIVE: tl.constexpr, S: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """A step's new recurrent state becomes the state, or zero where a game ended; `kept` takes those cut off."""
    at = tl.program_id(0) * PART + tl.arange(0, PART)
    live = at < rows * S
    row = at // S
    value = tl.load(new + at, mask=live, other=0.0)
    if CUT:
        tl.store(kept + at, value, mask=live & (tl.load(cut + row, mask=live, other=0) != 0))
    goes_on = tl.load(dones + row, mask=live, other=0) == 0
    if ALIVE:
        goes_on = goes_on & (tl.load(alive + row, mask=live, other=0) != 0)
        goes_on = goes_on & (tl.load(next_alive + row, mask=live, other=0) != 0)
    tl.store(state + at, tl.where(goes_on, value, 0.0), mask=live)


@triton.jit
def advantages(rewards, values, dones, rho, c, out, gamma, lam, steps, rows, PART: tl.constexpr):
    """Generalized advantages, or with rho and c V-trace's: see `gae` and `vtrace` of algos/ops.py."""
    row = tl.program_id(0) * PART + tl.arange(0, PART)
    live = row < rows
    later = tl.zeros((PART,), tl.float32)
    after = tl.load(values + steps * rows + row, mask=live, other=0.0)
    for k in range(steps):
        at = (steps - 1 - k) * rows + row
        reward, value = tl.load(rewards + at, mask=live, other=0.0), tl.load(values + at, mask=live, other=0.0)
        goes_on = tl.where(tl.load(dones + at, mask=live, other=0) != 0, 0.0, gamma)
        delta = reward + goes_on * after - value
        if rho is not None:
            delta *= tl.load(rho + at, mask=live, other=0.0)
            goes_on *= tl.load(c + at, mask=live, other=0.0)
        later = delta + lam * goes_on * later
        tl.store(out + at, later, mask=live)
        after = value


@triton.jit
def running_returns(rewards, dones, carry, out, gamma, steps, rows, PART: tl.constexpr):
    """R_t = r_t + gamma R_{t-1}, begun anew after each done; `carry` is R before, and is updated."""
    row = tl.program_id(0) * PART + tl.arange(0, PART)
    live = row < rows
    before = tl.load(carry + row, mask=live, other=0.0)
    for t in range(steps):
        at = t * rows + row
        now = tl.load(rewards + at, mask=live, other=0.0) + gamma * before
        tl.store(out + at, now, mask=live)
        before = tl.where(tl.load(dones + at, mask=live, other=0) != 0, 0.0, now)
    tl.store(carry + row, before, mask=live)
