"""VecEnv as a `gymnasium.vector.VectorEnv`: seeds, infos, autoreset modes, wrappers, faces, snapshots, memory."""

from __future__ import annotations

import copy
import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import vector as wrappers

import shoal
from shoal.errors import ConfigError, UsageError
from shoal.vector.play import play

N = 32


def random_actions(vec, rng):
    vec.action_space.seed(int(rng.integers(2**31)))
    return vec.action_space.sample()


def test_is_a_vector_env(env):
    vec = shoal.make(env, N)
    assert isinstance(vec, VectorEnv)
    assert vec.num_rows == N * vec.agents_per_env
    assert vec.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    obs, _infos = vec.reset(seed=1)
    assert vec.observation_space.contains(obs)
    obs, rewards, terminated, truncated, infos = vec.step(random_actions(vec, np.random.default_rng(0)))
    assert vec.observation_space.contains(obs)
    assert rewards.dtype == np.float32
    assert terminated.dtype == truncated.dtype == np.bool_
    assert rewards.shape == terminated.shape == truncated.shape == (vec.num_rows,)
    assert isinstance(infos, dict)
    vec.close()
    assert vec.closed


def test_env_i_gets_seed_plus_i(env):
    many = shoal.make(env, 5)
    obs, _ = many.reset(seed=100)
    agents = many.agents_per_env
    for i in range(5):
        one, _ = shoal.make(env, 1).reset(seed=100 + i)
        assert (one == obs[i * agents : (i + 1) * agents]).all()
    listed, _ = shoal.make(env, 5).reset(seed=[104, 103, 102, 101, 100])
    assert (listed[:agents] == obs[-agents:]).all()


def test_seed_of_make_is_of_the_first_reset():
    a, b, c = (shoal.make("cartpole", 4, seed=s) for s in (7, 7, None))
    first, _ = a.reset()
    assert (first == b.reset()[0]).all()
    kept = first.copy()
    assert (a.reset()[0] != kept).any(), "the stream goes on"
    assert (c.reset()[0] != kept).any(), "no seed: fresh entropy"


def test_views_without_copy_and_copies_with():
    view, copy = shoal.make("cartpole", 4, seed=0), shoal.make("cartpole", 4, seed=0, copy=True)
    for vec, shares in ((view, True), (copy, False)):
        first, _ = vec.reset()
        arrays = vec.step(np.zeros(4, np.int64))
        again = vec.step(np.zeros(4, np.int64))
        assert np.shares_memory(first, arrays[0]) is shares
        for a, b in zip(arrays[:4], again[:4]):
            assert np.shares_memory(a, b) is shares


def test_buffers_start_on_cache_lines(env):
    vec = shoal.make(env, 7)
    for name, array in vec.memory.arrays.items():
        assert array.flags.c_contiguous, name
        assert array.size == 0 or array.ctypes.data % 64 == 0, name


def test_episode_end_shows_final_and_first_obs():
    """cartpole driven to the right: the pole falls, final_obs is beyond the limit, obs is a fresh start."""
    vec = shoal.make("cartpole", 8, seed=0)
    vec.reset()
    for _ in range(30):
        obs, rewards, terminated, truncated, infos = vec.step(np.ones(8, np.int64))
        if terminated.any():
            break
    done = infos["_final_obs"]
    assert (done == (terminated | truncated)).all()
    assert (np.abs(infos["final_obs"][done][:, 2]) > 0.2).all()
    assert (np.abs(obs[done]) <= 0.05).all()
    assert (rewards == 1).all()
    episode = infos["final_info"]["episode"]
    assert (episode["r"][done] == episode["l"][done]).all()
    assert (episode["l"][done] >= 8).all()


def test_no_infos_without_an_episode_end():
    vec = shoal.make("cartpole", 8, seed=0)
    vec.reset()
    assert vec.step(np.ones(8, np.int64))[4] == {}


def test_truncation_is_not_termination():
    vec = shoal.make("pendulum", 4, max_steps=5, seed=0)
    vec.reset()
    for step in range(1, 11):
        _, _, terminated, truncated, infos = vec.step(np.zeros((4, 1), np.float32))
        assert not terminated.any()
        assert truncated.all() == (step % 5 == 0)
    assert infos["final_info"]["episode"]["l"].tolist() == [5] * 4


def test_reset_mask_leaves_the_others_alone(env):
    vec, twin = shoal.make(env, N), shoal.make(env, N)
    vec.reset(seed=2)
    twin.reset(seed=2)
    play(vec, 20)
    play(twin, 20)
    mask = np.arange(N) % 3 == 0
    before = vec.memory.arrays["obs"].copy()
    obs, _ = vec.reset(seed=50, options={"reset_mask": mask})
    fresh, _ = shoal.make(env, N).reset(seed=50)
    rows = np.repeat(mask, vec.agents_per_env)
    assert (obs[rows] == fresh[rows]).all()
    assert (obs[~rows] == before[~rows]).all()
    assert (play(vec, 50, start=20)[~mask] == play(twin, 50, start=20)[~mask]).all()


def test_next_step_mode_shows_last_obs_then_resets():
    same, later = (shoal.make("cartpole", 8, seed=0, autoreset=m) for m in ("same_step", "next_step"))
    assert later.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    same.reset()
    later.reset()
    waiting = np.zeros(8, bool)
    for _ in range(12):
        a, b = same.step(np.ones(8, np.int64)), later.step(np.ones(8, np.int64))
        if waiting.any():
            break
        ended = b[2] | b[3]
        if ended.any():
            assert (a[4]["final_obs"][ended] == b[0][ended]).all()
            first_of_next = a[0][ended].copy()
            waiting = ended.copy()
    assert waiting.any()
    assert (b[0][waiting] == first_of_next).all()
    assert (b[1][waiting] == 0).all()
    assert not (b[2] | b[3])[waiting].any()


def test_disabled_mode_waits_for_a_reset():
    vec = shoal.make("cartpole", 4, seed=0, autoreset="disabled")
    vec.reset()
    terminated = np.zeros(4, bool)
    while not terminated.any():
        _, _, terminated, truncated, _ = vec.step(np.ones(4, np.int64))
    ended = (terminated | truncated).copy()
    with pytest.raises(shoal.ShoalError, match=r"env \d has ended and autoreset is disabled"):
        vec.step(np.ones(4, np.int64))
    obs, _ = vec.reset(options={"reset_mask": ended})
    assert (np.abs(obs[ended]) <= 0.05).all()
    vec.step(np.ones(4, np.int64))


def wrapped_vec(env, **options):
    vec = shoal.make(env, N, seed=0, copy=True, **options)
    return vec if vec.agents_per_env == 1 else vec.rows()


def test_record_episode_statistics_agrees_with_final_info(env):
    vec = wrappers.RecordEpisodeStatistics(wrapped_vec(env, max_steps=30))
    vec.reset()
    rng, compared, is_alone = np.random.default_rng(0), 0, shoal.make(env).agents_per_env == 1
    for _ in range(100):
        infos = vec.step(random_actions(vec, rng))[4]
        if "episode" not in infos:
            continue
        done, ours = infos["_episode"], infos["final_info"]["episode"]
        if is_alone:  # else dead agents' idle rows count for the wrapper, and not for us
            np.testing.assert_allclose(infos["episode"]["r"][done], ours["r"][done], rtol=1e-5, atol=1e-5)
            assert (infos["episode"]["l"][done] == ours["l"][done]).all()
        compared += int(done.sum())
    assert compared >= N


def test_dict_info_to_list(env):
    vec = wrappers.DictInfoToList(wrapped_vec(env, max_steps=5))
    _, infos = vec.reset()
    assert len(infos) == vec.num_envs
    rng = np.random.default_rng(0)
    for _ in range(5):
        *_, infos = vec.step(random_actions(vec, rng))
    ended = [info for info in infos if "final_info" in info]
    assert ended
    assert {"r", "l"} <= set(ended[0]["final_info"]["episode"])
    assert ended[0]["final_obs"].shape == vec.single_observation_space.shape


def test_normalization_wrappers(env):
    """Gymnasium's NormalizeObservation wants NEXT_STEP, so that mode is offered; NormalizeReward takes both."""
    for vec in (
        wrappers.NormalizeObservation(wrapped_vec(env, autoreset="next_step")),
        wrappers.NormalizeReward(wrapped_vec(env)),
    ):
        vec.reset()
        rng = np.random.default_rng(0)
        for _ in range(60):
            obs, rewards, *_ = vec.step(random_actions(vec, rng))
        assert np.isfinite(obs).all()
        assert np.isfinite(rewards).all()


def test_gymnasium_make_vec(env):
    header = shoal.registry.find(env)
    id = f"shoal/{shoal.registry.title(env)}-v{shoal.registry.version(header)}"
    vec = gymnasium.make_vec(id, num_envs=3, max_steps=7)
    direct = shoal.make(env, 3, max_steps=7)
    obs, _ = vec.reset(seed=9)
    assert (obs == direct.reset(seed=9)[0]).all()
    rng = np.random.default_rng(0)
    for _ in range(20):
        actions = random_actions(vec, rng)
        for a, b in zip(vec.step(actions)[:4], direct.step(actions)[:4]):
            assert (a == b).all()
    vec.close()
    sync = gymnasium.make_vec(id, num_envs=2, vectorization_mode="sync")
    sync.reset(seed=0)
    sync.step(sync.action_space.sample())
    sync.close()


def test_gymnasium_make_equals_vec(env):
    header = shoal.registry.find(env)
    single = gymnasium.make(f"shoal/{shoal.registry.title(env)}-v{shoal.registry.version(header)}")
    vec = shoal.make(env, 1)
    obs, _ = single.reset(seed=3)
    expected, _ = vec.reset(seed=3)
    agents = vec.agents_per_env
    rng = np.random.default_rng(0)
    for _ in range(200):
        assert (obs == (expected[0] if agents == 1 else expected)).all()
        actions = random_actions(vec, rng)
        obs, reward, terminated, truncated, _ = single.step(actions[0] if agents == 1 else actions)
        expected, rewards, *_ = vec.step(actions)
        assert reward == pytest.approx(rewards.sum())
        if terminated or truncated:
            obs, _ = single.reset()


def test_snapshot_of_a_subset(env):
    """Some envs of one batch go on in another batch, in other places, to the same bytes."""
    vec = shoal.make(env, N)
    vec.reset(seed=8)
    play(vec, 100)
    blob = vec.snapshot([3, 1, 30])
    other = shoal.make(env, 3, backend="serial")
    other.restore(blob)
    agents = vec.agents_per_env
    for source, target in ((3, 0), (1, 1), (30, 2)):
        for name in ("obs", "alive"):
            a, b = vec.memory.arrays[name], other.memory.arrays[name]
            assert (a[source * agents : (source + 1) * agents] == b[target * agents : (target + 1) * agents]).all()
    assert other.snapshot() == blob
    assert other.snapshot([0, 1, 2]) == blob


def test_snapshot_restore_continue(env):
    """10,000 steps in one go equal 4,000, a snapshot into a new env, and 6,000 more."""
    vec, other = shoal.make(env, 8), shoal.make(env, 8, backend="threads", num_threads=2)
    vec.reset(seed=8)
    play(vec, 4000)
    other.restore(vec.snapshot())
    assert (play(vec, 6000, start=4000) == play(other, 6000, start=4000)).all()
    assert vec.snapshot() == other.snapshot()
    other.close()


def test_set_params_per_env():
    vec = shoal.make("cartpole", 3, seed=0, gravity=[9.8, 9.8, 30.0])
    vec.reset(seed=[5, 5, 5])
    obs, *_ = vec.step(np.zeros(3, np.int64))
    assert (obs[0] == obs[1]).all()
    assert (obs[0] != obs[2]).any()
    assert vec.get_params()["gravity"].tolist() == pytest.approx([9.8, 9.8, 30.0])
    vec.set_params(gravity=9.8)
    vec.reset(seed=[5, 5, 5])
    obs, *_ = vec.step(np.zeros(3, np.int64))
    assert (obs[0] == obs[2]).all()


def test_box_actions_are_clipped():
    vec = shoal.make("pendulum", 2, seed=0)
    vec.reset(seed=[1, 1])
    obs, *_ = vec.step(np.array([[2.0], [50.0]], np.float32))
    assert (obs[0] == obs[1]).all()


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.int8, np.uint64])
def test_integer_dtypes_are_all_welcome(dtype):
    vec, twin = shoal.make("cartpole", 6, seed=0), shoal.make("cartpole", 6, seed=0)
    vec.reset()
    twin.reset()
    actions = np.array([0, 1, 0, 1, 1, 1])
    assert (vec.step(actions.astype(dtype))[0] == twin.step(actions.tolist())[0]).all()
    readonly = actions.copy()
    readonly.setflags(write=False)
    spread = np.repeat(actions, 2)[::2]
    assert (vec.step(readonly)[0] == twin.step(spread)[0]).all()


def test_writing_into_the_action_buffer_needs_no_copy():
    vec, twin = shoal.make("cartpole", 6, seed=0), shoal.make("cartpole", 6, seed=0)
    vec.reset()
    twin.reset()
    vec.actions[:] = [0, 1, 0, 1, 1, 0]
    assert (vec.step(vec.actions)[0] == twin.step(np.array([0, 1, 0, 1, 1, 0]))[0]).all()


class TestSeveralAgents:
    def test_dead_agents_are_zero_until_the_next_episode(self):
        vec = shoal.make("forage", 16, seed=0)
        vec.reset()
        agents, rng, deaths = vec.agents_per_env, np.random.default_rng(0), 0
        alive = vec.alive.copy()
        for _ in range(600):
            obs, rewards, terminated, truncated, infos = vec.step(random_actions(vec, rng))
            now, done = infos["alive"], terminated | truncated
            assert not done[~alive].any(), "who is out cannot end again"
            assert (rewards[~alive] == 0).all()
            assert (obs[~now] == 0).all()
            games = (done | ~alive).reshape(-1, agents).all(1)
            assert now.reshape(-1, agents)[games].all(), "a new episode has everyone"
            deaths += int((terminated & ~np.repeat(games, agents)).sum())
            alive = now.copy()
        assert deaths > 0, "some agents must drop out early for this test to mean anything"

    def test_agents_face_equals_rows(self):
        vec, twin = shoal.make("forage", 4, seed=1), shoal.make("forage", 4, seed=1, copy=True)
        faces = vec.agents()
        obs, _ = faces.reset(seed=1)
        rows, _ = twin.reset(seed=1)
        agents, rng = vec.agents_per_env, np.random.default_rng(0)
        assert list(obs) == [f"agent_{k}" for k in range(agents)]
        for _ in range(50):
            for k, name in enumerate(faces.possible_agents):
                assert (obs[name] == rows[k::agents]).all()
            actions = random_actions(twin, rng)
            obs, rewards, *_ = faces.step({name: actions[k::agents] for k, name in enumerate(faces.possible_agents)})
            rows, expected, *_ = twin.step(actions)
            assert (rewards["agent_1"] == expected[1::agents]).all()

    def test_rows_reset_mask_is_by_whole_games(self):
        rows = shoal.make("forage", 4, seed=0).rows()
        rows.reset(seed=0)
        agents = rows.vec.agents_per_env
        assert rows.num_envs == 4 * agents
        mask = np.zeros(4 * agents, bool)
        mask[:agents] = True
        rows.reset(options={"reset_mask": mask})
        mask[agents] = True
        with pytest.raises(shoal.ShoalError, match="A game resets all of its agents"):
            rows.reset(options={"reset_mask": mask})


@pytest.mark.parametrize("env", ["cartpole", "gymnasium:CartPole-v1"])
def test_a_with_block_closes_the_envs(env):
    with shoal.make(env, 2, backend="serial") as vec:
        vec.reset(seed=0)
        with vec.rows() as rows:
            assert rows.num_envs == 2
    assert vec.closed


@pytest.mark.parametrize("take", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("env", ["cartpole", "gymnasium:CartPole-v1"])
def test_copies_and_pickles_are_refused_with_the_way_that_works(env, take):
    """A shallow copy of native envs would share, and free, their memory."""
    with (
        shoal.make(env, 2, backend="serial") as vec,
        pytest.raises(UsageError, match=r"functools.partial\(shoal.make"),
    ):
        take(vec)


@pytest.mark.parametrize("env", ["cartpole", "gymnasium:CartPole-v1"])
def test_options_of_reset_are_a_dict(env):
    with shoal.make(env, 2, backend="serial") as vec, pytest.raises(ConfigError, match="options=3 must be a dict"):
        vec.reset(options=3)
