"""vacuum: every rule against a slow twin, the rules of note one by one, presets, scripted robots, both semantics."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from shoal import registry
from shoal.conformance import Subject, check_sanitizers, run_checks
from shoal.errors import ShoalError
from shoal.native import build, cuda, lib
from shoal.vector.play import play

from .checks import QUICK, use_checks
from .vacuum_twin import ROBOTS, Twin

UP, DOWN, LEFT, RIGHT, STAY = range(5)
SPEC = lib.load(registry.find("vacuum")).spec
PRESETS = [preset.name for preset in SPEC.presets]
CONSTS = {const.name: const.default for const in SPEC.consts}
DEFAULTS = {p.name: int(p.default) if p.kind == "int" else p.default for p in SPEC.params}


# ---- against the twin ----

SIZES = {
    "classic": {},
    "crowd": {"side": 3, "robots": 8, "chargers": 4, "timers": 1},
    "duel": {"side": 4, "robots": 2, "moves": 2, "timers": 1},
    "dusty": {"robots": 3, "chargers": 2, "dust": 1, "see_dust": 1},
    "alone": {"side": 2, "robots": 1, "moves": 3},
    "hall": {"side": 16, "robots": 5, "chargers": 3, "dust": 1},
}


def random_params(rng, consts, max_steps):
    """Numbers that make things happen soon: little energy, strong hits, every mode, every kind of robot."""

    def halves(low, high):
        return float(rng.integers(2 * low, 2 * high + 1)) / 2

    params = {
        "max_steps": int(max_steps),
        "e_move": halves(0, 3),
        "e_charge": halves(0, 12),
        "e_boundary": halves(0, 12),
        "e_decay": halves(0, 2),
        **{name: int(rng.integers(2)) for name in ("e_move_always", "exclusive", "before_cap", "order", "semantics")},
        "cap": int(rng.integers(3)),
        "start": int(rng.integers(3)),
        "layout": int(rng.integers(2)),
        "charger_range": int(rng.integers(3)),
        "reward_energy": 0.05,
        "reward_charge": halves(0, 20),
        "reward_death": -halves(0, 100),
        "reward_dust": 0.05,
        "alliance": int(rng.integers(256)) if rng.random() < 0.4 else 0,
    }
    for k in range(4):
        for axis in "yx":
            params[f"charger_{axis}_{k}"] = int(rng.integers(-1, consts["side"]))
    for k in range(8):
        params |= {f"energy_{k}": max(halves(0, 60), 0.5), f"attack_{k}": halves(0, 25)}
        params |= {f"speed_{k}": int(rng.integers(1, 4)) if rng.random() < 0.3 else 1}
        params |= {f"stun_{k}": int(rng.integers(4)), f"dock_{k}": int(rng.integers(3))}
        params |= {f"robot_{k}": int(rng.integers(len(ROBOTS))) if rng.random() < 0.6 else 0}
    return params


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", range(3))
def test_every_rule_equals_the_slow_twin(size, seed):
    """Random rules in every env, and the same bytes of everything that is shown, through many episodes."""
    rng, consts, num_envs = np.random.default_rng(1000 * seed), CONSTS | SIZES[size], 12
    all_params = [random_params(rng, consts, rng.integers(0, 60)) for _ in range(num_envs)]
    assert set(all_params[0]) == set(DEFAULTS)
    given = {name: np.array([params[name] for params in all_params]) for name in DEFAULTS}
    vec = shoal.make("vacuum", num_envs, **SIZES[size], **given)
    twins = [Twin(consts, params, seed=50 + k) for k, params in enumerate(all_params)]
    agents, stats = vec.agents_per_env, [stat.name for stat in vec.native_spec.stats]
    obs, infos = vec.reset(seed=50)
    for k, twin in enumerate(twins):
        compare(twin.view(), obs, infos, slice(k * agents, (k + 1) * agents))
    ended = 0
    for _ in range(150):
        actions = rng.integers(0, vec.single_action_space.n, vec.num_rows)
        obs, rewards, terminated, truncated, infos = vec.step(actions)
        for k, twin in enumerate(twins):
            rows = slice(k * agents, (k + 1) * agents)
            shown = twin.step(actions[rows].tolist())
            compare(shown, obs, infos, rows)
            assert rewards[rows].tobytes() == np.array(shown["rewards"], np.float32).tobytes()
            assert terminated[rows].tolist() == shown["terminated"]
            assert truncated[rows].tolist() == shown["truncated"]
            for agent, (final_obs, total, length) in shown["final"].items():
                row = k * agents + agent
                assert infos["final_obs"][row].tobytes() == final_obs.tobytes()
                assert infos["final_info"]["episode"]["r"][row] == total
                assert infos["final_info"]["episode"]["l"][row] == length
            if shown["stats"] is not None:
                ended += 1
                found = {name: vec.memory.arrays["final_stats"][number, k] for number, name in enumerate(stats)}
                assert found == shown["stats"]
    assert ended > num_envs / 2


def compare(shown, obs, infos, rows):
    assert obs[rows].tobytes() == np.array(shown["obs"]).tobytes()
    if len(shown["alive"]) > 1:
        assert infos["alive"][rows].tolist() == shown["alive"]
    assert infos["action_mask"][rows].tolist() == shown["masks"]


# ---- rules of note, one at a time ----

QUIET = {"e_move": 0.0, "e_boundary": 0.0, "e_charge": 0.0, "reward_charge": 0.0}  # nothing costs, nothing feeds


class Game:
    """One env, and where its robots are."""

    def __init__(self, **options):
        self.vec = shoal.make("vacuum", 1, **options)
        self.obs, self.infos = self.vec.reset(seed=0)
        self.robots, self.side = self.vec.agents_per_env, self.consts["side"]
        self.top = max(float(self.vec.get_params()[f"energy_{k}"][0]) for k in range(self.robots))

    @property
    def consts(self):
        return {const.name: const.default for const in self.vec.native_spec.consts}

    def step(self, *moves):
        self.obs, self.rewards, self.terminated, self.truncated, self.infos = self.vec.step(np.array(moves))
        return self

    @property
    def places(self):
        """(y, x) of every robot that is in the game."""
        cells = np.rint(self.obs[:, :2] * (self.side - 1)).astype(int)
        return [(int(y), int(x)) if alive else None for (x, y), alive in zip(cells, self.vec.alive)]

    @property
    def hits(self):
        """In this episode."""
        names = [stat.name for stat in self.vec.native_spec.stats]
        return sum(self.vec.memory.arrays["stats"][names.index(f"hits_{where}_charger"), 0] for where in ("on", "off"))

    @property
    def energies(self):
        return [round(float(e) * self.top, 3) for e in self.obs[:, 2]]


def test_actions_are_up_down_left_right_and_stay():
    game = Game(robots=1, side=3, **QUIET)
    places = [game.step(move).places[0] for move in (DOWN, RIGHT, UP, LEFT, STAY)]
    assert places == [(1, 0), (1, 1), (0, 1), (0, 0), (0, 0)]


def test_robots_start_in_the_corners_and_then_on_the_edges():
    game = Game(robots=8, side=5)
    assert game.places == [(0, 0), (0, 4), (4, 0), (4, 4), (0, 2), (2, 0), (2, 4), (4, 2)]


def test_a_hit_pushes_the_victim_and_the_attacker_moves_in():
    game = Game(robots=2, side=5, **QUIET)
    game.step(RIGHT, LEFT).step(RIGHT, STAY)  # robot 0 at (0, 2), robot 1 at (0, 3)
    game.step(RIGHT, STAY)
    assert game.places == [(0, 3), (0, 4)]
    assert game.energies == [1000, 80]


def test_at_the_wall_both_stay_and_the_hit_counts():
    game = Game(robots=2, side=3, **QUIET)
    game.step(RIGHT, STAY).step(RIGHT, STAY)
    assert game.places == [(0, 1), (0, 2)]
    assert game.energies == [1000, 80]


def test_a_push_does_not_go_on_through_a_third_robot():
    """Three in a row at the wall: the one in the middle is hit, and nobody moves."""
    game = Game(robots=3, side=3, **QUIET)  # (0, 0), (0, 2), (2, 0)
    game.step(STAY, STAY, UP)  # (1, 0)
    game.step(STAY, STAY, UP)  # robot 2 hits robot 0, which stands at the wall
    assert game.places == [(0, 0), (0, 2), (1, 0)]
    assert game.energies == [980, 100, 100]
    game = Game(robots=3, side=4, start="corner", **QUIET)  # (0, 0), (0, 3), (3, 0)
    game.step(RIGHT, STAY, UP).step(RIGHT, STAY, UP)  # robot 0 beside robot 1
    game.step(STAY, STAY, UP).step(STAY, STAY, RIGHT)  # robot 2 behind robot 0
    assert game.places == [(0, 2), (0, 3), (0, 1)]
    game.step(STAY, STAY, RIGHT)
    assert game.places == [(0, 2), (0, 3), (0, 1)]
    assert game.energies == [980, 100, 100]


def test_a_robot_that_is_out_leaves_its_cell():
    game = Game(robots=2, side=3, energy_1=20.0, **QUIET)
    game.step(RIGHT, STAY).step(RIGHT, STAY)
    assert game.places == [(0, 1), None]
    assert game.terminated.tolist() == [False, True]
    assert game.step(RIGHT, STAY).places == [(0, 2), None]
    assert not game.obs[1].any()
    assert game.obs[0, 3:6].tolist() == [0, 0, 0]


@pytest.mark.parametrize("attacker", [0, 3])
@pytest.mark.parametrize("semantics", ["joint", "turn"])
def test_a_death_is_charged_once_and_at_once_whoever_s_turn_it_is(attacker, semantics):
    """The attacker comes before or after its victim: the victim's return is all its energy and one death."""
    names = {f"energy_{k}": 100.0 for k in range(4)}
    game = Game(side=3, semantics=semantics, max_steps=0, **names, attack_0=50.0, attack_3=50.0, **QUIET)
    way = {0: [RIGHT] * 4, 3: [UP] * 4}[attacker]  # both go for robot 1 in its corner
    total, out = np.zeros(4), []
    for move in way:
        for _ in range(4 if semantics == "turn" else 1):
            game.step(*(move if k == attacker else STAY for k in range(4)))
            total += game.rewards
            out += [game.terminated.nonzero()[0].tolist()] if game.terminated.any() else []
    assert out == [[1]]
    assert total.tolist() == [0, pytest.approx(-105), 0, 0]


def test_mutual_destruction_pays_both():
    """Robot 0 kills robot 1 with its last strength: it acts before it dies of decay."""
    game = Game(robots=2, side=3, energy_0=2.0, energy_1=4.0, e_decay=1.0, **QUIET)
    game.step(RIGHT, STAY)
    game.step(RIGHT, STAY)
    assert game.terminated.tolist() == [True, True]
    assert game.rewards.tolist() == pytest.approx([-100.05, -100.15])
    stats = game.vec.drain_stats()
    assert (stats["deaths_by_robot"]["mean"], stats["deaths_by_hunger"]["mean"], stats["kills_0"]["mean"]) == (1, 1, 1)


def test_the_classic_costs():
    """-50 for the wall, -1 for every turn, +20 and a reward of 20 on the charger."""
    game = Game(robots=1, energy_0=500.0)
    assert game.step(UP).energies == [449]
    assert game.step(STAY).energies == [448]
    for move in (DOWN, DOWN, RIGHT):
        game.step(move)
    assert game.energies == [445]
    assert game.step(RIGHT).energies == [464]
    assert game.rewards[0] == pytest.approx(20 + 0.05 * 19)


def test_e_move_may_be_due_for_tries_alone():
    game = Game(robots=1, e_move_always=0, e_move=2.0, e_boundary=5.0, energy_0=100.0)
    assert game.step(STAY).energies == [100]
    assert game.step(RIGHT).energies == [98]
    assert game.step(UP).energies == [91]  # a try that ends at the wall costs too


def test_speed_gives_sub_moves_with_one_decay():
    game = Game(robots=1, side=6, moves=2, speed_0=2, energy_0=100.0, e_decay=3.0, e_move_always=0)
    assert game.step(DOWN + 5 * RIGHT).places == [(1, 1)]
    assert game.energies == [95]
    game = Game(robots=1, side=6, speed_0=3, **QUIET)
    assert game.step(DOWN).places == [(3, 0)]  # one choice, repeated


def test_stun_makes_the_victim_stay_for_so_many_turns():
    game = Game(robots=2, side=5, timers=1, stun_0=2, **QUIET)
    game.step(RIGHT, LEFT).step(RIGHT, STAY).step(RIGHT, STAY)  # a hit: robot 1 pushed to (0, 4)
    assert game.infos["action_mask"][1].tolist() == [0, 0, 0, 0, 1]
    # it was stunned in the very step of the hit, before its turn: one turn is over
    assert game.obs[1, -5] == pytest.approx(0.1)
    assert game.step(LEFT, DOWN).places[1] == (0, 4)
    assert game.infos["action_mask"][1].all()
    assert game.step(LEFT, DOWN).places[1] == (1, 4)


def test_docking_takes_turns_and_a_hit_or_leaving_starts_it_anew():
    game = Game(robots=1, side=3, chargers=1, dock_0=2, energy_0=100.0, cap="none", e_move=0.0, timers=1)
    game.step(DOWN)
    energies = [game.step(move).energies[0] for move in (RIGHT, STAY, STAY, LEFT, RIGHT, STAY, STAY)]
    assert energies == [100, 100, 120, 120, 120, 120, 140]
    # robot 1 stands on the charger in its corner; a hit does not move it, but makes it dock anew
    game = Game(robots=2, side=3, charger_y_0=0, charger_x_0=2, dock_1=2, attack_0=1.0, e_move=0.0, timers=1)
    game.step(RIGHT, STAY).step(STAY, STAY)
    assert game.obs[1, -4] == pytest.approx(0.2)
    game.step(RIGHT, STAY)
    assert game.obs[1, -4] == pytest.approx(0.1)
    assert game.energies[1] == 99


def test_charge_is_shared_by_those_in_reach_or_given_to_none():
    reach = {"robots": 2, "side": 3, "charger_range": 1, "e_move": 0.0, "cap": "none"}
    assert Game(**reach).step(STAY, STAY).energies == [1010, 110]
    assert Game(**reach, exclusive=1).step(STAY, STAY).energies == [1000, 100]
    assert Game(**reach, exclusive=1, attack_0=100.0).step(RIGHT, STAY).step(RIGHT, STAY).energies[0] == 1020


@pytest.mark.parametrize(
    ("cap", "energies"), [("global", [1000, 120]), ("own", [1000, 100]), ("none", [1020, 120])], ids=str
)
def test_caps(cap, energies):
    game = Game(robots=2, side=2, chargers=4, e_move=0.0, cap=cap)
    assert game.step(STAY, STAY).energies == energies


def test_without_a_bonus_the_return_telescopes_unless_energy_counts_before_the_cap():
    camp = {"robots": 1, "side": 2, "chargers": 4, "reward_charge": 0.0, "e_move_always": 0, "e_charge": 8.0}
    for before_cap, each in ((0, 0.0), (1, 0.375)):
        game = Game(**camp, e_decay=0.5, before_cap=before_cap)
        rewards = [float(game.step(STAY).rewards[0]) for _ in range(10)]
        assert rewards == pytest.approx([each] * 10)


def test_allies_do_no_harm_and_share_their_energy():
    game = Game(robots=3, side=3, alliance=0b101, energy_0=50.0, **QUIET)
    game.step(DOWN, STAY, STAY)
    game.step(DOWN, STAY, STAY)  # into its ally, robot 2
    assert game.places == [(1, 0), (0, 2), (2, 0)]
    assert game.energies == [75, 100, 75]
    assert game.rewards.tolist() == pytest.approx([1.25, 0, -1.25])
    assert game.hits == 0


def test_dust_grows_as_stated_and_is_taken():
    game = Game(robots=1, preset="dust", e_move=0.0, e_boundary=0.0, start="corner")
    for _ in range(12):
        game.step(STAY)
    dust = 10 * game.obs[0, -25:].reshape(5, 5)
    assert dust[4, 4] == pytest.approx(9.67, abs=0.01)
    assert dust[2, 2] == pytest.approx(2.5, abs=0.2)  # on the charger less
    before = float(dust[0, 1])
    game.step(RIGHT)
    assert game.rewards[0] == pytest.approx(0.05 * before)
    assert 10 * game.obs[0, -25 + 1] == pytest.approx(0.25)


def test_a_shuffled_order_is_fair():
    """Two robots go for one cell: the first one there is as often the one as the other."""
    vec = shoal.make("vacuum", 4096, robots=2, side=3, order="shuffled", start="corner", **QUIET)
    vec.reset(seed=0)
    obs = vec.step(np.tile([RIGHT, LEFT], 4096))[0]
    first = (obs[::2, 0] == 0.5).mean()  # robot 0 in the middle of the row; the other pushed it out if it came later
    assert 0.4 < first < 0.6
    fixed = shoal.make("vacuum", 4, robots=2, side=3, **QUIET)
    fixed.reset(seed=0)
    assert len(np.unique(fixed.step(np.tile([RIGHT, LEFT], 4))[0][::2, 0])) == 1


def test_random_starts_are_everywhere_and_never_shared():
    vec = shoal.make("vacuum", 4096, start="random")
    obs, _ = vec.reset(seed=0)
    cells = np.rint(obs[:, 0] * 4 + 5 * np.rint(obs[:, 1] * 4)).astype(int).reshape(4096, 4)
    assert (np.diff(np.sort(cells, 1), axis=1) > 0).all()
    counts = np.bincount(cells.ravel(), minlength=25)
    assert counts.min() > 0.8 * counts.mean()
    thief, _ = shoal.make("vacuum", 64, start="thief").reset(seed=0)
    assert (thief[3::4, :2] == 0.5).all()
    assert len(np.unique(thief[0::4, :2], axis=0)) > 10


# ---- what is seen ----


def test_the_classic_observation():
    game = Game()
    assert game.obs.shape == (4, 18)
    expected = [0, 0, 1, 1, 0, 0.1, 0, 1, 0.1, 1, 1, 0.1, 0.5, 0.5, 0, 1, 0, 1]
    assert game.obs[0].tolist() == pytest.approx(expected)
    expected = [1, 1, 0.1, -1, -1, 1, 0, -1, 0.1, -1, 0, 0.1, -0.5, -0.5, 1, 0, 1, 0]
    assert game.obs[3].tolist() == pytest.approx(expected)


def test_the_walls_layout():
    game = Game(layout="walls")
    expected = [0, 0, 1, 1, 0, 1, 0, 1, 0, 0.1, 0, 1, 0.1, 1, 1, 0.1, 0.5, 0.5]
    assert game.obs[0].tolist() == pytest.approx(expected)


def test_a_robot_in_the_way_is_not_free_and_no_wall():
    game = Game(robots=2, side=3, **QUIET).step(RIGHT, STAY)
    assert game.obs[0, -4:].tolist() == [0, 1, 1, 0]
    game = Game(robots=2, side=3, layout="walls", **QUIET).step(RIGHT, STAY)
    assert game.obs[0, 3:7].tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("consts", "size"),
    [
        ({}, 18),
        ({"robots": 1}, 9),
        ({"robots": 8, "chargers": 4}, 36),
        ({"timers": 1}, 27),
        ({"dust": 1}, 18),
        ({"dust": 1, "see_dust": 1, "side": 3}, 27),
    ],
    ids=str,
)
def test_the_size_of_an_observation(consts, size):
    assert shoal.make("vacuum", **consts).single_observation_space.shape == (size,)


def test_timers_show_the_time():
    game = Game(timers=1, max_steps=4, **QUIET)
    times = [float(game.step(STAY, STAY, STAY, STAY).obs[0, -1]) for _ in range(3)]
    assert times == [0.25, 0.5, 0.75]


# ---- semantics ----


def test_turn_by_turn_is_joint_when_nobody_looks():
    """The same choices: four single turns leave what one joint step leaves."""
    joint, turn = Game(side=4), Game(side=4, semantics="turn", max_steps=0)
    rng = np.random.default_rng(3)
    for _ in range(6):
        actions, total = rng.integers(0, 5, 4), np.zeros(4, np.float32)
        alive = int(joint.vec.alive.sum())
        joint.step(*actions)
        for _ in range(alive):
            if not turn.vec.alive.any():
                break
            turn.step(*actions)
            total += turn.rewards
        assert total == pytest.approx(joint.rewards, rel=1e-5)
        assert turn.vec.alive.tolist() == joint.vec.alive.tolist()
        assert (turn.obs == joint.obs).all()


def test_in_turn_only_one_may_act_and_all_observe_anew():
    game = Game(side=4, semantics="turn", **QUIET)
    seen = []
    for turn in range(8):
        may_act = game.infos["action_mask"].all(1)
        assert may_act.nonzero()[0].tolist() == [turn % 4]
        before = game.obs.copy()
        game.step(DOWN, DOWN, UP, UP)
        seen.append((game.obs != before).any(1).all())  # all see that one has moved
    assert seen == [True] * 8
    # in the second round the upper two push the lower ones back, and are pushed back in turn
    assert game.places == [(1, 0), (1, 3), (2, 0), (2, 3)]
    assert game.hits == 4


def test_a_fast_robot_is_on_turn_for_each_of_its_sub_moves():
    game = Game(robots=2, side=6, semantics="turn", speed_0=3, **QUIET)
    turns = []
    for move in (RIGHT, DOWN, RIGHT, STAY):
        turns.append(int(game.infos["action_mask"].all(1).argmax()))
        game.step(move, LEFT)
    assert turns == [0, 0, 0, 1]
    assert game.places == [(1, 2), (0, 4)]


# ---- scripted robots ----


def returns_of(robots, **options):
    """The return of every robot in one episode."""
    seats = {f"robot_{seat}": robot for seat, robot in enumerate(robots)}
    vec = shoal.make("vacuum", 1, seed=0, **seats, **options)
    vec.reset()
    stays = np.full(vec.num_rows, vec.single_action_space.n - 1)
    total = np.zeros(vec.num_rows)
    for _ in range(500):
        _, rewards, _, _, infos = vec.step(stays)
        total += rewards
        if "final_info" in infos and infos["final_info"]["_charges"].any():
            break
    return np.round(total).astype(int).tolist(), vec.drain_stats()


@pytest.mark.parametrize(
    ("robots", "returns"),
    [
        (["seek"] * 4, [9840, -105, -105, 155]),
        (["seek", *["opportunistic"] * 3], [9940, -105, -105, -105]),
        (["hunt", *["opportunistic"] * 3], [-25, -105, -85, 983]),
        (["stay"] * 4, [-25, -105, -105, -105]),
    ],
    ids=str,
)
def test_scripted_baselines_that_leave_nothing_to_chance(robots, returns):
    """benchmarks/vacuum_baselines.py has the others too."""
    assert returns_of(robots)[0] == returns


def test_in_the_duel_hunting_kills_in_three_steps_and_seeking_never():
    _, stats = returns_of(["hunt", "seek"], preset="duel-stun", max_steps=3)
    assert stats["kills_0"]["mean"] == 1
    assert stats["pursuit"]["mean"] == 1
    _, stats = returns_of(["seek", "seek"], preset="duel-stun")
    assert stats["deaths_by_robot"]["mean"] == 0


def test_to_share_starves_and_to_be_alone_feeds():
    game = Game(preset="share-or-kill", start="corner", side=3, energy_0=50.0, energy_1=50.0, cap="none")
    assert game.step(STAY, STAY).energies == [49, 49]
    energies = [game.step(move, STAY).energies[0] for move in (RIGHT, RIGHT, STAY)]
    assert energies == [47, 49, 52]  # a move costs 1 more; the second one kills


def test_a_scripted_seat_ignores_its_action_and_may_only_stay():
    actions = np.random.default_rng(0).integers(0, 5, (50, 64 * 4))
    runs = []
    for shift in (0, 1):
        vec = shoal.make("vacuum", 64, robot_1="safe-random", robot_2="seek", robot_3="flee")
        obs, infos = vec.reset(seed=4)
        assert (infos["action_mask"].reshape(64, 4, 5)[:, 1:].sum(2) == 1).all()
        assert infos["action_mask"].reshape(64, 4, 5)[:, 0].all()
        for row in actions:
            chosen = (row.reshape(64, 4) + np.array([0, shift, shift, shift])) % 5
            obs = vec.step(chosen.ravel())[0].copy()
        runs.append(obs)
    assert (runs[0] == runs[1]).all()


def test_scripts_are_named_in_the_spec():
    """What `--opponents 1=seek` needs: names to numbers, for every seat."""
    for seat in range(8):
        assert SPEC.choices(f"robot_{seat}") == {robot: number for number, robot in enumerate(ROBOTS)}
    assert SPEC.choices("e_move") == {}


def test_safe_random_never_meets_the_wall():
    _, stats = returns_of(["safe-random"] * 4, side=3, e_charge=1000.0)
    assert stats["deaths_by_wall"]["mean"] == 0
    _, stats = returns_of(["random"] * 4, side=3)
    assert stats["deaths_by_wall"]["mean"] > 0


# ---- presets, limits ----


@pytest.mark.parametrize("preset", [name for name in PRESETS if name != "classic-1v3"])
def test_every_preset_keeps_the_contract(preset, monkeypatch):
    """What depends on a preset. The header compiles in every language whatever the preset: tests/test_envs.py."""
    compiled = ("sanitizers", "forged", "layouts") if preset in ("dust", "alliance") else ()
    count = use_checks(monkeypatch, *QUICK[2:], *compiled)
    outcomes = list(run_checks("vacuum", steps=400, preset=preset))
    assert [o for o in outcomes if o.status == "failed"] == []
    assert len(outcomes) == count


def test_scripted_robots_are_clean_under_the_sanitizers(tmp_path):
    crowd = {f"robot_{k}": ROBOTS[1 + k % 7] for k in range(8)} | {f"stun_{k}": k for k in range(8)}
    crowd |= {"charger_range": 1, "order": "shuffled", "semantics": "turn", "start": "thief"}
    consts = {"side": 3, "robots": 8, "chargers": 4, "timers": 1, "dust": 1, "see_dust": 1, "moves": 3}
    check_sanitizers(Subject(registry.find("vacuum"), 400, tmp_path, crowd, consts))


@pytest.mark.parametrize(
    "preset",
    [
        name if name == "dust" else pytest.param(name, marks=pytest.mark.slow)
        for name in PRESETS
        if name != "classic-1v3"
    ],
)
def test_every_preset_compiles_for_a_gpu(preset, monkeypatch, tmp_path):
    pytest.importorskip("cuda.bindings")
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path))
    _params, consts = SPEC.split({"preset": preset})
    assert cuda.cubin(build.Source.env(registry.find("vacuum"), consts), "sm_90")[:4] == b"\x7fELF"


def test_the_classic_preset_is_the_defaults():
    assert SPEC.expand({"preset": "classic-1v3"}) == {}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"preset": "duel"}, "vacuum has no preset 'duel'. Did you mean 'duel-stun'"),
        ({"robots": 9}, r"robots=9 must be in 1 .. 8"),
        ({"side": 40}, r"side=40 must be in 2 .. 16"),
        ({"robots": 5, "side": 2}, "robots must be in 1 .. 8, and fit on the grid"),
        ({"see_dust": 1}, "see_dust needs dust"),
        ({"charger_y_0": 5}, r"charger_y_0=5 must be in -1 .. 4"),
        ({"energy_2": 0}, r"energy_2=0 must be in 0.5 .. 1000000"),
        ({"speed_1": 0}, r"speed_1=0 must be in 1 .. 8"),
        ({"robot_1": "seeks"}, "robot_1='seeks'. Did you mean 'seek'"),
        ({"start": "corners"}, "start='corners'. Did you mean 'corner'"),
        ({"e_collision": 20}, "vacuum has no param 'e_collision'"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_with_the_number(given, says):
    with pytest.raises(ShoalError, match=says):
        shoal.make("vacuum", **given)


# ---- batches ----


def test_one_env_equals_one_among_4096():
    options = {"order": "shuffled", "start": "random", "robot_1": "random", "robot_2": "hunt"}
    digests = []
    for count in (4096, 1):
        vec = shoal.make("vacuum", count, backend="serial", **options)
        vec.reset(seed=9)
        digests.append(play(vec, 300)[0])
    assert digests[0] == digests[1]


def test_a_partial_reset_leaves_the_others_untouched():
    vec, twin = (shoal.make("vacuum", 8, robot_1="random", order="shuffled") for _ in range(2))
    for each in (vec, twin):
        each.reset(seed=2)
    play(vec, 15)
    play(twin, 15)
    mask = np.arange(8) % 2 == 0
    vec.reset(options={"reset_mask": mask})
    first, second = play(vec, 100, start=15), play(twin, 100, start=15)
    assert (first == second).tolist() == (~mask).tolist()
