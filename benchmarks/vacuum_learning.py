"""What DQN learns as a robot vacuum: robot 0 against scripted robots, compared with every scripted robot as robot 0.

    python benchmarks/vacuum_learning.py [--seeds 1 2 3 4 5] [--episodes 16384] [--only classic-1v3] [--page]

Each setting is trained with the tuned options (`shoal/envs/vacuum.toml`), once for each seed, and evaluated on held-out
games with its best actions. Figures are of robot 0: return, robots killed, charges of all. Appends to
benchmarks/results/vacuum_learning.jsonl and writes docs/vacuum-learning.md, which also shows the results of
`benchmarks/gpu.py vacuum`. `--page` only writes the page.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import shoal
from shoal import evaluate, plot
from shoal.measure import describe_machine
from shoal.runs import Run
from shoal.train import load_player, train

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "benchmarks" / "results" / "vacuum_learning.jsonl", ROOT / "docs" / "vacuum-learning.md"
GPU_RESULTS = ROOT / "benchmarks" / "results" / "gpu.jsonl"
IMAGES = ROOT / "docs" / "images" / "vacuum"
SCRIPTED = ("stay", "random", "safe-random", "seek", "flee", "opportunistic", "hunt")
DUEL: dict[str, Any] = {"reward_scale": 1.0, "gamma": 0.99, "n_step": 5, "layer_norm": True, "total_steps": 600_000}
DUEL |= {"schedule": "linear", "epsilon_fraction": 0.6, "epsilon_end": 0.02, "replay_size": 200_000}
LONG: dict[str, Any] = {"total_steps": 6_000_000, "schedule": "linear", "gamma": 0.99, "n_step": 1}
LONG |= {"epsilon_end": 0.001, "replay_size": 400_000, "target_tau": 0.005}
SETTINGS: list[tuple[str, tuple[str, ...], dict[str, Any], dict[str, Any]]] = [
    ("classic-1v3", ("opportunistic",) * 3, {}, {}),
    ("classic-1v3", ("seek",) * 3, {}, {}),
    ("classic-1v3", ("safe-random",) * 3, LONG, {"num_envs": 64}),
    ("duel-stun", ("seek",), DUEL, {"num_envs": 64}),
]
STATS = ("kills_0", "charges", "hits_on_charger", "hits_off_charger")


class Scripted:
    """A player for seats that scripted robots play: the env ignores its actions."""

    judged = (0,)

    def reset(self, num_rows: int) -> None:
        """Starts an episode."""
        self.nothing = np.zeros(num_rows, np.int64)

    def act(self, obs: Any, infos: Any) -> Any:
        """Any action: the env ignores it."""
        return self.nothing

    def observe(self, done: Any) -> None:
        """Nothing to clear."""


def summary(score: evaluate.Score) -> dict[str, float]:
    """The figures of an evaluation."""
    return {"return": score.mean} | {name: float(np.mean(score.stats[name])) for name in STATS}


def scripted(preset: str, others: tuple[str, ...], robot: str, episodes: int) -> dict[str, float]:
    """A scripted robot 0."""
    seats: dict[str, Any] = {f"robot_{k}": who for k, who in enumerate((robot, *others))}
    creator = partial(shoal.make, "vacuum", preset=preset, **seats)
    return summary(evaluate.play(creator, Scripted(), episodes, 1 << 20))


def learned(
    preset: str,
    others: tuple[str, ...],
    options: dict[str, Any],
    vec: dict[str, Any],
    seed: int,
    episodes: int,
    runs: str,
) -> dict[str, Any]:
    """A trained robot 0."""
    opponents = ",".join(f"{k}={who}" for k, who in enumerate(others, 1))
    began = time.perf_counter()
    run = train(
        "vacuum",
        algo="dqn",
        seed=seed,
        device="cpu",
        opponents=opponents,
        env={"preset": preset},
        train=options,
        vec=vec,
        eval={"episodes": 0},
        runs_folder=runs,
        console="off",
    )
    seconds = time.perf_counter() - began
    player, about = load_player(run, run.last)
    score = evaluate.play(partial(shoal.make, about.pop("env"), **about), player, episodes, seed << 20)
    return {**summary(score), "seconds": seconds, "steps": float((run.summary or {})["step"]), "run": str(run.folder)}


def draw(one: dict[str, Any]) -> None:
    """Curves of all seeds, and a game of the seed that hits most, as pictures beside the page."""
    name = picture(one)
    finished = [Run(Path(figures["run"])) for figures in one["learned"].values()]
    plot.write_png(plot.figure(finished), IMAGES / f"{name}.png")
    best = max(one["learned"].values(), key=lambda f: (f["kills_0"], f["return"]))
    player, about = load_player(Run(Path(best["run"])), Run(Path(best["run"])).last)
    creator = partial(shoal.make, about.pop("env"), **about)
    evaluate.record(creator, player, IMAGES / f"{name}.gif", width=240, fps=6, max_steps=40)


def picture(one: dict[str, Any]) -> str:
    """The name of a setting's pictures."""
    return f"{one['preset']}-{one['others'][0]}"


def page(results: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [
        "# What a robot vacuum learns\n",
        "<!-- Written by benchmarks/vacuum_learning.py: run that, do not edit this. -->\n",
        "DQN trains robot 0 against scripted robots. It is evaluated greedily on held-out games. The tables also have",
        "every scripted robot in the same seat. The game: [vacuum](envs/vacuum.md).\n",
        "In classic-1v3 a robot that stays on the charger wins. The highest return is 9,940: 497 charges of 20.",
        "A robot that finds others on the charger must push them off. In duel-stun only one robot can charge. DQN",
        "takes the charger and keeps the other off it; on some seeds it kills it.\n",
    ]
    for one in results:
        lines += [f"## {one['preset']}, against {', '.join(one['others'])}\n"]
        name = picture(one)
        if (IMAGES / f"{name}.png").is_file():
            lines += [f"![learning curves](images/vacuum/{name}.png) ![the first 40 steps](images/vacuum/{name}.gif)\n"]
        lines += ["| robot 0 | return | robots killed | hits on / off the charger |", "|---|---|---|---|"]
        rows = [(f"DQN, seed {seed}", figures) for seed, figures in one["learned"].items()]
        rows += list(one["scripted"].items())
        for name, f in rows:
            hits = f"{f['hits_on_charger']:.1f} / {f['hits_off_charger']:.1f}"
            lines.append(f"| {name} | {f['return']:,.1f} | {f['kills_0']:.2f} | {hits} |")
        runs = list(one["learned"].values())
        kills = [f["kills_0"] for f in runs]
        lines.append(
            f"\nKills per game, {len(runs)} seeds: {statistics.mean(kills):.2f} "
            f"({min(kills):.2f} .. {max(kills):.2f}). A run: {runs[0]['steps']:,.0f} steps of robot 0, "
            f"{statistics.median(f['seconds'] for f in runs):.0f} s.\n"
        )
    return "\n".join([*lines, *on_a_gpu()])


def on_a_gpu() -> list[str]:
    """The last results of `benchmarks/gpu.py vacuum`."""
    records = [json.loads(line) for line in GPU_RESULTS.read_text().splitlines()]
    results = [record for record in records if "vacuum" in record]
    if not results:
        return []
    record, lines = results[-1], ["## On a GPU\n"]
    lines += [
        f"The same on one {record['gpu']}, with the options of `[dqn.cuda]`: 20 million steps of robot 0, or 40",
        "million against safe-random. Each policy plays 65,536 games (`benchmarks/gpu.py vacuum`), which give the",
        "return against safe-random to 0.06. In duel-stun rewards are not scaled, returns have five steps, and the",
        "network has LayerNorm.\n",
        "| robot 0 against | best scripted robot 0 | DQN, five seeds | kills of each seed | seconds |",
        "|---|---|---|---|---|",
    ]
    for name, one in record["vacuum"].items():
        best = max(one["scripted"], key=lambda robot: one["scripted"][robot]["return"])
        runs = list(one["learned"].values())
        returns = ", ".join(f"{f['return']:,.1f}" for f in runs)
        kills = ", ".join(f"{f['kills_0']:.2f}" for f in runs)
        seconds = statistics.median(f["seconds"] for f in runs)
        script = f"{best} {one['scripted'][best]['return']:,.1f}"
        lines.append(f"| {name} | {script} | {returns} | {kills} | {seconds:.1f} |")
    return [*lines, ""]


def newest() -> list[dict[str, Any]]:
    """The last results of every setting."""
    records = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    last = {(one["preset"], one["others"][0]): one for record in records for one in record["found"]}
    return [last[preset, others[0]] for preset, others, *_ in SETTINGS if (preset, others[0]) in last]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--episodes", type=int, default=16_384)
    parser.add_argument("--only", default="", help="only settings with this preset or these opponents")
    parser.add_argument("--runs", default="runs")
    parser.add_argument("--page", action="store_true", help="only write the page, from the last results")
    flags = parser.parse_args()
    if flags.page:
        PAGE.write_text(page(newest()))
        return
    IMAGES.mkdir(parents=True, exist_ok=True)
    results = []
    for preset, others, options, vec in SETTINGS:
        if flags.only and flags.only not in (preset, others[0]):
            continue
        one: dict[str, Any] = {"preset": preset, "others": others, "learned": {}}
        one["scripted"] = {robot: scripted(preset, others, robot, flags.episodes) for robot in SCRIPTED}
        best = max(one["scripted"], key=lambda robot: one["scripted"][robot]["return"])
        print(f"{preset} against {others[0]}: scripted {best} {one['scripted'][best]['return']:.1f}", flush=True)
        for seed in flags.seeds:
            figures = learned(preset, others, options, vec, seed, flags.episodes, flags.runs)
            one["learned"][seed] = figures
            figures_text = ", ".join(f"{name} {figures[name]:,.1f}" for name in ("return", *STATS, "seconds"))
            print(f"  seed {seed}: {figures_text}", flush=True)
        results.append(one)
        draw(one)
        for figures in one["learned"].values():
            del figures["run"]  # a folder of this machine
    record = {**describe_machine(), "episodes": flags.episodes, "found": results}
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(record) + "\n")
    PAGE.write_text(page(newest()))


if __name__ == "__main__":
    main()
