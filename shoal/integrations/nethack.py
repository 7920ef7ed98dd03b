"""NetHack and MiniHack: `nethack:Score`, `minihack:Room-5x5`. Glyphs, a crop around the hero, stats and the message."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.integrations.framework import Framework, import_quietly, newest, plain
from shoal.integrations.text import Vocabulary
from shoal.spec import Array

MESSAGE = 24  # words of a message that are read
WORDS = Vocabulary((), buckets=1023)
CROP = 9  # cells a side
FONT = (6, 12)  # pixels of a character that `render` draws
COLORS = (  # of a terminal
    "#555555 #cd3131 #0dbc79 #966428 #2472c8 #bc3fbc #11a8cd #e5e5e5 #787878 #f14c4c #23d18b #f5f543 #3b8eea #d670d6 "
    "#29b8db #ffffff"
).split()


class NetHack(Framework):
    """The ids of nle that start with `NetHack`, or those of minihack that start with `MiniHack-`."""

    preprocessing = "glyphs (21x79) and a crop (9x9) as ids, 27 stats, the message as words"
    network = "embedded glyphs and convolutions, embedded words, then an LSTM of 256"
    options = {
        "train": {
            "total_steps": 10_000_000,
            "horizon": 64,
            "segment": 32,
            "epochs": 2,
            "minibatches": 8,
            "learning_rate": 2.5e-4,
            "gamma": 0.999,
            "entropy_coef": 0.005,
            "normalize_obs": True,
            "normalize_reward": True,
        },
        "eval": {"greedy": False},  # as published scores: actions are sampled
        "vec": {"num_envs": 32},
        "nn": {"hidden": 256, "layers": 1, "core": "lstm", "activation": "relu", "separate": False, "head_layers": 0},
    }

    def __init__(self, prefix: str, title: str, stem: str, example: str) -> None:
        super().__init__(prefix)
        self.title, self.stem, self.example = title, stem, example

    def names(self) -> list[str]:
        """The ids without the stem and without the version."""
        stems = {re.sub(r"-v\d+$", "", id) for id in self._ids()}
        return sorted(stem.removeprefix(self.stem).lstrip("-") or "NetHack" for stem in stems)

    def make(
        self,
        name: str,
        *,
        render_mode: str | None = None,
        message: bool = True,
        glyphs: bool = True,
        **params: Any,
    ) -> Any:
        """One game. message, glyphs: whether the message and the whole map are observed, beside the crop."""
        keys = ["glyphs", "blstats"] + ["message"] * message
        keys += ["tty_chars", "tty_colors"] if render_mode == "rgb_array" else []
        params = {"observation_keys": tuple(keys), "disable_env_checker": True, **params}
        wanted = {plain(f"{self.stem}{name}"), plain(name)}
        ids = [id for id in self._ids() if plain(re.sub(r"-v\d+$", "", id)) in wanted]
        env = gymnasium.make(newest(ids), **params)
        return Dungeon(env, render_mode, message, glyphs)

    def _ids(self) -> list[str]:
        import_ids(self.prefix)
        return [id for id in gymnasium.registry if id.startswith(self.stem)]


def import_ids(prefix: str) -> None:
    """Imports nle or minihack, which registers their ids."""
    import_quietly("nle" if prefix == "nethack" else "minihack")


class Dungeon(gymnasium.Env[Any, Any]):
    """NLE's observations in arrays that policies can encode."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, env: Any, render_mode: str | None, message: bool, glyphs: bool) -> None:
        from nle import nethack

        self.game, self.render_mode, self.action_space = env, render_mode, env.action_space

        count, ids = int(nethack.MAX_GLYPH) + 1, np.dtype(np.int16).type
        self._outside = int(nethack.NO_GLYPH)
        self._has_message, self._has_glyphs = message, glyphs
        height, width = env.observation_space["glyphs"].shape
        own: dict[str, Any] = {}
        own["blstats"] = spaces.Box(-np.inf, np.inf, env.observation_space["blstats"].shape, np.float32)
        own["crop"] = spaces.MultiDiscrete(np.full((CROP, CROP), count, ids), ids)
        if glyphs:
            own["glyphs"] = spaces.MultiDiscrete(np.full((height, width), count, ids), ids)
        if message:
            own["message"] = WORDS.space(MESSAGE)
        self.observation_space = spaces.Dict(own)
        self._padded = np.full((height + CROP, width + CROP), self._outside, np.int16)
        self._known: dict[bytes, Array] = {}
        self._screen: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts a game. The seeds of all games follow from the last one given."""
        super().reset(seed=seed)
        core, display = (int(value) for value in self.np_random.integers(2**31, size=2))
        self.game.unwrapped.seed(core, display, False)
        obs, _info = self.game.reset(options=options)
        return self._observe(obs), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One turn. Infos say only how a game ended."""
        obs, reward, terminated, truncated, info = self.game.step(int(action))
        ended = {"end_status": int(info["end_status"])} if terminated or truncated else {}
        return self._observe(obs), float(reward), terminated, truncated, ended

    def _observe(self, obs: Any) -> dict[str, Array]:
        glyphs, stats = obs["glyphs"], obs["blstats"]
        half = CROP // 2
        self._padded[half : half + glyphs.shape[0], half : half + glyphs.shape[1]] = glyphs
        column, row = int(stats[0]), int(stats[1])
        seen = {"blstats": stats.astype(np.float32), "crop": self._padded[row : row + CROP, column : column + CROP]}
        if self._has_glyphs:
            seen["glyphs"] = glyphs
        if self._has_message:
            seen["message"] = self._words(obs["message"].tobytes())
        if self.render_mode == "rgb_array":
            self._screen = obs["tty_chars"].copy(), obs["tty_colors"].copy()
        return seen

    def _words(self, message: bytes) -> Array:
        ids = self._known.get(message)
        if ids is None:
            if len(self._known) > 10_000:
                self._known.clear()
            text = message.split(b"\0")[0].decode("latin-1")
            ids = self._known[message] = WORDS.encode(text, MESSAGE)
        return ids

    def render(self) -> Any:
        """The terminal as pixels."""
        if self._screen is None:
            return None
        from PIL import Image, ImageDraw

        chars, colors = self._screen
        width, height = FONT
        image = Image.new("RGB", (chars.shape[1] * width, chars.shape[0] * height))
        pen = ImageDraw.Draw(image)
        for row, column in np.argwhere(chars != ord(" ")):
            place = (int(column) * width, int(row) * height)
            pen.text(place, chr(chars[row, column]), COLORS[int(colors[row, column]) % len(COLORS)])
        return np.asarray(image)

    def close(self) -> None:
        """Ends NetHack."""
        self.game.close()


class Nle(NetHack):
    """The tasks of the NetHack Learning Environment."""

    packages = {"nle": "nle>=1.2"}
    install = ("pip install --no-deps nle==1.3.0", "pip install cffi")
    notes = ("nle pins gymnasium==1.2.0, which --no-deps leaves out: it runs with newer ones.",)


FRAMEWORK = Nle("nethack", "tasks in NetHack", "NetHack", "Score")
