"""The `threads` backend: ranges of envs over a pool of C threads (core/pool.c), the GIL released."""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any

from shoal.cores import available_cores, available_threads
from shoal.errors import ConfigError, UsageError
from shoal.native import lib
from shoal.native.lib import Module
from shoal.native.pool import SPIN_US
from shoal.vector.backends import Backend
from shoal.vector.native import EnvRange, NativeVec

FROM_ENVS = 2048  # threads are the default from this number of native envs on: with fewer, waking them costs more

TAKE_TOGETHER = 32768  # actions from which on all threads check and copy them: one takes 10 us for so many

_open: weakref.WeakSet[Any] = weakref.WeakSet()


def _before_fork() -> None:
    """Finishes all steps in flight: the child process has no threads to do so."""
    for vec in list(_open):
        for envs in vec._in_flight:
            vec._wait(vec._ranges.index(envs))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)


class ThreadsVec(NativeVec):
    """Steps envs on `num_threads` threads. In `step` the calling thread is one of them."""

    backend = "threads"

    def __init__(self, module: Module, num_envs: int, *, num_threads: int | None = None, **options: Any) -> None:
        cores = available_cores()
        threads = available_threads() if num_threads is None else num_threads
        if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 1024:
            raise ConfigError(
                f"num_threads={num_threads!r} must be an int in 1 .. 1024. This machine has {cores} cores."
            )
        super().__init__(module, num_envs, **options)
        self.num_threads = self.parallelism = threads
        # with several ranges the caller runs the policy while the pool steps, so it is not one of the threads
        workers = threads if len(self._ranges) > 1 else threads - 1
        self._core = lib.load_core()
        pool = self._core.pool_open(workers, len(self._ranges), SPIN_US if 1 < cores >= threads else 0)
        if not pool:
            raise UsageError(f"the system could not start {workers} threads. Try a smaller num_threads.")
        self._pool = pool
        # at exit the threads end but the pool is not freed: an atexit function or a daemon thread may still use it
        self._finalizer = weakref.finalize(self, self._core.pool_close, pool)
        self._finalizer.atexit = False
        self._at_exit = weakref.finalize(self, self._core.pool_stop, pool)
        _open.add(self)
        self._chunks = [self._chunk(envs.hi - envs.lo) for envs in self._ranges]
        self._chunk_all = self._chunk(self.num_envs)
        width = self.actions.size // self.num_envs  # numbers in an env's actions
        self._takes = {  # by function: its address, and the bytes of an env's actions
            id(take): (ctypes.cast(take, ctypes.c_void_p).value, dtype.itemsize * width)
            for dtype, take in module.take.items()
            if threads > 1 and self.actions.size >= TAKE_TOGETHER
        }
        self._pointers = {id(f): ctypes.cast(f, ctypes.c_void_p).value for f in (module.step, module.reset)}

    def _chunk(self, count: int) -> int:
        """Envs that a thread takes at a time: four chunks per thread for balance, in whole SIMD blocks."""
        share = -(-count // (4 * self.num_threads))
        return -(-share // 64) * 64 if count >= 64 * self.num_threads else share

    def _run(self, function: Any) -> int:
        pointer = self._pointers[id(function)]
        return int(self._core.pool_run(self._pool, pointer, self._address, 0, self.num_envs, self._chunk_all))

    def _run_take(self, take: Any, address: int, envs: EnvRange) -> int:
        """Of many envs each thread takes the actions of its own."""
        if envs is not self._all or not self._takes:
            return super()._run_take(take, address, envs)
        pointer, stride = self._takes[id(take)]
        together = self._core.pool_take
        return int(together(self._pool, pointer, self._address, address, stride, 0, self.num_envs, self._chunk_all))

    def _submit(self, index: int, envs: EnvRange, function: Any) -> None:
        pointer = self._pointers[id(function)]
        self._core.pool_submit(self._pool, index, pointer, self._address, envs.lo, envs.hi, self._chunks[index])

    def _wait(self, index: int) -> int:
        return int(self._core.pool_wait(self._pool, index, 0))

    def close_extras(self, **kwargs: Any) -> None:
        """Ends the threads."""
        super().close_extras(**kwargs)
        if hasattr(self, "_finalizer"):  # otherwise __init__ raised
            self._finish_in_flight()
            self._at_exit.detach()
            self._finalizer()


BACKEND = Backend(
    "a pool of C threads in this process", native=ThreadsVec, options={"num_threads": None, "num_groups": 1}
)
