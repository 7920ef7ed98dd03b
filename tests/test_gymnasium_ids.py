"""Edges: Gymnasium ids."""

from __future__ import annotations

import os
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

import shoal
from shoal import registry
from shoal.cli import pages
from shoal.cli.new import write_header
from shoal.errors import ConfigError, UnknownEnv


def test_specs_can_be_serialised():
    assert gymnasium.make("shoal/Cartpole-v0").spec.to_json()


def test_time_limits_of_make_and_make_vec():
    env = gymnasium.make("shoal/Pendulum-v0", max_steps=300)
    env.reset(seed=0)
    steps = 1
    while not env.step(np.zeros(1, np.float32))[3]:
        steps += 1
    assert steps == 300
    vec = gymnasium.make_vec("shoal/Pendulum-v0", num_envs=1, max_episode_steps=7)
    vec.reset(seed=0)
    assert [bool(vec.step(np.zeros((1, 1), np.float32))[3]) for _ in range(7)] == [False] * 6 + [True]


def test_single_env_refuses_num_envs():
    with pytest.raises((ConfigError, TypeError)):
        gymnasium.make("shoal/Cartpole-v0", num_envs=4)


def test_a_registered_header_in_spawned_workers(tmp_path):
    header = write_header("my_env", tmp_path)
    script = tmp_path / "main.py"
    script.write_text(f"""
import gymnasium, shoal
if __name__ == "__main__":
    shoal.register("my_env", {str(header)!r})
    vec = gymnasium.make_vec("shoal/MyEnv-v0", 2, vectorization_mode="async", vector_kwargs={{"context": "spawn"}})
    vec.reset(seed=0)
    vec.close()
""")
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0, done.stderr[-400:]


def test_a_page_names_only_ids_that_exist(tmp_path, monkeypatch):
    class Point:
        name, value = "coral", "reef:header"

        def load(self):
            return tmp_path / "coral.h"

    write_header("coral", tmp_path)
    monkeypatch.setattr(registry, "_from_packages", lambda: {"coral": Point()})
    id = pages.describe(registry.find("coral"))["gymnasium_id"]
    assert id is None or id in gymnasium.registry


def test_one_broken_package_does_not_hide_the_list(tmp_path, monkeypatch, capsys):
    from shoal.cli.main import main

    class Point:
        name, value = "coral", "reef:nothing"

        def load(self):
            raise AttributeError("module 'reef' has no attribute 'nothing'")

    monkeypatch.setattr(registry, "_from_packages", lambda: {"coral": Point()})
    assert main(["envs"]) == 0
    assert "cartpole" in capsys.readouterr().out


def test_asking_for_rows_does_not_close_the_envs(monkeypatch):
    """As gymnasium 1.1 to 1.2.3 do it: VectorEnv.__del__ closes."""
    from gymnasium.vector import VectorEnv

    monkeypatch.setattr(VectorEnv, "__del__", lambda self: None if self.closed else self.close(), raising=False)
    vec = shoal.make("forage", 2, seed=0)
    vec.rows().reset()
    vec.step(np.zeros((8, 2), np.int64))


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_an_id_may_name_the_module_that_registers_it(tmp_path, monkeypatch, backend):
    code = "import gymnasium\ngymnasium.register('Elsewhere-v3', 'gymnasium.envs.classic_control:PendulumEnv')\n"
    (tmp_path / "elsewhere_module.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    vec = shoal.make("gymnasium:elsewhere_module:Elsewhere-v3", 2, backend=backend)
    assert vec.reset(seed=0)[0].shape == (2, 3)
    vec.close()
    with pytest.raises(UnknownEnv, match="no_such_module"):
        shoal.make("gymnasium:no_such_module:Elsewhere-v3", 2)
