"""Checks of the Triton kernels, run by tests/test_fused.py in a process of their own: `fused_checks.py GROUP`."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch

from shoal.algos import fused, kernels, ops, optim, ppo
from shoal.nn import fused as cores
from shoal.nn import kernels as core_kernels
from shoal.nn import recurrent
from shoal.train import Trainer, options_for

PPO = [
    ("cartpole", {"nn": {"hidden": 32, "activation": "tanh"}, "train": {"normalize_obs": True}}),
    ("breakout", {"nn": {"hidden": 64}, "train": {"max_grad_norm": 0.01}}),
    ("squared", {"nn": {"hidden": 16}, "train": {"value_clip": 0.05, "max_grad_norm": 0.0}}),
    ("memory", {"nn": {"hidden": 32}, "train": {"optimizer": "adamw", "weight_decay": 0.1}}),
    ("pong", {"nn": {"hidden": 32}, "train": {"normalize_advantage": "batch", "clip": 0.01, "learning_rate": 0.03}}),
    ("vacuum", {"nn": {"hidden": 32}, "train": {"entropy_coef": 0.1}}),  # agents that die, and masks
    ("breakout", {"nn": {"hidden": 32}, "train": {"optimizer": "muon", "weight_decay": 0.1, "learning_rate": 0.02}}),
]


def trainer_of(env: str, tables: dict[str, Any]) -> Trainer:
    train = {"horizon": 8, "minibatches": 3, "epochs": 2, "total_steps": 10**6, **tables.get("train", {})}
    vec = {"num_envs": 12, "backend": "serial"}
    trainer = Trainer(env, options_for("", {"device": "cpu", "nn": tables["nn"], "train": train, "vec": vec}))
    trainer.start()
    trainer.collector.collect([learner.generator for learner in trainer.learners])
    return trainer


def check_ppo() -> None:
    """Rollouts and whole updates. Products in float32: bfloat16 would hide what differs."""
    optim.orthogonal = partial(optim.orthogonal, kind=torch.float32)
    for env, tables in PPO:
        plain, fast = trainer_of(env, tables), trainer_of(env, tables)
        one, two = plain.learners[0], fast.learners[0]
        assert not fused.why_not(two), (env, fused.why_not(two))
        two.optimizer.rate = torch.tensor(two.config.learning_rate)  # as on a GPU
        two.fused = fused.Fused(two, tile=16, exact=True)
        rollout = two.rollout
        wanted = [part.clone() for part in (rollout.logits, rollout.values, rollout.actions)]
        two.fused.begin()
        for part in (rollout.logits, rollout.values, rollout.actions):
            part.zero_()
        taken = torch.zeros(rollout.rows, dtype=torch.int32)
        for t in range(rollout.horizon):
            two.fused.act(t, taken)
            assert torch.equal(taken.long(), rollout.actions[t, :, 0])
        two.fused.act(rollout.horizon)
        for mine, theirs in zip((rollout.logits, rollout.values, rollout.actions), wanted):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
        for _ in range(2):
            two.fused.begin()
            metrics = ppo.update(one), ppo.update(two)
            for name in metrics[0]:
                torch.testing.assert_close(metrics[0][name], metrics[1][name], rtol=2e-3, atol=1e-5, equal_nan=True)
            close = {"rtol": 1e-3, "atol": 3e-4 if one.config.optimizer == "muon" else 3e-5}
            torch.testing.assert_close(one.weights, two.weights, **close)
        before = trainer_of(env, tables).learners[0].weights
        assert (before - two.weights).abs().max() > 5 * close["atol"]  # they have moved by more than may differ
        print("checked", env)


def check_sums() -> None:
    """GAE, V-trace and running returns."""
    torch.manual_seed(0)
    ops._is_for_triton = lambda *parts: False
    for steps, rows in ((1, 1), (7, 45), (16, 32)):
        rewards, values, dones = torch.randn(steps, rows), torch.randn(steps + 1, rows), torch.rand(steps, rows) < 0.3
        ratios = torch.rand(steps, rows) * 2
        carry = torch.randn(rows)
        found = []
        for ours in (False, True):
            ops._is_for_c = lambda *parts: False
            ops._is_for_triton = lambda *parts, ours=ours: ours
            kept = carry.clone()
            sums = ops.running_returns(rewards, dones, 0.97, kept)
            both = ops.vtrace(rewards, values, dones, ratios, 0.97, 0.9, 1.2, 0.8)
            found.append([ops.gae(rewards, values, dones, 0.97, 0.9), *both, sums, kept])
        for mine, theirs in zip(*found):
            torch.testing.assert_close(mine, theirs)
    print("checked sums")


def check_cores() -> None:
    """LSTM and MinGRU, forwards and backwards, with resets, and one step of each."""
    torch.manual_seed(0)
    for kind in ("mingru", "lstm"):
        for inputs in (6, 8):
            core = recurrent.CORES[kind](inputs, 8)
            x = torch.randn(7, 5, inputs, requires_grad=True)
            state = tuple(torch.randn_like(part) for part in core.initial_state(5))
            resets = torch.rand(7, 5) < 0.3
            resets[0] = False
            found = []
            for ours in (False, True):
                cores.is_for = lambda part, ours=ours: ours
                core.zero_grad()
                x.grad = None
                out = core.unroll(x, state, resets)
                (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
                with torch.no_grad():
                    step, new = core.forward(x[0], state)
                found.append([out.detach(), x.grad.clone(), *[p.grad.clone() for p in core.parameters()], step, *new])
            for mine, theirs in zip(*found):
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    print("checked cores")


def check_carry() -> None:
    """The recurrent state after a step: zero where a game ended or an agent is out, kept aside where it was cut off."""
    torch.manual_seed(0)
    new, state, kept = torch.randn(9, 5), torch.randn(9, 5), torch.randn(9, 5)
    dones, alive, later, cut = (torch.rand(4, 9) < 0.5).unbind()
    wanted = torch.where(cut.unsqueeze(1), new, kept)
    kernels.carry[(2,)](new, state, dones, alive, later, cut, kept, 9, CUT=True, ALIVE=True, S=5, PART=32)
    torch.testing.assert_close(state, new * (~dones & alive & later).unsqueeze(1))
    torch.testing.assert_close(kept, wanted)
    print("checked carry")


def check_compiles() -> None:
    """Every kernel compiles for an H100, which needs no GPU, and keeps to a block's shared memory."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    number, pointer, whole = "fp32", "*fp32", {"rows", "count", "size", "blocks", "parts", "steps"}
    numbers = {
        "clip",
        "value_clip",
        "value_coef",
        "entropy_coef",
        "gamma",
        "lam",
        "limit",
        "decay",
        "scale_1",
        "scale_2",
    }
    numbers |= {"beta1", "beta2", "eps"}
    longs, flags = {"order", "actions", "edges"}, {"dones", "resets", "next_resets", "alive", "next_alive", "cut"}
    shape = {"D": 118, "DP": 128, "H": 128, "A": 3, "ACT": 1, "UNIT": 1.0, "NORM": False, "MASKED": False}
    shape |= {"KIND": kernels.BFLOAT16}
    sizes = {"D": 118, "DP": 128, "H": 128}
    jobs = [
        (kernels.act, {**shape, "BM": 64, "masks": None}, 4),
        (kernels.learn, {**shape, "COUNTED": False, "CLIPPED": False, "BM": 128, "masks": None, "counts": None}, 8),
        (kernels.reduce, {"BEGIN": True, "END": True, "BLOCKS": 128, "PART": 32}, 4),
        (kernels.adam, {"D": 118, "H": 128, "MATRICES": True, "DECOUPLED": False, "PARTS": 2048, "PART": 256}, 4),
        (kernels.muon, {**sizes, "MOMENTUM": 0.95, "STEPS": 5, "PARTS": 2048, "KIND": kernels.BFLOAT16}, 8),
        (kernels.spread_of_parts, {"COUNTED": False, "STANDARDIZE": True, "PART": 2048, "counts": None}, 8),
        (kernels.advantages, {"PART": 32, "rho": None, "c": None}, 1),
        (kernels.running_returns, {"PART": 32}, 1),
        (kernels.carry, {"CUT": True, "ALIVE": True, "S": 128, "PART": 256}, 4),
        (core_kernels.mingru_forward, {"S": 128, "PART": 256}, 4),
        (core_kernels.mingru_backward, {"S": 128, "PART": 256}, 4),
        (core_kernels.lstm_forward, {"HAS_RESETS": True, "HAS_NEXT": True, "S": 128, "PART": 256}, 4),
        (core_kernels.lstm_backward, {"HAS_RESETS": True, "HAS_NEXT": True, "S": 128, "PART": 256}, 4),
    ]
    for kernel, constants, warps in jobs:
        kinds = {}
        for name in kernel.arg_names:
            kinds[name] = (
                "constexpr"
                if name in constants
                else "i32"
                if name in whole
                else number
                if name in numbers
                else "*i64"
                if name in longs
                else "*i1"
                if name in flags
                else "*i32"
                if name == "env_actions"
                else pointer
            )
        places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        made = triton.compile(ASTSource(kernel, kinds, places), GPUTarget("cuda", 90, 32), options={"num_warps": warps})
        assert made.metadata.shared <= 227 << 10, (kernel.__name__, made.metadata.shared)
        print("checked", kernel.__name__)


if __name__ == "__main__":
    globals()[f"check_{sys.argv[1]}"]()
