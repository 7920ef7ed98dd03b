"""Overcooked-AI's kitchens for two cooks: `overcooked:cramped_room`. They run in an environment of their own.

`shoal env add overcooked` makes it. (Shoal has the same game compiled: the env `overcooked`, without a colon.)
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from shoal.integrations.framework import Reference, import_quietly
from shoal.integrations.separate import Box, Discrete, Separate
from shoal.layout import Array

PLANES = 26  # of the lossless encoding


class Overcooked(Separate):
    """The layouts of overcooked-ai."""

    title = "kitchens for two cooks who share one reward (overcooked-ai)"
    packages = {"overcooked_ai_py": "overcooked-ai==1.1.0", "scipy": "scipy", "numpy": "numpy<2"}
    install = ("pip install overcooked-ai==1.1.0 scipy 'numpy<2'",)
    python = ">=3.9,<3.12"
    example = "cramped_room"
    pattern = "LAYOUT"
    preprocessing = "lossless planes, the own cook first; 400 steps; rewards of useful moves added by `shaped`"
    references = (Reference("cramped_room", 157, "two scripted cooks", "tests/overcooked_cooks.py"),)
    notes = (
        "overcooked-ai 1.1.0 uses names that numpy 2 removed, and does not declare that it needs scipy.",
        "Kitchens start the same each time: seeds change nothing, unless `--env.random-start true`.",
        "`--env.shaped 1.0` adds the rewards for useful moves that the field trains with; returns then hold them, too.",
    )

    def listed(self) -> list[str]:
        """The layouts for two cooks."""
        import_quietly("gym")
        from overcooked_ai_py.utils import read_layout_dict

        folder = _layouts()
        names = sorted(file[: -len(".layout")] for file in os.listdir(folder) if file.endswith(".layout"))
        return [name for name in names if _cooks(read_layout_dict(name)["grid"]) == 2]

    def make(
        self,
        name: str,
        *,
        render_mode: str | None = None,
        horizon: int = 400,
        shaped: float = 0.0,
        random_start: bool = False,
    ) -> Any:
        """One kitchen with the API of pettingzoo.ParallelEnv."""
        import_quietly("gym")
        from overcooked_ai_py.mdp.overcooked_mdp import OvercookedGridworld, Recipe

        Recipe.configure({})  # a layout that starts with a soup (tutorial_1) reads its recipe before it configures them
        return Kitchen(OvercookedGridworld.from_layout_name(name), horizon, shaped, random_start)


def _layouts() -> str:
    from overcooked_ai_py import static

    return str(static.LAYOUTS_DIR)


def _cooks(grid: str) -> int:
    return sum(grid.count(digit) for digit in "123456789")


class Kitchen:
    """One kitchen. Both cooks get the reward of a soup that is served."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    possible_agents = ("cook_0", "cook_1")

    def __init__(self, mdp: Any, horizon: int, shaped: float, random_start: bool) -> None:
        from overcooked_ai_py.mdp.actions import Action

        self.mdp, self.horizon, self.shaped, self.random_start = mdp, horizon, shaped, random_start
        self.moves = list(Action.INDEX_TO_ACTION)
        width, height = mdp.shape
        self._observation, self._action = Box(0, 255, (PLANES, width, height), np.uint8), Discrete(len(self.moves))
        self.agents: list[str] = []
        self.random = np.random.RandomState()
        self.state: Any = None
        self.tick = 0

    def observation_space(self, agent: str) -> Any:
        """Of one cook."""
        return self._observation

    def action_space(self, agent: str) -> Any:
        """North, south, east, west, stay, interact."""
        return self._action

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
        """Starts an episode."""
        if seed is not None:
            self.random = np.random.RandomState(seed % 2**32)
        self.tick, self.agents = 0, list(self.possible_agents)
        self.state = self.mdp.get_standard_start_state()
        if self.random_start:
            free = self.mdp.get_valid_player_positions()
            places = self.random.permutation(len(free))[:2]
            self.state = type(self.state).from_player_positions(
                [free[k] for k in places],
                bonus_orders=self.mdp.start_bonus_orders,
                all_orders=self.mdp.start_all_orders,
            )
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """One move of both cooks."""
        self.tick += 1
        moves = [self.moves[int(actions[agent])] for agent in self.possible_agents]
        self.state, facts = self.mdp.get_state_transition(self.state, moves)
        served = float(sum(facts["sparse_reward_by_agent"]))
        names, is_over = self.possible_agents, self.tick >= self.horizon
        own = facts["shaped_reward_by_agent"]
        rewards = {agent: served + self.shaped * float(own[k]) for k, agent in enumerate(names)}
        self.agents = [] if is_over else list(names)
        return (
            self._observe(),
            rewards,
            dict.fromkeys(names, False),
            dict.fromkeys(names, is_over),
            {agent: {} for agent in names},
        )

    def _observe(self) -> dict[str, Array]:
        planes = self.mdp.lossless_state_encoding(self.state, self.horizon)
        return {
            agent: np.ascontiguousarray(np.moveaxis(np.clip(own, 0, 255).astype(np.uint8), -1, 0))
            for agent, own in zip(self.possible_agents, planes)
        }

    def render(self) -> Array:
        """The kitchen as pixels."""
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        import pygame
        from overcooked_ai_py.visualization.state_visualizer import StateVisualizer

        surface = StateVisualizer().render_state(self.state, grid=self.mdp.terrain_mtx)
        return np.ascontiguousarray(pygame.surfarray.array3d(surface).swapaxes(0, 1))

    def close(self) -> None:
        """Does nothing: it holds no resources."""


FRAMEWORK = Overcooked("overcooked")
