"""Ranges say what is wrong with them, samplers depend on results alone, a curve stops where others were better."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import pytest

pytest.importorskip("optuna")

from shoal import registry
from shoal.errors import ConfigError
from shoal.sweep import api, curves, page, ranges, report, store
from shoal.sweep.options import SweepOptions
from shoal.sweep.ranges import Range, read
from shoal.sweep.samplers import SAMPLERS
from shoal.sweep.samplers.protein import pareto_front, prune
from shoal.sweep.space import make_space, over
from shoal.sweep.store import Trial
from shoal.sweep.suggest import suggest
from shoal.train import options_for
from shoal.train.options import tuned

# ---- ranges ----


@pytest.mark.parametrize(
    ("written", "is_int", "expected"),
    [
        ("log(1e-4, 1e-2)", False, Range("log", 1e-4, 1e-2)),
        ("{log = [1e-4, 1e-2]}", False, Range("log", 1e-4, 1e-2)),
        ({"uniform": [0, 1]}, False, Range("uniform", 0.0, 1.0)),
        ({"uniform": [1, 8]}, True, Range("uniform", 1, 8, is_int=True)),
        ({"logit": [0.9, 0.999]}, False, Range("logit", 0.9, 0.999)),
        ({"pow2": [8, 128]}, True, Range("pow2", 8, 128, is_int=True)),
        ({"integer": [1, 5]}, False, Range("integer", 1, 5, is_int=True)),
        ("choice(adam, muon)", False, Range("choice", choices=("adam", "muon"))),
        ({"choice": [True, False]}, False, Range("choice", choices=(True, False))),
        (
            {"distribution": "log_normal", "min": 1e7, "max": 1e9, "mean": 1e8},
            True,
            Range("log", 10**7, 10**9, is_int=True),
        ),
        ({"distribution": "uniform_pow2", "min": 16, "max": 64}, False, Range("pow2", 16, 64, is_int=True)),
    ],
)
def test_ranges_are_read(written, is_int, expected):
    part = read(written, is_int, "x")
    assert part == expected
    assert read(str(part), is_int, "x") == part


@pytest.mark.parametrize(
    ("written", "is_int", "message"),
    [
        ("3", False, "x = '3' is not a range. Write {log = "),
        (0.1, False, "x = 0.1 is not a range"),
        ("lgo(1, 2)", False, "no kind of range 'lgo'. Did you mean 'log'"),
        ({"log": [1, 2], "uniform": [0, 1]}, False, "must have one kind"),
        ({"log": [0, 1]}, False, "above 0"),
        ({"log": 1}, False, "must be a list"),
        ({"uniform": [1, 1]}, False, "below the highest"),
        ({"uniform": [2, 1]}, False, "below the highest"),
        ({"uniform": [0, 1, 2]}, False, "two numbers"),
        ({"uniform": ["a", 1]}, False, "two numbers"),
        ({"uniform": [0, math.inf]}, False, "two numbers"),
        ({"uniform": [0.5, 3]}, True, "whole numbers"),
        ({"logit": [0, 1]}, False, "between 0 and 1"),
        ({"pow2": [3, 64]}, True, "powers of two"),
        ({"choice": ["a"]}, False, "at least two"),
        ({"choice": ["a", "a"]}, False, "twice"),
        ({"distribution": "normal", "min": 0, "max": 1}, False, "PufferLib's are uniform"),
        ({"distribution": "uniform", "min": 0}, False, "min and max"),
        ({"distribution": "uniform", "low": 0, "max": 1}, False, "no key 'low'"),
    ],
)
def test_a_bad_range_says_what_is_wrong(written, is_int, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        read(written, is_int, "x")


@pytest.mark.parametrize(
    "text", ["log(1e-5, 0.1)", "logit(0.9, 0.9999)", "pow2(8, 128)", "integer(1, 9)", "uniform(0, 2)"]
)
def test_samplers_see_a_straight_axis_and_runs_get_the_value(text):
    part = read(text, False, "x")
    low, high = part.ends
    assert (low, high) == (pytest.approx(part.low), pytest.approx(part.high))
    for value in (low, high):
        assert part.outward(part.inward(value)) == pytest.approx(value)
        assert part.inner()._contains(part.inner().to_internal_repr(part.inward(value)))
        assert part.outer()._contains(part.outer().to_internal_repr(part.outward(part.inward(value))))
        assert part.holds(part.outward(part.inward(value)))
    assert not part.holds(1e9)
    assert part.nearest(1e9) == part.high


# ---- the space ----


@pytest.fixture(scope="module")
def cartpole():
    return options_for("cartpole", {"device": "cpu"})


def test_without_ranges_the_declared_ones_are_used(cartpole):
    space = make_space("cartpole", cartpole, [])
    assert set(space) == {
        f"train.{n}" for n in "horizon minibatches learning_rate gamma gae_lambda clip value_coef entropy_coef".split()
    }
    assert set(make_space("cartpole", cartpole, [{"train": {"clip": "off"}}])) == set(space) - {"train.clip"}
    dqn = make_space("cartpole", options_for("cartpole", {"algo": "dqn", "device": "cpu"}), [])
    assert "train.replay_ratio" in set(dqn)


def test_layers_of_ranges_override_each_other(cartpole):
    below = {"train": {"gamma": {"logit": [0.9, 0.99]}, "clip": {"uniform": [0.1, 0.3]}}, "trials": 7}
    above = {"train": {"gamma": {"min": 0.95}, "clip": "off", "learning-rate": "default"}, "nn": {"hidden": "default"}}
    space = make_space("cartpole", cartpole, [below, above])
    assert space.as_texts() == {
        "train.gamma": "logit(0.95, 0.99)",
        "train.learning_rate": "log(1e-05, 0.1)",
        "nn.hidden": "log(32, 1024)",
    }
    assert over({"train": {"a": 1}}, {"train": {"b": 2}}) == {"train": {"a": 1, "b": 2}}
    assert api.settings([below, {"trials": 9, "sampler": "random"}]).trials == 9


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"train": {"gama": "log(1e-3, 1)"}}, "sweep.train.gama: no such option. Did you mean 'gamma'"),
        ({"tarin": {"gamma": "log(1e-3, 1)"}}, "sweep.tarin: no such table. Did you mean 'train'"),
        ({"eval": {"episodes": "integer(1, 9)"}}, "sweep.eval: no such table"),
        ({"train": {"gamma": "uniform(0, 2)"}}, "2 is above 1, the highest value"),
        ({"train": {"epochs": "integer(0, 4)"}}, "0 is below 1, the lowest value"),
        ({"train": {"epochs": "default"}}, "declares no range"),
        ({"train": {"optimizer": "uniform(0, 1)"}}, "not a number. Use choice"),
        ({"train": {"optimizer": "choice(adam, sgd)"}}, "Choices: adam"),
        ({"train": {"normalize_obs": "choice(1, 2)"}}, "must be bool"),
        ({"env": {"gravty": "uniform(1, 2)"}}, "Did you mean 'gravity'"),
    ],
)
def test_a_bad_space_says_what_is_wrong(cartpole, layer, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_space("cartpole", cartpole, [layer])


def test_settings_of_a_sweep_table_are_checked():
    with pytest.raises(ConfigError, match=r"sweep\.trails\. Did you mean 'trials'"):
        api.settings([{"trails": 9}])
    with pytest.raises(ConfigError, match="sampler"):
        api.settings([{"sampler": "tpee"}])


def test_values_become_options_of_a_run(cartpole):
    space = make_space("cartpole", cartpole, [{"train": {"gamma": "default"}, "env": {"gravity": "uniform(5, 15)"}}])
    options = space.apply(cartpole, {"train.gamma": 0.95, "env.gravity": 7.0})
    assert (options.train.gamma, options.env["gravity"]) == (0.95, 7.0)
    assert dataclasses.replace(options.train, gamma=cartpole.train.gamma) == cartpole.train


def test_a_segment_follows_a_swept_horizon():
    options = options_for("memory", {"device": "cpu", "nn": {"core": "lstm"}})
    space = make_space("memory", options, [{"train": {"horizon": "pow2(2, 128)"}}])
    assert all(space.apply(options, {"train.horizon": size}).train.segment <= size for size in (2, 8, 64))


@pytest.mark.parametrize("env", [name for name in registry.stock_names() if "sweep" in tuned(name)])
def test_the_sweep_tables_of_stock_envs_hold(env):
    options = options_for(env, {"device": "cpu"})
    layers = api.layers_of(env, options, {})
    api.settings(layers)
    space = make_space(env, options, layers)
    outside = [name for name, value in space.values_of(options).items() if not space.ranges[name].holds(value)]
    assert not [name for name in outside if name != "train.entropy_coef"], outside  # 0 has no logarithm


# ---- samplers ----


@pytest.fixture(scope="module")
def plane():
    parts = {
        "train.a": Range("log", 1e-4, 1.0),
        "train.b": Range("logit", 0.5, 0.999),
        "train.c": Range("pow2", 1, 64, is_int=True),
    }
    return api.Space({**parts, "train.d": Range("choice", choices=("x", "y", "z"))})


def score_of(values):
    near = (math.log10(values["train.a"]) + 2.0) ** 2 + (ranges._logit(values["train.b"]) - 3.0) ** 2 / 4
    return -near - (math.log2(values["train.c"]) - 3) ** 2 / 9 - (values["train.d"] != "y")


def play(space, sampler, seed, count, goal="score"):
    trials = []
    for number in range(count):
        values = suggest(space, trials, number, sampler=sampler, seed=seed, goal=goal)
        trials.append(Trial(number, "finished", values, score_of(values), 1.0 + values["train.c"] / 8, 1000))
    return trials


@pytest.mark.parametrize("sampler", [pytest.param(n, marks=[pytest.mark.slow] * (n == "gp")) for n in SAMPLERS.names()])
def test_a_sampler_depends_on_results_seed_and_number_alone(plane, sampler):
    trials = play(plane, "random", 1, 12)
    trials[4] = Trial(4, "failed", trials[4].values)
    trials[7] = Trial(7, "running", trials[7].values)
    first = suggest(plane, trials, 12, sampler=sampler, seed=1)
    assert suggest(plane, list(trials), 12, sampler=sampler, seed=1) == first
    assert suggest(plane, trials, 12, sampler=sampler, seed=2) != first
    assert all(part.holds(first[name]) for name, part in plane.ranges.items())


@pytest.mark.parametrize("sampler", ["tpe", pytest.param("protein", marks=pytest.mark.slow)])
def test_a_model_finds_better_values_than_chance(plane, sampler):
    def best(name):
        return sum(max(trial.score for trial in play(plane, name, seed, 22)) for seed in (1, 2, 3))

    assert best(sampler) > best("random")


def test_auto_asks_gp_when_trials_are_long(plane):
    trials = play(plane, "random", 1, 12)
    long = [dataclasses.replace(trial, seconds=60.0) for trial in trials]
    assert suggest(plane, trials, 12, sampler="auto", seed=1) == suggest(plane, trials, 12, sampler="tpe", seed=1)
    assert suggest(plane, long, 12, sampler="auto", seed=1) == suggest(plane, long, 12, sampler="gp", seed=1)


def test_protein_is_a_sampler_of_any_study():
    import optuna

    from shoal.sweep.samplers.protein import ProteinSampler

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(directions=["minimize", "minimize"], sampler=ProteinSampler(seed=1))

    def objective(trial):
        x, layers = trial.suggest_float("x", -5, 5), trial.suggest_int("layers", 1, 8)
        return (x - 2) ** 2 + abs(layers - 3), float(layers)

    study.optimize(objective, n_trials=16)
    assert min(trial.values[0] for trial in study.trials) < 1.5


def test_the_front_of_score_and_cost():
    import numpy as np

    scores, costs = np.array([1.0, 3.0, 2.0, 3.0, 3.01]), np.log(np.array([1.0, 4.0, 5.0, 3.0, 50.0]))
    assert list(pareto_front(scores, costs)) == [0, 3, 4]
    assert list(prune(scores, costs, pareto_front(scores, costs))) == [0, 3]  # 0.01 more for 17 times the cost


# ---- curves ----


def test_the_threshold_is_a_quantile_at_equal_cost():
    rising = [[[100.0 * k, k, float(k * slope)] for k in range(1, 11)] for slope in range(1, 11)]
    assert curves.threshold(rising, 500, 0.5, "steps") == pytest.approx(27.5)
    assert curves.threshold(rising, 5, 0.5, "seconds") == pytest.approx(27.5)
    assert curves.threshold(rising, 1e9, 0.0, "steps") is None
    assert curves.threshold(rising, 50, 0.5, "steps") is None  # nobody had a point yet
    assert curves.threshold(rising[:4], 500, 0.5, "steps") is None  # too few
    stopped = [curve[:3] if k < 3 else curve for k, curve in enumerate(rising)]  # keep their best
    assert curves.threshold(stopped, 1000, 0.25, "steps") == pytest.approx(9 + 0.25 * 31)


# ---- results ----


def a_sweep(folder, trials=()):
    parts = {"train.learning_rate": Range("log", 1e-4, 1.0), "train.gamma": Range("logit", 0.5, 0.999)}
    identity = {"env": "cartpole", "sampler": "random", "goal": "score", "cost": "steps", "early_stop": 0.0}
    facts = {"identity": identity, "trials": len(trials), "settings": {"finals": 0, "final_seeds": 1}}
    sweep = store.create("cartpole", folder, "test", facts, api.Space(parts))
    for values, result, attrs in trials:
        trial = sweep.add_trial(values, {"seed": 1})
        sweep.finish_trial(trial, result, attrs)
    return sweep


def values_of(rate, gamma=0.9):
    return {"train.learning_rate": rate, "train.gamma": gamma}


def test_trials_are_ranked_and_the_front_is_found(tmp_path):
    results = [(1.0, 1.0), (5.0, 3.0), None, (5.0, 2.0), (4.0, 9.0)]
    trials = [(values_of(10.0**-k, 0.6 + k / 20), result, {"steps": 10}) for k, result in enumerate(results)]
    sweep = a_sweep(tmp_path, trials)
    read = sweep.trials()
    assert [trial.number for trial in report.ranked(read)] == [3, 1, 4, 0]
    assert [trial.number for trial in report.pareto(read)] == [0, 3]
    assert store.Sweep(sweep.folder).trials() == read  # as another process sees them
    assert store.find("sweep-test", tmp_path).folder == sweep.folder
    with pytest.raises(ConfigError, match="no sweep 'sweep-tset'.*Did you mean 'sweep-test'"):
        store.find("sweep-tset", tmp_path)


def test_an_incomplete_line_of_the_journal_is_removed(tmp_path):
    sweep = a_sweep(tmp_path, [(values_of(0.1), (1.0, 1.0), {})])
    with (sweep.folder / store.JOURNAL).open("ab") as file:
        file.write(b'{"op_code": 4, "worker')  # the machine crashed here
    again = store.Sweep(sweep.folder)
    assert len(again.trials()) == 1
    again.add_trial(values_of(0.2), {})
    assert len(store.Sweep(sweep.folder).trials()) == 2


def test_the_page_holds_everything(tmp_path):
    trials = [(values_of(10.0 ** (-k / 4), 0.5 + k / 30), (float(k % 5), 1.0 + k), {"steps": 10}) for k in range(12)]
    trials.append((values_of(1e-4), None, {"reason": "NaN </script><b>"}))
    sweep = a_sweep(tmp_path, trials)
    page.write_html(sweep, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "{{" not in text.partition("<script")[0]
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
    data = json.loads(re.search(r'type="application/json">(.*?)</script>', text)[1])
    assert len(data["trials"]) == 13
    assert sum(data["importance"].values()) == pytest.approx(1.0)
    assert data["importance"]["train.learning_rate"] > 0
    assert data["trials"][12]["reason"] == "NaN </script><b>"


def test_options_of_a_sweep():
    assert SweepOptions(sampler="protein").cost_unit == "seconds"
    assert SweepOptions().cost_unit == "steps"
    assert SweepOptions(sampler="protein", cost="steps").cost_unit == "steps"
