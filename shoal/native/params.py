"""The params of a batch of native envs on the host: their values, and the distributions that some are drawn from."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.distributions import KINDS, Distribution
from shoal.native.lib import Module
from shoal.spec import MOST_CHOICES, Array

ALIGNMENT = 64  # a cache line: SIMD loads do not cross lines, and threads share none
RULE = np.dtype(
    [(name, np.int32) for name in "kind offset is_int first count".split()]
    + [("low", np.float32), ("high", np.float32)]
)  # ShoalRule in core/module.c
GIVEN = len(KINDS) + 1  # SHOAL_GIVEN of core/randomize.h
PARAM_STREAM, WRAP_STREAM = 0xA24BAED4963EE407, 0x9FB21C651E98DF25  # those of core/randomize.h


def aligned_zeros(shape: tuple[int, ...] | int, dtype: Any) -> Array:
    """Like np.zeros, but starting on a cache line."""
    dtype, shape = np.dtype(dtype), (shape,) if isinstance(shape, int) else shape
    count = int(np.prod(shape))
    block = np.zeros(count * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    zeros: Array = block[start : start + count * dtype.itemsize].view(dtype).reshape(shape)
    return zeros


class ParamTable:
    """Values of params, one for all envs or one for each, and the rules by which C draws some of them per episode."""

    def __init__(self, module: Module, num_envs: int) -> None:
        self.module, self.num_envs = module, num_envs
        self.values = aligned_zeros(1, module.params_dtype)
        module.default_params(self.values.ctypes.data)
        self.distributions: dict[str, Distribution] = {}
        self.rules = aligned_zeros(len(module.spec.params), RULE)
        self.given: dict[str, Array] = {}  # see `give`
        self.rule_values = aligned_zeros(len(module.spec.params) * MOST_CHOICES, np.float64)
        self.numbers = self.rule_values.reshape(-1, MOST_CHOICES)
        self.made = ""  # the fingerprint of the values that it was made with
        self.is_changed = False  # whether they were changed since then
        for k, param in enumerate(module.spec.params):
            offset = module.params_dtype.fields[param.name][1]  # type: ignore[index]
            self.rules[k] = (0, offset, param.kind == "int", k * MOST_CHOICES, 0, param.low, param.high)

    def give(self, names: Sequence[str]) -> dict[str, Array]:
        """Makes every new episode take these params from the returned arrays, which have an entry for each env."""
        count, old = len(self.numbers) * MOST_CHOICES, self.numbers
        self.rule_values = aligned_zeros(count + len(names) * self.num_envs, np.float64)
        self.numbers = self.rule_values[:count].reshape(-1, MOST_CHOICES)
        self.numbers[:] = old
        if not self.is_per_env:
            self._resize(self.num_envs)
        for number, name in enumerate(names):
            first = count + number * self.num_envs
            self.given[name] = self.rule_values[first : first + self.num_envs]
            self.given[name][:] = self.values[name]
            self.rules["first"][[param.name for param in self.module.spec.params].index(name)] = first
        self.set({})
        return self.given

    @property
    def is_drawn(self) -> bool:
        """Whether a new episode may change params."""
        return bool(self.distributions or self.given)

    @property
    def is_per_env(self) -> bool:
        """Whether every env has its own values."""
        return len(self.values) > 1

    def set(self, given: Mapping[str, Array | Distribution]) -> None:
        """Checked values of shape () or (num_envs,), or distributions, which the next episodes draw from."""
        arrays = {name: value for name, value in given.items() if not isinstance(value, Distribution)}
        for name in arrays:
            self.distributions.pop(name, None)
        self.distributions |= {name: value for name, value in given.items() if isinstance(value, Distribution)}
        for k, param in enumerate(self.module.spec.params):
            drawn = self.distributions.get(param.name)
            self.rules["kind"][k] = 0 if drawn is None else 1 + KINDS.index(drawn.kind)
            if drawn is not None:
                self.rules["count"][k] = len(drawn.values)
                self.numbers[k, : len(drawn.values)] = drawn.values
            if param.name in self.given:
                self.rules["kind"][k] = GIVEN
        if not self.is_per_env and (self.distributions or any(value.shape for value in arrays.values())):
            self._resize(self.num_envs)
        for name, value in arrays.items():
            self.values[name] = value

    def collapse(self) -> bool:
        """One set of values for all envs if they are equal and none is drawn: that is faster."""
        can = self.is_per_env and not self.is_drawn and bool((self.values == self.values[0]).all())
        if can:
            self._resize(1)
        return can

    def put(self, ids: Array, values: Array, distributions: Mapping[str, Distribution]) -> None:
        """The values of some envs and the distributions of all, from a snapshot."""
        self.distributions = {}
        self.set(distributions)
        self.is_changed = True
        if not self.is_per_env and not (values == self.values[0]).all():
            self._resize(self.num_envs)
        if self.is_per_env:
            self.values[ids] = values

    def state(self) -> tuple[Array, dict[str, Distribution], bool]:
        """What `set_state` restores."""
        return self.values.copy(), dict(self.distributions), self.is_changed

    def set_state(self, values: Array, distributions: dict[str, Distribution], is_changed: bool) -> None:
        """Restores a `state`."""
        self.distributions = {}
        self.set(distributions)
        self._resize(len(values))
        self.values[:] = values
        self.is_changed = is_changed

    def read(self) -> dict[str, Array]:
        """Every param as an array of one value for each env."""
        return {p.name: np.broadcast_to(self.values[p.name], self.num_envs).copy() for p in self.module.spec.params}

    def extras(self, ids: Array) -> dict[str, Array]:
        """What a snapshot holds of the params: nothing unless they were changed or are drawn."""
        if not (self.is_drawn or self.is_changed):
            return {}
        values = np.ascontiguousarray(np.broadcast_to(self.values, self.num_envs)[ids])
        return {"params": values.view(np.uint8).reshape(len(ids), -1)}

    def fingerprint(self) -> str:
        """Differs where values or distributions differ."""
        texts = [f"{name}={value}" for name, value in sorted(self.distributions.items())]
        fixed = [self.values[p.name].tobytes() for p in self.module.spec.params if p.name not in self.distributions]
        return f"{zlib.crc32(b''.join(fixed)):08x} {' '.join(texts)}".strip()

    def _resize(self, count: int) -> None:
        values = aligned_zeros(count, self.module.params_dtype)
        values[:] = self.values[0]
        self.values = values


def side_streams(rng: Array, stream: int) -> Array:
    """(envs, 4) streams derived from the (envs, 4) states of the envs' own, where no seed is known any more."""
    with np.errstate(over="ignore"):
        seeds = rng[:, 0].astype(np.uint64) | (rng[:, 1].astype(np.uint64) << np.uint64(32))
        seeds = _mix(seeds + np.uint64(stream))
        golden = 0x9E3779B97F4A7C15
        words = [_mix(seeds + np.uint64(k * golden % 2**64)) for k in (1, 2)]
    halves = [half for word in words for half in (word & np.uint64(0xFFFFFFFF), word >> np.uint64(32))]
    return np.stack(halves, axis=1).astype(np.uint32)


def _mix(x: Array) -> Array:
    """`rng_mix` of core/env.h."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = x ^ (x >> np.uint64(31))
    return mixed
