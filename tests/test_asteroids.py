"""asteroids: every rule against a slow twin, flight, hits, splits and waves one by one, and scripted play."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from shoal.errors import ConfigError, SnapshotError

from .arcade_twin import compare, poke
from .asteroids_twin import LAYOUT, Twin, player

LEFT, RIGHT, THRUST, SHOOT = 1, 2, 3, 6


class Game:
    """One env with the ship and rocks where a test wants them. Unless they are set, it faces right and can be hurt."""

    def __init__(self, rocks=((100, 500, 0, 0, 1),), ship=(400, 300, 0, 0), **params):
        self.vec = shoal.make("asteroids", 1, **params)
        self.vec.reset(seed=0)
        self.state = poke(self.vec, LAYOUT)[0]
        self.state["ship"] = (*ship, 0)
        self.state["heading"] = self.state["safe"] = 0
        self.set_rocks(rocks)

    def set_rocks(self, rocks):
        self.state["rocks"][: len(rocks)] = [*rocks]
        self.state["count"] = len(rocks)

    def step(self, *actions):
        for action in actions:
            self.obs, self.rewards, self.terminated, _, self.infos = self.vec.step(np.array([action]))
        return self

    @property
    def sizes(self):
        return sorted(self.state["rocks"]["kind"][: self.state["count"]].tolist())


def test_every_rule_equals_the_slow_twin():
    """Random play: turns, thrust, shots, splits, deaths, over all edges."""
    all_params = [
        {"lives": 3, "rocks": 4},
        {"lives": 1, "rocks": 8, "rock_speed": 4.0, "death": 1.5},
        {"lives": 2, "rocks": 1, "turn": 30, "reload": 1, "thrust": 2000.0, "drag": 0.0, "max_steps": 90},
        {"lives": 9, "rocks": 6, "turn": 64, "reload": 2, "drag": 0.5, "rock_speed": 0.0, "max_steps": 0},
    ]
    given = {name: [params.get(name, Twin.defaults[name]) for params in all_params] for name in Twin.defaults}
    vec = shoal.make("asteroids", len(all_params), **given)
    twins = [Twin(params, seed=40 + k) for k, params in enumerate(all_params)]
    assert compare(twins, vec, 200, seed=40) > 1
    assert all(twin.totals["shots"] for twin in twins)


def test_good_play_equals_the_slow_twin():
    """The scripted player shoots rocks of all sizes."""
    vec, rng = shoal.make("asteroids", 2, rocks=2), np.random.default_rng(0)
    twins = [Twin({"rocks": 2}, seed=k) for k in range(2)]
    compare(twins, vec, 150, seed=0, act=lambda twin, k: None if rng.random() < 0.1 else player(twin.observe(k)))
    assert sum(twin.totals["hits"] for twin in twins) > 8


def test_the_ship_turns_thrusts_and_glides():
    game = Game(turn=64, drag=0.0).step(RIGHT, THRUST)  # a quarter to the right: down
    assert game.state["heading"] == 64
    assert game.state["ship"]["vy"] == pytest.approx(20)
    assert game.state["ship"]["vx"] == pytest.approx(0, abs=1e-4)
    y = float(game.state["ship"]["y"])
    game.step(0, LEFT)
    assert game.state["ship"]["y"] == pytest.approx(y + 2 * 20 / 15)
    assert game.obs[0, :2] == pytest.approx([0, 0.05], abs=1e-6)  # it faces right again, and moves to its right
    for _ in range(60):
        game.step(THRUST)
    assert np.hypot(game.state["ship"]["vx"], game.state["ship"]["vy"]) == pytest.approx(400)


def test_everything_wraps_around_the_edges():
    game = Game(rocks=[(799, 599, 90, 90, 1)], ship=(1, 300, -60, 0), drag=0.0).step(0)
    assert game.state["ship"]["x"] == pytest.approx(797)
    assert game.state["rocks"][0]["x"] == pytest.approx(5)
    assert game.state["rocks"][0]["y"] == pytest.approx(5)
    seen = Game(rocks=[(790, 300, 0, 0, 1)], ship=(10, 300, 0, 0), reload=9)
    seen.state["safe"] = 20
    assert seen.step(0).obs[0, 6:9] == pytest.approx([1, -20 / 500, 0], abs=1e-6)  # just behind it, over the edge


@pytest.mark.parametrize(("size", "reward", "after"), [(1, 0.2, [2, 2]), (2, 0.5, [3, 3]), (3, 1.0, [])])
def test_a_shot_rock_splits(size, reward, after):
    game = Game(rocks=[(100, 500, 0, 0, 1), (460, 300, 0, 0, size)])
    game.step(SHOOT)
    for _ in range(3):
        if game.rewards[0] == 0:
            game.step(0)
    assert game.rewards[0] == pytest.approx(reward)
    assert game.sizes == [1, *after]
    assert not (game.state["shots"]["kind"] > 0).any()
    speeds = np.hypot(game.state["rocks"]["vx"], game.state["rocks"]["vy"])[1 : 1 + len(after)]
    assert ((speeds >= 20 * (size + 2) - 1e-3) & (speeds <= (140, 200, 0)[size - 1])).all()


def test_no_shot_jumps_a_small_rock():
    """A shot moves by 33 px in a step, and the rock is 20 px wide."""
    for x in range(415, 600, 3):
        game = Game(rocks=[(x, 308, 0, 0, 3), (100, 500, 0, 0, 1)]).step(SHOOT, 0, 0, 0, 0, 0)
        assert game.sizes == [1]
        assert game.state["score"] == 100
        game.vec.close()


def test_four_shots_are_in_the_air_at_most_and_the_gun_reloads():
    game = Game(reload=1)
    for shots in (1, 2, 3, 4, 4, 4):
        game.step(SHOOT)
        assert (game.state["shots"]["kind"] > 0).sum() == shots
    assert game.obs[0, 2] == 0
    slow = Game(reload=4).step(*[SHOOT] * 8)
    assert (slow.state["shots"]["kind"] > 0).sum() == 2
    slow.step(*[0] * 14)
    assert not (slow.state["shots"]["kind"] > 0).any()


def test_a_rock_kills_and_the_next_ship_is_safe_for_two_seconds():
    game = Game(rocks=[(100, 300, 0, 0, 1)], ship=(140, 300, 0, 0), lives=2, death=2.0).step(0)
    assert game.rewards[0] == -2
    assert (game.state["lives"], game.state["ship"]["x"], game.state["safe"]) == (1, 400, 30)
    assert game.sizes == [2, 2]  # the rock splits, without points
    game.set_rocks([(400, 300, 0, 0, 1)])
    game.step(*[0] * 29)
    assert not game.terminated[0]
    game.step(0)
    assert game.terminated[0]


def test_waves_come_from_the_edges_and_grow():
    for wave, count in ((0, 6), (1, 8), (5, 8)):
        game = Game(rocks=[(440, 300, 0, 0, 3)])
        game.state["wave"] = wave
        game.step(SHOOT)
        assert game.sizes == [1] * count
        rocks = game.state["rocks"][:count]
        assert ((rocks["x"] == 0) | (rocks["y"] == 0)).all()  # the ship is in the centre, far away
    near = [Game(rocks=[(40, 0, 0, 0, 3)], ship=(0, 0, 0, 0)).step(SHOOT) for _ in range(3)]
    for game in near:
        x, y = game.state["rocks"]["x"][:6], game.state["rocks"]["y"][:6]
        assert (np.hypot(np.minimum(x, 800 - x), np.minimum(y, 600 - y)) >= 159).all()


def test_bad_params_and_states_are_refused():
    for bad in ({"lives": 0}, {"rocks": 9}, {"turn": 0}, {"drag": 1.5}, {"rock_speed": -1}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            shoal.make("asteroids", 1, **bad)
    for name, value in (("count", 33), ("count", 9), ("heading", 256), ("safe", 31), ("ship", (np.nan, 0, 0, 0, 0))):
        game = Game()
        game.state[name] = value
        with pytest.raises(SnapshotError, match="cannot reach"):
            game.vec.restore(game.vec.snapshot())


@pytest.mark.slow
def test_the_scripted_player_scores_far_more_than_random_play():
    """The figures of the header and of asteroids.toml."""
    for act, low, high in ((None, 11, 15), (player, 40, 200)):
        vec, rng = shoal.make("asteroids", 100 if act is None else 30), np.random.default_rng(0)
        obs, _ = vec.reset(seed=0)
        for _ in range(2000):
            actions = [act(seen) for seen in obs] if act else rng.integers(0, 12, vec.num_rows)
            obs, *_ = vec.step(np.array(actions))
        stats = vec.drain_stats()
        assert low < stats["return"]["mean"] < high
