"""A run that does not learn says why and what to try; a run that learns says nothing."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import random
import re
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from rich.console import Console
from torch import nn

from shoal.algos import ops
from shoal.algos.algorithm import ALGORITHMS
from shoal.cli.main import main
from shoal.config import to_dict
from shoal.log import RunFacts
from shoal.log.console import print_summary
from shoal.log.history import History as Shown
from shoal.train import diagnosis, options_for, train
from shoal.train.diagnosis import History, Setup, diagnose
from shoal.train.probe import probe
from tests.fake_runs import fake_run
from tests.training import STEPS, tiny, train_tiny

# ---- real runs that fail in each way ----


class Pointless(gymnasium.Env):
    """Actions change nothing: rewards are noise, zero, one, or the first number of the observation."""

    def __init__(self, reward: str = "noise", size: int = 16, box: bool = False, length: int = 8) -> None:
        self.kind, self.length = reward, length
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32) if box else spaces.Discrete(4)

    def _observe(self):
        self.obs = self.np_random.normal(size=self.observation_space.shape).astype(np.float32)
        return self.obs

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        self.steps += 1
        rewards = {"noise": self.np_random.normal(), "zero": 0.0, "one": 1.0, "context": self.obs[0]}
        return self._observe(), float(rewards[self.kind]), self.steps == self.length, False, {}


class Linear(nn.Module):
    """A policy without hidden layers."""

    def __init__(self, observation_space, action_space):
        super().__init__()
        self.logits, self.value = (nn.Linear(observation_space.shape[0], size) for size in (int(action_space.n), 1))

    def forward(self, obs):
        return self.logits(obs), self.value(obs).squeeze(-1)


class Omniscient(Linear):
    """Its critic knows the reward of the step."""

    def forward(self, obs):
        return self.logits(obs), obs[:, 0]


HORIZON, ENVS = 16, 8
# every option that the faults depend on, so that other defaults change nothing
PLAIN = {
    "horizon": HORIZON,
    "minibatches": 2,
    "epochs": 4,
    "schedule": "constant",
    "total_steps": ENVS * HORIZON * 32,
    "entropy_coef": 0.01,
    "value_coef": 0.5,
    "target_kl": 0.0,
    "normalize_obs": False,
    "normalize_reward": False,
}
CARTPOLE = {**PLAIN, "optimizer": "adam", "total_steps": 64 * HORIZON * 40}
Q_PLAIN = {"normalize_obs": False, "reward_scale": 1.0, "schedule": "constant"}
PQN = {**Q_PLAIN, "total_steps": ENVS * HORIZON * 32, "horizon": HORIZON, "minibatches": 2, "epochs": 2}
REPLAY = {**Q_PLAIN, "total_steps": ENVS * 4 * 150, "replay_size": 8000, "replay_start": 200, "batch_size": 32}


def failing_run(tmp_path, game, policy=None, **tables):
    """The findings of a run, by kind, as texts."""
    num_envs = 64 if isinstance(game, str) else ENVS
    vec = {"num_envs": num_envs, "torch_threads": 1, "backend": "threads" if num_envs == 64 else "serial"}
    plain = {"eval": {"episodes": 0}, "save": {"every_s": 0}, "nn": {"hidden": 32}, "device": "cpu", "vec": vec}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shoal.train.session.LOG_EVERY_S", 0.0)  # every iteration: the verdict is not a matter of speed
        patch.setattr("shoal.train.usage.Usage.read", lambda usage: {})  # looks at all processes
        run = train(game, policy=policy, runs_folder=tmp_path, console="off", **(plain | tables))
    texts = {entry["kind"]: f"{entry['fact']}. {entry['advice']}" for entry in run.summary["diagnosis"]}
    flags = [flag for text in texts.values() for flag in re.findall(r"--train\.([a-z-]+)", text)]
    assert {flag.replace("-", "_") for flag in flags} <= set(run.config["train"]), "an option that does not exist"
    return texts


def test_a_reward_that_is_never_seen(tmp_path):
    texts = failing_run(tmp_path, Pointless, train=PLAIN, env={"reward": "zero"})
    assert list(texts) == ["reward"]
    assert "the reward was never seen: all 512 episodes returned 0" in texts["reward"]
    assert "--train.entropy-coef 0.1 (now 0.01)" in texts["reward"]


def test_no_episode_and_no_reward(tmp_path):
    texts = failing_run(tmp_path, Pointless, train=PLAIN, env={"reward": "zero", "length": 10**6})
    assert list(texts) == ["reward"]
    assert "no episode ended in 4.1k steps, and all sampled rewards are 0" in texts["reward"]


def test_a_return_that_is_constant(tmp_path):
    texts = failing_run(tmp_path, Pointless, train=PLAIN, env={"reward": "one"})
    assert list(texts) == ["reward"]
    assert "the return is constant: all 512 episodes returned 8" in texts["reward"]
    assert "or explore more. Try --train.entropy-coef 0.1 (now 0.01)" in texts["reward"]


def test_advantages_that_are_all_zero(tmp_path):
    texts = failing_run(tmp_path, Pointless, Omniscient, train={**PLAIN, "gamma": 0.0}, env={"reward": "context"})
    assert list(texts) == ["advantages"]
    assert "the advantages are all zero" in texts["advantages"]


def test_an_entropy_that_collapsed(tmp_path):
    texts = failing_run(tmp_path, "cartpole", train={**CARTPOLE, "learning_rate": 1.0, "entropy_coef": 0.0})
    assert "the entropy collapsed: 0.6931 at the start" in texts["entropy collapsed"]
    assert "--train.entropy-coef 0.01 (now 0)" in texts["entropy collapsed"]


def test_an_entropy_that_does_not_change(tmp_path):
    texts = failing_run(tmp_path, "cartpole", train={**CARTPOLE, "learning_rate": 1e-9})
    assert list(texts) == ["entropy unchanged"]
    assert "0.6931 at the start, 0.6931 in the second half" in texts["entropy unchanged"]
    assert "--train.learning-rate 0.0003 (now 1e-09)" in texts["entropy unchanged"]


def test_a_value_loss_that_explodes(tmp_path):
    texts = failing_run(tmp_path, Pointless, Linear, train={**PLAIN, "learning_rate": 1e5, "gamma": 0.9})
    assert "the value loss exploded" in texts["value loss"]
    assert "--train.learning-rate 10000 (now 100000), or --train.normalize-reward True" in texts["value loss"]
    assert "explained variance" not in texts, "a consequence"


def test_an_explained_variance_below_zero(tmp_path):
    """The critic fits the noise of the last rollout."""
    texts = failing_run(tmp_path, Pointless, Linear, train={**PLAIN, "learning_rate": 0.1}, env={"size": 64})
    assert "the explained variance is below 0: -" in texts["explained variance"]
    assert "--train.normalize-reward True" in texts["explained variance"]


def test_a_kl_divergence_that_is_too_high(tmp_path):
    texts = failing_run(tmp_path, Pointless, train={**PLAIN, "learning_rate": 0.02, "epochs": 12}, env={"size": 64})
    assert re.search(r"the KL divergence is too high: [0-9.]+ per update", texts["KL"])
    assert "--train.learning-rate 0.002 (now 0.02), or --train.target-kl 0.02 (now 0)" in texts["KL"]


def test_a_clip_fraction_that_is_too_high(tmp_path):
    texts = failing_run(tmp_path, "cartpole", train={**CARTPOLE, "learning_rate": 3e-4, "clip": 1e-4})
    assert "of the batch is outside the clip range" in texts["clip fraction"]
    assert "--train.clip 0.2 (now 0.0001)" in texts["clip fraction"]


def test_actions_that_are_noise(tmp_path):
    training = {**PLAIN, "learning_rate": 0.1, "entropy_coef": 1.0}
    texts = failing_run(tmp_path, Pointless, train=training, env={"box": True})
    assert "the standard deviation of actions exploded: " in texts["action std"]
    assert "--train.entropy-coef 0.1 (now 1)" in texts["action std"]


@pytest.mark.parametrize("algo", ["dqn", "pqn"])
def test_an_epsilon_that_does_not_decay(tmp_path, algo):
    own = REPLAY if algo == "dqn" else PQN
    texts = failing_run(tmp_path, Pointless, algo=algo, train={**own, "epsilon_decay": 0.99999})
    assert re.search(r"epsilon did not decay within the run: 1 at the start, 0.99\d+ at the end", texts["epsilon"])
    assert "--train.epsilon-decay 0 (now 0.99999)" in texts["epsilon"]


@pytest.mark.parametrize("algo", ["dqn", "pqn"])
def test_q_values_that_explode(tmp_path, algo):
    own = {**REPLAY, "target_every": 1, "target_tau": 0.0} if algo == "dqn" else PQN
    training = {**own, "learning_rate": 1e4, "loss": "mse", "max_grad_norm": 0.0, "gamma": 0.9}
    texts = failing_run(tmp_path, Pointless, Linear, algo=algo, train=training)
    assert re.search(r"the Q-values exploded: \S+ on average, though no discounted return exceeds", texts["Q values"])
    assert "--train.learning-rate 1000 (now 10000)" in texts["Q values"]


def test_learning_that_never_starts(tmp_path):
    texts = failing_run(tmp_path, Pointless, algo="dqn", train={**REPLAY, "replay_start": 6000})
    assert list(texts) == ["no updates"]
    assert "the replay needs 6,000 transitions first, and the run had 4,800" in texts["no updates"]
    assert "--train.replay-start 480 (now 6k)" in texts["no updates"]


# ---- runs that learn ----


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_a_run_that_learns_is_silent(tmp_path, algo):
    own = {"ppo": {"total_steps": 120_000, "horizon": 32}, "dqn": {"total_steps": 60_000}}[algo]
    run = train(
        "squared",
        algo=algo,
        runs_folder=tmp_path,
        console="off",
        device="cpu",
        vec={"num_envs": 64, "torch_threads": 1},
        eval={"episodes": 0},
        train=own,
    )
    history = History(run.metrics(), Setup(run.config, num_envs=64, total_steps=own["total_steps"]))
    assert history.learned
    assert run.summary["diagnosis"] == []


def test_a_short_run_is_not_judged(tmp_path):
    assert train_tiny("cartpole", tmp_path).summary["diagnosis"] == []


def test_early_iterations_are_logged_whatever_their_speed(tmp_path):
    run = train_tiny("cartpole", tmp_path, save={"every": 0}, train={"total_steps": 10 * 128})
    assert {1, 2, 4, 8, 10} <= {record["iteration"] for record in run.metrics()}


def test_a_certain_fault_is_reported_while_the_run_lasts(tmp_path, capfd):
    tables = tiny(train=PLAIN, env={"reward": "zero"}, vec={"num_envs": ENVS, "backend": "serial"})
    run = train(Pointless, runs_folder=tmp_path, console="lines", **tables)
    lines = capfd.readouterr().out.splitlines()
    live = [line for line in lines if line.startswith("warning: the reward was never seen")]
    assert len(live) == 1
    assert not live[0].startswith(f"warning: {run.summary['diagnosis'][0]['fact']}"), "of half the episodes"
    assert [line for line in lines if line.startswith("Diagnosis: the reward was never seen: all 512 episodes")]


def test_a_resumed_run_is_judged_by_all_its_records(tmp_path, monkeypatch):
    """Otherwise a run that continues at the highest return would seem not to learn."""
    run = train_tiny("cartpole", tmp_path)
    judged = []
    monkeypatch.setattr(diagnosis, "diagnose", lambda records, setup: judged.append(list(records)) or [])
    again = train("cartpole", resume=run.folder, console="off", train={"total_steps": 12 * STEPS})
    assert [record["step"] for record in judged[-1]] == [record["step"] for record in again.metrics()]
    assert judged[-1][0]["step"] == STEPS


# ---- rules, on made-up records ----

TABLES = {"train": to_dict(ALGORITHMS.find("ppo").options()), "nn": {}}
SETUP = Setup(TABLES, num_envs=10, total_steps=100_000)


def records_of(count=50, **series):
    """Records with a step, 20 episodes and the given metrics; a function gives them by the fraction of the run."""
    plain = {
        "entropy": 1.0,
        "kl": 0.01,
        "clip_fraction": 0.1,
        "loss/value": 1.0,
        "explained_variance": 0.5,
        "episode/return": 10.0,
        "rollout/reward_min": 0.0,
        "rollout/reward_max": 1.0,
        "rollout/zero_advantages": 0.0,
    }
    records = []
    for k in range(1, count + 1):
        record = {"step": 100_000 * k / count, "iteration": float(k), "episode/n": 20.0, "episode/length": 10.0}
        for name, value in (plain | {name.replace("__", "/"): value for name, value in series.items()}).items():
            record[name] = value(k / count) if callable(value) else value
        mean = record["episode/return"]
        record |= {"episode/return_min": mean - 5.0, "episode/return_max": mean + 5.0}
        records.append(record)
    return records


def learning(**series):
    return records_of(**{"episode__return": lambda done: 10.0 + 90.0 * done, **series})


def kinds(records, setup=SETUP):
    return [finding.kind for finding in diagnose(records, setup)]


BAD = {
    "entropy collapsed": {"entropy": lambda done: 1.0 if done < 0.2 else 0.01},
    "entropy unchanged": {},
    "explained variance": {"explained_variance": -0.5, "entropy": lambda done: 1.0 - done / 2},
    "KL": {"kl": 0.5, "entropy": lambda done: 1.0 - done / 2},
    "clip fraction": {"clip_fraction": 0.7, "entropy": lambda done: 1.0 - done / 2},
    "value loss": {"loss__value": lambda done: 10.0 ** (8 * done), "entropy": lambda done: 1.0 - done / 2},
    "advantages": {"rollout__zero_advantages": 1.0, "entropy": lambda done: 1.0 - done / 2},
    "action std": {"rollout__action_std": lambda done: math.exp(3 * done)},
    "no progress": {"entropy": lambda done: 1.0 - done / 2},
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_metrics_are_a_fault_only_where_the_return_does_not_rise(kind):
    assert kinds(records_of(**BAD[kind])) == [kind]
    assert kinds(learning(**BAD[kind])) == []


def test_a_task_that_is_solved_at_once_may_lose_its_entropy():
    """The return is that of a random policy in the first records only."""
    solved = records_of(
        episode__return=lambda done: 10.0 if done < 0.05 else 500.0,
        entropy=lambda done: 1.0 if done < 0.05 else 1e-4,
        explained_variance=-3.0,
        kl=0.0,
    )
    assert kinds(solved) == []


def test_a_task_that_is_solved_by_the_first_updates_has_learned():
    """All but the first record are at the highest return, and short episodes are skipped up to there."""
    solved = records_of(count=100, episode__return=lambda done: 10.0 if done <= 0.01 else 500.0, kl=0.5)
    for record in solved:
        record |= {"episode/length": 50.0, "episode/length_min": 5.0, "episode/length_max": 500.0}
    assert History(solved, SETUP).start.mean == 500.0
    assert kinds(solved) == []


def test_a_return_that_rises_slowly_is_not_called_flat():
    slow = records_of(episode__return=lambda done: 10.0 + 1.5 * done, entropy=lambda done: 1.0 - done / 2)
    history = History(slow, SETUP)
    assert not history.learned
    assert kinds(slow) == []


def test_a_return_that_falls_back():
    fallen = records_of(
        episode__return=lambda done: 10.0 + 90.0 * (1.0 - abs(2.0 * done - 1.0)) * (done < 0.75),
        entropy=lambda done: 1.0 - done / 2,
        kl=0.3,
    )
    assert kinds(fallen) == ["KL", "return fell"]
    text = diagnose(fallen, SETUP)[-1].text
    assert re.search(r"the return fell: [0-9.]+ at step \d+k, 10 at the end", text)


def test_the_mean_return_of_agents_that_play_each_other_proves_nothing():
    setup = dataclasses.replace(SETUP, num_learners=2)
    for series in BAD.values():
        assert set(kinds(records_of(**series), setup)) <= {"value loss", "advantages", "action std"}
    zero_sum = [r | {"episode/return_min": 0.0, "episode/return_max": 0.0} for r in records_of(episode__return=0.0)]
    assert kinds(zero_sum, setup) == []
    assert kinds(zero_sum) == ["reward"]


def test_an_interrupted_run_is_not_judged_by_its_return():
    setup = dataclasses.replace(SETUP, total_steps=1_000_000)
    for series in (BAD["entropy unchanged"], BAD["no progress"], BAD["KL"]):
        assert kinds(records_of(**series), setup) == []


def test_short_first_episodes_are_not_progress():
    """Where lengths vary, short episodes end first, and their returns are lower."""
    growing = records_of(
        count=100, episode__return=lambda done: 10.0 if done <= 0.02 else 20.0, entropy=lambda done: 1.0 - done / 2
    )
    for record in growing:
        record |= {"episode/length": record["episode/return"], "episode/length_min": 5.0, "episode/length_max": 50.0}
    setup = dataclasses.replace(SETUP, num_envs=100)
    assert kinds(growing, setup) == ["no progress"]


def test_learning_that_never_starts_on_a_gpu():
    """There the loss is computed before the replay is ready, and the gradient is set to 0."""
    setup = dataclasses.replace(SETUP, tables={"train": to_dict(ALGORITHMS.find("dqn").options())})
    setup.tables["train"]["replay_start"] = 200_000
    waiting = records_of(**{"loss/q": 0.7, "grad_norm": 0.0})
    assert kinds(waiting, setup) == ["no updates"]
    assert kinds(records_of(**{"loss/q": 0.7, "grad_norm": 0.1}), setup) != ["no updates"]


def test_findings_do_not_contradict_each_other():
    """A policy that does not move has a bad critic too, but not because its learning rate is too high."""
    idle = records_of(kl=1e-9, explained_variance=-0.5)
    assert kinds(idle) == ["entropy unchanged"]
    assert kinds(records_of(kl=0.5, clip_fraction=0.9)) == ["KL"]
    tiny_rate = dataclasses.replace(SETUP, tables={"train": {"learning_rate": 1e-9}})
    assert diagnose(records_of(kl=0.5), tiny_rate)[0].advice == "", "a smaller rate would not help"


def test_findings_name_the_numbers_and_options_of_the_run():
    high = diagnose(records_of(kl=0.5, entropy=lambda done: 1.0 - done / 2), SETUP)[0]
    assert high.text == (
        "the KL divergence is too high: 0.5 per update (usual: below 0.03). "
        "Try --train.learning-rate 3e-05 (now 0.0003), or --train.target-kl 0.02 (now 0)."
    )
    on_gpu = diagnose(records_of(kl=0.5), dataclasses.replace(SETUP, device="cuda"))[0]
    assert "--train.epochs 2 (now 4)" in on_gpu.advice, "a GPU has no target_kl"


@pytest.mark.parametrize("algo", ALGORITHMS.names())
def test_advice_names_options_that_exist(algo):
    options = to_dict(ALGORITHMS.find(algo).options())
    setup = dataclasses.replace(SETUP, tables={"train": options})
    for option in (value for value in vars(diagnosis).values() if isinstance(value, tuple) and len(value) == 2):
        if isinstance(option[0], str) and option[0].startswith("train."):
            for flag in re.findall(r"--train\.([a-z-]+)", diagnosis._try(setup, option)):
                assert flag.replace("-", "_") in options
    assert diagnosis._try(setup, ("train.no_such_option", lambda now: 1)) == ""


def test_damaged_records_are_not_an_error():
    generator = random.Random(0)
    values = (None, math.nan, math.inf, -math.inf, 0.0, 1e300, -1e300, -1.0, 1.0, True)
    names = [*records_of()[0], "epsilon", "q_played", "loss/q", "grad_norm", "rollout/action_std"]
    for _ in range(300):
        damaged = [
            {name: generator.choice(values) if generator.random() < 0.3 else value for name, value in record.items()}
            | {name: generator.choice(values) for name in generator.sample(names, 3)}
            for record in records_of(count=generator.choice((1, 5, 40)))
        ]
        diagnose(damaged, SETUP)
    assert diagnose([], SETUP) == []
    assert diagnose([{}] * 50, SETUP) == []


# ---- the last rollout ----


def learner_of(rewards, values, dones, truncated=None, counted=None, moments=None):
    flags = torch.zeros_like(dones) if truncated is None else truncated
    rollout = SimpleNamespace(rewards=rewards, values=values, dones=dones, needs_last_value=True)
    rollout.counted, rollout.truncations = lambda: counted, SimpleNamespace(flags=lambda: flags)
    config, head = SimpleNamespace(gamma=0.5), SimpleNamespace(has_box=False)
    return SimpleNamespace(rollout=rollout, config=config, head=head, reward_moments=moments)


def test_zero_advantages_are_those_that_gae_finds():
    """Rows: the critic is right; it is wrong once; its episode is truncated; its agent is out of the game."""
    values = torch.tensor([[2.0, 2.0, 2.0, 7.0]] * 4)
    rewards, dones = torch.ones(3, 4), torch.zeros(3, 4, dtype=torch.bool)
    values[1, 1] = 3.0
    truncated, counted = torch.zeros_like(dones), torch.ones_like(dones)
    dones[1, 2] = truncated[1, 2] = True
    counted[:, 3] = False
    numbers = probe([learner_of(rewards, values, dones, truncated, counted)])
    assert numbers["rollout/zero_advantages"] == pytest.approx((3 + 1 + 2) / (3 + 3 + 2))
    right = ops.gae(rewards[:, :1], values[:, :1], dones[:, :1], 0.5, 0.9)
    assert not right.any()
    assert (ops.gae(rewards[:, 1:2], values[:, 1:2], dones[:, 1:2], 0.5, 0.9)[:2] != 0).all()


def test_zero_advantages_follow_the_normalization_of_rewards():
    ones, values, dones = torch.ones(3, 2), torch.ones(4, 2), torch.zeros(3, 2, dtype=torch.bool)
    for var, share in ((4.0, 1.0), (1.0, 0.0)):  # a reward of 1 is 0.5 where the standard deviation is 2
        moments = SimpleNamespace(var=torch.tensor(var, dtype=torch.float64))
        assert probe([learner_of(ones, values, dones, moments=moments)])["rollout/zero_advantages"] == share


def test_rewards_are_those_of_all_policies_and_of_rows_that_count():
    dones, values = torch.zeros(1, 2, dtype=torch.bool), torch.zeros(2, 2)
    one = learner_of(torch.tensor([[1.0, 99.0]]), values, dones, counted=torch.tensor([[True, False]]))
    two = learner_of(torch.tensor([[-3.0, 2.0]]), values, dones)
    numbers = probe([one, two])
    assert (numbers["rollout/reward_min"], numbers["rollout/reward_max"]) == (-3.0, 2.0)
    assert probe([learner_of(torch.ones(1, 2), values, dones, counted=dones)]) == {}


def test_the_dashboard_does_not_show_them(tmp_path):
    shown = Shown(RunFacts(folder=tmp_path, id="a", env="cartpole"))
    shown.add({"step": 1.0, "rollout/reward_min": 0.0, "entropy": 1.0})
    assert [row.name for row in shown.learning()] == ["entropy"]


# ---- where it is shown ----

FINDING = {"kind": "KL", "fact": "the KL divergence is too high: 0.5 per update", "advice": "Try --train.epochs 2."}


def test_the_console_shows_it(tmp_path):
    out = Console(file=io.StringIO(), width=120)
    facts = RunFacts(folder=tmp_path / "cartpole" / "a", id="a", env="cartpole", total_steps=1000)
    summary = {"status": "finished", "step": 1000, "wall_s": 1.0, "sps": 1000.0, "diagnosis": [FINDING, FINDING]}
    print_summary(out, Shown(facts), summary)
    lines = [line for line in out.file.getvalue().splitlines() if "KL divergence" in line]
    assert lines == [
        "Diagnosis: the KL divergence is too high: 0.5 per update. Try --train.epochs 2.",
        "           the KL divergence is too high: 0.5 per update. Try --train.epochs 2.",
    ]


def test_the_list_of_runs_shows_it(tmp_path, capsys):
    run = fake_run(tmp_path)
    summary = json.loads((run.folder / "summary.json").read_text())
    run.write("summary.json", summary | {"diagnosis": [FINDING]})
    assert main(["runs", "--runs", str(tmp_path)]) == 0
    assert (
        "Diagnosis of a: the KL divergence is too high: 0.5 per update. Try --train.epochs 2."
        in capsys.readouterr().out
    )
    assert main(["runs", "--runs", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["diagnosis"] == [FINDING]


def test_options_of_a_run_reach_the_diagnosis():
    tables = options_for("cartpole").train
    assert Setup({"train": to_dict(tables)}).option("train.gamma") == tables.gamma
    assert Setup({}).option("train.gamma") is None
