"""What Shoal's web pages share: the head, the colours in light and dark, and how a template is filled.

A template is an HTML file that starts with `{{head}}` and has names in double braces. Values are put in as they are:
whoever fills a template escapes text (`html.escape`) and data (`data_text`). Uses the standard library alone.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

STYLE = Path(__file__).parent / "html_page.css"
HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
"""


def head(title: str) -> str:
    """The start of a page, up to its title: styles of its own may follow."""
    return HEAD.format(title=html.escape(title))


def fill(template: Path, title: str, **values: str) -> str:
    """The page of a template. `title` is plain text; it also stands for `{{title}}`.

    All names are replaced in one pass: a value that looks like a name stays as it is.
    """
    start = f"{head(title)}<style>\n{STYLE.read_text()}</style>"
    parts = {"head": start, "title": html.escape(title), **values}
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template.read_text())


def data_text(data: Any) -> str:
    """JSON for a `<script type="application/json">`: no text in it can end the element."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
