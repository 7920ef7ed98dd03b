"""Learner: an actor in training, with its flat weights, optimizer, random streams and rollout.

The learners of PPO, DQN and PQN derive from it. Also here is what all updates share: schedules of options, gradient
clipping, the running mean and variance of observations. Losses and updates are in the algorithms' files.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor, nn

from shoal.algos.actor import Actor
from shoal.algos.optimizers import make_optimizer
from shoal.algos.rollout import Rollout
from shoal.errors import ConfigError
from shoal.nn.distributions import ActionHead
from shoal.nn.launch import fresh, has_triton, launch
from shoal.schedules import Schedule
from shoal.seeds import stream_seed

# options whose number a CUDA graph can read from the device: runs that use one trainer may differ in them
DEVICE_NUMBERS = (
    "gamma",
    "gae_lambda",
    "q_lambda",
    "clip",
    "value_clip",
    "value_coef",
    "entropy_coef",
    "max_grad_norm",
)
SWITCHES = ("value_clip", "max_grad_norm")  # those that turn something off at 0


class Learner:
    """One policy in training.

    `config` holds the options of the algorithm. One with a schedule is the current number there, or on a GPU a tensor
    with that number, which CUDA graphs read.

    Args:
        config: the options of the algorithm, with schedules.
        actor: the policy that learns.
        rows: rows of the vector env that it plays.
        seed: the seed of the run.
        name: the policy's name in the run; its random streams are derived from seed and name.
        segment: steps of a segment, for recurrent policies.
        mask_size: entries of an action mask; 0: none.
        has_dead_rows: whether agents can be out of the game while their env's episode continues.
        optimizer_options: the optimizer's own options; None: their defaults.
        device: where the policy, the rollout and the optimizer are.
        shards: all shards of the run, seen from the learner's; None: there is one. Each has random streams of its own.
    """

    learned: tuple[str, ...] = ("logits", "value")  # the outputs of a policy that the loss depends on
    fused: Any = None  # GPU kernels that act and learn (fast/), if they cover the network
    plain_reason = ""  # why it learns in torch although fast code covers the network
    shards: Any = None  # all shards of the run (shards.py), if there are several: gradients are added over them
    reward_moments: nn.Module | None = None
    _held: dict[str, Tensor] = {}  # noqa: RUF012 (replaced, never changed): see `hold_numbers`
    _held_by_value = False

    def __init__(
        self,
        config: Any,
        actor: Actor,
        rows: int,
        *,
        seed: int,
        name: str = "policy 0",
        segment: int = 1,
        mask_size: int = 0,
        has_dead_rows: bool = False,
        optimizer_options: Any = None,
        device: Any = "cpu",
        shards: Any = None,
    ) -> None:
        if shards is not None:
            self.shards, name = shards, f"{name} shard {shards.index}"
        self.actor, self.head, self.device = actor, actor.head, torch.device(device)
        self.schedules = schedules_of(config)
        self.scheduled = {name: schedule.at(0.0) for name, schedule in self.schedules.items()}  # the current values
        self._tensors = self._make_tensors()
        self.config: Any = dataclasses.replace(config, **self.scheduled | self._tensors) if self.schedules else config
        self.name = name
        self.streams = {stream: self._make_stream(seed, stream) for stream in ("actions", "minibatches")}
        self.rollout = Rollout(
            actor,
            config.horizon,
            rows,
            segment=segment,
            mask_size=mask_size,
            has_dead_rows=has_dead_rows,
            device=self.device,
        )
        self.weights = flatten([p for p in actor.policy.parameters() if p.requires_grad])
        actor.check_learns(self.learned)
        optimizer = getattr(config, "optimizer", "adam")
        self.optimizer = make_optimizer(optimizer, self.weights, actor.policy, self.config, optimizer_options)

    def _make_stream(self, seed: int, name: str) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(stream_seed(seed, self.name, name))

    # ---- several runs of equal shape (train/swap.py) ----

    def hold_numbers(self, always: bool = False) -> None:
        """Makes the numbers of DEVICE_NUMBERS tensors on a GPU, so that a captured update reads them at every replay.

        They are float64, as Python's numbers are: torch rounds both to float32 where they meet a float32 tensor, so an
        update computes the same bits. Kernels with a table of their own (`fused.own_numbers`) need no tensor. A CPU
        captures nothing: `always` is for a test of this.
        """
        if self.device.type == "cpu" and not always:
            return
        # without Triton the sums over time need Python's numbers: graphs are captured anew where they differ
        self._held_by_value = self.device.type != "cpu" and not has_triton()
        own = getattr(self.fused, "own_numbers", ())
        names = [name for name in DEVICE_NUMBERS if name not in own and self._is_number(name)]
        if not self._held_by_value:
            self._held = {
                name: torch.tensor(getattr(self.config, name), dtype=torch.float64, device=self.device)
                for name in names
            }
            self.config = dataclasses.replace(self.config, **self._held)

    def _is_number(self, name: str) -> bool:
        value = getattr(self.config, name, None)
        return isinstance(value, float | int) and (name not in SWITCHES or is_on(value))

    def set_config(self, config: Any) -> bool:
        """Takes the numbers of another run of equal shape. False: captured graphs hold those of the last one."""
        before = self.config
        self.schedules = schedules_of(config)
        self.scheduled = {name: schedule.at(0.0) for name, schedule in self.schedules.items()}
        for name, tensor in self._tensors.items():
            tensor.fill_(self.scheduled[name])
        for name, tensor in self._held.items():
            tensor.fill_(getattr(config, name))
        self.config = dataclasses.replace(config, **self.scheduled | self._tensors | self._held)
        if hasattr(self.fused, "set_numbers"):
            self.fused.set_numbers()
        return not self._held_by_value or all(
            getattr(before, name, None) == getattr(self.config, name, None) for name in DEVICE_NUMBERS
        )

    def begin(self, seed: int) -> None:
        """Starts anew with new weights, which the actor has: random streams, and what is copied from the weights."""
        for name, stream in self.streams.items():  # graphs hold the generators: their states are replaced
            stream.set_state(self._make_stream(seed, name).get_state())
        self.rollout.reset_state()

    # ---- progress of the run ----

    def set_progress(self, done: float) -> float:
        """Sets what is scheduled by the finished fraction of the run (0 to 1); returns the learning rate."""
        if self.schedules:
            self._follow_schedules(done)
        rate: float = self.config.learning_rate
        if "learning_rate" not in self.schedules:
            rate *= schedule_factor(self.config.schedule, done)
        self.optimizer.set_rate(rate)
        return rate

    def _make_tensors(self) -> dict[str, Tensor]:
        """On a GPU: a tensor for each option with a schedule. A captured update reads it at every replay.

        The learning rate has none: the optimizer has its own.
        """
        if self.device.type == "cpu":
            return {}
        values = {name: value for name, value in self.scheduled.items() if name != "learning_rate"}
        return {name: torch.tensor(value, dtype=torch.float32, device=self.device) for name, value in values.items()}

    def _follow_schedules(self, done: float) -> None:
        self.scheduled = {name: schedule.at(done) for name, schedule in self.schedules.items()}
        for name, tensor in self._tensors.items():
            tensor.fill_(self.scheduled[name])
        self.config = dataclasses.replace(self.config, **self.scheduled | self._tensors)

    @property
    def random_entropy(self) -> float:
        """Of a uniformly random policy; 0 if unknown: with action masks, with Box actions, in Q-learning."""
        head = self.head
        if self.rollout.masks is not None or not isinstance(head, ActionHead) or head.has_box:
            return 0.0
        return sum(math.log(part.count) for part in head.parts)

    def schedule_metrics(self) -> dict[str, float]:
        """The current values of options with a schedule, as metrics. The learning rate is a metric of every run."""
        return {f"schedule/{name}": value for name, value in self.scheduled.items() if name != "learning_rate"}

    @property
    def has_finished(self) -> bool:
        """Whether the algorithm's own limit ends the run before `total_steps`."""
        return False

    # ---- checkpoints ----

    def state_tensors(self) -> dict[str, Tensor]:
        """The checkpoint's tensors besides weights and random streams, independent of the number of rows."""
        tensors = {f"optimizer.{name}": value for name, value in self.optimizer.state.items()}
        if self.reward_moments is not None:
            tensors |= {f"reward_norm.{name}": value for name, value in self.reward_moments.state_dict().items()}
        return tensors

    def row_tensors(self) -> dict[str, Tensor]:
        """Tensors of the checkpoint with an entry for each row: not restored if the number of rows has changed."""
        return {f"recurrent.{k}": part for k, part in enumerate(self.rollout.state)}

    def check_restored(self) -> None:
        """Raises CheckpointError if restored tensors hold impossible values."""

    def restart_episodes(self) -> None:
        """Called when all envs start new episodes: ends every unfinished episode."""
        self.rollout.reset_state()


def flatten(parameters: list[Any]) -> Any:
    """Moves all parameters and their gradients into one flat parameter, and returns it.

    The given parameters become views of it. Clipping and the optimizer step then take a few operations in all instead
    of a few for each layer.
    """
    if not parameters or len({(p.dtype, p.device) for p in parameters}) > 1:
        raise ConfigError(
            f"the policy has {len(parameters)} trainable parameters on {_kinds(parameters)}. "
            "It needs at least one, and all of them in one dtype on one device."
        )
    flat = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in parameters]))
    flat.grad = torch.zeros_like(flat)
    start = 0
    for p in parameters:
        span = slice(start, start + p.numel())
        p.data, p.grad = flat.data[span].view_as(p), flat.grad[span].view_as(p)
        start += p.numel()
    return flat


def _kinds(parameters: list[Any]) -> str:
    return ", ".join(sorted({f"{p.device} ({p.dtype})" for p in parameters})) or "no device"


def schedules_of(config: Any) -> dict[str, Schedule]:
    """The options that have a schedule in place of a number."""
    return {name: value for name, value in vars(config).items() if isinstance(value, Schedule)}


def is_on(option: Any) -> bool:
    """Whether an option is not 0, which would turn something off. A tensor has a schedule: it is never 0."""
    return isinstance(option, Tensor) or bool(option)


def schedule_factor(schedule: str, done: float) -> float:
    """The factor of the learning rate after the fraction `done` (0 to 1) of the run."""
    factors = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1.0 + math.cos(math.pi * done))}
    return max(0.0, factors[schedule])


def clip_gradient(gradient: Tensor, limit: Any) -> Tensor:
    """Scales the gradient down to the norm `limit` (0: never), in place; returns its norm before."""
    norm = torch.linalg.vector_norm(gradient)
    if is_on(limit):
        if isinstance(limit, Tensor) and limit.dtype == torch.float64:  # in place of a number: as torch divides one
            gradient *= ((norm + 1e-6).reciprocal() * limit.to(norm.dtype)).clamp(max=1.0)
        else:
            gradient *= (limit / (norm + 1e-6)).clamp(max=1.0)
    return norm


def random_order(count: int, generator: torch.Generator) -> Tensor:
    """0 .. count - 1 in random order."""
    if generator.device.type != "cuda":
        return torch.randperm(count, generator=generator)
    if not has_triton():  # a CUDA graph cannot capture randperm
        return torch.rand(count, device=generator.device, generator=generator).argsort()
    keys = torch.randint(0, 1 << 32, (8,), device=generator.device, generator=generator)
    return ordered_by(keys, count)


def ordered_by(keys: Tensor, count: int) -> Tensor:
    """0 .. count - 1 in an order that eight random 32-bit numbers choose (on a GPU)."""
    from shoal.algos.fast import kernels

    order, part = fresh(keys, count), 1024
    bits = max(1, (count - 1).bit_length())
    launch(kernels.shuffle, (-(-count // part),), keys, order, count, BITS=bits, PART=part, num_warps=4)
    return order


@torch.no_grad()
def update_obs_moments(learner: Learner) -> None:
    """Adds the rollout's observations to their running mean and variance. The next rollout is normalized by them."""
    rollout, counted = learner.rollout, learner.rollout.counted()
    for key, moments in learner.actor.moments.items():
        obs = rollout.obs[int(key)][:-1]
        moments.update(obs.flatten(0, 1), None if counted is None else counted.flatten(), learner.shards)
