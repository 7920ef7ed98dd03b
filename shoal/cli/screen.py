"""Output of all commands: the console, hints for the next command, errors, columns."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from typing import Any

from shoal.errors import ShoalError, UnknownEnv
from shoal.log.base import ENCODING_ERRORS, beside

LEAST_TEXT = 30  # columns: if fewer are left for a description, it goes below its head


def console(stderr: bool = False) -> Any:
    """A rich console without automatic colours, for light and dark terminals."""
    from rich.console import Console
    from rich.theme import Theme

    return Console(stderr=stderr, highlight=False, markup=False, theme=Theme({"markdown.code": "cyan"}))


def make_printable() -> None:
    """Makes stdout and stderr replace characters that their encoding lacks (`±` by `+-`) and not raise."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure") and "utf" not in (stream.encoding or "").lower():
            stream.reconfigure(errors=ENCODING_ERRORS)


def show_help(text: str) -> None:
    """Prints the help of a command, above its options. Paragraphs are wrapped at the terminal's width; examples not.

    (tyro prints a paragraph as one line.)
    """
    screen = console()
    for paragraph in text.strip().split("\n\n"):
        lines = paragraph.splitlines()
        if any(line.startswith(" ") for line in lines):
            wrapped = lines
        else:
            wrapped = textwrap.wrap(" ".join(lines), min(screen.width, 100), break_on_hyphens=False)
        screen.print("\n".join(wrapped) + "\n", soft_wrap=True)


def suggest(out: Any, hints: Mapping[str, str]) -> None:
    """Prints the commands to try next, and their purpose."""
    from rich.text import Text

    for k, (line, what) in enumerate(beside(hints, out.width if out.is_terminal else None)):
        text = Text.assemble("Next: " if k == 0 else "      ", (line, "cyan"))
        out.print(text.append(what, "dim"), soft_wrap=True)


def columns(rows: Mapping[str, str], width: int, style: str = "") -> Any:
    """Two columns: heads, and descriptions wrapped at `width`."""
    from rich.text import Text

    indent = max(map(len, rows)) + 4
    is_beside = width - indent >= LEAST_TEXT
    out = Text()
    for head, description in rows.items():
        room = width - indent if is_beside else width - 6
        lines = textwrap.wrap(description, max(room, 20), break_long_words=False, break_on_hyphens=False) or [""]
        out.append(f"  {head}", "cyan")
        if is_beside:
            out.append(" " * (indent - 2 - len(head))).append(f"{lines.pop(0)}\n", style)
        else:
            out.append("\n")
        for line in lines:
            out.append(" " * (indent if is_beside else 6)).append(f"{line}\n", style)
    return out


def report(error: ShoalError) -> None:
    """Prints an error on stderr."""
    from rich.text import Text

    text = f"unknown env {error}" if isinstance(error, UnknownEnv) else str(error)
    out = console(stderr=True)
    # wrapped on a terminal, but not in a file, and not if the message has lines (a compiler's)
    out.print(Text.assemble(("error: ", "bold red"), text), soft_wrap=not out.is_terminal or "\n" in text)
