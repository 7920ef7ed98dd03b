"""PyBoy: `pyboy:PokemonRed`. Game Boy games of which you have the ROM."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.errors import ConfigError, UnknownEnv
from shoal.integrations.frames import Stack, shrink
from shoal.integrations.framework import Framework, import_quietly, plain
from shoal.spec import Array

BUTTONS = ("", "a", "b", "start", "up", "down", "left", "right")
SUFFIXES = (".gb", ".gbc")
# addresses in the memory of Pokémon Red
BADGES, MAP, Y, X, PARTY_SIZE = 0xD356, 0xD35E, 0xD361, 0xD362, 0xD163
LEVELS = (0xD18C, 0xD1B8, 0xD1E4, 0xD210, 0xD23C, 0xD268)


def rom_folder() -> Path:
    """Where ROMs are looked for: SHOAL_ROMS, or ~/.local/share/shoal/roms."""
    return Path(os.environ.get("SHOAL_ROMS") or Path.home() / ".local/share/shoal/roms").expanduser()


class PyBoyGames(Framework):
    """The ROMs in one folder."""

    title = "Game Boy games, with ROMs of yours"
    packages = {"pyboy": "pyboy>=2.4"}
    extra = "pyboy"
    example = "PokemonRed"
    pattern = "ROM"
    preprocessing = "72x80 grey, stack 3, 24 frames for each action"
    network = "NatureCNN, 512"
    options = {
        "train": {"total_steps": 10_000_000, "horizon": 256, "normalize_obs": False},
        "vec": {"num_envs": 8},
        "nn": {"encoder": "nature"},
    }
    notes = (
        "ROMs are files NAME.gb in the folder SHOAL_ROMS (default ~/.local/share/shoal/roms); NAME.state beside it is "
        "where episodes start.",
        "Pokémon Red's reward: 0.01 for each new place, 1 for each level of the party, 10 for each badge. Other games: "
        "0.01 for each new screen. `--reward mine:Reward` replaces it.",
        "Pokémon Red is not free: no result of ours.",
    )

    def names(self) -> list[str]:
        """The ROMs in the folder."""
        folder = rom_folder()
        files = folder.iterdir() if folder.is_dir() else ()
        return sorted(path.stem for path in files if path.suffix in SUFFIXES)

    def canonical(self, name: str) -> str:
        """A ROM of the folder, or the path of one."""
        if name.endswith(SUFFIXES):
            path = Path(name).expanduser()
            if not path.is_file():
                raise UnknownEnv(f"'pyboy:{name}': there is no such file.")
            return str(path.resolve())
        known = self.names()
        for other in known:
            if plain(other) == plain(name):
                return other
        raise UnknownEnv(
            f"'pyboy:{name}': there is no ROM {name}.gb in {rom_folder()}. Put yours there, or name its path: "
            f"pyboy:/path/to/{name}.gb. " + (f"It has {', '.join(known)}." if known else "PyBoy comes without games.")
        )

    def make(
        self,
        name: str,
        *,
        render_mode: str | None = None,
        frames: int = 24,
        stack: int = 3,
        max_steps: int = 2048,
        state: str = "",
    ) -> Any:
        """One game. frames: of each action; state: a file of PyBoy's save_state to start from."""
        folder = rom_folder()
        path = (
            Path(name)
            if name.endswith(SUFFIXES)
            else next(folder / f"{name}{suffix}" for suffix in SUFFIXES if (folder / f"{name}{suffix}").is_file())
        )
        beside = path.with_suffix(".state")
        start = Path(state).expanduser() if state else beside if beside.is_file() else None
        if start is not None and not start.is_file():
            raise ConfigError(f"pyboy:{name}: state={state}: there is no such file.")
        if frames < 9 or stack < 1 or max_steps < 1:
            raise ConfigError(
                f"pyboy:{name}: frames={frames} must be at least 9 (a button is held for 8), stack={stack} and "
                f"max_steps={max_steps} at least 1."
            )
        return Game(path, start, render_mode, frames, stack, max_steps)


class Game(gymnasium.Env[Any, Any]):
    """One emulator. Every episode starts from the same state: the emulator has no random numbers."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}

    def __init__(
        self, rom: Path, start: Path | None, render_mode: str | None, frames: int, stack: int, max_steps: int
    ) -> None:
        pyboy = import_quietly("pyboy")
        self.emulator: Any = pyboy.PyBoy(str(rom), window="null", sound_emulated=False, log_level="ERROR")
        self.render_mode, self.frames, self.max_steps = render_mode, frames, max_steps
        self.is_pokemon_red = "POKEMON RED" in str(self.emulator.cartridge_title).upper()
        if start is not None:
            with open(start, "rb") as file:
                self.emulator.load_state(file)
        else:
            self.emulator.tick(120, True)  # the logo
        self._start = io.BytesIO()
        self.emulator.save_state(self._start)
        self._stack = Stack(stack, (1, 72, 80))
        self.observation_space = self._stack.space
        self.action_space = spaces.Discrete(len(BUTTONS))
        self._seen: set[Any] = set()
        self._best = (0, 0)
        self.ticks = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        """Loads the first state."""
        super().reset(seed=seed)
        self._start.seek(0)
        self.emulator.load_state(self._start)
        self.emulator.tick(1, True)
        frame = self._frame()
        self._seen, self._best, self.ticks = {self._place(frame)}, self._progress(), 0
        return self._stack.fill(frame), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """A button is held for 8 frames of `frames`."""
        button = BUTTONS[int(action)]
        if button:
            self.emulator.button(button, 8)
        self.emulator.tick(self.frames, True)
        self.ticks += 1
        frame = self._frame()
        place = self._place(frame)
        reward = 0.0 if place in self._seen else 0.01
        self._seen.add(place)
        badges, levels = self._progress()
        reward += 10.0 * max(badges - self._best[0], 0) + 1.0 * max(levels - self._best[1], 0)
        self._best = max(badges, self._best[0]), max(levels, self._best[1])
        return self._stack.push(frame), reward, False, self.ticks >= self.max_steps, {}

    def _frame(self) -> Array:
        return shrink(np.ascontiguousarray(self.emulator.screen.ndarray[:, :, 0]), 72, 80)

    def _place(self, frame: Array) -> Any:
        """Where the player is; in games whose memory is not known, what the screen shows."""
        memory = self.emulator.memory
        return (memory[MAP], memory[Y], memory[X]) if self.is_pokemon_red else (frame[0, ::6, ::6] >> 6).tobytes()

    def _progress(self) -> tuple[int, int]:
        """(badges, levels of the party) of Pokémon Red."""
        if not self.is_pokemon_red:
            return 0, 0
        memory = self.emulator.memory
        size = min(int(memory[PARTY_SIZE]), len(LEVELS))
        return int(memory[BADGES]).bit_count(), sum(int(memory[address]) for address in LEVELS[:size])

    def render(self) -> Any:
        """The screen, 144x160 pixels."""
        return np.ascontiguousarray(self.emulator.screen.ndarray[:, :, :3]) if self.render_mode else None

    def close(self) -> None:
        """Ends the emulator without saving."""
        self.emulator.stop(save=False)


FRAMEWORK = PyBoyGames("pyboy")
