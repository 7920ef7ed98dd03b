"""The examples run, are short, and do what their docstrings say."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shoal import checkpoint
from shoal.runs import find
from tests.faults.tools import ROOT

EXAMPLES = Path(ROOT) / "examples"


def run(name: str, *words: str) -> str:
    """Runs an example as a user does; returns what it prints."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *words]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["custom_policy.py", "custom_env.py", "own_loop.py", "domain_randomization.py"])
def test_an_example_is_under_sixty_lines(name):
    assert len((EXAMPLES / name).read_text().splitlines()) < 60


def test_your_own_policy_is_trained(tmp_path):
    out = run("custom_policy.py", "--steps", "2048", "--envs", "16", "--runs", str(tmp_path))
    weights, _ = checkpoint.load(find("last", tmp_path).last, ("weights",))
    assert "0.policy.blocks.1.1.weight" in weights["weights"]
    assert "return" in out


def test_your_own_env_is_trained_in_processes(tmp_path):
    out = run("custom_env.py", "--steps", "4k", "--runs", str(tmp_path))
    trained = find("last", tmp_path)
    assert trained.summary["status"] == "finished"
    assert "process" in out
    assert "targets a game" in out


def test_your_own_loop_learns(capsys):
    """From about 20 to over 100 in a few seconds; it reaches 500 in full."""
    before = torch.get_num_threads()
    loop = runpy.run_path(str(EXAMPLES / "own_loop.py"))
    assert loop["main"](62_000) > 100
    torch.set_num_threads(before)
    assert "steps  return" in capsys.readouterr().out


def test_robot_vacuums_are_trained_with_the_flags_of_the_original_script(tmp_path):
    words = (
        "--num-envs 8 --train-frequency 4 --env-n 5 --charger-positions 2,2 --robot-0-energy 1000 --robot-1-energy 100"
    )
    words += " --e-collision 20 --e-charge 20 --use-epsilon-decay --epsilon-decay 0.998 --num-episodes 12 --n-step 2"
    words += " --save-frequency 500 --wandb-mode disabled --memory-size 5000 --replay-start-size 200 --max-steps 60"
    out = run("train_vacuum.py", *words.split(), "--runs", str(tmp_path))
    trained = find("last", tmp_path)
    assert trained.config["train"]["epsilon_decay"] == 0.998
    assert (trained.config["env"]["charger_x_0"], trained.config["env"]["energy_1"]) == (2, 100.0)
    assert "mean return" in out


def test_params_are_drawn_and_both_policies_play_on_all(tmp_path):
    out = run("domain_randomization.py", "--steps", "2048", "--envs", "16", "--episodes", "2", "--runs", str(tmp_path))
    head, fixed, drawn = out.splitlines()
    assert head.split()[-5:] == ["0.005", "0.02", "0.04", "0.06", "0.08"]
    assert fixed.startswith("0.02 ")
    assert drawn.startswith("loguniform(0.005, 0.08) ")
    assert find("last", tmp_path).config["env"]["dt"] == "loguniform(0.005, 0.08)"
