"""core/pool.c under ThreadSanitizer: submits, helps, groups and closes with no data race. Its threads take actions."""

from __future__ import annotations

import re
import subprocess

import numpy as np
import pytest

import shoal
from shoal.errors import ActionError
from shoal.native import build

PROGRAM = r"""
#include <stdio.h>
#include "core/pool.c"

static int32_t hits[8192];
static int64_t touch(void *batch, int32_t lo, int32_t hi) {
    int32_t *where = (int32_t *)batch;
    for (int32_t i = lo; i < hi; i++) where[i]++;
    return hi - lo;
}

int main(void) {
    for (int32_t threads = 0; threads < 4; threads++) {
        Pool *pool = shoal_pool_open(threads, 1, 20);
        for (int32_t k = 0; k < 400; k++) {
            int32_t n = 1 + (k * 977) % 8192;
            if (shoal_pool_run(pool, touch, hits, 0, n, 1 + k % 100) != n) return 1;
        }
        shoal_pool_close(pool);
    }
    Pool *pool = shoal_pool_open(2, 3, 0);
    for (int32_t k = 0; k < 400; k++) {
        for (int32_t g = 0; g < 3; g++) shoal_pool_submit(pool, g, touch, hits, 2000 * g, 2000 * (g + 1), 64);
        for (int32_t g = 0; g < 3; g++) {
            if (shoal_pool_wait(pool, g, g == 1) != 2000) return 2;
        }
        if (shoal_pool_run(pool, touch, hits, 0, 8192, 128) != 8192) return 3;
    }
    shoal_pool_close(pool);
    int64_t total = 0, expected = 400LL * (6000 + 8192);
    for (int32_t k = 0; k < 400; k++) expected += 4 * (1 + (k * 977) % 8192);
    for (int32_t i = 0; i < 8192; i++) total += hits[i];
    printf("%lld of %lld\n", (long long)total, (long long)expected);
    return total != expected;
}
"""


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_pool_is_clean(sanitizer, tmp_path):
    source = tmp_path / "pool_main.c"
    source.write_text(PROGRAM)
    program = tmp_path / "pool_main"
    command = [*build.find_compiler(), "-std=gnu11", "-O1", "-g", f"-fsanitize={sanitizer}", f"-I{build.NATIVE}"]
    subprocess.run([*command, str(source), "-o", str(program), "-lpthread"], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("env", ["cartpole", "pendulum", "forage"])  # integers, floats, several agents and numbers
def test_threads_take_the_actions_of_many_envs_together(env, monkeypatch):
    """The same steps, and the same first bad action before any env is stepped."""
    monkeypatch.setattr("shoal.vector.threads.TAKE_TOGETHER", 64)
    serial = shoal.make(env, 500, backend="serial", seed=1)
    threads = shoal.make(env, 500, backend="threads", num_threads=3, seed=1)
    assert threads._takes
    serial.reset()
    threads.reset()
    for step in range(3):
        serial.module.sample(serial._address, step, 0, 500)
        actions = serial.actions.copy()
        for ours, theirs in zip(threads.step(actions)[:4], serial.step(actions)[:4]):
            assert np.array_equal(ours, theirs)
    before, wrong = threads.snapshot(), actions.astype(np.float32 if env == "pendulum" else np.int64)
    wrong.reshape(-1)[[wrong.size - 3, wrong.size // 2]] = np.nan if env == "pendulum" else 99
    with pytest.raises(ActionError) as told:
        serial.step(wrong)
    with pytest.raises(ActionError, match=re.escape(str(told.value))):
        threads.step(wrong)
    assert threads.snapshot() == before
