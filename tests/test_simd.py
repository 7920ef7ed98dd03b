"""Users are told when the compiler made no SIMD code of their env, and which line is to blame."""

from __future__ import annotations

import json
import re

import pytest

from shoal import conformance
from shoal.cli import bench_env
from shoal.cli import main as cli
from shoal.native import build, lib, simd

from .checks import use_checks

HEADER = """// quiet.h: come to rest.
#define ENV_OBS OBS_F32(2)
#define ENV_ACTION ACT_DISCRETE(3)
#define ENV_MAX_STEPS 50
#define ENV_STATE(X) X(float, x) X(float, v) X(int32_t, still)
#define ENV_NO_DRAW
#include "core/env.h"
static __attribute__((noinline, unused)) float twice(float x) { return 2.0f * x + m_sin(x); }
ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)p;
    s->x = rng_int(rng, 2) ? rng_uniform(rng, -1.0f, 1.0f) : 0.0f;
    s->v = 0.0f;
    s->still = 0;
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)p, (void)rng;
    s->v = 0.9f * s->v + 0.1f * (float)((*a == 2) - (*a == 1));
    s->x += 0.1f * s->v;
    int quiet = m_abs(s->v) < 0.05f;
    LINE
    out->reward = -s->x * s->x;
    out->terminated = s->still >= 10;
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    obs[0] = s->x;
    obs[1] = s->v;
}
"""
NUMBER = 1 + HEADER.splitlines().index("    LINE")

gcc = pytest.mark.skipif(build.is_clang(build.find_compiler()[0]), reason="gcc's notes are read")


def header(tmp_path, line):
    path = tmp_path / "quiet.h"
    path.write_text(HEADER.replace("LINE", line))
    return path


@gcc
@pytest.mark.parametrize(
    "line",
    [
        "s->still = quiet ? s->still + 1 : 0;",  # compared with 10 below: gcc made a branch of it
        pytest.param("s->still += 1; if (!quiet) s->still = 0;", marks=pytest.mark.slow),
        pytest.param("s->still = quiet * (s->still + 1);", marks=pytest.mark.slow),
        pytest.param("s->still = *a == 2 ? s->still + 1 : 1;", marks=pytest.mark.slow),
        "if (quiet) s->x *= 0.5f; else s->x += 0.1f;",
        "s->x += rng_uniform(rng, -0.1f, 0.1f);",
    ],
)
def test_these_forms_become_simd_code(tmp_path, line):
    found = simd.report(build.Source.env(header(tmp_path, line)), lib.best_variant())
    assert found.is_simd, found.text
    assert re.fullmatch(r"\d+ envs at a time", found.text)


@gcc
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("if (quiet) s->x = rng_uniform(rng, -1.0f, 1.0f);", "a random draw in a branch. Draw always"),
        pytest.param(
            "while (s->x > 1.0f) s->x -= 1.0f;",
            "a loop whose length depends on the env. Give it a fixed length",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "if (quiet) { out->terminated = 1; return; }",
            "a return before the end. Let the function end in one place",
            marks=pytest.mark.slow,
        ),
        (
            "switch (*a) { case 0: s->x += 1.0f; break; case 1: s->v = 0.0f; break; default: break; }",
            "a switch. Compute each case and select",
        ),
        ("s->still = s->still / (*a + 1);", "a division of ints. SIMD has none: divide by a constant"),
        ("s->x = __builtin_sinf(s->x);", "a call of sinf() of libm. Use m_sin"),
        ("float own[3] = {s->x, s->v, 1.0f}; s->x = own[i_clamp(s->still, 0, 2)];", "an array indexed by a computed"),
        pytest.param(
            "s->x = twice(s->x);",
            "a call of twice(), which is not inlined. Define it as ENV_FN",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_these_forms_do_not_and_the_line_and_the_reason_are_named(tmp_path, line, says):
    found = simd.report(build.Source.env(header(tmp_path, line)), lib.best_variant())
    assert found.is_simd is False
    assert f"quiet.h:{NUMBER}: {says}" in found.text
    assert "the loop over env_step is not vectorized" in found.text


@gcc
def test_a_line_of_an_included_file_is_named(tmp_path):
    (tmp_path / "part.h").write_text("\nENV_FN int32_t cut(int32_t n, int32_t by) { return n % (by + 3); }\n")
    path = header(tmp_path, "s->still = cut(s->still, *a);")
    path.write_text(path.read_text().replace('#include "core/env.h"', '#include "core/env.h"\n#include "part.h"'))
    assert "part.h:2: a remainder of ints" in simd.report(build.Source.env(path), lib.best_variant()).text


@gcc
def test_env_state_may_be_in_an_included_file(tmp_path):
    path = header(tmp_path, "")
    line = next(line for line in HEADER.splitlines() if "define ENV_STATE" in line)
    (tmp_path / "part.h").write_text(f"{line}\n")
    path.write_text(path.read_text().replace(line, '#include "part.h"'))
    source = build.Source.env(path)
    assert set(build.GCC_COLUMN_FLAGS) <= set(build.compile_command(source, "base", tmp_path / "quiet.so"))
    assert simd.report(source, lib.best_variant()).is_simd


def test_with_clang_it_is_unknown_and_said(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "is_clang", lambda command: True)
    found = simd.report(build.Source.env(header(tmp_path, "")), lib.best_variant())
    assert found.is_simd is None
    assert "only gcc reports it" in found.text


def test_without_env_state_the_next_move_is_said(tmp_path):
    path = header(tmp_path, "")
    text = path.read_text().replace("#define ENV_STATE(X) X(float, x) X(float, v) X(int32_t, still)\n", "")
    struct = '#include "core/env.h"\ntypedef struct { float x, v; int32_t still; } State;'
    path.write_text(text.replace('#include "core/env.h"', struct))
    found = simd.report(build.Source.env(path), lib.best_variant())
    assert found.is_simd is None
    assert "can be listed in ENV_STATE" in found.text


@gcc
def test_check_and_bench_say_it(tmp_path, capsys, monkeypatch):
    use_checks(monkeypatch, "simd")
    path = header(tmp_path, "if (quiet) s->x = rng_uniform(rng, -1.0f, 1.0f);")
    outcomes = {outcome.name: outcome for outcome in conformance.run_checks(path, steps=100)}
    slow = outcomes["the loops over envs are vectorized"]
    assert slow.status == "warned"
    assert f"quiet.h:{NUMBER}:" in slow.text
    assert [outcome for outcome in outcomes.values() if outcome.status == "failed"] == []
    words = ["--seconds", "0.01", "--repeats", "1", "--num-envs", "64", "--backends", "serial"]
    assert cli.main(["bench", "env", str(path), *words]) == 0
    assert f"quiet.h:{NUMBER}" in capsys.readouterr().out
    assert cli.main(["bench", "env", str(header(tmp_path, "")), *words, "--json"]) == 0
    (note,) = json.loads(capsys.readouterr().out)["simd"].values()
    assert note["is_simd"] is True
    assert note["text"].startswith("the step is vectorized")
    assert bench_env._simd_note("cartpole") is None
