"""shoal export: files that act as their policy does, and that say so before they are in place."""

from __future__ import annotations

import importlib.util
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import shoal
from shoal import export
from shoal.cli.main import main
from shoal.errors import ConfigError
from tests.small_runs import SmallRuns
from tests.training import train_tiny

HAS_ONNX = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The run of a name in `small_runs.RUNS`."""
    return SmallRuns(tmp_path_factory)


def opened(path):
    """A TorchScript file, by torch alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.load(str(path))


@pytest.mark.parametrize("name", ["discrete", "squash", "lstm", "q", "dict", "masked"])
def test_a_torchscript_file_acts_as_the_policy(name, trained, tmp_path):
    policy = shoal.load(trained(name))
    report = export.save(policy, tmp_path / "policy.pt", "torchscript")
    assert report.max_difference < 1e-5
    assert report.inputs >= 50
    assert [path.name for path in tmp_path.iterdir()] == ["policy.pt"]


def test_a_torchscript_file_has_normalizers_mask_and_state(trained, tmp_path):
    """Compared here with `policy.act`, not by the export's own check."""
    policy = shoal.load(trained("discrete"))
    export.save(policy, tmp_path / "a.pt", "torchscript")
    obs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32) * 3
    action, logits, value = opened(tmp_path / "a.pt")(torch.from_numpy(obs))
    np.testing.assert_array_equal(action, policy.act(obs, greedy=True))
    np.testing.assert_allclose(value, policy.value(obs), rtol=1e-5)
    np.testing.assert_allclose(torch.softmax(logits, -1), policy.distribution(obs), rtol=1e-5)

    masked = shoal.load(trained("masked"))
    export.save(masked, tmp_path / "b.pt", "torchscript")
    mask = torch.tensor([[0, 0, 1, 0], [1, 0, 0, 0]], dtype=torch.int8)
    assert opened(tmp_path / "b.pt")(torch.ones(2, 1), mask)[0].tolist() == [2, 0]

    recurrent = shoal.load(trained("lstm"))
    export.save(recurrent, tmp_path / "c.pt", "torchscript")
    file, state, kept = opened(tmp_path / "c.pt"), None, [torch.zeros(2, 8), torch.zeros(2, 8)]
    for _ in range(3):
        obs = np.random.default_rng(1).random((2, *recurrent.observation_space.shape)).astype(np.float32)
        expected, state = recurrent.act(obs, state, greedy=True)
        action, _, _, *kept = file(torch.from_numpy(obs), *kept)
        np.testing.assert_array_equal(action, expected)
        np.testing.assert_allclose(kept[1], state[1], rtol=1e-5, atol=1e-6)


def test_a_torch_export_file_acts_as_the_policy(trained, tmp_path):
    policy = shoal.load(trained("masked"))
    assert export.save(policy, tmp_path / "policy.pt2", "torch-export").max_difference < 1e-5
    assert (tmp_path / "policy.pt2").is_file()


@pytest.mark.skipif(not HAS_ONNX, reason="needs shoal[onnx]")
@pytest.mark.parametrize("name", ["discrete", "squash", "lstm", "q", "dict", "masked"])
def test_an_onnx_file_acts_as_the_policy(name, trained, tmp_path):
    import onnxruntime

    policy = shoal.load(trained(name))
    report = export.save(policy, tmp_path / "policy.onnx", "onnx")
    assert report.max_difference < 1e-4
    assert [path.name for path in tmp_path.iterdir()] == ["policy.onnx"]  # the weights are in it
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"))
    assert tuple(part.name for part in session.get_inputs()) == export.Exported(policy).signature.inputs
    assert tuple(part.name for part in session.get_outputs()) == export.Exported(policy).signature.outputs


def test_names_of_inputs_and_outputs_say_where_they_belong(trained):
    names = export.Exported(shoal.load(trained("dict"))).signature
    assert names.inputs == ("obs.camera", "obs.cards", "obs.counts", "obs.pose.0", "obs.pose.1", "obs.switches")
    assert names.outputs[:3] == ("action.arm.0", "action.arm.1", "action.gear")
    names = export.Exported(shoal.load(trained("lstm"))).signature
    assert names == (("obs", "state_0", "state_1"), ("action", "logits", "value", "next_state_0", "next_state_1"))


# ---- the check ----


def test_a_file_that_differs_is_not_written(trained, tmp_path, monkeypatch):
    policy = shoal.load(trained("discrete"))
    write, open_file = export.WRITERS["torchscript"]

    def spoiled(module, inputs, path):
        with torch.no_grad():
            module.actor.policy.critic.bias += 0.01
            write(module, inputs, path)
            module.actor.policy.critic.bias -= 0.01

    monkeypatch.setitem(export.WRITERS, "torchscript", (spoiled, open_file))
    with pytest.raises(ConfigError, match="the exported value differs from the policy's by 0.01"):
        export.save(policy, tmp_path / "policy.pt", "torchscript")
    assert not list(tmp_path.iterdir())


class FixedRows(nn.Module):
    """A policy whose graph depends on the number of rows."""

    def __init__(self, observation_space, action_space):
        super().__init__()
        self.actor, self.critic = nn.Linear(4, 2), nn.Linear(4, 1)

    def forward(self, obs):
        return self.actor(obs), self.critic(obs).reshape(len(obs))


def test_a_policy_of_fixed_rows_is_refused(tmp_path):
    run = train_tiny("cartpole", tmp_path / "runs", policy=FixedRows, save={"every": 0}, train={"total_steps": 64})
    with pytest.raises(ConfigError, match=r"does not run on 1 rows.*x.shape\[0\], not len\(x\)"):
        export.save(shoal.load(run), tmp_path / "policy.pt", "torchscript")


def test_missing_packages_are_named(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs onnx and onnxscript. Install it: pip install 'shoal\[onnx\]'"):
        export.save(shoal.load(trained("discrete")), tmp_path / "policy.onnx", "onnx")


def test_an_unknown_kind_is_refused(trained, tmp_path):
    with pytest.raises(ConfigError, match="kind='keras' is none of onnx, torchscript, torch-export"):
        export.save(shoal.load(trained("discrete")), tmp_path / "policy", "keras")


# ---- the command ----


def test_the_command_writes_and_reports(trained, tmp_path, capsys):
    run = trained("discrete")
    assert main(["export", str(run.folder), "--torchscript", str(tmp_path / "p.pt")]) == 0
    out = capsys.readouterr().out
    assert "obs" in out
    assert "rows, 4" in out
    assert "p.pt: torchscript, max difference" in out.replace("\n", "")
    assert (tmp_path / "p.pt").is_file()


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("discrete", "", "no file is named. Give -o PAGE.html"),
        ("discrete", "--torchscript /nowhere/p.pt", "/nowhere/p.pt cannot be written"),
        ("discrete", "--torchscript p --torch-export p", "two formats name the same file"),
        ("discrete", "--torchscript p.pt --checkpoint 3", "no checkpoint of step 3"),
        ("team", "--torchscript p.pt", "Name one with --agent: agent_0, agent_1, agent_2, agent_3"),
        ("team", "--torchscript p.pt --agent agent_9", "no policy of 'agent_9' was trained"),
    ],
)
def test_the_command_refuses_mistakes(name, words, message, trained, tmp_path, monkeypatch, capsys):
    run = trained(name)
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(run.folder), *words.split()]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_one_agent_of_several_is_exported(trained, tmp_path):
    run = trained("team")
    words = ["--torchscript", str(tmp_path / "p.pt"), "--agent", "agent_2"]
    assert main(["export", str(run.folder), *words]) == 0
    obs = np.random.default_rng(0).random((3, 11)).astype(np.float32)
    action = opened(tmp_path / "p.pt")(torch.from_numpy(obs))[0]
    np.testing.assert_allclose(action, shoal.load(run)["agent_2"].act(obs, greedy=True), rtol=1e-6)


class Remembering(nn.Module):
    """A recurrent policy whose state is a dict, with an initial state that it learns."""

    def __init__(self, observation_space, action_space):
        super().__init__()
        self.cell = nn.GRUCell(observation_space.shape[0], 8)
        self.start = nn.Parameter(torch.full((1, 8), 0.5))
        self.actor, self.critic = nn.Linear(8, int(action_space.n)), nn.Linear(8, 1)

    def initial_state(self, rows):
        return {"hidden": self.start.expand(rows, -1)}

    def forward(self, obs, state):
        hidden = self.cell(obs, state["hidden"])
        return self.actor(hidden), self.critic(hidden), {"hidden": hidden}


def test_your_own_recurrent_policy_acts_and_is_exported(tmp_path):
    run = train_tiny("cartpole", tmp_path / "runs", policy=Remembering, save={"every": 0}, train={"total_steps": 128})
    policy = shoal.load(run)
    obs = np.random.default_rng(0).random((3, 4)).astype(np.float32)
    _, state = policy.act(obs)
    cleared = policy.clear(state, [True, False, True])
    np.testing.assert_array_equal(cleared[0][[0, 2]], policy.actor.policy.start.expand(2, -1))  # as it was learned
    assert export.save(policy, tmp_path / "policy.pt", "torchscript").max_difference < 1e-5
    start = export.initial_state(policy)
    _, _, value, _ = opened(tmp_path / "policy.pt")(torch.from_numpy(obs[:1]), *start)
    assert value.item() == pytest.approx(policy.value(obs[0]), rel=1e-5)
