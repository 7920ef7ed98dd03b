"""Shards: the parts into which a run's envs and minibatches are divided, whatever the number of processes.

Every shard has its own envs, rollout and random streams, and a copy of the weights. It computes the sum of its part of
a minibatch. The sums of all shards are gathered and added in the order of the shards, so the result does not depend on
which process computed which shard, nor on how a library adds numbers on the way.

    gradient = shards.sum(gradient)

A learner without shards (`learner.shards is None`) calls none of this. Which processes there are, and how they
exchange tensors, is in train/ranks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from shoal.errors import ConfigError


class Between(Protocol):
    """Exchanges tensors between processes."""

    received: int  # bytes, since it was last set to 0

    def gather(self, own: Tensor) -> Tensor:
        """(own shards, n) -> (all shards, n), in the order of the shards."""

    def sum(self, own: Tensor) -> Tensor:
        """(own shards, n) -> (n,): the sum over all shards, added in their order."""


class Shards:
    """All shards of a run, seen from one of them."""

    def __init__(self, index: int, exchange: Exchange) -> None:
        self.index, self.exchange, self.count = index, exchange, exchange.count

    def gather(self, own: Tensor) -> Tensor:
        """(count, *shape): the tensors of all shards. Every shard calls it with the same shape and dtype."""
        return self.exchange.gather(self.index, own.detach())

    def sum(self, own: Tensor) -> Tensor:
        """The sum over all shards, added in their order."""
        return self.exchange.sum(self.index, own.detach())

    def mean(self, own: Tensor) -> Tensor:
        """The mean over all shards."""
        return self.sum(own) / self.count

    def sum_all(self, *parts: Tensor) -> list[Tensor]:
        """The sums of several tensors of one dtype, in one exchange."""
        whole = self.sum(torch.cat([part.reshape(-1) for part in parts]))
        pieces = whole.split([part.numel() for part in parts])
        return [piece.view(part.shape) for piece, part in zip(pieces, parts)]


def ordered_sum(parts: Tensor) -> Tensor:
    """parts[0] + parts[1] + ..., one after the other: `torch.sum` may add in another order."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


class Exchange:
    """The shards of this process, and what they exchange with each other and with those of other processes.

    Args:
        count: shards of the run.
        own: those of this process.
        between: exchanges tensors with other processes; None: this process has all shards.
    """

    def __init__(self, count: int, own: range, between: Between | None = None) -> None:
        self.count, self.own, self.between = count, own, between
        self.turns = Turns(len(own))
        self.calls, self.seconds = 0, 0.0  # since the last `drain`
        self.synchronizes = False  # whether exchanges wait for the GPU: their seconds are then those of the exchange
        self._given: list[Tensor] = []
        self._result: Tensor | None = None

    def shards(self) -> list[Shards]:
        """The views of this process's shards."""
        return [Shards(index, self) for index in self.own]

    def run(self, functions: Sequence[Callable[[], Any]]) -> None:
        """Calls a function for each shard of this process. They may exchange tensors."""
        self.turns.run(functions)

    def gather(self, index: int, own: Tensor) -> Tensor:
        """The tensors of all shards, in their order, once each has given its own."""
        return self._once(index, own, self._gather).view(self.count, *own.shape)

    def sum(self, index: int, own: Tensor) -> Tensor:
        """The sum of the tensors of all shards, added in their order. The caller may change it."""
        return self._once(index, own, self._sum).view(own.shape).clone()

    def _once(self, index: int, own: Tensor, combine: Callable[[Tensor], Tensor]) -> Tensor:
        """What `combine` makes of the tensors of this process's shards; the last of them calls it."""
        if len(self.own) == 1:
            return combine(own.reshape(1, -1))
        if index == self.own.start:
            self._given = []
        self._given.append(own.reshape(-1).clone())
        if index == self.own.stop - 1:
            self._result = combine(torch.stack(self._given))
        self.turns.next()
        assert self._result is not None
        return self._result

    def _gather(self, own: Tensor) -> Tensor:
        return own if self.between is None else self._timed(self.between.gather, own)

    def _sum(self, own: Tensor) -> Tensor:
        return ordered_sum(own) if self.between is None else self._timed(self.between.sum, own)

    def _timed(self, exchange: Callable[[Tensor], Tensor], own: Tensor) -> Tensor:
        waits = self.synchronizes and own.device.type == "cuda"
        if waits:
            torch.cuda.synchronize()
        began = time.perf_counter()
        result = exchange(own)
        if waits:
            torch.cuda.synchronize()
        self.seconds += time.perf_counter() - began
        self.calls += 1
        return result

    def drain(self) -> dict[str, float]:
        """Calls, bytes received and seconds of the exchanges with other processes since the last call."""
        numbers = {"calls": float(self.calls), "bytes": 0.0, "seconds": self.seconds}
        self.calls, self.seconds = 0, 0.0
        if self.between is not None:
            numbers["bytes"], self.between.received = float(self.between.received), 0
        return numbers


class _Stop(BaseException):
    """Ends the threads of the other shards after one has failed."""


class Turns:
    """Runs several functions, one at a time: each runs until it calls `next`, which continues the following one.

    Each has a thread of its own, but only one of them runs at any moment, in a fixed order. One function runs in the
    caller's thread.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._turns = [threading.Semaphore(0) for _ in range(count)]
        self._own = threading.local()
        self._error: BaseException | None = None
        self._finished = 0

    def run(self, functions: Sequence[Callable[[], Any]]) -> None:
        """Calls all functions; returns when all have returned. The first exception is raised."""
        if len(functions) != self.count:
            raise ValueError(f"{len(functions)} functions for {self.count} shards")
        if self.count == 1:
            functions[0]()
            return
        self._turns = [threading.Semaphore(0) for _ in range(self.count)]
        self._error, self._finished = None, 0
        is_inference = torch.is_inference_mode_enabled()
        threads = [
            threading.Thread(target=self._run, args=(k, function, is_inference), name=f"shard {k}", daemon=True)
            for k, function in enumerate(functions)
        ]
        for thread in threads:
            thread.start()
        self._turns[0].release()
        try:
            for thread in threads:
                thread.join()
        except BaseException as error:  # an interrupt: the shards stop at their next exchange
            self._error = error
            for turn in self._turns:
                turn.release()
            raise
        if self._error is not None:
            raise self._error

    def next(self) -> None:
        """Gives the turn to the next function, and waits for its own next turn."""
        if self.count == 1:
            return
        number: int = self._own.number
        if self._finished:
            raise AssertionError("a shard ended its update while another still exchanges tensors")
        self._turns[(number + 1) % self.count].release()
        self._wait(number)

    def _wait(self, number: int) -> None:
        self._turns[number].acquire()
        if self._error is not None:
            raise _Stop

    def _run(self, number: int, function: Callable[[], Any], is_inference: bool) -> None:
        self._own.number = number
        try:
            self._wait(number)
            with torch.inference_mode(is_inference):
                function()
            self._finished += 1
            if number + 1 < self.count:
                self._turns[number + 1].release()
            elif self._finished < self.count:
                raise AssertionError("a shard exchanges more tensors than another")
        except _Stop:
            pass
        except BaseException as error:
            self._error = self._error or error
            for turn in self._turns:
                turn.release()


def divide(total: int, count: int, what: str) -> int:
    """total / count, or a ConfigError: every shard has as much as any other."""
    if total % count:
        near = sorted({max(count, total // count * count), (total // count + 1) * count})
        raise ConfigError(f"{what} {total} does not divide over --train.shards {count}. Try {_either(near)}.")
    return total // count


def _either(numbers: Sequence[int]) -> str:
    return " or ".join(str(number) for number in numbers)
