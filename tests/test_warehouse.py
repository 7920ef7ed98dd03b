"""warehouse: every rule against a slow twin, the rules of note one by one, scripted robots."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from shoal.errors import ShoalError

from .agent_twins import compare
from .state_fields import read_state, write_state
from .warehouse_twin import AHEAD, LOAD, TURN_LEFT, TURN_RIGHT, WAIT, Warehouse, drive

TINY = {"robots": 4, "columns": 3, "rows": 1, "height": 8, "requests": 4, "sensor": 1}
SHELF, WANTED, AISLE = 1, 3, 4  # what a cell of the map holds


@pytest.mark.parametrize(
    ("consts", "params"),
    [
        (TINY, {"max_steps": 500, "shaping": 0.0}),
        ({**TINY, "robots": 9, "height": 2, "rows": 2, "requests": 8, "sensor": 2}, {"max_steps": 50, "shaping": 0.25}),
        ({**TINY, "robots": 1, "columns": 1, "rows": 3, "height": 1, "requests": 2}, {"max_steps": 30, "shaping": 0.5}),
    ],
)
def test_every_rule_equals_the_slow_twin(consts, params):
    """Robots that plan, with a share of random actions: so that there are deliveries."""
    vec = shoal.make("warehouse", 3, **consts, **params)
    twins = [Warehouse(consts, params, seed=3 + k) for k in range(3)]
    dice, delivered = np.random.default_rng(0), []

    def actions(step, _):
        delivered.append(sum(twin.totals["delivered"] for twin in twins))
        random_moves = vec.action_space.sample()
        planned = np.array([action for twin in twins for action in drive(twin, dice)])
        return np.where(dice.random(vec.num_rows) < 0.3, random_moves, planned)

    assert compare(twins, vec, 100, seed=3, actions=actions) == (
        0 if params["max_steps"] == 500 else 3 * (100 // params["max_steps"])
    )
    assert max(delivered) > 0


class Hall:
    """A tiny warehouse: shelves in columns 1, 2, 7, 8 and rows 1 to 8, goals at (4, 10) and (5, 10)."""

    def __init__(self, robots=1, **state):
        self.vec = shoal.make("warehouse", 1, robots=robots, requests=1, shaping=0.25)
        self.vec.reset(seed=0)
        grid = self.map
        grid[grid == WANTED] = SHELF
        grid[8, 8] = WANTED
        cells = state.pop("cells", {})
        for (x, y), value in cells.items():
            grid[y, x] = value
        write_state(self.vec, map=grid.reshape(-1), **{"facing": 0, "load": 0, **state})

    @property
    def map(self):
        return read_state(self.vec)["map"].reshape(11, 10)

    def step(self, *actions):
        self.obs, self.rewards, *_ = self.vec.step(np.array(actions))
        return self

    def places(self):
        state = read_state(self.vec)
        return list(zip(state["x"].tolist(), state["y"].tolist()))

    def __getattr__(self, name):
        return read_state(self.vec)[name].tolist()


def test_the_floor_plan_is_that_of_rware():
    grid = Hall(x=0, y=0).map
    assert (grid == AISLE).sum() == 110 - 32
    assert {(int(x), int(y)) for y, x in np.argwhere(grid != AISLE)} == {
        (x, y) for x in (1, 2, 7, 8) for y in range(1, 9)
    }


def test_robots_turn_and_drive():
    hall = Hall(x=0, y=5)
    assert hall.step(AHEAD).places() == [(0, 4)]
    assert hall.step(TURN_LEFT).facing == [3]
    assert hall.step(AHEAD).places() == [(0, 4)]  # the wall
    assert hall.step(TURN_RIGHT).step(TURN_RIGHT).facing == [1]
    assert hall.step(AHEAD).places() == [(1, 4)]  # under a shelf
    assert hall.vec.memory.arrays["stats"][3, 0] == 1  # blocked


def test_a_robot_with_a_shelf_cannot_pass_shelves():
    hall = Hall(x=1, y=4, facing=1).step(LOAD)
    assert (hall.load, hall.map[4, 1]) == ([SHELF], 0)
    assert hall.step(AHEAD).places() == [(1, 4)]
    assert hall.step(TURN_RIGHT).step(TURN_RIGHT).step(AHEAD).places() == [(0, 4)]
    hall.step(LOAD)  # not in an aisle
    assert hall.load == [SHELF]
    hall.step(TURN_RIGHT).step(TURN_RIGHT).step(AHEAD).step(LOAD)
    assert (hall.load, hall.map[4, 1]) == ([0], SHELF)


def test_a_wanted_shelf_is_delivered_and_another_one_is_wanted():
    hall = Hall(x=4, y=9, facing=2, load=WANTED, cells={(8, 8): SHELF})
    assert hall.step(AHEAD).rewards.tolist() == [1]
    assert hall.load == [SHELF]
    assert (hall.map == WANTED).sum() == 1
    assert hall.step(WAIT).rewards.tolist() == [0]  # only once


def test_a_shelf_that_nobody_wants_earns_nothing():
    assert Hall(x=4, y=9, facing=2, load=SHELF).step(AHEAD).rewards.tolist() == [0]
    assert Hall(x=3, y=10, facing=0, load=WANTED, cells={(8, 8): SHELF}).step(WAIT).rewards.tolist() == [0]  # no goal


@pytest.mark.parametrize(
    ("state", "reward"),
    [
        ({"x": 8, "y": 8}, 0.25),  # a wanted one
        ({"x": 7, "y": 8}, -0.25),
        ({"x": 7, "y": 8, "load": SHELF, "cells": {(7, 8): 0}}, 0.25),
        ({"x": 7, "y": 8, "load": WANTED, "cells": {(7, 8): 0}}, -0.25),
        ({"x": 0, "y": 0}, 0),
    ],
)
def test_shaping_rewards_what_leads_to_deliveries(state, reward):
    assert Hall(**state).step(LOAD).rewards.tolist() == [reward]


def test_a_cell_has_room_for_one_robot():
    hall = Hall(2, x=[0, 0], y=[4, 6], facing=[2, 0])
    assert hall.step(AHEAD, AHEAD).places() == [(0, 5), (0, 6)]  # robot 0 is first in this step
    write_hall = {"x": [0, 0], "y": [4, 6]}
    write_state(hall.vec, **write_hall)
    assert hall.step(AHEAD, AHEAD).places() == [(0, 4), (0, 5)]  # and robot 1 in the next
    assert hall.step(AHEAD, AHEAD).places() == [(0, 4), (0, 5)]  # they do not change places
    write_state(hall.vec, facing=[0, 0], first=0)
    assert hall.step(AHEAD, AHEAD).places() == [(0, 3), (0, 4)]  # one behind the other


@pytest.mark.parametrize(
    ("options", "said"), [({"columns": 2}, "odd"), ({"requests": 40}, "more shelves"), ({"shaping": -1.0}, "shaping")]
)
def test_bad_sizes_are_named(options, said):
    with pytest.raises(ShoalError, match=said):
        shoal.make("warehouse", 1, **options)


def scripted_deliveries(episodes):
    """Per robot, in episodes of 500 steps."""
    dice, total = np.random.default_rng(0), 0.0
    for seed in range(episodes):
        twin = Warehouse(TINY, {"max_steps": 0, "shaping": 0.0}, seed)
        for _ in range(500):
            total += float(sum(twin.step(drive(twin, dice))[0]))
    return total / episodes / 4


@pytest.mark.slow
def test_scripted_robots_deliver():
    """The scripted score of warehouse.h and warehouse.toml."""
    assert scripted_deliveries(2) > 11
