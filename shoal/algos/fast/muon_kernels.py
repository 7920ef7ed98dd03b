"""Triton kernels of Muon (optimizers/muon.py): a Newton-Schulz step of all matrices in three launches.

x is a matrix, transposed if it is tall, padded to (M, N), multiples of 128. x x^T and polynomials of it are symmetric,
and only tiles on and above the diagonal are computed. x is divided by its norm after products: then operands are loaded
for them alone, so that a loop loads them while the product before is computed (see `finished` of kernels.py).

A row of `matrices`: start in the weights, rows, columns, M, N, place of x, place of x x^T, first tile and tiles of
`norms`. A job is (matrix, first row, first column) of a tile. Sizes and flags: kernels.py.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from shoal.algos.fast.kernels import _norm, clip_factor
from shoal.algos.fast.layered_kernels import multiple


@triton.jit
def _job(matrices, jobs):
    job = jobs + 3 * tl.program_id(0)
    return matrices + 9 * tl.load(job), multiple(job, 1, 64), multiple(job, 2, 64)


@triton.jit
def _shape(matrix):
    """Start in the weights, rows and columns."""
    return tl.load(matrix), tl.load(matrix + 1), tl.load(matrix + 2)


@triton.jit
def _places(start, rows, columns, i, j, BN: tl.constexpr):
    """Indices in the weights of elements (i, j) of x, and whether they exist.

    Triton is told that columns lie side by side: then the threads of a warp load columns, not rows. This is so unless x
    is a transposed matrix. As Triton knows no divisor of the indices, it still loads one number at a time, so that
    nothing else depends on it.
    """
    is_tall = rows > columns
    row, column = tl.where(is_tall, j[None, :], i[:, None]), tl.where(is_tall, i[:, None], j[None, :])
    at = tl.max_contiguous(start + row * columns + column, [1, BN])
    return at, (row < rows) & (column < columns)


@triton.jit
def muon_start(
    matrices, jobs, gradient, momentum, squares, limit, x, norms, parts,
    MOMENTUM: tl.constexpr, PARTS: tl.constexpr, DTYPE: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Moves the momentum on. Stores x before its division by its norm, and the sum of squares of each tile."""
    matrix, row, column = _job(matrices, jobs)
    i, j = row + tl.arange(0, B), column + tl.arange(0, B)
    width, to = tl.load(matrix + 4), tl.load(matrix + 5)  # no known divisor: a warp stores a row, as it loads it
    start, rows, columns = _shape(matrix)
    at, inside = _places(start, rows, columns, i, j, B)
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
    """Sums of squares of the tiles of x, which `_factor` adds up."""
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
    B: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """x x^T."""
    matrix, row, column = _job(matrices, jobs)
    i, j = row + tl.arange(0, B), column + tl.arange(0, B)
    side, width, start, to = (
        multiple(matrix, 3, 64),
        multiple(matrix, 4, 64),
        multiple(matrix, 5, 64),
        multiple(matrix, 6, 64),
    )
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
def muon_polynomial(matrices, jobs, square, out, b, c, DTYPE: tl.constexpr, B: tl.constexpr, BK: tl.constexpr):
    """b S + c S S of the symmetric S = x x^T."""
    matrix, row, column = _job(matrices, jobs)
    i, j = row + tl.arange(0, B), column + tl.arange(0, B)
    side, start = multiple(matrix, 3, 64), multiple(matrix, 6, 64)
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
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """factor x + P x of the polynomial P; IS_LAST: it updates the weights."""
    matrix, row, column = _job(matrices, jobs)
    i, j = row + tl.arange(0, BM), column + tl.arange(0, BN)
    side, width, start, from_ = (
        multiple(matrix, 3, 64),
        multiple(matrix, 4, 64),
        multiple(matrix, 5, 64),
        multiple(matrix, 6, 64),
    )
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
