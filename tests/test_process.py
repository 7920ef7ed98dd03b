"""Worker processes say what `serial` says: every env, worker count, start method and order of arrival; agents too."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import shoal
import shoal.integrations.pettingzoo
from shoal.errors import ActionError, BadOutput, ConfigError, ShoalError, UnknownEnv, UsageError
from tests.envs import CounterEnv, DictEnv, DyingAgentsEnv, ImageEnv, InfoEnv, MixedAgentsEnv, TurnsEnv
from tests.trees import assert_same, leaves

TIMEOUT_S = 30.0
PERIOD = 64  # actions repeat after so many steps
MEMORY = ("obs", "rewards", "terminated", "truncated", "done", "alive", "ended")


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """A nested structure of arrays with a function done to each."""
    if isinstance(tree, dict):
        return {key: mapped(function, part) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(mapped(function, part) for part in tree)
    return function(tree)


class Script:
    """Actions that depend on the env and on its step, and on nothing else."""

    def __init__(self, vec: Any, seed: int = 0) -> None:
        self.agents = vec.agents_per_env if vec.agent_spaces.alike else 1
        vec.action_space.seed(seed)
        batches = [vec.action_space.sample() for _ in range(PERIOD)]
        self.table = self._stacked(batches)

    def _stacked(self, batches: list[Any]) -> Any:
        first = batches[0]
        if isinstance(first, dict):
            return {key: self._stacked([batch[key] for batch in batches]) for key in first}
        if isinstance(first, tuple):
            return tuple(self._stacked([batch[k] for batch in batches]) for k in range(len(first)))
        array = np.stack(batches)  # (PERIOD, envs * agents, …)
        return array.reshape(PERIOD, -1, self.agents, *array.shape[2:])

    def at(self, step: int) -> Any:
        """For all envs."""
        return mapped(lambda part: part[step % PERIOD].reshape(-1, *part.shape[3:]), self.table)

    def for_envs(self, env_id: Any, steps: Any) -> Any:
        """For some envs, each in its own step."""
        return mapped(lambda part: part[steps % PERIOD, env_id].reshape(-1, *part.shape[3:]), self.table)


def serial(env: Any, count: int, **options: Any) -> Any:
    return shoal.make(env, count, backend="serial", **options)


def process(env: Any, count: int, **options: Any) -> Any:
    return shoal.make(env, count, backend="process", **{"timeout_s": TIMEOUT_S, **options})


def assert_same_memory(vec: Any, twin: Any, where: str) -> None:
    ours, theirs = vec.block.arrays, twin.block.arrays
    for name in MEMORY:
        assert np.array_equal(ours[name], theirs[name]), f"{name} {where}"
    done = theirs["done"]
    if done.any():
        for name in ("final_obs", "final_return", "final_length"):
            assert np.array_equal(ours[name][done], theirs[name][done]), f"{name} {where}"


def shown(infos: dict[str, Any]) -> dict[str, Any]:
    """Infos with only those rows for which their masks say that they hold: the others have what was there before."""
    found: dict[str, Any] = {}
    for key, value in infos.items():
        if f"_{key}" in infos and key != "final_obs":
            if (mask := infos[f"_{key}"]).any():
                found[key] = shown(value) if isinstance(value, dict) else value[mask]
        elif key != "final_obs" and (key[1:] not in infos or value.any()):
            found[key] = value
    final, mask = infos.get("final_obs"), infos.get("_final_obs")
    if final is not None and len(leaves(final)[0]) == len(mask):
        found["final_obs"] = rows_where(final, mask)
    elif final is not None:  # by agent
        found["final_obs"] = {name: rows_where(final[name], mask[k :: len(final)]) for k, name in enumerate(final)}
    return found


def rows_where(tree: Any, mask: Any) -> Any:
    return mapped(lambda part: part[mask], tree)


def assert_equals_serial(
    env: Any, count: int, steps: int, *, seed: int = 3, autoreset: str = "same_step", **options: Any
) -> None:
    """Runs both side by side: the memory after every step, what was returned, and the infos."""
    twin = serial(env, count, autoreset=autoreset)
    vec = process(env, count, autoreset=autoreset, **options)
    try:
        assert vec.agent_spaces == twin.agent_spaces
        script = Script(twin)
        obs, infos = vec.reset(seed=seed)
        expected, expected_infos = twin.reset(seed=seed)
        assert_same(obs, expected)
        assert_same(infos, expected_infos)
        for step in range(steps):
            actions = script.at(step)
            result, known = vec.step(actions), twin.step(actions)
            assert_same_memory(vec, twin, f"after step {step}")
            assert_same(shown(result[4]), shown(known[4]), f"infos of step {step}")
            if step % 50 == 0:
                assert_same(result[:4], known[:4], f"step {step}")
            if autoreset == "disabled" and twin.block.arrays["ended"].any():
                mask = {"reset_mask": twin.block.arrays["ended"].copy()}
                vec.reset(options=dict(mask))
                twin.reset(options=dict(mask))
                assert_same_memory(vec, twin, f"after the reset in step {step}")
        stats = vec.drain_stats()
        assert stats["episodes"] > 0
        assert stats == twin.drain_stats()
    finally:
        vec.close()
        twin.close()


def play(vec: Any, steps: int) -> None:
    for _ in range(steps):
        vec.step(np.zeros(vec.num_rows, int))


def petting(name: str, **kwargs: Any) -> Any:
    """A PettingZoo env by name; the test is skipped where it is not installed."""
    pytest.importorskip("pettingzoo")
    try:
        find = shoal.integrations.pettingzoo.find(name)
    except ConfigError as error:
        pytest.skip(str(error))
    return lambda: find(**kwargs)


# ---- every env, every way to run it ----

LONG = {
    "cartpole": ("gymnasium:CartPole-v1", 4, 1200),
    "dict": (DictEnv, 2, 1200),
    "image": (ImageEnv, 4, 1200),
    "infos": (InfoEnv, 4, 400),
    "agents": (DyingAgentsEnv, 2, 1200),
    "mixed": (MixedAgentsEnv, 4, 400),
    "turns": (TurnsEnv, 2, 1200),
}


@pytest.mark.parametrize("name", LONG)
def test_equals_serial(name):
    env, count, steps = LONG[name]
    assert_equals_serial(env, count, steps, num_workers=2)


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("mpe2/simple_spread_v3", 100),
        ("mpe2/simple_speaker_listener_v4", 100),
        ("classic/rps_v2", 300),
        ("classic/connect_four_v3", 200),
        ("classic/tictactoe_v3", 200),
    ],
)
def test_pettingzoo_equals_serial(name, steps):
    assert_equals_serial(petting(name), 2, steps, num_workers=2)


@pytest.mark.parametrize("mode", ["next_step", "disabled"])
@pytest.mark.parametrize("name", ["cartpole", "infos", "agents", "mixed", "turns"])
def test_other_modes_equal_serial(name, mode):
    assert_equals_serial(LONG[name][0], 4, 200, num_workers=2, autoreset=mode)


@pytest.mark.parametrize("num_workers", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("name", ["dict", "agents"])
def test_any_number_of_workers(name, num_workers):
    assert_equals_serial(LONG[name][0], 24, 100, num_workers=num_workers)


@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
def test_any_start_method(start_method):
    assert_equals_serial(InfoEnv, 4, 100, num_workers=2, start_method=start_method)


def test_a_lambda_works_with_spawn():
    longest = 6
    assert_equals_serial(lambda: CounterEnv(longest), 2, 50, num_workers=2, start_method="spawn")


# ---- out of order ----


def trace(env: Any, count: int, steps: int) -> tuple[Script, list[Any]]:
    """What serial shows: a list over steps of (obs, rewards, terminated, truncated)."""
    twin = serial(env, count, copy=True)
    script = Script(twin)
    obs, _ = twin.reset(seed=9)
    zero = np.zeros(twin.num_rows)
    found = [(obs, zero.astype(np.float32), zero.astype(bool), zero.astype(bool))]
    for step in range(steps):
        found.append(twin.step(script.at(step))[:4])
    twin.close()
    return script, found


def rows_of(result: Any, number: int, agents: int) -> list[Any]:
    """The rows of one env of a batch."""
    return [part[number * agents : (number + 1) * agents] for part in leaves(result)]


def assert_async_equals_serial(env: Any, count: int, steps: int, **options: Any) -> None:
    """Each env, in whatever order it comes back, shows what serial shows."""
    script, expected = trace(env, count, steps)
    vec = process(env, count, **options)
    agents = vec.agents_per_env if vec.agent_spaces.alike else 1
    counts = np.zeros(count, int)
    until = time.monotonic() + TIMEOUT_S
    try:
        vec.async_reset(seed=9)
        batch = None
        while counts.min() < steps:
            assert time.monotonic() < until, f"some env is left waiting: {counts}"
            obs, rewards, terminated, truncated, infos = vec.recv()
            env_id = infos["env_id"]
            assert len(set(env_id.tolist())) == len(env_id)
            assert batch is None or len(env_id) == batch
            batch = len(env_id)
            for at, number in enumerate(env_id):
                if counts[number] > steps:
                    continue
                known = expected[counts[number]]
                assert_rows(obs, known[0], at, number, agents)
                for got, part in zip((rewards, terminated, truncated), known[1:]):
                    each = vec.agents_per_env
                    np.testing.assert_array_equal(
                        got[at * each : (at + 1) * each], part[number * each : (number + 1) * each]
                    )
            vec.send(script.for_envs(env_id, counts[env_id]))
            counts[env_id] += 1
    finally:
        vec.close()


def assert_rows(obs: Any, known: Any, at: int, number: int, agents: int) -> None:
    for got, part in zip(rows_of(obs, at, agents), rows_of(known, number, agents)):
        np.testing.assert_array_equal(got, part)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 4, "batch_size": 2},
        {"num_workers": 4, "batch_size": 4},
        {"num_workers": 4, "surplus_envs": 2},
        {"num_workers": 8, "batch_size": 3},
        {"num_workers": 4, "batch_size": 4, "zero_copy": True},
        {"num_workers": 2, "surplus_envs": 4, "copy": True},
        {"num_workers": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["cartpole", "dict", "agents"])
def test_async_equals_serial(name, options):
    assert_async_equals_serial(LONG[name][0], 8, 60, **options)


@pytest.mark.parametrize("name", ["image", "infos", "mixed", "turns"])
def test_async_equals_serial_for_every_env(name):
    assert_async_equals_serial(LONG[name][0], 6, 120, num_workers=3, surplus_envs=2)


def test_async_infos_are_those_of_the_envs_returned():
    vec, twin = process(InfoEnv, 6, num_workers=3, batch_size=4), serial(InfoEnv, 6, copy=True)
    script = Script(twin)
    known = [twin.reset(seed=1)[1]] + [twin.step(script.at(step))[4] for step in range(60)]
    counts = np.zeros(6, int)
    vec.async_reset(seed=1)
    while counts.max() < 60:
        *_, infos = vec.recv()
        env_id = infos["env_id"]
        for at, number in enumerate(env_id):
            expected = known[counts[number]]
            for key in ("count", "word", "begun", "position"):
                has = f"_{key}" in expected and expected[f"_{key}"][number]
                assert (f"_{key}" in infos and infos[f"_{key}"][at]) == has, key
                if has:
                    np.testing.assert_array_equal(infos[key][at], expected[key][number])
        vec.send(script.for_envs(env_id, counts[env_id]))
        counts[env_id] += 1
    vec.close()


def test_step_returns_the_shared_memory_itself():
    vec = process(ImageEnv, 4, num_workers=2)
    obs, _ = vec.reset(seed=0)
    assert np.shares_memory(obs, vec.block.arrays["obs"])
    obs, rewards, terminated, *_ = vec.step(np.zeros(4, int))
    assert np.shares_memory(obs, vec.block.arrays["obs"])
    assert np.shares_memory(rewards, vec.block.arrays["rewards"])
    assert np.shares_memory(terminated, vec.block.arrays["terminated"])
    vec.close()
    safe = process(ImageEnv, 2, num_workers=2, copy=True)
    obs, _ = safe.reset(seed=0)
    kept = obs.copy()
    assert not np.shares_memory(obs, safe.block.arrays["obs"])
    safe.step(np.zeros(2, int))
    np.testing.assert_array_equal(obs, kept)
    safe.close()


@pytest.mark.parametrize("options", [{"batch_size": 4}, {"surplus_envs": 2}])
def test_zero_copy_refuses_a_batch_that_would_leave_envs_out(options):
    with pytest.raises(
        ConfigError, match=r"must divide num_envs=6: the last 2 envs would never.*batch_size 2, or zero"
    ):
        process(CounterEnv, 6, num_workers=3, zero_copy=True, **options)
    process(CounterEnv, 6, num_workers=3, **options).close()


@pytest.mark.parametrize("zero_copy", [True, False])
def test_neighbours_are_returned_without_a_copy(zero_copy):
    vec = process(CounterEnv, 8, num_workers=4, batch_size=4, zero_copy=zero_copy)
    vec.async_reset(seed=0)
    for _ in range(200):
        obs, *_, infos = vec.recv()
        env_id = infos["env_id"]
        is_one_piece = (np.diff(env_id) == 1).all()
        assert np.shares_memory(obs, vec.block.arrays["obs"]) == is_one_piece
        if zero_copy:
            assert env_id.tolist() in ([0, 1, 2, 3], [4, 5, 6, 7])
        vec.send(np.zeros(4, int))
    vec.close()


def test_zero_copy_returns_parts_of_ranges_that_were_sent_alone():
    vec = process(CounterEnv, 8, num_workers=4, batch_size=4, zero_copy=True)
    vec.async_reset(seed=0)
    vec.recv()
    vec.recv()
    vec.send(np.zeros(2, int), np.array([2, 3]))
    vec.send(np.zeros(2, int), np.array([4, 5]))
    received = [vec.recv()[4]["env_id"].tolist() for _ in range(2)]
    assert sorted(received) == [[2, 3], [4, 5]]
    vec.close()


def test_who_waited_longest_comes_first():
    """With time for all to finish, each recv returns the envs that were sent first: nobody starves."""
    vec = process(CounterEnv, 6, num_workers=6, batch_size=2)
    vec.async_reset(seed=0)
    order = []
    until = time.monotonic() + TIMEOUT_S
    for _ in range(9):
        while not all(vec._is_ready(unit) for unit in vec._in_flight):
            assert time.monotonic() < until
            time.sleep(0.001)
        *_, infos = vec.recv()
        order.append(set(infos["env_id"].tolist()))
        vec.send(np.zeros(2, int))
    for first in range(0, 9, 3):
        assert set.union(*order[first : first + 3]) == set(range(6)), order
    vec.close()


class SlowEnv(CounterEnv):
    """Env 0 (by its seed) takes its time."""

    def step(self, action: Any) -> Any:
        if self.seeds[0] == 100:
            time.sleep(0.02)
        return super().step(action)


def test_a_slow_env_does_not_hold_up_the_others_nor_is_forgotten():
    vec = process(SlowEnv, 4, num_workers=4, batch_size=1)
    vec.async_reset(seed=100)
    counts = np.zeros(4, int)
    until = time.monotonic() + TIMEOUT_S
    while counts[0] < 10 or counts[1:].min() < 20:
        assert time.monotonic() < until, counts
        *_, infos = vec.recv()
        counts[infos["env_id"]] += 1
        vec.send(np.zeros(1, int))
    assert counts[1:].max() > counts[0]
    vec.close()


def test_send_and_recv_out_of_order_are_refused():
    vec = process(CounterEnv, 4, num_workers=2, batch_size=2)
    with pytest.raises(UsageError, match="before reset"):
        vec.recv()
    vec.async_reset(seed=0)
    with pytest.raises(UsageError, match=r"Call recv\(\) first"):
        vec.send(np.zeros(2, int))
    with pytest.raises(UsageError, match="in flight"):
        vec.step(np.zeros(4, int))
    *_, infos = vec.recv()
    with pytest.raises(ActionError, match="shape"):
        vec.send(np.zeros(4, int))
    with pytest.raises(ConfigError, match="all envs of a worker"):
        vec.send(np.zeros(1, int), env_id=infos["env_id"][:1])
    vec.send(np.zeros(2, int), env_id=infos["env_id"])
    vec.recv()
    vec.recv()
    with pytest.raises(UsageError, match="nothing in flight"):
        vec.recv()
    obs, _ = vec.reset(seed=0)
    assert obs.shape == (4, 3)
    vec.close()


def test_both_batches_answered_in_any_order():
    vec = process(CounterEnv, 4, num_workers=2, batch_size=2)
    vec.async_reset(seed=0)
    first, second = vec.recv()[4]["env_id"].copy(), vec.recv()[4]["env_id"].copy()
    vec.send(np.zeros(2, int), env_id=first)
    vec.send(np.ones(2, int), env_id=second)
    actions = {}
    for _ in range(2):
        obs, *_, infos = vec.recv()
        actions |= dict(zip(infos["env_id"].tolist(), obs[:, 1].tolist()))
    for number, action in actions.items():
        assert action in (float(number in second.tolist()), -1.0)  # -1: its episode ended and began anew
    vec.close()


def test_reset_drops_what_is_in_flight():
    vec, twin = process(CounterEnv, 4, num_workers=4, batch_size=1), serial(CounterEnv, 4)
    vec.async_reset(seed=0)
    vec.recv()
    vec.send(np.zeros(1, int))
    assert_same(vec.reset(seed=5)[0], twin.reset(seed=5)[0])
    vec.close()


def test_recv_serves_the_env_that_is_ready_longest():
    """No env waits for ever: one that answers at once again and again does not overtake another that is ready."""
    vec = process(CounterEnv, 3, num_workers=3, batch_size=1)
    try:

        def wait_for_all() -> None:
            until = time.monotonic() + TIMEOUT_S
            while not all(vec._is_ready(worker) for worker in range(3)):
                assert time.monotonic() < until
                time.sleep(0.001)

        vec.async_reset(seed=0)
        wait_for_all()
        order = []
        for _ in range(12):
            env_id = vec.recv()[4]["env_id"]
            order.append(int(env_id[0]))
            vec.send(np.zeros(1, int), env_id)
            wait_for_all()
        assert sorted(order[:3]) == [0, 1, 2]
        assert order == order[:3] * 4
    finally:
        vec.close()


# ---- a vector env inside ----


def assert_nested_equals_flat(nested: Any, flat: Any, steps: int = 150, with_infos: bool = True) -> None:
    try:
        assert nested.num_envs == flat.num_envs
        assert nested.num_rows == flat.num_rows
        obs, infos = nested.reset(seed=11)
        expected, expected_infos = flat.reset(seed=11)
        assert_same(obs, expected)
        rng = np.random.default_rng(0)
        for step in range(steps):
            if with_infos:
                assert_same(shown(infos), shown(expected_infos), f"infos before step {step}")
            flat.action_space.seed(int(rng.integers(2**31)))
            actions = flat.action_space.sample()
            *got, infos = nested.step(actions)
            *known, expected_infos = flat.step(actions)
            assert_same(tuple(got), tuple(known), f"step {step}")
            if step == 60:
                mask = rng.integers(0, 2, flat.num_envs).astype(bool)
                mask[:2] = True, False
                obs, infos = nested.reset(seed=77, options={"reset_mask": mask.copy()})
                expected, expected_infos = flat.reset(seed=77, options={"reset_mask": mask.copy()})
                assert_same(obs, expected, "after a masked reset")
        ours, theirs = nested.drain_stats(), flat.drain_stats()
        assert ours["episodes"] > 0
        if flat.agents_per_env == 1 or flat.native_spec is None:  # native ones count games, not their agents
            assert ours["episodes"] == theirs["episodes"]
            assert ours["length"] == theirs["length"]
            assert ours["return"] == pytest.approx(theirs["return"], rel=1e-6)
    finally:
        nested.close()
        flat.close()


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_native_vec_inside(backend):
    nested = shoal.make(lambda: shoal.make("cartpole", 3, backend="serial"), 4, backend=backend)
    assert_nested_equals_flat(nested, shoal.make("cartpole", 12, backend="serial"))


def test_native_vec_of_many_agents_inside():
    nested = process(lambda: shoal.make("forage", 2, backend="serial"), 4, num_workers=2)
    assert nested.agents_per_env > 1
    assert_nested_equals_flat(nested, shoal.make("forage", 8, backend="serial"), 300)


def test_native_threads_inside_a_worker():
    nested = process(lambda: shoal.make("cartpole", 8, num_threads=2), 2, num_workers=2)
    assert_nested_equals_flat(nested, shoal.make("cartpole", 16, backend="serial"), 100)


def infos_of_one_type() -> Any:
    """Inside, the first of a group says the dtype of a key, so for a key of two dtypes nested and flat must differ."""
    return InfoEnv(mixed=False)


@pytest.mark.parametrize("env", [infos_of_one_type, DictEnv, DyingAgentsEnv, TurnsEnv], ids=lambda env: env.__name__)
@pytest.mark.parametrize("backend", ["serial", "process"])
def test_python_vec_inside(env, backend):
    nested = shoal.make(lambda: shoal.make(env, 2, backend="serial"), 3, backend=backend)
    assert_nested_equals_flat(nested, serial(env, 6))


@pytest.mark.parametrize("env", [infos_of_one_type, DictEnv, CounterEnv], ids=lambda env: env.__name__)
@pytest.mark.parametrize("backend", ["serial", "process"])
def test_sync_vector_env_inside(env, backend):
    nested = shoal.make(lambda: SyncVectorEnv([env] * 2, autoreset_mode=AutoresetMode.SAME_STEP), 3, backend=backend)
    assert_nested_equals_flat(nested, serial(env, 6))


def test_a_vec_of_vecs_of_vecs():
    inner = process(lambda: serial(lambda: shoal.make("cartpole", 2, backend="serial"), 2), 2, num_workers=2)
    assert_nested_equals_flat(inner, shoal.make("cartpole", 8, backend="serial"))


def test_processes_inside_a_worker():
    nested = process(lambda: process(CounterEnv, 2, num_workers=2), 2, num_workers=2)
    assert_nested_equals_flat(nested, serial(CounterEnv, 4), 50)


def test_a_native_env_as_gymnasium_env_in_workers():
    from shoal.integrations.gymnasium import SingleEnv

    vec, native = process(lambda: SingleEnv("cartpole"), 4, num_workers=2), shoal.make("cartpole", 4)
    obs, _ = vec.reset(seed=2)
    expected, _ = native.reset(seed=2)
    np.testing.assert_array_equal(obs, expected)
    for step in range(100):
        actions = np.array([0, 1, step % 2, step % 3 % 2])
        obs, rewards, terminated, truncated, _ = vec.step(actions)
        known = native.step(actions)
        for got, part in zip((obs, rewards, terminated, truncated), known):
            np.testing.assert_array_equal(got, part)
    vec.close()


@pytest.mark.parametrize("mode", ["next_step", "disabled"])
def test_a_vec_inside_must_reset_in_the_same_step(mode):
    with pytest.raises((BadOutput, ConfigError, ShoalError), match="same-step"):
        serial(lambda: SyncVectorEnv([CounterEnv], autoreset_mode=AutoresetMode[mode.upper()]), 1)
    with pytest.raises((BadOutput, ConfigError, ShoalError), match="same-step"):
        serial(lambda: shoal.make("cartpole", 2, backend="serial"), 1, autoreset=mode)


def test_agents_with_different_spaces_do_not_nest():
    with pytest.raises(ShoalError, match="equal spaces"):
        serial(lambda: serial(MixedAgentsEnv, 2), 2)


# ---- the envs themselves ----


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_call_get_set_and_render(backend):
    vec = shoal.make(CounterEnv, 6, backend=backend, render_mode="rgb_array", longest=1000)
    vec.reset(seed=0)
    for _ in range(3):
        vec.step(np.zeros(6, int))
    counts = vec.get_attr("count")
    assert vec.get_attr("name") == ("counter",) * 6
    assert vec.call("scaled", 10, plus=1) == tuple(10 * count + 1 for count in counts)
    assert vec.call("scaled", 2, env_ids=[5, 0, 3]) == (2 * counts[5], 2 * counts[0], 2 * counts[3])
    vec.set_attr("name", "same")
    assert vec.get_attr("name") == ("same",) * 6
    vec.set_attr("name", list("abcdef"))
    assert vec.get_attr("name", env_ids=[4, 1]) == ("e", "b")
    vec.set_attr("name", ["x", "y"], env_ids=[0, 5])
    assert vec.get_attr("name") == ("x", "b", "c", "d", "e", "y")
    frames = vec.render()
    assert len(frames) == 6
    for frame, count in zip(frames, counts):
        np.testing.assert_array_equal(frame, np.full((2, 2, 3), count, np.uint8))
    assert len(vec.call("render", env_ids=[2])) == 1
    with pytest.raises(ShoalError, match="set_attr got 2 values for 6 envs"):
        vec.set_attr("name", ["a", "b"])
    with pytest.raises(ShoalError, match="no attribute 'nothing'"):
        vec.get_attr("nothing")
    with pytest.raises(ShoalError, match="env 6"):
        vec.get_attr("name", env_ids=[6])
    assert vec.get_attr("name")[0] == "x", "it goes on after a mistake"
    vec.step(np.zeros(6, int))
    vec.close()


def test_attributes_of_what_a_wrapper_wraps():
    vec = process("gymnasium:CartPole-v1", 2, num_workers=2)
    assert vec.get_attr("gravity") == (9.8, 9.8)
    vec.set_attr("gravity", [1.0, 2.0])
    assert vec.get_attr("gravity") == (1.0, 2.0)
    vec.close()


@pytest.mark.parametrize(
    ("name", "attribute"), [("mpe2/simple_spread_v3", "max_cycles"), ("classic/rps_v2", "max_cycles")]
)
def test_attributes_of_what_pettingzoo_wraps(name, attribute):
    vec = serial(petting(name), 2)
    vec.reset(seed=0)
    assert all(vec.get_attr(attribute))
    vec.set_attr(attribute, 7, env_ids=[1])
    assert vec.get_attr(attribute, env_ids=[1]) == (7,)
    assert vec.get_attr(attribute, env_ids=[0]) != (7,)
    vec.close()


def test_seeds_and_options_reach_the_workers():
    vec = process(CounterEnv, 4, num_workers=2, seed=30)
    vec.reset(options={"level": 2})
    assert vec.get_attr("seeds") == ([30], [31], [32], [33])
    assert vec.get_attr("options") == ({"level": 2},) * 4
    vec.reset(seed=5, options={"reset_mask": np.array([False, False, True, False])})
    assert vec.get_attr("seeds") == ([30], [31], [32, 7], [33])
    vec.close()


def test_options_and_arguments_may_be_larger_than_a_pipe():
    large = np.arange(400_000)
    vec = process(CounterEnv, 4, num_workers=2)
    vec.reset(seed=0, options={"level": large})
    for options in vec.get_attr("options"):
        np.testing.assert_array_equal(options["level"], large)
    vec.set_attr("name", large)
    for name in vec.get_attr("name"):
        np.testing.assert_array_equal(name, large)
    vec.reset()
    assert vec.get_attr("options") == (None,) * 4
    vec.close()


# ---- agents ----


class Rows:
    """One DyingAgentsEnv as rows, said slowly: the meaning of masks, padding and flags."""

    def __init__(self, seed: int) -> None:
        self.env, self.seed = DyingAgentsEnv(), seed
        self.names = self.env.possible_agents

    def reset(self, seed: int | None) -> None:
        self._see(self.env.reset(seed=seed)[0])

    def _see(self, obs: Any) -> None:
        self.alive = np.array([name in self.env.agents for name in self.names])
        self.obs = np.zeros((4, 4), np.int32)
        for k, name in enumerate(self.names):
            if self.alive[k]:
                self.obs[k] = obs[name]

    def step(self, actions: Any) -> None:
        acting = list(self.env.agents)
        given = {name: actions[self.names.index(name)] for name in acting}
        obs, rewards, terminations, truncations, self.infos = self.env.step(given)
        self.rewards, self.final_obs = np.zeros(4, np.float32), np.zeros((4, 4), np.int32)
        self.terminated, self.truncated = np.zeros(4, bool), np.zeros(4, bool)
        for name in acting:
            k = self.names.index(name)
            self.rewards[k] = rewards[name]
            self.terminated[k], self.truncated[k] = terminations[name], truncations[name]
            if terminations[name] or truncations[name]:
                self.final_obs[k] = obs[name]
        self.is_over = not self.env.agents
        if self.is_over:
            self.reset(None)
        else:
            self._see(obs)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_masks_of_agents_that_die_and_join_are_exact(backend):
    vec, games = shoal.make(DyingAgentsEnv, 4, backend=backend), [Rows(20 + k) for k in range(4)]
    obs, infos = vec.reset(seed=20)
    for game in games:
        game.reset(game.seed)
    script = Script(vec)
    seen = {"joined": 0, "died early": 0, "over": 0, "padded": 0}
    for step in range(400):
        np.testing.assert_array_equal(obs, np.concatenate([game.obs for game in games]))
        alive = np.concatenate([game.alive for game in games])
        np.testing.assert_array_equal(infos["alive"], alive)
        assert (obs[~alive] == 0).all()
        before = alive.copy()
        actions = script.at(step)
        obs, rewards, terminated, truncated, infos = vec.step(actions)
        for k, game in enumerate(games):
            game.step(actions[4 * k : 4 * k + 4])
        for got, name in ((rewards, "rewards"), (terminated, "terminated"), (truncated, "truncated")):
            np.testing.assert_array_equal(got, np.concatenate([getattr(game, name) for game in games]), name)
        done, after = terminated | truncated, infos["alive"]
        assert ("final_obs" in infos) == bool(done.any())
        if done.any():
            np.testing.assert_array_equal(infos["_final_obs"], done)
            final = np.concatenate([game.final_obs for game in games])
            np.testing.assert_array_equal(infos["final_obs"][done], final[done])
            last = infos["final_info"]["last"]
            for k, game in enumerate(games):
                for name, info in game.infos.items():
                    row = 4 * k + game.names.index(name)
                    assert bool(infos["final_info"]["_last"][row]) == bool(info)
                    assert not info or last[row] == info["last"]
        over = np.repeat([game.is_over for game in games], 4)
        assert not (done & ~before).any(), "padding never ends"
        assert not (rewards[~before] != 0).any(), "padding earns nothing"
        seen["joined"] += int((after & ~before & ~over).sum())
        seen["died early"] += int((done & ~over).sum())
        seen["over"] += int(over.any())
        seen["padded"] += int((~before).sum())
    assert min(seen.values()) > 20, seen
    vec.close()


def test_agents_that_stay_listed_after_their_death_end_once():
    vec, twin = serial(lambda: DyingAgentsEnv(keep_dead=True), 4), serial(DyingAgentsEnv, 4)
    script = Script(twin)
    vec.reset(seed=1)
    twin.reset(seed=1)
    for step in range(300):
        vec.step(script.at(step))
        twin.step(script.at(step))
        assert_same_memory(vec, twin, f"after step {step}")
    assert vec.drain_stats() == twin.drain_stats()


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_an_agent_too_many_is_refused_and_its_env_named(backend):
    vec = shoal.make(lambda: DyingAgentsEnv(stranger_at=3), 2, backend=backend)
    vec.reset(seed=8)
    with pytest.raises(BadOutput, match="agent 'shark' is not one of possible_agents") as caught:
        play(vec, 30)
    assert caught.value.env in (0, 1)
    assert caught.value.seed == 8 + caught.value.env
    assert f"env {caught.value.env} (seed {caught.value.seed})" in str(caught.value)
    vec.close()


def test_rows_face_of_agents():
    rows = process(DyingAgentsEnv, 2, num_workers=2).rows()
    assert rows.num_envs == 8
    obs, _ = rows.reset(seed=0)
    assert obs.shape == (8, 4)
    assert rows.step(np.zeros(8, int))[1].shape == (8,)
    rows.close()


# ---- turns ----


def returns_by_last(make: Any, seed: int, games: int, choose: Any) -> list[dict[Any, float]]:
    """Each agent's return in each game, played as PettingZoo says: the sum of what `last` shows it."""
    env, found = make(), []
    for game in range(games):
        env.reset(seed=seed if game == 0 else None)
        totals, turn = dict.fromkeys(env.agents, 0.0), 0
        while env.agents:
            agent = env.agent_selection
            obs, reward, terminated, truncated, _ = env.last()
            totals[agent] += reward
            if terminated or truncated:
                env.step(None)
            else:
                env.step(choose(obs, env.action_space(agent), game, turn))
                turn += 1
        found.append(totals)
    return found


def legal_choice(obs: Any, space: Any, game: int, turn: int) -> int:
    legal = np.flatnonzero(obs["action_mask"]) if isinstance(obs, dict) else np.arange(space.n)
    return int(legal[(7 * game + 5 * turn) % len(legal)])


def returns_by_vec(make: Any, seed: int, games: int, choose: Any) -> list[dict[Any, float]]:
    """The same through Shoal: one env, rows summed until it is over."""
    vec = serial(make, 1, copy=True)
    names = vec.agent_spaces.agents
    obs, infos = vec.reset(seed=seed)
    found: list[dict[Any, float]] = []
    totals, game, turn = np.zeros(len(names)), 0, 0
    ended = ~infos["alive"]
    space = vec.agent_spaces.action_spaces[0]
    while len(found) < games:
        alive = infos["alive"]
        assert infos["acting"].sum() == 1, "it is one agent's turn"
        row = int(infos["acting"].argmax())
        assert alive[row], "whose turn it is, lives"
        assert (infos["_acting"] == alive).all(), "who lives, is told"
        seen = {key: part[row] for key, part in obs.items()} if isinstance(obs, dict) else obs[row]
        actions = np.full(len(names), int(space.n) - 1)  # of the others: ignored
        actions[row] = choose(seen, space, game, turn)
        obs, rewards, terminated, truncated, infos = vec.step(actions)
        totals += rewards
        turn += 1
        ended = ended | terminated | truncated
        if ended.all():
            found.append(dict(zip(names, totals.tolist())))
            totals, turn, game = np.zeros(len(names)), 0, game + 1
            ended = ~infos["alive"]
    vec.close()
    return found


@pytest.mark.parametrize("dead_first", [True, False])
def test_no_reward_of_a_turn_is_lost_or_counted_twice(dead_first):
    def make() -> Any:
        return TurnsEnv(dead_first)

    for seed in range(5):
        expected = returns_by_last(make, seed, 20, legal_choice)
        assert returns_by_vec(make, seed, 20, legal_choice) == expected
        assert any(total < 0 for game in expected for total in game.values()), "paid out of turn"


@pytest.mark.parametrize("name", ["classic/tictactoe_v3", "classic/connect_four_v3", "classic/leduc_holdem_v4"])
def test_no_reward_of_a_pettingzoo_game_is_lost_or_counted_twice(name):
    make = petting(name)
    expected = returns_by_last(make, 4, 10, legal_choice)
    assert returns_by_vec(make, 4, 10, legal_choice) == expected
    assert any(total != 0 for game in expected for total in game.values())


def test_no_reward_is_lost_where_agents_die_mid_game():
    petting("butterfly/knights_archers_zombies_v11")
    module = shoal.integrations.pettingzoo._load("pettingzoo.butterfly.knights_archers_zombies_v11")

    def make() -> Any:
        return module.env(max_cycles=150)

    expected = returns_by_last(make, 3, 2, legal_choice)
    assert returns_by_vec(make, 3, 2, legal_choice) == expected


@pytest.mark.parametrize("dead_first", [True, False])
def test_the_dead_leave_at_once_and_only_once(dead_first):
    vec = serial(lambda: TurnsEnv(dead_first), 3, copy=True)
    _, infos = vec.reset(seed=0)
    script, alive, early = Script(vec), infos["alive"], 0
    for step in range(300):
        obs, rewards, terminated, truncated, infos = vec.step(script.at(step))
        done = terminated | truncated
        assert not (done & ~alive).any()
        assert (rewards[~alive] == 0).all()
        over = (done | ~alive).reshape(3, 3).all(1).repeat(3)
        np.testing.assert_array_equal(infos["alive"], np.where(over, True, alive & ~done))
        np.testing.assert_array_equal(obs["action_mask"].all(1), infos["acting"] & infos["_acting"])
        if (moved := infos.get("final_info", {}).get("_moved")) is not None:
            assert (moved <= truncated | terminated).all()
        early += int((done & ~over).sum())
        alive = infos["alive"]
    assert early > 20
    vec.close()


# ---- PettingZoo's names ----


def test_names_of_pettingzoo():
    pytest.importorskip("pettingzoo")
    for name in ("butterfly/pistonbal_v6", "butterfly/pistonball_v3", "pistonball_v3"):
        with pytest.raises(UnknownEnv, match=r"Did you mean 'butterfly/pistonball_v\d+'"):
            shoal.make(f"pettingzoo:{name}")
    shoal.make("pettingzoo:butterfly/pistonball", 1).close()  # without a version: the newest
    with pytest.raises(UnknownEnv, match="classic/…"):
        shoal.make("pettingzoo:nothing/at_all_v0")
    names = shoal.integrations.pettingzoo.names()
    assert "classic/connect_four_v3" in names
    assert names == sorted(names)


def test_pettingzoo_that_is_not_installed(monkeypatch):
    from shoal.integrations import pettingzoo

    monkeypatch.setattr(pettingzoo.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"Install it: pip install 'pettingzoo\[classic,butterfly\]'"):
        shoal.make("pettingzoo:classic/connect_four_v3")
    with pytest.raises(ConfigError, match="Install it: pip install mpe2"):
        shoal.make("pettingzoo:mpe2/simple_spread_v3")


def test_pettingzoo_checks_are_taken_off():
    pytest.importorskip("pettingzoo")
    from pettingzoo.utils import conversions, wrappers

    from shoal.integrations.cycles import Cycle
    from shoal.integrations.pettingzoo import Turns, adapt

    env = petting("classic/connect_four_v3")()
    turns = adapt(env)
    assert type(turns) is Turns
    assert type(turns.env) is wrappers.TerminateIllegalWrapper, "this one has a meaning"
    parallel = adapt(petting("classic/rps_v2")())
    assert type(parallel) is Cycle
    assert type(parallel.aec_env) not in (wrappers.OrderEnforcingWrapper, wrappers.AssertOutOfBoundsWrapper)

    class Real(DyingAgentsEnv, conversions.ParallelEnv):
        pass

    real = Real()
    assert adapt(conversions.parallel_to_aec(real)) is real, "all act at once again"


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_statistics_count_games_not_agents(backend):
    """A native env of several agents inside the Python backends drains the same statistics as on its own."""
    native = shoal.make("forage", 4, backend="serial", hunger=0.05)
    nested = shoal.make(lambda: shoal.make("forage", 2, backend="serial", hunger=0.05), 2, backend=backend)
    native.reset(seed=3)
    nested.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(120):
        actions = rng.integers(0, (5, 2), (16, 2))
        native.step(actions)
        nested.step(actions)
    ours, theirs = nested.drain_stats(), native.drain_stats()
    assert ours["episodes"] == theirs["episodes"] > 0
    for name in ("return", "length"):
        for key in ("mean", "min", "max"):
            assert ours[name][key] == pytest.approx(theirs[name][key], rel=1e-5)
    nested.close()


class Reports(gymnasium.Env):
    """Env k reports the k-th of some values."""

    observation_space, action_space = spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(2)

    def __init__(self, values):
        self.values = values

    def reset(self, *, seed=None, options=None):
        self.number = seed
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {"x": self.values[self.number]}


def reported(values, **backend):
    with closing(shoal.make(partial(Reports, values), len(values), **backend)) as vec:
        vec.reset(seed=0)
        infos = vec.step(np.zeros(len(values), int))[-1]
    assert infos["_x"].all()
    return infos["x"]


KINDS = [(2**63, 1), (1, -(2**70)), (np.uint64(2**63), -1), (1, None), (1, "a"), (1, {"a": 1}), ({"b": 1}, {"b": None})]


@pytest.mark.parametrize("backend", [{"backend": "serial"}, {"backend": "process", "num_workers": 2}])
@pytest.mark.parametrize("values", KINDS, ids=str)
def test_infos_that_gymnasium_cannot_merge_become_objects(values, backend):
    found = reported(values, **backend)
    if isinstance(found, dict):
        assert found["b"].tolist() == [1, None]
    else:
        assert list(found) == list(values)


NUMBERS = [(1, 2.5), (True, 0.25), (False, 3), (np.int8(4), 300), (np.int8(4), np.int64(300)), (np.uint8(1), -0.5)]


@pytest.mark.parametrize("values", [*NUMBERS, *[(b, a) for a, b in NUMBERS]], ids=str)
def test_infos_keep_numbers_that_the_first_ones_dtype_cannot_hold(values):
    """Gymnasium's array has the dtype of the first: 2.5 after 1 would be 2 there, 0.25 after True True."""
    found = reported(values, backend="serial")
    assert found.dtype.kind != "O" or 300 in values
    assert found.tolist() == list(values)


@pytest.mark.parametrize(
    "values", [(True, None), (True, "a"), (1, "2"), (np.zeros(2), 1), ({"a": 1}, None), ({"a": 1}, 2), ({"a": {}}, 3)]
)
def test_infos_of_different_kinds_become_objects(values):
    """A dict stays a dict, with what it holds."""
    for given in (values, values[::-1]):
        for one, expected in zip(reported(given, backend="serial"), given):
            np.testing.assert_equal(one, expected)


def test_infos_of_different_shapes_become_objects():
    found = reported((np.ones(2), np.zeros(3), np.ones(1)), backend="serial")
    assert [np.shape(one) for one in found] == [(2,), (3,), (1,)]
