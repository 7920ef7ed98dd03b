"""PPO: its gradient is the policy gradient, nothing is learned from the dead, and it solves what has a known answer."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from scipy import stats
from torch import nn

import shoal
from shoal.algos import ppo
from shoal.algos.fast import choice_loss
from shoal.algos.learner import flatten
from shoal.algos.optimizers import muon
from shoal.algos.optimizers.adam import Adam
from shoal.algos.optimizers.adamw import AdamW
from shoal.algos.optimizers.muon import Muon
from shoal.algos.ppo import PPO
from shoal.errors import ConfigError
from shoal.nn.distributions import NEVER, ActionHead
from shoal.train.graphs import copy_into

from .envs import CounterEnv, DyingAgentsEnv, MixedAgentsEnv
from .slow_ops import slow_gae
from .training import training

# one epoch, one minibatch, nothing clipped, nothing scaled: the plain policy gradient, and weights that stay
PLAIN: dict[str, Any] = {
    "horizon": 12,
    "epochs": 1,
    "minibatches": 1,
    "learning_rate": 0.0,
    "max_grad_norm": 0.0,
    "normalize_advantage": "none",
    "entropy_coef": 0.3,
    "value_coef": 0.7,
    "gamma": 0.9,
    "gae_lambda": 0.8,
}


def plain_training(vec, *, net: Any = (), policy=None, seed=3, **train: Any):
    """Training on a vector env by the plain policy gradient, but for the options given."""
    tables = {"train": {**PLAIN, **train}, "nn": {"hidden": 16, "layers": 1, **dict(net)}, "seed": seed}
    return training(vec, policy=policy, **tables)


def loud(t, scale=0.4):
    """Weights so large that everything has an effect."""
    generator = torch.Generator().manual_seed(0)
    for actor in t.actors:
        for p in actor.policy.parameters():
            with torch.no_grad():
                p.copy_(scale * torch.randn(p.shape, generator=generator))


CASES = {
    "discrete": lambda: shoal.make("cartpole", 5),
    "box": lambda: shoal.make("pendulum", 5, max_steps=7),
    "memory": lambda: shoal.make("memory", 5),
    "python": lambda: shoal.make(CounterEnv, 5, backend="serial"),
    "gymnasium, next step": lambda: SyncVectorEnv([CounterEnv] * 5),
    "gymnasium, same step": lambda: SyncVectorEnv([CounterEnv] * 5, autoreset_mode=AutoresetMode.SAME_STEP),
    "masks and agents that die": lambda: shoal.make("forage", 6, hunger=0.1, start=0.5, ripen=1.0, max_steps=15),
    "agents that come and go": lambda: shoal.make(DyingAgentsEnv, 3, backend="serial"),
    "agents with spaces of their own": lambda: shoal.make(MixedAgentsEnv, 3, backend="serial"),
}


# ---- a slow, obvious twin ----


def slow_distribution(space, logits):
    """[(distribution, columns of actions)] by torch.distributions."""
    if isinstance(space, spaces.Discrete):
        return [(torch.distributions.Categorical(logits=logits), slice(0, 1))]
    if isinstance(space, spaces.MultiDiscrete):
        parts = logits.split([int(n) for n in space.nvec], -1)
        return [(torch.distributions.Categorical(logits=part), slice(k, k + 1)) for k, part in enumerate(parts)]
    size = int(np.prod(space.shape))
    means, log_stds = logits[:, :size], logits[:, size:]
    return [(torch.distributions.Normal(means[:, k], log_stds[:, k].exp()), slice(k, k + 1)) for k in range(size)]


def slow_loss(learner):
    """The policy gradient's loss of a rollout, a step at a time: mean of -A log pi + value and entropy terms."""
    rollout, actor, config = learner.rollout, learner.actor, learner.config
    rewards = rollout.rewards.double().clone()
    with torch.no_grad():
        for cut in rollout.truncations.added:
            bootstrap = actor.step(rollout.observations(cut.obs), cut.state)[1]
            for k, row in enumerate(cut.rows.tolist()):
                rewards[cut.steps.start, row] += config.gamma * float(bootstrap[k])
    advantages = slow_gae(rewards, rollout.values, rollout.dones, config.gamma, config.gae_lambda)
    returns = advantages + rollout.values[:-1].double()
    state = tuple(part[0] for part in rollout.starts)
    terms = []
    for t in range(rollout.horizon):
        alive = rollout.alive[t] if rollout.alive is not None else torch.ones(rollout.rows, dtype=torch.bool)
        if t:
            fresh = rollout.dones[t - 1].clone()
            if rollout.alive is not None:
                fresh |= ~alive | ~rollout.alive[t - 1]
            state = tuple(torch.where(fresh.view(-1, *[1] * (s.ndim - 1)), torch.zeros(()), s) for s in state)
        logits, values, state = actor.step(rollout.observations([leaf[t] for leaf in rollout.obs]), state)
        if rollout.masks is not None:
            logits = logits.masked_fill(rollout.masks[t] == 0, -1e9)
        log_prob = entropy = 0.0
        for distribution, columns in slow_distribution(learner.head.space, logits):
            log_prob = log_prob + distribution.log_prob(rollout.actions[t, :, columns].squeeze(-1))
            entropy = entropy + distribution.entropy()
        term = -advantages[t] * log_prob + config.value_coef * 0.5 * (values - returns[t]) ** 2
        terms.append((term - config.entropy_coef * entropy)[alive])
    return torch.cat(terms).mean()


def gradients(learner):
    """Of one update, as it left them."""
    ppo.update(learner)
    return [p.grad.clone() for p in learner.actor.policy.parameters()]


@pytest.mark.parametrize("core", ["none", "lstm", "mingru"])
@pytest.mark.parametrize("case", CASES)
def test_the_gradient_is_the_policy_gradient(case, core):
    with plain_training(CASES[case](), net={"core": core}) as t:
        t.start()
        loud(t)
        for _ in range(2):
            t.collect()
        for learner in t.learners:
            parameters = list(learner.actor.policy.parameters())
            exact = torch.autograd.grad(slow_loss(learner), parameters)
            size = max(float(g.abs().max()) for g in exact)
            assert size > 1e-3
            for got, wanted in zip(gradients(learner), exact):
                torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-5 * size)


@pytest.mark.parametrize("net", [{"std": "state"}, {"squash": "tanh"}, {"std": "state", "squash": "tanh"}])
def test_the_gradient_of_box_actions_is_the_policy_gradient(net):
    """A squash changes no gradient: its slope depends on the action alone."""
    with plain_training(CASES["box"](), net=net) as t:
        t.start()
        loud(t, 0.2)
        t.collect()
        learner = t.learners[0]
        exact = torch.autograd.grad(slow_loss(learner), list(learner.actor.policy.parameters()))
        size = max(float(g.abs().max()) for g in exact)
        for got, wanted in zip(gradients(learner), exact):
            torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-5 * size)


@pytest.mark.parametrize("segment", [1, 3, 12])
def test_segments_change_the_gradient_only_by_how_far_it_flows_back(segment):
    """A feed-forward policy has the same gradient whatever the segments are."""
    grads = []
    for length in (0, segment):
        with plain_training(CASES["discrete"](), segment=length) as t:
            t.start()
            t.collect()
            grads.append(gradients(t.learners[0]))
    for one, other in zip(*grads):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


# ---- who is learned from ----


@pytest.mark.parametrize("core", ["none", "lstm", "mingru"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize_advantage": "batch"},
        {"normalize_advantage": "minibatch", "minibatches": 3},
        {"normalize_reward": True, "normalize_obs": True},
        {"vtrace": True},
        {"priority": 1.0, "value_clip": 0.1},
    ],
    ids=str,
)
@pytest.mark.parametrize("case", ["masks and agents that die", "agents that come and go", "gymnasium, next step"])
def test_rows_of_the_dead_change_no_gradient_and_no_metric(case, options, core):
    found = []
    for is_perturbed in (False, True):
        with plain_training(CASES[case](), net={"core": core}, **options) as t:
            t.start()
            loud(t)
            for _ in range(2):
                t.collect()
            learner = t.learners[0]
            rollout = learner.rollout
            dead = ~rollout.alive
            assert dead[:-1].any()
            if is_perturbed:
                generator = torch.Generator().manual_seed(9)
                # the running sum of rewards relies on it that the dead are paid nothing
                rewards = [] if learner.reward_moments else [rollout.rewards]
                for part in (*rollout.obs, *rewards, rollout.values, rollout.logits):
                    where = dead[: len(part)]
                    noise = torch.randn(part[where].shape, generator=generator)
                    part[where] = (part[where] + 3 * noise).to(part.dtype)
                rollout.actions[dead[:-1]] = 0
            metrics = ppo.update(learner)
            grads = [p.grad.clone() for p in learner.actor.policy.parameters()]
            norms = [learner.actor.moments, *([learner.reward_moments] if learner.reward_moments else [])]
            found.append((grads, list(metrics.values()), [part.clone() for norm in norms for part in norm.buffers()]))
    for one, other in zip(*found):
        for a, b in zip(one, other):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7, equal_nan=True)


def test_policies_of_their_own_learn_from_their_own_rows_alone():
    """With the rewards of one agent changed, only its own policy is changed."""
    found = []
    for bonus in (0.0, 5.0):
        with plain_training(CASES["agents that come and go"](), net={"policies": "per_agent"}, learning_rate=0.01) as t:
            t.start()
            t.collect()
            t.learners[2].rollout.rewards += bonus
            t.learn()
            found.append([[p.detach().clone() for p in actor.parameters()] for actor in t.actors])
    same = [all(torch.equal(a, b) for a, b in zip(one, other)) for one, other in zip(*found)]
    assert same == [True, True, False, True]


@pytest.mark.parametrize("normalize", ["none", "batch", "minibatch"])
def test_a_rollout_without_anyone_alive_teaches_nothing_and_breaks_nothing(normalize):
    options = {"normalize_advantage": normalize, "normalize_reward": True, "normalize_obs": True, "priority": 1.0}
    with plain_training(CASES["agents that come and go"](), **options) as t:
        t.start()
        t.collect()
        learner = t.learners[0]
        learner.rollout.alive.zero_()
        metrics = ppo.update(learner)
        assert all(torch.isfinite(value) for name, value in metrics.items() if name != "explained_variance")
        assert all(not p.grad.any() for p in learner.actor.policy.parameters())


def test_agents_with_spaces_of_their_own_train():
    with plain_training(CASES["agents with spaces of their own"](), learning_rate=0.01, epochs=2, minibatches=2) as t:
        before = [[p.detach().clone() for p in actor.parameters()] for actor in t.actors]
        for _ in range(3):
            t.iterate()
        for was, actor in zip(before, t.actors):
            assert all(torch.isfinite(p).all() for p in actor.parameters())
            assert not all(torch.equal(a, b) for a, b in zip(was, actor.parameters()))


# ---- advantages ----


class CountIsValue(nn.Module):
    """A critic that says 10 times the step that CounterEnv is at."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(4))

    def forward(self, obs: Any) -> Any:
        return self.logits.expand(len(obs), 4), 10.0 * obs[:, 0]


@pytest.mark.parametrize("case", ["python", "gymnasium, next step", "gymnasium, same step"])
@pytest.mark.parametrize("vtrace", [False, True])
def test_truncation_bootstraps_from_the_last_observation_and_termination_does_not(case, vtrace):
    """lambda = 0: A = r + 0.9 V(next) - V, where V is 10 times the step; odd lengths are truncated."""
    with plain_training(CASES[case](), policy=CountIsValue(), gae_lambda=0.0, vtrace=vtrace) as t:
        t.start()
        ends = {"terminated": 0, "truncated": 0, "goes on": 0}
        for _ in range(4):
            t.collect()
            learner = t.learners[0]
            rollout, batch = learner.rollout, ppo.make_batch(learner)
            advantages = batch.advantages.view(12, 5)
            counted = torch.ones(12, 5) if batch.counts is None else batch.counts.view(12, 5)
            for step, row in counted.nonzero().tolist():
                count, reward = float(rollout.obs[0][step, row, 0]), float(rollout.rewards[step, row])
                kind = "goes on"
                if rollout.dones[step, row]:
                    kind = "truncated" if (count + 1) % 2 else "terminated"
                bootstrap = 0.0 if kind == "terminated" else 0.9 * 10.0 * (count + 1)
                assert float(advantages[step, row]) == pytest.approx(reward + bootstrap - 10.0 * count, abs=1e-4)
                ends[kind] += 1
        assert min(ends.values()) > 4


def test_the_last_step_of_a_segment_has_an_advantage_of_its_own():
    """A_{T-1} = r + gamma V(what is seen after it) - V: the rollout's end is no end of the episode (PufferLib #363)."""
    for segment in (0, 4):
        with plain_training(CASES["memory"](), net={"core": "lstm"}, segment=segment) as t:
            t.start()
            loud(t)
            t.collect()
            learner = t.learners[0]
            rollout, batch = learner.rollout, ppo.make_batch(learner)
            goes_on = 0.9 * (~rollout.dones[-1]).float()
            with torch.no_grad():
                after = learner.actor.step(rollout.observations([leaf[-1] for leaf in rollout.obs]), rollout.state)[1]
            exact = rollout.rewards[-1] + goes_on * after - rollout.values[-2]
            torch.testing.assert_close(batch.advantages.view(12, 5)[-1], exact, rtol=1e-4, atol=1e-5)
            assert (exact.abs() > 1e-3).all()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("core", ["none", "mingru"])
def test_vtrace_changes_nothing_about_data_of_the_policy_itself(case, core):
    found = []
    for vtrace in (False, True):
        with plain_training(CASES[case](), net={"core": core}, vtrace=vtrace) as t:
            t.start()
            loud(t)
            t.collect()
            found.append([ppo.make_batch(learner) for learner in t.learners])
    for one, other in zip(*found):
        counted = torch.ones(len(one.returns)) if one.counts is None else one.counts
        size = float(one.returns.abs().max())
        for a, b in ((one.advantages, other.advantages), (one.returns, other.returns)):
            torch.testing.assert_close(a[counted > 0], b[counted > 0], rtol=1e-3, atol=1e-3 * size)


def test_vtrace_lowers_the_weight_of_what_the_policy_would_not_do_any_more():
    """The policy has left the action that was taken: its target comes close to the critic's own value."""
    with plain_training(CASES["discrete"](), vtrace=True) as t:
        t.start()
        t.collect()
        learner = t.learners[0]
        rollout = learner.rollout
        rollout.actions.zero_()
        with torch.no_grad():
            learner.actor.policy.actor.bias.copy_(torch.tensor([-20.0, 20.0]))
        batch = ppo.make_batch(learner)
        torch.testing.assert_close(batch.returns, batch.values, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["batch", "minibatch"])
def test_advantages_are_standardized_over_what_counts(kind):
    advantages = torch.tensor([1.0, 2.0, 6.0, 100.0])
    counts = torch.tensor([1.0, 1.0, 1.0, 0.0])
    exact = (np.array([1.0, 2.0, 6.0]) - 3.0) / np.std([1.0, 2.0, 6.0])
    np.testing.assert_allclose(ppo.standardize(advantages, counts)[:3], exact, rtol=1e-5)
    np.testing.assert_allclose(ppo.standardize(advantages[:3], None), exact, rtol=1e-5)
    assert torch.isfinite(ppo.standardize(torch.ones(1), None)).all()
    with plain_training(CASES["masks and agents that die"](), normalize_advantage=kind) as t:
        t.start()
        t.collect()
        batch = ppo.make_batch(t.learners[0])
        kept = batch.advantages[batch.counts > 0]
        is_scaled = abs(float(kept.mean())) < 1e-5 and abs(float(kept.std(correction=0)) - 1) < 1e-3
        assert is_scaled == (kind == "batch")


# ---- the loss ----


def moved(t, shift, seed=0):
    """A learner and a batch whose old log-probabilities and values are off by random numbers of this size."""
    t.start()
    t.collect()
    learner = t.learners[0]
    batch = ppo.make_batch(learner)
    generator = torch.Generator().manual_seed(seed)
    offsets = [shift * torch.randn(batch.logprobs.shape, generator=generator) for _ in range(2)]
    return learner, dataclasses.replace(batch, logprobs=batch.logprobs + offsets[0], values=batch.values + offsets[1])


def whole(batch):
    index = torch.arange(len(batch.returns))
    return index, None


@pytest.mark.parametrize("clip", [0.1, 0.3])
@pytest.mark.parametrize("value_clip", [0.0, 0.2])
def test_clipped_losses_equal_a_loop(clip, value_clip):
    with plain_training(CASES["discrete"](), clip=clip, value_clip=value_clip) as t:
        learner, batch = moved(t, 0.3)
        with torch.no_grad():
            logits, values = learner.actor.unroll(batch.obs[0], (), batch.resets[:0])
            new = torch.log_softmax(logits, -1).gather(1, batch.actions).squeeze(1)
        got = dict(zip(ppo.METRICS, ppo.improve(learner, batch, *whole(batch)).tolist()))
        policy, value, kl, outside = [], [], [], []
        for k in range(len(new)):
            ratio, advantage = math.exp(float(new[k] - batch.logprobs[k])), float(batch.advantages[k])
            policy.append(-min(ratio * advantage, min(max(ratio, 1 - clip), 1 + clip) * advantage))
            error = (float(values[k]) - float(batch.returns[k])) ** 2
            if value_clip:
                step = min(max(float(values[k] - batch.values[k]), -value_clip), value_clip)
                error = max(error, (float(batch.values[k]) + step - float(batch.returns[k])) ** 2)
            value.append(0.5 * error)
            kl.append(ratio - 1 - math.log(ratio))
            outside.append(abs(ratio - 1) > clip)
        assert got["loss/policy"] == pytest.approx(np.mean(policy), rel=1e-4)
        assert got["loss/value"] == pytest.approx(np.mean(value), rel=1e-4)
        assert got["kl"] == pytest.approx(np.mean(kl), rel=1e-3)
        assert got["clip_fraction"] == pytest.approx(np.mean(outside), abs=1e-6)
        assert 0.1 < got["clip_fraction"] < 0.9


def test_what_has_moved_too_far_the_right_way_has_no_gradient():
    with plain_training(CASES["discrete"](), value_coef=0.0, entropy_coef=0.0) as t:
        learner, batch = moved(t, 0.0)
        far = torch.where(batch.advantages > 0, -1.0, 1.0)  # good actions are e times as likely already
        ppo.improve(learner, dataclasses.replace(batch, logprobs=batch.logprobs + far), *whole(batch))
        assert all(p.grad is None or not p.grad.any() for p in learner.actor.policy.parameters())
        ppo.improve(learner, dataclasses.replace(batch, logprobs=batch.logprobs - far), *whole(batch))
        assert any(p.grad is not None and p.grad.any() for p in learner.actor.policy.parameters())


def test_gradients_are_scaled_down_to_the_largest_norm():
    norms = []
    for limit in (0.0, 0.01):
        with plain_training(CASES["discrete"](), max_grad_norm=limit) as t:
            t.start()
            t.collect()
            metrics = ppo.update(t.learners[0])
            left = [p.grad.norm() for p in t.learners[0].actor.policy.parameters()]
            norms.append((float(metrics["grad_norm"]), float(torch.stack(left).norm())))
    assert norms[0][0] == pytest.approx(norms[0][1], rel=1e-4)
    assert norms[1][0] == pytest.approx(norms[0][0], rel=1e-4)  # what is told is the norm before
    assert norms[1][1] == pytest.approx(0.01, rel=1e-3)


# ---- minibatches ----


@pytest.mark.parametrize(
    ("segment", "core", "parts"), [(0, "none", 1), (0, "none", 7), (4, "none", 3), (0, "lstm", 2), (4, "mingru", 5)]
)
def test_an_epoch_sees_every_transition_once(segment, core, parts):
    with plain_training(CASES["discrete"](), net={"core": core}, segment=segment, minibatches=parts) as t:
        t.start()
        t.collect()
        learner = t.learners[0]
        length, batch = learner.rollout.segment, ppo.make_batch(learner)
        orders = []
        for _ in range(2):
            drawn = ppo.minibatches(learner, batch)
            found = [(ppo.transitions(learner.rollout, part), part, weights) for part, weights in drawn]
            assert len(found) == parts
            seen = torch.cat([index for index, _, _ in found])
            assert torch.equal(seen.sort().values, torch.arange(12 * 5))
            sizes = [len(index) for index, _, _ in found]
            assert max(sizes) - min(sizes) <= length
            for index, segments, weights in found:
                assert weights is None
                steps, rows = index.view(length, -1) // 5, index.view(length, -1) % 5
                assert (rows == rows[0]).all()  # a column is one row, step after step
                assert torch.equal(steps - steps[0], torch.arange(length).unsqueeze(1).expand_as(steps))
                assert (steps[0] % length == 0).all()
                assert torch.equal(segments, steps[0] // length * 5 + rows[0])
            orders.append(seen)
        assert parts == 1 or not torch.equal(*orders)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("segment", [1, 4])
def test_segments_are_drawn_by_their_advantage(power, segment):
    with plain_training(CASES["discrete"](), priority=power, priority_beta=0.6, segment=segment, minibatches=2) as t:
        learner, batch = moved(t, 0.0)
        sizes = batch.advantages.view(12 // segment, segment, 5).abs().mean(1).flatten().double()
        chances = (sizes + 1e-6) ** power
        chances /= chances.sum()
        drawn = torch.zeros(len(sizes), dtype=torch.int64)
        for _ in range(200):
            for segments, weights in ppo.minibatches(learner, batch):
                index = ppo.transitions(learner.rollout, segments)
                drawn += torch.bincount(segments, minlength=len(sizes))
                exact = (len(sizes) * chances[segments]) ** -0.6
                exact = exact / exact.max()
                torch.testing.assert_close(weights.double(), exact, rtol=1e-3, atol=1e-5)
                assert len(index) == len(segments) * segment
        expected = (chances * drawn.sum()).numpy()
        kept = expected > 5
        seen, rest = drawn.numpy()[kept], [drawn.numpy()[~kept].sum()] * bool((~kept).any())
        wanted, left = expected[kept], [expected[~kept].sum()] * bool((~kept).any())
        assert stats.chisquare([*seen, *rest], np.array([*wanted, *left])).pvalue > 1e-4


def test_target_kl_ends_an_update_early():
    counts = []
    for target in (0.0, 1e-6, 1e6):
        with plain_training(CASES["discrete"](), learning_rate=0.05, epochs=5, minibatches=2, target_kl=target) as t:
            t.start()
            t.collect()
            ppo.update(t.learners[0])
            counts.append(int(t.learners[0].optimizer.state["step"]))
    assert counts == [10, 2, 10]


def test_sizes_that_do_not_fit_are_told():
    with pytest.raises(ConfigError, match=r"segment 5 does not divide --train.horizon 12. Try --train.segment 1"):
        plain_training(CASES["discrete"](), segment=5).__enter__()
    with pytest.raises(ConfigError, match=r"minibatches 61 is more than the 60 transitions"):
        plain_training(CASES["discrete"](), minibatches=61).__enter__()
    with pytest.raises(ConfigError, match="5 segments of 12 steps"):
        plain_training(CASES["discrete"](), minibatches=6, net={"core": "lstm"}).__enter__()


# ---- optimizers, schedules, moments ----


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
@pytest.mark.parametrize(
    "net",
    [
        {},
        {"layers": 0},
        {"separate": True},
        {"core": "lstm"},
        {"core": "mingru"},
        {"core": "lstm", "separate": True},
        {"core": "mingru", "separate": True},
        {"core": "mingru", "separate": True, "head_layers": 1},
    ],
    ids=str,
)
def test_every_optimizer_moves_every_weight(optimizer, net):
    with plain_training(CASES["discrete"](), net=net, optimizer=optimizer, learning_rate=0.01, weight_decay=0.01) as t:
        loud(t)
        before = [p.detach().clone() for p in t.actors[0].parameters()]
        t.iterate()
        after = list(t.actors[0].parameters())
        assert all(torch.isfinite(p).all() and not torch.equal(a, p) for a, p in zip(before, after))


def test_muon_takes_the_hidden_matrices():
    with plain_training(CASES["discrete"](), net={"separate": True}, optimizer="muon") as t:
        learner = t.learners[0]
        layers = [learner.actor.policy.body.layers.layers, learner.actor.policy.critic_body.layers.layers]
        wanted = [layer.weight for part in layers for layer in part]
        parts = [(at, rows * columns) for at, rows, columns in learner.optimizer.matrices]
        found = [learner.weights[at : at + size] for at, size in parts]
        assert all(torch.equal(part, weight.flatten()) for part, weight in zip(found, wanted, strict=True))


@pytest.mark.parametrize(("core", "gates"), [("lstm", 8), ("mingru", 3)])
def test_muon_takes_each_gate_as_a_matrix_of_its_own(core, gates):
    with plain_training(CASES["discrete"](), net={"core": core, "hidden": 16}, optimizer="muon", segment=0) as t:
        learner = t.learners[0]
        policy, matrices = learner.actor.policy, learner.optimizer.matrices
        assert len(matrices) == len(policy.body.layers.layers) + gates
        assert all((rows, columns) == (16, 16) for _, rows, columns in matrices[-gates:])
        whole = torch.cat([p.flatten() for p in policy.core.parameters() if p.ndim == 2])
        assert torch.equal(torch.cat([learner.weights[at : at + 256] for at, _, _ in matrices[-gates:]]), whole)


@pytest.mark.parametrize(("core", "gates"), [("lstm", 8), ("mingru", 3)])
def test_muon_takes_the_gates_of_both_cores(core, gates):
    net = {"core": core, "hidden": 16, "separate": True}
    with plain_training(CASES["discrete"](), net=net, optimizer="muon", segment=0) as t:
        learner = t.learners[0]
        policy, matrices = learner.actor.policy, learner.optimizer.matrices[-2 * gates :]
        whole = torch.cat(
            [p.flatten() for m in (policy.core, policy.critic_core) for p in m.parameters() if p.ndim == 2]
        )
        assert torch.equal(torch.cat([learner.weights[at : at + 256] for at, _, _ in matrices]), whole)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch's own came with 2.9")
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_muon_is_torchs_muon_and_adamw(decay, monkeypatch):
    # torch's products are bfloat16 on every device
    monkeypatch.setattr(muon, "orthogonal", partial(muon.orthogonal, dtype=torch.bfloat16))
    torch.manual_seed(0)
    sizes = [(6, 9), (6,), (8, 6), (2, 8), (2,)]
    mine, theirs = ([torch.nn.Parameter(p.clone()) for p in given] for given in [[torch.randn(s) for s in sizes]] * 2)
    whole, names = flatten(mine), ("a", "b", "c", "actor.weight", "actor.bias")
    common = {"betas": (0.9, 0.999), "eps": 1e-5, "weight_decay": decay}
    policy = SimpleNamespace(modules=list, named_parameters=lambda: zip(names, mine))
    own = Muon(whole, policy, PPO(adam_eps=1e-5, weight_decay=decay), 0.01)
    assert own.matrices == [(0, 6, 9), (60, 8, 6)]
    matrices = torch.optim.Muon(theirs[::2][:2], lr=0.01, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
    rest = torch.optim.AdamW([theirs[1], *theirs[3:]], lr=0.01, **common)
    for _ in range(5):
        for p, q in zip(mine, theirs):
            q.grad = torch.randn_like(q)
            p.grad.copy_(q.grad)
        for optimizer in (own, matrices, rest):
            optimizer.step()
    for p, q in zip(mine, theirs):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("steps", "least", "most"), [(2, 0.03, 0.38), (3, 0.01, 0.27), (4, 0.003, 0.2), (5, 0.003, 0.32)]
)
def test_muons_steps_bring_singular_values_near_one(steps, least, most):
    """As far as optimizers/muon.py says, for values from `least` of the matrix's norm on."""
    torch.manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(40, 40, dtype=torch.float64))[0] for _ in range(2))
    values = torch.logspace(np.log10(least * 1.01), 0, 40, dtype=torch.float64)
    matrix = left @ torch.diag(values) @ right  # its norm is above 1, so that values below `least` are among them
    norm = matrix.norm()
    made = torch.linalg.svdvals(muon.orthogonal(matrix, steps, torch.float64))
    scaled = values / norm
    for a, b, c in muon.POLYNOMIALS[steps]:
        scaled = a * scaled + b * scaled**3 + c * scaled**5
    torch.testing.assert_close(made, scaled.sort(descending=True).values)
    reached = scaled[values / norm >= least]
    assert len(reached) > 20
    assert (reached - 1).abs().max() < most + 0.01


@pytest.mark.parametrize("shape", [(128, 118), (32, 64), (16, 16)], ids=str)
def test_muons_products_are_float32_on_a_cpu(shape):
    """Most CPUs have no instructions for bfloat16: its products took 27 times as long."""
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    wanted = muon.orthogonal(matrix.double(), dtype=torch.float64)
    torch.testing.assert_close(muon.orthogonal(matrix), wanted.float(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [("constant", [1, 1, 1, 1]), ("linear", [1, 0.75, 0.5, 0]), ("cosine", [1, 0.5 + 0.5**1.5, 0.5, 0])],
)
def test_the_learning_rate_goes_as_its_schedule_says(schedule, rates):
    with plain_training(CASES["discrete"](), schedule=schedule, learning_rate=0.2, optimizer="muon") as t:
        learner = t.learners[0]
        for done, rate in zip((0.0, 0.25, 0.5, 1.0), rates):
            got = learner.set_progress(done)
            assert got == pytest.approx(0.2 * rate, abs=1e-12)
            assert learner.optimizer.rate == got
        assert learner.set_progress(1.5) >= 0.0  # a run that goes on past its end


def test_scaled_rewards_equal_a_loop():
    """Divided by the spread of all discounted sums so far, clipped to +-10; sums begin anew with each episode."""
    with plain_training(CASES["python"](), normalize_reward=True) as t:
        t.start()
        sums, seen = np.zeros(5), []
        for _ in range(3):
            t.collect()
            learner = t.learners[0]
            rewards, dones = learner.rollout.rewards.double().numpy(), learner.rollout.dones.numpy()
            for step in range(12):
                sums = rewards[step] + 0.9 * sums
                seen.append(sums.copy())
                sums[dones[step]] = 0.0
            exact = np.clip(rewards / np.sqrt(np.var(seen) + 1e-8), -10, 10)
            np.testing.assert_allclose(ppo.scale_rewards(learner), exact, rtol=1e-4)
            assert np.array_equal(learner.rollout.rewards.numpy(), rewards)  # the rollout keeps what the env said


def test_scaled_observations_equal_a_loop():
    """The policy sees (obs - mean) / spread of all rollouts before this one."""
    with plain_training(CASES["python"](), normalize_obs=True) as t:
        t.start()
        seen = []
        for k in range(3):
            t.collect()
            learner = t.learners[0]
            obs = learner.rollout.obs[0][:-1].flatten(0, 1)
            if k:
                before = np.concatenate(seen)
                exact = np.clip((obs.numpy() - before.mean(0)) / np.sqrt(before.var(0) + 1e-8), -10, 10)
                np.testing.assert_allclose(learner.actor.normalize(obs), exact, rtol=1e-3, atol=1e-4)
            seen.append(obs.double().numpy())
            ppo.update(learner)


def test_metrics_tell_what_happened():
    with plain_training(CASES["discrete"](), learning_rate=0.0) as t:
        t.start()
        t.collect()
        learner = t.learners[0]
        batch, metrics = ppo.make_batch(learner), ppo.update(learner)
        assert float(metrics["kl"]) == pytest.approx(0.0, abs=1e-6)
        assert float(metrics["clip_fraction"]) == 0.0
        assert 0.6 < float(metrics["entropy"]) < math.log(2) + 1e-6
        residual = (batch.returns - batch.values).var(correction=0)
        assert float(metrics["explained_variance"]) == pytest.approx(
            1 - float(residual / batch.returns.var(correction=0)), abs=1e-4
        )
        assert all(isinstance(value, torch.Tensor) and not value.requires_grad for value in metrics.values())


# ---- known answers ----


class IdentityEnv(gymnasium.Env):
    """Pays 1 for the action that equals the observation, or -(action - observation)^2; ends after 8 steps."""

    def __init__(self, kind: str) -> None:
        self.kind, self.count = kind, 0
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32) if kind == "box" else spaces.Discrete(4, start=1)
        self.action_space = {
            "discrete": spaces.Discrete(4, start=1),
            "multi": spaces.MultiDiscrete([4, 4], start=[1, 5]),
            "binary": spaces.MultiBinary(2),
            "box": spaces.Box(-1, 1, (2,), np.float32),
        }[kind]

    def _next(self) -> Any:
        self.seen = self.observation_space.sample()
        return self.seen

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.count = 0
        return self._next(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        if self.kind == "box":
            reward = -float(np.square(action - self.seen).sum())
        else:
            k = int(self.seen)
            wanted = {"discrete": [k], "multi": [k, 9 - k], "binary": [(k - 1) // 2, (k - 1) % 2]}[self.kind]
            reward = float(np.mean(np.ravel(action) == wanted))
        self.count += 1
        return self._next(), reward, False, self.count == 8, {}


LEARN: dict[str, Any] = {
    "epochs": 4, "minibatches": 4, "horizon": 16, "learning_rate": 0.01, "max_grad_norm": 0.5, "clip": 0.2,
    "normalize_advantage": "minibatch", "entropy_coef": 0.0, "value_coef": 0.5, "gamma": 0.5, "gae_lambda": 0.9,
}  # fmt: skip


def greedy_rewards(t, steps=16):
    """Mean reward of the likeliest actions."""
    for learner in t.learners:
        learner.head.draw = lambda noise, _: noise.zero_()
    t.collect()
    return float(torch.stack([learner.rollout.rewards.mean() for learner in t.learners]).mean())


@pytest.mark.parametrize(
    ("kind", "net"),
    [
        ("discrete", {}),
        ("discrete", {"core": "lstm"}),
        ("discrete", {"core": "mingru"}),
        ("discrete", {"core": "lstm", "separate": True}),
        ("multi", {}),
        ("binary", {}),
        ("box", {"log_std": -0.5}),
        ("box", {"log_std": -0.5, "std": "state", "squash": "tanh"}),
    ],
    ids=str,
)
def test_the_identity_is_learned(kind, net):
    vec = shoal.make(lambda: IdentityEnv(kind), 16, backend="serial")
    with plain_training(vec, net={"hidden": 32, **net}, **{**LEARN, "total_steps": 15 * 256}) as t:
        for _ in range(15):
            t.iterate()
        assert greedy_rewards(t) > (0.99 if kind != "box" else -0.03)


class TwoRooms(gymnasium.Env):
    """Room 0 pays 1 and leads to room 1, which leads back, or `ends` the game. A time limit cuts it off anyway."""

    def __init__(self, ends: bool) -> None:
        self.ends = ends
        self.observation_space, self.action_space = spaces.Discrete(2), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.room, self.count = int(self.np_random.integers(2)), 0
        return self.room, {}

    def step(self, action: Any) -> Any:
        reward, is_over = 1.0 - self.room, self.ends and self.room == 1
        self.room, self.count = 1 - self.room, self.count + 1
        return self.room, reward, is_over, not is_over and self.count == 3, {}


@pytest.mark.parametrize(
    ("mode", "ends"), [("ours", False), ("ours", True), ("next_step", False), ("next_step", True), ("same_step", False)]
)
def test_the_critic_learns_values_that_are_known(mode, ends):
    """gamma = 0.9. Episodes are cut off after 3 steps: values are those of a game without end all the same."""
    exact = [1.0, 0.0] if ends else [1 / (1 - 0.81), 0.9 / (1 - 0.81)]
    vec: Any
    if mode == "ours":
        vec = shoal.make(lambda: TwoRooms(ends), 8, backend="serial")
    else:
        vec = SyncVectorEnv([lambda: TwoRooms(ends)] * 8, autoreset_mode=AutoresetMode[mode.upper()])
    options = {**LEARN, "gamma": 0.9, "total_steps": 90 * 128, "learning_rate": 0.05, "value_coef": 1.0}
    with plain_training(vec, seed=4, **options) as t:
        for _ in range(90):
            t.iterate()
        values = t.actors[0].step(torch.tensor([0, 1]), ())[1].tolist()
    assert values == pytest.approx(exact, rel=0.02, abs=0.02)


def test_squared_is_learned():
    """The native tutorial env, where drawing at random returns about -0.3 and the best is 0.86."""
    train = {
        "horizon": 32,
        "epochs": 2,
        "minibatches": 4,
        "learning_rate": 0.003,
        "gamma": 0.95,
        "total_steps": 250_000,
    }
    tables = {"train": train, "nn": {"hidden": 64}, "vec": {"num_envs": 256}}
    with training("squared", tuned="squared", **tables) as t:
        while not t.is_done:
            t.drain()
            t.iterate()
        assert t.drain()["episode/return"] > 0.5


def test_options_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PPO().gamma = 0.5  # type: ignore[misc]


@pytest.mark.parametrize("value_clip", [0.0, 0.3])
@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("choices", [1, 2, 7])
def test_the_loss_of_one_choice_equals_the_loss_of_any_action(choices, dead, value_clip):
    """By hand in C and in torch, against autograd: the loss, its metrics, its gradients."""
    torch.manual_seed(choices)
    rows, config = 300, ppo.PPO(value_clip=value_clip, entropy_coef=0.02, clip=0.2)
    head = ActionHead(spaces.Discrete(choices))
    logits, values = 2.0 * torch.randn(rows, choices), torch.randn(rows)
    logits[:5] = NEVER  # rows without an allowed choice
    actions = torch.randint(choices, (rows, 1))
    counts = (torch.rand(rows) > 0.3).float() if dead else None
    part = ppo.Targets(
        actions=actions,
        logprobs=head.log_prob(logits + 0.5 * torch.randn_like(logits), actions),
        values=values + 0.5 * torch.randn(rows),
        advantages=torch.randn(rows),
        returns=torch.randn(rows),
        counts=counts,
        total=rows if counts is None else counts.sum(),
    )
    found = []
    for loss_of in (ppo.clipped_loss, choice_loss.choice_loss):
        inputs = logits.clone().requires_grad_(), values.clone().requires_grad_()
        loss, metrics = loss_of(config, head, *inputs, part)
        loss.backward()
        found.append((loss.detach(), metrics, *(x.grad for x in inputs)))
    by_torch = choice_loss._in_torch(logits, values, part, config)
    for plain, fast in zip(*found):
        torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-6)
    for fast, plain in zip(by_torch, (found[0][2], found[0][3], found[0][1])):
        torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-6)


def test_chunks_add_up_to_the_minibatch(monkeypatch):
    """A minibatch that goes through in pieces moves the weights as one that goes through whole."""
    moved_by = []
    for chunk in (8192, 7):
        monkeypatch.setattr(ppo, "CHUNK", chunk)
        for core in ("none", "mingru"):
            with plain_training(CASES["discrete"](), net={"core": core}, learning_rate=0.01) as t:
                t.iterate()
                t.iterate()
                moved_by.append([p.detach().clone() for p in t.actors[0].parameters()])
    for whole, pieces in ((moved_by[0], moved_by[2]), (moved_by[1], moved_by[3])):
        for a, b in zip(whole, pieces):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_is_torchs(decoupled):
    """To the bit, also where it goes on from a saved state."""
    torch.manual_seed(0)
    ours, theirs = nn.Parameter(torch.randn(1000)), nn.Parameter(torch.zeros(1000))
    theirs.data.copy_(ours.data)
    options = {"betas": (0.9, 0.99), "eps": 1e-5, "weight_decay": 0.1 if decoupled else 0.0}
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    config = PPO(adam_beta2=0.99, adam_eps=1e-5, weight_decay=0.1)
    make = partial(AdamW if decoupled else Adam, ours, None, config, 0.01)
    fast, plain = make(), kind([theirs], lr=0.01, **options, fused=True)
    for k in range(10):
        if k == 5:
            saved, fast = fast.state, make()
            copy_into(fast.state, saved)
        ours.grad = torch.randn(1000)
        theirs.grad = ours.grad.clone()
        fast.step()
        plain.step()
        assert torch.equal(ours, theirs)
    assert torch.equal(fast.state["exp_avg"], plain.state_dict()["state"][0]["exp_avg"])


def test_training_does_not_load_the_compiler():
    code = (
        "import sys; from shoal.train import Trainer, options_for;"
        "t = Trainer('squared', options_for('', {'vec': {'num_envs': 8}, 'train': {'horizon': 4}}));"
        "t.iterate(); t.close(); assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
