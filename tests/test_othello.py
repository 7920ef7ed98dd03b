"""othello: every rule and robot against a slow twin, perft counts, passes, turns."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import shoal
from shoal.errors import ConfigError

from .board_twins import PASS, Othello, compare

PERFT = (4, 12, 56, 244, 1396, 8200, 55092)  # sequences of n moves, passes included (Aart Bik 2009)


@pytest.mark.parametrize("moves", [0, 1])
def test_every_rule_equals_the_slow_twin(moves):
    """Random actions, legal or not; every robot in every seat, openings, who begins, time limits: the same bytes."""
    robots = ("learner", "random", "greedy", "corners")
    players = [*itertools.product(robots, repeat=2)][moves::2]  # half of them in each case
    all_params = [
        {
            "first": ("random", "agent_0", "agent_1")[number % 3],
            "opening_plies": (40, 5, 30)[number % 3],
            "max_steps": (0, 0, 11, 0)[number % 4],
            "robot_0": pair[0],
            "robot_1": pair[1],
        }
        for number, pair in enumerate(players)
    ]
    given = {name: [params[name] for params in all_params] for name in all_params[0]}
    vec = shoal.make("othello", len(players), moves=moves, **given)
    twins = [Othello(params, seed=60 + k, see_more=bool(moves)) for k, params in enumerate(all_params)]
    assert compare(twins, vec, 22, seed=60) > 4


def test_whole_games_equal_the_slow_twin():
    """From the first move to the last, by random agents: passes and early ends too."""
    vec = shoal.make("othello", 6)
    twins = [Othello({}, seed=3 + k) for k in range(6)]
    assert compare(twins, vec, 64, seed=3) >= 5


def test_perft():
    """The sequences that the masks allow, an env for each."""
    sequences = [[]]
    for expected in PERFT:
        vec = shoal.make("othello", len(sequences), first="agent_0")
        _, infos = vec.reset(seed=0)
        for squares in zip(*sequences):
            _, _, _, _, infos = vec.step(np.repeat(squares, 2))
        on_turn = len(sequences[0]) % 2
        legal = infos["action_mask"].reshape(-1, 2, 65)[:, on_turn]
        assert int(legal.sum()) == expected
        if expected < 10_000:
            sequences = [[*sequences[k], square] for k, square in np.argwhere(legal).tolist()]
        vec.close()


def test_the_first_moves_are_those_of_the_rules():
    """Black begins with d3, c4, f5 or e6, and d3 turns over d4."""
    vec = shoal.make("othello", 1, first="agent_1")
    obs, infos = vec.reset(seed=0)
    assert np.flatnonzero(infos["action_mask"][1]).tolist() == [19, 26, 37, 44]
    assert np.flatnonzero(infos["action_mask"][0]).tolist() == [PASS]
    assert obs[:, 128].tolist() == [0, 1]
    obs, *_ = vec.step(np.array([0, 19]))
    assert np.flatnonzero(obs[1, :64]).tolist() == [19, 27, 28, 35]
    assert np.flatnonzero(obs[1, 64:128]).tolist() == [36]


def test_the_shortest_game_ends_after_nine_moves():
    """e6 f4 e3 f6 g5 d6 e7 f5 c5: white has no disc left, and the game is over before the board is full."""
    moves = [8 * (int(row) - 1) + "abcdefgh".index(column) for column, row in "e6 f4 e3 f6 g5 d6 e7 f5 c5".split()]
    vec = shoal.make("othello", 1, first="agent_0")
    vec.reset(seed=0)
    for ply, square in enumerate(moves):
        _, rewards, terminated, *_ = vec.step(np.array([square, square]))
        assert terminated.tolist() == [ply == 8] * 2
    assert rewards.tolist() == [1, -1]
    stats = vec.drain_stats()
    assert (stats["lead_0"]["mean"], stats["plies"]["mean"], stats["passes"]["mean"]) == (13, 9, 0)


def test_an_agent_without_moves_can_only_pass():
    vec = shoal.make("othello", 400, seed=0)
    obs, infos = vec.reset()
    generator, passes = np.random.default_rng(0), 0
    for _ in range(80):
        masks = infos["action_mask"]
        on_turn = obs[:, 128] == 1
        must_pass = on_turn & (masks[:, PASS] == 1)
        assert (masks[must_pass].sum(1) == 1).all()
        assert (masks[~on_turn].sum(1) == 1).all()
        assert (masks[on_turn & ~must_pass, PASS] == 0).all()
        before = obs.copy()
        obs, _, terminated, _, infos = vec.step((generator.random(masks.shape) * masks).argmax(1))
        passed = must_pass & ~terminated
        assert (obs[passed, :128] == before[passed, :128]).all()
        assert (obs[passed, 128] == 0).all()
        passes += int(passed.sum())
    assert passes > 50
    assert vec.drain_stats()["passes"]["mean"] > 0.2


def test_robots_rank_as_they_should():
    """random < greedy < corners, in games from both seats."""
    for weak, strong, at_least in (("random", "greedy", 0.55), ("greedy", "corners", 0.7)):
        vec = shoal.make("othello", 200, robot_0=weak, robot_1=strong, opening_plies=4)
        vec.reset(seed=0)
        for _ in range(125):
            vec.step(np.full(vec.num_rows, PASS))
        stats = vec.drain_stats()
        assert stats["episodes"] >= 200
        assert stats["wins_1"]["mean"] + 0.5 * stats["draws"]["mean"] > at_least
        vec.close()


def test_a_robot_replies_within_the_step():
    vec = shoal.make("othello", 1, robot_1="corners", first="agent_0")
    obs, _ = vec.reset(seed=0)
    for step in range(3):
        obs, *_ = vec.step(np.array([0, 0]))
        assert obs[0, 128] == 1
        assert obs[0, :128].sum() == 4 + 2 * (step + 1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"robot_0": "grredy"}, "Did you mean 'greedy'"),
        ({"opening_plies": 41}, "opening_plies"),
        ({"moves": 3}, "moves"),
    ],
)
def test_bad_params_are_named(options, said):
    with pytest.raises(ConfigError, match=said):
        shoal.make("othello", 1, **options)
