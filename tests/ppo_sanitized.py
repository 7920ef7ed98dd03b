"""Acts and learns with one build of ppo.c, whose path is the argument: run by test_ppo_native.py with sanitizers."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from shoal.algos.fast.ppo_native import NativePPO
from shoal.algos.rollout import StepViews
from shoal.native import ppo
from tests.ppo_twins import FixedPace, learn, make_learner, play

CASES = [
    {"net": {"hidden": 100, "layers": 3}, "rows": 13, "optimizer": "muon"},
    {"net": {"hidden": 5, "layers": 1, "activation": "tanh"}, "rows": 1, "minibatches": 5, "actions": "one choice"},
    {"net": {"layers": 0}, "obs": "300 numbers", "actions": "40 choices", "has_masks": True, "priority": 0.5},
    {"net": {"separate": True, "std": "state", "squash": "tanh"}, "actions": "dict", "obs": "dict"},
    {"net": {"core": "lstm", "core_size": 16}, "actions": "wide box", "optimizer": "muon", "has_dead_rows": True},
    {"net": {"core": "mingru", "core_size": 48}, "actions": "multi discrete", "segment": 4, "obs": "uint8"},
    {"net": {"core": "mingru", "core_size": 16, "layers": 0}, "obs": "int8", "rows": 300, "horizon": 16},
    {"net": {"core": "lstm", "core_size": 16, "layers": 0}, "rows": 2, "horizon": 1100, "minibatches": 1},
    {"net": {"hidden": 40}, "rows": 331, "horizon": 16, "minibatches": 1, "normalize_obs": True},
]


def main() -> None:
    torch.set_num_threads(1)
    library = ppo.PPO(Path(sys.argv[1]))
    ppo.load = lambda variant="": library  # type: ignore[assignment]
    for case in CASES:
        for threads in (1, 3):
            learner = make_learner(**case)
            play(learner)
            learner.native = NativePPO(learner.actor, learner.rollout, learner, threads=threads)
            learner.native.pace = FixedPace(threads)
            sums = learn(learner)
            assert sums.isfinite().all(), case
            learner.native.act(StepViews(learner.rollout, 1, slice(None)))
            learner.native.last_values()
    print("clean")


if __name__ == "__main__":
    main()
