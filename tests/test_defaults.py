"""Defaults by what an env looks like: the table, the rule that picks its rows, and what overrides them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import multiprocessing
import shutil
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from shoal import registry
from shoal.algos.algorithm import ALGORITHMS
from shoal.cli.train import parse
from shoal.errors import ConfigError, EnvCrashed
from shoal.train import Options, Trainer, defaults, make_vec, merge, options_for, train, tuned
from shoal.train import envs as train_envs
from shoal.train.defaults import GRID_SIDE, NATIVE_ENVS, PYTHON_ENVS, Look, by_look, look_at

from .checks import STOCK
from .training import make_trainer

LOOKS = [
    Look(*fields)
    for fields in itertools.product(
        ("native", "python"),
        ("vector", "grid", "image"),
        ("discrete", "continuous"),
        ("ppo", "dqn", "pqn"),
        ("cpu", "cuda"),
        (False, True),
    )
]
VECTOR, GRID = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(0, 255, (7, 7, 3), np.uint8)
IMAGE = spaces.Box(0, 255, (84, 84, 4), np.uint8)


class Shaped(gymnasium.Env[Any, Any]):
    """An env of the spaces that it is given. Counts how many were made."""

    made = 0

    def __init__(self, observation_space: Any = VECTOR, action_space: Any = None) -> None:
        Shaped.made += 1
        self.observation_space = observation_space
        self.action_space = spaces.Discrete(2) if action_space is None else action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


# ---- the table ----


@pytest.mark.parametrize("look", LOOKS, ids=str)
def test_every_look_has_defaults_that_exist_and_are_in_range(look):
    options = merge(Options(), {"algo": look.algo, **by_look(look)}, "defaults")
    assert options.vec.num_envs > 0
    rows = options.vec.num_envs
    resolved = options.train.resolve(rows)
    if look.algo == "ppo":  # the sizes fit each other
        segment = resolved.segment or (resolved.horizon if look.core else 1)
        assert resolved.horizon % segment == 0
        assert resolved.horizon * rows // segment >= resolved.minibatches
    assert resolved.minibatch(rows) >= 32


def test_the_number_of_envs_depends_on_neither_observations_nor_actions():
    """So that a run can be read from its kind, algorithm and device alone."""
    for look in LOOKS:
        plain = dataclasses.replace(look, observations="vector", actions="discrete", core=False)
        assert by_look(look)["vec"] == by_look(plain)["vec"]


def test_help_marks_the_options_whose_default_depends_on_the_env():
    for algo in ALGORITHMS.stock():
        tables = [by_look(look) for look in LOOKS if look.algo == algo]
        options = merge(Options(), {"algo": algo}, "test")
        for name in ("train", "vec", "nn"):
            in_table = {key for table in tables for key in table[name]}
            fields = {f.name: f.metadata.get("help", "") for f in dataclasses.fields(getattr(options, name))}
            unmarked = [key for key in in_table if "(by env)" not in fields[key]]
            assert unmarked == []
    for kind in (Options().nn, Options().vec, *(ALGORITHMS.find(algo).options() for algo in ALGORITHMS.stock())):
        marked = {f.name for f in dataclasses.fields(kind) if "(by env)" in f.metadata.get("help", "")}
        in_any = {key for row in defaults.TABLE for table in (row.train, row.vec, row.nn) for key in table}
        assert marked <= in_any


@pytest.mark.parametrize("algo", ["ppo", "dqn", "pqn"])
@pytest.mark.parametrize("env", STOCK)
def test_tuned_values_do_not_depend_on_the_table(env, algo):
    """A file sets every option that the table sets, so that another table changes no tuned env."""
    own = tuned(env) if algo == "ppo" else tuned(env).get(algo, {})
    if "train" not in own:
        pytest.skip("not tuned for this algorithm")
    look = Look("native", "vector", "discrete", algo)
    optional = {"replay_ratio"} if "gradient_steps" in own["train"] else set()
    for name, table in by_look(look).items():
        assert set(table) - optional <= set(own.get(name, {}))


# ---- what an env looks like ----


@pytest.mark.parametrize(
    ("observation_space", "action_space", "observations", "actions"),
    [
        (VECTOR, spaces.Discrete(3), "vector", "discrete"),
        (VECTOR, spaces.MultiDiscrete([3, 2]), "vector", "discrete"),
        (VECTOR, spaces.Box(-1, 1, (2,), np.float32), "vector", "continuous"),
        (spaces.Discrete(500), spaces.Discrete(6), "vector", "discrete"),
        (spaces.Box(-1, 1, (20, 6), np.float32), spaces.Discrete(2), "vector", "discrete"),
        (GRID, spaces.Discrete(7), "grid", "discrete"),
        (spaces.Box(0, 1, (10, 10), np.uint8), spaces.Discrete(2), "grid", "discrete"),
        (spaces.Box(0, 1, (4, GRID_SIDE, 90), np.float32), spaces.Discrete(2), "grid", "discrete"),
        (spaces.Box(0, 1, (4, GRID_SIDE + 1, 90), np.float32), spaces.Discrete(2), "image", "discrete"),
        (IMAGE, spaces.Box(-1, 1, (2,), np.float32), "image", "continuous"),
        (spaces.Dict(a=VECTOR, b=spaces.Discrete(3)), spaces.Discrete(2), "vector", "discrete"),
        (spaces.Dict(image=GRID, direction=spaces.Discrete(4)), spaces.Discrete(2), "grid", "discrete"),
        (spaces.Dict(map=GRID, camera=IMAGE), spaces.Discrete(2), "image", "discrete"),
        (VECTOR, spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(0, 1, (1,), np.float32)), "vector", "continuous"),
    ],
    ids=str,
)
def test_what_a_python_env_looks_like(observation_space, action_space, observations, actions):
    look = look_at(Shaped, {"observation_space": observation_space, "action_space": action_space})
    assert look == Look("python", observations, actions)


@pytest.mark.parametrize(
    ("env", "observations", "actions"),
    [("cartpole", "vector", "discrete"), ("pendulum", "vector", "continuous"), ("maze", "grid", "discrete")],
)
def test_what_a_native_env_looks_like(env, observations, actions):
    assert look_at(env, {}) == Look("native", observations, actions)


def test_params_with_a_value_for_each_env_do_not_change_what_a_native_env_looks_like():
    assert look_at("cartpole", {"gravity": np.linspace(9.0, 11.0, 64)}) == look_at("cartpole", {})


def test_keyword_arguments_of_the_env_can_change_what_it_looks_like():
    one, other = (options_for(Shaped, {"env": {"observation_space": space}}) for space in (VECTOR, IMAGE))
    assert (one.train.clip, other.train.clip) == (0.2, 0.1)


def test_an_env_that_cannot_be_made_is_reported_where_the_run_starts():
    class Broken(Shaped):
        def __init__(self) -> None:
            raise ValueError("no such level")

    options = options_for(Broken, {"vec": {"backend": "serial"}, "device": "cpu"})
    with pytest.raises((EnvCrashed, ValueError), match="no such level"):
        Trainer(Broken, options)


# ---- precedence ----


def test_layers_override_the_look_and_the_look_overrides_what_is_built_in(tmp_path):
    built_in = Options()
    by_env = options_for("gymnasium:Pendulum-v1", {"device": "cpu"})
    assert by_env.train.horizon == 256 != built_in.train.horizon
    assert by_env.train.gamma == built_in.train.gamma
    given = options_for("gymnasium:Pendulum-v1", {"train": {"horizon": 8}}, {"nn": {"hidden": 16}})
    assert (given.train.horizon, given.nn.hidden) == (8, 16)
    assert given.train.epochs == by_env.train.epochs
    header = tmp_path / "mine.h"
    shutil.copy(registry.STOCK / "cartpole.h", header)
    assert options_for(str(header), {"device": "cpu"}).train.minibatches == 16
    header.with_suffix(".toml").write_text("[train]\nminibatches = 7\n[nn]\nhidden = 24\n")
    file = options_for(str(header), {"device": "cpu"})
    assert (file.train.minibatches, file.nn.hidden, file.train.normalize_reward) == (7, 24, True)
    assert options_for(str(header), {"train": {"minibatches": 9}}).train.minibatches == 9


def test_the_command_line_shows_and_uses_the_defaults_of_the_env():
    plain = parse(["gymnasium:Pendulum-v1", "--device", "cpu"]).options
    assert plain == options_for("gymnasium:Pendulum-v1", {"device": "cpu"})
    assert (plain.train.horizon, plain.train.entropy_coef, plain.nn.separate) == (256, 0.0, True)
    recurrent = parse(["gymnasium:Pendulum-v1", "--nn.core", "lstm", "--train.horizon", "64"]).options
    assert (recurrent.nn.core, recurrent.train.segment, recurrent.train.horizon) == ("lstm", 64, 64)
    assert parse(["gymnasium:CartPole-v1"]).options.train.entropy_coef == 0.01


@pytest.mark.parametrize(
    ("train_options", "envs", "segment"),
    [
        ({}, 8, 64),
        ({"horizon": 24}, 8, 24),  # shorter than the default segment
        ({"horizon": 100}, 8, 50),  # 64 does not divide it
        ({"batch_size": 384}, 8, 48),
        ({}, 1, 32),  # one env: 64 would leave half of the minibatches empty
        ({"horizon": 100, "segment": 64}, 8, 64),  # the user's own: an error later, never a silent change
    ],
)
def test_the_default_segment_fits_the_rollout(train_options, envs, segment):
    layers = {"nn": {"core": "lstm"}, "train": train_options, "vec": {"num_envs": envs}, "device": "cpu"}
    assert options_for("gymnasium:Pendulum-v1", layers).train.segment == segment


def test_a_saved_run_makes_no_env_to_find_its_defaults(tmp_path):
    tables = {"train": {"total_steps": 64, "horizon": 8, "minibatches": 2}, "vec": {"backend": "serial"}}
    run = train(Shaped, runs_folder=tmp_path, console="off", device="cpu", eval={"episodes": 0}, **tables)
    assert run.config["vec"]["num_envs"] == PYTHON_ENVS
    assert run.config["train"]["epochs"] == 10
    before = Shaped.made
    assert options_for(Shaped, run.config).train.epochs == 10
    assert Shaped.made == before


def test_no_env_has_the_defaults_that_are_built_in():
    assert options_for("") == Options()


# ---- never by the number of cores ----


@pytest.mark.parametrize("cores", [1, 2, 3, 64])
def test_the_number_of_python_envs_does_not_depend_on_the_cores(monkeypatch, cores):
    """The same command must learn in the same way on every machine."""
    monkeypatch.setattr(train_envs, "available_cores", lambda: min(cores, 4))
    options = options_for("gymnasium:CartPole-v1", {"device": "cpu"})
    assert options.vec.num_envs == PYTHON_ENVS
    built_in = dataclasses.replace(options, vec=dataclasses.replace(options.vec, num_envs=0))
    for chosen in (options, built_in):
        with contextlib.closing(make_vec("gymnasium:CartPole-v1", chosen)) as vec:
            assert vec.num_envs == PYTHON_ENVS
            assert vec.backend == "serial"  # steps of a few microseconds


class Slow(gymnasium.Env):
    """A step takes a millisecond."""

    observation_space, action_space = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        time.sleep(0.001)
        return self.np_random.random(3, np.float32), float(action), bool(self.np_random.random() < 0.1), False, {}


class Unmakable(Slow):
    """It works in a worker only."""

    def __init__(self):
        if multiprocessing.parent_process() is None:
            raise RuntimeError("not here")


@pytest.mark.parametrize(("game", "count", "cores", "backend"), [
    (Slow, 4, 2, "process"),
    (Slow, 4, 1, "serial"),
    (Slow, 1, 2, "serial"),
    (Unmakable, 2, 2, "process"),
])  # fmt: skip
def test_python_envs_run_in_processes_if_their_steps_are_slow(monkeypatch, game, count, cores, backend):
    monkeypatch.setattr(train_envs, "available_cores", lambda: cores)
    options = options_for(game, {"device": "cpu", "vec": {"num_envs": count}})
    with contextlib.closing(make_vec(game, options)) as vec:
        assert vec.backend == backend


def test_the_backend_does_not_change_what_is_learned():
    """So it may be chosen by a measurement."""
    sums = set()
    for vec in ({"backend": "serial"}, {"backend": "process", "num_workers": 2}):
        tables = {"vec": {"num_envs": 4, **vec}, "train": {"horizon": 16, "minibatches": 2, "epochs": 2}}
        trainer = make_trainer("gymnasium:Pendulum-v1", **tables)
        for _ in range(2):
            trainer.iterate()
        sums.add(tuple(trainer.learners[0].weights.tolist()))
        trainer.close()
    assert len(sums) == 1


def test_one_core_still_has_worker_processes_if_asked(monkeypatch):
    monkeypatch.setattr(train_envs, "available_cores", lambda: 1)
    for vec_options in ({"backend": "process"}, {"num_workers": 2}):
        options = options_for("gymnasium:CartPole-v1", {"device": "cpu", "vec": {"num_envs": 4, **vec_options}})
        with contextlib.closing(make_vec("gymnasium:CartPole-v1", options)) as vec:
            assert vec.backend == "process"


# ---- native envs without a file of their own ----


def test_an_untuned_header_normalizes_rewards_and_observations(tmp_path):
    """Rewards of size 100 ended at -287 without it, at 250 with it."""
    header = tmp_path / "mine.h"
    shutil.copy(registry.STOCK / "pendulum.h", header)
    options = options_for(str(header), {"device": "cpu"})
    assert (options.train.normalize_obs, options.train.normalize_reward) == (True, True)
    assert (options.vec.num_envs, options.train.horizon, options.train.entropy_coef) == (NATIVE_ENVS, 32, 0.0)


# ---- update ratios of DQN and PQN ----


@pytest.mark.parametrize("rows", [1, 3, 8, 64, 1000])
@pytest.mark.parametrize("ratio", [0.25, 1.0, 0.01, 1 / 2048])
def test_the_replay_ratio_does_not_depend_on_the_number_of_rows(rows, ratio):
    resolved = options_for("", {"algo": "dqn", "train": {"replay_ratio": ratio}}).train.resolve(rows)
    steps = resolved.train_frequency * rows
    assert abs(resolved.gradient_steps - ratio * steps) <= max(0.5, ratio * rows)
    assert resolved.train_frequency >= 4


def test_gradient_steps_override_the_replay_ratio():
    resolved = options_for("", {"algo": "dqn", "train": {"gradient_steps": 3}}).train.resolve(64)
    assert (resolved.gradient_steps, resolved.train_frequency) == (3, 4)
    with pytest.raises(ConfigError, match="replay-ratio 0 makes no gradient steps"):
        options_for("", {"algo": "dqn", "train": {"replay_ratio": 0.0}}).train.resolve(8)


@pytest.mark.parametrize("num_envs", [2, 8, 32])
def test_dqn_takes_a_gradient_step_for_every_fourth_transition(num_envs):
    small = {"total_steps": 1280, "replay_start": 1, "batch_size": 8, "replay_size": 2000}
    tables = {"algo": "dqn", "device": "cpu", "train": small, "vec": {"num_envs": num_envs}, "nn": {"hidden": 8}}
    with contextlib.closing(Trainer("cartpole", options_for("", tables))) as trainer:
        while not trainer.is_done:
            trainer.iterate()
        assert int(trainer.learners[0].updates) == trainer.step // 4


@pytest.mark.parametrize("rows", [4, 64, 1024])
def test_a_minibatch_of_pqn_does_not_depend_on_the_number_of_rows(rows):
    config = options_for("", {"algo": "pqn", "train": {"horizon": 32, "minibatch_size": 64}}).train.resolve(rows)
    assert config.minibatch(rows) == 64
    few = options_for("", {"algo": "pqn", "train": {"horizon": 4, "minibatch_size": 64}}).train.resolve(2)
    assert few.minibatches == 1
    assert options_for("", {"algo": "pqn", "train": {"minibatches": 3}}).train.resolve(rows).minibatches == 3


# ---- the docs ----

CPU = ("vector", "discrete")
COLUMNS = {
    "PPO, Python envs": {
        "discrete": Look("python", *CPU),
        "continuous": Look("python", "vector", "continuous"),
        "recurrent": Look("python", *CPU, core=True),
        "grid": Look("python", "grid", "discrete"),
        "image": Look("python", "image", "discrete"),
    },
    "PPO, native envs": {
        "discrete": Look("native", *CPU),
        "continuous": Look("native", "vector", "continuous"),
        "GPU": Look("native", *CPU, device="cuda"),
    },
    "DQN": {
        "Python": Look("python", *CPU, algo="dqn"),
        "Python, image": Look("python", "image", "discrete", algo="dqn"),
        "native": Look("native", *CPU, algo="dqn"),
        "native, GPU": Look("native", *CPU, algo="dqn", device="cuda"),
    },
    "PQN": {
        "Python": Look("python", *CPU, algo="pqn"),
        "Python, image": Look("python", "image", "discrete", algo="pqn"),
        "native": Look("native", *CPU, algo="pqn"),
        "native, GPU": Look("native", *CPU, algo="pqn", device="cuda"),
    },
}


def shown(value):
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


def markdown():
    """The tables of docs/defaults.md: an option's value for each look, empty where it is that of the first column."""
    blocks = []
    for title, columns in COLUMNS.items():
        values = {}
        for name, look in columns.items():
            options = merge(Options(), {"algo": look.algo, **by_look(look)}, "docs")
            values[name] = {
                f"{table}.{key}": getattr(getattr(options, table), key)
                for table in ("vec", "train", "nn")
                for key in {key for other in columns.values() for key in by_look(other)[table]}
            }
        names = sorted(
            values[next(iter(columns))], key=lambda name: (["vec", "train", "nn"].index(name.split(".")[0]), name)
        )
        lines = [f"**{title}**", "", f"| option | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        first = values[next(iter(columns))]
        for name in names:
            cells = [shown(first[name])]
            cells += ["" if values[c][name] == first[name] else shown(values[c][name]) for c in list(columns)[1:]]
            lines.append(f"| `{name}` | {' | '.join(cells)} |")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def test_the_docs_show_the_table():
    page = (Path(__file__).parent.parent / "docs" / "defaults.md").read_text()
    begin, end = "<!-- Checked by tests/test_defaults.py -->\n", "\n<!-- The end of what tests/test_defaults.py"
    assert page.split(begin)[1].split(end)[0] == markdown()
