"""Compiles the stock envs as the tests have them: `python -m tests.compile_envs`, while the tests' tools are installed.

This needs nothing but what Shoal itself needs.
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shoal import registry
from shoal.errors import CompilerMissing
from shoal.native import build, lib

# One env of each kind: columns, boxes, images and agents, masks and seats, presets and consts. They stand for all envs
# where a test is of the library more than of the env. The other envs are tested in the same way by the slow tests.
KINDS = ("breakout", "cartpole", "connect4", "forage", "pendulum", "vacuum")
VARIANTS = ("midrange_continuous", "midrange_full")  # the code of midrange with other actions

# Envs compile in a third of the time with -O1, and give the same bytes. A test of golden rollouts has users' libraries.
FLAGS = {"SHOAL_CFLAGS": "-O1"}


def compile_stock_envs() -> None:
    """Each env in the build for this machine, one of each kind also with its presets, and the learners."""
    headers = {name: registry.find(name).resolve() for name in registry.stock_names() if name not in VARIANTS}
    variant = lib.best_variant()
    with ThreadPoolExecutor() as pool:
        learners = [build.PPO_SOURCE, build.QLEARN_SOURCE]
        made = [pool.submit(_compile, source, lib.best_variant(source)) for source in learners]
        jobs = ((build.Source.env(header), variant) for header in headers.values())
        libraries = dict(zip(headers, pool.map(lambda job: _compile(*job), jobs)))
        presets = [source for name in KINDS for source in build.preset_sources(headers[name], libraries[name])]
        list(pool.map(lambda source: _compile(source, variant), presets))
        for library in made:
            library.result()


def _compile(source: build.Source, variant: str) -> Path:
    """As `build.library`, which compiles one library at a time."""
    return build.find_library(source, variant) or build.build(source, variant, build.cache_dir())


if __name__ == "__main__":
    os.environ.update({name: os.environ.get(name, value) for name, value in FLAGS.items()})
    with contextlib.suppress(CompilerMissing):  # the tests that need a compiler say so
        compile_stock_envs()
