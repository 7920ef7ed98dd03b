"""CUDA graphs of an iteration: work that stays on the GPU is captured once and replayed.

    collecting   `horizon` times policy, sampling, env kernel           (if the envs are on the GPU too)
    update       for each policy: advantages, every minibatch of every epoch

The host replays them and reads no result until it logs. The warm-up before capturing runs the code, so the trainer
saves the run's state before and restores it after.
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
    """Captures a function without arguments; returns a function that replays it on the current stream."""
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        function()
    return graph.replay  # type: ignore[no-any-return]


def warm_up(function: Callable[[], Any], times: int = 2) -> None:
    """Runs a function on a side stream, as capturing requires: libraries choose their kernels and workspaces then."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(times):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


class Pace:
    """Lets the host run at most one iteration ahead of the GPU."""

    def __init__(self) -> None:
        self._last: Any = None

    def step(self) -> None:
        """Called after an iteration was launched: waits for the one before."""
        before, self._last = self._last, torch.cuda.Event()
        self._last.record()
        if before is not None:
            before.synchronize()


def copy_into(targets: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Copies values into tensors that graphs hold. A tensor without a value did not exist then: it becomes zero."""
    for name, tensor in targets.items():
        if name in values:
            tensor.copy_(values[name])
        else:
            tensor.zero_()


def copy_of_state(trainer: Any) -> dict[str, dict[str, Tensor]]:
    """A copy of a trainer's state. A replay is copied to the host: a second one may not fit on the GPU."""
    return {
        name: {k: value.to("cpu" if ".replay." in k else value.device, copy=True) for k, value in part.items()}
        for name, part in trainer.own_state().items()
    }


def put_back(trainer: Any, files: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Copies a state into the tensors that the graphs use."""
    for name, tensors in trainer._tensors().items():
        copy_into(tensors, files[name])
    for name, stream in trainer._streams().items():
        stream.set_state(files["state"][name])
    trainer._ended.clear()
    trainer.shaping.ended.clear()
    for tally in trainer._tallies:
        tally.drain()
    if trainer.vec.is_on_gpu:
        trainer._restore_envs(files["state"])
        trainer.vec.drain_stats()
