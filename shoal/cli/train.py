"""`shoal train`: trains a policy. Its flags are the fields of `shoal.train.Options` and of the loggers' options."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
import traceback
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from shoal import config
from shoal.cli import aliases, population_flags, rank_flags, seed_flags
from shoal.cli.command import Command, value_of
from shoal.cli.screen import console, report, show_help
from shoal.config import opt
from shoal.distributions import Distribution
from shoal.errors import CheckpointError, ConfigError, EnvCrashed, ShoalError, TrainingError, UnknownEnv
from shoal.names import shortened
from shoal.schedules import Schedule, is_call


def train(args: Sequence[str]) -> int:
    """Train a policy on an env, with a live dashboard, checkpoints and an evaluation.

    ENV is a name from 'shoal envs', the path of a header, an id such as gymnasium:CartPole-v1, or a Python env of your
    own: mine:Env, ./mine.py:Env. Stock envs have tuned options; defaults marked (by env) depend on what the env looks
    like. Flags override both. Ctrl-C saves a checkpoint and stops; --resume continues from it.

    Try:
        shoal train cartpole
        shoal train breakout --train.total-steps 50M --seed 2
        shoal train memory --nn.core mingru
        shoal train gymnasium:LunarLander-v3 --vec.num-envs 16
        shoal train cartpole --callback "stop_at(score=475)"
        shoal train --resume last
        shoal train cartpole --init last@best
        shoal train cartpole --seeds 1 2 3 --parallel 3
        shoal train breakout --population 16 --pbt
        shoal train breakout --gpus 4
    """
    follower = rank_flags.join(args)
    if follower is not None:
        return follower
    prebuild(args)
    from shoal.train import Stopped
    from shoal.train import train as start

    words, ranges, population = population_flags.read(aliases.translate(args))
    words, group = seed_flags.read(words)
    request = parse(words)
    if (code := rank_flags.launch(args, request)) is not None:
        return code
    common: dict[str, Any] = {
        "options": request.options,
        "runs_folder": request.runs,
        "log": request.log,
        "log_options": request.log_options,
        "console": request.console,
    }
    try:
        if group is not None and group.kind == "population":
            population, group = group, None
        if request.population or population is not None:
            population_flags.train(request, ranges, population, common)
            return 0
        if request.seeds or group is not None:
            seed_flags.train(request.env, request.seeds, request.parallel, group, common)
            return 0
        run = start(request.env, resume=request.resume, **common)
    except Stopped as stop:
        console(stderr=True).print(f"\n{stop}", style="dim", soft_wrap=True)
        return 128 + stop.number
    except ShoalError as error:
        if getattr(error, "callback", ""):  # raised by code of the user
            traceback.print_exception(error)
            return 1
        if not isinstance(error, (TrainingError, CheckpointError, EnvCrashed)):
            raise  # a mistake in the command line
        report(error)
        return 1
    return 0 if (run.summary or {}).get("status") == "finished" else 1


def prebuild(args: Sequence[str]) -> None:
    """Compiles a native env for the GPU while torch is imported, which takes a second or two."""
    if not args or any(word in ("-h", "--help") for word in args):
        return
    from shoal import registry
    from shoal.native import prebuild as prebuilding

    with contextlib.suppress(UnknownEnv, ConfigError):  # a Python env, a flag, or a mistake that `parse` reports
        args = aliases.translate(args)
        header, file = registry.find(args[0]), value_of(args, "--config")
        tables = {} if file is None else config.read_toml(Path(file))
        if (value_of(args, "--device") or tables.get("device")) != "cpu":
            prebuilding.start(header)


@dataclass(frozen=True)
class Request:
    """A parsed command line."""

    env: str
    options: Any
    resume: Any
    runs: Path
    log: tuple[str, ...]
    log_options: dict[str, dict[str, Any]]
    console: str
    seeds: tuple[int, ...] = ()
    parallel: int = 1
    launch: Any = None  # of --gpus and --processes (shoal/train/ranks/launch.py)
    population: int = 0
    pbt: str = ""
    replay: str = ""
    config: str = ""


@dataclass(frozen=True)
class Session:
    """Flags of the command, which are not options of the run."""

    config: str = opt("", "TOML file whose tables override the tuned options of the env", metavar="FILE")
    resume: str = opt(
        "", "run to continue: its folder, its id, 'last', or 'auto' for the newest unfinished one", metavar="RUN"
    )
    seeds: tuple[int, ...] = opt(
        (), "a run for each of these seeds, with one summary; one number is a count: 3 means 1 2 3", metavar="[N ...]"
    )
    parallel: int = opt(
        1, "with --seeds: seeds that train at the same time, each in a process with its own cores", low=1
    )
    population: int = opt(
        0, "members with seeds and options of their own, drawn from ranges; they share one trainer", low=0, metavar="N"
    )
    pbt: str = opt(
        "", "population-based training: the worst members copy the best, every STEPS (alone: 20 times)", metavar="STEPS"
    )
    replay: str = opt("", "with --pbt: a population whose recorded exchanges are repeated", metavar="POPULATION")
    gpus: int = opt(0, "train on this many GPUs of this machine, in a process for each (docs/distributed.md)", low=0)
    processes: int = opt(0, "train in this many processes on this machine, on the CPU or sharing the GPUs", low=0)
    max_restarts: int = opt(
        0, "with --gpus or --processes: how often all are started again from the last checkpoint after a fault", low=0
    )
    rank_timeout_s: float = opt(
        600.0, "with several processes: seconds after which one that the others wait for counts as hanging", low=1.0
    )
    runs: str = opt("runs", "folder of the runs", metavar="FOLDER")
    console: Literal["auto", "dashboard", "lines", "off"] = opt(
        "auto", "progress display; auto: the dashboard on a terminal, otherwise lines"
    )


def parse(args: list[str], verb: str = "train", text: str | None = None) -> Request:
    """Parses a command line of this verb. `text` is the start of its help (default: that of `train`).

    The env, --config, --resume and the flags that choose other defaults are read first: tuned values and the values of
    a resumed run are the defaults of all other flags, and `--help` shows them.
    """
    from shoal import registry, runs
    from shoal.train import options_for
    from shoal.train.init import check_resume
    from shoal.train.named import check_env_is_named
    from shoal.train.options import read_env_options

    args = _join_repeated(aliases.translate(args), "--callback")
    args = [part for word in args for part in (("--league.on", "True") if word == "--league" else (word,))]
    asks_help = any(word in ("-h", "--help") for word in args)
    env = stored_env(args[0]) if args and not args[0].startswith("-") else None
    rest = args[1:] if env is not None else list(args)
    root = Path(value_of(rest, "--runs") or runs.ROOT)
    layers: list[Mapping[str, Any]] = []
    if (file := value_of(rest, "--config")) is not None:
        layers.append(config.read_toml(Path(file)))
    resumed = None if asks_help else _resumed(value_of(rest, "--resume"), env, root)
    if resumed is not None:
        check_resume(value_of(rest, "--init") or "", resumed, is_auto=value_of(rest, "--resume") == "auto")
        layers.append(resumed.config)
        env = check_env_is_named(resumed)
    if env is None and not asks_help:
        raise ConfigError("no env given. Try 'shoal train cartpole'; 'shoal envs' lists all envs.")
    layers += _default_choosers(rest)
    given: dict[str, Any] = {}
    if env is not None and not registry.is_native(env):  # a Python env: its own keyword arguments
        rest, given = env_flags(rest)
        given = read_env_options(given)
        if not value_of(rest, "--vec.python"):  # otherwise this interpreter may not have what the env needs
            check_keywords(env, given)
        layers.append({"env": given})  # its spaces, on which defaults depend, may depend on them
    options = options_for(env or "", *layers)
    params = _param_fields(env, options.env) or []
    loggers = _logger_options(_own_loggers(rest))
    flags = _flags(params, options, loggers)
    if asks_help:
        show_help(f"{text or inspect.getdoc(train) or ''}\n\n{_params_help(env)}")
    parsed: Any = tyro.cli(
        flags,
        prog=f"shoal {verb} {shortened(env or 'ENV')}",
        args=["--help"] if asks_help else rest,
        description="",
        default=flags(),
        config=(tyro.conf.FlagConversionOff, tyro.conf.OmitSubcommandPrefixes, tyro.conf.HelptextFromCommentsOff),
    )
    options = _with_flags(options, parsed, params, given, has_schedule=value_of(rest, "--train.schedule") is not None)
    if resumed is not None:  # with --resume auto, --init is for a new run
        options = dataclasses.replace(options, init=str(resumed.config.get("init", "")))
    config.check(options, "")
    if verb != "train":
        _refuse_several_runs(verb, parsed)
    log = tuple(parsed.log)
    log_options = {name: config.to_dict(getattr(parsed, _field(name))) for name in loggers if name in log}
    launch = rank_flags.read(parsed)
    own = {name: getattr(parsed, name) for name in ("console", "parallel", "population", "pbt", "replay", "config")}
    return Request(str(env), options, resumed, root, log, log_options, seeds=tuple(parsed.seeds), launch=launch, **own)


def _with_flags(options: Any, parsed: Any, params: list[Any], given: Mapping[str, Any], *, has_schedule: bool) -> Any:
    """The options with the values of the parsed flags; `given` are the keyword arguments of a Python env.

    A native env's params are kept where they differ from their defaults, or are chosen already.
    """
    from shoal.train.options import settle_rate

    changed = {}
    for name, value in _option_values(options).items():
        changed[name] = getattr(parsed, name)
        if name == "train":
            changed[name] = settle_rate(changed[name], has_schedule)
        if dataclasses.is_dataclass(value):
            config.check(changed[name], name)
    defaults = {name: default for name, _, default, _ in params if name != "preset"}  # that is applied as a layer
    now = {name: getattr(parsed.env, name) for name in defaults}
    own = {name: value for name, value in now.items() if value != defaults[name] or name in options.env}
    return dataclasses.replace(options, **changed, env={**options.env, **own, **given})


def _refuse_several_runs(verb: str, parsed: Any) -> None:
    """Raises for flags of several runs, which other verbs than `train` share with it and do not have."""
    if parsed.seeds:
        raise ConfigError(f"--seeds is for 'shoal train', not for 'shoal {verb}'. Use --seed.")
    for name in ("population", "pbt", "replay"):
        if getattr(parsed, name):
            raise ConfigError(f"--{name} is for 'shoal train', not for 'shoal {verb}'. Leave it out.")


def _join_repeated(args: list[str], flag: str) -> list[str]:
    """`--flag a --flag=b` as `--flag a b`: tyro would keep the last one only."""
    rest: list[str] = []
    values: list[str] = []
    is_value = False  # whether a word that is no flag belongs to this flag
    for word in args:
        if word == flag:
            is_value = True
        elif word.startswith(f"{flag}="):
            values.append(word.partition("=")[2])
            is_value = False
        elif is_value and not word.startswith("--"):
            values.append(word)
        else:
            is_value = False
            rest.append(word)
    return [*rest, flag, *values] if len(rest) < len(args) else rest


def stored_env(env: str) -> str:
    """The name under which a run stores an env: found from any folder."""
    from shoal import entry

    return entry.place_of_env(env).name


def _resumed(word: str | None, env: str | None, root: Path) -> Any:
    """The run that --resume names; None for a new run."""
    from shoal import entry, runs

    if not word:
        return None
    if word == "auto":
        return None if env is None else runs.find_unfinished(env, root)
    run = runs.find(word, root)
    trained = entry.trained_env(str(run.facts.get("env", run.env)))
    if env is not None and env != trained:
        shown = shortened(trained), shortened(env)
        raise ConfigError(f"--resume {run.id} is a run of {shown[0]}, not of {shown[1]}. Leave out the env.")
    return run


def _default_choosers(rest: Sequence[str]) -> list[Mapping[str, Any]]:
    """The flags on which the defaults of other flags depend: the algorithm, the device, the preset and plugins."""
    from shoal.train import Options
    from shoal.train.options import PLUGIN_TABLES

    layers: list[Mapping[str, Any]] = []
    hints = typing.get_type_hints(Options)
    for option in dataclasses.fields(Options):
        word = value_of(rest, f"--{option.name}") if option.name in ("device", "algo") else None
        if word in typing.get_args(config.hint_of(option, hints[option.name])):  # tyro reports any other
            layers.append({option.name: word})
    for name, (table, plugins) in PLUGIN_TABLES.items():
        if (word := value_of(rest, f"--{table}.{name}")) in plugins.names():
            layers.append({table: {name: word}})
    if value_of(rest, "--nn.groups") is not None and value_of(rest, "--nn.policies") is None:
        layers.append({"nn": {"policies": "auto"}})  # groups that are given have a policy each
    if (preset := value_of(rest, "--env.preset")) is not None:
        layers.append({"env": {"preset": preset}})
    return layers


def _option_values(options: Any) -> dict[str, Any]:
    """The run's options by field: plain ones and tables that are not empty. The flags of `env` come from the env."""
    values = {f.name: getattr(options, f.name) for f in dataclasses.fields(options) if f.name != "env"}
    return {
        name: value
        for name, value in values.items()
        if not dataclasses.is_dataclass(value) or dataclasses.fields(value)
    }


def _own_loggers(rest: Sequence[str]) -> list[str]:
    """The loggers that `--log` names by module or file."""
    words = [word for flag, word in zip(_last_flags(rest), rest) if flag == "--log" and not word.startswith("--")]
    return [word for word in words if ":" in word]


def _last_flags(rest: Sequence[str]) -> list[str]:
    """For every word of a command line, the last flag up to it."""
    flags = list(itertools.accumulate(rest, lambda last, word: word if word.startswith("--") else last, initial=""))
    return flags[1:]


def _logger_options(own: Sequence[str] = ()) -> dict[str, type]:
    """The options of every logger that has any. One that cannot be loaded is skipped: `--log` reports it.

    A logger with the name of another table or flag has no flags: it runs with its defaults.
    """
    from shoal import log
    from shoal.train import Options

    taken = {"log", *(option.name for kind in (Options, Session) for option in dataclasses.fields(kind))}
    kinds: dict[str, type] = {}
    for name in (*log.names(), *own):
        with contextlib.suppress(ConfigError):
            kinds[name] = log.find(name).options
    return {name: kind for name, kind in kinds.items() if dataclasses.fields(kind) and _field(name) not in taken}


def _field(name: str) -> str:
    """A logger's name as the field of a dataclass; of `mine:Csv` it is `csv`."""
    return name.rpartition(":")[2].lower().replace("-", "_")


def _flags(params: list[tuple[str, Any, Any, str]], options: Any, loggers: Mapping[str, type]) -> Any:
    """A dataclass of all flags, with the resolved values as defaults."""
    from shoal import log
    from shoal.train.callbacks import describe_stock

    def table(kind: Any, value: Any) -> tuple[Any, Any]:
        return config.flags(kind), field(default_factory=lambda: value)

    def arg(kind: Any, text: str, default: Any, metavar: str | None = None) -> tuple[Any, Any]:
        note = tyro.conf.arg(help=text, metavar=metavar, help_behavior_hint=config.default_hint)
        return Annotated[kind, note], field(default=default)

    top: dict[str, tuple[Any, Any]] = {}
    tables: dict[str, tuple[Any, Any]] = {}
    hints = typing.get_type_hints(type(options))
    declared = {option.name: option for option in dataclasses.fields(options)}
    for name, value in _option_values(options).items():
        if dataclasses.is_dataclass(value):  # not the annotated type: the algorithm decides it
            tables[name] = table(type(value), value)
        else:
            kind, about = config.hint_of(declared[name], hints[name]), declared[name].metadata
            top[name] = arg(kind, about["help"], value, about.get("metavar"))
    text = f"callbacks, each a name or module:Class with options: {describe_stock()}; the flag can be repeated"
    top["callback"] = arg(tuple[str, ...], text, options.callback, metavar="[NAME ...]")
    hints = typing.get_type_hints(Session)
    for option in dataclasses.fields(Session):
        about = option.metadata
        top[option.name] = arg(hints[option.name], about["help"], option.default, about["metavar"])
    text = f"loggers besides metrics.jsonl: {', '.join(log.names())}, or your own: mine:Logger"
    top["log"] = arg(tuple[str, ...], text, (), metavar="[NAME ...]")
    for name, kind in loggers.items():
        tables[_field(name)] = table(kind, kind())
    if params:
        fields = [(name, *arg(_or_changing(kind), text, default)) for name, kind, default, text in params]
        Env = dataclasses.make_dataclass("Env", fields, frozen=True)
        Env.__doc__ = "Params of the env."
        tables["env"] = table(Env, Env())
    all_flags = [(name, *flag) for name, flag in (top | tables).items()]
    return dataclasses.make_dataclass("Train", all_flags, frozen=True)


def _param_fields(env: str | None, given: dict[str, Any]) -> list[tuple[str, Any, Any, str]] | None:
    """(name, type, default, help) of a native env's params and consts; None for a Python env."""
    from shoal import registry
    from shoal.native import lib

    if env is None:
        return []
    if not registry.is_native(env):
        return None
    spec = lib.load(registry.find(env)).spec
    spec.split(given)  # raises for an unknown name, with a suggestion
    values = spec.expand(given)
    fields: list[tuple[str, Any, Any, str]] = []
    if spec.presets:
        names = ", ".join(preset.name for preset in spec.presets)
        text = f"set of values, which other params override: {names}"
        fields.append(("preset", str, str(given.get("preset", "")), text))
    for param in spec.params:
        if param.choices:
            word = param.choices[int(param.check(spec.name, values.get(param.name, int(param.default)), 1))]
            fields.append((param.name, Literal[param.choices], word, param.help))
            continue
        kind: Any = float if param.kind == "float" else int
        default = float(f"{param.default:.7g}") if kind is float else int(param.default)  # a C float has 7 digits
        value = values.get(param.name, default)
        fields.append((param.name, kind, value if _changes(value) else _as(kind, value, param.name), param.help))
    for const in spec.consts:
        value = _as(int, values.get(const.name, const.default), const.name)
        fields.append((const.name, int, value, f"{const.help} (recompiles the env)"))
    return fields


def _or_changing(kind: Any) -> Any:
    """The type of a param's flag: a number may also be a schedule or a distribution."""
    if kind not in (int, float):
        return kind

    def read(words: list[str]) -> Any:
        from shoal.train import env_params

        try:
            return env_params.parse_or_explain(words[0]) if is_call(words[0]) else kind(words[0])
        except ConfigError as error:
            raise ValueError(str(error)) from None

    spec = tyro.constructors.PrimitiveConstructorSpec(
        1,
        kind.__name__.upper(),
        read,
        lambda value: isinstance(value, kind) or _changes(value),
        lambda value: [str(value)],
    )
    return Annotated[kind | Schedule | Distribution, spec]


def _changes(value: Any) -> bool:
    """Whether a param's value changes in the run: a schedule, or a distribution."""
    return isinstance(value, (Schedule, Distribution))


def _as(kind: Any, value: Any, name: str) -> Any:
    """A param of a TOML file in the param's type. A value of another type raises: it is not rounded."""
    if isinstance(value, str) and is_call(value):
        from shoal.train import env_params

        env_params.parse_or_explain(value)  # raises: `options_for` has not recognized it
    if isinstance(value, bool) or not isinstance(value, (int, float)) or (kind is int and value != int(value)):
        raise ConfigError(f"env.{name} = {value!r} must be {kind.__name__}, not {type(value).__name__}.")
    return kind(value)


def call_with_params(command: Callable[..., int], name: str, words: list[str], *, prog: str, text: str) -> int:
    """Calls a command with its flags; those of env params (`--env.gravity 15`) become its argument `name`.

    `text` is its help.
    """
    rest, given = env_flags(words)
    if any(word in ("-h", "--help") for word in words):
        rest = ["--help"]  # without the other words, or tyro omits the arguments that they give
        show_help(text)
    config = (tyro.conf.FlagCreatePairsOff,)
    done: int = tyro.cli(partial(command, **{name: given}), prog=prog, args=rest, description="", config=config)
    return done


def env_flags(args: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Separates `--env.name value` from the other flags. Values are read as TOML, otherwise as text."""
    rest: list[str] = []
    given: dict[str, Any] = {}
    words = iter(args)
    for word in words:
        if not word.startswith("--env."):
            rest.append(word)
            continue
        name, _, value = word[len("--env.") :].partition("=")
        if not value:
            value = next(words, "")
            if not value:
                raise ConfigError(f"--env.{name} needs a value.")
        given[name.replace("-", "_")] = config.parse_value(value)
    return rest, given


def _params_help(env: str | None) -> str:
    """The params of a Python env that is named by its module or file, for `--help`."""
    from shoal import entry

    params = {} if env is None else entry.params_of(env)
    lines = [f"    --env.{name.replace('_', '-')}  {default}" for name, default in params.items()]
    return "\n".join([f"Params of {shortened(env or '')}, and their defaults:", *lines]) if lines else ""


def check_keywords(env: str, given: Mapping[str, Any]) -> None:
    """Raises for a keyword that the constructor of a Python env does not have, with a suggestion."""
    from shoal import entry

    entry.check_params(env, given)


COMMAND = Command(
    train, order=10, examples={"shoal train breakout": "train a policy and watch it learn"}, parses_words=True
)
