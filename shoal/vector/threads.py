"""The `threads` backend: ranges of envs over a pool of C threads (core/pool.c), the GIL released."""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any

from shoal.errors import ConfigError, UsageError
from shoal.native import lib
from shoal.native.lib import Module
from shoal.vector.backends import Backend
from shoal.vector.native import EnvRange, NativeVec

FROM_ENVS = 2048  # native envs from which on threads are the default: with fewer, waking them takes longer
SPIN_US = 50  # how long an idle worker watches for the next step before it sleeps


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_open: weakref.WeakSet[Any] = weakref.WeakSet()


def _before_fork() -> None:
    """What is in flight comes home first: a child has no threads to finish it."""
    for vec in list(_open):
        for group in vec._in_flight:
            vec._wait(vec._groups.index(group))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)


class ThreadsVec(NativeVec):
    """Steps envs on `num_threads` threads. In `step` the calling thread is one of them."""

    backend = "threads"

    def __init__(self, module: Module, num_envs: int, *, num_threads: int | None = None, **options: Any) -> None:
        cores = available_cores()
        threads = cores if num_threads is None else num_threads
        if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 1024:
            raise ConfigError(
                f"num_threads={num_threads!r} must be an int in 1 .. 1024. This machine has {cores} cores."
            )
        super().__init__(module, num_envs, **options)
        self.num_threads = self.parallelism = threads
        groups = len(self._groups)
        # with groups in flight the caller is off inferring, so the pool needs all its threads to itself
        workers = threads if groups > 1 else threads - 1
        self._core = lib.load_core()
        pool = self._core.pool_open(workers, groups, SPIN_US if threads <= cores else 0)
        if not pool:
            raise UsageError(f"the system refused {workers} threads. Try a smaller num_threads.")
        self._pool = pool
        # at exit the threads end but the pool stays: an atexit function or a daemon thread may still use it
        self._finalizer = weakref.finalize(self, self._core.pool_close, pool)
        self._finalizer.atexit = False
        self._at_exit = weakref.finalize(self, self._core.pool_stop, pool)
        _open.add(self)
        self._chunks = [self._chunk(group.hi - group.lo) for group in self._groups]
        self._chunk_all = self._chunk(self.num_envs)
        self._pointers = {id(f): ctypes.cast(f, ctypes.c_void_p).value for f in (module.step, module.reset)}

    def _chunk(self, count: int) -> int:
        """Envs that a thread takes at a time: four turns each to even out, in whole SIMD blocks."""
        share = -(-count // (4 * self.num_threads))
        return -(-share // 64) * 64 if count >= 64 * self.num_threads else share

    def _run(self, function: Any) -> int:
        pointer = self._pointers[id(function)]
        return int(self._core.pool_run(self._pool, pointer, self._address, 0, self.num_envs, self._chunk_all))

    def _submit(self, index: int, group: EnvRange, function: Any) -> None:
        pointer = self._pointers[id(function)]
        self._core.pool_submit(self._pool, index, pointer, self._address, group.lo, group.hi, self._chunks[index])

    def _wait(self, index: int) -> int:
        return int(self._core.pool_wait(self._pool, index, 0))

    def close_extras(self, **kwargs: Any) -> None:
        """Ends the threads."""
        super().close_extras(**kwargs)
        if hasattr(self, "_finalizer"):  # else __init__ raised
            self._finish_in_flight()
            self._at_exit.detach()
            self._finalizer()


BACKEND = Backend(
    "a pool of C threads in this process", native=ThreadsVec, options={"num_threads": None, "num_groups": 1}
)
