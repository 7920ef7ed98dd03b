"""`stop_after`: ends a run after some time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from shoal.errors import ConfigError
from shoal.train.callbacks.base import Callback, Context
from shoal.train.callbacks.checks import check_number


class StopAfter(Callback):
    """Stops with the first iteration that ends `seconds` or more after the start. A resumed run goes on counting."""

    def __init__(self, seconds: float) -> None:
        self.seconds = check_number("stop_after", "seconds", seconds)
        if self.seconds <= 0:
            raise ConfigError(f"stop_after: seconds={seconds!r} must be above 0.")
        self.before, self.began = 0.0, 0.0

    def on_start(self, context: Context) -> None:
        """Starts the clock."""
        self.began = time.monotonic()

    def on_iteration(self, context: Context) -> None:
        """Compares."""
        if (passed := self._passed()) >= self.seconds:
            context.stop(f"stop_after: {passed:.1f} s of training, at least {self.seconds:g}.")

    def _passed(self) -> float:
        return self.before + time.monotonic() - self.began if self.began else self.before

    def state_dict(self) -> Mapping[str, Any]:
        """The seconds so far."""
        return {"seconds": self._passed()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores them."""
        self.before = float(state["seconds"])


CALLBACK = StopAfter
