"""WorkerHandle: the parent's end of one worker process: starts it, receives its messages, ends it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any

import cloudpickle

from shoal.vector import start_methods, worker
from shoal.vector.slots import Creator

POLL_S = 0.1  # how often the parent checks whether its workers live


class WorkerHandle:
    """The parent's end of one worker process: its process object and its pipe."""

    def __init__(
        self, index: int, creators: Sequence[Creator], start_method: str, affinity: int | None, timeout_s: float
    ) -> None:
        self.index, self.creators, self.start_method, self.affinity = index, list(creators), start_method, affinity
        self.timeout_s = timeout_s
        self.restarts: list[float] = []
        self.process: Any = None
        self.pipe: Any = None

    def start(self) -> None:
        """Starts the process; it begins to make its envs."""
        context: Any = multiprocessing.get_context(self.start_method)
        self.pipe, theirs = context.Pipe(duplex=True)
        _limit_blocking(self.pipe.fileno(), self.timeout_s)
        work: Any = self.creators
        if self.start_method != "fork":
            work = start_methods.pack_work(self.creators, self.start_method)
        from_main = self.start_method == "forkserver" or threading.get_native_id() == os.getpid()
        arguments = (work, theirs, os.getpid(), from_main, self.affinity)
        self.process = context.Process(
            target=worker.main, args=arguments, daemon=True, name=f"shoal-worker-{self.index}"
        )
        with contextlib.ExitStack() as around:
            if self.start_method != "fork":  # a forked worker would keep the lock, and its env may want it
                around.enter_context(start_methods.without_main())
            if self.start_method == "forkserver":
                start_methods.preload_worker()
            else:  # the server's other children must still receive Ctrl-C
                around.enter_context(start_methods.without_interrupts())
            self.process.start()
        theirs.close()

    def receive(self, until: float) -> Any:
        """The next message. EOFError: the worker died. TimeoutError: it did not arrive in time."""
        while not self.pipe.poll(min(POLL_S, max(0.0, until - time.monotonic()))):
            if self.process.exitcode is not None and not self.pipe.poll(0):
                raise EOFError
            if time.monotonic() >= until:
                raise TimeoutError
        try:
            return cloudpickle.loads(self.pipe.recv_bytes())
        except BlockingIOError:  # stopped in the middle of a message
            raise TimeoutError from None
        except OSError:  # killed in the middle of one
            raise EOFError from None

    def join(self, until: float) -> bool:
        """Waits for the process to end. Not by its sentinel: children of an env may hold that open."""
        pause = 0.0005
        while self.process.exitcode is None:
            if time.monotonic() >= until:
                return False
            time.sleep(pause)
            pause = min(2 * pause, 0.01)
        return True

    def end(self) -> None:
        """Kills the process if it lives."""
        if self.process is None:
            return
        if self.process.exitcode is None:
            self.process.kill()
            self.join(time.monotonic() + 2.0)
        with contextlib.suppress(OSError):
            self.pipe.close()
        if self.process.exitcode is not None:
            self.process.join()
            self.process.close()


def _limit_blocking(fd: int, timeout_s: float) -> None:
    """No read or write on this end of a pipe blocks for longer, whatever the other end does."""
    seconds, part = divmod(min(timeout_s, 1e6), 1.0)
    limit = struct.pack("ll", int(seconds), int(part * 1e6) or (not seconds))
    with socket.socket(fileno=os.dup(fd)) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
