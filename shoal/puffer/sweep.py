"""PufferLib's `sweep`, on Shoal's samplers.

    best = pufferlib.Protein("breakout", {"learning_rate": (1e-4, 1e-1)}, num_trials=40, metric="score").optimize()

`optimize` is `shoal sweep`: trials are ordinary runs, and the same call continues after a kill. PufferLib 3's own form
asks for the next values and is told the results, for a training loop of yours:

    search = pufferlib.sweep.Protein(args["sweep"])
    for _ in range(40):
        search.suggest(args)                  # puts the next values into args["train"] and the other tables
        score, seconds = my_training(args)
        search.observe(args, score, seconds)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from shoal.puffer import names
from shoal.puffer.exceptions import APIUsageError, missing_names

__all__ = ["ParetoGenetic", "Protein", "Random"]

LOG_FROM = 20.0  # a pair (low, high) with a larger ratio is searched in the logarithm


class _Search:
    """A search in one of two forms: `optimize` trains; `suggest` and `observe` leave training to the caller.

    Args:
        target: the name of an env, for `optimize`; or PufferLib 3's `[sweep]` table, for `suggest`.
        search_space: ranges by option: (low, high), a list of choices, a text such as `log(1e-4, 1e-2)`, or
            PufferLib's table with distribution, min and max. A name without a table is an option of `train`.
        num_trials: trials of `optimize`.
        metric: the score. No other is supported.
        **settings: of `shoal.sweep.sweep`: workers, runs_folder, console, seed, train={...}.
    """

    sampler: ClassVar[str]

    def __init__(
        self,
        target: str | Mapping[str, Any],
        search_space: Mapping[str, Any] | None = None,
        num_trials: int = 40,
        metric: str = "score",
        **settings: Any,
    ) -> None:
        _need_optuna()
        from shoal.sweep.pufferlib import setting

        setting("metric", metric)
        self.best: dict[str, Any] | None = None
        self.env: str | None = None
        self.seed = int(settings.get("seed", 1))
        self.trials: list[Any] = []
        if isinstance(target, Mapping):
            for name, value in target.items():
                if not isinstance(value, Mapping):
                    setting(name, value)
            self._read_table(target)
            return
        if not search_space:
            raise APIUsageError(f"{type(self).__name__}('{target}', search_space={search_space!r}) has no ranges.")
        self.env, self.num_trials, self.settings = shoal_name(target), num_trials, settings
        self.ranges = {_option(name): _range(value) for name, value in search_space.items()}

    # ---- a whole search ----

    def optimize(self) -> dict[str, Any]:
        """Runs all trials, reruns the best three on fresh seeds, and returns the best.

        `params`: its values by option; `score`: its mean over fresh seeds; `ci95`: the interval; `sweep`: the folder.
        """
        from shoal.sweep import sweep

        if self.env is None:
            raise APIUsageError("optimize() needs the name of an env: Protein('breakout', {...}, num_trials=40).")
        only = {"only": True, "sampler": self.sampler, "trials": self.num_trials, "ranges": self.ranges}
        found = sweep(self.env, **{**only, **self.settings})
        results = found.results
        rows = results["finals"]
        mean = rows[0]["mean"] if rows else next(t.score for t in found.trials() if t.number == results["best"])
        interval = rows[0]["ci95"] if rows else None
        self.best = {"params": results["values"], "score": mean, "ci95": interval, "sweep": str(found.folder)}
        return self.best

    # ---- PufferLib 3: one suggestion at a time ----

    def _read_table(self, table: Mapping[str, Any]) -> None:
        from shoal.sweep import ranges
        from shoal.sweep.space import Space

        found: dict[str, Any] = {}

        def read(part: Mapping[str, Any], path: tuple[str, ...]) -> None:
            for name, value in part.items():
                if isinstance(value, Mapping) and ("distribution" in value or "min" in value):
                    found["/".join((*path, name))] = ranges.read(value, False, f"sweep.{'.'.join((*path, name))}")
                elif isinstance(value, Mapping):
                    read(value, (*path, name))

        read(table, ())
        if not found:
            raise APIUsageError("the sweep has no ranges: [sweep.train.learning_rate] distribution, min and max.")
        self.space = Space(found)

    def suggest(self, fill: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Puts the next values into nested tables, and returns (tables, values by path). The first keeps `fill`'s."""
        from shoal.sweep.suggest import suggest

        fill = {} if fill is None else fill
        present = {name: value for name in self._space() if (value := _get(fill, name)) is not None}
        if not self.trials and len(present) == len(self.space):
            return fill, present
        values = suggest(self.space, self.trials, len(self.trials), sampler=self.sampler, seed=self.seed)
        for name, value in values.items():
            _put(fill, name, round(value) if isinstance(_get(fill, name), int) else value)
        return fill, values

    def observe(self, hypers: Mapping[str, Any], score: float, cost: float, is_failure: bool = False) -> None:
        """Tells the result of a suggestion: its score, and its cost in seconds."""
        from shoal.sweep.store import Trial

        values = {name: part.nearest(_get(hypers, name)) for name, part in self._space().ranges.items()}
        has_failed = is_failure or not math.isfinite(score)
        status = "failed" if has_failed else "finished"
        self.trials.append(
            Trial(len(self.trials), status, values, None if has_failed else float(score), float(cost), 0)
        )

    def _space(self) -> Any:
        if self.env is not None:
            raise APIUsageError("suggest() and observe() are for Protein(args['sweep']). Use optimize().")
        return self.space


class Protein(_Search):
    """PufferLib's cost-aware search."""

    sampler = "protein"


class ParetoGenetic(_Search):
    """PufferLib's search around the Pareto front. Here it is Protein's."""

    sampler = "protein"


class Random(_Search):
    """Random search."""

    sampler = "random"


def run_sweep(args: Mapping[str, Any], env_name: str | None, settings: Mapping[str, Any]) -> Any:
    """`pufferl.sweep`: the sweep that PufferLib's tables describe."""
    _need_optuna()
    from shoal.puffer.config import defaults_of
    from shoal.sweep import sweep
    from shoal.sweep.pufferlib import setting

    if env_name is None:
        raise APIUsageError("sweep() needs an env: pufferl.sweep(env_name='puffer_breakout').")
    table = args.get("sweep", {})
    own: dict[str, Any] = {"sampler": "protein"}
    ranges: dict[str, Any] = {}
    for name, value in table.items():
        if not isinstance(value, Mapping):
            own |= setting(name, value)
            continue
        for option, part in value.items():
            ranges[_option(f"{name}.{option}")] = part
    before = defaults_of(env_name)["train"]
    changed = {key: value for key, value in args.get("train", {}).items() if before.get(key) != value}
    tables = {key: changed.pop(key) for key in ("seed", "device") if key in changed}
    from shoal.puffer.options import NAMES  # imports torch

    train = {NAMES.get(key, key): value for key, value in changed.items() if key not in ("use_rnn", "anneal_lr")}
    tables["train"] = {key: value for key, value in train.items() if value != "auto"}
    return sweep(shoal_name(env_name), ranges=ranges, only=bool(ranges), **{**own, **tables, **settings})


def _need_optuna() -> None:
    from shoal.sweep.needs import check_optuna

    check_optuna()


def shoal_name(env: str) -> str:
    """The name by which Shoal's own commands know an env of PufferLib's: `puffer_breakout` is `breakout`."""
    if env.startswith("gym-"):
        return f"gymnasium:{env.removeprefix('gym-')}"
    if Path(env).suffix == ".h" or ":" in env:
        return env
    found = names.find(env)
    if isinstance(found, str):
        return env.removeprefix("puffer_")
    raise APIUsageError(
        f"'{env}' is made by shoal.puffer only, and trials are runs of their own. Use Protein(args['sweep']) with "
        "suggest and observe in your own loop, or the env's Gymnasium id."
    )


def _option(name: str) -> str:
    """`learning_rate` or `train.ent_coef` as Shoal's `train.learning_rate` and `train.entropy_coef`."""
    table, _, option = name.rpartition(".")
    from shoal.puffer.options import NAMES, OF_GUIDES  # imports torch

    option = {**NAMES, **OF_GUIDES}.get(option, option)
    if option in ("hidden_size", "hidden") and table in ("", "policy"):
        return "nn.hidden"
    return f"{table or 'train'}.{option}"


def _range(value: Any) -> Any:
    """A range of a guide: a pair is (low, high), a longer list are choices; others are passed on."""
    if not isinstance(value, (list, tuple)):
        return value
    numbers = all(isinstance(part, (int, float)) and not isinstance(part, bool) for part in value)
    if len(value) != 2 or not numbers:
        return {"choice": list(value)}
    low, high = value
    if all(isinstance(part, int) for part in value):
        return {"integer": [low, high]}
    return {"log" if low > 0 and high / low >= LOG_FROM else "uniform": [low, high]}


def _get(tables: Mapping[str, Any], path: str) -> Any:
    value: Any = tables
    for key in path.split("/"):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _put(tables: dict[str, Any], path: str, value: Any) -> None:
    *above, last = path.split("/")
    for key in above:
        tables = tables.setdefault(key, {})
    tables[last] = value


__getattr__ = missing_names(__name__, __all__, {})
