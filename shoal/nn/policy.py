"""Policy: encoder, optional recurrent core, actor and critic. And what the trainer asks of a module of your own.

A policy is any `nn.Module` whose call returns `(logits, value)`, or with a recurrent state
`policy(obs, state) -> (logits, value, state)` and an `initial_state(rows)`. `obs` is a batch in the structure of the
observation space, `logits` are the numbers that `shoal.nn.distributions` reads, `value` has shape (rows,) or (rows, 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal.config import LogUniform, opt
from shoal.errors import ConfigError
from shoal.nn.distributions import ActionHead
from shoal.nn.encoders import Encoder
from shoal.nn.layers import MLP, layer_init
from shoal.nn.recurrent import CORES, State


@dataclass(frozen=True)
class Net:
    """The shape of the policy."""

    hidden: int = opt(128, "width of every layer", low=1, high=65536, sweep=LogUniform(32, 1024))
    layers: int = opt(2, "fully connected layers after the encoder", low=0, high=64)
    activation: Literal["relu", "tanh", "gelu", "silu"] = opt("relu", "between layers")
    encoder: Literal["auto", "mlp", "grid", "nature", "impala"] = opt(
        "auto", "how images are seen; auto takes grid below 40 pixels a side and nature above"
    )
    core: Literal["none", "lstm", "mingru"] = opt("none", "recurrent core, for what must be remembered")
    core_size: int = opt(0, "width of the core; 0 takes --nn.hidden", low=0, high=65536)
    separate: bool = opt(False, "actor and critic share no layer")
    std: Literal["free", "state"] = opt("free", "Box actions: a spread of its own, or one that the state sets")
    log_std: float = opt(0.0, "Box actions: logarithm of the spread at the start", low=-10, high=4)
    squash: Literal["none", "tanh"] = opt("none", "Box actions: clipped to their bounds, or squashed into them")
    policies: Literal["shared", "per_agent"] = opt("shared", "several agents: one policy for all, or one for each")


class Policy(nn.Module):
    """What `--nn.*` describes. Feed-forward: returns (logits, value); with a core: (logits, value, state).

    Its parts are run by their `forward`: for a few rows, calling modules takes longer than the arithmetic.
    """

    def __init__(self, observation_space: spaces.Space[Any], head: ActionHead, net: Net) -> None:
        super().__init__()
        self.body = _Body(observation_space, net)
        self.critic_body: Any = _Body(observation_space, net) if net.separate else None
        size = net.core_size or net.hidden
        self.core: Any = None
        features = self.body.features
        if net.core != "none":
            if net.separate:
                raise ConfigError("--nn.separate goes with --nn.core none: a core is shared by actor and critic.")
            self.core = CORES[net.core](features, size)
            features = size
        self.actor = layer_init(nn.Linear(features, head.num_outputs), 0.01)
        self.critic = layer_init(nn.Linear(features, 1), 1.0)
        spreads = head.num_outputs - head.num_noise
        if spreads:  # those that the state sets are the last outputs
            nn.init.constant_(self.actor.bias[-spreads:], net.log_std)
        # a free spread is a parameter of its own beside the actor's outputs (means)
        self.log_std = nn.Parameter(torch.full((head.num_free,), net.log_std)) if head.num_free else None

    def initial_state(self, rows: int) -> State:
        """Of so many rows at the start of an episode; empty without a core."""
        return () if self.core is None else self.core.initial_state(rows)

    def forward(self, obs: Any, state: State = ()) -> tuple[Any, ...]:
        """One step of a batch of rows."""
        features = self.body.forward(obs)
        if self.core is None:
            return self._heads(features, self.critic_body.forward(obs) if self.critic_body is not None else features)
        features, state = self.core(features, state)
        return (*self._heads(features, features), state)

    def unroll(self, obs: Any, state: State, resets: Tensor) -> tuple[Tensor, Tensor]:
        """Whole segments: obs (steps * rows, ...), resets (steps, rows) -> flat logits and values, in that order."""
        features = self.body.forward(obs)
        if self.core is None:
            return self._heads(features, self.critic_body.forward(obs) if self.critic_body is not None else features)
        steps, rows = resets.shape
        features = self.core.unroll(features.view(steps, rows, -1), state, resets).flatten(0, 1)
        return self._heads(features, features)

    def _heads(self, acting: Tensor, judging: Tensor) -> tuple[Tensor, Tensor]:
        actor, critic, linear = self.actor, self.critic, nn.functional.linear
        logits = linear(acting, actor.weight, actor.bias)
        if self.log_std is not None:
            logits = torch.cat([logits, self.log_std.expand(len(logits), -1)], 1)
        return logits, linear(judging, critic.weight, critic.bias).squeeze(-1)


class _Body(nn.Module):
    """Encoder and fully connected layers."""

    def __init__(self, space: spaces.Space[Any], net: Net) -> None:
        super().__init__()
        self.encoder = Encoder(space, net.encoder)
        sizes = [self.encoder.features] + [net.hidden] * net.layers
        self.layers = MLP(sizes, net.activation)
        self.features = sizes[-1]

    def forward(self, obs: Any) -> Tensor:
        return self.layers.forward(self.encoder.forward(obs))


def step(policy: Any, obs: Any, state: State) -> tuple[Tensor, Tensor, State]:
    """(logits, values, next state) of one step, for any policy."""
    out = policy(obs, state) if state else policy(obs)
    if len(out) == 3:
        return out[0], out[1].reshape(len(out[0])), _as_state(out[2])
    logits, value = out
    return logits, value.reshape(len(logits)), ()


def unroll(policy: Any, obs: Any, state: State, resets: Tensor) -> tuple[Tensor, Tensor]:
    """Flat (logits, values) of whole segments: obs (steps * rows, ...), resets (steps, rows)."""
    if hasattr(policy, "unroll"):
        logits, values = policy.unroll(obs, state, resets)
        return logits, values.reshape(len(logits))
    if not state:
        logits, values, _ = step(policy, obs, ())
        return logits, values
    steps, rows = resets.shape
    outputs = []
    for t in range(steps):
        if t:
            keep = (~resets[t]).to(state[0].dtype)
            state = tuple(part * keep.view(-1, *[1] * (part.ndim - 1)) for part in state)
        logits, values, state = step(policy, _at(obs, t * rows, rows), state)
        outputs.append((logits, values))
    return torch.cat([out[0] for out in outputs]), torch.cat([out[1] for out in outputs])


def initial_state(policy: Any, rows: int) -> State:
    """The policy's state at the start of an episode; empty where it has none."""
    made = policy.initial_state(rows) if hasattr(policy, "initial_state") else ()
    return _as_state(made)


def check(policy: Any, obs: Any, rows: int, head: ActionHead) -> None:
    """Tries a policy of the user's on a batch and says what does not fit, before any training."""
    with torch.no_grad():
        out = policy(obs, initial_state(policy, rows)) if initial_state(policy, rows) else policy(obs)
    if not isinstance(out, (tuple, list)) or len(out) not in (2, 3):
        raise ConfigError(f"the policy returned {type(out).__name__}; it must return (logits, value) or with a state.")
    logits, value = out[0], out[1]
    if tuple(logits.shape) != (rows, head.num_params):
        raise ConfigError(
            f"the policy's logits have shape {tuple(logits.shape)}, expected ({rows}, {head.num_params}): {head}."
        )
    if value.numel() != rows:
        raise ConfigError(f"the policy's value has shape {tuple(value.shape)}, expected ({rows},).")
    if len(out) == 3 and not hasattr(policy, "initial_state"):
        raise ConfigError("the policy returns a state but has no initial_state(rows). Define it.")
    before, after = [
        [tuple(part.shape) for part in state]
        for state in (initial_state(policy, rows), _as_state(out[2]) if len(out) == 3 else ())
    ]
    if before != after:
        raise ConfigError(
            f"the policy's initial_state({rows}) has shapes {before}; its call returned a state of {after}."
        )
    if any(shape[:1] != (rows,) for shape in before):
        raise ConfigError(
            f"the policy's initial_state({rows}) has shapes {before}: each must begin with {rows}, the rows."
        )


def _as_state(state: Any) -> State:
    if state is None:
        return ()
    return (state,) if isinstance(state, Tensor) else tuple(state)


def _at(obs: Any, start: int, rows: int) -> Any:
    if isinstance(obs, dict):
        return {key: _at(part, start, rows) for key, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_at(part, start, rows) for part in obs)
    return obs[start : start + rows]
