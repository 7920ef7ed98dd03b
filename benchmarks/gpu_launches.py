"""Lists what one training iteration launches on a GPU: how often each kernel runs, and how long.

    python benchmarks/gpu_launches.py [breakout] [maze] [pqn:breakout] [dqn:cartpole] ... [--top 30]

An iteration is timed by device events: `all`, and the graphs of rollout and update alone. The times of kernels are
those of torch's profiler. A kernel that overlaps the one before also counts the time in which it waits for it, so that
the sum of all can be more than the iteration.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from shoal.bench.training import device_times
from shoal.train import Trainer, options_for


def launches(trainer: Trainer) -> dict[str, list[float]]:
    """Microseconds of every launch of an iteration, by kernel."""
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        trainer.iterate()
        torch.cuda.synchronize()
    found: dict[str, list[float]] = defaultdict(list)
    for event in recorded.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            found[event.name].append(event.device_time)
    return dict(found)


def graph_times(trainer: Trainer, repeats: int = 20) -> dict[str, float]:
    """Median milliseconds of the graphs of rollout and update, and of iterations."""

    def median(call: Any) -> float:
        return 1e3 * sorted(device_times(call, repeats))[repeats // 2]

    graphs = trainer.graphs
    if graphs is None or graphs.collect is None:
        return {"all": median(trainer.iterate)}
    updates = {f"update {k}" if k else "update": median(update) for k, update in enumerate(graphs.updates)}
    return {"all": median(trainer.iterate), "rollout": median(graphs.collect), **updates}


def show(word: str, top: int) -> None:
    """Prints the list of one env."""
    algo, _, env = word.rpartition(":")
    trainer = Trainer(env, options_for(env, {"device": "cuda", "algo": algo or "ppo"}))
    for _ in range(3):
        trainer.iterate()
    times = ", ".join(f"{name} {ms:.3f} ms" for name, ms in graph_times(trainer).items())
    found = launches(trainer)
    trainer.close()
    total = sum(map(sum, found.values()))
    print(f"{word}: {times}; {sum(map(len, found.values()))} launches, {total / 1e3:.3f} ms of kernels", flush=True)
    for name, parts in sorted(found.items(), key=lambda pair: -sum(pair[1]))[:top]:
        print(f"  {sum(parts):8.1f} us  {len(parts):4} x {sum(parts) / len(parts):7.2f}  {name[:110]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="*", default=["breakout", "maze", "pqn:breakout", "dqn:cartpole"])
    parser.add_argument("--top", type=int, default=30, help="kernels to print")
    args = parser.parse_args()
    for word in args.envs:
        show(word, args.top)


if __name__ == "__main__":
    main()
