"""Records games of the Overcooked-AI package (`pip install overcooked-ai==1.1.0 "numpy<2"`) for test_overcooked.py.

    python tests/record_overcooked.py tests/data/overcooked.npz

Scripted cooks play, and a share of their actions is random, so that every rule happens: things are dropped, pots are
started early, cooks run into each other. After each action everything that the package says is written down.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
from overcooked_ai_py.mdp.actions import Action, Direction
from overcooked_ai_py.mdp.overcooked_mdp import OvercookedGridworld
from overcooked_cooks import Kitchen, play

LAYOUTS = {
    "cramped_room": "cramped_room",
    "asymmetric_advantages": "asymmetric_advantages",
    "coordination_ring": "coordination_ring",
    "forced_coordination": "forced_coordination",
    "counter_circuit": "counter_circuit_o_1order",  # the paper's kitchen: the plain name is another one with tomatoes
}
THINGS = ["", "onion", "dish"]
NOISES, STEPS = (0.1, 0.5), 400


def number_of(thing: Any) -> int:
    """0 nothing, 1 onion, 2 dish, 3 to 5 a soup of one to three onions."""
    if thing is None:
        return 0
    return 2 + len(thing.ingredients) if thing.name == "soup" else THINGS.index(thing.name)


def describe(world: Any, state: Any) -> Kitchen:
    pots = {}
    for pot in world.get_pot_locations():
        soup = state.objects.get(pot)
        pots[pot] = (len(soup.ingredients), not soup.is_idle, soup.is_ready) if soup else (0, False, False)
    return Kitchen(
        rows=["".join(row) for row in world.terrain_mtx],
        at=[player.position for player in state.players],
        facing=[Direction.DIRECTION_TO_INDEX[player.orientation] for player in state.players],
        held=[player.held_object.name if player.held_object else "" for player in state.players],
        things={cell: thing.name for cell, thing in state.objects.items() if cell not in pots},
        pots=pots,
    )


def numbers(world: Any, state: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Cooks as (x, y, facing, held), pots as (onions, steps cooked), and the things on counters of a 9 x 5 grid."""
    cooks = [
        [*player.position, Direction.DIRECTION_TO_INDEX[player.orientation], number_of(player.held_object)]
        for player in state.players
    ]
    pots = [[0, -1], [0, -1]]
    things = [[0] * 9 for _ in range(5)]
    for cell, thing in state.objects.items():
        if cell in world.get_pot_locations():
            pots[world.get_pot_locations().index(cell)] = [len(thing.ingredients), thing._cooking_tick]
        else:
            things[cell[1]][cell[0]] = number_of(thing)
    return cooks, pots, things


def record(name: str, noise: float, seed: int, steps: int = STEPS) -> dict[str, Any]:
    """A game of `steps` actions: what was done, and the state and the rewards after it."""
    world = OvercookedGridworld.from_layout_name(LAYOUTS[name])
    state, dice = world.get_standard_start_state(), random.Random(seed)
    seen: dict[str, Any] = {key: [] for key in ("actions", "cooks", "pots", "things", "points", "shaped")}
    for _ in range(steps):
        actions = [dice.randrange(6) if dice.random() < noise else play(describe(world, state), k) for k in (0, 1)]
        state, infos = world.get_state_transition(state, [Action.INDEX_TO_ACTION[action] for action in actions])
        values = (
            actions,
            *numbers(world, state),
            sum(infos["sparse_reward_by_agent"]),
            infos["shaped_reward_by_agent"],
        )
        for key, value in zip(seen, values):
            seen[key].append(value)
    return seen


def main() -> None:
    games = [record(name, noise, seed) for seed, name in enumerate(LAYOUTS) for noise in NOISES]
    arrays = {key: np.array([game[key] for game in games], np.int8) for key in games[0]}
    layouts = np.array([layout for layout in range(len(LAYOUTS)) for _ in NOISES], np.int8)
    np.savez_compressed(sys.argv[1], layouts=layouts, **arrays)
    for layout, game in zip(layouts, games):
        print(list(LAYOUTS)[layout], "points", sum(game["points"]), "shaped", np.sum(game["shaped"], 0).tolist())


if __name__ == "__main__":
    main()
