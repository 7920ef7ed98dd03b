"""MiniGrid and BabyAI: `minigrid:DoorKey-8x8`, `babyai:GoToRedBall`. The mission is encoded as words."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import io
import re
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.errors import ConfigError
from shoal.integrations.framework import Framework, Reference, newest, plain
from shoal.integrations.text import EncodeText, Vocabulary
from shoal.spec import Array

# every word of MiniGrid's and BabyAI's missions, so that a policy can be moved between their envs
WORDS = Vocabulary(
    """a after and at avoid ball behind blue box door end fetch find from front get go goal green grey hallway in key
    lava left matching must near next object of on open opening pick purple put reach red right room rooms square the
    then to traverse unlock up use yellow you your""".split()
)
LENGTH = 48  # words: BabyAI's longest missions have about 40


class MiniGrid(Framework):
    """The ids that start with `MiniGrid-`, or with `BabyAI-`."""

    packages = {"minigrid": "minigrid>=3"}
    extra = "minigrid"
    # The view is partial, so the policy has a memory. A rollout of 128 steps holds whole episodes of FourRooms (at most
    # 100 steps). Many envs, because with 16 some seeds stay at 0.42 to 0.53 (docs/LOG.md).
    options = {
        "train": {
            "total_steps": 4_000_000,
            "horizon": 128,
            "epochs": 4,
            "minibatches": 8,
            "learning_rate": 1.5e-3,
            "gamma": 0.98,
            "gae_lambda": 0.9,
            "normalize_obs": False,
        },
        "vec": {"num_envs": 64},
        "nn": {"hidden": 128, "layers": 1, "core": "mingru", "head_layers": 0, "activation": "relu", "separate": False},
        "eval": {"greedy": False},
    }
    preprocessing = (
        "7x7 cells as planes of 0 and 1: the kind of each, a door's state, colors; direction; the mission as word ids, "
        "embedded"
    )
    network = "a layer of 128 and a MinGRU of 128; missions as embedded words, convolved"
    references: ClassVar[tuple[Reference, ...]] = (
        Reference("DoorKey-5x5", 0.97, "PPO, 1 seed", "RL Zoo, model sb3/ppo-MiniGrid-DoorKey-5x5-v0"),
        Reference("FourRooms", 0.573, "PPO, 5M steps", "RL Baselines3 Zoo"),
    )
    notes = (
        "`--env.mission false` leaves the mission out: most MiniGrid envs have one mission only.",
        "`--env.view full` observes the whole grid, `--env.view pixels` the picture of it.",
        "`--env.planes False` observes MiniGrid's own bytes (kind, color and state of a cell), which are learned from "
        "more slowly: FourRooms returned 0.32 after 1M steps, and 0.57 with planes (one seed each, our native copy).",
    )

    def __init__(self, prefix: str, title: str, stem: str, example: str) -> None:
        super().__init__(prefix)
        self.title, self.stem, self.example = title, stem, example

    def names(self) -> list[str]:
        """The ids without their prefix and, for the newest, without their version; those that can be made here."""
        return [name for name in self.known() if not _lacking(self.stem + name)]

    def known(self) -> list[str]:
        """Also those that need more."""
        ids = [id for id in _registry() if id.startswith(self.stem)]
        stems = sorted({re.sub(r"-v\d+$", "", id) for id in ids})
        return [stem.removeprefix(self.stem) for stem in stems]

    def canonical(self, name: str) -> str:
        """The name without `MiniGrid-`; its version stays if it has one."""
        stem, version = re.fullmatch(r"(.*?)(-v\d+)?", name.removeprefix(self.stem)).groups()  # type: ignore[union-attr]
        own = super().canonical(stem)
        if missing := _lacking(self.stem + own):
            raise ConfigError(f"{self.prefix}:{name} {missing}")
        return own + (version or "")

    def make(
        self,
        name: str,
        *,
        render_mode: str | None = None,
        mission: bool | None = None,
        view: str = "agent",
        planes: bool = True,
        **params: Any,
    ) -> Any:
        """One env. mission: whether the mission is observed; default: where the env has more than one.

        planes: whether cells are planes of 0 and 1, or MiniGrid's bytes.
        view: `agent` (7x7 cells before the agent), `full` (the whole grid), `pixels` (a picture of the agent's view).
        """
        from minigrid import wrappers

        views = {"agent": None, "full": wrappers.FullyObsWrapper, "pixels": wrappers.RGBImgPartialObsWrapper}
        if view not in views:
            raise ConfigError(f"{self.prefix}:{name}: view={view!r} must be one of {', '.join(views)}.")
        env: Any = gymnasium.make(self._id(name), render_mode=render_mode, disable_env_checker=True, **params)
        wrapper = views[view]
        env = env if wrapper is None else wrapper(env)
        env = Planes(env, has_agent=view == "full") if planes and view != "pixels" else env
        env = Quiet(env) if self.prefix == "babyai" else env
        is_varied = self.prefix == "babyai" or getattr(env.observation_space["mission"], "ordered_placeholders", None)
        if mission or (mission is None and is_varied):
            return EncodeText(env, "mission", WORDS, LENGTH)
        return gymnasium.wrappers.FilterObservation(env, [key for key in env.observation_space if key != "mission"])

    def _id(self, name: str) -> str:
        ids = _registry()
        wanted = plain(f"{self.stem}{name}")
        matching = [id for id in ids if plain(id) == wanted] or [
            id for id in ids if plain(re.sub(r"-v\d+$", "", id)) == wanted
        ]
        return newest(matching) if matching else self.unknown(name, self.names())


class Planes(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Cells as planes of 0 and 1 in place of three numbers, which are names: (height, width, planes).

    The planes: each kind of cell, with doors by their state; then the color, of cells that an agent can tell apart by
    it. Walls and empty cells have none. A cell that is not seen is 0 in all planes, as in our native copies.
    """

    def __init__(self, env: Any, *, has_agent: bool) -> None:
        super().__init__(env)
        from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX

        kinds, states = max(OBJECT_TO_IDX.values()) + 1, 4  # 4 states: an agent's is where it faces
        unseen, door, agent = (OBJECT_TO_IDX[name] for name in ("unseen", "door", "agent"))
        colored = {OBJECT_TO_IDX[name] for name in ("door", "key", "ball", "box", "floor")}
        colors = max(COLOR_TO_IDX.values()) + 1
        several = np.ones(kinds, np.intp)  # planes of each kind
        several[[unseen, door, agent]] = 0, len(STATE_TO_IDX), states * has_agent
        first, count = np.cumsum(several) - several, int(several.sum())
        self._table = np.zeros((kinds, colors, states, count + colors), np.uint8)
        for kind in range(kinds):
            for color in range(colors):
                for state in range(states):
                    if several[kind]:
                        self._table[kind, color, state, first[kind] + min(state, several[kind] - 1)] = 1
                    self._table[kind, color, state, count + color] = kind in colored
        inner: Any = env.observation_space
        shape = (*inner["image"].shape[:2], count + colors)
        self.observation_space = spaces.Dict({**inner.spaces, "image": spaces.Box(0, 1, shape, np.uint8)})

    def observation(self, observation: Any) -> Any:
        """The observation with planes in place of the image."""
        image: Array = observation["image"]
        return {**observation, "image": self._table[image[..., 0], image[..., 1], image[..., 2]]}


class Quiet(gymnasium.Wrapper[Any, Any, Any, Any]):
    """BabyAI prints each layout that it rejects: here nobody reads it."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode."""
        with contextlib.redirect_stdout(io.StringIO()):
            return self.env.reset(seed=seed, options=options)


def _registry() -> list[str]:
    """The ids that minigrid registers when it is imported."""
    import minigrid  # noqa: F401

    return [id for id in gymnasium.registry if id.startswith(("MiniGrid-", "BabyAI-"))]


def _lacking(id: str) -> str:
    """What an id needs and is not installed; empty if nothing is. Mazes by wave function collapse need packages."""
    if not plain(id).startswith("minigridwfc"):
        return ""
    missing = [package for package in ("imageio", "networkx") if importlib.util.find_spec(package) is None]
    if missing:
        return f"needs {' and '.join(missing)}, not installed. Install it: pip install 'minigrid[wfc]'"
    import minigrid.envs

    if not (Path(minigrid.envs.__file__).parent / "wfc" / "patterns").is_dir():
        version = importlib.metadata.version("minigrid")
        return (
            f"needs pictures of patterns, which minigrid {version} as it is installed does not have. Copy the folder "
            "minigrid/envs/wfc/patterns of MiniGrid's repository into it, or choose another env."
        )
    return ""


FRAMEWORK = MiniGrid("minigrid", "grid worlds with doors, keys and lava", "MiniGrid-", "DoorKey-5x5")
