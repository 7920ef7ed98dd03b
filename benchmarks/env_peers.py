"""The suite's envs beside the same tasks of EnvPool and Gymnasium: env steps per second of one core, interleaved.

    pip install -e ".[bench]" minigrid
    python benchmarks/env_peers.py [--seconds 2] [--repeats 5] [--envs minigrid_doorkey ...]

Only tasks that are the same: classic control, and MiniGrid with the same layouts and view. Board games are left out:
EnvPool's end with the first forbidden move, so that random play measures resets. EnvPool steps 4,096 envs on one thread
as Shoal does, Gymnasium 64 in a SyncVectorEnv. A peer that is not installed is left out. Each run appends a line to
benchmarks/results/env_peers.jsonl.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from env_throughput import NUM_ENVS, envpool, gymnasium_vector, millions, ours, ratio, rows
from rich.console import Console
from rich.table import Table

from shoal.measure import Stepper, describe_machine, measure

RESULTS = Path(__file__).parent / "results/env_peers.jsonl"
TASKS = {  # ours: the id of EnvPool and Gymnasium
    "cartpole": "CartPole-v1",
    "pendulum": "Pendulum-v1",
    "acrobot": "Acrobot-v1",
    "mountain_car": "MountainCar-v0",
    "mountain_car_continuous": "MountainCarContinuous-v0",
    "minigrid_empty": "MiniGrid-Empty-8x8-v0",
    "minigrid_doorkey": "MiniGrid-DoorKey-8x8-v0",
    "minigrid_fourrooms": "MiniGrid-FourRooms-v0",
    "minigrid_unlock": "MiniGrid-Unlock-v0",
    "minigrid_memory": "MiniGrid-MemoryS13-v0",
    "minigrid_multiroom": "MiniGrid-MultiRoom-N6-v0",
}
GYMNASIUM_ENVS = 64


def makers(env: str) -> dict[str, Callable[[], Stepper]]:
    """Ours and the peers that are installed."""
    task = TASKS[env]
    found: dict[str, Callable[[], Stepper]] = {"shoal": partial(ours, env, backend="serial")}
    if importlib.util.find_spec("envpool"):
        found["EnvPool"] = partial(envpool, task, 1)
    if not env.startswith("minigrid"):
        found["Gymnasium"] = partial(gymnasium_vector, task, GYMNASIUM_ENVS, "sync")
    elif importlib.util.find_spec("minigrid"):
        import minigrid  # noqa: F401, it registers its envs

        found["Gymnasium"] = partial(gymnasium_vector, task, GYMNASIUM_ENVS, "sync")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="spent on each row (default 2)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--envs", nargs="+", default=list(TASKS), choices=list(TASKS), metavar="ENV")
    options = parser.parse_args()
    console = Console(width=120)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    table = Table(title=f"One core, {NUM_ENVS} envs (Gymnasium {GYMNASIUM_ENVS}): env steps per second")
    for column in ("", "", "median (least .. most)", "shoal / peer"):
        table.add_column(column)
    record = {}
    for env in options.envs:
        samples = measure(makers(env), options.seconds, options.repeats)
        ratios = {peer: ratio(samples["shoal"], sample) for peer, sample in samples.items() if peer != "shoal"}
        record[env] = {"task": TASKS[env], "steps_per_s": rows(samples), "ratios": ratios}
        for name, sample in samples.items():
            text = "{:.1f}x [dim]({:.1f} .. {:.1f})[/]".format(*ratios[name]) if name in ratios else ""
            table.add_row(env if name == "shoal" else "", name, millions(sample), text)
    console.print(table)
    with RESULTS.open("a") as file:
        file.write(json.dumps({"machine": describe_machine(), "num_envs": NUM_ENVS, "envs": record}) + "\n")
    console.print(f"appended to {RESULTS}")


if __name__ == "__main__":
    main()
