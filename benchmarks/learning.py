"""Does it learn? Every stock env with its tuned options, several seeds, from the command to the held-out score.

    python benchmarks/learning.py                     all envs, 3 seeds
    python benchmarks/learning.py --envs cartpole memory --seeds 1 2
    python benchmarks/learning.py --table             only write the tables of docs/ from the last results
    python benchmarks/learning.py --suite [--device cuda] [--jobs 14]  every env on a GPU: benchmarks/suite.py
    python benchmarks/learning.py --suite --missing                    what was cut off or failed

Each run is `shoal train ENV --seed S` in its own process. Its seconds include imports and the final evaluation of 100
held-out episodes. Appends to benchmarks/results/learning.jsonl, and writes docs/learning.md and the score of each env
into its TOML file.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

import suite

from shoal import config, registry
from shoal.measure import describe_machine
from shoal.runs import all_runs, commit

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results/learning.jsonl"
PAGE = ROOT / "docs/learning.md"
MARKS = r"(<!-- Written by benchmarks/learning.py -->\n).*?(<!-- The end of what learning.py writes. -->)"

# an env may be trained in several ways: name in the table, flags besides
VARIANTS: dict[str, dict[str, list[str]]] = {
    "memory": {
        "memory, mingru": ["--nn.core", "mingru"],
        "memory, lstm": ["--nn.core", "lstm"],
        "memory, no core": ["--nn.core", "none"],
    }
}
CHANCE = {"memory, no core": 0.25}  # must not be exceeded: without a memory, only chance is left


def one(env: str, flags: list[str], seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "shoal", "train", env, "--seed", str(seed), "--console", "off"]
        command += ["--eval.episodes", "100"]
        began = time.perf_counter()
        subprocess.run([*command, "--runs", folder, *flags], check=True, cwd=ROOT)
        seconds = time.perf_counter() - began
        run = all_runs(Path(folder))[-1]
        summary = run.summary or {}
        curve = [(m["step"], m["wall_s"], m["episode/return"]) for m in run.metrics() if m.get("episode/n")]
    return {
        "seed": seed,
        "score": summary["eval"]["return"],
        "ci95": summary["eval"]["ci95"],
        "steps": summary["step"],
        "train_s": summary["wall_s"],
        "seconds": seconds,
        "sps": summary["step"] / summary["wall_s"],
        "curve": curve,
    }


def targets() -> dict[str, float]:
    targets = {}
    for env in registry.stock_names():
        path = registry.STOCK / f"{env}.toml"
        if path.is_file() and "score" in (tables := config.read_toml(path)):
            targets[env] = float(tables["score"]["target"])
    return targets


def write_score(env: str, runs: list[dict[str, Any]], target: float) -> None:
    """Writes the score into the env's TOML file: its last table, [score]."""
    path = registry.STOCK / f"{env}.toml"
    head = path.read_text().split("[score]")[0]
    kept = ("why", "target", "random", "scripted", "against", "opponents", "episodes")
    table = {
        **{name: value for name, value in config.read_toml(path)["score"].items() if name in kept},
        "target": target,
        "reached": [round(run["score"], 3) for run in runs],
        "steps": runs[0]["steps"],
        "seconds": round(mean(run["seconds"] for run in runs), 1),
    }
    note = "# mean return over 100 held-out episodes, one for each seed; steps and seconds of a run, on 2 CPU cores\n"
    path.write_text(f"{head.rstrip()}\n\n[score]\n{note}{config.write_toml(table)}")


def table() -> str:
    lines = RESULTS.read_text().splitlines() if RESULTS.is_file() else []
    newest: dict[str, dict[str, Any]] = {}
    for line in lines:
        entry = json.loads(line)
        newest[entry["name"]] = entry
    rows = [
        "| env | target | score by seed (100 held-out episodes) | steps | seconds from the command | steps/s |",
        "|---|---|---|---|---|---|",
    ]
    for name, entry in sorted(newest.items()):
        runs = entry["runs"]
        scores = ", ".join(f"{run['score']:.3g}" if run["score"] < 1000 else f"{run['score']:.0f}" for run in runs)
        goal = f"chance {CHANCE[name]:g}" if name in CHANCE else f"{targets()[entry['env']]:g}"
        seconds = f"{min(r['seconds'] for r in runs):.1f} to {max(r['seconds'] for r in runs):.1f}"
        sps = f"{mean(r['sps'] for r in runs) / 1e3:,.0f}k"
        rows.append(f"| {name} | {goal} | {scores} | {runs[0]['steps'] / 1e6:.2f}M | {seconds} | {sps} |")
    machine = next(iter(newest.values()))["machine"] if newest else {}
    return "\n".join([*rows, "", f"Machine: {machine.get('cpu', '?')}, {machine.get('cores', '?')} cores, CPU only."])


def write_page() -> None:
    page = PAGE.read_text()
    PAGE.write_text(re.sub(MARKS, lambda match: f"{match[1]}{table()}\n{match[2]}", page, flags=re.DOTALL))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", default=list(targets()), choices=list(targets()), metavar="ENV")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--table", action="store_true", help="only write the pages from the last results")
    parser.add_argument("--suite", action="store_true", help="several runs at a time, into docs/suite.md")
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"), help="of --suite")
    parser.add_argument("--jobs", type=int, default=4, help="runs of --suite at a time")
    parser.add_argument("--missing", action="store_true", help="--suite: leave out runs that have results already")
    parser.add_argument(
        "--limit", type=float, default=0.0, metavar="S", help="--suite: end after S seconds; 0: no limit"
    )
    parser.add_argument(
        "--out", type=Path, default=None, help="--suite: append the results to this file, not to results/"
    )
    parser.add_argument(
        "--runs", type=Path, default=None, help="--suite: keep the agents of the first seed in this folder"
    )
    args = parser.parse_args()
    if args.suite and args.table:
        suite.write_page()
        return
    if args.suite:
        how = {"missing": args.missing, "limit_s": args.limit, "out": args.out, "keep": args.runs}
        left = suite.run_suite(args.envs, args.seeds, args.device, args.jobs, **how)
        if args.out is None:
            suite.write_page()
        raise SystemExit(1 if left else 0)
    goals = targets()
    for env in [] if args.table else args.envs:
        for name, flags in VARIANTS.get(env, {env: []}).items():
            runs = [one(env, flags, seed) for seed in args.seeds]
            scores = [run["score"] for run in runs]
            ok = max(scores) < CHANCE[name] + 0.1 if name in CHANCE else min(scores) >= goals[env]
            verdict = "ok" if ok else "MISSED"
            spread = f"{min(r['seconds'] for r in runs):.1f} to {max(r['seconds'] for r in runs):.1f} s"
            print(f"{name:18} target {goals[env]:8.3g}  scores {scores}  {spread}  {verdict}", flush=True)
            entry = {"name": name, "env": env, "flags": flags, "target": goals[env], "runs": runs}
            entry |= {"machine": describe_machine(), "commit": commit(), "time": time.strftime("%Y-%m-%d %H:%M")}
            with RESULTS.open("a") as file:
                file.write(json.dumps(entry) + "\n")
            if name not in CHANCE and "lstm" not in name:
                write_score(env, runs, goals[env])
    write_page()
    suite.write_page()


if __name__ == "__main__":
    main()
