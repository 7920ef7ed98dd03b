"""`shoal check` finds what is wrong with a header and says so, by line where it can."""

from __future__ import annotations

import re

import pytest

from shoal import conformance

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
    ("out_of_bounds", "random play is clean", r"out_of_bounds.h:22: runtime error: index 4 out of bounds"),
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
