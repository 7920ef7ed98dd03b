"""Slots: each steps one env and writes its results into a Block. The env is a `gymnasium.Env`, one with the API of
`pettingzoo.ParallelEnv`, or a vector env.

A slot does autoreset, the statistics of episodes and the checks of what the env returns. `Runner` steps many slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.errors import BadOutput
from shoal.layout import AgentSpaces, Array, Layout, kind_of
from shoal.vector.block import Block

Info = dict[str, Any]
InfoRows = list[tuple[int, bool, Info]]  # (row, whether it belongs to the episode that ended, info)
Creator = Callable[[], Any]

SAME_STEP, NEXT_STEP, DISABLED = "same_step", "next_step", "disabled"
OWN_INFOS = (
    "alive",
    "env_id",
    "final_info",
    "final_obs",
)  # infos of a vector env that are not passed on as infos of its rows


@dataclass(frozen=True)
class Limited:
    """An env with a time limit that the runner enforces; 0: none."""

    env: Any
    limit: int


class Writer:
    """Checks the shape and dtype of one agent's observations and writes them into its rows."""

    def __init__(self, layout: Layout, views: list[Array]) -> None:
        self.layout, self.views = layout, views
        self.is_plain = layout.is_one_array
        self.dtype, self.shape, self.view = layout.leaves[0].dtype, layout.leaves[0].shape, views[0]
        self.leaves = [(leaf, view, leaf.path) for leaf, view in zip(layout.leaves, views)]

    def write(self, env: int, obs: Any) -> None:
        """Writes an observation into the row of env."""
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


def checked(value: Any, leaf: Any, rows: tuple[int, ...] = ()) -> Array:
    """The value as an array with the leaf's shape and a dtype that converts to the leaf's, or BadOutput.

    Of a batch, `rows` is its first dimension.
    """
    if value is None:
        raise BadOutput(f"obs{leaf.name} is None")
    array = np.asarray(value)
    if array.shape != (*rows, *leaf.shape):
        of = f"{(*rows, *leaf.shape)} for all envs" if rows else leaf.shape
        raise BadOutput(f"obs{leaf.name} has shape {array.shape}, its space has {of}")
    if array.dtype == leaf.dtype or np.can_cast(array.dtype, leaf.dtype, "safe"):
        return array
    if array.dtype.kind in "iu" and leaf.dtype.kind in "iu":  # a number that does not fit would be another number
        if not np.array_equal(array.astype(leaf.dtype), array):
            reach = f"{array.dtype} in {array.min()} .. {array.max()}"
            raise BadOutput(f"obs{leaf.name} is of {reach}, which its space's {leaf.dtype} cannot hold")
    elif not np.can_cast(array.dtype, leaf.dtype, "same_kind"):
        raise BadOutput(f"obs{leaf.name} has dtype {array.dtype}, its space has {leaf.dtype}")
    return array


def is_number(value: Any) -> bool:
    """Whether a value can be a reward: a real number, or an array or tensor of shape ()."""
    if isinstance(value, (int, float, np.integer, np.floating, np.bool_)):
        return True
    return getattr(value, "shape", None) == () and not isinstance(value, np.generic)


def is_set(value: Any, name: str) -> bool:
    """A flag that an env returned, `terminated` or `truncated`, as a bool; BadOutput if it is neither 0 nor 1."""
    if value is True or value is False:
        return value
    try:
        if value == 0 or value == 1:  # also numpy's bools, and arrays of one element
            return bool(value)
    except (TypeError, ValueError):  # arrays of several elements, and others that have no truth
        pass
    raise BadOutput(f"{name} is {brief(value)}, not a bool")


def reset_values(result: Any) -> tuple[Any, Any]:
    """The observation and the info that `reset` returned; BadOutput if it returned something else."""
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise BadOutput(f"reset returned {brief(result)}, not two values: obs, info")
    return result[0], result[1]


def wrong_step(result: Any) -> str:
    """What is wrong with what `step` returned, which is not five values."""
    five = "five values: obs, reward, terminated, truncated, info"
    if isinstance(result, (tuple, list)) and len(result) == 4:
        return f"step returned four values, as in the old gym: obs, reward, done, info. It must return {five}"
    return f"step returned {brief(result)}, not {five}"


def several(reward: Any) -> str:
    """What to do about a reward for each objective or player; empty for others."""
    if not isinstance(reward, (list, tuple, np.ndarray)) or len(np.shape(reward)) != 1:
        return ""
    return ". Wrap the env so that it returns one, or, if these are players, give it PettingZoo's ParallelEnv API"


def brief(value: Any) -> str:
    """A value as short text for a message."""
    text = repr(value)
    return text if len(text) < 80 else f"{text[:77]}..."


class Slot:
    """One env of a Runner. Subclasses have bind, reset and step; `envs` is the number of envs that it holds."""

    agent_spaces: AgentSpaces
    env: Any
    envs = 1


class SingleSlot(Slot):
    """One `gymnasium.Env`. `limit` replaces the TimeLimit wrapper and saves its call."""

    def __init__(self, env: Any, limit: int = 0) -> None:
        self.env, self.limit = env, limit
        self.agent_spaces = AgentSpaces.of_equal_agents(1, env.observation_space, env.action_space)

    def bind(self, block: Block, first: int, autoreset: str) -> None:
        """Sets the rows of the block that this env writes to."""
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

    def reset(self, seed: int | None, options: Info | None, info_rows: InfoRows) -> None:
        """Starts an episode."""
        obs, info = reset_values(self.env.reset(seed=seed, options=options))
        self.obs.write(self.row, obs)
        self.tick, self.total = 0, 0.0
        self.alive[self.row], self.ended[self.row] = True, False
        if info or info is None:
            info_rows.append((self.row, False, info_dict(info)))

    def step(self, info_rows: InfoRows) -> None:
        """One transition. The runner has cleared the flags of the row."""
        row = self.row
        if self.ended[row]:  # NEXT_STEP: this step is the reset
            self.rewards[row] = 0.0
            self.reset(None, None, info_rows)
            return
        result = self.env_step(self.read_action())
        try:
            obs, reward, terminated, truncated, info = result
        except (TypeError, ValueError):
            raise BadOutput(wrong_step(result)) from None
        self.tick += 1
        if not is_number(reward):
            raise BadOutput(f"the reward is {brief(reward)}, not a number{several(reward)}")
        self.total += reward
        self.rewards[row] = reward
        terminated, truncated = is_set(terminated, "terminated"), is_set(truncated, "truncated")
        if not (terminated or truncated or self.tick == self.limit):
            self.obs.write(row, obs)
            if info or info is None:
                info_rows.append((row, False, info_dict(info)))
            return
        self.end(obs, terminated, info, self.tick, self.total, info_rows)

    def end(self, obs: Any, terminated: bool, info: Info, length: int, total: float, info_rows: InfoRows) -> None:
        """Records the end of an episode; with same-step autoreset, starts the next one."""
        row = self.row
        self.done[row] = True
        self.terminated[row], self.truncated[row] = terminated, not terminated
        # rewards may be scaled for the learner: the return is that of the env
        self.final_return[row], self.final_length[row] = getattr(self.env, "unshaped_return", total), length
        self.final_obs.write(row, obs)
        if self.autoreset == SAME_STEP:
            if info or info is None:
                info_rows.append((row, True, info_dict(info)))
            self.reset(None, None, info_rows)
        else:
            self.obs.write(row, obs)
            self.ended[row] = True
            if info or info is None:
                info_rows.append((row, False, info_dict(info)))


def declared_groups(env: Any) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """The groups of agents in an env's metadata, `metadata["groups"] = {"prey": ["agent_3"]}`, unchecked."""
    metadata = getattr(env, "metadata", None)
    declared = metadata.get("groups") if isinstance(metadata, dict) else None
    if not isinstance(declared, dict):
        return ()
    return tuple(
        (str(name), tuple(agents) if isinstance(agents, (list, tuple, range)) else (agents,))
        for name, agents in declared.items()
    )


class AgentsSlot(Slot):
    """One env with the API of `pettingzoo.ParallelEnv`: agents may die, join, or be fewer than possible_agents."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.names = tuple(env.possible_agents)
        self.index = {name: k for k, name in enumerate(self.names)}
        self.agent_spaces = AgentSpaces(
            self.names,
            tuple(env.observation_space(name) for name in self.names),
            tuple(env.action_space(name) for name in self.names),
            declared_groups(env),
        )

    def bind(self, block: Block, first: int, autoreset: str) -> None:
        """Sets the rows of the block that this env writes to."""
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

    def reset(self, seed: int | None, options: Info | None, info_rows: InfoRows) -> None:
        """Starts an episode."""
        obs, infos = reset_values(self.env.reset(seed=seed, options=options))
        count = len(self.names)
        self.ticks, self.totals = [0] * count, [0.0] * count
        self.arrays["alive"][self.rows] = False
        self.arrays["obs"][self.rows] = 0
        self.arrays["ended"][self.number] = False
        self._write_obs(self.env.agents, obs)
        self._add_infos(infos, None, info_rows)

    def _write_obs(self, names: Sequence[Any], obs: dict[Any, Any]) -> None:
        """Writes the observations of the agents that may act next, and marks them alive."""
        for name in names:
            k = self._index_of(name)
            if name not in obs:
                raise BadOutput(f"agent {name!r} is in env.agents, but has no observation")
            self.obs[k].write(self.number, obs[name])
            self.arrays["alive"][self.first + k] = True

    def _index_of(self, name: Any) -> int:
        if name not in self.index:
            raise BadOutput(f"agent {name!r} is not one of possible_agents ({len(self.names)}: {brief(self.names)})")
        return self.index[name]

    def _add_infos(self, infos: dict[Any, Info], final: Array | None, info_rows: InfoRows) -> None:
        """Adds infos to info_rows; `final`: which agents' infos belong to the episode that ended."""
        if infos is None or not isinstance(infos, dict):
            raise BadOutput(f"infos is {brief(infos)}, not a dict by agent")
        for name, info in infos.items():
            if info and name in self.index:
                k = self.index[name]
                info_rows.append((self.first + k, final is not None and bool(final[k]), info_dict(info)))

    def step(self, info_rows: InfoRows) -> None:
        """One transition of all agents. The runner has cleared the flags of the rows."""
        arrays, first = self.arrays, self.first
        if arrays["ended"][self.number]:
            arrays["rewards"][self.rows] = 0.0
            self.reset(None, None, info_rows)
            return
        alive = arrays["alive"]
        names = list(self.env.agents)
        actions = {name: self.readers[self._index_of(name)]() for name in names}
        acting = [
            name for name in names if alive[first + self.index[name]]
        ]  # some envs leave dead agents in their list
        result = self.env.step(actions)
        try:
            obs, rewards, terminations, truncations, infos = result
        except (TypeError, ValueError):
            raise BadOutput(wrong_step(result)) from None
        arrays["rewards"][self.rows] = 0.0
        arrays["obs"][self.rows] = 0
        alive[self.rows] = False
        for name in acting:
            k = self.index[name]
            row = first + k
            reward = rewards.get(name, 0.0)
            if not is_number(reward):
                raise BadOutput(f"the reward of agent {name!r} is {brief(reward)}, not a number")
            self.ticks[k] += 1
            self.totals[k] += reward
            arrays["rewards"][row] = reward
            terminated = is_set(terminations.get(name, False), f"terminated of agent {name!r}")
            truncated = is_set(truncations.get(name, False), f"truncated of agent {name!r}")
            if not (terminated or truncated):
                if name in self.env.agents:
                    continue
                truncated = True  # it left without a flag
            arrays["done"][row] = True
            arrays["terminated"][row], arrays["truncated"][row] = terminated, not terminated
            total = getattr(self.env, "unshaped_returns", {}).pop(name, self.totals[k])
            arrays["final_return"][row], arrays["final_length"][row] = total, self.ticks[k]
            self.ticks[k], self.totals[k] = 0, 0.0
            if name in obs:
                self.final_obs[k].write(self.number, obs[name])
            else:
                arrays["final_obs"][row] = 0
        left = [name for name in self.env.agents if not (terminations.get(name) or truncations.get(name))]
        if left:
            self._write_obs(left, obs)
            self._add_infos(infos, arrays["done"][self.rows] if self.autoreset == SAME_STEP else None, info_rows)
        elif self.autoreset == SAME_STEP:
            self._add_infos(infos, np.ones(len(self.names), np.bool_), info_rows)
            alive[self.rows] = arrays["done"][self.rows]  # should the env crash in this reset: they were in the game
            self.reset(None, None, info_rows)
        else:
            arrays["ended"][self.number] = True
            done = arrays["done"][self.rows]
            arrays["obs"][self.rows][done] = arrays["final_obs"][self.rows][done]
            alive[self.rows] = done
            self._add_infos(infos, None, info_rows)


class VectorSlot(Slot):
    """A vector env in one slot: one of Shoal's, or any `gymnasium.vector.VectorEnv` with SAME_STEP autoreset."""

    def __init__(self, vec: Any) -> None:
        self.vec = self.env = vec
        self.agents = getattr(vec, "agents_per_env", 1)
        self.envs = vec.num_envs
        if isinstance(getattr(vec, "agent_spaces", None), AgentSpaces):  # a VecEnv
            self.agent_spaces = vec.agent_spaces
        else:
            self.agent_spaces = AgentSpaces.of_equal_agents(
                self.agents, vec.single_observation_space, vec.single_action_space
            )
        if not self.agent_spaces.alike:
            raise BadOutput("a vector env inside a vector env must have agents with equal spaces")

    def bind(self, block: Block, first: int, autoreset: str) -> None:
        """Sets the rows of the block that these envs write to."""
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
            view[:] = checked(part, leaf, view.shape[:1])

    def reset(self, seed: Any, options: Info | None, info_rows: InfoRows) -> None:
        """Starts episodes in all envs, or in those of `options["reset_mask"]`. `seed` is a list."""
        seeds = None if seed is None else [int(s) for s in seed]
        mask = (options or {}).get("reset_mask")
        is_reset = np.ones(len(self.ticks), np.bool_) if mask is None else np.repeat(mask, self.agents)
        obs, infos = self.vec.reset(seed=seeds, options=options)
        self._write(self.obs, obs)
        self.ticks[is_reset], self.totals[is_reset] = 0, 0.0
        self.arrays["alive"][self.rows] = infos.get("alive", True)
        self._add_infos(infos, info_rows)

    def _add_infos(self, infos: Info, info_rows: InfoRows) -> None:
        """Adds the infos that are not in the block to info_rows."""
        rest = {key: value for key, value in infos.items() if key.removeprefix("_") not in OWN_INFOS}
        for row in range(len(self.ticks)) if rest else ():
            if info := row_of(rest, row):
                info_rows.append((self.first + row, False, info))

    def step(self, info_rows: InfoRows) -> None:
        """One transition of all envs."""
        was_alive = self.arrays["alive"][self.rows].copy()
        obs, rewards, terminated, truncated, infos = self.vec.step(self.actions)
        arrays, rows = self.arrays, self.rows
        done = terminated | truncated
        self.ticks += was_alive
        self._write(self.obs, obs)
        arrays["rewards"][rows], arrays["terminated"][rows] = rewards, terminated
        arrays["truncated"][rows], arrays["done"][rows] = truncated & ~terminated, done
        self.totals += arrays["rewards"][rows]
        arrays["alive"][rows] = infos.get("alive", True)
        if done.any():
            self._write_final(infos, done)
            arrays["final_return"][rows][done], arrays["final_length"][rows][done] = self.totals[done], self.ticks[done]
            started = done | (arrays["alive"][rows] & ~was_alive)
            self.ticks[started], self.totals[started] = 0, 0.0
        for row in np.flatnonzero(done):
            if info := row_of(infos.get("final_info", {}), int(row)):
                info_rows.append((self.first + int(row), True, info))
        self._add_infos(infos, info_rows)

    def _write_final(self, infos: Info, done: Array) -> None:
        final = infos["final_obs"]
        if isinstance(final, np.ndarray) and final.dtype == object:  # as in Gymnasium: one object per env
            for row in np.flatnonzero(done):
                self.layout.write(self.final_obs, int(row), final[row])
        else:
            self._write(self.final_obs, final)


def row_of(infos: Info, row: int) -> Info:
    """One row of infos in Gymnasium's vector format."""
    info: Info = {}
    for key, value in infos.items():
        if key.startswith("_") or not np.asarray(infos.get(f"_{key}", True)).reshape(-1).any():
            continue
        mask = infos.get(f"_{key}")
        if mask is None or mask[row]:
            entry = row_of(value, row) if isinstance(value, dict) else value[row]
            info[key] = bool(entry) if isinstance(entry, np.bool_) else entry  # Gymnasium merges bool, not np.bool_
    return info


def info_dict(info: Any) -> Info:
    """The info that an env returned; BadOutput if it is not a dict."""
    if not isinstance(info, dict):
        raise BadOutput(f"info is {brief(info)}, not a dict")
    return info


def action_reader(space: Any, block: Block, agent: int, env: int) -> Callable[[], Any]:
    """A function that returns an agent's action in the form of its space: a number, a copied array, a dict, a tuple."""
    layout = block.agent_spaces.action_layouts[agent]
    parts = [view[env : env + 1] for view in block.leaf_views("actions", agent)]
    if kind_of(space) == "Discrete":
        return lambda view=parts[0]: view[0]  # type: ignore[misc]
    if layout.is_one_array:
        return lambda view=parts[0]: view[0, ...].copy()  # type: ignore[misc]  # an array even of shape ()

    def build(space: Any, views: Any) -> Any:
        if kind_of(space) == "Dict":
            return {key: build(part, views) for key, part in space.spaces.items()}
        if kind_of(space) == "Tuple":
            return tuple(build(part, views) for part in space.spaces)
        view = next(views)
        return view[0] if kind_of(space) == "Discrete" else view[0, ...].copy()

    return lambda: build(space, iter(parts))


def batch_action_reader(block: Block, lo: int, hi: int) -> Callable[[], Any]:
    """A function that returns the actions of the single-agent envs [lo, hi), in order."""
    space, layout = block.agent_spaces.action_spaces[0], block.agent_spaces.action_layouts[0]
    if layout.is_one_array and (kind_of(space) == "Discrete" or layout.leaves[0].shape):
        view = block.leaf_views("actions")[0][lo:hi]
        return (lambda: list(view)) if kind_of(space) == "Discrete" else (lambda: view.copy())
    readers = [action_reader(space, block, 0, env) for env in range(lo, hi)]
    return lambda: [read() for read in readers]


def is_vector_env(env: Any) -> bool:
    """Whether an env is derived from a class VectorEnv: that of Gymnasium, or another with its attributes."""
    return any(kind.__name__ == "VectorEnv" for kind in type(env).__mro__)


def slot_for(env: Any) -> Any:
    """The slot of an env. A slot is returned unchanged: shoal.puffer makes its own."""
    if isinstance(env, Slot):
        return env
    if isinstance(env, Limited):
        return SingleSlot(env.env, env.limit)
    if is_vector_env(env):
        return VectorSlot(env)
    if hasattr(env, "possible_agents"):
        return AgentsSlot(env)
    if hasattr(env, "step") and hasattr(env, "observation_space") and hasattr(env, "action_space"):
        return SingleSlot(env)
    raise BadOutput(
        f"the creator returned {brief(env)}, which is not a Gymnasium env, a PettingZoo env or a vector env"
    )
