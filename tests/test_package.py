"""The wheel: needs no compiler where it is installed, and is the same for every Python."""

from __future__ import annotations

import fcntl
import importlib.util
import itertools
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy
import pytest

from shoal import registry
from shoal.config import parse_toml
from shoal.native import build, glibc, lib
from shoal.web import build as web

ROOT = Path(__file__).parent.parent

RUN_ALL = """
import shoal
from shoal import registry
from shoal.config import parse_toml
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
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        assert wheel.stem.endswith(f"manylinux_2_28_{platform.machine()}"), "not newer than torch's"
    assert "shoal/py.typed" in zipfile.ZipFile(wheel).namelist()


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs binutils")
def test_needed_versions_are_those_of_objdump(tmp_path):
    """Also of a library that needs a newer glibc: the current version of pthread_create is of 2.34."""
    source, own = tmp_path / "new.c", tmp_path / "new.so"
    source.write_text("#include <pthread.h>\nint f(pthread_t *t) { return pthread_create(t, 0, 0, 0); }\n")
    subprocess.run([*build.find_compiler(), "-shared", "-fPIC", str(source), "-o", str(own)], check=True)
    for library in (own, build.library(build.CORE_SOURCE, "base"), build.library(build.PPO_SOURCE, "base")):
        table = subprocess.run(["objdump", "-T", str(library)], capture_output=True, text=True, check=True).stdout
        versions = [tuple(map(int, text.split(".")[:2])) for text in re.findall(r"GLIBC_([\d.]+)", table)]
        assert glibc.needs(library).glibc == max(versions)
    assert glibc.tag([own]).startswith("manylinux_2_")
    with pytest.raises(ValueError, match="not a 64-bit ELF library"):
        glibc.needs(source)


def test_a_library_besides_those_of_every_linux_has_no_manylinux_tag(tmp_path):
    other, own = tmp_path / "libother.so", tmp_path / "own.so"
    (tmp_path / "other.c").write_text("int other(void) { return 1; }\n")
    (tmp_path / "own.c").write_text("int other(void); int own(void) { return other(); }\n")
    compiler = [*build.find_compiler(), "-shared", "-fPIC"]
    subprocess.run([*compiler, str(tmp_path / "other.c"), "-o", str(other)], check=True)
    subprocess.run([*compiler, str(tmp_path / "own.c"), f"-L{tmp_path}", "-lother", "-o", str(own)], check=True)
    assert "libother.so" in glibc.needs(own).libraries
    assert glibc.tag([own]) == ""


def test_a_wheel_is_built_with_the_compiler_for_the_browser_and_an_editable_install_without(monkeypatch):
    """Of pip's two kinds of installation, `pip install .` may take its time."""
    pytest.importorskip("hatchling")
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("SHOAL_WEB", raising=False)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)
    settings = parse_toml((ROOT / "pyproject.toml").read_text())
    assert settings["build-system"]["build-backend"] == "hatch_build"
    assert settings["project"]["optional-dependencies"]["web"] == [backend.ZIG]
    assert backend.ZIG in backend.get_requires_for_build_wheel()
    assert backend.ZIG not in backend.get_requires_for_build_editable()
    monkeypatch.setenv("SHOAL_WEB", "0")
    assert backend.ZIG not in backend.get_requires_for_build_wheel()


@pytest.mark.slow  # builds the release and uses it: 2 min
@pytest.mark.timeout(1200)
@pytest.mark.skipif(web.find_zig() is None, reason="needs the extra web")
def test_the_release_works_on_a_machine_without_a_compiler(tmp_path):
    packages = str(Path(numpy.__file__).parent.parent)
    command = [sys.executable, str(ROOT / "scripts/release-check"), "--out", str(tmp_path), "--packages", packages]
    env = {**os.environ, "SHOAL_CACHE_DIR": str(build.cache_dir())}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "== the release works" in done.stdout


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
