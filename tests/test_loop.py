"""`with start(...) as trainer: for metrics in trainer`: the same run as `train`, however its loop ends."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from shoal.errors import ConfigError, UsageError
from shoal.runs import Run, find
from shoal.train import Stopped, start, train
from tests.training import STEPS, contents, cut, tiny, train_tiny


def loop(folder: Any, **tables: Any) -> Any:
    return start("cartpole", runs_folder=folder, console="off", **tiny(**tables))


def run_body(trainer: Any, acts: dict[int, Callable[[], Any]]) -> None:
    """A loop whose body does something at some iterations."""
    with trainer:
        for metrics in trainer:
            acts.get(metrics["iteration"], lambda: None)()


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def told(run: Run) -> tuple[str, str, int]:
    assert run.summary is not None
    return run.summary["status"], run.summary["reason"], run.summary["step"]


def test_a_loop_gives_the_metrics_of_every_iteration_and_the_run_of_train(tmp_path):
    plain = train_tiny("cartpole", tmp_path / "a")
    with loop(tmp_path / "b") as trainer:
        seen = [(metrics["step"], metrics["iteration"], trainer.step) for metrics in trainer]
    assert seen == [(k * STEPS, k, k * STEPS) for k in range(1, 7)]
    assert contents(trainer.run) == contents(plain)
    assert told(trainer.run) == ("finished", "", 6 * STEPS)
    assert [record["step"] for record in trainer.run.metrics()] == [record["step"] for record in plain.metrics()]


def test_a_break_saves_evaluates_and_finishes(tmp_path):
    with loop(tmp_path, save={"every": 0}, eval={"episodes": 2}) as trainer:
        for metrics in trainer:
            if metrics["iteration"] == 2:
                break
        for _metrics in trainer:  # it goes on where it was left
            break
    assert told(trainer.run) == ("finished", f"the loop was left at step {3 * STEPS}.", 3 * STEPS)
    assert trainer.run.summary["eval"]["episodes"] == 2
    assert [path.name for path in trainer.run.checkpoints()] == [f"{3 * STEPS:012d}"]


def test_stop_ends_the_loop_with_its_reason(tmp_path):
    with loop(tmp_path) as trainer:
        count = 0
        for _metrics in trainer:
            count += 1
            trainer.set_env_params(gravity=5.0)
            trainer.log("mine/count", count)
            trainer.stop("enough")
    assert count == 1
    assert told(trainer.run) == ("finished", "enough", STEPS)
    assert trainer.run.metrics()[-1]["mine/count"] == 1


def test_an_exception_in_the_body_leaves_a_checkpoint_and_a_summary(tmp_path):
    trainer = loop(tmp_path, save={"every": 0})
    with pytest.raises(ZeroDivisionError):
        run_body(trainer, {2: lambda: 1 / 0})
    assert told(trainer.run) == ("failed", "ZeroDivisionError: division by zero", 2 * STEPS)
    assert [path.name for path in trainer.run.checkpoints()] == [f"{2 * STEPS:012d}"]


def test_ctrl_c_ends_the_loop_and_the_run_resumes_exactly(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    whole = train_tiny("cartpole", tmp_path / "a")
    trainer = loop(tmp_path / "b")
    with pytest.raises(Stopped):
        run_body(trainer, {2: press_ctrl_c})
    assert told(trainer.run) == ("interrupted", "SIGINT", 2 * STEPS)
    assert signal.getsignal(signal.SIGINT) is before
    again = start("cartpole", resume=trainer.run, runs_folder=tmp_path / "b", console="off")
    with again as resumed:
        assert resumed.is_resumed
        steps = [metrics["step"] for metrics in resumed]
    assert steps == [k * STEPS for k in range(3, 7)]
    assert contents(again.run) == contents(whole)


def test_a_second_ctrl_c_in_the_body_stops_at_once_after_a_checkpoint(tmp_path):
    trainer = loop(tmp_path, save={"every": 0})
    with pytest.raises(KeyboardInterrupt):
        run_body(trainer, {1: lambda: [press_ctrl_c(), press_ctrl_c()]})
    assert told(trainer.run)[0] == "interrupted"
    assert [path.name for path in trainer.run.checkpoints()] == [f"{STEPS:012d}"]


def test_a_checkpoint_of_the_body_is_written_before_the_next_iteration(tmp_path):
    with loop(tmp_path, save={"every": 0}) as trainer:
        for metrics in trainer:
            if metrics["iteration"] == 3:
                trainer.save()
            if metrics["iteration"] == 4:
                assert trainer.checkpoint.name == f"{3 * STEPS:012d}"


def test_a_loop_with_callbacks_resumes_them(tmp_path):
    with loop(tmp_path, callbacks=["stop_at(score=1e9)"]) as trainer:
        for _metrics in trainer:
            pass
    run = cut(trainer.run, 2)
    assert told(train("cartpole", resume=run.folder, runs_folder=tmp_path, console="off"))[0] == "finished"
    assert run.config["callback"] == ["stop_at(score=1e9)"]


def test_misuse_is_told(tmp_path):
    trainer = loop(tmp_path)
    with pytest.raises(UsageError, match="with start"):
        iter(trainer)
    with pytest.raises(UsageError, match="has not been started"):
        _ = trainer.step
    with trainer:
        next(trainer)
    with pytest.raises(UsageError, match="has ended"):
        next(trainer)
    with pytest.raises(UsageError, match="this run has ended"):
        trainer.__enter__()
    with pytest.raises(ConfigError, match="Did you mean 'total_steps'"), loop(tmp_path, train={"total_step": 1}):
        pass
    assert find("last", tmp_path).id == trainer.run.id, "a refused run makes no folder"
    with pytest.raises(ConfigError, match="the reason must be text"), loop(tmp_path) as other:
        other.stop("")
