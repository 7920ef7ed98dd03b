"""connect4: every rule and robot against a slow twin, turns, perft counts, and play against a perfect solver."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import shoal
from benchmarks import connect4 as bench
from shoal.errors import ConfigError

from .board_twins import LINES, ConnectFour, compare
from .connect4_solver import Board, Solver
from .training import train_tiny, training


@pytest.fixture(scope="module")
def solver() -> Solver:
    return Solver(18)


# ---- against the twin ----

PLAYERS = [
    *itertools.product(("learner", "random", "one_ply"), repeat=2),
    ("learner", "learner"),
    ("learner", "learner"),
    ("learner", "learner"),
]


@pytest.mark.parametrize(("threats", "tactics"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_every_rule_equals_the_slow_twin(threats, tactics):
    """Random actions, legal or not; every robot in every seat, openings, who begins, time limits: the same bytes."""
    all_params = [
        {
            "first": ("random", "agent_0", "agent_1")[number % 3],
            "opening_plies": (0, 3, 0, 20, 30)[number % 5],
            "max_steps": (0, 0, 11)[number % 3],
            "robot_0": players[0],
            "robot_1": players[1],
        }
        for number, players in enumerate(PLAYERS)
    ]
    given = {name: [params[name] for params in all_params] for name in all_params[0]}
    vec = shoal.make("connect4", len(PLAYERS), threats=threats, tactics=tactics, **given)
    twins = [ConnectFour(params, seed=40 + k, see_more=bool(threats)) for k, params in enumerate(all_params)]
    for twin in twins:
        twin.see_tactics = bool(tactics)
    assert compare(twins, vec, 60, seed=40) > 30


def test_the_search_equals_plain_minimax():
    """search4 against a minimax that tries every move to the end of its four."""
    robots = {"robot_0": "search4", "robot_1": "search4"}
    vec = shoal.make("connect4", 3, preset="plain", **robots, opening_plies=[4, 16, 26])
    twins = [ConnectFour({**robots, "opening_plies": plies}, seed=7 + k) for k, plies in enumerate((4, 16, 26))]
    compare(twins, vec, 2, seed=7)


def test_there_are_69_lines_of_four():
    """And each of them wins, for either agent."""
    assert len(LINES) == 69
    game = ConnectFour({})
    for line in LINES:
        own = {7 * column + row for column, row in line}
        stones = sum(1 << bit for bit in own)
        assert any(stones & stones >> d & stones >> 2 * d & stones >> 3 * d for d in (1, 6, 7, 8))
        game.start()
        for column, row in line:
            game.columns[column] += [1] * (row - len(game.columns[column])) + [0]
        assert game.has_four(0)


# ---- turns ----


def test_one_agent_moves_in_a_step_and_the_other_can_only_wait():
    vec = shoal.make("connect4", 1, first="agent_1")
    obs, infos = vec.reset(seed=0)
    assert infos["action_mask"].tolist() == [[1, 0, 0, 0, 0, 0, 0], [1] * 7]
    assert obs[:, 84].tolist() == [0, 1]
    obs, *_, infos = vec.step(np.array([5, 3]))  # the action of the one that waits has no effect
    assert infos["action_mask"].tolist() == [[1] * 7, [1, 0, 0, 0, 0, 0, 0]]
    assert (np.flatnonzero(obs[0, :84]).tolist(), np.flatnonzero(obs[1, :84]).tolist()) == ([42 + 18], [18])
    obs, *_ = vec.step(np.array([3, 6]))
    assert np.flatnonzero(obs[0, :84]).tolist() == [19, 42 + 18]


def test_winner_and_loser_are_paid_in_the_same_step():
    vec = shoal.make("connect4", 1, first="agent_0")
    vec.reset(seed=0)
    for column in (0, 1, 0, 1, 0, 1):
        _, rewards, terminated, *_ = vec.step(np.array([column, column]))
        assert not rewards.any()
        assert not terminated.any()
    _, rewards, terminated, truncated, _ = vec.step(np.array([0, 0]))
    assert rewards.tolist() == [1, -1]
    assert terminated.all()
    assert not truncated.any()
    stats = vec.drain_stats()
    assert {name: stats[name]["mean"] for name in ("wins_0", "wins_1", "draws", "wins_first", "plies")} == {
        "wins_0": 1,
        "wins_1": 0,
        "draws": 0,
        "wins_first": 1,
        "plies": 7,
    }


def test_a_full_board_is_a_draw():
    vec = shoal.make("connect4", 1, first="agent_0")
    vec.reset(seed=0)
    moves = [0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 2, 3, 2, 3, 3, 2, 3, 2, 2, 3, 2, 3, 4, 5, 4, 5, 5, 4, 5, 4, 4, 5, 4, 5]
    moves += [6] * 6
    for ply, column in enumerate(moves):
        _, rewards, terminated, *_ = vec.step(np.array([column, column]))
        assert terminated.tolist() == [ply == 41] * 2
    assert rewards.tolist() == [0, 0]
    assert vec.drain_stats()["draws"]["mean"] == 1


def test_a_forbidden_column_becomes_the_next_free_one():
    vec = shoal.make("connect4", 1, first="agent_0")
    vec.reset(seed=0)
    for _ in range(6):
        obs, *_, infos = vec.step(np.array([6, 6]))
    assert infos["action_mask"][0].tolist() == [1, 1, 1, 1, 1, 1, 0]
    obs, *_ = vec.step(np.array([6, 6]))
    assert obs[0, 0] == 1  # after the last column comes the first


def test_a_robot_replies_within_the_step():
    """A learner waits only for the first move of a robot that begins."""
    vec = shoal.make("connect4", 2, robot_1="random", first=["agent_0", "agent_1"])
    obs, infos = vec.reset(seed=0)
    assert infos["action_mask"].reshape(2, 2, 7)[:, 0].sum(1).tolist() == [7, 1]
    for step in range(3):
        obs, *_ = vec.step(np.full(4, 3))
        assert obs[::2, 84].tolist() == [1, 1]
        assert obs[::2, :42].sum(1).tolist() == [step + 1, step]
        assert obs[::2, 42:84].sum(1).tolist() == [step + 1, step + 1]


def test_a_robot_may_be_seated_after_the_game_has_begun():
    """As a league does: an agent that begins has its legal moves, whoever plays it by the time of the first step."""
    vec = shoal.make("connect4", 2, first="agent_1", robot_1=["learner", "one_ply"])
    _, infos = vec.reset(seed=0)
    assert infos["action_mask"].reshape(2, 2, 7).sum(2).tolist() == [[1, 7], [1, 7]]
    vec.set_params(robot_1=["one_ply", "learner"])
    drawn = set()
    for seed in range(10):
        vec.reset(seed=seed)
        obs, *_ = vec.step(np.array([3, 3, 3, 3]))
        boards = obs[::2, 42:84]
        assert obs[::2, :42].sum() == 0  # agent 0 had to wait
        assert np.flatnonzero(boards[1]).tolist() == [18]
        drawn.add(int(boards[0].argmax()))
    assert len(drawn) > 3


def test_both_agents_begin_equally_often():
    vec = shoal.make("connect4", 4000)
    obs, _ = vec.reset(seed=0)
    first = obs[::2, 84]
    assert (obs[1::2, 84] == 1 - first).all()
    assert abs(first.mean() - 0.5) < 0.03


def test_openings_are_random_and_leave_the_game_open():
    vec = shoal.make("connect4", 500, opening_plies=16)
    obs, infos = vec.reset(seed=1)
    boards = obs[:, :84].reshape(1000, 2, 42)
    assert (boards.sum((1, 2)) == 16).all()
    assert len({row.tobytes() for row in boards}) > 990
    assert (infos["action_mask"].sum(1) >= 1).all()
    before = vec.memory.arrays["tick"].copy()
    assert not before.any()


def test_a_waiting_row_adds_nothing_to_the_policys_gradient():
    with training(
        "connect4", nn={"hidden": 16}, vec={"num_envs": 8}, train={"horizon": 8, "minibatches": 2}
    ) as trainer:
        trainer.collect()
        learner = trainer.learners[0]
        rollout, head = learner.rollout, learner.head
        masks = rollout.masks[:-1].flatten(0, 1)
        waits = masks.sum(1) == 1
        assert waits.sum() == len(waits) // 2
        logits = rollout.logits.flatten(0, 1).clone().requires_grad_()
        logprobs, entropies = head.log_prob_and_entropy(head.mask(logits, masks), rollout.actions.flatten(0, 1))
        (logprobs.sum() + entropies.sum()).backward()
        for part in (logprobs, entropies, logits.grad):
            assert not part[waits].any()
            assert (part[~waits] != 0).any()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"robot_1": "perfect"}, "robot_1"),
        ({"opening_plies": 31}, "opening_plies"),
        ({"opening_plies": -1}, "opening_plies"),
        ({"threats": 2}, "threats"),
        ({"tactics": 2}, "tactics"),
        ({"first": "agent_2"}, "first"),
    ],
)
def test_bad_params_are_named(options, said):
    with pytest.raises(ConfigError, match=said):
        shoal.make("connect4", 1, **options)


# ---- counts of positions ----


def slow_perft(game, depth):
    """Sequences of `depth` moves; a game that is over has no more."""
    if depth == 0:
        return 1
    if game.outcome() is not None:
        return 0
    total = 0
    for move in game.moves():
        game.play(move)
        total += slow_perft(game, depth - 1)
        game.take_back(move)
    return total


def env_perft(opening, depth):
    """The same with an env for each sequence that is legal so far."""
    sequences, counts = [list(opening)], []
    for _ in range(depth):
        vec = shoal.make("connect4", len(sequences), first="agent_0")
        _, infos = vec.reset(seed=0)
        is_over = np.zeros(len(sequences), bool)
        for ply in range(len(sequences[0])):
            columns = np.array([sequence[ply] for sequence in sequences])
            _, _, terminated, _, infos = vec.step(np.repeat(columns, 2))
            is_over |= terminated[::2]
        on_turn = len(sequences[0]) % 2
        legal = infos["action_mask"].reshape(-1, 2, 7)[:, on_turn] & ~is_over[:, None]
        sequences = [[*sequences[k], column] for k, column in np.argwhere(legal).tolist()]
        counts.append(len(sequences))
        vec.close()
    return counts


def test_perft_of_the_empty_board():
    """Seven columns each time, until the seventh stone in one column (7 sequences) and the first wins."""
    assert env_perft([], 5) == [7, 49, 343, 2401, 16807]
    heights = [0] * 7

    def count(depth):
        free = [column for column in range(7) if heights[column] < 6]
        if depth == 1:
            return len(free)
        total = 0
        for column in free:
            heights[column] += 1
            total += count(depth - 1)
            heights[column] -= 1
        return total

    assert [count(6), count(7)] == [117649, 823536]  # nobody has four before the seventh stone


def test_perft_of_positions_with_many_wins_equals_the_slow_count():
    generator = np.random.default_rng(5)
    for stones in (14, 22, 30):
        game, moves = ConnectFour({"first": "agent_0"}), []
        while len(moves) < stones:
            column = int(generator.choice(game.moves()))
            game.play(column)
            if game.outcome() is not None:
                game.take_back(column)
                continue
            moves.append(column)
        assert env_perft(moves, 3) == [slow_perft(game, depth) for depth in (1, 2, 3)]


# ---- the solver ----

SOLVED = {  # by moves, as columns from 1: the score of every move, None where the column is full (gamesolver.org)
    "5512243243536": (-3, 4, 12, 13, 8, -3, -2),
    "22144426444": (0, 2, 0, None, 15, 2, 0),
    "5554224333234511764415115": (-8, -8, -8, -8, None, 4, -8),
    "52753311433677442422121": (2, 3, 7, 7, 8, 7, 2),
    "122435527534575161761": (-1, 0, 10, 10, -2, -2, -2),
    "2252576253462244111563365343671351441": (None, None, None, None, None, -1, -2),
}
SCORES = {  # of the board itself (the test sets of Pascal Pons)
    "43745416472735": -13,
    "7422341735647741166133573473242566": 1,
    "23163416124767223154467471272416755633": 0,
    "427631264721": 10,
    "43623536647361": 11,
    "6126741462153": 14,
    "65214673556155731566316327373221417": -1,
}


@pytest.mark.parametrize("moves", SOLVED)
def test_the_solver_knows_solved_positions(solver, moves):
    scores = solver.move_scores(Board.of(moves))
    assert tuple(scores.get(column) for column in range(7)) == SOLVED[moves]


@pytest.mark.parametrize("moves", SCORES)
def test_the_solver_knows_the_scores_of_boards(solver, moves):
    board = Board.of(moves)
    assert solver.score(board) == SCORES[moves]
    assert solver.score(board, low=-1, high=1) == np.sign(SCORES[moves])
    assert solver.score(mirror(board)) == SCORES[moves]


def mirror(board):
    """Left and right exchanged."""

    def turned(cells):
        return sum((cells >> 7 * column & 127) << 7 * (6 - column) for column in range(7))

    return Board(turned(board.own), turned(board.all))


def test_the_solver_equals_plain_minimax_on_late_boards(solver):
    """Positions with six free cells, by brute force with nothing but the twin's rules."""

    def score(game):
        if game.outcome() is not None:
            stones = sum(map(len, game.columns))
            return 0 if game.outcome() == -1 else -((44 - stones) // 2)  # the last move made four
        values = []
        for move in game.moves():
            game.play(move)
            values.append(-score(game))
            game.take_back(move)
        return max(values)

    generator, checked = np.random.default_rng(3), 0
    while checked < 8:
        game, board = ConnectFour({"first": "agent_0"}), Board()
        while sum(map(len, game.columns)) < 36 and game.outcome() is None:
            column = int(generator.choice(game.moves()))
            game.play(column)
            board = board.play(column)
        if game.outcome() is None:
            assert solver.score(board) == score(game)
            checked += 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_first_player_wins_in_the_centre():
    """Solved by Allis and by Allen in 1988. The longest line comes first: what it leaves in memory helps."""
    solver = Solver(23)
    for moves in ("44444", "444", "4"):
        assert solver.score(Board.of(moves), low=-1, high=1) == -1
    assert solver.score(Board(), low=-1, high=1) == 1


# ---- robots and the solver ----


def board_of(obs):
    """The board of an observation of the agent on turn."""
    own, other = (sum(1 << 7 * (k // 6) + k % 6 for k in np.flatnonzero(obs[first : first + 42])) for first in (0, 42))
    return Board(own, own | other)


def test_robots_rank_as_they_should():
    """random < one_ply < search4, in games from both seats."""
    for weak, strong, at_least in (("random", "one_ply", 0.85), ("one_ply", "search4", 0.75)):
        vec = shoal.make("connect4", 300, robot_0=weak, robot_1=strong)
        vec.reset(seed=0)
        nothing = np.zeros(vec.num_rows, int)
        for _ in range(60):
            vec.step(nothing)
        stats = vec.drain_stats()
        assert stats["episodes"] > 300
        assert stats["wins_1"]["mean"] + 0.5 * stats["draws"]["mean"] > at_least
        vec.close()


def test_one_ply_never_misses_a_win_and_never_allows_one_that_it_can_block(solver):
    """By the solver, which shares no code with the robot: a board that is won in one move is won."""
    vec = shoal.make("connect4", 64, robot_1="one_ply", first="agent_0", opening_plies=8)
    obs, infos = vec.reset(seed=0)
    generator, wins, blocks = np.random.default_rng(0), 0, 0
    for _ in range(60):
        masks = infos["action_mask"][::2]
        columns = (generator.random(masks.shape) * masks).argmax(1)
        boards = [board_of(row) for row in obs[::2]]
        obs, rewards, terminated, _, infos = vec.step(np.repeat(columns, 2))
        for k, (board, column) in enumerate(zip(boards, columns.tolist())):
            if board.wins(column):
                assert rewards[2 * k] == 1
                continue
            after = board.play(column)
            if any(after.wins(reply) for reply in after.legal()):
                assert rewards[2 * k] == -1
                wins += 1
            elif not terminated[2 * k] and after.legal():
                mine = [reply for reply in after.legal() if Board(after.own ^ after.all, after.all).wins(reply)]
                now = board_of(obs[2 * k])
                if len(mine) == 1:
                    assert now.all == after.all | after.cell(mine[0])
                    blocks += 1
    assert wins > 10
    assert blocks > 10


# ---- benchmarks/connect4.py ----


def test_the_benchmark_judges_moves(solver):
    forced = Board.of("5554224333234511764415115")  # column 5 wins, all others lose
    facts = bench.judge(solver, [(forced, 5), (forced, 0), (forced, 5), (forced, 6)], thorough=True)
    assert (facts["positions"], facts["optimal"], facts["best"]) == (4, 0.5, 0.5)
    assert (facts["choices"], facts["optimal_in_choices"]) == (4, 0.5)
    assert bench.judge(solver, [(forced, 5), (forced, 0)])["optimal"] == 0.5
    slower = Board.of("52753311433677442422121")  # every move wins, column 4 fastest
    facts = bench.judge(solver, [(slower, 4), (slower, 3)], thorough=True)
    assert (facts["optimal"], facts["best"], facts["choices"]) == (1.0, 0.5, 0)
    lost = Board.of("2252576253462244111563365343671351441")
    assert bench.judge(solver, [(lost, 6)])["optimal"] == 1.0
    facts = bench.judge(solver, [(Board(), 3), (forced, 5)], budget=1000)
    assert (facts["positions"], facts["unsolved"]) == (1, 1)


def test_the_benchmark_counts_games_from_both_seats(tmp_path, solver):
    run = train_tiny("connect4", tmp_path, train={"total_steps": 256})
    player = bench.Contestant(str(run.folder), "last", greedy=True)
    for seat in (0, 1):
        played = player.play(40, seed=3, **{f"robot_{1 - seat}": "one_ply"})
        assert played.total == 40
        assert all(8 < part < 32 for part in map(sum, zip(played.won, played.drawn, played.lost)))
        assert sum(played.lost) > sum(played.won)
        stones = [board.stones for board, _ in played.moves]
        assert min(stones) == 0
        assert all(column in board.legal() for board, column in played.moves)
    against_itself = player.play(10, seed=3, opening_plies=2)
    assert against_itself.total == 20
    assert sum(against_itself.won) == sum(against_itself.lost)
    assert {board.stones for board, _ in against_itself.moves} >= {2, 3, 4, 5, 6, 7, 8}


def test_the_benchmark_refuses_a_run_of_another_env(tmp_path):
    run = train_tiny("squared", tmp_path, train={"total_steps": 128})
    with pytest.raises(ConfigError, match="not connect4"):
        bench.Contestant(str(run.folder), "last", greedy=True)
