"""`video`: films the policy from time to time, as MP4 or GIF files in the run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal import evaluate, video
from shoal.errors import ConfigError
from shoal.train.callbacks.base import Callback, Context
from shoal.train.callbacks.checks import check_count
from shoal.train.envs import env_seed, make_filmed_vec
from shoal.train.param_changes import of_one_env, set_env_params

FOLDER = "videos"  # in the run's folder


class Video(Callback):
    """Films `episodes` episodes every `every` steps and at the end: videos/step-000001000000.mp4.

    The envs have the params that training has at that moment. A video that fails is reported and does not end the run.
    """

    def __init__(self, every: int, episodes: int = 1, greedy: bool = True, width: int = 480) -> None:
        self.every = check_count("video", "every", every)
        for name, value, low in (("episodes", episodes, 1), ("width", width, 16)):
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ConfigError(f"video: {name}={value!r} must be an int of at least {low}.")
        if not isinstance(greedy, bool):
            raise ConfigError(f"video: greedy={greedy!r} must be True or False.")
        self.episodes, self.greedy, self.width = episodes, greedy, width
        self.next_step, self.filmed_step, self.has_failed = self.every, -1, False

    def check(self, trainer: Any) -> None:
        """The package that writes videos is installed, and the env can be drawn."""
        suffix = ".mp4" if video.can_write(".mp4") else ".gif"
        if not video.can_write(suffix):
            raise ConfigError(f"video: writing videos needs a package that is not installed: {video.INSTALL}.")
        if not evaluate.can_draw(trainer.vec):
            missing = "env_draw" if trainer.vec.native_spec is not None else "render mode 'rgb_array'"
            raise ConfigError(f"video: the env cannot be drawn: it has no {missing}. Remove the callback.")

    def on_iteration(self, context: Context) -> None:
        """Films when enough steps are done."""
        if context.step >= self.next_step:
            self.next_step = (context.step // self.every + 1) * self.every
            self._film(context)

    def on_end(self, context: Context) -> None:
        """Films the last policy."""
        if context.status != "failed" and self.filmed_step != context.step:
            self._film(context)

    def _film(self, context: Context) -> None:
        if self.has_failed:
            return
        self.filmed_step = context.step
        folder = context.run.folder / FOLDER
        try:
            folder.mkdir(exist_ok=True)
            vec = make_filmed_vec(context.trainer.env, context.options)
            try:
                set_env_params(vec, of_one_env(context.env_params))
                player = context.trainer.player(self.greedy)
                seed = env_seed(context.options.seed)
                target = folder / f"step-{context.step:012d}"
                path = evaluate.record(vec, player, target, self.episodes, seed, width=self.width)
            finally:
                vec.close()
        except Exception as error:  # a failed video must not end the run
            self.has_failed = True
            context.note(f"warning: no more videos: {type(error).__name__}: {error}")
        else:
            context.note(f"video: {path}")

    def state_dict(self) -> Mapping[str, Any]:
        """When the next video is due, and the step of the latest."""
        return {"next_step": self.next_step, "filmed_step": self.filmed_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores them."""
        self.next_step, self.filmed_step = int(state["next_step"]), int(state["filmed_step"])


CALLBACK = Video
