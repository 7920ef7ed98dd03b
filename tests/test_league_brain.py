"""The league's decisions: matchmaking by hand, ratings against a slow ascent, snapshots, places, exploiters, resume."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from shoal import stats
from shoal.config import from_dict
from shoal.errors import CheckpointError, ConfigError
from shoal.league import matchmaking, ratings, snapshots
from shoal.league.league import BRAIN, AddSnapshot, DropMember, League, ResetExploiter, blank_counts, table_of
from shoal.league.options import MOST_MEMBERS, LeagueOptions
from shoal.league.payoff import DRAW, LOSS, WIN, Payoff
from shoal.league.table import CrossTable, Result

SIDES = 2


def league(*named, exploiters=0, total_steps=1000, sides=SIDES, **options):
    kinds = [(name, "robot") for name in named]
    chosen = LeagueOptions(**{"snapshot": 100, "exploiters": exploiters, **options})
    return League(chosen, sides=sides, total_steps=total_steps, named=kinds)


def counts(results, sides=SIDES):
    """Results by member: {member: [(wins, draws, losses) of each side]}."""
    out = blank_counts(sides)
    for member, by_side in results.items():
        out[member] = by_side
    return out


# ---- matchmaking ----


def shares(named=(), snaps=(), rates=(), **options):
    win_rates = dict(zip([*named, *snaps], rates))
    return matchmaking.probabilities(LeagueOptions(**options), named, snaps, win_rates)


def test_hard_members_are_preferred_as_in_pfsp():
    """(1 - x)^2 of 0.9, 0.5 and 0.2 is 0.01, 0.25 and 0.64."""
    probs = shares(snaps=(1, 2, 3), rates=(0.9, 0.5, 0.2), match="hard", latest=0.5)
    assert probs[:5] == pytest.approx([0.5, 0.5 * 0.01 / 0.9, 0.5 * 0.25 / 0.9, 0.5 * 0.64 / 0.9, 0.0])
    assert len(probs) == MOST_MEMBERS


def test_equal_members_are_preferred_by_variance():
    """x (1 - x) of 0.9, 0.5 and 0.2 is 0.09, 0.25 and 0.16."""
    probs = shares(snaps=(4, 2, 3), rates=(0.9, 0.5, 0.2), match="variance", latest=0.0)
    assert [probs[k] for k in (0, 4, 2, 3)] == pytest.approx([0.0, 0.18, 0.5, 0.32])


def test_a_window_holds_the_newest_snapshots():
    probs = shares(named=(1,), snaps=(2, 3, 4), rates=(0.5,) * 4, match="uniform", window=2, latest=0.4)
    assert probs[:5] == pytest.approx([0.4, 0.2, 0.0, 0.2, 0.2])


def test_named_members_have_their_share():
    probs = shares(named=(1, 2), snaps=(3,), rates=(0.5, 0.5, 0.9), match="uniform", share=0.3, latest=0.5)
    assert probs[:4] == pytest.approx([0.5, 0.15, 0.15, 0.2])


def test_the_latest_weights_have_what_snapshots_do_not_take_yet():
    assert shares(latest=0.2)[0] == 1.0
    assert shares(named=(1,), rates=(0.5,), latest=0.2, share=0.3)[:2] == pytest.approx([0.7, 0.3])
    assert shares(named=(1,), rates=(0.5,), latest=0.0, share=1.0)[:2] == pytest.approx([0.0, 1.0])


@pytest.mark.parametrize("latest", [k / 100 for k in range(101)])
def test_shares_that_sum_to_one_leave_nothing_below_zero(latest):
    probs = shares(named=(1,), snaps=(2, 3), rates=(0.5,) * 3, latest=latest, share=round(1.0 - latest, 2))
    assert min(probs) >= 0.0
    assert sum(probs) == pytest.approx(1.0)


def test_members_that_never_win_are_still_drawn():
    assert sum(shares(snaps=(1, 2), rates=(1.0, 1.0), match="hard")[1:]) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"latest": 0.8, "share": 0.4}, "sum to 1.2"),
        ({"members": ("seek", "seek")}, "names 'seek' twice"),
        ({"pool": 3, "members": ("seek", "flee")}, "no place for 2 named members"),
        ({"pool": 65}, "above 64"),
        ({"pool": 1}, "below 2"),
        ({"match": "hardest"}, "Did you mean 'hard'?"),
        ({"latest": -0.1}, "below 0.0"),
        ({"every": 0}, "below 1"),
        ({"snapshots": 3}, "Did you mean 'snapshot'?"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, said):
    with pytest.raises(ConfigError) as caught:
        from_dict(LeagueOptions, options, "league")
    assert said in str(caught.value)


# ---- results ----


def test_win_rates_weigh_sides_alike_and_start_at_a_half():
    payoff = Payoff(SIDES, MOST_MEMBERS)
    assert payoff.win_rate(3) == 0.5
    payoff.add(0, {3: 7}, counts({3: [(8, 2, 0), (1, 0, 1)]}))
    assert payoff.win_rate(3) == pytest.approx(((8 + 1 + 1) / 12 + (1 + 1) / 4) / 2)
    payoff.fade(0.5)
    assert payoff.win_rate(3) == pytest.approx(((4 + 0.5 + 1) / 7 + (0.5 + 1) / 3) / 2)
    assert payoff.totals[0, 7].tolist() == [[8, 2, 0], [1, 0, 1]]  # ratings forget nothing


def test_a_snapshot_takes_over_the_games_of_the_learner():
    payoff = Payoff(1, MOST_MEMBERS)
    payoff.add(0, {0: 0, 1: 4}, counts({0: [(1, 0, 2)], 1: [(3, 0, 0)]}, 1))
    payoff.add_pair(9, 0, np.array([[5, 0, 1]]))
    payoff.rename(0, 6)
    assert {pair: cell.tolist() for pair, cell in payoff.totals.items()} == {
        (6, 6): [[1, 0, 2]],
        (6, 4): [[3, 0, 0]],
        (9, 6): [[5, 0, 1]],
    }


# ---- ratings ----


def ascend(points, steps, rate):
    """A slow twin of the fit: plain gradient ascent on the same posterior, game by game of the matrix."""
    count, precision = len(points), (ratings.ELO / ratings.PRIOR_ELO) ** 2
    r = [0.0] * count
    for _ in range(steps):
        slope = [-precision * value for value in r]
        for i in range(count):
            for j in range(count):
                if i != j:
                    missed = points[i][j] / (1.0 + math.exp(r[i] - r[j]))
                    slope[i] += missed
                    slope[j] -= missed
        r = [value + rate * change for value, change in zip(r, slope)]
    return r


def test_ratings_are_the_most_likely_ones():
    points = np.array([[0, 30, 9.5, 0], [10, 0, 12, 5], [2.5, 8, 0, 0], [0, 0, 0, 0]])
    slow = ascend(points.tolist(), steps=15000, rate=0.03)
    fitted = ratings.fit(points, anchor=2)
    assert [rating.elo for rating in fitted] == pytest.approx([ratings.ELO * (r - slow[2]) for r in slow], abs=1e-3)
    assert fitted[2].ci95 == 0.0
    assert [rating.games for rating in fitted] == [52, 65, 32, 5]


def test_two_players_have_the_classic_interval():
    """With many games the prior fades: r = log(3), and its variance is 1 / (n p (1 - p))."""
    first, second = ratings.fit(np.array([[0, 7500.0], [2500.0, 0]]), anchor=1)
    assert first.elo == pytest.approx(400 * math.log10(3), abs=0.5)
    assert first.ci95 == pytest.approx(1.96 * ratings.ELO / math.sqrt(10000 * 0.75 * 0.25), rel=0.01)
    assert second.elo == 0.0
    assert ratings.expected_score(first.elo, second.elo) == pytest.approx(0.75, abs=1e-3)


def test_intervals_hold_the_truth_in_about_95_of_100_leagues():
    rng, truth = np.random.default_rng(1), np.array([0.0, 100.0, 250.0])
    inside = total = 0
    for _ in range(200):
        points = np.zeros((3, 3))
        for i in range(3):
            for j in range(i):
                wins = rng.binomial(60, ratings.expected_score(truth[i], truth[j]))
                points[i, j], points[j, i] = wins, 60 - wins
        for rating, true in list(zip(ratings.fit(points), truth))[1:]:
            inside, total = inside + (rating.low <= true <= rating.high), total + 1
    assert 0.91 < inside / total < 0.985


def test_a_player_that_never_lost_has_a_finite_rating():
    rating, _ = ratings.fit(np.array([[0, 10000.0], [0, 0]]), anchor=1)
    assert 1000 < rating.elo < 3000
    assert rating.ci95 > 100


def test_ratings_do_not_depend_on_the_anchor_but_for_a_shift():
    points = np.array([[0, 30, 9.5], [10, 0, 12], [2.5, 8, 0]])
    one, other = ratings.fit(points, 0), ratings.fit(points, 1)
    assert one[2].elo - one[1].elo == pytest.approx(other[2].elo - other[1].elo)


def test_a_fall_beyond_both_intervals_is_seen():
    steady = [ratings.Rating(elo, 10.0, 1) for elo in (0.0, 30.0, 15.0, 60.0)]
    assert ratings.rises(steady)
    assert not ratings.rises([*steady, ratings.Rating(30.0, 5.0, 1)])


@pytest.mark.parametrize("low", [True, False])
@pytest.mark.parametrize(("count", "trials"), [(0, 10), (3, 10), (50, 1000), (10, 10)])
def test_wilson_is_where_the_score_test_turns(count, trials, low):
    """Its ends are the probabilities p at which |share - p| = 1.96 sqrt(p (1 - p) / n), found by bisection."""
    share, z = count / trials, 1.959963984540054
    inner, outer = share, 0.0 if low else 1.0
    for _ in range(200):
        middle = 0.5 * (inner + outer)
        is_inside = abs(share - middle) <= z * math.sqrt(middle * (1.0 - middle) / trials)
        inner, outer = (middle, outer) if is_inside else (inner, middle)
    assert stats.wilson(count, trials)[0 if low else 1] == pytest.approx(inner, abs=1e-9)


def test_without_trials_nothing_is_known():
    assert stats.wilson(0, 0) == (0.0, 1.0)


# ---- tables ----


def test_a_table_shows_a_pair_from_both_views():
    cells = {(0, 1): np.array([[5, 1, 2], [3, 0, 4]])}
    table = CrossTable(("a", "b"), cells, 2)
    assert table.result(0, 1) == Result(8, 1, 6)
    assert table.result(1, 0) == Result(6, 1, 8)
    assert table.result(0, 1, side=0) == Result(5, 1, 2)
    assert table.result(1, 0, side=1) == Result(2, 1, 5)  # b is on side 1 where a is on side 0
    assert table.points().tolist() == [[0.0, 8.5], [6.5, 0.0]]
    assert table.order() == [0, 1]
    facts = table.facts()
    assert facts["results"][0]["by_side"][1]["losses"] == 4
    assert facts["results"][0]["win_rate_ci95"] == list(stats.wilson(8, 15))


# ---- snapshots ----


def test_the_pool_keeps_a_spread_over_the_history():
    steps = []
    for step in range(1, 101):
        steps.append(step)
        if len(steps) > 8:
            steps.pop(snapshots.choose_dropped(steps, keeps_first=True))
    assert steps[0] == 1
    assert steps[-1] == 100
    gaps = np.diff(steps)
    assert gaps.max() <= 33  # even spacing would have gaps of 14
    assert sum(step <= 50 for step in steps) >= 3


def test_the_dropped_one_has_the_nearest_neighbours():
    """Against all candidates, one by one: no other drop leaves a smaller largest closeness."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        steps = sorted(rng.choice(1000, 6, replace=False).tolist())
        dropped = snapshots.choose_dropped(steps, keeps_first=True)
        gap_of = {k: steps[k + 1] - steps[k - 1] for k in range(1, 5)}
        assert gap_of[dropped] == min(gap_of.values())


def test_snapshots_come_by_steps_and_by_win_rate():
    options = LeagueOptions(snapshot=1000, win_rate=0.6)
    since = blank_counts(1)
    assert not snapshots.is_due(options, 10**6, 999, 0, since)
    assert snapshots.is_due(options, 10**6, 1000, 0, since)
    since[0] = [(1000, 0, 0)]  # the latest weights do not count
    since[1], since[2] = [(150, 0, 30)], [(9, 0, 10)]
    assert not snapshots.is_due(options, 10**6, 500, 0, since)  # 199 games
    since[2] = [(10, 0, 10)]
    assert snapshots.is_due(options, 10**6, 500, 0, since)  # (0.83 + 0.5) / 2
    since[2] = [(5, 0, 15)]
    assert not snapshots.is_due(options, 10**6, 500, 0, since)  # (0.83 + 0.25) / 2


def test_without_an_interval_the_run_fills_the_pool():
    assert snapshots.interval(LeagueOptions(pool=32), 64_000) == 2000
    assert snapshots.interval(LeagueOptions(pool=32, snapshot=5), 64_000) == 5


# ---- the league ----


def test_snapshots_take_free_places_and_robots_stay():
    t = league("seek", "flee", pool=7)
    t.observe(counts({m: [(2, 1, 1), (1, 0, 1)] for m in t.members}))
    seen = []
    for step in range(100, 2100, 100):
        seen += t.after_iteration(step)
        t.observe(counts({m: [(2, 1, 1), (1, 0, 1)] for m in t.members}))
    assert seen[:4] == [AddSnapshot(place, f"step {step}") for place, step in zip((3, 4, 5, 6), (100, 200, 300, 400))]
    dropped = {action.member for action in seen if isinstance(action, DropMember)}
    assert dropped <= {3, 4, 5, 6}
    assert len([action for action in seen if isinstance(action, AddSnapshot)]) == 20
    assert [t.members[k].name for k in (0, 1, 2)] == ["latest", "seek", "flee"]
    assert set(t.members) <= set(range(7))


def test_without_robots_the_first_snapshot_is_the_anchor_and_stays():
    t = league(pool=5)
    for step in range(100, 3000, 100):
        t.after_iteration(step)
        t.observe(blank_counts(SIDES))
    assert t.anchor().name == "step 100"
    assert "step 100" in {player.name for player in t.members.values()}


def test_a_place_is_free_after_its_last_game_only():
    """The member of a retired snapshot plays on in one env: no snapshot takes its place before that game ends."""
    t = league(pool=4)
    for step in (100, 200):
        t.after_iteration(step)
    assert t.after_iteration(300) == [AddSnapshot(3, "step 300"), DropMember(2)]
    assert t.probs()[2] == 0.0
    playing = np.zeros(MOST_MEMBERS, np.int64)
    playing[2] = 1
    t.observe(counts({2: [(1, 0, 0), (0, 0, 0)]}), playing)  # its games still count, for the player that it is
    assert t.payoff.totals[0, 2].sum() == 1
    assert t.after_iteration(400) == []
    playing[2] = 0
    t.observe(blank_counts(SIDES), playing)
    assert t.after_iteration(408) == [AddSnapshot(2, "step 408"), DropMember(3)]
    assert t.payoff.recent[2].sum() == 0  # another player has the place


def test_the_smallest_pool_has_one_snapshot_at_a_time():
    t = league(pool=2)
    assert t.after_iteration(100) == [AddSnapshot(1, "step 100")]
    assert t.after_iteration(200) == [DropMember(1)]
    assert t.after_iteration(201) == []
    t.observe(blank_counts(SIDES))
    assert t.after_iteration(202) == [AddSnapshot(1, "step 202")]


def test_the_games_before_a_snapshot_are_asked_for():
    t = league(pool=3)
    assert [t.is_due(step) for step in (99, 100)] == [False, True]
    t.after_iteration(100)
    assert not t.is_due(150)
    t.after_iteration(200)  # the pool is full: the first one is retired, and its place is not free before `observe`
    assert not t.is_due(300)
    t.observe(blank_counts(SIDES))
    assert t.is_due(300)


def test_who_played_nobody_else_is_not_rated():
    t = league("seek")
    t.observe(counts({0: [(5, 0, 5), (5, 0, 5)]}))
    assert t.table().names == ("seek",)
    assert "league/rating" not in t.metrics()
    t.observe(counts({1: [(5, 0, 5), (5, 0, 5)]}))
    assert t.table().names == ("latest", "seek")
    assert t.metrics()["league/rating"] == pytest.approx(0.0, abs=1e-6)


def test_probabilities_are_computed_only_where_something_changed():
    t = league("seek")
    first = t.probs()
    assert t.after_iteration(50) == []
    assert t.probs() is first
    t.observe(counts({1: [(5, 0, 0), (5, 0, 0)]}))
    t.after_iteration(100)
    assert t.probs() is not first
    assert t.probs()[2] > t.probs()[1] > 0.0


def test_many_players_are_rated_in_every_log_by_the_pool_alone():
    t = league("seek", pool=6)
    for step in range(100, 20_000, 100):
        t.observe(counts({member: [(2, 0, 1), (2, 0, 1)] for member in t.members}))
        t.after_iteration(step)
    assert len(t.table().names) == 200
    few = t.table(most=128).names
    assert len(few) <= 6
    assert "seek" in few
    assert t.metrics()["league/rating"] > 0


def test_exploiters_play_the_latest_weights_join_and_start_anew():
    t = league(exploiters=2, pool=8, snapshot=10**6, exploiter_reset=300, total_steps=10**6)
    assert t.probs(1) == [1.0] + [0.0] * 63
    results = np.stack([blank_counts(SIDES)] * 3)
    results[1, 0], results[2, 0] = [(80, 0, 20), (80, 0, 20)], [(60, 0, 40), (50, 20, 30)]
    t.observe(results)
    assert t.metrics()["league/exploiter_1_win_rate"] == pytest.approx(0.8)
    assert t.metrics()["league/exploiter_2_win_rate"] == pytest.approx(0.6)
    assert t.after_iteration(100) == [AddSnapshot(1, "exploiter 1, step 100", 1), ResetExploiter(1, 1)]
    assert "league/exploiter_1_win_rate" not in t.metrics()
    assert t.after_iteration(299) == []
    assert t.after_iteration(300) == [AddSnapshot(2, "exploiter 2, step 300", 2), ResetExploiter(2, 1)]
    t.observe(results)
    assert t.after_iteration(400)[1] == ResetExploiter(1, 2)
    assert t.probs()[0] == pytest.approx(0.5)
    assert sum(t.probs()[1:4]) == pytest.approx(0.5)  # the main learner meets them


def test_exploiters_are_rated_by_the_main_learners_games_alone():
    """In its own games an exploiter gets stronger: as one player they would pull down whoever met it late."""
    t = league("seek", exploiters=1, exploiter_reset=50)
    t.after_iteration(60)
    results = np.stack([counts({1: [(5, 0, 5)] * 2, 2: [(9, 0, 1)] * 2}), counts({0: [(99, 0, 1)] * 2})])
    t.observe(results)
    table = t.table()
    assert table.names == ("latest", "exploiter 1, step 60", "seek")
    assert table.result(1, 0) == Result(2, 0, 18)
    assert t.metrics()["league/games"] == 40


def test_exploiters_and_snapshots_share_a_full_pool():
    t = league(exploiters=1, pool=9, snapshot=100, exploiter_reset=100, total_steps=10**6)
    for step in range(100, 5000, 100):
        t.after_iteration(step)
        t.observe(np.stack([blank_counts(SIDES)] * 2))
    kinds = [player.kind for place, player in t.members.items() if place not in t.retired]
    assert kinds.count("snapshot") >= 3
    assert kinds.count("exploiter") >= 3


def simulate(t, truth, steps, rng, games=400):
    """A learner that gets stronger, against members whose strength stays: {name: Elo}."""
    for step in steps:
        now = truth["learner"](step)
        results = blank_counts(SIDES)
        for member, share in enumerate(t.probs()):
            if member in t.members and share > 0:
                other = now if member == 0 else truth[t.members[member].name]
                for side in range(SIDES):
                    n = int(games * share / SIDES)
                    wins = rng.binomial(n, ratings.expected_score(now, other))
                    results[member, side] = (wins, 0, n - wins)
        t.observe(results)
        for action in t.after_iteration(step):
            if isinstance(action, AddSnapshot):
                truth[action.name] = now


def test_ratings_of_snapshots_follow_a_learner_that_improves():
    truth = {"learner": lambda step: step / 4.0, "seek": 0.0}
    t = league("seek", pool=12, snapshot=200, match="variance")
    simulate(t, truth, range(20, 2001, 20), np.random.default_rng(3))
    table = t.table()
    rated = dict(zip(table.names, table.ratings()))
    snaps = [rated[f"step {step:,}"] for step in range(200, 2001, 200)]
    assert ratings.rises(snaps)
    assert snaps[-1].elo > snaps[0].elo + 200
    # games before a snapshot were played by weaker weights: its rating is theirs on average, 25 Elo below
    errors = [rating.elo - truth[f"step {200 * (k + 1):,}"] for k, rating in enumerate(snaps)]
    assert max(map(abs, errors)) < 110
    assert t.metrics()["league/rating"] == pytest.approx(rated["step 2,000"].elo)  # it has not played since
    assert 0.5 < t.metrics()["league/win_rate"] < 0.95


def test_a_league_resumes_to_the_bit():
    def play(t, steps, rng):
        for step in steps:
            results = {member: rng.integers(0, 9, (SIDES, 3)).tolist() for member in sorted(t.members)}
            t.observe(counts(results), rng.integers(0, 2, 64))
            t.after_iteration(step)

    whole, rng = league("seek", pool=6), np.random.default_rng(5)
    play(whole, range(50, 1500, 50), rng)
    state = whole.state()
    resumed = league("seek", pool=6)
    assert resumed.load_state(state) == []
    ahead = np.random.default_rng(6), np.random.default_rng(6)
    play(whole, range(1500, 2500, 50), ahead[0])
    play(resumed, range(1500, 2500, 50), ahead[1])
    assert resumed.probs() == whole.probs()
    assert resumed.metrics() == whole.metrics()
    assert bytes(resumed.state()[BRAIN].numpy()) == bytes(whole.state()[BRAIN].numpy())


def test_exploiters_resume_too():
    first = league(exploiters=1, exploiter_reset=300)
    first.observe(np.stack([counts({0: [(3, 1, 2), (4, 0, 1)]})] * 2))
    first.after_iteration(350)
    second = league(exploiters=1, exploiter_reset=300)
    second.load_state(first.state())
    assert second.exploiters[0].began == 350
    assert bytes(second.state()[BRAIN].numpy()) == bytes(first.state()[BRAIN].numpy())
    with pytest.raises(CheckpointError, match="--league.exploiters 1"):
        league().load_state(first.state())


def test_members_that_are_named_later_find_a_place():
    before = league("seek", pool=6)
    before.after_iteration(100)
    after = league("seek", "flee", pool=6)
    assert after.load_state(before.state()) == [3]
    assert [after.members[k].name for k in (1, 2, 3)] == ["seek", "step 100", "flee"]
    fewer = league(pool=6)
    assert fewer.load_state(before.state()) == []
    assert fewer.probs()[1] == 0.0  # seek is no longer named


def test_a_checkpoint_without_a_league_says_so():
    with pytest.raises(CheckpointError, match="Train with --league"):
        league().load_state({})
    with pytest.raises(CheckpointError, match="2 sides, but this env has 4"):
        league(sides=4).load_state(league().state())
    broken = league().state()
    broken[BRAIN] = broken[BRAIN][:-5]
    with pytest.raises(CheckpointError, match="damaged"):
        league().load_state(broken)


def test_the_table_of_a_checkpoint_is_that_of_the_league():
    t = league("seek", exploiters=1)
    t.observe(np.stack([counts({0: [(3, 1, 2), (4, 0, 1)], 1: [(9, 1, 2), (8, 0, 1)]})] * 2))
    t.after_iteration(100)
    table, own = table_of(t.state()), t.table()
    assert table.facts() == own.facts()
    assert table.names[table.anchor] == "seek"
    assert table.result(table.names.index("step 100"), table.anchor) == Result(17, 1, 3)


def test_the_table_of_a_checkpoint_has_games_that_the_league_has_not_seen_yet():
    t = league("seek")
    t.observe(counts({1: [(9, 1, 2), (8, 0, 1)]}))
    pending = torch.from_numpy(counts({1: [(1, 0, 0), (0, 0, 2)]}))[None]
    table = table_of({**t.state(), "league.counts": pending})
    assert table.result(0, 1) == Result(18, 1, 5)
    assert t.table().result(0, 1) == Result(17, 1, 3)


def test_names_are_shown_without_folders_unless_they_would_be_equal():
    t = league("/a/mine.py:One", "/a/mine.py:Two", "/b/mine.py:Two")
    t.observe(counts({member: [(1, 0, 1), (1, 0, 1)] for member in (1, 2, 3)}))
    assert t.table().names == ("latest", "mine.py:One", "/a/mine.py:Two", "/b/mine.py:Two")


def test_a_pool_without_ratings_shows_none():
    t = League(LeagueOptions(), sides=SIDES, total_steps=100, is_rated=False)
    t.observe(counts({0: [(1, 0, 1), (1, 0, 1)]}))
    assert "league/rating" not in t.metrics()
    assert t.metrics()["league/games"] == 4


def test_outcomes_are_ordered():
    assert (WIN, DRAW, LOSS) == (0, 1, 2)
