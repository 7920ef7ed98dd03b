"""Left never imports right: the import graph against the walls that DESIGN draws."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shoal

ROOT = Path(shoal.__file__).parent
# what each room may import of Shoal, besides itself
WALLS = {
    "errors": set(),
    "html_page": set(),
    "schedules": {"errors"},
    "distributions": {"errors"},
    "cores": set(),
    "names": {"errors"},
    "plugins": {"errors"},
    "groups": {"errors"},
    "seeds": set(),
    "memory": set(),
    "stats": set(),
    "layout": {"errors"},
    "environments": {"errors"},
    "spec": {"errors", "distributions", "layout"},
    "space_json": {"errors", "layout"},
    "wrappers": {"errors", "spec"},
    "registry": {"errors", "plugins"},
    "native": {"errors", "groups", "distributions", "spec", "wrappers"},
    "vector": {"errors", "cores", "memory", "distributions", "layout", "spec", "space_json", "wrappers", "plugins"}
    | {"native", "config"},
    "entry": {
        "errors",
        "cores",
        "names",
        "distributions",
        "spec",
        "wrappers",
        "plugins",
        "registry",
        "native",
        "vector",
    },
    "integrations": {"errors", "names", "distributions", "layout", "spec", "space_json", "wrappers", "registry"}
    | {"native", "vector", "entry", "plugins", "environments"},
    "measure": {"cores"},
    "tune": {"errors", "cores", "spec", "entry", "measure", "vector"},
    "conformance": {"errors", "spec", "registry", "native", "vector"},
    "config": {"errors", "schedules"},
    "runs": {"errors", "config"},
    "seed_groups": {"errors", "config", "runs", "stats"},
    "video": {"errors", "spec"},
    "evaluate": {"errors", "spec", "stats", "vector", "video"},
    "nn": {"errors", "groups", "spec", "config", "plugins", "native"},
    "algos": {
        "groups",
        "errors",
        "cores",
        "memory",
        "names",
        "spec",
        "schedules",
        "config",
        "plugins",
        "seeds",
        "native",
        "vector",
        "nn",
    },
    "player": {"spec", "nn", "algos"},
    "checkpoint_files": {"errors", "layout"},
    "checkpoint": {"errors", "runs", "checkpoint_files"},
    "league": {"errors", "html_page", "config", "seeds", "spec", "stats", "checkpoint", "memory", "vector", "nn"}
    | {"algos"},
    "log": {"stats", "errors", "config", "names", "plugins"},
    "plot": {"errors", "html_page", "spec", "log", "runs", "stats"},
    "train": {"errors", "cores", "config", "registry", "native", "vector", "entry", "nn", "algos", "player", "evaluate"}
    | {"runs", "seed_groups", "checkpoint", "log", "plugins", "seeds", "spec", "schedules", "distributions"}
    | {"wrappers", "video", "names", "space_json", "groups", "league"},
    "sweep": {"errors", "html_page", "config", "plugins", "registry", "native", "runs", "seed_groups", "seeds", "stats"}
    | {"log", "train", "vector"},
    "match": {"errors", "cores", "registry", "native", "vector", "entry", "nn", "algos", "player", "evaluate", "runs"}
    | {"seeds", "spec", "checkpoint", "league", "train"},
    "acting": {"errors", "spec", "vector", "nn", "algos"},
    "loading": {"errors", "names", "runs", "checkpoint", "seeds", "nn", "algos", "train", "acting"},
    "export": {"errors", "spec", "nn", "algos", "acting"},
    "web": {
        "errors",
        "html_page",
        "spec",
        "registry",
        "native",
        "entry",
        "evaluate",
        "runs",
        "nn",
        "algos",
        "player",
        "train",
    }
    | {"schedules", "distributions", "seeds", "space_json", "checkpoint_files"},
    "watch": {
        "errors",
        "html_page",
        "names",
        "config",
        "stats",
        "runs",
        "seed_groups",
        "log",
        "plot",
        "web",
        "memory",
        "nn",
        "registry",
    }
    | {"entry", "evaluate", "train", "league", "match", "sweep"},
    "bench": {"cores", "nn", "train"},
    "puffer": {"errors", "cores", "spec", "registry", "vector", "entry", "integrations"}
    | {"config", "nn", "algos", "checkpoint", "log", "runs", "seeds", "train", "sweep"},
    "cli": {"errors", "cores", "spec", "registry", "native", "vector", "entry", "integrations", "environments"}
    | {
        "conformance",
        "measure",
        "memory",
        "tune",
        "config",
        "runs",
        "seed_groups",
        "log",
        "stats",
        "plot",
        "video",
        "evaluate",
        "train",
        "bench",
        "names",
        "plugins",
        "schedules",
        "distributions",
        "acting",
        "loading",
        "export",
        "league",
        "match",
        "sweep",
        "web",
        "nn",
        "watch",
    },
}


def imports(file: Path) -> set[str]:
    """The rooms of Shoal that a file imports."""
    rooms = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "shoal":
            parts = node.module.split(".")
            rooms |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            rooms |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("shoal.")}
    return rooms


@pytest.mark.parametrize("room", WALLS)
def test_walls(room):
    path = ROOT / room
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    for file in files:
        assert imports(file) - {room, "__version__"} <= WALLS[room], file


def test_every_room_has_walls():
    rooms = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert rooms - {"__init__", "__main__"} == set(WALLS)


def test_folders_open_with_one_sentence():
    for folder in (path for path in ROOT.iterdir() if (path / "__init__.py").is_file()):
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder


def test_public_names_are_sorted():
    assert sorted(shoal.__all__) == shoal.__all__
    assert all(hasattr(shoal, name) for name in shoal.__all__)


def test_import_is_light():
    """No torch, no CLI libraries, nothing compiled or loaded, no thread started, nothing written."""
    code = (
        "import sys, threading; before = set(sys.modules); import shoal; after = set(sys.modules);"
        "heavy = {'torch', 'rich', 'tyro', 'matplotlib', 'pygame', 'av', 'PIL'} & after; assert not heavy, heavy;"
        "assert threading.active_count() == 1;"
        "from shoal.native import lib; assert lib.load_core.cache_info().currsize == 0"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_the_long_tests_exist():
    """tests/long.txt names tests by file and function."""
    for line in (Path(__file__).parent / "long.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            file, _, name = line.partition("::")
            function = name.partition("[")[0]
            assert f"def {function}" in (Path(__file__).parents[1] / file).read_text(), line


def test_no_test_module_imports_another():
    """What tests share lives in modules of its own (checks.py, training.py, ...): a test module can be read alone."""
    for path in Path(__file__).parent.rglob("test_*.py"):
        named = re.findall(r"^\s*(?:from|import) [\w.]*\btest_\w+", path.read_text(), re.MULTILINE)
        others = [line for line in named if not line.endswith(path.stem)]  # a script of the test may import it
        assert not others, f"{path.name}: {others}"


def test_no_file_of_the_library_is_long():
    """600 lines, as CONTRIBUTING says."""
    root = Path(shoal.__file__).parent
    files = (path for suffix in ("py", "h", "c", "js", "html", "css") for path in root.rglob(f"*.{suffix}"))
    lengths = {str(path.relative_to(root)): len(path.read_text().splitlines()) for path in files}
    assert [name for name, length in lengths.items() if length > 600] == []
