"""What the tests share: the stock envs, and small headers of the tests' own."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from pathlib import Path

# The tests are of the CPU, also where there is a GPU: `--device auto` would take it. benchmarks/gpu.py is of the GPU.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import pytest

from shoal import registry

# Workers import the module of their env, and many test modules import torch. The fork server imports it once for all.
multiprocessing.set_forkserver_preload(["torch", "shoal.vector.worker"])

ENVS = registry.stock_names()
BROKEN = Path(__file__).parent / "broken"


def pytest_configure() -> None:
    """A shell starts background jobs with Ctrl-C ignored, and children inherit that; here it is to be tested."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Garbage collections skip what is imported: a few 100,000 objects, which take 0.1 to 0.3 s each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(params=ENVS)
def env(request) -> str:
    """Each stock env in turn: a new env is tested at once."""
    return request.param
