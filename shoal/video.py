"""Writes frames to an MP4 or a GIF, one frame at a time.

MP4 is H.264 by PyAV (`av`): it brings FFmpeg's libraries in its wheel, encodes in this process and raises Python
exceptions; imageio-ffmpeg pipes to a program that it starts, and a failure is a broken pipe. GIF needs only pillow,
whose LZW coder is used; the rest of the file is written here, because pillow's own writer keeps every frame in memory.

A file is there whole or not at all: it is written beside its place and moved there when it is complete. Knows
nothing of envs: shoal/evaluate.py brings the frames.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shoal.errors import ConfigError
from shoal.spec import Array

INSTALL = 'pip install "shoal[video]"'
SUFFIXES = (".mp4", ".gif")
LARGEST = 8192  # pixels in a row or a column


def can_write(suffix: str) -> bool:
    """Whether what that kind of file needs is installed."""
    return importlib.util.find_spec({".mp4": "av", ".gif": "PIL"}[suffix]) is not None


def check(path: str | Path, fps: float = 30.0) -> Path:
    """Where the file will be. Refuses what cannot be written, before anything is drawn.

    A path without a suffix gets `.mp4` where that is possible, else `.gif`.
    """
    if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 0.1 <= fps <= 1000.0:
        raise ConfigError(f"fps={fps!r} must be a number in 0.1 .. 1000.")
    path = Path(path)
    if path.is_dir():
        raise ConfigError(f"{path} cannot be written: it is a folder. Give a file's name too: {path / 'video.mp4'}.")
    if not path.suffix:
        path = path.with_suffix(".mp4" if can_write(".mp4") else ".gif")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(f"{path} ends in {path.suffix}. Videos are written as {' or '.join(SUFFIXES)}.")
    if not can_write(suffix):
        other = " Or write a .gif." if suffix == ".mp4" and can_write(".gif") else ""
        raise ConfigError(f"{path}: writing {suffix} files needs a package that is not installed: {INSTALL}.{other}")
    folder = path.parent
    if not folder.is_dir():
        raise ConfigError(f"{path} cannot be written: there is no folder {folder}. 'mkdir -p {folder}' makes it.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{path} cannot be written: {folder} is not yours to write in. Choose another place.")
    return path


def write(path: str | Path, frames: Iterable[Array], fps: float = 30.0) -> Path:
    """Writes (height, width, 3) uint8 frames, all of one size, and returns where.

    Frames are taken one by one and not kept. Whatever goes wrong, also in `frames`, leaves no half a file, and a file
    that was there before is as it was.
    """
    path = check(path, fps)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    source = iter(frames)
    first = next(source, None)
    if first is None:
        raise ConfigError(f"{path}: there are no frames to write.")
    height, width, _ = _check_frame(first, 0, None).shape
    writer: Writer | None = None
    try:
        with _telling(path):
            writer = (Mp4 if path.suffix.lower() == ".mp4" else Gif)(temporary, height, width, fps)
            writer.add(first)
        for number, frame in enumerate(source, 1):
            _check_frame(frame, number, (height, width, 3))
            with _telling(path):
                writer.add(frame)
        with _telling(path):
            writer.close()
            temporary.replace(path)
    except BaseException:
        if writer is not None:
            with contextlib.suppress(Exception):
                writer.abandon()
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return path


class Writer(Protocol):
    """A file being written. Made with (path, height, width, fps)."""

    def add(self, frame: Array) -> None:
        """Takes the next frame."""

    def close(self) -> None:
        """Completes the file."""

    def abandon(self) -> None:
        """Lets go of the file, whatever state it is in."""


def _check_frame(frame: Any, number: int, shape: tuple[int, ...] | None) -> Array:
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        got = f"{frame.dtype} {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
        raise ConfigError(f"frame {number} is {got}; a frame is a uint8 array of shape (height, width, 3).")
    if shape is not None and frame.shape != shape:
        raise ConfigError(f"frame {number} is {_size(frame.shape)} pixels and the first was {_size(shape)}.")
    if min(frame.shape) < 1 or max(frame.shape) > LARGEST:
        raise ConfigError(f"frame {number} is {_size(frame.shape)} pixels; 1 .. {LARGEST} can be written.")
    return frame


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[1]}x{shape[0]}"


@contextlib.contextmanager
def _telling(path: Path) -> Iterator[None]:
    """Turns what the disk or the encoder says into a ConfigError."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:  # FFmpeg's errors are all one of these
        raise ConfigError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}.") from error


# ---- MP4 ----


class Mp4:
    """H.264 in 4:2:0, which every browser plays. Its colours are marked as BT.709, so that players agree on them."""

    def __init__(self, path: Path, height: int, width: int, fps: float) -> None:
        import av
        from av.video.reformatter import ColorRange, Colorspace

        self.pad = ((0, height % 2), (0, width % 2), (0, 0))  # H.264 wants even sizes: repeat the last row and column
        self.rate, self.count = Fraction(fps).limit_denominator(1001), 0
        self.convert = {"dst_colorspace": Colorspace.ITU709, "dst_color_range": ColorRange.MPEG}
        self.container = av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"})
        stream: Any = self.container.add_stream("libx264", rate=self.rate, options={"crf": "18", "preset": "fast"})
        stream.width, stream.height, stream.pix_fmt = width + width % 2, height + height % 2, "yuv420p"
        context = stream.codec_context
        context.colorspace = context.color_primaries = context.color_trc = 1  # BT.709
        context.color_range = ColorRange.MPEG
        self.stream = stream

    def add(self, frame: Array) -> None:
        """Encodes a frame."""
        import av

        if self.pad != ((0, 0), (0, 0), (0, 0)):
            frame = np.pad(frame, self.pad, mode="edge")
        picture: Any = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
        picture = picture.reformat(format="yuv420p", **self.convert)
        picture.pts, picture.time_base = self.count, 1 / self.rate
        self.count += 1
        self.container.mux(self.stream.encode(picture))

    def close(self) -> None:
        """Encodes what the encoder held back, and writes the index."""
        self.container.mux(self.stream.encode(None))
        self.container.close()

    def abandon(self) -> None:
        """Closes the file."""
        self.container.close()


# ---- GIF ----


class Gif:
    """One palette for all frames; a frame holds only the rectangle that changed.

    Times are whole hundredths of a second, so that 30 fps is 3, 4, 3, 3, 4: right in the long run. Players take
    less than 2 for "slow", so that above 50 fps some frames are left out, never the last.
    """

    def __init__(self, path: Path, height: int, width: int, fps: float) -> None:
        self.fps, self.count, self.shown = fps, 0, 0
        self.palette = Palette()
        self.before = np.zeros((height, width), np.uint8)  # what the file's frames show so far
        self.waiting: Array | None = None  # the frame that is shown from `shown` on
        self.file = path.open("wb")
        self.file.write(b"GIF89a" + _int16(width, height) + b"\xf7\0\0")  # 256 colours of 8 bits
        self.palette_at = self.file.tell()
        self.file.write(bytes(768))  # the palette, when it is known
        self.file.write(b"\x21\xff\x0bNETSCAPE2.0\x03\x01\0\0\0")  # over and over again

    def add(self, frame: Array) -> None:
        """Takes a frame, and writes the one before it, whose time is known now."""
        due = round(100 * self.count / self.fps)
        if self.waiting is not None and due - self.shown >= 2:
            self._write(due)
        self.waiting = self.palette.indices(frame)
        self.count += 1

    def close(self) -> None:
        """Writes the last frame and the palette."""
        self._write(max(self.shown + 2, round(100 * self.count / self.fps)))
        self.file.write(b";")
        self.file.seek(self.palette_at)
        self.file.write(self.palette.colors.astype(np.uint8).tobytes())
        self.file.close()

    def abandon(self) -> None:
        """Closes the file."""
        self.file.close()

    def _write(self, until: int) -> None:
        from PIL import Image

        assert self.waiting is not None
        changed = self.waiting != self.before
        rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
        top, bottom = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 1)
        left, right = (int(columns[0]), int(columns[-1]) + 1) if len(columns) else (0, 1)
        part = np.where(changed, self.waiting, 0)[top:bottom, left:right]  # 0 is transparent: as before
        delay = min(until - self.shown, 65535)
        self.file.write(b"\x21\xf9\x04\x05" + _int16(delay) + b"\0\0")  # keep the picture; colour 0 is transparent
        self.file.write(b"\x2c" + _int16(left, top, right - left, bottom - top) + b"\0\x08")
        self.file.write(Image.fromarray(np.ascontiguousarray(part)).tobytes("gif", "L", 8, 0) + b"\0")
        self.before, self.shown = self.waiting, until


def _int16(*values: int) -> bytes:
    return b"".join(value.to_bytes(2, "little") for value in values)


class Palette:
    """The 255 colours that a whole GIF shares, found while its frames come: colour 0 means "as before".

    Few colours are kept exactly, more as near as no eye can tell. A first frame of very many (a photo) is divided by
    median cut. New colours of later frames get a place while there is one, then the nearest.
    """

    FEW = 128  # so many are kept exactly
    NEAR = 12  # a distance in RGB that is not seen
    MANY = 4096  # colours of a first frame that are too many to choose from one by one
    FIRST = 192  # places that the first frame may take

    def __init__(self) -> None:
        self.colors = np.zeros((256, 3), np.int32)
        self.count = 1
        self.index = np.zeros(1 << 24, np.uint8)  # of every RGB colour; 0: not met yet

    def indices(self, frame: Array) -> Array:
        """A (height, width, 3) frame as (height, width) places in the palette."""
        wide = frame.astype(np.int32)
        packed = wide[..., 0] << 16 | wide[..., 1] << 8 | wide[..., 2]
        found: Array = self.index[packed]
        if not found.all():
            missing, counts = np.unique(packed[found == 0], return_counts=True)
            self._learn(frame, missing, counts)
            found = self.index[packed]
        return found

    def _learn(self, frame: Array, packed: Array, counts: Array) -> None:
        colors = np.stack([packed >> 16, packed >> 8 & 255, packed & 255], axis=1)
        places = 256 if self.count > 1 else 1 + self.FIRST
        if self.count == 1 and len(colors) > self.MANY:
            self._cut(frame)
        distance, near = self._nearest(colors)[1], 0 if self.count + len(colors) <= self.FEW else self.NEAR
        while self.count < places and (far := distance > near**2).any():
            new = colors[np.where(far, counts, 0).argmax()]
            self.colors[self.count] = new
            self.count += 1
            distance = np.minimum(distance, ((colors - new) ** 2).sum(1))
        self.index[packed] = self._nearest(colors)[0]

    def _nearest(self, colors: Array) -> tuple[Array, Array]:
        """For each colour: the nearest place in the palette, and the square of the distance to it."""
        palette = self.colors[1 : self.count].astype(np.float32)  # float32 holds every number here exactly
        if not len(palette):
            return np.zeros(len(colors), np.uint8), np.full(len(colors), 1 << 30)
        places, distances = [], []
        for part in np.array_split(colors.astype(np.float32), 1 + len(colors) // 16384):
            squares = (part**2).sum(1)[:, None] - 2 * part @ palette.T + (palette**2).sum(1)
            places.append(1 + squares.argmin(1).astype(np.uint8))
            distances.append(squares.min(1))
        return np.concatenate(places), np.concatenate(distances)

    def _cut(self, frame: Array) -> None:
        from PIL import Image

        step = math.ceil(math.sqrt(frame.shape[0] * frame.shape[1] / 250_000))
        small = Image.fromarray(np.ascontiguousarray(frame[::step, ::step])).quantize(self.FIRST)
        found = np.array(small.getpalette(), np.int32).reshape(-1, 3)[: self.FIRST]
        self.colors[1 : 1 + len(found)] = found
        self.count = 1 + len(found)
