"""What every worker process does: makes its envs, then runs the commands that the parent posts.

parent                               worker
start(creators)         ->           makes its envs
                        <- pipe      ("made", agent spaces, envs) or ("failed", report)
plan, memory            -> pipe
                        <- pipe      None, or a report of why it cannot start
post(STEP)              -> channel   Runner.step writes into the shared block
                        <- channel   finish(status): infos are in shared memory or in the pipe, an error in the pipe

A channel is a pair of counters in shared memory (core/wait.c). How a worker is started, and how it writes its messages,
is in worker.py for this interpreter and in remote_worker.py for another: this file and all that it imports need numpy
alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import numpy as np

from shoal.layout import AgentSpaces
from shoal.native.channels import Channel
from shoal.vector import shared
from shoal.vector.block import Block
from shoal.vector.faults import call_env
from shoal.vector.runner import Runner
from shoal.vector.slots import Creator, InfoRows, slot_for

RESET, STEP, CALL, CLOSE = range(4)  # commands that a worker gets
OK, INFOS_IN_MEMORY, INFOS_IN_PIPE, RAISED, CALLED = range(
    5
)  # status of a command; from INFOS_IN_PIPE on, a message is in the pipe
INFO_BYTES = 1 << 16  # shared memory for the infos of a step; longer ones are sent through the pipe


@dataclass(frozen=True)
class Plan:
    """Which envs a worker has, and the layout of the shared memory."""

    worker: int
    num_envs: int  # of all workers
    lo: int  # its first env
    size: int  # bytes of the shared memory
    infos_at: int  # offset of the infos, INFO_BYTES for each worker
    block_at: int  # offset of the Block
    autoreset: str
    spin_us: int
    replaces: bool = False  # it replaces a worker that died: it resets its envs before its first command
    seeds: list[int] | None = None  # for that reset


@dataclass(frozen=True)
class Wire:
    """How a worker writes messages for its parent. The parent reads all of them with pickle."""

    dumps: Callable[[Any], bytes]
    dumps_infos: Callable[[InfoRows], bytes]
    pack: Callable[[BaseException], dict[str, Any]]  # an exception as plain data
    spaces: Callable[[AgentSpaces], Any]  # spaces as data that the parent's AgentSpaces is made from


def prepare(parent: int, from_main: bool, affinity: int | None) -> None:
    """Signals, life time and core of a new worker. `from_main`: a main thread started it, not one that may end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    # torchrun sends SIGTERM to the workers too, but the parent needs them until it has saved a checkpoint
    is_launched = "TORCHELASTIC_RUN_ID" in os.environ
    signal.signal(signal.SIGTERM, signal.SIG_IGN if is_launched else signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the parent blocked it until now
    if (
        not (from_main and _die_with_starter()) or os.getppid() != parent
    ):  # a forkserver started it, or the parent is gone
        threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # envs may have children
    if affinity is not None and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {affinity})


def work(creators: Callable[[], Iterable[Creator]], pipe: Any, load_core: Callable[[], Any], wire: Wire) -> None:
    """Makes the envs, receives the plan and the memory, and serves commands until CLOSE."""
    slots: list[Any] = []
    try:
        for create in creators():
            slots.append(slot_for(create()))
        spaces = [wire.spaces(slot.agent_spaces) for slot in slots]
        odd = next((k for k, space in enumerate(spaces) if space != spaces[0]), None)
        core = load_core()
        message = wire.dumps(("made", spaces[0], [slot.envs for slot in slots], odd))
    except BaseException as error:
        pipe.send_bytes(pickle.dumps(("failed", wire.pack(error), len(slots))))
        return
    pipe.send_bytes(message)
    plan: Plan = pickle.loads(pipe.recv_bytes())
    fd = reduction.recv_handle(pipe)
    runner: Runner | None = None
    try:
        memory = shared.attach(fd, plan.size)
        os.close(fd)
        # all workers share one block; this worker's envs start at plan.lo
        block = Block(slots[0].agent_spaces, plan.num_envs, memoryview(memory)[plan.block_at :])
        runner = Runner(slots, block, plan.lo, plan.autoreset)
        if plan.replaces:
            reset_with(runner, plan.seeds)
    except BaseException as error:
        in_setup = {"env": plan.lo, "seed": None, "step": 0, "doing": "its setup"}
        report = report_of(error, runner, "reset", wire.pack) if runner else {**in_setup, **wire.pack(error)}
        pipe.send_bytes(pickle.dumps(report))
        return
    pipe.send_bytes(pickle.dumps(None))
    _serve(runner, plan, memory, pipe, core, wire)


def _die_with_starter() -> bool:
    """Makes the kernel kill this process when the thread that started it ends, even while native code holds the GIL."""
    set_death_signal = 1
    return sys.platform == "linux" and not ctypes.CDLL(None).prctl(set_death_signal, int(signal.SIGKILL), 0, 0, 0)


def _exit_with(parent: int) -> None:
    """Ends this process when the parent is gone, even while an env is stepping."""
    try:
        watch = select.poll()
        watch.register(os.pidfd_open(parent), select.POLLIN)
        watch.poll()
    except (AttributeError, OSError):
        while True:
            try:
                os.kill(parent, 0)
            except OSError:
                break
            time.sleep(1.0)
    os._exit(1)


def _serve(runner: Runner, plan: Plan, memory: Any, pipe: Any, core: Any, wire: Wire) -> None:
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    worker, spin, arrays = plan.worker, plan.spin_us, runner.arrays
    channel = Channel.from_address(core.channel(base, worker))
    address = ctypes.addressof(channel) + Channel.current.offset
    runner.place = memoryview((ctypes.c_int32 * 1).from_address(address)).cast("B").cast("i")
    info_area = memoryview(memory)[plan.infos_at + worker * INFO_BYTES : plan.infos_at + (worker + 1) * INFO_BYTES]

    while True:
        command = core.wait_command(base, worker, spin, 3_600_000_000)
        if command < 0:
            continue
        if command == CLOSE:
            break
        if command == CALL:
            message = _call(runner, pipe.recv_bytes(), wire)
            core.finish(base, worker, CALLED)
            pipe.send_bytes(message)
            continue
        options = pipe.recv_bytes() if command == RESET and arrays["reset_with"][2] else None
        try:
            if command == RESET:
                info_rows = runner.reset(pickle.loads(options) if options else None)
            else:
                info_rows = runner.step()
            channel.step = runner.steps
            packed = wire.dumps_infos(info_rows) if info_rows else b""
        except BaseException as error:
            report = report_of(error, runner, "reset" if command == RESET else f"step {runner.steps}", wire.pack)
            core.finish(base, worker, RAISED)
            pipe.send_bytes(pickle.dumps(report))
            continue
        if not info_rows:
            core.finish(base, worker, OK)
        elif len(packed) + 4 <= INFO_BYTES:
            info_area[:4] = len(packed).to_bytes(4, "little")
            info_area[4 : 4 + len(packed)] = packed
            core.finish(base, worker, INFOS_IN_MEMORY)
        else:
            core.finish(base, worker, INFOS_IN_PIPE)
            pipe.send_bytes(packed)
    runner.close()
    core.finish(base, worker, OK)


def reset_with(runner: Runner, seeds: list[int] | None) -> InfoRows:
    """Resets all envs of this worker with their seeds, leaving the shared seeds and mask alone."""
    arrays = runner.arrays
    private = {"seeds": np.zeros_like(arrays["seeds"]), "reset_with": np.array([seeds is not None, False, False])}
    if seeds is not None:
        private["seeds"][runner.lo : runner.hi] = seeds
    runner.arrays = {**arrays, **private}
    try:
        return runner.reset()
    finally:
        runner.arrays = arrays


def report_of(
    error: BaseException, runner: Runner, doing: str, pack: Callable[[BaseException], dict[str, Any]]
) -> dict[str, Any]:
    """What an env raised, and which env it was, as plain data."""
    place = int(runner.place[0])
    seed = runner.seeds[place - runner.lo]
    return {"env": place, "seed": seed, "step": runner.steps, "doing": doing, **pack(error)}


def _call(runner: Runner, request: bytes, wire: Wire) -> bytes:
    name, place = "a method", runner.lo
    try:
        numbers, name, args, kwargs = pickle.loads(request)
        results = []
        for place in numbers:
            results.append(call_env(runner.env(place), name, args, kwargs))
        return wire.dumps(results)
    except BaseException as error:
        return pickle.dumps({"doing": f"call of {name}", "env": place, "seed": None, "step": 0, **wire.pack(error)})
