"""Plays the reference package (craftax 1.6.1, jax) and records its states and what it decided at random.

    pip install craftax==1.6.1 && python -m tests.craftax_reference    writes tests/data/craftax_classic.npz

Starts are unlike random play: in caves with tools, asleep at night, starving, beside lava, at the edge of the map, with
plants that are nearly ripe; and beside what random play seldom finds: ores with the tools for them, cows, skeletons,
lava on all sides, a table and a furnace. Together they unlock all achievements. States are written as those of the
header (craftax_twin.STATE).
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np

from .craftax_twin import BLOCK, ITEMS, SIDE, STATE

DATA = Path(__file__).parent / "data" / "craftax_classic.npz"
STARTS = "plain cave night garden edge hunger lava workshop".split()
RARE = "mine herd dungeon brink bench".split()
AROUND = [(31, 32), (33, 32), (32, 31), (32, 33)]  # the cells beside a player in the middle of the map
LUCK = np.dtype(
    [("sapling", "u1"), ("zombies", "u1", (3, 3)), ("cows", "u1", 3), ("skeletons", "u1", (2, 3)), ("spawn", "f2", 3)]
)
SMALL = np.dtype(
    [
        (name, *STATE.fields[name][:1])
        for name in STATE.names
        if name not in ("map", "key", "dice", "is_unmade", "unused")
    ]
)
BUSY = {"spawn_cow": 0.1, "spawn_zombie": 0.06, "spawn_zombie_night": 0.1, "spawn_skeleton": 0.4}


def small(state: Any) -> Any:
    """A State without map, and without what means nothing: where arrows that ended are."""
    result = np.zeros((), SMALL)
    for name in SMALL.names:
        result[name] = state[name]
    ended = result["mobs"][8:]["alive"] == 0
    result["mobs"][8:][ended] = 0
    return result


def map_sum(state: Any) -> int:
    return zlib.crc32(np.ascontiguousarray(state["map"]).tobytes())


class Reference:
    """craftax, one env at a time."""

    def __init__(self, **params: float) -> None:
        import jax
        from craftax.craftax_classic import game_logic, world_gen
        from craftax.craftax_classic.envs.craftax_state import EnvParams, StaticEnvParams
        from craftax.craftax_classic.renderer import render_craftax_symbolic

        names = {name: f"{name}_chance" for name in ("spawn_cow", "spawn_skeleton", "spawn_zombie_night")}
        names["spawn_zombie"] = "spawn_zombie_base_chance"
        self.jax, self.static = jax, StaticEnvParams()
        self.params = EnvParams(**{names[name]: value for name, value in params.items()})
        self.reset = jax.jit(lambda key: world_gen.generate_world(key, self.params, self.static))
        self.step = jax.jit(lambda key, state, a: game_logic.craftax_step(key, state, a, self.params, self.static))
        self.draw = jax.jit(self.decisions)
        self.observe = jax.jit(render_craftax_symbolic)

    def decisions(self, key: Any) -> dict[str, Any]:
        """What craftax_step draws with this key, by the same splits of it."""
        random, np_ = self.jax.random, self.jax.numpy

        def choose(key: Any, count: int) -> Any:
            return random.choice(key, np_.arange(count))

        def tie(key: Any) -> Any:
            return random.choice(key, np_.arange(2), p=np_.array([0.5, 0.5]))

        key, sub = random.split(key)
        sapling = random.uniform(random.split(sub)[1])
        key, mobs = random.split(key)
        mobs, _ = random.split(mobs)
        zombies, cows, skeletons = [], [], []
        for _ in range(3):
            mobs, a = random.split(mobs)
            mobs, b = random.split(mobs)
            mobs, c = random.split(mobs)
            _, mobs = random.split(mobs)
            zombies.append([choose(a, 4), tie(b), random.uniform(c) >= 0.75])
        mobs, _ = random.split(mobs)
        for _ in range(3):
            mobs, a = random.split(mobs)
            cows.append(choose(a, 8))
        mobs, _ = random.split(mobs)
        for _ in range(2):
            mobs, a = random.split(mobs)
            mobs, b = random.split(mobs)
            mobs, c = random.split(mobs)
            skeletons.append([choose(a, 4), tie(b), random.uniform(c) > 0.85])
        key, spawns = random.split(key)
        spawn = []
        for _ in range(3):
            spawns, a = random.split(spawns)
            spawns, _ = random.split(spawns)
            spawn.append(random.uniform(a))
        drawn = {"zombies": zombies, "cows": cows, "skeletons": skeletons, "spawn": spawn}
        return {"sapling": sapling >= 0.1, **{name: np_.array(value, np_.float32) for name, value in drawn.items()}}

    def luck(self, key: Any) -> Any:
        result = np.zeros((), LUCK)
        for name, value in self.draw(key).items():
            result[name] = np.asarray(value)
        return result

    def start(self, kind: str, seed: int) -> Any:
        """A state of the reference that few random games reach."""
        rng, np_ = np.random.default_rng(seed), self.jax.numpy
        state = self.reset(self.jax.random.PRNGKey(seed))
        blocks = np.array(state.map)
        items = {name: int(rng.integers(0, 10)) for name in ITEMS}
        changes: dict[str, Any] = {}
        if kind != "plain":
            changes["inventory"] = state.inventory.replace(**items)
        if kind == "cave":
            changes["player_position"] = pick(rng, blocks == BLOCK["path"])
        if kind == "night":
            changes |= {"timestep": 190, "is_sleeping": True, "player_energy": 2, "light_level": 0.05}
        if kind == "garden":
            blocks[31, 32], blocks[31, 31], blocks[32, 31] = BLOCK["plant"], BLOCK["plant"], BLOCK["ripe"]
            blocks[33, 32] = BLOCK["water"]
            places = state.growing_plants_positions.at[:9].set(np_.array([[31, 32], [31, 31], [32, 31], *[[0, 0]] * 6]))
            changes["growing_plants_positions"] = places.at[3:9].set(np_.array([[50, k] for k in range(6)]))
            blocks[50, :6] = BLOCK["plant"]
            changes["growing_plants_age"] = state.growing_plants_age.at[:3].set(np_.array([580, 10, 700]))
            changes["growing_plants_mask"] = state.growing_plants_mask.at[:9].set(True)
        if kind == "edge":
            edge = np.zeros((SIDE, SIDE), bool)
            edge[:3], edge[-3:], edge[:, :3], edge[:, -3:] = True, True, True, True
            changes["player_position"] = pick(rng, edge & (blocks != BLOCK["lava"]))
        if kind == "hunger":
            names = ("food", "drink", "energy", "health")
            changes |= {f"player_{name}": int(rng.integers(0, 2)) + 3 * (name == "health") for name in names}
            changes["player_recover"] = -14.0
        if kind == "lava":
            near = np.zeros((SIDE, SIDE), bool)
            near[:, :-2] = blocks[:, 2:] == BLOCK["lava"]
            changes["player_position"] = pick(rng, near if near.any() else blocks == BLOCK["path"])
        if kind == "workshop":
            for place, name in zip([(31, 31), (31, 33), (33, 33)], rng.permutation(["table", "furnace", "sand"])):
                blocks[place] = BLOCK[name]
        if kind == "mine":
            ores = [BLOCK[name] for name in ("coal", "iron", "diamond", "stone")]
            blocks[29:36, 29:36] = rng.choice(ores, (7, 7))
            blocks[32, 32] = BLOCK["path"]
            changes["inventory"] = state.inventory.replace(**items | {"iron_pickaxe": 1, "stone_pickaxe": 1})
        if kind == "herd":
            blocks[28:37, 28:37] = BLOCK["grass"]
            changes |= {"cows": self.beside(state.cows, 3), "player_food": 3}
        if kind == "dungeon":
            blocks[28:37, 28:37] = BLOCK["path"]
            changes["skeletons"] = self.beside(state.skeletons, 2)
        if kind == "brink":
            for place in AROUND:
                blocks[place] = BLOCK["lava"]
        if kind == "bench":
            blocks[31, 31], blocks[31, 33] = BLOCK["table"], BLOCK["furnace"]
            full = dict.fromkeys(("wood", "stone", "coal", "iron"), 9)
            changes["inventory"] = state.inventory.replace(**full)
        if {"cows", "skeletons"} & set(changes):
            mobs = np.array(state.mob_map)
            mobs[tuple(np.array(AROUND[: 3 if "cows" in changes else 2]).T)] = True
            changes["mob_map"] = mobs
        if kind not in ("night", "plain"):
            changes |= {"timestep": int(rng.integers(0, 300))}
        place = changes.get("player_position", np.array([SIDE // 2, SIDE // 2]))
        blocks[tuple(place)] = BLOCK["grass"] if blocks[tuple(place)] == BLOCK["lava"] else blocks[tuple(place)]
        changes = {
            name: np_.asarray(value) if isinstance(value, np.ndarray) else value for name, value in changes.items()
        }
        state = state.replace(map=np_.asarray(blocks), **changes)
        return state.replace(light_level=light(int(state.timestep)))

    def beside(self, mobs: Any, count: int) -> Any:
        """Mobs of one kind that stand beside the player and are nearly dead."""
        return mobs.replace(
            position=mobs.position.at[:count].set(self.jax.numpy.array(AROUND[:count])),
            health=mobs.health.at[:count].set(1),
            mask=mobs.mask.at[:count].set(True),
        )

    def convert(self, state: Any) -> Any:
        """A state of the reference as one of the header."""
        result = np.zeros((), STATE)
        result["map"] = np.array(state.map) + 128 * np.array(state.mob_map)
        result["clock"], result["asleep"] = state.timestep, state.is_sleeping
        result["achieved"] = sum(1 << k for k, done in enumerate(np.array(state.achievements)) if done)
        count = int(np.array(state.growing_plants_mask).sum())
        places = np.array(state.growing_plants_positions)[:count]
        result["plants"]["at"][:count] = places[:, 0] * SIDE + places[:, 1]
        result["plants"]["age"][:count] = np.minimum(np.array(state.growing_plants_age)[:count], 600)
        mobs = result["mobs"]
        for kind, first, end in (("zombies", 0, 3), ("cows", 3, 6), ("skeletons", 6, 8), ("arrows", 8, 11)):
            source = getattr(state, kind)
            mobs["row"][first:end], mobs["col"][first:end] = np.array(source.position).T
            mobs["health"][first:end], mobs["alive"][first:end] = np.array(source.health), np.array(source.mask)
            mobs["cooldown"][first:end] = np.maximum(np.array(source.attack_cooldown), 0)
        ways = {(0, 0): 0, (0, -1): 1, (0, 1): 2, (-1, 0): 3, (1, 0): 4}
        directions = np.array(state.arrow_directions)
        mobs["way"][8:] = [ways.get((int(a), int(b)), 0) for a, b in directions]
        result["items"] = [getattr(state.inventory, name) for name in ITEMS]
        result["num_plants"] = count
        result["row"], result["col"] = np.array(state.player_position)
        result["facing"] = state.player_direction
        for name in ("health", "food", "drink", "energy", "fatigue"):
            result[name] = getattr(state, f"player_{name}")
        for name in ("hunger", "thirst", "recover"):
            result[name] = 2 * getattr(state, f"player_{name}")
        return result

    def play(self, kind: str, seed: int, steps: int) -> dict[str, Any]:
        """Random actions from a start: states before and after, what was decided, rewards."""
        rng, state = np.random.default_rng(seed), self.start(kind, seed)
        chances = np.array([1, 3, 3, 3, 3, 8, 2, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1.0])
        if kind in RARE:
            chances[6:] = 0  # no sleep, nothing is built or made
        if kind == "bench":
            chances[:] = 0
            chances[11:] = 1
        first, key = self.convert(state), self.jax.random.PRNGKey(1000 + seed)
        rows: list[Any] = []
        while len(rows) < steps and int(state.player_health) > 0:
            key, use = self.jax.random.split(key)
            action = int(rng.choice(17, p=chances / chances.sum()))
            luck = self.luck(use)
            state, reward = self.step(use, state, action)
            after = self.convert(state)
            rows.append((action, luck, small(after), map_sum(after), float(reward)))
        names = ("actions", "luck", "after", "map_sums", "rewards")
        kinds = (np.uint8, LUCK, SMALL, np.uint32, np.float32)
        return {"first": first, "obs": np.array(self.observe(state))} | {
            name: np.stack([np.asarray(value, dtype) for value in column])
            for name, dtype, column in zip(names, kinds, zip(*rows))
        }


def light(clock: int) -> float:
    return float(1 - abs(np.cos(np.pi * (clock / 300 % 1 + 0.3))) ** 3)


def pick(rng: Any, fits: Any) -> Any:
    places = np.argwhere(fits)
    return places[rng.integers(len(places))]


def main() -> None:
    saved: dict[str, Any] = {}
    reference = Reference(**BUSY)
    for number, kind in enumerate((STARTS * 2)[:12] + RARE):
        game = reference.play(kind, number, 60)
        print(kind, len(game["actions"]), "steps")
        saved |= {f"{name}_{number}": value for name, value in game.items() if name != "obs"}
    DATA.parent.mkdir(exist_ok=True)
    np.savez_compressed(DATA, **saved)
    print(DATA.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
