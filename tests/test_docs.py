"""The docs are true: the tutorial's C is the env it says, Python blocks run, links, paths and functions exist."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shoal import registry

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
CONTRIBUTING = ROOT / "CONTRIBUTING.md"


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
    text = page.read_text()
    for target, anchor in re.findall(r"\]\((?!https?://)([^)#]*)(#[^)]*)?\)", text):
        other = page.parent / target if target else page
        assert other.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor[1:] in anchors(other), f"{page.name}: {target}{anchor}"


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_chart_and_the_tables_are_of_the_last_results():
    subprocess.run([sys.executable, str(ROOT / "scripts" / "readme"), "--check"], check=True, env=with_root())


def with_root() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_the_readme_is_short_and_shows_the_library_first():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 130
    first_screen = "\n".join(lines[:15])
    assert "shoal train" in first_screen
    assert first_screen.count("![") == 2  # the dashboard and the speed chart


def test_the_tree_is_the_tree():
    """Every path in the annotated tree of CONTRIBUTING exists, and every folder of the package is in it."""
    stack: list[str] = []
    listed = set()
    for line in blocks(CONTRIBUTING, "text")[0].splitlines():
        name = line.split()[0] if line.strip() else ""
        depth = (len(line) - len(line.lstrip())) // 2
        stack = [*stack[:depth], name]
        path = ROOT.joinpath(*stack)
        assert path.exists(), path
        listed.add(path)
    folders = {path for path in (ROOT / "shoal").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders <= listed


# ---- the walk through the code ----


def walks() -> dict[str, list[tuple[str, str]]]:
    """The (file, function) stops of each walk in CONTRIBUTING, by its heading."""
    section = CONTRIBUTING.read_text().split("\n## The path of one action\n")[1].split("\n## ")[0]
    parts = re.split(r"^### (.*)$", section, flags=re.MULTILINE)
    stop = re.compile(r"^\| (\d+) \| `([^`]+)` \| `([^`]+)` \|", re.MULTILINE)
    found = {title: stop.findall(text) for title, text in zip(parts[1::2], parts[2::2])}
    for title, stops in found.items():
        assert [int(number) for number, _, _ in stops] == list(range(1, len(stops) + 1)), title
    return {title: [(file, name) for _, file, name in stops] for title, stops in found.items()}


def test_the_walk_has_three_paths_of_at_most_twelve_stops():
    paths = walks()
    assert len(paths) == 3
    assert all(2 <= len(stops) <= 12 for stops in paths.values()), paths


@pytest.mark.parametrize(("file", "name"), sorted({stop for stops in walks().values() for stop in stops}))
def test_every_stop_of_the_walk_exists(file, name):
    assert (ROOT / file).is_file(), f"CONTRIBUTING.md: {file} does not exist"
    assert defines(ROOT / file, name), f"CONTRIBUTING.md: {file} has no function {name}"


def defines(file: Path, name: str) -> bool:
    """Whether a Python or C file defines a function: `f` or `Class.f`."""
    if file.suffix != ".py":
        return re.search(rf"^[\w *]*\b{name}\(", file.read_text(), re.MULTILINE) is not None
    body: list[ast.stmt] = ast.parse(file.read_text()).body
    *outer, last = name.split(".")
    for part in outer:
        body = next((node.body for node in body if isinstance(node, ast.ClassDef) and node.name == part), [])
    return any(isinstance(node, ast.FunctionDef) and node.name == last for node in body)


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_path_of_the_project_that_a_page_names_exists(page):
    """Paths in backticks that begin with a folder of the project; `x` stands for a name."""
    for path in re.findall(r"`((?:shoal|tests|benchmarks|scripts|examples|docs)/[a-z_.][\w./-]*)`", page.read_text()):
        if not re.search(r"\bx\.|NAME", path):
            assert (ROOT / path).exists(), f"{page.name}: {path}"
