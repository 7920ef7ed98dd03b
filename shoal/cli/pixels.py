"""Frames as characters: two pixels in one half block with colours, or plain ASCII where there are none."""

from __future__ import annotations

import numpy as np

from shoal.errors import ConfigError
from shoal.spec import Array

RAMP = " .:-=+*#%@"  # from the background to the strongest contrast
LEAST, MOST = 8, 400  # columns


def check_width(width: int) -> None:
    """Raises ConfigError for a width that no terminal has."""
    if not LEAST <= width <= MOST:
        raise ConfigError(f"the width of a picture is {width}. Give {LEAST} to {MOST} columns.")


def shrink(frame: Array, width: int, height: int) -> Array:
    """The frame in another size: each pixel is the mean of those that it covers."""
    factors = [-(-size // have) for size, have in zip((height, width), frame.shape)]  # 1, unless the frame is tiny
    frame = frame.repeat(factors[0], axis=0).repeat(factors[1], axis=1)
    rows = np.linspace(0, frame.shape[0], height + 1).astype(int)
    columns = np.linspace(0, frame.shape[1], width + 1).astype(int)
    numbers = frame.astype(np.float32)
    summed = np.add.reduceat(np.add.reduceat(numbers, rows[:-1], axis=0), columns[:-1], axis=1)
    ones = np.ones(frame.shape[:2], np.float32)
    counts = np.add.reduceat(np.add.reduceat(ones, rows[:-1], axis=0), columns[:-1], axis=1)
    small: Array = np.round(summed / counts[..., None]).astype(np.uint8)
    return small


def half_blocks(frame: Array, width: int) -> str:
    """The picture for a terminal with colours. A character is two pixels high."""
    height = _height(frame, width, pixels_per_row=2)
    small = shrink(frame, width, height)
    lines = []
    for row in range(0, height, 2):
        cells = []
        for upper, lower in zip(small[row], small[row + 1]):
            top, bottom = ";".join(map(str, upper)), ";".join(map(str, lower))
            cells.append(f"\x1b[38;2;{top}m\x1b[48;2;{bottom}m▀")
        lines.append("".join(cells) + "\x1b[0m")
    return "\n".join(lines)


def ascii_art(frame: Array, width: int) -> str:
    """The picture without colours. A character is about twice as high as wide."""
    height = _height(frame, width, pixels_per_row=1)
    brightness = shrink(frame, width, height) @ np.array([0.299, 0.587, 0.114], np.float32)
    contrast = np.abs(brightness - np.median(brightness))  # to the background, which may be bright
    share = contrast / max(float(contrast.max()), 1.0)
    numbers = np.minimum((share * len(RAMP)).astype(int), len(RAMP) - 1)
    return "\n".join("".join(RAMP[number] for number in row).rstrip() for row in numbers)


def _height(frame: Array, width: int, pixels_per_row: int) -> int:
    """Rows of pixels that keep the frame's proportions, in whole characters."""
    height, frame_width = int(frame.shape[0]), int(frame.shape[1])
    return max(1, round(width * height / frame_width / 2)) * pixels_per_row
