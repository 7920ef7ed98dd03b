"""More checks of the Triton kernels, run by tests/test_fused.py: `layered_checks.py GROUP`.

Action heads of every kind, and networks that do not fit into one block (shoal/algos/fast/layered.py).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from shoal.algos import ppo
from shoal.algos.fast import base, fused, fused_core, layer_stack, layered, layered_core, layered_muon
from shoal.algos.fast.tiles import HOPPER, Tile, Tiles
from shoal.algos.optimizers import muon
from tests.fused_checks import SMALL, act_again, patch_once, update_both, use_few_blocks, with_a_rollout
from tests.in_flight import hazards, ptxas_says

MULTI = spaces.MultiDiscrete([3, 1, 5])
BOX = spaces.Box(np.array([-2.0, -1.0], np.float32), np.array([3.0, 1.0], np.float32))
MIXED = spaces.Dict({"a": BOX, "b": MULTI, "c": spaces.Box(-np.inf, np.inf, (1,)), "d": spaces.Discrete(3)})
BOUNDED = spaces.Dict({"a": MULTI, "b": BOX})


class Noise(gymnasium.Env[Any, Any]):
    """Random observations of any shape, and rewards for large actions of any space."""

    def __init__(self, shape: tuple[int, ...], actions: Any, dtype: Any = np.float32) -> None:
        self.observation_space = spaces.Box(0, 255 if dtype is np.uint8 else 1, shape, dtype)
        self.action_space = actions

    def _look(self) -> Any:
        numbers = self.np_random.random(self.observation_space.shape) * self.observation_space.high
        return numbers.astype(self.observation_space.dtype)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._look(), {}

    def step(self, action: Any) -> Any:
        flat = spaces.flatten(self.action_space, action)
        reward = float(self.np_random.random() + 0.1 * np.clip(flat, -3, 3) @ np.linspace(-1, 1, len(flat)))
        return self._look(), reward, self.np_random.random() < 0.1, False, {}


HEADS: list[tuple[Any, dict[str, Any]]] = [
    ("pendulum", {"nn": {"hidden": 32, "activation": "tanh"}, "train": {"normalize_obs": True, "entropy_coef": 0.02}}),
    ("pendulum", {"nn": {**SMALL, "squash": "tanh", "log_std": -1.0}, "train": {"clip": 0.01, "learning_rate": 0.03}}),
    (partial(Noise, (9,), MULTI), {"nn": SMALL, "train": {"entropy_coef": 0.1, "epochs": 2}}),
    (partial(Noise, (5,), MULTI), {"nn": {**SMALL, "core": "lstm"}, "train": {"segment": 2}}),
    (partial(Noise, (6,), MIXED), {"nn": SMALL, "train": {"optimizer": "muon", "learning_rate": 0.02}}),
    (partial(Noise, (6,), BOUNDED), {"nn": {**SMALL, "squash": "tanh"}, "train": {"value_clip": 0.05}}),
]


def check_one(env: Any, tables: dict[str, Any], kind: Any) -> None:
    """A rollout and a whole update of the kernels against the plain path's."""
    plain, fast = with_a_rollout(env, tables), with_a_rollout(env, tables)
    one, two = plain.learners[0], fast.learners[0]
    two.optimizer.rate = torch.tensor(two.config.learning_rate)  # as on a GPU
    two.fused = kind(two)
    before = two.weights.detach().clone()
    act_again(two)
    close = update_both(one, two)
    assert (before - two.weights).abs().max() > 5 * close["atol"]  # they have moved by more than may differ
    for trainer in (plain, fast):
        trainer.close()
    print("checked", env, tables)


def check_heads() -> None:
    """Actions other than a single choice, in the kernels of small networks."""
    muon.orthogonal = partial(muon.orthogonal, dtype=torch.float32)
    fused.BLOCKS = 8
    for env, tables in HEADS:
        kind = fused_core.FusedCore if "core" in tables["nn"] else fused.Fused
        check_one(env, tables, partial(kind, tile=16, exact=True))


MUON = {"optimizer": "muon", "learning_rate": 0.02, "minibatches": 1}
WIDE: list[tuple[Any, dict[str, Any]]] = [
    ("cartpole", {"nn": {"hidden": 40, "layers": 1, "activation": "tanh"}, "train": {"normalize_obs": True}}),
    ("pendulum", {"nn": {"hidden": 24, "layers": 3, "std": "state"}, "train": {"entropy_coef": 0.02}}),
    ("forage", {"nn": {"hidden": 24, "encoder": "mlp"}, "train": MUON, "num_envs": 3}),
    # a minibatch in parts, and matrices of several tiles
    (partial(Noise, (70,), MIXED, np.uint8), {"nn": {"hidden": 140}, "train": MUON, "num_envs": 10, "memory": 8192}),
    (partial(Noise, (5,), spaces.Discrete(90)), {"nn": {"hidden": 16, "layers": 1}, "train": {"optimizer": "adamw"}}),
]
IMAGES: list[tuple[Any, dict[str, Any]]] = [
    ("maze", {"nn": SMALL, "env": {"side": 5}, "train": MUON, "num_envs": 3}),
    (partial(Noise, (9, 10, 2), MULTI), {"nn": SMALL, "train": {"normalize_obs": True}, "num_envs": 3}),
    (
        partial(Noise, (3, 5, 4), BOX, np.uint8),
        {"nn": {**SMALL, "activation": "tanh"}, "num_envs": 3},
    ),  # channels first
    (
        partial(Noise, (40, 40), BOX, np.uint8),  # large: a CPU with bfloat16 instructions would compute it in bfloat16
        {"nn": {**SMALL, "layers": 1}, "train": {"horizon": 2, "precision": "fp32"}, "num_envs": 3},
    ),
]


CORES: list[tuple[Any, dict[str, Any]]] = [
    (partial(Noise, (5,), BOX), {"nn": {**SMALL, "layers": 1, "core": "lstm"}, "train": {"minibatches": 2}}),
    (partial(Noise, (5,), MULTI), {"nn": {**SMALL, "layers": 3, "core": "mingru"}, "train": {**MUON, "segment": 4}}),
    ("maze", {"nn": {**SMALL, "layers": 1, "core": "lstm"}, "env": {"side": 5}, "train": MUON, "num_envs": 2}),
    # a minibatch in parts
    (partial(Noise, (5,), BOX), {"nn": {**SMALL, "core": "mingru"}, "num_envs": 12, "memory": 128 * 64}),
]


def check_wide(cases: Any = WIDE, processors: int = 1) -> None:
    """Networks that do not fit into one block."""
    muon.orthogonal = partial(muon.orthogonal, dtype=torch.float32)
    memory, layer_stack.PROCESSORS = layer_stack.MEMORY, processors
    layer_stack.REDUCE_PART, layer_stack.ADAM_PART = 4096, 8192  # few blocks, as in `use_few_blocks`
    for env, tables in cases:
        layer_stack.MEMORY = tables.get("memory", memory)
        kind = layered_core.LayeredCore if "core" in tables["nn"] else layered.Layered
        check_one(env, tables, partial(kind, rows=32, columns=64, exact=True, tiles=tables.get("tiles")))


HALVES = Tile(32, 128, 64)
LARGE = Tiles(forward=HALVES, backward=HALVES, grads=Tile(64, 128, 16))
WIDER: list[tuple[Any, dict[str, Any]]] = [
    # 150 numbers of 256, 140 units of 256, matrices of several tiles, a minibatch in parts
    (
        partial(Noise, (150,), MIXED, np.uint8),
        {"nn": {"hidden": 140}, "train": MUON, "num_envs": 10, "memory": 1 << 17, "tiles": LARGE},
    ),
    # its gradients in parts
    (
        partial(Noise, (130,), spaces.Discrete(9)),
        {"nn": {"hidden": 150, "layers": 1}, "train": {"minibatches": 1}, "num_envs": 21, "tiles": LARGE},
    ),
    # minibatches of 65 and 64 rows: the second has a block less
    (
        partial(Noise, (150,), BOX),
        {
            "nn": {"hidden": 130, "layers": 3, "activation": "tanh"},
            "train": {"normalize_obs": True, "horizon": 3, "minibatches": 2},
            "num_envs": 43,
            "tiles": LARGE,
        },
    ),
    (partial(Noise, (150,), MULTI), {"nn": {"hidden": 130, "layers": 3, "std": "state"}, "tiles": LARGE}),
    # the first layer and the last are none of these
    (partial(Noise, (20,), MIXED), {"nn": {"hidden": 130, "layers": 3}, "train": MUON, "tiles": LARGE}),
    # other tiles: of more units than inputs, and of fewer
    (partial(Noise, (150,), BOX), {"nn": {"hidden": 130}, "tiles": replace(LARGE, grads=Tile(128, 64, 16))}),
    # agents that die, masks
    ("forage", {"nn": {"hidden": 130, "encoder": "mlp"}, "num_envs": 3, "tiles": LARGE}),
    # after convolutions
    ("maze", {"nn": {"hidden": 130}, "env": {"side": 5}, "train": MUON, "num_envs": 3, "tiles": LARGE}),
]


def check_tiles() -> None:
    """Layers that count as wide."""
    layer_stack.WIDE, made = 128, list[Any]()
    allocate = layered.Layered._allocate_parts
    layered.Layered._allocate_parts = lambda self: made.append(self) or allocate(self)  # type: ignore
    check_wide(WIDER, processors=64)
    assert len(made) == len(WIDER)
    for kernels, (_, tables) in zip(made, WIDER):
        assert kernels.tiles is tables["tiles"]
        assert kernels.wide
    assert max(kernels.grad_parts for kernels in made) > 1
    assert any(kernels.chunk < max(kernels.counts) for kernels in made)


def check_cores() -> None:
    """A recurrent core after them."""
    check_wide(CORES)


def check_images() -> None:
    """Convolutions before them."""
    check_wide(IMAGES)


COMPILED: list[tuple[Any, dict[str, Any]]] = [
    ("maze", {"nn": {}, "train": MUON}),
    (partial(Noise, (2048,), MIXED), {"nn": {"hidden": 512, "layers": 3, "std": "state"}}),
    ("maze", {"nn": {"core": "lstm"}, "train": {"minibatches": 1}}),
    ("pendulum", {"nn": {"hidden": 256, "core": "mingru"}, "train": {"minibatches": 1}}),
    ("forage", {"nn": {"encoder": "mlp"}, "train": MUON, "rows": 64}),  # as for a card with little shared memory
]


def check_compiles() -> None:
    """What a rollout and an update launch compiles, and keeps to the shared memory of small cards; it needs none."""
    compile_all(COMPILED)


def check_compiled_tiles() -> None:
    """The same for wide layers, as craftax_classic launches them: nothing spills, and products run in parallel."""
    tables = {"nn": {"hidden": 512, "layers": 3}, "train": {**MUON, "muon_steps": 3}, "tiles": HOPPER}
    compile_all([(partial(Noise, (1345,), spaces.Discrete(17), np.uint8), tables)])


def compile_all(cases: list[tuple[Any, dict[str, Any]]]) -> None:
    launches: list[tuple[Any, Any, Any, int, bool]] = []
    for module in (base, layer_stack, layered, layered_muon, fused_core):
        module.launch = lambda kernel, grid, *args, **options: launches.append((kernel, args, options, room, is_wide))
    for env, tables in cases:
        room, is_wide = (99 if "rows" in tables else 227) << 10, "tiles" in tables
        learner = with_a_rollout(env, tables).learners[0]
        learner.optimizer.rate = torch.tensor(0.1)
        kind = layered_core.LayeredCore if "core" in tables["nn"] else layered.Layered
        learner.fused = kind(learner, tables.get("rows", 0), tiles=tables.get("tiles"))
        learner.fused.act(0)
        ppo.update(learner)
    compile_launches(launches)


def compile_launches(launches: list[tuple[Any, Any, Any, int, bool]], card: int = 90) -> None:
    """Compiles kernels for each kind of arguments: (kernel, arguments, options, shared memory, may not spill)."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    seen = set()
    for kernel, args, options, room, is_wide in launches:
        names = dict(zip(kernel.arg_names, args))
        compiling = {name: options[name] for name in ("num_warps", "num_stages") if name in options}
        constants = {param.name: param.default for param in kernel.params if param.has_default}
        constants |= {name: value for name, value in options.items() if name not in compiling}
        constants |= {name: None for name, value in names.items() if value is None}
        kinds = {name: kind_of(value) for name, value in names.items()} | dict.fromkeys(constants, "constexpr")
        places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        key = (kernel, str(kinds), str(constants), str(compiling))
        if key in seen:
            continue
        seen.add(key)
        apart = {(k,): [["tt.divisibility", 16]] for k, name in enumerate(kernel.arg_names) if kinds[name][0] == "*"}
        source = ASTSource(kernel, kinds, places, apart)
        made = triton.compile(source, GPUTarget("cuda", card, 32), options=compiling)
        assert made.metadata.shared <= room, (kernel.__name__, made.metadata.shared)
        assert not hazards(made.asm["ttgir"]), (kernel.__name__, constants, hazards(made.asm["ttgir"]))
        said = ptxas_says(made.asm["ptx"]) if is_wide else ""
        assert "spilled" not in said, (kernel.__name__, constants, said)
        assert "serialized" not in said, (kernel.__name__, constants, said)
        print("checked", kernel.__name__, made.metadata.shared, said)


def kind_of(value: Any) -> str:
    """The type of an argument in Triton's words."""
    words = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int32: "i32", torch.int64: "i64", torch.uint8: "u8"}
    words[torch.int8] = "i8"
    if isinstance(value, torch.Tensor):
        return "*" + words.get(value.dtype, "i1")
    return "i32" if isinstance(value, int) else "fp32"


if __name__ == "__main__":
    if not sys.argv[1].startswith("compile"):
        use_few_blocks()
        patch_once()
    globals()[f"check_{sys.argv[1]}"]()
