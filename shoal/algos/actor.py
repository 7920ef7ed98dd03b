"""Actor: a policy with what it needs to act: how its logits are read, how its observations are scaled.

It is what a checkpoint's `weights` hold, and all that playing needs.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal.algos.ops import RunningMoments
from shoal.errors import ConfigError
from shoal.nn import policy as policies
from shoal.nn.distributions import ActionHead
from shoal.nn.policy import Net, Policy
from shoal.nn.recurrent import State
from shoal.spec import Array, Layout, structure


class Actor(nn.Module):
    """Its state dict is what must be saved to play: the policy's weights and the moments of observations."""

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
        self.agents = agents  # that it plays in each env
        if policy is None:
            with seeded(seed):
                policy = Policy(observation_space, self.head, net)
        self.policy: Any = policy
        leaves = self.layout.leaves
        wanted = [RunningMoments(leaf.shape) if leaf.dtype.kind == "f" and normalize_obs else None for leaf in leaves]
        self.moments = nn.ModuleDict({str(k): norm for k, norm in enumerate(wanted) if norm is not None})
        self.to(device)
        self.head.to(device)
        self._half = precision == "bf16" and torch.device(device).type == "cuda"
        # kept out of the module tree: it is the same weights, and shall not be saved twice
        self._run = [torch.compile(policy) if compile else policy]
        policies.check(policy, self._blank(2 * agents), 2 * agents, self.head)

    def on_cpu(self) -> Actor:
        """A copy that plays on the CPU."""
        twin = copy.deepcopy(self)
        twin.to("cpu")
        twin.head.to("cpu")
        twin._half = False
        return twin

    def of_agent(self, number: int) -> Actor:
        """One agent's share of an actor with a network for each of its agents, as an actor of its own."""
        if getattr(self.policy, "agents", 1) == 1:
            return self
        twin = copy.deepcopy(self)
        twin.policy, twin.agents = self.policy.of_agent(number), 1
        twin._run = [twin.policy]
        return twin

    @property
    def runs_as_it_is(self) -> bool:
        """Whether the policy runs neither compiled nor in half precision."""
        return self._run[0] is self.policy and not self._half

    def initial_state(self, rows: int) -> State:
        """The policy's state at the start of episodes; empty where it has none."""
        return policies.initial_state(self.policy, rows)

    def see(self, obs: Any) -> Any:
        """Observations as the policy gets to see them: scaled by running moments, where asked for."""
        if not len(self.moments):
            return obs
        leaves = flat(obs, self.layout)
        for key, norm in self.moments.items():
            leaves[int(key)] = norm.normalize(leaves[int(key)])
        return structure(self.space, iter(leaves))

    def step(self, obs: Any, state: State) -> tuple[Tensor, Tensor, State]:
        """(logits, values, next state) of raw observations, one per row."""
        if not self._half:
            return policies.step(self._run[0], self.see(obs), state)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            logits, values, state = policies.step(self._run[0], self.see(obs), state)
        return logits.float(), values.float(), tuple(part.float() for part in state)

    def unroll(self, obs: Any, state: State, resets: Tensor) -> tuple[Tensor, Tensor]:
        """Flat (logits, values) of whole segments of raw observations. See `policies.unroll`."""
        if not self._half:
            return policies.unroll(self._run[0], self.see(obs), state, resets)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            logits, values = policies.unroll(self._run[0], self.see(obs), state, resets)
        return logits.float(), values.float()

    def _blank(self, rows: int) -> Any:
        zeros = [torch.from_numpy(np.zeros((rows, *leaf.shape), kept_dtype(leaf.dtype))) for leaf in self.layout.leaves]
        home = next(iter(self.parameters()), zeros[0]).device
        return structure(self.space, iter([part.to(home) for part in zeros]))


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Weights that are drawn here are the same for the same seed, whatever was drawn before.

    By one thread: orthogonal weights are found by sums whose order depends on the number of threads.
    """
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


# numpy's dtypes that torch can hold but hardly compute with, and what is kept instead
_WIDER = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64, np.dtype(np.uint64): np.int64}


def kept_dtype(dtype: np.dtype[Any]) -> Any:
    """The dtype in which observations of a dtype are kept."""
    return _WIDER.get(dtype, dtype)


def flat(value: Any, layout: Layout) -> list[Any]:
    """The leaves of a batch in the structure of the space, in the layout's order."""
    if layout.is_one_array:
        return [value]
    leaves = []
    for leaf in layout.leaves:
        part = value
        for key in leaf.path:
            part = part[key]
        leaves.append(part)
    return leaves


# ---- who plays which agent ----


@dataclass(frozen=True)
class Role:
    """The agents that one policy plays, and the spaces that they share."""

    agents: tuple[int, ...] | None  # None: all
    names: tuple[str, ...]  # where agents have different spaces, and actions are a dict by agent
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]

    def count(self, agents_per_env: int) -> int:
        """How many agents it plays."""
        return agents_per_env if self.agents is None else len(self.agents)


def cast(vec: Any, policies: str) -> list[Role]:
    """Divides a vector env's agents over policies: one for all, one for each, or one for each kind of spaces."""
    agents = int(getattr(vec, "agents_per_env", 1))
    face = getattr(vec, "face", None)
    if face is not None and not face.alike:
        kinds: list[list[int]] = []
        for k in range(agents):
            spaces_of = face.observation_spaces[k], face.action_spaces[k]
            same = (g for g in kinds if (face.observation_spaces[g[0]], face.action_spaces[g[0]]) == spaces_of)
            home = None if policies == "per_agent" else next(same, None)
            home.append(k) if home is not None else kinds.append([k])
        return [
            Role(tuple(g), tuple(face.agents[k] for k in g), face.observation_spaces[g[0]], face.action_spaces[g[0]])
            for g in kinds
        ]
    seen, done = vec.single_observation_space, vec.single_action_space
    if policies == "per_agent" and agents > 1:
        return [Role((k,), (), seen, done) for k in range(agents)]
    return [Role(None, (), seen, done)]


def pick(array: Array, role: Role, agents: int) -> Array:
    """The role's agents of an array over rows."""
    if role.agents is None:
        return array
    picked: Array = array.reshape(-1, agents, *array.shape[1:])[:, list(role.agents)]
    return picked.reshape(-1, *array.shape[1:])


def pick_obs(obs: Any, role: Role, layout: Layout, agents: int) -> list[Array]:
    """The leaves of the role's observations."""
    if role.names:  # a dict by agent
        each = [flat(obs[name], layout) for name in role.names]
        return [np.stack(leaves, 1).reshape(-1, *leaves[0].shape[1:]) for leaves in zip(*each)]
    return [pick(leaf, role, agents) for leaf in flat(obs, layout)]


def gather(found: Sequence[Any], roles: Sequence[Role], heads: Sequence[ActionHead], games: int, agents: int) -> Any:
    """One batch of actions for the env from those of every role. An agent that is in none of them gets zeros."""
    if len(roles) == 1 and roles[0].agents is None:
        return found[0]
    if not roles[0].names:
        layout = heads[0].layout
        each = [flat(actions, layout) for actions in found]
        whole = [np.zeros((games, agents, *leaf.shape[1:]), leaf.dtype) for leaf in each[0]]
        for role, leaves in zip(roles, each):
            for out, leaf in zip(whole, leaves):
                out[:, list(role.agents or range(agents))] = leaf.reshape(games, -1, *leaf.shape[1:])
        return structure(layout.space, iter([out.reshape(-1, *out.shape[2:]) for out in whole]))
    by_agent: dict[int, tuple[str, Any]] = {}
    for role, head, actions in zip(roles, heads, found):
        leaves, count = flat(actions, head.layout), len(role.names)
        for k, (agent, name) in enumerate(zip(role.agents or (), role.names)):
            part = structure(head.space, iter([leaf[k::count] for leaf in leaves]))
            by_agent[agent] = name, part
    return {name: part for _, (name, part) in sorted(by_agent.items())}


def mask_size(vec: Any, head: ActionHead) -> int:
    """How long the env's action masks are; 0 where it has none."""
    size = int(getattr(getattr(vec, "spec_env", None), "mask_size", 0) or 0)
    if size and size != head.choices:
        raise ConfigError(f"the env's action mask has {size} entries for {head.choices} choices.")
    return size
