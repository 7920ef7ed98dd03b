"""Several seeds: one run for each, one after the other or side by side, and one summary with an interval over seeds."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

from shoal.cli.main import main
from shoal.cores import available_cores
from shoal.errors import ConfigError, TrainingError
from shoal.runs import find
from shoal.seed_groups import SeedGroup, all_groups, parse_seeds, summarize
from shoal.stats import ci95
from shoal.train import many_seeds, session, train_seeds
from shoal.train.session import Stopped
from tests.fake_runs import fake_run
from tests.training import contents, cut, tiny, train_tiny

needs_two_cores = pytest.mark.skipif(available_cores() < 2, reason="seeds side by side need two cores")
FLAGS = (
    "--vec.num-envs 16 --train.horizon 8 --train.minibatches 2 --train.total-steps 512 --eval.episodes 0 --nn.hidden 16"
)


def tables(**more):
    return {**tiny(train={"total_steps": 256}), **more}


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    """Two seeds of cartpole, one after the other."""
    return train_seeds("cartpole", [3, 5], runs_folder=tmp_path_factory.mktemp("runs"), console="off", **tables())


# ---- one after the other ----


def test_each_seed_is_the_run_that_train_makes_with_it(group, tmp_path):
    assert list(group.runs) == [3, 5]
    alone = train_tiny("cartpole", tmp_path, seed=5, train={"total_steps": 256})
    assert contents(group.runs[5]) == contents(alone)
    assert contents(group.runs[3]) != contents(alone)


def test_the_summary_has_every_seed_and_the_mean_with_its_interval(group):
    facts = json.loads((group.folder / "seeds.json").read_text())
    scores = [row["score"] for row in facts["results"]]
    assert [row["seed"] for row in facts["results"]] == [3, 5]
    assert facts["status"] == "finished"
    assert facts["mean"] == pytest.approx(sum(scores) / 2)
    assert facts["ci95"] == pytest.approx(ci95(scores))
    assert facts["steps"] == 512
    assert group.scores == dict(zip([3, 5], scores))
    assert (group.mean, group.ci95) == (facts["mean"], facts["ci95"])


def test_the_score_is_that_of_the_evaluation_if_there_is_one(tmp_path):
    evaluated = fake_run(tmp_path, id="a", eval={"return": 7.5, "mode": "sampled", "ci95": 0.5})
    only_trained = fake_run(tmp_path, id="b")
    facts = summarize([1, 2, 3], {1: evaluated, 2: only_trained}, {})
    first, second, third = facts["results"]
    assert (first["score"], first["score_by"]) == (7.5, "sampled return in the final evaluation")
    assert second["score"] == only_trained.metrics()[-1]["episode/return"]
    assert (third["status"], third["score"]) == ("waiting", None)
    assert facts["n"] == 2


def test_the_summary_of_one_seed_has_no_interval(tmp_path):
    facts = summarize([1], {1: fake_run(tmp_path, eval={"return": 7.5})}, {})
    assert (facts["mean"], facts["ci95"], facts["n"]) == (7.5, None, 1)


def test_the_command_prints_the_summary(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    words = f"train cartpole --seeds 2 {FLAGS} --device cpu --runs {tmp_path} --console lines".split()
    assert main(words) == 0
    out = capsys.readouterr().out
    (made,) = all_groups(tmp_path)
    assert made.seeds == [1, 2]
    assert "seed 2: finished" in out
    assert "100 %: return" in out
    assert "95 % interval over 2 seeds" in out
    assert str(made.folder / "seeds.json") in out
    assert made.facts["command"] == sys.argv


def test_a_seed_that_fails_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    iterate = session.Trainer.iterate

    def fail_seed_1(trainer):
        iterate(trainer)
        if trainer.options.seed == 1:
            raise TrainingError("the loss is not finite.")

    monkeypatch.setattr(session.Trainer, "iterate", fail_seed_1)
    words = f"train cartpole --seeds 1 2 {FLAGS} --device cpu --runs {tmp_path} --console off".split()
    assert main(words) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "1 of 2 seeds failed: 1. Seed 1: TrainingError: the loss is not finite" in said
    (made,) = all_groups(tmp_path)
    assert [row["status"] for row in made.facts["results"]] == ["failed", "finished"]
    assert made.facts["status"] == "failed"


def test_a_stop_ends_all_seeds_and_resume_continues_the_unfinished_ones(tmp_path, monkeypatch, capsys, group):
    """Seed 3 finishes, seed 5 is stopped by Ctrl-C after an iteration; the resumed group is bit-exact."""
    iterate = session.Trainer.iterate

    def stop_seed_5(trainer):
        iterate(trainer)
        if trainer.options.seed == 5:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(session.Trainer, "iterate", stop_seed_5)
        with pytest.raises(Stopped) as stopped:
            train_seeds("cartpole", [3, 5, 7], runs_folder=tmp_path, console="off", **tables())
    (made,) = all_groups(tmp_path)
    assert stopped.value.run.folder == made.folder
    assert [row["status"] for row in made.facts["results"]] == ["finished", "interrupted", "waiting"]
    assert made.facts["status"] == "interrupted"
    words = f"train cartpole --seeds 3 5 7 --resume --runs {tmp_path} --console off --device cpu".split()
    before = (made.runs[3].folder / "summary.json").stat().st_mtime_ns
    assert main(words) == 0
    made = SeedGroup(made.folder)
    assert [row["status"] for row in made.facts["results"]] == ["finished"] * 3
    assert (made.runs[3].folder / "summary.json").stat().st_mtime_ns == before  # not trained again
    assert contents(made.runs[5]) == contents(group.runs[5])
    assert made.runs[7].config["train"]["total_steps"] == 256  # options of the group, not of the env
    assert len(all_groups(tmp_path)) == 1


def test_a_group_is_no_run(group, capsys):
    root = group.folder.parent.parent
    for name in (group.id, f"cartpole/{group.id}", str(group.folder)):
        assert main(["eval", name, "--runs", str(root)]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert f"is a group of seeds, not one run. Name one of its runs: {group.run_id(3)}, {group.run_id(5)}." in said


def test_a_group_is_continued_by_its_name_and_takes_new_seeds(tmp_path):
    made = train_seeds("cartpole", 1, runs_folder=tmp_path, console="off", **tables())
    cut(made.runs[1], 1)
    assert main(["train", "--resume", made.id, "--runs", str(tmp_path), "--console", "off"]) == 0
    assert made.is_finished
    words = f"train --seeds 1 9 --resume {made.id} --runs {tmp_path} --console off".split()
    assert main(words) == 0
    more = train_seeds("cartpole", [1, 9], resume="last", runs_folder=tmp_path, console="off")
    assert more.folder == made.folder
    assert list(more.runs) == [1, 9]
    assert more.runs[9].config["train"]["total_steps"] == 256


def test_every_seed_starts_from_the_weights_of_init(group, tmp_path):
    made = train_seeds("cartpole", 2, init=group.runs[3], runs_folder=tmp_path, console="off", **tables())
    assert all(run.facts["init"]["not_loaded"] == [] for run in made.runs.values())


# ---- mistakes ----


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--seeds 1 2 --seed 3", "--seed and --seeds are mutually exclusive"),
        ("--seeds 4 4", "seed 4 is given twice"),
        ("--seeds 0", "--seeds 0 is a number of seeds: it must be in 1 .. 10000"),
        ("--seeds 1 -2", "seed -2 must be an int in 0 .."),
        ("--parallel 2", "--parallel is for several seeds"),
        ("--seeds 2 --parallel 0", "--parallel 0 must be an int of at least 1"),
        ("--seeds 2 --parallel 4096", "--parallel 4096 needs as many cores; this process may use"),
        ("--seeds 2 --resume nowhere", "has no group of seeds by that name"),
        ("--seeds 2 --init nowhere", "--init nowhere: no run 'nowhere'"),
        ("--seeds 2 --train.horizon 0", "horizon"),
        ("--seeds 2 --env.gravty 1", "gravty"),
    ],
)
def test_mistakes_are_errors_before_any_work(tmp_path, capsys, words, message):
    root = tmp_path / "runs"
    fake_run(root, id="old")
    assert main(["train", "cartpole", *words.split(), "--runs", str(root), "--device", "cpu"]) == 2
    captured = capsys.readouterr()
    assert message in " ".join((captured.err + captured.out).replace("│", " ").split())
    assert not all_groups(root)
    assert not (root / "cartpole").exists()


def test_a_mistake_that_only_training_finds_leaves_no_folders(tmp_path):
    with pytest.raises(ConfigError, match="surplus"):
        train_seeds(
            "cartpole", 2, runs_folder=tmp_path, console="off", **tables(vec={"num_envs": 8, "surplus_envs": 4})
        )
    assert not list(tmp_path.iterdir())


def test_seeds_are_for_training_only(capsys):
    assert main(["bench", "train", "cartpole", "--seeds", "2"]) == 2
    assert "--seeds is for 'shoal train'" in capsys.readouterr().err


def test_seeds_from_python_are_checked():
    assert parse_seeds(3) == [1, 2, 3]
    assert parse_seeds((7, 8)) == [7, 8]
    assert parse_seeds(np.int64(2)) == [1, 2]
    assert json.dumps(parse_seeds(np.arange(3, 5))) == "[3, 4]"
    for wrong in ([], ["1"], [1.5], [True], 0, "3"):
        with pytest.raises(ConfigError):
            parse_seeds(wrong)
    with pytest.raises(ConfigError, match="mutually exclusive"):
        train_seeds("cartpole", 2, seed=4)


# ---- side by side ----


FAKE = """
import json, os, signal, sys, time
from pathlib import Path

log = Path(os.readlink("/proc/self/fd/1"))  # .../<time>-seeds/seed-<n>.log
seed, stop = int(log.stem.partition("-")[2]), []
if seed == 5:  # a real one
    os.execv(sys.executable, [sys.executable, "-m", "shoal.train.seed_worker"])
if seed == 15:
    (log.parent / "starting").touch()
    time.sleep(60)
signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
if seed == 13:
    print("ConfigError: no such thing. Use another.")
    sys.exit(2)
folder = log.parents[1] / f"{log.parent.name.removesuffix('s')}{seed}"
folder.mkdir()
(folder / "run.json").write_text("{}")
record = {"step": 64, "wall_s": 1.0, "sps": 64.0, "episode/return": 2.0}
(folder / "metrics.jsonl").write_text(json.dumps(record) + "\\n")
if seed == 12:
    os.kill(os.getpid(), signal.SIGKILL)
if seed == 11:
    print("some output")
    print("TrainingError: the loss is NaN")
    sys.exit(1)
while seed == 10 and not stop:
    time.sleep(0.02)
status = "interrupted" if stop else "finished"
(folder / "summary.json").write_text(json.dumps({"status": status, "step": 64, "wall_s": 1.0}))
sys.exit(143 if stop else 0)
"""


@pytest.fixture
def fake_worker(tmp_path, monkeypatch):
    """Processes that only pretend to train, which is fast; that of seed 5 is a real one.

    10 waits for Ctrl-C, 11 fails, 12 is killed, 13 has a bad option, 15 is still starting.
    """
    script = tmp_path / "worker.py"
    script.write_text(FAKE)
    monkeypatch.setattr(many_seeds, "WORKER", (str(script),))
    monkeypatch.setattr(many_seeds, "POLL_S", 0.02)
    return tmp_path / "runs"


@needs_two_cores
def test_side_by_side_gives_the_run_of_one_seed_on_cores_of_its_own(fake_worker, group, capfd):
    before = os.sched_getaffinity(0)
    made = train_seeds("cartpole", [1, 5], parallel=2, runs_folder=fake_worker, console="lines", **tables())
    assert os.sched_getaffinity(0) == before
    run = made.runs[5]
    assert contents(run) == contents(group.runs[5])
    assert run.facts["machine"]["cores"] == available_cores() // 2
    assert run.facts["command"] == sys.argv
    assert made.facts["status"] == "finished"
    out = capfd.readouterr().out
    cores = [line.partition("cores ")[2] for line in out.splitlines() if "starting" in line]
    assert len({*cores}) == len(cores) > 0  # a line for each that the display saw starting: never the same cores
    assert "Mean score" in out


@needs_two_cores
def test_side_by_side_failures_are_named_and_the_rest_is_trained(fake_worker, capfd):
    said = r"2 of 3 seeds failed: 11, 12\. Seed 11: TrainingError: the loss is NaN\. Seed 12: killed by SIGKILL\."
    with pytest.raises(TrainingError, match=said):
        train_seeds("cartpole", [11, 12, 1], parallel=2, runs_folder=fake_worker, console="lines", **tables())
    (made,) = all_groups(fake_worker)
    assert {row["seed"]: row["status"] for row in made.facts["results"]} == {11: "failed", 12: "failed", 1: "finished"}
    assert (made.facts["n"], made.facts["ci95"]) == (1, None)  # the mean is over seeds that finished
    assert "seed 12 failed: killed by SIGKILL" in capfd.readouterr().out


@needs_two_cores
def test_side_by_side_a_mistake_in_the_options_ends_all(fake_worker):
    with pytest.raises(ConfigError, match=r"^no such thing\. Use another\.$"):
        train_seeds("cartpole", [13, 14], parallel=2, runs_folder=fake_worker, console="off", **tables())


@needs_two_cores
def test_side_by_side_ctrl_c_stops_all_with_checkpoints(fake_worker):
    def press() -> None:
        for name in ("*-seed10/metrics.jsonl", "*-seeds/starting"):
            while not list(fake_worker.glob(f"cartpole/{name}")):
                time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(Stopped, match=r"stopped by SIGINT; resume with --resume .*-seeds"):
        train_seeds("cartpole", [10, 15, 2], parallel=2, runs_folder=fake_worker, console="off", **tables())
    presser.join()
    (made,) = all_groups(fake_worker)
    statuses = [(row["seed"], row["status"], row["reason"]) for row in made.facts["results"]]
    assert statuses == [(10, "interrupted", ""), (15, "waiting", ""), (2, "waiting", "")]  # 15 was only starting
    assert made.facts["status"] == "interrupted"
    assert not made.is_running
    assert find(made.runs[10].folder).summary["status"] == "interrupted"
