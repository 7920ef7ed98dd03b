"""Checks of the options of callbacks."""

from __future__ import annotations

import math
from typing import Any

from shoal import config
from shoal.errors import ConfigError


def check_number(callback: str, name: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """The value as a float, or a ConfigError."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not low <= value <= high:
        between = f" of at least {low:g}" if high == math.inf else f" in {low:g} .. {high:g}"
        between = "" if low == -math.inf else between
        raise ConfigError(f"{callback}: {name}={value!r} must be a number{between}.")
    return float(value)


def check_count(callback: str, name: str, value: Any) -> int:
    """A number of steps as an int of at least 1: 500000, 5e5 or '500k'."""
    if isinstance(value, str):
        value = config.parse_count(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value < 2**63 or value != int(value):
        raise ConfigError(f"{callback}: {name}={value!r} must be a number of steps, at least 1: 500000 or 500k.")
    return int(value)
