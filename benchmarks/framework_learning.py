"""Does it learn? Envs of other libraries with the defaults of their framework, one run of `shoal train` each.

    python benchmarks/framework_learning.py pong --seed 1 [--device cuda] [--cores 0-7]
    python benchmarks/framework_learning.py unlock --seed 1 --steps 100000     a short run: does the return rise?
    python benchmarks/framework_learning.py --list                             the tasks, their bars, what was reached
    python benchmarks/framework_learning.py spread --baseline                  the scripted players that it must beat
    python benchmarks/framework_learning.py --suite --missing [--seconds 540]  all that has no whole run

`--suite` runs tasks side by side, each on cores of its own. With `--seconds` all of it ends in time: a run that is cut
off is evaluated and recorded with its curve, but does not count as a whole run.

A run is a process of its own: its command is in its line of benchmarks/results/framework_learning.jsonl, with the
curve, the score of 100 held-out episodes (fewer for long ones) and whether it reached the bar. `scripts/frameworks
--docs` writes the scores of whole runs into docs/frameworks.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
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
    baseline: Callable[[], dict[str, float]] | None = None  # scripted players, whose best score is the bar
    cores: int = 1  # that a run of the suite has
    device: str = "cpu"  # of the suite; empty: a GPU if there is one
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


def words(text: str) -> tuple[str, ...]:
    """The flags of a command line."""
    return tuple(text.split())


TASKS = {
    "pong": Task(
        "atari:Pong",
        18.0,
        "points of 21 more than the game's player",
        3_200_000,
        # many envs, so that the policy acts for many at a time; minibatches of 256
        words(
            "--vec.num-envs 128 --train.horizon 32 --train.minibatches 16 --train.learning-rate 5e-4 --train.clip 0.2"
        ),
        episodes=20,
        cores=4,
        device="",
    ),
    "breakout": Task(
        "atari:Breakout",
        30.0,
        "points of whole games, after 4M frames",
        1_000_000,
        words(
            "--vec.num-envs 64 --train.horizon 32 --train.minibatches 8 "
            "--train.learning-rate 5e-4 --env.episodic-life True"
        ),
        episodes=20,
        cores=3,
        device="",
    ),
    "coinrun": Task(
        "procgen:coinrun",
        7.5,
        "return, easy levels",
        5_000_000,
        words("--vec.num-envs 256 --train.horizon 64"),
        cores=2,
        device="",
    ),
    "cartpole": Task("gymnasium:CartPole-v1", 488.75, "return; CleanRL's ppo.py", 500_000),
    "acrobot": Task("gymnasium:Acrobot-v1", -82.48, "return; CleanRL's ppo.py", 500_000),
    "cheetah": Task(
        "dm_control:cheetah-run", 432.56, "return; CleanRL's ppo_continuous_action.py", 1_000_000, episodes=20
    ),
    "basic": Task("vizdoom:Basic", 77.0, "return; Sample Factory's APPO", 300_000),
    "doorkey": Task(
        "minigrid:DoorKey-5x5", 0.96, "return; RL Zoo's PPO has 0.97 with a standard deviation of 0.01", 500_000
    ),
    "unlock": Task("minigrid:Unlock", 0.6, "return", 300_000),
    "fourrooms": Task("minigrid:FourRooms", 0.6, "return", 4_000_000),
    "nethack": Task(
        "nethack:Score",
        400.0,
        "points of the game",
        5_000_000,
        episodes=100,
    ),
    "crafter": Task(
        "crafter:Reward",
        4.6,
        "score in % over the episodes of training; PPO's is 4.6 (Hafner 2021)",
        1_000_000,
        words("--vec.num-envs 32 --train.horizon 128"),
        episodes=16,
        cores=2,
        device="",
        score=crafter_score,
    ),
    "kaz": Task(
        "pettingzoo:butterfly/knights_archers_zombies",
        0.75,  # 30 episodes: random 0.617, always attack 0.75, the others 0
        "zombies of each agent; the best of random and constant actions",
        500_000,
        baseline=lambda: constant_players("pettingzoo:butterfly/knights_archers_zombies", 30),
    ),
    "spread": Task(
        "pettingzoo:mpe2/simple_spread_v3",
        -19.207,  # 200 episodes; random -26.374
        "return of each agent; agents that walk to the nearest landmark",
        1_000_000,
        baseline=spread_players,
    ),
    "connect4": Task(
        "jax:pgx/connect_four",
        50.0,
        "points in % against a player that wins or blocks at once",
        10_000_000,
        ("--league",),
        against=("random", "./benchmarks/connect4_agent.py:OnePly"),
    ),
}


def run(name: str, task: Task, options: argparse.Namespace) -> dict[str, Any]:
    """One run of `shoal train`, and its line of the results."""
    steps = options.steps or task.steps
    episodes = min(10, task.episodes) if options.steps else task.episodes
    with tempfile.TemporaryDirectory() as temporary:
        folder = str(options.runs or temporary)
        Path(folder).mkdir(parents=True, exist_ok=True)
        command = ["train", task.env, "--seed", str(options.seed), "--train.total-steps", str(steps), *task.flags]
        command += ["--eval.episodes", str(episodes), *(["--device", options.device] if options.device else [])]
        command += ["--callback", f"stop_after(seconds={options.seconds:g})"] if options.seconds else []
        command += options.flags
        stats = Path(folder).resolve() / "stats.jsonl"
        stats.unlink(missing_ok=True)
        own = ["--env.stats", str(stats)] if task.score else []  # files of this run, not a part of its record
        began = time.perf_counter()
        process = [sys.executable, "-m", "shoal", *command, *own, "--console", "off", "--runs", folder]
        code = call(process, options.limit)
        seconds = time.perf_counter() - began
        made = all_runs(Path(folder))
        if not made or not made[-1].metrics():
            sys.exit(f"{name}, seed {options.seed}: shoal train ended with code {code}, without a result.")
        found = made[-1]
        summary = found.summary or {}
        metrics = list(found.metrics())
        curve = [(m["step"], round(m["wall_s"], 1), m["episode/return"]) for m in metrics if m.get("episode/n")]
        trained = sum(int(m.get("episode/n") or 0) for m in metrics)
        lines = [json.loads(text) for text in stats.read_text().splitlines()] if task.score else []
        matches = match(found.folder, task.against, folder) if task.against else {}
    evaluation = summary.get("eval") or {}  # none: the run was interrupted, and the last tenth of training counts
    value = float(evaluation["return"] if evaluation else mean([point[2] for point in curve[-1 - len(curve) // 10 :]]))
    # the lines after those of training are of the evaluation
    score = task.score(lines[:trained]) if task.score else 100.0 * list(matches.values())[-1] if matches else value
    return {
        "task": name,
        "env": task.env,
        "command": "shoal " + " ".join(command),
        "seed": options.seed,
        "is_whole": steps == task.steps and not summary.get("reason") and bool(evaluation),
        "steps": summary.get("step") or metrics[-1]["step"],
        "score": round(score, 3),
        "return": round(value, 3),
        "ci95": evaluation.get("ci95"),
        "bar": task.bar,
        "what": task.what,
        "is_reached": score >= task.bar,
        "matches": matches,
        "train_s": round(summary.get("wall_s") or metrics[-1]["wall_s"], 1),
        "seconds": round(seconds, 1),
        "curve": curve[:: max(1, -(-len(curve) // POINTS))],
        "cores": len(os.sched_getaffinity(0)),
        "machine": describe_machine(),
        "commit": commit(),
    }


def call(process: list[str], limit: float) -> int:
    """Runs a command; one that takes longer than `limit` seconds is interrupted, and ended if that does not help."""
    running = subprocess.Popen(process, cwd=ROOT)
    for word, wait in ((signal.SIGINT, limit or None), (signal.SIGKILL, 10.0)):
        try:
            return running.wait(wait)
        except subprocess.TimeoutExpired:
            running.send_signal(word)
    return running.wait()


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


# ---- all of them, side by side ----

RESERVE_S = 50.0  # of a run that must end in time: for what comes before and after training
LEAST_S = 30.0  # of training: with less time a run is not started


@dataclass
class Job:
    """A run of the suite that is under way."""

    name: str
    process: subprocess.Popen[str]
    cores: list[int]
    log: Path


def suite(options: argparse.Namespace) -> None:
    """Runs tasks and seeds side by side, each on cores of its own."""
    done = {(line["task"], line["seed"]) for line in results() if line["is_whole"]}
    chosen = options.suite or list(TASKS)
    waiting = [(name, seed) for seed in options.seeds for name in sorted(chosen, key=lambda name: -TASKS[name].cores)]
    waiting = [one for one in waiting if not (options.missing and one in done)]
    free, running = sorted(os.sched_getaffinity(0)), list[Job]()
    ends = time.monotonic() + options.seconds if options.seconds else math.inf
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.runs or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            while waiting or running:
                for one in list(waiting):
                    left = ends - time.monotonic() - RESERVE_S
                    wanted = min(TASKS[one[0]].cores, len(free) + sum(len(job.cores) for job in running))
                    if left < LEAST_S:
                        waiting.remove(one)
                        print(f"{one[0]}, seed {one[1]}: no time left")
                    elif wanted <= len(free):
                        waiting.remove(one)
                        running.append(start(*one, [free.pop(0) for _ in range(wanted)], left, folder))
                time.sleep(0.5)
                for job in [job for job in running if job.process.poll() is not None]:
                    running.remove(job)
                    free = sorted([*free, *job.cores])
                    print(f"{job.log.read_text().strip()[-600:]}\n", flush=True)
                if time.monotonic() > ends:
                    break
        finally:
            for job in running:
                print(f"{job.name}: stopped", flush=True)
                os.killpg(job.process.pid, signal.SIGTERM)
            for job in running:
                job.process.wait()


def start(name: str, seed: int, cores: list[int], left: float, folder: Path) -> Job:
    """Starts this script for one task and seed."""
    words = [sys.executable, __file__, name, "--seed", str(seed), "--cores", ",".join(map(str, cores))]
    words += ["--runs", str(folder / f"{name}-{seed}"), "--device", TASKS[name].device]
    words += ["--seconds", f"{left:.0f}"] if math.isfinite(left) else []
    log = folder / f"{name}-{seed}.log"
    with log.open("w") as file:
        process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    return Job(f"{name}, seed {seed}", process, cores, log)


def show_list() -> None:
    """The tasks, and the newest whole run of each seed."""
    done = {(line["task"], line["seed"]): line for line in results() if line["is_whole"]}
    for name, task in TASKS.items():
        reached = ", ".join(f"{line['score']:g} (seed {seed})" for (other, seed), line in done.items() if other == name)
        print(f"{name:10} {task.env:46} {task.steps:>11,} steps   bar {task.bar:<8g} {reached or 'not run'}")


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
    parser.add_argument("--seconds", type=float, default=0.0, help="stop training after so long; of a suite: all of it")
    parser.add_argument("--limit", type=float, default=0.0, help="interrupt the run after so long, with its evaluation")
    parser.add_argument("--runs", type=Path, help="a folder for the run, which is kept; default: a temporary one")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="further flags of shoal train, the last")
    parser.add_argument("--list", action="store_true")
    parser.add_argument(
        "--suite", nargs="*", choices=[*TASKS], metavar="TASK", help="these tasks, or all, side by side"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="of the suite (default 1 2)")
    parser.add_argument("--missing", action="store_true", help="of the suite only what has no whole run")
    parser.add_argument("--baseline", action="store_true", help="only the scripted players of the task")
    options = parser.parse_args()
    if options.list:
        show_list()
        return
    if options.suite is not None:
        suite(options)
        return
    if options.task is None:
        parser.error("name a task, or --list, or --suite")
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
