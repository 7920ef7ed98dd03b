"""Options of a run: one dataclass for each table of a TOML file, and how layers of tables are merged.

Some tables have the type that a plugin declares: `train` is that of `algo`, and `PLUGIN_TABLES` those of an optimizer,
core, encoder or backend with options of its own. With another plugin such a table starts from its defaults.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from shoal import config, registry
from shoal.algos.algorithm import ALGORITHMS
from shoal.algos.optimizers import OPTIMIZERS
from shoal.config import opt
from shoal.distributions import Distribution
from shoal.entry import framework_options
from shoal.errors import ConfigError, UnknownEnv, did_you_mean
from shoal.league.options import LeagueOptions
from shoal.nn.cores import CORES
from shoal.nn.encoders import ENCODERS
from shoal.nn.policy import Net
from shoal.plugins import NoOptions, Plugins, options_type
from shoal.registry import is_native
from shoal.schedules import Schedule
from shoal.train import defaults, env_params, phases
from shoal.train.defaults import NATIVE_ENVS, PYTHON_ENVS
from shoal.vector.backends import BACKENDS
from shoal.wrappers import Wrap


def _backends() -> tuple[str, ...]:
    return ("auto", *BACKENDS.names())


@dataclass(frozen=True)
class Vec:
    """How the envs are stepped: the options of `--vec.*`."""

    num_envs: int = opt(
        0, f"number of envs; 0: {NATIVE_ENVS} native or {PYTHON_ENVS} Python envs (by env)", low=0, is_count=True
    )
    backend: str = opt(
        "auto",
        "auto: threads for native envs (cuda on a GPU); process for Python envs that are slow to step",
        choices=_backends,
    )
    num_groups: int = opt(0, "native: groups of envs that step in turns; 0: 2 from 1024 envs on", low=0, high=64)
    num_threads: int = opt(0, "native: threads that step envs; 0: one per core", low=0, high=1024)
    num_workers: int = opt(0, "Python: worker processes or Ray actors; 0: one per core", low=0, high=4096)
    overlap: bool = opt(
        True, "Python: one half of the workers (ray: up to 3 of 4 parts) steps while the policy acts for the others"
    )
    surplus_envs: int = opt(
        0, "Python: envs that a rollout does not wait for; their steps are off-policy: use --train.vtrace", low=0
    )
    torch_threads: int = opt(0, "CPU: threads of torch; 0: measured, at most one per idle core", low=0)
    timeout_s: float = opt(60.0, "Python: seconds after which an env that does not answer is an error", low=0.0)
    on_crash: Literal["auto", "raise", "restart"] = opt(
        "auto", "Python: what to do when a worker dies; auto: restart with ray, otherwise raise"
    )
    python: str = opt(
        "",
        "Python: the interpreter of the worker processes, which may have other packages than this one: a path, or the "
        "folder of a virtual environment (docs/other-python.md); default: this one",
        metavar="PATH",
    )


@dataclass(frozen=True)
class Eval:
    """How the policy is evaluated: the options of `--eval.*`."""

    episodes: int | None = opt(
        None,
        "held-out episodes of each mode; default: 100, fewer if the final evaluation of a run would take more than "
        "10 s and 20 % of the training time; 0: none",
        low=0,
        high=1_000_000,
        metavar="N",
    )
    every: int = opt(0, "steps between evaluations during training; 0: only at the end", low=0, is_count=True)
    greedy: bool = opt(True, "the headline score takes the most probable actions; False: samples actions")


@dataclass(frozen=True)
class Save:
    """When checkpoints are written: the options of `--save.*`."""

    every_s: float = opt(
        60.0, "seconds between checkpoints, the first of which come after 2, 4, 8 ... s; 0: none by time", low=0.0
    )
    every: int = opt(0, "steps between checkpoints; 0: none by steps", low=0, is_count=True)
    keep: int = opt(2, "newest checkpoints to keep, besides the best", low=1, high=1000)


@dataclass(frozen=True)
class Options:
    """All options of a run. The fields are the keys and tables of a TOML file."""

    algo: str = opt("ppo", "the algorithm", choices=ALGORITHMS.names)
    seed: int = opt(1, "seed of weights, actions and envs; the same seed gives the same run", low=0, high=2**31 - 1)
    device: Literal["auto", "cpu", "cuda"] = opt("auto", "device of the policy and of native envs; auto: a GPU if any")
    callback: tuple[str, ...] = opt((), "callbacks: a name or module:Class, with options: stop_at(score=475)")
    init: str = opt(
        "", "run whose weights a new run starts from: RUN (its best checkpoint), RUN@last or RUN@STEP", metavar="RUN"
    )
    opponents: str = opt(
        "",
        "players of the agents that do not learn: 1=seek,2=RUN,3=mine:Agent (scripted robots, runs, agents); or self: "
        "all learn; or pool: snapshots of the learner",
    )
    wrap: tuple[str, ...] = opt((), "wrappers around every env: stack=4 skip=2 (docs/wrappers.md)", metavar="WORDS")
    reward: str = opt("", "your own reward, which the learner sees in place of the env's: mine:Reward", metavar="NAME")
    curriculum: str = opt(
        "",
        "phases that change params, opponents and rewards: a preset, or a TOML file with [[curriculum]] tables",
        metavar="NAME",
        convert=phases.write,
    )
    train: Any = field(default_factory=lambda: ALGORITHMS.find("ppo").options())  # the options of the algorithm
    vec: Vec = field(default_factory=Vec)
    nn: Net = field(default_factory=Net)
    eval: Eval = field(default_factory=Eval)
    save: Save = field(default_factory=Save)
    league: LeagueOptions = field(default_factory=LeagueOptions)
    optimizer: Any = field(default_factory=NoOptions)  # the own options of train.optimizer
    core: Any = field(default_factory=NoOptions)  # of nn.core
    encoder: Any = field(default_factory=NoOptions)  # of nn.encoder
    backend: Any = field(default_factory=NoOptions)  # of vec.backend
    env: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        Wrap.read(self.wrap)  # a wrong wrapper raises before any work starts

    @property
    def env_options(self) -> dict[str, Any]:
        """The keyword arguments of `shoal.make`: the env's own, the wrappers, and where the env runs."""
        given = {"wrap": self.wrap, "python": self.vec.python}
        return {**self.env, **{name: value for name, value in given.items() if value}}


_FIELDS = dataclasses.fields(Options)
PLAIN = tuple(f.name for f in _FIELDS if "help" in f.metadata)  # single values
# tables whose type is chosen by an option of the same name, in another table
PLUGIN_TABLES: dict[str, tuple[str, Plugins]] = {
    "optimizer": ("train", OPTIMIZERS),
    "core": ("nn", CORES),
    "encoder": ("nn", ENCODERS),
    "backend": ("vec", BACKENDS),
}
_NOT_TABLES = (*PLAIN, *PLUGIN_TABLES, "env")
TABLES = tuple(f.name for f in _FIELDS if f.name not in _NOT_TABLES)  # tables that every run has


def tuned(env: str) -> dict[str, Any]:
    """The tables of the env's TOML file, over those of its framework. `score` is the score that they reached."""
    if is_native(env):
        try:
            path = registry.find(env).with_suffix(".toml")  # beside the header
        except UnknownEnv:  # reported where the env is made
            return {}
        return config.read_toml(path) if path.is_file() else {}
    own = framework_options(env)
    prefix, _, name = env.rpartition(":")
    path = registry.STOCK / prefix / f"{name}.toml"
    if "/" in name or not path.is_file():
        return own
    tables = config.read_toml(path)
    both = {key: {**own[key], **tables[key]} for key in own if isinstance(tables.get(key), Mapping)}
    return {**own, **tables, **both}


def merge(options: Options, tables: Mapping[str, Any], where: str, has_presets: bool = False) -> Options:
    """The options, overridden by tables. Unknown keys and wrong types raise.

    With another algorithm, `train` starts from that algorithm's defaults.
    """
    if "algo" in tables:
        before, options = options.algo, config.from_dict(Options, {"algo": tables["algo"]}, where, options)
        if options.algo != before:
            options = dataclasses.replace(options, train=ALGORITHMS.find(options.algo).options())
    chosen_before = {name: chosen_plugin(options, name) for name in PLUGIN_TABLES}
    for name, value in tables.items():
        if name in ("score", "sweep", "population", "run", "cuda", "algo", *PLUGIN_TABLES, *ALGORITHMS.names()):
            continue
        if name == "wrap":
            value = Wrap.read(value).words()
        if name in PLAIN:
            options = config.from_dict(Options, {name: value}, where, options, flags="")
        elif name == "env" and isinstance(value, Mapping):
            options = dataclasses.replace(options, env=_over(options.env, value, has_presets))
        elif name in TABLES and isinstance(value, Mapping):
            below = getattr(options, name)
            if name == "nn" and value.get("groups") and "policies" not in value:
                value = {**value, "policies": "auto"}  # groups that are given have a policy each
            merged = config.from_dict(type(below), value, name, below)
            if name == "train":
                merged = settle_rate(merged, "schedule" in value)
            options = dataclasses.replace(options, **{name: merged})
        else:
            known = [*TABLES, "env", *PLAIN]
            if name in known:
                raise ConfigError(f"{where}: '{name}' is a table of options, not {value!r}.")
            raise ConfigError(f"{where}: '{name}'.{did_you_mean(name, known)} Known: {', '.join(known)}.")
    for name, (table, plugins) in PLUGIN_TABLES.items():  # last: the tables above choose their types
        chosen = chosen_plugin(options, name)
        if chosen != chosen_before[name]:
            kind: Any = options_type(plugins.find(chosen)) if chosen in plugins.names() else NoOptions
            options = dataclasses.replace(options, **{name: kind()})
        if name in tables:
            options = _merge_plugin_table(options, name, tables[name], f"{table}.{name}", where)
    return options


def settle_rate(train: Any, names_schedule: bool) -> Any:
    """The options of an algorithm, with `schedule` off if the learning rate is a schedule. Raises if both are chosen.

    `names_schedule` says whether the user chose `schedule`, beside its default.
    """
    rate, schedule = getattr(train, "learning_rate", None), getattr(train, "schedule", "constant")
    if not isinstance(rate, Schedule) or schedule == "constant":
        return train
    if names_schedule:
        raise ConfigError(
            f"--train.learning-rate {rate} and --train.schedule {schedule} both say how the learning rate changes. "
            "Leave out --train.schedule, or give the learning rate as a number."
        )
    return dataclasses.replace(train, schedule="constant")


def chosen_plugin(options: Options, table: str) -> str:
    """The plugin whose options are in one of PLUGIN_TABLES; empty where the algorithm offers no choice."""
    return str(getattr(getattr(options, PLUGIN_TABLES[table][0]), table, ""))


def _merge_plugin_table(options: Options, name: str, value: Any, chooser: str, where: str) -> Options:
    below = getattr(options, name)
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: '{name}' is a table of options, not {value!r}.")
    if value and not dataclasses.fields(below):
        chosen = chosen_plugin(options, name) or "none"
        raise ConfigError(f"{where}: [{name}] has options, but {chooser} = '{chosen}' has none of its own. Remove it.")
    return dataclasses.replace(options, **{name: config.from_dict(type(below), value, name, below)})


def options_for(env: Any, *layers: Mapping[str, Any]) -> Options:
    """Built-in defaults, then defaults by the env's look, its tuned values, and the layers. Later ones override.

    A table `cuda` in the tuned values or in a layer holds tables for runs on a GPU, where batches are larger. Tuned
    values for an algorithm other than the file's `algo` are in a table of that algorithm's name: `[dqn.train]`.
    """
    own = tuned(env) if isinstance(env, str) else {}
    algo = next((layer["algo"] for layer in reversed(layers) if "algo" in layer), own.get("algo", "ppo"))
    if algo != own.get("algo", "ppo") and algo in ALGORITHMS.names():
        common = {name: value for name, value in own.items() if name not in ("train", "cuda", "score", "sweep")}
        own = {**common, **own.get(algo, {}), "algo": algo}
    asked = next((layer["device"] for layer in (*reversed(layers), own) if "device" in layer), "auto")
    on_gpu = asked == "cuda" or (asked == "auto" and torch.cuda.is_available())
    options = _by_look(env, algo, on_gpu, [own, *layers])
    options = merge(options, own, f"{env}.toml")
    if on_gpu:
        options = merge(options, own.get("cuda", {}), f"{env}.toml [cuda]")
    for layer in layers:
        options = merge(options, layer, "options", is_native(env))
        if on_gpu:
            options = merge(options, layer.get("cuda", {}), "options [cuda]", is_native(env))
    if not any(
        "segment" in _table(tables, "train") for layer in (own, *layers) for tables in (layer, _table(layer, "cuda"))
    ):
        options = fit_segment(options)
    return dataclasses.replace(options, env=read_env_options(options.env))


def _by_look(env: Any, algo: Any, on_gpu: bool, layers: list[Mapping[str, Any]]) -> Options:
    """The built-in defaults, overridden by those for what the env looks like."""
    if env == "" or algo not in ALGORITHMS.names():  # no env, or a mistake that `merge` reports
        return Options()
    options = merge(Options(), {"algo": algo}, "options")
    if any(_is_complete(layer, options) for layer in layers):  # of a saved run: nothing is left to the defaults
        return options
    env_options: dict[str, Any] = {}
    for table in (layer["env"] for layer in layers if isinstance(layer.get("env"), Mapping)):
        env_options = read_env_options(_over(env_options, table, is_native(env)))
    env_options = env_params.at(env, env_options, 0.0)
    cores = [layer["nn"]["core"] for layer in layers if "core" in _table(layer, "nn")]
    device: Any = "cuda" if on_gpu else "cpu"
    look = defaults.look_at(env, env_options, algo=algo, device=device, core=(cores or ["none"])[-1] != "none")
    return merge(options, defaults.by_look(look), "defaults")


def fit_segment(options: Options) -> Options:
    """The default segment, shortened until segments fill the horizon and there is one for each minibatch."""
    train: Any = options.train
    segment = getattr(train, "segment", 0)
    if segment < 2:
        return options
    envs = options.vec.num_envs or PYTHON_ENVS
    steps = train.batch_size // envs if train.batch_size else train.horizon
    lengths = (k for k in range(segment, 0, -1) if steps % k == 0)
    fitting = next((k for k in lengths if steps // k * envs >= train.minibatches), 1)
    return dataclasses.replace(options, train=dataclasses.replace(train, segment=fitting))


def _table(layer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A table of a layer; empty if the layer has none, or something else by that name."""
    table = layer.get(name, {})
    return table if isinstance(table, Mapping) else {}


def _is_complete(layer: Mapping[str, Any], options: Options) -> bool:
    """Whether a layer has a value for every option that a default by look may set."""
    known = {name: {f.name for f in dataclasses.fields(getattr(options, name))} for name in ("train", "vec", "nn")}
    return all(names <= set(_table(layer, name)) for name, names in known.items())


def _over(below: Mapping[str, Any], env_options: Mapping[str, Any], has_presets: bool) -> dict[str, Any]:
    """Env options over those of lower layers. A preset of a native env is a complete set: it replaces them."""
    return {**({} if has_presets and "preset" in env_options else below), **env_options}


def as_tables(options: Options) -> dict[str, Any]:
    """The options as the tables of a TOML file, without the env options that TOML cannot hold (`unsaved`)."""
    tables: dict[str, Any] = {name: getattr(options, name) for name in PLAIN}
    for name in (*TABLES, *PLUGIN_TABLES):
        if dataclasses.fields(values := getattr(options, name)):
            tables[name] = config.to_dict(values)
    skipped = unsaved(options.env)
    return {**tables, "env": {key: encode(value) for key, value in options.env.items() if key not in skipped}}


# ---- env options: any keyword argument, encoded so that the same value is read back ----


def read_env_options(env_options: Mapping[str, Any]) -> dict[str, Any]:
    """The env options that tables hold, with schedules and distributions for texts that describe them."""
    return {name: env_params.parse(decode(value)) for name, value in env_options.items()}


def encode(value: Any) -> Any:
    """A value in a form that TOML can hold. Tuples, None, arrays and dicts with other keys become tagged tables."""
    value = env_params.as_text(value)
    if isinstance(value, (np.bool_, np.integer, np.floating)):
        return value.item()
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biuf":
            raise TypeError(f"array of {value.dtype}")
        return {"__array__": value.tolist(), "dtype": str(value.dtype)}
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Distribution):
        return str(value)  # shoal.make reads its text
    if value is None:
        return {"__none__": True}
    if isinstance(value, tuple):
        return {"__tuple__": [encode(part) for part in value]}
    if isinstance(value, list):
        return [encode(part) for part in value]
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("__") for key in value):
            return {key: encode(part) for key, part in value.items()}
        return {"__items__": [[encode(key), encode(part)] for key, part in value.items()]}
    raise TypeError(type(value).__name__)


def decode(value: Any) -> Any:
    """The value that `encode` was given."""
    if isinstance(value, list):
        return [decode(part) for part in value]
    if not isinstance(value, Mapping):
        return value
    if "__tuple__" in value:
        return tuple(decode(part) for part in value["__tuple__"])
    if "__none__" in value:
        return None
    if "__array__" in value:
        return np.array(value["__array__"], value["dtype"])
    if "__items__" in value:
        return {decode(key): decode(part) for key, part in value["__items__"]}
    return {key: decode(part) for key, part in value.items()}


def unsaved(env_options: Mapping[str, Any]) -> list[str]:
    """The names of env options that cannot be written to a file: functions and other objects."""
    names = []
    for name, value in env_options.items():
        try:
            encode(value)
        except TypeError:
            names.append(name)
    return names
