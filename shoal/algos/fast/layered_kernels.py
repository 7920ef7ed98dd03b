"""Triton kernels: a network of several layers, one launch for each layer (launched by layer_stack.py); PPO's heads.

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
from shoal.algos.fast.kernels import _activate, _activation_grad, _norm, adam_step, add_metrics, finished


@triton.jit
def multiple(table, k: tl.constexpr, of: tl.constexpr):
    """Entry k of a table, a multiple of `of`: Triton then loads several numbers at a time from places that it is in."""
    return tl.multiple_of(tl.load(table + k), of)


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
    loaded several numbers at a time. Those of a wide first layer are images of one pixel.
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
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EARLY: tl.constexpr,
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
):  # fmt: skip
    """From the gradient by a layer's outputs (before the activation) to that of the layer before, whose plane is h.

    `skip`: gradients by h through a skip connection, or None. `d_bias`: gets the sums of each block's rows, or None.
    """
    row, k = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64), tl.program_id(1) * BK + tl.arange(0, BK)
    live = row < count
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


@triton.jit
def wide_weight_grads(planes, jobs, partial, count, part_size, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The gradients of the weights of wide layers. Block (job, part) sums a tile over `part_size` times BM rows.

    A job is (place of its outputs' gradients in `planes`, their width, place of its inputs, their width, place of the
    tile in `partial`, distance of parts). Biases are summed where their gradients are computed.
    """
    job, part = jobs + 6 * tl.program_id(0), tl.program_id(1)
    g_width, x_width = multiple(job, 1, 16), multiple(job, 3, 16)
    n, k = tl.arange(0, BN), tl.arange(0, BK)
    from_g, from_x = planes + multiple(job, 0, 16), planes + multiple(job, 2, 16)
    out = partial + multiple(job, 4, 16) + part.to(tl.int64) * multiple(job, 5, 16)
    product = tl.zeros((BN, BK), tl.float32)
    first = part * part_size * BM
    for start in range(first, tl.minimum(first + part_size * BM, count), BM):
        row = start + tl.arange(0, BM)
        live = (row < count)[:, None]
        g = tl.load(from_g + row[:, None] * g_width + n[None, :], mask=live & (n >= 0)[None, :], other=0.0)
        x = tl.load(from_x + row[:, None] * x_width + k[None, :], mask=live & (k >= 0)[None, :], other=0.0)
        product = tl.dot(tl.trans(g), x, product)
    tl.store(out + n[:, None] * x_width + k[None, :], product)


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
