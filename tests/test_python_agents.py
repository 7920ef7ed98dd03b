"""Agents of the user's own: what they are given, where they sit, what a resume keeps, and what mistakes say."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import shoal
from shoal.algos.agents import AGENTS, find_agent, is_agent, make_agent
from shoal.algos.agents.actor import AgentActor, GivenActions
from shoal.algos.agents.idle import Idle
from shoal.algos.agents.random import Random
from shoal.algos.collect.device import DeviceCollector
from shoal.algos.collect.host import HostCollector
from shoal.algos.rewards import REWARDS
from shoal.cli.main import main
from shoal.errors import ConfigError
from shoal.train import evaluate_agent, evaluate_run, load_player, train

from .envs import DyingAgentsEnv, MixedAgentsEnv
from .fake_gpu import GpuLikeVec, use_fake_graphs
from .training import contents, cut, tiny, train_tiny, training
from .training import vacuum_tables as tables
from .training import vacuum_trainer as robots

HERE = "tests.test_python_agents"


class Stay:
    """Robot 4 is `stay`."""

    capturable = True

    def act(self, obs, mask):
        return torch.full((len(obs),), 4)


class Clock(torch.nn.Module):
    """Counts the steps of its games, and remembers what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(0))
        self.starts: list[Any] = []

    def reset(self, mask):
        if len(self.steps) != len(mask):
            self.steps = torch.zeros(len(mask))
        self.steps.copy_(torch.where(mask, 0.0, self.steps))
        self.starts.append(mask.clone())

    def act(self, obs, mask):
        assert mask is None or mask.shape == (len(obs), 5)
        self.steps += 1
        return (self.steps % 5).long()


def nothing(obs, mask):
    return torch.zeros(len(obs), dtype=torch.int64)


# ---- in a seat ----


def test_an_agent_acts_for_the_rows_of_its_seats():
    with training(
        "vacuum", tuned="vacuum", **tiny(**tables(opponents=f"1={HERE}:Clock,3={HERE}:Clock", algo="ppo"))
    ) as t:
        (seat,) = t.frozen
        assert type(t.collector) is HostCollector
        assert (seat.role.agents, seat.rollout.rows, t.num_rows) == ((1, 3), 32, 32)
        assert len(t.vec.ranges) == 1
        for _ in range(3):
            t.iterate()
        assert bool(seat.rollout.dones.any()) or t.drain()["episode/n"] >= 0
        clock = seat.actor.held[0]
        assert bool(clock.starts[0].all())
        last = seat.rollout.actions[-1, :, 0]
        assert torch.equal(last, (clock.steps % 5).long())


def test_reset_is_told_which_games_start():
    """Games of five steps: every row starts anew after each fifth step, and the clock never passes five."""
    more = tables(opponents=f"1={HERE}:Clock", algo="ppo")
    more["env"] |= {"max_steps": 5}
    with training("vacuum", tuned="vacuum", **tiny(**more)) as t:
        for _ in range(4):
            t.iterate()
        clock = t.frozen[0].actor.held[0]
        assert float(clock.steps.max()) <= 5
        assert float(clock.steps.max()) == 16 % 5
        assert sum(bool(mask.all()) for mask in clock.starts) >= 4


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_an_agents_actions_are_those_of_the_envs_own_robot(algo):
    """`stay` in Python and `stay` of the env are the same game for the learner."""
    more = tables(algo=algo, train={"total_steps": 10**6})
    with (
        training("vacuum", tuned="vacuum", **tiny(**more, opponents="1=stay")) as native,
        training("vacuum", tuned="vacuum", **tiny(**more, opponents=f"1={HERE}:Stay")) as own,
    ):
        for t in (native, own):
            for _ in range(3):
                t.iterate()
        assert torch.equal(native.learners[0].rollout.rewards, own.learners[0].rollout.rewards)
        assert torch.equal(native.learners[0].weights, own.learners[0].weights)


@pytest.mark.parametrize(("env", "seat"), [(DyingAgentsEnv, "fish_1"), (MixedAgentsEnv, "listener")])
def test_agents_sit_in_python_envs_too(env, seat):
    """Agents that die and join, and agents with other spaces: a dict to observe, numbers to choose."""
    with training(env, opponents=f"{seat}=random", **tiny(vec={"backend": "serial"}, nn={"policies": "shared"})) as t:
        for _ in range(3):
            t.iterate()
        (place,) = t.frozen
        assert len(torch.unique(place.rollout.actions.flatten(0, 1), dim=0)) > 3
        assert t.num_rows == 16 * (t.agents - 1)
    serial = {"backend": "serial"}
    assert len(evaluate_agent(env, "random", params=serial, opponents=f"{seat}=idle", episodes=3).score.returns) == 3


def test_a_device_collector_plays_the_same_games(monkeypatch):
    use_fake_graphs(monkeypatch)
    more = tiny(**tables(opponents=f"1={HERE}:Clock,2={HERE}:Stay", algo="ppo"))
    vec = GpuLikeVec(shoal.make("vacuum", 16, backend="serial", preset="classic-1v3"))
    with training("vacuum", **more) as host, training(vec, name="vacuum", **{**more, "env": {}}) as device:
        assert type(device.collector) is DeviceCollector
        for t in (host, device):
            for _ in range(2):
                t.iterate()
        for one, two in zip(host.frozen, device.frozen):
            assert torch.equal(one.rollout.actions, two.rollout.actions)
        assert torch.equal(host.learners[0].rollout.rewards, device.learners[0].rollout.rewards)


class Forgetful(Stay):
    """Its memory cannot be put back after capturing."""

    def reset(self, mask):
        self.seen = mask


def test_only_agents_that_say_so_are_captured(monkeypatch):
    use_fake_graphs(monkeypatch)
    for name, captured in (("Stay", True), ("Clock", False), ("Forgetful", False)):
        vec = GpuLikeVec(shoal.make("vacuum", 16, backend="serial", preset="classic-1v3"))
        with training(
            vec, name="vacuum", **{**tiny(**tables(opponents=f"1={HERE}:{name}", algo="ppo")), "env": {}}
        ) as t:
            t.on_gpu = True
            t.iterate()
            assert t.graphs is not None
            assert (t.graphs.collect is not None) is captured


def test_a_run_with_agents_resumes_to_the_bit(tmp_path):
    more = tables(opponents=f"1={HERE}:Clock,2=random,3={HERE}:Seeded", algo="ppo")
    whole = train_tiny("vacuum", tmp_path / "a", **more)
    assert whole.config["opponents"].startswith("1=/")
    expected = contents(whole)
    assert any(b"opponent0.agent.0.steps" in part for part in expected.values())
    run = train_tiny("vacuum", tmp_path / "b", **more)
    assert contents(run) == expected
    assert contents(train("vacuum", resume=cut(run, 2).folder, console="off")) == expected


class Seeded(Random):
    """Any move, by the run's seed."""


# ---- evaluation ----


def test_an_agent_is_evaluated_without_a_run():
    first = evaluate_agent("cartpole", f"{HERE}:nothing", episodes=20)
    again = evaluate_agent("cartpole", nothing, episodes=20)
    assert first.score.returns == again.score.returns
    assert 8 <= first.score.mean <= 12  # always left: the pole falls within about ten steps
    anything = evaluate_agent("cartpole", "random", episodes=40)
    assert 15 <= anything.score.mean <= 35


def test_the_opponents_of_an_evaluation_are_any_players(tmp_path):
    short = {"preset": "classic-1v3", "max_steps": 20}
    result = evaluate_agent("vacuum", "idle", params=short, opponents=f"1=seek,2={HERE}:Stay", episodes=4)
    assert len(result.score.agents) == 4
    run = train_tiny("vacuum", tmp_path, **{**tables(algo="ppo"), "env": short})
    player, about = load_player(run, opponents=f"1={HERE}:Stay,2=seek")
    assert player.judged == [0, 3]
    assert about["robot_2"] == "seek"
    result = evaluate_run(run, episodes=3, opponents=f"0={HERE}:Clock", runs_folder=tmp_path)
    assert len(result.score.returns) == 3
    with pytest.raises(ConfigError, match="agents 0 to 3"):
        load_player(run, opponents="7=seek")


def test_the_command_evaluates_agents(capsys, tmp_path):
    words = f"eval vacuum --agent {HERE}:Clock --opponents 1=seek --env.preset classic-1v3 --env.max-steps 20"
    assert main([*words.split(), "--episodes", "3", "--json", "--out", str(tmp_path / "out.json")]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["env"], facts["opponents"], facts["episodes"]) == ("vacuum", "1=seek", 3)
    assert set(facts["agents"]) == {"agent_0", "agent_1", "agent_2", "agent_3"}
    assert main(["eval", "cartpole", "--agent", "random", "--episodes", "2"]) == 0
    assert "cartpole, agent random" in capsys.readouterr().out
    assert main(["eval", "cartpole", "--agent", "random", "--greedy"]) == 2
    assert "--greedy is for runs" in capsys.readouterr().err
    assert main(["eval", "last", "--agent", "random"]) == 2
    assert "With --agent, name an env, not a run" in " ".join(capsys.readouterr().err.split())
    assert main(["eval", "cartpole", "--agent", "randm"]) == 2
    assert "Did you mean 'random'" in capsys.readouterr().err


# ---- names ----


def test_decorators_register_agents_opponents_and_rewards(tmp_path, monkeypatch):
    monkeypatch.setattr(AGENTS, "_registered", {})
    monkeypatch.setattr(REWARDS, "_registered", {})
    assert shoal.opponent("stayer")(Stay) is Stay
    shoal.agent("ticker")(Clock)
    shoal.reward("double")(Double)
    assert is_agent("stayer")
    assert find_agent("ticker") is Clock
    run = train_tiny("vacuum", tmp_path, **tables(opponents="1=stayer", algo="ppo"), reward="double")
    # other processes do not know the names: the run stores where the classes are
    assert run.config["opponents"].endswith("test_python_agents.py:Stay")
    assert run.config["reward"].endswith("test_python_agents.py:Double")
    with pytest.raises(ConfigError, match="'random' is the name of a stock agent"):
        shoal.agent("random")(Stay)


class Double:
    def compute(self, before, after, action, done, info):
        return 2.0 * info["reward"]


SPACES = [
    spaces.Discrete(4, start=-1),
    spaces.MultiDiscrete([3, 2], start=[1, -2]),
    spaces.MultiBinary((2, 2)),
    spaces.Box(np.float32([-1, 0.5]), np.float32([3, 9]), (2,), np.float32),
    spaces.Box(-np.inf, np.inf, (2, 1), np.float32),
    spaces.Box(np.float32([0, -np.inf]), np.float32([np.inf, 1]), (2,), np.float32),
    spaces.Dict({"gear": spaces.Discrete(3), "wheel": spaces.Box(-2, 2, (1,), np.float32)}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("name", ["random", "idle"])
def test_stock_agents_act_in_every_space(space, name):
    seen = spaces.Box(-1, 1, (3,), np.float32)
    agent = make_agent(find_agent(name), seen, space, 7)
    head = GivenActions(space)
    head.to("cpu")
    given = agent.act(torch.zeros(50, 3), None)
    columns = head.to_columns(given, 50, torch.device("cpu"), name)
    sent = head.to_env(columns.numpy())
    for row in range(50):
        one = {key: part[row] for key, part in sent.items()} if isinstance(space, spaces.Dict) else sent[row]
        assert space.contains(one if not isinstance(space, spaces.Discrete) else int(one)), one
    back = head.to_tensors(columns)
    for mine, theirs in zip(head.layout.leaves_of(given), head.layout.leaves_of(back)):
        torch.testing.assert_close(mine.to(theirs.dtype).expand_as(theirs), theirs)
    if name == "random":
        assert len(np.unique(columns.numpy(), axis=0)) > 2


def test_the_random_agent_keeps_to_the_mask():
    agent = Random(spaces.Box(-1, 1, (3,)), spaces.Discrete(4), 0)
    mask = torch.tensor([[0, 1, 0, 1]] * 200, dtype=torch.int8)
    assert set(agent.act(torch.zeros(200, 3), mask).tolist()) == {1, 3}


def test_the_random_agent_draws_all_of_a_box_equally_often():
    box = spaces.Box(np.float32([-1, 0.5]), np.float32([3, 9]), (2,), np.float32)
    drawn = Random(spaces.Box(-1, 1, (3,)), box, 0).act(torch.zeros(10_000, 3), None).numpy()
    tenths = ((drawn - box.low) / (box.high - box.low) * 10).astype(int)
    for column in tenths.T:  # 1,000 in each tenth, with a standard deviation of 30
        assert np.abs(np.bincount(column, minlength=10) - 1000).max() < 150
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.05


# ---- changing hands ----


def test_a_seat_changes_hands_only_between_games():
    space = spaces.Discrete(5)
    actor = AgentActor(
        lambda: Idle(spaces.Box(0, 1, (1,)), space), spaces.Box(0, 1, (1,)), space, shown="idle", has_memory=True
    )
    actor.seat(3)
    obs, played = torch.zeros(3, 1), torch.ones(3, 1)
    actor.change([Stay()])
    assert actor.act(obs, (played,)).actions[:, 0].tolist() == [0, 0, 0]
    played[1] = 0  # a game starts in row 1
    assert actor.act(obs, (played,)).actions[:, 0].tolist() == [0, 4, 0]
    assert actor.unused(1) == []
    saved = {name: value.clone() for name, value in actor.memory().items()}
    assert actor.act(obs, (torch.zeros(3, 1),)).actions[:, 0].tolist() == [4, 4, 4]
    actor.restore(saved)
    assert actor.which.tolist() == [0, 1, 0]
    assert actor.act(obs, (torch.zeros(3, 1),)).actions[:, 0].tolist() == [4, 4, 4]
    assert actor.unused(1) == [0]
    actor.drop([0])
    assert (len(actor.held), actor.which.tolist(), int(actor.current)) == (1, [0, 0, 0], 0)
    assert actor.act(obs, (torch.ones(3, 1),)).actions[:, 0].tolist() == [4, 4, 4]


# ---- mistakes ----


class NoAct:
    pass


class Odd:
    def act(self, obs):
        return obs


class NeedsMore:
    def __init__(self, speed):
        self.speed = speed

    def act(self, obs, mask):
        return obs


class Fails:
    def act(self, obs, mask):
        return obs @ torch.zeros(3, 3)


class Wrong:
    """Returns what it is told to."""

    what: Any = None

    def act(self, obs, mask):
        return self.what(len(obs))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("NoAct", r"has no act\(obs, mask\), so it is no agent"),
        ("Odd", r"takes \(self, obs\), but is called as act\(obs, mask\)"),
        ("NeedsMore", "needs speed, which has no default"),
        ("Fails", "raised RuntimeError for blank observations"),
        ("Nobody", "has no 'Nobody'"),
    ],
)
def test_an_agent_that_cannot_act_is_refused_before_a_folder_is_made(tmp_path, name, said):
    with pytest.raises(ConfigError, match=said):
        train_tiny("vacuum", tmp_path / "runs", **tables(opponents=f"1={HERE}:{name}", algo="ppo"))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (lambda rows: 3, "returned int 3. Return an action of Discrete"),
        (lambda rows: torch.zeros(rows + 1, dtype=torch.int64), "returned a tensor of shape"),
        (lambda rows: torch.zeros(rows), "of whole numbers"),
        (lambda rows: torch.full((rows,), 9), "returned 9 for row 0. The choices of Discrete.* are 0 to 4"),
    ],
)
def test_wrong_actions_are_named(monkeypatch, what, said):
    monkeypatch.setattr(Wrong, "what", staticmethod(what))
    with pytest.raises(ConfigError, match=said):
        robots(opponents=f"1={HERE}:Wrong", algo="ppo")


def test_an_agent_with_a_memory_needs_all_rows_at_once():
    with pytest.raises(ConfigError, match="--vec.num-groups 2 divides them"):
        robots(opponents=f"1={HERE}:Clock", algo="ppo", vec={"num_groups": 2})
    t = robots(opponents=f"1={HERE}:Stay", algo="ppo", vec={"num_groups": 2})
    t.iterate()
    t.close()


def test_an_unknown_player_is_told_all_kinds():
    with pytest.raises(ConfigError, match=r"The env's robots: stay.* An agent of your own has the form 1=mine:Agent"):
        robots(opponents="1=nobody", algo="ppo")
