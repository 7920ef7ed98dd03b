"""Training as users run it: env options, policies, masks, opponents, evaluation, resuming, settings of the process."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import shoal
from shoal import evaluate
from shoal.errors import CheckpointError, ConfigError, TrainingError
from shoal.train import Trainer, load_player, make_vec, options_for, train
from shoal.train.envs import make_evaluation_vec
from shoal.train.options import as_tables, decode, encode

from .envs import Counted, Masked
from .training import STEPS, cut, tiny, train_tiny

torch.set_num_threads(1)


# ---- env options: what a run was trained on is what is evaluated and resumed ----


class Ranged(gymnasium.Env):
    """Pays what its option says: a tuple, a dict, an array, or None."""

    observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)

    def __init__(self, z_range=(0.0, 0.0), table=None, numbers=None, function=None):
        assert isinstance(z_range, tuple)
        assert numbers is None or isinstance(numbers, np.ndarray)
        more = 0.0 if table is None else table["deep"]["value"]
        self.pays = z_range[1] - z_range[0] + more + (0.0 if numbers is None else float(numbers.sum()))
        self.pays = self.pays if function is None else function(self.pays)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), self.pays, self.steps == 4, False, {}


VALUES = [
    (0.2, 1.0),
    {"deep": {"value": 3, "pair": (1, 2)}},
    None,
    [1, "two", (3.0,)],
    {1: "one", (2, 3): None},
    True,
    7,
    "text",
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_env_options_are_read_as_they_were_written(value, tmp_path):
    tables = as_tables(options_for("", {"env": {"option": value}}))
    from shoal import config

    (tmp_path / "config.toml").write_text(config.write_toml(tables))
    again = options_for("", config.read_toml(tmp_path / "config.toml")).env["option"]
    assert again == value
    assert type(again) is type(value)


def test_arrays_are_read_as_they_were_written():
    array = np.array([[1.5, 2.5]], np.float32)
    again = decode(encode({"a": array}))["a"]
    assert np.array_equal(again, array)
    assert again.dtype == array.dtype


def test_a_run_is_evaluated_and_resumed_on_the_env_that_it_was_trained_on(tmp_path):
    gymnasium.register("Ranged-v0", entry_point=Ranged)
    env = {"z_range": (0.2, 1.0), "table": {"deep": {"value": 4.0}}, "numbers": np.array([0.2])}
    try:
        tables: dict[str, Any] = {"vec": {"num_envs": 4, "backend": "serial"}, "eval": {"episodes": 4}}
        run = train_tiny("gymnasium:Ranged-v0", tmp_path, env=env, **tables)
        assert run.summary["eval"]["return"] == pytest.approx(20.0)
        player, kwargs = load_player(run)
        score = evaluate.play(lambda **more: shoal.make(**kwargs, **more), player, 4)
        assert score.mean == pytest.approx(20.0)
        resumed = train("gymnasium:Ranged-v0", resume=cut(run, 3), runs_folder=tmp_path, console="off")
        assert resumed.summary["eval"]["return"] == pytest.approx(20.0)
    finally:
        gymnasium.registry.pop("Ranged-v0")


def test_an_env_option_that_cannot_be_saved_is_asked_for_again(tmp_path):
    gymnasium.register("Ranged-v0", entry_point=Ranged)
    try:
        tables: dict[str, Any] = {"vec": {"num_envs": 2, "backend": "serial"}}
        run = train_tiny("gymnasium:Ranged-v0", tmp_path, env={"function": lambda x: x + 1.0}, **tables)
        assert run.facts["unsaved_env_options"] == ["function"]
        with pytest.raises(ConfigError, match=r"env options function, which are objects.*env=\{'function': \.\.\.\}"):
            load_player(run)
        halted = cut(run, 2)
        with pytest.raises(ConfigError, match="Pass them again"):
            train("gymnasium:Ranged-v0", resume=halted, runs_folder=tmp_path, console="off")
        env = {"function": lambda x: x + 1.0}
        assert train("gymnasium:Ranged-v0", resume=halted, runs_folder=tmp_path, console="off", env=env).summary
    finally:
        gymnasium.registry.pop("Ranged-v0")


# ---- policies ----


class Own(nn.Module):
    """A custom policy with dropout, batch statistics, and a learned state that episodes start from."""

    def __init__(self, space, actions, state=False):
        super().__init__()
        features = int(np.prod(space.shape))
        self.norm, self.drop = nn.BatchNorm1d(features), nn.Dropout(0.5)
        self.body, self.actor, self.critic = nn.Linear(features, 8), nn.Linear(8, int(actions.n)), nn.Linear(8, 1)
        self.modes: list[bool] = []

    def forward(self, obs):
        self.modes.append(self.training)
        hidden = torch.relu(self.body(self.drop(self.norm(obs.flatten(1).float()))))
        return self.actor(hidden), self.critic(hidden)


class Remembers(nn.Module):
    """Its state counts steps from 5 on; one tensor, not a tuple."""

    def __init__(self, space, actions):
        super().__init__()
        self.actor = nn.Linear(1, int(actions.n))
        self.critic = nn.Linear(1, 1)
        self.counts: list[Any] = []

    def initial_state(self, rows):
        return torch.full((rows, 1), 5.0)

    def forward(self, obs, state):
        assert isinstance(state, torch.Tensor)
        self.counts.append(state.detach().clone())
        return self.actor(state), self.critic(state), state + 1.0


def test_one_module_for_several_policies_is_refused():
    """All learners would share it, and all but the last would optimize memory that it no longer uses."""
    probe = shoal.make("forage", 1)
    policy = Own(probe.single_observation_space, spaces.Discrete(2))
    options = options_for("", tiny(nn={"policies": "per_agent"}))
    with pytest.raises(ConfigError, match=r"one module, but 4 policies are trained.*policy=lambda"):
        Trainer("forage", options, policy=policy)
    vacuum = options_for("", tiny(nn={"policies": "per_agent"}))
    shared = Own(shoal.make("vacuum", 1).single_observation_space, spaces.Discrete(5))
    with pytest.raises(ConfigError, match="same module for several policies"):
        Trainer("vacuum", vacuum, policy=lambda space, actions: shared)


def test_policies_of_a_function_start_from_different_weights_and_all_learn():
    options = options_for("", tiny(nn={"policies": "per_agent"}))
    with contextlib.closing(Trainer("vacuum", options, policy=Own)) as t:
        before = [learner.weights.detach().clone() for learner in t.learners]
        assert len({weights.sum().item() for weights in before}) == 4
        t.iterate()
        for learner, actor, weights in zip(t.learners, t.actors, before):
            assert not torch.equal(learner.weights, weights)
            first = next(actor.policy.parameters())
            assert first.data_ptr() == learner.weights.data_ptr()  # what acts is what is trained


def test_policies_act_in_evaluation_mode_and_learn_in_training_mode():
    """Dropout is off where actions are chosen, and batch statistics change only where minibatches are learned."""
    with contextlib.closing(Trainer("cartpole", options_for("", tiny()), policy=Own)) as t:
        policy = t.actors[0].policy
        t.start()
        policy.modes.clear()
        seen = policy.norm.running_mean.clone()
        t.collect()
        assert policy.modes
        assert not any(policy.modes)
        assert torch.equal(policy.norm.running_mean, seen)
        policy.modes.clear()
        t.learn()
        assert any(policy.modes)
        assert not torch.equal(policy.norm.running_mean, seen)
        seen = policy.norm.running_mean.clone()
        evaluate.play(lambda **more: shoal.make("cartpole", **more), t.player(greedy=True), 4)
        assert torch.equal(policy.norm.running_mean, seen)
        assert policy.training


def test_episodes_start_from_the_initial_state_in_training_and_in_evaluation():
    env, tables = {"max_steps": 3}, tiny(train={"horizon": 8, "segment": 8})
    with contextlib.closing(Trainer("cartpole", options_for("", tables, {"env": env}), policy=Remembers)) as t:
        policy = t.actors[0].policy
        t.start()
        policy.counts.clear()
        t.collect()
        counts = torch.stack(policy.counts[:8])[:, :, 0]
        assert counts[0].eq(5.0).all()
        assert set(counts.unique().tolist()) == {5.0, 6.0, 7.0}  # never zero, and back to 5 after 3 steps
        played = t.learners[0].rollout.logits.clone()
        rollout = t.learners[0].rollout
        obs = rollout.observations([leaf[:-1].flatten(0, 1) for leaf in rollout.obs])
        replayed, _ = t.actors[0].unroll(obs, tuple(s[0] for s in rollout.starts), rollout.resets())
        torch.testing.assert_close(replayed.view_as(played), played)
        policy.counts.clear()
        evaluate.play(lambda **more: shoal.make("cartpole", **env, **more), t.player(greedy=True), 4)
        assert set(torch.cat(policy.counts).unique().tolist()) == {5.0, 6.0, 7.0}


def test_compile_compiles_acting_and_learning(monkeypatch):
    """torch.compile(policy) compiles its call alone: segments were learned from without it."""
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda call, **options: compiled.append(call) or call)
    tables = tiny(train={"compile": True}, nn={"core": "lstm", "hidden": 16})
    with contextlib.closing(Trainer("cartpole", options_for("", tables))) as t:
        t.iterate()
        policy = t.actors[0].policy
    assert compiled == [policy, policy.unroll]


def test_a_run_with_a_custom_policy_says_so_when_it_is_loaded(tmp_path):
    run = train_tiny("cartpole", tmp_path, policy=lambda *spaces: Own(*spaces))
    with pytest.raises(ConfigError, match=r"trained with a custom policy \(<lambda>\).*weights.safetensors"):
        load_player(run)


# ---- masks of Python envs ----


@pytest.mark.parametrize("algo", ["ppo", "dqn", "pqn"])
@pytest.mark.parametrize("backend", ["serial", "process"])
def test_masks_of_python_envs_are_used_in_training(algo, backend):
    own = {"train_frequency": 8, "replay_size": 640, "replay_start": 8} if algo == "dqn" else {"horizon": 8}
    tables = {"device": "cpu", "algo": algo, "vec": {"num_envs": 4, "backend": backend}, "train": own}
    with contextlib.closing(Trainer(Masked, options_for("", tables))) as t:
        for _ in range(3):
            t.iterate()
            assert t.learners[0].rollout.rewards.eq(1.0).all()  # no illegal action was taken
        score = evaluate.play(make_evaluation_vec(Masked, t.options, 4, 0), t.player(greedy=False), 8)
        assert score.mean == 5.0


def test_a_row_without_a_mask_may_do_anything():
    tables = {
        "device": "cpu",
        "vec": {"num_envs": 4, "backend": "serial"},
        "train": {"horizon": 16},
        "env": {"some": True},
    }
    with contextlib.closing(Trainer(Masked, options_for("", tables))) as t:
        t.iterate()
        masks = t.learners[0].rollout.masks[:-1]
        allowed = masks.sum(-1).float().mean(0)
        assert sorted(set(allowed.tolist())) == [1.0, 4.0]
        assert t.learners[0].rollout.rewards.eq(1.0).all()


# ---- opponents ----


@pytest.fixture(scope="module")
def duel(tmp_path_factory):
    return train_tiny("vacuum", tmp_path_factory.mktemp("duel"), env={"preset": "duel-stun"})


def test_opponents_act_in_evaluation_as_they_do_in_training(duel):
    """They sample in both. The learner is greedy in evaluation."""
    options = options_for("", tiny(env={"preset": "duel-stun"}, opponents=f"1={duel.folder}"))
    with contextlib.closing(Trainer("vacuum", options)) as t:
        assert t.player(greedy=True).greedy == [True, False]
    run = train_tiny("vacuum", duel.folder.parents[1], env={"preset": "duel-stun"}, opponents=f"1={duel.folder}")
    player, _ = load_player(run)
    assert player.greedy == [True, False]


@pytest.mark.parametrize(
    ("opponents", "env", "message"),
    [
        ("7=flee", {}, r"--opponents 7=flee: the env has agents 0 to 3"),
        ("3=flee", {"preset": "duel-stun"}, r"--opponents 3=flee: the env has agents 0 to 1"),
        ("8=flee", {"robots": 8}, r"--opponents 8=flee: the env has agents 0 to 7"),
        ("3=chase", {}, r"--opponents 3=chase:.*robots: .*seek"),
        (
            "3=seek",
            {"robot_3": "flee"},
            r"--opponents 3=seek and --env.robot-3 flee name different players for agent 3",
        ),
        ("0=seek,1=seek,2=seek,3=seek", {}, "names all 4 agents"),
    ],
)
def test_mistakes_about_opponents_name_what_is_wrong(opponents, env, message):
    with pytest.raises(ConfigError, match=message):
        Trainer("vacuum", options_for("", tiny(opponents=opponents, env=env)))


def test_opponents_sit_in_the_seats_that_consts_add():
    with contextlib.closing(Trainer("vacuum", options_for("", tiny(opponents="5=seek", env={"robots": 8})))) as t:
        assert t.roles[0].agents == (0, 1, 2, 3, 4, 6, 7)


def test_returns_against_opponents_count_each_step_once_with_surplus_envs():
    """A row that is late is in two rollouts: only the one in which it is full counts."""
    from shoal.algos.rollout import Rollout

    options = options_for("", tiny())
    with contextlib.closing(Trainer("cartpole", options)) as t:
        rollout: Rollout = t.learners[0].rollout
        rollout.rewards.fill_(1.0)
        rollout.dones.zero_()
        carry = torch.zeros(rollout.rows)
        rollout.ready = torch.tensor([0, 1])
        returns = rollout.running_returns(1.0, carry)
        assert carry[:2].eq(rollout.horizon).all()
        assert carry[2:].eq(0.0).all()
        assert returns[:, 2:].eq(0.0).all()


# ---- evaluation ----


def test_evaluation_makes_no_more_python_envs_than_training(tmp_path):
    Counted.now = Counted.most = 0
    run = train_tiny(Counted, tmp_path, vec={"num_envs": 3, "backend": "serial"}, eval={"episodes": 10})
    assert run.summary["eval"]["episodes"] == 10
    assert Counted.most == 6
    assert Counted.now == 0


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_evaluation_steps_python_envs_as_training_does(backend):
    vec = {"num_envs": 4, "backend": backend, "timeout_s": 77.5, "on_crash": "restart"}
    options = options_for("", {"vec": vec, "device": "cpu"})
    with contextlib.closing(make_evaluation_vec(Counted, options, 100, 5)) as made:
        assert made.backend == backend
        assert made.num_envs == 4
        if backend == "process":
            assert made.timeout_s == 77.5
            assert made.on_crash == "restart"


class Coin(gymnasium.Env):
    """Pays for the action that its last observation does not tell: only sampling earns anything."""

    observation_space, action_space = spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps, self.last = 0, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        reward = float(action != self.last)
        self.steps, self.last = self.steps + 1, int(action)
        return np.zeros(1, np.float32), reward, self.steps == 20, False, {}


def test_greedy_and_sampled_play_are_both_evaluated(tmp_path):
    run = train_tiny(Coin, tmp_path, vec={"num_envs": 4, "backend": "serial"}, eval={"episodes": 20})
    modes = run.summary["eval"]["modes"]
    assert modes["greedy"]["return"] <= 1.0
    assert modes["sampled"]["return"] > 5.0
    assert run.summary["eval"]["return"] == modes["greedy"]["return"]
    records = [record for record in run.metrics() if "eval/return_sampled" in record]
    assert records[-1]["eval/return_sampled"] == modes["sampled"]["return"]


# ---- resuming ----


DQN = {"train_frequency": 4, "replay_size": 3200, "replay_start": 256, "batch_size": 16, "total_steps": 4000}


def test_dqn_resumed_with_other_envs_fills_its_replay_again(tmp_path):
    """Half a replay was restored, and learning began at once, on nothing."""
    tables = tiny(algo="dqn") | {"train": DQN}
    run = train("cartpole", runs_folder=tmp_path, console="off", **tables)
    from shoal import checkpoint

    files, meta = checkpoint.load(run.last)
    options = options_for("cartpole", run.config, {"vec": {"num_envs": 8}})
    with contextlib.closing(Trainer("cartpole", options)) as t:
        t.restore(files, meta)
        learner = t.learners[0]
        assert int(learner.replay.stored) == 0
        assert int(learner.replay.counts.sum()) == 0
        assert not learner.replay.actions.any()
        assert int(learner.updates) > 0  # the network, its target and its counters are those of the run
        before = int(learner.updates)
        for _ in range(7):
            t.iterate()
        assert int(learner.updates) == before  # 224 of 256 transitions
        t.iterate()
        assert int(learner.updates) > before


FORGED = {
    "heads": lambda x: x.fill_(1 << 40),
    "counts": lambda x: x.fill_(-7),
    "kinds": lambda x: x.fill_(200),
    "actions": lambda x: x.fill_(250),
    "stored": lambda x: x.fill_(-1),
    "priorities": lambda x: x.fill_(-1.0),
    "sums": lambda x: x.fill_(torch.nan),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_replay_is_refused(tmp_path, name):
    """C would read and write where its indices point."""
    train_options = DQN | ({"priority": 0.5} if name in ("priorities", "sums") else {})
    options = options_for("cartpole", tiny(algo="dqn") | {"train": train_options})
    with contextlib.closing(Trainer("cartpole", options)) as t:
        for _ in range(6):
            t.iterate()
        files = {part: {k: v.clone() for k, v in tensors.items()} for part, tensors in t.state().items()}
        meta = {**t.counters(), "step": t.step}
    FORGED[name](files["state"][f"0.replay.{name}"])
    with (
        contextlib.closing(Trainer("cartpole", options)) as t,
        pytest.raises(CheckpointError, match="replay is damaged"),
    ):
        t.restore(files, meta)


def test_a_checkpoint_with_one_stream_per_policy_is_refused_with_a_reason():
    with contextlib.closing(Trainer("cartpole", options_for("", tiny()))) as t:
        t.iterate()
        files, meta = t.state(), {**t.counters(), "step": t.step}
        stream = files["state"].pop("0.stream.actions")
        files["state"].pop("0.stream.minibatches")
        files["state"]["0.generator"] = stream
        with pytest.raises(CheckpointError, match=r"before 0.2.*'shoal eval'.*Start a new run"):
            t.restore(files, meta)


def test_a_run_that_is_being_trained_is_not_resumed(tmp_path):
    run = cut(train_tiny("cartpole", tmp_path), 3)
    with run.lock(), pytest.raises(ConfigError, match="being trained"):
        train("cartpole", resume=run, runs_folder=tmp_path, console="off")
    assert train("cartpole", resume=run, runs_folder=tmp_path, console="off").summary["status"] == "finished"


# ---- the process ----


def test_torch_is_left_as_it_was(tmp_path, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    torch.set_num_threads(2)
    flags = (torch.backends.cudnn, "deterministic"), (torch.backends.cuda.matmul, "allow_tf32")
    before = [getattr(place, name) for place, name in flags]
    try:
        train_tiny("cartpole", tmp_path, vec={"torch_threads": 1})
        assert torch.get_num_threads() == 2
        monkeypatch.setattr("shoal.train.trainer.load_opponents", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Trainer("cartpole", options_for("", tiny()))
        assert torch.get_num_threads() == 2
        from shoal.train.trainer import TorchSettings, use_deterministic_kernels

        settings = TorchSettings()
        use_deterministic_kernels("tf32")
        assert torch.backends.cudnn.deterministic
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"]
        settings.restore()
        assert [getattr(place, name) for place, name in flags] == before
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    finally:
        torch.set_num_threads(1)


def test_a_gpu_without_what_kernels_need_steps_envs_on_the_cpu(monkeypatch):
    """--device auto on a machine without cuda-bindings: the learner takes the GPU, the envs take threads."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("shoal.train.envs.gpu_backend_available", lambda: False)
    with contextlib.closing(make_vec("cartpole", options_for("", {"vec": {"num_envs": 2048}}))) as vec:
        assert vec.backend == "threads"


# ---- messages ----


def test_a_run_that_ends_later_than_asked_says_so(tmp_path, capfd):
    train_tiny("cartpole", tmp_path, console="lines", train={"total_steps": STEPS + 1})
    text = " ".join(capfd.readouterr().out.split())
    assert re.search(rf"one iteration is {STEPS} steps.*ends at {2 * STEPS} steps, not {STEPS + 1}", text)


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_failure_names_the_last_checkpoint_only_where_there_is_one(tmp_path, has_checkpoint):
    save = {"every": 1 if has_checkpoint else 0}
    with pytest.raises(TrainingError) as caught:
        train_tiny("cartpole", tmp_path, save=save, policy=Exploding)
    text = str(caught.value)
    assert ("The last checkpoint is of step" in text) == has_checkpoint
    assert ("There is no checkpoint." in text) != has_checkpoint


class Exploding(nn.Module):
    """Its values become infinite in the third iteration."""

    def __init__(self, space, actions):
        super().__init__()
        self.actor, self.critic = nn.Linear(4, int(actions.n)), nn.Linear(4, 1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, obs):
        self.calls += torch.is_grad_enabled()
        factor = torch.where(self.calls > 9, torch.inf, 1.0)
        return self.actor(obs), self.critic(obs) * factor
