"""Compiles an env for the GPU, and makes the GPU's context, while Python imports torch: a run starts sooner by both.

Nothing happens here alone: what goes wrong is told by whoever asks for it next.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from shoal.native import build, cuda, lib


def begin(header: Path) -> list[threading.Thread]:
    """Starts threads for an env with its default consts; none where there is nothing that could use a GPU.

    Python waits for them at its end: a compiler that is left in the middle leaves half a file, or crashes when the
    memory under it goes.
    """
    try:
        from cuda.bindings import driver, nvrtc  # noqa: F401  (no thread of ours imports beside the main one)
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
    """The context is the device's primary one, which torch takes up; like torch's, it stays until the process ends."""
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
