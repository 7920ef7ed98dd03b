"""shoal.load: what a run learned acts in one call, from the run's folder alone."""

from __future__ import annotations

import json
import shutil
from collections import OrderedDict

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import shoal
from shoal import space_json
from shoal.acting import Team
from shoal.errors import ActionError, ConfigError
from shoal.nn.distributions import ActionHead
from shoal.nn.env_actions import EnvActions
from shoal.runs import Run
from shoal.train import load_player
from tests.envs import MixedAgentsEnv
from tests.small_runs import CHASE, SmallRuns
from tests.training import train_tiny

# ---- spaces as JSON ----

SPACES = [
    spaces.Box(-1, 1, (3,), np.float32),
    spaces.Box(0, 255, (4, 5, 3), np.uint8),
    spaces.Box(-np.inf, np.inf, (), np.float64),
    spaces.Box(np.array([-np.inf, 0.1]), np.array([3.0, np.inf]), dtype=np.float64),
    spaces.Box(np.array([[0.1, 1 / 3]], np.float32), np.array([[0.7, 5]], np.float32)),
    spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64),
    spaces.Box(0, 1, (0,), np.float32),
    spaces.Box(0, 1, (2,), np.bool_),
    spaces.Box(-1, 1, (2,), np.float16),
    spaces.Discrete(5),
    spaces.Discrete(3, start=-7),
    spaces.MultiDiscrete([3, 2]),
    spaces.MultiDiscrete([[3, 2], [4, 5]], start=[[1, 0], [-2, 9]]),
    spaces.MultiDiscrete([3, 2], dtype=np.int32),
    spaces.MultiBinary(4),
    spaces.MultiBinary([2, 3]),
    spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Tuple([spaces.MultiBinary(2), spaces.Box(0, 1, (1,))])}),
    spaces.Dict(OrderedDict([("z", spaces.Discrete(2)), ("a", spaces.Discrete(3))])),
    spaces.Tuple([]),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_is_the_same_after_json(space):
    text = json.dumps(space_json.to_json(space), allow_nan=False)
    again = space_json.from_json(json.loads(text))
    assert again == space
    assert again.dtype == space.dtype
    assert str(again) == str(space)
    if isinstance(space, spaces.Dict):
        assert list(again.spaces) == list(space.spaces)  # the order of the policy's inputs


@pytest.mark.parametrize(
    ("data", "message"),
    [({"kind": "Blob"}, "unknown kind 'Blob'"), ({}, "KeyError"), ([], "TypeError"), ({"kind": "Box"}, "dtype")],
)
def test_json_that_is_no_space_is_refused(data, message):
    with pytest.raises(ConfigError, match=message):
        space_json.from_json(data)


@pytest.mark.parametrize("space", [spaces.Text(5), spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))})])
def test_spaces_without_a_fixed_size_are_refused(space):
    with pytest.raises(ConfigError, match="cannot be written"):
        space_json.to_json(space)


# ---- acting ----


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The run of a name in `small_runs.RUNS`."""
    return SmallRuns(tmp_path_factory)


@pytest.mark.parametrize("name", ["discrete", "box", "squash", "q", "lstm"])
def test_greedy_actions_are_those_of_an_evaluation(name, trained):
    run = trained(name)
    player, env = load_player(run, greedy=True)
    policy = shoal.load(run)
    vec = shoal.make(num_envs=3, seed=5, **{**env, "backend": "serial"})
    obs, infos = vec.reset()
    player.reset(vec.num_rows)
    state = None
    for _ in range(12):
        expected = player.act(obs, infos)
        result = policy.act(obs, state, greedy=True)
        actions, state = result if policy.is_recurrent else (result, None)
        np.testing.assert_array_equal(actions, expected)
        assert actions.dtype == expected.dtype
        obs, _, terminated, truncated, infos = vec.step(actions)
        player.observe(terminated | truncated)
        state = policy.clear(state, terminated | truncated)
    vec.close()


@pytest.mark.parametrize("name", ["discrete", "box", "squash", "lstm", "q", "dict"])
def test_one_observation_is_a_row_and_torch_is_numpy(name, trained):
    policy = shoal.load(trained(name))
    layout = policy.actor.layout
    policy.observation_space.seed(3)
    samples = [policy.observation_space.sample() for _ in range(4)]
    leaves = [np.stack(parts) for parts in zip(*map(layout.leaves_of, samples))]
    batch = shoal.spec.structure(policy.observation_space, iter(leaves))
    tensors = shoal.spec.structure(policy.observation_space, iter(map(torch.from_numpy, leaves)))
    actions, by_torch = (acted(policy, obs, greedy=True) for obs in (batch, tensors))
    head = policy.actor.head.layout
    for leaf, tensor in zip(head.leaves_of(actions), head.leaves_of(by_torch)):
        assert isinstance(leaf, np.ndarray)
        assert isinstance(tensor, torch.Tensor)
        np.testing.assert_allclose(tensor.numpy(), leaf, rtol=1e-6)
    for k, sample in enumerate(samples):
        action = acted(policy, sample, greedy=True)
        assert policy.action_space.contains(action)
        for one, many in zip(head.leaves_of(action), head.leaves_of(actions)):
            np.testing.assert_allclose(one, many[k], rtol=1e-5, atol=1e-6)
        assert acted(policy, sample) is not None
    values = policy.value(batch)
    assert values.shape == (4,)
    assert policy.value(samples[1]) == pytest.approx(values[1], abs=1e-5)
    assert isinstance(policy.value(samples[1]), float)


def acted(policy, obs, **options):
    """The actions alone, also of a recurrent policy."""
    result = policy.act(obs, **options)
    return result[0] if policy.is_recurrent else result


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4, start=3),
        spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 2], [3, 4]]),
        spaces.MultiBinary([2, 2]),
        spaces.Box(np.array([-2.0, -np.inf]), np.array([5.0, 1.0]), dtype=np.float64),
        spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1, 3, (2, 2), np.float32), "c": spaces.Box(0, 1, (1,))}),
    ],
    ids=str,
)
def test_actions_in_torch_are_those_in_numpy(space):
    head = ActionHead(space)
    head.to("cpu")
    logits = torch.randn(64, head.num_params, generator=torch.Generator().manual_seed(0)) * 3
    actions = head.greedy(logits)
    expected = head.layout.leaves_of(head.to_env(actions.numpy()))
    got = EnvActions(head)(actions)
    for mine, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(mine.numpy(), other)
        assert mine.numpy().dtype == other.dtype


def test_sampled_actions_follow_the_distribution_and_the_seed(trained):
    policy = shoal.load(trained("discrete"), seed=7)
    obs = np.tile(np.array([0.1, 0.2, -0.1, 0.3], np.float32), (4000, 1))
    first = policy.act(obs)
    np.testing.assert_array_equal(policy.seed(7).act(obs), first)
    assert (policy.act(obs) != first).any()
    own = torch.Generator().manual_seed(1)
    again = torch.Generator().manual_seed(1)
    np.testing.assert_array_equal(policy.act(obs, generator=own), policy.act(obs, generator=again))
    assert first.mean() == pytest.approx(policy.distribution(obs[0])[1], abs=0.03)


def test_a_q_learner_explores_with_the_epsilon_of_its_end(trained):
    policy = shoal.load(trained("q"))
    obs = policy.observation_space.sample()
    chances = policy.distribution(obs)
    assert chances.max() == pytest.approx(0.75 + 0.25 / len(chances))
    actions = policy.act(np.tile(obs, (4000, 1)))
    assert (actions == chances.argmax()).mean() == pytest.approx(chances.max(), abs=0.03)
    assert policy.act(obs, greedy=True) == chances.argmax()


def test_the_distribution_of_a_box_is_in_the_units_of_the_env(trained):
    policy = shoal.load(trained("box"))
    obs = np.zeros((2, 3), np.float32)
    normal = policy.distribution(obs)
    assert normal.mean.shape == normal.std.shape == (2, 1)
    np.testing.assert_allclose(np.clip(normal.mean, -2, 2), policy.act(obs, greedy=True), rtol=1e-6)
    assert normal.std[0, 0] == pytest.approx(2.0, rel=0.2)  # exp(0), and the bounds are -2 and 2


def test_a_dict_action_has_a_dict_of_distributions(trained):
    policy = shoal.load(trained("dict"))
    shown = policy.distribution(policy.observation_space.sample())
    assert set(shown) == set(policy.action_space.spaces)


def test_a_recurrent_policy_remembers_and_forgets_by_row(trained):
    policy = shoal.load(trained("lstm"))
    generator = np.random.default_rng(0)
    obs = [generator.random((2, *policy.observation_space.shape)).astype(np.float32) for _ in range(3)]
    state = None
    for part in obs[:2]:
        _, state = policy.act(part, state)
    with_memory, without = policy.value(obs[2], state), policy.value(obs[2])
    assert (with_memory != without).all()
    cleared = policy.value(obs[2], policy.clear(state, np.array([True, False])))
    np.testing.assert_allclose(cleared, [without[0], with_memory[1]], rtol=1e-5)
    _, one = policy.act(obs[0][0])
    assert policy.act(obs[1][0], one)[1][0].shape[0] == 1


def test_masks_rule_out_actions(trained):
    policy = shoal.load(trained("masked"))
    assert policy.mask_size == 4
    obs, mask = np.ones((50, 1), np.float32), np.tile(np.array([0, 1, 0, 1], np.int8), (50, 1))
    assert set(policy.act(obs, mask=mask)) == {1, 3}
    assert policy.act(obs[0], mask=[0, 0, 1, 0]) == 2
    assert set(policy.act(obs, mask=[0, 0, 1, 0])) == {2}  # one mask for all rows
    assert policy.act(torch.ones(1), mask=torch.tensor([True, False, False, False])) == 0
    np.testing.assert_array_equal(policy.distribution(obs[0], mask=mask[0])[[0, 2]], 0)


# ---- several agents ----


def test_every_agent_has_its_policy(trained):
    team = shoal.load(trained("team"))
    assert team.agents == ("agent_0", "agent_1", "agent_2", "agent_3")
    obs = np.random.default_rng(0).random((8, 11)).astype(np.float32)  # two envs
    rows = team.act(obs, greedy=True)
    by_agent = team.act({name: obs[k::4] for k, name in enumerate(team.agents)}, greedy=True)
    player, _ = load_player(trained("team"), greedy=True)
    player.reset(8)
    np.testing.assert_array_equal(rows, player.act(obs, {}))
    for k, name in enumerate(team.agents):
        np.testing.assert_array_equal(rows[k::4], by_agent[name])
        np.testing.assert_allclose(team[name].act(obs[k], greedy=True), rows[k], rtol=1e-5, atol=1e-6)
    assert isinstance(team.act(torch.from_numpy(obs)), torch.Tensor)
    assert set(team.value({"agent_2": obs[0]})) == {"agent_2"}  # the others are out of the game


def test_agents_that_share_a_policy_act_as_rows_or_by_name(trained):
    policy = shoal.load(trained("shared"))
    assert policy.agents == ("agent_0", "agent_1", "agent_2", "agent_3")
    obs = np.random.default_rng(0).random((4, 11)).astype(np.float32)
    rows, state = policy.act(obs, greedy=True)
    by_agent, states = policy.act(dict(zip(policy.agents, obs)), greedy=True)
    for k, name in enumerate(policy.agents):
        np.testing.assert_allclose(by_agent[name], rows[k], rtol=1e-5, atol=1e-6)
    rows, state = policy.act(obs, state, greedy=True)
    by_agent, states = policy.act(dict(zip(policy.agents, obs)), states, greedy=True)
    np.testing.assert_allclose(by_agent["agent_3"], rows[3], rtol=1e-5, atol=1e-6)
    forgotten = policy.clear(states, {"agent_3": True})
    assert not forgotten["agent_3"][0].any()
    assert forgotten["agent_0"][0].any()


def test_a_q_network_for_each_agent_is_a_team(trained):
    run = trained("q team")
    team = shoal.load(run)
    player, env = load_player(run, greedy=True)
    vec = shoal.make(num_envs=2, seed=1, **{**env, "backend": "serial"})
    obs, infos = vec.reset()
    player.reset(vec.num_rows)
    masks = infos["action_mask"]
    np.testing.assert_array_equal(team.act(obs, mask=masks, greedy=True), player.act(obs, infos))
    assert len(team.agents) == vec.agents_per_env
    vec.close()


def test_agents_with_different_spaces_play_their_own_env(trained):
    team = shoal.load(trained("unlike"))
    env = MixedAgentsEnv()
    obs, _ = env.reset(seed=0)
    states = None
    while env.agents:
        actions, states = team.act(obs, states)
        assert all(env.action_space(name).contains(actions[name]) for name in actions)
        obs, *_ = env.step(actions)
    assert isinstance(actions["speaker"], int)
    assert team["listener"].observation_space == env.observation_space("listener")


def test_a_group_has_a_name(trained, tmp_path):
    shutil.copytree(trained("team").folder, tmp_path / "run")
    file = tmp_path / "run" / "policy.json"
    about = json.loads(file.read_text())
    about["roles"][3]["name"] = "prey"
    file.write_text(json.dumps(about))
    team = shoal.load(tmp_path / "run")
    assert team["prey"] is team["agent_3"]
    with pytest.raises(ConfigError, match="no policy of 'pray' was trained. Did you mean 'prey'"):
        team["pray"]


def test_a_dict_space_is_not_mistaken_for_agents(trained):
    """A team of agents with Dict observations acts for rows, and by name."""
    first, second = shoal.load(trained("dict")), shoal.load(trained("dict"))
    team = Team(("a", "b"), {"a": first, "b": second}, {})
    layout = first.actor.layout
    samples = [first.observation_space.sample() for _ in range(4)]
    leaves = [np.stack(parts) for parts in zip(*map(layout.leaves_of, samples))]
    rows = team.act(shoal.spec.structure(first.observation_space, iter(leaves)), greedy=True)
    by_name = team.act({"a": samples[2], "b": samples[3]}, greedy=True)
    assert rows["gear"].shape == (4,)
    assert rows["gear"][2:].tolist() == [by_name["a"]["gear"], by_name["b"]["gear"]]
    assert first.act({"agent_0": samples[0]}, greedy=True)["agent_0"]["gear"] == rows["gear"][0]
    with pytest.raises(ConfigError, match=r"obs\['cards'\] is missing"):
        team.act({"camera": samples[0]["camera"]})


def test_agents_may_have_numbers_for_names(trained):
    policy = shoal.load(trained("discrete"))
    team = Team(("0", "1"), {"0": policy, "1": policy}, {})
    assert set(team.act({0: np.zeros(4), 1: np.zeros(4)})) == {0, 1}


def test_opponents_have_no_policy(tmp_path):
    tables = {
        "env": {"preset": "classic-1v3"},
        "train": {"horizon": 4, "total_steps": 64},
        "opponents": "1=seek,2=seek",
    }
    policy = shoal.load(train_tiny("vacuum", tmp_path, **tables))
    assert policy.agents == ("agent_0", "agent_3")
    with pytest.raises(ConfigError, match="no policy of 'agent_1' was trained.* agent_0, agent_3"):
        policy["agent_1"]
    assert len(policy.act(policy.observation_space.sample()[None].repeat(4, 0), mask=np.ones(policy.mask_size))) == 4


def test_rows_of_opponents_get_zeros(tmp_path):
    tables = {"algo": "dqn", "env": {"preset": "classic-1v3"}, "train": {"policy": "per-agent", "total_steps": 128}}
    team = shoal.load(train_tiny("vacuum", tmp_path, opponents="1=seek,2=seek", **tables))
    policy = team["agent_3"]
    obs, mask = np.stack([policy.observation_space.sample()] * 8), np.ones((8, policy.mask_size))
    mask[:, 0] = 0  # so that no policy chooses 0
    actions = team.act(obs, mask=mask).reshape(2, 4)
    assert (actions[:, [1, 2]] == 0).all()
    assert (actions[:, [0, 3]] > 0).all()


# ---- the folder is enough ----


def test_neither_the_header_nor_its_folder_is_needed(tmp_path, monkeypatch):
    header = tmp_path / "here" / "hunt.h"
    header.parent.mkdir()
    shutil.copy(CHASE, header)
    monkeypatch.chdir(header.parent)
    run = train_tiny("./hunt.h", tmp_path / "runs", save={"every": 0})
    moved = tmp_path / "elsewhere" / run.id
    shutil.copytree(run.folder, moved)
    shutil.rmtree(header.parent)
    monkeypatch.chdir(tmp_path)
    assert shoal.load(moved).act(np.zeros(11, np.float32)).shape == (2,)
    assert shoal.load("last", runs=tmp_path / "runs").agents == shoal.load(run).agents


def test_a_run_without_the_file_makes_its_env(trained, tmp_path):
    before = shoal.load(trained("lstm"))
    old = tmp_path / "memory" / "old"
    shutil.copytree(trained("lstm").folder, old)
    (old / "policy.json").unlink()
    after = shoal.load(old)
    assert after.observation_space == before.observation_space
    obs = np.zeros(after.observation_space.shape, np.float32)
    assert after.act(obs, greedy=True)[0] == before.act(obs, greedy=True)[0]


def test_a_run_of_a_function_without_the_file_says_what_to_do(trained, tmp_path):
    shutil.copytree(trained("dict").folder, tmp_path / "old")
    (tmp_path / "old" / "policy.json").unlink()
    facts = json.loads((tmp_path / "old" / "run.json").read_text())
    Run(tmp_path / "old").write("run.json", {**facts, "env": "Nested", "env_is_a_name": False})
    with pytest.raises(ConfigError, match="Nested is a function.*resume="):
        shoal.load(tmp_path / "old")
    (tmp_path / "old" / "policy.json").write_text('{"format": 1}')
    with pytest.raises(ConfigError, match="policy.json cannot be read: KeyError"):
        shoal.load(tmp_path / "old")


# ---- your own policy ----


class Own(nn.Module):
    """A policy that another process can import."""

    def __init__(self, observation_space, action_space):
        super().__init__()
        self.dropout = nn.Dropout(0.5)  # off when it acts
        self.actor = nn.Linear(observation_space.shape[0], int(action_space.n))
        self.critic = nn.Linear(observation_space.shape[0], 1)

    def forward(self, obs):
        return self.actor(self.dropout(obs)), self.critic(obs)


def test_your_own_policy_is_found_by_its_name(tmp_path):
    run = train_tiny("cartpole", tmp_path, policy=Own, save={"every": 0})
    policy = shoal.load(run)
    assert type(policy.actor.policy) is Own
    obs = np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(policy.distribution(obs), policy.distribution(obs))
    given = Own(policy.observation_space, policy.action_space)
    before = given.actor.weight.clone()
    loaded = shoal.load(run, policy=given)
    assert torch.equal(loaded.actor.policy.actor.weight, policy.actor.policy.actor.weight)
    assert torch.equal(given.actor.weight, before)  # it is copied


def test_your_own_policy_that_cannot_be_found_is_asked_for(tmp_path):
    class Local(Own):
        pass

    run = train_tiny("cartpole", tmp_path, policy=Local, save={"every": 0})
    with pytest.raises(ConfigError, match=r"custom policy \(Local\).*policy=Local"):
        shoal.load(run)
    assert shoal.load(run, policy=Local).act(np.zeros(4)) in (0, 1)
    with pytest.raises(ConfigError, match="policy=3 is no policy"):
        shoal.load(run, policy=3)
    facts = json.loads((run.folder / "policy.json").read_text())
    run.write("policy.json", {**facts, "policy": "nowhere.at_all:Policy"})
    with pytest.raises(ConfigError, match=r"nowhere.at_all:Policy cannot be imported here \(ModuleNotFoundError"):
        shoal.load(run)


# ---- mistakes ----


def test_a_checkpoint_is_named_by_its_step(tmp_path):
    run = train_tiny("cartpole", tmp_path)
    steps = [int(path.name) for path in run.checkpoints()]
    assert shoal.load(run, steps[1]).step == steps[1]
    assert shoal.load(run, f"{steps[1]:_}").step == steps[1]
    assert shoal.load(run, "last").step == steps[-1]
    assert shoal.load(run.best).step == int(run.best.name)
    with pytest.raises(ConfigError, match=f"no checkpoint of step 5. The nearest is {steps[0]}"):
        shoal.load(run, 5)
    with pytest.raises(ConfigError, match="'bset' must be best, last or a step. Did you mean 'best'"):
        shoal.load(run, "bset")
    shutil.rmtree(run.folder / "checkpoints")
    with pytest.raises(ConfigError, match="has no checkpoint"):
        shoal.load(run)


def test_what_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="run=3 is not a run"):
        shoal.load(3)
    with pytest.raises(ConfigError, match="no run 'nothing'"):
        shoal.load("nothing", runs=tmp_path)


@pytest.mark.parametrize(
    ("name", "act", "error", "message"),
    [
        ("discrete", {"obs": np.zeros(5)}, ConfigError, r"shape \(5,\).* takes \(4,\) .* \(rows, 4\)"),
        ("discrete", {"obs": np.zeros((2, 3, 4))}, ConfigError, "shape"),
        ("discrete", {"obs": "north"}, ConfigError, "obs is a str"),
        ("discrete", {"obs": np.zeros(4), "state": (torch.zeros(1),)}, ConfigError, "not recurrent"),
        ("discrete", {"obs": {"agent_7": np.zeros(4)}}, ConfigError, "no policy of 'agent_7'"),
        ("discrete", {"obs": {"agent_0": np.zeros(4)}, "mask": np.ones(2)}, ConfigError, "Give a dict by agent"),
        ("box", {"obs": np.zeros(3), "mask": np.ones(1)}, ConfigError, "Masks are for discrete actions"),
        ("masked", {"obs": np.zeros(1)}, ConfigError, "action masks of 4 entries, and mask is missing"),
        ("masked", {"obs": np.zeros(1), "mask": np.ones(3)}, ConfigError, r"shape \(3,\), expected \(4,\)"),
        ("masked", {"obs": np.zeros((2, 1)), "mask": [[1, 0, 0, 0], [0] * 4]}, ActionError, "no action in row 1"),
        ("lstm", {"obs": np.zeros((2, 6)), "state": 3}, ConfigError, "not a state of this policy"),
        ("team", {"obs": np.zeros(11)}, ConfigError, r"policy for each of agent_0, .* policy\['agent_0'\]"),
        ("team", {"obs": np.zeros((3, 11))}, ConfigError, "dict of observations by agent"),
        ("unlike", {"obs": np.zeros(3)}, ConfigError, "policy for each of speaker, listener"),
        ("unlike", {"obs": {"listener": {"word": 1}}}, ConfigError, r"obs\['place'\] is missing. obs has word"),
        ("unlike", {"obs": {"speaker": 1.5}}, ConfigError, "is float64, but the policy was trained on int64"),
    ],
)
def test_wrong_input_is_refused_with_what_to_give(name, act, error, message, trained):
    policy = shoal.load(trained(name))
    with pytest.raises(error, match=message):
        policy.act(**act)


def test_a_state_of_other_rows_is_refused(trained):
    policy = shoal.load(trained("lstm"))
    shape = policy.observation_space.shape
    _, state = policy.act(np.zeros((3, *shape), np.float32))
    with pytest.raises(ConfigError, match="state has 3 rows, but there are 2 observations"):
        policy.act(np.zeros((2, *shape), np.float32), state)
    with pytest.raises(ConfigError, match="done has 2 entries, but the state has 3 rows"):
        policy.clear(state, [True, False])


def test_a_missing_gpu_is_reported(trained):
    with pytest.raises(ConfigError, match="device 'cuda' cannot be used"):
        shoal.load(trained("discrete"), device="cuda")


def test_a_gymnasium_env_is_played_in_three_lines(trained):
    """The first lines of the docs, with an env of another library."""
    policy = shoal.load(trained("discrete"))
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    obs, *_ = env.step(policy.act(obs))
    env.close()
    assert obs.shape == (4,)
