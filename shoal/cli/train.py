"""`shoal train`: from a command line to a run. The flags are the fields of the options (shoal/train.py)."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from shoal import config
from shoal.errors import CheckpointError, ConfigError, EnvCrashed, TrainingError, UnknownEnv


def command(args: Sequence[str]) -> int:
    """Train a policy on an env, with a live dashboard, checkpoints and an evaluation.

    ENV is what 'shoal envs' lists, a header's path, or gymnasium:CartPole-v1 and the like. Stock envs come with tuned
    options; flags go over them. Ctrl-C saves a checkpoint and leaves; --resume goes on from it.

    Try:
        shoal train cartpole
        shoal train breakout --train.total-steps 50M --seed 2
        shoal train memory --nn.core mingru
        shoal train gymnasium:LunarLander-v3 --vec.num-envs 16
        shoal train --resume last
    """
    from shoal.cli.main import console, report

    begin_early(args)
    from shoal.train import Stopped, train

    request = parse(list(args))
    try:
        run = train(
            request.env,
            options=request.options,
            resume=request.resume,
            runs_folder=request.runs,
            log=request.log,
            log_options=request.log_options,
            console=request.console,
        )
    except Stopped as stop:
        console(stderr=True).print(f"\n{stop}", style="dim", soft_wrap=True)
        return 128 + stop.number
    except (TrainingError, CheckpointError, EnvCrashed) as error:  # nothing is wrong with the command
        report(error)
        return 1
    return 0 if (run.summary or {}).get("status") == "finished" else 1


def begin_early(args: Sequence[str]) -> None:
    """Lets compilers work on a native env for the GPU while torch is imported, which takes a second or two."""
    if not args or any(word in ("-h", "--help") for word in args):
        return
    from shoal import registry
    from shoal.native import ahead

    with contextlib.suppress(UnknownEnv, ConfigError):  # a Python env, a flag, or a mistake, which is told later
        args = puffer_words(list(args))
        header, file = registry.find(args[0]), _value(args, "--config")
        below = {} if file is None else config.read_toml(Path(file))
        if (_value(args, "--device") or below.get("device")) != "cpu":
            ahead.begin(header)


@dataclass(frozen=True)
class Request:
    """What a command line asks for."""

    env: str
    options: Any
    resume: Any
    runs: Path
    log: tuple[str, ...]
    log_options: dict[str, dict[str, Any]]
    console: str


@dataclass(frozen=True)
class Wandb:
    """Options of `--log wandb`."""

    mode: Literal["online", "offline", "disabled"] = config.opt("offline", "offline: written here, to be synced later")
    project: str = config.opt("shoal", "where the run is shown")
    entity: str = config.opt("", "whose project; empty: your own")
    name: str = config.opt("", "of the run; empty: its id here")


def parse(args: list[str]) -> Request:
    """Reads the env, its tuned values, --config and --resume first: they are the defaults of all other flags."""
    from shoal import runs
    from shoal.train import ALGORITHM_NAMES, options_for

    args = puffer_words(args)
    asks_help = any(word in ("-h", "--help") for word in args)
    env = args[0] if args and not args[0].startswith("-") else None
    rest = args[1:] if env is not None else list(args)
    root = Path(_value(rest, "--runs") or runs.ROOT)
    resume: Any = _value(rest, "--resume")
    layers: list[Any] = []
    if (file := _value(rest, "--config")) is not None:
        layers.append(config.read_toml(Path(file)))
    if resume is not None and resume != "auto" and not asks_help:
        resume = runs.find(resume, root)
        layers.append(resume.config)
        found = resume.facts.get("env", resume.env)
        if env is not None and env != found:
            raise ConfigError(f"--resume {resume.id} is a run of {found}, not of {env}. Leave the env out.")
        env = found
    if resume == "auto" and env is not None and not asks_help:
        from shoal.train import _run_to_resume

        resume = _run_to_resume(env, "auto", root)
        layers += [resume.config] if resume is not None else []
    if env is None and not asks_help:
        raise ConfigError("which env? 'shoal train cartpole' trains on one; 'shoal envs' lists all.")
    if (device := _value(rest, "--device")) in ("auto", "cpu", "cuda"):  # a GPU has tuned values of its own
        layers.append({"device": device})
    if (algo := _value(rest, "--algo")) in ALGORITHM_NAMES:  # each has options of its own
        layers.append({"algo": algo})
    if (preset := _value(rest, "--env.preset")) is not None:
        layers.append({"env": {"preset": preset}})
    options = options_for(env, *layers) if env is not None else options_for("")
    params = _param_fields(env, options.env)
    given: dict[str, Any] = {}
    if params is None:  # a Python env: its own keyword arguments, whatever they are
        rest, given = _free_params(rest)
        params = []
    flags = _flags(params, options)
    parsed: Any = tyro.cli(
        flags,
        prog=f"shoal train {env or 'ENV'}",
        args=["--help"] if asks_help else rest,
        description=inspect.getdoc(command),
        default=flags(),
        config=(tyro.conf.FlagConversionOff, tyro.conf.OmitSubcommandPrefixes),
    )
    tables = {name: getattr(parsed, name) for name in ("train", "vec", "nn", "eval", "save")}
    for name, table in tables.items():
        config.check(table, name)
    changed = {f.name: getattr(parsed.env, f.name) for f in dataclasses.fields(parsed.env)} if params else {}
    changed.pop("preset", None)  # a layer already
    defaults = {name: default for name, _, default, _ in params}
    own = {**options.env, **{k: v for k, v in changed.items() if v != defaults[k] or k in options.env}, **given}
    plain = {name: getattr(parsed, name) for name in ("algo", "seed", "device", "opponents")}
    options = dataclasses.replace(options, **tables, **plain, env=own)
    config.check(options, "")
    wandb = {k: v for k, v in dataclasses.asdict(parsed.wandb).items() if v}
    chosen = tuple(parsed.log)
    return Request(
        str(env), options, resume, root, chosen, {"wandb": wandb} if "wandb" in chosen else {}, parsed.console
    )


# what PufferLib users type, and what it is called here
PUFFER_FLAGS = {
    "--train.device": "--device",
    "--train.seed": "--seed",
    "--train.num-steps": "--train.horizon",
    "--train.bptt-horizon": "--train.horizon",
    "--train.n-epochs": "--train.epochs",
    "--train.update-epochs": "--train.epochs",
    "--train.clip-coef": "--train.clip",
    "--train.ent-coef": "--train.entropy-coef",
    "--train.vf-coef": "--train.value-coef",
    "--train.vf-clip-coef": "--train.value-clip",
    "--train.total-timesteps": "--train.total-steps",
}


def puffer_words(args: list[str]) -> list[str]:
    """The command line with PufferLib's spellings in our words: `gym-CartPole-v1 --train.ent-coef 0.01`."""
    words = []
    for word in args:
        flag, sign, value = word.partition("=")
        words.append(PUFFER_FLAGS.get(flag.replace("_", "-") if flag.startswith("--") else flag, flag) + sign + value)
    if words and words[0].startswith("gym-"):
        words[0] = f"gymnasium:{words[0][len('gym-') :]}"
    elif words and words[0].startswith("puffer_"):
        words[0] = words[0][len("puffer_") :]
    elif words and re.match(r"(atari|procgen|minigrid|minihack|griddly|pettingzoo)-", words[0]):
        from shoal.puffer import names

        names.find(words[0])  # raises where it cannot be made, with the install line
        raise ConfigError(
            f"'{words[0]}' is a name of shoal.puffer: train it from Python with shoal.puffer.PuffeRL, or by its "
            "Gymnasium or PettingZoo id here (gymnasium:ALE/Pong-v5, pettingzoo:butterfly/pistonball_v6)."
        )
    return words


def _flags(params: list[tuple[str, Any, Any, str]], options: Any) -> Any:
    """A dataclass of all flags, with the resolved values as defaults."""
    from shoal import runs
    from shoal.train import TABLES

    env_fields = [
        (name, Annotated[kind, tyro.conf.arg(help=text)], field(default=default))
        for name, kind, default, text in params
    ]
    Env = dataclasses.make_dataclass("Env", env_fields, frozen=True)
    Env.__doc__ = "The env's own params."

    def made(value: Any) -> Any:
        return field(default_factory=lambda: value)

    def arg(kind: Any, text: str) -> Any:
        return Annotated[kind, tyro.conf.arg(help=text)]

    top = [
        (
            "algo",
            arg(Literal["ppo", "dqn", "pqn"], "the algorithm; --help shows its options"),
            field(default=options.algo),
        ),
        (
            "seed",
            arg(int, "of weights, actions and envs; the same seed gives the same run"),
            field(default=options.seed),
        ),
        ("device", arg(Literal["auto", "cpu", "cuda"], "where the policy lives"), field(default=options.device)),
        (
            "opponents",
            arg(str, "who plays the agents that do not learn: 1=seek,2=RUN; scripted robots and runs"),
            field(default=options.opponents),
        ),
        ("config", arg(str, "a TOML file whose tables go over the tuned ones"), field(default="")),
        (
            "resume",
            arg(str, "a run to go on with: folder, id, 'last', or 'auto': the newest unfinished one of this env"),
            field(default=""),
        ),
        ("runs", arg(str, "where the folders of runs are"), field(default=str(runs.ROOT))),
        (
            "log",
            Annotated[
                tuple[str, ...],
                tyro.conf.arg(help="loggers besides metrics.jsonl: tensorboard, wandb", metavar="[NAME ...]"),
            ],
            field(default=()),
        ),
        (
            "console",
            arg(Literal["auto", "dashboard", "lines", "off"], "what is shown while it trains"),
            field(default="auto"),
        ),
        ("wandb", config.flags(Wandb), made(Wandb())),
    ]
    values = {name: getattr(options, name) for name in TABLES}
    kinds: dict[str, Any] = {name: type(value) for name, value in values.items()}  # train's is the algorithm's
    tables = [(name, config.flags(kinds[name]), made(value)) for name, value in values.items()]
    env = [("env", Env, made(Env()))] if params else []
    return dataclasses.make_dataclass("Train", [*top, *tables, *env], frozen=True)


def _param_fields(env: str | None, given: dict[str, Any]) -> list[tuple[str, Any, Any, str]] | None:
    """(name, type, default, help) of a native env's params and consts; None for a Python env."""
    from shoal import registry
    from shoal.native import lib

    if env is None:
        return []
    if ":" in env and not env.endswith(".h"):
        return None
    spec = lib.load(registry.find(env)).spec
    spec.split(given)  # raises for an unknown name, with a suggestion
    values = spec.expand(given)
    fields: list[tuple[str, Any, Any, str]] = []
    if spec.presets:
        names = ", ".join(preset.name for preset in spec.presets)
        text = f"a set of values, over which the others go: {names}"
        fields.append(("preset", str, str(given.get("preset", "")), text))
    for param in spec.params:
        if param.choices:
            word = param.choices[int(param.check(spec.name, values.get(param.name, int(param.default)), 1))]
            fields.append((param.name, Literal[param.choices], word, param.help))
            continue
        kind: Any = float if param.kind == "float" else int
        default = float(f"{param.default:.7g}") if kind is float else int(param.default)  # a C float has 7 digits
        fields.append((param.name, kind, _as(kind, values.get(param.name, default), param.name), param.help))
    for const in spec.consts:
        value = _as(int, values.get(const.name, const.default), const.name)
        fields.append((const.name, int, value, f"{const.help} (rebuilds the env)"))
    return fields


def _as(kind: Any, value: Any, name: str) -> Any:
    """A param of a TOML file as its own type: what is none of that type is not rounded into it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or (kind is int and value != int(value)):
        raise ConfigError(f"env.{name} = {value!r} is a {type(value).__name__}, not a {kind.__name__}.")
    return kind(value)


def _free_params(args: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Takes `--env.name value` out of the flags. Values are read as TOML, or else as text."""
    from shoal.config import parse_value

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
        given[name.replace("-", "_")] = parse_value(value)
    return rest, given


def _value(args: Sequence[str], flag: str) -> str | None:
    """The value of one flag, found before the others are parsed."""
    for k, word in enumerate(args):
        if word == flag and k + 1 < len(args):
            return args[k + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


command.takes_words = True  # type: ignore[attr-defined]
