"""Sums over time and running moments: what algorithms share. Equation in the docstring, a slow twin in the tests.

Time comes first: (steps, rows). `dones[t]` is true where step t ended an episode, so nothing after it flows back.
Truncated episodes bootstrap before they come here: gamma V(final_obs) is added to the reward of their last step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from shoal.native import lib
from shoal.nn.launch import fresh, has_triton, launch

BLOCK = 32  # rows that a block of the GPU sums over time


def gae(rewards: Tensor, values: Tensor, dones: Tensor, gamma: float, lam: float) -> Tensor:
    """Generalized advantage estimation (Schulman et al. 2016).

        A_t = d_t + gamma lam n_t A_{t+1},   d_t = r_t + gamma n_t V_{t+1} - V_t,   n_t = 0 if dones[t] else 1

    rewards, dones: (steps, rows); values: (steps + 1, rows). Returns (steps, rows).
    """
    return _advantages(rewards, values, dones, None, None, gamma, lam)


def vtrace(
    rewards: Tensor,
    values: Tensor,
    dones: Tensor,
    ratios: Tensor,
    gamma: float,
    lam: float = 1.0,
    rho_max: float = 1.0,
    c_max: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """V-trace (Espeholt et al. 2018) for data of an older policy; ratios = pi(a) / mu(a), (steps, rows).

        v_t = V_t + rho_t d_t + gamma lam c_t n_t (v_{t+1} - V_{t+1}),  rho = min(rho_max, ratio), c = min(c_max, ratio)

    Returns the targets v (steps, rows) and the advantages r_t + gamma n_t (lam v_{t+1} + (1 - lam) V_{t+1}) - V_t, as
    rlax has them: with ratios of 1 they are GAE's. The paper's policy gradient multiplies them by rho; PPO's surrogate
    brings its own ratio.
    """
    if ratios.shape != rewards.shape:
        raise ValueError(f"ratios {tuple(ratios.shape)}: expected {tuple(rewards.shape)}, as rewards.")
    rho, c = ratios.clamp(max=rho_max), ratios.clamp(max=c_max)
    excess = _advantages(rewards, values, dones, rho, c, gamma, lam)  # v - V
    later = values[1:] + lam * torch.cat([excess[1:], torch.zeros_like(excess[:1])])
    return values[:-1] + excess, rewards + gamma * (~dones).to(rewards.dtype) * later - values[:-1]


def _advantages(
    rewards: Tensor, values: Tensor, dones: Tensor, rho: Tensor | None, c: Tensor | None, gamma: float, lam: float
) -> Tensor:
    steps, rows = rewards.shape
    if tuple(values.shape) != (steps + 1, rows) or dones.shape != rewards.shape:
        shapes = f"rewards {tuple(rewards.shape)}, values {tuple(values.shape)}, dones {tuple(dones.shape)}"
        raise ValueError(f"{shapes}: expected (steps, rows), (steps + 1, rows), (steps, rows).")
    numbers = [rewards, values, *([] if rho is None or c is None else [rho, c])]
    if _is_for_c(dones, *numbers):
        inputs = [part.contiguous() for part in (rewards, values, dones, *numbers[2:])]
        out = torch.empty_like(inputs[0])
        pointers = [tensor.data_ptr() for tensor in inputs] + [None] * (5 - len(inputs))
        lib.load_core().advantages(*pointers, gamma, lam, steps, rows, out.data_ptr())
        return out
    if _is_for_triton(dones, *numbers):
        out, more = fresh(rewards), (None, None) if rho is None else (rho, c)
        launch(
            _triton().advantages, (-(-rows // BLOCK),),
            rewards, values, dones, *more, out, gamma, lam, steps, rows, PART=BLOCK, num_warps=BLOCK // 32,
        )  # fmt: skip
        return out
    goes_on = gamma * (~dones).to(rewards.dtype)
    deltas = rewards + goes_on * values[1:] - values[:-1]
    if rho is not None and c is not None:
        deltas, goes_on = rho * deltas, c * goes_on
    out, later = torch.empty_like(rewards), torch.zeros_like(rewards[0])
    for t in range(steps - 1, -1, -1):
        later = torch.addcmul(deltas[t], goes_on[t], later, value=lam)
        out[t] = later
    return out


def lambda_returns(rewards: Tensor, values: Tensor, dones: Tensor, gamma: float, lam: float) -> Tensor:
    """What PQN's Q-values are pulled to; values[t] = max over a of Q(obs[t], a).

        G_t = r_t + gamma n_t (lam G_{t+1} + (1 - lam) V_{t+1}),   n_t = 0 if dones[t] else 1,   G_steps = V_steps

    rewards, dones: (steps, rows); values: (steps + 1, rows). Returns (steps, rows). It is V + GAE, term by term.
    """
    return gae(rewards, values, dones, gamma, lam) + values[:-1]


def n_step(rewards: Tensor, stops: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Discounted sums of windows of at most n steps, and how many steps each one has.

        R = sum over k < m of gamma^k r_k,   m = the step of the first stop + 1, or n where there is none

    rewards, stops: (n, batch); stops[k] is true where the window goes no further than step k: an episode ended with
    it, or the next step has not been played yet. Returns R and m, both (batch,). What lies after a stop is not read.
    """
    if stops.shape != rewards.shape or rewards.ndim != 2:
        raise ValueError(f"rewards {tuple(rewards.shape)}, stops {tuple(stops.shape)}: expected (n, batch) of both.")
    counted = (torch.cumsum(stops, 0) - stops.to(torch.int64)) == 0  # no stop before
    powers = gamma ** torch.arange(len(rewards), device=rewards.device, dtype=rewards.dtype)
    return (torch.where(counted, rewards, 0.0) * powers.unsqueeze(1)).sum(0), counted.sum(0)


def project(probs: Tensor, rewards: Tensor, discounts: Tensor, atoms: Tensor) -> Tensor:
    """C51's projection (Bellemare et al. 2017): the distribution of r + g Z on the atoms that Z lives on.

        out_j = sum over i of p_i max(0, 1 - |clip(r + g z_i) - z_j| / dz)

    probs: (batch, atoms); rewards, discounts: (batch,), discounts 0 where nothing follows; atoms: (atoms,) evenly
    spaced. A sum, where the paper scatters: its order is fixed, so that a GPU repeats it to the bit.
    """
    if probs.ndim != 2 or atoms.shape != probs.shape[1:] or rewards.shape != probs.shape[:1]:
        raise ValueError(f"probs {tuple(probs.shape)}, rewards {tuple(rewards.shape)}, atoms {tuple(atoms.shape)}.")
    low, high = atoms[0], atoms[-1]
    moved = rewards.unsqueeze(1) + discounts.unsqueeze(1) * atoms
    moved = torch.minimum(torch.maximum(moved, low), high)
    nearness = 1.0 - (moved.unsqueeze(1) - atoms.view(1, -1, 1)).abs() * ((len(atoms) - 1) / (high - low))
    return (nearness.clamp_(min=0.0) * probs.unsqueeze(1)).sum(-1)


def quantile_loss(quantiles: Tensor, targets: Tensor) -> Tensor:
    """QR-DQN's loss (Dabney et al. 2018), one number for each row of the batch.

        L = sum over i of mean over j of |tau_i - 1(u < 0)| huber(u),   u = targets_j - quantiles_i

    quantiles: (batch, n), at the middles tau_i = (i + 0.5) / n; targets: (batch, m).
    """
    count = quantiles.shape[1]
    taus = (torch.arange(count, device=quantiles.device, dtype=quantiles.dtype) + 0.5) / count
    errors = targets.unsqueeze(1) - quantiles.unsqueeze(2)  # (batch, n, m)
    sizes = errors.abs()
    hubers = torch.where(sizes <= 1.0, 0.5 * errors.square(), sizes - 0.5)
    return ((taus.view(1, -1, 1) - (errors < 0.0).to(errors.dtype)).abs() * hubers).mean(2).sum(1)


def running_returns(rewards: Tensor, dones: Tensor, gamma: float, carry: Tensor) -> Tensor:
    """R_t = r_t + gamma R_{t-1}, begun anew after each done; `carry` (rows,) is R before and is updated in place."""
    steps, rows = rewards.shape
    if dones.shape != rewards.shape or tuple(carry.shape) != (rows,):
        shapes = f"rewards {tuple(rewards.shape)}, dones {tuple(dones.shape)}, carry {tuple(carry.shape)}"
        raise ValueError(f"{shapes}: expected (steps, rows), (steps, rows), (rows,).")
    out = fresh(rewards)
    if _is_for_c(dones, rewards, carry) and carry.is_contiguous():
        inputs = rewards.contiguous(), dones.contiguous()
        pointers = [tensor.data_ptr() for tensor in inputs]
        lib.load_core().running_returns(*pointers, gamma, steps, rows, carry.data_ptr(), out.data_ptr())
        return out
    if _is_for_triton(dones, rewards, carry):
        launch(
            _triton().running_returns, (-(-rows // BLOCK),),
            rewards, dones, carry, out, gamma, steps, rows, PART=BLOCK, num_warps=BLOCK // 32,
        )  # fmt: skip
        return out
    for t in range(steps):
        out[t] = rewards[t] + gamma * carry
        carry.copy_(out[t] * (~dones[t]).to(out.dtype))
    return out


def _is_for_c(dones: Tensor, *numbers: Tensor) -> bool:
    """Whether the C kernels can read these: float32 in this machine's memory, and flags of one byte."""
    fits = all(part.dtype == torch.float32 and part.device.type == "cpu" for part in numbers)
    return fits and dones.dtype == torch.bool and dones.device.type == "cpu"


def _is_for_triton(dones: Tensor, *numbers: Tensor) -> bool:
    """Whether the GPU's kernels can read these."""
    parts = (dones, *numbers)
    fits = all(part.device.type == "cuda" and part.is_contiguous() for part in parts)
    return fits and dones.dtype == torch.bool and all(n.dtype == torch.float32 for n in numbers) and has_triton()


def _triton() -> Any:
    from shoal.algos.fast import kernels

    return kernels


class RunningMoments(nn.Module):
    """Mean and variance of everything seen so far, merged batch by batch (Chan et al. 1979)."""

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, batch: Tensor, counts: Tensor | None = None) -> None:
        """Takes in (n, *shape); with counts (n,), only the entries where they are true."""
        if not len(batch):
            return
        wide, seen = batch.to(torch.float64), self.count
        if counts is None:
            var, mean = torch.var_mean(wide, dim=0, correction=0)
            count = torch.full_like(seen, len(batch))
        else:  # in sizes that do not depend on how many there are: a graph can capture it
            weights = counts.to(torch.float64).view(-1, *[1] * (batch.ndim - 1))
            count = weights.sum()
            mean = torch.where(count > 0, (wide * weights).sum(0) / count.clamp(min=1.0), self.mean)
            var = ((wide - mean).square() * weights).sum(0) / count.clamp(min=1.0)
        total, delta = (seen + count).clamp(min=1.0), mean - self.mean
        spread = self.var * seen + var * count + delta**2 * (seen * count / total)
        self.mean += delta * (count / total)
        self.var.copy_(torch.where(seen + count > 0, spread / total, self.var))
        self.count.copy_(seen + count)

    def normalize(self, batch: Tensor, limit: float = 10.0) -> Tensor:
        """(x - mean) / std in float32, clipped to +-limit."""
        scale = (self.var + 1e-8).rsqrt().to(torch.float32)
        return ((batch.to(torch.float32) - self.mean.to(torch.float32)) * scale).clamp_(-limit, limit)


def explained_variance(values: Tensor, returns: Tensor, counts: Tensor | None = None) -> Tensor:
    """1 - Var(returns - values) / Var(returns): 1 is a perfect critic, 0 one that knows only the mean.

    With counts (1 or 0 for each), only over the entries that count; nan where there are none, or all are alike.
    """
    if not len(returns):
        return returns.new_tensor(torch.nan)
    errors = returns - values
    if counts is None:
        spread, missed = returns.var(correction=0), errors.var(correction=0)
    else:
        spread = masked_mean((returns - masked_mean(returns, counts)).square(), counts)
        missed = masked_mean((errors - masked_mean(errors, counts)).square(), counts)
    return torch.where(spread > 0, 1.0 - missed / spread, torch.nan)


def masked_mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """The mean over entries of weight 1; over all where there are no weights."""
    return values.mean() if weights is None else (values * weights).sum() / weights.sum().clamp(min=1.0)
