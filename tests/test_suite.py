"""The suite: every env has a target, and its table says what was reached."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from shoal import config, registry
from shoal.match.contestants import robots_of
from shoal.native import build, lib
from shoal.train import options_for
from shoal.train import train as train_run
from shoal.web import build as web
from tests.pool_work import attempt
from tests.scripts import script

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import env_peers
import suite as bench
import suite_pool
import trials


@pytest.fixture
def suite(monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "suite.jsonl")
    return bench


def add(suite, env, seed, score, **more):
    row = {"env": env, "seed": seed, "device": "cuda", "score": score, "steps": 2_000_000, "seconds": 3.0, **more}
    with suite.RESULTS.open("a") as file:
        file.write(json.dumps(row) + "\n")


def test_every_env_has_a_target_with_a_reason(suite):
    goals = suite.goals()
    assert list(goals) == registry.stock_names()
    for env, goal in goals.items():
        assert goal.why, env
        if goal.against:
            assert goal.against in robots_of(lib.load(registry.find(env)).spec), env


def test_every_env_has_options_for_a_gpu():
    """Without a table [cuda] a GPU would train with the number of envs and the steps of a CPU."""
    for env in registry.stock_names():
        tables = config.read_toml(registry.STOCK / f"{env}.toml")["cuda"]
        assert {"total_steps", "horizon", "minibatches", "learning_rate"} <= set(tables["train"]), env
        assert tables["vec"]["num_envs"] >= options_for(env, {"device": "cpu"}).vec.num_envs, env


def test_the_table_has_the_newest_run_of_each_seed(suite):
    add(suite, "squared", 1, 0.1)
    add(suite, "squared", 1, 0.858)
    add(suite, "squared", 2, 0.857)
    add(suite, "pong", 1, 17.0)
    lines = {line.split("]")[0][3:]: line for line in suite.table().splitlines()[2:] if line.startswith("| [")}
    assert list(lines) == registry.stock_names()
    assert "| 0.858, 0.857 | 2M |" in lines["squared"]
    assert "| 17 **missed** |" in lines["pong"]
    assert "not trained yet" in lines["breakout"]


def test_the_table_has_times_and_only_the_newest_options(suite):
    add(suite, "squared", 1, 0.1, version="old")
    add(suite, "squared", 2, 0.2, version="old")
    new = {"version": "new", "jobs": 14, "gpu": "NVIDIA H200"}
    add(suite, "squared", 1, 0.858, reached_s=0.4, call="08:00", ended_s=500.0, **new)
    add(suite, "squared", 3, 0.859, reached_s=0.6, call="08:10", ended_s=60.0, **new)
    text = suite.table()
    assert "| 0.858, 0.859 | 2M | 0.4 to 0.6 | 3.0 |" in text
    assert "1 of 53 targets are reached by all seeds that were trained; 2 runs." in text
    assert "They took 500 s and 60 s (560 s in all) of wall time, 14 runs at a time on NVIDIA H200." in text
    add(suite, "pong", 1, 20.0, trial="another rate")
    text = suite.table()
    assert "2 of them took 500 s and 60 s (560 s in all) of wall time" in text
    assert "1 are trials (`benchmarks/trials.py`)" in text


def test_runs_on_a_cpu_have_a_table_of_their_own(suite):
    add(suite, "squared", 1, 0.858, version="new")
    machine = {"machine": {"cpu": "A CPU", "cores": 2}, "jobs": 2, "train_s": 7.0}
    add(suite, "squared", 1, 0.86, device="cpu", reached_s=3.0, **machine)
    add(suite, "pong", 1, 17.0, device="cpu", reached_s=None, **machine)
    assert "| 0.858 | 2M |" in suite.table()
    assert "17" not in next(line for line in suite.table().splitlines() if "[pong]" in line)
    rows = suite.cpu_table().splitlines()[2:]
    assert rows[0] == "| [pong](envs/pong.md) | 18 | 17 (below) | 2M |  | 7.0 |"
    assert rows[1] == "| [squared](envs/squared.md) | 0.85 | 0.86 | 2M | 3.0 | 7.0 |"
    assert rows[-1] == "1 of 2 targets are reached. 2 runs at a time: A CPU, 2 cores."


def test_the_table_has_the_params_with_which_an_env_is_easier_than_its_own(suite):
    table = suite.table()
    lines = {line.split(" ")[1]: line for line in table[table.index("| what the target is |") :].splitlines()[2:]}
    assert list(lines) == registry.stock_names()
    assert lines["maze"].endswith("(side=9) |")
    assert "side=7, centered=1, boxes=2, hardness=0, pulls=integers(1, 30), max_steps=60) |" in lines["sokoban"]
    assert suite.played("flappy") == suite.played("overcooked") == ""  # their schedules end with the env's own params


def test_a_line_that_was_cut_off_is_left_out(suite):
    add(suite, "squared", 1, 0.858)
    with suite.RESULTS.open("a") as file:
        file.write('{"env": "squa')
    assert [line["score"] for line in suite.read(suite.RESULTS)] == [0.858]


def test_the_target_is_reached_when_as_many_episodes_as_envs_have_its_mean(suite):
    def record(step, games, score):
        return {"step": step, "wall_s": step / 100, "episode/n": games, "episode/return": score}

    records = [record(1, 2, 1.0), record(2, 8, 0.0), record(3, 6, 1.0), record(4, 4, 1.0), record(5, 10, 1.0)]
    assert suite.first_reached(records, 0.9, 10) == {"reached_s": 0.04, "reached_steps": 4}
    assert suite.first_reached(records[:3], 0.9, 10) == {"reached_s": None, "reached_steps": None}


def test_missing_leaves_out_runs_of_the_same_code_and_options(suite, monkeypatch, tmp_path):
    seen = []

    def run_all(tasks, work, jobs, limit_s, shared_cores):
        seen.append([task.name for task in tasks])
        yield tasks[0].name, "ValueError: no such option"
        for task in tasks[1:]:
            env, seed, device, _ = task.arguments
            yield (
                task.name,
                {"env": env, "seed": seed, "device": device, "score": 1.0, "steps": 1, "train_s": 1.0, "seconds": 1.0},
            )

    monkeypatch.setattr(suite_pool, "run_all", run_all)
    add(suite, "pong", 1, 20.0)  # of another version
    add(suite, "squared", 1, 0.86, version=suite.version("squared"))
    out = tmp_path / "out.jsonl"
    assert suite.run_suite(["squared", "pong"], [1, 2], "cuda", 1, missing=True, out=out) == [("pong", 1)]
    assert seen[0] == [("pong", 1), ("squared", 2), ("pong", 2)]
    assert suite.run_suite(["squared", "pong"], [1, 2], "cuda", 1, missing=True, out=out) == [("pong", 1)]
    assert seen[1] == [("pong", 1)]


def test_runs_that_take_longest_start_first(suite, monkeypatch):
    seen = []
    monkeypatch.setattr(suite_pool, "run_all", lambda tasks, *_, **__: iter(seen.extend(tasks) or ()))
    add(suite, "pong", 1, 20.0, train_s=2.0, steps=120_000_000)  # today 60M
    add(suite, "squared", 1, 0.86, train_s=2.0, steps=20_000_000)
    suite.run_suite(["pong", "squared", "maze"], [1], "cuda", 1)
    assert [(task.name[0], task.seconds) for task in seen] == [("maze", float("inf")), ("squared", 3.0), ("pong", 2.0)]


def test_a_target_may_take_fewer_steps_than_the_options(suite):
    """connect4's options are for a bar far above its target: the suite trains as many steps as that takes."""
    goal = suite.goals("cuda")["connect4"]
    shipped = options_for("connect4", {"device": "cuda"}).train.total_steps
    assert suite.given(goal) == {"train": {"total_steps": goal.total_steps}}
    assert 0 < goal.total_steps < shipped
    assert suite.given(suite.goals("cpu")["connect4"]) == {}
    add(suite, "connect4", 1, 0.9, train_s=2.0, steps=2 * goal.total_steps)
    assert suite.expected("connect4", "cuda", suite.newest()) == 2.0


@pytest.mark.parametrize(("env", "words"), [("squared", "mean return 0.5"), ("connect4", "wins 50% of its games")])
def test_agents_that_the_suite_keeps_can_play_on_pages(env, words, tmp_path, monkeypatch):
    """The kept folder has no optimizer and no metrics; scripts/site --keep needs none."""
    if web.find_zig() is None and web.find_module(build.Source.env(registry.find(env))) is None:
        pytest.skip("needs zig")
    goal = bench.goals("cuda")[env]
    train = {"total_steps": 512, "horizon": 32, "minibatches": 1, "epochs": 1}
    how = {"device": "cpu", "eval": {"episodes": 0}, "vec": {"num_envs": 8}, "train": train}
    run = train_run(env, console="off", runs_folder=tmp_path / "runs", **how)
    kept = bench.keep_run(run, goal, 0.5, tmp_path / "kept")
    assert not [*kept.rglob("state*"), *kept.rglob("metrics*")]
    site = script("site")
    monkeypatch.setattr(site, "ROOT", tmp_path)
    monkeypatch.setattr(site, "AGENTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["site", "--keep", env, "--runs", str(tmp_path / "kept"), "--where", "a GPU"])
    assert site.main() == 0
    assert json.loads((tmp_path / f"{env}.json").read_text())["command"].startswith(f"shoal train {env} --seed 1")
    assert words in site.frame(env, 1)
    assert bench.keep_run(run, goal, 0.5, tmp_path / "kept") == kept


def test_scores_of_a_gpu_leave_out_opponents(tmp_path, monkeypatch):
    """The prey of tag is a robot: what it loses is not the predators' score."""
    train = {"total_steps": 512, "horizon": 16, "minibatches": 1, "epochs": 1}
    how = {"device": "cpu", "eval": {"episodes": 0}, "vec": {"num_envs": 8}, "train": train}
    run = train_run("tag", console="off", runs_folder=tmp_path, **how)
    monkeypatch.setattr("shoal.make", lambda **options: SimpleNamespace(close=lambda: None))
    games = (np.array([[8.0, 8.0, 8.0, -8.0], [6.0, 6.0, 6.0, -6.0]]), None, 0)
    monkeypatch.setattr("shoal.match.device.play_on_device", lambda *_: games)
    assert bench.evaluate(run, 2, "cuda") == 7.0


def test_seeds_of_an_env_wait_until_its_first_run_has_compiled(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(suite_pool.time, "perf_counter", lambda: clock[0])
    names = [("craftax", 1), ("craftax", 2), ("go", 1), ("go", 2)]
    queue = suite_pool.Queue([suite_pool.Task(name, (), 50.0, group=name[0]) for name in names])
    begun = [queue.next(600.0), queue.next(600.0)]
    assert [task.name for task in begun] == [("craftax", 1), ("go", 1)]
    clock[0] = 20.0
    queue.note(begun[1], 20.0)
    assert queue.expected_s(queue.tasks[1]) == 20.0
    assert queue.next(30.0).name == ("go", 2)  # craftax is not expected to end in 30 s
    assert queue.next(30.0) is None
    assert queue.next(600.0).name == ("craftax", 2)  # nothing else is left


def tasks_of(folder, *names, seconds=0.0):
    return [suite_pool.Task(name, (str(folder), name), seconds) for name in names]


def test_runs_that_fail_or_die_are_tried_again_and_do_not_end_the_others(tmp_path):
    names = ("dies", "fails once", "good", "fine")
    results = list(suite_pool.run_all(tasks_of(tmp_path, *names), attempt, 2))
    assert [result for name, result in results if name == "dies"] == ["its process ended with exit code 9"] * 2
    first, second = (result for name, result in results if name == "fails once")
    assert "ValueError: not yet" in first
    assert second == "fails once, try 2"
    assert ("good", "good, try 1") in results
    assert ("fine", "fine, try 1") in results


def test_a_limit_of_time_ends_what_hangs_and_begins_nothing_that_would_not_end(tmp_path):
    tasks = [*tasks_of(tmp_path, "long", seconds=100.0), *tasks_of(tmp_path, "good", "hangs")]
    assert list(suite_pool.run_all(tasks, attempt, 1, limit_s=3.0)) == [("good", "good, try 1")]
    assert not (tmp_path / "long").exists()
    assert (tmp_path / "hangs").exists()


FAKE_MPS = """#!/bin/sh
[ -d "$CUDA_MPS_PIPE_DIRECTORY" ] || exit 3
if [ "$1" = -d ]; then
    [ -e "$0.runs" ] && echo "An instance of this daemon is already running" && exit 1
    touch "$0.runs"
    sleep 30 &  # keeps its output open, as a daemon may
    echo $! > "$0.pid"
else
    read word && [ "$word" = quit ] && rm "$0.runs"
fi
"""


def test_mps_runs_for_the_suite_and_ends_with_it(monkeypatch, tmp_path):
    program = tmp_path / suite_pool.MPS
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(suite_pool.tempfile, "gettempdir", lambda: str(tmp_path))
    with suite_pool.mps(True) as is_on:
        assert not is_on, "it is not installed"
    program.write_text(FAKE_MPS)
    program.chmod(0o755)
    with suite_pool.mps(True) as is_on:
        assert is_on
        assert Path(f"{program}.runs").exists()
        assert "CUDA_MPS_PIPE_DIRECTORY" in os.environ
    assert not Path(f"{program}.runs").exists()
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    Path(f"{program}.runs").touch()
    with suite_pool.mps(True) as is_on:
        assert is_on, "that of a suite that was cut off"
    with suite_pool.mps(False) as is_on:
        assert not is_on
    os.kill(int(Path(f"{program}.pid").read_text()), signal.SIGTERM)


def test_a_run_has_the_score_that_train_reports(suite):
    from shoal.train import train

    short = {"train": {"total_steps": 60_000}}
    row = suite.one("squared", suite.Goal(-1.0), 1, "cpu", short)
    folder, episodes = str(suite.RESULTS.parent), {"episodes": suite.EPISODES}
    run = train("squared", seed=1, device="cpu", console="off", eval=episodes, runs_folder=folder, **short)
    assert row["score"] == run.summary["eval"]["return"]
    assert row["steps"] == run.summary["step"]
    assert row["reached_s"] is not None


def test_the_page_has_the_newest_speeds_of_each_env_and_its_peers(monkeypatch, tmp_path):
    page, results = tmp_path / "suite.md", tmp_path / "env_peers.jsonl"
    page.write_text("<!-- Written by benchmarks/env_peers.py -->\nold\n<!-- The end of what env_peers.py writes. -->\n")
    facts = {"machine": {"cpu": "a CPU", "date": "2026-11-18T07:00"}, "versions": {"envpool": "1.2"}}
    for ours in (1e6, 2e6):
        speeds = {"shoal": [ours, 3 * ours, 2 * ours], "EnvPool Go9x9-v1": [5300, 5300, 5300]}
        record = {
            "steps_per_s": speeds,
            "ratios": {"EnvPool Go9x9-v1": (1234.0, 4.56, 7e3)},
            "choosing": {},
            "clock": "perf_counter",
        }
        with results.open("a") as file:
            file.write(json.dumps({**facts, "envs": {"go": record}}) + "\n")
    monkeypatch.setattr(env_peers, "PAGE", page)
    monkeypatch.setattr(env_peers, "RESULTS", results)
    env_peers.write_page()
    assert "Env steps per second on one core of a CPU (2026-11-18)" in page.read_text()
    assert "| go | 4 M | EnvPool Go9x9-v1 | 5.3 k | 1,234 (4.6 to 7,000) |" in page.read_text()
    assert "old" not in page.read_text()


def test_the_trials_have_names_of_their_own_and_options_that_exist():
    found = trials.read(trials.FILE, [], [])
    assert len({trial.name for trial in found}) == len(found)
    for trial in found:
        options_for(trial.env, {"device": "cpu"}, trial.options)
    assert {trial.env for trial in trials.read(trials.FILE, ["craftax", "door"], [1, 5])} == {
        "craftax_classic",
        "minigrid_doorkey",
    }
    assert trials.read(trials.FILE, ["doorkey"], [1, 5])[0].seeds == [5]


def test_a_trial_trains_with_its_options():
    table = {"name": "short", "env": "squared", "stats": ["length"], "train": {"total_steps": 20_000}, "episodes": 7}
    trial = trials.Trial.read(table)
    row = trials.work(trial, 3, "cpu", False)
    assert (row["trial"], row["seed"], row["score"]) == ("short", 3, None)
    assert 20_000 <= row["steps"] < 60_000
    assert f"length={row['stats']['length']:.3g}" in trials.describe(trial, row)
