"""PufferLib 3's configuration: INI files and command-line flags as one nested dict.

    args = pufferl.load_config("puffer_breakout")      # also reads sys.argv: --train.learning-rate 3e-4
    vecenv = pufferl.load_env("puffer_breakout", args)
    policy = pufferl.load_policy(args, vecenv)
    trainer = PuffeRL({**args["train"], "env": "puffer_breakout"}, vecenv, policy)

Later sources override earlier ones: Shoal's defaults, the tuned values of a native env, `config/default.ini`, the file
under `config/` that lists the env in `[base] env_name`, and the flags.
"""

from __future__ import annotations

import argparse
import ast
import configparser
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.errors import did_you_mean
from shoal.puffer import models, names, vector
from shoal.puffer.exceptions import APIUsageError
from shoal.puffer.ocean import env_creator
from shoal.puffer.options import NAMES
from shoal.train import Options, options_for

Table = dict[str, Any]

NOT_IN_FILES = (
    "batch_size",
    "num_iterations",
    "precision",
    "schedule",
)  # set differently in PufferLib, or for a GPU only
BASE: Table = {
    "package": None,
    "env_name": None,
    "policy_name": "Default",
    "rnn_name": None,
    "tag": None,
    "wandb": False,
    "wandb_project": "shoal",
    "wandb_group": None,
    "neptune": False,
    "load_model_path": None,
}
VEC: Table = {"num_workers": "auto", "batch_size": "auto", "zero_copy": True, "seed": 42}
PYTHON_ENVS = 8
POLICIES = {"Policy": "Default", "Default": "Default", "Convolutional": "Convolutional"}
RECURRENT = ("Recurrent", "LSTMWrapper")


def load_config(env_name: str = "default", args: Sequence[str] | None = None, folder: str | Path = "config") -> Table:
    """The settings of an env in PufferLib 3's format.

    Args:
        env_name: any name of `shoal.puffer.make`, a path to an INI file, or `default`.
        args: command-line flags; default: those of this process.
        folder: the folder of the INI files.

    Returns:
        Nested dicts: `vec`, `env`, `policy`, `rnn`, `train`, other sections of the files, and the keys of `[base]`.
        `args["train"]["use_rnn"]` says whether rnn_name is set.
    """
    files, name = _files(env_name, Path(folder))
    given: Table = {}
    for file in files:
        _merge(given, _read(file))
    given["env_name"] = name
    tables = defaults_of(name)
    _merge(tables, given)
    flags = _flags(tables, list(sys.argv[1:] if args is None else args))
    _merge(given, flags)
    _merge(tables, flags)
    for size, other in (("minibatch_size", "minibatches"), ("batch_size", "bptt_horizon")):
        if tables["train"][size] != "auto" and other not in given.get("train", {}):
            del tables["train"][other]  # a default that contradicts the given size
    tables["train"]["use_rnn"] = tables["rnn_name"] is not None
    return tables


def _files(env_name: str, folder: Path) -> tuple[list[Path], str | None]:
    """(INI files, in the order in which they override each other; the name of the env)."""
    default = [file for file in (folder / "default.ini",) if file.is_file()]
    if env_name == "default":
        return default, None
    if env_name.endswith(".ini"):
        file = Path(env_name)
        if not file.is_file():
            raise APIUsageError(f"{file}: no such file.")
        listed = str(_read(file).get("env_name") or "").split()
        return [*default, file], listed[0] if listed else None
    for file in sorted(folder.rglob("*.ini")):
        if env_name in str(_read(file).get("env_name") or "").split():
            return [*default, file], env_name
    names.find(env_name)  # raises if there is no such env
    return default, env_name


def _read(file: Path) -> Table:
    """The sections of an INI file as nested tables; `[base]` is the top level, `[sweep.train]` two levels deep."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(file)
    except (configparser.Error, UnicodeDecodeError) as error:
        raise APIUsageError(f"{file} cannot be read: {error}.") from None
    tables: Table = {}
    for section in parser.sections():
        table = tables
        for part in [] if section == "base" else section.split("."):
            table = table.setdefault(part, {})
        table |= {key: _value(text) for key, text in parser[section].items()}
    return tables


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return text.strip()


def _merge(tables: Table, over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, Mapping):
            _merge(tables.setdefault(key, {}), value)
        else:
            tables[key] = value


def defaults_of(name: str | None) -> Table:
    """Shoal's defaults, with the tuned values of a native env."""
    native = name.removeprefix("puffer_") if name is not None and isinstance(_find(name), str) else None
    options = options_for(native, {"algo": "ppo", "device": "cpu"}) if native else Options()
    puffer_names = {own: name for name, own in NAMES.items()}
    train = {puffer_names.get(key, key): value for key, value in dataclasses.asdict(options.train).items()}
    for key in NOT_IN_FILES:
        train.pop(key, None)
    train |= {"seed": 42, "device": "cpu", "batch_size": "auto", "minibatch_size": "auto"}
    train["anneal_lr"] = options.train.schedule != "constant"
    has_core = options.nn.core != "none"
    tables = {**BASE, "env_name": name, "env": dict(options.env), "train": train}
    tables["policy"], tables["rnn"] = {"hidden_size": options.nn.hidden}, {}
    if native:
        tables["package"], tables["rnn_name"] = "ocean", "Recurrent" if has_core else None
        tables["env"]["num_envs"] = options.vec.num_envs or 1024
        tables["vec"] = {"backend": "PufferEnv", "num_envs": 1, **VEC}
    else:
        tables["vec"] = {"backend": "Multiprocessing", "num_envs": PYTHON_ENVS, **VEC}
    return tables


def _find(name: str) -> Any:
    try:
        return names.find(name)
    except ValueError:  # an env that only an INI file lists; the user makes it
        return None


def _flags(tables: Table, given: list[str]) -> Table:
    """`--train.learning-rate 3e-4 --wandb` as nested tables. A flag without a value is True."""
    paths = {f"--{'.'.join(path)}".replace("_", "-"): path for path in _paths(tables)}
    parser = argparse.ArgumentParser(allow_abbrev=False, description="settings of an env and of its training")
    for flag, path in paths.items():
        value = tables
        for key in path:
            value = value[key]
        parser.add_argument(flag, nargs="?", const=True, type=_value, default=None, help=f"default: {value!r}")
    words = [word.partition("=")[0].replace("_", "-") + "".join(word.partition("=")[1:]) for word in given]
    words = [new if old.startswith("--") else old for new, old in zip(words, given)]
    parsed, unknown = parser.parse_known_args(words)
    if unknown:
        flag = unknown[0].partition("=")[0]
        raise APIUsageError(f"unknown flag '{flag}'.{did_you_mean(flag, paths)}")
    over: Table = {}
    for flag, path in paths.items():
        value = getattr(parsed, flag[2:].replace("-", "_"))
        if value is not None:
            table = over
            for key in path[:-1]:
                table = table.setdefault(key, {})
            table[path[-1]] = value
    return over


def _paths(tables: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The path of keys to each value."""
    paths = []
    for key, value in tables.items():
        paths += _paths(value, (*path, key)) if isinstance(value, Mapping) else [(*path, key)]
    return paths


# ---- envs and policies of a configuration ----


def load_env(env_name: str, args: Mapping[str, Any]) -> Any:
    """The vector env that `args["vec"]` and `args["env"]` describe."""
    make = names.find(env_name)
    creator = env_creator(make) if isinstance(make, str) else make
    return vector.make(creator, env_kwargs=dict(args["env"]), **args["vec"])


def load_policy(args: Mapping[str, Any], vecenv: Any, env_name: str = "") -> Any:
    """The policy that `policy_name` and `rnn_name` of a configuration name, for the spaces of a vector env."""
    name, recurrent = args["policy_name"], args["rnn_name"]
    if name not in POLICIES:
        raise APIUsageError(
            f"policy_name={name!r}.{did_you_mean(str(name), POLICIES)} Known: {', '.join(POLICIES)}. "
            "Or pass your own module to PuffeRL as policy."
        )
    if recurrent not in (None, *RECURRENT):
        raise APIUsageError(f"rnn_name={recurrent!r} must be None or one of {', '.join(RECURRENT)}.")
    if args.get("load_model_path") is not None:
        raise APIUsageError("load_model_path: Shoal does not load pickled weights. Use PuffeRL.load_checkpoint(path).")
    policy = getattr(models, POLICIES[name])(vecenv, **args["policy"])
    return policy if recurrent is None else models.LSTMWrapper(vecenv, policy, **args["rnn"])
