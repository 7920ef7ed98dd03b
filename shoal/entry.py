"""make: one call from a name to many envs, whatever the env and however they are stepped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoal import registry
from shoal.errors import ConfigError, did_you_mean
from shoal.native import lib
from shoal.vector.base import VecEnv, check_num_envs
from shoal.vector.serial import SerialVec
from shoal.vector.threads import ThreadsVec, available_cores

BACKENDS = ("serial", "threads")


def make(
    env: str | Path,
    num_envs: int = 1,
    *,
    backend: str | None = None,
    num_threads: int | None = None,
    num_groups: int = 1,
    seed: int | None = None,
    copy: bool = False,
    autoreset: str = "same_step",
    render_mode: str | None = None,
    **params: Any,
) -> VecEnv:
    """Many envs of one kind as one `gymnasium.vector.VectorEnv`.

    Args:
        env: a name (`shoal envs` lists them) or the path of an env header.
        num_envs: how many games.
        backend: `serial` or `threads`. Default: threads where there is enough to share out, else serial.
        num_threads: for threads; default: every core this process may use.
        num_groups: into how many groups `send` and `recv` divide the envs; 2 lets one half step while
            a policy infers on the other.
        seed: of the first reset; env i gets `seed + i`. Default: fresh entropy.
        copy: return copies, not views of the env's own memory (see `VecEnv`).
        autoreset: `same_step` (default), `next_step` or `disabled`, as Gymnasium defines them.
        render_mode: None or `rgb_array`.
        **params: the env's own numbers; an array of `num_envs` values gives each env its own. A compile-time
            const (`shoal envs NAME` marks them) rebuilds the env, which takes a C compiler and a second.
    """
    count = check_num_envs(num_envs)
    header = registry.find(env)
    if backend is None:
        backend = "threads" if num_threads is not None or (count >= 256 and available_cores() > 1) else "serial"
    if backend not in BACKENDS:
        raise ConfigError(f"backend={backend!r}.{did_you_mean(str(backend), BACKENDS)} Choose one of {BACKENDS}.")
    if backend == "serial" and num_threads is not None:
        raise ConfigError(f"num_threads={num_threads} needs backend='threads', not 'serial'.")
    module = lib.load(header)
    values, consts = module.spec.split(params)
    if consts:
        module = lib.load(header, consts)
    options: dict[str, Any] = {
        "seed": seed,
        "num_groups": num_groups,
        "copy": copy,
        "autoreset": autoreset,
        "render_mode": render_mode,
        "params": values,
    }
    if backend == "threads":
        return ThreadsVec(module, count, num_threads=num_threads, **options)
    return SerialVec(module, count, **options)
