"""sokoban: every rule against a slow twin, levels that can be solved, options."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from shoal.errors import ShoalError, SnapshotError

from .forging import forged, records_of
from .sokoban_twin import DOWN, LEFT, RIGHT, UP, Level, is_solvable, solve

SIZES = [{}, {"side": 7, "boxes": 2}, {"side": 6, "boxes": 1}]


def make(num_envs, seed=0, **options):
    vec = shoal.make("sokoban", num_envs, seed=seed, backend="serial", **options)
    obs, _ = vec.reset(seed=seed)
    return vec, obs


def write(vec, level):
    """Puts a level into all envs."""
    blob = vec.snapshot()
    records = records_of(vec, blob)
    for record in records:
        *boards, keeper = level.record()
        record[:24].view(np.uint64)[:] = boards
        record[24:28].view(np.int32)[0] = keeper
    vec.restore(forged(blob, records))


@pytest.mark.parametrize("options", SIZES, ids=["10", "7", "6"])
def test_every_step_equals_the_slow_twin(options):
    """Random play, which pushes boxes against everything there is."""
    rng, num_envs = np.random.default_rng(0), 30
    vec, obs = make(num_envs, seed=5, max_steps=60, **options)
    levels = [Level.of(rows) for rows in obs]
    pushes, ends = 0, 0
    for step in range(1, 121):
        actions = rng.integers(4, size=num_envs)
        obs, rewards, terminated, truncated, infos = vec.step(actions)
        for k, level in enumerate(levels):
            after, reward, pushed = level.step(int(actions[k]))
            pushes += pushed
            assert rewards[k] == pytest.approx(reward, abs=1e-6)
            assert terminated[k] == after.is_solved
            over = terminated[k] or truncated[k]
            assert ((infos["final_obs"][k] if over else obs[k]) == after.observe()).all()
            levels[k] = Level.of(obs[k]) if over else after
            ends += bool(over)
        if step < 60 and not terminated.any():
            assert not truncated.any()
    assert pushes > 60
    assert ends >= num_envs


LEVEL = """
#######
#.  $.#
# $   #
# @   #
#     #
#     #
#######
"""


def test_a_level_pays_step_by_step():
    """One box is pushed onto its target, off it and on again; the other one ends the episode."""
    rows = ["#######", "#     #", "#@$.  #", "#     #", "# $.  #", "#     #", "#######"]
    vec, _ = make(1, side=7, boxes=2)
    write(vec, Level.drawn("\n".join(rows)))
    rewards, ends = [], []
    back = [UP, RIGHT, RIGHT, DOWN, LEFT]  # around the box, to push it back
    for action in (RIGHT, RIGHT, *back, DOWN, LEFT, LEFT, LEFT, DOWN, RIGHT):
        _, reward, terminated, _, _ = vec.step(np.array([action]))
        rewards.append(float(reward[0]))
        ends.append(bool(terminated[0]))
    assert rewards[:2] == pytest.approx([0.9, -1.1])
    assert rewards[6] == pytest.approx(0.9)
    assert rewards[-1] == pytest.approx(10.9)
    assert ends == [False] * (len(ends) - 1) + [True]
    assert rewards[2:6] + rewards[7:-1] == pytest.approx([-0.1] * 9)
    stats = vec.drain_stats()
    assert {name: stats[name]["mean"] for name in ("solved", "placed", "pushes")} == {
        "solved": 1,
        "placed": 1,
        "pushes": 4,
    }


@pytest.mark.parametrize(
    ("row", "moves"),
    [
        ("#@$#   #", False),
        ("#@$$   #", False),
        ("#@#$   #", False),
        ("#@$.   #", True),
        ("#@$*   #", False),
        ("#@.$   #", True),
    ],
)
def test_a_push_needs_a_free_cell_behind_one_box(row, moves):
    boxes = sum(row.count(letter) for letter in "$*")
    missing = boxes - sum(row.count(letter) for letter in ".*")
    free = ["#      #"] * 2
    rows = ["########", "#" + "." * missing + " " * (6 - missing) + "#", *free, row, *free, "########"]
    vec, _ = make(1, side=8, boxes=2)
    level = Level.drawn("\n".join(rows))
    write(vec, level)
    obs, *_ = vec.step(np.array([RIGHT]))
    after = level.step(RIGHT)[0]
    assert (after.keeper != level.keeper) == moves
    if not after.is_solved:
        assert (obs[0] == after.observe()).all()


def test_the_keeper_does_not_leave_a_board_of_eight_cells():
    """The outer walls are not in the bits: every edge and corner of the largest board."""
    rows = ["##########", *["#        #"] * 8, "##########"]
    vec, _ = make(1, boxes=1)
    for x, y in ((1, 1), (8, 1), (1, 8), (8, 8), (4, 1), (8, 4)):
        lines = [list(row) for row in rows]
        lines[5][5], lines[6][6], lines[y][x] = "$", ".", "@"
        level = Level.drawn("\n".join("".join(line) for line in lines))
        for way in range(4):
            write(vec, level)
            obs, *_ = vec.step(np.array([way]))
            assert (obs[0] == level.step(way)[0].observe()).all()


@pytest.mark.parametrize("options", [{"boxes": 4}, {"side": 7, "boxes": 2}], ids=["10", "7"])
def test_a_centered_view_is_the_warehouse_around_the_keeper(options):
    """All within the outer walls is in it; what is beyond the warehouse is wall."""
    (plain, whole), (centered, around) = make(40, seed=3, **options), make(40, seed=3, centered=1, **options)
    rng, side = np.random.default_rng(0), options.get("side", 10)
    reach = side - 3
    for _ in range(30):
        for rows, seen in zip(whole, around, strict=True):
            ((y, x),) = np.argwhere(rows[:, :, 3])
            padded = np.pad(rows, ((reach, reach), (reach, reach), (0, 0)))
            padded[:, :, 0] = np.pad(rows[:, :, 0], reach, constant_values=1)
            assert (seen == padded[y : y + 2 * reach + 1, x : x + 2 * reach + 1]).all()
            assert seen[:, :, 1].sum() == options["boxes"]
        actions = rng.integers(4, size=40)
        whole, around = plain.step(actions)[0].copy(), centered.step(actions)[0].copy()


# ---- levels ----


def check_levels(count, most, **options):
    """Boxes off targets, and a solution that is no longer than the plan. Returns the shortest solutions' lengths."""
    vec, obs = make(count, seed=9, **options)
    plans = [int(record[28:32].view(np.int32)[0]) for record in records_of(vec, vec.snapshot())]
    lengths = []
    for rows, plan in zip(obs, plans, strict=True):
        level = Level.of(rows)
        assert len(level.boxes) == len(level.targets) == options.get("boxes", 4)
        assert not level.boxes & level.targets
        assert not level.walls & (level.boxes | level.targets | {level.keeper})
        assert level.keeper not in level.boxes
        solution = solve(level, most)
        assert solution is not None
        assert 0 < len(solution) <= plan <= 120
        lengths.append(len(solution))
    return lengths


@pytest.mark.parametrize(("count", "options"), [(40, {"side": 7, "boxes": 2}), (40, {"side": 6, "boxes": 1})])
def test_every_level_can_be_solved(count, options):
    lengths = check_levels(count, 50_000, **options)
    assert np.mean(lengths) > 3 * options["boxes"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"side": 8, "boxes": 3}, {"side": 7, "boxes": 2, "pulls": 200}])
def test_many_levels_can_be_solved(options):
    if options.get("side") == 7:
        check_levels(200, 200_000, **options)
    _, obs = make(60, seed=4, **options)
    assert all(is_solvable(Level.of(rows)) for rows in obs)


def test_levels_differ_and_most_boxes_have_to_be_pushed_far():
    vec, obs = make(500, seed=1)
    assert len({rows.tobytes() for rows in obs}) == 500
    floors = (obs[..., 0] == 0).sum((1, 2))
    assert floors.min() >= int(0.6 * 64)
    assert floors.std() > 0.3
    for k in (1, 2, 3):  # targets, boxes and keeper are everywhere; no box is in a corner
        assert (obs[..., k].sum(0)[1:-1, 1:-1] > 0).mean() > 0.9


def test_a_plan_is_no_longer_than_the_time_limit():
    vec, _ = make(300, seed=2, max_steps=25)
    plans = [int(record[28:32].view(np.int32)[0]) for record in records_of(vec, vec.snapshot())]
    assert 1 <= min(plans) <= max(plans) <= 25


def test_crowded_and_tiny_warehouses_have_levels():
    """As many boxes as fit, no free share, one pull: every level has a box off its target."""
    for options in ({"side": 6, "boxes": 16}, {"boxes": 16, "floor": 0.0}, {"pulls": 1, "boxes": 3}, {"floor": 1.0}):
        _, obs = make(100, seed=3, **options)
        assert ((obs[..., 1] == 1) & (obs[..., 2] == 0)).any((1, 2)).all()


@pytest.mark.parametrize(("name", "value"), [("side", 5), ("side", 11), ("boxes", 0), ("pulls", 0), ("floor", 1.5)])
def test_bad_options_are_refused(name, value):
    with pytest.raises(ShoalError, match=name):
        shoal.make("sokoban", 1, **{name: value})


def test_a_keeper_within_a_wall_is_refused():
    vec, _ = make(1, side=7, boxes=2)
    level = Level.drawn(LEVEL)
    blob = vec.snapshot()
    for keeper, boards in ((63, level.record()[:3]), (level.record()[3], (0, *level.record()[1:3]))):
        records = records_of(vec, blob)
        records[0][:24].view(np.uint64)[:] = boards
        records[0][24:28].view(np.int32)[0] = keeper
        with pytest.raises(SnapshotError):
            vec.restore(forged(blob, records))
