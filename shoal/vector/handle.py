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

POLL_S = 0.1  # how often the parent checks that its workers are alive


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
        """Starts the process, which then makes its envs."""
        context: Any = multiprocessing.get_context(self.start_method)
        self.pipe, worker_end = context.Pipe(duplex=True)
        limit_blocking(self.pipe.fileno(), self.timeout_s)
        work: Any = self.creators
        if self.start_method != "fork":
            work = start_methods.pack_work(self.creators, self.start_method)
        from_main = self.start_method == "forkserver" or threading.get_native_id() == os.getpid()
        arguments = (work, worker_end, os.getpid(), from_main, self.affinity)
        self.process = context.Process(
            target=worker.main, args=arguments, daemon=True, name=f"shoal-worker-{self.index}"
        )
        with contextlib.ExitStack() as stack:
            if self.start_method != "fork":  # a forked worker would inherit the lock, which its env may need
                stack.enter_context(start_methods.without_main())
            if self.start_method == "forkserver":
                start_methods.preload_worker(work)
            else:  # not for forkserver: its other children must receive Ctrl-C
                stack.enter_context(start_methods.without_interrupts())
            self.process.start()
        worker_end.close()

    def receive(self, until: float) -> Any:
        """The next message. Raises EOFError if the worker died, TimeoutError if no message arrives in time."""
        while not self.pipe.poll(min(POLL_S, max(0.0, until - time.monotonic()))):
            if self.process.exitcode is not None and not self.pipe.poll(0):
                raise EOFError
            if time.monotonic() >= until:
                raise TimeoutError
        try:
            return cloudpickle.loads(self.pipe.recv_bytes())
        except BlockingIOError:  # the worker was stopped in the middle of a message
            raise TimeoutError from None
        except OSError:  # the worker was killed in the middle of a message
            raise EOFError from None

    def join(self, until: float) -> bool:
        """Waits for the process to end; False if it has not. (Children of an env may hold its sentinel open.)"""
        pause = 0.0005
        while self.process.exitcode is None:
            if time.monotonic() >= until:
                return False
            time.sleep(pause)
            pause = min(2 * pause, 0.01)
        return True

    def end(self) -> None:
        """Kills the process if it is alive."""
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


def limit_blocking(fd: int, timeout_s: float) -> None:
    """Limits how long a read or write on this end of a pipe blocks, whatever the other end does."""
    seconds, part = divmod(min(timeout_s, 1e6), 1.0)
    limit = struct.pack("ll", int(seconds), int(part * 1e6) or (not seconds))
    with socket.socket(fileno=os.dup(fd)) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
