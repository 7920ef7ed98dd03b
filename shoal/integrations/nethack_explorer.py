"""NetHack's reward of explorers: beside points of the game, a little at once for what leads to points much later."""

from __future__ import annotations

from typing import Any

from shoal.errors import ConfigError
from shoal.integrations.nethack_compass import KINDS, NEAR

EDGE, DOWN, DOOR = "edge of what was seen", "way down", "locked door"
ONE_STEP = NEAR / (NEAR + 1) - 1e-4  # how near a place is that is one step away
FIRST_TIME = 0.14  # the time spent in a cell, where this is its first step
REACHED, FOUND, OPENED, STEP = 1.0, 2.0, 10.0, 0.3  # points; a level further down is worth 50


class Explorer:
    """Points of the game, and a few for exploring, which a compass must show (`--env.compass True`).

    They are for a step to the edge of what was seen, an edge that is found by searching, a locked door that is open,
    and for each step nearer to where one should go: the way down; if none is known an edge, and then a locked door.
    """

    def compute(self, before: Any, after: Any, action: Any, done: Any, info: Any) -> Any:
        """(rows,) points."""
        if not isinstance(before, dict) or "compass" not in before:
            raise ConfigError(
                "the reward Explorer pays for what NetHack's compass shows, and observations have none. Add "
                "--env.compass True, or --reward '' for the points alone."
            )
        now, then = before["compass"], after["compass"]
        is_new, has_stayed = then[:, -1] < FIRST_TIME, then[:, -1] > now[:, -1]
        near = {kind: (_nearness(now, kind), _nearness(then, kind)) for kind in (EDGE, DOWN, DOOR)}
        bonus = REACHED * (_is_next(near[EDGE][0]) & is_new)
        bonus = bonus + FOUND * ((near[EDGE][0] == 0) & (near[EDGE][1] > 0) & has_stayed)
        bonus = bonus + OPENED * (_is_next(near[DOOR][0]) & ~_is_next(near[DOOR][1]) & has_stayed)
        is_open = near[DOWN][0] >= 0  # no goal was chosen so far
        for kind in (DOWN, EDGE, DOOR):
            here, there = near[kind]
            is_goal = is_open & (here > 0)
            steps = (_steps(here) - _steps(there)).clamp(-3.0, 3.0)  # a run takes several; another place is no progress
            bonus = bonus + STEP * steps * (is_goal & (there > 0))
            is_open = is_open & ~is_goal
        return info["reward"] + bonus * ~done


def _nearness(compass: Any, kind: str) -> Any:
    return compass[:, 9 * KINDS.index(kind) + 8]


def _is_next(near: Any) -> Any:
    return (near > ONE_STEP) & (near < 1.0)


def _steps(near: Any) -> Any:
    return NEAR / near.clamp(min=0.01) - NEAR
