"""Adapts policies written for PufferLib to Shoal's trainer, which expects `(logits, value)`, with or without a state.

A policy may return
    (logits, value)              logits: a tensor, or a list with one per choice (MultiDiscrete)
    (mean, std, value)           Box actions, in the units of the env
    (distribution, value)        a torch Normal or Categorical
    (…, state)                   with `forward(obs, state)`; a state of None is the start of an episode
or define encode_observations and decode_actions, as in PufferLib 3. Training changes its weights in place.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal.nn.distributions import ActionHead
from shoal.nn.recurrent import State
from shoal.puffer.exceptions import APIUsageError
from shoal.spec import Layout, map_leaves, structure


class Adapted(nn.Module):
    """A user's policy with the methods of `shoal.nn.policy`: forward, initial_state, and unroll if it has one."""

    def __init__(
        self, policy: nn.Module, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
    ) -> None:
        super().__init__()
        self.policy = policy
        self.head = ActionHead(action_space)
        self.space, self.layout = observation_space, Layout(observation_space)
        self.register_buffer("center", torch.from_numpy(self.head._center.copy()), persistent=False)
        self.register_buffer("scale", torch.from_numpy(self.head._scale.copy()), persistent=False)
        self._call, takes_state = _calls(policy)
        self._parts: list[
            tuple[tuple[int, ...], int]
        ] = []  # for each part of the state: its shape for two rows, the axis of rows
        self._is_one = False
        self._has_state: bool | None = None  # unknown until the first call
        state, larger_state = self._try(2), self._try(3)
        self._has_state = state is not None
        if self._has_state:
            if not takes_state:
                raise APIUsageError(
                    f"{_name(policy)} returns a state but does not take one. Define forward(obs, state=None)."
                )
            self._find_row_axes(state, larger_state)
        if self._parts and hasattr(policy, "unroll"):
            self.unroll = self._unroll

    @property
    def adapted(self) -> nn.Module:
        """The user's policy, which errors name."""
        return self.policy

    # ---- called by the trainer ----

    def initial_state(self, rows: int) -> State:
        """The state at the start of episodes: zeros, rows first."""
        return tuple(torch.zeros(rows, *shape[:axis], *shape[axis + 1 :]) for shape, axis in self._parts)

    def forward(self, obs: Any, state: State = ()) -> tuple[Any, ...]:
        """One step of a batch of rows."""
        obs = self._to_float32(obs)
        rows = len(self.layout.leaves_of(obs)[0])
        if not self._parts:
            return self._read(self._call(obs, None), rows)[:2]
        given = tuple(part.movedim(0, axis) for part, (_, axis) in zip(state, self._parts))
        logits, value, new_state = self._read(self._call(obs, given[0] if self._is_one else given), rows)
        new_parts = (new_state,) if self._is_one else tuple(new_state)
        return logits, value, tuple(part.movedim(axis, 0) for part, (_, axis) in zip(new_parts, self._parts))

    def _unroll(self, obs: Any, state: State, resets: Tensor) -> tuple[Tensor, Tensor]:
        out = self.policy.unroll(self._to_float32(obs), state, resets)
        return self._read((*out, None), resets.numel())[:2]

    # ---- the policy's output ----

    def _read(self, out: Any, rows: int) -> tuple[Tensor, Tensor, Any]:
        """(logits, value, state) from the policy's output for a number of rows."""
        if not isinstance(out, (tuple, list)) or not 2 <= len(out) <= 4:
            raise APIUsageError(f"{_name(self.policy)} returned {_brief(out)}, expected (logits, value).")
        parts = list(out)
        has_state = self._has_state
        if has_state is None:
            has_state = len(parts) == 4 or (len(parts) == 3 and not _is_value(parts[2], rows))
        state = parts.pop() if has_state else None
        if len(parts) == 3:
            mean, std, value = parts
            return self._gaussian(mean, std, rows), value.reshape(rows), state
        logits, value = parts
        if not _is_value(value, rows):
            raise APIUsageError(
                f"{_name(self.policy)}: its value is {_brief(value)}, expected ({rows},) or ({rows}, 1)."
            )
        if isinstance(logits, torch.distributions.Normal):
            return self._gaussian(logits.loc, logits.scale, rows), value.reshape(rows), state
        if isinstance(logits, torch.distributions.Categorical):
            logits = logits.logits
        if isinstance(logits, (list, tuple)):
            logits = torch.cat([part.reshape(rows, -1) for part in logits], 1)
        if tuple(logits.shape) != (rows, self.head.num_params):
            hint = " A policy for Box actions returns (mean, std, value)." if self.head.has_box else ""
            raise APIUsageError(
                f"{_name(self.policy)}: its logits have shape {tuple(logits.shape)}, expected "
                f"({rows}, {self.head.num_params}): {self.head}.{hint}"
            )
        return logits, value.reshape(rows), state

    def _gaussian(self, mean: Tensor, std: Tensor, rows: int) -> Tensor:
        """Logits of a Gaussian in the units of the env. Shoal samples bounded actions in -1 .. 1 and scales them."""
        size = self.head.num_params // 2
        if not self.head.has_box or self.head.size != size or mean.shape[0] != rows or mean.numel() != rows * size:
            raise APIUsageError(
                f"{_name(self.policy)} returned (mean, std, value) with a mean of shape {tuple(mean.shape)}; "
                f"the actions of {rows} rows are {self.head}."
            )
        mean, std = mean.reshape(rows, size), std.expand(mean.shape).reshape(rows, size)
        return torch.cat([(mean - self.center) / self.scale, (std / self.scale).log()], 1)

    def _to_float32(self, obs: Any) -> Any:
        """Float64 and float16 observations as float32, the dtype of a policy's layers."""
        return map_leaves(lambda leaf: leaf.float() if leaf.dtype in (torch.float64, torch.float16) else leaf, obs)

    # ---- a trial before training ----

    def _try(self, rows: int) -> Any:
        """The state that the policy returns for a batch of zeros; None if it has none."""
        zeros = [torch.zeros((rows, *leaf.shape), dtype=_torch_dtype(leaf.dtype)) for leaf in self.layout.leaves]
        obs = self._to_float32(structure(self.space, iter(zeros)))
        try:
            with torch.no_grad():
                out = self._call(obs, None)
        except (RuntimeError, TypeError, IndexError, KeyError, AttributeError, ValueError) as error:
            raise APIUsageError(
                f"{_name(self.policy)} failed on a batch of observations, {_shapes(obs)}: "
                f"{str(error).splitlines()[0] if str(error) else type(error).__name__}. A policy is made from the "
                "spaces of one row, env.single_observation_space and env.single_action_space; env.observation_space is "
                "that of the whole batch."
            ) from error
        return self._read(out, rows)[2]

    def _find_row_axes(self, two: Any, three: Any) -> None:
        """Finds the axis of rows of each part of the state: the one that differs between two and three rows."""
        self._is_one = isinstance(two, Tensor)
        pairs = [(two, three)] if self._is_one else list(zip(two, three))
        for small, large in pairs:
            axes = [k for k, (a, b) in enumerate(zip(small.shape, large.shape)) if (a, b) == (2, 3)]
            if len(axes) != 1:
                raise APIUsageError(
                    f"{_name(self.policy)}: its state has shape {tuple(small.shape)} for 2 rows and "
                    f"{tuple(large.shape)} for 3. Exactly one axis must be that of rows."
                )
            self._parts.append((tuple(small.shape), axes[0]))


def _calls(policy: Any) -> tuple[Any, bool]:
    """(a function of obs and state, whether it takes a state)."""
    own = getattr(policy, "_orig_mod", policy)  # the module inside a compiled one
    if type(own).forward is not nn.Module.forward:
        takes_state = _takes(own.forward, 2)
        return ((lambda obs, state: policy(obs, state)) if takes_state else (lambda obs, _: policy(obs))), takes_state
    if not hasattr(own, "encode_observations"):
        raise APIUsageError(f"{_name(policy)} has no forward(obs), and no encode_observations and decode_actions.")
    takes_state = _takes(own.encode_observations, 2)

    def step(obs: Any, state: Any) -> Any:
        hidden = own.encode_observations(obs, state) if takes_state else own.encode_observations(obs)
        if isinstance(hidden, tuple) and len(hidden) > 2:
            return hidden  # already the result: (logits, value, state)
        arguments = hidden if isinstance(hidden, tuple) else (hidden,)  # (hidden, lookup) of PufferLib 2
        return own.decode_actions(*arguments)

    return step, takes_state


def _takes(function: Any, count: int) -> bool:
    """Whether a function takes `count` positional arguments."""
    kinds = [part.kind for part in inspect.signature(function).parameters.values()]
    fixed = sum(kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)
    return fixed >= count or inspect.Parameter.VAR_POSITIONAL in kinds


def _is_value(value: Any, rows: int) -> bool:
    return isinstance(value, Tensor) and tuple(value.shape) in ((rows,), (rows, 1))


def _name(policy: Any) -> str:
    return type(getattr(policy, "_orig_mod", policy)).__name__


def _brief(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{len(value)} values" if isinstance(value, (tuple, list)) else f"a {type(value).__name__}"


def _shapes(obs: Any) -> str:
    """Dtypes and shapes in the structure of the space, for messages."""
    shapes = map_leaves(lambda leaf: f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)}", obs)
    return str(shapes).replace("'", "")


def _torch_dtype(dtype: Any) -> Any:
    from shoal.algos.actor import stored_dtype

    return stored_dtype(dtype)
