"""Callback: what a run calls between its steps; and Context, by which a callback reads the run and changes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.evaluate import Evaluation
    from shoal.runs import Run
    from shoal.train.options import Options
    from shoal.train.session import Session
    from shoal.train.trainer import Trainer

EVENTS = ("on_start", "on_iteration", "on_episodes", "on_evaluation", "on_checkpoint", "on_end")


class Callback:
    """The base class of callbacks. Override what you need; each method is called with the run's Context.

    Inheriting from it is optional: any object with at least one of the six `on_` methods is a callback.
    """

    def check(self, trainer: Trainer) -> None:
        """Called before the run's folder is made. Raise ConfigError here for options that do not fit the run."""

    def on_start(self, context: Context) -> None:
        """Called before the first iteration, also that of a resumed run (`context.is_resumed`)."""

    def on_iteration(self, context: Context) -> None:
        """Called after every iteration: a rollout and the updates on it."""

    def on_episodes(self, context: Context) -> None:
        """Called when episodes have ended: `context.episodes`. It comes before on_iteration."""

    def on_evaluation(self, context: Context) -> None:
        """Called after every evaluation: `context.evaluation`."""

    def on_checkpoint(self, context: Context) -> None:
        """Called after a checkpoint was written: `context.checkpoint`."""

    def on_end(self, context: Context) -> None:
        """Called once at the end, also of a run that failed: `context.status` and `context.reason`."""

    def state_dict(self) -> Mapping[str, Any]:
        """What a resumed run needs: numbers, text, lists, dicts and NumPy arrays. It is a part of each checkpoint."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state of the checkpoint from which a run is resumed, before on_start."""


@dataclass(frozen=True)
class Episodes:
    """The episodes that ended since the last call of on_episodes.

    `returns` has the return of each. It is None for native envs, which add up their episodes, and against opponents.
    """

    count: int
    mean_return: float
    min_return: float
    max_return: float
    mean_length: float
    stats: dict[str, float]  # means of the env's own statistics
    returns: tuple[float, ...] | None = None

    @classmethod
    def of(cls, record: Mapping[str, float], returns: Any = None) -> Episodes:
        """The episodes of a record of `Trainer.drain`. `returns`: an array of single returns, if known."""
        own = {name.removeprefix("episode/"): value for name, value in record.items() if name.startswith("episode/")}
        known = ("n", "return", "length")
        return cls(
            count=int(own["n"]),
            mean_return=own.get("return", math.nan),
            min_return=own.get("return_min", math.nan),
            max_return=own.get("return_max", math.nan),
            mean_length=own.get("length", math.nan),
            stats={name: x for name, x in own.items() if name not in known and not name.endswith(("_min", "_max"))},
            returns=None if returns is None else tuple(returns.tolist()),
        )


class Context:
    """A run, as callbacks see it."""

    def __init__(self, session: Session | None = None) -> None:
        self._opened = session

    @property
    def _session(self) -> Session:
        assert self._opened is not None
        return self._opened

    # ---- reading ----

    @property
    def step(self) -> int:
        """Environment steps so far."""
        return self._session.trainer.step

    @property
    def iteration(self) -> int:
        """Iterations so far."""
        return self._session.trainer.iteration

    @property
    def total_steps(self) -> int:
        """The steps that the run is to take."""
        return int(self._session.options.train.total_steps)

    @property
    def progress(self) -> float:
        """The part of the steps that is done, 0 to 1."""
        return min(1.0, self.step / self.total_steps)

    @property
    def metrics(self) -> dict[str, float]:
        """The latest value of every metric, by its name in metrics.jsonl."""
        return dict(self._session.metrics)

    @property
    def records(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl so far."""
        return list(self._session.records)

    @property
    def episodes(self) -> Episodes | None:
        """The latest episodes; None: none has ended yet."""
        return self._session.episodes

    @property
    def evaluation(self) -> Evaluation | None:
        """The latest evaluation; None: there was none."""
        return self._session.evaluation

    @property
    def checkpoint(self) -> Path | None:
        """The newest checkpoint's folder; None: there is none."""
        return self._session.run.last

    @property
    def run(self) -> Run:
        """The run and its folder."""
        return self._session.run

    @property
    def trainer(self) -> Trainer:
        """Envs, policies and learners."""
        return self._session.trainer

    @property
    def options(self) -> Options:
        """All options of the run."""
        return self._session.options

    @property
    def is_resumed(self) -> bool:
        """Whether the run continues from a checkpoint."""
        return self._session.first_step > 0

    @property
    def status(self) -> str:
        """running; in on_end: finished, interrupted or failed."""
        return self._session.status

    @property
    def reason(self) -> str:
        """Why the run ended before its last step; empty if it did not."""
        return self._session.reason

    @property
    def env_params(self) -> dict[str, Any]:
        """The env params that were set by `set_env_params`, with their present values."""
        return dict(self._session.env_params)

    # ---- changing ----

    def stop(self, reason: str = "stopped by a callback") -> None:
        """Ends the run after this iteration: it saves, evaluates and is finished. The first reason is kept."""
        if not isinstance(reason, str) or not reason.strip():
            raise ConfigError(f"stop({reason!r}): the reason must be text: stop('solved').")
        self._session.stop_reason = self._session.stop_reason or reason

    def set_env_params(self, **values: Any) -> None:
        """Changes params of the training envs: params of a native env, attributes of a Python env.

        Evaluations keep the params of the run's options, so that their scores can be compared.
        """
        self._session.set_env_params(values)

    def log(self, name: str, value: float) -> None:
        """Adds a number to the next record of metrics.jsonl and of all loggers."""
        self._session.add_number(name, value)

    def note(self, text: str) -> None:
        """Shows a line on the console and gives it to all loggers."""
        self._session.loggers.note(str(text))

    def save(self) -> None:
        """Writes a checkpoint at the end of this iteration, when all callbacks have been called."""
        self._session.is_save_wanted = True
