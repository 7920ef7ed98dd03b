"""`shoal new`: writes an env header to start from. `new_env.h.in` is the template."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import tyro

from shoal.cli.command import Command

TEMPLATE = Path(__file__).parent / "new_env.h.in"


def new(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")],
    /,
    *,
    dir: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("."),
    force: bool = False,
) -> int:
    """Write an env header to start your own env from.

    It is a small complete game with comments. Change it line by line into yours.

    Try:
        shoal new my_env
        shoal new my_env --dir envs --force

    Args:
        name: The env's name: lower-case letters, digits and _. The file is NAME.h.
        dir: The folder to write to.
        force: Overwrite an existing file.
    """
    from shoal.cli.screen import console, suggest

    path = write_header(name, dir, force)
    shown = path if path.is_absolute() or str(path).startswith("..") else f"./{path}"
    out = console()
    out.print(f"Wrote {shown}, a small working game. Change it line by line into yours.\n", soft_wrap=True)
    suggest(
        out,
        {
            f"shoal check {shown}": "find mistakes in it",
            f"shoal step {shown}": "play it by hand",
            f"shoal bench env {shown}": "measure its speed",
            f"shoal envs {shown}": "its page",
        },
    )
    out.print(
        "\nFrom Python:\n"
        "    import shoal\n"
        f'    envs = shoal.make("{shown}", num_envs=4096)\n'
        "    obs, infos = envs.reset(seed=0)\n"
        "    obs, rewards, terminated, truncated, infos = envs.step(actions)",
        soft_wrap=True,
    )
    return 0


def write_header(name: str, folder: Path, force: bool = False) -> Path:
    """Writes `folder/name.h` from the template and returns its path."""
    from shoal.errors import ConfigError
    from shoal.registry import stock_names

    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        better = re.sub(r"[^a-z0-9]+", "_", name.removesuffix(".h").lower()).strip("_0123456789")
        hint = f" Try 'shoal new {better}'." if better else " Try 'shoal new my_env'."
        raise ConfigError(f"env name '{name}' must be lower-case letters, digits and _, and start with a letter.{hint}")
    if name in stock_names():
        raise ConfigError(f"'{name}' is a stock env. Choose another name: 'shoal new my_{name}'.")
    if not folder.is_dir():
        raise ConfigError(f"--dir {folder} is not a folder. Make it first: mkdir -p {folder}")
    path = folder / f"{name}.h"
    try:
        with path.open("w" if force else "x") as file:
            file.write(TEMPLATE.read_text().replace("@NAME@", name))
    except FileExistsError:
        raise ConfigError(f"{path} exists. Choose another name, or overwrite it with --force.") from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}. Choose another folder with --dir.") from None
    return path


COMMAND = Command(new, order=90, examples={"shoal new my_env": "a header to start your own env from"})
