"""DQN and PQN: known Q-values, masks, agents, epsilon, exact resume, faults."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import shoal
from shoal import checkpoint
from shoal.algos import dqn, pqn, q
from shoal.algos.dqn import DQN
from shoal.algos.pqn import PQN
from shoal.algos.replay import END, LAST
from shoal.cli.train import parse
from shoal.errors import ConfigError, TrainingError
from shoal.nn.policy import Net
from shoal.nn.qnet import QHead, QNet
from shoal.train import load_player, options_for, train
from tests.training import ENVS, contents, cut, make_trainer, tiny, tiny_trainer, train_tiny, training

CHAIN = str(Path(__file__).parent / "chain.h")

# ---- what is learned ----


def known_values(gamma=0.9):
    """Q of the chain, by value iteration."""
    q = np.zeros((5, 2))
    for _ in range(500):
        best = q.max(1)
        for place in range(5):
            q[place, 0] = gamma * best[max(place - 1, 0)] + (0.09 if place == 0 else 0.0)
            q[place, 1] = 1.0 if place == 4 else gamma * best[place + 1]
    return q


@pytest.mark.parametrize(
    ("algo", "options"),
    [
        ("dqn", {}),
        ("dqn", {"double": False, "loss": "mse", "target_tau": 0.0, "target_every": 10}),
        ("dqn", {"dueling": True, "priority": 0.5}),
        ("dqn", {"distribution": "c51", "value_low": -0.2, "value_high": 1.4, "num_atoms": 33}),
        ("dqn", {"distribution": "quantile", "num_atoms": 8}),
        ("pqn", {}),
        ("pqn", {"dueling": True, "layer_norm": False}),
    ],
)
def test_the_chains_values_are_learned(algo, options):
    """To 1 %, by random play. Where cut off games counted as over, the first place would be worth 0.4, not 0.9."""
    base = {"gamma": 0.9, "epsilon_start": 1.0, "epsilon_end": 1.0, "learning_rate": 5e-3, "schedule": "linear"}
    own = {
        "dqn": {"batch_size": 64, "gradient_steps": 8, "target_tau": 0.1, "replay_size": "20k", "total_steps": "32k"},
        "pqn": {"q_lambda": 0.0, "horizon": 8, "minibatches": 2, "epochs": 4, "total_steps": "60k"},
    }
    setup = {"vec": {"num_envs": 64}, "nn": {"hidden": 32, "layers": 1}}
    t = make_trainer(CHAIN, **setup, algo=algo, train={**base, **own[algo], **options})
    while not t.is_done:
        t.iterate()
    with torch.no_grad():
        found = t.actors[0].step(torch.eye(5), ())[0]
    t.close()
    np.testing.assert_allclose(found, known_values(), rtol=0.01)


class Toll(gymnasium.Env):
    """Each step costs 1, and one choice of three is allowed. A time limit ends an episode after four steps.

    `last`: what the info of the last step has: the mask that follows (`own`), one that allows nothing, or none.
    """

    observation_space, action_space = spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(3)

    def __init__(self, last: str = "own") -> None:
        self.last = last

    def _info(self) -> dict[str, Any]:
        if self.tick == 4 and self.last != "own":
            return {"action_mask": np.zeros(3, np.int8)} if self.last == "zeros" else {}
        return {"action_mask": np.eye(3, dtype=np.int8)[1 if self.tick == 4 else 0]}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.tick = 0
        return np.ones(1, np.float32), self._info()

    def step(self, action: Any) -> Any:
        assert action == 0
        self.tick += 1
        return np.ones(1, np.float32), -1.0, False, self.tick == 4, self._info()


@pytest.mark.parametrize("algo", ["dqn", "pqn"])
def test_a_time_limit_bootstraps_from_allowed_choices_alone(algo):
    """A choice that is never allowed keeps the value of a new network, 0: with it, costs would seem to end."""
    own = {
        "dqn": {"batch_size": 64, "gradient_steps": 8, "target_tau": 0.1, "replay_size": "5k", "double": False},
        "pqn": {"q_lambda": 0.0, "horizon": 8, "minibatches": 2, "epochs": 4},
    }
    base = {"gamma": 0.5, "learning_rate": 5e-3, "schedule": "linear", "total_steps": "8k"}
    setup = {"vec": {"num_envs": 16, "backend": "serial"}, "nn": {"hidden": 16, "layers": 1}, "env": {"last": "none"}}
    with training(Toll, **setup, algo=algo, train={**base, **own[algo]}) as trainer:
        while not trainer.is_done:
            trainer.iterate()
        with torch.no_grad():
            found = trainer.actors[0].step(torch.ones(1, 1), ())[0][0, 0]
    assert float(found) == pytest.approx(-2.0, abs=0.05)


@pytest.mark.parametrize(("last", "allowed"), [("own", 1), ("zeros", 0), ("none", 0)])
@pytest.mark.parametrize("algo", ["dqn", "pqn"])
def test_the_mask_of_a_last_observation_is_the_envs_or_that_of_the_step_before(algo, last, allowed):
    with contextlib.closing(
        tiny_trainer(Toll, algo=algo, vec={"num_envs": 3, "backend": "serial"}, env={"last": last})
    ) as trainer:
        trainer.iterate()
        rollout = trainer.learners[0].rollout
        masks = [rollout.truncations.masks_of(one) for one in rollout.truncations]
        assert masks
        for mask in masks:
            assert mask.tolist() == [[int(choice == allowed) for choice in range(3)]] * 3


def test_n_step_learns_from_what_is_further_away():
    """After the same few steps the first places know of the goal by n steps, and not yet by one."""

    def far(n):
        more = {"n_step": n, "total_steps": 64 * 4 * 8, "target_every": 100000, "replay_start": 64, "gamma": 1.0}
        t = tiny_trainer(CHAIN, algo="dqn", train=more | {"epsilon_start": 1.0}, vec={"num_envs": 64})
        while not t.is_done:
            t.iterate()
        with torch.no_grad():
            value = float(t.actors[0].step(torch.eye(5), ())[0][2, 1])
        t.close()
        return value

    assert far(1) < 0.1 < 0.25 < far(4)


@pytest.mark.parametrize("algo", ["dqn", "pqn"])
def test_squared_is_solved(algo, tmp_path):
    own = {
        "dqn": {"total_steps": "120k", "batch_size": 256, "gradient_steps": 4, "target_tau": 0.02, "n_step": 3},
        "pqn": {"total_steps": "400k", "horizon": 16, "minibatches": 4},
    }
    common = {"gamma": 0.95, "learning_rate": 2e-3, "schedule": "linear", "epsilon_fraction": 0.4}
    setup = {"vec": {"num_envs": 128}, "nn": {"hidden": 64}, "device": "cpu", "env": {"size": 3}}
    run = train("squared", algo=algo, train=common | own[algo], runs_folder=tmp_path, console="off", **setup)
    assert run.summary["eval"]["return"] == pytest.approx(1 - 5 / 64)


# ---- many agents ----


def test_networks_of_agents_are_one_product():
    """The batched network of three agents is three networks, each by itself."""
    torch.manual_seed(0)
    space, net = spaces.Box(-1, 1, (4,), np.float32), Net(hidden=16)
    whole = QNet(space, 3, net, agents=3, dueling=True, layer_norm=True)
    obs = torch.randn(7 * 3, 4)
    found = whole(obs)[0]
    for agent in range(3):
        single = QNet(space, 3, net, dueling=True, layer_norm=True)
        state = {k: v if k == "atoms" else v[agent : agent + 1] for k, v in whole.state_dict().items()}
        single.load_state_dict(state)
        torch.testing.assert_close(single(obs[agent::3])[0], found[agent::3])


def test_agents_networks_learn_as_if_alone():
    """With networks and replays of their own, an agent's gradient is that of its own batch: a slow twin of the loss."""
    options = {"policy": "per-agent", "replay": "per-agent", "loss": "mse", "max_grad_norm": 0.0}
    t = tiny_trainer("vacuum", algo="dqn", agents=4, env={"preset": "classic-1v3"}, train=options)
    for _ in range(3):
        t.iterate()
    learner = t.learners[0]
    agents = learner.actor.agents
    assert agents == 4
    batch = next(iter(dqn.batches(learner)))
    learner.weights.grad.zero_()
    _, _, _, slopes, pull = dqn.td_errors(learner, batch)
    counted = batch.weights > 0
    pull(slopes * counted.view(-1, 1) / counted.sum() * agents)
    whole = {n: p.grad.clone() for n, p in learner.actor.policy.named_parameters()}
    for agent in range(agents):
        rows = torch.arange(agent, len(slopes), agents)
        alone, target = (single(p, agent, t) for p in (learner.actor.policy, learner.target_policy))
        with torch.no_grad():
            known = alone(batch.next_obs[0][rows])[0]
            best = torch.where(batch.next_masks[rows] != 0, known, -math.inf).argmax(1, keepdim=True)
            later = target(batch.next_obs[0][rows])[0].gather(1, best).squeeze(1)
            goals = batch.returns[rows] + batch.discounts[rows] * later
        chosen = alone(batch.obs[0][rows])[0].gather(1, batch.actions[rows].unsqueeze(1)).squeeze(1)
        mine = counted[rows]
        (0.5 * (chosen - goals)[mine].square().sum() / counted.sum() * agents).backward()
        for name, p in alone.named_parameters():
            torch.testing.assert_close(p.grad[0], whole[name][agent], rtol=1e-4, atol=1e-6)
    t.close()


def single(policy, agent, t):
    role, net = t.roles[0], t.options.nn
    alone = QNet(role.observation_space, policy.choices, net)
    alone.load_state_dict({k: v if k == "atoms" else v[agent : agent + 1] for k, v in policy.state_dict().items()})
    return alone


def test_agents_that_are_out_are_never_stored():
    t = tiny_trainer("vacuum", algo="dqn", agents=4, env={"preset": "classic-1v3"}, train={"epsilon_end": 1.0})
    dead = stored = ends = 0
    for _ in range(6):
        t.iterate()
        rollout = t.learners[0].rollout
        dead += int((~rollout.alive[:-1]).sum())
        stored += int(rollout.alive[:-1].sum())
        ends += int((rollout.dones & rollout.alive[:-1]).sum())
    replay = t.learners[0].replay
    assert dead > 50
    assert int(replay.stored) == stored
    assert int((replay.kinds == END).sum()) == ends
    places = torch.cat([replay.obs[0][b : b + c] for b, c in zip(replay.base.tolist(), replay.counts.tolist())])
    assert len(places) == stored
    assert (places != 0).any(1).all()  # what an agent sees that is out is zeros
    assert float(t.learners[0].games) == ends / 4
    t.close()


@pytest.mark.parametrize("replay", ["shared", "per-agent"])
@pytest.mark.parametrize("policy", ["shared", "per-agent"])
def test_every_batch_is_of_the_size_and_agents_it_says(policy, replay):
    t = tiny_trainer(
        "vacuum", algo="dqn", agents=4, env={"preset": "classic-1v3"}, train={"policy": policy, "replay": replay}
    )
    t.iterate()
    learner = t.learners[0]
    batch = next(iter(dqn.batches(learner)))
    assert len(batch.index) == (32 * 4 if policy == "per-agent" else 32)
    owner = batch.index // (learner.replay.envs * learner.replay.capacity)
    expected = torch.arange(len(batch.index)) % 4
    assert bool((owner == expected).all()) == (replay == "per-agent")
    t.close()


# ---- acting ----


def test_epsilon_greedy_is_uniform_over_what_is_allowed():
    head = QHead(spaces.Discrete(4), epsilon=0.3)
    values = torch.tensor([5.0, 1.0, 2.0, 9.0]).expand(40000, 4)
    masked = head.mask(values, torch.tensor([1, 1, 1, 0], dtype=torch.int8).expand(40000, 4))
    noise = torch.empty(40000, head.num_noise)
    head.draw(noise, torch.Generator().manual_seed(0))
    share = torch.bincount(head.sample(masked, noise).flatten(), minlength=4) / 40000
    torch.testing.assert_close(share, torch.tensor([0.8, 0.1, 0.1, 0.0]), rtol=0, atol=0.01)
    assert head.greedy(masked).unique().tolist() == [0]


def test_masks_hold_in_play_and_in_targets():
    """A robot that is stunned can only stay: no row does anything else, and targets count only what is allowed."""
    t = tiny_trainer(
        "vacuum", algo="dqn", env={"preset": "duel-stun"}, agents=4, train={"epsilon_end": 1.0, "double": False}
    )
    for _ in range(8):
        t.iterate()
        rollout = t.learners[0].rollout
        allowed = rollout.masks[:-1].gather(-1, rollout.actions).squeeze(-1)
        assert bool(allowed[rollout.alive[:-1]].all())
    learner = t.learners[0]
    batch = next(iter(dqn.batches(learner)))
    only = torch.zeros_like(batch.next_masks)
    only[:, 3] = 1
    with torch.no_grad():
        goals = dqn.td_errors(learner, dataclasses.replace(batch, next_masks=only))[1]
        later = learner.target_policy(batch.next_obs[0])[0][:, 3]
    torch.testing.assert_close(goals, batch.returns + batch.discounts * later)
    t.close()


@pytest.mark.parametrize("algo", ["dqn", "pqn"])
def test_epsilon_falls_as_asked(algo):
    """Linearly over a part of the run, or by a factor for every game that ends, down to the least."""
    linear = {"epsilon_start": 0.9, "epsilon_end": 0.1, "epsilon_fraction": 0.5}
    t = tiny_trainer("cartpole", algo=algo, train=linear)
    seen = []
    while not t.is_done:
        seen.append(float(t.actors[0].head.epsilon))
        t.iterate()
    t.close()
    np.testing.assert_allclose(seen, [0.9, 0.9, 0.9 - 0.8 / 3, 0.9 - 1.6 / 3, 0.1, 0.1], rtol=1e-5)
    t = tiny_trainer("cartpole", algo=algo, env={"max_steps": 6}, train=linear | {"epsilon_decay": 0.99})
    while not t.is_done:
        t.iterate()
    games = t.drain()["episode/n"]
    assert games >= 32
    np.testing.assert_allclose(float(t.actors[0].head.epsilon), 0.9 * 0.99**games, rtol=1e-4)
    t.close()


# ---- runs ----

EXACT = {
    "dqn": ("dqn", "cartpole", {}),
    "dqn, cut off": ("dqn", "cartpole", {"env": {"max_steps": 3}, "train": {"n_step": 3, "target_every": 3}}),
    "dqn, everything": (
        "dqn",
        "squared",
        {
            "train": {"priority": 0.6, "dueling": True, "distribution": "c51", "n_step": 2, "target_tau": 0.1}
            | {"normalize_obs": True, "epsilon_decay": 0.99, "schedule": "cosine"}
        },
    ),
    "dqn, agents": (
        "dqn",
        "vacuum",
        {"agents": 4, "env": {"preset": "classic-1v3"}, "train": {"policy": "per-agent", "replay": "per-agent"}},
    ),
    "dqn, groups": ("dqn", "squared", {"vec": {"backend": "threads", "num_groups": 2, "num_threads": 2}}),
    "pqn": ("pqn", "cartpole", {"env": {"max_steps": 3}, "train": {"normalize_obs": True}}),
    "pqn, agents": ("pqn", "vacuum", {"agents": 4, "env": {"preset": "classic-1v3"}, "train": {"policy": "per-agent"}}),
}


@pytest.mark.parametrize("case", EXACT)
def test_a_resumed_run_is_the_run_that_was_not_stopped(tmp_path, case):
    """Replay, target network, epsilon, priorities: all files of all checkpoints, to the bit."""
    algo, env, more = EXACT[case]
    whole = contents(train_tiny(env, tmp_path / "whole", algo=algo, **more))
    stopped = train_tiny(env, tmp_path / "stopped", algo=algo, **more)
    assert contents(stopped) == whole
    resumed = train(env, resume=cut(stopped, 3).folder, console="off")
    assert resumed.summary["exact"] is True
    found = contents(resumed)
    assert [name for name in whole if whole[name] != found[name]] == []
    assert list(found) == list(whole)


def test_a_checkpoint_holds_the_replay(tmp_path):
    """Else the test above compares too little."""
    run = train_tiny("cartpole", tmp_path, algo="dqn", train={"priority": 0.5, "target_every": 5})
    first, last = (checkpoint.load(run.checkpoints()[k])[0]["state"] for k in (0, -1))
    names = [
        "replay.obs.0",
        "replay.actions",
        "replay.rewards",
        "replay.heads",
        "replay.priorities",
        "target",
        "updates",
    ]
    assert [n for n in names if torch.equal(first[f"0.{n}"], last[f"0.{n}"])] == []
    assert int(last["0.updates"]) == 2 * 6


def test_another_replay_size_does_not_resume(tmp_path):
    run = train_tiny("cartpole", tmp_path, algo="dqn")
    with pytest.raises(shoal.errors.CheckpointError, match="expected"):
        train("cartpole", resume=run.folder, console="off", train={"replay_size": 6400})


@pytest.mark.parametrize("algo", ["dqn", "pqn"])
def test_a_trained_run_is_played_by_its_best_actions(tmp_path, algo):
    run = train_tiny("squared", tmp_path, algo=algo)
    player, about = load_player(run)
    assert about["env"] == "squared"
    player.reset(3)
    obs = np.random.default_rng(0).uniform(-1, 1, (3, 4)).astype(np.float32)
    with torch.no_grad():
        best = player.actors[0].step(torch.from_numpy(obs), ())[0].argmax(1)
    assert player.act(obs, {}).tolist() == best.tolist()


class Own(nn.Module):
    def __init__(self, seen, done):
        super().__init__()
        self.body, self.worth = nn.Linear(seen.shape[0], 8), nn.Linear(8, int(done.n))

    def forward(self, obs):
        q = self.worth(torch.tanh(self.body(obs)))
        return q, q.amax(1)


@pytest.mark.parametrize("algo", ["dqn", "pqn"])
def test_a_network_of_your_own(tmp_path, algo):
    whole = contents(train_tiny("cartpole", tmp_path / "a", algo=algo, policy=Own))
    run = train_tiny("cartpole", tmp_path / "b", algo=algo, policy=Own)
    assert contents(train("cartpole", resume=cut(run, 3).folder, policy=Own, console="off")) == whole
    with pytest.raises(ConfigError, match="logits are the Q-values"):
        train_tiny("cartpole", tmp_path / "c", algo=algo, policy=Own, train={"dueling": True})


class Pair(gymnasium.Env):
    """Python, with a dict to see: press what the byte says."""

    observation_space = spaces.Dict({"a": spaces.Box(0, 255, (2,), np.uint8), "b": spaces.Discrete(3)})
    action_space = spaces.Discrete(2, start=5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 6
        return self.see(), {}

    def see(self):
        self.wanted = int(self.np_random.integers(2))
        return {"a": np.array([255 * self.wanted, 7], np.uint8), "b": 1}

    def step(self, action):
        reward, self.left = float(action - 5 == self.wanted), self.left - 1
        return self.see(), reward, False, self.left == 0, {}


@pytest.mark.parametrize("algo", ["dqn", "pqn"])
@pytest.mark.parametrize("backend", ["serial", pytest.param("process", marks=pytest.mark.slow)])
def test_python_envs_are_learned(tmp_path, algo, backend):
    own = {"dqn": {"train_frequency": 1, "target_every": 20}, "pqn": {"horizon": 8}}[algo]
    more = {"total_steps": 6000, "epsilon_end": 0.02, "learning_rate": 5e-3, "gamma": 0.5} | own
    vec = {"num_envs": 8, "backend": backend, "num_workers": 2 if backend == "process" else 0}
    run = train_tiny(Pair, tmp_path, algo=algo, vec=vec, train=more, eval={"episodes": 10}, save={"every": 0})
    assert run.summary["eval"]["return"] == 6.0


@pytest.mark.parametrize("algo", ["dqn", "pqn"])
def test_pettingzoo_envs_are_trained(tmp_path, algo):
    pytest.importorskip("pettingzoo")
    from tests.envs import DyingAgentsEnv

    run = train_tiny(
        DyingAgentsEnv, tmp_path, algo=algo, vec={"num_envs": 4, "backend": "serial"}, train={"policy": "per-agent"}
    )
    assert run.summary["status"] == "finished"


# ---- options and faults ----


def test_the_options_are_those_of_the_algorithm(capsys):
    assert parse(["cartpole", "--algo", "dqn", "--train.epsilon-decay", "0.998"]).options.train.epsilon_decay == 0.998
    assert isinstance(parse(["cartpole", "--algo=pqn"]).options.train, PQN)
    assert parse(["cartpole"]).options.algo == "ppo"
    with pytest.raises(SystemExit):
        parse(["cartpole", "--algo", "dqn", "--help"])
    told = capsys.readouterr().out
    assert "--train.replay-size" in told
    assert "--train.gae-lambda" not in told


def test_another_algorithm_has_none_of_the_tuned_options_of_ppo():
    assert options_for("cartpole").train.total_steps == 200_000
    for algo, kind in (("dqn", DQN), ("pqn", PQN)):
        options = options_for("cartpole", {"algo": algo})
        assert (options.algo, type(options.train)) == (algo, kind)
    with pytest.raises(ConfigError, match="has no option 'clip'"):
        options_for("cartpole", {"algo": "dqn", "train": {"clip": 0.1}})
    with pytest.raises(ConfigError, match="Did you mean 'dqn'"):
        options_for("cartpole", {"algo": "dqm"})


@pytest.mark.parametrize(
    ("algo", "env", "more", "said"),
    [
        ("dqn", "cartpole", {"train": {"replay_size": "100G"}}, "GB of memory are free. Try --train.replay-size"),
        ("dqn", "cartpole", {"train": {"replay_size": 100}}, "Try --train.replay-size 160"),
        ("dqn", "cartpole", {"train": {"replay_start": 5000}}, "Try --train.replay-start 1592"),
        ("dqn", "cartpole", {"train": {"epsilon_end": 2.0}}, "above 1"),
        ("dqn", "cartpole", {"train": {"n_step": 0}}, "below 1"),
        ("dqn", "cartpole", {"train": {"distribution": "c51", "value_low": 3, "value_high": 2}}, "is not below"),
        ("dqn", "pendulum", {}, "Use --algo ppo"),
        ("dqn", "memory", {"nn": {"core": "lstm"}}, "--nn.core lstm"),
        ("dqn", "forage", {"nn": {"policies": "per_agent"}}, "--train.policy per-agent"),
        ("pqn", "cartpole", {"train": {"minibatches": 1000}}, "Try --train.minibatches 64"),
        ("pqn", "pendulum", {}, "Use --algo ppo"),
    ],
)
def test_mistakes_are_told_before_a_folder_is_made(tmp_path, algo, env, more, said):
    with pytest.raises(ConfigError) as caught:
        train_tiny(env, tmp_path / "runs", algo=algo, **more)
    assert said in str(caught.value)
    assert not (tmp_path / "runs").exists()


NONSENSE = {
    "reward": ("0.09f", "0.0f / (float)s->at"),
    "observation": ("(s->at == k)", "(s->at == k) / (float)(s->at > 0)"),
}


@pytest.mark.parametrize("algo", ["dqn", "pqn"])
@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_of_an_env_ends_the_run_and_is_named(tmp_path, algo, what):
    """Also before learning begins; no checkpoint after it."""
    header = tmp_path / f"bad_{what}.h"
    header.write_text(Path(CHAIN).read_text().replace(*NONSENSE[what]))
    more = {"replay_start": 3000} if algo == "dqn" else {}
    with pytest.raises(TrainingError, match=rf"the {what} of env \d+ is (nan|inf)"):
        train_tiny(str(header), tmp_path / "runs", algo=algo, train=more)
    saved = sorted(tmp_path.glob("runs/*/*/checkpoints/0*"))
    states = [checkpoint.load(path)[0]["state"] for path in saved]
    assert all(bool(torch.isfinite(x).all()) for state in states for x in state.values() if x.is_floating_point())


def test_a_kill_while_saving_leaves_the_checkpoint_before(tmp_path):
    """The replay is written to another name first: a death in the middle leaves what was there, and resumes exactly."""
    whole = contents(train_tiny("cartpole", tmp_path / "whole", algo="dqn"))
    run = cut(train_tiny("cartpole", tmp_path / "killed", algo="dqn"), 4)
    half = run.folder / "checkpoints" / f".{10**6:012d}.4194303.tmp"
    half.mkdir()
    (half / "state.safetensors").write_bytes((run.last / "state.safetensors").read_bytes()[:1000])
    assert contents(train("cartpole", resume=run.folder, console="off")) == whole
    assert not half.exists()


@pytest.mark.parametrize("algo", ["dqn", "pqn"])
def test_scaled_rewards_are_scaled_values(algo):
    """All of them, what comes after a cut off game too."""

    def returns(scale):
        t = tiny_trainer(
            "cartpole", algo=algo, env={"max_steps": 3}, train={"reward_scale": scale, "learning_rate": 0.0}
        )
        for _ in range(3):
            t.iterate()
        learner = t.learners[0]
        if algo == "dqn":
            found = next(iter(dqn.batches(learner))).returns
        else:
            found = pqn.compute_returns(learner)
        t.close()
        return found

    if algo == "dqn":
        torch.testing.assert_close(returns(0.5), 0.5 * returns(1.0))
    else:  # Q-values of an untrained network are what they are
        torch.testing.assert_close(returns(3.0) - returns(2.0), returns(2.0) - returns(1.0), rtol=1e-4, atol=1e-5)
        assert float((returns(2.0) - returns(1.0)).min()) > 0.9


def test_the_dashboard_shows_what_is_learned():
    for algo in ("dqn", "pqn"):
        t = tiny_trainer("cartpole", algo=algo)
        for _ in range(3):
            t.iterate()
        shown = {name for name in t.drain() if name in t.algorithm.metrics}
        t.close()
        wanted = {"loss/q", "q_played", "epsilon", "grad_norm"}
        assert shown == wanted | ({"replay_fill"} if algo == "dqn" else set())


@pytest.mark.parametrize("algo", ["dqn", "pqn"])
def test_a_run_may_be_limited_by_episodes(tmp_path, algo):
    run = train_tiny(
        "cartpole", tmp_path, algo=algo, env={"max_steps": 4}, train={"num_episodes": 20, "total_steps": "1M"}
    )
    games = sum(record.get("episode/n", 0) for record in run.metrics())
    assert 20 <= games < 20 + ENVS  # whole rollouts of four steps
    assert run.summary["status"] == "finished"


@pytest.mark.parametrize("kind", ["huber", "mse"])
def test_the_slope_of_the_loss_is_its_gradient(kind):
    chosen = torch.linspace(-3, 3, 41).requires_grad_()
    targets = torch.full((41,), 0.123)
    losses, slopes = q.error_loss(kind, chosen, targets)
    exact = nn.functional.smooth_l1_loss if kind == "huber" else lambda a, b, reduction: 0.5 * (a - b).square()
    torch.testing.assert_close(losses, exact(chosen, targets, reduction="none"))
    torch.testing.assert_close(slopes.detach(), torch.autograd.grad(losses.sum(), chosen)[0])


@pytest.mark.parametrize("priority", [0.0, 0.6])
def test_a_step_taken_too_early_is_undone(priority):
    """As a GPU's graph takes it: where `is_ready` is false nothing changes; where it is true it is a step."""

    def stepped(is_ready):
        t = tiny_trainer("cartpole", algo="dqn", train={"target_every": 2, "priority": priority})
        for _ in range(2):
            t.iterate()
        learner = t.learners[0]
        learner.native = None  # a GPU has none
        batch = next(iter(dqn.batches(learner)))
        learner.optimizer.state["exp_avg"].zero_()  # where it begins
        learner.optimizer.state["exp_avg_sq"].zero_()
        learner.optimizer.state["step"].zero_()
        held = [learner.weights.detach(), learner.target, *learner.optimizer.state.values()]
        held += [learner.replay.priorities[:-1], learner.replay.sums] if priority else []
        before = [part.clone() for part in held]
        dqn.improve(learner, batch, is_ready)
        t.close()
        return before, held, int(learner.updates)

    before, after, updates = stepped(torch.tensor(False))
    assert all(torch.equal(a, b) for a, b in zip(before, after))
    _, plain, more = stepped(None)
    _, gated, same = stepped(torch.tensor(True))
    assert all(torch.equal(a, b) for a, b in zip(plain, gated))
    assert (more, same) == (updates + 1, updates + 1)
    assert not torch.equal(plain[0], before[0])


def test_envs_that_begin_anew_do_not_go_on_in_the_replay(tmp_path):
    """A Python env cannot give its state: after a resume no transition leads from the old game into the new one."""
    more = {"vec": {"num_envs": 4, "backend": "serial"}, "train": {"total_steps": 96, "train_frequency": 4}}
    run = train_tiny(Pair, tmp_path, algo="dqn", **more)
    t = make_trainer(Pair, **run.config)
    t.restore(*checkpoint.load(run.last))
    replay = t.learners[0].replay
    newest = replay.base + (replay.heads - 1) % replay.capacity
    assert t.exact is False
    assert set(replay.kinds[newest].tolist()) == {LAST}
    t.close()


@pytest.mark.parametrize("algo", ["dqn", "pqn"])
def test_pictures_are_kept_as_bytes(tmp_path, algo):
    from tests.envs import ImageEnv

    run = train_tiny(ImageEnv, tmp_path, algo=algo, vec={"num_envs": 4, "backend": "serial"}, train={"total_steps": 96})
    state = checkpoint.load(run.last)[0]["state"]
    if algo == "dqn":
        assert state["0.replay.obs.0"].dtype == torch.uint8
        assert int(state["0.updates"]) > 0
    assert run.summary["status"] == "finished"


def test_networks_of_agents_are_refused_for_pictures(tmp_path):
    from tests.envs import ImageEnv

    space = ImageEnv().observation_space
    with pytest.raises(ConfigError, match="Use --train.policy shared"):
        QNet(space, 3, Net(), agents=2)


@pytest.mark.parametrize("vec", ["native", "next_step", "same_step"])
def test_what_follows_in_the_replay_is_what_followed_in_the_env(vec):
    """CartPole moves by x' = x + 0.02 v: in every window that goes on, whatever the vector env's way to begin anew."""
    envs: Any = "cartpole"
    if vec != "native":
        mode = (
            gymnasium.vector.AutoresetMode.NEXT_STEP if vec == "next_step" else gymnasium.vector.AutoresetMode.SAME_STEP
        )
        make = [lambda: gymnasium.make("CartPole-v1", max_episode_steps=15)] * 6
        envs = gymnasium.vector.SyncVectorEnv(make, autoreset_mode=mode)
    tables = tiny(algo="dqn", vec={"num_envs": 6}, train={"total_steps": "1M", "epsilon_start": 1.0})
    t = make_trainer(envs, tuned="cartpole", **tables)
    for _ in range(40):
        t.iterate()
    learner = t.learners[0]
    batch = learner.replay.sample(1, 2000, 1, 1.0, torch.Generator().manual_seed(0))
    counted = batch.weights > 0
    goes_on = counted & (batch.discounts > 0)
    now, later = batch.obs[0][goes_on], batch.next_obs[0][goes_on]
    torch.testing.assert_close(later[:, 0], now[:, 0] + 0.02 * now[:, 1], rtol=0, atol=1e-5)
    ends = counted & (batch.discounts == 0)
    assert 20 < int(ends.sum()) < 400
    t.close()


class NoQuestions(TorchDispatchMode):
    """Refuses every operation that asks the device for a number, or whose result's size depends on one."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function)
        if any(word in name for word in ("aten._local_scalar_dense", "aten.nonzero", "aten.masked_select")):
            raise AssertionError(f"{name}: a CUDA graph cannot hold this")
        if "aten.index" in name and any(isinstance(x, torch.Tensor) and x.dtype == torch.bool for x in args[1] or ()):
            raise AssertionError(f"{name} by flags: a CUDA graph cannot hold this")
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("more", [{}, {"priority": 0.5, "n_step": 3}, {"distribution": "c51", "dueling": True}])
def test_an_update_asks_the_device_nothing(more):
    """So that a GPU's graph can hold it: as one takes it, with fixed truncations and `is_ready`, on the CPU."""
    t = tiny_trainer(
        "vacuum",
        algo="dqn",
        agents=4,
        env={"preset": "classic-1v3", "max_steps": 5},
        train=more | {"epsilon_decay": 0.99},
    )
    for _ in range(4):
        t.iterate()
    learner = t.learners[0]
    learner.rollout.truncations.added.clear()
    learner.rollout.truncations.reserve(5)
    with NoQuestions():
        q.observe(learner)
        learner.replay.store(learner.rollout)
        is_ready = learner.replay.stored >= 1
        for batch in dqn.batches(learner):
            learner.device = SimpleNamespace(type="cuda")  # `follow` asks the host on a CPU
            dqn.improve(learner, batch, is_ready)
        q.set_epsilon(learner)
        learner.replay.fill()
    with pytest.raises(AssertionError, match="cannot hold"), NoQuestions():
        bool(is_ready)
    t.close()
