"""Mistakes in the ENV_ macros of a header that a compiler does not find, or reports in pages of messages."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from shoal.errors import BuildError, did_you_mean

CORE = Path(__file__).parent / "core"
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]core/env\.h[>"]', re.MULTILINE)
DEFINE = re.compile(r"^\s*#\s*define\s+(\w+)", re.MULTILINE)
STAT_KINDS = ("sum", "mean", "last")
SWITCHES = {
    "env_mask": "ENV_HAS_MASK",
    "env_check": "ENV_HAS_CHECK",
    "env_finish": "ENV_HAS_FINISH",
    "env_curves": "ENV_CURVES",
}  # functions that are called only if the header defines a macro
KINDS = {"ENV_OBS": "OBS_", "ENV_ACTION": "ACT_"}


def check_macros(header: Path, text: str) -> None:
    """Raises BuildError for a misspelled macro. `text` is that of the header and of the files that it includes."""
    text = _without_comments(text).replace("\\\n", " ")
    if not INCLUDE.search(text):
        raise BuildError(
            f'{header} does not include core/env.h. Write #include "core/env.h" after the ENV_ macros and before the '
            "functions; 'shoal new NAME' writes an example."
        )
    known, defined = _known(), set(DEFINE.findall(text))
    for name in sorted(defined):
        if not name.startswith("ENV_") or name in known or len(re.findall(rf"\b{name}\b", text)) > 1:
            continue  # the header itself may read it
        if suggestion := did_you_mean(name, {other for other in known - defined if other.startswith("ENV_")}):
            raise BuildError(f"{header} defines {name}, which nothing reads.{suggestion}")
    for macro, prefix in KINDS.items():
        kinds = sorted(name for name in known if name.startswith(prefix))
        for value in re.findall(rf"^\s*#\s*define\s+{macro}\s+(\w+)", text, re.MULTILINE):
            if value not in known | defined:
                raise BuildError(f"{header}: {macro} is {value}(…), which does not exist. Use {', '.join(kinds)}.")
    for function, macro in SWITCHES.items():
        if macro not in text and re.search(rf"\b(?:void|int)\s+{function}\s*\(", text):
            raise BuildError(
                f"{header} has {function}, but does not define {macro}: nothing would call it. Write #define {macro} "
                "before including core/env.h."
            )
    for x, body in re.findall(r"^\s*#\s*define\s+ENV_STATS\((\w+)\)(.*)$", text, re.MULTILINE):
        for kind in re.findall(rf"\b{x}\(\s*(\w+)", body):
            if kind not in STAT_KINDS:
                raise BuildError(f"{header}: ENV_STATS has a stat of kind '{kind}'. Use {', '.join(STAT_KINDS)}.")


@cache
def _known() -> frozenset[str]:
    """The names of ENV_ macros that core/ reads, and OBS_F32, ACT_DISCRETE and the others."""
    text = "".join(path.read_text() for path in sorted(CORE.glob("*.[ch]")))
    return frozenset(re.findall(r"\bENV_[A-Z][A-Z_]*\b", text)) | frozenset(
        re.findall(r"#define ((?:OBS|ACT)_[A-Z0-9]+)\(", text)
    )


def _without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
