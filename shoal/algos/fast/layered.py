"""PPO for networks that do not fit into one block: one GPU kernel for each layer (layered_kernels.py).

    act       each layer: gather -> patches -> product -> activation; then heads -> sample -> store
    learn     the layers forward; heads -> loss -> gradients; the layers backward; the gradients of each layer's weights
    reduce    adds up the parts of the gradients, in a fixed order, and sums their squares
    muon      three kernels for each of five Newton-Schulz steps, for all matrices at once
    adam      clips the gradient and updates the weights

It covers one to four layers of up to 512 units, observations of up to 2,048 numbers or grids and images before the
convolutions of encoders/grid.py and nature.py, and actions of up to 255 choices and numbers. The layers are those of
layer_stack.py. The plain path launches ten times as many kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from shoal.algos.fast.base import CORES, activation_of, large_lstm_not_covered, never_covered, triton_size, width_of
from shoal.algos.fast.layer_stack import NO_CONVOLUTION, OUTPUTS, LayerStack, network_not_covered
from shoal.algos.fast.layered_layer import Layer
from shoal.algos.fast.layered_muon import MuonSteps
from shoal.algos.fast.tiles import Tiles
from shoal.algos.learner import is_on
from shoal.algos.optimizers.muon import Muon
from shoal.nn.launch import launch
from shoal.nn.recurrent import State


def not_covered(learner: Any) -> str:
    """Why a learner takes the plain path; empty if these kernels cover it."""
    if reason := never_covered(learner):
        return reason
    policy, head = learner.actor.policy, learner.actor.head
    if policy.core is not None and (reason := core_not_covered(learner)):
        return reason
    if head.num_noise > OUTPUTS:
        return f"actions of more than {OUTPUTS} choices and numbers"
    widths = [layer.out_features for layer in policy.body.layers.layers]
    return network_not_covered(policy.body.encoder.parts[0], widths)


def core_not_covered(learner: Any) -> str:
    """Why layered_core.py does not cover the recurrent core of a learner."""
    core, features = learner.actor.policy.core, learner.actor.policy.body.features
    if type(core) not in CORES:
        return "--nn.core other than lstm and mingru"
    if core.size != features or core.size not in (16, 32, 64, 128):
        return "--nn.core-size other than --nn.hidden, or other than 16, 32, 64 or 128"
    return large_lstm_not_covered(learner)


class Layered(LayerStack, MuonSteps):
    """PPO with one kernel for each layer."""

    def __init__(
        self, learner: Any, rows: int = 0, columns: int = 0, exact: bool = False, tiles: Tiles | None = None
    ) -> None:
        """`rows` and `columns` are the sizes of tiles; 0: chosen for a GPU. `tiles` are those of wide layers."""
        from shoal.algos.fast import muon_kernels

        super().__init__(learner, triton_size(learner.actor.head.num_noise + 1), exact)
        self.muon_kernels, policy, optimizer = muon_kernels, learner.actor.policy, learner.optimizer
        self.type = self.kernels.FLOAT32 if exact else self.kernels.BFLOAT16
        part, linear = policy.body.encoder.parts[0], policy.body.layers.layers
        self._make_network(part, linear, activation_of(policy), rows, columns, tiles)
        self.taken, self.is_padding = self.inverse.clamp(min=0), self.inverse < 0
        self.adam_places = self.places  # -1: Muon updates the weight
        if isinstance(optimizer, Muon):
            self.adam_places = self.places.clone()
            for start, height, width in optimizer.matrices:
                self.adam_places[start : start + height * width] = -1
            self._allocate_muon(optimizer)

    # ---- the network ----

    def _weights_of(self, layer: nn.Linear) -> Tensor:
        return self.starts_of[id(layer.weight)] + torch.arange(layer.weight.numel()).view(layer.out_features, -1)

    def _make_heads(self) -> Layer:
        """Actor and critic as one matrix: a row for each column of `o`, and for numbers one for each of `s`."""
        policy, head, last = self.learner.actor.policy, self.learner.actor.head, self.last
        noise, features, columns = head.num_noise, policy.actor.in_features, triton_size(head.num_noise + 1)
        width, tile = last.width, min(last.width, 64)
        rows = columns * (2 if self.head.numbers else 1)
        index, biases = torch.full((rows, -(-width // tile) * tile), -1), torch.full((rows,), -1)
        actor, critic = (self.starts_of[id(x.weight)] for x in (policy.actor, policy.critic))
        own = torch.arange(features)
        index[:noise, :features] = actor + torch.arange(noise).view(-1, 1) * features + own
        index[noise, :features] = critic + own
        biases[:noise], biases[noise] = self.starts_of[id(policy.actor.bias)] + torch.arange(noise), critic + features
        for k, column in enumerate(self.head.std_columns):
            if head.num_free:
                biases[columns + column] = self.starts_of[id(policy.log_std)] + k
            else:
                index[columns + column, :features] = actor + (noise + k) * features + own
                biases[columns + column] = self.starts_of[id(policy.actor.bias)] + noise + k
        constants = {"NP": rows, "KP": index.shape[1], "H": 0, "K": width, "ROW": width, "BK": tile, **NO_CONVOLUTION}
        constants |= {"IS_OBS": False, "UNIT": 1.0, "NORM": False, "DTYPE": self.type}
        self.head_constants = {**self.head.constants, "STATE": bool(self.head.numbers and not head.num_free)}
        self.head_constants |= {"MASKED": self.learner.rollout.masks is not None, "OP": columns, "K": width}
        self.head_constants |= {"KP": index.shape[1], "BK": tile}
        return Layer(constants, index, biases, last.act)

    def _copy_weights(self) -> None:
        taken = self.weights.detach().index_select(0, self.taken)
        self.narrow.copy_(taken.masked_fill_(self.is_padding, 0.0))

    # ---- acting ----

    def act(self, t: int, env_actions: Tensor | None = None, rows: slice = slice(None)) -> State:
        """As `KernelPPO.act`."""
        self._act(*self._step_tensors(t, env_actions, rows), rows)
        return self._new_state(rows)

    def _act(self, inputs_of_step: list[Any], outputs: list[Tensor], rows: slice) -> None:
        obs, noise, masks = inputs_of_step
        for lo in range(0, len(obs), self.chunk):
            own = slice(lo, lo + self.chunk)
            count = len(obs[own])
            self._forward(obs[own], None, count, self.weights, self.narrow)
            to, inputs, constants = [x[own] for x in outputs], self._act_core(rows, lo, count), self.head_constants
            if inputs.dtype != self.dtype:  # an LSTM's state: one pass, because of its conversion (`finished`)
                constants = {**constants, "BK": constants["KP"]}
            launch(
                self.layer_kernels.act_heads, (-(-count // self.head_rows),),
                inputs, self.weights, self.narrow[self.heads.start :], self.heads.biases, noise[own],
                None if masks is None else masks[own], *to, self.head.table, self.head.bounds, count,
                **constants, WIDTH=width_of(to[-1]), BM=self.head_rows, num_warps=4,
            )  # fmt: skip

    def _last_values(self, truncation: Any, out: Tensor) -> None:
        if truncation.state:
            super()._last_values(truncation, out)
            return
        (_, noise, masks), _ = self._step_tensors(0, None, slice(None))
        outputs = [self.unused[0], out, self.unused[1], self.unused_env_actions]
        self._act([truncation.obs[0], noise, masks], outputs, slice(None))

    def _act_core(self, rows: slice, first: int, count: int) -> Tensor:
        """The heads' inputs for `count` rows from the `first` of `rows` on."""
        return self.layers[-1].out

    def _new_state(self, rows: slice) -> State:
        return ()

    # ---- learning ----

    def _gradient(self, batch: Any, order: Tensor, first: int, count: int, stats: Tensor) -> None:
        for lo in range(0, count, self.chunk):
            size = min(self.chunk, count - lo)
            own = order[first + lo :]
            self._forward(batch.obs[0], own, size, self.weights, self.narrow)
            self._run_core(batch, own, first + lo, size)
            self._loss(batch, own, size, stats)
            self._backward_core(first + lo, size)
            self._backward(size)
            self._weight_grads(batch.obs[0], own, size)
            self._reduce(size, is_first=lo == 0, is_last=lo + size == count)

    def _run_core(self, batch: Any, order: Tensor, first: int, count: int) -> None:
        """A recurrent core over `count` transitions, the `first` of the epoch."""

    def _backward_core(self, first: int, count: int) -> None:
        """From the gradient by a core's outputs to that by the last layer."""

    def _loss(self, batch: Any, order: Tensor, count: int, stats: Tensor) -> None:
        last, heads = self.last, self.heads
        launch(
            self.layer_kernels.learn_heads, (-(-self._rows(last, count) // self.head_rows),),
            last.out, self.weights, self.narrow[heads.start :], heads.biases, batch.masks, order, batch.actions,
            batch.logprobs, batch.values, batch.advantages, batch.returns, batch.counts, stats,
            heads.d_out, last.d_out, last.d_bias, self.sums, self.coefs, self.head.table, self.head.bounds, count,
            **self.head_constants, COUNTED=batch.counts is not None,
            CLIPPED=is_on(self.learner.config.value_clip), ACT=last.act, DTYPE=self.type, BM=self.head_rows,
            num_warps=4,
        )  # fmt: skip

    # ---- the optimizer ----

    def _optimize(self) -> None:
        optimizer, limit = self.learner.optimizer, self.coefs[-1:]
        if isinstance(optimizer, Muon):
            _, momentum, _ = optimizer.state.values()
            self._muon(optimizer, momentum, limit)
        self._adam(self.adam_places, limit)
