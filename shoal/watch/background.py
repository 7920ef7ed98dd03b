"""Background: the process of worker.py, seen from the server. It is started by `start`, or when it is needed first."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

from shoal.errors import ConfigError

PATIENCE_S = 120.0  # the first answer may need a compiler


class Background:
    """Asks the worker, one question at a time. One that is too slow or has crashed is replaced."""

    def __init__(self, root: Path, headers: list[Path], patience_s: float = PATIENCE_S) -> None:
        self.command = [sys.executable, "-m", "shoal.watch.worker", str(root), *map(str, headers)]
        self.patience_s = patience_s
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str] = queue.Queue()
        self._lock = threading.Lock()
        self._closed = False

    def start(self) -> None:
        """Starts the worker, which imports what the first game needs."""
        threading.Thread(target=self._warm, daemon=True).start()

    def _warm(self) -> None:
        with contextlib.suppress(ConfigError):
            self.ask(do="warm")

    def ask(self, **request: Any) -> Any:
        """The worker's answer. ConfigError says why there is none."""
        with self._lock:
            if self._closed:
                raise ConfigError("shoal watch has ended.")
            process = self._running()
            line: str | None
            try:
                assert process.stdin is not None
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
                line = self._answers.get(timeout=self.patience_s)
            except (OSError, ValueError, queue.Empty) as error:
                line = "" if not isinstance(error, queue.Empty) else None
            if not line:
                self._stop()
                took = f"took more than {self.patience_s:g} s" if line is None else "ended without an answer"
                raise ConfigError(f"The process that reads checkpoints {took}. It starts again with the next request.")
        answer = json.loads(line)
        if "error" in answer:
            raise ConfigError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        """Ends the worker."""
        self._closed = True
        self._stop()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._stop()
            env = {**os.environ, "OMP_NUM_THREADS": "1"}
            self._answers = queue.Queue()
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=env,
            )
            assert self._process.stdout is not None
            threading.Thread(target=_collect, args=(self._process.stdout, self._answers), daemon=True).start()
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _collect(stream: IO[str], answers: queue.Queue[str]) -> None:
    """Puts every line into the queue; an empty one at the end."""
    with stream:
        for line in stream:
            answers.put(line)
    answers.put("")
