"""Plays a match: every player against every other, in all seats equally often.

**Seats.** A side is an agent, or a group of agents where the env has groups of equal size. On an env with two sides,
half of the games of a pair are played with the first player on side 0 and half on side 1. With more sides, one of the
two plays one side, on each side equally often, and the other one plays all other sides; then they change roles.

**Which games count.** All of them, each once: every env plays a fixed number of games to the end, so that short games
are not preferred (shoal/evaluate.py). The seeds of each seating depend on the match's seed and on who sits where alone.

**Who wins.** The side with the higher return; with more than two sides, the one side against the best of the others. A
difference up to the margin is a draw.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal import evaluate, registry, runs
from shoal.algos.roles import Role, assign_roles
from shoal.cores import available_cores
from shoal.entry import make
from shoal.errors import ConfigError, EnvCrashed
from shoal.league.payoff import DRAW, LOSS, WIN
from shoal.league.seating import find_sides
from shoal.league.table import CrossTable
from shoal.match.contestants import RANDOM, Field, check_robot, find_all
from shoal.match.device import play_on_device
from shoal.native.cuda import gpu_backend_available, require_gpu
from shoal.player import PolicyPlayer
from shoal.seeds import stream_seed
from shoal.spec import Array
from shoal.train import seats
from shoal.train.envs import pays_for_processes
from shoal.vector.base import VecEnv

NATIVE_ENVS, PYTHON_ENVS = 4096, 16  # the most envs at a time
SEED_BITS = 29  # evaluation adds 2^30, and some Python envs take seeds of 31 bits only
LEAST_SAME = 10  # games of one seating that are all the same are worth a note from here on


@dataclass(frozen=True)
class Match:
    """The results of a match.

    Attributes:
        table: results and ratings of the players.
        env: its name.
        options: its keyword arguments.
        games: of each pair of players.
        seed: of the match.
        margin: difference of returns up to which a game is a draw.
        greedy: whether runs took their most probable actions.
        cut: games that were stopped at the step limit of `shoal.evaluate`; they count with the returns so far.
        notes: what the user should know about the results.
        seconds: how long it took.
    """

    table: CrossTable
    env: str
    options: dict[str, Any]
    games: int
    seed: int
    margin: float
    greedy: bool
    cut: int = 0
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        from shoal.train.options import encode, unsaved

        skipped = unsaved(self.options)
        options = {name: encode(value) for name, value in self.options.items() if name not in skipped}
        names = ("env", "games", "seed", "margin", "greedy", "cut", "seconds")
        about = {name: getattr(self, name) for name in names}
        return {**about, "params": options, "notes": list(self.notes), **self.table.facts()}


def play_match(
    players: Sequence[Any],
    *,
    env: str = "",
    env_options: Mapping[str, Any] | None = None,
    games: int = 10_000,
    seed: int = 0,
    greedy: bool = False,
    margin: float | None = None,
    device: str = "auto",
    num_envs: int = 0,
    runs_folder: str | Path = runs.ROOT,
    progress: Callable[[int, int], None] | None = None,
) -> Match:
    """Plays every player against every other.

    Args:
        players: two or more: runs (a folder, an id, the name of an env, `last`, RUN@best, RUN@last, RUN@STEP),
            folders of checkpoints, scripted robots of the env, Python agents (`mine:Agent`, a class or an object with
            `act(obs, mask)`), and `random`.
        env: the env; default: that of the first run.
        env_options: env params that override those of the first run.
        games: games of each pair, rounded up so that all seats are played equally often.
        seed: the match's seed. The same seed gives the same games.
        greedy: runs take their most probable actions. By default they sample, as opponents in training do.
        margin: a difference of returns up to this is a draw; default: `--league.margin` of the first run or env.
        device: where native envs and networks are: cpu, cuda, or auto: a GPU if there is one and the env is native.
        num_envs: envs at a time; 0: up to 4096 native or 16 Python envs.
        runs_folder: the folder of all runs.
        progress: called with the number of games that have ended, and of all.
    """
    _check(players, games, seed, margin, device, num_envs)
    began = time.perf_counter()
    chosen = find_all(
        players, env, dict(env_options or {}), greedy=greedy, margin=margin, root=Path(runs_folder), seed=seed
    )
    is_native = registry.is_native(chosen.env)
    if device == "cuda" and not is_native:
        raise ConfigError(f"device='cuda' is for native envs, and {chosen.env} is a Python env. Use device='cpu'.")
    if device == "auto":
        device = "cuda" if is_native and torch.cuda.is_available() and gpu_backend_available() else "cpu"
    with contextlib.closing(_make_one(chosen)) as one:
        sides = [tuple(agents) for agents in find_sides(one).tolist()]
        _check_seats(chosen, one, sides)
    seatings = _seatings(len(players), len(sides))
    per_pair = len(seatings) // (len(players) * (len(players) - 1) // 2)
    per_seating = -(-games // per_pair)
    limit = num_envs or (NATIVE_ENVS if is_native else PYTHON_ENVS)
    rounds = -(-per_seating // limit)
    count = -(-per_seating // rounds)  # every env plays as many games as any other, or one less
    table = _Games(
        chosen, sides, per_seating, seed, greedy, progress and _Counter(progress, per_seating * len(seatings))
    )
    with contextlib.closing(_make(chosen, count, device)) as vec:
        for seating in seatings:
            table.play(vec, seating)
    names = tuple(contestant.name for contestant in chosen.contestants)
    robots = [k for k, contestant in enumerate(chosen.contestants) if contestant.kind != "run"]
    anchor = next((k for k in robots if chosen.contestants[k].name == RANDOM), robots[0] if robots else 0)
    about = tuple(contestant.facts() for contestant in chosen.contestants)
    return Match(
        CrossTable(names, table.cells, len(sides), anchor, about),
        chosen.env,
        chosen.options,
        per_seating * per_pair,
        seed,
        chosen.margin,
        greedy,
        table.cut,
        (*chosen.notes, *table.notes),
        time.perf_counter() - began,
    )


def _check(players: Sequence[Any], games: Any, seed: Any, margin: float | None, device: str, num_envs: int) -> None:
    if isinstance(players, str) or len(players) < 2:
        given = 1 if isinstance(players, str) else len(players)
        raise ConfigError(f"a match needs at least two players; {given} given. Try 'shoal match last random'.")
    if isinstance(games, bool) or not isinstance(games, (int, np.integer)) or games < 1:
        raise ConfigError(f"games={games!r} must be an int of at least 1.")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**62:
        raise ConfigError(f"seed={seed!r} must be an int in 0 .. 2^62 - 1.")
    if margin is not None and not 0.0 <= margin < float("inf"):
        raise ConfigError(f"margin={margin} must be a finite number of at least 0.")
    if num_envs < 0:
        raise ConfigError(f"num_envs={num_envs} must be at least 1, or 0 for the default.")
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device={device!r} must be auto, cpu or cuda.")
    if device == "cuda":
        require_gpu()


# ---- envs ----


def _make_one(chosen: Field) -> VecEnv:
    """One env, to look at. A constructor that refuses the options raises ConfigError."""
    try:
        return make(chosen.env, 1, **{**chosen.options, "backend": "serial"})
    except (TypeError, EnvCrashed) as error:
        reason = str(error.__cause__ or error).strip().splitlines()[-1]
        raise ConfigError(f"{chosen.env} cannot be made with {chosen.options}: {reason}") from error


def _make(chosen: Field, count: int, device: str) -> VecEnv:
    if device == "cuda":
        return make(chosen.env, count, **chosen.options, backend="cuda")
    if registry.is_native(chosen.env) or pays_for_processes(chosen.env, chosen.options, count, available_cores()):
        return make(chosen.env, count, **chosen.options)
    return make(chosen.env, count, **chosen.options, backend="serial")


def _check_seats(chosen: Field, vec: VecEnv, sides: Sequence[tuple[int, ...]]) -> None:
    """Raises for an env with one side, and for a player that cannot play every seat."""
    if len(sides) < 2:
        raise ConfigError(
            f"{chosen.env} has one agent, so nobody plays against another. A match needs an env with two or more; "
            "'shoal eval' scores one run."
        )
    roles = assign_roles(vec, "shared")
    for contestant in chosen.contestants:
        if contestant.kind == "robot":
            check_robot(contestant.word, chosen.spec, vec.agents_per_env)
            continue
        for seat in range(vec.agents_per_env):
            contestant.actor(seat, _role_of(roles, seat))


def _role_of(roles: Sequence[Role], seat: int) -> Role:
    return next(role for role in roles if role.agents is None or seat in role.agents)


# ---- games ----


@dataclass(frozen=True)
class Seating:
    """One player on one side, another one on all other sides."""

    player: int
    opponent: int
    side: int  # of the player


def _seatings(players: int, sides: int) -> list[Seating]:
    """All seatings of all pairs. With two sides both orders are the same seatings."""
    pairs = list(combinations(range(players), 2))
    found = []
    for first, second in pairs:
        found += [Seating(first, second, side) for side in range(sides)]
        if sides > 2:
            found += [Seating(second, first, side) for side in range(sides)]
    return found


@dataclass
class _Counter:
    """Adds up the games of all seatings for a progress display."""

    show: Callable[[int, int], None]
    total: int
    before: int = 0

    def __call__(self, done: int) -> None:
        self.show(self.before + done, self.total)


@dataclass
class _Games:
    """Plays seatings and counts their results."""

    chosen: Field
    sides: Sequence[tuple[int, ...]]
    games: int  # of each seating
    seed: int
    greedy: bool
    progress: _Counter | None
    cells: dict[tuple[int, int], Array] = field(default_factory=dict)
    cut: int = 0
    same: list[str] = field(default_factory=list)  # seatings whose games are all the same

    @property
    def notes(self) -> list[str]:
        """What the user should know."""
        if not self.same:
            return []
        listed = ", ".join(self.same[:4]) + (f" and {len(self.same) - 4} more" if len(self.same) > 4 else "")
        return [
            f"All games of a seating have the same returns and length: {listed}. Nothing in them is random, so one "
            "game says as much as all, and their intervals are too narrow."
        ]

    def play(self, vec: VecEnv, seating: Seating) -> None:
        """Plays all games of a seating."""
        contestants = self.chosen.contestants
        by_agent = self._by_agent(seating)
        names = [contestants[k].name for k in by_agent.values()]
        seed = stream_seed(self.seed, "match", *names, bits=SEED_BITS)
        self._seat_robots(vec, by_agent)
        player = self._player(vec, by_agent, seed)
        returns, lengths, cut = self._returns(vec, player, seed)
        self.cut += cut
        outcomes = judge(returns, self.sides, seating.side, self.chosen.margin)
        pair = seating.player, seating.opponent
        cell = self.cells.setdefault(pair, np.zeros((len(self.sides), 3), np.int64))
        cell[seating.side] += np.bincount(outcomes, minlength=3)
        if len(returns) >= LEAST_SAME and (returns == returns[0]).all() and (lengths == lengths[0]).all():
            first, second = (contestants[k].name for k in pair)
            self.same.append(f"{first} on side {seating.side} - {second}")
        if self.progress:
            self.progress.before += self.games

    def _by_agent(self, seating: Seating) -> dict[int, int]:
        """The player of every agent."""
        return {
            agent: seating.player if side == seating.side else seating.opponent
            for side, agents in enumerate(self.sides)
            for agent in agents
        }

    def _seat_robots(self, vec: VecEnv, by_agent: Mapping[int, int]) -> None:
        """Sets the params of the env's robots; the reset that follows starts their games."""
        words = {}
        for agent, number in by_agent.items():
            contestant = self.chosen.contestants[number]
            if seats.scripts(self.chosen.spec, agent):
                words[f"robot_{agent}"] = contestant.word if contestant.kind == "robot" else "learner"
        if words:
            vec.set_params(**words)

    def _player(self, vec: VecEnv, by_agent: Mapping[int, int], seed: int) -> PolicyPlayer | None:
        """The actors of all agents that are not robots; None: all are robots."""
        roles = assign_roles(vec, "shared")
        played: dict[tuple[int, int, int], tuple[Any, list[int]]] = {}  # by player, actor and role
        for agent, number in sorted(by_agent.items()):
            contestant = self.chosen.contestants[number]
            if contestant.kind == "robot":
                continue
            role = _role_of(roles, agent)
            actor = contestant.actor(agent, role)
            key = number, id(actor), roles.index(role)
            played.setdefault(key, (actor, []))[1].append(agent)
        if not played:
            return None
        actors = [actor for actor, _ in played.values()]
        own = [seats.only(_with_agents(roles[key[2]], vec), agents) for key, (_, agents) in played.items()]
        is_run = [self.chosen.contestants[key[0]].kind == "run" for key in played]
        greedy = [self.greedy and flag for flag in is_run]
        return PolicyPlayer(actors, own, vec.agents_per_env, greedy=greedy, seed=stream_seed(seed, "actions"))

    def _returns(self, vec: VecEnv, player: PolicyPlayer | None, seed: int) -> tuple[Array, Array, int]:
        """((games, agents) returns, (games,) lengths, games that were stopped)."""
        if vec.is_on_gpu:
            on_device: tuple[Array, Array, int] = play_on_device(
                vec, player, self.games, evaluate.held_out(seed), self.progress
            )
            return on_device
        chooses: Any = _Nobody(vec) if player is None else player
        score = evaluate.play(vec, chooses, self.games, seed, progress=self.progress)
        returns = np.stack([np.array(part.returns) for part in score.agents.values()], 1)
        return returns, np.array(score.lengths), score.cut


def _with_agents(role: Role, vec: VecEnv) -> Role:
    """A role with its agents listed: `seats.only` restricts it."""
    return replace(role, agents=tuple(range(vec.agents_per_env))) if role.agents is None else role


class _Nobody:
    """Actions of envs in which robots play every seat: zeros, which nobody reads."""

    def __init__(self, vec: VecEnv) -> None:
        space: Any = vec.action_space
        self.zeros = np.zeros(space.shape, space.dtype) if space.shape is not None else space.sample()

    def reset(self, num_rows: int) -> None:
        """No memory to clear."""

    def act(self, obs: Any, infos: dict[str, Any]) -> Any:
        """Zeros."""
        return self.zeros

    def observe(self, done: Array) -> None:
        """No memory to clear."""


def judge(returns: Array, sides: Sequence[Sequence[int]], side: int, margin: float) -> Array:
    """(games,) WIN, DRAW or LOSS of one side, from (games, agents) returns.

    The return of a side is the mean over its agents. It is compared with that of the best other side.
    """
    by_side = np.stack([returns[:, list(agents)].mean(1) for agents in sides], 1)
    own = by_side[:, side]
    best = np.delete(by_side, side, 1).max(1)
    rounding = 1e-6 * np.maximum(np.abs(own), np.abs(best))  # equal sums of floats may differ by this
    difference, limit = own - best, np.maximum(margin, rounding)
    outcomes: Array = np.where(difference > limit, WIN, np.where(difference < -limit, LOSS, DRAW))
    return outcomes
