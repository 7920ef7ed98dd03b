"""PPO for a small network in a few GPU kernels (kernels.py). algos/ppo.py defines the results.

    act       policy -> sample -> store: one kernel for each step
    learn     gather -> policy -> loss -> gradients: one kernel for each minibatch, which leaves a sum for each block
    reduce    adds the blocks' sums to the gradient, in a fixed order, and sums its squares
    adam      clips the gradient and updates the weights

It covers networks of two layers of up to 128 units, one discrete action of up to 15 choices and observations of up to
128 numbers. Everything between an observation and the gradients then fits into the registers and shared memory of one
block. The plain path writes and reads the activations about ten times and launches about a hundred kernels for each
minibatch, so it needs large minibatches to be fast. Here small minibatches are fast too, and they learn more per step.
fused_core.py adds a recurrent core between layers and heads.

Matrix products are bfloat16 with float32 sums, on a copy of the weights. Weights, loss and optimizer are float32.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from shoal.algos.learner import is_on
from shoal.algos.optimizers.adam import Adam
from shoal.algos.optimizers.adamw import AdamW
from shoal.algos.optimizers.muon import Muon, muon_scale
from shoal.nn.distributions import ActionHead
from shoal.nn.encoders import Numbers
from shoal.nn.launch import launch
from shoal.nn.layers import ACTIVATIONS
from shoal.nn.policy import Policy
from shoal.nn.recurrent import LSTM, MinGRU, State

WIDEST = 128  # units of a layer, or numbers of an observation
CHOICES = 15  # logits and the value are the 16 columns of the last product
ACTIVATION_IDS = {"relu": 0, "tanh": 1}
FEW = 64 * 132  # up to this many transitions the tiles have 64 rows (one for each of 132 multiprocessors), above 128
BLOCKS = 512  # of `learn` at a time: their sums take 70 MB; `reduce` adds them up before the next ones
REDUCE_PART, ADAM_PART = 32, 256  # weights of one block


# the exact types that the kernels compute: a subclass may compute something else
CORES = (LSTM, MinGRU)
OPTIMIZERS = (Adam, AdamW, Muon)
LAUNCH_ARGUMENTS = ("clip", "value_clip", "value_coef", "entropy_coef", "max_grad_norm")  # fixed in a captured graph


def not_covered(learner: Any) -> str:
    """Why a learner takes the plain path; empty if the kernels cover it."""
    config, actor = learner.config, learner.actor
    policy, head = actor.policy, actor.head
    if type(policy) is not Policy:
        return "a custom policy"
    if actor.is_compiled:
        return "--train.compile"
    if fixed := [name for name in LAUNCH_ARGUMENTS if name in learner.schedules]:
        return f"a schedule of --train.{fixed[0].replace('_', '-')}"
    if type(learner.optimizer) not in OPTIMIZERS:
        return f"--train.optimizer {config.optimizer}"
    if policy.critic_body is not None:
        return "--nn.separate"
    if type(head) is not ActionHead or not head.is_one_choice or head.choices > CHOICES:
        return f"actions other than one Discrete of up to {CHOICES} choices"
    encoder = policy.body.encoder
    if len(encoder.parts) != 1 or type(encoder.parts[0]) is not Numbers or encoder.features > WIDEST:
        return f"observations other than up to {WIDEST} numbers"
    widths = [layer.out_features for layer in policy.body.layers.layers]
    if len(widths) != 2 or widths[0] not in (16, 32, 64, 128):
        return "--nn.layers other than 2, or --nn.hidden other than 16, 32, 64 or 128"
    if _activation(policy) not in ACTIVATION_IDS:
        return f"--nn.activation {_activation(policy)}"
    if config.precision not in ("auto", "bf16"):
        return f"--train.precision {config.precision}"
    if policy.core is not None and type(policy.core) not in CORES:
        return "--nn.core other than lstm and mingru"
    if policy.core is not None and not (policy.core.size == policy.body.features == widths[0]):
        return "--nn.core-size other than --nn.hidden"
    if is_on(config.priority) or (policy.core is None and learner.rollout.segment != 1):
        return "--train.priority or --train.segment"
    if learner.device.type == "cuda":
        capability = torch.cuda.get_device_capability(learner.device)
        if capability < (8, 0):
            return "a GPU without bfloat16"
        if type(policy.core) is LSTM and widths[0] > 64 and capability[0] not in (9, 10):
            return "an LSTM of more than 64 units on a GPU with less than 227 KB of shared memory per block"
    return ""


def _activation(policy: Policy) -> str:
    return next(name for name, call in ACTIVATIONS.items() if call is policy.body.layers._activation)


class Fused:
    """Acts and learns for a learner, and owns the memory that its kernels share."""

    reduce_blocks = 128  # rows of `partial` that a block of `reduce` loads at once

    def __init__(self, learner: Any, tile: int = 0, exact: bool = False) -> None:
        from shoal.algos.fast import kernels

        self.learner, self.kernels, device = learner, kernels, learner.device
        actor, config, rollout = learner.actor, learner.config, learner.rollout
        encoder, layers = actor.policy.body.encoder, actor.policy.body.layers.layers
        features, hidden, choices = encoder.features, layers[0].out_features, actor.head.choices
        self.weights: Tensor = learner.weights
        self.size = self.weights.numel()
        core = actor.policy.core
        core_size = 0 if core is None else sum(p.numel() for p in core.parameters())
        assert self.size == hidden * (features + hidden + 2) + core_size + (choices + 1) * (hidden + 1)
        self.moments = next(iter(actor.moments.values()), None)
        self.mean, self.scale = (torch.zeros(features, device=device) for _ in range(2))
        self.shape: dict[str, Any] = {  # constants of the kernels, explained in kernels.py
            "D": features,
            "DP": triton_size(features),
            "H": hidden,
            "A": choices,
            "ACT": ACTIVATION_IDS[_activation(actor.policy)],
            "UNIT": encoder.parts[0].scale,
            "NORM": self.moments is not None,
            "MASKED": rollout.masks is not None,
            "DTYPE": kernels.FLOAT32 if exact else kernels.BFLOAT16,
        }
        # as torch.tensor_split divides: the first minibatches have one segment more
        quotient, remainder = divmod(rollout.horizon * rollout.rows // rollout.segment, config.minibatches)
        self.counts = [(quotient + (k < remainder)) * rollout.segment for k in range(config.minibatches)]
        self.starts = edges = [0, *accumulate(self.counts)]
        self.edges = torch.tensor(edges, device=device, dtype=torch.int64)
        self.tile = tile or (64 if max(self.counts) <= FEW or has_small_shared_memory(device) else 128)
        self.parts = -(-self.size // REDUCE_PART)
        zeros = partial(torch.zeros, device=device)
        self.core: dict[str, Any] = {"G": 0, "RECURRENT": False}  # gates, and whether they use the hidden state
        dtype = torch.float32 if exact else torch.bfloat16
        self.narrow = torch.zeros(self.size + hidden * (self.shape["DP"] - features), dtype=dtype, device=device)
        self._allocate()
        # outputs of `act` that are not needed: logits and actions after the last step, actions in the env's dtype
        self.unused = torch.empty_like(rollout.logits[0]), torch.empty_like(rollout.actions[0])
        self.unused_env_actions = torch.empty(rollout.rows, dtype=torch.int32, device=device)
        self.squares, self.metrics, self.stats = zeros(self.parts), zeros(8), zeros((config.minibatches, 4))

    def _allocate(self) -> None:
        """Allocates what `learn` leaves for `reduce`."""
        blocks = min(-(-max(self.counts) // self.tile), BLOCKS)
        self.partial = torch.zeros((blocks, self.size), device=self.weights.device)
        self.sums = torch.zeros((blocks, 8), device=self.weights.device)

    # ---- collecting ----

    def begin(self) -> None:
        """Copies the weights, and the mean and variance of observations, which are constant during an iteration."""
        weights, units, features, padded = self.weights.detach(), *(self.shape[name] for name in ("H", "D", "DP"))
        first = self.narrow[: units * padded].view(units, padded)
        first[:, :features].copy_(weights[: units * features].view(units, features))
        self.narrow[units * padded :].copy_(weights[units * features :])
        if self.moments is not None:
            self.mean.copy_(self.moments.mean.reshape(-1))
            self.scale.copy_((self.moments.var + 1e-8).rsqrt().reshape(-1))

    def act(self, t: int, env_actions: Tensor | None = None, rows: slice = slice(None)) -> State:
        """Stores logits, values and actions of some rows at step t; after the last step, only their values.

        Returns the next state of a recurrent policy, whose memory the next call overwrites.
        """
        inputs, outputs = self._act_arguments(t, env_actions, rows)
        count = len(inputs[0])
        launch(self.kernels.act, (-(-count // 64),), *inputs, *outputs, count, **self.shape, BM=64, num_warps=4)
        return ()

    def _act_arguments(self, t: int, env_actions: Tensor | None, rows: slice) -> tuple[list[Any], list[Tensor]]:
        """Inputs and outputs of the kernel `act`."""
        rollout, masks = self.learner.rollout, self.learner.rollout.masks
        is_last = t == rollout.horizon
        # the same kernel after the last step, so that no second one is compiled: its actions are not used
        noise = rollout.noise[0 if is_last else t, rows]
        logits, actions = self.unused if is_last else (rollout.logits[t], rollout.actions[t])
        allowed = None if masks is None else masks[t, rows]
        if env_actions is None:
            env_actions = self.unused_env_actions[rows]
        inputs = [rollout.obs[0][t, rows], self.weights, self.narrow, self.mean, self.scale, noise, allowed]
        return inputs, [logits[rows], rollout.values[t, rows], actions[rows], env_actions]

    # ---- learning ----

    def epoch(self, batch: Any, order: Tensor) -> Tensor:
        """One pass over the rollout in minibatches of `order`; returns the sums of STEP_METRICS (algos/ppo.py)."""
        config, learner = self.learner.config, self.learner
        counted = batch.counts is not None
        launch(
            self.kernels.advantage_stats, (config.minibatches,),
            batch.advantages, batch.counts, order, self.stats, self.edges,
            COUNTED=counted, STANDARDIZE=config.normalize_advantage == "minibatch", PART=2048, num_warps=8,
        )  # fmt: skip
        optimizer, grad = learner.optimizer, self.weights.grad
        rate, fixed = optimizer.rate, optimizer.fixed
        step, mean, square = optimizer.state.values()
        is_muon = isinstance(optimizer, Muon)
        parts = {"PARTS": triton_size(self.parts)}
        sizes = {name: self.shape[name] for name in ("D", "DP", "H")} | {"G": self.core["G"]}
        self.metrics.zero_()
        for k, count in enumerate(self.counts):
            self._gradient(batch, order, self.starts[k], count, self.stats[k])
            if is_muon:
                scales = [muon_scale(rows, columns) for _, rows, columns in optimizer.matrices[:2]]
                launch(
                    self.kernels.muon, (len(optimizer.matrices),),
                    self.weights, self.narrow, grad, mean, self.squares, rate, self.parts, config.max_grad_norm,
                    fixed["weight_decay"], *scales, **sizes, MOMENTUM=optimizer.MOMENTUM,
                    STEPS=5, **parts, DTYPE=self.shape["DTYPE"], num_warps=8,
                )  # fmt: skip
            launch(
                self.kernels.adam, (-(-self.size // ADAM_PART),),
                self.weights, self.narrow, grad, mean, square, self.squares, self.metrics, step, rate, self.size,
                self.parts,
                config.max_grad_norm, fixed["beta1"], fixed["beta2"], fixed["eps"], fixed["weight_decay"],
                **sizes, RECURRENT=self.core["RECURRENT"],
                MATRICES=not is_muon, DECOUPLED=optimizer.decoupled, **parts, PART=ADAM_PART, num_warps=4,
            )  # fmt: skip
        return self.metrics[:6]

    def _gradient(self, batch: Any, order: Tensor, first: int, count: int, stats: Tensor) -> None:
        """Computes the gradient of the minibatch `order[first : first + count]` into the weights' `grad`."""
        config = self.learner.config
        for lo in range(0, count, BLOCKS * self.tile):
            size = min(count - lo, BLOCKS * self.tile)
            blocks = -(-size // self.tile)
            launch(
                self.kernels.learn, (blocks,),
                batch.obs[0], self.weights, self.narrow, self.mean, self.scale, batch.masks, order[first + lo :],
                batch.actions, batch.logprobs, batch.values, batch.advantages, batch.returns, batch.counts,
                stats, self.partial, self.sums, size,
                config.clip, config.value_clip, config.value_coef, config.entropy_coef,
                **self.shape, COUNTED=batch.counts is not None, CLIPPED=config.value_clip > 0.0, BM=self.tile,
                num_warps=8,
            )  # fmt: skip
            self._reduce(blocks, blocks, is_first=lo == 0, is_last=lo + size == count)

    def _reduce(self, blocks: int, tiles: int, *, is_first: bool = True, is_last: bool = True) -> None:
        """Adds up the first `blocks` rows of `partial`, and the metrics of the first `tiles` tiles."""
        step = self.learner.optimizer.state["step"]
        launch(
            self.kernels.reduce, (self.parts,),
            self.partial, self.sums, self.weights.grad, self.squares, self.metrics, step, self.size, blocks, tiles,
            BEGIN=is_first, END=is_last, BLOCKS=self.reduce_blocks, PART=REDUCE_PART, num_warps=4,
        )  # fmt: skip


def has_small_shared_memory(device: torch.device) -> bool:
    """Whether a block has only 99 KB of shared memory, as on an RTX 4090. `learn` needs 132 KB for tiles of 128."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)
    return capability in ((8, 6), (8, 9)) or capability >= (12, 0)


def triton_size(count: int) -> int:
    """The smallest block size for `count` elements: a power of two, and at least 16, as matrix products need."""
    return max(16, 1 << (count - 1).bit_length())
