"""PPO's batches by Triton kernels against those of torch, in Triton's interpreter: no GPU is needed."""

from __future__ import annotations

import importlib.util

import pytest

from .checks import check_kernels

LONG = ("images", "compiles")
HAS_TRITON = importlib.util.find_spec("triton") is not None


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
@pytest.mark.parametrize("group", ["batches", "order", *(pytest.param(x, marks=pytest.mark.slow) for x in LONG)])
def test_batches_equal_those_of_torch(group):
    check_kernels("tests.batch_checks", group)
