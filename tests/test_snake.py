"""snake: every rule against a slow twin, ways to die one by one, what is seen, and what scripted play eats."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from shoal.errors import ConfigError, SnapshotError

from .arcade_twin import compare, poke
from .snake_twin import STEPS, STRAIGHT, TURN_LEFT, TURN_RIGHT, Twin, player

EMPTY, FOOD, WALL, BODY = 0, 1, 2, 128


def layout(agents=8, side=24, view=9):
    wide = side + view - 1
    fields = [("map", "u1", wide * wide), ("is_alive", "u1", agents), ("heading", "u1", agents)]
    return fields + [(name, "i4", agents) for name in ("head", "tail", "length", "growth")] + [("food", "i4")]


SIZE = {"agents": 5, "side": 6, "view": 5}


class Board:
    """One board of 6 x 6 cells with snakes and food where a test wants them. The other ones of its five are out."""

    def __init__(self, snakes, food=(), **params):
        self.count = len(snakes)
        self.vec = shoal.make("snake", 1, **SIZE, food=0, **params)
        self.vec.reset(seed=0)
        self.state = poke(self.vec, layout(**SIZE))
        grid = self.grid
        grid[:] = EMPTY
        for number, cells in enumerate(snakes):  # from the head
            for k, (x, y) in enumerate(cells):
                to = cells[k - 1] if k else (2 * x - cells[1][0], 2 * y - cells[1][1])
                heading = STEPS.index((to[0] - x, to[1] - y))
                grid[y, x] = BODY | number << 2 | heading
                if k == 0:
                    self.state["heading"][0, number] = heading
            for name, (x, y) in (("head", cells[0]), ("tail", cells[-1])):
                self.state[name][0, number] = (y + 2) * 10 + x + 2
            self.state["length"][0, number] = len(cells)
        self.state["growth"] = 0
        self.state["is_alive"][0, self.count :] = 0
        self.vec.memory.arrays["alive"][self.count :] = 0
        for x, y in food:
            grid[y, x] = FOOD
        self.state["food"] = len(food)

    @property
    def grid(self):
        return self.state["map"][0].reshape(10, 10)[2:-2, 2:-2]

    def step(self, *actions):
        waiting = [STRAIGHT] * (5 - self.count)
        self.obs, self.rewards, self.terminated, _, _ = self.vec.step(np.array([*actions, *waiting]))
        return self.terminated[: self.count].tolist()

    def body(self, snake):
        return {(int(x), int(y)) for y, x in np.argwhere((self.grid >= BODY) & (self.grid % BODY // 4 == snake))}


def test_every_rule_equals_the_slow_twin():
    """Random play in a crowd, with every kind of rule."""
    all_params = [
        {"food": food, "start_length": length, "remains": remains, "death": death, "max_steps": limit}
        for food, length, remains, death, limit in (
            (5, 3, "nothing", 1.0, 500),
            (18, 2, "food", 0.5, 0),
            (1000, 6, "food", 0.0, 7),
            (0, 9, "nothing", 2.0, 0),
        )
    ]
    given = {name: [params[name] for params in all_params] for name in all_params[0]}
    vec = shoal.make("snake", 4, **SIZE, **given)
    twins = [Twin(params, seed=80 + k, **SIZE) for k, params in enumerate(all_params)]
    assert compare(twins, vec, 100, seed=80) > 20


def test_long_snakes_equal_the_slow_twin():
    """The scripted player grows them; one action in ten is random."""
    vec, rng = shoal.make("snake", 1), np.random.default_rng(0)
    twin = Twin({}, seed=3)
    compare([twin], vec, 50, seed=3, act=lambda t, k: None if rng.random() < 0.03 else player(t.observe(k)))
    assert max(len(body) for body in twin.bodies) > 6 or twin.totals["eaten"] > 20


def test_food_makes_a_snake_longer_at_once():
    board = Board([[(2, 2), (1, 2)]], food=[(3, 2)])
    assert board.step(STRAIGHT) == [False]
    assert board.rewards[0] == 1
    assert board.body(0) == {(1, 2), (2, 2), (3, 2)}
    board.step(TURN_LEFT)
    assert board.rewards[0] == 0
    assert board.body(0) == {(2, 2), (3, 2), (3, 1)}


def test_walls_kill():
    board = Board([[(5, 0), (4, 0)], [(0, 5), (1, 5)]], death=2.0)
    assert board.step(STRAIGHT, TURN_RIGHT) == [True, False]
    assert board.rewards[:2].tolist() == [-2, 0]
    assert not board.body(0)
    assert board.step(STRAIGHT, STRAIGHT) == [False, False]  # the dead one is out, the other goes on
    assert board.body(1) == {(0, 4), (0, 3)}


def test_a_snake_may_follow_its_tail_but_not_bite_itself():
    ring = [(1, 1), (2, 1), (2, 2), (1, 2)]
    board = Board([ring])
    for _ in range(4):
        assert board.step(TURN_LEFT) == [False]
    assert board.body(0) == set(ring)
    longer = Board([[*ring, (0, 2)]])
    assert longer.step(TURN_LEFT) == [True]
    assert longer.vec.drain_stats()["deaths_by_self"]["mean"] == 1


def test_a_tail_that_grows_does_not_leave():
    board = Board([[(1, 1), (2, 1), (2, 2), (1, 2)]])
    board.state["growth"] = 1
    assert board.step(TURN_LEFT) == [True]


def test_two_heads_on_one_cell_both_die():
    board = Board([[(1, 2), (0, 2)], [(3, 2), (4, 2)]], food=[(2, 2)])
    assert board.step(STRAIGHT, STRAIGHT) == [True, True]
    assert board.vec.drain_stats()["deaths_by_other"]["mean"] == 2


def test_heads_that_swap_places_die():
    board = Board([[(2, 2), (1, 2)], [(3, 2), (4, 2)]])
    assert board.step(STRAIGHT, STRAIGHT) == [True, True]


def test_a_body_of_another_kills_even_if_that_one_dies_too():
    board = Board([[(2, 3), (2, 4)], [(5, 2), (4, 2), (3, 2), (2, 2), (1, 2)]])
    assert board.step(STRAIGHT, STRAIGHT) == [True, True]
    stats = board.vec.drain_stats()
    assert (stats["deaths_by_other"]["mean"], stats["deaths_by_wall"]["mean"]) == (1, 1)


@pytest.mark.parametrize("remains", ["nothing", "food"])
def test_what_a_dead_snake_leaves(remains):
    board = Board([[(5, 0), (4, 0), (3, 0)], [(0, 5), (1, 5)]], remains=remains)
    board.step(STRAIGHT, TURN_RIGHT)
    left = {(int(x), int(y)) for y, x in np.argwhere(board.grid == FOOD)}
    assert left == ({(5, 0), (4, 0)} if remains == "food" else set())  # the tail's cell was left


def test_the_view_turns_with_the_snake():
    board = Board([[(2, 2), (2, 3)], [(5, 1), (5, 0)]], food=[(1, 1)])
    board.step(TURN_RIGHT, TURN_RIGHT)  # at (3, 2), facing right; the other at (4, 1), facing left
    seen = board.obs[0]
    assert np.argwhere(seen[:, :, 2]).tolist() == [[2, 2], [3, 2]]  # its body is behind it
    assert np.argwhere(seen[:, :, 4]).tolist() == [[1, 1]]  # ahead to the left
    assert np.argwhere(seen[:, :, 3]).tolist() == [[0, 1]]
    assert np.argwhere(seen[:, :, 1]).tolist() == [[4, 1]]  # two behind, one to the left
    assert not seen[:, :, 0].any()


def test_a_board_keeps_its_food():
    vec = shoal.make("snake", 50, food=24)
    vec.reset(seed=0)
    state, rng = poke(vec, layout()), np.random.default_rng(0)
    for _ in range(60):
        vec.step(rng.integers(0, 3, vec.num_rows))
    assert ((state["map"] == FOOD).sum(1) == state["food"]).all()
    assert 23 < state["food"].mean() <= 24


def test_bad_params_and_states_are_refused():
    for bad in ({"food": -1}, {"start_length": 1}, {"agents": 33}, {"remains": "bones"}, {"view": 2}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            shoal.make("snake", 1, **bad)
    vec = shoal.make("snake", 1)
    for name, at, value in (("map", 0, EMPTY), ("head", 0, 3), ("tail", 1, -1), ("heading", 2, 4), ("food", ..., -1)):
        vec.reset(seed=0)
        poke(vec, layout())[name][0, at] = value
        with pytest.raises(SnapshotError, match="cannot reach"):
            vec.restore(vec.snapshot())


@pytest.mark.slow
def test_the_scripted_player_eats_far_more_than_random_play():
    """The figures of the header and of snake.toml."""
    for act, low, high in ((None, -0.3, 0.1), (player, 20, 40)):
        vec, rng = shoal.make("snake", 4 if act else 200), np.random.default_rng(0)
        obs, _ = vec.reset(seed=0)
        for _ in range(500):
            actions = [act(seen) for seen in obs] if act else rng.integers(0, 3, vec.num_rows)
            obs, *_ = vec.step(np.array(actions))
        stats = vec.drain_stats()
        assert low < stats["return"]["mean"] < high
