"""Acts for all members of a league at once, on the device of the envs. shoal/league/members.py defines the results.

    order      rows ordered by member: three kernels for each step, with fixed sizes (`Order`)
    act        `FusedMembers`: if the learner's network has fused kernels, one kernel for network and sampling
               `GroupedMembers`: any other network of linear layers, with one kernel for each layer

A run with another network acts for all rows, and its actions are used where it plays. Nothing waits for the device, and
all sizes are fixed, so a CUDA graph can hold it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from shoal.algos.actor import Actor
from shoal.errors import ConfigError
from shoal.nn import policy as policies
from shoal.nn.cores import State
from shoal.nn.fused import BLOCK
from shoal.nn.launch import fresh, has_triton, launch
from shoal.nn.qnet import QHead

TILE = 64  # rows of a tile: all of one member
SORTED = 256  # rows of a block of the counting sort
ALL_MEMBERS = 64


class Order:
    """The opponents' rows, ordered by member.

    Args:
        rows: rows that opponents play.
        per_env: rows of each env among them.
        members: rows of the bank.
        device: of the envs.
    """

    def __init__(self, rows: int, per_env: int, members: int, device: torch.device) -> None:
        self.count, self.per_env = rows, per_env
        self.env = torch.arange(rows, device=device) // per_env
        self.uses_kernels = device.type == "cuda" and has_triton()
        self.blocks, self.num_tiles = -(-rows // SORTED), -(-rows // TILE) + min(members, rows)
        whole = {"dtype": torch.int32, "device": device}
        self.counts = torch.zeros((self.blocks, ALL_MEMBERS), **whole)
        self.starts = torch.zeros_like(self.counts)
        self.tiles = torch.full((self.num_tiles,), -1, **whole)
        self.limits = torch.zeros(ALL_MEMBERS, **whole)
        self.order = torch.zeros(self.num_tiles * TILE, **whole)
        self.member = torch.zeros(rows, dtype=torch.int64, device=device)  # of each row
        self.needs_members = True  # whether `update` sets `member`

    def update(self, member: Tensor) -> None:
        """Orders the rows by the (envs) members that play now."""
        if self.needs_members:
            torch.index_select(member, 0, self.env, out=self.member)
        if not self.uses_kernels:
            return
        from shoal.algos.fast import member_kernels as kernels

        sizes = {"PER_ENV": self.per_env, "MEMBERS": ALL_MEMBERS, "BM": SORTED, "num_warps": 8}
        launch(kernels.count_rows, (self.blocks,), member, self.counts, self.count, **sizes)
        launch(
            kernels.plan_tiles, (1,), self.counts, self.starts, self.tiles, self.limits, self.blocks, self.num_tiles,
            TILE=TILE, MEMBERS=ALL_MEMBERS, BLOCKS=128, TILES=128, num_warps=8,
        )  # fmt: skip
        launch(kernels.place_rows, (self.blocks,), member, self.starts, self.order, self.count, **sizes)


class DeviceMembers:
    """What both ways of acting share: noise, recurrent state, runs with other networks, and the end of games.

    Args:
        learner: the actor whose current weights are member 0.
        bank: the weights of all members with the learner's network.
        games: who plays where.
        vec: the envs.
        stream: the random stream of the members' actions.
        horizon: steps of a rollout.
        runs: actors of members that have other networks.
        robots: scripted robots among the members; None: there are none.
    """

    def __init__(
        self,
        learner: Actor,
        bank: Any,
        games: Any,
        vec: Any,
        stream: torch.Generator,
        horizon: int,
        *,
        runs: Mapping[int, Actor],
        robots: Any = None,
    ) -> None:
        self.learner, self.bank, self.games, self.vec, self.stream = learner, bank, games, vec, stream
        self.robots, self.runs = robots, dict(runs)
        seating, device = games.seating, games.device
        self.rows = torch.as_tensor(seating.others.rows, device=device)
        self.order = Order(len(self.rows), seating.others_per_env, bank.members, device)
        self.head = copy.deepcopy(learner.head)
        if isinstance(self.head, QHead):
            self.head.epsilon.zero_()
        self.noise = torch.zeros((horizon, len(self.rows), self.head.num_noise), device=device)
        if any(actor.initial_row() is not None for actor in (learner, *self.runs.values())):
            raise ConfigError(
                "a league on a GPU is not supported for a policy with a learned initial state. Use --device cpu."
            )
        self.state = _state_of(learner, len(self.rows))
        self.run_states = {member: _state_of(actor, len(self.rows)) for member, actor in self.runs.items()}
        self.new_states: list[tuple[State, State]] = []  # (state, next state) after `act`
        self.is_over = torch.zeros(seating.num_envs, dtype=torch.bool, device=device)

    def begin(self) -> None:
        """Begins an iteration: takes the learner's weights, draws noise and the opponents of new games."""
        self.bank.put(0, self.learner)
        self.refresh(0)
        self.games.draw()
        if self.robots is not None:
            self.robots.set_next()
        if self.noise.shape[-1]:
            self.head.draw(self.noise, self.stream)

    def refresh(self, member: int) -> None:
        """Called after a member's weights have changed."""

    def act(self, t: int, env_actions: Tensor) -> None:
        """Writes the actions of all opponents' rows at step t."""
        self.order.update(self.games.member)
        self.new_states = []
        self._act(t, env_actions)
        for member, actor in self.runs.items():
            self._act_run(member, actor, t, env_actions)

    def _act(self, t: int, env_actions: Tensor) -> None:
        raise NotImplementedError

    def _act_run(self, member: int, actor: Actor, t: int, env_actions: Tensor) -> None:
        """A run with another network acts for all rows; its actions are used where it plays."""
        state, fits = self.run_states[member], actor.head.num_noise == self.noise.shape[-1]
        with actor.evaluation_mode():
            decision = actor.act(self._obs(), state, mask=self._masks(), noise=self.noise[t] if fits else None)
        self.new_states.append((state, decision.state))
        chosen = actor.head.to_device(decision.actions).view(len(self.rows), *env_actions.shape[1:])
        plays = (self.order.member == member).view(-1, *[1] * (chosen.ndim - 1))
        before = env_actions.index_select(0, self.rows)
        env_actions.index_copy_(0, self.rows, torch.where(plays, chosen.to(before.dtype), before))

    def _obs(self) -> Tensor:
        obs: Tensor = self.vec.tensors["obs"].index_select(0, self.rows)
        return obs

    def _masks(self) -> Tensor | None:
        return self.vec.tensors["masks"].index_select(0, self.rows) if self.vec.mask_size else None

    def finish_step(self) -> None:
        """After a step of the envs: counts games that ended, changes opponents there, and moves recurrent states on."""
        tensors = self.vec.tensors
        torch.eq(tensors["tick"], 0, out=self.is_over)  # an env resets itself in the step in which a game ends
        self.games.finish_step(tensors["rewards"], self.is_over)
        if self.new_states:
            is_over = self.is_over.index_select(0, self.order.env)
            for state, new in self.new_states:
                for part, value in zip(state, new):
                    part.copy_(torch.where(is_over.view(-1, *[1] * (part.ndim - 1)), 0.0, value))

    def forget_all(self) -> None:
        """All envs begin a game: nobody remembers anything."""
        for part in self.row_tensors().values():
            part.zero_()

    def row_tensors(self) -> dict[str, Tensor]:
        """The recurrent state, for a checkpoint."""
        tensors = {f"recurrent.{k}": part for k, part in enumerate(self.state)}
        for member, state in self.run_states.items():
            tensors |= {f"run{member}.recurrent.{k}": part for k, part in enumerate(state)}
        return tensors


class FusedMembers(DeviceMembers):
    """All members in one kernel: for networks that fused.py covers."""

    def __init__(self, fused: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.fused, members, device = fused, self.bank.members, self.games.device
        self.order.needs_members = bool(self.runs)
        size = -(-fused.narrow.numel() // 16) * 16  # rows that are aligned for wide loads
        self.narrow = torch.zeros((members, size), dtype=fused.narrow.dtype, device=device)
        self.mean, self.scale = (torch.zeros((members, fused.shape["D"]), device=device) for _ in range(2))
        self.new_state = tuple(torch.zeros_like(part) for part in self.state)
        for member in range(members):
            self.refresh(member)

    @torch.no_grad()
    def refresh(self, member: int) -> None:
        """Copies a member's weights in the precision of the kernels, and its moments: see `Fused.begin`."""
        shape, count = self.fused.shape, self.fused.size
        units, features, padded = shape["H"], shape["D"], shape["DP"]
        weights, narrow = self.bank.weights[member, :count], self.narrow[member, : self.fused.narrow.numel()]
        narrow[: units * padded].view(units, padded)[:, :features].copy_(
            weights[: units * features].view(units, features)
        )
        narrow[units * padded :].copy_(weights[units * features :])
        if self.fused.moments is not None:
            shape = self.fused.moments.mean.shape
            mean, var = (self.bank.row(member, f"moments.0.{name}", shape).reshape(-1) for name in ("mean", "var"))
            self.mean[member].copy_(mean)
            self.scale[member].copy_((var + 1e-8).rsqrt())

    def _act(self, t: int, env_actions: Tensor) -> None:
        from shoal.algos.fast import member_kernels

        tensors, order = self.vec.tensors, self.order
        state = (self.state[0], self.state[-1], self.new_state[0], self.new_state[-1]) if self.state else (None,) * 4
        launch(
            member_kernels.act, (order.num_tiles,),
            tensors["obs"], self.bank.weights, self.narrow, self.mean, self.scale, self.noise[t],
            tensors["masks"] if self.fused.shape["MASKED"] else None, *state, env_actions,
            order.order, order.tiles, order.limits, self.rows, self.bank.weights.shape[1], self.narrow.shape[1],
            **self.fused.shape, **self.fused.core, BM=TILE, num_warps=4,
        )  # fmt: skip
        if self.state:
            self.new_states.append((self.state, self.new_state))


class GroupedMembers(DeviceMembers):
    """All members by one policy whose weights are those of each row's member (`MemberWeight`)."""

    def __init__(self, precision: str, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.precision = precision
        self.moments = [self._moments_of(key) for key in self.learner.moments]  # a native observation is one leaf
        self.scales = [(mean.float(), var.float()) for mean, var in self.moments]  # in the precision of inputs
        for member in range(self.bank.members):
            self.refresh(member)
        blank = self.learner.blank(len(self.rows))
        try:
            self.policy = share_weights(self.learner.policy, self.bank, self.order, precision)
            with torch.no_grad():
                policies.step(self.policy, blank, self.state)
        except NotCovered as error:
            raise ConfigError(
                "a league on a GPU acts for all members in one pass of linear layers, but this policy uses "
                f"{error}. Use --nn.encoder mlp, or --device cpu."
            ) from None

    def _moments_of(self, key: str) -> tuple[Tensor, Tensor]:
        """The mean and variance of all members' observations."""
        shape = self.learner.moments[key].mean.shape
        return tuple(self.bank.columns(f"moments.{key}.{name}", shape) for name in ("mean", "var"))

    def refresh(self, member: int) -> None:
        """Takes a member's mean and variance of observations: see `RunningMoments.normalize`."""
        for (mean, var), (shift, scale) in zip(self.moments, self.scales):
            shift[member].copy_(mean[member])
            scale[member].copy_((var[member] + 1e-8).rsqrt())

    def _inputs(self) -> Tensor:
        """`Actor.normalize` of the opponents' rows, with the moments of each row's member."""
        if not self.scales:
            return self._obs()
        (shift, scale), obs = self.scales[0], self.vec.tensors["obs"]
        if not self.order.uses_kernels:
            own = self._obs().float() - shift.index_select(0, self.order.member)
            return (own * scale.index_select(0, self.order.member)).clamp_(-10.0, 10.0)
        from shoal.algos.fast import member_kernels

        out = fresh(shift, len(self.rows), *obs.shape[1:])
        launch(
            member_kernels.inputs, (-(-out.numel() // BLOCK),),
            obs, shift, scale, self.order.member, self.rows, out, len(self.rows), out[0].numel(),
            PART=BLOCK, num_warps=4,
        )  # fmt: skip
        return out

    def _act(self, t: int, env_actions: Tensor) -> None:
        logits, _, state = policies.step(self.policy, self._inputs(), self.state)
        masks = self._masks()
        if masks is not None:
            logits = self.head.mask(logits, masks)
        chosen = self.head.to_device(self.head.sample(logits, self.noise[t]))
        shape = (len(self.rows), *env_actions.shape[1:])
        env_actions.index_copy_(0, self.rows, chosen.view(shape).to(env_actions.dtype))
        if state:
            self.new_states.append((self.state, state))


def share_weights(policy: Any, bank: Any, order: Any, precision: str = "fp32") -> Any:
    """A copy of a policy in which every parameter is that of all members. Raises NotCovered if it has buffers."""
    policy = copy.deepcopy(policy).eval()
    for name, _ in policy.named_buffers():
        raise NotCovered(f"the buffer {name}")
    for path, module in policy.named_modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is None:
                continue
            full = ".".join(part for part in ("policy", path, name) if part)
            columns = bank.columns(full, parameter.shape)
            del module._parameters[name]
            setattr(module, name, MemberWeight(columns, order, precision))
    if type(policy) in (policies.Policy, policies.DeepPolicy):  # nobody needs the values of opponents
        policy.critic.weight = NoValues()
    return policy


class NoValues:
    """Weights of a critic that is not computed: its values are zeros."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The values of a linear layer."""
        if function is not nn.functional.linear:
            raise NotCovered(getattr(function, "__name__", str(function)))
        return args[0].new_zeros(len(args[0]), 1)


class Segments:
    """Rows in the order of their members, on a CPU: in place of `Order`, for another number of rows in every step."""

    uses_kernels = False

    def __init__(self) -> None:
        self.count, self.member = 0, torch.zeros(0, dtype=torch.int64)
        self.spans: list[tuple[int, int, int]] = []  # (member, first row, end)

    def set(self, member: Tensor) -> None:
        """Takes the members of the rows, which ascend."""
        self.count, self.member = len(member), member
        present, counts = torch.unique_consecutive(member, return_counts=True)
        ends = counts.cumsum(0).tolist()
        self.spans = list(zip(present.tolist(), [0, *ends[:-1]], ends))


class NotCovered(Exception):
    """An operation on weights that `MemberWeight` does not have."""


class MemberWeight:
    """A parameter of all members that acts like one tensor: each row of the other operand gets its member's weights.

    torch calls `__torch_function__` for any operation on it. It has those by which linear layers, cores and free
    standard deviations use their weights.
    """

    def __init__(self, columns: Tensor, order: Any, precision: str, is_transposed: bool = False) -> None:
        self.columns, self.order, self.precision, self.is_transposed = columns, order, precision, is_transposed
        self.dtype, self.device = columns.dtype, columns.device

    @property
    def shape(self) -> torch.Size:
        """Of one member's weights."""
        own = self.columns.shape[1:]
        return torch.Size(reversed(own)) if self.is_transposed else own

    def t(self) -> MemberWeight:
        """Transposed."""
        return MemberWeight(self.columns, self.order, self.precision, not self.is_transposed)

    def to(self, *_: Any) -> MemberWeight:
        """Itself: products have a precision of their own."""
        return self

    def expand(self, rows: int, *_: int) -> Tensor:
        """(rows, size): a vector of weights for each row."""
        return self.columns.index_select(0, self.order.member)

    def product(self, x: Tensor, bias: Any = None, add: Tensor | None = None) -> Tensor:
        """x W^T + bias + add, with the weights (out, in) and the bias of each row's member."""
        if x.ndim != 2 or len(x) != self.order.count or self.columns.ndim != 3:
            raise NotCovered(f"a product of shape {tuple(x.shape)}")
        biases = None if bias is None else bias.columns
        if isinstance(self.order, Segments):
            return self._by_segments(x, biases, add)
        if not self.order.uses_kernels:
            member = self.order.member
            out = torch.einsum("roi,ri->ro", self.columns[member], x.to(self.dtype))
            out = out if biases is None else out + biases[member]
            return out if add is None else out + add
        from shoal.algos.fast import kernels, member_kernels

        members, outputs, inputs = self.columns.shape
        x, out, order = x.contiguous().float(), fresh(x, len(x), outputs, dtype=torch.float32), self.order
        wide = 64 if outputs > 32 else 32 if outputs > 16 else 16
        launch(
            member_kernels.linear, (order.num_tiles, -(-outputs // wide)),
            x, self.columns, biases, None if add is None else add.contiguous(), out, order.order, order.tiles,
            order.limits, self.columns.stride(0), inputs, outputs,
            BIASED=biases is not None, ADDS=add is not None,
            PRECISION="ieee" if self.precision == "fp32" else "tf32",
            DTYPE=kernels.BFLOAT16 if self.precision == "bf16" else kernels.FLOAT32,
            BM=TILE, BN=wide, BK=32, num_warps=4,
        )  # fmt: skip
        return out

    def _by_segments(self, x: Tensor, biases: Tensor | None, add: Tensor | None) -> Tensor:
        """A product for each member: that of its own network, to the bit."""
        parts = []
        for member, first, end in self.order.spans:
            own, weight = x[first:end], self.columns[member]
            if add is not None:
                parts.append(torch.addmm(add[first:end], own, weight.t()))
            else:
                parts.append(nn.functional.linear(own, weight, None if biases is None else biases[member]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """An operation of torch on such weights."""
        call = _OPERATIONS.get(function)
        if call is None:
            raise NotCovered(getattr(function, "__name__", str(function)))
        return call(*args, **(kwargs or {}))


def _linear(x: Tensor, weight: MemberWeight, bias: Any = None) -> Tensor:
    return weight.product(x, bias)


def _addmm(add: Tensor, x: Tensor, weight: MemberWeight) -> Tensor:
    if not weight.is_transposed:
        raise NotCovered("addmm")
    return weight.product(x, None, add)


def _mm(x: Tensor, weight: MemberWeight) -> Tensor:
    if not weight.is_transposed:
        raise NotCovered("mm")
    return weight.product(x)


def _layer_norm(x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    out = nn.functional.layer_norm(x, shape, None, None, eps)
    out = out if weight is None else out * weight.expand(len(x))
    return out if bias is None else out + bias.expand(len(x))


_OPERATIONS: dict[Any, Callable[..., Tensor]] = {
    nn.functional.linear: _linear,
    torch.addmm: _addmm,
    torch.mm: _mm,
    nn.functional.layer_norm: _layer_norm,
}


def _state_of(actor: Actor, rows: int) -> State:
    return tuple(part.detach().clone() for part in actor.initial_state(rows))


def make_members(play: Any, vec: Any, runs: Mapping[int, Actor], horizon: int) -> DeviceMembers:
    """Acts for the opponents of a league whose envs are on the learner's device."""
    learner = play.learners[0]
    arguments = learner.actor, play.bank, play.games, vec, play.stream, horizon
    if learner.device.type == "cuda" and not has_triton():
        raise ConfigError("a league on a GPU needs Triton, which is not installed. Install it, or use --device cpu.")
    if learner.fused is not None and learner.fused.acts_for_members:
        return FusedMembers(learner.fused, *arguments, runs=runs, robots=play.robots)
    return GroupedMembers(learner.config.precision, *arguments, runs=runs, robots=play.robots)
