"""The best checkpoint of a run: what selects it, and where that is written."""

from __future__ import annotations

import io
import json

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from rich.console import Console

from shoal import checkpoint
from shoal.log import RunFacts
from shoal.log.console import print_summary
from shoal.log.history import History
from shoal.train import train
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
