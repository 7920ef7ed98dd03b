"""Evaluates a run from Python, as `shoal eval` does: on held-out seeds, also under other env params than in training.

result = evaluate_run("last", env={"gravity": 15.0}, episodes=1000)
print(result.score.mean, result.params)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from shoal import evaluate, registry, runs
from shoal.entry import make
from shoal.runs import Run
from shoal.train import params
from shoal.train.envs import env_seed
from shoal.train.options import options_for
from shoal.train.players import load_player

NATIVE_ENVS, PYTHON_ENVS = 1024, 16  # the most envs at a time; Python envs are slow to make


@dataclass(frozen=True)
class RunEvaluation(evaluate.Evaluation):
    """The scores of a run, greedy and sampled, and the params that differed from training."""

    run: Run | None = None
    checkpoint: Path | None = None
    seed: int = 0
    params: list[params.ParamChange] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            **super().facts(),
            "run": str(self.run.folder) if self.run else None,
            "checkpoint": self.checkpoint.name if self.checkpoint else None,
            "seed": self.seed,
            "params": params_facts(self.params),
        }


def params_facts(changed: list[params.ParamChange]) -> dict[str, dict[str, Any]]:
    """Changes of params for JSON: both values by name."""
    return {change.name: {"training": change.training, "evaluation": change.evaluation} for change in changed}


def evaluate_run(
    run: str | Path | Run,
    *,
    env: Mapping[str, Any] | None = None,
    episodes: int = 100,
    seed: int | None = None,
    checkpoint: str = "best",
    runs_folder: str | Path = runs.ROOT,
) -> RunEvaluation:
    """Plays held-out episodes with a run's policy, greedily and by sampling.

    Args:
        run: the run: its folder, id, the name of its env, or `last`.
        env: env params that override those of training. Unknown ones raise, and values that change the spaces.
        episodes: the number of episodes of each mode.
        seed: the envs start from seed + 2^30; default: derived from the run's seed.
        checkpoint: best, last or a step.
        runs_folder: the folder of all runs.
    """
    trained = run if isinstance(run, Run) else runs.find(run, runs_folder)
    start = env_seed(int(trained.facts.get("seed") or 0)) if seed is None else seed
    chosen = runs.choose_checkpoint(trained, checkpoint, f"checkpoint={checkpoint!r}")
    players: dict[str, Any] = {}
    kwargs: dict[str, Any] = {}
    for mode in ("greedy", "sampled"):
        players[mode], kwargs = load_player(trained, chosen, mode == "greedy", env)
    limit = NATIVE_ENVS if registry.is_native(kwargs["env"]) else PYTHON_ENVS
    options = options_for(kwargs["env"], trained.config)
    mode = "greedy" if options.eval.greedy else "sampled"
    result = evaluate.play_modes(partial(make, **kwargs), players, episodes, start, chosen=mode, num_envs=limit)
    return RunEvaluation(result.scores, mode, trained, chosen, start, changed_params(trained, kwargs))


def changed_params(run: Run, kwargs: Mapping[str, Any]) -> list[params.ParamChange]:
    """The params of an evaluation, as keyword arguments of `shoal.make`, that differ from the run's."""
    now = {name: value for name, value in kwargs.items() if name not in ("env", "wrap")}  # of training: the wrappers
    return params.changes(kwargs["env"], options_for(kwargs["env"], run.config).env, now)
