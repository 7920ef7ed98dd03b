"""Writes a game (game.py) as one HTML file that needs nothing else: no network, no server, no other file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from string import Template
from typing import Any

from shoal import html_page
from shoal.errors import ConfigError
from shoal.web.facts import packed

PAGE = Path(__file__).parent / "page"
UNPACK = "packed.js"
SCRIPTS = ("engine.js", "view.js", "controls.js", "app.js")
RUN = """Packed.run(document.getElementById("packed")).catch((error) => {
document.getElementById("banner").textContent = `this browser cannot run the game: ${error.message}`;
});
"""


def html(facts: dict[str, Any], *, is_packed: bool = True) -> str:
    """The page of a game. Its scripts are packed, which saves 24 KB, or as `script` has them."""
    text = Template((PAGE / "page.html").read_text())
    style = compact((PAGE / "style.css").read_text())
    head, data = html_page.head(facts["title"]), html_page.data_text(facts)
    rest, own = (packed(script(SCRIPTS).encode()), script([UNPACK]) + RUN) if is_packed else ("", script())
    return text.substitute(head=head, style=style, data=data, packed=rest, script=own)


def script(names: Iterable[str] = (UNPACK, *SCRIPTS)) -> str:
    """The page's script, as it stands in a page that is not packed."""
    return "".join(compact((PAGE / name).read_text()) for name in names)


def compact(text: str) -> str:
    """A script without indentation and without lines of comments. (No string of ours goes over several lines.)"""
    lines = (line.strip() for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("//"))


def check(path: Path) -> None:
    """Raises if a page cannot be written: before a run is loaded."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"-o {path} is no page. Name a file that ends with .html, or give --onnx {path}.")
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(f"{path} cannot be written. Choose a file in an existing folder that you may write to.")


def write(path: Path, facts: dict[str, Any]) -> int:
    """Writes the page, complete or not at all, and returns its size in bytes."""
    data = html(facts).encode()
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return len(data)
