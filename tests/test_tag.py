"""tag and tag_continuous: every rule against a slow twin, groups, catches, pillars and walls, scripted robots."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from shoal.errors import ShoalError

from .agent_twins import compare
from .state_fields import read_state, write_state
from .tag_twin import Tag

NOTHING, LEFT, RIGHT, DOWN, UP = range(5)
CONSTS = {"predators": 3, "prey": 1, "pillars": 2}
CROWD = {"predators": 4, "prey": 3, "pillars": 4}
DEFAULTS = {
    "max_steps": 200,
    "predator_speed": 1.0,
    "prey_speed": 1.3,
    "predator_push": 3.0,
    "prey_push": 4.0,
    "damping": 0.25,
    "predator_size": 0.075,
    "prey_size": 0.05,
    "pillar_size": 0.2,
    "shaping": 0.0,
    **{f"robot_{k}": 0 for k in range(8)},
}
CHASED = {"robot_0": 2, "robot_1": 2, "robot_3": 3, "max_steps": 60}
BIG = {"max_steps": 25, "predator_size": 0.3, "shaping": 0.1, "pillar_size": 0.4, "damping": 0.1}  # much happens


@pytest.mark.parametrize(
    ("env", "consts", "params"),
    [
        ("tag", CONSTS, CHASED),
        ("tag", CROWD, {**BIG, "robot_1": 1, "robot_5": 1, "robot_6": 2, "robot_0": 3}),
        ("tag", {"predators": 1, "prey": 1, "pillars": 0}, BIG),
        ("tag_continuous", CONSTS, CHASED),
        ("tag_continuous", CROWD, BIG),
    ],
)
def test_every_rule_equals_the_slow_twin(env, consts, params):
    vec = shoal.make(env, 2, **consts, **params)
    twins = [Tag(consts, {**DEFAULTS, **params}, seed=5 + k) for k in range(2)]
    assert compare(twins, vec, 75, seed=5) == 2 * (75 // params["max_steps"])


class Arena:
    """Predators 0, 1, 2 and prey 3, and no pillars unless asked for."""

    def __init__(self, pillar_size=0.0, **options):
        self.vec = shoal.make("tag", 1, pillar_size=pillar_size, **options)
        self.vec.reset(seed=0)
        self.set(x=[-1, -1, -1, 1], y=[-1, -1, -1, 1], vx=0, vy=0, pillar_x=1, pillar_y=-1)

    def set(self, **state):
        write_state(self.vec, **state)
        return self

    def step(self, *moves):
        actions = np.array([*moves, *[NOTHING] * (4 - len(moves))])
        self.obs, self.rewards, *_ = self.vec.step(actions)
        return self

    def __getattr__(self, name):
        return read_state(self.vec)[name].tolist()


def test_groups_are_declared():
    assert dict(shoal.make("tag", 1).native_spec.groups) == {"predators": (0, 1, 2), "prey": (3,)}
    sizes = shoal.make("tag", 1, **CROWD).native_spec.groups
    assert dict(sizes) == {"predators": (0, 1, 2, 3), "prey": (4, 5, 6)}


def test_a_catch_rewards_all_predators_and_moves_the_prey_away():
    arena = Arena().set(x=[0, -1, 1, 0.1], y=[0, -1, 1, 0]).step()
    assert arena.rewards.tolist() == [1, 1, 1, -1]
    x, y = arena.x, arena.y
    assert min(np.hypot(x[3] - x[k], y[3] - y[k]) for k in range(3)) > 0.3
    assert arena.step().rewards.tolist() == [0, 0, 0, 0]
    assert arena.vec.memory.arrays["stats"][0, 0] == 1


def test_predators_pass_through_each_other():
    arena = Arena().set(x=[0, 0, 0, 1], y=[0, 0, 0, 1])
    assert arena.step(RIGHT, LEFT, UP).rewards.tolist() == [0, 0, 0, 0]
    assert arena.vx[:2] == pytest.approx([0.3, -0.3])


def test_moves_accelerate_up_to_the_top_speed():
    arena = Arena().set(x=[-1, 0, 0, -1], y=[-1, 0, 0.9, 1])
    for _ in range(8):
        arena.step(RIGHT, NOTHING, NOTHING, RIGHT)
    assert arena.vx[0] == pytest.approx(1.0)
    assert arena.vx[3] == pytest.approx(1.3)
    assert arena.step().vx[0] == pytest.approx(0.75)


def test_walls_and_pillars_stop():
    arena = Arena().set(x=[0.99, -1, -1, -1], vx=[1, 0, 0, 0], vy=[0.5, 0, 0, 0]).step()
    assert (arena.x[0], arena.vx[0]) == (1, 0)
    assert arena.vy[0] > 0
    arena = Arena(pillar_size=0.2).set(pillar_x=0, pillar_y=0, x=[-0.3, -1, -1, 1], y=[0, -1, -1, 1], vx=[1, 0, 0, 0])
    for _ in range(5):
        arena.step(RIGHT)
    assert arena.x[0] == pytest.approx(-0.275)
    assert arena.vx[0] == pytest.approx(0)


def test_shaping_is_the_distance_to_the_other_group():
    arena = Arena(shaping=0.5).set(x=[0, 0, 0, 0.6], y=[0, 0, 0.8, 0.8]).step()
    assert arena.rewards.tolist() == pytest.approx([-0.5, -0.5, -0.3, 0.3])


def test_bad_params_are_named():
    for options, said in (
        ({"predators": 6, "prey": 6}, "8 agents"),
        ({"robot_3": "fle"}, "flee"),
        ({"damping": 2.0}, "damping"),
    ):
        with pytest.raises(ShoalError, match=said):
            shoal.make("tag", 1, **options)


def catches(predators, prey, episodes=200):
    """Prey caught in an episode of 200 steps."""
    robots = {f"robot_{k}": predators for k in range(3)}
    vec = shoal.make("tag", episodes, robot_3=prey, **robots)
    vec.reset(seed=0)
    for _ in range(200):
        vec.step(np.zeros(vec.num_rows, int))
    return vec.drain_stats()["catches"]["mean"]


def test_robots_rank_as_they_should():
    """The scores of tag.h and tag.toml."""
    assert catches("random", "flee") < catches("random", "random") < catches("chase", "random")
    assert catches("random", "flee") < 2 < catches("chase", "flee")
