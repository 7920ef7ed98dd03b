"""Does it learn? Envs of other libraries with the defaults of their framework, one run of `shoal train` each.

    python benchmarks/framework_learning.py pong --seed 1 [--device cuda] [--cores 0-7]
    python benchmarks/framework_learning.py unlock --seed 1 --steps 100000     a short run: does the return rise?
    python benchmarks/framework_learning.py --list                             the tasks, their bars, what was reached
    python benchmarks/framework_learning.py spread --baseline                  the scripted players that it must beat

A run is a process of its own: its command is in its line of benchmarks/results/framework_learning.jsonl, with the
curve, the score of 100 held-out episodes (fewer for long ones) and whether it reached the bar. `scripts/frameworks
--docs` writes the scores of whole runs into docs/frameworks.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from shoal.measure import describe_machine
from shoal.runs import all_runs, commit

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results/framework_learning.jsonl"
POINTS = 200  # of a stored curve


@dataclass(frozen=True)
class Task:
    """One env, its command's flags, and what counts as learned."""

    env: str
    bar: float
    what: str  # the score, and where its bar is from
    steps: int
    flags: tuple[str, ...] = ()
    episodes: int = 100  # of the final evaluation
    score: Callable[[list[dict[str, Any]]], float] | None = None  # of the episodes of training; None: the evaluation's
    baseline: Callable[[], dict[str, float]] | None = None  # scripted players; the bar is that of the best
    against: tuple[str, ...] = ()  # players of a match afterwards; the score is the points in % against the last


def crafter_score(lines: list[dict[str, Any]]) -> float:
    """Crafter's score in %: the geometric mean of the success rates of its achievements (Hafner 2021)."""
    names = [name for name in lines[0] if name.startswith("achievement_")]
    rates = [100.0 * mean(float(line[name] > 0) for line in lines) for name in names]
    return math.exp(mean(math.log(1.0 + rate) for rate in rates)) - 1.0


# ---- scripted players ----


def play(env: str, act: Callable[[Any, np.random.Generator], Any], episodes: int = 100) -> float:
    """The mean return of an agent over episodes, with actions of `act(observations, random numbers)`."""
    import shoal

    vec: Any = shoal.make(env, 1, backend="serial", seed=12345)
    obs, _ = vec.reset()
    random = np.random.default_rng(0)
    done = 0
    sums: list[float] = []
    while done < episodes:
        obs, *_ = vec.step(act(obs, random))
        stats = vec.drain_stats()
        if stats["episodes"]:
            done += stats["episodes"]
            sums += [stats["return"]["mean"]] * stats["episodes"]
    vec.close()
    return mean(sums)


def constant_players(env: str, episodes: int) -> dict[str, float]:
    """Random actions, and each action all the time."""
    import shoal

    vec: Any = shoal.make(env, 1, backend="serial")
    choices, rows = int(vec.single_action_space.n), vec.num_rows
    vec.close()

    def always(actions: Any, obs: Any, random: Any) -> Any:
        return actions

    found = {"random": play(env, lambda obs, random: random.integers(0, choices, rows), episodes)}
    for action in range(choices):
        found[f"always {action}"] = play(env, partial(always, np.full(rows, action)), episodes)
    return found


def spread_players() -> dict[str, float]:
    """simple_spread: random actions, and agents that walk to the landmark that is nearest to each."""
    env = "pettingzoo:mpe2/simple_spread_v3"

    def nearest(obs: Any, random: np.random.Generator) -> Any:
        # obs: own velocity (2), own place (2), landmarks relative to it (3 x 2), other agents (2 x 2), messages (4)
        actions = []
        for row in np.asarray(obs):
            x, y = min(row[4:10].reshape(3, 2), key=lambda place: float(np.hypot(*place)))
            actions.append((2 if x > 0 else 1) if abs(x) > abs(y) else (4 if y > 0 else 3))
        return np.array(actions)

    return {
        "random": play(env, lambda obs, random: random.integers(0, 5, len(obs)), 200),
        "walks to the nearest landmark": play(env, nearest, 200),
    }


# ---- tasks ----

# 16 envs and minibatches of 256, as 8 envs and 4 minibatches have: the same updates for each step
ATARI = ("--vec.num-envs", "16", "--train.minibatches", "8", "--train.learning-rate", "5e-4")

TASKS = {
    "pong": Task(
        "atari:Pong",
        18.0,
        "points of 21 more than the game's player",
        2_400_000,
        ("--vec.num-envs", "32", "--train.horizon", "64", *ATARI[2:]),
        episodes=20,
    ),
    "breakout": Task(
        "atari:Breakout",
        30.0,
        "points of whole games, after 4M frames",
        1_000_000,
        (*ATARI, "--env.episodic-life", "True"),
        episodes=20,
    ),
    "coinrun": Task("procgen:coinrun", 7.5, "return, easy levels", 5_000_000),
    "unlock": Task("minigrid:Unlock", 0.6, "return", 2_000_000),
    "fourrooms": Task("minigrid:FourRooms", 0.6, "return", 2_000_000),
    "nethack": Task(
        "nethack:Score",
        400.0,
        "points of the game",
        5_000_000,
        ("--vec.num-envs", "256", "--train.horizon", "32", "--train.learning-rate", "5e-4"),
        episodes=32,
    ),
    "crafter": Task(
        "crafter:Reward",
        4.6,
        "score in % over the episodes of training; PPO's is 4.6 (Hafner 2021)",
        1_000_000,
        episodes=16,
        score=crafter_score,
    ),
    "kaz": Task(
        "pettingzoo:butterfly/knights_archers_zombies",
        0.0,
        "zombies of each agent; the best of random and constant actions",
        2_000_000,
        baseline=lambda: constant_players("pettingzoo:butterfly/knights_archers_zombies", 30),
    ),
    "spread": Task(
        "pettingzoo:mpe2/simple_spread_v3",
        0.0,
        "return of each agent; agents that walk to the nearest landmark",
        1_000_000,
        baseline=spread_players,
    ),
    "connect4": Task(
        "jax:pgx/connect_four",
        50.0,
        "points in % against a player that wins or blocks at once",
        2_000_000,
        ("--league", "--nn.hidden", "256"),
        against=("random", "./benchmarks/connect4_agent.py:OnePly"),
    ),
}


def run(name: str, task: Task, options: argparse.Namespace) -> dict[str, Any]:
    """One run of `shoal train`, and its line of the results."""
    steps = options.steps or task.steps
    episodes = min(10, task.episodes) if options.steps else task.episodes
    bar, players = task.bar, {}
    if options.bar is not None:
        bar = options.bar
    elif task.baseline is not None:
        players = task.baseline()
        bar = max(players.values())
    with tempfile.TemporaryDirectory() as temporary:
        folder = str(options.runs or temporary)
        Path(folder).mkdir(parents=True, exist_ok=True)
        command = ["train", task.env, "--seed", str(options.seed), "--train.total-steps", str(steps), *task.flags]
        command += ["--eval.episodes", str(episodes), *(["--device", options.device] if options.device else [])]
        command += ["--callback", f"stop_after(seconds={options.seconds:g})"] if options.seconds else []
        command += options.flags
        stats = Path(folder).resolve() / "stats.jsonl"
        command += ["--env.stats", str(stats)] if task.score else []
        began = time.perf_counter()
        process = [sys.executable, "-m", "shoal", *command, "--console", "off", "--runs", folder]
        subprocess.run(process, check=True, cwd=ROOT)
        seconds = time.perf_counter() - began
        found = all_runs(Path(folder))[-1]
        summary = found.summary or {}
        curve = [(m["step"], round(m["wall_s"], 1), m["episode/return"]) for m in found.metrics() if m.get("episode/n")]
        trained = sum(int(m.get("episode/n") or 0) for m in found.metrics())
        lines = [json.loads(text) for text in stats.read_text().splitlines()] if task.score else []
        matches = match(found.folder, task.against, folder) if task.against else {}
    # the lines after those of training are of the evaluation
    score = task.score(lines[:trained]) if task.score else float(summary["eval"]["return"])
    score = 100.0 * list(matches.values())[-1] if matches else score
    return {
        "task": name,
        "env": task.env,
        "command": "shoal " + " ".join(command),
        "seed": options.seed,
        "is_whole": steps == task.steps and not summary.get("reason"),
        "steps": summary["step"],
        "score": round(score, 3),
        "return": round(summary["eval"]["return"], 3),
        "ci95": summary["eval"]["ci95"],
        "bar": round(bar, 3),
        "what": task.what,
        "is_reached": score >= bar,
        "matches": matches,
        "scripted": {who: round(value, 3) for who, value in players.items()},
        "train_s": round(summary["wall_s"], 1),
        "seconds": round(seconds, 1),
        "curve": curve[:: max(1, len(curve) // POINTS)],
        "cores": len(os.sched_getaffinity(0)),
        "machine": describe_machine(),
        "commit": commit(),
    }


def match(run: Path, against: tuple[str, ...], folder: str, games: int = 400) -> dict[str, float]:
    """The share of the points of a run against each of these players."""
    file = Path(folder) / "match.json"
    words = ["match", str(run), *against, "--games", str(games), "--json", str(file)]
    subprocess.run([sys.executable, "-m", "shoal", *words], check=True, cwd=ROOT)
    facts = json.loads(file.read_text())
    own = facts["players"][0]["name"]
    return {line["opponent"]: line["score"] for line in facts["results"] if line["player"] == own}


def results() -> list[dict[str, Any]]:
    """All lines of the results."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.is_file() else []


def show_list() -> None:
    """The tasks, and the newest whole run of each seed."""
    done = {(line["task"], line["seed"]): line for line in results() if line["is_whole"]}
    for name, task in TASKS.items():
        bar = "of scripted players" if task.baseline else f"{task.bar:g}"
        reached = ", ".join(f"{line['score']:g} (seed {seed})" for (other, seed), line in done.items() if other == name)
        print(f"{name:10} {task.env:46} {task.steps:>11,} steps   bar {bar:20} {reached or 'not run'}")


def show(line: dict[str, Any]) -> None:
    returns = [point[2] for point in line["curve"]]
    fifth = max(1, len(returns) // 5)
    first, last = (mean(part) if part else math.nan for part in (returns[:fifth], returns[-fifth:]))
    verdict = "reached" if line["is_reached"] else "not reached"
    print(f"{line['task']}, seed {line['seed']}: score {line['score']:g}, bar {line['bar']:g}: {verdict}")
    print(f"training's return {first:.3f} at first, {last:.3f} at last; {line['steps']:,} steps, {line['train_s']:g} s")


def cores(text: str) -> set[int]:
    """`0-3` or `1,5`."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", choices=TASKS, metavar="TASK", help=f"one of {', '.join(TASKS)}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="", help="cpu or cuda; default: by the machine")
    parser.add_argument("--cores", type=cores, help="the cores that it may use: 0-7 or 1,5")
    parser.add_argument("--steps", type=int, default=0, help="fewer steps than the task has; not counted as a result")
    parser.add_argument("--seconds", type=float, default=0.0, help="stop training after so long; not a whole run then")
    parser.add_argument("--bar", type=float, help="the score of scripted players, if it is known (--baseline)")
    parser.add_argument("--runs", type=Path, help="a folder for the run, which is kept; default: a temporary one")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="further flags of shoal train, the last")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--baseline", action="store_true", help="only the scripted players of the task")
    options = parser.parse_args()
    if options.list:
        show_list()
        return
    if options.task is None:
        parser.error("name a task, or --list")
    task = TASKS[options.task]
    if options.cores:
        os.sched_setaffinity(0, options.cores)
    if options.baseline:
        for who, value in (task.baseline() if task.baseline else {"none": math.nan}).items():
            print(f"{who}: {value:.3f}")
        return
    line = run(options.task, task, options)
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")
    show(line)


if __name__ == "__main__":
    main()
