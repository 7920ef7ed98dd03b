"""The learning curve of a trial, and its early stop: below a quantile of the other trials' curves at equal cost.

The curve has a point for every twentieth of the run: the step, the seconds and the mean return of the episodes that
ended there. A trial is stopped when the best point of its curve is below the quantile of what the other trials had
reached for the same cost. It is evaluated as usual, so it has a score; it has only cost less. Curves depend on the seed
alone and not on when metrics are logged, so early stops by steps repeat exactly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.runs import write_atomic
from shoal.train.callbacks.base import Callback, Context

POINTS = 20  # of a curve
GRACE = 4  # points before a trial may be stopped
LEAST = 5  # other trials that a quantile needs
FILE = "curve.json"
REASON = "early stop"

Curve = Sequence[Sequence[float]]  # [step, seconds, return]


class CurveStop(Callback):
    """Records the curve of a run, writes it to curve.json, and stops the run where `others` were much better.

    Args:
        others: curves of finished trials.
        quantile: of their returns; 0: never stops.
        unit: the cost, `steps` or `seconds`.
    """

    def __init__(self, others: Sequence[Curve] = (), quantile: float = 0.0, unit: str = "steps") -> None:
        self.others, self.quantile, self.unit = [list(curve) for curve in others], quantile, unit
        self.points: list[list[float]] = []
        self.count, self.sum = 0, 0.0  # episodes since the last point

    def on_episodes(self, context: Context) -> None:
        """Adds the episodes that ended."""
        episodes = context.episodes
        if episodes is not None and math.isfinite(episodes.mean_return):
            self.count += episodes.count
            self.sum += episodes.count * episodes.mean_return

    def on_iteration(self, context: Context) -> None:
        """Adds a point when the next twentieth of the run is done, and compares."""
        if context.progress * POINTS < self._done(context) + 1:
            return
        if self.count:
            self.points.append([context.step, context.trainer.wall_s, self.sum / self.count])
            self.count, self.sum = 0, 0.0
            bar = threshold(self.others, self._cost(), self.quantile, self.unit)
            best = max(point[2] for point in self.points)
            is_late = context.progress * POINTS >= GRACE
            if is_late and context.progress < 1.0 and bar is not None and best < bar:
                context.stop(
                    f"{REASON} at step {context.step:,}: return {best:.4g} is below {bar:.4g}, the {self.quantile:g} "
                    f"quantile of {len(self.others)} trials at equal {self.unit}."
                )

    def _done(self, context: Context) -> int:
        """The twentieths up to the last point."""
        return int(self.points[-1][0] / context.total_steps * POINTS + 1e-9) if self.points else 0

    def _cost(self) -> float:
        return self.points[-1][0 if self.unit == "steps" else 1]

    def on_end(self, context: Context) -> None:
        """Writes the curve."""
        write_atomic(context.run.folder / FILE, json.dumps(self.points).encode())

    def state_dict(self) -> Mapping[str, Any]:
        """The curve so far."""
        return {"points": self.points, "count": self.count, "sum": self.sum}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores it."""
        self.points = [list(map(float, point)) for point in state["points"]]
        self.count, self.sum = int(state["count"]), float(state["sum"])


def threshold(curves: Sequence[Curve], cost: float, quantile: float, unit: str) -> float | None:
    """The quantile of the best returns that curves have reached up to a cost; None: too few trials to say."""
    if quantile <= 0.0:
        return None
    column = 0 if unit == "steps" else 1
    reached = [[point[2] for point in curve if point[column] <= cost * (1.0 + 1e-9)] for curve in curves]
    best = [max(returns) for returns in reached if returns]
    return float(np.quantile(best, quantile)) if len(best) >= LEAST else None


def read(folder: Path) -> list[list[float]]:
    """The curve of a run; empty if there is none."""
    try:
        points = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return []
    return [list(map(float, point)) for point in points] if isinstance(points, list) else []
