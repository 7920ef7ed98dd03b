"""The suite: every env has a target, and its table says what was reached."""

from __future__ import annotations

import json

import pytest

from benchmarks import suite as bench
from shoal import registry
from shoal.match.contestants import robots_of
from shoal.native import lib


@pytest.fixture
def suite(monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "suite.jsonl")
    return bench


def add(suite, env, seed, score):
    row = {"env": env, "seed": seed, "device": "cuda", "score": score, "steps": 2_000_000, "seconds": 3.0}
    with suite.RESULTS.open("a") as file:
        file.write(json.dumps(row) + "\n")


def test_every_env_has_a_target_with_a_reason(suite):
    goals = suite.goals()
    assert list(goals) == registry.stock_names()
    for env, goal in goals.items():
        assert goal.why, env
        if goal.against:
            assert goal.against in robots_of(lib.load(registry.find(env)).spec), env


def test_the_table_has_the_newest_run_of_each_seed(suite):
    add(suite, "squared", 1, 0.1)
    add(suite, "squared", 1, 0.858)
    add(suite, "squared", 2, 0.857)
    add(suite, "pong", 1, 17.0)
    lines = {line.split("]")[0][3:]: line for line in suite.table().splitlines()[2:]}
    assert list(lines) == registry.stock_names()
    assert "| 0.858, 0.857 | 2M |" in lines["squared"]
    assert "| 17 **missed** |" in lines["pong"]
    assert "not trained yet" in lines["breakout"]


def test_a_run_that_fails_is_told_and_does_not_end_the_suite(suite, monkeypatch):
    def fail(*arguments):
        raise ValueError("no such option")

    monkeypatch.setattr(suite, "one", fail)
    assert "ValueError: no such option" in suite._work("squared", 1, "cpu")
