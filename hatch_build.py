"""Build backend and hook: compiles every stock env into the wheel, with the code that also compiles a user's header.

For an editable install it compiles nothing: `native/build.py` compiles each header on first use, into a cache, so that
a library is never older than its header. With SHOAL_CACHE_DIR a wheel takes from that cache what is there.

The wheel also holds the envs as WebAssembly, for `shoal export -o page.html`, `shoal play` and `shoal watch`: a wheel
needs ziglang to be built, an editable install does not. SHOAL_WEB=0 builds a wheel without them. With pip's
--no-build-isolation they are left out where zig is not installed, unless SHOAL_WEB=1 makes that an error.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import sysconfig
import tempfile
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling import build as hatchling_build
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ZIG = "ziglang>=0.13"  # as the extra web has it


def __getattr__(name: str) -> Any:
    """The backend is hatchling's, but for one function."""
    return getattr(hatchling_build, name)


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """What pip installs to build a wheel."""
    needed = hatchling_build.get_requires_for_build_wheel(config_settings)
    return needed if os.environ.get("SHOAL_WEB") == "0" else [*needed, ZIG]


class NativeEnvs(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled libraries to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        build = load_build(Path(self.root))
        os.environ.pop("SHOAL_CFLAGS", None)  # they are of the user's own envs
        cache = os.environ.get("SHOAL_CACHE_DIR")  # libraries are named by what they are compiled from
        folder = Path(cache) if cache else Path(self.make_folder())

        def compiled(job: tuple[Any, str]) -> Path:
            source, variant = job
            library = folder / source.file_name(variant)
            return library if library.is_file() else Path(build.build(source, variant, folder))

        headers = sorted((Path(self.root) / "shoal" / "envs").glob("*.h"))
        jobs = [(build.CORE_SOURCE, "base")]
        jobs += [(source, name) for source in (build.QLEARN_SOURCE, build.PPO_SOURCE) for name in source.variants()]
        jobs += [(build.Source.env(header), variant) for header in headers for variant in build.variants()]
        with ThreadPoolExecutor() as pool:
            libraries = list(pool.map(compiled, jobs))
            base = {source.header: library for (source, variant), library in zip(jobs, libraries) if variant == "base"}
            presets = [source for header in headers for source in build.preset_sources(header, base[header.resolve()])]
            jobs = [(source, variant) for source in presets for variant in build.variants()]
            libraries += pool.map(compiled, jobs)
            modules = self.web_modules([build.Source.env(header) for header in headers] + presets, folder, pool)
        for library in libraries:
            build_data["force_include"][str(library)] = f"shoal/native/lib/{library.name}"
        for module in modules:
            build_data["force_include"][str(module)] = f"shoal/web/lib/{module.name}"
        build_data["tag"] = f"py3-none-{self.platform(libraries)}"
        build_data["pure_python"] = False

    def platform(self, libraries: list[Path]) -> str:
        """The platform of the wheel's tag: on Linux the oldest glibc that its libraries run with, read from them."""
        from shoal.native import glibc

        measured = glibc.tag(libraries) if sys.platform == "linux" and platform.libc_ver()[0] == "glibc" else ""
        return measured or sysconfig.get_platform().replace("-", "_").replace(".", "_")

    def web_modules(self, sources: list[Any], folder: Path, pool: ThreadPoolExecutor) -> list[Path]:
        """The envs as WebAssembly; none where zig is not installed, or with SHOAL_WEB=0."""
        from shoal.web import build

        wanted = os.environ.get("SHOAL_WEB")
        if wanted == "0" or (build.find_zig() is None and wanted != "1"):
            return []

        def compiled(source: Any) -> Path:
            module = folder / build.file_name(source)
            return module if module.is_file() else Path(build.compile(source, folder))

        return list(pool.map(compiled, sources))

    def make_folder(self) -> str:
        """A folder that `finalize` removes."""
        self.folder = tempfile.mkdtemp(prefix="shoal-build-")
        return self.folder

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(getattr(self, "folder", ""), ignore_errors=True)


def load_build(root: Path) -> Any:
    """Imports `shoal.native.build` without `shoal/__init__.py`, whose dependencies are not installed at build time."""
    package = types.ModuleType("shoal")
    package.__path__ = [str(root / "shoal")]
    sys.modules["shoal"] = package
    from shoal.native import build

    return build
