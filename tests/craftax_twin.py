"""The rules of Craftax-Classic once more, slowly and plainly, for one env.

What is random comes from a `luck`: the header's own numbers (`OwnLuck`), or decisions that were recorded from the
reference package (`RecordedLuck`). So the twin is compared with both: with shoal/envs/craftax_classic.h in every byte
of its state, and with craftax 1.6.1 in everything that its state holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .vacuum_twin import Rng

SIDE = 64
BLOCKS = "invalid beyond grass water stone tree wood path coal iron diamond table furnace sand lava plant ripe".split()
BLOCK = {name: number for number, name in enumerate(BLOCKS)}
SOLID = {BLOCK[name] for name in "water stone tree coal iron diamond table furnace plant ripe".split()}
ACTIONS = "noop left right up down do sleep place_stone place_table place_furnace place_plant".split()
ACTIONS += (
    "make_wood_pickaxe make_stone_pickaxe make_iron_pickaxe make_wood_sword make_stone_sword make_iron_sword".split()
)
ITEMS = "wood stone coal iron diamond sapling wood_pickaxe stone_pickaxe iron_pickaxe".split()
ITEMS += "wood_sword stone_sword iron_sword".split()
ACHIEVEMENTS = (
    "collect_wood place_table eat_cow collect_sapling collect_drink make_wood_pickaxe make_wood_sword".split()
)
ACHIEVEMENTS += "place_plant defeat_zombie collect_stone place_stone eat_plant defeat_skeleton".split()
ACHIEVEMENTS += "make_stone_pickaxe make_stone_sword wake_up place_furnace collect_coal collect_iron".split()
ACHIEVEMENTS += "collect_diamond make_iron_pickaxe make_iron_sword".split()
WAYS = {0: (0, 0), 1: (0, -1), 2: (0, 1), 3: (-1, 0), 4: (1, 0)}  # (rows, columns) of none, left, right, up, down
KINDS = {"zombies": 3, "cows": 3, "skeletons": 2, "arrows": 3}
PARAMS = {
    "day_length": 300,
    "always_diamond": 1,
    "zombie_health": 5,
    "cow_health": 3,
    "skeleton_health": 3,
    "mob_distance": 14,
    "spawn_cow": 0.1,
    "spawn_zombie": 0.02,
    "spawn_zombie_night": 0.1,
    "spawn_skeleton": 0.05,
}

MOB = [(name, "i1") for name in "row col health cooldown".split()] + [("alive", "u1"), ("way", "i1")]
STATE = np.dtype(  # the header's State
    [
        ("map", "u1", (SIDE, SIDE)),
        ("key", "u8"),
        ("dice", "u4", 4),
        ("clock", "u4"),
        ("achieved", "u4"),
        ("plants", [("at", "u2"), ("age", "u2")], 10),
        ("mobs", MOB, 11),
        ("items", "u1", 12),
        ("num_plants", "u1"),
        ("asleep", "u1"),
        ("is_unmade", "u1"),
        *[(name, "i1") for name in "row col facing health food drink energy hunger thirst fatigue recover".split()],
        ("unused", "u1", 28),
    ]
)


class OwnLuck:
    """The header's numbers, in the order in which it draws them."""

    def __init__(self, words: Any) -> None:
        self.rng = Rng(0)
        self.rng.s = [int(word) for word in words]

    def number(self) -> int:
        return self.rng.int(2**32)

    def chance(self) -> np.float32:
        return np.float32(self.number() >> 8) / np.float32(2**24)

    def sapling(self) -> bool:
        return bool(self.chance() < np.float32(0.1))

    def mob(self) -> tuple[int, int, np.float32]:
        """A way, whether a tie is resolved along the columns, and a number from 0 to 1."""
        number = self.number()
        return 1 + number % 4, number >> 2 & 1, np.float32(number >> 8) / np.float32(2**24)

    def zombie(self, index: int) -> tuple[int, int, bool]:
        way, tie, chance = self.mob()
        return way, tie, bool(chance < np.float32(0.75))

    def cow(self, index: int) -> int:
        way, moves, _ = self.mob()
        return way if moves else 0

    def skeleton(self, index: int) -> tuple[int, int, bool]:
        way, tie, chance = self.mob()
        return way, tie, bool(chance > np.float32(0.85))

    def appears(self, kind: str, chance: float) -> bool:
        return bool(self.chance() < np.float32(chance))

    def choose(self, kind: str, index: int, places: list[tuple[int, int]]) -> tuple[int, int]:
        return places[self.rng.int(len(places))]


class RecordedLuck:
    """Decisions of the reference (see craftax_reference.py). A new mob is where it is after the step, in `mobs`."""

    def __init__(self, numbers: Any, mobs: Any) -> None:
        self.numbers, self.mobs = numbers, mobs

    def sapling(self) -> bool:
        return bool(self.numbers["sapling"] < 0.1)

    def zombie(self, index: int) -> tuple[int, int, bool]:
        way, tie, chance = self.numbers["zombies"][index]
        return 1 + int(way), int(tie), bool(chance < 0.75)

    def cow(self, index: int) -> int:
        number = int(self.numbers["cows"][index])
        return 1 + number if number < 4 else 0

    def skeleton(self, index: int) -> tuple[int, int, bool]:
        way, tie, chance = self.numbers["skeletons"][index]
        return 1 + int(way), int(tie), bool(chance > 0.85)

    def appears(self, kind: str, chance: float) -> bool:
        return bool(self.numbers["spawn"][("cows", "zombies", "skeletons").index(kind)] < chance)

    def choose(self, kind: str, index: int, places: list[tuple[int, int]]) -> tuple[int, int]:
        mob = self.mobs[{"zombies": 0, "cows": 3, "skeletons": 6}[kind] + index]
        place = int(mob["row"]), int(mob["col"])
        assert place in places, f"{kind} may not appear at {place}"
        return place


class Mob:
    def __init__(self, health: int = 0) -> None:
        self.place, self.health, self.cooldown, self.alive, self.way = (0, 0), health, 0, False, 0


class Twin:
    """One life in one world. `map` holds blocks, `mob_map` where mobs are."""

    def __init__(self, blocks: Any, **params: Any) -> None:
        self.params = PARAMS | params
        self.map, self.mob_map = np.array(blocks, int).reshape(SIDE, SIDE), np.zeros((SIDE, SIDE), bool)
        self.place, self.facing, self.asleep = (SIDE // 2, SIDE // 2), 3, False
        self.health = self.food = self.drink = self.energy = 9
        self.hunger = self.thirst = self.recover = self.fatigue = 0.0
        self.items = dict.fromkeys(ITEMS, 0)
        self.zombies = [Mob(1) for _ in range(3)]
        self.cows = [Mob(self.params["cow_health"]) for _ in range(3)]
        self.skeletons, self.arrows = [Mob() for _ in range(2)], [Mob() for _ in range(3)]
        self.plants: list[list[Any]] = []  # [place, age]
        self.done: set[str] = set()
        self.clock = 0

    # ---- the map ----

    def is_inside(self, place: tuple[int, int]) -> bool:
        return 0 <= place[0] < SIDE and 0 <= place[1] < SIDE

    def is_open(self, place: tuple[int, int]) -> bool:
        if not self.is_inside(place) or self.mob_map[place] or place == self.place:
            return False
        return self.map[place] not in SOLID and self.map[place] != BLOCK["lava"]

    def away(self, place: tuple[int, int]) -> int:
        return abs(place[0] - self.place[0]) + abs(place[1] - self.place[1])

    def ahead(self) -> tuple[int, int]:
        return step_from(self.place, self.facing)

    def is_near(self, block: str) -> bool:
        row, col = self.place
        around = self.map[max(row - 1, 0) : row + 2, max(col - 1, 0) : col + 2]
        return bool((around == BLOCK[block]).any())

    def light(self) -> float:
        progress = self.clock / self.params["day_length"] % 1 + 0.3
        return 1 - abs(np.cos(np.pi * progress)) ** 3

    # ---- a step ----

    def step(self, action: int, luck: Any) -> tuple[float, bool]:
        """Reward, and whether the life is over."""
        health, done = self.health, len(self.done)
        name = ACTIONS[0 if self.asleep else action]
        self.craft(name)
        if name == "do":
            self.interact(luck)
        if name.startswith("place_"):
            self.put(name.removeprefix("place_"))
        if name in ("left", "right", "up", "down"):
            self.walk(action)
        self.move_mobs(luck)
        self.spawn(luck)
        for plant in self.plants:
            plant[1] = min(plant[1] + 1, 600)
            if plant[1] == 600:
                self.map[plant[0]] = BLOCK["ripe"]
        self.live(name)
        self.items = {item: min(number, 9) for item, number in self.items.items()}
        if self.map[self.place] == BLOCK["lava"]:
            self.health = 0
        self.health = max(self.health, 0)
        self.clock += 1
        return len(self.done) - done + 0.1 * (self.health - health), self.health == 0

    def craft(self, name: str) -> None:
        if not name.startswith("make_"):
            return
        tool = name.removeprefix("make_")
        costs = {"wood": ["wood"], "stone": ["wood", "stone"], "iron": ["wood", "stone", "coal", "iron"]}[
            tool.split("_")[0]
        ]
        if not self.is_near("table") or ("iron" in tool and not self.is_near("furnace")):
            return
        if all(self.items[item] >= 1 for item in costs):
            for item in costs:
                self.items[item] -= 1
            self.items[tool] += 1
            self.done.add(name)

    def interact(self, luck: Any) -> None:
        place, hits = self.ahead(), []
        damage = max(
            1, *(factor * self.items[f"{of}_sword"] for of, factor in (("wood", 2), ("stone", 3), ("iron", 5)))
        )
        for kind in ("zombies", "cows", "skeletons"):
            mobs = getattr(self, kind)
            target = next((mob for mob in mobs if mob.alive and mob.place == place), None)
            if target:
                target.health -= damage
                hits.append((kind, target.health <= 0))
            for mob in mobs:
                mob.alive = mob.health > 0
        for kind, killed in hits:
            if killed:
                self.mob_map[place] = False
                self.done.add({"zombies": "defeat_zombie", "cows": "eat_cow", "skeletons": "defeat_skeleton"}[kind])
                if kind == "cows":
                    self.food, self.hunger = min(self.food + 6, 9), 0.0
        if not hits and self.is_inside(place):
            self.mine(place, luck)

    def mine(self, place: tuple[int, int], luck: Any) -> None:
        block = BLOCKS[self.map[place]]
        tools = {"tree": None, "stone": "wood", "coal": "wood", "iron": "stone", "diamond": "iron"}
        if block in tools and (tools[block] is None or self.items[f"{tools[block]}_pickaxe"] > 0):
            item = "wood" if block == "tree" else block
            self.items[item] += 1
            self.map[place] = BLOCK["grass" if block == "tree" else "path"]
            self.done.add(f"collect_{item}")
        elif block == "grass" and luck.sapling():
            self.items["sapling"] += 1
            self.done.add("collect_sapling")
        elif block == "water":
            self.drink, self.thirst = min(self.drink + 1, 9), 0.0
            self.done.add("collect_drink")
        elif block == "ripe":
            self.food, self.hunger = min(self.food + 4, 9), 0.0
            self.map[place] = BLOCK["plant"]
            self.done.add("eat_plant")
            for plant in self.plants:
                if plant[0] == place:
                    plant[1] = 0

    def put(self, what: str) -> None:
        place = self.ahead()
        item, cost = {"stone": ("stone", 1), "table": ("wood", 2), "furnace": ("stone", 1), "plant": ("sapling", 1)}[
            what
        ]
        if not self.is_inside(place) or self.mob_map[place] or self.items[item] < cost:
            return
        fits = self.map[place] not in SOLID
        if what == "stone":
            fits = fits or self.map[place] == BLOCK["water"]
        if what == "plant":
            fits = self.map[place] == BLOCK["grass"]
        if fits:
            self.items[item] -= cost
            self.map[place] = BLOCK[what]
            self.done.add(f"place_{what}")
            if what == "plant" and len(self.plants) < 10:
                self.plants.append([place, 0])

    def walk(self, action: int) -> None:
        self.facing = action
        place = step_from(self.place, action)
        if self.is_open(place) or (self.is_inside(place) and self.map[place] == BLOCK["lava"]):
            self.place = place

    # ---- mobs ----

    def towards(self, mob: Mob, tie: int) -> int:
        rows, cols = self.place[0] - mob.place[0], self.place[1] - mob.place[1]
        if rows == cols == 0:
            return 0
        if abs(cols) > abs(rows) or (abs(cols) == abs(rows) and tie):
            return 2 if cols > 0 else 1
        return 4 if rows > 0 else 3

    def move(self, mob: Mob, way: int) -> None:
        """One step if the way is free. A mob that is not alive is a ghost: it moves, but is not on the map."""
        near, place = self.away(mob.place) < self.params["mob_distance"], step_from(mob.place, way)
        old, is_open = mob.place, self.is_open(place)
        if is_open:
            mob.place = place
        if mob.alive:
            self.mob_map[old] = False
            mob.alive = near
            if near:
                self.mob_map[mob.place] = True

    def move_mobs(self, luck: Any) -> None:
        for index, mob in enumerate(self.zombies):
            way, tie, hunts = luck.zombie(index)
            away = self.away(mob.place)
            if hunts and away < 10:
                way = self.towards(mob, tie)
            if mob.alive and away == 1 and mob.cooldown <= 0:
                mob.cooldown, way = 5, 0
                self.health -= 7 if self.asleep else 2
                if self.asleep:
                    self.done.add("wake_up")
                self.asleep = False
            else:
                mob.cooldown -= 1
            self.move(mob, way)
        for index, mob in enumerate(self.cows):
            self.move(mob, luck.cow(index))
        for index, mob in enumerate(self.skeletons):
            way, tie, thinks = luck.skeleton(index)
            away, towards = self.away(mob.place), self.towards(mob, tie)
            if thinks and away >= 10:
                way = towards
            if thinks and away <= 3:
                way = {0: 0, 1: 2, 2: 1, 3: 4, 4: 3}[towards]
            cornered = away <= 3 and not self.is_open(step_from(mob.place, way))
            if mob.alive and mob.cooldown <= 0 and (away in (4, 5) or cornered):
                mob.cooldown, way = 4, 0
                free = [arrow for arrow in self.arrows if not arrow.alive]
                if free:
                    free[0].alive, free[0].place, free[0].way = True, mob.place, towards
            else:
                mob.cooldown -= 1
            self.move(mob, way)
        for arrow in self.arrows:
            if arrow.alive:
                self.fly(arrow)

    def fly(self, arrow: Mob) -> None:
        place = step_from(arrow.place, arrow.way)
        arrow.alive = False
        if not self.is_inside(place):
            return
        block = BLOCKS[self.map[place]]
        if place == self.place:
            self.health -= 2
            self.asleep = False
        elif not self.mob_map[place] and (self.map[place] not in SOLID or block == "water"):
            arrow.alive = True
        if block in ("table", "furnace"):
            self.map[place] = BLOCK["path"]
        arrow.place = place

    def spawn(self, luck: Any) -> None:
        night = (1 - self.light()) ** 2
        zombie = self.params["spawn_zombie"] + self.params["spawn_zombie_night"] * night
        for kind, chance, near, blocks in (
            ("cows", self.params["spawn_cow"], 3, ["grass"]),
            ("zombies", zombie, 9, ["grass", "path"]),
            ("skeletons", self.params["spawn_skeleton"], 9, ["path"]),
        ):
            free = [(index, mob) for index, mob in enumerate(getattr(self, kind)) if not mob.alive]
            if not free or not luck.appears(kind, chance):
                continue
            rows, cols = np.indices((SIDE, SIDE))
            away = abs(rows - self.place[0]) + abs(cols - self.place[1])
            fits = np.isin(self.map, [BLOCK[name] for name in blocks]) & ~self.mob_map
            fits &= (away > near) & (away < self.params["mob_distance"])
            places = [(int(row), int(col)) for row, col in np.argwhere(fits)]
            if places:
                index, mob = free[0]
                mob.place = luck.choose(kind, index, places)
                mob.health, mob.alive = self.params[f"{kind[:-1]}_health"], True
                self.mob_map[mob.place] = True

    # ---- needs ----

    def live(self, name: str) -> None:
        if name == "sleep" and self.energy < 9:
            self.asleep = True
        if self.asleep and self.energy >= 9:
            self.asleep = False
            self.done.add("wake_up")
        slowly = 0.5 if self.asleep else 1.0
        self.hunger += slowly
        if self.hunger > 25:
            self.hunger, self.food = 0.0, max(self.food - 1, 0)
        self.thirst += slowly
        if self.thirst > 20:
            self.thirst, self.drink = 0.0, max(self.drink - 1, 0)
        self.fatigue = min(self.fatigue - 1, 0) if self.asleep else self.fatigue + 1
        if self.fatigue > 30:
            self.fatigue, self.energy = 0.0, max(self.energy - 1, 0)
        if self.fatigue < -10:
            self.fatigue, self.energy = 0.0, min(self.energy + 1, 9)
        if self.food > 0 and self.drink > 0 and (self.energy > 0 or self.asleep):
            self.recover += 2.0 if self.asleep else 1.0
        else:
            self.recover -= slowly
        if self.recover > 25:
            self.recover, self.health = 0.0, min(self.health + 1, 9)
        if self.recover < -15:
            self.recover, self.health = 0.0, self.health - 1

    # ---- the header's bytes ----

    def write(self, state: Any) -> None:
        """Into a State of the header; its `key` and `dice` stay as they are."""
        state["map"] = self.map + 128 * self.mob_map
        state["clock"] = self.clock
        state["achieved"] = sum(1 << ACHIEVEMENTS.index(name) for name in self.done)
        state["plants"] = 0
        for index, (place, age) in enumerate(self.plants):
            state["plants"][index] = (place[0] * SIDE + place[1], age)
        for index, mob in enumerate(self.mobs()):
            state["mobs"][index] = (*mob.place, mob.health, max(mob.cooldown, 0), mob.alive, mob.way)
        state["items"] = [self.items[name] for name in ITEMS]
        state["num_plants"], state["asleep"] = len(self.plants), self.asleep
        state["row"], state["col"] = self.place
        state["facing"] = self.facing
        for name in ("health", "food", "drink", "energy", "fatigue"):
            state[name] = getattr(self, name)
        for name in ("hunger", "thirst", "recover"):
            state[name] = 2 * getattr(self, name)
        state["unused"] = 0

    def mobs(self) -> list[Mob]:
        return [*self.zombies, *self.cows, *self.skeletons, *self.arrows]

    @staticmethod
    def read(state: Any, **params: Any) -> Twin:
        twin = Twin(state["map"] & 31, **params)
        twin.mob_map = state["map"] >= 128
        twin.clock = int(state["clock"])
        twin.done = {name for bit, name in enumerate(ACHIEVEMENTS) if state["achieved"] >> bit & 1}
        plants = state["plants"][: state["num_plants"]]
        twin.plants = [[divmod(int(plant["at"]), SIDE), int(plant["age"])] for plant in plants]
        for mob, saved in zip(twin.mobs(), state["mobs"]):
            mob.place, mob.health = (int(saved["row"]), int(saved["col"])), int(saved["health"])
            mob.cooldown, mob.alive, mob.way = int(saved["cooldown"]), bool(saved["alive"]), int(saved["way"])
        twin.items = {name: int(number) for name, number in zip(ITEMS, state["items"])}
        twin.place, twin.facing, twin.asleep = (
            (int(state["row"]), int(state["col"])),
            int(state["facing"]),
            bool(state["asleep"]),
        )
        for name in ("health", "food", "drink", "energy", "fatigue"):
            setattr(twin, name, int(state[name]))
        for name in ("hunger", "thirst", "recover"):
            setattr(twin, name, int(state[name]) / 2)
        return twin

    def observe(self) -> list[float]:
        """The reference's 1345 numbers."""
        cells = np.zeros((7, 9, 21))
        for row, col in np.ndindex(7, 9):
            place = (self.place[0] + row - 3, self.place[1] + col - 4)
            cells[row, col, self.map[place] if self.is_inside(place) else 1] = 1
            for kind, name in enumerate(KINDS):
                cells[row, col, 17 + kind] = any(mob.alive and mob.place == place for mob in getattr(self, name))
        numbers = [*self.items.values(), self.health, self.food, self.drink, self.energy]
        facing = [float(self.facing == way) for way in (1, 2, 3, 4)]
        return [*cells.ravel(), *(number / 10 for number in numbers), *facing, self.light(), float(self.asleep)]


# ---- worlds ----

FIELDS = {"water": (4, 4), "mountain": (4, 4), "tunnel": (8, 32), "tree": (16, 16)}  # squares down and across


def world_angles(key: int) -> dict[str, Any]:
    """The directions of the gradients of each field, in radians, as the header draws them."""
    angles = {}
    for field, (name, (down, across)) in enumerate(FIELDS.items()):
        rows = [Rng((key + 1 + 32 * field + row) % 2**64) for row in range(down + 1)]
        numbers = [[(rng.int(2**32) >> 8) / 2**24 for _ in range(across + 1)] for rng in rows]
        angles[name] = np.pi * (2 * np.array(numbers) - 1)
    return angles


def noise(angles: Any) -> Any:
    """Gradient noise over the map, scaled to 0 .. 1: at each cell, the ramps of four corners are blended."""
    down, across = angles.shape[0] - 1, angles.shape[1] - 1
    tall, wide = SIDE // down, SIDE // across
    result = np.zeros((SIDE, SIDE))
    for row, col in np.ndindex(SIDE, SIDE):
        i, j, y, x = row // tall, col // wide, row % tall / tall, col % wide / wide
        ramp = {(a, b): np.cos(angles[i + a, j + b]) * (y - a) + np.sin(angles[i + a, j + b]) * (x - b)
                for a in (0, 1) for b in (0, 1)}  # fmt: skip
        ty, tx = (t**3 * (t * (t * 6 - 15) + 10) for t in (y, x))
        left, right = (ramp[0, b] * (1 - ty) + ramp[1, b] * ty for b in (0, 1))
        result[row, col] = left * (1 - tx) + right * tx
    return (result - result.min()) / (result.max() - result.min())


def terrain(angles: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Blocks without ores and trees ("stone" is any of a mountain); where ores may be diamonds, where trees may be."""
    rows, cols = np.indices((SIDE, SIDE))
    near = np.clip((abs(rows - SIDE // 2) + abs(cols - SIDE // 2)) / 5, 0, 1)
    water, mountain = noise(angles["water"]) + near - 1, noise(angles["mountain"]) + 0.05 + near - 1
    tunnel, tree = noise(angles["tunnel"]), noise(angles["tree"])
    blocks = np.where(water > 0.7, BLOCK["water"], np.where(water > 0.6, BLOCK["sand"], BLOCK["grass"]))
    blocks = np.where(mountain > 0.7, BLOCK["stone"], blocks)
    blocks[(mountain > 0.7) & ((tunnel > 0.8) | (tunnel.T > 0.8))] = BLOCK["path"]
    blocks[(mountain > 0.85) & (water > 0.4)] = BLOCK["path"]
    blocks[(mountain > 0.85) & (tree > 0.7)] = BLOCK["lava"]
    blocks[SIDE // 2, SIDE // 2] = BLOCK["grass"]
    return blocks, mountain > 0.8, tree > 0.5


def without_ores_and_trees(blocks: Any) -> Any:
    ores = np.isin(blocks, [BLOCK[name] for name in ("coal", "iron", "diamond")])
    return np.where(ores, BLOCK["stone"], np.where(blocks == BLOCK["tree"], BLOCK["grass"], blocks))


def step_from(place: tuple[int, int], way: int) -> tuple[int, int]:
    return place[0] + WAYS[way][0], place[1] + WAYS[way][1]
