"""Triton kernels of the recurrent cores (launched by nn/fused.py): one thread computes one unit of one row.

The plain loops of nn/cores define the results; tests/test_fused.py compares them.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def mingru_forward(gates, skip, start, resets, out, hidden, steps, rows, S: tl.constexpr, PART: tl.constexpr):
    """A MinGRU over a segment: gates (steps, rows, 3 S) before their sigmoids; skip, out, hidden (steps, rows, S)."""
    at = tl.program_id(0) * PART + tl.arange(0, PART)
    live = at < rows * S
    row, unit = at // S, at % S
    h = tl.load(start + at, mask=live, other=0.0).to(tl.float32)
    for t in range(steps):
        base = (t * rows + row).to(tl.int64)
        place = gates + base * (3 * S) + unit
        u = tl.sigmoid(tl.load(place, mask=live, other=0.0).to(tl.float32))
        c = tl.load(place + S, mask=live, other=0.0).to(tl.float32)
        w = tl.sigmoid(tl.load(place + 2 * S, mask=live, other=0.0).to(tl.float32))
        c = tl.where(c >= 0.0, c + 0.5, tl.sigmoid(c))
        s = tl.load(skip + base * S + unit, mask=live, other=0.0).to(tl.float32)
        cleared = (tl.load(resets + base, mask=live, other=0) != 0) & (base >= rows)
        h = tl.where(cleared, 0.0, h)
        h = h + u * (c - h)
        tl.store(hidden + base * S + unit, h, mask=live)
        tl.store(out + base * S + unit, s + w * (h - s), mask=live)


@triton.jit
def mingru_backward(
    gates, skip, start, resets, hidden, d_out, d_gates, d_skip, steps, rows, S: tl.constexpr, PART: tl.constexpr
):
    """The gradients of `mingru_forward` by gates and skip."""
    at = tl.program_id(0) * PART + tl.arange(0, PART)
    live = at < rows * S
    row, unit = at // S, at % S
    later = tl.zeros((PART,), tl.float32)  # dL/dh_t through the steps after t
    for k in range(steps):
        t = steps - 1 - k
        base = (t * rows + row).to(tl.int64)
        place = gates + base * (3 * S) + unit
        u = tl.sigmoid(tl.load(place, mask=live, other=0.0).to(tl.float32))
        x = tl.load(place + S, mask=live, other=0.0).to(tl.float32)
        w = tl.sigmoid(tl.load(place + 2 * S, mask=live, other=0.0).to(tl.float32))
        small = tl.sigmoid(x)
        c = tl.where(x >= 0.0, x + 0.5, small)
        s = tl.load(skip + base * S + unit, mask=live, other=0.0).to(tl.float32)
        h = tl.load(hidden + base * S + unit, mask=live, other=0.0)
        before = tl.load(start + at, mask=live & (base < rows), other=0.0).to(tl.float32)
        before += tl.load(hidden + (base - rows) * S + unit, mask=live & (base >= rows), other=0.0)
        cleared = (tl.load(resets + base, mask=live, other=0) != 0) & (base >= rows)
        before = tl.where(cleared, 0.0, before)
        g = tl.load(d_out + base * S + unit, mask=live, other=0.0).to(tl.float32)
        dh = g * w + later
        out = d_gates + base * (3 * S) + unit
        tl.store(out, dh * (c - before) * u * (1.0 - u), mask=live)
        tl.store(out + S, dh * u * tl.where(x >= 0.0, 1.0, small * (1.0 - small)), mask=live)
        tl.store(out + 2 * S, g * (h - s) * w * (1.0 - w), mask=live)
        tl.store(d_skip + base * S + unit, g * (1.0 - w), mask=live)
        later = tl.where(cleared, 0.0, dh * (1.0 - u))


@triton.jit
def lstm_forward(
    inputs, recurrent, cell, resets, next_resets, acts, new_cell, out, next_hidden, rows,
    HAS_RESETS: tl.constexpr, HAS_NEXT: tl.constexpr, S: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """One step of an LSTM: inputs + recurrent (rows, 4 S) are the gates i, f, g, o before their sigmoids.

    `next_hidden` is the hidden state before the next step: cleared where an episode begins there.
    """
    at = tl.program_id(0) * PART + tl.arange(0, PART)
    live = at < rows * S
    row, unit = at // S, at % S
    place = row.to(tl.int64) * (4 * S) + unit  # int32 overflows at 4 million rows of 128 units
    i = tl.load(inputs + place, mask=live, other=0.0).to(tl.float32)
    f = tl.load(inputs + place + S, mask=live, other=0.0).to(tl.float32)
    g = tl.load(inputs + place + 2 * S, mask=live, other=0.0).to(tl.float32)
    o = tl.load(inputs + place + 3 * S, mask=live, other=0.0).to(tl.float32)
    i = tl.sigmoid(i + tl.load(recurrent + place, mask=live, other=0.0).to(tl.float32))
    f = tl.sigmoid(f + tl.load(recurrent + place + S, mask=live, other=0.0).to(tl.float32))
    g = _tanh(g + tl.load(recurrent + place + 2 * S, mask=live, other=0.0).to(tl.float32))
    o = tl.sigmoid(o + tl.load(recurrent + place + 3 * S, mask=live, other=0.0).to(tl.float32))
    c = tl.load(cell + at, mask=live, other=0.0).to(tl.float32)
    if HAS_RESETS:
        c = tl.where(tl.load(resets + row, mask=live, other=0) != 0, 0.0, c)
    c = f * c + i * g
    h = o * _tanh(c)
    tl.store(acts + place, i, mask=live)
    tl.store(acts + place + S, f, mask=live)
    tl.store(acts + place + 2 * S, g, mask=live)
    tl.store(acts + place + 3 * S, o, mask=live)
    tl.store(new_cell + at, c, mask=live)
    tl.store(out + at, h, mask=live)
    if HAS_NEXT:
        h = tl.where(tl.load(next_resets + row, mask=live, other=0) != 0, 0.0, h)
        tl.store(next_hidden + at, h, mask=live)


@triton.jit
def lstm_backward(
    acts, cell, before, resets, next_resets, d_out, d_hidden, d_cell, d_gates, rows,
    HAS_RESETS: tl.constexpr, HAS_NEXT: tl.constexpr, S: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """The gradients of `lstm_forward`. `d_hidden` and `d_cell` come from the next step; `d_cell` is overwritten.

    Its loads of the four gates look like those of `lstm_forward`, which adds two products instead.
    """
    at = tl.program_id(0) * PART + tl.arange(0, PART)
    live = at < rows * S
    row, unit = at // S, at % S
    place = row.to(tl.int64) * (4 * S) + unit  # int32 overflows at 4 million rows of 128 units
    i = tl.load(acts + place, mask=live, other=0.0).to(tl.float32)
    f = tl.load(acts + place + S, mask=live, other=0.0).to(tl.float32)
    g = tl.load(acts + place + 2 * S, mask=live, other=0.0).to(tl.float32)
    o = tl.load(acts + place + 3 * S, mask=live, other=0.0).to(tl.float32)
    c0 = tl.load(before + at, mask=live, other=0.0).to(tl.float32)
    if HAS_RESETS:
        c0 = tl.where(tl.load(resets + row, mask=live, other=0) != 0, 0.0, c0)
    dh = tl.load(d_out + at, mask=live, other=0.0).to(tl.float32)
    dc = tl.zeros((PART,), tl.float32)
    if HAS_NEXT:
        same_episode = tl.load(next_resets + row, mask=live, other=0) == 0
        dh += tl.where(same_episode, tl.load(d_hidden + at, mask=live, other=0.0).to(tl.float32), 0.0)
        dc += tl.where(same_episode, tl.load(d_cell + at, mask=live, other=0.0), 0.0)
    t = _tanh(tl.load(cell + at, mask=live, other=0.0).to(tl.float32))
    dc += dh * o * (1.0 - t * t)
    tl.store(d_gates + place, dc * g * i * (1.0 - i), mask=live)
    tl.store(d_gates + place + S, dc * c0 * f * (1.0 - f), mask=live)
    tl.store(d_gates + place + 2 * S, dc * i * (1.0 - g * g), mask=live)
    tl.store(d_gates + place + 3 * S, dh * t * o * (1.0 - o), mask=live)
    tl.store(d_cell + at, dc * f, mask=live)
