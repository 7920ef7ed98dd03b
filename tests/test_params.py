"""Params that change: distributions that each episode draws from, set_params, and snapshots that hold both."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from shoal import registry
from shoal.cli.train import parse as parse_command
from shoal.distributions import Distribution, parse
from shoal.errors import ConfigError, SnapshotError, UsageError
from shoal.native import lib
from shoal.train.options import as_tables, decode, options_for
from tests.fake_gpu import make_cuda_vec_on_host
from tests.training import train_tiny

PUSH = {"pendulum": np.ones((6, 1), np.float32), "cartpole": np.ones(6, np.int64)}


def play(vec, actions, steps):
    return np.stack([vec.step(actions)[0].copy() for _ in range(steps)])


# ---- distributions ----


@pytest.mark.parametrize(
    ("rule", "fits"),
    [
        (shoal.uniform(5, 15), lambda x: (x >= 5) & (x <= 15) & (np.abs(x.mean() - 10) < 1)),
        (shoal.loguniform(0.1, 10), lambda x: (x >= 0.0999) & (x <= 10) & (abs(np.log(x).mean()) < 0.3)),
        (shoal.normal(9.8, 0.5), lambda x: (np.abs(x.mean() - 9.8) < 0.1) & (abs(x.std() - 0.5) < 0.1)),
        (shoal.choice(1, 2.5, 7), lambda x: np.isin(x, [1, 2.5, 7]) & (len(np.unique(x)) == 3)),
        (shoal.integers(2, 4), lambda x: np.isin(x, [2, 3, 4]) & (len(np.unique(x)) == 3)),
    ],
    ids=lambda rule: getattr(rule, "kind", ""),
)
def test_each_env_draws_from_the_distribution(rule, fits):
    vec = shoal.make("pendulum", 400, gravity=rule)
    vec.reset(seed=1)
    drawn = vec.get_params()["gravity"]
    assert np.all(fits(drawn))
    vec.reset(seed=1)
    assert np.array_equal(drawn, vec.get_params()["gravity"])


def test_a_new_value_is_drawn_for_each_episode_and_no_other_param_changes():
    vec = shoal.make("pendulum", 6, gravity=shoal.uniform(5, 15), max_steps=10)
    vec.reset(seed=0)
    first = vec.get_params()
    play(vec, PUSH["pendulum"], 9)
    assert np.array_equal(first["gravity"], vec.get_params()["gravity"])
    play(vec, PUSH["pendulum"], 1)
    second = vec.get_params()
    assert not np.any(first["gravity"] == second["gravity"])
    assert all(np.array_equal(first[name], second[name]) for name in first if name != "gravity")


def test_the_drawn_value_is_the_one_that_the_env_uses():
    """From the same start, each env falls as one that has its gravity from the beginning."""
    vec = shoal.make("cartpole", 6, gravity=shoal.uniform(2, 30))
    vec.reset(seed=3)
    fixed = shoal.make("cartpole", 6, gravity=vec.get_params()["gravity"])
    fixed.reset(seed=3)
    assert np.array_equal(play(vec, PUSH["cartpole"], 8), play(fixed, PUSH["cartpole"], 8))


def test_drawing_does_not_change_the_random_numbers_of_the_env():
    plain, drawn = shoal.make("cartpole", 6), shoal.make("cartpole", 6, gravity=shoal.choice(9.8))
    assert np.array_equal(plain.reset(seed=5)[0], drawn.reset(seed=5)[0])
    assert np.array_equal(play(plain, PUSH["cartpole"], 100), play(drawn, PUSH["cartpole"], 100))


def test_an_env_draws_the_same_in_any_batch_and_on_any_backend(monkeypatch):
    options = {"gravity": shoal.normal(10, 2), "max_steps": shoal.integers(3, 9)}
    vec = shoal.make("pendulum", 6, **options)
    vec.reset(seed=11)
    obs, values = play(vec, PUSH["pendulum"], 30), vec.get_params()
    threads = shoal.make("pendulum", 6, num_threads=2, **options)
    threads.reset(seed=11)
    assert np.array_equal(obs, play(threads, PUSH["pendulum"], 30))
    alone = shoal.make("pendulum", 1, **options)
    alone.reset(seed=11 + 4)
    assert np.array_equal(obs[:, 4:5], play(alone, PUSH["pendulum"][:1], 30))
    gpu = make_cuda_vec_on_host(monkeypatch, lib.load(registry.find("pendulum")), 6, params=options)
    gpu.reset(seed=11)
    for t in range(30):
        gpu.actions[:] = 1
        gpu.launch_step()
        assert np.array_equal(obs[t], gpu.tensors["obs"].numpy())
    assert all(np.array_equal(values[name], gpu.get_params()[name]) for name in values)


def test_a_text_is_read_as_a_distribution():
    assert parse("uniform(0, 3)") == shoal.uniform(0, 3)
    assert parse(" choice( 1,2.5 ) ") == shoal.choice(1, 2.5)
    assert parse(str(shoal.loguniform(1e-5, 0.125))) == shoal.loguniform(1e-5, 0.125)
    assert parse("linear(1, 2)") is None
    assert parse("corner") is None
    by_text, by_object = (shoal.make("pendulum", 4, gravity=g) for g in ("uniform(5, 15)", shoal.uniform(5, 15)))
    by_text.reset(seed=0), by_object.reset(seed=0)
    assert np.array_equal(by_text.get_params()["gravity"], by_object.get_params()["gravity"])


def test_names_of_choices_can_be_drawn():
    vec = shoal.make("vacuum", 40, robot_1=shoal.choice("seek", "learner"))
    vec.reset(seed=0)
    numbers = vec.native_spec.choices("robot_1")
    assert set(vec.get_params()["robot_1"].tolist()) == {numbers["seek"], numbers["learner"]}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: shoal.uniform(3, 1), "3 is not below 1"),
        (lambda: shoal.loguniform(0, 1), "0 has no logarithm"),
        (lambda: shoal.normal(1, 0), "standard deviation 0 must be above 0"),
        (lambda: shoal.choice(), "has no values"),
        (lambda: shoal.integers(0.5, 3), "two whole numbers"),
        (lambda: shoal.uniform(0, float("nan")), "not a finite number"),
        (lambda: parse("uniform(1)"), r"has 1 values; uniform takes 2. Write uniform\(5, 15\)"),
        (lambda: parse("normal(a, 1)"), "'a' is not a number"),
        (lambda: Distribution("gamma", (1, 2)), "'gamma' is no distribution"),
        (lambda: shoal.make("cartpole", max_steps=shoal.uniform(1, 9)), "max_steps is an int"),
        (lambda: shoal.make("cartpole", gravty=shoal.uniform(1, 9)), "no param 'gravty'. Did you mean 'gravity'"),
        (lambda: shoal.make("maze", side=shoal.integers(5, 9)), "compile-time const"),
        (lambda: shoal.make("vacuum", robot_1=shoal.choice("seak")), "Did you mean 'seek'"),
        (lambda: shoal.make("cartpole", max_steps=shoal.integers(-5, 9)), "max_steps=-5 is negative"),
        (lambda: shoal.make("cartpole", gravity=shoal.choice(*range(99))), "99 choices; at most 64"),
    ],
)
def test_a_wrong_distribution_is_told(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_run_keeps_its_distributions():
    options = options_for("pendulum", {"env": {"gravity": shoal.uniform(5, 15)}})
    tables = as_tables(options)
    assert tables["env"] == {"gravity": "uniform(5, 15)"}
    assert parse(decode(tables["env"]["gravity"])) == shoal.uniform(5, 15)


def test_the_command_line_resumes_a_run_that_draws_params(tmp_path):
    run = train_tiny("cartpole", tmp_path, env={"gravity": shoal.uniform(5, 15)})
    request = parse_command(["--resume", str(run.folder)])
    assert request.options.env["gravity"] == shoal.uniform(5, 15)


# ---- set_params ----


def test_set_params_changes_the_distribution_from_the_next_episode_and_a_number_ends_it():
    vec = shoal.make("pendulum", 6, gravity=shoal.uniform(5, 6), max_steps=4)
    vec.reset(seed=0)
    before = vec.get_params()["gravity"]
    vec.set_params(gravity=shoal.uniform(20, 30))
    play(vec, PUSH["pendulum"], 3)
    assert np.array_equal(before, vec.get_params()["gravity"])
    play(vec, PUSH["pendulum"], 1)
    assert np.all(vec.get_params()["gravity"] >= 20)
    vec.set_params(gravity=1.5)
    play(vec, PUSH["pendulum"], 8)
    assert np.all(vec.get_params()["gravity"] == 1.5)


def test_a_distribution_can_be_set_while_envs_run(monkeypatch):
    vec = shoal.make("pendulum", 6, max_steps=4)
    gpu = make_cuda_vec_on_host(monkeypatch, lib.load(registry.find("pendulum")), 6, params={"max_steps": 4})
    for envs in (vec, gpu):
        envs.reset(seed=2)
        envs.set_params(gravity=shoal.uniform(20, 30))
    play(vec, PUSH["pendulum"], 4)
    for _ in range(4):
        gpu.actions[:] = 1
        gpu.launch_step()
    drawn = vec.get_params()["gravity"]
    assert len(set(drawn.tolist())) == 6
    assert np.array_equal(drawn, gpu.get_params()["gravity"])


def test_a_captured_graph_refuses_params_that_it_cannot_follow(monkeypatch):
    gpu = make_cuda_vec_on_host(monkeypatch, lib.load(registry.find("pendulum")), 6)
    gpu._is_captured = True
    gpu.set_params(gravity=3.0)
    for value in (shoal.uniform(1, 2), [1.0] * 6):
        with pytest.raises(UsageError, match="CUDA graph"):
            gpu.set_params(gravity=value)
    drawing = make_cuda_vec_on_host(
        monkeypatch, lib.load(registry.find("pendulum")), 6, params={"gravity": shoal.uniform(1, 2)}
    )
    drawing._is_captured = True
    struct = bytes(drawing.struct)
    drawing.set_params(gravity=shoal.uniform(3, 4), mass=[1.0] * 6)
    assert bytes(drawing.struct) == struct  # what a graph holds still points to the right memory


# ---- snapshots ----


@pytest.mark.parametrize("name", ["pendulum", "cartpole"])
def test_a_snapshot_continues_with_the_drawn_params(name):
    options = {"gravity": shoal.uniform(5, 15), "max_steps": shoal.integers(5, 20)}
    vec, other = shoal.make(name, 6, **options), shoal.make(name, 6, num_threads=2, **options)
    vec.reset(seed=0)
    play(vec, PUSH[name], 13)
    other.restore(vec.snapshot())
    assert np.array_equal(play(vec, PUSH[name], 60), play(other, PUSH[name], 60))
    assert np.array_equal(vec.get_params()["gravity"], other.get_params()["gravity"])


def test_a_snapshot_holds_params_that_were_changed():
    vec, other = shoal.make("pendulum", 6), shoal.make("pendulum", 6)
    vec.reset(seed=0)
    plain = len(vec.snapshot())
    vec.set_params(gravity=np.arange(6.0), mass=shoal.uniform(1, 2))
    blob = vec.snapshot()
    assert len(blob) > plain
    other.restore(blob)
    assert np.array_equal(other.get_params()["gravity"], np.arange(6.0))
    assert np.array_equal(play(vec, PUSH["pendulum"], 250), play(other, PUSH["pendulum"], 250))
    assert np.array_equal(vec.get_params()["mass"], other.get_params()["mass"])
    part = shoal.make("pendulum", 6)
    part.reset(seed=9)
    part.restore(vec.snapshot([4, 5]), [0, 1])
    assert part.get_params()["gravity"].tolist() == [4.0, 5.0, 10.0, 10.0, 10.0, 10.0]


def test_params_that_the_user_chose_are_not_replaced_by_a_snapshot():
    vec, other = shoal.make("pendulum", 6), shoal.make("pendulum", 6, gravity=3.0)
    vec.reset(seed=0)
    vec.set_params(gravity=7.0)
    other.restore(vec.snapshot())
    assert np.all(other.get_params()["gravity"] == 3.0)


def test_a_snapshot_without_drawn_params_starts_their_streams():
    vec = shoal.make("pendulum", 6, max_steps=5)
    vec.reset(seed=0)
    twins = [shoal.make("pendulum", 6, max_steps=5, gravity=shoal.uniform(5, 15)) for _ in range(2)]
    for twin in twins:
        twin.restore(vec.snapshot())
        play(twin, PUSH["pendulum"], 5)
    first, second = (twin.get_params()["gravity"] for twin in twins)
    assert len(set(first.tolist())) == 6
    assert np.array_equal(first, second)


def test_forged_params_are_refused_and_nothing_is_restored():
    vec = shoal.make("vacuum", 2)
    vec.reset(seed=0)
    vec.set_params(robot_1="seek")
    number = vec.native_spec.choices("robot_1")["seek"]
    vec.memory.params["robot_1"] = 10_000  # as forged bytes could hold
    blob = vec.snapshot()
    vec.memory.params["robot_1"] = number
    with pytest.raises(SnapshotError, match="robot_1=10000 is none of its choices"):
        vec.restore(blob)
    assert np.all(vec.get_params()["robot_1"] == number)


# ---- Python envs ----


def test_python_envs_draw_attributes_for_each_episode():
    vec = shoal.make(
        "gymnasium:CartPole-v1", 2, backend="serial", gravity=shoal.uniform(5, 15), length="choice(0.3, 0.7)"
    )
    vec.reset(seed=4)
    first = [vec.get_attr("gravity"), vec.get_attr("length")]
    assert all(5 <= gravity <= 15 for gravity in first[0])
    assert all(length in (0.3, 0.7) for length in first[1])
    while not (done := np.logical_or(*vec.step(np.ones(2, np.int64))[2:4])).any():
        pass
    second = vec.get_attr("gravity")
    assert [a != b for a, b in zip(first[0], second)] == done.tolist()
    vec.reset(seed=4)
    assert [vec.get_attr("gravity"), vec.get_attr("length")] == first


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_an_attribute_that_a_python_env_does_not_have_is_told(backend):
    with pytest.raises(ConfigError, match="CartPoleEnv has no attribute 'wind'"):
        shoal.make("gymnasium:CartPole-v1", 1, backend=backend, wind=shoal.uniform(0, 3))
