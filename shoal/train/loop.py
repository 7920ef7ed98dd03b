"""`train` runs to the end. `start` gives the same run as a loop: `for metrics in trainer`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import nn

from shoal import runs
from shoal.errors import ConfigError, UsageError
from shoal.runs import Run
from shoal.train import ranks
from shoal.train.callbacks.base import Context
from shoal.train.opening import open_session
from shoal.train.options import Options
from shoal.train.ranks.sameness import check_same, describe_request
from shoal.train.session import Session
from shoal.train.sharded import follow


def train(
    env: Any,
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
) -> Run:
    """Trains a policy on an env and returns the run. The keyword tables are those of a TOML file.

        train("breakout", seed=3, train={"total_steps": "20M"}, vec={"num_envs": 2048}, nn={"core": "lstm"})

    Args:
        env: what `shoal.make` takes: a name, a header's path, `gymnasium:…`, `mine:Env`, a function or class.
        policy: your own `nn.Module` that returns (logits, value), a class or function of the spaces that makes one, or
            the name of one: `mine:Policy`.
        reward: your own reward, which the learner sees in place of the env's: a class or object with
            `compute(before, after, action, done, info)`, or its name: `mine:Reward`.
        config_file: a TOML file that overrides the env's tuned options.
        init: the run whose weights and observation normalizers the new run starts from: its folder, id, `last`, with
            `@last` or `@STEP` another checkpoint than the best one.
        resume: the run to resume: its folder, id, `last`, or `auto` for this env's newest unfinished run.
        runs_folder: the folder of all runs.
        run_id: the name of the new run's folder, with `-1` or a higher number if that exists; default: the time.
        log: loggers besides metrics.jsonl and the console: `tensorboard`, `wandb`.
        log_options: options of those, by name.
        console: `auto`, `dashboard`, `lines` or `off`.
        callbacks: objects with methods such as `on_iteration`, or texts: `stop_at(score=475)`, `mine:Class`. Default:
            those of the options; of a resumed run, those that it was given as texts.
        options: all options at once, instead of tables.
        pool: a `TrainerPool` (shoal/train/swap.py) that keeps the trainer for the next run of equal shape.
        **tables: algo, seed, device, opponents, curriculum (a list of `Phase`), and the tables train, vec, nn, eval,
            save, env; optimizer, core, encoder and backend for plugins that have options of their own.
    """
    arguments = {
        "policy": policy,
        "reward": reward,
        "config_file": config_file,
        "init": init,
        "resume": resume,
        "runs_folder": runs_folder,
        "run_id": run_id,
        "log": log,
        "log_options": log_options,
        "console": console,
        "callbacks": callbacks,
        "options": options,
        **tables,
    }
    if pool is not None:
        arguments["pool"] = pool
    world = ranks.join()
    if world is not None:
        check_same(world, describe_request(env, arguments))
        if not world.leads:
            named_policy, named_reward = (None if isinstance(part, str) else part for part in (policy, reward))
            return Run(follow(world, named_policy, named_reward))
        ranks.delay_sigterm()
    training = Training(env, arguments, reads=False)
    try:
        with training:
            while training.session.advance():
                pass
    finally:
        if world is not None and not (training.has_session and training.session.trainer.is_broken):
            world.send("end", str(training.run.folder.resolve()) if training.has_session else "")
    return training.run


def start(env: Any, /, **arguments: Any) -> Training:
    """The run that `train` makes with the same arguments, as a loop of yours.

    with start("cartpole", train={"total_steps": "500k"}) as trainer:
        for metrics in trainer:
            if metrics.get("episode/return", 0.0) > 475:
                trainer.stop("solved")
    print(trainer.run.summary)

    It needs one process; with several, every one would run the loop. Callbacks of `train` run on rank 0 alone.
    """
    if (world := ranks.join()) is not None and world.size > 1:
        raise ConfigError(
            f"start() trains in one process, and there are {world.size}. Use train(), with callbacks for what the loop "
            "does."
        )
    return Training(env, arguments)


class Training(Context):
    """A run as a context manager and an iterator over its metrics; with the methods of a callback's Context.

    The body of the loop runs after every iteration (on a GPU: every 8th), with the metrics since the last time. The
    end of the `with` block saves a checkpoint, evaluates and writes the summary, also after a `break`. An exception and
    Ctrl-C leave a checkpoint and a summary too.
    """

    def __init__(self, env: Any, arguments: Mapping[str, Any], reads: bool = True) -> None:
        super().__init__()
        self._env, self._arguments = env, dict(arguments)
        self._reads = reads  # whether there is a loop that needs metrics after every iteration
        self._held = contextlib.ExitStack()
        self._is_open = False

    @property
    def has_session(self) -> bool:
        """Whether the run was opened."""
        return self._opened is not None

    @property
    def session(self) -> Session:
        """What trains, logs and saves."""
        if self._opened is None:
            raise UsageError("the run has not been started. Write: with start(...) as trainer:")
        return self._opened

    @property
    def _session(self) -> Session:
        return self.session

    def __enter__(self) -> Training:
        if self._opened is not None:
            raise UsageError("this run has ended. Call start(...) again; resume=trainer.run continues it.")
        try:
            self._opened = open_session(self._env, self._held, **self._arguments)
            self._opened.reads |= self._reads
            self._is_open = True
            self._opened.begin()
        except BaseException as error:
            if self._is_open:
                self.session.fail(error)
                self._is_open = False
            self._held.close()
            raise
        return self

    def __iter__(self) -> Iterator[dict[str, float]]:
        if not self._is_open:
            raise UsageError("the run is not open. Iterate inside the block: with start(...) as trainer:")
        return self

    def __next__(self) -> dict[str, float]:
        """Trains until metrics are read, and returns them."""
        if not self._is_open:
            raise UsageError("the run has ended: its `with` block is over.")
        self.session.save_if_wanted()
        while self.session.advance():
            if self.session.is_read:
                return self.metrics
        raise StopIteration

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        session = self.session
        try:
            if error is not None:
                session.fail(error)
            else:
                session.finish("" if session.is_over else f"the loop was left at step {session.trainer.step:,}.")
        finally:
            self._held.close()
