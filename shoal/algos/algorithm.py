"""Algorithm: what training needs from an algorithm. A file of this folder that assigns ALGORITHM is one (`--algo`).

    ALGORITHM = Algorithm(options=PPO, learner=Learner, update=update, metrics={"entropy": Metric("entropy")})

Other packages add algorithms by the entry point group `shoal.algorithms`, scripts by
`ALGORITHMS.register("name", algorithm)`. docs/extending.md has a complete one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from shoal.config import LogUniform, opt
from shoal.plugins import Plugins

T = TypeVar("T")
SHARDS_HELP = "parts of envs and minibatches, for several processes (docs/distributed.md); 0: one for each process"

ALGORITHMS = Plugins("algorithm", package="shoal.algos", marker="ALGORITHM")


@dataclass(frozen=True)
class TrainOptions:
    """The options that training reads of every algorithm. Derive yours from it, or declare the same names."""

    total_steps: int = opt(10_000_000, "environment steps to train for, summed over all rows", low=1, is_count=True)
    horizon: int = opt(64, "steps of each row in a rollout", low=1, high=1 << 20, is_count=True)
    learning_rate: float = opt(3e-4, "learning rate", low=0.0, sweep=LogUniform(1e-5, 1e-1), may_change=True)
    schedule: Literal["constant", "linear", "cosine"] = opt("linear", "learning rate schedule, down to 0 at the end")
    normalize_obs: bool = opt(False, "normalize observations by their running mean and standard deviation")
    precision: Literal["fp32", "tf32", "bf16"] = opt("fp32", "GPU: precision of matrix products")

    def resolve(self: T, rows: int) -> T:
        """The options for this many rows, where some depend on it."""
        return self

    def minibatch(self, rows: int) -> int:
        """Transitions of a minibatch."""
        return self.horizon * rows


@dataclass(frozen=True)
class Metric:
    """How a metric is shown: its label on the dashboard, and on plain lines if it has a short one."""

    label: str
    short: str = ""


@dataclass(frozen=True)
class Algorithm:
    """The options of an algorithm, its learner and its update.

    Args:
        options: a dataclass of `config.opt` fields, with those of `TrainOptions`: the flags of `--train.*`. A field
            `optimizer` chooses the optimizer; without one it is Adam.
        learner: makes a `Learner` (algos/learner.py) for each policy.
        update: improves a learner's policy on its rollout and returns metrics by name (numbers or tensors).
        metrics: how the metrics are shown, in display order.
        make_policy: `(options, role, net, agents) -> (module, head)`; None: the actor-critic policy of nn/policy.py.
        takes_late_steps: whether it can learn from a rollout that some rows have not filled (`--vec.surplus-envs`).
        prepare: the part of an update before its first gradient, which `shoal bench train` times separately.
        shard: `(options, shards) -> options`: the options of one shard (algos/shards.py), or a ConfigError if they do
            not divide. The learner then takes `shards`, and its update adds over them. None: no shards.
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
    shard: Callable[[Any, int], Any] | None = None
    cost: Callable[[Any, int, int], tuple[float, float]] | None = None
