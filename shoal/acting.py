"""Trained policies that act. `shoal.load` makes them from a run's folder (shoal/loading.py).

    policy = shoal.load("last")
    action = policy.act(obs)                     # one observation, or a batch; NumPy or torch
    action, state = policy.act(obs, state)       # a recurrent policy; state is None where an episode starts

`Team` is for runs with a policy for each agent or group.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from shoal.algos.actor import Actor, Decision, stored_dtype, stored_numpy_dtype
from shoal.errors import ActionError, ConfigError, did_you_mean
from shoal.nn.distributions import NEVER
from shoal.nn.env_actions import EnvActions
from shoal.nn.qnet import QHead
from shoal.nn.state import clear_state
from shoal.spec import Leaf, map_leaves, structure
from shoal.vector.views import interleaved

State = tuple[Tensor, ...]  # recurrent state: (rows, ...) tensors on the policy's device


class Normal(NamedTuple):
    """The distribution of a Box action: independent normals, in the units of the env.

    Actions are clipped to the bounds after sampling. With `--nn.squash tanh` it is the normal before the squash.
    """

    mean: Any
    std: Any


class Policy:
    """One trained policy with its normalization: all that acting needs. It plays one agent, or several alike.

    Observations are those of the env, as `env.step` returns them: raw, one or a batch with the rows as the first axis,
    NumPy arrays (also lists and numbers) or torch tensors. Results are of the same kind: NumPy for NumPy, torch for
    torch, one for one. Actions are what the env's `step` takes: in the structure of the space, scaled and clipped.

    Attributes:
        observation_space: the space of one observation.
        action_space: the space of one action.
        agents: the names of the agents that it plays.
        is_recurrent: whether `act` takes and returns a state.
        mask_size: entries of an action mask; 0: the env has none; None: unknown.
        step: the steps of training behind its checkpoint.
        device: where the network computes; `to` moves it.
        actor: the network with its action head: a torch module.
    """

    def __init__(
        self,
        actor: Actor,
        agents: tuple[str, ...] = ("agent_0",),
        *,
        mask_size: int | None = None,
        seed: int = 0,
        step: int = 0,
    ) -> None:
        self.actor, self.agents, self.mask_size, self.step = actor, agents, mask_size, step
        self.name = ""  # of the group of all agents, if it has one
        self.observation_space, self.action_space = actor.space, actor.head.space
        self.is_recurrent = bool(actor.initial_state(1))
        self.generator = torch.Generator().manual_seed(seed)
        tensors = [*actor.parameters(), *actor.buffers()]
        self.device = tensors[0].device if tensors else torch.device("cpu")  # where the network computes
        self._env_actions = EnvActions(actor.head).to(self.device)

    def __repr__(self) -> str:
        kind = "recurrent policy" if self.is_recurrent else "policy"
        return f"<{kind} of {', '.join(self.agents)}: {self.observation_space} -> {self.action_space}>"

    # ---- acting ----

    @torch.no_grad()
    def act(
        self,
        obs: Any,
        state: Any = None,
        mask: Any = None,
        greedy: bool = False,
        generator: torch.Generator | None = None,
    ) -> Any:
        """The actions for observations; for a recurrent policy `(actions, state)`.

        Args:
            obs: one observation or a batch; or a dict of them by agent, and then all results are dicts by agent.
            state: a recurrent policy's state, as the last `act` returned it; None: an episode starts in all rows.
            mask: 1 where a choice is allowed, as in `info["action_mask"]`: one for all rows, or one for each.
            greedy: the most probable action. By default an action is sampled, as in training; a Q-learner explores
                with the epsilon of the end of its training.
            generator: a CPU generator of the sampled actions; default: the policy's own, which `seed` sets.
        """
        if self._is_by_agent(obs):
            return _act_by_agent(self, obs, state, mask, greedy, generator)
        batch = self._read(obs)
        noise = None if greedy else self._noise(batch.rows, generator)
        decision = self._decide(batch, state, mask, noise)
        if batch.device is None:
            leaves = self.actor.head.layout.leaves_of(self.actor.head.to_env(decision.actions.cpu().numpy()))
        else:
            leaves = list(self._env_actions(decision.actions))
        actions = structure(self.action_space, iter([batch.give(leaf) for leaf in leaves]))
        return (actions, decision.state) if self.is_recurrent else actions

    @torch.no_grad()
    def value(self, obs: Any, state: Any = None, mask: Any = None) -> Any:
        """The critic's estimate of the discounted return from here on; for a Q-learner the highest Q-value.

        It is in the units of training: of rewards that `normalize_reward` or `reward_scale` have scaled.
        """
        if self._is_by_agent(obs):
            return {name: self[name].value(part, *_part(name, state, mask)) for name, part in obs.items()}
        batch = self._read(obs)
        decision = self._decide(batch, state, mask, None, needs_mask=False)
        is_masked_q = isinstance(self.actor.head, QHead) and mask is not None
        return batch.give(decision.logits.amax(-1) if is_masked_q else decision.values)

    @torch.no_grad()
    def distribution(self, obs: Any, state: Any = None, mask: Any = None) -> Any:
        """What `act` samples from, in the structure of the action space.

        A Discrete space has the probabilities of its choices, MultiDiscrete and MultiBinary a tuple of them (one for
        each sub-action), a Box its `Normal`. For a Q-learner: the probabilities of epsilon-greedy actions.
        """
        if self._is_by_agent(obs):
            return {name: self[name].distribution(part, *_part(name, state, mask)) for name, part in obs.items()}
        batch = self._read(obs)
        logits = self._decide(batch, state, mask, None).logits
        return structure(self.action_space, iter(_distributions(self.actor.head, logits, batch)))

    def clear(self, state: Any, done: Any) -> Any:
        """The state with that of new episodes in the rows where `done` is true: after `step`, for a batch."""
        if state is None or not self.is_recurrent:
            return state
        if isinstance(state, Mapping):
            given = done if isinstance(done, Mapping) else dict.fromkeys(state, done)
            return {name: self[name].clear(part, given.get(name, False)) for name, part in state.items()}
        keep = ~torch.as_tensor(np.asarray(done) if not isinstance(done, Tensor) else done).to(self.device, torch.bool)
        keep = keep.reshape(-1)
        if len(keep) != len(state[0]):
            raise ConfigError(f"done has {len(keep)} entries, but the state has {len(state[0])} rows. Give one a row.")
        return clear_state(state, keep, self.actor.initial_row())

    # ---- agents ----

    def __getitem__(self, agent: str) -> Policy:
        """The policy of an agent, by its name: this one, if the agent is one of `agents`."""
        if str(agent) not in (*self.agents, self.name):
            raise _unknown_agent(agent, self.agents)
        return self

    def _is_by_agent(self, obs: Any) -> bool:
        return _is_by_agent(obs, self.observation_space, self.agents)

    # ---- settings ----

    def to(self, device: Any) -> Policy:
        """Moves the network to a device, in place, and returns the policy. Sampled actions do not depend on it."""
        place = _device(device)
        self.actor.to(place)
        self.actor.head.to(place)
        self._env_actions.to(place)
        self.device = place
        return self

    def seed(self, seed: int) -> Policy:
        """Seeds the sampled actions, and returns the policy."""
        self.generator.manual_seed(seed)
        return self

    # ---- one batch ----

    def _read(self, obs: Any) -> _Batch:
        """Observations as tensors on the policy's device, in the dtypes of training."""
        parts = [_pick(obs, leaf) for leaf in self.actor.layout.leaves]
        device = next((part.device for part in parts if isinstance(part, Tensor)), None)
        arrays = [part if isinstance(part, Tensor) else _array(part, leaf) for part, leaf in self._with_leaves(parts)]
        extra = {array.ndim - len(leaf.shape) for array, leaf in self._with_leaves(arrays)}
        for array, leaf in self._with_leaves(arrays):
            shape = tuple(array.shape)
            if len(extra) != 1 or extra - {0, 1} or shape[len(shape) - len(leaf.shape) :] != leaf.shape:
                raise ConfigError(
                    f"obs{leaf.name} has shape {shape}. The policy takes {leaf.shape} for one observation, or "
                    f"{_batch_shape(leaf)} for a batch, the same for all parts."
                )
        is_one = extra == {0}
        rows = 1 if is_one else len(arrays[0])
        for array, leaf in self._with_leaves(arrays):
            if not is_one and len(array) != rows:
                raise ConfigError(f"obs{leaf.name} has {len(array)} rows, but another part has {rows}.")
        leaves = []
        for array, leaf in self._with_leaves(arrays):
            tensor = array if isinstance(array, Tensor) else torch.from_numpy(_stored(array, leaf))
            _check_dtype(tensor, leaf)
            tensor = tensor.to(self.device, stored_dtype(leaf.dtype))
            leaves.append(tensor.unsqueeze(0) if is_one else tensor)
        return _Batch(leaves, rows, is_one, device)

    def _with_leaves(self, parts: list[Any]) -> list[tuple[Any, Leaf]]:
        return list(zip(parts, self.actor.layout.leaves))

    def _decide(self, batch: _Batch, state: Any, mask: Any, noise: Tensor | None, needs_mask: bool = True) -> Decision:
        obs = structure(self.observation_space, iter(batch.leaves))
        allowed = self._mask(mask, batch, needs_mask)
        with self.actor.evaluation_mode():
            return self.actor.act(obs, self._state(state, batch.rows), mask=allowed, noise=noise)

    def _noise(self, rows: int, generator: torch.Generator | None) -> Tensor:
        """Drawn on the CPU, so that every device samples the same actions."""
        head = self.actor.head
        if generator is not None and generator.device.type != "cpu":
            raise ConfigError(f"generator is on {generator.device}. Give one of the CPU: torch.Generator().")
        noise = torch.empty(rows, head.num_noise)
        if isinstance(head, QHead):  # it compares with epsilon, which lies on the policy's device
            noise.uniform_(generator=generator or self.generator)
            noise[:, -1] = (noise[:, -1] < head.epsilon.cpu()).to(noise.dtype)
        else:
            head.draw(noise, generator or self.generator)
        return noise.to(self.device)

    def _state(self, state: Any, rows: int) -> State:
        if not self.is_recurrent:
            if state is not None and len(state):
                raise ConfigError("this policy is not recurrent: it takes no state. Call act(obs).")
            return ()
        if state is None or (isinstance(state, tuple) and not state):
            return self.actor.initial_state(rows)
        expected = [tuple(part.shape[1:]) for part in self.actor.initial_state(1)]
        is_state = isinstance(state, tuple) and all(isinstance(part, Tensor) for part in state)
        if not is_state or [tuple(part.shape[1:]) for part in state] != expected:
            raise ConfigError(
                "state is not a state of this policy. Give what its last act(obs, state) returned, or None where an "
                "episode starts."
            )
        if any(len(part) != rows for part in state):
            raise ConfigError(
                f"state has {len(state[0])} rows, but there are {rows} observations. Give the state of the same rows, "
                "or None where episodes start."
            )
        return tuple(part.to(self.device) for part in state)

    def _mask(self, mask: Any, batch: _Batch, is_needed: bool) -> Tensor | None:
        choices = self.actor.head.choices
        if mask is None:
            if self.mask_size and is_needed:
                raise ConfigError(
                    f"this policy was trained with action masks of {self.mask_size} entries, and mask is missing. Pass "
                    f'mask=info["action_mask"], or mask=numpy.ones({self.mask_size}) if every action is allowed.'
                )
            return None
        if not choices:
            raise ConfigError(f"mask is given, but the actions are {self.actor.head}. Masks are for discrete actions.")
        if isinstance(mask, (tuple, list)) and len(mask) and np.ndim(mask[0]):  # one mask for each sub-action
            mask = np.concatenate([np.asarray(part) for part in mask], -1)
        allowed = mask if isinstance(mask, Tensor) else torch.from_numpy(np.asarray(mask).astype(np.int8))
        if allowed.numel() == choices:  # one mask for all rows
            allowed = allowed.reshape(1, choices).expand(batch.rows, choices)
        if allowed.numel() != batch.rows * choices:
            expected = f"({choices},)" if batch.is_one else f"({batch.rows}, {choices})"
            raise ConfigError(f"mask has shape {tuple(allowed.shape)}, expected {expected}: one entry for each choice.")
        allowed = allowed.reshape(batch.rows, choices).to(self.device)
        for part in self.actor.head.parts:
            is_empty = ~(allowed[:, part.logits] != 0).any(-1)
            if bool(is_empty.any()):
                row = int(is_empty.nonzero()[0])
                raise ActionError(f"mask allows no action in row {row}. Allow at least one choice of each sub-action.")
        return allowed


class Team:
    """The policies of a run in which several agents or groups have a policy each. It is indexed by their names.

    `act` takes a dict of observations by agent, as in PettingZoo, and returns a dict of actions. Agents that are out of
    the game are left out of it. For agents with equal spaces it also takes the rows of `shoal.make`: the agents of env
    0, those of env 1, ... An agent that an opponent played in training has no policy here; its rows get zeros.
    """

    def __init__(self, agents: tuple[str, ...], policies: Mapping[str, Policy], groups: Mapping[str, Policy]) -> None:
        self.all_agents, self.policies, self.groups = agents, dict(policies), dict(groups)
        self.agents = tuple(self.policies)
        members = list(self.policies.values())
        self.is_recurrent = any(policy.is_recurrent for policy in members)
        first = members[0]
        self._alike = all(
            (policy.observation_space, policy.action_space) == (first.observation_space, first.action_space)
            for policy in members
        )

    def __repr__(self) -> str:
        unique = {id(policy): repr(policy) for policy in self.policies.values()}
        return "<team:\n  " + "\n  ".join(unique.values()) + ">"

    def __getitem__(self, name: str) -> Policy:
        """The policy of an agent, or of a group."""
        found = self.policies.get(str(name)) or self.groups.get(str(name))
        if found is not None:
            return found
        raise _unknown_agent(name, (*self.agents, *self.groups))

    def act(
        self,
        obs: Any,
        state: Any = None,
        mask: Any = None,
        greedy: bool = False,
        generator: torch.Generator | None = None,
    ) -> Any:
        """The actions of all agents; with recurrent policies `(actions, states)`. The arguments are `Policy.act`'s."""
        if self._is_by_agent(obs):
            return _act_by_agent(self, obs, state, mask, greedy, generator)
        return self._act_for_rows(obs, state, mask, greedy, generator)

    def value(self, obs: Any, state: Any = None, mask: Any = None) -> dict[str, Any]:
        """The critics' estimates, by agent. Observations, states and masks are dicts by agent."""
        return {name: self[name].value(part, *_part(name, state, mask)) for name, part in self._named(obs).items()}

    def distribution(self, obs: Any, state: Any = None, mask: Any = None) -> dict[str, Any]:
        """What `act` samples from, by agent: see `Policy.distribution`."""
        named = self._named(obs)
        return {name: self[name].distribution(part, *_part(name, state, mask)) for name, part in named.items()}

    def clear(self, state: Any, done: Any) -> Any:
        """The states with those of new episodes where `done` (by agent, or over the rows of `shoal.make`) is true."""
        if state is None:
            return None
        if not isinstance(done, Mapping):
            flags = np.asarray(done).reshape(-1, len(self.all_agents))
            done = {name: flags[:, number] for number, name in enumerate(self.all_agents)}
        return {name: self[name].clear(part, done.get(name, False)) for name, part in state.items()}

    def to(self, device: Any) -> Team:
        """Moves all networks to a device, in place, and returns the team."""
        for policy in self.policies.values():
            policy.to(device)
        return self

    def seed(self, seed: int) -> Team:
        """Seeds the sampled actions of all policies, and returns the team."""
        for number, policy in enumerate({id(policy): policy for policy in self.policies.values()}.values()):
            policy.seed(seed + number)
        return self

    def _is_by_agent(self, obs: Any) -> bool:
        first = self.policies[self.agents[0]]
        return _is_by_agent(obs, first.observation_space if self._alike else None, self.agents)

    def _named(self, obs: Any) -> Any:
        if not self._is_by_agent(obs):
            raise ConfigError(
                f"this run has a policy for each of {', '.join(self.agents)}. Give a dict of observations by agent, or "
                f"name one: policy[{self.agents[0]!r}]."
            )
        return obs

    def _act_for_rows(self, obs: Any, state: Any, mask: Any, greedy: bool, generator: Any) -> Any:
        layout, count = self.policies[self.agents[0]].actor.layout, len(self.all_agents)
        shapes = [np.shape(_pick(obs, leaf)) for leaf in layout.leaves] if self._alike else []
        has_rows = all(len(shape) == len(leaf.shape) + 1 for shape, leaf in zip(shapes, layout.leaves))
        if not self._alike or not has_rows or shapes[0][0] % count:
            self._named(obs)  # raises
        masks = dict.fromkeys(self.agents, mask) if mask is None or np.ndim(mask) == 1 else self._split(mask)
        actions = _act_by_agent(self, self._split(obs), state, masks, greedy, generator)
        actions, states = actions if self.is_recurrent else (actions, None)
        blank = map_leaves(lambda leaf: leaf * 0, actions[self.agents[0]])
        all_actions = [actions.get(name, blank) for name in self.all_agents]
        is_torch = isinstance(layout.leaves_of(obs)[0], Tensor)
        rows = _interleaved_tensors(all_actions) if is_torch else interleaved(all_actions)
        return (rows, states) if self.is_recurrent else rows

    def _split(self, rows: Any) -> dict[str, Any]:
        """The rows of each agent that has a policy."""
        count = len(self.all_agents)
        places = {name: self.all_agents.index(name) for name in self.agents}
        return {name: map_leaves(itemgetter(slice(at, None, count)), rows) for name, at in places.items()}


class _Batch(NamedTuple):
    """Observations as (rows, ...) tensors on the policy's device, and the kind that results have."""

    leaves: list[Tensor]
    rows: int
    is_one: bool
    device: torch.device | None  # of results; None: NumPy

    def give(self, leaf: Any) -> Any:
        """A (rows, ...) result as the caller's kind."""
        if self.device is not None:
            tensor = (leaf if isinstance(leaf, Tensor) else torch.from_numpy(leaf)).to(self.device)
            return tensor[0] if self.is_one else tensor
        array = leaf.cpu().numpy() if isinstance(leaf, Tensor) else leaf
        if not self.is_one:
            return array
        return array[0] if array.ndim > 1 else array[0].item()


# ---- by agent ----


def _is_by_agent(obs: Any, space: spaces.Space[Any] | None, agents: tuple[str, ...]) -> bool:
    """Whether observations are a dict by agent, and not one observation of a Dict space."""
    if not isinstance(obs, Mapping) or not obs:
        return False
    if isinstance(space, spaces.Dict):
        return not set(obs) & set(space.spaces) and set(map(str, obs)) <= set(agents)
    return True


def _act_by_agent(
    policies: Policy | Team, obs: Any, state: Any, mask: Any, greedy: bool, generator: torch.Generator | None
) -> Any:
    actions, states = {}, {}
    for name, part in obs.items():
        policy = policies[name]
        result = policy.act(part, *_part(name, state, mask), greedy, generator)
        actions[name], states[name] = result if policy.is_recurrent else (result, None)
    return (actions, states) if policies.is_recurrent else actions


def _part(name: str, state: Any, mask: Any) -> tuple[Any, Any]:
    """An agent's part of states and masks that are dicts by agent; an agent without one gets None."""
    for kind, value in (("state", state), ("mask", mask)):
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"{kind} is a {type(value).__name__}, but obs is a dict by agent. Give a dict by agent.")
    return None if state is None else state.get(name), None if mask is None else mask.get(name)


# ---- reading observations ----


def _pick(obs: Any, leaf: Leaf) -> Any:
    part = obs
    for key in leaf.path:
        try:
            part = part[key]
        except (KeyError, IndexError, TypeError):
            given = f" obs has {', '.join(map(str, part))}." if isinstance(part, Mapping) else ""
            raise ConfigError(f"obs{leaf.name} is missing.{given} Give an observation as the env returns it.") from None
    return part


def _array(part: Any, leaf: Leaf) -> Any:
    try:
        array = np.asarray(part)
    except ValueError:
        raise ConfigError(f"obs{leaf.name} has parts of different shapes. Give one array.") from None
    if array.dtype.kind not in "biuf":
        raise ConfigError(f"obs{leaf.name} is {_kind(part)}, expected numbers of {leaf.dtype}.")
    return array


def _kind(part: Any) -> str:
    return f"an array of {part.dtype}" if isinstance(part, np.ndarray) else f"a {type(part).__name__}"


def _stored(array: Any, leaf: Leaf) -> Any:
    """A copy in a dtype that torch knows: it may be read-only, or have strides that torch does not take."""
    if array.dtype != leaf.dtype and array.dtype.kind in "iu" and leaf.dtype.kind in "iu" and array.size:
        limits = np.iinfo(leaf.dtype)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise ConfigError(
                f"obs{leaf.name} has values of {array.min()} .. {array.max()}, which do not fit in {leaf.dtype}."
            )
    kept = stored_numpy_dtype(leaf.dtype) if array.dtype.kind in "biu" and leaf.dtype.kind in "biu" else None
    return np.array(array, stored_numpy_dtype(array.dtype) if kept is None else kept, order="C")


def _check_dtype(tensor: Tensor, leaf: Leaf) -> None:
    if tensor.is_floating_point() and leaf.dtype.kind in "biu":
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise ConfigError(
            f"obs{leaf.name} is {dtype}, but the policy was trained on {leaf.dtype}. Give the env's observation as it "
            "is: the policy scales and normalizes it."
        )


def _batch_shape(leaf: Leaf) -> str:
    return f"({', '.join(['rows', *map(str, leaf.shape)])}{',' if not leaf.shape else ''})"


def _interleaved_tensors(batches: list[Any]) -> Any:
    """`interleaved` for torch tensors."""
    if isinstance(batches[0], dict):
        return {key: _interleaved_tensors([batch[key] for batch in batches]) for key in batches[0]}
    if isinstance(batches[0], tuple):
        return tuple(_interleaved_tensors([batch[k] for batch in batches]) for k in range(len(batches[0])))
    return torch.stack(batches, 1).flatten(0, 1)


def _unknown_agent(name: Any, known: tuple[str, ...]) -> ConfigError:
    near = did_you_mean(str(name), known)
    return ConfigError(f"no policy of '{name}' was trained.{near} There are policies of {', '.join(known)}.")


def _device(device: Any) -> torch.device:
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"device {device!r} cannot be used: {reason.rstrip('.')}. Use 'cpu'.") from None
    return place


# ---- distributions ----


def _distributions(head: Any, logits: Tensor, batch: _Batch) -> list[Any]:
    """One for each leaf of the action space."""
    results: list[Any] = []
    for columns, space in head._leaves:
        parts = [part for part in head.parts if columns.start <= part.actions.start < columns.stop]
        if isinstance(space, spaces.Box):
            mean, log_std = head._gaussian(logits, parts[0])
            std = log_std.exp()
            if not head.squash:
                scale, center = (constant[parts[0].log_stds] for constant in head._constants[:2])
                mean, std = mean * scale + center, std * scale
            shape = (batch.rows, *space.shape)
            results.append(Normal(batch.give(mean.reshape(shape)), batch.give(std.reshape(shape))))
            continue
        probabilities = [_probabilities(head, logits[:, part.logits]) for part in parts]
        shown = tuple(map(batch.give, probabilities))
        results.append(shown[0] if isinstance(space, spaces.Discrete) else shown)
    return results


def _probabilities(head: Any, logits: Tensor) -> Tensor:
    if not isinstance(head, QHead):
        return torch.softmax(logits, -1)
    allowed = (logits > NEVER).to(torch.float32)
    best = torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1])
    return best * (1.0 - head.epsilon) + head.epsilon * allowed / allowed.sum(-1, keepdim=True)
