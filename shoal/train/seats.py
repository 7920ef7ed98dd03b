"""Who plays which agent: `--opponents 1=seek,2=flee,3=RUN`. The learner plays all other agents.

A seat's player is a scripted robot of the env (a native env's param `robot_<seat>`), or a run: the policy of a
checkpoint, which does not learn. `--opponents self` and `--opponents pool` name no seats: all agents learn, or a league
seats its members (shoal/league). Knows nothing of how a run is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shoal.algos.roles import Role
from shoal.errors import ConfigError, did_you_mean

SELF, POOL = "self", "pool"  # the learner's own weights play all agents; a league without ratings plays the others
WORDS = (SELF, POOL)


def parse(text: str, named: Mapping[str, Sequence[int]] | None = None) -> dict[int, str]:
    """`1=seek,3=runs/vacuum/x` as {1: "seek", 3: "runs/vacuum/x"}.

    `named`: groups and agents that may be written instead of a number, with the numbers that they stand for.

    >>> parse("1=seek, 2=flee")
    {1: 'seek', 2: 'flee'}
    >>> parse("prey=flee", {"prey": (3,)})
    {3: 'flee'}
    """
    opponents: dict[int, str] = {}
    if text.strip() in WORDS:
        return opponents
    for part in filter(None, (part.strip() for part in text.split(","))):
        seat = re.fullmatch(r"([^=\s]+)\s*=\s*(.+)", part)
        if seat is None or not (re.fullmatch(r"\d{1,4}", seat[1]) or named):
            raise ConfigError(
                f"--opponents '{part}' is not SEAT=WHO.{did_you_mean(part, WORDS)} Write 1=seek,2=last (agents count "
                "from 0), self or pool."
            )
        for agent in _seats_of(seat[1], named or {}):
            if agent in opponents:
                raise ConfigError(f"--opponents names agent {agent} twice. Give each seat one player.")
            opponents[agent] = seat[2]
    return opponents


def _seats_of(word: str, named: Mapping[str, Sequence[int]]) -> Sequence[int]:
    """The agents that a number, a group or an agent's name means."""
    if word in named:
        return named[word]
    if re.fullmatch(r"\d{1,4}", word):
        return [int(word)]
    known = ", ".join(named)
    raise ConfigError(f"--opponents {word}=: no such agent or group.{did_you_mean(word, named)} The env has {known}.")


def has_names(text: str) -> bool:
    """Whether some seat is not a number."""
    return any("=" in part and not part.partition("=")[0].strip().isdigit() for part in text.split(","))


def write(opponents: Mapping[int, str]) -> str:
    """The text that `parse` reads."""
    return ",".join(f"{seat}={who}" for seat, who in sorted(opponents.items()))


def scripts(spec: Any, seat: int) -> tuple[str, ...]:
    """The scripted robots that an env has for a seat, without `learner`."""
    params = {} if spec is None else {param.name: param for param in spec.params}
    param = params.get(f"robot_{seat}")
    return () if param is None else tuple(word for word in param.choices or () if word != "learner")


def scripted(spec: Any, opponents: Mapping[int, str]) -> dict[str, str]:
    """The env params that choose its scripted robots."""
    return {f"robot_{seat}": who for seat, who in opponents.items() if who in scripts(spec, seat)}


def check(opponents: Mapping[int, str], agents: int) -> None:
    """Raises if a seat does not exist, or if no seat is left for the learner."""
    for seat in opponents:
        if seat >= agents:
            has = f"agents 0 to {agents - 1}" if agents > 1 else "one agent, which has no opponents"
            raise ConfigError(f"--opponents {seat}={opponents[seat]}: the env has {has}.")
    if len(opponents) == agents:
        raise ConfigError(f"--opponents names all {agents} agents, so none is left to learn. Leave one out.")


def check_robots(robots: Mapping[str, str], env_options: Mapping[str, Any]) -> None:
    """Raises if an env option and --opponents name different robots for a seat."""
    for param, who in robots.items():
        given = env_options.get(param, who)
        if given not in (who, "learner"):
            seat = param.removeprefix("robot_")
            raise ConfigError(
                f"--opponents {seat}={who} and --env.{param.replace('_', '-')} {given} name different players for "
                f"agent {seat}. Give one of them."
            )


def not_found(who: str, seat: int, spec: Any, reason: str) -> ConfigError:
    """The error for a player that is neither a robot of the env nor a run."""
    known = scripts(spec, seat)
    robots = f" The env's robots: {', '.join(known)}." if known else " The env has no scripted robots."
    return ConfigError(f"--opponents {seat}={who}:{did_you_mean(who, known)}{robots} As a run: {reason}")


def without(roles: list[Role], seats: Mapping[int, str], agents: int) -> list[Role]:
    """The roles without the agents that opponents play."""
    if not seats:
        return roles
    learning = [only(role, [k for k in role.agents or range(agents) if k not in seats]) for role in roles]
    return [role for role in learning if role.agents]


def only(role: Role, agents: list[int]) -> Role:
    """A role restricted to some of its agents."""
    all_agents = list(role.agents or ())
    names = tuple(role.names[all_agents.index(k)] for k in agents) if role.names else ()
    return replace(role, agents=tuple(agents), names=names)
