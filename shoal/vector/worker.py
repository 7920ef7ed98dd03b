"""A worker process of the `process` backend: makes its envs, then does what the desk says until it is told to stop.

parent                               worker
start(creators)         ->           makes its envs
                        <- pipe      ("made", face, envs) or ("failed", report)
("map", fd, …)          -> pipe
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
import threading
import time
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import cloudpickle
import numpy as np

from shoal.native import lib
from shoal.vector import shared
from shoal.vector.block import Block
from shoal.vector.faults import call_env, pack
from shoal.vector.python import CALL, CLOSE, RESET
from shoal.vector.runner import Mail, Runner, slot_for

OK, MAIL_HERE, MAIL_IN_PIPE, RAISED = range(4)  # how a command went
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
    seeds: list[int] | None = None  # a worker that replaces another resets its envs with them


def main(creators: bytes | list[Any], pipe: Any, parent: int, affinity: int | None) -> None:
    """What a worker process runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # envs may have children
    if affinity is not None and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {affinity})
    slots: list[Any] = []
    try:
        makers = cloudpickle.loads(creators) if isinstance(creators, bytes) else creators
        for maker in makers:
            slots.append(slot_for(maker()))
        faces = [slot.face for slot in slots]
        odd = next((k for k, face in enumerate(faces) if face != faces[0]), None)
        pipe.send_bytes(cloudpickle.dumps(("made", faces[0], [slot.envs for slot in slots], odd)))
    except BaseException as error:
        pipe.send_bytes(pickle.dumps(("failed", pack(error), len(slots))))
        return
    try:
        plan: Plan = pickle.loads(pipe.recv_bytes())
        fd = reduction.recv_handle(pipe)
    except EOFError:  # the parent gave up: another worker failed
        return
    memory = shared.attach(fd, plan.size)
    os.close(fd)
    _serve(slots, plan, memory, pipe)


def _leave_with(parent: int) -> None:
    """Ends this process when the parent is gone, also while an env is busy."""
    try:
        watched = os.pidfd_open(parent)
        select.select([watched], [], [])
    except (AttributeError, OSError):
        while True:
            try:
                os.kill(parent, 0)
            except OSError:
                break
            time.sleep(1.0)
    os._exit(1)


def _serve(slots: list[Any], plan: Plan, memory: Any, pipe: Any) -> None:
    core = lib.load_core()
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    worker, spin = plan.worker, plan.spin_us
    view = memoryview(memory)
    # the first slot of the plan tells where this worker's envs begin; the block is the same for all
    block = Block(slots[0].face, plan.num_envs, view[plan.block_at :])
    runner = Runner(slots, block, plan.lo, plan.autoreset)
    desk_slot = lib.DeskSlot.from_address(core.desk_slot(base, worker))
    address = ctypes.addressof(desk_slot) + lib.DeskSlot.current.offset
    runner.place = memoryview((ctypes.c_int32 * 1).from_address(address)).cast("B").cast("i")
    mail_area = view[plan.mail_at + worker * MAIL_BYTES : plan.mail_at + (worker + 1) * MAIL_BYTES]

    if plan.seeds is not None:
        block.arrays["reset_with"][:] = (False, False, False)
        try:
            _reset_with(runner, plan.seeds)
            pipe.send_bytes(pickle.dumps(None))
        except BaseException as error:
            pipe.send_bytes(pickle.dumps(_report(error, runner, "reset")))
            return
    while True:
        command = core.wait_command(base, worker, spin, 3_600_000_000)
        if command < 0:
            continue
        if command == CLOSE:
            break
        try:
            if command == CALL:
                message = _call(runner, pickle.loads(pipe.recv_bytes()))
                core.finish(base, worker, MAIL_IN_PIPE)
                pipe.send_bytes(message)
                continue
            if command == RESET:
                has_options = bool(block.arrays["reset_with"][2])
                mail = runner.reset(pickle.loads(pipe.recv_bytes()) if has_options else None)
            else:
                mail = runner.step()
            desk_slot.step = runner.steps
        except BaseException as error:
            report = _report(error, runner, "reset" if command == RESET else f"step {runner.steps}")
            core.finish(base, worker, RAISED)
            pipe.send_bytes(pickle.dumps(report))
            continue
        if not mail:
            core.finish(base, worker, OK)
            continue
        letter = _letter(mail)
        if len(letter) + 4 <= MAIL_BYTES:
            mail_area[:4] = len(letter).to_bytes(4, "little")
            mail_area[4 : 4 + len(letter)] = letter
            core.finish(base, worker, MAIL_HERE)
        else:
            core.finish(base, worker, MAIL_IN_PIPE)
            pipe.send_bytes(letter)
    runner.close()
    core.finish(base, worker, OK)


def _reset_with(runner: Runner, seeds: list[int]) -> None:
    """Resets all envs of this worker with their seeds, leaving the shared seeds and mask alone."""
    arrays = runner.arrays
    private = {
        "seeds": np.zeros_like(arrays["seeds"]),
        "reset_mask": arrays["reset_mask"],
        "reset_with": np.array([True, False, False]),
    }
    private["seeds"][runner.lo : runner.hi] = seeds
    runner.arrays = {**arrays, **private}
    try:
        runner.reset()
    finally:
        runner.arrays = arrays


def _letter(mail: Mail) -> bytes:
    try:
        return pickle.dumps(mail, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:
        return bytes(cloudpickle.dumps(mail))


def _report(error: BaseException, runner: Runner, doing: str) -> dict[str, Any]:
    place = int(runner.place[0])
    return {"env": place, "seed": runner.seeds[place - runner.lo], "step": runner.steps, "doing": doing, **pack(error)}


def _call(runner: Runner, request: tuple[list[int], str, tuple[Any, ...], dict[str, Any]]) -> bytes:
    numbers, name, args, kwargs = request
    try:
        return bytes(cloudpickle.dumps([call_env(runner.env(number), name, args, kwargs) for number in numbers]))
    except BaseException as error:
        return pickle.dumps({"doing": f"call of {name}", "env": numbers[0], "seed": None, "step": 0, **pack(error)})
