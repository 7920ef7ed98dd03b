"""Finds the header of an env: by name, by path, or in another package. Compiles nothing."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from shoal import plugins
from shoal.errors import ConfigError, UnknownEnv, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

STOCK = Path(__file__).parent / "envs"
ENTRY_POINTS = "shoal.envs"  # a package's entry point `name = "package:header_path"`

_registered: dict[str, Path] = {}


def register(name: str, header: str | Path) -> None:
    """Gives a header a name: `shoal.make(name)` then finds it, and Gymnasium as `shoal/Name-v0`."""
    path = Path(header)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ConfigError(f"env name {name!r} must be lower-case letters, digits and _, and start with a letter.")
    if name in stock_names():
        raise ConfigError(f"'{name}' is a stock env. Register yours under another name.")
    if not path.is_file():
        raise ConfigError(f"cannot register '{name}': {path} is not a file.")
    _registered[name] = path.resolve()


def stock_names() -> list[str]:
    """The envs that Shoal ships."""
    return sorted(path.stem for path in STOCK.glob("*.h"))


def _from_packages() -> Mapping[str, EntryPoint]:
    return plugins.entry_points(ENTRY_POINTS)


def known_names() -> list[str]:
    """Every name that `find` accepts."""
    return sorted({*stock_names(), *_registered, *_from_packages()})


def find(name: str | Path) -> Path:
    """The header of an env: a name, or a path to a `.h` file."""
    text = str(name)
    if text.endswith(".h"):
        path = Path(text).expanduser()
        if not path.is_file():
            raise UnknownEnv(f"'{text}': no such file. 'shoal new my_env' writes a header to start from.")
        return path.resolve()
    if (path := STOCK / f"{text}.h").is_file() and "/" not in text:
        return path
    if text in _registered:
        return _registered[text]
    if point := _from_packages().get(text):
        try:
            value = point.load()
            path = Path(value() if callable(value) else value)
        except Exception as error:
            raise UnknownEnv(f"'{text}': the package's entry point '{point.value}' does not load: {error}.") from error
        if not path.is_file():
            raise UnknownEnv(f"'{text}' of package {point.value.split(':')[0]}: {path} is not a file.")
        return path.resolve()
    if ":" in text:
        raise UnknownEnv(f"'{text}' is a Python env, and only the header of a native env is needed here.")
    if text.endswith(".py") or Path(f"{text}.py").is_file():
        raise UnknownEnv(_python_file(text))
    if Path(f"{text}.h").is_file():
        raise UnknownEnv(f"'{text}'. Did you mean './{text}.h'? A header is named by its path.")
    module, _, attribute = text.rpartition(".")
    if module and Path(f"{module.replace('.', '/')}.py").is_file():
        raise UnknownEnv(f"'{text}'. Did you mean '{module}:{attribute}'? A Python env is named by module and class.")
    known = known_names()
    near, other = did_you_mean(text, known), of_a_framework(text)
    if other:
        near = f"{near[:-1]} or '{other}'?" if near else f" Did you mean '{other}'?"
    raise UnknownEnv(f"'{text}'.{near} 'shoal envs' lists all {len(known)}.")


# how libraries spell their ids, and the names that their frameworks have here
SPELLINGS = {
    r"(?:ALE/)?(\w+?)(?:NoFrameskip|Deterministic)-v\d+": "atari",
    r"ALE/(\w+)-v\d+": "atari",
    r"MiniGrid-(.+?)(?:-v\d+)?": "minigrid",
    r"BabyAI-(.+?)(?:-v\d+)?": "babyai",
    r"MiniHack-(.+?)(?:-v\d+)?": "minihack",
    r"NetHack(\w+)-v\d+": "nethack",
    r"Vizdoom(.+)-v\d+": "vizdoom",
    r"Crafter(\w+)-v\d+": "crafter",
    r"GDY-(.+?)(?:-v\d+)?": "griddly",
}


def of_a_framework(text: str) -> str:
    """An id as other libraries spell it, with the prefix of the framework here; empty for other names.

    >>> of_a_framework("PongNoFrameskip-v4"), of_a_framework("procgen-coinrun"), of_a_framework("cartpol")
    ('atari:Pong', 'procgen:coinrun', '')
    """
    for pattern, prefix in SPELLINGS.items():
        if match := re.fullmatch(pattern, text):
            return f"{prefix}:{match[1]}"
    prefix, separator, rest = re.fullmatch(r"(\w*)([-/]?)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    if separator and rest and (Path(__file__).parent / "integrations" / f"{prefix}.py").is_file():
        return f"{prefix}:{rest}"
    gymnasium = sys.modules.get("gymnasium")
    if gymnasium is not None and text in gymnasium.registry:
        return f"gymnasium:{text}"
    match = re.fullmatch(r"([A-Z]\w*)-v5", text)
    return f"atari:{match[1]}" if match else ""


def _python_file(text: str) -> str:
    """The message for the name of a Python file without that of its env."""
    path = Path(text if text.endswith(".py") else f"{text}.py").expanduser()
    if not path.is_file():
        return f"'{text}': no such file. A Python env is named by file and class: {text}:Env."
    makers = re.findall(r"^(?:class|def) ([A-Za-z]\w*)", path.read_text(errors="replace"), re.MULTILINE)
    examples = [f"'{text}:{maker}'" for maker in makers[:4]]
    if not examples:
        return f"'{text}', a Python file that has no class and no function at its top level."
    return f"'{text}', a Python file without the name of its env. Did you mean {' or '.join(examples)}?"


def is_native(env: object) -> bool:
    """Whether `shoal.make` would compile it: the name or path of a header, not `gymnasium:…`, `mine:Env` or a class."""
    return isinstance(env, (str, Path)) and (":" not in str(env) or str(env).endswith(".h"))


def title(name: str) -> str:
    """`my_env` as Gymnasium spells ids: `MyEnv`."""
    return "".join(word.capitalize() for word in name.split("_"))


def version(header: Path) -> int:
    """ENV_VERSION of a header, read from its text: listing envs compiles nothing."""
    match = re.search(r"^\s*#\s*define\s+ENV_VERSION\s+(\d+)", header.read_text(errors="replace"), re.MULTILINE)
    return int(match[1]) if match else 0


def summary(header: Path) -> tuple[str, str]:
    """(first sentence, the rest) of the comment at the top of a header."""
    lines: list[str] = []
    for line in header.read_text(errors="replace").splitlines():
        if not line.startswith("//"):
            break
        lines.append(line[2:].removeprefix(" ").rstrip())
    head, _, body = "\n".join(lines).partition("\n\n")
    first = re.sub(rf"^{re.escape(header.name)}:\s*", "", " ".join(head.split()))
    return first, body.strip()
