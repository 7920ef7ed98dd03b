"""PPO for a small network in a few GPU kernels.

    act       policy -> sample -> store, one kernel for each step
    learn     gather -> policy -> loss -> all gradients, one kernel for each minibatch; each block keeps its own sums
    reduce    those sums to the gradient, in a fixed order, and its squares
    adam      clip, and move the weights

It takes a network of two layers of up to 128 units, one choice of up to 15 and observations of up to 128 numbers:
everything that lies between an observation and the gradients then fits into the registers and the shared memory of one
block. The plain path writes and reads each layer's activations some ten times and starts about a hundred kernels for
each minibatch, so its minibatches must be large to be fast, and large minibatches learn less from a step. Here they may
be small. fused_core.py is the same with a recurrent core between layers and heads.

Matrices are multiplied in bfloat16 with float32 sums, from a copy of the weights; they, loss and optimizer are float32.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from shoal.algos.optimizers.adam import Adam
from shoal.algos.optimizers.adamw import AdamW
from shoal.algos.optimizers.muon import Muon, muon_scale
from shoal.nn.distributions import ActionHead
from shoal.nn.encoders import Numbers
from shoal.nn.launch import launch
from shoal.nn.layers import ACTIVATIONS
from shoal.nn.policy import Policy
from shoal.nn.recurrent import LSTM, MinGRU, State

WIDEST = 128  # units of a layer, and numbers of an observation
CHOICES = 15  # with the value they are the 16 columns of the last product
ACTIVATION_IDS = {"relu": 0, "tanh": 1}
FEW = 64 * 132  # transitions: no more are tiles of 64, one for each processor of a large GPU; more are tiles of 128
BLOCKS = 512  # of `learn` at a time: their sums take 70 MB, and the next ones are added to the gradient
REDUCE_PART, ADAM_PART = 32, 256  # weights that one block takes


# the exact types that the kernels compute: a subclass may compute something else
CORES = (LSTM, MinGRU)
OPTIMIZERS = (Adam, AdamW, Muon)


def not_covered(learner: Any) -> str:
    """What keeps a learner on the plain path; empty where the kernels cover it."""
    config, actor = learner.config, learner.actor
    policy, head = actor.policy, actor.head
    if type(policy) is not Policy:
        return "a custom policy"
    if actor.is_compiled:
        return "--train.compile"
    if type(learner.optimizer) not in OPTIMIZERS:
        return f"--train.optimizer {config.optimizer}"
    if policy.critic_body is not None:
        return "--nn.separate"
    if type(head) is not ActionHead or not head.is_one_choice or head.choices > CHOICES:
        return f"actions that are not one choice of up to {CHOICES}"
    encoder = policy.body.encoder
    if len(encoder.parts) != 1 or type(encoder.parts[0]) is not Numbers or encoder.features > WIDEST:
        return f"observations that are not up to {WIDEST} numbers"
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
    if config.priority or (policy.core is None and learner.rollout.segment != 1):
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
    """A learner's kernels and the memory that they share."""

    reduce_blocks = 128  # that a block of `reduce` loads at once

    def __init__(self, learner: Any, tile: int = 0, exact: bool = False) -> None:
        from shoal.algos.fast import kernels

        self.learner, self.kernels, device = learner, kernels, learner.device
        actor, config, rollout = learner.actor, learner.config, learner.rollout
        encoder, layers = actor.policy.body.encoder, actor.policy.body.layers.layers
        features, hidden, choices = encoder.features, layers[0].out_features, actor.head.choices
        self.weights: Tensor = learner.weights
        self.size = self.weights.numel()
        core = actor.policy.core
        of_core = 0 if core is None else sum(p.numel() for p in core.parameters())
        assert self.size == hidden * (features + hidden + 2) + of_core + (choices + 1) * (hidden + 1)
        self.moments = next(iter(actor.moments.values()), None)
        self.mean, self.scale = (torch.zeros(features, device=device) for _ in range(2))
        self.shape: dict[str, Any] = {
            "D": features,
            "DP": triton_size(features),
            "H": hidden,
            "A": choices,
            "ACT": ACTIVATION_IDS[_activation(actor.policy)],
            "UNIT": encoder.parts[0].scale,
            "NORM": self.moments is not None,
            "MASKED": rollout.masks is not None,
            "KIND": kernels.FLOAT32 if exact else kernels.BFLOAT16,
        }
        each, more = divmod(rollout.horizon * rollout.rows // rollout.segment, config.minibatches)
        self.counts = [(each + (k < more)) * rollout.segment for k in range(config.minibatches)]
        self.starts = edges = [0, *accumulate(self.counts)]
        self.edges = torch.tensor(edges, device=device, dtype=torch.int64)
        self.tile = tile or (64 if max(self.counts) <= FEW or is_narrow(device) else 128)
        self.parts = -(-self.size // REDUCE_PART)
        zeros = partial(torch.zeros, device=device)
        self.core: dict[str, Any] = {"G": 0, "HIDDEN": False}  # gates, and whether they look at what was put out
        kind = torch.float32 if exact else torch.bfloat16
        self.narrow = torch.zeros(self.size + hidden * (self.shape["DP"] - features), dtype=kind, device=device)
        self._make_room()
        self.spare = torch.empty_like(rollout.logits[0]), torch.empty_like(rollout.actions[0])
        self.spare_actions = torch.empty(rollout.rows, dtype=torch.int32, device=device)
        self.squares, self.metrics, self.spreads = zeros(self.parts), zeros(8), zeros((config.minibatches, 4))

    def _make_room(self) -> None:
        blocks = min(-(-max(self.counts) // self.tile), BLOCKS)
        self.partial = torch.zeros((blocks, self.size), device=self.weights.device)
        self.sums = torch.zeros((blocks, 8), device=self.weights.device)

    # ---- collecting ----

    def begin(self) -> None:
        """Takes over the moments of observations, which stay as they are for a whole iteration, and the weights."""
        weights, units, features, padded = self.weights.detach(), *(self.shape[name] for name in ("H", "D", "DP"))
        first = self.narrow[: units * padded].view(units, padded)
        first[:, :features].copy_(weights[: units * features].view(units, features))
        self.narrow[units * padded :].copy_(weights[units * features :])
        if self.moments is not None:
            self.mean.copy_(self.moments.mean.reshape(-1))
            self.scale.copy_((self.moments.var + 1e-8).rsqrt().reshape(-1))

    def act(self, t: int, env_actions: Tensor | None = None, rows: slice = slice(None)) -> State:
        """Logits, values and actions of some rows at step t; after the last step, only their values.

        Returns the next state of a recurrent policy, which the next call overwrites.
        """
        seen, said = self._seen_and_said(t, env_actions, rows)
        count = len(seen[0])
        launch(self.kernels.act, (-(-count // 64),), *seen, *said, count, **self.shape, BM=64, num_warps=4)
        return ()

    def _seen_and_said(self, t: int, env_actions: Tensor | None, rows: slice) -> tuple[list[Any], list[Tensor]]:
        """What `act` takes, and where it puts what it finds."""
        rollout, masks = self.learner.rollout, self.learner.rollout.masks
        is_last = t == rollout.horizon
        # one kernel for both, so that no second one is compiled: what it draws after the last step is no one's
        noise = rollout.noise[0 if is_last else t, rows]
        logits, actions = self.spare if is_last else (rollout.logits[t], rollout.actions[t])
        allowed = None if masks is None else masks[t, rows]
        taken = self.spare_actions[rows] if env_actions is None else env_actions
        seen = [rollout.obs[0][t, rows], self.weights, self.narrow, self.mean, self.scale, noise, allowed]
        return seen, [logits[rows], rollout.values[t, rows], actions[rows], taken]

    # ---- learning ----

    def epoch(self, batch: Any, order: Tensor) -> Tensor:
        """One pass over the rollout in minibatches of `order`; returns the sums of METRICS over them."""
        config, learner = self.learner.config, self.learner
        counted = batch.counts is not None
        launch(
            self.kernels.spread_of_parts, (config.minibatches,),
            batch.advantages, batch.counts, order, self.spreads, self.edges,
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
            self._gradient(batch, order, self.starts[k], count, self.spreads[k])
            if is_muon:
                scales = [muon_scale(rows, columns) for _, rows, columns in optimizer.matrices[:2]]
                launch(
                    self.kernels.muon, (len(optimizer.matrices),),
                    self.weights, self.narrow, grad, mean, self.squares, rate, self.parts, config.max_grad_norm,
                    fixed["weight_decay"], *scales, **sizes, MOMENTUM=optimizer.MOMENTUM,
                    STEPS=5, **parts, KIND=self.shape["KIND"], num_warps=8,
                )  # fmt: skip
            launch(
                self.kernels.adam, (-(-self.size // ADAM_PART),),
                self.weights, self.narrow, grad, mean, square, self.squares, self.metrics, step, rate, self.size,
                self.parts,
                config.max_grad_norm, fixed["beta1"], fixed["beta2"], fixed["eps"], fixed["weight_decay"],
                **sizes, HIDDEN=self.core["HIDDEN"],
                MATRICES=not is_muon, DECOUPLED=optimizer.decoupled, **parts, PART=ADAM_PART, num_warps=4,
            )  # fmt: skip
        return self.metrics[:6]

    def _gradient(self, batch: Any, order: Tensor, first: int, count: int, spread: Tensor) -> None:
        """Of one minibatch, into the weights' `grad`."""
        config = self.learner.config
        for lo in range(0, count, BLOCKS * self.tile):
            some = min(count - lo, BLOCKS * self.tile)
            blocks = -(-some // self.tile)
            launch(
                self.kernels.learn, (blocks,),
                batch.obs[0], self.weights, self.narrow, self.mean, self.scale, batch.masks, order[first + lo :],
                batch.actions, batch.logprobs, batch.values, batch.advantages, batch.returns, batch.counts,
                spread, self.partial, self.sums, some,
                config.clip, config.value_clip, config.value_coef, config.entropy_coef,
                **self.shape, COUNTED=batch.counts is not None, CLIPPED=config.value_clip > 0.0, BM=self.tile,
                num_warps=8,
            )  # fmt: skip
            self._reduce(blocks, blocks, is_first=lo == 0, is_last=lo + some == count)

    def _reduce(self, blocks: int, tiles: int, *, is_first: bool = True, is_last: bool = True) -> None:
        """Adds up the first `blocks` of the partial gradients, and metrics of so many tiles."""
        step = self.learner.optimizer.state["step"]
        launch(
            self.kernels.reduce, (self.parts,),
            self.partial, self.sums, self.weights.grad, self.squares, self.metrics, step, self.size, blocks, tiles,
            BEGIN=is_first, END=is_last, BLOCKS=self.reduce_blocks, PART=REDUCE_PART, num_warps=4,
        )  # fmt: skip


def is_narrow(device: torch.device) -> bool:
    """Whether a block has 99 KB of shared memory, as on an RTX 4090: `learn` takes up to 132 KB with tiles of 128."""
    kind = torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)
    return kind in ((8, 6), (8, 9)) or kind >= (12, 0)


def triton_size(count: int) -> int:
    """The size of a block that covers so many: a power of two, and no less than a matrix product takes."""
    return max(16, 1 << (count - 1).bit_length())
