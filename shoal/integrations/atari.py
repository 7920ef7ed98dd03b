"""Atari 2600 games: `atari:Breakout`. ALE is stepped directly, with the wrappers that the field uses.

Machado et al. 2018 ("Revisiting the Arcade Learning Environment") describe them; Mnih et al. 2015 used them first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.errors import ConfigError
from shoal.integrations.frames import Stack, shrink
from shoal.integrations.framework import Framework, Reference
from shoal.spec import Array

FRAMES_PER_GAME = 108_000  # half an hour at 60 frames per second


class Atari(Framework):
    """The games of ale-py, whose ROMs it brings."""

    title = "Atari 2600 games"
    packages = {"ale_py": "ale-py>=0.11"}
    extra = "atari"
    example = "Breakout"
    pattern = "GAME"
    preprocessing = "up to 30 no-ops, skip 4, maximum of 2 frames, 84x84 grey, stack 4, rewards clipped to -1 .. 1"
    network = "NatureCNN, 512; `--nn.encoder impala` for the IMPALA network"
    options = {
        "train": {
            "total_steps": 10_000_000,
            "horizon": 128,
            "epochs": 4,
            "minibatches": 4,
            "learning_rate": 2.5e-4,
            "clip": 0.1,
            "entropy_coef": 0.01,
            "normalize_reward": False,
            "normalize_obs": False,
        },
        "eval": {"greedy": False},  # as published scores: actions are sampled
        "vec": {"num_envs": 8},
        "nn": {"encoder": "nature", "hidden": 512, "layers": 1, "activation": "relu", "separate": False},
        "dqn": {
            "train": {"total_steps": 10_000_000, "replay_size": 100_000, "replay_start": 20_000, "learning_rate": 1e-4}
        },
    }
    references: ClassVar[tuple[Reference, ...]] = (
        Reference("Pong", 20.7, "PPO, 10M steps, 3 seeds", "Schulman et al. 2017, table 6"),
        Reference("Breakout", 274.8, "PPO, 10M steps, 3 seeds", "Schulman et al. 2017, table 6"),
    )
    notes: ClassVar[tuple[str, ...]] = (
        "Steps count decisions: 4 frames each.",
        "`--env.episodic-life True` ends an episode for the learner with each life. Returns of training are then of a "
        "life; evaluations play whole games, and press FIRE after each life as training did.",
        "`--env.sticky 0.25` repeats actions as ALE's v5 ids do.",
        "`ale:` steps the same games in ALE's own vector env.",
    )

    def names(self) -> list[str]:
        """The games, as ALE's ids spell them: those whose ROM is found, and that can be played by one.

        ALE ends the process when it loads the ROM of one of its games for two: Combat, Joust, MazeCraze, Warlords.
        """
        from ale_py import ALEInterface, roms

        known = (rom for rom in roms.get_all_rom_ids() if ALEInterface.isSupportedROM(roms.get_rom_path(rom)))
        return sorted(map(_title, known))

    def canonical(self, name: str) -> str:
        """`Breakout` also for `ALE/Breakout-v5` and `BreakoutNoFrameskip-v4`."""
        return super().canonical(re.sub(r"^ALE/|(NoFrameskip|Deterministic)?-v\d+$", "", name))

    def evaluation_params(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Scores are of whole games."""
        return {"episodic_life": False, "fire_lives": True} if given.get("episodic_life") else {}

    def make(
        self,
        name: str,
        *,
        render_mode: str | None = None,
        skip: int = 4,
        stack: int = 4,
        size: int = 84,
        grey: bool = True,
        noops: int = 30,
        sticky: float = 0.0,
        fire: bool = True,
        fire_lives: bool = False,
        clip_reward: bool = True,
        episodic_life: bool = False,
        full_action_space: bool = False,
        max_frames: int = FRAMES_PER_GAME,
        mode: int | None = None,
        difficulty: int | None = None,
    ) -> Any:
        """One game."""
        check_frames(f"atari:{name}", skip, stack, size)
        if noops < 0 or not 0 <= sticky <= 1 or max_frames < 1:
            raise ConfigError(
                f"atari:{name}: noops={noops} must be at least 0, sticky={sticky:g} in 0 .. 1, "
                f"max_frames={max_frames} at least 1."
            )
        return Game(
            name,
            render_mode=render_mode,
            skip=skip,
            stack=stack,
            size=size,
            grey=grey,
            noops=noops,
            sticky=sticky,
            fire=fire,
            fire_lives=fire_lives,
            clip_reward=clip_reward,
            episodic_life=episodic_life,
            full_action_space=full_action_space,
            max_frames=max_frames,
            mode=mode,
            difficulty=difficulty,
        )


def _title(rom: str) -> str:
    return "".join(word.capitalize() for word in rom.split("_"))


def check_frames(env: str, skip: int, stack: int, size: int) -> None:
    """Raises for frames that cannot be."""
    if skip < 1 or stack < 1 or not 20 <= size <= 210:
        raise ConfigError(f"{env}: skip={skip} and stack={stack} must be at least 1, size={size} in 20 .. 210.")


def rom_of(name: str) -> str:
    """The name of a game's ROM."""
    from ale_py import roms

    return str(next(rom for rom in roms.get_all_rom_ids() if _title(rom) == name))


class Game(gymnasium.Env[Any, Any]):
    """One game with its wrappers. Observations are (stack, size, size) uint8, oldest frame first.

    The stack is one array, which the runner copies.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 15}

    def __init__(
        self,
        name: str,
        *,
        render_mode: str | None,
        skip: int,
        stack: int,
        size: int,
        grey: bool,
        noops: int,
        sticky: float,
        fire: bool,
        fire_lives: bool,
        clip_reward: bool,
        episodic_life: bool,
        full_action_space: bool,
        max_frames: int,
        mode: int | None,
        difficulty: int | None,
    ) -> None:
        import ale_py
        from ale_py import roms

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale = ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", sticky)
        self.ale.setInt("max_num_frames_per_episode", 0)  # the limit is counted here
        self._name, self._rom = name, roms.get_rom_path(rom_of(name))
        self.game_mode, self.difficulty = mode, difficulty
        self._load(0)
        self.actions = self.ale.getLegalActionSet() if full_action_space else self.ale.getMinimalActionSet()
        self.render_mode = render_mode
        self.skip, self.noops, self.max_frames = skip, noops, max_frames
        self.clip_reward, self.episodic_life = clip_reward, episodic_life
        self._fire = ale_py.Action.FIRE if fire and ale_py.Action.FIRE in self.actions else None
        self._noop, self.fire_lives = ale_py.Action.NOOP, fire_lives
        height, width = self.ale.getScreenDims()
        shape = (height, width) if grey else (height, width, 3)
        self._screens: list[Array] = [np.zeros(shape, np.uint8) for _ in range(2)]
        self._read = self.ale.getScreenGrayscale if grey else self.ale.getScreenRGB
        self._stack = Stack(stack, (1 if grey else 3, size, size))
        self.size = size
        self.observation_space = self._stack.space
        self.action_space = spaces.Discrete(len(self.actions))
        self.unshaped_return = 0.0  # of the episode, not clipped: the runner reports it
        self._goes_on = False  # the episode was a life, and its game is not over
        self._lives = 0

    def _load(self, seed: int) -> None:
        self.ale.setInt("random_seed", seed)
        self.ale.loadROM(self._rom)
        if self.game_mode is not None:
            self._check("mode", self.game_mode, self.ale.getAvailableModes())
            self.ale.setMode(self.game_mode)
        if self.difficulty is not None:
            self._check("difficulty", self.difficulty, self.ale.getAvailableDifficulties())
            self.ale.setDifficulty(self.difficulty)

    def _check(self, what: str, value: int, known: Sequence[int]) -> None:
        if value not in known:
            shown = ", ".join(map(str, sorted(known)))
            raise ConfigError(f"atari:{self._name} has no {what} {value}. It has {shown}.")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        """Starts a game; with `episodic_life`, after a life the next one of its game."""
        super().reset(seed=seed)
        if seed is not None:
            self._load(int(self.np_random.integers(2**31)))
            self._goes_on = False
        self.unshaped_return = 0.0
        if not self._goes_on:
            self.ale.reset_game()
            count = int(self.np_random.integers(1, self.noops + 1)) if self.noops else 0
            for _ in range(count):
                self.ale.act(self._noop)
                if self.ale.game_over():
                    self.ale.reset_game()
        else:
            self.ale.act(self._noop)
        if self._fire is not None:
            self.ale.act(self._fire)
            if self.ale.game_over():
                self.ale.reset_game()
        self._goes_on = False
        self._lives = self.ale.lives()
        self._read(self._screens[1])
        return self._stack.fill(self._small(self._screens[1])), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """`skip` frames with one action."""
        ale, move, total = self.ale, self.actions[int(action)], 0.0
        for k in range(self.skip):
            total += ale.act(move)
            if ale.game_over():
                break
            if k == self.skip - 2:
                self._read(self._screens[0])
        if self.fire_lives and self._fire is not None and ale.lives() < self._lives and not ale.game_over():
            total += ale.act(self._noop) + ale.act(self._fire)  # as `reset` does
        self._read(self._screens[1])
        screen = np.maximum(*self._screens) if self.skip > 1 and k == self.skip - 1 else self._screens[1]
        self.unshaped_return += total
        lives = ale.lives()
        is_dead = self.episodic_life and lives < self._lives
        self._lives = lives
        over = ale.game_over()
        truncated = not over and ale.getEpisodeFrameNumber() >= self.max_frames
        self._goes_on = is_dead and not (over or truncated)
        reward = float(np.sign(total)) if self.clip_reward else total
        return self._stack.push(self._small(screen)), reward, over or is_dead, truncated and not is_dead, {}

    def _small(self, screen: Array) -> Array:
        return shrink(screen, self.size, self.size)

    def render(self) -> Any:
        """The whole screen in colour."""
        return self.ale.getScreenRGB() if self.render_mode == "rgb_array" else None


FRAMEWORK = Atari("atari")
