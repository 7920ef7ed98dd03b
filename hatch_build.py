"""Build hook: compiles every stock env into the wheel, with the code that also compiles a user's header.

For an editable install it compiles nothing: `native/build.py` compiles each header on first use, into a cache, so that
a library is never older than its header.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
import tempfile
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeEnvs(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled libraries to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        build = load_build(Path(self.root))
        self.folder = tempfile.mkdtemp(prefix="shoal-build-")
        headers = sorted((Path(self.root) / "shoal" / "envs").glob("*.h"))
        jobs = [(build.CORE_SOURCE, "base")]
        jobs += [(source, name) for source in (build.QLEARN_SOURCE, build.PPO_SOURCE) for name in source.variants()]
        jobs += [(build.Source.env(header), variant) for header in headers for variant in build.variants()]
        with ThreadPoolExecutor() as pool:
            libraries = list(pool.map(lambda job: build.build(*job, Path(self.folder)), jobs))
            base = {source.header: library for (source, variant), library in zip(jobs, libraries) if variant == "base"}
            presets = [source for header in headers for source in build.preset_sources(header, base[header.resolve()])]
            jobs = [(source, variant) for source in presets for variant in build.variants()]
            libraries += pool.map(lambda job: build.build(*job, Path(self.folder)), jobs)
        for library in libraries:
            build_data["force_include"][str(library)] = f"shoal/native/lib/{library.name}"
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(getattr(self, "folder", ""), ignore_errors=True)


def load_build(root: Path) -> Any:
    """Imports `shoal.native.build` without `shoal/__init__.py`, whose dependencies are not installed at build time."""
    package = types.ModuleType("shoal")
    package.__path__ = [str(root / "shoal")]
    sys.modules["shoal"] = package
    from shoal.native import build

    return build
