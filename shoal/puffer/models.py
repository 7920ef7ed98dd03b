"""PufferLib 3's `models`: Default, a policy for any spaces, and LSTMWrapper."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from shoal.nn.distributions import ActionHead
from shoal.nn.encoders import Encoder
from shoal.nn.layers import layer_init
from shoal.puffer.pytorch import LSTMWrapper

__all__ = ["Default", "LSTMWrapper"]


class Default(nn.Module):
    """Encoder, one hidden layer, actor and critic. `env` is any env or vector with single spaces."""

    def __init__(self, env: Any, hidden_size: int = 128) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.head = ActionHead(env.single_action_space, std="free")
        self.encoder = Encoder(env.single_observation_space)
        self.layers = nn.Sequential(layer_init(nn.Linear(self.encoder.features, hidden_size)), nn.GELU())
        self.actor = layer_init(nn.Linear(hidden_size, self.head.num_outputs), 0.01)
        self.critic = layer_init(nn.Linear(hidden_size, 1), 1.0)
        self.log_std = nn.Parameter(torch.zeros(self.head.num_free)) if self.head.num_free else None

    def forward(self, observations: Any) -> tuple[Any, Tensor]:
        """(logits, value)."""
        return self.decode_actions(self.encode_observations(observations))

    def encode_observations(self, observations: Any, state: Any = None) -> Tensor:
        """(rows, hidden_size)."""
        return self.layers(self.encoder(observations))

    def decode_actions(self, hidden: Tensor) -> tuple[Any, Tensor]:
        """(logits, value) of what encode_observations gave, or of what an LSTM made of it."""
        logits = self.actor(hidden)
        if self.log_std is not None:
            logits = torch.cat([logits, self.log_std.expand(len(logits), -1)], 1)
        return logits, self.critic(hidden)

    @torch.no_grad()
    def get_action(self, observations: Any, deterministic: bool = False) -> tuple[Any, Tensor]:
        """(actions as `step` takes them, value)."""
        logits, value = self.forward(observations)
        noise = torch.zeros(len(logits), self.head.num_noise)
        if not deterministic:
            self.head.draw(noise, None)
        actions = self.head.greedy(logits) if deterministic else self.head.sample(logits, noise)
        return self.head.to_env(actions.numpy()), value
