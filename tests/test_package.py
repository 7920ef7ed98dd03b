"""The wheel: needs no compiler where it is installed, and is the same for every Python."""

from __future__ import annotations

import fcntl
import itertools
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from shoal import registry
from shoal.native import build, lib

ROOT = Path(__file__).parent.parent

RUN_ALL = """
import shoal
from shoal import registry
from shoal.native import qlearn
assert "site" in shoal.__file__, shoal.__file__
qlearn.load()
for name in registry.stock_names():
    vec = shoal.make(name, 70, backend="threads", num_threads=2)
    vec.reset(seed=0)
    vec.step(vec.action_space.sample())
    vec.frame(0)
    for preset in vec.native_spec.presets:
        shoal.make(name, preset=preset.name).reset(seed=0)
    print(name)
try:
    shoal.make("MY_ENV")
except shoal.ShoalError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built once, also where several workers of pytest-xdist have a test of it: the others wait for the first."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "wheel"
    with open(shared / "wheel.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "wheel", str(ROOT)]
            env = {**os.environ, "SHOAL_CACHE_DIR": str(build.cache_dir())}  # other tests compiled most of it
            subprocess.run([*command, "--no-deps", "--no-build-isolation", "-w", f"{folder}.new"], check=True, env=env)
            os.rename(f"{folder}.new", folder)
    return next(folder.glob("*.whl"))


def test_tag_is_of_the_platform_alone(wheel):
    assert wheel.name.split("-", 2)[2].startswith("py3-none-"), wheel.name
    assert not wheel.name.endswith("-any.whl")


def test_holds_every_env_in_every_variant(wheel):
    names = {Path(name).name for name in zipfile.ZipFile(wheel).namelist()}
    for env in registry.stock_names():
        spec = lib.load(registry.find(env)).spec
        for variant, preset in itertools.product(build.variants(), (None, *(preset.name for preset in spec.presets))):
            _params, consts = spec.split({"preset": preset})
            assert build.Source.env(registry.find(env), consts).file_name(variant) in names
    assert build.CORE_SOURCE.file_name("base") in names
    assert {build.QLEARN_SOURCE.file_name(variant) for variant in build.variants()} <= names


def test_runs_without_a_compiler(wheel, tmp_path):
    """Installed where no gcc is on PATH: every stock env runs, and a header of one's own is refused clearly."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    header = tmp_path / "my_env.h"
    header.write_text((ROOT / "tests" / "broken" / "no_end.h").read_text())
    env = {"PATH": str(tmp_path), "HOME": str(tmp_path), "PYTHONPATH": str(site)}
    code = RUN_ALL.replace("MY_ENV", str(header))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 0, done.stderr
    *envs, refusal = done.stdout.splitlines()
    assert envs == registry.stock_names()
    assert refusal.startswith("CompilerMissing no C compiler found")
    assert not (tmp_path / ".cache").exists(), "nothing was compiled"


def test_import_takes_a_moment():
    """Shoal's own part of `import shoal`, beside the packages that it needs. CPU time, the best of five.

    On an idle core all of it takes 0.2 to 0.3 s. CPU time is longer where a core's other thread is busy.
    """
    code = "import time; t = time.process_time(); import {}; print(time.process_time() - t)"

    def best(modules: str) -> float:
        command = [sys.executable, "-c", code.format(modules)]
        return min(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(5))

    whole, others = best("shoal"), best("numpy, gymnasium")
    assert whole - others < 0.2, (whole, others)


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path))
    assert build.cache_dir() == tmp_path
    monkeypatch.delenv("SHOAL_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build.cache_dir() == tmp_path / "shoal"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert build.cache_dir() == Path(os.environ["HOME"]) / ".cache" / "shoal"
