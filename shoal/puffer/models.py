"""PufferLib 3's `models`: Default, Convolutional and LSTMWrapper.

`forward` returns (logits, value). As in PufferLib, logits are a tensor for Discrete actions, a list with one tensor for
each choice of MultiDiscrete, and a torch Normal in the units of the env for a Box. `pytorch.sample_logits` accepts all.
"""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal.nn.distributions import LOG_STD_RANGE, ActionHead
from shoal.nn.encoders import Encoder
from shoal.nn.encoders.nature import NatureCNN
from shoal.puffer.exceptions import APIUsageError, missing_names
from shoal.puffer.pytorch import LSTMWrapper, layer_init

__all__ = ["Convolutional", "Default", "LSTMWrapper"]


class _TwoPart(nn.Module):
    """A policy of two parts, encode_observations and decode_actions, with PufferLib's kinds of logits."""

    hidden_size: int

    def __init__(self, env: Any, hidden_size: int) -> None:
        super().__init__()
        space = env.single_action_space
        self.hidden_size = hidden_size
        self.is_multidiscrete = isinstance(space, spaces.MultiDiscrete)
        self.is_continuous = isinstance(space, spaces.Box)
        self.head = ActionHead(space, std="free")
        self.actor = layer_init(nn.Linear(hidden_size, self.head.num_outputs), 0.01)
        self.critic = layer_init(nn.Linear(hidden_size, 1), 1.0)
        self.log_std = nn.Parameter(torch.zeros(self.head.num_free)) if self.head.num_free else None
        self.register_buffer("center", torch.from_numpy(self.head._center.copy()), persistent=False)
        self.register_buffer("scale", torch.from_numpy(self.head._scale.copy()), persistent=False)

    def forward(self, observations: Any, state: Any = None) -> tuple[Any, Tensor]:
        """(logits, value)."""
        return self.decode_actions(self.encode_observations(observations, state))

    forward_eval = forward

    def encode_observations(self, observations: Any, state: Any = None) -> Tensor:
        """(rows, hidden_size)."""
        raise NotImplementedError

    def decode_actions(self, hidden: Tensor) -> tuple[Any, Tensor]:
        """(logits, value) from the output of encode_observations, or of an LSTM after it."""
        logits = self._logits(hidden)
        value = self.critic(hidden)
        if self.is_multidiscrete:
            return [logits[:, part.logits] for part in self.head.parts], value
        if self.is_continuous:
            mean, log_std = logits.chunk(2, 1)
            std = log_std.clamp(*LOG_STD_RANGE).exp()
            return torch.distributions.Normal(mean * self.scale + self.center, std * self.scale), value
        return logits, value

    def _logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.actor(hidden)
        if self.log_std is not None:
            logits = torch.cat([logits, self.log_std.expand(len(logits), -1)], 1)
        return logits

    @torch.no_grad()
    def get_action(self, observations: Any, deterministic: bool = False) -> tuple[Any, Tensor]:
        """(actions for `step`, value)."""
        hidden = self.encode_observations(observations)
        logits = self._logits(hidden)
        noise = torch.zeros(len(logits), self.head.num_noise)
        if not deterministic:
            self.head.draw(noise, None)
        actions = self.head.greedy(logits) if deterministic else self.head.sample(logits, noise)
        return self.head.to_env(actions.numpy()), self.critic(hidden)


class Default(_TwoPart):
    """An encoder for any observation space and one hidden layer.

    Args:
        env: any env or vector with single_observation_space and single_action_space.
        hidden_size: of the hidden layer.
    """

    def __init__(self, env: Any, hidden_size: int = 128) -> None:
        super().__init__(env, hidden_size)
        self.encoder = Encoder(env.single_observation_space)
        self.layers = nn.Sequential(layer_init(nn.Linear(self.encoder.features, hidden_size)), nn.GELU())

    def encode_observations(self, observations: Any, state: Any = None) -> Tensor:
        """(rows, hidden_size)."""
        return self.layers(self.encoder(observations))


class Convolutional(_TwoPart):
    """The network of Mnih et al. 2015 for images of bytes: three convolutions and one hidden layer.

    Args:
        env: any env or vector with single_observation_space and single_action_space.
        framestack: channels of the image.
        flat_size: number of features after the convolutions; default: computed from the image.
        hidden_size: of the hidden layer.
        output_size: input size of decode_actions: the hidden_size of this policy, or of an LSTM around it.
        channels_last: images are (height, width, channels).
        downsample: use every n-th row and column.
    """

    def __init__(
        self,
        env: Any,
        *args: Any,
        framestack: int,
        flat_size: int | None = None,
        input_size: int = 512,
        hidden_size: int = 512,
        output_size: int | None = None,
        channels_last: bool = False,
        downsample: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(env, hidden_size if output_size is None else output_size)
        self.hidden_size, self.channels_last, self.downsample = hidden_size, channels_last, downsample
        shape = env.single_observation_space.shape
        self._has_channels = len(shape) == 3
        channels, height, width = self._image(torch.zeros(1, *shape)).shape[1:]
        if channels != framestack:
            other = "False" if channels_last else "True"
            raise APIUsageError(
                f"framestack={framestack}, but an image of shape {shape} has {channels} channels with "
                f"channels_last={channels_last}. Give framestack={channels}, or channels_last={other}."
            )
        if min(height, width) < 36:
            raise APIUsageError(f"Convolutional needs 36 pixels a side; the image has {height} x {width}. Use Default.")
        self.network = NatureCNN((framestack, height, width))
        if flat_size not in (None, self.network.features):
            raise APIUsageError(
                f"flat_size={flat_size}, but the convolutions give {self.network.features} features. Leave it out."
            )
        self.layer = layer_init(nn.Linear(self.network.features, hidden_size))

    def encode_observations(self, observations: Any, state: Any = None) -> Tensor:
        """(rows, hidden_size)."""
        return torch.relu(self.layer(self.network(self._image(observations).to(torch.float32) / 255.0)))

    def _image(self, observations: Tensor) -> Tensor:
        """(rows, channels, height, width)."""
        if not self._has_channels:
            observations = observations.unsqueeze(1)
        elif self.channels_last:
            observations = observations.permute(0, 3, 1, 2)
        return observations[:, :, :: self.downsample, :: self.downsample]


__getattr__ = missing_names(
    __name__,
    __all__,
    {
        "Policy": "Derive from torch.nn.Module: any module with forward(obs) -> (logits, value) is a policy.",
        "ProcgenResnet": "Use models.Default, or shoal.nn.layers.ImpalaCNN in your own module.",
    },
)
