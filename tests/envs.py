"""Small Python envs for the tests, each with one trait. All can be pickled, and need no more than Gymnasium."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces


class CounterEnv(gymnasium.Env):
    """Counts its steps. obs: (step, last action, a number drawn at reset); ends after a drawn number of steps."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, longest: int = 12, render_mode: str | None = None) -> None:
        self.longest, self.render_mode = longest, render_mode
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(4)
        self.name, self.count, self.seeds, self.episodes = "counter", 0, [], 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.episodes += 1
        self.count, self.options = 0, options
        self.length = int(self.np_random.integers(1, self.longest + 1))
        self.drawn = float(self.np_random.random())
        return np.array([0, -1, self.drawn], np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        over = self.count >= self.length
        obs = np.array([self.count, action, self.drawn], np.float32)
        return obs, 0.25 * float(action) + self.drawn, over and self.length % 2 == 0, over and self.length % 2 == 1, {}

    def render(self) -> Any:
        return np.full((2, 2, 3), self.count, np.uint8)

    def scaled(self, factor: int, plus: int = 0) -> int:
        return self.count * factor + plus


class DictEnv(gymnasium.Env):
    """Nested spaces of many dtypes, in observations and in actions. Keeps the actions that it was given."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "image": spaces.Box(0, 255, (3, 2), np.uint8),
                "pose": spaces.Tuple(
                    (
                        spaces.Box(-1, 1, (2,), np.float32),
                        spaces.Box(-9, 9, (), np.float64),
                        spaces.Discrete(7, start=3),
                    )
                ),
                "half": spaces.Box(-1, 1, (3,), np.float16),
                "switches": spaces.MultiBinary((2, 2)),
                "cards": spaces.MultiDiscrete([3, 5]),
                "big": spaces.Box(-(2**62), 2**62, (1,), np.int64),
            }
        )
        self.action_space = spaces.Dict(
            {
                "gear": spaces.Discrete(5, start=-2),
                "wheel": spaces.Box(-1, 1, (2,), np.float32),
                "lights": spaces.MultiBinary(3),
                "arm": spaces.Tuple((spaces.MultiDiscrete([4, 2]), spaces.Box(0, 9, (1,), np.int16))),
            }
        )
        self.given: list[Any] = []

    def _obs(self) -> Any:
        drawn = self.np_random.random(12)
        whole = (drawn * 256).astype(np.uint8)
        return {
            "image": whole[:6].reshape(3, 2),
            "pose": (drawn[:2].astype(np.float32), np.array(drawn[2] * 9), np.int64(3 + whole[3] % 7)),
            "half": drawn[4:7].astype(np.float16),
            "switches": (whole[4:8] % 2).astype(np.int8).reshape(2, 2),
            "cards": whole[8:10].astype(np.int64) % [3, 5],
            "big": np.array([2**62 - int(whole[10])]),
        }

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.given = [*self.given[-9:], action]
        self.count += 1
        reward = float(action["gear"]) + float(action["wheel"].sum()) + float(action["arm"][0][0])
        return self._obs(), reward, self.count == 9, False, {}


class ImageEnv(gymnasium.Env):
    """An 84 x 84 x 3 picture of bytes."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (84, 84, 3), np.uint8)
        self.action_space = spaces.Discrete(6)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        self.image = self.np_random.integers(0, 256, (84, 84, 3), np.uint8)
        return self.image, {}

    def step(self, action: Any) -> Any:
        self.count += 1
        self.image = self.image + np.uint8(1 + action)  # wraps around
        return self.image, float(self.image[0, 0, 0]), self.count == 40, False, {}


class InfoEnv(CounterEnv):
    """CounterEnv with infos of every kind: numbers, arrays, strings, nested dicts, some of them only sometimes.

    `mixed`: one of them is now an int, now a float.
    """

    def __init__(self, mixed: bool = True, longest: int = 12) -> None:
        super().__init__(longest)
        self.mixed = mixed

    def _info(self) -> dict[str, Any]:
        count = self.count
        info: dict[str, Any] = {"count": count, "ratio": count / 4, "even": count % 2 == 0}
        info["position"] = np.array([count, self.drawn])
        if count % 3 == 1:
            info["word"] = f"step {count}"
            info["nested"] = {"depth": 1, "deeper": {"value": self.drawn, "list": [count]}}
        if count % 4 == 2:
            info["rare"] = np.float32(self.drawn)
            info["nested"] = {"other": np.int16(count)}
        return info if count % 5 else {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, _ = super().reset(seed=seed, options=options)
        return obs, {"begun": self.episodes, "mixed": 1 if self.mixed else 1.0, "nested": {"depth": 0}}

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        info = self._info()
        if self.count % 2:
            info["mixed"] = 0.5  # an int at reset
        return obs, reward, terminated, truncated, info


class DyingAgentsEnv:
    """The API of PettingZoo's ParallelEnv. Agents begin fewer than they can be, join later, and die one by one.

    obs of an agent: (its number, the step, its last action, a drawn number). The odd ones are truncated, the even ones
    terminated. `stranger_at`: in that step an agent joins that is none of possible_agents. `keep_dead`: the dead stay
    in `agents`, which PettingZoo forbids and some envs do.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "dying_v0"}
    render_mode = None

    def __init__(self, stranger_at: int = 0, keep_dead: bool = False) -> None:
        self.possible_agents = [f"fish_{k}" for k in range(4)]
        self.agents: list[str] = []
        self.stranger_at, self.keep_dead = stranger_at, keep_dead
        self.rng = np.random.default_rng(0)

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-(2**31), 2**31 - 2, (4,), np.int32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(5)

    def _obs(self, agent: str, action: int) -> Any:
        number = self.possible_agents.index(agent) if agent in self.possible_agents else 99
        return np.array([number, self.tick, action, self.rng.integers(1, 1000)], np.int32)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.tick = 0
        self.births = dict(zip(self.possible_agents, self.rng.integers(0, 4, 4).tolist()))
        self.births[self.possible_agents[int(self.rng.integers(4))]] = 0
        self.deaths = {name: born + int(self.rng.integers(1, 9)) for name, born in self.births.items()}
        self.agents = [name for name in self.possible_agents if self.births[name] == 0]
        self.dead: set[str] = set()
        return {name: self._obs(name, -1) for name in self.agents}, {name: {"born": 0} for name in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        self.tick += 1
        acting = [name for name in self.agents if name not in self.dead]
        assert set(acting) <= set(actions)
        ends = [name for name in acting if self.tick >= self.deaths[name]]
        joins = [name for name in self.possible_agents if self.births[name] == self.tick]
        if len(ends) == len(acting):  # the game is over: nobody joins any more
            joins = []
        obs = {name: self._obs(name, int(actions[name])) for name in acting}
        obs |= {name: self._obs(name, -1) for name in joins}
        rewards = {name: float(actions[name]) + 0.5 for name in acting}
        is_odd = {name: self.possible_agents.index(name) % 2 == 1 for name in acting}
        terminations = {name: name in ends and not is_odd[name] for name in acting}
        truncations = {name: name in ends and is_odd[name] for name in acting}
        infos: dict[str, Any] = {name: {"last": self.tick} if name in ends else {} for name in acting}
        if self.keep_dead:
            terminations |= dict.fromkeys(self.dead, True)
            self.dead |= set(ends)
            self.agents = [] if self.dead == set(self.agents) and not joins else self.agents + joins
        else:
            self.agents = [name for name in self.agents if name not in ends] + joins
        if self.stranger_at and self.tick == self.stranger_at:
            self.agents = [*self.agents, "shark"]
            obs["shark"] = self._obs("shark", 0)
        return obs, rewards, terminations, truncations, infos

    def render(self) -> None:
        return None

    def close(self) -> None:
        self.agents = []


class MixedAgentsEnv:
    """Two agents with different spaces: a speaker who sees a goal and says a word, a listener who hears and moves."""

    metadata: ClassVar[dict[str, Any]] = {"name": "mixed_v0"}
    render_mode = None

    def __init__(self) -> None:
        self.possible_agents = ["speaker", "listener"]
        self.agents: list[str] = []
        self.rng = np.random.default_rng(0)

    def observation_space(self, agent: str) -> spaces.Space:
        if agent == "speaker":
            return spaces.Discrete(3, start=1)
        return spaces.Dict({"word": spaces.Discrete(4), "place": spaces.Box(-100, 100, (2,), np.float64)})

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(4) if agent == "speaker" else spaces.Box(-1, 1, (2,), np.float32)

    def _obs(self) -> dict[str, Any]:
        return {"speaker": self.goal, "listener": {"word": self.word, "place": self.place}}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.goal, self.word, self.place = int(self.rng.integers(1, 4)), 0, np.zeros(2)
        self.tick, self.length = 0, int(self.rng.integers(3, 9))
        return self._obs(), {name: {} for name in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        self.tick += 1
        self.word = int(actions["speaker"])
        self.place = np.clip(self.place + actions["listener"], -100, 100)
        rewards = {"speaker": -1.0 * self.goal, "listener": float(self.place.sum())}
        over = dict.fromkeys(self.agents, self.tick == self.length)
        if self.tick == self.length:
            self.agents = []
        return self._obs(), rewards, over, dict.fromkeys(over, False), {name: {} for name in over}

    def close(self) -> None:
        self.agents = []


class TurnsEnv:
    """The API of PettingZoo's AECEnv. Three players in turn; each turn pays the one who moved and fines the next.

    A player dies when it has moved as often as drawn, or (by action 3) the next player is killed at once, out of turn.
    `dead_first`: dead agents take their last step before anyone else, as PettingZoo advises; otherwise when it is
    their turn.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "turns_v0", "is_parallelizable": False}
    render_mode = None

    def __init__(self, dead_first: bool = True) -> None:
        self.dead_first = dead_first
        self.possible_agents = ["north", "east", "south"]
        self.agents: list[str] = []
        self.rng = np.random.default_rng(0)

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Dict({"board": spaces.Box(-1, 10000, (4,), np.int64), "action_mask": spaces.MultiBinary(4)})

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(4)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos: dict[str, Any] = {name: {} for name in self.agents}
        self.lives = {name: int(self.rng.integers(1, 6)) for name in self.agents}
        self.moves = dict.fromkeys(self.agents, 0)
        self.tick, self.agent_selection = 0, self.agents[int(self.rng.integers(3))]
        self._after: str | None = None

    def observe(self, agent: str) -> Any:
        board = [self.tick, *(self.moves[name] for name in self.possible_agents)]
        return {"board": np.array(board), "action_mask": np.full(4, agent == self.agent_selection, np.int8)}

    def last(self) -> Any:
        agent = self.agent_selection
        flags = self.terminations[agent], self.truncations[agent]
        return self.observe(agent), self._cumulative_rewards[agent], *flags, self.infos[agent]

    def _next(self, agent: str) -> str:
        at = self.agents.index(agent)
        return self.agents[(at + 1) % len(self.agents)]

    def _is_dead(self, agent: str) -> bool:
        return self.terminations[agent] or self.truncations[agent]

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self._is_dead(agent):
            self._step_dead(action)
            return
        assert action is not None
        self.tick += 1
        self._cumulative_rewards[agent] = 0.0
        follower = next(name for name in self._from(self._next(agent)) if not self._is_dead(name))
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.rewards[agent] += 1.0 + float(action)
        self.rewards[follower] -= 0.25
        self.moves[agent] += 1
        self.infos = {name: {} for name in self.agents}
        if self.moves[agent] >= self.lives[agent]:
            self.truncations[agent] = True
            self.infos[agent] = {"moved": self.moves[agent]}
        if action == 3 and follower != agent:
            self.terminations[follower] = True
        for name, reward in self.rewards.items():
            self._cumulative_rewards[name] += reward
        self.agent_selection = self._next(agent)
        if self.dead_first and any(map(self._is_dead, self.agents)):
            living = [name for name in self._from(self._next(agent)) if not self._is_dead(name)]
            self._after = living[0] if living else None
            self.agent_selection = next(filter(self._is_dead, self.agents))

    def _from(self, agent: str) -> list[str]:
        at = self.agents.index(agent)
        return self.agents[at:] + self.agents[:at]

    def _step_dead(self, action: Any) -> None:
        assert action is None, "a dead agent can only step with None"
        agent = self.agent_selection
        after = self._next(agent)
        self.agents.remove(agent)
        for table in (self.terminations, self.truncations, self.rewards, self._cumulative_rewards, self.infos):
            del table[agent]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        if not self.agents:
            return
        dead = list(filter(self._is_dead, self.agents))
        if self.dead_first:
            self.agent_selection = dead[0] if dead else (self._after or after)
        else:
            self.agent_selection = after

    def render(self) -> None:
        return None

    def close(self) -> None:
        self.agents = []


class Masked(gymnasium.Env):
    """Only one of four actions is allowed at a time. `some` envs give no mask: they allow everything."""

    observation_space, action_space = spaces.Box(0, 4, (1,), np.float32), spaces.Discrete(4)

    def __init__(self, some=False):
        self.some = some

    def _info(self):
        mask = np.zeros(4, np.int8)
        mask[self.allowed] = 1
        return {} if self.some and self.index % 2 else {"action_mask": mask}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.index = getattr(self, "index", seed or 0)
        self.allowed, self.steps = int(self.np_random.integers(4)), 0
        return np.array([self.allowed], np.float32), self._info()

    def step(self, action):
        is_allowed = action == self.allowed or (self.some and self.index % 2)
        self.allowed, self.steps = int(self.np_random.integers(4)), self.steps + 1
        return np.array([self.allowed], np.float32), float(is_allowed), self.steps == 5, False, self._info()


class Counted(gymnasium.Env):
    """Counts the envs that are open in this process."""

    observation_space, action_space = spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(2)
    now, most = 0, 0

    def __init__(self):
        Counted.now += 1
        Counted.most = max(Counted.most, Counted.now)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.steps == 3, False, {}

    def close(self):
        Counted.now -= 1


class UnlikeAgentsEnv:
    """A parallel env with two agents of different spaces; ends after 3 steps. obs: the step; reward: the action."""

    possible_agents = ("big", "small")

    def observation_space(self, agent: str) -> spaces.Box:
        return spaces.Box(0, 9, (4 if agent == "big" else 2,), np.float32)

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(5 if agent == "big" else 2)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.agents, self.steps = list(self.possible_agents), 0
        return self._obs(), {name: {} for name in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        self.steps += 1
        over, names = self.steps == 3, self.agents
        self.agents = [] if over else names
        flags = dict.fromkeys(names, False)
        return self._obs(), {name: float(actions[name]) for name in names}, dict.fromkeys(names, over), flags, {}

    def _obs(self) -> dict[str, Any]:
        return {name: np.full(self.observation_space(name).shape, self.steps, np.float32) for name in ("big", "small")}

    def close(self) -> None:
        pass
