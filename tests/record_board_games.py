"""Random games of go, hex and breakthrough by OpenSpiel, as actions of our envs: test_board_games.py replays them.

    python -m pip install open_spiel==2.0.2
    python -m tests.record_board_games        # writes tests/data/board_games.json

For every move: the action and a checksum of all legal ones; for every game: the returns. Agent 0 begins.

Rules of OpenSpiel that differ from ours. Go: it forbids to retake a ko at once, and ends a game whose board comes back;
we forbid a move that would bring a board back. Moves that would are left out here, and never made. Its limit of moves
is ours. Hex: the same rules; its second player sees the board as the first one does, ours mirrored at the diagonal.
Breakthrough: the same rules; its first player moves down.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "board_games.json"
GAMES = {
    "go": [{"side": 9, "komi": 7.5}] * 4 + [{"side": 5, "komi": 0.5}] * 6 + [{"side": 3, "komi": 0.0}] * 4,
    "hex": [{"side": 11, "swap": 0}] * 4 + [{"side": 5, "swap": 1}] * 8,
    "breakthrough": [{}] * 12,
}


def checksum(actions: Iterable[int]) -> int:
    return zlib.crc32(",".join(map(str, sorted(actions))).encode())


def boards_after(state: Any, action: int) -> str:
    """The board alone, after an action; for go."""
    child = state.clone()
    child.apply_action(action)
    return board_of(child)


def board_of(state: Any) -> str:
    return str(state).split("\n", 2)[2]  # without the lines that tell who is on turn


def go_number(side: int, state: Any, action: int) -> int:
    return action


def hex_number(side: int, state: Any, action: int) -> int:
    if state.current_player() == 0 or action == side * side:
        return action
    return action % side * side + action // side


def breakthrough_number(side: int, state: Any, action: int) -> int:
    """Of "a7b6*": from a7 to b6, taking a piece."""
    text = state.action_to_string(action)
    column, rank, to_column = ord(text[0]) - ord("a"), int(text[1]), ord(text[2]) - ord("a")
    row = rank - 1 if state.current_player() == 0 else 8 - rank
    return 64 * (to_column - column + 1) + 8 * row + column


def load_game(name: str, params: dict[str, Any]) -> Any:
    import pyspiel  # type: ignore[import-not-found,unused-ignore]

    if name == "go":
        return pyspiel.load_game("go", {"board_size": params["side"], "komi": float(params["komi"])})
    if name == "hex":
        return pyspiel.load_game("hex", {"board_size": params["side"], "swap": bool(params["swap"])})
    return pyspiel.load_game("breakthrough")


def play_game(name: str, params: dict[str, Any], seed: int) -> dict[str, Any]:
    numbers: dict[str, Callable[[int, Any, int], int]]
    numbers = {"go": go_number, "hex": hex_number, "breakthrough": breakthrough_number}
    chooser, side = random.Random(seed), params.get("side", 8)
    state = load_game(name, params).new_initial_state()
    seen: set[str] = {board_of(state)} if name == "go" else set()
    actions, legals = [], []
    while not state.is_terminal():
        legal = state.legal_actions()
        if name == "go":
            legal = [k for k in legal if k == side * side or boards_after(state, k) not in seen]
        action = chooser.choice(legal)
        if name == "go" and action == side * side and len(legal) > 1 and chooser.random() < 0.7:
            action = chooser.choice(legal[:-1])  # fewer passes: longer games
        if name == "hex" and side * side in legal and chooser.random() < 0.5:
            action = side * side  # a swap in half of the games
        legals.append(checksum(numbers[name](side, state, k) for k in legal))
        actions.append(numbers[name](side, state, action))
        state.apply_action(action)
        if name == "go":
            seen.add(board_of(state))
    return {"params": params, "actions": actions, "legal": legals, "returns": state.returns()}


def main() -> None:
    games = {name: [play_game(name, params, k) for k, params in enumerate(all_)] for name, all_ in GAMES.items()}
    DATA.parent.mkdir(exist_ok=True)
    DATA.write_text(json.dumps(games, separators=(",", ":")) + "\n")
    print(f"{DATA.name}: {DATA.stat().st_size} bytes, {sum(map(len, games.values()))} games")


if __name__ == "__main__":
    main()
