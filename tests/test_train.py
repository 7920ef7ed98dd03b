"""A run repeats with its seed and resumes to the bit; what it writes is what it did."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from shoal import checkpoint, registry, runs
from shoal.errors import CheckpointError, ConfigError
from shoal.runs import Run
from shoal.train import Options, Stopped, options_for, train
from tests.training import STEPS, contents, cut, make_trainer, tiny, tiny_trainer, train_tiny

EXACT = {
    "mlp": ("cartpole", {}),
    "lstm": ("memory", {"nn": {"core": "lstm"}}),
    "mingru": ("memory", {"nn": {"core": "mingru"}}),
    "lstm, separate": ("memory", {"nn": {"core": "lstm", "separate": True}}),
    "mingru, head layers": ("memory", {"nn": {"core": "mingru", "separate": True, "head_layers": 1}}),
    "mingru, separate": ("memory", {"nn": {"core": "mingru", "separate": True}}),
    "normalizers": ("pendulum", {"train": {"normalize_obs": True, "normalize_reward": True}}),
    "truncation": ("cartpole", {"env": {"max_steps": 5}}),
    "truncation, lstm": ("pendulum", {"env": {"max_steps": 5}, "nn": {"core": "lstm"}}),
    "agents, lstm": ("forage", {"nn": {"core": "lstm"}, "train": {"total_steps": 6 * 4 * STEPS}}),
    "a policy for each agent": ("forage", {"nn": {"policies": "per_agent"}, "train": {"total_steps": 4 * 4 * STEPS}}),
    "muon": ("cartpole", {"train": {"optimizer": "muon"}}),
    "groups": ("squared", {"vec": {"backend": "threads", "num_groups": 2, "num_threads": 2}}),
    "everything": (
        "memory",
        {
            "nn": {"core": "mingru"},
            "train": {"segment": 4, "vtrace": True, "priority": 0.8, "target_kl": 0.01, "normalize_reward": True},
        },
    ),
}


@pytest.mark.parametrize("case", EXACT)
def test_a_resumed_run_is_the_run_that_was_not_stopped(tmp_path, case):
    """Item 21: weights, optimizer, random streams, envs, recurrent state and normalizers, file by file.

    Both are trained apart up to the cut, so this is also: same seed, same run.
    """
    env, more = EXACT[case]
    whole = contents(train_tiny(env, tmp_path / "whole", **more))
    stopped = train_tiny(env, tmp_path / "stopped", **more)
    assert contents(stopped) == whole
    middle = len(stopped.checkpoints()) // 2
    resumed = train(env, resume=cut(stopped, middle).folder, console="off")
    assert resumed.folder == stopped.folder
    assert resumed.summary["exact"] is True
    found = contents(resumed)
    assert list(found) == list(whole)
    assert [name for name in whole if whole[name] != found[name]] == []


def test_a_checkpoint_holds_everything_that_goes_on(tmp_path):
    """Else the test above compares too little."""
    more = {"nn": {"core": "lstm"}, "train": {"normalize_obs": True, "normalize_reward": True}}
    run = train_tiny("pendulum", tmp_path, **more)
    files, meta = checkpoint.load(run.last)
    names = {"0.stream.actions", "0.running_return", "0.recurrent.0", "0.recurrent.1", "envs", "0.optimizer.exp_avg"}
    assert names <= set(files["state"])
    assert any(name.startswith("0.reward_norm.") for name in files["state"])
    assert any(name.startswith("0.moments.") for name in files["weights"])
    assert (meta["step"], meta["iteration"]) == (6 * STEPS, 6)
    first, _ = checkpoint.load(run.checkpoints()[0])
    moved = [name for name in names if not torch.equal(first["state"][name], files["state"][name])]
    assert sorted(moved) == sorted(names)


def test_other_seeds_are_other_runs(tmp_path):
    one, two = (contents(train_tiny("cartpole", tmp_path / str(seed), seed=seed)) for seed in (1, 2))
    assert all(one[name] != two[name] for name in one)


def test_saving_and_evaluating_change_nothing(tmp_path):
    plain = train_tiny("cartpole", tmp_path / "plain", save={"every": 0})
    busy = train_tiny("cartpole", tmp_path / "busy", eval={"episodes": 2, "every": 1})
    assert len(plain.checkpoints()) == 1 < len(busy.checkpoints())
    for file in ("weights.safetensors", "state.safetensors"):
        assert (plain.last / file).read_bytes() == (busy.last / file).read_bytes()


@pytest.mark.parametrize("num_groups", [1, 2])
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_how_envs_are_stepped_changes_nothing(tmp_path, num_groups, num_threads):
    """Groups of the same size, that is: the policy sees batches of that size, and sums in their order."""
    serial = train_tiny("breakout", tmp_path / "serial", vec={"backend": "serial", "num_groups": num_groups})
    vec = {"backend": "threads", "num_groups": num_groups, "num_threads": num_threads}
    assert contents(train_tiny("breakout", tmp_path / "threads", vec=vec)) == contents(serial)


def test_a_longer_run_can_follow(tmp_path):
    """More steps than the first time are asked for: the counters, the log and the options go on."""
    first = train_tiny("cartpole", tmp_path)
    again = train("cartpole", resume=first.folder, console="off", train={"total_steps": 8 * STEPS})
    assert again.summary["step"] == 8 * STEPS
    assert again.config["train"]["total_steps"] == 8 * STEPS
    assert again.config["nn"]["hidden"] == 16
    steps = [record["step"] for record in again.metrics()]
    assert steps == sorted(set(steps))
    assert steps[-1] == 8 * STEPS


def test_resuming_a_finished_run_keeps_it(tmp_path):
    run = train_tiny("cartpole", tmp_path, save={"keep": 1})
    before = contents(run)
    assert contents(train("cartpole", resume=run.folder, console="off")) == before


def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path):
    run = train_tiny("cartpole", tmp_path)
    whole = contents(run)
    file = cut(run, 4).last / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert contents(train("cartpole", resume=run.folder, console="off")) == whole


def test_auto_resumes_the_newest_unfinished_run_of_this_env(tmp_path):
    finished = train_tiny("cartpole", tmp_path)
    assert train_tiny("squared", tmp_path).env == "squared"
    fresh = train("cartpole", resume="auto", runs_folder=tmp_path, console="off", **tiny())
    assert fresh.folder != finished.folder
    halted = cut(finished, 3)
    facts = json.loads((halted.folder / "run.json").read_text())
    halted.write("run.json", {**facts, "pid": 2**22 + 1})
    again = train("cartpole", resume="auto", runs_folder=tmp_path, console="off")
    assert again.folder == halted.folder
    assert again.summary["step"] == 6 * STEPS


def test_a_pid_that_is_another_process_now_is_not_the_run(tmp_path):
    """In a restarted container the trainer gets the pid of the one that was killed: its own."""
    run = cut(train_tiny("cartpole", tmp_path), 3)
    assert not run.is_running  # this process has let go of it
    for lock in run.folder.glob("*lock*"):  # as a run of an older Shoal, which had none
        lock.unlink()
    assert run.is_running  # this process, which is alive, with no summary
    run.write("run.json", {**run.facts, "pid_began": run.facts["pid_began"] - 3600})
    assert not Run(run.folder).is_running


# ---- envs that cannot give their state ----


class Walk(gymnasium.Env):
    """Goes left or right; a step to the right is worth 1."""

    observation_space, action_space = spaces.Box(-99, 99, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.left = self.np_random.uniform(-1, 1), 5
        return np.array([self.at], np.float32), {}

    def step(self, action):
        self.at, self.left = self.at + (1 if action else -1), self.left - 1
        return np.array([self.at], np.float32), float(action), False, self.left == 0, {}


def test_a_python_env_resumes_and_is_said_to_be_inexact(tmp_path, capsys):
    more = {"vec": {"num_envs": 4, "backend": "serial"}, "train": {"total_steps": 6 * 4 * 8}}
    run = train_tiny(Walk, tmp_path, **more)
    assert run.summary["exact"] is True
    assert "envs" not in checkpoint.load(run.last)[0]["state"]
    again = train(Walk, resume=cut(run, 3).folder, console="lines")
    assert again.summary["exact"] is False
    assert again.summary["step"] == 6 * 4 * 8
    assert "Walk cannot give its state" in capsys.readouterr().out


def test_python_envs_repeat_with_a_seed(tmp_path):
    more = {"vec": {"num_envs": 4, "backend": "serial"}}
    one, two = (contents(train_tiny(Walk, tmp_path / name, **more)) for name in "ab")
    assert one == two


# ---- your own policy ----


class Own(nn.Module):
    """With a layer that no gradient reaches."""

    def __init__(self, seen, done):
        super().__init__()
        self.body, self.idle = nn.Linear(seen.shape[0], 8), nn.Linear(3, 3)
        self.heads = nn.Linear(8, int(done.n) + 1)

    def forward(self, obs):
        out = self.heads(torch.tanh(self.body(obs)))
        return out[:, :-1], out[:, -1]


def test_your_own_policy_repeats_and_resumes(tmp_path):
    whole = contents(train_tiny("cartpole", tmp_path / "a", policy=Own))
    run = cut(train_tiny("cartpole", tmp_path / "b", policy=Own), 3)
    assert contents(train("cartpole", resume=run.folder, policy=Own, console="off")) == whole


class Unlearned(Own):
    """Some outputs do not depend on the weights."""

    def __init__(self, seen, done, detached=()):
        super().__init__(seen, done)
        self.detached = detached

    def forward(self, obs):
        outputs = dict(zip(("logits", "value"), super().forward(obs)))
        return tuple(value.detach() if name in self.detached else value for name, value in outputs.items())


@pytest.mark.parametrize(
    ("algo", "detached"), [("ppo", ("logits", "value")), ("pqn", ("logits",)), ("dqn", ("logits", "value"))]
)
def test_a_policy_whose_outputs_have_no_gradient_is_named_before_a_folder_is_made(tmp_path, algo, detached):
    outputs = "logits and value" if algo == "ppo" else "logits"
    with pytest.raises(ConfigError, match=f"Unlearned cannot learn: its {outputs} do not depend on its parameters"):
        train_tiny("cartpole", tmp_path / "runs", algo=algo, policy=lambda *spaces: Unlearned(*spaces, detached))
    assert not (tmp_path / "runs").exists()


def test_a_policy_may_have_a_value_that_is_not_learned(tmp_path):
    run = train_tiny("cartpole", tmp_path, policy=lambda *spaces: Unlearned(*spaces, ("value",)))
    assert run.summary["status"] == "finished"


def test_resuming_with_the_name_of_another_env_is_refused(tmp_path):
    """Also if its spaces are the same."""
    run = train_tiny("cartpole", tmp_path)
    with pytest.raises(ConfigError, match="is a run of cartpole, not of gymnasium:CartPole-v1") as caught:
        train("gymnasium:CartPole-v1", resume=run.folder, console="off")
    assert "train('cartpole', resume=...)" in str(caught.value)
    assert Run(run.folder).facts["env"] == "cartpole"


def test_a_run_of_a_header_that_was_stored_by_a_relative_path_resumes(tmp_path, monkeypatch):
    """As before 0.2: ./my_env.h."""
    shutil.copyfile(registry.find("cartpole"), tmp_path / "my_env.h")
    monkeypatch.chdir(tmp_path)
    whole = train_tiny("./my_env.h", tmp_path / "runs")
    files = contents(whole)
    run = cut(whole, 3)
    run.write("run.json", {**run.facts, "env": "./my_env.h"})
    assert contents(train("./my_env.h", resume=run.folder, console="off")) == files


def test_resuming_with_another_policy_is_refused(tmp_path):
    run = train_tiny("cartpole", tmp_path)
    before = contents(run)
    changes = {
        "--nn.hidden 16 (asked: 8)": {"nn": {"hidden": 8}},
        "--nn.core none (asked: lstm)": {"nn": {"core": "lstm"}},
        "--algo ppo (asked: pqn)": {"algo": "pqn"},
        "--train.normalize-obs True (asked: False)": {"train": {"normalize_obs": False}},
        "Use its --train.optimizer": {"train": {"optimizer": "muon"}},
    }
    for said, change in changes.items():
        with pytest.raises(CheckpointError, match=re.escape(said)) as caught:
            train("cartpole", resume=run.folder, console="off", **change)
        assert "size mismatch" not in str(caught.value)
        if "asked" in said:
            assert f"shoal train cartpole --init {run.id} {said.split()[0]}" in str(caught.value)
    assert contents(Run(run.folder)) == before


def test_a_run_with_weights_alone_is_said_to_be_of_use_for_other_things(tmp_path):
    run = train_tiny("cartpole", tmp_path, save={"every": 0})
    for path in run.checkpoints():
        (path / "state.safetensors").unlink()
    with pytest.raises(
        CheckpointError, match="cannot be resumed: its checkpoint of step 768 has the weights alone"
    ) as caught:
        train("cartpole", resume=run.folder, console="off")
    assert f"shoal eval {run.id}. " in str(caught.value)
    assert f"shoal train cartpole --init {run.id}." in str(caught.value)
    shutil.rmtree(run.folder / "checkpoints")
    with pytest.raises(CheckpointError, match=f"run {run.id} has no checkpoint"):
        train("cartpole", resume=run.folder, console="off")


# ---- what a run writes ----


def test_a_run_writes_what_it_was(tmp_path):
    run = train_tiny("cartpole", tmp_path, seed=3, env={"max_steps": 9}, eval={"episodes": 4})
    assert run.facts["env"] == "cartpole"
    assert run.facts["versions"]["torch"] == torch.__version__
    assert run.config["seed"] == 3
    assert run.config["env"] == {"max_steps": 9}
    assert run.summary["status"] == "finished"
    assert 1 <= run.summary["eval"]["return"] <= 9
    last = [record for record in run.metrics() if "loss/value" in record][-1]
    assert last["step"] == 6 * STEPS
    kinds = ("env", "inference", "copy", "learn", "other")
    assert math.isclose(sum(last[f"time/{kind}"] for kind in kinds), last["time/total"], rel_tol=0.05)
    wanted = options_for("cartpole", tiny(seed=3, env={"max_steps": 9}, eval={"episodes": 4}))
    resolved = dataclasses.replace(wanted, vec=dataclasses.replace(wanted.vec, num_groups=1))
    assert options_for("cartpole", run.config) == resolved


def test_only_the_newest_and_the_best_are_kept(tmp_path):
    run = train_tiny("cartpole", tmp_path, save={"keep": 2})
    kept = [path.name for path in run.checkpoints()]
    assert kept[-2:] == [f"{5 * STEPS:012d}", f"{6 * STEPS:012d}"]
    assert 2 <= len(kept) <= 3
    scores = {path.name: checkpoint.read_meta(path)["score"] for path in run.checkpoints()}
    assert run.best is not None
    assert scores[run.best.name] == max(scores.values())


def test_two_runs_in_one_second_have_folders_of_their_own(tmp_path):
    assert len({runs.create("cartpole", tmp_path).folder for _ in range(5)}) == 5


def test_the_trainer_is_a_loop_of_your_own(tmp_path):
    """The trainer's own words: iterate, drain, state, restore."""
    one = tiny_trainer("cartpole")
    while not one.is_done:
        one.iterate()
        if one.iteration == 3:
            path = checkpoint.save(tmp_path, one.step, one.state(), one.counters())
    two = tiny_trainer("cartpole")
    two.restore(*checkpoint.load(path))
    while not two.is_done:
        two.iterate()
    assert one.drain()["step"] == two.step == 6 * STEPS
    for name, files in one.state().items():
        assert all(torch.equal(value, two.state()[name][key]) for key, value in files.items())
    one.close()
    two.close()


# ---- mistakes are told before any work ----


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"train": {"learning_rat": 1}}, "Did you mean 'learning_rate'"),
        ({"train": {"learning_rate": "fast"}}, "must be float, not str"),
        ({"train": {"epochs": 2.5}}, "must be int"),
        ({"train": {"epochs": True}}, "bool"),
        ({"train": {"gamma": 1.5}}, "above 1"),
        ({"train": {"gamma": math.nan}}, "not a number"),
        ({"train": {"schedule": "liner"}}, "Did you mean 'linear'"),
        ({"train": {"minibatches": 1000}}, "Try --train.minibatches 128"),
        ({"train": {"segment": 3}, "nn": {"core": "lstm"}}, "does not divide"),
        ({"tran": {}}, "Did you mean 'train'"),
        ({"env": {"gravty": 1.0}}, "Did you mean 'gravity'"),
        ({"nn": 3}, "nn"),
    ],
)
def test_mistakes_are_told_before_a_folder_is_made(tmp_path, tables, said):
    whole = {**tiny(), **{k: {**tiny().get(k, {}), **v} if isinstance(v, dict) else v for k, v in tables.items()}}
    with pytest.raises(ConfigError) as caught:
        train("cartpole", runs_folder=tmp_path / "runs", console="off", **whole)
    assert said in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_envs_that_do_not_divide_over_workers_are_told(tmp_path):
    with pytest.raises(ConfigError, match=r"5.*2"):
        train_tiny(Walk, tmp_path / "runs", vec={"num_envs": 5, "num_workers": 2, "backend": "process"})
    assert not (tmp_path / "runs").exists()


def test_options_are_what_they_say():
    assert (
        options_for("cartpole", {"train": {"total_steps": "2M", "normalize_obs": False}}).train.total_steps == 2_000_000
    )
    assert Options().train.normalize_obs is False


def test_stopping_is_a_keyboard_interrupt(tmp_path):
    """So that a script that does not know of it ends as on Ctrl-C."""
    stop = Stopped(2, Run(tmp_path))
    assert isinstance(stop, KeyboardInterrupt)
    assert "--resume" in str(stop)


def test_a_run_that_was_copied_goes_on(tmp_path):
    """No path of the first place is in it."""
    run = cut(train_tiny("cartpole", tmp_path / "a"), 3)
    shutil.copytree(run.folder, tmp_path / "elsewhere")
    whole = contents(train("cartpole", resume=run.folder, console="off"))
    shutil.rmtree(tmp_path / "a")
    assert contents(train("cartpole", resume=tmp_path / "elsewhere", console="off")) == whole


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_weights_of_a_seed_do_not_depend_on_the_number_of_threads(algo):
    """Trainers of one process leave the number behind that they work with."""
    found, threads = [], torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            trainer = make_trainer("breakout", algo=algo, vec={"num_envs": 4, "torch_threads": 0})
            found.append(trainer.learners[0].weights.detach().clone())
            trainer.close()
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)
