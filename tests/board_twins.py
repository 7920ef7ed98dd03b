"""The rules of connect4 and othello once more, slowly, on lists: the headers must agree with them to the bit.

They share no idea with the headers: no bitboards, no directions as shifts. The library's part (time limit, autoreset,
returns, stats) is here too. Random numbers are drawn in the order in which the headers draw them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .vacuum_twin import Rng


class BoardTwin:
    """One env of a game of two agents who take turns. A subclass has the rules."""

    robots: tuple[str, ...] = ()
    stats: tuple[str, ...] = ()

    def __init__(self, params: dict[str, Any], seed: int = 0, see_more: bool = False) -> None:
        defaults = {"first": "random", "opening_plies": 0, "robot_0": "learner", "robot_1": "learner", "max_steps": 0}
        self.params, self.rng, self.see_more = {**defaults, **params}, Rng(seed), see_more
        self.reset()

    # ---- what a subclass defines ----

    def start(self) -> None:
        raise NotImplementedError

    def moves(self) -> list[int]:
        """The legal actions of the agent on turn, in order."""
        raise NotImplementedError

    def opening_moves(self) -> list[int]:
        return self.moves()

    def play(self, move: int) -> None:
        """The agent on turn makes a legal move."""
        raise NotImplementedError

    def outcome(self) -> int | None:
        """None while the game goes on; the winner's number, or -1 for a draw."""
        raise NotImplementedError

    def robot_moves(self, robot: str) -> list[int]:
        """The moves among which a robot on turn chooses at random."""
        raise NotImplementedError

    def replace(self, action: int) -> int:
        """The legal move that an action stands for."""
        raise NotImplementedError

    def observe(self, agent: int) -> list[float]:
        raise NotImplementedError

    def mask(self, agent: int) -> list[int]:
        raise NotImplementedError

    # ---- episodes ----

    def reset(self) -> None:
        drawn = self.rng.int(2)
        self.first = {"random": drawn, "agent_0": 0, "agent_1": 1}[self.params["first"]]
        self.turn = self.first
        self.start()
        for _ in range(self.params["opening_plies"]):
            if not self.open():
                break
        self.tick, self.returns = 0, [0.0, 0.0]
        self.totals: dict[str, float] = dict.fromkeys(self.stats, 0.0)

    def open(self) -> bool:
        """One random move of the opening; False if there is none."""
        raise NotImplementedError

    def who(self, agent: int) -> str:
        return str(self.params[f"robot_{agent}"])

    def step(self, actions: list[int]) -> dict[str, Any]:
        """Everything that the library shows of this env after the step; resets it if the game is over."""
        mover = self.turn
        self.move(actions)
        robot_replies = self.who(mover) == "learner" and self.who(1 - mover) != "learner"
        if robot_replies and self.outcome() is None:
            self.move(actions)
        self.tick += 1
        winner = self.outcome()
        rewards = [0.0 if winner in (None, -1) else 1.0 if winner == agent else -1.0 for agent in (0, 1)]
        self.returns = [total + reward for total, reward in zip(self.returns, rewards)]
        is_over = winner is not None
        is_late = not is_over and self.tick == self.params["max_steps"]
        shown: dict[str, Any] = {"rewards": rewards, "terminated": [is_over] * 2, "truncated": [is_late] * 2}
        shown["final"], shown["stats"] = {}, None
        if is_over or is_late:
            if winner is not None:
                self.count_outcome(winner)
            shown["stats"] = self.totals
            shown["final"] = {k: (self.observe(k), self.returns[k], self.tick) for k in (0, 1)}
            self.reset()
        return {**shown, **self.view()}

    def move(self, actions: list[int]) -> None:
        robot = self.who(self.turn)
        if robot == "learner":
            move = self.replace(actions[self.turn])
        else:
            move = self.pick(self.robot_moves(robot))
        self.count_move(move)
        self.play(move)

    def pick(self, moves: list[int]) -> int:
        return moves[self.rng.int(len(moves))]

    def count_move(self, move: int) -> None:
        self.totals["plies"] += 1

    def count_outcome(self, winner: int) -> None:
        name = "draws" if winner == -1 else f"wins_{winner}"
        self.totals[name] += 1
        self.totals["wins_first"] += winner == self.first

    def view(self) -> dict[str, Any]:
        return {"obs": [self.observe(k) for k in (0, 1)], "masks": [self.mask(k) for k in (0, 1)]}


def lines_of_four() -> list[list[tuple[int, int]]]:
    """All lines of four cells (column, row) of the board: there are 69."""
    lines = []
    for column in range(7):
        for row in range(6):
            for right, up in ((1, 0), (0, 1), (1, 1), (1, -1)):
                line = [(column + k * right, row + k * up) for k in range(4)]
                if all(0 <= x < 7 and 0 <= y < 6 for x, y in line):
                    lines.append(line)
    return lines


LINES = lines_of_four()
NUMBERED = [[6 * column + row for column, row in line] for line in LINES]  # the same, as places of `cells`


class ConnectFour(BoardTwin):
    """`columns[c]` is the list of the agents whose stones lie in column c, from the bottom."""

    robots = ("random", "one_ply", "search4")
    stats = ("wins_0", "wins_1", "draws", "wins_first", "plies")
    see_tactics = False

    def start(self) -> None:
        self.columns: list[list[int]] = [[] for _ in range(7)]

    def at(self, column: int, row: int) -> int | None:
        return self.columns[column][row] if row < len(self.columns[column]) else None

    def moves(self) -> list[int]:
        return [column for column in range(7) if len(self.columns[column]) < 6]

    def play(self, move: int) -> None:
        self.columns[move].append(self.turn)
        self.turn = 1 - self.turn

    def take_back(self, move: int) -> None:
        self.turn = self.columns[move].pop()

    def open(self) -> bool:
        threats = self.threats(self.turn)
        moves = [column for column in self.moves() if (column, len(self.columns[column])) not in threats]
        if moves:
            self.play(self.pick(moves))
        return bool(moves)

    def cells(self) -> list[int | None]:
        """All cells, column by column."""
        return [cell for column in self.columns for cell in (*column, *([None] * (6 - len(column))))]

    def has_four(self, agent: int) -> bool:
        cells = self.cells()
        return any(cells[a] == cells[b] == cells[c] == cells[d] == agent for a, b, c, d in NUMBERED)

    def outcome(self) -> int | None:
        for agent in (0, 1):
            if self.has_four(agent):
                return agent
        return None if self.moves() else -1

    def threats(self, agent: int) -> set[tuple[int, int]]:
        """Empty cells that would complete four stones of an agent."""
        found, cells = set(), self.cells()
        for line in NUMBERED:
            stones = [cells[number] for number in line]
            if stones.count(agent) == 3 and None in stones:
                found.add(divmod(line[stones.index(None)], 6))
        return found

    def winning_moves(self, agent: int) -> list[int]:
        threats = self.threats(agent)
        return [column for column in self.moves() if (column, len(self.columns[column])) in threats]

    def robot_moves(self, robot: str) -> list[int]:
        if robot == "random":
            return self.moves()
        wins = self.winning_moves(self.turn)
        if robot == "one_ply":
            return wins or self.winning_moves(1 - self.turn) or self.moves()
        if wins:
            return wins
        values = {move: -self.value_after(move, 3) for move in self.moves()}
        return [move for move, value in values.items() if value == max(values.values())]

    def value_after(self, move: int, depth: int) -> int:
        self.play(move)
        value = self.value(depth)
        self.take_back(move)
        return value

    def value(self, depth: int) -> int:
        """Of the board for the agent on turn: plain minimax."""
        if depth == 0:
            return len(self.threats(self.turn)) - len(self.threats(1 - self.turn))
        moves = self.moves()
        if not moves:
            return 0
        if self.winning_moves(self.turn):
            return 100 + depth
        return max(-self.value_after(move, depth - 1) for move in moves)

    def replace(self, action: int) -> int:
        moves = self.moves()
        return next(column % 7 for column in range(action, action + 7) if column % 7 in moves)

    def observe(self, agent: int) -> list[float]:
        cells = [(column, row) for column in range(7) for row in range(6)]
        seen = [float(self.at(*cell) == player) for player in (agent, 1 - agent) for cell in cells]
        seen.append(float(self.turn == agent))
        if self.see_more:
            gains, dangers = self.threats(agent), self.threats(1 - agent)
            seen += [1.0 if cell in gains else -1.0 if cell in dangers else 0.0 for cell in cells]
        if self.see_tactics:
            for column in range(7):
                seen += [float(fact) for fact in self.tactics(agent, column)]
        return seen

    def tactics(self, agent: int, column: int) -> list[bool]:
        """What a stone in a column would win, lose and threaten, by trying it."""
        if column not in self.moves():
            return [False] * 6
        here, other = len(self.columns[column]), 1 - agent
        facts = [(column, here) in self.threats(player) for player in (agent, other)]
        facts += [(column, here + 1) in self.threats(player) for player in (other, agent)]
        for player in (agent, other):
            self.columns[column].append(player)
            facts.append(len(self.winning_moves(player)) >= 2)
            self.columns[column].pop()
        return facts

    def mask(self, agent: int) -> list[int]:
        if self.turn != agent:
            return [1, 0, 0, 0, 0, 0, 0]
        return [int(column in self.moves()) for column in range(7)]


PASS = 64
QUARTER = [[100, -20, 10, 5], [-20, -50, -2, -2], [10, -2, -1, -1], [5, -2, -1, -1]]
WORTH = [[QUARTER[min(y, 7 - y)][min(x, 7 - x)] for x in range(8)] for y in range(8)]


class Othello(BoardTwin):
    """`grid[y][x]` is the agent whose disc lies there, or None."""

    robots = ("random", "greedy", "corners")
    stats = ("wins_0", "wins_1", "draws", "wins_first", "lead_0", "plies", "passes")

    def start(self) -> None:
        self.grid: list[list[int | None]] = [[None] * 8 for _ in range(8)]
        black, white = self.first, 1 - self.first
        self.grid[3][3] = self.grid[4][4] = white
        self.grid[3][4] = self.grid[4][3] = black

    def flips(self, square: int, agent: int) -> list[tuple[int, int]]:
        """The discs that the agent would turn over; none: the move is not legal."""
        found: list[tuple[int, int]] = []
        y, x = divmod(square, 8)
        if self.grid[y][x] is not None:
            return found
        for dy in (-1, 0, 1):
            for dx in (-1, 0, 1):
                line: list[tuple[int, int]] = []
                to_y, to_x = y + dy, x + dx
                while 0 <= to_y < 8 and 0 <= to_x < 8 and self.grid[to_y][to_x] == 1 - agent:
                    line.append((to_y, to_x))
                    to_y, to_x = to_y + dy, to_x + dx
                if line and 0 <= to_y < 8 and 0 <= to_x < 8 and self.grid[to_y][to_x] == agent:
                    found += line
        return found

    def squares(self, agent: int) -> list[int]:
        return [square for square in range(64) if self.flips(square, agent)]

    def moves(self) -> list[int]:
        return self.squares(self.turn) or [PASS]

    def play(self, move: int) -> None:
        if move != PASS:
            for y, x in [*self.flips(move, self.turn), divmod(move, 8)]:
                self.grid[y][x] = self.turn
        self.turn = 1 - self.turn

    def open(self) -> bool:
        grid, turn = [list(row) for row in self.grid], self.turn
        self.play(self.pick(self.moves()))
        if self.outcome() is None:
            return True
        self.grid, self.turn = grid, turn
        return False

    def count(self, agent: int) -> int:
        return sum(row.count(agent) for row in self.grid)

    def outcome(self) -> int | None:
        if self.squares(0) or self.squares(1):
            return None
        lead = self.count(0) - self.count(1)
        return 0 if lead > 0 else 1 if lead < 0 else -1

    def robot_moves(self, robot: str) -> list[int]:
        moves = self.moves()
        if robot == "random" or moves == [PASS]:
            return moves
        value = self.greedy_value if robot == "greedy" else self.corners_value
        values = {move: value(move) for move in moves}
        return [move for move in moves if values[move] == max(values.values())]

    def greedy_value(self, move: int) -> int:
        return len(self.flips(move, self.turn))

    def corners_value(self, move: int) -> int:
        after = {(y, x): self.grid[y][x] for y in range(8) for x in range(8)}
        for place in [*self.flips(move, self.turn), divmod(move, 8)]:
            after[place] = self.turn
        signs = {self.turn: 1, 1 - self.turn: -1, None: 0}
        return sum(signs[disc] * WORTH[y][x] for (y, x), disc in after.items())

    def replace(self, action: int) -> int:
        moves = self.moves()
        return next((move for move in moves if move >= action), moves[0])

    def count_move(self, move: int) -> None:
        self.totals["passes" if move == PASS else "plies"] += 1

    def count_outcome(self, winner: int) -> None:
        super().count_outcome(winner)
        self.totals["lead_0"] = float(self.count(0) - self.count(1))

    def observe(self, agent: int) -> list[float]:
        discs = [disc for row in self.grid for disc in row]
        seen = [float(disc == player) for player in (agent, 1 - agent) for disc in discs]
        seen.append(float(self.turn == agent))
        if self.see_more:
            for player in (agent, 1 - agent):
                legal = self.squares(player)
                seen += [float(square in legal) for square in range(64)]
        return seen

    def mask(self, agent: int) -> list[int]:
        allowed = self.moves() if self.turn == agent else [PASS]
        return [int(move in allowed) for move in range(65)]


def compare(twins: list[Any], vec: Any, steps: int, seed: int) -> int:
    """Plays random actions, legal or not, and asserts that all that is shown is the same. Returns the games."""
    rng, ended = np.random.default_rng(seed), 0
    names = [stat.name for stat in vec.native_spec.stats]
    obs, infos = vec.reset(seed=seed)
    for k, twin in enumerate(twins):
        _same_view(twin.view(), obs, infos, k)
    for _ in range(steps):
        actions = rng.integers(0, vec.single_action_space.n, vec.num_rows)
        obs, rewards, terminated, truncated, infos = vec.step(actions)
        for k, twin in enumerate(twins):
            rows = slice(2 * k, 2 * k + 2)
            shown = twin.step(actions[rows].tolist())
            _same_view(shown, obs, infos, k)
            assert rewards[rows].tolist() == shown["rewards"]
            assert terminated[rows].tolist() == shown["terminated"]
            assert truncated[rows].tolist() == shown["truncated"]
            for agent, (final_obs, total, length) in shown["final"].items():
                assert infos["final_obs"][2 * k + agent].tolist() == final_obs
                assert infos["final_info"]["episode"]["r"][2 * k + agent] == total
                assert infos["final_info"]["episode"]["l"][2 * k + agent] == length
            if shown["stats"] is not None:
                ended += 1
                found = {name: vec.memory.arrays["final_stats"][number, k] for number, name in enumerate(names)}
                assert found == shown["stats"]
    return ended


def _same_view(shown: dict[str, Any], obs: Any, infos: Any, number: int) -> None:
    rows = slice(2 * number, 2 * number + 2)
    assert obs[rows].tolist() == shown["obs"]
    assert infos["action_mask"][rows].tolist() == shown["masks"]
