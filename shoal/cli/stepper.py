"""Stepper: one env for `shoal step`: steps it, takes steps back, reads actions from words, shows its state.

Knows nothing of the terminal.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.errors import ConfigError, ShoalError
from shoal.spec import Array, Layout, structure

KEPT = 1000  # snapshots to go back to


@dataclass(frozen=True)
class StepResult:
    """What one step gave: one value for each agent."""

    actions: list[Any]
    rewards: Array
    terminated: Array
    truncated: Array
    is_over: bool  # the episode ended
    stats: dict[str, float]  # of the episode, where it ended


class Stepper:
    """One env and its episode so far."""

    def __init__(self, env: str, seed: int, params: dict[str, Any]) -> None:
        self.name = env
        self.vec = make_one(env, params)
        self.view = self.vec.agents()
        self.agents: tuple[str, ...] = self.vec.agent_spaces.agents
        self.action_spaces = self.vec.agent_spaces.action_spaces
        self.observation_spaces = self.vec.agent_spaces.observation_spaces
        self.rng = np.random.default_rng(seed)
        self.undo: list[tuple[bytes, int, Array]] = []  # snapshot, steps and returns before each step
        self.obs: dict[str, Any] = {}  # by agent, as a batch of one: views, so always the current ones
        self.steps, self.returns, self.is_over = 0, np.zeros(len(self.agents)), False
        self.reset(seed)

    @property
    def is_native(self) -> bool:
        """Whether the env is a header: it has a State, params, and snapshots to go back to."""
        return self.vec.native_spec is not None

    def reset(self, seed: int | None = None) -> None:
        """Starts an episode: that of a seed, or the next one."""
        self.obs, infos = self.view.reset(seed=seed)
        self.steps, self.returns, self.is_over = 0, np.zeros(len(self.agents)), False
        self._infos = infos
        self.undo.clear()

    def step(self, actions: list[Any]) -> StepResult:
        """One step with one action for each agent. A step after the end of an episode starts the next one first."""
        if self.is_over:
            self.reset()
        if self.vec.can_snapshot:
            self.undo = [*self.undo[1 - KEPT :], (self.vec.snapshot(), self.steps, self.returns.copy())]
        batches = {agent: _batch_of_one(action) for agent, action in zip(self.agents, actions)}
        try:
            self.obs, *by_agent, self._infos = self.view.step(batches)
        except ShoalError:
            del self.undo[-1:]  # nothing was stepped
            raise
        rewards, terminated, truncated = (
            np.array([np.asarray(values[agent])[0] for agent in self.agents]) for values in by_agent
        )
        self.steps, self.returns = self.steps + 1, self.returns + rewards
        self.is_over = bool(self.vec.ended[0])
        return StepResult(actions, rewards, terminated, truncated, self.is_over, self._stats() if self.is_over else {})

    def back(self, count: int) -> None:
        """Undoes steps of this episode."""
        if not self.vec.can_snapshot:
            raise ConfigError("b: the state of a Python env cannot be put back. 'r SEED' starts an episode again.")
        if not 1 <= count <= len(self.undo):
            raise ConfigError(f"b {count}: there are {len(self.undo)} steps to undo in this episode.")
        blob, self.steps, self.returns = self.undo[-count]
        del self.undo[-count:]
        self.vec.restore(blob)
        self.is_over = False
        self._infos = self.vec.current_infos()

    def mask(self, agent: int) -> Array | None:
        """(choices) 1 where the env allows a choice of an agent; None: it has no masks."""
        masks = self._infos.get("action_mask")
        return None if masks is None else np.asarray(masks)[agent].astype(bool)

    def is_alive(self, agent: int) -> bool:
        """Whether an agent is in the game."""
        alive = self._infos.get("alive")
        return True if alive is None or self.is_over else bool(np.asarray(alive)[agent])

    def observation(self, agent: int) -> Iterator[tuple[str, Array, Array, Array]]:
        """(name, values, low, high) of each array of an agent's observation."""
        space = self.observation_spaces[agent]
        layout = Layout(space)
        values = layout.leaves_of(self.obs[self.agents[agent]])
        for leaf, batch, part in zip(layout.leaves, values, _leaf_spaces(space)):
            low, high = bounds_of(part)
            yield leaf.name, np.asarray(batch)[0], low, high

    def random_action(self, agent: int) -> Any:
        """A random action, among those that the mask allows."""
        space, mask = self.action_spaces[agent], self.mask(agent)
        parts, at = [], 0
        for leaf in _leaf_spaces(space):
            low, high = bounds_of(leaf)
            if isinstance(leaf, spaces.Box):
                low, high = np.maximum(low, -1e3), np.minimum(high, 1e3)  # also where unbounded
                drawn = self.rng.uniform(low, high)
                parts.append(np.round(drawn, 3) if leaf.dtype.kind == "f" else drawn.astype(np.int64))
                continue
            numbers = np.empty(low.shape, np.int64)
            for place in np.ndindex(low.shape):
                choices = np.arange(low[place], high[place] + 1)
                if mask is not None:
                    allowed = choices[mask[at : at + len(choices)]]
                    choices, at = (allowed if len(allowed) else choices), at + len(choices)
                numbers[place] = self.rng.choice(choices)
            parts.append(numbers)
        return structure(space, iter(_typed(leaf, part) for leaf, part in zip(_leaf_spaces(space), parts)))

    def read_actions(self, words: list[str]) -> list[Any]:
        """One action for each agent, from words: numbers in order, `|` between agents, `?` for a random one."""
        words = [word for word in words if word != "|"]
        actions: list[Any] = []
        for agent, space in enumerate(self.action_spaces):
            if words[:1] == ["?"]:
                words = words[1:]
                actions.append(self.random_action(agent))
                continue
            size = sum(int(np.prod(bounds_of(leaf)[0].shape)) for leaf in _leaf_spaces(space))
            if len(words) < size:
                raise ConfigError(
                    f"{self._whose(agent)} is {self.describe_action(agent)}, but {len(words)} are left. "
                    "Type ? for a random action. Nothing was stepped."
                )
            actions.append(self._read_action(agent, words[:size]))
            words = words[size:]
        if words:
            raise ConfigError(
                f"'{' '.join(words)}' is left over. {self.describe_actions()} Type x10 for ten random steps."
            )
        return actions

    def _read_action(self, agent: int, words: list[str]) -> Any:
        space = self.action_spaces[agent]
        parts = []
        for leaf in _leaf_spaces(space):
            low, high = bounds_of(leaf)
            kind = float if isinstance(leaf, spaces.Box) and leaf.dtype.kind == "f" else int
            part = np.empty(low.shape, np.float64 if kind is float else np.int64)
            for place in np.ndindex(low.shape):
                word, words = words[0], words[1:]
                try:
                    part[place] = kind(word)
                except (ValueError, OverflowError):
                    raise ConfigError(
                        f"'{word}' is no command and no {kind.__name__}. "
                        f"{self._whose(agent)} is {self.describe_action(agent)}; h lists the commands."
                    ) from None
                if not low[place] <= part[place] <= high[place]:
                    raise ConfigError(
                        f"{word} is out of range {low[place]:g} .. {high[place]:g}. "
                        f"{self._whose(agent)} is {self.describe_action(agent)}. Nothing was stepped."
                    )
            parts.append(_typed(leaf, part))
        return structure(space, iter(parts))

    def _whose(self, agent: int) -> str:
        return f"The action of {self.agents[agent]}" if len(self.agents) > 1 else "The action"

    def describe_actions(self) -> str:
        """What a step needs: an action, or one for each agent."""
        texts = [self.describe_action(agent) for agent in range(len(self.agents))]
        if len(set(texts)) == 1:
            return f"An action is {texts[0]}{'' if len(texts) == 1 else ', for each agent'}."
        return f"An action is {', '.join(f'{text} for {name}' for name, text in zip(self.agents, texts))}."

    def describe_action(self, agent: int) -> str:
        """What an action is: `one of 0 .. 4`, or `2 numbers: -1 .. 1, -1 .. 1`."""
        ranges: list[str] = []
        for leaf in _leaf_spaces(self.action_spaces[agent]):
            low, high = (bound.reshape(-1) for bound in bounds_of(leaf))
            ranges += [f"{a:g} .. {b:g}" for a, b in zip(low, high)]
        if len(ranges) == 1:
            return f"a number in {ranges[0]}"
        shown = ranges[0] + " each" if len(set(ranges)) == 1 else ", ".join(ranges[:8])
        return f"{len(ranges)} numbers: {shown}"

    def masked_choices(self, actions: list[Any]) -> list[str]:
        """The agents whose action the mask forbids: of one discrete choice, where the env has masks."""
        names = []
        for agent, action in enumerate(actions):
            mask, space = self.mask(agent), self.action_spaces[agent]
            if mask is None or not isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
                continue
            low, high = (bound.reshape(-1) for bound in bounds_of(space))
            starts = np.cumsum([0, *(high - low + 1)])[:-1].astype(int)
            flags = [mask[at + int(choice)] for at, choice in zip(starts, np.reshape(action, -1) - low)]
            if not all(flags):
                names.append(self.agents[agent])
        return names

    # ---- the state ----

    @cached_property
    def _fields(self) -> Any:
        from shoal.native.fields import fields_of

        return fields_of(self.vec.module.source)

    def state(self) -> Iterator[tuple[str, Any]]:
        """(name, value) of each field of State, or of each plain attribute of a Python env."""
        if not self.is_native:
            unwrapped = self.vec.get_attr("unwrapped")[0]
            for name, value in sorted(vars(unwrapped).items()):
                if isinstance(value, (bool, int, float, str, np.generic, np.ndarray, list, tuple, dict)):
                    yield name, value
            return
        record = self._record()
        for field in self._fields:
            yield field.path, field.read(record)
        if not self._fields:
            size = self.vec.module.record_bytes
            yield f"State and bookkeeping, {size} bytes", record.tobytes()
        yield "steps", int(self.vec.memory.arrays["tick"][0])

    def _record(self) -> Array:
        """The bytes of a snapshot's record: State comes first."""
        ids, record = np.zeros(1, np.int64), np.zeros(self.vec.module.record_bytes, np.uint8)
        self.vec.module.save(self.vec.memory.address, ids.ctypes.data, 1, record.ctypes.data)
        return record

    def frame(self, width: int) -> Array:
        """The picture, as (height, width, 3) uint8."""
        if self.is_native:
            frame: Array = self.vec.frame(0, width=width)
            return frame
        picture = self.vec.render()[0] if self.vec.render_mode else None
        if not isinstance(picture, np.ndarray) or picture.ndim != 3:
            raise ConfigError("p: this env gives no picture: it does not support render_mode='rgb_array'.")
        return picture

    def _stats(self) -> dict[str, float]:
        final = self._infos.get("final_info", {})
        names = [stat.name for stat in self.vec.native_spec.stats] if self.is_native else []
        return {name: float(np.asarray(final[name])[0]) for name in names if name in final}

    def close(self) -> None:
        """Closes the env."""
        self.vec.close()


def make_one(env: str, params: dict[str, Any]) -> Any:
    """One env that waits at the end of an episode, so that its last state can be looked at."""
    from shoal import registry
    from shoal.entry import make

    options: dict[str, Any] = {"backend": "serial", "autoreset": "disabled"}
    if registry.is_native(env):
        return make(env, 1, **options, **params)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium's, about render modes that an env does not list
            return make(env, 1, render_mode="rgb_array", **options, **params)
    except (TypeError, ValueError, ShoalError, AssertionError):  # an env without pictures refuses the argument
        return make(env, 1, **options, **params)


def _leaf_spaces(space: spaces.Space[Any]) -> list[Any]:
    from shoal.vector.actions import leaf_spaces

    return leaf_spaces(space)


def bounds_of(space: Any) -> tuple[Array, Array]:
    """The lowest and highest value of each element of a space that is one array."""
    if isinstance(space, spaces.Discrete):
        return np.array(space.start), np.array(space.start + space.n - 1)
    if isinstance(space, spaces.MultiDiscrete):
        start = np.broadcast_to(getattr(space, "start", 0), space.nvec.shape)
        return start, start + space.nvec - 1
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, np.int64), np.ones(space.shape, np.int64)
    return space.low, space.high


def _typed(space: Any, value: Array) -> Any:
    """A value with the type of its space: float32 for a box, otherwise int64."""
    if isinstance(space, spaces.Box):
        return value.astype(space.dtype)
    return value.astype(np.int8 if isinstance(space, spaces.MultiBinary) else np.int64)


def _batch_of_one(action: Any) -> Any:
    if isinstance(action, dict):
        return {key: _batch_of_one(part) for key, part in action.items()}
    if isinstance(action, tuple):
        return tuple(_batch_of_one(part) for part in action)
    return np.asarray(action)[None]
