"""Algorithm: what training needs from an algorithm. A file of this folder that assigns ALGORITHM is one (`--algo`).

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
    """How a metric is shown: its label on the dashboard, and on plain lines if it has a short one."""

    label: str
    short: str = ""


@dataclass(frozen=True)
class Algorithm:
    """The options of an algorithm, its learner and its update.

    Args:
        options: a dataclass of `config.opt` fields, the flags of `--train.*`. It must have `total_steps`, `horizon`,
            `learning_rate`, `normalize_obs`, `precision`, `resolve(rows)` and `minibatch(rows)`.
        learner: makes a `Learner` (algos/learner.py) for each policy.
        update: improves a learner's policy on its rollout and returns metrics by name (numbers or tensors).
        metrics: how the metrics are shown, in display order.
        make_policy: `(options, role, net, agents) -> (module, head)`; None: the actor-critic policy of nn/policy.py.
        takes_late_steps: whether it can learn from a rollout that some rows have not filled (`--vec.surplus-envs`).
        prepare: the part of an update before its first gradient, which `shoal bench train` times separately.
        cost: `(options, networks, steps) -> (transitions, passes)`: how many transitions an update learns from, and the
            cost of one as a multiple of one inference.
    """

    options: type[Any]
    learner: Callable[..., Any]
    update: Callable[[Any], Mapping[str, Any]]
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    make_policy: Callable[..., Any] | None = None
    takes_late_steps: bool = False
    prepare: Callable[[Any], Any] | None = None
    cost: Callable[[Any, int, int], tuple[float, float]] | None = None
