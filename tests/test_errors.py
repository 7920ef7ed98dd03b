"""Bad input: each mistake gives a clear error from errors.py before anything is stepped or written."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import shoal
from shoal import errors, registry
from shoal.native import build

from .conftest import BROKEN


@pytest.fixture
def cartpole():
    vec = shoal.make("cartpole", 4, seed=0)
    vec.reset()
    return vec


# (call, error, what the message must say)
MAKE = [
    (lambda: shoal.make("cartpol"), errors.UnknownEnv, r"'cartpol'. Did you mean 'cartpole'\? 'shoal envs' lists all"),
    (lambda: shoal.make("./nowhere.h"), errors.UnknownEnv, r"no such file. 'shoal new"),
    (lambda: shoal.make("cartpole", 0), errors.ConfigError, r"num_envs=0 must be an int of at least 1"),
    (lambda: shoal.make("cartpole", -3), errors.ConfigError, r"num_envs=-3"),
    (lambda: shoal.make("cartpole", 2.5), errors.ConfigError, r"num_envs=2.5"),
    (lambda: shoal.make("cartpole", True), errors.ConfigError, r"num_envs=True"),
    (lambda: shoal.make("cartpole", gravty=3), errors.ConfigError, r"no param 'gravty'. Did you mean 'gravity'\?"),
    (lambda: shoal.make("cartpole", gravity="low"), errors.ConfigError, r"gravity='low' is not a number"),
    (lambda: shoal.make("cartpole", gravity=None), errors.ConfigError, r"gravity=None is not a number"),
    (lambda: shoal.make("cartpole", gravity=float("nan")), errors.ConfigError, r"gravity=nan must be finite"),
    (lambda: shoal.make("cartpole", 4, gravity=[1, 2]), errors.ConfigError, r"shape \(2,\).* each of the 4 envs"),
    (lambda: shoal.make("squared", size=2.5), errors.ConfigError, r"size=2.5 is not an int"),
    (lambda: shoal.make("squared", size=2**40), errors.ConfigError, r"does not fit in a 32-bit int"),
    (lambda: shoal.make("squared", max_steps=-1), errors.ConfigError, r"max_steps=-1 is negative. Use 0"),
    (lambda: shoal.make("maze", side="big"), errors.ConfigError, r"side='big' is a compile-time const"),
    (lambda: shoal.make("cartpole", backend="thread"), errors.ConfigError, r"Did you mean 'threads'\?"),
    (lambda: shoal.make("cartpole", backend="serial", num_threads=2), errors.ConfigError, r"needs backend='threads'"),
    (lambda: shoal.make("cartpole", num_threads=0), errors.ConfigError, r"num_threads=0 must be an int in 1 .. 1024"),
    (lambda: shoal.make("cartpole", 4, num_groups=5), errors.ConfigError, r"num_groups=5 must be an int in 1 .. 4"),
    (lambda: shoal.make("cartpole", autoreset="never"), errors.ConfigError, r"same_step, next_step, disabled"),
    (lambda: shoal.make("cartpole", render_mode="human"), errors.ConfigError, r"None or 'rgb_array'"),
    (lambda: shoal.make("cartpole", seed=-1), errors.ConfigError, r"seed=-1 must be in 0"),
    (lambda: shoal.make("cartpole", seed="x"), errors.ConfigError, r"seed='x' must be an int"),
    (lambda: shoal.register("cartpole", "x.h"), errors.ConfigError, r"'cartpole' is a stock env"),
    (lambda: shoal.register("My Env", "x.h"), errors.ConfigError, r"must be lower-case"),
    (lambda: shoal.register("my_env", "x.h"), errors.ConfigError, r"x.h is not a file"),
]


@pytest.mark.parametrize(("call", "error", "says"), MAKE)
def test_make_refuses(call, error, says):
    with pytest.raises(error, match=says):
        call()


ACTIONS = [
    ("cartpole", np.zeros(3, np.int64), r"shape \(3,\), expected \(4,\)"),
    ("cartpole", np.zeros((4, 1), np.int64), r"shape \(4, 1\), expected \(4,\)"),
    ("cartpole", np.zeros(4, np.float32), r"dtype float32, expected int64 or int32"),
    ("cartpole", np.zeros(4, np.bool_), r"dtype bool"),
    ("cartpole", np.array(["a"] * 4), r"dtype <U1"),
    ("cartpole", np.array([0, 1, 2, 0]), r"action 2 of env 2 is out of range 0 .. 1. Nothing was stepped"),
    ("cartpole", np.array([0, -1, 0, 0]), r"action -1 of env 1"),
    ("cartpole", np.array([0, 1, 0, 2**32]), r"action 4294967296 of env 3"),
    ("cartpole", np.array([0, 1, 0, 2**63], np.uint64), r"out of range"),
    ("cartpole", None, r"shape \(\)"),
    ("pendulum", np.zeros((4, 2), np.float32), r"shape \(4, 2\), expected \(4, 1\)"),
    ("pendulum", np.array([[0], [0], [np.nan], [0]], np.float32), r"action nan of env 2 is not finite"),
    ("pendulum", np.array([[0], [np.inf], [0], [0]]), r"action inf of env 1 is not finite"),
    ("forage", np.full((16, 2), 4), r"action 4 of env 0, agent 0, element 1 is out of range 0 .. 1"),
]


@pytest.mark.parametrize(("env", "actions", "says"), ACTIONS)
def test_bad_actions_raise_before_any_step(env, actions, says):
    vec = shoal.make(env, 4, seed=0)
    vec.reset()
    before = vec.snapshot()
    with pytest.raises(errors.ActionError, match=says) as caught:
        vec.step(actions)
    assert isinstance(caught.value, ValueError)
    assert vec.snapshot() == before


def test_calls_out_of_order():
    vec = shoal.make("cartpole", 4)
    zeros = np.zeros(4, np.int64)
    for call in (lambda: vec.step(zeros), lambda: vec.send(zeros), vec.snapshot, lambda: vec.frame(0)):
        with pytest.raises(errors.UsageError, match="before reset"):
            call()
    with pytest.raises(errors.UsageError, match="nothing in flight"):
        vec.recv()
    with pytest.raises(errors.UsageError, match="before a full reset"):
        vec.reset(options={"reset_mask": np.array([True, False, False, False])})
    vec.reset(seed=0)
    blob = vec.snapshot()
    vec.close()
    vec.close()
    for call in (lambda: vec.step(zeros), lambda: vec.reset(), lambda: vec.recv(), lambda: vec.restore(blob)):
        with pytest.raises(errors.UsageError, match="closed. Make a new one"):
            call()


def test_send_needs_a_group_that_waits():
    vec = shoal.make("cartpole", 128, num_groups=2)
    vec.async_reset(seed=0)
    with pytest.raises(errors.UsageError, match="Call recv"):
        vec.send(np.zeros(64, np.int64))
    _, _, _, _, infos = vec.recv()
    with pytest.raises(errors.ConfigError, match=r"env_id must be one of the ranges 0..63, 64..127"):
        vec.send(np.zeros(10, np.int64), env_id=np.arange(10))
    vec.send(np.zeros(64, np.int64), env_id=infos["env_id"])
    for call in (vec.snapshot, vec.drain_stats, lambda: vec.set_params(gravity=1.0)):
        with pytest.raises(errors.UsageError, match="in flight"):
            call()


RESETS = [
    ({"seed": [1, 2]}, r"seed has 2 entries for num_envs=4"),
    ({"seed": 1.5}, r"seed=1.5 must be an int"),
    ({"seed": [1, 2, "x", 4]}, r"seed entry 'x'"),
    ({"options": {"mask": 1}}, r"options has 'mask'; the only option"),
    ({"options": {"reset_mask": [True] * 4}}, r"bool array of shape \(4,\), not list"),
    ({"options": {"reset_mask": np.ones(3, bool)}}, r"not bool \(3,\)"),
    ({"options": {"reset_mask": np.ones(4)}}, r"not float64 \(4,\)"),
    ({"options": {"reset_mask": np.zeros(4, bool)}}, r"selects no env"),
]


@pytest.mark.parametrize(("arguments", "says"), RESETS)
def test_reset_refuses(cartpole, arguments, says):
    before = cartpole.snapshot()
    with pytest.raises(errors.ConfigError, match=says):
        cartpole.reset(**arguments)
    assert cartpole.snapshot() == before


def test_snapshots_of_something_else(cartpole):
    good = cartpole.snapshot()
    pendulum = shoal.make("pendulum", 4)
    pendulum.reset(seed=0)
    version = good.replace(b'"version": 0', b'"version": 9')
    for blob, says in (
        (b"", "do not start with its signature"),
        (b"x" * 100, "do not start with its signature"),
        (good[:30], "damaged"),
        (good[:-1], "bytes, not"),
        (pendulum.snapshot(), "of pendulum version 0 .*not of cartpole version 0"),
        (version, "of cartpole version 9"),
        (cartpole.snapshot([0, 1]), "holds 2 envs, but 4 are to be restored. Pass 2 env_ids"),
    ):
        with pytest.raises(errors.SnapshotError, match=says):
            cartpole.restore(blob)
    assert cartpole.snapshot() == good
    with pytest.raises(errors.ConfigError, match="must be numbers of envs in 0 .. 3"):
        cartpole.snapshot([4])
    with pytest.raises(errors.ConfigError, match="given|fixed|no param"):
        cartpole.set_params(side=3)


class TestBuilding:
    def test_a_header_that_does_not_compile(self):
        with pytest.raises(errors.CompileFailed) as caught:
            shoal.make(BROKEN / "no_compile.h")
        text = str(caught.value)
        assert "no_compile.h:16:" in text, "the header's own line"
        assert "speed" in text
        assert "module.c" not in text

    def test_a_header_without_its_macros(self, tmp_path):
        header = tmp_path / "empty.h"
        header.write_text('// empty.h: nothing.\n#include "core/env.h"\n')
        with pytest.raises(errors.CompileFailed, match="Define ENV_OBS before including"):
            shoal.make(header)

    def test_a_header_without_a_function(self, tmp_path):
        text = (BROKEN / "no_end.h").read_text()
        (tmp_path / "undrawn.h").write_text(text[: text.index("ENV_FN void env_draw")])
        with pytest.raises(errors.CompileFailed, match="does not define env_draw"):
            shoal.make(tmp_path / "undrawn.h")

    def test_bounds_of_the_wrong_length(self, tmp_path):
        text = (BROKEN / "out_of_range.h").read_text().replace("ENV_OBS_LOW -1.0f", "ENV_OBS_LOW -1.0f, -1.0f, -1.0f")
        (tmp_path / "bounds.h").write_text(text)
        with pytest.raises(errors.BuildError, match="ENV_OBS_LOW has 3 values. Give 1 value, or 2"):
            shoal.make(tmp_path / "bounds.h")

    def test_no_compiler(self, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.delenv("CC", raising=False)
        with pytest.raises(errors.CompilerMissing, match="no C compiler found .* apt-get install gcc, or set CC"):
            build.build(build.Source.env(BROKEN / "nan.h"), "base", tmp_path / "cache")
        monkeypatch.setenv("CC", "no-such-cc -v")
        with pytest.raises(errors.CompilerMissing, match="CC=no-such-cc -v is not a command"):
            build.find_compiler()

    def test_unwritable_cache(self, monkeypatch, tmp_path):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "file" / "cache"))
        with pytest.raises(errors.CacheUnwritable, match="cannot write compiled envs to .*Set SHOAL_CACHE_DIR"):
            build.library(build.Source.env(BROKEN / "nan.h", {"unheard": 1}), "base")

    @pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
    def test_read_only_cache(self, monkeypatch, tmp_path):
        tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
        monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path))
        with pytest.raises(errors.CacheUnwritable):
            build.library(build.Source.env(BROKEN / "nan.h", {"unheard": 1}), "base")

    def test_compiles_once_and_anew_when_the_header_changes(self, monkeypatch, tmp_path):
        monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
        header = tmp_path / "mine.h"
        header.write_text((BROKEN / "no_end.h").read_text())
        shoal.make(header).reset(seed=0)
        cached = sorted((tmp_path / "cache").glob("mine-*.so"))
        shoal.make(header)
        assert sorted((tmp_path / "cache").glob("mine-*.so")) == cached
        header.write_text(header.read_text().replace("0.5f", "0.25f"))
        shoal.make(header)
        assert len(list((tmp_path / "cache").glob("mine-*.so"))) == 2
        assert not list((tmp_path / "cache").glob(".*")), "no half-written file is left"

    def test_included_files_count_too(self, tmp_path):
        (tmp_path / "part.h").write_text("#define PART 1\n")
        (tmp_path / "whole.h").write_text('#include "part.h"\n')
        first = build.Source.env(tmp_path / "whole.h").digest("base")
        (tmp_path / "part.h").write_text("#define PART 2\n")
        assert build.Source.env(tmp_path / "whole.h").digest("base") != first

    def test_flags_of_the_user_are_for_envs_that_are_compiled_here(self, tmp_path, monkeypatch):
        monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
        header = tmp_path / "mine.h"
        header.write_text((BROKEN / "no_end.h").read_text())
        sources = [build.Source.env(header), build.Source.env(registry.find("maze"), {"side": 9})]
        sources += [build.Source.env(registry.find("maze")), build.CORE_SOURCE]
        monkeypatch.setenv("SHOAL_CFLAGS", "-O1 -g")
        assert [build.user_flags(source) for source in sources] == [["-O1", "-g"]] * 3 + [[]]
        path = build.library(sources[0], "base")
        assert path == build.find_library(sources[0], "base")
        assert b".debug_info" in path.read_bytes()
        monkeypatch.delenv("SHOAL_CFLAGS")
        assert build.find_library(sources[0], "base") is None, "a library of other flags is not taken"

    def test_consts_rebuild(self):
        small, large = shoal.make("maze", 2, side=9), shoal.make("maze", 2, side=21)
        assert small.single_observation_space.shape == (9, 9, 3)
        assert large.single_observation_space.shape == (21, 21, 3)
        with pytest.raises(errors.ConfigError, match="side is a compile-time const. Pass it to shoal.make"):
            small.set_params(side=11)
        with pytest.raises(errors.CompileFailed, match="side must be odd"):
            shoal.make("maze", 2, side=8)
        small.reset(seed=0)
        large.reset(seed=0)
        with pytest.raises(errors.SnapshotError, match="consts"):
            large.restore(small.snapshot())


def test_register_and_gymnasium_id(tmp_path):
    import gymnasium

    header = tmp_path / "my_own.h"
    header.write_text(
        (BROKEN / "no_end.h").read_text().replace("#define ENV_ACTION", "#define ENV_VERSION 3\n#define ENV_ACTION")
    )
    shoal.register("my_own", header)
    try:
        shoal.make("my_own", 2).reset(seed=0)
        gymnasium.make("shoal/MyOwn-v3").reset(seed=0)
        assert "my_own" in registry.known_names()
    finally:
        registry._registered.clear()
        del gymnasium.registry["shoal/MyOwn-v3"]


def test_entry_points_of_other_packages(tmp_path):
    """A package that declares `[project.entry-points."shoal.envs"]` is found without being imported first."""
    package = tmp_path / "reef"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from pathlib import Path\n\n\ndef header():\n    return Path(__file__).parent / 'coral.h'\n"
    )
    (package / "coral.h").write_text((BROKEN / "no_end.h").read_text())
    info = tmp_path / "reef-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reef\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[shoal.envs]\ncoral = reef:header\n")
    code = "import shoal; vec = shoal.make('coral', 3); vec.reset(seed=0); print(vec.native_spec.name)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": f"{tmp_path}:."}
    )
    assert done.stdout == "coral\n", done.stderr


class TwoParts(gymnasium.Env):
    """Actions are a tuple: a number and two floats."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)))

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("count", [2, 3])
def test_a_list_of_tuple_actions_is_refused(count):
    """It is read as (part 0, part 1, …) of a batch; numpy's own error said nothing of that."""
    vec = shoal.make(TwoParts, count, backend="serial")
    vec.reset(seed=0)
    with pytest.raises(errors.ActionError, match="tuple or dict of batches, not a list of single actions"):
        vec.step([vec.single_action_space.sample() for _ in range(count)])
    vec.step((np.zeros(count, np.int64), np.zeros((count, 2), np.float32)))


@pytest.mark.parametrize("env", ["cartpole", "pendulum"])
def test_ragged_actions_of_native_envs_are_refused(env):
    vec = shoal.make(env, 2)
    vec.reset(seed=0)
    with pytest.raises(errors.ActionError, match="parts of different shapes"):
        vec.step([1, [1, 2]])


@pytest.mark.parametrize("options", [{"backend": "serial"}, {"num_workers": 1, "backend": "process"}])
def test_a_misspelled_option_of_make_is_not_blamed_on_the_env(options):
    with pytest.raises(errors.ConfigError, match=r"num_worker=2 is not an option .* Did you mean 'num_workers'\?"):
        shoal.make(TwoParts, 2, num_worker=2, **options)
    with pytest.raises(errors.ConfigError, match=r"has no param 'num_thread'. Did you mean 'num_threads'\?"):
        shoal.make("cartpole", 2, num_thread=2)
    with pytest.raises((TypeError, errors.EnvCrashed), match="takes no arguments"):  # nothing is near
        shoal.make(TwoParts, 2, gravity=2, **options)


def test_a_header_in_this_folder_is_suggested(tmp_path, monkeypatch):
    (tmp_path / "glider.h").write_text("// glider.h: glide.")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.UnknownEnv, match=r"'glider'. Did you mean './glider.h'\?"):
        shoal.make("glider")


def test_what_is_native_is_decided_in_one_place():
    native = ["cartpole", "./my_env.h", "C:/envs/my_env.h", Path("my_env.h")]
    assert all(registry.is_native(env) for env in native)
    assert not any(
        registry.is_native(env) for env in ("gymnasium:CartPole-v1", "module:Env-v0", TwoParts, lambda: None)
    )
