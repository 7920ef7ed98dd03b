"""The named members of a league: scripted robots of the env, runs and Python agents.

--league.members crank runs/midrange/x mine:Agent
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal import registry, runs
from shoal.algos import agents
from shoal.algos.actor import Actor
from shoal.algos.roles import Role
from shoal.config import to_dict
from shoal.errors import ConfigError, ShoalError, did_you_mean
from shoal.league.league import Kind
from shoal.native import lib
from shoal.nn.qnet import QHead
from shoal.runs import Run
from shoal.train import env_params, seats
from shoal.train.opponents import _checkpoint_of as checkpoint_of
from shoal.train.opponents import step_together
from shoal.train.options import Options, options_for
from shoal.train.players import load_player

FLAG = "--league.members"


def is_league(options: Options) -> bool:
    """Whether a league seats the opponents: `--league`, or `--opponents pool`."""
    return bool(options.league.on or options.opponents.strip() == seats.POOL)


def is_self_play(options: Options) -> bool:
    """Whether one policy plays all agents: in a league, and with `--opponents self`."""
    return is_league(options) or options.opponents.strip() == seats.SELF


def resolve(env: Any, options: Options, root: Path = runs.ROOT, vec: Any = None) -> Options:
    """The options with what self-play needs: one policy for all agents, and checkpoints for the names of runs.

    `vec` are the envs, if they are made already. Raises for unknown members, and for options that do not go with it.
    """
    if not is_self_play(options):
        return options
    word = "--league" if options.league.on else f"--opponents {options.opponents.strip()}"
    if options.league.on and options.opponents.strip() not in ("", seats.POOL):
        raise ConfigError(
            f"--league seats the opponents itself, so --opponents {options.opponents} cannot. Name them with "
            "--league.members, or leave --league out."
        )
    if options.nn.policies not in ("auto", "shared"):
        raise ConfigError(
            f"{word} trains one policy that plays every side; --nn.policies {options.nn.policies} has several. "
            "Leave it out."
        )
    spec = _spec_of(env, options) if vec is None else getattr(vec, "native_spec", None)
    if spec is not None and spec.agents == 1:
        raise ConfigError(f"{word} needs an env with at least two agents; {env} has 1. Leave it out.")
    options = dataclasses.replace(options, nn=dataclasses.replace(options.nn, policies="shared"))
    if not is_league(options):
        return options
    _check_league(options, spec, word)
    names = tuple(_resolve_one(name, spec, root) for name in options.league.members)
    options = step_together(options, [name for name in names if name not in robots_of(spec)])
    return dataclasses.replace(options, league=dataclasses.replace(options.league, members=names))


def _spec_of(env: Any, options: Options) -> Any:
    """What a native env looks like with its options; None for other envs."""
    if not registry.is_native(env):
        return None
    header = registry.find(str(env))
    spec = lib.load(header).spec
    _, consts = spec.split(env_params.at(env, options.env, 0.0))
    defaults = {const.name: const.default for const in spec.consts}
    changed = {name: value for name, value in consts.items() if value != defaults[name]}
    return lib.load(header, changed).spec if changed else spec


def _check_league(options: Options, spec: Any, word: str) -> None:
    if getattr(options.train, "policy", "") == "per-agent":
        raise ConfigError(f"{word} trains one network that plays every side; --train.policy per-agent has several.")
    if options.vec.surplus_envs:
        raise ConfigError(
            f"{word} needs complete rollouts, which --vec.surplus-envs {options.vec.surplus_envs} does not wait for. "
            "Use 0."
        )
    for name, who in options.env.items():
        if name.startswith("robot_") and spec is not None and who not in ("learner", 0):
            raise ConfigError(
                f"{word} decides who plays each agent, so --env.{name.replace('_', '-')} {who} cannot. Name the robot "
                f"as a member: --league.members {who}."
            )
    if options.league.exploiters and not options.league.on:
        raise ConfigError(
            f"--opponents pool has no exploiters; --league.exploiters is {options.league.exploiters}. Use --league."
        )


def robots_of(spec: Any) -> tuple[str, ...]:
    """The scripted robots that an env has for every agent."""
    if spec is None:
        return ()
    by_seat = [seats.scripts(spec, seat) for seat in range(spec.agents)]
    return tuple(name for name in by_seat[0] if all(name in robots for robots in by_seat))


def check_seats(vec: Any) -> None:
    """Raises if the envs play an agent themselves, by a preset for example: its actions would be ignored."""
    params = {} if vec.native_spec is None else {param.name: param for param in vec.native_spec.params}
    for agent in range(vec.agents_per_env):
        choices = list(getattr(params.get(f"robot_{agent}"), "choices", None) or ())
        if "learner" not in choices:
            continue
        playing = {int(code) for code in vec.get_params()[f"robot_{agent}"]} - {choices.index("learner")}
        if playing:
            robot = choices[min(playing)]
            raise ConfigError(
                f"a league decides who plays each agent, but agent {agent} of the envs is played by {robot}. Name it "
                f"as a member, --league.members {robot}, and make the envs with robot_{agent}=learner."
            )


def _resolve_one(name: str, spec: Any, root: Path) -> str:
    """A robot's name as it is, the name of an agent that any folder finds, and the checkpoint of a run."""
    known = robots_of(spec)
    if name in known:
        return name
    if agents.is_agent(name):
        agents.find_agent(name, FLAG)
        return agents.stored(name, FLAG)
    try:
        return str(checkpoint_of(name, root))
    except ShoalError as error:
        robots = f" The env's robots: {', '.join(known)}." if known else " The env has no robots for every agent."
        raise ConfigError(f"--league.members {name}:{did_you_mean(name, known)}{robots} As a run: {error}") from None


def kinds(names: Sequence[str], spec: Any) -> list[tuple[str, Kind]]:
    """(shown name, kind) of resolved members: a run is shown by its id; if others have the same, by its checkpoint."""
    known, paths = robots_of(spec), [Path(name) for name in names]
    ids = [path.parent.parent.name for path in paths]
    shown = [run_id if ids.count(run_id) == 1 else name for run_id, name in zip(ids, names)]
    named: list[tuple[str, Kind]] = []
    for name, run in zip(names, shown):
        is_agent = name not in known and agents.is_agent(name)
        named.append((name, "robot") if name in known else (name, "python") if is_agent else (run, "run"))
    return named


def load_run(name: str, role: Role, options: Options) -> tuple[Actor, bool]:
    """The actor of a run, by its checkpoint, and whether it has the learner's network: then the bank can hold it."""
    path = Path(name)
    run = Run(path.parent.parent)
    player, _ = load_player(run, path)
    seat = (player.judged or [0])[0]
    number = next(n for n, one in enumerate(player.roles) if one.agents is None or seat in one.agents)
    place = seat if player.roles[number].agents is None else (player.roles[number].agents or ()).index(seat)
    actor = player.actors[number].of_agent(place)
    if (actor.space, actor.head.space) != (role.observation_space, role.action_space):
        raise ConfigError(
            f"--league.members {name}: that run observes {actor.space} and acts in {actor.head.space}; an agent here "
            f"observes {role.observation_space} and acts in {role.action_space}. Name a run of this env."
        )
    if isinstance(actor.head, QHead):
        actor.head.epsilon.zero_()  # no exploration
    return actor, _network(options_for(run.facts.get("env", run.env), run.config)) == _network(options)


def _network(options: Options) -> dict[str, Any]:
    """The options that say what a policy computes."""
    own = {name: value for name, value in to_dict(options.nn).items() if name not in ("policies", "groups")}
    plugins = {name: to_dict(getattr(options, name)) for name in ("core", "encoder")}
    q_options = {name: getattr(options.train, name, None) for name in ("normalize_obs", "layer_norm", "dueling")}
    return {"algo": options.algo, **own, **plugins, **q_options}
