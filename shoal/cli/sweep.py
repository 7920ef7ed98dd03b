"""`shoal sweep`: searches for the best options. shoal/sweep runs it; flags of the trials' runs are those of `train`."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from shoal import config
from shoal.cli import aliases
from shoal.cli import train as training
from shoal.cli.command import Command
from shoal.cli.screen import console, report, show_help
from shoal.errors import ConfigError, TrainingError


def sweep(args: Sequence[str]) -> int:
    """Search for the best options of an env: many trials, the best ones rerun on fresh seeds.

    Ranges come from the [sweep] table of the env's TOML file, of --config, and from flags:
    --sweep.train.learning-rate 'log(1e-4, 1e-2)'. Kinds: uniform, log, logit, pow2, integer, choice; 'off' removes an
    option, 'default' takes the range that it declares. Without any, the declared ranges of --train.* are used. Trial 0
    has the options as given. All flags of 'shoal train' set the options of every trial.

    The same command continues a sweep that was stopped or killed. Other processes, also on other machines that share
    the folder, join by its path: shoal sweep runs/cartpole/sweep-NAME.

    Try:
        shoal sweep cartpole --trials 40
        shoal sweep breakout --sweep.train.learning-rate 'log(1e-4, 1e-2)' --sweep.nn.hidden default
        shoal sweep squared --sampler protein --workers 2
        shoal sweep runs/cartpole/sweep-20261116-193741
    """
    words = aliases.translate(args)
    if any(word in ("-h", "--help") for word in words):
        return _help(words)
    from shoal.sweep.needs import check_optuna

    check_optuna()
    from shoal.sweep import api, store
    from shoal.train import Stopped

    own, ranges, rest = split(words)
    if "--resume" in [word.partition("=")[0] for word in rest]:
        raise ConfigError("a sweep continues by the same command, or by its folder: shoal sweep runs/ENV/sweep-NAME.")
    root = value_of(rest, "--runs") or "runs"
    try:
        joined = store.find(words[0], root) if words and not words[0].startswith("-") else None
        if joined is not None:
            _check_alone(rest, ranges, joined)
            given = config.to_dict(_parse(own, {}))
            names = {word.partition("=")[0].lstrip("-").replace("-", "_") for word in own if word.startswith("--")}
            api.join(joined, {name: given[name] for name in names if name in given}, _style(rest))
            return 0
        request = training.parse(rest, "sweep")
        file = value_of(rest, "--config")
        layers = api.layers_of(request.env, request.options, config.read_toml(Path(file)) if file else {})
        options = _parse(own, api.settings(layers))
        api.run(request.env, request.options, [*layers, ranges], options, request.runs, request.console)
    except Stopped as stop:
        line = f"\nstopped; the same command continues, or: shoal sweep {shlex.quote(str(stop.run.folder))}"
        console(stderr=True).print(line, style="dim", soft_wrap=True)
        return 128 + stop.number
    except TrainingError as error:
        report(error)
        return 1
    return 0


def split(words: Sequence[str]) -> tuple[list[str], dict[str, Any], list[str]]:
    """(flags of the sweep, tables of ranges from `--sweep.*` flags, the other words)."""
    from shoal.sweep.api import OWN

    names = {f"--{name.replace('_', '-')}" for name in OWN}
    own: list[str] = []
    ranges: dict[str, Any] = {}
    rest: list[str] = []
    at = 0
    while at < len(words):
        flag, sign, value = words[at].partition("=")
        name = flag.replace("_", "-") if flag.startswith("--") else flag
        name = "--trials" if name == "--max-runs" else name  # PufferLib's
        at += 1
        if name in ("--new", "--only"):
            own.append(name)
            if (value or (words[at] if at < len(words) else "")).lower() in ("true", "false"):
                at += 0 if sign else 1
                if (value or words[at - 1]).lower() == "false":
                    own.pop()
        elif name in names or name.startswith("--sweep."):
            if not sign:
                if at >= len(words) or words[at].startswith("--"):
                    raise ConfigError(f"{flag} needs a value.")
                value = words[at]
                at += 1
            if name in names:
                own += [name, value]
            else:
                _put(ranges, own, name.removeprefix("--sweep."), value)
        else:
            rest.append(words[at - 1])
    return own, ranges, rest


def _put(ranges: dict[str, Any], own: list[str], name: str, text: str) -> None:
    """Puts one `--sweep.*` flag into the tables of ranges, or, if it is a setting of PufferLib's, into our flags."""
    parts = name.split(".")
    if len(parts) == 1:
        own += _setting(parts[0], text)
        return
    flag = aliases.FLAGS.get(f"--{parts[0]}.{parts[1]}", f"--{parts[0]}.{parts[1]}")
    table, _, option = flag[2:].partition(".")
    if not option:
        raise ConfigError(f"--sweep.{name}: a sweep does not change the {table}.")
    option = option.replace("-", "_")
    if len(parts) == 2:
        ranges.setdefault(table, {})[option] = text
    elif len(parts) == 3:
        holder = ranges.setdefault(table, {}).setdefault(option, {})
        if not isinstance(holder, dict):
            raise ConfigError(f"--sweep.{name}: --sweep.{table}.{option} is given as a whole, too. Leave out one.")
        holder[parts[2].replace("-", "_")] = config.parse_value(text)
    else:
        raise ConfigError(f"--sweep.{name}: write --sweep.TABLE.OPTION: --sweep.train.learning-rate.")


def _setting(name: str, text: str) -> list[str]:
    """A setting of PufferLib's `[sweep]` as our flags."""
    from shoal.sweep.pufferlib import setting

    ours = {"trials": text} if name == "trials" else setting(name.replace("-", "_"), text)
    return [word for key, value in ours.items() for word in (f"--{key.replace('_', '-')}", str(value))]


def _parse(own: list[str], defaults: Any) -> Any:
    """The settings of the sweep by its own flags."""
    from shoal.sweep.options import SweepOptions

    kind = config.flags(SweepOptions)
    default = defaults if isinstance(defaults, SweepOptions) else SweepOptions()
    settings = (tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff)
    options = tyro.cli(kind, prog="shoal sweep", args=own, description="", default=default, config=settings)
    config.check(options, "")
    return options


def _check_alone(rest: Sequence[str], ranges: Any, joined: Any) -> None:
    """A sweep that is joined has its options: other flags than those of this process would be ignored."""
    flags = [word.partition("=")[0] for word in rest[1:] if word.startswith("--")]
    other = [flag for flag in flags if flag not in ("--console", "--runs")]
    other += [f"--sweep.{table}" for table in ranges]
    if other:
        raise ConfigError(f"{other[0]}: {joined.folder} has its options already. Leave it out to join this sweep.")


def _style(rest: Sequence[str]) -> str:
    style = value_of(rest, "--console") or "auto"
    if style not in ("auto", "dashboard", "lines", "off"):
        raise ConfigError(f"--console {style}: must be auto, dashboard, lines or off.")
    return style


def value_of(words: Sequence[str], flag: str) -> str | None:
    """The value of one flag."""
    for k, word in enumerate(words):
        if word == flag and k + 1 < len(words):
            return words[k + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def _help(words: Sequence[str]) -> int:
    """The help: the sweep's own flags, then those of the trials' runs."""
    show_help(inspect.getdoc(sweep) or "")
    try:
        _parse(["--help"], {})
    except SystemExit:
        print()
    env = [words[0]] if words and not words[0].startswith("-") and not Path(words[0], "sweep.json").is_file() else []
    training.parse([*env, "--help"], "sweep", "Options of every trial's run, as of 'shoal train':")
    return 0


COMMAND = Command(
    sweep, order=15, examples={"shoal sweep cartpole": "search for the best options of its training"}, parses_words=True
)
