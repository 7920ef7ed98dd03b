"""Actor: a policy with its action head and observation normalization: all that is needed to act.

A checkpoint's `weights` are its state dict, and playing needs nothing else. Learning is in learner.py.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal.algos.ops import RunningMoments
from shoal.errors import ConfigError
from shoal.nn import policy as policies
from shoal.nn.cores import State
from shoal.nn.distributions import ActionHead
from shoal.nn.encoders import is_numeric, leaf_spaces
from shoal.nn.policy import Net, Policy
from shoal.nn.qnet import QNet
from shoal.nn.state import initial_row, initial_state
from shoal.spec import Layout, structure


class Decision(NamedTuple):
    """What an actor decided for a batch of rows."""

    logits: Tensor
    values: Tensor
    actions: Tensor
    state: State  # the recurrent state after the step


class Actor(nn.Module):
    """A policy, its action head, and the running mean and variance of its observations (`moments`, by leaf)."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        net: Net,
        *,
        seed: int,
        policy: nn.Module | None = None,
        head: ActionHead | None = None,
        agents: int = 1,
        normalize_obs: bool = False,
        compile: bool = False,
        precision: str = "fp32",
        device: Any = "cpu",
    ) -> None:
        super().__init__()
        self.space, self.layout = observation_space, Layout(observation_space)
        self.head = head or ActionHead(action_space, std=net.std, squash=net.squash)
        self.agents = agents  # agents of each env that it plays
        if policy is None:
            with seeded(seed):
                policy = policies.make_policy(observation_space, self.head, net, normalized=normalize_obs)
        self.policy: Any = policy
        leaves = zip(self.layout.leaves, leaf_spaces(observation_space))
        numeric = {str(k): leaf for k, (leaf, space) in enumerate(leaves) if normalize_obs and is_numeric(space)}
        self.moments = nn.ModuleDict({key: RunningMoments(leaf.shape) for key, leaf in numeric.items()})
        self.to(device)
        self.head.to(device)
        self._is_bf16 = precision == "bf16" and torch.device(device).type == "cuda"
        # in a list, so that the module tree and checkpoints do not hold the same weights twice
        self._run = [policies.compiled(policy) if compile else policy]
        policies.check(policy, self.blank(2 * agents), 2 * agents, self.head)

    def on_cpu(self) -> Actor:
        """A copy that plays on the CPU."""
        twin = copy.deepcopy(self)
        twin.to("cpu")
        twin.head.to("cpu")
        twin._is_bf16 = False
        return twin

    def as_player(self) -> Actor:
        """The actor that an evaluation may play with: one whose memory is outside of it can be shared."""
        return self

    def of_agent(self, number: int) -> Actor:
        """An actor for one agent: with the agent's own network if each agent has one, else this actor."""
        if self.networks == 1:
            return self
        twin = copy.deepcopy(self)
        twin.policy, twin.agents = self.policy.of_agent(number), 1
        twin._run = [twin.policy]
        return twin

    @property
    def is_compiled(self) -> bool:
        """Whether the policy runs by torch.compile."""
        return self._run[0] is not self.policy

    @property
    def networks(self) -> int:
        """How many networks the policy has: 1, or with `--train.policy per-agent` one for each agent."""
        return self.policy.agents if isinstance(self.policy, QNet) else 1

    @property
    def is_plain(self) -> bool:
        """Whether the policy runs neither compiled nor in bfloat16."""
        return not self.is_compiled and not self._is_bf16

    def initial_state(self, rows: int) -> State:
        """The policy's recurrent state at the start of an episode; empty if it is not recurrent."""
        return initial_state(self.policy, rows)

    def initial_row(self) -> State | None:
        """The initial state of one row, (1, ...) tensors; None if it is zero. A learned one changes with updates."""
        return initial_row(self.policy)

    def normalize(self, obs: Any) -> Any:
        """The policy's inputs: observations normalized by their running mean and variance, with `normalize_obs`."""
        if not len(self.moments):
            return obs
        leaves = self.layout.leaves_of(obs)
        for key, moments in self.moments.items():
            leaves[int(key)] = moments.normalize(leaves[int(key)])
        return structure(self.space, iter(leaves))

    def step(self, obs: Any, state: State) -> tuple[Tensor, Tensor, State]:
        """(logits, values, next state) for raw observations, one for each row."""
        if not self._is_bf16:
            return policies.step(self._run[0], self.normalize(obs), state)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            logits, values, state = policies.step(self._run[0], self.normalize(obs), state)
        return logits.float(), values.float(), tuple(part.float() for part in state)

    def act(self, obs: Any, state: State, *, mask: Tensor | None = None, noise: Tensor | None = None) -> Decision:
        """Acts for a batch of rows: forward pass, mask, sample. Without noise it takes the most probable actions."""
        logits, values, state = self.step(obs, state)
        if mask is not None:
            logits = self.head.mask(logits, mask)
        actions = self.head.greedy(logits) if noise is None else self.head.sample(logits, noise)
        return Decision(logits, values, actions, state)

    def unroll(self, obs: Any, state: State, resets: Tensor) -> tuple[Tensor, Tensor]:
        """Flat (logits, values) for whole segments of raw observations: see `unroll` of nn/policy.py."""
        if not self._is_bf16:
            return policies.unroll(self._run[0], self.normalize(obs), state, resets)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            logits, values = policies.unroll(self._run[0], self.normalize(obs), state, resets)
        return logits.float(), values.float()

    def check_learns(self, outputs: tuple[str, ...]) -> None:
        """Raises if none of these outputs of a custom policy depends on its weights: no loss could change them."""
        if type(self.policy) in (Policy, QNet):
            return
        rows = 2 * self.agents
        state = self.initial_state(rows)
        resets = torch.zeros((1 if state else 0, rows), dtype=torch.bool, device=next(self.policy.parameters()).device)
        with torch.enable_grad(), policies.evaluation_mode(self.policy):
            logits, values = policies.unroll(self.policy, self.blank(rows), state, resets)
        if not any({"logits": logits, "value": values}[name].requires_grad for name in outputs):
            raise ConfigError(
                f"{policies.name_of(self.policy)} cannot learn: its {' and '.join(outputs)} do not depend on its "
                "parameters. Leave out torch.no_grad() and detach() in its forward."
            )

    def evaluation_mode(self) -> contextlib.AbstractContextManager[None]:
        """A context in which a custom policy has no dropout and fixed batch statistics, and Shoal's own is float32."""
        if type(self.policy) is Policy:
            return policies.in_float32(self.policy)
        return contextlib.nullcontext() if type(self.policy) is QNet else policies.evaluation_mode(self.policy)

    def blank(self, rows: int) -> Any:
        """Observations of zeros."""
        zeros = [torch.zeros((rows, *leaf.shape), dtype=stored_dtype(leaf.dtype)) for leaf in self.layout.leaves]
        device = next(iter(self.parameters()), zeros[0]).device
        return structure(self.space, iter([leaf.to(device) for leaf in zeros]))


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """A context in which random weights depend on the seed alone.

    It uses one thread: the sums behind orthogonal weights are added in an order that depends on the number of threads.
    """
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


# numpy dtypes for which torch has few operations, and the dtypes that are stored instead
_WIDER = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64, np.dtype(np.uint64): np.int64}


def stored_numpy_dtype(dtype: np.dtype[Any]) -> Any:
    """The numpy dtype in which observations of a dtype are stored."""
    return _WIDER.get(dtype, dtype)


def stored_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """The torch dtype in which observations of a numpy dtype are stored."""
    return torch.from_numpy(np.zeros(0, stored_numpy_dtype(dtype))).dtype
