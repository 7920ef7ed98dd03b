"""Do the defaults learn? `shoal train gymnasium:NAME` on public tasks, with no other options.

    pip install -e ".[dev]" "gymnasium[mujoco,box2d]" minigrid ale-py pillow
    python benchmarks/defaults.py [--tasks cartpole hopper] [--seeds 1 2 3] [--jobs 16] [--budget-s 570]
    python benchmarks/defaults.py --table             only print the table, and write it to docs/learning.md

The command has the number of steps, the seed, and `--nn.core` for tasks without velocities. A task has a mark: what was
published for PPO, or 90 % of the best return. The score is the mean return of the final evaluation, 100 held-out
episodes: with greedy actions, except for MiniGrid and Atari, where actions are sampled. A task reaches its mark if the
mean score over the seeds does. (Boxing: 20 episodes, which take as long as a third of its training.)

Each run is one process on one core, `--jobs` of them at a time (`--cores 4 --device cuda` helps with boxing, whose
network is large). A finished run is a line of
benchmarks/results/defaults.jsonl and is not repeated. After `--budget-s` seconds, or Ctrl-C, the runs save a checkpoint
and stop; the next call resumes them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "benchmarks/results/defaults.jsonl", ROOT / "docs/learning.md"
MARKS = r"(<!-- Written by benchmarks/defaults.py -->\n).*?(<!-- The end of what defaults.py writes. -->)"
ZOO, CLEANRL, TD3 = "RL Baselines3 Zoo", "CleanRL", "Fujimoto et al. 2018"


@dataclass(frozen=True)
class Task:
    env: str  # gymnasium:ENV
    steps: int
    mark: float
    source: str
    flags: tuple[str, ...] = ()
    sampled: bool = False  # the sampled return counts, not the greedy one
    weight: float = 1.0  # seconds of a run, relative to others of as many steps
    episodes: int = 100  # of the final evaluation, with greedy actions and with sampled ones


LSTM, MINGRU = ("--nn.core", "lstm"), ("--nn.core", "mingru")
TASKS = {
    "cartpole": Task("CartPole-v1", 100_000, 475.0, "solved: 475"),
    "mountaincar": Task("MountainCar-v0", 300_000, -110.4, f"{ZOO}, 1M steps"),
    "mountaincar-continuous": Task("MountainCarContinuous-v0", 300_000, 88.3, f"{ZOO}, with gSDE"),
    "pendulum": Task("Pendulum-v1", 200_000, -172.2, f"{ZOO}, with gSDE"),
    "acrobot": Task("Acrobot-v1", 200_000, -100.0, "solved: -100"),
    "lunarlander": Task("LunarLander-v3", 1_000_000, 200.0, "solved: 200"),
    "lunarlander-continuous": Task("LunarLanderContinuous-v3", 1_000_000, 200.0, "solved: 200"),
    "halfcheetah": Task("HalfCheetah-v5", 1_000_000, 1442.6, f"{CLEANRL}, v4"),
    "hopper": Task("Hopper-v5", 1_000_000, 2382.9, f"{CLEANRL}, v4", weight=1.3),
    "ant": Task("Ant-v5", 1_000_000, 1083.2, f"PPO in {TD3}, v1", weight=2.0),
    "swimmer": Task("Swimmer-v5", 1_000_000, 100.0, "Schulman et al. 2017, figure 3"),
    "reacher": Task("Reacher-v5", 500_000, -6.18, f"PPO in {TD3}, v1"),
    "pusher": Task("Pusher-v5", 1_000_000, -40.4, f"{CLEANRL}, v4"),
    "pendulum-novel, lstm": Task(
        "default_envs:PendulumNoVel-v1", 1_000_000, -217.9, f"RecurrentPPO in {ZOO}", LSTM, weight=3.0
    ),
    "pendulum-novel, mingru": Task(
        "default_envs:PendulumNoVel-v1", 1_000_000, -217.9, f"RecurrentPPO in {ZOO}", MINGRU, weight=2.0
    ),
    "acrobot-novel, lstm": Task("default_envs:AcrobotNoVel-v1", 200_000, -100.0, "solved: -100", LSTM, weight=3.0),
    "acrobot-novel, mingru": Task("default_envs:AcrobotNoVel-v1", 200_000, -100.0, "solved: -100", MINGRU, weight=2.0),
    "minigrid-empty": Task(
        "default_envs:NoText-Empty-8x8-v0", 100_000, 0.86, "90 % of the best return", sampled=True, weight=1.5
    ),
    "minigrid-fourrooms": Task(
        "default_envs:NoText-FourRooms-v0", 2_000_000, 0.573, f"{ZOO}, 5M steps", sampled=True, weight=1.5
    ),
    "minigrid-unlock": Task(
        "default_envs:NoText-Unlock-v0", 200_000, 0.87, "90 % of the best return", sampled=True, weight=1.5
    ),
    "reacher-choices": Task("default_envs:ReacherChoices-v5", 500_000, -6.18, f"as reacher, {TD3}"),
    "boxing": Task(
        "default_envs:Boxing-v5", 250_000, 12.1, "a human player; 1M frames", sampled=True, weight=20.0, episodes=20
    ),
}  # fmt: skip
Key = tuple[str, int]


# ---- results ----


def finished() -> dict[Key, dict[str, Any]]:
    """The last line of each task and seed, of runs with the task's present number of steps."""
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.is_file() else []
    return {
        (line["task"], line["seed"]): line
        for line in lines
        if line["task"] in TASKS and line["asked_steps"] == TASKS[line["task"]].steps
    }


def row_of(name: str, seed: int, folder: Path, seconds: float) -> dict[str, Any]:
    """The facts about a finished run."""
    from shoal.measure import describe_machine
    from shoal.runs import Run

    task, run = TASKS[name], Run(folder)
    summary = run.summary or {}
    modes = {mode: facts["return"] for mode, facts in summary["eval"]["modes"].items()}
    return {
        "task": name,
        "env": task.env,
        "flags": task.flags,
        "seed": seed,
        "asked_steps": task.steps,
        "steps": summary["step"],
        "score": modes["sampled" if task.sampled else "greedy"],
        "modes": modes,
        "mark": task.mark,
        "train_s": round(summary["wall_s"], 1),
        "seconds": round(seconds, 1),
        "machine": describe_machine(),
    }


def table(tasks: list[str]) -> str:
    """All tasks in Markdown: those that failed and those that were not run, too."""
    done = finished()
    rows = [
        "| task | steps | mark | score by seed | mean | seconds of a run | |",
        "|---|---|---|---|---|---|---|",
    ]
    reached = 0
    for name in tasks:
        task, lines = TASKS[name], [line for key, line in sorted(done.items()) if key[0] == name]
        mark = f"{task.mark:g} ({task.source})"
        if not lines:
            rows.append(f"| {name} | {task.steps / 1e6:g}M | {mark} | not run | | | |")
            continue
        scores = [line["score"] for line in lines]
        seconds = [line["seconds"] for line in lines]
        is_reached = fmean(scores) >= task.mark
        reached += is_reached
        cells = [name, f"{task.steps / 1e6:g}M", mark, ", ".join(f"{score:.4g}" for score in scores)]
        cells += [f"{fmean(scores):.4g}", f"{min(seconds):.0f} to {max(seconds):.0f}"]
        rows.append(f"| {' | '.join(cells)} | {'' if is_reached else 'missed'} |")
    return "\n".join([*rows, "", f"{reached} of {len(tasks)} tasks reach their mark."])


def write_page(text: str) -> None:
    page = PAGE.read_text()
    PAGE.write_text(re.sub(MARKS, lambda match: f"{match[1]}{text}\n{match[2]}", page, flags=re.DOTALL))


# ---- runs ----


def command(task: Task, seed: int, runs: Path, device: str) -> list[str]:
    """`shoal train`. A run that was stopped is resumed."""
    start = [sys.executable, "-m", "shoal", "train"]
    session = ["--console", "off", "--runs", str(runs), "--eval.episodes", str(task.episodes)]
    if stopped := unfinished(runs):
        return [*start, "--resume", str(stopped), *session]
    given = ["--train.total-steps", str(task.steps), "--seed", str(seed), "--device", device, *task.flags]
    return [*start, f"gymnasium:{task.env}", *given, *session]


def folders(runs: Path) -> list[Path]:
    return sorted(path.parent for path in runs.glob("**/run.json"))


def unfinished(runs: Path) -> Path | None:
    """The run that was stopped after a checkpoint, if there is one."""
    return next((path for path in folders(runs) if any(path.glob("checkpoints/*/meta.json"))), None)


def run_one(
    name: str, seed: int, cores: list[int], runs: Path, device: str, start: Callable[[Any], None]
) -> dict[str, Any] | None:
    """One run, pinned to its cores. None: it was stopped; the next call resumes it."""
    folder = runs / re.sub(r"\W+", "-", name) / str(seed)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    threads = str(len(cores))
    env = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONPATH": os.pathsep.join(paths)}
    spent, began = folder / "seconds", time.perf_counter()
    with (folder / "output.txt").open("a") as output:
        process = subprocess.Popen(
            command(TASKS[name], seed, folder, device),
            cwd=ROOT,
            env=env,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
            start_new_session=True,
        )
        start(process)
        code = process.wait()
    seconds = time.perf_counter() - began + (float(spent.read_text()) if spent.is_file() else 0.0)
    spent.write_text(str(seconds))
    if code in (128 + signal.SIGTERM, -signal.SIGTERM, -signal.SIGKILL):
        return None
    if code:
        raise RuntimeError(f"{name}, seed {seed}: exit code {code}. {(folder / 'output.txt').read_text()[-600:]}")
    return row_of(name, seed, folders(folder)[-1], seconds)


class Pool:
    """Runs at a time, each on cores of its own, the longest first."""

    def __init__(self, work: list[Key], cores: list[list[int]], runs: Path, device: str, budget_s: float) -> None:
        self.work: Queue[Key] = Queue()
        for key in sorted(work, key=lambda key: -TASKS[key[0]].steps * TASKS[key[0]].weight):
            self.work.put(key)
        self.cores, self.runs, self.device, self.processes = cores, runs, device, set[Any]()
        self.lock, self.is_stopping = threading.Lock(), False
        self.until = time.monotonic() + budget_s if budget_s else float("inf")
        self.failures: list[str] = []

    def run(self) -> None:
        threads = [threading.Thread(target=self._on_cores, args=(cores,)) for cores in self.cores]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                time.sleep(0.2)
                if time.monotonic() > self.until and not self.is_stopping:
                    self.stop()
        except KeyboardInterrupt:
            self.stop()
        for thread in threads:
            thread.join()

    def stop(self) -> None:
        """Makes every run save a checkpoint and end."""
        with self.lock:
            self.is_stopping = True
            for process in self.processes:
                process.send_signal(signal.SIGTERM)

    def _begin(self, process: Any) -> None:
        with self.lock:
            self.processes.add(process)
            if self.is_stopping:
                process.send_signal(signal.SIGTERM)

    def _on_cores(self, cores: list[int]) -> None:
        while not self.is_stopping:
            try:
                name, seed = self.work.get_nowait()
            except Empty:
                return
            try:
                row = run_one(name, seed, cores, self.runs, self.device, self._begin)
            except (RuntimeError, OSError, KeyError, IndexError) as error:
                self.failures.append(str(error))
                print(f"failed: {error}", flush=True)
                continue
            if row is None:
                continue
            with self.lock, RESULTS.open("a") as file:
                file.write(json.dumps(row) + "\n")
            score, mark = row["score"], row["mark"]
            verdict = "reached" if score >= mark else "below the mark"
            print(f"{name:24} seed {seed} {score:9.4g}  mark {mark:8g}  {row['seconds']:6.0f} s  {verdict}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS), metavar="TASK")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--cores", type=int, default=1, help="cores of a run")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--budget-s", type=float, default=0.0, help="stop after this many seconds; 0: run all")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "defaults", help="folder of the runs")
    parser.add_argument("--table", action="store_true", help="only print the table and write it to docs/learning.md")
    args = parser.parse_args()
    if args.table:
        write_page(table(list(TASKS)))
        print(table(args.tasks))
        return
    done = finished()
    work = [(name, seed) for name in args.tasks for seed in args.seeds if (name, seed) not in done]
    own = sorted(os.sched_getaffinity(0))
    cores = [own[k * args.cores : (k + 1) * args.cores] or own for k in range(args.jobs)]
    RESULTS.parent.mkdir(exist_ok=True)
    pool = Pool(work, cores, args.runs, args.device, args.budget_s)
    pool.run()
    print(table(args.tasks))
    left = [key for key in work if key not in finished()]
    if left:
        print(f"{len(left)} runs are left. The same command continues.")
    sys.exit(bool(pool.failures))


if __name__ == "__main__":
    main()
