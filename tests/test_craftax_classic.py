"""craftax_classic: the header against a slow twin, the twin against the reference, rare rules, worlds, observations."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from shoal.errors import ConfigError, SnapshotError

from . import craftax_player
from . import craftax_reference as reference
from .craftax_twin import (
    ACHIEVEMENTS,
    ACTIONS,
    BLOCK,
    FIELDS,
    STATE,
    OwnLuck,
    RecordedLuck,
    Twin,
    terrain,
    without_ores_and_trees,
    world_angles,
)
from .forging import forged, records_of
from .vacuum_twin import Rng

KINDS = ("zombies", "cows", "skeletons")
CHANCES = np.array([1, 3, 3, 3, 3, 8, 2, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1.0])


def states_of(vec):
    """The States of all envs, to read and to change."""
    records = records_of(vec, vec.snapshot())
    return records, records[:, : STATE.itemsize].view(STATE)[:, 0]


def put_states(vec, states):
    """Each env continues from its State, with dice of its own."""
    records, own = states_of(vec)
    for name in STATE.names:
        if name not in ("key", "dice", "is_unmade", "unused"):
            own[name] = states[name]
    return vec.restore(forged(vec.snapshot(), records))


def recorded_games():
    with np.load(reference.DATA) as data:
        count = sum(name.startswith("first_") for name in data)
        return [
            {name: data[f"{name}_{k}"] for name in ("first", "actions", "luck", "after", "map_sums", "rewards")}
            for k in range(count)
        ]


# blocks per 1,000 cells in 1,500 worlds of craftax 1.6.1
REFERENCE_SHARES = {"grass": 461.6, "water": 127.1, "sand": 111.8, "stone": 158.4, "path": 65.6, "tree": 52.1}
REFERENCE_SHARES |= {"lava": 11.2, "coal": 6.77, "iron": 4.89, "diamond": 0.53}

GAMES = recorded_games()


# ---- the twin against the reference ----


def follow(game):
    """The twin, with the reference's decisions, through one of its games."""
    twin, state = Twin.read(game["first"], **reference.BUSY), np.zeros((), STATE)
    for step, (action, luck, after) in enumerate(zip(game["actions"], game["luck"], game["after"])):
        reward, over = twin.step(int(action), RecordedLuck(luck, after["mobs"]))
        twin.write(state)
        seen = reference.small(state)
        for name in reference.SMALL.names:
            assert np.array_equal(seen[name], after[name]), (step, ACTIONS[action], name, seen[name], after[name])
        assert reference.map_sum(state) == game["map_sums"][step], (step, ACTIONS[action], "map")
        assert reward == pytest.approx(game["rewards"][step], abs=1e-5), step
        assert over == (step == len(game["actions"]) - 1 and after["health"] == 0)
    return twin


@pytest.mark.parametrize("number", range(len(GAMES)))
def test_the_twin_follows_the_reference(number):
    """Games that craftax 1.6.1 played: every number of its state, after every step."""
    follow(GAMES[number])


def test_recorded_games_unlock_every_achievement_and_end_in_lava():
    """What the reference is never seen to do is not compared with it."""
    unlocked = 0
    for game in GAMES:
        unlocked |= int(game["after"]["achieved"][-1]) & ~int(game["first"]["achieved"])
    assert [name for k, name in enumerate(ACHIEVEMENTS) if not unlocked >> k & 1] == []
    ends = [(game["first"]["map"] & 31, game["after"][-1]) for game in GAMES if game["after"]["health"][-1] <= 0]
    assert len(ends) >= 5
    assert any(blocks[end["row"], end["col"]] == BLOCK["lava"] for blocks, end in ends)


@pytest.mark.slow
def test_the_twin_follows_the_reference_live():
    pytest.importorskip("craftax")
    plays = reference.Reference(**reference.BUSY)
    for number, kind in enumerate([*reference.STARTS, *reference.RARE]):
        game = plays.play(kind, 100 + number, 300)
        twin = follow(game)
        ours, theirs = np.array(twin.observe()), np.array(game["obs"], float)
        mobs = np.zeros((63, 21), bool)
        mobs[:, 17:] = True
        mobs = np.append(mobs.ravel(), np.zeros(22, bool))
        assert ours[~mobs] == pytest.approx(theirs[~mobs], abs=1e-3)
        assert (ours[mobs] >= theirs[mobs]).all()  # there, mobs that are out of sight hide others


# ---- the header against the twin ----


def compare(vec, steps, seed, params=None):
    """Every byte of the States, and the rewards, through some steps. Returns the achievements that occurred."""
    rng, num_envs = np.random.default_rng(seed), vec.num_envs
    done = set()
    _, before = states_of(vec)
    before = before.copy()
    for step in range(steps):
        actions = rng.choice(17, num_envs, p=CHANCES / CHANCES.sum())
        obs, rewards, terminated, _, infos = vec.step(actions)
        _, after = states_of(vec)
        for k in range(num_envs):
            twin, luck = Twin.read(before[k], **(params or {})), OwnLuck(before[k]["dice"])
            reward, over = twin.step(int(actions[k]), luck)
            done |= twin.done
            assert rewards[k] == pytest.approx(reward, abs=1e-6), (step, k)
            assert terminated[k] == over, (step, k)
            if over:
                continue  # the State is the next episode's
            expected = after[k].copy()
            twin.write(expected)
            expected["dice"] = luck.rng.s
            for name in STATE.names:
                assert np.array_equal(after[k][name], expected[name]), (step, k, ACTIONS[actions[k]], name)
        before = after.copy()
    return done


def test_every_rule_equals_the_slow_twin():
    """From the starts of the recorded games: caves, gardens, nights, workshops, the edge of the map."""
    vec = shoal.make("craftax_classic", len(GAMES), spawn_skeleton=0.3, spawn_zombie=0.1)
    vec.reset(seed=4)
    put_states(vec, np.array([game["first"] for game in GAMES]))
    done = compare(vec, 30, seed=5, params={"spawn_skeleton": 0.3, "spawn_zombie": 0.1})
    assert len(done) >= 12, sorted(set(ACHIEVEMENTS) - done)


def test_other_params_equal_the_slow_twin():
    params = {"day_length": 40, "zombie_health": 1, "cow_health": 9, "skeleton_health": 2, "mob_distance": 25}
    params |= {"spawn_cow": 0.5, "spawn_zombie": 0.0, "spawn_zombie_night": 1.0, "spawn_skeleton": 1.0}
    vec = shoal.make("craftax_classic", 4, **params)
    vec.reset(seed=9)
    compare(vec, 40, seed=6, params=params)


# ---- rules, one by one ----


def scene(**changes):
    """A meadow at noon with a tree far away, and the player in its middle, looking up."""
    twin = Twin(np.full((64, 64), BLOCK["grass"]))
    twin.map[0, 0] = BLOCK["tree"]
    twin.clock = 60
    for name, value in changes.items():
        setattr(twin, name, value)
    return twin


def ahead(twin, block):
    twin.map[31, 32] = BLOCK[block]
    return twin


def beside(twin, *blocks):
    for place, block in zip([(33, 31), (33, 33)], blocks):
        twin.map[place] = BLOCK[block]
    return twin


def carrying(**items):
    twin = scene()
    twin.items |= items
    return twin


def with_mob(twin, kind, place=(31, 32), **changes):
    mob = getattr(twin, kind)[0]
    mob.place, mob.alive, mob.health = place, True, 1
    for name, value in changes.items():
        setattr(mob, name, value)
    if kind != "arrows":
        twin.mob_map[place] = True
    return twin


def play(twin, action, **params):
    """One step of the header from the twin's state, with no mob appearing. Returns reward, whether it ended, State."""
    quiet = {"spawn_cow": 0, "spawn_zombie": 0, "spawn_zombie_night": 0, "spawn_skeleton": 0}
    vec = shoal.make("craftax_classic", 1, **(quiet | params))
    vec.reset(seed=1)
    _, states = states_of(vec)
    states = states.copy()
    twin.write(states[0])
    put_states(vec, states)
    _, rewards, terminated, _, _ = vec.step(np.array([ACTIONS.index(action)]))
    return float(rewards[0]), bool(terminated[0]), states_of(vec)[1][0]


METALS = {"wood": 9, "stone": 9, "coal": 9, "iron": 9}
UNLOCKS = {
    "collect_wood": (ahead(scene(), "tree"), "do", "grass"),
    "collect_stone": (ahead(carrying(wood_pickaxe=1), "stone"), "do", "path"),
    "collect_coal": (ahead(carrying(wood_pickaxe=1), "coal"), "do", "path"),
    "collect_iron": (ahead(carrying(stone_pickaxe=1), "iron"), "do", "path"),
    "collect_diamond": (ahead(carrying(iron_pickaxe=1), "diamond"), "do", "path"),
    "collect_drink": (ahead(scene(drink=3), "water"), "do", "water"),
    "eat_plant": (ahead(scene(food=3, plants=[[(31, 32), 600]]), "ripe"), "do", "plant"),
    "eat_cow": (with_mob(scene(food=3), "cows"), "do", "grass"),
    "defeat_zombie": (with_mob(scene(), "zombies"), "do", "grass"),
    "defeat_skeleton": (with_mob(scene(), "skeletons"), "do", "grass"),
    "place_stone": (ahead(carrying(stone=1), "lava"), "place_stone", "stone"),
    "place_table": (carrying(wood=2), "place_table", "table"),
    "place_furnace": (carrying(stone=1), "place_furnace", "furnace"),
    "place_plant": (carrying(sapling=1), "place_plant", "plant"),
    "make_wood_pickaxe": (beside(carrying(wood=1), "table"), "make_wood_pickaxe", "grass"),
    "make_stone_pickaxe": (beside(carrying(wood=1, stone=1), "table"), "make_stone_pickaxe", "grass"),
    "make_iron_pickaxe": (beside(carrying(**METALS), "table", "furnace"), "make_iron_pickaxe", "grass"),
    "make_wood_sword": (beside(carrying(wood=1), "table"), "make_wood_sword", "grass"),
    "make_stone_sword": (beside(carrying(wood=1, stone=1), "table"), "make_stone_sword", "grass"),
    "make_iron_sword": (beside(carrying(**METALS), "furnace", "table"), "make_iron_sword", "grass"),
    "wake_up": (scene(asleep=True, energy=9), "noop", "grass"),
}


@pytest.mark.parametrize("name", UNLOCKS)
def test_achievement(name):
    """Each is rewarded once, and leaves what it should ahead of the player."""
    twin, action, block = UNLOCKS[name]
    reward, over, state = play(twin, action)
    assert (reward, over) == (1.0, False)
    assert state["achieved"] == 1 << ACHIEVEMENTS.index(name)
    assert state["map"][31, 32] == BLOCK[block]
    twin.done = {name}
    again, _, _ = play(twin, action)
    twin.done = set()
    assert again == 0.0


def test_a_sapling_comes_one_time_in_ten():
    vec = shoal.make("craftax_classic", 2000, spawn_cow=0, spawn_zombie=0, spawn_zombie_night=0)
    vec.reset(seed=2)
    _, states = states_of(vec)
    states = states.copy()
    scene().write(states[0])
    states[1:] = states[0]
    put_states(vec, states)
    vec.step(np.full(2000, ACTIONS.index("do")))
    assert 160 <= (states_of(vec)[1]["items"][:, 5] == 1).sum() <= 240


@pytest.mark.parametrize(
    ("twin", "action"),
    [
        (ahead(scene(), "stone"), "do"),  # no pickaxe
        (ahead(carrying(wood_pickaxe=1), "iron"), "do"),
        (ahead(carrying(stone_pickaxe=1), "diamond"), "do"),
        (ahead(scene(), "plant"), "do"),  # not ripe
        (carrying(wood=1), "place_table"),  # too little
        (ahead(carrying(wood=9), "water"), "place_table"),
        (ahead(carrying(stone=9), "stone"), "place_stone"),
        (ahead(carrying(sapling=1), "sand"), "place_plant"),
        (with_mob(carrying(stone=1), "cows"), "place_stone"),  # taken
        (carrying(**METALS), "make_wood_pickaxe"),  # no table
        (beside(carrying(**METALS), "table"), "make_iron_sword"),  # no furnace
        (beside(carrying(wood=9, stone=9, iron=9), "table", "furnace"), "make_iron_pickaxe"),  # no coal
        (scene(energy=9), "sleep"),
    ],
)
def test_what_does_nothing(twin, action):
    reward, over, state = play(twin, action)
    assert (reward, over, state["achieved"]) == (0.0, False, 0)
    assert list(state["items"]) == list(twin.items.values())
    assert state["map"][31, 32] & 31 == twin.map[31, 32]


def test_lava_ends_the_episode():
    assert play(ahead(scene(), "lava"), "up")[:2] == (pytest.approx(-0.9), True)
    assert play(ahead(scene(health=4), "lava"), "up")[:2] == (pytest.approx(-0.4), True)


def test_a_zombie_hits_harder_who_sleeps():
    reward, over, state = play(with_mob(scene(), "zombies"), "noop")
    assert (reward, over, state["mobs"][0]["cooldown"]) == (pytest.approx(-0.2), False, 5)
    reward, over, state = play(with_mob(scene(asleep=True, energy=3), "zombies"), "noop")
    assert (reward, over, state["asleep"]) == (pytest.approx(1 - 0.7), False, 0)
    assert play(with_mob(scene(asleep=True, energy=3, health=7), "zombies"), "noop")[1]
    assert play(with_mob(scene(), "zombies", cooldown=2), "noop")[0] == 0.0


def test_arrows_hit_fly_over_water_and_break_tables():
    assert play(with_mob(scene(asleep=True, energy=3), "arrows", way=4), "noop")[0] == pytest.approx(-0.2)
    table = with_mob(ahead(scene(), "table"), "arrows", place=(30, 32), way=4)
    assert play(table, "noop")[2]["map"][31, 32] == BLOCK["path"]
    _, _, state = play(with_mob(ahead(scene(), "water"), "arrows", place=(30, 32), way=4), "noop")
    assert (state["mobs"][8]["row"], state["mobs"][8]["alive"]) == (31, 1)
    assert not play(with_mob(ahead(scene(), "stone"), "arrows", place=(30, 32), way=4), "noop")[2]["mobs"][8]["alive"]


def test_a_skeleton_shoots_from_four_cells():
    _, _, state = play(with_mob(scene(), "skeletons", place=(28, 32)), "noop")
    assert tuple(state["mobs"][8]) == (29, 32, 0, 0, 1, 4)  # the arrow has flown one cell
    assert state["mobs"][6]["cooldown"] == 4


@pytest.mark.parametrize(
    ("swords", "left"), [({}, 99), ({"wood_sword": 1}, 98), ({"stone_sword": 2}, 94), ({"iron_sword": 1}, 95)]
)
def test_damage(swords, left):
    twin = with_mob(carrying(**swords), "cows", health=100)
    assert play(twin, "do")[2]["mobs"][3]["health"] == left


def test_a_ghost_comes_back():
    """A mob that vanished, and was not killed, appears again when the player does something near it."""
    twin = with_mob(scene(), "cows", place=(30, 30), alive=False, health=3)
    twin.mob_map[30, 30] = False
    assert not play(twin, "noop")[2]["mobs"][3]["alive"]
    assert play(twin, "do")[2]["mobs"][3]["alive"]


def test_needs():
    """Each meter runs over into its level; without food, health falls."""
    _, _, state = play(scene(hunger=25.0, thirst=20.0, fatigue=30, recover=25.0, health=5), "noop")
    assert [int(state[name]) for name in ("food", "drink", "energy", "health")] == [8, 8, 8, 6]
    assert [int(state[name]) for name in ("hunger", "thirst", "fatigue", "recover")] == [0, 0, 0, 0]
    reward, over, _ = play(scene(food=0, recover=-15.0, health=1), "noop")
    assert (reward, over) == (pytest.approx(-0.1), True)
    _, _, state = play(scene(asleep=True, energy=3, fatigue=-10), "noop")
    assert (state["energy"], state["fatigue"], state["asleep"]) == (4, 0, 1)


def test_the_eleventh_plant_does_not_grow():
    twin = carrying(sapling=2)
    twin.plants = [[(60, k), 599] for k in range(10)]
    twin.map[60, :10] = BLOCK["plant"]
    _, _, state = play(twin, "place_plant")
    assert state["map"][31, 32] == BLOCK["plant"]
    assert state["num_plants"] == 10
    assert (state["map"][60, :10] == BLOCK["ripe"]).all()


@pytest.mark.slow
def test_a_scripted_player_reaches_most_achievements():
    assert craftax_player.play(30).mean() > 13


# ---- observations, params, snapshots ----


def test_observations():
    """flat=1 is the reference's vector; the bytes of flat=0 say the same."""
    firsts = np.array([game["first"] for game in GAMES])
    both = []
    for flat in (0, 1):
        vec = shoal.make("craftax_classic", len(GAMES), flat=flat)
        vec.reset(seed=4)
        put_states(vec, firsts)
        actions = np.random.default_rng(1).integers(0, 17, (30, len(GAMES)))
        for row in actions:
            obs = vec.step(row)[0]
        both.append((obs, states_of(vec)[1].copy()))
    (compact, states), (flats, same) = both
    assert states.tobytes() == same.tobytes()
    for small, wide, state in zip(compact.astype(int), flats, states):
        twin = Twin.read(state)
        assert wide / 255 == pytest.approx(twin.observe(), abs=0.003)
        cells = np.zeros((63, 21))
        cells[np.arange(63), small[:63]] = 1
        cells[:, 17:] = small[63:126, None] >> np.arange(4) & 1
        assert (cells.ravel() == wide[:1323] / 255).all()
        assert list(small[126:142]) == [*twin.items.values(), twin.health, twin.food, twin.drink, twin.energy]
        assert (small[142], small[143], small[144]) == (twin.facing - 1, wide[-2], twin.asleep)


def test_bad_params():
    for params in ({"day_length": 0}, {"zombie_health": 0}, {"spawn_cow": 1.5}, {"flat": 2}, {"mob_distance": 0}):
        with pytest.raises(ConfigError):
            shoal.make("craftax_classic", 1, **params)


@pytest.mark.parametrize("field", ["row", "facing", "map", "num_plants"])
def test_a_state_off_the_map_is_refused(field):
    vec = shoal.make("craftax_classic", 1)
    vec.reset(seed=0)
    records, states = states_of(vec)
    states[field] = 77
    with pytest.raises(SnapshotError):
        vec.restore(forged(vec.snapshot(), records))


# ---- worlds ----


def test_worlds_are_the_twins():
    """Blocks from the same gradients by slow formulas. Rounding may decide where a field meets a threshold."""
    vec = shoal.make("craftax_classic", 1)
    vec.reset(seed=20)
    _, states = states_of(vec)
    rng = Rng(20)
    key = rng.int(2**32) << 32 | rng.int(2**32)
    blocks, deep, woods = terrain(world_angles(key))
    seen = states[0]["map"].astype(int)
    assert (without_ores_and_trees(seen) != blocks).sum() <= 2
    assert ((seen == BLOCK["tree"]) & ~woods).sum() <= 1
    assert ((seen == BLOCK["diamond"]) & ~deep).sum() <= 2
    assert states[0]["key"] == key


@pytest.mark.slow
def test_terrain_is_the_references():
    """The reference's blocks, from given gradients."""
    pytest.importorskip("craftax")
    import jax
    from craftax.craftax_classic.envs.craftax_state import EnvParams, StaticEnvParams
    from craftax.craftax_classic.world_gen import generate_world

    for key in range(3):
        angles = world_angles(key)
        given = tuple(jax.numpy.array(angles[name] / (2 * np.pi)) for name in FIELDS)
        made = generate_world(jax.random.PRNGKey(key), EnvParams(fractal_noise_angles=given), StaticEnvParams())
        blocks, deep, woods = terrain(angles)
        seen = np.array(made.map)
        assert (without_ores_and_trees(seen) != blocks).sum() <= 2
        assert ((seen == BLOCK["tree"]) & ~woods).sum() <= 1


def test_shares_of_blocks():
    """As in the reference; and one diamond more, unless always_diamond is off."""
    vec = shoal.make("craftax_classic", 300)
    vec.reset(seed=0)
    _, states = states_of(vec)
    counts = np.bincount(states["map"].ravel(), minlength=17) / states["map"].size * 1000
    for name, share in REFERENCE_SHARES.items():
        assert counts[BLOCK[name]] == pytest.approx(share, rel=0.12), (name, counts[BLOCK[name]], share)
    diamonds = (states["map"] == BLOCK["diamond"]).sum((1, 2))
    assert diamonds.min() >= 1
    bare = shoal.make("craftax_classic", 300, always_diamond=0)
    bare.reset(seed=0)
    _, without = states_of(bare)
    assert ((without["map"] == BLOCK["diamond"]).sum((1, 2)) == diamonds - 1).all()
