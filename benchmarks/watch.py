"""What `shoal watch` takes and how fast it is: the first picture of a live run, its cost for the trainer, 1,000 runs.

    python benchmarks/watch.py [--only picture trainer server list] [--rounds 5] [--minutes 5] [--rate 1]

picture   `shoal watch last` beside a live run of breakout, opened in headless Chromium (skipped without one): seconds
          until the curve and the agent are drawn, after the opening of the page, and after the start of the command.
trainer   CPU seconds of a trainer per step, with and without somebody who looks at its run: a page's requests, at the
          page's rate (--rate 10: ten times as often). Segments of some seconds take turns (on, off, off, on), and each
          pair gives a ratio. CPU time, because other processes change the time on the clock by far more than 1 %: what
          remains are caches and the memory's bandwidth. The cores that the server itself takes are printed beside it.
          Where the trainer uses all cores, it loses at most the sum of both.
server    what the server and its worker take of a core for a run that grows as breakout does (two records a second, a
          checkpoint every 10 s), without a trainer beside it: with a page, and while nobody looks.
list      a folder of 1,000 runs: seconds until their rows are served.

The result is appended to benchmarks/results/watch.jsonl. A browser on the same machine takes time of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import math
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
RESULTS = Path(__file__).parent / "results" / "watch.jsonl"
SEGMENT_S = 6.0  # three rounds of a page's requests
PAGE_EVERY_S = 2.0  # POLL of shoal/watch/page/run.js
KEYS = ("episode/return", "episode/length", "sps", "loss/policy", "loss/value", "entropy")
GAME = """(() => { const page = document.querySelector("iframe")?.contentWindow;
const canvas = page?.document?.querySelector("canvas");
if (!page?.app || !canvas?.width) return false;
const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
return new Set(new Uint32Array(data.buffer)).size > 3; })()"""
CURVE = """(() => { const canvas = document.querySelector(".chart canvas");
if (!canvas?.width) return false;
const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
return new Set(new Uint32Array(data.buffer)).size > 2; })()"""


@contextlib.contextmanager
def watching(runs: Path, *names: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command `shoal watch`, and the address that it printed."""
    command = [sys.executable, "-m", "shoal", "watch", *names, "--runs", str(runs), "--no-browser"]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


# ---- the first picture ----


def picture(rounds: int) -> dict[str, Any] | None:
    """Seconds until a live run is drawn."""
    from tests import browser

    if browser.find() is None:
        print("picture: skipped, chromium is not installed")
        return None
    from_page, from_start, curves, printed = [], [], [], []
    with tempfile.TemporaryDirectory() as folder, browser.Browser() as tab:
        runs = Path(folder)
        options = ["--save.every-s", "5", "--train.total-steps", "100B", "--console", "off", "--runs", folder]
        trainer = subprocess.Popen([sys.executable, "-m", "shoal", "train", "breakout", *options])
        try:
            while not list(runs.glob("breakout/*/checkpoints/*/meta.json")):
                assert trainer.poll() is None
                time.sleep(0.2)
            for _ in range(rounds):
                began = time.monotonic()
                with watching(runs, "last") as (_, url):
                    opened = time.monotonic()
                    tab.call("Page.navigate", url=url)
                    times = dict.fromkeys((GAME, CURVE), 0.0)
                    while not all(times.values()):
                        for expression, seen in times.items():
                            with contextlib.suppress(AssertionError):  # the old page has gone, the new is not there yet
                                if not seen and tab.run(expression):
                                    times[expression] = time.monotonic()
                        time.sleep(0.01)
                from_page.append(max(times.values()) - opened)
                from_start.append(max(times.values()) - began)
                curves.append(times[CURVE] - opened)
                printed.append(opened - began)
        finally:
            trainer.terminate()
            trainer.wait()
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    print(
        f"picture: game and curve {_spread(from_page)} after the page was opened (the curve {_spread(curves)}), "
        f"{_spread(from_start)} after the start of the command, whose address came after {_spread(printed)}; "
        f"{load:.1f} processes per core wanted to run"
    )
    return {"page_s": from_page, "start_s": from_start, "curve_s": curves, "address_s": printed, "load": load}


def _spread(values: list[float]) -> str:
    return f"{median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"


# ---- the trainer ----


class Page:
    """The requests of an open page of a run while it is on, in a process of its own: its time is not the trainer's."""

    def __init__(self, url: str, run: str, rate: float) -> None:
        command = [sys.executable, __file__, "--ask", url, run, str(rate)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def switch(self, is_on: bool) -> None:
        """From now on it asks, or does not."""
        assert self.process.stdin is not None
        self.process.stdin.write("on\n" if is_on else "off\n")
        self.process.stdin.flush()

    def close(self) -> int:
        """Ends it; the number of its requests."""
        out, _ = self.process.communicate("end\n")
        return int(out)


def ask(url: str, run: str, rate: float) -> None:
    """What the process of a Page does: asks as the page does for numbers, curves, and whether there is a newer game."""
    state, step, requests = "off", -1, 0
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc)  # kept open, as a browser does
    cookie = {"Cookie": f"shoal-watch-{parts.port}={urllib.parse.parse_qs(parts.query)['token'][0]}"}
    words = queue.Queue[str]()
    threading.Thread(target=_put_lines, args=(words,), daemon=True).start()
    curves, version = f"api/curves?run={run}&" + "&".join(f"key={key}" for key in KEYS), ""
    while state != "end":
        if state == "on":
            answers: list[Any] = []
            for path in (f"api/run?run={run}", f"{curves}&version={version}", f"api/game?run={run}&newer={step}"):
                connection.request("GET", f"/{path}", headers=cookie)
                answer, requests = connection.getresponse(), requests + 1
                data = answer.read()
                answers.append(json.loads(data) if answer.status == 200 else None)  # 204: nothing new
            version = next(iter(answers[1]["runs"].values()))["version"]  # from then on, only new points are sent
            step = answers[2]["step"] if answers[2] else step
        with contextlib.suppress(queue.Empty):
            state = words.get(timeout=PAGE_EVERY_S / rate)
    print(requests)


def _put_lines(words: queue.Queue[str]) -> None:
    for line in sys.stdin:
        words.put(line.strip())


def cpu_of(pid: int) -> float:
    """CPU seconds of a process and its children."""
    total = 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            words = path.read_text().rpartition(")")[2].split()
            if int(path.parent.name) == pid or int(words[1]) == pid:
                total += (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return total


def trainer(minutes: float, rate: float) -> dict[str, Any]:
    """CPU seconds per step of a trainer whose run somebody looks at, against those while nobody does."""
    from shoal.train import start

    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"total_steps": "100B"}
        saves = {"every_s": 10.0}
        with start(
            "breakout", runs_folder=folder, console="off", train=options, save=saves, vec={"num_envs": 256}
        ) as run:
            iterations = iter(run)
            next(iterations)
            with watching(Path(folder)) as (process, url):
                name = "/".join(next(Path(folder).glob("breakout/*")).parts[-2:])
                page = Page(url, name, rate)
                samples = _segments(run, iterations, page, process.pid, minutes)
                requests = page.close()
    ratios = [
        math.log(on / off) for first, second in zip(samples[::2], samples[1::2]) for on, off in [_pair(first, second)]
    ]
    middle, low, high = _interval(ratios)
    served = [sample["server"] for sample in samples if sample["on"]]
    cores, share = os.cpu_count() or 1, sum(served) / sum(sample["wall"] for sample in samples if sample["on"])
    sps = {key: median([s["steps"] / s["wall"] for s in samples if s["on"] is key]) for key in (True, False)}
    print(
        f"trainer: CPU time per step with a page {100 * middle:+.2f} % ({100 * low:+.2f} to {100 * high:+.2f}, "
        f"{len(ratios)} pairs of {SEGMENT_S:g} s); the server takes {100 * share:.2f} % of a core, "
        f"{100 * share / cores:.2f} % of {cores} cores; steps/s on the clock {sps[True]:,.0f} with and "
        f"{sps[False]:,.0f} without; {requests} requests"
    )
    result = {"change": middle, "low": low, "high": high, "pairs": len(ratios), "server_core": share, "cores": cores}
    return {**result, "sps_with": sps[True], "sps_without": sps[False], "rate": rate, "requests": requests}


def _segments(run: Any, iterations: Iterator[Any], page: Page, pid: int, minutes: float) -> list[dict[str, Any]]:
    """Segments of some iterations: on, off, off, on, and so forth."""
    samples: list[dict[str, Any]] = []
    end = time.monotonic() + 60.0 * minutes
    while time.monotonic() < end or len(samples) % 4:
        is_on = len(samples) % 4 in (0, 3)
        page.switch(is_on)
        next(iterations)  # between two segments
        before, wall, cpu, served = run.trainer.step, time.perf_counter(), time.process_time(), cpu_of(pid)
        while time.perf_counter() - wall < SEGMENT_S:
            next(iterations)
        spent = time.process_time() - cpu
        taken = {"wall": time.perf_counter() - wall, "steps": run.trainer.step - before, "server": cpu_of(pid) - served}
        samples.append({"on": is_on, "cpu": spent / taken["steps"], **taken})
    return samples


def _pair(first: dict[str, Any], second: dict[str, Any]) -> tuple[float, float]:
    on, off = (first, second) if first["on"] else (second, first)
    return on["cpu"], off["cpu"]


def _interval(values: list[float], draws: int = 2000) -> tuple[float, float, float]:
    """The median, and its 95 % interval by resampling."""
    rng = random.Random(0)
    medians = sorted(median(rng.choices(values, k=len(values))) for _ in range(draws))
    return median(values), medians[int(0.025 * draws)], medians[int(0.975 * draws)]


# ---- the server alone ----


def server(minutes: float) -> dict[str, Any]:
    """The share of a core that the server and its worker take, with a page and without."""
    from shoal.train import train

    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"total_steps": 200_000}
        run = train("breakout", runs_folder=folder, console="off", train=options, eval={"episodes": 0})
        (run.folder / "summary.json").unlink()
        threading.Thread(target=_grow, args=(run.folder,), daemon=True).start()
        with watching(Path(folder)) as (process, url):
            page = Page(url, f"breakout/{run.id}", 1.0)
            shares = {}
            for is_on in (True, False):
                page.switch(is_on)
                time.sleep(12.0)  # the first curves and the first game
                began, before = time.monotonic(), cpu_of(process.pid)
                time.sleep(60.0 * minutes / 2)
                shares[is_on] = (cpu_of(process.pid) - before) / (time.monotonic() - began)
            page.close()
        (run.folder / "metrics.jsonl").unlink()  # ends the growth
    print(f"server: {100 * shares[True]:.2f} % of a core with a page, {100 * shares[False]:.2f} % while nobody looks")
    return {"with_page": shares[True], "without": shares[False]}


def _grow(folder: Path) -> None:
    """Adds records and checkpoints to a run, as training does, until its metrics are removed."""
    metrics, checkpoints = folder / "metrics.jsonl", folder / "checkpoints"
    record = json.loads(metrics.read_text().splitlines()[-1])
    newest = max(path for path in checkpoints.iterdir() if path.is_dir())
    for count in itertools.count(1):
        record["step"], record["wall_s"] = record["step"] + 50_000, record["wall_s"] + 0.5
        if not metrics.is_file():
            return
        with metrics.open("a") as file:
            file.write(json.dumps(record) + "\n")
        if count % 20 == 0:
            copy = shutil.copytree(newest, checkpoints / ".new")
            copy.rename(checkpoints / f"{record['step']:012}")
        time.sleep(0.5)


# ---- the list ----


def listing(rounds: int, count: int = 1000) -> dict[str, Any]:
    """Seconds until the rows of many runs are served by a server that has just started."""
    from shoal.watch.server import Watch
    from tests.fake_runs import fake_run

    times = []
    with tempfile.TemporaryDirectory() as folder:
        for k in range(count):
            fake_run(Path(folder), "breakout", f"r{k:04}", seed=k, count=40)
        for _ in range(rounds):
            watch, began = Watch(Path(folder)), time.perf_counter()
            since, rows = 0, 0
            while rows < count:
                answer = watch.api_runs({"since": [str(since)]})
                since, rows = answer["version"], rows + len(answer["runs"])
            times.append(time.perf_counter() - began)
            watch.close()
    print(f"list: {count:,} runs after {_spread(times)}")
    return {"list_s": times, "runs": count}


def main() -> None:
    """Runs the parts that were chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=("picture", "trainer", "server", "list"), default=())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--ask", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ask:
        ask(args.ask[0], args.ask[1], float(args.ask[2]))
        return
    wanted = args.only or ("picture", "list", "server", "trainer")
    result: dict[str, Any] = {}
    if "picture" in wanted:
        result["picture"] = picture(args.rounds)
    if "list" in wanted:
        result["list"] = listing(args.rounds)
    if "server" in wanted:
        result["server"] = server(args.minutes)
    if "trainer" in wanted:
        result["trainer"] = trainer(args.minutes, args.rate)
    from shoal.measure import describe_machine

    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps({**result, "machine": describe_machine(), "time": time.strftime("%FT%T")}) + "\n")


if __name__ == "__main__":
    main()
