"""What every env promises, one property at a time, over the whole suite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import shoal
from shoal import registry
from shoal.conformance import CHECKS, run_checks
from shoal.native import build, lib
from shoal.vector.play import golden, play
from shoal.vector.serial import SerialVec

from .checks import ALL, SHORT, use_checks, with_slow

GOLDEN = Path(__file__).parent / "golden.json"


WHOLE = ("cartpole", "forage")  # with columns, and with agents and images


def test_keeps_the_short_part_of_the_contract(every_env, monkeypatch):
    """`shoal check` without what compiles something, over fewer steps."""
    count = use_checks(monkeypatch, *SHORT)
    outcomes = list(run_checks(every_env, steps=200))
    assert [o for o in outcomes if o.status == "failed"] == []
    assert len(outcomes) == count


def test_keeps_the_quick_part_of_the_contract(env, monkeypatch):
    """`shoal check` without other languages, sanitizers and other builds."""
    count = use_checks(monkeypatch)
    outcomes = list(run_checks(env, steps=1000))
    assert [o for o in outcomes if o.status == "failed"] == []
    assert len(outcomes) == count


@pytest.mark.parametrize("env", with_slow(ALL, WHOLE))
def test_keeps_the_contract(env):
    """All of `shoal check`: three languages, sanitizers, determinism, spaces, batch sizes, threads, snapshots."""
    outcomes = list(run_checks(env, steps=1000))
    assert [o for o in outcomes if o.status == "failed"] == []
    (simd,) = (o for o in outcomes if "vectorized" in o.name)
    columns = build.is_columns(build.Source.env(registry.find(env)).text())
    # chain observes `states` numbers: gcc vectorizes its step, not that loop (112M steps/s on a core as it is)
    assert simd.status == ("warned" if env == "chain" else "passed" if columns else "skipped")
    assert len(outcomes) == len(CHECKS)


def test_golden_rollout(every_env):
    """The same seed gives the same bytes, today as on the day the hash was written.

    A change of behaviour raises ENV_VERSION and is written down with `scripts/golden`.
    """
    header = registry.find(every_env)
    found = {"version": registry.version(header), "hash": golden(SerialVec(lib.load(header), 64))}
    assert found == {name: value for name, value in hashes(every_env).items() if name in found}


def test_golden_rollouts_of_presets(env):
    header = registry.find(env)
    spec, found = lib.load(header).spec, {}
    for preset in spec.presets:
        params, consts = spec.split({"preset": preset.name})
        found[f"hash of {preset.name}"] = golden(SerialVec(lib.load(header, consts), 64, params=params))
    assert found == {name: value for name, value in hashes(env).items() if name.startswith("hash of ")}


def test_golden_rollouts_of_every_build(env, monkeypatch):
    """Compiled as users have them."""
    monkeypatch.delenv("SHOAL_CFLAGS")
    for variant in build.variants()[: 2 if lib.best_variant() == "avx2" else 1]:
        assert golden(SerialVec(lib.load(registry.find(env), variant=variant), 64)) == hashes(env)["hash"]


def hashes(name: str) -> dict[str, Any]:
    """The golden hashes of an env."""
    found: dict[str, Any] = json.loads(GOLDEN.read_text())[name]
    return found


def test_every_golden_hash_has_its_env():
    assert sorted(json.loads(GOLDEN.read_text())) == registry.stock_names()


@pytest.mark.filterwarnings("ignore:.*value is -?infinity:UserWarning")  # cartpole's bounds are Gymnasium's own
@pytest.mark.filterwarnings("ignore:.*symmetric and normalized space:UserWarning")  # so are pendulum's
def test_gymnasium_check_env(env):
    header = registry.find(env)
    single = gymnasium.make(f"shoal/{registry.title(env)}-v{registry.version(header)}", render_mode="rgb_array")
    check_env(single.unwrapped)
    single.close()


def test_params_and_consts_are_described(every_env):
    spec = lib.load(registry.find(every_env)).spec
    first, _body = registry.summary(registry.find(every_env))
    assert len(first) > 20
    assert first.endswith(".")
    assert spec.stats, "an env reports something of its own"
    for entry in (*spec.params, *spec.consts, *spec.stats):
        assert entry.help, entry.name


def test_statistics_equal_a_slow_sum_over_infos(env):
    """drain_stats against means taken from every step's infos; the same for any number of threads."""
    drained = []
    for options in ({"backend": "serial"}, {"backend": "threads", "num_threads": 3}):
        vec = shoal.make(env, 200, seed=5, **options)
        vec.reset()
        agents, stats = vec.agents_per_env, [stat.name for stat in vec.native_spec.stats]
        seen = {name: [] for name in ["return", "length", *stats]}
        returns, lengths = np.zeros(vec.num_rows), np.zeros(vec.num_envs)
        for step in range(400):
            vec.module.sample(vec.memory.address, step, 0, vec.num_envs)
            alive = vec.alive.copy()
            _, rewards, terminated, truncated, infos = vec.step(vec.actions)
            returns += rewards
            lengths += 1
            done = (terminated | truncated).reshape(-1, agents)
            out = (done | ~alive.reshape(-1, agents)).all(1)  # every agent is out: the episode is over
            for game in np.flatnonzero(out):
                rows = slice(game * agents, (game + 1) * agents)
                seen["return"].append(returns[rows].mean())
                seen["length"].append(lengths[game])
                for name in stats:
                    seen[name].append(infos["final_info"][name][game * agents])
                returns[rows], lengths[game] = 0, 0
        drained.append(vec.drain_stats())
        assert drained[-1]["episodes"] == len(seen["return"])
        for name, values in seen.items():
            if values:
                assert drained[-1][name]["mean"] == pytest.approx(np.mean(values), rel=1e-4, abs=1e-6)
        assert vec.drain_stats() == {"episodes": 0}
        vec.close()
    assert drained[0] == drained[1]


def test_per_env_params_equal_shared_ones(env):
    """An array of equal params steps through another code path to the same bytes."""
    own = [p for p in shoal.make(env).native_spec.params if p.name != "max_steps"]
    name, default = (own[0].name, own[0].default) if own else ("max_steps", 50)  # some have no param of their own
    value = int(default) if not own or own[0].kind == "int" else default
    shared, each = shoal.make(env, 70, **{name: value}), shoal.make(env, 70, **{name: [value] * 70})
    shared.reset(seed=3)
    each.reset(seed=3)
    assert (play(shared, 300) == play(each, 300)).all()


def test_time_limit_is_a_param(env):
    vec = shoal.make(env, 8, max_steps=3)
    vec.reset(seed=0)
    ended = np.zeros(vec.num_rows, bool)
    for step in range(1, 4):
        vec.module.sample(vec.memory.address, step, 0, 8)
        _, _, terminated, truncated, infos = vec.step(vec.actions)
        ended |= terminated | truncated
    assert ended.all()
    assert truncated.any()
    assert infos["final_info"]["episode"]["l"][truncated].tolist() == [3] * int(truncated.sum())
