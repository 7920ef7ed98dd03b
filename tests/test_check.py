"""`shoal check` finds what is wrong with a header and says so, by line where it can."""

from __future__ import annotations

import re

import numpy as np
import pytest

from shoal import conformance
from shoal.errors import CompileFailed
from shoal.native import build, cuda

from .conftest import BROKEN

# (header, the check that must fail, what its text must say)
CASES = [
    ("uninitialised", "env_reset sets", r"right after reset, element 1 .* Set every field of State in env_reset"),
    ("half_obs", "env_reset sets", r"element 1 of the observation .* every element of obs in env_observe"),
    ("nan", "observations stay within", r"element \[1\] is (-)?nan. Look for 0/0"),
    ("out_of_range", "observations stay within", r"outside \[-1, 1\]. Fix env_observe, or ENV_OBS_LOW"),
    ("libc_rand", "calls nothing from libc", r"libc_rand.h:13 calls rand\(\) .* Use rng_u32\(rng\)"),
    ("libc_rand", "the same seed", r"Something depends on more than `rng`"),
    ("libm", "calls nothing from libc", r"libm.h:19 calls sinf\(\) .* Use m_sin."),
    ("global", "calls nothing from libc", r"global.h:6 keeps the global variable 'count'"),
    ("unmarked", "calls nothing from libc", r"unmarked.h:8 defines the function env_reset without ENV_FN"),
    ("out_of_bounds", "random play is clean", r"out_of_bounds.h:22: runtime error: index 4 out of bounds"),
    (
        "negative_byte",
        "random play is clean",
        r"negative_byte.h:21: runtime error: -1(\.0*)? is outside the range .* char",
    ),
    ("no_end", "episodes end", r"give a time limit with ENV_MAX_STEPS"),
    ("no_compile", "compiles as C11", r"no_compile.h:16:6: error"),
]


@pytest.mark.parametrize(("name", "check", "says"), CASES)
def test_finds_and_explains(name, check, says, monkeypatch):
    """By the one check that is for it: most of the others take a compiler seconds (test_envs.py makes them all)."""
    only = [c for c in conformance.CHECKS if (c.__doc__ or "").strip().startswith(check)]
    monkeypatch.setattr(conformance, "CHECKS", only)
    outcomes = list(conformance.run_checks(BROKEN / f"{name}.h", steps=400))
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    assert len(failed) == 1, outcomes
    assert re.search(says, failed[0].text), failed[0].text


def test_every_broken_header_is_a_case():
    assert {path.stem for path in BROKEN.glob("*.h")} == {case[0] for case in CASES}


TABLE = """// table.h: walk along a table.
#define ENV_OBS OBS_F32(1)
#define ENV_ACTION ACT_DISCRETE(3)
#define ENV_MAX_STEPS 20
#define ENV_NO_DRAW
#include "core/env.h"
KIND char level[2][6] = {"#..##", "#.#.#"};
KIND float pays[2][5] = {{0.5f, -1.0f, 2.0f, 3.0f, 1.0f}, {1.0f, 2.0f, 3.0f, 4.0f, 5.0f}};
KIND int32_t unused_table[2] = {1, 2};
typedef struct {
    int32_t x, level;
} State;
ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)p;
    s->level = rng_int(rng, 2);
    s->x = 0;
}
ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)p, (void)rng;
    s->x = i_clamp(s->x + (*a == 2) - (*a == 1), 0, 4);
    out->reward = pays[s->level][s->x];
    out->terminated = level[s->level][s->x] == '.';
}
ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    obs[0] = pays[s->level][s->x];
}
"""


def test_env_data_is_a_table_in_every_language(tmp_path):
    """C11, C++17 and a GPU: without a warning, without a global variable, also where a table is not used."""
    header = tmp_path / "table.h"
    header.write_text(TABLE.replace("KIND", "ENV_DATA"))
    subject = conformance.Subject(header, 200, tmp_path)
    for check in (conformance.check_c11, conformance.check_cpp17, conformance.check_symbols):
        assert check(subject)
    vec = subject.vec(1)
    assert vec.step(np.array([2]))[1].tolist() in ([-1.0], [2.0])
    pytest.importorskip("cuda.bindings")
    assert cuda.cubin(subject.source, "sm_90")[:4] == b"\x7fELF"


def test_a_table_that_a_gpu_does_not_have_is_explained(tmp_path, monkeypatch):
    def refuse(command, source):
        raise CompileFailed('table.h(21): error: identifier "level" is undefined in device code')

    monkeypatch.setattr(conformance.shutil, "which", lambda name: name)
    monkeypatch.setattr(build, "run_compiler", refuse)
    header = tmp_path / "table.h"
    header.write_text(TABLE.replace("KIND", "static const"))
    with pytest.raises(conformance.Failure, match="Declare tables with ENV_DATA"):
        conformance.check_cuda(conformance.Subject(header, 200, tmp_path))
