"""PPO's loss for one choice of n, with the gradient worked out by hand: in C on a CPU, in torch on a GPU.

The meaning is `clipped_loss` of algos/ppo.py, which the tests compare it with. Forward computes the gradients at once:

    dL/dlogits = g (onehot(a) - p) + entropy_coef p (log p + H) / n,   g = -A r / n where the clip does not bind
    dL/dV      = value_coef (V - R) / n                                where the clip does not bind
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal.native import lib


def choice_loss(config: Any, head: Any, logits: Tensor, values: Tensor, targets: Any) -> tuple[Tensor, Tensor]:
    """As `clipped_loss` of algos/ppo.py."""
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
    free, held = targets.advantages * ratio, targets.advantages * ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
    error = values - targets.returns
    errors, slope = error.square(), error
    if config.value_clip:
        move = values - targets.values
        step = move.clamp(-config.value_clip, config.value_clip)
        near = targets.values + step - targets.returns
        clipped = near.square()
        slope = torch.where(errors >= clipped, error, near * (move == step))
        errors = torch.maximum(errors, clipped)
    pull = (free * (free <= held) * share).unsqueeze(-1)  # -g
    d_logits = (p * pull).scatter_add_(-1, targets.actions, -pull)
    weight = config.entropy_coef * share
    d_logits += (logp + entropies.unsqueeze(-1)) * p * (weight if targets.counts is None else weight.unsqueeze(-1))
    moved = ((ratio - 1.0).abs() > config.clip).to(p.dtype)
    rows = torch.stack([-torch.minimum(free, held), 0.5 * errors, entropies, ratio - 1.0 - log_ratio, moved])
    metrics = rows.sum(1) * share if targets.counts is None else rows @ share
    return d_logits, slope * (config.value_coef * share), metrics
