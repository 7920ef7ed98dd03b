"""PufferLib 3's `vector`: `vector.make(creator, …, backend=vector.Multiprocessing)`.

`reset` returns (obs, infos) and `step` five values. With `async_reset`, `send` and `recv`, envs step while the policy
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from shoal.errors import did_you_mean
from shoal.puffer import adapt, core, names
from shoal.puffer.env import PufferEnv
from shoal.puffer.exceptions import APIUsageError, missing_names
from shoal.puffer.ocean import OceanEnv, env_creator
from shoal.vector.base import check_num_envs

__all__ = ["Multiprocessing", "PufferEnv", "Serial", "make"]


class _Vec3(core.Vec):
    """The base class of both backends."""

    backend: str

    def __init__(
        self,
        env_creators: Sequence[Callable[..., Any]],
        env_args: Sequence[Sequence[Any]],
        env_kwargs: Sequence[dict[str, Any]],
        num_envs: int,
        num_workers: int | None = None,
        batch_size: int | None = None,
        zero_copy: bool = True,
        seed: int | None = 0,
        **options: Any,
    ) -> None:
        creators = list(zip(env_creators, env_args, env_kwargs))
        if len(creators) != num_envs:
            raise APIUsageError(
                f"{len(creators)} env_creators with args and kwargs for num_envs={num_envs}. Give one of each per env."
            )
        make_one, args, kwargs = creators[0]
        self._seed = seed
        self._driver = core.as_puffer(make_one(*args, **kwargs))  # made at once, as in PufferLib: users read its spaces
        rows = adapt.slot(self._driver).envs
        like = _outline(self._driver) if _is_in_place(self._driver) else None
        if batch_size is not None and batch_size != num_envs:
            if zero_copy and num_envs % batch_size:
                raise APIUsageError(
                    f"zero_copy: batch_size={batch_size} does not divide num_envs={num_envs}. "
                    "Use zero_copy=False: a batch then holds the envs that are ready first."
                )
            options |= {"batch_size": batch_size * rows}
        if self.backend == "process":
            options |= {"num_workers": num_workers, "zero_copy": zero_copy}
        builders = [
            partial(_build, *creator, None if seed is None else seed + k, like) for k, creator in enumerate(creators)
        ]
        self.vec, self._batch_envs = core.make_python(builders, self.backend, options)
        self.num_envs = int(self.vec.num_envs)

    def reset(self, seed: int | Sequence[int] | None = None) -> tuple[Any, list[dict[str, Any]]]:
        """Starts episodes: (obs, infos). Without a seed, the first reset uses that of `make`; later ones none."""
        self.async_reset(seed)
        obs, _, _, _, infos, *_ = self.recv()
        return obs, infos

    def step(self, actions: Any) -> tuple[Any, ...]:
        """One transition: (obs, rewards, terminals, truncations, infos)."""
        self.send(actions)
        return self.recv()[:5]


def _is_in_place(env: Any) -> bool:
    inner = getattr(env, "unwrapped", env)
    return isinstance(inner, PufferEnv) and inner.is_in_place


def _outline(env: Any) -> Any:
    """The attributes that a slot needs before its env is made."""
    known = ("num_agents", "single_observation_space", "single_action_space")
    return SimpleNamespace(**{name: getattr(env, name) for name in known})


def _build(make: Any, args: Sequence[Any], kwargs: dict[str, Any], seed: int | None, like: Any) -> Any:
    """The slot of one env. `like` has the sizes of the buffers for an env that takes `buf`."""
    if seed is not None and "seed" not in kwargs and adapt.takes(make, "seed"):
        kwargs = {**kwargs, "seed": seed}
    if like is not None and adapt.takes(make, "buf"):
        return adapt.PufferSlot(like, lambda buf: make(*args, **kwargs, buf=buf))
    return adapt.build(make, args, kwargs)


class Serial(_Vec3):
    """All envs in this process, one after the other."""

    backend = "serial"


class Multiprocessing(_Vec3):
    """Envs in worker processes, over one block of shared memory."""

    backend = "process"


def make(
    env_creator_or_creators: Any,
    env_args: Any = None,
    env_kwargs: Any = None,
    backend: Any = Serial,
    num_envs: int = 1,
    num_workers: int | str | None = None,
    batch_size: int | str | None = None,
    zero_copy: bool = True,
    seed: int | None = 0,
    **options: Any,
) -> Any:
    """Many envs, with the arguments of PufferLib 3.

    Args:
        env_creator_or_creators: a function that makes one env, or a list with one for each env; or a name.
        env_args: of the creator; with a list of creators, a list.
        env_kwargs: of the creator; with a list of creators, a list. A creator that takes `buf` or `seed` gets them.
        backend: `Serial`, `Multiprocessing`, or `PufferEnv` to make a single env; the class, or its name.
        num_envs: number of envs.
        num_workers: of Multiprocessing; default, or `auto`: the number of cores, or fewer so that they divide num_envs.
        batch_size: envs that `recv` returns, the first that are ready; default, or `auto`: all.
        zero_copy: a batch is always a range of neighbouring envs, so that it is not copied.
        seed: of the first reset; env i gets `seed + i`.
        **options: of Shoal: copy, start_method, timeout_s, on_crash, cpu_affinity.
    """
    backend = _backend(backend)
    options.pop("overwork", None)  # Shoal always allows more workers than cores
    count = check_num_envs(num_envs)
    num_workers = None if num_workers == "auto" else num_workers
    batch_size = None if batch_size == "auto" else batch_size
    if isinstance(env_creator_or_creators, str):
        creator = names.find(env_creator_or_creators)
        env_creator_or_creators = env_creator(creator) if isinstance(creator, str) else creator
    if backend is PufferEnv:
        env = env_creator_or_creators(*(env_args or []), **(env_kwargs or {}))
        if not _is_in_place(env) and not isinstance(env, OceanEnv):
            raise APIUsageError(
                f"backend=PufferEnv is for an env with in-place buffers, and this is a {type(env).__name__}. "
                "Use vector.Serial or vector.Multiprocessing."
            )
        env.first_seed = seed
        return env
    if isinstance(env_creator_or_creators, (list, tuple)):
        creators = list(env_creator_or_creators)
        args, kwargs = env_args or [()] * len(creators), env_kwargs or [{}] * len(creators)
    else:
        creators, args, kwargs = [env_creator_or_creators] * count, [env_args or ()] * count, [env_kwargs or {}] * count
    for creator in creators:
        if not callable(creator):
            raise APIUsageError(f"env creator {creator!r} is not a function or class.")
    return backend(
        creators,
        args,
        kwargs,
        count,
        num_workers=num_workers,
        batch_size=batch_size,
        zero_copy=zero_copy,
        seed=seed,
        **options,
    )


def _backend(backend: Any) -> Any:
    known: dict[str, Any] = {"Serial": Serial, "Multiprocessing": Multiprocessing, "PufferEnv": PufferEnv}
    if isinstance(backend, str):
        if backend not in known:
            raise APIUsageError(f"backend={backend!r}.{did_you_mean(backend, known)} Known: {', '.join(known)}.")
        return known[backend]
    if backend not in known.values():
        raise APIUsageError(f"backend={backend!r} must be one of {', '.join(known)}.")
    return backend


__getattr__ = missing_names(
    __name__,
    __all__,
    {
        "Ray": "Use vector.Multiprocessing.",
        "autotune": "Use shoal.autotune, or 'shoal tune'.",
        "Native": "Use vector.PufferEnv.",
    },
)
