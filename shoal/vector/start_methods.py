"""How worker processes are started: which start method is safe, and what a worker needs from its parent.

`fork` is the fastest and copies the whole parent, but only one of its threads: a lock that another thread held stays
locked in the child for ever. Libraries with threads, such as torch, then hang in the child. So `fork` is the default
only in a process without such threads; otherwise it is `forkserver`, whose server process has none. Its workers do not
inherit the parent's modules, environment variables and working folder, so these are sent.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.spawn
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from typing import Any

import cloudpickle
import gymnasium

from shoal.errors import ConfigError

THREADED_LIBRARIES = ("torch", "tensorflow", "jax", "sklearn", "numba")  # a fork after their threads have run can hang
STOCK_IDS = ("gymnasium.", "shoal.")  # entry points of ids that every worker registers

_spawning = threading.Lock()


def default_start_method() -> str:
    """`fork` where it is safe (Linux, no threads); otherwise `forkserver`. On other systems Python's default."""
    methods = multiprocessing.get_all_start_methods()
    if sys.platform != "linux" or "fork" not in methods:
        return methods[0]
    has_threads = threading.active_count() > 1 or any(name in sys.modules for name in THREADED_LIBRARIES)
    return "forkserver" if has_threads and "forkserver" in methods else "fork"


@dataclass(frozen=True)
class Surroundings:
    """What a worker inherits if it is forked from its parent, to be sent to one that is not."""

    environ: dict[str, str]
    folder: str
    gymnasium_ids: dict[str, bytes]  # pickled specs of ids that the parent registered

    @classmethod
    def of_this_process(cls) -> Surroundings:
        """The surroundings of the calling process."""
        return cls(dict(os.environ), os.getcwd(), registered_ids())

    def restore(self) -> None:
        """Applies them to the calling process, a worker."""
        for name in set(os.environ) - set(self.environ):
            del os.environ[name]
        os.environ.update(self.environ)
        with contextlib.suppress(OSError):
            os.chdir(self.folder)
        add_ids(self.gymnasium_ids)


def registered_ids() -> dict[str, bytes]:
    """Specs of the ids that the user registered. One that cannot be pickled is skipped: the env may not need it."""
    specs = {}
    for name, spec in gymnasium.registry.items():
        if isinstance(spec.entry_point, str) and spec.entry_point.startswith(STOCK_IDS):
            continue
        with contextlib.suppress(Exception):
            specs[name] = cloudpickle.dumps(spec)
    return specs


def add_ids(specs: Mapping[str, bytes]) -> None:
    """Registers ids of another process with Gymnasium, those that are not known here.

    A library that registers its ids when it is imported does so again: Gymnasium's warning of each is left out.
    """
    warnings.filterwarnings("ignore", message=".*Overriding environment .* already in registry")
    for name, spec in specs.items():
        if name not in gymnasium.registry:
            with contextlib.suppress(Exception):  # this worker's env may not need it
                gymnasium.registry[name] = cloudpickle.loads(spec)


def pack_work(creators: Sequence[Any], start_method: str) -> bytes:
    """The creators of a worker's envs, and the surroundings, as bytes."""
    try:
        return bytes(cloudpickle.dumps((Surroundings.of_this_process(), cloudpickle.dumps(list(creators)))))
    except Exception as error:
        raise ConfigError(
            f"the env creator cannot be pickled for start_method='{start_method}': {error}. "
            "Create what it needs inside the function, or use start_method='fork' (not safe after torch has run)."
        ) from error


def unpack_work(work: bytes) -> list[Any]:
    """In the worker: restores the surroundings and returns the creators."""
    surroundings, creators = cloudpickle.loads(work)
    surroundings.restore()  # first: the modules of the creators may depend on it
    return list(cloudpickle.loads(creators))


def preload_worker(work: bytes = b"") -> None:
    """Makes the fork server, unless it runs already, import what workers need: each then starts in milliseconds."""
    server: Any = forkserver._forkserver
    if server._forkserver_pid is None:
        needed = ["shoal.vector.worker", *(["torch"] if _imports_torch(work) else [])]
        multiprocessing.set_forkserver_preload(list(dict.fromkeys([*server._preload_modules, *needed])))


def _imports_torch(work: bytes) -> bool:
    """Whether the work names a module that imports torch: each worker would import it, for seconds."""
    torch = sys.modules.get("torch")
    modules = [(name, module) for name, module in list(sys.modules.items()) if module is not None]
    users = (name for name, module in modules if getattr(module, "torch", None) is torch and name != "torch")
    return torch is not None and any(name.encode() in work for name in users if not name.startswith("torch."))


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Processes started within do not import the user's __main__: their work is sent by cloudpickle.

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
    """Blocks Ctrl-C, also in processes started within: a worker unblocks it after it has set it to be ignored."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # its start would unblock Ctrl-C
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
