"""Callbacks: when they are called, what they read and change, how they fail, and that their runs resume exactly."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import shoal
from shoal import checkpoint
from shoal.errors import CheckpointError, ConfigError, TrainingError
from shoal.runs import find
from shoal.train import Callback, Trainer, train
from shoal.train.callbacks.group import read_saved
from shoal.train.callbacks.stop_at import StopAt
from shoal.train.param_changes import set_env_params
from shoal.train.recent import MergedRecord
from tests.envs import CounterEnv
from tests.recorder import Recorder
from tests.training import SERIAL, STEPS, contents, cut, summary, train_tiny


class Curriculum(Callback):
    """Raises gravity with the mean return and counts the episodes: its state decides what it does."""

    def __init__(self) -> None:
        self.level, self.seen = 0, np.zeros(2)

    def on_episodes(self, context: Any) -> None:
        self.seen += [context.episodes.count, context.episodes.mean_return]

    def on_iteration(self, context: Any) -> None:
        if self.seen[0] >= 10:
            self.level += 1
            self.seen[:] = 0
            context.set_env_params(gravity=9.8 + self.level)
        context.log("curriculum/level", self.level)

    def state_dict(self) -> dict[str, Any]:
        return {"level": self.level, "seen": self.seen}

    def load_state_dict(self, state: Any) -> None:
        self.level, self.seen = state["level"], state["seen"]


# ---- when they are called ----


def test_events_come_in_their_order(tmp_path):
    recorder = Recorder()
    save, evaluation = {"every": 2 * STEPS}, {"every": 3 * STEPS, "episodes": 1}
    train_tiny("cartpole", tmp_path, callbacks=[recorder], save=save, eval=evaluation)
    calls = [call for call in recorder.calls if call[0] != "on_episodes"]
    assert calls[0] == ("on_start", 0)
    assert [step for event, step in calls if event == "on_iteration"] == [k * STEPS for k in range(1, 7)]
    assert calls[-1] == ("on_end", 6 * STEPS)
    at_three = [event for event, step in calls if step == 3 * STEPS]
    assert at_three == ["on_iteration", "on_evaluation", "on_checkpoint"], "the best evaluation is saved at once"
    with_episodes = [event for event, step in recorder.calls if step == 4 * STEPS]
    assert with_episodes[:2] == ["on_episodes", "on_iteration"]
    assert recorder.calls.count(("on_end", 6 * STEPS)) == 1


def test_a_run_with_a_callback_that_only_reads_has_the_same_weights(tmp_path):
    plain = train_tiny("cartpole", tmp_path / "a")
    watched = train_tiny("cartpole", tmp_path / "b", callbacks=[Recorder()])
    for ours, theirs in zip(plain.checkpoints(), watched.checkpoints()):
        assert (ours / "weights.safetensors").read_bytes() == (theirs / "weights.safetensors").read_bytes()
    files, _ = checkpoint.load(plain.last)
    assert "callbacks" not in files["state"], "a run without callbacks saves nothing of them"


def test_records_of_a_read_run_are_those_of_a_run_that_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("shoal.train.session.LOG_EVERY_S", 1e9)
    quiet = {"save": {"every": 0}}
    plain = train_tiny("cartpole", tmp_path / "a", **quiet).metrics()
    read = train_tiny("cartpole", tmp_path / "b", callbacks=[Recorder()], **quiet).metrics()
    assert [record["iteration"] for record in read] == [record["iteration"] for record in plain] == [1, 2, 4, 6]
    for ours, theirs in zip(plain, read):
        assert ours["episode/n"] == theirs["episode/n"]
        for name in ("episode/return", "episode/return_max", "loss/policy", "entropy", "learning_rate"):
            if name in ours:
                assert theirs[name] == pytest.approx(ours[name], rel=1e-5), name


def test_a_merged_record_weighs_by_episodes_and_updates():
    merged = MergedRecord()
    one = {"step": 10, "loss": 1.0, "episode/n": 0, "time/env": 1.0}
    two = {"step": 40, "loss": 4.0, "episode/n": 1, "episode/return": 5.0, "episode/return_min": 5.0, "time/env": 2.0}
    three = {
        "step": 50,
        "loss": 0.0,
        "episode/n": 3,
        "episode/return": 1.0,
        "episode/return_min": -2.0,
        "time/env": 0.5,
    }
    for record, updates in ((one, 1), (two, 2), (three, 1)):
        merged.add(record, updates)
    assert merged.drain() == {
        "step": 50,
        "loss": 9.0 / 4,
        "episode/n": 4,
        "episode/return": 2.0,
        "episode/return_min": -2.0,
        "time/env": 3.5,
    }
    assert merged.drain() == {}


# ---- what they read ----


def test_native_episodes_come_as_sums_and_python_episodes_one_by_one(tmp_path):
    seen: dict[str, list[Any]] = {}

    class Watch:
        def __init__(self, name: str) -> None:
            self.own = seen.setdefault(name, [])

        def on_episodes(self, context: Any) -> None:
            self.own.append(context.episodes)

    native = train_tiny("cartpole", tmp_path, callbacks=[Watch("native")])
    python = train_tiny(CounterEnv, tmp_path, callbacks=[Watch("python")], **SERIAL)
    assert all(part.returns is None for part in seen["native"])
    for part in seen["python"]:
        assert len(part.returns) == part.count > 0
        assert part.mean_return == pytest.approx(np.mean(part.returns))
        assert (part.min_return, part.max_return) == pytest.approx((min(part.returns), max(part.returns)))
    for name, run in (("native", native), ("python", python)):
        assert sum(part.count for part in seen[name]) == sum(r.get("episode/n", 0) for r in run.metrics())


def test_the_context_reads_the_run(tmp_path):
    class Reader:
        def on_start(self, context: Any) -> None:
            assert (context.step, context.progress, context.metrics, context.episodes) == (0, 0.0, {}, None)
            assert not context.is_resumed
            assert context.checkpoint is None

        def on_iteration(self, context: Any) -> None:
            assert context.metrics["step"] == context.step == context.iteration * STEPS
            assert context.progress == context.step / context.total_steps
            assert context.metrics["sps"] > 0
            assert context.options.seed == 1
            assert context.status == "running"

        def on_checkpoint(self, context: Any) -> None:
            assert context.checkpoint.name == f"{context.step:012d}"
            assert context.records[-1]["step"] == context.step

        def on_end(self, context: Any) -> None:
            assert context.evaluation.score.returns
            assert context.metrics["eval/return"] == context.evaluation.score.mean
            assert (context.status, context.reason) == ("finished", "")
            context.log("end/number", 7)

    run = train_tiny("cartpole", tmp_path, callbacks=[Reader()], eval={"episodes": 2})
    assert run.metrics()[-1]["end/number"] == 7
    assert run.metrics()[-1]["step"] == 6 * STEPS


# ---- what they change ----


def test_stop_ends_the_run_as_finished_with_its_reason(tmp_path, capsys):
    class Impatient:
        def on_iteration(self, context: Any) -> None:
            if context.iteration == 2:
                context.stop("bored at two")
                context.stop("a second reason is not kept")

    run = train_tiny("cartpole", tmp_path, callbacks=[Impatient()], eval={"episodes": 2}, console="lines")
    told = summary(run)
    assert (told["status"], told["reason"], told["step"]) == ("finished", "bored at two", 2 * STEPS)
    assert told["eval"]["episodes"] == 2
    assert run.last.name == f"{2 * STEPS:012d}"
    assert "bored at two" in capsys.readouterr().out


def test_numbers_notes_and_checkpoints(tmp_path, capsys):
    class Busy:
        def on_iteration(self, context: Any) -> None:
            context.log("mine/double", 2 * context.iteration)
            if context.iteration == 3:
                context.save()
                context.note("saved by hand")

    run = train_tiny("cartpole", tmp_path, callbacks=[Busy()], save={"every": 0}, console="lines")
    assert [path.name for path in run.checkpoints()] == [f"{k * STEPS:012d}" for k in (3, 6)]
    assert {record["iteration"]: record["mine/double"] for record in run.metrics()}[6] == 12
    assert "saved by hand" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("sps", 1.0), "Shoal logs a metric"), (("", 1.0), "must be text"), (("a/b", "x"), "must be a number")],
)
def test_a_number_that_cannot_be_logged_is_refused(tmp_path, arguments, message):
    class Wrong:
        def on_iteration(self, context: Any) -> None:
            context.log(*arguments)

    with pytest.raises(ConfigError, match=message):
        train_tiny("cartpole", tmp_path, callbacks=[Wrong()])


def test_params_of_native_envs_change_in_training_and_not_in_evaluation(tmp_path):
    lengths = {}

    class Shorter:
        def on_iteration(self, context: Any) -> None:
            context.set_env_params(max_steps=3)
            assert (context.trainer.vec.get_params()["max_steps"] == 3).all()
            assert context.env_params == {"max_steps": 3}

        def on_episodes(self, context: Any) -> None:
            lengths[context.iteration] = context.episodes.mean_length

    run = train_tiny("cartpole", tmp_path, callbacks=[Shorter()], eval={"episodes": 4})
    assert lengths[6] == 3
    assert summary(run)["eval"]["length"] > 3


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_params_of_python_envs_are_attributes(backend):
    choices = {} if backend == "serial" else {"num_workers": 2}
    vec = shoal.make(CounterEnv, 4, backend=backend, **choices)
    try:
        vec.reset(seed=1)
        set_env_params(vec, {"longest": 3})
        assert vec.get_attr("longest") == (3, 3, 3, 3)
        with pytest.raises(ConfigError, match=r"'longst' is no attribute of CounterEnv\. Did you mean 'longest'\?"):
            set_env_params(vec, {"longst": 3})
        with pytest.raises(ConfigError, match="'scaled' is a method of CounterEnv"):
            set_env_params(vec, {"scaled": 3})
    finally:
        vec.close()


def test_params_that_do_not_exist_or_do_not_fit_are_refused():
    vec = shoal.make("cartpole", 4)
    with pytest.raises(ConfigError, match="Did you mean 'gravity'"):
        set_env_params(vec, {"gravty": 1.0})
    vec.is_on_gpu = True
    with pytest.raises(ConfigError, match="one value for each env"):
        set_env_params(vec, {"gravity": np.ones(4)})
    vec.close()


def test_a_param_that_a_checkpoint_cannot_hold_is_refused(tmp_path):
    class Odd:
        def on_start(self, context: Any) -> None:
            context.set_env_params(longest=object())

    with pytest.raises(ConfigError, match="longest is of type object, which a checkpoint cannot hold"):
        train_tiny(CounterEnv, tmp_path, callbacks=[Odd()], **SERIAL)


# ---- resuming ----


@pytest.mark.parametrize("read_every", [1, 4])
def test_a_run_with_callbacks_resumes_exactly(tmp_path, monkeypatch, read_every):
    """Also where metrics are read every few iterations, as on a GPU."""
    monkeypatch.setattr("shoal.train.session._read_every", lambda trainer: read_every)
    steps = {"train": {"total_steps": 12 * STEPS}}
    whole = train_tiny("cartpole", tmp_path / "a", callbacks=[Curriculum()], **steps)
    again = train_tiny("cartpole", tmp_path / "b", callbacks=[Curriculum()], **steps)
    left = 2 if read_every == 4 else 5
    assert len(again.checkpoints()) == 12 // read_every
    cut(again, left)
    curriculum = Curriculum()
    resumed = train("cartpole", resume=again.folder, runs_folder=tmp_path / "b", console="off", callbacks=[curriculum])
    assert curriculum.level > 1, "the params have changed"
    assert contents(resumed) == contents(whole)
    assert summary(resumed)["best"] == summary(whole)["best"]
    levels = [record["curriculum/level"] for record in whole.metrics()]
    assert [record["curriculum/level"] for record in resumed.metrics()] == levels


def test_a_resumed_run_says_which_callback_is_missing(tmp_path, capsys):
    run = cut(train_tiny("cartpole", tmp_path, callbacks=[Curriculum()]), 3)
    train("cartpole", resume=run.folder, runs_folder=tmp_path, console="lines")
    assert "had the callback Curriculum and is resumed without it" in capsys.readouterr().out


def test_a_state_of_another_shape_is_refused(tmp_path):
    run = cut(train_tiny("cartpole", tmp_path, callbacks=[Curriculum()]), 3)

    class Other(Curriculum):
        def load_state_dict(self, state: Any) -> None:
            self.level = state["levels"]

    Other.__name__ = "Curriculum"
    with pytest.raises(CheckpointError, match="state of callback Curriculum does not fit: KeyError: 'levels'"):
        train("cartpole", resume=run.folder, runs_folder=tmp_path, console="off", callbacks=[Other()])


def test_a_checkpoint_with_damaged_states_of_callbacks_is_refused(tmp_path):
    for text in (b"[]", b'{"states": {"A": 1}, "env_params": {}}', b"\xff", b'{"states": {}}'):
        with pytest.raises(CheckpointError, match="states of callbacks cannot be read"):
            read_saved({"callbacks": checkpoint.from_bytes(text)})
    assert read_saved({}) == ({}, {})
    run = cut(train_tiny("cartpole", tmp_path), 3)
    meta = json.loads((run.last / "meta.json").read_text())
    (run.last / "meta.json").write_text(json.dumps({**meta, "evaluated_step": [1], "latest_returns": [[1]]}))
    assert summary(train("cartpole", resume=run.folder, runs_folder=tmp_path, console="off"))["status"] == "finished"


# ---- failing ----


@pytest.mark.parametrize("event", ["on_iteration", "on_episodes", "on_evaluation", "on_checkpoint", "on_end"])
def test_a_callback_that_raises_ends_the_run_after_a_checkpoint(tmp_path, event):
    class Faulty:
        def __init__(self) -> None:
            self.ends = 0

    def fail(self: Any, context: Any) -> None:
        if context.iteration >= 2:
            raise ZeroDivisionError("by hand")

    setattr(Faulty, event, fail)
    recorder = Recorder()
    evaluation = {"every": 2 * STEPS, "episodes": 1}
    with pytest.raises(ZeroDivisionError) as raised:
        train_tiny("cartpole", tmp_path, callbacks=[Faulty(), recorder], save={"every": 0}, eval=evaluation)
    assert any(entry.name == "fail" for entry in raised.traceback), "the traceback shows the line of the callback"
    run = find("last", tmp_path)
    told = summary(run)
    assert told["status"] == "failed"
    assert told["reason"] == f"callback Faulty.{event} raised ZeroDivisionError: by hand"
    assert run.last.name == f"{told['step']:012d}"
    assert recorder.calls[-1][0] == "on_end", "the other callbacks end too"
    resumed = train("cartpole", resume=run.folder, runs_folder=tmp_path, console="off")
    assert summary(resumed)["status"] == "finished"


def test_an_error_of_training_itself_saves_nothing_after_it(tmp_path, monkeypatch):
    def broken(self: Any) -> None:
        raise RuntimeError("in training")

    monkeypatch.setattr("shoal.train.trainer.Trainer.learn", broken)
    recorder = Recorder()
    with pytest.raises(RuntimeError, match="in training"):
        train_tiny("cartpole", tmp_path, callbacks=[recorder])
    assert find("last", tmp_path).checkpoints() == []
    assert [event for event, _ in recorder.calls] == ["on_start", "on_end"]


def test_an_error_that_only_the_last_log_finds_saves_nothing(tmp_path, monkeypatch):
    """On a GPU numbers are checked when they are read."""
    drain = Trainer.drain

    def checked(self: Trainer) -> dict[str, float]:
        if self.iteration == 6:
            raise TrainingError("loss is nan.")
        return drain(self)

    monkeypatch.setattr("shoal.train.session.LOG_EVERY_S", 1e9)
    monkeypatch.setattr(Trainer, "drain", checked)
    with pytest.raises(TrainingError, match=f"The last checkpoint is of step {5 * STEPS}"):
        train_tiny("cartpole", tmp_path)
    run = find("last", tmp_path)
    assert run.last.name == f"{5 * STEPS:012d}"
    assert summary(run)["status"] == "failed"


class Misspelled:
    def on_iterations(self, context: Any) -> None: ...


class Empty(Callback):
    pass


class TwoArguments:
    def on_iteration(self, context: Any, more: Any) -> None: ...


class OnlySaves:
    def on_iteration(self, context: Any) -> None: ...
    def state_dict(self) -> Any:
        return {}


class Unsaveable(Callback):
    def on_iteration(self, context: Any) -> None: ...
    def state_dict(self) -> Any:
        return {"file": object()}


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        ([Misspelled()], "method 'on_iterations', which is never called. Did you mean 'on_iteration'"),
        ([Empty()], "Empty has none of the methods on_start"),
        ([object()], "object has none of the methods"),
        ([Empty], "has the class Empty. Pass an object"),
        ([print], "has the function print"),
        ([TwoArguments()], "cannot be called with one argument. Write def on_iteration"),
        ([OnlySaves()], "only one of state_dict and load_state_dict"),
        ([Unsaveable()], "'file' of state_dict.* is or holds object"),
        ([StopAt(1)] * 2, "the same StopAt twice"),
        ("stop_at(1)", "is not a list"),
        (["stop_att(1)"], "no callback 'stop_att'. Did you mean 'stop_at'"),
        (["param_schedule('gravty', 1, 2)"], "cartpole has no param 'gravty'. Did you mean 'gravity'"),
        (["early_stop(1000, metric='eval/return')"], "needs evaluations during training"),
    ],
)
def test_a_faulty_callback_is_refused_before_any_work(tmp_path, callbacks, message):
    with pytest.raises(ConfigError, match=message):
        train_tiny("cartpole", tmp_path, callbacks=callbacks)
    assert not list(tmp_path.iterdir()), "no run was made"
