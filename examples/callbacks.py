"""Callbacks: a curriculum that makes cartpole harder when it is solved, a stop at a score, and the same as a loop.

python examples/callbacks.py --steps 500k
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from shoal.train import Callback, Context, start, train


class LongerPoles(Callback):
    """Makes the pole longer each time that `count` episodes in a row return at least `goal` on average."""

    def __init__(self, goal: float = 400.0, count: int = 50, longest: float = 1.0) -> None:
        self.goal, self.count, self.longest = goal, count, longest
        self.half_pole, self.good_episodes = 0.5, 0

    def on_episodes(self, context: Context) -> None:
        """Counts episodes, and sets the env param `half_pole` of all training envs."""
        episodes = context.episodes
        assert episodes is not None
        self.good_episodes = self.good_episodes + episodes.count if episodes.mean_return >= self.goal else 0
        if self.good_episodes >= self.count and self.half_pole < self.longest:
            self.half_pole, self.good_episodes = min(1.25 * self.half_pole, self.longest), 0
            context.set_env_params(half_pole=self.half_pole)
            context.note(f"step {context.step:,}: poles of {2 * self.half_pole:.3g} m")
        context.log("curriculum/half_pole", self.half_pole)

    def state_dict(self) -> Mapping[str, Any]:
        """A part of each checkpoint: a resumed run continues with the same poles."""
        return {"half_pole": self.half_pole, "good_episodes": self.good_episodes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Called before a resumed run starts."""
        self.half_pole, self.good_episodes = state["half_pole"], state["good_episodes"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", default="500k", help="steps to train for")
    parser.add_argument("--runs", default="runs", help="folder of all runs")
    flags = parser.parse_args()
    tables = {"train": {"total_steps": flags.steps}, "runs_folder": flags.runs, "device": "cpu"}

    run = train("cartpole", callbacks=[LongerPoles(), "early_stop(patience=200k)"], **tables)
    print(f"{run.summary['status']} at step {run.summary['step']:,}: {run.summary['reason'] or 'all steps done'}")

    with start("cartpole", seed=2, console="off", **tables) as trainer:
        for metrics in trainer:
            if metrics.get("episode/return", 0.0) >= 100.0:
                trainer.stop("a return of 100")
    print(f"the loop ended at step {trainer.run.summary['step']:,}: {trainer.run.summary['reason']}")
