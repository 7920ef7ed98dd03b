"""Whether the compiler vectorized an env's step, and which line of the header prevents it if not.

An env with ENV_STATE is stepped by two loops of core/host.h, one around env_step and one around env_observe. gcc
reports which loops it vectorized (-fopt-info-vec). Its dump after if-conversion shows which branches are left in them,
its dump of the vectorizer which statement it could not vectorize. `_explain` puts both into plain words.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
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
    header = source.text()
    if not build.is_columns(header):
        advice = "A state of a few scalars can be listed in ENV_STATE: then the compiler steps several envs at a time"
        return Simd(None, f"no ENV_STATE: envs are stepped one by one. {advice}")
    if re.search(r"^\s*#\s*define\s+ENV_HAS_MASK\b", header, re.MULTILINE) or _agents(header) != "1":
        return Simd(None, "envs with masks or several agents are stepped one by one")
    if build.is_clang(build.find_compiler()[0]):
        return Simd(None, "whether the step is vectorized is unknown: only gcc reports it, not clang. Try CC=gcc")
    lines = _loop_lines()
    with tempfile.TemporaryDirectory(prefix="shoal-simd-") as folder:
        messages = _compile(source, variant, Path(folder))
        scalar = [name for name in lines if not _is_vectorized(messages, lines[name])]
        if not scalar:
            return Simd(True, f"{_width(messages)} envs at a time")
        branches, statements = Path(folder) / "branches", Path(folder) / "statements"  # large: only if they are needed
        dumps = [f"-fdump-tree-ifcvt-lineno={branches}", f"-fdump-tree-vect-details={statements}"]
        _compile(source, variant, Path(folder), *dumps)
        notes = _Notes(source, *(_read(dump) for dump in (branches, statements)))
    places = "; ".join(notes.blame(name, lines[name]) for name in scalar)
    return Simd(
        False, f"the loop over {' and '.join(scalar)} is not vectorized, which makes it several times slower. {places}"
    )


def _compile(source: build.Source, variant: str, folder: Path, *flags: str) -> str:
    """Compiles the env; returns which loops are vectorized, as gcc says it."""
    command = build.compile_command(source, variant, folder / "env.so", ["-w", "-fopt-info-vec", *flags])
    return build.run_compiler(command, source)


def _read(dump: Path) -> str:
    return dump.read_text(errors="replace") if dump.is_file() else ""


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


# what gcc says of a statement that it could not vectorize
UNSUPPORTED = (
    r"relevant (?:phi|stmt) not supported|no vectype|unsupported (?:data-type|use)|complicated access pattern"
    r"|not suitable for (?:gather|scatter)|clobbers memory"
)
DEPENDENT = r"possible dependence|bad data dependence|data ref analysis failed|more than one data ref"


class _Notes:
    """What gcc's dumps say about the lines of a user's header and of the files that it includes."""

    def __init__(self, source: build.Source, branches: str, statements: str) -> None:
        assert source.header is not None
        self.header = source.header
        self.files = {file.name: _lines(file) for file in source.files() if file.parent != build.CORE}
        self.branches, self.statements = branches, statements
        self.place = rf"({'|'.join(re.escape(name) for name in self.files)}):(\d+):\d+"

    def blame(self, function: str, loop_line: int) -> str:
        """The lines that prevent a loop from being vectorized, why, and what to write in their place."""
        first, last = _body(self.files[self.header.name], function)
        own = self._branch_lines(first, last)
        if own:
            return self._join(own, [_explain_branch(self._text(place)) for place in own])
        found = self._statements(loop_line)
        if found:
            places = list(found)[:4]
            return self._join(places, [found[place] for place in places])
        return f"{self.header.name}:{first}: gcc names no line of {function}. Remove parts of it to find the cause"

    def _branch_lines(self, first: int, last: int) -> list[tuple[str, int]]:
        """Conditions that are still branches, without those of env_reset, which no vectorized loop contains."""
        pattern = rf"{self.place}[^\]]*\] (?:if|switch) \("
        places = {(name, int(line)) for name, line in re.findall(pattern, self.branches)}
        reset = _body(self.files[self.header.name], "env_reset")
        mine = {place for place in places if place[0] == self.header.name}
        mine = {place for place in mine if not reset[0] <= place[1] <= reset[1]}
        own = sorted(place for place in mine if first <= place[1] <= last)
        return (own or sorted(mine | {place for place in places if place[0] != self.header.name}))[:4]

    def _statements(self, loop_line: int) -> dict[tuple[str, int], str]:
        """Statements that stopped the vectorizer in one loop, and why. Attempts with shorter vectors say less."""
        found: dict[tuple[str, int], str] = {}
        parts = re.split(r"^Analyzing loop at ", self.statements, flags=re.MULTILINE)
        for part in parts:
            if not re.match(rf"\S*host\.h:{loop_line}\b", part):
                continue
            pattern = rf"{self.place}: missed: +(?:not vectorized: )?((?:{UNSUPPORTED}|{DEPENDENT})[^\n]*)"
            for attempt in re.split(r"\*\*\*\*\* Re-trying analysis", part):
                for name, line, reason in () if found else re.findall(pattern, attempt):
                    found.setdefault((name, int(line)), _explain(reason))
        return found

    def _text(self, place: tuple[str, int]) -> str:
        lines = self.files[place[0]]
        return lines[place[1] - 1].split("//")[0] if 0 < place[1] <= len(lines) else ""

    def _join(self, places: Iterable[tuple[str, int]], reasons: list[str]) -> str:
        """Lines with the same reason together: `env.h:7, env.h:9: a branch. …`."""
        groups: dict[str, list[str]] = {}
        for (name, line), reason in zip(places, reasons):
            groups.setdefault(reason, []).append(f"{name}:{line}")
        return "; ".join(f"{', '.join(where)}: {reason}" for reason, where in groups.items())


def _lines(file: Path) -> list[str]:
    return file.read_text(errors="replace").splitlines()


def _explain_branch(text: str) -> str:
    """A branch that is left in the loop, by the C on its line."""
    if re.search(r"\b(for|while|do)\b", text):
        return "a loop whose length depends on the env. Give it a fixed length, and select: x = k < n ? a : x"
    if re.search(r"\bswitch\b", text):
        return "a switch. Compute each case and select: x = *a == 0 ? u : *a == 1 ? v : x"
    if re.search(r"\breturn\b", text):
        return "a return before the end. Let the function end in one place, and select: x = condition ? a : b"
    if re.search(r"\brng\b", text):
        return "a random draw in a branch. Draw always, then select: u = rng_uniform(…); x = condition ? u : x"
    return "a branch. Compute both values and select one: x = condition ? a : b, or condition * a"


def _explain(reason: str) -> str:
    """gcc's reason in plain words, and what to write in place of the statement."""
    statement = reason.partition(": ")[2].rstrip(";. ")
    if call := re.search(r"= (\w+) \(|clobbers memory: (\w+) \(", reason):
        name = (call[1] or call[2]).removeprefix("__builtin_")
        math = name.removesuffix("f")
        if math in ("sin", "cos", "tan", "atan2", "exp", "log", "pow", "floor", "sqrt", "fabs"):
            return f"a call of {name}() of libm. Use m_{'abs' if math == 'fabs' else math}, which becomes SIMD code"
        return f"a call of {name}(), which is not inlined. Define it as ENV_FN, without recursion"
    if re.search(r" [/%] ", statement):
        kind = "a remainder" if " % " in statement else "a division"
        return f"{kind} of ints. SIMD has none: divide by a constant, divide floats, or subtract in a select"
    if "gather load" in reason or re.search(r"\w\[", statement):
        return (
            "a table that SIMD cannot read. Give it elements of int32_t or float and one index: table[row * width + k]"
        )
    if "access pattern" in reason:
        return "an array indexed by a computed value. Make it a table of constants (ENV_DATA), or select with ?:"
    if re.search(DEPENDENT, reason):
        return f"a dependence between memory accesses ({reason.rstrip('. ')}). Read into a local, compute, write once"
    if re.search(r"vectype|data-type", reason):
        return f"a type that has no vectors ({statement or reason}). Use float, int32_t or uint32_t"
    return f"a statement without a SIMD form ({statement or reason})"


def _body(lines: list[str], name: str) -> tuple[int, int]:
    """The first and the last line of a function."""
    start = next((k for k, line in enumerate(lines) if re.search(rf"\b{name}\(", line) and "ENV_FN" in line), 0)
    end = next((k for k in range(start, len(lines)) if lines[k].startswith("}")), len(lines) - 1)
    return start + 1, end + 1
