"""Triton kernels: PPO for a network of several layers, one launch for each layer (launched by layered.py).

A layer computes activation(W x + b). Its outputs are a plane (rows, N) in DTYPE; that of a convolution has a row for
each pixel of each image, and x is the patch around the pixel. W is a (NP, KP) matrix of `narrow`: padded with zeros to
whole tiles, its columns in the order of x. `biases` has the index in `weights` of each row's bias (-1: none).

Constants of a layer: K numbers of x; PIXELS of an output image (1 without a convolution). Of the source of x: ROW
numbers of an observation or image. With IS_CONV: OW pixels in a row of an output image; IH, IW, IC (height, width,
channels) of the source, and the distances SY, SX, SC between its elements; SIDE, STRIDE and PAD of the kernel. A patch
is in the order (ky, kx, channel).
IS_OBS says whether the source is the observations, ORDERED whether `order` names the rows of it. BM, BN, BK are the
sizes of a tile over rows, N and K. Other sizes and flags: kernels.py. There are no atomic additions.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from shoal.algos.fast.head_kernels import load_coefs, load_stats, load_targets, loss_grads, sample
from shoal.algos.fast.kernels import _activate, _activation_grad, adam_step, add_metrics, clip_factor, finished

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # an older Triton: OVERLAP is False then
    gdc_launch_dependents = gdc_wait = None


@triton.jit
def _patches(
    source, mean, scale, image, pixel, live, start, K: tl.constexpr, ROW: tl.constexpr, IS_CONV: tl.constexpr,
    OW: tl.constexpr, IH: tl.constexpr, IW: tl.constexpr, IC: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr,
    SC: tl.constexpr, SIDE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, IS_OBS: tl.constexpr,
    UNIT: tl.constexpr, NORM: tl.constexpr, BK: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """BK columns of x from `start` on, for images `image` (rows,) and one pixel of their outputs: (rows, BK).

    One pixel at a time: the places of a patch are then a vector, not a matrix, which saves most index arithmetic.
    """
    k = start + tl.arange(0, BK)
    if IS_CONV:
        place, channel = k // IC, k % IC
        y, x = pixel // OW * STRIDE - PAD + place // SIDE, pixel % OW * STRIDE - PAD + place % SIDE
        exists = (k < K) & (y >= 0) & (y < IH) & (x >= 0) & (x < IW)
        element = y * SY + x * SX + channel * SC
    else:
        exists, element = k < K, k
    inside = live[:, None] & exists[None, :]
    value = tl.load(source + image[:, None] * ROW + element[None, :], mask=inside, other=0)
    if IS_OBS:
        value = value.to(tl.float32)
        if NORM:
            shift = tl.load(mean + element, mask=exists, other=0.0)
            factor = tl.load(scale + element, mask=exists, other=0.0)
            value = (value - shift[None, :]) * factor[None, :]
            value = tl.where(value < -10.0, -10.0, tl.where(value > 10.0, 10.0, value))  # nan stays nan
            value = tl.where(inside, value, 0.0)
        value = value * UNIT
    return value.to(DTYPE)


@triton.jit
def _columns(n, plane, NP: tl.constexpr, H: tl.constexpr):
    """Distance of two rows of a layer's outputs, and the places of columns n. H: each gate has a plane (rows, H)."""
    if H == 0:
        return NP, n
    else:
        return H, n // H * plane.to(tl.int64) + n % H


@triton.jit
def expand(
    obs, order, mean, scale, out, count, ROW: tl.constexpr, IH: tl.constexpr, IW: tl.constexpr, C: tl.constexpr,
    IC: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr, SC: tl.constexpr, UNIT: tl.constexpr, NORM: tl.constexpr,
    ORDERED: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Observations as images for the first convolution: C channels last, padded with zeros to IC, so that a patch is
    loaded several numbers at a time.
    """
    at = tl.program_id(0) * PART + tl.arange(0, PART)
    row, pixel, channel = at // (IH * IW * IC), at // IC % (IH * IW), at % IC
    live = row < count
    inside = live & (channel < C)
    element = pixel // IW * SY + pixel % IW * SX + channel * SC
    image = row.to(tl.int64)
    if ORDERED:
        image = tl.load(order + row, mask=live, other=0)
    value = tl.load(obs + image * ROW + element, mask=inside, other=0).to(tl.float32)
    if NORM:
        value = (value - tl.load(mean + element, mask=inside, other=0.0)) * tl.load(
            scale + element, mask=inside, other=0.0
        )
        value = tl.where(value < -10.0, -10.0, tl.where(value > 10.0, 10.0, value))  # nan stays nan
        value = tl.where(inside, value, 0.0)
    tl.store(out + at, (value * UNIT).to(out.dtype.element_ty), mask=live)


@triton.jit
def begin(OVERLAP: tl.constexpr):
    """OVERLAP: lets the next kernel start, and waits for the end of the one before."""
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def _load_biases(weights, biases, n):
    at = tl.load(biases + n)
    return tl.load(weights + at, mask=at >= 0, other=0.0)


@triton.jit
def forward(
    source, order, mean, scale, weights, narrow, biases, out, plane, count, NP: tl.constexpr, KP: tl.constexpr,
    K: tl.constexpr, ROW: tl.constexpr, PIXELS: tl.constexpr, IS_CONV: tl.constexpr, OW: tl.constexpr,
    IH: tl.constexpr, IW: tl.constexpr, IC: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr, SC: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, IS_OBS: tl.constexpr, UNIT: tl.constexpr,
    NORM: tl.constexpr, ORDERED: tl.constexpr, H: tl.constexpr, ACT: tl.constexpr, DTYPE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EARLY: tl.constexpr = False,
    OVERLAP: tl.constexpr = False,
):  # fmt: skip
    """The outputs of a layer for `count` rows or images: a block has BM of them, one pixel, and BN outputs.

    EARLY: biases are loaded before the products.
    """
    block, pixel = tl.program_id(0) // PIXELS, tl.program_id(0) % PIXELS
    row, n = (block * BM + tl.arange(0, BM)).to(tl.int64), tl.program_id(1) * BN + tl.arange(0, BN)
    live = row < count
    image = row
    if ORDERED:
        image = tl.load(order + row, mask=live, other=0)
    begin(OVERLAP)
    if EARLY:
        bias = _load_biases(weights, biases, n)
    total = tl.zeros((BN, BM) if IS_OBS else (BM, BN), tl.float32)
    for start in range(0, KP, BK):
        x = _patches(
            source, mean, scale, image, pixel, live, start, K, ROW, IS_CONV, OW, IH, IW, IC, SY, SX, SC, SIDE, STRIDE,
            PAD, IS_OBS, UNIT, NORM, BK, DTYPE,
        )  # fmt: skip
        w = tl.load(narrow + n[:, None] * KP + (start + tl.arange(0, BK))[None, :])
        if IS_OBS:  # the other way round x would be an operand in registers: see `finished`
            total = tl.dot(w, tl.trans(x), total)
        else:
            total = tl.dot(x, tl.trans(w), total)
    if IS_OBS:
        total = tl.trans(total)
    if not EARLY:
        bias = _load_biases(weights, biases, n)
    h = _activate(total + bias[None, :], ACT).to(DTYPE)
    width, column = _columns(n, plane, NP, H)
    place = (row * PIXELS + pixel)[:, None] * width + column[None, :]
    tl.store(out + place, h, mask=live[:, None] & (n >= 0)[None, :])


@triton.jit
def backward(
    d_out, narrow, h, skip, d_h, d_bias, plane, count, NP: tl.constexpr, KP: tl.constexpr, K: tl.constexpr,
    H: tl.constexpr, ACT: tl.constexpr, DTYPE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    OVERLAP: tl.constexpr = False,
):  # fmt: skip
    """From the gradient by a layer's outputs (before the activation) to that of the layer before, whose plane is h.

    `skip`: gradients by h through a skip connection, or None. `d_bias`: gets the sums of each block's rows, or None.
    """
    row, k = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64), tl.program_id(1) * BK + tl.arange(0, BK)
    live = row < count
    begin(OVERLAP)
    total = tl.zeros((BM, BK), tl.float32)
    for start in range(0, NP, BN):
        n = start + tl.arange(0, BN)
        width, column = _columns(n, plane, NP, H)
        g = tl.load(d_out + row[:, None] * width + column[None, :], mask=live[:, None] & (n >= 0)[None, :], other=0.0)
        total = tl.dot(g, tl.load(narrow + n[:, None] * KP + k[None, :]), total)
    place, inside = row[:, None] * K + k[None, :], live[:, None] & (k < K)[None, :]
    if skip is not None:
        total += tl.load(skip + place, mask=inside, other=0.0).to(tl.float32)
    before = tl.load(h + place, mask=inside, other=0.0).to(tl.float32)
    total *= _activation_grad(before, ACT)
    tl.store(d_h + place, total.to(DTYPE), mask=inside)
    if d_bias is not None:
        tl.store(d_bias + tl.program_id(0) * K + k, tl.sum(total, 0), mask=k < K)


@triton.jit
def conv_backward(
    d_out, narrow, h, d_h, count, NP: tl.constexpr, KP: tl.constexpr, PIXELS: tl.constexpr, OW: tl.constexpr,
    IH: tl.constexpr, IW: tl.constexpr, IC: tl.constexpr, SIDE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    ACT: tl.constexpr, DTYPE: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """`backward` of a convolution: a block has BM images and one pixel, which gathers from the outputs that it is part
    of.
    """
    block, pixel = tl.program_id(0) // (IH * IW), tl.program_id(0) % (IH * IW)
    row, n, c = (block * BM + tl.arange(0, BM)).to(tl.int64), tl.arange(0, NP), tl.arange(0, IC)
    live = row < count
    total = tl.zeros((BM, IC), tl.float32)
    for place in range(SIDE * SIDE):
        y, x = pixel // IW + PAD - place // SIDE, pixel % IW + PAD - place % SIDE
        is_part = (y >= 0) & (x >= 0) & (y % STRIDE == 0) & (x % STRIDE == 0)
        if is_part & (y // STRIDE < PIXELS // OW) & (x // STRIDE < OW):
            at = (row * PIXELS + y // STRIDE * OW + x // STRIDE)[:, None] * NP + n[None, :]
            g = tl.load(d_out + at, mask=live[:, None] & (n >= 0)[None, :], other=0.0)
            total = tl.dot(g, tl.load(narrow + n[:, None] * KP + place * IC + c[None, :]), total)
    unit, inside = (row * (IH * IW) + pixel)[:, None] * IC + c[None, :], live[:, None] & (c >= 0)[None, :]
    before = tl.load(h + unit, mask=inside, other=0.0).to(tl.float32)
    tl.store(d_h + unit, (total * _activation_grad(before, ACT)).to(DTYPE), mask=inside)


@triton.jit
def weight_grads(
    d_out, source, order, mean, scale, partial, plane, count, part_size, NP: tl.constexpr, KP: tl.constexpr,
    K: tl.constexpr, ROW: tl.constexpr, PIXELS: tl.constexpr, IS_CONV: tl.constexpr, OW: tl.constexpr,
    IH: tl.constexpr, IW: tl.constexpr, IC: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr, SC: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, IS_OBS: tl.constexpr, UNIT: tl.constexpr,
    NORM: tl.constexpr, ORDERED: tl.constexpr, H: tl.constexpr, DTYPE: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The gradient of a layer's weights and biases. Block (tile, part) sums a tile over `part_size` times BM rows into
    row `part` of `partial`: (NP, KP) and (NP,) numbers.

    Hopper's matrix units need at least 64 rows of a product. Tiles of fewer outputs are computed transposed.
    """
    tile, part = tl.program_id(0), tl.program_id(1)
    n, start = tile // (KP // BK) * BN + tl.arange(0, BN), tile % (KP // BK) * BK
    blocks = (count + BM - 1) // BM * PIXELS
    IS_TURNED: tl.constexpr = BN < BK
    product, sums = tl.zeros((BK, BN) if IS_TURNED else (BN, BK), tl.float32), tl.zeros((BM, BN), tl.float32)
    for block in range(part * part_size, tl.minimum(part * part_size + part_size, blocks)):
        row, pixel = (block // PIXELS * BM + tl.arange(0, BM)).to(tl.int64), block % PIXELS
        live = row < count
        image = row
        if ORDERED:
            image = tl.load(order + row, mask=live, other=0)
        width, column = _columns(n, plane, NP, H)
        place = (row * PIXELS + pixel)[:, None] * width + column[None, :]
        g = tl.load(d_out + place, mask=live[:, None] & (n >= 0)[None, :], other=0.0)
        x = _patches(
            source, mean, scale, image, pixel, live, start, K, ROW, IS_CONV, OW, IH, IW, IC, SY, SX, SC, SIDE, STRIDE,
            PAD, IS_OBS, UNIT, NORM, BK, DTYPE,
        )  # fmt: skip
        if IS_TURNED:
            product = tl.dot(tl.trans(x), g, product)
        else:
            product = tl.dot(tl.trans(g), x, product)
        product = finished(product, count > 0)
        sums += g.to(tl.float32)
    out = partial + part.to(tl.int64) * (NP * KP + NP)
    k = start + tl.arange(0, BK)
    if IS_TURNED:
        tl.store(out + n[None, :] * KP + k[:, None], product)
    else:
        tl.store(out + n[:, None] * KP + k[None, :], product)
    if start == 0:
        tl.store(out + NP * KP + n, tl.sum(sums, 0))


# ---- heads ----


@triton.jit
def _head_outputs(
    h, row, live, weights, narrow, biases, K: tl.constexpr, KP: tl.constexpr, NUMBERS: tl.constexpr,
    STATE: tl.constexpr, OP: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The outputs `o` and `s` of the heads: see head_kernels.py. STATE: `s` depends on h, otherwise it is free."""
    column = tl.arange(0, OP)
    o, s = tl.zeros((BM, OP), tl.float32), tl.zeros((BM, OP), tl.float32)
    for start in range(0, KP, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(h + row[:, None] * K + k[None, :], mask=live[:, None] & (k < K)[None, :], other=0.0)
        x = x.to(narrow.dtype.element_ty)  # an LSTM's state is float32
        o = tl.dot(x, tl.trans(tl.load(narrow + column[:, None] * KP + k[None, :])), o)
        if STATE:
            s = tl.dot(x, tl.trans(tl.load(narrow + (OP + column)[:, None] * KP + k[None, :])), s)
    at = tl.load(biases + column)
    o += tl.load(weights + at, mask=at >= 0, other=0.0)[None, :]
    if NUMBERS > 0:
        at = tl.load(biases + OP + column)
        s += tl.load(weights + at, mask=at >= 0, other=0.0)[None, :]
    return o, s


@triton.jit
def act_heads(
    h, weights, narrow, biases, noise, masks, logits, values, actions, env_actions, table, bounds, rows,
    K: tl.constexpr, KP: tl.constexpr, A: tl.constexpr, SIZE: tl.constexpr, PARTS: tl.constexpr,
    NUMBERS: tl.constexpr, SQUASH: tl.constexpr, STATE: tl.constexpr, WIDTH: tl.constexpr, MASKED: tl.constexpr,
    OP: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Logits, values and actions of `rows` rows."""
    row = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    live = row < rows
    o, s = _head_outputs(h, row, live, weights, narrow, biases, K, KP, NUMBERS, STATE, OP, BM, BK)
    sample(
        o, s, row, live, noise, masks, logits, values, actions, env_actions, table, bounds,
        A, SIZE, PARTS, NUMBERS, SQUASH, WIDTH, MASKED, OP,
    )  # fmt: skip


@triton.jit
def learn_heads(
    h, weights, narrow, biases, masks, order, actions, logprobs, old_values, advantages, returns, counts, stats,
    d_heads, d_h, d_bias, sums, coefs, table, bounds, count,
    K: tl.constexpr, KP: tl.constexpr, A: tl.constexpr, SIZE: tl.constexpr, PARTS: tl.constexpr,
    NUMBERS: tl.constexpr, SQUASH: tl.constexpr, STATE: tl.constexpr, MASKED: tl.constexpr, COUNTED: tl.constexpr,
    CLIPPED: tl.constexpr, ACT: tl.constexpr, DTYPE: tl.constexpr, OP: tl.constexpr, BM: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """The loss: its gradients by the heads' outputs, `o` and then `s`, and by the last layer before its activation.

    `d_bias`: see `backward`.
    """
    block, column = tl.program_id(0), tl.arange(0, OP)
    row = (block * BM + tl.arange(0, BM)).to(tl.int64)
    live = row < count
    at = tl.load(order + row, mask=live, other=0)
    chosen, logprob, advantage, target, old, weight = load_targets(
        at, live, actions, logprobs, old_values, advantages, returns, counts, SIZE, PARTS, NUMBERS, COUNTED, CLIPPED
    )
    clip, value_clip, value_coef, entropy_coef = load_coefs(coefs)
    center, factor, share = load_stats(stats)
    o, s = _head_outputs(h, row, live, weights, narrow, biases, K, KP, NUMBERS, STATE, OP, BM, BK)
    d_o, d_s = loss_grads(
        o, s, at, live, block, masks, actions, chosen, logprob, advantage, target, old, weight, center, factor, share,
        sums, clip, value_clip, value_coef, entropy_coef, table, bounds, A, SIZE, PARTS, NUMBERS, SQUASH, MASKED,
        COUNTED, CLIPPED, OP, BM,
    )  # fmt: skip
    d_o, d_s = d_o.to(DTYPE), d_s.to(DTYPE)
    WIDE: tl.constexpr = 2 * OP if NUMBERS > 0 else OP
    place, inside = row[:, None] * WIDE + column[None, :], live[:, None] & (column >= 0)[None, :]
    tl.store(d_heads + place, d_o, mask=inside)
    if NUMBERS > 0:
        tl.store(d_heads + place + OP, d_s, mask=inside)
    for start in range(0, KP, BK):
        k = start + tl.arange(0, BK)
        total = tl.dot(d_o, tl.load(narrow + column[:, None] * KP + k[None, :]))
        if STATE:
            total = tl.dot(d_s, tl.load(narrow + (OP + column)[:, None] * KP + k[None, :]), total)
        unit, is_unit = row[:, None] * K + k[None, :], live[:, None] & (k < K)[None, :]
        before = tl.load(h + unit, mask=is_unit, other=0.0).to(tl.float32)
        total *= _activation_grad(before, ACT)
        tl.store(d_h + unit, total.to(DTYPE), mask=is_unit)
        if d_bias is not None:
            tl.store(d_bias + block * K + k, tl.sum(total, 0), mask=k < K)


# ---- the optimizer ----


@triton.jit
def reduce(
    partial, jobs, inverse, sums, gradient, squares, metrics, step, tiles,
    BEGIN: tl.constexpr, END: tl.constexpr, BLOCKS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Adds the parts of the gradients: see `reduce` of kernels.py.

    A job is a block of a layer's weights: (first in `narrow`, length, first in `partial`, distance of parts, parts).
    `inverse` has the index in the gradient of each number of `narrow` (-1: padding).
    """
    block, at, part = tl.program_id(0), tl.arange(0, PART), tl.arange(0, BLOCKS)
    first, length, base = tl.load(jobs + 5 * block), tl.load(jobs + 5 * block + 1), tl.load(jobs + 5 * block + 2)
    stride, parts = tl.load(jobs + 5 * block + 3), tl.load(jobs + 5 * block + 4)
    rows = tl.zeros((BLOCKS, PART), tl.float32)
    for start in range(0, parts, BLOCKS):
        inside = (start + part < parts)[:, None] & (at < length)[None, :]
        rows += tl.load(partial + base + (start + part)[:, None] * stride + at[None, :], mask=inside, other=0.0)
    grads = tl.sum(rows, 0)
    index = tl.load(inverse + first + at, mask=at < length, other=-1)
    if not BEGIN:
        grads += tl.load(gradient + index, mask=index >= 0, other=0.0)
    tl.store(gradient + index, grads, mask=index >= 0)
    grads = tl.where(index >= 0, grads, 0.0)
    tl.store(squares + block, tl.sum(grads * grads, 0))
    if block == 0:
        add_metrics(sums, metrics, step, tiles, END, BLOCKS)


@triton.jit
def _norm(squares, parts, PARTS: tl.constexpr):
    index = tl.arange(0, PARTS)
    return tl.sqrt(tl.sum(tl.load(squares + index, mask=index < parts, other=0.0), 0))


@triton.jit
def adam(
    weights, narrow, places, gradient, mean, square, squares, metrics, step, rate, limit, size, parts,
    beta1, beta2, eps, decay, DECOUPLED: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """`adam` of kernels.py. `places` has the place in `narrow` of each weight (-1: Muon updates it)."""
    part = tl.program_id(0)
    norm = _norm(squares, parts, PARTS)
    if part == 0:
        tl.store(metrics + 5, tl.load(metrics + 5) + norm)
    at = part * PART + tl.arange(0, PART)
    place = tl.load(places + at, mask=at < size, other=-1)
    inside = place >= 0
    w = adam_step(
        weights, gradient, mean, square, step, rate, limit, norm, at, inside, beta1, beta2, eps, decay, DECOUPLED
    )
    tl.store(narrow + place, w.to(narrow.dtype.element_ty), mask=inside)


# Muon (optimizers/muon.py): x is a matrix, transposed if it is tall, padded to (M, N) of whole tiles of B x B. A row of
# `matrices`: start in the weights, rows, columns, M, N, place of x, place of x x^T, first tile and tiles of `norms`.
# A job is (matrix, row, column) of a tile.


@triton.jit
def _tile(matrices, jobs, job, B: tl.constexpr):
    matrix = matrices + 9 * tl.load(jobs + 3 * job)
    own, row, column = tl.arange(0, B), tl.load(jobs + 3 * job + 1) * B, tl.load(jobs + 3 * job + 2) * B
    return matrix, row + own, column + own


@triton.jit
def _size(matrix, k: tl.constexpr, B: tl.constexpr):
    """A size or place of a matrix that is a multiple of B: Triton then loads several numbers at a time."""
    return tl.multiple_of(tl.load(matrix + k), B)


@triton.jit
def _index(matrix, i, j):
    """Indices in the weights of elements (i, j) of x, and whether they exist."""
    start, rows, columns = tl.load(matrix), tl.load(matrix + 1), tl.load(matrix + 2)
    is_tall = rows > columns
    row, column = tl.where(is_tall, j[None, :], i[:, None]), tl.where(is_tall, i[:, None], j[None, :])
    return start + row * columns + column, (row < rows) & (column < columns)


@triton.jit
def muon_start(
    matrices, jobs, gradient, momentum, squares, limit, x, norms, parts,
    MOMENTUM: tl.constexpr, PARTS: tl.constexpr, DTYPE: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Moves the momentum on. Stores x before its division by its norm, and the sum of squares of each tile."""
    job = tl.program_id(0)
    matrix, i, j = _tile(matrices, jobs, job, B)
    at, inside = _index(matrix, i, j)
    g = tl.load(gradient + at, mask=inside, other=0.0) * clip_factor(limit, _norm(squares, parts, PARTS))
    m = tl.load(momentum + at, mask=inside, other=0.0)
    m += (1.0 - MOMENTUM) * (g - m)
    tl.store(momentum + at, m, mask=inside)
    value = (g + MOMENTUM * (m - g)).to(DTYPE)
    tl.store(x + _size(matrix, 5, B) + i[:, None] * _size(matrix, 4, B) + j[None, :], value)
    value = value.to(tl.float32)
    tl.store(norms + job, tl.sum(tl.sum(value * value, 1), 0))


@triton.jit
def _factor(matrix, norms, TILES: tl.constexpr):
    """1 / norm of x before its division."""
    index, tiles = tl.arange(0, TILES), tl.load(matrix + 8)
    total = tl.sum(tl.load(norms + tl.load(matrix + 7) + index, mask=index < tiles, other=0.0), 0)
    return tl.maximum(tl.sqrt(total), 1e-7)


@triton.jit
def muon_square(
    matrices, jobs, x, norms, out, IS_FIRST: tl.constexpr, TILES: tl.constexpr, DTYPE: tl.constexpr, B: tl.constexpr
):
    """x x^T. IS_FIRST: x is divided by its norm here and in `muon_apply`."""
    matrix, i, j = _tile(matrices, jobs, tl.program_id(0), B)
    width, start = _size(matrix, 4, B), _size(matrix, 5, B)
    total = tl.zeros((B, B), tl.float32)
    if IS_FIRST:
        norm = _factor(matrix, norms, TILES)
    for first in range(0, width, B):
        k = first + tl.arange(0, B)
        a = tl.load(x + start + i[:, None] * width + k[None, :])
        b = tl.load(x + start + j[:, None] * width + k[None, :])
        if IS_FIRST:
            a, b = (a.to(tl.float32) / norm).to(DTYPE), (b.to(tl.float32) / norm).to(DTYPE)
        total = tl.dot(a, tl.trans(b), total)
    tl.store(out + _size(matrix, 6, B) + i[:, None] * _size(matrix, 3, B) + j[None, :], total.to(DTYPE))


@triton.jit
def muon_polynomial(matrices, jobs, square, out, b, c, DTYPE: tl.constexpr, B: tl.constexpr):
    """b S + c S S of the symmetric S = x x^T."""
    matrix, i, j = _tile(matrices, jobs, tl.program_id(0), B)
    side, start = _size(matrix, 3, B), _size(matrix, 6, B)
    total = tl.zeros((B, B), tl.float32)
    for first in range(0, side, B):
        k = first + tl.arange(0, B)
        a = tl.load(square + start + i[:, None] * side + k[None, :])
        total = tl.dot(a, tl.load(square + start + k[:, None] * side + j[None, :]), total)
    place = start + i[:, None] * side + j[None, :]
    own = tl.load(square + place).to(tl.float32)
    tl.store(out + place, (b * own + c * total).to(DTYPE))


@triton.jit
def muon_apply(
    matrices, jobs, x, polynomial, norms, out, weights, narrow, places, rate, scales, decay, factor,
    IS_FIRST: tl.constexpr, IS_LAST: tl.constexpr, TILES: tl.constexpr, DTYPE: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """factor x + P x of the polynomial P; IS_LAST: it updates the weights."""
    job = tl.program_id(0)
    matrix, i, j = _tile(matrices, jobs, job, B)
    side, width, start, from_ = _size(matrix, 3, B), _size(matrix, 4, B), _size(matrix, 5, B), _size(matrix, 6, B)
    if IS_FIRST:
        norm = _factor(matrix, norms, TILES)
    total = tl.zeros((B, B), tl.float32)
    for first in range(0, side, B):
        k = first + tl.arange(0, B)
        a = tl.load(polynomial + from_ + i[:, None] * side + k[None, :])
        b = tl.load(x + start + k[:, None] * width + j[None, :])
        if IS_FIRST:
            b = (b.to(tl.float32) / norm).to(DTYPE)
        total = tl.dot(a, b, total)
    place = start + i[:, None] * width + j[None, :]
    own = tl.load(x + place)
    if IS_FIRST:
        own = (own.to(tl.float32) / norm).to(DTYPE)
    total += factor * own.to(tl.float32)
    if IS_LAST:
        lr = tl.load(rate)
        at, inside = _index(matrix, i, j)
        w = tl.load(weights + at, mask=inside, other=0.0) * (1.0 - lr * decay)
        w -= total * (lr * tl.load(scales + tl.load(jobs + 3 * job)))
        tl.store(weights + at, w, mask=inside)
        copy = tl.load(places + at, mask=inside, other=0)
        tl.store(narrow + copy, w.to(narrow.dtype.element_ty), mask=inside)
    else:
        tl.store(out + place, total.to(DTYPE))
