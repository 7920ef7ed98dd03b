"""Actors of a run: made from its options, loaded from a checkpoint, and combined into a player."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from shoal import checkpoint
from shoal.algos.actor import Actor, seeded
from shoal.algos.algorithm import ALGORITHMS
from shoal.algos.roles import Role, assign_roles, find_groups, groups_of, resolve_policies
from shoal.entry import make
from shoal.errors import CheckpointError, ConfigError
from shoal.groups import Groups
from shoal.groups import write as write_groups
from shoal.nn.policy import NetWithOptions
from shoal.player import PolicyPlayer
from shoal.runs import Run
from shoal.seeds import stream_seed
from shoal.train import env_params, params, seats
from shoal.train.named import check_env_is_named, find_policy
from shoal.train.options import Options, options_for


def policy_name(number: int) -> str:
    """The name of a run's policy, from which its random streams are derived."""
    return f"policy {number}"


def make_actor(
    role: Role,
    options: Options,
    number: int,
    policy: Any = None,
    device: Any = "cpu",
    agents: int = 1,
    seed: int | None = None,
) -> Actor:
    """The actor of a role in envs of `agents` agents: a custom policy, that of `--nn.policy`, or a stock one.

    `seed` is that of its weights; default: derived from the run's seed and the policy's number.
    """
    policy = find_policy(options.nn.policy) if policy is None and options.nn.policy else policy
    seed = stream_seed(options.seed, policy_name(number), "weights") if seed is None else seed
    module, head = policy, None
    make_policy, count = ALGORITHMS.find(options.algo).make_policy, role.count(agents)
    net = NetWithOptions(**vars(options.nn), core_options=options.core, encoder_options=options.encoder)
    if policy is not None and not isinstance(policy, nn.Module):
        with seeded(seed):
            module = policy(role.observation_space, role.action_space)
    if make_policy is not None:
        with seeded(seed):
            made, head = make_policy(options.train, role, net, count)
        module = made if module is None else module
    return Actor(
        role.observation_space,
        role.action_space,
        net,
        seed=seed,
        policy=module,
        head=head,
        agents=count,
        normalize_obs=options.train.normalize_obs,
        compile=getattr(options.train, "compile", False),
        precision=options.train.precision,
        device=device,
    )


def make_actors(roles: list[Role], options: Options, policy: Any, device: Any, agents: int) -> list[Actor]:
    """The actors of all roles. Several roles cannot share one module: each would train it alone."""
    if isinstance(policy, nn.Module) and len(roles) > 1:
        raise ConfigError(
            f"policy is one module, but {len(roles)} policies are trained (--nn.policies per_agent or groups, or "
            "agents with different spaces). Give a function: policy=lambda observation_space, action_space: ..."
        )
    actors = [make_actor(role, options, k, policy, device, agents) for k, role in enumerate(roles)]
    if len({id(actor.policy) for actor in actors}) < len(actors):
        raise ConfigError(
            "the policy function returned the same module for several policies. Make a new one each time."
        )
    return actors


def with_policies(options: Options, groups: Groups) -> Options:
    """The options with the policies and groups that are used: a header or an env may declare others later."""
    chosen: dict[str, Any] = {
        "policies": resolve_policies(options.nn.policies, groups),
        "groups": write_groups(groups),
    }
    return dataclasses.replace(options, nn=dataclasses.replace(options.nn, **chosen))


class PolicyMisfit(CheckpointError):
    """Weights of another policy than the one that they are loaded into."""


def load_actor(actor: Actor, weights: Mapping[str, Tensor], number: int) -> None:
    """Loads a checkpoint's weights into an actor, or raises an error that says what does not fit."""
    own = under(weights, f"{number}.")
    for name, value in actor.state_dict().items():
        if name in own and own[name].dtype != value.dtype:
            raise CheckpointError(f"the checkpoint's {name} is {own[name].dtype}, expected {value.dtype}.")
    try:
        actor.load_state_dict(own)
    except RuntimeError as error:
        misfit = _misfit(actor, own) or str(error)
        raise PolicyMisfit(
            f"the checkpoint has another policy: {misfit}. Use the --nn options it was trained with."
        ) from None


def _misfit(actor: Actor, own: Mapping[str, Tensor]) -> str:
    """The first tensor of a checkpoint that does not fit an actor; empty if all do."""
    here = actor.state_dict()
    for name in [*here, *own]:
        if name not in own:
            return f"it has no {name}"
        if name not in here:
            return f"this one has no {name}"
        if own[name].shape != here[name].shape:
            return f"its {name} is {tuple(own[name].shape)}, here it is {tuple(here[name].shape)}"
    return ""


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with a prefix, by their names without it."""
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}


def seat_player(
    actors: list[Actor],
    roles: list[Role],
    frozen: list[tuple[Actor, Role]],
    opponents: Mapping[int, str],
    *,
    agents: int,
    greedy: bool,
    seed: int,
    groups: Groups | None = None,
) -> PolicyPlayer:
    """Trained actors and frozen opponents as one player. Opponents sample their actions, as in training."""
    return PolicyPlayer(
        [*actors, *(actor for actor, _ in frozen)],
        [*roles, *(role for _, role in frozen)],
        agents,
        greedy=[greedy] * len(actors) + [False] * len(frozen),
        seed=stream_seed(seed, "evaluation"),
        judged=[k for k in range(agents) if k not in opponents] if opponents else None,
        groups=groups,
    )


def load_player(
    run: Run,
    at: Path | None = None,
    greedy: bool | None = None,
    env: Mapping[str, Any] | None = None,
    opponents: str = "",
) -> tuple[PolicyPlayer, dict[str, Any]]:
    """A run's policy as a player, and the keyword arguments of `shoal.make` for its env.

    `env` are env params that override those of training. Other spaces than those of training raise ConfigError.
    `opponents` are other players than those of training, for the seats that it names: `1=mine:Agent`.
    """
    from shoal.train.opponents import load_opponents, seat_opponents

    name = check_env_is_named(run)
    path = at or run.best
    if path is None:
        raise ConfigError(f"{run.folder} has no checkpoint. Train the run until it has saved one.")
    if run.facts.get("custom_policy"):
        raise ConfigError(
            f"{run.id} was trained with a custom policy ({run.facts['custom_policy']}), which a run folder does not "
            f"hold. Make the policy in Python and load its weights from {path / 'weights.safetensors'}."
        )
    check_env_options(run, env)
    options = options_for(name, run.config)
    options = dataclasses.replace(options, env=env_params.evaluated(name, options.env))
    options = dataclasses.replace(options, env=params.override(name, options.env, env or {}))
    files, _ = checkpoint.load(path, ("weights",))
    learned = seated = seats.parse(options.opponents)
    if opponents:
        seated, options = seat_opponents(name, _with_players(options, opponents), run.folder.parent.parent)
    with contextlib.closing(make(name, 1, **{**options.env_options, "backend": "serial"})) as vec:
        agents = vec.agents_per_env
        seats.check(seated, agents)
        all_roles = assign_roles(vec, options.nn.policies, options.nn.groups)
        roles = seats.without(all_roles, learned, agents)
        named = find_groups(vec, options.nn.groups) or groups_of(all_roles)
        frozen = load_opponents(seated, vec, options.seed)
    actors = [make_actor(role, options, k, agents=agents) for k, role in enumerate(roles)]
    for k, actor in enumerate(actors):
        load_actor(actor, files["weights"], k)
    if seated.keys() != learned.keys():
        actors, roles = _with_fewer_seats(actors, roles, seated, agents)
    chosen = options.eval.greedy if greedy is None else greedy
    player = seat_player(actors, roles, frozen, seated, agents=agents, greedy=chosen, seed=options.seed, groups=named)
    return player, {"env": name, **options.env_options}


def _with_players(options: Options, opponents: str) -> Options:
    """The options with other players in the seats that a text names: 1=mine:Agent."""
    before, given = seats.parse(options.opponents), seats.parse(opponents)
    # a robot of training leaves its seat
    env = {name: value for name, value in options.env.items() if name not in {f"robot_{seat}" for seat in given}}
    return dataclasses.replace(options, opponents=seats.write({**before, **given}), env=env)


def _with_fewer_seats(
    actors: list[Actor], roles: list[Role], seated: Mapping[int, str], agents: int
) -> tuple[list[Actor], list[Role]]:
    """The actors of a run and their roles without the seats that others play. A network of one agent stays with it."""
    pairs: list[tuple[Actor, Role]] = []
    for actor, role in zip(actors, roles):
        played = list(role.agents or range(agents))
        left = [agent for agent in played if agent not in seated]
        if actor.networks > 1:
            pairs += [(actor.of_agent(played.index(agent)), seats.only(role, [agent])) for agent in left]
        elif left:
            pairs.append((actor, seats.only(role, left)))
    return [actor for actor, _ in pairs], [role for _, role in pairs]


def check_env_options(run: Run, given: Mapping[str, Any] | None = None) -> None:
    """Raises if the run's env had options that its folder could not hold, and they are not given."""
    missing = [name for name in run.facts.get("unsaved_env_options", ()) if name not in (given or {})]
    if missing:
        raise ConfigError(
            f"{run.id} was trained with the env options {', '.join(missing)}, which are objects that a run folder "
            f"cannot hold. Pass them again from Python: env={{{missing[0]!r}: ...}}."
        )
