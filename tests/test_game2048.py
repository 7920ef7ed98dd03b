"""game2048: every rule against a slow twin, rare boards one by one, and what scripted play scores."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from shoal.errors import ConfigError, SnapshotError

from .arcade_twin import compare, poke
from .game2048_twin import DOWN, LAYOUT, LEFT, RIGHT, UP, Twin, corner_player, slide


def boards_of(obs):
    """Observed boards as values of tiles, (envs, 4, 4)."""
    kinds = obs.reshape(-1, 4, 4, 16)
    return (kinds * 2 ** np.arange(1, 17)).sum(-1)


def set_board(vec, board):
    state = poke(vec, LAYOUT)
    state["tiles"] = [int(tile).bit_length() - 1 if tile else 0 for tile in np.ravel(board)]
    state["legal"] = 15


def test_every_rule_equals_the_slow_twin():
    """Random actions, legal or not, through whole games; time limits and shares of fours from none to all."""
    all_params = [{"four_share": share, "max_steps": limit} for share in (0.0, 0.1, 1.0) for limit in (0, 60, 20000)]
    given = {name: [params[name] for params in all_params] for name in all_params[0]}
    vec = shoal.make("game2048", 9, **given)
    twins = [Twin(params, seed=20 + k) for k, params in enumerate(all_params)]
    assert compare(twins, vec, 300, seed=20) > 12


def test_large_tiles_equal_the_slow_twin():
    """From boards with every tile up to 131072, of which two never merge."""
    vec, rng = shoal.make("game2048", 40, seed=0), np.random.default_rng(0)
    vec.reset(seed=5)
    twins = [Twin(seed=5 + k) for k in range(40)]
    state = poke(vec, LAYOUT)
    for k, twin in enumerate(twins):
        tiles = rng.integers(0, 18, 16) if k % 2 else rng.integers(15, 18, 16)
        tiles[rng.integers(16, size=3)] = 0
        state["tiles"][k] = tiles
        twin.board = [[2**t if t else 0 for t in row] for row in tiles.reshape(4, 4).tolist()]
    compare(twins, vec, 40, seed=9, start=False)


@pytest.mark.parametrize(
    ("row", "after", "points"),
    [
        ([2, 2, 2, 2], [4, 4, 0, 0], 8),
        ([2, 2, 2, 0], [4, 2, 0, 0], 4),
        ([4, 2, 2, 0], [4, 4, 0, 0], 4),
        ([2, 0, 0, 2], [4, 0, 0, 0], 4),
        ([1024, 1024, 2, 0], [2048, 2, 0, 0], 2048),
        ([0, 2, 0, 4], [2, 4, 0, 0], 0),
    ],
)
def test_a_line_slides_and_merges_once(row, after, points):
    """The pair nearest to the side merges first; a merged tile merges no more; in all four directions."""
    others = [[8, 16, 32, 64], [16, 8, 64, 32], [8, 16, 32, 64]]  # rows that do not move along themselves
    for action, turns in ((LEFT, 0), (DOWN, 1), (RIGHT, 2), (UP, 3)):
        vec = shoal.make("game2048", 1)
        vec.reset(seed=0)
        set_board(vec, np.rot90([row, *others], turns))
        obs, rewards, *_ = vec.step(np.array([action]))
        board = np.rot90(boards_of(obs)[0], -turns)
        new = board[0] != after  # the new tile lies in the only row with empty cells
        assert rewards[0] == points
        assert new.sum() == 1
        assert board[0][new][0] in (2, 4)
        assert np.array(after)[new][0] == 0
        assert board[1:].tolist() == others
        vec.close()


def test_a_move_that_changes_nothing_adds_no_tile():
    vec = shoal.make("game2048", 1)
    vec.reset(seed=0)
    board = [[2, 4, 0, 0], [4, 2, 0, 0], [2, 4, 0, 0], [4, 2, 0, 0]]
    set_board(vec, board)
    for action in (LEFT, UP, DOWN):
        obs, rewards, terminated, _, infos = vec.step(np.array([action]))
        assert boards_of(obs)[0].tolist() == board
        assert rewards[0] == 0
        assert not terminated[0]
        assert infos["action_mask"][0].tolist() == [0, 1, 0, 0]


def test_a_full_board_without_a_pair_ends_the_game():
    vec = shoal.make("game2048", 1, four_share=0.0)
    vec.reset(seed=0)
    set_board(vec, [[4, 8, 4, 8], [8, 4, 8, 4], [4, 8, 4, 8], [16, 32, 0, 1024]])
    _, _, terminated, _, infos = vec.step(np.array([RIGHT]))
    assert terminated[0]
    assert boards_of(infos["final_obs"])[0][3].tolist() == [2, 16, 32, 1024]
    stats = vec.drain_stats()
    assert (stats["largest"]["mean"], stats["made_2048"]["mean"]) == (1024, 0)


def test_2048_is_counted_once():
    vec = shoal.make("game2048", 1, max_steps=3)
    vec.reset(seed=0)
    set_board(vec, [[1024, 1024, 0, 0], [0] * 4, [0] * 4, [0] * 4])
    for action in (LEFT, RIGHT, LEFT):
        vec.step(np.array([action]))
    stats = vec.drain_stats()
    assert (stats["largest"]["mean"], stats["made_2048"]["mean"], stats["score"]["mean"]) == (2048, 1, 2048)


def test_new_tiles_are_uniform_and_a_tenth_are_fours():
    vec = shoal.make("game2048", 4000)
    obs, _ = vec.reset(seed=0)
    boards = boards_of(obs)
    tiles = boards[boards > 0]
    assert len(tiles) == 8000
    assert 0.085 < (tiles == 4).mean() < 0.115
    assert np.abs((boards > 0).mean(0) - 2 / 16).max() < 0.02


def test_bad_params_and_states_are_refused():
    with pytest.raises(ConfigError, match="four_share"):
        shoal.make("game2048", 1, four_share=1.5)
    vec = shoal.make("game2048", 1)
    vec.reset(seed=0)
    poke(vec, LAYOUT)["tiles"][0, 3] = 18
    with pytest.raises(SnapshotError, match="cannot reach"):
        vec.restore(vec.snapshot())


@pytest.mark.slow
def test_the_corner_player_scores_far_more_than_random_play():
    """The figures of the header and of game2048.toml: 1,090 and 8,870."""
    random = shoal.make("game2048", 500)
    rng = np.random.default_rng(0)
    _, infos = random.reset(seed=0)
    for _ in range(600):
        _, _, _, _, infos = random.step((rng.random((500, 4)) * infos["action_mask"]).argmax(1))
    random_score = random.drain_stats()["score"]["mean"]
    assert 1000 < random_score < 1200
    vec = shoal.make("game2048", 4)
    obs, _ = vec.reset(seed=0)
    scores = {}
    while len(scores) < 4:
        actions = [corner_player(board) for board in boards_of(obs).tolist()]
        obs, _, terminated, _, infos = vec.step(np.array(actions))
        for k in np.flatnonzero(terminated):
            scores.setdefault(int(k), infos["final_info"]["episode"]["r"][k])
    assert np.mean([*scores.values()]) > 7000


def test_the_twin_slides_as_the_rules_say():
    """The twin's own geometry, by hand."""
    assert slide([[2, 0, 0, 2], [0] * 4, [0] * 4, [2, 0, 0, 0]], UP) == ([[4, 0, 0, 2], [0] * 4, [0] * 4, [0] * 4], 4)
