"""overcooked: games of the Overcooked-AI package replayed step by step, its rare rules one by one, scripted cooks."""

from __future__ import annotations

import importlib
import random
import warnings
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.errors import ConfigError

from .overcooked_cooks import EAST, INTERACT, NORTH, SOUTH, STAY, WEST, Kitchen, play
from .state_fields import read_state, write_state

RECORDED = Path(__file__).parent / "data" / "overcooked.npz"
LAYOUTS = "cramped_room asymmetric_advantages coordination_ring forced_coordination counter_circuit".split()
ONION, DISH, SOUP_1, SOUP_3 = 1, 2, 3, 5
ROWS = {
    "cramped_room": ["XXPXX", "O   O", "X   X", "XDXSX"],
    "asymmetric_advantages": ["XXXXXXXXX", "O XSXOX S", "X   P   X", "X   P   X", "XXXDXDXXX"],
    "coordination_ring": ["XXXPX", "X   P", "D X X", "O   X", "XOSXX"],
    "forced_coordination": ["XXXPX", "O X P", "O X X", "D X X", "XXXSX"],
    "counter_circuit": ["XXXPPXXX", "X      X", "D XXXX S", "X      X", "XXXOOXXX"],
}


def pots_of(layout):
    return [(x, y) for y, row in enumerate(ROWS[layout]) for x, tile in enumerate(row) if tile == "P"]


# ---- the observation once more, slowly ----


def expected_obs(layout, cooks, pots, things, agent, cook_time=20):
    """The 93 numbers that the header promises, from a state of the package."""
    rows, (x, y, facing, _) = ROWS[layout], cooks[agent]

    def one_hot(value, size):
        return [float(value == k) for k in range(size)]

    def way(cell):
        return [(cell[0] - x) / 8, (cell[1] - y) / 4]

    def nearest(cells):  # the first of the nearest, row by row
        return min(cells, key=lambda cell: abs(cell[0] - x) + abs(cell[1] - y))

    def tiles(kind):
        return [(i, j) for j, row in enumerate(rows) for i, tile in enumerate(row) if tile == kind]

    obs = []
    for who in (agent, 1 - agent):
        column, row, face, held = cooks[who]
        kind = {0: -1, ONION: 0, DISH: 1, SOUP_3: 2}.get(held, 3)
        obs += one_hot(column, 9) + one_hot(row, 5) + one_hot(face, 4) + one_hot(kind, 4)
    dx, dy = [(0, -1), (0, 1), (1, 0), (-1, 0)][facing]
    tile, thing = rows[y + dy][x + dx], int(things[y + dy][x + dx])
    obs += one_hot({" ": 0, "X": 1 + min(thing, 3), "O": 5, "D": 6, "S": 7, "P": 8}[tile], 9)
    for cell, (onions, tick) in zip(pots_of(layout), pots):
        is_done, is_started = tick >= cook_time, tick >= 0
        left = max(cook_time - tick, 0) / cook_time if is_started else 0
        obs += way(cell) + [float(onions >= k) for k in (1, 2, 3)] + [is_started and not is_done, left, is_done]
    obs += [0.0] * (8 * (2 - len(pots_of(layout))))
    for kind in "ODS":
        obs += way(nearest(tiles(kind)))
    for kinds in ((ONION,), (DISH,), (3, 4, 5)):
        cells = [(int(i), int(j)) for j, i in np.argwhere(np.isin(things, kinds))]
        obs += [1.0, *way(nearest(cells))] if cells else [0.0] * 3
    obs += [float(rows[y + j][x + i] == " ") for i, j in ((0, -1), (0, 1), (1, 0), (-1, 0))]
    obs += one_hot(LAYOUTS.index(layout), 5)
    return np.array(obs, np.float32)


def numbers(vec, env=0):
    """Cooks, pots and things of an env, in the form of the recording."""
    state = read_state(vec, env)
    at, facing, held, onions, tick = (state[name].tolist() for name in ("at", "facing", "held", "onions", "tick"))
    cooks = [[at[k] % 9, at[k] // 9, facing[k], held[k]] for k in (0, 1)]
    pots = [[onions[k], tick[k]] for k in (0, 1)]
    return cooks, pots, state["things"].reshape(5, 9)


def replay(game, layout):
    """Plays the actions of a recorded game and compares everything after each."""
    plain, shaped = (shoal.make("overcooked", 1, layout=layout, shaping=factor) for factor in (0.0, 1.0))
    for vec in (plain, shaped):
        vec.reset(seed=0)
    for step, actions in enumerate(game["actions"]):
        obs, points, *_ = plain.step(actions)
        _, rewards, _, truncated, _ = shaped.step(actions)
        assert points.tolist() == [game["points"][step]] * 2
        assert (rewards - points).tolist() == list(game["shaped"][step])
        if truncated.any():
            assert step == 399
            break
        cooks, pots, things = numbers(plain)
        assert np.array_equal(cooks, game["cooks"][step]), step
        assert np.array_equal(pots, game["pots"][step]), step
        assert np.array_equal(things, game["things"][step]), step
        for agent in (0, 1):
            assert obs[agent].tolist() == expected_obs(layout, cooks, pots, things, agent).tolist()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_recorded_games_of_the_package_are_the_same_here(layout):
    recorded = np.load(RECORDED)
    games = np.flatnonzero(recorded["layouts"] == LAYOUTS.index(layout))
    assert recorded["points"][games].sum() >= 200  # several soups were served
    for number in games:
        replay({key: recorded[key][number] for key in recorded if key != "layouts"}, layout)


def test_recorded_games_have_the_rare_events():
    recorded = np.load(RECORDED)
    held, pots = recorded["cooks"][..., 3], recorded["pots"]
    assert (held == SOUP_1).any()
    assert ((pots[..., 0] == 2) & (pots[..., 1] > 0)).any()  # a pot that was started early
    assert (recorded["things"] >= SOUP_1).any()
    assert ((recorded["actions"] == INTERACT).all(-1) & (recorded["shaped"] > 0).any(-1)).any()


def test_new_games_of_the_package_are_the_same_here(monkeypatch):
    """Against the package itself, where it is installed."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the package's imports
        pytest.importorskip("overcooked_ai_py")
        recorder = importlib.import_module("record_overcooked")
    for layout in LAYOUTS:
        replay(recorder.record(layout, noise=0.3, seed=1000 + LAYOUTS.index(layout)), layout)


# ---- rules of note ----


def at(x, y):
    return 9 * y + x


class Game:
    """One kitchen whose state is set by hand."""

    def __init__(self, state=None, **options):
        self.vec = shoal.make("overcooked", 1, **options)
        self.vec.reset(seed=0)
        if state:
            write_state(self.vec, **state)

    def step(self, first, second=STAY):
        self.obs, self.rewards, *_ = self.vec.step(np.array([first, second]))
        return self

    def __getattr__(self, name):
        value = read_state(self.vec)[name]
        return value.tolist() if hasattr(value, "tolist") else value


POT = {"at": [at(2, 1), at(1, 2)], "facing": [NORTH, SOUTH]}  # cook 0 in front of the pot, cook 1 of the dishes


def test_the_start_is_that_of_the_layouts():
    starts = {layout: Game(layout=layout).at for layout in LAYOUTS}
    assert starts == {
        "cramped_room": [at(1, 2), at(3, 1)],
        "asymmetric_advantages": [at(6, 2), at(1, 3)],
        "coordination_ring": [at(2, 1), at(1, 2)],
        "forced_coordination": [at(3, 1), at(1, 2)],
        "counter_circuit": [at(3, 3), at(3, 1)],
    }


def test_random_starts_are_two_cells_of_the_floor():
    vec = shoal.make("overcooked", 300, random_start=1, layout="forced_coordination")
    vec.reset(seed=0)
    pairs = {tuple(read_state(vec, env)["at"].tolist()) for env in range(300)}
    floor = {at(x, y) for y, row in enumerate(ROWS["forced_coordination"]) for x, tile in enumerate(row) if tile == " "}
    assert {cell for pair in pairs for cell in pair} == floor
    assert len(pairs) == len(floor) * (len(floor) - 1)


def test_a_soup_from_the_first_onion_to_the_points():
    game = Game({**POT, "held": [ONION, 0], "onions": [2, 0]}, shaping=1.0)
    game.step(INTERACT)
    assert (game.onions[0], game.tick[0], game.held[0]) == (3, -1, 0)
    assert game.rewards.tolist() == [3, 0]
    assert game.step(STAY).tick[0] == -1  # nobody has started it
    assert game.step(INTERACT).tick[0] == 1  # started, and it cooks from this step on
    assert game.step(STAY, INTERACT).rewards.tolist() == [0, 3]  # a useful dish
    write_state(game.vec, held=[DISH, 0])
    for tick in range(3, 21):
        assert game.step(INTERACT).tick[0] == tick  # not done: nothing happens
    assert game.step(INTERACT).held[0] == SOUP_3
    assert game.rewards.tolist() == [5, 0]
    assert (game.onions[0], game.tick[0]) == (0, -1)
    write_state(game.vec, at=[at(3, 2), at(1, 1)], facing=[SOUTH, NORTH])
    assert game.step(INTERACT).rewards.tolist() == [20, 20]
    assert game.held[0] == 0


def test_the_third_onion_starts_the_pot_with_cook_start_auto():
    game = Game({**POT, "held": [ONION, 0], "onions": [2, 0]}, cook_start="auto", cook_time=3)
    assert game.step(INTERACT).tick[0] == 1
    game = Game({**POT, "onions": [2, 0]}, cook_start="auto")
    assert game.step(INTERACT).tick[0] == -1  # hands start nothing


def test_a_soup_of_one_onion_is_worth_nothing():
    game = Game({**POT, "onions": [1, 0]}, cook_time=1)
    game.step(INTERACT)
    write_state(game.vec, held=[DISH, 0])
    assert game.step(INTERACT).held[0] == SOUP_1
    write_state(game.vec, at=[at(3, 2), at(1, 1)], facing=[SOUTH, NORTH])
    assert game.step(INTERACT).rewards.tolist() == [0, 0]
    assert game.held[0] == 0


def test_a_pot_that_cooks_or_is_full_takes_no_onion():
    for onions, tick in ((3, -1), (2, 5), (3, 20)):
        game = Game({**POT, "held": [ONION, 0], "onions": [onions, 0], "tick": [tick, -1]}, shaping=1.0)
        game.step(INTERACT)
        assert (game.held[0], game.onions[0]) == (ONION, onions)
        assert game.rewards.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("change", "reward"),
    [
        ({"onions": [0, 0]}, 0),  # no pot needs a dish
        ({"onions": [1, 0]}, 3),
        ({"onions": [3, 0]}, 0),  # full, but not started: the package does not count it
        ({"onions": [3, 0], "tick": [0, -1]}, 3),
        ({"onions": [3, 0], "tick": [20, -1]}, 3),
        ({"onions": [3, 0], "tick": [20, -1], "held": [DISH, 0]}, 0),  # the other one has a dish
        ({"onions": [3, 0], "tick": [20, -1], "things": np.eye(45, dtype=int)[1] * DISH}, 0),  # one lies on a counter
    ],
)
def test_a_dish_is_rewarded_if_it_is_useful(change, reward):
    game = Game({**POT, **change}, shaping=1.0)
    assert game.step(STAY, INTERACT).rewards.tolist() == [0, reward]
    assert game.held[1] == DISH


def test_counters_hold_one_thing():
    game = Game({"at": [at(1, 1), at(3, 2)], "facing": [NORTH, NORTH], "held": [ONION, 0]})
    assert game.step(INTERACT).things[1] == ONION
    assert game.held[0] == 0
    write_state(game.vec, held=[DISH, 0])
    assert game.step(INTERACT).held[0] == DISH  # taken: nothing happens
    write_state(game.vec, held=[0, 0])
    assert game.step(INTERACT).held[0] == ONION
    assert game.things[1] == 0
    assert game.vec.memory.arrays["stats"][3, 0] == 1  # dropped


def test_cooks_do_not_walk_into_each_other():
    beside = {"at": [at(1, 1), at(3, 1)], "facing": [NORTH, NORTH]}
    game = Game(beside).step(EAST, WEST)  # both want the cell between them
    assert game.at == beside["at"]
    assert game.facing == [EAST, WEST]
    assert Game(beside).step(EAST).at == [at(2, 1), at(3, 1)]
    assert Game({**beside, "at": [at(2, 1), at(3, 1)]}).step(EAST, WEST).at == [at(2, 1), at(3, 1)]  # no exchange
    assert Game({**beside, "at": [at(2, 1), at(3, 1)]}).step(EAST, STAY).at == [at(2, 1), at(3, 1)]
    assert Game({**beside, "at": [at(2, 1), at(3, 1)]}).step(EAST, SOUTH).at == [at(3, 1), at(3, 2)]  # behind another


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layout": "cramped_rom"}, "Did you mean 'cramped_room'"),
        ({"cook_time": 0}, "cook_time"),
        ({"shaping": -1}, "shaping"),
    ],
)
def test_bad_params_are_named(options, said):
    with pytest.raises(ConfigError, match=said):
        shoal.make("overcooked", 1, **options)


# ---- scripted cooks ----


def describe(layout, vec):
    cooks, pots, things = numbers(vec)
    names = ["", "onion", "dish", "soup", "soup", "soup"]
    return Kitchen(
        rows=ROWS[layout],
        at=[(int(x), int(y)) for x, y, *_ in cooks],
        facing=[int(cook[2]) for cook in cooks],
        held=[names[cook[3]] for cook in cooks],
        things={(int(x), int(y)): names[things[y, x]] for y, x in np.argwhere(things)},
        pots={cell: (int(n), bool(tick >= 0), bool(tick >= 20)) for cell, (n, tick) in zip(pots_of(layout), pots)},
    )


def scripted_points(layout, noise=0.1, steps=400, seed=0):
    """Noise keeps the two from blocking each other for good."""
    vec, dice = shoal.make("overcooked", 1, layout=layout), random.Random(seed)
    vec.reset(seed=0)
    total = 0.0
    for _ in range(steps):
        actions = [dice.randrange(6) if dice.random() < noise else play(describe(layout, vec), cook) for cook in (0, 1)]
        total += float(vec.step(np.array(actions))[1][0])
    return total


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_scripted_cooks_serve_soups(layout):
    """The scripted score of overcooked.toml is that of cramped_room."""
    points = [scripted_points(layout, seed=seed) for seed in range(5)]
    assert np.mean(points) >= 140
