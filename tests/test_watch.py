"""`shoal watch`: what it reads, what it serves, whom it refuses; nothing in a run's folder harms it or is executed."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from shoal.cli import watch as command
from shoal.errors import ConfigError
from shoal.log.base import RunFacts
from shoal.log.history import History
from shoal.runs import Run
from shoal.watch import compare, curves, files, index, panels
from shoal.watch.background import Background
from shoal.watch.server import Server, Watch

from .fake_runs import fake_run
from .hostile_runs import hostile_runs


@pytest.fixture
def served(tmp_path):
    """A server of tmp_path/runs."""
    (tmp_path / "runs").mkdir()
    server = Server(Watch(tmp_path / "runs"))
    yield server
    server.close()


def ask(server: Server, path: str, **headers: str) -> tuple[int, Any, str]:
    """Status, headers and text of a request with the token in a cookie."""
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}")
    for name, value in {"Cookie": f"shoal-watch-{server.port}={server.token}", **headers}.items():
        if value:
            request.add_header(name.replace("_", "-"), value)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.headers, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode(errors="replace")


def names(found: dict[str, Any]) -> list[str]:
    return sorted(found["runs"])


# ---- the index ----


def test_rows_are_those_of_the_runs(tmp_path):
    run = fake_run(tmp_path, "breakout", "a", seed=3, eval={"return": 7.5, "ci95": 0.5})
    fake_run(tmp_path, "pong", "b", status="failed")
    fake_run(tmp_path, "pong", "c", status=None, pid=2**22 + 1)
    rows = index.Index(files.Root(tmp_path)).changes()["runs"]
    row, last = rows["breakout/a"], [r for r in run.metrics() if "episode/return" in r][-1]
    assert (row["env"], row["seed"], row["status"], row["eval"], row["eval_ci95"]) == (
        "breakout",
        3,
        "finished",
        7.5,
        0.5,
    )
    assert row["return"] == last["episode/return"]
    assert row["step"] == run.summary["step"]
    assert (rows["pong/b"]["status"], rows["pong/c"]["status"]) == ("failed", "killed")


def test_a_page_gets_what_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(index, "REST_S", 0.0)
    for id in "ab":
        fake_run(tmp_path, id=id)
    known = index.Index(files.Root(tmp_path))
    version = known.changes()["version"]
    assert names(known.changes(version)) == []
    fake_run(tmp_path, id="c")
    Run(tmp_path / "breakout" / "a").write("summary.json", {"status": "failed"})
    shutil.rmtree(tmp_path / "breakout" / "b")
    found = known.changes(version)
    assert names(found) == ["breakout/a", "breakout/c"]
    assert found["gone"] == ["breakout/b"]
    assert found["runs"]["breakout/a"]["status"] == "failed"


def test_a_run_is_running_while_it_is_locked(tmp_path, monkeypatch):
    monkeypatch.setattr(index, "REST_S", 0.0)
    run = fake_run(tmp_path, status=None, pid=2**22 + 1)
    known = index.Index(files.Root(tmp_path))
    with run.lock():
        found = known.changes()
        assert found["runs"]["breakout/a"]["status"] == "running"
        version = found["version"]
        with (run.folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 987654321, "wall_s": 5.0, "episode/return": 42.0}\n{"step": 98')
        row = known.changes(version)["runs"]["breakout/a"]
        assert (row["step"], row["return"]) == (987654321, 42.0)  # without the half of a line
    run.write("summary.json", {"status": "interrupted"})
    assert known.changes()["runs"]["breakout/a"]["status"] == "interrupted"


def test_a_file_that_comes_in_the_same_moment_is_seen(tmp_path, monkeypatch):
    """The time of a folder does not tell two changes apart that are near to each other."""
    monkeypatch.setattr(index, "REST_S", 0.0)
    run = fake_run(tmp_path, status=None, pid=2**22 + 1)
    known = index.Index(files.Root(tmp_path))
    known.changes()
    before = run.folder.stat()
    run.write("summary.json", {"status": "failed"})
    os.utime(run.folder, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert known.changes()["runs"]["breakout/a"]["status"] == "failed"


def test_many_runs_come_in_parts_and_the_newest_first(tmp_path, monkeypatch):
    for k in range(60):
        (tmp_path / "breakout" / f"{k:03d}").mkdir(parents=True)
        (tmp_path / "breakout" / f"{k:03d}" / "run.json").write_text("{}")
    monkeypatch.setattr(index, "BUDGET_S", -1.0)
    known = index.Index(files.Root(tmp_path))
    assert known.changes()["partial"]
    assert not known.runs
    monkeypatch.setattr(index, "BUDGET_S", 60.0)
    assert len(known.changes()["runs"]) == 60  # at once: the last scan was not complete
    assert next(iter(known.runs)) == "breakout/059"


# ---- curves and panels ----


def test_curves_grow_and_stay_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(curves, "POINTS", 50)
    path = tmp_path / "a" / "metrics.jsonl"
    path.parent.mkdir()
    known, total = curves.Curves(files.Root(tmp_path)), 0
    for _ in range(5):
        with path.open("a") as file:
            for _ in range(77):
                total += 1
                file.write(json.dumps({"step": total, "wall_s": total / 10, "x": 2.0 * total}) + "\n")
        found = known.of(path.parent, ["x", "unknown"])
        assert found["curves"]["x"]["from"] == 0
        step, wall, value = found["curves"]["x"]["points"]
        assert len(step) <= 101
        assert value == pytest.approx([2.0 * s for s in step])
        assert wall == pytest.approx([s / 10 for s in step])
        assert step[-1] >= total - 4
        assert known.of(path.parent, ["x"], found["version"]) == {"version": found["version"]}
    path.unlink()  # a resume replaces the file
    path.with_name("new").write_text('{"step": 1, "wall_s": 1, "y": 3}\n')
    path.with_name("new").rename(path)
    again = known.of(path.parent, ["y"], found["version"])
    assert again["curves"] == {"y": {"from": 0, "points": [[1.0], [1.0], [3.0]]}}
    assert again["version"] > found["version"]


def test_a_page_that_has_a_curve_gets_its_new_points_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(curves, "POINTS", 20)
    path = tmp_path / "a" / "metrics.jsonl"
    path.parent.mkdir()
    known, page, version, sent = curves.Curves(files.Root(tmp_path)), [[], [], []], -1, 0
    for total in range(1, 200):
        with path.open("a") as file:
            file.write(json.dumps({"step": total, "wall_s": 1.0, "x": total**0.5}) + "\n")
        if total % 3:
            continue
        found = known.of(path.parent, ["x"], version)
        version, new = found["version"], found["curves"]["x"]
        page = [[*old[: new["from"]], *more] for old, more in zip(page, new["points"])]
        sent += len(new["points"][0])
        assert page == known.of(path.parent, ["x"])["curves"]["x"]["points"]
    assert sent < 400  # whole curves would be 1,900 points
    assert known.of(path.parent, ["x"], version + 5)["curves"]["x"]["from"] == 0  # of another server


def test_of_a_large_file_lines_at_even_distances_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(curves, "WHOLE", 40_000)
    monkeypatch.setattr(curves, "POINTS", 64)
    lines = [json.dumps({"step": k, "wall_s": k, "x": float(k)}) + "\n" for k in range(20_000)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    step, _, value = curves.Curves(files.Root(tmp_path)).of(tmp_path, ["x"])["curves"]["x"]["points"]
    assert len(step) <= 129
    assert step == sorted(step)
    assert step[0] < 2000
    assert step[-1] > 19_900  # the end is read whole
    assert value == step


def test_panels_are_those_of_the_dashboard(tmp_path):
    run = fake_run(tmp_path, count=30)
    known = index.Index(files.Root(tmp_path))
    known.scan()
    shown = panels.Panels(known.root).of(known.runs["breakout/a"])
    history = History(RunFacts(run.folder, "a", "breakout"))
    for record in run.metrics():
        history.add(record)
    assert shown["split"] == pytest.approx(history.split(), abs=1e-4)
    assert shown["step"] == history.step
    assert [row["key"] for row in shown["learning"]] == [row.name for row in history.learning()]
    assert shown["episodes"][0]["value"] == history.latest["episode/return"]


def test_panels_of_records_that_are_added_are_those_of_the_whole_file(tmp_path):
    run = fake_run(tmp_path, count=40, status=None)
    path, known = run.folder / "metrics.jsonl", index.Index(files.Root(tmp_path))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:10]))
    known.scan()
    entry, growing = known.runs["breakout/a"], panels.Panels(known.root)
    for line in ["", *lines[10:]]:
        with path.open("a") as file:
            file.write(line)
        found = growing.of(entry)
    assert found == panels.Panels(known.root).of(entry)
    path.unlink()
    path.write_text("".join(lines[:3]))  # a resume replaces the file
    assert growing.of(entry)["step"] == json.loads(lines[2])["step"]


def test_the_speed_of_a_long_run_is_that_of_its_last_seconds(tmp_path):
    """The end of the file is read, which may be less than the seconds that the speed is averaged over."""
    run = fake_run(tmp_path, count=3)
    more = {f"stat/{k}": 0.123456789 for k in range(200)}
    records = [{"step": 1000 * k, "wall_s": k / 10, "time/learn": 0.1, **more} for k in range(2000)]
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    known = index.Index(files.Root(tmp_path))
    known.scan()
    assert panels.Panels(known.root).of(known.runs["breakout/a"])["sps"] == pytest.approx(10_000.0)


def test_the_page_of_a_run_asks_for_that_run_alone(tmp_path):
    for name in ("a", "b"):
        fake_run(tmp_path, id=name, status=None, count=2)
    known = index.Index(files.Root(tmp_path))
    known.scan()
    for name in ("a", "b"):
        with (tmp_path / "breakout" / name / "metrics.jsonl").open("a") as file:
            file.write('{"step": 77, "wall_s": 7}\n')
    known.refresh("breakout/a")
    assert known.runs["breakout/a"].row["step"] == 77
    assert known.runs["breakout/b"].row["step"] != 77
    shutil.rmtree(tmp_path / "breakout" / "a")
    known._scanned_s = -1.0
    known.refresh("breakout/a")
    assert list(known.runs) == ["breakout/b"]


def test_runs_that_differ_in_their_seed_alone_are_one_line(tmp_path):
    for k in range(4):
        run = fake_run(tmp_path, id=f"r{k}", seed=k, epochs=4 if k < 3 else 8)
        config = run.folder / "config.toml"
        config.write_text(f"{config.read_text()}[vec]\ntorch_threads = {k}\n")  # measured
    known = index.Index(files.Root(tmp_path))
    known.scan()
    found = compare.compare(known, known.runs)
    groups = {group["label"]: sorted(group["runs"]) for group in found["groups"]}
    assert groups == {"epochs 4": [f"breakout/r{k}" for k in range(3)], "epochs 8": ["breakout/r3"]}
    assert sorted(found["differing"]) == ["seed", "train.epochs"]
    assert found["t"][0] == pytest.approx(12.7062)


# ---- hostile folders ----


@pytest.mark.parametrize("number", ["%C2%B2", "x", "-1", ""])
def test_a_version_that_is_no_number_means_all(served, number):
    """A superscript two is a digit, but no number: the connection closed without an answer."""
    assert ask(served, f"/api/runs?since={number}")[::2] == ask(served, "/api/runs")[::2]


def test_hostile_folders_do_no_harm(served, tmp_path):
    hostile_runs(tmp_path / "runs", tmp_path / "outside")
    status, _, text = ask(served, "/api/runs")
    found = json.loads(text)
    assert status == 200
    assert "SECRET" not in text
    assert "linked/folder" not in found["runs"]
    assert found["links"] == 2
    assert {f"bad/{name}" for name in ("broken", "list", "deep", "types", "huge")} <= set(found["runs"])
    for name in found["runs"]:
        query = urllib.parse.urlencode({"run": name})
        for what in ("run", "compare", "curves", "options"):
            more = "&key=x&key=y&key=z&key=SECRET" if what == "curves" else ""
            status, _, text = ask(served, f"/api/{what}?{query}{more}")
            assert status == 200, (name, what, text)
            json.loads(text, parse_constant=pytest.fail)  # NaN is no JSON
            assert "SECRET" not in text, (name, what)
    assert json.loads(ask(served, "/api/run?run=videos%2Fv")[2])["videos"] == ["a.gif"]
    assert ask(served, "/video/videos/v/a.gif")[0] == 200
    for path in ("b.gif", "c.html", "..%2f..%2f..%2fsecret.gif", "a.gif%00", "../run.json"):
        assert ask(served, f"/video/videos/v/{path}")[0] == 404, path
    for path in ("/static/..%2fserver.py", "/static/server.py", "/static/web/..%2fgame.py", "/api/close", "//x"):
        assert ask(served, path)[0] == 404, path
    assert ask(served, "/api/run?run=no%2Fsuch")[0] == 404
    assert ask(served, "/api/run?run=..%2F..")[0] == 404


def test_parts_of_a_video(served, tmp_path):
    folder = fake_run(tmp_path / "runs").folder / "videos"
    folder.mkdir()
    (folder / "v.mp4").write_bytes(bytes(range(100)))
    status, headers, _ = ask(served, "/video/breakout/a/v.mp4", Range="bytes=10-19")
    assert (status, headers["Content-Range"], headers["Content-Length"]) == (206, "bytes 10-19/100", "10")
    assert ask(served, "/video/breakout/a/v.mp4", Range="bytes=100-")[0] == 416
    assert ask(served, "/video/breakout/a/v.mp4")[1]["Content-Type"] == "video/mp4"


# ---- who may ask ----


@pytest.mark.parametrize(
    ("request_line", "more", "status"),
    [
        ("GET /api/runs HTTP/1.1", "", 200),
        ("GET /api/runs HTTP/1.1", "Host: evil.example\r\n", 403),
        ("GET http://evil.example/api/runs HTTP/1.1", "", 400),
        ("TRACE /api/runs HTTP/1.1", "", 501),
    ],
)
def test_requests_that_no_browser_sends_are_refused(served, request_line, more, status):
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as client:
        cookie = f"Cookie: shoal-watch-{served.port}={served.token}"
        head = f"{request_line}\r\nHost: 127.0.0.1:{served.port}\r\n{more}{cookie}\r\nConnection: close\r\n\r\n"
        client.sendall(head.encode())
        answer = b"".join(iter(lambda: client.recv(65536), b"")).decode()
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert "<" not in answer


def test_requests_without_the_token_or_from_elsewhere_are_refused(served):
    everything = ("/", "/api/runs", "/static/main.js", "/play/a/b", "/video/a/b/c.gif", "/api/game?run=a%2Fb")
    good = f"shoal-watch-{served.port}={served.token}"
    for path in everything:
        assert ask(served, path, Cookie="")[0] == 403, path
        assert ask(served, path, Cookie=good[:-1] + "!")[0] == 403, path
        assert ask(served, path, Host="evil.example")[0] == 403, path
        assert ask(served, path, Host=f"evil.example:{served.port}")[0] == 403, path
        assert ask(served, path, Origin="http://evil.example")[0] == 403, path
        assert ask(served, path, Origin="null")[0] == 403, path
        assert ask(served, path, Sec_Fetch_Site="cross-site")[0] == 403, path
        assert ask(served, path, Sec_Fetch_Site="same-site")[0] == 403, path  # another port of this machine
    assert ask(served, "/?token=wrong", Cookie="")[0] == 403
    status, headers, text = ask(served, f"/?token={served.token}", Cookie="")
    assert status == 200
    assert f"{good}; HttpOnly; SameSite=Strict" in headers["Set-Cookie"]
    assert served.token not in text
    own = f"http://127.0.0.1:{served.port}"
    assert ask(served, "/api/runs", Origin=own, Sec_Fetch_Site="same-origin")[0] == 200
    # the printed link may be clicked in a page of another site, but fetched by none
    link = f"/?token={served.token}"
    assert ask(served, link, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")[0] == 200
    assert ask(served, link, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors")[0] == 403


def test_pages_may_run_scripts_of_the_package_alone(served):
    policy = ask(served, "/")[1]["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert ask(served, "/api/runs")[1]["X-Content-Type-Options"] == "nosniff"


def test_only_get_is_answered(served):
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
        request = urllib.request.Request(f"http://127.0.0.1:{served.port}/api/runs", b"x" if method == "POST" else None)
        request.method = method
        request.add_header("Cookie", f"shoal-watch-{served.port}={served.token}")
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(request, timeout=20)
        assert error.value.code == 405
        error.value.close()


# ---- what is played ----


def a_worker(root: Path, headers: list[str] | None = None) -> Any:
    from shoal.watch.worker import Worker

    return Worker(root, headers or [])


def a_run(root: Path, text: str = "", env: str = "cartpole", id: str = "a") -> Run:
    run = fake_run(root, "x", id)
    (run.folder / "run.json").write_text(json.dumps({"env": env}))
    (run.folder / "config.toml").write_text(text)
    return Run(run.folder)


@pytest.mark.parametrize(
    ("text", "env", "match"),
    [
        ("[nn]\npolicy = 'evil:Policy'", "cartpole", "nn.policy = evil:Policy"),
        ("[vec]\npython = '/tmp/evil'", "cartpole", "vec.python"),
        ("[env]\npython = '/tmp/evil'", "cartpole", "env.python"),
        ("opponents = '1=evil:Agent'", "pong", "Python code"),
        ("opponents = '1=./evil.py:Agent'", "pong", "Python code"),
        ("opponents = '1=/tmp'", "pong", "not below the runs"),
        ("", "/tmp/evil.h", "shoal watch --header /tmp/evil.h"),
        ("", "evil:Env", "shoal eval RUN"),
        ("", "gymnasium:CartPole-v1", "shoal eval RUN"),
    ],
)
def test_no_code_that_a_run_names_is_executed(tmp_path, text, env, match):
    with pytest.raises(ConfigError, match=match):
        a_worker(tmp_path).check_run(a_run(tmp_path, text, env))


def test_the_folder_may_be_relative_or_a_link(tmp_path, monkeypatch):
    run = a_run(tmp_path / "runs")
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    for name in ("runs", "link"):
        watch = Watch(Path(name))
        entry = watch.run("x/a")
        a_worker(watch.root.folder).check_run(Run(entry.path))
        assert watch.api_curves({"run": ["x/a"], "key": ["sps"]})["runs"]["x/a"]["keys"]
        assert entry.path.samefile(run.folder)


def test_what_a_run_may_play(tmp_path):
    header = tmp_path / "mine.h"
    header.touch()
    worker = a_worker(tmp_path, [str(header)])
    worker.check_run(a_run(tmp_path, "opponents = '1=track'", "pong"))
    worker.check_run(a_run(tmp_path, "", str(header), "b"))
    opponent = a_run(tmp_path, "[nn]\npolicy = 'evil:Policy'", "pong", "c").folder / "checkpoints" / "000000000001"
    opponent.mkdir(parents=True)
    with pytest.raises(ConfigError, match="nn.policy"):  # of the opponent
        worker.check_run(a_run(tmp_path, f"opponents = '1={opponent}'", "pong", "d"))
    (opponent / "weights.safetensors").symlink_to(header)
    with pytest.raises(ConfigError, match="link"):
        worker.check_files(opponent)


def test_a_worker_that_crashes_or_hangs_is_replaced(tmp_path):
    code = "import sys, json, time\nfor line in sys.stdin:\n    what = json.loads(line)['do']\n"
    code += "    if what == 'crash': raise SystemExit(3)\n    if what == 'hang': time.sleep(60)\n"
    code += "    print(json.dumps({'error': 'no'} if what == 'fail' else {'result': what}), flush=True)\n"
    background = Background(tmp_path, [], patience_s=0.5)
    background.command = [sys.executable, "-S", "-c", code]
    try:
        background.patience_s = 20.0
        assert background.ask(do="a") == "a"
        with pytest.raises(ConfigError, match="no"):
            background.ask(do="fail")
        with pytest.raises(ConfigError, match="ended without an answer"):
            background.ask(do="crash")
        assert background.ask(do="b") == "b"
        background.patience_s = 0.2
        with pytest.raises(ConfigError, match="more than"):
            background.ask(do="hang")
        background.patience_s = 20.0
        assert background.ask(do="c") == "c"
    finally:
        background.close()
    with pytest.raises(ConfigError, match="has ended"):
        background.ask(do="d")


def test_a_page_that_cannot_be_made_says_why(served, tmp_path, monkeypatch):
    fake_run(tmp_path / "runs")

    def refuse(**request: Any) -> None:
        raise ConfigError("pip install <b>'shoal[web]'</b>")

    monkeypatch.setattr(served.watch.background, "ask", refuse)
    status, _, text = ask(served, "/play/breakout/a")
    assert status == 200  # it stands in a frame
    assert "pip install &lt;b&gt;" in text
    assert ask(served, "/api/game?run=breakout%2Fa")[0] == 409
    assert ask(served, "/play/no/run")[0] == 404


# ---- pages of leagues and sweeps ----


def test_the_page_of_a_sweep_is_of_a_copy(served, tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    from shoal.sweep import api, store
    from shoal.sweep.ranges import Range

    parts = {"train.gamma": Range("logit", 0.5, 0.999)}
    facts = {"identity": {"env": "cartpole", "sampler": "random"}, "trials": 2, "settings": {}}
    sweep = store.create("cartpole", tmp_path / "runs", "one", facts, api.Space(parts))
    for score in (1.0, 2.0):
        sweep.finish_trial(sweep.add_trial({"train.gamma": 0.9}, {"seed": 1}), (score, 3.0), {"steps": 10})
    before = {path: path.stat().st_mtime_ns for path in sweep.folder.rglob("*")}
    worker = a_worker(tmp_path / "runs")
    monkeypatch.setattr(served.watch.background, "ask", lambda **request: worker.answer(request))
    status, headers, text = ask(served, "/sweep/cartpole/sweep-one")
    assert status == 200
    assert str(sweep.folder) in text
    assert "sha256-" in headers["Content-Security-Policy"]
    assert {path: path.stat().st_mtime_ns for path in sweep.folder.rglob("*")} == before
    rows = json.loads(ask(served, "/api/runs")[2])["sweeps"]
    assert rows["cartpole/sweep-one"]["options"] == ["train.gamma"]
    assert ask(served, "/sweep/cartpole/a")[0] == 404


# ---- the command ----


def test_the_command_opens_what_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    for k in range(3):
        fake_run(runs, "breakout", f"r{k}", seed=k, started=f"2026-11-15T12:00:0{k}")
    assert command.choose((), Path("runs")) == (Path("runs"), "")
    assert command.choose(("last",), Path("runs")) == (Path("runs"), "#/run/breakout/r2")
    assert command.choose(("r0", "r1"), Path("runs")) == (Path("runs"), "#/compare/breakout/r0,breakout/r1")
    assert command.choose(("runs/breakout",), Path("runs"))[1].count(",") == 2
    other = fake_run(tmp_path / "other", "pong", "x")
    assert command.choose((str(other.folder),), Path("runs")) == (tmp_path / "other", "#/run/pong/x")
    with pytest.raises(ConfigError, match="of one folder"):
        command.choose((str(other.folder), "r0"), Path("runs"))
    with pytest.raises(ConfigError, match="no run 'r9'"):
        command.choose(("r9",), Path("runs"))
    sweep = runs / "breakout" / "sweep-s"
    (sweep / "trials").mkdir(parents=True)
    (sweep / "sweep.json").write_text("{}")
    assert command.choose((str(sweep),), Path("runs")) == (sweep / "trials", "")
    assert command.choose(("sweep-s",), Path("runs")) == (Path("runs/breakout/sweep-s/trials"), "")


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ({"port": 70000}, "--port 70000 must be in"),
        ({"header": (Path("no.h"),)}, "--header no.h is no header"),
        ({"runs": Path("nowhere")}, "nowhere/ does not exist"),
    ],
)
def test_bad_flags_are_errors_before_anything_starts(tmp_path, monkeypatch, words, match):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=match):
        command.watch(**words)


def test_a_port_that_is_taken_is_an_error(served, tmp_path):
    with pytest.raises(ConfigError, match="cannot be used"):
        Server(Watch(tmp_path), served.port)


def test_many_readers_at_once(served, tmp_path):
    """Threads of the server share the index and the curves."""
    root = tmp_path / "runs"
    for k in range(12):
        fake_run(root, id=f"r{k}", count=20)
    wrong: list[Any] = []

    def read() -> None:
        for k in range(12):
            for path in ("/api/runs", f"/api/curves?run=breakout%2Fr{k}&key=sps", f"/api/run?run=breakout%2Fr{k}"):
                status, _, text = ask(served, path)
                wrong.extend([(path, status, text)] if status != 200 else [])

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert time.monotonic() - served.watch.index._scanned_s < 60.0


@pytest.mark.skipif(sys.platform != "linux", reason="fork() is used on Linux")
def test_a_worker_that_is_a_copy_of_the_server_answers_and_is_replaced(tmp_path):
    script = """
import os, sys, threading
from pathlib import Path
from shoal.errors import ConfigError
from shoal.watch.background import Background
background = Background(Path(sys.argv[1]), [])
background.start()
copy = background._process
assert background.ask(do="warm") is None and background._process is copy
try:
    background.ask(do="game", folder=str(Path(sys.argv[1]) / "x"))
except ConfigError as error:
    print(error)
os.kill(copy.pid, 9)
copy.wait()
background._running = lambda: copy  # as if it had died just after it was seen alive
try:
    background.ask(do="warm")
except ConfigError as error:
    print(error)
del background._running
assert background.ask(do="warm") is None and background._process is not copy
background.close()
print(threading.active_count() < 3, copy.poll())
"""
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    first, second, third = done.stdout.splitlines()
    assert "no checkpoint yet" in first
    assert "ended without an answer" in second
    assert third == "True 0"
