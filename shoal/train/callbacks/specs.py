"""Finds callbacks by name, makes them with their options, and checks them before any work starts.

    stop_at(score=475)             a callback of Shoal's or of another package (entry points: shoal.callbacks)
    mine:Report                    a class of yours, with its defaults
    ./mine.py:Report(every=1M)     the same, from a file, with options

Options are literals: numbers (also 500k, 1M), text in quotes, True, False, None, lists, tuples and dicts. Nothing else
is evaluated.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from shoal import config, names
from shoal.errors import ConfigError, did_you_mean
from shoal.plugins import Plugins
from shoal.train.callbacks.base import EVENTS, Callback

CALLBACKS = Plugins("callback", package="shoal.train.callbacks", marker="CALLBACK")
EXAMPLE = "Write it as stop_at(score=475) or mine:Class(key=value)."
COUNT = re.compile(r"(?<![\w.])(\d[\d_]*(?:\.\d+)?[kKmMgG])(?!\w)")  # 500k, 1.5M
QUOTED = re.compile(r"""("[^"]*"|'[^']*')""")


@dataclass(frozen=True)
class Spec:
    """The parts of `name(1, key=2)`."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: str  # the text of the options with its brackets, or empty


def parse(text: str) -> Spec:
    """Reads the text of one `--callback`."""
    if not isinstance(text, str):
        raise ConfigError(f"callback {text!r} is not text. {EXAMPLE}")
    name, bracket, rest = text.strip().partition("(")
    name = name.strip()
    if not name or (bracket and not rest.endswith(")")):
        problem = "it has no name" if not name else "its last bracket is missing"
        raise ConfigError(f"callback '{text}' cannot be read: {problem}. {EXAMPLE}")
    options = bracket + rest
    try:
        call: Any = ast.parse(f"f{_with_counts(options) or '()'}", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = getattr(error, "msg", None) or str(error)
        raise ConfigError(f"callback '{text}' cannot be read: {reason}. {EXAMPLE}") from None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ConfigError(f"callback '{text}' cannot be read: more than one pair of brackets. {EXAMPLE}")
    args = tuple(_literal(node, text) for node in call.args)
    kwargs = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ConfigError(f"callback '{text}': ** is not an option. {EXAMPLE}")
        kwargs[keyword.arg] = _literal(keyword.value, text)
    return Spec(name, args, kwargs, options)


def _with_counts(options: str) -> str:
    """The text of the options with 500k and 1M as ints, outside of quotes."""
    parts = QUOTED.split(options)
    parts[::2] = [COUNT.sub(lambda found: str(config.parse_count(found[1])), part) for part in parts[::2]]
    return "".join(parts)


def _literal(node: ast.expr, text: str) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        shown = ast.unparse(node)
        raise ConfigError(
            f"callback '{text}': {shown} is not a literal. Options are numbers, 'text' in quotes, True, False, None, "
            "lists and dicts."
        ) from None


def find(text: str) -> Any:
    """The callback that a text describes."""
    spec = parse(text)
    maker = _maker(spec.name)
    try:
        inspect.signature(maker).bind(*spec.args, **spec.kwargs)
    except ValueError:  # a class of C does not tell
        pass
    except TypeError as error:
        known = list(inspect.signature(maker).parameters)
        wrong = next((key for key in spec.kwargs if key not in known), "")
        problem = f"no option '{wrong}'.{did_you_mean(wrong, known)}" if wrong else f"{error}."
        raise ConfigError(f"callback '{text}': {problem} It is {_signature(spec.name, maker)}.") from None
    return maker(*spec.args, **spec.kwargs)


def _maker(name: str) -> Any:
    if ":" not in name:
        known = CALLBACKS.names()
        if name not in known:
            raise ConfigError(
                f"no callback '{name}'.{did_you_mean(name, known)} Known: {', '.join(known)}. "
                "A class of yours is named by its module or file: mine:Class, ./mine.py:Class."
            )
        return CALLBACKS.find(name)
    stock, _, rest = name.partition(":")
    if stock in CALLBACKS.names() and not names.is_name(name):
        raise ConfigError(f"--callback '{name}': options stand in brackets. Write it as \"{stock}({rest})\".")
    maker = names.find(name, "--callback")
    if not callable(maker):
        raise ConfigError(f"--callback '{name}' is {type(maker).__name__}, not a class. Name a class with on_ methods.")
    return maker


def absolute(text: str) -> str:
    """The text that finds the same callback from any folder: runs store that one."""
    spec = parse(text)
    return f"{names.absolute(spec.name, '--callback')}{spec.options}" if ":" in spec.name else text.strip()


def make_all(callbacks: Iterable[Any]) -> list[Any]:
    """Callbacks from texts and objects, checked."""
    if isinstance(callbacks, (str, bytes)) or not isinstance(callbacks, Iterable):
        raise ConfigError(f"callbacks={callbacks!r} is not a list. Write callbacks=[{callbacks!r}].")
    made = [find(part) if isinstance(part, str) else part for part in callbacks]
    for number, callback in enumerate(made):
        _check(callback)
        if any(callback is other for other in made[:number]):
            raise ConfigError(f"callbacks has the same {name_of(callback)} twice. Make a second one.")
    return made


def name_of(callback: Any) -> str:
    """The name of a callback in messages and in checkpoints: that of its class."""
    return type(callback).__name__


def overrides(callback: Any, event: str) -> bool:
    """Whether a callback has a method of its own for an event."""
    own = getattr(type(callback), event, None) or getattr(callback, "__dict__", {}).get(event)
    return own is not None and own is not getattr(Callback, event)


def _check(callback: Any) -> None:
    if isinstance(callback, type):
        raise ConfigError(f"callbacks has the class {callback.__name__}. Pass an object: {callback.__name__}().")
    name = name_of(callback)
    if inspect.isroutine(callback):
        raise ConfigError(
            f"callbacks has the function {getattr(callback, '__name__', name)}. Write a class with a method "
            "on_iteration(self, context)."
        )
    for word in (word for word in dir(callback) if word.startswith("on_") and word not in EVENTS):
        if callable(getattr(callback, word, None)) and (near := did_you_mean(word, EVENTS)):
            raise ConfigError(f"callback {name} has a method '{word}', which is never called.{near}")
    if not any(overrides(callback, event) for event in EVENTS):
        raise ConfigError(f"callback {name} has none of the methods {', '.join(EVENTS)}. Define at least one.")
    for event in (event for event in EVENTS if overrides(callback, event)):
        method = getattr(callback, event)
        if not callable(method):
            raise ConfigError(f"callback {name}: {event} is {type(method).__name__}, not a method.")
        try:
            inspect.signature(method).bind(None)
        except ValueError:
            pass
        except TypeError:
            raise ConfigError(
                f"callback {name}: {event}{inspect.signature(method)} cannot be called with one argument. "
                f"Write def {event}(self, context)."
            ) from None
    if hasattr(callback, "state_dict") != hasattr(callback, "load_state_dict"):
        raise ConfigError(f"callback {name} has only one of state_dict and load_state_dict. Define both or none.")


def describe_stock() -> str:
    """The callbacks that can be named, with their options: `stop_at(score, window=100)`."""
    shown = []
    for name in CALLBACKS.names():
        try:
            shown.append(_signature(name, CALLBACKS.find(name)))
        except ConfigError:  # of another package, and cannot be loaded: naming it says why
            shown.append(name)
    return ", ".join(shown)


def _signature(name: str, maker: Any) -> str:
    parameters = inspect.signature(maker).parameters.values()
    shown = (p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters)
    return f"{name}({', '.join(shown)})"
