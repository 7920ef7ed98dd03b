"""The suite's envs beside the same tasks of EnvPool and Gymnasium: env steps per second of one core, interleaved.

    pip install -e ".[bench]" minigrid
    python benchmarks/env_peers.py [--seconds 2] [--repeats 5] [--envs minigrid_doorkey ...]

Only tasks that are the same: classic control; MiniGrid with the same layouts and view; the board games and 2048 of Pgx
and Jumanji, as EnvPool has them in C++; Sokoban on Boxoban's board, where the levels differ. Jumanji's Snake, Tetris,
Maze, PacMan and RobotWarehouse are other games than ours of these names. EnvPool steps 4,096 envs on one thread as
Shoal does, Gymnasium 64 in a SyncVectorEnv. A peer that is not installed is left out.

EnvPool's board games end with the first forbidden move, so its moves are chosen among the legal ones, in NumPy. The
share of its time that this takes is shown. Shoal takes the next legal move in place of a forbidden one.

With --cpu-time, seconds are those of the process on a core, for a machine that does other work as well.
Each run appends a line to benchmarks/results/env_peers.jsonl and writes the table of docs/suite.md.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from env_throughput import NUM_ENVS, envpool, gymnasium_vector, millions, ours, ratio, rows
from rich.console import Console
from rich.table import Table

from shoal.measure import Stepper, describe_machine, measure

RESULTS = Path(__file__).parent / "results/env_peers.jsonl"
PAGE = Path(__file__).parent.parent / "docs/suite.md"
MARKS = r"(<!-- Written by benchmarks/env_peers.py -->\n).*?(<!-- The end of what env_peers.py writes. -->)"
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
MASKED = {  # ours: the ids of EnvPool, from Pgx and Jumanji, whose moves may be forbidden
    "connect4": ("ConnectFour-v1",),
    "othello": ("Othello-v1",),
    "go": ("Go9x9-v1",),
    "hex": ("Hex-v1",),
    "game2048": ("Play2048-v1", "Jumanji/Game2048-v1"),
}
OTHER_LEVELS = {"sokoban": "Jumanji/Sokoban-v0"}  # the same game, board and time limit
ENVS = [*TASKS, *MASKED, *OTHER_LEVELS]
GYMNASIUM_ENVS = 64


class Legal:
    """Random legal moves in an EnvPool env, and the seconds that choosing them takes."""

    def __init__(self, task: str, clock: Callable[[], float]) -> None:
        import envpool as peer

        self.pool = peer.make(task, env_type="gymnasium", num_envs=NUM_ENVS, num_threads=1, seed=0)
        self.obs, self.infos = self.pool.reset()
        noise = np.random.default_rng(0)
        count = self.pool.action_space.n
        self.noise = [noise.integers(1, 256, (NUM_ENVS, count), np.uint8) for _ in range(16)]
        self.calls, self.choosing, self.clock = 0, 0.0, clock

    def step(self) -> None:
        """One move of each env."""
        before = self.clock()
        mask = self.infos["legal_action_mask"] if "legal_action_mask" in self.infos else self.obs["action_mask"]
        actions = (self.noise[self.calls % 16] * mask).argmax(1).astype(np.int32)
        self.calls, self.choosing = self.calls + 1, self.choosing + self.clock() - before
        self.obs, _, _, _, self.infos = self.pool.step(actions)


def legal(task: str, made: dict[str, Legal], clock: Callable[[], float]) -> Stepper:
    """A Stepper of `Legal`, which is kept in `made`."""
    made[task] = env = Legal(task, clock)
    return Stepper(env.step, NUM_ENVS, 1, env.pool.close)


def makers(env: str, made: dict[str, Legal], clock: Callable[[], float]) -> dict[str, Callable[[], Stepper]]:
    """Ours and the peers that are installed."""
    found: dict[str, Callable[[], Stepper]] = {"shoal": partial(ours, env, backend="serial")}
    if importlib.util.find_spec("envpool"):
        found |= {f"EnvPool {task}": partial(legal, task, made, clock) for task in MASKED.get(env, ())}
        if task := TASKS.get(env) or OTHER_LEVELS.get(env):
            found[f"EnvPool {task}"] = partial(envpool, task, 1)
    if env in TASKS and (not env.startswith("minigrid") or importlib.util.find_spec("minigrid")):
        if env.startswith("minigrid"):
            import minigrid  # noqa: F401, it registers its envs

        found[f"Gymnasium {TASKS[env]}"] = partial(gymnasium_vector, TASKS[env], GYMNASIUM_ENVS, "sync")
    return found


def short(ratio: float) -> str:
    """`41`, `1,190`: two digits and more."""
    return f"{ratio:.2g}" if ratio < 100 else f"{ratio:,.0f}"


def thousands(rate: float) -> str:
    """`930 k`, `5.3 k`."""
    return f"{rate / 1e3:.2g} k" if rate < 1e5 else f"{rate / 1e3:,.0f} k"


def write_page() -> None:
    """Writes the newest results of each env into docs/suite.md."""
    newest: dict[str, dict[str, Any]] = {}
    for line in RESULTS.read_text().splitlines():
        entry = json.loads(line)
        for env, record in entry["envs"].items():
            newest[env] = {**record, "machine": entry["machine"], "versions": entry["versions"]}
    machines = sorted({f"{record['machine']['cpu']} ({record['machine']['date'][:10]})" for record in newest.values()})
    is_busy = any(record["clock"] == "process_time" for record in newest.values())
    peers = sorted({f"{name} {number}" for record in newest.values() for name, number in record["versions"].items()})
    text = [
        f"Env steps per {'CPU second' if is_busy else 'second'} on one core of {', '.join(machines)}: medians, and how "
        "many times as fast Shoal is, with its range over the rounds. "
        + ("The machine did other work as well. " if is_busy else "")
        + f"{', '.join(peers)}.",
        "",
        "| env | Shoal | peer | its steps | ratio |",
        "|---|---|---|---|---|",
    ]
    for env in (env for env in ENVS if env in newest):
        record = newest[env]
        speeds = {name: median(rates) for name, rates in record["steps_per_s"].items()}
        for peer, (middle, least, most) in record["ratios"].items():
            ratios = f"{short(middle)} ({short(least)} to {short(most)})"
            text.append(f"| {env} | {speeds['shoal'] / 1e6:.3g} M | {peer} | {thousands(speeds[peer])} | {ratios} |")
    shares = [share for record in newest.values() for share in record["choosing"].values()]
    if shares:
        text += [
            "",
            f"Choosing moves took {min(shares):.1%} to {max(shares):.1%} of the time of EnvPool's board games.",
        ]
    page = PAGE.read_text()
    PAGE.write_text(
        re.sub(MARKS, lambda match: f"{match[1]}" + "\n".join(text) + f"\n{match[2]}", page, flags=re.DOTALL)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="spent on each row (default 2)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--envs", nargs="+", default=ENVS, choices=ENVS, metavar="ENV")
    parser.add_argument("--cpu-time", action="store_true", help="seconds of the process on a core, not of the clock")
    options = parser.parse_args()
    clock = time.process_time if options.cpu_time else time.perf_counter
    console = Console(width=120)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    table = Table(title=f"One core, {NUM_ENVS} envs (Gymnasium {GYMNASIUM_ENVS}): env steps per second")
    for column in ("", "", "median (least .. most)", "shoal / peer", "choosing moves"):
        table.add_column(column)
    record = {}
    for env in options.envs:
        made: dict[str, Legal] = {}
        times: dict[str, float] = {}
        samples = measure(makers(env, made, clock), options.seconds, options.repeats, clock=clock)
        ratios = {peer: ratio(samples["shoal"], sample) for peer, sample in samples.items() if peer != "shoal"}
        for task, peer in made.items():
            sample = samples[f"EnvPool {task}"]
            times[f"EnvPool {task}"] = peer.choosing / peer.calls * 1e6 / sample.us_per_call
        record[env] = {"steps_per_s": rows(samples), "ratios": ratios, "choosing": times, "clock": clock.__name__}
        for name, sample in samples.items():
            text = "{:.1f}x [dim]({:.1f} .. {:.1f})[/]".format(*ratios[name]) if name in ratios else ""
            share = f"{times[name]:.0%}" if name in times else ""
            table.add_row(env if name == "shoal" else "", name, millions(sample), text, share)
    console.print(table)
    installed = [name for name in ("envpool", "gymnasium", "minigrid") if importlib.util.find_spec(name)]
    versions = {name: importlib.metadata.version(name) for name in installed}
    facts = {"machine": describe_machine(), "num_envs": NUM_ENVS, "versions": versions}
    with RESULTS.open("a") as file:
        file.write(json.dumps({**facts, "envs": record}) + "\n")
    write_page()
    console.print(f"appended to {RESULTS}")


if __name__ == "__main__":
    main()
