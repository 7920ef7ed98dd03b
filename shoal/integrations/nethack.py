"""NetHack and MiniHack: `nethack:Score`, `minihack:Room-5x5`. Glyphs, a crop around the hero, stats and the message."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.integrations.framework import Framework, Reference, import_quietly, newest, plain
from shoal.integrations.nethack_compass import FEATURES, Compass
from shoal.integrations.nethack_masks import Masks
from shoal.integrations.text import Vocabulary
from shoal.spec import Array

MESSAGE = 24  # words of a message that are read
WORDS = Vocabulary((), buckets=1023)
CROP = 9  # cells a side
# what the stats of NLE's `blstats` (in its order) are divided by; those without bounds become logarithms before
LOGARITHMS = [9, 13, 19, 20]  # score, gold, points of experience, time
CONDITIONS = 13  # bits of the stat that says stoned, blind, confused, ...
SCALES: Array = np.array(
    [79, 21, 25, 125, 25, 25, 25, 25, 25, 10, 50, 50, 10, 10, 50, 50, 10, 10, 10, 10, 10, 4, 4, 4, 10, 1, 1], np.float32
)
BITS: Array = np.arange(CONDITIONS)
STATS = 27 + CONDITIONS + 3  # the last: asked a question, asked for a line of text, told to press a key
ABORTED = -1  # nle's `end_status` of a game that ran into the time limit
FONT = (6, 12)  # pixels of a character that `render` draws
COLORS = (  # of a terminal
    "#555555 #cd3131 #0dbc79 #966428 #2472c8 #bc3fbc #11a8cd #e5e5e5 #787878 #f14c4c #23d18b #f5f543 #3b8eea #d670d6 "
    "#29b8db #ffffff"
).split()


OPTIONS: dict[str, Any] = {
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
# who sees the shortest ways needs no memory and no map: four times as fast, and further after 5M steps (docs/LOG.md)
SCORE: dict[str, Any] = {
    "train": {
        **OPTIONS["train"],
        "total_steps": 5_000_000,
        "horizon": 32,
        "segment": 0,
        "epochs": 4,
        "minibatches": 4,
        "learning_rate": 1e-3,
        "gamma": 0.995,
    },
    "eval": {"greedy": False},
    "vec": {"num_envs": 64},
    "nn": {**OPTIONS["nn"], "core": "none"},
    "env": {"glyphs": False, "compass": True, "mask": True},
    "reward": "shoal.integrations.nethack_explorer:Explorer",
}


class NetHack(Framework):
    """The ids of nle that start with `NetHack`, or those of minihack that start with `MiniHack-`."""

    preprocessing = "glyphs (21x79) and a crop (9x9) as ids, 43 scaled stats, the message as words"
    network = "embedded glyphs and convolutions, embedded words, then an LSTM of 256"
    options = OPTIONS

    def __init__(self, prefix: str, title: str, stem: str, example: str) -> None:
        super().__init__(prefix)
        self.title, self.stem, self.example = title, stem, example

    def names(self) -> list[str]:
        """The envs that can be made here."""
        return self.known()

    def known(self) -> list[str]:
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
        mask: bool = False,
        compass: bool = False,
        **params: Any,
    ) -> Any:
        """One game. message, glyphs: whether the message and the whole map are observed, beside the crop.

        mask: the policy does not choose actions that by what is seen would do nothing (`Masks`).
        compass: the shortest ways to the edge of what was seen, stairs, gold, monsters, ... are observed (`Compass`).
        """
        keys = ["glyphs", "blstats", "message"]
        keys += ["inv_letters", "inv_oclasses"] if mask else []
        keys += ["tty_chars", "tty_colors"] if render_mode == "rgb_array" else []
        params = {"observation_keys": tuple(keys), "disable_env_checker": True, **params}
        wanted = {plain(f"{self.stem}{name}"), plain(name)}
        ids = [id for id in self._ids() if plain(re.sub(r"-v\d+$", "", id)) in wanted]
        env = gymnasium.make(newest(ids), **params)
        return Dungeon(env, render_mode, message=message, glyphs=glyphs, mask=mask, compass=compass)

    def _ids(self) -> list[str]:
        import_ids(self.prefix)
        return [id for id in gymnasium.registry if id.startswith(self.stem)]


def import_ids(prefix: str) -> None:
    """Imports nle or minihack, which registers their ids."""
    import_quietly("nle" if prefix == "nethack" else "minihack")


def scaled(stats: Array, prompts: Array) -> Array:
    """(STATS,) numbers of about 1: NLE's `blstats`, conditions one by one, open prompts."""
    found: Array = np.empty(STATS, np.float32)
    found[:27] = stats
    found[25] = stats[10] / max(stats[11], 1)  # hit points of their maximum, in place of the conditions
    found[LOGARITHMS] = np.log1p(np.maximum(found[LOGARITHMS], 0.0))
    found[:27] /= SCALES
    found[27 : 27 + CONDITIONS] = stats[25] >> BITS & 1
    found[27 + CONDITIONS :] = prompts != 0
    return found.clip(-5.0, 5.0, out=found)


class Dungeon(gymnasium.Env[Any, Any]):
    """NLE's observations in arrays that policies can encode."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(
        self, env: Any, render_mode: str | None, *, message: bool, glyphs: bool, mask: bool, compass: bool
    ) -> None:
        from nle import nethack

        self.game, self.render_mode, self.action_space = env, render_mode, env.action_space

        count, ids = int(nethack.MAX_GLYPH) + 1, np.dtype(np.int16).type
        self._outside, self._unseen = int(nethack.NO_GLYPH), int(nethack.GLYPH_CMAP_OFF)
        self._has_message, self._has_glyphs = message, glyphs
        height, width = env.observation_space["glyphs"].shape
        own: dict[str, Any] = {}
        own["stats"] = spaces.Box(-5.0, 5.0, (STATS,), np.float32)
        own["crop"] = spaces.MultiDiscrete(np.full((CROP, CROP), count, ids), ids)
        if glyphs:
            own["glyphs"] = spaces.MultiDiscrete(np.full((height, width), count, ids), ids)
        if message:
            own["message"] = WORDS.space(MESSAGE)
        keys = [int(action) for action in env.unwrapped.actions]
        self._compass = Compass(keys) if compass else None
        if compass:
            own["compass"] = spaces.Box(0.0, 1.0, (FEATURES,), np.float32)
        self._masks = Masks(keys) if mask else None
        if mask:
            own["action_mask"] = spaces.Box(0, 1, (int(env.action_space.n),), np.int8)
        self.observation_space = spaces.Dict(own)
        self._padded = np.full((height + CROP, width + CROP), self._outside, np.int16)
        self._known: dict[bytes, Array] = {}
        self._seen: dict[str, Array] = {}  # the latest observation
        self._place: tuple[int, ...] | None = None  # where the hero stands
        self._under = self._unseen  # on what, as far as it was seen
        self._screen: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts a game. The seeds of all games follow from the last one given."""
        super().reset(seed=seed)
        core, display = (int(value) for value in self.np_random.integers(2**31, size=2))
        with contextlib.suppress(RuntimeError):  # NetHackChallenge takes no seed
            self.game.unwrapped.seed(core, display, False)
        obs, _info = self.game.reset(options=options)
        self._place = None
        if self._compass is not None:
            self._compass.reset()
        return self._observe(obs, None), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One turn. Infos say only how a game ended."""
        obs, reward, terminated, truncated, info = self.game.step(int(action))
        if not (terminated or truncated):
            return self._observe(obs, int(action)), float(reward), False, False, {}
        status = int(info["end_status"])
        if status == ABORTED:  # the time limit: nle calls it terminated, and has quit the game, whose last view is gone
            last = {key: value.copy() for key, value in self._seen.items()}  # that before this step
            return last, float(reward), False, True, {"end_status": status}
        return self._observe(obs, int(action)), float(reward), terminated, truncated, {"end_status": status}

    def _observe(self, obs: Any, action: int | None) -> dict[str, Array]:
        glyphs, stats = obs["glyphs"], obs["blstats"]
        half = CROP // 2
        whole = self._padded[half : half + glyphs.shape[0], half : half + glyphs.shape[1]]
        column, row = int(stats[0]), int(stats[1])
        level = int(stats[23]), int(stats[24])  # branch of the dungeon, level of it
        place = (*level, row, column)
        if place != self._place:  # what was seen there, such as stairs, which the hero now hides
            is_same_level = self._place is not None and level == self._place[:2]
            self._under = int(whole[row, column]) if is_same_level else self._unseen
            self._place = place
        whole[:] = glyphs
        crop = self._padded[row : row + CROP, column : column + CROP].copy()
        crop[half, half] = self._under
        game, message = self.game.unwrapped, obs["message"].tobytes()
        prompts = game.last_observation[game._internal_index][1:4]  # `misc`, which MiniHack does not hand out
        seen = {"stats": scaled(stats, prompts), "crop": crop}
        if self._compass is not None:
            seen["compass"] = self._compass.observe(glyphs, stats, prompts, message, action)
        if self._masks is not None:
            seen["action_mask"] = self._masks.mask(obs, crop, prompts, message, action)
        if self._has_glyphs:
            seen["glyphs"] = whole
        if self._has_message:
            seen["message"] = self._words(message)
        if self.render_mode == "rgb_array":
            self._screen = obs["tty_chars"].copy(), obs["tty_colors"].copy()
        self._seen = seen
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
    network = (
        "embedded glyphs and convolutions, embedded words, then an LSTM of 256; Score: without the map and the LSTM, "
        "with a compass"
    )
    references = (
        Reference(
            "Challenge", 3245, "APPO as a human monk, 2 billion steps, 1,024 games", "Sample Factory docs, NetHack"
        ),
    )
    notes = (
        "nle pins gymnasium==1.2.0, which --no-deps leaves out: it runs with newer ones.",
        "`Challenge` takes no seed, as in the competition: its games cannot be repeated.",
        "Score trains with a compass (the shortest ways to the edge of what was seen, stairs, gold, food, monsters and "
        "locked doors), with masks (no walks into walls, kicks at closed doors alone, ...) and with a reward for "
        "exploring beside the points. What is reported are the points. Without all of it, as in published runs: "
        "`--env.compass False --env.mask False --env.glyphs True --reward '' --nn.core lstm`.",
    )

    def options_for(self, name: str) -> Mapping[str, Any]:
        """Those of all, and of Score, in any spelling that `canonical` accepts."""
        own = plain(re.sub(r"-v\d+$", "", name)).removeprefix(plain(self.stem))
        return SCORE if own == "score" else self.options


FRAMEWORK = Nle("nethack", "tasks in NetHack", "NetHack", "Score")
