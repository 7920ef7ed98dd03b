"""Background: the process of worker.py, seen from the server. It is started by `start`, or when it is needed first."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import IO, Any

from shoal.errors import ConfigError

QUIET = {"OMP_NUM_THREADS": "1"}  # the cores belong to training
PATIENCE_S = 120.0  # the first answer may need a compiler


class Background:
    """Asks the worker, one question at a time. One that is too slow or has crashed is replaced."""

    def __init__(self, root: Path, headers: list[Path], patience_s: float = PATIENCE_S) -> None:
        self.root, self.headers = root, [*map(str, headers)]
        self.command = [sys.executable, "-m", "shoal.watch.worker", str(root), *self.headers]
        self.patience_s = patience_s
        self._process: subprocess.Popen[str] | _Copy | None = None
        self._answers: queue.Queue[str] = queue.Queue()
        self._lock = threading.Lock()
        self._closed = False

    def start(self) -> None:
        """Starts the worker as a copy of this process, before it has threads: it has imported most of what games need.

        Without fork(), and after a crash, it is a new process.
        """
        if sys.platform != "linux" or threading.active_count() > 1:
            threading.Thread(target=self._warm, daemon=True).start()
            return
        import shoal.web.from_files  # noqa: F401

        self._process = _Copy(self.root, self.headers)
        self._listen(self._process)

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

    def _running(self) -> subprocess.Popen[str] | _Copy:
        if self._process is None or self._process.poll() is not None:
            self._stop()
            env = {**os.environ, **QUIET}
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=env,
            )
            self._listen(self._process)
        return self._process

    def _listen(self, process: subprocess.Popen[str] | _Copy) -> None:
        assert process.stdout is not None
        self._answers = queue.Queue()
        threading.Thread(target=_collect, args=(process.stdout, self._answers), daemon=True).start()

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        if process.stdin is not None:
            with contextlib.suppress(OSError):  # of a request that a dead process did not read
                process.stdin.close()


class _Copy:
    """A worker that is a copy of this process, with the methods of Popen."""

    def __init__(self, root: Path, headers: list[str]) -> None:
        (lines, self_out), (self_in, out) = os.pipe(), os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of threads: those of numpy's BLAS, which prepares itself for a copy
            self.pid = os.fork()
        if not self.pid:
            os.close(self_out)
            os.close(self_in)
            _serve_and_exit(root, headers, lines, out)
        os.close(lines)
        os.close(out)
        self.stdin, self.stdout = os.fdopen(self_out, "w"), os.fdopen(self_in)
        self._is_gone = False

    def poll(self) -> int | None:
        """0 if it has ended, else None."""
        self._reap(os.WNOHANG)
        return 0 if self._is_gone else None

    def kill(self) -> None:
        """Ends it."""
        if not self._is_gone:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Waits until it has ended."""
        self._reap(0)

    def _reap(self, flags: int) -> None:
        with contextlib.suppress(ChildProcessError):
            if not self._is_gone:
                self._is_gone = os.waitpid(self.pid, flags)[0] == self.pid


def _serve_and_exit(root: Path, headers: list[str], lines: int, out: int) -> None:
    """The copy's whole life. Nothing of the parent's runs in it: no `finally`, no exit handlers."""
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for handle in (0, 1, 2):
            os.dup2(nowhere, handle)
        os.environ.update(QUIET)
        from shoal.watch.worker import serve

        serve(root, headers, os.fdopen(lines), os.fdopen(out, "w"))
    finally:
        os._exit(0)


def _collect(stream: IO[str], answers: queue.Queue[str]) -> None:
    """Puts every line into the queue; an empty one at the end."""
    with stream:
        for line in stream:
            answers.put(line)
    answers.put("")
