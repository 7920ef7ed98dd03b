"""Opponents: scripted robots, frozen runs and agents of the user's own in the seats of agents that do not learn."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from shoal import runs
from shoal.algos import agents
from shoal.algos.actor import Actor
from shoal.algos.agents.actor import AgentActor
from shoal.algos.collect import Seat
from shoal.algos.roles import Role, assign_roles, find_groups
from shoal.entry import make
from shoal.errors import ConfigError, ShoalError
from shoal.nn.qnet import QHead
from shoal.runs import Run
from shoal.seeds import stream_seed
from shoal.train import env_params, seats
from shoal.train.options import Options
from shoal.train.players import load_player, under
from shoal.vector.base import VecEnv


def seat_opponents(env: Any, options: Options, root: Path = runs.ROOT) -> tuple[dict[int, str], Options]:
    """Who plays which agent, and the options.

    Scripted robots become env options, runs become paths of checkpoints, agents have names that any folder finds.
    """
    if options.opponents.strip(", ") in ("", *seats.WORDS):
        return {}, options
    spec = env_params.spec_of(env, options.env)
    named = named_seats(env, options) if seats.has_names(options.opponents) else None
    opponents = seats.parse(options.opponents, named)
    if spec is not None:
        seats.check(opponents, spec.agents)
    robots = seats.scripted(spec, opponents)
    seats.check_robots(robots, options.env)
    opponents = {seat: resolve_player(who, seat, spec, root) for seat, who in opponents.items()}
    options = step_together(options, [who for seat, who in opponents.items() if f"robot_{seat}" not in robots])
    return opponents, dataclasses.replace(options, opponents=seats.write(opponents), env={**options.env, **robots})


def resolve_player(who: str, seat: int, spec: Any, root: Path = runs.ROOT) -> str:
    """A seat's player by a name that any folder finds: a robot of the env, an agent, or the checkpoint of a run."""
    if who in seats.scripts(spec, seat):
        return who
    if agents.is_agent(who):
        agents.find_agent(who, "--opponents")
        return agents.stored(who, "--opponents")
    try:
        return str(_checkpoint_of(who, root))
    except ShoalError as error:
        unknown = seats.not_found(who, seat, spec, str(error))
        raise ConfigError(f"{unknown} An agent of your own has the form {seat}=mine:Agent.") from None


def step_together(options: Options, players: Sequence[str]) -> Options:
    """The options with all envs in one group, if one of the players must act for the same rows in every call."""
    own = [who for who in players if agents.is_agent(who)]
    who = next((who for who in own if agents.has_memory(agents.find_agent(who, "--opponents"))), None)
    if who is None:
        return options
    if options.vec.num_groups > 1 or options.vec.surplus_envs:
        flag = "--vec.num-groups" if options.vec.num_groups > 1 else "--vec.surplus-envs"
        value = options.vec.num_groups if options.vec.num_groups > 1 else options.vec.surplus_envs
        raise ConfigError(
            f"{agents.show(who, '--opponents')} has a memory or a random stream, so it acts for all rows at once. "
            f"{flag} {value} divides them. Leave it out."
        )
    return dataclasses.replace(options, vec=dataclasses.replace(options.vec, num_groups=1, overlap=False))


def named_seats(env: Any, options: Options) -> dict[str, tuple[int, ...]]:
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


def load_opponents(opponents: Mapping[int, str], vec: VecEnv, seed: int = 0) -> list[tuple[Actor, Role]]:
    """The actors of the runs and agents that play seats of an env, each with the seats that it plays."""
    loaded: dict[tuple[str, int, int], tuple[Actor, list[int]]] = {}
    roles = assign_roles(vec, "shared")
    for seat, who in opponents.items():
        if who in seats.scripts(vec.native_spec, seat):
            continue
        if agents.is_agent(who):
            shared = next(k for k, role in enumerate(roles) if role.agents is None or seat in role.agents)
            if (who, -1, shared) not in loaded:
                loaded[who, -1, shared] = agent_actor(who, roles[shared], seed, seat), []
            loaded[who, -1, shared][1].append(seat)
            continue
        path = Path(who)
        player, _ = load_player(Run(path.parent.parent), path)
        played_there = list(player.judged or range(player.agents))
        # a run that learned one seat plays any other seat the same way
        source = seat if seat in played_there else played_there[0]
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
    seated = []
    for (who, *_), (actor, played) in loaded.items():
        shared_role = next(role for role in roles if role.agents is None or played[0] in role.agents)
        role = seats.only(shared_role, played)
        if (actor.space, actor.head.space) != (role.observation_space, role.action_space):
            raise ConfigError(
                f"--opponents {played[0]}={who}: that run observes {actor.space} and acts in {actor.head.space}; the "
                f"agent here observes {role.observation_space} and acts in {role.action_space}. Name a run of this env."
            )
        seated.append((actor, role))
    return seated


def agent_actor(agent: Any, role: Role, seed: int, seat: int = 0, flag: str = "--opponents") -> AgentActor:
    """An agent of the user's own as an actor: its name, a class, a function or an object. `seed` is the run's."""
    found = agents.find_agent(agent, flag)
    own_seed = stream_seed(seed, "agent", seat)
    make_one = partial(agents.make_agent, found, role.observation_space, role.action_space, own_seed)
    return AgentActor(
        make_one,
        role.observation_space,
        role.action_space,
        shown=agents.show(agent, flag),
        has_memory=agents.has_memory(found),
    )


# ---- the memory of agents, in checkpoints ----


def memory_of(frozen: Sequence[Seat]) -> dict[str, Tensor]:
    """What a resume needs of the agents in the seats, by its names in a checkpoint."""
    own = {f"opponent{k}.agent.": seat.actor for k, seat in enumerate(frozen) if isinstance(seat.actor, AgentActor)}
    return {prefix + name: value for prefix, actor in own.items() for name, value in actor.memory().items()}


def restore_memory(frozen: Sequence[Seat], state: Mapping[str, Tensor]) -> None:
    """Sets what `memory_of` returned."""
    for k, seat in enumerate(frozen):
        if isinstance(seat.actor, AgentActor):
            seat.actor.restore(under(state, f"opponent{k}.agent."))


def is_capturable(frozen: Sequence[Seat]) -> bool:
    """Whether a CUDA graph can hold the acting of all opponents."""
    return all(seat.actor.is_capturable for seat in frozen if isinstance(seat.actor, AgentActor))
