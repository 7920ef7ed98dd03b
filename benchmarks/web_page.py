"""What an exported page takes of a core while its agent plays, in headless Chromium, and how many frames it shows.

    python benchmarks/web_page.py [--env breakout] [--against COMMIT] [--rounds 5] [--seconds 10] [--profile]

The agent is the one of docs/agents/. Pages take turns in one browser: this tree's page, and with --against that of an
older commit with the same agent (new, old, old, new, ...). A round counts CPU seconds of the page's own process (the
renderer), of the one that draws (GPU; here in software) and of all of Chromium, and the page's frames. The browser has
no GPU, so drawing and compositing are in the numbers; with one they are not.
--profile prints where the page's own process spends its time, by function.

The result is appended to benchmarks/results/web_page.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
from tests import browser  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "web_page.jsonl"
SETTLE_S = 3.0  # a page's scripts are compiled, its first picture drawn
KEPT = ("env_name", "options", "seed", "step", "greedy", "players", "robots")
WRITE = """import json, sys; from pathlib import Path; from shoal.web import page
page.write(Path(sys.argv[2]), json.loads(Path(sys.argv[1]).read_text()))"""
COUNT = """window.frames_shown = 0; // pictures
{ const before = View.paint; View.paint = (...all) => { window.frames_shown += 1; before(...all); }; }"""


def write_pages(env: str, against: str, folder: Path) -> dict[str, Path]:
    """The page of this tree, and that of another commit, with the same facts."""
    import shoal
    from shoal.web.facts import env_facts

    kept = json.loads((ROOT / "docs/agents" / f"{env}.json").read_text())
    with contextlib.closing(shoal.make(kept["env_name"], 1, backend="serial", **kept["options"])) as vec:
        facts = env_facts(vec) | {key: kept[key] for key in KEPT}
    (folder / "facts.json").write_text(json.dumps(facts))
    trees = {"new": ROOT}
    if against:
        tree = folder / "old"
        tree.mkdir()
        archive = subprocess.run(["git", "archive", against, "shoal"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "x"], cwd=tree, input=archive.stdout, check=True)
        trees["old"] = tree
    pages = {}
    for name, tree in trees.items():
        pages[name] = folder / f"{name}.html"
        command = [sys.executable, "-c", WRITE, str(folder / "facts.json"), str(pages[name])]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tree)}, cwd=folder, check=True)
    return pages


def cpu_seconds(root: int) -> dict[str, float]:
    """CPU seconds of a browser's processes by their kind: "renderer" is the page's own."""
    parents, seconds = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            words = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid], seconds[pid] = int(words[1]), (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    found: dict[str, float] = {"renderer": 0.0, "gpu-process": 0.0, "others": 0.0}
    for pid, spent in seconds.items():
        above = pid
        while above not in (root, 0):
            above = parents.get(above, 0)
        if above == root:
            with contextlib.suppress(OSError):
                options = (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode().split()
                kinds = [option.removeprefix("--type=") for option in options if option.startswith("--type=")]
                found[kinds[0] if kinds and kinds[0] in found else "others"] += spent
    return found


def measure(tab: browser.Browser, path: Path, seconds: float) -> dict[str, float]:
    """Shares of a core and frames per second of a page that plays."""
    tab.open(path)
    tab.run(COUNT)
    time.sleep(SETTLE_S)
    before, frames, began = cpu_seconds(tab.process.pid), tab.run("window.frames_shown"), time.monotonic()
    time.sleep(seconds)
    shown, after = tab.run("window.frames_shown") - frames, cpu_seconds(tab.process.pid)
    spent = {kind: after[kind] - before[kind] for kind in after}
    took = time.monotonic() - began
    assert not tab.errors, tab.errors
    parts = {"page": spent["renderer"], "drawing": spent["gpu-process"], "all": sum(spent.values())}
    return {name: value / took for name, value in parts.items()} | {"frames": shown / took}


def profile(tab: browser.Browser, path: Path, seconds: float) -> None:
    """Prints the functions of the page's thread by their own time."""
    tab.open(path)
    time.sleep(SETTLE_S)
    tab.call("Profiler.enable")
    tab.call("Profiler.setSamplingInterval", interval=200)
    tab.call("Profiler.start")
    time.sleep(seconds)
    found = tab.call("Profiler.stop")["profile"]
    names = {node["id"]: node["callFrame"] for node in found["nodes"]}
    spent = Counter[str]()
    for node, us in zip(found["samples"], found["timeDeltas"]):
        frame = names[node]
        spent[f"{frame['functionName'] or 'anonymous'}:{frame['lineNumber'] + 1}"] += us
    for name, us in spent.most_common(25):
        print(f"{us / 1e6 / seconds:7.2%} of a core  {name}")


def main() -> None:
    """Measures, prints and keeps the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="breakout")
    parser.add_argument("--against", default="", metavar="COMMIT")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    if browser.find() is None:
        raise SystemExit("chromium is not installed")
    with tempfile.TemporaryDirectory() as folder, browser.Browser() as tab:
        pages = write_pages(args.env, args.against, Path(folder))
        if args.profile:
            for name, path in pages.items():
                print(f"{name}:")
                profile(tab, path, args.seconds)
            return
        found: dict[str, list[dict[str, float]]] = {name: [] for name in pages}
        for turn in range(args.rounds):
            for name in list(pages)[:: -1 if turn % 2 else 1]:
                found[name].append(measure(tab, pages[name], args.seconds))
        sizes = {name: path.stat().st_size for name, path in pages.items()}
    for name, rounds in found.items():
        print(f"{name}: {args.env}, {sizes[name]:,} bytes, {args.rounds} rounds of {args.seconds:g} s")
        for part, said in {"page": "own process", "drawing": "drawing", "all": "all of Chromium"}.items():
            shares = [100 * one[part] for one in rounds]
            print(f"  {said:<16}{median(shares):6.1f} % of a core ({min(shares):.1f} to {max(shares):.1f})")
        frames = [one["frames"] for one in rounds]
        print(f"  {'frames/s':<16}{median(frames):6.1f} ({min(frames):.1f} to {max(frames):.1f})")
    from shoal.measure import describe_machine

    result = {"env": args.env, "against": args.against, "seconds": args.seconds, "bytes": sizes, "rounds": found}
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps({**result, "machine": describe_machine(), "time": time.strftime("%FT%T")}) + "\n")


if __name__ == "__main__":
    main()
