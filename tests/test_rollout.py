"""Collector: a rollout holds what the envs said, by any backend and for any agents; memory is cleared exactly."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import shoal
from shoal.algos import ppo
from shoal.algos.learner import update_obs_moments
from shoal.errors import ConfigError
from shoal.train import env_seed
from shoal.vector.foreign import ForeignVec

from .envs import CounterEnv, DyingAgentsEnv, ImageEnv, MixedAgentsEnv
from .training import training


@contextlib.contextmanager
def started(vec, *, horizon=12, surplus_envs=0, train: Any = (), **nn: Any):
    """A trainer of a vector env that has been reset, closed at the end."""
    tables: dict[str, Any] = {
        "seed": 3,
        "train": {"horizon": horizon, "minibatches": 1, "epochs": 1, **dict(train)},
        "vec": {"surplus_envs": surplus_envs},
        "nn": {"hidden": 16, "layers": 1, **nn},
    }
    with training(vec, **tables) as trainer:
        trainer.start()
        yield trainer


def cut_obs(rollout):
    """{(t, row): leaves of the last observation} of the rows that were truncated."""
    return {
        (cut.steps.start, int(row)): [leaf[k] for leaf in cut.obs]
        for cut in rollout.truncations.added
        for k, row in enumerate(cut.rows)
    }


# ---- what is in it ----


def check_counter(rollout, episodes):
    """Every transition of CounterEnv (obs: step, last action, drawn) follows from the one before."""
    obs, actions, dones = rollout.obs[0].numpy(), rollout.actions[:, :, 0].numpy(), rollout.dones.numpy()
    counted = rollout.counted()
    alive = np.ones_like(dones) if counted is None else counted.numpy()
    cut = {key: last for key, last in cut_obs(rollout).items() if alive[key]}
    for t, row in zip(*np.nonzero(alive)):
        count, _, drawn = obs[t, row]
        assert float(rollout.rewards[t, row]) == pytest.approx(0.25 * actions[t, row] + drawn, rel=1e-6)
        after = [count + 1, actions[t, row], drawn]
        if (t, row) in cut:
            assert dones[t, row]
            assert (count + 1) % 2 == 1  # odd lengths are truncated
            assert cut.pop((t, row))[0].tolist() == after
        elif dones[t, row]:
            assert (count + 1) % 2 == 0
        else:
            assert obs[t + 1, row].tolist() == after
        if dones[t, row]:
            episodes.append(int(count) + 1)
            if rollout.alive is None:
                assert obs[t + 1, row, :2].tolist() == [0, -1]
    assert not cut


@pytest.mark.parametrize("backend", ["serial", "process", "same_step", "next_step"])
def test_a_rollout_holds_what_the_envs_said(backend):
    """Through our own backends, and through Gymnasium's SyncVectorEnv in both of its modes."""
    if backend in ("serial", "process"):
        workers = {"num_workers": 2, "batch_size": 3, "zero_copy": True} if backend == "process" else {}
        vec: Any = shoal.make(CounterEnv, 6, backend=backend, **workers)
    else:
        vec = SyncVectorEnv([CounterEnv] * 6, autoreset_mode=AutoresetMode[backend.upper()])
    with started(vec) as t:
        rollout, episodes, last = t.learners[0].rollout, [], None
        for _ in range(5):
            t.collect()
            if last is not None:
                assert torch.equal(rollout.obs[0][0], last)
            check_counter(rollout, episodes)
            last = rollout.obs[0][-1].clone()
        assert len(episodes) > 20
        stats = t.collector.vec.drain_stats()
        assert stats["episodes"] == len(episodes)
        assert stats["length"]["mean"] == pytest.approx(np.mean(episodes))


def test_a_next_step_reset_counts_for_nothing():
    """The step after an end is a reset: its row is not alive, and both it and the next start without memory."""
    with started(SyncVectorEnv([CounterEnv] * 6), core="lstm") as t:
        rollout = t.learners[0].rollout
        t.collect()
        alive, dones = rollout.alive.numpy(), rollout.dones.numpy()
        assert np.array_equal(~alive[1:], dones)
        assert dones.any()
        assert np.array_equal(rollout.resets()[1:].numpy(), dones[:-1] | ~alive[:-2])


def test_gymnasiums_final_obs_of_a_dict_space_is_understood():
    env = partial(_DictCounter, longest=4)
    with started(SyncVectorEnv([env] * 3, autoreset_mode=AutoresetMode.SAME_STEP)) as t:
        t.collect()
        rollout = t.learners[0].rollout
        cut = cut_obs(rollout)
        assert cut
        for (step, row), (big, small) in cut.items():
            assert big.tolist()[:2] == [rollout.obs[0][step, row, 0] + 1, rollout.actions[step, row, 0]]
            assert int(small) == int(big[0]) % 5


class _DictCounter(CounterEnv):
    def __init__(self, longest: int) -> None:
        super().__init__(longest)
        self.observation_space = spaces.Dict({"a": self.observation_space, "b": spaces.Discrete(5)})

    def _both(self, obs):
        return {"a": obs, "b": int(obs[0]) % 5}

    def reset(self, **options):
        obs, info = super().reset(**options)
        return self._both(obs), info

    def step(self, action):
        obs, *rest = super().step(action)
        return self._both(obs), *rest


def test_a_vector_env_that_does_not_reset_itself_is_refused():
    vec = SyncVectorEnv([CounterEnv] * 2, autoreset_mode=AutoresetMode.DISABLED)
    with pytest.raises(ConfigError, match="disabled"):
        ForeignVec(vec)


@pytest.mark.parametrize("name", ["cartpole", "pendulum", "memory", "forage"])
def test_a_rollout_of_native_envs_holds_what_stepping_them_gives(name):
    """The same seeds and the rollout's own actions, by `step`, in one group."""
    with started(shoal.make(name, 8, backend="threads", num_groups=2), horizon=20, core="mingru") as t:
        rollout = t.learners[0].rollout
        twin = shoal.make(name, 8, backend="serial")
        obs, infos = twin.reset(seed=env_seed(t.options.seed))
        for _ in range(8):
            t.collect()
            cut = cut_obs(rollout)
            for step in range(20):
                assert np.array_equal(rollout.obs[0][step].numpy(), obs)
                if rollout.masks is not None:
                    assert np.array_equal(rollout.masks[step].numpy(), infos["action_mask"].reshape(len(obs), -1))
                if rollout.alive is not None:
                    assert np.array_equal(rollout.alive[step].numpy(), infos["alive"])
                actions = rollout.head.to_env(rollout.actions[step].numpy())
                obs, rewards, terminated, truncated, infos = twin.step(actions)
                assert np.array_equal(rollout.rewards[step].numpy(), rewards)
                assert np.array_equal(rollout.dones[step].numpy(), terminated | truncated)
                for row in np.flatnonzero(truncated & ~terminated):
                    assert np.array_equal(cut.pop((step, int(row)))[0].numpy(), infos["final_obs"][row])
            assert not cut
        twin.close()


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_the_number_of_groups_and_threads_changes_nothing(core):
    found = []
    for groups in ({"backend": "serial"}, {"backend": "threads", "num_groups": 2, "num_threads": 2}):
        with started(shoal.make("forage", 6, **groups), core=core) as t:
            t.collect()
            t.collect()
            found.append([part.clone() for part in t.learners[0].rollout.tensors()])
    for one, other in zip(*found):
        if one.is_floating_point():  # a matrix product of other sizes may sum in another order
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        else:
            assert torch.equal(one, other)


def test_masked_choices_are_never_played():
    with started(shoal.make("forage", 8), horizon=32) as t:
        t.collect()
        rollout = t.learners[0].rollout
        masks = rollout.masks[:-1].flatten(0, 1)
        assert (masks == 0).any()
        actions = rollout.actions.flatten(0, 1)
        firsts = torch.tensor([part.logits.start for part in rollout.head.parts])
        assert masks.gather(1, actions + firsts).all()


def test_bytes_stay_bytes():
    """A rollout of images is not four times as large as it need be."""
    with started(shoal.make(ImageEnv, 2, backend="serial"), encoder="impala", horizon=4) as t:
        t.collect()
        rollout = t.learners[0].rollout
        assert rollout.obs[0].dtype == torch.uint8
        assert 5 * 2 * 84 * 84 * 3 < rollout.nbytes < 1.1 * 5 * 2 * 84 * 84 * 3
        turned = rollout.obs[0][:-1] + (1 + rollout.actions[..., 0]).to(torch.uint8)[..., None, None, None]
        assert torch.equal(rollout.obs[0][1:], turned)


class Unordered:
    """Pairs of envs that answer in any order, some late: what a Collector needs of a vector env with surplus envs."""

    def __init__(self, pairs: int) -> None:
        vecs = [SyncVectorEnv([CounterEnv] * 2, autoreset_mode=AutoresetMode.SAME_STEP) for _ in range(pairs)]
        self.pairs, self.num_envs = [ForeignVec(vec) for vec in vecs], 2 * pairs
        self.rng = np.random.default_rng(0)

    def async_reset(self, *, seed: int) -> None:
        for k, pair in enumerate(self.pairs):
            pair.async_reset(seed=seed + 2 * k)
        self.waiting = list(range(len(self.pairs)))

    def send(self, actions: Any, env_id: Any) -> None:
        self.pairs[env_id[0] // 2].send(actions)
        self.waiting.append(env_id[0] // 2)

    def recv(self) -> Any:
        k = self.waiting.pop(int(self.rng.integers(len(self.waiting))))
        *found, infos = self.pairs[k].recv()
        return *found, {**infos, "env_id": np.arange(2 * k, 2 * k + 2)}

    def close(self) -> None:
        for pair in self.pairs:
            pair.close()


@pytest.mark.parametrize("core", ["none", "mingru"])
def test_rows_that_are_late_go_on_in_the_next_rollout_and_nothing_of_them_is_lost(core):
    whole = SyncVectorEnv([CounterEnv] * 10, autoreset_mode=AutoresetMode.SAME_STEP)
    made = started(whole, core=core, horizon=8, surplus_envs=4, train={"learning_rate": 0.0})
    with contextlib.ExitStack() as stack:
        t = stack.enter_context(made)
        t.collector.vec = stack.enter_context(contextlib.closing(Unordered(5)))
        t.collector.ranges.clear()
        t.collector.start(0)
        learner = t.learners[0]
        rollout, episodes, last, late = learner.rollout, [], {}, 0
        for _ in range(12):
            t.collect()
            ready = rollout.ready.tolist()
            assert len(ready) >= 6
            late += 10 - len(ready)
            check_counter(rollout, episodes)
            for row in ready:
                first = rollout.obs[0][0, row].tolist()
                assert first == last.get(row, first)
                last[row] = rollout.obs[0][-1, row].tolist()
            batch = ppo.make_batch(learner)
            assert set((batch.counts.view(8, 10).sum(0) > 0).nonzero().flatten().tolist()) == set(ready)
            with torch.no_grad():
                ratios = (ppo.current_logprobs(learner) - batch.logprobs).exp()[batch.counts > 0]
            torch.testing.assert_close(ratios, torch.ones_like(ratios), rtol=0, atol=1e-4)
        assert late > 10
        assert len(last) == 10


# ---- agents ----


@pytest.mark.parametrize("kind", ["shared", "per_agent"])
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_agents_that_come_and_go_are_counted_while_they_are_in_the_game(kind, core):
    """DyingAgentsEnv's obs: (number, step, last action, drawn), int32."""
    with started(shoal.make(DyingAgentsEnv, 5, backend="serial"), policies=kind, core=core, horizon=16) as t:
        assert len(t.learners) == (1 if kind == "shared" else 4)
        for _ in range(3):
            t.collect()
            for number, learner in enumerate(t.learners):
                rollout = learner.rollout
                assert rollout.rows == (20 if kind == "shared" else 5)
                alive, obs = rollout.alive, rollout.obs[0]
                agent = torch.arange(20) % 4 if kind == "shared" else torch.full((5,), number)
                assert (obs[..., 0][alive] == agent.expand(17, -1)[alive]).all()
                assert not obs[~alive].any()  # out of the game: zeros
                assert not rollout.rewards[~alive[:-1]].any()
                cut = cut_obs(rollout)
                for step, row in alive[:-1].nonzero().tolist():
                    action, tick = int(rollout.actions[step, row, 0]), int(obs[step, row, 1]) + 1
                    assert float(rollout.rewards[step, row]) == action + 0.5
                    if (step, row) in cut:
                        assert int(agent[row]) % 2 == 1  # the odd ones are truncated
                        assert cut.pop((step, row))[0].tolist()[:3] == [
                            int(agent[row]),
                            int(obs[step, row, 1]) + 1,
                            action,
                        ]
                    elif not rollout.dones[step, row]:
                        assert obs[step + 1, row].tolist()[1:3] == [tick, action]
                assert not cut


def test_agents_with_spaces_of_their_own_fill_rollouts_of_their_own():
    with started(shoal.make(MixedAgentsEnv, 4, backend="serial"), horizon=16) as t:
        t.collect()
        speaker, listener = (learner.rollout for learner in t.learners)
        goals = speaker.obs[0][:-1]
        assert torch.equal(speaker.rewards, -goals.float())
        assert set(goals.unique().tolist()) <= {1, 2, 3}
        heard = listener.observations(listener.obs)
        words, places = heard["word"], heard["place"]
        goes_on = ~listener.dones
        assert goes_on.any()
        assert torch.equal(words[1:][goes_on], speaker.actions[..., 0][goes_on])
        assert torch.equal(words[1:][~goes_on], torch.zeros_like(words[1:][~goes_on]))
        torch.testing.assert_close(listener.rewards[goes_on], places[1:].sum(-1).float()[goes_on])


def test_agents_with_spaces_of_their_own_resume_range_by_range(monkeypatch):
    """The arrays of such agents have a row for each env, not for each agent of each env."""
    with started(shoal.make(MixedAgentsEnv, 4, backend="serial"), horizon=2) as t:
        monkeypatch.setattr(type(t.vec), "ranges", ((0, 2), (2, 4)))
        t.collector.ranges.clear()
        obs, infos = t.vec.reset(seed=7)
        t.collector.resume(obs, infos)
        assert t.learners[0].rollout.obs[0][-1].tolist() == obs["speaker"].tolist()


class TwoKinds:
    """PettingZoo's ParallelEnv: two players of one kind with a judge of another between them.

    A player sees its number and its last choice; the judge sees its last number.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "kinds_v0"}
    render_mode = None

    def __init__(self) -> None:
        self.possible_agents, self.agents = ["left", "judge", "right"], []

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-9, 9, (1,), np.float32) if agent == "judge" else spaces.MultiDiscrete([2, 6])

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-1, 1, (1,), np.float32) if agent == "judge" else spaces.Discrete(5)

    def _obs(self, actions: Any) -> Any:
        seen = {name: np.array([k, 1 + actions[name] if actions else 0]) for k, name in enumerate(("left", "right"))}
        return {**seen, "judge": actions["judge"] if actions else np.zeros(1, np.float32)}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.agents, self.tick = list(self.possible_agents), 0
        return self._obs(None), {name: {} for name in self.agents}

    def step(self, actions: Any) -> Any:
        self.tick += 1
        over, names = self.tick == 7, self.possible_agents
        rewards = {name: float(np.ravel(actions[name])[0]) for name in names}
        self.agents = [] if over else self.agents
        ends = dict.fromkeys(names, over)
        return self._obs(actions), rewards, ends, dict.fromkeys(names, False), {name: {} for name in names}

    def close(self) -> None:
        self.agents = []


@pytest.mark.parametrize("kind", ["shared", "per_agent"])
def test_agents_of_one_kind_share_a_policy_and_each_gets_its_own_action(kind):
    with started(shoal.make(TwoKinds, 4, backend="serial"), policies=kind, horizon=16) as t:
        t.collect()
        players = [learner.rollout for learner in t.learners if not learner.head.has_box]
        assert [rollout.rows for rollout in players] == ([8] if kind == "shared" else [4, 4])
        for number, rollout in enumerate(players):
            chosen, goes_on = rollout.actions[..., 0], ~rollout.dones
            assert torch.equal(rollout.rewards, chosen.float())
            assert torch.equal(rollout.obs[0][1:, :, 1][goes_on], 1 + chosen[goes_on])
            whose = torch.arange(8) % 2 if kind == "shared" else torch.full((4,), number)
            assert torch.equal(rollout.obs[0][..., 0], whose.expand(17, -1))
        (judge,) = (learner.rollout for learner in t.learners if learner.head.has_box)
        torch.testing.assert_close(judge.rewards, judge.actions[..., 0].clamp(-1, 1))


# ---- memory ----


RECURRENT_CASES = {
    "counter": lambda: shoal.make(CounterEnv, 6, backend="serial"),
    "gymnasium, next step": lambda: SyncVectorEnv([CounterEnv] * 6),
    "gymnasium, same step": lambda: SyncVectorEnv([CounterEnv] * 6, autoreset_mode=AutoresetMode.SAME_STEP),
    "dying agents": lambda: shoal.make(DyingAgentsEnv, 5, backend="serial"),
    "mixed agents": lambda: shoal.make(MixedAgentsEnv, 4, backend="serial"),
    "forage": lambda: shoal.make("forage", 8, backend="threads", num_groups=2, max_steps=10),
    "memory": lambda: shoal.make("memory", 8),
}


def loud(t):
    """Weights so large that what is remembered is seen in the logits."""
    generator = torch.Generator().manual_seed(0)
    for actor in t.actors:
        for p in actor.policy.parameters():
            with torch.no_grad():
                p.copy_(0.4 * torch.randn(p.shape, generator=generator))


@pytest.mark.parametrize("segment", [0, 4, 1])
@pytest.mark.parametrize("separate", [False, True], ids=["shared", "separate"])
@pytest.mark.parametrize("core", ["lstm", "mingru"])
@pytest.mark.parametrize("case", RECURRENT_CASES)
def test_training_sees_what_collection_saw(case, core, separate, segment):
    """Before any update the ratio is 1 and values are the same, with episodes that end inside segments."""
    train = {"segment": segment, "normalize_obs": True}
    with started(RECURRENT_CASES[case](), core=core, separate=separate, train=train) as t:
        loud(t)
        ends = 0
        for _ in range(3):
            t.collect()
            for learner in t.learners:
                rollout = learner.rollout
                batch = ppo.make_batch(learner)
                counted = torch.ones(len(batch.returns), dtype=torch.bool) if batch.counts is None else batch.counts > 0
                with torch.no_grad():
                    ratios = (ppo.current_logprobs(learner) - batch.logprobs).exp()
                torch.testing.assert_close(ratios[counted], torch.ones(int(counted.sum())), rtol=0, atol=1e-4)
                logits, values = [], []
                for k in range(rollout.horizon // rollout.segment):
                    part = slice(k * rollout.segment, (k + 1) * rollout.segment)
                    obs = rollout.observations([leaf[part].flatten(0, 1) for leaf in rollout.obs])
                    out = learner.actor.unroll(obs, tuple(s[k] for s in rollout.starts), rollout.resets()[part])
                    logits.append(out[0].detach())
                    values.append(out[1].detach())
                torch.testing.assert_close(torch.cat(values)[counted], batch.values[counted], rtol=1e-4, atol=1e-4)
                ends += int(rollout.dones[:-1].sum())
                update_obs_moments(learner)
        assert ends > 0 or case == "memory"


def test_memory_goes_on_from_one_rollout_to_the_next():
    """Two rollouts of 6 steps are one of 12: state is not cleared in between, and is where an episode ends."""
    found = []
    for horizon, count in ((12, 1), (6, 2)):
        with started(shoal.make("memory", 8), horizon=horizon, core="lstm") as t:
            loud(t)
            values = []
            learner = t.learners[0]
            noise = torch.empty(12, 8, learner.head.num_noise)
            learner.head.draw(noise, torch.Generator().manual_seed(5))
            for k in range(count):
                learner.head.draw = lambda out, _, part=noise[k * horizon : (k + 1) * horizon]: out.copy_(part)
                t.collect()
                values.append(learner.rollout.values[:-1].clone())
            found.append(torch.cat(values))
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("core", ["lstm", "mingru"])
def test_a_new_episode_starts_without_memory(core):
    """The value of a first observation is that of a fresh policy, whatever came before."""
    with started(shoal.make(CounterEnv, 6, backend="serial"), core=core) as t:
        loud(t)
        for _ in range(2):
            t.collect()
        rollout, actor = t.learners[0].rollout, t.actors[0]
        firsts = (rollout.obs[0][..., 0] == 0).nonzero()
        assert len(firsts) > 3
        for step, row in firsts.tolist():
            with torch.no_grad():
                fresh = actor.step(rollout.obs[0][step, row : row + 1], actor.initial_state(1))[1]
            torch.testing.assert_close(rollout.values[step, row], fresh[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("core", ["lstm", "mingru"])
def test_what_a_time_limit_cut_off_is_valued_with_the_memory_of_its_episode(core):
    """The state kept with final_obs is that after the last step, not the cleared one."""
    with started(shoal.make(CounterEnv, 6, backend="serial"), core=core) as t:
        loud(t)
        t.collect()
        rollout, actor = t.learners[0].rollout, t.actors[0]
        checked = 0
        for cut in rollout.truncations.added:
            for k, row in enumerate(cut.rows.tolist()):
                length = int(cut.obs[0][k, 0])
                if length > cut.steps.start + 1:
                    continue  # begun before this rollout
                state = actor.initial_state(1)
                with torch.no_grad():
                    for step in range(cut.steps.start - length + 1, cut.steps.start + 1):
                        _, _, state = actor.step(rollout.obs[0][step, row : row + 1], state)
                for kept, exact in zip(cut.state, state):
                    torch.testing.assert_close(kept[k : k + 1], exact, rtol=1e-4, atol=1e-5)
                checked += 1
        assert checked > 2
