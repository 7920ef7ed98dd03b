"""Tasks without velocities: Shoal's LSTM and MinGRU against sb3-contrib's RecurrentPPO, after equally many steps.

    pip install -e ".[dev]" sb3-contrib
    python benchmarks/recurrent.py [--tasks cartpole] [--seeds 1 2 3] [--jobs 16] [--budget-s 570]
    python benchmarks/recurrent.py --table            only print the table, and write it to docs/learning.md

lstm, mingru     `shoal train gymnasium:NAME --nn.core CORE`, no other options
RecurrentPPO     `RecurrentPPO("MlpLstmPolicy", env)` with 8 envs, no other options
RecurrentPPO*    with the options that RL Baselines3 Zoo tuned for the task, where it has some

The score is the mean return of 100 episodes after training, with greedy actions. Each run is one process on one core,
and its seconds are those of training alone. A finished run is a line of benchmarks/results/recurrent.jsonl and is not
repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "benchmarks/results/recurrent.jsonl", ROOT / "docs/learning.md"
MARKS = r"(<!-- Written by benchmarks/recurrent.py -->\n).*?(<!-- The end of what recurrent.py writes. -->)"
EPISODES, PEER_ENVS = 100, 8
LEARNERS = ("lstm", "mingru", "RecurrentPPO", "RecurrentPPO*")


@dataclass(frozen=True)
class Task:
    env: str  # of default_envs.py
    steps: int
    zoo: dict[str, Any] = field(default_factory=dict)  # RL Baselines3 Zoo's options; "n_envs" among them


TASKS = {
    "pendulum": Task(
        "PendulumNoVel-v1",
        100_000,
        {
            "n_envs": 4,
            "n_steps": 1024,
            "gae_lambda": 0.95,
            "gamma": 0.9,
            "n_epochs": 10,
            "ent_coef": 0.0,
            "learning_rate": 1e-3,
            "use_sde": True,
            "sde_sample_freq": 4,
        },
    ),
    "cartpole": Task(
        "CartPoleNoVel-v1",
        50_000,
        {
            "n_envs": 8,
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
            "learning_rate": lambda left: 1e-3 * left,
            "clip_range": lambda left: 0.2 * left,
        },
    ),
    "acrobot": Task("AcrobotNoVel-v1", 50_000),
}
Key = tuple[str, str, int]  # task, learner, seed


# ---- one run, in a process of its own ----


def train_peer(task: Task, learner: str, seed: int) -> dict[str, Any]:
    """RecurrentPPO on one core."""
    import default_envs  # noqa: F401  (registers the envs)
    import torch
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    torch.set_num_threads(1)
    options = dict(task.zoo) if learner == "RecurrentPPO*" else {}
    envs = make_vec_env(task.env, options.pop("n_envs", PEER_ENVS), seed=seed)
    model = RecurrentPPO("MlpLstmPolicy", envs, seed=seed, device="cpu", **options)
    began = time.perf_counter()
    model.learn(task.steps)
    seconds = time.perf_counter() - began
    score, _ = evaluate_policy(model, make_vec_env(task.env, PEER_ENVS, seed=seed + 1000), EPISODES)
    return {"score": float(score), "train_s": seconds, "steps": model.num_timesteps}


def train_shoal(task: Task, core: str, seed: int) -> dict[str, Any]:
    """`shoal train` on one core."""
    with tempfile.TemporaryDirectory() as folder:
        given = ["--nn.core", core, "--train.total-steps", str(task.steps), "--seed", str(seed), "--device", "cpu"]
        session = ["--console", "off", "--runs", folder, "--eval.episodes", str(EPISODES)]
        command = [sys.executable, "-m", "shoal", "train", f"gymnasium:default_envs:{task.env}", *given, *session]
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
        summary = json.loads(next(Path(folder).glob("**/summary.json")).read_text())
    return {
        "score": summary["eval"]["modes"]["greedy"]["return"],
        "train_s": summary["wall_s"],
        "steps": summary["step"],
    }


def run_one(key: Key, core: int) -> dict[str, Any]:
    """A run in a process that is pinned to a core. Its facts."""
    paths = [str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    task, learner, seed = key
    done = subprocess.run(
        [sys.executable, __file__, "--one", task, learner, str(seed)],
        env=env,
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, [core]),
    )
    if done.returncode:
        raise RuntimeError(f"{task}, {learner}, seed {seed}: {done.stderr[-600:]}")
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


# ---- results ----


def finished() -> dict[Key, dict[str, Any]]:
    """The last line of each run with the task's present number of steps."""
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.is_file() else []
    return {
        (line["task"], line["learner"], line["seed"]): line
        for line in lines
        if line["task"] in TASKS and line["asked_steps"] == TASKS[line["task"]].steps
    }


def table() -> str:
    """All tasks and learners in Markdown."""
    done = finished()
    rows = ["| task | steps | learner | score by seed | mean | seconds of training |", "|---|---|---|---|---|---|"]
    for name, task in TASKS.items():
        for learner in LEARNERS:
            lines = [line for key, line in sorted(done.items()) if key[:2] == (name, learner)]
            if lines:
                scores, seconds = [line["score"] for line in lines], [line["train_s"] for line in lines]
                cells = [f"{name}", f"{task.steps / 1e6:g}M", learner, ", ".join(f"{score:.4g}" for score in scores)]
                cells += [f"{fmean(scores):.4g}", f"{min(seconds):.0f} to {max(seconds):.0f}"]
                rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def write_page(text: str) -> None:
    page = PAGE.read_text()
    PAGE.write_text(re.sub(MARKS, lambda match: f"{match[1]}{text}\n{match[2]}", page, flags=re.DOTALL))


def work_on(queue: Queue[Key], core: int, until: float, lock: threading.Lock) -> None:
    """Runs one after the other on a core."""
    from shoal.measure import describe_machine

    while time.monotonic() < until:
        try:
            key = queue.get_nowait()
        except Empty:
            return
        try:
            facts = run_one(key, core)
        except RuntimeError as error:
            print(f"failed: {error}", flush=True)
            continue
        task, learner, seed = key
        row = {"task": task, "learner": learner, "seed": seed, "asked_steps": TASKS[task].steps, **facts}
        with lock, RESULTS.open("a") as file:
            file.write(json.dumps({**row, "machine": describe_machine()}) + "\n")
        print(f"{task:9} {learner:14} seed {seed} {facts['score']:8.1f} {facts['train_s']:6.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS), metavar="TASK")
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=list(LEARNERS), metavar="LEARNER")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--budget-s", type=float, default=0.0, help="start no run after this many seconds; 0: run all")
    parser.add_argument("--table", action="store_true", help="only print the table and write it to docs/learning.md")
    parser.add_argument("--one", nargs=3, metavar=("TASK", "LEARNER", "SEED"), help="one run in this process")
    args = parser.parse_args()
    if args.one:
        name, learner, seed = args.one
        train = train_peer if learner.startswith("RecurrentPPO") else train_shoal
        print(json.dumps(train(TASKS[name], learner, int(seed))))
        return
    if args.table:
        write_page(table())
        print(table())
        return
    done, queue = finished(), Queue[Key]()
    for learner in reversed(args.learners):  # the slow ones first
        for name in args.tasks:
            for seed in args.seeds:
                if (name, learner, seed) not in done and not (learner == "RecurrentPPO*" and not TASKS[name].zoo):
                    queue.put((name, learner, seed))
    RESULTS.parent.mkdir(exist_ok=True)
    until, lock = time.monotonic() + args.budget_s if args.budget_s else float("inf"), threading.Lock()
    cores = sorted(os.sched_getaffinity(0))[: args.jobs]
    threads = [threading.Thread(target=work_on, args=(queue, core, until, lock)) for core in cores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(table())


if __name__ == "__main__":
    main()
