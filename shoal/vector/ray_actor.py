"""EnvActor: what a Ray actor of the `ray` backend runs: a block of envs, a Runner, and a link to the driver.

driver                                          actor
make(work)                           -> Ray     makes its envs
                                     <- Ray     agent spaces and numbers of envs, or a report of what failed
begin(first, autoreset)              -> Ray     allocates its block, and listens
                                     <- Ray     its address
serve(token)                         -> Ray     takes the connection (ray_link.py) and runs its commands until it ends
STEP, RESET, CALL                    -> link    Runner.step, Runner.reset, or methods of envs
                                     <- link    a frame and the infos, or a report of what an env raised

`serve` returns when the driver closes the connection. If the actor dies, Ray says why in place of that result.
"""

from __future__ import annotations

import os
import pickle
import platform
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from shoal.errors import ConfigError
from shoal.spec import Array
from shoal.vector.base import has_true
from shoal.vector.block import Block
from shoal.vector.faults import call_env, pack
from shoal.vector.python import ROW_KINDS
from shoal.vector.ray_link import LinkClosed, Listener
from shoal.vector.runner import Runner
from shoal.vector.serve import CALL, CALLED, CLOSE, OK, RAISED, RESET, STEP, report_of, reset_with
from shoal.vector.slots import Creator, Info, slot_for
from shoal.vector.start_methods import add_ids, registered_ids
from shoal.vector.worker import pack_infos

FRAME_KINDS = tuple(name for name in ROW_KINDS if name != "final_obs")  # and `ended`, which has one entry for each env


class Answer(NamedTuple):
    """The result of a command, as the parts of a message."""

    status: int
    steps: int
    parts: list[Any]  # of the frame; empty if an env raised, and after a call
    rest: bytes = b""  # pickled: InfoRows of the driver's rows, a report, or the results of a call


class Made(NamedTuple):
    """What an actor says of its envs and of itself."""

    agent_spaces: Any
    envs: list[int]  # of each creator: a vector env holds several
    odd: int | None  # the first env with other spaces than the first one
    pid: int
    host: str


class Restarted(NamedTuple):
    """What an actor that replaces a dead one says of itself, and its first result."""

    made: Made
    address: tuple[str, int]
    steps: int
    frame: Array
    infos: bytes


class Frame:
    """Packs the results of envs [lo, hi) of a block into bytes, and unpacks them on the other side.

    The last observations are packed only if an episode ended: they would double the size.
    """

    def __init__(self, block: Block, lo: int, hi: int) -> None:
        agents = len(block.agent_spaces.agents)
        self.parts = [_bytes_of(block.arrays[name][lo * agents : hi * agents]) for name in FRAME_KINDS]
        self.parts.append(_bytes_of(block.arrays["ended"][lo:hi]))
        self.final_obs = _bytes_of(block.arrays["final_obs"][lo * agents : hi * agents])
        self.done = block.arrays["done"][lo * agents : hi * agents]
        self.most = sum(len(part) for part in self.parts) + len(self.final_obs)  # bytes of the largest frame

    def pieces(self) -> list[Array]:
        """The bytes, in the order of the frame: views of the block."""
        return [*self.parts, self.final_obs] if has_true(self.done) else self.parts

    def unpack(self, frame: Array) -> None:
        """Writes the bytes into the block."""
        at = 0
        for part in self.parts:
            part[:] = frame[at : at + len(part)]
            at += len(part)
        if len(frame) > at:
            self.final_obs[:] = frame[at:]


def _bytes_of(rows: Array) -> Array:
    return rows.reshape(-1).view(np.uint8)


def pack_work(creators: Sequence[Creator]) -> bytes:
    """The creators of an actor's envs, and what they need of this process: ids of Gymnasium, folders of modules."""
    try:
        return bytes(cloudpickle.dumps((list(sys.path), registered_ids(), cloudpickle.dumps(list(creators)))))
    except Exception as error:
        raise ConfigError(
            f"the env creator cannot be pickled for backend='ray': {error}. Create what it needs inside the function."
        ) from error


def _unpack_work(work: bytes) -> list[Creator]:
    folders, ids, creators = pickle.loads(work)
    sys.path += [folder for folder in folders if folder not in sys.path and os.path.exists(folder)]
    add_ids(ids)
    return list(cloudpickle.loads(creators))


class EnvActor:
    """Makes its envs and steps them. What an env raises is returned, so that the actor lives on."""

    runner: Runner
    frame: Frame
    listener: Listener

    def make(self, work: bytes) -> Made | dict[str, Any]:
        """Makes the envs, or returns a report with the number of the env that failed."""
        self.slots: list[Any] = []
        try:
            for create in _unpack_work(work):
                self.slots.append(slot_for(create()))
            spaces = [slot.agent_spaces for slot in self.slots]
            odd = next((k for k, space in enumerate(spaces) if space != spaces[0]), None)
            made = Made(spaces[0], [slot.envs for slot in self.slots], odd, os.getpid(), platform.node())
            cloudpickle.dumps(made)
        except BaseException as error:
            return {"env": len(self.slots), "doing": "its constructor", "seed": None, "step": 0, **pack(error)}
        return made

    def begin(self, first: int, autoreset: str) -> tuple[str, int]:
        """Allocates the block and listens. `first` is the number of its first env among those of all actors."""
        from ray.util import get_node_ip_address

        self.first, num_envs = first, sum(slot.envs for slot in self.slots)
        block = Block(self.slots[0].agent_spaces, num_envs)
        self.agents = len(block.agent_spaces.agents)
        self.runner, self.frame = Runner(self.slots, block, 0, autoreset), Frame(block, 0, num_envs)
        self.listener = Listener(get_node_ip_address())
        return self.listener.address

    def restart(
        self, work: bytes, first: int, autoreset: str, seeds: list[int] | None, shown: tuple[Array, Array] | None
    ) -> Restarted | dict[str, Any]:
        """All of it for an actor that replaces a dead one: makes the envs and resets them by their seeds.

        `shown`: observations and alive flags of the old episodes, which stay on show until the next step resets them.
        """
        made = self.make(work)
        if isinstance(made, dict):
            return {**made, "env": first + made["env"]}
        try:
            address = self.begin(first, autoreset)
        except BaseException as error:
            return {"env": first, "doing": "its setup", "seed": None, "step": 0, **pack(error)}

        def run() -> Any:
            info_rows = reset_with(self.runner, seeds)
            if shown is None:
                return info_rows
            arrays = self.runner.arrays
            arrays["obs"][:], arrays["alive"][:] = shown
            arrays["ended"][:] = True
            return []

        answer = self._answer(run, "reset")
        if answer.status == RAISED:
            report: dict[str, Any] = pickle.loads(answer.rest)
            return report
        return Restarted(made, address, answer.steps, np.concatenate(answer.parts), answer.rest)

    def serve(self, token: bytes, timeout_s: float) -> str:
        """Runs the driver's commands until the connection ends. Returns why it ended."""
        link = self.listener.accept(token, self.runner.arrays["actions"].nbytes, timeout_s)
        if link is None:
            return f"nobody connected within {timeout_s:g} s"
        try:
            while (message := link.receive()) is not None and message.kind != CLOSE:
                answer = self._run(message.kind, message.first)
                link.send(answer.status, answer.steps, answer.parts, answer.rest)
        except LinkClosed:
            return "the driver is gone"
        finally:
            self.runner.close()
            link.close()
        return "the driver has closed it"

    def _run(self, command: int, data: memoryview) -> Answer:
        if command == STEP:
            target = self.runner.arrays["actions"]
            target[:] = np.frombuffer(data, np.uint8).reshape(target.shape)
            return self._answer(self.runner.step, "")
        if command == RESET:
            return self._reset(*pickle.loads(data))
        assert command == CALL, command
        return self._call(*pickle.loads(data))

    def _reset(self, seeds: list[int] | None, mask: Array | None, options: bytes | None) -> Answer:
        """Starts episodes in all envs, or in those of the mask."""
        arrays = self.runner.arrays
        arrays["reset_with"][:] = (seeds is not None, mask is not None, options is not None)
        if seeds is not None:
            arrays["seeds"][:] = seeds
        if mask is not None:
            arrays["reset_mask"][:] = mask
        return self._answer(lambda: self.runner.reset(pickle.loads(options) if options else None), "reset")

    def _answer(self, run: Callable[[], Any], doing: str) -> Answer:
        runner, shift = self.runner, self.first * self.agents
        try:
            info_rows = run()
            shifted = [(row + shift, final, info) for row, final, info in info_rows]
            infos = pack_infos(shifted) if shifted else b""
        except BaseException as error:
            report = report_of(error, runner, doing or f"step {runner.steps}", pack)
            return Answer(RAISED, runner.steps, [], pickle.dumps({**report, "env": report["env"] + self.first}))
        return Answer(OK, runner.steps, self.frame.pieces(), infos)

    def _call(self, numbers: list[int], name: str, arguments: bytes) -> Answer:
        """Calls a method of chosen envs, or reads an attribute."""
        place, steps = numbers[0], self.runner.steps
        try:
            args, kwargs = pickle.loads(arguments)
            results = []
            for place in numbers:
                results.append(call_env(self.runner.env(place - self.first), name, args, kwargs))
            return Answer(CALLED, steps, [], cloudpickle.dumps(results))
        except BaseException as error:
            report = {"doing": f"call of {name}", "env": place, "seed": None, "step": 0, **pack(error)}
            return Answer(RAISED, steps, [], pickle.dumps(report))


def pack_arguments(args: tuple[Any, ...], kwargs: Info) -> bytes:
    """The arguments of a call, or a ConfigError."""
    try:
        return bytes(cloudpickle.dumps((args, kwargs)))
    except Exception as error:
        raise ConfigError(f"the arguments of a call cannot be sent to another process: {error}") from error
