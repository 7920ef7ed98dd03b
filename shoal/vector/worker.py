"""A worker process of the `process` backend: makes its envs, then does what the desk says until it is told to stop.

parent                               worker
start(creators)         ->           makes its envs
                        <- pipe      ("made", agent spaces, envs) or ("failed", report)
plan, memory            -> pipe
                        <- pipe      None, or a report: it cannot begin
post(STEP)              -> desk      Runner.step writes into the shared block
                        <- desk      finish(status): infos in shared memory, in the pipe, or an error there
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
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import cloudpickle
import numpy as np

from shoal.errors import BadOutput
from shoal.native import lib
from shoal.vector import shared
from shoal.vector.block import Block
from shoal.vector.faults import call_env, pack
from shoal.vector.python import CALL, CLOSE, RESET
from shoal.vector.runner import Runner
from shoal.vector.slots import InfoRows, slot_for
from shoal.vector.start_methods import unpack_work

OK, MAIL_HERE, MAIL_IN_PIPE, RAISED, CALLED = range(5)  # how a command went; from MAIL_IN_PIPE on, the pipe says more
MAIL_BYTES = 1 << 16  # for the infos of a step, in shared memory; longer ones go through the pipe


@dataclass(frozen=True)
class Plan:
    """Where a worker's envs stand among all, and where the shared memory holds what."""

    worker: int
    num_envs: int
    lo: int
    size: int
    desk_bytes: int
    mail_at: int
    block_at: int
    autoreset: str
    spin_us: int
    replaces: bool = False  # a worker that replaces another resets its envs
    seeds: list[int] | None = None  # with these


def main(creators: bytes | list[Any], pipe: Any, parent: int, from_main: bool, affinity: int | None) -> None:
    """What a worker process runs. `from_main`: the main thread of a process started it, not a thread that may end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the parent blocks it for us until here
    if not (from_main and _die_with_starter()) or os.getppid() != parent:  # a forkserver started it, or it is gone
        threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # envs may have children
    if affinity is not None and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {affinity})
    with contextlib.suppress(EOFError, ConnectionError):  # the parent is gone, or gave up as another worker failed
        _work(creators, pipe)


def _work(creators: bytes | list[Any], pipe: Any) -> None:
    slots: list[Any] = []
    try:
        makers = unpack_work(creators) if isinstance(creators, bytes) else creators
        for maker in makers:
            slots.append(slot_for(maker()))
        spaces = [slot.agent_spaces for slot in slots]
        odd = next((k for k, space in enumerate(spaces) if space != spaces[0]), None)
        message = cloudpickle.dumps(("made", spaces[0], [slot.envs for slot in slots], odd))
    except BaseException as error:
        pipe.send_bytes(pickle.dumps(("failed", pack(error), len(slots))))
        return
    pipe.send_bytes(message)
    plan: Plan = pickle.loads(pipe.recv_bytes())
    fd = reduction.recv_handle(pipe)
    runner: Runner | None = None
    try:
        memory = shared.attach(fd, plan.size)
        os.close(fd)
        # the block is the same for all workers; plan.lo tells where this one's envs begin
        block = Block(slots[0].agent_spaces, plan.num_envs, memoryview(memory)[plan.block_at :])
        runner = Runner(slots, block, plan.lo, plan.autoreset)
        if plan.replaces:
            _reset_with(runner, plan.seeds)
    except BaseException as error:
        unborn = {"env": plan.lo, "seed": None, "step": 0, "doing": "its setup"}
        report = _report(error, runner, "reset") if runner else {**unborn, **pack(error)}
        pipe.send_bytes(pickle.dumps(report))
        return
    pipe.send_bytes(pickle.dumps(None))
    _serve(runner, plan, memory, pipe)


def _die_with_starter() -> bool:
    """Has the kernel end this process with the thread that started it, even while native code holds the GIL."""
    set_death_signal = 1
    return sys.platform == "linux" and not ctypes.CDLL(None).prctl(set_death_signal, int(signal.SIGKILL), 0, 0, 0)


def _leave_with(parent: int) -> None:
    """Ends this process when the parent is gone, also while an env is busy."""
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


def _serve(runner: Runner, plan: Plan, memory: Any, pipe: Any) -> None:
    core = lib.load_core()
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    worker, spin, arrays = plan.worker, plan.spin_us, runner.arrays
    desk_slot = lib.DeskSlot.from_address(core.desk_slot(base, worker))
    address = ctypes.addressof(desk_slot) + lib.DeskSlot.current.offset
    runner.place = memoryview((ctypes.c_int32 * 1).from_address(address)).cast("B").cast("i")
    mail_area = memoryview(memory)[plan.mail_at + worker * MAIL_BYTES : plan.mail_at + (worker + 1) * MAIL_BYTES]

    while True:
        command = core.wait_command(base, worker, spin, 3_600_000_000)
        if command < 0:
            continue
        if command == CLOSE:
            break
        if command == CALL:
            message = _call(runner, pipe.recv_bytes())
            core.finish(base, worker, CALLED)
            pipe.send_bytes(message)
            continue
        options = pipe.recv_bytes() if command == RESET and arrays["reset_with"][2] else None
        try:
            if command == RESET:
                mail = runner.reset(pickle.loads(options) if options else None)
            else:
                mail = runner.step()
            desk_slot.step = runner.steps
            letter = _letter(mail) if mail else b""
        except BaseException as error:
            report = _report(error, runner, "reset" if command == RESET else f"step {runner.steps}")
            core.finish(base, worker, RAISED)
            pipe.send_bytes(pickle.dumps(report))
            continue
        if not mail:
            core.finish(base, worker, OK)
        elif len(letter) + 4 <= MAIL_BYTES:
            mail_area[:4] = len(letter).to_bytes(4, "little")
            mail_area[4 : 4 + len(letter)] = letter
            core.finish(base, worker, MAIL_HERE)
        else:
            core.finish(base, worker, MAIL_IN_PIPE)
            pipe.send_bytes(letter)
    runner.close()
    core.finish(base, worker, OK)


def _reset_with(runner: Runner, seeds: list[int] | None) -> None:
    """Resets all envs of this worker with their seeds, leaving the shared seeds and mask alone."""
    arrays = runner.arrays
    private = {"seeds": np.zeros_like(arrays["seeds"]), "reset_with": np.array([seeds is not None, False, False])}
    if seeds is not None:
        private["seeds"][runner.lo : runner.hi] = seeds
    runner.arrays = {**arrays, **private}
    try:
        runner.reset()
    finally:
        runner.arrays = arrays


def _letter(mail: InfoRows) -> bytes:
    try:
        return pickle.dumps(mail, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:
        pass
    try:
        return bytes(cloudpickle.dumps(mail))
    except Exception as error:
        raise BadOutput(f"an info cannot be sent to another process: {error}") from error


def _report(error: BaseException, runner: Runner, doing: str) -> dict[str, Any]:
    place = int(runner.place[0])
    return {"env": place, "seed": runner.seeds[place - runner.lo], "step": runner.steps, "doing": doing, **pack(error)}


def _call(runner: Runner, request: bytes) -> bytes:
    name, place = "a method", runner.lo
    try:
        numbers, name, args, kwargs = pickle.loads(request)
        results = []
        for place in numbers:
            results.append(call_env(runner.env(place), name, args, kwargs))
        return bytes(cloudpickle.dumps(results))
    except BaseException as error:
        return pickle.dumps({"doing": f"call of {name}", "env": place, "seed": None, "step": 0, **pack(error)})
