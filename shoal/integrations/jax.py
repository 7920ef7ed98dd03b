"""Envs written in JAX: `jax:gymnax/CartPole-v1`, `jax:brax/ant`, `jax:jumanji/Snake-v1`, `jax:pgx/connect_four`,
`jax:craftax/Craftax-Classic-Symbolic-v1`, `jax:jaxmarl/MPE_simple_spread_v3`.

Each library has one class here that translates its functions to a JaxEnv. jax_vec.py steps them.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.errors import ConfigError, UnknownEnv, did_you_mean
from shoal.integrations.framework import Framework, Reference, import_quietly, plain
from shoal.integrations.jax_vec import JaxEnv, JaxVec
from shoal.layout import kind_of

BRAX_STEPS = 1000
CRAFTAX = ("Craftax-Symbolic-v1", "Craftax-Pixels-v1", "Craftax-Classic-Symbolic-v1", "Craftax-Classic-Pixels-v1")
CONNECT_FOUR: dict[str, Any] = {  # as shoal/envs/connect4.toml, whose observations have more than the board
    "train": {
        "total_steps": 10_000_000,
        "horizon": 32,
        "epochs": 1,
        "minibatches": 16,
        "optimizer": "muon",
        "learning_rate": 3e-3,
        "adam_beta2": 0.99,
        "gae_lambda": 0.9,
        "max_grad_norm": 1.0,
        "normalize_obs": False,
        "normalize_reward": False,
    },
    "env": {"max_opening": 8},
    "vec": {"num_envs": 512},
    "nn": {"hidden": 256, "activation": "relu", "separate": False},
}


class Jax(Framework):
    """The envs of six libraries. A batch is one compiled call."""

    title = "envs in JAX: gymnax, brax, jumanji, pgx, craftax, jaxmarl; batched on JAX's device"
    packages = {"jax": "jax>=0.4.30"}
    install = (
        "pip install jax gymnax six brax jumanji pgx imageio",
        "pip install --no-deps craftax jaxmarl jaxtyping wadler-lindig",
    )
    example = "gymnax/CartPole-v1"
    also = (
        "brax/inverted_pendulum",
        "jumanji/Snake-v1",
        "pgx/tic_tac_toe",
        "craftax/Craftax-Classic-Symbolic-v1",
        "jaxmarl/MPE_simple_spread_v3",
    )
    pattern = "LIBRARY/NAME"
    preprocessing = "none; the action masks of jumanji, pgx and jaxmarl are used"
    is_vectorized = True
    can_render = False
    options = {"vec": {"num_envs": 256}}
    references = (
        Reference("gymnax/CartPole-v1", 500, "the most that an episode pays", "its rules"),
        Reference("pgx/minatar-asterix", 22, "PPO, 20M frames", "Koyamada et al. 2023, appendix"),
        Reference("pgx/minatar-freeway", 63, "PPO, 20M frames", "Koyamada et al. 2023, appendix"),
        Reference("craftax/Craftax-Classic-Symbolic-v1", 19.8, "PPO, 1 billion steps", "Matthews et al. 2024"),
    )
    notes = (
        "gymnax 1.0.1 does not declare that it needs six; craftax and jaxmarl are installed with --no-deps beside jax, "
        "and craftax imports imageio.",
        "The first step compiles: seconds for gymnax, minutes for the full Craftax.",
        "With JAX on a GPU, results are copied to the host: policies that train there read them from it.",
        "pgx's games: every player is a row; `infos['acting']` says whose turn it is, and so does one more plane (or "
        "number) at the end of observations. `--env.turn False` leaves it out. `--env.max-opening 8` starts games with "
        "up to 8 random moves; evaluations have none.",
    )

    def names(self) -> list[str]:
        """The envs of the libraries that are installed."""
        return [f"{library}/{name}" for library, kind in LIBRARIES.items() if _is_there(kind) for name in kind.names()]

    def canonical(self, name: str) -> str:
        """`LIBRARY/NAME` without regard to case and punctuation; the library must be installed."""
        library, _, rest = name.partition("/")
        library = library.lower() if rest else library
        if library not in LIBRARIES:
            same = [known for known in self.names() if plain(known.partition("/")[2]) == plain(name)]
            near = f" Did you mean '{same[0]}'?" if same else did_you_mean(library, LIBRARIES)
            raise UnknownEnv(f"'jax:{name}'.{near} Write jax:LIBRARY/NAME; the libraries are {', '.join(LIBRARIES)}.")
        kind = LIBRARIES[library]
        if not _is_there(kind):
            raise ConfigError(f"jax:{name} needs {library}, which is not installed. Install it: {kind.install}")
        known = kind.names()
        same = [rest] if rest in known else [other for other in known if plain(other) == plain(rest)]
        return f"{library}/{same[0]}" if same else self.unknown(name, [f"{library}/{other}" for other in known])

    def options_for(self, name: str) -> Mapping[str, Any]:
        """Those of all, and of connect four."""
        return CONNECT_FOUR if plain(name) == "pgxconnectfour" else self.options

    def params(self, name: str) -> dict[str, str] | None:
        """They differ by library: known when the env is made."""
        return None

    def check_params(self, name: str, given: Any) -> None:
        """The library checks them when the env is made."""

    def evaluation_params(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Whole games of pgx."""
        return {"max_opening": 0} if given.get("max_opening") else {}

    def make(self, name: str, **params: Any) -> Any:
        """Not called: a batch is one vector env."""
        raise ConfigError("jax envs are made all at once. Use shoal.make.")

    def make_vec(
        self,
        name: str,
        num_envs: int,
        *,
        seed: int | None,
        autoreset: str,
        render_mode: str | None,
        jax_device: str = "",
        **params: Any,
    ) -> JaxVec:
        """`num_envs` envs as one compiled batch."""
        # JAX takes three quarters of a GPU's memory at its first use, which torch and other runs need
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        library, _, rest = name.partition("/")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                env = LIBRARIES[library](rest, params)
        except OSError as error:  # a few download data
            raise ConfigError(f"jax:{name} cannot be made: its data cannot be read or downloaded: {error}") from error
        except (TypeError, ValueError, KeyError) as error:
            raise ConfigError(f"jax:{name} cannot be made with {params or 'its defaults'}: {error}") from error
        return JaxVec(env, num_envs, seed=seed, autoreset=autoreset, device=jax_device)


def _is_there(kind: Any) -> bool:
    return importlib.util.find_spec(kind.module) is not None


# ---- spaces and observations ----


def _plain(obs: Any) -> Any:
    """An observation as dicts of arrays: named tuples and dataclasses are dicts, bool is uint8."""
    from jax import numpy as jnp

    if hasattr(obs, "_asdict"):
        obs = obs._asdict()
    elif hasattr(obs, "__dataclass_fields__"):
        obs = {name: getattr(obs, name) for name in obs.__dataclass_fields__}
    if isinstance(obs, dict):
        return {key: _plain(part) for key, part in obs.items()}
    array = jnp.asarray(obs)
    return array.astype(jnp.uint8) if array.dtype == bool else array


def _space_of(seen: Any, declared: Any = None) -> spaces.Space[Any]:
    """The space of an observation by its shape and type, with the bounds of the library's own space, if it has any."""
    if isinstance(seen, dict):
        parts = getattr(declared, "spaces", {}) or {}
        return spaces.Dict({key: _space_of(part, parts.get(key)) for key, part in seen.items()})
    dtype, shape = np.dtype(seen.dtype), tuple(seen.shape)
    low: Any = -np.inf if dtype.kind == "f" else np.iinfo(dtype).min
    high: Any = np.inf if dtype.kind == "f" else np.iinfo(dtype).max
    if declared is not None and hasattr(declared, "low"):
        low, high = (np.broadcast_to(np.asarray(bound), shape) for bound in (declared.low, declared.high))
        wide = np.abs(np.stack([low, high]).astype(np.float64)) > 3e38  # gymnax writes the largest float for infinity
        low, high = (np.where(w, np.sign(b) * np.inf, b) if dtype.kind == "f" else b for w, b in zip(wide, (low, high)))
    return spaces.Box(np.full(shape, low, dtype), np.full(shape, high, dtype), shape, dtype.type)


def _action_space(declared: Any) -> spaces.Space[Any]:
    kind = kind_of(declared)
    if kind == "Discrete":
        return spaces.Discrete(int(declared.n))
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.asarray(getattr(declared, "nvec", getattr(declared, "num_categories", None))))
    if kind == "Box":
        shape = tuple(declared.shape)
        low, high = (np.broadcast_to(np.asarray(b, np.float32), shape) for b in (declared.low, declared.high))
        return spaces.Box(low, high, shape, np.float32)
    raise ConfigError(f"{type(declared).__name__} is an action space that Shoal does not know. Use another env.")


def _shapes(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns, as shapes and types: computes nothing."""
    import jax

    return jax.eval_shape(function, *arguments)


def _key() -> Any:
    import jax

    return jax.random.PRNGKey(0)


# ---- libraries ----


class Gymnax(JaxEnv):
    """gymnax's interface. Params are fields of the env's own params."""

    module, install = "gymnax", "pip install gymnax six"

    @classmethod
    def names(cls) -> list[str]:
        """Its ids."""
        return list(import_quietly("gymnax").registered_envs)

    def __init__(self, name: str, params: dict[str, Any]) -> None:
        env, own = import_quietly("gymnax").make(name)
        self._use(env, own.replace(**params))

    def _use(self, env: Any, own: Any) -> None:
        self.inner, self.own = env, own
        seen = _shapes(lambda key: self.reset(key)[1], _key())
        self.observation_space = _space_of(seen, env.observation_space(own))
        self.action_space = _action_space(env.action_space(own))

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Starts an episode."""
        obs, state = self.inner.reset_env(key, self.own)
        return state, _plain(obs)

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """One transition."""
        obs, state, reward, done, _info = self.inner.step_env(key, state, action, self.own)
        late = self.is_late(state)
        return state, _plain(obs), reward, done & ~late if self.done_has_limit else done, late

    done_has_limit = False  # whether the env's `done` is also set by its time limit

    def is_late(self, state: Any) -> Any:
        """Whether the time limit is reached."""
        return self.inner.is_truncated(state, self.own)


class Craftax(Gymnax):
    """Craftax and Craftax-Classic."""

    module, install = "craftax", "pip install --no-deps craftax"
    done_has_limit = True

    @classmethod
    def names(cls) -> list[str]:
        """Its ids."""
        return list(CRAFTAX)

    def __init__(self, name: str, params: dict[str, Any]) -> None:
        env = import_quietly("craftax.craftax_env").make_craftax_env_from_name(name, auto_reset=False)
        self._use(env, env.default_params.replace(**params))

    def is_late(self, state: Any) -> Any:
        """Whether the time limit is reached."""
        return state.timestep >= self.own.max_timesteps


class Brax(JaxEnv):
    """Brax's physics. Params are those of `brax.envs.get_environment`: `backend`."""

    module, install = "brax", "pip install brax"

    @classmethod
    def names(cls) -> list[str]:
        """Its envs."""
        return sorted(name for name in import_quietly("brax.envs")._envs if name != "fast")

    def __init__(self, name: str, params: dict[str, Any]) -> None:
        rest = dict(params)
        self.limit = int(rest.pop("episode_length", BRAX_STEPS))
        self.inner = import_quietly("brax.envs").get_environment(name, **{"backend": "positional", **rest})
        self.observation_space = _space_of(_shapes(lambda key: self.reset(key)[1], _key()))
        self.action_space = spaces.Box(-1.0, 1.0, (int(self.inner.action_size),), np.float32)

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Starts an episode."""
        state = self.inner.reset(key)
        return state, _plain(state.obs)

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """One transition."""
        after = self.inner.step(state, action)
        done = after.done > 0
        return after, _plain(after.obs), after.reward, done, done & False


class Jumanji(JaxEnv):
    """Jumanji's envs. Params are arguments of `jumanji.make`."""

    module, install = "jumanji", "pip install jumanji"

    @classmethod
    def names(cls) -> list[str]:
        """Its ids."""
        return sorted(import_quietly("jumanji").registered_environments())

    def __init__(self, name: str, params: dict[str, Any]) -> None:
        self.inner = import_quietly("jumanji").make(name, **params)
        spec: Any = self.inner.action_spec
        if hasattr(spec, "num_values") and np.ndim(spec.num_values) == 0:
            self.action_space = spaces.Discrete(int(spec.num_values))
        elif hasattr(spec, "num_values"):
            self.action_space = spaces.MultiDiscrete(np.asarray(spec.num_values).reshape(-1))
        else:
            low, high = (np.broadcast_to(np.asarray(b, np.float32), spec.shape) for b in (spec.minimum, spec.maximum))
            self.action_space = spaces.Box(low, high, spec.shape, np.float32)
        self._action_shape = tuple(spec.shape)
        seen = _shapes(lambda key: _plain(self.inner.reset(key)[1].observation), _key())
        fits = isinstance(self.action_space, spaces.Discrete) and isinstance(seen, dict) and "action_mask" in seen
        self.has_masks = bool(fits and seen["action_mask"].shape == (int(getattr(self.action_space, "n", 0)),))
        self.observation_space = _space_of(self._without_mask(seen))

    def _without_mask(self, obs: Any) -> Any:
        return {key: part for key, part in obs.items() if key != "action_mask"} if self.has_masks else obs

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Starts an episode."""
        state, timestep = self.inner.reset(key)
        obs = _plain(timestep.observation)
        return (state, self._mask_of(obs)), self._without_mask(obs)

    def _mask_of(self, obs: Any) -> Any:
        from jax import numpy as jnp

        return obs["action_mask"].astype(bool) if self.has_masks else jnp.ones(0, bool)

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """One transition. An episode that ends with a discount above 0 was cut by its time limit."""
        from jax import numpy as jnp

        after, timestep = self.inner.step(state[0], jnp.asarray(action).reshape(self._action_shape))
        obs = _plain(timestep.observation)
        over, goes_on = timestep.last(), jnp.mean(timestep.discount) > 0
        reward = jnp.sum(timestep.reward)
        return (after, self._mask_of(obs)), self._without_mask(obs), reward, over & ~goes_on, over & goes_on

    def mask(self, state: Any) -> Any:
        """Which actions are allowed."""
        return state[1]


class Pgx(JaxEnv):
    """Pgx's games. Every player is a row; the action of the one whose turn it is counts.

    Pgx observes for the player to move. The same board can be one before the own move or before the other player's, and
    a critic that cannot tell them apart learns their mean. So observations get one more plane, of the last axis: 1 for
    the player to move. The param `turn=False` leaves it out.

    With `max_opening` a game starts with random moves, as many as are drawn from 0 .. max_opening: until they are made
    the mask allows one move, a random one, from which no policy learns. Without them two players who know each other
    play the same few lines. Evaluations play the whole game.
    """

    module, install = "pgx", "pip install pgx"
    has_masks = True

    @classmethod
    def names(cls) -> list[str]:
        """Its games."""
        return list(import_quietly("pgx").available_envs())

    def __init__(self, name: str, params: dict[str, Any]) -> None:
        import jax

        rest = dict(params)
        turn, self.max_opening = bool(rest.pop("turn", True)), int(rest.pop("max_opening", 0))
        if self.max_opening < 0:
            raise ValueError(f"max_opening={self.max_opening} must be at least 0")
        self.inner = import_quietly("pgx").make(name, **rest)
        self.players = int(self.inner.num_players)
        self.agents = tuple(f"player_{k}" for k in range(self.players))
        self.has_turns = self.players > 1
        self.shows_turn = turn and self.has_turns
        self.action_space = spaces.Discrete(int(self.inner.num_actions))
        seen = _shapes(lambda key: _plain(self.inner.init(key).observation), _key())
        is_flags = np.dtype(_shapes(lambda key: self.inner.init(key).observation, _key()).dtype) == np.bool_
        shape = (*seen.shape[:-1], seen.shape[-1] + self.shows_turn)
        seen = jax.ShapeDtypeStruct(shape, seen.dtype)
        self.observation_space = spaces.Box(0, 1, shape, np.uint8) if is_flags else _space_of(seen)

    def _observe(self, state: Any) -> Any:
        import jax
        from jax import numpy as jnp

        if self.players == 1:
            return _plain(state.observation)
        obs = _plain(jax.vmap(lambda player: self.inner.observe(state, player))(jnp.arange(self.players)))
        if not self.shows_turn:
            return obs
        plane = jnp.broadcast_to(self._turns(state).reshape(-1, *[1] * (obs.ndim - 1)), (*obs.shape[:-1], 1))
        return jnp.concatenate([obs, plane.astype(obs.dtype)], -1)

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Starts a game. A state is that of pgx, the random moves that are left, and the next of them."""
        import jax
        from jax import numpy as jnp

        game, left = self.inner.init(key), jnp.int32(0)
        if self.max_opening:
            left = jax.random.randint(jax.random.fold_in(key, 1), (), 0, self.max_opening + 1)
        return (game, left, self._random_move(key, game)), self._observe(game)

    def _random_move(self, key: Any, game: Any) -> Any:
        import jax
        from jax import numpy as jnp

        if not self.max_opening:
            return jnp.int32(0)
        odds = jnp.where(game.legal_action_mask, 0.0, -jnp.inf)
        return jax.random.categorical(jax.random.fold_in(key, 2), odds).astype(jnp.int32)

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """One turn."""
        from jax import numpy as jnp

        game, left, opening = state
        chosen = action if self.players == 1 else action[game.current_player]
        chosen = jnp.where(left > 0, opening.astype(chosen.dtype), chosen) if self.max_opening else chosen
        after = self.inner.step(game, chosen, key)
        rewards = after.rewards[0] if self.players == 1 else after.rewards
        state = after, jnp.maximum(left - 1, 0), self._random_move(key, after)
        return state, self._observe(after), rewards, after.terminated, after.truncated

    def mask(self, state: Any) -> Any:
        """The legal actions of the player to move; the others may only take action 0, which has no effect."""
        from jax import numpy as jnp

        game, left, opening = state
        legal = game.legal_action_mask
        if self.max_opening:
            legal = jnp.where(left > 0, jnp.zeros_like(legal).at[opening].set(True), legal)
        if self.players == 1:
            return legal
        idle = jnp.zeros_like(legal).at[0].set(True)
        return jnp.where(self.acting(state)[:, None], legal, idle)

    def acting(self, state: Any) -> Any:
        """Whose turn it is."""
        return self._turns(state[0])

    def _turns(self, game: Any) -> Any:
        from jax import numpy as jnp

        return jnp.arange(self.players) == game.current_player


class JaxMarl(JaxEnv):
    """JaxMARL's games whose agents have equal spaces. An episode ends for all agents at once.

    JaxMARL knows no truncation: an end at `max_steps` is one here, as in the envs that it copies.
    """

    module, install = "jaxmarl", "pip install --no-deps jaxmarl jaxtyping wadler-lindig"

    @classmethod
    def names(cls) -> list[str]:
        """Its games."""
        return list(import_quietly("jaxmarl").registered_envs)

    def __init__(self, name: str, params: dict[str, Any]) -> None:
        self.inner = import_quietly("jaxmarl").make(name, **params)
        self.agents = tuple(map(str, self.inner.agents))
        seen = _shapes(lambda key: self.inner.reset(key)[0], _key())
        shapes = {tuple(seen[agent].shape) for agent in self.inner.agents}
        actions = [_action_space(self.inner.action_space(agent)) for agent in self.inner.agents]
        if len(shapes) > 1 or any(space != actions[0] for space in actions):
            raise ConfigError(f"the agents of jaxmarl/{name} have different spaces, which is not supported.")
        self.action_space = actions[0]
        self.observation_space = _space_of(_plain_shape(seen[self.inner.agents[0]]))
        self.has_masks = isinstance(self.action_space, spaces.Discrete) and self._are_masks()

    def _are_masks(self) -> bool:
        """Whether the game says which actions are allowed, for each choice. Those that do not raise."""
        try:
            found = _shapes(lambda key: self.mask(self.inner.reset(key)[1]), _key())
        except (NotImplementedError, AttributeError):
            return False
        choices = (int(self.action_space.n),)  # type: ignore[attr-defined]
        return bool(found.shape[-1:] == choices)

    def mask(self, state: Any) -> Any:
        """Which actions are allowed."""
        legal = getattr(self.inner, "get_legal_moves", self.inner.get_avail_actions)  # the first: hanabi's
        return self._stacked(legal(state)).astype(bool)

    def _is_late(self, state: Any) -> Any:
        limit, inner = getattr(self.inner, "max_steps", None), getattr(state, "state", state)
        return inner.step >= limit if limit is not None and hasattr(inner, "step") else False

    def _stacked(self, values: Any) -> Any:
        from jax import numpy as jnp

        stacked = jnp.stack([values[agent] for agent in self.inner.agents])
        return stacked if len(self.agents) > 1 else stacked[0]

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Starts an episode."""
        obs, state = self.inner.reset(key)
        return state, _plain(self._stacked(obs))

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """One transition of all agents."""
        each = action if len(self.agents) > 1 else action[None]
        actions = {agent: each[k] for k, agent in enumerate(self.inner.agents)}
        obs, after, rewards, dones, _infos = self.inner.step_env(key, state, actions)
        done = dones["__all__"]
        late = done & self._is_late(after)
        return after, _plain(self._stacked(obs)), self._stacked(rewards), done & ~late, late


def _plain_shape(seen: Any) -> Any:
    return _shapes(lambda: _plain(np.zeros(seen.shape, seen.dtype)))


LIBRARIES: dict[str, Any] = {
    "gymnax": Gymnax,
    "brax": Brax,
    "jumanji": Jumanji,
    "pgx": Pgx,
    "craftax": Craftax,
    "jaxmarl": JaxMarl,
}

FRAMEWORK = Jax("jax")
