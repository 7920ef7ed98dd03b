"""`shoal sweep --on ray`: trials on a cluster, as on this machine; a lost actor, node or driver costs no trial."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import cloudpickle
import pytest

pytest.importorskip("optuna")

from shoal.errors import ConfigError
from shoal.runs import Run
from shoal.sweep import store, sweep
from shoal.sweep.runners import Job, remote
from shoal.train import options_for
from tests.ray_cluster import cluster, ray_test  # noqa: F401

RANGES = {"train.learning_rate": "log(1e-4, 1e-1)", "train.epochs": "integer(1, 4)"}
TABLES = {"train": {"total_steps": 4096, "horizon": 16}, "vec": {"num_envs": 16, "num_threads": 1, "torch_threads": 1}}
TABLES |= {"eval": {"episodes": 8}, "device": "cpu"}


def search(folder, tables=TABLES, **settings):
    given = {"trials": 3, "finals": 1, "final_seeds": 2, "sampler": "random", "only": True, "console": "off"}
    return sweep("cartpole", ranges=RANGES, runs_folder=folder, **{**given, **settings}, **tables)


def facts(found):
    return [(trial.number, trial.status, trial.values, trial.score, trial.seed) for trial in found.trials()]


# ---- without Ray ----


def test_missing_ray_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r'--on ray needs the package ray .*pip install "shoal\[ray\]"'):
        search(tmp_path, on="ray")
    assert not list(tmp_path.iterdir())


def test_options_of_a_cluster_need_one(tmp_path):
    with pytest.raises(ConfigError, match="--address is for --on ray"):
        search(tmp_path, address="here:6379")
    with pytest.raises(ConfigError, match="--workers 0 must be an int of at least 1"):
        search(tmp_path, workers=0)
    assert not list(tmp_path.iterdir())


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path):
    source, target = tmp_path / "source", tmp_path / "runs" / "0001"
    (source / "checkpoints").mkdir(parents=True)
    (source / "checkpoints" / "a").write_text("new")
    packed = remote.pack_folder(source)
    for _ in range(2):
        remote.unpack_folder(packed, target)
        assert (target / "checkpoints" / "a").read_text() == "new"
        (target / "b").write_text("of an earlier copy")
    remote.unpack_folder(packed, target)
    assert not (target / "b").exists()
    new, old = remote._beside(target)
    target.rename(old)  # killed between the two renames
    new.mkdir()
    remote.put_back(target)
    assert (target / "checkpoints" / "a").read_text() == "new"
    assert [path.name for path in target.parent.iterdir()] == ["0001"]
    assert remote.pack_folder(tmp_path / "nowhere") == b""


def test_trials_of_a_node_have_cores_of_their_own(tmp_path, monkeypatch):
    pinned: list[list[int]] = []
    monkeypatch.setattr(remote.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 4, 5, 6, 7})
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: pinned.append(list(cores)))
    first, second = remote.take_cores(2), remote.take_cores(2)
    assert pinned == [[3, 4], [5, 6]]
    assert remote.take_cores(2) == []  # one is left: all cores stay allowed
    for lock in first:  # its process has ended
        lock.close()
    third = remote.take_cores(2)
    assert pinned[2:] == [[3, 4]]
    for lock in (*second, *third):
        lock.close()


@pytest.mark.slow
def test_a_node_without_the_folder_trains_in_its_own_and_sends_the_run(tmp_path, monkeypatch):
    """The actor of a trial, in this process. It was stopped once: the driver sends what it has of the run."""
    monkeypatch.setattr(sys, "argv", ["shoal"])
    monkeypatch.setattr(remote, "take_cores", lambda count: [])
    monkeypatch.setattr(remote.tempfile, "tempdir", str(tmp_path / "node"))
    (tmp_path / "node").mkdir()
    job = Job("trial 0", "cartpole", options_for("cartpole", TABLES), tmp_path / "driver", "0000")
    work = remote.Packed(cloudpickle.dumps(job), [], "", ["shoal"], {})
    actor, target = remote.TrialActor(), tmp_path / "driver" / "cartpole" / "0000"
    report = actor.start(work, str(tmp_path / "logs" / "no marker"), 1, b"")
    assert not actor.is_shared
    until = time.monotonic() + 120
    while report.outcome is None and time.monotonic() < until:
        time.sleep(0.1)
        report = actor.look()
    assert report.outcome["kind"] == "finished", report
    remote.unpack_folder(report.folder, target)
    assert Run(target).summary["status"] == "finished"
    assert Run(target).checkpoints()
    assert not list((tmp_path / "node").iterdir())
    again = remote.TrialActor()  # nothing is left to do
    report = again.start(work, "nowhere", 1, remote.pack_folder(target))
    while report.outcome is None:
        time.sleep(0.1)
        report = again.look()
    assert report.outcome["kind"] == "finished"


# ---- with Ray ----


@ray_test
def test_trials_on_a_cluster_are_those_of_this_machine(cluster, tmp_path):  # noqa: F811
    here, there = search(tmp_path / "here"), search(tmp_path / "there", on="ray", workers=0)
    assert facts(there) == facts(here)
    assert [row["mean"] for row in there.results["finals"]] == [row["mean"] for row in here.results["finals"]]
    assert not list((there.folder / "logs").glob("shared-*"))
    with pytest.raises(ConfigError, match=r"--cpus 64: no node .* the largest has 2. Use --cpus 2"):
        search(tmp_path / "large", on="ray", cpus=64)


LONG = {**TABLES, "train": {"total_steps": 200_000, "horizon": 16}, "save": {"every": 8192, "every_s": 0}}


@ray_test
def test_a_lost_trial_runs_again_from_its_checkpoint(cluster, tmp_path):  # noqa: F811
    """The process of a trial's actor is killed while it trains, as with its node."""
    found: list[int] = []

    def kill_one(number, frame):
        for run in (tmp_path / "cartpole").glob("sweep-*/trials/cartpole/0000"):
            if len(Run(run).checkpoints()) >= 2 and not found:
                pid = json.loads((run / "run.json").read_text())["pid"]
                found.append(int(Path(f"/proc/{pid}/stat").read_text().split()[3]))
                os.kill(found[0], signal.SIGKILL)

    before = signal.signal(signal.SIGALRM, kill_one)
    signal.setitimer(signal.ITIMER_REAL, 0.5, 0.2)
    try:
        result = search(tmp_path, LONG, on="ray", trials=1, finals=0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    (trial,) = result.trials()
    assert found
    assert (trial.status, trial.attempts) == ("finished", 2)
    lines = (result.trial_run(0).folder / "metrics.jsonl").read_text().splitlines()
    steps = [record["step"] for record in map(json.loads, lines) if "step" in record]
    assert steps == sorted(steps)  # one run, continued


@ray_test
def test_a_killed_driver_is_continued(cluster, tmp_path):  # noqa: F811
    words = ["sweep", "cartpole", "--on", "ray", "--workers", "2", "--trials", "3", "--finals", "0", "--only"]
    words += ["--sampler", "random", "--sweep.train.learning-rate", "log(1e-4, 1e-1)"]
    words += ["--train.total-steps", "100k", "--device", "cpu"]
    words += ["--vec.num-envs", "16", "--eval.episodes", "8", "--save.every", "8192", "--save.every-s", "0"]
    words += ["--address", cluster.address, "--runs", str(tmp_path), "--console", "lines"]
    command = [sys.executable, "-m", "shoal", *words]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while time.monotonic() < until and not list(tmp_path.glob("cartpole/sweep-*/trials/cartpole/*/checkpoints/*")):
        time.sleep(0.1)
    first.kill()
    first.wait()
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    (folder,) = tmp_path.glob("cartpole/sweep-*")
    trials = store.find(str(folder), tmp_path).trials()
    assert [trial.status for trial in trials] == ["finished"] * 3
