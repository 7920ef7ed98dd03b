"""Checks of the Triton kernels, run by tests/test_fused.py in a process of their own: `fused_checks.py GROUP`."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

import shoal
from shoal.algos import ops, ppo
from shoal.algos.collect import device
from shoal.algos.collect.host_envs import HostEnvCollector
from shoal.algos.fast import core_kernels as recurrent_kernels
from shoal.algos.fast import fused, fused_core, kernels
from shoal.algos.optimizers import muon
from shoal.nn import fused as cores
from shoal.nn import kernels as core_kernels
from shoal.nn.cores import CORES
from shoal.train import Trainer
from tests.fake_gpu import GpuLikeVec
from tests.in_flight import hazards
from tests.training import make_trainer


class Odd(gymnasium.Env[Any, Any]):
    """Random observations of any size, and any number of choices."""

    def __init__(self, size: int, choices: int, dtype: Any = np.float32) -> None:
        high = 255 if dtype is np.uint8 else 1
        self.observation_space = spaces.Box(0, high, (size,), dtype)
        self.action_space = spaces.Discrete(choices)

    def _look(self) -> Any:
        numbers = self.np_random.random(self.observation_space.shape) * self.observation_space.high
        return numbers.astype(self.observation_space.dtype)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._look(), {}

    def step(self, action: Any) -> Any:
        return self._look(), float(self.np_random.random() + 0.1 * action), self.np_random.random() < 0.1, False, {}


SMALL = {"hidden": 16}
PPO: list[tuple[Any, dict[str, Any]]] = [
    ("cartpole", {"nn": {"hidden": 64, "activation": "tanh"}, "train": {"normalize_obs": True}}),
    ("breakout", {"nn": {"hidden": 32}, "train": {"max_grad_norm": 0.01}}),
    (
        "squared",
        {
            "nn": SMALL,
            "train": {"value_clip": 0.05, "max_grad_norm": 0.0, "learning_rate": 0.01, "epochs": 2},
            "blocks": 1,
        },
    ),
    ("memory", {"nn": {"hidden": 32}, "train": {"optimizer": "adamw", "weight_decay": 0.1}}),
    ("pong", {"nn": {"hidden": 32}, "train": {"normalize_advantage": "batch", "clip": 0.01, "learning_rate": 0.03}}),
    ("vacuum", {"nn": SMALL, "train": {"entropy_coef": 0.1}}),  # agents that die, and masks
    ("breakout", {"nn": {"hidden": 32}, "train": {"optimizer": "muon", "weight_decay": 0.1, "learning_rate": 0.02}}),
    ("cartpole", {"nn": {"hidden": 32}, "train": {"optimizer": "muon", "learning_rate": 0.02, "gae_lambda": 0.0}}),
    # the gradient of a minibatch in several launches, of more blocks than are added up at once
    ("cartpole", {"nn": SMALL, "train": {"minibatches": 1}, "num_envs": 25, "blocks": 10}),
    (partial(Odd, 128, 15), {"nn": SMALL, "train": {"normalize_advantage": "none"}}),
    (partial(Odd, 1, 1), {"nn": SMALL, "train": {"minibatches": 7}}),
    (partial(Odd, 17, 2, np.uint8), {"nn": SMALL, "train": {"shuffle": False, "minibatches": 6}, "num_envs": 11}),
]

RECURRENT: list[tuple[Any, dict[str, Any]]] = [
    ("breakout", {"nn": {**SMALL, "core": "mingru"}, "train": {"segment": 4, "max_grad_norm": 0.01}}),
    (
        "memory",
        {"nn": {"hidden": 32, "core": "lstm"}, "train": {"optimizer": "adamw", "weight_decay": 0.1, "epochs": 2}},
    ),
    (
        "cartpole",
        {"nn": {**SMALL, "core": "lstm", "activation": "tanh"}, "train": {"normalize_obs": True, "segment": 2}},
    ),
    ("cartpole", {"nn": {"hidden": 32, "core": "mingru"}, "train": {"optimizer": "muon", "learning_rate": 0.02}}),
    (
        "breakout",
        {"nn": {**SMALL, "core": "lstm"}, "train": {"optimizer": "muon", "learning_rate": 0.02, "segment": 4}},
    ),
    (
        "vacuum",
        {
            "nn": {**SMALL, "core": "mingru"},
            "train": {"entropy_coef": 0.1, "normalize_advantage": "batch"},
            "num_envs": 5,
        },
    ),
    ("vacuum", {"nn": {**SMALL, "core": "lstm"}, "train": {"segment": 4, "value_clip": 0.05}, "num_envs": 5}),
    (
        partial(Odd, 17, 15, np.uint8),
        {"nn": {**SMALL, "core": "lstm"}, "train": {"segment": 1, "shuffle": False, "minibatches": 6}, "num_envs": 11},
    ),
    (partial(Odd, 1, 1), {"nn": {**SMALL, "core": "mingru"}, "train": {"segment": 1}, "num_envs": 19}),
    # games that end inside segments
    (partial(Odd, 5, 3), {"nn": {**SMALL, "core": "lstm"}, "train": {"minibatches": 2}}),
    (partial(Odd, 5, 3), {"nn": {**SMALL, "core": "mingru"}, "train": {"minibatches": 2}}),
    # several tiles to a part of the slopes by weights
    ("cartpole", {"nn": {**SMALL, "core": "mingru"}, "train": {"minibatches": 1}, "num_envs": 25, "processors": 12}),
]


def with_a_rollout(env: Any, tables: dict[str, Any]) -> Trainer:
    """A trainer that has collected a rollout, with weights that are nowhere zero."""
    train = {"horizon": 8, "minibatches": 3, "epochs": 1, "total_steps": 10**6, **tables.get("train", {})}
    vec = {"num_envs": tables.get("num_envs", 7), "backend": "serial"}  # minibatches of several sizes
    trainer = make_trainer(env, nn=tables["nn"], train=train, vec=vec, env=tables.get("env", {}))
    trainer.start()
    torch.manual_seed(0)
    for learner in trainer.learners:  # biases begin as zeros, in which no mistake would show
        learner.weights.data.add_(torch.randn_like(learner.weights), alpha=0.05)
    trainer.collector.collect()
    return trainer


def assert_nearly_all_close(one: torch.Tensor, two: torch.Tensor, rtol: float, atol: float) -> None:
    """One number of a thousand may differ: a ReLU's input that is 0 but for rounding changes a filter's gradient."""
    far = ~torch.isclose(one, two, rtol=rtol, atol=atol)
    assert far.sum() <= far.numel() // 1000, f"{far.sum()} of {far.numel()} differ"
    assert (one - two).abs().max() <= 10 * max(atol, rtol * float(one.abs().max()))


def update_both(one: Any, two: Any) -> dict[str, float]:
    """An update by the plain path and one by the kernels: the same metrics and weights."""
    assert two.fused is not None
    two.fused.begin()
    metrics = ppo.update(one), ppo.update(two)
    for name in metrics[0]:
        torch.testing.assert_close(metrics[0][name], metrics[1][name], rtol=2e-3, atol=1e-5, equal_nan=True)
    close = {"rtol": 1e-3, "atol": 3e-4 if one.config.optimizer == "muon" else 3e-5}
    assert_nearly_all_close(one.weights, two.weights, **close)
    for name, value in one.optimizer.state.items():
        assert_nearly_all_close(value, two.optimizer.state[name], rtol=5e-3, atol=1e-5)
    copy = two.fused.narrow.clone()
    two.fused.begin()
    assert torch.equal(copy, two.fused.narrow)  # the optimizer kept it up to date
    return close


def use_few_blocks() -> None:
    """The interpreter takes about as long for a block of any size: few blocks, but more than one of each kind."""
    fused.REDUCE_PART, fused.ADAM_PART, fused.Fused.reduce_blocks, fused_core.FusedCore.reduce_blocks = 1024, 2048, 8, 2


def patch_once() -> None:
    """The interpreter replaces the functions of Triton's language at each call of a kernel: here once for each module.

    That is a third of its time. Nothing in this process needs the functions that it replaces.
    """
    from triton.runtime import interpreter

    replace, modules = interpreter._patch_lang, set()

    def replace_once(function: Any) -> Any:
        if id(function.__globals__) not in modules:
            modules.add(id(function.__globals__))
            replace(function)
        return interpreter._LangPatchScope()  # of no changes: nothing is restored

    interpreter._patch_lang = replace_once


def check_ppo(first: int = 0, last: int = len(PPO) // 2) -> None:
    """Rollouts and whole updates. Products in float32: bfloat16 would hide what differs."""
    muon.orthogonal = partial(muon.orthogonal, dtype=torch.float32)
    processors = fused_core.PROCESSORS
    for env, tables in (PPO + RECURRENT)[first:last]:
        fused.BLOCKS, fused_core.PROCESSORS = tables.get("blocks", 8), tables.get("processors", processors)
        plain, fast = with_a_rollout(env, tables), with_a_rollout(env, tables)
        one, two = plain.learners[0], fast.learners[0]
        assert not fused.not_covered(two), (env, fused.not_covered(two))
        two.optimizer.rate = torch.tensor(two.config.learning_rate)  # as on a GPU
        kind = fused_core.FusedCore if two.rollout.state else fused.Fused
        two.fused = kind(two, tile=16, exact=True)
        before = two.weights.detach().clone()
        act_again(two)
        close = update_both(one, two)  # several minibatches: the optimizer continues from its state
        assert (before - two.weights).abs().max() > 5 * close["atol"]  # they have moved by more than may differ
        if one.rollout.masks is not None:
            for learner in (one, two):  # nothing but what was done was allowed
                rollout = learner.rollout
                rollout.masks[:-1] = torch.nn.functional.one_hot(rollout.actions[..., 0], rollout.masks.shape[-1])
                rollout.logits.copy_(learner.head.mask(rollout.logits, rollout.masks[:-1]))
            act_again(two, has_moved=True)
            for mine, theirs in zip(one.rollout.tensors(), two.rollout.tensors()):
                mine.copy_(theirs)
            update_both(one, two)
        if one.rollout.alive is not None:
            for learner in (one, two):  # nobody counts
                learner.rollout.alive[:] = False
            update_both(one, two)
        print("checked", env)


def check_more_ppo() -> None:
    """The other half of them."""
    check_ppo(len(PPO) // 2, len(PPO))


def check_recurrent_ppo() -> None:
    """Those with a core."""
    check_ppo(len(PPO), len(PPO) + len(RECURRENT) // 2)


def check_more_recurrent_ppo() -> None:
    """The other half of them."""
    check_ppo(len(PPO) + len(RECURRENT) // 2, len(PPO) + len(RECURRENT))


def act_again(learner: Any, has_moved: bool = False) -> None:
    """The kernel plays the rollout again: the same actions, and but for a policy that has moved logits and values."""
    rollout, kernel = learner.rollout, learner.fused
    parts = (rollout.logits, rollout.values, rollout.actions)
    wanted = [part.clone() for part in parts]
    kernel.begin()
    for part in parts:
        part.zero_()
    starts, after = ([part.clone() for part in parts] for parts in (rollout.starts, rollout.state))
    for state, start in zip(rollout.state, starts):
        state.copy_(start[0])
    taken = torch.zeros(rollout.actions[0].shape, dtype=torch.float32 if learner.head.has_box else torch.int32)
    for t in range(rollout.horizon):
        rollout.save_start(t)
        new = kernel.act(t, taken)
        torch.testing.assert_close(taken.to(rollout.actions), learner.head.to_device(rollout.actions[t]))
        for k, part in enumerate(new):
            device._carry(rollout, t, k, part)
    kernel.act(rollout.horizon)
    if learner.head.has_box:
        torch.testing.assert_close(rollout.actions, wanted[2], rtol=1e-5, atol=1e-5)
    else:
        assert torch.equal(rollout.actions, wanted[2])
    for mine, theirs in zip(parts[:2], wanted):
        if not has_moved:
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip((*rollout.starts, *rollout.state), (*starts, *after)):
        if not has_moved:
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


COLLECTED: list[tuple[str, dict[str, Any]]] = [
    ("cartpole", {"nn": SMALL, "env": {"max_steps": 5}}),
    ("cartpole", {"nn": {**SMALL, "core": "lstm"}, "env": {"max_steps": 5}, "train": {"segment": 4}}),
    ("memory", {"nn": {"hidden": 32, "core": "mingru"}}),
    ("vacuum", {"nn": {**SMALL, "core": "mingru"}, "env": {"max_steps": 9}, "train": {"segment": 2}}),
]


def check_collectors() -> None:
    """Two iterations of both collectors on a GPU, whose kernels act and learn, against the plain ones."""
    for env, tables in COLLECTED:
        train = {"horizon": 8, "minibatches": 2, "epochs": 1, "total_steps": 10**6, **tables.get("train", {})}
        vec = {"num_envs": 8, "backend": "threads", "num_groups": 2, "num_threads": 2}
        own = {"nn": tables["nn"], "env": tables.get("env", {}), "train": train, "vec": vec}
        plain, on_card, bridged = (make_trainer(env, **own) for _ in range(3))
        for trainer in (on_card, bridged):
            learner = trainer.learners[0]
            learner.optimizer.rate = torch.tensor(learner.config.learning_rate)
            learner.fused = (fused_core.FusedCore if learner.rollout.state else fused.Fused)(learner, 16, exact=True)
            if trainer is on_card:
                trainer.vec.close()
                trainer.vec = shoal.make(env, 8, backend="serial", **own["env"])
                trainer.collector = device.DeviceCollector(GpuLikeVec(trainer.vec), trainer.seats, [learner.fused])
            else:
                trainer.collector = HostEnvCollector(trainer.vec, trainer.seats, learner.fused)
        for trainer in (plain, on_card, bridged):
            for _ in range(2):
                trainer.iterate()
        one = plain.learners[0]
        for two in (on_card.learners[0], bridged.learners[0]):
            assert torch.equal(one.rollout.actions, two.rollout.actions)
            for mine, theirs in zip([*one.rollout.tensors(), one.weights], [*two.rollout.tensors(), two.weights]):
                torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=3e-5)
            assert not two.rollout.truncations.is_fixed or two.rollout.truncations.flags().any()
        for trainer in (plain, on_card, bridged):
            trainer.close()
        print("checked", env)


def check_nan() -> None:
    """What is far off is clipped, what is not finite is seen by the loss, and no action is out of range."""
    for optimizer in ("adam", "muon"):
        train = {"normalize_obs": True, "minibatches": 1, "epochs": 1, "optimizer": optimizer}
        learner = with_a_rollout("cartpole", {"nn": SMALL, "train": train}).learners[0]
        learner.optimizer.rate = torch.tensor(learner.config.learning_rate)
        learner.fused = fused.Fused(learner, tile=16, exact=True)
        seen = learner.rollout.obs[0]
        seen[0, 3, 0], seen[0, 4, 1] = 50.0, -50.0  # more than 10 spreads from the mean
        learner.fused.begin()
        learner.fused.act(0)
        with torch.no_grad():
            logits, values, _ = learner.actor.step(seen[0], ())
        torch.testing.assert_close(learner.rollout.values[0], values, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(learner.rollout.logits[0], logits, rtol=1e-5, atol=1e-5)
        seen[3, 5, 1] = torch.nan
        metrics = ppo.update(learner)
        assert metrics["loss/value"].isnan(), metrics
        assert metrics["grad_norm"].isnan(), metrics
        learner.weights.data.fill_(torch.nan)
        learner.fused.act(0)
        assert 0 <= learner.rollout.actions[0].min() <= learner.rollout.actions[0].max() < 2
    print("checked nan")


def check_spread() -> None:
    """Mean and spread of advantages that are far from 0, of parts of any size."""
    torch.manual_seed(0)
    advantages, order = torch.randn(5000) * 0.01 + 300.0, torch.randperm(5000)
    counts = (torch.rand(5000) < 0.5).float()
    counts[order[4990:]] = 0.0  # nobody counts in the last part
    edges = torch.tensor([0, 1, 100, 4990, 5000])
    for weights in (None, counts):
        moments, metrics = torch.zeros(4, 4), torch.ones(9)
        kernels.advantage_stats[(4,)](
            advantages,
            weights,
            order,
            moments,
            metrics,
            edges,
            None,
            COUNTED=weights is not None,
            STANDARDIZE=True,
            PART=64,
        )
        assert metrics.tolist() == [0.0] * 8 + [1.0]
        for k in range(4):
            part = order[edges[k] : edges[k + 1]]
            some = advantages[part].double()
            n = torch.ones(len(part)) if weights is None else weights[part]
            total = max(float(n.sum()), 1.0)
            if not n.any():
                assert moments[k, 2] == 1.0
                continue
            mean = float((some * n).sum() / total)
            spread = float((((some - mean) ** 2 * n).sum() / total).sqrt())
            wanted = torch.tensor([mean, 1.0 / (spread + 1e-8), 1.0 / total])
            torch.testing.assert_close(moments[k, :3], wanted, rtol=2e-3, atol=0.0)
    print("checked spread")


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
        # numbers on the device (`Learner.hold_numbers`) give the same bits
        gamma, lam = (torch.tensor(number, dtype=torch.float64) for number in (0.97, 0.9))
        assert torch.equal(ops.gae(rewards, values, dones, gamma, lam), found[1][0])
        assert torch.equal(ops.running_returns(rewards, dones, gamma, carry.clone()), found[1][3])
    print("checked sums")


def check_cores() -> None:
    """LSTM and MinGRU, forwards and backwards, with resets, and one step of each."""
    torch.manual_seed(0)
    for kind in ("mingru", "lstm"):
        for inputs in (6, 8):
            core = CORES.find(kind)(inputs, 8)
            x = torch.randn(7, 5, inputs, requires_grad=True)
            state = tuple(torch.randn_like(part) for part in core.initial_state(5))
            resets = torch.rand(7, 5) < 0.3
            resets[0, :2] = True  # where a segment begins its state is as it was stored
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
    kernels.carry[(2,)](new, state, dones, alive, later, cut, kept, 9, TRUNCATES=True, ALIVE=True, S=5, PART=32)
    torch.testing.assert_close(state, new * (~dones & alive & later).unsqueeze(1))
    torch.testing.assert_close(kept, wanted)
    kernels.carry[(2,)](new, state, dones, None, None, None, None, 9, TRUNCATES=False, ALIVE=False, S=5, PART=32)
    torch.testing.assert_close(state, new * ~dones.unsqueeze(1))
    print("checked carry")


def check_parts() -> None:
    """What takes little time, in one process: importing torch and Triton takes longer."""
    for check in (check_nan, check_spread, check_sums, check_cores, check_carry):
        ours = ops._is_for_triton, ops._is_for_c, cores.is_for  # some checks replace them
        check()
        ops._is_for_triton, ops._is_for_c, cores.is_for = ours


def check_compiles() -> None:
    """Every kernel compiles for two cards, which needs none, and keeps to a block's shared memory there."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    number, pointer, whole = "fp32", "*fp32", {"rows", "count", "size", "blocks", "tiles", "parts", "steps"}
    whole |= {"plane", "part_size", "row_size", "L"}
    halves = {"inputs", "first", "second", "out", "gates", "acts", "hidden_in", "planes", "d_heads"}
    halves |= {"d_out", "d_gates", "d_skip", "d_first", "d_second"}
    numbers = {
        "gamma",
        "lam",
        "decay",
        "scale_1",
        "scale_2",
    }
    numbers |= {"beta1", "beta2", "eps"}
    longs, flags = (
        {"order", "actions", "edges", "segments"},
        {"dones", "resets", "next_resets", "alive", "next_alive", "truncated"},
    )
    shape = {"D": 118, "DP": 128, "H": 128, "A": 3, "ACT": 1, "UNIT": 1.0, "NORM": False, "MASKED": False}
    shape |= {"DTYPE": kernels.BFLOAT16, "SIZE": 1, "PARTS": 1, "table": None, "bounds": None}
    head = {"NUMBERS": 0, "SQUASH": False}
    sizes = {"D": 118, "DP": 128, "H": 128}
    gates, half = {"H": 128, "G": 4, "RECURRENT": True}, {"H": 128, "DTYPE": kernels.BFLOAT16}
    body, loss = (
        {**half, "DP": 128, "ACT": 1, "G": 4},
        {name: shape[name] for name in ("SIZE", "PARTS", "table", "bounds")},
    )
    loss |= {"COUNTED": False, "CLIPPED": False, "masks": None, "counts": None}
    planes = ("FIRST", "SECOND", "OUT", "HIDDEN_IN", "D_GATES", "D_SECOND", "D_FIRST")
    ours = recurrent_kernels
    muon_options = {"NUMBERS": 0, "MATRICES": 10, "MOMENTUM": 0.95, "STEPS": 5, "PARTS": 2048, "PART": 256}
    later = {"OVERLAP": False}
    jobs = [
        (ours.act, {**shape, **gates, "WIDTH": 1, "BM": 64, "masks": None}, 4),
        (ours.encode, {**body, "D": 118, "UNIT": 1.0, "NORM": False, "BM": 64}, 4),
        (ours.mingru_forward, {"H": 128, "PART": 256, "STAGES": 3}, 4),
        (ours.mingru_backward, {"H": 128, "PART": 256, "STAGES": 3}, 4),
        (ours.lstm_forward, {**half, "BM": 16, "STAGES": 3}, 8),
        (ours.lstm_backward, {**half, "BM": 16, "STAGES": 3}, 8),
        (ours.heads_loss, {**half, **loss, "A": 3, "MASKED": False, "BM": 64}, 4),
        (ours.layers_backward, {**body, "SKIP": True, "BM": 64}, 4),
        (ours.weight_grads, {**sizes, **gates, **{name: k for k, name in enumerate(planes)}, "A": 3, "BM": 64}, 8),
        (kernels.act, {**shape, **head, "WIDTH": 1, "BM": 64, "masks": None}, 4),
        (kernels.learn, {**shape, **head, **loss, **later, "BM": 128, "ROW": 32288}, 8),
        (kernels.reduce, {**later, "BEGIN": True, "END": True, "BLOCKS": 128, "PART": 32}, 4),
        (
            kernels.adam,
            {**sizes, **gates, **later, "NUMBERS": 0, "DECOUPLED": False, "PARTS": 2048, "PART": 256},
            4,
        ),
        (
            kernels.muon,
            {**sizes, **gates, **half, **muon_options, **later},
            8,
        ),
        (
            kernels.advantage_stats,
            {"COUNTED": False, "STANDARDIZE": True, "PART": 2048, "counts": None, "moments": None},
            8,
        ),
        (kernels.advantages, {"PART": 32, "HELD": False, "rho": None, "c": None}, 1),
        (kernels.running_returns, {"PART": 32, "HELD": False}, 1),
        (kernels.carry, {"TRUNCATES": True, "ALIVE": True, "S": 128, "PART": 256}, 4),
        (core_kernels.mingru_forward, {"S": 128, "PART": 256}, 4),
        (core_kernels.mingru_backward, {"S": 128, "PART": 256}, 4),
        (core_kernels.lstm_forward, {"HAS_RESETS": True, "HAS_NEXT": True, "S": 128, "PART": 256}, 4),
        (core_kernels.lstm_backward, {"HAS_RESETS": True, "HAS_NEXT": True, "S": 128, "PART": 256}, 4),
    ]
    small = {kernels.learn: {"BM": 64}, ours.lstm_forward: {"H": 64}, ours.lstm_backward: {"H": 64}}
    cards = [(90, 227 << 10, {}), (89, 99 << 10, small)]  # an H100, and an RTX 4090 with what is left to it
    used: dict[Any, int] = {}  # shared memory, by kernel
    for card, room, instead in cards:
        for kernel, constants, warps in jobs:
            if card == 89 and kernel not in small and used[kernel] < 48 << 10:
                continue  # what needs little of one card's shared memory fits into the other's
            constants = constants | instead.get(kernel, {})
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
                    else "*i8"
                    if name == "cleared"
                    else "*bf16"
                    if name == "narrow" or (name in halves and kernel.fn.__module__ == ours.__name__)
                    else pointer
                )
            # pointers, and how far apart planes lie, divide by 16, as they do where kernels are started
            apart = [
                k for k, name in enumerate(kernel.arg_names) if kinds[name][0] == "*" or name in ("plane", "part_size")
            ]
            places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
            source = ASTSource(kernel, kinds, places, {(k,): [["tt.divisibility", 16]] for k in apart})
            made = triton.compile(source, GPUTarget("cuda", card, 32), options={"num_warps": warps})
            used[kernel] = made.metadata.shared
            assert made.metadata.shared <= room, (card, kernel.__name__, made.metadata.shared)
            assert not hazards(made.asm["ttgir"]), (kernel.__name__, hazards(made.asm["ttgir"]))
            print("checked", kernel.__name__, "for", card)


if __name__ == "__main__":
    if sys.argv[1] != "compiles":
        use_few_blocks()
        patch_once()
    globals()[f"check_{sys.argv[1]}"]()
