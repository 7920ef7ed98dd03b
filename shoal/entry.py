"""make: one function that makes many envs of any kind, on any backend."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from shoal import names, registry
from shoal.cores import available_cores, available_threads
from shoal.distributions import Distribution, parse
from shoal.errors import ConfigError, EnvCrashed, UnknownEnv, did_you_mean
from shoal.native import lib
from shoal.vector import backends, threads
from shoal.vector.backends import BACKENDS
from shoal.vector.base import AUTORESET, VecEnv, check_num_envs
from shoal.wrappers import Wrap


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
    on_crash: str = "auto",
    cpu_affinity: bool | Sequence[int] = False,
    python: str | Path | None = None,
    wrap: Mapping[str, float] | Sequence[str] | str | None = None,
    **params: Any,
) -> VecEnv:
    """Many envs of one kind as one `gymnasium.vector.VectorEnv`.

    Args:
        env: the name of a native env (`shoal envs` lists them) or the path of an env header; an id such as
            `gymnasium:CartPole-v1` or `pettingzoo:butterfly/pistonball_v6`; or a function or class that makes a
            Gymnasium env, a PettingZoo env or a vector env.
        num_envs: the number of envs. (With a function that makes vector envs: the number of those.)
        backend: `serial`, `threads` or `cuda` for native envs, `serial`, `process` or `ray` for Python envs. Default:
            threads or processes if there are enough envs and cores, otherwise serial. `cuda` returns torch tensors on
            the GPU. `ray` steps envs in Ray actors on a cluster, and has options of its own (docs/ray.md).
        seed: of the first reset; env i gets `seed + i`. Default: random.
        copy: return copies, not views of the env's memory (see `VecEnv`).
        autoreset: `same_step` (default), `next_step` or `disabled`, as Gymnasium defines them.
        render_mode: None or `rgb_array`; it is passed to the constructor of Python envs.
        num_groups: serial and threads: the number of ranges into which `send` and `recv` divide the envs; with 2, one
            half steps while the policy chooses actions for the other.
        num_threads: threads: the number of threads; default: one per core that this process may use.
        num_workers: process and ray: the number of workers; default: the most that divide num_envs, at most one per
            core (ray: per free CPU of the cluster).
        envs_per_worker: process and ray: given in place of num_workers.
        batch_size: process and ray: the number of envs that `recv` returns, those that are ready first; default: all.
        surplus_envs: process and ray: given in place of batch_size: the number of envs that `recv` does not wait for.
        zero_copy: process and ray: a batch is always a range of neighbouring envs, so that it is not copied.
        start_method: process: `fork`, `forkserver` or `spawn`; default on Linux: `fork` if this process has no threads
            and has not imported torch, otherwise `forkserver`.
        timeout_s: process and ray: an env that takes longer than this many seconds raises EnvTimeout.
        on_crash: process and ray: `raise`, or `restart` a worker that died or hung; its episodes are truncated. `auto`:
            raise with process, restart with ray.
        cpu_affinity: process: True to bind each worker to one core, or a list of cores.
        python: process: the interpreter of the workers, which may be another Python with other packages: a path, or the
            folder of a virtual environment (docs/other-python.md). The env must be given by its name.
        wrap: wrappers around every env: `{"stack": 4, "skip": 2}` or `"stack=4 skip=2"`. There are sticky, skip,
            time_limit, reward_scale, reward_clip, obs_noise and stack (docs/wrappers.md).
        **params: keyword arguments of the env. For native envs an array of `num_envs` values gives each env its value,
            a distribution such as `shoal.uniform(5, 15)` is drawn from in each episode (docs/params.md), and a
            compile-time const (`shoal envs NAME` marks them) recompiles the env. `preset` names a set of values;
            params given besides override it.
    """
    given = {name: value for name, value in locals().items() if name in OPTIONS and value != OPTIONS[name]}
    count = check_num_envs(num_envs)
    common: dict[str, Any] = {"seed": seed, "copy": copy, "autoreset": autoreset, "render_mode": render_mode}
    if autoreset not in AUTORESET:
        raise ConfigError(f"autoreset={autoreset!r} must be one of {', '.join(AUTORESET)}.")
    wrappers = Wrap.read(wrap)
    kind = "native" if registry.is_native(env) else "python"
    where = python if python is not None else _own_python(env)
    if where is not None:
        given["python"] = where
        return _make_elsewhere(env, count, backend, given, common, wrappers, params)
    if vectorized_framework(env) is not None:
        return _make_at_once(env, count, backend, given, common, wrappers, params)
    maker = _find_maker(env) if kind == "python" else None
    header = registry.find(env) if isinstance(env, (str, Path)) and kind == "native" else None
    name = backend if backend is not None else _default_backend(kind, count, given)
    factory = backends.find(name, kind)
    # options of a backend of another package are not in the signature: they are among the params
    given |= {option: params.pop(option) for option in list(params) if option in factory.keywords}
    backends.refuse_options(name, kind, given)
    if header is not None and factory.native is not None:
        module, values = _module(header, params)
        extra = {"wrap": wrappers} if wrappers else {}  # a backend of another package may not know wrappers
        return factory.native(module, count, params=values, **given, **common, **extra)
    assert maker is not None
    assert factory.python is not None
    if render_mode is not None:
        params = {**params, "render_mode": render_mode}
    check_params(env, params)
    create = importlib.import_module("shoal.integrations.adapt").creator(maker, params, wrappers)
    try:
        return factory.python(create, count, **given, **common)
    except (TypeError, EnvCrashed) as error:
        _explain_keyword(error, params)
        raise


def _make_elsewhere(
    env: Any,
    count: int,
    backend: str | None,
    given: dict[str, Any],
    common: Mapping[str, Any],
    wrappers: Wrap,
    params: Mapping[str, Any],
) -> VecEnv:
    """Envs in workers under another interpreter. `serial` is one worker there."""
    if registry.is_native(env):
        raise ConfigError(f"python={str(given['python'])!r} is for Python envs, and {env} is compiled. Leave it out.")
    if backend == "serial":
        given = {**{name: value for name, value in given.items() if name != "num_groups"}, "num_workers": 1}
    name = "process" if backend in (None, "serial") else backend
    backends.refuse_options(name, "python", given)
    if common["render_mode"] is not None:
        params = {**params, "render_mode": common["render_mode"]}
    if _is_separate(env):
        check_params(env, params)
    remote = importlib.import_module("shoal.vector.remote")
    wrap = {field.name: getattr(wrappers, field.name) for field in fields(wrappers)}
    wrap = {name: wrap[name] for name in wrap if wrap[name] != getattr(Wrap(), name)}
    given["python"] = remote.find_python(given["python"])
    given = {**_slow(env), **given}
    recipe = remote.Recipe.of(_name_elsewhere(env), params, wrap)
    factory = backends.find(name, "python").python
    assert factory is not None
    try:
        return factory(recipe, count, **given, **common)
    except (TypeError, EnvCrashed) as error:
        _explain_keyword(error, params)
        raise


def vectorized_framework(env: Any) -> Any:
    """The framework of an env that steps many envs at once by itself; None for all other envs."""
    if not isinstance(env, (str, Path)) or registry.is_native(env):
        return None
    prefix, _ = _split_prefix(str(env))
    framework = _frameworks().framework(prefix) if prefix else None
    return framework if framework is not None and framework.is_vectorized else None


def _make_at_once(
    env: Any,
    count: int,
    backend: str | None,
    given: Mapping[str, Any],
    common: Mapping[str, Any],
    wrappers: Wrap,
    params: Mapping[str, Any],
) -> VecEnv:
    """Envs of a framework that steps all of them at once."""
    framework, name = vectorized_framework(env), _split_prefix(str(env))[1]
    framework.check()
    name = framework.canonical(name)
    own = {key: value for key, value in given.items() if key in framework.vec_options}
    unfit = {key: value for key, value in given.items() if key not in own and key != "num_groups"}
    if wrappers or unfit or backend not in (None, "serial", framework.prefix):
        what = f"wrap={wrappers}" if wrappers else f"backend={backend!r}"
        what = next((f"{key}={value!r}" for key, value in unfit.items()), what)
        raise ConfigError(f"{framework.prefix} steps all envs at once, by itself: {what} does not fit. Leave it out.")
    framework.check_params(name, params)
    chosen = {key: common[key] for key in ("seed", "autoreset", "render_mode")}
    vec: VecEnv = framework.make_vec(name, count, **chosen, **own, **params)
    return vec


def _own_python(env: Any) -> str | None:
    """The interpreter of a framework that has an environment of its own; None for all other envs."""
    if not isinstance(env, (str, Path)) or registry.is_native(env):
        return None
    prefix, _ = _split_prefix(str(env))
    found: str | None = _frameworks().framework(prefix).own_python if prefix else None
    return found


def _is_separate(env: Any) -> bool:
    """Whether an env is of a framework that has an environment of its own: its params are declared here."""
    prefix, _ = _split_prefix(str(env)) if isinstance(env, (str, Path)) else ("", "")
    return bool(prefix) and bool(_frameworks().framework(prefix).is_separate)


def _slow(env: Any) -> dict[str, float]:
    """The time that envs may take, where their framework needs more than others."""
    prefix, _ = _split_prefix(str(env)) if isinstance(env, (str, Path)) else ("", "")
    seconds = _frameworks().framework(prefix).timeout_s if prefix else OPTIONS["timeout_s"]
    return {} if seconds == OPTIONS["timeout_s"] else {"timeout_s": seconds}


def _name_elsewhere(env: Any) -> str:
    """The name by which another interpreter finds an env. Imports nothing: this one may not have what the env needs."""
    if not isinstance(env, (str, Path)):
        place = names.place_of(env)
        if not place.name:
            raise ConfigError(
                f"{env!r} cannot be found by another Python interpreter: {place.reason}. Give its name: ./mine.py:Env."
            )
        return place.name
    prefix, rest = _split_prefix(str(env))
    name = f"{prefix}:{rest}" if prefix else rest
    place_name, _, attribute = name.rpartition(":")
    return f"{names.absolute_place(place_name)}:{attribute}" if place_name.endswith(".py") else name


# the options of backends, and their defaults
OPTIONS: dict[str, Any] = {
    name: parameter.default
    for name, parameter in inspect.signature(make).parameters.items()
    if name not in ("env", "num_envs", "backend", "seed", "copy", "autoreset", "render_mode", "wrap", "params")
}


def _default_backend(kind: str, count: int, given: Mapping[str, Any]) -> str:
    if kind == "native":
        is_large = count >= threads.FROM_ENVS and available_threads() > 1
        return "threads" if "num_threads" in given or is_large else "serial"
    if count > 1 and available_cores() > 1:
        return "process"
    return "process" if any(option in BACKENDS.find("process").options for option in given) else "serial"


def _module(header: Path, params: dict[str, Any]) -> tuple[lib.Module, dict[str, Any]]:
    """The env's library, compiled again if a const differs from its default, and the params."""
    module = lib.load(header)
    values, consts = module.spec.split(params)
    defaults = {const.name: const.default for const in module.spec.consts}
    consts = {name: value for name, value in consts.items() if value != defaults[name]}
    return (lib.load(header, consts) if consts else module), values


def _explain_keyword(error: Exception, params: Mapping[str, Any]) -> None:
    """Raises ConfigError if the env's constructor rejected a keyword that is similar to an option of make.

    A mistake in `wrap` or in a distribution that only a worker could see is raised as what it is.
    """
    if told := re.search(r"raised in its constructor: (ConfigError|UnknownEnv): (.*)", str(error)):
        raise (UnknownEnv if told[1] == "UnknownEnv" else ConfigError)(told[2]) from error
    refused = re.search(r"unexpected keyword argument '(\w+)'|takes no (?:keyword )?arguments", str(error))
    if refused is None:
        return
    for name in [refused[1]] if refused[1] else list(params):
        if name in params and (near := did_you_mean(name, OPTIONS)):
            raise ConfigError(
                f"{name}={params[name]!r} is not an option of shoal.make, and the env's constructor does not take it."
                f"{near}"
            ) from error


# ---- Python envs by name ----

ENV_NEEDS = "a gymnasium.Env, a PettingZoo ParallelEnv or AECEnv, a gym.Env, or a gymnasium.vector.VectorEnv"


def trained_env(name: str) -> str:
    """The env that a run's folder names. Before 0.2 a header was stored as it was given, such as ./my_env.h."""
    return place_of_env(name).name if name.endswith(".h") else name


def place_of_env(env: Any) -> names.Place:
    """The name by which `make` finds an env again from any folder, or the reason why there is none."""
    if not isinstance(env, (str, Path)):
        return names.place_of(env)
    name = str(env)
    if registry.is_native(env):
        is_file = name.endswith(".h") and Path(name).expanduser().is_file()
        return names.Place(str(registry.find(name)) if is_file else name)
    prefix, rest = _split_prefix(name)
    if not prefix:
        return names.Place(names.absolute(name) if names.is_name(name) else name)
    module, _, id = rest.rpartition(":")
    if prefix != "gymnasium" or not module:
        return names.Place(name)
    return names.Place(f"gymnasium:{names.absolute_place(module, repr(name))}:{id}")


def check_params(env: Any, params: Mapping[str, Any]) -> None:
    """Raises if an env that is named by its framework, module or file does not take these params, or needs others."""
    if not isinstance(env, (str, Path)) or registry.is_native(env):
        return
    prefix, rest = _split_prefix(str(env))
    if prefix:
        framework = _frameworks().framework(prefix)
        given = {name: value for name, value in params.items() if name != "render_mode" and not _is_drawn(value)}
        try:
            framework.check_params(rest, given)
        except ImportError:
            framework.check()  # says how to install what is missing
            raise
    elif names.is_name(env):
        names.check_arguments(str(env), _named(str(env)), params, "--env.{}")


def _is_drawn(value: Any) -> bool:
    """Whether a param is a distribution, or the text of one: it is then an attribute of the env, not an argument."""
    return isinstance(value, Distribution) or (isinstance(value, str) and parse(value) is not None)


def params_of(env: str) -> dict[str, str]:
    """The params of an env that is named by its framework, module or file, and their defaults as text.

    Empty for other envs, and where they are not known before the env is made.
    """
    if registry.is_native(env):
        return {}
    prefix, rest = _split_prefix(env)
    if prefix:
        return dict(_frameworks().framework(prefix).params(rest) or {})
    return names.arguments(_named(env)) if names.is_name(env) else {}


def framework_options(env: str) -> dict[str, Any]:
    """The default options of a framework for one of its envs, as the tables of a TOML file; empty for other envs."""
    prefix, rest = ("", "") if registry.is_native(env) else _split_prefix(env)
    return dict(_frameworks().framework(prefix).options_for(rest)) if prefix else {}


def evaluation_params(env: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The params that evaluations of a framework's env have in place of those that are given for training."""
    prefix, _ = ("", "") if registry.is_native(env) else _split_prefix(env)
    return dict(_frameworks().framework(prefix).evaluation_params(given)) if prefix else {}


def _find_maker(env: Any) -> Callable[..., Any]:
    maker = find_python(str(env)) if isinstance(env, (str, Path)) else env
    if not callable(maker):
        raise ConfigError(f"env is {env!r}. Give a name, a path, or a function or class that makes an env.")
    create: Callable[..., Any] = maker
    return create


def find_python(env: str) -> Callable[..., Any]:
    """The function that makes a Python env of this name: of a framework, or of the user's module or file."""
    prefix, rest = _split_prefix(env)
    if prefix:
        create: Callable[..., Any] = _frameworks().framework(prefix).find(rest)
        return create
    first = env.partition(":")[0]
    known = _frameworks().FRAMEWORKS.names()
    if names.is_name(env):
        try:
            _named(env)
        except UnknownEnv as error:
            near = did_you_mean(first, known) if isinstance(error.__cause__, ModuleNotFoundError) else ""
            if near and error.__cause__.name == first:  # type: ignore[union-attr]
                raise UnknownEnv(f"'{env}'.{near} 'shoal envs --frameworks' lists all. {error}") from error.__cause__
            raise
        return names.Maker(names.absolute(env))
    raise UnknownEnv(
        f"'{env}'.{did_you_mean(first, known)} Known prefixes: {', '.join(known)}. Your own env: mine:Env or "
        "./mine.py:Env."
    )


def _split_prefix(env: str) -> tuple[str, str]:
    """(framework, name in it); an empty framework for the name of a module or file.

    Gymnasium's own form `module:Id-v0` is one of Gymnasium's ids: no attribute of a module is called `Id-v0` or `a/Id`.
    """
    prefix, _, rest = env.partition(":")
    if _frameworks().is_prefix(prefix):
        return prefix, rest
    id = env.rpartition(":")[2]
    return ("gymnasium", env) if rest and not names.is_name(env) and re.search(r"-v\d+$|\w/\w", id) else ("", env)


def _frameworks() -> Any:
    """`integrations.framework`, which knows this module: it is imported when it is needed."""
    return importlib.import_module("shoal.integrations.framework")


def _named(env: str) -> Callable[..., Any]:
    """The class or function of a name. What cannot make an env raises."""
    try:
        maker = names.find(env)
    except ConfigError as error:
        raise UnknownEnv(str(error)) from error.__cause__
    shown = f"'{names.shortened(env)}'"
    if isinstance(maker, type) and not (hasattr(maker, "reset") and hasattr(maker, "step")):
        lacks = " and ".join(name for name in ("reset", "step") if not hasattr(maker, name))
        raise ConfigError(f"{shown} is a class without {lacks}, so it is no env. Name one of {ENV_NEEDS}.")
    if not callable(maker):
        advice = "Name its class, or a function that makes it: each env is a new one." if hasattr(maker, "step") else ""
        raise ConfigError(
            f"{shown} is {type(maker).__name__} {maker!r}, not a class or function that makes an env. {advice}".rstrip()
        )
    create: Callable[..., Any] = maker
    return create
