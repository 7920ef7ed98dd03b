"""How worker processes are started: which start method is safe here, and what a worker needs from its parent.

`fork` is the fastest, and copies everything that the parent has. But a fork copies one thread only: a lock that another
thread held stays locked in the child forever. torch and other libraries with threads of their own then hang in the
child. So `fork` is the default only in a process without such threads; otherwise it is `forkserver`, whose server
process has none. Its workers do not inherit the parent's modules, environment variables and folder, so these are sent.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.spawn
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from typing import Any

import cloudpickle
import gymnasium

from shoal.errors import ConfigError

THREADED_LIBRARIES = ("torch", "tensorflow", "jax", "sklearn", "numba")  # a fork after their threads ran can hang
STOCK_IDS = ("gymnasium.", "shoal.")  # entry points of ids that a worker registers by itself

_spawning = threading.Lock()


def default_start_method() -> str:
    """`fork` where it is safe (Linux, no threads); otherwise `forkserver`; elsewhere Python's own default."""
    methods = multiprocessing.get_all_start_methods()
    if sys.platform != "linux" or "fork" not in methods:
        return methods[0]
    has_threads = threading.active_count() > 1 or any(name in sys.modules for name in THREADED_LIBRARIES)
    return "forkserver" if has_threads and "forkserver" in methods else "fork"


@dataclass(frozen=True)
class Surroundings:
    """What a forked worker inherits, for one that is not forked from its parent."""

    environ: dict[str, str]
    folder: str
    gymnasium_ids: dict[str, bytes]  # specs of ids that the parent's process registered, each pickled by itself

    @classmethod
    def of_this_process(cls) -> Surroundings:
        """To be sent to a worker."""
        return cls(dict(os.environ), os.getcwd(), _registered_ids())

    def restore(self) -> None:
        """In the worker: what it did not inherit."""
        for name in set(os.environ) - set(self.environ):
            del os.environ[name]
        os.environ.update(self.environ)
        with contextlib.suppress(OSError):
            os.chdir(self.folder)
        for name, spec in self.gymnasium_ids.items():
            if name not in gymnasium.registry:
                with contextlib.suppress(Exception):  # the env that is made here may be another one
                    gymnasium.registry[name] = cloudpickle.loads(spec)


def _registered_ids() -> dict[str, bytes]:
    """Ids of the user's own. One that cannot be pickled is left out: the env that is made may be another one."""
    own = {}
    for name, spec in gymnasium.registry.items():
        if isinstance(spec.entry_point, str) and spec.entry_point.startswith(STOCK_IDS):
            continue
        with contextlib.suppress(Exception):
            own[name] = cloudpickle.dumps(spec)
    return own


def pack_work(creators: Sequence[Any], start_method: str) -> bytes:
    """The creators of a worker's envs, and its surroundings, as bytes."""
    try:
        return bytes(cloudpickle.dumps((Surroundings.of_this_process(), list(creators))))
    except Exception as error:
        raise ConfigError(
            f"the env creator cannot be pickled for start_method='{start_method}': {error}. "
            "Create what it needs inside the function, or use start_method='fork' (not safe after torch has run)."
        ) from error


def unpack_work(work: bytes) -> list[Any]:
    """In the worker: its creators, after its surroundings are as in the parent."""
    surroundings, creators = cloudpickle.loads(work)
    surroundings.restore()
    return list(creators)


def preload_worker() -> None:
    """Has the fork server import what workers need, so that each starts in milliseconds. It may be running already."""
    server: Any = forkserver._forkserver
    if server._forkserver_pid is None and "shoal.vector.worker" not in server._preload_modules:
        multiprocessing.set_forkserver_preload([*server._preload_modules, "shoal.vector.worker"])


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Starts processes that do not import the user's __main__: their work arrives by cloudpickle.

    So scripts need no `if __name__ == "__main__"` guard, and notebooks and lambdas work.
    """
    original = multiprocessing.spawn.get_preparation_data

    def prepare(name: str) -> dict[str, Any]:
        data = original(name)
        data.pop("init_main_from_path", None)
        data.pop("init_main_from_name", None)
        return data

    with _spawning:
        multiprocessing.spawn.get_preparation_data = prepare
        try:
            yield
        finally:
            multiprocessing.spawn.get_preparation_data = original


@contextlib.contextmanager
def without_interrupts() -> Iterator[None]:
    """Holds Ctrl-C back, also in processes started here: a worker unblocks it once it ignores it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # when it starts it would let Ctrl-C in again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
