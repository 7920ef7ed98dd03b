"""Slow, obvious twins of the ops of shoal.algos.ops."""

from __future__ import annotations

import torch


def slow_gae(rewards, values, dones, gamma, lam):
    """Its definition, step by step: A_t = sum over k of (gamma lam)^k d_{t+k}, up to the end of the episode."""
    steps, rows = rewards.shape
    out = torch.zeros(steps, rows, dtype=torch.float64)
    for row in range(rows):
        for t in range(steps):
            weight = 1.0
            for k in range(t, steps):
                bootstrap = 0.0 if dones[k, row] else gamma * float(values[k + 1, row])
                out[t, row] += weight * (float(rewards[k, row]) + bootstrap - float(values[k, row]))
                if dones[k, row]:
                    break
                weight *= gamma * lam
    return out
