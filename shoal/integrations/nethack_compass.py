"""NetHack's compass: by what the hero has seen, the shortest ways to places that a player would go to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from shoal.native import lib
from shoal.spec import Array

# bits of a cell, as in native/core/ways.c
CLOSED, STRAIGHT, UNSEEN, VISITED, BARRED = 1, 2, 4, 8, 16
DOWN, GOLD, FOOD, MONSTER, LOCKED = 32, 64, 128, 256, 512
KINDS = ("edge of what was seen", "not visited", "way down", "gold", "food", "monster", "locked door")
DIRECTIONS = "kljhunby"  # keys, in the order of ways.c
STEPS = ((-1, 0), (0, 1), (1, 0), (0, -1), (-1, 1), (1, 1), (1, -1), (-1, -1))
FEATURES = 9 * len(KINDS) + 1

NEAR = 8  # steps after which a place is half as near
TRIES = 3  # steps into a cell that let the hero stay where he was, until there is no way through it
SOON, LATER = 10, 300  # turns until there is one again: creatures go away, boulders do not


@dataclass
class Level:
    """What is remembered of a level."""

    ground: Array  # (height, width) uint16: bits of the ground that was last seen in a cell
    stood: Counter[int] = field(default_factory=Counter)  # by cell: steps that ended there
    tries: Counter[int] = field(default_factory=Counter)  # by cell: steps towards it that led nowhere
    closed: dict[int, int] = field(default_factory=dict)  # by cell: the turn until which there is no way through it


class Glyphs:
    """What NetHack's glyphs mean to someone who looks for a way."""

    def __init__(self) -> None:
        from nle import nethack

        ground, effects = int(nethack.GLYPH_CMAP_OFF), int(nethack.GLYPH_EXPLODE_OFF)
        objects, bodies = int(nethack.GLYPH_OBJ_OFF), int(nethack.GLYPH_BODY_OFF)
        self.bits: Array = np.zeros(int(nethack.NO_GLYPH) + 1, np.uint16)
        self.bits[[ground, -1]] = UNSEEN
        self.bits[ground + 1 : ground + 12] = CLOSED  # walls
        self.bits[[ground + k for k in (17, 18, 32, 34, 37, 38, 41)]] = CLOSED  # bars, trees, water, lava, drawbridges
        self.bits[int(nethack.GLYPH_STATUE_OFF) : -1] = CLOSED
        self.bits[ground + 13 : ground + 17] = STRAIGHT  # doors, open or closed
        self.bits[[ground + k for k in (24, 26, 54, 55)]] = DOWN  # stairs, ladders, holes, trap doors
        self.bits[: int(nethack.GLYPH_PET_OFF)] = self.bits[int(nethack.GLYPH_INVISIBLE)] = MONSTER
        self.bits[bodies : bodies + int(nethack.NUMMONS)] = FOOD
        for number in range(int(nethack.NUM_OBJECTS)):
            kind = ord(nethack.objclass(number).oc_class)
            self.bits[objects + number] = {int(nethack.COIN_CLASS): GOLD, int(nethack.FOOD_CLASS): FOOD}.get(kind, 0)

        self.is_ground: Array = np.zeros(len(self.bits), np.bool_)
        self.is_ground[ground + 1 : effects] = True
        self.kept: Array = np.full(len(self.bits), VISITED, np.uint16)  # of what is remembered, where this is seen
        self.kept[ground + 15 : ground + 17] = VISITED | BARRED | LOCKED  # closed doors
        self.last_creature = int(nethack.GLYPH_INVISIBLE)


class Compass:
    """The ways of one game, and what it takes to find them: where the hero was, and what did not let him pass."""

    def __init__(self, keys: list[int]) -> None:
        self.glyphs = Glyphs()
        letters = {k: chr(key).lower() for k, key in enumerate(keys)}
        self.walks = {k: DIRECTIONS.index(letter) for k, letter in letters.items() if letter in DIRECTIONS}
        self.find_ways = lib.load_core().ways
        self.steps, self.first = np.empty(len(KINDS), np.int16), np.empty(len(KINDS), np.int8)
        self.reset()

    def reset(self) -> None:
        """A new game."""
        self.levels: dict[tuple[int, int], Level] = {}
        self.place: tuple[tuple[int, int], int, int] | None = None  # level, row and column, if nothing was asked there
        self.features: Array = np.zeros(FEATURES, np.float32)

    def observe(self, glyphs: Array, stats: Array, prompts: Array, message: bytes, action: int | None) -> Array:
        """(FEATURES,) from 0 to 1: of each kind the direction of the first step and how near it is; the time here.

        `stats` are NLE's, `action` led to this observation. While a question is open all is as before it.
        """
        column, row, turn, branch, depth = (int(stats[k]) for k in (0, 1, 20, 23, 24))
        place = (branch, depth), row, column
        level = self.levels.setdefault(place[0], Level(np.zeros(glyphs.shape, np.uint16)))
        if action in self.walks and place == self.place:
            self._failed(level, glyphs, place, self.walks[action], turn, message)
        self.place = None if prompts.any() else place
        if self.place is None:
            return self.features

        bits, ground = self.glyphs.bits[glyphs], level.ground
        np.copyto(ground, bits | ground & self.glyphs.kept[glyphs], where=self.glyphs.is_ground[glyphs])
        ground[row, column] |= VISITED
        cells = bits | ground & (STRAIGHT | VISITED | BARRED | DOWN | LOCKED)
        cells[row, column] &= ~np.uint16(MONSTER)  # the hero
        cells &= ~((ground & VISITED) * (FOOD // VISITED))  # food that he did not want
        level.closed = {cell: until for cell, until in level.closed.items() if until > turn}
        for cell in level.closed:
            cells.reshape(-1)[cell] |= CLOSED

        height, width = cells.shape
        here = row * width + column
        level.stood[here] += 1
        self.find_ways(
            cells.ctypes.data, height, width, here, len(KINDS), self.steps.ctypes.data, self.first.ctypes.data
        )
        features: Array = np.zeros(FEATURES, np.float32)
        kinds = features[:-1].reshape(len(KINDS), 9)
        is_known, has_way = self.steps >= 0, self.first >= 0
        kinds[is_known, 8] = NEAR / (NEAR + self.steps[is_known])
        kinds[has_way, self.first[has_way]] = 1.0
        features[-1] = min(np.log1p(level.stood[here]) / 5.0, 1.0)
        self.features = features
        return features

    def _failed(
        self, level: Level, glyphs: Array, place: tuple[tuple[int, int], int, int], way: int, turn: int, message: bytes
    ) -> None:
        """The hero has walked, and is where he was."""
        _, row, column = place
        to_row, to_column = row + STEPS[way][0], column + STEPS[way][1]
        height, width = glyphs.shape
        if not (0 <= to_row < height and 0 <= to_column < width):
            return
        cell, glyph = to_row * width + to_column, int(glyphs[to_row, to_column])
        is_hostile, is_creature = bool(self.glyphs.bits[glyph] & MONSTER), glyph <= self.glyphs.last_creature
        is_door = (level.ground[row, column] | level.ground[to_row, to_column]) & STRAIGHT
        if b"locked" in message and self.glyphs.kept[glyph] & LOCKED:
            level.ground[to_row, to_column] |= BARRED | LOCKED
        elif b"Really attack" in message:
            level.closed[cell] = turn + SOON
        elif not is_hostile and not (is_door and way >= 4):
            level.tries[cell] += 1
            if level.tries[cell] == TRIES:
                level.tries[cell] = 0
                level.closed[cell] = turn + (SOON if is_creature else LATER)
