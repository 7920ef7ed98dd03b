"""The `serial` backend: one loop on the calling thread. The reference that the others are tested against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.native.lib import Module
from shoal.vector.backends import Backend
from shoal.vector.base import VecEnv
from shoal.vector.native import EnvRange, NativeVec


class SerialVec(NativeVec):
    """Steps the envs in one loop. `send` does the step and `recv` returns the result."""

    backend = "serial"

    def __init__(self, module: Module, num_envs: int, **options: Any) -> None:
        super().__init__(module, num_envs, **options)
        self._results: dict[int, int] = {}

    def _run(self, function: Any) -> int:
        return int(function(self._address, 0, self.num_envs))

    def _submit(self, index: int, envs: EnvRange, function: Any) -> None:
        self._results[index] = int(function(self._address, envs.lo, envs.hi))

    def _wait(self, index: int) -> int:
        return self._results[index]


def _make_python(create: Callable[[], Any], num_envs: int, **options: Any) -> VecEnv:
    from shoal.vector.python import PythonSerial
    from shoal.vector.slots import slot_for

    return PythonSerial([slot_for(create()) for _ in range(num_envs)], **options)


BACKEND = Backend("one loop on the calling thread", native=SerialVec, python=_make_python, options={"num_groups": 1})
