"""The `process` backend: Python envs in worker processes, over one block of shared memory.

Workers own contiguous ranges of envs and write in place; flags and futexes, not pipes, say when (core/wait.c). A worker
that raises, dies or hangs is reported with the env, its seed, its step and the real traceback.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import multiprocessing
import multiprocessing.spawn
import os
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import connection, reduction, util
from typing import Any

import cloudpickle
import numpy as np

from shoal.errors import ConfigError, EnvCrashed, EnvTimeout, UsageError, WorkerDied
from shoal.native import lib
from shoal.spec import AgentSpaces, Array
from shoal.vector import shared, worker
from shoal.vector.backends import Backend
from shoal.vector.base import VecEnv
from shoal.vector.block import Block
from shoal.vector.faults import env_crashed, unpack, worker_died
from shoal.vector.handle import POLL_S, WorkerHandle
from shoal.vector.python import CALL, CLOSE, RESET, STEP, PythonVec
from shoal.vector.slots import Creator, Info, InfoRows
from shoal.vector.start_methods import default_start_method
from shoal.vector.threads import available_cores

WORKER_SPIN_US = 100  # how long a worker watches for the next step before it sleeps: keeps its core while others finish
PARENT_SPIN_US = 50  # the same for the parent, where there is a core for it beside the workers'
CLOSE_S = 2.0  # for workers to leave by themselves, before they are killed
MAX_RESTARTS, RESTART_WINDOW_S = 3, 60.0  # of one worker


@dataclass(frozen=True)
class Crash:
    """What is left of a worker that was replaced, until its envs are handed out again."""

    rows: slice
    cut: Array  # the rows whose episode it ended
    obs: Array  # what they showed last
    fault: EnvCrashed


class ProcessVec(PythonVec):
    """Python envs in `num_workers` processes. See `shoal.make` for the options."""

    backend = "process"

    def __init__(
        self,
        creators: Sequence[Creator],
        *,
        num_workers: int | None = None,
        batch_size: int | None = None,
        surplus_envs: int = 0,
        start_method: str | None = None,
        timeout_s: float = 60.0,
        on_crash: str = "raise",
        cpu_affinity: bool | Sequence[int] = False,
        **options: Any,
    ) -> None:
        cores = available_cores()
        self.num_workers = self.parallelism = count = _check_workers(len(creators), num_workers, cores)
        if on_crash not in ("raise", "restart"):
            raise ConfigError(f"on_crash={on_crash!r} must be 'raise' or 'restart'.")
        if not timeout_s > 0:
            raise ConfigError(f"timeout_s={timeout_s!r} must be a number above 0, in seconds.")
        method = start_method or default_start_method()
        if method not in multiprocessing.get_all_start_methods():
            known = ", ".join(multiprocessing.get_all_start_methods())
            raise ConfigError(f"start_method={method!r} must be one of {known}.")
        self.timeout_s, self.on_crash, self.start_method = float(timeout_s), on_crash, method
        share = len(creators) // count
        pins = list(range(count)) if cpu_affinity is True else list(cpu_affinity or [])
        if cpu_affinity and len(pins) < count:
            raise ConfigError(f"cpu_affinity names {len(pins)} cores for {count} workers.")
        allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(cores))
        self._handles = [
            WorkerHandle(
                k,
                creators[k * share : (k + 1) * share],
                method,
                (allowed[k % cores] if cpu_affinity is True else pins[k]) if cpu_affinity else None,
                self.timeout_s,
            )
            for k in range(count)
        ]
        self._core = lib.load_core()
        self._owner, self._fds = os.getpid(), list[int]()
        # also at exit, and then before multiprocessing waits for the workers
        self._finalizer = util.Finalize(self, _end_all, (self._handles, self._fds), exitpriority=100)
        self._autoreset = options.get("autoreset", "same_step")
        self._broken: EnvCrashed | None = None
        try:
            for handle in self._handles:
                handle.start()
            agent_spaces, sizes = self._meet()
            units, at = [], 0
            for size in sizes:
                units.append((at, at + size))
                at += size
            batch = _check_batch(at, units, batch_size, surplus_envs)
            self._plan_memory(agent_spaces, at, units)
            super().__init__(agent_spaces, at, self._block, units, batch_envs=batch, **options)
        except BaseException:
            self._finalizer()
            raise
        self._spin_us = PARENT_SPIN_US if count < cores else 0
        self._look_us = int(min(POLL_S, self.timeout_s) * 1e6)
        self._next_look = 0.0
        self._seen = [(0, 0.0)] * count  # of each worker: what was posted last, and when that was noticed
        self._numbers = np.arange(count, dtype=np.int32)
        self._ready = np.zeros(count, np.int32)
        self._numbers_at, self._ready_at = self._numbers.ctypes.data, self._ready.ctypes.data
        self._crashed: dict[int, Crash] = {}

    # ---- starting ----

    def _meet(self) -> tuple[AgentSpaces, list[int]]:
        """Hears from every worker what it made. Fails with the first fault, whichever worker it comes from."""
        until = time.monotonic() + self.timeout_s
        made: dict[int, tuple[AgentSpaces, int]] = {}
        while len(made) < len(self._handles):
            waiting = [handle for handle in self._handles if handle.index not in made]
            told = connection.wait([handle.pipe for handle in waiting], POLL_S)
            is_late = time.monotonic() >= until
            for handle in waiting:
                if handle.pipe in told or is_late or handle.process.exitcode is not None:
                    sizes = (made[k][1] if k in made else len(self._handles[k].creators) for k in range(handle.index))
                    agent_spaces, envs = self._hear(handle, until, sum(sizes))
                    made[handle.index] = agent_spaces, sum(envs)
        for k in range(len(made)):
            if made[k][0] != made[0][0]:
                raise ConfigError(f"the envs of worker {k} have other spaces than env 0: all must be equal.")
        return made[0][0], [made[k][1] for k in range(len(made))]

    def _hear(self, handle: WorkerHandle, until: float, first: int) -> tuple[AgentSpaces, list[int]]:
        message = self._answer(handle, until, first)
        if message[0] == "failed":
            _, report, index = message
            raise env_crashed(None, first + index, None, 0, "its constructor", report) from unpack(report)
        _, agent_spaces, envs, odd = message
        if odd is not None:
            raise ConfigError(f"env {first + odd} has other spaces than env {first}: all must be equal.")
        return agent_spaces, envs

    def _answer(self, handle: WorkerHandle, until: float, first: int) -> Any:
        """What a worker that starts has to say."""
        envs = (first, first + len(handle.creators))
        try:
            return handle.receive(until)
        except EOFError:
            handle.join(time.monotonic() + 1.0)
            raise worker_died(handle.index, handle.process.pid, handle.process.exitcode, envs) from None
        except TimeoutError:
            error = EnvTimeout(
                f"worker {handle.index} (envs {envs[0]} .. {envs[1] - 1}) did not make its envs within "
                f"{self.timeout_s:g} s. Raise timeout_s if they need longer."
            )
            error.env = first
            raise error from None

    def _plan_memory(self, agent_spaces: AgentSpaces, num_envs: int, units: list[tuple[int, int]]) -> None:
        desk = self._core.desk_bytes(len(units))
        mail_at = -(-desk // mmap.PAGESIZE) * mmap.PAGESIZE
        block_at = mail_at + len(units) * worker.MAIL_BYTES
        size = block_at + Block.bytes_needed(agent_spaces, num_envs)
        self._plans = [
            worker.Plan(k, num_envs, lo, size, desk, mail_at, block_at, self._autoreset, WORKER_SPIN_US)
            for k, (lo, _hi) in enumerate(units)
        ]
        self._fds.append(shared.allocate(size))
        self._memory = shared.attach(self._fds[0], size)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._slots = [lib.DeskSlot.from_address(self._core.desk_slot(self._base, k)) for k in range(len(units))]
        self._block = Block(agent_spaces, num_envs, memoryview(self._memory)[block_at:])
        until = time.monotonic() + self.timeout_s
        for handle, plan in zip(self._handles, self._plans):
            self._hand_over(handle, plan)
        for handle, plan in zip(self._handles, self._plans):
            self._hear_ready(handle, until, plan.lo)

    def _hand_over(self, handle: WorkerHandle, plan: worker.Plan) -> None:
        with contextlib.suppress(OSError):  # a worker that died is found when its answer is missing
            handle.pipe.send_bytes(pickle.dumps(plan))
            reduction.send_handle(handle.pipe, self._fds[0], handle.process.pid)

    def _hear_ready(self, handle: WorkerHandle, until: float, first: int) -> None:
        report = self._answer(handle, until, first)
        if report is not None:
            raise _raised(report)

    # ---- stepping ----

    def _post(self, units: Sequence[int], command: int) -> None:
        if self._broken:
            self._refuse_broken()
        numbers, address = self._addressed(units)
        self._core.post(self._base, address, len(numbers), command)

    def _addressed(self, units: Sequence[int]) -> tuple[Array, int]:
        """The units as C wants them. That of all units is kept: asking numpy for an address takes a microsecond."""
        if len(units) == len(self._numbers):
            return self._numbers, self._numbers_at
        numbers = np.array(units, np.int32)
        return numbers, numbers.ctypes.data

    def _wait(self, units: Sequence[int], need: int) -> list[int]:
        numbers, address = self._addressed(units)
        count, ready = len(numbers), self._ready
        try:
            while True:
                found = self._core.wait_ready(
                    self._base, address, count, need, self._ready_at, self._spin_us, self._look_us
                )
                # also when enough are there: with surplus envs, nobody might ever wait for one that died
                if found < need or (found < count and time.monotonic() >= self._next_look):
                    self._look(units)
                if found >= need:
                    return ready[:found].tolist()  # type: ignore[no-any-return]
        except EnvCrashed:
            raise
        except BaseException:  # Ctrl-C: what was posted is still under way, and reset() or recv() take it up
            self._in_flight = list(units)
            raise

    def _look(self, units: Sequence[int]) -> None:
        """Finds workers that died, or that have been busy with one command for longer than timeout_s."""
        if self._broken:
            self._refuse_broken()
        now = time.monotonic()
        self._next_look = now + POLL_S
        for unit in units:
            posted = self._slots[unit].posted
            if self._is_ready(unit):
                continue
            if self._handles[unit].process.exitcode is not None:
                self._replace(unit, self._death_of(unit))
            elif self._seen[unit][0] != posted:
                self._seen[unit] = posted, now
            elif now - self._seen[unit][1] >= self.timeout_s:
                self._replace(unit, self._hang_of(unit))

    def _is_ready(self, unit: int) -> bool:
        slot = self._slots[unit]
        return bool(slot.posted == slot.finished)

    def _fetch(self, unit: int) -> InfoRows:
        status = self._slots[unit].status
        if status == worker.OK:
            return []
        if status == worker.MAIL_HERE:
            at = self._plans[unit].mail_at + unit * worker.MAIL_BYTES
            size = int.from_bytes(self._memory[at : at + 4], "little")
            letter: InfoRows = pickle.loads(self._memory[at + 4 : at + 4 + size])
            return letter
        message = self._receive(unit)
        if status == worker.RAISED and message is not None:
            for other in range(len(self.units)):  # what others sent for this step leaves their pipes too
                is_of_this_step = other not in self._in_flight and self._is_ready(other)
                if is_of_this_step and self._slots[other].status >= worker.MAIL_IN_PIPE:
                    self._receive(other)
            raise _raised(message)
        return message if status == worker.MAIL_IN_PIPE and message else []

    def _receive(self, unit: int) -> Any:
        """What a worker that is done with a command put into its pipe; None from one that was replaced."""
        try:
            message = self._handles[unit].receive(time.monotonic() + self.timeout_s)
        except EOFError:
            self._handles[unit].join(time.monotonic() + 1.0)
            self._replace(unit, self._death_of(unit))
        except TimeoutError:
            self._replace(unit, self._hang_of(unit))
        else:
            self._slots[unit].status = worker.OK
            return message
        return None

    def _collect(self, units: Sequence[int]) -> InfoRows:
        mail = super()._collect(units)
        if self._crashed:
            for unit in set(units) & set(self._crashed):
                mail += self._cut_short(unit, self._crashed.pop(unit))
        return mail

    # ---- faults ----

    def _death_of(self, unit: int) -> WorkerDied:
        process = self._handles[unit].process
        return worker_died(unit, process.pid, process.exitcode, self.units[unit])

    def _hang_of(self, unit: int) -> EnvTimeout:
        slot, (lo, hi) = self._slots[unit], self.units[unit]
        env = min(max(int(slot.current), lo), hi - 1)
        seed = None if self.seeds is None else int(self.seeds[env])
        seeded = "" if seed is None else f" (seed {seed})"
        doing = {RESET: "reset", CALL: "a call"}.get(slot.command, f"step {slot.step + 1}")
        error = EnvTimeout(
            f"env {env}{seeded} did not answer within {self.timeout_s:g} s in {doing} "
            f"(worker {unit}, pid {self._handles[unit].process.pid}). Raise timeout_s if it may take longer."
        )
        error.env, error.seed, error.step = env, seed, int(slot.step) + (slot.command == STEP)
        return error

    def _replace(self, unit: int, fault: EnvCrashed) -> None:
        """With on_crash='restart': a new worker, its envs reset with their seeds and their episodes cut short."""
        handle, now = self._handles[unit], time.monotonic()
        handle.restarts = [then for then in handle.restarts if now - then < RESTART_WINDOW_S]
        if len(handle.restarts) >= MAX_RESTARTS:
            fault.args = (
                f"{fault} It was restarted {MAX_RESTARTS} times within {RESTART_WINDOW_S:g} s already, so not again.",
            )
        if self.on_crash == "raise" or len(handle.restarts) >= MAX_RESTARTS:
            self._broken = fault
            raise fault
        handle.restarts.append(now)
        (lo, hi), agents, arrays = self.units[unit], self.agents_per_env, self.block.arrays
        rows = slice(lo * agents, hi * agents)
        cut = arrays["alive"][rows] & (self._slots[unit].command != RESET)
        crash = Crash(rows, cut, arrays["obs"][rows].copy(), fault)
        try:
            handle.end()
            self._core.settle(self._base, unit)  # before the new worker looks at its desk: it owes nothing
            handle.start()
            until = time.monotonic() + self.timeout_s
            self._hear(handle, until, lo)
            seeds = None if self.seeds is None else self.seeds[lo:hi].tolist()
            self._hand_over(handle, replace(self._plans[unit], replaces=True, seeds=seeds))
            self._hear_ready(handle, until, lo)
        except BaseException as error:
            self._broken = error if isinstance(error, EnvCrashed) else fault
            raise
        if not self._same_step and cut.any():  # the old episode is still on show, and the next step or reset ends that
            arrays["obs"][rows], arrays["alive"][rows], arrays["ended"][lo:hi] = crash.obs, cut, True
        self._crashed[unit] = crash

    def _cut_short(self, unit: int, crash: Crash) -> InfoRows:
        """Truncates the episodes of a worker that was replaced. Their returns went with it: they are no statistic."""
        rows, arrays = crash.rows, self.block.arrays
        arrays["final_obs"][rows], arrays["rewards"][rows], arrays["terminated"][rows] = crash.obs, 0.0, False
        arrays["truncated"][rows] = arrays["done"][rows] = crash.cut
        arrays["final_return"][rows], arrays["final_length"][rows] = 0.0, 0
        info = {"crashed": True, "fault": str(crash.fault)}
        is_final = self._same_step and bool(crash.cut.any())
        told = crash.cut if crash.cut.any() else arrays["alive"][rows]
        return [(rows.start + int(row), is_final, info) for row in np.flatnonzero(told)]

    def _refuse_broken(self) -> None:
        raise UsageError(f"this env is broken by an earlier fault; close it. The fault: {self._broken}")

    # ---- the rest ----

    def _send_options(self, options: Info) -> None:
        message = cloudpickle.dumps(options)
        for handle in self._handles:
            self._send(handle, message)

    def _send(self, handle: WorkerHandle, message: bytes) -> None:
        with contextlib.suppress(OSError):  # a worker that is gone or stuck is found by waiting for it
            handle.pipe.send_bytes(message)

    def call_envs(self, name: str, env_ids: Sequence[int] | None, args: tuple[Any, ...], kwargs: Info) -> list[Any]:
        """Calls a method of chosen envs, or reads an attribute, in their workers."""
        ids = list(range(self.num_envs)) if env_ids is None else [int(number) for number in env_ids]
        for number in ids:
            if not 0 <= number < self.num_envs:
                raise ConfigError(f"env_ids names env {number}; there are envs 0 .. {self.num_envs - 1}.")
        chosen = {
            unit: here
            for unit, (lo, hi) in enumerate(self.units)
            if (here := [number for number in ids if lo <= number < hi])
        }
        for unit, here in chosen.items():
            self._send(self._handles[unit], cloudpickle.dumps((here, name, args, kwargs)))
        self._post(list(chosen), CALL)
        self._wait(list(chosen), len(chosen))
        results: dict[int, Any] = {}
        fault: EnvCrashed | None = None
        for unit, here in chosen.items():
            message = None if unit in self._crashed else self._receive(unit)
            if message is None:  # it was replaced, so there is no answer
                fault = fault or self._crashed[unit].fault
            elif isinstance(message, dict):
                fault = fault or _raised(message)
            else:
                results |= dict(zip(here, message))
        if fault:
            raise fault
        return [results[number] for number in ids]

    def close_extras(self, **kwargs: Any) -> None:
        """Asks the workers to leave, waits a little, and kills those that do not."""
        if not self._finalizer.still_active() or os.getpid() != self._owner:
            return
        alive = [handle.index for handle in self._handles if handle.process.exitcode is None]
        numbers = np.array(alive, np.int32)
        self._core.post(self._base, numbers.ctypes.data, len(numbers), CLOSE)  # a busy one sees it when it is done
        until = time.monotonic() + CLOSE_S
        for k in alive:
            self._handles[k].join(until)
        self._finalizer()

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            with contextlib.suppress(Exception):
                self.close()


def _raised(report: dict[str, Any]) -> EnvCrashed:
    error = env_crashed(None, report["env"], report["seed"], report["step"], report["doing"], report)
    error.__cause__ = unpack(report)
    return error


def _end_all(handles: list[WorkerHandle], fds: list[int]) -> None:
    for handle in handles:
        if handle.process is not None and handle.process.pid is not None:
            with contextlib.suppress(Exception):
                handle.process.kill()
    for handle in handles:
        with contextlib.suppress(Exception):
            handle.end()
    while fds:
        os.close(fds.pop())


def _check_workers(creators: int, num_workers: int | None, cores: int) -> int:
    if num_workers is None:
        return next(k for k in range(min(creators, cores), 0, -1) if creators % k == 0)
    if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 1:
        raise ConfigError(f"num_workers={num_workers!r} must be an int of at least 1.")
    if num_workers > creators:
        raise ConfigError(f"num_workers={num_workers} is more than the {creators} envs.")
    if creators % num_workers:
        below, above = creators // num_workers * num_workers, -(-creators // num_workers) * num_workers
        raise ConfigError(
            f"num_envs={creators} does not divide over num_workers={num_workers}. Try num_envs {below} or {above}."
        )
    return num_workers


def _check_batch(num_envs: int, units: list[tuple[int, int]], batch_size: int | None, surplus_envs: int) -> int | None:
    """How many envs a recv returns; None for all."""
    if surplus_envs and batch_size is not None:
        raise ConfigError(f"give batch_size={batch_size} or surplus_envs={surplus_envs}, not both.")
    if not isinstance(surplus_envs, int) or not 0 <= surplus_envs < num_envs:
        raise ConfigError(f"surplus_envs={surplus_envs!r} must be an int in 0 .. {num_envs - 1}.")
    size = num_envs - surplus_envs if batch_size is None else batch_size
    each = units[0][1] - units[0][0]
    if not isinstance(size, int) or not 1 <= size <= num_envs or size % each:
        below, above = max(each, size // each * each), min(num_envs, -(-size // each) * each)
        raise ConfigError(
            f"a batch of {size} of {num_envs} envs is not whole workers of {each}. Try batch_size {below} or {above}."
        )
    return size


def _make(
    create: Callable[[], Any],
    num_envs: int,
    *,
    num_workers: int | None = None,
    envs_per_worker: int | None = None,
    **options: Any,
) -> VecEnv:
    if envs_per_worker is not None:
        if num_workers is not None and num_workers * envs_per_worker != num_envs:
            raise ConfigError(f"num_workers={num_workers} times envs_per_worker={envs_per_worker} is not {num_envs}.")
        if not isinstance(envs_per_worker, int) or envs_per_worker < 1 or num_envs % envs_per_worker:
            raise ConfigError(f"envs_per_worker={envs_per_worker!r} does not divide num_envs={num_envs}.")
        num_workers = num_envs // envs_per_worker
    return ProcessVec([create] * num_envs, num_workers=num_workers, **options)


BACKEND = Backend(
    "worker processes over shared memory",
    python=_make,
    options={
        "num_workers": None,
        "envs_per_worker": None,
        "batch_size": None,
        "surplus_envs": 0,
        "zero_copy": False,
        "start_method": None,
        "timeout_s": 60.0,
        "on_crash": "raise",
        "cpu_affinity": False,
    },
)
