"""`sweep`: finds or makes a sweep, works on it until it ends, and returns it. `join` works on the sweep of a folder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal import config, runs
from shoal.errors import ConfigError
from shoal.sweep.needs import check_optuna
from shoal.sweep.options import SweepOptions
from shoal.sweep.population import check as check_population
from shoal.sweep.population import of_equal_shape
from shoal.sweep.runners import RUNNERS
from shoal.sweep.space import Space, find_tables, make_space, settings_of
from shoal.train.envs import device_of
from shoal.train.options import Options, as_tables, options_for
from shoal.train.run_files import env_name

EPISODES = 100  # of each trial's evaluation: a fixed number, so that a score does not depend on the machine's speed
SEED_LIMIT = 2**31
OWN = tuple(field.name for field in dataclasses.fields(SweepOptions))
OF_A_PROCESS = (
    "workers",
    "name",
    "new",
    "only",
    "on",
    "address",
    "cpus",
    "working_dir",
    "retries",
)  # settings that processes of one sweep may have differently


def sweep(
    env: Any,
    /,
    *,
    ranges: Mapping[str, Any] | None = None,
    config_file: str | Path | None = None,
    runs_folder: str | Path = runs.ROOT,
    console: str = "auto",
    **given: Any,
) -> Any:
    """Searches for the best options of an env's runs and returns the sweep: its trials, results and best.toml.

        found = sweep("cartpole", trials=40, ranges={"train.learning_rate": "log(1e-4, 1e-1)"}, train={"epochs": 2})
        print(found.results["values"], found.results["finals"][0]["mean"])

    The same call continues a sweep that was broken off.

    Args:
        env: what `shoal.make` takes.
        ranges: by option, `{"train.gamma": {"logit": [0.9, 0.999]}}` or as text; added to those of the env's TOML file.
            `"off"` removes one.
        config_file: a TOML file with options and `[sweep.*]` tables.
        runs_folder: the folder of all runs.
        console: `auto`, `dashboard`, `lines` or `off`.
        **given: settings of the sweep (`trials`, `workers`, `sampler`, `goal`, `early_stop` ...: the fields of
            `SweepOptions`), and tables of options as for `train`.
    """
    check_optuna()
    own = {name: given.pop(name) for name in OWN if name in given}
    file = config.read_toml(Path(config_file)) if config_file is not None else {}
    base = options_for(env, *([file] if file else []), given)
    layers = [*layers_of(env, base, file), nested(ranges or {})]
    options = config.from_dict(SweepOptions, own, "sweep", settings(layers))
    return run(env, base, layers, options, runs_folder, console)


def layers_of(env: Any, base: Options, file: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The `[sweep]` tables of the env's TOML file and of the user's."""
    own = file.get("sweep", {})
    if not isinstance(own, Mapping):
        raise ConfigError(f"sweep = {own!r} must be a table: [sweep.train] learning_rate = {{log = [1e-4, 1e-2]}}.")
    return [find_tables(env, base, device_of(base) == "cuda"), own]


def settings(layers: Sequence[Mapping[str, Any]]) -> SweepOptions:
    """The settings in `[sweep]` tables, over the defaults."""
    options = SweepOptions()
    for layer in layers:
        options = config.from_dict(SweepOptions, settings_of(layer, "options"), "sweep", options)
    return options


def nested(ranges: Mapping[str, Any]) -> dict[str, Any]:
    """`{"train.gamma": ...}` as `{"train": {"gamma": ...}}`."""
    tables: dict[str, Any] = {}
    for name, value in ranges.items():
        table, dot, option = name.partition(".")
        if not dot:
            raise ConfigError(f"ranges['{name}']: name an option with its table: 'train.learning_rate'.")
        tables.setdefault(table, {})[option.replace("-", "_")] = value
    return tables


def run(
    env: Any,
    base: Options,
    layers: Sequence[Mapping[str, Any]],
    options: SweepOptions,
    runs_folder: str | Path = runs.ROOT,
    console: str = "auto",
) -> Any:
    """Works on the sweep that this describes: the newest unfinished one if it is the same, else a new one.

    `layers` are `[sweep]` tables: that of the env's file, then the user's own, which `only` restricts the ranges to.
    """
    from shoal.sweep import store

    config.check(options, "sweep")
    check_population(env, base, options.population, options.on)
    if options.only and not any(isinstance(part, Mapping) for layer in layers[1:] for part in layer.values()):
        raise ConfigError(
            "--only sweeps the options that you give ranges for, and there are none. Add one: "
            "--sweep.train.learning-rate 'log(1e-4, 1e-2)', or [sweep.train] in --config."
        )
    space = make_space(env, base, layers[1:] if options.only else layers)
    space = of_equal_shape(space, layers[1:], options.population)
    if base.eval.episodes is None:
        # of a population on a GPU the returns in training are the scores: an evaluation would take ten times as long
        episodes = 0 if options.population and device_of(base) == "cuda" else EPISODES
        base = dataclasses.replace(base, eval=dataclasses.replace(base.eval, episodes=episodes))
    _check_seeds(base, options)
    identity = _identity(env, base, space, options)
    shared = {name: value for name, value in config.to_dict(options).items() if name not in OF_A_PROCESS}
    facts = {"identity": identity, "trials": options.trials, "settings": shared}
    old = store.newest(env_name(env), runs_folder, options.name)
    if old is not None:
        different = differences(old.identity, identity)
        if different and (options.name or not (old.is_finished or options.new)):
            raise ConfigError(
                f"{old.folder} is {'a finished' if old.is_finished else 'an unfinished'} sweep with other options: "
                f"{'; '.join(different[:4])}. Continue it with its own options (shoal sweep {old.folder}), "
                f"or start another one with {'another --name' if options.name else '--new'}."
            )
        if different or (options.new and not options.name):
            old = None
    RUNNERS.find(options.on)  # a mistake raises before the folder is made
    if old is None:
        check_cores(options)
        old = store.create(env_name(env), runs_folder, options.name, facts, space)
    else:
        old.write(store.FILE, {**old.facts, "trials": options.trials, "settings": shared})
    return work(old, env, base, options, console)


def join(folder: str | Path | Any, options: Mapping[str, Any], console: str = "auto") -> Any:
    """Works on the sweep of a folder, beside other processes. `options`: settings of this process, and `trials`."""
    from shoal.sweep import store

    check_optuna()
    found = folder if isinstance(folder, store.Sweep) else store.find(folder)
    if found is None:
        raise ConfigError(f"{folder} is not the folder of a sweep: it has no {store.FILE}.")
    fixed = [name for name in options if name not in (*OF_A_PROCESS, "trials", "finals", "final_seeds")]
    if fixed:
        raise ConfigError(f"--{fixed[0].replace('_', '-')} is fixed when a sweep starts. Leave it out.")
    identity = found.identity
    if not identity.get("is_named", True):
        raise ConfigError(f"{found.folder} sweeps an env that was passed from Python. Call shoal.sweep.sweep again.")
    base = options_for(identity["env"], identity["options"])
    settings = {**found.facts.get("settings", {}), **options}
    merged = config.from_dict(SweepOptions, settings, "sweep")
    shared = {name: value for name, value in config.to_dict(merged).items() if name not in OF_A_PROCESS}
    found.write(store.FILE, {**found.facts, "trials": merged.trials, "settings": shared})
    return work(found, identity["env"], base, merged, console)


def work(found: Any, env: Any, base: Options, options: SweepOptions, console: str) -> Any:
    """Works on a sweep until it ends; a finished one only prints its results."""
    from shoal.sweep.driver import Driver
    from shoal.sweep.screen import SweepScreen, print_results

    if not found.is_finished:
        check_cores(options)
        screen = SweepScreen(console, found, options)
        try:
            Driver(found, env, base, options, screen=screen).run()
        except ConfigError:
            if not any(trial.is_done for trial in found.trials()):  # a mistake: nothing was learned
                _remove(found)
            raise
        finally:
            screen.close()
    if console != "off":
        print_results(found)
    return found


def check_cores(options: SweepOptions) -> None:
    """Raises where this machine has fewer cores than workers, or where there is no cluster."""
    from shoal.train.many_seeds import core_shares

    check = getattr(RUNNERS.find(options.on), "check", None)
    if options.on == "local":
        core_shares(options.workers, options.workers, "--workers")
    if check is not None:
        check(options)
    elif cluster := [name for name in ("address", "working_dir") if getattr(options, name)]:
        raise ConfigError(f"--{cluster[0].replace('_', '-')} is for --on ray. Add it, or leave it out.")


def _identity(env: Any, base: Options, space: Space, options: SweepOptions) -> dict[str, Any]:
    identity: dict[str, Any] = {"env": env_name(env), "is_named": isinstance(env, (str, Path)), "seed": base.seed}
    identity |= {"sampler": options.sampler, "goal": options.goal, "cost": options.cost_unit}
    identity |= {"population": options.population} if options.population else {}
    identity |= {"early_stop": options.early_stop, "ranges": space.as_texts(), "options": as_tables(base)}
    plain: dict[str, Any] = json.loads(json.dumps(identity))
    return plain


def differences(old: Mapping[str, Any], new: Mapping[str, Any], where: str = "") -> list[str]:
    """What differs between two identities: `ranges train.gamma is logit(0.9, 0.99), was none`."""
    found = []
    for name in {**old, **new}:
        before, now = old.get(name), new.get(name)
        label = f"{where}{name}"
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            found += differences(
                before, now, "range of " if name == "ranges" else "" if name == "options" else f"{name}."
            )
        elif before != now:
            found.append(f"{label} is {'none' if now is None else now}, was {'none' if before is None else before}")
    return found


def _check_seeds(base: Options, options: SweepOptions) -> None:
    from shoal.sweep.driver import FRESH

    last = base.seed + max(options.trials, FRESH + options.final_seeds)
    if last >= SEED_LIMIT:
        raise ConfigError(
            f"--seed {base.seed}: trials and finals use seeds up to {last}, above 2^31. Use a smaller one."
        )


def _remove(found: Any) -> None:
    import contextlib
    import shutil

    shutil.rmtree(found.folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # the env's folder, if it has nothing else
        found.folder.parent.rmdir()
