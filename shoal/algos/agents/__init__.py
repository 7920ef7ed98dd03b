"""Agents of the user's own: Python classes that act for rows of envs, without learning. One file per stock agent.

    @shoal.agent("pursuit")
    class Pursuit:
        def act(self, obs, mask):
            return (obs[:, 1] > 0).long()

An agent acts on batches of tensors on the run's device, one entry for each row that it plays. As an opponent it sits in
the seat of an agent that does not learn: `--opponents 1=pursuit`, or by module or file `1=mine:Pursuit`.

`actor.py` seats an agent where policies sit. Knows policies; knows nothing of learning.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

from shoal import names
from shoal.errors import ConfigError, did_you_mean
from shoal.plugins import Plugins

AGENTS = Plugins("agent", package="shoal.algos.agents", marker="AGENT")
ARGUMENTS = ("obs", "mask")
SIGNATURE = f"act({', '.join(ARGUMENTS)})"
OFFERED = ("observation_space", "action_space", "seed")  # arguments that a constructor gets if it names them
MEMORY = ("reset", "state_dict")  # methods of an agent that must act for the same rows in every call


class FunctionAgent:
    """A plain function as an agent."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.act = function
        self.capturable = bool(getattr(function, "capturable", False))


def is_agent(who: str) -> bool:
    """Whether a text names an agent: `mine:Pursuit`, `./mine.py:Pursuit`, or the name of a stock or registered one."""
    return names.is_name(who) or who in AGENTS.names()


def stored(who: str, flag: str) -> str:
    """The name that finds the same agent from any folder and in any process: runs store that one."""
    if names.is_name(who):
        return names.absolute(who, flag)
    return names.place_of(AGENTS.find(who)).name or who if AGENTS.is_registered(who) else who


def find_agent(agent: Any, flag: str = "--agent") -> Any:
    """The class, function or object of an agent's name; anything else as it is. Raises if it is no agent."""
    shown = show(agent, flag)
    if isinstance(agent, str):
        agent = names.find(agent, flag) if ":" in agent else _plugin(agent, flag)
    if hasattr(agent, "act"):
        if not callable(agent.act):
            raise ConfigError(f"{shown}: act is {type(agent.act).__name__}, not a method. Define {SIGNATURE}.")
        has_self = isinstance(agent, type) and not _is_static(agent)
        names.check_call(agent.act, SIGNATURE, ARGUMENTS, shown, has_self)
    elif isinstance(agent, type) or not callable(agent):
        kind = agent.__name__ if isinstance(agent, type) else type(agent).__name__
        raise ConfigError(f"{shown} is {kind}, which has no {SIGNATURE}, so it is no agent. Add this method.")
    else:
        names.check_call(agent, SIGNATURE, ARGUMENTS, shown)
    if isinstance(agent, type):
        names.check_arguments(shown, agent, dict.fromkeys(_offered(agent)), "")
    return agent


def make_agent(found: Any, observation_space: Any, action_space: Any, seed: int) -> Any:
    """A new agent: of a class, a function or an object that `find_agent` returned. An object is copied."""
    if isinstance(found, type):
        offered = {"observation_space": observation_space, "action_space": action_space, "seed": seed}
        return found(**{name: offered[name] for name in _offered(found)})
    if hasattr(found, "act"):
        return copy.deepcopy(found)
    return FunctionAgent(found)


def has_memory(found: Any) -> bool:
    """Whether an agent has a state or a random stream, so that the same rows must act together in every call."""
    return any(hasattr(found, name) for name in MEMORY) or "seed" in _offered(found)


def show(agent: Any, flag: str = "agent") -> str:
    """An agent's name in messages."""
    if isinstance(agent, str):
        return f"{flag} {names.shortened(agent)}"
    return f"agent {getattr(agent, '__qualname__', None) or type(agent).__qualname__}"


def _offered(maker: Any) -> list[str]:
    return [name for name in OFFERED if name in names.arguments(maker)] if isinstance(maker, type) else []


def _plugin(name: str, flag: str) -> Any:
    known = AGENTS.names()
    if name not in known:
        raise ConfigError(
            f"{flag} {name}: no agent of that name.{did_you_mean(name, known)} Known: {', '.join(known)}. Name your "
            "own by module or file: mine:Agent or ./mine.py:Agent."
        )
    return AGENTS.find(name)


def _is_static(agent: type) -> bool:
    return isinstance(inspect.getattr_static(agent, "act"), (staticmethod, classmethod))
