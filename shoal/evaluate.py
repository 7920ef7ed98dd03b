"""Plays whole episodes with a player and scores them; records them on video.

**Which episodes count.** The first 100 episodes that end on many envs would mostly be short ones. So each env has a
fixed quota: exactly its first episodes up to that number count, however long they take.

**Held-out seeds.** The seeds of training's envs are below HELD_OUT (`shoal.train.env_seed`); evaluation with seed s
starts its envs from s + HELD_OUT. (2^30, not more: some envs take only seeds of 31 or 32 bits.) With as many envs as
episodes each episode has a different seed; an env that plays several episodes continues its random stream.

**Greedy and sampled.** Always taking the most likely action is not always better: in a maze a policy that samples its
actions leaves a corner in which the greedy one stays for ever. `play_modes` scores both.

Knows vector envs; knows nothing of torch. The trainer makes the players.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from shoal import video
from shoal.errors import ConfigError, ShoalError
from shoal.spec import Array
from shoal.stats import ci95, mean
from shoal.vector.base import VecEnv

HELD_OUT = 1 << 30
MAX_STEPS = 100_000  # of an episode
LEAST_EPISODES = 10  # of each mode, however little time there is
PYTHON_STATS = ("is_success", "success", "score")  # keys that Python envs commonly have in the last info of an episode

Episode = tuple[float, int, dict[str, float]]  # return, length, stats


class Player(Protocol):
    """Chooses actions: a trained policy, a script, or at random. A row is one agent of one env."""

    def reset(self, num_rows: int) -> None:
        """Clears the memory of all rows; `num_rows` rows start."""

    def act(self, obs: Any, infos: dict[str, Any]) -> Any:
        """The actions of all rows, in the form that `vec.step` takes. The next step may overwrite `obs`."""

    def observe(self, done: Array) -> None:
        """Clears the memory of rows (a (num_rows,) mask) that start an episode or are out of the game."""


class RandomPlayer:
    """Uniform random actions within the action masks: the score that a policy has to beat."""

    def __init__(self, action_space: spaces.Space[Any], seed: int = 0) -> None:
        self.space, self.rng = action_space, np.random.default_rng(seed)
        self.space.seed(seed)
        self.starts, self.sizes = _choices(action_space)

    def reset(self, num_rows: int) -> None:
        """No memory to clear."""

    def act(self, obs: Any, infos: dict[str, Any]) -> Any:
        """Any allowed action, with equal probability."""
        mask = infos.get("action_mask")
        if not isinstance(mask, np.ndarray) or not self.sizes:
            return self.space.sample()
        parts = np.split(self.rng.random(mask.shape) * (mask != 0), np.cumsum(self.sizes)[:-1], axis=1)
        choices = [start + part.argmax(1) for start, part in zip(self.starts, parts)]
        return choices[0] if isinstance(self.space, spaces.MultiDiscrete) else np.stack(choices, 1)

    def observe(self, done: Array) -> None:
        """No memory to clear."""


def _choices(batched: spaces.Space[Any]) -> tuple[list[int], list[int]]:
    """The first choice and the number of choices of each part of an action, in the order of the action mask.

    Empty where actions are not of choices alone.
    """
    if isinstance(batched, spaces.MultiDiscrete) and batched.nvec.ndim == 1:  # Discrete, for every row
        return [int(batched.start[0])], [int(batched.nvec.max())]
    if isinstance(batched, spaces.Box) and np.issubdtype(batched.dtype, np.integer) and len(batched.shape) == 2:
        low, high = batched.low[0], batched.high[0]  # Gymnasium's batch of MultiDiscrete
        return low.tolist(), (high - low + 1).tolist()
    return [], []


class ScriptedPlayer:
    """A function of the observations."""

    def __init__(self, choose: Callable[[Any], Any]) -> None:
        self.choose = choose

    def reset(self, num_rows: int) -> None:
        """No memory to clear."""

    def act(self, obs: Any, infos: dict[str, Any]) -> Any:
        """The result of the function."""
        return self.choose(obs)

    def observe(self, done: Array) -> None:
        """No memory to clear."""


@dataclass(frozen=True)
class AgentScore:
    """Returns and lengths of episodes of one agent, or their means over the agents of a group.

    The length of an agent ends where it is out of the game.
    """

    returns: tuple[float, ...]
    lengths: tuple[float, ...]

    def facts(self) -> dict[str, Any]:
        """Plain numbers for JSON. The interval of a single episode is unknown: null."""
        interval = ci95(self.returns)
        return {
            "return": mean(self.returns),
            "ci95": interval if math.isfinite(interval) else None,
            "min": min(self.returns),
            "max": max(self.returns),
            "length": mean(self.lengths),
        }


@dataclass(frozen=True)
class Score:
    """Returns, lengths and stats of episodes, in the order of the envs that played them.

    With several agents the return of an episode is the mean over its agents, as in `drain_stats` (over the player's
    `judged` agents only, if it has opponents), and its length is that of the game. An episode that was stopped at
    `max_steps` counts with its return so far and has no stats.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    stats: dict[str, tuple[float, ...]] = field(default_factory=dict)
    cut: int = 0  # episodes that were stopped at max_steps
    agents: dict[str, AgentScore] = field(default_factory=dict)  # by name; empty with one agent. Opponents included
    groups: dict[str, AgentScore] = field(default_factory=dict)  # those of the player, by name

    @property
    def mean(self) -> float:
        """Mean return."""
        return mean(self.returns)

    @property
    def ci95(self) -> float:
        """Half the width of the 95 % confidence interval of the mean return (see `ci95`)."""
        return ci95(self.returns)

    @property
    def min(self) -> float:
        """The worst return."""
        return min(self.returns)

    @property
    def max(self) -> float:
        """The best return."""
        return max(self.returns)

    @property
    def length(self) -> float:
        """Mean length."""
        return mean(self.lengths)

    def by_name(self, most: int) -> dict[str, float]:
        """The mean returns of the groups, and of the agents if they are at most `most`."""
        agents = self.agents if len(self.agents) <= most else {}
        return {name: mean(score.returns) for name, score in {**self.groups, **agents}.items()}

    def facts(self) -> dict[str, Any]:
        """Plain numbers for JSON. The interval of a single episode is unknown: null."""
        interval = self.ci95 if math.isfinite(self.ci95) else None
        facts: dict[str, Any] = {"return": self.mean, "ci95": interval, "min": self.min, "max": self.max}
        facts |= {"episodes": len(self.returns), "length": self.length}
        for kind, scores in (("groups", self.groups), ("agents", self.agents)):
            facts |= {kind: {name: score.facts() for name, score in scores.items()}} if scores else {}
        return facts

    def describe(self) -> str:
        """`476.2 ± 8.1 (95 % confidence, 100 episodes), min 103.0, max 500.0`."""
        count = len(self.returns)
        if count == 1:
            return f"{show(self.mean)} (1 episode)"
        text = f"{show(self.mean, self.ci95)} ± {show(self.ci95)} (95 % confidence, {count} episodes)"
        return f"{text}, min {show(self.min)}, max {show(self.max)}"


@dataclass(frozen=True)
class Evaluation:
    """The scores of several ways to choose actions, by name. `chosen` names the one that represents the run."""

    scores: dict[str, Score]
    chosen: str

    @property
    def score(self) -> Score:
        """The score of the chosen mode."""
        return self.scores[self.chosen]

    def facts(self) -> dict[str, Any]:
        """Plain numbers for JSON: those of the chosen mode, and those of every mode under `modes`."""
        return {
            **self.score.facts(),
            "mode": self.chosen,
            "modes": {name: s.facts() for name, s in self.scores.items()},
        }

    def describe(self) -> str:
        """One sentence for each mode, the chosen one first."""
        order = sorted(self.scores, key=lambda name: name != self.chosen)
        return "; ".join(f"{name} {self.scores[name].describe()}" for name in order)

    def better(self) -> str | None:
        """The mode with the higher mean return, if the difference is significant: the intervals do not overlap."""
        ranked = sorted(self.scores, key=lambda name: self.scores[name].mean)
        if len(ranked) < 2 or min(len(score.returns) for score in self.scores.values()) < 2:
            return None
        low, high = self.scores[ranked[-2]], self.scores[ranked[-1]]
        returns = (part.returns for score in (low, high) for part in score.agents.values())
        largest = max((abs(value) for values in returns for value in values), default=0.0)
        if high.mean - low.mean < 1e-6 * largest:  # what one agent wins another loses: the rest is rounding
            return None
        return ranked[-1] if high.mean - high.ci95 > low.mean + low.ci95 else None


def show(value: float, interval: float | None = None) -> str:
    """A number as text: one decimal, more if it is small. A mean has those of its interval: `9.472` for `± 0.082`."""
    shown = interval or value
    if shown == 0 or not math.isfinite(shown):
        return f"{value:.1f}"
    digits = 1 - math.floor(math.log10(abs(shown)))
    return f"{value:,.{min(max(digits, 1), 6)}f}"


def play(
    make: Callable[..., VecEnv] | VecEnv,
    player: Player,
    episodes: int,
    seed: int = 0,
    *,
    num_envs: int = 128,
    max_steps: int = MAX_STEPS,
    progress: Callable[[int], None] | None = None,
) -> Score:
    """Plays episodes on held-out seeds and returns their score.

    Args:
        make: called as `make(num_envs=..., seed=...)`, for example `functools.partial(shoal.make, "pong")`. It may
            return another number of envs. They are closed at the end. Or existing envs (same-step autoreset), which
            are reset and not closed.
        player: chooses the actions.
        episodes: the number of episodes, spread evenly over the envs.
        seed: env i starts from `seed + HELD_OUT + i`.
        num_envs: the greatest `num_envs` that `make` is called with.
        max_steps: a longer episode is stopped there and counted in `Score.cut`.
        progress: called with the number of episodes that have ended.
    """
    players = {"": player}
    return play_modes(
        make, players, episodes, seed, chosen="", num_envs=num_envs, max_steps=max_steps, progress=progress
    ).score


def play_modes(
    make: Callable[..., VecEnv] | VecEnv,
    players: Mapping[str, Player],
    episodes: int,
    seed: int = 0,
    *,
    chosen: str,
    num_envs: int = 128,
    max_steps: int = MAX_STEPS,
    progress: Callable[[int], None] | None = None,
    budget_s: float | None = None,
) -> Evaluation:
    """Plays the same held-out seeds with each player, such as `greedy` and `sampled`, on the same envs.

    The arguments are those of `play`; `chosen` names the player whose score represents the run. With `budget_s`, all
    players together stop after about that many seconds: each env ends its current round of episodes, and each player
    has at least LEAST_EPISODES. Episodes that fit in the budget are the same as without one.
    """
    for name, value in (("episodes", episodes), ("num_envs", num_envs), ("max_steps", max_steps)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise ConfigError(f"{name}={value!r} must be an int of at least 1.")
    first = held_out(seed)
    vec = make if isinstance(make, VecEnv) else make(num_envs=min(episodes, num_envs), seed=first)
    began, scores = time.perf_counter(), {}
    try:
        for number, (name, player) in enumerate(players.items(), 1):
            until = math.inf if budget_s is None else began + budget_s * number / len(players)
            scores[name] = _play(vec, player, episodes, first, max_steps, progress, until)
    finally:
        if vec is not make:
            vec.close()
    return Evaluation(scores, chosen)


def held_out(seed: int) -> int:
    """The first seed of an evaluation."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**62:
        raise ConfigError(f"seed={seed!r} must be an int in 0 .. 2^62 - 1.")
    return int(seed) + HELD_OUT


def _play(
    vec: VecEnv,
    player: Player,
    episodes: int,
    seed: int,
    max_steps: int,
    progress: Callable[[int], None] | None,
    until: float = math.inf,
) -> Score:
    if vec.autoreset_mode != AutoresetMode.SAME_STEP:
        raise ConfigError("play() needs envs with autoreset='same_step', which is shoal.make's default.")
    envs, agents = vec.num_envs, vec.agents_per_env
    used = min(episodes, envs)
    judged = getattr(player, "judged", None) or slice(None)  # the returns of opponents do not count
    quota = np.array([episodes // used + (env < episodes % used) if env < used else 0 for env in range(envs)])
    played = np.zeros(envs, np.int64)
    totals, ticks = np.zeros(vec.num_rows), np.zeros(envs, np.int64)  # of the current episodes
    lives = np.zeros(vec.num_rows)  # rewards of the current life of each agent
    lasted = np.zeros(vec.num_rows, np.int64)  # steps of agents that are out of the current episode; 0: they are in it
    results: list[list[Episode]] = [[] for _ in range(envs)]
    cuts: list[tuple[int, int]] = []  # (env, number of its episode)
    by_agent: list[list[tuple[Array, Array]]] = [[] for _ in range(envs)]  # returns and lengths of an episode's agents
    obs, infos = vec.reset(seed=seed)
    alive = _alive(infos, vec.num_rows)
    player.reset(vec.num_rows)
    while (played < quota).any():
        obs, rewards, terminated, truncated, infos = vec.step(player.act(obs, infos))
        totals += rewards
        ticks += 1
        done = terminated | truncated
        if agents > 1:
            totals += _unshaped(infos, done, lives, rewards)
            np.copyto(lasted, np.repeat(ticks, agents), where=done)
        over = (done | ~alive).reshape(envs, agents).all(1)
        cut = ~over & (ticks >= max_steps) & (played < quota)
        ended = over | cut
        for env in np.flatnonzero(ended & (played < quota)).tolist():
            rows = slice(env * agents, (env + 1) * agents)
            total, length = float(totals[rows][judged].mean()), int(ticks[env])
            results[env].append((total, length, {}) if cut[env] else _final(vec, infos, env, total, length))
            if cut[env]:
                cuts.append((env, int(played[env])))
            if agents > 1:
                lengths = np.where(lasted[rows] > 0, lasted[rows], ticks[env])
                by_agent[env].append((totals[rows].copy(), lengths))
            played[env] += 1
            if progress:
                progress(int(played.sum()))
        ended_rows = np.repeat(ended, agents)
        totals[ended_rows], lives[ended_rows], lasted[ended_rows], ticks[ended] = 0.0, 0.0, 0, 0
        before, alive = alive, _alive(infos, vec.num_rows)
        player.observe(done | ~before | ~alive | ended_rows)  # ~before: an agent that joins late
        if (again := cut & (played < quota)).any():
            obs, infos = vec.reset(options={"reset_mask": again})
            alive = _alive(infos, vec.num_rows)
        if time.perf_counter() >= until:
            # the same number for every env: those that are ahead would add mostly short episodes
            rounds = max(int(played[:used].min()) + 1, -(-LEAST_EPISODES // used))
            quota, until = np.minimum(quota, rounds), math.inf
    episodes_played = [episode for by_env, count in zip(results, quota.tolist()) for episode in by_env[:count]]
    names = dict.fromkeys(name for _, _, stats in episodes_played for name in stats)
    return Score(
        tuple(total for total, _, _ in episodes_played),
        tuple(length for _, length, _ in episodes_played),
        {name: tuple(stats[name] for _, _, stats in episodes_played if name in stats) for name in names},
        sum(number < int(quota[env]) for env, number in cuts),
        *_agent_scores([pair for pairs in by_agent for pair in pairs], vec, getattr(player, "groups", None) or {}),
    )


def _agent_scores(
    episodes: list[tuple[Array, Array]], vec: VecEnv, groups: Mapping[str, Sequence[int]]
) -> tuple[dict[str, AgentScore], dict[str, AgentScore]]:
    """The scores of each agent and of each group. episodes: returns and lengths of the agents."""
    if not episodes:
        return {}, {}
    returns, lengths = (np.stack(parts) for parts in zip(*episodes))  # (episodes, agents)

    def score(agents: Sequence[int]) -> AgentScore:
        columns = list(agents)
        return AgentScore(tuple(returns[:, columns].mean(1).tolist()), tuple(lengths[:, columns].mean(1).tolist()))

    names = vec.agent_spaces.agents
    by_agent = {str(name): score([k]) for k, name in enumerate(names)}
    return by_agent, {name: score(agents) for name, agents in groups.items()}


def _alive(infos: dict[str, Any], num_rows: int) -> Array:
    """(num_rows,) the rows that may act, as a copy; all rows if infos do not say."""
    alive = infos.get("alive")
    return np.ones(num_rows, np.bool_) if alive is None else np.array(alive, np.bool_)


def _final(vec: VecEnv, infos: dict[str, Any], env: int, total: float, length: int) -> Episode:
    """(return, length, stats) of the episode that env has just ended.

    The env's own record of the episode is preferred, as it may scale rewards or skip frames.
    """
    final = infos.get("final_info", {})
    rows = range(env * vec.agents_per_env, (env + 1) * vec.agents_per_env)
    if vec.agents_per_env == 1:
        episode = final.get("episode", {})
        total = _value(episode, "r", rows, total)
        length = int(_value(episode, "l", rows, length))
    spec = vec.native_spec
    names = [stat.name for stat in spec.stats] if spec else PYTHON_STATS
    stats = {name: _value(final, name, rows, math.nan) for name in names}
    return total, length, {name: value for name, value in stats.items() if not math.isnan(value)}


def _unshaped(infos: dict[str, Any], done: Array, lives: Array, rewards: Array) -> Array:
    """(rows,) what the returns of agents that are done lack to be those of the env, whose rewards may be scaled.

    The env's are sums of float32: what differs by rounding alone stays as it is.
    """
    lives += rewards
    episode = infos.get("final_info", {}).get("episode", {})
    ends = done & episode["_r"] if "_r" in episode else np.zeros_like(done)
    lacking = np.zeros(len(lives))
    if ends.any():
        ends &= ~np.isclose(episode["r"], lives, rtol=1e-5, atol=1e-5)
        lacking[ends] = episode["r"][ends] - lives[ends]
    lives[done] = 0.0
    return lacking


def _value(info: Any, name: str, rows: range, default: float) -> float:
    """A number from vector infos: that of the last row that has one."""
    if not isinstance(info, dict) or name not in info or f"_{name}" not in info:
        return default
    values, mask = info[name], info[f"_{name}"]
    for row in reversed(rows):
        if mask[row]:
            value = values[row]
            return float(value) if isinstance(value, (bool, int, float, np.generic)) else default
    return default


# ---- video ----


def can_draw(vec: VecEnv) -> bool:
    """Whether `record` can film these envs: they have `env_draw` or the render mode `rgb_array`."""
    if vec.native_spec is not None:
        return vec.native_spec.has_draw
    return "rgb_array" in (_metadata(vec).get("render_modes") or ())


def why_not_drawn(vec: VecEnv) -> str:
    """What envs that `can_draw` refuses lack, and how to add it."""
    if vec.native_spec is not None:
        return "its header has no env_draw (docs/add-an-env.md)."
    return "its class needs metadata = {'render_modes': ['rgb_array']}, a param render_mode and a method render."


def record(
    make: Callable[..., VecEnv] | VecEnv,
    player: Player,
    path: str | Path,
    episodes: int = 1,
    seed: int = 0,
    fps: float | None = None,
    width: int = 480,
    *,
    max_steps: int = 5000,
) -> Path:
    """Writes a video of env 0, from its first frame to the last frame of its last episode, and returns its path.

    Args:
        make: called as `make(num_envs=1, seed=..., autoreset="disabled", render_mode="rgb_array")`, and the result is
            closed at the end. Or existing envs made with these options: with autoreset the last frame would be lost.
        player: chooses the actions.
        path: a .mp4 or .gif file; without a suffix the best format that can be written (`shoal.video.check`).
        episodes: the number of episodes, one after the other.
        seed: env 0 starts from `seed + HELD_OUT`, as in `play`.
        fps: frames per second; default: the env's own, else 30.
        width: width of the video in pixels, for native envs; Python envs choose their size.
        max_steps: a longer episode is stopped there.
    """
    for name, value in (("episodes", episodes), ("max_steps", max_steps)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise ConfigError(f"{name}={value!r} must be an int of at least 1.")
    path, first = video.check(path, 30.0 if fps is None else fps), held_out(seed)
    if isinstance(make, VecEnv):
        return _record(make, player, path, episodes, first, fps, width, max_steps)
    vec = make(num_envs=1, seed=first, autoreset="disabled", render_mode="rgb_array")
    try:
        return _record(vec, player, path, episodes, first, fps, width, max_steps)
    finally:
        vec.close()


def _record(
    vec: VecEnv, player: Player, path: Path, episodes: int, seed: int, fps: float | None, width: int, max_steps: int
) -> Path:
    if vec.autoreset_mode != AutoresetMode.DISABLED:
        raise ConfigError("record() needs envs with autoreset='disabled': with autoreset the last frame is lost.")
    if not can_draw(vec):
        raise ConfigError(f"this env cannot be filmed: {_cannot(vec)}.")
    rate = _rate(vec) if fps is None else fps
    return video.write(path, _frames(vec, player, episodes, seed, width, max_steps), rate)


def _frames(vec: Any, player: Player, episodes: int, seed: int, width: int, max_steps: int) -> Iterator[Array]:
    obs, infos = vec.reset(seed=seed)
    alive = _alive(infos, vec.num_rows)
    player.reset(vec.num_rows)
    yield _frame(vec, width)
    played, ticks = 0, 0
    while True:
        obs, _, terminated, truncated, infos = vec.step(player.act(obs, infos))
        yield _frame(vec, width)
        ticks += 1
        before, alive = alive, _alive(infos, vec.num_rows)
        ended = vec.ended.copy()
        if is_over := bool(ended[0]) or ticks >= max_steps:
            played += 1
            if played == episodes:
                return
            ended[0] = True
        player.observe(terminated | truncated | ~before | ~alive | np.repeat(ended, vec.agents_per_env))
        if ended.any():
            obs, infos = vec.reset(options={"reset_mask": ended})
            alive = _alive(infos, vec.num_rows)
        if is_over:
            ticks = 0
            yield _frame(vec, width)


def _frame(vec: Any, width: int) -> Array:
    if vec.native_spec is not None:
        pixels: Array = vec.frame(0, width)
        return pixels
    try:
        drawn = vec.call("render", env_ids=[0])[0]
    except ShoalError:
        raise
    except Exception as error:  # no OpenGL, no pygame, ...
        raise ConfigError(f"the env's render() raised {type(error).__name__}: {error}") from error
    if drawn is None:
        raise ConfigError("the env's render() returned None. Make the envs with render_mode='rgb_array'.")
    return drawn if isinstance(drawn, np.ndarray) else np.asarray(drawn)


def _metadata(vec: Any) -> dict[str, Any]:
    """The metadata of env 0."""
    metadata = vec.call("metadata", env_ids=[0])[0]
    return metadata if isinstance(metadata, dict) else {}


def _rate(vec: Any) -> float:
    rate = (vec.metadata if vec.native_spec is not None else _metadata(vec)).get("render_fps")
    return float(rate) if isinstance(rate, (int, float)) and 0.1 <= rate <= 1000.0 else 30.0


def _cannot(vec: VecEnv) -> str:
    return "it has no env_draw" if vec.native_spec is not None else "it has no render mode 'rgb_array'"
