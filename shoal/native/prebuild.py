"""Compiles an env for the GPU, and creates the GPU's context, while Python imports torch: a run starts sooner.

Failures are ignored here: the same call fails again, with its error, when the trainer makes the env.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from shoal.native import build, cuda, lib


def start(header: Path) -> list[threading.Thread]:
    """Starts threads that compile an env with its default consts; none where the CUDA bindings are not installed.

    They are not daemon threads: Python waits for them at exit. A compiler that is interrupted leaves an incomplete
    file, or crashes when the interpreter frees its memory.
    """
    try:
        from cuda.bindings import driver, nvrtc  # noqa: F401  (imported here: the threads import nothing)
    except ImportError:
        return []
    threads = [threading.Thread(target=work, args=(header,)) for work in (_build_library, _build_kernels)]
    for thread in threads:
        thread.start()
    return threads


def _build_library(header: Path) -> None:
    with contextlib.suppress(Exception):
        lib.load(header)


def _build_kernels(header: Path) -> None:
    """Creates the device's primary context, which torch then uses, and compiles the env's kernels.

    Like torch's, the context exists until the process ends.
    """
    from cuda.bindings import driver

    with contextlib.suppress(Exception):
        cuda.succeed(driver.cuInit(0))
        device = cuda.succeed(driver.cuDeviceGet(0))
        kinds = driver.CUdevice_attribute
        major, minor = (
            cuda.succeed(driver.cuDeviceGetAttribute(kind, device))
            for kind in (
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        cuda.succeed(driver.cuDevicePrimaryCtxRetain(device))
        cuda.cubin(build.Source.env(header), f"sm_{major}{minor}")
