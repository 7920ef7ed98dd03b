"""NetHack's masks: which actions may do something, by what the player has seen."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from shoal.spec import Array

MORE, KICK, EAT, DOWN, UP = 13, 4, ord("e"), ord(">"), ord("<")  # keys
BLIND = 0x20  # of the conditions
# where a letter walks to, as (row, column) of the nine cells around the hero
WALKS = dict(zip("kljhunby", ((0, 1), (1, 2), (2, 1), (1, 0), (0, 2), (2, 2), (2, 0), (0, 0))))


class Masks:
    """No walks into walls, no stairs where there are none, no kicks but at closed doors, no meals without food.

    A question has the answers that it offers, and MORE, which takes it back. A blind hero may walk anywhere. Stairs
    that were not seen before the hero stood on them, such as those below objects, are left out: else the answer to `>`
    is nearly always "You can't go down here", and a policy learns not to descend.
    """

    def __init__(self, keys: list[int]) -> None:
        from nle import nethack

        first, none = int(nethack.GLYPH_CMAP_OFF), int(nethack.NO_GLYPH)
        self._solid: Array = np.zeros(none + 1, np.bool_)
        self._solid[first : first + 12] = True  # stone and walls
        self._solid[none] = True
        self._ups, self._downs = (first + 23, first + 25), (first + 24, first + 26)  # stairs and ladders
        self._doors = (first + 15, first + 16)  # closed ones
        objects, bodies = int(nethack.GLYPH_OBJ_OFF), int(nethack.GLYPH_BODY_OFF)
        self._food_class, count = int(nethack.FOOD_CLASS), int(nethack.NUM_OBJECTS)
        kinds = [ord(nethack.objclass(number).oc_class) for number in range(count)]
        self._food = {objects + number for number, kind in enumerate(kinds) if kind == self._food_class}
        self._food |= set(range(bodies, bodies + int(nethack.NUMMONS)))  # corpses

        self._keys = keys
        self._action = {key: keys.index(key) for key in (MORE, KICK, EAT, DOWN, UP) if key in keys}
        self._answers: dict[bytes, Array] = {}
        lower = {k: chr(key).lower() for k, key in enumerate(keys)}
        self._ways = {k: WALKS[letter] for k, letter in lower.items() if letter in WALKS}  # by action
        self._acts: Array = np.array(list(self._ways), np.intp)
        self._rows, self._columns = np.array(list(self._ways.values()), np.intp).reshape(-1, 2).T

    def answers(self, message: bytes) -> Array:
        """(actions,) int8: 1 for the answers that a question offers."""
        mask = self._answers.get(message)
        if mask is None:
            if len(self._answers) > 1000:
                self._answers.clear()
            text = message.split(b"\0")[0].decode("latin-1")
            offered = "".join(WALKS) if "direction?" in text else ""
            for choices in re.findall(r"\[(.*?)\]", text):  # [yn], [fgi or ?*], [a-dk or ?*]
                letters = str(choices).split(" or ")[0]
                offered += letters
                for low, high in re.findall("([a-zA-Z])-([a-zA-Z])", letters):
                    offered += "".join(map(chr, range(ord(low), ord(high) + 1)))
            mask = np.array([key == MORE or chr(key) in offered for key in self._keys], np.int8)
            if not (offered and mask.any()):
                mask[:] = 1
            self._answers[message] = mask
        return mask

    def mask(self, obs: Mapping[str, Array], crop: Array, prompts: Array, message: bytes, action: int | None) -> Array:
        """(actions,) int8: 1 for those that may do something.

        `obs` are NLE's; in the middle of the crop is what the hero stands on; `prompts` says whether a question is
        open; `action` led here.
        """
        middle = len(crop) // 2
        around = crop[middle - 1 : middle + 2, middle - 1 : middle + 2]
        is_kick = action is not None and action == self._action.get(KICK)
        if prompts.any():
            mask = self.answers(message)
            return self._doors_of(around, mask) if is_kick and b"direction?" in message else mask
        mask = np.ones(len(self._keys), np.int8)
        stats, under = obs["blstats"], int(around[1, 1])
        walks = ~self._solid[around[self._rows, self._columns]]
        if walks.any() and not stats[25] & BLIND:
            mask[self._acts] = walks
        is_allowed = {
            MORE: False,
            KICK: any(int(around[cell]) in self._doors for cell in list(WALKS.values())[:4]),
            EAT: under in self._food or self._has_food(obs),
            DOWN: under in self._downs,
            UP: stats[12] > 1 and under in self._ups,
        }
        for key, place in self._action.items():
            mask[place] = is_allowed[key]
        return mask

    def _doors_of(self, around: Array, offered: Array) -> Array:
        """Of the directions that a kick may have, those of closed doors, if there are any; MORE takes the kick back."""
        mask: Array = offered.copy()
        for action, cell in self._ways.items():
            mask[action] &= cell.count(1) == 1 and int(around[cell]) in self._doors
        return mask

    def _has_food(self, obs: Mapping[str, Array]) -> bool:
        """Whether the hero has food that the actions have letters for."""
        letters = obs["inv_letters"][obs["inv_oclasses"] == self._food_class]
        return any(int(letter) in self._keys for letter in letters)
