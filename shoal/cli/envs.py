"""`shoal envs`: lists the envs, or shows the page of one."""

from __future__ import annotations

import contextlib
import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import tyro

from shoal.cli.command import Command

WIDE = 150  # columns: a wider terminal shows a summary beside each env


def envs(
    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = None,
    /,
    *,
    frameworks: bool = False,
    json: bool = False,
) -> int:
    """List the envs, or show the page of one.

    A page describes the env, its spaces, params and stats, and how to use it. Frameworks are libraries of other people:
    --frameworks lists them, whether each is installed, and how to install it.

    Try:
        shoal envs                list all
        shoal envs breakout       the page of one env
        shoal envs minigrid       list those whose names start with minigrid_
        shoal envs ./my_env.h     the page of your own header
        shoal envs --frameworks   atari, procgen, nethack and others
        shoal envs atari:         the envs of one framework
        shoal envs --json         everything as JSON

    Args:
        name: The env to show: a name from the list, the path of an env header, or an env of a framework (atari:Pong).
            The first part of names lists the envs that share it, and a framework alone (atari:) its envs. Without a
            name all are listed.
        frameworks: List the frameworks, not the envs.
        json: Print JSON: an object for one env, an array for the list.
    """
    from shoal import registry
    from shoal.cli import pages

    if frameworks or (name is not None and not registry.is_native(name)):
        return show_frameworks(name, json)
    known = registry.known_names()
    family = [other for other in known if name not in known and other.startswith(f"{name}_")]
    if name is None or family:
        return (list_json if json else list_table)(family or known)
    header = registry.find(name)
    if json:
        print(jsonlib.dumps(pages.describe(header), indent=2))
    else:
        show(pages.page(header))
    return 0


def show_frameworks(name: str | None, json: bool) -> int:
    """All frameworks, the envs of one (`atari:`), or one env (`atari:Pong`)."""
    from shoal.cli import framework_pages as pages
    from shoal.cli.screen import console
    from shoal.errors import ConfigError
    from shoal.integrations.framework import framework, is_prefix

    prefix, _, env = (name or "").partition(":")
    if name is not None and not is_prefix(prefix):
        if env or name.endswith(":"):
            raise ConfigError(f"'{prefix}:' is not a framework. 'shoal envs --frameworks' lists them.")
        raise ConfigError(f"--frameworks lists all: leave out '{name}'.")
    if json:
        found = pages.all_frameworks() if name is None else [framework(prefix)]
        tables = [pages.describe(one) for one in found]
        if name is not None:
            tables[0]["envs"] = found[0].names() if found[0].is_installed else []
        print(jsonlib.dumps(tables if name is None else tables[0], indent=2))
    elif name is None:
        pages.show_all(console())
    elif env:
        show(pages.page(name))
    else:
        pages.show_names(console(), framework(prefix))
    return 0


def show(markdown: str) -> None:
    """Prints a page, at most 100 columns wide."""
    from rich.markdown import Heading, Markdown
    from rich.text import Text

    from shoal.cli.screen import console

    class PlainHeading(Heading):
        """Left-aligned, without a box."""

        def __rich_console__(self, console: Any, options: Any) -> Any:
            yield Text(self.text.plain, "bold cyan" if self.tag == "h1" else "bold")

    class Page(Markdown):
        elements = {**Markdown.elements, "heading_open": PlainHeading}  # noqa: RUF012

    out = console()
    lines = _lines(out, Page(markdown, code_theme="ansi_dark"), min(out.width, 100))
    blank = [not line.plain.strip() for line in lines]
    for k, line in enumerate(lines):
        if not (blank[k] and (k == 0 or blank[k - 1])):  # one blank line at most: rich's markdown prints two
            out.print(line, soft_wrap=True)


def load_all(names: list[str]) -> None:
    """Compiles these envs on all cores, if they are not compiled yet. Errors are left to those who load them."""
    from concurrent.futures import ThreadPoolExecutor

    from shoal import registry
    from shoal.cores import available_threads
    from shoal.errors import ShoalError
    from shoal.native import lib

    def load(name: str) -> None:
        with contextlib.suppress(ShoalError):
            lib.spec_of(registry.find(name))

    lib.best_variant()  # once, before the threads
    with ThreadPoolExecutor(available_threads()) as pool:
        list(pool.map(load, names))


def list_table(names: list[str]) -> int:
    """Prints these envs. The row of one that does not compile has the error."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from shoal import registry
    from shoal.cli.pages import action_text, obs_text, steps_text, summary
    from shoal.cli.screen import console, suggest
    from shoal.errors import ShoalError
    from shoal.native import lib

    out = console()
    rows: list[tuple[str, ...]] = []
    with out.status("loading"):
        load_all(names)
        for name in names:
            try:
                header = registry.find(name)
                spec = lib.spec_of(header)
                cells = (obs_text(spec), action_text(spec), str(spec.agents), steps_text(spec))
                rows.append((name, *cells, summary(header)))
            except ShoalError as error:
                rows.append((name, "", "", "", "", f"does not compile: {str(error).splitlines()[0]}"))
    wide = out.width >= WIDE
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title, right in {"env": 0, "obs": 0, "action": 0, "agents": 1, "max steps": 1}.items():
        table.add_column(
            title, justify="right" if right else "left", no_wrap=True, style="cyan" if title == "env" else ""
        )
    if wide:
        table.add_column("description")
        for row in rows:
            table.add_row(*row)
        out.print(table)
    else:  # the summary on a separate line
        for row in rows:
            table.add_row(*row[:-1])
        lines = _lines(out, table, out.width)
        out.print(lines[0])
        for line, row in zip(lines[1:], rows):
            out.print(line)
            out.print(Padding(Text(row[-1], "dim"), (0, 0, 0, 2), expand=False))
    example = "breakout" if "breakout" in names else names[0]
    out.print(f"\n{len(names)} env{'' if len(names) == 1 else 's'}.")
    suggest(
        out,
        {
            f"shoal envs {example}": "the page of one env",
            "shoal envs --frameworks": "envs of other libraries: atari, procgen, nethack",
            "shoal new my_env": "write your own env",
        },
    )
    return 0


def _lines(out: Any, renderable: Any, width: int) -> list[Any]:
    """The lines that rich would print."""
    from rich.text import Text

    rendered = out.render_lines(renderable, out.options.update_width(width), pad=False)
    return [Text.assemble(*((segment.text, segment.style or "") for segment in line)) for line in rendered]


def list_json(names: list[str]) -> int:
    """Prints `describe` of these envs as JSON; the error of one that does not compile."""
    from shoal import registry
    from shoal.cli.pages import describe
    from shoal.errors import ShoalError

    def entry(name: str) -> dict[str, Any]:
        try:
            return describe(Path(registry.find(name)))
        except ShoalError as error:
            return {"name": name, "error": str(error)}

    load_all(names)
    print(jsonlib.dumps([entry(name) for name in names], indent=2))
    return 0


COMMAND = Command(
    envs,
    order=50,
    examples={
        "shoal envs": "the envs that Shoal comes with",
        "shoal envs breakout": "the page of one env",
        "shoal envs --frameworks": "envs of other libraries: atari, procgen, nethack",
    },
)
