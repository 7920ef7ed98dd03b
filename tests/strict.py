"""JSON as every parser reads it."""

from __future__ import annotations

import json
from typing import Any


def strict_json(text: str) -> Any:
    """Parses JSON without NaN and Infinity, which only Python's parser accepts."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)
