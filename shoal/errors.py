"""The exceptions that Shoal raises for mistakes that a user can fix. Messages: the fact, the numbers, the next move.

ShoalError
├── ConfigError (ValueError)         an option, param or const with a wrong name, type or value
│   └── UnknownEnv                   no env of that name
├── ActionError (ValueError)         actions of a wrong shape, dtype or value; nothing was stepped
├── UsageError (RuntimeError)        a call out of order: step before reset, use after close
├── SnapshotError (ValueError)       bytes that are not a snapshot of this env
├── CheckpointError (RuntimeError)   a checkpoint that is damaged, foreign, or cannot be written
├── TrainingError (RuntimeError)     training went wrong: a value that is not finite, and where it came from
│   └── RankError                    another process of the run failed, died or hangs
├── EnvCrashed (RuntimeError)        an env raised; its index, seed and step, with the original traceback
│   ├── BadOutput (ValueError)       it returned something that its spaces do not allow
│   ├── EnvTimeout (TimeoutError)    it did not answer in time
│   └── WorkerDied                   its process was killed or crashed
└── BuildError (RuntimeError)        an env header could not be compiled
    ├── CompileFailed                the compiler's message, with lines of the header
    ├── CompilerMissing              no C compiler on this machine
    ├── CacheUnwritable              the folder of compiled libraries cannot be written
    └── CudaMissing                  no GPU, no driver, no NVRTC, or a torch without CUDA
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "ActionError",
    "BadOutput",
    "BuildError",
    "CacheUnwritable",
    "CheckpointError",
    "CompileFailed",
    "CompilerMissing",
    "ConfigError",
    "CudaMissing",
    "EnvCrashed",
    "EnvTimeout",
    "RankError",
    "ShoalError",
    "SnapshotError",
    "TrainingError",
    "UnknownEnv",
    "UsageError",
    "WorkerDied",
]


class ShoalError(Exception):
    """Base of all errors that a user can fix."""


class ConfigError(ShoalError, ValueError):
    """An option, param or const with a wrong name, type or value."""


class UnknownEnv(ConfigError):
    """No env of that name."""


class ActionError(ShoalError, ValueError):
    """Actions of a wrong shape, dtype or value; nothing was stepped."""


class UsageError(ShoalError, RuntimeError):
    """A call out of order: step before reset, use after close."""


class SnapshotError(ShoalError, ValueError):
    """Bytes that are not a snapshot of this env."""


class CheckpointError(ShoalError, RuntimeError):
    """A checkpoint that is damaged, foreign, or cannot be written."""


class TrainingError(ShoalError, RuntimeError):
    """Training went wrong: a value that is not finite, and where it came from."""


class RankError(TrainingError):
    """Another of the processes that train a run failed, died or hangs."""


class EnvCrashed(ShoalError, RuntimeError):
    """An env raised. `__cause__` is the original exception, if it could be sent from the worker."""

    env: int | None = None
    seed: int | None = None
    step: int | None = None


class BadOutput(EnvCrashed, ValueError):
    """An env returned something that its spaces do not allow."""


class EnvTimeout(EnvCrashed, TimeoutError):
    """An env did not answer in time."""


class WorkerDied(EnvCrashed):
    """A worker process was killed or crashed."""

    pid: int | None = None
    signal: int | None = None


class BuildError(ShoalError, RuntimeError):
    """An env header could not be compiled."""


class CompileFailed(BuildError):
    """The compiler rejected the header."""


class CompilerMissing(BuildError):
    """No C compiler on this machine."""


class CacheUnwritable(BuildError):
    """The folder of compiled libraries cannot be written."""


class CudaMissing(BuildError):
    """Something that the GPU backend needs is missing: a GPU, a driver, NVRTC, or a CUDA build of torch."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`" Did you mean 'cartpole'?"`, or an empty string if no known word is similar."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean '{near[0]}'?" if near else ""
