"""go, hex and breakthrough: every rule and robot against slow twins, games of OpenSpiel, and constructed positions."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

import shoal
from shoal.errors import ConfigError, SnapshotError

from . import record_board_games as recorded
from .board_twins import compare
from .breakthrough_twin import Breakthrough
from .forging import forged, records_of
from .go_twin import Go
from .hex_twin import Hex


def all_params(robots, **more):
    """Every pair of players, with other openings, time limits and first agents; `more`: choices for other params."""
    found = []
    for number, pair in enumerate(itertools.product(robots, repeat=2)):
        params = {
            "first": ("random", "agent_0", "agent_1")[number % 3],
            "opening_plies": (0, 5, 40)[number // 2 % 3],
            "max_steps": (0, 0, 11)[number % 3],
            "robot_0": pair[0],
            "robot_1": pair[1],
        }
        found.append({**params, **{name: values[number % len(values)] for name, values in more.items()}})
    return found


def make(env, params, **consts):
    return shoal.make(env, len(params), **consts, **{name: [each[name] for each in params] for name in params[0]})


def play(vec, actions):
    """Both agents are given the same action; the one that waits does not act. Returns the last step."""
    for action in actions:
        last = vec.step(np.full(vec.num_rows, action))
    return last


def legal(infos, agent):
    return set(np.flatnonzero(infos["action_mask"][agent]).tolist())


# ---- against twins ----


@pytest.mark.parametrize(("side", "steps", "features"), [(3, 40, 1), (5, 20, 1), (9, 4, 1)])
def test_every_rule_of_go_equals_the_slow_twin(side, steps, features):
    """Random actions, legal or not; every robot in every seat, openings, who begins, time limits: the same bytes."""
    params = all_params(("learner", "random", "tactics"), komi=(7.5, 0.0, -3.0, 1.25))
    vec = make("go", params, side=side, features=features)
    twins = [Go(each, 7 + k, bool(features), side) for k, each in enumerate(params)]
    assert compare(twins, vec, steps, seed=7) >= (10 if side < 9 else 0)


@pytest.mark.slow
def test_whole_games_of_go_equal_the_slow_twin():
    params = all_params(("learner", "random", "tactics"), komi=(7.5, 0.0, -3.0))
    for side, steps, features in ((4, 60, 0), (9, 100, 1)):
        twins = [Go(each, 3 + k, bool(features), side) for k, each in enumerate(params)]
        assert compare(twins, make("go", params, side=side, features=features), steps, seed=3) >= 9


@pytest.mark.parametrize(("side", "steps", "links"), [(3, 30, 1), (5, 30, 1), (11, 8, 1)])
def test_every_rule_of_hex_equals_the_slow_twin(side, steps, links):
    params = all_params(("learner", "random", "ways", "path"), swap=(0, 1, 1))
    vec = make("hex", params, side=side, links=links)
    twins = [Hex(each, 7 + k, bool(links), side) for k, each in enumerate(params)]
    assert compare(twins, vec, steps, seed=7) >= (0 if side == 11 else 4)


@pytest.mark.slow
def test_whole_games_of_hex_equal_the_slow_twin():
    params = all_params(("learner", "random", "ways", "path"), swap=(0, 1, 1))
    for side, steps, links in ((7, 60, 0), (11, 60, 1)):
        twins = [Hex(each, 3 + k, bool(links), side) for k, each in enumerate(params)]
        assert compare(twins, make("hex", params, side=side, links=links), steps, seed=3) >= 9


@pytest.mark.parametrize("attacks", [0, 1])
def test_every_rule_of_breakthrough_equals_the_slow_twin(attacks):
    params = all_params(("learner", "random", "one_ply"))
    vec = make("breakthrough", params, attacks=attacks)
    twins = [Breakthrough(each, 7 + k, bool(attacks)) for k, each in enumerate(params)]
    assert compare(twins, vec, 45, seed=7) >= 5


def test_search2_equals_the_slow_twin():
    """After openings of 5 and 40 moves."""
    params = [{**each, "opening_plies": 40} for each in all_params(("learner", "search2"))[1:3]]
    params[0]["opening_plies"] = 5
    vec = make("breakthrough", params)
    assert compare([Breakthrough(each, 9 + k, True) for k, each in enumerate(params)], vec, 2, seed=9) == 0


@pytest.mark.slow
def test_games_of_search2_equal_the_slow_twin():
    params = [{**each, "opening_plies": 40} for each in all_params(("learner", "one_ply", "search2"))]
    twins = [Breakthrough(each, 3 + k, True) for k, each in enumerate(params)]
    assert compare(twins, make("breakthrough", params), 20, seed=3) >= 3


# ---- against OpenSpiel ----


def assert_same_game(env, game):
    """Legal moves before every move, no end before the last, and who wins."""
    vec = shoal.make(env, 1, first="agent_0", **game["params"])
    _, infos = vec.reset(seed=0)
    for ply, (action, expected) in enumerate(zip(game["actions"], game["legal"])):
        assert recorded.checksum(legal(infos, ply % 2)) == expected, (env, game["params"], ply)
        _, rewards, terminated, _, infos = vec.step(np.array([action, action]))
        assert terminated.tolist() == [ply + 1 == len(game["actions"])] * 2
    assert rewards.tolist() == game["returns"]
    vec.close()


@pytest.mark.parametrize("env", ["go", "hex", "breakthrough"])
def test_recorded_games_of_openspiel(env):
    for game in json.loads(recorded.DATA.read_text())[env]:
        assert_same_game(env, game)


@pytest.mark.slow
@pytest.mark.parametrize("env", ["go", "hex", "breakthrough"])
def test_new_games_of_openspiel(env):
    pytest.importorskip("pyspiel")
    for seed in range(20):
        params = recorded.GAMES[env][seed % len(recorded.GAMES[env])]
        assert_same_game(env, recorded.play_game(env, params, 1000 + seed))


# ---- go ----

PASS = 25  # on 5 x 5


def five(**params):
    vec = shoal.make("go", 1, **{"side": 5, "first": "agent_0", "komi": 0.5, **params})
    vec.reset(seed=0)
    return vec


def test_a_chain_without_liberties_is_taken_and_suicide_is_forbidden():
    """Black takes two white stones in the corner; white may then not play into black's eye, black may."""
    vec = five()
    obs, *_, infos = play(vec, [10, 0, 6, 5])  # white 0 and 5 have one liberty: point 1
    assert np.flatnonzero(obs[0, 54:79]).tolist() == [0, 5]
    obs, *_, infos = play(vec, [1])
    assert np.flatnonzero(obs[0, :25]).tolist() == [1, 6, 10]
    assert obs[0, 25:50].sum() == 0
    assert {0, 5} <= legal(infos, 1)  # two free points: no suicide yet
    obs, *_, infos = play(vec, [PASS, 5])
    assert 0 not in legal(infos, 1)
    assert np.flatnonzero(obs[1, 79:104]).tolist() == [0]
    *_, infos = play(vec, [PASS])
    assert 0 in legal(infos, 0)


def test_a_ko_may_not_be_retaken_at_once():
    """Black 6 10 16 and white 7 13 17 around a ko: black takes 12 from 11."""
    vec = five()
    *_, infos = play(vec, [6, 7, 10, 13, 16, 17, 24, 11])
    assert 12 in legal(infos, 0)
    *_, infos = play(vec, [12])  # takes 11
    assert 11 not in legal(infos, 1)
    *_, infos = play(vec, [23, 4])  # elsewhere: the board is another one
    assert 11 in legal(infos, 1)
    *_, infos = play(vec, [11])
    assert 12 not in legal(infos, 0)


def test_superko_forbids_longer_cycles_than_a_ko():
    """Random games on 3 x 3, until a move would bring back a board of more than one move ago: the mask forbids it."""
    found, rng = 0, np.random.default_rng(0)
    for seed in range(16):
        twin = Go({"first": "agent_0"}, seed, True, 3)
        while twin.outcome() is None:
            points = twin.points()
            results = {k: twin.after(k, twin.turn) for k in range(9) if k not in points}
            old = [k for k, after in results.items() if after is not None and after[0] not in twin.boards[-2:]]
            if old:
                vec = shoal.make("go", 1, side=3, first="agent_0")
                vec.reset(seed=0)
                *_, infos = play(vec, twin.moves_made)
                assert legal(infos, twin.turn) == {*points, 9}
                found += 1
            twin.play(int(rng.choice(points)) if points else 9)
    assert found >= 3


def test_area_scoring_komi_and_draws():
    """Black owns three columns, white one: 15 : 5 and a column of five that nobody owns alone."""
    moves = [2, 4, 7, 9, 12, 14, 17, 19, 22, 24, PASS, PASS]
    for komi, rewards_0, lead in ((0.5, 1, 9.5), (10.5, None, None), (9.0, 1, 1.0), (-9.0, 1, 19.0)):
        if rewards_0 is None:
            with pytest.raises(ConfigError, match="komi"):
                five(komi=komi)
            continue
        vec = five(komi=komi)
        _, rewards, terminated, *_ = play(vec, moves)
        assert rewards.tolist() == [rewards_0, -rewards_0]
        assert terminated.tolist() == [True, True]
        stats = vec.drain_stats()
        assert stats["lead_0"]["mean"] == lead
        assert (stats["plies"]["mean"], stats["passes"]["mean"], stats["cut_off"]["mean"]) == (10, 2, 0)
    vec = five(komi=0.0)  # nobody has a stone: a draw
    _, rewards, terminated, *_ = play(vec, [PASS, PASS])
    assert rewards.tolist() == [0, 0]
    assert terminated.all()
    assert vec.drain_stats()["draws"]["mean"] == 1


def test_the_limit_of_moves_ends_a_game():
    vec = shoal.make("go", 1, side=3, first="agent_0")
    vec.reset(seed=0)
    for ply in range(18):
        _, _, terminated, *_ = vec.step(np.array([ply % 9, (5 * ply) % 9]))
    assert terminated.all()
    stats = vec.drain_stats()
    assert stats["cut_off"]["mean"] == 1
    assert stats["plies"]["mean"] + stats["passes"]["mean"] == 18


def test_komi_and_colour_are_seen():
    vec = shoal.make("go", 1, first="agent_1", komi=6.5)
    obs, _ = vec.reset(seed=0)
    assert obs[:, 162].tolist() == [0, 1]  # agent 1 is on turn
    assert obs[:, 164].tolist() == [np.float32(6.5) / 81, -np.float32(6.5) / 81]


@pytest.mark.slow
def test_go_on_the_largest_board():
    vec = shoal.make("go", 4, side=19, robot_0="tactics", robot_1="random")
    vec.reset(seed=0)
    for _ in range(460):
        vec.step(np.zeros(8, np.int64))
    stats = vec.drain_stats()
    assert stats["episodes"] >= 4
    assert stats["wins_0"]["mean"] == 1


# ---- hex ----


def test_a_chain_from_top_to_bottom_wins_and_the_second_agent_sees_the_board_mirrored():
    vec = shoal.make("hex", 1, side=3, first="agent_1", swap=0)
    vec.reset(seed=0)
    obs, *_ = play(vec, [1])
    assert np.flatnonzero(obs[1, :9]).tolist() == [1]
    assert np.flatnonzero(obs[0, 9:18]).tolist() == [3]
    assert obs[1, 20:29].tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 0]  # linked with the top
    assert obs[0, 29:38].tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0]  # for the other agent: with the left side
    play(vec, [0, 4, 2])
    _, rewards, terminated, _, infos = play(vec, [6])  # below left of 4
    assert rewards.tolist() == [-1, 1]
    assert terminated.all()
    assert infos["final_obs"][1, 20:29].tolist() == [0] * 9  # top and bottom at once: 1 - 1


def test_above_left_is_no_neighbour():
    vec = shoal.make("hex", 1, side=3, first="agent_0", swap=0)
    vec.reset(seed=0)
    _, _, terminated, *_ = play(vec, [0, 1, 4, 2, 8])
    assert not terminated.any()


def test_a_swap_takes_the_stone_over():
    vec = shoal.make("hex", 1, side=5, first="agent_0")
    obs, infos = vec.reset(seed=0)
    assert legal(infos, 0) == set(range(25))
    assert legal(infos, 1) == {25}  # waits
    obs, *_, infos = play(vec, [7])
    assert legal(infos, 1) == set(range(26)) - {11}  # the stone of 7, mirrored
    assert obs[:, 51].tolist() == [0, 1]
    obs, *_, infos = play(vec, [25])
    assert np.flatnonzero(obs[1, :25]).tolist() == [7]
    assert obs[0, :25].sum() == 0
    assert np.flatnonzero(obs[0, 25:50]).tolist() == [11]
    assert 25 not in legal(infos, 0)
    without = shoal.make("hex", 1, side=5, first="agent_0", swap=0)
    without.reset(seed=0)
    *_, infos = play(without, [7])
    assert 25 not in legal(infos, 1)


def test_path_mends_a_bridge():
    """Stones at 6 and 17 of agent 0, with 11 and 12 between them: whichever is entered, the other one is taken."""
    for entered, mended in ((11, 12), (12, 11)):
        vec = shoal.make("hex", 1, side=5, first="agent_0", swap=0)
        vec.reset(seed=0)
        mirrored = entered % 5 * 5 + entered // 5
        for action in (7, 4, 16, mirrored):  # 7 and 16 have 11 and 12 between them
            vec.step(np.array([action, action]))
        vec.set_params(robot_0="path")
        obs, *_ = vec.step(np.array([0, 0]))
        assert np.flatnonzero(obs[0, :25]).tolist() == sorted([7, 16, mended])


# ---- breakthrough ----


def test_the_first_moves_of_breakthrough():
    vec = shoal.make("breakthrough", 1, first="agent_1")
    obs, infos = vec.reset(seed=0)
    assert np.flatnonzero(obs[0, :64]).tolist() == list(range(48, 64))
    assert (obs[0, :128] == obs[1, :128]).all()  # both see their own pieces at the bottom
    expected = {64 * direction + 48 + column for direction in range(3) for column in range(8)} - {48, 128 + 55}
    assert legal(infos, 1) == expected
    assert legal(infos, 0) == {0}
    obs, *_ = play(vec, [64 + 50])  # straight ahead
    assert np.flatnonzero(obs[1, :64]).tolist() == sorted({*range(48, 64), 42} - {50})
    assert np.flatnonzero(obs[0, 64:128]).tolist() == sorted({*range(16), 18} - {10})


def breakthrough_at(own, other, **params):
    """Agent 0 is on turn; squares as it sees the board."""
    vec = shoal.make("breakthrough", 1, first="agent_0", **params)
    vec.reset(seed=0)
    blob = vec.snapshot()
    records = records_of(vec, blob)
    start = np.array([sum(1 << k for k in range(48, 64)), sum(1 << k for k in range(16))], np.uint64)
    at = records[0].tobytes().index(start.tobytes())
    pieces = np.array([sum(1 << k for k in own), sum(1 << k for k in other)], np.uint64)
    records[0, at : at + 16] = np.frombuffer(pieces.tobytes(), np.uint8)
    vec.restore(forged(blob, records))
    return vec


def test_the_last_piece_can_be_taken_and_only_diagonally():
    vec = breakthrough_at([35], [27, 28])
    *_, infos = play(vec, [128 + 35])  # takes 28
    assert not infos.get("final_info")
    vec = breakthrough_at([35], [26])
    _, rewards, terminated, *_ = play(vec, [35])
    assert rewards.tolist() == [1, -1]
    assert terminated.all()
    stats = vec.drain_stats()
    assert (stats["wiped_out"]["mean"], stats["captures"]["mean"]) == (1, 1)
    vec = breakthrough_at([35], [27, 1])  # straight ahead is taken: only the diagonals are free
    _, rewards, terminated, *_ = play(vec, [64 + 35])  # replaced by up right
    assert not terminated.any()


def test_a_piece_on_the_far_row_wins_also_by_taking():
    for action, other in ((64 + 8, [60]), (128 + 8, [1, 60])):
        vec = breakthrough_at([8], other)
        _, rewards, terminated, *_ = play(vec, [action])
        assert rewards.tolist() == [1, -1]
        assert terminated.all()
        assert vec.drain_stats()["wiped_out"]["mean"] == 0


def test_one_ply_wins_stops_and_takes():
    for own, other, expected in (
        ([8, 45, 60], [52, 36], {0, 1}),  # wins, although it could take or stop 52
        ([45, 60, 59], [52], {52}),  # 52 would win next
        ([45, 33], [36, 7], {36}),  # takes what is not guarded
    ):
        vec = breakthrough_at(own, other, robot_0="one_ply")
        _, _, terminated, _, infos = vec.step(np.zeros(2, np.int64))
        after = infos["final_obs"][0] if terminated.any() else vec.memory.arrays["obs"][0]
        assert set(np.flatnonzero(after[:64]).tolist()) & expected, own


# ---- all ----


@pytest.mark.parametrize(
    ("env", "weak", "strong", "steps", "at_least"),
    [
        ("go", "random", "tactics", 120, 0.95),
        ("hex", "random", "ways", 60, 0.97),
        ("hex", "ways", "path", 60, 0.6),
        ("breakthrough", "random", "one_ply", 100, 0.9),
        ("breakthrough", "one_ply", "search2", 70, 0.85),
    ],
)
def test_robots_rank_as_they_should(env, weak, strong, steps, at_least):
    for seats in ((weak, strong), (strong, weak)):
        vec = shoal.make(env, 60, robot_0=seats[0], robot_1=seats[1], opening_plies=2)
        vec.reset(seed=0)
        play(vec, [0] * steps)
        stats = vec.drain_stats()
        assert stats["episodes"] >= 50
        assert stats[f"wins_{seats.index(strong)}"]["mean"] >= at_least
        vec.close()


@pytest.mark.parametrize(
    ("env", "robot", "turn"), [("go", "tactics", 162), ("hex", "path", 242), ("breakthrough", "one_ply", 128)]
)
def test_a_robot_replies_within_the_step(env, robot, turn):
    vec = shoal.make(env, 1, robot_1=robot, first="agent_0")
    obs, _ = vec.reset(seed=0)
    for _ in range(3):
        obs, *_ = vec.step(np.array([0, 0]))
        assert obs[0, turn] == 1


@pytest.mark.parametrize(
    ("env", "options", "said"),
    [
        ("go", {"side": 20}, "side"),
        ("go", {"robot_0": "tactic"}, "Did you mean 'tactics'"),
        ("go", {"komi": 30}, "komi"),
        ("hex", {"side": 2}, "side"),
        ("hex", {"swap": 2}, "swap"),
        ("breakthrough", {"opening_plies": 41}, "opening_plies"),
        ("breakthrough", {"robot_1": "search3"}, "search2"),
    ],
)
def test_bad_params_are_named(env, options, said):
    with pytest.raises(ConfigError, match=said):
        shoal.make(env, 1, **options)


def test_two_pieces_on_a_square_are_refused():
    with pytest.raises(SnapshotError):
        breakthrough_at([35], [35])
