"""`stop_at`: ends a run when its training return is high enough."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.errors import ConfigError
from shoal.train.callbacks.base import Callback, Context
from shoal.train.callbacks.checks import check_number
from shoal.train.recent import LatestReturns


class StopAt(Callback):
    """Stops when the mean return of the latest `window` training episodes reaches `score`."""

    def __init__(self, score: float, window: int = 100) -> None:
        self.score = check_number("stop_at", "score", score)
        if isinstance(window, bool) or not isinstance(window, int) or window < 1:
            raise ConfigError(f"stop_at: window={window!r} must be an int of at least 1: a number of episodes.")
        self.latest = LatestReturns(window)

    def on_episodes(self, context: Context) -> None:
        """Adds the episodes and compares."""
        assert context.episodes is not None
        self.latest.add(context.episodes.count, context.episodes.mean_return)
        if self.latest.is_full and self.latest.mean >= self.score:
            context.stop(
                f"stop_at: return {self.latest.mean:.4g} over the latest {self.latest.count:,} training episodes, "
                f"at least {self.score:g}."
            )

    def state_dict(self) -> Mapping[str, Any]:
        """The episodes in the window."""
        return {"intervals": [list(interval) for interval in self.latest.intervals]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores them."""
        self.latest = LatestReturns(self.latest.window, intervals=state["intervals"])


CALLBACK = StopAt
