"""Infos of single rows as one dict of arrays, in Gymnasium's format: `_key` is the mask of the rows that have `key`."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from shoal.layout import Array
from shoal.vector.slots import Info, row_of

RANKS = {"b": 0, "u": 1, "i": 1, "f": 2}  # by kind of dtype: an array holds numbers of its own rank and of lower ones


class Merger(VectorEnv[Any, Any, Any]):
    """Gymnasium's own way to merge the infos of `count` rows, without its losses.

    The first row with a key sets the dtype of its array. Where a later value would not survive in it, the array becomes
    one of floats (2.5 after 1) or of objects (None after True, a dict after a number).
    """

    def __init__(self, count: int) -> None:
        self.num_envs = count

    def merge(self, infos: Info, info: Info, row: int) -> Info:
        """Adds the info of a row to infos, and returns them."""
        return self._add_info(infos, info, row)

    def _add_info(self, vector_infos: Info, env_info: Info, env_num: int) -> Info:
        for key, value in env_info.items():
            if key in vector_infos and not _holds(vector_infos[key], value):
                self._widen(vector_infos, key, value)
        try:
            return super()._add_info(vector_infos, env_info, env_num)
        except (ArithmeticError, AttributeError, TypeError, ValueError):
            if len(env_info) > 1:
                for key, value in env_info.items():
                    self._add_info(vector_infos, {key: value}, env_num)
                return vector_infos
        ((key, value),) = env_info.items()
        vector_infos.setdefault(f"_{key}", np.zeros(self.num_envs, np.bool_))
        objects = vector_infos[key] = self._as_objects(vector_infos, key)
        objects[env_num], vector_infos[f"_{key}"][env_num] = value, True
        return vector_infos

    def _widen(self, infos: Info, key: str, value: Any) -> None:
        """Makes room for a value that the array of a key cannot hold."""
        array = infos[key]
        if isinstance(array, np.ndarray) and array.dtype.kind in RANKS and np.shape(value) == array.shape[1:]:
            dtype = np.asarray(value).dtype
            if dtype.kind in RANKS:
                infos[key] = array.astype(np.result_type(array.dtype, dtype))
                return
        infos[key] = self._as_objects(infos, key)

    def _as_objects(self, infos: Info, key: str) -> Array:
        """The values of a key as an array of objects, None where a row has none."""
        values: Any = infos.get(key, ())
        objects = np.full(self.num_envs, None, object)
        for row in np.flatnonzero(infos[f"_{key}"]).tolist():
            objects[row] = row_of(values, row) if isinstance(values, dict) else values[row]
        return objects


def _holds(array: Any, value: Any) -> bool:
    """Whether the array of a key can take a value and give it back."""
    if isinstance(array, dict) or isinstance(value, dict):
        return isinstance(array, dict) and isinstance(value, dict)
    if array.dtype == object and array.ndim == 1:
        return True
    if isinstance(value, (np.ndarray, np.generic)):
        are_floats = array.dtype.kind == value.dtype.kind == "f"
        return value.shape == array.shape[1:] and (are_floats or np.can_cast(value.dtype, array.dtype))
    if array.ndim > 1:
        return False
    if value is None:
        return bool(array.dtype.kind == "f")  # as NaN
    kind = {bool: "b", int: "i", float: "f"}.get(type(value))
    return kind is not None and RANKS[kind] <= RANKS.get(array.dtype.kind, -1)
