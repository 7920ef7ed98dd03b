"""`shoal env add`: makes the Python environment of a framework whose pins conflict with Shoal's."""

from __future__ import annotations

from typing import Annotated, Any

import tyro

from shoal.cli.command import Command

STEPS = 10  # of the env that is made to see that the environment works


def add(
    framework: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FRAMEWORK")],
    /,
    *,
    python: Annotated[str | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="(default: one that fits)")] = None,
) -> int:
    """Make the Python environment of a framework whose pins conflict with Shoal's.

    It is a virtual environment in $SHOAL_DATA_DIR, or in ~/.local/share/shoal: nothing is installed into the
    environment that you run this in. 'shoal train griddly:NAME' then uses it by itself. If this command is
    interrupted, run it again.

    Try:
        shoal env add griddly
        shoal env add nmmo --python /usr/bin/python3.10

    Args:
        framework: The framework: 'shoal envs --frameworks' lists all.
        python: The Python interpreter to make it with. An environment that is there is made anew.
    """
    from shoal import environments
    from shoal.errors import ConfigError, did_you_mean
    from shoal.integrations.framework import FRAMEWORKS
    from shoal.integrations.framework import framework as find
    from shoal.integrations.separate import Separate

    separate = [name for name in FRAMEWORKS.names() if find(name).is_separate]
    if framework not in separate:
        other = find(framework).advice if framework in FRAMEWORKS.names() else ""
        near = f" It is installed beside Shoal: {other}" if other else did_you_mean(framework, separate)
        raise ConfigError(f"'{framework}' has no environment of its own.{near} Those that have: {', '.join(separate)}.")
    chosen: Any = find(framework)
    assert isinstance(chosen, Separate)
    if missing := chosen.missing_program():
        raise ConfigError(f"{framework}: {missing}")
    environments.add(chosen.recipe, lambda path: _verify(framework, chosen.example, path), _say, python)
    print(f"Try: shoal train {framework}:{chosen.example}")
    return 0


def _verify(framework: str, example: str, python: str) -> str:
    """Makes an env in an environment, steps it, and says what happened."""
    from shoal.entry import make

    vec = make(f"{framework}:{example}", 1, num_workers=1, python=python)
    try:
        vec.reset(seed=0)
        vec.action_space.seed(0)
        for _ in range(STEPS):
            vec.step(vec.action_space.sample())
        return f"{framework}:{example} made {STEPS} steps"
    finally:
        vec.close()


def _say(line: str) -> None:
    print(line, flush=True)


COMMAND = Command(add, examples={"shoal env add griddly": "a Python environment for a framework with old pins"})
