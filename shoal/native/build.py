"""Compiles an env header into a shared library.

The wheel, the editable install and users' headers take the same path: `hatch_build.py` compiles every stock env into
`native/lib/`; the others are compiled into the cache on first use. The file name of a library holds a hash of all
that it was compiled from, so that a changed header never uses an old library.

Uses the standard library only: the build hook runs before Shoal's dependencies are installed.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import CacheUnwritable, CompileFailed, CompilerMissing
from shoal.native.macros import check_macros

NATIVE = Path(__file__).parent
CORE = NATIVE / "core"
PREBUILT = NATIVE / "lib"

# No FMA contraction and no fast-math: the same bits everywhere. The other -f flags let gcc vectorize across envs and
# change no result: no code reads floating-point exception flags or errno.
FLAGS = "-O3 -fPIC -fvisibility=hidden -ffp-contract=off -fno-trapping-math -fno-math-errno".split()
GCC_FLAGS = ["-fno-thread-jumps"]  # clang does not know the flag
# With ENV_STATE: gcc's PRE turns `still = quiet ? still + 1 : 0` into a branch if `still` is compared later, because it
# knows the result for the constant. The loop over envs is then not vectorized.
GCC_COLUMN_FLAGS = ["-fno-tree-pre"]
# `a & b` is intended, as it has no branch; a loop that is not vectorized is slower, not wrong
CLANG_WARNINGS = ["-Wno-bitwise-instead-of-logical", "-Wno-pass-failed", "-Wno-unknown-warning-option"]
LANGUAGES = {
    "c11": ["-x", "c", "-std=c11", "-Werror=implicit-function-declaration"],
    "c++17": ["-x", "c++", "-std=c++17"],
}
VARIANTS = {"base": [], "avx2": ["-mavx2"]}
# The learners' sums may use FMA: their results differ between variants by rounding, so there is no reason to forgo it.
LEARNER_FLAGS = ["-ffp-contract=fast", "-mprefer-vector-width=512"]
LEARNER_VARIANTS = {
    "base": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": "-mavx512f -mavx512dq -mavx512vl -mfma".split(),
}
QUICK_FLAGS = ["-O0"]  # an env compiles in a tenth of the time
WARNINGS = "-Wall -Wextra -Wpedantic".split()
_building = threading.Lock()


def variants() -> list[str]:
    """The builds of an env for this kind of machine; the first runs on all of them."""
    return list(VARIANTS) if _is_x86() else ["base"]


def _is_x86() -> bool:
    return platform.machine() in ("x86_64", "AMD64")


@dataclass(frozen=True)
class Source:
    """What a library is compiled from: an env header with its consts, or (no header) files of core/."""

    name: str
    header: Path | None = None
    consts: tuple[tuple[str, int], ...] = ()

    @classmethod
    def env(cls, header: Path, consts: Mapping[str, int] | None = None) -> Source:
        """The source of an env."""
        return cls(header.stem, header.resolve(), tuple(sorted((consts or {}).items())))

    def files(self) -> list[Path]:
        """Every file that the compiler reads, ours and the user's."""
        shared = [*sorted(CORE.glob("*.h")), *map(Path, self.c_files())]
        return shared if self.header is None else [*shared, *_with_includes(self.header)]

    def text(self) -> str:
        """The header and the files that it includes from its folder."""
        files = _with_includes(self.header) if self.header else []
        return "\n".join(file.read_text(errors="replace") for file in files)

    def digest(self, variant: str, extra: Sequence[str] = ()) -> str:
        """A hash of the text, the consts, the flags and the kind of machine."""
        import hashlib  # takes 25 ms

        sha = hashlib.sha256(" ".join(extra).encode())
        sha.update(
            repr(
                (self.name, self.consts, variant, FLAGS, GCC_FLAGS, GCC_COLUMN_FLAGS, LANGUAGES, self.flags(variant))
            ).encode()
        )
        sha.update(f"{platform.system()} {platform.machine()}".encode())
        for file in self.files():
            sha.update(file.name.encode() + b"\0" + file.read_bytes())
        return sha.hexdigest()[:16]

    def file_name(self, variant: str, extra: Sequence[str] = ()) -> str:
        """The name of its library, compiled with these flags besides."""
        return f"{self.name}-{variant}-{self.digest(variant, extra)}.so"

    def defines(self) -> list[str]:
        """The header and the consts as compiler flags."""
        header = [f'-DENV_HEADER="{self.header}"'] if self.header else []
        return header + [f"-DSHOAL_SET_{name}=~,{value}" for name, value in self.consts]

    def variants(self) -> list[str]:
        """The builds for this kind of machine; the first runs on all of them."""
        return list(LEARNER_VARIANTS) if self.name == "ppo" and _is_x86() else variants()

    def flags(self, variant: str) -> list[str]:
        """The flags of a build."""
        if self.name != "ppo":
            return VARIANTS[variant]
        return [*(LEARNER_FLAGS if _is_x86() else LEARNER_FLAGS[:1]), *LEARNER_VARIANTS[variant]]

    def c_files(self) -> list[str]:
        """The C files to compile."""
        if self.header:
            return [str(CORE / "module.c")]
        return [str(CORE / name) for name in C_FILES[self.name]]


C_FILES = {
    "core": ("learn.c", "policy.c", "pool.c", "raster.c", "simplex.c", "wait.c", "ways.c"),
    "qlearn": ("qlearn.c",),
    "ppo": ("ppo.c", "noise.c"),
}
CORE_SOURCE = Source("core")
# separate libraries, because they have variants, and the core reports which of them this CPU can run
QLEARN_SOURCE = Source("qlearn")
PPO_SOURCE = Source("ppo")


def _with_includes(header: Path) -> list[Path]:
    """The header and the files that it includes from its folder, each once, in the order of inclusion."""
    files: list[Path] = []
    waiting = [header]
    while waiting:
        file = waiting.pop(0)
        if file in files or not file.is_file():
            continue
        files.append(file)
        names = re.findall(r'^\s*#\s*include\s*"([^"]+)"', file.read_text(errors="replace"), re.MULTILINE)
        waiting += [(file.parent / name).resolve() for name in names]
    return files


def parse_settings(text: str) -> dict[str, str]:
    """`side=3 start=random` as a dict of strings."""
    return dict(word.split("=", 1) for word in text.split())


def preset_sources(header: Path, library: Path) -> list[Source]:
    """The sources of an env's presets whose consts differ from the defaults. `library`: that of the env itself."""
    loaded = ctypes.CDLL(str(library))
    texts = []
    for function in (loaded.shoal_const_defaults, loaded.shoal_presets):
        function.restype = ctypes.c_char_p
        texts.append(function().decode())
    defaults = parse_settings(texts[0])
    sources = []
    for line in texts[1].splitlines():
        settings = parse_settings(line.split("\t")[1])
        consts = {name: int(word) for name, word in settings.items() if name in defaults and word != defaults[name]}
        sources.append(Source.env(header, consts))
    return [source for source in dict.fromkeys(sources) if source.consts]


def cache_dir() -> Path:
    """The folder of compiled libraries: $SHOAL_CACHE_DIR, or shoal/ in the user's cache folder."""
    if chosen := os.environ.get("SHOAL_CACHE_DIR"):
        return Path(chosen).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "shoal"


def user_flags(source: Source) -> list[str]:
    """$SHOAL_CFLAGS: flags for envs that are compiled on this machine, such as "-O1 -g" for a debugger."""
    return os.environ.get("SHOAL_CFLAGS", "").split() if source.header else []


def find_compiler(names: Sequence[str] = ("cc", "gcc", "clang")) -> list[str]:
    """The command of the C compiler: $CC, or the first of these names that exists."""
    if chosen := os.environ.get("CC"):
        if shutil.which(chosen.split()[0]):
            return chosen.split()
        raise CompilerMissing(f"CC={chosen} is not a command on this machine. Unset CC or set it to a C compiler.")
    for name in names:
        if path := shutil.which(name):
            return [path]
    raise CompilerMissing(
        "no C compiler found (looked for cc, gcc and clang). Stock envs with default consts need none; your own "
        "headers and changed consts do. Install one, for example: apt-get install gcc, or set CC."
    )


@functools.cache
def is_clang(command: str) -> bool:
    """Whether a compiler is clang."""
    done = subprocess.run([command, "--version"], capture_output=True, text=True, errors="replace")
    return "clang" in done.stdout


def is_columns(text: str) -> bool:
    """Whether a header and what it includes define ENV_STATE: the loop over envs can be vectorized."""
    return re.search(r"^\s*#\s*define\s+ENV_STATE\b", text, re.MULTILINE) is not None


def flags(source: Source | None = None) -> list[str]:
    """The flags of this machine's compiler, for all envs or for one source."""
    if is_clang(find_compiler()[0]):
        return FLAGS
    text = source.text() if source is not None else ""
    return [*FLAGS, *GCC_FLAGS, *(GCC_COLUMN_FLAGS if is_columns(text) else [])]


def warnings() -> list[str]:
    """The warnings that `shoal check` turns on."""
    return [*WARNINGS, *CLANG_WARNINGS] if is_clang(find_compiler()[0]) else WARNINGS


def compile_command(source: Source, variant: str, out: Path, extra: Iterable[str] = ()) -> list[str]:
    """The command that compiles to `out`. `extra` flags come last: they override the others."""
    language = ["-std=gnu11"] if source.header is None else LANGUAGES["c11"]
    tail = ["-lpthread", "-lm"] if source.header is None else []
    return [
        *find_compiler(),
        *flags(source),
        *source.flags(variant),
        "-shared",
        f"-I{NATIVE}",
        *language,
        *source.defines(),
        *extra,
        *source.c_files(),
        "-o",
        str(out),
        *tail,
    ]


def run_compiler(command: list[str], source: Source) -> str:
    """Runs the command and returns the warnings. CompileFailed has the compiler's message, with lines of the header."""
    if source.header:
        check_macros(source.header, source.text())
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode == 0:
        return done.stderr
    raise CompileFailed(f"{source.header or source.name} does not compile:\n{explain(done.stderr, source)}")


def explain(stderr: str, source: Source, limit: int = 40) -> str:
    """The compiler's message, shortened to what concerns the user's header."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    undefined = r"implicit declaration of function .(env_\w+)"
    if "#error" not in stderr and (missing := sorted(set(re.findall(undefined, stderr)))):
        return f"  it does not define {' and '.join(missing)}. shoal/native/core/env.h lists what an env defines."
    if source.header:
        short = source.header.name
        own = [line.replace(str(source.header), short) for line in lines if _is_about(line, source)]
        lines = own or lines
    return "\n".join("  " + line for line in lines[:limit])


def _is_about(line: str, source: Source) -> bool:
    """Whether a line of the compiler's message concerns or quotes the user's files, not ours."""
    if re.match(r"\s+(\d+\s*)?\|", line):
        return True
    return str(source.header) in line or (bool(re.search(r": (fatal )?error:", line)) and str(CORE) not in line)


def build(source: Source, variant: str, folder: Path, extra: Sequence[str] | None = None) -> Path:
    """Compiles into `folder`, atomically: an incomplete library never has its final name.

    `extra` flags come last; by default those of the user.
    """
    find_compiler()  # raises before anything is written
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(suffix=".so", prefix=f".{source.name}-", dir=folder)
        os.close(handle)
    except OSError as error:
        raise CacheUnwritable(
            f"cannot write compiled envs to {folder}: {error.strerror}. "
            "Set SHOAL_CACHE_DIR to a folder that you may write to."
        ) from None
    try:
        extra = user_flags(source) if extra is None else extra
        for _attempt in range(5):
            target = folder / source.file_name(variant, extra)
            run_compiler(compile_command(source, variant, Path(name), extra), source)
            if folder / source.file_name(variant, extra) == target:  # otherwise the header was changed meanwhile
                os.chmod(name, 0o755)
                os.replace(name, target)
                return target
    finally:
        Path(name).unlink(missing_ok=True)
    raise CompileFailed(f"{source.header} keeps changing while it is compiled. Try again.")


def find_library(source: Source, variant: str) -> Path | None:
    """The compiled library of a source, from the wheel or from the cache; None if there is none."""
    folders = {PREBUILT: source.file_name(variant), cache_dir(): source.file_name(variant, user_flags(source))}
    return next((folder / name for folder, name in folders.items() if (folder / name).is_file()), None)


def quick_library(source: Source, variant: str) -> Path:
    """A library of a source to look at, not to run: one that is there, or one compiled now without optimization."""
    quick = cache_dir() / source.file_name("base", QUICK_FLAGS)
    if found := find_library(source, variant) or (quick if quick.is_file() else None):
        return found
    return build(source, "base", cache_dir(), QUICK_FLAGS)


def library(source: Source, variant: str) -> Path:
    """The library of a source: from the wheel, from the cache, or compiled now."""
    with _building:  # if two threads need it, one compiles
        return find_library(source, variant) or build(source, variant, cache_dir())
