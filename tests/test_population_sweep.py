"""`shoal sweep --population N`: batches of trials on one trainer, each the run that trains alone."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import time
from typing import ClassVar

import pytest

pytest.importorskip("optuna")

from shoal import checkpoint
from shoal.errors import ConfigError
from shoal.sweep import population, sweep
from shoal.sweep.runners import Job
from shoal.train import options_for, train
from tests.made_up_runner import MadeUp
from tests.training import tiny

RANGES = {"train.learning_rate": "log(1e-4, 1e-1)", "train.gamma": "logit(0.9, 0.999)"}
SETTINGS = {"ranges": RANGES, "only": True, "console": "off", "device": "cpu"}


class Shuffled(MadeUp):
    """Ends the jobs of a population in any order; breaks down after some."""

    order: ClassVar[random.Random] = random.Random(0)
    left: ClassVar[list[int]] = []  # jobs before the next breakdown
    seen: ClassVar[list] = []  # when a trial starts: its number, and how many have ended

    def __init__(self, workers, logs, size):
        super().__init__(size, logs)
        self.ended = 0

    def start(self, job):
        if not job.owner.is_final:
            self.seen.append((job.owner.trial.number, len(job.callbacks[0].others)))
        super().start(job)

    def poll(self):
        names = list(self.jobs)
        self.order.shuffle(names)
        ended = []
        for name in names[:3]:
            if self.left and self.left[0] == self.ended:
                self.left.pop(0)
                raise KeyboardInterrupt  # as if killed: nothing is cleaned up
            self.ended += 1
            job, _ = self.jobs.pop(name)
            ended.append((job, self.write(job)))
        return ended


@pytest.fixture
def shuffled(monkeypatch):
    monkeypatch.setattr("shoal.sweep.driver.PopulationRunner", Shuffled)
    monkeypatch.setattr("shoal.sweep.driver.POLL_S", 0.001)
    monkeypatch.setattr(Shuffled, "left", [])
    monkeypatch.setattr(Shuffled, "seen", [])


def last_state(run):
    """The bytes of every tensor in the last checkpoint."""
    files = checkpoint.load_newest(run.checkpoints())[1]
    return {f"{name}.{k}": x.numpy().tobytes() for name, part in files.items() for k, x in part.items()}


def trials_of(found):
    return [(trial.number, trial.values, trial.score, trial.seed) for trial in found.trials()]


def test_a_population_is_chosen_before_its_results_and_however_often_it_is_killed(tmp_path, shuffled):
    given = {**SETTINGS, "trials": 21, "population": 8, "sampler": "tpe", "finals": 1, "final_seeds": 2}
    plain = sweep("cartpole", runs_folder=tmp_path / "a", **given)
    numbers = dict(Shuffled.seen)
    assert len(numbers) == 21
    assert all(known == number // 8 * 8 for number, known in numbers.items())  # curves of earlier batches alone
    Shuffled.left[:] = [2, 4, 1, 3]
    Shuffled.order.seed(5)
    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            sweep("cartpole", runs_folder=tmp_path / "b", **given)
    killed = sweep("cartpole", runs_folder=tmp_path / "b", **given)
    assert trials_of(killed) == trials_of(plain)


def test_the_trials_of_a_population_are_the_runs_that_train_alone(tmp_path):
    own = {**tiny(train={"total_steps": 256}), "save": {"every_s": 0}}
    found = sweep(
        "cartpole", runs_folder=tmp_path, trials=4, population=3, finals=0, early_stop=0.0, sampler="random",
        **{**SETTINGS, **own},
    )  # fmt: skip
    assert [trial.status for trial in found.trials()] == ["finished"] * 4
    for trial in found.trials()[1:3]:
        values = {name.partition(".")[2]: value for name, value in trial.values.items()}
        tables = {**own, "seed": trial.seed, "train": {**own["train"], **values}}
        alone = train("cartpole", runs_folder=tmp_path / "alone", run_id=str(trial.number), console="off", **tables)
        ours, theirs = (last_state(run) for run in (found.trial_run(trial.number), alone))
        assert {name: ours[name] for name in theirs} == theirs
        assert all("callback" in name for name in ours.keys() - theirs.keys())  # the early stop's
    assert "Traceback" not in "".join(path.read_text() for path in (found.folder / "logs").glob("*.log"))


@pytest.mark.slow
def test_the_queue_of_a_killed_process_goes_to_the_next_one(tmp_path):
    runner = population.PopulationRunner(1, tmp_path / "logs", 4)
    options = options_for("cartpole", tiny(train={"total_steps": 4_000}))
    jobs = [Job(f"trial {k}", "cartpole", dataclasses.replace(options, seed=k), tmp_path, f"{k}") for k in range(4)]
    for job in jobs:
        runner.start(job)
    assert runner.free() == 0
    ended, kills = {}, 0
    deadline = time.monotonic() + 120
    while len(ended) < 4 and time.monotonic() < deadline:
        for job, outcome in runner.poll():
            ended[job.name] = outcome.kind
        if not kills and ended:
            worker = runner._alive()[0]
            os.kill(worker.process.pid, signal.SIGKILL)
            worker.process.wait()
            kills += 1
        time.sleep(0.05)
    runner.stop()
    assert sorted(ended.values()) == ["finished"] * 3 + ["lost"]


@pytest.mark.parametrize(
    ("env", "given", "message"),
    [
        ("gymnasium:CartPole-v1", {}, "--population 8 does not support a Python env"),
        ("cartpole", {"on": "made-up"}, "--population 8 trains on this machine, not --on made-up"),
        ("cartpole", {"train": {"shards": 4}}, "does not support --train.shards 4"),
        ("connect4", {"league": {"on": True}}, "does not support a league"),
    ],
)
def test_what_a_population_cannot_train_is_an_error_before_anything_starts(tmp_path, monkeypatch, env, given, message):
    from shoal.sweep.runners import RUNNERS

    monkeypatch.setitem(RUNNERS._registered, "made-up", MadeUp)
    with pytest.raises(ConfigError, match=message):
        sweep(env, runs_folder=tmp_path, population=8, **{**SETTINGS, **given})
    assert not list(tmp_path.iterdir())


def test_ranges_that_decide_shapes_must_be_given(tmp_path, shuffled):
    given = {"console": "off", "device": "cpu", "trials": 2, "population": 2, "finals": 0, "sampler": "random"}
    found = sweep("cartpole", runs_folder=tmp_path, **given)
    assert set(found.space) == {f"train.{name}" for name in "learning_rate gamma gae_lambda clip entropy_coef".split()}
    wider = sweep("cartpole", runs_folder=tmp_path / "b", ranges={"train.horizon": "pow2(8, 16)"}, **given)
    assert set(wider.space) - set(found.space) == {"train.horizon"}
    with pytest.raises(ConfigError, match=r"train\.horizon decide the shape of a run"):
        population.of_equal_shape(population.Space({"train.horizon": None}), [], 8)
