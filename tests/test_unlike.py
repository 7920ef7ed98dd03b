"""Native envs whose agents have different spaces, and actions that mix numbers and choices."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

import shoal
from shoal import evaluate, registry
from shoal.errors import ActionError, BuildError, ConfigError
from shoal.evaluate import RandomPlayer
from shoal.integrations.gymnasium import SingleEnv
from shoal.native import build, cuda, lib
from shoal.nn.distributions import ActionHead
from shoal.train import load_player, train
from tests.fake_gpu import GpuLikeVec, make_cuda_vec_on_host, use_fake_graphs
from tests.training import contents, cut, make_trainer, train_tiny, training

UNLIKE, MIXTURE = "tests/unlike.h", "tests/mixture.h"
MIX = spaces.Tuple((spaces.Box(-2.0, 2.0, (1,), np.float32), spaces.MultiDiscrete([2, 3])))


# ---- groups with spaces of their own ----


def test_a_group_observes_the_first_elements_of_a_padded_row():
    vec = shoal.make(UNLIKE, 3, seed=0)
    obs, _ = vec.reset()
    for _ in range(45):
        rows = obs.reshape(3, 3, 5)
        assert (rows[:, 2, 3:] == 0).all()
        assert (rows[:, :2, 0] == 1).all()
        assert (rows[:, 2, 0] == -1).all()
        obs, *_, infos = vec.step(vec.action_space.sample())
        if "final_obs" in infos:
            assert (np.asarray(infos["final_obs"]).reshape(3, 3, 5)[:, 2, 3:] == 0).all()
    assert vec.native_spec.spaces_of(0) == (vec.single_observation_space, spaces.Discrete(5))
    hare = vec.native_spec.spaces_of(2)
    assert (hare[0].shape, hare[1]) == ((3,), spaces.Discrete(3))
    vec.close()


def test_an_agent_has_only_the_choices_of_its_group():
    vec = shoal.make(UNLIKE, 2, seed=0)
    vec.reset()
    assert vec.action_space == spaces.MultiDiscrete([5, 5, 3] * 2)
    vec.step(np.array([4, 4, 2, 4, 4, 2]))
    with pytest.raises(ActionError, match=r"action 3 of env 1, agent 2 is out of range 0 \.\. 2"):
        vec.step(np.array([4, 4, 2, 4, 4, 3]))
    with pytest.raises(ActionError, match=r"action 5 of env 0, agent 0 is out of range 0 \.\. 4"):
        vec.step(np.array([5, 4, 2, 4, 4, 3], np.int32))
    vec.close()


def test_each_policy_sees_and_does_what_its_group_can():
    with training(UNLIKE, nn={"hidden": 8}, vec={"num_envs": 4}, train={"horizon": 8}) as trainer:
        assert [role.name for role in trainer.roles] == ["hunters", "hare"]
        hunters, hare = (learner.rollout for learner in trainer.learners)
        trainer.iterate()
        assert (hunters.obs[0].shape[1:], hare.obs[0].shape[1:]) == ((8, 5), (4, 3))
        assert (hunters.logits.shape[-1], hare.logits.shape[-1]) == (5, 3)
        twin = shoal.make(UNLIKE, 4)
        obs, _ = twin.reset(seed=trainer.first_seed)
        for t in range(8):
            rows = obs.reshape(4, 3, 5)
            np.testing.assert_array_equal(hare.obs[0][t], rows[:, 2, :3])
            np.testing.assert_array_equal(hunters.obs[0][t], rows[:, :2].reshape(8, 5))
            actions = np.concatenate([hunters.actions[t].reshape(4, 2), hare.actions[t].reshape(4, 1)], 1)
            obs, rewards, *_ = twin.step(actions.reshape(-1))
            np.testing.assert_array_equal(hare.rewards[t], rewards.reshape(4, 3)[:, 2])
        twin.close()


def test_a_shared_policy_is_one_for_each_pair_of_spaces():
    with training(UNLIKE, nn={"hidden": 8, "policies": "shared"}, vec={"num_envs": 4}) as trainer:
        assert [(role.name, role.agents) for role in trainer.roles] == [("hunters", (0, 1)), ("hare", (2,))]
    with pytest.raises(ConfigError, match="group 'all' has agents with different spaces"):
        make_trainer(UNLIKE, nn={"groups": {"all": "0-2"}})


def test_a_run_of_unlike_agents_resumes_and_is_evaluated(tmp_path):
    own = {"train": {"horizon": 8, "total_steps": 16 * 8 * 3 * 3}, "eval": {"episodes": 3}}
    run = train_tiny(UNLIKE, tmp_path, **own)
    whole = contents(run)
    assert contents(train(UNLIKE, resume=cut(run, 1).folder, console="off")) == whole
    player, about = load_player(run)
    vec = shoal.make(about.pop("env"), 3, **about)
    score = evaluate.play(vec, player, 3)
    assert sum(score.groups["hare"].returns) == pytest.approx(-2 * sum(score.groups["hunters"].returns), abs=1e-3)
    evaluate.play(vec, RandomPlayer(vec.action_space), 3)
    vec.close()


WIDE = """#define ENV_OBS OBS_F32(4)
#define ENV_ACTION {action}
#define ENV_AGENTS 3
#define ENV_GROUPS(X) {groups}
#define ENV_MAX_STEPS 5
#define ENV_NO_DRAW
#include "core/env.h"
typedef struct {{ float x[3]; }} State;
ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {{
    (void)p;
    for (int i = 0; i < 3; i++) s->x[i] = rng_uniform(rng, 0.0f, 1.0f);
}}
ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {{
    (void)p, (void)rng;
    for (int i = 0; i < 3; i++) s->x[i] += (float)a[i * ACTION_SIZE], out->rewards[i] = s->x[(i + 1) % 3];
}}
ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {{
    (void)p;
    for (int k = 0; k < (agent ? 2 : 4); k++) obs[k] = s->x[(agent + k) % 3];
}}
"""


def write(path: Path, action: str, groups: str) -> str:
    """A header with these actions and groups."""
    path.write_text(WIDE.format(action=action, groups=groups))
    return str(path)


@pytest.mark.parametrize(("action", "kind"), [("ACT_MULTI(3, 2)", spaces.MultiDiscrete), ("ACT_BOX(2)", spaces.Box)])
def test_a_group_sets_the_first_values_of_a_longer_action(tmp_path, action, kind):
    header = write(tmp_path / "wide.h", action, 'X("one", 0, 0) X("two", 1, 2, 2, 1)')
    with training(header, nn={"hidden": 8}, vec={"num_envs": 4}, train={"horizon": 4}) as trainer:
        assert [type(role.action_space) for role in trainer.roles] == [kind, kind]
        trainer.iterate()
        assert [learner.rollout.actions.shape[-1] for learner in trainer.learners] == [2, 1]
        actions = trainer.vec.actions.reshape(4, 3, 2)
        assert (actions[:, 1:, 1] == 0).all()
        assert (actions[:, 0] != 0).any()


@pytest.mark.parametrize(
    ("env", "obs", "actions", "said"),
    [
        (UNLIKE, 6, 5, "'all' observes 6 elements of 5"),
        (UNLIKE, 5, 6, "'all' has 6 actions of 5"),
        (MIXTURE, 4, 1, "which ACT_MIX does not support"),
        ("maze", 4, 1, "but ENV_OBS has 3 dimensions"),
        ("cartpole", 2, 0, "the env has one agent"),
    ],
)
def test_sizes_beyond_those_of_the_env_are_refused(env, obs, actions, said):
    spec = dataclasses.replace(lib.load(registry.find(env)).spec, **({"agents": 2} if env == "maze" else {}))
    with pytest.raises(BuildError, match=said):
        lib._check_sizes(spec, "all", obs, actions)


# ---- numbers and choices ----


def test_a_mixed_action_is_a_tuple_or_a_row_of_floats():
    vec, twin = shoal.make(MIXTURE, 4, seed=1), shoal.make(MIXTURE, 4, seed=1)
    assert vec.single_action_space == MIX
    vec.reset()
    twin.reset()
    vec.action_space.seed(3)
    for _ in range(20):
        numbers, choices = vec.action_space.sample()
        obs, rewards, *_ = vec.step((numbers, choices))
        rows = np.concatenate([numbers, choices], 1).astype(np.float32)
        same = twin.step(rows)
        np.testing.assert_array_equal(obs, same[0])
        np.testing.assert_array_equal(rewards, same[1])
        np.testing.assert_array_equal(vec.actions, rows)
    vec.close()
    twin.close()


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ([0.0, 2.0, 0.0], r"action 2\.0 of env 0, agent 0, element 1 is out of range 0 \.\. 1"),
        ([0.0, 0.0, 3.0], r"element 2 is out of range 0 \.\. 2"),
        ([0.0, -1.0, 0.0], r"element 1 is out of range 0 \.\. 1"),
        ([0.0, 0.5, 0.0], r"action 0\.5 .* out of range 0 \.\. 1"),
        ([np.nan, 0.0, 0.0], "element 0 is not finite"),
        ([0.0, np.inf, 0.0], "element 1 is not finite"),
    ],
)
def test_a_choice_that_is_none_is_refused(action, said):
    vec = shoal.make(MIXTURE, 2, seed=0)
    vec.reset()
    with pytest.raises(ActionError, match=said):
        vec.step(np.tile(np.float32(action), (4, 1)))
    vec.step(np.tile(np.float32([9.0, 1.0, 2.0]), (4, 1)))
    assert vec.actions[0].tolist() == [2.0, 1.0, 2.0]  # numbers are clipped to their bounds
    with pytest.raises(ActionError, match="expected numbers and choices of the same rows"):
        vec.step((np.zeros((4, 1), np.float32), np.zeros((3, 2), int)))
    vec.close()


def test_numbers_and_choices_are_learned_together():
    """Both parts matter: the distance to the goal by the number, the matches by the choices."""
    own = {"horizon": 12, "learning_rate": 3e-3, "total_steps": 32 * 12 * 2 * 60}
    with training(MIXTURE, nn={"hidden": 32}, vec={"num_envs": 32}, train=own) as trainer:
        trainer.iterate()
        before = trainer.drain()
        for _ in range(59):
            trainer.iterate()
            after = trainer.drain()
    assert after["episode/matches"] > before["episode/matches"] + 4
    assert after["episode/return"] > before["episode/return"] + 6


def test_gymnasium_steps_a_mixed_action(tmp_path):
    header = tmp_path / "mix_alone.h"
    header.write_text(
        WIDE.format(action="ACT_MIX(1, 3)", groups="").replace("ENV_AGENTS 3", "ENV_AGENTS 1").replace("x[3]", "x[1]")
        .replace("i < 3", "i < 1").replace("(i + 1) % 3", "0").replace("(agent + k) % 3", "0")
    )  # fmt: skip
    env = SingleEnv(str(header))
    env.action_space.seed(0)
    env.reset(seed=0)
    obs, *_ = env.step(env.action_space.sample())
    assert env.observation_space.contains(obs)
    env.close()


# ---- on a GPU ----


@pytest.mark.parametrize("env", [UNLIKE, MIXTURE])
def test_a_device_collects_what_a_host_collects(monkeypatch, env):
    use_fake_graphs(monkeypatch)
    rollouts = []
    for kind in ("host", "device"):
        vec = shoal.make(env, 4, max_steps=6)
        trainer = make_trainer(GpuLikeVec(vec) if kind == "device" else vec, nn={"hidden": 8}, train={"horizon": 8})
        trainer.start()
        trainer.collect()
        parts = [(x.rollout.obs[0], x.rollout.actions, x.rollout.rewards) for x in trainer.learners]
        rollouts.append([part.clone() for learner in parts for part in learner])
        trainer.close()
    for host, device in zip(*rollouts):
        torch.testing.assert_close(host, device, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("squash", ["none", "tanh"])
def test_a_device_scales_numbers_and_keeps_choices(squash):
    head = ActionHead(MIX, squash=squash)
    head.to("cpu")
    actions = torch.tensor([[0.25, 1.0, 2.0], [3.0, 0.0, 1.0]])
    numbers, choices = head.to_env(actions.numpy())
    rows = np.concatenate([numbers, choices], 1)
    np.testing.assert_allclose(head.to_device(actions).numpy(), rows, rtol=1e-6)


@pytest.mark.parametrize("env", [UNLIKE, MIXTURE])
def test_the_kernels_compile_without_a_toolkit(env, tmp_path, monkeypatch):
    pytest.importorskip("cuda.bindings")
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path))
    assert cuda.cubin(build.Source.env(Path(env)), "sm_90")[:4] == b"\x7fELF"


def test_a_device_takes_a_tuple_of_tensors(monkeypatch):
    vec = make_cuda_vec_on_host(monkeypatch, lib.load(Path(MIXTURE)), 2)
    taken = []
    launch = vec.kernels.launch

    def fake(name, count, *arguments, **sizes):
        if name.startswith("take"):
            taken.append((name, count))
        else:
            launch(name, count, *arguments, **sizes)

    vec.kernels.launch = fake
    vec.reset(seed=0)
    vec.step((torch.zeros(4, 1), torch.zeros(4, 2, dtype=torch.int64)))
    assert taken == [("take_f32", 12)]
