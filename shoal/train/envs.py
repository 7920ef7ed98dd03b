"""The envs of a run: how many, on which backend, with which seeds; for training and for evaluation."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import torch

from shoal import config
from shoal.cores import available_cores, available_threads
from shoal.entry import make, vectorized_framework
from shoal.errors import ConfigError
from shoal.native.cuda import gpu_backend_available, require_gpu
from shoal.registry import is_native
from shoal.seeds import env_seed as env_seed
from shoal.train import env_params
from shoal.train.defaults import NATIVE_ENVS as NATIVE_ENVS  # health.py reads it here
from shoal.train.defaults import PYTHON_ENVS
from shoal.train.options import Options, Vec
from shoal.vector.backends import find as find_backend
from shoal.vector.base import VecEnv
from shoal.vector.ray import default_workers

PROCESS_COST_S = 400e-6  # of one exchange with worker processes; 150 us where many cores are idle, 500 us on two cores
SERIAL_COST_S = 30e-6  # of a serial vector env, beside its envs
TIMED_STEPS, TIMED_S = 100, 0.02
RAY_BATCHES = 4  # batches of envs in Ray actors that are in flight at a time; one of them waits for the policy
OVERLAP_FROM = 1024  # with this many native envs, one half steps in threads while the policy acts for the other half


def device_of(options: Options) -> str:
    """cpu or cuda."""
    if options.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if options.device == "cuda":
        require_gpu()
    return options.device


def make_vec(env: Any, options: Options) -> VecEnv:
    """The envs that a run trains on. Params with a schedule have their first value."""
    options = dataclasses.replace(options, env=env_params.at(env, options.env, 0.0))
    return _make_native(env, options) if is_native(env) else _make_python(env, options, options.vec.num_envs)


def resolve_train(options: Options, vec: VecEnv, rows: int) -> Any:
    """The options of the algorithm for so many rows. Steps of Ray actors that may be late are corrected by V-trace."""
    train = options.train.resolve(rows)
    if options.vec.surplus_envs and vec.backend == "ray" and hasattr(train, "vtrace"):
        train = dataclasses.replace(train, vtrace=True)
    return train


def make_evaluation_vec(env: Any, options: Options, num_envs: int, seed: int) -> VecEnv:
    """Envs for evaluation. Python envs use the backend of training, and at most as many envs.

    Params with a schedule have their last value; what a framework changes for training alone is off.
    """
    options = dataclasses.replace(options, env=env_params.evaluated(env, options.env))
    if is_native(env):
        return make(env, num_envs, seed=seed, **options.env_options)
    count = min(num_envs, options.vec.num_envs or PYTHON_ENVS)
    return _make_python(env, options, count, seed=seed, in_training=False)


def make_filmed_vec(env: Any, options: Options) -> VecEnv:
    """One env that can be drawn, in this process, as `evaluate.record` needs it."""
    options = dataclasses.replace(options, env=env_params.evaluated(env, options.env))
    choices = {"backend": "serial", "autoreset": "disabled", "render_mode": "rgb_array"}
    return make(env, 1, **{**options.env_options, **choices})


def _make_native(env: Any, options: Options) -> VecEnv:
    vec = options.vec
    if vec.surplus_envs:
        raise ConfigError(
            f"--vec.surplus-envs {vec.surplus_envs} is for Python envs in processes: native envs have no slow workers. "
            "Use 0."
        )
    count = vec.num_envs or NATIVE_ENVS
    on_gpu = vec.backend == "cuda" or (
        vec.backend == "auto" and device_of(options) == "cuda" and gpu_backend_available()
    )
    if on_gpu:
        for name, most in (("num_groups", 1), ("num_threads", 0)):  # envs on a GPU are one group
            if (given := getattr(vec, name)) > most:
                flag = f"--vec.{name.replace('_', '-')} {given}"
                raise ConfigError(f"{flag} is for envs on the CPU. Leave it out, or use --vec.backend threads.")
        return make(env, count, **{**options.env_options, "backend": "cuda"})
    backend = vec.backend if vec.backend != "auto" else "threads" if count >= OVERLAP_FROM else "serial"
    choices: dict[str, Any] = {"backend": backend}
    keywords = find_backend(backend, "native").keywords
    if "num_groups" in keywords:
        choices["num_groups"] = vec.num_groups or (2 if backend == "threads" and count >= OVERLAP_FROM else 1)
    if "num_threads" in keywords:
        choices["num_threads"] = vec.num_threads or available_threads()
    choices |= config.to_dict(options.backend)
    return make(env, count, **options.env_options, **choices)


def _make_python(env: Any, options: Options, count: int, *, in_training: bool = True, **choices: Any) -> VecEnv:
    vec, cores = options.vec, available_cores()
    count = count or PYTHON_ENVS
    if (framework := vectorized_framework(env)) is not None:
        choices |= {} if vec.backend == "auto" else {"backend": vec.backend}
        choices |= {name: given for name in framework.vec_options if (given := getattr(vec, name, 0))}
        return make(env, count, **options.env_options, **choices)
    is_free = vec.backend == "auto" and not asks_for_processes(vec)
    if vec.backend == "serial" or (is_free and not pays_for_processes(env, options.env_options, count, cores)):
        return make(env, count, **options.env_options, **choices, backend="serial")
    if vec.backend == "ray":
        return _make_ray(env, options, count, in_training, choices)
    if vec.backend not in ("auto", "process"):
        choices |= {"backend": vec.backend, **config.to_dict(options.backend)}
        return make(env, count, **options.env_options, **choices)
    workers = min(vec.num_workers or count, count)
    if not vec.num_workers or count % workers:
        workers = max(w for w in range(1, min(vec.num_workers or cores, count) + 1) if count % w == 0)
    choices |= {"num_workers": vec.num_workers if in_training and vec.num_workers else workers}
    choices |= {"backend": "process", "timeout_s": vec.timeout_s, "on_crash": vec.on_crash}
    if in_training and vec.surplus_envs:
        check_surplus(vec.surplus_envs, count, workers)
        choices |= {"batch_size": count // workers, "zero_copy": True}
    elif in_training and vec.overlap and workers % 2 == 0:
        choices |= {"batch_size": count // 2, "zero_copy": True}
    return make(env, count, **options.env_options, **choices)


def _make_ray(env: Any, options: Options, count: int, in_training: bool, choices: dict[str, Any]) -> VecEnv:
    """Envs in Ray actors. In training, `recv` returns the envs of a quarter of the actors, or of one with surplus.

    In evaluation the actors share the CPUs of those of training, which wait for them.
    """
    vec, own = options.vec, options.backend
    if not in_training:
        own = dataclasses.replace(own, cpus_per_worker=0.0)
    workers = vec.num_workers
    if not workers or (not in_training and count % workers):
        workers = default_workers(count, own)
    if in_training and vec.surplus_envs:
        check_surplus(vec.surplus_envs, count, workers)
    if in_training and (vec.surplus_envs or vec.overlap) and count % workers == 0:
        most = workers if vec.surplus_envs else RAY_BATCHES
        batches = max(k for k in range(1, most + 1) if workers % k == 0)
        choices |= {"batch_size": count // batches, "zero_copy": True} if batches > 1 else {}
    if clash := sorted(set(options.env) & set(config.to_dict(own))):
        raise ConfigError(f"--env.{clash[0]} has the name of an option of --vec.backend ray. Rename the env's param.")
    choices |= {"backend": "ray", "num_workers": workers, "timeout_s": vec.timeout_s, "on_crash": vec.on_crash}
    return make(env, count, **options.env_options, **choices, **config.to_dict(own))


def pays_for_processes(env: Any, env_options: Mapping[str, Any], count: int, cores: int) -> bool:
    """Whether worker processes save more time than the exchange with them costs. Both give the same rollouts."""
    workers = min(count, cores)
    if workers == 1:  # one worker would only take turns with this process on the one core
        return False
    saved = count * (1.0 - 1.0 / workers) * seconds_of_step(env, env_options)
    return saved > PROCESS_COST_S


def seconds_of_step(env: Any, env_options: Mapping[str, Any]) -> float:
    """How long one env takes for a step, measured on an env that is made for it; infinity if it cannot be made here."""
    key = repr((env, sorted(env_options.items(), key=str)))
    if key not in _step_seconds:
        _step_seconds[key] = float("inf")
        # an env that fails here fails in a worker, too: there the error names the worker
        with contextlib.suppress(Exception), contextlib.closing(make(env, 1, **env_options, backend="serial")) as vec:
            vec.reset(seed=0)
            vec.action_space.seed(0)
            actions = [vec.action_space.sample() for _ in range(TIMED_STEPS)]
            seconds: list[float] = []
            while actions and sum(seconds) < TIMED_S:
                began = time.perf_counter()
                vec.step(actions.pop())
                seconds.append(time.perf_counter() - began)
            quartile = sorted(seconds)[len(seconds) // 4]  # steps that were interrupted, or ended an episode, are above
            _step_seconds[key] = max(quartile - SERIAL_COST_S, 1e-6)
    return _step_seconds[key]


_step_seconds: dict[str, float] = {}


def asks_for_processes(vec: Vec) -> bool:
    """Whether options were given that only worker processes have."""
    return bool(vec.num_workers or vec.surplus_envs or vec.on_crash == "restart")


def check_surplus(surplus: int, num_envs: int, workers: int) -> None:
    """Raises unless the surplus envs are those of whole workers, and at least one worker is left."""
    envs = num_envs // workers  # of each worker
    if surplus % envs or surplus >= num_envs:
        options = [str(envs * k) for k in range(1, min(workers, 5))]
        raise ConfigError(
            f"--vec.surplus-envs {surplus} does not fit {workers} workers of {envs} envs. Try {' or '.join(options)}."
            if options
            else f"--vec.surplus-envs {surplus} needs several workers; there is {workers}. Use --vec.num-workers."
        )
