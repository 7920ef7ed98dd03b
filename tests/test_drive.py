"""drive: every rule against a slow twin, the rules of note one by one, a scripted driver."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from shoal.errors import ShoalError

from .agent_twins import compare
from .drive_twin import Drive, Driver
from .state_fields import read_state, write_state

DEFAULTS = {
    "max_steps": 400,
    "top_speed": 12.0,
    "gas": 3.0,
    "brake": 3.0,
    "turn": 0.3,
    "reach": 5.0,
    "crash_cost": 0.5,
    "wrong_side_cost": 0.02,
    "shaping": 0.0,
}
BRAKE, ROLL, GAS = 2, 7, 12  # with the wheel straight
FULL_LEFT, FULL_RIGHT = -2, 2  # added to a pedal
BUSY = {"max_steps": 50, "shaping": 0.05, "reach": 15.0, "gas": 8.0, "turn": 0.2, "wrong_side_cost": 0.5}


@pytest.mark.parametrize(
    ("consts", "params"),
    [
        ({"cars": 8, "streets": 3}, {"max_steps": 400}),
        ({"cars": 8, "streets": 2}, BUSY),
        ({"cars": 1, "streets": 4}, {**BUSY, "top_speed": 30.0, "crash_cost": 3.0}),
    ],
)
def test_every_rule_equals_the_slow_twin(consts, params):
    """Half of the cars have a driver, the others act at random."""
    vec = shoal.make("drive", 2, **consts, **params)
    twins = [Drive(consts, {**DEFAULTS, **params}, seed=11 + k) for k in range(2)]
    drivers = [[Driver() for _ in twin.cars] for twin in twins]

    def actions(step, _):
        moves = vec.action_space.sample()
        for k, twin in enumerate(twins):
            for number in range(0, len(twin.cars), 2):
                moves[k * len(twin.cars) + number] = drivers[k][number].act(twin, twin.cars[number])
        return moves

    assert compare(twins, vec, 110, seed=11, actions=actions) == 2 * (110 // params["max_steps"])


class Town:
    """Cars in set places; the others stand on a street far away."""

    def __init__(self, *cars, **options):
        self.vec = shoal.make("drive", 1, **options)
        self.vec.reset(seed=0)
        rows = [*cars] + [(0, 5.0 + 5 * k, 0, 1, 0, 0) for k in range(8 - len(cars))]
        names = ("x", "y", "heading_x", "heading_y", "speed", "goal")
        write_state(self.vec, **dict(zip(names, zip(*rows))))

    def step(self, *moves):
        self.obs, self.rewards, *_ = self.vec.step(np.array([*moves, *[ROLL] * (8 - len(moves))]))
        return self

    def stat(self, name):
        names = [stat.name for stat in self.vec.native_spec.stats]
        return float(self.vec.memory.arrays["stats"][names.index(name), 0])

    def __getattr__(self, name):
        return read_state(self.vec)[name].tolist()


EAST = (1, 0)
FAR = 4 * 3 + 4 * 2  # lane 20: the eastward lane from (40, 80) to (80, 80)


def test_pedals_and_wheel():
    town = Town((50, 38, *EAST, 5, FAR))
    assert town.step(GAS).speed[0] == pytest.approx(5.6)
    assert town.step(ROLL).speed[0] == pytest.approx(5.6)
    assert town.step(BRAKE).speed[0] == pytest.approx(5.0)
    assert town.x[0] == pytest.approx(50 + 0.2 * (5.6 + 5.6 + 5.0))
    assert town.y[0] == 38
    assert town.step(ROLL + FULL_LEFT).heading_y[0] == pytest.approx(np.sin(2 * np.arctan(0.5 * 5.0 * 0.2 * 0.3)))
    assert town.step(ROLL + FULL_RIGHT).heading_y[0] == pytest.approx(0, abs=1e-6)
    write_state(town.vec, speed=0.5)
    assert town.step(BRAKE + FULL_LEFT).speed[0] == 0
    assert town.heading_x[0] == town.step(ROLL + FULL_LEFT).heading_x[0]  # a car that stands does not turn


def test_a_goal_is_reached_and_the_next_one_drawn():
    lane = 4 * 1 + 0  # eastward on the street at 40, from 0 to 40: its middle is (20, 38)
    town = Town((14, 38, *EAST, 5, lane), shaping=0.1)
    assert town.step(ROLL).rewards[0] == pytest.approx(0.1)
    assert town.step(ROLL).rewards[0] == pytest.approx(1.1)
    assert town.goal[0] != lane
    assert (town.stat("goals"), town.speed[0]) == (1, 5)


def test_cars_that_touch_start_again():
    town = Town((50, 38, *EAST, 5, FAR), (55, 38, *EAST, 0, FAR), (60, 38, *EAST, 0, FAR))
    assert town.step(ROLL).rewards[:3].tolist() == [-0.5, -0.5, 0]  # 4 m: the discs are 1.6 m apart
    assert town.stat("collisions") == 2
    assert town.speed[:2] == [0, 0]
    assert town.x[2] == 60
    town = Town((50, 38, *EAST, 5, FAR), (50, 42, -1, 0, 5, FAR))
    assert town.step(ROLL, ROLL).rewards[:2].tolist() == [0, 0]  # they pass in their lanes
    town = Town((50, 38, *EAST, 5, FAR), (57.2, 39.9, 0, 1, 0, FAR))
    assert town.step(ROLL, ROLL).rewards[0] == 0  # 6.2 m away
    for _ in range(4):
        town.step(ROLL)
    assert town.stat("collisions") == 2


@pytest.mark.parametrize(
    ("car", "leaves"),
    [
        ((20, 43.9, 1, 0, 5, FAR), False),
        ((20, 43.9, 0, 1, 5, FAR), True),  # off the side of the street
        ((39, 50, 0, 1, 5, FAR), False),
        ((83.5, 38, 1, 0, 5, FAR), True),  # out of town
        ((42, 42, 0.6, 0.8, 5, FAR), False),  # on a crossing
    ],
)
def test_a_car_that_leaves_the_street_starts_again(car, leaves):
    town = Town(car, wrong_side_cost=0.0).step(ROLL)
    assert town.rewards[0] == -0.5 * leaves
    assert town.stat("left_street") == leaves


def test_the_left_of_the_street_is_the_wrong_side():
    for y, way, cost in ((42, 1, 0.02), (38, 1, 0), (42, -1, 0), (38, -1, 0.02)):
        town = Town((20, y, way, 0, 0, FAR)).step(ROLL)
        assert town.rewards[0] == pytest.approx(-cost)
    assert Town((42, 42, 1, 0, 0, FAR)).step(ROLL).rewards[0] == 0  # a crossing has no sides


def test_what_a_car_sees():
    town = Town((30, 38, *EAST, 6, FAR), (40, 50, 0, -1, 3, 0)).step(ROLL, BRAKE)
    obs = town.obs[0]
    assert obs[0] == pytest.approx(0.5)
    assert obs[2:6].tolist() == pytest.approx([-0.1, -0.5, -0.44, -1])  # 2 m to the right, 8.8 m before the crossing
    assert obs[6:9].tolist() == [1, 1, 1]
    assert obs[9:13].tolist() == pytest.approx([28.8 / 80, 1, 0.5, 1])  # the goal is at (60, 78)
    ahead, left = 40 - 31.2, 50 - 0.2 * 2.4 - 38
    assert obs[13:21].tolist() == pytest.approx([1, ahead / 40, 1, left / 40, 1, 0, -1, 2.4 / 12])
    corner = Town((78, 70, 0, 1, 0, FAR)).step(ROLL).obs[0]
    assert corner[6:9].tolist() == [0, 1, 0]  # in the north-east corner the street bends to the left


def test_bad_params_are_named():
    for options, said in (({"cars": 30}, "lane for every car"), ({"streets": 1}, "streets"), ({"gas": -1.0}, "gas")):
        with pytest.raises(ShoalError, match=said):
            shoal.make("drive", 1, **options)


def scripted_return(episodes):
    total = 0.0
    for seed in range(episodes):
        town = Drive({"cars": 8, "streets": 3}, {**DEFAULTS, "max_steps": 0}, seed)
        drivers = [Driver() for _ in town.cars]
        for _ in range(400):
            total += float(sum(town.step([driver.act(town, car) for driver, car in zip(drivers, town.cars)])[0]))
    return total / episodes / 8


@pytest.mark.slow
def test_the_scripted_driver_reaches_goals():
    """The scripted score of drive.h and drive.toml."""
    assert scripted_return(2) > 2
