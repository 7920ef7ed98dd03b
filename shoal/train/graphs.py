"""CUDA graphs of an iteration: what stays on the GPU is captured once and replayed.

    graph 1   the rollout: T times policy, sampling, env kernel            (where the envs are on the GPU too)
    graph 2   for each policy, the update: advantages, every minibatch of every epoch

The host replays them and reads nothing until it logs. Capturing runs the code for real, so the run's state is saved
before and put back after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from shoal.nn.launch import compile_ahead, has_triton


class Graphs:
    """The graphs of a trainer."""

    def __init__(
        self,
        collect: Callable[[], Any] | None,
        collect_streams: Sequence[torch.Generator],
        updates: Sequence[Callable[[], Any]],
        update_streams: Sequence[torch.Generator],
    ) -> None:
        def everything() -> None:
            if collect is not None:
                collect()
            for update in updates:
                update()

        if has_triton():
            compile_ahead(everything)
        warm_up(everything)
        self.collect = None if collect is None else capture(collect, collect_streams)
        self.updates = [capture(update, [stream]) for update, stream in zip(updates, update_streams)]


def capture(function: Callable[[], Any], generators: Sequence[torch.Generator]) -> Callable[[], None]:
    """Captures a function without arguments; the result replays it on the current stream."""
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        function()
    return graph.replay  # type: ignore[no-any-return]


def warm_up(function: Callable[[], Any], times: int = 2) -> None:
    """Runs a function on a side stream, as capturing requires: libraries choose their kernels and workspaces."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(times):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


class Pace:
    """Lets the host run one iteration ahead of the GPU, and no further."""

    def __init__(self) -> None:
        self._last: Any = None

    def step(self) -> None:
        """An iteration was launched: waits for the one before."""
        before, self._last = self._last, torch.cuda.Event()
        self._last.record()
        if before is not None:
            before.synchronize()


def copy_into(targets: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Copies values into tensors that graphs hold. One without a value did not exist at the start: it becomes zero."""
    for name, tensor in targets.items():
        if name in values:
            tensor.copy_(values[name])
        else:
            tensor.zero_()
