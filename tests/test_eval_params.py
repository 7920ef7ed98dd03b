"""A run is evaluated under other env params than those of training: `shoal eval RUN --env.gravity 20`."""

from __future__ import annotations

import json

import gymnasium
import numpy as np
import pytest

from shoal import registry
from shoal.cli.main import main
from shoal.errors import ConfigError
from shoal.native import lib
from shoal.train import evaluate_run, load_player
from shoal.train.params import changes, override
from tests.training import train_tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of cartpole that was trained with a limit of 60 steps."""
    return train_tiny("cartpole", tmp_path_factory.mktemp("runs"), env={"max_steps": 60})


def evaluated(run, capsys, *words):
    command = ["eval", str(run.folder), "--episodes", "4", "--video", "none", "--json", *words]
    assert main(command) == 0
    return json.loads(capsys.readouterr().out)


def test_params_of_the_evaluation_override_those_of_training(run, capsys):
    plain = evaluated(run, capsys, "--seed", "7")
    short = evaluated(run, capsys, "--seed", "7", "--env.max-steps", "5", "--env.gravity=20")
    assert plain["params"] == {}
    assert set(short["lengths"]) == {5}
    assert min(plain["lengths"]) > 5
    assert short["params"] == {
        "max_steps": {"training": 60, "evaluation": 5},
        "gravity": {"training": 9.8, "evaluation": 20},
    }
    assert short["seed"] == 7


def test_params_that_are_as_in_training_are_not_called_different(run, capsys):
    same = evaluated(run, capsys, "--env.max-steps", "60", "--env.gravity", "9.8")
    assert same["params"] == {}
    assert same["returns"] == evaluated(run, capsys)["returns"]


def test_the_screen_names_the_params_that_differ(run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    command = ["eval", str(run.folder), "--episodes", "2", "--video", "none", "--env.gravity", "20"]
    assert main(command) == 0
    assert "under other params than in training: gravity 20 (training: 9.8)" in capsys.readouterr().out


def test_a_video_under_other_params_does_not_replace_that_of_training(run, capsys):
    pytest.importorskip("PIL")
    for words in ([], ["--env.gravity", "20"]):
        assert main(["eval", str(run.folder), "--episodes", "1", "--greedy", *words]) == 0
    names = sorted(path.stem for path in (run.folder / "videos").iterdir())
    step = run.best.name
    assert names == [f"{step}-greedy", f"{step}-greedy-gravity=20"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--env.gravty", "3"], "cartpole has no param 'gravty'. Did you mean 'gravity'?"),
        (["--env.gravity", "strong"], "gravity='strong' is not a number"),
        (["--env.max-steps", "-4"], "max_steps=-4"),
        (["--env.gravity"], "--env.gravity needs a value"),
        (["--env.preset", "hard"], "cartpole has no presets"),
    ],
)
def test_wrong_params_are_errors_before_playing(run, capsys, monkeypatch, words, message):
    monkeypatch.setattr("shoal.evaluate.play_modes", None)
    assert main(["eval", str(run.folder), "--video", "none", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_param_that_changes_the_observations_is_an_error(tmp_path, capsys):
    run = train_tiny("memory", tmp_path, train={"total_steps": 128})
    assert main(["eval", str(run.folder), "--video", "none", "--env.cues", "5"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "--env.cues 5 changes the observation space of memory to Box" in said
    assert "the run was trained with Box" in said
    assert "train a run with it" in said


def test_a_param_that_changes_the_number_of_agents_is_an_error():
    with pytest.raises(ConfigError, match=r"--env.agents 2 gives forage 2 agents; the run was trained with 4"):
        override("forage", {}, {"agents": 2})


class Slope(gymnasium.Env):
    """One number to observe; its size, the bounds and the reward depend on keyword arguments."""

    def __init__(self, slope=1.0, size=1, bound=1.0):
        self.slope, self.size = slope, size
        self.observation_space = gymnasium.spaces.Box(-bound, bound, (size,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(self.size, np.float32), {}

    def step(self, action):
        return np.zeros(self.size, np.float32), self.slope, True, False, {}


def test_python_envs_are_checked_too():
    assert override(Slope, {"slope": 1.0}, {"slope": 3.0, "bound": 9.0}) == {"slope": 3.0, "bound": 9.0}
    with pytest.raises(ConfigError, match="--env.size 2 changes the observation space"):
        override(Slope, {}, {"size": 2})
    with pytest.raises(ConfigError, match="cannot be made with --env.slop 2: .*slop"):
        override(Slope, {}, {"slop": 2})


def test_a_gymnasium_env_is_evaluated_under_other_params(tmp_path, capsys):
    tables = {"vec": {"num_envs": 2, "backend": "serial"}, "train": {"total_steps": 64, "horizon": 16, "segment": 1}}
    run = train_tiny("gymnasium:CartPole-v1", tmp_path, **tables)
    facts = evaluated(run, capsys, "--env.sutton-barto-reward", "True")
    assert set(facts["returns"]) == {-1.0}  # otherwise 1 for each step
    assert facts["params"] == {"sutton_barto_reward": {"training": None, "evaluation": True}}
    assert main(["eval", str(run.folder), "--env.suton-barto-reward", "True"]) == 2
    assert "Did you mean 'sutton_barto_reward'?" in " ".join(capsys.readouterr().err.split())


def test_wrappers_of_training_are_not_called_different(tmp_path, capsys):
    tables = {"vec": {"num_envs": 2, "backend": "serial"}, "train": {"total_steps": 64, "horizon": 16, "segment": 1}}
    run = train_tiny("gymnasium:CartPole-v1", tmp_path, wrap=("stack=2",), **tables)
    changed = {"sutton_barto_reward": {"training": None, "evaluation": True}}
    assert evaluated(run, capsys, "--env.sutton-barto-reward", "True")["params"] == changed


def test_a_preset_replaces_the_params_of_training():
    spec = lib.load(registry.find("vacuum")).spec
    preset = spec.presets[0].name
    assert override("vacuum", {"max_steps": 7}, {"preset": preset}) == {"preset": preset}
    changed = {change.name: change.training for change in changes("vacuum", {"max_steps": 7}, {"preset": preset})}
    assert changed["max_steps"] == 7


def test_from_python(run):
    result = evaluate_run(run, env={"max_steps": 5}, episodes=3, seed=7)
    assert result.score.lengths == (5, 5, 5)
    assert [str(change) for change in result.params] == ["max_steps 5 (training: 60)"]
    assert json.loads(json.dumps(result.facts()))["params"]["max_steps"] == {"training": 60, "evaluation": 5}
    assert set(result.scores) == {"greedy", "sampled"}
    _, kwargs = load_player(run, env={"gravity": 20.0})
    assert kwargs == {"env": "cartpole", "max_steps": 60, "gravity": 20.0}
