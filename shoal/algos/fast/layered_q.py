"""DQN and PQN for networks that do not fit into one block: one GPU kernel for each layer.

    act       each layer: gather -> product -> activation; then Q-values -> epsilon-greedy -> store
    targets   DQN: the layers of both networks on next observations
    learn     the layers forward; Q-values -> loss -> gradients; the layers backward; the gradients of the weights
    reduce    adds up the parts of the gradients, in a fixed order, and sums their squares
    adam      clips the gradient and updates the weights

It covers one to four layers of up to 512 units, observations of up to 2,048 numbers or grids and images before the
convolutions of encoders/grid.py and nature.py, and up to 255 choices. The layers are those of layer_stack.py.
Layer normalization needs whole rows: a kernel of its own follows a layer's product, and one that of its gradient
(layered_q_kernels.py). What it normalizes goes through memory in bfloat16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal.algos.fast.base import triton_size
from shoal.algos.fast.layer_stack import NO_ACTIVATION, OUTPUTS, LayerStack, network_not_covered
from shoal.algos.fast.layered_layer import Layer
from shoal.algos.fast.q_base import KernelQ, never_covered
from shoal.algos.fast.tiles import Tiles
from shoal.nn.launch import launch
from shoal.nn.qnet import Dense


def not_covered(learner: Any) -> str:
    """Why a learner takes the plain path, if fused_q.py does not cover it; empty if these kernels do."""
    if reason := never_covered(learner):
        return reason
    policy, head = learner.actor.policy, learner.actor.head
    if head.choices > OUTPUTS:
        return f"more than {OUTPUTS} choices"
    return network_not_covered(policy.encoder.parts[0], [layer.weight.shape[2] for layer in policy.layers])


class LayeredQ(LayerStack, KernelQ):
    """DQN or PQN with one kernel for each layer."""

    def __init__(
        self,
        learner: Any,
        minibatches: list[int],
        rows: int = 0,
        columns: int = 0,
        exact: bool = False,
        tiles: Tiles | None = None,
    ) -> None:
        """`rows` and `columns` are the sizes of tiles; 0: chosen for a GPU. `tiles` are those of wide layers."""
        from shoal.algos.fast import layered_q_kernels

        super().__init__(learner, minibatches, exact)
        self.own, policy = layered_q_kernels, learner.actor.policy
        self._make_network(policy.encoder.parts[0], policy.layers, policy.activation, rows, columns, tiles)
        self.target_narrow = torch.zeros_like(self.narrow)
        # DQN: the online network's next actions
        self.best = torch.zeros(max(self.counts), dtype=torch.int32, device=learner.device)

    # ---- the network ----

    def _weights_of(self, layer: Dense) -> Tensor:
        _, inputs, outputs = layer.weight.shape
        return self.starts_of[id(layer.weight)] + torch.arange(inputs * outputs).view(inputs, outputs).T

    def _linear(self, layer: Dense, order: Tensor, act: int, *, is_first: bool) -> Layer:
        made = super()._linear(layer, order, act, is_first=is_first)
        if layer.gain is not None:
            made.gain = self.starts_of[id(layer.gain)]
            assert self.starts_of[id(layer.shift)] == made.gain + made.units
        return made

    def _make_heads(self) -> Layer:
        """The Q-values: a row for each choice, padded to a power of two."""
        policy, width = self.learner.actor.policy, self.last.width
        columns = triton_size(policy.choices)
        made = self._linear(policy.head, self.last.order, NO_ACTIVATION, is_first=False)
        assert made.width == columns
        assert made.constants["KP"] == width
        self.head_constants = {"A": policy.choices, "OP": columns, "K": width, "KP": width}
        self.head_constants["BK"] = made.constants["BK"]
        self.head_warps = 4 if columns <= 128 else 8
        return made

    def _normalize(self, layer: Layer, weights: Tensor, count: int) -> None:
        sizes = layer.norm_tile
        launch(
            self.own.norm, (-(-count // sizes["BM"]),),
            layer.z, weights, layer.out, layer.gain, count, **sizes, ACT=layer.act, num_warps=4,
        )  # fmt: skip

    def _normalize_backward(self, layer: Layer, count: int) -> None:
        sizes = layer.norm_tile
        rows = -(-count // (sizes["BM"] * layer.norm_parts)) * sizes["BM"]
        launch(
            self.own.norm_backward, (layer.norm_parts,),
            layer.d_out, layer.z, self.weights, layer.norm_sums, layer.gain, count, rows, **sizes, num_warps=8,
        )  # fmt: skip

    # ---- acting, targets ----

    def _head_arguments(self, weights: Tensor, narrow: Tensor) -> tuple[Tensor, ...]:
        return self.layers[-1].out, weights, narrow[self.heads.start :], self.heads.biases

    def _act(self, obs: Tensor, noise: Tensor, masks: Tensor | None, *outputs: Tensor) -> None:
        for lo in range(0, len(obs), self.chunk):
            own = slice(lo, lo + self.chunk)
            count = len(obs[own])
            self._forward(obs[own], None, count, self.weights, self.narrow)
            launch(
                self.own.act_heads, (-(-count // self.head_rows),),
                *self._head_arguments(self.weights, self.narrow), noise[own], None if masks is None else masks[own],
                *(x[own] for x in outputs), count,
                **self.head_constants, MASKED=masks is not None, BM=self.head_rows, num_warps=self.head_warps,
            )  # fmt: skip

    def target_values(self, batch: Any) -> None:
        """As `KernelQ.target_values`."""
        next_obs, target = batch.next_obs[0], self.learner.target.detach()
        self._copy(target, self.target_narrow)
        is_masked = batch.next_masks is not None
        constants = {**self.head_constants, "MASKED": is_masked, "BM": self.head_rows, "num_warps": self.head_warps}
        for lo in range(0, len(next_obs), self.chunk):
            own = slice(lo, lo + self.chunk)
            count, masks, best = len(next_obs[own]), batch.next_masks[own] if is_masked else None, None
            grid = (-(-count // self.head_rows),)
            if self.learner.config.double:
                best = self.best[own]
                self._forward(next_obs[own], None, count, self.weights, self.narrow)
                heads = self._head_arguments(self.weights, self.narrow)
                launch(self.own.best_actions, grid, *heads, masks, best, count, **constants)
            self._forward(next_obs[own], None, count, target, self.target_narrow)
            launch(
                self.own.targets, grid,
                *self._head_arguments(target, self.target_narrow), masks, best, batch.returns[own],
                batch.discounts[own], self.next_values[own], count, **constants,
            )  # fmt: skip

    # ---- learning ----

    def improve(
        self,
        k: int,
        obs: Tensor,
        actions: Tensor,
        targets: Tensor,
        share: Tensor,
        factors: Tensor | None = None,
        order: Tensor | None = None,
    ) -> None:
        """As `KernelQ.improve`."""
        count = self.counts[k]
        for lo in range(0, count, self.chunk):
            size = min(self.chunk, count - lo)
            own = slice(lo, lo + size)
            taken = None if order is None else order[own]
            if order is None:
                rows, parts = obs[own], (actions[own], targets[own], None if factors is None else factors[own])
            else:
                rows, parts = obs, (actions, targets, factors)
            self._forward(rows, taken, size, self.weights, self.narrow)
            self._loss(taken, *parts, share, size)
            self._backward(size)
            self._weight_grads(rows, taken, size)
            self._reduce(size, is_first=lo == 0, is_last=lo + size == count)
        self._adam(self.places, self.limit)

    def _loss(
        self, order: Tensor | None, actions: Tensor, targets: Tensor, factors: Tensor | None, share: Tensor, count: int
    ) -> None:
        last = self.layers[-1]
        launch(
            self.own.learn_heads, (-(-self._rows(last, count) // self.head_rows),),
            *self._head_arguments(self.weights, self.narrow), order, actions, targets, factors, share,
            self.heads.d_out, last.d_out, last.d_bias, self.sums, count,
            **self.head_constants, HUBER=self.learner.config.loss == "huber", ACT=last.act, DTYPE=self.type,
            BM=self.head_rows, num_warps=self.head_warps,
        )  # fmt: skip
