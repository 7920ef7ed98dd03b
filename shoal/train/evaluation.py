"""Evaluates a run or an agent from Python, as `shoal eval` does: on held-out seeds, also under other env params.

result = evaluate_run("last", env={"gravity": 15.0}, episodes=1000)
print(result.score.mean, result.params)
print(evaluate_agent("cartpole", "mine:Scripted").score.mean)
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from shoal import evaluate, registry, runs
from shoal.algos.agents import find_agent
from shoal.algos.roles import assign_roles, find_groups
from shoal.entry import make
from shoal.player import PolicyPlayer
from shoal.runs import Run
from shoal.train import params, seats
from shoal.train.envs import env_seed
from shoal.train.opponents import agent_actor, load_opponents, seat_opponents
from shoal.train.options import Options, options_for, read_env_options
from shoal.train.players import load_player, seat_player

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
    opponents: str = "",
    runs_folder: str | Path = runs.ROOT,
) -> RunEvaluation:
    """Plays held-out episodes with a run's policy, greedily and by sampling.

    Args:
        run: the run: its folder, id, the name of its env, or `last`.
        env: env params that override those of training. Unknown ones raise, and values that change the spaces.
        episodes: the number of episodes of each mode.
        seed: the envs start from seed + 2^30; default: derived from the run's seed.
        checkpoint: best, last or a step.
        opponents: other players than in training, for the seats that it names: `1=mine:Agent`.
        runs_folder: the folder of all runs.
    """
    trained = run if isinstance(run, Run) else runs.find(run, runs_folder)
    start = env_seed(int(trained.facts.get("seed") or 0)) if seed is None else seed
    chosen = runs.choose_checkpoint(trained, checkpoint, f"checkpoint={checkpoint!r}")
    players: dict[str, Any] = {}
    kwargs: dict[str, Any] = {}
    for mode in ("greedy", "sampled"):
        players[mode], kwargs = load_player(trained, chosen, mode == "greedy", env, opponents)
    limit = NATIVE_ENVS if registry.is_native(kwargs["env"]) else PYTHON_ENVS
    options = options_for(kwargs["env"], trained.config)
    mode = "greedy" if options.eval.greedy else "sampled"
    result = evaluate.play_modes(partial(make, **kwargs), players, episodes, start, chosen=mode, num_envs=limit)
    return RunEvaluation(result.scores, mode, trained, chosen, start, changed_params(trained, kwargs))


def changed_params(run: Run, kwargs: Mapping[str, Any]) -> list[params.ParamChange]:
    """The params of an evaluation, as keyword arguments of `shoal.make`, that differ from the run's."""
    now = {name: value for name, value in kwargs.items() if name != "env"}
    return params.changes(kwargs["env"], options_for(kwargs["env"], run.config).env, now)


# ---- agents of the user's own ----

AGENT = "agent"  # the one mode of an agent


def evaluate_agent(
    env: Any,
    agent: Any,
    *,
    params: Mapping[str, Any] | None = None,
    opponents: str = "",
    episodes: int = 100,
    seed: int = 1,
    runs_folder: str | Path = runs.ROOT,
) -> evaluate.Evaluation:
    """Plays held-out episodes with an agent of yours, which needs no run.

    Args:
        env: what `shoal.make` takes.
        agent: a class, function or object with `act(obs, mask)`, or its name: `mine:Agent`, `random`.
        params: env params.
        opponents: players of other agents: `1=seek,2=RUN,3=mine:Agent`. The agent plays all that are left.
        episodes: the number of episodes.
        seed: the envs start from seed + 2^30.
        runs_folder: the folder of the runs that `opponents` names.
    """
    player, kwargs = agent_player(env, agent, params, opponents, seed, Path(runs_folder))
    limit = NATIVE_ENVS if registry.is_native(env) else PYTHON_ENVS
    return evaluate.play_modes(partial(make, **kwargs), {AGENT: player}, episodes, seed, chosen=AGENT, num_envs=limit)


def agent_player(
    env: Any,
    agent: Any,
    params: Mapping[str, Any] | None = None,
    opponents: str = "",
    seed: int = 1,
    root: Path = runs.ROOT,
) -> tuple[PolicyPlayer, dict[str, Any]]:
    """An agent as a player, and the keyword arguments of `shoal.make` for the env that it plays."""
    find_agent(agent)  # a mistake shows before an env is made
    options = dataclasses.replace(Options(), opponents=opponents, env=read_env_options(params or {}))
    seated, options = seat_opponents(env, options, root)
    with contextlib.closing(make(env, 1, **{**options.env_options, "backend": "serial"})) as vec:
        seats.check(seated, vec.agents_per_env)
        agents, groups = vec.agents_per_env, find_groups(vec)
        roles = seats.without(assign_roles(vec, "shared"), seated, agents)
        frozen = load_opponents(seated, vec, seed)
    actors = [agent_actor(agent, role, seed, (role.agents or (0,))[0], "--agent") for role in roles]
    player = seat_player(list(actors), roles, frozen, seated, agents=agents, greedy=True, seed=seed, groups=groups)
    return player, {"env": env, **options.env_options}
