"""Defaults by what an env looks like: one table (TABLE), and the rule that picks its rows.

An env looks like this: native or Python, vectors, grids or images to observe, discrete or continuous actions. With the
algorithm, the device and whether the policy is recurrent, that picks the rows of TABLE. Neither the env's name nor the
number of cores does. A later row overrides an earlier one. The env's TOML file overrides all rows, and the user's
options override that file.

docs/defaults.md has the evidence for each value, and benchmarks/defaults.py the results.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gymnasium import spaces

from shoal.algos.roles import Role, assign_roles
from shoal.entry import make
from shoal.nn.encoders import image_side, leaf_spaces
from shoal.registry import is_native

NATIVE_ENVS, PYTHON_ENVS = 1024, 8
GRID_SIDE = 16  # cells: what has a longer shorter side is an image


@dataclass(frozen=True)
class Look:
    """What the defaults depend on."""

    kind: Literal["native", "python"]
    observations: Literal["vector", "grid", "image"]
    actions: Literal["discrete", "continuous"]
    algo: str = "ppo"
    device: Literal["cpu", "cuda"] = "cpu"
    core: bool = False  # whether the policy is recurrent


@dataclass(frozen=True)
class Row:
    """Defaults of the envs that look like `where`: a value of Look for some of its fields."""

    where: Mapping[str, Any]
    train: Mapping[str, Any]
    vec: Mapping[str, Any]
    nn: Mapping[str, Any]

    def fits(self, look: Look) -> bool:
        """Whether the row is for envs of this look."""
        return all(getattr(look, name) == value for name, value in self.where.items())


def row(*, train: Any = (), vec: Any = (), nn: Any = (), **where: Any) -> Row:
    """A row of TABLE."""
    return Row(where, dict(train), dict(vec), dict(nn))


# built in for all: gamma 0.99, gae_lambda 0.95, clip 0.2, a linear schedule, max_grad_norm 0.5
PPO_PYTHON = {
    "total_steps": 1_000_000,
    "horizon": 256,
    "epochs": 10,
    "minibatches": 32,
    "learning_rate": 3e-4,
    "entropy_coef": 0.0,
    "normalize_obs": True,
    "normalize_reward": True,
}
PPO_IMAGE = {
    "total_steps": 10_000_000,
    "horizon": 128,
    "epochs": 4,
    "minibatches": 4,
    "learning_rate": 2.5e-4,
    "clip": 0.1,
}
PPO_NATIVE = {
    "total_steps": 10_000_000,
    "horizon": 32,
    "epochs": 4,
    "minibatches": 16,
    "learning_rate": 1e-3,
    "entropy_coef": 0.0,
    "normalize_obs": True,
    "normalize_reward": True,
}
DQN_ANY = {
    "replay_ratio": 0.25,
    "n_step": 3,
    "target_tau": 0.005,
    "epsilon_fraction": 0.2,
    "normalize_obs": True,
}

TABLE: tuple[Row, ...] = (
    # PPO, Python envs
    row(
        algo="ppo",
        kind="python",
        train=PPO_PYTHON,
        vec={"num_envs": PYTHON_ENVS},
        nn={"hidden": 64, "activation": "tanh", "separate": True},
    ),
    row(algo="ppo", kind="python", actions="continuous", nn={"log_std": -0.7}),
    row(
        algo="ppo",
        kind="python",
        core=True,
        train={"segment": 64, "minibatches": 8, "learning_rate": 5e-4},
        nn={"head_layers": 1},
    ),
    row(
        algo="ppo",
        kind="python",
        observations="grid",
        nn={"encoder": "mlp"},  # of few cells: as good as convolutions, and much faster
    ),
    row(
        algo="ppo",
        kind="python",
        observations="image",
        train=PPO_IMAGE,
        nn={"hidden": 512, "layers": 1, "head_layers": 0, "activation": "relu", "separate": False},
    ),
    # PPO, native envs: a step costs next to nothing
    row(algo="ppo", kind="native", train=PPO_NATIVE, vec={"num_envs": NATIVE_ENVS}),
    row(algo="ppo", kind="native", device="cuda", train={"total_steps": 40_000_000}, vec={"num_envs": 4096}),
    # PPO, any env
    row(algo="ppo", actions="discrete", train={"entropy_coef": 0.01}),
    # DQN
    row(algo="dqn", train=DQN_ANY),
    row(algo="dqn", kind="python", vec={"num_envs": PYTHON_ENVS}),
    row(algo="dqn", kind="native", vec={"num_envs": 64}),
    row(
        algo="dqn",
        kind="native",
        device="cuda",
        train={"total_steps": 20_000_000, "replay_ratio": 1 / 2048, "batch_size": 4096, "target_tau": 0.01}
        | {"replay_size": 10_000_000, "replay_start": 50_000, "epsilon_fraction": 0.3},
        vec={"num_envs": 4096},
    ),
    row(
        algo="dqn",
        observations="image",
        train={"batch_size": 32, "learning_rate": 1e-4},
        nn={"hidden": 512, "layers": 1},
    ),
    # PQN
    row(algo="pqn", train={"epochs": 4, "minibatch_size": 128, "epsilon_fraction": 0.2, "normalize_obs": True}),
    row(algo="pqn", kind="python", train={"total_steps": 1_000_000}, vec={"num_envs": PYTHON_ENVS}),
    row(algo="pqn", kind="native", vec={"num_envs": NATIVE_ENVS}),
    row(
        algo="pqn",
        kind="native",
        device="cuda",
        train={"total_steps": 20_000_000, "epochs": 2, "minibatch_size": 8192, "learning_rate": 2e-3, "q_lambda": 0.95},
        vec={"num_envs": 4096},
    ),
    row(algo="pqn", observations="image", nn={"hidden": 512, "layers": 1}),
)


def by_look(look: Look | None) -> dict[str, dict[str, Any]]:
    """The defaults for a look, as the tables of a TOML file; empty where nothing is known of the env."""
    tables: dict[str, dict[str, Any]] = {"train": {}, "vec": {}, "nn": {}}
    for fitting in TABLE:
        if look is not None and fitting.fits(look):
            for name, table in tables.items():
                table.update(getattr(fitting, name))
    return tables


# ---- what an env looks like ----


def look_at(env: Any, env_options: Mapping[str, Any], **chosen: Any) -> Look | None:
    """What an env looks like. `chosen` are the fields of Look that do not depend on the env.

    One env is made and closed. None: it cannot be made. That is reported where the run's envs are made.
    """
    roles = _roles_of(env, env_options)
    if roles is None and is_native(env):  # a param may be an array with a value for each of the run's envs
        roles = _roles_of(env, {})
    if roles is None:
        return None
    leaves = [leaf for role in roles for leaf in leaf_spaces(role.observation_space)]
    actions = [leaf for role in roles for leaf in leaf_spaces(role.action_space)]
    return Look(
        kind="native" if is_native(env) else "python",
        observations=look_of_observations(leaves),
        actions="continuous" if any(isinstance(leaf, spaces.Box) for leaf in actions) else "discrete",
        **chosen,
    )


def _roles_of(env: Any, env_options: Mapping[str, Any]) -> list[Role] | None:
    """The roles of one env; None if it cannot be made."""
    try:
        with contextlib.closing(make(env, 1, backend="serial", **env_options)) as vec:
            return assign_roles(vec, "shared")
    except Exception:
        return None


def look_of_observations(leaves: list[spaces.Space[Any]]) -> Literal["vector", "grid", "image"]:
    """What the leaves of an observation space are: images if one is, otherwise grids if one is."""
    sides = [image_side(leaf) for leaf in leaves]
    if max(sides, default=0) > GRID_SIDE:
        return "image"
    return "grid" if max(sides, default=0) else "vector"
