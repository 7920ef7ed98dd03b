"""A trainer that several runs of equal shape use one after the other: its state is taken out, put in, or made anew.

What costs time at the start of a run are imports, compiled kernels, CUDA graphs and buffers. Runs that differ in their
seed and in FREE options only need the same ones. A run's state is what a checkpoint holds (`Trainer.state`), here as
copies in memory: tensors stay on the device.

    restart   as `Trainer(env, options)` would start it, to the bit
    take      copies the state of the run out of the trainer
    put       copies a state back
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shoal.algos.learner import DEVICE_NUMBERS, SWITCHES
from shoal.errors import ConfigError
from shoal.registry import is_native
from shoal.schedules import Schedule
from shoal.seeds import stream_seed
from shoal.train import init as initial_weights
from shoal.train.envs import env_seed
from shoal.train.graphs import copy_of_state
from shoal.train.options import Options
from shoal.train.players import make_actors
from shoal.train.sharded import make_trainer
from shoal.train.trainer import Trainer

Files = dict[str, dict[str, Tensor]]

# options of --train.* that only the host reads, once per iteration
OF_HOST = ("total_steps", "num_iterations", "schedule", "learning_rate")
# options of --train.* in which runs of equal shape may differ
FREE = (*OF_HOST, *DEVICE_NUMBERS)
# tables and options that a trainer does not read, or reads only when it starts
UNREAD = ("seed", "eval", "save", "callback", "init")


def shape_of(options: Options) -> str:
    """Equal for runs that can use one trainer: all options but FREE ones and those that trainers do not read.

    A number that turns something off at 0, and one with a schedule, is of another kind.
    """
    train = options.train
    kinds = {name: _kind_of(name, getattr(train, name)) for name in DEVICE_NUMBERS if hasattr(train, name)}
    blank = {name: 0 for name in FREE if hasattr(train, name)}
    default = Options()
    same = {name: getattr(default, name) for name in UNREAD}
    return repr((kinds, dataclasses.replace(options, train=dataclasses.replace(train, **blank), **same)))


def _kind_of(name: str, value: Any) -> str:
    if isinstance(value, Schedule):
        return "schedule"
    return "off" if name in SWITCHES and not value else "number"


def not_shared(env: Any, options: Options, policy: Any = None, reward: Any = None) -> str:
    """Why runs with these options cannot use one trainer; empty if they can."""
    reasons = {
        "a Python env, which cannot give its state": not is_native(env),
        "a league": options.league.on or options.opponents == "pool",
        "a curriculum": bool(options.curriculum),
        "a reward of your own": bool(reward is not None or options.reward),
        "a policy that is given as one module; give a class or a function that makes it": isinstance(policy, nn.Module),
        "agents of your own as opponents": ":" in options.opponents,
        f"--train.shards {getattr(options.train, 'shards', 0)}": getattr(options.train, "shards", 0) > 1,
        f"--vec.surplus-envs {options.vec.surplus_envs}": bool(options.vec.surplus_envs),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


@dataclass
class Snapshot:
    """A run's state in memory: the tensors of a checkpoint, its counters, and what the trainer needs besides."""

    files: Files
    meta: dict[str, Any]
    options: Options
    exact: bool
    init: Any

    @property
    def num_bytes(self) -> int:
        """The size of its tensors."""
        return sum(value.nbytes for part in self.files.values() for value in part.values())


def take(trainer: Trainer) -> Snapshot:
    """A copy of the run that the trainer holds. Its metrics must have been drained: they are not part of it."""
    trainer.wait()
    meta = {**trainer.counters(), "step": trainer.step}
    return Snapshot(copy_of_state(trainer), meta, trainer.options, trainer.exact, trainer.init)


def put(trainer: Trainer, snapshot: Snapshot) -> None:
    """Makes a trainer continue a run of equal shape that was taken out of it."""
    _set_options(trainer, snapshot.options)
    trainer.restore(snapshot.files, snapshot.meta)
    trainer.exact, trainer.init = snapshot.exact, snapshot.init
    _forget_metrics(trainer)


def _forget_metrics(trainer: Trainer) -> None:
    """Clears the sums since the last log."""
    trainer._ended.clear()
    trainer.shaping.ended.clear()
    for tally in trainer._tallies:
        tally.drain()
    trainer.collector.times.drain()
    trainer.vec.drain_stats()
    trainer._updates, trainer._learn_s = 0, 0.0


def _set_options(trainer: Trainer, options: Options) -> None:
    """Gives the trainer and its learners the options of another run of equal shape."""
    trainer.options = options
    trainer.first_seed = env_seed(options.seed)
    for learner in trainer.learners:
        if not learner.set_config(options.train):
            trainer.forget_graphs()


class Reusable:
    """A trainer that can be started again and again. `initial` are the tensors before its first iteration."""

    def __init__(self, trainer: Trainer, shape: str, policy: Any = None) -> None:
        self.trainer, self.shape, self.policy = trainer, shape, policy
        self.given = trainer.options  # with what building the trainer has settled
        self.initial = {
            name: {k: None if not value.any() else value.clone() for k, value in part.items()}
            for name, part in trainer._tensors().items()
        }
        for learner in trainer.learners:
            learner.hold_numbers()

    def restart(self, options: Options, *, is_resumed: bool = False) -> Trainer:
        """The trainer as new, with the options of a run of the same shape."""
        trainer = self.trainer
        settled = {name: getattr(self.given, name) for name in ("vec", "nn", "opponents", "league")}
        options = dataclasses.replace(options, train=options.train.resolve(trainer.num_rows), **settled)
        trainer.wait()
        _set_options(trainer, options)
        trainer.step = trainer.iteration = 0
        trainer.wall_s, trainer.is_resumed, trainer.exact = 0.0, is_resumed, True
        for name, tensors in trainer._tensors().items():
            _fill(tensors, self.initial[name])
        played = [seat.role for seat in trainer.seats]
        fresh = make_actors(played, options, self.policy, "cpu", trainer.agents)
        for actor, new in zip(trainer.actors, fresh):
            actor.load_state_dict(new.state_dict())
        has_init = bool(options.init) and not is_resumed
        trainer.init = initial_weights.load(trainer.actors, options) if has_init else None
        for learner in trainer.learners:
            learner.begin(options.seed)
        for seat in trainer.frozen:
            seed = stream_seed(options.seed, "opponent", *(seat.role.agents or ()), "actions")
            seat.stream.set_state(torch.Generator(seat.stream.device).manual_seed(seed).get_state())
            seat.rollout.reset_state()
        trainer.param_schedules.set(0.0)
        trainer._started = False
        _forget_metrics(trainer)
        return trainer

    def close(self) -> None:
        """Closes the trainer."""
        self.trainer.is_kept = False
        self.trainer.close()


def _fill(tensors: Mapping[str, Tensor], values: Mapping[str, Tensor | None]) -> None:
    for name, tensor in tensors.items():
        value = values.get(name)
        if value is None:
            tensor.zero_()
        else:
            tensor.copy_(value)


class TrainerPool:
    """Keeps the trainer of the last run, and starts it again for the next one if that has the same shape."""

    def __init__(self) -> None:
        self.kept: Reusable | None = None
        self.made = self.reused = 0

    def get(
        self, env: Any, options: Options, *, policy: Any = None, reward: Any = None, is_resumed: bool = False
    ) -> Trainer:
        """A trainer for a new run: a new one, or the kept one, started again."""
        if reason := not_shared(env, options, policy, reward):
            raise ConfigError(f"a population does not support {reason}.")
        shape = f"{env!r} {policy!r} {shape_of(options)}"
        if self.kept is not None and (self.kept.shape != shape or self.kept.trainer.is_altered):
            self.clear()
        if self.kept is not None:
            self.reused += 1
            return self.kept.restart(options, is_resumed=is_resumed)
        trainer = make_trainer(env, options, policy=policy, reward=reward, is_resumed=is_resumed)
        self.made += 1
        trainer.is_kept = True
        self.kept = Reusable(trainer, shape, policy)
        return trainer

    def clear(self) -> None:
        """Closes the kept trainer."""
        if self.kept is not None:
            kept, self.kept = self.kept, None
            kept.close()
