"""Simple players of the MinAtar games, by what they see: the scripted scores. `python -m tests.minatar_players`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import shoal

from .minatar_twin import DOWN, FIRE, LEFT, RIGHT, STAY, UP

MOVES = {STAY: (0, 0), LEFT: (-1, 0), UP: (0, -1), RIGHT: (1, 0), DOWN: (0, 1)}
Cell = tuple[int, int]  # (x, y)


def find(planes: np.ndarray, channel: int) -> list[Cell]:
    return [(int(x), int(y)) for y, x in np.argwhere(planes[:, :, channel])]


def direction(planes: np.ndarray, cell: Cell, trail: int) -> int:
    """Where something goes: away from its trail; to the middle where it has none, because it has just entered."""
    x, y = cell
    behind = [dx for dx in (-1, 1) if 0 <= x + dx <= 9 and planes[y, x + dx, trail]]
    return -behind[0] if behind else 1 if x < 5 else -1


def towards(x: int, y: int, target: Cell) -> list[int]:
    """Moves that come closer, sideways last."""
    wanted = [UP] if target[1] < y else [DOWN] if target[1] > y else []
    return wanted + ([LEFT] if target[0] < x else [RIGHT] if target[0] > x else [])


def play_breakout(planes: np.ndarray) -> int:
    """Meets the ball where it will come down, if nothing is in its way."""
    paddle, (x, y), (old_x, old_y) = find(planes, 0)[0][0], find(planes, 1)[0], find(planes, 2)[0]
    dx, dy = x - old_x or (1 if x == 0 else -1), y - old_y or (-1 if y == 8 else 1)
    while dy == 1 and y < 8:
        dx = -dx if not 0 <= x + dx <= 9 else dx
        x, y = (x + dx if 0 <= x + dx <= 9 else x), y + 1
    return RIGHT if x > paddle else LEFT if x < paddle else STAY


def play_freeway(planes: np.ndarray) -> int:
    """Goes up unless a car of the next lane comes too close within three frames."""
    y = find(planes, 0)[0][1]

    def is_safe(row: int) -> bool:
        if not 1 <= row <= 8:
            return True
        car = int(np.flatnonzero(planes[row, :, 1])[0])
        trail, channel = (int(k) for k in np.argwhere(planes[row, :, 2:])[0])
        cells = (4 - car) * (1 if (trail + 1) % 10 == car else -1) % 10  # until it is at the chicken's column
        return cells > (2 if channel == 0 else 1)

    return UP if is_safe(y - 1) else STAY if is_safe(y) else DOWN


def play_asterix(planes: np.ndarray) -> int:
    """Goes to the nearest gold by cells that no enemy is in or next to enter."""
    (x, y), gold = find(planes, 0)[0], find(planes, 3)
    enemies = find(planes, 1)
    dangers = {*enemies, *((ex + direction(planes, (ex, ey), 2), ey) for ex, ey in enemies)}
    target = min(gold, key=lambda cell: abs(cell[0] - x) + 2 * abs(cell[1] - y), default=(5, 5))
    for action in [*towards(x, y, target), STAY, UP, DOWN, LEFT, RIGHT]:
        dx, dy = MOVES[action]
        cell = (max(0, min(9, x + dx)), max(1, min(8, y + dy)))
        entered = {(0, cell[1]), (9, cell[1])} if not planes[cell[1], :, 1:].any() else set()
        if cell not in dangers | entered:
            return action
    return STAY


def play_invaders(planes: np.ndarray) -> int:
    """Keeps away from bullets that are close, and shoots from below the aliens."""
    x, aliens = find(planes, 0)[0][0], find(planes, 1)
    is_hit = [planes[5:9, column, 5].any() for column in range(10)]
    is_hit = [hit or any(abs(ax - column) <= 1 and ay >= 8 for ax, ay in aliens) for column, hit in enumerate(is_hit)]
    to_right = bool(planes[:, :, 3].any())
    aim = min((ax + (1 if to_right else -1) * (9 - ay) // 12 for ax, ay in aliens), key=lambda ax: abs(ax - x))
    wanted = [FIRE] if aim == x else [RIGHT, FIRE] if aim > x else [LEFT, FIRE]
    for action in [*wanted, STAY, LEFT, RIGHT]:
        column = x + {LEFT: -1, RIGHT: 1}.get(action, 0)
        if 0 <= column <= 9 and not is_hit[column]:
            return action
    return FIRE


def play_seaquest(planes: np.ndarray) -> int:
    """Shoots what is ahead in its row, collects divers, and surfaces with six of them or with little oxygen."""
    (x, y), back, enemies = find(planes, 0)[0], find(planes, 1), find(planes, 5) + find(planes, 6)
    faces = x - back[0][0] if back else -1
    oxygen, crew, divers = int(planes[9, :, 7].sum()), int(planes[9, :, 8].sum()), find(planes, 9)
    dangers = set(enemies)
    for ex, ey in enemies:
        step = direction(planes, (ex, ey), 3)
        dangers |= {(ex + step, ey), (ex + 2 * step, ey)}
    for bx, by in find(planes, 4):
        dangers |= {(bx - 1, by), (bx, by), (bx + 1, by), (bx + 2, by), (bx - 2, by)}
    wanted = [FIRE] if any(ey == y and (ex - x) * faces > 0 for ex, ey in enemies) else []
    if crew and (oxygen <= 3 or crew == 6):
        wanted = [UP]
    elif divers and crew < 6:
        wanted += towards(x, y, min(divers, key=lambda cell: abs(cell[0] - x) + abs(cell[1] - y)))
    elif enemies:
        target = min(enemies, key=lambda cell: abs(cell[1] - y))
        wanted += [action for action in towards(x, y, target) if action in (UP, DOWN) or (target[0] - x) * faces < 0]
    for action in [*wanted, STAY, DOWN, UP, LEFT, RIGHT]:
        dx, dy = MOVES.get(action, (0, 0))
        cell = (max(0, min(9, x + dx)), max(0, min(8, y + dy)))
        if cell not in dangers and (cell[1] > 0 or crew > 0 or y == 0):
            return action
    return FIRE


PLAYERS: dict[str, Callable[[np.ndarray], int]] = {
    "asterix": play_asterix,
    "breakout": play_breakout,
    "freeway": play_freeway,
    "invaders": play_invaders,
    "seaquest": play_seaquest,
}


def score(game: str, player: Callable[[np.ndarray], int] | None, num_envs: int, steps: int) -> tuple[float, int]:
    """Mean return of the first episode of every env, and how many ended. None plays at random."""
    vec = shoal.make(f"minatar_{game}", num_envs, seed=0)
    obs, _ = vec.reset()
    generator = np.random.default_rng(0)
    returns, is_over = np.zeros(num_envs), np.zeros(num_envs, bool)
    for _ in range(steps):
        if player is None:
            actions = generator.integers(0, 6, num_envs)
        else:
            actions = np.array([STAY if over else player(planes) for over, planes in zip(is_over, obs)])
        obs, rewards, terminated, truncated, _ = vec.step(actions)
        returns += rewards * ~is_over
        is_over |= terminated | truncated
        if is_over.all():
            break
    vec.close()
    return float(returns.mean()), int(is_over.sum())


if __name__ == "__main__":
    for name, function in PLAYERS.items():
        by_chance = score(name, None, 1000 if name != "freeway" else 100, 10000)
        print(name, "random", by_chance, "scripted", score(name, function, 100 if name != "freeway" else 20, 10000))
