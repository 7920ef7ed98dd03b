"""`shoal env list`: the Python environments of frameworks."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Any

from shoal.cli.command import Command


def list_environments(*, json: bool = False) -> int:
    """List the Python environments that 'shoal env add' made, and the frameworks that need one.

    Try:
        shoal env list --json

    Args:
        json: Print JSON: an array.
    """
    from rich.table import Table

    from shoal import environments
    from shoal.cli.screen import console
    from shoal.integrations.framework import FRAMEWORKS
    from shoal.integrations.framework import framework as find

    rows: list[dict[str, Any]] = []
    folders = environments.existing()
    for name in sorted(
        {*(name for name in FRAMEWORKS.names() if find(name).is_separate)} | {_name(f) for f in folders}
    ):
        own = [folder for folder in folders if _name(folder) == name]
        rows += [_row(name, folder) for folder in own] or [{"name": name, "state": "missing", "folder": ""}]
    if json:
        print(jsonlib.dumps(rows, indent=2))
        return 0
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("FRAMEWORK", "STATE", "PYTHON", "MB", "FOLDER"):
        table.add_column(column, justify="right" if column == "MB" else "left", overflow="fold")
    for row in rows:
        size = f"{row['bytes'] / 1e6:,.0f}" if row.get("bytes") else ""
        table.add_row(row["name"], row["state"], row.get("python", ""), size, Path(row["folder"]).name)
    own = console()
    own.print(table)
    own.print(f"\nThe folders are in {environments.data_folder()}.", highlight=False, soft_wrap=True)
    if absent := [row["name"] for row in rows if row["state"] != "ready"]:
        own.print(f"Next: shoal env add {absent[0]}    install this one", highlight=False)
    return 0


def _name(folder: Path) -> str:
    return folder.name.rpartition("-")[0]


def _row(name: str, folder: Path) -> dict[str, Any]:
    from shoal import environments
    from shoal.integrations.framework import FRAMEWORKS
    from shoal.integrations.framework import framework as find

    path = folder
    facts = environments.facts_of(path)
    state = "ready" if facts else "not complete"
    recipe = getattr(find(name), "recipe", None) if name in FRAMEWORKS.names() else None
    if facts and (recipe is None or recipe.folder != path):
        state = "other versions"
    return {
        "name": name,
        "state": state,
        "folder": str(path),
        **{k: facts[k] for k in ("python", "bytes") if k in facts},
    }


COMMAND = Command(list_environments)
