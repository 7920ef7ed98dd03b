"""Returns, advantages, distributional targets and running statistics, as functions of tensors. Knows no algorithm.

Each docstring has the equation, and the tests compare with a slow loop. Time is the first axis: (steps, rows).
`dones[t]` is true where step t ended an episode: later steps do not count for it. Truncated episodes are bootstrapped
before: gamma V(final_obs) is already added to the reward of their last step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from shoal.native import lib
from shoal.nn.launch import fresh, has_triton, launch

BLOCK = 32  # rows of a GPU block


def gae(rewards: Tensor, values: Tensor, dones: Tensor, gamma: float | Tensor, lam: float | Tensor) -> Tensor:
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
    gamma: float | Tensor,
    lam: float | Tensor = 1.0,
    rho_max: float | Tensor = 1.0,
    c_max: float | Tensor = 1.0,
) -> tuple[Tensor, Tensor]:
    """V-trace (Espeholt et al. 2018), for steps of an older policy mu; ratios = pi(a) / mu(a), (steps, rows).

        v_t = V_t + rho_t d_t + gamma lam c_t n_t (v_{t+1} - V_{t+1}),  rho = min(rho_max, ratio), c = min(c_max, ratio)

    Returns the targets v (steps, rows) and the advantages r_t + gamma n_t (lam v_{t+1} + (1 - lam) V_{t+1}) - V_t, as
    in rlax: with ratios of 1 they are GAE's. The paper multiplies them by rho; PPO's loss has its own ratio.
    """
    if ratios.shape != rewards.shape:
        raise ValueError(f"ratios {tuple(ratios.shape)}: expected the shape of rewards, {tuple(rewards.shape)}.")
    rho, c = ratios.clamp(max=rho_max), ratios.clamp(max=c_max)
    corrections = _advantages(rewards, values, dones, rho, c, gamma, lam)  # v - V
    next_values = values[1:] + lam * torch.cat([corrections[1:], torch.zeros_like(corrections[:1])])
    return values[:-1] + corrections, rewards + gamma * (~dones).to(rewards.dtype) * next_values - values[:-1]


def _advantages(
    rewards: Tensor, values: Tensor, dones: Tensor, rho: Tensor | None, c: Tensor | None, gamma: Any, lam: Any
) -> Tensor:
    """GAE; with rho and c, V-trace's v - V."""
    steps, rows = rewards.shape
    if tuple(values.shape) != (steps + 1, rows) or dones.shape != rewards.shape:
        shapes = f"rewards {tuple(rewards.shape)}, values {tuple(values.shape)}, dones {tuple(dones.shape)}"
        raise ValueError(f"{shapes}: expected (steps, rows), (steps + 1, rows), (steps, rows).")
    is_held = _are_held(gamma, lam)  # numbers on the device: the GPU kernel reads them there
    if not is_held and (isinstance(gamma, Tensor) or isinstance(lam, Tensor)):  # of schedules
        gamma, lam = (x.to(torch.float32) if isinstance(x, Tensor) else x for x in (gamma, lam))
        deltas = rewards + gamma * (~dones).to(rewards.dtype) * values[1:] - values[:-1]
        ones = torch.ones_like(rewards)
        decays = gamma * lam * (ones if c is None else c)  # A_t = rho_t d_t + decay_t n_t A_{t+1}
        return _advantages(deltas, torch.zeros_like(values), dones, ones if rho is None else rho, decays, 1.0, 1.0)
    floats = [rewards, values, *([] if rho is None or c is None else [rho, c])]
    if is_held and not _is_for_triton(dones, *floats):
        gamma, lam, is_held = float(gamma), float(lam), False
    if _is_for_c(dones, *floats):
        inputs = [tensor.contiguous() for tensor in (rewards, values, dones, *floats[2:])]
        out = torch.empty_like(inputs[0])
        pointers = [tensor.data_ptr() for tensor in inputs] + [None] * (5 - len(inputs))
        lib.load_core().advantages(*pointers, gamma, lam, steps, rows, out.data_ptr())
        return out
    if _is_for_triton(dones, *floats):
        out = fresh(rewards)
        launch(
            _triton().advantages, (-(-rows // BLOCK),),
            rewards, values, dones, rho, c, out, gamma, lam, steps, rows, PART=BLOCK, HELD=is_held,
            num_warps=BLOCK // 32,
        )  # fmt: skip
        return out
    discounts = gamma * (~dones).to(rewards.dtype)
    deltas = rewards + discounts * values[1:] - values[:-1]
    if rho is not None and c is not None:
        deltas, discounts = rho * deltas, c * discounts
    out, advantage = torch.empty_like(rewards), torch.zeros_like(rewards[0])
    for t in range(steps - 1, -1, -1):
        advantage = torch.addcmul(deltas[t], discounts[t], advantage, value=lam)
        out[t] = advantage
    return out


def lambda_returns(
    rewards: Tensor, values: Tensor, dones: Tensor, gamma: float | Tensor, lam: float | Tensor
) -> Tensor:
    """The targets of PQN's Q-values; values[t] = max over a of Q(obs[t], a).

        G_t = r_t + gamma n_t (lam G_{t+1} + (1 - lam) V_{t+1}),   n_t = 0 if dones[t] else 1,   G_steps = V_steps

    rewards, dones: (steps, rows); values: (steps + 1, rows). Returns (steps, rows): V + GAE.
    """
    return gae(rewards, values, dones, gamma, lam) + values[:-1]


def n_step(rewards: Tensor, stops: Tensor, gamma: float | Tensor) -> tuple[Tensor, Tensor]:
    """Discounted sums of rewards over windows of at most n steps, and the number of steps in each.

        R = sum over k < m of gamma^k r_k,   m = the step of the first stop + 1, or n where there is none

    rewards, stops: (n, batch); stops[k] is true where step k is the window's last: the episode ended, or the next step
    has not been played. Returns R and m, both (batch,). Rewards after a stop are ignored.
    """
    if stops.shape != rewards.shape or rewards.ndim != 2:
        raise ValueError(f"rewards {tuple(rewards.shape)}, stops {tuple(stops.shape)}: expected (n, batch) for both.")
    counted = (torch.cumsum(stops, 0) - stops.to(torch.int64)) == 0  # no stop before
    powers = gamma ** torch.arange(len(rewards), device=rewards.device, dtype=rewards.dtype)
    return (torch.where(counted, rewards, 0.0) * powers.unsqueeze(1)).sum(0), counted.sum(0)


def project(probs: Tensor, rewards: Tensor, discounts: Tensor, atoms: Tensor) -> Tensor:
    """C51's projection (Bellemare et al. 2017): the distribution of r + g Z, projected on the atoms z of Z.

        out_j = sum over i of p_i max(0, 1 - |clip(r + g z_i) - z_j| / dz)

    probs: (batch, atoms); rewards, discounts g: (batch,), 0 where the episode ended; atoms: (atoms,), evenly spaced.
    The paper scatters; this is a sum in a fixed order, so that a GPU repeats it bit for bit.
    """
    if probs.ndim != 2 or atoms.shape != probs.shape[1:] or rewards.shape != probs.shape[:1]:
        shapes = f"probs {tuple(probs.shape)}, rewards {tuple(rewards.shape)}, atoms {tuple(atoms.shape)}"
        raise ValueError(f"{shapes}: expected (batch, atoms), (batch,), (atoms,).")
    low, high = atoms[0], atoms[-1]
    moved = rewards.unsqueeze(1) + discounts.unsqueeze(1) * atoms
    moved = torch.minimum(torch.maximum(moved, low), high)
    overlap = 1.0 - (moved.unsqueeze(1) - atoms.view(1, -1, 1)).abs() * ((len(atoms) - 1) / (high - low))
    return (overlap.clamp_(min=0.0) * probs.unsqueeze(1)).sum(-1)


def quantile_loss(quantiles: Tensor, targets: Tensor) -> Tensor:
    """QR-DQN's loss (Dabney et al. 2018): (batch,).

        L = sum over i of mean over j of |tau_i - 1(u < 0)| huber(u),   u = targets_j - quantiles_i

    quantiles: (batch, n), at the midpoints tau_i = (i + 0.5) / n; targets: (batch, m).
    """
    count = quantiles.shape[1]
    taus = (torch.arange(count, device=quantiles.device, dtype=quantiles.dtype) + 0.5) / count
    errors = targets.unsqueeze(1) - quantiles.unsqueeze(2)  # (batch, n, m)
    sizes = errors.abs()
    hubers = torch.where(sizes <= 1.0, 0.5 * errors.square(), sizes - 0.5)
    return ((taus.view(1, -1, 1) - (errors < 0.0).to(errors.dtype)).abs() * hubers).mean(2).sum(1)


def running_returns(rewards: Tensor, dones: Tensor, gamma: float | Tensor, carry: Tensor) -> Tensor:
    """R_t = r_t + gamma R_{t-1}, from 0 after each done; `carry` (rows,) is R before step 0, updated in place."""
    steps, rows = rewards.shape
    if dones.shape != rewards.shape or tuple(carry.shape) != (rows,):
        shapes = f"rewards {tuple(rewards.shape)}, dones {tuple(dones.shape)}, carry {tuple(carry.shape)}"
        raise ValueError(f"{shapes}: expected (steps, rows), (steps, rows), (rows,).")
    out = fresh(rewards)
    is_held = _are_held(gamma) and _is_for_triton(dones, rewards, carry)
    gamma = float(gamma) if _are_held(gamma) and not is_held else gamma
    takes_number = is_held or not isinstance(gamma, Tensor)  # another tensor has a schedule
    if takes_number and _is_for_c(dones, rewards, carry) and carry.is_contiguous():
        inputs = rewards.contiguous(), dones.contiguous()
        pointers = [tensor.data_ptr() for tensor in inputs]
        lib.load_core().running_returns(*pointers, gamma, steps, rows, carry.data_ptr(), out.data_ptr())
        return out
    if takes_number and _is_for_triton(dones, rewards, carry):
        launch(
            _triton().running_returns, (-(-rows // BLOCK),),
            rewards, dones, carry, out, gamma, steps, rows, PART=BLOCK, HELD=is_held, num_warps=BLOCK // 32,
        )  # fmt: skip
        return out
    for t in range(steps):
        out[t] = rewards[t] + gamma * carry
        carry.copy_(out[t] * (~dones[t]).to(out.dtype))
    return out


def _are_held(*numbers: Any) -> bool:
    """Whether all are numbers on the device in place of Python's (`Learner.hold_numbers`); schedules are float32."""
    return all(isinstance(number, Tensor) and number.dtype == torch.float64 for number in numbers)


def _is_for_c(dones: Tensor, *floats: Tensor) -> bool:
    """Whether the C functions take these: float32 and bool on the CPU."""
    fits = all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in floats)
    return fits and dones.dtype == torch.bool and dones.device.type == "cpu"


def _is_for_triton(dones: Tensor, *floats: Tensor) -> bool:
    """Whether the GPU kernels take these: contiguous float32 and bool on a GPU."""
    fits = all(tensor.device.type == "cuda" and tensor.is_contiguous() for tensor in (dones, *floats))
    return fits and dones.dtype == torch.bool and all(n.dtype == torch.float32 for n in floats) and has_triton()


def _triton() -> Any:
    from shoal.algos.fast import kernels

    return kernels


class RunningMoments(nn.Module):
    """Running mean and variance of all data so far, merged batch by batch (Chan et al. 1979)."""

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, batch: Tensor, counts: Tensor | None = None, shards: Any = None) -> None:
        """Adds a batch (n, *shape); with counts (n,), only the entries for which they are true.

        With shards (algos/shards.py), the batches of all of them are added, in their order.
        """
        if not len(batch):
            return
        wide = batch.to(torch.float64)
        if counts is None:
            var, mean = torch.var_mean(wide, dim=0, correction=0)
            count = torch.full_like(self.count, len(batch))
        else:  # tensor sizes do not depend on the number of true entries: a graph can capture it
            weights = counts.to(torch.float64).view(-1, *[1] * (batch.ndim - 1))
            count = weights.sum()
            mean = torch.where(count > 0, (wide * weights).sum(0) / count.clamp(min=1.0), self.mean)
            var = ((wide - mean).square() * weights).sum(0) / count.clamp(min=1.0)
        if shards is None:
            self.merge(mean, var, count)
            return
        for part in shards.gather(torch.cat([mean.reshape(-1), var.reshape(-1), count.reshape(1)])):
            numbers = part[:-1].view(2, *self.mean.shape)
            # where nothing counts, the mean is that of before this batch: of no weight
            self.merge(torch.where(part[-1] > 0, numbers[0], self.mean), numbers[1], part[-1])

    @torch.no_grad()
    def merge(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """Adds `count` entries of this mean and variance."""
        old_count = self.count
        total, delta = (old_count + count).clamp(min=1.0), mean - self.mean
        squares = self.var * old_count + var * count + delta**2 * (old_count * count / total)
        self.mean += delta * (count / total)
        self.var.copy_(torch.where(old_count + count > 0, squares / total, self.var))
        self.count.copy_(old_count + count)

    def normalize(self, batch: Tensor, limit: float = 10.0) -> Tensor:
        """(x - mean) / std in float32, clipped to +-limit."""
        scale = (self.var + 1e-8).rsqrt().to(torch.float32)
        return ((batch.to(torch.float32) - self.mean.to(torch.float32)) * scale).clamp_(-limit, limit)


def moment_sums(values: Tensor, counts: Tensor | None) -> Tensor:
    """(3,): the number of entries that count, the sum of their values and of the squares, as doubles."""
    wide = values.to(torch.float64)
    weights = torch.ones_like(wide) if counts is None else counts.to(torch.float64)
    return torch.stack([weights.sum(), (wide * weights).sum(), (wide.square() * weights).sum()])


def moments_of(sums: Tensor) -> Tensor:
    """(..., 3): count (at least 1), mean and variance, from the sums of `moment_sums`."""
    total = sums[..., 0].clamp(min=1.0)
    mean = sums[..., 1] / total
    return torch.stack([total, mean, (sums[..., 2] / total - mean.square()).clamp(min=0.0)], -1)


def explained_variance(values: Tensor, returns: Tensor, counts: Tensor | None = None, shards: Any = None) -> Tensor:
    """1 - Var(returns - values) / Var(returns): 1 for a perfect critic, 0 for one that predicts the mean.

    With counts (1.0 or 0.0 for each entry), only over entries of 1; nan if there are none or all returns are equal.
    """
    if not len(returns):
        return returns.new_tensor(torch.nan)
    errors = returns - values
    if shards is not None:
        moments = RunningMoments((2,)).to(returns.device)
        moments.update(torch.stack([returns, errors], 1), counts, shards)
        all_returns, all_errors = moments.var.to(torch.float32)
        return torch.where(all_returns > 0, 1.0 - all_errors / all_returns, torch.nan)
    if counts is None:
        total, unexplained = returns.var(correction=0), errors.var(correction=0)
    else:
        total = masked_mean((returns - masked_mean(returns, counts)).square(), counts)
        unexplained = masked_mean((errors - masked_mean(errors, counts)).square(), counts)
    return torch.where(total > 0, 1.0 - unexplained / total, torch.nan)


def masked_mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """The mean over entries of weight 1; without weights, over all."""
    return values.mean() if weights is None else (values * weights).sum() / weights.sum().clamp(min=1.0)
