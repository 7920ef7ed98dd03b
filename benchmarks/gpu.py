"""All checks and timings that need a GPU. They need only torch, numpy, cuda-bindings and gcc.

    python benchmarks/gpu.py [PART ...]          default: all parts

`envs:vacuum,maze`, `parity:vacuum` and `learning:cartpole` run a part for these envs or cases only. gpu_checks.py has
the comparisons of kernels, gpu_ranks.py those of processes.

    learning   seconds of training to the full score, 3 seeds each, and steps per second
    q_learning the same for DQN and PQN
    vacuum     DQN as robot 0 against scripted robots, compared with each scripted robot as robot 0
    kernels    the fused kernels compared with the plain path, from the same rollouts
    odd_settings the same for unusual numbers of envs, minibatches, layers, units, agents, masks and observations
    exact      the same seed gives the same weights, and so does a run that was stopped and resumed
    curriculum the same for a run whose opponents change: a robot, a Python agent, a frozen copy of the learner
    ranks      one process with NCCL against none, and two processes that share the GPU against one, bit for bit
    population members of one trainer against lone runs, bit for bit; 256 cartpoles, 64 breakouts, 16 seeds against one
               (`population:exact`, `population:cartpole` ... run one of these)
    host       envs on CPU threads with the learner on the GPU, and how busy both are
    startup    seconds from the shell command to the end of the first update, and to 95 % of breakout's points, with a
               cold and with a warm cache
    profiles   where an iteration's time goes (what `shoal bench train` prints)
    envs       steps per second of the envs alone
    parity     every env on the GPU compared with the CPU, byte for byte

Each part appends a line to benchmarks/results/gpu.jsonl when it is done. The command exits with 1 if kernels,
odd_settings, exact, curriculum, ranks, population or parity find a difference.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_checks import EXACT, KERNELS, ODD, PROBLEMS, curriculum, exact, kernels, odd_settings
from gpu_population import NAMES as POPULATIONS
from gpu_population import population
from gpu_ranks import CASES as RANKS
from gpu_ranks import ranks

import shoal
from shoal import registry
from shoal.bench.training import device_times, profile
from shoal.errors import CudaMissing
from shoal.measure import describe_machine
from shoal.native import lib
from shoal.native.cuda import require_gpu
from shoal.runs import commit
from shoal.train import Trainer, options_for

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results/gpu.jsonl"
MANY_ENVS = 65536  # of parity
ENV_SIZES = (16384, 65536, 262144)  # of envs
STEP_NAMES = ("obs", "rewards", "terminated", "truncated", "done", "alive", "masks", "tick", "returns")
FINAL_NAMES = ("final_obs", "final_return", "final_length")  # only of envs whose episode ended


def bytes_of(tensor: Any) -> Any:
    """A tensor as a flat one of bytes."""
    return tensor.contiguous().view(-1).view(torch.uint8)


class Compared:
    """What a CPU and a GPU wrote, step by step. Some hundred steps are compared at a time, after one copy."""

    def __init__(self, arrays: Any, tensors: Any) -> None:
        self.arrays, self.tensors = arrays, tensors
        self.steps: list[tuple[int, str, Any, Any]] = []

    def keep(self, step: int) -> None:
        """Keeps the results of a step."""
        done = self.arrays["done"]
        for name in STEP_NAMES:
            self.steps.append((step, name, self.tensors[name].clone(), torch.from_numpy(self.arrays[name].copy())))
        if done.any():
            rows = torch.from_numpy(np.flatnonzero(done))
            for name in FINAL_NAMES:
                ended = self.tensors[name].index_select(0, rows.cuda())
                self.steps.append((step, name, ended, torch.from_numpy(self.arrays[name][done])))

    def difference(self) -> str:
        """Empty if all that was kept agrees, else the first difference."""
        if not self.steps:
            return ""
        ours = torch.cat([bytes_of(gpu) for _, _, gpu, _ in self.steps]).cpu()
        theirs = torch.cat([bytes_of(cpu) for _, _, _, cpu in self.steps])
        kept, self.steps = self.steps, []
        if torch.equal(ours, theirs):
            return ""
        step, name = next(
            (step, name) for step, name, gpu, cpu in kept if not torch.equal(bytes_of(gpu.cpu()), bytes_of(cpu))
        )
        return f"{name} at step {step}"


def parity_of(env: str, num_envs: int, steps: int, **options: Any) -> str:
    """Empty if GPU and CPU agree on every byte, else the first difference."""
    cpu: Any = shoal.make(env, num_envs, backend="serial" if num_envs < 1024 else "threads", seed=7, **options)
    gpu: Any = shoal.make(env, num_envs, backend="cuda", seed=7, **options)
    arrays, compared = cpu.memory.arrays, Compared(cpu.memory.arrays, gpu.tensors)
    cpu.reset()
    gpu.reset()
    keep_every = 1 if num_envs <= 257 else 50
    for step in range(steps):
        cpu.module.sample(cpu._address, step + 1, 0, num_envs)
        actions = arrays["actions"].copy()
        cpu.step(actions)
        gpu.step(torch.from_numpy(actions).cuda())
        if step % keep_every == 0 or step == steps - 1:
            compared.keep(step)
        if (step % 100 == 0 or step == steps - 1 or keep_every > 1) and (problem := compared.difference()):
            return problem
    if cpu.snapshot() != gpu.snapshot():
        return "state"
    if cpu.drain_stats() != gpu.drain_stats():
        return "drained stats"
    cpu.restore(gpu.snapshot())
    gpu.restore(cpu.snapshot())
    for step in range(20):
        cpu.module.sample(cpu._address, step + 10**6, 0, num_envs)
        actions = arrays["actions"].copy()
        cpu.step(actions)
        gpu.step(torch.from_numpy(actions).cuda())
    return "" if cpu.snapshot() == gpu.snapshot() else "state after moving snapshots"


def rare_options(env: str) -> dict[str, dict[str, Any]]:
    """The env's presets, and options that reach code which random play with the defaults never runs."""
    spec = lib.load(registry.find(env)).spec
    results: dict[str, dict[str, Any]] = {preset.name: {"preset": preset.name} for preset in spec.presets}
    if env == "vacuum":
        crowd: dict[str, Any] = {f"robot_{k}": script for k, script in enumerate(spec.params[-1].choices)}
        crowd |= {f"stun_{k}": k for k in range(8)} | {f"speed_{k}": 1 + k % 3 for k in range(8)}
        crowd |= {"e_decay": 0.3, "e_charge": 7.7, "charger_range": 1, "cap": "none", "alliance": 6}
        crowd |= {"robots": 8, "chargers": 3, "moves": 3, "timers": 1, "dust": 1, "see_dust": 1}
        for semantics in ("joint", "turn"):
            results[f"crowd, {semantics}"] = {**crowd, "semantics": semantics, "order": "shuffled", "start": "random"}
    if env.startswith("midrange"):
        rest: dict[str, Any] = {"noise": 0.1, "refire": 1, "rudder_slew": 1.0, "throttle_slew": 0.5, "max_range": 80.0}
        rest |= {"shape_bearing": 0.05, "shape_range": 0.1, "shape_gamma": 0.99, "reward_alive": 0.01}
        for mode in ("fast", "faithful"):
            results[f"robots, {mode}"] = {"mode": mode, "robot_0": "mix", "robot_1": "mix"}
            results[f"all rules, {mode}"] = {"mode": mode, "sensors": 1, "robot_1": "mix", "space_time": 1, **rest}
    return results


EVERY_WRAP = "sticky=0.25 skip=2 time_limit=30 reward_scale=0.5 reward_clip=1 obs_noise=0.1 stack=3"
# envs and options that stock envs with their defaults do not cover
OTHER_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "every wrapper": ("breakout", {"wrap": EVERY_WRAP}),
    "stacked frames": ("breakout", {"wrap": "stack=4"}),
    "every wrapper, agents": ("forage", {"wrap": EVERY_WRAP}),
    "every wrapper, images": ("maze", {"wrap": EVERY_WRAP}),
    "drawn params": ("cartpole", {"dt": "loguniform(0.005, 0.08)", "gravity": "normal(9.8, 1)"}),
    "drawn params, wrappers": ("pendulum", {"gravity": "uniform(5, 15)", "max_steps": 40, "wrap": "sticky=0.5"}),
    "unlike agents": (str(ROOT / "tests/unlike.h"), {}),
    "mixed actions": (str(ROOT / "tests/mixture.h"), {}),
    "groups": (str(ROOT / "examples/chase/chase.h"), {}),
    **{path.stem: (str(path), {}) for path in sorted((ROOT / "examples/gallery").glob("*.h"))},
}


def parity(names: list[str] | None = None) -> dict[str, Any]:
    """Compares every env on CPU and GPU over 2,000 steps (65,536 envs: 100) with the same actions."""
    results: dict[str, Any] = {}
    cases: list[tuple[str, str, int, dict[str, Any]]] = []  # title, env, envs, options
    for env in names or registry.stock_names():
        cases += [(env, env, num_envs, {}) for num_envs in (1, 257, MANY_ENVS)]
        cases += [(f"{env}, {name}", env, 257, options) for name, options in rare_options(env).items()]
    if not names:
        cases += [(f"{Path(env).stem}, {name}", env, 257, options) for name, (env, options) in OTHER_CASES.items()]
    for title, env, num_envs, options in cases:
        began = time.perf_counter()
        problem = parity_of(env, num_envs, 2000 if num_envs < MANY_ENVS else 100, **options)
        results[f"{title} x{num_envs}"] = problem or "same"
        PROBLEMS.extend([f"parity of {title} x{num_envs}: {problem}"] if problem else [])
        took = f"{time.perf_counter() - began:.1f} s"
        print(f"parity {title:31} x{num_envs:<6} {problem or 'same':20} {took}", flush=True)
    return results


def bandwidth() -> float:
    """Bytes per second of a large copy."""
    source, target = (torch.empty(1 << 28, dtype=torch.float32, device="cuda") for _ in range(2))
    return float(2 * source.numel() * 4 / min(device_times(lambda: target.copy_(source))))


def bytes_per_step(vec: Any) -> int:
    """The fewest bytes that a step moves for each env: state read and written; observation, reward, flags written."""
    spec = vec.native_spec
    row = int(np.prod(spec.obs_shape)) * spec.obs_dtype.itemsize
    state = 2 * vec.module.state_bytes(1024) // 1024
    return int(state + spec.agents * (row + 4 + 4 + 8 + 4 + spec.mask_size) + 2 * 16 + 8)


def envs(names: list[str] | None = None) -> dict[str, Any]:
    """Environment steps per second of step() alone, 64 steps in a graph."""
    results: dict[str, Any] = {"bandwidth_GBps": bandwidth() / 1e9}
    print(f"memory bandwidth {results['bandwidth_GBps']:.0f} GB/s")
    for env in names or registry.stock_names():
        for num_envs in ENV_SIZES:
            vec: Any = shoal.make(env, num_envs, backend="cuda", seed=0)
            vec.reset()
            host: Any = shoal.make(env, num_envs, backend="threads", seed=0)
            host.module.sample(host._address, 1, 0, num_envs)
            vec.actions.copy_(torch.from_numpy(host.actions).cuda())
            for _ in range(300):
                vec.launch_step()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(64):
                    vec.launch_step()
            rates = sorted(64 * num_envs / s for s in device_times(graph.replay, 9))
            row: dict[str, Any] = {"steps_per_s": rates[len(rates) // 2]}
            floor = bytes_per_step(vec)
            row |= {"bytes_per_step": floor, "floor_rate": results["bandwidth_GBps"] * 1e9 / floor}
            results[f"{env} x{num_envs}"] = row
            print(
                f"{env:9} x{num_envs:<6} {row['steps_per_s'] / 1e6:8.0f} M/s  "
                f"floor {row['floor_rate'] / 1e6:8.0f} M/s ({floor} B)",
                flush=True,
            )
            vec.close()
            host.close()
    return results


# ---- training ----

BREAKOUT = 0.95 * 864  # of all points
CORE = {"segment": 16}
CASES: dict[str, tuple[str, float, dict[str, Any]]] = {
    "cartpole": ("cartpole", 475.0, {}),
    "breakout": ("breakout", BREAKOUT, {}),
    "breakout MinGRU": ("breakout", BREAKOUT, {"nn": {"core": "mingru"}, "train": CORE}),
    "breakout LSTM": ("breakout", BREAKOUT, {"nn": {"core": "lstm"}, "train": CORE}),
    "pendulum": ("pendulum", -200.0, {}),
    "forage": ("forage", 0.5, {}),
    "maze": ("maze", 0.6, {}),
}


def run_to(env: str, goal: float, tables: dict[str, Any], seed: int) -> dict[str, Any]:
    """Trains to the end. Returns when the mean return of recent episodes first reached the goal, and final figures.

    The clock starts after the graphs are captured. Episodes are those of training, with sampled actions. A mean is over
    at least as many episodes as there are envs, because long episodes that start together end together. `last` is the
    mean over the last tenth of the run.
    """
    began = time.perf_counter()
    trainer = Trainer(env, options_for(env, {"device": "cuda", "seed": seed}, tables))
    trainer.start()
    trainer.capture()
    torch.cuda.synchronize()
    warm_up, began, looked = time.perf_counter() - began, time.perf_counter(), time.perf_counter()
    results: dict[str, Any] = {
        "seed": seed,
        "warm_up_s": warm_up,
        "goal": goal,
        "reached_s": None,
        "best": float("-inf"),
    }
    newest, last, total_steps = Games(), Games(), trainer.options.train.total_steps
    while not trainer.is_done:
        trainer.iterate()
        now = time.perf_counter()
        if now - looked < 0.01 and not trainer.is_done:
            continue
        looked, record = now, trainer.drain()
        newest.add(record)
        if trainer.step > 0.9 * total_steps:
            last.add(record)
        if newest.count >= trainer.vec.num_envs:
            results["best"] = max(results["best"], newest.mean)
            if newest.mean >= goal and results["reached_s"] is None:
                results |= {"reached_s": now - began, "reached_steps": trainer.step}
            newest = Games()
    seconds = time.perf_counter() - began
    trainer.close()
    return results | {
        "last": last.mean,
        "steps": trainer.step,
        "seconds": seconds,
        "steps_per_s": trainer.step / seconds,
    }


class Games:
    """The mean return of finished episodes."""

    def __init__(self) -> None:
        self.count, self.total = 0.0, 0.0

    def add(self, record: dict[str, float]) -> None:
        """Adds the episodes of a training record."""
        if games := record.get("episode/n"):
            self.count, self.total = self.count + games, self.total + games * record["episode/return"]

    @property
    def mean(self) -> float:
        """Over all episodes that were added."""
        return self.total / self.count if self.count else float("-inf")


def four_robots(num_envs: int, batch: int, steps: int) -> dict[str, Any]:
    """Options with which all robots of vacuum learn, with one sampled transition for each collected one."""
    train: dict[str, Any] = {"total_steps": steps, "train_frequency": 4, "gradient_steps": 8, "batch_size": batch}
    assert num_envs * 4 * 4 == 8 * batch
    train |= {"gamma": 0.98, "reward_scale": 0.05, "n_step": 2, "target_tau": 0.005, "schedule": "linear"}
    train |= {"replay_size": 400 * num_envs, "replay_start": 50_000, "epsilon_end": 0.01, "precision": "tf32"}
    return {"algo": "dqn", "vec": {"num_envs": num_envs}, "nn": {"hidden": 128}, "train": train}


Q_CASES: dict[str, tuple[str, float, dict[str, Any]]] = {
    "DQN cartpole": ("cartpole", 475.0, {"algo": "dqn"}),
    "PQN cartpole": ("cartpole", 475.0, {"algo": "pqn"}),
    "PQN breakout": ("breakout", BREAKOUT, {"algo": "pqn"}),
    "DQN vacuum x4096": ("vacuum", 2000.0, four_robots(4096, 8192, 80_000_000)),
    "DQN vacuum x16384": ("vacuum", 2000.0, four_robots(16384, 32768, 240_000_000)),
}


def learning(names: list[str] | None = None) -> dict[str, Any]:
    """PPO: seconds to the score, three seeds each."""
    return time_to_score(CASES, names)


def q_learning(names: list[str] | None = None) -> dict[str, Any]:
    """DQN and PQN: as `learning`."""
    return time_to_score(Q_CASES, names)


def time_to_score(
    cases: dict[str, tuple[str, float, dict[str, Any]]], names: list[str] | None = None
) -> dict[str, Any]:
    """Three seeds each."""
    results: dict[str, Any] = {}
    for name in names or cases:
        env, goal, tables = cases[name]
        results[name] = [run_to(env, goal, tables, seed) for seed in (1, 2, 3)]
        for run in results[name]:
            when = (
                "not met" if run["reached_s"] is None else f"after {run['reached_s']:.2f} s, {run['reached_steps']:,}"
            )
            print(
                f"learning {name:18} seed {run['seed']}  {run['steps_per_s'] / 1e6:6.1f} M/s  {goal:.0f} {when}  "
                f"best {run['best']:.1f} last {run['last']:.1f}  {run['seconds']:.2f} s, "
                f"warm-up {run['warm_up_s']:.2f} s",
                flush=True,
            )
        torch.cuda.empty_cache()
    return results


ROBOTS = ("stay", "random", "safe-random", "seek", "flee", "opportunistic", "hunt")
VACUUM: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "classic-1v3, opportunistic": ("classic-1v3", ("opportunistic",) * 3, {}),
    "classic-1v3, seek": ("classic-1v3", ("seek",) * 3, {}),
    "classic-1v3, safe-random": ("classic-1v3", ("safe-random",) * 3, {"total_steps": 40_000_000}),
    "duel-stun, seek": ("duel-stun", ("seek",), {"reward_scale": 1.0, "n_step": 5, "layer_norm": True}),
}
GAMES = 65_536  # episodes that a robot is evaluated on


def vacuum() -> dict[str, Any]:
    """DQN as robot 0 against scripted robots, five seeds, compared with every scripted robot as robot 0."""
    results: dict[str, Any] = {}
    for name, (preset, others, train) in VACUUM.items():
        row: dict[str, Any] = {"scripted": {}, "learned": {}}
        for robot in ROBOTS:
            row["scripted"][robot] = judge_scripted(preset, others, robot)
        best = max(row["scripted"], key=lambda robot: row["scripted"][robot]["return"])
        print(f"vacuum {name}: scripted {best} {row['scripted'][best]}", flush=True)
        opponents = ",".join(f"{k}={who}" for k, who in enumerate(others, 1))
        tables = {"algo": "dqn", "opponents": opponents, "env": {"preset": preset}, "train": train}
        for seed in (1, 2, 3, 4, 5):
            trainer = Trainer("vacuum", options_for("vacuum", {"device": "cuda", "seed": seed, "algo": "dqn"}, tables))
            trainer.iterate()
            began = time.perf_counter()
            while not trainer.is_done:
                trainer.iterate()
            facts = {"seconds": time.perf_counter() - began, "steps": trainer.step}
            row["learned"][seed] = {**judge(trainer), **facts}
            print(f"vacuum {name}: seed {seed} {row['learned'][seed]}", flush=True)
            trainer.close()
        results[name] = row
    return results


def judge(trainer: Any) -> dict[str, float]:
    """Evaluates the learned robot 0 with its best actions on held-out episodes."""
    trainer.learners[0].head.epsilon.zero_()
    trainer.drain()
    trainer.start(seed=(1 << 30) + (1 << 29))
    for part in trainer._own_returns:
        part.zero_()
    total = games = 0.0
    kills = ended = 0.0
    while games < GAMES:
        for _ in range(200):
            trainer.collect()
        stats = trainer.collector.vec.drain_stats()
        kills += stats["episodes"] * stats.get("kills_0", {"mean": 0.0})["mean"]
        ended += stats["episodes"]
        count, mean, *_ = trainer._ended.drain()
        total, games = total + count * mean, games + count
    return {"return": total / games, "kills_0": kills / ended, "games": games}


def judge_scripted(preset: str, others: tuple[str, ...], robot: str) -> dict[str, float]:
    """The same for a scripted robot 0: one episode in each of GAMES envs."""
    seats: dict[str, Any] = {f"robot_{k}": who for k, who in enumerate((robot, *others))}
    vec: Any = shoal.make("vacuum", GAMES, backend="cuda", seed=(1 << 30) + (1 << 29), preset=preset, **seats)
    vec.reset()
    agents = vec.agents_per_env
    total = torch.zeros(GAMES, dtype=torch.float64, device="cuda")
    plays = torch.ones(GAMES, dtype=torch.bool, device="cuda")
    vec.actions.zero_()
    while bool(plays.any()):
        for _ in range(20):
            vec.launch_step()
            total += torch.where(plays, vec.tensors["rewards"].view(GAMES, agents)[:, 0], 0.0)
            plays &= ~vec.tensors["done"].view(GAMES, agents)[:, 0]
    seen = vec.drain_stats()
    vec.close()
    return {"return": float(total.mean()), "kills_0": seen.get("kills_0", {"mean": 0.0})["mean"], "games": GAMES}


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
                return seconds_to(BREAKOUT, records, one.vec.num_envs, began)
            return records.stat().st_mtime - began

        start("bytecode is written", 9)
        for number in range(2):
            for first, names in ((2, ("cold, 95 %", "warm, 95 %")), (0, ("cold", "warm", "warm", "warm, no bytecode"))):
                for name in names:
                    seconds = start(name, first + number)
                    results[name].append(seconds)
                    print(f"startup {name}: {'never' if seconds is None else f'{seconds:.2f} s'}", flush=True)
    return results


def seconds_to(goal: float, records: Path, games: int, began: float) -> float | None:
    """When the mean return of at least `games` episodes first reached the goal, by a run's records; None: never."""
    newest = Games()
    for line in records.read_text().splitlines():
        record = json.loads(line)
        newest.add(record)
        if newest.count >= games:
            if newest.mean >= goal:
                return float(record["time"] - began)
            newest = Games()
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


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "learning": learning,
    "q_learning": q_learning,
    "vacuum": vacuum,
    "kernels": kernels,
    "odd_settings": odd_settings,
    "exact": exact,
    "curriculum": curriculum,
    "ranks": ranks,
    "population": population,
    "host": host,
    "startup": startup,
    "profiles": profiles,
    "envs": envs,
    "parity": parity,
}


def chosen(part: str, names: str) -> list[str]:
    """The envs or cases after a part's colon: one, or several between commas or semicolons (names may have commas)."""
    if names in known_names(part):
        return [names]
    return names.split(";" if ";" in names else ",") if names else []


def known_names(part: str) -> list[str]:
    """What may follow a part's colon."""
    cases: dict[str, Any] = {"learning": CASES, "q_learning": Q_CASES, "kernels": KERNELS, "odd_settings": ODD}
    cases |= {"exact": EXACT, "ranks": RANKS, "population": POPULATIONS}
    cases |= dict.fromkeys(("envs", "parity"), registry.stock_names())
    return list(cases.get(part, ()))


def check_words(words: list[str]) -> None:
    """Exits if a part, or an env or case of it, does not exist."""
    for word in words:
        part, _, names = word.partition(":")
        if part not in PARTS:
            raise SystemExit(f"{part}: no such part. Known: {', '.join(PARTS)}.")
        for name in chosen(part, names):
            if name not in known_names(part):
                known = "; ".join(known_names(part)) or "this part takes none"
                raise SystemExit(f"{part} has no '{name}'. Known: {known}.")


def main() -> int:
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        return 0
    words = sys.argv[1:] or list(PARTS)
    check_words(words)
    try:
        require_gpu()
    except CudaMissing as error:
        raise SystemExit(f"{error}") from None
    facts = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "machine": describe_machine(),
        "commit": commit(),
    }
    for word in words:
        name, _, names = word.partition(":")
        began = time.perf_counter()
        results = PARTS[name](chosen(name, names)) if names else PARTS[name]()
        entry = {"time": time.strftime("%Y-%m-%d %H:%M"), **facts, name: results}
        with RESULTS.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        print(f"{word}: {time.perf_counter() - began:.0f} s", flush=True)
    for problem in PROBLEMS:
        print(f"PROBLEM: {problem}")
    return 1 if PROBLEMS else 0


if __name__ == "__main__":
    raise SystemExit(main())
