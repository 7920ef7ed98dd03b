"""VecEnv: many envs behind one call. The protocol that every backend implements.

`serial` defines the results; the other backends compute the same faster (tests/test_backends.py).
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from gymnasium import Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from shoal.errors import ConfigError, UsageError
from shoal.spec import AgentSpaces, Array, EnvSpec

if TYPE_CHECKING:
    from shoal.native.batch import Memory
    from shoal.vector.views import AgentsEnv, RowsEnv

T = TypeVar("T")
Result = tuple[Array, Array, Array, Array, dict[str, Any]]

AUTORESET = {
    "same_step": AutoresetMode.SAME_STEP,
    "next_step": AutoresetMode.NEXT_STEP,
    "disabled": AutoresetMode.DISABLED,
}


class ClosesItself:
    """For `with shoal.make(...) as envs:`, which closes them at its end."""

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()  # type: ignore[attr-defined]


class VecEnv(ClosesItself, VectorEnv[Array, Any, Array]):
    """`num_envs` envs as one `gymnasium.vector.VectorEnv`.

    A batch has `num_rows = num_envs * agents_per_env` rows. The agents of env i are the rows
    [i * agents_per_env, (i + 1) * agents_per_env). With one agent per env, row i is env i.

    **Arrays are views.** Unless made with `copy=True`, reset, step and recv return views of the env's memory. The next
    call on the same envs overwrites them. Copy what you keep.

    Episodes end as in Gymnasium's SAME_STEP (docs/design/episodes.md): where `terminated | truncated`, `obs` is the
    first observation of the next episode, and `infos["final_obs"]` the last one of the episode that ended.
    """

    backend: str
    num_rows: int
    agents_per_env: int
    native_spec: EnvSpec | None = None  # None for Python envs
    device: Any = "cpu"  # where the arrays are: str(device) is "cpu" or "cuda:0"
    is_on_gpu: bool = False  # whether reset, step and recv return torch tensors on a GPU
    mask_size: int = 0  # length of a row of infos["action_mask"]; 0: unknown, or no masks
    parallelism: int = 1  # threads or worker processes that step envs
    can_snapshot: bool = False
    logs_policy_age: bool = False  # whether training logs the age of the policy even if no step is late
    copy: bool = False  # whether reset, step and recv return copies
    # with several agents, of the episodes of the last drain_stats: means, {"agent_0": {"return": …, "length": …}};
    # the length of an agent ends where it is out of the game
    agent_stats: Mapping[str, dict[str, float]] = MappingProxyType({})

    @property
    def returns_ranges(self) -> bool:
        """Whether every batch of `recv` is a range of envs, and not the envs that are ready first."""
        return True

    @property
    def autoreset_mode(self) -> AutoresetMode:
        """From the metadata, as in Gymnasium's vector envs."""
        mode: AutoresetMode = self.metadata["autoreset_mode"]
        return mode

    @cached_property
    def observation_space(self) -> Space[Any]:  # type: ignore[override]
        """Of all rows. Made on first use: its bounds are as large as a batch."""
        return batch_space(self.single_observation_space, self.num_rows)

    @cached_property
    def action_space(self) -> Space[Any]:  # type: ignore[override]
        """Of all rows."""
        return batch_space(self.single_action_space, self.num_rows)

    @cached_property
    def agent_spaces(self) -> AgentSpaces:
        """The names and the spaces of the agents of one env."""
        return AgentSpaces.of_equal_agents(self.agents_per_env, self.single_observation_space, self.single_action_space)

    @cached_property
    def has_dead_rows(self) -> bool:
        """Whether a row may be out of the game while its env continues, or may skip steps.

        If so, the infos of `recv` have "alive": whether a row's next step is a transition of an episode.
        """
        return self.agents_per_env > 1 or self.autoreset_mode == AutoresetMode.NEXT_STEP

    @property
    def drained_returns(self) -> Array | None:
        """The returns of the single episodes of the last `drain_stats`; None: native envs have sums only."""
        return None

    @property
    def time_limit(self) -> int:
        """The shortest time limit of any env, in steps; 0: unknown, or none."""
        return 0

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The ranges of envs [lo, hi) that `recv` returns, one per call. Known before any reset."""
        return ((0, self.num_envs),)

    @property
    def native_memory(self) -> Memory | None:
        """The memory of native envs that only C code of this process steps: a collector in C may step them itself.

        None: they are stepped in another way, and only by `step` and `send`.
        """
        return None

    def check_idle(self) -> None:
        """Raises unless all envs wait for actions: they were reset, are not closed, and none is in flight."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuses pickle and copy: threads, worker processes and their memory cannot be copied."""
        raise UsageError(
            "a vector env cannot be pickled or copied. Give what makes it, functools.partial(shoal.make, ...), "
            "and call that where it is needed."
        )

    # ---- stepping ----

    @abstractmethod
    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Starts episodes. An int seed gives env i the seed `seed + i`; None continues each env's random stream.

        `options={"reset_mask": mask}` resets only the envs where the (num_envs,) bool mask is true.
        """

    @abstractmethod
    def step(self, actions: Any) -> Result:
        """One transition of every env: (obs, rewards, terminated, truncated, infos)."""

    @abstractmethod
    def async_reset(self, *, seed: int | Sequence[int] | None = None) -> None:
        """Starts episodes without waiting; `recv` then returns one of `ranges` after the other."""

    @abstractmethod
    def send(self, actions: Any, env_id: Array | None = None) -> None:
        """Starts a step of the envs last received (or of those that `env_id` names) and returns at once."""

    @abstractmethod
    def recv(self) -> Result:
        """Waits for envs that were sent. `infos["env_id"]` says which ones are returned."""

    def current_infos(self) -> dict[str, Any]:
        """The current "alive" of all rows and, with `mask_size`, their "action_mask": for use after `restore`."""
        return {"alive": np.ones(self.num_rows, np.bool_)}

    # ---- beyond Gymnasium ----

    @abstractmethod
    def drain_stats(self) -> dict[str, Any]:
        """`{"episodes": n, "return": {"mean", "min", "max"}, "length": …, <stat>: …}` since the last call.

        With several agents, the mean of "return" is over the agents of a game, and its min and max are those of single
        agents; `agent_stats` then has those of each agent.
        """

    def drain_events(self) -> list[str]:
        """What happened to the envs since the last call and raised no error, such as a restarted worker: sentences."""
        return []

    def get_params(self) -> dict[str, Array]:
        """Every param of a native env, as an array of one value per env."""
        raise UsageError(self._params_refusal("get_params"))

    def set_params(self, **params: Any) -> None:
        """Changes params of a native env from the next step on: one value for all envs, or one for each.

        A distribution such as `shoal.uniform(1, 2)` is drawn from at the start of each episode.
        """
        raise UsageError(self._params_refusal("set_params"))

    def snapshot(self, env_ids: Sequence[int] | Array | None = None) -> bytes:
        """The state of some envs (default: all) as bytes. `restore` continues from it exactly."""
        raise UsageError(self._snapshot_refusal("snapshot"))

    def restore(self, blob: bytes, env_ids: Sequence[int] | Array | None = None) -> Array:
        """Restores a snapshot into the envs `env_ids` (default: all), in order, and returns all observations."""
        raise UsageError(self._snapshot_refusal("restore"))

    def rows(self) -> RowsEnv:
        """A view in which every agent is one env. The agents must have equal spaces."""
        from shoal.vector.views import RowsEnv

        if not self.agent_spaces.alike:
            raise ConfigError("rows() needs agents with equal spaces. Use agents(), which has a dict by agent.")
        return RowsEnv(self)

    def agents(self) -> AgentsEnv:
        """A view by agent: `{agent_id: batch over envs}`."""
        from shoal.vector.views import AgentsEnv

        return AgentsEnv(self)

    # ---- old names ----

    @property
    def spec_env(self) -> EnvSpec | None:
        """Deprecated: the old name of `native_spec`."""
        warnings.warn("VecEnv.spec_env is deprecated: use native_spec.", DeprecationWarning, stacklevel=2)
        return self.native_spec

    @property
    def face(self) -> AgentSpaces:
        """Deprecated: the old name of `agent_spaces`."""
        warnings.warn("VecEnv.face is deprecated: use agent_spaces.", DeprecationWarning, stacklevel=2)
        return self.agent_spaces

    # ---- errors ----

    def _refuse_closed(self) -> None:
        if self.closed:
            raise UsageError("this env is closed. Make a new one with shoal.make.")

    def _params_refusal(self, call: str) -> str:
        return f"{call}() is for native envs. Python envs take constructor arguments: shoal.make(env, name=value)."

    def _snapshot_refusal(self, call: str) -> str:
        return f"{call}() is for native envs: the state of Python envs cannot be read. Check vec.can_snapshot before."


def has_true(flags: Array) -> bool:
    """Whether any flag is set: the same as `flags.any()`, four times as fast."""
    return b"\x01" in flags.tobytes()


def check_num_envs(num_envs: Any) -> int:
    """The number of envs as an int, or a ConfigError."""
    if isinstance(num_envs, bool) or not isinstance(num_envs, (int, np.integer)) or num_envs < 1:
        raise ConfigError(f"num_envs={num_envs!r} must be an int of at least 1.")
    if num_envs > 2**30:
        raise ConfigError(f"num_envs={num_envs} is more than 2^30, the greatest number of envs.")
    return int(num_envs)


def check_seeds(seed: int | Sequence[int] | Array, num_envs: int) -> Array:
    """One uint64 per env: seed + i for an int, or the given list."""
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        if not 0 <= seed < 2**63:
            raise ConfigError(f"seed={seed} must be in 0 .. 2^63 - 1.")
        return np.uint64(seed) + np.arange(num_envs, dtype=np.uint64)  # type: ignore[no-any-return]
    if isinstance(seed, (str, bytes, float, bool, dict, set)) or not hasattr(seed, "__len__"):
        raise ConfigError(f"seed={seed!r} must be an int, or one int for each of the {num_envs} envs.")
    if len(seed) != num_envs:
        raise ConfigError(f"seed has {len(seed)} entries for num_envs={num_envs}. Give an int, or one for each env.")
    for value in seed:
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= value < 2**63:
            raise ConfigError(f"seed entry {value!r} must be an int in 0 .. 2^63 - 1.")
    return np.array(seed, np.uint64)


def check_reset_mask(mask: Any, num_envs: int) -> Array:
    """A (num_envs,) bool mask that selects at least one env, as Gymnasium defines `options["reset_mask"]`."""
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (num_envs,):
        got = f"{mask.dtype} {mask.shape}" if isinstance(mask, np.ndarray) else type(mask).__name__
        raise ConfigError(f"options['reset_mask'] must be a bool array of shape ({num_envs},), not {got}.")
    if not mask.any():
        raise ConfigError("options['reset_mask'] selects no env. Leave it out to reset all envs.")
    return np.ascontiguousarray(mask)
