"""The parts of gpu.py about envs alone: `parity` with the CPU, byte for byte, and `envs`, their steps per second."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_checks import PROBLEMS

import shoal
from shoal import registry
from shoal.bench.training import device_times
from shoal.native import lib

ROOT = Path(__file__).resolve().parent.parent
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
