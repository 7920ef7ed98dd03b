"""CPU and memory that a run uses."""

from __future__ import annotations

import contextlib
import time

PAUSE_S = 0.2  # the first logs of a run, and short runs one after the other, come faster: the last numbers are used


class Usage:
    """CPU and memory of this process and its workers."""

    _last: tuple[float, dict[str, float]] = (-1e9, {})  # of all runs in this process

    def __init__(self) -> None:
        import psutil

        self.process = psutil.Process()
        psutil.cpu_percent(None)
        self._cpu = psutil.cpu_percent

    def read(self) -> dict[str, float]:
        """Percent of all cores, and MB of this process and its children."""
        if time.monotonic() - Usage._last[0] < PAUSE_S:
            return dict(Usage._last[1])
        used = self.process.memory_info().rss
        for child in self.process.children():
            with contextlib.suppress(Exception):
                used += child.memory_info().rss
        Usage._last = time.monotonic(), {"cpu_percent": self._cpu(None), "memory_mb": used / 1e6}
        return dict(Usage._last[1])
