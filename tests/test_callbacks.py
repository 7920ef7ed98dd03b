"""Callbacks: when they are called, what they read and change, how they fail, and that their runs resume exactly."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

import shoal
from shoal import checkpoint
from shoal.cli.main import main
from shoal.errors import CheckpointError, ConfigError, TrainingError
from shoal.runs import Run, find
from shoal.train import Callback, Trainer, train
from shoal.train.callbacks import CALLBACKS, EVENTS, specs
from shoal.train.callbacks.early_stop import EarlyStop
from shoal.train.callbacks.group import read_saved
from shoal.train.callbacks.stop_at import StopAt
from shoal.train.param_changes import set_env_params
from shoal.train.recent import LatestReturns, MergedRecord
from tests.envs import CounterEnv
from tests.training import STEPS, contents, cut, train_tiny

SERIAL = {"vec": {"num_envs": 16, "backend": "serial"}}


class Recorder(Callback):
    """Keeps the order of all calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []


def _recording(event: str) -> Any:
    def method(self: Recorder, context: Any) -> None:
        self.calls.append((event, context.step))

    return method


for _event in EVENTS:
    setattr(Recorder, _event, _recording(_event))


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


def summary(run: Run) -> dict[str, Any]:
    assert run.summary is not None
    return run.summary


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


# ---- by name ----


@pytest.mark.parametrize(
    ("text", "args", "kwargs"),
    [
        ("stop_at", (), {}),
        ("stop_at(475)", (475,), {}),
        (" stop_at( score = -4.5e2, window=20 ) ", (), {"score": -450.0, "window": 20}),
        ("mine:A(every=1.5M, name='1M (x)', names=['a', 2k], on=True)", (), None),
        ("./a b.py:A({'x': (1, None)})", ({"x": (1, None)},), {}),
    ],
)
def test_specs_are_read(text, args, kwargs):
    spec = specs.parse(text)
    assert spec.args == args
    expected = {"every": 1_500_000, "name": "1M (x)", "names": ["a", 2000], "on": True} if kwargs is None else kwargs
    assert spec.kwargs == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stop_at(", "last bracket is missing"),
        ("stop_at(1", "last bracket is missing"),
        ("(1)", "it has no name"),
        ("", "it has no name"),
        ("stop_at(score=)", "cannot be read"),
        ("stop_at(score=__import__('os').getpid())", "is not a literal"),
        ("stop_at(score=score)", "score is not a literal"),
        ("stop_at(**{'score': 1})", "is not an option"),
        ("stop_at(1)(2)", "more than one pair of brackets"),
        ("stop_at(scor=475)", r"'scor'.* Did you mean 'score'\? It is stop_at\(score, window=100\)"),
        ("stop_at()", "missing a required argument: 'score'"),
        ("stop_at('high')", "score='high' must be a number"),
        ("stop_at(nan)", "is not a literal"),
        ("stop_at(1, window=0)", "window=0 must be an int of at least 1"),
        ("early_stop(0)", "patience=0 must be a number of steps"),
        ("early_stop(1k, min_delta=-1)", "must be a number of at least 0"),
        ("param_schedule('a b', 0, 1)", "must be the name of an env param"),
        ("param_schedule('wind', 0, 1, fraction=2)", "must be a number in"),
        ("video(1k, episodes=0)", "episodes=0 must be an int"),
        ("nowhere_at_all:Class", "nowhere_at_all"),
    ],
)
def test_specs_that_are_wrong_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        specs.find(text)


def test_all_stock_callbacks_are_in_the_help(capsys):
    assert set(CALLBACKS.stock()) == {"stop_at", "early_stop", "param_schedule", "video"}
    assert main(["train", "cartpole", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for name in CALLBACKS.stock():
        assert f"{name}(" in shown


def test_callbacks_of_a_file_are_named_on_the_command_line_and_resumed(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(
        "class Stop:\n"
        "    def __init__(self, at, word='x'):\n"
        "        self.at, self.word = at, word\n"
        "    def on_iteration(self, context):\n"
        "        if context.iteration >= self.at:\n"
        "            context.stop(f'{self.word} at {self.at}')\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ["cartpole", "--runs", str(tmp_path / "runs"), "--console", "off", "--eval.episodes", "0"]
    words += ["--device", "cpu", "--vec.num-envs", "16", "--train.horizon", "8", "--train.minibatches", "2"]
    words += ["--callback", "./mine.py:Stop(2, word='early')", "--callback=stop_at(score=1e9)"]
    assert main(["train", *words, "--train.total-steps", "4k"]) == 0
    run = find("last", tmp_path / "runs")
    assert summary(run)["reason"] == "early at 2"
    assert run.config["callback"] == [f"{tmp_path}/mine.py:Stop(2, word='early')", "stop_at(score=1e9)"]
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert main(["train", "--resume", str(run.folder), "--runs", str(tmp_path / "runs"), "--console", "off"]) == 0
    assert summary(run)["reason"] == "early at 2"
    assert summary(run)["step"] == 3 * STEPS, "it stops again after one more iteration"
    monkeypatch.chdir(tmp_path)
    assert main(["train", *words, "--callback", "./mine.py:Stp(2)"]) == 2
    assert "Did you mean 'Stop'" in " ".join(capsys.readouterr().err.split())


def test_the_command_line_prints_the_traceback_of_a_callback(tmp_path, monkeypatch, capsys):
    (tmp_path / "faulty.py").write_text(
        "class Faulty:\n    def on_iteration(self, context):\n        context.set_env_params(gravty=1.0)\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ["cartpole", "--runs", "runs", "--console", "off", "--device", "cpu", "--train.total-steps", "4k"]
    assert main(["train", *words, "--vec.num-envs", "16", "--callback", "./faulty.py:Faulty"]) == 1
    shown = capsys.readouterr().err
    assert "context.set_env_params(gravty=1.0)" in shown
    assert "Did you mean 'gravity'" in shown


def test_a_callback_of_another_package_has_a_name(tmp_path, monkeypatch):
    monkeypatch.setattr(CALLBACKS, "_registered", {})
    CALLBACKS.register("halt", type("Halt", (), {"on_start": lambda self, context: context.stop("halted")}))
    run = train_tiny("cartpole", tmp_path, callbacks=["halt"])
    assert (summary(run)["reason"], summary(run)["step"]) == ("halted", 0)
    assert "halt()" in specs.describe_stock()


# ---- those that Shoal ships ----


def test_stop_at_waits_for_a_whole_window(tmp_path):
    run = train_tiny("cartpole", tmp_path, callbacks=["stop_at(score=1, window=10)"])
    told = summary(run)
    assert told["reason"].startswith("stop_at: return ")
    assert told["step"] < 6 * STEPS
    ended = sum(record["episode/n"] for record in run.metrics())
    assert ended >= 10 > ended - run.metrics()[-1]["episode/n"]
    assert summary(train_tiny("cartpole", tmp_path, callbacks=["stop_at(score=1e6)"]))["reason"] == ""


def test_early_stop_counts_steps_without_progress(tmp_path):
    class Level:
        """A metric that rises for three iterations."""

        def on_iteration(self, context: Any) -> None:
            context.log("mine/level", min(context.iteration, 3))

    patience = 2 * STEPS
    run = train_tiny("cartpole", tmp_path, callbacks=[Level(), EarlyStop(patience, metric="mine/level")])
    assert summary(run)["step"] == 5 * STEPS
    assert summary(run)["reason"].startswith(f"early_stop: the best mine/level is 3 at step {3 * STEPS}")
    with pytest.raises(ConfigError, match="no metric 'mine/levl' after .* Did you mean 'mine/level'"):
        train_tiny("cartpole", tmp_path, callbacks=[Level(), EarlyStop(patience, metric="mine/levl")])
    patient = train_tiny("cartpole", tmp_path, callbacks=[Level(), f"early_stop({4 * STEPS}, metric='mine/level')"])
    assert summary(patient)["step"] == 6 * STEPS


def test_early_stop_keeps_its_best_value_over_a_resume():
    before, after = EarlyStop(100), EarlyStop(100)
    before.best, before.best_step = 4.5, 300
    before.latest.add(60, 2.0)
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert (after.best, after.best_step, after.latest.count) == (4.5, 300, 60)
    fresh = EarlyStop(100)
    fresh.load_state_dict(json.loads(json.dumps(EarlyStop(100).state_dict())))
    assert fresh.best == -math.inf


def test_a_param_schedule_reaches_its_end(tmp_path):
    callbacks = ["param_schedule('gravity', 5, 10, fraction=0.5)", "param_schedule('max_steps', 10, 40)"]
    run = train_tiny("cartpole", tmp_path, callbacks=callbacks)
    gravity = {record["iteration"]: record["env/gravity"] for record in run.metrics()}
    assert [round(gravity[k], 2) for k in (1, 2, 3, 6)] == [6.67, 8.33, 10, 10]
    assert {record["iteration"]: record["env/max_steps"] for record in run.metrics()}[6] == 40
    with pytest.raises(ConfigError, match=r"max_steps is an int; 1\.5 is not"):
        train_tiny("cartpole", tmp_path, callbacks=["param_schedule('max_steps', 1.5, 4)"])


def test_a_param_schedule_sets_attributes_of_python_envs(tmp_path):
    callback = specs.find("param_schedule('longest', 12, 2)")
    run = train_tiny(CounterEnv, tmp_path, callbacks=[callback], **SERIAL)
    assert callback.value == 2
    lengths = [record["episode/length_max"] for record in run.metrics()]
    assert max(lengths) > 6
    for name, message in (("longst", "Did you mean 'longest'"), ("name", "name is 'counter', not a number")):
        with pytest.raises(ConfigError, match=message):
            train_tiny(CounterEnv, tmp_path / "refused", callbacks=[f"param_schedule('{name}', 12, 2)"], **SERIAL)
    assert not (tmp_path / "refused").exists(), "it is refused before a folder is made"


def test_videos_are_filmed_every_so_many_steps(tmp_path):
    pytest.importorskip("PIL")
    video = f"video({3 * STEPS}, width=32)"
    run = train_tiny("cartpole", tmp_path, callbacks=[video, "param_schedule('max_steps', 3, 4)"], save={"every": 0})
    names = sorted(path.stem for path in (run.folder / "videos").iterdir())
    assert names == [f"step-{k * STEPS:012d}" for k in (3, 6)]


def test_a_video_of_an_env_that_cannot_be_drawn_is_refused(tmp_path):
    from tests.envs import ImageEnv

    with pytest.raises(ConfigError, match="it has no render mode 'rgb_array'"):
        train_tiny(ImageEnv, tmp_path, callbacks=["video(1k)"], vec={"num_envs": 2, "backend": "serial"})


# ---- the score of a checkpoint ----


def test_the_latest_returns_are_those_of_at_least_a_window():
    latest = LatestReturns(100)
    assert math.isnan(latest.mean)
    latest.add(80, 1.0)
    assert (latest.mean, latest.is_full) == (1.0, False)
    latest.add(30, 2.0)
    assert latest.mean == pytest.approx(140 / 110)
    latest.add(75, 4.0)
    assert (latest.count, latest.mean) == (105, (60 + 300) / 105), "the first 80 are no longer needed"
    latest.add(1000, 9.0)
    assert (latest.count, latest.mean) == (1000, 9.0)
    latest.add(0, math.nan)
    assert latest.mean == 9.0


def test_the_latest_returns_of_a_short_run_do_not_reach_back_to_its_start():
    latest = LatestReturns(100, least=10)
    for iteration in range(1, 21):
        latest.add(6, float(iteration), step=100 * iteration)
    assert [step for _, _, step in latest.intervals] == [1800, 1900, 2000], "the last tenth, and at least 10 episodes"
    latest.add(6, 99.0, step=9000)
    assert latest.count == 12
    again = LatestReturns(100, least=10, intervals=json.loads(json.dumps(list(latest.intervals))))
    assert again.mean == latest.mean


def test_the_score_of_a_checkpoint_is_that_of_the_latest_episodes(tmp_path):
    """Not of all since the checkpoint before: a run that learns has a higher return at its end."""

    class Rising(CounterEnv):
        total = 0

        def step(self, action: Any) -> Any:
            Rising.total += 1
            obs, _, *rest = super().step(action)
            return obs, Rising.total / 100, *rest

    tables: dict[str, Any] = {**SERIAL, "train": {"total_steps": 12 * STEPS}}
    run = train_tiny(Rising, tmp_path, save={"every": 0}, callbacks=[Recorder()], **tables)
    episodes = [(record["episode/n"], record["episode/return"]) for record in run.metrics()]
    everything = sum(n * mean for n, mean in episodes) / sum(n for n, _ in episodes)
    assert summary(run)["best"]["score"] > 1.2 * everything
    assert summary(run)["selected_by"] == "sampled return in the latest training episodes"
