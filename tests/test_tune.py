"""autotune and profile: they try what suits the env, and what they say can be done and adds up."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import shoal
from shoal.tune import profile

from . import slow


def test_autotune_of_a_python_env():
    tuning = shoal.autotune("gymnasium:CartPole-v1", 8, seconds=0.05, repeats=2)
    names = [setting.name for setting in tuning.settings]
    assert "serial" in names
    assert any(name.startswith("process, 2 workers") for name in names)
    rates = [setting.steps_per_s for setting in tuning.settings]
    assert rates == sorted(rates, reverse=True)
    assert 1 < tuning.step_us < 1000
    vec = eval(tuning.call, {"shoal": shoal})
    vec.reset(seed=0)
    vec.close()
    assert "us per step" in tuning.why


def test_a_cheap_env_is_told_to_stay_serial():
    tuning = shoal.autotune(slow.Instant, 2, seconds=0.1, repeats=2)
    assert tuning.best.name == "serial"
    assert "serial is fastest" in tuning.why
    assert tuning.call == "shoal.make(Instant, num_envs=2, backend='serial')"


def test_a_slow_env_is_told_to_use_processes():
    tuning = shoal.autotune(slow.Sleepy, 4, seconds=0.3, repeats=2)
    assert tuning.best.options["backend"] == "process"
    assert tuning.step_us > 900


def test_autotune_of_a_native_env():
    tuning = shoal.autotune("cartpole", 64, seconds=0.05, repeats=2)
    assert {setting.options["backend"] for setting in tuning.settings} <= {"serial", "threads"}
    serial = next(setting for setting in tuning.settings if setting.name == "serial")
    assert tuning.step_us * serial.steps_per_s == pytest.approx(1e6)  # not a call from Python for one env
    assert "processes" not in tuning.why


def test_profile_adds_up():
    parts = profile("gymnasium:CartPole-v1", 8, seconds=0.1)
    assert [part.name for part in parts] == ["env", "copy", "python", "wait"]
    assert sum(part.share for part in parts) == pytest.approx(1.0, abs=0.01)
    sleepy = {part.name: part for part in profile(slow.Sleepy, 4, num_workers=2, seconds=0.2)}
    assert sleepy["env"].us >= 500.0  # a step of 1 ms, over two workers: on a busy machine the wait may be longer still
    assert sleepy["env"].share > sleepy["copy"].share


def test_profile_is_for_python_envs():
    with pytest.raises(shoal.ShoalError, match="shoal bench env"):
        profile("cartpole")


def test_unflatten_is_public():
    space = gymnasium.spaces.Dict({"a": gymnasium.spaces.Box(-1, 1, (2,), np.float32)})
    assert shoal.unflatten(np.zeros((3, 8), np.uint8), space)["a"].shape == (3, 2)
