"""The screen: its numbers are the run's, it fits every terminal, and it keeps its budget."""

from __future__ import annotations

import io
import itertools
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from shoal.log import base, console
from shoal.log.base import MetricRow
from shoal.log.console import Dashboard, Lines
from shoal.log.frame import chart, frame
from shoal.log.history import POINTS, USUAL_METRICS, History, Series, hint
from tests.demo_dashboard import facts, records

ROOT = Path(__file__).parent.parent
PHASES = ("env", "inference", "copy", "learn", "other")


def history(some, **changes) -> History:
    told = History(facts("runs/breakout/x", **changes))
    for record in some:
        told.add(record)
    return told


def text(told: History, width: int = 110, height: int = 40, done: bool = False) -> str:
    return "\n".join("".join(part for part, _ in line) for line in frame(told, width, height, done))


@pytest.fixture
def clock(monkeypatch):
    """Stands still until it is set forward."""

    class Clock:
        now = 1000.0

    monkeypatch.setattr(base, "now", lambda: Clock.now)
    return Clock


def terminal(width: int = 100, height: int = 40) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=height, highlight=False, markup=False)


# ---- what it shows is what happened ----


def test_speed_agrees_with_the_step_counter():
    some = list(records(300, interval_s=0.1))
    told = history(some)
    first, last = next(r for r in some if r["wall_s"] >= 30 - 10 - 1e-9), some[-1]
    real = (last["step"] - first["step"]) / (last["wall_s"] - first["wall_s"])
    assert told.sps == pytest.approx(real, rel=0.02)
    assert f"{base.human(told.sps)} steps/s" in text(told)


def test_speed_of_a_resumed_run_counts_its_own_steps():
    record = {**next(records(1)), "step": 1_000_000 + 262_144, "wall_s": 60.1}
    assert history([record], resumed_from=1_000_000).sps == pytest.approx(2_621_440)


def test_speed_follows_a_change_within_seconds():
    slow = [{"step": 1000 * k, "wall_s": k, "time/env": 1.0} for k in range(1, 100)]
    fast = [{"step": 99_000 + 5000 * k, "wall_s": 99 + k, "time/learn": 1.0} for k in range(1, 12)]
    told = history(slow + fast)
    assert told.sps == pytest.approx(5000)
    assert told.split()["learn"] == pytest.approx(1.0), "the split is of the last seconds, too"
    assert told.split(whole=True)["env"] == pytest.approx(99 / 110), "and at the end, of the run"


def test_at_the_end_the_speed_is_that_of_the_whole_run():
    some = [{"step": 1000 * k, "wall_s": k, "time/total": 1.0} for k in range(1, 100)]
    told = history([*some, {"step": 99_000 + 50_000, "wall_s": 149.0}], total_steps=149_000)
    assert "1k steps/s" in text(told, done=True)
    told.add({"step": 149_000, "wall_s": 298.0})  # a long evaluation
    assert "500 steps/s" in text(told, done=True)


def test_the_split_sums_to_the_whole():
    some = list(records(200))
    told = history(some)
    assert sum(told.split().values()) == pytest.approx(1.0)
    for phase in PHASES:
        share = sum(r[f"time/{phase}"] for r in some) / sum(r["time/total"] for r in some)
        assert told.split(whole=True)[phase] == pytest.approx(share)
    assert [int(share) for share in re.findall(r"■ \w+ (\d+) %", text(told, done=True))] == [
        round(100 * told.split(whole=True)[phase]) for phase in PHASES
    ]


def test_the_bar_of_the_split_has_the_width_and_the_shares():
    told = history(records(50))
    bar = frame(told, 110, 40)[6][1:-1]
    parts = [part for part, style in bar if style in PHASES]
    assert sum(map(len, parts)) == 106
    for part, share in zip(parts, told.split().values()):
        assert abs(len(part) - 106 * share) <= 1


def test_progress_and_time_left():
    told = history(itertools.islice(records(100), 50), total_steps=100 * 262_144)
    shown = text(told)
    assert "50%" in shown
    assert "13.1M / 26.2M" in shown
    assert told.left_s == pytest.approx(5.0)
    assert "left 5.0s" in shown
    assert "left" not in text(told, done=True)


def test_every_number_is_there():
    (record,) = records(1)
    record["eval/return"] = 321.5
    record |= {"loss/q": 0.0234, "q_played": 17.3, "epsilon": 0.456, "replay_fill": 0.789}  # of Q-learning
    shown = text(history([record, record]))
    for key in (
        *(row.name for row in USUAL_METRICS),
        "episode/return",
        "episode/length",
        "episode/bricks",
        "episode/lives",
        "eval/return",
    ):
        assert base.number(record[key]) in shown, key
    for words in ("breakout", "4,096 envs", "threads x2", "35.1k params", "seed 1", "runs/breakout/x", "cpu 187 %"):
        assert words in shown
    assert "memory 412 MB" in shown


def test_the_rows_are_those_that_the_algorithm_declares():
    rows = (MetricRow("loss/world", "world model", "world"), MetricRow("kl", "KL", "kl"), MetricRow("absent", "absent"))
    record = {"step": 5, "wall_s": 1.0, "kl": 0.25, "loss/world": 1.5, "surprise": 7.25, "episode/return": 1.0}
    told = history([record], metrics=rows)
    assert [row.label for row in told.learning()] == ["world model", "KL", "surprise"], "declared, then by its own name"
    shown = text(told)
    assert re.search(r"world model +1\.500", shown)
    assert re.search(r"surprise +7\.250", shown)
    out = Console(file=io.StringIO(), width=200)
    lines = Lines(told.facts, out)
    lines.log(record)
    assert re.search(r"world +1\.500  kl +0\.2500  left", out.file.getvalue())


def test_a_logged_metric_without_a_declaration_has_a_row():
    (record,) = records(1)
    rows = history([record | {"own": 1.0}]).learning()
    assert [row.label for row in rows if row.name == "own"] == ["own"]
    assert not {row.name for row in rows} & {"step", "sps", "wall_s", "time", "cpu_percent", "episode/return"}


def test_progress_never_exceeds_100_percent():
    out = Console(file=io.StringIO(), width=200)
    lines = Lines(facts("x", total_steps=10_000), out)
    lines.log({"step": 16_384, "wall_s": 1.0})
    assert "16.4k 100%" in out.file.getvalue()
    assert "164%" not in text(history([{"step": 16_384, "wall_s": 1.0}], total_steps=10_000))


@pytest.mark.parametrize(
    ("folder", "named"), [("runs/breakout/{}", "{}"), ("/data/my runs/b/{}", "'/data/my runs/b/{}'")]
)
def test_what_to_type_next_works_wherever_the_run_is(folder, named):
    """Defect 37: `shoal eval ID` finds runs in runs/ only."""
    id = facts("x").id
    out = Console(file=io.StringIO(), width=200)
    Lines(facts(folder.format(id)), out).close(END)
    assert f"Next: shoal eval {named.format(id)} " in out.file.getvalue()


def test_a_run_without_a_checkpoint_is_not_resumed(tmp_path):
    out = Console(file=io.StringIO(), width=200)
    Lines(facts(tmp_path), out).close({**END, "status": "failed", "eval": None})
    assert "--resume" not in out.file.getvalue()
    assert "shoal eval" not in out.file.getvalue()


def test_both_ways_of_choosing_actions_are_in_the_summary():
    out = Console(file=io.StringIO(), width=200)
    greedy, sampled = END["eval"] | {"return": 0.0}, END["eval"] | {"return": 0.9}
    Lines(facts("x"), out).close({**END, "eval": {**greedy, "modes": {"greedy": greedy, "sampled": sampled}}})
    shown = out.file.getvalue()
    assert re.search(r"Return 0 ± .* evaluation episodes, 12 \.\. 640, greedy\.", shown)
    assert re.search(r"Return 0\.9 ± .* evaluation episodes, 12 \.\. 640, sampled actions\.", shown)


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        ({"LANG": "C.UTF-8"}, "476 ± 8"),
        ({"LANG": "C"}, "476 ± 8"),
        ({"LC_ALL": "en_US.UTF-8"}, "476 ± 8"),
        ({"PYTHONIOENCODING": "ascii"}, "476 +- 8"),
        ({"PYTHONIOENCODING": "latin-1"}, "476 ± 8"),
    ],
)
def test_text_is_whole_in_a_pipe(environment, shown):
    """Defect 31: `±` was printed as `?`."""
    code = (
        "from tests.demo_dashboard import facts; from shoal.log import console; logger = console.open(facts('x'));"
        "logger.note('evaluation: return 476 ± 8'); summary = {'step': 1, 'wall_s': 1.0, 'sps': 1.0};"
        "logger.close(summary | {'eval': {'return': 476, 'ci95': 8, 'episodes': 3}})"
    )
    known = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=known | environment, check=True, cwd=ROOT
    )
    out = done.stdout.decode(environment.get("PYTHONIOENCODING", "utf-8"))
    assert f"evaluation: return {shown}" in out
    assert f"{shown} (95 % confidence)" in out.replace("Return ", "")


def test_agents_are_told_where_there_are_several():
    assert "4,096 envs x 3 agents" in text(history(records(2), num_rows=3 * 4096))
    assert "agents" not in text(history(records(2)))


def test_a_stat_whose_name_ends_in_max_is_a_stat():
    told = history([{"step": 1, "episode/tile_max": 2048.0, "episode/score": 3.0, "episode/score_max": 4.0}])
    assert told.stats() == ["episode/tile_max", "episode/score"]


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_what_is_no_number_is_red_and_breaks_nothing(value):
    some = [*records(20)]
    for key in ("loss/policy", "episode/return", "sps"):
        some[-1][key] = value
    told = history(some)
    lines = frame(told, 110, 40)
    bad = [part.strip() for line in lines for part, style in line if style == "bad"]
    assert bad == [str(value).replace("None", "nan")] * 2  # policy loss and return
    assert all(math.isfinite(x) for x in told.returns.values)


def test_keys_may_be_absent():
    for record in ({"step": 5}, {"step": 5, "sps": 3.0}, {"step": 5, "wall_s": 1.0, "episode/return": 2.0}):
        assert "5 / 20M" in text(history([record, record]))
    first = text(history([])).splitlines()
    assert "waiting for the first update" in first[-2], "and no empty lines below"


def test_a_number_stays_until_the_next_one():
    told = history([{"step": 1, "episode/return": 77.7}, {"step": 2}])
    assert "77.70" in text(told)


def test_notes_are_shown_the_newest_last_and_warnings_stand_out():
    told = history(records(3))
    told.notes += [f"note {k}" for k in range(9)]
    told.notes.append("warning: logger wandb is switched off")
    shown = text(told)
    assert "note 8" in shown
    assert "note 3" not in shown
    assert [style for line in frame(told, 110, 40) for part, style in line if "wandb" in part] == ["hint"]


# ---- curves ----


def test_chart_rises_from_the_least_to_the_most():
    assert chart(range(8), 8) == ["▁▂▃▄▅▆▇█"]
    assert chart([0, 1], 4, rows=2) == ["  ▃█", "▁▆██"]
    assert chart([3, 3, 3], 3) == ["▄▄▄"]
    assert chart([], 5) == [""]
    assert chart([90, 100], 2, floor=0) == ["▇█"]


@pytest.mark.parametrize("count", [1, 2, 30, 59, 60, 61, 500])
def test_chart_fills_its_width(count):
    for line in chart([math.sin(k) for k in range(count)], 60, rows=3):
        assert len(line) == 60


def test_a_long_run_keeps_a_bounded_curve_of_all_of_it():
    series = Series()
    for k in range(100_000):
        series.add(float(k))
    assert len(series.values) < POINTS
    assert series.values == sorted(series.values)
    assert series.values[0] < 500
    assert series.values[-1] > 99_000


# ---- hints ----


@pytest.mark.parametrize(
    ("split", "changes", "said"),
    [
        (
            {"env": 0.71},
            {"backend": "process"},
            "env takes 71% of the time: try 'shoal tune breakout', or more --vec.num-w",
        ),
        ({"env": 0.71}, {"backend": "threads"}, "try 'shoal tune breakout'"),
        ({"learn": 0.85}, {}, "fewer --train.epochs, a smaller --nn.hidden, or a GPU"),
        ({"learn": 0.85}, {"device": "cuda:0"}, "fewer --train.epochs, a smaller --nn.hidden"),
        ({"inference": 0.6}, {"num_rows": 8}, "more --vec.num-envs"),
        ({"inference": 0.6}, {}, "a smaller --nn.hidden"),
        ({"copy": 0.4}, {"device": "cuda"}, "more --vec.num-envs"),
        ({"other": 0.5}, {}, "less often"),
        ({"env": 0.5, "learn": 0.5}, {}, ""),
        ({"copy": 0.4}, {}, ""),
        ({}, {}, ""),
    ],
)
def test_a_hint_when_one_phase_dominates(split, changes, said):
    told = hint(facts("x", **changes), split, seconds=10)
    assert said in told
    assert bool(said) == bool(told)
    assert "GPU" not in told or changes.get("device", "cpu") == "cpu"


def test_a_hint_is_whole_on_a_narrow_terminal():
    told = history([{"step": 1, "wall_s": 9.0, "time/learn": 9.0}])
    shown = " ".join(re.sub("[│→]", "", text(told, 60)).split())
    assert hint(told.facts, told.split(), 9.0) in shown


def test_no_hint_before_there_is_something_to_go_by():
    assert hint(facts("x"), {"env": 1.0}, seconds=0.5) == ""


# ---- every terminal ----


@pytest.mark.parametrize("width", [24, 40, 60, 79, 80, 81, 110, 120, 160, 200])
@pytest.mark.parametrize("height", [1, 2, 3, 5, 10, 24, 30, 60])
def test_it_fits(width, height):
    told = history(records(60), env="an-env-with-a-name-that-is-quite-long:Variant-v12")
    told.notes += ["a note " * 30, "漢字 in a note " * 10, "two\nlines"]
    lines = frame(told, width, height)
    assert 1 <= len(lines) <= height
    for line in lines:
        assert cell_len("".join(part for part, _ in line)) == width
        assert "\n" not in "".join(part for part, _ in line)


def test_what_matters_most_stays_on_a_small_terminal():
    shown = text(history(records(60)), 80, 12)
    assert "steps/s" in shown
    assert "■ env" in shown
    assert "return" in text(history(records(60)), 80, 20)


def test_styles_are_all_known():
    told = history(records(60))
    told.notes.append("warning: x")
    known = console.Frame(told).styles
    assert {style for line in frame(told, 160, 60) for _, style in line} <= set(known)


# ---- the budget ----


def test_drawing_stays_under_one_percent(clock, monkeypatch):
    out = terminal()
    board = Dashboard(facts("x"), out)
    drawn = []

    def draw():
        clock.now += 0.004  # what a frame costs
        drawn.append(clock.now)

    monkeypatch.setattr(board, "_draw", draw)
    for record in records(6000, interval_s=0.01):
        clock.now += 0.01
        board.log(record)
    seconds = clock.now - board.began
    assert 0.006 * seconds < 0.004 * len(drawn) <= 0.0101 * seconds, "close to the budget, and never over it"
    assert min(b - a for a, b in itertools.pairwise(drawn)) >= console.FASTEST_S
    monkeypatch.undo()
    board.close(None)


def test_a_cheap_frame_is_drawn_four_times_a_second_at_most(clock, monkeypatch):
    board = Dashboard(facts("x"), terminal())
    drawn = []
    monkeypatch.setattr(board, "_draw", lambda: drawn.append(clock.now))
    for record in records(1000, interval_s=0.01):
        clock.now += 0.01
        board.log(record)
    assert 36 <= len(drawn) <= 40  # in ten seconds
    monkeypatch.undo()
    board.close(None)


def test_no_thread_draws():
    import threading

    before = threading.active_count()
    board = Dashboard(facts("x"), terminal())
    assert threading.active_count() == before
    board.close(None)


# ---- from begin to end ----


END = {
    "status": "finished", "step": 20_000_000, "wall_s": 65.0, "sps": 307_692.0, "reason": "",
    "eval": {"return": 401.25, "ci95": 7.3, "min": 12.0, "max": 640.0, "episodes": 100, "length": 702.0},
}  # fmt: skip


def play(make, summary=END):
    out = terminal(width=120)
    logger = make(facts("runs/breakout/x"), out)
    for record in records(3):
        logger.log(record)
    logger.note("checkpoint saved")
    logger.close(summary)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.file.getvalue())


def test_the_last_numbers_agree_and_are_there_once():
    shown = play(Lines, {**END, "sps": 5.0, "eval": {**END["eval"], "return": 9.4716, "ci95": 0.08236}})
    assert "Finished: 20M steps in 1m05s, 308k steps/s." in shown  # not 5, which has the time of evaluations in it
    assert "Return 9.472 ± 0.082 (95 % confidence)" in shown


def test_an_evaluation_does_not_repeat_the_last_line():
    out = terminal(width=120)
    logger = Lines(facts("x"), out, interval_s=0.0)
    logger.log({"step": 4096, "sps": 5.0, "episode/return": 2.0})
    logger.log({"step": 4096, "eval/return": 3.0})
    logger.close(None)
    assert out.file.getvalue().count("4.1k") == 1


def test_a_run_that_failed_before_its_first_step_claims_no_speed_and_no_curve(tmp_path):
    out = terminal(width=120)
    Lines(facts(tmp_path), out).close({"status": "failed", "step": 0, "wall_s": 0.0, "reason": "a callback raised"})
    shown = out.file.getvalue()
    assert "steps in 0.0s. a callback raised" in shown
    assert "nan" not in shown
    assert "shoal plot" not in shown


@pytest.mark.parametrize("make", [Dashboard, Lines])
def test_the_end_says_what_was_reached_and_what_to_try(make):
    shown = play(make)
    assert "Finished: 20M steps in 1m05s, 308k steps/s." in shown
    assert "Return 401.2 ± 7.3 (95 % confidence) over 100 evaluation episodes, 12 .. 640." in shown
    for command in ("shoal eval", "shoal plot", "shoal train breakout --resume"):
        assert f"{command} 20261115-121500" in shown
    assert "--train.total-steps 40M" in shown
    assert "checkpoint saved" in shown


@pytest.mark.parametrize("make", [Dashboard, Lines])
def test_an_interrupted_run_is_told_how_to_go_on(make):
    shown = play(make, {**END, "status": "interrupted", "step": 5_000_000, "eval": None, "reason": "Ctrl-C."})
    assert "Interrupted: 5M of 20M steps" in shown
    assert "Ctrl-C." in shown
    assert "Next: shoal train breakout --resume 20261115-121500 " in shown
    assert "in the last interval" in shown


@pytest.mark.parametrize("make", [Dashboard, Lines])
def test_a_run_that_broke_off_ends_quietly(make):
    assert "Next" not in play(make, None)


def test_the_cursor_comes_back_and_the_last_frame_stays():
    out = terminal()
    board = Dashboard(facts("x"), out)
    for record in records(80):
        board.log(record)
    board.close(END)
    sent = out.file.getvalue()
    assert sent.rindex("\x1b[?25h") > sent.rindex("\x1b[?25l")
    assert "\x1b[?1049h" not in sent, "no alternate screen"
    assert "21M / 20M" in sent[sent.rindex("╭") :]


def test_lines_come_at_most_every_interval_and_the_last_always(clock):
    out = Console(file=io.StringIO(), width=200)
    lines = Lines(facts("x"), out, interval_s=2.0)
    for record in records(100):
        clock.now += 0.1
        lines.log(record)
    lines.close(None)
    rows = [line for line in out.file.getvalue().splitlines() if "return" in line]
    assert len(rows) in (6, 7)  # ten seconds, and the last
    assert rows[-1].split()[0] == "26.2M"
    assert len({row.index("return") for row in rows}) == 1, "aligned"
    assert out.file.getvalue().isascii()


def test_the_last_line_is_not_said_twice(clock):
    out = Console(file=io.StringIO(), width=200)
    lines = Lines(facts("x"), out)
    lines.log(next(records(1)))
    lines.close(None)
    assert out.file.getvalue().count("return") == 1


def test_lines_where_there_is_no_terminal(monkeypatch, capsys):
    logger = console.open(facts("x"))
    assert isinstance(logger, Lines)
    logger.close(None)

    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm-256color")
    board = console.open(facts("x"))
    assert isinstance(board, Dashboard)
    board.close(None)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(console.open(facts("x")), Lines)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(Terminal, "encoding", "ascii")
    assert isinstance(console.open(facts("x")), Lines), "no block characters there"


def test_a_screenshot_needs_nothing_else(tmp_path):
    console.screenshot(tmp_path / "x.svg", facts("x"), records(50), ["saved"], width=100, height=36)
    svg = (tmp_path / "x.svg").read_text()
    assert svg.startswith("<svg")
    assert "url(" not in re.sub(r"url\(#", "", svg)
    assert "LEARNING" in svg
    assert "saved" in svg
