"""PPO's loss for a single discrete action, with a manual gradient: in C on a CPU, in torch on a GPU.

It computes the same as `clipped_loss` of algos/ppo.py; the tests compare them. The forward pass computes the gradients:

    dL/dlogits = g (onehot(a) - p) + entropy_coef p (log p + H) / n,   g = -A r / n where the ratio is not clipped
    dL/dV      = value_coef (V - R) / n                                where the value is not clipped
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal.algos.learner import is_on
from shoal.native import lib


def choice_loss(config: Any, head: Any, logits: Tensor, values: Tensor, targets: Any) -> tuple[Tensor, Tensor]:
    """The same as `clipped_loss` of algos/ppo.py."""
    loss, metrics = _ChoiceLoss.apply(logits, values, targets, config)
    return loss, metrics


class _ChoiceLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, values: Tensor, targets: Any, config: Any) -> tuple[Tensor, Tensor]:
        on_cpu = logits.device.type == "cpu" and logits.dtype == torch.float32
        d_logits, d_values, metrics = (_in_c if on_cpu else _in_torch)(logits, values, targets, config)
        ctx.save_for_backward(d_logits, d_values)
        ctx.mark_non_differentiable(metrics)
        return metrics[0] + config.value_coef * metrics[1] - config.entropy_coef * metrics[2], metrics

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_logits, d_values = ctx.saved_tensors
        return d_logits * grads[0], d_values * grads[0], None, None


def _in_c(logits: Tensor, values: Tensor, targets: Any, config: Any) -> tuple[Tensor, Tensor, Tensor]:
    required = (logits, values, targets.actions, targets.logprobs, targets.values, targets.advantages, targets.returns)
    inputs = [x.contiguous() for x in (*required, *([] if targets.counts is None else [targets.counts]))]
    d_logits, d_values, metrics = torch.empty_like(inputs[0]), torch.empty_like(inputs[1]), torch.empty(5)
    pointers = [x.data_ptr() for x in inputs] + [None] * (8 - len(inputs))
    coefs = (float(targets.total), config.clip, config.value_clip, config.value_coef, config.entropy_coef)
    outputs = [x.data_ptr() for x in (d_logits, d_values, metrics)]
    lib.load_core().choice_loss(*pointers, len(values), logits.shape[1], *coefs, *outputs)
    return d_logits, d_values, metrics


def _in_torch(logits: Tensor, values: Tensor, targets: Any, config: Any) -> tuple[Tensor, Tensor, Tensor]:
    share: Any = 1.0 / targets.total if targets.counts is None else targets.counts / targets.total
    logp = torch.log_softmax(logits, -1)
    p = logp.exp()
    entropies = -(p * logp).sum(-1)
    log_ratio = logp.gather(-1, targets.actions).squeeze(-1) - targets.logprobs
    ratio = log_ratio.exp()
    clipped_ratio = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
    surrogate, clipped = targets.advantages * ratio, targets.advantages * clipped_ratio
    error = values - targets.returns
    squares, derivative = error.square(), error
    if is_on(config.value_clip):
        change = values - targets.values
        clipped_change = change.clamp(-config.value_clip, config.value_clip)
        clipped_error = targets.values + clipped_change - targets.returns
        clipped_squares = clipped_error.square()
        derivative = torch.where(squares >= clipped_squares, error, clipped_error * (change == clipped_change))
        squares = torch.maximum(squares, clipped_squares)
    minus_g = (surrogate * (surrogate <= clipped) * share).unsqueeze(-1)
    d_logits = (p * minus_g).scatter_add_(-1, targets.actions, -minus_g)
    weight = config.entropy_coef * share
    d_logits += (logp + entropies.unsqueeze(-1)) * p * (weight if targets.counts is None else weight.unsqueeze(-1))
    is_clipped = ((ratio - 1.0).abs() > config.clip).to(p.dtype)
    policy_losses, kls = -torch.minimum(surrogate, clipped), ratio - 1.0 - log_ratio
    rows = torch.stack([policy_losses, 0.5 * squares, entropies, kls, is_clipped])
    metrics = rows.sum(1) * share if targets.counts is None else rows @ share
    return d_logits, derivative * (config.value_coef * share), metrics
