"""Optuna, which sweeps are built on: an extra of the package."""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from collections.abc import Iterator

from shoal.errors import ConfigError


def check_optuna() -> None:
    """Raises ConfigError with the command to install it where Optuna is missing."""
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError("sweeps need Optuna, which is not installed. Install it: pip install 'shoal[sweep]'")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """A context in which Optuna neither logs nor warns of what it calls experimental."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(before)
