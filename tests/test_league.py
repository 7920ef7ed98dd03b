"""Leagues: who plays which rows, one opponent for each game, frozen weights, results, checkpoints, mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shoal
from shoal.errors import CheckpointError, ConfigError
from shoal.league.bank import Bank
from shoal.league.games import DRAW, LOSS, WIN, Games
from shoal.league.seating import Seating
from shoal.train import load_player, train
from tests.envs import DyingAgentsEnv
from tests.training import contents, cut, make_trainer, tiny, train_tiny, training

DUEL = "tests/duel.h"
LEAGUE: dict[str, Any] = {"pool": 6, "every": 2, "snapshot": 100, "latest": 0.3, "match": "uniform"}


def tables(*, agents: int = 2, league: Any = (), **more: Any) -> dict[str, Any]:
    """Of a tiny league."""
    own = tiny(**more)
    env = {"players": agents, **own.pop("env", {})}
    on = {"on": True, **LEAGUE, **dict(league)}
    return {**own, "env": env, "league": on}


def league_trainer(**more: Any) -> Any:
    return make_trainer(DUEL, **tables(**more))


def make_duel(num_envs: int = 6, players: int = 2, **params: Any) -> Any:
    return shoal.make(DUEL, num_envs, players=players, backend="serial", **params)


# ---- seats ----


@pytest.mark.parametrize(("players", "groups"), [(2, ()), (3, ()), (4, ("red=0,3", "blue=1,2"))])
def test_the_learner_plays_each_side_equally_often_and_nobody_plays_a_row_twice(players, groups):
    vec = make_duel(12, players)
    seating = Seating(vec, groups)
    own, others = seating.own[0].rows, seating.others.rows
    assert sorted([*own, *others]) == list(range(12 * players))
    sides = [[0, 3], [1, 2]] if groups else [[k] for k in range(players)]
    expected = [env * players + agent for env in range(12) for agent in sides[env % len(sides)]]
    assert own.tolist() == expected
    vec.close()


def test_exploiters_share_the_envs_with_the_learner():
    vec = make_duel(16)
    seating = Seating(vec, learners=3)
    assert seating.learner.tolist() == [0, 0, 0, 0, 1, 1, 2, 2] * 2
    assert all(set(seating.side[seating.learner == k].tolist()) == {0, 1} for k in range(3))
    assert sum(len(role.rows) for role in seating.own) == 16
    vec.close()


def test_the_rollout_has_only_the_learners_rows_of_both_sides():
    with training(DUEL, **tables()) as t:
        seen = record_results(t)
        t.iterate()
        rollout, rows = t.learners[0].rollout, t.league.seating.own[0].rows
        assert t.step == 8 * 16
        assert rollout.rows == 16
        assert {int(row) % 2 for row in rows} == {0, 1}
        for step, (obs, rewards, terminated, truncated) in enumerate(seen):
            np.testing.assert_array_equal(rollout.obs[0][step + 1], obs[rows])
            np.testing.assert_array_equal(rollout.rewards[step], rewards[rows])
            np.testing.assert_array_equal(rollout.dones[step], (terminated | truncated)[rows])


# ---- one opponent for each game ----


def record_results(t: Any) -> list[list[np.ndarray]]:
    """A list that grows with each step of the envs: observations, rewards, terminated, truncated."""
    seen: list[list[np.ndarray]] = []
    real = t.vec.recv

    def recv() -> Any:
        result = real()
        seen.append([np.array(part) for part in result[:4]])
        return result

    t.start()
    t.vec.recv = recv
    return seen


def record_games(t: Any, iterations: int) -> tuple[np.ndarray, np.ndarray]:
    """(steps, envs): the member that played each step, and whether the game ended in it."""
    members, over = [], []
    real = t.league.games.finish_step

    def finish(rewards: Any, is_over: Any, lo: int = 0) -> None:
        members.append(t.league.games.member.clone().numpy())
        over.append(is_over.clone().numpy())
        real(rewards, is_over, lo)

    t.league.games.finish_step = finish
    for _ in range(iterations):
        t.iterate()
    return np.stack(members), np.stack(over)


@pytest.mark.parametrize("early", [0, 1])
def test_every_game_has_one_opponent_from_start_to_end(early):
    with training(DUEL, **tables(agents=3, vec={"num_envs": 15}, env={"early": early})) as t:
        members, over = record_games(t, 12)
    assert len(set(members.reshape(-1).tolist())) > 3
    for env in range(15):
        changed = np.flatnonzero(np.diff(members[:, env])) + 1
        assert set(changed) <= set(np.flatnonzero(over[:-1, env]) + 1)
    assert 10 < over.sum() < over.size / 2


def test_games_end_when_the_env_says_so():
    """With players that leave early, a game is over when the env begins the next one."""
    with training(DUEL, **tables(agents=3, vec={"num_envs": 6}, env={"early": 1})) as t:
        ticks = []
        real = t.league.games.finish_step
        t.league.games.finish_step = lambda rewards, is_over, lo=0: (
            ticks.append((is_over.numpy().copy(), t.vec.memory.arrays["tick"].copy())),
            real(rewards, is_over, lo),
        )
        for _ in range(4):
            t.iterate()
    for is_over, tick in ticks:
        np.testing.assert_array_equal(is_over, tick == 0)


def test_draws_follow_the_probabilities_and_never_take_a_member_without_one():
    vec = make_duel(4000)
    games = Games(Seating(vec), seed=3, margin=0.0)
    probs = [0.0, 0.25, 0.0, 0.75, *[0.0] * 60]
    games.set_probs(probs)
    games.draw()
    counts = torch.bincount(games.next_member, minlength=64) / 4000
    assert torch.allclose(counts, torch.tensor(probs), atol=0.03)
    assert set(games.next_member.tolist()) == {1, 3}
    games.set_probs([0.1] * 3 + [0.0] * 61)  # a sum that is not 1 because of rounding never leaves the members
    games.draw()
    assert int(games.next_member.max()) <= 2
    vec.close()


# ---- the members act ----


@pytest.mark.parametrize(
    ("core", "agents"),
    [
        ("lstm", 2),
        pytest.param("none", 3, marks=pytest.mark.slow),
        *(pytest.param("mingru", k, marks=pytest.mark.slow) for k in (2, 3)),
    ],
)
def test_opponents_act_as_their_frozen_weights_alone(core, agents):
    """A slow twin: one actor for each member, one row at a time, with a memory of the row's own."""
    more = {"nn": {"core": core}, "train": {"normalize_obs": True, "learning_rate": 0.1, "horizon": 16}}
    with training(DUEL, **tables(agents=agents, vec={"num_envs": 6}, **more)) as t:
        for _ in range(8):
            t.iterate()
        seating, rollout, games = t.league.seating, t.league.members.rollout, t.league.games
        states = {row: tuple(part[row : row + 1].clone() for part in rollout.state) for row in range(rollout.rows)}
        twins = frozen_twins(t)
        members, over = record_games(t, 1)
        del games
        assert len(set(members.reshape(-1).tolist())) > 2
        compared = 0
        for step in range(rollout.horizon):
            for row in range(rollout.rows):
                env = row // seating.others_per_env
                twin = twins[int(members[step, env])]
                decision = twin.act(
                    rollout.obs[0][step, row : row + 1],
                    states[row],
                    mask=rollout.masks[step, row : row + 1],
                    noise=rollout.noise[step, row : row + 1],
                )
                assert decision.actions.tolist() == rollout.actions[step, row : row + 1].tolist()
                states[row] = decision.state
                if over[step, env]:
                    states[row] = twin.initial_state(1)
                compared += 1
        assert compared == 16 * 6 * (agents - 1)


def frozen_twins(t: Any) -> dict[int, Any]:
    """Actors with weights of their own, by member, as they are now."""
    twins = {}
    for member, player in t.league.league.members.items():
        if player.kind in ("latest", "snapshot", "exploiter"):
            twin = t.actors[0].on_cpu()
            source = t.actors[0] if member == 0 else t.league.bank.actor(member)
            twin.load_state_dict({name: value.clone() for name, value in source.state_dict().items()})
            twins[member] = twin
    return twins


def test_a_snapshot_keeps_its_weights_while_the_learner_changes():
    with training(DUEL, **tables()) as t:
        saved: dict[int, torch.Tensor] = {}
        for _ in range(6):
            t.iterate()
            for member, player in t.league.league.members.items():
                row = t.league.bank.weights[member].clone()
                if player.kind == "snapshot" and player.number in saved:
                    assert torch.equal(saved[player.number], row)
                elif player.kind == "snapshot":
                    own = torch.cat([p.detach().reshape(-1) for p in t.actors[0].policy.parameters()])
                    assert torch.equal(row[: len(own)], own)
                    saved[player.number] = row
        assert len(saved) >= 4
        rows = list(saved.values())
        assert not any(torch.equal(a, b) for k, a in enumerate(rows) for b in rows[:k])


def test_a_banks_actor_plays_from_its_row():
    with training(DUEL, **tables(train={"normalize_obs": True})) as t:
        t.iterate()
        bank = Bank(t.actors[0], 3)
        bank.put(2, t.actors[0])
        obs = torch.randn(5, 6)
        wanted = t.actors[0].step(obs, ())[0]
        assert torch.equal(bank.actor(2).step(obs, ())[0], wanted)
        assert not torch.equal(bank.actor(1).step(obs, ())[0], wanted)
        bank.put(1, t.actors[0])
        assert torch.equal(bank.actor(1).step(obs, ())[0], wanted)


@pytest.mark.parametrize("core", ["lstm", *(pytest.param(x, marks=pytest.mark.slow) for x in ("none", "mingru"))])
def test_members_that_act_together_act_as_they_do_alone(core):
    more = {"nn": {"core": core}, "train": {"normalize_obs": True, "learning_rate": 0.1}}
    pair = [make_trainer(DUEL, **tables(**more)) for _ in range(2)]
    assert pair[1].league.members._shared is not None
    pair[0].league.members._shared = None
    for _ in range(5):
        for t in pair:
            t.iterate()
    one, two = pair
    assert len(set(one.league.games.member.tolist())) > 2
    for name, value in one.state()["state"].items():  # products of other sizes: some CPUs round them differently
        torch.testing.assert_close(value, two.state()["state"][name], rtol=1e-5, atol=1e-6, msg=name)
    for t in pair:
        t.close()


class WithBatchNorm(torch.nn.Module):
    """A custom policy whose buffers are its own: its members act one after another."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(observation_space.shape[0])
        self.out = torch.nn.Linear(observation_space.shape[0], 4)

    def forward(self, obs: torch.Tensor) -> Any:
        out = self.out(self.norm(obs))
        return out[:, :3], out[:, 3]


def test_custom_policies_are_members_with_their_buffers():
    with training(DUEL, policy=WithBatchNorm, **tables()) as t:
        assert t.league.members._shared is None
        for _ in range(4):
            t.iterate()
        means = [t.league.bank.actor(member).policy.norm.running_mean for member in (1, 2)]
        assert not torch.equal(*means)


@pytest.mark.parametrize("core", ["lstm", pytest.param("none", marks=pytest.mark.slow)])
def test_ranges_of_envs_do_not_change_the_games(core):
    """Envs that step in turns, in ranges that begin at any side, play the same games as all of them together."""
    more = {"nn": {"core": core}, "league": {"members": ("high",)}}
    pair = [make_trainer(DUEL, **tables(**more, vec={"num_envs": 14, "num_groups": k})) for k in (1, 4)]
    assert [len(t.vec.ranges) for t in pair] == [1, 4]
    for _ in range(5):
        for t in pair:
            t.iterate()
    one, two = pair
    for name, mine in one.league.games.tensors().items():
        assert torch.equal(mine, two.league.games.tensors()[name])
    for seat_one, seat_two in zip(one.collector.seats, two.collector.seats):
        assert torch.equal(seat_one.rollout.actions, seat_two.rollout.actions)
        torch.testing.assert_close(seat_one.rollout.obs[0], seat_two.rollout.obs[0])
    for t in pair:
        t.close()


def test_python_envs_have_leagues_too():
    """Agents that join later and die one by one: a game is over when the env begins the next one."""
    vec = shoal.make(DyingAgentsEnv, 8, backend="serial")
    with training(vec, **tables() | {"env": {}}) as t:
        members, over = record_games(t, 6)
        assert len(set(members.reshape(-1).tolist())) > 1
        assert over.sum() > 6
        for env in range(8):
            changed = np.flatnonzero(np.diff(members[:, env])) + 1
            assert set(changed) <= set(np.flatnonzero(over[:-1, env]) + 1)


@pytest.mark.parametrize("algo", ["dqn", "pqn"])
def test_opponents_do_not_explore(algo):
    with training(DUEL, **tables(algo=algo, league={"snapshot": 40})) as t:
        for _ in range(3):
            t.iterate()
        assert not t.league.members.rollout.noise[..., -1].any()
        assert bool(t.learners[0].rollout.noise[..., -1].any())


# ---- robots ----


@pytest.mark.parametrize("agents", [2, 3])
def test_robots_play_whole_games_in_the_other_seats(agents):
    more = {"league": {"members": ("low", "high"), "pool": 6}, "vec": {"num_envs": 6}}
    with training(DUEL, **tables(agents=agents, **more)) as t:
        seen = record_results(t)
        members, _over = record_games(t, 10)
        side = t.league.seating.side
        robots = {1: 1, 2: 2}  # member -> code of the param
        assert {1, 2} <= set(members.reshape(-1).tolist())
        # an observation after step k belongs to the game of step k + 1
        for (obs, *_), playing in zip(seen[:-1], members[1:]):
            by_env = obs.reshape(6, agents, -1)
            for env in range(6):
                code = robots.get(int(playing[env]), 0)
                expected = [0 if agent == side[env] else code for agent in range(agents)]
                assert by_env[env, 0, 4:].tolist() == expected


# ---- results ----


def test_results_equal_a_slow_count():
    with training(DUEL, **tables(league={"every": 1000, "margin": 0.5}, agents=3, vec={"num_envs": 9})) as t:
        seen, drained, drain = record_results(t), [], t.league.games.drain  # also before every snapshot
        t.league.games.drain = lambda: (drained.append(drain()), drained[-1])[1]
        members, over = record_games(t, 6)
        counts = np.zeros((64, 3, 3), int)
        totals = np.zeros((9, 3))
        for (_obs, got, *_), playing, ended in zip(seen, members, over):
            totals += got.reshape(9, 3)
            for env in np.flatnonzero(ended):
                side = env % 3
                lead = totals[env, side] - np.delete(totals[env], side).max()
                outcome = WIN if lead > 0.5 else LOSS if lead < -0.5 else DRAW
                counts[playing[env], side, outcome] += 1
                totals[env] = 0
        np.testing.assert_array_equal(sum(drained)[0] + t.league.games.drain()[0], counts)
        assert all(counts[..., k].sum() > 0 for k in range(3))
        assert t.league.games.drain().sum() == 0


def test_a_side_is_a_group_and_its_result_the_mean():
    vec = make_duel(4, 4)
    games = Games(Seating(vec, ("red=0,3", "blue=1,2")), seed=1, margin=0.1)
    games.member[:] = torch.tensor([5, 6, 7, 8])
    over = torch.tensor([True, True, True, False])
    returns = torch.tensor([[1.0, 0, 0, 1], [1, 0, 0, 1], [1, 1, 1, 1.1], [9, 0, 0, 9]])
    games.finish_step(returns.reshape(-1), over)
    counts = games.drain()[0]
    assert counts[5, 0].tolist() == [1, 0, 0]  # red wins as red
    assert counts[6, 1].tolist() == [0, 0, 1]  # red wins against blue
    assert counts[7, 0].tolist() == [0, 1, 0]
    assert counts.sum() == 3
    assert games.returns.reshape(4, 4).sum(1).tolist() == [0, 0, 0, 18]
    assert games.member.tolist() == [0, 0, 0, 8]
    vec.close()


# ---- checkpoints ----


CASES = {
    "mlp": {},
    "lstm": {"nn": {"core": "lstm"}, "train": {"normalize_obs": True}},
    "robots": {"league": {"members": ("low", "high")}},
    "exploiters": {"league": {"exploiters": 1, "exploiter_reset": 100}, "vec": {"num_envs": 16}},
    "pool": {"league": {"on": False}, "opponents": "pool"},
    "dqn": {"algo": "dqn"},
    "pqn": {"algo": "pqn"},
}


FEW = ("lstm", "robots")  # of each run of the tests; the others are marked slow


@pytest.mark.parametrize("case", [pytest.param(x, marks=[] if x in FEW else pytest.mark.slow) for x in CASES])
def test_a_league_repeats_and_resumes_to_the_bit(case, tmp_path):
    more = tables(**CASES[case])
    more["league"] |= {"snapshot": 40} if "algo" in CASES[case] else {}
    whole = contents(train(DUEL, runs_folder=tmp_path / "a", console="off", **more))
    run = train(DUEL, runs_folder=tmp_path / "b", console="off", **more)
    assert contents(run) == whole
    assert contents(train(DUEL, resume=cut(run, 3).folder, console="off")) == whole


def test_exploiters_learn_against_the_main_one_and_start_anew():
    more = {"league": {"exploiters": 2, "exploiter_reset": 64, "every": 1}, "vec": {"num_envs": 16}}
    with training(DUEL, **tables(**more)) as t:
        assert [role.name for role in t.roles] == ["main", "exploiter_1", "exploiter_2"]
        is_exploited = t.league.seating.learner > 0
        kinds = set()
        for _ in range(6):
            before = [actor.policy.actor.weight.clone() for actor in t.actors]
            t.iterate()
            assert not any(torch.equal(a, b.policy.actor.weight) for a, b in zip(before, t.actors))
            assert set(t.league.games.member[torch.from_numpy(is_exploited)].tolist()) == {0}
            kinds |= {player.kind for player in t.league.league.members.values()}
        assert "exploiter" in kinds
        resets = [exploiter.count for exploiter in t.league.league.exploiters]
        assert min(resets) >= 1
        assert t.step == 6 * 8 * 8  # of the main learner


# ---- runs as members ----


@pytest.mark.slow
def test_runs_are_members_with_their_own_network_or_in_the_bank(tmp_path):
    alike = train_tiny(DUEL, tmp_path / "alike", env={"players": 2})
    other = train_tiny(DUEL, tmp_path / "other", env={"players": 2}, nn={"hidden": 8, "core": "lstm"})
    names = (str(alike.folder), str(other.folder))
    with training(DUEL, tuned=DUEL, **tables(league={"members": names})) as t:
        assert list(t.league.members.runs) == [2]
        player, _ = load_player(alike)
        obs = torch.randn(3, 6)
        assert torch.equal(t.league.bank.actor(1).step(obs, ())[0], player.actors[0].step(obs, ())[0])
        members, _ = record_games(t, 6)
        assert {1, 2} <= set(members.reshape(-1).tolist())
        assert bool(t.league.members.run_states[2][0].any())
    more = tables(league={"members": names})
    whole = contents(train(DUEL, runs_folder=tmp_path / "a", console="off", **more))
    run = train(DUEL, runs_folder=tmp_path / "b", console="off", **more)
    assert contents(train(DUEL, resume=cut(run, 3).folder, console="off")) == whole
    assert sorted(whole) == sorted(contents(run))


class Copycat:
    """A Python agent with a memory: it plays the sum of its steps in the game, modulo 3, where the mask allows."""

    def __init__(self) -> None:
        self.steps = torch.zeros(0, dtype=torch.int64)

    def reset(self, mask: torch.Tensor) -> None:
        if len(self.steps) != len(mask):
            self.steps = torch.zeros(len(mask), dtype=torch.int64)
        self.steps[mask] = 0

    def act(self, obs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return self.steps % 2 * 2

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"steps": self.steps}


def test_python_agents_are_members():
    name = f"{Path(__file__).resolve()}:Copycat"
    with training(DUEL, tuned=DUEL, **tables(league={"members": (name, "low")})) as t:
        members, over = record_games(t, 1)
        rollout, begun = t.league.members.rollout, np.zeros(16, int)
        found = 0
        for step in range(rollout.horizon):
            for env in np.flatnonzero(members[step] == 1):
                assert int(rollout.actions[step, env, 0]) == (begun[env] + 1) % 2 * 2
                found += 1
            begun = np.where(over[step], 0, begun + 1)
        assert found > 10


@pytest.mark.slow
def test_python_agents_resume_to_the_bit(tmp_path):
    more = tables(league={"members": (f"{Path(__file__).resolve()}:Copycat",)})
    whole = contents(train(DUEL, runs_folder=tmp_path / "a", console="off", **more))
    run = train(DUEL, runs_folder=tmp_path / "b", console="off", **more)
    assert contents(train(DUEL, resume=cut(run, 3).folder, console="off")) == whole


# ---- the run's folder ----


def test_a_leagues_run_is_evaluated_with_the_learner_on_all_sides(tmp_path):
    run = train_tiny(DUEL, tmp_path, **{**tables(league={"exploiters": 1}), "eval": {"episodes": 4}})
    player, about = load_player(run)
    assert len(player.actors) == 1
    assert player.roles[0].agents is None
    vec = shoal.make(about.pop("env"), 2, **about)
    obs, infos = vec.reset(seed=1)
    player.reset(4)
    assert len(player.act(obs, infos)) == 4
    vec.close()
    assert shoal.load(run.folder) is not None
    assert run.best == run.last  # returns against a pool that grows stronger do not compare
    assert run.summary["eval"]["return"] == pytest.approx(0.0, abs=1e-5)  # a zero-sum game of equals


def test_opponents_self_learns_from_all_rows():
    with training(DUEL, **{**tables(), "league": {}, "opponents": "self"}) as t:
        assert t.num_rows == 32
        assert t.league is None
        assert t.options.nn.policies == "shared"
        t.iterate()


# ---- mistakes ----


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"env": {"players": 1}}, "at least two agents"),
        ({"env": {"players": 1}, "league": {"on": False}, "opponents": "self"}, "at least two agents"),
        ({"league": {"members": ("hihg",)}}, "Did you mean 'high'"),
        ({"league": {"members": ("no-such-run",)}}, "The env's robots: low, high"),
        ({"opponents": "1=high"}, "--league seats the opponents itself"),
        ({"env": {"robot_1": "high"}}, "--league.members high"),
        ({"nn": {"policies": "per_agent"}}, "--nn.policies per_agent has several"),
        ({"vec": {"num_envs": 15}}, "--vec.num-envs 15"),
        ({"league": {"exploiters": 9}}, "Use 36"),
        ({"league": {"pool": 65}}, "65"),
        ({"league": {"on": False, "exploiters": 1}, "opponents": "pool"}, "Use --league"),
        ({"league": {"on": False}, "opponents": "pol"}, "Did you mean 'pool'"),
    ],
)
def test_mistakes_are_named_before_anything_starts(more, said):
    with pytest.raises(ConfigError, match=said.replace(".", r"\.").replace("-", r"\-")):
        league_trainer(**more).close()


def test_envs_that_play_a_seat_themselves_are_refused():
    vec = make_duel(6, robot_1="high")
    with pytest.raises(ConfigError, match=r"agent 1 of the envs is played by high.*--league.members high"):
        make_trainer(vec, **tables() | {"env": {}})
    vec.close()


def test_sides_with_different_spaces_are_refused():
    with pytest.raises(ConfigError, match="the same spaces"):
        make_trainer("tests/unlike.h", **tables() | {"env": {}}).close()


def test_groups_of_different_sizes_are_refused():
    with pytest.raises(ConfigError, match="predators has 3, prey has 1"):
        make_trainer("examples/chase/chase.h", **tables() | {"env": {}}).close()


def test_a_run_of_another_observation_is_refused(tmp_path):
    run = train_tiny(DUEL, tmp_path, env={"players": 3})
    with pytest.raises(ConfigError, match=r"observes Box.*Name a run of this env"):
        league_trainer(league={"members": (str(run.folder),)}).close()


def test_a_pool_larger_than_memory_is_refused(monkeypatch):
    monkeypatch.setattr("shoal.memory.free_bytes", lambda device="cpu": 10_000)
    with pytest.raises(ConfigError, match=r"--league.pool 6 of a policy of [\d,]+ bytes needs [\d,]+ bytes of memory"):
        league_trainer().close()


def test_a_resume_with_another_pool_is_refused(tmp_path):
    run = cut(train(DUEL, runs_folder=tmp_path, console="off", **tables(league={"members": ("low",)})), 2)
    with pytest.raises(CheckpointError, match=r"named members low; this run has high"):
        train(DUEL, resume=run.folder, console="off", league={"members": ("high",)})
    with pytest.raises(CheckpointError, match=r"a pool of 6, this run one of 8. Resume with --league.pool 6"):
        train(DUEL, resume=run.folder, console="off", league={"pool": 8})


def test_a_checkpoint_without_a_league_is_refused(tmp_path):
    run = cut(train_tiny(DUEL, tmp_path, opponents="self"), 2)
    with pytest.raises(CheckpointError, match="has no league"):
        train(DUEL, resume=run.folder, console="off", opponents="pool")
