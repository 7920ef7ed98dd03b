"""Stable Retro: `retro:Airstriker-Genesis`. Games of old consoles; all but one need a ROM of yours."""

from __future__ import annotations

import contextlib
import re
from typing import Any

from shoal.errors import ConfigError, UnknownEnv
from shoal.integrations.frames import Frames
from shoal.integrations.framework import Framework, import_quietly, plain


class Retro(Framework):
    """The games that stable-retro knows and whose ROM it has."""

    title = "games of old consoles (stable-retro)"
    packages = {"stable_retro": "stable-retro>=0.9"}
    extra = "retro"
    example = "Airstriker-Genesis"
    is_one_per_process = True
    pattern = "GAME"
    preprocessing = "skip 4, 84x84 grey, stack 4, rewards clipped to -1 .. 1"
    network = "NatureCNN, 512"
    options = {
        "train": {"total_steps": 10_000_000, "normalize_obs": False, "normalize_reward": False},
        "vec": {"num_envs": 8, "num_workers": 8, "backend": "process"},
        "nn": {"encoder": "nature"},
    }
    notes = (
        "There can be one emulator in a process: `--vec.num-workers` must equal `--vec.num-envs`.",
        "`python -m stable_retro.import FOLDER` adds the ROMs of a folder. Airstriker-Genesis is in the package.",
    )

    def names(self) -> list[str]:
        """The games whose ROM is installed."""
        data = import_quietly("stable_retro").data
        games = []
        for game in data.list_games():
            with contextlib.suppress(FileNotFoundError):
                data.get_romfile_path(game)
                games.append(game)
        return games

    def canonical(self, name: str) -> str:
        """The game, with or without its version. One without a ROM raises, with the command that adds it."""
        known = self.names()
        wanted = plain(re.sub(r"-v\d+$", "", name))
        for game in known:
            if plain(game) == plain(name) or plain(re.sub(r"-v\d+$", "", game)) == wanted:
                return game
        games = [game for game in import_quietly("stable_retro").data.list_games() if game not in known]
        others = [game for game in games if plain(game).startswith(wanted)]
        if others and not any(plain(game).startswith(wanted) for game in known):
            raise UnknownEnv(
                f"'retro:{name}' has no ROM here. Put the ROM of {others[0]} into a folder and add it: "
                "python -m stable_retro.import FOLDER"
            )
        return str(self.unknown(name, known))

    def make(
        self,
        name: str,
        *,
        render_mode: str | None = None,
        skip: int = 4,
        stack: int = 4,
        size: int = 84,
        grey: bool = True,
        clip_reward: bool = True,
        state: str = "",
        players: int = 1,
        **params: Any,
    ) -> Any:
        """One game. state: the name of a saved state to start from."""
        retro = import_quietly("stable_retro")
        options = {"use_restricted_actions": retro.Actions.DISCRETE, "players": players, **params}
        try:
            env = retro.make(
                name, state=state or retro.State.DEFAULT, render_mode=render_mode or "rgb_array", **options
            )
        except RuntimeError as error:
            if "multiple emulator" not in str(error):
                raise
            raise ConfigError(
                "retro: there can be one emulator in a process. Use as many workers as envs: "
                "--vec.num-envs 8 --vec.num-workers 8"
            ) from error
        return Frames(env, height=size, width=size, skip=skip, stack=stack, grey=grey, clip=clip_reward)


FRAMEWORK = Retro("retro")
