"""Agents that die, join, or are none: masks are exact, and one too many is an error."""

from __future__ import annotations

import os
from contextlib import closing

import numpy as np
import pytest
from gymnasium import spaces

import shoal
from shoal.errors import BadOutput
from tests.faults.tools import within

BACKENDS = {"serial": {"backend": "serial"}, "process": {"backend": "process", "num_workers": 2}}
NAMES = ["a", "b", "c"]


class Crowd:
    """Whose agents are, step by step, those of a script; an agent's observation is (steps, its place, its action)."""

    possible_agents = NAMES

    def __init__(self, script):
        self.script, self.metadata = script, {}

    def observation_space(self, agent):
        return spaces.Box(-9, 99, (3,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(10)

    def see(self, agent, action=-1):
        place = NAMES.index(agent) if agent in NAMES else -1
        return np.array([self.tick, place, action], np.float32)

    def reset(self, seed=None, options=None):
        self.tick = 0
        self.agents = list(self.script[0])
        return {name: self.see(name) for name in self.agents}, {name: {} for name in self.agents}

    def step(self, actions):
        assert sorted(actions) == sorted(self.agents), (sorted(actions), self.agents)
        self.tick += 1
        before, self.agents = self.agents, list(self.script[self.tick])
        everyone = sorted({*before, *self.agents})
        died = {name: name not in self.agents for name in before}
        obs = {name: self.see(name, int(actions.get(name, -1))) for name in everyone}
        rewards = dict.fromkeys(before, 1.0)
        return obs, rewards, died, dict.fromkeys(before, False), {name: {} for name in everyone}

    def close(self):
        pass


def play(script, backend, steps):
    """[(alive, terminated, rewards, obs)] of env 0 for reset and each step."""
    found = []
    with closing(shoal.make(lambda: Crowd(script), 2, **BACKENDS[backend])) as vec:
        assert vec.num_rows == 6
        obs, infos = vec.reset(seed=0)
        found.append((infos["alive"][:3].tolist(), [False] * 3, [0.0] * 3, obs[:3].tolist()))
        for _ in range(steps):
            obs, rewards, terminated, truncated, infos = vec.step(np.arange(6) % 3 + 1)
            assert not truncated.any()
            for array in (obs, rewards, terminated, infos["alive"]):  # both envs do the same
                np.testing.assert_array_equal(array[:3], array[3:])
            found.append((infos["alive"][:3].tolist(), terminated[:3].tolist(), rewards[:3].tolist(), obs[:3].tolist()))
    return found


@pytest.mark.parametrize("backend", BACKENDS)
def test_masks_follow_agents_that_die_and_join(backend):
    """Item 15: b dies, c joins, a dies and b comes back, then all are gone and the next episode begins."""
    script = ["ab", "a", "ac", "cb", "", "never"]
    found = play(script, backend, 5)
    alive = [[int(x) for x in step[0]] for step in found]
    died = [[int(x) for x in step[1]] for step in found]
    rewards = [step[2] for step in found]
    assert alive == [[1, 1, 0], [1, 0, 0], [1, 0, 1], [0, 1, 1], [1, 1, 0], [1, 0, 0]]
    assert died == [[0, 0, 0], [0, 1, 0], [0, 0, 0], [1, 0, 0], [0, 1, 1], [0, 1, 0]]
    assert rewards == [[0, 0, 0], [1, 1, 0], [1, 0, 0], [1, 0, 1], [0, 1, 1], [1, 1, 0]]
    for mask, _, _, obs in found:  # rows of nobody are zero
        for is_there, row in zip(mask, obs):
            assert is_there or row == [0, 0, 0]
    assert found[2][3] == [[2, 0, 1], [0, 0, 0], [2, 2, -1]]  # c has just come: it has not acted
    assert found[4][3] == [[0, 0, -1], [0, 1, -1], [0, 0, 0]]  # of the next episode


@pytest.mark.parametrize("backend", BACKENDS)
def test_nobody_at_first_is_no_error(backend):
    """Item 15: an episode that begins with zero agents is over at once, or waits for them; nothing is learned of it."""
    found = play(["", "ab", "a", "", "never"], backend, 2)
    assert found[0][0] == [False, False, False]
    assert found[0][3] == [[0, 0, 0]] * 3
    assert found[1][0] == [True, True, False]
    assert found[1][2] == [0, 0, 0]
    assert found[2][1] == [False, True, False]


class Vague(Crowd):
    """Returns something else than a flag or a number for agent b."""

    def __init__(self, place, value):
        super().__init__(["abc"] * 9)
        self.place, self.value = place, value

    def step(self, actions):
        result = super().step(actions)
        result[self.place]["b"] = self.value
        return result


@pytest.mark.parametrize("wrap", [{}, {"time_limit": 5}])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (2, None, "terminated of agent 'b' is None, not a bool"),
        (3, 0.5, "truncated of agent 'b' is 0.5, not a bool"),
    ],
)
def test_a_flag_of_an_agent_that_is_no_bool_is_an_error(place, value, message, backend, wrap):
    with closing(shoal.make(lambda: Vague(place, value), 2, wrap=wrap, **BACKENDS[backend])) as vec:
        vec.reset(seed=0)
        with within(5.0), pytest.raises(BadOutput, match=rf"env [01] \(seed [01]\) in step 1: {message}"):
            vec.step(np.ones(6, int))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_reward_of_an_agent_that_is_no_number_is_an_error(backend):
    with closing(shoal.make(lambda: Vague(1, None), 2, **BACKENDS[backend])) as vec:
        vec.reset(seed=0)
        with within(5.0), pytest.raises(BadOutput, match="the reward of agent 'b' is None, not a number"):
            vec.step(np.ones(6, int))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("when", ["reset", "step 1"])
def test_an_agent_too_many_is_an_error(backend, when):
    """Item 15: max + 1 raises, and names the env and the agent."""
    script = ["abcd", "abc"] if when == "reset" else ["abc", "abcd"]
    with closing(shoal.make(lambda: Crowd(script), 2, **BACKENDS[backend])) as vec:
        pattern = rf"env [01] \(seed [01]\) in {when}: agent 'd' is not one of possible_agents"
        with within(5.0), pytest.raises(BadOutput, match=pattern):
            _ = vec.reset(seed=0), vec.step(np.ones(6, int))


class Mortal(Crowd):
    """Two agents, of which b leaves early. The action 9 kills the process; an odd seed kills it in its second reset."""

    def __init__(self):
        super().__init__(["ab", "ab", "a", "a", ""])
        self.episodes, self.kills_in_reset = 0, False

    def reset(self, seed=None, options=None):
        self.episodes += 1
        self.kills_in_reset |= bool(options and seed == options.get("fatal"))
        if self.kills_in_reset and self.episodes == 2:
            os._exit(4)
        return super().reset(seed)

    def step(self, actions):
        if 9 in actions.values():
            os._exit(4)
        return super().step(actions)


@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "disabled"])
def test_statistics_leave_out_a_game_that_a_crash_ended(autoreset):
    """Nothing of it is added to the game that follows."""
    options = {"num_workers": 2, "on_crash": "restart", "autoreset": autoreset}
    with closing(shoal.make(Mortal, 2, backend="process", **options)) as vec:
        vec.reset(seed=0)
        for action in (0, 0, 9):
            vec.step(np.array([0, 0, 0, action, 0, 0]))
        for _ in range(8):  # env 0 ends its first game, env 1 one that began after the crash
            if autoreset == "disabled" and vec.ended.any():
                vec.reset(options={"reset_mask": vec.ended.copy()})
            vec.step(np.zeros(6, int))
        stats = vec.drain_stats()
        assert stats["episodes"] >= 2
        assert stats["length"] == {"mean": 4, "min": 4, "max": 4}
        assert vec.agent_stats["a"] == {"return": 4, "length": 4}
        assert vec.agent_stats["b"] == {"return": 2, "length": 2}


def test_a_crash_in_the_reset_after_a_game_ends_the_game():
    """The agents that were in it are told, as they are of a crash in a step."""
    options = {"num_workers": 2, "on_crash": "restart"}
    with closing(shoal.make(Mortal, 2, backend="process", **options)) as vec:
        vec.reset(seed=0, options={"fatal": 1})
        for _ in range(3):
            vec.step(np.zeros(6, int))
        _, _, terminated, truncated, infos = vec.step(np.zeros(6, int))
        assert terminated.tolist() == [True, *[False] * 5]
        assert truncated.tolist() == [False, False, False, True, False, False]
        assert infos["final_info"]["crashed"].tolist() == [False, False, False, True, False, False]
