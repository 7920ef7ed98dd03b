"""Every check and timing that needs a GPU, in one go, on a machine with only torch, numpy, cuda-bindings and gcc.

    python benchmarks/gpu.py [parity] [envs]          default: all

Appends to benchmarks/results/gpu.jsonl and prints what it appends.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import shoal
from shoal import registry
from shoal.measure import describe_machine
from shoal.native import lib
from shoal.runs import commit

RESULTS = Path(__file__).parent / "results/gpu.jsonl"
STEP_NAMES = ("obs", "rewards", "terminated", "truncated")


def same_bytes(ours: Any, theirs: Any) -> bool:
    """Whether a tensor and an array hold the same bytes."""
    return bool(ours.cpu().numpy().tobytes() == np.ascontiguousarray(theirs).tobytes())


def parity_of(env: str, num_envs: int, steps: int, **options: Any) -> str:
    """'' where GPU and CPU agree on every byte, else what differed first."""
    cpu = shoal.make(env, num_envs, backend="serial" if num_envs < 1024 else "threads", seed=7, **options)
    gpu: Any = shoal.make(env, num_envs, backend="cuda", seed=7, **options)
    arrays, tensors = cpu.memory.arrays, gpu.tensors  # type: ignore[attr-defined]
    cpu.reset()
    gpu.reset()
    check_every = 1 if num_envs <= 257 else 50
    for step in range(steps):
        cpu.module.sample(cpu._address, step + 1, 0, num_envs)  # type: ignore[attr-defined]
        actions = arrays["actions"].copy()
        cpu.step(actions)
        gpu.step(torch.from_numpy(actions).cuda())
        if step % check_every and step < steps - 1:
            continue
        done = arrays["done"]
        for name in (*STEP_NAMES, "done", "alive", "masks", "tick", "returns"):
            if not same_bytes(tensors[name], arrays[name]):
                return f"{name} at step {step}"
        for name in ("final_obs", "final_return", "final_length"):
            if not same_bytes(tensors[name][torch.from_numpy(done).cuda()], arrays[name][done]):
                return f"{name} at step {step}"
    if cpu.snapshot() != gpu.snapshot():  # type: ignore[attr-defined]
        return "state"
    if cpu.drain_stats() != gpu.drain_stats():  # type: ignore[attr-defined]
        return "drained stats"
    cpu.restore(gpu.snapshot())  # type: ignore[attr-defined]
    gpu.restore(cpu.snapshot())  # type: ignore[attr-defined]
    for step in range(20):
        cpu.module.sample(cpu._address, step + 10**6, 0, num_envs)  # type: ignore[attr-defined]
        actions = arrays["actions"].copy()
        cpu.step(actions)
        gpu.step(torch.from_numpy(actions).cuda())
    return "" if cpu.snapshot() == gpu.snapshot() else "state after moving snapshots"  # type: ignore[attr-defined]


def odd_settings(env: str) -> dict[str, dict[str, Any]]:
    """Its presets, and what random play with the defaults never reaches."""
    spec = lib.load(registry.find(env)).spec
    found: dict[str, dict[str, Any]] = {preset.name: {"preset": preset.name} for preset in spec.presets}
    if env == "vacuum":
        crowd: dict[str, Any] = {f"robot_{k}": script for k, script in enumerate(spec.params[-1].choices)}
        crowd |= {f"stun_{k}": k for k in range(8)} | {f"speed_{k}": 1 + k % 3 for k in range(8)}
        crowd |= {"e_decay": 0.3, "e_charge": 7.7, "charger_range": 1, "cap": "none", "alliance": 6}
        crowd |= {"robots": 8, "chargers": 3, "moves": 3, "timers": 1, "dust": 1, "see_dust": 1}
        for semantics in ("joint", "turn"):
            found[f"crowd, {semantics}"] = {**crowd, "semantics": semantics, "order": "shuffled", "start": "random"}
    return found


def parity() -> dict[str, Any]:
    """Every env, CPU against GPU, 2,000 steps with the same actions."""
    found: dict[str, Any] = {}
    for env in registry.stock_names():
        cases: list[tuple[str, int, dict[str, Any]]] = [(env, num_envs, {}) for num_envs in (1, 257, 65536)]
        cases += [(f"{env}, {name}", 257, options) for name, options in odd_settings(env).items()]
        for title, num_envs, options in cases:
            began = time.perf_counter()
            problem = parity_of(env, num_envs, 2000, **options)
            found[f"{title} x{num_envs}"] = problem or "same"
            took = f"{time.perf_counter() - began:.1f} s"
            print(f"parity {title:21} x{num_envs:<6} {problem or 'same':20} {took}", flush=True)
    return found


def timed(call: Callable[[], None], repeats: int = 5) -> list[float]:
    """Seconds of a call on the device, several times, by events."""
    call()
    torch.cuda.synchronize()
    seconds = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return seconds


def bandwidth() -> float:
    """Bytes per second of a large copy: what memory can give."""
    one, two = (torch.empty(1 << 28, dtype=torch.float32, device="cuda") for _ in range(2))
    return float(2 * one.numel() * 4 / min(timed(lambda: two.copy_(one))))


def bytes_per_step(vec: Any) -> int:
    """What a step must at least move for each env: state read and written, observation, reward and flags written."""
    spec = vec.spec_env
    row = int(np.prod(spec.obs_shape)) * spec.obs_dtype.itemsize
    state = 2 * vec.module.state_bytes(1024) // 1024
    return int(state + spec.agents * (row + 4 + 4 + 8 + 4 + spec.mask_size) + 2 * 16 + 8)


def envs() -> dict[str, Any]:
    """Env steps per second of step() alone, 64 steps in a graph."""
    found: dict[str, Any] = {"bandwidth_GBps": bandwidth() / 1e9}
    print(f"memory bandwidth {found['bandwidth_GBps']:.0f} GB/s")
    for env in registry.stock_names():
        for num_envs in (16384, 65536, 262144):
            vec: Any = shoal.make(env, num_envs, backend="cuda", seed=0)
            vec.reset()
            host = shoal.make(env, num_envs, backend="threads", seed=0)
            host.module.sample(host._address, 1, 0, num_envs)  # type: ignore[attr-defined]
            vec.actions.copy_(torch.from_numpy(host.actions).cuda())  # type: ignore[attr-defined]
            row: dict[str, Any] = {}
            for stage in (True, False):
                kept = vec.kernels.stage_bytes
                if not stage:
                    vec.kernels.stage_bytes = 0
                for _ in range(300):
                    vec.launch_step()
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    for _ in range(64):
                        vec.launch_step()
                rates = sorted(64 * num_envs / s for s in timed(graph.replay, 9))
                row["staged" if stage else "direct"] = rates[len(rates) // 2]
                vec.kernels.stage_bytes = kept
            floor = bytes_per_step(vec)
            row |= {"bytes_per_step": floor, "floor_rate": found["bandwidth_GBps"] * 1e9 / floor}
            found[f"{env} x{num_envs}"] = row
            print(
                f"{env:9} x{num_envs:<6} staged {row['staged'] / 1e6:8.0f} M/s  direct {row['direct'] / 1e6:8.0f} M/s  "
                f"floor {row['floor_rate'] / 1e6:8.0f} M/s ({floor} B)",
                flush=True,
            )
            vec.close()
            host.close()
    return found


PARTS: dict[str, Callable[[], dict[str, Any]]] = {"parity": parity, "envs": envs}


def main() -> None:
    wanted = sys.argv[1:] or list(PARTS)
    entry: dict[str, Any] = {
        "time": time.strftime("%Y-%m-%d %H:%M"),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "machine": describe_machine(),
        "commit": commit(),
    }
    for name in wanted:
        entry[name] = PARTS[name]()
    with RESULTS.open("a") as file:
        file.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    main()
