"""A projection of training on many GPUs, from the measured parts of one. Nothing here was measured on several GPUs.

    python benchmarks/scaling.py

The seconds of an iteration by part and the number of kernel launches are those of the last `profiles` in
results/gpu.jsonl. Each GPU keeps the envs that it has alone (weak scaling), one shard for each GPU. Added are

    launches   with shards an update is no CUDA graph: each launch takes LAUNCH_S of the host's time
    exchange   for each minibatch, each process sends and receives about twice the gradient (train/ranks/world.py)
    sums       a launch for each shard, over the process's part of the gradient

The links are assumptions: what NVLink and a 400 Gb/s network usually give in all-gathers of this size.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shoal.train import options_for

RESULTS = Path(__file__).parent / "results/gpu.jsonl"
LAUNCH_S = 5e-6
MINIBATCH_CALLS = 2  # an exchange of parts, and of their sums
LINKS = {  # GPUs, machines: latency of a call in seconds, bytes per second of a GPU
    (1, 1): (0.0, float("inf")),
    (2, 1): (20e-6, 200e9),
    (8, 1): (30e-6, 200e9),
    (64, 8): (80e-6, 25e9),
    (512, 64): (200e-6, 25e9),
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "cartpole": ("cartpole", {}),
    "breakout": ("breakout", {}),
    "breakout LSTM": ("breakout", {}),
    "maze": ("maze", {}),
    "forage": ("forage", {}),
}


def last_profiles() -> dict[str, Any]:
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    return next(line["profiles"] for line in reversed(lines) if "profiles" in line)


def iteration_s(profile: dict[str, Any], steps: int, gpus: int, latency_s: float, rate: float) -> float:
    """Seconds of an iteration on `gpus` GPUs, with `steps` gradient steps."""
    alone = profile["steps"] / profile["steps_per_s"]
    if gpus == 1:
        return float(alone)
    split = profile["split_s"]
    update = split["update"] + split.get("advantages", 0.0)
    gradient = 4.0 * profile["params"]
    launches = LAUNCH_S * (profile["launches"] or 0)
    calls = steps * MINIBATCH_CALLS + 5
    exchange = calls * latency_s + steps * 2.0 * gradient / rate
    sums = steps * gpus * LAUNCH_S
    return float(alone - update + max(update, launches) + exchange + sums)


def main() -> None:
    profiles = last_profiles()
    shown = [f"{gpus} GPU{'s' * (gpus > 1)}" for gpus, _ in LINKS]
    print("PROJECTION: speed on N GPUs against N times one GPU. Only the column of 1 GPU was measured.\n")
    print(f"| task | steps/s on 1 | weights | gradient steps | {' | '.join(shown[1:])} |")
    print("|---|---|---|---|" + "---|" * (len(shown) - 1))
    for name, (env, tables) in CASES.items():
        if name not in profiles:
            continue
        profile, train = profiles[name], options_for(env, {"device": "cuda", **tables}).train
        steps, alone = train.epochs * train.minibatches, profile["steps"] / profile["steps_per_s"]
        shares = []
        for (gpus, _), (latency_s, rate) in LINKS.items():
            shares.append(alone / iteration_s(profile, steps, gpus, latency_s, rate))
        words = " | ".join(f"{share:.0%}" for share in shares[1:])
        print(f"| {name} | {profile['steps_per_s'] / 1e6:.1f}M | {profile['params']:,} | {steps} | {words} |")


if __name__ == "__main__":
    main()
