"""`shoal env remove`: deletes the Python environment of a framework."""

from __future__ import annotations

from typing import Annotated

import tyro

from shoal.cli.command import Command


def remove(
    framework: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FRAMEWORK")],
    /,
) -> int:
    """Delete the Python environment of a framework.

    Try:
        shoal env remove griddly

    Args:
        framework: The framework: 'shoal env list' lists those that have one.
    """
    from shoal import environments

    environments.remove(framework, print)
    return 0


COMMAND = Command(remove)
