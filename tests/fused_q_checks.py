"""Checks of the Triton kernels of Q-learning, run by tests/test_fused_q.py in a process of their own."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch

from shoal.algos import dqn, pqn
from shoal.algos.fast import fused, fused_q, q_base
from shoal.train import Trainer
from tests.fused_checks import Odd, patch_once
from tests.training import make_trainer

SMALL = {"hidden": 16}
PQN: list[tuple[Any, dict[str, Any]]] = [
    ("cartpole", {"nn": {**SMALL, "activation": "tanh"}, "train": {"normalize_obs": True, "epochs": 2}}),
    ("vacuum", {"nn": SMALL, "train": {"loss": "huber", "max_grad_norm": 0.01}, "num_envs": 5}),  # deaths and masks
    (partial(Odd, 17, 16), {"nn": {"hidden": 32}, "train": {"layer_norm": False, "max_grad_norm": 0.0}}),
]
DQN: list[tuple[Any, dict[str, Any]]] = [
    ("cartpole", {"nn": {**SMALL, "activation": "tanh"}, "train": {"layer_norm": True, "n_step": 3}}),
    ("vacuum", {"nn": SMALL, "train": {"target_tau": 0.1, "gradient_steps": 3}, "num_envs": 5}),
    (partial(Odd, 5, 3), {"nn": SMALL, "train": {"double": False, "loss": "mse", "normalize_obs": True}}),
]


def make(env: Any, algo: str, tables: dict[str, Any]) -> Trainer:
    """A trainer that has collected a rollout, with weights that are nowhere zero."""
    train = {"learning_rate": 0.01, "epsilon": 0.3, "total_steps": 10**6}
    if algo == "pqn":
        train |= {"horizon": 6, "minibatches": 4, "epochs": 1}  # minibatches of several sizes
    else:
        train |= {
            "precision": "auto",
            "train_frequency": 6,
            "gradient_steps": 2,
            "batch_size": 37,
            "replay_start": 40,
            "replay_size": 2000,
        }
    vec = {"num_envs": tables.get("num_envs", 7), "backend": "serial"}
    own = {"nn": tables["nn"], "env": tables.get("env", {}), "train": {**train, **tables["train"]}}
    trainer = make_trainer(env, algo=algo, vec=vec, **own)
    trainer.start()
    torch.manual_seed(0)
    learner = trainer.learners[0]
    learner.weights.data.add_(torch.randn_like(learner.weights), alpha=0.05)
    if algo == "dqn":
        learner.target.data.add_(torch.randn_like(learner.target), alpha=0.05)
        learner.native = learner.rollout.acting = learner.replay.native = None  # as on a GPU
    trainer.collector.collect()
    return trainer


def act_again(learner: Any) -> None:
    """The kernel plays the rollout again: the same actions and Q-values."""
    rollout = learner.rollout
    wanted = rollout.logits.clone(), rollout.actions.clone()
    learner.fused.begin()
    taken = torch.zeros(rollout.rows, dtype=torch.int32)
    for t in range(rollout.horizon):
        learner.fused.act(t, taken)
        assert torch.equal(taken.long(), wanted[1][t, :, 0])
    learner.fused.act(rollout.horizon)
    torch.testing.assert_close(rollout.logits, wanted[0], rtol=1e-5, atol=1e-5)
    assert torch.equal(rollout.actions, wanted[1])
    assert torch.equal(rollout.values[:-1], rollout.logits.amax(-1))
    last = learner.actor.step(rollout.observations([rollout.obs[0][-1]]), ())[0]
    if rollout.masks is not None:
        last = torch.where(rollout.masks[-1] != 0, last, -1e9)
    torch.testing.assert_close(rollout.values[-1], last.amax(-1), rtol=1e-5, atol=1e-5)


def compare(one: Any, two: Any, before: torch.Tensor) -> None:
    """The same weights and state of the optimizer, which have moved."""
    assert (before - two.weights).abs().max() > 1e-3
    torch.testing.assert_close(one.weights, two.weights, rtol=1e-3, atol=5e-5)
    for name, value in one.optimizer.state.items():
        torch.testing.assert_close(value, two.optimizer.state[name], rtol=5e-3, atol=1e-5)
    copied = two.fused.narrow[two.fused.places.long()]
    assert torch.equal(copied, two.weights), "the optimizer kept the copy up to date"
    assert two.fused.narrow.count_nonzero() <= two.weights.numel(), "the padding is zero"


def check_pqn() -> None:
    """Rollouts and whole updates."""
    for env, tables in PQN:
        check_pqn_of(env, tables, fused_q.not_covered, KIND)


def check_pqn_of(env: Any, tables: dict[str, Any], not_covered: Any, kind: Any) -> None:
    """A rollout and two updates of the kernels `kind(learner, minibatches)` against the plain path's."""
    one, two = (make(env, "pqn", tables).learners[0] for _ in range(2))
    two.optimizer.rate = torch.tensor(two.config.learning_rate)  # as on a GPU
    assert not not_covered(two), not_covered(two)
    sizes = [len(part) for part in pqn.shuffled(two).tensor_split(two.config.minibatches)]
    two.streams["minibatches"].set_state(one.streams["minibatches"].get_state())
    two.fused = kind(two, sizes)
    act_again(two)
    before = two.weights.detach().clone()
    for _ in range(2):
        metrics = pqn.update(one), pqn.update(two)
        for name in metrics[0]:
            torch.testing.assert_close(metrics[0][name], metrics[1][name], rtol=2e-3, atol=1e-5)
        compare(one, two, before)
        act_again_after(one, two)
    print("checked", env)


def act_again_after(one: Any, two: Any) -> None:
    """Both learners act for the same rollout with what they have learned."""
    two.fused.begin()
    with torch.no_grad():
        for t in range(one.rollout.horizon):
            logits = one.actor.act(one.rollout.obs[0][t], (), mask=None, noise=one.rollout.noise[t]).logits
            if one.rollout.masks is not None:
                logits = torch.where(one.rollout.masks[t] != 0, logits, -1e9)
            one.rollout.logits[t].copy_(logits)
            two.fused.act(t)
        two.fused.act(two.rollout.horizon)
    torch.testing.assert_close(one.rollout.logits, two.rollout.logits, rtol=1e-3, atol=1e-3)
    two.rollout.actions.copy_(one.rollout.actions)


def check_dqn() -> None:
    """Updates from the replay, before and after it has enough transitions."""
    for env, tables in DQN:
        check_dqn_of(env, tables, fused_q.not_covered, KIND)


def check_dqn_of(env: Any, tables: dict[str, Any], not_covered: Any, kind: Any) -> None:
    """As `check_pqn_of`, with a replay that is not yet filled at first."""
    trainers = [make(env, "dqn", tables) for _ in range(2)]
    one, two = (trainer.learners[0] for trainer in trainers)
    two.optimizer.rate = torch.tensor(two.config.learning_rate)
    groups, count = dqn.sample_groups(two)
    assert not not_covered(two), not_covered(two)
    two.fused = kind(two, [groups * count])
    act_again(two)
    before = two.weights.detach().clone()
    for learner in (one, two):
        learner.replay.store(learner.rollout)
    for ready in (False, True, True):
        for batch_one, batch_two in zip(dqn.batches(one), dqn.batches(two)):
            assert torch.equal(batch_one.index, batch_two.index)
            rows = [
                dqn.improve(one, batch_one, torch.tensor(ready)),
                dqn.improve_on_gpu(two, batch_two, torch.tensor(ready)),
            ]
            if ready:  # before, the plain path reports losses, and the kernels zeros
                torch.testing.assert_close(rows[0], rows[1], rtol=2e-3, atol=1e-5)
        if not ready:
            assert torch.equal(before, two.weights)
            assert float(two.optimizer.state["step"]) == 0.0
            continue
        compare(one, two, before)
        torch.testing.assert_close(one.target, two.target, rtol=1e-3, atol=5e-5)
        assert one.updates == two.updates
    print("checked", env)


KIND = partial(fused_q.FusedQ, tile=16, exact=True)

if __name__ == "__main__":
    torch.set_num_threads(1)
    fused_q.WIDTHS = (16, 32)  # the interpreter is slow
    fused_q.REDUCE_PART, fused_q.ADAM_PART, fused_q.FusedQ.reduce_blocks = 1024, 2048, 8
    q_base.COPY_PART = 2048
    assert fused.WIDEST == 128
    patch_once()
    {"pqn": check_pqn, "dqn": check_dqn}[sys.argv[1]]()
