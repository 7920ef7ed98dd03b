"""The `ray` backend: Python envs in Ray actors, on this machine or on the nodes of a cluster.

Ray places, starts and ends the actors. Each has a contiguous range of envs and steps them by one message over a
connection of its own (ray_link.py): a call through Ray costs more than the step of a light env (docs/ray.md). The
result is one frame of bytes, which is copied into the block of this process. The policy stays here. An actor that dies
or hangs, alone or with its node, is replaced without waiting: its first result is that of a truncated episode.
"""

from __future__ import annotations

import contextlib
import pickle
import secrets
import select
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import cloudpickle
import numpy as np

from shoal.errors import ConfigError, EnvCrashed, EnvTimeout, UsageError, WorkerDied
from shoal.spec import AgentSpaces
from shoal.vector import ray_cluster
from shoal.vector.backends import Backend
from shoal.vector.base import VecEnv
from shoal.vector.block import Block
from shoal.vector.faults import crash_of
from shoal.vector.python import PythonVec
from shoal.vector.ray_actor import EnvActor, Frame, Made, Restarted, pack_arguments, pack_work
from shoal.vector.ray_cluster import RayOptions
from shoal.vector.ray_link import CONNECT_S, TOKEN_BYTES, Link, LinkClosed, Message, connect
from shoal.vector.serve import CALL, CALLED, CLOSE, OK, RAISED, RESET, STEP
from shoal.vector.slots import Creator, Info, InfoRows
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

POLL_S = 0.5  # how often workers that do not answer are checked
START_POLL_S = 0.02  # how often the start of new actors is checked, while others step
REASON_S = 1.0  # in which Ray is asked why an actor died
CLOSE_S = 2.0  # time for actors to close their envs before they are killed
SHARE_AFTER_S = 5.0  # a new actor for which the cluster has no CPU left then shares the CPUs of others
START_S = 120.0  # time for an actor to start, besides timeout_s: Ray starts a process and installs its environment


class RayVec(PythonVec):
    """Python envs in `num_workers` Ray actors. See `shoal.make` for the options."""

    backend = "ray"
    logs_policy_age = True

    def __init__(
        self,
        creators: Sequence[Creator],
        ray_options: RayOptions,
        *,
        num_workers: int | None = None,
        batch_size: int | None = None,
        surplus_envs: int = 0,
        timeout_s: float = 60.0,
        on_crash: str = "auto",
        **options: Any,
    ) -> None:
        self.timeout_s, self.on_crash = check_timeout(timeout_s), resolve_on_crash(on_crash, "restart")
        self.ray_options, self._autoreset = ray_options, options.get("autoreset", "same_step")
        if num_workers is not None:
            count_workers(len(creators), num_workers, 1)  # a number that does not fit raises before Ray starts
        self._actors: list[Any] = []
        self._links: dict[int, Link] = {}  # by worker
        self._serving: dict[int, Any] = {}  # by worker: Ray's reference to the end of its actor
        self._poll, self._by_fd = select.poll(), dict[int, int]()  # of links; by descriptor: the worker
        self._lost: set[int] = set()  # workers whose link has ended: they are replaced when they are needed
        self._broken: EnvCrashed | None = None
        self._ray = ray_cluster.connect(ray_options, num_workers)
        most = ray_cluster.most_workers(self._ray, ray_options.cpus_per_worker) if num_workers is None else 1
        count = self.num_workers = self.parallelism = count_workers(len(creators), num_workers, most)
        ray_cluster.require_cpus(self._ray, count, ray_options)
        share = len(creators) // count
        self._work = pack_work(creators[:share])  # the same for every actor
        self._class = ray_cluster.remote_class(self._ray, EnvActor, ray_options)
        self._cpus = [ray_options.cpus_per_worker] * count
        self._homes = [""] * count  # pid and host of each actor
        try:
            self._actors += [self._new_actor(worker) for worker in range(count)]
            agent_spaces, sizes = self._meet(share)
            ranges, num_envs = [], 0
            for size in sizes:
                ranges.append((num_envs, num_envs + size))
                num_envs += size
            batch = check_batch(num_envs, sizes[0], batch_size, surplus_envs, options.get("zero_copy", False))
            block = Block(agent_spaces, num_envs)
            super().__init__(agent_spaces, num_envs, block, ranges, batch_envs=batch, **options)
            self._frames = [Frame(block, lo, hi) for lo, hi in ranges]
            self._begin()
        except BaseException:
            self._kill_all()
            raise
        agents = self.agents_per_env
        self._actions = [block.arrays["actions"][lo * agents : hi * agents] for lo, hi in ranges]
        self._pending: set[int] = set()  # workers that have a command and have not answered
        self._sent = [0.0] * count
        self._commands = [RESET] * count
        self._steps = [0] * count
        self._answers: dict[int, Message] = {}  # by worker, in the order of arrival
        self._starting: dict[int, float] = {}  # workers that were replaced and have not answered, and since when
        self._refs: dict[int, Any] = {}  # by such a worker: Ray's reference to its first result
        self._restarts: list[list[float]] = [[] for _ in range(count)]
        self._crashed: dict[int, Crash] = {}
        self._options: bytes | None = None
        self._next_check = 0.0
        self._events: deque[str] = deque(maxlen=MAX_EVENTS)

    # ---- starting ----

    def _new_actor(self, worker: int) -> Any:
        return self._class.options(num_cpus=self._cpus[worker]).remote()

    def _meet(self, share: int) -> tuple[AgentSpaces, list[int]]:
        """Waits until every actor has made its envs. Raises the first fault, whichever actor it comes from."""
        until = time.monotonic() + self.timeout_s + max(START_S, self.ray_options.wait_s)
        refs = {actor.make.remote(self._work): worker for worker, actor in enumerate(self._actors)}
        made: dict[int, Made] = {}
        while len(made) < len(self._actors):
            waiting = [ref for ref, worker in refs.items() if worker not in made]
            ready, _ = self._ray.wait(waiting, num_returns=1, timeout=max(0.0, until - time.monotonic()))
            if not ready:
                raise self._never_started(refs[waiting[0]], share)
            worker = refs[ready[0]]
            first = worker * share
            answer = self._get(ready[0], worker, (first, first + share))
            if isinstance(answer, EnvCrashed):
                raise answer
            if isinstance(answer, dict):
                raise crash_of({**answer, "env": first + answer["env"]})
            if answer.odd is not None:
                raise ConfigError(
                    f"env {first + answer.odd} has other spaces than env {first}. All envs must have equal spaces."
                )
            made[worker] = answer
            self._homes[worker] = f"pid {answer.pid} on {answer.host}"
        for worker in range(len(made)):
            if made[worker].agent_spaces != made[0].agent_spaces:
                raise ConfigError(
                    f"the envs of worker {worker} have other spaces than env 0. All envs must have equal spaces."
                )
        return made[0].agent_spaces, [sum(made[worker].envs) for worker in range(len(made))]

    def _never_started(self, worker: int, share: int) -> EnvTimeout:
        free, total = ray_cluster.free_cpus(self._ray), ray_cluster.total_cpus(self._ray)
        error = EnvTimeout(
            f"worker {worker} (envs {worker * share} .. {(worker + 1) * share - 1}) did not make its envs in time. It "
            f"needs {self._cpus[worker]:g} CPUs; {free:g} of the cluster's {total:g} are free. Raise timeout_s if its "
            "envs need longer, or use fewer workers."
        )
        error.env = worker * share
        return error

    def _begin(self) -> None:
        begun = [actor.begin.remote(lo, self._autoreset) for actor, (lo, _) in zip(self._actors, self.worker_ranges)]
        for worker, ref in enumerate(begun):
            answer = self._get(ref, worker, self.worker_ranges[worker])
            if isinstance(answer, EnvCrashed):
                raise answer
            try:
                self._connect(worker, answer)
            except OSError as error:
                host, port = answer
                raise ConfigError(
                    f"worker {worker} ({self._homes[worker]}) waits at {host}, port {port}, but this process cannot "
                    f"connect to it: {error}. The nodes of a Ray cluster must reach each other by these addresses; a "
                    "process outside of it (ray://) cannot take part."
                ) from None

    def _connect(self, worker: int, address: tuple[str, int]) -> None:
        """Opens the link to an actor that listens. Raises OSError."""
        token = secrets.token_bytes(TOKEN_BYTES)
        self._serving[worker] = self._actors[worker].serve.remote(token, 2 * CONNECT_S)
        link = self._links[worker] = connect(address, token, self._frames[worker].most)
        self._poll.register(link.fileno(), select.POLLIN)
        self._by_fd = {link.fileno(): worker for worker, link in self._links.items()}

    def _disconnect(self, worker: int) -> None:
        if (link := self._links.pop(worker, None)) is not None:
            with contextlib.suppress(KeyError):  # a lost one is not in it
                self._poll.unregister(link.fileno())
            link.close()

    # ---- stepping ----

    def _post(self, workers: Sequence[int], command: int) -> None:
        self._refuse_broken()
        arrays = self.block.arrays
        has_seeds, has_mask, has_options = arrays["reset_with"].tolist()
        for worker in workers:
            lo, hi = self.worker_ranges[worker]
            if command == STEP:
                self._order(worker, STEP, self._actions[worker].reshape(-1))
                continue
            seeds = arrays["seeds"][lo:hi].tolist() if has_seeds else None
            mask = arrays["reset_mask"][lo:hi].copy() if has_mask else None
            self._order(worker, RESET, pickle.dumps((seeds, mask, self._options if has_options else None)))

    def _order(self, worker: int, command: int, data: Any) -> None:
        """Sends a command to a worker."""
        self._note_sent(worker, command)
        try:
            self._links[worker].send(command, 0, [data])
        except OSError:  # `_wait` replaces it
            self._lost.add(worker)

    def _note_sent(self, worker: int, command: int) -> None:
        self._answers.pop(worker, None)
        self._pending.add(worker)
        self._sent[worker], self._commands[worker] = time.monotonic(), command

    def _wait(self, workers: Sequence[int], need: int) -> list[int]:
        self._refuse_broken()
        chosen = set(workers)
        try:
            while True:
                ready = [worker for worker in self._answers if worker in chosen]
                if len(ready) >= need:
                    return ready
                for worker in sorted(self._lost & self._pending):
                    self._replace(worker, self._death_of(worker))
                for fd, _ in self._poll.poll(1e3 * (START_POLL_S if self._starting else POLL_S)):
                    self._read(self._by_fd[fd])
                if self._starting:
                    self._take_started()
                if (now := time.monotonic()) >= self._next_check:
                    self._next_check = now + POLL_S
                    self._check_workers(sorted(self._pending & chosen), now)
        except EnvCrashed:
            raise
        except BaseException:  # Ctrl-C: the commands are still running; reset() or recv() wait for them again
            self._in_flight = list(workers)
            raise

    def _read(self, worker: int) -> None:
        """Takes what a worker has sent, or notes that its link has ended."""
        try:
            message = self._links[worker].receive()
        except LinkClosed:
            self._lost.add(worker)
            with contextlib.suppress(KeyError):
                self._poll.unregister(self._links[worker].fileno())
            return
        if message is not None:
            self._answers[worker], self._steps[worker] = message, message.number
            self._pending.discard(worker)

    def _take_started(self) -> None:
        """Takes the first results of actors that replace others."""
        refs = {self._refs[worker]: worker for worker in self._starting}
        for ref in self._ray.wait(list(refs), num_returns=len(refs), timeout=0)[0]:
            worker = refs[ref]
            started = self._get(ref, worker, self.worker_ranges[worker])
            if isinstance(started, dict):  # the new envs cannot be made, or cannot be reset
                self._broken = crash_of(started)
                raise self._broken
            if isinstance(started, Restarted):
                self._homes[worker] = f"pid {started.made.pid} on {started.made.host}"
                try:
                    self._connect(worker, started.address)
                except OSError as error:
                    started = self._died(worker, f"this process cannot connect to it: {error}")
            del self._starting[worker], self._refs[worker]
            if isinstance(started, EnvCrashed):
                self._replace(worker, started)
                continue
            self._pending.discard(worker)
            self._answers[worker] = Message(OK, started.steps, memoryview(started.frame), memoryview(started.infos))
            self._steps[worker] = started.steps

    def _get(self, ref: Any, worker: int, envs: tuple[int, int]) -> Any:
        """What a finished command returned; a WorkerDied if its actor is dead, or its result was lost with a node."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(ref)
        except errors.RayTaskError as error:  # what envs raise is in the answer: this is the actor's own
            fault = WorkerDied(f"worker {worker} (envs {envs[0]} .. {envs[1] - 1}) cannot work: {error}")
        except errors.RayError as error:
            return self._died(worker, ray_cluster.reason_of(error), envs)
        fault.env = envs[0]
        return fault

    def _died(self, worker: int, reason: str, envs: tuple[int, int] | None = None) -> WorkerDied:
        lo, hi = envs or self.worker_ranges[worker]
        home = self._homes[worker] or "not started"
        fault = WorkerDied(f"worker {worker} ({home}, envs {lo} .. {hi - 1}) died: {reason}")
        fault.env = lo
        return fault

    def _death_of(self, worker: int) -> EnvCrashed:
        """Why the connection to a worker has ended, as far as Ray knows by now."""
        ref = self._serving[worker]
        if self._ray.wait([ref], timeout=REASON_S)[0]:
            answer = self._get(ref, worker, self.worker_ranges[worker])
            return answer if isinstance(answer, EnvCrashed) else self._died(worker, str(answer))
        return self._died(worker, "its connection has ended")

    def _check_workers(self, workers: Sequence[int], now: float) -> None:
        """Finds workers whose node is lost, that are busy with one command for too long, or that cannot be started."""
        ends = {self._serving[worker]: worker for worker in workers if worker not in self._starting}
        for ref in self._ray.wait(list(ends), num_returns=len(ends), timeout=0)[0] if ends else ():
            self._read(ends[ref])  # its last answer may be there
            self._lost |= {ends[ref]} & self._pending
        for worker in workers:
            since = self._starting.get(worker)
            if worker not in self._pending or worker in self._lost:
                continue
            if since is None and now - self._sent[worker] >= self.timeout_s:
                self._replace(worker, self._hang_of(worker))
            elif since is None:
                continue
            elif now - since >= SHARE_AFTER_S and self._cpus[worker] and self._lacks_cpus():
                self._cpus[worker] = 0.0
                self._events.append(
                    f"the Ray cluster has {ray_cluster.total_cpus(self._ray):g} CPUs left for {self.num_workers} "
                    f"workers: worker {worker} shares the CPUs of the others"
                )
                self._restart(worker)
            elif now - since >= self.timeout_s + START_S:
                self._replace(worker, self._never_started(worker, self._size(worker)))

    def _lacks_cpus(self) -> bool:
        """Whether the nodes that are left have fewer CPUs than the workers need."""
        return not ray_cluster.has_places(self._ray, self.num_workers, self.ray_options.cpus_per_worker)

    def _fetch(self, worker: int) -> InfoRows:
        answer = self._answers.pop(worker)
        if answer.kind == RAISED:
            raise crash_of(pickle.loads(answer.second))
        self._frames[worker].unpack(np.frombuffer(answer.first, np.uint8))
        info_rows: InfoRows = pickle.loads(answer.second) if answer.second else []
        return info_rows

    def _collect(self, workers: Sequence[int]) -> InfoRows:
        info_rows = super()._collect(workers)
        for worker in workers if self._crashed else ():
            if worker in self._crashed:
                info_rows += truncate(self._crashed.pop(worker), self.block, self._same_step, self._games)
        return info_rows

    # ---- faults ----

    def _hang_of(self, worker: int) -> EnvTimeout:
        lo, hi = self.worker_ranges[worker]
        doing = {RESET: "reset", CALL: "a call"}.get(self._commands[worker], f"step {self._steps[worker] + 1}")
        error = EnvTimeout(
            f"worker {worker} ({self._homes[worker]}, envs {lo} .. {hi - 1}) did not answer within "
            f"{self.timeout_s:g} s in {doing}. Raise timeout_s if it may take longer."
        )
        error.env, error.step = lo, self._steps[worker] + (self._commands[worker] == STEP)
        return error

    def _replace(self, worker: int, fault: EnvCrashed) -> None:
        """With on_crash='restart': starts a new actor, which resets the envs by their seeds. Their episodes end."""
        now = time.monotonic()
        is_over = is_restarted_too_often(self._restarts[worker], now, fault)
        if self.on_crash == "raise" or is_over:
            self._broken = fault
            raise fault
        self._restarts[worker].append(now)
        lo, hi = self.worker_ranges[worker]
        if worker not in self._crashed:  # otherwise the new actor died, too: what it left unfinished is known
            arrays, agents = self.block.arrays, self.agents_per_env
            rows = slice(lo * agents, hi * agents)
            truncated = arrays["alive"][rows] & (self._commands[worker] != RESET)
            self._crashed[worker] = Crash(rows, truncated, arrays["obs"][rows].copy(), fault)
            episodes = int(truncated.reshape(hi - lo, agents).any(1).sum())
        else:
            episodes = 0
        cause = f"did not answer within {self.timeout_s:g} s" if isinstance(fault, EnvTimeout) else "died"
        counted = "1 episode was" if episodes == 1 else f"{episodes} episodes were"
        home = self._homes[worker]
        self._events.append(f"worker {worker} ({home}) {cause} and was restarted; its {counted} truncated")
        self._restart(worker)

    def _restart(self, worker: int) -> None:
        ray_cluster.kill(self._ray, self._actors[worker])
        self._disconnect(worker)
        self._lost.discard(worker)
        (lo, hi), crash = self.worker_ranges[worker], self._crashed[worker]
        seeds = None if self.seeds is None else self.seeds[lo:hi].tolist()
        # without same-step autoreset, the rows show the old episode until the next step or reset
        shown = None if self._same_step or not crash.truncated.any() else (crash.obs, crash.truncated)
        actor = self._actors[worker] = self._new_actor(worker)
        self._refs[worker] = actor.restart.remote(self._work, lo, self._autoreset, seeds, shown)
        self._starting[worker] = time.monotonic()
        self._note_sent(worker, self._commands[worker])

    def drain_events(self) -> list[str]:
        """Restarts of actors since the last call, one sentence each."""
        events = list(self._events)
        self._events.clear()
        return events

    def _refuse_broken(self) -> None:
        if self._broken:
            raise UsageError(
                f"this env is broken by an earlier fault. Close it and make a new one. The fault: {self._broken}"
            )

    # ---- options, calls and closing ----

    def _send_options(self, options: Info) -> None:
        self._options = cloudpickle.dumps(options)

    def call_envs(self, name: str, env_ids: Sequence[int] | None, args: tuple[Any, ...], kwargs: Info) -> list[Any]:
        """Calls a method of chosen envs, or reads an attribute, in their actors."""
        self._refuse_broken()
        ids = list(range(self.num_envs)) if env_ids is None else [int(number) for number in env_ids]
        arguments = pack_arguments(args, kwargs)
        chosen = {
            worker: here
            for worker, (lo, hi) in enumerate(self.worker_ranges)
            if (here := [number for number in ids if lo <= number < hi])
        }
        for worker, here in chosen.items():
            self._order(worker, CALL, pickle.dumps((here, name, arguments)))
        self._wait(list(chosen), len(chosen))
        results: dict[int, Any] = {}
        fault: EnvCrashed | None = None
        for worker, here in chosen.items():
            answer = self._answers.pop(worker)
            if answer.kind == CALLED:
                results |= dict(zip(here, pickle.loads(answer.second)))
            elif answer.kind == RAISED:
                fault = fault or crash_of(pickle.loads(answer.second))
            else:  # the worker was replaced: its envs were reset, and there is no answer
                self._frames[worker].unpack(np.frombuffer(answer.first, np.uint8))
                fault = fault or self._crashed[worker].fault
        if fault:
            raise fault
        return [results[number] for number in ids]

    def close_extras(self, **kwargs: Any) -> None:
        """Asks the actors to close their envs, waits up to CLOSE_S, and kills them."""
        with contextlib.suppress(Exception):  # dead actors, or Ray was shut down
            for link in self._links.values():
                with contextlib.suppress(OSError):
                    link.send(CLOSE, 0)
            if self._links and self._ray.is_initialized():
                ends = [self._serving[worker] for worker in self._links]
                self._ray.wait(ends, num_returns=len(ends), timeout=CLOSE_S)
        self._kill_all()

    def _kill_all(self) -> None:
        for worker in list(self._links):
            self._disconnect(worker)
        if self._ray.is_initialized():
            for actor in self._actors:
                ray_cluster.kill(self._ray, actor)
        self._actors.clear()

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            with contextlib.suppress(Exception):
                self.close()


def default_workers(num_envs: int, options: RayOptions) -> int:
    """The number of actors that `shoal.make` chooses: the most that divide num_envs and have a free CPU."""
    ray = ray_cluster.connect(options)
    return count_workers(num_envs, None, ray_cluster.most_workers(ray, options.cpus_per_worker))


def _make(
    create: Callable[[], Any],
    num_envs: int,
    *,
    num_workers: int | None = None,
    envs_per_worker: int | None = None,
    **options: Any,
) -> VecEnv:
    own = {option.name: options.pop(option.name) for option in fields(RayOptions) if option.name in options}
    num_workers = workers_from(num_envs, num_workers, envs_per_worker)
    return RayVec([create] * num_envs, RayOptions(**own), num_workers=num_workers, **options)


BACKEND = Backend(
    "Ray actors, on this machine or on a cluster",
    python=_make,
    options=RayOptions,
    shared={
        "num_workers": None,
        "envs_per_worker": None,
        "batch_size": None,
        "surplus_envs": 0,
        "zero_copy": False,
        "timeout_s": 60.0,
        "on_crash": "auto",
    },
)
