"""kill -9 at random moments of training, again and again: each time the run goes on, and ends as one never killed.

tests/faults/test_training.py does it a few times, scripts/soak many. Its own process: it forks, and wants no threads.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from shoal import checkpoint, runs
from shoal.train import train

torch.set_num_threads(1)
TABLES: dict[str, Any] = {
    "device": "cpu",
    "train": {"total_steps": 16 * 8 * 60, "horizon": 8, "minibatches": 2, "epochs": 1},
    "vec": {"num_envs": 16, "backend": "serial", "torch_threads": 1},
    "nn": {"hidden": 16, "core": "mingru"},
    "eval": {"episodes": 0},
    "save": {"every_s": 0, "every": 1, "keep": 2},
}


def start(folder: Path) -> tuple[int, int]:
    """A child that trains, from where the last one came to; its pid, and a pipe that says when it begins."""
    ears, mouth = os.pipe()
    pid = os.fork()
    if pid:
        os.close(mouth)
        return pid, ears
    code = 1
    try:
        os.write(mouth, b"x")
        train("memory", resume="auto", runs_folder=folder, console="off", **TABLES)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ending(folder: Path) -> bytes:
    """The weights and the state that a run ended with."""
    last = runs.find("last", folder).last
    assert last is not None
    return b"".join((last / name).read_bytes() for name in ("weights.safetensors", "state.safetensors"))


def kill(folder: Path, wait_s: float | None) -> bool:
    """Starts, waits (None: to the end), kills. Whether the run was done before."""
    pid, ears = start(folder)
    os.read(ears, 1)
    os.close(ears)
    if wait_s is not None:
        time.sleep(wait_s)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0, "a run failed: its error is above"
    return os.WIFEXITED(status)


def kills(times: int, folder: Path, seed: int = 0) -> None:
    """Kills so many children. Raises AssertionError where a run does not go on, or ends otherwise than unkilled."""
    rng = random.Random(seed)
    # once here, so that the children need not import and compile
    train(
        "memory", runs_folder=folder / "first", console="off", **{**TABLES, "train": {"total_steps": 1, "horizon": 8}}
    )
    began = time.monotonic()
    assert kill(folder / "never killed", None)
    took, wanted = time.monotonic() - began, ending(folder / "never killed")
    done = in_saves = 0
    ended = 1
    place = folder / "killed"
    while done < times:
        if kill(place, rng.uniform(0.0, took / 3)):
            ended += 1
            assert ending(place) == wanted, "a run that was killed ended otherwise than one that was not"
            shutil.rmtree(place)
            continue
        done += 1
        found = [run for run in runs.all_runs(place) if run.checkpoints()]
        assert len(found) <= 1, "a second run was begun though the first could have gone on"
        for run in found:
            in_saves += any(path.name.startswith(".") for path in (run.folder / "checkpoints").iterdir())
            checkpoint.load_newest(run.checkpoints())
        at = int(found[0].checkpoints()[-1].name) if found else 0
        print(f"kill {done:3} of {times}: goes on from step {at:,}", flush=True)
    assert kill(place, None)
    assert ending(place) == wanted, "a run that was killed ended otherwise than one that was not"
    print(f"{done} kills, {in_saves} of them in the middle of a save; {ended} runs ended, each as one never killed")


if __name__ == "__main__":
    kills(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
