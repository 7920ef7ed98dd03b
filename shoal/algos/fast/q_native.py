"""Q-learning on a CPU with a network of plain layers, in a few calls of C (native/core/qlearn.c).

For the few rows of a small run, calling an operation of torch takes longer than its arithmetic. Here acting is one call
for all rows of a block, and a gradient step is one call for the whole batch. What it means is in algos/dqn.py and
nn/qnet.py, which run everything else: other networks, and GPUs. The tests compare the two.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.native import qlearn
from shoal.nn.qnet import QHead, QNet

# Above, torch's products are as quick as C's, measured with one thread of each (docs/LOG.md); or it has more threads.
MOST_WORK = 1 << 26  # rows times weights
MOST_NUMBERS = 1 << 18  # rows times the width of the widest layer: from here on training takes all cores (train.py)


def covers(actor: Any, rows: int) -> bool:
    """Whether C knows an actor's network, and so many rows are few enough."""
    policy, head = actor.policy, actor.head
    if not (type(policy) is QNet and policy.is_plain and type(head) is QHead and actor.is_plain):
        return False
    weights = list(policy.parameters())
    if any(part.device.type != "cpu" or part.dtype != torch.float32 for part in weights):
        return False
    width = max(part.shape[-1] for part in weights)
    return bool(rows * sum(part.numel() for part in weights) <= MOST_WORK and rows * width < MOST_NUMBERS)


class PlainNet:
    """The shape of an actor's network, for C, and memory for its work on `rows` rows."""

    def __init__(self, actor: Any, rows: int) -> None:
        policy = actor.policy
        self.actor, self.encoder, self.lib = actor, policy.encoder, qlearn.load()
        self.sizes = np.array([part.weight.shape[1] for part in policy.layers] + list(policy.head.weight.shape[1:]))
        facts = len(policy.layers) + 1, policy.activation == "tanh", policy.layer_norm
        self.shape = qlearn.Net(self.sizes.ctypes.data, *facts)
        self.address = ctypes.addressof(self.shape)
        self.work = torch.empty(self.lib.room(self.address, rows))
        self._parts = list(policy.parameters())

    def weights(self) -> int:
        """Where the weights lie, one after the other; 0 where they do not."""
        first: int = self._parts[0].data_ptr()
        at = first
        for part in self._parts:
            if part.data_ptr() != at:
                return 0
            at += 4 * part.numel()
        return first

    def features(self, obs: Any) -> Tensor:
        """(rows, sizes[0]) of raw observations, as the first layer takes them."""
        found: Tensor = self.encoder.forward(self.actor.normalize(obs))
        return found if found.is_contiguous() else found.contiguous()


class NativeActing:
    """Acts for rows of a rollout: writes logits, values and actions of a cell (algos/rollout.py)."""

    def __init__(self, actor: Any, rows: int) -> None:
        self.net = PlainNet(actor, rows)
        self.weights = 0

    def begin(self) -> bool:
        """Looks where the weights are; whether they are where C can read them."""
        self.weights = self.net.weights()
        return self.weights != 0

    def act(self, views: Any) -> None:
        """What `Collector` does by torch: Q of what the rows see, and by their noise what they do."""
        if views.native is None:
            views.native = self._describe(views)
        act, address, is_as_seen = views.native
        act.weights = self.weights
        if is_as_seen:
            self.net.lib.act(address)
            return
        seen = self.net.features(views.obs)
        act.x = seen.data_ptr()
        self.net.lib.act(address)

    def _describe(self, views: Any) -> tuple[qlearn.Act, int, bool]:
        """The cell's memory for C, its address, and whether the first layer takes observations as they lie there."""
        parts = (views.noise, views.logits, views.values, views.actions)
        assert all(part.is_contiguous() for part in parts)
        pointers = [part.data_ptr() for part in (*parts, self.net.work)]
        mask = None if views.mask is None else views.mask.data_ptr()
        seen = self.net.features(views.obs)
        is_as_seen = isinstance(views.obs, Tensor) and seen.data_ptr() == views.obs.data_ptr()
        act = qlearn.Act(self.net.address, 0, seen.data_ptr(), mask, *pointers, len(views.logits))
        return act, ctypes.addressof(act), is_as_seen


class NativeLearning:
    """Takes gradient steps of a DQN learner."""

    def __init__(self, learner: Any, rows: int) -> None:
        config, optimizer = learner.config, learner.optimizer
        self.learner, self.net, self.rows = learner, PlainNet(learner.actor, rows), rows
        self.found, self.errors, self.seen = torch.zeros(4), torch.empty(rows), torch.zeros(2)
        self.rollout, self.watched = learner.rollout, self._describe(learner)
        self._kept = (learner.weights, learner.weights.grad, *optimizer.state.values(), learner.target)
        weights, gradient, step, mean, square, target = (part.data_ptr() for part in self._kept)
        fixed = optimizer.fixed
        self.step = qlearn.Improve(
            net=self.net.address,
            weights=weights,
            gradient=gradient,
            mean=mean,
            square=square,
            step=step,
            target=target,
            errors=self.errors.data_ptr(),
            found=self.found.data_ptr(),
            work=self.net.work.data_ptr(),
            rows=rows,
            is_double=config.double,
            is_mse=config.loss == "mse",
            beta1=fixed["beta1"],
            beta2=fixed["beta2"],
            eps=fixed["eps"],
            limit=config.max_grad_norm,
        )

    def _describe(self, learner: Any) -> qlearn.Watch:
        rollout, steps = learner.rollout, learner.rollout.dones.shape[0]
        alive = None if rollout.alive is None else rollout.alive.data_ptr()
        parts = {"rewards": rollout.rewards, "logits": rollout.logits, "dones": rollout.dones, "games": learner.games}
        pointers = {name: part.data_ptr() for name, part in parts.items()}
        sizes = {"steps": steps, "rows": rollout.rows, "choices": rollout.logits.shape[-1]}
        return qlearn.Watch(alive=alive, found=self.seen.data_ptr(), agents=learner.actor.agents, **pointers, **sizes)

    def observe(self) -> dict[str, float]:
        """As `observe` of algos/q.py."""
        self.net.lib.watch(ctypes.addressof(self.watched))
        reward, best = self.seen.tolist()
        return {"epsilon": self.learner.head.epsilon.item(), "reward": reward, "q_played": best}

    def improve(self, batch: Any) -> tuple[list[float], Tensor]:
        """One gradient step: METRICS of algos/dqn.py, and of every row Q less its target."""
        step, see = self.step, self.learner.rollout.observations
        seen, next_seen = self.net.features(see(batch.obs)), self.net.features(see(batch.next_obs))
        assert len(seen) == self.rows
        step.x, step.next_x = seen.data_ptr(), next_seen.data_ptr()
        step.actions, step.returns = batch.actions.data_ptr(), batch.returns.data_ptr()
        step.discounts, step.counts = batch.discounts.data_ptr(), batch.weights.data_ptr()
        step.next_masks = None if batch.next_masks is None else batch.next_masks.data_ptr()
        step.rate = self.learner.optimizer.rate
        self.net.lib.improve(ctypes.addressof(step))
        return self.found.tolist(), self.errors
