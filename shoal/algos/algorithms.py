"""Every algorithm by its name: its options, what learns, and how its network is made. `--algo` takes one of these.

To add one, write `algos/x.py` with an options dataclass (`horizon`, `resolve`, `minibatch`, `total_steps`,
`learning_rate`, `normalize_obs`, `precision`), a `Learner` (`rollout`, `optimizer`, `generator`, `kept()`,
`set_learning_rate(done)`) and `update(learner)`, and name it here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from shoal.algos import dqn, ppo, pqn


@dataclass(frozen=True)
class Algorithm:
    """What training asks of an algorithm."""

    options: type[Any]
    learner: Callable[..., Any]
    update: Callable[[Any], dict[str, Tensor]]
    make_policy: Callable[..., Any] | None = None  # (network, head); None: logits and a value, as nn.policy has them


ALGORITHMS = {
    "ppo": Algorithm(ppo.PPO, ppo.Learner, ppo.update),
    "dqn": Algorithm(dqn.DQN, dqn.Learner, dqn.update, dqn.make_policy),
    "pqn": Algorithm(pqn.PQN, pqn.Learner, pqn.update, dqn.make_policy),
}
