"""NetHack's compass: its ways are shortest ways, and it knows what lets nobody pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shoal.errors import ConfigError
from shoal.integrations.nethack_compass import (
    BARRED,
    CLOSED,
    DIRECTIONS,
    KINDS,
    LATER,
    NEAR,
    SOON,
    STEPS,
    STRAIGHT,
    TRIES,
    UNSEEN,
    VISITED,
    Compass,
)
from shoal.integrations.nethack_explorer import FOUND, OPENED, REACHED, STEP, Explorer
from shoal.native import lib
from shoal.train import Trainer, options_for

FREE = 5  # kinds of the caller's, beside the two of ways.c


# ---- the search, without NetHack ----


def slow_ways(cells, start):
    """{kind: (steps, first direction)}: all distances by passes over the map until none changes."""
    height, width = cells.shape
    far = height * width
    distance = np.full(cells.shape, far)
    way = np.full(cells.shape, 99)
    distance[start], way[start] = 0, -1
    is_changed = True
    while is_changed:
        is_changed = False
        for row, column in np.ndindex(cells.shape):
            here = cells[row, column]
            if distance[row, column] == far or (here & BARRED and (row, column) != start):
                continue
            for k, (down, right) in enumerate(STEPS):
                to = row + down, column + right
                if not (0 <= to[0] < height and 0 <= to[1] < width) or cells[to] & (CLOSED | UNSEEN):
                    continue
                if down and right and (here | cells[to]) & STRAIGHT:
                    continue
                new = distance[row, column] + 1, k if (row, column) == start else way[row, column]
                if new < (distance[to], way[to]):
                    distance[to], way[to] = new
                    is_changed = True

    def is_kind(place, kind):
        bits = cells[place]
        if kind >= 2:
            return bits >> (3 + kind) & 1
        if bits & (VISITED | BARRED):
            return False
        around = [
            (place[0] + down, place[1] + right) for down, right in STEPS if not (bits & STRAIGHT and down and right)
        ]
        inside = [(row, column) for row, column in around if 0 <= row < height and 0 <= column < width]
        return kind == 1 or any(cells[one] & UNSEEN for one in inside)

    found = {}
    for kind in range(2 + FREE):
        places = [place for place in np.ndindex(cells.shape) if distance[place] < far and is_kind(place, kind)]
        found[kind] = min(((distance[place], way[place]) for place in places), default=(-1, -1))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_ways_are_those_of_a_slow_search(seed):
    random = np.random.default_rng(seed)
    cells = np.zeros((9, 14), np.uint16)
    for bit, share in ((CLOSED, 0.25), (STRAIGHT, 0.15), (UNSEEN, 0.1), (VISITED, 0.4), (BARRED, 0.05)):
        cells[random.random(cells.shape) < share] |= bit
    for kind in range(FREE):
        cells[random.random(cells.shape) < 0.04] |= BARRED << 1 + kind
    start = tuple(int(random.integers(size)) for size in cells.shape)
    steps, first = np.empty(2 + FREE, np.int16), np.empty(2 + FREE, np.int8)
    own = steps.ctypes.data, first.ctypes.data
    lib.load_core().ways(cells.ctypes.data, *cells.shape, start[0] * cells.shape[1] + start[1], 2 + FREE, *own)
    assert dict(enumerate(zip(steps, first))) == slow_ways(cells, start)


# ---- the compass, on maps of a few characters ----


class Walk:
    """A hero on a drawn map. `@` is the hero, `d` a pet, `j` a monster, `?` was never seen."""

    def __init__(self, *rows):
        nethack = pytest.importorskip("nle").nethack
        ground, objects = nethack.GLYPH_CMAP_OFF, nethack.GLYPH_OBJ_OFF
        names = [nethack.OBJ_NAME(nethack.objclass(k)) for k in range(nethack.NUM_OBJECTS)]
        self.signs = {"?": ground, "|": ground + 1, "-": ground + 2, "/": ground + 13, "+": ground + 15}
        self.signs |= {
            ".": ground + 19,
            "#": ground + 21,
            ">": ground + 24,
            "@": 330,
            "j": 1,
            "d": nethack.GLYPH_PET_OFF,
        }
        self.signs |= {"$": objects + names.index("gold piece"), "0": objects + names.index("boulder")}
        self.compass, self.turn = Compass([ord(key) for key in DIRECTIONS + ">"]), 0
        self.place = 0, 0
        self.see(*rows)

    def see(self, *rows, going=None, message="", is_asked=False):
        """The next observation: the map after a step to `going`."""
        self.turn += 1
        glyphs = np.array([[self.signs[sign] for sign in row] for row in rows], np.int16)
        [self.place] = [(row, line.index("@")) for row, line in enumerate(rows) if "@" in line]
        stats = np.zeros(27, np.int64)
        stats[[0, 1, 20, 24]] = self.place[1], self.place[0], self.turn, 1
        action = None if going is None else DIRECTIONS.index(going)
        prompts = np.array([is_asked, False, False])
        self.features = self.compass.observe(glyphs, stats, prompts, message.encode(), action)
        self.rows = rows
        return self

    def way(self, kind):
        """(steps, direction) to the nearest of a kind; None if there is no way."""
        numbers = self.features[:-1].reshape(len(KINDS), 9)[KINDS.index(kind)]
        if not numbers[8]:
            assert not numbers[:8].any()
            return None
        [direction] = [DIRECTIONS[k] for k in range(8) if numbers[k]] or [""]
        return round(NEAR / numbers[8]) - NEAR, direction


def test_a_compass_points_at_what_is_known():
    walk = Walk("-------?", "|@....|?", "|.....+#", "|.$..>|?", "-------?")
    assert walk.way("gold") == (2, "j")  # or first n, then j: of equally short ways that of the earlier direction
    assert walk.way("way down") == (4, "l")
    assert walk.way("edge of what was seen") == (6, "l"), "the corridor behind the door"
    assert walk.way("monster") is None
    assert walk.way("not visited") == (1, "l")


def test_doors_are_not_passed_diagonally_also_with_the_hero_in_them():
    walk = Walk("?????", "--+--", "..@..", "-----")
    assert walk.way("edge of what was seen") == (1, "k")
    walk.see("#????", "--@--", ".....", "-----", going="k")
    assert walk.way("edge of what was seen") is None, "the corridor begins diagonally of the door"
    walk.see("##???", "--@--", ".....", "-----")
    assert walk.way("edge of what was seen") is None
    walk.see("###??", "--@--", ".....", "-----")
    assert walk.way("edge of what was seen") == (1, "k")


def test_stairs_are_remembered_below_the_hero_and_below_objects():
    walk = Walk("----", "@.>?", "----")
    assert walk.way("way down") == (2, "l")
    walk.see("----", "..@?", "----", going="l")
    assert walk.way("way down") == (0, "")
    walk.see("----", ".@$?", "----", going="h")
    assert walk.way("way down") == (1, "l")


def test_a_locked_door_is_a_kind_of_its_own_until_it_is_open():
    walk = Walk("-----", "..@+#", "-----")
    assert walk.way("edge of what was seen") is None
    assert walk.way("locked door") is None
    walk.see("-----", "..@+#", "-----", going="l", message="This door is locked.")
    assert walk.way("locked door") == (1, "l")
    walk.see("-----", ".@.+#", "-----", going="h")
    assert walk.way("locked door") == (2, "l")
    assert walk.way("not visited") == (1, "h"), "not what is behind the door"
    walk.see("-----", ".@./#", "-----")
    assert walk.way("locked door") is None


@pytest.mark.parametrize(("sign", "turns"), [("0", LATER), ("d", SOON)])
def test_what_does_not_move_is_no_way_for_a_while(sign, turns):
    rows = "-----", f".@{sign}>.", "-----"
    walk = Walk(*rows)
    for _ in range(TRIES):
        assert walk.way("way down") == (2, "l")
        walk.see(*rows, going="l")
    assert walk.way("way down") is None
    walk.turn += turns - 2
    assert walk.see(*rows).way("way down") is None
    assert walk.see(*rows).way("way down") == (2, "l")


def test_a_fight_is_no_obstacle_but_a_peaceful_creature_is():
    rows = "-----", ".@j>.", "-----"
    walk = Walk(*rows)
    for _ in range(3 * TRIES):
        walk.see(*rows, going="l")
    assert walk.way("monster") == (1, "l")
    before = walk.features
    walk.see(*rows, going="l", message="Really attack the jackal?", is_asked=True)
    assert walk.features is before, "while a question is open"
    walk.see(*rows, going="y")  # an answer, and no step
    assert walk.way("monster") is None


def test_levels_are_apart_and_games_too():
    walk = Walk("---", "@>.", "---")
    walk.see("---", ".@.", "---", going="l")
    assert walk.way("not visited") == (1, "l")
    walk.compass.reset()
    walk.see("---", ".@.", "---")
    assert walk.way("way down") is None, "it was seen in another game"


def test_time_in_a_place_is_told():
    walk = Walk("---", "@..", "---")
    times = [float(walk.see("---", "@..", "---").features[-1]) for _ in range(300)]
    assert times == sorted(times)
    assert times[0] == pytest.approx(np.log1p(2) / 5)
    assert times[-1] == 1.0


def test_games_have_a_compass_and_repeat_with_a_seed():
    pytest.importorskip("nle")
    from shoal.integrations.nethack import FRAMEWORK

    seen = []
    for _ in range(2):
        env = FRAMEWORK.make("Score", compass=True)
        random, lines = np.random.default_rng(0), []
        obs, _ = env.reset(seed=5)
        for _ in range(300):
            assert env.observation_space["compass"].contains(obs["compass"])
            lines.append(obs["compass"].copy())
            obs, _, terminated, truncated, _ = env.step(int(random.integers(env.action_space.n)))
            if terminated or truncated:
                obs, _ = env.reset()
        seen.append(np.stack(lines))
    assert np.array_equal(*seen)
    assert len(np.unique(seen[0], axis=0)) > 50


# ---- the reward of explorers ----


def compass(stood=1, **steps):
    """What a compass shows: for how many steps the hero stood here, how far away places are."""
    features = np.zeros(9 * len(KINDS) + 1, np.float32)
    names = {"edge": "edge of what was seen", "down": "way down", "door": "locked door"}
    for name, count in steps.items():
        features[9 * KINDS.index(names[name]) + 8] = NEAR / (NEAR + count)
    features[-1] = np.log1p(stood) / 5
    return features


@pytest.mark.parametrize(
    ("before", "after", "bonus"),
    [
        ({"edge": 5}, {"edge": 4}, STEP),
        ({"edge": 5}, {"edge": 6}, -STEP),
        ({"edge": 9}, {"edge": 6}, 3 * STEP),  # a run
        ({"edge": 1}, {"edge": 2}, REACHED - STEP),  # the next one is further away
        ({"edge": 1}, {}, REACHED),
        ({"edge": 1}, {"edge": 1, "stood": 2}, 0),  # a wait
        ({}, {"edge": 3, "stood": 2}, FOUND),  # by searching
        ({"door": 4}, {"door": 3}, STEP),
        ({"door": 4, "edge": 4}, {"door": 3, "edge": 4}, 0),  # edges come first
        ({"edge": 4, "down": 4}, {"edge": 3, "down": 4}, 0),  # and the way down before them
        ({"edge": 4, "down": 4}, {"edge": 5, "down": 3}, STEP),
        ({"door": 1}, {"door": 1, "stood": 2}, 0),  # a kick that did not open it
        ({"door": 1}, {"edge": 1, "stood": 3}, OPENED + FOUND),
        ({"down": 0}, {}, 0),  # a new level
    ],
)
def test_explorers_are_paid_for_what_leads_on(before, after, bonus):
    rows = [{"compass": torch.from_numpy(compass(**one))[None]} for one in (before, after)]
    info = {"reward": torch.tensor([7.0])}
    paid = Explorer().compute(*rows, torch.tensor([0]), torch.tensor([False]), info)
    assert paid.tolist() == pytest.approx([7.0 + bonus], abs=1e-5)
    assert Explorer().compute(*rows, torch.tensor([0]), torch.tensor([True]), info).tolist() == [7.0], (
        "the game is over"
    )


def test_explorers_need_a_compass():
    options = options_for("cartpole", {"reward": "shoal.integrations.nethack_explorer:Explorer", "device": "cpu"})
    with pytest.raises(ConfigError, match=r"^the reward Explorer pays .* Add --env.compass True, or --reward '' for"):
        Trainer("cartpole", options)


def test_score_trains_by_default_with_all_that_its_reward_needs():
    pytest.importorskip("nle")
    options = options_for("nethack:Score", {"vec": {"num_envs": 2, "backend": "serial"}, "train": {"horizon": 8}})
    trainer = Trainer("nethack:Score", options)
    trainer.iterate()
    assert np.isfinite(trainer.drain()["loss/policy"])
    trainer.close()
