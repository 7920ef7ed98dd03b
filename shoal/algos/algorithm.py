"""Algorithm: what training asks of an algorithm. A file in this folder that assigns ALGORITHM is one (`--algo NAME`).

ALGORITHM = Algorithm(options=PPO, learner=Learner, update=update, metrics={"entropy": Metric("entropy")})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.plugins import Plugins

ALGORITHMS = Plugins("algorithm", package="shoal.algos", marker="ALGORITHM")


@dataclass(frozen=True)
class Metric:
    """How a metric is shown: its label on the dashboard, and on plain lines where it has a short one."""

    label: str
    short: str = ""


@dataclass(frozen=True)
class Algorithm:
    """Its options, what learns, and how one update is made.

    Args:
        options: a dataclass of `config.opt` fields: the flags of `--train.*`. It has `total_steps`, `horizon`,
            `learning_rate`, `normalize_obs`, `precision`, `resolve(rows)` and `minibatch(rows)`.
        learner: makes a `Learner` (algos/learner.py) for each policy.
        update: improves a learner's policy on its rollout and returns metrics by name, numbers or tensors.
        metrics: how the metrics are shown, in this order.
        make_policy: `(options, role, net, agents) -> (module, head)`; None: logits and a value, as nn/policy.py has it.
        takes_late_steps: whether it learns from rollouts in which some rows are not full (`--vec.surplus-envs`).
        prepare: the part of an update before the first gradient, timed alone by `shoal bench train`; None: none.
        cost: `(options, networks, steps) -> (transitions, passes)` of an update: how many transitions it learns from,
            and the cost of each as a multiple of one inference.
    """

    options: type[Any]
    learner: Callable[..., Any]
    update: Callable[[Any], Mapping[str, Any]]
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    make_policy: Callable[..., Any] | None = None
    takes_late_steps: bool = False
    prepare: Callable[[Any], Any] | None = None
    cost: Callable[[Any, int, int], tuple[float, float]] | None = None
