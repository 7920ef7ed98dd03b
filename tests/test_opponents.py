"""Seats that the env's own robots and frozen runs play: who acts there, who is learned from, what is judged."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import shoal
from shoal import evaluate
from shoal.errors import ConfigError
from shoal.train import load_player, seats, train

from .training import contents, cut, train_tiny
from .training import vacuum_tables as tables
from .training import vacuum_trainer as robots


@pytest.fixture(scope="module")
def frozen(tmp_path_factory):
    """A run of all four seats, with a network for each."""
    return train_tiny("vacuum", tmp_path_factory.mktemp("frozen"), **tables(train={"policy": "per-agent"}))


def test_scripted_robots_play_as_they_do_by_themselves():
    """All but robot 0 seek: their rewards are those of the env's own param, whatever robot 0 is told to do."""
    t = robots(opponents="1=seek,2=seek,3=seek", train={"epsilon_end": 1.0})
    assert t.options.env["robot_1"] == "seek"
    assert t.num_rows == 16
    seen = []
    real = t.vec.recv
    t.collector.vec.recv = lambda: seen.append(real()) or seen[-1]
    t.iterate()
    rollout = t.learners[0].rollout
    twin = shoal.make("vacuum", 16, preset="classic-1v3", robot_1="seek", robot_2="seek", robot_3="seek")
    twin.reset(seed=1 << 20)
    for step in range(4):
        actions = np.zeros((16, 4), np.int64)
        actions[:, 0] = rollout.actions[step, :, 0]
        obs, rewards, *_ = twin.step(actions.reshape(-1))
        np.testing.assert_array_equal(rollout.rewards[step], rewards.reshape(16, 4)[:, 0])
        np.testing.assert_array_equal(rollout.obs[0][step + 1], obs.reshape(16, 4, -1)[:, 0])
    twin.close()
    t.close()


@pytest.mark.parametrize("algo", ["dqn", "pqn", "ppo"])
def test_only_the_learners_rows_are_learned_from(algo, frozen):
    t = robots(opponents=f"1=flee,2={frozen.folder}", algo=algo)
    assert [role.agents for role in t.roles] == [(0, 3)]
    assert t.learners[0].rollout.rows == 32
    before = {name: value.clone() for name, value in t.frozen[0].actor.state_dict().items()}
    for _ in range(3):
        t.iterate()
    assert t.step == 3 * 4 * 32
    assert all(torch.equal(before[name], value) for name, value in t.frozen[0].actor.state_dict().items())
    if algo == "dqn":
        alive = t.learners[0].replay.stored
        assert 0 < int(alive) <= 3 * 4 * 32
    t.close()


def test_a_frozen_run_plays_its_best_actions(frozen):
    """Seat 2 of the run plays seat 2 here: by that agent's own network, with no chance in it."""
    t = robots(opponents=f"2={frozen.folder}")
    t.iterate()
    rollout = t.frozen[0].rollout
    player, _ = load_player(frozen)
    for step in range(4):
        obs = np.zeros((16, 4, 18), np.float32)
        obs[:, 2] = rollout.obs[0][step]
        masks = np.ones((16, 4, 5), np.int8)
        masks[:, 2] = rollout.masks[step]
        player.reset(64)
        wanted = player.act(obs.reshape(64, 18), {"action_mask": masks.reshape(64, 5)}).reshape(16, 4)[:, 2]
        np.testing.assert_array_equal(rollout.actions[step, :, 0], wanted)
    t.close()


def test_seats_of_one_network_are_one_batch(tmp_path):
    run = train_tiny("vacuum", tmp_path, **tables())
    t = robots(opponents=f"1={run.folder},2=seek,3={run.folder}")
    assert [(seat.role.agents, seat.rollout.rows) for seat in t.frozen] == [((1, 3), 32)]
    t.iterate()
    t.close()


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_a_run_with_opponents_resumes_to_the_bit(tmp_path, frozen, algo):
    more = tables(opponents=f"1=random,2={frozen.folder},3={frozen.folder}", algo=algo)
    whole = contents(train_tiny("vacuum", tmp_path / "a", **more))
    run = train_tiny("vacuum", tmp_path / "b", **more)
    assert contents(run) == whole
    assert contents(train("vacuum", resume=cut(run, 2).folder, console="off")) == whole


def test_envs_that_begin_anew_find_opponents_that_remember_nothing(tmp_path):
    run = train_tiny("vacuum", tmp_path, **tables(algo="ppo", nn={"core": "lstm"}))
    t = robots(opponents=f"1={run.folder}")
    t.iterate()
    rollout = t.frozen[0].rollout
    (state, *_) = rollout.state
    assert bool(state.any())
    assert len(rollout.starts[0]) == 1  # nothing is learned from there: no state of every step is kept
    files = {name: {k: v.clone() for k, v in part.items() if k != "envs"} for name, part in t.state().items()}
    t.restore(files, {**t.counters(), "step": t.step})
    assert not t.exact
    assert not bool(state.any())
    t.close()


def test_the_score_is_the_learners_own(tmp_path):
    """Robots that wait for their death return -105 or so; the one that learns is another matter."""
    run = train_tiny("vacuum", tmp_path, **tables(opponents="1=stay,2=stay,3=stay", eval={"episodes": 4}))
    player, about = load_player(run)
    assert player.judged == [0]
    vec = shoal.make(about.pop("env"), 4, **about)
    score = evaluate.play(vec, player, 4, seed=1 << 20)
    totals = np.zeros((4, 4))
    obs, infos = vec.reset(seed=(1 << 20) + evaluate.HELD_OUT)
    player.reset(16)
    over, alive = np.zeros(4, bool), np.ones(16, bool)
    while not over.all():
        obs, rewards, terminated, truncated, infos = vec.step(player.act(obs, infos))
        totals[~over] += rewards.reshape(4, 4)[~over]
        over |= (terminated | truncated | ~alive).reshape(4, 4).all(1)
        alive = np.array(infos["alive"])
    vec.close()
    np.testing.assert_allclose(score.returns, totals[:, 0], rtol=1e-4)
    assert run.summary["eval"]["return"] == pytest.approx(score.mean)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seek", "is not SEAT=WHO"),
        ("1=seek,1=flee", "names agent 1 twice"),
        ("7=seek", "the env has agents 0 to 3"),
        ("0=stay,1=stay,2=stay,3=stay", "none is left to learn"),
        ("1=sek", "Did you mean 'seek'"),
        ("1=learner", "The env's robots: stay"),
    ],
)
def test_mistakes_are_told_before_a_folder_is_made(tmp_path, text, said):
    with pytest.raises(ConfigError) as caught:
        train_tiny("vacuum", tmp_path / "runs", **tables(opponents=text))
    assert said in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_a_run_of_another_env_is_refused(tmp_path):
    other = train_tiny("squared", tmp_path)
    with pytest.raises(ConfigError, match="Name a run of this env"):
        robots(opponents=f"1={other.folder}")


def test_opponents_are_written_as_they_are_read():
    assert seats.parse(seats.write({3: "seek", 1: "a/b"})) == {1: "a/b", 3: "seek"}
    assert seats.parse("") == {}


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_what_is_logged_is_the_learners_own_return(algo):
    """Robots 1 to 3 bump into walls until they are out: games end, and every number is of robot 0."""
    t = robots(opponents="1=random,2=random,3=random", algo=algo, train={"total_steps": 10**6})
    totals, found = np.zeros(16), []
    while len(found) < 20:
        t.iterate()
        rollout = t.learners[0].rollout
        for step in range(4):
            totals += rollout.rewards[step].numpy()
            for env in np.flatnonzero((rollout.dones[step] & rollout.alive[step]).numpy()):
                found.append(totals[env])
            totals[rollout.dones[step].numpy()] = 0.0
    record = t.drain()
    logged = [record[f"episode/return{end}"] for end in ("", "_min", "_max")]
    assert record["episode/n"] == len(found)
    assert "episode/return" not in t.drain()
    np.testing.assert_allclose(logged, [np.mean(found), min(found), max(found)], rtol=1e-4)
    t.close()


def test_the_flag_is_read():
    from shoal.cli.train import parse

    assert parse(["vacuum", "--algo", "dqn", "--opponents", "1=seek,2=flee"]).options.opponents == "1=seek,2=flee"
