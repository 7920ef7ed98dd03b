"""Optuna, which sweeps are built on: an extra of the package."""

from __future__ import annotations

import importlib.util

from shoal.errors import ConfigError


def check_optuna() -> None:
    """Raises ConfigError with the command to install it where Optuna is missing; quiets its log otherwise."""
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError("sweeps need Optuna, which is not installed. Install it: pip install 'shoal[sweep]'")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
