"""Q-learning with a small network on a CPU, in a few calls of C (native/core/qlearn.c).

For a few rows, calling a torch operation takes longer than its arithmetic. Here acting is one call for all rows of a
range of envs, and a gradient step is one call for the whole batch. algos/dqn.py and nn/qnet.py define the results and
handle all other networks and GPUs. The tests compare them.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.native import qlearn
from shoal.nn.qnet import QHead, QNet

# above these, torch is at least as fast: with one thread each (docs/LOG.md), or because training uses more threads
MAX_WORK = 1 << 26  # rows times weights
MAX_ACTIVATIONS = 1 << 18  # rows times the width of the widest layer; from there training uses all cores (train/)


def covers(actor: Any, rows: int) -> bool:
    """Whether C covers an actor's network, and is faster than torch for `rows` rows."""
    policy, head = actor.policy, actor.head
    if not (type(policy) is QNet and policy.is_plain and type(head) is QHead and actor.is_plain):
        return False
    weights = list(policy.parameters())
    if any(weight.device.type != "cpu" or weight.dtype != torch.float32 for weight in weights):
        return False
    width = max(weight.shape[-1] for weight in weights)
    return bool(rows * sum(weight.numel() for weight in weights) <= MAX_WORK and rows * width < MAX_ACTIVATIONS)


class PlainNet:
    """An actor's network for C: its shape, and scratch memory for `rows` rows."""

    def __init__(self, actor: Any, rows: int) -> None:
        policy = actor.policy
        self.actor, self.encoder, self.lib = actor, policy.encoder, qlearn.load()
        self.sizes = np.array([layer.weight.shape[1] for layer in policy.layers] + list(policy.head.weight.shape[1:]))
        options = len(policy.layers) + 1, policy.activation == "tanh", policy.layer_norm
        self.shape = qlearn.Net(self.sizes.ctypes.data, *options)
        self.address = ctypes.addressof(self.shape)
        self.work = torch.empty(self.lib.room(self.address, rows))
        self._parameters = list(policy.parameters())

    def weights(self) -> int:
        """The address of the weights if they are contiguous, else 0."""
        first: int = self._parameters[0].data_ptr()
        address = first
        for parameter in self._parameters:
            if parameter.data_ptr() != address:
                return 0
            address += 4 * parameter.numel()
        return first

    def features(self, obs: Any) -> Tensor:
        """(rows, sizes[0]): the first layer's inputs from raw observations."""
        inputs: Tensor = self.encoder.forward(self.actor.normalize(obs))
        return inputs if inputs.is_contiguous() else inputs.contiguous()


class NativeActing:
    """Acts for rows of a rollout: writes the logits, values and actions of `StepViews` (algos/rollout.py)."""

    def __init__(self, actor: Any, rows: int) -> None:
        self.net = PlainNet(actor, rows)
        self.weights = 0

    def begin(self) -> bool:
        """Begins a rollout. Returns whether C can read the weights: they must be contiguous."""
        self.weights = self.net.weights()
        return self.weights != 0

    def act(self, views: Any) -> None:
        """Does what `act_into` (algos/collect) does in torch: Q of the observations, and actions by their noise."""
        if views.native is None:
            views.native = self._describe(views)
        act, address, uses_obs = views.native
        act.weights = self.weights
        if uses_obs:
            self.net.lib.act(address)
            return
        inputs = self.net.features(views.obs)  # referenced until C returns
        act.x = inputs.data_ptr()
        self.net.lib.act(address)

    def _describe(self, views: Any) -> tuple[qlearn.Act, int, bool]:
        """The C struct of the views, its address, and whether the first layer reads the observations directly."""
        tensors = (views.noise, views.logits, views.values, views.actions)
        assert all(tensor.is_contiguous() for tensor in tensors)
        pointers = [tensor.data_ptr() for tensor in (*tensors, self.net.work)]
        mask = None if views.mask is None else views.mask.data_ptr()
        inputs = self.net.features(views.obs)
        uses_obs = isinstance(views.obs, Tensor) and inputs.data_ptr() == views.obs.data_ptr()
        act = qlearn.Act(self.net.address, 0, inputs.data_ptr(), mask, *pointers, len(views.logits))
        return act, ctypes.addressof(act), uses_obs


class NativeLearning:
    """Gradient steps of a DQN learner on batches of `rows` windows."""

    def __init__(self, learner: Any, rows: int) -> None:
        config, optimizer = learner.config, learner.optimizer
        self.learner, self.net, self.rows = learner, PlainNet(learner.actor, rows), rows
        self.metrics, self.errors, self.rollout_metrics = torch.zeros(4), torch.empty(rows), torch.zeros(2)
        self.rollout, self.watch = learner.rollout, self._describe(learner)
        # referenced here, because C holds their addresses
        self._tensors = (learner.weights, learner.weights.grad, *optimizer.state.values(), learner.target)
        weights, gradient, step, mean, square, target = (tensor.data_ptr() for tensor in self._tensors)
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
            found=self.metrics.data_ptr(),
            work=self.net.work.data_ptr(),
            rows=rows,
            is_double=config.double,
            is_mse=config.loss == "mse",
            beta1=fixed["beta1"],
            beta2=fixed["beta2"],
            eps=fixed["eps"],
        )

    def _describe(self, learner: Any) -> qlearn.Watch:
        """The C struct of the rollout, for `observe`."""
        rollout, steps = learner.rollout, learner.rollout.dones.shape[0]
        alive = None if rollout.alive is None else rollout.alive.data_ptr()
        tensors = {"rewards": rollout.rewards, "logits": rollout.logits, "dones": rollout.dones, "games": learner.games}
        pointers = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        sizes = {"steps": steps, "rows": rollout.rows, "choices": rollout.logits.shape[-1]}
        return qlearn.Watch(
            alive=alive, found=self.rollout_metrics.data_ptr(), agents=learner.actor.agents, **pointers, **sizes
        )

    def observe(self) -> dict[str, float]:
        """The same as `observe` of algos/q.py."""
        self.net.lib.watch(ctypes.addressof(self.watch))
        reward, q_played = self.rollout_metrics.tolist()
        return {"epsilon": self.learner.head.epsilon.item(), "reward": reward, "q_played": q_played}

    def improve(self, batch: Any) -> tuple[list[float], Tensor]:
        """One gradient step; returns STEP_METRICS of algos/dqn.py, and the TD errors (rows,)."""
        step, structured = self.step, self.learner.rollout.observations
        inputs = self.net.features(structured(batch.obs))
        next_inputs = self.net.features(structured(batch.next_obs))
        assert len(inputs) == self.rows
        step.x, step.next_x = inputs.data_ptr(), next_inputs.data_ptr()
        step.actions, step.returns = batch.actions.data_ptr(), batch.returns.data_ptr()
        step.discounts, step.counts = batch.discounts.data_ptr(), batch.weights.data_ptr()
        step.next_masks = None if batch.next_masks is None else batch.next_masks.data_ptr()
        step.rate, step.limit = self.learner.optimizer.rate, self.learner.config.max_grad_norm
        self.net.lib.improve(ctypes.addressof(step))
        return self.metrics.tolist(), self.errors
