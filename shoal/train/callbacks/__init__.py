"""Callbacks of a run: the base class, how they are found by name, and one file for each that Shoal ships.

    from shoal.train import Callback, train

    class Report(Callback):
        def on_episodes(self, context):
            print(context.step, context.episodes.mean_return)

    train("cartpole", callbacks=[Report(), "stop_at(score=475)"])

`stop_at.py` is the example to copy.
"""

from __future__ import annotations

from shoal.train.callbacks.base import EVENTS, Callback, Context, Episodes
from shoal.train.callbacks.specs import CALLBACKS, describe_stock, find

__all__ = ["CALLBACKS", "EVENTS", "Callback", "Context", "Episodes", "describe_stock", "find"]
