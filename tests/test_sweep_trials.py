"""Trials are ordinary runs: they fail with seed and step, stop early, and continue where they were."""

from __future__ import annotations

import dataclasses
import json
import sys

import pytest

pytest.importorskip("optuna")

import shoal.puffer as pufferlib
from shoal.cli.main import main
from shoal.errors import BuildError, CompileFailed, ConfigError, EnvCrashed, EnvTimeout, TrainingError, WorkerDied
from shoal.puffer import pufferl
from shoal.runs import Run
from shoal.sweep import curves, store, worker
from shoal.sweep.curves import CurveStop
from shoal.train import options_for
from shoal.train.callbacks.base import Callback

SMALL = {"total_steps": 8192, "horizon": 16}


@pytest.fixture(autouse=True)
def argv(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["shoal"])  # a job sets it


def options(**train):
    given = {"train": {**SMALL, **train}, "vec": {"num_envs": 16, "num_threads": 1}, "device": "cpu"}
    return options_for("cartpole", {**given, "eval": {"episodes": 8}})


def job(folder, given, *callbacks, run_id="0000", attempt=1):
    common = {"env": "cartpole", "root": str(folder), "run_id": run_id, "argv": ["shoal"], "attempt": attempt}
    return {**common, "options": given, "callbacks": callbacks}


def test_values_that_are_not_finite_fail_a_trial_with_its_step(tmp_path):
    answer = worker.train_job(job(tmp_path, options(learning_rate=1e30, normalize_obs=False)))
    assert answer["kind"] == "failed"
    assert answer["reason"].startswith("TrainingError: ")
    assert "not finite" in answer["reason"]
    assert answer["step"] >= 0


def test_options_that_do_not_fit_are_named(tmp_path):
    answer = worker.train_job(job(tmp_path, options(minibatches=4096)))
    assert (answer["kind"], answer["is_config"]) == ("failed", True)
    assert "--train.minibatches" in answer["reason"]


def test_which_errors_are_tried_again():
    tried = [OSError(28, "No space left"), MemoryError(), WorkerDied("killed"), EnvTimeout("slow"), BuildError("cache")]
    assert all(map(worker.is_of_machine, [*tried, RuntimeError("CUDA error: launch failure")]))
    own = [
        TrainingError("NaN"),
        EnvCrashed("raised"),
        ConfigError("bad"),
        CompileFailed("syntax"),
        ValueError(),
        RuntimeError("x"),
    ]
    assert not any(map(worker.is_of_machine, own))


def test_a_crashed_env_is_named_by_its_seed_and_step():
    error = EnvCrashed("env 3 raised")
    error.seed, error.step = 1003, 17
    answer = worker.describe(error, Run("nowhere"))
    assert (answer["kind"], answer["seed"], answer["step"]) == ("failed", 1003, 17)


def test_a_trial_stops_where_others_were_better_and_still_has_a_score(tmp_path):
    others = [[[step, step / 1e5, 400.0] for step in range(400, 8192, 400)] for _ in range(6)]
    answer = worker.train_job(job(tmp_path, options(), CurveStop(others, 0.25, "steps")))
    run = Run(tmp_path / "cartpole" / "0000")
    assert answer["kind"] == "finished"
    assert answer["reason"].startswith(curves.REASON)
    assert "quantile of 6 trials at equal steps" in answer["reason"]
    assert run.summary["step"] <= 8192 * (curves.GRACE + 1) / curves.POINTS + 512
    assert run.summary["eval"]["return"] > 0
    assert curves.read(run.folder)


class Break(Callback):
    """Breaks the run off, as a kill does: with a checkpoint of an earlier iteration."""

    def on_iteration(self, context):
        if context.iteration == 14:
            context._session.is_save_wanted = True
        if context.iteration == 17 and not context.is_resumed:
            raise KeyboardInterrupt


def test_a_trial_that_was_broken_off_continues_and_gives_the_same_result(tmp_path):
    stop = CurveStop([], 0.25, "steps")
    assert worker.train_job(job(tmp_path, options(), stop, run_id="whole"))["kind"] == "finished"
    broken = job(tmp_path, options(), CurveStop([], 0.25, "steps"), Break(), run_id="broken")
    assert worker.train_job(broken)["kind"] == "stopped"
    run = Run(tmp_path / "cartpole" / "broken")
    assert run.checkpoints()
    again = job(tmp_path, options(), CurveStop([], 0.25, "steps"), Break(), run_id="broken")
    assert worker.train_job(again)["kind"] == "finished"
    whole = Run(tmp_path / "cartpole" / "whole")
    assert run.summary["eval"]["return"] == whole.summary["eval"]["return"]
    steps = [[point[0], point[2]] for point in curves.read(run.folder)]
    assert steps == [[point[0], point[2]] for point in curves.read(whole.folder)]
    assert worker.train_job(again) == {"kind": "finished", "reason": ""}  # nothing is left to do


def test_a_sweep_of_real_runs_from_the_command_line(tmp_path, capsys):
    words = ["sweep", "cartpole", "--trials", "2", "--finals", "1", "--final-seeds", "2", "--sampler", "random"]
    words += ["--train.total-steps", "4k", "--vec.num-envs", "16", "--eval.episodes", "8", "--device", "cpu"]
    words += ["--runs", str(tmp_path), "--console", "lines"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "The best trials on fresh seeds" in out
    sweep = store.newest("cartpole", tmp_path)
    trials = sweep.trials()
    assert [trial.status for trial in trials] == ["finished", "finished"]
    assert all(trial.steps >= 4000 and trial.curve and trial.seconds > 0 for trial in trials)
    assert (
        main(
            [
                "train",
                "cartpole",
                "--config",
                str(sweep.folder / "best.toml"),
                "--runs",
                str(tmp_path),
                "--console",
                "off",
            ]
        )
        == 0
    )
    run = next(tmp_path.glob("cartpole/2*/config.toml"))
    assert Run(run.parent).config["train"]["learning_rate"] == sweep.results["values"]["train.learning_rate"]
    capsys.readouterr()


# ---- PufferLib's forms ----

TABLE = {
    "method": "Protein",
    "metric": "score",
    "goal": "maximize",
    "train": {
        "learning_rate": {"distribution": "log_normal", "min": 1e-5, "max": 1e-1, "mean": 1e-3, "scale": "auto"},
        "bptt_horizon": {"distribution": "uniform_pow2", "min": 8, "max": 64, "mean": 16, "scale": "auto"},
    },
    "env": {"frameskip": {"distribution": "int_uniform", "min": 1, "max": 8}},
}


def test_protein_suggests_and_observes_as_in_pufferlib():
    search = pufferlib.sweep.Protein(TABLE)
    args = {"train": {"learning_rate": 0.01, "bptt_horizon": 16}, "env": {"frameskip": 4}}
    search.suggest(args)
    assert args["train"] == {"learning_rate": 0.01, "bptt_horizon": 16}  # the first trial is the config
    seen = set()
    for _ in range(14):
        rate = args["train"]["learning_rate"]
        search.observe(args, score=-abs(rate - 0.003), cost=10.0 + args["env"]["frameskip"], is_failure=rate > 0.09)
        filled, values = search.suggest(args)
        assert filled is args
        assert 1e-5 <= args["train"]["learning_rate"] <= 0.1
        assert args["train"]["bptt_horizon"] in (8, 16, 32, 64)
        assert isinstance(args["env"]["frameskip"], int)
        seen.add(values["train/learning_rate"])
    assert len(seen) == 14
    assert pufferlib.sweep.Random(TABLE).suggest({})[0]["train"]["bptt_horizon"] in (8, 16, 32, 64)


def test_protein_optimizes_an_env_by_name(tmp_path, monkeypatch):
    seen = {}

    class Found:
        folder, results = (
            tmp_path,
            {"values": {"train.entropy_coef": 0.1}, "best": 0, "finals": [{"mean": 5.0, "ci95": 1.0}]},
        )

    def fake(env, **given):
        seen.update(given, env=env)
        return Found

    monkeypatch.setattr("shoal.sweep.api.sweep", fake)
    space = {
        "learning_rate": (1e-4, 1e-1),
        "ent_coef": (0.0, 0.1),
        "train.n_epochs": (1, 4),
        "optimizer": ["adam", "muon"],
    }
    best = pufferlib.Protein(
        "puffer_squared", {**space, "hidden_size": "default"}, num_trials=3, metric="score"
    ).optimize()
    assert best == {"params": {"train.entropy_coef": 0.1}, "score": 5.0, "ci95": 1.0, "sweep": str(tmp_path)}
    assert (seen["env"], seen["trials"], seen["sampler"], seen["only"]) == ("squared", 3, "protein", True)
    assert seen["ranges"] == {
        "train.learning_rate": {"log": [1e-4, 1e-1]},
        "train.entropy_coef": {"uniform": [0.0, 0.1]},
        "train.epochs": {"integer": [1, 4]},
        "train.optimizer": {"choice": ["adam", "muon"]},
        "nn.hidden": "default",
    }
    args = pufferl.load_config("puffer_squared", ["--train.ent-coef", "0.5"])
    args["sweep"] = {**TABLE, "max_runs": 4, "env": {}}
    pufferl.sweep(args, "puffer_squared", finals=0)
    assert (seen["trials"], seen["sampler"], seen["train"], seen["finals"]) == (4, "protein", {"entropy_coef": 0.5}, 0)
    assert set(seen["ranges"]) == {"train.learning_rate", "train.horizon"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pufferlib.Protein("breakout", {}, 10, "score"), "has no ranges"),
        (lambda: pufferlib.Protein("breakout", {"learning_rate": (1e-4, 1)}, 10, "fps"), "compare the score"),
        (lambda: pufferlib.Protein("atari-pong", {"learning_rate": (1e-4, 1)}), "suggest and observe in"),
        (lambda: pufferlib.sweep.Random({}), "has no ranges"),
        (lambda: pufferlib.sweep.Protein({**TABLE, "goal": "minimize"}), "maximized"),
        (lambda: pufferlib.sweep.Protein(TABLE).optimize(), "name of an env"),
        (lambda: pufferlib.Protein("breakout", {"learning_rate": (1e-4, 1)}).suggest({}), "Use optimize"),
    ],
)
def test_mistakes_in_pufferlibs_forms(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_outcomes_are_plain_data():
    from shoal.sweep.runners import Outcome

    assert json.loads(json.dumps(dataclasses.asdict(Outcome("lost", "x"))))["kind"] == "lost"


@pytest.mark.slow
def test_a_worker_stops_with_its_parent_and_its_trial_continues(tmp_path):
    """The parent dies: the run saves a checkpoint, and the process ends."""
    import time

    from shoal.sweep.runners import Job
    from shoal.sweep.runners.local import LocalRunner

    long = Job("trial 0", "cartpole", options(total_steps=20_000_000), tmp_path / "runs", "0000")
    runner = LocalRunner(1, tmp_path / "logs")
    runner.start(long)
    process = runner.workers[0].process
    deadline = time.monotonic() + 120
    while not runner.progress()["trial 0"].get("step") and time.monotonic() < deadline:
        time.sleep(0.1)
    process.stdin.close()  # as if the parent were killed
    process.stdin = None
    assert process.wait(60) == 0
    assert runner.poll()[0][1].kind == "stopped"
    run = Run(tmp_path / "runs" / "cartpole" / "0000")
    assert run.summary["status"] == "interrupted"
    assert run.checkpoints()
    runner.start(dataclasses.replace(long, options=options(total_steps=run.summary["step"] + 2048)))
    while not (ended := runner.poll()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert ended[0][1].kind == "finished"
    runner.stop()
