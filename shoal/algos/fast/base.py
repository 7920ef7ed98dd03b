"""What PPO's ways in GPU kernels share: fused.py (a network in one block) and layered.py (a launch for each layer)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from shoal.algos.fast.heads import HeadTables
from shoal.algos.learner import is_on
from shoal.algos.optimizers.adam import Adam
from shoal.algos.optimizers.adamw import AdamW
from shoal.algos.optimizers.muon import Muon
from shoal.nn.distributions import ActionHead
from shoal.nn.launch import fresh, launch
from shoal.nn.layers import ACTIVATIONS
from shoal.nn.policy import Policy
from shoal.nn.recurrent import LSTM, MinGRU, State

ACTIVATION_IDS = {"relu": 0, "tanh": 1}
FAST_TANH = 3  # one instruction of a GPU, accurate to 11 bits
# the exact types that the kernels compute: a subclass may compute something else
OPTIMIZERS = (Adam, AdamW, Muon)
CORES = (LSTM, MinGRU)
TARGET_ROWS = 32  # rows of a block of batch_kernels.py
COEFS = ("clip", "value_clip", "value_coef", "entropy_coef", "max_grad_norm")  # on the device: they may have schedules


def never_covered(learner: Any) -> str:
    """Why no kernels cover a learner; empty if it depends on the network's sizes."""
    config, actor = learner.config, learner.actor
    policy = actor.policy
    if type(policy) is not Policy:
        return "a custom policy"
    if actor.is_compiled:
        return "--train.compile"
    if type(learner.optimizer) not in OPTIMIZERS:
        return f"--train.optimizer {config.optimizer}"
    if policy.critic_body is not None:
        return "--nn.separate"
    if type(actor.head) is not ActionHead:
        return "a custom action head"
    if len(policy.body.encoder.parts) != 1:
        return "observations of several parts"
    if activation_of(policy) not in ACTIVATION_IDS:
        return f"--nn.activation {activation_of(policy)}"
    if config.precision not in ("auto", "bf16"):
        return f"--train.precision {config.precision}"
    if is_on(config.priority) or (policy.core is None and learner.rollout.segment != 1):
        return "--train.priority or --train.segment"
    if learner.device.type == "cuda" and torch.cuda.get_device_capability(learner.device) < (8, 0):
        return "a GPU without bfloat16"
    return ""


def large_lstm_not_covered(learner: Any) -> str:
    """Why a GPU cannot hold the recurrent weights of a learner's LSTM; empty if it can, or if there is none."""
    core = learner.actor.policy.core
    if type(core) is not LSTM or core.size <= 64 or learner.device.type != "cuda":
        return ""
    if torch.cuda.get_device_capability(learner.device)[0] in (9, 10):
        return ""
    return "an LSTM of more than 64 units on a GPU with less than 227 KB of shared memory per block"


def activation_of(policy: Policy) -> str:
    """The value of --nn.activation."""
    return next(name for name, call in ACTIVATIONS.items() if call is policy.body.layers._activation)


def activation_id(name: str, dtype: torch.dtype, device: torch.device) -> int:
    """The constant ACT of kernels. Where tanh is rounded to bfloat16 anyway, a GPU computes it in one instruction."""
    if name == "tanh" and dtype == torch.bfloat16 and device.type == "cuda":
        return FAST_TANH
    return ACTIVATION_IDS[name]


class KernelPPO:
    """Acts and learns for a learner, and owns the memory that its kernels share."""

    def __init__(self, learner: Any, columns: int, exact: bool) -> None:
        from shoal.algos.fast import batch_kernels, kernels

        self.learner, self.kernels, self.batch_kernels, device = learner, kernels, batch_kernels, learner.device
        actor, config, rollout = learner.actor, learner.config, learner.rollout
        self.dtype = torch.float32 if exact else torch.bfloat16  # of matrix products
        self.weights: Tensor = learner.weights
        self.size = self.weights.numel()
        self.head = HeadTables(actor.head, columns, device)
        self.moments = next(iter(actor.moments.values()), None)
        elements = rollout.obs[0][0, 0].numel()
        self.mean, self.scale = (torch.zeros(elements, device=device) for _ in range(2))
        # as torch.tensor_split divides: the first minibatches have one segment more
        quotient, remainder = divmod(rollout.horizon * rollout.rows // rollout.segment, config.minibatches)
        self.counts = [(quotient + (k < remainder)) * rollout.segment for k in range(config.minibatches)]
        self.starts = edges = [0, *accumulate(self.counts)]
        self.edges = torch.tensor(edges, device=device, dtype=torch.int64)
        zeros = partial(torch.zeros, device=device)
        # outputs of `act` that are not needed: logits and actions after the last step, actions in the env's dtype
        self.unused = torch.empty_like(rollout.logits[0]), torch.empty_like(rollout.actions[0])
        dtype = torch.float32 if actor.head.has_box else torch.int32
        self.unused_env_actions = torch.empty((rollout.rows, actor.head.size), dtype=dtype, device=device)
        self.metrics, self.stats = zeros(8), zeros((config.minibatches, 4))
        self.coefs, self.discounts, self._known_coefs = zeros(len(COEFS)), zeros(2), dict[str, float]()
        self.reward_scale = zeros(1)
        self._set_coefs()

    acts_for_members = False  # whether member_kernels.py acts for such a network
    own_numbers = COEFS  # options in a table of its own, which graphs read

    def set_numbers(self) -> None:
        """Takes the numbers of another run that uses this learner."""
        self._set_coefs()

    # ---- collecting ----

    def begin(self) -> None:
        """Copies the weights, and the mean and variance of observations, which are constant during an iteration."""
        self._copy_weights()
        if self.moments is not None:
            self.mean.copy_(self.moments.mean.reshape(-1))
            self.scale.copy_((self.moments.var + 1e-8).rsqrt().reshape(-1))

    def _copy_weights(self) -> None:
        raise NotImplementedError

    def act(self, t: int, env_actions: Tensor | None = None, rows: slice = slice(None)) -> State:
        """Stores logits, values and actions of some rows at step t; after the last step, only their values.

        Returns the next state of a recurrent policy, whose memory the next call overwrites.
        """
        raise NotImplementedError

    def _step_tensors(self, t: int, env_actions: Tensor | None, rows: slice) -> tuple[list[Any], list[Tensor]]:
        """For `rows` at step t: (observations, noise, masks), and (logits, values, actions, env_actions)."""
        rollout, masks = self.learner.rollout, self.learner.rollout.masks
        is_last = t == rollout.horizon
        # the same kernel after the last step, so that no second one is compiled: its actions are not used
        noise = rollout.noise[0 if is_last else t, rows]
        logits, actions = self.unused if is_last else (rollout.logits[t], rollout.actions[t])
        allowed = None if masks is None else masks[t, rows]
        if env_actions is None:
            env_actions = self.unused_env_actions[rows]
        return [rollout.obs[0][t, rows], noise, allowed], [
            logits[rows],
            rollout.values[t, rows],
            actions[rows],
            env_actions,
        ]

    # ---- rewards to advantages ----

    @property
    def makes_batches(self) -> bool:
        """Whether `make_batch` covers the rollout. V-trace and rollouts in parts take that of algos/ppo.py."""
        rollout = self.learner.rollout
        return not self.learner.config.vtrace and rollout.ready is None and not rollout.truncations.added

    def make_batch(self, batch_type: Any) -> Any:
        """As `make_batch` of algos/ppo.py, in a few launches (batch_kernels.py). Advantages are not normalized."""
        learner, rollout, head = self.learner, self.learner.rollout, self.learner.head
        truncations, moments, counted = rollout.truncations, learner.reward_moments, rollout.counted()
        steps, rows = rollout.rewards.shape
        blocks, grid = -(-rows // TARGET_ROWS), (-(-rows // TARGET_ROWS),)
        tile = {"COUNTED": counted is not None, "CHUNK": triton_size(min(steps, 32)), "PART": TARGET_ROWS}
        self._set_numbers(self.discounts, ("gamma", "gae_lambda"))
        if moments is not None:
            sums = fresh(rollout.rewards, blocks, 3, dtype=torch.float64)
            launch(
                self.batch_kernels.return_sums, grid,
                rollout.rewards, rollout.dones, counted, learner.running_return, sums, self.discounts, steps, rows,
                **tile, num_warps=4,
            )  # fmt: skip
            own = (moments.mean, moments.var, moments.count, self.reward_scale)
            launch(self.batch_kernels.reward_scale, (1,), sums, *own, blocks, BLOCKS=512, num_warps=4)
        last_values = None
        if truncations.fixed_flags is not None:
            last_values = fresh(rollout.rewards, len(truncations.obs[0]), rows)
            for k, truncation in enumerate(truncations):
                self._last_values(truncation, last_values[k])
        advantages, returns = fresh(rollout.rewards), fresh(rollout.rewards)
        sums = fresh(rollout.rewards, blocks, 5, dtype=torch.float64)
        choices = head.num_noise if head.is_one_choice and head.num_noise <= 16 else 0
        logits, actions = rollout.logits.flatten(0, 1), rollout.actions.flatten(0, 1)
        logprobs = fresh(rollout.rewards, steps * rows) if choices else head.log_prob(logits, actions)
        launch(
            self.batch_kernels.targets, grid,
            rollout.rewards, self.reward_scale, rollout.values, rollout.dones, truncations.fixed_flags, last_values,
            counted, logits, actions, advantages, returns, logprobs, sums, self.discounts, steps, rows,
            max(truncations.window, 1),
            SCALED=moments is not None, TRUNCATES=last_values is not None, A=choices, **tile, num_warps=4,
        )  # fmt: skip
        out = fresh(rollout.rewards, 3)
        launch(self.batch_kernels.batch_stats, (1,), sums, out, blocks, BLOCKS=512, num_warps=4)
        has_core = learner.actor.policy.core is not None
        return batch_type(
            obs=[leaf[:-1].flatten(0, 1) for leaf in rollout.obs],
            actions=actions,
            logprobs=logprobs,
            values=rollout.values[:-1].flatten(),
            advantages=advantages.flatten(),
            returns=returns.flatten(),
            resets=rollout.resets().flatten() if has_core else rollout.dones.flatten(),
            masks=None if rollout.masks is None else rollout.masks[:-1].flatten(0, 1),
            counts=None if counted is None else counted.flatten().to(torch.float32),
            moments=out,
        )

    def _last_values(self, truncation: Any, out: Tensor) -> None:
        """The values (rows,) of the last observations of truncated episodes."""
        rollout = self.learner.rollout
        out.copy_(self.learner.actor.step(rollout.observations(truncation.obs), truncation.state)[1])

    # ---- learning ----

    def epoch(self, batch: Any, order: Tensor) -> Tensor:
        """One pass over the rollout in minibatches of `order`; returns the sums of STEP_METRICS (algos/ppo.py)."""
        self._begin_epoch(batch, order)
        for k, count in enumerate(self.counts):
            self._gradient(batch, order, self.starts[k], count, self.stats[k])
            self._optimize()
        return self.metrics[:6]

    def _begin_epoch(self, batch: Any, order: Tensor) -> None:
        """Statistics of the minibatches' advantages; metrics begin at zero."""
        config = self.learner.config
        self._set_coefs()
        launch(
            self.kernels.advantage_stats, (config.minibatches,),
            batch.advantages, batch.counts, order, self.stats, self.metrics, self.edges,
            batch.moments if config.normalize_advantage == "batch" else None,
            COUNTED=batch.counts is not None, STANDARDIZE=config.normalize_advantage == "minibatch", PART=2048,
            num_warps=8,
        )  # fmt: skip

    def _set_coefs(self) -> None:
        """Takes the options that the kernels read."""
        self._set_numbers(self.coefs, COEFS)

    def _set_numbers(self, numbers: Tensor, names: Sequence[str]) -> None:
        """Copies options to the device. With a schedule an option is a tensor, which a graph can copy."""
        for k, name in enumerate(names):
            value = getattr(self.learner.config, name)
            if isinstance(value, Tensor):
                numbers[k].copy_(value)
            elif self._known_coefs.get(name) != value:
                numbers[k].fill_(value)
                self._known_coefs[name] = value

    def _gradient(self, batch: Any, order: Tensor, first: int, count: int, stats: Tensor) -> None:
        """Computes the gradient of the minibatch `order[first : first + count]` into the weights' `grad`."""
        raise NotImplementedError

    def _optimize(self) -> None:
        """Clips the gradient and updates the weights and their copy."""
        raise NotImplementedError


def width_of(env_actions: Tensor) -> int:
    """Numbers of a row of the env's actions."""
    return 1 if env_actions.ndim == 1 else int(env_actions.stride(0))


def triton_size(count: int) -> int:
    """The smallest block size for `count` elements: a power of two, and at least 16, as matrix products need."""
    return max(16, 1 << (count - 1).bit_length())


def has_small_shared_memory(device: torch.device) -> bool:
    """Whether a block has only 99 KB of shared memory, as on an RTX 4090. `learn` needs 132 KB for tiles of 128."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)
    return capability in ((8, 6), (8, 9)) or capability >= (12, 0)
