"""Loads a compiled env with ctypes and reads its description. The structs mirror `core/module.c` and `core/host.h`."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import itertools
import os
from collections.abc import Iterable, Mapping
from ctypes import POINTER, c_char, c_char_p, c_double, c_float, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from shoal import groups
from shoal.distributions import number_or_word
from shoal.errors import BuildError, ConfigError
from shoal.native import build
from shoal.native.channels import Channel as Channel
from shoal.native.channels import Channels
from shoal.native.channels import declare as declare
from shoal.spec import RESERVED_PARAMS, RESERVED_STATS, Array, Const, EnvSpec, Param, Preset, Stat

ABI = 4
DRAW_KINDS = ("rect", "circle", "line", "text", "polygon")


class Batch(ctypes.Structure):
    """`Batch` in core/module.c: pointers to all memory of a batch of envs."""

    _fields_ = [
        *(
            (name, c_int32)
            for name in (
                "num_envs autoreset params_stride poison final_cut num_rules wraps stack chunk skip frame_limit"
            ).split()
        ),
        *((name, c_float) for name in "sticky obs_noise reward_scale reward_clip".split()),
        ("slides", c_int32),
        *(
            (name, c_void_p)
            for name in (
                "state rng tick ended returns stats params param_rng rules rule_values "
                "wrap_rng applied frames final_frames history actions seeds reset_mask "
                "obs final_obs rewards terminated truncated done alive masks final_return final_length final_stats "
                "episodes sums lows highs"
            ).split()
        ),
    ]


class _Entry(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("kind", c_char_p), ("help", c_char_p), ("value", c_double), ("offset", c_int32)]


class _Limit(ctypes.Structure):
    _fields_ = [("names", c_char_p), ("low", c_double), ("high", c_double)]


class _Group(ctypes.Structure):
    _fields_ = [("name", c_char_p), *((name, c_int32) for name in "first last obs actions".split())]


class _Curve(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("help", c_char_p), ("count", c_int32), ("points", c_int32)]


class _Spec(ctypes.Structure):
    _fields_ = [
        *((name, c_int32) for name in "abi version agents max_steps obs_is_u8 obs_ndim".split()),
        ("obs_shape", c_int32 * 4),
        ("action_kind", c_int32),
        ("action_size", c_int32),
        ("action_dims", c_int32 * 8),
        *((name, c_int32) for name in "mask_size has_draw is_columns params_bytes record_bytes".split()),
        *((name, c_int32) for name in "num_params num_consts num_stats".split()),
        *((name, c_int32) for name in "obs_lows obs_highs action_lows action_highs".split()),
        *((name, POINTER(_Entry)) for name in "params consts stats".split()),
        ("fields", c_char_p),
        *((name, POINTER(c_float)) for name in "obs_low obs_high action_low action_high".split()),
    ]


class DrawItem(ctypes.Structure):
    """`DrawItem` in core/draw.h."""

    _fields_ = [
        ("kind", c_int32),
        ("color", c_uint32),
        *((name, c_float) for name in "x y a b c".split()),
        ("text", c_char * 24),
    ]


class Draw(ctypes.Structure):
    """`Draw` in core/draw.h."""

    _fields_ = [
        *((name, c_float) for name in "left top right bottom".split()),
        ("background", c_uint32),
        ("count", c_int32),
        ("capacity", c_int32),
        ("items", POINTER(DrawItem)),
        ("points", POINTER(c_float)),
        ("point_count", c_int32),
        ("point_capacity", c_int32),
    ]


RANGE = [c_void_p, c_int32, c_int32]


class Core(Channels):
    """The library that all envs share: thread pool, process signalling, rasterizer, and loops of the learners."""

    def __init__(self, path: Path) -> None:
        lib = ctypes.CDLL(str(path))
        super().__init__(lib)
        self.path = path
        self.cpu_level = declare(lib.shoal_cpu_level, c_int32)
        self.pool_open = declare(lib.shoal_pool_open, c_void_p, c_int32, c_int32, c_int32)
        self.pool_stop = declare(lib.shoal_pool_stop, None, c_void_p)
        self.pool_close = declare(lib.shoal_pool_close, None, c_void_p)
        job = [c_void_p, c_void_p, c_int32, c_int32, c_int32]
        self.pool_submit = declare(lib.shoal_pool_submit, None, c_void_p, c_int32, *job)
        self.pool_wait = declare(lib.shoal_pool_wait, c_int64, c_void_p, c_int32, c_int32)
        self.pool_run = declare(lib.shoal_pool_run, c_int64, c_void_p, *job)
        take = [c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_int32, c_int32, c_int32]
        self.pool_take = declare(lib.shoal_pool_take, c_int64, *take)
        self.pool_threads = declare(lib.shoal_pool_threads, c_int32, c_void_p)
        self.raster = declare(lib.shoal_raster, None, POINTER(Draw), c_void_p, c_int32, c_int32)
        sums = [c_float, c_float, c_int64, c_int64, c_void_p]
        self.advantages = declare(lib.shoal_advantages, None, *[c_void_p] * 5, *sums)
        sums = [c_float, c_int64, c_int64, c_void_p, c_void_p]
        floats = [c_float] * 5 + [c_void_p] * 3
        self.choice_loss = declare(lib.shoal_choice_loss, None, *[c_void_p] * 8, c_int64, c_int64, *floats)
        self.running_returns = declare(lib.shoal_running_returns, None, c_void_p, c_void_p, *sums)
        self.simplex = declare(lib.shoal_simplex, None, *[c_void_p] * 4, c_double, c_int64, c_void_p)
        self.ways = declare(lib.shoal_ways, None, c_void_p, *[c_int32] * 4, c_void_p, c_void_p)


class Module:
    """One env as a loaded library: its description and its range functions."""

    def __init__(self, source: build.Source, path: Path) -> None:
        self.source, self.path = source, path
        lib = ctypes.CDLL(str(path))
        raw = _Spec()
        declare(lib.shoal_spec, None, POINTER(_Spec))(raw)
        if raw.abi != ABI:
            raise BuildError(
                f"{path} was built for ABI {raw.abi}, this Shoal needs {ABI}. Delete the file: it is rebuilt on demand."
            )
        limits = declare(lib.shoal_limits, POINTER(_Limit))()
        texts = [declare(function, c_char_p)() for function in (lib.shoal_choices, lib.shoal_presets)]
        choices, presets = ([line.split("\t") for line in text.decode().splitlines()] for text in texts)
        self.spec = _with_values(_read_spec(source.name, raw), limits, choices, presets, is_plain=not source.consts)
        self.spec = _with_groups(self.spec, declare(lib.shoal_groups, POINTER(_Group))())
        self.action_size, self.record_bytes, self.is_columns = raw.action_size, raw.record_bytes, bool(raw.is_columns)
        self.fields = raw.fields.decode()
        self.params_dtype = np.dtype(
            {
                "names": [p.name for p in self.spec.params],
                "formats": [p.dtype for p in self.spec.params],
                "offsets": [raw.params[k].offset for k in range(raw.num_params)],
                "itemsize": raw.params_bytes,
            }
        )
        self.state_bytes = declare(lib.shoal_state_bytes, c_int64, c_int64)
        self.default_params = declare(lib.shoal_default_params, None, c_void_p)
        self.reset = declare(lib.shoal_reset, c_int64, *RANGE)
        self.step = declare(lib.shoal_step, c_int64, *RANGE)
        take = [c_int64, c_void_p, c_void_p, c_int32, c_int32]
        self.take: dict[np.dtype[Any], Any]
        if self.spec.has_float_actions:
            self.take = {np.dtype(np.float32): declare(lib.shoal_take_f32, *take)}
        else:
            self.take = {
                np.dtype(np.int64): declare(lib.shoal_take_i64, *take),
                np.dtype(np.int32): declare(lib.shoal_take_i32, *take),
            }
        self.sample = declare(lib.shoal_sample, c_int64, c_void_p, c_uint64, c_int32, c_int32)
        self.digest = declare(lib.shoal_digest, c_int64, c_void_p, c_void_p, c_int32, c_int32)
        self.save = declare(lib.shoal_save, None, c_void_p, c_void_p, c_int64, c_void_p)
        self.check = declare(lib.shoal_check, c_int64, c_void_p, c_void_p, c_int64, c_void_p)
        self.load = declare(lib.shoal_load, None, c_void_p, c_void_p, c_int64, c_void_p)
        self.draw = declare(lib.shoal_draw, None, c_void_p, c_int64, POINTER(Draw))
        curves = itertools.takewhile(lambda entry: entry.name, declare(lib.shoal_curve_list, POINTER(_Curve))())
        self.curve_shapes = {curve.name.decode(): (curve.count, curve.points, 4) for curve in curves}
        self.curves = declare(lib.shoal_curves, None, c_void_p, c_int64, c_int32, c_void_p)


def _read_spec(name: str, raw: _Spec) -> EnvSpec:
    def entries(table: Any, count: int) -> list[tuple[str, str, float, str]]:
        rows = (table[k] for k in range(count))
        return [(row.name.decode(), row.kind.decode(), row.value, row.help.decode(errors="replace")) for row in rows]

    def floats(pointer: Any, count: int) -> Array:
        return np.array([pointer[k] for k in range(count)], np.float32)

    obs_shape = tuple(raw.obs_shape[: raw.obs_ndim])
    action_kind = ("discrete", "multi", "box", "mix")[raw.action_kind]
    num_floats = raw.action_dims[0] if action_kind in ("box", "mix") else raw.action_size
    num_dims = {"multi": raw.action_size, "mix": 1 + raw.action_size - num_floats}.get(action_kind, 1)
    spec = EnvSpec(
        name=name,
        version=raw.version,
        agents=raw.agents,
        max_steps=raw.max_steps,
        obs_dtype=np.dtype(np.uint8 if raw.obs_is_u8 else np.float32),
        obs_shape=obs_shape,
        obs_low=_bounds(name, "ENV_OBS_LOW", floats(raw.obs_low, raw.obs_lows), obs_shape),
        obs_high=_bounds(name, "ENV_OBS_HIGH", floats(raw.obs_high, raw.obs_highs), obs_shape),
        action_kind=action_kind,
        action_dims=tuple(raw.action_dims[:num_dims]),
        action_low=_bounds(name, "ENV_ACTION_LOW", floats(raw.action_low, raw.action_lows), (num_floats,)),
        action_high=_bounds(name, "ENV_ACTION_HIGH", floats(raw.action_high, raw.action_highs), (num_floats,)),
        mask_size=raw.mask_size,
        has_draw=bool(raw.has_draw),
        params=tuple(Param(n, kind, value, text) for n, kind, value, text in entries(raw.params, raw.num_params)),
        consts=tuple(Const(n, int(value), text) for n, _, value, text in entries(raw.consts, raw.num_consts)),
        stats=tuple(Stat(n, kind, text) for n, kind, _, text in entries(raw.stats, raw.num_stats)),
    )
    if spec.agents < 1:
        raise BuildError(f"{name}: ENV_AGENTS is {spec.agents}. An env has at least 1 agent.")
    for macro, low, high in (
        ("ENV_OBS", spec.obs_low, spec.obs_high),
        ("ENV_ACTION", spec.action_low, spec.action_high),
    ):
        if not np.all(low <= high):
            raise BuildError(f"{name}: {macro}_LOW is above {macro}_HIGH: {low.tolist()} and {high.tolist()}.")
    if 0 in spec.obs_shape:
        raise BuildError(f"{name}: ENV_OBS has the shape {spec.obs_shape}, so no elements. Give it at least one.")
    if min(choices := spec.action_dims[action_kind == "mix" :], default=1) < 1:
        raise BuildError(f"{name}: ENV_ACTION has a part of size {min(choices)}. Give it at least 1.")
    for stat in spec.stats:
        if stat.name in RESERVED_STATS:
            raise BuildError(f"{name}: the stat '{stat.name}' has the name of a stat that every env has. Rename it.")
    for own in spec.param_names[1:] + spec.const_names:
        if own in RESERVED_PARAMS:
            raise BuildError(f"{name}: the param '{own}' has the name of an option of shoal.make. Rename it.")
    for param in spec.params:
        if param.kind not in ("float", "int"):
            raise BuildError(f"{name}: param '{param.name}' has type {param.kind}. Use float or int in ENV_PARAMS.")
    return spec


def _with_values(
    spec: EnvSpec, limits: Any, choices: Iterable[list[str]], presets: Iterable[list[str]], is_plain: bool
) -> EnvSpec:
    """The spec with ENV_LIMITS, ENV_CHOICES and ENV_PRESETS. An entry that matches no param or const raises.

    is_plain: the consts have the header's values, for which its defaults must be within its limits.
    """
    fields: dict[str, dict[str, Any]] = {name: {} for name in spec.param_names + spec.const_names}

    def matching(pattern: str, macro: str) -> list[str]:
        names = [name for name in fields if fnmatchcase(name, pattern)]
        if not names:
            raise BuildError(f"{spec.name}: {macro} names '{pattern}', which matches no param or const.")
        return names

    for limit in itertools.takewhile(lambda limit: limit.names, limits):
        for name in matching(limit.names.decode(), "ENV_LIMITS"):
            fields[name] |= {"low": limit.low, "high": limit.high}
    for pattern, words in choices:
        for name in matching(pattern, "ENV_CHOICES"):
            fields[name] |= {"choices": tuple(words.split())}
    kinds = {param.name: param.kind for param in spec.params}
    if unfit := [name for name, extra in fields.items() if "choices" in extra and kinds.get(name) != "int"]:
        raise BuildError(f"{spec.name}: ENV_CHOICES has '{unfit[0]}', which is not an int of ENV_PARAMS.")
    spec = dataclasses.replace(
        spec,
        params=tuple(dataclasses.replace(param, **fields[param.name]) for param in spec.params),
        consts=tuple(dataclasses.replace(const, **fields[const.name]) for const in spec.consts),
        presets=tuple(
            Preset(name, {key: number_or_word(word) for key, word in build.parse_settings(settings).items()}, text)
            for name, settings, text in presets
        ),
    )
    try:
        for param in spec.params if is_plain else ():
            param.check(spec.name, int(param.default) if param.kind == "int" else param.default, 1)
        for preset in spec.presets:
            values, consts = spec.split(preset.settings)
            for param in spec.params if is_plain and not consts else ():  # limits may depend on consts
                if param.name in values:
                    param.check(f"{spec.name}, preset '{preset.name}'", values[param.name], 1)
    except ConfigError as error:
        raise BuildError(f"the header contradicts itself: {error}") from None
    return spec


def _with_groups(spec: EnvSpec, entries: Any) -> EnvSpec:
    """The spec with ENV_GROUPS. Groups that miss an agent or share one raise."""
    listed = list(itertools.takewhile(lambda entry: entry.name, entries))
    words = [f"{entry.name.decode()}={entry.first}-{entry.last}" for entry in listed]
    agents = [f"agent_{k}" for k in range(spec.agents)]
    try:
        declared = groups.read(words, agents, f"{spec.name}: ENV_GROUPS")
    except ConfigError as error:
        raise BuildError(str(error)) from None
    sizes = [(0, 0)] * spec.agents
    for entry in listed:
        _check_sizes(spec, entry.name.decode(), entry.obs, entry.actions)
        sizes[entry.first : entry.last + 1] = [(entry.obs, entry.actions)] * (entry.last + 1 - entry.first)
    own = tuple(sizes) if any(map(any, sizes)) else ()
    return dataclasses.replace(spec, groups=tuple(declared.items()), own_sizes=own)


def _check_sizes(spec: EnvSpec, group: str, obs: int, actions: int) -> None:
    """Raises for a group whose observation or action is no part of the env's."""
    where, most = f"{spec.name}: ENV_GROUPS '{group}'", spec.action_dims[0]
    if spec.action_kind == "multi":
        most = len(spec.action_dims)
    if spec.agents == 1 and (obs or actions):
        raise BuildError(f"{where} has sizes of its own, but the env has one agent. Use ENV_OBS and ENV_ACTION.")
    if obs and len(spec.obs_shape) != 1:
        raise BuildError(f"{where} observes {obs} elements, but ENV_OBS has {len(spec.obs_shape)} dimensions. Use one.")
    if not 0 <= obs <= spec.obs_shape[0]:
        raise BuildError(
            f"{where} observes {obs} elements of {spec.obs_shape[0]}. ENV_OBS has the size of the largest."
        )
    if actions and spec.action_kind == "mix":
        raise BuildError(f"{where} has {actions} actions, which ACT_MIX does not support. Leave them 0.")
    if not 0 <= actions <= most:
        raise BuildError(f"{where} has {actions} actions of {most}. ENV_ACTION has the size of the largest.")


def _bounds(name: str, macro: str, values: Array, shape: tuple[int, ...]) -> Array:
    size = int(np.prod(shape))
    if len(values) not in (1, size):
        raise BuildError(f"{name}: {macro} has {len(values)} values. Give 1 value, or {size}: one for each element.")
    return values.reshape(()) if len(values) == 1 else values.reshape(shape)


@functools.cache
def load_core() -> Core:
    """The Core library, loaded once."""
    return Core(build.library(build.CORE_SOURCE, "base"))


CPU_LEVELS = {"base": 0, "avx2": 2, "avx512": 3}  # what a build needs: see shoal_cpu_level in pool.c


def best_variant(source: build.Source | None = None) -> str:
    """The fastest build of an env, or of another source, that this CPU can run. All builds of an env are equal.

    The variable SHOAL_SIMD (base, avx2 or avx512) sets an upper limit.
    """
    limit = os.environ.get("SHOAL_SIMD") or "avx512"
    if limit not in CPU_LEVELS:
        raise ConfigError(f"SHOAL_SIMD={limit} is none of {', '.join(CPU_LEVELS)}. Unset it, or use one of them.")
    level = min(load_core().cpu_level(), CPU_LEVELS[limit])
    names = build.variants() if source is None else source.variants()
    return max((name for name in names if CPU_LEVELS[name] <= level), key=lambda name: CPU_LEVELS[name])


@functools.cache
def _load_path(source: build.Source, path: Path) -> Module:
    return Module(source, path)


def load(header: Path, consts: Mapping[str, int] | None = None, variant: str | None = None) -> Module:
    """The env of a header as a loaded library, compiled first if necessary."""
    source = build.Source.env(header, consts)
    return _load_path(source, build.library(source, variant or best_variant()))


def spec_of(header: Path) -> EnvSpec:
    """The spec of a header, without the time of an optimized build."""
    source = build.Source.env(header)
    return _load_path(source, build.quick_library(source, best_variant())).spec
