"""Slots: one env each, written into a Block: a `gymnasium.Env`, an env with the API of `pettingzoo.ParallelEnv`, or a
whole vector env.

Here are autoreset, episode statistics and the checks of what an env returns. `Runner` steps many slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from shoal.errors import BadOutput
from shoal.spec import AgentSpaces, Array, Layout
from shoal.vector.base import VecEnv
from shoal.vector.block import Block

Info = dict[str, Any]
InfoRows = list[tuple[int, bool, Info]]  # (row, whether it is of the episode that ended, info)
Creator = Callable[[], Any]

SAME_STEP, NEXT_STEP, DISABLED = "same_step", "next_step", "disabled"
OWN_INFOS = ("alive", "env_id", "final_info", "final_obs")  # of a vector env: the block has them, or they are its own


@dataclass(frozen=True)
class Limited:
    """An env with a time limit that the runner keeps for it; 0 is none."""

    env: Any
    limit: int


class Writer:
    """Writes one agent's observations into its rows, after a look at their shape and dtype."""

    def __init__(self, layout: Layout, views: list[Array]) -> None:
        self.layout, self.views = layout, views
        self.is_plain = layout.is_one_array
        self.dtype, self.shape, self.view = layout.leaves[0].dtype, layout.leaves[0].shape, views[0]
        self.leaves = [(leaf, view, leaf.path) for leaf, view in zip(layout.leaves, views)]

    def write(self, env: int, obs: Any) -> None:
        """Puts an observation into the row of env."""
        if self.is_plain:
            if type(obs) is np.ndarray and obs.dtype == self.dtype and obs.shape == self.shape:
                self.view[env] = obs
            else:
                self.view[env] = checked(obs, self.layout.leaves[0])
            return
        for leaf, view, path in self.leaves:
            part = obs
            try:
                for key in path:
                    part = part[key]
            except (KeyError, IndexError, TypeError):
                raise BadOutput(f"obs{leaf.name} is missing; obs is {brief(obs)}") from None
            if type(part) is np.ndarray and part.dtype == leaf.dtype and part.shape == leaf.shape:
                view[env] = part
            else:
                view[env] = checked(part, leaf)


def checked(value: Any, leaf: Any) -> Array:
    """The value as an array of the leaf's shape and kind of number, or BadOutput."""
    if value is None:
        raise BadOutput(f"obs{leaf.name} is None")
    array = np.asarray(value)
    if array.shape != leaf.shape:
        raise BadOutput(f"obs{leaf.name} has shape {array.shape}, its space has {leaf.shape}")
    if array.dtype != leaf.dtype and not np.can_cast(array.dtype, leaf.dtype, "same_kind"):
        is_whole = array.dtype.kind in "iub" and leaf.dtype.kind in "iu"
        if not (is_whole and np.array_equal(array.astype(leaf.dtype), array)):
            raise BadOutput(f"obs{leaf.name} has dtype {array.dtype}, its space has {leaf.dtype}")
    return array


def is_number(value: Any) -> bool:
    """Whether an env may give it as a reward: a number, or an array of just one."""
    return isinstance(value, (int, float, np.number, np.bool_)) or (isinstance(value, np.ndarray) and value.shape == ())


def brief(value: Any) -> str:
    """A value for a message, shortened."""
    text = repr(value)
    return text if len(text) < 80 else f"{text[:77]}..."


class Slot:
    """One entry of a Runner: `agent_spaces`, `envs`, and bind, reset and step."""

    agent_spaces: AgentSpaces
    env: Any
    envs = 1


class SingleSlot(Slot):
    """One `gymnasium.Env`. A time limit given here spares the TimeLimit wrapper's call."""

    def __init__(self, env: Any, limit: int = 0) -> None:
        self.env, self.limit = env, limit
        self.agent_spaces = AgentSpaces.of_equal_agents(1, env.observation_space, env.action_space)

    def bind(self, block: Block, first: int, autoreset: str) -> None:
        """Says where in the block this env writes."""
        arrays = block.arrays
        self.row, self.autoreset = first, autoreset
        self.obs = Writer(block.agent_spaces.obs_layouts[0], block.leaf_views("obs"))
        self.final_obs = Writer(block.agent_spaces.obs_layouts[0], block.leaf_views("final_obs"))
        self.read_action = action_reader(block.agent_spaces.action_spaces[0], block, 0, first)
        self.rewards, self.terminated, self.truncated = arrays["rewards"], arrays["terminated"], arrays["truncated"]
        self.done, self.ended, self.alive = arrays["done"], arrays["ended"], arrays["alive"]
        self.final_return, self.final_length = arrays["final_return"], arrays["final_length"]
        self.env_step = self.env.step
        self.tick, self.total = 0, 0.0

    def reset(self, seed: int | None, options: Info | None, mail: InfoRows) -> None:
        """Starts an episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        self.obs.write(self.row, obs)
        self.tick, self.total = 0, 0.0
        self.alive[self.row], self.ended[self.row] = True, False
        if info or info is None:
            mail.append((self.row, False, info_dict(info)))

    def step(self, mail: InfoRows) -> None:
        """One transition. Flags of this row are false beforehand."""
        row = self.row
        if self.ended[row]:  # NEXT_STEP: this step is the reset
            self.rewards[row] = 0.0
            self.reset(None, None, mail)
            return
        obs, reward, terminated, truncated, info = self.env_step(self.read_action())
        self.tick += 1
        if not is_number(reward):
            raise BadOutput(f"the reward is {brief(reward)}, not a number")
        self.total += reward
        self.rewards[row] = reward
        if not (terminated or truncated or self.tick == self.limit):
            self.obs.write(row, obs)
            if info or info is None:
                mail.append((row, False, info_dict(info)))
            return
        self.end(obs, bool(terminated), info, self.tick, self.total, mail)

    def end(self, obs: Any, terminated: bool, info: Info, length: int, total: float, mail: InfoRows) -> None:
        """Records the end of an episode, and starts the next where autoreset says so."""
        row = self.row
        self.done[row] = True
        self.terminated[row], self.truncated[row] = terminated, not terminated
        self.final_return[row], self.final_length[row] = total, length
        self.final_obs.write(row, obs)
        if self.autoreset == SAME_STEP:
            if info or info is None:
                mail.append((row, True, info_dict(info)))
            self.reset(None, None, mail)
        else:
            self.obs.write(row, obs)
            self.ended[row] = True
            if info or info is None:
                mail.append((row, False, info_dict(info)))


class AgentsSlot(Slot):
    """One env with the API of `pettingzoo.ParallelEnv`: agents that die, join, or are fewer than there can be."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.names = tuple(env.possible_agents)
        self.index = {name: k for k, name in enumerate(self.names)}
        self.agent_spaces = AgentSpaces(
            self.names,
            tuple(env.observation_space(name) for name in self.names),
            tuple(env.action_space(name) for name in self.names),
        )

    def bind(self, block: Block, first: int, autoreset: str) -> None:
        """Says where in the block this env writes."""
        count = len(self.names)
        self.number, self.autoreset, self.first = first, autoreset, first * count
        self.rows = slice(self.first, self.first + count)
        self.arrays = block.arrays
        self.obs = [Writer(block.agent_spaces.obs_layouts[k], block.leaf_views("obs", k)) for k in range(count)]
        self.final_obs = [
            Writer(block.agent_spaces.obs_layouts[k], block.leaf_views("final_obs", k)) for k in range(count)
        ]
        self.readers = [action_reader(block.agent_spaces.action_spaces[k], block, k, first) for k in range(count)]
        self.ticks, self.totals = [0] * count, [0.0] * count

    def reset(self, seed: int | None, options: Info | None, mail: InfoRows) -> None:
        """Starts an episode."""
        obs, infos = self.env.reset(seed=seed, options=options)
        count = len(self.names)
        self.ticks, self.totals = [0] * count, [0.0] * count
        self.arrays["alive"][self.rows] = False
        self.arrays["obs"][self.rows] = 0
        self.arrays["ended"][self.number] = False
        self._show(self.env.agents, obs)
        self._mail(infos, None, mail)

    def _show(self, names: Sequence[Any], obs: dict[Any, Any]) -> None:
        """Writes the observations of the agents that may act next, and marks them alive."""
        for name in names:
            k = self._place(name)
            if name not in obs:
                raise BadOutput(f"agent {name!r} is in env.agents, but has no observation")
            self.obs[k].write(self.number, obs[name])
            self.arrays["alive"][self.first + k] = True

    def _place(self, name: Any) -> int:
        if name not in self.index:
            raise BadOutput(f"agent {name!r} is not one of possible_agents ({len(self.names)}: {brief(self.names)})")
        return self.index[name]

    def _mail(self, infos: dict[Any, Info], final: Array | None, mail: InfoRows) -> None:
        """Passes infos on; `final` says of which agents they are the last."""
        if infos is None or not isinstance(infos, dict):
            raise BadOutput(f"infos is {brief(infos)}, not a dict by agent")
        for name, info in infos.items():
            if info and name in self.index:
                k = self.index[name]
                mail.append((self.first + k, final is not None and bool(final[k]), info_dict(info)))

    def step(self, mail: InfoRows) -> None:
        """One transition of all agents. Flags of these rows are false beforehand."""
        arrays, first = self.arrays, self.first
        if arrays["ended"][self.number]:
            arrays["rewards"][self.rows] = 0.0
            self.reset(None, None, mail)
            return
        alive = arrays["alive"]
        names = list(self.env.agents)
        actions = {name: self.readers[self._place(name)]() for name in names}
        acting = [name for name in names if alive[first + self.index[name]]]  # some envs keep the dead in their list
        obs, rewards, terminations, truncations, infos = self.env.step(actions)
        arrays["rewards"][self.rows] = 0.0
        arrays["obs"][self.rows] = 0
        alive[self.rows] = False
        for name in acting:
            k = self.index[name]
            row = first + k
            reward = rewards.get(name, 0.0)
            self.ticks[k] += 1
            self.totals[k] += reward
            arrays["rewards"][row] = reward
            terminated, truncated = bool(terminations.get(name)), bool(truncations.get(name))
            if not (terminated or truncated):
                if name in self.env.agents:
                    continue
                truncated = True  # left without a word: its episode is cut short
            arrays["done"][row] = True
            arrays["terminated"][row], arrays["truncated"][row] = terminated, not terminated
            arrays["final_return"][row], arrays["final_length"][row] = self.totals[k], self.ticks[k]
            self.ticks[k], self.totals[k] = 0, 0.0
            if name in obs:
                self.final_obs[k].write(self.number, obs[name])
            else:
                arrays["final_obs"][row] = 0
        left = [name for name in self.env.agents if not (terminations.get(name) or truncations.get(name))]
        if left:
            self._show(left, obs)
            self._mail(infos, arrays["done"][self.rows] if self.autoreset == SAME_STEP else None, mail)
        elif self.autoreset == SAME_STEP:
            self._mail(infos, np.ones(len(self.names), np.bool_), mail)
            self.reset(None, None, mail)
        else:
            arrays["ended"][self.number] = True
            done = arrays["done"][self.rows]
            arrays["obs"][self.rows][done] = arrays["final_obs"][self.rows][done]
            alive[self.rows] = done
            self._mail(infos, None, mail)


class VectorSlot(Slot):
    """A whole vector env in one slot: Shoal's own, or any `gymnasium.vector.VectorEnv` with SAME_STEP autoreset."""

    def __init__(self, vec: Any) -> None:
        self.vec = self.env = vec
        self.agents = getattr(vec, "agents_per_env", 1)
        self.envs = vec.num_envs
        if isinstance(vec, VecEnv):
            self.agent_spaces = vec.agent_spaces
        else:
            self.agent_spaces = AgentSpaces.of_equal_agents(
                self.agents, vec.single_observation_space, vec.single_action_space
            )
        if not self.agent_spaces.alike:
            raise BadOutput("a vector env inside a vector env must have agents with equal spaces")

    def bind(self, block: Block, first: int, autoreset: str) -> None:
        """Says where in the block these envs write."""
        if autoreset != SAME_STEP or self.vec.metadata["autoreset_mode"].name != "SAME_STEP":
            raise BadOutput("a vector env inside a vector env must use same-step autoreset, and so must the outer one")
        self.first, self.last = first * self.agents, (first + self.envs) * self.agents
        self.rows, self.arrays = slice(self.first, self.last), block.arrays
        layout = block.agent_spaces.obs_layouts[0]
        self.layout = layout
        self.obs = layout.leaf_views(block.arrays["obs"][self.rows])
        self.final_obs = layout.leaf_views(block.arrays["final_obs"][self.rows])
        self.actions = block.row_views("actions", first, first + self.envs)
        count = self.last - self.first
        self.ticks, self.totals = np.zeros(count, np.int32), np.zeros(count)

    def _write(self, views: list[Array], obs: Any) -> None:
        for leaf, view in zip(self.layout.leaves, views):
            part = obs
            for key in leaf.path:
                part = part[key]
            view[:] = part

    def reset(self, seed: Any, options: Info | None, mail: InfoRows) -> None:
        """Starts episodes in all of them, or in those of `options["reset_mask"]`; seeds are a list."""
        seeds = None if seed is None else [int(s) for s in seed]
        mask = (options or {}).get("reset_mask")
        which = np.ones(len(self.ticks), np.bool_) if mask is None else np.repeat(mask, self.agents)
        obs, infos = self.vec.reset(seed=seeds, options=options)
        self._write(self.obs, obs)
        self.ticks[which], self.totals[which] = 0, 0.0
        self.arrays["alive"][self.rows] = infos.get("alive", True)
        self._mail(infos, mail)

    def _mail(self, infos: Info, mail: InfoRows) -> None:
        """Passes on what is not in the block already."""
        rest = {key: value for key, value in infos.items() if key.removeprefix("_") not in OWN_INFOS}
        for row in range(len(self.ticks)) if rest else ():
            if info := _row_of(rest, row):
                mail.append((self.first + row, False, info))

    def step(self, mail: InfoRows) -> None:
        """One transition of all of them."""
        was = self.arrays["alive"][self.rows].copy()
        obs, rewards, terminated, truncated, infos = self.vec.step(self.actions)
        arrays, rows = self.arrays, self.rows
        done = terminated | truncated
        self.ticks += was
        self._write(self.obs, obs)
        arrays["rewards"][rows], arrays["terminated"][rows] = rewards, terminated
        arrays["truncated"][rows], arrays["done"][rows] = truncated & ~terminated, done
        self.totals += arrays["rewards"][rows]
        arrays["alive"][rows] = infos.get("alive", True)
        if done.any():
            self._write_final(infos, done)
            arrays["final_return"][rows][done], arrays["final_length"][rows][done] = self.totals[done], self.ticks[done]
            fresh = done | (arrays["alive"][rows] & ~was)
            self.ticks[fresh], self.totals[fresh] = 0, 0.0
        for row in np.flatnonzero(done):
            if info := _row_of(infos.get("final_info", {}), int(row)):
                mail.append((self.first + int(row), True, info))
        self._mail(infos, mail)

    def _write_final(self, infos: Info, done: Array) -> None:
        final = infos["final_obs"]
        if isinstance(final, np.ndarray) and final.dtype == object:  # Gymnasium's own: one object per env
            for row in np.flatnonzero(done):
                self.layout.write(self.final_obs, int(row), final[row])
        else:
            self._write(self.final_obs, final)


def _row_of(infos: Info, row: int) -> Info:
    """One row of infos in Gymnasium's vector format."""
    found: Info = {}
    for key, value in infos.items():
        if key.startswith("_") or not np.asarray(infos.get(f"_{key}", True)).reshape(-1).any():
            continue
        mask = infos.get(f"_{key}")
        if mask is None or mask[row]:
            one = _row_of(value, row) if isinstance(value, dict) else value[row]
            found[key] = bool(one) if isinstance(one, np.bool_) else one  # Gymnasium makes arrays of bool only
    return found


def info_dict(info: Any) -> Info:
    """The info that an env returned; BadOutput where it is not a dict."""
    if not isinstance(info, dict):
        raise BadOutput(f"info is {brief(info)}, not a dict")
    return info


def action_reader(space: Any, block: Block, agent: int, env: int) -> Callable[[], Any]:
    """A function that gives an agent's action as its space has it: a number, a copy of an array, a dict, a tuple."""
    from gymnasium import spaces

    layout = block.agent_spaces.action_layouts[agent]
    parts = [view[env : env + 1] for view in block.leaf_views("actions", agent)]
    if isinstance(space, spaces.Discrete):
        return lambda view=parts[0]: view[0]  # type: ignore[misc]
    if layout.is_one_array:
        return lambda view=parts[0]: view[0, ...].copy()  # type: ignore[misc]  # an array even of shape ()

    def build(space: Any, waiting: Any) -> Any:
        if isinstance(space, spaces.Dict):
            return {key: build(part, waiting) for key, part in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(build(part, waiting) for part in space.spaces)
        view = next(waiting)
        return view[0] if isinstance(space, spaces.Discrete) else view[0, ...].copy()

    return lambda: build(space, iter(parts))


def batch_action_reader(block: Block, lo: int, hi: int) -> Callable[[], Any]:
    """A function that gives the actions of single-agent envs [lo, hi), one after the other."""
    from gymnasium import spaces

    space, layout = block.agent_spaces.action_spaces[0], block.agent_spaces.action_layouts[0]
    if layout.is_one_array and (isinstance(space, spaces.Discrete) or layout.leaves[0].shape):
        view = block.leaf_views("actions")[0][lo:hi]
        return (lambda: list(view)) if isinstance(space, spaces.Discrete) else (lambda: view.copy())
    readers = [action_reader(space, block, 0, env) for env in range(lo, hi)]
    return lambda: [read() for read in readers]


def slot_for(env: Any) -> Any:
    """Wraps what a creator returned, unless it is a slot already (shoal.puffer makes its own)."""
    if isinstance(env, Slot):
        return env
    if isinstance(env, Limited):
        return SingleSlot(env.env, env.limit)
    if isinstance(env, VectorEnv):
        return VectorSlot(env)
    if hasattr(env, "possible_agents"):
        return AgentsSlot(env)
    if hasattr(env, "step") and hasattr(env, "observation_space") and hasattr(env, "action_space"):
        return SingleSlot(env)
    raise BadOutput(f"the creator returned {brief(env)}: not a Gymnasium env, a PettingZoo env or a vector env")
