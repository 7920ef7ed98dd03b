"""policy.json in a run's folder: the agents, roles and spaces of its policies, so that they load without the env.

Weights are in the checkpoints, and the network's options in config.toml. shoal/acting.py makes policies of all three.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from shoal import names, space_json
from shoal.algos.roles import Role, assign_roles
from shoal.entry import make
from shoal.errors import ConfigError
from shoal.runs import Run
from shoal.train import env_params, seats
from shoal.train.options import Options

FILE = "policy.json"
FORMAT = 1


@dataclass(frozen=True)
class PolicyFile:
    """What a run's policies observe, do and play."""

    agents: tuple[str, ...]  # the agents of one env, in the order of its rows
    roles: tuple[Role, ...]  # one for each policy
    mask_sizes: tuple[int | None, ...]  # entries of an action mask, for each policy; 0: no masks; None: unknown
    names: tuple[str, ...]  # of the policies: a group, or an agent; empty where it has none
    policy: str = ""  # of a custom policy: `module:name`, if it can be imported


def write(run: Run, trainer: Any, policy: Any) -> None:
    """Writes policy.json. `policy` is the custom policy that was given to `train`, or None."""
    learning = list(zip(trainer.roles, trainer.learners))
    try:
        # of a league's learners only the first one plays after training
        roles = [_role_to_json(*one) for one in (learning if trainer.league is None else learning[:1])]
    except ConfigError:  # a space that JSON cannot hold: such a run is loaded by making its env
        (run.folder / FILE).unlink(missing_ok=True)
        return
    facts = {"format": FORMAT, "agents": list(map(str, trainer.vec.agent_spaces.agents)), "roles": roles}
    run.write(FILE, {**facts, "policy": "" if policy is None else names.place_of(policy).name})


def read(run: Run) -> PolicyFile | None:
    """The contents of a run's policy.json; None if it has none: a run of an older version."""
    path = run.folder / FILE
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text())
        if data["format"] != FORMAT:
            raise ConfigError(f"{path} has format {data['format']}, and this version of Shoal reads {FORMAT}.")
        roles = data["roles"]
        return PolicyFile(
            agents=tuple(data["agents"]),
            roles=tuple(map(_role_from_json, roles)),
            mask_sizes=tuple(role["mask_size"] for role in roles),
            names=tuple(role["name"] for role in roles),
            policy=data.get("policy", ""),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"{path} cannot be read: {type(error).__name__}: {error}. Restore it, or delete it: the env is then made "
            "to find the spaces."
        ) from None


def from_env(run: Run, options: Options) -> PolicyFile:
    """The same from the env itself, which must be installed: for runs of older versions."""
    name = run.facts.get("env", run.env)
    if not run.facts.get("env_is_a_name", True):
        raise ConfigError(
            f"{run.folder} has no {FILE}, and its env {name} is a function, which a folder does not hold. Resume the "
            f"run for one more iteration with that function: train({name}, resume={str(run.folder)!r}) writes the file."
        )
    options = dataclasses.replace(options, env=env_params.evaluated(name, options.env))
    with contextlib.closing(make(name, 1, **{**options.env_options, "backend": "serial"})) as vec:
        opponents = seats.parse(options.opponents)
        all_roles = assign_roles(vec, options.nn.policies, options.nn.groups)
        roles = seats.without(all_roles, opponents, vec.agents_per_env)
        mask_size = vec.mask_size or (0 if vec.native_spec is not None else None)
        agents = tuple(map(str, vec.agent_spaces.agents))
    return PolicyFile(agents, tuple(roles), (mask_size,) * len(roles), tuple(map(role_name, roles)))


def _role_to_json(role: Role, learner: Any) -> dict[str, Any]:
    masks = learner.rollout.masks
    return {
        "agents": None if role.agents is None else list(role.agents),
        "names": list(map(str, role.names)),
        "name": role_name(role),
        "mask_size": 0 if masks is None else int(masks.shape[-1]),
        "observation_space": space_json.to_json(role.observation_space),
        "action_space": space_json.to_json(role.action_space),
    }


def _role_from_json(data: Any) -> Role:
    agents = None if data["agents"] is None else tuple(data["agents"])
    observation_space, action_space = (
        space_json.from_json(data[f"{kind}_space"]) for kind in ("observation", "action")
    )
    return Role(agents, tuple(data["names"]), observation_space, action_space, name=data["name"])


def role_name(role: Role) -> str:
    """The name of the group or agent that a policy plays; empty if its role has none."""
    return role.name
