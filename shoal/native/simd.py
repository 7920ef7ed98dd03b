"""Whether the compiler vectorized an env's step, and which line of the header prevents it if not.

An env with ENV_STATE is stepped by two loops of core/host.h, one around env_step and one around env_observe. gcc
reports which loops it vectorized (-fopt-info-vec); its dump after if-conversion shows which branches are left in them.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from shoal.native import build

LOOPS = {"env_step": "env_step(&s,", "env_observe": "env_observe(&s, &params, 0, obs +"}  # how host.h calls them


@dataclass(frozen=True)
class Simd:
    """Whether the loops were vectorized. `is_simd` is None if that is unknown or does not apply."""

    is_simd: bool | None
    text: str


def report(source: build.Source, variant: str) -> Simd:
    """Compiles the env with the flags of this machine and reads the compiler's notes."""
    assert source.header is not None
    header = source.header.read_text(errors="replace")
    if not build.is_columns(header):
        return Simd(None, "no ENV_STATE: envs are stepped one by one")
    if re.search(r"^\s*#\s*define\s+ENV_HAS_MASK\b", header, re.MULTILINE) or _agents(header) != "1":
        return Simd(None, "envs with masks or several agents are stepped one by one")
    if build.is_clang(build.find_compiler()[0]):
        return Simd(None, "only gcc reports it")
    with tempfile.TemporaryDirectory(prefix="shoal-simd-") as folder:
        dump = Path(folder) / "branches"
        notes = ["-w", "-fopt-info-vec-all", f"-fdump-tree-ifcvt-lineno={dump}"]
        command = build.compile_command(source, variant, Path(folder) / "env.so", notes)
        messages = build.run_compiler(command, source)
        branches = dump.read_text(errors="replace") if dump.is_file() else ""
    scalar = [name for name, line in _loop_lines().items() if not _is_vectorized(messages, line)]
    if not scalar:
        return Simd(True, f"{_width(messages)} envs at a time")
    places = "; ".join(_blame(source.header, header, name, messages, branches) for name in scalar)
    return Simd(
        False, f"the loop over {' and '.join(scalar)} is not vectorized, which makes it several times slower. {places}"
    )


def _agents(header: str) -> str:
    match = re.search(r"^\s*#\s*define\s+ENV_AGENTS\s+(\S+)", header, re.MULTILINE)
    return match[1] if match else "1"


def _loop_lines() -> dict[str, int]:
    """The lines of host.h at which the loops start: the last `for` before each call."""
    lines = (build.CORE / "host.h").read_text().splitlines()
    starts = {}
    for name, call in LOOPS.items():
        at = next(k for k, line in enumerate(lines) if call in line)
        starts[name] = 1 + max(k for k in range(at) if lines[k].lstrip().startswith("for ("))
    return starts


def _is_vectorized(messages: str, line: int) -> bool:
    return re.search(rf"host\.h:{line}:\d+: optimized: loop vectorized", messages) is not None


def _width(messages: str) -> int:
    return max(int(size) for size in re.findall(r"loop vectorized using (\d+) byte vectors", messages)) // 4


def _blame(path: Path, header: str, name: str, messages: str, branches: str) -> str:
    """The lines of the header that prevent a loop from being vectorized, and how to fix them."""
    first, last = _body(header, name)
    place = re.escape(path.name)
    # conditions that are still branches, without those of env_reset, which no vectorized loop contains
    lines = {int(line) for line in re.findall(rf"{place}:(\d+):\d+[^\]]*\] (?:if|switch) \(", branches)}
    reset_first, reset_last = _body(header, "env_reset")
    lines = {line for line in lines if not reset_first <= line <= reset_last}
    own = sorted(line for line in lines if first <= line <= last) or sorted(lines)
    if own:
        where = ", ".join(f"{path.name}:{line}" for line in own[:4])
        return f"{where}: a branch. Compute both values and select one: x = condition ? a : b, or condition * a"
    reasons = re.findall(rf"{place}:(\d+):\d+: missed: +not vectorized: ([^\n]+)", messages)
    reasons = [(line, reason) for line, reason in reasons if first <= int(line) <= last] or reasons
    if reasons:
        line, reason = reasons[0]
        advice = " (an array indexed by a computed value)" if "access pattern" in reason else ""
        return f"{path.name}:{line}: {reason.rstrip('.')}{advice}"
    return f"{path.name}:{first}: gcc names no line of {name}. Remove parts of it to find the cause"


def _body(header: str, name: str) -> tuple[int, int]:
    """The first and the last line of a function."""
    lines = header.splitlines()
    start = next((k for k, line in enumerate(lines) if re.search(rf"\b{name}\(", line) and "ENV_FN" in line), 0)
    end = next((k for k in range(start, len(lines)) if lines[k].startswith("}")), len(lines) - 1)
    return start + 1, end + 1
