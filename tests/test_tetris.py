"""tetris: every rule against a slow twin, rotations and kicks, clears, hold, both ways to lose, scripted play."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from shoal.errors import ConfigError, SnapshotError

from .arcade_twin import compare, poke
from .tetris_twin import (
    COLUMNS,
    HARD,
    HOLD,
    KINDS,
    LAYOUT,
    LEFT,
    RIGHT,
    ROWS,
    SOFT,
    STAY,
    TURN_LEFT,
    TURN_RIGHT,
    Twin,
    player,
    shape,
)


def set_field(vec, env, locked, twin=None):
    """Locks these cells (x, y), and none else."""
    rows = [0xC00F] * ROWS
    for x, y in locked:
        rows[y] |= 1 << (x + 4)
    poke(vec, LAYOUT)["field"][env, 4:-4] = rows
    if twin is not None:
        twin.locked = set(locked)


def set_piece(vec, env, kind, turn, x, y, twin=None):
    state = poke(vec, LAYOUT)
    for name, value in zip(("piece", "turn", "x", "y", "timer"), (KINDS.index(kind), turn, x, y, 0)):
        state[name][env] = value
    if twin is not None:
        twin.kind, twin.turn, twin.x, twin.y, twin.timer = kind, turn, x, y, 0


def read_cells(obs):
    """Locked cells of a row of observations."""
    return {(int(x), int(y) + 2) for y, x in np.argwhere(obs[:200].reshape(20, 10))}


def play_by(twin, agent):
    return player(frozenset(twin.locked), twin.kind, twin.turn, twin.x)


def test_every_rule_equals_the_slow_twin():
    """Random keys through whole games, at several speeds, with and without hold."""
    all_params = [
        {"gravity": gravity, "hold": hold, "max_steps": limit}
        for gravity, hold, limit in ((6, 1, 2000), (1, 1, 0), (3, 0, 0), (40, 1, 70), (2, 1, 50), (1, 0, 0))
    ]
    given = {name: [params[name] for params in all_params] for name in all_params[0]}
    vec = shoal.make("tetris", len(all_params), **given)
    twins = [Twin(params, seed=30 + k) for k, params in enumerate(all_params)]
    assert compare(twins, vec, 220, seed=30) > 8


def test_cleared_rows_equal_the_slow_twin():
    """The scripted player makes rows full; every eighth key is random."""
    vec = shoal.make("tetris", 3)
    twins = [Twin(seed=k) for k in range(3)]
    rng = np.random.default_rng(1)
    compare(twins, vec, 120, seed=0, act=lambda twin, k: None if rng.random() < 0.12 else play_by(twin, k))
    assert min(twin.totals["rows"] for twin in twins) >= 1


def test_kicks_equal_the_slow_twin():
    """Pieces in random rubble, turned and moved: all kinds, turns and kicks, also at walls, floor and top."""
    count, rng = 60, np.random.default_rng(2)
    vec = shoal.make("tetris", count, gravity=1000)
    vec.reset(seed=7)
    twins, kicked = [Twin({"gravity": 1000}, seed=7 + k) for k in range(count)], 0
    for _ in range(3):
        for k, twin in enumerate(twins):
            locked = {(x, y) for x in range(COLUMNS) for y in range(2, ROWS) if rng.random() < 0.35}
            locked -= {(int(rng.integers(COLUMNS)), y) for y in range(ROWS)}  # no row is full
            set_field(vec, k, locked, twin)
            kind, turn = KINDS[rng.integers(7)], int(rng.integers(4))
            xs, ys = zip(*shape(kind, turn))
            spots = [(x, y) for x in range(-min(xs), 10 - max(xs)) for y in range(-min(ys), ROWS - max(ys))]
            twin.kind = kind
            spots = [spot for spot in spots if twin.fits(turn, *spot)]
            set_piece(vec, k, kind, turn, *spots[rng.integers(len(spots))], twin)
        keys = rng.choice([TURN_RIGHT, TURN_LEFT, LEFT, RIGHT], size=(4, count), p=[0.4, 0.4, 0.1, 0.1])
        for turn in keys:
            before = [(twin.turn, twin.x, twin.y) for twin in twins]
            chosen = dict(zip(map(id, twins), turn.tolist()))
            compare(twins, vec, 1, seed=0, act=lambda twin, _: chosen[id(twin)], start=False)  # noqa: B023
            kicked += sum(b[0] != t.turn and b[1:] != (t.x, t.y) for b, t in zip(before, twins))
    assert kicked > 40


@pytest.mark.parametrize(("rows", "points"), [(1, 1), (2, 3), (3, 5), (4, 8)])
def test_points_of_cleared_rows(rows, points):
    """An I in the gap of one to four rows; what lies above moves down."""
    vec = shoal.make("tetris", 1)
    vec.reset(seed=0)
    walls = {(x, y) for x in range(9) for y in range(ROWS - rows, ROWS)}
    set_field(vec, 0, walls | {(0, 21 - rows)})
    set_piece(vec, 0, "I", 3, 8, 10)
    obs, rewards, terminated, _, _ = vec.step(np.array([HARD]))
    assert rewards[0] == pytest.approx(points + 0.02 * 8)
    assert not terminated[0]
    rest = {(0, 21)} | {(9, y) for y in range(18 + rows, ROWS)}
    assert read_cells(obs[0]) == rest


def test_a_t_is_kicked_up_from_the_floor_and_out_of_a_wall():
    vec = shoal.make("tetris", 2, gravity=1000)
    vec.reset(seed=0)
    set_piece(vec, 0, "T", 1, -1, 10)  # its box is one column outside of the left wall
    set_piece(vec, 1, "I", 0, 3, 20)  # flat on the floor
    vec.step(np.array([TURN_RIGHT, TURN_RIGHT]))
    state = poke(vec, LAYOUT)
    assert (state["turn"].tolist(), state["x"].tolist(), state["y"].tolist()) == ([2, 1], [0, 4], [10, 18])


def test_hold_swaps_once_for_each_piece():
    vec = shoal.make("tetris", 1, gravity=1000)
    vec.reset(seed=0)
    state = poke(vec, LAYOUT)
    first, second = int(state["piece"][0]), int(state["queue"][0, 0])
    vec.step(np.array([HOLD]))
    assert (state["piece"][0], state["held"][0]) == (second, first)
    vec.step(np.array([HOLD]))  # a second time does nothing
    assert (state["piece"][0], state["held"][0]) == (second, first)
    vec.step(np.array([HARD]))
    third = int(state["piece"][0])
    obs, *_ = vec.step(np.array([HOLD]))
    assert (state["piece"][0], state["held"][0]) == (first, third)
    assert obs[0, 241] == 0  # hold is not allowed


def test_a_piece_that_locks_out_of_sight_ends_the_game():
    vec = shoal.make("tetris", 1, gravity=1000)
    vec.reset(seed=0)
    set_field(vec, 0, {(4, y) for y in range(2, ROWS)} | {(5, y) for y in range(2, ROWS)})
    set_piece(vec, 0, "O", 0, 3, 0)
    _, _, terminated, _, infos = vec.step(np.array([SOFT]))
    assert terminated[0]
    assert infos["final_info"]["episode"]["r"][0] == 0
    assert vec.drain_stats()["height"]["mean"] == 22


def test_a_piece_that_locks_partly_in_sight_ends_nothing():
    vec = shoal.make("tetris", 1, gravity=1000)
    vec.reset(seed=0)
    set_field(vec, 0, {(x, y) for x in (0, 1) for y in range(3, ROWS)})
    set_piece(vec, 0, "O", 0, -1, 0)
    obs, _, terminated, *_ = vec.step(np.array([HARD]))
    assert not terminated[0]
    assert {(0, 2), (1, 2)} < read_cells(obs[0])


def test_no_room_for_the_next_piece_ends_the_game():
    vec = shoal.make("tetris", 1, gravity=1000)
    vec.reset(seed=0)
    set_field(vec, 0, {(x, 1) for x in range(3, 7)})
    set_piece(vec, 0, "O", 0, -1, 19)
    _, _, terminated, *_ = vec.step(np.array([HARD]))
    assert terminated[0]


def test_gravity_moves_a_piece_every_so_many_steps():
    vec = shoal.make("tetris", 2, gravity=[1, 4])
    vec.reset(seed=0)
    for _ in range(8):
        vec.step(np.array([STAY, STAY]))
    assert poke(vec, LAYOUT)["y"].tolist() == [8, 2]


def test_every_bag_holds_each_kind_once():
    vec = shoal.make("tetris", 200, gravity=1000)
    vec.reset(seed=0)
    state, drawn = poke(vec, LAYOUT), []
    for _ in range(21):
        drawn.append(state["piece"].copy())
        state["field"][:, 4:-4] = 0xC00F
        vec.step(np.full(200, HARD))
    bags = np.array(drawn).T.reshape(200, 3, 7)
    assert (np.sort(bags, -1) == np.arange(7)).all()
    assert len({tuple(bag) for bag in bags.reshape(-1, 7).tolist()}) > 500


def test_bad_params_and_states_are_refused():
    for bad in ({"gravity": 0}, {"preview": 8}, {"hold": 2}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            shoal.make("tetris", 1, **bad)
    vec = shoal.make("tetris", 1)
    for name, value in (("piece", 7), ("turn", 4), ("x", 9), ("y", 21), ("held", 8), ("queued", 14), ("queued", 6)):
        vec.reset(seed=0)
        poke(vec, LAYOUT)[name][0] = value
        with pytest.raises(SnapshotError, match="cannot reach"):
            vec.restore(vec.snapshot())


@pytest.mark.slow
def test_the_scripted_player_survives():
    """The figures of the header and of tetris.toml."""
    twins = [Twin(seed=k) for k in range(2)]
    vec = shoal.make("tetris", 2)
    assert compare(twins, vec, 2000, seed=0, act=play_by) == 2
    stats = vec.drain_stats()
    assert stats["length"]["mean"] == 2000
    assert stats["rows"]["mean"] > 100
