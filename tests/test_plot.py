"""`shoal plot` and `shoal runs`: seeds become one line, numbers are the records', mistakes name the next move."""

from __future__ import annotations

import importlib.util
import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from shoal import plot, stats
from shoal.cli import plot as plot_verb
from shoal.cli import runs as runs_verb
from shoal.errors import ConfigError
from shoal.runs import Run
from tests.fake_runs import fake_run

needs_matplotlib = pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="matplotlib is not installed")


@pytest.fixture
def root(tmp_path, monkeypatch):
    """The folder of runs of a working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return Path("runs")


def page_data(path: Path) -> dict:
    return json.loads(re.search(r'<script id="data"[^>]*>(.*?)</script>', path.read_text(), re.DOTALL)[1])


# ---- from runs to curves ----


def test_seeds_become_one_line_with_the_least_and_the_most(root):
    runs = [fake_run(root, id=f"r{k}", seed=k, scale=scale) for k, scale in enumerate((1.0, 2.0, 3.0))]
    (curve,) = plot.figure(runs, smooth=0).curves
    assert curve.runs == ("r0", "r1", "r2")
    values = [np.array([r["episode/return"] for r in run.metrics()]) for run in runs]
    steps = np.array([r["step"] for r in runs[0].metrics()])
    at = [np.interp(curve.x, steps, value) for value in values]
    np.testing.assert_allclose(curve.mean, np.mean(at, 0))
    np.testing.assert_allclose(curve.low, np.min(at, 0))
    np.testing.assert_allclose(curve.high, np.max(at, 0))


def test_the_confidence_interval_is_students(root):
    runs = [fake_run(root, id=f"r{k}", scale=scale) for k, scale in enumerate((1.0, 2.0, 3.0))]
    figure = plot.figure(runs, smooth=0, band="ci95")
    (curve,) = figure.curves
    # the three are y, 2y and 3y: mean 2y, standard deviation y, t(2) = 4.30265
    np.testing.assert_allclose(curve.high - curve.mean, 4.30265 * (curve.mean / 2) / np.sqrt(3), rtol=1e-6)
    assert "95 % confidence" in figure.note
    assert "minimum to maximum" in plot.figure(runs).note


def test_students_t_equals_scipys():
    from scipy.stats import t

    for freedom in (*range(1, 40), 100, 1000):
        assert stats.t_975(freedom) == pytest.approx(t.ppf(0.975, freedom), rel=1e-4)


def test_the_confidence_interval_of_a_few_numbers():
    assert stats.ci95([1.0, 2.0, 3.0]) == pytest.approx(4.30265 / np.sqrt(3))
    assert stats.ci95([1.0]) == np.inf


def test_options_that_differ_part_the_lines_and_name_them(root):
    runs = [fake_run(root, id=f"r{k}", seed=k, epochs=2 + 2 * (k // 2)) for k in range(4)]
    curves = plot.figure(runs).curves
    assert [(curve.label, curve.runs) for curve in curves] == [("epochs 2", ("r0", "r1")), ("epochs 4", ("r2", "r3"))]


def run_of_envs(root, id, num_envs, seed=0):
    """A run whose run.json says how many envs it had."""
    run = fake_run(root, id=id, seed=seed)
    (run.folder / "run.json").write_text(json.dumps({**run.facts, "num_envs": num_envs}))
    return Run(run.folder)


def test_the_number_of_envs_parts_the_lines_also_where_shoal_chose_it(root):
    """config.toml says 0, "Shoal chooses", on a machine with few cores and on one with many."""
    runs = [run_of_envs(root, f"r{k}", count, seed=k) for k, count in enumerate((8, 64, 8))]
    curves = plot.figure(runs).curves
    assert [(curve.label, curve.runs) for curve in curves] == [("num_envs 8", ("r0", "r2")), ("num_envs 64", ("r1",))]


def test_an_option_that_was_chosen_equals_the_same_one_that_was_not(root):
    runs = [run_of_envs(root, "a", 1024), run_of_envs(root, "b", 1024)]
    path = runs[1].folder / "config.toml"
    path.write_text(path.read_text() + "[vec]\nnum_envs = 1024\n")
    assert len(plot.figure(runs).curves) == 1


def test_a_label_names_the_number_of_envs_before_many_other_options(root):
    runs = [run_of_envs(root, "a", 8), run_of_envs(root, "b", 64)]
    for number, run in enumerate(runs):
        options = "".join(f"option_{k} = {k + number}\n" for k in range(9))
        (run.folder / "config.toml").write_text(f"[train]\n{options}[vec]\nnum_envs = 0\n")
    labels = [curve.label for curve in plot.figure(runs).curves]
    assert labels[0] == "num_envs 8, option_0 0, option_1 1, option_2 2, option_3 3, option_4 4, +4 options"
    assert labels[1].startswith("num_envs 64, ")


def test_envs_and_algorithms_part_the_lines(root):
    runs = [fake_run(root, "pong", "a"), fake_run(root, "maze", "b"), fake_run(root, "maze", "c", algo="dqn")]
    figure = plot.figure(runs)
    assert [curve.label for curve in figure.curves] == ["pong, ppo", "maze, ppo", "maze, dqn"]
    assert figure.title == "pong, maze"


def test_a_run_counts_once(root):
    run = fake_run(root)
    assert plot.figure([run, run]).curves[0].runs == ("a",)


def test_a_line_ends_where_its_shortest_run_ends(root):
    runs = [fake_run(root, id="a"), fake_run(root, id="b", count=50)]
    (curve,) = plot.figure(runs).curves
    assert curve.x[-1] == runs[1].metrics()[-1]["step"]


def test_a_record_that_is_no_number_is_left_out(root):
    (curve,) = plot.figure([fake_run(root, nan=7)], smooth=0).curves
    assert len(curve.x) == 99
    assert np.isfinite(curve.mean).all()


def test_smoothing_keeps_a_straight_line_straight():
    x = np.linspace(0, 1, 101)
    np.testing.assert_allclose(plot._smooth(x, 3 * x + 1, 10)[1], 3 * x + 1)


def test_smoothing_is_the_mean_of_the_neighbours():
    x, y = np.arange(101.0), np.random.default_rng(0).normal(size=101)
    smooth = plot._smooth(x, y, 10)[1]
    assert smooth[50] == pytest.approx(y[45:56].mean())
    assert smooth[2] == pytest.approx(y[0:5].mean())
    assert (smooth[0], smooth[-1]) == (y[0], y[-1])
    np.testing.assert_array_equal(plot._smooth(x, y, 0)[1], y)


def test_time_on_the_x_axis(root):
    run = fake_run(root)
    (curve,) = plot.figure([run], "entropy", "wall_s", 0).curves
    assert list(curve.x) == [r["wall_s"] for r in run.metrics()]
    assert list(curve.mean) == [r["entropy"] for r in run.metrics()]


@pytest.mark.parametrize(("y", "said"), [("entropi", "Did you mean 'entropy'?"), ("episode/retrun", "episode/return")])
def test_an_unknown_key_is_a_suggestion(root, y, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        plot.figure([fake_run(root)], y)


def test_a_run_without_records_says_so(root):
    run = fake_run(root)
    (run.folder / "metrics.jsonl").write_text("")
    with pytest.raises(ConfigError, match="run a has no records"):
        plot.figure([run])


# ---- files ----


@needs_matplotlib
def test_one_run_is_drawn_into_its_folder(root, capsys):
    run = fake_run(root)
    assert plot_verb.plot(("last",)) == 0
    png = (run.folder / "curves.png").read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    assert (width, height) == (1280, 768)
    assert f"wrote {run.folder / 'curves.html'}" in capsys.readouterr().out


@needs_matplotlib
def test_a_png_shows_the_curves(root):
    """The colours of both lines are in the picture, and only those."""
    from matplotlib.image import imread

    runs = [fake_run(root, id=f"r{k}", seed=k, epochs=2 + 2 * (k // 2)) for k in range(4)]
    plot.write_png(plot.figure(runs), Path("x.png"))
    pixels = np.round(255 * imread("x.png")[..., :3]).astype(int).reshape(-1, 3)
    for colour, wanted in zip(plot.COLOURS, (True, True, False)):
        rgb = [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
        assert ((pixels == rgb).all(1).sum() > 500) == wanted


def test_a_folder_of_runs_is_drawn_here(root, capsys):
    for k in range(3):
        fake_run(root, id=f"r{k}", seed=k)
    assert plot_verb.plot(("runs/breakout",), out=(Path("x.html"),)) == 0
    (curve,) = page_data(Path("x.html"))["curves"]
    assert curve["runs"] == ["r0", "r1", "r2"]
    assert "3 runs in 1 line." in capsys.readouterr().out
    assert plot_verb.plot(("runs", "r1"), out=(Path("y.html"),)) == 0
    assert page_data(Path("y.html")) == page_data(Path("x.html"))


def test_the_page_holds_the_numbers_and_needs_nothing_else(root):
    run = fake_run(root)
    plot.write_html(plot.figure([run], smooth=0), Path("x.html"))
    (curve,) = page_data(Path("x.html"))["curves"]
    assert curve["mean"] == pytest.approx([r["episode/return"] for r in run.metrics()], rel=1e-5)
    text = Path("x.html").read_text()
    assert "{{" not in text
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.search(r"<(link|img|script)[^>]* (src|href)=.(?!data:)", text)


def test_a_name_cannot_break_out_of_the_page(root):
    evil = "</script><script>alert(1)</script>"
    figure = plot.figure([fake_run(root)])
    figure = plot.Figure(evil, "x", "y", evil, (plot.Curve(evil, *[np.arange(3.0)] * 4, runs=("a",)),))
    plot.write_html(figure, Path("x.html"))
    assert "<script>alert" not in Path("x.html").read_text()
    assert page_data(Path("x.html"))["title"] == evil


def test_without_matplotlib_there_is_the_page_and_an_install_line(root, monkeypatch, capsys):
    run = fake_run(root)
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'pip install "shoal\[plot\]"'):
        plot_verb.plot(("a",), out=(Path("x.html"), Path("x.png")))
    assert not Path("x.html").exists(), "raised before anything is written"
    assert plot_verb.plot(("a",)) == 0
    assert (run.folder / "curves.html").is_file()
    assert 'A PNG beside it needs matplotlib: pip install "shoal[plot]"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"out": (Path("x.pdf"),)}, "must end in .png or .html"),
        ({"out": (Path("no/such/x.png"),)}, "cannot be written"),
        ({"smooth": -1.0}, "--smooth -1"),
        ({"smooth": float("nan")}, "--smooth nan"),
    ],
)
def test_mistakes_are_reported(root, options, said):
    fake_run(root)
    with pytest.raises(ConfigError, match=re.escape(said)):
        plot_verb.plot(("a",), **options)


def test_an_unknown_run_is_a_suggestion(root):
    fake_run(root)
    with pytest.raises(ConfigError, match="Did you mean 'breakout'"):
        plot_verb.plot(("breakot",))


# ---- shoal runs ----


def test_each_run_is_a_row(root, capsys):
    evaluation = {"return": 487.25, "ci95": 1.0, "min": 1, "max": 500, "episodes": 100, "length": 487}
    run = fake_run(root, "cartpole", "20261115-120000", seed=7, eval=evaluation)
    assert runs_verb.list_runs() == 0
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if line.startswith("20261115"))
    returns = [r["episode/return"] for r in run.metrics()]
    words = row.split()
    assert words[:6] == ["20261115-120000", "cartpole", "ppo", "7", "finished", "26.2M"]
    assert words[6:11] == [f"{returns[-1]:.1f}", f"{max(returns):.1f}", "487.2", "2.62M", "10s"]
    assert "shoal plot 20261115-120000" in out


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"status": "finished"}, "finished"),
        ({"status": "interrupted"}, "interrupted"),
        ({"status": "failed"}, "failed"),
        ({"status": None}, "running"),  # by this very process
        ({"status": None, "pid": 2**22 + 1}, "killed"),  # more than a pid can be
    ],
)
def test_status(root, capsys, more, status):
    fake_run(root, **more)
    runs_verb.list_runs(json=True)
    assert json.loads(capsys.readouterr().out)["status"] == status


def test_sorted_filtered_and_for_machines(root, capsys):
    fake_run(root, "maze", "a", scale=2.0, started="2026-11-15T12:00:01")
    fake_run(root, "gymnasium:CartPole-v1", "b", scale=1.0, started="2026-11-15T12:00:02")
    fake_run(root, "maze", "c", scale=0.5, started="2026-11-15T12:00:03")

    def ids(**options):
        runs_verb.list_runs(json=True, **options)
        return [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()]

    assert ids() == ["a", "b", "c"]
    assert ids(sort="best") == ["c", "b", "a"]
    assert ids(env="maze") == ["a", "c"]
    assert ids(env="gymnasium:CartPole-v1") == ["b"]
    with pytest.raises(ConfigError, match="Did you mean 'maze'"):
        runs_verb.list_runs(env="mase")


def test_a_run_that_has_only_begun_is_listed(root, capsys):
    run = fake_run(root, status=None)
    (run.folder / "metrics.jsonl").unlink()
    (run.folder / "config.toml").unlink()
    for options in ({}, {"sort": "return"}, {"sort": "wall_s"}):
        assert runs_verb.list_runs(**options) == 0
    assert "running" in capsys.readouterr().out


@pytest.mark.parametrize("width", [70, 80, 120])
def test_the_table_fits(root, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    fake_run(root, "breakout", "20261115-120000", status="interrupted")
    runs_verb.list_runs(sort="sps")
    out = capsys.readouterr().out.splitlines()
    assert len(out[0]) <= width
    assert {"id", "env", "status", "steps", "return", "steps/s"} <= set(out[0].split())
    assert "…" not in "".join(out)
    assert "shoal train breakout --resume 20261115-120000" in "".join(out)


def test_none_yet_says_how_to_make_one(root, capsys):
    assert runs_verb.list_runs() == 0
    assert "shoal train cartpole" in capsys.readouterr().out
    assert runs_verb.list_runs(json=True) == 0
    assert capsys.readouterr().out == ""
