"""Videos: the frames that went in come out, at the right times, and nothing half written is ever left."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import tracemalloc
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from shoal import video
from shoal.errors import ConfigError
from tests.video_files import read_video

pytest.importorskip("PIL")
KINDS = [".gif", pytest.param(".mp4", marks=pytest.mark.skipif(not video.can_write(".mp4"), reason="av is missing"))]


def moving(count: int = 12, height: int = 48, width: int = 64):
    """A square that moves over a flat ground: each frame differs, few colours."""
    for k in range(count):
        frame = np.full((height, width, 3), (20, 40, 90), np.uint8)
        frame[8:24, 2 * k : 2 * k + 16] = (230, 120, 10)
        yield frame


def noise(count: int, size: int = 128):
    rng = np.random.default_rng(0)
    for _ in range(count):
        yield rng.integers(0, 256, (size, size, 3), np.uint8)


@pytest.mark.parametrize("kind", KINDS)
def test_frames_come_back_in_order_as_they_were(tmp_path, kind):
    path = video.write(tmp_path / f"a{kind}", moving(), 25)
    frames, seconds = read_video(path)
    assert len(frames) == 12
    assert seconds == [0.04] * 12
    for wrote, got in zip(moving(), frames):
        apart = np.abs(wrote.astype(int) - got)
        if kind == ".gif":
            assert apart.max() == 0, "few colours are kept exactly"
        else:
            assert apart.mean() < 4, "lossy, but the same picture"
            assert apart[40:, 40:].max() <= 3, "flat colours keep their colour"


def test_mp4_plays_everywhere(tmp_path):
    """H.264 in 4:2:0, colours marked, and the index first, so that a browser starts before it has the whole file."""
    av = pytest.importorskip("av")
    path = video.write(tmp_path / "a.mp4", moving(), 30)
    with av.open(str(path)) as container:
        context = container.streams.video[0].codec_context
        assert (context.name, context.pix_fmt, context.colorspace) == ("h264", "yuv420p", 1)
    data = path.read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(1, 1), (7, 9), (33, 18), (18, 33)])
def test_any_size_can_be_written(tmp_path, kind, size):
    wanted = (np.full((*size, 3), 10 * k, np.uint8) for k in range(4))
    frames, _ = read_video(video.write(tmp_path / f"a{kind}", wanted, 30))
    height, width = size if kind == ".gif" else (size[0] + size[0] % 2, size[1] + size[1] % 2)
    assert [frame.shape for frame in frames] == [(height, width, 3)] * 4
    assert [abs(int(frame[-1, -1, 0]) - 10 * k) <= 3 for k, frame in enumerate(frames)] == [True] * 4


@pytest.mark.parametrize(("fps", "count"), [(30, 100), (50, 40), (60, 90), (12.5, 9), (1, 3), (240, 97)])
def test_gif_lasts_as_long_as_it_should(tmp_path, fps, count):
    """GIF counts hundredths of a second, and players show less than 2 of them as 10."""
    frames, seconds = read_video(video.write(tmp_path / "a.gif", moving(count, width=512), fps))
    assert sum(seconds) == pytest.approx(count / fps, abs=0.021)
    assert min(seconds) >= 0.02
    assert len(frames) == count if fps <= 50 else len(frames) <= count
    assert (frames[0] == next(moving(1, width=512))).all() or fps > 50
    assert (frames[-1] == list(moving(count, width=512))[-1]).all(), "the end is always shown"


def test_mp4_keeps_odd_rates(tmp_path):
    av = pytest.importorskip("av")
    for fps, rate in ((29.97, Fraction(2997, 100)), (0.5, Fraction(1, 2)), (60, Fraction(60))):
        with av.open(str(video.write(tmp_path / "a.mp4", moving(6), fps))) as container:
            assert container.streams.video[0].average_rate == rate


def test_gif_is_small_where_little_moves(tmp_path):
    """Only what changed is stored; a frame like the one before costs next to nothing."""
    still = next(noise(1))
    one = video.write(tmp_path / "one.gif", [still]).stat().st_size
    many = video.write(tmp_path / "many.gif", [still] * 101).stat().st_size
    assert many - one < 100 * 40
    frames, _ = read_video(tmp_path / "many.gif")
    assert len(frames) == 101
    assert all((frame == frames[0]).all() for frame in frames)


def test_gif_shows_colours_that_come_late(tmp_path):
    """The palette of the first frame is not that of the others: 501 colours in all are exact."""
    late = [np.full((16, 16, 3), (k // 2, 255 - k // 2, k % 256), np.uint8) for k in range(500)]
    frames, _ = read_video(video.write(tmp_path / "a.gif", [np.zeros((16, 16, 3), np.uint8), *late]))
    assert all((wrote == got).all() for wrote, got in zip(late, frames[1:]))


def test_gif_of_200_colours_is_exact(tmp_path):
    """A moving picture of many flat colours: only what changed is written, and every pixel is right."""
    colours = np.random.default_rng(0).integers(0, 256, (200, 3), np.uint8)
    pictures = [colours[np.roll(np.arange(40 * 40) % 200, 7 * k).reshape(40, 40)] for k in range(8)]
    frames, _ = read_video(video.write(tmp_path / "a.gif", pictures))
    assert all((wrote == got).all() for wrote, got in zip(pictures, frames))


def test_gif_repeats_without_end(tmp_path):
    from PIL import Image

    with Image.open(video.write(tmp_path / "a.gif", moving())) as image:
        assert image.info["loop"] == 0


def test_gif_frames_may_come_in_one_array(tmp_path):
    """An env may draw every frame into the same memory."""
    frame = np.zeros((8, 8, 3), np.uint8)

    def frames():
        for k in range(5):
            frame[:] = 50 * k
            yield frame

    read = read_video(video.write(tmp_path / "a.gif", frames()))[0]
    assert [int(frame[0, 0, 0]) for frame in read] == [0, 50, 100, 150, 200]


def test_gif_of_a_million_colours_is_near(tmp_path):
    ramp = np.linspace(0, 255, 128).astype(np.uint8)
    photo = np.stack(np.broadcast_arrays(ramp[:, None], ramp[None, :], ramp[::-1, None] // 2), axis=2).astype(np.uint8)
    frames, _ = read_video(video.write(tmp_path / "a.gif", [photo, photo[::-1].copy()]))
    assert np.abs(frames[0].astype(int) - photo).mean() < 10
    assert np.abs(frames[1].astype(int) - photo[::-1]).mean() < 10


@pytest.mark.parametrize("kind", KINDS)
def test_frames_are_not_kept(tmp_path, kind):
    """A long video takes no more memory than a short one."""
    video.write(tmp_path / f"warm{kind}", moving(2))
    peaks = []
    for count in (10, 100):
        tracemalloc.start()
        video.write(tmp_path / f"a{kind}", (np.full((64, 1024, 3), 2 * k, np.uint8) for k in range(count)))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 10 * 64 * 1024 * 3


# ---- mistakes ----


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([], "there are no frames"),
        ([np.zeros((4, 4, 3))], "frame 0 is float64 (4, 4, 3)"),
        ([np.zeros((4, 4), np.uint8)], "frame 0 is uint8 (4, 4)"),
        ([np.zeros((4, 4, 4), np.uint8)], "frame 0 is uint8 (4, 4, 4)"),
        ([np.zeros((0, 4, 3), np.uint8)], "frame 0 is 4x0 pixels"),
        ([np.zeros((1, 9000, 3), np.uint8)], "frame 0 is 9000x1 pixels"),
        ([np.zeros((4, 4, 3), np.uint8), None], "frame 1 is NoneType"),
        ([np.zeros((4, 4, 3), np.uint8)] * 3 + [np.zeros((4, 6, 3), np.uint8)], "frame 3 is 6x4 pixels and the first"),
    ],
)
def test_bad_frames_are_refused_and_leave_no_file(tmp_path, kind, frames, said):
    with pytest.raises(ConfigError) as caught:
        video.write(tmp_path / f"a{kind}", frames)
    assert said in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fps", [0, -1, float("nan"), float("inf"), "30", True, None])
def test_bad_rates_are_refused(tmp_path, fps):
    with pytest.raises(ConfigError, match="fps="):
        video.write(tmp_path / "a.gif", moving(), fps)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a.avi", "Videos are written as .mp4 or .gif"),
        ("none/a.gif", "mkdir -p"),
        ("folder", "it is a folder"),
        ("folder.gif", "it is a folder"),
    ],
)
def test_bad_places_are_refused_before_anything_is_drawn(tmp_path, name, said):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder.gif").mkdir()

    def frames():
        raise AssertionError("drawn")
        yield

    with pytest.raises(ConfigError, match=said):
        video.write(tmp_path / name, frames())


def test_a_folder_of_somebody_else_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(video.os, "access", lambda path, mode: False)  # the tests may run as root
    with pytest.raises(ConfigError, match="no permission to write in"):
        video.write(tmp_path / "a.gif", moving())


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_while_drawing_keeps_what_was_there(tmp_path, kind):
    def frames():
        yield from moving(5)
        raise ZeroDivisionError("the env's own")

    (tmp_path / f"a{kind}").write_text("before")
    with pytest.raises(ZeroDivisionError):
        video.write(tmp_path / f"a{kind}", frames())
    assert [path.name for path in tmp_path.iterdir()] == [f"a{kind}"]
    assert (tmp_path / f"a{kind}").read_text() == "before"
    video.write(tmp_path / f"a{kind}", moving())
    assert len(read_video(tmp_path / f"a{kind}")[0]) == 12
    assert len(list(tmp_path.iterdir())) == 1


@contextlib.contextmanager
def small_disk(size: int):
    """No file can grow beyond `size` bytes: writing fails as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 30])
def test_a_full_disk_is_reported_and_leaves_no_file(tmp_path, kind, count):
    with small_disk(400), pytest.raises(ConfigError, match=f"a{kind} cannot be written: "):
        video.write(tmp_path / f"a{kind}", noise(count))
    assert not list(tmp_path.iterdir())


# ---- what is installed ----


def missing(monkeypatch, *modules: str) -> None:
    find = video.importlib.util.find_spec
    monkeypatch.setattr(video.importlib.util, "find_spec", lambda name: None if name in modules else find(name))


def test_without_a_suffix_the_best_that_is_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(video.importlib.util, "find_spec", lambda name: object())
    assert video.check(tmp_path / "a") == tmp_path / "a.mp4"
    monkeypatch.undo()
    missing(monkeypatch, "av")
    assert video.write(tmp_path / "a", moving()) == tmp_path / "a.gif"
    assert len(read_video(tmp_path / "a.gif")[0]) == 12


def test_what_is_missing_is_reported_with_the_line_to_type(tmp_path, monkeypatch):
    missing(monkeypatch, "av")
    with pytest.raises(ConfigError, match=r'pip install "shoal\[video\]"\. Or write a \.gif\.'):
        video.write(tmp_path / "a.mp4", moving())
    missing(monkeypatch, "av", "PIL")
    for name in ("a", "a.gif"):
        with pytest.raises(ConfigError, match=r'pip install "shoal\[video\]"\.$'):
            video.write(tmp_path / name, moving())


def test_importing_it_imports_no_encoder():
    code = "import sys, shoal.video; heavy = {'av', 'PIL', 'torch'} & set(sys.modules); assert not heavy, heavy"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=Path(video.__file__).parent.parent)


def test_two_writers_of_one_name_do_not_meet(tmp_path):
    """The file beside is named by the process, so that two commands at once leave one whole file."""
    seen = []

    def frames():
        yield from moving(3)
        seen.extend(path.name for path in tmp_path.iterdir())

    video.write(tmp_path / "a.gif", frames())
    assert len(seen) == 1
    assert str(os.getpid()) in seen[0]
