"""The docs are true: the tutorial's C is the env it says, its Python runs, links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shoal import registry

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def test_tutorial_builds_squared_line_by_line():
    assert "\n".join(blocks(ROOT / "docs" / "add-an-env.md", "c")) == registry.find("squared").read_text()


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_python_blocks_run(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), scope)


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_readme_tables_are_of_the_last_results():
    subprocess.run([sys.executable, str(ROOT / "scripts" / "readme"), "--check"], check=True, env=with_root())


def with_root() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_the_readme_tree_is_the_tree():
    """Every path in the README's annotated tree exists, and every folder of the package is in it."""
    tree = re.search(r"^```text\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert tree
    stack: list[str] = []
    listed = set()
    for line in tree[1].splitlines():
        name = line.split()[0] if line.strip() else ""
        if not re.fullmatch(r"[\w./-]+", name):
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        stack = [*stack[:depth], name]
        path = ROOT.joinpath(*stack)
        assert path.exists(), path
        listed.add(path)
    folders = {path for path in (ROOT / "shoal").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders <= listed
