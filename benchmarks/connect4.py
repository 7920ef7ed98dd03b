"""How well a run plays Connect Four: games against the scripted robots, and its moves against a perfect solver.

    python benchmarks/connect4.py RUN [--checkpoint last] [--games 10000] [--positions 2000] [--sampled] [--thorough]

Plays games of the run's policy against each robot and against itself, from both seats and as first and as second
player, with its most probable actions (`--sampled`: with sampled ones). Games against itself start with two random
moves, since they would all be the same otherwise. Then it draws positions from these games and asks the solver of the
tests (tests/native/connect4_solver.c) whether the policy's moves are optimal: whether they keep the value of the
position, a win, a draw or a loss. In a lost position every move is. Boards of few stones can take minutes: a position
that takes more than `--budget` boards is left out, and counted.

`--thorough` solves every move of every position exactly. It also gives the share of moves that are best by the
solver's score, which prefers fast wins and long defences, and the share of optimal ones where moves differ in value.
It takes many times as long. Appends to benchmarks/results/connect4.jsonl.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import shoal
from shoal.cores import available_threads
from shoal.errors import ConfigError
from shoal.measure import describe_machine
from shoal.runs import commit
from shoal.spec import Array
from tests.connect4_solver import Board, Solver

RESULTS = Path(__file__).parent / "results" / "connect4.jsonl"
ROBOTS = ("random", "one_ply", "search4")
CELLS = 42
SIZES = {85: (0, 0), 127: (1, 0), 169: (1, 1)}  # of observations: threats, tactics
MOST_ENVS = 2048
BUDGET = 20_000_000  # boards that the solver looks at for one value, before it leaves the position out
BITS = np.array([1 << (7 * (cell // 6) + cell % 6) for cell in range(CELLS)], np.int64)  # of the solver's boards


@dataclass
class Games:
    """The outcomes of the policy's games, as [first, second] player, and the moves that it made."""

    won: list[int] = field(default_factory=lambda: [0, 0])
    drawn: list[int] = field(default_factory=lambda: [0, 0])
    lost: list[int] = field(default_factory=lambda: [0, 0])
    moves: list[tuple[Board, int]] = field(default_factory=list)

    @property
    def total(self) -> int:
        """How many there are."""
        return sum(self.won) + sum(self.drawn) + sum(self.lost)

    def facts(self) -> dict[str, Any]:
        """Shares, for a results file."""
        shares = {name: sum(getattr(self, name)) / self.total for name in ("won", "drawn", "lost")}
        lost = {f"lost_{name}": self.lost[k] for k, name in enumerate(("first", "second"))}
        return {"games": self.total, **shares, **lost}


def boards_of(obs: Array) -> list[Board]:
    """The boards of some observations, for the solver."""
    own = (obs[:, :CELLS] != 0) @ BITS
    other = (obs[:, CELLS : 2 * CELLS] != 0) @ BITS
    return [Board(mine, mine | theirs) for mine, theirs in zip(own.tolist(), other.tolist())]


class Contestant:
    """A policy in one seat or in both."""

    def __init__(self, run: str, checkpoint: str, greedy: bool) -> None:
        loaded = shoal.load(run, checkpoint=checkpoint)
        self.policy, self.greedy = loaded[loaded.agents[0]], greedy
        shape = self.policy.observation_space.shape
        seen = SIZES.get(shape[0]) if shape is not None and len(shape) == 1 else None
        if seen is None or getattr(self.policy.action_space, "n", 0) != 7:
            raise ConfigError(f"{run} observes {shape}, which is not connect4. Name a run of `shoal train connect4`.")
        self.env: dict[str, Any] = dict(zip(("threats", "tactics"), seen))

    def play(self, games: int, seed: int, **options: Any) -> Games:
        """Games against whoever the options seat: one in each env, all of them to their end."""
        played = Games()
        robots = [options.get(f"robot_{seat}", "learner") != "learner" for seat in (0, 1)]
        for first in range(0, games, MOST_ENVS):
            vec = shoal.make("connect4", min(MOST_ENVS, games - first), **self.env, **options)
            obs, infos = vec.reset(seed=seed + first)
            is_over, state = np.zeros(vec.num_envs, bool), None
            began = self._beginners(obs)
            while not is_over.all():
                chosen = self.policy.act(obs, state, mask=infos["action_mask"], greedy=self.greedy)
                actions, state = chosen if self.policy.is_recurrent else (chosen, None)
                on_turn = (obs[:, 2 * CELLS] == 1) & ~np.repeat(is_over, 2) & ~np.tile(robots, vec.num_envs)
                played.moves += zip(boards_of(obs[on_turn]), actions[on_turn].tolist())
                obs, rewards, terminated, truncated, infos = vec.step(actions)
                state = self.policy.clear(state, terminated | truncated)
                ended = terminated[::2] & ~is_over
                for seat in (0, 1):
                    if robots[seat]:
                        continue
                    for env in np.flatnonzero(ended).tolist():
                        reward, place = rewards[2 * env + seat], int(began[env] != seat)
                        outcome = played.won if reward > 0 else played.lost if reward < 0 else played.drawn
                        outcome[place] += 1
                is_over |= ended
            vec.close()
        return played

    @staticmethod
    def _beginners(obs: Array) -> Array:
        """Who began each game: after an even number of stones, the one on turn."""
        stones, turn = obs[::2, : 2 * CELLS].sum(1), obs[1::2, 2 * CELLS]
        return np.where(stones % 2 == 0, turn, 1 - turn).astype(int)


@dataclass(frozen=True)
class Verdict:
    """Of one move."""

    is_optimal: bool
    is_best: bool = False  # by the exact score
    is_choice: bool = False  # whether the moves of the position differ in value


def judge_move(solver: Solver, board: Board, column: int, thorough: bool, budget: int) -> Verdict | None:
    """Compares a move with the solver's. None: that would take more than `budget` boards."""
    if not thorough:
        value = solver.score(board, low=-1, high=1, budget=budget)
        if value is None or value == -1:
            return None if value is None else Verdict(True)
        kept = solver.move_score(board, column, low=value - 1, high=value, budget=budget)
        return None if kept is None else Verdict(kept == value)
    scores: dict[int, int] = {}
    for move, score in solver.move_scores(board, budget=budget).items():
        if score is None:
            return None
        scores[move] = score
    signs = {move: (score > 0) - (score < 0) for move, score in scores.items()}
    is_optimal = signs[column] == max(signs.values())
    return Verdict(is_optimal, scores[column] == max(scores.values()), len(set(signs.values())) > 1)


def judge(
    solver: Solver, moves: list[tuple[Board, int]], thorough: bool = False, budget: int = BUDGET
) -> dict[str, float]:
    """How many moves are optimal, and the solver's speed.

    Positions with many stones come first: what they leave in the solver's memory helps with the others.
    """
    began, before = time.perf_counter(), solver.nodes
    order = sorted(set(moves), key=lambda move: (-move[0].stones, move))
    with ThreadPoolExecutor(available_threads()) as pool:  # the solver's C code releases the interpreter
        verdicts = dict(
            zip(order, pool.map(lambda move: judge_move(solver, move[0], move[1], thorough, budget), order))
        )
    seconds = time.perf_counter() - began
    found = [one for move in moves if (one := verdicts[move]) is not None]
    choices = [one for one in found if one.is_choice]
    facts = {
        "positions": len(found),
        "unsolved": len(moves) - len(found),
        "optimal": sum(one.is_optimal for one in found) / max(len(found), 1),
        "solver_s": seconds,
        "solver_boards_per_s": (solver.nodes - before) / seconds,
    }
    if thorough:
        facts["best"] = sum(one.is_best for one in found) / max(len(found), 1)
        facts["choices"] = len(choices)
        facts["optimal_in_choices"] = sum(one.is_optimal for one in choices) / max(len(choices), 1)
    return facts


def percent(part: float, count: int) -> str:
    """A share with the half width of its 95 % interval (Wilson)."""
    z = 1.96
    half = z * math.sqrt(part * (1 - part) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return f"{100 * part:.1f} % ± {100 * half:.1f}"


def against_robot(contestant: Contestant, robot: str, games: int, seed: int) -> Games:
    """Games against a robot, half of them from each seat."""
    played = Games()
    for seat in (0, 1):
        part = contestant.play((games + seat) // 2, seed + (seat << 20), **{f"robot_{1 - seat}": robot})
        for name in ("won", "drawn", "lost"):
            setattr(played, name, [a + b for a, b in zip(getattr(played, name), getattr(part, name))])
        played.moves += part.moves
    return played


def print_games(opponent: str, played: Games) -> None:
    facts = played.facts()
    shares = ", ".join(f"{name} {percent(facts[name], played.total)}" for name in ("won", "drawn", "lost"))
    print(f"against {opponent}, {played.total:,} games: {shares};")
    print(f"    lost {played.lost[0]:,} as first and {played.lost[1]:,} as second player", flush=True)


def print_moves(opponent: str, found: dict[str, float]) -> None:
    count, choices = max(int(found["positions"]), 1), int(found.get("choices", 0))
    print(f"moves against {opponent}, {found['positions']:,} positions: optimal {percent(found['optimal'], count)}")
    if "best" in found:
        print(f"    best by score {percent(found['best'], count)}; where moves differ in value optimal ", end="")
        print(f"{percent(found['optimal_in_choices'], max(choices, 1))} of {choices:,}")
    speed = f"{found['solver_s']:.1f} s, {found['solver_boards_per_s'] / 1e6:.1f}M boards/s"
    print(f"    solver: {speed}; {found['unsolved']:,} positions left out as too hard", flush=True)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Plays, judges and prints. Returns what the results file keeps."""
    contestant, generator = Contestant(args.run, args.checkpoint, not args.sampled), np.random.default_rng(args.seed)
    facts: dict[str, Any] = {}
    moves: dict[str, list[tuple[Board, int]]] = {}
    for robot in ROBOTS:
        played = against_robot(contestant, robot, args.games, args.seed)
        print_games(robot, played)
        facts[robot], moves[robot] = played.facts(), played.moves
    moves["itself"] = contestant.play(max(args.games // 10, 1), args.seed, opening_plies=2).moves
    solver, share = Solver(args.table), -(-args.positions // len(moves))
    for opponent, made in moves.items():
        if args.positions:
            drawn = generator.choice(len(made), min(share, len(made)), replace=False).tolist()
            found = judge(solver, [made[k] for k in drawn], args.thorough, args.budget)
            print_moves(opponent, found)
            facts[f"moves against {opponent}"] = found
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run's folder or id, or last")
    parser.add_argument("--checkpoint", default="last", help="last, best or a step: of a game for two the best is any")
    parser.add_argument("--games", type=int, default=10_000, help="against each robot")
    parser.add_argument("--positions", type=int, default=2000, help="to judge, over all opponents")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sampled", action="store_true", help="sample actions")
    parser.add_argument("--thorough", action="store_true", help="solve every move exactly")
    parser.add_argument("--budget", type=int, default=BUDGET, help="boards for one value; 0: no limit")
    parser.add_argument("--table", type=int, default=22, help="the solver's memory: 2^N * 16 bytes")
    parser.add_argument("--no-save", action="store_true", help="do not append to the results file")
    args = parser.parse_args()
    began = time.perf_counter()
    facts = measure(args)
    print(f"{time.perf_counter() - began:.0f} s")
    if not args.no_save:
        entry = {"run": args.run, "sampled": args.sampled, **facts, "commit": commit(), "machine": describe_machine()}
        RESULTS.parent.mkdir(exist_ok=True)
        with RESULTS.open("a") as file:
            file.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    main()
