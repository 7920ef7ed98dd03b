"""World: this process among all that train one run. They are numbered by rank; rank 0 leads, the others follow it.

Rank 0 runs the session: it logs, evaluates, saves, and takes signals. It tells the others what to do (`send`), and
they do it (`receive`). Gradients are exchanged by `gather`, with NCCL between GPUs and with gloo otherwise: it moves
bytes and adds nothing, so the results do not depend on the library.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import os
import pickle
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from shoal.algos.shards import ordered_sum
from shoal.errors import ConfigError, RankError
from shoal.train.ranks.meeting import meet
from shoal.train.ranks.watch import Watch

TIMEOUT_S = 600.0  # default of --rank-timeout-s
REPORT_S = 10.0  # for rank 0 to report a fault after SIGTERM
JOIN_S = 300.0  # in which all processes must have started
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # of torchrun
TIMEOUT_VARIABLE = "SHOAL_RANK_TIMEOUT_S"
GPU_VARIABLE = "SHOAL_RANK_GPU"
DIVIDE_FROM = 1 << 14  # numbers of a sum that the processes divide among them
_COMMAND_BYTES = 64  # of the names of commands


def is_launched() -> bool:
    """Whether torchrun, or something that sets its variables, has started this process."""
    return all(name in os.environ for name in VARIABLES)


def rank_of() -> int:
    """The rank of this process; 0 if it is alone."""
    return int(os.environ["RANK"]) if is_launched() else 0


def take_own_gpu() -> None:
    """Makes the GPU of this process the only one that it sees. Called before CUDA is used.

    With more processes than GPUs, several processes share one.
    """
    if not is_launched() or os.environ.get(GPU_VARIABLE) == str(os.getpid()):
        return
    os.environ[GPU_VARIABLE] = str(os.getpid())
    local, local_size = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if local_size == 1:
        return
    if torch.cuda.is_initialized():
        raise ConfigError(
            "CUDA was used before the processes of this run divided the GPUs. Call shoal.train.ranks.take_own_gpu() at "
            "the start of the script."
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(k) for k in range(torch.cuda.device_count())] if visible is None else visible.split(",")
    names = [name for name in names if name.strip()]
    if len(names) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = names[local % len(names)]
    os.environ["SHOAL_RANKS_SHARE_GPU"] = "1" if local_size > len(names) else ""


def delay_sigterm() -> None:
    """Gives this process 10 s after SIGTERM: the launcher sends it when a rank fails, and rank 0 must say why."""

    def handle(number: int, _frame: Any) -> None:
        timer = threading.Timer(REPORT_S, os._exit, (128 + number,))
        timer.daemon = True
        timer.start()

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handle)


_world: World | None = None


def join() -> World | None:
    """The world of this process, which waits for the other processes; None if it was not launched by torchrun."""
    global _world
    if not is_launched():
        return None
    if _world is None:
        take_own_gpu()
        _take_own_cores()
        _world = World(*(int(os.environ[name]) for name in ("RANK", "WORLD_SIZE")))
    return _world


def _take_own_cores() -> None:
    """Divides the machine's cores among its processes, unless the launcher has done so."""
    local, local_size = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if local_size == 1 or not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.suppress(OSError):
        if cores != sorted(os.sched_getaffinity(os.getppid())):
            return
        each = len(cores) // local_size
        if each:
            os.sched_setaffinity(0, cores[local * each : (local + 1) * each])


class World:
    """This process among all of a run."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.timeout_s = _timeout()
        self.job = os.environ.get("TORCHELASTIC_RUN_ID", "none")
        self.host = socket.gethostname()
        join_s = datetime.timedelta(seconds=JOIN_S)
        try:
            address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            hosts = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
            self.store = dist.TCPStore(address, port, is_master=hosts, wait_for_workers=False, timeout=join_s)
            self.prefix = f"shoal/{self.job}/{meet(self.store, self.job, rank, size, JOIN_S)}"
            watch_store = dist.TCPStore(address, port, is_master=False, timeout=datetime.timedelta(seconds=15))
            dist.init_process_group(
                "gloo",
                store=dist.PrefixStore(self.prefix, self.store),
                rank=rank,
                world_size=size,
                timeout=datetime.timedelta(seconds=max(JOIN_S, self.timeout_s)),
            )
        except (RuntimeError, ValueError) as error:
            raise RankError(
                f"rank {rank} could not join the other processes within {JOIN_S:g} s: {_first_line(error)}. "
                "All must be started with the same address and number of processes."
            ) from None
        # data: a process that does not answer in time is an error. Commands: rank 0 may evaluate for hours.
        self.data = dist.new_group(timeout=datetime.timedelta(seconds=self.timeout_s), backend="gloo")
        self.control = dist.new_group(timeout=datetime.timedelta(days=30), backend="gloo")
        self.nccl: Any = None  # made when it is needed
        self.is_checked = False  # whether all ranks are known to run the same
        self.received = 0  # bytes
        self.watch = Watch(watch_store, f"{self.prefix}/watch", rank, size, self.timeout_s)
        self.watch.tell()
        self.watch.start()
        atexit.register(self.leave)

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def own_shards(self, shards: int) -> range:
        """The shards of this process: equally many for each."""
        each = shards // self.size
        return range(self.rank * each, (self.rank + 1) * each)

    # ---- tensors ----

    def gather(self, own: Tensor) -> Tensor:
        """(rows, n) of this process -> (size * rows, n) of all, by rank."""
        with self._exchange():
            group, sent = self._prepared(own)
            return self._gather(sent, group).to(own.device)

    def sum(self, own: Tensor) -> Tensor:
        """(rows, n) of this process -> (n,): the sum of the rows of all processes, added in the order of the rows.

        A large sum is divided: every process adds up a part of it, and then all receive the parts. It is the same sum,
        number by number, but each process receives twice the sum instead of all rows.
        """
        count = own.shape[1]
        if self.size <= 2 or count < DIVIDE_FROM:
            return ordered_sum(self.gather(own))
        with self._exchange():
            group, sent = self._prepared(own)
            part = -(-count // self.size)
            padded = sent.new_zeros((sent.shape[0], self.size * part))
            padded[:, :count] = sent
            # by process: the rows of its part
            outgoing = padded.view(-1, self.size, part).transpose(0, 1).contiguous()
            incoming = torch.empty_like(outgoing)
            dist.all_to_all_single(incoming, outgoing, group=group)
            self.received += incoming.numel() * incoming.element_size()
            parts = self._gather(ordered_sum(incoming.view(-1, part)).unsqueeze(0), group)
            return parts.view(-1)[:count].to(own.device)

    def _prepared(self, own: Tensor) -> tuple[Any, Tensor]:
        """The group that exchanges a tensor, and the tensor where that group takes it: on the GPU, or on the host."""
        if own.device.type == "cpu" or os.environ.get("SHOAL_RANKS_SHARE_GPU"):
            return self.data, own.contiguous().cpu()
        if self.nccl is None:
            self.nccl = dist.new_group(timeout=datetime.timedelta(seconds=self.timeout_s), backend="nccl")
        return self.nccl, own.contiguous()

    def _gather(self, own: Tensor, group: Any) -> Tensor:
        everything = own.new_empty((self.size * own.shape[0], *own.shape[1:]))
        gather_into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before 2.13
        gather_into(everything, own, group=group)
        self.received += everything.numel() * everything.element_size()
        return everything

    # ---- commands and objects ----

    def send(self, command: str, payload: Any = None) -> None:
        """Rank 0: tells all others what to do."""
        if self.size == 1:
            return
        packed = b"" if payload is None else pickle.dumps(payload)
        head = command.encode().ljust(_COMMAND_BYTES) + len(packed).to_bytes(8, "little")
        with self._exchange():
            dist.broadcast(_as_tensor(head), 0, group=self.control)
            if packed:
                dist.broadcast(_as_tensor(packed), 0, group=self.control)

    def receive(self) -> tuple[str, Any]:
        """Other ranks: the next command of rank 0, and what belongs to it."""
        with self._exchange():
            head = torch.empty(_COMMAND_BYTES + 8, dtype=torch.uint8)
            dist.broadcast(head, 0, group=self.control)
            words = bytes(head.numpy())
            size, payload = int.from_bytes(words[_COMMAND_BYTES:], "little"), None
            if size:
                packed = torch.empty(size, dtype=torch.uint8)
                dist.broadcast(packed, 0, group=self.control)
                payload = pickle.loads(bytes(packed.numpy()))
        return words[:_COMMAND_BYTES].decode().strip(), payload

    def collect(self, part: Any) -> list[Any]:
        """The objects of all ranks, on rank 0; an empty list on the others."""
        if self.size == 1:
            return [part]
        parts: list[Any] | None = [None] * self.size if self.leads else None
        with self._exchange():
            dist.gather_object(part, parts, 0, group=self.control)
        return parts or []

    def spread(self, parts: list[Any] | None) -> Any:
        """Rank 0 gives one object to each rank."""
        if self.size == 1:
            assert parts is not None
            return parts[0]
        own: list[Any] = [None]
        with self._exchange():
            dist.scatter_object_list(own, parts, 0, group=self.control)
        return own[0]

    # ---- faults ----

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[None]:
        """Waits for other processes inside. If one has failed, the error names it."""
        self.watch.enter()
        try:
            yield
        except RuntimeError as error:
            fault = self.watch.explain()
            late = f"an exchange took more than {self.timeout_s:g} s (--rank-timeout-s), and no process seems to hang."
            lost = late if "imed out" in str(error) else f"the processes lost each other: {_first_line(error)}."
            raise RankError(fault or lost) from None
        finally:
            self.watch.leave()

    @contextlib.contextmanager
    def patient(self) -> Iterator[None]:
        """Inside, this process may take as long as it likes: an evaluation, a checkpoint."""
        self.watch.is_patient += 1
        try:
            yield
        finally:
            self.watch.is_patient -= 1

    def give_up(self, error: BaseException) -> NoReturn:
        """A follower that failed: tells the others why, and ends this process."""
        self.watch.report(error)
        os._exit(1)

    # ---- what outlives a restart ----

    def remember(self, name: str, text: str) -> None:
        """Keeps a text with the launcher, where the processes find it after torchrun has restarted them."""
        with contextlib.suppress(RuntimeError):
            self.store.set(f"shoal/{self.job}/{name}", text)

    def recall(self, name: str) -> str:
        """What `remember` kept; empty if nothing."""
        key = f"shoal/{self.job}/{name}"
        return str(self.store.get(key).decode()) if self.store.check([key]) else ""

    def leave(self) -> None:
        """Ends the exchange. Called at the end of the process."""
        self.watch.stop()
        with contextlib.suppress(Exception):
            dist.destroy_process_group()


def _timeout() -> float:
    try:
        return float(os.environ.get(TIMEOUT_VARIABLE, TIMEOUT_S))
    except ValueError:
        raise ConfigError(f"{TIMEOUT_VARIABLE}={os.environ[TIMEOUT_VARIABLE]!r} must be a number of seconds.") from None


def _as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
