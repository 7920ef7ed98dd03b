"""What the backends with workers share: how envs are divided over them, and what a worker that was replaced leaves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.errors import ConfigError, EnvCrashed
from shoal.spec import Array
from shoal.vector.block import Block
from shoal.vector.slots import InfoRows
from shoal.vector.stats import GameSums

MAX_RESTARTS, RESTART_WINDOW_S = 3, 60.0  # a worker is restarted at most this often within this time
MAX_EVENTS = 1000  # messages kept for drain_events; older ones are dropped


@dataclass(frozen=True)
class Crash:
    """A worker that was replaced: what the next result of its envs must report."""

    rows: slice
    truncated: Array  # (rows,) whether the crash ended an episode
    obs: Array  # the last observations before it
    fault: EnvCrashed


def truncate(crash: Crash, block: Block, same_step: bool, games: GameSums | None) -> InfoRows:
    """Truncates the episodes of a worker that was replaced. Their returns are lost: the stats leave them out."""
    rows, arrays = crash.rows, block.arrays
    if games is not None:
        games.reset(arrays, rows.start // games.agents, rows.stop // games.agents)
    arrays["final_obs"][rows], arrays["rewards"][rows], arrays["terminated"][rows] = crash.obs, 0.0, False
    arrays["truncated"][rows] = arrays["done"][rows] = crash.truncated
    arrays["final_return"][rows], arrays["final_length"][rows] = 0.0, 0
    info = {"crashed": True, "fault": str(crash.fault)}
    has_truncated = bool(crash.truncated.any())
    affected = crash.truncated if has_truncated else arrays["alive"][rows]
    is_final = same_step and has_truncated
    return [(rows.start + int(row), is_final, info) for row in np.flatnonzero(affected)]


def resolve_on_crash(on_crash: str, default: str) -> str:
    """What to do when a worker dies: raise or restart. `auto` is the default of the backend."""
    if on_crash not in ("auto", "raise", "restart"):
        raise ConfigError(f"on_crash={on_crash!r} must be 'raise' or 'restart'.")
    return default if on_crash == "auto" else on_crash


def check_timeout(timeout_s: float) -> float:
    """The seconds as a float, or a ConfigError."""
    if not timeout_s > 0:
        raise ConfigError(f"timeout_s={timeout_s!r} must be a number above 0, in seconds.")
    return float(timeout_s)


def is_restarted_too_often(restarts: list[float], now: float, fault: EnvCrashed) -> bool:
    """Whether a worker was restarted too often: the fault then says so. Forgets the restarts that are long past."""
    restarts[:] = [then for then in restarts if now - then < RESTART_WINDOW_S]
    if len(restarts) < MAX_RESTARTS:
        return False
    fault.args = (f"{fault} It was not restarted again: the limit is {MAX_RESTARTS} times in {RESTART_WINDOW_S:g} s.",)
    return True


def count_workers(num_envs: int, num_workers: int | None, cores: int) -> int:
    """The number of workers; None: the most that divide num_envs, at most one per core."""
    if num_workers is None:
        return next(k for k in range(max(1, min(num_envs, cores)), 0, -1) if num_envs % k == 0)
    if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 1:
        raise ConfigError(f"num_workers={num_workers!r} must be an int of at least 1.")
    if num_workers > num_envs:
        raise ConfigError(f"num_workers={num_workers} is more than the {num_envs} envs.")
    if num_envs % num_workers:
        below, above = num_envs // num_workers * num_workers, -(-num_envs // num_workers) * num_workers
        raise ConfigError(
            f"num_envs={num_envs} does not divide over num_workers={num_workers}. Try num_envs {below} or {above}."
        )
    return num_workers


def workers_from(num_envs: int, num_workers: int | None, envs_per_worker: int | None) -> int | None:
    """The number of workers where `envs_per_worker` was given in its place."""
    if envs_per_worker is None:
        return num_workers
    if num_workers is not None and num_workers * envs_per_worker != num_envs:
        raise ConfigError(
            f"num_workers={num_workers} times envs_per_worker={envs_per_worker} is not num_envs={num_envs}. "
            "Give one of them."
        )
    if not isinstance(envs_per_worker, int) or envs_per_worker < 1 or num_envs % envs_per_worker:
        raise ConfigError(f"envs_per_worker={envs_per_worker!r} does not divide num_envs={num_envs}.")
    return num_envs // envs_per_worker


def check_batch(num_envs: int, envs_per_worker: int, batch_size: int | None, surplus_envs: int, zero_copy: bool) -> int:
    """The number of envs that `recv` returns."""
    if surplus_envs and batch_size is not None:
        raise ConfigError(f"give batch_size={batch_size} or surplus_envs={surplus_envs}, not both.")
    if not isinstance(surplus_envs, int) or not 0 <= surplus_envs < num_envs:
        raise ConfigError(f"surplus_envs={surplus_envs!r} must be an int in 0 .. {num_envs - 1}.")
    size = num_envs - surplus_envs if batch_size is None else batch_size
    share = envs_per_worker
    if not isinstance(size, int) or not 1 <= size <= num_envs or size % share:
        below, above = max(share, size // share * share), min(num_envs, -(-size // share) * share)
        raise ConfigError(
            f"a batch of {size} of {num_envs} envs is not a multiple of the {share} envs of a worker. "
            f"Try batch_size {below} or {above}."
        )
    if zero_copy and num_envs % size:
        divisors = [count for count in range(share, num_envs + 1, share) if num_envs % count == 0]
        nearest = min(divisors, key=lambda count: abs(count - size))
        raise ConfigError(
            f"with zero_copy a batch of {size} must divide num_envs={num_envs}: the last {num_envs % size} envs would "
            f"never be returned. Try batch_size {nearest}, or zero_copy=False."
        )
    return size
