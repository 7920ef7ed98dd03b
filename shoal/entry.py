"""make: one call from a name to many envs, whatever the env and however they are stepped."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shoal import registry
from shoal.errors import ConfigError, UnknownEnv, did_you_mean
from shoal.native import lib
from shoal.vector.base import VecEnv, check_num_envs
from shoal.vector.serial import SerialVec
from shoal.vector.threads import ThreadsVec, available_cores

NATIVE_BACKENDS = ("serial", "threads", "cuda")
PYTHON_BACKENDS = ("serial", "process")
NATIVE_OPTIONS = {"num_threads": None, "num_groups": 1}
PROCESS_OPTIONS: dict[str, Any] = {
    "num_workers": None,
    "envs_per_worker": None,
    "batch_size": None,
    "surplus_envs": 0,
    "zero_copy": False,
    "start_method": None,
    "timeout_s": 60.0,
    "on_crash": "raise",
    "cpu_affinity": False,
}


def make(
    env: str | Path | Callable[..., Any],
    num_envs: int = 1,
    *,
    backend: str | None = None,
    seed: int | None = None,
    copy: bool = False,
    autoreset: str = "same_step",
    render_mode: str | None = None,
    num_groups: int = 1,
    num_threads: int | None = None,
    num_workers: int | None = None,
    envs_per_worker: int | None = None,
    batch_size: int | None = None,
    surplus_envs: int = 0,
    zero_copy: bool = False,
    start_method: str | None = None,
    timeout_s: float = 60.0,
    on_crash: str = "raise",
    cpu_affinity: bool | Sequence[int] = False,
    **params: Any,
) -> VecEnv:
    """Many envs of one kind as one `gymnasium.vector.VectorEnv`.

    Args:
        env: the name of a native env (`shoal envs` lists them) or the path of an env header; `gymnasium:CartPole-v1`,
            `pettingzoo:butterfly/pistonball_v6` and the like; or a function or class that makes a Gymnasium or
            PettingZoo env, or a vector env of several.
        num_envs: how many games. (With a function that makes vector envs: how many of those.)
        backend: `serial`, `threads` or `cuda` for native envs, `serial` or `process` for Python envs. Default: threads
            or processes where there is enough to share out, else serial. `cuda` hands out torch tensors on the GPU.
        seed: of the first reset; env i gets `seed + i`. Default: fresh entropy.
        copy: return copies, not views of the env's own memory (see `VecEnv`).
        autoreset: `same_step` (default), `next_step` or `disabled`, as Gymnasium defines them.
        render_mode: None or `rgb_array`; Python envs get it as it is.
        num_groups: serial and threads: into how many groups `send` and `recv` divide the envs; 2 lets one half step
            while a policy infers on the other.
        num_threads: threads: how many; default: every core this process may use.
        num_workers: process: how many; default: as many as there are cores and divide num_envs.
        envs_per_worker: process: instead of num_workers.
        batch_size: process: how many envs `recv` returns, the first that are ready; default: all.
        surplus_envs: process: instead of batch_size: how many envs `recv` does not wait for.
        zero_copy: process: `recv` returns only neighbours, so that it never copies.
        start_method: process: `fork` (default on Linux), `forkserver` or `spawn`.
        timeout_s: process: an env that takes longer to answer is reported.
        on_crash: process: `raise`, or `restart` a worker that died or hung; its episodes are truncated.
        cpu_affinity: process: True to give each worker a core of its own, or a list of cores.
        **params: the env's own keyword arguments. For native envs an array of `num_envs` values gives each env its own,
            and a compile-time const (`shoal envs NAME` marks them) rebuilds the env. `preset` names a set of values
            that the env comes with; the others given go over it.
    """
    count = check_num_envs(num_envs)
    given: dict[str, Any] = {"num_threads": num_threads, "num_groups": num_groups}
    given |= {"num_workers": num_workers, "envs_per_worker": envs_per_worker, "batch_size": batch_size}
    given |= {"surplus_envs": surplus_envs, "zero_copy": zero_copy, "start_method": start_method}
    given |= {"timeout_s": timeout_s, "on_crash": on_crash, "cpu_affinity": cpu_affinity}
    common: dict[str, Any] = {"seed": seed, "copy": copy, "autoreset": autoreset, "render_mode": render_mode}
    check_common(autoreset)
    if isinstance(env, (str, Path)) and not _is_python(str(env)):
        _refuse_options(given, PROCESS_OPTIONS, "native envs use threads, not processes")
        return _make_native(env, count, backend, num_threads, {**common, "num_groups": num_groups}, params)
    _refuse_options(given, {"num_threads": None}, "Python envs use processes: num_workers")
    return _make_python(env, count, backend, given, common, params)


def check_common(autoreset: str) -> None:
    """Refuses what no backend knows."""
    from shoal.vector.base import AUTORESET

    if autoreset not in AUTORESET:
        raise ConfigError(f"autoreset={autoreset!r} must be one of {', '.join(AUTORESET)}.")


def _refuse_options(given: dict[str, Any], unfit: dict[str, Any], why: str) -> None:
    for name, default in unfit.items():
        if given[name] != default:
            raise ConfigError(f"{name}={given[name]!r} does not fit this env: {why}.")


def _check_backend(backend: str | None, known: Sequence[str], kind: str) -> None:
    if backend is not None and backend not in known:
        raise ConfigError(f"backend={backend!r}.{did_you_mean(str(backend), known)} {kind} envs have {known}.")


def _make_native(
    env: str | Path,
    count: int,
    backend: str | None,
    num_threads: int | None,
    options: dict[str, Any],
    params: dict[str, Any],
) -> VecEnv:
    header = registry.find(env)
    _check_backend(backend, NATIVE_BACKENDS, "Native")
    if backend is None:
        backend = "threads" if num_threads is not None or (count >= 2048 and available_cores() > 1) else "serial"
    if backend == "serial" and num_threads is not None:
        raise ConfigError(f"num_threads={num_threads} needs backend='threads', not 'serial'.")
    module = lib.load(header)
    values, consts = module.spec.split(params)
    defaults = {const.name: const.default for const in module.spec.consts}
    consts = {name: value for name, value in consts.items() if value != defaults[name]}
    if consts:
        module = lib.load(header, consts)
    if backend == "cuda":
        from shoal.vector.cuda import CudaVec

        if num_threads is not None:
            raise ConfigError(f"num_threads={num_threads} needs backend='threads', not 'cuda'.")
        return CudaVec(module, count, params=values, **options)
    if backend == "threads":
        return ThreadsVec(module, count, num_threads=num_threads, params=values, **options)
    return SerialVec(module, count, params=values, **options)


def _is_python(name: str) -> bool:
    return ":" in name and not name.endswith(".h")


def _make_python(
    env: Any, count: int, backend: str | None, given: dict[str, Any], common: dict[str, Any], params: dict[str, Any]
) -> VecEnv:
    from shoal.vector.process import ProcessVec
    from shoal.vector.python import PythonSerial
    from shoal.vector.runner import slot_for

    _check_backend(backend, PYTHON_BACKENDS, "Python")
    maker = _find_python(env) if isinstance(env, (str, Path)) else env
    if not callable(maker):
        raise ConfigError(f"env is {env!r}: give a name, a path, or a function or class that makes an env.")
    if common["render_mode"] is not None:
        params = {**params, "render_mode": common["render_mode"]}
    create = importlib.import_module("shoal.integrations.adapt").creator(maker, params)
    processes = {name: given[name] for name in PROCESS_OPTIONS}
    if backend is None:
        asked = any(processes[name] != default for name, default in PROCESS_OPTIONS.items())
        backend = "process" if asked or (count > 1 and available_cores() > 1) else "serial"
    if backend == "serial":
        _refuse_options(given, PROCESS_OPTIONS, "it needs backend='process'")
        groups = {"num_groups": given["num_groups"]}
        return PythonSerial([slot_for(create()) for _ in range(count)], **groups, **common)
    _refuse_options(given, {"num_groups": 1}, "with processes, batch_size says how many envs recv returns")
    each = processes.pop("envs_per_worker")
    if each is not None:
        if processes["num_workers"] is not None and processes["num_workers"] * each != count:
            raise ConfigError(f"num_workers={processes['num_workers']} times envs_per_worker={each} is not {count}.")
        if not isinstance(each, int) or each < 1 or count % each:
            raise ConfigError(f"envs_per_worker={each!r} does not divide num_envs={count}.")
        processes["num_workers"] = count // each
    return ProcessVec([create] * count, **processes, **common)


def _find_python(env: str | Path) -> Callable[..., Any]:
    prefix, _, name = str(env).partition(":")
    folder = Path(__file__).parent / "integrations"
    known = sorted(path.stem for path in folder.glob("*.py") if path.stem not in ("__init__", "adapt", "sb3"))
    if prefix not in known:
        raise UnknownEnv(f"'{env}'.{did_you_mean(prefix, known)} Prefixes are {', '.join(known)}.")
    found: Callable[..., Any] = importlib.import_module(f"shoal.integrations.{prefix}").find(name)
    return found
