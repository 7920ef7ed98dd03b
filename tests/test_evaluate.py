"""Evaluation: the episodes that count are the ones that should, and what is said of them is true."""

from __future__ import annotations

import json
import math
import re
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

import shoal
from shoal import evaluate, stats, video
from shoal.cli.main import main
from shoal.errors import ConfigError
from shoal.evaluate import HELD_OUT, RandomPlayer, Score, ScriptedPlayer, play, record
from shoal.train import session, train
from tests.envs import CounterEnv, DyingAgentsEnv, MixedAgentsEnv
from tests.strict import strict_json
from tests.video_files import read_video

RIGHT = ScriptedPlayer(lambda obs: np.ones(len(obs), np.int64))


def mixed(*choices: int) -> ScriptedPlayer:
    """Actions that vary with the observation, and that depend on the row's own observation alone."""

    def choose(obs: np.ndarray) -> np.ndarray:
        sums = np.abs(obs.reshape(len(obs), -1).astype(np.float64)).sum(1)
        actions = (1000 * sums).astype(np.int64)[:, None] % choices
        return actions if len(choices) > 1 else actions[:, 0]

    return ScriptedPlayer(choose)


class DrawnEnv(CounterEnv):
    """CounterEnv with a picture whose red says the step and whose green says the episode."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 10}

    def render(self) -> Any:
        return np.full((16, 16, 3), (20 * self.count, 100 * self.episodes % 256, 0), np.uint8)


class SeedEnv(gymnasium.Env):
    """Its episodes last 50 steps where the seed was even, else 1. A reward of 1 for each step; says its success."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(-1, 1e9, (1,), np.float64), spaces.Discrete(2)
        self.length = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.length = 1 if seed % 2 else 50
        self.count = 0
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        over = self.count == self.length
        return np.full(1, float(self.count)), 1.0, over, False, {"is_success": self.length > 1, "noise": 3.0}


class EndlessEnv(CounterEnv):
    """Never ends."""

    def step(self, action: Any) -> Any:
        obs, _, _, _, info = super().step(action)
        return obs, 0.5, False, False, info


# ---- which episodes count ----


def one_by_one(env: Any, player: Any, count: int, seed: int) -> list[dict[str, Any]]:
    """The slow twin: an env on its own plays so many episodes, and its own statistics say what they were."""
    vec = shoal.make(env, 1, backend="serial")
    obs, infos = vec.reset(seed=seed)
    ended: list[dict[str, Any]] = []
    while len(ended) < count:
        obs, *_, infos = vec.step(player.act(obs, infos))
        drained = vec.drain_stats()
        if drained["episodes"]:
            ended.append({name: value["mean"] for name, value in drained.items() if name != "episodes"})
    return ended


@pytest.mark.parametrize(
    ("env", "backend", "choices"),
    [
        ("cartpole", "serial", [2]),
        ("breakout", "threads", [3]),
        ("forage", "threads", [5, 2]),
        ("memory", "serial", [2]),
        (CounterEnv, "serial", [4]),
        (CounterEnv, "process", [4]),
        (DyingAgentsEnv, "serial", [5]),
        (DyingAgentsEnv, "process", [5]),
        ("gymnasium:CartPole-v1", "process", [2]),
    ],
)
def test_every_env_plays_its_quota_of_first_episodes(env, backend, choices):
    """7 episodes on 3 envs: 3 of the first, 2 of the others, whichever end first; the same as each env on its own."""
    player = mixed(*choices)
    score = play(partial(shoal.make, env, backend=backend), player, 7, seed=5, num_envs=3)
    wanted = [one for k in range(3) for one in one_by_one(env, player, 3 if k == 0 else 2, HELD_OUT + 5 + k)]
    assert score.returns == pytest.approx([one.pop("return") for one in wanted], rel=1e-5)
    assert list(score.lengths) == [one.pop("length") for one in wanted]
    names = {name for one in wanted for name in one}
    assert set(score.stats) == names
    for name in names:
        assert score.stats[name] == pytest.approx([one[name] for one in wanted], rel=1e-5)


@pytest.mark.parametrize("num_envs", [10, 128])
def test_short_episodes_are_not_preferred(num_envs):
    """The first 10 episodes to end would all be short ones."""
    score = play(partial(shoal.make, SeedEnv, backend="serial"), RIGHT, 10, num_envs=num_envs)
    assert sorted(score.lengths) == [1] * 5 + [50] * 5
    assert score.mean == 25.5


def test_seeds_are_held_out_and_each_env_has_its_own():
    vec = shoal.make(CounterEnv, 4, backend="serial")
    play(vec, mixed(4), 4, seed=3)
    assert [seeds[0] for seeds in vec.get_attr("seeds")] == [HELD_OUT + 3 + k for k in range(4)]
    assert evaluate.held_out(0) > 2**20, "beyond the seeds of any training run of a million envs"
    assert evaluate.held_out(2**30) < 2**31 + 1, "envs that seed a generator of 32 bits can take it"


def test_the_same_seed_gives_the_same_score_on_every_backend():
    make = partial(shoal.make, "breakout")
    first = play(partial(make, backend="serial"), mixed(3), 20, seed=1, num_envs=8)
    assert play(partial(make, backend="threads", num_threads=2), mixed(3), 20, seed=1, num_envs=8) == first
    assert play(make, mixed(3), 20, seed=2, num_envs=8) != first


def test_spare_envs_do_not_count():
    vec = shoal.make(CounterEnv, 5, backend="serial")
    score = play(vec, mixed(4), 2)
    assert score == play(shoal.make(CounterEnv, 2, backend="serial"), mixed(4), 2)
    assert not vec.closed, "envs that were there before are there afterwards"


def test_progress_is_told_one_by_one():
    heard: list[int] = []
    play(partial(shoal.make, CounterEnv, backend="serial"), mixed(4), 6, num_envs=2, progress=heard.append)
    assert heard == [1, 2, 3, 4, 5, 6]


def test_envs_that_were_made_are_closed_also_after_a_fault():
    made = []

    def make(**options):
        made.append(shoal.make(CounterEnv, backend="serial", **options))
        return made[-1]

    def fail(obs):
        raise ZeroDivisionError

    play(make, mixed(4), 2)
    with pytest.raises(ZeroDivisionError):
        play(make, ScriptedPlayer(fail), 2)
    assert [vec.closed for vec in made] == [True, True]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"episodes": 0}, "episodes=0"),
        ({"episodes": 2.5}, "episodes=2.5"),
        ({"episodes": 1, "seed": -1}, "seed=-1"),
        ({"episodes": 1, "num_envs": 0}, "num_envs=0"),
        ({"episodes": 1, "max_steps": 0}, "max_steps=0"),
    ],
)
def test_bad_numbers_are_refused_before_an_env_is_made(options, said):
    def make(**_):
        raise AssertionError("made")

    with pytest.raises(ConfigError, match=said):
        play(make, RIGHT, **options)


def test_play_refuses_envs_that_wait_for_resets():
    with pytest.raises(ConfigError, match="same_step"):
        play(shoal.make("cartpole", 2, autoreset="disabled"), RIGHT, 2)


# ---- what a player is told ----


class Counting:
    """Counts the steps of each row since its memory was cleared."""

    def __init__(self, choices: int) -> None:
        self.choices, self.seen = choices, []

    def reset(self, num_rows: int) -> None:
        self.steps = np.zeros(num_rows, np.int64)

    def act(self, obs: Any, infos: dict[str, Any]) -> Any:
        self.seen.append((obs.copy(), self.steps.copy(), np.array(infos.get("alive", [True] * len(obs)))))
        self.steps += 1
        return self.steps % self.choices

    def observe(self, done: np.ndarray) -> None:
        assert done.shape == self.steps.shape
        assert done.dtype == np.bool_
        self.steps[done] = 0


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_memory_is_cleared_exactly_where_an_episode_begins(backend):
    player = Counting(4)
    play(partial(shoal.make, CounterEnv, backend=backend), player, 20, num_envs=3)
    assert len(player.seen) > 10
    for obs, steps, _ in player.seen:
        assert (obs[:, 0] == steps).all()


def test_memory_of_agents_that_are_out_is_clear_when_they_come_back():
    player = Counting(5)
    play(partial(shoal.make, DyingAgentsEnv, backend="serial"), player, 12, num_envs=3)
    rows = 0
    for before, after in zip(player.seen, player.seen[1:]):
        born = after[2] & (~before[2] | (after[0][:, 1] == 0))  # alive now, and not before, or in a new game
        assert (after[1][born] == 0).all()
        rows += int(born.sum())
    assert rows > 12


# ---- episodes that do not end; what envs say themselves ----


def test_an_episode_that_never_ends_is_cut_and_counted():
    make = partial(shoal.make, EndlessEnv, backend="serial")
    score = play(make, mixed(4), 5, num_envs=2, max_steps=30)
    assert score.lengths == (30,) * 5
    assert score.returns == (15.0,) * 5
    assert score.cut == 5
    upright = ScriptedPlayer(lambda obs: (obs[:, 2] + 0.3 * obs[:, 3] > 0).astype(np.int64))
    score = play(partial(shoal.make, "cartpole", max_steps=0), upright, 3, num_envs=2, max_steps=700)
    assert (score.returns, score.cut, score.stats) == ((700.0,) * 3, 3, {})
    assert play(partial(shoal.make, "cartpole"), upright, 3, max_steps=700).cut == 0


def test_cut_episodes_begin_anew():
    player = Counting(4)
    play(partial(shoal.make, EndlessEnv, backend="serial"), player, 4, num_envs=2, max_steps=6)
    assert [obs[0, 0] for obs, _, _ in player.seen] == [0, 1, 2, 3, 4, 5] * 2
    assert [steps[0] for _, steps, _ in player.seen] == [0, 1, 2, 3, 4, 5] * 2


def test_success_is_a_stat_and_other_infos_are_not():
    score = play(partial(shoal.make, SeedEnv, backend="serial"), RIGHT, 4)
    assert score.stats == {"is_success": (1.0, 0.0, 1.0, 0.0)}


def test_an_env_that_records_its_own_episodes_knows_best():
    """The reward that a policy learns from is scaled; its return is not."""

    def make_env():
        recorded = gymnasium.wrappers.RecordEpisodeStatistics(SeedEnv())
        return gymnasium.wrappers.TransformReward(recorded, lambda reward: reward / 100)

    assert play(partial(shoal.make, make_env, backend="serial"), RIGHT, 2).returns == (50.0, 1.0)


def test_agents_of_different_kinds_are_played():
    vec = shoal.make(MixedAgentsEnv, 3, backend="serial")
    score = play(vec, RandomPlayer(vec.action_space), 6)
    assert all(3 <= length <= 8 for length in score.lengths)


def test_chance_keeps_to_the_action_mask():
    player = RandomPlayer(spaces.MultiDiscrete([3] * 64))
    mask = np.tile(np.array([0, 1, 1], np.uint8), (64, 1))
    assert set(player.act(None, {"action_mask": mask}).tolist()) == {1, 2}
    assert set(player.act(None, {}).tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    ("space", "mask"),
    [(spaces.Discrete(3, start=5), [0, 1, 1]), (spaces.MultiDiscrete([3, 2], start=[4, -1]), [0, 1, 1, 0, 1])],
)
def test_chance_counts_masked_choices_from_the_first_of_their_space(space, mask):
    batched = batch_space(space, 64)
    actions = RandomPlayer(batched).act(None, {"action_mask": np.tile(np.array(mask, np.int8), (64, 1))})
    assert actions in batched
    columns = actions.reshape(64, -1).T.tolist()
    assert [set(column) for column in columns] == [{6, 7}] if space.shape == () else [{5, 6}, {0}]


def test_chance_keeps_to_the_mask_of_every_choice():
    """forage: five directions, and whether to eat, which is masked where there is nothing to eat."""
    vec = shoal.make("forage", 4, backend="serial")
    obs, infos = vec.reset(seed=0)
    player, played = RandomPlayer(vec.action_space), []
    for _ in range(50):
        mask, alive, actions = infos["action_mask"].copy(), infos["alive"].copy(), player.act(obs, infos)
        assert actions in vec.action_space
        rows = np.arange(vec.num_rows)
        for allowed, choice in ((mask[:, :5], actions[:, 0]), (mask[:, 5:], actions[:, 1])):
            assert allowed[rows, choice][alive].all()
        played.append(actions)
        obs, _, _, _, infos = vec.step(actions)
    assert [set(column) for column in np.concatenate(played).T.tolist()] == [{0, 1, 2, 3, 4}, {0, 1}]


# ---- the score ----


def test_student_t():
    """Against a table of t for 95 %."""
    table = {
        1: 12.706,
        2: 4.303,
        4: 2.776,
        9: 2.262,
        10: 2.228,
        15: 2.131,
        30: 2.042,
        60: 2.000,
        99: 1.984,
        9999: 1.960,
    }
    assert {freedom: round(stats.t_975(freedom), 3) for freedom in table} == table


def test_the_interval_holds_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    for count in (3, 20):
        samples = rng.normal(7.0, 2.0, (2000, count))
        held = [abs(sample.mean() - 7.0) <= stats.ci95(tuple(sample)) for sample in samples]
        assert np.mean(held) == pytest.approx(0.95, abs=0.015)


def test_a_score_by_hand():
    score = Score((1.0, 2.0, 3.0, 6.0), (10, 20, 30, 40))
    assert (score.mean, score.min, score.max, score.length) == (3.0, 1.0, 6.0, 25.0)
    assert score.ci95 == pytest.approx(3.18245 * math.sqrt(14 / 3) / 2)
    assert score.describe() == "3.0 ± 3.4 (95 % confidence, 4 episodes), min 1.0, max 6.0"
    facts = strict_json(json.dumps(score.facts()))
    assert facts == {"return": 3.0, "ci95": score.ci95, "min": 1.0, "max": 6.0, "episodes": 4, "length": 25.0}


def test_of_one_episode_no_interval_is_claimed():
    score = Score((5.0,), (7,))
    assert score.ci95 == math.inf
    assert score.describe() == "5.0 (1 episode)"
    assert strict_json(json.dumps(score.facts()))["ci95"] is None
    assert Score((5.0, 5.0), (7, 7)).ci95 == 0.0


def test_numbers_read_well():
    values = (0, 476.23, 8.12, 0.034, -0.5, 1234567.0, 0.00012)
    assert [evaluate.show(value) for value in values] == "0.0 476.2 8.1 0.034 -0.50 1,234,567.0 0.00012".split()
    assert evaluate.show(9.4716, 0.0824) == "9.472"  # as its interval: 0.082
    assert evaluate.show(0.0012, 8.1) == "0.0"
    assert evaluate.show(5.0, 0.0) == "5.0"


# ---- video ----


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_a_video_shows_each_episode_from_its_first_frame_to_its_true_last(tmp_path, backend):
    """With autoreset the last frame would be the next episode's first."""
    pytest.importorskip("PIL")
    lengths = [int(one["length"]) for one in one_by_one(DrawnEnv, mixed(4), 3, HELD_OUT + 1)]
    make = partial(shoal.make, DrawnEnv, backend=backend)
    path = record(make, mixed(4), tmp_path / "a.gif", episodes=3, seed=1)
    frames, seconds = read_video(path)
    shown = [(int(frame[0, 0, 0]) // 20, int(frame[0, 0, 1])) for frame in frames]
    wanted = [(step, 100 * (1 + k) % 256) for k, length in enumerate(lengths) for step in range(length + 1)]
    assert shown == wanted
    assert seconds == [0.1] * len(frames), "as fast as the env says"


def test_a_video_of_a_native_env_is_its_frames(tmp_path):
    pytest.importorskip("PIL")
    path = record(partial(shoal.make, "squared"), RIGHT, tmp_path / "a.gif", seed=2, width=96)
    vec = shoal.make("squared", 1, autoreset="disabled")
    vec.reset(seed=HELD_OUT + 2)
    wanted = [vec.frame(0, 96)]
    while not vec.ended[0]:
        vec.step(np.ones(1, np.int64))
        wanted.append(vec.frame(0, 96))
    frames, seconds = read_video(path)
    assert len(frames) == len(wanted)
    for got, frame in zip(frames, wanted):
        assert np.abs(got.astype(int) - frame).max() <= 8, "a GIF has 256 colours"
    assert sum(seconds) == pytest.approx(len(wanted) / 30, abs=0.02)


def test_every_native_env_can_be_recorded(tmp_path, env):
    pytest.importorskip("PIL")
    vec = shoal.make(env, 2, autoreset="disabled")
    path = record(vec, RandomPlayer(vec.action_space), tmp_path / "a.gif", max_steps=20, width=64)
    frames, _ = read_video(path)
    assert 2 <= len(frames) <= 21
    assert frames[0].shape[1] == 64


def test_a_video_is_cut_where_an_episode_does_not_end(tmp_path):
    class Drawn(EndlessEnv):
        render = DrawnEnv.render

    pytest.importorskip("PIL")
    make = partial(shoal.make, Drawn, backend="serial")
    frames, _ = read_video(record(make, RIGHT, tmp_path / "a.gif", episodes=2, max_steps=4, fps=25))
    assert [int(frame[0, 0, 0]) // 20 for frame in frames] == [0, 1, 2, 3, 4] * 2


def test_what_cannot_be_recorded_is_told(tmp_path):
    assert not evaluate.can_draw(shoal.make(SeedEnv, 1))
    assert not evaluate.can_draw(shoal.make(DyingAgentsEnv, 1))
    assert evaluate.can_draw(shoal.make(DrawnEnv, 1))
    assert evaluate.can_draw(shoal.make("cartpole", 1))
    cases = [
        (shoal.make(SeedEnv, 1, autoreset="disabled"), {}, "cannot be filmed: it has no render mode 'rgb_array'"),
        (shoal.make("cartpole", 1), {}, "autoreset='disabled'"),
        (shoal.make("cartpole", 1, autoreset="disabled"), {"episodes": 0}, "episodes=0"),
        (shoal.make("cartpole", 1, autoreset="disabled"), {"fps": 0}, "fps=0"),
        (shoal.make("cartpole", 1, autoreset="disabled"), {"width": 3}, "width=3"),
    ]
    for vec, options, said in cases:
        with pytest.raises(ConfigError, match=re.escape(said)):
            record(vec, RIGHT, tmp_path / "a.gif", **options)
    assert not list(tmp_path.iterdir())


def test_a_render_that_raises_or_gives_nothing_is_told(tmp_path):
    class Blind(DrawnEnv):
        def render(self) -> Any:
            raise OSError("no OpenGL")

    class Silent(DrawnEnv):
        def render(self) -> Any:
            return None

    for kind, said in ((Blind, "render() raised OSError: no OpenGL"), (Silent, "render() returned None")):
        with pytest.raises(ConfigError, match=re.escape(said)):
            record(partial(shoal.make, kind, backend="serial"), RIGHT, tmp_path / "a.gif")
    assert not list(tmp_path.iterdir())


# ---- shoal eval ----


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of cartpole with three checkpoints, whose policy goes by a script; and the verb, wherever it is wired."""
    pytest.importorskip("shoal.runs")
    folder = tmp_path / "runs" / "cartpole" / "20250101-120000"
    for step in (1000, 2000, 3000):
        (folder / "checkpoints" / f"{step:012d}").mkdir(parents=True)
        (folder / "checkpoints" / f"{step:012d}" / "meta.json").write_text("{}")
    (folder / "checkpoints" / "best.json").write_text('{"checkpoint": "000000002000"}')
    (folder / "run.json").write_text('{"id": "20250101-120000", "env": "cartpole", "seed": 4}')
    upright = ScriptedPlayer(lambda obs: (obs[:, 2] + 0.3 * obs[:, 3] > 0).astype(np.int64))
    asked: dict[str, Any] = {
        "player": upright,
        "players": {},
        "modes": [],
        "kwargs": {"env": "cartpole", "max_steps": 30},
    }

    def load_player(run, checkpoint, greedy=None):
        asked.update(checkpoint=checkpoint.name)
        asked["modes"].append("greedy" if greedy else "sampled")
        return asked["players"].get(asked["modes"][-1], asked["player"]), asked["kwargs"]

    monkeypatch.setitem(
        sys.modules, "shoal.train", SimpleNamespace(load_player=load_player, env_seed=lambda seed: seed)
    )
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)
    return SimpleNamespace(folder=folder, asked=asked)


def test_eval_prints_a_table_a_video_and_what_next(capsys, run):
    pytest.importorskip("PIL")
    assert main(["eval", "cartpole", "--episodes", "20"]) == 0
    out = capsys.readouterr().out
    assert "cartpole, run 20250101-120000, checkpoint of step 2,000" in out
    assert "20 episodes each, on held-out seeds" in out
    assert [line.split()[0] for line in out.splitlines() if "mean" in line] == ["sampled", "greedy"]
    assert len(re.findall(r"^return +30\.0 +± 0\.0 +30\.0 +30\.0", out, re.MULTILINE)) == 2
    assert re.search(r"^length +30\.0 ", out, re.MULTILINE)
    assert re.search(r"^tilt +[\d.]+ +± [\d.]+ +[\d.]+ +[\d.]+", out, re.MULTILINE)
    found = re.search(r"Video of 1 episode, sampled: (\S+)", out)
    path = run.folder / "videos" / f"000000002000.{'mp4' if video.can_write('.mp4') else 'gif'}"
    assert found
    assert (run.folder.parents[2] / found[1]).samefile(path)
    assert len(read_video(path)[0]) == 31
    for line in ("shoal plot runs/cartpole/20250101-120000", "shoal train --resume"):
        assert line in out


def test_eval_shows_both_ways_of_choosing_actions(capsys, run):
    """Defect 30: a greedy policy that returns 0 hid a sampled one that returns 0.9."""
    run.asked["players"] = {"greedy": ScriptedPlayer(lambda obs: np.zeros(len(obs), np.int64))}
    (run.folder / "config.toml").write_text("[eval]\ngreedy = true\n")
    assert main(["eval", "last", "--episodes", "20", "--video", "none"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines() if "mean" in line] == ["greedy", "sampled"], "the run's first"
    returns = [float(text) for text in re.findall(r"^return +([\d.]+) ", out, re.MULTILINE)]
    assert returns[0] < 15
    assert returns[1] == 30.0
    assert "The sampled policy plays better." in out
    assert main(["eval", "last", "--episodes", "20", "--video", "none", "--json"]) == 0
    facts = strict_json(capsys.readouterr().out)
    assert facts["greedy"] is True
    assert facts["mode"] == "greedy"
    assert (facts["modes"]["greedy"]["return"], facts["modes"]["sampled"]["return"]) == (facts["return"], 30.0)
    for flag, mode in (("--greedy", "greedy"), ("--sample", "sampled")):
        assert main(["eval", "last", "--episodes", "2", "--video", "none", "--json", flag]) == 0
        assert list(strict_json(capsys.readouterr().out)["modes"]) == [mode]
    assert main(["eval", "last", "--greedy", "--sample"]) == 2
    assert "mutually exclusive" in capsys.readouterr().err


def test_a_policy_that_must_draw_its_actions_is_scored_both_ways():
    """In a corridor of two doors that look alike, the likeliest action is always the wrong one."""
    rng = np.random.default_rng(0)
    greedy = ScriptedPlayer(lambda obs: np.zeros(len(obs), np.int64))
    sampled = ScriptedPlayer(lambda obs: rng.integers(0, 2, len(obs)))
    result = evaluate.play_modes(
        partial(shoal.make, "cartpole", max_steps=100), {"greedy": greedy, "sampled": sampled}, 32, chosen="greedy"
    )
    assert result.score is result.scores["greedy"]
    assert result.better() == "sampled"
    facts = result.facts()
    assert facts["return"] == facts["modes"]["greedy"]["return"] < facts["modes"]["sampled"]["return"]
    assert result.describe().startswith("greedy ")
    alone = play(partial(shoal.make, "cartpole", max_steps=100), greedy, 32)
    assert alone == result.scores["greedy"], "the same seeds, whoever played before"


def test_envs_may_be_fewer_than_asked_for():
    """Defect 8: a trainer evaluates with as many envs as it trains with, on the same backend."""
    asked = []

    def make(num_envs, seed):
        asked.append(num_envs)
        return shoal.make("cartpole", 4, seed=seed, max_steps=10)

    assert len(play(make, RIGHT, 30, num_envs=8).returns) == 30
    assert len(play(make, RIGHT, 3, num_envs=8).returns) == 3, "envs beyond the episodes do not count"
    assert asked == [8, 3]


def test_eval_looks_where_training_was_told_to_put_runs(capsys, run, tmp_path):
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    words = ["eval", "cartpole", "--episodes", "2", "--video", "none"]
    assert main([*words, "--runs", "elsewhere"]) == 0
    assert "run 20250101-120000" in capsys.readouterr().out
    assert main(words) == 2


def test_eval_takes_the_checkpoint_that_was_asked_for(run):
    for words, name in ((["last"], "3000"), (["best"], "2000"), (["1000"], "1000"), (["1_000"], "1000")):
        assert main(["eval", "last", "--episodes", "2", "--video", "none", "--greedy", "--checkpoint", *words]) == 0
        assert run.asked["checkpoint"] == name.zfill(12)
        assert set(run.asked["modes"]) == {"greedy"}
    assert not (run.folder / "videos").exists()


def test_eval_as_json(capsys, run, tmp_path):
    argv = ["eval", "last", "--episodes", "3", "--json", "--out", "lines.jsonl", "--video", "a.gif", "--seed", "9"]
    assert main(argv) == 0
    assert main(argv) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == (tmp_path / "lines.jsonl").read_text().splitlines()
    assert len(printed) == 2
    assert printed[0] == printed[1]
    facts = strict_json(printed[0])
    assert (facts["return"], facts["episodes"], facts["seed"], facts["video"]) == (30.0, 3, 9, "a.gif")
    assert facts["returns"] == [30.0] * 3
    assert set(facts["stats"]) == {"tilt"}
    assert (tmp_path / "a.gif").is_file()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["nothing"], "nothing"),
        (["last", "--episodes", "0"], "--episodes 0"),
        (["last", "--video-episodes", "0"], "--video-episodes 0"),
        (["last", "--checkpoint", "bst"], "--checkpoint bst must be best, last or a step"),
        (["last", "--checkpoint", "1900"], "The nearest is 2000; there are 3 checkpoints from 1000 to 3000"),
        (["last", "--video", "a.avi"], ".mp4 or .gif"),
        (["last", "--video", "none/a.gif"], "mkdir -p none"),
        (["last", "--fps", "0"], "fps=0"),
        (["last", "--seed", "-1"], "seed=-1"),
        (["last", "--out", "/no/such/folder/x"], "--out /no/such/folder/x"),
    ],
)
def test_eval_tells_mistakes_before_it_plays(capsys, monkeypatch, run, argv, said):
    monkeypatch.setattr(sys.modules["shoal.train"], "load_player", None)
    assert main(["eval", *argv]) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert out == ""


def test_eval_of_a_run_without_checkpoints(capsys, run):
    for path in (run.folder / "checkpoints").glob("*/meta.json"):
        path.unlink()
    assert main(["eval", "last"]) == 2
    assert "has no checkpoint. Training saves one" in capsys.readouterr().err


def test_eval_says_why_there_is_no_video_and_all_is_well(capsys, monkeypatch, run):
    run.asked.update(player=RIGHT, kwargs={"env": SeedEnv})
    assert main(["eval", "last", "--episodes", "2"]) == 0
    out = capsys.readouterr().out
    assert "cannot be drawn: its class needs metadata = {'render_modes': ['rgb_array']}" in " ".join(out.split())
    assert "is_success" in out
    monkeypatch.setattr(video, "can_write", lambda suffix: False)
    run.asked["kwargs"] = {"env": "cartpole"}
    assert main(["eval", "last", "--episodes", "2"]) == 0
    assert 'Install one: pip install "shoal[video]"' in capsys.readouterr().out


def test_eval_keeps_the_score_when_the_video_fails(capsys, monkeypatch, run):
    def fail(*args, **kwargs):
        raise ConfigError("the disk is full")

    monkeypatch.setattr(evaluate, "record", fail)
    assert main(["eval", "last", "--episodes", "2"]) == 0
    out, err = capsys.readouterr()
    assert "return" in out
    assert "No video: the disk is full" in out
    assert main(["eval", "last", "--episodes", "2", "--video", "a.gif"]) == 2, "it was asked for"
    out, err = capsys.readouterr()
    assert "return" in out
    assert "the disk is full" in err


def test_eval_says_how_many_episodes_were_cut(capsys, monkeypatch, run):
    monkeypatch.setattr(evaluate, "play_modes", partial(evaluate.play_modes, max_steps=10))
    assert main(["eval", "last", "--episodes", "3", "--video", "none"]) == 0
    assert "3 sampled episodes were stopped at" in capsys.readouterr().out


# ---- a budget of time ----


class _Clock:
    """A clock on which each look takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1.0
        return self.now


class Lengths(gymnasium.Env):
    """Episodes of 2 steps in even envs and of 6 in odd ones, by their seeds."""

    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.length = 6 if seed % 2 else 2
            super().reset(seed=seed)
        self.count, self.drawn = 0, float(self.np_random.random())
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.zeros(1, np.float32), self.drawn, self.count == self.length, False, {}


def _play_lengths(budget_s=None, episodes=40):
    make = partial(shoal.make, Lengths, backend="serial")
    players = {mode: evaluate.ScriptedPlayer(lambda obs: np.zeros(4, np.int64)) for mode in ("greedy", "sampled")}
    return evaluate.play_modes(make, players, episodes, 0, chosen="greedy", num_envs=4, budget_s=budget_s)


def test_a_budget_of_time_ends_an_evaluation_after_a_round_of_all_envs(monkeypatch):
    whole = _play_lengths()
    monkeypatch.setattr(evaluate, "time", _Clock())
    bounded = _play_lengths(budget_s=50.0)
    for mode, score in bounded.scores.items():
        rounds = len(score.returns) // 4
        assert 3 <= rounds < 10
        assert len(score.returns) == 4 * rounds
        assert sorted(set(score.lengths)) == [2, 6]
        assert score.lengths.count(2) == score.lengths.count(6), "short episodes are not over-represented"
        kept = [whole.scores[mode].returns[10 * env + k] for env in range(4) for k in range(rounds)]
        assert list(score.returns) == kept, "the same episodes as without a budget"


def test_a_budget_of_time_leaves_at_least_ten_episodes_and_changes_nothing_if_it_suffices(monkeypatch):
    whole = _play_lengths()
    assert _play_lengths(budget_s=1e9) == whole
    monkeypatch.setattr(evaluate, "time", _Clock())
    assert {len(score.returns) for score in _play_lengths(budget_s=0.0).scores.values()} == {12}
    assert {len(score.returns) for score in _play_lengths(budget_s=0.0, episodes=6).scores.values()} == {6}


def test_a_run_says_which_evaluation_episodes_did_not_end(tmp_path, monkeypatch, capsys):
    """Where no episode ended in training, those of the evaluation are stopped early, and the run says so."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "ENDLESS_STEPS", 50)
    options = {"train": {"total_steps": 512, "horizon": 16}, "vec": {"num_envs": 8}, "nn": {"hidden": 8}}
    run = train("pendulum", env={"max_steps": 0}, device="cpu", console="lines", **options)
    said = capsys.readouterr().out
    assert "100 of 100 greedy episodes did not end in 50 steps" in said
    assert "time_limit=N" in said
    assert run.summary["eval"]["length"] == 50


def test_the_next_commands_of_eval_work_for_a_path_with_spaces(tmp_path, capsys):
    folder = tmp_path / "my runs"
    tables = {"train": {"total_steps": 256, "horizon": 16}, "vec": {"num_envs": 8}, "eval": {"episodes": 0}}
    train("cartpole", runs_folder=folder, device="cpu", console="off", **tables)
    assert main(["eval", "last", "--runs", str(folder), "--episodes", "2", "--video", "none"]) == 0
    (command,) = (line for line in capsys.readouterr().out.splitlines() if "shoal plot" in line)
    assert f"shoal plot '{folder}/cartpole/" in command
