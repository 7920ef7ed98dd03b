"""Schedules: their values and their notation, what options they fit, and runs that follow them exactly."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.utils._python_dispatch import TorchDispatchMode

import shoal
from shoal.algos import fast, ops
from shoal.algos.algorithm import ALGORITHMS
from shoal.algos.fast import choice_loss
from shoal.algos.fast.fused import not_covered
from shoal.algos.learner import Learner
from shoal.algos.ppo import PPO, Targets, clipped_loss
from shoal.cli.train import parse as parse_command
from shoal.errors import ConfigError
from shoal.nn.distributions import ActionHead
from shoal.schedules import Schedule, parse, parse_or_explain
from shoal.train import Trainer, options_for, train
from shoal.train.diagnosis import Setup, _try, other_rate, smaller_rate
from shoal.train.envs import make_evaluation_vec
from shoal.train.options import as_tables
from shoal.train.players import load_player
from tests.fake_gpu import GpuLikeVec, use_fake_graphs
from tests.training import ITERATIONS, STEPS, TINY_TRAIN, contents, cut, tiny_trainer, train_tiny, training

# ---- values ----


@pytest.mark.parametrize(
    ("text", "values"),  # at 0, 0.25, 0.5, 0.75 and 1
    [
        ("linear(4, 0)", [4, 3, 2, 1, 0]),
        ("linear(-1, 1)", [-1, -0.5, 0, 0.5, 1]),
        ("cosine(1, 0)", [1, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125), 0]),
        ("exp(16, 1)", [16, 8, 4, 2, 1]),
        ("steps(0: 5, 0.5: 7)", [5, 5, 7, 7, 7]),
        ("steps(0: 5, 0.25: 6, 0.9: 7)", [5, 6, 6, 6, 7]),
        ("piecewise(0: 0, 0.5: 2, 1: 0)", [0, 1, 2, 1, 0]),
        ("piecewise(0.25: 3, 0.75: 5)", [3, 3, 4, 5, 5]),
    ],
)
def test_the_value_of_a_schedule_by_the_fraction_of_the_run(text, values):
    schedule = parse(text)
    assert [schedule.at(done) for done in (0, 0.25, 0.5, 0.75, 1)] == pytest.approx(values)
    assert schedule.at(1.5) == schedule.at(1.0)
    assert schedule.at(-0.5) == schedule.at(0.0)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("linear(1, 2)", 1.0),
        ("linear(2, 2)", 0.0),
        ("steps(0: 5, 0.25: 6, 0.9: 7)", 0.9),
        ("steps(0: 5, 0.25: 6, 0.9: 6)", 0.25),
        ("piecewise(0: 1, 0.15: 9)", 0.15),
        ("piecewise(0: 9, 0.4: 1, 0.6: 9, 1: 9)", 0.6),
    ],
)
def test_from_where_on_a_schedule_has_its_last_value(text, at):
    schedule = parse(text)
    assert schedule.settled == at
    assert schedule.at(at) == schedule.at(1.0)


@pytest.mark.parametrize("kind", ["linear", "cosine", "exp"])
def test_rounding_never_leads_past_the_ends(kind):
    for low, high in ((0.1, 0.3), (0.999999, 1.0), (1e-9, 0.7), (1.0, 0.1)):
        schedule = Schedule(kind, ((0, low), (1, high)))
        values = [schedule.at(k / 1000) for k in range(1001)]
        assert (values[0], values[-1]) == (low, high)
        assert min(low, high) <= min(values) <= max(values) <= max(low, high)


# ---- notation ----


@pytest.mark.parametrize(
    "schedule",
    [
        shoal.linear(0.01, 0.001),
        shoal.cosine(1, 0),
        shoal.exp(1e-3, 1e-7),
        shoal.steps({0: 0.1, 1 / 3: 0.30000000000000004}),
        shoal.piecewise({0: 1, 0.3: -0.1, 1: 0.01}),
    ],
)
def test_the_notation_of_a_schedule_reads_back_as_the_same(schedule):
    assert parse(str(schedule)) == schedule
    assert parse(f"  {str(schedule).replace(', ', ' ,  ').replace('(', ' ( ')} ") == schedule


@pytest.mark.parametrize("text", ["0.01", "", "linear", "uniform(0, 3)", "mode(1)", "(1, 2)"])
def test_other_texts_are_no_schedules(text):
    assert parse(text) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lineer(1, 2)", "Did you mean 'linear'"),
        ("0.1 to 0.2", "neither a number nor a schedule. Schedules: linear"),
        ("linear(1; 2)", "expected ',' at character 9, found ';'. Write it as linear"),
        ("linear(1)", "expected ',' at character 9, found '\\)'"),
        ("linear()", "expected a number at character 8, found '\\)'"),
        ("linear(1, 2, 3)", "expected '\\)' at character 12, found ','"),
        ("linear(1, 2", "expected '\\)' at character 12, found the end of the text"),
        ("linear(1, 2) 3", "expected the end at character 14, found '3'"),
        ("linear(0.1, nan)", "expected a number at character 13, found 'n'"),
        ("linear(0, 1e999)", "the value inf. Every value must be finite"),
        ("exp(1, 0)", "the value 0. exp needs values above 0"),
        ("steps(1, 2)", "expected ':' at character 8, found ','. Write it as steps\\(0: "),
        ("steps(0: 1)", "expected ',' at character 11"),
        ("steps(0.1: 1, 0.5: 2)", "no value before 0.1. Add one: 'steps\\(0"),
        ("piecewise(0: 1, 2: 3)", "a point at 2. Points are fractions of the run, between 0 and 1"),
        ("piecewise(0: 1, 0.5: 2, 0.4: 3)", "a point at 0.4 after a later one. The fractions must rise"),
    ],
)
def test_a_schedule_that_does_not_parse_says_where_and_what_is_expected(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_or_explain(text)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Schedule("parabola", ((0, 1), (1, 2))), "'parabola' is not a schedule"),
        (lambda: shoal.steps({0: 1}), "has 1 of at least 2 points"),
        (lambda: shoal.linear("a", 2), "Give pairs of numbers"),
    ],
)
def test_a_wrong_schedule_in_python_says_what_is_wrong(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


# ---- options ----

SCHEDULABLE = {
    algo: [f.name for f in dataclasses.fields(ALGORITHMS.find(algo).options) if f.metadata["may_change"]]
    for algo in ("ppo", "dqn", "pqn")
}


@pytest.mark.parametrize(
    ("train_table", "message"),
    [
        ({"adam_beta1": "linear(0.9, 0.99)"}, "adam_beta1 is fixed for the whole run .* gamma, gae_lambda, clip"),
        ({"gamma": "linear(0.9, 1.2)"}, r"--train.gamma linear\(0.9, 1.2\): 1.2 at 100% of the run is above 1.0"),
        ({"clip": "piecewise(0: 1, 0.5: -1, 1: 1)"}, "-1 at 50% of the run is below 0.0"),
        ({"max_grad_norm": shoal.linear(1, 0)}, "0 at 100% of the run. 0 turns max_grad_norm off"),
        ({"clip": "lineer(1, 2)"}, "train.clip: 'lineer.* Did you mean 'linear'"),
        ({"clip": "high"}, "train.clip = 'high' must be float"),
        ({"horizon": "linear(8, 16)"}, "'linear\\(8, 16\\)' is not a count"),
        ({"learning_rate": "linear(1, 0)", "schedule": "cosine"}, "Leave out --train.schedule, or give the learning"),
    ],
)
def test_a_schedule_that_an_option_does_not_take_is_refused(train_table, message):
    with pytest.raises(ConfigError, match=message):
        options_for("cartpole", {"train": train_table})


def test_a_schedule_in_a_file_is_that_of_python():
    text, object_ = ({"train": {"clip": clip}, "env": {"gravity": clip}} for clip in ("exp(1, 2)", shoal.exp(1, 2)))
    options = options_for("cartpole", text)
    assert options == options_for("cartpole", object_)
    assert options.train.clip == options.env["gravity"] == shoal.exp(1, 2)
    tables = as_tables(options)
    assert tables["train"]["clip"] == tables["env"]["gravity"] == "exp(1, 2)"
    assert options_for("cartpole", tables) == options


def test_a_learning_rate_with_a_schedule_replaces_the_option_schedule():
    options = options_for("", {"train": {"learning_rate": "linear(1e-3, 1e-4)"}})
    assert options.train.schedule == "constant"
    assert options_for("", as_tables(options)).train == options.train
    with pytest.raises(ConfigError, match="Leave out --train.schedule"):
        options_for("", as_tables(options), {"train": {"schedule": "linear"}})
    back = options_for("", as_tables(options), {"train": {"schedule": "linear", "learning_rate": 0.1}})
    assert (back.train.learning_rate, back.train.schedule) == (0.1, "linear")


def test_flags_take_schedules_and_distributions():
    words = ["--train.clip", "linear(0.3, 0.1)", "--env.gravity", "linear(9, 12)", "--env.force", "uniform(8, 12)"]
    options = parse_command(["cartpole", "--train.learning-rate", "cosine(0.01, 0)", *words]).options
    assert options.train.clip == shoal.linear(0.3, 0.1)
    assert (options.train.learning_rate, options.train.schedule) == (shoal.cosine(0.01, 0), "constant")
    assert as_tables(options)["env"] == {"gravity": "linear(9, 12)", "force": "uniform(8, 12)"}
    assert options_for("cartpole", as_tables(options)) == options


def test_schedules_of_a_file_and_of_a_resumed_run_are_the_defaults_of_flags(tmp_path, capsys):
    file = tmp_path / "own.toml"
    file.write_text('[train]\nclip = "linear(0.3, 0.1)"\n[env]\ngravity = "exp(9, 12)"\nforce = "normal(10, 1)"\n')
    options = parse_command(["cartpole", "--config", str(file)]).options
    assert options.train.clip == shoal.linear(0.3, 0.1)
    assert as_tables(options)["env"] == {"gravity": "exp(9, 12)", "force": "normal(10, 1)"}
    with pytest.raises(SystemExit):
        parse_command(["cartpole", "--config", str(file), "--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "(default: 'linear(0.3, 0.1)')" in shown
    assert "(default: 'exp(9, 12)')" in shown
    run = train_tiny("cartpole", tmp_path, train={"clip": "linear(0.3, 0.1)"})
    resumed = parse_command(["--resume", str(run.folder), "--train.gamma", "linear(0.9, 0.99)"]).options
    assert (resumed.train.clip, resumed.train.gamma) == (shoal.linear(0.3, 0.1), shoal.linear(0.9, 0.99))


def test_flags_of_python_envs_take_them_too():
    options = parse_command(["gymnasium:Pendulum-v1", "--env.g", "linear(5, 10)"]).options
    assert options.env["g"] == shoal.linear(5, 10)
    options = parse_command(["gymnasium:Pendulum-v1", "--env.g=uniform(5, 10)"]).options
    assert as_tables(options)["env"] == {"g": "uniform(5, 10)"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--train.adam-eps", "linear(1e-5, 1e-6)"], "adam_eps is fixed for the whole run"),
        (["--train.learning-rate", "linear(1, 0)", "--train.schedule", "linear"], "Leave out --train.schedule"),
    ],
)
def test_flags_refuse_schedules_that_do_not_fit(words, message):
    with pytest.raises(ConfigError, match=message):
        parse_command(["cartpole", *words])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--train.clip", "linear(1; 2)"], "expected ',' at character 9"),
        (["--env.gravity", "unform(1, 2)"], "Did you mean 'uniform'"),
    ],
)
def test_flags_that_do_not_parse_say_what_is_expected(words, message, capsys):
    with pytest.raises(SystemExit):
        parse_command(["cartpole", *words])
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_a_file_with_an_unknown_distribution_says_so(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text('[env]\ngravity = "unform(1, 2)"\n')
    with pytest.raises(ConfigError, match="Did you mean 'uniform'"):
        parse_command(["cartpole", "--config", str(file)])


def test_the_diagnosis_leaves_options_with_a_schedule_alone():
    setup = Setup({"train": {"learning_rate": "linear(0.1, 0)", "schedule": "constant", "gamma": "linear(0.9, 0.99)"}})
    assert setup.option("train.gamma") == 0.99
    schedule = ("train.schedule", lambda now: "linear")
    assert _try(setup, smaller_rate, other_rate, schedule) == ""


# ---- training ----

# values before and after the middle of the run, where they make a difference with the options beside them
VALUES: dict[str, tuple[float, float]] = {
    "learning_rate": (0.01, 0.001),
    "max_grad_norm": (0.5, 0.01),
    "gamma": (0.99, 0.5),
    "gae_lambda": (0.95, 0.1),
    "clip": (0.2, 0.0),
    "value_clip": (0.2, 0.001),
    "value_coef": (0.5, 5.0),
    "entropy_coef": (0.0, 1.0),
    "target_kl": (100.0, 1e-12),
    "vtrace_rho": (1.0, 0.5),
    "vtrace_c": (1.0, 0.5),
    "priority": (1.0, 2.0),
    "priority_beta": (1.0, 0.2),
    "reward_scale": (1.0, 3.0),
    "q_lambda": (0.65, 0.0),
    "target_tau": (0.1, 0.9),
    "epsilon": (0.2, 1.0),
}
BESIDE: dict[str, dict[str, Any]] = {
    "vtrace_rho": {"vtrace": True},
    "vtrace_c": {"vtrace": True},
    "priority_beta": {"priority": 1.0},
    "gamma": {"n_step": 2},
}


def trained(algo: str, table: dict[str, Any], *, is_plain: bool = False) -> list[torch.Tensor]:
    """The weights after each iteration of a run of four. `is_plain`: the replay samples in torch, as on a GPU."""
    names = {f.name for f in dataclasses.fields(ALGORITHMS.find(algo).options)}
    table = {"schedule": "constant", **{name: value for name, value in table.items() if name in names}}
    steps = TINY_TRAIN[algo]["total_steps"] * 4 // ITERATIONS
    trainer = tiny_trainer("cartpole", algo=algo, train={"total_steps": steps, **table})
    if is_plain and algo == "dqn":
        trainer.learners[0].replay.native = None
    try:
        weights = []
        for _ in range(4):
            trainer.iterate()
            weights.append(trainer.learners[0].weights.detach().clone())
        return weights
    finally:
        trainer.close()


@pytest.mark.parametrize(("algo", "name"), [(algo, name) for algo, names in SCHEDULABLE.items() for name in names])
def test_every_option_that_takes_a_schedule_follows_it(algo, name):
    """Until the middle of the run the weights are those of the first number, bit for bit; then they differ."""
    before, after = VALUES[name]
    constant = trained(algo, {**BESIDE.get(name, {}), name: before})
    changed = trained(algo, {**BESIDE.get(name, {}), name: f"steps(0: {before}, 0.5: {after})"})
    assert torch.equal(changed[1], constant[1])
    assert not torch.equal(changed[3], constant[3])


def test_a_schedule_of_equal_values_gives_the_bits_of_the_number():
    table = {"clip": 0.2, "gamma": 0.99, "entropy_coef": 0.01, "value_coef": 0.5, "max_grad_norm": 0.5}
    scheduled = {name: shoal.linear(value, value) for name, value in table.items()}
    for numbers, schedules in zip(trained("ppo", table), trained("ppo", scheduled)):
        assert torch.equal(numbers, schedules)


ALL_OF_PPO = {
    "clip": "linear(0.3, 0.1)",
    "value_clip": "linear(0.5, 0.1)",
    "value_coef": "linear(0.5, 1)",
    "entropy_coef": "exp(0.1, 0.01)",
    "gamma": "cosine(0.9, 0.99)",
    "gae_lambda": "linear(0.9, 0.95)",
    "max_grad_norm": "linear(1, 0.5)",
    "learning_rate": "linear(0.01, 0.005)",
}
ALL_OF_Q = {
    "max_grad_norm": "linear(10, 1)",
    "gamma": "linear(0.9, 0.99)",
    "reward_scale": "linear(1, 2)",
    "q_lambda": "linear(0.6, 0.9)",
    "target_tau": "linear(0.1, 0.5)",
    "epsilon": "linear(1, 0.1)",
    "n_step": 2,
}


@pytest.mark.parametrize(
    ("algo", "table"),
    [
        ("ppo", ALL_OF_PPO),
        (
            "ppo",
            {**ALL_OF_PPO, "normalize_reward": True, "priority": "linear(0.5, 1)", "priority_beta": "linear(1, 0.5)"},
        ),
        ("ppo", {**ALL_OF_PPO, "vtrace": True, "vtrace_rho": "linear(1, 0.9)", "vtrace_c": "linear(1, 0.8)"}),
        ("pqn", ALL_OF_Q),
        ("dqn", ALL_OF_Q),
        ("dqn", {**ALL_OF_Q, "priority": 1.0, "priority_beta": "linear(0.4, 1)"}),
    ],
    ids=["ppo", "ppo by priority", "ppo with vtrace", "pqn", "dqn", "dqn by priority"],
)
def test_the_tensors_of_a_gpu_give_the_numbers_of_a_cpu(algo, table, monkeypatch):
    """On a GPU options with a schedule are tensors, and C does not compute. Here the tensors are on the CPU.

    An update reads none of them: it could not be captured as a CUDA graph.
    """
    monkeypatch.setattr(fast, "native_ppo", lambda learner: None)
    monkeypatch.setattr(fast, "ppo_loss", lambda learner: None)
    monkeypatch.setattr(fast, "native_q_learning", lambda learner, rows: None)
    numbers = trained(algo, table, is_plain=True)
    monkeypatch.setattr(Learner, "_make_tensors", make_tensors)
    update = ALGORITHMS.find(algo).update

    def update_without_reading(learner):
        with NoScalars():
            return update(learner)

    monkeypatch.setattr(Trainer, "_update", lambda self, number: update_without_reading(self.learners[number]))
    tensors = trained(algo, table, is_plain=True)
    assert torch.allclose(tensors[-1], numbers[-1], atol=2e-4)


def make_tensors(self):
    """`Learner._make_tensors` of a GPU."""
    values = {name: value for name, value in self.scheduled.items() if name != "learning_rate"}
    return {name: torch.tensor(value) for name, value in values.items()}


@pytest.mark.parametrize(("algo", "table"), [("ppo", ALL_OF_PPO), ("pqn", ALL_OF_Q)])
def test_a_captured_iteration_follows_schedules(algo, table, monkeypatch):
    """A CUDA graph keeps the numbers that it was captured with: only tensors and params in memory change."""
    use_fake_graphs(monkeypatch)
    monkeypatch.setattr(fast, "ppo_loss", lambda learner: None)
    monkeypatch.setattr(Learner, "_make_tensors", make_tensors)

    def capture(function, generators):
        trainer = getattr(function, "func", function).__self__
        captured = [learner.config for learner in trainer.learners]

        def replay():
            now = [learner.config for learner in trainer.learners]
            for learner, config in zip(trainer.learners, captured):
                learner.config = config
            function()
            for learner, config in zip(trainer.learners, now):
                learner.config = config

        return replay

    monkeypatch.setattr("shoal.train.graphs.capture", capture)
    names = {f.name for f in dataclasses.fields(ALGORITHMS.find(algo).options)}
    own = {**TINY_TRAIN[algo], **{name: value for name, value in table.items() if name in names}}

    def trained_weights(is_captured):
        vec = GpuLikeVec(shoal.make("cartpole", 16, backend="serial"))
        vec.set_params = vec.vec.set_params
        with training(vec, algo=algo, train=own, env={"gravity": "linear(5, 20)"}, nn={"hidden": 16}) as trainer:
            trainer._is_captured = not is_captured
            for _ in range(4):
                trainer.iterate()
            assert (trainer.graphs is not None) == is_captured
            assert vec.get_params()["gravity"][0] == 12.5
            return trainer.learners[0].weights.detach().clone()

    assert torch.equal(trained_weights(True), trained_weights(False))


class NoScalars(TorchDispatchMode):
    """Raises where the host reads a float of a tensor."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        is_read = function is torch.ops.aten._local_scalar_dense.default
        assert not (is_read and args[0].is_floating_point()), "an update reads a number of a tensor"
        return function(*args, **(kwargs or {}))


def test_the_loss_of_one_choice_takes_tensors():
    """`choice_loss` in torch, as on a GPU, against `clipped_loss`."""
    generator = torch.Generator().manual_seed(3)
    head, count = ActionHead(spaces.Discrete(3)), 20

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    actions = torch.randint(3, (count, 1), generator=generator)
    targets = Targets(actions, -draw(count).abs(), draw(count), draw(count), draw(count), None, count)
    values = {"clip": 0.1, "value_clip": 0.3, "value_coef": 0.7, "entropy_coef": 0.2}
    plain, tensors = PPO(**values), PPO(**{name: torch.tensor(value) for name, value in values.items()})
    logits, critic = draw(count, 3).requires_grad_(), draw(count).requires_grad_()
    loss, metrics = clipped_loss(plain, head, logits, critic, targets)
    loss.backward()
    d_logits, d_values, found = choice_loss._in_torch(logits.detach(), critic.detach(), targets, tensors)
    assert torch.allclose(found, metrics, atol=1e-6)
    assert torch.allclose(d_logits, logits.grad, atol=1e-6)
    assert torch.allclose(d_values, critic.grad, atol=1e-6)


def test_advantages_and_returns_take_tensors():
    generator = torch.Generator().manual_seed(4)
    rewards, values = torch.randn(9, 4, generator=generator), torch.randn(10, 4, generator=generator)
    dones, ratios = torch.rand(9, 4, generator=generator) < 0.2, torch.rand(9, 4, generator=generator) * 2
    gamma, lam = torch.tensor(0.9), torch.tensor(0.8)
    assert torch.allclose(
        ops.gae(rewards, values, dones, gamma, lam), ops.gae(rewards, values, dones, 0.9, 0.8), atol=1e-5
    )
    tensors = ops.vtrace(rewards, values, dones, ratios, gamma, lam, torch.tensor(1.1), torch.tensor(0.7))
    for one, other in zip(tensors, ops.vtrace(rewards, values, dones, ratios, 0.9, 0.8, 1.1, 0.7)):
        assert torch.allclose(one, other, atol=1e-5)
    carries = torch.ones(4), torch.ones(4)
    sums = [ops.running_returns(rewards, dones, factor, carry) for factor, carry in zip((gamma, 0.9), carries)]
    assert torch.allclose(*sums, atol=1e-6)
    assert torch.allclose(*carries, atol=1e-6)


@pytest.mark.parametrize(
    "table",
    [
        {"entropy_coef": "linear(0.1, 0)", "value_clip": "linear(0.2, 0.1)"},
        {"max_grad_norm": "linear(1, 0.1)", "clip": "linear(0.3, 0.1)"},
        {"learning_rate": "linear(0.1, 0)", "gamma": "linear(0.9, 0.99)"},
    ],
)
def test_the_fused_kernels_take_schedules(table):
    trainer = tiny_trainer("cartpole", train=table, nn={"hidden": 16})
    try:
        assert not_covered(trainer.learners[0]) == ""
    finally:
        trainer.close()


def test_a_run_with_schedules_resumes_exactly_and_logs_them(tmp_path):
    table = {"clip": "linear(0.3, 0.1)", "learning_rate": "cosine(0.01, 0.001)"}
    tables = {"train": table, "env": {"gravity": "linear(9, 15)", "max_steps": "steps(0: 10, 0.5: 20)"}}
    run = train_tiny("cartpole", tmp_path, **tables)
    whole, records = contents(run), run.metrics()
    assert [record["schedule/clip"] for record in records] == pytest.approx([0.3 - 0.2 * k / 6 for k in range(6)])
    assert [record["schedule/env.gravity"] for record in records] == pytest.approx([9 + k for k in range(6)])
    assert [record["schedule/env.max_steps"] for record in records] == [10, 10, 10, 20, 20, 20]
    assert "schedule/learning_rate" not in records[0]
    assert records[3]["learning_rate"] == pytest.approx(0.0055)
    resumed = train("cartpole", runs_folder=tmp_path, resume=cut(run, 2), console="off")
    assert contents(resumed) == whole


def test_epsilon_follows_its_schedule():
    for algo in ("dqn", "pqn"):
        trainer = tiny_trainer("cartpole", algo=algo, train={"epsilon": "piecewise(0: 1, 0.5: 0.1)"})
        try:
            seen = []
            for _ in range(6):
                seen.append(float(trainer.learners[0].head.epsilon))
                trainer.iterate()
        finally:
            trainer.close()
        assert seen == pytest.approx([1, 1, 0.7, 0.4, 0.1, 0.1])  # the epsilon of a rollout is of the update before


# ---- env params ----


class Windy(gymnasium.Env):
    """A Python env whose steps report a param that may change."""

    observation_space, action_space = spaces.Box(-10, 10, (1,), np.float32), spaces.Discrete(2)

    def __init__(self, wind: float = 0.0, size: int = 3, hidden: float = 0.0) -> None:
        self.wind, self.size, self._hidden, self.t = wind, size, hidden, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.array([self.wind], np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        assert isinstance(self.size, int)
        return np.array([self.wind], np.float32), 0.0, self.t >= self.size, False, {}


def test_params_of_native_envs_follow_their_schedules():
    trainer = tiny_trainer("squared", env={"size": "linear(3, 9)", "max_steps": "steps(0: 20, 0.5: 40)"})
    try:
        seen = []
        for _ in range(6):
            trainer.iterate()
            seen.append((int(trainer.vec.get_params()["size"][0]), int(trainer.vec.get_params()["max_steps"][0])))
    finally:
        trainer.close()
    assert seen == [(3, 20), (4, 20), (5, 20), (6, 40), (7, 40), (8, 40)]


def test_attributes_of_python_envs_follow_their_schedules():
    vec = {"num_envs": 2, "backend": "serial"}
    trainer = tiny_trainer(Windy, env={"wind": "linear(0, 6)", "size": "steps(0: 3, 0.5: 4)"}, vec=vec, train={
        "total_steps": 6 * 2 * 8,
    })  # fmt: skip
    try:
        seen = []
        for _ in range(6):
            trainer.iterate()
            seen.append(float(trainer.learners[0].rollout.obs[0][-1, 0, 0]))
        assert trainer.vec.get_attr("size") == (4, 4)
    finally:
        trainer.close()
    assert seen == pytest.approx([0, 1, 2, 3, 4, 5])


def test_evaluation_takes_the_last_value_of_a_schedule(tmp_path):
    options = options_for("cartpole", {"env": {"gravity": "linear(9, 12)", "max_steps": "linear(10, 20)"}})
    vec = make_evaluation_vec("cartpole", options, 2, seed=1)
    assert vec.get_params()["gravity"].tolist() == [12, 12]
    vec.close()
    run = train_tiny("cartpole", tmp_path, env={"gravity": "linear(9, 12)"})
    _, keywords = load_player(run)
    assert keywords == {"env": "cartpole", "gravity": 12.0}


def test_the_best_checkpoint_has_played_the_last_value(tmp_path):
    """Returns of an easier start are higher, and say nothing about the task of the evaluation."""
    steps = 14 * STEPS
    run = train_tiny("cartpole", tmp_path, env={"x_limit": "steps(0: 2.4, 0.5: 0.02)"}, train={"total_steps": steps})
    easier = [record.get("episode/return", 0.0) for record in run.metrics() if record["step"] <= 0.5 * steps]
    assert run.summary["best"]["step"] > 0.5 * steps
    assert run.summary["best"]["score"] < 0.8 * max(easier)
    run = train_tiny("cartpole", tmp_path, env={"x_limit": "linear(2.4, 0.02)"}, train={"total_steps": steps})
    assert run.summary["best"] is None, "no two policies have played the same task"
    assert run.best == run.last


@pytest.mark.parametrize(
    ("env", "env_options", "message"),
    [
        ("vacuum", {"side": "steps(0: 6, 0.5: 8)"}, "side is fixed when vacuum is compiled"),
        ("vacuum", {"start": "linear(0, 1)"}, "start is one of .*, which a schedule cannot change"),
        ("vacuum", {"e_move": "linear(1, -1)"}, r"--env.e-move linear\(1, -1\), at 100% of the run: "),
        ("cartpole", {"wind": "linear(1, 2)"}, "cartpole has no param 'wind'"),
        (Windy, {"hidden": "linear(1, 2)"}, r"--env.hidden linear\(1, 2\) cannot be set .*self.hidden"),
    ],
)
def test_a_param_that_cannot_follow_a_schedule_is_refused(env, env_options, message):
    with pytest.raises(ConfigError, match=message):
        tiny_trainer(env, env=env_options, vec={"num_envs": 2, "backend": "serial"})


def test_surplus_envs_cannot_follow_a_schedule():
    from shoal.train.env_params import ParamSchedules

    with pytest.raises(ConfigError, match="--vec.surplus-envs 2 some of them still step then"):
        ParamSchedules(SimpleNamespace(native_spec=None), {"wind": shoal.linear(0, 1)}, surplus_envs=2)


def test_texts_of_python_envs_stay_texts():
    options = options_for("gymnasium:CartPole-v1", {"env": {"mode": "fast(1)", "wind": "normal(0, 1)"}})
    assert options.env["mode"] == "fast(1)"
    assert str(options.env["wind"]) == "normal(0, 1)"
    assert as_tables(options)["env"] == {"mode": "fast(1)", "wind": "normal(0, 1)"}


@pytest.mark.parametrize("env", ["pendulum", "gymnasium:Pendulum-v1"])
def test_a_misspelled_schedule_of_an_env_param_is_no_text(env):
    for text in ("lin(0, 3)", "liner(0, 3", "unifrm(1, 2)"):
        with pytest.raises(ConfigError, match=r"neither a number, nor a schedule, nor a distribution\. Did you mean"):
            options_for(env, {"env": {"g": text}})
    assert options_for(env, {"env": {"g": "linen(blue)"}}).env == {"g": "linen(blue)"}  # a text of the env's own
