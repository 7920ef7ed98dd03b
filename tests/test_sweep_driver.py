"""A sweep survives: kills, other processes, failures of trials and of the machine. Trials are made up here."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import time
import warnings

import pytest

pytest.importorskip("optuna")

from rich.console import Console

from shoal.cli.main import main
from shoal.errors import ConfigError, TrainingError
from shoal.sweep import api, store, sweep
from shoal.sweep.driver import Driver, State
from shoal.sweep.options import SweepOptions
from shoal.sweep.runners import RUNNERS, Job, Outcome
from shoal.sweep.screen import SweepScreen
from tests.made_up_runner import MadeUp

RANGES = {"train.learning_rate": "log(1e-4, 1e-1)", "train.gamma": "logit(0.9, 0.999)", "train.epochs": "integer(1, 8)"}


@pytest.fixture(autouse=True)
def made_up(monkeypatch):
    monkeypatch.setitem(RUNNERS._registered, "made-up", MadeUp)
    monkeypatch.setattr("shoal.sweep.driver.POLL_S", 0.001)
    monkeypatch.setattr(MadeUp, "plan", {})
    monkeypatch.setattr(MadeUp, "started", [])


def run(folder, **settings):
    given = {
        "trials": 14,
        "finals": 2,
        "final_seeds": 3,
        "sampler": "tpe",
        "console": "off",
        "on": "made-up",
        "only": True,
    }
    return sweep("cartpole", ranges=RANGES, runs_folder=folder, device="cpu", **{**given, **settings})


def facts(found):
    return [(t.number, t.status, t.values, t.score, t.seed, t.is_stopped) for t in found.trials()]


# ---- a whole sweep ----


def test_a_sweep_ends_with_the_best_on_fresh_seeds(tmp_path):
    found = run(tmp_path)
    trials, results = found.trials(), found.results
    assert [trial.number for trial in trials] == list(range(14))
    given = trials[0].values  # the tuned values of cartpole
    assert (given["train.learning_rate"], given["train.gamma"], given["train.epochs"]) == (5e-3, 0.98, 4)
    assert [trial.seed for trial in trials] == list(range(1, 15))
    top = sorted(trials, key=lambda trial: -trial.score)[:2]
    assert {row["trial"] for row in results["finals"]} == {trial.number for trial in top}
    assert all(len(row["scores"]) == 3 and row["ci95"] > 0 and min(row["seeds"]) > 100_000 for row in results["finals"])
    assert results["best"] == results["finals"][0]["trial"]
    assert results["finals"][0]["mean"] >= results["finals"][1]["mean"]
    assert found.is_finished


def test_best_toml_is_a_config_of_train(tmp_path):
    from shoal.cli import train as training

    found = run(tmp_path)
    request = training.parse(["cartpole", "--device", "cpu", "--config", str(found.folder / "best.toml")])
    values = found.results["values"]
    assert request.options.train.learning_rate == values["train.learning_rate"]
    assert request.options.train.epochs == values["train.epochs"]
    assert request.options.vec.num_envs == 64  # as tuned
    assert request.options.seed == 1
    assert "fresh seeds" in (found.folder / "best.toml").read_text().splitlines()[0]


def test_the_same_call_continues_and_a_longer_one_extends(tmp_path):
    first = run(tmp_path, trials=5)
    MadeUp.started.clear()
    again = run(tmp_path, trials=5)
    assert (again.folder, MadeUp.started) == (first.folder, [])
    longer = run(tmp_path, trials=8)
    assert longer.folder == first.folder
    assert facts(longer)[:5] == facts(first)[:5]
    assert facts(longer) == facts(run(tmp_path / "other", trials=8))


def test_other_ranges_are_an_error_while_a_sweep_is_unfinished(tmp_path):
    first = run(tmp_path, trials=4)
    (first.folder / "results.json").unlink()
    with pytest.raises(
        ConfigError,
        match=r"unfinished sweep with other.*: range of train\.epochs is integer\(1, 4\), was integer\(1, 8\).*--new",
    ):
        sweep(
            "cartpole",
            ranges={**RANGES, "train.epochs": "integer(1, 4)"},
            runs_folder=tmp_path,
            only=True,
            device="cpu",
            sampler="tpe",
        )
    with pytest.raises(ConfigError, match="gamma is none, was logit"):
        sweep(
            "cartpole",
            ranges={"train.epochs": "integer(1, 8)"},
            runs_folder=tmp_path,
            only=True,
            device="cpu",
            sampler="tpe",
        )
    with pytest.raises(ConfigError, match=r"train.*learning_rate is 0\.1, was 0\.005"):
        run(tmp_path, train={"learning_rate": 0.1})
    with pytest.raises(ConfigError, match="sampler is random, was tpe"):
        run(tmp_path, sampler="random")
    assert run(tmp_path, trials=4, seed=9, new=True).folder != first.folder
    named = run(tmp_path, trials=3, name="mine")
    with pytest.raises(ConfigError, match="another --name"):
        run(tmp_path, trials=3, name="mine", seed=4)
    assert run(tmp_path, trials=3, name="mine").folder == named.folder


def test_a_sweep_is_joined_by_its_folder(tmp_path):
    first = run(tmp_path, trials=4)
    (first.folder / "results.json").unlink()
    joined = api.join(first.folder, {"trials": 6, "on": "made-up"}, "off")
    assert len(joined.trials()) == 6
    assert facts(joined) == facts(run(tmp_path / "other", trials=6))
    with pytest.raises(ConfigError, match="--sampler is fixed"):
        api.join(first.folder, {"sampler": "random"}, "off")
    with pytest.raises(ConfigError, match="not the folder of a sweep"):
        api.join(tmp_path, {}, "off")


# ---- kills and other processes ----


@contextlib.contextmanager
def forked(folder, polls=3, **settings):
    """A process that works on the sweep, slowly enough to be killed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forking with threads
        pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            MadeUp.polls = polls
            run(folder, **settings)
        os._exit(0)
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_killed_at_any_moment_it_gives_the_same_trials(tmp_path):
    rng, whole = random.Random(0), run(tmp_path / "whole")
    kills = 0
    for _ in range(12):
        with forked(tmp_path / "killed", polls=40):  # the whole sweep takes 20 runs of 40 ms
            time.sleep(rng.uniform(0.05, 0.25))
        found = store.newest("cartpole", tmp_path / "killed")
        kills += found is None or not found.is_finished
    assert kills >= 3
    assert facts(run(tmp_path / "killed")) == facts(whole)
    assert store.newest("cartpole", tmp_path / "killed").results["finals"] == whole.results["finals"]


def test_processes_share_one_sweep(tmp_path):
    found = run(tmp_path, trials=1, finals=0)
    with forked(tmp_path, trials=24, finals=2), forked(tmp_path, trials=24, finals=2):
        deadline = time.monotonic() + 60
        while not (store.Sweep(found.folder).is_finished and found.target == 24) and time.monotonic() < deadline:
            time.sleep(0.05)
            found = store.Sweep(found.folder)
    trials = store.Sweep(found.folder).trials()
    assert [trial.number for trial in trials] == list(range(24))
    assert all(trial.status == "finished" for trial in trials)
    assert len({json.dumps(trial.values, sort_keys=True) for trial in trials}) == 24


# ---- failures ----


def test_a_failure_of_the_machine_is_tried_again_and_one_of_the_trial_is_not(tmp_path):
    MadeUp.plan = {
        ("trial 2", 1): Outcome("lost", "its process was ended by SIGKILL"),
        ("trial 3", 1): Outcome("failed", "TrainingError: loss/policy became not finite", step=512),
        ("trial 4", 1): Outcome("failed", "EnvCrashed: it raised", step=7, seed=1037),
        **{("trial 5", k): Outcome("lost", "no memory") for k in (1, 2, 3)},
    }
    trials = run(tmp_path, trials=7).trials()
    assert [name for name in MadeUp.started if name[0] == "trial 2"] == [("trial 2", 1), ("trial 2", 2)]
    assert (trials[2].status, trials[2].attempts) == ("finished", 2)
    assert trials[3].status == "failed"
    assert trials[3].reason == "TrainingError: loss/policy became not finite (seed 4 at step 512)"
    assert "env seed 1037 at step 7" in trials[4].reason
    assert (trials[5].status, trials[5].attempts) == ("failed", 3)
    assert trials[6].status == "finished"  # the sampler went on


def test_a_mistake_in_the_given_options_leaves_nothing_behind(tmp_path):
    MadeUp.plan = {("trial 0", 1): Outcome("failed", "ConfigError: --train.minibatches 9 is more", is_config=True)}
    with pytest.raises(ConfigError, match="--train.minibatches 9 is more"):
        run(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_in_which_nothing_works_ends(tmp_path):
    MadeUp.plan = {(f"trial {n}", 1): Outcome("failed", f"TrainingError: {n}", step=n) for n in range(99)}
    with pytest.raises(TrainingError, match=r"all 10 trials failed.*TrainingError: 9 \(seed 10 at step 9\)"):
        run(tmp_path, trials=60)


def test_a_final_that_fails_is_reported_and_ranked_last(tmp_path):
    best = run(tmp_path / "a").results["best"]
    MadeUp.plan = {(f"trial {best}, seed 100002", 1): Outcome("failed", "TrainingError: NaN", step=5)}
    results = run(tmp_path / "b").results
    assert results["best"] != best
    assert results["finals"][-1]["failed"] == ["TrainingError: NaN (seed 100002 at step 5)"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trials": 0}, "trials 0 is below 1"),
        ({"early_stop": 1.5}, "early-stop 1.5 is above"),
        ({"sampler": "tpee"}, "Did you mean 'tpe'"),
        ({"name": "../x"}, "letters, digits"),
        ({"seed": 2**31 - 5}, "Use a smaller one"),
        ({"workers": 4000, "on": "local"}, "--workers 4000 needs as many cores"),
        ({"on": "nowhere"}, "nowhere"),
        ({"trails": 5}, "'trails'. Did you mean"),
    ],
)
def test_bad_settings_are_errors_before_anything_starts(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        run(tmp_path, **settings)
    assert list(tmp_path.iterdir()) == []


# ---- the screen ----


def test_the_screen_shows_trials_front_and_time_left(tmp_path):
    found = run(tmp_path, trials=6)
    MadeUp.plan = {}
    (found.folder / "results.json").unlink()
    for width in (60, 130):
        screen = SweepScreen("dashboard", found, SweepOptions())
        screen.live.stop()
        screen.console = Console(width=width, record=True, file=io.StringIO())
        trials = found.trials()
        state = State(found, 10, trials, {"trial 6": {"step": 50, "total": 100, "return": 3.0, "values": {}}})
        state.elapsed_s, state.ended_before = 8.0, 6
        assert state.seconds_left is None  # nothing has ended since
        state.ended_before = 2
        assert state.seconds_left == 8.0  # four trials took 8 s, four are left
        screen.console.print(screen._frame(state))
        text = screen.console.export_text()
        assert "6 of 10 trials" in text
        assert "left" in text
        assert "50%" in text
        assert "●" in text
        assert max(map(len, text.splitlines())) <= width


def test_lines_are_printed_without_a_terminal(tmp_path, capsys):
    run(tmp_path, trials=3, console="lines")
    out = capsys.readouterr().out
    assert "sweep of cartpole: 3 trials, 3 options" in out
    assert "trial 0: score" in out
    assert "the options as given" in out
    assert "final: trial" in out
    assert "95 % interval" in out
    assert "--config" in out


def test_only_means_ranges_of_yours_in_a_file_or_as_flags(tmp_path):
    file = tmp_path / "ranges.toml"
    file.write_text("[sweep.train]\nclip = { uniform = [0.1, 0.3] }\n")
    given = {"only": True, "trials": 2, "finals": 0, "on": "made-up", "console": "off", "device": "cpu"}
    found = sweep(
        "cartpole", config_file=file, runs_folder=tmp_path, ranges={"train.gamma": "logit(0.9, 0.99)"}, **given
    )
    assert found.identity["ranges"] == {"train.clip": "uniform(0.1, 0.3)", "train.gamma": "logit(0.9, 0.99)"}
    with pytest.raises(ConfigError, match=r"--only sweeps the options that you give ranges for, and there are none\."):
        sweep("cartpole", runs_folder=tmp_path, new=True, **given)


# ---- the command ----


def test_the_command_reads_ranges_settings_and_options(tmp_path, monkeypatch, capsys):
    seen = {}

    def fake(env, base, layers, options, root, console):
        seen.update(env=env, base=base, layers=layers, options=options)

    monkeypatch.setattr(api, "run", fake)
    words = ["sweep", "puffer_cartpole", "--trials", "9", "--sampler=random", "--only", "--train.ent-coef", "0.5"]
    words += [
        "--sweep.train.learning-rate",
        "log(1e-4, 1e-2)",
        "--sweep.train.gamma.min=0.9",
        "--sweep.train.gamma.max",
        "0.99",
    ]
    words += [
        "--sweep.train.ent_coef.distribution",
        "log_normal",
        "--sweep.metric",
        "score",
        "--sweep.train.ent_coef.min",
        "1e-3",
    ]
    assert main([*words, "--sweep.train.ent-coef.max", "1", "--runs", str(tmp_path)]) == 0
    assert seen["env"] == "cartpole"
    assert seen["base"].train.entropy_coef == 0.5
    assert (seen["options"].trials, seen["options"].sampler, seen["options"].only) == (9, "random", True)
    table = {"distribution": "log_normal", "min": 1e-3, "max": 1}
    gamma = {"min": 0.9, "max": 0.99}
    assert seen["layers"][-1]["train"] == {"learning_rate": "log(1e-4, 1e-2)", "gamma": gamma, "entropy_coef": table}
    space = api.make_space("cartpole", seen["base"], seen["layers"][-1:])
    assert space.as_texts()["train.gamma"] == "logit(0.9, 0.99)"
    main(["sweep", "cartpole", "--max-runs", "3", "--sweep.method", "Protein"])
    assert (seen["options"].trials, seen["options"].sampler) == (3, "protein")
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cartpol"], "Did you mean 'cartpole'"),
        (["cartpole", "--resume", "last"], "continues by the same command"),
        (["cartpole", "--sweep.goal", "minimize"], "maximized"),
        (["cartpole", "--sweep.metric", "environment/lines"], "compare the score"),
        (["cartpole", "--sweep.learning-rate", "log(1e-4, 1)"], "with its table"),
        (["cartpole", "--sweep.train.learning-rate"], "needs a value"),
        (["cartpole", "--sweep.train.learning-rate", "3e-4"], "not a range"),
        (["cartpole", "--trials", "0"], "--trials 0 is below 1"),
        (["sweep-missing"], "no sweep 'sweep-missing'"),
    ],
)
def test_a_bad_command_line_is_an_error(tmp_path, capsys, words, message):
    assert main(["sweep", *words, "--runs", str(tmp_path)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_help_shows_both_kinds_of_flags(capsys):
    with contextlib.suppress(SystemExit):
        main(["sweep", "cartpole", "--help"])
    out = capsys.readouterr().out
    assert "--early-stop" in out
    assert "--train.learning-rate" in out
    assert "shoal sweep squared --sampler protein" in out


def test_shoal_plot_writes_the_page_of_a_sweep(tmp_path, capsys):
    found = run(tmp_path, trials=6)
    assert main(["plot", str(found.folder)]) == 0
    assert (found.folder / "sweep.html").is_file()
    assert main(["plot", str(found.folder), "--out", str(tmp_path / "x.png")]) == 2
    capsys.readouterr()


def test_equal_shapes_are_known(tmp_path):
    options = api.options_for("cartpole", {"device": "cpu"})
    space = api.make_space("cartpole", options, [{"train": {"gamma": "default", "horizon": "default"}}])
    shapes = [
        Job("a", "cartpole", space.apply(options, values), tmp_path, "0").shape
        for values in ({"train.gamma": 0.9}, {"train.gamma": 0.99}, {"train.horizon": 8})
    ]
    assert shapes[0] == shapes[1] != shapes[2]


def test_a_driver_without_a_screen_works(tmp_path):
    found = run(tmp_path, trials=2, finals=0)
    base = api.options_for("cartpole", found.identity["options"])
    Driver(found, "cartpole", base, SweepOptions(finals=0, on="made-up")).run()
