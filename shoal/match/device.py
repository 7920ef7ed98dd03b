"""Plays the games of one seating with envs and networks on a GPU. The same games count as in shoal/evaluate.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.algos.roles import Role
from shoal.evaluate import MAX_STEPS
from shoal.nn.state import clear_state
from shoal.player import PolicyPlayer
from shoal.spec import Array, structure

CHECK_EVERY = 16  # steps between two looks at how many games have ended: looking waits for the GPU


@torch.inference_mode()
def play_on_device(
    vec: Any, player: PolicyPlayer | None, games: int, seed: int, progress: Callable[[int], None] | None = None
) -> tuple[Array, Array, int]:
    """((games, agents) returns, (games,) lengths, games that were stopped at MAX_STEPS) of native envs on a GPU.

    Every env plays its first games up to a fixed number. `player` has the actors of agents that are not robots; their
    networks are moved to the device.
    """
    envs, agents, device = vec.num_envs, vec.agents_per_env, vec.device
    used = min(games, envs)
    numbers = torch.arange(envs, device=device)
    quota = torch.where(numbers < used, games // used + (numbers < games % used).long(), 0)
    results = torch.zeros(envs, -(-games // used), agents, dtype=torch.float64, device=device)
    lengths = torch.zeros(results.shape[:2], dtype=torch.int64, device=device)
    played, ticks = torch.zeros_like(quota), torch.zeros_like(quota)
    totals = torch.zeros(envs, agents, dtype=torch.float64, device=device)
    cut_games = torch.zeros((), dtype=torch.int64, device=device)
    vec.reset(seed=seed)
    parts = [] if player is None else _parts(vec, player)
    actions = torch.zeros_like(vec.actions)
    may_be_cut, steps = not 0 < vec.time_limit <= MAX_STEPS, 0
    while True:
        for part in parts:
            part.act(actions)
        alive = vec.tensors["alive"].clone()
        vec.launch_step(actions=actions)
        tensors = vec.tensors
        done = tensors["done"].bool()
        totals += tensors["rewards"].view(envs, agents)
        ticks += 1
        over = (done | ~alive.bool()).view(envs, agents).all(1)
        cut = ~over & (ticks >= MAX_STEPS) & (played < quota)
        ended = (over | cut) & (played < quota)
        cut_games += cut.sum()
        place = played.clamp(max=results.shape[1] - 1)
        results[numbers, place] = torch.where(ended[:, None], totals, results[numbers, place])
        lengths[numbers, place] = torch.where(ended, ticks, lengths[numbers, place])
        played += ended
        fresh = over | cut
        totals.masked_fill_(fresh[:, None], 0.0)
        ticks.masked_fill_(fresh, 0)
        starts = done | ~alive.bool() | ~tensors["alive"].bool() | fresh.repeat_interleave(agents)
        for part in parts:
            part.clear(starts)
        steps += 1
        if may_be_cut and steps >= MAX_STEPS and bool(cut.any()):
            vec.reset(options={"reset_mask": cut.cpu().numpy()})
        if steps % CHECK_EVERY == 0:
            count = int(played.sum())
            if progress:
                progress(count)
            if count >= games:
                break
    keep = torch.arange(results.shape[1], device=device)[None, :] < quota[:, None]
    return np.asarray(results[keep].cpu()), np.asarray(lengths[keep].cpu()), int(cut_games)


def _parts(vec: Any, player: PolicyPlayer) -> list[_Part]:
    generator = torch.Generator(vec.device).manual_seed(player.generator.initial_seed())
    return [
        _Part(vec, actor, role, is_greedy, generator)
        for actor, role, is_greedy in zip(player.actors, player.roles, player.greedy)
    ]


class _Part:
    """An actor and the agents that it plays."""

    def __init__(self, vec: Any, actor: Any, role: Role, is_greedy: bool, generator: torch.Generator) -> None:
        self.vec, self.actor, self.role, self.is_greedy, self.generator = vec, actor, role, is_greedy, generator
        self.envs, self.agents = vec.num_envs, vec.agents_per_env
        actor.to(vec.device)
        actor.head.to(vec.device)
        played = role.agents if role.agents is not None else range(self.agents)
        self.index = torch.tensor(list(played), device=vec.device)
        self.rows = self.envs * len(self.index)
        self.state = actor.initial_state(self.rows)
        self.has_masks = bool(vec.mask_size) and bool(actor.head.choices)

    def _pick(self, tensor: Tensor) -> Tensor:
        """The rows of its agents."""
        by_agent = tensor.view(self.envs, self.agents, *tensor.shape[1:])
        return by_agent.index_select(1, self.index).reshape(self.rows, *tensor.shape[1:])

    def act(self, actions: Tensor) -> None:
        """Writes the actions of its agents."""
        obs = self._pick(
            self.vec.tensors["obs"].view(self.envs * self.agents, *self.vec.single_observation_space.shape)
        )
        if self.role.obs_size:
            obs = obs[:, : self.role.obs_size]
        mask = None
        if self.has_masks:
            mask = self._pick(self.vec.tensors["masks"].view(self.envs * self.agents, -1))
            mask = mask[:, : self.role.mask_size] if self.role.mask_size else mask
        noise = None
        if not self.is_greedy:
            noise = torch.empty(self.rows, self.actor.head.num_noise, device=self.vec.device)
            self.actor.head.draw(noise, self.generator)
        with self.actor.evaluation_mode():
            decision = self.actor.act(structure(self.actor.space, iter([obs])), self.state, mask=mask, noise=noise)
        self.state = decision.state
        chosen = self.actor.head.to_device(decision.actions)
        by_agent = actions.view(self.envs, self.agents, -1)
        width = chosen.shape[1]
        by_agent[:, self.index, :width] = chosen.view(self.envs, len(self.index), width).to(actions.dtype)

    def clear(self, starts: Tensor) -> None:
        """Clears the recurrent state of rows that start a game."""
        if self.state:
            self.state = clear_state(self.state, ~self._pick(starts), self.actor.initial_row())
