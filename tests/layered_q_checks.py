"""Checks of LayeredQ (shoal/algos/fast/layered_q.py), run by tests/test_fused_q.py: `layered_q_checks.py GROUP`."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

import shoal
from shoal.algos import dqn, pqn
from shoal.algos.collect.device import DeviceCollector
from shoal.algos.fast import layer_stack, layered_layer, layered_q, q_base
from shoal.algos.fast.tiles import Tile, Tiles
from tests.fake_gpu import GpuLikeVec
from tests.fused_checks import Odd, patch_once
from tests.fused_q_checks import check_dqn_of, check_pqn_of, make
from tests.layered_checks import Noise, compile_launches
from tests.training import make_trainer

MEMORY, WIDE, MADE = layer_stack.MEMORY, layer_stack.WIDE, list[Any]()
SMALL = {"hidden": 16}
THREE = {"hidden": 24, "layers": 3}
HALVES = Tile(32, 128, 64)
LARGE = Tiles(forward=HALVES, backward=HALVES, grads=Tile(64, 128, 16))
# a minibatch in parts: less memory than its planes take
PQN: list[tuple[Any, dict[str, Any]]] = [
    ("cartpole", {"nn": {"hidden": 40, "layers": 1, "activation": "tanh"}, "train": {"normalize_obs": True}}),
    ("vacuum", {"nn": THREE, "train": {"loss": "huber", "max_grad_norm": 0.01}, "num_envs": 5}),  # deaths and masks
    (partial(Odd, 150, 17, np.uint8), {"nn": {"hidden": 140}, "train": {}, "num_envs": 45, "memory": 1 << 13}),
    (partial(Odd, 9, 90), {"nn": {**THREE, "activation": "tanh"}, "train": {"layer_norm": False}}),
    # the gradients of all weights in parts
    (partial(Odd, 5, 3), {"nn": {**SMALL, "layers": 1}, "train": {}, "num_envs": 90}),
]
DQN: list[tuple[Any, dict[str, Any]]] = [
    ("cartpole", {"nn": {"hidden": 40, "layers": 1, "activation": "tanh"}, "train": {"layer_norm": True, "n_step": 3}}),
    ("vacuum", {"nn": THREE, "train": {"target_tau": 0.1, "layer_norm": True}, "num_envs": 5}),
    (partial(Odd, 70, 3), {"nn": {"hidden": 140}, "train": {"double": False, "loss": "mse", "normalize_obs": True}}),
    # next observations in parts
    (partial(Odd, 5, 3, np.uint8), {"nn": THREE, "train": {"layer_norm": True, "batch_size": 80}, "memory": 1 << 8}),
]
TILES: list[tuple[Any, dict[str, Any]]] = [
    (partial(Odd, 150, 5, np.uint8), {"nn": {"hidden": 256}, "train": {}}),
    (
        partial(Odd, 150, 5),
        {"nn": {"hidden": 140, "layers": 3}, "train": {"layer_norm": False}, "num_envs": 45, "memory": 1 << 13},
    ),
    (partial(Odd, 20, 3), {"nn": {"hidden": 130, "layers": 3}, "train": {"normalize_obs": True}, "num_envs": 90}),
]
IMAGES: list[tuple[Any, dict[str, Any]]] = [
    ("maze", {"nn": SMALL, "env": {"side": 5}, "train": {}, "num_envs": 3}),
    (partial(Noise, (3, 5, 4), spaces.Discrete(3), np.uint8), {"nn": {**SMALL, "layers": 1}, "train": {}}),
]


def check_pqn(cases: Any = PQN, tiles: Tiles | None = None) -> None:
    """Rollouts and whole updates."""
    for env, tables in cases:
        check_pqn_of(env, tables, layered_q.not_covered, partial(make_kernels, tables, tiles))
    made = [layer for kernels in MADE for layer in kernels.matrices]
    assert cases is IMAGES or max(layer.norm_parts for layer in made) > 1
    assert cases is not PQN or max(layer.parts for layer in made) > 1
    assert cases is not TILES or max(kernels.grad_parts for kernels in MADE) > 1


def check_dqn() -> None:
    """Updates from the replay, before and after it has enough transitions."""
    for env, tables in DQN:
        check_dqn_of(env, tables, layered_q.not_covered, partial(make_kernels, tables, None))


def check_tiles() -> None:
    """Layers that count as wide."""
    layer_stack.WIDE, layer_stack.PROCESSORS = 128, 64
    check_pqn(TILES, LARGE)


def check_images() -> None:
    """Convolutions before the layers."""
    check_pqn(IMAGES)


def check_collector() -> None:
    """Two iterations of PQN with envs on a GPU that end at a limit, against the plain path."""
    train = {"horizon": 6, "minibatches": 2, "epochs": 1, "total_steps": 10**6, "epsilon": 0.3, "learning_rate": 0.01}
    for env in ("cartpole", "vacuum"):
        own = {"nn": THREE, "env": {"max_steps": 4}, "train": train, "vec": {"num_envs": 6, "backend": "serial"}}
        plain, on_card = (make_trainer(env, algo="pqn", **own) for _ in range(2))
        one, two = plain.learners[0], on_card.learners[0]
        two.optimizer.rate = torch.tensor(two.config.learning_rate)
        two.fused = make_kernels({}, None, two, [two.rollout.rows * 3] * 2)
        on_card.vec.close()
        on_card.vec = shoal.make(env, 6, backend="serial", **own["env"])
        on_card.collector = DeviceCollector(GpuLikeVec(on_card.vec), on_card.seats, [two.fused])
        for trainer in (plain, on_card):
            for _ in range(2):
                trainer.iterate()
        assert two.rollout.truncations.flags().any()
        assert torch.equal(one.rollout.actions, two.rollout.actions)
        torch.testing.assert_close(one.rollout.logits, two.rollout.logits, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(one.weights, two.weights, rtol=1e-3, atol=1e-4)
        print("checked", env)
        plain.close()
        on_card.close()


# (algorithm, env, tables); rows: of tiles, as for a card with little shared memory
COMPILED: list[tuple[str, Any, dict[str, Any]]] = [
    ("pqn", partial(Odd, 2048, 17, np.uint8), {"nn": {"hidden": 512, "layers": 3}, "train": {}}),
    ("pqn", "breakout", {"nn": {"hidden": 512, "layers": 3}, "train": {"layer_norm": False}}),
    ("pqn", "vacuum", {"nn": {"hidden": 48}, "train": {"normalize_obs": True}, "rows": 64}),
    ("dqn", "breakout", {"nn": {"hidden": 512, "layers": 3}, "train": {"layer_norm": True}}),
    ("dqn", partial(Odd, 300, 255), {"nn": {"hidden": 384}, "train": {}, "rows": 64}),
    ("pqn", "maze", {"nn": {}, "train": {}}),
]


def check_compiles(card: int = 90) -> None:
    """All that a rollout and an update launch compiles for a GPU, which needs none, and keeps to its shared memory."""
    launches: list[tuple[Any, Any, Any, int, bool]] = []
    for module in (q_base, layer_stack, layered_q):
        module.launch = lambda kernel, grid, *args, **options: launches.append((kernel, args, options, room, True))
    for algo, env, tables in COMPILED:
        room = (99 if "rows" in tables else 227) << 10
        learner = make(env, algo, tables).learners[0]
        learner.optimizer.rate = torch.tensor(0.1)
        assert not layered_q.not_covered(learner)
        sizes = [512, 511] if algo == "pqn" else [learner.config.batch_size]
        layer_stack.WIDE = 1 << 20 if "rows" in tables else WIDE
        learner.fused = layered_q.LayeredQ(learner, sizes, tables.get("rows", 0))
        learner.fused.begin()
        learner.fused.act(0)
        if algo == "pqn":
            pqn.update(learner)
            continue
        learner.replay.store(learner.rollout)
        dqn.improve_on_gpu(learner, next(iter(dqn.batches(learner))), torch.tensor(True))
    assert {kernel.__name__ for kernel, *_ in launches} >= {
        "norm",
        "norm_backward",
        "wide_weight_grads",
        "learn_heads",
        "targets",
    }
    compile_launches(launches, card)


def make_kernels(tables: dict[str, Any], tiles: Tiles | None, learner: Any, sizes: list[int]) -> Any:
    """The kernels in float32, in small tiles."""
    layer_stack.MEMORY = tables.get("memory", MEMORY)
    made = layered_q.LayeredQ(learner, sizes, rows=32, columns=64, exact=True, tiles=tiles)
    assert (made.chunk < max(sizes)) == ("memory" in tables), (made.chunk, sizes)
    assert bool(made.wide) == (tiles is not None)
    MADE.append(made)
    return made


if __name__ == "__main__":
    torch.set_num_threads(1)
    if not sys.argv[1].startswith("compile"):
        # the interpreter takes about as long for a block of any size
        layer_stack.REDUCE_PART, layer_stack.ADAM_PART, q_base.COPY_PART = 4096, 8192, 8192
        layer_stack.WIDE = 1 << 20  # but in check_tiles
        layer_stack.PROCESSORS, layered_layer.NORM_TILE, layer_stack.GRADIENT_ROWS = 1, 512, 16
        patch_once()
    globals()[f"check_{sys.argv[1]}"]()
