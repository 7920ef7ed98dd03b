"""The game of a run from its files alone, without torch, is the one that the policy itself gives: web/from_files.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from shoal import checkpoint
from shoal.errors import CompilerMissing
from shoal.evaluate import held_out
from shoal.runs import Run
from shoal.train import env_seed, load_player
from shoal.watch.worker import Worker
from shoal.web import build, from_files, game

from .training import train_tiny

needs_zig = pytest.mark.skipif(build.find_zig() is None, reason="zig is not installed: pip install 'shoal[web]'")
# every encoder, core, head, kind of agents and algorithm
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "numbers": ("cartpole", {}),
    "lstm": ("cartpole", {"nn": {"core": "lstm", "core_size": 12}}),
    "deep mingru": ("memory", {"nn": {"core": "mingru", "head_layers": 2, "separate": True}}),
    "squashed": ("pendulum", {"nn": {"squash": "tanh", "std": "state", "activation": "gelu"}}),
    "normalized": ("pendulum", {"train": {"normalize_obs": True}, "wrap": ["stack=3"]}),
    "several agents": ("forage", {"nn": {"policies": "per_agent"}}),
    "bytes": ("snake", {}),
    "grid": ("minatar_breakout", {"nn": {"encoder": "grid"}}),
    "impala": ("minatar_breakout", {"nn": {"encoder": "impala"}}),
    "flat": ("minatar_breakout", {"nn": {"encoder": "mlp"}}),
    "dqn": ("cartpole", {"algo": "dqn", "train": {"distribution": "c51", "dueling": True, "layer_norm": True}}),
    "pqn": ("cartpole", {"algo": "pqn"}),
    "q of each agent": ("vacuum", {"algo": "dqn", "train": {"policy": "per-agent"}}),
    "drawn params": ("cartpole", {"env": {"gravity": "uniform(5, 15)", "force": "linear(5, 12)"}}),
    "robot": ("midrange", {"opponents": "1=crank"}),
    "masks": ("connect4", {}),
}


def described(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.folder / "policy.json").read_text())
    return found


def made_with_torch(run: Run) -> dict[str, Any]:
    assert run.last is not None
    player, kwargs = load_player(run, run.last)
    about = {"run": run.id, "step": int(run.last.name), "greedy": player.greedy[0]}
    return game.of_player(kwargs, player, held_out(env_seed(run.facts["seed"])), "16", about, steps=1).facts


@needs_zig
@pytest.mark.parametrize("kind", RUNS)
def test_it_is_the_game_of_the_policy(kind, tmp_path):
    env, options = RUNS[kind]
    run = train_tiny(env, tmp_path, **options)
    assert run.last is not None
    found = from_files.game(Run(run.folder), run.last, described(run))
    assert json.loads(json.dumps(found)) == json.loads(json.dumps(made_with_torch(run)))


def test_without_a_compiler_the_worker_tries_once_and_not_with_torch(tmp_path, monkeypatch):
    run = train_tiny("cartpole", tmp_path)
    tried: list[str] = []
    monkeypatch.setattr(build, "find_module", lambda source: tried.append(source.name))
    monkeypatch.setattr(build, "find_zig", lambda: None)
    monkeypatch.setattr(Worker, "_game_with_torch", lambda *_: pytest.fail("torch cannot compile the env either"))
    worker = Worker(tmp_path, [])
    for _ in range(3):  # a page asks every two seconds
        with pytest.raises(CompilerMissing, match="shoal\\[web\\]"):
            worker.game(str(run.folder))
    assert tried == ["cartpole"]
    monkeypatch.setattr("shoal.watch.worker.time.monotonic", lambda: 1e9)
    with pytest.raises(CompilerMissing):
        worker.game(str(run.folder))
    assert tried == ["cartpole"] * 2


@needs_zig
def test_it_and_the_worker_of_shoal_watch_import_no_torch(tmp_path):
    run = train_tiny("cartpole", tmp_path)
    script = (
        "import sys; from shoal.watch.worker import Worker; from pathlib import Path; "
        f"facts = Worker(Path({str(tmp_path)!r}), []).game({str(run.folder)!r}); "
        "print(facts['env'], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["cartpole", "False"]


@needs_zig
def test_what_is_not_plain_is_left_to_torch(tmp_path):
    opponent = train_tiny("connect4", tmp_path)
    run = train_tiny("connect4", tmp_path, opponents=f"1={opponent.folder}")
    assert run.last is not None
    with pytest.raises(from_files.NotPlain, match="no robot"):
        from_files.game(Run(run.folder), run.last, described(run))
    facts = Worker(tmp_path, []).game(str(run.folder))
    assert facts is not None
    assert [player["is_opponent"] for player in facts["players"]] == [False, True]


def changed(run: Run, name: str, value: Any) -> Path:
    """The run's checkpoint with another value for a weight, or without it (None)."""
    assert run.last is not None
    weights = {**load_file(run.last / "weights.safetensors"), name: value}
    import torch

    tensors = {key: torch.from_numpy(np.array(array)) for key, array in weights.items() if array is not None}
    step = int(run.last.name) + 1
    return checkpoint.save(run.folder / "checkpoints", step, {"weights": tensors}, {}, keep=9)


@needs_zig
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("0.policy.actor.weight", np.zeros((2, 9999), np.float32)),
        ("0.policy.actor.weight", np.zeros((3, 16), np.float32)),
        ("0.policy.actor.bias", None),
        ("0.policy.body.layers.layers.0.weight", np.zeros((16, 5), np.float32)),
        ("0.policy.body.layers.layers.0.weight", np.zeros((), np.float32)),
        ("0.policy.unknown", np.zeros(1, np.float32)),
        ("0.policy.core.hidden.weight", np.zeros((4, 1), np.float32)),
    ],
)
def test_weights_of_other_shapes_and_names_make_no_game(name, value, tmp_path):
    run = train_tiny("cartpole", tmp_path, nn={"hidden": 16})
    with pytest.raises(from_files.NotPlain):
        from_files.game(Run(run.folder), changed(run, name, value), described(run))


@needs_zig
@pytest.mark.parametrize(
    "change",
    [
        {"roles": []},
        {"roles": [{}]},
        {"roles": "x"},
        {"roles": [{"agents": [7], "observation_space": {}, "action_space": {}}]},
        {},
    ],
)
def test_a_wrong_policy_json_makes_no_game(change, tmp_path):
    run = train_tiny("cartpole", tmp_path)
    assert run.last is not None
    with pytest.raises(from_files.NotPlain):
        from_files.game(Run(run.folder), run.last, change)
