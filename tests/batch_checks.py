"""Checks of the kernels that prepare PPO's batches, run by tests/test_batch_kernels.py in a process of their own."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import torch

from shoal.algos import learner as learners
from shoal.algos import ppo
from shoal.algos.fast import base, batch_kernels, fused, kernels, layered
from tests.fused_checks import patch_once, with_a_rollout

SMALL = {"hidden": 16}
BATCHES: list[tuple[str, dict[str, Any]]] = [
    ("breakout", {"nn": SMALL, "train": {"normalize_reward": True, "normalize_advantage": "batch"}}),
    # more steps than a tile has, more rows than a block has
    ("cartpole", {"nn": SMALL, "train": {"horizon": 70, "normalize_reward": True, "gamma": 0.9}, "num_envs": 37}),
    ("cartpole", {"nn": SMALL, "train": {"horizon": 33, "gae_lambda": 0.5}, "env": {"max_steps": 5}, "limit": 5}),
    ("vacuum", {"nn": SMALL, "train": {"normalize_reward": True, "horizon": 9}, "env": {"max_steps": 5}, "limit": 5}),
    ("pendulum", {"nn": SMALL, "train": {"gamma": "linear(0.9, 0.99)"}}),
]
# convolutions take Triton's interpreter ten times as long as all of the above
IMAGES: list[tuple[str, dict[str, Any]]] = [
    ("maze", {"nn": {"hidden": 16, "encoder": "grid"}, "env": {"max_steps": 6}, "limit": 6, "num_envs": 3}),
]


def fix_truncations(rollout: Any, limit: int) -> None:
    """Moves a list of truncations into places of fixed sizes, as a GPU has them."""
    added, rollout.truncations.added = rollout.truncations.added, []
    assert added, "nothing was truncated"
    rollout.truncations.reserve(limit)
    for one in added:
        rollout.truncations.fixed_flags[one.steps, one.rows] = True
        rollout.truncations.put(one)


def check_images() -> None:
    check_batches(IMAGES)


def check_batches(cases: list[tuple[str, dict[str, Any]]] = BATCHES) -> None:
    """The same batch, twice, and the same running moments after it; normalized advantages as learning sees them."""
    for env, tables in cases:
        plain, fast = (with_a_rollout(env, tables).learners[0] for _ in range(2))
        for learner in (plain, fast):
            if limit := tables.get("limit"):
                fix_truncations(learner.rollout, limit)
            learner.running_return.copy_(torch.linspace(-1.0, 1.0, learner.rollout.rows))
        kind = layered.Layered if fused.not_covered(fast) else fused.Fused
        fast.fused = kind(fast, 16, exact=True)
        fast.fused.begin()
        if plain.schedules:  # a number on the device, as with a GPU
            for learner in (plain, fast):
                learner.config = dataclasses.replace(learner.config, gamma=torch.tensor(0.93))
        for _ in range(2):  # moments continue
            one, two = ppo.make_batch(plain), ppo.make_batch(fast)
            assert two.moments is not None
            advantages = two.advantages
            if plain.config.normalize_advantage == "batch":
                advantages = (advantages - two.moments[0]) * two.moments[1]
            explained = ppo.ops.explained_variance(one.values, one.returns, one.counts)
            pairs = [(one.advantages, advantages), (explained, two.moments[2]), (one.counts, two.counts)]
            pairs += [(getattr(one, x), getattr(two, x)) for x in ("logprobs", "returns", "values", "actions", "masks")]
            pairs += [(plain.running_return, fast.running_return)]
            if plain.reward_moments is not None:
                state = fast.reward_moments.state_dict()
                pairs += [(value, state[name]) for name, value in plain.reward_moments.state_dict().items()]
            for mine, theirs in pairs:
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)
        print("checked", env)


def check_order() -> None:
    """Every number once, another order for other keys, and no trace of the old one."""
    torch.manual_seed(0)
    for count in (1, 2, 7, 100, 1025, 5000):
        orders = [learners.ordered_by(torch.randint(0, 1 << 32, (8,)), count) for _ in range(2)]
        assert all(torch.equal(order.sort()[0], torch.arange(count)) for order in orders)
        if count == 5000:
            assert (orders[0] == orders[1]).sum() < 20
            neighbours = torch.corrcoef(torch.stack([orders[0][:-1], orders[0][1:]]).double())[0, 1]
            assert abs(neighbours) < 0.05
    print("checked orders")


def check_compiles() -> None:
    """They compile for an H100, which needs none, and keep to a block's 48 KB of shared memory."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    tile = {"alive": None, "COUNTED": False, "CHUNK": 32, "PART": 32}
    jobs: list[tuple[Any, dict[str, Any], set[str]]] = [  # with the arguments that are doubles
        (batch_kernels.return_sums, tile, {"sums"}),
        (batch_kernels.reward_scale, {"BLOCKS": 512}, {"sums", "mean", "var", "count"}),
        (batch_kernels.targets, {**tile, "SCALED": True, "TRUNCATES": True, "A": 3}, {"sums"}),
        (batch_kernels.batch_stats, {"BLOCKS": 512}, {"sums"}),
        (kernels.shuffle, {"BITS": 19, "PART": 1024}, set()),
    ]
    known = dict.fromkeys(("steps", "rows", "window", "blocks", "count"), "i32")
    known |= dict.fromkeys(("dones", "flags"), "*i1") | dict.fromkeys(("actions", "keys", "out"), "*i64")
    for kernel, constants, doubles in jobs:
        kinds = {name: known.get(name, "*fp32") for name in kernel.arg_names}
        kinds |= dict.fromkeys(doubles, "*fp64") | dict.fromkeys(constants, "constexpr")
        if kernel is batch_kernels.batch_stats:
            kinds["out"] = "*fp32"
        places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        source = ASTSource(kernel, kinds, places)
        made = triton.compile(source, GPUTarget("cuda", 90, 32), options={"num_warps": 4})
        assert made.metadata.shared <= 48 << 10
        print("checked", kernel.__name__)


if __name__ == "__main__":
    base.TARGET_ROWS = 16
    if sys.argv[1] != "compiles":
        patch_once()
    globals()[f"check_{sys.argv[1]}"]()
