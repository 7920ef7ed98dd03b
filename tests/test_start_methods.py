"""The default start method of worker processes is safe: no fork of a process with threads."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path

import cloudpickle
import gymnasium
import pytest

import shoal
from shoal.vector import start_methods
from tests.envs import CounterEnv

linux = pytest.mark.skipif(sys.platform != "linux", reason="fork is the default on Linux only")


def run_script(tmp_path, text, timeout=100):
    """Runs a user's script, which has no `if __name__ == "__main__"` guard."""
    script = tmp_path / "user_script.py"
    script.write_text(textwrap.dedent(text))
    env = {**os.environ, "PYTHONPATH": str(Path(shoal.__file__).parents[1])}
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=timeout, env=env)


TORCH_ENV = """
import gymnasium, numpy as np, torch
import shoal

print("script runs", flush=True)
torch.set_num_threads(2)
big = torch.rand(600, 600)
(big @ big).sum().item()  # torch's threads exist now, and hold locks that a fork would copy
torch.nn.functional.conv2d(torch.rand(8, 3, 64, 64), torch.rand(16, 3, 3, 3)).sum().item()

class TorchEnv(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return self.look(), {}

    def step(self, action):
        return self.look(), 0.0, False, False, {}

    def look(self):
        pixels = torch.rand(600, 600)
        return np.tanh((pixels @ pixels).sum().numpy()[None]).astype(np.float32)

vec = shoal.make(lambda: TorchEnv(), 2, num_workers=2, timeout_s=60)
vec.reset(seed=0)
for _ in range(3):
    vec.step([0, 1])
print("method", vec.start_method)
vec.close()
"""


@linux
def test_an_env_with_torch_does_not_hang_after_the_parent_used_torch(tmp_path):
    run = run_script(tmp_path, TORCH_ENV)
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.count("script runs") == 1  # workers never run the script
    assert "method forkserver" in run.stdout


REGISTERED = """
import os
import gymnasium, numpy as np
import shoal
import torch

class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.array([float(os.environ["MINE"])], np.float32), {"folder": os.getcwd()}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}

gymnasium.register("Mine-v0", Mine)
gymnasium.register("Locked-v0", lambda: Mine(), kwargs={"lock": __import__("threading").Lock()})  # cannot be pickled
first = shoal.make("gymnasium:CartPole-v1", 2, num_workers=1)  # the server runs from here on
first.close()
os.environ["MINE"] = "7"
os.chdir("/")
for env in ("gymnasium:Mine-v0", lambda: gymnasium.make("Mine-v0"), Mine):
    vec = shoal.make(env, 2, num_workers=2)
    assert vec.start_method == "forkserver"
    obs, infos = vec.reset(seed=0)
    assert obs.tolist() == [[7.0], [7.0]], obs
    assert list(infos["folder"]) == ["/", "/"]
    vec.close()
print("done")
"""


@linux
def test_workers_have_the_ids_variables_and_folder_of_their_parent(tmp_path):
    run = run_script(tmp_path, REGISTERED)
    assert run.returncode == 0, run.stderr[-2000:]
    assert "done" in run.stdout


@linux
def test_the_default_is_fork_only_without_threads(monkeypatch):
    for name in start_methods.THREADED_LIBRARIES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert threading.active_count() == 1
    assert start_methods.default_start_method() == "fork"
    monkeypatch.setitem(sys.modules, "torch", sys)
    assert start_methods.default_start_method() == "forkserver"
    monkeypatch.delitem(sys.modules, "torch")
    leave = threading.Event()
    thread = threading.Thread(target=leave.wait)
    thread.start()
    try:
        assert start_methods.default_start_method() == "forkserver"
    finally:
        leave.set()
        thread.join()


def test_a_creator_that_cannot_be_pickled_is_refused_with_the_reason():
    lock = threading.Lock()
    with pytest.raises(shoal.errors.ConfigError, match=r"cannot be pickled for start_method='forkserver'.*lock"):
        shoal.make(lambda: (lock, CounterEnv())[1], 2, num_workers=1, start_method="forkserver")


@linux
@pytest.mark.parametrize("imports_torch", [False, True])
def test_workers_share_one_import_of_torch(tmp_path, imports_torch):
    """The fork server imports it for all workers, where the env's module does; else no worker has it."""
    (tmp_path / "mine.py").write_text(
        textwrap.dedent(
            f"""
            import sys
            import gymnasium, numpy as np
            {"import torch" if imports_torch else ""}

            class Env(gymnasium.Env):
                observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
                action_space = gymnasium.spaces.Discrete(2)

                def reset(self, *, seed=None, options=None):
                    return np.zeros(1, np.float32), {{"has_torch": "torch" in sys.modules}}

                def step(self, action):
                    return np.zeros(1, np.float32), 0.0, False, False, {{}}
            """
        )
    )
    script = """
        import sys
        sys.path.insert(0, {folder!r})
        import torch, mine, shoal
        from multiprocessing import forkserver

        vec = shoal.make(mine.Env, 2, num_workers=2)
        is_preloaded = "torch" in forkserver._forkserver._preload_modules
        print(vec.start_method, vec.reset(seed=0)[1]["has_torch"].tolist(), is_preloaded)
        vec.close()
    """
    done = run_script(tmp_path, script.format(folder=str(tmp_path)))
    assert done.stdout.split("\n")[0] == f"forkserver {[imports_torch] * 2} {imports_torch}", done.stderr


def test_a_library_may_register_the_ids_of_the_parent_again():
    """Workers of atari: printed 700 warnings each."""
    spec = gymnasium.envs.registration.EnvSpec("Shoal-Twice-v0", entry_point="somewhere:Env")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            start_methods.add_ids({spec.id: cloudpickle.dumps(spec)})
            assert spec.id in gymnasium.registry
            gymnasium.register(spec.id, entry_point="somewhere:Env")
        finally:
            gymnasium.registry.pop(spec.id, None)
