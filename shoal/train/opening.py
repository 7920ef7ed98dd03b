"""`open_session`: what is read, checked, made and restored before the first iteration of a run.

    run to resume -> options -> opponents, names -> its checkpoint -> trainer -> folder, loggers -> Session

Mistakes are raised before any work starts; from the trainer on, whatever is raised closes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from shoal import checkpoint, config, runs
from shoal.errors import ConfigError
from shoal.log import Loggers, open_all
from shoal.log import check as check_loggers
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


@dataclass(frozen=True)
class Saved:
    """What a run to resume has in its newest checkpoint. A new run has nothing."""

    checkpoint: Any = None  # its path, tensors and facts
    callbacks: Mapping[str, Any] = field(default_factory=dict)  # states by name
    env_params: Mapping[str, Any] = field(default_factory=dict)  # that callbacks have set


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
        options = options_for(env, *_layers(config_file, old), tables)
    if callbacks is None:
        callbacks = options.callback
    options = prepare_curriculum(env, options, root)
    own_callbacks = [Curriculum(options.curriculum)] if options.curriculum else []
    group = CallbackGroup([*own_callbacks, *make_all(callbacks)])
    specs = tuple(absolute(part) for part in callbacks if isinstance(part, str))
    options = dataclasses.replace(options, callback=specs)
    _, options = seat_opponents(env, league_members.resolve(env, options, root), root)
    if old is None:
        options = initial_weights.resolve(initial_weights.with_init(options, init), root)
    places, options = named.find_places(env, options, policy, reward)
    code: dict[str, Any] = {"policy": policy, "reward": reward}
    code = {name: None if isinstance(part, str) else part for name, part in code.items()}  # texts are in the options
    check_loggers(log, log_options, console=console)
    saved = Saved() if old is None else _read(old, env, options, places, code, held)

    make = partial(make_trainer, world=world) if pool is None else pool.get
    trainer: Trainer = make(env, options, **code, is_resumed=old is not None)
    with _closed_if_raised(trainer):
        group.check(trainer)
        missing = group.load(saved.callbacks)  # before the trainer: a curriculum seats opponents whose memory is saved
        if saved.env_params:  # before the envs are restored, or start new episodes
            trainer.set_env_params(saved.env_params)
        run = old if old is not None else runs.create(env_name(env), root, run_id)
        try:
            if old is None:
                held.enter_context(run.lock())
            if world is not None:
                world.remember("run", str(run.folder.resolve()))
            if saved.checkpoint is not None:
                _restore(trainer, saved.checkpoint, run, options)
            describe(run, trainer, places, code, is_new=old is None)
            if trainer.init is not None and console != "off":
                print("\n".join(trainer.init.lines()))
            loggers = open_all(_facts(run, trainer, places), log, log_options, console=console)
        except OSError as error:
            raise ConfigError(f"{run.folder} cannot be written: {error.strerror or error}.") from None
    facts = {} if saved.checkpoint is None else saved.checkpoint[2]
    session = Session(run, trainer, loggers, group, saved.env_params, facts)
    _note_losses(loggers, env, trainer, places, missing, is_resumed=old is not None)
    return session


def _layers(config_file: str | Path | None, old: Run | None) -> list[Mapping[str, Any]]:
    """The tables under those that are given: of a file, and of the run to resume."""
    layers: list[Mapping[str, Any]] = [config.read_toml(Path(config_file))] if config_file is not None else []
    return [*layers, old.config] if old is not None else layers


def _read(
    old: Run, env: Any, options: Options, places: Any, code: Mapping[str, Any], held: contextlib.ExitStack
) -> Saved:
    """Locks a run to resume, checks that it fits, and reads its newest checkpoint."""
    held.enter_context(old.lock())
    check_env(old, env, places.env.name)
    check_env_options(old, options.env)
    named.check_resume(old, options, code["policy"], code["reward"])
    with contextlib.suppress(OSError):
        checkpoint.recover(old.folder / "checkpoints")
    restoring.check_resumable(old)
    loaded = checkpoint.load_newest(old.resumable())
    return Saved(loaded, *read_saved(loaded[1]["state"]))


@contextlib.contextmanager
def _closed_if_raised(trainer: Trainer) -> Iterator[None]:
    try:
        yield
    except BaseException:
        trainer.close()
        raise


def _restore(trainer: Trainer, loaded: Any, run: Run, options: Options) -> None:
    try:
        trainer.restore(loaded[1], loaded[2])
    except PolicyMisfit as error:
        raise restoring.with_options(error, run, options) from None


def _facts(run: Run, trainer: Trainer, places: Any) -> Any:
    """What loggers show of a run at its start."""
    return dataclasses.replace(
        run_facts(run, trainer),
        env_argument=shortened(places.env.name),
        lost=places.lost,
        lost_to_resume=places.lost_to_resume,
    )


def _note_losses(
    loggers: Loggers, env: Any, trainer: Trainer, places: Any, missing: Sequence[str], *, is_resumed: bool
) -> None:
    """Says what a resumed run has lost, and what this run will not be able to do."""
    if is_resumed and not trainer.exact:
        loggers.note(f"{env_name(env)} cannot give its state: new episodes start, so this resume is not bit-exact")
    for reason in places.lost:
        loggers.note(f"{reason}; 'shoal eval' and 'shoal train --resume' cannot load this run, Python can")
    for reason in places.lost_to_resume:
        loggers.note(f"{reason}; 'shoal train --resume' cannot continue this run, Python can")
    for name in missing:
        loggers.note(f"warning: the run had the callback {name} and is resumed without it; pass it in callbacks=[...]")
