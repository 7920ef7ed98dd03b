"""CPU and memory that a run uses."""

from __future__ import annotations

import contextlib


class Usage:
    """CPU and memory of this process and its workers."""

    def __init__(self) -> None:
        import psutil

        self.process = psutil.Process()
        psutil.cpu_percent(None)
        self._cpu = psutil.cpu_percent

    def read(self) -> dict[str, float]:
        """Percent of all cores, and MB of this process and its children."""
        used = self.process.memory_info().rss
        for child in self.process.children():
            with contextlib.suppress(Exception):
                used += child.memory_info().rss
        return {"cpu_percent": self._cpu(None), "memory_mb": used / 1e6}
