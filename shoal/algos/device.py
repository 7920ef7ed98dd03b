"""PPO's loop on a GPU that also steps the envs: a horizon is one CUDA graph, an update is another.

    graph 1   T times: policy -> sample -> env kernel, which writes rewards, flags and the next observation in place
    graph 2   advantages, then every minibatch of every epoch: loss, gradients, optimizer

The host replays the two and looks at nothing until it logs. The code inside the graphs is that of algos/ppo.py; what
differs is that all sizes are fixed: rows that a time limit cuts off are kept in `Cuts`, one place for each row and
window of steps in which it can be cut off once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoal.algos.fused import Fused
from shoal.algos.rollout import Cuts, Seat, Times
from shoal.errors import ConfigError
from shoal.nn.recurrent import State


class DeviceCollector:
    """Plays one policy on envs of the same GPU and fills its rollout. No step of it waits for the device."""

    def __init__(self, vec: Any, seats: Sequence[Seat], fused: Fused | None = None) -> None:
        if len(seats) != 1:
            raise ConfigError("--nn.policies per_agent is for --device cpu yet. Use shared on the GPU.")
        self.vec, self.seat, self.times, self.fused = vec, seats[0], Times(), fused
        self.rollout, self.actor = seats[0].rollout, seats[0].actor
        rollout, spec = self.rollout, vec.spec_env
        zeros = partial(torch.zeros, device=rollout.device)
        self.env_actions = zeros(vec.actions.shape, dtype=vec.actions.dtype)
        self.flags = zeros((2, rollout.rows), dtype=torch.bool)  # terminated, and truncated where nobody asks
        limit = int(vec.get_params()["max_steps"].max()) if "max_steps" in vec.get_params() else spec.max_steps
        if limit > 0:
            windows = -(-rollout.horizon // limit)
            leaf = rollout.obs[0]
            state = tuple(zeros((windows, *part.shape)) for part in rollout.state)
            cut_obs = [zeros((windows, *leaf.shape[1:]), dtype=leaf.dtype)]
            flags = zeros((rollout.horizon, rollout.rows), dtype=torch.bool)
            rollout.cuts = Cuts(flags, limit, cut_obs, state)
        vec.struct.final_cut = 1

    def start(self, seed: int) -> None:
        """Resets the envs: the first observations are the end of an empty rollout."""
        obs, infos = self.vec.reset(seed=seed)
        self.resume(obs, infos)

    def resume(self, obs: Any, infos: dict[str, Any]) -> None:
        """Goes on from envs that are there: their observations are the end of an empty rollout."""
        rollout = self.rollout
        rollout.obs[0][-1].copy_(obs)
        if rollout.alive is not None:
            rollout.alive[-1].copy_(infos["alive"])
        if rollout.masks is not None:
            rollout.masks[-1].copy_(infos["action_mask"])

    @torch.no_grad()
    def collect(self, generators: Sequence[torch.Generator | None]) -> None:
        """Fills the rollout with `horizon` steps of every row."""
        rollout = self.rollout
        rollout.begin(generators[0])
        if self.fused is not None:
            self.fused.begin()
        for t in range(rollout.horizon):
            self._step(t)
        if self.fused is not None:
            self.fused.act(rollout.horizon, None)
        else:
            rollout.values[-1].copy_(self.actor.step(rollout.obs[0][-1], rollout.state)[1])

    def _step(self, t: int) -> None:
        rollout, vec, state = self.rollout, self.vec, ()
        if self.fused is not None:
            self.fused.act(t, self.env_actions)
        else:
            state = self._act(t)
        cuts, places = rollout.cuts, {}
        if cuts is not None:
            window = t // cuts.window
            places = {"truncated": cuts.flags[t], "final_obs": cuts.obs[0][window]}
        vec.launch_step(
            obs=rollout.obs[0][t + 1],
            actions=self.env_actions,
            rewards=rollout.rewards[t],
            done=rollout.dones[t],
            terminated=self.flags[0],
            **({"truncated": self.flags[1]} | places),
        )
        if rollout.alive is not None:
            rollout.alive[t + 1].copy_(vec.tensors["alive"])
        if rollout.masks is not None:
            rollout.masks[t + 1].copy_(vec.tensors["masks"])
        for number, (part, new) in enumerate(zip(rollout.state, state)):
            if cuts is not None:
                kept = cuts.state[number][t // cuts.window]
                kept.copy_(torch.where(cuts.flags[t].unsqueeze(-1), new, kept))
            keep = ~rollout.dones[t]
            if rollout.alive is not None:
                keep = keep & rollout.alive[t] & rollout.alive[t + 1]
            part.copy_(new * keep.unsqueeze(-1))


    def _act(self, t: int) -> State:
        """Logits, values and actions of step t; returns the policy's next state."""
        rollout, head = self.rollout, self.actor.head
        if rollout.state and t % rollout.segment == 0:
            for kept, part in zip(rollout.starts, rollout.state):
                kept[t // rollout.segment].copy_(part)
        logits, values, state = self.actor.step(rollout.obs[0][t], rollout.state)
        if rollout.masks is not None:
            logits = head.mask(logits, rollout.masks[t])
        rollout.logits[t].copy_(logits)
        rollout.values[t].copy_(values)
        actions = head.sample(rollout.logits[t], rollout.noise[t])
        rollout.actions[t].copy_(actions)
        self.env_actions.copy_(head.to_device(actions).view(self.env_actions.shape))
        return state


class Graph:
    """A function without arguments, captured once and then replayed. What it returns is overwritten by each replay."""

    def __init__(self, function: Callable[[], Any], generators: Sequence[torch.Generator]) -> None:
        self.graph = torch.cuda.CUDAGraph()
        for generator in generators:
            self.graph.register_generator_state(generator)
        with torch.cuda.graph(self.graph):
            self.result = function()

    def __call__(self) -> Any:
        """Replays it on the current stream."""
        self.graph.replay()
        return self.result


def warm_up(function: Callable[[], Any], times: int = 2) -> None:
    """Runs a function on a stream of its own, as capture wants it: libraries pick their kernels and workspaces."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(times):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


def copy_into(targets: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    """Puts values into tensors that graphs hold. One without a value was not there at the start: it becomes zero."""
    for name, tensor in targets.items():
        if name in values:
            tensor.copy_(values[name])
        else:
            tensor.zero_()
