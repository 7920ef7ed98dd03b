"""A callback that records all of its calls."""

from __future__ import annotations

from typing import Any

from shoal.train import Callback
from shoal.train.callbacks import EVENTS


class Recorder(Callback):
    """Keeps the order of all calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []


def _recording(event: str) -> Any:
    def method(self: Recorder, context: Any) -> None:
        self.calls.append((event, context.step))

    return method


for _event in EVENTS:
    setattr(Recorder, _event, _recording(_event))
