"""A snapshot whose bytes were changed and whose checksum was recomputed is refused, or does no harm."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import shoal
from shoal import conformance, registry
from shoal.errors import SnapshotError
from tests.forging import forged, records_of

FORGE = """
import sys
import numpy as np
import shoal
from shoal.errors import SnapshotError
from tests.forging import forged, records_of

vec = shoal.make(sys.argv[1], 16, seed=0)
vec.reset()
rng, refused = np.random.default_rng(0), 0
for trial in range(400):
    vec.step(vec.action_space.sample())
    blob = vec.snapshot()
    records = records_of(vec, blob)
    for record in records:
        at = int(rng.integers(record.size))
        record[at : at + int(rng.integers(1, 9))] = rng.integers(0, 256)
    for env, record in enumerate(records):
        try:
            vec.restore(forged(vec.snapshot([env]), record), [env])
        except SnapshotError:
            refused += 1
    vec.frame(trial % 16, 64)
print("alive", refused)
"""


def test_no_byte_of_a_snapshot_crashes_the_env(env):
    run = subprocess.run([sys.executable, "-c", FORGE, env], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.startswith("alive")


@pytest.mark.parametrize(("name", "field"), [("maze", "at"), ("forage", "first"), ("vacuum", "turn")])
def test_an_index_out_of_range_is_refused_and_changes_nothing(name, field):
    vec = shoal.make(name, 3, seed=0)
    vec.reset()
    before = vec.snapshot()
    header = registry.find(name).read_text()
    assert field in header
    records = records_of(vec, before)
    records[1, :-64] = 0x7F  # every index of the State among them
    with pytest.raises(SnapshotError, match=f"env 1 of this snapshot has a state that {name} cannot reach"):
        vec.restore(forged(before, records))
    assert vec.snapshot() == before


def test_flags_and_random_streams_are_checked_for_every_env():
    vec = shoal.make("cartpole", 2, seed=0)
    vec.reset()
    before = vec.snapshot()
    for fill in (0x00, 0xFF):  # a dead random stream; a negative tick
        records = records_of(vec, before)
        records[0, 16:40] = fill  # behind the four floats of State: rng, tick, ended
        with pytest.raises(SnapshotError, match="env 0"):
            vec.restore(forged(before, records))
    assert vec.snapshot() == before


def test_check_asks_for_env_check_where_an_env_needs_one(tmp_path):
    header = tmp_path / "maze.h"
    text = registry.find("maze").read_text().replace("#define ENV_HAS_CHECK\n", "").replace("env_check", "is_sound")
    header.write_text(text)
    with tempfile.TemporaryDirectory() as folder:
        subject = conformance.Subject(header, 2000, Path(folder))
        with pytest.raises(conformance.Failure, match=r"maze.h:\d+.*ENV_HAS_CHECK, and an env_check"):
            conformance.check_forged(subject)


def test_check_refuses_an_env_check_that_is_too_strict(tmp_path):
    header = tmp_path / "maze.h"
    header.write_text(
        registry.find("maze").read_text().replace("is_inside(s->goal);", "is_inside(s->goal) && s->visited < 3;")
    )
    with tempfile.TemporaryDirectory() as folder:
        subject = conformance.Subject(header, 2000, Path(folder))
        with pytest.raises(conformance.Failure, match="env_check refuses a state that env_step reached"):
            conformance.check_sanitizers(subject)
