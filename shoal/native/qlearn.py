"""Calls core/qlearn.c with ctypes: Q-learning on a CPU. The structs mirror those of the C file."""

from __future__ import annotations

import ctypes
import functools
from ctypes import c_double, c_int32, c_int64, c_void_p
from pathlib import Path

from shoal.native import build
from shoal.native.lib import best_variant, declare


def _pointers(names: str) -> list[tuple[str, type]]:
    return [(name, c_void_p) for name in names.split()]


class Net(ctypes.Structure):
    """The sizes of a multi-layer perceptron."""

    _fields_ = [
        ("sizes", c_void_p),
        *((name, c_int32) for name in "layers is_tanh layer_norm padding".split()),
    ]


# The structs look alike: each lists the fields of a struct of core/qlearn.c, in its order.


class Act(ctypes.Structure):
    """The observations of some rows, and where their actions are written."""

    _fields_ = [
        *_pointers("net weights x masks noise logits best actions work"),
        ("rows", c_int64),
    ]


class Watch(ctypes.Structure):
    """A rollout whose statistics are computed."""

    _fields_ = [
        *_pointers("rewards logits dones alive games found"),
        *((name, c_int64) for name in "steps rows choices agents".split()),
    ]


class Improve(ctypes.Structure):
    """A gradient step: a batch, a network, its target and its optimizer."""

    _fields_ = [
        *_pointers("net weights gradient mean square step target x next_x actions returns discounts counts next_masks"),
        *_pointers("errors found work"),
        ("rows", c_int64),
        ("is_double", c_int32),
        ("is_mse", c_int32),
        *((name, c_double) for name in "rate beta1 beta2 eps limit".split()),
    ]


class Replay(ctypes.Structure):
    """The memory of a replay."""

    _fields_ = [
        *((name, c_int64) for name in "rows agents capacity leaves mask_size action_bytes".split()),
        *_pointers("obs_bytes base obs actions rewards kinds masks heads counts stored ends"),
    ]


class Store(ctypes.Structure):
    """A rollout to store in a replay."""

    _fields_ = [
        ("replay", c_void_p),
        ("steps", c_int64),
        *_pointers("obs actions rewards dones alive cuts masks last"),
    ]


class Draw(ctypes.Structure):
    """Transitions to sample from a replay, and where they are written."""

    _fields_ = [
        ("replay", c_void_p),
        ("groups", c_int64),
        ("count", c_int64),
        *_pointers("chances index weights"),
        ("n_step", c_int64),
        ("gamma", c_double),
        *_pointers("obs next_obs actions returns discounts next_masks"),
    ]


class QLearn:
    """The library. Each function takes the address of one struct."""

    def __init__(self, path: Path) -> None:
        lib = ctypes.CDLL(str(path))
        self.room = declare(lib.shoal_q_room, c_int64, c_void_p, c_int64)
        self.act = declare(lib.shoal_q_act, None, c_void_p)
        self.watch = declare(lib.shoal_q_watch, None, c_void_p)
        self.improve = declare(lib.shoal_q_improve, None, c_void_p)
        self.store = declare(lib.shoal_replay_store, None, c_void_p)
        self.draw = declare(lib.shoal_replay_draw, None, c_void_p)
        self.windows = declare(lib.shoal_replay_windows, None, c_void_p)


@functools.cache
def load() -> QLearn:
    """The fastest build that this CPU can run, loaded once. All builds give the same bytes."""
    return QLearn(build.library(build.QLEARN_SOURCE, best_variant()))
