"""Games of several agents: returns and lengths of agents and groups in statistics, metrics, evaluation, display."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import shoal
from shoal import evaluate, plot
from shoal.cli.main import main
from shoal.evaluate import RandomPlayer
from shoal.log.base import RunFacts
from shoal.log.frame import frame
from shoal.log.history import MOST_AGENTS, History
from shoal.runs import Run
from shoal.train.tally import MAX_LISTED, AgentTally
from tests.envs import DyingAgentsEnv, TurnsEnv
from tests.training import tiny_trainer, train_tiny, training

CHASE = "tests/chase.h"
GROUPS = {"predators": [0, 1, 2], "prey": 3}


def slow_play(vec, steps):
    """Random play, summed up agent by agent: lists of each agent's returns and lengths in the games that ended."""
    agents, names = vec.agents_per_env, vec.agent_spaces.agents
    totals, ticks = np.zeros((vec.num_envs, agents)), np.zeros(vec.num_envs, int)
    lasted, alive = np.zeros((vec.num_envs, agents), int), None
    seen = {name: ([], []) for name in names}
    _, infos = vec.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        alive = np.array(infos["alive"]).reshape(-1, agents)
        starts = np.array(getattr(vec, "ended", np.zeros(vec.num_envs, bool)))  # next_step: this step is their reset
        actions = rng.integers(0, 2, vec.action_space.shape)
        _, rewards, terminated, truncated, infos = vec.step(actions)
        totals += rewards.reshape(-1, agents)
        ticks += ~starts
        done = (terminated | truncated).reshape(-1, agents)
        lasted[done] = np.repeat(ticks[:, None], agents, 1)[done]
        for game in np.flatnonzero((done | ~alive).all(1) & ~starts):
            for k, name in enumerate(names):
                seen[name][0].append(totals[game, k])
                seen[name][1].append(lasted[game, k] or ticks[game])
            totals[game], lasted[game], ticks[game] = 0, 0, 0
        if vec.autoreset_mode == AutoresetMode.DISABLED and vec.ended.any():
            _, infos = vec.reset(options={"reset_mask": vec.ended.copy()})
    return seen


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("vacuum", {"backend": "serial"}),
        ("vacuum", {"backend": "threads", "num_threads": 3}),
        ("forage", {"backend": "serial", "max_steps": 30}),
        (DyingAgentsEnv, {"backend": "serial"}),
        (TurnsEnv, {"backend": "serial"}),
        (DyingAgentsEnv, {"backend": "process", "num_workers": 2}),
        ("forage", {"backend": "serial", "max_steps": 30, "autoreset": "next_step"}),
        ("forage", {"backend": "serial", "max_steps": 30, "autoreset": "disabled"}),
        (DyingAgentsEnv, {"backend": "serial", "autoreset": "next_step"}),
        (DyingAgentsEnv, {"backend": "serial", "autoreset": "disabled"}),
        (DyingAgentsEnv, {"backend": "process", "autoreset": "disabled"}),
        (TurnsEnv, {"backend": "serial", "autoreset": "next_step"}),
    ],
)
def test_statistics_of_each_agent_equal_a_slow_sum(env, options):
    vec = shoal.make(env, 8, **options)
    seen = slow_play(vec, 300 if env in ("vacuum", "forage") else 60)
    stats = vec.drain_stats()
    assert list(vec.agent_stats) == list(vec.agent_spaces.agents)
    for name, (returns, lengths) in seen.items():
        assert len(returns) == stats["episodes"] > 4
        for kind, values in (("return", returns), ("length", lengths)):
            found = vec.agent_stats[name][kind]
            assert found == pytest.approx(np.mean(values), rel=1e-4, abs=1e-4), (name, kind)
    by_agent = [part["return"] for part in vec.agent_stats.values()]
    assert np.mean(by_agent) == pytest.approx(stats["return"]["mean"], rel=1e-4, abs=1e-4)
    assert vec.drain_stats() == {"episodes": 0}
    assert not vec.agent_stats
    vec.close()


def test_agents_that_are_out_early_have_shorter_lengths():
    vec = shoal.make(DyingAgentsEnv, 8, backend="serial")
    slow_play(vec, 100)
    stats = vec.drain_stats()
    assert min(part["length"] for part in vec.agent_stats.values()) < stats["length"]["mean"]
    vec.close()


def test_an_env_of_one_agent_has_no_statistics_by_agent():
    vec = shoal.make("cartpole", 4, seed=0)
    vec.reset()
    for _ in range(60):
        vec.step(np.zeros(4, int))
    assert vec.drain_stats()["episodes"] > 0
    assert not vec.agent_stats
    vec.close()


# ---- metrics of training ----


def test_returns_by_group_and_losses_by_policy_are_logged():
    with training(CHASE, nn={"groups": GROUPS, "hidden": 16}, vec={"num_envs": 8}, train={"horizon": 50}) as trainer:
        for _ in range(2):
            trainer.iterate()
        record = trainer.drain()
    predators = [record[f"episode/return/agent_{k}"] for k in range(3)]
    assert record["episode/return/predators"] == pytest.approx(np.mean(predators))
    assert record["episode/return/prey"] == record["episode/return/agent_3"]
    assert record["episode/return/prey"] == pytest.approx(-record["episode/return/predators"], rel=1e-4)  # a zero sum
    assert record["episode/return"] == pytest.approx((3 * np.mean(predators) + record["episode/return/prey"]) / 4)
    for metric in ("loss/policy", "loss/value", "entropy", "grad_norm"):
        both = [record[f"{metric}/predators"], record[f"{metric}/prey"]]
        assert both[0] != both[1]
        assert record[metric] == pytest.approx(np.mean(both))
    assert not any(key.startswith(("episode/length/", "learning_rate/")) for key in record)  # nobody is out early


def test_a_shared_policy_has_returns_by_agent_but_no_losses_by_policy():
    with training(CHASE, nn={"hidden": 16}, vec={"num_envs": 8}, train={"horizon": 50}) as trainer:
        trainer.iterate()
        record = trainer.drain()
    assert {f"episode/return/agent_{k}" for k in range(4)} <= record.keys()
    assert not any(key.startswith(("loss/", "entropy/")) and key.count("/") > 1 for key in record)


def test_lengths_by_agent_are_logged_where_agents_die():
    with training(
        DyingAgentsEnv, nn={"hidden": 8}, vec={"num_envs": 4, "backend": "serial"}, train={"horizon": 32}
    ) as t:
        t.iterate()
        record = t.drain()
    lengths = [record[f"episode/length/fish_{k}"] for k in range(4)]
    assert min(lengths) < record["episode/length"]


def test_opponents_are_listed_but_do_not_count_in_the_mean():
    own = {"env": {"preset": "classic-1v3", "max_steps": 20}, "train": {"horizon": 20, "total_steps": 4000}}
    trainer = tiny_trainer("vacuum", algo="ppo", opponents="1=stay,2=stay,3=stay", **own)
    for _ in range(2):
        trainer.iterate()
    record = trainer.drain()
    trainer.close()
    assert record["episode/return"] == pytest.approx(record["episode/return/agent_0"], rel=1e-4)
    assert {f"episode/return/agent_{k}" for k in range(4)} <= record.keys()
    assert record["episode/return/agent_1"] != record["episode/return/agent_0"]


def test_very_many_agents_are_summarized():
    def one(mean):
        return {"return": mean, "length": 5.0}

    stats = {f"agent_{k}": one(float(k)) for k in range(MAX_LISTED + 4)}
    record = AgentTally().record(stats, {"first": (0, 1), "rest": tuple(range(2, 20))})
    assert record == {
        "episode/return/first": 0.5,
        "episode/return/rest": 10.5,
        "episode/return/lowest_agent": 0.0,
        "episode/return/highest_agent": 19.0,
    }
    assert AgentTally().record({}, {}) == {}


# ---- evaluation ----


def test_evaluation_of_each_agent_equals_its_own_games():
    """The quota of each env counts, so the slow sum takes the first games of each env."""
    player = RandomPlayer(shoal.make(DyingAgentsEnv, 4, backend="serial").action_space, seed=1)
    player.groups = {"even": (0, 2), "odd": (1, 3)}
    vec = shoal.make(DyingAgentsEnv, 4, backend="serial")
    score = evaluate.play(vec, player, 8, seed=5)
    assert list(score.agents) == [f"fish_{k}" for k in range(4)]
    returns = np.array([score.agents[f"fish_{k}"].returns for k in range(4)])
    lengths = np.array([score.agents[f"fish_{k}"].lengths for k in range(4)])
    np.testing.assert_allclose(returns.mean(0), score.returns)
    np.testing.assert_array_equal(lengths.max(0), score.lengths)
    assert lengths.min() < lengths.max()
    np.testing.assert_allclose(score.groups["even"].returns, returns[[0, 2]].mean(0))
    np.testing.assert_allclose(score.groups["odd"].lengths, lengths[[1, 3]].mean(0))
    facts = score.facts()
    assert facts["groups"]["even"]["return"] == pytest.approx(returns[[0, 2]].mean())
    assert facts["agents"]["fish_1"]["length"] == pytest.approx(lengths[1].mean())
    vec.close()


@pytest.fixture(scope="module")
def chase_run(tmp_path_factory) -> Run:
    own = {"horizon": 50, "total_steps": 16 * 50 * 4 * 3}
    folder = tmp_path_factory.mktemp("chase")
    return train_tiny(CHASE, folder, nn={"groups": GROUPS}, train=own, eval={"episodes": 4}, save={"keep": 1})


def test_a_run_says_how_each_group_plays(chase_run):
    result = chase_run.summary["eval"]
    assert list(result["groups"]) == ["predators", "prey"]
    assert list(result["agents"]) == [f"agent_{k}" for k in range(4)]
    assert result["groups"]["prey"]["return"] == pytest.approx(-result["groups"]["predators"]["return"], rel=1e-3)
    assert chase_run.facts["policies"] == {"predators": [0, 1, 2], "prey": [3]}
    evaluated = [record for record in chase_run.metrics() if "eval/return" in record][-1]
    assert evaluated["eval/return/prey"] == pytest.approx(result["groups"]["prey"]["return"])


def test_shoal_eval_has_a_row_for_each_group(chase_run, capsys):
    words = ["eval", str(chase_run.folder), "--episodes", "4", "--greedy", "--video", "none"]
    assert main(words) == 0
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert rows.index("return") < rows.index("predators") < rows.index("prey") < rows.index("agent_0")
    assert main([*words, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    by_agent = [facts["agents"][f"agent_{k}"]["return"] for k in range(4)]
    assert np.mean(by_agent) == pytest.approx(facts["return"])
    assert facts["groups"]["predators"]["return"] == pytest.approx(np.mean(by_agent[:3]))


def test_a_pattern_draws_a_curve_for_each_agent(chase_run):
    drawn = plot.figure([chase_run], "episode/return/*")
    assert [curve.label for curve in drawn.curves] == ["predators", "prey", *(f"agent_{k}" for k in range(4))]
    assert drawn.y_label == "episode return"
    assert [c.label for c in plot.figure([chase_run], "loss/policy/*").curves] == ["predators", "prey"]
    with pytest.raises(shoal.errors.ConfigError, match=r"no metric 'episode/retrun/\*'"):
        plot.figure([chase_run], "episode/retrun/*")


# ---- display ----


def history_of(agents, groups=(), **more):
    facts = RunFacts("runs/x", "x", "chase", agents=agents, groups=dict(groups), **more)
    history = History(facts)
    record = {f"episode/return/{name}": float(k) for k, name in enumerate((*dict(groups), *agents))}
    history.add({"step": 10, "wall_s": 1.0, "episode/return": 1.0, "episode/length": 5.0, **record})
    return history


def text_of(history):
    return ["".join(part for part, _ in line) for line in frame(history, 100, 60)]


def test_the_dashboard_has_a_row_for_each_group_with_the_loss_of_its_policy():
    history = history_of(("wolf_0", "wolf_1", "prey"), {"wolves": (0, 1), "prey": (2,)}, policies={"wolves": (0, 1)})
    history.add({"step": 20, "wall_s": 2.0, "loss/policy": 0.25, "loss/policy/wolves": 0.125})
    assert [row.name for row in history.agents()] == ["wolves", "prey", "wolf_0", "wolf_1"]
    assert "loss/policy/wolves" not in [row.name for row in history.learning()]
    assert history.stats() == []
    shown = text_of(history)
    assert any("RETURN BY AGENT" in line for line in shown)
    assert any("wolves" in line and "policy loss 0.1250" in line for line in shown)


def test_the_dashboard_has_at_most_eight_rows_of_agents():
    history = history_of(tuple(f"agent_{k}" for k in range(12)), opponents=("agent_1",))
    rows = history.agents()
    assert len(rows) == MOST_AGENTS
    assert rows[1].remark == "opponent"
    assert (rows[-1].mean, rows[-1].remark) == (7.0, "lowest of 5 more: agent_7")
    assert len(history.agents(4)) == 4
    assert history_of(()).agents() == []
    assert not any("BY AGENT" in line for line in text_of(history_of(())))


def test_the_extremes_of_returns_are_those_of_single_agents():
    vec = shoal.make("vacuum", 8, backend="serial", seed=3)
    obs, infos = vec.reset(seed=5)
    player, totals, returns = RandomPlayer(vec.action_space, 1), np.zeros((8, 4)), []
    for _ in range(600):
        alive = infos["alive"].copy()
        obs, rewards, terminated, truncated, infos = vec.step(player.act(obs, infos))
        totals += rewards.reshape(8, 4)
        over = (terminated | truncated | ~alive).reshape(8, 4).all(1)
        returns += totals[over].tolist()
        totals[over] = 0.0
    stats = vec.drain_stats()
    assert stats["episodes"] == len(returns) > 10
    expected = {"mean": np.mean(returns), "min": np.min(returns), "max": np.max(returns)}
    assert stats["return"] == pytest.approx(expected, rel=1e-4)
