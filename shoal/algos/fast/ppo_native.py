"""PPO with a small network on a CPU, in a few calls of C (native/core/ppo.c). algos/ppo.py defines the results.

Acting is one call for the rows of a range of envs, and learning one call for an epoch of minibatches. C divides both
over threads, and gives the same bits for any number of threads. So the number may be chosen by how long an epoch takes.

It covers up to three layers of up to 256 units, an LSTM or MinGRU after them, one network or separate ones for actor
and critic, every action space, and any observation whose encoder has no weights.
"""

from __future__ import annotations

import ctypes
import math
import os
import time
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.algos.optimizers.adam import Adam
from shoal.algos.optimizers.adamw import AdamW
from shoal.algos.optimizers.muon import POLYNOMIALS, Muon
from shoal.cores import idle_cores
from shoal.memory import use_huge_pages
from shoal.native import ppo
from shoal.native.pool import Threads
from shoal.nn.cores.lstm import LSTM
from shoal.nn.cores.mingru import MinGRU
from shoal.nn.distributions import ActionHead
from shoal.nn.encoders import Numbers
from shoal.nn.layers import ACTIVATIONS
from shoal.nn.policy import DeepPolicy, Policy

# the exact types that C computes: a subclass may compute something else
CORES: dict[Any, int] = {LSTM: ppo.LSTM, MinGRU: ppo.MINGRU}
OPTIMIZERS: dict[Any, int] = {Adam: ppo.ADAM, AdamW: ppo.ADAMW, Muon: ppo.MUON}
DTYPES = {torch.float32: ppo.FLOAT32, torch.uint8: ppo.UINT8, torch.int8: ppo.INT8}
WIDEST = 256  # units of a layer or a core: above, torch's products are as fast
ROUND = 16  # the width of a core must be a multiple of it
CLIP_OBS = 10.0  # of RunningMoments.normalize


def not_covered(actor: Any) -> str:
    """Why an actor takes the plain path; empty if C covers it."""
    policy, head = actor.policy, actor.head
    if type(policy) not in (Policy, DeepPolicy):
        return "a custom policy"
    if not actor.is_plain:
        return "--train.compile"
    if any(p.device.type != "cpu" or p.dtype != torch.float32 for p in policy.parameters()):
        return "weights that are not float32 on a CPU"
    if not all(p.requires_grad for p in policy.parameters()):
        return "frozen weights"
    linear = [policy.actor, policy.critic, *(m for m in policy.modules() if isinstance(m, torch.nn.Linear))]
    if any(type(layer) is not torch.nn.Linear for layer in linear):
        return "layers other than torch.nn.Linear"
    if type(head) is not ActionHead or len(head.parts) > ppo.MAX_PARTS or head.num_params > ppo.MAX_WIDTH:
        return f"actions of more than {ppo.MAX_PARTS} parts"
    body, core = policy.body, policy.core
    if any(True for _ in body.encoder.parameters()):
        return "an encoder with weights"
    if body.encoder.features > ppo.MAX_WIDTH:
        return f"observations of more than {ppo.MAX_WIDTH} numbers"
    for layers in (body.layers.layers, _head_layers(policy)):
        if len(layers) > ppo.MAX_LAYERS or any(layer.out_features > WIDEST for layer in layers):
            return f"--nn.layers or --nn.head-layers above {ppo.MAX_LAYERS}, or --nn.hidden above {WIDEST}"
    if _activation(policy) not in ppo.ACTIVATIONS:
        return f"--nn.activation {_activation(policy)}"
    if core is not None and type(core) not in CORES:
        return "--nn.core other than lstm and mingru"
    if core is not None and (core.size > WIDEST or core.size % ROUND):
        return f"a core whose size is above {WIDEST} or no multiple of {ROUND}"
    return ""


def covers_learning(learner: Any) -> bool:
    """Whether C covers a learner's gradient steps."""
    return not not_covered(learner.actor) and type(learner.optimizer) in OPTIMIZERS


def _head_layers(policy: Policy, *, critic: bool = False) -> list[Any]:
    """The layers between the core and the head of the actor, or of a critic of its own."""
    body = getattr(policy, "critic_head_body" if critic else "head_body", None)
    return [] if body is None else list(body.layers)


def _activation(policy: Policy) -> str:
    return next(name for name, call in ACTIVATIONS.items() if call is policy.body.layers._activation)


class NativePPO:
    """Acts for an actor and, with a learner, learns: one model in C with its memory and threads."""

    def __init__(self, actor: Any, rollout: Any, learner: Any = None, *, threads: int = 1, variant: str = "") -> None:
        self.actor, self.policy, self.rollout, self.learner = actor, actor.policy, rollout, learner
        self.lib, self.encoder = ppo.load(variant), actor.policy.body.encoder
        self.threads = Threads(threads)
        self.parameters = list(self.policy.parameters())
        self._arrays: list[Any] = []  # C holds their addresses
        self._leaf = self._direct_leaf()
        self.mean, self.rstd = (torch.zeros(self.encoder.features) for _ in range(2))
        self.metrics = np.zeros(6)
        for leaf in rollout.obs if learner is not None else ():  # minibatches read rows at random places
            use_huge_pages(leaf.data_ptr(), leaf.numel() * leaf.element_size())
        self.model: int | None = None
        self.pace = Pace(threads)
        self._open()

    # ---- the description for C ----

    def _open(self) -> None:
        """Describes the network where its weights are now."""
        pointers = [p.data_ptr() for p in self.parameters]
        self.pointers, self.base = pointers, min(pointers)
        self._arrays.clear()
        net, head, optimizer = self._describe_net(), self._describe_head(), self._describe_optimizer()
        threads = self.threads
        setup = ppo.Setup(pool=threads.address, run=threads.run, pool_threads=threads.pool_threads)
        setup.max_threads = threads.count
        setup.steps = 0 if self.learner is None else self.rollout.segment  # of a segment; 0: the model only acts
        model = self.lib.open(*(ctypes.addressof(part) for part in (net, head, optimizer, setup)))
        if not model:
            raise MemoryError(f"no memory for a network of {sum(p.numel() for p in self.parameters)} weights")
        self.model = model
        self._finalizer = weakref.finalize(self, self.lib.close, model)
        self._arrays += [net, head, optimizer, setup]

    def _offset(self, parameter: Tensor | None) -> int:
        return -1 if parameter is None else (parameter.data_ptr() - self.base) // 4

    def _dense(self, *layers: Any) -> ppo.Dense:
        """One layer, or two side by side."""
        dense = ppo.Dense(inputs=layers[0].in_features, outputs=sum(layer.out_features for layer in layers))
        dense.parts = len(layers)
        for k, layer in enumerate(layers):
            dense.part_outputs[k] = layer.out_features
            dense.weight[k], dense.bias[k] = self._offset(layer.weight), self._offset(layer.bias)
        return dense

    def _tower(self, body: Any, core: Any, head_layers: list[Any], *heads: Any) -> ppo.Tower:
        layers = [self._dense(layer) for layer in body.layers.layers]
        if type(core) is LSTM:
            layers += [self._dense(core.input), self._dense(core.hidden)]
        elif type(core) is MinGRU:
            layers += [self._dense(core.gates)]
            layers += [self._dense(core.skip)] if isinstance(core.skip, torch.nn.Linear) else []
        layers += [self._dense(layer) for layer in head_layers]
        tower = ppo.Tower(num_dense=len(layers) + 1, first_head=len(layers))
        for k, dense in enumerate([*layers, self._dense(*heads)]):
            tower.dense[k] = dense
        return tower

    def _describe_net(self) -> ppo.Net:
        policy, body, core = self.policy, self.policy.body, self.policy.core
        head_layers = _head_layers(policy)
        widths = [layer.out_features for layer in [*body.layers.layers, *head_layers]]
        net = ppo.Net(
            inputs=self.encoder.features,
            layers=len(body.layers.layers),
            head_layers=len(head_layers),
            hidden=widths[0] if widths else 0,
            core=ppo.NO_CORE if core is None else CORES[type(core)],
            core_size=0 if core is None else core.size,
            activation=ppo.ACTIVATIONS.index(_activation(policy)),
            log_std=self._offset(policy.log_std),
            num_stds=0 if policy.log_std is None else len(policy.log_std),
        )
        if policy.critic_body is None:
            towers = [self._tower(body, core, head_layers, policy.actor, policy.critic)]
        else:
            critic = policy.critic_body, policy.critic_core, _head_layers(policy, critic=True), policy.critic
            towers = [self._tower(body, core, head_layers, policy.actor), self._tower(*critic)]
        net.towers = len(towers)
        for k, tower in enumerate(towers):
            net.tower[k] = tower
        return net

    def _describe_head(self) -> ppo.Head:
        head = self.actor.head
        parts = (ppo.Part * len(head.parts))()
        for k, part in enumerate(head.parts):
            size = part.logits.stop - part.logits.start
            parts[k] = ppo.Part(part.count, size, part.logits.start, part.actions.start, part.log_stds.start)
        log_scale = head._log_scale.to(torch.float32).contiguous()
        self._arrays += [parts, log_scale]
        return ppo.Head(
            parts=ctypes.addressof(parts),
            num_parts=len(parts),
            columns=head.size,
            num_logits=head.num_noise,
            num_params=head.num_params,
            num_outputs=head.num_outputs,
            is_float=head.has_box,
            is_squashed=head.squash,
            log_scale=log_scale.data_ptr(),
        )

    def _describe_optimizer(self) -> ppo.Optimizer:
        if self.learner is None:
            return ppo.Optimizer(weights=self.base)
        optimizer, weights = self.learner.optimizer, self.learner.weights
        assert weights.data_ptr() == self.base
        matrices = optimizer.matrices if type(optimizer) is Muon else []
        spans = [(s.start, s.stop) for s in optimizer._rest] if matrices else [(0, weights.numel())]
        blocks = (ppo.Matrix * max(1, len(matrices)))()
        for k, (start, rows, columns) in enumerate(matrices):
            blocks[k] = ppo.Matrix(start=start, rows=rows, columns=columns)
        flat_spans = np.array(spans, np.int64)
        newton = np.array(POLYNOMIALS[optimizer.steps] if matrices else [], np.float32)
        tensors = (weights, weights.grad, *(optimizer.state[name] for name in (optimizer.MEAN, "exp_avg_sq", "step")))
        self._arrays += [blocks, flat_spans, newton, *tensors]
        fixed = optimizer.fixed
        return ppo.Optimizer(
            OPTIMIZERS[type(optimizer)],
            weights.numel(),
            *(tensor.data_ptr() for tensor in tensors),
            beta1=fixed["beta1"],
            beta2=fixed["beta2"],
            eps=fixed["eps"],
            decay=fixed["weight_decay"],
            momentum=Muon.MOMENTUM,
            num_matrices=len(matrices),
            num_spans=len(spans),
            matrices=ctypes.addressof(blocks),
            spans=flat_spans.ctypes.data,
            newton_steps=len(newton),
            newton=newton.ctypes.data,
        )

    # ---- observations ----

    def _direct_leaf(self) -> bool:
        """Whether C reads the observations as they are stored: one leaf of numbers."""
        parts, leaves = self.encoder.parts, self.rollout.obs
        return len(parts) == 1 and type(parts[0]) is Numbers and leaves[0].dtype in DTYPES

    def _inputs(self, obs: Any, leaves: list[Tensor]) -> tuple[ppo.Inputs, Tensor]:
        """The inputs of the network for C, and the tensor that they are read from. obs and leaves hold the same."""
        if self._leaf:
            moments, tensor = next(iter(self.actor.moments.values()), None), leaves[0]
            tensor = tensor if tensor.is_contiguous() else tensor.contiguous()
            mean, rstd = (None, None) if moments is None else (self.mean.data_ptr(), self.rstd.data_ptr())
            scale = self.encoder.parts[0].scale
            return ppo.Inputs(tensor.data_ptr(), DTYPES[tensor.dtype], scale, CLIP_OBS, mean, rstd), tensor
        with torch.no_grad():
            tensor = self.encoder.forward(self.actor.normalize(obs)).to(torch.float32).contiguous()
        return ppo.Inputs(tensor.data_ptr(), ppo.FLOAT32, 1.0, 0.0), tensor

    def rollout_inputs(self) -> ppo.Inputs | None:
        """The rollout's observations, which C reads where they are stored; None if torch must encode them first."""
        return self._inputs(None, self.rollout.obs)[0] if self._leaf else None

    def _refresh(self) -> None:
        """Reads the weights and the moments of observations, which may have been changed outside of C."""
        if self.pointers != [p.data_ptr() for p in self.parameters]:
            self._finalizer()
            self._open()
        moments = next(iter(self.actor.moments.values()), None)
        if moments is not None and self._leaf:
            self.mean.copy_(moments.mean.reshape(-1))
            self.rstd.copy_((moments.var.reshape(-1) + 1e-8).rsqrt())
        self.lib.set_threads(self.model, self.pace.threads)
        self.lib.pack(self.model)

    # ---- acting ----

    def begin(self) -> bool:
        """Begins a rollout. Returns whether C acts."""
        self._refresh()
        return True

    def act(self, views: Any) -> None:
        """Does what `act_into` (algos/collect) does in torch, and keeps the recurrent state in the rollout."""
        if views.native is None:
            views.native = self._describe_views(views)
        act, address = views.native
        if not self._leaf:
            act.inputs, tensor = self._inputs(views.obs, [])  # referenced until C returns
        self.lib.act(self.model, address)

    def _describe_views(self, views: Any) -> tuple[ppo.Act, int]:
        leaves = self.actor.layout.leaves_of(views.obs)
        inputs, tensor = self._inputs(views.obs, leaves)
        assert not self._leaf or tensor.data_ptr() == leaves[0].data_ptr()
        act = ppo.Act(inputs=inputs, rows=len(views.logits))
        names = ("noise", "logits", "values", "actions")
        assert all(getattr(views, name).is_contiguous() for name in names)
        for name in names:
            setattr(act, name, getattr(views, name).data_ptr())
        act.masks = None if views.mask is None else views.mask.data_ptr()
        for k, state in enumerate(views.state):
            act.state[k] = state.data_ptr()
        for k, start in enumerate(views.starts):
            act.saved[k] = start.data_ptr()
        return act, ctypes.addressof(act)

    def last_values(self) -> None:
        """Writes the value of each row's last observation to the rollout."""
        rollout = self.rollout
        leaves = [leaf[-1] for leaf in rollout.obs]
        inputs, _tensor = self._inputs(rollout.observations(leaves), leaves)
        values = rollout.values[-1]
        act = ppo.Act(inputs=inputs, rows=rollout.rows, values=values.data_ptr(), keeps_state=1)
        for k, state in enumerate(rollout.state):
            act.state[k] = state.data_ptr()
        self.lib.act(self.model, ctypes.addressof(act))

    # ---- learning ----

    def epoch(self, batch: Any, minibatches: Iterable[tuple[Any, Tensor | None]]) -> Tensor:
        """A gradient step for each minibatch, given as in `minibatches` of algos/ppo.py: the sums of STEP_METRICS."""
        return self._learn(batch, minibatches)

    def gradient(self, batch: Any, segments: Any, weights: Tensor | None, stats: Tensor) -> Tensor:
        """The gradient of a shard's part of a minibatch, and its share of STEP_METRICS without the gradient norm.

        stats: count, mean and variance of the advantages of the whole minibatch.
        """
        return self._learn(batch, [(segments, weights)], stats.numpy())[:-1]

    def _learn(self, batch: Any, minibatches: Iterable[tuple[Any, Tensor | None]], whole: Any = None) -> Tensor:
        learner, config, rollout = self.learner, self.learner.config, self.rollout
        self._refresh()
        inputs, _tensor = self._batch_inputs(batch)
        tensors = [batch.actions, batch.logprobs, batch.values, batch.advantages, batch.returns]
        optional = [batch.counts, batch.masks, batch.resets]
        tensors = [tensor.detach().contiguous() for tensor in tensors]
        optional = [None if tensor is None else tensor.contiguous() for tensor in optional]
        segments, edges, weights = _joined(minibatches)
        self.metrics[:] = 0.0
        epoch = ppo.Epoch(
            inputs,
            *(tensor.data_ptr() for tensor in tensors),
            *(None if tensor is None else tensor.data_ptr() for tensor in optional),
            segments=segments.data_ptr(),
            weights=None if weights is None else weights.data_ptr(),
            edges=edges.ctypes.data,
            rows=rollout.rows,
            minibatches=len(edges) - 1,
            standardizes=config.normalize_advantage == "minibatch",
            limit=config.max_grad_norm,
            rate=learner.optimizer.rate,
            clip=config.clip,
            value_clip=config.value_clip,
            value_coef=config.value_coef,
            entropy_coef=config.entropy_coef,
            metrics=self.metrics.ctypes.data,
            whole=None if whole is None else whole.ctypes.data,
        )
        for k, start in enumerate(rollout.starts):
            epoch.start[k] = start.data_ptr()
        self.lib.set_threads(self.model, self.pace.begin())
        self.lib.learn(self.model, ctypes.addressof(epoch))
        self.pace.end()
        return torch.from_numpy(self.metrics.astype(np.float32))

    def _batch_inputs(self, batch: Any) -> tuple[ppo.Inputs, Tensor]:
        """The inputs of a batch, computed once for all its epochs."""
        if getattr(batch, "native_inputs", None) is None:
            batch.native_inputs = self._inputs(self.rollout.observations(batch.obs), batch.obs)
        inputs: tuple[ppo.Inputs, Tensor] = batch.native_inputs
        return inputs


def _joined(minibatches: Iterable[tuple[Any, Tensor | None]]) -> tuple[Tensor, Any, Tensor | None]:
    """The segments of all minibatches, where each begins and the last ends, and the segments' weights."""
    parts = [
        (torch.arange(segments.start, segments.stop) if isinstance(segments, slice) else segments, weights)
        for segments, weights in minibatches
    ]
    edges = np.cumsum([0, *(len(segments) for segments, _ in parts)])
    weights = None if parts[0][1] is None else torch.cat([weights for _, weights in parts])
    return torch.cat([segments for segments, _ in parts]), edges, weights


class Pace:
    """How many threads learn: the number that takes the least time, found by trying. The results do not depend on it.

    More threads must pay: each doubling must save a tenth of the time. Cores that other processes use are left to them:
    their threads and ours would only wait for each other.
    """

    AGAIN = 256  # epochs after which the neighbours of the chosen number are tried again
    LOOK = 16  # epochs after which the cores are looked at
    GAIN = 0.9  # time with twice the threads, at most

    def __init__(self, most: int) -> None:
        self.counts = [1 << k for k in range(most.bit_length()) if 1 << k < most] + [most]
        self.threads = 1
        self.seconds: dict[int, float] = {}
        self._waiting = self.counts * 2 if most > 1 else []
        self._began = 0.0
        self._epochs = 0
        self._was_busy = False

    def begin(self) -> int:
        """The number of threads of the next epoch."""
        if len(self.counts) > 1:
            if self._epochs and self._epochs % self.AGAIN == 0:
                at = self.counts.index(self.threads)
                self._waiting = self.counts[max(0, at - 1) : at + 2]
                self.seconds.clear()
            if self._epochs % self.LOOK == 0:
                self._leave_cores_to_others()
            if self._waiting:
                self.threads = self._waiting[0]
        self._began = time.perf_counter()
        return self.threads

    def _leave_cores_to_others(self) -> None:
        """Lowers the number of threads if other processes use the cores, now and at the last look."""
        cores = os.cpu_count() or 1
        others = max(0, cores - idle_cores() - (self.threads - 1))  # runnable tasks besides our threads
        free = [count for count in self.counts if count <= max(1, cores - others)]
        is_busy = self.threads > free[-1]
        if is_busy and (self._was_busy or not self._epochs):
            self.threads = free[-1]
        self._was_busy = is_busy
        self._waiting = [count for count in self._waiting if count <= free[-1]]

    def end(self) -> None:
        """Ends the epoch, and chooses the number of threads if all were tried."""
        took = time.perf_counter() - self._began
        self._epochs += 1
        if not self._waiting:
            return
        tried = self._waiting.pop(0)
        self.seconds[tried] = min(took, self.seconds.get(tried, took))
        if not self._waiting:
            self.threads = self._fastest()

    def _fastest(self) -> int:
        """The number of threads by the seconds of an epoch."""
        chosen = min(self.seconds)
        for count in sorted(self.seconds):
            doublings = math.log2(count / chosen)
            if self.seconds[count] <= self.seconds[chosen] * self.GAIN**doublings:
                chosen = count
        return chosen
