"""Nothing of ours may be left after a test: no process, no file descriptor, no shared memory. And none may hang."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import time
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import pytest

from shoal.vector import start_methods
from tests.faults.tools import stat_of

GRACE_S = 5.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(60))


@pytest.fixture(scope="session", autouse=True)
def inherit_orphans() -> None:
    """Processes whose parent dies become children of this one, where they are seen."""
    set_child_subreaper = 36
    assert ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0) == 0
    resource_tracker.ensure_running()
    start_methods.preload_worker()
    forkserver.ensure_running()


def descendants() -> dict[int, str]:
    """Every process below this one, with its command, but for the servers of multiprocessing itself."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                parent, state = stat_of(int(name))
                if state != "Z":
                    parents[int(name)] = parent
    found, wave = {}, {os.getpid()}
    servers = {resource_tracker._resource_tracker._pid, forkserver._forkserver._forkserver_pid}
    while wave:
        wave = {pid for pid, parent in parents.items() if parent in wave}
        for pid in wave - servers:
            with contextlib.suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def open_files() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def shared_memory() -> set[str]:
    """Names in /dev/shm that could be ours, and mappings of ours without a file."""
    names = {name for name in os.listdir("/dev/shm") if "shoal" in name or f"-{os.getpid()}-" in name}
    lines = Path("/proc/self/maps").read_text().splitlines()
    return names | {line for line in lines if "/dev/shm" in line or "memfd:shoal" in line}


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Compares before with after, with a short grace: what was killed takes a moment to go."""
    gc.collect()
    gc.freeze()  # the collections below look at this test's objects only
    before = set(descendants()), open_files(), shared_memory()
    yield
    until = time.monotonic() + GRACE_S
    while True:
        gc.collect()
        processes = {pid: what for pid, what in descendants().items() if pid not in before[0]}
        files = {fd: what for fd, what in open_files().items() if before[1].get(fd) != what and "/proc/" not in what}
        memory = shared_memory() - before[2]
        if not (processes or files or memory):
            return
        if time.monotonic() > until:
            break
        time.sleep(0.02)
    assert not processes, "processes are left"
    assert not files, "files are left open"
    assert not memory, "shared memory is left"
