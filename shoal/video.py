"""Writes frames to an MP4 or a GIF, one frame at a time.

MP4 is H.264 by PyAV (`av`): it brings FFmpeg's libraries in its wheel, encodes in this process and raises Python
exceptions; imageio-ffmpeg pipes to a program that it starts, and a failure is a broken pipe. GIF is by Pillow, frame by
frame: its `save_all` would keep every frame in memory until the end.

A file is complete or absent: it is written under a temporary name beside its place, and renamed when it is complete.
Knows nothing of envs: shoal/evaluate.py supplies the frames.
"""

from __future__ import annotations

import contextlib
import importlib.util
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
    """Whether the package that writes this kind of file is installed."""
    return importlib.util.find_spec({".mp4": "av", ".gif": "PIL"}[suffix]) is not None


def check(path: str | Path, fps: float = 30.0) -> Path:
    """The path of the file. Raises where it cannot be written, before anything is drawn.

    A path without a suffix gets `.mp4` where that is possible, else `.gif`.
    """
    if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 0.1 <= fps <= 1000.0:
        raise ConfigError(f"fps={fps!r} must be a number in 0.1 .. 1000.")
    path = Path(path)
    if path.is_dir():
        raise ConfigError(f"{path} cannot be written: it is a folder. Add a file name: {path / 'video.mp4'}.")
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
        raise ConfigError(f"{path} cannot be written: no permission to write in {folder}. Choose another folder.")
    return path


def write(path: str | Path, frames: Iterable[Array], fps: float = 30.0) -> Path:
    """Writes (height, width, 3) uint8 frames of one size, and returns the path.

    Frames are taken one by one and not kept. After an error, also one in `frames`, there is no partial file, and an
    earlier file of that name is unchanged.
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
        with _as_config_error(path):
            writer = (Mp4 if path.suffix.lower() == ".mp4" else Gif)(temporary, height, width, fps)
            writer.add(first)
        for number, frame in enumerate(source, 1):
            _check_frame(frame, number, (height, width, 3))
            with _as_config_error(path):
                writer.add(frame)
        with _as_config_error(path):
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
        """Closes the file, complete or not."""


def _check_frame(frame: Any, number: int, shape: tuple[int, ...] | None) -> Array:
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        kind = f"{frame.dtype} {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
        raise ConfigError(f"frame {number} is {kind}; a frame is a uint8 array of shape (height, width, 3).")
    if shape is not None and frame.shape != shape:
        raise ConfigError(f"frame {number} is {_size(frame.shape)} pixels and the first was {_size(shape)}.")
    if min(frame.shape) < 1 or max(frame.shape) > LARGEST:
        raise ConfigError(f"frame {number} is {_size(frame.shape)} pixels; a side may have 1 .. {LARGEST}.")
    return frame


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[1]}x{shape[0]}"


@contextlib.contextmanager
def _as_config_error(path: Path) -> Iterator[None]:
    """Turns an error of the disk or the encoder into a ConfigError."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:  # FFmpeg's errors are all one of these
        raise ConfigError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}.") from error


# ---- MP4 ----


class Mp4:
    """H.264 in 4:2:0, which every browser plays. Colours are marked as BT.709, so that all players show the same."""

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
        """Encodes the frames that the encoder holds back, and writes the index."""
        self.container.mux(self.stream.encode(None))
        self.container.close()

    def abandon(self) -> None:
        """Closes the file."""
        self.container.close()


# ---- GIF ----


class Gif:
    """Every frame holds only the pixels that changed, with a palette of its own: up to 255 colours are exact.

    A frame's time is in whole hundredths of a second, so that 30 fps is 3, 4, 3, 3, 4: right in the long run. Players
    show less than 2 hundredths as 10, so that above 50 fps some frames are left out, never the last.
    """

    def __init__(self, path: Path, height: int, width: int, fps: float) -> None:
        from PIL import GifImagePlugin, Image

        self.fps, self.count, self.shown = fps, 0, 0
        self.before: Array | None = None  # the frame that was written last
        self.waiting: Array | None = None  # the frame that is shown from `shown` on
        self.file = path.open("wb")
        header, _ = GifImagePlugin.getheader(Image.new("P", (width, height)), info={"loop": 0})  # 0: without end
        self.file.write(b"".join(header))

    def add(self, frame: Array) -> None:
        """Takes a frame, and writes the one before it, whose time is known now."""
        due = round(100 * self.count / self.fps)
        if self.waiting is not None and due - self.shown >= 2:
            self._write(due)
        self.waiting = frame.copy()  # the caller may draw the next frame into the same array
        self.count += 1

    def close(self) -> None:
        """Writes the last frame."""
        self._write(max(self.shown + 2, round(100 * self.count / self.fps)))
        self.file.write(b";")
        self.file.close()

    def abandon(self) -> None:
        """Closes the file."""
        self.file.close()

    def _write(self, until: int) -> None:
        from PIL import GifImagePlugin

        assert self.waiting is not None
        changed = np.ones(self.waiting.shape[:2], bool)
        if self.before is not None:
            changed = (self.waiting != self.before).any(2)
        rows, columns = _extent(changed.any(1)), _extent(changed.any(0))
        image, transparent = _quantized(self.waiting[rows, columns], changed[rows, columns])
        options = {"duration": 10 * min(until - self.shown, 65535), "disposal": 1, "transparency": transparent}
        data = GifImagePlugin.getdata(image, (columns.start, rows.start), include_color_table=True, **options)
        self.file.write(b"".join(data))
        self.before, self.shown = self.waiting, until


def _extent(changed: Any) -> slice:
    """From the first to the last index that is true; one element where none is."""
    places = np.flatnonzero(changed)
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 1)


def _quantized(pixels: Array, changed: Array) -> tuple[Any, int]:
    """Pixels by a palette of at most 255 colours, and one more that means "as before": its index is returned."""
    from PIL import Image

    colours = np.where(changed[..., None], pixels, pixels[changed][:1] if changed.any() else 0).astype(np.uint8)
    image = Image.fromarray(colours).quantize(255)
    palette = image.getpalette() or []
    transparent = len(palette) // 3
    indices = np.where(changed, np.asarray(image), transparent).astype(np.uint8)
    image = Image.fromarray(indices)
    image.putpalette([*palette, 0, 0, 0])  # makes it an image of mode P
    return image, transparent
