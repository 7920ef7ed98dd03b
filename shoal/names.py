"""Finds classes and functions of the user by name, and the name of a class or function.

    mine:Env               attribute Env of the module mine, found as by `python -m`: in the current folder first
    package.module:Env     the same in a package
    ./mine.py:Env          a file; its folder becomes importable, as for a script

`absolute` gives the name by which the same thing is found from any folder: runs store that one. Knows nothing of what
is found.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import re
import sys
import sysconfig
import traceback
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from shoal.errors import ConfigError, did_you_mean

INSTALLED = ("site-packages", "dist-packages")  # folders of installed packages: every folder finds these


# ---- from a name to a thing ----


def is_name(text: object) -> bool:
    """Whether a text has the form of a name: `module:Attr` or `file.py:Attr`.

    >>> is_name("mine:Env"), is_name("./mine.py:Env"), is_name("my_env.h"), is_name("gymnasium:CartPole-v1")
    (True, True, False, False)
    """
    place, _, attribute = str(text).rpartition(":")
    return _is_dotted(attribute) and (place.endswith(".py") or _is_dotted(place))


def find(name: str, what: str = "") -> Any:
    """The class, function or object of a name. `what` says in errors what was looked for: `--nn.policy`."""
    shown = f"{what} '{name}'".strip()
    place, attribute = _split(name, shown)
    value: Any = load(place, shown)
    for part in attribute.split("."):
        if not hasattr(value, part):
            known = _own_names(value)
            has = f"It has {', '.join(known)}." if known else "It defines no class and no function."
            raise ConfigError(f"{shown}: {place} has no '{part}'.{did_you_mean(part, known)} {has}")
        value = getattr(value, part)
    return value


def load(place: str, shown: str = "") -> ModuleType:
    """The module of the first part of a name: a module's name, or the path of a .py file."""
    shown = shown or f"'{place}'"
    try:
        return _load_file(_file(place, shown)) if place.endswith(".py") else _load_module(place)
    except KeyboardInterrupt:
        raise
    except ConfigError:
        raise
    except SystemExit as error:
        raise ConfigError(
            f"{shown}: {place} ended itself when it was imported (exit code {error.code}). Put what it does as a "
            "script under: if __name__ == '__main__'"
        ) from error
    except BaseException as error:
        raise ConfigError(f"{shown}: {place} cannot be imported: {_reason(error, place)}") from error


def search_current_folder() -> None:
    """Makes the modules of the current folder importable, as `python -m` does."""
    folder = os.getcwd()
    if folder not in sys.path and not (sys.path and sys.path[0] == ""):
        sys.path.insert(0, folder)


def _load_module(name: str) -> ModuleType:
    search_current_folder()
    if name not in sys.modules:
        importlib.invalidate_caches()  # the file may have been written a moment ago
    return importlib.import_module(name)


def _load_file(path: Path) -> ModuleType:
    """Imports a file under the name that `import` would give it, with its folder on the path; else under another."""
    root, name = _module_of(path)
    if _is_dotted(name):
        if str(root) not in sys.path:
            sys.path.insert(0, str(root))
        if name not in sys.modules:
            importlib.invalidate_caches()
            if _is_file_of(importlib.util.find_spec(name), path):
                return importlib.import_module(name)
        elif _is_file_of(sys.modules[name].__spec__, path):
            return sys.modules[name]
    # the name is taken by another module, or cannot be imported: `my-env.py`
    own = _own_name(path)
    if own in sys.modules:
        return sys.modules[own]
    spec = importlib.util.spec_from_file_location(own, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[own] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[own]
        raise
    return module


def _own_name(path: Path) -> str:
    """The name of a file's module where its natural one cannot be used."""
    return f"{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}_{zlib.crc32(str(path).encode()):08x}"


def _file(place: str, shown: str) -> Path:
    path = Path(place).expanduser()
    if not path.is_file():
        near = did_you_mean(path.name, [other.name for other in sorted(path.parent.glob("*.py"))])
        where = "" if path.is_absolute() else f" in the current folder, {os.getcwd()}"
        raise ConfigError(f"{shown}: no file {place}{where}.{near}")
    return path.resolve()


def _module_of(path: Path) -> tuple[Path, str]:
    """(folder that must be importable, module) of a file; folders with an `__init__.py` are packages."""
    folder, parts = path.parent, [path.stem]
    if path.name == "__init__.py":
        folder, parts = path.parent.parent, [path.parent.name]
    while (folder / "__init__.py").is_file():
        folder, parts = folder.parent, [folder.name, *parts]
    return folder, ".".join(parts)


def _is_file_of(spec: Any, path: Path) -> bool:
    return spec is not None and bool(spec.has_location) and Path(str(spec.origin)).resolve() == path


def _split(name: str, shown: str) -> tuple[str, str]:
    place, _, attribute = str(name).rpartition(":")
    if not is_name(name):
        example = f"{name}:NAME" if str(name).endswith(".py") else "mine:NAME or ./mine.py:NAME"
        raise ConfigError(f"{shown} is not the name of a class or function. Write {example}.")
    return place, attribute


def _is_dotted(text: str) -> bool:
    return bool(text) and all(part.isidentifier() for part in text.split("."))


def _own_names(value: Any) -> list[str]:
    """The classes and functions that a module defines itself; of a class, its public attributes."""
    if not isinstance(value, ModuleType):
        return [name for name in dir(value) if not name.startswith("_")]
    makers = {name: x for name, x in vars(value).items() if callable(x) and not name.startswith("_")}
    return [name for name, maker in makers.items() if getattr(maker, "__module__", "") == value.__name__]


def _reason(error: BaseException, place: str) -> str:
    """What an import raised, and the line of the user's file."""
    text = f"{type(error).__name__}: {error}".rstrip(".")
    if isinstance(error, ModuleNotFoundError) and error.name == place.split(".")[0]:
        folder = Path.cwd()
        near = did_you_mean(place, [path.stem for path in sorted(folder.glob("*.py"))])
        return f"{text}.{near} The current folder is {folder}; a file can be named by its path: ./mine.py:NAME."
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    frames = [f for f in frames if f.filename != __file__]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{text}{where}."


# ---- names that are found from any folder ----


def absolute(name: str, what: str = "") -> str:
    """The name of the same thing that is found from any folder. Imports its module, but not a file."""
    shown = f"{what} '{name}'".strip()
    place, attribute = _split(name, shown)
    return f"{absolute_place(place, shown)}:{attribute}"


def absolute_place(place: str, shown: str = "") -> str:
    """The first part of `absolute`: the path of a file, or the name of an installed module."""
    if place.endswith(".py"):
        return str(_file(place, shown or f"'{place}'"))
    module = load(place, shown)
    file = _source(module)
    return place if file is None else str(file)


def shortened(name: str) -> str:
    """The name as it is shown: the path of a file relative to the current folder, if it is inside."""
    prefix, path, attribute = re.fullmatch(r"(\w+:)?(/.*\.py|/.*\.h$)?(.*)", name, re.DOTALL).groups()  # type: ignore[union-attr]
    if path is None:
        return name
    folder = f"{os.getcwd()}{os.sep}"
    shown = f"./{path.removeprefix(folder)}" if path.startswith(folder) else path
    return f"{prefix or ''}{shown}{attribute}"


def _source(module: ModuleType) -> Path | None:
    """The file by whose path a module can be named; None for an installed one, and where the path would not do."""
    path = Path(getattr(module, "__file__", None) or "")
    if path.suffix != ".py" or not path.is_file():
        return None
    path = path.resolve()
    is_stock = Path(sysconfig.get_path("stdlib")).resolve() in path.parents
    is_stock |= module.__name__.partition(".")[0] == __name__.partition(".")[0]  # Shoal's own, wherever it lies
    if is_stock or any(part in INSTALLED for part in path.parts):
        return None
    # a package without an __init__.py has a name that its path does not show
    return path if module.__name__ in (_module_of(path)[1], _own_name(path)) else None


@dataclass(frozen=True)
class Place:
    """Where a class or function is found again: its name, or the reason why it has none."""

    name: str = ""
    reason: str = ""


def place_of(value: Any) -> Place:
    """The name by which a class or function that the user passed is found again."""
    module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str) or not callable(value):
        return Place(reason=f"it is an object of {type(value).__name__}, not a class or function")
    if "<lambda>" in qualname:
        return Place(reason="it is a lambda")
    if "<locals>" in qualname:
        return Place(reason=f"it is defined inside a function ({qualname})")
    if module == "__main__":
        return _place_in_script(qualname)
    loaded = sys.modules.get(module)
    if loaded is None or _attribute(loaded, qualname) is not value:
        return Place(reason=f"{module}.{qualname} is another object or does not exist")
    return Place(f"{_source(loaded) or module}:{qualname}")


def _place_in_script(qualname: str) -> Place:
    """Where a class of the running script is found: in its file, if importing that does not run the script."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    path = Path(file or "")
    if path.suffix != ".py" or not path.is_file():
        return Place(reason=f"{qualname} is defined at a prompt or in a notebook, not in a file")
    if not _can_be_imported(path):
        return Place(
            reason=f"{path.name} would train again when it is imported; put its calls under if __name__ == '__main__'"
        )
    return Place(f"{path.resolve()}:{qualname}")


def _can_be_imported(script: Path) -> bool:
    """Whether a script has its calls under `if __name__ == "__main__"`, judged by its text."""
    try:
        body = ast.parse(script.read_text(encoding="utf-8")).body
    except (OSError, SyntaxError, ValueError):
        return False
    has_guard = any(isinstance(node, ast.If) and "__name__" in ast.dump(node.test) for node in body)
    return has_guard and not any(_runs_something(node) for node in body)


def _runs_something(node: ast.stmt) -> bool:
    """Whether a statement at top level does more than define: a call on its own, a loop, a call of `train`."""
    if isinstance(node, (ast.For, ast.While, ast.With)):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, (ast.Call, ast.Await))
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        calls = (part.func for part in ast.walk(node) if isinstance(part, ast.Call))
        return any(getattr(call, "attr", getattr(call, "id", "")) in ("train", "main") for call in calls)
    return False


def _attribute(value: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        value = getattr(value, part, None)
    return value


# ---- arguments ----


def arguments(maker: Any) -> dict[str, str]:
    """The keyword arguments of a class or function, and their defaults as text."""
    try:
        parameters = inspect.signature(maker).parameters.values()
    except (TypeError, ValueError):  # a class of C does not tell
        return {}
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return {p.name: "(required)" if p.default is p.empty else repr(p.default) for p in named}


def check_call(function: Any, call: str, arguments: Sequence[str], shown: str, has_self: bool = False) -> None:
    """Raises unless a function takes these arguments by position. `call`: how it is called, as text."""
    try:
        inspect.signature(function).bind(*([None] * has_self), *arguments)
    except ValueError:  # a function of C does not tell
        return
    except TypeError:
        given = inspect.signature(function)
        raise ConfigError(f"{shown} takes {given}, but is called as {call}. Change its arguments.") from None


def check_arguments(name: str, maker: Any, given: Mapping[str, Any], flag: str) -> None:
    """Raises unless a class or function can be called with these keywords. `flag`: their flags, `--env.{}`."""
    try:
        parameters = inspect.signature(maker).parameters.values()
    except (TypeError, ValueError):  # a class of C does not tell
        return
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_any = any(p.kind == p.VAR_KEYWORD for p in parameters)
    for key in given:
        if key not in named and not takes_any:
            has = f"It has {', '.join(named)}." if named else "It takes none."
            raise ConfigError(f"{shortened(name)} has no param '{key}'.{did_you_mean(key, named)} {has}")
    missing = [key for key, p in named.items() if p.default is p.empty and key not in given]
    missing += [p.name for p in parameters if p.kind == p.POSITIONAL_ONLY and p.default is p.empty]
    if missing:
        flags = " ".join(f"{flag.format(key.replace('_', '-'))} VALUE" for key in missing)
        give = f"Give {flags}, or name" if flag else "Name"
        has = "has" if len(missing) == 1 else "have"
        raise ConfigError(
            f"{shortened(name)} needs {', '.join(missing)}, which {has} no default. {give} a function without "
            "arguments that makes it."
        )


@dataclass(frozen=True)
class Maker:
    """A function of a name. It is found where it is called, so that other processes can call it."""

    name: str
    what: str = ""

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, **params: Any) -> Any:
        """Calls the class or function."""
        return find(self.name, self.what)(**params)
