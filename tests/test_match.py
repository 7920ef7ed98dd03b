"""`shoal match` and `shoal league`: games against a loop of single games, both seats, seeds, mistakes, files."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import shoal
from shoal import checkpoint, evaluate
from shoal.cli import crosstable
from shoal.cli.main import main
from shoal.errors import ConfigError
from shoal.league.league import League, blank_counts
from shoal.league.options import LeagueOptions
from shoal.league.payoff import DRAW, LOSS, WIN
from shoal.league.seating import find_sides
from shoal.league.table import CrossTable
from shoal.match import play_match
from shoal.match.contestants import check_robot
from shoal.match.device import play_on_device
from shoal.match.games import SEED_BITS, judge
from shoal.native import lib
from shoal.player import PolicyPlayer
from shoal.registry import find as find_header
from shoal.seeds import stream_seed
from shoal.train import load_player
from tests.fake_gpu import make_cuda_vec_on_host
from tests.training import train_tiny

DUEL = {"preset": "duel-stun", "max_steps": 40}


def duel(*players, games=8, **more):
    return play_match(players, env="vacuum", env_options=DUEL, games=games, **more)


def counts(match):
    return {pair: cell.tolist() for pair, cell in match.table.cells.items()}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A tiny run of a duel in which one policy plays both seats."""
    return train_tiny("vacuum", tmp_path_factory.mktemp("duels"), env=dict(DUEL), agents=2)


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory):
    """The same with a recurrent policy, which has learned seat 0 only."""
    folder = tmp_path_factory.mktemp("recurrent")
    return train_tiny("vacuum", folder, env=dict(DUEL), opponents="1=seek", nn={"core": "lstm"})


# ---- the same games one by one ----


def single_games(env_options, seed, quota, act=None):
    """Returns (games, agents) of one env after another, each with its own quota of games."""
    returns = []
    for number, count in enumerate(quota):
        vec = shoal.make("vacuum", 1, **env_options, backend="serial")
        obs, infos = vec.reset(seed=evaluate.held_out(seed) + number)
        agents = vec.agents_per_env
        for _ in range(count):
            totals, out = [0.0] * agents, [False] * agents
            while not all(out):
                actions = np.zeros(agents, np.int64) if act is None else act(obs, infos)
                obs, rewards, terminated, truncated, infos = vec.step(actions)
                for agent in range(agents):
                    totals[agent] += float(rewards[agent])
                    out[agent] = out[agent] or bool(terminated[agent]) or bool(truncated[agent])
            returns.append(totals)
        vec.close()
    return np.array(returns)


def outcome_counts(returns, side):
    """A slow twin of `judge` for two agents and no margin."""
    tally = [0, 0, 0]
    for totals in returns:
        own, other = totals[side], totals[1 - side]
        tally[WIN if own > other + 1e-5 else LOSS if own < other - 1e-5 else DRAW] += 1
    return tally


def test_robots_play_the_games_that_they_play_alone():
    match = duel("random", "safe-random", games=14, num_envs=4, seed=3)
    for side, seated in enumerate([("random", "safe-random"), ("safe-random", "random")]):
        seed = stream_seed(3, "match", *seated, bits=SEED_BITS)
        options = {**DUEL, "robot_0": seated[0], "robot_1": seated[1]}
        returns = single_games(options, seed, [2, 2, 2, 1])
        assert match.table.cells[0, 1][side].tolist() == outcome_counts(returns, side)
    assert match.games == 14


def test_a_greedy_run_plays_the_games_that_it_plays_alone(run):
    match = play_match([str(run.folder), "random"], games=6, num_envs=2, seed=1, greedy=True)
    name = match.table.names[0]
    player, _ = load_player(run, greedy=True)

    def act(obs, infos):
        player.reset(2)
        return player.act(obs, infos)

    for side, seated in enumerate([(name, "random"), ("random", name)]):
        options = {**DUEL, f"robot_{1 - side}": "random"}
        seed = stream_seed(1, "match", *seated, bits=SEED_BITS)
        returns = single_games(options, seed, [2, 1], act)
        assert match.table.cells[0, 1][side].tolist() == outcome_counts(returns, side)


def test_long_games_count_as_much_as_short_ones():
    """Of the games that end first, most are short. Every env plays a fixed number: none is preferred."""
    seen = []
    match = duel("random", "hunt", games=64, num_envs=16, progress=lambda done, total: seen.append((done, total)))
    assert match.table.result(0, 1).games == 64
    assert [match.table.result(0, 1, side).games for side in range(2)] == [32, 32]
    assert seen[-1] == (64, 64)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


# ---- seeds, seats and names ----


def test_the_same_seed_gives_the_same_games(run):
    first, again, other = (play_match([run, "random"], games=24, seed=seed) for seed in (5, 5, 6))
    assert counts(first) == counts(again)
    assert counts(first) != counts(other)


def test_a_pair_plays_the_same_games_whoever_else_plays_and_in_any_order():
    alone = duel("random", "safe-random", games=20).table.result(0, 1)
    three = duel("safe-random", "stay", "random", games=20).table
    assert three.result(2, 0) == alone
    assert three.result(0, 2).wins == alone.losses


def test_odd_numbers_of_games_are_rounded_up_to_whole_seats():
    assert duel("random", "stay", games=5).games == 6


def test_with_more_sides_one_plays_against_all_others():
    match = play_match(["random", "safe-random"], env="vacuum", env_options={"max_steps": 20}, games=9)
    assert match.table.sides == 4
    assert match.games == 16
    assert {pair: cell.sum(1).tolist() for pair, cell in match.table.cells.items()} == {
        (0, 1): [2, 2, 2, 2],
        (1, 0): [2, 2, 2, 2],
    }


def test_a_run_that_learned_one_seat_plays_all(recurrent):
    match = play_match([recurrent.folder, f"{recurrent.folder}@last", "stay"], games=4)
    assert len(set(match.table.names)) == 3
    assert all(cell.sum() == 4 for cell in match.table.cells.values())
    assert not any(name.startswith("robot_") for name in match.options)  # the opponent of training is not seated


def test_a_player_may_play_against_itself():
    assert duel("random", "random", games=4).table.names == ("random", "random (2)")


def test_players_that_leave_early_are_judged_by_all_they_got():
    """The higher number wins, in every seat, also where seat 1 leaves the game first."""
    header = str(Path(__file__).parent / "duel.h")
    match = play_match(["low", "high"], env=header, env_options={"early": 1}, games=30)
    assert counts(match) == {(0, 1): [[0, 0, 15], [0, 0, 15]]}


def test_draws_are_within_the_margin():
    returns = np.array([[1.0, 0.8], [1.0, 0.5], [0.0, 0.4], [0.1, 0.1 + 1e-9]])
    sides = [(0,), (1,)]
    assert judge(returns, sides, 0, 0.0).tolist() == [WIN, WIN, LOSS, DRAW]
    assert judge(returns, sides, 1, 0.3).tolist() == [DRAW, LOSS, WIN, DRAW]


def test_a_group_is_judged_by_its_mean_and_against_the_best_other():
    returns = np.array([[1.0, 3.0, 2.5, 0.0, 9.0, -9.0]])
    pairs = [(0, 1), (2, 3), (4, 5)]
    assert [judge(returns, pairs, side, 0.0)[0] for side in range(3)] == [WIN, LOSS, LOSS]
    assert judge(returns, [(k,) for k in range(6)], 4, 0.0)[0] == WIN


def test_groups_of_one_size_are_sides():
    with contextlib.closing(shoal.make("vacuum", 1)) as vec:
        assert find_sides(vec).tolist() == [[0], [1], [2], [3]]
        pairs = {"red": (0, 2), "blue": (1, 3)}
        vec.__dict__["agent_spaces"] = dataclasses.replace(vec.agent_spaces, groups=tuple(pairs.items()))
        assert find_sides(vec).tolist() == [[0, 2], [1, 3]]


def test_games_without_chance_are_named():
    match = duel("seek", "stay", games=40)
    assert "Nothing in them is random" in match.notes[0]
    assert not duel("random", "safe-random", games=40).notes
    always_won = play_match(["low", "high"], env=str(Path(__file__).parent / "duel.h"), games=40)
    assert always_won.table.result(1, 0).wins == 40
    assert not always_won.notes  # games of different lengths


def test_other_params_of_a_second_run_are_named(run, tmp_path):
    other = train_tiny("vacuum", tmp_path, env={**DUEL, "e_charge": 9.0}, agents=2)
    match = play_match([run.folder, other.folder], games=2)
    assert "e_charge 9.0 (here: 8)" in match.notes[0]


# ---- envs of Python ----


def test_envs_of_pettingzoo_are_played():
    match = play_match(["random", "random"], env="pettingzoo:classic/rps_v2", games=40, num_envs=4)
    result = match.table.result(0, 1)
    assert result.games == 40
    assert 0 < result.wins < 40


class Stays:
    """An agent of the user's own: it takes the last action, with which robots stay where they are."""

    def act(self, obs, mask):
        return mask.shape[1] - 1 + 0 * obs[:, 0].long()


def test_agents_of_the_users_own_play():
    """It plays exactly as the env's own robot that stays."""
    own, named = duel(Stays, "random", games=20), duel("tests.test_match:Stays", "random", games=20)
    assert own.table.names == ("Stays", "random")
    assert own.facts()["players"][0]["kind"] == "agent"
    seated = [("Stays", "random"), ("random", "Stays")]
    for side, names in enumerate(seated):
        seed = stream_seed(0, "match", *names, bits=SEED_BITS)
        options = {**DUEL, f"robot_{side}": "stay", f"robot_{1 - side}": "random"}
        assert own.table.cells[0, 1][side].tolist() == outcome_counts(single_games(options, seed, [1] * 10), side)
    assert named.table.result(0, 1).games == 20


class Rolls:
    """An agent of the user's own with a random stream."""

    def __init__(self, seed):
        self.stream = torch.Generator().manual_seed(seed)

    def act(self, obs, mask):
        return torch.randint(3, (len(obs),), generator=self.stream)


def test_two_agents_of_one_class_roll_dice_of_their_own():
    """With the same numbers every game would be a draw."""
    header = str(Path(__file__).parent / "duel.h")
    result = play_match([Rolls, Rolls], env=header, games=40).table.result(0, 1)
    assert result.wins > 5
    assert result.losses > 5


# ---- the loop for a GPU, on the memory of the CPU ----


def module_of_duels():
    header = find_header("vacuum")
    spec = lib.load(header).spec
    values, consts = spec.split(dict(DUEL))
    return lib.load(header, consts), values


@pytest.mark.parametrize("kind", ["robots", "mlp", "lstm"])
def test_games_on_a_device_are_those_on_the_host(kind, run, recurrent, monkeypatch):
    module, values = module_of_duels()
    words = {"robot_0": "random", "robot_1": "safe-random"} if kind == "robots" else {"robot_1": "random"}
    player = None
    if kind != "robots":
        trained = run if kind == "mlp" else recurrent
        loaded, _ = load_player(trained, greedy=True)
        role = loaded.roles[0].__class__((0,), (), loaded.roles[0].observation_space, loaded.roles[0].action_space)
        player = PolicyPlayer([loaded.actors[0]], [role], 2, greedy=True)
    vec = shoal.make("vacuum", 6, **DUEL, **words, backend="serial")
    plays = player if player is not None else evaluate.ScriptedPlayer(lambda obs: np.zeros(12, np.int64))
    score = evaluate.play(vec, plays, 15, seed=9)
    vec.close()
    wanted = np.stack([part.returns for part in score.agents.values()], 1)
    checked = {**values, **{name: module.spec.choices(name)[word] for name, word in words.items()}}
    on_device = make_cuda_vec_on_host(monkeypatch, module, 6, params=checked)
    found, lengths, cut = play_on_device(on_device, player, 15, evaluate.held_out(9))
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    assert lengths.tolist() == list(score.lengths)
    assert cut == 0


# ---- mistakes ----


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("seek", "at least two players; 1 given"),
        ("seek flee", "Name the env for a match of robots: --env vacuum"),
        ("seek fle --env vacuum", "Did you mean 'flee'?"),
        ("seek no/such/run --env vacuum", "As a run: no run 'no/such/run'"),
        ("seek tests.test_match:Stay --env vacuum", "Did you mean 'Stays'?"),
        ("seek tests.test_match:counts --env vacuum", "is called as act(obs, mask)"),
        ("random random --env cartpole", "cartpole has one agent"),
        ("seek flee --env vacum", "Did you mean 'vacuum'?"),
        ("seek flee --env vacuum --games 0", "--games 0 must be at least 1"),
        ("seek flee --env vacuum --games -4", "--games -4 must be at least 1"),
        ("seek flee --env vacuum --seed -1", "seed=-1 must be an int in 0"),
        ("seek flee --env vacuum --margin -1", "margin=-1.0 must be a finite number"),
        ("seek flee --env vacuum --num-envs -1", "num_envs=-1 must be at least 1"),
        ("seek flee --env vacuum --env.preset duel", "Did you mean 'duel-stun'?"),
        ("seek flee --env vacuum --env.e-charg 3", "Did you mean 'e_charge'?"),
        ("seek flee --env vacuum --html no/such/folder/x.html", "cannot be written"),
        ("seek flee --env vacuum --json x.txt", "must end in .json"),
    ],
)
def test_mistakes_are_told_before_a_game_is_played(words, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evaluate, "play", lambda *_, **__: pytest.fail("a game was played"))
    assert main(["match", *words.split()]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_runs_of_other_envs_and_shapes_are_refused(run, tmp_path):
    squared = train_tiny("squared", tmp_path)
    with pytest.raises(ConfigError, match="is a run of squared, but .* is of vacuum"):
        play_match([run.folder, squared.folder])
    with pytest.raises(ConfigError, match="is a run of vacuum, but --env squared is of squared"):
        play_match([run.folder, "random"], env="squared")
    stacked = train_tiny("vacuum", tmp_path, env=dict(DUEL), agents=2, wrap=["stack=2"])
    with pytest.raises(ConfigError, match="trained with the same params and wrappers"):
        play_match([run.folder, stacked.folder])
    with pytest.raises(ConfigError, match="gives vacuum 4 agents; the run was trained with 2"):
        play_match([run.folder, "random"], env_options={"preset": "classic-1v3"})
    with pytest.raises(ConfigError, match="no checkpoint of that step"):
        play_match([f"{run.folder}@7", "random"])


def test_python_envs_are_not_on_a_gpu(monkeypatch):
    monkeypatch.setattr("shoal.match.games.require_gpu", lambda: None)
    with pytest.raises(ConfigError, match="is a Python env. Use device='cpu'"):
        play_match(["random", "random"], env="pettingzoo:classic/rps_v2", device="cuda")


def test_a_robot_must_play_every_seat():
    spec = lib.load(find_header("vacuum")).spec
    check_robot("seek", spec, 4)
    only_seat_0 = dataclasses.replace(spec, params=tuple(p for p in spec.params if p.name == "robot_0"))
    with pytest.raises(ConfigError, match="cannot play agent 1, which has no param robot_1"):
        check_robot("seek", only_seat_0, 2)


# ---- the commands ----


def test_the_command_prints_a_cross_table_and_writes_files(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    page, facts = tmp_path / "m.html", tmp_path / "m.json"
    words = [str(run.folder), "random", "stay", "--games", "12", "--html", str(page), "--json", str(facts)]
    assert main(["match", *words, "--seed", "4"]) == 0
    out = capsys.readouterr().out
    assert "vacuum: " in out
    assert "points in %" in out
    assert "anchor" in out
    assert "points by side" in out
    data = json.loads(facts.read_text())
    assert [player["name"] for player in data["players"]][1:] == ["random", "stay"]
    assert data["anchor"] == "random"
    assert len(data["results"]) == 6
    for pair in data["results"]:
        assert pair["games"] == 12 == pair["wins"] + pair["draws"] + pair["losses"]
        low, high = pair["win_rate_ci95"]
        assert low <= pair["win_rate"] <= high
        assert [side["games"] for side in pair["by_side"]] == [6, 6]
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "{{" not in text
    assert "http" not in text.replace("http-equiv", "")  # nothing is fetched
    assert "<script" not in text
    assert all(name in text for name in ("random", "stay", "win rate"))


def test_the_flag_of_a_league_is_read():
    from shoal.cli.train import parse

    words = ["vacuum", "--league", "--league.members", "seek", "flee", "--league.latest", "0.3"]
    options = parse(words).options.league
    assert (options.on, options.members, options.latest) == (True, ("seek", "flee"), 0.3)
    assert not parse(["vacuum"]).options.league.on


def test_json_on_stdout_is_all_there_is_on_it(capsys):
    words = "match random stay --env vacuum --env.preset duel-stun --env.max-steps 20 --games 4 --json -"
    assert main(words.split()) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["params"] == {"preset": "duel-stun", "max_steps": 20}
    assert data["games"] == 4


def test_names_are_escaped_in_the_page(tmp_path):
    from shoal.league.page import write_html
    from shoal.league.table import CrossTable

    cells = {(0, 1): np.array([[1, 0, 0]])}
    write_html(CrossTable(("<script>", "b&c"), cells, 1), tmp_path / "x.html", "<i>", ["a < b"])
    text = (tmp_path / "x.html").read_text()
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "<i>" not in text


def league_run(run, folder):
    """A copy of a run whose last checkpoint holds a league."""
    import shutil

    copy = folder / "vacuum" / "of-a-league"
    shutil.copytree(run.folder, copy)
    league = League(LeagueOptions(snapshot=100), sides=2, total_steps=1000, named=[("seek", "robot")])
    for step in (100, 200, 300):
        results = blank_counts(2)
        for member in league.members:
            results[member] = [(6 + step // 50, 1, 3), (6, 1, 3)]
        league.observe(results)
        league.after_iteration(step)
    last = sorted(path for path in (copy / "checkpoints").iterdir() if path.is_dir())[-1]
    files, meta = checkpoint.load(last)
    files["state"] |= league.state()
    facts = {name: meta[name] for name in meta if name not in ("files", "step", "format")}
    checkpoint.save(copy / "checkpoints", meta["step"], files, facts, keep=0)
    return copy, league


def test_the_league_of_a_run_is_shown(run, tmp_path, capsys):
    folder, league = league_run(run, tmp_path)
    page, facts = tmp_path / "l.html", tmp_path / "l.json"
    assert main(["league", str(folder), "--html", str(page), "--json", str(facts)]) == 0
    out = capsys.readouterr().out
    assert "5 members in the pool now; seek has rating 0" in out
    assert "The ratings of the 3 snapshots rise" in out
    for name in ("step 100", "step 300", "seek"):
        assert name in out
        assert name in page.read_text()
    data = json.loads(facts.read_text())
    kinds = {player["name"]: player["kind"] for player in data["players"]}
    assert kinds == {
        "step 100": "snapshot",
        "step 200": "snapshot",
        "step 300": "snapshot",
        "seek": "robot",
    }
    for player, rating in zip(data["players"], league.table().ratings()):
        assert player["rating"] == pytest.approx(rating.elo)
    pairs = {(pair["player"], pair["opponent"]) for pair in data["results"]}
    assert pairs == {
        *itertools.permutations(("step 100", "seek"), 2),
        *itertools.permutations(("step 200", "seek"), 2),
        *itertools.permutations(("step 300", "seek"), 2),
        *itertools.permutations(("step 100", "step 200"), 2),
        *itertools.permutations(("step 100", "step 300"), 2),
        *itertools.permutations(("step 200", "step 300"), 2),
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("{run}", "has no league to show"),
        ("no-such-run", "no run 'no-such-run'"),
        ("{run} --checkpoint 7", "no checkpoint of that step"),
        ("{run} --html x.png", "must end in .html"),
    ],
)
def test_mistakes_of_the_league_command(words, said, run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["league", *words.format(run=run.folder).split()]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_pairs_with_long_names_are_shown_by_place_where_the_screen_is_narrow():
    names = ["a-run-with-a-long-name", "another-run-with-a-long-name"]
    table = CrossTable(names, {(0, 1): np.array([[4000, 200, 1000], [4100, 0, 1100]])}, 2)
    for width, title in ((80, "1 - 2"), (160, " - ".join(names))):
        screen = Console(width=width, file=io.StringIO())
        crosstable._show_pairs(screen, table, [0, 1])
        assert title in screen.file.getvalue()
        assert "…" not in screen.file.getvalue()
