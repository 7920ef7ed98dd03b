"""Envs, policies and loggers of the user by name: found, stored, found again, and what is said where they are not."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import shoal
from shoal import names, registry, runs
from shoal.cli.main import main
from shoal.entry import place_of_env
from shoal.errors import ConfigError, EnvCrashed, UnknownEnv
from shoal.log import base
from shoal.nn.policy import Policy
from shoal.train import load_player, options_for, train
from shoal.train.named import find_policy

from . import envs
from .training import contents, cut, tiny

MINE = """
    import gymnasium
    import numpy as np
    from dataclasses import dataclass
    from gymnasium import spaces
    from shoal.config import opt
    from shoal.log import Logger
    from helper_of_names import LENGTH

    class Env(gymnasium.Env):
        def __init__(self, size: int = 4, bonus: float = 0.0):
            self.observation_space = spaces.Box(-1, 1, (size,), np.float32)
            self.action_space, self.bonus = spaces.Discrete(2), bonus

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.count = 0
            return self.observation_space.low * 0, {}

        def step(self, action):
            self.count += 1
            reward = float(action) + self.bonus
            return self.observation_space.high * self.count / 10, reward, self.count == LENGTH, False, {}

    def make_env(size: int = 4):
        return Env(size)

    def make_nothing():
        return None

    def needs_level(level, /):
        return Env()

    class Level:
        pass

    @dataclass(frozen=True)
    class LinesOptions:
        path: str = opt("lines.txt", "file in the run's folder")

    class Lines(Logger):
        options = LinesOptions

        def __init__(self, facts, options):
            self.path = facts.folder / options.path

        def log(self, record):
            with self.path.open("a") as file:
                file.write(f"{record['step']}\\n")

    class Odd(Logger):
        def __init__(self, one, two, three):
            pass

    env, SIZE = Env(), 3
"""
POLICIES = """
    import torch

    SIZE = 3

    class Policy(torch.nn.Module):
        def __init__(self, observation_space, action_space):
            super().__init__()
            self.actor = torch.nn.Linear(observation_space.shape[0], int(action_space.n))
            self.critic = torch.nn.Linear(observation_space.shape[0], 1)

        def forward(self, obs):
            return self.actor(obs), self.critic(obs)

    def bad_policy(observation_space, action_space):
        return "policy"

    def one_space(observation_space):
        return None
"""
SCRIPT = """
    import gymnasium
    class Env(gymnasium.Env): pass
    run = None
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with the file own_names.py. What is imported from it is forgotten afterwards."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "own_names.py").write_text(textwrap.dedent(MINE))
    (here / "own_policies.py").write_text(textwrap.dedent(POLICIES))
    (here / "helper_of_names.py").write_text("LENGTH = 5\n")
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = set(sys.modules)
    yield here
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


# ---- forms of names ----


def test_what_is_a_name():
    for name in ("mine:Env", "package.module:Env", "./mine.py:Env", "../a b/my-env.py:Env.Inner", "/x/mine.py:f"):
        assert names.is_name(name), name
    for name in (
        "cartpole",
        "./my_env.h",
        "gymnasium:CartPole-v1",
        "pettingzoo:butterfly/x_v6",
        "mine.py",
        ":Env",
        "x:",
    ):
        assert not names.is_name(name), name


def test_what_is_native():
    assert all(map(registry.is_native, ("cartpole", "./my_env.h", "/a:b/my_env.h", Path("x.h"))))
    assert not any(map(registry.is_native, ("mine:Env", "./mine.py:Env", "gymnasium:a:B-v0", envs.CounterEnv)))


@pytest.mark.parametrize("name", ["own_names:Env", "./own_names.py:Env", "own_names.py:Env", "{here}/own_names.py:Env"])
def test_all_forms_find_the_same_class_from_any_folder(name, folder, monkeypatch, tmp_path):
    name = name.format(here=folder)
    found = names.find(name)
    assert found.__name__ == "Env"
    stored = names.absolute(name)
    assert stored == f"{folder}/own_names.py:Env"
    assert names.place_of(found).name == stored
    assert names.shortened(stored) == "./own_names.py:Env"
    monkeypatch.chdir(tmp_path)
    assert names.find(stored) is found
    assert names.shortened(stored) == "./here/own_names.py:Env"


def test_modules_of_packages_and_files_of_any_name(folder):
    (folder / "pack_names").mkdir()
    (folder / "pack_names" / "__init__.py").write_text("class Base: pass\n")
    (folder / "pack_names" / "deep.py").write_text("from . import Base\nclass Deep(Base):\n    class Inner: pass\n")
    (folder / "my-env.py").write_text("class Env: pass\n")
    (folder / "json.py").write_text("class Env: pass\n")  # the name of a module that is imported already
    for name in (
        "pack_names:Base",
        "pack_names.deep:Deep",
        "pack_names/deep.py:Deep.Inner",
        "my-env.py:Env",
        "json.py:Env",
    ):
        found = names.find(name)
        stored = names.absolute(name)
        assert stored.startswith(str(folder))
        assert names.find(stored) is found
        assert names.place_of(found).name == stored
    assert names.find("pack_names.deep:Deep") is names.find("./pack_names/deep.py:Deep")
    assert names.absolute("collections:OrderedDict") == "collections:OrderedDict"  # installed: found from anywhere


def test_names_of_folders_of_runs():
    for name in ("own:Env", "./own.py:Env", "/a/b/own.py:Env", "package.own:Env", "/a/own/__init__.py:Env"):
        assert runs.folder_name(name) == "own-Env", name
    assert runs.folder_name("gymnasium:/a/own.py:Own-v0") == runs.folder_name("gymnasium:own:Own-v0")
    assert runs.folder_name("gymnasium:CartPole-v1") == "gymnasium-CartPole-v1"
    assert runs.folder_name("pettingzoo:butterfly/pistonball_v6") == "pettingzoo-butterfly-pistonball_v6"


# ---- envs ----


def rollout(env, **options):
    vec = shoal.make(env, 2, seed=3, **options)
    obs = [vec.reset()[0]]
    obs += [vec.step(np.ones(2, np.int64))[0] for _ in range(7)]
    vec.close()
    return np.stack(obs)


def test_every_form_of_env_is_made(folder):
    expected = rollout(names.find("own_names:Env"), backend="serial")
    for name in ("own_names:Env", "./own_names.py:Env", "own_names:make_env"):
        assert np.array_equal(rollout(name, backend="serial"), expected)
    assert rollout("own_names:Env", backend="serial", size=7).shape == (8, 2, 7)


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_workers_find_it_too(start_method, folder, monkeypatch):
    expected = rollout("own_names:Env", backend="serial")
    options = {"backend": "process", "num_workers": 1, "start_method": start_method}
    assert np.array_equal(rollout("./own_names.py:Env", **options), expected)


def test_envs_with_several_agents_and_vector_envs(folder):
    with open(folder / "more_names.py", "w") as file:
        file.write("from tests.envs import DyingAgentsEnv as Agents\n")
        file.write("from gymnasium.vector import AutoresetMode, SyncVectorEnv\nfrom tests.envs import CounterEnv\n")
        file.write("def vector():\n    mode = AutoresetMode.SAME_STEP\n")
        file.write("    return SyncVectorEnv([CounterEnv] * 3, autoreset_mode=mode)\n")
    vec = shoal.make("more_names:Agents", 2, backend="serial")
    assert vec.agents_per_env == 4
    vec.close()
    vec = shoal.make("more_names:vector", 2, backend="serial")
    assert vec.num_envs == 6  # two vector envs of three
    vec.close()


def test_ids_of_gymnasium_that_a_module_registers(folder, monkeypatch, tmp_path):
    (folder / "ids_of_names.py").write_text(
        "import gymnasium\nif 'OwnNames-v0' not in gymnasium.registry:\n"
        "    gymnasium.register('OwnNames-v0', 'own_names:Env', max_episode_steps=3)\n"
    )
    expected = rollout("gymnasium:ids_of_names:OwnNames-v0", backend="serial")
    assert len(expected[0, 0]) == 4
    for name in (
        "gymnasium:ids_of_names:OwnNames-v0",
        "ids_of_names:OwnNames-v0",
        "gymnasium:./ids_of_names.py:OwnNames-v0",
    ):
        assert np.array_equal(rollout(name, backend="serial"), expected)
        stored = place_of_env(name).name
        assert stored == f"gymnasium:{folder}/ids_of_names.py:OwnNames-v0"
    del gymnasium.registry["OwnNames-v0"], sys.modules["ids_of_names"]
    monkeypatch.chdir(tmp_path)
    assert np.array_equal(rollout(stored, backend="serial"), expected)
    del gymnasium.registry["OwnNames-v0"]
    with pytest.raises(UnknownEnv, match="was imported and has not registered it"):
        shoal.make(f"gymnasium:{folder}/own_names.py:OwnNames-v0")


def test_prefixes_win_over_modules(folder):
    (folder / "pettingzoo.py").write_text("class Env: pass\n")
    with pytest.raises(UnknownEnv, match="gymnasium:Env"):
        shoal.make("gymnasium:Env")
    with pytest.raises(ConfigError, match="pettingzoo:Env"):
        shoal.make("pettingzoo:Env")


ENV_MISTAKES = [
    (
        "own_name:Env",
        r"own_name cannot be imported: ModuleNotFoundError.*Did you mean 'own_names'.*current folder is /",
    ),
    ("own_name.py:Env", r"no file own_name.py in the current folder, /.*Did you mean 'own_names.py'"),
    ("own_names:Enf", "own_names has no 'Enf'. Did you mean 'Env'"),
    (
        "own_names:Level",
        "'own_names:Level' is a class without reset and step, so it is no env. Name one of a gymnasium.Env",
    ),
    ("own_names:SIZE", "is int 3, not a class or function that makes an env"),
    ("own_names:env", "Name its class, or a function that makes it"),
    ("own_names:needs_level", "needs level, which has no default. Give --env.level VALUE, or name a function"),
    ("own_names:make_nothing", "None is not an env that Shoal can step: it has no reset, step"),
    ("failing:Env", r"failing cannot be imported: ZeroDivisionError: division by zero \(.*failing.py, line 2\)"),
    ("leaving:Env", "leaving ended itself when it was imported .exit code 3.*__main__"),
    ("own_names.py", "a Python file without the name of its env. Did you mean 'own_names.py:Env' or"),
    ("own_names", "Did you mean 'own_names:Env' or"),
    ("gymnasiun:CartPole", "gymnasiun cannot be imported"),
    ("a b:c d", "Known prefixes: ale, atari, .*gym, gymnasium, .*pettingzoo.*. Your own env: mine:Env"),
]


@pytest.mark.parametrize(("name", "says"), ENV_MISTAKES)
def test_envs_that_cannot_be_made(name, says, folder):
    (folder / "failing.py").write_text("import os\n1 / 0\n")
    (folder / "leaving.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises((ConfigError, EnvCrashed), match=says):
        shoal.make(name, backend="serial")


def test_params_are_checked_against_the_constructor(folder):
    with pytest.raises(
        ConfigError, match=r"own_names:Env has no param 'sizes'. Did you mean 'size'\? It has size, bonus"
    ):
        shoal.make("own_names:Env", sizes=3)


def test_help_shows_the_params_of_a_named_env(folder, capsys):
    assert main(["train", "own_names:Env", "--help"]) == 0
    out = capsys.readouterr().out
    assert "Params of ./own_names.py:Env, and their defaults:\n    --env.size  4\n    --env.bonus  0.0" in out


def test_a_dot_in_place_of_the_colon(folder):
    with pytest.raises(UnknownEnv, match=r"'own_names\.Env'\. Did you mean 'own_names:Env'\?"):
        registry.find("own_names.Env")


def test_headers_are_asked_for_by_name(folder, capsys):
    assert main(["check", "own_names:Env"]) == 2
    assert "is a Python env" in capsys.readouterr().err


# ---- names of what Python passes ----


class Local(torch.nn.Module):
    """A policy that can be imported."""

    def __init__(self, observation_space, action_space):
        super().__init__()
        self.net = Policy(observation_space, shoal_head(action_space), options_for("").nn)

    def forward(self, obs):
        return self.net(obs)


def shoal_head(space):
    from shoal.nn.distributions import ActionHead

    return ActionHead(space)


def test_what_has_no_name_has_a_reason(monkeypatch, tmp_path):
    def inner():
        pass

    assert names.place_of(envs.CounterEnv).name.endswith("/tests/envs.py:CounterEnv")
    assert names.place_of(gymnasium.Wrapper).name == "gymnasium.core:Wrapper"
    assert "is a lambda" in names.place_of(lambda: 0).reason
    assert "inside a function (test_what" in names.place_of(inner).reason
    assert "an object of CounterEnv" in names.place_of(envs.CounterEnv()).reason
    gone = type("Gone", (), {"__module__": __name__})
    assert "another object or does not exist" in names.place_of(gone).reason


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("if __name__ == '__main__':\n    pass\n", ""),
        ("", "would train again when it is imported"),
        ("run = train(Env)\nif __name__ == '__main__':\n    pass\n", "would train again when it is imported"),
        ("print(1)\nif __name__ == '__main__':\n    pass\n", "would train again when it is imported"),
        (None, "at a prompt or in a notebook"),
    ],
)
def test_classes_of_a_script_are_found_if_it_can_be_imported(end, reason, monkeypatch, tmp_path):
    script, here = tmp_path / "script.py", sys.modules["__main__"]
    script.write_text(textwrap.dedent(SCRIPT) + (end or ""))
    monkeypatch.setattr(here, "__file__", str(script) if end is not None else None, raising=False)
    place = names.place_of(type("Env", (), {"__module__": "__main__"}))
    assert (place.name == f"{script}:Env") if not reason else (not place.name and reason in place.reason)


# ---- runs ----


def words(*more):
    return [
        *"--vec.num-envs 4 --vec.backend serial --vec.torch-threads 1 --train.horizon 8 --device cpu".split(),
        *more,
    ]


def test_a_run_by_name_is_evaluated_and_resumed_from_another_folder(folder, monkeypatch, tmp_path, capsys):
    mine = "--nn.policy own_policies:Policy --log ./own_names.py:Lines --lines.path x.txt --env.bonus 1".split()
    few = ["--train.total-steps", "64", "--eval.episodes", "2", "--console", "lines"]
    assert main(["train", "own_names:Env", *words(*mine, *few)]) == 0
    out = capsys.readouterr().out
    assert "shoal train ./own_names.py:Env --resume" in out
    run = runs.find("own_names:Env")
    assert run.facts["env"] == f"{folder}/own_names.py:Env"
    assert run.config["nn"]["policy"] == f"{folder}/own_policies.py:Policy"
    assert (run.folder / "x.txt").read_text().startswith("32\n")
    assert main(["runs"]) == 0
    monkeypatch.chdir(tmp_path)
    player, kwargs = load_player(runs.Run(folder / run.folder))
    assert type(player.actors[0].policy).__name__ == "Policy"
    assert kwargs["bonus"] == 1
    assert main(["eval", str(folder / run.folder), "--episodes", "1"]) == 0
    # 5 steps a game, of which each returns the bonus of 1 and at most 1 for the action
    assert "own_names-Env, run" in capsys.readouterr().out
    again = [
        "--resume",
        str(folder / run.folder),
        "--train.total-steps",
        "96",
        "--eval.episodes",
        "0",
        "--console",
        "off",
    ]
    assert main(["train", *again]) == 0
    assert runs.Run(folder / run.folder).metrics()[-1]["step"] == 96


def test_a_run_of_a_header_is_evaluated_and_resumed_from_another_folder(monkeypatch, tmp_path, capsys):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "here" / "own.h").write_text(registry.find("squared").read_text())
    monkeypatch.chdir(tmp_path / "here")
    few = ["--train.total-steps", "64", "--eval.episodes", "2", "--console", "lines"]
    assert main(["train", "./own.h", *words(*few)]) == 0
    assert "shoal train ./own.h --resume" in capsys.readouterr().out
    run = runs.Run(runs.find("./own.h").folder.resolve())
    assert run.facts["env"] == f"{tmp_path}/here/own.h"
    monkeypatch.chdir(tmp_path / "there")
    assert main(["eval", str(run.folder), "--episodes", "1", "--video", "none"]) == 0
    assert main(["train", "--resume", str(run.folder), "--train.total-steps", "96", "--console", "off"]) == 0
    assert runs.Run(run.folder).metrics()[-1]["step"] == 96
    monkeypatch.chdir(tmp_path / "here")
    run.write("run.json", {**run.facts, "env": "./own.h"})  # as older versions stored it
    again = ["--resume", str(run.folder), "--train.total-steps", "128", "--console", "off"]
    assert main(["train", "own.h", *again]) == 0
    assert main(["train", "squared", *again]) == 2
    assert "is a run of ./own.h, not of squared" in " ".join(capsys.readouterr().err.split())


def test_a_run_with_a_named_policy_resumes_exactly(tmp_path):
    tables = tiny(nn={"policy": "tests.test_names:Local"})
    whole = train("cartpole", runs_folder=tmp_path, console="off", **tables)
    expected = contents(whole)
    again = train("cartpole", resume=cut(whole, 3), runs_folder=tmp_path, console="off")
    assert contents(again) == expected


def test_classes_that_python_passes_are_stored_by_name(tmp_path, capsys):
    options = {"runs_folder": tmp_path, "console": "lines", **tiny(vec={"backend": "serial"})}
    run = train(envs.CounterEnv, policy=Local, **options)
    assert run.folder.parent.name == "CounterEnv"
    assert run.facts["env"].endswith("/tests/envs.py:CounterEnv")
    assert run.config["nn"]["policy"].endswith("/tests/test_names.py:Local")
    assert isinstance(load_player(run)[0].actors[0].policy, Local)
    out = capsys.readouterr().out
    assert "shoal eval" in out
    assert "tests/envs.py:CounterEnv --resume" in out
    assert "cannot be found" not in out


def test_a_run_without_names_gives_no_command_that_cannot_work(tmp_path, capsys):
    """Defect 34: the run of an env that was a function ended with `shoal eval ID`, which failed."""
    options = {"runs_folder": tmp_path, "console": "lines", **tiny(vec={"backend": "serial"})}
    policy = Local(envs.CounterEnv().observation_space, envs.CounterEnv().action_space)
    run = train(lambda: envs.CounterEnv(), policy=policy, **options)
    start, _, end = capsys.readouterr().out.partition("Finished")
    assert "the env cannot be found again by name: it is a lambda; 'shoal eval'" in start
    assert "the policy cannot be found again by name: it is an object of Local" in start
    assert "shoal eval 2" not in end
    assert "shoal train" not in end
    assert f"train(..., resume='{run.folder}')" in end
    for command in (["eval", str(run.folder)], ["train", "--resume", str(run.folder)]):
        assert main(command) == 2
        assert "it is a lambda. Continue or evaluate it from Python: train(" in capsys.readouterr().err
    again = tiny(vec={"backend": "serial"}, train={"total_steps": 900})
    train(lambda: envs.CounterEnv(), policy=policy, resume=run, runs_folder=tmp_path, console="off", **again)


POLICY_MISTAKES = [
    ("own_policies:one_space", r"takes \(observation_space\), but is called with \(observation_space, action_space\)"),
    ("own_policies:SIZE", "is int, not a policy. Name a class or function of"),
    ("own_policies:Polic", "--nn.policy 'own_policies:Polic': own_policies has no 'Polic'. Did you mean 'Policy'"),
    ("mlp", "--nn.policy 'mlp' is not the name of a class or function. Write mine:NAME or ./mine.py:NAME"),
]


@pytest.mark.parametrize(("name", "says"), POLICY_MISTAKES)
def test_policies_that_cannot_be_made(name, says, folder):
    with pytest.raises(ConfigError, match=says):
        find_policy(name)


def test_a_policy_is_a_module(folder):
    with pytest.raises(ConfigError, match="bad_policy made str, not an nn.Module"):
        find_policy("own_policies:bad_policy")(None, None)


# ---- loggers ----

LOGGER_MISTAKES = [
    ("own_names:Env", "is a class without log, note, not a logger. Name a subclass of shoal.log.Logger"),
    ("own_names:SIZE", "is int, not a logger"),
    ("own_names:Odd", r"takes \(one, two, three\), but is made with \(facts, options\)"),
    ("own_names:Line", "--log 'own_names:Line': own_names has no 'Line'. Did you mean 'Lines'"),
    ("tensorbord", "no logger 'tensorbord'. Did you mean 'tensorboard'.*or your own: mine:Logger"),
]


@pytest.mark.parametrize(("name", "says"), LOGGER_MISTAKES)
def test_loggers_that_cannot_be_opened(name, says, folder):
    with pytest.raises(ConfigError, match=says):
        base.check([name])


def test_an_option_of_an_own_logger_is_checked(folder):
    with pytest.raises(ConfigError, match="has no option 'pat'. Did you mean 'path'"):
        base.check(["own_names:Lines"], {"own_names:Lines": {"pat": "x"}})


# ---- other commands ----


def test_commands_that_measure_take_names(folder, capsys):
    short = ["--seconds", "0.02", "--repeats", "1"]
    assert main(["bench", "env", "own_names:Env", "--num-envs", "2", "--backends", "serial", *short]) == 0
    assert "shoal tune own_names:Env" in capsys.readouterr().out
    assert main(["bench", "env", "own_names:Enw"]) == 2


def test_the_command_finds_modules_of_the_current_folder(folder):
    """As a console script, whose folder is the first of sys.path in place of the current one."""
    code = "import sys; sys.path.pop(0); import shoal; shoal.make('own_names:Env', backend='serial').close()"
    environ = {**os.environ, "PYTHONPATH": str(Path(shoal.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environ)


def test_what_shoal_itself_brings_is_stored_by_its_module_also_from_a_source_checkout():
    stock = "shoal.integrations.nethack_explorer:Explorer"
    assert names.absolute(stock) == stock
    assert names.place_of(names.find(stock)).name == stock
