"""Workers that die: who, by which signal, at once; with on_crash='restart' the slot lives on."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import closing

import numpy as np
import pytest

import shoal
from shoal.errors import EnvCrashed, UsageError, WorkerDied
from shoal.evaluate import ScriptedPlayer, play
from shoal.vector import workers
from tests.faults.envs import Actor, act, step_for_ever
from tests.faults.tools import ALL_START_METHODS, START_METHODS, is_alive, wait_for_end, within


def pids_of(vec) -> list[int]:
    return list(vec.call("pid"))


@pytest.mark.parametrize("start_method", ALL_START_METHODS)
def test_a_killed_worker_is_named_with_its_signal(start_method):
    """Item 3: WorkerDied(pid, signal 9) within 2 s, from a kill in the middle of a step."""
    with closing(shoal.make(Actor, 4, backend="process", num_workers=2, start_method=start_method)) as vec:
        vec.reset(seed=0)
        victim = pids_of(vec)[2]
        threading.Timer(0.3, os.kill, (victim, signal.SIGKILL)).start()
        with (
            within(0.3 + 2.0),
            pytest.raises(WorkerDied, match=f"worker 1 .pid {victim}, envs 2 .. 3. .* signal 9") as at,
        ):
            vec.step(act(4, sleep=3))
        assert (at.value.pid, at.value.signal, at.value.env) == (victim, 9, 2)
        with within(1.0), pytest.raises(UsageError, match="broken by an earlier fault"):
            vec.step(act(4))
        with within(1.0), pytest.raises(UsageError, match="broken by an earlier fault"):
            vec.reset()
        with within(5.0):
            vec.close()


@pytest.mark.parametrize(("word", "number"), [("kill", 9), ("crash", 11)])
def test_native_crashes_are_named(word, number):
    """Items 3 and 4: SIGKILL and SIGSEGV from inside an env, within 2 s."""
    with closing(shoal.make(Actor, 4, backend="process", num_workers=4)) as vec:
        vec.reset(seed=0)
        with within(2.0), pytest.raises(WorkerDied, match=f"signal {number} ") as caught:
            vec.step(act(4, **{word: 2}))
        assert (caught.value.signal, caught.value.env) == (number, 2)


def test_an_env_that_leaves_is_named():
    """Item 3: os._exit in an env."""
    with closing(shoal.make(Actor, 2, backend="process", num_workers=2)) as vec:
        vec.reset(seed=0)
        with within(2.0), pytest.raises(WorkerDied, match="ended with code 5"):
            vec.step(act(2, leave=1))


def step_after_a_kill(vec):
    victim = pids_of(vec)[1]
    os.kill(victim, signal.SIGKILL)
    wait_for_end([victim], 1.0)
    vec.step(act(2))


DEATHS = {
    "idle": step_after_a_kill,
    "in reset": lambda vec: vec.reset(options={"word": "kill", "number": 1}),
    "in call": lambda vec: vec.call("kill", env_ids=[1]),
}


@pytest.mark.parametrize("moment", DEATHS)
def test_a_death_outside_of_a_step_is_named_too(moment):
    """Item 3."""
    with closing(shoal.make(Actor, 2, backend="process", num_workers=2)) as vec:
        vec.reset(seed=0)
        victim = pids_of(vec)[1]
        with within(2.0), pytest.raises(WorkerDied, match=f"pid {victim}.* signal 9"):
            DEATHS[moment](vec)


def test_a_death_while_its_infos_are_on_the_way_is_named():
    """Item 3: the step is done, and the worker dies in the middle of a message larger than the pipe."""
    with closing(shoal.make(Actor, 2, backend="process", num_workers=2)) as vec:
        vec.reset(seed=0)
        victim = pids_of(vec)[1]
        vec.async_reset(seed=0)
        vec.recv()
        vec.send(act(2, huge_info=1))
        time.sleep(0.5)
        os.kill(victim, signal.SIGKILL)
        with within(2.0), pytest.raises(WorkerDied, match=f"pid {victim}.* signal 9"):
            vec.recv()


def test_a_death_among_surplus_envs_is_noticed():
    """Item 3: although a batch of the others is always there."""
    with closing(shoal.make(Actor, 4, backend="process", num_workers=4, surplus_envs=1)) as vec:
        vec.async_reset(seed=0)
        vec.recv()
        vec.send(act(3, kill=1))
        with within(2.0), pytest.raises(WorkerDied, match="signal 9"):
            step_for_ever(vec, 3)


@pytest.mark.parametrize("word", ["kill", "crash", "leave"])
@pytest.mark.parametrize("start_method", START_METHODS)
def test_restart_replaces_the_worker_and_truncates_its_episodes(word, start_method):
    """Item 3: same seeds, the others untouched, infos say why."""
    options = {"backend": "process", "num_workers": 2, "on_crash": "restart", "start_method": start_method}
    with closing(shoal.make(Actor, 4, **options)) as vec:
        vec.reset(seed=10)
        before = pids_of(vec)
        for _ in range(3):
            vec.step(act(4))
        with within(5.0):
            obs, rewards, terminated, truncated, infos = vec.step(act(4, **{word: 3}))
        # obs: (tick, episodes, number): envs 2 and 3 are new, and know their seeds
        assert obs.tolist() == [[4, 1, 10], [4, 1, 11], [0, 1, 12], [0, 1, 13]]
        assert truncated.tolist() == [False, False, True, True]
        assert not terminated.any()
        assert rewards.tolist() == [1, 1, 0, 0]
        assert infos["_final_obs"].tolist() == [False, False, True, True]
        assert infos["final_obs"][3].tolist() == [3, 1, 13]
        assert infos["final_info"]["crashed"].tolist() == [False, False, True, True]
        assert "worker 1" in infos["final_info"]["fault"][3]
        assert not infos["final_info"]["_episode"].any(), "its return is lost, not 0"
        obs, rewards, terminated, truncated, infos = vec.step(act(4))
        assert obs.tolist() == [[5, 1, 10], [5, 1, 11], [1, 1, 12], [1, 1, 13]]
        assert not truncated.any()
        assert rewards.tolist() == [1, 1, 1, 1]
        after = pids_of(vec)
        assert before[:2] == after[:2]
        assert before[2] != after[2]
        assert not is_alive(before[2])
        assert vec.drain_stats() == {"episodes": 0}  # what is lost is no statistic


@pytest.mark.parametrize(("word", "cause"), [("kill", "died with SIGKILL"), ("leave", "exited")])
def test_a_restart_is_an_event(word, cause):
    with closing(shoal.make(Actor, 4, backend="process", num_workers=2, on_crash="restart")) as vec:
        vec.reset(seed=0)
        victim = pids_of(vec)[2]
        assert vec.drain_events() == []
        vec.step(act(4, **{word: 3}))
        event = f"worker 1 (pid {victim}) {cause} and was restarted; its 2 episodes were truncated"
        assert vec.drain_events() == [event]
        assert vec.drain_events() == []


def test_a_restart_after_a_hang_is_an_event():
    with closing(shoal.make(Actor, 2, num_workers=2, on_crash="restart", timeout_s=0.5)) as vec:
        vec.reset(seed=0)
        vec.step(act(2, sleep=1))
        (event,) = vec.drain_events()
        assert "did not answer within 0.5 s and was restarted; its 1 episode was truncated" in event


def test_restarts_are_limited(monkeypatch):
    """Item 3: an env that always dies is given up; after a while it may be restarted again."""
    with closing(shoal.make(Actor, 2, backend="process", num_workers=2, on_crash="restart")) as vec:
        vec.reset(seed=0)
        for _ in range(workers.MAX_RESTARTS):
            assert vec.step(act(2, kill=1))[3].tolist() == [False, True]
        with (
            within(2.0),
            pytest.raises(WorkerDied, match="not restarted again: the limit is 3 times in 60 s") as caught,
        ):
            vec.step(act(2, kill=1))
        assert (caught.value.signal, caught.value.env) == (9, 1)
        assert caught.value.pid is not None
        with pytest.raises(UsageError, match="broken by an earlier fault"):
            vec.step(act(2))
    monkeypatch.setattr(workers, "RESTART_WINDOW_S", 0.2)
    with closing(shoal.make(Actor, 2, backend="process", num_workers=2, on_crash="restart")) as vec:
        vec.reset(seed=0)
        for _ in range(workers.MAX_RESTARTS + 2):
            vec.step(act(2, kill=1))
            time.sleep(0.1)


def test_restart_of_an_env_that_cannot_be_made_again_is_told(tmp_path):
    """Items 1 and 3: the new constructor raises."""
    path = str(tmp_path / "once")

    class Once(Actor):
        def __init__(self):
            super().__init__()
            if os.path.exists(path):
                raise OSError("only once")

    with closing(shoal.make(Once, 2, backend="process", num_workers=2, on_crash="restart")) as vec:
        vec.reset(seed=0)
        with open(path, "w"):
            pass
        try:
            with within(5.0), pytest.raises(EnvCrashed, match="env 1 raised in its constructor: OSError: only once"):
                vec.step(act(2, kill=1))
        finally:
            os.remove(path)
        with within(5.0):
            vec.close()


@pytest.mark.parametrize("autoreset", ["next_step", "disabled"])
def test_restart_keeps_the_autoreset_mode(autoreset):
    """Item 3: without same-step autoreset the last observation stays on show, and a reset follows as it always does."""
    options = {"backend": "process", "num_workers": 2, "on_crash": "restart", "autoreset": autoreset}
    with closing(shoal.make(Actor, 2, **options)) as vec:
        vec.reset(seed=0)
        vec.step(act(2))
        obs, _, _, truncated, infos = vec.step(act(2, kill=1))
        assert obs.tolist() == [[2, 1, 0], [1, 1, 1]]
        assert truncated.tolist() == [False, True]
        assert infos["crashed"].tolist() == [False, True]
        if autoreset == "disabled":
            with pytest.raises(UsageError, match="env 1 has ended"):
                vec.step(act(2))
            obs, _ = vec.reset(options={"reset_mask": truncated.copy()})
            assert obs[:, 0].tolist() == [2, 0]
        else:
            obs, rewards, _, truncated, _ = vec.step(act(2))
            assert obs[:, 0].tolist() == [3, 0]
            assert rewards.tolist() == [1, 0]
            assert not truncated.any()
        obs, *_ = vec.step(act(2))
        assert obs[1, 0] == 1


def test_evaluations_count_what_an_episode_had_before_a_crash():
    """Item 3: as one that is stopped at max_steps, not with a return of 0."""
    actions = iter([act(1)] * 4 + [act(1, kill=0)] + [act(1)] * 2 + [act(1, end=0)])
    with closing(shoal.make(Actor, 1, backend="process", num_workers=1, on_crash="restart")) as vec:
        score = play(vec, ScriptedPlayer(lambda obs: next(actions)), 2)
    assert (score.returns, score.lengths) == ((4.0, 3.0), (5, 3))


def test_restart_in_reset_truncates_nothing():
    """Item 3: the episode was over anyway."""
    with closing(shoal.make(Actor, 2, backend="process", num_workers=2, on_crash="restart")) as vec:
        vec.reset(seed=0)
        vec.step(act(2))
        obs, infos = vec.reset(seed=[5, 6], options={"word": "kill", "number": 6})
        assert obs.tolist() == [[0, 2, 5], [0, 1, 6]]
        assert infos["crashed"].tolist() == [False, True]
        obs, _, _, truncated, _ = vec.step(act(2))
        assert obs[:, 0].tolist() == [1, 1]
        assert not truncated.any()


def test_restart_in_a_call_is_told_and_then_truncates():
    """Item 3: the call has no answer, so it raises; the next step says that the episode was cut."""
    with closing(shoal.make(Actor, 2, backend="process", num_workers=2, on_crash="restart")) as vec:
        vec.reset(seed=0)
        vec.step(act(2))
        with within(5.0), pytest.raises(WorkerDied, match="signal 9"):
            vec.call("kill", env_ids=[1])
        _, _, _, truncated, infos = vec.step(act(2))
        assert truncated.tolist() == [False, True]
        assert infos["final_obs"][1].tolist() == [1, 1, 1]
        assert vec.get_attr("number") == (0, 1)


def test_restart_works_in_flight():
    """Item 3, async: the batch that holds the env is truncated, ids are right and nothing is lost."""
    options = {"backend": "process", "num_workers": 4, "on_crash": "restart", "batch_size": 2}
    with closing(shoal.make(Actor, 8, **{**options, "batch_size": 4})) as vec:
        vec.async_reset(seed=0)
        steps, cuts, kills = np.zeros(8, int), np.zeros(8, int), 0
        until = time.monotonic() + 20
        while (steps.min() < 60 or kills < 2) and time.monotonic() < until:
            obs, rewards, _, truncated, infos = vec.recv()
            ids = infos["env_id"]
            assert obs[:, 2].tolist() == ids.tolist()
            steps[ids] += 1
            cuts[ids] += truncated
            assert (rewards[truncated] == 0).all()
            actions = act(4)
            if kills < 2 and steps[5] >= 20 * (kills + 1) and 5 in ids:
                actions[ids.tolist().index(5)] = Actor.WORDS.index("kill")
                kills += 1
            vec.send(actions, ids)
        assert steps.min() >= 60
        assert cuts.tolist() == [0, 0, 0, 0, 2, 2, 0, 0]


def test_an_unseeded_env_is_restarted_unseeded():
    """Item 3: nobody invents a seed."""

    class Seeds(Actor):
        def reset(self, *, seed=None, options=None):
            self.seed_was = seed
            return super().reset(seed=seed, options=options)

    with closing(shoal.make(Seeds, 2, backend="process", num_workers=2, on_crash="restart")) as vec:
        vec.reset()
        vec.step(act(2, kill=1))
        assert vec.get_attr("seed_was") == (None, None)
