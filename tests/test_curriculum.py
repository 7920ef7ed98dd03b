"""Curricula: how phases are read, when they change, what they change, what a resume keeps, and what mistakes say."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import shoal
from shoal.cli.main import main
from shoal.cli.train import parse
from shoal.errors import CheckpointError, ConfigError
from shoal.log.frame import frame
from shoal.log.history import History
from shoal.runs import find
from shoal.train import Phase, Trainer, load_player, train
from shoal.train import phases as reading
from shoal.train.games import GameTally, LatestGames
from shoal.train.phases import read, write

from .envs import CounterEnv, DyingAgentsEnv
from .fake_gpu import GpuLikeVec, use_fake_graphs
from .training import STEPS, contents, cut, make_trainer, train_tiny
from .training import vacuum_tables as tables

HERE = "tests.test_curriculum"
FILE = """
[[curriculum]]
name = "light"
env = { gravity = 5.0, force = "uniform(9, 11)" }
until = { return = 20.5, games = 50, steps = "5k" }

[[curriculum]]
env = { gravity = 9.0 }
until = { win_rate = 0.5, margin = 15, steps = 900 }

[[curriculum]]
name = "earth"
"""


class Watch:
    """Notes what a run has at its start and after every iteration."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def on_start(self, context: Any) -> None:
        self.on_iteration(context)

    def on_iteration(self, context: Any) -> None:
        trainer, facts = context.trainer, {"phase": context.metrics.get("curriculum/phase", 1)}
        if trainer.vec.native_spec is not None:
            facts["params"] = {name: values.tolist() for name, values in trainer.vec.get_params().items()}
        facts["held"] = [[type(agent).__name__ for agent in seat.actor.held] for seat in trainer.frozen]
        facts["which"] = [seat.actor.which.tolist() for seat in trainer.frozen]
        facts["step"] = context.step
        facts["rewards"] = [{k: float(x) for k, x in vars(s.reward).items()} for s in trainer.shaping.shapers]
        self.seen.append(facts)


# ---- reading ----


def test_phases_are_read_from_a_file_and_written_as_text(tmp_path):
    (tmp_path / "mine.toml").write_text(FILE)
    phases = read(str(tmp_path / "mine.toml"))
    assert [phase.name for phase in phases] == ["light", "phase 2", "earth"]
    assert (phases[0].until.mean_return, phases[0].until.games, phases[0].until.steps) == (20.5, 50, 5000)
    assert (phases[1].until.win_rate, phases[1].until.margin, phases[1].until.games) == (0.5, 15.0, 100)
    assert not phases[2].until
    text = write(phases)
    assert json.loads(text)[0]["until"] == {"return": 20.5, "games": 50, "steps": 5000}
    assert read(text) == phases
    drawn = {"g": shoal.uniform(1, 2), "n": np.int64(3)}
    own = [Phase("a", env=drawn, until={"steps": "1k"}), Phase("b", reward={"w": 0.5})]
    assert read(write(own))[0].env == {"g": "uniform(1, 2)", "n": 3}


def test_the_presets_are_phases():
    assert "midrange" in reading.presets()
    phases = read("midrange")
    assert [phase.opponents for phase in phases] == ["1=drone", "1=shooter", "1=weaver", "1=self"]
    for name in reading.presets():
        assert read(name)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("midrnge", "no preset of that name. Did you mean 'midrange'"),
        ("nowhere.toml", "no such file"),
        ("[{", "cannot be read"),
        ({"name": "x"}, "not a list of phases"),
        ([3], "phase 1 is int 3, not a table"),
        ([{"nam": "x"}], "phase 'phase 1' has no 'nam'. Did you mean 'name'"),
        ([{"win_rate": 0.9}], "has no 'win_rate'. It belongs into `until`"),
        ([{"name": "a", "until": {"steps": 1}}, {"name": "a"}], "two phases named 'a'"),
        ([], "curriculum has no phases"),
        ([{"name": "a"}, {"name": "b"}], "phase 'a' has no `until`, so 'b' never begins"),
        ([{"until": {"game": 3}}], "until has no 'game'. Did you mean 'games'"),
        ([{"until": {"games": 3}}], "until names no condition"),
        ([{"until": {"win_rate": 90}}], "until.win_rate = 90 is not a share of games"),
        ([{"until": {"return": "high"}}], "until.return = 'high' is not a number"),
        ([{"until": {"steps": "many"}}], "'many' is not a count"),
        ([{"until": {"return": 1, "games": 0}}], "until.games = 0 must be at least 1"),
        ([{"env": 3}], "env is 3, not a table"),
        ([{"opponents": ["1=seek"]}], "opponents is .*, not text"),
        ([{"reward": {"weight": "big"}}], "reward.weight = 'big' is not a number"),
        ([{"refresh": -1}], "is not a count"),
        ([Phase("a", env={"wind": np.zeros(3)})], "phase 'a': env.wind is of type ndarray, which a phase cannot hold"),
    ],
)
def test_phases_that_are_wrong_are_refused(value, said):
    with pytest.raises(ConfigError, match=said):
        read(value)


# ---- counting games ----


def test_only_games_that_started_in_the_phase_count():
    dones = torch.tensor([[0, 1, 0], [1, 1, 0], [0, 0, 0], [1, 1, 1]], dtype=torch.bool)
    rollout = SimpleNamespace(
        rewards=torch.ones(4, 3),
        dones=dones,
        counted=lambda: None,
        running_returns=lambda gamma, carry: torch.arange(1.0, 13.0).view(4, 3),
    )
    games = GameTally([rollout], torch.device("cpu"))
    games.restart(10.5)
    games.add()
    # the first game of each row began before; of row 0 the second at step 3, of row 1 those at steps 1 and 3
    assert games.drain() == (3, 1, 10.0 + 5.0 + 11.0)
    games.add()
    assert games.drain()[0] == 6  # all rows have started a new one
    games.restart(0.0, all_new=True)
    games.add()
    assert games.drain()[:2] == (6, 6)


def test_the_latest_games_are_a_window():
    latest = LatestGames(10)
    for wins in (0, 2, 4):
        latest.add(5, wins, 5.0 * wins)
    assert (latest.games, latest.is_full, latest.win_rate, latest.mean_return) == (10, True, 0.6, 3.0)
    assert LatestGames(10, latest.intervals).intervals == latest.intervals


# ---- changing params ----


def test_phases_change_params_when_games_start_and_end_the_run(tmp_path):
    watch = Watch()
    phases = [
        Phase("light", env={"gravity": 5.0}, until={"steps": 2 * STEPS}),
        Phase("none", until={"return": 1.0, "games": 10}),
        Phase("heavy", env={"gravity": 20.0}, until={"steps": STEPS}),
    ]
    more = {"env": {"gravity": 9.0}, "train": {"total_steps": 40 * STEPS}}
    run = train_tiny("cartpole", tmp_path, curriculum=phases, callbacks=[watch], **more)
    assert run.summary["reason"].startswith("curriculum: phase 'heavy', the last, ended after 128 steps")
    gravities = [set(seen["params"]["gravity"]) for seen in watch.seen]
    assert gravities[1] == {5.0}
    assert any(len(values) == 2 for values in gravities), "games that run keep their params"
    numbers = [seen["phase"] for seen in watch.seen]
    assert numbers == sorted(numbers)
    assert set(numbers) == {1, 2, 3}
    assert 9.0 in set().union(*gravities)  # a phase that names no gravity has that of the run
    records = [record for record in run.metrics() if "curriculum/phase" in record]
    assert records[-1]["curriculum/phases"] == 3
    assert run.config["env"] == {"gravity": 9.0}  # evaluations keep the run's own
    assert json.loads(run.config["curriculum"])[0]["name"] == "light"


def test_a_python_env_has_the_params_of_a_phase(tmp_path):
    seen = []

    class Longest:
        def on_iteration(self, context: Any) -> None:
            seen.append(context.trainer.vec.call("longest")[0])

    phases = [Phase(env={"longest": 3}, until={"steps": STEPS}), Phase(env={"longest": 7})]
    train_tiny(CounterEnv, tmp_path, curriculum=phases, callbacks=[Longest()], vec={"backend": "serial"})
    assert seen[0] in (3, 7)
    assert seen[-1] == 7


def test_opponents_of_a_python_env_change(tmp_path):
    watch = Watch()
    phases = [{"opponents": "1=idle", "until": {"steps": 3 * STEPS}}, {"opponents": "1=self", "refresh": STEPS}]
    more = {"vec": {"backend": "serial"}, "train": {"total_steps": 24 * STEPS}}
    run = train_tiny(DyingAgentsEnv, tmp_path, curriculum=phases, callbacks=[watch], **more)
    held = [seen["held"][0] for seen in watch.seen]
    assert (held[0], held[-1]) == (["Idle"], ["NetworkAgent"] * 2)
    assert run.config["opponents"] == "1=idle"


def test_win_rates_decide(tmp_path):
    phases = [
        Phase("easy", until={"win_rate": 0.5, "margin": 5.0, "games": 20}),
        Phase("never", until={"win_rate": 1.0, "margin": 1e6, "games": 5}),
        Phase("last"),
    ]
    run = train_tiny("cartpole", tmp_path, curriculum=phases, train={"total_steps": 20 * STEPS})
    assert run.metrics()[-1]["curriculum/phase"] == 2
    assert run.metrics()[-1]["curriculum/win_rate"] == 0.0


def test_the_best_checkpoint_is_of_the_last_phase(tmp_path):
    """Returns of an easier phase are higher, and say nothing about later ones."""
    phases = [Phase(until={"steps": 3 * STEPS}), Phase(env={"x_limit": 0.06})]
    run = train_tiny("cartpole", tmp_path, curriculum=phases, train={"total_steps": 14 * STEPS})
    easier = [record.get("episode/return", 0.0) for record in run.metrics() if record["step"] <= 4 * STEPS]
    assert run.summary["best"]["step"] > 4 * STEPS
    assert run.summary["best"]["score"] < 0.8 * max(easier)


@pytest.mark.parametrize("kind", ["params", "opponents"])
def test_a_curriculum_resumes_to_the_bit(tmp_path, kind):
    if kind == "params":
        phases = [{"env": {"gravity": 5.0}, "until": {"return": 5, "games": 20}}, {"env": {"gravity": 15.0}}]
        env, more = "cartpole", {"curriculum": phases}
    else:
        env, more = "vacuum", {**tables(algo="ppo", train={"total_steps": 192 * 7}), "curriculum": changing()}
    whole = train_tiny(env, tmp_path / "a", **more)
    expected = contents(whole)
    run = train_tiny(env, tmp_path / "b", **more)
    assert contents(run) == expected
    for kept in (5, 2) if kind == "opponents" else (2,):
        again = train(env, resume=cut(run, kept).folder, console="off")
        assert contents(again) == expected
    with pytest.raises(CheckpointError, match="which this curriculum does not have"):
        train(env, resume=cut(run, 4).folder, console="off", curriculum=[{"name": "other"}])


# ---- opponents ----


class Still:
    def act(self, obs, mask):
        return torch.full((len(obs),), 4)


def changing() -> list[dict[str, Any]]:
    """A robot, an agent of Python, a frozen copy that is taken anew, and again a robot, for seat 1."""
    steps = 16 * 4 * 3 * 2  # two iterations
    return [
        {"name": "robot", "opponents": "1=seek", "until": {"steps": steps}},
        {"name": "agent", "opponents": f"1={HERE}:Still", "until": {"steps": steps}},
        {"name": "self", "opponents": "1=self", "refresh": steps, "until": {"steps": 3 * steps}},
        {"name": "flee", "opponents": "1=flee"},
    ]


def test_opponents_change_between_games(tmp_path):
    watch = Watch()
    own = tables(algo="ppo", train={"total_steps": 16 * 4 * 3 * 18})
    own["env"] |= {"max_steps": 7}
    run = train_tiny("vacuum", tmp_path, **own, curriculum=changing(), callbacks=[watch])
    assert run.config["opponents"] == "1=flee"
    robots = [seen["params"]["robot_1"] for seen in watch.seen]
    words = ["learner", "stay", "random", "safe-random", "seek", "flee"]
    assert set(robots[1]) == {words.index("seek")}
    assert set(robots[-1]) == {words.index("flee")}
    held = [seen["held"][0] for seen in watch.seen]
    assert held[0] == ["Idle"]
    assert ["Idle", "Still"] in held, "the old player ends its games"
    assert any(names.count("NetworkAgent") == 2 for names in held)
    assert held[-1] == ["Idle"]
    mixed = [seen for seen in watch.seen if len(set(seen["params"]["robot_1"])) > 1]
    assert not mixed, "games of seven steps end together"
    assert {seen["phase"] for seen in watch.seen} == {1, 2, 3, 4}
    assert set().union(*(seen["which"][0] for seen in watch.seen if seen["phase"] == 3)) >= {0, 1}
    player, about = load_player(run)
    assert about["robot_1"] == "flee"
    assert player.judged == [0, 2, 3]


def test_opponents_that_no_phase_names_stay(tmp_path):
    kept = []

    class Held:
        def on_iteration(self, context: Any) -> None:
            kept.append(context.trainer.frozen[0].actor.held[0])

    phases = [{"env": {"e_charge": 5.0}, "until": {"steps": 192}}, {}]
    train_tiny(
        "vacuum", tmp_path, **tables(algo="ppo", opponents=f"1={HERE}:Still"), curriculum=phases, callbacks=[Held()]
    )
    assert len(set(map(id, kept))) == 1


def test_the_preset_of_midrange_fits_the_env(tmp_path):
    """All four phases, two iterations each: params, robots and the frozen self are accepted and played."""
    watch = Watch()
    short = [dataclasses.replace(phase, until={"steps": 2 * STEPS}, refresh=0) for phase in read("midrange")]
    more = {"env": {"time_limit": 4.0}, "train": {"total_steps": 10 * STEPS}}
    run = train_tiny("midrange", tmp_path, curriculum=short, callbacks=[watch], **more)
    assert run.config["opponents"] == "1=weaver"
    assert {seen["phase"] for seen in watch.seen} == {1, 2, 3, 4}
    assert "NetworkAgent" in watch.seen[-1]["held"][0]


def test_a_frozen_copy_keeps_its_weights_while_the_learner_goes_on(tmp_path):
    kept = []

    class Compare:
        def on_iteration(self, context: Any) -> None:
            (seat,) = context.trainer.frozen
            copies = [agent for agent in seat.actor.held if hasattr(agent, "copy_weights")]
            if copies:
                weights = torch.cat([x.flatten() for x in copies[0].actor.state_dict().values()])
                kept.append((weights.clone(), context.trainer.learners[0].weights.detach().clone()))

    phases = [{"opponents": "1=seek", "until": {"steps": 192}}, {"opponents": "1=self"}]
    own = tables(algo="ppo", train={"total_steps": 192 * 6})
    train_tiny("vacuum", tmp_path, **own, curriculum=phases, callbacks=[Compare()])
    assert len(kept) >= 3
    assert all(torch.equal(kept[0][0], frozen) for frozen, _ in kept)
    assert not torch.equal(kept[0][1], kept[-1][1])


def test_opponents_of_a_curriculum_change_on_a_device_too(tmp_path, monkeypatch):
    use_fake_graphs(monkeypatch)
    monkeypatch.setattr("shoal.train.session.READ_EVERY_ON_GPU", 2)
    made = shoal.make("vacuum", 16, backend="serial", preset="classic-1v3")
    vec = GpuLikeVec(made)
    vec.set_params = made.set_params
    monkeypatch.setattr("shoal.train.trainer.make_vec", lambda env, options: vec)
    watch, captured = Watch(), []
    real = Trainer.capture
    monkeypatch.setattr(Trainer, "capture", lambda self: captured.append(self.step) or real(self))
    own = tables(algo="ppo", train={"total_steps": 16 * 4 * 3 * 14})
    train_tiny("vacuum", tmp_path, **own, curriculum=changing(), callbacks=[watch])
    begun = {seen["phase"]: seen["step"] for seen in reversed(watch.seen)}
    assert set(begun) == {1, 2, 3, 4}
    assert set(begun.values()) <= set(captured)  # graphs hold who acts


# ---- rewards ----


class Weighted:
    def __init__(self) -> None:
        self.weight, self.bonus = 1.0, torch.tensor(0.0)

    def compute(self, before, after, action, done, info):
        return self.weight * info["reward"] + self.bonus


class Minus:
    def compute(self, before, after, action, done, info):
        return -info["reward"]


def test_phases_change_attributes_of_the_reward(tmp_path):
    watch = Watch()
    phases = [
        {"reward": {"weight": 0.5, "bonus": 2.0}, "until": {"steps": 2 * STEPS}},
        {"until": {"steps": STEPS}},
        {"reward": {"weight": 3.0}},
    ]
    train_tiny("cartpole", tmp_path, reward=f"{HERE}:Weighted", curriculum=phases, callbacks=[watch])
    values = [(seen["rewards"][0]["weight"], float(seen["rewards"][0]["bonus"])) for seen in watch.seen]
    assert (values[0], values[-1]) == ((0.5, 2.0), (3.0, 0.0))
    assert (1.0, 0.0) in values


def test_phases_change_the_reward_itself(tmp_path):
    phases = [{"until": {"steps": 3 * STEPS}}, {"reward": f"{HERE}:Minus"}]
    run = train_tiny("cartpole", tmp_path, curriculum=phases)
    shaped = [record["episode/shaped_return"] for record in run.metrics() if "episode/shaped_return" in record]
    assert shaped[0] > 0
    assert shaped[-1] < 0


# ---- mistakes against the env ----


@pytest.mark.parametrize(
    ("phases", "said"),
    [
        ([{"env": {"graviti": 1}}], "phase 'phase 1': cartpole has no param 'graviti'. Did you mean 'gravity'"),
        ([{"env": {"gravity": "linear(1, 2)"}}], "a schedule and a phase cannot both change gravity"),
        ([{"env": {"gravity": [1, 2]}}], "gravity"),
        ([{"opponents": "1=seek"}], "the env has one agent, which has no opponents"),
        ([{"reward": {"weight": 1.0}}], "is an attribute of a reward of your own, and the run has none"),
        ([{"reward": "nobody:Reward"}], "nobody"),
        ([{"refresh": 5}], "refresh = 5 is for opponents"),
    ],
)
def test_phases_that_do_not_fit_are_told_before_a_folder_is_made(tmp_path, phases, said):
    with pytest.raises(ConfigError, match=said):
        train_tiny("cartpole", tmp_path / "runs", curriculum=phases)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("phases", "more", "said"),
    [
        ([{"opponents": "1=sek"}], {}, "phase 'phase 1': --opponents 1=sek: Did you mean 'seek'"),
        ([{"opponents": "1=self"}], {}, "agent 1 has no opponent but self"),
        ([{"opponents": "1=seek"}], {"opponents": "2=flee"}, "in --opponents 2=flee the learner plays agent 1"),
        ([{"env": {"robot_1": "seek"}}], {}, 'name opponents as opponents = "1=seek"'),
        ([{"env": {"robots": 2}}], {}, "robots is fixed when vacuum is compiled"),
        ([{"opponents": f"1={HERE}:Weighted"}], {}, r"has no act\(obs, mask\)"),
    ],
)
def test_opponents_that_do_not_fit_are_told_before_a_folder_is_made(tmp_path, phases, more, said):
    with pytest.raises(ConfigError, match=said):
        train_tiny("vacuum", tmp_path / "runs", **tables(algo="ppo"), curriculum=phases, **more)
    assert not (tmp_path / "runs").exists()


def test_a_trainer_alone_has_no_opponents_of_phases():
    with pytest.raises(ConfigError, match="train\\(\\) and start\\(\\) run a curriculum"):
        make_trainer("vacuum", curriculum=changing(), **tables(algo="ppo"))


def test_an_attribute_that_the_reward_does_not_have_is_told(tmp_path):
    with pytest.raises(ConfigError, match="has no attribute 'wight'. Did you mean 'weight'"):
        train_tiny("cartpole", tmp_path, reward=f"{HERE}:Weighted", curriculum=[{"reward": {"wight": 1.0}}])


# ---- the command and the display ----


def test_the_command_takes_a_file(tmp_path, capsys):
    (tmp_path / "mine.toml").write_text(FILE)
    words = "train cartpole --device cpu --vec.num-envs 16 --train.total-steps 4k --eval.episodes 0 --console lines"
    more = ["--runs", str(tmp_path / "runs"), "--curriculum", str(tmp_path / "mine.toml")]
    assert main([*words.split(), *more]) == 0
    shown = capsys.readouterr().out
    assert "curriculum: phase 1 of 3, light" in shown
    assert "curriculum: phase 2 of 3, phase 2 after" in shown
    assert "phase 1 of 3" in shown
    run = find("last", tmp_path / "runs")
    assert run.summary["status"] == "finished"
    assert main([*words.split(), "--curriculum", "nothing"]) == 2
    # the tables may stand in the file of --config, and a resumed run has them from its folder
    (tmp_path / "config.toml").write_text(f"seed = 4\n{FILE}")
    for options in (["cartpole", "--config", str(tmp_path / "config.toml")], ["--resume", str(run.folder)]):
        assert [phase.name for phase in read(parse(options).options.curriculum)] == ["light", "phase 2", "earth"]


def test_the_dashboard_shows_the_phase(tmp_path):
    run = train_tiny("cartpole", tmp_path, curriculum=[{"until": {"steps": STEPS}}, {}])
    from shoal.log.base import RunFacts

    history = History(RunFacts(run.folder, run.id, "cartpole", total_steps=100))
    for record in run.metrics():
        history.add(record)
    shown = "\n".join("".join(text for text, _ in line) for line in frame(history, 100, 40))
    assert "phase 2 of 2" in shown
    assert "curriculum/phases" not in shown
