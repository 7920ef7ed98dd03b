"""Signals that end a run after a checkpoint."""

from __future__ import annotations

import contextlib
import shlex
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from shoal.runs import Run


class Stopped(KeyboardInterrupt):
    """A signal ended the run after a checkpoint. `run` can be resumed; the exit code is 128 + signal."""

    def __init__(self, number: int, run: Run) -> None:
        super().__init__(
            f"stopped by {signal.Signals(number).name}; resume with --resume {shlex.quote(str(run.folder))}"
        )
        self.number, self.run = number, run


@contextlib.contextmanager
def handled_signals(take: Callable[[int], None]) -> Iterator[None]:
    """Gives SIGINT, SIGTERM and SIGUSR1 to a function. Only the main thread can: in others nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: Any) -> None:
        take(number)

    wanted = [signal.SIGINT, signal.SIGTERM, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else [])]
    before = {number: signal.signal(number, handle) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
