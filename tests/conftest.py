"""What the tests share: the stock envs, and small headers of the tests' own."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal import registry

ENVS = registry.stock_names()
BROKEN = Path(__file__).parent / "broken"


@pytest.fixture(params=ENVS)
def env(request) -> str:
    """Each stock env in turn: a new env is tested at once."""
    return request.param
