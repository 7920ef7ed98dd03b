"""What PufferLib's policies are made of: layer_init, LSTMWrapper, and observations in their structure again."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal.errors import ConfigError
from shoal.nn.layers import layer_init
from shoal.nn.recurrent import LSTM, State
from shoal.spec import Layout, structure, unflatten

__all__ = ["LSTMWrapper", "layer_init", "nativize_dtype", "nativize_tensor", "unflatten_observations"]


class LSTMWrapper(nn.Module):
    """An LSTM between a policy's encode_observations and its decode_actions. The policy's weights stay as they are.

    Args:
        env: as PufferLib 3 wants it; nothing is asked of it.
        policy: a module with `encode_observations(obs) -> features` and `decode_actions(hidden) -> (logits, value)`.
        input_size: how many features; default: the policy's hidden_size.
        hidden_size: of the LSTM, which decode_actions gets; default: as many as features.
    """

    def __init__(
        self, env: Any, policy: Any = None, input_size: int | None = None, hidden_size: int | None = None
    ) -> None:
        super().__init__()
        if policy is None and isinstance(env, nn.Module):  # LSTMWrapper(policy, hidden_size=…)
            policy = env
        for name in ("encode_observations", "decode_actions"):
            if not hasattr(policy, name):
                raise ConfigError(
                    f"LSTMWrapper puts an LSTM between encode_observations and decode_actions, and "
                    f"{type(policy).__name__} has no {name}. Split its forward in two, or give it an LSTM of its own "
                    "and forward(obs, state=None) -> (logits, value, state)."
                )
        inputs = input_size or getattr(policy, "hidden_size", None) or 128
        self.policy, self.input_size, self.hidden_size = policy, int(inputs), int(hidden_size or inputs)
        self.lstm = LSTM(self.input_size, self.hidden_size)

    def initial_state(self, rows: int) -> State:
        """(h, c) at the start of episodes."""
        return self.lstm.initial_state(rows)

    def forward(self, observations: Any, state: Any = None) -> tuple[Any, ...]:
        """(logits, value, (h, c)); with PufferLib 3's dict of lstm_h and lstm_c: (logits, value), and it is updated."""
        features = self._encode(observations)
        if isinstance(state, dict):
            known = (state.get("lstm_h"), state.get("lstm_c"))
            hidden, new = self.lstm(features, known if known[0] is not None else self.initial_state(len(features)))
            state["lstm_h"], state["lstm_c"] = new
            state["hidden"] = hidden
            return self._decode(hidden)
        hidden, new = self.lstm(features, state or self.initial_state(len(features)))
        return (*self._decode(hidden), new)

    forward_eval = forward

    def unroll(self, observations: Any, state: State, resets: Tensor) -> tuple[Any, Any]:
        """Whole segments at once: observations (steps * rows, …), resets (steps, rows)."""
        steps, rows = resets.shape
        hidden = self.lstm.unroll(self._encode(observations).view(steps, rows, -1), state, resets)
        return self._decode(hidden.flatten(0, 1))

    def _encode(self, observations: Any) -> Tensor:
        features = self.policy.encode_observations(observations)
        self._more = features[1:] if isinstance(features, tuple) else ()  # PufferLib 2's lookup
        found: Tensor = features[0] if isinstance(features, tuple) else features
        if found.shape[-1] != self.input_size:
            raise ConfigError(f"encode_observations gives {found.shape[-1]} features; input_size={self.input_size}.")
        return found

    def _decode(self, hidden: Tensor) -> tuple[Any, Any]:
        out = self.policy.decode_actions(hidden, *self._more)
        return out[0], out[1]


def unflatten_observations(flat: Any, space: Any) -> Any:
    """Flat observations in the structure of the space: bytes, or a number for every element.

    Shoal's trainer gives a policy observations in their structure already: those are returned as they are.
    """
    if isinstance(flat, (dict, tuple)):
        return flat
    space = space if isinstance(space, spaces.Space) else space.single_observation_space
    layout = Layout(space)
    if flat.dtype in (torch.uint8, np.uint8) and not layout.is_one_array:
        return unflatten(flat, layout)
    sizes = [int(np.prod(leaf.shape)) for leaf in layout.leaves]
    if tuple(flat.shape[1:]) == layout.leaves[0].shape and layout.is_one_array:
        return flat
    if flat.ndim != 2 or flat.shape[1] != sum(sizes):
        raise ConfigError(f"observations have shape {tuple(flat.shape)}, expected (rows, {sum(sizes)}) for {space}.")
    ends = np.cumsum([0, *sizes])
    parts = [
        flat[:, start:end].reshape(len(flat), *leaf.shape) for leaf, start, end in zip(layout.leaves, ends, ends[1:])
    ]
    return structure(space, iter(parts))


def nativize_dtype(emulated: Any) -> Any:
    """What nativize_tensor needs: `env.emulated`, an env or a space."""
    if emulated is None or isinstance(emulated, bool):  # here observations keep their structure
        return None
    return Layout(emulated if isinstance(emulated, spaces.Space) else emulated.single_observation_space)


def nativize_tensor(observations: Any, dtype: Any) -> Any:
    """Observations in the structure of their space, as PufferLib 3 gives them back."""
    return observations if dtype is None else unflatten_observations(observations, dtype.space)
