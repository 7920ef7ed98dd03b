"""The gallery: every header keeps the contract, is as long as its page says, and can be learned."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal import conformance, registry
from shoal.native import lib
from shoal.train import train
from shoal.vector.play import play
from tests.faults.tools import ROOT

FOLDER = Path(ROOT) / "examples" / "gallery"
HEADERS = sorted(FOLDER.glob("*.h"))
PAGE = (Path(ROOT) / "docs" / "gallery.md").read_text()
# the checks that take no long compilation; `shoal check` makes all of them
CHECKS = ("check_cpp17", "check_initialised", "check_spaces", "check_snapshot", "check_episodes", "check_draw")


@pytest.fixture(params=HEADERS, ids=[path.stem for path in HEADERS])
def header(request) -> Path:
    return request.param


def test_keeps_the_contract(header, monkeypatch):
    monkeypatch.setattr(conformance, "CHECKS", [getattr(conformance, name) for name in CHECKS])
    outcomes = list(conformance.run_checks(header, steps=200))
    assert [outcome for outcome in outcomes if outcome.status not in ("passed", "skipped")] == []
    assert len(outcomes) == len(CHECKS)


def test_is_described(header):
    first, rest = registry.summary(header)
    assert first.endswith(".")
    assert all(f"{word}:" in rest for word in ("obs", "action", "reward"))
    spec = lib.load(header).spec
    assert all(entry.help for entry in (*spec.params, *spec.stats))


def test_the_page_has_its_picture_its_length_and_its_budget(header):
    lines = len(header.read_text().splitlines())
    budget = re.search(r'^total_steps = "(\w+)"$', header.with_suffix(".toml").read_text(), re.MULTILINE)[1]
    assert f"images/gallery/{header.stem}.png" in PAGE
    row = re.search(rf"^\| \[{header.stem}\]\(.*$", PAGE, re.MULTILINE)
    assert row, header.stem
    assert f"| {lines} |" in row[0]
    assert f"| {budget} |" in row[0]


def test_the_gallery_is_five_headers_from_40_to_400_lines():
    lengths = [len(path.read_text().splitlines()) for path in HEADERS]
    assert len(lengths) == 5
    assert 30 <= min(lengths) <= 45
    assert max(lengths) <= 400


def test_a_bandit_is_learned(tmp_path):
    options = {"total_steps": "65k", "minibatches": 4}
    run = train(FOLDER / "bandit.h", seed=1, device="cpu", runs_folder=tmp_path, console="off", train=options)
    assert run.summary["eval"]["return"] > 0.7  # 0.35 at random, 0.8 at best


# ---- the rules of the games ----


def test_the_rooms_can_be_solved():
    """In the numbers of steps that the header states."""
    ways = {0: "111133333311", 1: "3311112222", 2: "002200220022"}
    for room, way in ways.items():
        vec = shoal.make(FOLDER / "rooms.h", 1, room=room, seed=0)
        vec.reset()
        for action in way:
            _, reward, terminated, _, infos = vec.step(np.array([int(action)]))
        assert terminated[0], room
        assert infos["final_info"]["episode"]["l"][0] == len(way)


def test_every_jump_of_the_pegs_is_a_straight_line():
    """from, over and to are neighbours in one direction, and no jump is missing or listed twice."""
    text = (FOLDER / "pegs.h").read_text()
    jumps = {tuple(map(int, match)) for match in re.findall(r"\{(\d+), (\d+), (\d+)\}", text)}
    row = [0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4]
    place = {hole: (row[hole], hole - row[hole] * (row[hole] + 1) // 2) for hole in range(15)}
    hole_at = {where: hole for hole, where in place.items()}
    expected = set()
    for hole, (y, x) in place.items():
        for dy, dx in ((0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, -1)):
            over, to = hole_at.get((y + dy, x + dx)), hole_at.get((y + 2 * dy, x + 2 * dx))
            if over is not None and to is not None:
                expected.add((hole, over, to))
    assert jumps == expected
    assert len(expected) == 36


def test_tag_is_zero_sum_and_the_chaser_can_catch():
    vec = shoal.make(FOLDER / "tag.h", 64, seed=0, pond=0.0)
    vec.reset()
    caught = 0
    for _ in range(200):
        chase = vec.memory.arrays["obs"][::2, 3:5].copy()
        actions = np.zeros((128, 2), np.float32)
        actions[::2] = 10 * chase  # straight to the runner, who stands still; clipped to -1 .. 1
        _, rewards, terminated, _, _ = vec.step(actions)
        assert (rewards[::2] == -rewards[1::2]).all()
        caught += int(terminated[::2].sum())
    assert caught >= 64


def test_the_lander_crashes_without_a_pilot_and_lands_softly_only_on_the_pad():
    vec = shoal.make(FOLDER / "lander.h", 64, seed=0)
    vec.reset()
    play(vec, 300)
    stats = vec.drain_stats()
    assert stats["crashed"]["mean"] > 0.9
    assert stats["return"]["mean"] < 0
