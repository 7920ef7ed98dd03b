"""OpenSpiel: `openspiel:connect_four`. Games of one to ten players; a step is one move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.errors import ConfigError, did_you_mean
from shoal.integrations.framework import Framework, Reference
from shoal.integrations.masks import only_first
from shoal.spec import Array

SEED = "rng_seed"  # the param of games that draw random numbers themselves
WITHOUT_TENSORS = {"crossword"}  # games that declare observations as tensors and do not have them


class OpenSpiel(Framework):
    """The games of pyspiel that give observations as tensors."""

    title = "board, card and matrix games"
    packages = {"pyspiel": "open_spiel>=1.5"}
    extra = "openspiel"
    example = "connect_four"
    also = ("kuhn_poker", "2048")
    pattern = "GAME"
    preprocessing = "the observation tensor of each player, and whether it is to move; action masks; chance is drawn"
    network = "layers of 64 with masks; one policy for all players"
    references = (
        Reference("kuhn_poker", -0.0556, "the first player's return if both play optimally, -1/18", "Kuhn 1950"),
    )
    notes = (
        "A game's own parameters are params: `openspiel:go --env.board-size 9`.",
        "Games of mean fields, and games without tensors, are left out.",
        "Where players move in turns, observations have one more plane (or number) at the end of their first axis: 1 "
        "for the player to move. Most boards look alike to both. `--env.turn False` leaves it out.",
    )

    def names(self) -> list[str]:
        """The games that can be loaded with their default parameters."""
        import pyspiel

        games = {game.short_name for game in pyspiel.registered_games() if _is_playable(game)}
        return sorted(games - WITHOUT_TENSORS)

    def known(self) -> list[str]:
        """Besides `names` those without tensors."""
        return [*self.names(), *WITHOUT_TENSORS]

    def params(self, name: str) -> dict[str, str] | None:
        """The game's own parameters."""
        import pyspiel

        known = pyspiel.load_game(name).get_parameters()
        return {"render_mode": "None", "max_moves": "0", "turn": "True"} | {
            key: repr(value) for key, value in known.items()
        }

    def check_params(self, name: str, given: Mapping[str, Any]) -> None:
        """Raises for a parameter that the game does not have."""
        import pyspiel

        kind = next((game for game in pyspiel.registered_games() if game.short_name == name), None)
        known = ["max_moves", "turn", *(kind.parameter_specification if kind else ())]
        for key in given:
            if kind is not None and key not in known:
                raise ConfigError(
                    f"openspiel:{name} has no param '{key}'.{did_you_mean(key, known)} It has {', '.join(known)}."
                )

    def make(
        self, name: str, *, render_mode: str | None = None, max_moves: int = 0, turn: bool = True, **params: Any
    ) -> Any:
        """One game. max_moves: moves after which it is truncated; 0: the game's own end. turn: whether it is seen."""
        import pyspiel

        try:
            game = pyspiel.load_game(name, params)
        except RuntimeError as error:
            raise ConfigError(f"openspiel:{name} cannot be loaded with {params}: {error}") from error
        try:
            return Game(game, render_mode, max_moves, turn, None if SEED in params else params)
        except RuntimeError as error:  # some games declare tensors that they do not have
            raise ConfigError(
                f"openspiel:{name} has no observations as tensors, though it declares them: {error} "
                "Choose another game: 'shoal envs openspiel:' lists them."
            ) from error


def _is_playable(game: Any) -> bool:
    import pyspiel

    kinds = (pyspiel.GameType.Dynamics.SEQUENTIAL, pyspiel.GameType.Dynamics.SIMULTANEOUS)
    has_tensor = game.provides_observation_tensor or game.provides_information_state_tensor
    return bool(game.default_loadable and has_tensor and game.dynamics in kinds)


class Game:
    """A game with the API of ParallelEnv. Only the action of a player who is to move counts.

    Another player's mask leaves one choice, from which nothing is learned. `acting` in the infos says who is to move.
    So does the last plane of observations, if `turn`: a critic that cannot tell a board before the own move from one
    before another's learns their mean.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 2}

    def __init__(
        self,
        game: Any,
        render_mode: str | None,
        max_moves: int,
        turn: bool,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        """`params`: with which the game is loaded anew for a seed, if it draws random numbers of its own."""
        import pyspiel

        self.game, self.render_mode, self.max_moves = game, render_mode, max_moves
        kind = game.get_type()
        self._params = params if SEED in kind.parameter_specification else None
        self._uses_observation = kind.provides_observation_tensor
        shape = game.observation_tensor_shape() if self._uses_observation else game.information_state_tensor_shape()
        self.num_choices = game.num_distinct_actions()
        self.possible_agents = [f"player_{k}" for k in range(game.num_players())]
        self.agents: list[str] = []
        has_turns = game.num_players() > 1 and kind.dynamics == pyspiel.GameType.Dynamics.SEQUENTIAL
        self._shows_turn, self._shape = turn and has_turns, tuple(shape)
        shape = (shape[0] + self._shows_turn, *shape[1:])
        self._observation_space = spaces.Box(-np.inf, np.inf, shape, np.float32)
        self._action_space = spaces.Discrete(self.num_choices)
        self._rng = np.random.default_rng()
        self.state: Any = None
        self.moves = 0

    def observation_space(self, agent: Any) -> Any:
        """The same for all players."""
        return self._observation_space

    def action_space(self, agent: Any) -> Any:
        """The same for all players."""
        return self._action_space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Starts a game."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
            if self._params is not None:
                self.game = self._load(int(self._rng.integers(2**31)))
        self.state, self.moves = self.game.new_initial_state(), 0
        self._draw_chance()
        self.agents = list(self.possible_agents)
        return self._observe()

    def _load(self, seed: int) -> Any:
        import pyspiel

        return pyspiel.load_game(self.game.get_type().short_name, {**(self._params or {}), SEED: seed})

    def _draw_chance(self) -> None:
        while self.state.is_chance_node():
            outcomes = self.state.chance_outcomes()
            odds = np.array([odd for _, odd in outcomes])
            self.state.apply_action(outcomes[int(self._rng.choice(len(odds), p=odds / odds.sum()))][0])

    def step(self, actions: dict[Any, Any]) -> tuple[dict[Any, Any], ...]:
        """One move, or one move of every player in games of simultaneous moves."""
        state, before = self.state, np.array(self.state.returns())
        if state.is_simultaneous_node():
            state.apply_actions([self._legal(k, int(actions[agent])) for k, agent in enumerate(self.possible_agents)])
        else:
            mover = state.current_player()
            state.apply_action(self._legal(mover, int(actions[self.possible_agents[mover]])))
        self._draw_chance()
        self.moves += 1
        # by returns, not rewards: the moves of chance have rewards, too
        gained = np.array(state.returns()) - before
        over = state.is_terminal()
        cut = not over and self.max_moves > 0 and self.moves >= self.max_moves
        obs, infos = self._observe()
        agents = self.possible_agents
        if over or cut:
            self.agents = []
        rewards = {agent: float(gained[k]) for k, agent in enumerate(agents)}
        return obs, rewards, dict.fromkeys(agents, over), dict.fromkeys(agents, cut), infos

    def _legal(self, player: int, action: int) -> int:
        """The action; the first legal one in place of a forbidden one, which a random policy may choose."""
        legal = self.state.legal_actions(player)
        return action if action in legal else legal[0]

    def _observe(self) -> tuple[dict[Any, Any], dict[Any, Any]]:
        obs, infos = {}, {}
        state, over = self.state, self.state.is_terminal()
        for k, agent in enumerate(self.possible_agents):
            acting = not over and (state.is_simultaneous_node() or state.current_player() == k)
            obs[agent] = self._tensor(k, acting)
            legal = state.legal_actions(k) if acting else []
            mask = only_first(self.num_choices)
            if legal:
                mask[0] = 0
                mask[legal] = 1
            infos[agent] = {"action_mask": mask, "acting": acting}
        return obs, infos

    def _tensor(self, player: int, acting: bool) -> Array:
        state = self.state
        values = state.observation_tensor(player) if self._uses_observation else state.information_state_tensor(player)
        tensor = np.array(values, np.float32).reshape(self._shape)
        if not self._shows_turn:
            return tensor
        return np.concatenate([tensor, np.full_like(tensor[:1], acting)])

    def render(self) -> Any:
        """The state's text as pixels."""
        from PIL import Image, ImageDraw

        image = Image.new("RGB", (480, 320))
        ImageDraw.Draw(image).multiline_text((8, 8), str(self.state), (230, 230, 230))
        return np.asarray(image)

    def close(self) -> None:
        """Nothing is open."""


FRAMEWORK = OpenSpiel("openspiel")
