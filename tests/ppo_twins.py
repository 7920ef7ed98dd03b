"""Twin PPO learners with the same weights and the same rollout: one learns in C, the other in torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from shoal.algos import ppo
from shoal.algos.actor import Actor
from shoal.algos.optimizers.muon import Muon
from shoal.algos.ppo import PPO, STEP_METRICS, Learner
from shoal.algos.rollout import Rollout
from shoal.nn.policy import Net

FLOATS = spaces.Box(-np.inf, np.inf, (7,), np.float32)
OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "float32": FLOATS,
    "one number": spaces.Box(-np.inf, np.inf, (1,), np.float32),
    "300 numbers": spaces.Box(-np.inf, np.inf, (300,), np.float32),
    "matrix": spaces.Box(-np.inf, np.inf, (3, 5), np.float32),
    "float64": spaces.Box(-np.inf, np.inf, (6,), np.float64),
    "uint8": spaces.Box(0, 255, (33,), np.uint8),
    "int8": spaces.Box(-128, 127, (16,), np.int8),
    "bits": spaces.MultiBinary(9),
    "choice": spaces.Discrete(6, start=2),
    "choices": spaces.MultiDiscrete([3, 2, 5]),
    "one leaf": spaces.Dict({"only": spaces.Box(0, 255, (17,), np.uint8)}),
    "dict": spaces.Dict({"a": spaces.Box(-1, 1, (4,)), "b": spaces.Discrete(7), "c": spaces.Box(0, 9, (5,), np.uint8)}),
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(5),
    "one choice": spaces.Discrete(1),
    "40 choices": spaces.Discrete(40, start=3),
    "multi discrete": spaces.MultiDiscrete([3, 4, 2]),
    "multi binary": spaces.MultiBinary(5),
    "box": spaces.Box(-2.0, 3.0, (3,)),
    "wide box": spaces.Box(-1.0, 1.0, (17,)),
    "dict": spaces.Dict({"a": spaces.Discrete(4), "b": spaces.Box(-1, 1, (2,)), "c": spaces.MultiDiscrete([2, 3])}),
}
CASE_DEFAULTS = {"horizon": 8, "minibatches": 3, "adam_eps": 1e-2, "learning_rate": 2e-3, "entropy_coef": 0.05}


class FixedPace:
    """Always the same number of threads."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def begin(self) -> int:
        return self.threads

    def end(self) -> None:
        pass


def shake(parameters: Any, scale: float, seed: int) -> None:
    """Adds noise to weights. The heads begin near zero, where little is learned."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in parameters:
            part += scale * torch.randn(part.shape, generator=g) / max(1, part.shape[-1]) ** 0.5


def make_learner(
    *,
    obs: str = "float32",
    actions: str = "discrete",
    net: dict[str, Any] | None = None,
    rows: int = 24,
    has_masks: bool = False,
    has_dead_rows: bool = False,
    normalize_obs: bool = False,
    seed: int = 0,
    **train: Any,
) -> Learner:
    """A learner with random weights."""
    config = PPO(**(CASE_DEFAULTS | train))
    space, shape = OBSERVATIONS[obs], Net(**({"hidden": 24, "layers": 2} | (net or {})))
    actor = Actor(space, ACTIONS[actions], shape, seed=seed, normalize_obs=normalize_obs)
    for key, moments in actor.moments.items():
        leaf = actor.layout.leaves[int(key)]
        moments.update(0.2 * torch.randn(50, *leaf.shape, generator=torch.Generator().manual_seed(seed)) + 1.0)
    mask_size = actor.head.num_noise if has_masks else 0
    learner = Learner(config, actor, rows, seed=seed, mask_size=mask_size, has_dead_rows=has_dead_rows)
    shake(actor.policy.parameters(), 0.5, seed)
    return learner


def random_leaves(rollout: Rollout, space: Any, g: torch.Generator) -> None:
    """Fills the observations of all steps with values of the space."""
    for stored, leaf in zip(rollout.obs, space_leaves(space)):
        low, high = leaf_bounds(leaf)
        if stored.is_floating_point():
            stored.copy_(torch.randn(stored.shape, generator=g))
        else:
            stored.copy_(torch.randint(low, high + 1, stored.shape, generator=g))


def space_leaves(space: Any) -> list[Any]:
    return list(space.spaces.values()) if isinstance(space, spaces.Dict) else [space]


def leaf_bounds(leaf: Any) -> tuple[int, int]:
    if isinstance(leaf, spaces.Discrete):
        return int(leaf.start), int(leaf.start + leaf.n - 1)
    if isinstance(leaf, spaces.MultiDiscrete):
        return 0, int(leaf.nvec.min()) - 1
    if isinstance(leaf, spaces.MultiBinary):
        return 0, 1
    return int(max(leaf.low.min(), -1000)), int(min(leaf.high.max(), 1000))


@torch.no_grad()
def play(learner: Learner, seed: int = 0, *, surplus: int = 0) -> None:
    """Fills the rollout in torch. Episodes end inside of it, some by truncation. `surplus` rows are not ready."""
    rollout, actor, g = learner.rollout, learner.actor, torch.Generator().manual_seed(100 + seed)
    random_leaves(rollout, actor.space, g)
    rollout.head.draw(rollout.noise, g)
    rollout.rewards.normal_(generator=g)
    rollout.dones.copy_(torch.rand(rollout.dones.shape, generator=g) < 0.15)
    if rollout.masks is not None:
        rollout.masks.copy_(torch.rand(rollout.masks.shape, generator=g) < 0.7)
    if rollout.alive is not None:
        rollout.alive.copy_(torch.rand(rollout.alive.shape, generator=g) < 0.8)
    for state in rollout.state:
        state.copy_(0.5 * torch.randn(state.shape, generator=g))
    for t in range(rollout.horizon):
        rollout.save_start(t)
        views = rollout.step(t)
        decision = actor.act(views.obs, views.state, mask=views.mask, noise=views.noise)
        views.logits.copy_(decision.logits), views.values.copy_(decision.values), views.actions.copy_(decision.actions)
        for state, new in zip(rollout.state, decision.state):
            state.copy_(new)
        ended = torch.nonzero(rollout.dones[t])[:2].flatten()
        if len(ended):
            rollout.truncations.add(
                t, ended, [leaf[t, ended] for leaf in rollout.obs], tuple(s[ended] for s in rollout.state)
            )
        rollout.clear_state(slice(None), ~rollout.dones[t])
    rollout.values[-1] = actor.step(rollout.observations([leaf[-1] for leaf in rollout.obs]), rollout.state)[1]
    if surplus:
        rollout.ready = torch.arange(rollout.rows - surplus)
        rollout.truncations.added.clear()


def copy_rollout(source: Rollout, target: Rollout) -> None:
    for mine, other in zip(target.tensors(), source.tensors()):
        mine.copy_(other)
    target.truncations.added = list(source.truncations.added)
    target.ready = source.ready


def make_twins(*, surplus: int = 0, seed: int = 0, **case: Any) -> tuple[Learner, Learner]:
    """(by C, by torch). The policy has moved since the rollout, so that some ratios are clipped."""
    by_c, by_torch = (make_learner(seed=seed, **case) for _ in range(2))
    assert by_c.native is not None, "C does not cover the case"
    by_torch.native = by_torch.rollout.acting = None
    by_torch.loss = ppo.clipped_loss
    play(by_torch, seed, surplus=surplus)
    copy_rollout(by_torch.rollout, by_c.rollout)
    for learner in (by_c, by_torch):
        shake(learner.actor.policy.parameters(), 0.15, 10 + seed)
    return by_c, by_torch


def learn(learner: Learner, epochs: int = 1) -> torch.Tensor:
    """Epochs over the rollout; the sums of STEP_METRICS."""
    if learner.native is not None:
        learner.native.begin()  # reads the weights
    batch = ppo.make_batch(learner)
    sums = torch.zeros(len(STEP_METRICS))
    for _ in range(epochs):
        sums += ppo.run_epoch(learner, batch)
    return sums


def close_by_norm(name: str, mine: torch.Tensor, exact: torch.Tensor, whole: float, rtol: float = 3e-5) -> None:
    """Compares parts of a gradient: relative to the norm of the part, and to that of the whole gradient."""
    assert mine.isfinite().all(), name
    error = float((mine - exact).norm())
    assert error <= rtol * float(exact.norm()) + 0.1 * rtol * whole, (name, error, float(exact.norm()), whole)


def assert_twins(by_c: Learner, by_torch: Learner, rtol: float = 1e-4) -> None:
    """Weights, gradients and the optimizer's state of every parameter."""
    start, names = 0, [(name, p.numel()) for name, p in by_c.actor.policy.named_parameters()]
    grads = [learner.weights.grad for learner in (by_c, by_torch)]
    for name, count in names:
        span = slice(start, start + count)
        close_by_norm(f"gradient of {name}", grads[0][span], grads[1][span], float(grads[1].norm()), rtol)
        for key, state in by_torch.optimizer.state.items():
            if state.ndim:
                own = by_c.optimizer.state[key]
                close_by_norm(f"{key} of {name}", own[span], state[span], float(state.norm()), 2 * rtol)
        start += count
    assert torch.equal(by_c.optimizer.state["step"], by_torch.optimizer.state["step"])
    atol = 1e-4 if type(by_torch.optimizer) is Muon else 2e-5  # Newton-Schulz enlarges small parts of a gradient
    torch.testing.assert_close(by_c.weights.data, by_torch.weights.data, rtol=2e-4, atol=atol)
