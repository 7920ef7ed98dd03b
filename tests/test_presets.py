"""What a header says of its params' values: limits, names for choices, presets. From Python and on the command line."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest

import shoal
from shoal.cli import pages
from shoal.cli.main import main
from shoal.cli.new import write_header
from shoal.cli.train import parse
from shoal.conformance import run_checks
from shoal.errors import BuildError, ConfigError
from shoal.native import build, lib
from shoal.train import options_for

from .checks import use_checks

MORE = r"""
#define ENV_CONSTS(X) X(lives, 1, "of no use here")
#define ENV_LIMITS(X) X("reach", 0.05, 1) X("lives", 1, 3)
#define ENV_CHOICES(X) X("wind", "calm breeze storm")
#define ENV_PRESETS(X)                                                                                                 \
    X("easy", "reach=0.5 wind=calm", "a wide basket") X("hard", "lives=2 fall=0.1 wind=storm reach=0.1", "a fast ball")
#define ENV_STATS"""
PRESETS = {
    "easy": {"reach": 0.5, "wind": "calm"},
    "hard": {"lives": 2, "fall": 0.1, "wind": "storm", "reach": 0.1},
}


@pytest.fixture
def header(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    path = write_header("my_env", tmp_path)
    return change(path, ("#define ENV_STATS", MORE), ('of the basket")', 'of the basket") X(int, wind, 1, "the wind")'))


def change(header: Path, *pairs: tuple[str, str]) -> Path:
    text = header.read_text()
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    header.write_text(text)
    return header


def values(vec) -> dict[str, float]:
    return {name: float(f"{array[0]:.6g}") for name, array in vec.get_params().items()}


# ---- presets ----


def test_a_preset_sets_params_and_consts(header):
    spec = lib.load(header).spec
    assert {preset.name: preset.settings for preset in spec.presets} == PRESETS
    plain, hard = shoal.make(header), shoal.make(header, 3, preset="hard")
    assert values(plain) == {"max_steps": 500, "speed": 0.1, "fall": 0.05, "reach": 0.2, "wind": 1}
    assert values(hard) == {"max_steps": 500, "speed": 0.1, "fall": 0.1, "reach": 0.1, "wind": 2}
    assert [vec.native_spec.consts[0].default for vec in (plain, hard)] == [1, 2]


def test_what_is_given_goes_over_the_preset(header):
    vec = shoal.make(header, 2, preset="hard", reach=[0.3, 0.4], lives=1)
    assert vec.get_params()["reach"].tolist() == pytest.approx([0.3, 0.4])
    assert vec.get_params()["fall"].tolist() == pytest.approx([0.1, 0.1])
    assert vec.native_spec.consts[0].default == 1


def test_a_preset_may_change_while_it_steps(header):
    vec = shoal.make(header)
    vec.set_params(preset="easy")
    assert values(vec)["reach"] == 0.5
    with pytest.raises(ConfigError, match="lives is a compile-time const"):
        vec.set_params(preset="hard")


def test_an_unknown_preset_is_refused_with_a_suggestion(header):
    with pytest.raises(ConfigError, match=r"my_env has no preset 'hrad'. Did you mean 'hard'\? It has easy, hard."):
        shoal.make(header, preset="hrad")
    with pytest.raises(ConfigError, match=r"squared has no presets. Leave out preset='hard'."):
        shoal.make("squared", preset="hard")


def test_gymnasium_takes_presets(header):
    shoal.register("with_presets", header)
    with gymnasium.make("shoal/WithPresets-v0", preset="easy") as env:
        assert values(env.unwrapped.vec)["reach"] == 0.5
    assert values(gymnasium.make_vec("shoal/WithPresets-v0", 2, preset="easy"))["reach"] == 0.5


def test_presets_on_the_command_line(header):
    found = parse([str(header), "--env.preset", "hard", "--env.fall", "0.2"]).options
    assert found.env == {"preset": "hard", "fall": 0.2}
    assert values(shoal.make(header, **found.env)) | {"speed": 0} == {
        "max_steps": 500,
        "speed": 0,
        "fall": 0.2,
        "reach": 0.1,
        "wind": 2,
    }
    assert parse([str(header), "--env.preset=hard", "--env.wind", "calm"]).options.env["wind"] == "calm"


def test_help_shows_the_preset_s_values_as_defaults(header, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["train", str(header), "--env.preset", "hard", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--env.fall FLOAT how far the ball falls in a step (default: 0.1)" in shown
    assert "--env.wind {calm,breeze,storm} the wind (default: storm)" in shown
    assert "which other params override: easy, hard (default: hard)" in shown


@pytest.mark.parametrize("flag", ["--env.preset hrad", "--env.wind gale", "--env.reach 7", "--env.lives 9"])
def test_a_wrong_value_on_the_command_line_exits_with_2(header, capsys, flag):
    assert main(["train", str(header), *flag.split(), "--console", "off"]) == 2
    told = capsys.readouterr().err
    assert {"--env.preset hrad": "Did you mean 'hard'?", "--env.wind gale": "gale"}.get(flag, "must be in") in told


def test_a_preset_clears_what_tuned_values_said(header):
    header.with_suffix(".toml").write_text("[env]\nspeed = 0.3\nreach = 0.9\n")
    assert options_for(str(header)).env == {"speed": 0.3, "reach": 0.9}
    assert parse([str(header), "--env.preset", "easy"]).options.env == {"preset": "easy"}
    assert options_for(str(header), {"env": {"preset": "easy", "fall": 0.1}}).env == {"preset": "easy", "fall": 0.1}


def test_every_preset_is_built_for_the_wheel(header):
    library = build.library(build.Source.env(header), "base")
    sources = build.preset_sources(header, library)
    assert sources == [build.Source.env(header, {"lives": 2})]
    assert (
        sources[0].file_name("base", build.user_flags(sources[0])) == lib.load(header, {"lives": 2}, "base").path.name
    )


def test_shoal_check_takes_a_preset(header, monkeypatch):
    use_checks(monkeypatch)
    assert [outcome for outcome in run_checks(header, 400, preset="hard") if outcome.status == "failed"] == []
    with pytest.raises(ConfigError, match="Did you mean 'hard'"):
        list(run_checks(header, 400, preset="hrad"))


# ---- limits and choices ----


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"reach": 1.5}, "my_env: reach=1.5 must be in 0.05 .. 1."),
        ({"reach": [0.5, 0.01]}, "my_env: reach=0.01 must be in 0.05 .. 1."),
        ({"lives": 4}, "my_env: lives=4 must be in 1 .. 3."),
        ({"wind": 3}, "my_env: wind=3 is none of its choices: calm (0), breeze (1), storm (2)."),
        ({"wind": "strom"}, "my_env: wind='strom'. Did you mean 'storm'? Choices: calm (0), breeze (1), storm (2)."),
        ({"wind": 1.0}, "my_env: wind=1.0 is not an int."),
    ],
)
def test_a_wrong_value_is_refused_with_the_number_and_what_may_be(header, given, says):
    with pytest.raises(ConfigError) as caught:
        shoal.make(header, 2, **given)
    assert str(caught.value) == says


def test_a_limit_may_depend_on_a_const(header):
    change(header, ('X("reach", 0.05, 1)', 'X("reach", 0, lives)'))
    shoal.make(header, lives=2, reach=1.5)
    with pytest.raises(ConfigError, match=r"reach=1.5 must be in 0 .. 1"):
        shoal.make(header, reach=1.5)


def test_choices_are_given_by_name_or_number(header):
    vec = shoal.make(header, 3, wind=["storm", "calm", "breeze"])
    assert vec.get_params()["wind"].tolist() == [2, 0, 1]
    vec.set_params(wind="storm")
    assert vec.get_params()["wind"].tolist() == [2, 2, 2]
    vec.set_params(wind=np.array([0, 1, 2]))
    assert vec.get_params()["wind"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('X("reach", 0.05, 1)', 'X("reahc", 0.05, 1)', "ENV_LIMITS names 'reahc', which matches no param or const"),
        ('X("reach", 0.05, 1)', 'X("reach", 0.3, 1)', "reach=0.2.* must be in 0.3 .. 1"),
        ('X("wind", "calm', 'X("fall", "calm', "ENV_CHOICES has 'fall', which is not an int"),
        ('"reach=0.5 wind=calm"', '"reach=0.5 winds=calm"', "no param 'winds'. Did you mean 'wind'"),
        ('X("reach", 0.05, 1)', 'X("reach", lives, 2)', "reach=0.2.* must be in 1 .. 2"),
        ("int, wind, 1", "int, preset, 1", "ENV_CHOICES has 'wind'|the param 'preset' has the name of an option"),
    ],
)
def test_a_header_that_contradicts_itself_is_told_so(header, old, new, says):
    with pytest.raises(BuildError, match=says):
        shoal.make(change(header, (old, new)))


def test_the_page_shows_them(header):
    page = pages.page(header)
    assert "| `wind` | int | breeze | the wind; one of calm (0), breeze (1), storm (2) |" in page
    assert "| `reach` | float | 0.2 | half the width of the basket (0.05 to 1) |" in page
    assert "- **hard**: a fast ball. (`lives=2`, `fall=0.1`, `wind=storm`, `reach=0.1`)" in page
    data = pages.describe(header)
    assert data["presets"][0] == {"name": "easy", "settings": PRESETS["easy"], "help": "a wide basket"}
    assert data["params"][-1]["choices"] == ("calm", "breeze", "storm")


def test_numbered_neighbours_share_a_row_of_the_page(header):
    hues = " ".join(f'X(int, hue_{k}, {hue}, "a hue")' for k, hue in enumerate((9, 5, 5)))
    change(header, ("X(int, wind", f"{hues} X(int, wind"))
    assert "| `hue_0` to `hue_2` | int | 9, 5, … | a hue |" in pages.page(header)
