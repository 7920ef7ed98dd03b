"""PufferLib's `pytorch`: layer_init, sample_logits, LSTMWrapper, and conversion of flat observations."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal.nn import layers
from shoal.nn.recurrent import LSTM, State
from shoal.puffer.exceptions import APIUsageError, missing_names
from shoal.spec import Layout, structure, unflatten

__all__ = [
    "LSTMWrapper",
    "entropy",
    "layer_init",
    "log_prob",
    "nativize_dtype",
    "nativize_tensor",
    "sample_logits",
    "unflatten_observations",
]


def layer_init(layer: Any, std: float = 2.0**0.5, bias_const: float = 0.0) -> Any:
    """Orthogonal weights with a gain of `std` and a constant bias, in place. Returns the layer."""
    return layers.layer_init(layer, std, bias_const)


# ---- distributions ----


def log_prob(logits: Tensor, value: Tensor) -> Tensor:
    """The log-probability of each row's choice, from normalized logits: (..., n) and (...) -> (...)."""
    return logits.gather(-1, value.long().unsqueeze(-1)).squeeze(-1)


def entropy(logits: Tensor) -> Tensor:
    """The entropy of each row, from normalized logits: (..., n) -> (...). A choice of probability 0 adds 0."""
    return -torch.where(logits.isinf(), 0.0, logits.exp() * logits).sum(-1)


def sample_logits(logits: Any, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(action, log-probability, entropy) of each row. Draws from torch's global random stream.

    Args:
        logits: (rows, n) for Discrete actions; a list of one such tensor for each choice of MultiDiscrete; a torch
            Normal for a Box.
        action: the action to evaluate; default: one is sampled. (rows,) for Discrete, otherwise (rows, size).
    """
    if isinstance(logits, torch.distributions.Normal):
        rows = len(logits.loc)
        chosen = logits.sample().view(rows, -1) if action is None else action.view(rows, -1)
        total = logits.log_prob(chosen.view(logits.loc.shape)).view(rows, -1).sum(1)
        return (chosen if action is None else action), total, logits.entropy().view(rows, -1).sum(1)
    is_one = isinstance(logits, Tensor)
    parts = [torch.log_softmax(part, -1) for part in ([logits] if is_one else logits)]
    if action is None:
        columns = [torch.multinomial(part.exp(), 1).to(torch.int32)[:, 0] for part in parts]
    else:
        columns = list(action.view(len(parts[0]), len(parts)).unbind(1))
    log_probs = torch.stack([log_prob(part, column) for part, column in zip(parts, columns)]).sum(0)
    entropies = torch.stack([entropy(part) for part in parts]).sum(0)
    return (columns[0] if is_one else torch.stack(columns, 1)), log_probs, entropies


# ---- recurrent policies ----


class LSTMWrapper(nn.Module):
    """An LSTM between a policy's encode_observations and its decode_actions. The policy's weights do not change.

    Args:
        env: its single_observation_space distinguishes a batch of rows from a batch of segments.
        policy: a module with `encode_observations(obs) -> features` and `decode_actions(hidden) -> (logits, value)`.
        input_size: number of features; default: the policy's hidden_size.
        hidden_size: size of the LSTM, the input of decode_actions; default: input_size.
    """

    def __init__(
        self, env: Any, policy: Any = None, input_size: int | None = None, hidden_size: int | None = None
    ) -> None:
        super().__init__()
        if policy is None and isinstance(env, nn.Module):  # LSTMWrapper(policy, hidden_size=…)
            policy = env
        for name in ("encode_observations", "decode_actions"):
            if not hasattr(policy, name):
                raise APIUsageError(
                    f"LSTMWrapper needs encode_observations and decode_actions, and {type(policy).__name__} has no "
                    f"{name}. Split its forward in two, or put an LSTM into it and define "
                    "forward(obs, state=None) -> (logits, value, state)."
                )
        inputs = input_size or getattr(policy, "hidden_size", None) or 128
        self.policy, self.input_size, self.hidden_size = policy, int(inputs), int(hidden_size or inputs)
        self.lstm = LSTM(self.input_size, self.hidden_size)
        space = getattr(env, "single_observation_space", None)
        self._obs_ndim = len(space.shape) if isinstance(space, spaces.Box) else None

    def initial_state(self, rows: int) -> State:
        """(h, c) at the start of episodes."""
        return self.lstm.initial_state(rows)

    def forward(self, observations: Any, state: Any = None) -> tuple[Any, ...]:
        """One step of a batch of rows, or PufferLib 3's training call.

        - A state of None or (h, c): returns (logits, value, (h, c)).
        - A dict with `lstm_h` and `lstm_c`: returns (logits, value) and updates the dict.
        - A dict, and observations of segments (rows, steps, …): (logits of all steps, values (rows, steps)).
        """
        if isinstance(state, dict):
            if self._obs_ndim is not None and observations.ndim == self._obs_ndim + 2:
                return self._segments(observations, state)
            features = self._encode(observations)
            known = (state.get("lstm_h"), state.get("lstm_c"))
            hidden, new = self.lstm(features, known if known[0] is not None else self.initial_state(len(features)))
            state["lstm_h"], state["lstm_c"] = new
            state["hidden"] = hidden
            return self._decode(hidden)
        features = self._encode(observations)
        hidden, new = self.lstm(features, state or self.initial_state(len(features)))
        return (*self._decode(hidden), new)

    forward_eval = forward

    def _segments(self, observations: Tensor, state: dict[str, Any]) -> tuple[Any, Any]:
        rows, steps = observations.shape[:2]
        start = state.get("lstm_h"), state.get("lstm_c")
        known = start if start[0] is not None else self.initial_state(rows)
        features = self._encode(observations.flatten(0, 1)).view(rows, steps, -1).transpose(0, 1)
        resets = torch.zeros(steps, rows, dtype=torch.bool, device=features.device)
        hidden = self.lstm.unroll(features, known, resets).transpose(0, 1)
        state["hidden"] = hidden
        logits, values = self._decode(hidden.reshape(rows * steps, -1))
        return logits, values.reshape(rows, steps)

    def unroll(self, observations: Any, state: State, resets: Tensor) -> tuple[Any, Any]:
        """All steps of segments: observations (steps * rows, …), resets (steps, rows)."""
        steps, rows = resets.shape
        hidden = self.lstm.unroll(self._encode(observations).view(steps, rows, -1), state, resets)
        return self._decode(hidden.flatten(0, 1))

    def _encode(self, observations: Any) -> Tensor:
        encoded = self.policy.encode_observations(observations)
        self._lookup = encoded[1:] if isinstance(encoded, tuple) else ()  # PufferLib 2 returns it with the features
        features: Tensor = encoded[0] if isinstance(encoded, tuple) else encoded
        if features.shape[-1] != self.input_size:
            raise APIUsageError(
                f"encode_observations returned {features.shape[-1]} features, expected input_size={self.input_size}."
            )
        return features

    def _decode(self, hidden: Tensor) -> tuple[Any, Any]:
        out = self.policy.decode_actions(hidden, *self._lookup)
        return out[0], out[1]


# ---- observations ----


def unflatten_observations(flat: Any, space: Any) -> Any:
    """Flat observations, bytes or one number per element, in the structure of the space.

    Observations from Shoal's trainer have their structure already and are returned unchanged.
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
        raise APIUsageError(f"observations have shape {tuple(flat.shape)}, expected (rows, {sum(sizes)}) for {space}.")
    ends = np.cumsum([0, *sizes])
    parts = [
        flat[:, start:end].reshape(len(flat), *leaf.shape) for leaf, start, end in zip(layout.leaves, ends, ends[1:])
    ]
    return structure(space, iter(parts))


def nativize_dtype(emulated: Any) -> Any:
    """The second argument of nativize_tensor, from `env.emulated`, an env or a space."""
    if emulated is None or isinstance(emulated, bool):  # observations keep their structure in Shoal
        return None
    return Layout(emulated if isinstance(emulated, spaces.Space) else emulated.single_observation_space)


def nativize_tensor(observations: Any, dtype: Any) -> Any:
    """Observations in the structure of their space."""
    return observations if dtype is None else unflatten_observations(observations, dtype.space)


__getattr__ = missing_names(__name__, __all__, {"BatchFirstLSTM": "Use torch.nn.LSTM(batch_first=True)."})
