"""MiniGrid and BabyAI: `minigrid:DoorKey-8x8`, `babyai:GoToRedBall`. The mission is encoded as words."""

from __future__ import annotations

import re
from typing import Any

from shoal.errors import ConfigError
from shoal.integrations.framework import Framework, newest, plain
from shoal.integrations.text import EncodeText, Vocabulary

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
    options = {"train": {"total_steps": 2_000_000}}
    preprocessing = "image (7x7x3) and direction; the mission as word ids, embedded"
    network = "layers of 64; missions as embedded words, convolved"
    notes = (
        "`--env.mission false` leaves the mission out: most MiniGrid envs have one mission only.",
        "`--env.view full` observes the whole grid, `--env.view pixels` the picture of it.",
    )

    def __init__(self, prefix: str, title: str, stem: str, example: str) -> None:
        super().__init__(prefix)
        self.title, self.stem, self.example = title, stem, example

    def names(self) -> list[str]:
        """The ids without their prefix and, for the newest, without their version."""
        ids = [id for id in _registry() if id.startswith(self.stem)]
        stems = sorted({re.sub(r"-v\d+$", "", id) for id in ids})
        return [stem.removeprefix(self.stem) for stem in stems]

    def canonical(self, name: str) -> str:
        """The name without `MiniGrid-`; its version stays if it has one."""
        stem, version = re.fullmatch(r"(.*?)(-v\d+)?", name.removeprefix(self.stem)).groups()  # type: ignore[union-attr]
        return super().canonical(stem) + (version or "")

    def make(
        self,
        name: str,
        *,
        render_mode: str | None = None,
        mission: bool | None = None,
        view: str = "agent",
        **params: Any,
    ) -> Any:
        """One env. mission: whether the mission is observed; default: where the env has more than one.

        view: `agent` (7x7 cells before the agent), `full` (the whole grid), `pixels` (a picture of the agent's view).
        """
        import gymnasium
        from minigrid import wrappers

        views = {"agent": None, "full": wrappers.FullyObsWrapper, "pixels": wrappers.RGBImgPartialObsWrapper}
        if view not in views:
            raise ConfigError(f"{self.prefix}:{name}: view={view!r} must be one of {', '.join(views)}.")
        env: Any = gymnasium.make(self._id(name), render_mode=render_mode, disable_env_checker=True, **params)
        wrapper = views[view]
        env = env if wrapper is None else wrapper(env)
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


def _registry() -> list[str]:
    """The ids that minigrid registers when it is imported."""
    import gymnasium
    import minigrid  # noqa: F401

    return [id for id in gymnasium.registry if id.startswith(("MiniGrid-", "BabyAI-"))]


FRAMEWORK = MiniGrid("minigrid", "grid worlds with doors, keys and lava", "MiniGrid-", "DoorKey-5x5")
