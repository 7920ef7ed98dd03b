"""PufferLib's API over Shoal: `import shoal.puffer as pufferlib`. Nothing else in Shoal imports it.

    envs = pufferlib.make("gym-CartPole-v1", num_envs=64)
    obs = envs.reset()
    obs, rewards, dones, infos = envs.step(envs.action_space.sample())

docs/from-pufferlib.md lists what to change in your code, and what differs on purpose. Modules that need torch
(pufferl, pytorch, models) are imported on first use.
"""

from __future__ import annotations

import copy
import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

from shoal.puffer import (
    core,
    emulation,
    exceptions,
    names,
    ocean,
    postprocess,
    spaces,
    sweep,
    utils,
    vector,
    vectorization,
)
from shoal.puffer.env import PufferEnv, Wrapper, set_buffers
from shoal.puffer.exceptions import APIUsageError, EnvironmentSetupError, InvalidAgentError, missing_names
from shoal.puffer.loggers import NeptuneLogger, NoLogger, WandbLogger
from shoal.puffer.names import register
from shoal.puffer.postprocess import (
    ClipAction,
    EpisodeStats,
    GymToGymnasium,
    MeanOverAgents,
    MultiagentEpisodeStats,
    PettingZooTruncatedWrapper,
    PettingZooWrapper,
    ResizeObservation,
)
from shoal.puffer.sweep import Protein
from shoal.puffer.utils import Suppress, silence_warnings, unroll_nested_dict
from shoal.puffer.vectorization import VectorEnv

if TYPE_CHECKING:
    from shoal.puffer import environments, models, pufferl, pytorch
    from shoal.puffer.pufferl import PuffeRL

__all__ = [
    "APIUsageError",
    "ClipAction",
    "EnvironmentSetupError",
    "EpisodeStats",
    "GymToGymnasium",
    "InvalidAgentError",
    "MeanOverAgents",
    "MultiagentEpisodeStats",
    "NeptuneLogger",
    "NoLogger",
    "PettingZooTruncatedWrapper",
    "PettingZooWrapper",
    "Protein",
    "PuffeRL",
    "PufferEnv",
    "ResizeObservation",
    "Suppress",
    "VectorEnv",
    "WandbLogger",
    "Wrapper",
    "emulate",
    "emulation",
    "environments",
    "exceptions",
    "make",
    "models",
    "ocean",
    "postprocess",
    "pufferl",
    "pytorch",
    "register",
    "set_buffers",
    "silence_warnings",
    "spaces",
    "sweep",
    "unroll_nested_dict",
    "utils",
    "vector",
    "vectorization",
]

_ON_USE = ("environments", "models", "pufferl", "pytorch")  # modules that load other libraries
_missing = missing_names(
    __name__,
    __all__,
    {
        "cleanrl": "Train with PuffeRL, or use the vector in CleanRL's scripts: docs/interop.md.",
        "frameworks": "Train with PuffeRL, or use the vector in another library: docs/interop.md.",
        "namespace": "Use types.SimpleNamespace.",
        "policy_pool": "Use 'shoal train --opponents'.",
        "policy_ranker": "Use 'shoal eval'.",
    },
)


def __getattr__(name: str) -> Any:
    if name == "PuffeRL":
        return importlib.import_module("shoal.puffer.pufferl").PuffeRL
    if name in _ON_USE:
        return importlib.import_module(f"shoal.puffer.{name}")
    return _missing(name)


_OPTIONS = ("batch_size", "zero_copy", "start_method", "timeout_s", "on_crash", "cpu_affinity", "copy")


def make(
    name: str,
    num_envs: int = 1,
    num_workers: int | None = None,
    envs_per_worker: int | None = None,
    *,
    seed: int | None = None,
    backend: str | None = None,
    **env_kwargs: Any,
) -> VectorEnv:
    """A vector of envs by name.

    Args:
        name: `gym-CartPole-v1`, `atari-pong`, `minigrid-empty-8x8`, `pettingzoo-pistonball`; `puffer_breakout` or
            `breakout` for a native env; or a name given to `register`.
        num_envs: number of envs.
        num_workers: processes, or threads of a native env; default: the number of cores, or fewer so that they divide
            num_envs.
        envs_per_worker: given in place of num_workers.
        seed: of the first reset; env i gets `seed + i`. Default: a random one.
        backend: `serial`, or `process` (`threads` for a native env); default: by the number of envs and cores.
        **env_kwargs: keyword arguments of the env, such as frameskip, framestack (atari), max_steps (minigrid, native),
            num_agents (pettingzoo); and the options batch_size, zero_copy, start_method, timeout_s, on_crash,
            cpu_affinity and copy.
    """
    options = {option: env_kwargs.pop(option) for option in _OPTIONS if option in env_kwargs}
    options |= {"num_workers": num_workers, "envs_per_worker": envs_per_worker}
    creator = names.find(name)
    if isinstance(creator, str):
        return VectorEnv.over(core.make_threads(creator, num_envs, backend, options, env_kwargs), seed)
    return VectorEnv(partial(creator, **env_kwargs), num_envs, backend, seed=seed, **options)


def emulate(env: Any, num_envs: int = 1, **options: Any) -> VectorEnv:
    """A vector of an env of any kind: Gymnasium, PettingZoo (parallel or AEC), old gym, or a PufferEnv.

    Args:
        env: a class or function that makes one, or an env, which is copied.
        num_envs: number of envs.
        **options: of `VectorEnv`: num_workers, envs_per_worker, seed, backend, …
    """
    if isinstance(env, str):
        return make(env, num_envs, **options)
    return VectorEnv(partial(_copied, env) if names.is_env(env) else env, num_envs, **options)


def _copied(env: Any) -> Any:
    try:
        return copy.deepcopy(env)
    except Exception as error:
        raise APIUsageError(
            f"{type(env).__name__} cannot be copied ({type(error).__name__}: {error}). "
            "Pass a function that makes it: emulate(lambda: …, num_envs=…)."
        ) from error
