"""The rules of breakthrough once more, slowly, on a dict: shoal/envs/breakthrough.h must agree with it to the bit."""

from __future__ import annotations

from .board_twins import BoardTwin

Pieces = dict[tuple[int, int], int]  # (row, column), row 0 at the top as agent 0 sees it: the owner
ADVANCED = [4, 0, 0, 1, 4, 12, 24]  # what a piece is worth above 20, by the rows that it has come


class Breakthrough(BoardTwin):
    robots = ("random", "one_ply", "search2")
    stats = ("wins_0", "wins_1", "wins_first", "wiped_out", "captures", "plies")

    def start(self) -> None:
        self.pieces: Pieces = {(row, column): int(row < 2) for row in (0, 1, 6, 7) for column in range(8)}

    # A move is (from, to) inside; outside, an action in the view of the agent.

    def legal(self, agent: int, pieces: Pieces) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """In the order of the actions."""
        ahead, found = (-1 if agent == 0 else 1), []
        for side in (-1, 0, 1):
            rows = range(8) if agent == 0 else range(7, -1, -1)
            for row in rows:
                for column in range(8):
                    to = (row + ahead, column + side)
                    if pieces.get((row, column)) != agent or not (0 <= to[0] < 8 and 0 <= to[1] < 8):
                        continue
                    if to not in pieces or (side and pieces[to] != agent):
                        found.append(((row, column), to))
        return found

    def number(self, move: tuple[tuple[int, int], tuple[int, int]], agent: int) -> int:
        (row, column), (_, to_column) = move
        return 64 * (to_column - column + 1) + 8 * (row if agent == 0 else 7 - row) + column

    def after(self, move: tuple[tuple[int, int], tuple[int, int]], pieces: Pieces) -> Pieces:
        moved = {place: owner for place, owner in pieces.items() if place not in move}
        moved[move[1]] = pieces[move[0]]
        return moved

    def by_number(self, number: int) -> tuple[tuple[int, int], tuple[int, int]]:
        return next(move for move in self.legal(self.turn, self.pieces) if self.number(move, self.turn) == number)

    def moves(self) -> list[int]:
        return [self.number(move, self.turn) for move in self.legal(self.turn, self.pieces)]

    def play(self, move: int) -> None:
        self.pieces = self.after(self.by_number(move), self.pieces)
        self.turn = 1 - self.turn

    def open(self) -> bool:
        pieces, turn = self.pieces, self.turn
        self.play(self.pick(self.moves()))
        if self.outcome() is None:
            return True
        self.pieces, self.turn = pieces, turn
        return False

    def winner(self, pieces: Pieces) -> int | None:
        for agent in (0, 1):
            far = 0 if agent == 0 else 7
            if 1 - agent not in pieces.values() or any(pieces.get((far, column)) == agent for column in range(8)):
                return agent
        return None

    def outcome(self) -> int | None:
        return self.winner(self.pieces)

    # ---- robots ----

    def attackers(self, place: tuple[int, int], agent: int, pieces: Pieces) -> int:
        """How many pieces of an agent could move diagonally to a place."""
        back = 1 if agent == 0 else -1
        return sum(pieces.get((place[0] + back, place[1] + side)) == agent for side in (-1, 1))

    def come(self, place: tuple[int, int], agent: int) -> int:
        return 7 - place[0] if agent == 0 else place[0]

    def safe(self, agent: int, pieces: Pieces) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Moves to places on which the other agent could not take."""
        return [move for move in self.legal(agent, pieces) if not self.attackers(move[1], 1 - agent, pieces)]

    def value(self, agent: int, pieces: Pieces) -> int:
        """Of the pieces for an agent on turn."""
        own = [self.come(place, agent) for place, owner in pieces.items() if owner == agent]
        if 6 in own:
            return 10_000
        other = [self.come(place, 1 - agent) for place, owner in pieces.items() if owner != agent]
        value = sum(20 + ADVANCED[rows] for rows in own) - sum(20 + ADVANCED[rows] for rows in other)
        value += 2 * (len(self.safe(agent, pieces)) - len(self.safe(1 - agent, pieces)))
        hangs = any(pieces.get(to) == 1 - agent for _, to in self.safe(agent, pieces))
        return value + 15 * hangs

    def value_after(self, agent: int, pieces: Pieces) -> int:
        """After a move of an agent: what the best reply leaves it."""
        if self.winner(pieces) == agent:
            return 20_000
        replies = [self.after(move, pieces) for move in self.legal(1 - agent, pieces)]
        if any(self.winner(reply) is not None for reply in replies):
            return -20_000
        return min(self.value(agent, reply) for reply in replies)

    def robot_moves(self, robot: str) -> list[int]:
        agent, pieces = self.turn, self.pieces
        legal, safe = self.legal(agent, pieces), self.safe(agent, pieces)
        if robot == "random":
            liked = legal
        elif robot == "one_ply":
            wins = [move for move in legal if self.come(move[1], agent) == 7]
            must = [move for move in legal if pieces.get(move[1]) == 1 - agent and self.come(move[1], agent) == 1]
            gains = [move for move in safe if pieces.get(move[1]) == 1 - agent]
            liked = wins or must or gains or safe or legal
        else:
            values = [self.value_after(agent, self.after(move, pieces)) for move in legal]
            liked = [move for move, value in zip(legal, values) if value == max(values)]
        return [self.number(move, agent) for move in liked]

    # ---- what the library shows ----

    def replace(self, action: int) -> int:
        moves = self.moves()
        return next((move for move in moves if move >= action), moves[0])

    def count_move(self, move: int) -> None:
        super().count_move(move)
        self.totals["captures"] += self.by_number(move)[1] in self.pieces

    def count_outcome(self, winner: int) -> None:
        super().count_outcome(winner)
        self.totals["wiped_out"] += 1 - winner not in self.pieces.values()

    def observe(self, agent: int) -> list[float]:
        places = [(row if agent == 0 else 7 - row, column) for row in range(8) for column in range(8)]
        seen = [float(self.pieces.get(place) == player) for player in (agent, 1 - agent) for place in places]
        seen.append(float(self.turn == agent))
        if self.see_more:
            for place in places:
                owner = self.pieces.get(place)
                taken = owner is not None and self.attackers(place, 1 - owner, self.pieces) > 0
                seen.append((1.0 if owner != agent else -1.0) if taken else 0.0)
        return seen

    def mask(self, agent: int) -> list[int]:
        allowed = self.moves() if self.turn == agent else [0]
        return [int(move in allowed) for move in range(192)]
