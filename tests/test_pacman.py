"""pacman: every rule against a slow twin, the ghosts one by one, and what scripted play scores."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from shoal.errors import ConfigError, SnapshotError

from .arcade_twin import compare, poke
from .pacman_twin import BACK, CELLS, DOOR, GHOSTS, LAYOUT, MODES, NAMES, OPEN, POWER, Twin, beside, player

UP, RIGHT, DOWN, LEFT = range(4)


class Game:
    """One env and its twin, with everybody where a test wants them."""

    def __init__(self, **params):
        self.vec = shoal.make("pacman", 1, **params)
        self.vec.reset(seed=0)
        self.twin, self.state = Twin(params, seed=0), poke(self.vec, LAYOUT)[0]
        for name in GHOSTS:  # out of the way
            self.put(name, self.twin.ghosts[name].at, mode="home", wait=90000)

    def put(self, name, at, way="left", mode="roams", wait=0, progress=0):
        ghost, number = self.twin.ghosts[name], GHOSTS.index(name)
        ghost.at, ghost.way, ghost.mode, ghost.wait, ghost.progress = at, way, mode, wait, progress
        place = (9, 9) if mode == "home" and at == (9, 7) else at
        ghost.at = place
        self.state["ghosts"][number] = (*place, NAMES.index(way), MODES.index(mode), wait, progress)

    def player(self, at, way="left"):
        self.twin.at, self.twin.way = at, way
        self.state["x"], self.state["y"], self.state["heading"] = *at, NAMES.index(way)

    def pellets(self, cells):
        self.twin.pellets = set(cells)
        self.state["pellets"] = [sum(1 << x for x, cy in cells if cy == y) for y in range(21)]
        self.state["left"] = len(cells)

    def set(self, **numbers):
        for name, value in numbers.items():
            self.state[name] = value
            setattr(self.twin, name, value)

    def step(self, *actions):
        for action in actions:
            compare([self.twin], self.vec, 1, seed=0, act=lambda *_: action, start=False)  # noqa: B023
        return self


def test_every_rule_equals_the_slow_twin():
    """Random play and short modes: deaths, modes, the tunnel, ghosts that leave their house."""
    all_params = [
        {"lives": 3, "levels": 1, "scatter_steps": 9, "chase_steps": 14, "release_steps": 5, "max_steps": 3000},
        {"lives": 1, "ghost_speed": 20, "death": 2.5, "max_steps": 0},
        {"lives": 9, "fright_steps": 7, "slow_speed": 3, "release_steps": 1, "scatter_steps": 3, "chase_steps": 1},
        {"lives": 2, "ghost_speed": 32, "slow_speed": 32, "max_steps": 50},
        {"lives": 5, "ghost_speed": 0, "slow_speed": 0, "fright_steps": 1, "levels": 2},
    ]
    names = sorted({name for params in all_params for name in params})
    given = {name: [params.get(name, Twin.defaults[name]) for params in all_params] for name in names}
    vec = shoal.make("pacman", len(all_params), **given)
    twins = [Twin(params, seed=10 + k) for k, params in enumerate(all_params)]
    assert compare(twins, vec, 220, seed=10) > 4


def test_good_play_equals_the_slow_twin():
    """The scripted player meets power pellets, eats ghosts and clears mazes; two kinds of rules."""
    all_params = [{"fright_steps": 60, "levels": 2}, {"fright_steps": 200, "levels": 9, "scatter_steps": 500}]
    vec = shoal.make("pacman", 2, **{name: [params.get(name, 70) for params in all_params] for name in all_params[1]})
    twins, rng = [Twin(params, seed=k) for k, params in enumerate(all_params)], np.random.default_rng(0)
    compare(twins, vec, 150, seed=0, act=lambda twin, _: None if rng.random() < 0.05 else player(twin))
    assert sum(twin.totals["ghosts"] for twin in twins) > 1


def test_the_maze_has_no_dead_end_and_156_pellets():
    assert sum(kind in ".o" for kind in CELLS.values()) == 156
    assert all(sum(beside(cell, way) in OPEN for way in NAMES) >= 2 for cell in OPEN)
    reached, rim = {(9, 15)}, [(9, 15)]
    while rim:
        cell = rim.pop()
        fresh = {beside(cell, way) for way in NAMES} & OPEN - reached
        reached |= fresh
        rim += fresh
    assert reached == OPEN


def test_pellets_and_power_pellets_score():
    game = Game().step(LEFT)
    game.player((2, 1))
    game.put("red", (9, 11), "left")
    game.step(LEFT)
    assert game.twin.points == 50
    assert game.twin.ghosts["red"].mode == "flees"
    assert game.state["fright"] == 59


def test_ghosts_eaten_by_one_power_pellet_score_200_to_1600():
    game = Game()
    game.set(fright=50)
    points = []
    for name in GHOSTS:
        game.player((5, 19))
        game.put(name, (6, 19), "left", mode="flees")
        game.step(RIGHT)
        points.append(game.twin.points)
        assert game.twin.ghosts[name].mode == "eaten"
        game.put(name, (9, 9), mode="home", wait=90000)
    assert [p // 100 * 100 for p in points] == [200, 400, 800, 1600]


def test_an_eaten_ghost_goes_home_and_comes_out_normal():
    game = Game(fright_steps=1000)
    game.set(fright=1000)
    game.player((1, 19))
    game.put("pink", (9, 11), "left", mode="eaten")
    modes = []
    for _ in range(30):
        game.step(LEFT)
        modes.append(game.twin.ghosts["pink"].mode)
    assert modes[0] == "eaten"
    assert modes.count("home") == 10
    assert modes[-1] == "roams"  # although the others are still frightened


def test_an_eaten_ghost_finds_home_from_everywhere():
    """It takes the way that looks nearest and never turns back: that must not become a circle."""
    twin = Twin()
    ghost = twin.ghosts["red"]
    ghost.mode = "eaten"
    for start in OPEN:
        for way in (way for way in NAMES if beside(start, BACK[way]) in OPEN):
            ghost.at, ghost.way, cells = start, way, 0
            while ghost.at != DOOR:
                ghost.way = twin.choose(ghost)
                ghost.at = beside(ghost.at, ghost.way)
                cells += 1
                assert cells < 40


def test_a_ghost_kills_and_all_take_their_places_again():
    game = Game(lives=2, death=3.0)
    eaten = game.step(LEFT, LEFT).twin.pellets.copy()
    game.put("red", beside(game.twin.at, "left"), "right")
    game.step(LEFT)
    assert (game.twin.lives, game.twin.at) == (1, (9, 15))
    assert len(eaten) - len(game.twin.pellets) == 1  # pellets stay eaten; the last one was on the way
    assert game.state["ghosts"]["wait"].tolist() == [0, 10, 50, 90]
    game.put("red", (8, 15), "right")
    _, rewards, terminated, *_ = game.vec.step(np.array([LEFT]))
    assert terminated[0]
    assert rewards[0] == -3


@pytest.mark.parametrize("way", NAMES)
@pytest.mark.parametrize("name", GHOSTS)
def test_targets_of_a_chase(name, way):
    """Each ghost on its own, from crossings of the maze."""
    game = Game(ghost_speed=16)
    for at, ghost_way in (((4, 3), "up"), ((4, 3), "down"), ((14, 12), "left"), ((8, 15), "right"), ((4, 9), "up")):
        for place in ((9, 3), (1, 13), (14, 9)):
            game.set(phase=1, phase_steps=0)
            game.player(place, way)
            if name != "red":
                game.put("red", (12, 19), "left")
            game.put(name, at, ghost_way)
            game.step(NAMES.index(way))


def test_the_orange_ghost_is_shy_at_a_distance_of_eight():
    for x, goes in ((11, (2, 3)), (10, (1, 4))):  # the player is 9 away, or 8
        game = Game(ghost_speed=16)
        game.set(phase=1)
        game.player((x, 3), "left")
        game.put("orange", (1, 3), "down")
        game.step(LEFT)
        assert game.twin.ghosts["orange"].at == goes


def test_modes_alternate_and_ghosts_turn_back():
    game = Game(scatter_steps=7, chase_steps=3, ghost_speed=0)
    game.put("red", (9, 3), "left")
    turns, phases = [], []
    for k in range(40):
        game.step(RIGHT if k % 2 else LEFT)
        turns.append(game.twin.ghosts["red"].way)
        phases.append(game.twin.phase)
    lengths = [phases.count(phase) for phase in range(8)]
    assert lengths == [6, 3, 7, 3, 5, 3, 5, 8]  # the first step counts for the first mode
    assert [turns[k] != turns[k + 1] for k in range(39)] == [phases[k] != phases[k + 1] for k in range(39)]


def test_a_cleared_maze_is_followed_by_the_next_or_ends_the_episode():
    game = Game(levels=2)
    game.pellets({(8, 15)})
    game.step(LEFT)
    assert game.twin.level == 1
    assert game.state["left"] == 156
    game.pellets({(8, 15)})
    _, rewards, terminated, *_ = game.vec.step(np.array([LEFT]))
    assert terminated[0]
    assert rewards[0] == 1
    assert game.vec.drain_stats()["cleared"]["mean"] == 2


def test_the_player_keeps_going_where_a_way_is_closed_and_wraps_through_the_tunnel():
    game = Game()
    game.player((1, 9), "left")
    game.step(LEFT, UP, DOWN)
    assert game.twin.at == (17, 9)
    game.player((1, 19), "left")
    game.step(LEFT, LEFT)
    assert game.twin.at == (1, 19)  # at a wall


def test_bad_params_and_states_are_refused():
    for bad in ({"lives": 0}, {"ghost_speed": 33}, {"fright_steps": 0}, {"levels": 0}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            shoal.make("pacman", 1, **bad)
    vec = shoal.make("pacman", 1)
    for name, value in (("x", 0), ("y", 20), ("heading", 4), ("left", 155), ("phase", 8), ("lives", -1)):
        vec.reset(seed=0)
        poke(vec, LAYOUT)[name][0] = value
        with pytest.raises(SnapshotError, match="cannot reach"):
            vec.restore(vec.snapshot())
    assert [cell for cell, kind in CELLS.items() if kind == "o"] == POWER


@pytest.mark.slow
def test_the_scripted_player_scores_far_more_than_random_play():
    """The figures of the header and of pacman.toml."""
    vec, rng = shoal.make("pacman", 200), np.random.default_rng(0)
    vec.reset(seed=0)
    for _ in range(2000):
        vec.step(rng.integers(0, 4, 200))
    random = vec.drain_stats()["return"]["mean"]
    vec, twins = shoal.make("pacman", 4), [Twin(seed=k) for k in range(4)]
    assert compare(twins, vec, 700, seed=0, act=lambda twin, _: player(twin)) >= 4
    assert vec.drain_stats()["return"]["mean"] > 5 * random
