"""Nested structures of arrays: their leaves, and whether two are the same."""

from __future__ import annotations

from typing import Any

import numpy as np


def leaves(tree: Any) -> list[Any]:
    """The arrays of a nested structure, in order."""
    if isinstance(tree, dict):
        return [leaf for key in tree for leaf in leaves(tree[key])]
    if isinstance(tree, tuple):
        return [leaf for part in tree for leaf in leaves(part)]
    return [tree]


def assert_same(got: Any, expected: Any, where: str = "value") -> None:
    """Equal structure, keys, dtypes, shapes and bytes."""
    if isinstance(expected, dict):
        assert isinstance(got, dict), where
        assert set(got) == set(expected), f"{where}: {sorted(set(got) ^ set(expected))}"
        for key in expected:
            assert_same(got[key], expected[key], f"{where}[{key!r}]")
    elif isinstance(expected, tuple):
        assert isinstance(got, tuple), where
        assert len(got) == len(expected), where
        for k, part in enumerate(expected):
            assert_same(got[k], part, f"{where}[{k}]")
    elif isinstance(expected, np.ndarray) and expected.dtype == object:
        assert got.dtype == object, where
        for k, part in enumerate(expected):
            if isinstance(part, (np.ndarray, dict, tuple)):
                assert_same(got[k], part, f"{where}[{k}]")
            else:
                assert type(got[k]) is type(part), f"{where}[{k}]"
                assert got[k] == part, f"{where}[{k}]"
    else:
        assert np.asarray(got).dtype == np.asarray(expected).dtype, where
        if not np.array_equal(got, expected):
            np.testing.assert_array_equal(got, expected, where)
