"""The kernels of algos/fused.py against the plain path, in Triton's interpreter: see kernels_check.py."""

from __future__ import annotations
