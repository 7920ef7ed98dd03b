"""Plugins are found by file, by entry point and by registration."""

from __future__ import annotations

import dataclasses
import itertools
import sys

import pytest

from shoal import config
from shoal.errors import ConfigError
from shoal.plugins import Plugins
from shoal.seeds import stream_seed


@pytest.fixture
def shapes(tmp_path, monkeypatch):
    """A package with two plugins, one file that is none, and an entry point of another package."""
    package = tmp_path / "geometry"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "circle.py").write_text("SHAPE = 'round'\n")
    (package / "square.py").write_text("SHAPE: str = 'angular'\n")
    (package / "helpers.py").write_text('"""As in\n\nSHAPE = \'shown\'\n"""\nuses = \'SHAPE\'\n')
    (tmp_path / "other_package.py").write_text("SHAPE = 'from outside'\n")
    info = tmp_path / "other_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[shoal.shapes]\ntriangle = other_package\nbroken = missing_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Plugins("shape", package="geometry", marker="SHAPE")
    for name in [name for name in sys.modules if name.split(".")[0] in ("geometry", "other_package")]:
        del sys.modules[name]


def test_a_file_that_assigns_the_marker_is_a_plugin(shapes):
    assert shapes.stock() == ("circle", "square")
    assert shapes.find("circle") == "round"
    assert shapes.find("square") == "angular"


def test_listing_imports_nothing(shapes):
    shapes.names()
    assert "geometry.circle" not in sys.modules


def test_entry_points_of_other_packages_are_found(shapes):
    assert shapes.names() == ("circle", "square", "broken", "triangle")
    assert shapes.find("triangle") == "from outside"
    with pytest.raises(ConfigError, match="shape 'broken' of 'missing_module' cannot be loaded: ModuleNotFoundError"):
        shapes.find("broken")


def test_registered_plugins_are_found(shapes):
    shapes.register("line", "thin")
    assert shapes.find("line") == "thin"
    with pytest.raises(ConfigError, match="'circle' is the name of a stock shape"):
        shapes.register("circle", "mine")
    with pytest.raises(ConfigError, match="no shape 'cirle'. Did you mean 'circle'\\? Known: circle"):
        shapes.find("cirle")


def test_choices_of_an_option_are_listed_when_it_is_read(shapes):
    @dataclasses.dataclass(frozen=True)
    class Drawing:
        shape: str = config.opt("circle", "what is drawn", choices=shapes.names)

    assert config.from_dict(Drawing, {"shape": "square"}, "draw").shape == "square"
    with pytest.raises(ConfigError, match="Choices: circle, square"):
        config.from_dict(Drawing, {"shape": "line"}, "draw")
    shapes.register("line", "thin")
    assert config.from_dict(Drawing, {"shape": "line"}, "draw").shape == "line"


def test_streams_of_different_names_or_seeds_share_no_seed():
    names = [("policy", k, what) for k in range(8) for what in ("weights", "actions", "minibatches")]
    seeds = [stream_seed(seed, *name) for seed, name in itertools.product((0, 1, 2, 1025, 2**31 - 1), names)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert stream_seed(1, "policy", 1) != stream_seed(1, "policy", "1")
    assert stream_seed(1, "envs") == stream_seed(1, "envs")
    assert all(stream_seed(k, "envs", bits=30) < 2**30 for k in range(100))
