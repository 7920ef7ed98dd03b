"""The best checkpoint of a run: what selects it, and where that is written."""

from __future__ import annotations

import io
import itertools
import json
import signal
import time
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from rich.console import Console

from shoal import checkpoint
from shoal.log import RunFacts
from shoal.log.console import print_summary
from shoal.log.history import History
from shoal.train import Callback, Stopped, train
from shoal.train.selection import is_compared
from tests.training import cut, tiny, train_tiny


class Biased(gymnasium.Env):
    """Returns more in training than in evaluation at first, and less later: seeds above 2^30 are held out."""

    observation_space, action_space = spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(2)
    episodes = 0

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.is_held_out = seed >= 2**30
        Biased.episodes += not self.is_held_out
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        reward = Biased.episodes / 100 if self.is_held_out else -Biased.episodes / 100
        return np.zeros(1, np.float32), reward, self.steps == 4, False, {}


@pytest.fixture
def biased():
    Biased.episodes = 0
    return {"vec": {"num_envs": 4, "backend": "serial"}, "train": {"total_steps": 6 * 32, "horizon": 8}}


def best_json(run):
    return json.loads((run.folder / "checkpoints" / "best.json").read_text())


def test_without_evaluations_the_training_return_selects(tmp_path, biased):
    run = train_tiny(Biased, tmp_path, eval={"episodes": 4}, **biased)
    assert run.best == run.checkpoints()[0], "its training return is the highest"
    assert run.summary["selected_by"] == "sampled return in the latest training episodes"
    assert run.summary["best"]["step"] == 32
    assert run.summary["best"]["score"] == checkpoint.read_meta(run.best)["score"] == best_json(run)["score"]


@pytest.mark.parametrize("greedy", [True, False])
def test_evaluations_during_training_select(tmp_path, biased, greedy):
    """Also where no checkpoint was due: the evaluated policy is saved. The final evaluation takes part."""
    run = train_tiny(
        Biased, tmp_path, eval={"episodes": 4, "every": 64, "greedy": greedy}, save={"every": 0, "keep": 1}, **biased
    )
    assert run.best == run.last
    assert run.summary["selected_by"] == f"{'greedy' if greedy else 'sampled'} return in evaluation"
    assert run.summary["best"] == {"step": 192, "score": pytest.approx(run.summary["eval"]["return"])}
    assert best_json(run)["by"] == run.summary["selected_by"]
    evaluated = [record for record in run.metrics() if "eval/return" in record]
    assert len(evaluated) == 3
    assert all({"eval/return_greedy", "eval/return_sampled"} <= set(record) for record in evaluated)


class Falling(Biased):
    """Returns less and less in evaluation."""

    def step(self, action):
        obs, reward, *end = super().step(action)
        return obs, -reward if self.is_held_out else reward, *end


def test_the_checkpoint_of_the_best_evaluation_is_saved_and_never_pruned(tmp_path, biased):
    run = train_tiny(Falling, tmp_path, eval={"episodes": 4, "every": 64}, save={"every": 0, "keep": 1}, **biased)
    assert [int(path.name) for path in run.checkpoints()] == [64, 192]
    assert int(run.best.name) == run.summary["best"]["step"] == 64


def test_a_resumed_run_that_selects_by_another_return_compares_no_scores_of_the_first(tmp_path, biased):
    first = train_tiny(Falling, tmp_path, **biased)
    best_json_before = best_json(first)
    assert best_json_before["by"] == "sampled return in the latest training episodes"
    again = train(
        Falling, resume=first.folder, console="off", train={"total_steps": 8 * 32}, eval={"episodes": 4, "every": 32}
    )
    assert best_json(again)["by"] == again.summary["selected_by"] == "greedy return in evaluation"
    assert again.summary["best"]["step"] > 192
    assert again.summary["best"]["score"] < best_json_before["score"]


def test_the_console_says_what_the_best_checkpoint_was_selected_by(tmp_path):
    out = Console(file=io.StringIO(), width=120)
    facts = RunFacts(folder=tmp_path / "cartpole" / "a", id="a", env="cartpole", total_steps=1000)
    summary = {
        "status": "finished",
        "step": 1000,
        "wall_s": 1.0,
        "sps": 1000.0,
        "best": {"step": 800, "score": 12.5},
        "selected_by": "greedy return in evaluation",
    }
    print_summary(out, History(facts), summary)
    text = out.file.getvalue()
    assert "Best checkpoint: step 800, return 12.5, by its greedy return in evaluation." in text


@pytest.mark.parametrize(
    ("table", "count"), [({}, 12), ({"episodes": 30}, 30), ({"every": 96}, 100), ({"episodes": 0}, None)]
)
def test_only_a_final_evaluation_that_selects_nothing_is_bounded_by_time(tmp_path, biased, monkeypatch, table, count):
    """A number of episodes that was asked for is played. Time never decides which checkpoint is the best."""
    monkeypatch.setattr("shoal.train.session.EVALUATION_S", 0.0)
    monkeypatch.setattr("shoal.train.session.EVALUATION_SHARE", 0.0)
    notes = []
    monkeypatch.setattr("shoal.log.base.Loggers.note", lambda self, text: notes.append(text))
    tables = tiny(**biased)
    tables["eval"] = table
    run = train(Biased, runs_folder=tmp_path, console="off", **tables)
    result = run.summary["eval"]
    assert (result and {mode: facts["episodes"] for mode, facts in result["modes"].items()}) == (
        count and {"greedy": count, "sampled": count}
    )
    is_told = any("12 greedy and 12 sampled episodes of 100 each fit in 0 s; --eval.episodes 100" in x for x in notes)
    assert is_told == (count == 12)


@pytest.mark.parametrize("left", [4, 6])
def test_a_resumed_run_evaluates_at_the_same_steps(tmp_path, biased, left):
    """Also one that had finished, whose last evaluation came after its last checkpoint."""

    def evaluated(run):
        return [record["step"] for record in run.metrics() if "eval/return" in record]

    evaluation = {"every": 96, "episodes": 1}
    longer = {**biased, "train": {**biased["train"], "total_steps": 12 * 32}}
    whole = train_tiny(Biased, tmp_path / "a", eval=evaluation, **longer)
    half = cut(train_tiny(Biased, tmp_path / "b", eval=evaluation, **biased), left)
    table = {"total_steps": 12 * 32}
    resumed = train(Biased, resume=half.folder, runs_folder=tmp_path / "b", console="off", train=table)
    assert evaluated(resumed) == evaluated(whole) == [96, 192, 288, 384]


# ---- steps select, not the clock ----

HUMP = {"train": {"total_steps": 40 * 32, "horizon": 8}, "vec": {"num_envs": 4, "backend": "serial"}}


class Hump(Biased):
    """Its return in training rises for 100 episodes, then falls. `Biased.episodes` counts its episodes."""

    def step(self, action):
        obs, _, *end = super().step(action)
        return obs, -abs(Biased.episodes - 100) / 7, *end


def set_clock(patch, seconds):
    """A clock that goes on by so many seconds whenever it is read: logs and saves are due sooner or later."""
    reads = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: seconds * next(reads), time=time.time)
    patch.setattr("shoal.train.session.time", clock)


@pytest.mark.parametrize("every", [0, 96])
def test_the_clock_never_decides_which_checkpoint_is_the_best(tmp_path, monkeypatch, every):
    found = []
    for number, seconds in enumerate([0.0001, 0.3, 2.0, 100.0]):
        with monkeypatch.context() as patch:
            set_clock(patch, seconds)
            Biased.episodes = 0
            save = {"every": every, "every_s": 5.0, "keep": 1}
            run = train_tiny(Hump, tmp_path / str(number), eval={"episodes": 0}, save=save, **HUMP)
        weights, _ = checkpoint.load(run.best, ("weights",))
        found.append((run.summary["best"], {name: x.tolist() for name, x in weights["weights"].items()}))
        assert int(run.best.name) == run.summary["best"]["step"] < 40 * 32
        assert {*run.checkpoints()} == {run.best, run.last}
        assert run.last in run.resumable()
    assert all(one == found[0] for one in found)


class StopsAt(Callback):
    """A signal stops the run at a step."""

    step = 23 * 32

    def on_iteration(self, context):
        if context.step == self.step:
            signal.raise_signal(signal.SIGTERM)


def test_a_resumed_run_has_the_best_checkpoint_of_one_that_was_not_stopped(tmp_path, monkeypatch):
    """Also if saves by the clock and a signal came between two comparisons."""
    train_table = {"total_steps": 40 * 32, "horizon": 2, "learning_rate": 0.1}
    tables = tiny(train=train_table, save={"every": 0, "every_s": 5.0, "keep": 1})
    whole = train("cartpole", runs_folder=tmp_path / "a", console="off", **tables)
    with monkeypatch.context() as patch:
        set_clock(patch, 2.0)
        with pytest.raises(Stopped) as stopped:
            train("cartpole", runs_folder=tmp_path / "b", console="off", callbacks=[StopsAt()], **tables)
        half = stopped.value.run
        assert half.summary["status"] == "interrupted"
        again = train("cartpole", resume=half.folder, runs_folder=tmp_path / "b", console="off")
    assert again.summary["best"] == whole.summary["best"]
    first, second = (checkpoint.load(run.best, ("weights",))[0]["weights"] for run in (whole, again))
    assert all(first[name].equal(second[name]) for name in first)


def test_a_few_lucky_episodes_select_nothing(tmp_path):
    """Of fewer than five episodes no mean is compared: the newest checkpoint is the best one."""
    Biased.episodes = 0
    tables = {"train": {"total_steps": 16, "horizon": 4, "minibatches": 1}, "vec": {"num_envs": 1, "backend": "serial"}}
    run = train_tiny(Biased, tmp_path, **tables)
    assert run.summary["best"] is None
    assert run.best == run.last


def test_policies_are_compared_whenever_a_tenth_more_steps_are_done():
    steps = [32 * k for k in range(1, 1001)]
    compared = [step for before, step in zip([0, *steps], steps) if is_compared(before, step)]
    assert compared[:5] == [32, 64, 96, 128, 160]
    gaps = [later / step for step, later in itertools.pairwise(compared) if step > 32 * 100]
    assert all(1.08 < gap < 1.12 for gap in gaps)
