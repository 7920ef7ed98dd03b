"""`shoal watch` in a browser: open, filter, sort, compare, play, pages of hostile runs. Skipped without Chromium."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from shoal import registry
from shoal.native.build import Source
from shoal.runs import Run
from shoal.watch.server import Server, Watch
from shoal.web import build
from shoal.web.network import translate  # noqa: F401  (torch, before any clock runs)

from . import browser
from .fake_runs import fake_run
from .hostile_runs import EVIL, hostile_runs
from .training import train_tiny

pytestmark = pytest.mark.skipif(browser.find() is None, reason="chromium is not installed")
ROWS = "[...document.querySelectorAll('#runs tbody tr')].map((row) => row.dataset.run)"
DRAWN = """(() => { const canvas = document.querySelector(".chart canvas"), context = canvas.getContext("2d");
return new Set(new Uint32Array(context.getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size > 2; })()"""


def has_module(env: str) -> bool:
    return build.find_zig() is not None or build.find_module(Source.env(registry.find(env))) is not None


needs_module = pytest.mark.skipif(not has_module("cartpole"), reason="zig is not installed: pip install 'shoal[web]'")


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


@pytest.fixture
def served(root):
    server = Server(Watch(root))
    yield server
    server.close()


def fill(tab: browser.Browser, place: str, text: str) -> None:
    """Types a text into a field."""
    tab.run(
        f"(() => {{ const field = document.querySelector({json.dumps(place)}); field.value = {json.dumps(text)}; "
        "field.dispatchEvent(new Event('input')); })()"
    )


def press(tab: browser.Browser, place: str) -> None:
    """Clicks an element with the mouse."""
    node = f"document.querySelector({json.dumps(place)})"
    tab.run(f"{node}.scrollIntoView({{ block: 'center' }})")
    box = tab.run(f"(({{ x, y, width, height }}) => [x + width / 2, y + height / 2])({node}.getBoundingClientRect())")
    tab.click(*box)


def test_open_filter_sort_choose_and_compare(root, served):
    for k in range(6):
        fake_run(root, "breakout", f"b{k}", seed=k, epochs=4 if k < 3 else 8, scale=1.0 + k, count=40)
    fake_run(root, "pong", "p", status="failed", epochs=2, count=10)
    with browser.Browser() as tab:
        tab.open(served.url, "document.querySelectorAll('#runs tbody tr').length == 7")
        assert served.token not in tab.run("location.href")
        fill(tab, "#filter", "breakout return>0 train.epochs=8")
        tab.wait("document.querySelectorAll('#runs tbody tr').length == 3")
        assert tab.run("document.getElementById('count').textContent") == "3 of 7 runs"
        fill(tab, "#filter", "-breakout")
        tab.wait("document.querySelectorAll('#runs tbody tr').length == 1")
        fill(tab, "#filter", "breakout")
        tab.wait("document.querySelectorAll('#runs tbody tr').length == 6")
        press(tab, "[data-sort='return']")
        tab.wait(f"{ROWS}[0] == 'breakout/b5'")
        press(tab, "[data-sort='return']")
        tab.wait(f"{ROWS}[0] == 'breakout/b0'")
        for k in (0, 1, 2, 4):
            press(tab, f"[data-run='breakout/b{k}'] input")
        press(tab, "a.button")
        tab.wait("document.querySelectorAll('.chart canvas').length > 4")
        assert tab.run("document.querySelectorAll('#results tbody tr').length") == 4
        assert tab.run("[...document.querySelectorAll('#diff tbody tr')].map((row) => row.cells[0].textContent)") == [
            "seed",
            "train.epochs",
        ]
        tab.wait(DRAWN)
        lines = (
            "app.view.curves.linesOf('episode/return').map((line) => [line.label, line.x.length, Boolean(line.low)])"
        )
        assert [(re.sub(" · .*", "", label), band) for label, _, band in tab.run(lines)] == [
            ("epochs 4 (3 runs)", True),
            ("epochs 8", False),
        ]
        # the mean and the interval are those of shoal plot
        from shoal import plot

        figure = plot.figure([Run(root / "breakout" / f"b{k}") for k in range(3)], band="ci95")
        last = tab.run(
            "(({ y, low, high }) => [y, low, high].map((v) => v.at(-1)))(app.view.curves.linesOf('episode/return')[0])"
        )
        curve = figure.curves[0]
        assert last == pytest.approx([curve.mean[-1], curve.low[-1], curve.high[-1]], rel=1e-3)
        box = tab.run("(({ x, y }) => [x, y])(document.querySelector('.chart canvas').getBoundingClientRect())")
        tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + 250, y=box[1] + 60)
        tab.wait("!document.getElementById('tip').hidden")
        assert "epochs 4 (3 runs)" in tab.run("document.getElementById('tip').textContent")
        for setting in ("logX", "logY", "apart"):
            press(tab, f"[data-set='{setting}']")
        tab.wait(DRAWN)
        assert len(tab.run("app.view.curves.linesOf('episode/return').map((line) => line.faint)")) == 5
        assert tab.errors == []


def test_curves_are_live(root, served):
    run = fake_run(root, status=None, count=20)
    with run.lock(), browser.Browser() as tab:
        tab.open(f"{served.url}#/run/breakout/a", "document.querySelectorAll('.chart canvas').length > 4")
        count = "app.view.curves.data.get('breakout/a').curves['episode/return'][0].length"
        before = tab.run(count)
        tab.wait("document.body.textContent.includes('running')")
        with (run.folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 999999999, "wall_s": 99.0, "episode/return": 4321.0, "new/metric": 1}\n')
        tab.wait(f"{count} == {before + 1}", 10)
        tab.wait(
            "[...document.querySelectorAll('.chart span')].some((one) => one.textContent.startsWith('new/metric'))"
        )
        tab.wait("document.querySelector('.panels').textContent.includes('4321')")
        assert tab.errors == []


def test_a_run_shows_its_name_and_a_command_that_can_be_typed(root, served):
    run = fake_run(root, "gymnasium:CartPole-v1", "py", count=5)
    facts = json.loads((run.folder / "run.json").read_text())
    facts["command"] = ["/opt/venv/bin/shoal", "train", "gymnasium:CartPole-v1", "--callback", "stop_at(score='9')"]
    (run.folder / "run.json").write_text(json.dumps({**facts, "machine": {"system": "Linux", "cores": 2}}))
    with browser.Browser() as tab:
        tab.open(f"{served.url}#/run/gymnasium-CartPole-v1/py", "document.querySelector('.after') !== null")
        assert tab.run("document.querySelector('h1').textContent") == "gymnasium:CartPole-v1 py"
        words = tab.run("document.querySelector('.after').textContent")
        assert shlex.split(words) == ["shoal", *facts["command"][1:]]
        assert "Linux · cores: 2" in tab.run("document.body.textContent")
        assert tab.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_the_contrast_that_wcag_asks_for(root, served, scheme):
    checks = (Path(__file__).parent.parent / "scripts/site-check.js").read_text()
    names = [f"breakout/b{k}" for k in range(2)]
    for k in range(2):
        fake_run(
            root, id=f"b{k}", seed=k, count=20, eval={"return": 5.0 * k, "ci95": 1.0}, status=("finished", None)[k]
        )
    with browser.Browser() as tab:
        tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        tab.open(served.url, "document.querySelectorAll('#runs tbody tr').length == 2")
        places = {"": "#runs", f"#/run/{names[0]}": ".after", f"#/compare/{','.join(names)}": "td.best"}
        for place, shown in places.items():
            tab.run(f"location.hash = '{place}'")
            tab.wait(f"document.querySelector('{shown}') !== null")
            tab.run(checks)
            assert tab.run("contrasts(3.0, 4.5)") == [], place


def test_a_python_env_shows_its_videos_on_a_phone(root, served):
    run = fake_run(root, "gymnasium:CartPole-v1", "py", count=5)
    picture = base64.b64decode("R0lGODlhAQABAIAAAAUEBAAAACwAAAAAAQABAAACAkQBADs=")
    with browser.Browser(390, 844) as tab:
        tab.open(
            f"{served.url}#/run/gymnasium-CartPole-v1/py", "document.body?.textContent.includes('records a video')"
        )
        (run.folder / "videos").mkdir()
        (run.folder / "videos" / "step-1.gif").write_bytes(picture)
        tab.wait("document.querySelector('.game img')?.naturalWidth == 1")
        assert tab.run("document.documentElement.scrollWidth") <= 390
        tab.run("location.hash = ''")
        tab.wait("document.querySelectorAll('#runs tbody tr').length == 1")
        assert tab.run("document.documentElement.scrollWidth") <= 390
        assert tab.errors == []


def test_pages_of_hostile_runs_show_text(root, served, tmp_path):
    hostile_runs(root, tmp_path / "outside")
    count = len(served.watch.api_runs({})["runs"])
    with browser.Browser() as tab:
        tab.open(served.url, f"document.querySelectorAll('#runs tbody tr').length == {count}")
        assert tab.run(f"document.body.textContent.includes({json.dumps(EVIL)})")
        evil = [name for name in tab.run(ROWS) if name.startswith(("names/", "bad/"))]
        assert len(evil) > 5
        for name in evil:
            tab.run(f"location.hash = '#/run/' + {json.dumps(name)}.split('/').map(encodeURIComponent).join('/')")
            tab.wait(f"document.querySelector('h1')?.textContent.includes({json.dumps(name.split('/')[1])})")
            tab.wait("document.querySelector('.facts')?.textContent.includes('steps')")
        encoded = "+','+".join(f"{json.dumps(name)}.split('/').map(encodeURIComponent).join('/')" for name in evil)
        tab.run(f"location.hash = '#/compare/' + {encoded}")
        tab.wait(f"document.querySelectorAll('#results tbody tr').length == {len(evil)}")
        tab.run("document.getElementById('all-options').click()")
        tab.wait("document.querySelectorAll('.chart canvas').length > 1")
        time.sleep(0.3)
        assert tab.run("typeof hacked") == "undefined"
        assert tab.run("document.querySelectorAll('img, main script').length") == 0
        assert tab.errors == []


GAME = "document.querySelector('iframe')?.contentWindow.app"


@needs_module
def test_the_newest_checkpoint_plays_and_is_replaced(root, served, tmp_path, monkeypatch):
    from shoal.watch.worker import Worker

    run = train_tiny("cartpole", root)
    worker = Worker(root, [])
    monkeypatch.setattr(served.watch.background, "ask", lambda **request: worker.answer(request))
    steps = sorted(run.folder.joinpath("checkpoints").glob("0*"))
    for path in steps[2:]:
        path.rename(tmp_path / path.name)
    with browser.Browser() as tab:
        tab.open(f"{served.url}#/run/cartpole/{run.id}", f"Boolean({GAME})", 30)
        tab.wait(f"{GAME}.env.tick > 0")
        assert tab.run(f"{GAME}.game.step") == int(steps[1].name)
        tab.run(f"{GAME}.setSpeed(12)")
        assert tab.run(f"{GAME}.coming") is None
        (tmp_path / steps[4].name).rename(steps[4])
        tab.run(f"{GAME}.renew()")
        tab.wait(f"{GAME}.game.step == {int(steps[4].name)}", 30)
        tab.wait(f"{GAME}.env.tick > 0")
        assert f"{int(steps[4].name):,} steps of training" in tab.run(
            f"{GAME} && document.querySelector('iframe').contentDocument.body.textContent"
        )
        assert tab.errors == []


@needs_module
@pytest.mark.slow
def test_the_command_from_start_to_end(root, tmp_path):
    """The process as a user starts it, with its own worker; a run of a Python env says what to do instead."""
    run = train_tiny("cartpole", root)
    other = fake_run(root, "gymnasium:CartPole-v1", "py")
    checkpoint = other.folder / "checkpoints" / "000000000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "meta.json").write_text("{}")
    command = [sys.executable, "-m", "shoal", "watch", run.id, "--no-browser"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=env)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with browser.Browser() as tab:
            tab.open(url, f"Boolean({GAME})", 60)
            tab.wait(f"{GAME}.env.tick > 0")
            tab.run("location.hash = '#/run/gymnasium-CartPole-v1/py'")
            tab.wait("document.querySelector('.game')?.textContent.includes('shoal eval RUN')", 30)
            assert tab.errors == []
    finally:
        process.send_signal(signal.SIGINT)
        out: Any = process.communicate(timeout=20)
    assert process.returncode == 0, out
