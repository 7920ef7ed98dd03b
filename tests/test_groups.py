"""Groups of agents: how they are written and declared, mistakes in them, and the policies that they get."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import shoal
from shoal import checkpoint, config, groups, registry
from shoal.algos.roles import assign_roles, find_groups
from shoal.cli.train import parse
from shoal.errors import BuildError, CheckpointError, ConfigError
from shoal.native import lib
from shoal.train import load_player, options_for, train
from shoal.train.opponents import seat_opponents
from tests.envs import DyingAgentsEnv, MixedAgentsEnv, UnlikeAgentsEnv
from tests.fake_gpu import GpuLikeVec, use_fake_graphs
from tests.training import contents, cut, make_trainer, tiny, tiny_trainer, train_tiny, training

CHASE, DECLARED = "tests/chase.h", "examples/chase/chase.h"
GROUPS = {"predators": (0, 1, 2), "prey": (3,)}
NAMES = [f"agent_{k}" for k in range(4)]
SMALL: dict[str, Any] = {"vec": {"num_envs": 4}, "train": {"horizon": 8, "minibatches": 1}}


# ---- words ----


@pytest.mark.parametrize(
    "words",
    [
        ["predators=0,1,2", "prey=3"],
        ["predators=0-2", "prey=3"],
        ["predators=0,agent_1,2", "prey=agent_3"],
        {"predators": [0, 1, 2], "prey": 3},
        {"predators": range(3), "prey": ["agent_3"]},
        "predators=0,1,2 prey=3",
    ],
)
def test_a_group_is_written_in_several_ways(words):
    assert groups.read(groups.as_words(words), NAMES) == GROUPS


def test_patterns_stand_for_names():
    names = ["red_0", "red_1", "blue_0"]
    assert groups.read(["left=red_*", "right=blue_*"], names) == {"left": (0, 1), "right": (2,)}
    assert groups.read(groups.write(GROUPS), NAMES) == GROUPS


MISTAKES = [
    ("predators=0,1 prey=3", "agent 2 is in no group. Add it to one, such as predators"),
    ("prey=3", "of the 4 agents, agent 0, agent 1, agent 2 are in no group. Add them"),
    ("predators=0,1,2 prey=2,3", "agent 2 in two groups: 'predators' and 'prey'"),
    ("predators=0,0,1,2 prey=3", "agent 0 twice in 'predators'"),
    ("predators=0,1,2 prey=4", "prey=4: the env has agents 0 to 3"),
    ("predators=0-7", "predators=0-7: the env has agents 0 to 3"),
    ("predators=0,1,2 prey=agnt_3", "no such agent. Did you mean 'agent_3'?"),
    ("predators=0,1,2 prey=fox_*", "no such agent"),
    ("predators=0,1 predators=2,3", "names the group 'predators' twice"),
    ("predators", "is not NAME=AGENTS"),
    ("predators= prey=3", "is not NAME=AGENTS"),
    ("a/b=0-3", "'a/b' is no name of a group"),
    ("agent_0=0-3", "'agent_0' is the name of an agent"),
]


@pytest.mark.parametrize(("words", "said"), MISTAKES)
def test_a_mistake_is_told_before_a_folder_is_made(tmp_path, words, said):
    with pytest.raises(ConfigError) as caught:
        train_tiny(CHASE, tmp_path / "runs", nn={"groups": words})
    assert said in str(caught.value)
    assert "--nn.groups" in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_groups_need_several_agents_and_something_to_group():
    with pytest.raises(ConfigError, match="the env has one agent"):
        make_trainer("cartpole", nn={"groups": {"all": 0}})
    with pytest.raises(ConfigError, match="--nn.policies groups: the env names no groups"):
        make_trainer(CHASE, nn={"policies": "groups"})
    with pytest.raises(ConfigError, match="must be a list"):
        options_for("", {"nn": {"groups": 3}})


# ---- the options ----


def test_flags_a_dict_and_a_file_mean_the_same(tmp_path):
    words = ("predators=0,1,2", "prey=3")
    flags = parse([CHASE, "--nn.groups", *words, "--device", "cpu"]).options.nn
    file = tmp_path / "chase.toml"
    file.write_text("[nn.groups]\npredators = [0, 1, 2]\nprey = [3]\n")
    by_file = parse([CHASE, "--config", str(file), "--device", "cpu"]).options.nn
    by_dict = options_for(CHASE, {"nn": {"groups": {"predators": [0, 1, 2], "prey": 3}}, "device": "cpu"}).nn
    assert flags == by_file == by_dict
    assert flags.groups == words
    assert flags.policies == "auto"  # over tests/chase.toml, which has a policy for each agent
    both = parse([CHASE, "--nn.groups", *words, "--nn.policies", "shared", "--device", "cpu"]).options.nn
    assert both.policies == "shared"
    assert config.from_dict(type(flags), config.to_dict(flags), "nn") == flags  # as a run's config.toml holds it


@pytest.mark.parametrize(
    ("policies", "agents"),
    [
        ("auto", [(0, 1, 2), (3,)]),
        ("groups", [(0, 1, 2), (3,)]),
        ("shared", [None]),
        ("per_agent", [(0,), (1,), (2,), (3,)]),
    ],
)
def test_which_agents_each_policy_plays(policies, agents):
    for env, words in ((DECLARED, ()), (CHASE, groups.write(GROUPS))):
        vec = shoal.make(env, 1)
        roles = assign_roles(vec, policies, words)
        assert [role.agents for role in roles] == agents
        assert find_groups(vec, words) == GROUPS  # metrics are by group, whoever plays
        vec.close()


# ---- what an env declares ----


def test_a_header_names_its_agents_by_their_groups():
    vec = shoal.make(DECLARED, 2, seed=0)
    assert vec.agent_spaces.agents == ("predators_0", "predators_1", "predators_2", "prey")
    assert list(vec.agents().possible_agents) == list(vec.agent_spaces.agents)
    assert vec.native_spec.groups == tuple(GROUPS.items())
    vec.close()


def test_a_declared_group_is_overridden_by_the_option():
    vec = shoal.make(DECLARED, 1)
    assert find_groups(vec, ["all=0-3"]) == {"all": (0, 1, 2, 3)}
    (role,) = assign_roles(vec, "auto", ["all=0-3"])
    assert (role.agents, role.name) == (None, "all")  # every agent: the fast paths of one policy hold
    vec.close()


def test_a_header_with_wrong_groups_is_refused(tmp_path):
    header = tmp_path / "wrong.h"
    header.write_text(
        """#define ENV_OBS OBS_F32(1)
#define ENV_ACTION ACT_DISCRETE(2)
#define ENV_AGENTS 4
#define ENV_GROUPS(X) X("predators", 0, 1) X("prey", 3, 3)
#define ENV_NO_DRAW
#include "core/env.h"
typedef struct { float x; } State;
ENV_FN void env_reset(State *s, const Params *p, Rng *rng) { (void)p, (void)rng, s->x = 0.0f; }
ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)p, (void)rng, s->x += (float)a[0], out->rewards[1] = s->x;
}
ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) { (void)p, (void)agent, obs[0] = s->x; }
"""
    )
    with pytest.raises(BuildError, match="ENV_GROUPS: of the 4 agents, agent 2 is in no group"):
        lib.load(header, variant="base")


class Teams(DyingAgentsEnv):
    """Declares groups in its metadata, by names and by a number."""

    metadata: ClassVar[dict[str, Any]] = {"groups": {"left": ["fish_0", "fish_1"], "right": ["fish_2", 3]}}


class WrongTeams(DyingAgentsEnv):
    """Declares groups that miss an agent."""

    metadata: ClassVar[dict[str, Any]] = {"groups": {"left": ["fish_0", "fish_1"], "right": ["fish_2"]}}


def test_a_python_env_declares_groups_in_its_metadata():
    vec = shoal.make(Teams, 2, backend="process", num_workers=1)
    assert find_groups(vec) == {"left": (0, 1), "right": (2, 3)}
    assert [role.name for role in assign_roles(vec, "auto")] == ["left", "right"]
    vec.close()


def test_wrong_metadata_is_told():
    with pytest.raises(ConfigError, match=r'metadata\["groups"\]: of the 4 agents, agent 3 \(fish_3\) is in no group'):
        make_trainer(WrongTeams, **SMALL)


# ---- agents with different spaces ----


class Herd(UnlikeAgentsEnv):
    """Four agents of two kinds of spaces: a reward is what the others did."""

    possible_agents = ("big_0", "big_1", "small_0", "small_1")

    def observation_space(self, agent):
        return super().observation_space(agent.partition("_")[0])

    def action_space(self, agent):
        return super().action_space(agent.partition("_")[0])

    def step(self, actions):
        total = sum(float(action) for action in actions.values())
        obs, rewards, *rest = super().step(actions)
        return obs, {name: total - own for name, own in rewards.items()}, *rest

    def _obs(self):
        names = self.possible_agents
        return {name: np.full(self.observation_space(name).shape, self.steps, np.float32) for name in names}


def test_agents_with_different_spaces_have_policies_named_by_their_prefix():
    with training(Herd, nn={"hidden": 8}, vec={"num_envs": 4, "backend": "serial"}, train={"horizon": 6}) as trainer:
        assert [(role.name, role.agents) for role in trainer.roles] == [("big", (0, 1)), ("small", (2, 3))]
        trainer.iterate()
        record = trainer.drain()
    assert record["loss/value/big"] != record["loss/value/small"]
    mean = (record["episode/return/big_0"] + record["episode/return/big_1"]) / 2
    assert record["episode/return/big"] == pytest.approx(mean)


def test_groups_divide_agents_with_different_spaces():
    words = {"a": ["big_0"], "b": ["small_*"], "c": ["big_1"]}
    vec = {"num_envs": 4, "backend": "serial"}
    with training(Herd, nn={"hidden": 8, "groups": words}, vec=vec, train={"horizon": 6}) as t:
        assert [role.names for role in t.roles] == [("big_0",), ("small_0", "small_1"), ("big_1",)]
        t.iterate()
        actions = t.player(greedy=False)
        actions.reset(4 * 4)
        obs, infos = t.vec.reset(seed=0)
        assert list(actions.act(obs, infos)) == list(Herd.possible_agents)


def test_a_group_of_agents_with_different_spaces_is_refused():
    words = {"all": "big_0,small_0", "rest": "big_1,small_1"}
    with pytest.raises(ConfigError, match="group 'all' has agents with different spaces: big_0 observes Box"):
        make_trainer(Herd, nn={"groups": words}, vec={"num_envs": 4, "backend": "serial"})


def test_agents_without_a_common_prefix_have_their_own_names():
    vec = shoal.make(MixedAgentsEnv, 1, backend="serial")
    assert [role.name for role in assign_roles(vec, "shared")] == ["speaker", "listener"]
    vec.close()


# ---- training ----


def weights_of(trainer):
    return {name: value.clone() for name, value in trainer.state()["weights"].items()}


def test_a_group_for_each_agent_trains_as_a_policy_for_each_agent():
    """The same bits: groups are nothing but a division of the agents."""
    each = {f"solo{k}": k for k in range(4)}
    by_kind = []
    for nn in ({"groups": each}, {"policies": "per_agent"}):
        with training(CHASE, nn={"hidden": 8, **nn}, **SMALL) as trainer:
            for _ in range(2):
                trainer.iterate()
            by_kind.append(weights_of(trainer))
    assert by_kind[0].keys() == by_kind[1].keys()
    assert all(torch.equal(by_kind[0][name], by_kind[1][name]) for name in by_kind[0])


def test_one_group_of_all_trains_as_a_shared_policy():
    by_kind = []
    for nn in ({"groups": {"all": "0-3"}}, {"policies": "shared"}):
        with training(CHASE, nn={"hidden": 8, **nn}, **SMALL) as trainer:
            trainer.iterate()
            by_kind.append((weights_of(trainer), type(trainer.collector)))
    assert by_kind[0][1] is by_kind[1][1]
    assert all(torch.equal(by_kind[0][0][name], by_kind[1][0][name]) for name in by_kind[0][0])


def test_a_device_collects_what_a_host_collects(monkeypatch):
    """On a GPU the policies copy the rows of their groups: the same rollouts as on a CPU."""
    use_fake_graphs(monkeypatch)
    rollouts = []
    for kind in ("host", "device"):
        vec = shoal.make(DECLARED, 4, max_steps=6)
        trainer = make_trainer(GpuLikeVec(vec) if kind == "device" else vec, nn={"hidden": 8}, train={"horizon": 8})
        trainer.start()
        trainer.collect()
        assert [role.name for role in trainer.roles] == ["predators", "prey"]
        assert trainer.drain()["episode/return/prey"] != 0
        rollouts.append([(x.rollout.obs[0].clone(), x.rollout.rewards.clone()) for x in trainer.learners])
        trainer.close()
    for host, device in zip(*rollouts):
        for ours, theirs in zip(host, device):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_groups_learn_by_q_learning():
    own = {"algo": "dqn", "env": {"preset": "classic-1v3"}, "train": {"total_steps": 2000, "replay_size": 6400}}
    trainer = tiny_trainer("vacuum", nn={"groups": {"one": 0, "others": "1-3"}}, **own)
    for _ in range(4):
        trainer.iterate()
    record = trainer.drain()
    trainer.close()
    assert record["loss/q/one"] != record["loss/q/others"]


# ---- runs ----


def own_tables(**more):
    return {"train": {"horizon": 8, "total_steps": 16 * 8 * 4 * 3}, **more}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train_tiny(CHASE, tmp_path_factory.mktemp("groups"), **own_tables(nn={"groups": GROUPS}))


def test_a_run_with_groups_resumes_to_the_bit(tmp_path, run):
    whole = contents(run)
    again = train_tiny(CHASE, tmp_path, **own_tables(nn={"groups": GROUPS}))
    assert contents(again) == whole
    assert contents(train(CHASE, resume=cut(again, 1).folder, console="off")) == whole


def test_a_checkpoint_says_its_policies_and_fits_no_others(run):
    meta = json.loads((run.last / "meta.json").read_text())
    assert meta["policies"] == ["predators", "prey"]
    assert run.config["nn"]["groups"] == ["predators=0,1,2", "prey=3"]
    files, loaded = checkpoint.load(run.last)
    other = tiny_trainer(CHASE, **own_tables(nn={"groups": {"wolves": "0-2", "sheep": 3}}))
    with pytest.raises(CheckpointError, match="has the policies: predators, prey; this run has: wolves, sheep"):
        other.restore(files, loaded)
    other.close()
    same = tiny_trainer(CHASE, **own_tables(nn={"groups": GROUPS}))
    same.restore(files, {key: value for key, value in loaded.items() if key != "policies"})  # of an older version
    same.close()


def test_a_player_of_a_run_has_its_groups(run):
    player, about = load_player(run)
    assert about["env"] == str(registry.find(CHASE))
    assert player.groups == GROUPS
    assert [role.agents for role in player.roles] == [(0, 1, 2), (3,)]


# ---- opponents ----


def test_opponents_are_named_by_group(run):
    options = options_for("", tiny(**own_tables(opponents=f"prey={run.folder}", nn={"groups": GROUPS})))
    opponents, resolved = seat_opponents(CHASE, options)
    assert opponents == {3: str(run.best.resolve())}
    assert resolved.opponents == f"3={run.best.resolve()}"
    with training(CHASE, **tiny(**own_tables(opponents=f"prey={run.folder}", nn={"groups": GROUPS}))) as trainer:
        assert [role.name for role in trainer.roles] == ["predators"]
        assert [seat.role.agents for seat in trainer.frozen] == [(3,)]
        trainer.iterate()


def test_opponents_of_a_group_that_is_not_there_are_told(run):
    with pytest.raises(ConfigError, match=r"no such agent or group\. Did you mean 'prey'\?"):
        make_trainer(DECLARED, opponents=f"pray={run.folder}")
    with pytest.raises(ConfigError, match="names agent 3 twice"):
        make_trainer(DECLARED, opponents=f"prey={run.folder},3={run.folder}")
