"""`shoal env add`: an environment is complete or made anew, one process makes it, and nothing else is touched."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import zipfile
from pathlib import Path

import pytest

from shoal import environments
from shoal.cli.main import main
from shoal.environments import Recipe
from shoal.errors import ConfigError
from shoal.integrations.framework import FRAMEWORKS, framework
from shoal.integrations.separate import Separate

RECIPE = Recipe("tiny", ("pip install tiny==1.0 'numpy<2'",), ">=3.9,<9")


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data" / "envs"


@pytest.fixture
def commands(monkeypatch):
    """Runs no pip: a virtual environment is a link to this interpreter."""
    ran = []
    monkeypatch.setattr(environments, "_run", lambda command, *rest: ran.append(command) or _fake(command))
    return ran


def _fake(command):
    if "venv" in command:
        folder = os.path.join(command[-1], "bin")
        os.makedirs(folder)
        os.symlink(sys.executable, os.path.join(folder, "python"))


def add(recipe=RECIPE, verify=lambda python: "1 step", **options):
    said = []
    environments.add(recipe, verify, said.append, **options)
    return said


def test_an_environment_is_made_once(data, commands):
    assert environments.python_of(RECIPE) is None
    said = add()
    python = str(RECIPE.folder / "bin" / "python")
    assert environments.python_of(RECIPE) == python
    assert commands[1][:4] == [python, "-m", "pip", "install"]
    assert commands[1][-2:] == ["tiny==1.0", "numpy<2"]
    assert "1 step" in said[-1]
    assert environments.facts_of(RECIPE.folder)["python"] == sys.version.split()[0]
    assert add() == [f"tiny is there: {RECIPE.folder}"]
    assert len(commands) == 2
    assert RECIPE.folder.parent == data


def test_one_that_does_not_work_is_not_kept(data, commands):
    def fails(python):
        raise ConfigError("no Vulkan")

    with pytest.raises(ConfigError, match="no Vulkan"):
        add(verify=fails)
    assert environments.existing() == []
    assert environments.python_of(RECIPE) is None


def test_killed_half_way_it_is_made_anew(data, commands):
    code = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests import test_environments as t\n"
        "t.environments._run = lambda command, *rest: t._fake(command)\n"
        "t.environments.add(t.RECIPE, lambda python: os.kill(os.getpid(), signal.SIGKILL), print)\n"
    )
    root = os.path.dirname(os.path.dirname(__file__))
    died = subprocess.run([sys.executable, "-c", code, root], capture_output=True, text=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert RECIPE.folder.is_dir()
    assert environments.python_of(RECIPE) is None  # it is there, but never used
    said = add()
    assert "which was not complete" in said[0]
    assert environments.python_of(RECIPE) is not None


def test_a_pip_whose_parent_was_killed_is_waited_for(data, tmp_path):
    """It still writes into the environment: the next `add` must not make it anew at the same time."""
    script = tmp_path / "python"
    script.write_text(
        f"#!{sys.executable}\n"
        "import os, pathlib, sys, time\n"
        "if sys.argv[1] == '-c': print(3, 10, 1)\n"
        "elif not pathlib.Path(sys.argv[0] + '.ended').exists():\n"
        "    pathlib.Path(sys.argv[0] + '.began').touch()\n"
        "    time.sleep(2)\n"
        "    pathlib.Path(sys.argv[0] + '.ended').touch()\n"
        "else:\n"
        "    os.makedirs(sys.argv[-1] + '/bin'); os.symlink(sys.executable, sys.argv[-1] + '/bin/python')\n"
    )
    script.chmod(0o755)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests import test_environments as t\n"
        "t.environments.add(t.Recipe('tiny', ()), lambda python: 'never', print, sys.argv[2])\n"
    )
    root = os.path.dirname(os.path.dirname(__file__))
    adding = subprocess.Popen([sys.executable, "-c", code, root, str(script)])
    began, ended = tmp_path / "python.began", tmp_path / "python.ended"
    while not began.exists():
        assert adding.poll() is None
        time.sleep(0.02)
    adding.kill()
    adding.wait()
    assert not ended.exists()
    said = add(Recipe("tiny", ()), python=str(script))
    assert ended.exists()
    assert said[0] == "another process is at tiny: waiting for it"
    assert "which was not complete" in said[1]


def make_wheel(folder):
    """A package without code but one line, as pip installs it."""
    info = "tiny_env-1.0.dist-info"
    with zipfile.ZipFile(folder / "tiny_env-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_env.py", "STEPS = 10\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-env\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"tiny_env.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


def installed(folder):
    """The files of an environment, without what Python compiles, and when they changed."""
    paths = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path): path.lstat().st_mtime_ns for path in paths}


@pytest.mark.slow  # pip is installed twice
def test_with_pip_itself_a_kill_is_recovered_from_and_nothing_else_is_written(data, tmp_path, monkeypatch):
    """Nothing is faked but the package. pip is told to install elsewhere, as a user's settings may say."""
    make_wheel(tmp_path)
    mine = tmp_path / "mine"
    mine.mkdir()
    monkeypatch.setenv("PIP_TARGET", str(mine))
    monkeypatch.setenv("PIP_USER", "1")
    recipe = Recipe("tiny", (f"pip install --no-index --find-links '{tmp_path}' tiny-env==1.0",))
    before = installed(Path(sysconfig.get_path("purelib")))
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from shoal import environments as e\n"
        "e.add(e.Recipe('tiny', (sys.argv[2],)), lambda python: time.sleep(60), print)\n"
    )
    root = Path(__file__).parents[1]
    adding = subprocess.Popen([sys.executable, "-c", code, root, *recipe.commands])
    log = recipe.folder / environments.LOG
    while not (log.is_file() and "tiny-env" in log.read_text()):
        assert adding.poll() is None
        time.sleep(0.01)
    adding.kill()
    adding.wait()
    assert environments.python_of(recipe) is None

    def verify(python):
        done = subprocess.run([python, "-c", "import tiny_env as t; print(t.STEPS, t.__file__)"], capture_output=True)
        return done.stdout.decode().strip()

    said = add(recipe, verify)
    assert any("which was not complete" in line for line in said)
    python = environments.python_of(recipe)
    assert python is not None
    assert f"10 {recipe.folder}" in said[-1]
    assert list(mine.iterdir()) == []
    assert installed(Path(sysconfig.get_path("purelib"))) == before
    assert importlib.util.find_spec("tiny_env") is None


def test_other_pins_make_another_and_remove_the_old(data, commands):
    add()
    newer = Recipe("tiny", ("pip install tiny==2.0",), RECIPE.python)
    assert environments.python_of(newer) is None
    said = add(newer)
    assert "which has other versions" in said[-1]
    assert environments.existing() == [newer.folder]


def test_two_processes_make_it_once(data, commands):
    made, said, first_is_in, second_waits = [], [], threading.Event(), threading.Event()

    def slowly(python):
        made.append(python)
        first_is_in.set()
        second_waits.wait(20)
        return "1 step"

    def say(line):
        said.append(line)
        second_waits.set()

    first = threading.Thread(target=add, kwargs={"verify": slowly})
    first.start()
    assert first_is_in.wait(20)
    environments.add(RECIPE, slowly, say)
    first.join()
    assert len(made) == 1
    assert said == ["another process is at tiny: waiting for it"]


def test_a_command_that_fails_is_reported_with_its_last_lines(data, tmp_path):
    script = tmp_path / "python"
    says = "if [ $1 = -c ]; then echo 3 10 1; else echo 'no matching distribution'; exit 7; fi"
    script.write_text(f"#!/bin/sh\n{says}\n")
    script.chmod(0o755)
    with pytest.raises(ConfigError, match=r"could not be made: .*-m venv .* ended with code 7(?s:.*)no matching dist"):
        add(python=str(script))
    assert environments.existing() == []


def test_remove(data, commands):
    add()
    with pytest.raises(ConfigError, match="griddly has no environment. There are tiny"):
        environments.remove("griddly", print)
    environments.remove("tiny", lambda line: None)
    assert environments.existing() == []
    with pytest.raises(ConfigError, match="There are none"):
        environments.remove("tiny", print)


def test_list_says_what_is_there_and_what_is_next(data, commands, capsys):
    (data / "griddly-0123abcd").mkdir(parents=True)
    add()
    assert main(["env", "list"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^tiny +other versions +3\.\d+\.\d+ ", out, re.MULTILINE)
    assert re.search(r"^griddly +not complete +griddly-0123abcd", out, re.MULTILINE)
    assert f"The folders are in {data}." in out
    assert "Next: shoal env add griddly " in out


def test_the_wrong_python_is_a_clear_error(data, commands):
    old = Recipe("tiny", RECIPE.commands, "<3.6")
    with pytest.raises(ConfigError, match="tiny needs Python <3.6, and there is none here. .*pyenv install 3.5"):
        add(old)
    with pytest.raises(ConfigError, match="is Python .*; tiny needs <3.6"):
        add(old, python=sys.executable)
    with pytest.raises(ConfigError, match="is not a Python interpreter"):
        add(python="/bin/true")
    with pytest.raises(ConfigError, match="is no command of pip"):
        add(Recipe("tiny", ("apt-get install java",)))
    assert commands == []


def test_a_folder_that_cannot_be_written(monkeypatch, tmp_path, commands):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SHOAL_DATA_DIR", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="Set SHOAL_DATA_DIR to a folder that you may write to"):
        add()


# ---- frameworks ----


def separate():
    return [name for name in FRAMEWORKS.names() if framework(name).is_separate]


def test_the_frameworks_with_conflicting_pins_are_separate():
    assert {"griddly", "microrts", "nmmo", "overcooked"} <= set(separate())


@pytest.mark.parametrize("name", ["griddly", "microrts", "nmmo", "overcooked"])
def test_a_missing_environment_names_the_command_that_makes_it(name, data):
    import shoal

    found = framework(name)
    assert isinstance(found, Separate)
    with pytest.raises(ConfigError, match=f"{name}: .*Make it: shoal env add {name}"):
        shoal.make(f"{name}:{found.example}", 2)
    found.recipe.folder.mkdir(parents=True)
    with pytest.raises(ConfigError, match=f"was interrupted. Make it anew: shoal env add {name}"):
        shoal.make(f"{name}:{found.example}", 2)
    other = found.recipe.folder.with_name(f"{name}-00000000")
    found.recipe.folder.rename(other)
    (other / environments.READY).write_text(json.dumps({"name": name}))
    with pytest.raises(ConfigError, match=f"other versions than this Shoal needs. Make it anew: shoal env add {name}"):
        shoal.make(f"{name}:{found.example}", 2)
