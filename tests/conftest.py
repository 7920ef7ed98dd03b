"""What the tests share: the stock envs, and small headers of the tests' own."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
from pathlib import Path

# The tests are of the CPU, also where there is a GPU: `--device auto` would take it. benchmarks/gpu.py is of the GPU.
os.environ["CUDA_VISIBLE_DEVICES"] = ""


import pytest

from shoal import registry
from shoal.errors import CompilerMissing

from .checks import EVERY, STOCK
from .compile_envs import FLAGS, VARIANTS, compile_stock_envs

for _name, _value in FLAGS.items():
    os.environ.setdefault(_name, _value)

# Workers import the module of their env, and many test modules import torch. The fork server imports it once for all.
multiprocessing.set_forkserver_preload(["torch", "shoal.vector.worker"])

# Tests kill processes, never the machine: to wait for the disk would take a seventh of the time of training tests.
os.fsync = lambda handle: None

ENVS = [name for name in registry.stock_names() if name not in VARIANTS]
BROKEN = Path(__file__).parent / "broken"


def pytest_configure(config: pytest.Config) -> None:
    """Compiles the stock envs before workers of pytest-xdist start: otherwise each worker would compile them.

    A shell starts background jobs with Ctrl-C ignored, and children inherit that; here it is to be tested.
    """
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        with contextlib.suppress(CompilerMissing):  # the tests that need a compiler say so
            compile_stock_envs()
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of long.txt as slow."""
    lines = (Path(__file__).parent / "long.txt").read_text().splitlines()
    long = [line for line in lines if line and not line.startswith("#")]
    for item in items:
        name = item.nodeid
        if any(name == line or name.startswith((f"{line}::", f"{line}[")) for line in long):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Garbage collections skip what is imported: a few 100,000 objects, which take 0.1 to 0.3 s each time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Triton's library reports what is still alive at exit as leaked, at length."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _forget_registered_envs(monkeypatch):
    """Names that a test registers end with it: other tests list all names."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


@pytest.fixture(params=STOCK)
def env(request) -> str:
    """A stock env of each kind in turn; all others in the slow tests."""
    return request.param


@pytest.fixture(params=EVERY)
def every_env(request) -> str:
    """Each stock env in turn: a new env is tested at once."""
    return request.param
