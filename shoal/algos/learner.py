"""Learner: an actor with what trains it: flat weights, an optimizer, random streams, a rollout to learn from.

PPO, DQN and PQN derive theirs from it. What every update shares is here too: schedules, clipping, observation moments.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from shoal.algos.actor import Actor
from shoal.algos.optimizers import make_optimizer
from shoal.algos.rollout import Rollout
from shoal.errors import ConfigError
from shoal.seeds import stream_seed


class Learner:
    """One policy in training.

    Args:
        config: the options of the algorithm.
        actor: the policy that learns.
        rows: rows of the vector env that it plays.
        seed: of the run.
        name: of the policy in the run; its random streams are derived from seed and name.
        segment: steps of a segment, for recurrent policies.
        mask_size: entries of an action mask; 0: none.
        has_dead_rows: whether some rows may be out of the game.
        optimizer_options: the optimizer's own options; None: their defaults.
        device: where it learns.
    """

    fused: Any = None  # kernels that act and learn on a GPU (fast/), where they cover the network
    reward_moments: nn.Module | None = None

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
    ) -> None:
        self.config, self.actor, self.head, self.device = config, actor, actor.head, torch.device(device)
        self.streams = {
            stream: torch.Generator(self.device).manual_seed(stream_seed(seed, name, stream))
            for stream in ("actions", "minibatches")
        }
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
        optimizer = getattr(config, "optimizer", "adam")
        self.optimizer = make_optimizer(optimizer, self.weights, actor.policy, config, optimizer_options)

    # ---- where the run stands ----

    def set_progress(self, done: float) -> float:
        """Sets what depends on `done` (0 to 1), the part of the run that is done; returns the learning rate."""
        rate: float = self.config.learning_rate * schedule_factor(self.config.schedule, done)
        self.optimizer.set_rate(rate)
        return rate

    @property
    def has_finished(self) -> bool:
        """Whether a limit of its own ends the run before `total_steps`."""
        return False

    # ---- checkpoints ----

    def state_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds besides weights and random streams, whatever the number of rows."""
        tensors = {f"optimizer.{name}": value for name, value in self.optimizer.state.items()}
        if self.reward_moments is not None:
            tensors |= {f"reward_norm.{name}": value for name, value in self.reward_moments.state_dict().items()}
        return tensors

    def row_tensors(self) -> dict[str, Tensor]:
        """The same, by row: a run that is resumed with another number of rows starts without it."""
        return {f"recurrent.{k}": part for k, part in enumerate(self.rollout.state)}

    def check_restored(self) -> None:
        """Raises CheckpointError where restored tensors hold values that cannot be."""

    def restart_episodes(self) -> None:
        """The envs start new episodes: nothing that was collected continues."""
        self.rollout.reset_state()


def flatten(parameters: list[Any]) -> Any:
    """Moves all parameters, and their gradients, into one piece of memory, and returns it as one parameter.

    The policy's own become views of it. Gradients are then clipped and weights moved by a handful of operations in all,
    not for each layer.
    """
    if not parameters or len({(p.dtype, p.device) for p in parameters}) > 1:
        raise ConfigError("the policy has no parameters, or parameters of several dtypes or devices.")
    whole = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in parameters]))
    whole.grad = torch.zeros_like(whole)
    at = 0
    for p in parameters:
        part = slice(at, at + p.numel())
        p.data, p.grad = whole.data[part].view_as(p), whole.grad[part].view_as(p)
        at += p.numel()
    return whole


def schedule_factor(schedule: str, done: float) -> float:
    """The factor of the learning rate when `done` (0 to 1) of the run is done."""
    factors = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1.0 + math.cos(math.pi * done))}
    return max(0.0, factors[schedule])


def clip_gradient(gradient: Tensor, limit: float) -> Tensor:
    """Scales the gradient down to the norm `limit` (0: never), in place, and returns the norm that it had."""
    norm = torch.linalg.vector_norm(gradient)
    if limit:
        gradient *= (limit / (norm + 1e-6)).clamp(max=1.0)
    return norm


def random_order(count: int, generator: torch.Generator) -> Tensor:
    """0 .. count - 1 in random order."""
    if generator.device.type == "cuda":  # randperm cannot be captured in a graph
        return torch.rand(count, device=generator.device, generator=generator).argsort()
    return torch.randperm(count, generator=generator)


@torch.no_grad()
def update_obs_moments(learner: Learner) -> None:
    """Adds the rollout's observations to the running moments: the next rollout is scaled by them."""
    rollout, counted = learner.rollout, learner.rollout.counted()
    for key, moments in learner.actor.moments.items():
        seen = rollout.obs[int(key)][:-1]
        moments.update(seen.flatten(0, 1), None if counted is None else counted.flatten())
