"""Callbacks by name, those that Shoal ships, and the score of a checkpoint."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.cli.main import main
from shoal.errors import ConfigError
from shoal.runs import find
from shoal.train.callbacks import CALLBACKS, specs
from shoal.train.callbacks.early_stop import EarlyStop
from shoal.train.recent import LatestReturns
from shoal.watch.worker import NOT_NATIVE
from tests.envs import CounterEnv, ImageEnv
from tests.recorder import Recorder
from tests.training import SERIAL, STEPS, summary, train_tiny

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
        ("stop_after(0)", "seconds=0 must be above 0"),
        ("stop_after('1h')", "seconds='1h' must be a number"),
        ("early_stop(0)", "patience=0 must be a number of steps"),
        ("early_stop(1k, min_delta=-1)", "must be a number of at least 0"),
        ("param_schedule('a b', 0, 1)", "must be the name of an env param"),
        ("param_schedule('wind', 0, 1, fraction=2)", "must be a number in"),
        ("video(1k, episodes=0)", "episodes=0 must be an int"),
        ("nowhere_at_all:Class", "nowhere_at_all"),
        ("video:every=1M", r"options stand in brackets. Write it as \"video\(every=1M\)\""),
    ],
)
def test_specs_that_are_wrong_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        specs.find(text)


def test_callbacks_that_docs_and_messages_name_can_be_used():
    root = Path(shoal.__file__).parent
    files = [*(root.parent / "docs").glob("*.md"), root / "watch/page/run.js"]
    texts = [NOT_NATIVE, *(file.read_text() for file in files)]
    named = [found[2] for text in texts for found in re.finditer(r"--callback (['\"])(\w.*?\))\1", text)]
    assert len(named) >= 5
    for text in named:
        specs.find(text)
    assert not [text for text in texts if re.search(r"--callback \w+:\w+=", text)]


def test_all_stock_callbacks_are_in_the_help(capsys):
    assert set(CALLBACKS.stock()) == {"stop_at", "stop_after", "early_stop", "param_schedule", "video"}
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


def test_stop_after_counts_the_seconds_of_all_parts_of_a_run(tmp_path, monkeypatch):
    run = train_tiny("cartpole", tmp_path, callbacks=["stop_after(seconds=1e-9)"])
    assert summary(run)["reason"].startswith("stop_after: ")
    assert summary(run)["step"] == STEPS, "the first iteration is finished"
    assert summary(train_tiny("cartpole", tmp_path, callbacks=["stop_after(seconds=1e6)"]))["reason"] == ""
    before, after = specs.find("stop_after(10)"), specs.find("stop_after(10)")
    now = [100.0]
    monkeypatch.setattr(f"{type(before).__module__}.time.monotonic", lambda: now[0])
    before.on_start(None)
    now[0] += 7.0
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert after.state_dict() == {"seconds": 7.0}, "before its first iteration"
    after.on_start(None)
    now[0] += 2.0
    assert after.state_dict() == {"seconds": 9.0}


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
    assert (latest.count, latest.mean) == (105, pytest.approx((60 + 300) / 105)), "the first 80 are no longer needed"
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
