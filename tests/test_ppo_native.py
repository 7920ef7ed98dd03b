"""PPO in C on a CPU (native/core/ppo.c) against the same in torch: acting, learning, threads, builds, sanitizers."""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from shoal.algos import ppo
from shoal.algos.fast import ppo_native
from shoal.algos.fast.ppo_native import NativePPO
from shoal.algos.ppo import STEP_METRICS
from shoal.algos.rollout import StepViews
from shoal.errors import ConfigError
from shoal.native import build, lib
from shoal.native import ppo as ppo_lib
from shoal.train import train
from tests.ppo_twins import (
    ACTIONS,
    OBSERVATIONS,
    FixedPace,
    assert_twins,
    learn,
    make_learner,
    make_twins,
    play,
    shake,
)
from tests.training import contents, cut, make_trainer, tiny, train_tiny

ROOT = Path(__file__).parents[1]
VARIANTS = [
    name for name in build.PPO_SOURCE.variants() if lib.CPU_LEVELS[name] <= lib.load_core().cpu_level()
]  # that this CPU can run
BOXES = {"box", "wide box", "dict"}
NETS = {
    "no layer": {"layers": 0},
    "1 layer of 5": {"layers": 1, "hidden": 5},
    "2 layers of 40, tanh": {"layers": 2, "hidden": 40, "activation": "tanh"},
    "3 layers of 100": {"layers": 3, "hidden": 100},
    "1 layer of 256": {"layers": 1, "hidden": 256},
    "separate": {"separate": True},
    "separate, no layer": {"layers": 0, "separate": True},
    "separate, 3 layers, tanh": {"layers": 3, "hidden": 17, "activation": "tanh", "separate": True},
    "lstm": {"core": "lstm", "hidden": 32},
    "lstm, other width": {"core": "lstm", "layers": 1, "hidden": 20, "core_size": 48},
    "lstm, no layer": {"core": "lstm", "layers": 0, "core_size": 16},
    "mingru": {"core": "mingru", "hidden": 32},
    "mingru, other width": {"core": "mingru", "layers": 1, "hidden": 20, "core_size": 48},
    "mingru, no layer": {"core": "mingru", "layers": 0, "core_size": 16},
    "mingru, as wide as the observation": {"core": "mingru", "layers": 0, "core_size": 16, "obs": "int8"},
    "lstm, separate": {"core": "lstm", "hidden": 16, "separate": True},
    "lstm, separate, other width": {"core": "lstm", "layers": 1, "hidden": 20, "core_size": 32, "separate": True},
    "lstm, head layer": {"core": "lstm", "hidden": 20, "core_size": 32, "head_layers": 1, "activation": "tanh"},
    "mingru, 2 head layers, separate": {"core": "mingru", "hidden": 16, "head_layers": 2, "separate": True},
    "mingru, only head layers": {"core": "mingru", "layers": 0, "hidden": 24, "core_size": 16, "head_layers": 3},
    "mingru, separate": {"core": "mingru", "hidden": 16, "separate": True},
    "mingru, separate, other width": {"core": "mingru", "layers": 1, "hidden": 5, "core_size": 16, "separate": True},
}
HEADS = [
    *[{"actions": actions} for actions in ACTIONS],
    *[{"actions": actions, "net": {"std": "state"}} for actions in sorted(BOXES)],
    *[
        {"actions": actions, "net": {"std": std, "squash": "tanh"}}
        for actions in sorted(BOXES)
        for std in ("free", "state")
    ],
]
ROW_COUNTS = (1, 2, 7, 11, 12, 13, 128, 129, 300)


def case_of(net, **case):
    """The options of a case. Skips it while the policy refuses it."""
    net = dict(NETS[net] if isinstance(net, str) else net)
    if "obs" in net:
        case["obs"] = net.pop("obs")
    case["net"] = net | case.get("net", {})
    if net.get("separate") and "core" in net:
        try:
            make_learner(**case)
        except ConfigError as error:
            pytest.skip(str(error))
    return case


# ---- acting ----


def assert_acts_alike(learner, native, rows=slice(None), t=1):
    """Acts at one step in C and in torch: logits, values, actions, states, and the state before the step."""
    rollout = learner.rollout
    before = [state.clone() for state in rollout.state]
    views = StepViews(rollout, t, rows)
    for part in (rollout.logits, rollout.values, *rollout.starts):
        part.fill_(-7.0)
    rollout.actions.zero_()
    assert native.begin()
    native.act(views)
    with torch.inference_mode():
        exact = learner.actor.act(views.obs, tuple(s[rows] for s in before), mask=views.mask, noise=views.noise)
        close = functools.partial(torch.testing.assert_close, rtol=2e-5, atol=5e-6)
        close(views.logits, exact.logits)
        close(views.values, exact.values)
        sampled = rollout.head.sample(views.logits, views.noise)
        close(views.actions, sampled)
        if not rollout.head.has_box:
            assert torch.equal(views.actions, sampled)
        for new, old, wanted in zip(rollout.state, before, exact.state):
            close(new[rows], wanted)
            new[rows] = old[rows]
            assert torch.equal(new, old)  # other rows keep theirs
        if t % rollout.segment == 0:
            for start, old in zip(rollout.starts, before):
                assert torch.equal(start[t // rollout.segment, rows], old[rows])
        native.last_values()
        last = rollout.observations([leaf[-1] for leaf in rollout.obs])
        close(rollout.values[-1], learner.actor.step(last, tuple(before))[1])
        assert all(torch.equal(state, old) for state, old in zip(rollout.state, before))


def ready_to_act(seed=0, **case):
    learner = make_learner(horizon=4, minibatches=1, seed=seed, **case)
    play(learner, seed)
    shake(learner.actor.policy.parameters(), 0.2, 3)
    return learner


@pytest.mark.parametrize("net", NETS)
def test_acting_is_torchs_for_every_network(net):
    learner = ready_to_act(**case_of(net, rows=29))
    assert_acts_alike(learner, learner.native, t=0)
    assert_acts_alike(learner, learner.native, slice(3, 28))


@pytest.mark.parametrize("normalize_obs", [False, True])
@pytest.mark.parametrize("obs", OBSERVATIONS)
def test_acting_is_torchs_for_every_observation(obs, normalize_obs):
    for net in ("2 layers of 40, tanh", "mingru, no layer"):
        learner = ready_to_act(**case_of(net, obs=obs, rows=13, normalize_obs=normalize_obs))
        assert_acts_alike(learner, learner.native, slice(1, 13))


@pytest.mark.parametrize("head", HEADS, ids=str)
def test_acting_is_torchs_for_every_action(head):
    for has_masks in {False, head["actions"] not in BOXES}:
        learner = ready_to_act(rows=40, has_masks=has_masks, **head)
        assert_acts_alike(learner, learner.native, slice(5, 40))


@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_acting_is_torchs_for_every_number_of_rows(rows):
    for net in ("3 layers of 100", "lstm, other width"):
        learner = ready_to_act(**case_of(net, rows=rows))
        for variant in VARIANTS:
            assert_acts_alike(learner, NativePPO(learner.actor, learner.rollout, variant=variant))


def test_weights_that_changed_or_moved_are_read_again():
    learner = ready_to_act()
    assert_acts_alike(learner, learner.native)
    shake(learner.actor.policy.parameters(), 0.5, 1)
    assert_acts_alike(learner, learner.native)
    acting = NativePPO(learner.actor, learner.rollout)
    for p in learner.actor.policy.parameters():
        p.data = p.data.clone() + 0.1
    assert_acts_alike(learner, acting)


def test_gumbel_noise_has_its_distribution():
    noise = np.zeros(200_003, np.float32)
    ppo_lib.load().gumbel(3, len(noise), noise.ctypes.data)
    assert stats.kstest(noise, "gumbel_r").pvalue > 0.01
    assert len(np.unique(noise)) > 190_000
    # seeds whose first number has only ones, or only zeros, as its highest 24 bits
    for seed, edge in ((0x1161223A27132434, 16.7), (0x61C8864680B583EB, -2.8)):
        for variant in VARIANTS:
            ppo_lib.load(variant).gumbel(seed, 1, noise.ctypes.data)
            assert abs(noise[0] - edge) < 0.1


# ---- learning ----

OPTIONS = {
    "value clip": {"value_clip": 0.1},
    "no entropy bonus": {"entropy_coef": 0.0},
    "narrow clip": {"clip": 0.01},
    "value coefficient": {"value_coef": 2.0},
    "advantages of the batch": {"normalize_advantage": "batch"},
    "raw advantages": {"normalize_advantage": "none"},
    "never clipped": {"max_grad_norm": 0.0},
    "gradients clipped": {"max_grad_norm": 0.01},
    "priority": {"priority": 0.8, "priority_beta": 0.6},
    "priority of segments": {"priority": 0.8, "segment": 4},
    "segments": {"segment": 4},
    "short segments": {"segment": 2, "value_clip": 0.2},
    "in order": {"shuffle": False},
    "segments in order": {"shuffle": False, "segment": 4},
    "dead rows": {"has_dead_rows": True},
    "dead rows, priority": {"has_dead_rows": True, "priority": 0.5},
    "dead rows, raw advantages": {"has_dead_rows": True, "normalize_advantage": "none"},
    "surplus rows": {"surplus": 5},
    "surplus and dead rows": {"surplus": 5, "has_dead_rows": True, "priority": 0.5},
    "masks": {"has_masks": True},
    "adam": {"adam_beta1": 0.8, "adam_beta2": 0.95},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.3},
    "muon": {"optimizer": "muon"},
    "muon, decay": {"optimizer": "muon", "weight_decay": 0.3, "max_grad_norm": 0.02, "muon_steps": 3},
    "vtrace": {"vtrace": True},
    "scaled rewards and observations": {"normalize_reward": True, "normalize_obs": True},
    "one minibatch": {"minibatches": 1},
    "minibatches of unequal size": {"minibatches": 7, "rows": 19},
}


def check_learning(epochs=2, **case):
    """Twins learn alike: the first gradient step, and two epochs."""
    by_c, by_torch = make_twins(**case)
    sums = [learn(learner, epochs) for learner in (by_c, by_torch)]
    torch.testing.assert_close(sums[0], sums[1], rtol=2e-4, atol=2e-5)
    assert by_c.optimizer.state["step"] == by_c.config.minibatches * epochs
    assert_twins(by_c, by_torch)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("net", ["3 layers of 100", "lstm, other width", "mingru, other width"])
def test_learning_is_torchs_for_every_option(net, options):
    check_learning(**case_of(net, **OPTIONS[options]))


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
@pytest.mark.parametrize("net", NETS)
def test_learning_is_torchs_for_every_network(net, optimizer):
    check_learning(**case_of(net, optimizer=optimizer, weight_decay=0.05))


@pytest.mark.parametrize("head", HEADS, ids=str)
def test_learning_is_torchs_for_every_action(head):
    check_learning(**head)
    if head["actions"] not in BOXES:
        check_learning(has_masks=True, **head)


@pytest.mark.parametrize("obs", OBSERVATIONS)
def test_learning_is_torchs_for_every_observation(obs):
    check_learning(obs=obs)
    check_learning(obs=obs, normalize_obs=True, net={"core": "mingru", "core_size": 16, "layers": 0})


def random_case(seed):
    """Everything at once."""
    pick = random.Random(seed)
    core, actions = pick.choice(["none", "none", "lstm", "mingru"]), pick.choice(sorted(ACTIONS))
    net = {
        "layers": pick.randrange(4),
        "hidden": pick.choice([1, 5, 16, 31, 40, 64]),
        "activation": pick.choice(["relu", "tanh"]),
        "core": core,
        "core_size": pick.choice([16, 32, 48]),
        "separate": core == "none" and pick.random() < 0.3,
        "std": pick.choice(["free", "state"]),
        "squash": pick.choice(["none", "tanh"]),
        "log_std": pick.choice([0.0, -1.0]),
    }
    train = {
        "segment": pick.choice([0, 2, 4]),
        "minibatches": pick.choice([1, 2, 5]),
        "optimizer": pick.choice(["adam", "adamw", "muon"]),
        "weight_decay": pick.choice([0.0, 0.1]),
        "max_grad_norm": pick.choice([0.0, 0.1, 0.5]),
        "clip": pick.choice([0.05, 0.2]),
        "value_clip": pick.choice([0.0, 0.2]),
        "value_coef": pick.choice([0.5, 1.0]),
        "entropy_coef": pick.choice([0.0, 0.02]),
        "normalize_advantage": pick.choice(["minibatch", "batch", "none"]),
        "priority": pick.choice([0.0, 0.0, 0.7]),
        "shuffle": pick.random() < 0.7,
        "vtrace": pick.random() < 0.2,
    }
    rows = pick.choice([6, 13, 24, 70])
    return train | {
        "obs": pick.choice(sorted(OBSERVATIONS)),
        "actions": actions,
        "net": net,
        "rows": rows,
        "has_masks": actions not in BOXES and pick.random() < 0.5,
        "has_dead_rows": pick.random() < 0.3,
        "normalize_obs": pick.random() < 0.3,
        "surplus": pick.choice([0, 0, 2]),
        "seed": seed,
    }


@pytest.mark.parametrize("seed", range(40))
def test_learning_is_torchs_for_random_cases(seed):
    check_learning(epochs=1, **random_case(seed))


@pytest.mark.parametrize("net", ["2 layers of 40, tanh", "lstm", "mingru"])
def test_large_minibatches_are_divided_into_units_and_groups(net):
    """Some rows more than fill the blocks of all groups."""
    case = {"rows": 331, "horizon": 16, "minibatches": 2} if net[0] == "2" else {"rows": 150, "horizon": 24}
    check_learning(epochs=1, **case_of(net, **case))


@pytest.mark.parametrize("net", ["no layer", "lstm, no layer", "mingru, no layer"])
def test_segments_longer_than_a_block(net):
    check_learning(epochs=1, **case_of(net, rows=2, horizon=1100, segment=1100, minibatches=1, max_grad_norm=0.0))


@pytest.mark.parametrize("net", ["2 layers of 40, tanh", "separate", "lstm", "mingru"])
@pytest.mark.parametrize("options", [{}, {"normalize_advantage": "none", "max_grad_norm": 0.0}], ids=str)
def test_a_reward_that_is_not_a_number_shows_up_in_the_metrics(net, options):
    by_c, by_torch = make_twins(**case_of(net, minibatches=1, **options))
    for learner in (by_c, by_torch):
        learner.rollout.rewards[3, 4] = torch.nan
    sums = [learn(learner) for learner in (by_c, by_torch)]
    assert torch.equal(sums[0].isnan(), sums[1].isnan())
    assert {"loss/policy", "loss/value", "grad_norm"} <= {
        name for name, x in zip(STEP_METRICS, sums[0].tolist()) if x != x
    }
    assert torch.equal(by_c.weights.isnan(), by_torch.weights.isnan())
    assert by_c.actor.policy.actor.weight.isnan().all()


def test_log_stds_outside_of_their_range_have_no_gradient():
    for log_std, std in ((9.0, "free"), (9.0, "state")):
        by_c, by_torch = make_twins(actions="box", net={"std": std}, rows=8, minibatches=1)
        for learner in (by_c, by_torch):
            policy = learner.actor.policy
            with torch.no_grad():
                (policy.log_std if std == "free" else policy.actor.bias[3:])[1] = log_std
            learner.rollout.logits[..., 4] = log_std
        sums = [learn(learner) for learner in (by_c, by_torch)]
        torch.testing.assert_close(sums[0], sums[1], rtol=1e-3, atol=1e-4)
        assert_twins(by_c, by_torch, rtol=1e-3)
        if std == "free":
            assert by_c.actor.policy.log_std.grad[1] == 0.0 != by_c.actor.policy.log_std.grad[0]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "net", [{"activation": "tanh", "layers": 1}, {"core": "lstm", "core_size": 16, "layers": 0}], ids=str
)
def test_saturated_units_have_no_gradient(net, variant):
    """Large observations would turn a slope of 1e-7 into a gradient."""
    by_c, by_torch = make_twins(net=net, minibatches=1, learning_rate=0.0, max_grad_norm=0.0)
    by_c.native = NativePPO(by_c.actor, by_c.rollout, by_c, variant=variant)
    for learner in (by_c, by_torch):
        learner.rollout.obs[0].mul_(1e5)
        learn(learner)
    first, wanted = (next(iter(learner.actor.policy.parameters())).grad for learner in (by_c, by_torch))
    assert wanted.abs().max() < 1e-3
    assert first.abs().max() < 1e-3


def test_an_update_needs_no_rollout_before():
    """Weights that were restored or changed between collecting and learning count."""
    by_c, by_torch = make_twins()
    metrics = [ppo.update(learner) for learner in (by_c, by_torch)]
    for name, value in metrics[1].items():
        torch.testing.assert_close(metrics[0][name], value, rtol=1e-3, atol=1e-5)
    assert_twins(by_c, by_torch)


# ---- what C covers ----


def test_networks_that_c_does_not_cover_are_left_to_torch():
    for net in ({"hidden": 257}, {"layers": 4}, {"activation": "gelu"}, {"core": "lstm", "hidden": 20}):
        assert make_learner(net=net).native is None
    learner = make_learner()
    assert learner.native is not None
    assert not ppo_native.not_covered(learner.actor)


def test_frozen_weights_are_left_to_torch():
    learner = make_learner()
    next(iter(learner.actor.policy.parameters())).requires_grad_(False)
    assert ppo_native.not_covered(learner.actor)


def test_replaced_layers_are_left_to_torch():
    class Scaled(nn.Linear):
        def forward(self, x):
            return 2.0 * super().forward(x)

    for name in ("actor", "critic"):
        learner = make_learner()
        old = getattr(learner.actor.policy, name)
        setattr(learner.actor.policy, name, Scaled(old.in_features, old.out_features))
        assert ppo_native.not_covered(learner.actor)


# ---- threads ----


def learned(threads, variant="", epochs=3, **case):
    """The bytes of the weights, the optimizer's state and the metrics after learning, and of a step of acting."""
    learner = make_learner(**case)
    play(learner)
    shake(learner.actor.policy.parameters(), 0.15, 10)
    native = learner.native = NativePPO(learner.actor, learner.rollout, learner, threads=threads, variant=variant)
    native.pace = FixedPace(threads)
    assert native.threads.count == threads
    sums = learn(learner, epochs)
    native.begin()
    views = StepViews(learner.rollout, 1, slice(None))
    native.act(views)
    native.last_values()
    rollout = learner.rollout
    parts = [views.logits, views.values, views.actions, *rollout.state, rollout.values[-1]]
    parts += [learner.weights.data, learner.weights.grad, *learner.optimizer.state.values(), sums]
    return [part.clone() for part in parts]


THREAD_CASES = {
    "mlp": {"rows": 150, "net": {"hidden": 100}},
    "mlp, muon": {"rows": 60, "net": {"hidden": 72, "layers": 3}, "optimizer": "muon"},
    "separate, box": {"rows": 60, "net": {"separate": True, "std": "state"}, "actions": "box", "optimizer": "adamw"},
    "free std": {"rows": 130, "net": {"layers": 1}, "actions": "dict", "obs": "dict"},
    "lstm": {"rows": 45, "net": {"core": "lstm", "core_size": 32}, "optimizer": "muon"},
    "mingru": {"rows": 45, "net": {"core": "mingru", "core_size": 48}, "has_dead_rows": True},
    "few rows": {"rows": 3, "minibatches": 4},
}


@pytest.mark.parametrize("case", THREAD_CASES)
def test_the_number_of_threads_changes_no_bit(case):
    for variant in VARIANTS if case == "mlp" else VARIANTS[-1:]:
        alone, *others = [learned(threads, variant, **THREAD_CASES[case]) for threads in (1, 2, 3, 7)]
        for other in others:
            assert all(torch.equal(a, b) for a, b in zip(alone, other))


def _learn_in_child(native, learner, pipe):
    torch.set_num_threads(1)
    native.pace = FixedPace(3)
    learn(learner)
    pipe.send(learner.weights.data.numpy().tobytes())


def test_a_forked_child_learns_the_same_without_the_threads():
    def prepared():
        learner = make_learner(rows=60)
        play(learner)
        learner.native = NativePPO(learner.actor, learner.rollout, learner, threads=3)
        learner.native.pace = FixedPace(3)
        return learner

    here, there = prepared(), prepared()
    learn(here)
    there.native.begin()  # its threads have worked
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()
    child = context.Process(target=_learn_in_child, args=(there.native, there, theirs))
    child.start()
    assert mine.poll(60)
    assert mine.recv() == here.weights.data.numpy().tobytes()
    child.join(30)
    assert child.exitcode == 0


# ---- builds ----


@pytest.mark.parametrize("case", THREAD_CASES)
def test_builds_agree_but_for_rounding(case):
    first, *others = [learned(1, variant, epochs=1, **THREAD_CASES[case]) for variant in VARIANTS]
    for other in others:
        for a, b in zip(first, other):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_build_is_torchs(variant):
    for net in ("3 layers of 100", "lstm, other width", "mingru", "separate, 3 layers, tanh"):
        by_c, by_torch = make_twins(**case_of(net, optimizer="muon", rows=37))
        by_c.native = NativePPO(by_c.actor, by_c.rollout, by_c, variant=variant)
        sums = [learn(learner) for learner in (by_c, by_torch)]
        torch.testing.assert_close(sums[0], sums[1], rtol=2e-4, atol=2e-5)
        assert_twins(by_c, by_torch)


def test_a_variable_limits_the_build(monkeypatch):
    for name in VARIANTS:
        monkeypatch.setenv("SHOAL_SIMD", name)
        assert lib.best_variant(build.PPO_SOURCE) == name
    monkeypatch.setenv("SHOAL_SIMD", "")
    assert lib.best_variant(build.PPO_SOURCE) == VARIANTS[-1]
    for bad in ("avx", "AVX2", "sse"):
        monkeypatch.setenv("SHOAL_SIMD", bad)
        with pytest.raises(ConfigError, match=f"SHOAL_SIMD={bad} is none of base, avx2, avx512"):
            lib.best_variant(build.PPO_SOURCE)


def test_it_compiles_without_warnings_for_any_machine():
    """With the flags of a machine that is not an x86, and strict warnings."""
    command = [*build.find_compiler(), *build.FLAGS, "-ffp-contract=fast", "-std=gnu11", f"-I{build.NATIVE}"]
    command += ["-Wall", "-Wextra", "-Wpedantic", "-Wno-psabi", "-Wno-unused-function", "-Werror", "-fsyntax-only"]
    done = subprocess.run([*command, *build.PPO_SOURCE.c_files()], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---- sanitizers ----


def test_it_is_clean_under_sanitizers(tmp_path):
    """Acts and learns with a build that stops at invalid memory accesses and undefined behaviour."""
    runtime = subprocess.run(
        [*build.find_compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True
    ).stdout.strip()
    if not Path(runtime).is_file():
        pytest.skip("this compiler has no sanitizer runtime")
    library = tmp_path / "ppo.so"
    flags = ["-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    build.run_compiler(build.compile_command(build.PPO_SOURCE, VARIANTS[-1], library, flags), build.PPO_SOURCE)
    env = os.environ | {
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.ppo_sanitized", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, timeout=200)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "clean" in done.stdout


# ---- whole runs ----


@pytest.mark.parametrize(("nn", "optimizer"), [({}, "adam"), ({"core": "lstm", "core_size": 16}, "muon")], ids=str)
def test_a_resumed_run_is_the_run_that_was_not_stopped(tmp_path, monkeypatch, nn, optimizer):
    """Also with another number of threads."""

    def use(threads):
        def make(learner):
            native = NativePPO(learner.actor, learner.rollout, learner, threads=threads)
            native.pace = FixedPace(threads)
            made.append(native)
            return native

        monkeypatch.setattr(ppo.fast, "native_ppo", make)

    made = []
    options = {"nn": {"hidden": 16, **nn}, "train": {"optimizer": optimizer}}
    use(2)
    whole = train_tiny("cartpole", tmp_path / "whole", **options)
    assert made
    stopped = train_tiny("cartpole", tmp_path / "stopped", **options)
    run = cut(stopped, 3)
    use(3)
    resumed = train("cartpole", resume=run.folder, console="off")
    assert contents(resumed) == contents(whole)


@pytest.mark.parametrize("nn", [{}, {"core": "mingru", "core_size": 32}, {"separate": True}], ids=str)
def test_a_run_is_torchs(monkeypatch, nn):
    """A few updates of a whole run: collecting and learning."""

    def weights(by_c):
        if not by_c:
            monkeypatch.setattr(ppo.fast, "native_ppo", lambda learner: None)
        t = make_trainer("cartpole", **tiny(nn={"hidden": 16, **nn}, train={"adam_eps": 1e-2, "learning_rate": 1e-3}))
        learner = t.learners[0]
        assert (learner.native is not None) == by_c
        for _ in range(4):
            t.iterate()
        t.close()
        return learner.weights.data

    torch.testing.assert_close(weights(True), weights(False), rtol=1e-3, atol=1e-4)
