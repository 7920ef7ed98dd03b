"""The rules of go once more, slowly, on a dict of stones: shoal/envs/go.h must agree with it to the bit.

It shares no idea with the header: no bit sets, no hashes. A move is tried on a copy; boards are compared as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .board_twins import BoardTwin

Stones = dict[tuple[int, int], int]  # (row, column): the agent whose stone lies there


class Go(BoardTwin):
    robots = ("random", "tactics")
    stats = ("wins_0", "wins_1", "draws", "wins_first", "lead_0", "captures", "plies", "passes", "cut_off")

    def __init__(self, params: dict[str, Any], seed: int = 0, see_more: bool = True, side: int = 9) -> None:
        self.side, self.limit, self.ends = side, 2 * side * side, side * side
        super().__init__({"komi": 7.5, **params}, seed, see_more)

    def start(self) -> None:
        self.stones: Stones = {}
        self.boards: list[Stones] = [{}]
        self.moves_made: list[int] = []

    def where(self, move: int) -> tuple[int, int]:
        return divmod(move, self.side)

    def number(self, places: Iterable[tuple[int, int]]) -> list[int]:
        return sorted(self.side * y + x for y, x in places)

    def beside(self, place: tuple[int, int]) -> list[tuple[int, int]]:
        y, x = place
        around = [(y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)]
        return [(y, x) for y, x in around if 0 <= y < self.side and 0 <= x < self.side]

    def chain(self, place: tuple[int, int], stones: Stones) -> set[tuple[int, int]]:
        """The places of the same owner (or of none) that are connected with a place."""
        found, rest = {place}, [place]
        while rest:
            for near in self.beside(rest.pop()):
                if near not in found and stones.get(near) == stones.get(place):
                    found.add(near)
                    rest.append(near)
        return found

    def liberties(self, place: tuple[int, int], stones: Stones) -> set[tuple[int, int]]:
        return {near for stone in self.chain(place, stones) for near in self.beside(stone) if near not in stones}

    def after(self, move: int, agent: int) -> tuple[Stones, int] | None:
        """The stones after a move and how many it takes off; None if the move is suicide or the point is taken."""
        place, stones = self.where(move), dict(self.stones)
        if place in stones:
            return None
        stones[place] = agent
        taken = {
            stone
            for near in self.beside(place)
            if stones.get(near) == 1 - agent and not self.liberties(near, stones)
            for stone in self.chain(near, stones)
        }
        stones = {place: owner for place, owner in stones.items() if place not in taken}
        return (stones, len(taken)) if self.liberties(place, stones) else None

    def points(self) -> list[int]:
        """Where the agent on turn may place a stone."""
        allowed = []
        for move in range(self.ends):
            after = self.after(move, self.turn)
            if after is not None and after[0] not in self.boards:
                allowed.append(move)
        return allowed

    def moves(self) -> list[int]:
        return [*self.points(), self.ends]

    def play(self, move: int) -> None:
        if move != self.ends:
            after = self.after(move, self.turn)
            assert after is not None
            self.stones = after[0]
            self.boards.append(self.stones)
        self.moves_made.append(move)
        self.turn = 1 - self.turn

    def pick(self, moves: list[int]) -> int:
        drawn = self.rng.int(len(moves))
        return moves[drawn] if moves else self.ends

    def open(self) -> bool:
        if len(self.moves_made) >= self.limit - 2:
            return False
        move = self.pick(self.robot_moves("random"))
        if move != self.ends:
            self.play(move)
        return move != self.ends

    def area(self, agent: int) -> int:
        """Own stones, and the free points of regions that touch only own stones."""
        count = sum(owner == agent for owner in self.stones.values())
        for move in range(self.ends):
            place = self.where(move)
            if place not in self.stones:
                near = {self.stones.get(k) for free in self.chain(place, self.stones) for k in self.beside(free)}
                count += near - {None} == {agent}
        return count

    def lead_0(self) -> float:
        komi = float(np.float32(self.params["komi"]))
        return self.area(0) - self.area(1) + (-komi if self.first == 0 else komi)

    def outcome(self) -> int | None:
        both_passed = self.moves_made[-2:] == [self.ends, self.ends]
        if not both_passed and len(self.moves_made) < self.limit:
            return None
        lead = self.lead_0()
        return 0 if lead > 0 else 1 if lead < 0 else -1

    # ---- robots ----

    def is_eye(self, place: tuple[int, int]) -> bool:
        if any(self.stones.get(near) != self.turn for near in self.beside(place)):
            return False
        y, x = place
        corners = [(y + dy, x + dx) for dy in (-1, 1) for dx in (-1, 1)]
        others = sum(self.stones.get(corner) == 1 - self.turn for corner in corners)
        return others == 0 or (others == 1 and self.is_inner(place))

    def is_inner(self, place: tuple[int, int]) -> bool:
        return len(self.beside(place)) == 4

    def is_safe(self, move: int) -> bool:
        """The new chain has two liberties, stones that are taken off not counted."""
        stones = {**self.stones, self.where(move): self.turn}
        return len(self.liberties(self.where(move), stones)) >= 2

    def taken(self, move: int) -> int:
        after = self.after(move, self.turn)
        assert after is not None
        return after[1]

    def is_near(self, move: int, agent: int, liberties: int) -> bool:
        """Beside a chain of an agent that has so many liberties."""
        near = [place for place in self.beside(self.where(move)) if self.stones.get(place) == agent]
        return any(len(self.liberties(place, self.stones)) == liberties for place in near)

    def robot_moves(self, robot: str) -> list[int]:
        points = self.points()
        quiet = [move for move in points if not self.is_eye(self.where(move))]
        if robot == "random":
            return quiet
        if self.moves_made[-1:] == [self.ends] and (self.lead_0() > 0 if self.turn == 0 else self.lead_0() < 0):
            return []
        most = max((self.taken(move) for move in points), default=0)
        if most:
            return [move for move in points if self.taken(move) == most]
        saves = [move for move in points if self.is_near(move, self.turn, 1)]
        threats = [move for move in quiet if self.is_near(move, 1 - self.turn, 2)]
        apart = [move for move in quiet if self.is_inner(self.where(move)) and not self.has_beside(move, self.turn)]
        jumps = [move for move in apart if self.is_jump(move)]
        for moves in (saves, threats, jumps, apart, quiet):
            if safe := [move for move in moves if self.is_safe(move)]:
                return safe
        return []

    def has_beside(self, move: int, agent: int) -> bool:
        return any(self.stones.get(near) == agent for near in self.beside(self.where(move)))

    def is_jump(self, move: int) -> bool:
        """Two steps over a free point lead to an own stone."""
        free = [near for near in self.beside(self.where(move)) if near not in self.stones]
        return any(self.stones.get(stone) == self.turn for near in free for stone in self.beside(near))

    # ---- what the library shows ----

    def replace(self, action: int) -> int:
        points = self.points()
        if action == self.ends or not points:
            return self.ends
        return next((move for move in points if move >= action), points[0])

    def count_move(self, move: int) -> None:
        self.totals["passes" if move == self.ends else "plies"] += 1
        if move != self.ends:
            self.totals["captures"] += self.taken(move)

    def count_outcome(self, winner: int) -> None:
        super().count_outcome(winner)
        self.totals["lead_0"] = self.lead_0()
        self.totals["cut_off"] = float(self.moves_made[-2:] != [self.ends, self.ends])

    def observe(self, agent: int) -> list[float]:
        owners = [self.stones.get(self.where(move)) for move in range(self.ends)]
        seen = [float(owner == player) for player in (agent, 1 - agent) for owner in owners]
        komi = np.float32(self.params["komi"]) / np.float32(self.ends)
        seen += [float(self.turn == agent), float(self.moves_made[-1:] == [self.ends])]
        seen += [float(-komi if self.first == agent else komi)]
        seen += [float(np.float32(len(self.moves_made)) / np.float32(self.limit))]
        if self.see_more:
            atari = {place for place in self.stones if len(self.liberties(place, self.stones)) == 1}
            points = self.points()
            seen += [float(self.where(move) in atari) for move in range(self.ends)]
            seen += [float(owner is None and move not in points) for move, owner in enumerate(owners)]
        return seen

    def mask(self, agent: int) -> list[int]:
        allowed = self.moves() if self.turn == agent else [self.ends]
        return [int(move in allowed) for move in range(self.ends + 1)]
