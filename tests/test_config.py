"""Options: each is written once, and its flag, help, check and TOML key follow from it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal import config
from shoal.algos.algorithm import ALGORITHMS
from shoal.algos.ppo import PPO
from shoal.config import LogUniform, opt, parse_count
from shoal.errors import ConfigError
from shoal.nn.policy import Net
from shoal.train import TABLES, Options, Vec, as_tables, merge, options_for, tuned

TABLE_NAMES = sorted(TABLES)
DEFAULTS = {name: getattr(Options(), name) for name in TABLE_NAMES}
FIELDS = [(name, field) for name in TABLE_NAMES for field in dataclasses.fields(DEFAULTS[name])]


@dataclass(frozen=True)
class Small:
    """A few options of every type."""

    rate: float = opt(0.5, "a rate", low=0.0, high=1.0)
    steps: int = opt(10, "a count", low=1, is_count=True)
    plain: int = opt(3, "an int", high=5)
    mode: Literal["slow", "fast"] = opt("slow", "a mode")
    is_on: bool = opt(False, "a switch")
    sizes: tuple[int, ...] = opt((1, 2), "sizes")
    word: str | None = opt(None, "a word, or none")


# ---- counts ----


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("4096", 4096),
        ("2_000", 2000),
        ("20M", 20_000_000),
        ("20m", 20_000_000),
        ("1.5k", 1500),
        ("1e6", 10**6),
        ("1E+6", 10**6),
        ("2.5e3", 2500),
        ("1B", 10**9),
        ("3G", 3 * 10**9),
        (" 7 k ", 7000),
        ("1.005M", 1_005_000),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_counts_are_read_exactly(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize(
    "text", ["", "M", "-5", "1.5", "1e-3", "0.5", "1.0001k", "five", "1e999", "1 2", "0x10", "nan"]
)
def test_what_is_no_count_is_told_with_examples(text):
    with pytest.raises(ConfigError, match="is not a count. Write it as 20M"):
        parse_count(text)


@given(st.integers(0, 2**62))
def test_every_int_is_a_count(number):
    assert parse_count(str(number)) == parse_count(f"{number:_}") == number


@given(st.integers(0, 10**9), st.sampled_from([("k", 3), ("M", 6), ("B", 9)]))
def test_a_suffix_is_a_power_of_ten(number, suffix):
    letter, power = suffix
    assert parse_count(f"{number}{letter}") == parse_count(f"{number}e{power}") == number * 10**power


# ---- tables ----


def test_a_table_becomes_options():
    table = {"rate": 1, "steps": "20k", "mode": "fast", "is-on": True, "sizes": [4, 5], "word": "x"}
    assert config.from_dict(Small, table, "small") == Small(1.0, 20_000, 3, "fast", True, (4, 5), "x")


def test_a_count_may_be_written_as_a_float_of_toml():
    assert config.from_dict(Small, {"steps": 1e6}, "small").steps == 1_000_000
    with pytest.raises(ConfigError, match="not a count"):
        config.from_dict(Small, {"steps": 0.5}, "small")


def test_what_a_table_does_not_name_stays_as_it_was():
    base = Small(rate=0.25, plain=1)
    assert config.from_dict(Small, {"plain": 2}, "small", base) == Small(rate=0.25, plain=2)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"rat": 1.0}, r"small has no option 'rat'. Did you mean 'rate'\?"),
        ({"stepz": 1}, r"Did you mean 'steps'\?"),
        ({"mode": "fasst"}, r"small.mode = 'fasst'. Did you mean 'fast'\? Choices: slow, fast"),
        ({"rate": "x"}, "small.rate = 'x' must be float, not str"),
        ({"rate": True}, "small.rate = True must be float, not bool"),
        ({"plain": 2.0}, "small.plain = 2.0 must be int, not float"),
        ({"plain": True}, "must be int, not bool"),
        ({"is_on": 1}, "small.is_on = 1 must be bool, not int"),
        ({"is_on": "False"}, "must be bool, not str"),
        ({"sizes": [1, "a"]}, "small.sizes = 'a' must be int, not str"),
        ({"sizes": 3}, "small.sizes = 3 must be a list, not int"),
        ({"word": 3}, "small.word = 3 must be str, not int"),
        ({"steps": "many"}, "'many' is not a count"),
        ({"rate": 1.5}, "--small.rate 1.5 is above 1.0"),
        ({"rate": -0.5}, "--small.rate -0.5 is below 0.0"),
        ({"rate": float("nan")}, "--small.rate nan is not a number"),
        ({"plain": 6}, "--small.plain 6 is above 5"),
        ({"steps": 0}, "--small.steps 0 is below 1"),
    ],
)
def test_a_wrong_table_is_told_with_what_is_wrong(table, message):
    with pytest.raises(ConfigError, match=message):
        config.from_dict(Small, table, "small")


def test_numbers_of_numpy_and_torch_are_numbers():
    """As in: for rate in np.logspace(-4, -2, 5): train(..., train={"learning_rate": rate})"""
    given = {"rate": np.float64(0.25), "plain": np.int64(3), "steps": np.int32(9), "is_on": np.bool_(True)}
    small = config.from_dict(Small, {**given, "sizes": [np.uint8(1), torch.tensor(2)]}, "small")
    assert small == Small(rate=0.25, plain=3, steps=9, is_on=True, sizes=(1, 2))
    assert [type(value) for value in (small.rate, small.plain, small.steps, small.is_on)] == [float, int, int, bool]
    assert config.from_dict(Small, {"rate": np.float32(0.5)}, "small").rate == 0.5
    with pytest.raises(ConfigError, match="small.plain = 2.0 must be int, not float"):
        config.from_dict(Small, {"plain": np.float32(2.0)}, "small")


def test_the_ends_of_a_range_are_in_it():
    assert config.from_dict(Small, {"rate": 0.0, "plain": 5, "steps": 1}, "small").plain == 5
    assert config.from_dict(Small, {"rate": 1.0}, "small").rate == 1.0


def test_options_come_back_from_toml_as_they_were(tmp_path):
    path = tmp_path / "options.toml"
    for options in (Small(), Small(0.1 + 0.2, 2**60, -1, "fast", True, (9,), 'a "word"\nüñ')):
        path.write_text(config.write_toml({"small": config.to_dict(options)}))
        assert config.from_dict(Small, config.read_toml(path)["small"], "small") == options


@pytest.mark.parametrize("name", TABLE_NAMES)
def test_every_table_of_a_run_comes_back_from_toml_as_it_was(name, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(config.write_toml(as_tables(Options())))
    assert config.from_dict(type(DEFAULTS[name]), config.read_toml(path)[name], name) == DEFAULTS[name]


def test_a_whole_run_comes_back_from_toml_as_it_was(tmp_path):
    options = Options(seed=7, train=PPO(total_steps=123, gamma=0.9), nn=Net(core="lstm"), vec=Vec(num_envs=3))
    options = dataclasses.replace(options, env={"frame_skip": 3, "names": ["a", "b"]})
    path = tmp_path / "run.toml"
    path.write_text(config.write_toml(as_tables(options)))
    assert merge(Options(), config.read_toml(path), "run.toml") == options


def test_files_that_cannot_be_read_are_told(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        config.read_toml(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(ConfigError, match=r"bad.toml is not TOML: .*line 1"):
        config.read_toml(tmp_path / "bad.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        config.read_toml(tmp_path / "bytes.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        config.read_toml(tmp_path)


# ---- a run's layers ----


def test_later_layers_go_over_earlier_ones():
    options = options_for("no/tuned:env", {"train": {"gamma": 0.9, "clip": 0.1}}, {"train": {"gamma": 0.8}, "seed": 4})
    assert (options.train.gamma, options.train.clip, options.seed) == (0.8, 0.1, 4)


def test_params_of_the_env_are_merged_by_name():
    options = options_for("no/tuned:env", {"env": {"a": 1, "b": 2}}, {"env": {"b": 3}})
    assert options.env == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"trian": {}}, r"Did you mean 'train'\?"),
        ({"train": 3}, "'train'"),
        ({"train": {"learning_rat": 1.0}}, r"Did you mean 'learning_rate'\?"),
        ({"train": {"learning-rate": -1.0}}, "--train.learning-rate -1.0 is below 0.0"),
        ({"nn": {"core": "gru"}}, r"Did you mean 'mingru'\?|Choices: none, lstm, mingru"),
        ({"seed": "one"}, "must be int, not str"),
        ({"seed": -1}, "^--seed -1 is below 0"),
        ({"seed": 2**31}, "^--seed 2147483648 is above 2147483647"),
    ],
)
def test_a_wrong_layer_is_told(tables, message):
    with pytest.raises(ConfigError, match=message):
        options_for("no/tuned:env", tables)


def test_every_tuned_file_is_made_of_options_that_exist(every_env):
    assert isinstance(options_for(every_env), Options)
    others = {"env", "score", "sweep", "run", "algo", "seed", "device", "cuda", "opponents", "wrap"}
    assert set(tuned(every_env)) <= {*TABLES, *ALGORITHMS.names(), *others}
    for name in ("cuda", *ALGORITHMS.names()):
        tables = tuned(every_env).get(name, {})
        assert set(tables) <= {*TABLES, "env", "score", "cuda"}
        assert set(tables.get("cuda", {})) <= {*TABLES, "env"}
    for algo in ALGORITHMS.names():
        for device in ("cpu", "cuda"):
            assert isinstance(options_for(every_env, {"algo": algo, "device": device}), Options)


def test_a_gpu_has_tuned_values_of_its_own():
    on_cpu, on_gpu = (options_for("breakout", {"device": device}) for device in ("cpu", "cuda"))
    assert on_cpu.vec.num_envs < on_gpu.vec.num_envs == tuned("breakout")["cuda"]["vec"]["num_envs"]
    assert on_gpu.train.normalize_reward == on_cpu.train.normalize_reward  # what [cuda] does not say stays
    assert options_for("breakout", {"device": "cuda"}, {"vec": {"num_envs": 7}}).vec.num_envs == 7
    dqn = options_for("vacuum", {"device": "cuda", "algo": "dqn"})
    assert dqn.train.batch_size == tuned("vacuum")["dqn"]["cuda"]["train"]["batch_size"]
    assert dqn.nn.hidden == tuned("vacuum")["dqn"]["nn"]["hidden"]


# ---- help and flags ----


@pytest.mark.parametrize(("name", "field"), FIELDS, ids=lambda x: getattr(x, "name", x))
def test_every_option_has_help_and_a_default_within_its_range(name, field):
    text = field.metadata["help"]
    assert len(text) > 3
    assert not text.endswith(".")
    default, low, high = field.default, field.metadata["low"], field.metadata["high"]
    for value in default if isinstance(default, tuple) else (default,):
        assert low is None or value is None or low <= value
        assert high is None or value is None or value <= high
    sweep = field.metadata["sweep"]
    if sweep is not None:
        assert sweep.low < sweep.high
        assert low is None or low <= sweep.low
        assert high is None or sweep.high <= high
        assert not isinstance(sweep, LogUniform) or sweep.low > 0


def test_flags_say_the_help_and_the_default_of_every_option(capsys):
    import tyro

    with pytest.raises(SystemExit) as exit:
        tyro.cli(config.flags(_Both), args=["--help"], prog="x")
    assert exit.value.code == 0
    shown = "".join(c if c.isalnum() or c.isspace() or c in ".-_" else " " for c in capsys.readouterr().out)
    words = set(shown.split())
    for option in dataclasses.fields(Small):
        assert f"--part.{option.name}".replace("_", "-") in words
        assert set(option.metadata["help"].replace(",", "").split()) <= words


@dataclass(frozen=True)
class _Both:
    part: Small = field(default_factory=Small)


@pytest.mark.parametrize(
    ("args", "changed"),
    [
        ([], {}),
        (["--part.steps", "20M"], {"steps": 20_000_000}),
        (["--part.rate", "0.25", "--part.mode", "fast"], {"rate": 0.25, "mode": "fast"}),
    ],
)
def test_flags_make_the_same_options_as_tables(args: list[str], changed: dict[str, Any]):
    import tyro

    assert tyro.cli(config.flags(_Both), args=args) == _Both(Small(**changed))


def test_a_flag_that_is_no_count_exits_2_with_the_reason(capsys):
    import tyro

    with pytest.raises(SystemExit) as exit:
        tyro.cli(config.flags(_Both), args=["--part.steps", "many"])
    assert exit.value.code == 2
    assert "count" in capsys.readouterr().err
