"""Do DQN and PQN learn? The envs that have tuned options for them, several seeds, to the held-out score.

    python benchmarks/q_learning.py [--seeds 1 2 3] [--only cartpole] [--algo dqn]

Exits with 1 if a run misses the env's target. Appends to benchmarks/results/q_learning.jsonl, and with no --only and no
--algo writes the table of docs/dqn.md.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from pathlib import Path
from typing import Any

from shoal.measure import describe_machine
from shoal.train import train, tuned

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "benchmarks" / "results" / "q_learning.jsonl", ROOT / "docs" / "dqn.md"
MARKS = r"(<!-- Written by benchmarks/q_learning.py.*?-->\n).*?(<!-- The end of what it writes. -->)"
ENVS, ALGOS = ("squared", "cartpole"), ("dqn", "pqn")


def learn(env: str, algo: str, seed: int, runs: str) -> dict[str, Any]:
    """One run's score, steps and seconds."""
    began = time.perf_counter()
    run = train(env, algo=algo, seed=seed, device="cpu", runs_folder=runs, console="off", eval={"episodes": 100})
    summary = run.summary or {}
    seconds = time.perf_counter() - began
    return {"seed": seed, "score": summary["eval"]["return"], "steps": summary["step"], "seconds": seconds}


def table(results: dict[str, list[dict[str, Any]]], targets: dict[str, float]) -> str:
    """The results as Markdown."""
    lines = [
        "\n| | target | return by seed (100 held-out games) | steps | seconds, 2 CPU cores |",
        "|---|---|---|---|---|",
    ]
    for name, runs in results.items():
        scores = ", ".join(f"{run['score']:.3g}" for run in runs)
        seconds = statistics.median(run["seconds"] for run in runs)
        target = targets[name.split(", ")[0]]
        lines.append(f"| {name} | {target:g} | {scores} | {runs[0]['steps']:,} | {seconds:.0f} |")
    return "\n".join(lines) + "\n\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", choices=ENVS, default=None)
    parser.add_argument("--algo", choices=ALGOS, default=None)
    parser.add_argument("--runs", default="runs")
    flags = parser.parse_args()
    targets = {env: float(tuned(env)["score"]["target"]) for env in ENVS}
    results: dict[str, list[dict[str, Any]]] = {}
    is_good = True
    for env in ENVS:
        for algo in ALGOS:
            if flags.only not in (None, env) or flags.algo not in (None, algo):
                continue
            runs = results[f"{env}, {algo}"] = [learn(env, algo, seed, flags.runs) for seed in flags.seeds]
            scores = [run["score"] for run in runs]
            is_good = is_good and min(scores) >= targets[env]
            scores_text = ", ".join(f"{score:.4g} in {run['seconds']:.0f} s" for score, run in zip(scores, runs))
            print(f"{env:9} {algo}  target {targets[env]:g}: {scores_text}", flush=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps({**describe_machine(), "found": results}) + "\n")
    if flags.only is None and flags.algo is None:
        text = PAGE.read_text()
        PAGE.write_text(re.sub(MARKS, lambda m: m[1] + table(results, targets) + m[2], text, flags=re.DOTALL))
    return 0 if is_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
