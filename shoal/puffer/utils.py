"""PufferLib's helpers: nested infos, and suppressing the warnings and output of other libraries."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shoal.puffer.exceptions import missing_names

__all__ = ["Suppress", "silence_warnings", "unroll_nested_dict"]


def unroll_nested_dict(nested: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Pairs of a nested dict, with paths as keys.

    >>> dict(unroll_nested_dict({"score": 1, "time": {"env": 2}}))
    {'score': 1, 'time/env': 2}
    """
    for key, value in nested.items():
        if isinstance(value, Mapping):
            for path, part in unroll_nested_dict(value):
                yield f"{key}/{path}", part
        else:
            yield key, value


def silence_warnings(function: Callable[..., Any], category: type[Warning] = DeprecationWarning) -> Callable[..., Any]:
    """The same function without warnings of a category."""

    @functools.wraps(function)
    def silent(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=category)
            return function(*args, **kwargs)

    return silent


class Suppress:
    """`with Suppress(): ...` drops everything that Python and C code write to stdout and stderr."""

    def __enter__(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            null = os.open(os.devnull, os.O_WRONLY)
            stack.callback(os.close, null)
            for stream in (1, 2):
                saved = os.dup(stream)
                stack.callback(os.close, saved)
                stack.callback(os.dup2, saved, stream)
                os.dup2(null, stream)
            self._stack = stack.pop_all()

    def __exit__(self, *error: object) -> None:
        self._stack.close()


__getattr__ = missing_names(__name__, __all__, {"Profiler": "Use 'shoal profile ENV', or torch.profiler."})
