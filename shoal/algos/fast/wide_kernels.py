"""Triton kernels of wide layers: products in large tiles (launched by layered.py, chosen by tiles.py).

The operands of a product are loaded for it alone, so that a loop loads them while the product before is computed (see
`finished` of kernels.py). Sizes and flags: layered_kernels.py. What a kernel loads before `begin` are tables that never
change.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from shoal.algos.fast.kernels import _activate, _activation_grad, clip_factor
from shoal.algos.fast.layered_kernels import _norm, _size, begin


@triton.jit
def grads(
    planes, jobs, partial, count, part_size, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    OVERLAP: tl.constexpr = False,
):  # fmt: skip
    """The gradients of the weights of several layers. Block (job, part) sums a tile over `part_size` times BM rows.

    A job is (place of its outputs' gradients in `planes`, their width, place of its inputs, their width, place of the
    tile in `partial`, distance of parts). Biases are summed where their gradients are computed.
    """
    job, part = jobs + 6 * tl.program_id(0), tl.program_id(1)
    g_width, x_width = _size(job, 1, 16), _size(job, 3, 16)
    n, k = tl.arange(0, BN), tl.arange(0, BK)
    from_g, from_x = planes + _size(job, 0, 16), planes + _size(job, 2, 16)
    out = partial + _size(job, 4, 16) + part.to(tl.int64) * _size(job, 5, 16)
    begin(OVERLAP)
    product = tl.zeros((BN, BK), tl.float32)
    first = part * part_size * BM
    for start in range(first, tl.minimum(first + part_size * BM, count), BM):
        row = start + tl.arange(0, BM)
        live = (row < count)[:, None]
        g = tl.load(from_g + row[:, None] * g_width + n[None, :], mask=live & (n >= 0)[None, :], other=0.0)
        x = tl.load(from_x + row[:, None] * x_width + k[None, :], mask=live & (k >= 0)[None, :], other=0.0)
        product = tl.dot(tl.trans(g), x, product)
    tl.store(out + n[:, None] * x_width + k[None, :], product)


# ---- what is left to do after products of cuBLAS ----


@triton.jit
def activate(out, weights, biases, count, NP: tl.constexpr, ACT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """From W x to activation(W x + b), in place."""
    row, n = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64), tl.program_id(1) * BN + tl.arange(0, BN)
    at = tl.load(biases + n)
    place, inside = out + row[:, None] * NP + n[None, :], (row < count)[:, None] & (n >= 0)[None, :]
    z = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    z += tl.load(weights + at, mask=at >= 0, other=0.0)[None, :]
    tl.store(place, _activate(z, ACT).to(out.dtype.element_ty), mask=inside)


@triton.jit
def slope(d_h, h, d_bias, count, K: tl.constexpr, ACT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """From the gradient by a layer's outputs to that before the activation, in place; and sums of it."""
    block = tl.program_id(0)
    row, k = (block * BM + tl.arange(0, BM)).to(tl.int64), tl.program_id(1) * BN + tl.arange(0, BN)
    place, inside = row[:, None] * K + k[None, :], (row < count)[:, None] & (k >= 0)[None, :]
    before = tl.load(h + place, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(d_h + place, mask=inside, other=0.0).to(tl.float32) * _activation_grad(before, ACT)
    tl.store(d_h + place, value.to(d_h.dtype.element_ty), mask=inside)
    if d_bias is not None:
        tl.store(d_bias + block * K + k, tl.sum(value, 0))


# ---- Muon ----

# As in layered_kernels.py, but: x x^T and polynomials of it are symmetric, and only tiles on and above the diagonal are
# computed. x is divided by its norm after products. A job is (matrix, first row, first column).


@triton.jit
def _job(matrices, jobs):
    job = jobs + 3 * tl.program_id(0)
    return matrices + 9 * tl.load(job), _size(job, 1, 64), _size(job, 2, 64)


@triton.jit
def _shape(matrix):
    """Start in the weights, rows and columns."""
    return tl.load(matrix), tl.load(matrix + 1), tl.load(matrix + 2)


@triton.jit
def _places(start, rows, columns, i, j, BN: tl.constexpr):
    """`_index` of layered_kernels.py, of which Triton is told that columns lie side by side: then the threads of a warp
    load columns, not rows. This is so unless x is a transposed matrix. As Triton knows no divisor of the indices, it
    still loads one number at a time, so that nothing else depends on it.
    """
    is_tall = rows > columns
    row, column = tl.where(is_tall, j[None, :], i[:, None]), tl.where(is_tall, i[:, None], j[None, :])
    at = tl.max_contiguous(start + row * columns + column, [1, BN])
    return at, (row < rows) & (column < columns)


@triton.jit
def muon_start(
    matrices, jobs, gradient, momentum, squares, limit, x, norms, parts,
    MOMENTUM: tl.constexpr, PARTS: tl.constexpr, DTYPE: tl.constexpr, B: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """As `muon_start` of layered_kernels.py."""
    matrix, row, column = _job(matrices, jobs)
    i, j = row + tl.arange(0, B), column + tl.arange(0, B)
    width, to = tl.load(matrix + 4), tl.load(matrix + 5)  # no known divisor: a warp stores a row, as it loads it
    start, rows, columns = _shape(matrix)
    at, inside = _places(start, rows, columns, i, j, B)
    begin(OVERLAP)
    g = tl.load(gradient + at, mask=inside, other=0.0) * clip_factor(limit, _norm(squares, parts, PARTS))
    m = tl.load(momentum + at, mask=inside, other=0.0)
    m += (1.0 - MOMENTUM) * (g - m)
    tl.store(momentum + at, m, mask=inside)
    value = (g + MOMENTUM * (m - g)).to(DTYPE)
    tl.store(x + to + i[:, None] * width + j[None, :], value)
    value = value.to(tl.float32)
    tl.store(norms + tl.program_id(0), tl.sum(tl.sum(value * value, 1), 0))


@triton.jit
def _squares(matrix, norms, TILES: tl.constexpr):
    """Sums of squares of x, which `_factor` adds up."""
    index = tl.arange(0, TILES)
    return tl.load(norms + tl.load(matrix + 7) + index, mask=index < tl.load(matrix + 8), other=0.0)


@triton.jit
def _factor(squares):
    """1 / norm of x."""
    return 1.0 / tl.maximum(tl.sqrt(tl.sum(squares, 0)), 1e-7)


@triton.jit
def _store_both(out, value, i, j, side, is_above):
    """Stores a tile of a symmetric matrix, and its mirror image."""
    tl.store(out + i[:, None] * side + j[None, :], value)
    if is_above:
        tl.store(out + j[:, None] * side + i[None, :], tl.trans(value))


@triton.jit
def muon_square(
    matrices, jobs, x, norms, out, IS_FIRST: tl.constexpr, TILES: tl.constexpr, DTYPE: tl.constexpr,
    B: tl.constexpr, BK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """x x^T."""
    matrix, row, column = _job(matrices, jobs)
    i, j = row + tl.arange(0, B), column + tl.arange(0, B)
    side, width, start, to = _size(matrix, 3, 64), _size(matrix, 4, 64), _size(matrix, 5, 64), _size(matrix, 6, 64)
    begin(OVERLAP)
    if IS_FIRST:
        squares = _squares(matrix, norms, TILES)
    total = tl.zeros((B, B), tl.float32)
    for first in range(0, width, BK):
        k = first + tl.arange(0, BK)
        a = tl.load(x + start + i[:, None] * width + k[None, :])
        b = tl.load(x + start + j[:, None] * width + k[None, :])
        total = tl.dot(a, tl.trans(b), total)
    if IS_FIRST:
        factor = _factor(squares)
        total = total * factor * factor  # the square of a small norm may be no number
    _store_both(out + to, total.to(DTYPE), i, j, side, column > row)


@triton.jit
def muon_polynomial(
    matrices, jobs, square, out, b, c, DTYPE: tl.constexpr, B: tl.constexpr, BK: tl.constexpr, OVERLAP: tl.constexpr
):
    """b S + c S S of the symmetric S = x x^T."""
    matrix, row, column = _job(matrices, jobs)
    i, j = row + tl.arange(0, B), column + tl.arange(0, B)
    side, start = _size(matrix, 3, 64), _size(matrix, 6, 64)
    begin(OVERLAP)
    total = tl.zeros((B, B), tl.float32)
    for first in range(0, side, BK):
        k = first + tl.arange(0, BK)
        left = tl.load(square + start + i[:, None] * side + k[None, :])
        right = tl.load(square + start + j[:, None] * side + k[None, :])  # S is symmetric
        total = tl.dot(left, tl.trans(right), total)
    own = tl.load(square + start + i[:, None] * side + j[None, :]).to(tl.float32)
    _store_both(out + start, (b * own + c * total).to(DTYPE), i, j, side, column > row)


@triton.jit
def _halves(x, BM: tl.constexpr, BN: tl.constexpr):
    """The first and the second half of the columns."""
    return tl.split(tl.permute(tl.reshape(x, (BM, 2, BN // 2)), (0, 2, 1)))


@triton.jit
def _update(first, rows, columns, i, j, x, weights, narrow, places, keep, factor, BN: tl.constexpr):
    """Subtracts factor x from weights (i, j), after their decay to `keep` of what they are."""
    at, inside = _places(first, rows, columns, i, j, BN)
    w = tl.load(weights + at, mask=inside, other=0.0)
    copy = tl.max_contiguous(tl.load(places + at, mask=inside, other=0), [1, BN])  # in most matrices
    w = w * keep - x * factor
    tl.store(weights + at, w, mask=inside)
    tl.store(narrow + copy, w.to(narrow.dtype.element_ty), mask=inside)


@triton.jit
def muon_apply(
    matrices, jobs, x, polynomial, norms, out, weights, narrow, places, rate, scales, decay, factor,
    IS_FIRST: tl.constexpr, IS_LAST: tl.constexpr, TILES: tl.constexpr, DTYPE: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """factor x + P x of the polynomial P; IS_LAST: it updates the weights."""
    matrix, row, column = _job(matrices, jobs)
    i, j = row + tl.arange(0, BM), column + tl.arange(0, BN)
    side, width, start, from_ = _size(matrix, 3, 64), _size(matrix, 4, 64), _size(matrix, 5, 64), _size(matrix, 6, 64)
    begin(OVERLAP)
    if IS_FIRST:
        squares = _squares(matrix, norms, TILES)
    total = tl.zeros((BM, BN), tl.float32)
    for first in range(0, side, BK):
        k = first + tl.arange(0, BK)
        a = tl.load(polynomial + from_ + i[:, None] * side + k[None, :])
        b = tl.load(x + start + k[:, None] * width + j[None, :])
        total = tl.dot(a, b, total)
    place = start + i[:, None] * width + j[None, :]
    total += factor * tl.load(x + place).to(tl.float32)
    if IS_FIRST:
        total *= _factor(squares)
    if IS_LAST:
        lr = tl.load(rate)
        keep, factor = 1.0 - lr * decay, lr * tl.load(scales + tl.load(jobs + 3 * tl.program_id(0)))
        left, right = _halves(total, BM, BN)  # what one half loads fits into the registers
        at, rows, columns = _shape(matrix)
        k = column + tl.arange(0, BN // 2)
        _update(at, rows, columns, i, k, left, weights, narrow, places, keep, factor, BN // 2)
        _update(at, rows, columns, i, k + BN // 2, right, weights, narrow, places, keep, factor, BN // 2)
    else:
        tl.store(out + place, total.to(DTYPE))
