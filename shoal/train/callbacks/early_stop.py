"""`early_stop`: ends a run that makes no more progress."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from shoal.errors import ConfigError, did_you_mean
from shoal.train.callbacks.base import Callback, Context
from shoal.train.callbacks.checks import check_count, check_number
from shoal.train.recent import LatestReturns

RETURN = "episode/return"


class EarlyStop(Callback):
    """Stops when a metric has not risen by more than `min_delta` for `patience` steps.

    The metric is the mean return of the latest 100 training episodes. Another one is named as in metrics.jsonl:
    `eval/return` with `--eval.every`.
    """

    def __init__(self, patience: int, min_delta: float = 0.0, metric: str = RETURN) -> None:
        self.patience = check_count("early_stop", "patience", patience)
        self.min_delta = check_number("early_stop", "min_delta", min_delta, low=0.0)
        if not isinstance(metric, str) or not metric:
            raise ConfigError(f"early_stop: metric={metric!r} must be a name of metrics.jsonl: 'eval/return'.")
        self.metric = metric
        self.latest = LatestReturns()
        self.best, self.best_step = -math.inf, 0

    def check(self, trainer: Any) -> None:
        """An evaluation's metric needs evaluations."""
        if self.metric.startswith("eval/") and not trainer.options.eval.every:
            raise ConfigError(f"early_stop: {self.metric} needs evaluations during training. Add --eval.every 1M.")

    def on_episodes(self, context: Context) -> None:
        """Adds the episodes."""
        assert context.episodes is not None
        self.latest.add(context.episodes.count, context.episodes.mean_return)

    def on_iteration(self, context: Context) -> None:
        """Compares with the best value so far."""
        value = self._value(context)
        if value > self.best + self.min_delta or (value > self.best == -math.inf):
            self.best, self.best_step = value, context.step
        elif context.step - self.best_step >= self.patience:
            if self.metric != RETURN and self.metric not in context.metrics:
                known = sorted(context.metrics)
                raise ConfigError(
                    f"early_stop: there is no metric '{self.metric}' after {context.step:,} steps."
                    f"{did_you_mean(self.metric, known)} There are {', '.join(known)}."
                )
            best = "no episode ended" if self.best == -math.inf else f"the best {self.metric} is {self.best:.4g}"
            context.stop(
                f"early_stop: {best} at step {self.best_step:,}, {context.step - self.best_step:,} steps ago "
                f"(patience {self.patience:,})."
            )

    def _value(self, context: Context) -> float:
        """The present value; minus infinity if there is none, or too few episodes."""
        if self.metric == RETURN:
            return self.latest.mean if self.latest.is_full else -math.inf
        return context.metrics.get(self.metric, -math.inf)

    def state_dict(self) -> Mapping[str, Any]:
        """The best value, its step, and the latest episodes."""
        intervals = [list(interval) for interval in self.latest.intervals]
        best = self.best if math.isfinite(self.best) else None
        return {"best": best, "best_step": self.best_step, "intervals": intervals}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores them."""
        self.best = -math.inf if state["best"] is None else float(state["best"])
        self.best_step = int(state["best_step"])
        self.latest = LatestReturns(intervals=state["intervals"])


CALLBACK = EarlyStop
