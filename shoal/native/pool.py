"""Threads: a pool of C threads (core/pool.c) that learners share out their work over."""

from __future__ import annotations

import ctypes
import weakref

from shoal.native import lib

SPIN_US = 50  # how long an idle thread polls for work before it sleeps


class Threads:
    """`count` threads, the caller included. They start with the first use of `address`, and end with the object."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._core = lib.load_core()
        functions = (self._core.pool_run, self._core.pool_threads)
        self.run, self.pool_threads = (ctypes.cast(function, ctypes.c_void_p).value for function in functions)
        self._pool: int | None = None

    @property
    def address(self) -> int | None:
        """The pool of C; None if it has no threads besides the caller, or the system could not start them."""
        if self._pool is None and self.count > 1:
            self._pool = self._core.pool_open(self.count - 1, 1, SPIN_US)
            if not self._pool:
                self.count = 1
                return None
            # at exit the threads end but the pool is not freed: an atexit function or a daemon thread may still use it
            weakref.finalize(self, self._core.pool_close, self._pool).atexit = False
            weakref.finalize(self, self._core.pool_stop, self._pool)
        return self._pool
