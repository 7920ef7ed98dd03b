"""Settings of torch and of the C library that training changes."""

from __future__ import annotations

import contextlib
import ctypes
import os

import torch


class TorchSettings:
    """Settings of torch that training changes, saved to be restored."""

    def __init__(self) -> None:
        self.threads = torch.get_num_threads()
        self.deterministic = torch.backends.cudnn.deterministic
        self.tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        self.workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")

    def restore(self) -> None:
        """Restores them."""
        torch.set_num_threads(self.threads)
        torch.backends.cudnn.deterministic = self.deterministic
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = self.tf32
        if self.workspace is None:
            os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


def use_deterministic_kernels(precision: str) -> None:
    """Makes cuBLAS and cuDNN repeat their results bit for bit, in the precision of `--train.precision`."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # otherwise the order of cuBLAS's sums may change
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.allow_tf32 = precision != "fp32"


def keep_freed_memory() -> None:
    """Makes the C library keep freed memory for reuse instead of returning every large tensor to the system.

    Otherwise the activations of every minibatch are new memory, whose page faults take longer than the arithmetic.
    (glibc only; 32 MB is the largest threshold that it accepts.)
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mmap_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD of malloc.h
        mallopt(mmap_threshold, 32 << 20)
        mallopt(trim_threshold, 1 << 30)
