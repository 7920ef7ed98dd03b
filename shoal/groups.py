"""Groups: named sets of an env's agents, such as predators and prey. Read from options, headers and metadata.

A group is written `NAME=AGENTS`: `predators=0,1,2`, `predators=0-2`, `scouts=scout_*`. Agents are numbers or names.
Every agent is in one group. Knows nothing of policies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from shoal.errors import ConfigError, did_you_mean

Groups = dict[str, tuple[int, ...]]  # the numbers of the agents by the group's name

_NAME = re.compile(r"[A-Za-z][\w-]{0,63}")  # it is a part of the keys of metrics


def as_words(value: Any) -> Any:
    """Groups in Python (`{"prey": [3]}`) or in TOML as a tuple of `NAME=AGENTS`. Any other value is returned unchanged.

    >>> as_words({"predators": range(3), "prey": 3})
    ('predators=0,1,2', 'prey=3')
    """
    if isinstance(value, str):
        return tuple(value.split())
    if not isinstance(value, Mapping):
        return value
    return tuple(f"{name}={_members(members)}" for name, members in value.items())


def _members(members: Any) -> str:
    if isinstance(members, Sequence) and not isinstance(members, str):
        return ",".join(str(member) for member in members)
    return str(members)


def write(groups: Mapping[str, Sequence[int]]) -> tuple[str, ...]:
    """The words that `read` reads."""
    return tuple(f"{name}={','.join(map(str, agents))}" for name, agents in groups.items())


def read(words: Sequence[str], agents: Sequence[Any], source: str = "--nn.groups") -> Groups:
    """The groups that words describe, for an env with these agents. A mistake raises ConfigError.

    >>> read(["predators=0-2", "prey=agent_3"], ["agent_0", "agent_1", "agent_2", "agent_3"])
    {'predators': (0, 1, 2), 'prey': (3,)}
    """
    names = [str(agent) for agent in agents]
    groups: Groups = {}
    group_of: dict[int, str] = {}
    for word in words:
        name, equals, listed = word.partition("=")
        name = name.strip()
        if not equals or not listed.strip(", "):
            raise ConfigError(
                f"{source} '{word}' is not NAME=AGENTS. Write predators=0,1,2 prey=3: agents count from 0."
            )
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{source}: '{name}' is no name of a group. Use letters, digits, _ and -.")
        if name in groups:
            raise ConfigError(f"{source} names the group '{name}' twice. Give all of its agents at once.")
        members = [k for part in listed.split(",") if part.strip() for k in _find(part.strip(), names, source, name)]
        for agent in members:
            if agent in group_of:
                raise ConfigError(_twice(source, agent, names, group_of[agent], name))
            group_of[agent] = name
        if name in names and members != [names.index(name)]:
            raise ConfigError(f"{source}: '{name}' is the name of an agent. Give the group another name.")
        groups[name] = tuple(members)
    if groups and (missing := [k for k in range(len(names)) if k not in group_of]):
        listed = ", ".join(_shown(k, names) for k in missing[:8]) + (", …" if len(missing) > 8 else "")
        are, them = ("is", "it") if len(missing) == 1 else ("are", "them")
        raise ConfigError(
            f"{source}: of the {len(names)} agents, {listed} {are} in no group. Add {them} to one, such as "
            f"{next(iter(groups))}."
        )
    return groups


def _find(word: str, names: list[str], source: str, group: str) -> list[int]:
    """The numbers of the agents that one word means: a number, a range of numbers, a name or a pattern."""
    if word in names:
        return [names.index(word)]
    if ends := re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", word):
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if not first <= last < len(names):
            raise ConfigError(f"{source} {group}={word}: the env has agents 0 to {len(names) - 1}.")
        return list(range(first, last + 1))
    if "*" in word and (matching := [k for k, name in enumerate(names) if fnmatchcase(name, word)]):
        return matching
    known = ", ".join(names[:16]) + (", …" if len(names) > 16 else "")
    raise ConfigError(f"{source} {group}={word}: no such agent.{did_you_mean(word, names)} The env has {known}.")


def _twice(source: str, agent: int, names: list[str], first: str, second: str) -> str:
    if first == second:
        return f"{source} has {_shown(agent, names)} twice in '{first}'. Name it once."
    return f"{source} has {_shown(agent, names)} in two groups: '{first}' and '{second}'. Leave it in one of them."


def _shown(agent: int, names: list[str]) -> str:
    return f"agent {agent}" if names[agent] == f"agent_{agent}" else f"agent {agent} ({names[agent]})"


def name_by_prefix(names: Sequence[str]) -> str:
    """What the names of some agents have in common before their numbers: `adversary` of adversary_0, adversary_1."""
    stems = {re.sub(r"[_\- ]*\d+$", "", name) for name in names}
    stem = next(iter(stems)) if len(stems) == 1 else ""
    return stem if _NAME.fullmatch(stem) else ""
