"""Wrappers and drawn params for Python envs, with the order and meaning of those of native envs (native/core/wrap.h).

Random numbers come from a stream of the wrapper, seeded with the env's seed: the env's own numbers stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from shoal.distributions import Distribution
from shoal.errors import ConfigError
from shoal.spec import Array
from shoal.vector.slots import Limited, is_set
from shoal.wrappers import Wrap

Info = dict[str, Any]
_STREAM = 0x5740  # tells the wrapper's stream from others with the same seed


def wrap_env(env: Any, wrap: Wrap, drawn: Mapping[str, Distribution]) -> Any:
    """What `adapt` returned, with wrappers and with params that are drawn at each reset."""
    if not wrap and not drawn:
        return env
    if isinstance(env, VectorEnv):
        what = f"wrap={wrap}" if wrap else f"{next(iter(drawn))}={next(iter(drawn.values()))}"
        raise ConfigError(f"{what} is for single envs, and the function makes a vector env. Wrap its envs yourself.")
    if hasattr(env, "possible_agents"):
        return WrappedAgents(env, wrap, drawn)
    inner, limit = (env.env, env.limit) if isinstance(env, Limited) else (env, 0)
    return WrappedEnv(inner, wrap, limit, drawn)


class _Wrapped:
    """What both kinds share. Other attributes are those of the env."""

    def __init__(self, env: Any, wrap: Wrap, drawn: Mapping[str, Distribution]) -> None:
        self.env, self.wrap, self.drawn = env, wrap, drawn
        self._rng = np.random.default_rng()
        self._target = getattr(env, "unwrapped", env)
        for name, rule in drawn.items():
            if not hasattr(self._target, name):
                raise ConfigError(
                    f"{name}={rule} is set before each episode, but {type(self._target).__name__} has no attribute "
                    f"{name!r}. Give the name of one of its attributes."
                )

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # before __init__, as when it is unpickled
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def unwrapped(self) -> Any:
        """The env inside all wrappers."""
        return self._target

    def _begin(self, seed: int | None) -> None:
        if seed is not None:
            self._rng = np.random.default_rng([_STREAM, seed])
        for name, rule in self.drawn.items():
            setattr(self._target, name, draw(rule, self._rng))

    def _sticks(self) -> bool:
        return self.wrap.sticky > 0 and bool(self._rng.random() < self.wrap.sticky)

    def _shaped(self, reward: float) -> float:
        scaled = reward * self.wrap.reward_scale
        clip = self.wrap.reward_clip
        return min(max(scaled, -clip), clip) if clip else scaled

    def _noisy(self, obs: Any, space: spaces.Box) -> Array:
        frame: Array = np.asarray(obs)
        if not self.wrap.obs_noise:
            return np.array(frame)  # a copy: envs may write the next observation into the same array
        noisy = np.clip(frame + self._rng.normal(0.0, self.wrap.obs_noise, frame.shape), space.low, space.high)
        if frame.dtype.kind in "iu":
            noisy = np.floor(noisy + 0.5)
        rounded: Array = noisy.astype(frame.dtype)
        return rounded


class WrappedEnv(_Wrapped):
    """One env with the API of `gymnasium.Env`. `limit` is the env's own time limit, in env steps; 0: none."""

    def __init__(self, env: Any, wrap: Wrap, limit: int = 0, drawn: Mapping[str, Distribution] | None = None) -> None:
        super().__init__(env, wrap, drawn or {})
        limits = [steps for steps in (limit, wrap.time_limit * wrap.skip) if steps]
        self._limit = min(limits, default=0)
        self._space = env.observation_space
        self.observation_space = wrap.space(env.observation_space, type(self._target).__name__)
        self.action_space = env.action_space
        self._frames: list[Array] = []
        self._ticks, self._last_action = 0, None
        self._total = 0.0

    @property
    def unshaped_return(self) -> float:
        """Of the episode, without scale and clip; the env's own, if it clips, too. The runner reports it."""
        return float(getattr(self.env, "unshaped_return", self._total))

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Starts an episode. All places of the stack hold its first frame."""
        self._begin(seed)
        obs, info = self.env.reset(seed=seed, options=options)
        self._ticks, self._last_action, self._total = 0, None, 0.0
        self._frames = []
        return self._observe(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        """Up to `skip` env steps."""
        total: Any = 0.0
        for _ in range(self.wrap.skip):
            if self._ticks == 0 or not self._sticks():
                self._last_action = action
            obs, reward, terminated, truncated, info = self.env.step(self._last_action)
            self._ticks += 1
            total = total + reward
            terminated, truncated = is_set(terminated, "terminated"), is_set(truncated, "truncated")
            truncated = truncated or (self._ticks == self._limit and not terminated)
            if terminated or truncated:
                break
        self._total += total
        return self._observe(obs), self._shaped(total), terminated, truncated, info

    def _observe(self, obs: Any) -> Any:
        if not self.wrap.changes_obs:
            return obs
        frame = self._noisy(obs, self._space)
        if self.wrap.stack == 1:
            return frame
        self._frames = [*self._frames[1:], frame] if self._frames else [frame] * self.wrap.stack
        return self.wrap.stacked(self._frames)


class WrappedAgents(_Wrapped):
    """One env with the API of `pettingzoo.ParallelEnv`. Each agent has its own frames, noise and sticky actions."""

    def __init__(self, env: Any, wrap: Wrap, drawn: Mapping[str, Distribution]) -> None:
        super().__init__(env, wrap, drawn)
        if (wrap.skip > 1 or wrap.sticky > 0) and hasattr(env, "_step_dead"):
            raise ConfigError(
                f"wrap={wrap}: skip and sticky do not fit a game in which agents take turns: an action would be "
                "repeated in another agent's turn. Leave them out."
            )
        name = type(self._target).__name__
        self._spaces = {agent: env.observation_space(agent) for agent in env.possible_agents}
        self._stacked_spaces = {agent: wrap.space(space, name) for agent, space in self._spaces.items()}
        self._frames: dict[Any, list[Array]] = {}
        self._last_actions: dict[Any, Any] = {}
        self._steps = 0
        self.unshaped_returns: dict[Any, float] = {}  # of the episode so far, without scale and clip

    def observation_space(self, agent: Any) -> Any:
        """Of one agent."""
        return self._stacked_spaces[agent]

    def action_space(self, agent: Any) -> Any:
        """Of one agent."""
        return self.env.action_space(agent)

    @property
    def agents(self) -> list[Any]:
        """Those in the game."""
        return list(self.env.agents)

    def reset(self, seed: int | None = None, options: Info | None = None) -> tuple[dict[Any, Any], dict[Any, Info]]:
        """Starts an episode of all agents."""
        self._begin(seed)
        obs, infos = self.env.reset(seed=seed, options=options)
        self._steps, self._frames, self._last_actions, self.unshaped_returns = 0, {}, {}, {}
        return self._observe(obs), infos

    def step(self, actions: dict[Any, Any]) -> tuple[dict[Any, Any], ...]:
        """Up to `skip` env steps, while any agent is in the game."""
        obs: dict[Any, Any] = {}
        rewards: dict[Any, Any] = {}
        terminations: dict[Any, bool] = {}
        truncations: dict[Any, bool] = {}
        infos: dict[Any, Info] = {}
        for _ in range(self.wrap.skip):
            applied = {agent: actions[agent] for agent in self.env.agents if agent in actions}
            for agent in applied:
                if agent in self._last_actions and self._sticks():
                    applied[agent] = self._last_actions[agent]
            self._last_actions |= applied
            new_obs, new_rewards, ends, cuts, new_infos = self.env.step(applied)
            obs |= new_obs
            infos |= new_infos
            for agent, reward in new_rewards.items():
                rewards[agent] = rewards.get(agent, 0.0) + reward
            ends = {agent: is_set(end, f"terminated of agent {agent!r}") for agent, end in ends.items()}
            cuts = {agent: is_set(cut, f"truncated of agent {agent!r}") for agent, cut in cuts.items()}
            terminations |= {agent: terminations.get(agent, False) or end for agent, end in ends.items()}
            truncations |= {agent: truncations.get(agent, False) or cut for agent, cut in cuts.items()}
            left = [agent for agent in self.env.agents if not (ends.get(agent) or cuts.get(agent))]
            if not left or any(agent not in actions for agent in left):  # one that has just joined has no action yet
                break
        self._steps += 1
        if self._steps == self.wrap.time_limit:
            truncations |= {agent: True for agent in self.env.agents if not terminations.get(agent)}
        for agent, reward in rewards.items():
            self.unshaped_returns[agent] = self.unshaped_returns.get(agent, 0.0) + reward
        shaped = {agent: self._shaped(reward) for agent, reward in rewards.items()}
        seen = self._observe(obs)
        for agent in rewards:
            if agent not in self.env.agents or terminations.get(agent) or truncations.get(agent):
                self._frames.pop(agent, None)  # one that joins again starts anew
                self._last_actions.pop(agent, None)
        return seen, shaped, terminations, truncations, infos

    def _observe(self, obs: dict[Any, Any]) -> dict[Any, Any]:
        if not self.wrap.changes_obs:
            return obs
        seen = {}
        for agent, own in obs.items():
            frame = self._noisy(own, self._spaces[agent])
            before = self._frames.get(agent)
            frames = [*before[1:], frame] if before else [frame] * self.wrap.stack
            self._frames[agent] = frames
            seen[agent] = self.wrap.stacked(frames) if self.wrap.stack > 1 else frame
        return seen


def draw(rule: Distribution, rng: np.random.Generator) -> Any:
    """A value of a distribution."""
    values = rule.values
    if rule.kind == "choice":
        return values[int(rng.integers(len(values)))]
    if rule.kind == "integers":
        return int(rng.integers(int(values[0]), int(values[1]), endpoint=True))
    if rule.kind == "loguniform":
        return float(np.exp(rng.uniform(np.log(values[0]), np.log(values[1]))))
    return float(rng.uniform(*values) if rule.kind == "uniform" else rng.normal(*values))
