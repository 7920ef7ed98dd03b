"""Policy: encoder, optional recurrent core, actor and critic. Also how any policy, stock or custom, is called.

A policy is any `nn.Module` whose call returns `(logits, value)`. One with a recurrent state has an
`initial_state(rows)`, and its call is `policy(obs, state) -> (logits, value, state)`. `obs` is a batch in the structure
of the observation space, `logits` are laid out as `shoal.nn.distributions` describes, and `value` has shape (rows,) or
(rows, 1). A state is a tensor, or nested tuples, lists and dicts of tensors, whose first axis is rows.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

import torch
from gymnasium import spaces
from torch import Tensor, nn

from shoal import groups
from shoal.config import LogUniform, opt
from shoal.errors import ConfigError
from shoal.nn.cores import CORES, State
from shoal.nn.distributions import ActionHead
from shoal.nn.encoders import ENCODERS, SMALL_IMAGE, Encoder
from shoal.nn.layers import MLP, layer_init
from shoal.nn.state import clear_state, initial_row, initial_state, state_structure
from shoal.plugins import make_with_options
from shoal.spec import map_leaves

__all__ = [
    "Compiled",
    "DeepPolicy",
    "Net",
    "NetWithOptions",
    "Policy",
    "check",
    "clear_state",
    "compiled",
    "evaluation_mode",
    "initial_row",
    "initial_state",
    "make_policy",
    "state_structure",
    "step",
    "unroll",
]


@dataclass(frozen=True)
class Net:
    """The network of the policy."""

    hidden: int = opt(128, "width of every layer (by env)", low=1, high=65536, sweep=LogUniform(32, 1024))
    layers: int = opt(2, "fully connected layers after the encoder (by env)", low=0, high=64)
    activation: Literal["relu", "tanh", "gelu", "silu"] = opt("relu", "activation after every layer (by env)")
    encoder: str = opt(
        "auto",
        f"encoder of images; auto: grid below {SMALL_IMAGE} pixels a side, otherwise nature; mlp flattens (by env)",
        choices=lambda: ("auto", "mlp", *ENCODERS.names()),
    )
    core: str = opt("none", "recurrent core, the policy's memory", choices=lambda: ("none", *CORES.names()))
    core_size: int = opt(0, "width of the core; 0: the same as --nn.hidden", low=0, high=65536)
    head_layers: int = opt(
        0, "recurrent policies: fully connected layers between the core and the heads (by env)", low=0, high=64
    )
    separate: bool = opt(False, "separate networks for actor and critic, the recurrent core included (by env)")
    std: Literal["free", "state"] = opt(
        "free", "Box actions: standard deviation as a free parameter, or as an output that depends on the state"
    )
    log_std: float = opt(0.0, "Box actions: initial logarithm of the standard deviation (by env)", low=-10, high=4)
    mean: tuple[float, ...] = opt(
        (),
        "Box actions: initial means, one for all numbers or one for each; 0 (as without any) is the middle of the "
        "bounds, 1 the upper bound",
        metavar="[FLOAT ...]",
        low=-100,
        high=100,
        convert=lambda value: (value,) if isinstance(value, (int, float)) else value,
    )
    squash: Literal["none", "tanh"] = opt("none", "Box actions: none clips them to their bounds, tanh squashes them")
    policy: str = opt("", "your own policy, a class or function of the two spaces: mine:Policy", metavar="NAME")
    policies: Literal["auto", "shared", "per_agent", "groups"] = opt(
        "auto", "several agents: one policy for all, for each, or for each group; auto: for each group if there are any"
    )
    groups: tuple[str, ...] = opt(
        (),
        "groups of agents: predators=0,1,2 prey=3 (default: those of the env)",
        metavar="[NAME=AGENTS ...]",
        convert=groups.as_words,
    )


@dataclass(frozen=True)
class NetWithOptions(Net):
    """A network with the options of its core and encoder, which have flags of their own: `--core.*`, `--encoder.*`."""

    core_options: Any = None
    encoder_options: Any = None


class Policy(nn.Module):
    """The policy that `--nn.*` describes. It returns (logits, value), and with a core (logits, value, state).

    `body` (encoder and layers) and `core` serve both heads. With `--nn.separate` they serve the actor alone, and the
    critic has a `critic_body` and a `critic_core` of the same shapes.

    `normalized`: the actor normalizes the leaves of the observation that are plain numbers (`encoders.is_numeric`), so
    the encoder does not scale them. Submodules are run by their `forward`: for a few rows, calling modules takes longer
    than the arithmetic.
    """

    def __init__(
        self, observation_space: spaces.Space[Any], head: ActionHead, net: Net, *, normalized: bool = False
    ) -> None:
        super().__init__()
        self.body = _Body(observation_space, net, normalized)
        self.critic_body: Any = _Body(observation_space, net, normalized) if net.separate else None
        self.core: Any = _make_core(net, self.body.features)
        self.critic_core: Any = _make_core(net, self.body.features) if net.separate else None
        # a state is the tensors of `core`, then those of `critic_core`
        self._num_core_tensors = 0 if self.core is None else len(self.core.initial_state(1))
        self._make_heads(self.body.features if self.core is None else self.core.features, head, net)

    def _make_heads(self, features: int, head: ActionHead, net: Net) -> None:
        self.actor = layer_init(nn.Linear(features, head.num_outputs), 0.01)
        self.critic = layer_init(nn.Linear(features, 1), 1.0)
        num_stds = head.num_outputs - head.num_noise
        if num_stds:  # log stds that depend on the state are the last outputs
            nn.init.constant_(self.actor.bias[-num_stds:], net.log_std)
        if net.mean:
            _set_means(self.actor.bias, head, net)
        # a free log std is a parameter, not an output of the actor
        self.log_std = nn.Parameter(torch.full((head.num_free,), net.log_std)) if head.num_free else None

    def initial_state(self, rows: int) -> State:
        """The state of `rows` rows at the start of an episode; empty without a core."""
        if self.core is None:
            return ()
        state: State = tuple(self.core.initial_state(rows))
        return state if self.critic_core is None else (*state, *self.critic_core.initial_state(rows))

    def forward(self, obs: Any, state: State = ()) -> tuple[Any, ...]:
        """One step of a batch of rows."""
        for_actor, for_critic = self._features(obs)
        if self.core is None:
            return self._heads(for_actor, for_critic)
        if self.critic_core is None:
            for_actor, state = self.core(for_actor, state)
            return (*self._heads(for_actor, for_actor), state)
        for_actor, actor_state = self.core(for_actor, state[: self._num_core_tensors])
        for_critic, critic_state = self.critic_core(for_critic, state[self._num_core_tensors :])
        return (*self._heads(for_actor, for_critic), (*actor_state, *critic_state))

    def unroll(self, obs: Any, state: State, resets: Tensor) -> tuple[Tensor, Tensor]:
        """Whole segments: obs (steps * rows, ...), resets (steps, rows) -> flat logits and values, in that order."""
        for_actor, for_critic = self._features(obs)
        if self.core is None:
            return self._heads(for_actor, for_critic)
        shape = (*resets.shape, -1)
        if self.critic_core is None:
            for_actor = self.core.unroll(for_actor.view(shape), state, resets).flatten(0, 1)
            return self._heads(for_actor, for_actor)
        actor_state, critic_state = state[: self._num_core_tensors], state[self._num_core_tensors :]
        for_actor = self.core.unroll(for_actor.view(shape), actor_state, resets).flatten(0, 1)
        for_critic = self.critic_core.unroll(for_critic.view(shape), critic_state, resets).flatten(0, 1)
        return self._heads(for_actor, for_critic)

    def _features(self, obs: Any) -> tuple[Tensor, Tensor]:
        """What the layers give to the actor's side and to the critic's."""
        for_actor = self.body.forward(obs)
        return for_actor, for_actor if self.critic_body is None else self.critic_body.forward(obs)

    def _heads(self, for_actor: Tensor, for_critic: Tensor) -> tuple[Tensor, Tensor]:
        actor, critic, linear = self.actor, self.critic, nn.functional.linear
        logits = linear(for_actor, actor.weight, actor.bias)
        if self.log_std is not None:
            logits = torch.cat([logits, self.log_std.expand(logits.shape[0], -1)], 1)
        return logits, linear(for_critic, critic.weight, critic.bias).squeeze(-1)


def _set_means(bias: Tensor, head: ActionHead, net: Net) -> None:
    """Sets the biases of the means of Box actions to `--nn.mean`."""
    columns = [column for part in head.parts if not part.count for column in range(part.logits.start, part.logits.stop)]
    if len(net.mean) not in (1, len(columns)):
        words = " ".join(f"{mean:g}" for mean in net.mean)
        raise ConfigError(
            f"--nn.mean {words}: {len(net.mean)} means, and the actions have {len(columns)} numbers of a Box. Give one "
            f"for all or {len(columns)}."
            if columns
            else f"--nn.mean {words}: the actions have no numbers of a Box. Leave it out."
        )
    with torch.no_grad():
        bias[columns] = torch.tensor(net.mean, dtype=bias.dtype)


def _make_core(net: Net, features: int) -> Any:
    """The recurrent core of `--nn.core`; None without one."""
    if net.core == "none":
        return None
    options = getattr(net, "core_options", None)
    return make_with_options(CORES.find(net.core), features, net.core_size or net.hidden, options=options)


class DeepPolicy(Policy):
    """A recurrent policy with `--nn.head-layers` fully connected layers between the core and the heads.

    From a core alone, actions are nearly linear in what is remembered. It is a class of its own because the GPU's fused
    kernels cover exactly Policy.
    """

    def __init__(
        self, observation_space: spaces.Space[Any], head: ActionHead, net: Net, *, normalized: bool = False
    ) -> None:
        if net.core == "none":
            raise ConfigError(f"--nn.head-layers {net.head_layers} needs a --nn.core. Use --nn.layers without one.")
        super().__init__(observation_space, head, net, normalized=normalized)
        sizes = [self.core.features] + [net.hidden] * net.head_layers
        self.head_body = MLP(sizes, net.activation)
        self.critic_head_body: Any = MLP(sizes, net.activation) if net.separate else None
        self._make_heads(net.hidden, head, net)

    def _heads(self, for_actor: Tensor, for_critic: Tensor) -> tuple[Tensor, Tensor]:
        for_actor = self.head_body.forward(for_actor)
        if self.critic_head_body is None:
            return super()._heads(for_actor, for_actor)
        return super()._heads(for_actor, self.critic_head_body.forward(for_critic))


def make_policy(
    observation_space: spaces.Space[Any], head: ActionHead, net: Net, *, normalized: bool = False
) -> Policy:
    """The policy that `--nn.*` describes."""
    kind = DeepPolicy if net.head_layers else Policy
    return kind(observation_space, head, net, normalized=normalized)


class _Body(nn.Module):
    """Encoder and fully connected layers."""

    is_bf16 = False  # on a CPU: see `use_bf16`

    def __init__(self, space: spaces.Space[Any], net: Net, normalized: bool) -> None:
        super().__init__()
        options = getattr(net, "encoder_options", None)
        self.encoder = Encoder(space, net.encoder, normalized=normalized, options=options)
        sizes = [self.encoder.features] + [net.hidden] * net.layers
        self.layers = MLP(sizes, net.activation)
        self.features = sizes[-1]

    def forward(self, obs: Any) -> Tensor:
        if not self.is_bf16:
            return self.layers.forward(self.encoder.forward(obs))
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            return self.layers.forward(self.encoder.forward(obs)).float()


def use_bf16(policy: Any) -> bool:
    """On a CPU: lets a policy of large images run convolutions and layers in bfloat16; cores and heads stay float32.

    NatureCNN on 84x84 pixels learns 2.3 times as fast, on CPUs that have instructions for it. Returns whether it does.
    """
    if not isinstance(policy, Policy) or not has_bf16():
        return False
    for body in (policy.body, policy.critic_body):
        if body is not None:
            body.is_bf16 = body.encoder.has_large_image
    return policy.body.is_bf16


def has_bf16() -> bool:
    """Whether this CPU has instructions for bfloat16 products, and torch may use them. Others take 27 times as long."""
    supported = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return supported is not None and supported() and "AVX512" in torch.backends.cpu.get_cpu_capability()


@contextlib.contextmanager
def in_float32(policy: Policy) -> Iterator[None]:
    """A context in which a policy computes in float32: an evaluation is then the same on every CPU."""
    bodies = [body for body in (policy.body, policy.critic_body) if body is not None and body.is_bf16]
    try:
        for body in bodies:
            body.is_bf16 = False
        yield
    finally:
        for body in bodies:
            body.is_bf16 = True


# ---- any policy, stock or custom ----


def step(policy: Any, obs: Any, state: State) -> tuple[Tensor, Tensor, State]:
    """(logits, values, next state) of one step."""
    if not state:
        out = policy(obs)
        return out[0], out[1].reshape(len(out[0])), ()
    structure = state_structure(policy)
    logits, values, new_state = policy(obs, structure.nest(state))
    return logits, values.reshape(len(logits)), structure.flatten(new_state)


def unroll(policy: Any, obs: Any, state: State, resets: Tensor) -> tuple[Tensor, Tensor]:
    """Flat (logits, values) of whole segments: obs (steps * rows, ...), resets (steps, rows).

    Where resets[t] is true, the state before step t is the initial state; resets[0] is ignored, because a segment's
    state is stored after its reset. A policy without an `unroll` is run step by step.
    """
    if hasattr(policy, "unroll"):
        nested = state_structure(policy).nest(state) if state else state
        logits, values = policy.unroll(obs, nested, resets)
        return logits, values.reshape(len(logits))
    if not state:
        logits, values, _ = step(policy, obs, ())
        return logits, values
    return _unroll_by_steps(policy, obs, state_structure(policy).nest(state), resets)


def _unroll_by_steps(policy: Any, obs: Any, nested: Any, resets: Tensor) -> tuple[Tensor, Tensor]:
    """Runs a recurrent policy without an `unroll` step by step."""
    steps, rows = resets.shape
    state, initial = state_structure(policy).flatten(nested), initial_state(policy, rows)
    outputs = []
    for t in range(steps):
        if t:
            state = clear_state(state, ~resets[t], initial)
        rows_of_step = map_leaves(itemgetter(slice(t * rows, (t + 1) * rows)), obs)
        logits, values, state = step(policy, rows_of_step, state)
        outputs.append((logits, values))
    return torch.cat([out[0] for out in outputs]), torch.cat([out[1] for out in outputs])


class Compiled:
    """A policy whose steps and segments are both run by torch.compile. `step` and `unroll` take it as a policy.

    torch.compile(policy) compiles the call only: its `unroll` is that of the original module.
    """

    def __init__(self, policy: Any, **options: Any) -> None:
        self.policy, self.options = policy, options
        self._call = torch.compile(policy, **options)
        self._state_structure = state_structure(policy)
        if hasattr(policy, "initial_state"):
            self.initial_state = policy.initial_state
        if hasattr(policy, "unroll"):
            self.unroll = torch.compile(policy.unroll, **options)
        elif initial_state(policy, 1):
            self.unroll = torch.compile(functools.partial(_unroll_by_steps, policy), **options)

    def __call__(self, obs: Any, *state: Any) -> Any:
        """One step of the policy."""
        return self._call(obs, *state)

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        return Compiled(copy.deepcopy(self.policy, memo), **self.options)


def compiled(policy: Any, **options: Any) -> Compiled:
    """The policy with its call and its `unroll` compiled. `options` are those of torch.compile."""
    return Compiled(policy, **options)


@contextlib.contextmanager
def evaluation_mode(*modules: nn.Module) -> Iterator[None]:
    """A context in which dropout is off and BatchNorm's statistics are fixed. Restores the mode of every submodule."""
    modes = [(part, part.training) for module in modules for part in module.modules()]
    try:
        for module in modules:
            module.eval()
        yield
    finally:
        for part, was_training in modes:
            part.training = was_training


def check(policy: Any, obs: Any, rows: int, head: ActionHead) -> None:
    """Runs a policy on a batch before training, and raises if its outputs do not fit."""
    state = initial_state(policy, rows)
    structure = state_structure(policy)
    with torch.no_grad(), evaluation_mode(policy):
        out = policy(obs, structure.nest(state)) if state else policy(obs)
    if not isinstance(out, (tuple, list)) or len(out) not in (2, 3):
        raise ConfigError(
            f"the policy returned {_brief(out)}; it must return (logits, value), or (logits, value, state)."
        )
    logits, value = out[0], out[1]
    if tuple(logits.shape) != (rows, head.num_params):
        raise ConfigError(
            f"the policy's logits have shape {tuple(logits.shape)}, expected ({rows}, {head.num_params}): {head}."
        )
    if value.numel() != rows:
        raise ConfigError(f"the policy's value has shape {tuple(value.shape)}, expected ({rows},).")
    if len(out) == 3 and not hasattr(policy, "initial_state"):
        raise ConfigError("the policy returns a state but has no initial_state(rows). Define it.")
    if len(out) == 2 and state:
        raise ConfigError("the policy has an initial_state(rows) but returned no state. Return (logits, value, state).")
    new_state = structure.flatten(out[2]) if len(out) == 3 else ()
    before, after = ([tuple(part.shape) for part in parts] for parts in (state, new_state))
    if before != after:
        raise ConfigError(
            f"the policy's initial_state({rows}) has shapes {before}; its call returned a state of {after}."
        )
    if any(shape[:1] != (rows,) for shape in before):
        raise ConfigError(
            f"the policy's initial_state({rows}) has shapes {before}: the first axis of each must be the {rows} rows."
        )


def name_of(policy: Any) -> str:
    """The name of a policy's class, for errors. An adapter has the policy inside of it as `adapted`."""
    return type(getattr(policy, "adapted", policy)).__name__


def _brief(out: Any) -> str:
    return f"{len(out)} values" if isinstance(out, (tuple, list)) else f"a {type(out).__name__}"
