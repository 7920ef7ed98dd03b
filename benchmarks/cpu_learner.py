"""How fast PPO trains a small network on a CPU: Shoal's learner in C, against the same PPO in torch, and the floor.

    pip install -e ".[dev]"
    python benchmarks/cpu_learner.py [--nets mlp lstm mingru] [--rounds 5]

breakout with its tuned options and a network of 2 x 128 units (and a core of 128). Both sides do the same work: the
torch side is algos/ppo.py without anything of algos/fast/, with the number of torch threads that is fastest here. They
take turns, an iteration each. The floor is the time of the iteration's matrix products alone, at the rate of a large
product in torch (`shoal bench train`). Each run of this file appends machine, commit and every round to
benchmarks/results/cpu_learner.jsonl.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch

from shoal.bench.training import limits, macs_per_row
from shoal.cores import available_threads
from shoal.measure import describe_machine
from shoal.native.build import PPO_SOURCE
from shoal.native.lib import best_variant
from shoal.train import Trainer, options_for

RESULTS = Path(__file__).parent / "results" / "cpu_learner.jsonl"
NETS: dict[str, dict[str, Any]] = {"mlp": {}, "lstm": {"core": "lstm"}, "mingru": {"core": "mingru"}}
BARS = {"mlp": 3.0, "lstm": 4.0}  # times as fast as torch


def make(net: str, *, in_c: bool, torch_threads: int = 0) -> Trainer:
    vec = {"torch_threads": torch_threads} if torch_threads else {}
    options = options_for("breakout", {"device": "cpu", "nn": NETS[net], "vec": vec})
    if in_c:
        return Trainer("breakout", options)
    fast = "shoal.algos.fast."
    with mock.patch(fast + "native_ppo", lambda learner: None), mock.patch(fast + "ppo_loss", lambda learner: None):
        return Trainer("breakout", options)


def rate(trainer: Trainer, iterations: int) -> float:
    """Steps per second."""
    began, first = time.perf_counter(), trainer.step
    for _ in range(iterations):
        trainer.iterate()
    return (trainer.step - first) / (time.perf_counter() - began)


def fastest_torch(net: str) -> Trainer:
    """The torch side, with one torch thread or with one for each core: whichever is faster."""
    trainers = [make(net, in_c=False, torch_threads=count) for count in sorted({1, available_threads()})]
    for trainer in trainers:
        trainer.iterate()
    rates = [rate(trainer, 1) for trainer in trainers]
    best = trainers[rates.index(max(rates))]
    for trainer in trainers:
        if trainer is not best:
            trainer.close()
    return best


def floor_seconds(trainer: Trainer) -> float:
    """Seconds of an iteration's matrix products: one pass to act, three for each epoch."""
    actor, train = trainer.actors[0], trainer.options.train
    macs = macs_per_row(actor.policy, actor.blank(1))
    _, products = limits(torch.device("cpu"), half=False)
    return 2.0 * macs * trainer.steps_per_iteration * (1 + 3 * int(train.epochs)) / products


def compare(net: str, rounds: int) -> dict[str, Any]:
    ours, plain = make(net, in_c=True), fastest_torch(net)
    for _ in range(6):  # also finds the number of threads
        ours.iterate()
    found: dict[str, list[float]] = {"c": [], "torch": [], "floor": []}
    for _ in range(rounds):
        found["c"].append(rate(ours, 4))
        found["torch"].append(rate(plain, 1))
        found["floor"].append(ours.steps_per_iteration / floor_seconds(ours))
    threads = ours.learners[0].native.pace.threads
    facts = {"net": net, "threads": threads, "torch_threads": plain.threads, **found}
    ours.close()
    plain.close()
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", choices=list(NETS), default=list(NETS))
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    for net in args.nets:
        facts = compare(net, args.rounds)
        ours, plain, floor = (facts[name] for name in ("c", "torch", "floor"))
        gains = sorted(a / b for a, b in zip(ours, plain))
        over = sorted(b / a for a, b in zip(ours, floor))
        bar = f", the bar is {BARS[net]:g}x" if net in BARS else ""
        print(
            f"{net}: C {median(ours):,.0f} steps/s ({facts['threads']} threads), "
            f"torch {median(plain):,.0f} ({facts['torch_threads']} threads): "
            f"{median(gains):.2f}x ({gains[0]:.2f} to {gains[-1]:.2f}){bar}; "
            f"{median(over):.2f}x the floor ({over[0]:.2f} to {over[-1]:.2f})",
            flush=True,
        )
        record = {"machine": describe_machine(), "simd": best_variant(PPO_SOURCE), **facts}
        with RESULTS.open("a") as file:
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
