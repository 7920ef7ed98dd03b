"""A new run starts from the weights of another run, as far as they fit: `--init RUN`."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from torch import nn

from shoal import checkpoint, registry
from shoal.cli.main import main
from shoal.errors import CheckpointError, ConfigError
from shoal.runs import find
from shoal.train import Trainer, options_for, train
from shoal.train.init import find_source
from tests.training import ENVS, HORIZON, cut, tiny, train_tiny

NO_STEP = {"train": {"total_steps": ENVS * HORIZON, "learning_rate": 0.0, "normalize_obs": False}}


def weights_of(run, which="last"):
    return checkpoint.load(getattr(run, which), ("weights",))[0]["weights"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A trained run of cartpole with observation normalizers."""
    return train_tiny("cartpole", tmp_path_factory.mktemp("source"), train={"normalize_obs": True})


def test_the_same_network_starts_with_all_weights_and_normalizers(source):
    options = options_for("cartpole", tiny(train={"normalize_obs": True}, init=f"{source.folder}@last", seed=5))
    trainer = Trainer("cartpole", options)
    assert trainer.init.is_complete
    for name, value in weights_of(source).items():
        assert torch.equal(trainer.actors[0].state_dict()[name.removeprefix("0.")], value), name
    assert not any(part.any() for name, part in trainer.state()["state"].items() if ".optimizer." in name)
    trainer.close()


def test_a_learning_rate_of_zero_keeps_the_weights_of_the_source(source, tmp_path):
    """They are the weights that training itself uses, not only those of the actor at its start."""
    run = train_tiny("cartpole", tmp_path, init=str(source.folder), **{**NO_STEP, "seed": 9})
    trained = weights_of(source, "best")
    for name, value in weights_of(run).items():
        assert torch.equal(value, trained[name]), name


def test_the_target_network_of_dqn_starts_from_the_source_too(tmp_path):
    old = train_tiny("squared", tmp_path, algo="dqn")
    trainer = Trainer("squared", options_for("squared", tiny(algo="dqn", init=str(old.folder), seed=7)))
    learner = trainer.learners[0]
    assert torch.equal(learner.target, learner.weights)
    assert trainer.init.is_complete
    trainer.close()


@pytest.mark.parametrize(("text", "which"), [("{}", "best"), ("{}@best", "best"), ("{}@last", "last")])
def test_a_source_names_a_run_and_a_checkpoint(source, text, which):
    run, path = find_source(text.format(source.folder))
    assert run.folder == source.folder
    assert path == getattr(source, which)


def test_a_source_can_be_a_step_an_id_a_run_or_the_folder_of_a_checkpoint(source):
    first, root = source.checkpoints()[0], source.folder.parent.parent
    assert find_source(f"{source.id}@{int(first.name)}", root)[1] == first
    assert find_source("last@last", root)[1] == source.last
    assert find_source(source)[1] == source.best
    assert find_source(first)[1] == first


def test_another_action_head_loads_the_rest_and_says_so(source, tmp_path, capsys):
    header = tmp_path / "pole3.h"
    text = registry.find("cartpole").read_text()
    header.write_text(text.replace("ACT_DISCRETE(2)", "ACT_DISCRETE(3)"))
    run = train_tiny(
        str(header), tmp_path / "runs", console="lines", train={"normalize_obs": True}, init=str(source.folder)
    )
    out = capsys.readouterr().out
    report = run.facts["init"]
    assert "policy.actor.weight (3, 16): the source has (2, 16)" in out
    assert "policy.body.layers.layers.0.weight (16, 4)" in out
    assert [part["name"] for part in report["not_loaded"]] == ["policy.actor.weight", "policy.actor.bias"]
    assert "moments.0.mean" in report["loaded"]
    assert "policy.critic.weight" in report["loaded"]


def test_a_normalizer_of_another_size_is_not_loaded_in_part(source, tmp_path):
    """Its count alone would freeze a mean of zero."""
    options = options_for("pendulum", tiny(train={"normalize_obs": True}, init=str(source.folder)))
    trainer = Trainer("pendulum", options)
    assert trainer.actors[0].moments["0"].count == 0
    skipped = {part.name: str(part) for part in trainer.init.skipped}
    assert "the rest of its module does not fit" in skipped["moments.0.count"]
    assert "policy.body.layers.layers.1.weight" in trainer.init.loaded
    assert skipped["policy.body.layers.layers.0.weight"].endswith("(16, 3): the source has (16, 4)")
    trainer.close()


def test_normalizers_that_the_run_does_not_have_are_reported(source):
    options = options_for("cartpole", tiny(train={"normalize_obs": False}, init=str(source.folder)))
    trainer = Trainer("cartpole", options)
    assert "moments.0.mean (4,) of the source: this run has none" in [str(part) for part in trainer.init.skipped]
    trainer.close()


def test_init_is_taken_with_ready_options_too(source, tmp_path):
    options = options_for("cartpole", tiny(train={"normalize_obs": True}))
    run = train("cartpole", options=options, init=source, runs_folder=tmp_path, console="off")
    assert run.facts["init"]["not_loaded"] == []


def test_another_activation_is_said_although_all_weights_fit(source):
    options = options_for(
        "cartpole", tiny(train={"normalize_obs": True}, nn={"activation": "gelu"}, init=str(source.folder))
    )
    trainer = Trainer("cartpole", options)
    assert trainer.init.is_complete
    was = source.config["nn"]["activation"]
    assert f"  --nn.activation is gelu; the source has {was}" in trainer.init.lines()
    trainer.close()


def test_where_nothing_fits_the_error_names_the_options_of_the_source(source, tmp_path):
    with pytest.raises(
        ConfigError, match=r"none of its weights fits this run.*That run has --nn.hidden 16: use the same"
    ):
        train_tiny(
            "cartpole", tmp_path / "runs", nn={"hidden": 32}, train={"normalize_obs": False}, init=str(source.folder)
        )
    assert not (tmp_path / "runs").exists()


class Own(nn.Module):
    """A policy whose tensors have other names."""

    def __init__(self, observation_space, action_space):
        super().__init__()
        self.mine = nn.Linear(observation_space.shape[0], int(action_space.n) + 1)

    def forward(self, obs):
        out = self.mine(obs)
        return out[:, 1:], out[:, :1]


def test_a_source_without_an_own_policy_is_named_so(source, tmp_path):
    with pytest.raises(ConfigError, match=r"That run has .*no --nn.policy: use the same"):
        train_tiny("cartpole", tmp_path, policy=Own, train={"normalize_obs": False}, init=str(source.folder))


def test_several_policies_are_matched_by_number_and_one_initializes_all(tmp_path):
    short = {"vec": {"num_envs": 4}, "train": {"total_steps": 64}}
    tables = {"nn": {"policies": "per_agent"}, **short}
    both = train_tiny("forage", tmp_path, agents=4, **tables)
    trainer = Trainer("forage", options_for("forage", tiny(init=f"{both.folder}@last", seed=3, **tables)))
    trained = weights_of(both)
    assert not torch.equal(trained["0.policy.actor.weight"], trained["1.policy.actor.weight"])
    for number, actor in enumerate(trainer.actors):
        assert torch.equal(actor.state_dict()["policy.actor.weight"], trained[f"{number}.policy.actor.weight"])
    trainer.close()
    shared = train_tiny("forage", tmp_path, agents=4, **short)
    trainer = Trainer("forage", options_for("forage", tiny(init=f"{shared.folder}@last", seed=3, **tables)))
    for actor in trainer.actors:
        assert torch.equal(actor.state_dict()["policy.actor.weight"], weights_of(shared)["0.policy.actor.weight"])
    assert trainer.init.is_complete
    trainer.close()


def test_the_source_is_recorded_and_a_resume_does_not_need_it(source, tmp_path):
    copy = shutil.copytree(source.folder, tmp_path / "gone" / "cartpole" / "a")
    tables = {"train": {"normalize_obs": True}}
    run = train_tiny("cartpole", tmp_path / "runs", init=str(copy), **tables)
    wanted = weights_of(run)
    assert run.config["init"] == f"{copy.resolve()}@{int(source.best.name)}"
    assert run.facts["init"]["source"].endswith(f"@{int(source.best.name)}")
    shutil.rmtree(copy)
    cut(run, 3)
    command = ["train", "--resume", str(run.folder), "--runs", str(tmp_path / "runs"), "--console", "off"]
    assert main(command) == 0
    again = find(run.folder)
    assert again.config["init"] == run.config["init"]
    assert again.facts["init"] == run.facts["init"]
    for name, value in weights_of(again).items():
        assert torch.equal(value, wanted[name]), name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nowhere", "--init nowhere: no run 'nowhere'"),
        ("last@", "is not RUN, RUN@best, RUN@last or RUN@STEP"),
        ("last@bst", "--init last@bst must be best, last or a step"),
        ("last@3", "has no checkpoint of that step. The nearest is 128"),
    ],
)
def test_a_source_that_does_not_exist_is_an_error_before_any_work(source, text, message, capsys):
    root = source.folder.parent.parent
    before = sorted(root.rglob("*"))
    assert main(["train", "cartpole", "--init", text, "--runs", str(root)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert sorted(root.rglob("*")) == before


def test_a_damaged_source_is_an_error_before_any_work(source, tmp_path):
    copy = shutil.copytree(source.folder, tmp_path / "runs" / "cartpole" / "a")
    for file in copy.glob("checkpoints/*/weights.safetensors"):
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match="is damaged"):
        train_tiny("cartpole", tmp_path / "new", init=str(copy), train={"normalize_obs": True})
    assert not (tmp_path / "new").exists()


def test_init_and_resume_are_mutually_exclusive(source, tmp_path, capsys):
    root = source.folder.parent.parent
    assert main(["train", "--resume", source.id, "--init", "last", "--runs", str(root)]) == 2
    assert "mutually exclusive" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="mutually exclusive"):
        train_tiny("cartpole", root, init=str(source.folder), resume=source.folder)


def test_resume_auto_takes_init_for_a_new_run_only(source, tmp_path):
    tables = {"train": {"normalize_obs": True}, "init": str(source.folder), "resume": "auto"}
    run = train_tiny("cartpole", tmp_path, **tables)
    assert json.loads((run.folder / "run.json").read_text())["init"]["not_loaded"] == []
    wanted = weights_of(run)
    cut(run, 2)
    again = train_tiny("cartpole", tmp_path, **tables)
    assert again.folder == run.folder
    for name, value in weights_of(again).items():
        assert torch.equal(value, wanted[name]), name
