"""Opponents: scripted robots and frozen runs in the seats of agents that do not learn."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal import registry, runs
from shoal.algos.actor import Actor
from shoal.algos.roles import Role, assign_roles, find_groups
from shoal.entry import make
from shoal.errors import ConfigError, ShoalError
from shoal.native import lib
from shoal.nn.qnet import QHead
from shoal.runs import Run
from shoal.train import env_params, seats
from shoal.train.options import Options
from shoal.train.players import load_player
from shoal.vector.base import VecEnv


def seat_opponents(env: Any, options: Options, root: Path = runs.ROOT) -> tuple[dict[int, str], Options]:
    """Who plays which agent, and the options: scripted robots become env options, runs become paths of checkpoints."""
    if options.opponents.strip(", ") in ("", *seats.WORDS):
        return {}, options
    spec = lib.load(registry.find(str(env))).spec if registry.is_native(env) else None
    named = _named_seats(env, options) if seats.has_names(options.opponents) else None
    opponents = seats.parse(options.opponents, named)
    if spec is not None:
        seats.check(opponents, spec.agents)
    robots = seats.scripted(spec, opponents)
    seats.check_robots(robots, options.env)
    for seat, who in opponents.items():
        if f"robot_{seat}" not in robots:
            try:
                opponents[seat] = str(_checkpoint_of(who, root))
            except ShoalError as error:
                raise seats.not_found(who, seat, spec, str(error)) from None
    return opponents, dataclasses.replace(options, opponents=seats.write(opponents), env={**options.env, **robots})


def _named_seats(env: Any, options: Options) -> dict[str, tuple[int, ...]]:
    """The groups and agents of an env, by name. One env is made and closed."""
    options = dataclasses.replace(options, env=env_params.at(env, options.env, 0.0))
    with contextlib.closing(make(env, 1, **{**options.env_options, "backend": "serial"})) as vec:
        by_agent = {str(name): (agent,) for agent, name in enumerate(vec.agent_spaces.agents)}
        return {**by_agent, **find_groups(vec, options.nn.groups)}


def _checkpoint_of(who: str, root: Path) -> Path:
    """The folder of a checkpoint: `who` itself, or the best of the run `who`."""
    path = Path(who)
    if (path / "meta.json").is_file():
        return path.resolve()
    best = runs.find(who, root).best
    if best is None:
        raise ConfigError(f"{who} has no checkpoint. Train it until it has saved one.")
    return best.resolve()


def load_opponents(opponents: Mapping[int, str], vec: VecEnv) -> list[tuple[Actor, Role]]:
    """The actors of the runs that play seats of an env, each with the seats that it plays."""
    loaded: dict[tuple[str, int, int], tuple[Actor, list[int]]] = {}
    for seat, who in opponents.items():
        if who in seats.scripts(vec.native_spec, seat):
            continue
        path = Path(who)
        player, _ = load_player(Run(path.parent.parent), path)
        agents = list(player.judged or range(player.agents))
        source = seat if seat in agents else agents[0]  # a run that learned one seat plays any other seat the same way
        number = next(n for n, role in enumerate(player.roles) if role.agents is None or source in role.agents)
        role = player.roles[number]
        place = source if role.agents is None else role.agents.index(source)
        key = (who, number, place if player.actors[number].networks > 1 else 0)
        if key not in loaded:
            actor = player.actors[number].of_agent(place)
            if isinstance(actor.head, QHead):
                actor.head.epsilon.zero_()  # no exploration
            loaded[key] = actor, []
        loaded[key][1].append(seat)
    roles = assign_roles(vec, "shared")
    seated = []
    for (who, *_), (actor, played) in loaded.items():
        shared = next(role for role in roles if role.agents is None or played[0] in role.agents)
        role = seats.only(shared, played)
        if (actor.space, actor.head.space) != (role.observation_space, role.action_space):
            raise ConfigError(
                f"--opponents {played[0]}={who}: that run observes {actor.space} and acts in {actor.head.space}; the "
                f"agent here observes {role.observation_space} and acts in {role.action_space}. Name a run of this env."
            )
        seated.append((actor, role))
    return seated
