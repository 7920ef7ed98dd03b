"""harvest: every rule against a slow twin, regrowth, zaps, shared rewards, and what patience is worth."""

from __future__ import annotations

import random

import numpy as np
import pytest

import shoal
from shoal.errors import ConfigError

from .agent_twins import compare
from .harvest_twin import AHEAD, RIGHT, STAY, ZAP, Harvest, forage
from .state_fields import read_state, write_state

DEFAULTS = {
    "max_steps": 1000,
    "grow_1": 0.001,
    "grow_2": 0.005,
    "grow_3": 0.025,
    "share": 0.0,
    "zap": 0,
    "zap_range": 5,
    "zap_time": 25,
    "zap_cost": 0.0,
    "hit_cost": 0.0,
}
BUSY = {"max_steps": 40, "grow_1": 0.1, "grow_2": 0.2, "grow_3": 0.4, "share": 0.25, "zap": 1, "zap_time": 4}


@pytest.mark.parametrize(
    ("consts", "params"),
    [
        ({"agents": 4, "patches": 3, "view": 7}, {}),
        ({"agents": 9, "patches": 1, "view": 5}, {**BUSY, "zap_cost": 0.5, "hit_cost": 2.0}),
        ({"agents": 5, "patches": 2, "view": 9}, {**BUSY, "zap_range": 2, "share": 1.0}),
    ],
)
def test_every_rule_equals_the_slow_twin(consts, params):
    vec = shoal.make("harvest", 3, **consts, **params)
    twins = [Harvest(consts, {**DEFAULTS, **params}, seed=7 + k) for k in range(3)]
    ended = compare(twins, vec, 90, seed=7)
    assert ended == (6 if params else 0)


def field(agents=1, **options):
    vec = shoal.make("harvest", 1, agents=agents, patches=1, **options)
    vec.reset(seed=0)
    return vec


def apples_of(vec):
    return sum(int(row).bit_count() for row in read_state(vec)["apples"])


def test_a_bare_orchard_stays_bare():
    vec = field(grow_1=1.0, grow_2=1.0, grow_3=1.0)
    write_state(vec, apples=np.zeros(7, int), x=0, y=0)
    for _ in range(20):
        vec.step(np.array([STAY]))
    assert apples_of(vec) == 0
    write_state(vec, apples=[0, 0, 0, 8, 0, 0, 0])  # one apple in the centre
    vec.step(np.array([STAY]))
    assert apples_of(vec) == 13  # all twelve others are near it


@pytest.mark.parametrize(("name", "row", "grown"), [("grow_1", 0x08, 12), ("grow_2", 0x14, 3), ("grow_3", 0x1C, 2)])
def test_growth_depends_on_the_apples_near(name, row, grown):
    """Only spots with one, two, or at least three apples near them grow if the other probabilities are 0."""
    vec = field(**{"grow_1": 0.0, "grow_2": 0.0, "grow_3": 0.0, name: 1.0})
    write_state(vec, apples=[0, 0, 0, row, 0, 0, 0], x=0, y=0)
    vec.step(np.array([STAY]))
    spots = {(3 + i, 3 + j) for i in range(-2, 3) for j in range(-2, 3) if i * i + j * j <= 4}
    there = {(x, 3) for x in range(7) if row >> x & 1}
    counts = {spot: sum((a - spot[0]) ** 2 + (b - spot[1]) ** 2 <= 4 for a, b in there) for spot in spots - there}
    wanted = int(name[-1])
    expected = sum(count == wanted or (wanted == 3 and count > 3) for count in counts.values())
    assert apples_of(vec) - len(there) == expected == grown


def test_nothing_grows_under_an_agent():
    vec = field(grow_3=1.0)
    write_state(vec, apples=[0, 8, 28, 54, 28, 8, 0], x=3, y=3, facing=0)  # the centre is bare, and the agent is there
    vec.step(np.array([STAY]))
    assert apples_of(vec) == 12
    vec.step(np.array([AHEAD]))
    vec.step(np.array([STAY]))
    assert read_state(vec)["apples"][3] == 62


def test_a_zap_takes_others_out_for_a_while():
    vec = field(2, zap=1, zap_time=3, zap_cost=0.5, hit_cost=2.0, grow_1=0.0, grow_2=0.0, grow_3=0.0)
    write_state(vec, x=[0, 1], y=[6, 2], facing=[0, 0])  # the second is four cells ahead, one to the right
    _, rewards, *_ = vec.step(np.array([ZAP, STAY]))
    assert rewards.tolist() == [-0.5, -2.0]
    for left in (3, 2, 1):
        assert read_state(vec)["out"].tolist() == [0, left]
        obs, *_ = vec.step(np.array([STAY, AHEAD]))
    assert read_state(vec)["out"].tolist() == [0, 0]
    assert obs[1].any()
    write_state(vec, x=[0, 2], y=[6, 2], facing=[0, 0])
    vec.step(np.array([ZAP, STAY]))  # two to the right: missed
    assert read_state(vec)["out"].tolist() == [0, 0]
    assert vec.memory.arrays["stats"][4:, 0].tolist() == [2, 1]  # zaps, hits


def test_zaps_are_off_unless_asked_for():
    vec = field(2)
    write_state(vec, x=[0, 0], y=[6, 5], facing=[0, 0])
    vec.step(np.array([ZAP, STAY]))
    assert read_state(vec)["out"].tolist() == [0, 0]


def test_rewards_can_be_shared():
    for share, expected in ((0.0, [1, 0]), (1.0, [0.5, 0.5]), (0.5, [0.75, 0.25])):
        vec = field(2, share=share)
        write_state(vec, x=[2, 0], y=[1, 0], facing=[0, 0])
        assert vec.step(np.array([RIGHT, STAY]))[1].tolist() == expected


def test_bad_sizes_are_named():
    for options, said in (({"view": 4}, "odd"), ({"patches": 9}, "patches"), ({"share": 2.0}, "share")):
        with pytest.raises(Exception, match=said) as caught:
            shoal.make("harvest", 1, **options)
        assert isinstance(caught.value, ConfigError) or "view" in said or "odd" in said


def harvested(least, episodes=4):
    """Apples per agent of scripted agents; `least` None: of random play."""
    vec, dice = shoal.make("harvest", episodes), random.Random(0)
    obs, _ = vec.reset(seed=0)
    vec.action_space.seed(0)
    for _ in range(1000):
        random_moves = vec.action_space.sample()
        obs, *_ = vec.step(random_moves if least is None else np.array([forage(row, least, dice) for row in obs]))
    return vec.drain_stats()["apples"]["mean"] / vec.agents_per_env


@pytest.mark.slow
def test_patience_pays():
    """The scripted scores of harvest.h and harvest.toml."""
    greedy, patient = harvested(0, 2), harvested(4, 2)
    assert greedy < 60
    assert patient > 2 * greedy
