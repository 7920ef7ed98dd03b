"""Edges: headers, compilers and the cache."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import shoal
from shoal import errors
from shoal.cli.main import main
from shoal.cli.new import write_header
from shoal.conformance import run_checks
from shoal.native import build

from .checks import use_checks


@pytest.fixture
def header(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    return write_header("my_env", tmp_path)


def change(header: Path, *pairs: tuple[str, str]) -> Path:
    text = header.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    header.write_text(text)
    return header


@pytest.mark.skipif(not shutil.which("clang"), reason="no clang")
def test_clang(header, monkeypatch):
    monkeypatch.setenv("CC", "clang")
    assert [o for o in run_checks(header, 400) if o.status == "failed"] == []
    assert [o for o in run_checks("cartpole", 400) if o.status == "failed"] == []


def test_masks_and_columns_together(header, monkeypatch):
    """step_block is defined but not used, a warning that `shoal check` makes an error."""
    use_checks(monkeypatch, "c11", "cpp17", "spaces", "layouts")
    change(header, ("#define ENV_STATE(X)", "#define ENV_HAS_MASK\n#define ENV_STATE(X)"))
    mask = "(void)s, (void)p, (void)agent, mask[0] = mask[1] = mask[2] = 1;"
    header.write_text(
        header.read_text()
        + f"ENV_FN void env_mask(const State *s, const Params *p, int agent, uint8_t *mask) {{ {mask} }}\n"
    )
    assert [o.text for o in run_checks(header, 400) if o.status == "failed"] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [("ACT_DISCRETE(3)", "ACT_MULTI(2, 2, 2, 2, 2, 2, 2, 2, 3)"), ("OBS_F32(3) ", "OBS_F32(3, 1, 1, 1, 2) ")],
)
def test_more_than_the_contract_allows(header, old, new):
    """Today shoal_spec writes past the arrays of Spec, and the env loads with wrong spaces."""
    with pytest.raises(errors.BuildError):
        shoal.make(change(header, (old, new)))


@pytest.mark.parametrize("name", ["length", "episodes", "episode"])
def test_a_stat_may_not_hide_our_own(header, name):
    with pytest.raises(errors.BuildError):
        shoal.make(change(header, ("X(sum, caught", f"X(sum, {name}"), ("stats.caught", f"stats.{name}")))


@pytest.mark.parametrize("name", ["seed", "copy", "backend", "num_envs"])
def test_a_param_may_not_hide_an_option_of_make(header, name):
    with pytest.raises(errors.BuildError):
        shoal.make(change(header, ("X(float, speed", f"X(float, {name}"), ("p->speed", f"p->{name}")))


@pytest.mark.parametrize("line", ["enum { BLOCK = 1 };", "enum { DISABLED };", "typedef struct { int a; } Record;"])
def test_names_of_your_own(header, line):
    shoal.make(change(header, ('#include "core/env.h"', f'#include "core/env.h"\n{line}')))


def test_an_error_in_an_included_file_is_shown(header):
    (header.parent / "part.h").write_text("ENV_FN float twice(float x) { return x * undefined_name; }\n")
    with pytest.raises(errors.CompileFailed, match=r"part.h:1:\d+: error: .*undefined_name"):
        shoal.make(change(header, ('#include "core/env.h"', '#include "core/env.h"\n#include "part.h"')))


def test_a_const_at_its_default_needs_no_compiler(monkeypatch):
    shoal.make("maze")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(build, "find_compiler", lambda *_: (_ for _ in ()).throw(errors.CompilerMissing("none")))
    default = shoal.make("maze").native_spec.consts[0].default
    shoal.make("maze", side=default)


def test_a_header_saved_while_it_compiles(header, monkeypatch, tmp_path):
    """The library was named by the text before, made from the text after, and kept under the wrong name for good."""
    shoal.make("cartpole")
    before, after = header.read_text(), header.read_text().replace("fall, 0.05f", "fall, 0.25f")
    compile_now = build.run_compiler

    def saved_meanwhile(command, source):
        if source.name == "my_env":
            header.write_text(after)
        return compile_now(command, source)

    monkeypatch.setattr(build, "run_compiler", saved_meanwhile)
    shoal.make(header)
    monkeypatch.setattr(build, "run_compiler", compile_now)
    header.write_text(before)
    assert shoal.make(header).get_params()["fall"][0] == pytest.approx(0.05)


@pytest.mark.parametrize("folder", [".", "~"])
def test_cache_dir_may_be_relative_or_home(header, monkeypatch, tmp_path, folder):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHOAL_CACHE_DIR", folder)
    shoal.make(header)
    assert not (tmp_path / "~").exists()


def test_a_header_that_is_not_utf8(header):
    header.write_bytes(header.read_bytes().replace(b"half the width", b"half the w\xefdth"))
    shoal.make(header)
    shoal.register("my_env", header)


def test_unbounded_boxes_can_be_checked(header, monkeypatch):
    use_checks(monkeypatch)
    change(
        header,
        ("ACT_DISCRETE(3)", "ACT_BOX(1)\n#define ENV_ACTION_LOW -M_INF\n#define ENV_ACTION_HIGH M_INF"),
        ("(float)((*a == 2) - (*a == 1))", "m_clamp(*a, -1.0f, 1.0f)"),
    )
    assert [o.text for o in run_checks(header, 400) if o.status == "failed"] == []


def test_a_time_limit_beyond_the_check(header, monkeypatch):
    use_checks(monkeypatch)
    change(
        header,
        ("ENV_MAX_STEPS 500 ", "ENV_MAX_STEPS 5000 "),
        ("out->terminated = landed && !caught;", "out->terminated = 0;"),
    )
    assert [o.text for o in run_checks(header, 400) if o.status == "failed"] == []


def test_check_of_a_path_with_brackets(header, tmp_path, monkeypatch, capsys):
    use_checks(monkeypatch)
    folder = tmp_path / "[" / "bold]"
    folder.mkdir(parents=True)
    shutil.copy(header, folder)
    assert main(["check", str(folder / "my_env.h"), "--quick"]) == 0
    assert os.path.basename(str(tmp_path)) in capsys.readouterr().out.replace("\n", "")


def test_snapshots_of_a_namesake(header, tmp_path):
    """Two headers of one name and size in two folders: one's snapshot goes into the other unseen."""
    (tmp_path / "b").mkdir()
    other = tmp_path / "b" / "my_env.h"
    x, y = "X(float, ball_x)", "X(float, ball_y)"
    other.write_text(header.read_text().replace(f"{x} {y}", f"{y} {x}"))
    a, b = shoal.make(header, 2), shoal.make(other, 2)
    a.reset(seed=0)
    with pytest.raises(errors.SnapshotError):
        b.restore(a.snapshot())


INCLUDE = '#include "core/env.h"'
MISTAKES = {
    "misspelled": (
        ("ENV_MAX_STEPS", "ENV_MAXSTEPS"),
        "defines ENV_MAXSTEPS, which nothing reads. Did you mean 'ENV_MAX_S",
    ),
    "stats": (("#define ENV_STATS(X)", "#define ENV_STAT(X)"), "defines ENV_STAT, .*Did you mean 'ENV_STATS'"),
    "obs": (("OBS_F32(3)", "OBS_FLOAT(3)"), r"ENV_OBS is OBS_FLOAT\(…\), which does not exist. Use OBS_F32, OBS_U8"),
    "action": (("ACT_DISCRETE(3)", "ACT_DISCRET(3)"), r"ENV_ACTION is ACT_DISCRET\(…\).* Use ACT_BOX, ACT_DISCRETE"),
    "kind": (("X(sum, caught", "X(total, caught"), "a stat of kind 'total'. Use sum, mean, last"),
    "include": (('#include "core/env.h"', ""), r"does not include core/env.h. Write #include"),
    "choices": (("ACT_DISCRETE(3)", "ACT_DISCRETE(0)"), "ENV_ACTION has a part of size 0"),
    "mask": ((INCLUDE, f"{INCLUDE}\nENV_FN void env_mask(int x) {{ (void)x; }}"), "env_mask, but does not define"),
    "check": ((INCLUDE, f"{INCLUDE}\nENV_FN int env_check(int x) {{ return x; }}"), "define ENV_HAS_CHECK"),
    "bounds": (("ENV_OBS_LOW -1.0f ", "ENV_OBS_LOW 2.0f "), "ENV_OBS_LOW is above ENV_OBS_HIGH: 2.0 and 1.0"),
    "agents": (("#define ENV_OBS O", "#define ENV_AGENTS 0\n#define ENV_OBS O"), "ENV_AGENTS is 0"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_macros_are_named(header, name):
    """A misspelled ENV_MAX_STEPS is no time limit at all; the others were pages about core/, or a traceback."""
    pair, says = MISTAKES[name]
    with pytest.raises(errors.BuildError, match=says):
        shoal.make(change(header, pair), 2)


def test_a_preset_with_a_wrong_value_is_named_before_it_is_used(header):
    change(header, ("#define ENV_STATE(X)", '#define ENV_PRESETS(X) X("fast", "fall=quick", "")\n#define ENV_STATE(X)'))
    with pytest.raises(errors.BuildError, match="preset 'fast': fall='quick' is not a number"):
        shoal.make(header, 2)


def test_a_wrong_number_of_bounds_is_named_by_the_check(header):
    """The compiler's warning about it shows a line of core/."""
    change(header, ("ENV_OBS_LOW -1.0f ", "ENV_OBS_LOW -1.0f, -1.0f "))
    failed = [outcome.text for outcome in run_checks(header, 400) if outcome.status == "failed"]
    assert len(failed) == 1
    assert "ENV_OBS_LOW has 2 values. Give 1 value, or 3" in failed[0]


def test_macros_of_the_header_itself_are_its_own_business(header):
    """ENV_STAT is similar to ENV_STATS, but here the header reads it."""
    change(header, ("#define ENV_STATS(X)", '#define ENV_STAT "balls caught"\n#define ENV_STATS(X)'))
    change(header, ('"balls caught in the episode"', "ENV_STAT"))
    shoal.make(header, 2).close()


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_second_ctrl_c_ends_a_run_whose_env_never_returns(header, tmp_path):
    """Python runs no handler of a signal while C code loops: without help only kill -9 ended the run."""
    change(header, ("    int landed", "    while (s->ball_y < 0.0f) s->ball_y -= 0.0f;\n    int landed"))
    words = ["train", str(header), "--train.total-steps", "4k", "--vec.num-envs", "8", "--console", "lines"]
    command = [sys.executable, "-u", "-m", "shoal", *words, "--device", "cpu"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout
        try:
            while "horizon" not in process.stdout.readline():
                assert process.poll() is None
            time.sleep(2.0)  # it is in the first rollout
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
            assert process.stderr
            assert "compiled code did not return" in process.stderr.read()
        finally:
            process.kill()
