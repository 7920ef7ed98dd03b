"""Recurrent cores: one file each, chosen by `--nn.core`. A core is a torch module between the layers and the heads.

To add a core, add a file to this folder and assign its class at top level:

    CORE = MyCore

The file's stem is the name that `--nn.core` takes. Other packages use the entry point group `shoal.cores`, and scripts
`CORES.register("name", MyCore)`. A core must have:

    __init__(inputs, size)        the features that come in, and the width asked for by --nn.core-size
    size                          that width
    features                      the features that go out
    initial_state(rows)           the state at the start of an episode: a tuple of (rows, ...) tensors
    forward(x, state)             one step: (rows, inputs) -> ((rows, features), next state)
    unroll(x, state, resets)      a segment: (steps, rows, inputs) -> (steps, rows, features)

`resets` is (steps, rows) bool. Where resets[t] is true, an episode began: the row's state is its initial state before
step t. resets[0] is ignored, because a segment's state is stored after its reset.

A core may have:

    gate_rows: int | None         its 2-D parameters are stacks of matrices of this many rows (one for each gate);
                                  Muon orthogonalizes each of them by itself. None or absent: each is one matrix.
    options: type                 a dataclass of its own options, the flags of --core.*; `__init__` then takes their
                                  values as its third argument
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from shoal.plugins import Plugins

State = tuple[Tensor, ...]

CORES = Plugins("core", package="shoal.nn.cores", marker="CORE")

LONGEST = 64.0  # steps that the slowest units remember at the start of training


class Core(Protocol):
    """What the module docstring asks of every core."""

    size: int
    features: int

    def initial_state(self, rows: int) -> State:
        """The state of `rows` rows at the start of an episode."""

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One step."""

    def unroll(self, x: Tensor, state: State, resets: Tensor) -> Tensor:
        """A segment."""


def time_scales(size: int) -> Tensor:
    """Forget gate biases with which units remember for 1 to LONGEST steps, evenly spaced (Tallec & Ollivier 2018)."""
    return torch.linspace(1.0, LONGEST, size).log()
