"""Every framework: its declaration; and where it is installed: make, steps, processes, seeds, render, training.

`scripts/frameworks` installs all of them and runs these tests; the usual run has those of the dev extra.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.cli.main import main
from shoal.errors import BadOutput, ConfigError, UnknownEnv
from shoal.integrations.framework import FRAMEWORKS, Framework, framework, wrong_version
from shoal.layout import map_leaves
from shoal.train import Trainer, options_for

from .roms import write_rom

STEPS = 300
# games that have no random numbers, so that seeds change nothing
WITHOUT_CHANCE = {("magent", "battle"), ("pyboy", "PokemonRed"), ("retro", "Airstriker-Genesis")} | {
    ("openspiel", "connect_four"),
    ("griddly", "Sokoban"),
    ("overcooked", "cramped_room"),
    ("microrts", "8x8/basesWorkers8x8"),
    ("pettingzoo", "classic/connect_four"),
}
ALL = [framework(prefix) for prefix in FRAMEWORKS.stock()]
ENVS = [(one.prefix, name) for one in ALL for name in (one.example, *one.also)]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]  # libraries of others warn, and are slow


@pytest.fixture(autouse=True)
def roms(tmp_path_factory, monkeypatch):
    """A Game Boy ROM of ours under the name of the example."""
    folder = tmp_path_factory.getbasetemp() / "roms"
    if not folder.exists():
        folder.mkdir()
        write_rom(folder / "PokemonRed.gb")
    monkeypatch.setenv("SHOAL_ROMS", str(folder))


def make(prefix: str, name: str, num_envs: int = 2, **options):
    """Envs of one example, if they can be made here."""
    one = framework(prefix)
    if problem := one.problem():
        pytest.skip(problem)
    if one.is_vectorized and options.get("backend") == "process":
        pytest.skip(f"{prefix} steps all envs at once, by itself")
    if options.get("render_mode") and not one.can_render:
        pytest.skip(f"{prefix} draws no frames")
    envs = 1 if one.is_one_per_process else num_envs
    try:
        return shoal.make(f"{prefix}:{name}", envs, **options)
    except ConfigError as error:
        if "nstall" in str(error):  # a family of the framework that needs another package
            pytest.skip(str(error))
        raise


def rollout(vec, steps: int, seed: int = 3):
    """What random actions give: copies of observations, rewards and flags."""
    vec.action_space.seed(1)
    obs, infos = vec.reset(seed=seed)
    results = [copied(obs)]
    assert_in_spaces(vec, obs, infos)
    for step in range(steps):
        obs, rewards, terminated, truncated, infos = vec.step(vec.action_space.sample())
        results.append((copied(obs), rewards.copy(), terminated.copy(), truncated.copy()))
        if step % 10 == 0:
            assert_in_spaces(vec, obs, infos)
    return results


def assert_in_spaces(vec, obs, infos):
    """Every agent that is in the game observes what its space holds."""
    names, count = vec.agent_spaces.agents, vec.agents_per_env
    for k, agent in enumerate(names):
        space = vec.agent_spaces.observation_spaces[k]
        for env in range(vec.num_envs):
            row = env * count + k
            if not infos.get("alive", np.ones(vec.num_rows, bool))[row]:
                continue
            own = (obs, row) if vec.agent_spaces.alike else (obs[agent], env)
            seen = map_leaves(lambda leaf, at=own[1]: leaf[at], own[0])
            assert space.contains(seen), (agent, env, space, seen)


def copied(obs):
    return {key: copied(part) for key, part in obs.items()} if isinstance(obs, dict) else np.array(obs)


def assert_same(left, right):
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for one, other in zip(left, right):
            assert_same(one, other)
    else:
        np.testing.assert_array_equal(left, right)


# ---- envs ----


@pytest.mark.parametrize(("prefix", "name"), ENVS)
def test_steps_and_seeds(prefix, name):
    """300 steps within the declared spaces; the same seed gives the same run, and another one another."""
    vec = make(prefix, name, backend="serial")
    first = rollout(vec, STEPS)
    assert_same(first[:31], rollout(vec, 30))
    if (prefix, name) not in WITHOUT_CHANCE:
        with pytest.raises(AssertionError):
            assert_same(first[:31], rollout(vec, 30, seed=4))
    vec.close()


# a worker imports the library, which takes seconds: the usual run has those of the dev extra
IN_DEV = ("atari", "babyai", "gymnasium", "minigrid", "pettingzoo")
PROCESSES = [pytest.param(*env, marks=[] if env[0] in IN_DEV else [pytest.mark.slow]) for env in ENVS]


@pytest.mark.parametrize(("prefix", "name"), PROCESSES)
def test_processes_give_the_same_results(prefix, name):
    serial = make(prefix, name, backend="serial")
    expected = rollout(serial, 60)
    serial.close()
    processes = make(prefix, name, backend="process")
    assert_same(expected, rollout(processes, 60))
    processes.close()


@pytest.mark.parametrize(("prefix", "name"), ENVS)
def test_render(prefix, name):
    vec = make(prefix, name, backend="serial", render_mode="rgb_array")
    vec.reset(seed=1)
    vec.step(vec.action_space.sample())
    frame = vec.call("render")[0]
    assert frame.ndim == 3
    assert frame.shape[2] == 3
    assert frame.dtype == np.uint8
    assert frame.std() > 0
    vec.close()


@pytest.mark.parametrize(("prefix", "name"), ENVS)
def test_one_iteration_of_training(prefix, name):
    """With the framework's network and options; only the sizes are small. Weights change and stay finite."""
    make(prefix, name, backend="serial").close()  # skips
    envs = 1 if framework(prefix).is_one_per_process else 2
    sizes = {"total_steps": 10_000, "horizon": 16, "epochs": 1, "minibatches": 1, "segment": 8}
    own = {"vec": {"num_envs": envs, "num_workers": 1, "backend": "serial", "torch_threads": 1}, "device": "cpu"}
    options = options_for(f"{prefix}:{name}", {**own, "train": sizes, "eval": {"episodes": 0}})
    trainer = Trainer(f"{prefix}:{name}", options)
    weights = trainer.learners[0].weights.detach().clone()
    trainer.iterate()
    after = trainer.learners[0].weights.detach()
    assert after.isfinite().all()
    assert not after.equal(weights)
    trainer.close()


# ---- declarations ----


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.prefix)
def test_declaration(one: Framework):
    assert one.title
    assert one.example
    assert one.packages
    assert one.commands
    extras = Path("pyproject.toml").read_text(encoding="utf-8")
    assert not one.extra or re.search(rf"^{one.extra} = \[", extras, re.MULTILINE)
    assert all("pip" in command for command in one.commands)


@pytest.mark.parametrize("one", [one for one in ALL if one.is_installed], ids=lambda one: one.prefix)
def test_names(one: Framework):
    names = one.names()
    assert len(names) == len(set(names))
    assert any(name.startswith(one.example) for name in names) or one.prefix == "pyboy"
    for name in [*names[:3], *(reference.env for reference in one.references)]:
        assert one.find(name) is not None
    with pytest.raises(UnknownEnv, match=one.prefix):
        one.find("NoSuchEnv_v99")


class Missing(Framework):
    title = "of no package"
    packages = {"no_such_package_of_envs": "no-such>=2"}  # noqa: RUF012
    install = ("pip install no-such",)


@pytest.mark.parametrize("one", [one for one in ALL if not one.is_installed], ids=lambda one: one.prefix)
def test_a_framework_that_is_not_installed_says_so(one: Framework, capsys):
    assert main(["train", f"{one.prefix}:{one.example}"]) == 2
    assert "Traceback" not in (told := capsys.readouterr().err)
    assert "nstall it: " in told or "Build it: " in told or "shoal env add" in told


def test_a_missing_package_names_the_command():
    with pytest.raises(ConfigError, match="no-such>=2 is not installed. Install it: pip install no-such"):
        Missing("missing").find("Env")


def test_a_missing_program_names_the_command():
    class NoProgram(Missing):
        packages = {"numpy": "numpy"}  # noqa: RUF012
        programs = {"no-such-java": "apt install openjdk-17-jre"}  # noqa: RUF012

    with pytest.raises(ConfigError, match="no-such-java is not on the PATH. Install it: apt install openjdk-17-jre"):
        NoProgram("missing").find("Env")


@pytest.mark.parametrize(("wanted", "fits"), [("numpy>=1.26", True), ("numpy<1", False), ("numpy>=1,<99", True)])
def test_wrong_versions(wanted, fits):
    assert (wrong_version(wanted) == "") == fits
    if not fits:
        assert f"numpy {np.__version__} is installed, and {wanted} is needed" in wrong_version(wanted)


def test_a_framework_of_a_script():
    class Two(Framework):
        title = "two envs of Gymnasium"
        packages = {"gymnasium": "gymnasium"}  # noqa: RUF012
        options = {"train": {"horizon": 8}, "nn": {"hidden": 16}}  # noqa: RUF012

        def names(self):
            return ["CartPole", "Acrobot"]

        def make(self, name, *, render_mode=None, sutton=False):
            import gymnasium

            more = {"sutton_barto_reward": True} if sutton else {}
            return gymnasium.make(f"{name}-v1", render_mode=render_mode, **more)

    FRAMEWORKS.register("two", Two("two"))
    try:
        vec = shoal.make("two:cartpole", 2, backend="serial", sutton=True)
        assert vec.reset(seed=1)[0].shape == (2, 4)
        vec.close()
        options = options_for("two:CartPole", {"train": {"epochs": 2}})
        assert (options.train.horizon, options.train.epochs, options.nn.hidden) == (8, 2, 16)
        with pytest.raises(ConfigError, match=r"two:cartpole has no param 'suton'. Did you mean 'sutton'\?"):
            shoal.make("two:cartpole", suton=True)
        with pytest.raises(UnknownEnv, match="'two:Pendulum'. 'shoal envs two:' lists the 2"):
            shoal.make("two:Pendulum")
    finally:
        del FRAMEWORKS._registered["two"]


def test_maps_whose_making_was_interrupted_are_removed(tmp_path):
    """Neural MMO takes a folder for a map; one that is not complete would fail in every run from then on."""
    from shoal.integrations.nmmo import _remove_unfinished

    for name, files in (("map1", ["map.npy", "fractal.npy"]), ("map2", ["map.npy"]), ("map3", [])):
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).touch()
    _remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["map1"]
    _remove_unfinished(tmp_path / "none")


def test_frameworks_that_take_long_have_the_time_they_need():
    from shoal import entry

    assert entry._slow("nmmo:large") == {"timeout_s": framework("nmmo").timeout_s}
    assert entry._slow("overcooked:cramped_room") == entry._slow("./mine.py:Env") == {}


# ---- names ----


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("PongNoFrameskip-v4", "Did you mean 'atari:Pong'?"),
        ("ALE/Pong-v5", "Did you mean 'atari:Pong'?"),
        ("Pong-v5", "Did you mean 'atari:Pong'?"),
        ("MiniGrid-DoorKey-5x5-v0", "Did you mean 'minigrid:DoorKey-5x5'?"),
        ("NetHackScore-v0", "Did you mean 'nethack:Score'?"),
        ("procgen-coinrun", "Did you mean 'procgen:coinrun'?"),
        ("CartPole-v1", "Did you mean 'cartpole' or 'gymnasium:CartPole-v1'?"),
        ("Acrobot-v1", "Did you mean 'acrobot' or 'gymnasium:Acrobot-v1'?"),
        ("atary:Pong", "Did you mean 'atari'? 'shoal envs --frameworks' lists all."),
    ],
)
def test_ids_as_other_libraries_spell_them_are_recognized(name, says):
    with pytest.raises(UnknownEnv) as error:
        shoal.make(name)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("package", "name", "own"),
    [
        ("gymnasium", "gymnasium:cartpole-v0", "CartPole-v0"),
        ("gymnasium", "gymnasium:CartPole", "CartPole-v1"),
        ("pettingzoo.classic", "pettingzoo:classic/Connect_Four", "connect_four_v3"),
        ("pettingzoo.classic", "pettingzoo:rps_v2", "rps_v2"),
        ("mpe2", "pettingzoo:simple-spread", "simple_spread_v3"),
        ("gymnax", "jax:gymnax/cartpole-v1", "CartPole-v1"),
        ("pgx", "jax:PGX/Connect-Four", "connect_four"),
        ("minigrid", "minigrid:MiniGrid-DoorKey-5x5-v0", "DoorKey-5x5-v0"),
        ("pyspiel", "openspiel:ConnectFour", "connect_four"),
    ],
)
def test_names_are_compared_without_case_and_punctuation(package, name, own):
    pytest.importorskip(package)
    prefix, _, rest = name.partition(":")
    found = framework(prefix).find(rest)
    assert re.search(rf"\b{own}$", str(getattr(found, "name", None) or found.args[-1]).replace(".", "/"))


@pytest.mark.parametrize(
    ("prefix", "name", "says"),
    [
        ("minigrid", "DoorKy-5x5", "Did you mean 'DoorKey-5x5'?"),
        ("minigrid", "MiniGrid-DoorKy-5x5-v0", "Did you mean 'DoorKey-5x5'?"),
        ("minigrid", "DoorKey-8", "There is DoorKey-8x8."),
        ("nethack", "NetHackScor", "There is Score."),
        ("retro", "Airstriker", "There is Airstriker-Genesis"),
        ("jax", "CartPole-v1", "Did you mean 'gymnax/CartPole-v1'?"),
        ("pettingzoo", "butterfly/pistonball_v5", "Did you mean 'butterfly/pistonball_v6'"),
    ],
)
def test_wrong_names_have_the_right_one_in_the_message(prefix, name, says):
    one = framework(prefix)
    if problem := one.problem():
        pytest.skip(problem)
    if prefix == "jax":
        pytest.importorskip("gymnax")
    with pytest.raises(UnknownEnv) as error:
        one.find(name)
    assert says in str(error.value)


def test_options_do_not_depend_on_the_spelling():
    for name in ("score", "NetHackScore-v0", "Score"):
        assert framework("nethack").options_for(name) == framework("nethack").options_for("Score")
    assert framework("nethack").options_for("Score") != framework("nethack").options_for("Staircase")
    assert framework("jax").options_for("pgx/Connect_Four")["env"] == {"max_opening": 8}
    assert framework("pettingzoo").options_for("simple_spread_v3")["train"]["gamma"] == 0.9


def test_ids_that_gymnasium_lists_and_cannot_make_are_not_listed():
    """MuJoCo's v2 and v3 moved, and raise; their message names the newest."""
    names = framework("gymnasium").names()
    assert not [name for name in names if re.search(r"^(Ant|Hopper|Swimmer)-v[23]$|^GymV2", name)]
    with pytest.raises(UnknownEnv, match=r"'gymnasium:GymV21Environment-v0'.* Envs of the old gym package are gym:ID"):
        shoal.make("gymnasium:GymV21Environment-v0")
    if "Hopper-v5" in names:
        with pytest.raises(UnknownEnv, match=r"gymnasium:Hopper-v2'.* Use gymnasium:Hopper-v5\."):
            shoal.make("gymnasium:Hopper-v2")


def test_games_of_atari_that_end_the_process_are_not_listed():
    """ALE has the ROMs of four games for two players, and calls `exit` when it loads one."""
    pytest.importorskip("ale_py")
    names = framework("atari").names()
    assert not {"Combat", "Joust", "MazeCraze", "Warlords"} & set(names)
    assert len(names) > 100
    with pytest.raises(UnknownEnv, match="'atari:Combat'"):
        shoal.make("atari:Combat")


def test_envs_of_old_gym_that_need_older_packages_say_so(monkeypatch):
    """Its MuJoCo v2 and v3, and what numpy 2 and MuJoCo 3 broke."""
    from shoal.integrations import gym

    monkeypatch.setattr(gym, "wrong_version", lambda wanted: f"numpy 2 is installed, and {wanted} is needed")
    assert gym.lacking("Ant-v3") == "mujoco_py is not installed, and it is needed"
    assert gym.lacking("Acrobot-v1") == "numpy 2 is installed, and numpy<2 is needed"
    assert gym.lacking("CartPole-v1") == gym.lacking("mine:Acrobot-v1") == ""
    if gym.FRAMEWORK.problem():
        pytest.skip(gym.FRAMEWORK.problem())
    assert not {"Ant-v3", "Acrobot-v1"} & set(gym.FRAMEWORK.names())
    with pytest.raises(ConfigError, match="gym:Acrobot-v1: .* Gymnasium has a newer version: gymnasium:Acrobot$"):
        gym.FRAMEWORK.find("Acrobot-v1")


def test_every_layout_of_overcooked_is_read():
    """tutorial_1 starts with a soup, whose recipe is read before recipes are configured."""
    if problem := framework("overcooked").problem():
        pytest.skip(problem)
    vec = shoal.make("overcooked:tutorial_1", 1, backend="serial")
    rollout(vec, 10)
    vec.close()


def test_atari_of_pettingzoo_has_the_roms_of_ale_py():
    pytest.importorskip("multi_agent_ale_py")
    pytest.importorskip("ale_py")
    assert "atari/pong_v3" in framework("pettingzoo").names()
    vec = make("pettingzoo", "atari/pong_v3", 1, backend="serial")
    rollout(vec, 10)
    vec.close()


@pytest.mark.skipif(sys.platform != "linux", reason="EGL is of Linux")
def test_libraries_draw_without_a_display(monkeypatch):
    """miniworld cannot even be imported without a display, unless pyglet is told before."""
    from shoal.integrations.framework import choose_gl

    names = ("DISPLAY", "MUJOCO_GL", "PYGLET_HEADLESS")
    for name in names:
        monkeypatch.setenv(name, "")  # so that what is set here is undone
        monkeypatch.delenv(name)
    choose_gl()
    assert [os.environ.get(name) for name in names] == [None, "egl", "true"]
    monkeypatch.delenv("PYGLET_HEADLESS")
    monkeypatch.setenv("DISPLAY", ":0")
    choose_gl()
    assert "PYGLET_HEADLESS" not in os.environ


def test_a_module_registers_ids_with_and_without_versions(tmp_path, monkeypatch):
    """`module:namespace/Name` is one of Gymnasium's ids, as `module:Name-v0` is."""
    text = "import gymnasium\ngymnasium.register('lands/Pole', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    (tmp_path / "registers_lands.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with shoal.make("registers_lands:lands/Pole", 1, backend="serial") as vec:
        assert vec.reset(seed=1)[0].shape == (1, 4)
    with pytest.raises(UnknownEnv, match="lands/Pola"):
        shoal.make("registers_lands:lands/Pola", 1)


def test_a_reward_for_each_objective_or_player_says_what_to_do():
    import gymnasium

    class Several(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return 0, {}

        def step(self, action):
            return 0, [0.0, 1.0], False, False, {}

    with shoal.make(Several, 1, backend="serial") as vec:
        vec.reset(seed=1)
        with pytest.raises(
            BadOutput, match=r"not a number\. Wrap the env so that it returns one, or, if these are pla"
        ):
            vec.step(np.zeros(1, np.int64))


def test_mazes_of_minigrid_that_lack_something_say_so(monkeypatch):
    pytest.importorskip("minigrid")
    from shoal.integrations import minigrid

    one = framework("minigrid")
    wanted = [name for name in one.known() if name.startswith("WFC-")]
    assert wanted
    assert not [name for name in one.names() if minigrid._lacking(f"MiniGrid-{name}")]
    monkeypatch.setattr(minigrid.importlib.util, "find_spec", lambda name, package=None: None)
    with pytest.raises(ConfigError, match=r"needs imageio and networkx, not installed. Install it: pip install 'minig"):
        one.canonical(wanted[0])


def test_doom_needs_its_file():
    pytest.importorskip("vizdoom")
    one = framework("vizdoom")
    assert "DoomE1M1-S1" in one.known()
    if "DoomE1M1-S1" not in one.names():
        with pytest.raises(ConfigError, match=r"needs the file doom\.wad of Doom, which is not free. Put it into"):
            shoal.make("vizdoom:DoomE1M1-S1", backend="serial")
    with pytest.raises(ConfigError, match=r"has no param 'screen_resolutio'. Did you mean 'screen_resolution'\?"):
        shoal.make("vizdoom:Basic", screen_resolutio=1)


@pytest.mark.parametrize("name", ["MultiRoom-N2", "MultiRoom-N4-Locked", "LavaCrossingS9N1", "SimpleCrossingS11N5"])
def test_mazes_of_minihack_follow_their_seeds(name):
    """minihack 1.0.2 calls methods that MiniGrid's envs no longer have, and gives crossings a size."""
    pytest.importorskip("minihack")
    pytest.importorskip("minigrid")
    vec = shoal.make(f"minihack:{name}", 2, backend="serial")
    first = rollout(vec, 20)
    assert_same(first, rollout(vec, 20))
    with pytest.raises(AssertionError):
        assert_same(first, rollout(vec, 20, seed=9))
    vec.close()


def test_levels_that_minihack_does_not_have_are_not_listed():
    pytest.importorskip("minihack")
    one = framework("minihack")
    assert not {"Skill-Custom", "Navigation-Custom"} & set(one.names())
    with pytest.raises(ConfigError, match=r"is a level of yours. Name its file: --env\.des-file my\.des"):
        shoal.make("minihack:Skill-Custom", backend="serial")
    if "Boxoban-Hard" not in one.names():
        with pytest.raises(ConfigError, match="Boxoban-Hard cannot be made, as something that it needs is missing: "):
            shoal.make("minihack:Boxoban-Hard", backend="serial")


def test_nethack_challenge_is_played():
    pytest.importorskip("nle")
    vec = shoal.make("nethack:Challenge", 1, backend="serial")
    rollout(vec, 20)
    vec.close()


def test_games_of_openspiel_that_draw_by_themselves_follow_the_seed():
    """They take random numbers from the clock, or always the same ones: `rng_seed`."""
    pytest.importorskip("pyspiel")
    vec = shoal.make("openspiel:negotiation", 2, backend="serial")
    first = rollout(vec, 30)
    assert_same(first, rollout(vec, 30))
    with pytest.raises(AssertionError):
        assert_same(first, rollout(vec, 30, seed=4))
    vec.close()
    assert framework("openspiel").make("negotiation", rng_seed=5)._params is None


class Other(Missing):
    """A framework that passes params on."""

    packages = {"numpy": "numpy"}  # noqa: RUF012

    def names(self):
        return ["Env", "Needy"]

    def make(self, name, *, render_mode=None, skip=4, **params):
        if name == "Needy":
            raise ImportError("to see it install glasses")
        return self._env(**params)

    def _env(self, size=3):
        import gymnasium

        return gymnasium.make("CartPole-v1", render_mode=None)


def test_what_a_library_does_not_take_or_lacks_is_told_in_one_line():
    FRAMEWORKS.register("other", Other("other"))
    try:
        with pytest.raises(ConfigError, match=r"^other:Env has no param 'skp'. Did you mean 'skip'\? It has skip,"):
            shoal.make("other:Env", 2, backend="serial", skp=3)
        with pytest.raises(ConfigError, match=r"^other:Needy cannot be made, as .* missing: to see it install gl"):
            shoal.make("other:Needy", 2, backend="serial")
        shoal.make("other:Env", 1, backend="serial", size=4).close()
    finally:
        del FRAMEWORKS._registered["other"]


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_params_that_minigrid_does_not_take_are_named(backend):
    pytest.importorskip("minigrid")
    with pytest.raises(ConfigError, match=r"^minigrid:DoorKey-5x5 has no param 'foo'\. It has mission, view, planes, "):
        shoal.make("minigrid:DoorKey-5x5", 2, backend=backend, foo=3)


@pytest.mark.parametrize("one", [one for one in ALL if one.is_separate], ids=lambda one: one.prefix)
def test_params_of_envs_in_other_environments_are_checked_here(one: Framework):
    """Before a worker starts, whose traceback said it."""
    if problem := one.problem():
        pytest.skip(problem)
    with pytest.raises(ConfigError, match=rf"^{one.prefix}:{one.example} has no param 'foo'. It has "):
        shoal.make(f"{one.prefix}:{one.example}", 1, foo=3)


def test_params_of_magent_are_those_of_its_functions():
    pytest.importorskip("magent2")
    assert {"map_size", "dead_penalty"} <= set(framework("magent").params("battle") or {})
    with pytest.raises(ConfigError, match=r"magent:battle has no param 'dead_penalt'. Did you mean 'dead_penalty'"):
        shoal.make("magent:battle", dead_penalt=1)


def test_ids_of_envpool_that_cannot_be_made_are_not_listed():
    pytest.importorskip("envpool")
    one = framework("envpool")
    assert not {"Chess-v1", "VizdoomCustom-v1", "MultiDuel-v1", "IntersectionMultiAgent-v0"} & set(one.names())
    with pytest.raises(ConfigError, match="envpool:Cig-v1 needs a scenario of yours, or other players. Use vizdoom:"):
        shoal.make("envpool:Cig-v1", 2)  # would end the process
    assert {"Chess-v1", "CartPole-v1", "CoinrunEasy-v0"} <= set(one.known())
    with pytest.raises(ConfigError, match="envpool:Chess-v1 has 2 players; only ids of one are supported"):
        shoal.make("envpool:Chess-v1", 2)
    if "CoinrunEasy-v0" not in one.names():
        with pytest.raises(ConfigError, match="envpool:CoinrunEasy-v0 needs Qt. Install it: apt-get"):
            shoal.make("envpool:CoinrunEasy-v0", 2)


def test_bounds_of_envpool_that_stand_for_none_are_infinite():
    """It declares the smallest positive number and the largest one where DeepMind's suite has no bounds."""
    from gymnasium import spaces

    from shoal.integrations.envpool import mend

    limits = np.finfo(np.float64)
    found = mend(spaces.Dict(x=spaces.Box(limits.tiny, limits.max, (2,), np.float64), n=spaces.Discrete(3)))
    assert found["x"] == spaces.Box(-np.inf, np.inf, (2,), np.float64)
    assert found["n"] == spaces.Discrete(3)
    pixels = spaces.Box(0, 255, (4,), np.uint8)
    assert mend(pixels) is pixels
    assert mend(spaces.Box(-1, 1, (2,))) == spaces.Box(-1, 1, (2,))


@pytest.mark.parametrize("bound", [np.inf, np.finfo(np.float32).max])
def test_actions_with_the_largest_floats_as_bounds_are_not_scaled_to_them(bound):
    """As of envs that declare no bounds: they are about 1, not 1e38."""
    import gymnasium

    class Free(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,))
        action_space = gymnasium.spaces.Box(-bound, bound, (2,))

        def reset(self, *, seed=None, options=None):
            return np.zeros(2, np.float32), {}

        def step(self, action):
            assert np.abs(action).max() < 100
            return np.zeros(2, np.float32), 0.0, False, False, {}

    sizes = {"total_steps": 1000, "horizon": 16, "epochs": 1, "minibatches": 1}
    options = options_for(Free, {"vec": {"num_envs": 2, "backend": "serial"}, "train": sizes, "device": "cpu"})
    trainer = Trainer(Free, options)
    trainer.iterate()  # a large action would raise in the env
    trainer.close()


def test_params_of_envpool_are_named():
    pytest.importorskip("envpool")
    with pytest.raises(ConfigError, match=r"Pong-v5 has no param 'frame_skp'. Did you mean 'frame_skip'\? It has "):
        shoal.make("envpool:Pong-v5", frame_skp=1)


# ---- scripts/frameworks ----


def test_the_script_runs_and_reads_every_test_that_needs_a_framework():
    """It chooses tests by the framework's prefix, and reads their results by it: one without it would never run."""
    dev = ("ale_py", "minigrid", "pettingzoo")  # `make test` runs their tests
    found, lost = 0, []
    for test in ast.parse(Path(__file__).read_text(encoding="utf-8")).body:
        text = ast.unparse(test) if getattr(test, "name", "").startswith("test_") else ""
        if not set(re.findall(r"importorskip\('(\w+)'", text)) - set(dev):
            continue
        found += 1
        named = (one.prefix for one in ALL)  # in its name, or in the ids of its parameters
        if not any(f"_{name}_" in test.name or f"'{name}:" in text or f"('{name}'," in text for name in named):
            lost.append(test.name)
    assert found > 15
    assert lost == []


def test_the_page_is_made_of_the_declarations(tmp_path):
    """`--check` passes for the page of this tree, and fails for one that says something else."""
    words = [sys.executable, "scripts/frameworks", "--check"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    stale = tmp_path / "frameworks.md"
    stale.write_text(Path("docs/frameworks.md").read_text(encoding="utf-8").replace("Atari", "Atary"), encoding="utf-8")
    done = subprocess.run([*words, "--page", str(stale)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "scripts/frameworks --docs" in done.stdout
    assert "Atary" in stale.read_text(encoding="utf-8")  # a check changes nothing


# ---- shoal envs ----


def test_shoal_envs_lists_frameworks(capsys):
    assert main(["envs", "--frameworks"]) == 0
    out = capsys.readouterr().out
    for one in ALL:
        assert f"{one.prefix}:" in out
    assert main(["envs", "--frameworks", "--json"]) == 0
    tables = {table["prefix"]: table for table in json.loads(capsys.readouterr().out)}
    assert tables["gymnasium"]["installed"]
    assert tables["nethack"]["install"] == ["pip install --no-deps nle==1.3.0", "pip install cffi"]


def test_shoal_envs_lists_the_envs_of_a_framework(capsys):
    pytest.importorskip("ale_py")
    assert main(["envs", "atari:"]) == 0
    out = capsys.readouterr().out
    assert "MsPacman" in out
    assert "shoal train atari:Breakout" in out
    assert main(["envs", "atari:pong"]) == 0
    out = capsys.readouterr().out
    assert "Box(0, 255, (4, 84, 84), uint8)" in out
    assert "--env.episodic-life False" in out
    assert "20.7" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["atari:Pongg"], "Did you mean 'Pong'"),
        (["atary:"], "'atary:' is not a framework. 'shoal envs --frameworks' lists them."),
        (["breakout", "--frameworks"], "leave out 'breakout'"),
    ],
)
def test_shoal_envs_mistakes(words, says, capsys):
    pytest.importorskip("ale_py")
    assert main(["envs", *words]) != 0
    assert says in " ".join(capsys.readouterr().err.split())


def test_params_of_pettingzoo_are_those_of_the_class(capsys):
    """PettingZoo's own functions take any keyword; a wrong one was a traceback of the worker."""
    pytest.importorskip("pettingzoo.classic")
    with pytest.raises(ConfigError, match=r"rps has no param 'max_cycle'\. Did you mean 'max_cycles'\? It has num_act"):
        shoal.make("pettingzoo:classic/rps", 1, max_cycle=3)
    assert main(["train", "pettingzoo:classic/rps", "--env.foo", "3"]) != 0
    assert "pettingzoo:classic/rps has no param 'foo'. It has num_actions, " in capsys.readouterr().err
    assert main(["envs", "pettingzoo:classic/rps"]) == 0
    assert "--env.max-cycles 15" in capsys.readouterr().out
    assert framework("pettingzoo").params("classic/rpss") is None  # reported when the env is made
    with shoal.make("pettingzoo:classic/rps", 1, backend="serial", max_cycles=3) as vec:
        vec.reset(seed=1)
        ends = [vec.step(np.zeros(2, np.int64))[3].any() for _ in range(3)]
        assert ends == [False, False, True]


# ---- what frameworks share ----


def test_masks_come_from_observations():
    """connect_four has its mask in the observation: the mover's is passed on, the other's leaves one choice."""
    pytest.importorskip("pettingzoo.classic")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vec = make("pettingzoo", "classic/connect_four", 1, backend="serial")
    _, infos = vec.reset(seed=1)
    masks = infos["action_mask"]
    assert masks.tolist() == [[1] * 7, [1] + [0] * 6]
    for _ in range(6):  # the first column is full
        *_, infos = vec.step(np.zeros(2, np.int64))
    assert infos["action_mask"][0].tolist() == [0] + [1] * 6
    vec.close()


def test_masks_of_players_who_wait_leave_one_choice():
    """Also masks in the infos of the env, which allow nothing to those who wait: a policy could sample from none."""
    from tests.envs import TurnsEnv

    class Told(TurnsEnv):
        def observation_space(self, agent):
            return super().observation_space(agent)["board"]

        def observe(self, agent):
            seen = super().observe(agent)
            self.infos[agent]["action_mask"] = seen["action_mask"]
            return seen["board"]

    vec = shoal.make(Told, 1, backend="serial")
    _, infos = vec.reset(seed=1)
    for _ in range(40):
        living = infos["alive"]
        assert (infos["action_mask"].sum(1) == np.where(infos["acting"], 4, 1))[living].all()
        _, _, _, _, infos = vec.step(np.zeros(3, np.int64))
    vec.close()


def test_pettingzoo_hanabi_is_played_by_its_masks_and_seeds():
    """A new game without a seed would take one from the clock."""
    pytest.importorskip("shimmy")
    pytest.importorskip("pyspiel")
    vec = make("pettingzoo", "classic/hanabi", 1, backend="serial")

    def play():
        chosen, games = np.random.default_rng(1), [vec.reset(seed=3)]
        for _ in range(120):
            masks = games[-1][1]["action_mask"]
            assert masks.any(1).all()
            obs, *_, infos = vec.step(np.array([chosen.choice(np.flatnonzero(mask)) for mask in masks]))
            games.append((copied(obs), infos))
        return [obs for obs, _ in games[1:]]

    assert_same(play(), play())
    vec.close()


def test_masks_of_single_envs_come_from_observations():
    import gymnasium
    from gymnasium import spaces

    class Odd(gymnasium.Env):
        observation_space = spaces.Dict(x=spaces.Box(0, 1, (2,)), action_mask=spaces.MultiBinary(3))
        action_space = spaces.Discrete(3)

        def reset(self, *, seed=None, options=None):
            return {"x": np.zeros(2, np.float32), "action_mask": np.array([0, 1, 0], np.int8)}, {}

        def step(self, action):
            assert action == 1
            return *self.reset()[:1], 1.0, False, False, {}

    vec = shoal.make(Odd, 2, backend="serial")
    assert vec.reset(seed=1)[1]["action_mask"].tolist() == [[0, 1, 0]] * 2
    vec.close()
    sizes = {"total_steps": 1000, "horizon": 16, "epochs": 1, "minibatches": 1}
    options = options_for(Odd, {"vec": {"num_envs": 2, "backend": "serial"}, "train": sizes, "device": "cpu"})
    trainer = Trainer(Odd, options)
    trainer.iterate()  # a forbidden action would raise in the env
    trainer.close()


@pytest.mark.parametrize("env", ["jax:pgx/connect_four", "openspiel:connect_four", "openspiel:tic_tac_toe"])
def test_boards_show_whose_turn_it_is(env):
    """On an empty board both players see the same: without the turn one value would stand for both."""
    pytest.importorskip("pgx" if env.startswith("jax:") else "pyspiel")
    vec = shoal.make(env, 1, seed=0)
    obs, infos = vec.reset()
    axis = -1 if env.startswith("jax:") else 1
    for _ in range(20):
        turns = np.take(obs, -1, axis).reshape(2, -1)
        assert (turns == infos["acting"][:, None]).all()
        obs, _, _, _, infos = vec.step(infos["action_mask"].argmax(1))
    vec.close()
    plain = shoal.make(env, 1, seed=0, turn=False)
    first, _ = plain.reset()
    np.testing.assert_array_equal(first[0], first[1])
    assert first.shape[axis] == obs.shape[axis] - 1
    plain.close()


def test_an_openspiel_game_without_the_tensors_that_it_declares_is_named(capfd):
    pytest.importorskip("pyspiel")
    with pytest.raises(ConfigError, match=r"openspiel:crossword has no observations as tensors, .*Choose another game"):
        shoal.make("openspiel:crossword", 1, backend="serial")
    assert main(["envs", "openspiel:crossword"]) == 0
    assert "cannot be made" in capfd.readouterr().out


def test_jax_games_of_pgx_start_with_random_moves():
    """Up to max_opening of them: one move is allowed, which differs from game to game; evaluations have none."""
    pytest.importorskip("pgx")
    vec = shoal.make("jax:pgx/connect_four", 64, seed=0, max_opening=4)
    obs, infos = vec.reset()
    chosen = []
    for ply in range(5):
        choices = infos["action_mask"][infos["acting"]].sum(1)
        chosen.append((choices == 1).mean())
        stones = obs[..., :2].reshape(128, -1).sum(1)
        assert (stones == ply).all()
        obs, _, _, _, infos = vec.step(infos["action_mask"].argmax(1))
    vec.close()
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[0] > chosen[3] > chosen[4] == 0  # 4, 1 and 0 of 5 games
    columns = obs[::2, :, :, :2].sum((1, 3)).argmax(1)
    assert len(set(columns)) > 2
    assert framework("jax").evaluation_params({"max_opening": 4}) == {"max_opening": 0}


@pytest.mark.slow  # JAX compiles for some seconds
@pytest.mark.parametrize(
    ("env", "params", "masked"), [("MPE_simple_spread_v3", {}, False), ("HeuristicEnemySMAX", {"max_steps": 6}, True)]
)
def test_jax_games_of_jaxmarl_have_masks_and_are_truncated(env, params, masked):
    pytest.importorskip("jaxmarl")
    with shoal.make(f"jax:jaxmarl/{env}", 2, seed=0, **params) as vec:
        _, infos = vec.reset()
        assert ("action_mask" in infos) == masked
        if masked:  # at the start no enemy is near enough to be shot at
            assert infos["action_mask"].shape == (vec.num_rows, vec.single_action_space.n)
            assert 0 < infos["action_mask"].mean() < 1
        ends = []
        for _ in range(30):
            obs, _, terminated, truncated, infos = vec.step(np.zeros(vec.num_rows, np.int64))
            ends.append((bool(terminated.any()), bool(truncated.all())))
        assert (False, True) in ends
        assert not any(over for over, _ in ends)


def test_words_have_the_same_ids_everywhere():
    from shoal.integrations.text import Vocabulary

    words = Vocabulary(["go", "to", "the", "door"], buckets=8)
    ids = words.encode("Go to the red door, then stop", 8)
    assert ids[0, :3].tolist() == [1, 2, 3]
    assert ids[0, 4] == 4
    assert 5 <= ids[0, 3] < 13  # red is in none of the words
    assert ids[0, 7] == 0
    assert words.space(8).contains(ids)
    assert (words.encode("go " * 50, 8) == 1).all()


def test_id_grids_have_one_table():
    """A grid of many ids has one embedding for all cells; the place of an id matters, through the convolutions."""
    import torch
    from gymnasium import spaces

    from shoal.nn.encoders import Encoder
    from shoal.nn.encoders.ids import IdGrid, IdText

    grid = Encoder(spaces.MultiDiscrete(np.full((21, 79), 5977, np.int16), np.int16))
    assert isinstance(grid.parts[0], IdGrid)
    cells = torch.zeros(2, 21, 79, dtype=torch.int16)
    cells[1, 3, 4] = 9
    out = grid(cells)
    assert out.shape == (2, grid.features)
    assert not out[0].equal(out[1])
    text = Encoder(spaces.MultiDiscrete(np.full((1, 6), 90)))
    assert isinstance(text.parts[0], IdText)
    words = torch.tensor([[[1, 2, 3, 0, 0, 0]], [[3, 2, 1, 0, 0, 0]]])
    out = text(words)
    assert not out[0].allclose(out[1])  # the order of words counts


def test_stacks_write_each_frame_once():
    from shoal.integrations.frames import Stack

    stack = Stack(3, (1, 2, 2))
    first = stack.fill(np.full((1, 2, 2), 7, np.uint8))
    assert (first == 7).all()
    for k in range(1, 4):
        now = stack.push(np.full((1, 2, 2), k, np.uint8))
    assert now is first
    assert now[:, 0, 0].tolist() == [1, 2, 3]


@pytest.mark.skipif(sys.platform != "linux", reason="names of Linux")
def test_a_missing_library_is_named_with_its_command(monkeypatch):
    one = framework("procgen")
    monkeypatch.setattr(type(one), "packages", {})
    monkeypatch.setattr(type(one), "libraries", {"libc.so.6": "never", "libnone.so.1": "apt-get install libnone1"})
    with pytest.raises(ConfigError, match=r"libnone\.so\.1 is not on this machine. Install it: apt-get install"):
        one.check()


def test_minigrid_cells_are_planes():
    pytest.importorskip("minigrid")
    one = framework("minigrid")
    seen, planes = one.make("Unlock", planes=False), one.make("Unlock")
    bytes_, _ = seen.reset(seed=4)
    bits, _ = planes.reset(seed=4)
    door, key = 4, 5
    for action in np.random.default_rng(1).integers(0, 7, 200):
        image, cells = bytes_["image"], bits["image"]
        assert planes.observation_space.contains(bits)
        assert (cells[..., :-6].sum(-1) <= 1).all()
        for kind, state, plane in [(1, 0, 0), (2, 0, 1), (door, 0, 3), (door, 1, 4), (door, 2, 5)]:
            shown = (image[..., 0] == kind) & ((image[..., 2] == state) | (kind != door))
            assert np.array_equal(cells[..., plane] == 1, shown), (kind, state)
        assert not cells[image[..., 0] == 0].any()  # unseen
        has_color = np.isin(image[..., 0], [door, key])
        assert np.array_equal(cells[..., -6:].argmax(-1)[has_color], image[..., 1][has_color])
        assert not cells[..., -6:][~has_color].any()
        bytes_, _, over, late, _ = seen.step(action)
        bits, _, *ends, _ = planes.step(action)
        assert ends == [over, late]
        if over or late:
            bytes_, bits = seen.reset()[0], planes.reset()[0]


def test_minigrid_full_views_show_where_the_agent_faces():
    pytest.importorskip("minigrid")
    env = framework("minigrid").make("Empty-5x5", view="full")
    env.reset(seed=1)
    faces = [tuple(env.step(0)[0]["image"].sum((0, 1))) for _ in range(4)]
    assert len(set(faces)) == 4


def test_babyai_prints_nothing(capfd):
    pytest.importorskip("minigrid")
    env = framework("babyai").make("GoToLocal")
    for seed in range(30):
        env.reset(seed=seed)
    assert capfd.readouterr().out == ""


def test_pages_show_spaces_in_few_words():
    from gymnasium import spaces

    from shoal.cli.framework_pages import space_text

    ids = spaces.MultiDiscrete(np.full((9, 9), 5977))
    assert space_text(ids) == "MultiDiscrete, 9x9 choices of 5977 each"
    assert space_text(spaces.MultiDiscrete([2, 3])) == "MultiDiscrete([2 3])"
    both = spaces.Dict({"crop": ids, "stats": spaces.Box(0, 1, (3,), np.float32)})
    assert space_text(both).splitlines() == [
        "",
        f"  - `crop`: {space_text(ids)}",
        "  - `stats`: Box(0.0, 1.0, (3,), float32)",
    ]


def test_nethack_time_limits_truncate():
    pytest.importorskip("nle")
    env = framework("nethack").make("Score")
    env.game.unwrapped._max_episode_steps = 20
    env.reset(seed=1)
    search = [int(action) for action in env.game.unwrapped.actions].index(ord("s"))
    for _ in range(19):
        obs, _, *over, info = env.step(search)
        assert over == [False, False]
        assert not info
    before = {key: value.copy() for key, value in obs.items()}
    obs, _, terminated, truncated, info = env.step(search)
    assert (terminated, truncated, info) == (False, True, {"end_status": -1})
    assert len(np.unique(before["glyphs"])) > 3, "the game before it was quit"
    for key, value in before.items():
        assert np.array_equal(obs[key], value), key


def test_nethack_stats_are_about_one():
    pytest.importorskip("nle")
    from shoal.integrations.nethack import scaled

    env = framework("nethack").make("Score")
    start, _ = env.reset(seed=1)
    assert np.abs(start["stats"]).max() <= 1.0
    letters = {chr(int(action)): k for k, action in enumerate(env.game.unwrapped.actions)}
    asked, *_ = env.step(letters["e"])
    assert start["stats"][-3:].tolist() == [0, 0, 0]
    assert asked["stats"][-3:].tolist() == [1, 0, 0]

    raw = np.zeros(27, np.int64)
    raw[[9, 13, 20]] = 10**9, 10**6, 10**5  # score, gold, time
    raw[[10, 11]], raw[25] = (5, 20), 1 << 2 | 1 << 12  # a quarter of the hit points; two conditions
    found = scaled(raw, np.zeros(3, np.int32))
    assert np.abs(found).max() < 2.5
    assert found[25] == 0.25
    assert np.flatnonzero(found[27:]).tolist() == [2, 12]


def test_nethack_crops_are_around_the_hero():
    """In their middle is not the hero but what it stands on, as far as it was seen."""
    nethack = pytest.importorskip("nle").nethack
    env = framework("nethack").make("Score")
    game = env.game.unwrapped
    floor, stairs = nethack.GLYPH_CMAP_OFF + 19, nethack.GLYPH_CMAP_OFF + 23
    keys = [int(action) for action in game.actions]
    east, west = keys.index(ord("l")), keys.index(ord("h"))

    def start(seed):  # on the stairs up
        obs, _ = env.reset(seed=seed)
        column, row = (int(part) for part in game.last_observation[game._blstats_index][:2])
        assert nethack.glyph_is_monster(int(obs["glyphs"][row, column]))
        around = np.full((9, 9), nethack.NO_GLYPH)
        for y, x in np.ndindex(9, 9):
            if 0 <= row + y - 4 < 21 and 0 <= column + x - 4 < 79:
                around[y, x] = obs["glyphs"][row + y - 4, column + x - 4]
        differs = np.argwhere(around != obs["crop"])
        assert differs.tolist() == [[4, 4]]
        return obs

    seed = next(seed for seed in range(100) if start(seed)["crop"][4, 5] == floor)
    obs = start(seed)
    assert obs["crop"][4, 4] == nethack.GLYPH_CMAP_OFF, "not seen"
    obs, *_ = env.step(east)
    assert obs["crop"][4, 4] == floor
    assert obs["crop"][4, 3] == stairs
    obs, *_ = env.step(west)
    assert obs["crop"][4, 4] == stairs


def test_nethack_masks_leave_out_what_does_nothing():
    nethack = pytest.importorskip("nle").nethack
    env = framework("nethack").make("Score", mask=True)
    game = env.game.unwrapped
    keys = [int(action) for action in game.actions]
    random = np.random.default_rng(0)
    obs, _ = env.reset(seed=2)
    checked = 0
    for _ in range(1500):
        mask = obs["action_mask"]
        column, row = (int(part) for part in game.last_observation[game._blstats_index][:2])
        is_asked = bool(game.last_observation[game._internal_index][1])
        assert mask.any()
        if not is_asked:
            assert not mask[keys.index(13)], "MORE answers questions only"
            floor = nethack.GLYPH_CMAP_OFF + 19
            if column and obs["glyphs"][row, column - 1] == floor:
                assert mask[keys.index(ord("h"))]
            elif column and obs["glyphs"][row, column - 1] == nethack.GLYPH_CMAP_OFF + 1:  # a wall
                assert not mask[keys.index(ord("h"))] or not mask[:-6].any()
                checked += 1
        if not is_asked:
            assert mask[keys.index(ord(">"))] == (obs["crop"][4, 4] == nethack.GLYPH_CMAP_OFF + 24)
            doors = [nethack.GLYPH_CMAP_OFF + 15, nethack.GLYPH_CMAP_OFF + 16]
            assert mask[keys.index(4)] == any(obs["crop"][cell] in doors for cell in ((3, 4), (4, 5), (5, 4), (4, 3)))
        obs, _, terminated, truncated, _ = env.step(random.choice(np.flatnonzero(mask)))
        if terminated or truncated:
            obs, _ = env.reset()
    assert checked


def test_nethack_prompts_are_those_of_nle():
    """They are read from an array that MiniHack has, too."""
    pytest.importorskip("nle")
    env = framework("nethack").make("Score", observation_keys=("glyphs", "blstats", "message", "misc"))
    random, asked = np.random.default_rng(0), 0
    env.reset(seed=3)
    game = env.game.unwrapped
    misc = game._observation_keys.index("misc")
    for _ in range(500):
        obs, _, terminated, truncated, _ = env.step(int(random.integers(env.action_space.n)))
        if terminated or truncated:
            obs, _ = env.reset()
        assert np.array_equal(obs["stats"][-3:], game.last_observation[misc] != 0)
        asked += int(obs["stats"][-3:].any())
    assert asked > 10


def nethack_mask(crop=(), food="", action=None, question=""):
    """The letters of the actions that `Masks` allows, with a crop of 3x3 signs and food in the inventory."""
    nethack = pytest.importorskip("nle").nethack
    from nle.env.tasks import TASK_ACTIONS

    from shoal.integrations.nethack_masks import Masks

    ground = nethack.GLYPH_CMAP_OFF
    signs = {".": ground + 19, "+": ground + 15, "|": ground + 1, "%": nethack.GLYPH_BODY_OFF + 5}
    around = np.array([[signs[sign] for sign in row] for row in crop or ("...", "...", "...")])
    keys = [int(key) for key in TASK_ACTIONS]
    obs, prompts = {"blstats": np.zeros(27, np.int64)}, np.array([bool(question), 0, 0])
    obs["inv_letters"] = np.array([ord(letter) for letter in "a" + food], np.uint8)
    obs["inv_oclasses"] = np.array([3] + [nethack.FOOD_CLASS] * len(food), np.uint8)
    place = None if action is None else keys.index(action)
    mask = Masks(keys).mask(obs, around, prompts, question.encode() + b"\0", place)
    return "".join(chr(key) for key, is_allowed in zip(keys, mask) if is_allowed)


def test_nethack_kicks_are_for_closed_doors():
    kick = 4
    assert chr(kick) not in nethack_mask(crop=("+.+", "...", "|.+")), "diagonal ones are not kicked"
    assert chr(kick) in nethack_mask(crop=("...", "..+", "..."))
    assert nethack_mask(("...", "..+", ".+."), action=kick, question="In what direction?") == "\rlj"
    assert set(nethack_mask(("...", "..+", ".+."), action=ord("."), question="In what direction?")) == {*"\rhjklyubn"}


def test_nethack_meals_need_food():
    assert "e" not in nethack_mask(food="fg"), "no action has the letters f and g"
    assert "e" in nethack_mask(food="fh")
    assert "e" in nethack_mask(("...", ".%.", "..."))
    assert "e" not in nethack_mask(("...", "..%", "..."))


@pytest.mark.parametrize(
    ("question", "answers"),
    [
        ("What do you want to eat? [fgh or ?*] ", "h"),
        ("What do you want to eat? [g-jl or ?*] ", "hjl"),
        ("There is a newt corpse here; eat it? [ynq] (n) ", "yn"),
        ("In what direction? ", "hjklyubn"),
        ("Who knows? ", "kljhunbyKLJHUNBY<>.\x04es"),  # nothing offered: anything
    ],
)
def test_nethack_questions_have_the_answers_that_they_offer(question, answers):
    pytest.importorskip("nle")
    from nle.env.tasks import TASK_ACTIONS

    from shoal.integrations.nethack_masks import Masks

    mask = Masks(TASK_ACTIONS).answers(question.encode() + b"\0")
    allowed = {chr(int(action)) for action, is_allowed in zip(TASK_ACTIONS, mask) if is_allowed}
    assert allowed == {*answers, "\r"}


def test_atari_is_evaluated_in_whole_games():
    pytest.importorskip("ale_py")
    from shoal.train.env_params import evaluated

    one = framework("atari")
    assert evaluated("atari:Breakout", {"episodic_life": True, "skip": 2}) == {
        "episodic_life": False,
        "fire_lives": True,
        "skip": 2,
    }
    assert evaluated("atari:Breakout", {"skip": 2}) == {"skip": 2}
    assert evaluated("ale:Breakout", {"episodic_life": True}) == {"episodic_life": False}
    lengths = {}
    for fire_lives in (False, True):  # one who never presses FIRE
        env = one.make("Breakout", noops=0, fire_lives=fire_lives, max_frames=4000)
        env.reset(seed=1)
        lengths[fire_lives] = 0
        over = False
        while not over:
            _, _, terminated, truncated, _ = env.step(0)
            lengths[fire_lives] += 1
            over = terminated or truncated
    assert lengths[False] == 1000, "the next ball never comes"
    assert lengths[True] < 600


def test_crafter_writes_what_each_episode_unlocked(tmp_path):
    pytest.importorskip("crafter")
    file = tmp_path / "stats.jsonl"
    env = framework("crafter").make("Reward", length=12, stats=str(file))
    for seed in (1, 2):
        env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, infos = env.step(0)
            total, over = total + reward, terminated or truncated
    first, last = (json.loads(line) for line in file.read_text().splitlines())
    assert first["length"] == last["length"] == 12
    assert last["reward"] == pytest.approx(total, abs=0.06)
    assert sum(count > 0 for name, count in last.items() if name.startswith("achievement_")) == infos["achievements"]
    with pytest.raises(ConfigError, match="there is no folder"):
        framework("crafter").make("Reward", stats=str(tmp_path / "none" / "stats.jsonl"))


def test_crafter_is_decided_by_its_seed():
    """Creatures vanish at random; a set would be read in the order of memory addresses."""
    pytest.importorskip("crafter")

    def run(env):
        first, _ = env.reset(seed=3)
        frames, actions = [first.tobytes()], np.random.default_rng(0).integers(0, 17, 150)
        for action in actions:
            obs, _reward, terminated, _truncated, _infos = env.step(action)
            frames.append(obs.tobytes())
            if terminated:
                frames.append(env.reset()[0].tobytes())
        return frames

    one, other = (framework("crafter").make("Reward") for _ in range(2))
    found = run(one)
    kept = [object() for _ in range(997)]  # memory addresses differ from now on
    assert run(other) == found
    assert len(kept) == 997
    grid = one.world._world
    assert all(type(chunk).__name__ == "Bag" for chunk in grid.chunks.values())


def test_crafter_draws_the_same_frames_faster(monkeypatch):
    pytest.importorskip("crafter")
    from shoal.integrations import crafter

    quick = framework("crafter").make("Reward", render_mode="rgb_array")
    monkeypatch.setattr(crafter, "quicken_views", lambda env: None)
    plain = framework("crafter").make("Reward", render_mode="rgb_array")
    assert type(quick.world._local_view) is not type(plain.world._local_view)
    frames = [env.reset(seed=5)[0] for env in (quick, plain)]
    for k, action in enumerate(np.random.default_rng(2).integers(0, 17, 60)):
        assert np.array_equal(*frames)
        if k == 30:  # at night, in a corner of the world, with things and asleep
            for env in (quick, plain):
                env.world._world.move(env.world._player, (63, 0) if env.world._world[63, 0][1] is None else (62, 0))
                env.world._player.inventory.update(wood=3, stone=12, iron_pickaxe=1)
                env.world._player.sleeping, env.world._step = True, 290
        frames = [env.step(action)[0] for env in (quick, plain)]
    assert np.array_equal(quick.render(), plain.render())


def test_envs_with_slow_steps_are_stepped_in_processes(monkeypatch):
    """Crafter's steps take 0.7 ms: also 16 envs on two cores are faster in processes than one after the other."""
    from shoal.train import envs

    for seconds, count, cores, is_faster in ((7e-4, 16, 2, True), (7e-4, 16, 1, False), (1e-5, 8, 2, False)):
        monkeypatch.setattr(envs, "seconds_of_step", lambda *_, seconds=seconds: seconds)
        assert envs.pays_for_processes("any", {}, count, cores) == is_faster


@pytest.mark.parametrize("seed", range(8))
def test_crafter_makes_its_worlds_faster_and_equal(seed):
    crafter = pytest.importorskip("crafter")
    from shoal.integrations.crafter import keep_order
    from shoal.integrations.crafter_worlds import make_env

    quick, plain = make_env(seed=seed), crafter.Env(seed=seed)
    for env in (quick, plain):
        env.reset()
    worlds = quick._world, plain._world
    assert np.array_equal(*(world._mat_map for world in worlds))
    assert np.array_equal(*(world._obj_map for world in worlds))
    kinds = [[(type(thing), *thing.pos) for thing in world.objects] for world in worlds]
    assert kinds[0] == kinds[1]
    assert worlds[0].random.uniform() == worlds[1].random.uniform(), "the same numbers were drawn"
    keep_order(quick._world)  # what creatures vanish depends on the order of sets otherwise
    keep_order(plain._world)
    for env in (quick, plain):
        env.reset()
    actions = np.random.default_rng(seed)
    for _ in range(60):
        action = int(actions.integers(17))
        (frame, *facts, info), (own_frame, *own_facts, own_info) = plain.step(action), quick.step(action)
        assert np.array_equal(frame, own_frame)
        assert facts == own_facts
        assert own_info == {name: info[name] for name in own_info}


def test_the_noise_of_crafter_in_c_is_that_of_opensimplex():
    pytest.importorskip("opensimplex")
    from opensimplex import OpenSimplex

    from shoal.integrations.crafter_worlds import Noise

    noise, plain = Noise(11, (40, 50)), OpenSimplex(seed=11)
    for z, size, x_scale, y_scale in ((0, 5, 1, 1), (7, 3, 2, 1 / 5), (2.5, 1, 1 / 7, -1 / 3)):
        found = noise.at(z, size, x_scale, y_scale)
        wanted = [[plain.noise3(x * x_scale / size, y * y_scale / size, z) for y in range(50)] for x in range(40)]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-14)


def test_pyboy_rewards_pokemon_red_by_its_memory(tmp_path, monkeypatch):
    """A ROM of ours with the game's title: what is written to the addresses of the game gives the rewards."""
    pytest.importorskip("pyboy")
    write_rom(tmp_path / "Red.gb", b"POKEMON RED")
    monkeypatch.setenv("SHOAL_ROMS", str(tmp_path))
    env = framework("pyboy").make("Red")
    memory = env.emulator.memory
    memory[0xD163], memory[0xD18C] = 1, 6  # a party of one, of level 6
    buffer = io.BytesIO()
    env.emulator.save_state(buffer)
    env._start = buffer
    env.reset(seed=1)
    rewards = []
    for changes in (
        {},
        {0xD362: 4},  # a step to the right: a new place
        {0xD362: 0},  # back
        {0xD35E: 37},  # into a house: another map
        {0xD18C: 8},  # two levels
        {0xD163: 2, 0xD1B8: 3},  # a second Pokémon, of level 3
        {0xD1E4: 50},  # not in the party: does not count
        {0xD356: 0b101},  # two badges
        {0xD18C: 1},  # a lower level costs nothing
    ):
        for address, value in changes.items():
            memory[address] = value
        rewards.append(env.step(0)[1])
    assert rewards == pytest.approx([0.0, 0.01, 0.0, 0.01, 2.0, 3.0, 0.0, 20.0, 0.0])
    env.reset()
    assert env.step(0)[1] == 0.0  # of the first state again
    env.close()


def test_atari_lives_and_clipped_rewards():
    pytest.importorskip("ale_py")
    one = framework("atari")
    env = one.make("Breakout", episodic_life=True, noops=0)
    env.reset(seed=1)
    for _ in range(500):
        _, reward, terminated, _, _ = env.step(0)
        if terminated:
            break
    assert terminated
    assert env.ale.lives() == 4
    assert not env.ale.game_over()
    env.reset()
    assert env.ale.lives() == 4  # the next life of the same game
    clipped, plain = (one.make("Pong", clip_reward=clip) for clip in (True, False))
    assert clipped.observation_space.shape == (4, 84, 84)
    assert one.make("Pong", stack=1, grey=False, size=64).observation_space.shape == (3, 64, 64)
    assert one.canonical("ALE/Pong-v5") == one.canonical("PongNoFrameskip-v4") == one.canonical("pong") == "Pong"
    with pytest.raises(ConfigError, match="skip=0 and stack=4 must be at least 1"):
        one.make("Pong", skip=0)
    assert plain.unwrapped is not clipped


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"mode": 99}, r"atari:Pong has no mode 99\. It has 0, 1\."),
        ({"difficulty": 9}, r"atari:Pong has no difficulty 9\. It has 0, 1, 2, 3\."),
        ({"noops": -3}, "noops=-3 must be at least 0"),
        ({"sticky": 1.5}, "sticky=1.5 in 0 .. 1"),
    ],
    ids=str,
)
def test_settings_that_an_atari_game_does_not_have_are_named(params, says):
    pytest.importorskip("ale_py")
    with pytest.raises(ConfigError, match=says):
        shoal.make("atari:Pong", 2, **params)


@pytest.mark.parametrize("episodic_life", [False, True])
def test_a_reset_before_the_end_of_an_atari_game_starts_a_new_one(episodic_life):
    """By `reset`, or by a time limit of the user: only after a life does the same game go on."""
    pytest.importorskip("ale_py")
    options = {"backend": "serial", "seed": 1, "noops": 0, "episodic_life": episodic_life}
    with shoal.make("atari:Breakout", 1, wrap="time_limit=5", **options) as vec:
        first, _ = vec.reset()
        first = first.copy()
        for _ in range(5):
            obs, _, _, truncated, _ = vec.step(np.zeros(1, int))
        assert truncated.all()
        assert np.array_equal(obs, first)
        vec.step(np.zeros(1, int))
        assert np.array_equal(vec.reset()[0], first)


def test_recorded_results_name_no_folder_of_the_machine_they_are_from():
    """Their commands are for readers, who run them elsewhere."""
    results = Path(__file__).parents[1] / "benchmarks" / "results"
    files = sorted(results.glob("*.jsonl"))
    assert files
    for file in files:
        folders = re.findall(r"(?<![\w.])/(?:tmp|home|root|work|mnt)/[^\" ]*", file.read_text())
        assert not folders, (file.name, folders)
