"""What a run stores so that its env, policy and reward are found again, and what it says where one cannot be."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from shoal import names
from shoal.algos.rewards import REWARDS
from shoal.entry import place_of_env
from shoal.errors import ConfigError
from shoal.names import Place
from shoal.runs import Run
from shoal.train.options import Options, unsaved


@dataclass(frozen=True)
class Places:
    """Where the parts of a run are found again. None: the user has not passed such a part from Python."""

    env: Place
    policy: Place | None = None
    reward: Place | None = None
    unsaved: tuple[str, ...] = ()  # env options that a run folder cannot hold

    @property
    def lost(self) -> tuple[str, ...]:
        """Why no command can make the run's env and policy again; empty if `shoal eval` can."""
        texts = [*_lost("env", self.env), *_lost("policy", self.policy)]
        if self.unsaved:
            texts.append(f"the env options {', '.join(self.unsaved)} are objects, which a run folder cannot hold")
        return tuple(texts)

    @property
    def lost_to_resume(self) -> tuple[str, ...]:
        """Why `--resume` cannot continue the run, though `shoal eval` can play it: an evaluation needs no reward."""
        return tuple(_lost("reward", self.reward))


def _lost(what: str, place: Place | None) -> list[str]:
    if place is None or not place.reason:
        return []
    return [f"the {what} cannot be found again by name: {place.reason}"]


def absolute_env(env: Any) -> Any:
    """A name of an env in the form that is found from any folder; anything else unchanged."""
    return place_of_env(env).name if isinstance(env, (str, Path)) else env


def find_places(env: Any, options: Options, policy: Any = None, reward: Any = None) -> tuple[Places, Options]:
    """Where the parts of a run are found, and the options with the names of policy and reward."""
    places = Places(
        place_of_env(env),
        None if policy is None or isinstance(policy, str) else names.place_of(policy),
        None if reward is None or isinstance(reward, str) else names.place_of(reward),
        tuple(unsaved(options.env)),
    )
    own_policy = policy if isinstance(policy, str) else options.nn.policy
    own_reward = reward if isinstance(reward, str) else options.reward
    own_policy = places.policy.name if places.policy is not None else own_policy
    own_reward = places.reward.name if places.reward is not None else own_reward
    net = dataclasses.replace(options.nn, policy=own_policy and names.absolute(own_policy, "--nn.policy"))
    if REWARDS.is_registered(own_reward):  # in this process alone
        own_reward = names.place_of(REWARDS.find(own_reward)).name or own_reward
    own_reward = names.absolute(own_reward, "--reward") if ":" in own_reward else own_reward
    return places, dataclasses.replace(options, nn=net, reward=own_reward)


def check_resume(run: Run, options: Options, policy: Any, reward: Any) -> None:
    """Raises if a run had a policy or reward that its folder does not name, and it is not passed again."""
    parts = {"policy": (policy, options.nn.policy), "reward": (reward, options.reward)}
    for what, (given, name_given) in parts.items():
        name = run.facts.get(f"custom_{what}")
        if name and given is None and not name_given:
            raise ConfigError(
                f"{run.id} was trained with the {what} {name}, which cannot be found by name. Resume it from Python: "
                f"train(env, {what}=..., resume={str(run.folder)!r})."
            )


def check_env_is_named(run: Run) -> str:
    """The name of a run's env. Raises if it was an object that has none."""
    name = str(run.facts.get("env", run.env))
    if not run.facts.get("env_is_a_name", True):
        reason = next(iter(run.facts.get("lost", ())), "the env was a function")
        raise ConfigError(
            f"{run.id} was trained on {name}, and {reason}. Continue or evaluate it from Python: "
            f"train({name}, resume={str(run.folder)!r})."
        )
    return name


def find_policy(name: str) -> Callable[..., nn.Module]:
    """The policy of `--nn.policy`, as a function of the two spaces."""
    policy, shown = names.find(name, "--nn.policy"), f"--nn.policy {names.shortened(name)}"
    if isinstance(policy, nn.Module):
        return lambda *_spaces: copy.deepcopy(policy)
    if not callable(policy):
        raise ConfigError(
            f"{shown} is {type(policy).__name__}, not a policy. Name a class or function of (observation_space, "
            "action_space) that makes an nn.Module."
        )
    try:
        inspect.signature(policy).bind("observation_space", "action_space")
    except ValueError:  # a function of C does not tell
        pass
    except TypeError as error:
        raise ConfigError(
            f"{shown} takes {inspect.signature(policy)}, but is called with (observation_space, action_space): {error}."
        ) from None

    def make(observation_space: Any, action_space: Any) -> nn.Module:
        module = policy(observation_space, action_space)
        if not isinstance(module, nn.Module):
            raise ConfigError(f"{shown} made {type(module).__name__}, not an nn.Module that returns (logits, value).")
        return module

    return make
