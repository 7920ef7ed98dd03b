"""Faults 19 to 23 and 26: a run that is killed, told to stop, out of disk, fed with nonsense, or badly logged."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import gymnasium
import numpy as np
import psutil
import pytest
import torch
from gymnasium import spaces
from torch import nn

import shoal
from shoal import checkpoint, runs
from shoal.cli.main import main
from shoal.errors import CheckpointError, ConfigError, EnvCrashed, ShoalError, TrainingError
from shoal.log import base
from shoal.log.base import Guarded
from shoal.runs import Run
from shoal.train import Callback, env_seed, train
from tests.conftest import BROKEN
from tests.faults.tools import ROOT, run_script, wait_for_end
from tests.training import STEPS, tiny, train_tiny

FLAGS = (
    "--vec.num-envs 16 --vec.torch-threads 1 --train.horizon 8 --train.minibatches 2 --train.epochs 1 --nn.hidden 16 "
    "--eval.episodes 0 --console lines --device cpu"
).split()


# ---- 19: kill -9 ----


@pytest.mark.timeout(120)
def test_a_run_killed_at_any_moment_goes_on(tmp_path):
    """A few of the moments; `scripts/soak kills` tries a hundred."""
    code, out, err = run_script(
        f"import pathlib\nfrom tests.faults.kills import kills\nkills(6, pathlib.Path({str(tmp_path)!r}))", timeout=110
    )
    assert code == 0, out + err
    assert out.count("goes on from step") == 6
    assert max(int(step.replace(",", "")) for step in re.findall(r"from step ([\d,]+)", out)) > 0


# ---- 20: full disks and folders that cannot be written ----


class FullDisk:
    """Some of the writes of tensors find no room."""

    def __init__(self, monkeypatch, full: set[int] | None) -> None:
        self.count, self.full, self.write = 0, full, checkpoint.write_tensors
        monkeypatch.setattr(checkpoint, "write_tensors", self)

    def __call__(self, path, tensors):
        self.count += 1
        if self.full is None or self.count in self.full:
            with open(path, "wb") as file:
                file.write(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.write(path, tensors)


def test_a_run_goes_on_when_a_checkpoint_finds_no_room(tmp_path, monkeypatch, capsys):
    FullDisk(monkeypatch, {3, 4, 6})  # files of the second, third and fourth
    run = train_tiny("cartpole", tmp_path, console="lines")
    out = capsys.readouterr().out
    assert run.summary["status"] == "finished"
    assert out.count("No space left on device") == 3
    assert [int(path.name) // STEPS for path in run.checkpoints()] == [1, 5, 6]
    assert {path.name for path in (run.folder / "checkpoints").iterdir() if path.name.startswith(".")} == set()


def test_a_last_checkpoint_that_finds_no_room_fails_the_run_and_keeps_the_one_before(tmp_path, monkeypatch):
    first = train_tiny("cartpole", tmp_path)
    before = [path.name for path in first.checkpoints()]
    FullDisk(monkeypatch, None)
    with pytest.raises(CheckpointError, match="No space left"):
        train("cartpole", resume=first.folder, console="off", train={"total_steps": 8 * STEPS})
    assert first.summary["status"] == "failed"
    assert "No space left" in first.summary["reason"]
    assert [path.name for path in Run(first.folder).checkpoints()] == before
    checkpoint.load_newest(first.checkpoints())
    assert main(["train", "--resume", str(first.folder), "--console", "off", "--train.total-steps", "2000"]) not in (
        0,
        130,
    )


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_run_that_became_read_only_is_told_before_training(tmp_path, monkeypatch, number):
    run = train_tiny("cartpole", tmp_path)
    before = json.loads((run.folder / "summary.json").read_text())

    def refuse(path, data):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(runs, "write_atomic", refuse)
    with pytest.raises(ConfigError, match=os.strerror(number)):
        train("cartpole", resume=run.folder, console="off")
    assert run.summary == before


def test_a_place_that_can_hold_no_runs_is_told_before_training(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    code = main(["train", "cartpole", *FLAGS, "--runs", str(tmp_path / "file")])
    assert code == 2
    assert "--runs" in capsys.readouterr().err


# ---- 22: signals ----

SIGNALLED = """
import os, signal, sys, time
from pathlib import Path
import torch; torch.set_num_threads(1)
from shoal import runs
from shoal.cli.main import main
root, flags = Path(sys.argv[1]), sys.argv[2:]
main(["train", "cartpole", *flags, "--runs", str(root / "first"), "--train.total-steps", "1", "--console", "off"])

def child(words, log):
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    for number in (1, 2):
        os.dup2(os.open(f"{log}.{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    code = main(words)
    sys.stdout.flush()
    os._exit(code)

for name in ("SIGINT", "SIGTERM", "SIGUSR1"):
    words = ["train", "cartpole", *flags, "--runs", str(root / name), "--train.total-steps", "1B"]
    pid = child(words, root / name)
    metrics = lambda: [m for run in runs.all_runs(root / name) for m in run.metrics()]
    while not metrics():
        time.sleep(0.01)
    os.kill(pid, getattr(signal, name))
    start = time.monotonic()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert time.monotonic() - start < 30
    run = runs.find("last", root / name)
    step = int(run.last.name)
    words = ["train", "cartpole", "--resume", "auto", "--runs", str(root / name), "--train.total-steps", str(step + 1)]
    again = os.waitstatus_to_exitcode(os.waitpid(child(words, root / f"{name} again"), 0)[1])
    print(name, code, step, again, len(runs.all_runs(root / name)), int(run.last.name) - step, flush=True)
"""


@pytest.mark.timeout(120)
def test_signals_save_and_leave_and_the_run_goes_on(tmp_path):
    """A distinct exit code, one message, a checkpoint; --resume auto finds it and needs no flag again."""
    script = tmp_path / "script.py"
    script.write_text(SIGNALLED)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", str(script), str(tmp_path), *FLAGS]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [(line[0], int(line[1])) for line in lines] == [("SIGINT", 130), ("SIGTERM", 143), ("SIGUSR1", 138)]
    for name, _, step, again, count, more in lines:
        assert int(step) > 0
        assert (int(again), int(count), int(more)) == (0, 1, STEPS)
        out, err = (tmp_path / f"{name}.1").read_text(), (tmp_path / f"{name}.2").read_text()
        assert out.count(f"{name}: saving a checkpoint") == 1
        assert err.strip() == f"stopped by {name}; resume with --resume {runs.find('last', tmp_path / name).folder}"
        assert "Traceback" not in out + err


@pytest.mark.timeout(120)
def test_ctrl_c_with_workers_leaves_a_checkpoint_and_nobody(tmp_path):
    """Item 7, in training: to the whole group, as a terminal does."""
    words = "train gymnasium:CartPole-v1 --vec.num-envs 4 --vec.num-workers 2 --train.horizon 8 --train.minibatches 2"
    command = [sys.executable, "-m", "shoal", *words.split(), "--vec.torch-threads", "1", "--runs", str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environ, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        while process.poll() is None and not any(run.metrics() for run in runs.all_runs(tmp_path)):
            time.sleep(0.02)
        workers = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert len(workers) >= 2
    assert not wait_for_end(workers, 3.0)
    assert "Traceback" not in out + err
    run = runs.find("last", tmp_path)
    assert run.summary["status"] == "interrupted"
    assert run.summary["reason"] == "SIGINT"
    checkpoint.load(run.last)


# ---- 23: nonsense ----


class Sick(gymnasium.Env):
    """Falls ill after some steps, and only where told to."""

    observation_space, action_space = spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Discrete(2)

    def __init__(self, ill="obs", value=np.nan, after=30, number=2):
        self.ill, self.value, self.after, self.who, self.steps = ill, value, after, number, 0

    def reset(self, *, seed=None, options=None):
        self.number = self.number if seed is None else seed
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        obs, reward = np.ones(3, np.float32), 1.0
        if self.steps > self.after and self.number % 4 == self.who:
            if self.ill == "obs":
                obs[1] = self.value
            else:
                reward = self.value
        return obs, reward, self.steps % 7 == 0, False, {}


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize(("ill", "value"), [("obs", np.nan), ("obs", np.inf), ("reward", np.nan), ("reward", -np.inf)])
def test_nonsense_of_a_python_env_is_named(tmp_path, ill, value, backend):
    sick = {"ill": ill, "value": value, "number": (env_seed(1) + 2) % 4}  # env 2, by its seed
    more = {"vec": {"num_envs": 4, "backend": backend, "overlap": False}, "env": sick}
    with pytest.raises(ShoalError) as caught:
        train_tiny(Sick, tmp_path, **more, train={"total_steps": 10_000})
    assert isinstance(caught.value, (TrainingError, EnvCrashed))
    text = str(caught.value)
    assert re.search(r"env 2\b", text)
    assert re.search(r"step [\d,]+", text)
    assert re.search({"obs": "obs contains|observation.*element 1", "reward": "reward"}[ill], text)
    assert str(value) in text.lower()
    del caught
    keeps_the_last_good(tmp_path, text)


def keeps_the_last_good(folder, said) -> None:
    """The summary says failed and why; the checkpoint before it loads and is finite."""
    run = runs.find("last", folder)
    assert run.summary["status"] == "failed"
    assert said in run.summary["reason"]
    files, meta = checkpoint.load(run.last)
    assert meta["step"] > 0
    for tensors in files.values():
        assert all(bool(torch.isfinite(value).all()) for value in tensors.values())


def test_nonsense_of_a_header_is_named(tmp_path):
    """Not by the reward that it spoils one step later."""
    with pytest.raises(TrainingError, match=r"observation of env \d+ is nan \(element 1\), .*step [\d,]+"):
        train_tiny(str(BROKEN / "nan.h"), tmp_path, train={"total_steps": 100_000})


REWARDS_NAN = """
#define ENV_OBS OBS_F32(1)
#define ENV_ACTION ACT_DISCRETE(2)
#define ENV_MAX_STEPS 50
#include "core/env.h"
typedef struct { float steps; } State;
ENV_FN void env_reset(State *s, const Params *p, Rng *rng) { (void)p, (void)rng; s->steps = 0.0f; }
ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)p, (void)rng, (void)a;
    s->steps += 1.0f;
    out->reward = s->steps < 30.0f ? 1.0f : 0.0f / (s->steps - s->steps);
}
ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    obs[0] = s->steps;
}
ENV_FN void env_draw(const State *s, const Params *p, Draw *d) { (void)s, (void)p, (void)d; }
"""


def test_a_nan_reward_of_a_header_is_named(tmp_path):
    (tmp_path / "sick.h").write_text(REWARDS_NAN)
    with pytest.raises(TrainingError, match=r"the reward of env 0 is nan .*step [\d,]+"):
        train_tiny(str(tmp_path / "sick.h"), tmp_path, train={"total_steps": 100_000})
    keeps_the_last_good(tmp_path, "nan")


LAST_IS_NAN = """
#define ENV_OBS OBS_F32(2)
#define ENV_ACTION ACT_DISCRETE(2)
#define ENV_MAX_STEPS 3
#include "core/env.h"
typedef struct {
    int steps;
} State;
ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)p, (void)rng;
    s->steps = 0;
}
ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)p, (void)rng, (void)a, (void)out;
    s->steps++;
}
ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    obs[0] = 1.0f;
    obs[1] = (float)(s->steps % 3) / (float)(3 - s->steps);
}
ENV_FN void env_draw(const State *s, const Params *p, Draw *d) { (void)s, (void)p, (void)d; }
"""


def test_a_last_observation_that_is_nonsense_is_named(tmp_path):
    """Which only the bootstrap of a truncated episode ever sees."""
    (tmp_path / "late.h").write_text(LAST_IS_NAN)
    with pytest.raises(TrainingError, match=r"the last observation of env 0 is -?nan \(element 1\)"):
        train_tiny(str(tmp_path / "late.h"), tmp_path)


class Doomed(nn.Module):
    """Returns NaN after some updates."""

    def __init__(self, seen, done):
        super().__init__()
        self.layer, self.calls = nn.Linear(seen.shape[0], int(done.n) + 1), 0

    def forward(self, obs):
        self.calls += self.training and torch.is_grad_enabled()
        out = self.layer(obs) * (1.0 if self.calls < 15 else float("nan"))
        return out[:, :-1], out[:, -1]


def test_a_gradient_that_is_nonsense_is_told_as_the_policys(tmp_path):
    with pytest.raises(
        TrainingError, match=r"grad_norm.*not finite at step [\d,]+.*observations and rewards are finite"
    ):
        train_tiny("cartpole", tmp_path, policy=Doomed, train={"total_steps": 10_000})
    keeps_the_last_good(tmp_path, "not finite")


# ---- 26: loggers ----


class Raising:
    """A service that is offline from the third record on."""

    def __init__(self) -> None:
        self.records = 0

    def log(self, record):
        self.records += 1
        if self.records > 2:
            raise ConnectionError("offline")

    def note(self, text):
        pass

    def close(self, summary):
        pass


class Slow(Raising):
    """A service that never answers."""

    def log(self, record):
        hang.wait(20.0)


hang = threading.Event()


def offline(facts, options):
    raise ConnectionError("no route to host")


def test_bad_loggers_change_neither_the_run_nor_its_log(tmp_path, monkeypatch, capsys):
    """Offline at the start, raising in the middle, never answering."""
    openers = {"offline": offline, "raising": lambda facts, options: Raising(), "slow": lambda facts, options: Slow()}
    for name, opener in openers.items():
        monkeypatch.setitem(base.LOGGERS._registered, name, base.LoggerType(opener))
    monkeypatch.setattr(Guarded.__init__, "__kwdefaults__", {"queue": 3, "patience_s": 0.1})
    hang.clear()
    tables = tiny(save={"every": 1})
    good = train("cartpole", runs_folder=tmp_path / "good", console="off", **tables)
    run = train("cartpole", runs_folder=tmp_path / "bad", console="lines", log=tuple(openers), **tables)
    hang.set()
    out = capsys.readouterr().out
    assert run.summary["status"] == "finished"
    assert [record["step"] for record in run.metrics()] == [STEPS * k for k in range(1, 7)]
    assert (run.last / "weights.safetensors").read_bytes() == (good.last / "weights.safetensors").read_bytes()
    assert out.count("logger offline is switched off: ConnectionError: no route to host") == 1
    assert out.count("logger raising is switched off: ConnectionError: offline") == 1
    assert "logger slow" in out


def test_a_run_whose_folder_is_deleted_writes_it_again(tmp_path, capsys):
    """The rest of the run was saved without config.toml, run.json and the metrics so far: nobody could load it."""
    options = {"train": {"total_steps": "8k", "horizon": 16}, "vec": {"num_envs": 16}, "nn": {"hidden": 8}}

    class Delete(Callback):
        def on_iteration(self, context):
            if context.iteration == 20:
                shutil.rmtree(tmp_path / "runs")

    run = train(
        "cartpole",
        runs_folder=tmp_path / "runs",
        callbacks=[Delete()],
        console="lines",
        device="cpu",
        eval={"episodes": 2},
        **options,
    )
    assert "config.toml, run.json, policy.json" in capsys.readouterr().out
    steps = [record["step"] for record in run.metrics()]
    assert steps[0] == 256
    assert steps[-1] == run.summary["step"] == 8192
    assert shoal.load(run.folder).act(np.zeros(4)) in (0, 1)
    assert train("cartpole", resume=run.folder, console="off").summary["status"] == "finished"


def test_the_speed_in_the_summary_is_that_of_training(tmp_path):
    """Without the evaluation, as on the console: with it a run of a second looked three times slower."""
    run = train(
        "cartpole",
        runs_folder=tmp_path,
        train={"total_steps": "4k", "horizon": 16},
        vec={"num_envs": 16},
        eval={"episodes": 200},
        console="off",
        device="cpu",
    )
    assert run.summary["sps"] == pytest.approx(run.summary["step"] / run.summary["wall_s"])
