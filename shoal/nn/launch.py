"""Launches Triton kernels. One takes up to five seconds to compile; `compile_ahead` compiles all in parallel."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import Tensor

Plan = dict[Any, dict[Any, Callable[[], Any]]]  # by kernel and specialization: the call that compiles it
_planned: Plan | None = None


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed. CUDA builds of torch for Linux include it."""
    return importlib.util.find_spec("triton") is not None


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Launches a kernel on torch's current stream."""
    if _planned is None:
        kernel[grid](*args, **options)
    else:
        kind = (*map(_kind, args), *options.values())
        _planned.setdefault(kernel, {}).setdefault(kind, partial(kernel.warmup, *args, grid=grid, **options))


@functools.cache
def overlap(device: torch.device) -> dict[str, Any]:
    """Options of a kernel that starts before the one before it has ended: on Hopper, where it was tried."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9:
        return {"OVERLAP": False}
    from triton.language.extra import cuda

    return {"OVERLAP": True, "launch_pdl": True} if hasattr(cuda, "gdc_wait") else {"OVERLAP": False}


def fresh(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Memory for a kernel's output. Zeros in `compile_ahead`, which launches no kernel: later code may reject nan."""
    make = like.new_empty if _planned is None else like.new_zeros
    return make(shape or like.shape, dtype=dtype or like.dtype)


def _kind(value: Any) -> Any:
    """What Triton specializes a kernel for: types, and whether addresses and integers are multiples of 16."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    return (value == 1, value % 16 == 0) if isinstance(value, int) else type(value)


def compile_ahead(function: Callable[[], Any]) -> None:
    """Compiles and loads all kernels that a function launches, each in a thread.

    The function runs without launching them: its results are meaningless but finite (see `fresh`). Threads help
    because Triton's passes and the C and PTX compilers release the GIL.
    """
    global _planned
    plan: Plan = {}
    _planned = plan
    try:
        function()
    finally:
        _planned = None
    if plan:
        with ThreadPoolExecutor(len(plan)) as pool:
            list(pool.map(_make_ready, plan.values()))


def _make_ready(calls: dict[Any, Callable[[], Any]]) -> None:
    """Compiles one kernel for each kind of arguments that it is called with."""
    for call in calls.values():
        call()[(1, 1, 1)]  # the index loads it, and compiles its launcher
