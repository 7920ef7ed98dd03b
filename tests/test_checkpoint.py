"""A checkpoint is written completely or not at all; a damaged or hostile one raises, runs nothing, and is not used."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import resource
import shutil
import signal
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal import checkpoint, runs
from shoal.errors import CheckpointError, ConfigError, ShoalError
from shoal.runs import Run
from shoal.train import load_player, train
from tests.training import tiny_trainer, train_tiny

ROOT = Path(__file__).parent.parent
FILES = {
    "weights": {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3)},
    "state": {"envs": checkpoint.from_bytes(b"bytes"), "empty": checkpoint.from_bytes(b"")},
}


def files_of(number: float) -> dict[str, dict[str, torch.Tensor]]:
    return {"weights": {"a": torch.full((100,), number)}, "state": {"b": torch.full((5,), number)}}


def number_in(folder: Path) -> float:
    """Which save is loaded from a folder; every tensor of it says so."""
    run = Run(folder.parent)
    _, files, meta = checkpoint.load_newest(run.checkpoints())
    found = {float(x) for file in files.values() for tensor in file.values() for x in tensor}
    assert len(found) == 1
    assert meta["number"] == next(iter(found))
    return found.pop()


def test_what_is_saved_is_loaded(tmp_path):
    path = checkpoint.save(tmp_path, 7, FILES, {"score": 1.5})
    files, meta = checkpoint.load(path)
    assert path.name == "000000000007"
    assert (meta["step"], meta["score"]) == (7, 1.5)
    for name, tensors in FILES.items():
        for key, value in tensors.items():
            assert torch.equal(files[name][key], value)
            assert files[name][key].dtype == value.dtype
    assert checkpoint.to_bytes(files["state"]["envs"]) == b"bytes"


def test_paths_may_be_text(tmp_path):
    path = checkpoint.save(str(tmp_path), 7, FILES, {})
    checkpoint.mark_best(str(tmp_path), str(path), 1.0)
    files, meta = checkpoint.load(str(path))
    assert torch.equal(files["weights"]["a"], FILES["weights"]["a"])
    assert checkpoint.read_meta(str(path)) == meta
    assert checkpoint.load_newest([str(path)], ["weights"])[0] == path
    checkpoint.recover(str(tmp_path))
    checkpoint.prune(str(tmp_path), 1)
    assert Run(str(tmp_path)).folder == tmp_path


# ---- the safetensors format ----


def odd_tensors() -> dict[str, torch.Tensor]:
    """Every dtype, and every layout that needs care."""
    torch.manual_seed(0)
    made = {str(dtype): torch.randn(3, 5).to(dtype) for dtype in checkpoint.DTYPES}
    base = torch.arange(2 * 3 * 4.0).reshape(2, 3, 4)
    made |= {"transposed": base.mT, "a slice": base[:, 1:, ::2], "expanded": torch.ones(1, 4).expand(3, 4)}
    made |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3), '\u00e4 "name"': torch.ones(2)}
    return made | {"needs a gradient": torch.nn.Parameter(torch.ones(3))}


@pytest.mark.parametrize("chunk", [1, 7, 64, 16 << 20])
def test_files_are_those_that_safetensors_writes(tmp_path, monkeypatch, chunk):
    """To the byte, whatever the size of a chunk."""
    from safetensors.torch import load_file, save_file

    monkeypatch.setattr(checkpoint, "CHUNK_BYTES", max(chunk, 8))
    tensors = odd_tensors()
    described = checkpoint.write_tensors(tmp_path / "ours", tensors)
    save_file({name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}, tmp_path / "theirs")
    data = (tmp_path / "ours").read_bytes()
    assert data == (tmp_path / "theirs").read_bytes()
    assert described == {"bytes": len(data), "crc32": zlib.crc32(data)}
    assert torch.equal(load_file(tmp_path / "ours")["transposed"], tensors["transposed"])


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_saving_and_loading_do_not_copy_the_tensors(tmp_path, layout):
    """Defect 10: a replay of 400 MB took 400 MB more to save."""
    code = f"""
import resource, torch
from pathlib import Path
from shoal import checkpoint
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10  # MB
files = lambda n: {{"weights": {{"a": torch.ones(3)}}, "state": {{"replay": torch.ones(n >> 2, 4).mT}}}}
checkpoint.save({str(tmp_path)!r}, 1, files(1 << 10), {{}})  # what is imported and allocated once
large = files(100 << 20)
if {layout == "contiguous"}:
    large["state"]["replay"] = large["state"]["replay"].mT
assert large["state"]["replay"].is_contiguous() == {layout == "contiguous"}
before = peak()
path = checkpoint.save({str(tmp_path)!r}, 2, large, {{}})
print(peak() - before)
own = lambda: int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) >> 10  # MB, less mapped files
before = own() if Path("/proc/self/status").exists() else 0
loaded = checkpoint.load(path)
print(own() - before if before else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    saving, loading = map(int, done.stdout.split())
    assert saving < 60, "MB; chunks of a transposed one are copied"
    assert loading < 60, "the tensors are backed by the file"


def test_a_dtype_that_safetensors_lacks_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"x is torch\.complex128, which safetensors cannot store"):
        checkpoint.save(tmp_path, 1, {"weights": {"x": torch.zeros(1, dtype=torch.complex128)}}, {})
    assert list(tmp_path.iterdir()) == []


# ---- steps beyond 12 digits ----


def test_a_step_of_thirteen_digits_is_a_checkpoint_like_any_other(tmp_path):
    """Defect 13: a GPU makes 10^12 steps in 1.8 hours."""
    folder, steps = tmp_path / "checkpoints", [10**12 - 1, 10**12, 2 * 10**12, 10**13]
    for step in steps:
        path = checkpoint.save(folder, step, files_of(step), {"number": step}, keep=3)
        if step == 10**12:
            checkpoint.mark_best(folder, path, 1.0)
    run = Run(tmp_path)
    assert [int(path.name) for path in run.checkpoints()] == steps[1:], "numeric order, pruned"
    assert (run.last.name, run.best.name) == ("10000000000000", "1000000000000")
    assert checkpoint.load(run.last)[1]["step"] == 10**13
    checkpoint.save(folder, 3 * 10**13, files_of(3), {}, keep=1)
    assert [int(path.name) for path in run.checkpoints()] == [10**12, 3 * 10**13], "the best one stays"


def test_recovery_touches_only_what_a_save_left(tmp_path):
    others = [".notes.tmp", ".backup.old", ".20240131.7.tmp", ".000000000001.mine.tmp", ".000000000001.7.tmp.txt"]
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / ".000000000002.7.tmp").mkdir()
    checkpoint.recover(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


def test_a_save_of_thirteen_digits_that_was_killed_is_recovered(tmp_path):
    path = checkpoint.save(tmp_path, 10**12, files_of(1), {})
    path.rename(tmp_path / f".{path.name}.77.old")
    (tmp_path / f".{path.name}.77.tmp").mkdir()
    checkpoint.recover(tmp_path)
    assert [left.name for left in tmp_path.iterdir()] == ["1000000000000"]


@pytest.mark.parametrize("name", ["202401311200x", "00000000001", "0000000000012345", "backup", "\u0661" * 12])
def test_other_folders_are_not_checkpoints(tmp_path, name):
    """Beside checkpoints they are neither listed nor pruned."""
    folder = tmp_path / "checkpoints"
    (folder / name).mkdir(parents=True)
    (folder / name / "meta.json").write_text("{}")
    checkpoint.save(folder, 1, files_of(1), {}, keep=1)
    checkpoint.save(folder, 2, files_of(2), {}, keep=1)
    assert [path.name for path in Run(tmp_path).checkpoints()] == ["000000000002"]
    assert (folder / name).is_dir()


# ---- a run belongs to one process ----

HOLD = """
import sys, time, os
from shoal.runs import Run
lock = Run(sys.argv[1]).lock()
if sys.argv[2] == "forks" and os.fork() == 0:
    time.sleep(60)
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["alone", "forks"])
def test_a_run_that_is_being_trained_is_refused(tmp_path, how):
    """Defect 12. Also after a kill whose workers live on."""
    run = Run(tmp_path)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path), how],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        assert holder.stdout.readline() == "held\n"
        assert run.is_running
        with pytest.raises(ConfigError, match=rf"being trained by process {holder.pid} \(since 20.*start a new run"):
            run.lock()
        holder.kill()
        holder.wait()
        assert not run.is_running
        with run.lock() as lock:
            assert run.is_running
            with pytest.raises(ConfigError, match=f"process {os.getpid()} "):
                run.lock()
        lock.release()
        assert not run.is_running
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(holder.pid, signal.SIGKILL)
        holder.communicate()


def test_a_stale_process_id_does_not_hold_a_run(tmp_path):
    """The lock decides, not a process id that another process may have by now."""
    run = Run(tmp_path)
    run.write("run.json", {"pid": os.getpid()})
    assert run.is_running, "without a lock file the process id is all there is"
    run.lock().release()
    assert not run.is_running


def test_looking_at_a_lock_does_not_refuse_a_run(tmp_path):
    """`shoal runs` holds the lock for a moment."""
    import fcntl

    run = Run(tmp_path)
    run.lock().release()
    with (tmp_path / runs.LOCK).open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        threading.Timer(0.1, other.close).start()
        run.lock().release()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written"):
        Run(tmp_path / "none").lock()


# ---- ended in the middle ----


class Killed(BaseException):
    """No handler of errors runs, as on kill -9."""


class Saboteur:
    """Counts the calls that touch the disk, and ends the k-th with an error, before or in the middle of its work."""

    CALLS = ((os, "mkdir"), (os, "fsync"), (os, "rename"), (os, "replace"), (shutil, "rmtree"), (Path, "unlink"))

    def __init__(self, monkeypatch, at: int, error: BaseException) -> None:
        self.at, self.error, self.count = at, error, 0
        for module, name in (*self.CALLS, (checkpoint, "write_tensors")):
            monkeypatch.setattr(module, name, self.wrap(getattr(module, name)))

    def wrap(self, function):
        def call(*args, **kwargs):
            self.count += 1
            if self.count == self.at and not (kwargs.get("ignore_errors") and isinstance(self.error, OSError)):
                if function.__name__ == "write_tensors":
                    args[0].write_bytes(b"half a file")
                raise self.error
            return function(*args, **kwargs)

        return call


@pytest.mark.parametrize("again", [False, True], ids=["next step", "same step"])
def test_a_save_killed_at_any_call_leaves_a_whole_checkpoint(tmp_path, monkeypatch, again):
    """Item 19, point by point. The old one or the new one loads, whole; and the next save works."""
    for at in range(1, 100):
        folder = tmp_path / str(at) / "checkpoints"
        checkpoint.save(folder, 1, files_of(1), {"number": 1}, keep=1)
        with monkeypatch.context() as patch:
            saboteur = Saboteur(patch, at, Killed())
            with contextlib.suppress(Killed):
                checkpoint.save(folder, 1 if again else 2, files_of(2), {"number": 2}, keep=1)
        if saboteur.count < at:
            break
        checkpoint.recover(folder)  # as a resume does first
        assert number_in(folder) in (1, 2)
        checkpoint.save(folder, 3, files_of(3), {"number": 3}, keep=1)
        assert number_in(folder) == 3
        assert [path.name for path in folder.iterdir()] == ["000000000003"]
    assert 8 < at < 99


@pytest.mark.parametrize("again", [False, True], ids=["next step", "same step"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_save_that_fails_at_any_call_is_told_and_leaves_nothing(tmp_path, monkeypatch, number, again):
    """Item 20."""
    for at in range(1, 100):
        folder = tmp_path / str(at) / "checkpoints"
        checkpoint.save(folder, 1, files_of(1), {"number": 1}, keep=1)
        with monkeypatch.context() as patch:
            saboteur = Saboteur(patch, at, OSError(number, os.strerror(number)))
            said = f"{folder}: {os.strerror(number)}"
            try:
                checkpoint.save(folder, 1 if again else 2, files_of(2), {"number": 2}, keep=1)
            except CheckpointError as error:
                said = str(error)
            assert f"{folder}: {os.strerror(number)}" in said
        if saboteur.count < at:
            break
        assert number_in(folder) in (1, 2)
        assert all(not path.name.startswith(".") for path in folder.iterdir())
    assert 8 < at < 99


def test_a_disk_that_ends_in_the_middle_of_a_file_is_told(tmp_path):
    """A real write that fails: files may not grow beyond a page."""
    folder = tmp_path / "checkpoints"
    checkpoint.save(folder, 1, files_of(1), {"number": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(CheckpointError, match="cannot be written"):
            checkpoint.save(folder, 2, {"weights": {"a": torch.zeros(10_000)}, "state": {}}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert number_in(folder) == 1
    assert [path.name for path in folder.iterdir()] == ["000000000001"]


def test_the_same_checkpoint_again_is_not_written_again(tmp_path):
    path = checkpoint.save(tmp_path, 1, files_of(1), {})
    before = (path / "meta.json").stat().st_ino
    checkpoint.save(tmp_path, 1, files_of(1), {})
    assert (path / "meta.json").stat().st_ino == before
    checkpoint.save(tmp_path, 1, files_of(2), {})
    assert (path / "meta.json").stat().st_ino != before


def test_all_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """A power cut is no kill: what was not synced may be gone, though its name is there."""
    events: list[str] = []
    fsync, rename = os.fsync, os.rename
    monkeypatch.setattr(
        os, "fsync", lambda fd: (events.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name), fsync(fd))
    )
    monkeypatch.setattr(os, "rename", lambda *paths: (events.append("rename"), rename(*paths)))
    checkpoint.save(tmp_path / "checkpoints", 1, files_of(1), {})
    named = events.index("rename")
    before, after = events[:named], events[named + 1 :]
    assert {"weights.safetensors", "state.safetensors"} <= set(before)
    assert any("meta.json" in name for name in before)
    assert before[-1].startswith(".000000000001")  # the folder, last
    assert after == ["checkpoints"]


def test_pruning_keeps_the_newest_and_the_best(tmp_path):
    for step in range(1, 7):
        path = checkpoint.save(tmp_path, step, files_of(step), {}, keep=2)
        if step == 2:
            checkpoint.mark_best(tmp_path, path, 9.0)
    assert [int(path.name) for path in sorted(tmp_path.glob("0*"))] == [2, 5, 6]


# ---- damaged ----


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    """A real run with one checkpoint."""
    return train_tiny("cartpole", tmp_path_factory.mktemp("good"), save={"every": 0}, nn={"core": "lstm"}).folder


@pytest.fixture
def copy(good, tmp_path) -> Run:
    """The same, to be hurt."""
    shutil.copytree(good, tmp_path / "run")
    return Run(tmp_path / "run")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_bit_anywhere_is_found(copy, data):
    path = copy.last
    name = data.draw(st.sampled_from(["weights.safetensors", "state.safetensors", "meta.json"]))
    file = path / name
    whole = file.read_bytes()
    at = data.draw(st.integers(0, len(whole) * 8 - 1))
    hurt = bytearray(whole)
    hurt[at // 8] ^= 1 << at % 8
    file.write_bytes(hurt)
    try:
        checkpoint.load(path)
    except CheckpointError:
        assert True
    else:
        assert name == "meta.json"  # a number that is told, not one that is used to read
    finally:
        file.write_bytes(whole)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_cut_or_lengthened_is_found(copy, data):
    file = copy.last / data.draw(st.sampled_from(["weights.safetensors", "state.safetensors", "meta.json"]))
    whole = file.read_bytes()
    file.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))] if data.draw(st.booleans()) else whole + b"}")
    try:
        with pytest.raises(CheckpointError):
            checkpoint.load(copy.last)
    finally:
        file.write_bytes(whole)


# ---- hostile: the checksums are right, since who wrote the file wrote them too ----


def forge(path: Path, name: str, data: bytes) -> None:
    """Replaces a file of a checkpoint, and makes meta.json agree."""
    (path / name).write_bytes(data)
    meta = json.loads((path / "meta.json").read_text())
    meta["files"][name] = {"bytes": len(data), "crc32": zlib.crc32(data)}
    (path / "meta.json").write_text(json.dumps(meta))


def header(text: bytes, size: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if size is None else size) + text


class Evil:
    """Unpickling it would leave a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


HOSTILE = {
    "a header of an exabyte": header(b"{}", 1 << 60),
    "a header of all bits": header(b"{}", (1 << 64) - 1),
    "a header longer than the file": header(b"{}", 4096),
    "overlapping tensors": header(
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    )
    + b"1234",
    "a tensor beyond the file": header(b'{"a":{"dtype":"F32","shape":[1000],"data_offsets":[0,4000]}}') + b"1234",
    "a tensor of an exabyte": header(b'{"a":{"dtype":"U8","shape":[1152921504606846976],"data_offsets":[0,4]}}')
    + b"1234",
    "a shape that overflows": header(
        b'{"a":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,0]}}'
    ),
    "a dtype that is none": header(b'{"a":{"dtype":"PY","shape":[1],"data_offsets":[0,1]}}') + b"1",
    "a deep header": header(b"[" * 100_000),
    "nothing": b"",
    "text": b"hello",
}


@pytest.mark.parametrize("what", [*HOSTILE, "a pickle"])
@pytest.mark.parametrize("name", ["weights.safetensors", "state.safetensors"])
def test_a_hostile_file_is_an_error_and_runs_nothing(copy, tmp_path, what, name):
    """Item 28: in bounded memory, too: the process may not grow by what the file claims."""
    data = pickle.dumps(Evil(tmp_path / "ran")) if what == "a pickle" else HOSTILE[what]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    forge(copy.last, name, data)
    with pytest.raises(CheckpointError):
        checkpoint.load(copy.last)
    with pytest.raises(ShoalError):
        train("cartpole", resume=copy.folder, console="off")
    assert not (tmp_path / "ran").exists()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


META = {
    "text": "hello",
    "a list": "[]",
    "null": "null",
    "deep": "[" * 500_000,
    "deep and closed": '{"a":' * 50_000 + "1" + "}" * 50_000,
    "huge": " " * (2 << 20),
    "no step": {"step": None},
    "a NaN step": {"step": float("nan")},
    "an infinite step": {"step": float("inf")},
    "a negative step": {"step": -1},
    "a step of thirty digits": {"step": 10**30},
    "a step that is a table": {"step": {}},
    "a step that is text": {"step": "__import__('os')"},
    "iterations that are text": {"iteration": "x"},
    "endless seconds": {"wall_s": float("inf")},
    "another format": {"format": 99},
    "no format": {"format": None},
    "files that are a list": {"files": ["weights.safetensors"]},
    "files that are numbers": {"files": {"weights.safetensors": 3}},
    "no files": {"files": {}},
    "a file outside": {"files": {"../../x.safetensors": {"bytes": 1, "crc32": 1}}},
    "an absolute file": {"files": {"/etc/passwd": {"bytes": 1, "crc32": 1}}},
    "bytes that are text": {"files": {"weights.safetensors": {"bytes": "many", "crc32": 1}}},
}


@pytest.mark.parametrize("what", META)
def test_a_hostile_meta_is_an_error(copy, what):
    file = copy.last / "meta.json"
    change = META[what]
    file.write_text(change if isinstance(change, str) else json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(CheckpointError):
        checkpoint.load(copy.last)
    with pytest.raises(ShoalError):
        train("cartpole", resume=copy.folder, console="off")


@pytest.mark.parametrize("name", ["weights.safetensors", "meta.json"])
def test_a_link_is_not_followed_to_another_file(copy, tmp_path, name):
    """A checkpoint that someone sends must not read files of its reader's."""
    file = copy.last / name
    shutil.move(file, tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError):
        checkpoint.load(copy.last)


def test_a_pickle_in_place_of_a_checkpoint_is_refused(tmp_path):
    file = tmp_path / "model.pt"
    torch.save({"a": torch.zeros(1), "evil": Evil(tmp_path / "ran")}, file)
    with pytest.raises(CheckpointError, match="never loads pickles"):
        checkpoint.load(file)
    with pytest.raises(ConfigError):
        runs.find(file, tmp_path)
    assert not (tmp_path / "ran").exists()


TENSORS = {
    "weights": {
        "one more": lambda f: f.update({"0.policy.evil": torch.zeros(3)}),
        "one less": lambda f: f.pop("0.policy.actor.weight"),
        "another shape": lambda f: f.update({"0.policy.actor.weight": torch.zeros(1, 1)}),
        "another dtype": lambda f: f.update({"0.policy.actor.weight": f["0.policy.actor.weight"].to(torch.int64)}),
        "complex": lambda f: f.update({"0.policy.actor.weight": f["0.policy.actor.weight"].to(torch.complex64)}),
    },
    "state": {
        "no random stream": lambda f: f.pop("0.stream.actions"),
        "a random stream of floats": lambda f: f.update({"0.stream.actions": torch.zeros(5056)}),
        "a short random stream": lambda f: f.update({"0.stream.minibatches": torch.zeros(3, dtype=torch.uint8)}),
        "an optimizer of another shape": lambda f: f.update({"0.optimizer.exp_avg": torch.zeros(3)}),
        "an optimizer with half its state": lambda f: f.pop("0.optimizer.exp_avg"),
        "an optimizer of integers": lambda f: f.update({"0.optimizer.step": torch.tensor(3)}),
        "an optimizer with more parameters": lambda f: f.update({"0.optimizer.99.step": torch.tensor(3.0)}),
        "an optimizer that is no number": lambda f: f.update({"0.optimizer.x": torch.tensor(3.0)}),
        "envs cut off": lambda f: f.update({"envs": f["envs"][:-9]}),
        "envs of another kind": lambda f: f.update({"envs": torch.zeros(64, dtype=torch.uint8)}),
        "envs of floats": lambda f: f.update({"envs": torch.zeros(64)}),
        "a memory of another shape": lambda f: f.update({"0.recurrent.0": torch.zeros(3, 3)}),
        "a memory of integers": lambda f: f.update({"0.recurrent.0": f["0.recurrent.0"].to(torch.int64)}),
    },
}


@pytest.mark.parametrize(("file", "what"), [(file, what) for file in TENSORS for what in TENSORS[file]])
def test_tensors_that_do_not_fit_are_an_error(good, file, what):
    """With the right checksums, as another version or another hand would write them."""
    files, meta = checkpoint.load(Run(good).last)
    TENSORS[file][what](files[file])
    trainer = tiny_trainer("cartpole", nn={"core": "lstm"})
    with pytest.raises(ShoalError):
        trainer.restore(files, meta)
    trainer.close()


@pytest.mark.parametrize("text", ["[" * 200_000, "null", "[]", '{"env": 3}', '{"env": {"a": 1}}', "\x00"])
def test_a_hostile_run_json_is_an_error(copy, text):
    (copy.folder / "run.json").write_text(text)
    with pytest.raises(ShoalError):
        load_player(runs.find(copy.folder))


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 200_000, "seed = 'x'", "[train]\nevil = 1", "[[train]]", "env = 3", "\x00"]
)
def test_a_hostile_config_is_an_error(copy, text):
    (copy.folder / "config.toml").write_text(text)
    with pytest.raises(ShoalError):
        train("cartpole", resume=copy.folder, console="off")


@pytest.mark.parametrize("text", ["[" * 200_000, '{"checkpoint": "../../x", "score": 1}', '{"checkpoint": 3}', "{}"])
def test_a_hostile_best_json_names_no_path(copy, text):
    (copy.folder / "checkpoints" / "best.json").write_text(text)
    assert copy.best == copy.last
    checkpoint.prune(copy.folder / "checkpoints", 1)
    assert copy.best is not None
