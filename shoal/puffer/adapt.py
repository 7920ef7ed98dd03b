"""Adapts envs written for PufferLib to Shoal's runner."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.errors import BadOutput
from shoal.integrations.adapt import adapt as adapt_other
from shoal.puffer.env import BUFFERS, Forwarding, PufferEnv, Wrapper, new_actions
from shoal.puffer.exceptions import APIUsageError
from shoal.spec import AgentSpaces
from shoal.vector.block import Block
from shoal.vector.slots import SAME_STEP, Info, InfoRows, VectorSlot, slot_for

ROW = "puffer_row"  # name of the agent of a row whose env resets itself: the parent process recognizes such envs by it
SELF_RESET = "puffer_infos"  # key of the list of infos that such an env returned


def slot(env: Any) -> Any:
    """The runner's slot for an env: a PufferEnv in either style, a vector, or anything that `shoal.make` accepts."""
    inner = env.unwrapped if isinstance(env, Wrapper) else env
    if hasattr(env, "as_slot"):
        if env is inner:
            return env.as_slot()
        if not isinstance(inner, PufferEnv):
            raise APIUsageError(f"{type(env).__name__} wraps a vector inside a vector. Wrap the outermost one.")
    if isinstance(inner, PufferEnv):
        if inner.is_in_place or inner.emulated:
            return PufferSlot(env)
        is_many = not hasattr(inner, "observation_space") and hasattr(inner, "single_observation_space")
        return slot_for(GuideAgents(env) if is_many else GuideEnv(env))
    if isinstance(env, Wrapper) and hasattr(env, "observation_space"):
        return slot_for(GuideEnv(env))
    if getattr(env, "has_game_infos", False):
        env = GameInfos(env)
    if is_old_gym(env) and not takes(env.reset, "seed", by_any=True):
        return slot_for(OldGymEnv(env))
    return slot_for(adapt_other(env))


def build(make: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Makes an env and its slot, in the process that steps it."""
    return slot(make(*args, **kwargs))


def takes(function: Any, name: str, by_any: bool = False) -> bool:
    """Whether a function or class has a parameter of that name; with `by_any`, `**kwargs` counts too."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return name in parameters or (by_any and any(part.kind is part.VAR_KEYWORD for part in parameters.values()))


# ---- guide style ----


class GuideEnv:
    """A guide-style env of one agent with the API of `gymnasium.Env`."""

    def __init__(self, env: Any) -> None:
        self.env = env
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(env, name, None), spaces.Space):
                raise APIUsageError(
                    f"{type(env).__name__} has no {name}: set it in __init__, after super().__init__(buf)."
                )
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.metadata: Info = getattr(env, "metadata", {})

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Starts an episode."""
        return split_reset(seeded_reset(self.env, seed), self.observation_space)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        """One transition."""
        result = self.env.step(action)
        if len(result) == 5:
            return result  # type: ignore[no-any-return]
        if len(result) != 4:
            raise BadOutput(f"step returned {len(result)} values, not (obs, reward, done, info)")
        obs, reward, done, info = result
        truncated = bool(done) and bool(info and info.get(TIME_LIMIT, False))
        return obs, reward, bool(done) and not truncated, truncated, info

    def render(self) -> Any:
        """The env's frame."""
        return self.env.render()

    def close(self) -> None:
        """Closes the env."""
        self.env.close()


def is_old_gym(env: Any) -> bool:
    """Whether an env is of the old gym package."""
    return any(kind.__module__.split(".")[0] == "gym" for kind in type(env).__mro__)


class OldGymEnv(GuideEnv):
    """An env of old gym whose reset takes no seed and returns only obs, for any version of gym."""

    def __init__(self, env: Any) -> None:
        adapted = adapt_other(env)  # has Gymnasium's spaces; raises if shimmy is not installed
        adapted = getattr(adapted, "env", adapted)
        self.env, self.metadata = env, getattr(env, "metadata", {})
        self.observation_space, self.action_space = adapted.observation_space, adapted.action_space

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Starts an episode."""
        if seed is not None and not hasattr(self.env, "seed"):  # gym 0.26 removed it
            import gym.utils.seeding

            self.env._np_random, _ = gym.utils.seeding.np_random(seed)
            seed = None
        return super().reset(seed=seed)


class GuideAgents:
    """A guide-style env of several agents, dicts by agent with `__all__`, with the API of `pettingzoo.ParallelEnv`."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.agents: list[Any] = []
        names = getattr(env, "possible_agents", None)
        if names is None:  # reset returns a dict by name
            obs, _ = split_reset(env.reset(), None)
            if not isinstance(obs, Mapping):
                raise APIUsageError(f"{type(env).__name__} has num_agents={env.num_agents}: reset must return a dict.")
            names = list(obs)
        self.possible_agents = list(names)

    def observation_space(self, agent: Any) -> Any:
        """Of one agent."""
        return _of_agent(self.env.single_observation_space, agent, self.possible_agents)

    def action_space(self, agent: Any) -> Any:
        """Of one agent."""
        return _of_agent(self.env.single_action_space, agent, self.possible_agents)

    def reset(self, seed: int | None = None, options: Info | None = None) -> tuple[dict[Any, Any], dict[Any, Info]]:
        """Starts an episode."""
        obs, infos = split_reset(seeded_reset(self.env, seed), None)
        self.agents = [name for name in self.possible_agents if name in obs]
        return obs, infos

    def step(self, actions: dict[Any, Any]) -> tuple[dict[Any, Any], ...]:
        """One transition of all agents. `__all__` ends the game for all of them."""
        result = self.env.step(actions)
        if len(result) == 5:
            obs, rewards, terminated, truncated, infos = result
            ends = {name: end_of(name, terminated, truncated) for name in self.agents}
        elif len(result) == 4:
            obs, rewards, dones, infos = result
            ends = {name: end_of_done(name, self.agents, dones, infos or {}) for name in self.agents}
        else:
            raise BadOutput(f"step returned {len(result)} values, not (obs, rewards, dones, infos)")
        terminations = {name: end == TERMINATED for name, end in ends.items()}
        truncations = {name: end == TRUNCATED for name, end in ends.items()}
        self.agents = [name for name in self.agents if name in obs and not ends[name]]
        infos = {name: info for name, info in (infos or {}).items() if name in self.possible_agents}
        return obs, rewards, terminations, truncations, infos

    def render(self) -> Any:
        """The env's frame."""
        return self.env.render()

    def close(self) -> None:
        """Closes the env."""
        self.env.close()


TERMINATED, TRUNCATED = "terminated", "truncated"
EVERYONE = "__all__"
OF_THE_GAME = (EVERYONE, "__common__")  # keys of infos of the whole game; the second is RLlib's
TIME_LIMIT = "TimeLimit.truncated"


def end_of(name: Any, terminated: Mapping[Any, Any], truncated: Mapping[Any, Any]) -> str:
    """How an agent's episode ended; empty if it did not. Its own flags take precedence over those of the whole game."""
    for flags, end in ((terminated, TERMINATED), (truncated, TRUNCATED)):
        if flags.get(name):
            return end
    for flags, end in ((terminated, TERMINATED), (truncated, TRUNCATED)):
        if flags.get(EVERYONE):
            return end
    return ""


def end_of_done(name: Any, agents: Sequence[Any], dones: Mapping[Any, Any], infos: Mapping[Any, Any]) -> str:
    """How an agent's episode ended, for envs with one `done` flag; empty if it did not end.

    `TimeLimit.truncated` marks a time limit: in the agent's info or, if `__all__` ended the game, in an info of the
    whole game. An agent whose flag is set while another agent's is not has ended by itself.
    """
    is_whole_game = bool(dones.get(EVERYONE))
    if not (is_whole_game or dones.get(name)):
        return ""
    own = (infos.get(name) or {}).get(TIME_LIMIT)
    if own is not None:
        return TRUNCATED if own else TERMINATED
    by_itself = dones.get(name) and not all(dones.get(other) for other in agents)
    limits = [infos.get(TIME_LIMIT), *((infos.get(key) or {}).get(TIME_LIMIT) for key in OF_THE_GAME)]
    return TRUNCATED if is_whole_game and not by_itself and any(limits) else TERMINATED


def _of_agent(space: Any, agent: Any, agents: list[Any]) -> Any:
    by_agent = isinstance(space, spaces.Dict) and set(space.spaces) == set(agents)
    return space.spaces[agent] if by_agent else space


def seeded_reset(env: Any, seed: int | None) -> Any:
    """Resets an env whose reset may or may not take a seed."""
    if seed is None:
        return env.reset()
    inner = env.unwrapped if isinstance(env, Wrapper) else env
    if takes(env.reset, "seed", by_any=True) and takes(inner.reset, "seed", by_any=True):
        return env.reset(seed=seed)
    env.seed(seed)
    return env.reset()


def split_reset(result: Any, space: Any) -> tuple[Any, Info]:
    """(obs, info) of a reset that returns both, or only obs."""
    pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
    return result if pair and not isinstance(space, spaces.Tuple) else (result, {})


class PettingZooWrapper(Forwarding):
    """Wraps a PettingZoo parallel env. Attributes that it does not define are the wrapped env's."""

    has_game_infos = False  # whether infos are one dict for the whole game

    def reset(self, seed: int | None = None, options: Info | None = None) -> Any:
        """Starts a game, also of an env whose reset takes no options."""
        kwargs = {"options": options} if takes(self.env.reset, "options", by_any=True) else {}
        return self.env.reset(seed=seed, **kwargs)

    def step(self, actions: Any) -> Any:
        """One transition of all agents."""
        return self.env.step(actions)

    def __str__(self) -> str:
        return f"{type(self).__name__}<{self.env}>"


class GameInfos(PettingZooWrapper):
    """Assigns the infos of a parallel env that has one dict for the whole game to its first agent.

    A vector has infos by row, and a game has no row.
    """

    def reset(self, seed: int | None = None, options: Info | None = None) -> Any:
        """Starts a game."""
        obs, info = self.env.reset(seed, options)
        return obs, {self.env.possible_agents[0]: info}

    def step(self, actions: Any) -> Any:
        """One transition of all agents."""
        *rest, info = self.env.step(actions)
        return (*rest, {self.env.possible_agents[0]: info})


# ---- PufferLib 3 ----


class PufferSlot(VectorSlot):
    """An env in style (b) (see env.py): each of its agents is a row, which the env resets itself.

    With `make`, `bind` makes the env and passes the block's memory as `buf`. An existing env has its own buffers, which
    are copied into the block. There is no final_obs: the env has overwritten it.
    """

    def __init__(self, env: Any, make: Callable[[dict[str, Any]], Any] | None = None) -> None:
        self.env = self.vec = env
        self.make = make
        self.agents, self.envs = 1, int(env.num_agents)
        self.agent_spaces = AgentSpaces((ROW,), (env.single_observation_space,), (env.single_action_space,))

    def bind(self, block: Block, first: int, autoreset: str) -> None:
        """Sets the rows of the block that this env writes to, and makes the env if `make` was given."""
        if autoreset != SAME_STEP:
            raise BadOutput("a PufferEnv with in-place buffers resets itself: autoreset must be same_step")
        self.first, self.rows, self.arrays = first, slice(first, first + self.envs), block.arrays
        self.taken = block.row_views("actions", first, first + self.envs)
        self.given = new_actions(self.env.single_action_space, self.envs)
        names = zip(BUFFERS[1:], ("rewards", "terminated", "truncated", "alive"))
        self.buffers: dict[str, Any] = {buffer: block.arrays[array][self.rows] for buffer, array in names}
        self.buffers["observations"] = block.row_views("obs", first, first + self.envs)
        self.buffers["masks"][:] = True
        self.ticks, self.totals = np.zeros(self.envs, np.int32), np.zeros(self.envs)
        self.flags = np.zeros((2, self.envs), np.bool_)
        if self.make is not None:
            self.env = self.vec = self.make({**self.buffers, "actions": self.given})
            self._compare()

    def _compare(self) -> None:
        env, agent_spaces = self.env, self.agent_spaces
        if (env.num_agents, env.single_observation_space, env.single_action_space) != (
            self.envs,
            agent_spaces.observation_spaces[0],
            agent_spaces.action_spaces[0],
        ):
            raise APIUsageError("its spaces or num_agents differ from those of the first env. All envs must be equal.")

    def reset(self, seed: Any, options: Info | None, info_rows: InfoRows) -> None:
        """Starts episodes; the seed is that of the first row."""
        if options and "reset_mask" in options:
            raise BadOutput("a PufferEnv with in-place buffers resets its agents itself: it cannot reset some of them")
        _, infos = self.env.reset() if seed is None else self.env.reset(seed=int(seed[0]))
        self._take([getattr(self.env, name) for name in BUFFERS])
        self.ticks[:], self.totals[:], self.flags[:] = 0, 0.0, False
        self._add_infos(infos, info_rows)

    def step(self, info_rows: InfoRows) -> None:
        """One transition of all its agents."""
        buffers, arrays, rows = self.buffers, self.arrays, self.rows
        buffers["terminals"][:], buffers["truncations"][:] = (
            self.flags
        )  # the runner cleared them, but the env expects its own
        was_alive = buffers["masks"].copy()
        self.given[:] = self.taken
        result = self.env.step(self.given)
        if not isinstance(result, tuple) or len(result) != 5:
            raise BadOutput("step did not return (observations, rewards, terminals, truncations, infos)")
        if isinstance(self.env, Wrapper):  # it may return other arrays than the env's buffers
            self._take([*result[:4], self.env.masks])
        else:
            self._take([getattr(self.env, name) for name in BUFFERS])
        self.flags[0], self.flags[1] = buffers["terminals"], buffers["truncations"]
        buffers["truncations"] &= ~buffers["terminals"]
        done = self.flags[0] | self.flags[1]
        arrays["done"][rows] = done
        self.ticks += was_alive
        self.totals += buffers["rewards"]
        if done.any():
            arrays["final_return"][rows][done], arrays["final_length"][rows][done] = self.totals[done], self.ticks[done]
            self.ticks[done], self.totals[done] = 0, 0.0
        self._add_infos(result[4], info_rows)

    def _take(self, values: list[Any]) -> None:
        """Copies the arrays that are not in the block."""
        for name, value in zip(BUFFERS, values):
            if value is not self.buffers[name]:
                self.buffers[name][:] = value

    def _add_infos(self, infos: Any, info_rows: InfoRows) -> None:
        if isinstance(infos, dict):
            infos = [infos] if infos else []
        if not isinstance(infos, list):
            raise BadOutput(f"infos is a {type(infos).__name__}, not a list of dicts")
        if infos:
            info_rows.append((self.first, False, {SELF_RESET: infos}))
