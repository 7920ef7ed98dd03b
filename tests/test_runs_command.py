"""`shoal runs` filters, sorts, compares, deletes and prunes."""

from __future__ import annotations

import json
import shutil
import time

import pytest

from shoal.cli import run_rows
from shoal.cli.main import main
from shoal.cli.run_rows import Filters, describe, parse_time, select
from shoal.errors import ConfigError
from shoal.runs import Run
from shoal.runs import create as make_run
from shoal.seed_groups import create
from tests.fake_runs import fake_run


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path / "runs"


@pytest.fixture
def three(root):
    """a: maze, old, evaluated 5; b: cartpole, dqn, failed; c: maze, epochs 9, evaluated 8."""
    fake_run(root, "maze", "a", eval={"return": 5.0}, started="2026-01-01T12:00:00", count=5)
    fake_run(root, "cartpole", "b", algo="dqn", status="failed", started="2026-02-01T12:00:00", count=5)
    now = time.strftime("%Y-%m-%dT%H:%M:%S")
    fake_run(root, "maze", "c", seed=3, epochs=9, eval={"return": 8.0, "ci95": 0.5}, started=now, count=5)
    return root


def ids(capsys, *words):
    assert main(["runs", "--json", *words]) == 0
    return [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()]


# ---- filter and sort ----


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", "a b c"),
        ("--env maze", "a c"),
        ("--status failed", "b"),
        ("--algo dqn", "b"),
        ("--min-score 6", "b c"),  # b has no evaluation: its last return in training counts
        ("--since 7d", "c"),
        ("--since 2026-01-15", "b c"),
        ("--where train.epochs=9", "c"),
        ("--where train.epochs!=9", "a b"),
        ("--where train.epochs<9 seed=0", "a b"),
        ("--where train.epochs>=4 --env maze", "a c"),
        ("--where train.epochs=5", ""),
        ("--limit 2", "b c"),
        ("--sort eval", "b a c"),
        ("--sort seed --env maze", "a c"),
    ],
)
def test_filters(three, capsys, words, expected):
    assert ids(capsys, *words.split()) == expected.split()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--env mase", "no runs of 'mase'. Did you mean 'maze'? There are runs of cartpole, maze."),
        ("--algo pppo", "no runs with --algo 'pppo'. Did you mean 'ppo'?"),
        ("--where train.epoch=3", "no run has that option. Did you mean 'train.epochs'?"),
        ("--where epochs", "--where 'epochs' is not NAME=VALUE"),
        ("--since yesterday", "--since yesterday is neither an age nor a date"),
        ("--limit 0", "--limit 0 must be at least 1"),
    ],
)
def test_mistakes_in_filters(three, capsys, words, message):
    assert main(["runs", *words.split()]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_count_is_compared_as_a_number(root, capsys):
    run = fake_run(root, id="a", count=3)
    (run.folder / "config.toml").write_text('device = "cpu"\n[train]\ntotal_steps = 20000000\nvtrace = true\n')
    assert ids(capsys, "--where", "train.total-steps=20M", "device=cpu", "train.vtrace=True") == ["a"]
    assert ids(capsys, "--where", "train.total_steps<20M") == []


def test_no_match_is_said(three, capsys):
    assert main(["runs", "--status", "killed"]) == 0
    assert "No such runs in runs/." in capsys.readouterr().out


def test_ages_and_dates():
    assert parse_time("2h", "--since") == pytest.approx(time.time() - 7200, abs=5)
    assert parse_time("1.5d", "--since") == pytest.approx(time.time() - 129600, abs=5)
    assert parse_time("2026-11-01", "--since") == time.mktime((2026, 11, 1, 0, 0, 0, 0, 0, -1))


def test_the_return_is_found_without_parsing_every_record(root):
    """The same values as from the parsed records, also with null returns and a last line that is cut."""
    run = fake_run(root, id="a", count=12, nan=11, status=None)
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "episode/return": 99999')
    returns = [record["episode/return"] for record in run.metrics() if record["episode/return"] is not None]
    row = describe(run)
    assert (row["return"], row["best"]) == (returns[-1], max(returns))
    assert row["step"] == run.metrics()[-1]["step"]


def test_filters_read_no_metrics_of_other_runs(three, monkeypatch):
    described = []
    monkeypatch.setattr(run_rows, "describe", lambda run: described.append(run.id) or describe(run))
    select(three, Filters(env="maze", where=["train.epochs=9"]))
    assert described == ["c"]


def test_groups_of_seeds_are_listed_with_their_mean(three, capsys):
    group = create("maze", [1, 2], three, algo="ppo")
    for seed, value in ((1, 10.0), (2, 20.0)):
        fake_run(three, "maze", group.run_id(seed), seed=seed, eval={"return": value}, count=5)
    group.update("finished")
    assert main(["runs", "--env", "maze"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(group.id))
    assert line.split()[1:7] == ["maze", "finished", "2/2", "15", "±", "63.53"]
    assert main(["runs", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["group"] for line in lines if "group" in line] == [group.id] * 2
    (listed,) = [line for line in lines if line.get("kind") == "seeds"]
    assert (listed["mean"], listed["seeds"]) == (15.0, [1, 2])
    assert group.id not in ids(capsys, "--env", "cartpole")


def test_an_interrupted_group_of_seeds_is_continued_as_a_whole(three, capsys):
    group = create("maze", [1, 2], three)
    started = "2999-01-01T12:00:00"
    fake_run(three, "maze", group.run_id(1), seed=1, status="interrupted", started=started, count=5)
    assert main(["runs"]) == 0
    assert f"shoal train --resume {group.id} " in capsys.readouterr().out


def test_a_group_of_seeds_is_drawn_as_one_line(three, capsys):
    group = create("maze", [1, 2], three)
    for seed in (1, 2):
        fake_run(three, "maze", group.run_id(seed), seed=seed, count=5)
    assert main(["plot", group.id, "--out", "x.html"]) == 0
    assert "of 2 runs in 1 line." in " ".join(capsys.readouterr().out.split())


# ---- compare ----


def test_compare_shows_what_differs_and_the_results(three, capsys):
    assert main(["runs", "compare", "a", "c"]) == 0
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert lines["train.epochs"] == ["4", "9"]
    assert lines["seed"] == ["0", "3"]
    assert lines["evaluation"] == ["5", "8", "±", "0.5000"]
    assert "env" not in lines
    assert main(["runs", "compare", "a", "b", "c", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["options"]["env"] == ["maze", "cartpole", "maze"]
    assert data["results"]["eval"] == [5.0, None, 8.0]


def test_equal_runs_are_said_to_be_equal(three, capsys):
    fake_run(three, "maze", "d", count=5)
    assert main(["runs", "compare", "a", "d"]) == 0
    assert "All options are equal." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a"], "1 run to compare. Name two or more: shoal runs compare a c"),
        (["last"], "1 run to compare. Name two or more: shoal runs compare last b"),
        ([], "0 runs to compare. Name two or more: shoal runs compare c b"),
        (["a", "a"], "run a is named twice"),
        (["a", "nothing"], "no run 'nothing'"),
    ],
)
def test_mistakes_in_comparisons(three, capsys, words, message):
    assert main(["runs", "compare", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("word", ["last", "auto"])
def test_no_run_has_the_name_of_a_word_that_finds_others(tmp_path, word):
    """`shoal.load("last")` would load another run, and its checkpoints could only be found by their folder."""
    with pytest.raises(ConfigError, match=f"run_id '{word}' is a word that names other runs"):
        make_run("maze", tmp_path, word)
    assert not list(tmp_path.iterdir())
    assert make_run("maze", tmp_path, "best").id == "best"


# ---- delete ----


def left(root):
    return sorted(path.parent.name for path in root.glob("*/*/run.json"))


def test_named_runs_are_deleted_and_the_space_is_said(three, capsys):
    size = sum(path.stat().st_size for path in (three / "maze" / "a").iterdir())
    assert main(["runs", "delete", "a", "runs/cartpole/b", "--yes", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["deleted"] == ["runs/maze/a", "runs/cartpole/b"]
    assert facts["bytes"] > size
    assert left(three) == ["c"]
    assert not (three / "maze" / "a").exists()


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("--status failed", "a c"),
        ("--older-than 7d", "c"),
        ("--older-than 7d --env maze", "b c"),
        ("--where train.epochs=9", "a b"),
        ("c a --where train.epochs=9", "a b"),
        ("--algo ppo", "b"),
    ],
)
def test_runs_are_deleted_by_filters(three, capsys, words, kept):
    assert main(["runs", "delete", *words.split(), "--yes"]) == 0
    assert left(three) == kept.split()
    assert "are free" in capsys.readouterr().out


@pytest.mark.parametrize(("answer", "kept"), [("y", ["b", "c"]), ("n", ["a", "b", "c"]), ("", ["a", "b", "c"])])
def test_it_asks_first(three, capsys, monkeypatch, answer, kept):
    asked = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda text: asked.append(text) or answer)
    assert main(["runs", "delete", "a"]) == (0 if answer == "y" else 1)
    assert asked[0].startswith("Delete 1 run and free ")
    assert left(three) == kept
    assert "maze" in capsys.readouterr().out  # the runs are shown before the question


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a"], "Add --yes"),
        ([], "no runs are named"),
        (["maze", "--yes"], "'maze' is an env. Name runs by their ids, or mean all its runs with --env maze."),
        (["zzz", "--yes"], "no run 'zzz'"),
        (["--env", "mase", "--yes"], "Did you mean 'maze'?"),
    ],
)
def test_mistakes_delete_nothing(three, capsys, words, message):
    assert main(["runs", "delete", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert left(three) == ["a", "b", "c"]


def test_a_run_that_is_being_trained_is_never_deleted(three, capsys):
    run = Run(three / "maze" / "a")
    with run.lock():
        assert main(["runs", "delete", "c", "a", "--yes"]) == 2
        assert "run a is being trained. Stop it first: nothing was deleted." in capsys.readouterr().err
        assert left(three) == ["a", "b", "c"]
        assert main(["runs", "delete", "--env", "maze", "--yes"]) == 0
        assert "a is being trained: it is kept" in capsys.readouterr().out
    assert left(three) == ["a", "b"]


def test_a_deletion_that_is_cut_short_can_be_repeated(three, monkeypatch, capsys):
    """run.json goes last, so that what is left is still listed."""
    (three / "maze" / "a" / "checkpoints" / "x").mkdir(parents=True)
    remove = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", lambda path, **more: (_ for _ in ()).throw(OSError(13, "Permission denied")))
    assert main(["runs", "delete", "a", "--yes"]) == 1
    assert "cannot be deleted: Permission denied" in capsys.readouterr().out
    assert left(three) == ["a", "b", "c"]
    monkeypatch.setattr(shutil, "rmtree", remove)
    assert main(["runs", "delete", "a", "--yes"]) == 0
    assert left(three) == ["b", "c"]


def test_a_group_of_seeds_is_deleted_with_its_last_run(three):
    group = create("maze", [1, 2], three)
    for seed in (1, 2):
        fake_run(three, "maze", group.run_id(seed), seed=seed, count=5)
    assert main(["runs", "delete", group.run_id(1), "--yes"]) == 0
    assert group.folder.is_dir()
    assert main(["runs", "delete", group.id, "--yes"]) == 0
    assert not group.folder.exists()
    assert left(three) == ["a", "b", "c"]


# ---- prune ----


def test_prune_keeps_the_best_and_the_last_checkpoint(three, capsys):
    folder = three / "maze" / "a" / "checkpoints"
    for step in (100, 200, 300, 400):
        (folder / f"{step:012d}").mkdir(parents=True)
        (folder / f"{step:012d}" / "meta.json").write_text("{}")
    (folder / "best.json").write_text('{"checkpoint": "000000000200"}')
    with Run(three / "maze" / "a").lock():  # it is being trained
        assert main(["runs", "prune", "--yes"]) == 0
    assert len(list(folder.glob("0*"))) == 4
    assert "No checkpoints to delete" in capsys.readouterr().out
    assert main(["runs", "prune", "--yes", "--json"]) == 0
    assert [int(path.name) for path in sorted(folder.glob("0*"))] == [200, 400]
    assert json.loads(capsys.readouterr().out)["bytes"] == 4


def test_an_unknown_status_from_python_is_an_error(three):
    with pytest.raises(ConfigError, match="--status finishd. Did you mean 'finished'?"):
        select(three, Filters(status="finishd"))


# ---- on a narrow terminal ----


def test_the_tables_fit_on_80_columns(root, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    env = "/home/somebody/projects/with/a/long/name/mine.py:Harbour"
    numbers = {"mean": 81.93, "ci95": 232.6, "min": 10.8, "max": 188.0, "n": 1, "steps": 24_600}
    folder = create(env, [1], root, **numbers).folder
    fake_run(root, folder.parent.name, folder.name.replace("-seeds", "-seed1"), eval={"return": 5.0}, count=5)
    run_json = folder.parent / folder.name.replace("-seeds", "-seed1") / "run.json"
    run_json.write_text(json.dumps({**json.loads(run_json.read_text()), "env": env}))
    assert main(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    tables = [line for line in lines if "mine.py" in line]
    assert len(tables) == 2  # the run and the group: the end of the name is kept, and all numbers are whole
    assert all(line.count("…") == 1 and "…" in line.split()[1] for line in tables)
    assert "± 232.6" in tables[1]


def test_runs_of_one_second_have_ids_of_their_own(root, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda *_: "20260101-120000")
    assert [make_run(env, root).id for env in ("maze", "cartpole")] == ["20260101-120000", "20260101-120000-1"]
