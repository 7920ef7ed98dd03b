"""The `process` backend: Python envs in worker processes, over one block of shared memory.

Each worker owns a contiguous range of envs and writes in place. Parent and workers signal each other through flags in
shared memory and futexes, not pipes (core/wait.c). A worker that raises, dies or hangs is reported with the env, its
seed, its step and the worker's traceback.
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
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import connection, reduction, util
from typing import Any

import cloudpickle
import numpy as np

from shoal.cores import available_cores
from shoal.errors import ConfigError, EnvCrashed, EnvTimeout, UsageError, WorkerDied
from shoal.native import lib
from shoal.spec import AgentSpaces, Array
from shoal.vector import portable, remote, shared
from shoal.vector.backends import Backend
from shoal.vector.base import VecEnv
from shoal.vector.block import Block
from shoal.vector.faults import crash_of, restart_event, worker_died
from shoal.vector.handle import POLL_S, WorkerHandle
from shoal.vector.python import PythonVec
from shoal.vector.serve import (
    CALL,
    CLOSE,
    INFO_BYTES,
    INFOS_IN_MEMORY,
    INFOS_IN_PIPE,
    OK,
    RAISED,
    RESET,
    STEP,
    Plan,
)
from shoal.vector.slots import Creator, Info, InfoRows
from shoal.vector.start_methods import default_start_method
from shoal.vector.workers import (
    MAX_EVENTS,
    Crash,
    check_batch,
    check_timeout,
    count_workers,
    is_restarted_too_often,
    resolve_on_crash,
    truncate,
    workers_from,
)

# how long a worker polls for the next step before it sleeps; it yields its core to processes that need it (core/wait.c)
WORKER_SPIN_US = 100
PARENT_SPIN_US = 50  # the same for the parent, if there are more cores than workers
CLOSE_S = 2.0  # time for workers to exit before they are killed


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
        on_crash: str = "auto",
        cpu_affinity: bool | Sequence[int] = False,
        python: str | None = None,
        **options: Any,
    ) -> None:
        cores = available_cores()
        self.num_workers = self.parallelism = count = count_workers(len(creators), num_workers, cores)
        self.timeout_s, self.on_crash = check_timeout(timeout_s), resolve_on_crash(on_crash, "raise")
        method = start_method or default_start_method()
        if method not in multiprocessing.get_all_start_methods():
            known = ", ".join(multiprocessing.get_all_start_methods())
            raise ConfigError(f"start_method={method!r} must be one of {known}.")
        if python is not None and start_method is not None:
            raise ConfigError(f"start_method={method!r} is not for workers under python={python!r}. Leave it out.")
        self.python = None if python is None else remote.find_python(python)
        self._dumps = cloudpickle.dumps if python is None else portable.dumps
        self.start_method = method
        share = len(creators) // count
        pins = list(range(count)) if cpu_affinity is True else list(cpu_affinity or [])
        if cpu_affinity and len(pins) < count:
            raise ConfigError(
                f"cpu_affinity names {len(pins)} cores for num_workers={count}. Name one for each worker."
            )
        allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(cores))
        handle_of: Any = WorkerHandle if self.python is None else remote.RemoteHandle
        self._handles: list[WorkerHandle] = [
            handle_of(
                k,
                creators[k * share : (k + 1) * share],
                self.python or method,
                (allowed[k % len(allowed)] if cpu_affinity is True else pins[k]) if cpu_affinity else None,
                self.timeout_s,
            )
            for k in range(count)
        ]
        self._core = lib.load_core()
        self._owner, self._fds = os.getpid(), list[int]()
        # runs at exit as well, before multiprocessing waits for the workers
        self._finalizer = util.Finalize(self, _end_all, (self._handles, self._fds), exitpriority=100)
        self._autoreset = options.get("autoreset", "same_step")
        self._broken: EnvCrashed | None = None
        try:
            for handle in self._handles:
                handle.start()
            agent_spaces, sizes = self._meet()
            ranges, num_envs = [], 0
            for size in sizes:
                ranges.append((num_envs, num_envs + size))
                num_envs += size
            batch = check_batch(num_envs, sizes[0], batch_size, surplus_envs, options.get("zero_copy", False))
            self._plan_memory(agent_spaces, num_envs, ranges)
            super().__init__(agent_spaces, num_envs, self._block, ranges, batch_envs=batch, **options)
        except BaseException:
            self._finalizer()
            raise
        self._spin_us = PARENT_SPIN_US if count < cores else 0
        self._check_us = int(min(POLL_S, self.timeout_s) * 1e6)
        self._next_check = 0.0
        self._seen = [(0, 0.0)] * count  # by worker: the number of its last command, and when it was first seen running
        self._numbers = np.arange(count, dtype=np.int32)
        self._ready = np.zeros(count, np.int32)
        self._numbers_at, self._ready_at = self._numbers.ctypes.data, self._ready.ctypes.data
        self._crashed: dict[int, Crash] = {}
        self._options: bytes | None = None  # for the reset that comes
        self._events: deque[str] = deque(maxlen=MAX_EVENTS)

    # ---- starting ----

    def _meet(self) -> tuple[AgentSpaces, list[int]]:
        """Waits until every worker has made its envs. Raises the first fault, whichever worker it comes from."""
        until = time.monotonic() + self.timeout_s
        made: dict[int, tuple[AgentSpaces, int]] = {}
        while len(made) < len(self._handles):
            waiting = [handle for handle in self._handles if handle.index not in made]
            readable = connection.wait([handle.pipe for handle in waiting], POLL_S)
            is_late = time.monotonic() >= until
            for handle in waiting:
                if handle.pipe in readable or is_late or handle.process.exitcode is not None:
                    sizes = (made[k][1] if k in made else len(self._handles[k].creators) for k in range(handle.index))
                    agent_spaces, envs = self._hear(handle, until, sum(sizes))
                    made[handle.index] = agent_spaces, sum(envs)
        for k in range(len(made)):
            if made[k][0] != made[0][0]:
                raise ConfigError(
                    f"the envs of worker {k} have other spaces than env 0. All envs must have equal spaces."
                )
        return made[0][0], [made[k][1] for k in range(len(made))]

    def _hear(self, handle: WorkerHandle, until: float, first: int) -> tuple[AgentSpaces, list[int]]:
        message = self._answer(handle, until, first)
        if message[0] == "failed":
            _, report, index = message
            raise crash_of({**report, "env": first + index, "seed": None, "step": 0, "doing": "its constructor"})
        _, agent_spaces, envs, odd = message
        if self.python is not None:
            agent_spaces = remote.read_spaces(agent_spaces)
        if odd is not None:
            raise ConfigError(f"env {first + odd} has other spaces than env {first}. All envs must have equal spaces.")
        return agent_spaces, envs

    def _answer(self, handle: WorkerHandle, until: float, first: int) -> Any:
        """The next message of a worker that is starting."""
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

    def _plan_memory(self, agent_spaces: AgentSpaces, num_envs: int, ranges: list[tuple[int, int]]) -> None:
        channels_bytes = self._core.channels_bytes(len(ranges))
        infos_at = -(-channels_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        block_at = infos_at + len(ranges) * INFO_BYTES
        size = block_at + Block.bytes_needed(agent_spaces, num_envs)
        self._plans = [
            Plan(k, num_envs, lo, size, infos_at, block_at, self._autoreset, WORKER_SPIN_US)
            for k, (lo, _hi) in enumerate(ranges)
        ]
        self._fds.append(shared.allocate(size))
        self._memory = shared.attach(self._fds[0], size)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._channels = [lib.Channel.from_address(self._core.channel(self._base, k)) for k in range(len(ranges))]
        self._block = Block(agent_spaces, num_envs, memoryview(self._memory)[block_at:])
        until = time.monotonic() + self.timeout_s
        for handle, plan in zip(self._handles, self._plans):
            self._hand_over(handle, plan)
        for handle, plan in zip(self._handles, self._plans):
            self._hear_ready(handle, until, plan.lo)

    def _hand_over(self, handle: WorkerHandle, plan: Plan) -> None:
        with contextlib.suppress(OSError):  # a worker that died is reported when its answer is missing
            handle.pipe.send_bytes(pickle.dumps(plan))
            reduction.send_handle(handle.pipe, self._fds[0], handle.process.pid)

    def _hear_ready(self, handle: WorkerHandle, until: float, first: int) -> None:
        report = self._answer(handle, until, first)
        if report is not None:
            raise crash_of(report)

    # ---- stepping ----

    def _post(self, workers: Sequence[int], command: int) -> None:
        if self._broken:
            self._refuse_broken()
        numbers, address = self._addressed(workers)
        self._core.post(self._base, address, len(numbers), command)
        if command == RESET and self._options is not None:
            message, self._options = self._options, None
            for worker in workers:
                self._send(self._handles[worker], message)

    def _addressed(self, workers: Sequence[int]) -> tuple[Array, int]:
        """The workers as an int32 array and its address. All workers use one array: reading an address takes 1 us."""
        if len(workers) == len(self._numbers):
            return self._numbers, self._numbers_at
        numbers = np.array(workers, np.int32)
        return numbers, numbers.ctypes.data

    def _wait(self, workers: Sequence[int], need: int) -> list[int]:
        numbers, address = self._addressed(workers)
        count, ready = len(numbers), self._ready
        try:
            while True:
                num_ready = self._core.wait_ready(
                    self._base, address, count, need, self._ready_at, self._spin_us, self._check_us
                )
                # checked even if enough are ready: with surplus envs nothing else would notice a worker that died
                if num_ready < need or (num_ready < count and time.monotonic() >= self._next_check):
                    self._check_workers(workers)
                if num_ready >= need:
                    return ready[:num_ready].tolist()  # type: ignore[no-any-return]
        except EnvCrashed:
            raise
        except BaseException:  # Ctrl-C: the commands are still running; reset() or recv() wait for them again
            self._in_flight = list(workers)
            raise

    def _check_workers(self, workers: Sequence[int]) -> None:
        """Finds workers that died, or that have been busy with one command for longer than timeout_s."""
        if self._broken:
            self._refuse_broken()
        now = time.monotonic()
        self._next_check = now + POLL_S
        for worker in workers:
            posted = self._channels[worker].posted
            if self._is_ready(worker):
                continue
            if self._handles[worker].process.exitcode is not None:
                self._replace(worker, self._death_of(worker))
            elif self._seen[worker][0] != posted:
                self._seen[worker] = posted, now
            elif now - self._seen[worker][1] >= self.timeout_s:
                self._replace(worker, self._hang_of(worker))

    def _is_ready(self, worker: int) -> bool:
        channel = self._channels[worker]
        return bool(channel.posted == channel.finished)

    def _fetch(self, worker: int) -> InfoRows:
        status = self._channels[worker].status
        if status == OK:
            return []
        if status == INFOS_IN_MEMORY:
            at = self._plans[worker].infos_at + worker * INFO_BYTES
            size = int.from_bytes(self._memory[at : at + 4], "little")
            info_rows: InfoRows = pickle.loads(self._memory[at + 4 : at + 4 + size])
            return info_rows
        message = self._receive(worker)
        if status == RAISED and message is not None:
            for other in range(
                len(self.worker_ranges)
            ):  # messages of other workers for this step must not stay in their pipes
                is_of_this_step = other not in self._in_flight and self._is_ready(other)
                if is_of_this_step and self._channels[other].status >= INFOS_IN_PIPE:
                    self._receive(other)
            raise crash_of(message)
        return message if status == INFOS_IN_PIPE and message else []

    def _receive(self, worker: int) -> Any:
        """The message that a worker sent through its pipe after a command; None if the worker had to be replaced."""
        try:
            message = self._handles[worker].receive(time.monotonic() + self.timeout_s)
        except EOFError:
            self._handles[worker].join(time.monotonic() + 1.0)
            self._replace(worker, self._death_of(worker))
        except TimeoutError:
            self._replace(worker, self._hang_of(worker))
        else:
            self._channels[worker].status = OK
            return message
        return None

    def _collect(self, workers: Sequence[int]) -> InfoRows:
        info_rows = super()._collect(workers)
        if self._crashed:
            for worker in set(workers) & set(self._crashed):
                info_rows += truncate(self._crashed.pop(worker), self.block, self._same_step, self._games)
        return info_rows

    # ---- faults ----

    def _death_of(self, worker: int) -> WorkerDied:
        process = self._handles[worker].process
        return worker_died(worker, process.pid, process.exitcode, self.worker_ranges[worker])

    def _hang_of(self, worker: int) -> EnvTimeout:
        channel, (lo, hi) = self._channels[worker], self.worker_ranges[worker]
        env = min(max(int(channel.current), lo), hi - 1)
        seed = None if self.seeds is None else int(self.seeds[env])
        seeded = "" if seed is None else f" (seed {seed})"
        doing = {RESET: "reset", CALL: "a call"}.get(channel.command, f"step {channel.step + 1}")
        error = EnvTimeout(
            f"env {env}{seeded} did not answer within {self.timeout_s:g} s in {doing} "
            f"(worker {worker}, pid {self._handles[worker].process.pid}). Raise timeout_s if it may take longer."
        )
        error.env, error.seed, error.step = env, seed, int(channel.step) + (channel.command == STEP)
        return error

    def _replace(self, worker: int, fault: EnvCrashed) -> None:
        """With on_crash='restart': starts a new worker, resets its envs by their seeds, truncates their episodes."""
        handle, now = self._handles[worker], time.monotonic()
        is_over = is_restarted_too_often(handle.restarts, now, fault)
        if self.on_crash == "raise" or is_over:
            self._broken = fault
            raise fault
        handle.restarts.append(now)
        (lo, hi), agents, arrays = self.worker_ranges[worker], self.agents_per_env, self.block.arrays
        rows = slice(lo * agents, hi * agents)
        truncated = arrays["alive"][rows] & (self._channels[worker].command != RESET)
        crash = Crash(rows, truncated, arrays["obs"][rows].copy(), fault)
        pid = handle.process.pid
        try:
            handle.end()
            self._core.settle(
                self._base, worker
            )  # before the new worker reads its channel, where the old command still stands
            handle.start()
            until = time.monotonic() + self.timeout_s
            self._hear(handle, until, lo)
            seeds = None if self.seeds is None else self.seeds[lo:hi].tolist()
            self._hand_over(handle, replace(self._plans[worker], replaces=True, seeds=seeds))
            self._hear_ready(handle, until, lo)
        except BaseException as error:
            self._broken = error if isinstance(error, EnvCrashed) else fault
            raise
        if not self._same_step and truncated.any():  # these rows show the old episode until the next step or reset
            arrays["obs"][rows], arrays["alive"][rows], arrays["ended"][lo:hi] = crash.obs, truncated, True
        self._crashed[worker] = crash
        episodes = int(truncated.reshape(hi - lo, agents).any(1).sum())
        self._events.append(restart_event(worker, pid, fault, self.timeout_s, episodes))

    def drain_events(self) -> list[str]:
        """Restarts of workers since the last call, one sentence each."""
        events = list(self._events)
        self._events.clear()
        return events

    def _refuse_broken(self) -> None:
        raise UsageError(
            f"this env is broken by an earlier fault. Close it and make a new one. The fault: {self._broken}"
        )

    # ---- options, calls and closing ----

    def _send_options(self, options: Info) -> None:
        self._options = self._dumps(options)

    def _send(self, handle: WorkerHandle, message: bytes) -> None:
        """What a command needs, once it is posted: the worker then reads, and a pipe holds only short messages."""
        with contextlib.suppress(OSError):  # a worker that died or hangs is reported by the wait that follows
            handle.pipe.send_bytes(message)

    def call_envs(self, name: str, env_ids: Sequence[int] | None, args: tuple[Any, ...], kwargs: Info) -> list[Any]:
        """Calls a method of chosen envs, or reads an attribute, in their workers."""
        ids = list(range(self.num_envs)) if env_ids is None else [int(number) for number in env_ids]
        for number in ids:
            if not 0 <= number < self.num_envs:
                raise ConfigError(f"env_ids names env {number}; there are envs 0 .. {self.num_envs - 1}.")
        chosen = {
            worker: here
            for worker, (lo, hi) in enumerate(self.worker_ranges)
            if (here := [number for number in ids if lo <= number < hi])
        }
        requests = {worker: self._dumps((here, name, args, kwargs)) for worker, here in chosen.items()}
        self._post(list(chosen), CALL)
        for worker, request in requests.items():
            self._send(self._handles[worker], request)
        self._wait(list(chosen), len(chosen))
        results: dict[int, Any] = {}
        fault: EnvCrashed | None = None
        for worker, here in chosen.items():
            message = None if worker in self._crashed else self._receive(worker)
            if message is None:  # the worker was replaced: it has no answer
                fault = fault or self._crashed[worker].fault
            elif isinstance(message, dict):
                fault = fault or crash_of(message)
            else:
                results |= dict(zip(here, message))
        if fault:
            raise fault
        return [results[number] for number in ids]

    def close_extras(self, **kwargs: Any) -> None:
        """Asks the workers to exit, waits up to CLOSE_S, and kills those that have not."""
        if not self._finalizer.still_active() or os.getpid() != self._owner:
            return
        alive = [handle.index for handle in self._handles if handle.process.exitcode is None]
        numbers = np.array(alive, np.int32)
        self._core.post(
            self._base, numbers.ctypes.data, len(numbers), CLOSE
        )  # a busy worker reads it when its command is done
        until = time.monotonic() + CLOSE_S
        for k in alive:
            self._handles[k].join(until)
        self._finalizer()

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            with contextlib.suppress(Exception):
                self.close()


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


def _make(
    create: Callable[[], Any],
    num_envs: int,
    *,
    num_workers: int | None = None,
    envs_per_worker: int | None = None,
    **options: Any,
) -> VecEnv:
    num_workers = workers_from(num_envs, num_workers, envs_per_worker)
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
        "on_crash": "auto",
        "cpu_affinity": False,
        "python": None,
    },
)
