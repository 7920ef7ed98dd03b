"""The parts of gpu.py that time runs: `host`, `startup` and `profiles`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from gpu_learning import BREAKOUT, CASES

from shoal.bench.training import profile
from shoal.train import Trainer, options_for
from shoal.train.recent import LatestReturns


def host() -> dict[str, Any]:
    """breakout on CPU threads with the learner on the GPU: steps per second, and how busy CPU and GPU are."""
    results: dict[str, Any] = {}
    for num_envs, groups in ((8192, 2), (16384, 2), (16384, 4)):
        tables = {"vec": {"backend": "threads", "num_envs": num_envs, "num_groups": groups}}
        trainer = Trainer("breakout", options_for("breakout", {"device": "cuda"}, tables))
        for _ in range(3):
            trainer.iterate()
        trainer.drain()
        before, began, first = sum(os.times()[:2]), time.perf_counter(), trainer.step
        while time.perf_counter() - began < 4.0:
            trainer.iterate()
        seconds = time.perf_counter() - began
        cpu = (sum(os.times()[:2]) - before) / seconds / len(os.sched_getaffinity(0))
        split = {name: value / seconds for name, value in trainer.drain().items() if name.startswith("time/")}
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            start = time.perf_counter()
            trainer.iterate()
            torch.cuda.synchronize()
            wall = time.perf_counter() - start
        gpu = sum(event.self_device_time_total for event in seen.key_averages()) / 1e6 / wall
        row = {"steps_per_s": (trainer.step - first) / seconds, "cpu_busy": cpu, "gpu_busy": gpu, "split": split}
        results[f"{num_envs} envs, {groups} groups"] = row
        shares = ", ".join(f"{name[5:]} {share:.0%}" for name, share in split.items())
        print(
            f"host {num_envs} envs, {groups} groups: {row['steps_per_s'] / 1e6:.2f} M/s, CPU {cpu:.0%} of all cores, "
            f"GPU {gpu:.0%} busy; {shares}",
            flush=True,
        )
        trainer.close()
        torch.cuda.empty_cache()
    return results


def startup() -> dict[str, Any]:
    """Seconds from the shell command `shoal train breakout --device cuda` to the record of the first update, and of a
    whole run to 95 % of all points.

    Python's bytecode is there in all of them, as `pip install` leaves it, but for "no bytecode": a machine that was
    set up without compiles torch's 900 modules at every start.
    """
    one = options_for("breakout", {"device": "cuda"})
    steps = one.vec.num_envs * one.train.horizon
    results: dict[str, Any] = {"cold": [], "warm": [], "warm, no bytecode": [], "cold, 95 %": [], "warm, 95 %": []}
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", "breakout", "--device", "cuda", "--eval.episodes", "0", "--console", "off"]
        command, short = [sys.executable, "-m", "shoal", *words], ["--train.total-steps", str(steps)]

        def start(name: str, number: int) -> float | None:
            caches = {"SHOAL_CACHE_DIR": f"{folder}/{number}/shoal", "TRITON_CACHE_DIR": f"{folder}/{number}/triton"}
            if "no bytecode" in name:
                bytecode = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": f"{folder}/none"}
            else:
                bytecode = {"PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
            runs, began = tempfile.mkdtemp(dir=folder), time.time()
            env = {**plain, **caches, **bytecode}
            is_whole = "95 %" in name
            own = [*command, *([] if is_whole else short), "--runs", runs]
            subprocess.run(own, check=True, env=env, stdout=subprocess.DEVNULL)
            (records,) = Path(runs).rglob("metrics.jsonl")
            if is_whole:
                games = one.vec.num_envs // 2  # 13,000 end in a quarter of a second, after which a record is written
                return seconds_to(BREAKOUT, records, games, began)
            return records.stat().st_mtime - began

        def show(name: str, number: int) -> float | None:
            """Starts a run, and prints that it began and how long it took: some take half a minute."""
            print(f"startup {name}: ", end="", flush=True)
            seconds = start(name, number)
            print("never" if seconds is None else f"{seconds:.2f} s", flush=True)
            return seconds

        show("bytecode is written, not counted", 9)
        for number in range(2):
            for first, names in ((0, ("cold", "warm", "warm", "warm, no bytecode")), (2, ("cold, 95 %", "warm, 95 %"))):
                for name in names:
                    results[name].append(show(name, first + number))
    return results


def seconds_to(goal: float, records: Path, games: int, began: float) -> float | None:
    """When the mean return of the newest episodes, at least `games`, first reached the goal; None: never."""
    newest = LatestReturns(games)
    for line in records.read_text().splitlines():
        record = json.loads(line)
        newest.add_record(record)
        if newest.is_full and newest.mean >= goal:
            return float(record["time"] - began)
    return None


def profiles() -> dict[str, Any]:
    """What `shoal bench train` prints, for several envs."""
    cases: dict[str, tuple[str, dict[str, Any]]] = {name: (env, tables) for name, (env, _, tables) in CASES.items()}
    results: dict[str, Any] = {}
    for name, (env, tables) in cases.items():
        row = results[name] = profile(env, options_for(env, {"device": "cuda"}, tables), seconds=1.5)
        split = ", ".join(f"{part} {1e3 * seconds:.2f}" for part, seconds in row["split_s"].items())
        iteration = row["steps"] / row["steps_per_s"]
        print(
            f"profile {name:17} {row['steps_per_s'] / 1e6:6.1f} M/s  {1e3 * iteration:.2f} ms an iteration of "
            f"{row['steps']:,}: {split} ms; floor {1e3 * row['floor_s']:.2f} ms by {row['bound']}; "
            f"{row['launches']} launches; {row['peak_bytes'] / 1e9:.2f} GB; warm-up {row['warm_up_s']:.2f} s",
            flush=True,
        )
        torch.cuda.empty_cache()
    return results
