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
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from multiprocessing import reduction
from typing import Any

import cloudpickle
import numpy as np

from shoal.errors import ConfigError, EnvCrashed, EnvTimeout, UsageError, WorkerDied
from shoal.native import lib
from shoal.vector import shared, worker
from shoal.vector.block import Block, Face
from shoal.vector.faults import env_crashed, unpack, worker_died
from shoal.vector.python import CALL, CLOSE, PythonVec
from shoal.vector.runner import Creator, Info, Mail
from shoal.vector.threads import available_cores

WORKER_SPIN_US = 100  # how long a worker watches for the next step before it sleeps: keeps its core while others finish
PARENT_SPIN_US = 50  # the same for the parent, where there is a core for it beside the workers'
LOOK_S = 0.1  # how often a waiting parent looks whether its workers live
CLOSE_S = 2.0  # for workers to leave by themselves, before they are killed
MAX_RESTARTS, RESTART_WINDOW_S = 3, 60.0  # of one worker

_spawning = threading.Lock()


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Starts processes that do not import the user's __main__: their work arrives by cloudpickle.

    So scripts need no `if __name__ == "__main__"` guard, and notebooks and lambdas work.
    """
    original = multiprocessing.spawn.get_preparation_data

    def prepare(name: str) -> dict[str, Any]:
        data = original(name)
        data.pop("init_main_from_path", None)
        data.pop("init_main_from_name", None)
        return data

    with _spawning:
        multiprocessing.spawn.get_preparation_data = prepare
        try:
            yield
        finally:
            multiprocessing.spawn.get_preparation_data = original


class Hand:
    """The parent's end of one worker: its process and its pipe."""

    def __init__(self, index: int, creators: Sequence[Creator], start_method: str, affinity: int | None) -> None:
        self.index, self.creators, self.start_method, self.affinity = index, list(creators), start_method, affinity
        self.restarts: list[float] = []
        self.process: Any = None
        self.pipe: Any = None

    def start(self) -> None:
        """Starts the process; it begins to make its envs."""
        context: Any = multiprocessing.get_context(self.start_method)
        self.pipe, theirs = context.Pipe(duplex=True)
        work: Any = self.creators
        if self.start_method != "fork":
            try:
                work = cloudpickle.dumps(self.creators)
            except Exception as error:
                raise ConfigError(
                    f"the env creator cannot be pickled for start_method='{self.start_method}': {error}. "
                    "Make what it needs inside the function, or use start_method='fork'."
                ) from error
        arguments = (work, theirs, os.getpid(), self.affinity)
        self.process = context.Process(
            target=worker.main, args=arguments, daemon=True, name=f"shoal-worker-{self.index}"
        )
        with _without_main():
            self.process.start()
        theirs.close()

    def receive(self, until: float) -> Any:
        """The next message, or EnvTimeout / WorkerDied / EOFError."""
        while not self.pipe.poll(min(LOOK_S, max(0.0, until - time.monotonic()))):
            if self.process.exitcode is not None and not self.pipe.poll(0):
                raise EOFError
            if time.monotonic() >= until:
                raise TimeoutError
        return cloudpickle.loads(self.pipe.recv_bytes())

    def end(self, grace_s: float = 0.0) -> None:
        """Waits a little for the process to leave, then kills it."""
        if self.process is None:
            return
        self.process.join(grace_s)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join(5.0)
        with contextlib.suppress(OSError):
            self.pipe.close()


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
        self.num_workers = count = _check_workers(len(creators), num_workers, cores)
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
        self._hands = [
            Hand(
                k,
                creators[k * share : (k + 1) * share],
                method,
                (allowed[k % cores] if cpu_affinity is True else pins[k]) if cpu_affinity else None,
            )
            for k in range(count)
        ]
        self._core = lib.load_core()
        self._finalizer = weakref.finalize(self, _end_all, self._hands)
        self._autoreset = options.get("autoreset", "same_step")
        try:
            for hand in self._hands:
                hand.start()
            face, sizes = self._meet()
            units, at = [], 0
            for size in sizes:
                units.append((at, at + size))
                at += size
            batch = _check_batch(at, units, batch_size, surplus_envs)
            self._plan_memory(face, at, units)
        except BaseException:
            self._finalizer()
            raise
        super().__init__(face, at, self._block, units, batch_envs=batch, **options)
        self._broken: EnvCrashed | None = None
        self._spin_us = PARENT_SPIN_US if count < cores else 0
        self._numbers = np.arange(count, dtype=np.int32)
        self._ready = np.zeros(count, np.int32)
        self._crashed: dict[int, Mail] = {}
        self._slots = [self._slot(unit) for unit in range(count)]

    # ---- starting ----

    def _meet(self) -> tuple[Face, list[int]]:
        """Hears from every worker what it made. Fails with the first fault, and then leaves no worker behind."""
        until = time.monotonic() + self.timeout_s
        faces, sizes, at = [], [], 0
        for hand in self._hands:
            face, envs = self._hear(hand, until, at)
            faces.append(face)
            sizes.append(sum(envs))
            at += sum(envs)
            if face != faces[0]:
                raise ConfigError(f"the envs of worker {hand.index} have other spaces than env 0: all must be equal.")
        return faces[0], sizes

    def _hear(self, hand: Hand, until: float, first: int) -> tuple[Face, list[int]]:
        try:
            message = hand.receive(until)
        except EOFError:
            hand.process.join(5.0)
            raise worker_died(
                hand.index, hand.process.pid, hand.process.exitcode, (first, first + len(hand.creators))
            ) from None
        except TimeoutError:
            raise EnvTimeout(
                f"worker {hand.index} (envs from {first} on) did not make its envs within {self.timeout_s:g} s. "
                "Raise timeout_s if they need longer."
            ) from None
        if message[0] == "failed":
            _, report, index = message
            raise env_crashed(None, first + index, None, 0, "its constructor", report) from unpack(report)
        _, face, envs, odd = message
        if odd is not None:
            raise ConfigError(f"env {first + odd} has other spaces than env {first}: all must be equal.")
        return face, envs

    def _plan_memory(self, face: Face, num_envs: int, units: list[tuple[int, int]]) -> None:
        desk = self._core.desk_bytes(len(units))
        mail_at = -(-desk // mmap.PAGESIZE) * mmap.PAGESIZE
        block_at = mail_at + len(units) * worker.MAIL_BYTES
        size = block_at + Block.bytes_needed(face, num_envs)
        self._plans = [
            worker.Plan(k, num_envs, lo, size, desk, mail_at, block_at, self._autoreset, WORKER_SPIN_US)
            for k, (lo, _hi) in enumerate(units)
        ]
        self._fd = shared.allocate(size)
        weakref.finalize(self, os.close, self._fd)
        self._memory = shared.attach(self._fd, size)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._block = Block(face, num_envs, memoryview(self._memory)[block_at:])
        for hand, plan in zip(self._hands, self._plans):
            self._hand_over(hand, plan)

    def _hand_over(self, hand: Hand, plan: worker.Plan) -> None:
        hand.pipe.send_bytes(pickle.dumps(plan))
        reduction.send_handle(hand.pipe, self._fd, hand.process.pid)

    # ---- stepping ----

    def _post(self, units: Sequence[int], command: int) -> None:
        if self._broken:
            raise UsageError(f"this env is broken by an earlier fault; close it. The fault: {self._broken}")
        numbers = self._numbers if len(units) == len(self._numbers) else np.array(units, np.int32)
        self._core.post(self._base, numbers.ctypes.data, len(numbers), command)

    def _wait(self, units: Sequence[int], need: int) -> list[int]:
        numbers = self._numbers if len(units) == len(self._numbers) else np.array(units, np.int32)
        until = time.monotonic() + self.timeout_s
        spin = self._spin_us
        while True:
            left = max(0.0, min(LOOK_S, until - time.monotonic()))
            found = self._core.wait_ready(
                self._base, numbers.ctypes.data, len(numbers), need, self._ready.ctypes.data, spin, int(left * 1e6)
            )
            if found >= need:
                return self._ready[:found].tolist()  # type: ignore[no-any-return]
            busy = [unit for unit in units if unit not in set(self._ready[:found].tolist())]
            for unit in busy:
                if self._hands[unit].process.exitcode is not None:
                    self._replace(unit, self._death_of(unit))
            if time.monotonic() >= until:
                for unit in busy:
                    if not self._is_ready(unit):
                        self._replace(unit, self._hang_of(unit))
                until = time.monotonic() + self.timeout_s

    def _slot(self, unit: int) -> lib.DeskSlot:
        return lib.DeskSlot.from_address(self._core.desk_slot(self._base, unit))

    def _is_ready(self, unit: int) -> bool:
        slot = self._slot(unit)
        return bool(slot.posted == slot.finished)

    def _fetch(self, unit: int) -> Mail:
        if self._crashed and unit in self._crashed:
            return self._crashed.pop(unit)
        status = self._slots[unit].status
        if status == worker.OK:
            return []
        if status == worker.MAIL_HERE:
            at = self._plans[unit].mail_at + unit * worker.MAIL_BYTES
            size = int.from_bytes(self._memory[at : at + 4], "little")
            letter: Mail = pickle.loads(self._memory[at + 4 : at + 4 + size])
            return letter
        message = self._hands[unit].receive(time.monotonic() + self.timeout_s)
        if status == worker.RAISED:
            for other in range(
                len(self.units)
            ):  # what the others sent belongs to this step: take it out of their pipes
                if other != unit and self._is_ready(other) and self._slot(other).status >= worker.MAIL_IN_PIPE:
                    with contextlib.suppress(EOFError, TimeoutError):
                        if self._hands[other].pipe.poll(1.0):
                            self._hands[other].pipe.recv_bytes()
                            self._slot(other).status = worker.OK
            raise _raised(message)
        mail: Mail = message
        return mail

    # ---- faults ----

    def _death_of(self, unit: int) -> WorkerDied:
        process = self._hands[unit].process
        return worker_died(unit, process.pid, process.exitcode, self.units[unit])

    def _hang_of(self, unit: int) -> EnvTimeout:
        slot, (lo, hi) = self._slot(unit), self.units[unit]
        env = min(max(int(slot.current), lo), hi - 1)
        seed = None if self.seeds is None else int(self.seeds[env])
        seeded = "" if seed is None else f" (seed {seed})"
        error = EnvTimeout(
            f"env {env}{seeded} did not answer within {self.timeout_s:g} s in step {slot.step + 1} "
            f"(worker {unit}, pid {self._hands[unit].process.pid}). Raise timeout_s if its steps may take longer."
        )
        error.env, error.seed, error.step = env, seed, int(slot.step) + 1
        return error

    def _replace(self, unit: int, fault: EnvCrashed) -> None:
        """With on_crash='restart': a new worker, its envs reset with their seeds and their episodes cut short."""
        hand, now = self._hands[unit], time.monotonic()
        hand.restarts = [then for then in hand.restarts if now - then < RESTART_WINDOW_S]
        if self.on_crash == "raise":
            self._broken = fault
            raise fault
        if len(hand.restarts) >= MAX_RESTARTS:
            self._broken = fault
            raise type(fault)(f"{fault} It was restarted {MAX_RESTARTS} times within {RESTART_WINDOW_S:g} s already.")
        hand.restarts.append(now)
        hand.end()
        lo, hi = self.units[unit]
        rows = slice(lo * self.agents_per_env, hi * self.agents_per_env)
        arrays = self.block.arrays
        last, was_alive = arrays["obs"][rows].copy(), arrays["alive"][rows].copy()
        hand.start()
        until = now + self.timeout_s
        self._hear(hand, until, lo)
        seeds = list(range(lo, hi)) if self.seeds is None else self.seeds[lo:hi].tolist()
        plan = self._plans[unit]
        self._hand_over(hand, worker.Plan(**{**vars(plan), "seeds": seeds}))
        try:
            report = hand.receive(until)
        except (EOFError, TimeoutError):
            self._broken = fault
            raise fault from None
        if report is not None:
            self._broken = fault
            raise _raised(report)
        arrays["final_obs"][rows] = last
        arrays["rewards"][rows], arrays["terminated"][rows] = 0.0, False
        arrays["truncated"][rows] = arrays["done"][rows] = was_alive
        arrays["final_return"][rows], arrays["final_length"][rows] = 0.0, 0
        self._crashed[unit] = [
            (row, True, {"crashed": True, "fault": str(fault)})
            for row in range(rows.start, rows.stop)
            if was_alive[row - rows.start]
        ]
        self._core.settle(self._base, unit)

    # ---- the rest ----

    def _send_options(self, options: Info) -> None:
        message = cloudpickle.dumps(options)
        for hand in self._hands:
            hand.pipe.send_bytes(message)

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
            self._hands[unit].pipe.send_bytes(cloudpickle.dumps((here, name, args, kwargs)))
        self._post(list(chosen), CALL)
        self._wait(list(chosen), len(chosen))
        results: dict[int, Any] = {}
        fault: EnvCrashed | None = None
        for unit, here in chosen.items():
            message = self._hands[unit].receive(time.monotonic() + self.timeout_s)
            if isinstance(message, dict) and "traceback" in message:
                fault = fault or _raised(message)
                continue
            results |= dict(zip(here, message))
        if fault:
            raise fault
        return [results[number] for number in ids]

    def close_extras(self, **kwargs: Any) -> None:
        """Asks the workers to leave, waits a little, and kills those that do not."""
        if not self._finalizer.alive:
            return
        idle = [k for k in range(len(self._hands)) if self._is_ready(k) and self._hands[k].process.exitcode is None]
        numbers = np.array(idle, np.int32)
        self._core.post(self._base, numbers.ctypes.data, len(numbers), CLOSE)
        until = time.monotonic() + CLOSE_S
        for k in idle:
            self._hands[k].process.join(max(0.0, until - time.monotonic()))
        self._finalizer()

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            with contextlib.suppress(Exception):
                self.close()


def _raised(report: dict[str, Any]) -> EnvCrashed:
    error = env_crashed(None, report["env"], report["seed"], report["step"], report["doing"], report)
    error.__cause__ = unpack(report)
    return error


def _end_all(hands: list[Hand]) -> None:
    for hand in hands:
        if hand.process is not None and hand.process.pid is not None:
            with contextlib.suppress(Exception):
                hand.process.kill()
    for hand in hands:
        with contextlib.suppress(Exception):
            hand.end()


def default_start_method() -> str:
    """fork where it is safe and fast (Linux); elsewhere what Python thinks best."""
    methods = multiprocessing.get_all_start_methods()
    return "fork" if "fork" in methods and os.name == "posix" and os.uname().sysname == "Linux" else methods[0]


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
