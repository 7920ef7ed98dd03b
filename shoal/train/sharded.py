"""ShardedTrainer: trains a run in shards (algos/shards.py), in this process alone or together with others (ranks/).

Every shard has a `Trainer` of its own: envs, rollout, random streams, and a copy of the weights. They collect one after
the other, and learn in turns: all wait for each other where an update exchanges something. The shards of other
processes do the same at the same time.

    rank 0      ShardedTrainer, which a session drives as it drives a Trainer; each call is sent to the others
    others      `follow`: does what rank 0 says, until it says `close`

Evaluation, logs, checkpoints and callbacks are rank 0's. A checkpoint has one record for each shard, so a run can be
resumed with any number of processes that divides the number of shards.
"""

from __future__ import annotations

import hashlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
from torch import Tensor

from shoal.algos.shards import Exchange
from shoal.errors import RankError, TrainingError
from shoal.spec import Array
from shoal.train import restoring, shard_options
from shoal.train.health import gpu_errors_explained
from shoal.train.options import Options
from shoal.train.ranks.timing import ExchangeTime, time_sums
from shoal.train.ranks.world import World
from shoal.train.trainer import Trainer

Files = dict[str, dict[str, Tensor]]
# an evaluation may wait for a while, but signals end a run at once: only rank 0 decides when
LEFT_TO_RANK_0 = [signal.SIGINT, signal.SIGTERM, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else [])]


def make_trainer(env: Any, options: Options, *, world: World | None = None, **arguments: Any) -> Trainer:
    """The trainer of a run: a plain one, or with `--train.shards` one for all shards. Other arguments: `Trainer`.

    With several processes only rank 0 calls it. The others call `follow`.
    """
    processes = 1 if world is None else world.size
    shards = shard_options.count_of(options, processes)
    shard_options.check_processes(shards, processes)
    options = shard_options.with_count(options, shards)
    if shards == 1:
        return Trainer(env, options, **arguments)
    return ShardedTrainer(env, options, world=world, **arguments)


class ShardedTrainer(Trainer):
    """All shards of a run, seen from rank 0. As a Trainer it is that of the first shard of its process."""

    def __init__(
        self,
        env: Any,
        options: Options,
        *,
        world: World | None = None,
        policy: Any = None,
        reward: Any = None,
        is_resumed: bool = False,
        leads: bool = True,
    ) -> None:
        count = shard_options.count_of(options)
        own = range(count) if world is None else world.own_shards(count)
        self.world, self.leads = world, leads
        self.exchange = Exchange(count, own, world)
        views = self.exchange.shards()
        given: dict[str, Any] = {"policy": policy, "reward": reward, "is_resumed": is_resumed}
        shard_options.check(options, views[0])
        shard_options.of_one(env, options, count)  # raises, before anything starts, if the envs do not divide
        if self.leads and world is not None:
            world.send("build", {"env": env, "options": options, "is_resumed": is_resumed})
        self.others: list[Trainer] = []
        super().__init__(env, options, shards=views[0], **given)
        try:
            for view in views[1:]:
                self.others.append(Trainer(env, options, shards=view, **given))
        except BaseException:
            self._close_own()
            raise
        self._events: list[str] = []
        self._returns: Array | None = None

    @property
    def own(self) -> list[Trainer]:
        """The trainers of this process's shards. The first is this one; methods of a single shard are Trainer's."""
        return [self, *self.others]

    def _tell(self, command: str, payload: Any = None) -> None:
        if self.leads and self.world is not None:
            self.world.send(command, payload)

    @contextmanager
    def _together(self) -> Iterator[None]:
        """What all processes do inside. If it fails here, the others do not listen any more."""
        try:
            yield
        except BaseException:
            self.is_broken = True
            raise

    def patient(self) -> AbstractContextManager[None]:
        """Lets the other processes wait without a limit."""
        return nullcontext() if self.world is None else self.world.patient()

    # ---- one iteration ----

    def start(self, seed: Any = None) -> None:
        """Resets the envs of this process's shards."""
        super().start(seed)
        for trainer in self.others:
            trainer.start(seed)

    def iterate(self) -> None:
        """One iteration of all shards."""
        self._tell("iterate")
        before = time.perf_counter()
        with self._together(), gpu_errors_explained(self.options):
            if not self._started:  # before graphs are captured: capturing steps the envs, and puts them back
                self.start()
            for trainer in self.own:
                if trainer.on_gpu and not trainer._is_captured:
                    trainer.capture()
                    before = time.perf_counter()  # compile and capture time is not counted as training
            self.collect()
            self.learn()
        self.wait()
        self.wall_s += time.perf_counter() - before

    def wait(self) -> None:
        """Waits until the GPU is idle."""
        wall_s = self.wall_s
        super().wait()
        self.wall_s = wall_s  # `iterate` counts it

    def collect(self) -> None:
        """Fills the rollouts of this process's shards, one after the other."""
        super().collect()
        for trainer in self.others:
            trainer.collect()

    def learn(self) -> None:
        """Updates the weights, which all shards do in turns."""
        updates: list[Callable[[], Any]] = [super().learn, *(trainer.learn for trainer in self.others)]
        self.exchange.run(updates)

    def set_env_params(self, values: Mapping[str, Any]) -> None:
        """Changes params of all envs. An array of values has one for each env of the run."""
        self._tell("set_env_params", dict(values))
        for trainer in self.own:
            lo = trainer.first_env
            part = {name: _part(value, lo, trainer.vec.num_envs, self.num_envs) for name, value in values.items()}
            Trainer.set_env_params(trainer, part)

    # ---- metrics ----

    def drain(self) -> dict[str, float]:
        """Means and sums over all shards since the last call."""
        self._tell("drain")
        own = []
        for trainer in self.own:
            record = Trainer.drain(trainer)
            own.append((record, trainer.vec.drain_events(), trainer.vec.drained_returns))
        with self._together():
            parts = self._from_all((own, self.exchange.drain()))
        if not parts:
            return {}
        shards = [shard for part, _ in parts for shard in part]
        self._events += [event for _, events, _ in shards for event in events]
        returns = [returns for _, _, returns in shards if returns is not None]
        self._returns = np.concatenate(returns) if returns else None
        record = merge_records([record for record, _, _ in shards])
        times = [_process_times([record for record, _, _ in part]) for part, _ in parts]
        record |= {name: sum(part[name] for part in times) / len(times) for name in times[0]}
        record["wall_s"] = self.wall_s
        exchanged = parts[0][1]  # by rank 0
        names = {"exchanges": "calls", "exchange_bytes": "bytes", "exchange_s": "seconds"}
        return record | {f"ranks/{name}": exchanged[kind] for name, kind in names.items()}

    def drain_events(self) -> list[str]:
        """What happened to the envs of all shards, as of the last `drain`."""
        events, self._events = self._events, []
        return events

    @property
    def drained_returns(self) -> Array | None:
        """The returns of the single episodes of the last `drain`, in the order of the shards."""
        return self._returns

    def _from_all(self, part: Any) -> list[Any]:
        """The parts of all processes, on rank 0; an empty list on the others."""
        return [part] if self.world is None else self.world.collect(part)

    def time_exchanges(self) -> list[ExchangeTime]:
        """The seconds of exchanges with the other processes, alone; empty if there are none."""
        self._tell("time_exchanges")
        with self._together():
            return [] if self.world is None else time_sums(self.world, self.device)

    # ---- checkpoints ----

    def state(self) -> Files:
        """The checkpoint of the whole run, on rank 0: what the shards share, and a record for each."""
        self._tell("state")
        own = []
        for trainer in self.own:
            files = Trainer.state(trainer)
            shared = trainer._state_tensors()
            record = {name: value.cpu() for name, value in files["state"].items() if name not in shared}
            own.append((record, _digest({**files["weights"], **shared})))
        with self._together():
            parts = self._from_all(own)
        if not parts:
            return {}
        shards = [shard for part in parts for shard in part]
        _check_equal([digest for _, digest in shards])
        state = restoring.merge_shards(self._state_tensors(), [record for record, _ in shards])
        return {"weights": self.weights(), "state": state}

    def restore(self, files: Mapping[str, Mapping[str, Tensor]], meta: Mapping[str, Any]) -> None:
        """Continues from a checkpoint of all shards, whatever the number of processes that wrote it."""
        restoring.check_shards(meta, self.num_shards)
        self._tell("restore")
        parts = None
        if self.leads:
            each = len(self.exchange.own)
            records = [restoring.of_shard(files["state"], k) for k in range(self.num_shards)]
            chosen = [records[k : k + each] for k in range(0, self.num_shards, each)]
            parts = [(dict(files["weights"]), part, dict(meta)) for part in chosen]
        with self._together():
            part = parts[0] if self.world is None and parts is not None else self._spread(parts)
            self._restore_own(*part)

    def _spread(self, parts: list[Any] | None) -> Any:
        assert self.world is not None
        return self.world.spread(parts)

    def _restore_own(self, weights: Any, records: Sequence[Any], meta: Mapping[str, Any]) -> None:
        for trainer, record in zip(self.own, records):
            Trainer.restore(trainer, {"weights": weights, "state": record}, meta)
        self.exact = all(trainer.exact for trainer in self.own)
        self.exact = all(self._from_all(self.exact))  # on rank 0: of all processes

    def close(self) -> None:
        """Closes the envs of all shards."""
        if not self.is_broken:
            self._tell("close")
        self._close_own()

    def _close_own(self) -> None:
        for trainer in self.own:
            Trainer.close(trainer)


# ---- the other ranks ----


def follow(world: World, policy: Any = None, reward: Any = None) -> str:
    """Does what rank 0 says, until the run ends. Returns the folder of the run, as rank 0 names it."""
    in_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, signal.SIG_IGN) for number in LEFT_TO_RANK_0} if in_main else {}
    try:
        return _serve(world, policy, reward)
    except RankError as error:  # rank 0 reports what it knows; if it is gone itself, one of the others does
        if world.rank == 1 and "rank 0 " in str(error):
            print(f"shoal: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    except BaseException as error:
        world.give_up(error)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _serve(world: World, policy: Any, reward: Any) -> str:
    trainer: ShardedTrainer | None = None
    while True:
        command, payload = world.receive()
        if command == "end":
            return str(payload)
        if command == "build":
            trainer = ShardedTrainer(
                payload["env"],
                payload["options"],
                world=world,
                policy=policy,
                reward=reward,
                is_resumed=payload["is_resumed"],
                leads=False,
            )
            continue
        assert trainer is not None, command
        if command == "set_env_params":
            trainer.set_env_params(payload)
        elif command == "restore":
            trainer._restore_own(*world.spread(None))
        else:
            getattr(trainer, command)()


# ---- many shards as one ----


def merge_records(records: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The metrics of all shards as one: episodes are weighted by their number, the others equally."""
    merged = dict(records[0])
    episodes = [float(record.get("episode/n", 0.0)) for record in records]
    for name in dict.fromkeys(name for record in records for name in record):
        having = [(record[name], count) for record, count in zip(records, episodes) if name in record]
        values = [value for value, _ in having]
        if name in ("iteration", "step", "wall_s"):
            merged[name] = values[0]
        elif name == "episode/n":
            merged[name] = sum(values)
        elif name.startswith("episode/") and name.endswith(("_min", "_max")):
            merged[name] = min(values) if name.endswith("_min") else max(values)
        elif name.startswith("episode/"):
            total = sum(count for _, count in having)
            weighted = sum(value * count for value, count in having)
            merged[name] = weighted / total if total else sum(values) / len(values)
        else:
            merged[name] = sum(values) / len(values)
    return merged


def _process_times(records: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Seconds of one process by activity: its shards collect one after the other, and learn in turns."""
    names = [name for name in records[0] if name.startswith("time/")]
    return {
        name: (max if name == "time/learn" else math.fsum)(record.get(name, 0.0) for record in records)
        for name in names
    }


def _part(value: Any, lo: int, count: int, total: int) -> Any:
    """A shard's part of an array with an entry for each env; other values as they are."""
    is_by_env = isinstance(value, (np.ndarray, list, tuple)) and len(value) == total
    return value[lo : lo + count] if is_by_env else value


def _digest(tensors: Mapping[str, Tensor]) -> str:
    sha = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        sha.update(name.encode() + value.detach().cpu().contiguous().flatten().view(-1).numpy().tobytes())
    return sha.hexdigest()


def _check_equal(digests: Sequence[str]) -> None:
    """Raises if the shards do not have the same weights. It would be a fault of Shoal, or of a machine."""
    if wrong := [k for k, digest in enumerate(digests) if digest != digests[0]]:
        raise TrainingError(
            f"shards {', '.join(map(str, wrong))} have other weights than shard 0. Machines of different kinds (CPU or "
            "GPU models, library versions), and policies with dropout or batch statistics, do not compute the same in "
            "all shards. Use equal machines and a policy without these, or --train.shards 1."
        )
