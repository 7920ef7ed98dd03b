"""Compiles an env header to WebAssembly with `zig cc` (the package ziglang, of `pip install 'shoal[web]'`).

The wheel holds the modules of the stock envs (hatch_build.py); others are compiled into the cache on first use. As for
libraries (native/build.py), the file name holds a hash of all that a module was compiled from. Unlike a library, a
module is the same on every machine.

Uses the standard library only: the build hook runs before Shoal's dependencies are installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from shoal.errors import CacheUnwritable, CompileFailed, CompilerMissing
from shoal.native import build
from shoal.native.build import Source

WEB = Path(__file__).parent
CORE = WEB / "core"
PREBUILT = WEB / "lib"
INSTALL = "pip install 'shoal[web]'"

# The same bits as on a CPU: no FMA contraction, no fast-math. SIMD and bulk memory: every browser since 2021 has them.
FLAGS = [
    *"-target wasm32-freestanding -mbulk-memory -msimd128 -Os -std=c11 -nostdlib -fvisibility=hidden".split(),
    *"-ffp-contract=off -fno-trapping-math -fno-math-errno -Werror=implicit-function-declaration".split(),
    *"-Wl,--no-entry -Wl,--strip-all".split(),
]
_building = threading.Lock()


def files(source: Source) -> list[Path]:
    """Every file that the compiler reads, ours and the user's."""
    return [*source.files(), CORE / "web.c", CORE / "include" / "string.h"]


def file_name(source: Source) -> str:
    """The name of an env's module."""
    sha = hashlib.sha256(repr((source.name, source.consts, FLAGS)).encode())
    for file in files(source):
        sha.update(file.name.encode() + b"\0" + file.read_bytes())
    return f"{source.name}-{sha.hexdigest()[:16]}.wasm"


def find_zig() -> list[str] | None:
    """The command of the compiler: the package ziglang, or `zig` on PATH; None if there is neither."""
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang"]
    path = shutil.which("zig")
    return None if path is None else [path]


def compile_command(source: Source, out: Path) -> list[str]:
    """The command that compiles an env to `out`."""
    zig = find_zig()
    if zig is None:
        raise CompilerMissing(
            f"{source.name} has to be compiled for the browser, and the compiler for that is not installed. Install "
            f"it: {INSTALL}"
        )
    own = ["-isystem", str(CORE / "include"), f"-I{build.NATIVE}"]
    return [*zig, "cc", *FLAGS, *own, *source.defines(), str(CORE / "web.c"), "-o", str(out)]


def compile(source: Source, folder: Path) -> Path:
    """Compiles into `folder`, atomically: an incomplete module never has its final name."""
    target = folder / file_name(source)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{source.name}-", dir=folder) as scratch:
            out = Path(scratch) / "env.wasm"
            command = compile_command(source, out)
            cache = os.environ.get("ZIG_GLOBAL_CACHE_DIR") or str(folder / "zig")
            env = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=env)
            if done.returncode:
                reason = build.explain(done.stderr, source)
                raise CompileFailed(f"{source.header} does not compile to WebAssembly:\n{reason}")
            os.replace(out, target)
    except OSError as error:
        raise CacheUnwritable(
            f"cannot write compiled envs to {folder}: {error.strerror}. "
            "Set SHOAL_CACHE_DIR to a folder that you may write to."
        ) from None
    return target


def find_module(source: Source) -> Path | None:
    """The compiled module of an env, from the wheel or from the cache; None if there is none."""
    name = file_name(source)
    return next((folder / name for folder in (PREBUILT, build.cache_dir()) if (folder / name).is_file()), None)


def module(source: Source) -> Path:
    """The module of an env: from the wheel, from the cache, or compiled now."""
    with _building:  # if two threads need it, one compiles
        return find_module(source) or compile(source, build.cache_dir())
