"""midrange's space-time graph: its curves against the twin's flights and the game itself; its features; its picture."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from shoal import registry
from shoal.conformance import Subject, check_sanitizers
from shoal.errors import ConfigError, UsageError

from .midrange_twin import (
    BURN_S,
    FIGHTER_LIFT_DRAG,
    FIGHTER_THRUST,
    MIN_RADIUS,
    MISSILE_LIFT_DRAG,
    MISSILE_THRUST,
    SPAWN_AHEAD,
    Body,
    fly,
    move,
    wrap,
)

RIGHT, STRAIGHT, LEFT = (0, 0), (1, 0), (2, 0)
FIRE = (1, 1)
HEAD_ON = {"start_angle": 0.0}


class Duel:
    """One game with side 0's graph, from a given distance."""

    def __init__(self, km, **params):
        given = {"start_min": km, "start_max": km, "space_time": 1, **HEAD_ON, **params}
        self.vec = shoal.make("midrange", 1, seed=0, **given)
        self.obs, _ = self.vec.reset(seed=0)

    def step(self, own=STRAIGHT, enemy=STRAIGHT, decisions=1):
        for _ in range(decisions):
            self.obs, _, self.ended, _, _ = self.vec.step(np.array([own, enemy]))
        return self

    def curves(self, side=0):
        return {name: curves.astype(float) for name, curves in self.vec.curves(0, side).items()}

    def features(self, side=0):
        names = "own_no_escape enemy_no_escape own_straight enemy_straight left right miss_0 miss_1 best_0 best_1"
        return dict(zip(names.split(), self.obs[side, 39:].tolist()))


def body_of(points):
    """The pose at the start of a curve, from its first second."""
    heading = np.arctan2(points[1, 1] - points[0, 1], points[1, 0] - points[0, 0])
    return Body(points[0, 0], points[0, 1], heading, points[0, 3])


def turned(body, turn, thrust, lift_drag, burn_s, seconds=30, dt=0.02):
    """The twin's flight: a full-rudder turn by `turn`, then straight; a place for every second."""
    places, left = [(body.x, body.y)], abs(turn)
    for tick in range(round(seconds / dt)):
        rudder = np.sign(turn) * min(left * MIN_RADIUS / (body.speed * dt), 1.0)
        left = max(left - abs(rudder) * body.speed / MIN_RADIUS * dt, 0.0)
        body = move(body, rudder, thrust if tick * dt < burn_s - 1e-9 else 0.0, lift_drag, dt, faithful=False)
        if (tick + 1) % round(1 / dt) == 0:
            places.append((body.x, body.y))
    return np.array(places)


# ---- curves ----


@pytest.mark.parametrize("turn", [-90, -45, 0, 15, 90])
def test_the_threat_is_where_a_missile_can_fly(turn):
    """The exact solution against small steps of time: within 20 m after 24 km."""
    duel = Duel(20.0).step(decisions=4)
    curve = duel.curves()["threat"][6 + turn // 15]
    launcher = body_of(duel.curves(side=1)["course"][0])
    nose = np.array([np.cos(launcher.heading), np.sin(launcher.heading)])
    missile = Body(*(np.array([launcher.x, launcher.y]) + SPAWN_AHEAD * nose), launcher.heading, launcher.speed)
    flown = turned(missile, np.radians(turn), MISSILE_THRUST, MISSILE_LIFT_DRAG, BURN_S)
    assert np.abs(curve[:, :2] - flown).max() < 20
    assert np.array_equal(curve[:, 2], np.arange(31))


@pytest.mark.parametrize("way", [0, 1])
def test_an_escape_turns_away_and_runs(way):
    duel = Duel(18.0).step(own=LEFT, decisions=3)
    curves, enemy = duel.curves(), body_of(duel.curves(side=1)["course"][0])
    escape, own = curves["escape"][way], curves["course"][0, 0]
    last = escape[-1, :2] - escape[-2, :2]
    away = np.arctan2(*(escape[12, :2] - [enemy.x, enemy.y])[::-1])
    off = wrap(np.arctan2(last[1], last[0]) - away)
    assert np.degrees(off) == pytest.approx(-18 if way == 0 else 18, abs=1.5)
    assert np.hypot(*(escape[1, :2] - own[:2])) == pytest.approx(own[3], rel=0.05)
    first = escape[1, :2] - escape[0, :2]
    start = Body(own[0], own[1], np.arctan2(first[1], first[0]), own[3])
    side = 1 if way == 0 else -1
    start.heading -= side * 0.5 * np.hypot(*first) / MIN_RADIUS  # the chord of a second's turn points half of it ahead
    turn = side * ((side * (np.arctan2(last[1], last[0]) - start.heading)) % (2 * np.pi))
    flown = turned(start, turn, FIGHTER_THRUST, FIGHTER_LIFT_DRAG, np.inf)
    assert np.abs(escape[:, :2] - flown).max() < 30


@pytest.mark.parametrize("rudder", [RIGHT, STRAIGHT, LEFT])
def test_the_course_is_flown_by_who_changes_nothing(rudder):
    duel = Duel(40.0).step(own=rudder)
    predicted = duel.curves()["course"][0]
    for second in range(1, 31):
        duel.step(own=rudder, decisions=2)
        now = duel.curves()["course"][0, 0]
        assert np.hypot(*(now - predicted[second])[:2]) < 15
        assert now[3] == pytest.approx(predicted[second, 3], abs=0.5)


def test_incoming_missiles_fly_as_predicted():
    duel = Duel(14.0).step(own=LEFT).step(own=LEFT, enemy=FIRE)
    predicted = duel.curves()["incoming"]
    assert (predicted[1, :, 2:] == 0).all(), "there is one missile"
    for second in range(1, 9):
        duel.step(own=LEFT, decisions=2)
        now = duel.curves()["incoming"][0, 0]
        assert np.hypot(*(now - predicted[0, second])[:2]) < 60


def test_a_predicted_path_ends_with_the_hit():
    duel = Duel(8.0).step(enemy=FIRE)
    path = duel.curves()["incoming"][0]
    steps = 0
    while not duel.ended.any():
        duel.step()
        steps += 1
    assert path[-1, 2] == pytest.approx(0.5 * steps, abs=0.7)
    assert (path[-1] == path[-2]).all()


def test_curves_refuse_what_they_cannot_show():
    vec = shoal.make("midrange", 2)
    with pytest.raises(UsageError, match="before reset"):
        vec.curves()
    vec.reset(seed=0)
    with pytest.raises(ConfigError, match=r"env=2 must be one of 0 \.\. 1"):
        vec.curves(2)
    with pytest.raises(ConfigError, match=r"agent=2 must be one of 0 \.\. 1"):
        vec.curves(0, agent=2)
    with pytest.raises(ConfigError, match="cartpole has no curves"):
        shoal.make("cartpole").curves()


# ---- features ----


def test_ranges_are_measured_in_reaches():
    features = Duel(20.0).features()
    assert features["own_no_escape"] == pytest.approx(20 / 17.3, rel=0.02)
    assert features["own_straight"] == pytest.approx(20 / 73.8, rel=0.02)
    assert features["enemy_no_escape"] == pytest.approx(features["own_no_escape"], rel=1e-4)
    assert features["enemy_straight"] == pytest.approx(features["own_straight"], rel=1e-4)


def test_the_margin_is_zero_where_no_escape_begins():
    """Head-on: whoever turns away outside of the threat survives; 1 km within it nobody does."""
    margins = {km: Duel(km).features() for km in (14.0, 16.0, 16.6, 17.5, 20.0)}
    left = [20.0 * features["left"] for features in margins.values()]
    assert left == pytest.approx([20.0 * features["right"] for features in margins.values()], abs=0.02)
    assert left == sorted(left)
    assert left[0] < -1.0
    assert left[2] == pytest.approx(0.0, abs=0.3)
    assert left[4] > 1.0
    hits = fly(1000 * np.array([15.6, 17.6]), 0.0, True, False, 0.1)
    assert hits.tolist() == [True, False]


def test_mirrored_games_have_mirrored_margins():
    left, right = Duel(18.0).step(own=LEFT, decisions=4).features(), Duel(18.0).step(own=RIGHT, decisions=4).features()
    assert left["left"] == pytest.approx(right["right"], abs=1e-4)
    assert left["right"] == pytest.approx(right["left"], abs=1e-4)
    assert left["left"] > left["right"], "whoever turns left already escapes to the left sooner"


def test_misses_are_predicted():
    """A launch within reach hits the present course; the better escape outruns it if it was fired from far away."""
    calm = Duel(20.0).features()
    assert calm["miss_0"] == calm["best_0"] == calm["miss_1"] == calm["best_1"] == 1.0
    near = Duel(9.0).step(enemy=FIRE).features()
    assert near["miss_0"] <= 0.02
    assert near["best_0"] <= 0.02
    far = Duel(24.0).step(enemy=FIRE).features()
    assert far["miss_0"] <= 0.02
    assert far["best_0"] > 0.1
    assert far["miss_1"] == 1.0


def test_features_are_off_by_default():
    assert not Duel(9.0, space_time=0).step(enemy=FIRE).obs[:, 39:].any()


def test_without_a_track_nothing_is_known_of_the_enemy():
    """With sensors, and both aircraft tail to tail, for longer than the memory."""
    duel = Duel(20.0, sensors=1).step(own=LEFT, enemy=LEFT, decisions=24).step(decisions=16)
    known = duel.obs[0, 14] > 0
    features = duel.features()
    assert any(features[name] for name in ("own_no_escape", "left")) == known
    assert features["miss_0"] == 1.0


# ---- the picture ----


def colors(frame):
    packed = frame.astype(int) @ [1 << 16, 1 << 8, 1]
    return {f"{color:06x}" for color in np.unique(packed)}


def test_the_picture_shows_both_views():
    duel = Duel(16.0).step(own=LEFT, enemy=FIRE, decisions=1).step(own=LEFT, decisions=8)
    frame = duel.vec.frame(0, width=1000)
    middle = frame.shape[1] // 2
    assert "ffd84a" in colors(frame[:, middle:]), "escapes"
    assert "ff9f45" in colors(frame[:, middle:]), "the incoming missile"
    assert {"58a6ff", "ff5c57"} <= colors(frame[:, :middle]) & colors(frame[:, middle:])
    texts = "".join(item["text"] for item in duel.vec.draw(0)["items"] if item["kind"] == "text")
    assert "grid" in texts
    assert "range" in texts
    assert "missile hits, escape hits" in texts
    calm = "".join(item["text"] for item in Duel(25.0).vec.draw(0)["items"] if item["kind"] == "text")
    assert "safe: margin left" in calm


@pytest.mark.parametrize("km", [2.0, 35.0, 90.0])
def test_nothing_leaves_its_panel(km):
    duel = Duel(km, start_angle=3.0, time_limit=0.0).step(own=LEFT, enemy=FIRE, decisions=6)
    drawn = duel.vec.draw(0)
    assert drawn["view"] == (0, 0, 200, 112)
    lines = [item for item in drawn["items"] if item["kind"] == "line"]
    assert len(lines) > 100
    for line in lines:
        assert min(line["x"], line["a"]) >= -1e-3
        assert max(line["x"], line["a"]) <= 200.001
        assert max(line["y"], line["b"]) <= 100.001
        assert (line["x"] < 99.5) == (line["a"] < 99.5), "a line crosses from one panel to the other"


def test_the_other_side_has_its_own_graph():
    pictures = [Duel(16.0, draw_side=side).step(own=LEFT, decisions=4).vec.frame(0) for side in (0, 1)]
    assert (pictures[0] != pictures[1]).any()


def test_trails_show_where_an_aircraft_was():
    straight, turning = Duel(30.0).step(decisions=40), Duel(30.0).step(own=LEFT, decisions=40)
    trails = []
    for duel in (straight, turning):
        items = [item for item in duel.vec.draw(0)["items"] if item["color"] in ("#2f5c8c", "#203c5c")]
        trails.append(sum(np.hypot(item["x"] - item["a"], item["y"] - item["b"]) for item in items))
    assert min(trails) > 3.0


@pytest.mark.slow
def test_the_features_are_clean_under_sanitizers(tmp_path):
    """With one channel: there is never a second missile."""
    params = {"robot_0": "crank", "robot_1": "nez", "start_min": 8.0, "start_max": 20.0}
    check_sanitizers(Subject(registry.find("midrange"), 400, tmp_path, params, {"space_time": 1, "channels": 1}))
