"""Calls core/ppo.c with ctypes: PPO on a CPU. The structs mirror those of the C files."""

from __future__ import annotations

import ctypes
import functools
from ctypes import c_double, c_float, c_int64, c_uint64, c_void_p
from pathlib import Path

from shoal.native import build
from shoal.native.lib import best_variant, declare

MAX_LAYERS, MAX_DENSE, MAX_TOWERS, STATES = 3, 9, 2, 2
MAX_PARTS, MAX_WIDTH = 64, 4096
ACTIVATIONS = ("relu", "tanh")
NO_CORE, LSTM, MINGRU = range(3)
FLOAT32, UINT8, INT8 = range(3)
ADAM, ADAMW, MUON = range(3)


def _fields(kind: type, names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class Dense(ctypes.Structure):
    """A dense layer of one or two torch.nn.Linear side by side."""

    _fields_ = [
        *_fields(c_int64, "inputs outputs parts"),
        *_fields(c_int64 * 2, "part_outputs weight bias"),
        *_fields(c_int64, "forward backward gradient"),
    ]


class Tower(ctypes.Structure):
    """The layers, the core and the head of a network."""

    _fields_ = [*_fields(c_int64, "num_dense first_head"), ("dense", Dense * MAX_DENSE)]


class Net(ctypes.Structure):
    """A policy: one tower, or one for the actor and one for the critic."""

    _fields_ = [
        *_fields(c_int64, "inputs layers head_layers hidden core core_size activation towers"),
        *_fields(c_int64, "log_std num_stds packed gradients"),
        ("tower", Tower * MAX_TOWERS),
    ]


class Part(ctypes.Structure):
    """A part of an action: one choice, or some numbers."""

    _fields_ = _fields(c_int64, "count size logits column log_stds")


class Head(ctypes.Structure):
    """The actions of a policy."""

    _fields_ = [
        ("parts", c_void_p),
        *_fields(c_int64, "num_parts columns num_logits num_params num_outputs is_float is_squashed"),
        ("log_scale", c_void_p),
    ]


class Matrix(ctypes.Structure):
    """A matrix that Muon updates."""

    _fields_ = [
        *_fields(c_int64, "start rows columns"),
        *_fields(c_void_p, "x by_column square first second squares"),
    ]


class Optimizer(ctypes.Structure):
    """The weights, and how they are updated."""

    _fields_ = [
        *_fields(c_int64, "kind size"),
        *_fields(c_void_p, "weights gradient mean second step"),
        *_fields(c_double, "rate beta1 beta2 eps decay momentum"),
        *_fields(c_int64, "num_matrices num_spans newton_steps"),
        *_fields(c_void_p, "matrices spans newton"),
    ]


class Setup(ctypes.Structure):
    """Sizes of minibatches, and the threads."""

    _fields_ = [*_fields(c_int64, "steps max_threads"), *_fields(c_void_p, "run pool_threads pool")]


class Inputs(ctypes.Structure):
    """Observations, and how they are scaled and normalized."""

    _fields_ = [
        ("at", c_void_p),
        ("kind", c_int64),
        *_fields(c_float, "scale limit"),
        *_fields(c_void_p, "mean rstd"),
    ]


class Act(ctypes.Structure):
    """The rows of one step, and where their actions are written."""

    _fields_ = [
        ("inputs", Inputs),
        *_fields(c_void_p, "masks noise logits values actions"),
        *_fields(c_void_p * (MAX_TOWERS * STATES), "state saved"),
        *_fields(c_int64, "rows keeps_state"),
    ]


class Epoch(ctypes.Structure):
    """A rollout, and the minibatches of one pass over it."""

    _fields_ = [
        ("inputs", Inputs),
        *_fields(c_void_p, "actions logprobs values advantages returns counts masks resets"),
        ("start", c_void_p * (MAX_TOWERS * STATES)),
        *_fields(c_void_p, "segments weights edges"),
        *_fields(c_int64, "rows minibatches standardizes"),
        *_fields(c_double, "limit rate"),
        *_fields(c_float, "clip value_clip value_coef entropy_coef"),
        *_fields(c_void_p, "metrics whole"),
    ]


class Envs(ctypes.Structure):
    """The memory of native envs, and functions of their library."""

    _fields_ = [
        *_fields(c_void_p, "batch step take obs final_obs rewards terminated truncated alive masks"),
        *_fields(c_int64, "agents obs_bytes"),
    ]


class Report(ctypes.Structure):
    """What a block of envs reports of a rollout: truncated rows, a bad action, and times."""

    _fields_ = [
        *_fields(c_int64, "count capacity"),
        *_fields(c_void_p, "at obs state"),
        *_fields(c_int64, "bad_step bad_value out_of_memory policy_ns env_ns copy_ns"),
    ]


class Collect(ctypes.Structure):
    """A rollout, the envs that it is collected from, and how they are divided into blocks."""

    _fields_ = [
        ("envs", Envs),
        ("act", Act),
        *_fields(c_int64, "horizon segment"),
        *_fields(c_void_p, "rewards dones alive scale center low high box edges"),
        ("blocks", c_int64),
        ("reports", c_void_p),
    ]


class PPO:
    """The library."""

    def __init__(self, path: Path) -> None:
        lib = ctypes.CDLL(str(path))
        self.open = declare(lib.shoal_ppo_open, c_void_p, *[c_void_p] * 4)
        self.close = declare(lib.shoal_ppo_close, None, c_void_p)
        self.set_threads = declare(lib.shoal_ppo_set_threads, None, c_void_p, c_int64)
        self.pack = declare(lib.shoal_ppo_pack, None, c_void_p)
        self.act = declare(lib.shoal_ppo_act, None, c_void_p, c_void_p)
        self.learn = declare(lib.shoal_ppo_learn, None, c_void_p, c_void_p)
        self.gumbel = declare(lib.shoal_gumbel, None, c_uint64, c_int64, c_void_p)
        self.collect = declare(lib.shoal_ppo_collect, None, c_void_p, c_void_p)
        self.free_reports = declare(lib.shoal_ppo_free_reports, None, c_void_p, c_int64)


@functools.cache
def load(variant: str = "") -> PPO:
    """The fastest build that this CPU can run, or one by name, loaded once."""
    return PPO(build.library(build.PPO_SOURCE, variant or best_variant(build.PPO_SOURCE)))
