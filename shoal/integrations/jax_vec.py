"""JaxVec: envs written in JAX, batched by `vmap` and stepped as one compiled call on JAX's device.

    the call of one step, for n envs at once
    actions -> step of every env -> time limit -> reset of those that ended -> obs, final_obs, rewards, flags, masks

Resets are computed only in steps in which an episode ends: worlds that are expensive to make do not slow the others.
Results are handed over by DLPack. Observations are then copied once: JAX's memory must not be written to. Every env
has its own random key, derived from its seed, so that results do not depend on the number of envs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.errors import ActionError, ConfigError, UsageError
from shoal.spec import AgentSpaces, Array, map_leaves
from shoal.vector.actions import checked_actions, leaf_spaces
from shoal.vector.base import AUTORESET, VecEnv, check_reset_mask, check_seeds, has_true
from shoal.vector.stats import EpisodeSums, GameSums

Info = dict[str, Any]


class JaxEnv:
    """One env in JAX: pure functions of keys and states. Subclasses translate a library (jax.py)."""

    agents: tuple[str, ...] = ("agent_0",)
    observation_space: spaces.Space[Any]  # of one agent
    action_space: spaces.Space[Any]
    limit: int = 0  # steps after which an episode is truncated; 0: the env's own limit alone
    has_masks: bool = False
    has_turns: bool = False  # whether agents move in turns: `acting` says whose it is

    def reset(self, key: Any) -> tuple[Any, Any]:
        """(state, obs). With several agents obs has one row for each."""
        raise NotImplementedError

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """(state, obs, reward, terminated, truncated); reward has one entry for each agent, if there are several."""
        raise NotImplementedError

    def mask(self, state: Any) -> Any:
        """(choices,) bool: which actions are allowed; with several agents one row for each."""
        raise NotImplementedError

    def acting(self, state: Any) -> Any:
        """(agents,) bool: whose turn it is."""
        raise NotImplementedError


class JaxVec(VecEnv):
    """`num_envs` JAX envs. Autoreset is same_step."""

    backend = "jax"

    def __init__(self, env: JaxEnv, num_envs: int, *, seed: int | None, autoreset: str, device: str = "") -> None:
        import jax

        self.env, self.num_envs = env, num_envs
        self.agents_per_env, self.num_rows = len(env.agents), num_envs * len(env.agents)
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        self.metadata = {"autoreset_mode": AUTORESET[autoreset], "render_modes": []}
        if autoreset == "next_step":
            raise ConfigError("autoreset='next_step' is not for jax envs. Use same_step, or disabled.")
        self._resets = autoreset == "same_step"
        self.device_of_envs = _device(device)
        self.mask_size = _choices(env.action_space) if env.has_masks else 0
        self._next_seeds = None if seed is None else check_seeds(seed, num_envs)
        self._ended = np.zeros(num_envs, np.bool_)
        self._carry: Any = None
        self._result: Any = None
        self._pending: Any = None
        self._action_leaves = list(zip(self._layout.leaves, leaf_spaces(env.action_space)))
        self._stats = EpisodeSums(tuple(map(str, env.agents)) if self.agents_per_env > 1 else ())
        self._games = GameSums(num_envs, self.agents_per_env) if self.agents_per_env > 1 else None
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, np.int32)
        self._env_id = np.arange(num_envs, dtype=np.int32)
        self._alive = np.ones(self.num_rows, np.bool_)
        with jax.default_device(self.device_of_envs):
            self._compiled_reset, self._compiled_step = jax.jit(self._reset_some), jax.jit(self._step_all)

    @cached_property
    def _layout(self) -> Any:
        return self.agent_spaces.action_layouts[0]

    @cached_property
    def agent_spaces(self) -> AgentSpaces:
        """The names and the spaces of the agents of one env."""
        count = self.agents_per_env
        return AgentSpaces(
            self.env.agents, (self.single_observation_space,) * count, (self.single_action_space,) * count
        )

    # ---- compiled ----

    def _reset_some(self, keys: Any, carry: Any, mask: Any) -> Any:
        """The envs of the mask start an episode with new keys; `carry` None: all do."""
        import jax

        new_keys, reset_keys = _split(keys)
        state, obs = jax.vmap(self.env.reset)(reset_keys)
        ticks = jax.numpy.zeros(self.num_envs, jax.numpy.int32)
        new = (new_keys, state, obs, ticks)
        return new if carry is None else _select(mask, new, carry)

    def _step_all(self, carry: Any, actions: Any) -> Any:
        import jax
        from jax import numpy as jnp

        keys, state, _obs, ticks = carry
        keys, step_keys = _split(keys)
        state, obs, rewards, terminated, truncated = jax.vmap(self.env.step)(step_keys, state, actions)
        ticks = ticks + 1
        if self.env.limit:
            truncated = truncated | (ticks >= self.env.limit)
        terminated = terminated.astype(bool)
        truncated = truncated.astype(bool) & ~terminated
        done = terminated | truncated
        stepped = (keys, state, obs, ticks)
        after = stepped
        if self._resets:
            after = jax.lax.cond(
                done.any(), lambda: _select(done, self._reset_some(keys, None, None), stepped), lambda: stepped
            )
        return after, (obs, rewards.astype(jnp.float32), terminated, truncated, ticks)

    # ---- the Gymnasium API ----

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: Info | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts episodes in all envs, or in those of `options["reset_mask"]`."""
        import jax

        self._refuse_closed()
        mask = (options or {}).get("reset_mask")
        chosen = np.ones(self.num_envs, np.bool_) if mask is None else check_reset_mask(mask, self.num_envs)
        if mask is not None and self._carry is None:
            raise UsageError("reset(options={'reset_mask': …}) before a full reset(): the other envs have no state.")
        seeds = self._next_seeds if seed is None else check_seeds(seed, self.num_envs)
        self._next_seeds, self._pending = None, None
        if seeds is None and self._carry is None:
            seeds = check_seeds(int(np.random.SeedSequence().generate_state(1)[0]), self.num_envs)
        with jax.default_device(self.device_of_envs):
            keys = self._carry[0] if seeds is None else _keys(seeds)
            self._carry = self._compiled_reset(keys, self._carry if mask is not None else None, chosen)
        self._returns[chosen], self._lengths[chosen], self._ended[chosen] = 0.0, 0, False
        if self._games is not None:
            self._games.reset({"alive": self._alive}, 0, self.num_envs, chosen)
        return self._obs_of(self._carry[2]), self._masks()

    def step(self, actions: Any) -> Any:
        """One transition of every env."""
        self.send(actions)
        result = self.recv()
        del result[4]["env_id"]
        return result

    def async_reset(self, *, seed: int | Sequence[int] | None = None) -> None:
        """Starts episodes; `recv` returns them."""
        obs, infos = self.reset(seed=seed)
        zeros, flags = np.zeros(self.num_rows, np.float32), np.zeros(self.num_rows, np.bool_)
        self._result = (obs, zeros, flags, flags.copy(), {**infos, "env_id": self._env_id})

    def send(self, actions: Any, env_id: Array | None = None) -> None:
        """Starts a step of all envs. JAX computes while the caller does something else."""
        import jax

        self._refuse_closed()
        if self._carry is None:
            raise UsageError("step before reset. Call reset() once after making the env.")
        if self._pending is not None or self._result is not None:
            raise UsageError("send() to envs that are in flight. Call recv() first.")
        if not self._resets and self._ended.any():
            raise UsageError(
                f"env {int(self._ended.argmax())} has ended and autoreset is disabled. Reset the ended envs first: "
                "reset(options={'reset_mask': envs.ended.copy()})."
            )
        if len(self._action_leaves) != 1:
            raise ActionError("jax envs take actions that are one array.")
        (leaf, space), *_ = self._action_leaves
        values = checked_actions(actions, leaf, space, self.num_rows).astype(_narrow(leaf.dtype))
        shape = (self.num_envs, *((self.agents_per_env,) if self.agents_per_env > 1 else ()), *values.shape[1:])
        with jax.default_device(self.device_of_envs):
            self._carry, self._pending = self._compiled_step(self._carry, values.reshape(shape))

    def recv(self) -> Any:
        """The result of the last send or async_reset."""
        self._refuse_closed()
        if self._result is not None:
            result, self._result = self._result, None
            return result
        if self._pending is None:
            raise UsageError("recv() with nothing in flight. Call async_reset() or send() first.")
        final_obs, rewards, terminated, truncated, _ticks = self._pending
        self._pending = None
        rows = [_host(part) for part in (rewards, terminated, truncated)]
        agents = self.agents_per_env
        row_rewards = np.array(rows[0], np.float32).reshape(-1)
        row_rewards = row_rewards if len(row_rewards) == self.num_rows else np.repeat(row_rewards, agents)
        row_terminated, row_truncated = (np.repeat(flag, agents) for flag in rows[1:])
        done = row_terminated | row_truncated
        infos = self._masks()
        self._count(row_rewards, done)
        if not self._resets:
            self._ended |= rows[1] | rows[2]
        if has_true(done):
            infos |= self._final(final_obs, done)
        obs = self._obs_of(self._carry[2])
        return obs, row_rewards, row_terminated, row_truncated, {**infos, "env_id": self._env_id}

    def _count(self, rewards: Array, done: Array) -> None:
        """Adds a step to the statistics of episodes."""
        if self._games is not None:
            self._final_returns = self._games.totals.reshape(-1) + rewards
            self._final_lengths = np.repeat(self._games.ticks + 1, self.agents_per_env)
            arrays = {"done": done, "rewards": rewards, "alive": self._alive}
            self._games.add(self._stats, arrays, 0, self.num_envs)
            return
        self._returns += rewards
        self._lengths += 1
        self._final_returns, self._final_lengths = self._returns.copy(), self._lengths.copy()
        if has_true(done):
            self._stats.add(self._returns[done], self._lengths[done])
            self._returns[done], self._lengths[done] = 0.0, 0

    def _final(self, final_obs: Any, done: Array) -> Info:
        returns, lengths = self._final_returns.astype(np.float32), self._final_lengths.astype(np.int32)
        episode = {"r": returns, "l": lengths, "_r": done, "_l": done}
        infos: Info = {"final_info": {"episode": episode, "_episode": done}, "_final_info": done}
        if self._resets:
            infos |= {"final_obs": self._obs_of(final_obs), "_final_obs": done}
        return infos

    def _obs_of(self, obs: Any) -> Any:
        """A batch of observations of all rows, in the structure of the space."""
        agents = self.agents_per_env

        def rows(leaf: Any) -> Array:
            array = np.array(_host(leaf))  # a copy: torch takes no memory that must not be written
            return array.reshape(self.num_rows, *array.shape[2:]) if agents > 1 else array

        return map_leaves(rows, obs)

    def _masks(self) -> Info:
        infos: Info = {"alive": self._alive} if self.agents_per_env > 1 else {}
        if self.agents_per_env > 1:
            infos["_alive"] = np.ones(self.num_rows, np.bool_)
        if self.mask_size:
            mask = _host(self._compiled_mask(self._carry[1])).reshape(self.num_rows, -1)
            infos |= {"action_mask": mask, "_action_mask": np.ones(self.num_rows, np.bool_)}
        if self.env.has_turns:
            turns = _host(self._compiled_turns(self._carry[1])).reshape(-1)
            infos |= {"acting": turns, "_acting": np.ones(self.num_rows, np.bool_)}
        return infos

    @cached_property
    def _compiled_mask(self) -> Any:
        import jax

        return jax.jit(jax.vmap(self.env.mask))

    @cached_property
    def _compiled_turns(self) -> Any:
        import jax

        return jax.jit(jax.vmap(self.env.acting))

    @property
    def ended(self) -> Array:
        """(num_envs,) envs that wait for a reset; none ever do under same_step."""
        return self._ended

    def drain_stats(self) -> dict[str, Any]:
        """`{"episodes": n, "return": {"mean", "min", "max"}, "length": …}` since the last call."""
        stats, self.agent_stats = self._stats.drain()
        return stats

    @property
    def drained_returns(self) -> Array:
        """The returns of the single episodes of the last `drain_stats`."""
        return self._stats.drained

    def current_infos(self) -> dict[str, Any]:
        """The "alive" and "action_mask" of all rows."""
        return {"alive": self._alive.copy(), **self._masks()}

    def close_extras(self, **kwargs: Any) -> None:
        """Frees the states."""
        self._carry = self._pending = self._result = None


def _split(keys: Any) -> tuple[Any, Any]:
    import jax

    both = jax.vmap(jax.random.split)(keys)
    return both[:, 0], both[:, 1]


def _keys(seeds: Array) -> Any:
    """One key per env, of its seed alone. JAX's keys have 32 bits for each half of the seed."""
    import jax

    return jax.vmap(lambda low, high: jax.random.fold_in(jax.random.PRNGKey(low), high))(
        (seeds & np.uint64(0xFFFFFFFF)).astype(np.uint32), (seeds >> np.uint64(32)).astype(np.uint32)
    )


def _select(mask: Any, new: Any, old: Any) -> Any:
    """Where the mask is true the rows of `new`, elsewhere those of `old`."""
    import jax
    from jax import numpy as jnp

    def rows(a: Any, b: Any) -> Any:
        a = a.astype(b.dtype) if a.dtype != b.dtype else a
        return jax.lax.select(jnp.broadcast_to(mask.reshape(-1, *[1] * (a.ndim - 1)), a.shape), a, b)

    return jax.tree.map(rows, new, old)


def _host(array: Any) -> Array:
    """An array of JAX as one of numpy: on a CPU the same memory."""
    try:
        return np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, AttributeError, ValueError):  # on a GPU, or a type that DLPack lacks
        return np.asarray(array)


def _narrow(dtype: Any) -> Any:
    """JAX's 32-bit type for a 64-bit one."""
    return {"int64": np.int32, "float64": np.float32}.get(str(np.dtype(dtype)), dtype)


def _device(name: str) -> Any:
    import jax

    if not name:
        return jax.devices()[0]
    try:
        return jax.devices(name)[0]
    except RuntimeError as error:
        raise ConfigError(
            f"jax has no device '{name}': {error}. It has {', '.join(map(str, jax.devices()))}."
        ) from None


def _choices(space: Any) -> int:
    return int(space.n) if isinstance(space, spaces.Discrete) else int(np.sum(space.nvec))
