"""AEC envs as parallel envs: what all have in common, and those in which all agents act before anything moves.

PettingZoo's `aec_to_parallel` observes every agent twice in each step, and throws the first observation away. Here each
is observed once. And cooperative_pong, whose observations are its screen, is drawn once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.layout import Array


class AsParallel:
    """An AEC env, `env`, with the API of ParallelEnv. Subclasses reset and step it."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.possible_agents = list(env.possible_agents)
        self.metadata = getattr(env, "metadata", {})
        self.render_mode = getattr(env, "render_mode", None)
        self.agents: list[Any] = []

    @property
    def unwrapped(self) -> Any:
        """The AEC env without its wrappers."""
        return self.env.unwrapped

    def observation_space(self, agent: Any) -> Any:
        """Of one agent."""
        return self.env.observation_space(agent)

    def action_space(self, agent: Any) -> Any:
        """Of one agent."""
        return self.env.action_space(agent)

    def render(self) -> Any:
        """A frame."""
        return self.env.render()

    def state(self) -> Any:
        """The env's global state, where it has one."""
        return self.env.state()

    def close(self) -> None:
        """Closes the env."""
        self.env.close()


class Cycle(AsParallel):
    """What `pettingzoo.utils.aec_to_parallel` makes of an env, with the same results."""

    def __init__(self, converted: Any) -> None:
        super().__init__(converted.aec_env)
        self.aec_env = self.env
        if type(self.env).__module__ == "pettingzoo.butterfly.cooperative_pong.cooperative_pong":
            draw_once(self.env)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Starts an episode."""
        env = self.env
        env.reset(seed=seed, options=options)
        self.agents = env.agents[:]
        living = [agent for agent in env.agents if not (env.terminations[agent] or env.truncations[agent])]
        return {agent: env.observe(agent) for agent in living}, dict(env.infos)

    def step(self, actions: dict[Any, Any]) -> tuple[dict[Any, Any], ...]:
        """One action of every agent."""
        env = self.env
        rewards: dict[Any, Any] = {}
        for agent in env.agents:
            if agent != env.agent_selection:
                raise AssertionError(f"expected the turn of {agent!r}, and it is that of {env.agent_selection!r}")
            env.step(actions[agent])
            for other in env.agents:
                rewards[other] = rewards.get(other, 0) + env.rewards[other]
        terminations, truncations, infos = dict(env.terminations), dict(env.truncations), dict(env.infos)
        obs = {agent: env.observe(agent) for agent in env.agents}
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)
        self.agents = env.agents
        return obs, rewards, terminations, truncations, infos


def draw_once(env: Any) -> None:
    """Lets cooperative_pong draw its screen when an observation is wanted, and turn it into an array in C.

    PettingZoo 1.27 draws it after the turn of each agent, and not at all without a render mode: observations are black.
    """
    make = env._seed

    def remake(seed: int | None = None) -> None:
        make(seed)
        _draw_when_observed(env.env)

    env._seed = remake  # a seed makes another game
    env.render = lambda: type(env.env).render(env.env)
    _draw_when_observed(env.env)


def _draw_when_observed(game: Any) -> None:
    import pygame

    if game.render_mode == "human":
        return
    frames: list[Array] = []  # that of the last step, once it was drawn

    def frame() -> Array:
        if not frames:
            game.draw()
            pixels = np.frombuffer(pygame.image.tobytes(game.screen, "RGB"), np.uint8)
            frames.append(pixels.reshape(game.s_height, game.s_width, 3))
        return frames[0]

    game.render = frames.clear  # what `step` and `reset` call
    game.observe = game.state = frame
