"""States of our minigrid envs in the envs of the minigrid package, and scripted players."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import shoal

from .forging import forged, records_of

LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)
UNSEEN, EMPTY, WALL, FLOOR, DOOR, KEY, BALL, BOX, GOAL = range(9)
CLOSED, LOCKED = 11, 12  # a door in the states 1 and 2, as our cells have it
GREY_WALL, GREEN_GOAL = WALL | 5 << 4, GOAL | 1 << 4
TOWARD = ((1, 0), (0, 1), (-1, 0), (0, -1))
TASKS = ("empty", "doorkey", "fourrooms", "unlock", "memory", "multiroom")


@dataclass(frozen=True)
class World:
    """The State of an env: cells[y, x], each object | color << 4."""

    cells: np.ndarray[Any, np.dtype[np.uint8]]
    x: int
    y: int
    facing: int
    carried: int
    steps: int

    def find(self, *kinds: int) -> list[tuple[int, int]]:
        """(x, y) of all objects of these kinds."""
        return [(int(x), int(y)) for y, x in np.argwhere(np.isin(self.cells & 15, kinds))]


def sides_of(name: str, consts: dict[str, int]) -> tuple[int, int]:
    """(width, height) of the grid."""
    if name == "minigrid_unlock":
        room = consts.get("room_size", 6)
        return 2 * room - 1, room
    size = consts.get("size", {"fourrooms": 19, "memory": 13, "multiroom": 25}.get(name[9:], 8))
    return size, size


class Worlds:
    """Reads and writes the states of a vector of our envs, through snapshots."""

    def __init__(self, vec: Any, width: int, height: int) -> None:
        self.vec, self.width, self.height = vec, width, height
        self.steps_at = -(-(width * height + 4) // 4) * 4

    def read(self) -> list[World]:
        return [self._world(record) for record in records_of(self.vec, self.vec.snapshot())]

    def write(self, worlds: list[World]) -> None:
        blob = self.vec.snapshot()
        records = records_of(self.vec, blob)
        for record, world in zip(records, worlds, strict=True):
            count = self.width * self.height
            record[:count] = world.cells.reshape(-1)
            record[count : count + 4] = world.x, world.y, world.facing, world.carried
            record[self.steps_at : self.steps_at + 4].view(np.int32)[0] = world.steps
        self.vec.restore(forged(blob, records))

    def _world(self, record: Any) -> World:
        count = self.width * self.height
        x, y, facing, carried = map(int, record[count : count + 4])
        steps = int(record[self.steps_at : self.steps_at + 4].view(np.int32)[0])
        return World(record[:count].reshape(self.height, self.width).copy(), x, y, facing, carried, steps)


def make(name: str, num_envs: int, seed: int = 0, **options: Any) -> tuple[Any, Worlds, Any]:
    """A vector of our envs after its reset, its states, and the first observations."""
    vec = shoal.make(name, num_envs, seed=seed, backend="serial", **options)
    obs, _ = vec.reset(seed=seed)
    return vec, Worlds(vec, *sides_of(name, options)), obs


# ---- the reference ----


def reference(name: str, **options: Any) -> Any:
    """The env of the minigrid package with the same options."""
    from minigrid import envs

    task = name.removeprefix("minigrid_")
    limit = {"max_steps": options["max_steps"]} if "max_steps" in options else {}
    size = {"size": options["size"]} if "size" in options else {}
    if task == "empty":
        start = {"agent_start_pos": None} if options.get("random_start") else {}
        return envs.EmptyEnv(**size, **start, **limit)
    if task == "doorkey":
        return envs.DoorKeyEnv(**size, **limit)
    if task == "fourrooms":
        return envs.FourRoomsEnv(**limit)
    if task == "unlock":
        return envs.UnlockEnv(**limit)
    if task == "memory":
        random_length = bool(options.get("random_length"))
        return envs.MemoryEnv(size=options.get("size", 13), random_length=random_length, **limit)
    rooms = options.get("rooms", 6)
    return envs.MultiRoomEnv(rooms, rooms, options.get("max_room_size", 10), **limit)


def to_object(cell: int) -> Any:
    """A cell as an object of the minigrid package."""
    from minigrid.core.world_object import WorldObj

    kind = cell & 15
    state = kind - 10 if kind in (CLOSED, LOCKED) else 0
    return WorldObj.decode(DOOR if state else kind, cell >> 4, state)


def to_cell(thing: Any) -> int:
    """And back."""
    if thing is None:
        return EMPTY
    kind, color, state = thing.encode()
    return (kind if not state else 10 + state) | color << 4


def put(env: Any, world: World) -> None:
    """Puts a state into an env of the minigrid package that was reset."""
    height, width = world.cells.shape
    for x in range(width):
        for y in range(height):
            env.grid.set(x, y, to_object(int(world.cells[y, x])))
    env.agent_pos, env.agent_dir, env.step_count = (world.x, world.y), world.facing, world.steps
    env.carrying = to_object(world.carried)
    if hasattr(env, "door"):
        env.door = env.grid.get(*world.find(DOOR, CLOSED, LOCKED)[0])
    if hasattr(env, "success_pos"):
        env.success_pos, env.failure_pos = ends_of_hallway(world)


def take(env: Any) -> World:
    """The state of an env of the minigrid package."""
    cells = [[to_cell(env.grid.get(x, y)) for x in range(env.width)] for y in range(env.height)]
    x, y = map(int, env.agent_pos)
    return World(np.array(cells, np.uint8), x, y, int(env.agent_dir), to_cell(env.carrying), env.step_count)


def ends_of_hallway(world: World) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where memory is won, and where it is lost."""
    middle, shown = len(world.cells) // 2, world.cells[len(world.cells) // 2 - 1, 1]
    column = max(x for x, _ in world.find(KEY, BALL))
    upper, lower = (column, middle - 1), (column, middle + 1)
    return (upper, lower) if world.cells[middle - 2, column] == shown else (lower, upper)


def see(env: Any) -> list[int]:
    """Its observation, as ours has it."""
    obs = env.gen_obs()
    return [*obs["image"].reshape(-1).tolist(), int(obs["direction"])]


# ---- players ----

UNKNOWN = -1
Node = tuple[int, int, int, int, frozenset[tuple[int, int]]]  # x, y, facing, carried, doors opened and keys taken


def solve(world: World, name: str) -> list[int] | None:
    """The shortest actions that solve a state for one who sees all of it; None if there are none."""
    end = ends_of_hallway(world)[0] if name == "minigrid_memory" else None
    start = (world.x, world.y, world.facing, world.carried, frozenset[tuple[int, int]]())

    def is_end(action: int, ahead: tuple[int, int], kind: int) -> bool:
        opens = name == "minigrid_unlock" and action == TOGGLE
        return opens or (action == FORWARD and (kind == GOAL or ahead == end))

    return search(lambda at: int(world.cells[at[1], at[0]]), start, is_end)


def search(look: Callable[[tuple[int, int]], int], start: Node, is_end: Callable[..., bool]) -> list[int] | None:
    """The shortest actions, by breadth-first search, of which the last one is an end."""
    came: dict[Node, Any] = {start: None}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        ahead = (node[0] + TOWARD[node[2]][0], node[1] + TOWARD[node[2]][1])
        cell = look(ahead)
        for action, after in _moves(node, ahead, cell):
            if is_end(action, ahead, cell & 15 if cell >= 0 else UNKNOWN):
                actions = [action]
                while came[node] is not None:
                    node, action = came[node]
                    actions.append(action)
                return actions[::-1]
            if after not in came:
                came[after] = (node, action)
                queue.append(after)
    return None


def _moves(node: Node, ahead: tuple[int, int], cell: int) -> Iterator[tuple[int, Node]]:
    """(action, next node) of what changes something. What is ahead decides."""
    x, y, facing, carried, changed = node
    yield LEFT, (x, y, (facing - 1) % 4, carried, changed)
    yield RIGHT, (x, y, (facing + 1) % 4, carried, changed)
    kind, color = cell & 15, cell >> 4
    if cell == UNKNOWN or kind in (EMPTY, DOOR, GOAL) or ahead in changed:
        yield FORWARD, (*ahead, facing, carried, changed)
    elif kind == KEY and carried == EMPTY:
        yield PICKUP, (x, y, facing, cell, changed | {ahead})
    elif kind == CLOSED or (kind == LOCKED and carried == (KEY | color << 4)):
        yield TOGGLE, (x, y, facing, carried, changed | {ahead})


class Explorer:
    """A scripted player that has only the observations: it draws a map and goes to the nearest cell not seen yet.

    Once it has seen what solves the task, it plans on its map. memory is played by Rememberer.
    """

    def __init__(self, name: str) -> None:
        self.name, self.x, self.y = name, 0, 0
        self.map: dict[tuple[int, int], int] = {}

    def act(self, obs: Any) -> int:
        facing, view = int(obs[147]), np.asarray(obs[:147]).reshape(7, 7, 3)
        dx, dy = TOWARD[facing]
        for column in range(7):
            for row in range(7):
                kind, color, state = map(int, view[column, row])
                right, far = column - 3, 6 - row
                if kind != UNSEEN and (right, far) != (0, 0):
                    at = (self.x + dx * far - dy * right, self.y + dy * far + dx * right)
                    self.map[at] = (10 + state if state else kind) | color << 4
        own = self.map.setdefault((self.x, self.y), EMPTY)
        kind, color, _ = map(int, view[3, 6])
        start = (self.x, self.y, facing, kind | color << 4, frozenset[tuple[int, int]]())
        plan = search(self._known, start, self._solves) or search(self._seen, start, self._explores)
        action = plan[0] if plan else LEFT
        if action == FORWARD:
            self.x, self.y = self.x + dx, self.y + dy
        assert own in (EMPTY, GREEN_GOAL) or own & 15 == DOOR
        return action

    def _seen(self, at: tuple[int, int]) -> int:
        return self.map.get(at, UNKNOWN)

    def _known(self, at: tuple[int, int]) -> int:
        return self.map.get(at, GREY_WALL)

    def _solves(self, action: int, ahead: tuple[int, int], kind: int) -> bool:
        opens = self.name == "minigrid_unlock" and action == TOGGLE
        return opens or (action == FORWARD and kind == GOAL)

    def _explores(self, action: int, ahead: tuple[int, int], kind: int) -> bool:
        return action == FORWARD and kind == UNKNOWN


class Rememberer(Explorer):
    """A scripted player of memory: looks at the first object, then walks next to the one like it.

    It starts in the row of the hallway, at (0, 0) of its map, and faces the far end.
    """

    first = 0  # the kind of the object in the start room

    def act(self, obs: Any) -> int:
        behind = [cell & 15 for (x, _), cell in self.map.items() if x <= 0]
        self.first = next((kind for kind in behind if kind in (KEY, BALL)), 0)
        return super().act(obs)

    def _solves(self, action: int, ahead: tuple[int, int], kind: int) -> bool:
        beyond = self.map.get((ahead[0], 2 if ahead[1] > 0 else -2), EMPTY) & 15
        return bool(self.first) and action == FORWARD and ahead[0] > 0 and abs(ahead[1]) == 1 and beyond == self.first
