"""Runs of equal shape that use one trainer: each is, bit for bit, the run that trains alone."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch

from shoal.algos import replay
from shoal.algos.fast import choice_loss
from shoal.train import options_for, swap
from tests.training import tiny

CHASE = str(Path(__file__).parent / "chase.h")
# options in which members of one trainer may differ
OTHER = {"learning_rate": 0.003, "gamma": 0.9, "max_grad_norm": 0.2}
OTHER_PPO = {**OTHER, "gae_lambda": 0.5, "clip": 0.1, "entropy_coef": 0.03, "value_coef": 0.7}
CASES = {
    "ppo in C": ("cartpole", {}, OTHER_PPO),
    "ppo in torch": ("cartpole", {"nn": {"activation": "gelu"}}, OTHER_PPO),
    "lstm": ("memory", {"nn": {"core": "lstm"}}, OTHER_PPO),
    "dqn": ("squared", {"algo": "dqn"}, OTHER),
    "pqn": ("squared", {"algo": "pqn"}, {**OTHER, "q_lambda": 0.3}),
    "normalizers and truncation": (
        "cartpole",
        {"train": {"normalize_obs": True, "normalize_reward": True}, "env": {"max_steps": 9}},
        OTHER_PPO,
    ),
    "continuous": ("pendulum", {"train": {"value_clip": 0.2}}, {**OTHER_PPO, "value_clip": 0.1}),
    "several agents": (CHASE, {"nn": {"policies": "per_agent"}}, OTHER_PPO),
}


def options(case, number):
    """The options of a member: number 0 has those of the case, others have another seed and other numbers."""
    env, tables, other = CASES[case]
    tables = {**tables, "seed": 3 + number}
    if number:
        tables = {**tables, "train": {**tables.get("train", {}), **other}}
    return env, options_for(env, tiny(**tables))


def state_of(trainer):
    """Every byte of a checkpoint."""
    return {
        f"{name}.{k}": bytes(x.cpu().numpy().tobytes()) for name, p in trainer.state().items() for k, x in p.items()
    }


def alone(case, number, iterations=4):
    """The state of a member that trains alone."""
    env, own = options(case, number)
    with contextlib.closing(swap.make_trainer(env, own)) as trainer:
        for _ in range(iterations):
            trainer.iterate()
        return state_of(trainer)


@pytest.fixture
def pool():
    made = swap.TrainerPool()
    yield made
    made.clear()


@pytest.mark.parametrize("case", CASES)
def test_members_that_take_turns_equal_lone_runs(case, pool):
    """Three members on one trainer: two take turns, with a third between them that runs to its end."""
    snapshots = {}
    for number in (0, 1):
        trainer = pool.get(*options(case, number))
        trainer.iterate()
        snapshots[number] = swap.take(trainer)
    trainer = pool.get(*options(case, 2))
    for _ in range(4):
        trainer.iterate()
    found = {2: state_of(trainer)}
    for turns in ((0, 2), (1, 1), (0, 1), (1, 2)):
        number, iterations = turns
        swap.put(trainer, snapshots[number])
        for _ in range(iterations):
            trainer.iterate()
        snapshots[number], found[number] = swap.take(trainer), state_of(trainer)
    assert (pool.made, pool.reused) == (1, 2)
    for number in range(3):
        assert found[number] == alone(case, number), number


@pytest.mark.parametrize("case", ["continuous", "ppo in torch", "dqn", "pqn"])
def test_numbers_on_the_device_give_the_bits_of_python_numbers(case, pool, monkeypatch):
    """What a GPU's graphs read, float64 tensors in place of numbers, computed by torch on the CPU."""
    monkeypatch.setattr("shoal.algos.fast.native_ppo", lambda learner: None)
    monkeypatch.setattr(choice_loss, "_in_c", choice_loss._in_torch)
    monkeypatch.setattr("shoal.algos.fast.native_q_learning", lambda learner, rows: None)
    monkeypatch.setattr(replay, "NativeReplay", lambda *given: None)
    trainer = pool.get(*options(case, 0))
    for learner in trainer.learners:
        learner.hold_numbers(always=True)
    trainer.iterate()
    trainer = pool.get(*options(case, 1))
    held = [name for learner in trainer.learners for name, x in vars(learner.config).items() if torch.is_tensor(x)]
    assert set(held) == {name for name in CASES[case][2] if name != "learning_rate"}
    for _ in range(4):
        trainer.iterate()
    assert state_of(trainer) == alone(case, 1)
