"""`open_session`: from the arguments of `train` to the session of a new or resumed run."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from shoal import checkpoint, config, runs
from shoal.errors import ConfigError
from shoal.log import check as check_loggers
from shoal.log import open_all
from shoal.names import shortened
from shoal.runs import Run
from shoal.train import init as initial_weights
from shoal.train import league_members, named, ranks, restoring, shard_options
from shoal.train.callbacks.group import CallbackGroup, read_saved
from shoal.train.callbacks.specs import absolute, make_all
from shoal.train.curriculum import Curriculum
from shoal.train.curriculum import prepare as prepare_curriculum
from shoal.train.opponents import seat_opponents
from shoal.train.options import Options, options_for
from shoal.train.players import PolicyMisfit, check_env_options
from shoal.train.run_files import check_env, describe, env_name, run_facts, run_to_resume
from shoal.train.session import Session
from shoal.train.sharded import make_trainer
from shoal.train.trainer import Trainer


def open_session(
    env: Any,
    held: contextlib.ExitStack,
    /,
    *,
    policy: nn.Module | Callable[..., nn.Module] | str | None = None,
    reward: Any = None,
    config_file: str | Path | None = None,
    init: str | Path | Run | None = None,
    resume: str | Path | Run | None = None,
    runs_folder: str | Path = runs.ROOT,
    run_id: str | None = None,
    log: tuple[str, ...] = (),
    log_options: Mapping[str, Mapping[str, Any]] | None = None,
    console: str = "auto",
    callbacks: Sequence[Any] | None = None,
    options: Options | None = None,
    pool: Any = None,
    **tables: Any,
) -> Session:
    """The session of a new or resumed run. `held` keeps the run's lock, `pool` the trainer of the last run (swap.py).

    The arguments are those of `train`, which restates them: editors and type checkers show them to the user.
    """
    root, env = Path(runs_folder), named.absolute_env(env)
    world = ranks.join()
    old = run_to_resume(env, resume, root)
    if world is not None and (begun := world.recall("run")):  # torchrun has restarted the processes
        old = runs.begun(begun) or old
        options = shard_options.as_begun(options, old)
    if old is not None:
        given = tables.pop("init", "") if init is None else str(init)
        initial_weights.check_resume(given, old, is_auto=str(resume) == "auto")
    if options is None:
        layers = [config.read_toml(Path(config_file))] if config_file is not None else []
        layers += [old.config] if old is not None else []
        options = options_for(env, *layers, tables)
    if callbacks is None:
        callbacks = options.callback
    options = prepare_curriculum(env, options, root)
    own = [Curriculum(options.curriculum)] if options.curriculum else []
    group = CallbackGroup([*own, *make_all(callbacks)])
    specs = tuple(absolute(part) for part in callbacks if isinstance(part, str))
    options = dataclasses.replace(options, callback=specs)
    _, options = seat_opponents(env, league_members.resolve(env, options, root), root)
    options = options if old is not None else initial_weights.resolve(initial_weights.with_init(options, init), root)
    places, options = named.find_places(env, options, policy, reward)
    policy = None if isinstance(policy, str) else policy  # the options name it
    reward = None if isinstance(reward, str) else reward
    check_loggers(log, log_options, console=console)
    loaded: Any = None
    saved_states: dict[str, Any] = {}
    env_params: dict[str, Any] = {}
    if old is not None:
        held.enter_context(old.lock())
        check_env(old, env, places.env.name)
        check_env_options(old, options.env)
        named.check_resume(old, options, policy, reward)
        with contextlib.suppress(OSError):
            checkpoint.recover(old.folder / "checkpoints")
        restoring.check_resumable(old)
        loaded = checkpoint.load_newest(old.resumable())
        saved_states, env_params = read_saved(loaded[1]["state"])
    make = partial(make_trainer, world=world) if pool is None else pool.get
    trainer: Trainer = make(env, options, policy=policy, reward=reward, is_resumed=old is not None)
    try:
        group.check(trainer)
        missing = group.load(saved_states)  # before the trainer: a curriculum seats the opponents whose memory is saved
        if env_params:  # before the envs are restored, or start new episodes
            trainer.set_env_params(env_params)
    except BaseException:
        trainer.close()
        raise
    try:
        run = old if old is not None else runs.create(env_name(env), root, run_id)
        if old is None:
            held.enter_context(run.lock())
        if world is not None:
            world.remember("run", str(run.folder.resolve()))
        if loaded is not None:
            try:
                trainer.restore(loaded[1], loaded[2])
            except PolicyMisfit as error:
                raise restoring.with_options(error, run, options) from None
        describe(run, trainer, places, {"policy": policy, "reward": reward}, is_new=old is None)
        if trainer.init is not None and console != "off":
            print("\n".join(trainer.init.lines()))
        facts = dataclasses.replace(
            run_facts(run, trainer),
            env_argument=shortened(places.env.name),
            lost=places.lost,
            lost_to_resume=places.lost_to_resume,
        )
        loggers = open_all(facts, log, log_options, console=console)
    except OSError as error:
        trainer.close()
        raise ConfigError(f"{run.folder} cannot be written: {error.strerror or error}.") from None
    except BaseException:
        trainer.close()
        raise
    session = Session(run, trainer, loggers, group, env_params, {} if loaded is None else loaded[2])
    if old is not None and not trainer.exact:
        loggers.note(f"{env_name(env)} cannot give its state: new episodes start, so this resume is not bit-exact")
    for reason in places.lost:
        loggers.note(f"{reason}; 'shoal eval' and 'shoal train --resume' cannot load this run, Python can")
    for reason in places.lost_to_resume:
        loggers.note(f"{reason}; 'shoal train --resume' cannot continue this run, Python can")
    for name in missing:
        loggers.note(f"warning: the run had the callback {name} and is resumed without it; pass it in callbacks=[...]")
    return session
