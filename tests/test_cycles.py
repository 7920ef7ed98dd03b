"""PettingZoo's envs of cycles: `Cycle` returns what PettingZoo's own conversion does, with fewer observations."""

import contextlib
import warnings

import numpy as np
import pytest

pytest.importorskip("pettingzoo")
from shoal.integrations import pettingzoo
from shoal.integrations.cycles import Cycle

# a render mode: without one, PettingZoo's cooperative_pong draws nothing
ENVS = {
    "butterfly/cooperative_pong": {"render_mode": "rgb_array"},
    "butterfly/knights_archers_zombies": {"max_cycles": 60},
    "classic/rps": {"max_cycles": 12},
}


def made(name, **kwargs):
    try:
        find = pettingzoo.FRAMEWORK.find(name)
    except Exception as error:
        pytest.skip(str(error))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return find(**kwargs)


@pytest.mark.parametrize("name", ENVS)
def test_cycles_are_those_of_pettingzoo(name):
    theirs, ours = made(name, **ENVS[name]), pettingzoo.adapt(made(name, **ENVS[name]))
    assert type(ours) is Cycle
    random = np.random.default_rng(0)
    (obs, _), (own, _) = theirs.reset(seed=3), ours.reset(seed=3)
    for step in range(150):
        for agent in obs:
            np.testing.assert_array_equal(own[agent], obs[agent], f"{agent} in step {step}")
        assert list(own) == list(obs)
        assert ours.agents == theirs.agents
        if not theirs.agents:
            (obs, _), (own, _) = theirs.reset(), ours.reset()
            continue
        actions = {agent: int(random.integers(theirs.action_space(agent).n)) for agent in theirs.agents}
        (obs, *facts), (own, *own_facts) = theirs.step(actions), ours.step(actions)
        assert [dict(fact) for fact in own_facts] == [dict(fact) for fact in facts]
    theirs.close()
    ours.close()


def test_each_agent_is_observed_once_a_step(monkeypatch):
    env = pettingzoo.adapt(made("classic/rps", max_cycles=5))
    env.reset(seed=1)
    seen = []
    observe = env.env.observe
    monkeypatch.setattr(env.env, "observe", lambda agent: seen.append(agent) or observe(agent))
    env.step(dict.fromkeys(env.agents, 0))
    assert seen == list(env.possible_agents)


def test_cooperative_pong_is_drawn_without_a_render_mode():
    import shoal

    made("butterfly/cooperative_pong").close()
    with contextlib.closing(shoal.make("pettingzoo:butterfly/cooperative_pong", 1, seed=1)) as vec:
        obs, _ = vec.reset(seed=1)
        first = obs.copy()
        assert first.max() == 255
        for _ in range(3):
            obs, *_ = vec.step(np.array([1, 2]))
        assert (obs != first).any()
        np.testing.assert_array_equal(obs[0], obs[1])
    drawn = pettingzoo.adapt(made("butterfly/cooperative_pong", render_mode="rgb_array"))
    obs, _ = drawn.reset(seed=1)
    np.testing.assert_array_equal(drawn.render(), obs["paddle_0"])
    drawn.close()
