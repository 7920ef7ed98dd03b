"""The reference pages, from dataclasses, signatures and docstrings. scripts/docs writes and checks them."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterator
from typing import Any

import shoal
from shoal.algos.algorithm import ALGORITHMS
from shoal.cli.command import Command, find, verbs
from shoal.config import NUMBER
from shoal.plugins import Plugins, options_type
from shoal.train.options import PLAIN, PLUGIN_TABLES, TABLES, Options

# the public names beside those of `shoal`, by page section
PARTS = {
    "Training": ("shoal.train", ("train", "start", "train_seeds", "evaluate_run", "evaluate_agent", "Callback")),
    "Runs": ("shoal.runs", ("find", "Run")),
    "Trained policies": ("shoal.acting", ("Policy", "Team")),
    "Vector envs": ("shoal.vector.base", ("VecEnv",)),
    "Errors": ("shoal.errors", tuple(importlib.import_module("shoal.errors").__all__)),
}


def pages() -> dict[str, str]:
    """The text of every page, by its file name in docs/reference."""
    return {"options.md": options(), "commands.md": commands(), "python.md": python()}


# ---- options ----


def options() -> str:
    """All options of a run, table by table."""
    lines = [
        "# Options",
        "All options of `shoal train`. An option is a flag (`--train.learning-rate 1e-3`), a key of a TOML file "
        "(`[train] learning_rate = 1e-3`) and an argument of `train` (`train={'learning_rate': 1e-3}`). Counts may be "
        "written as `20M`. *Changes*: the option also takes a [schedule](../schedules.md). Defaults of an env come "
        "from its TOML file and [what it looks like](../defaults.md); `shoal train ENV --help` shows them.",
        "## The run",
        table(Options, "", only=PLAIN),
    ]
    for name in stock(ALGORITHMS):
        kind = ALGORITHMS.find(name).options
        lines += [f"## --train with --algo {name}", first_lines(kind), table(kind, "train.")]
    defaults = Options()
    for name in TABLES:
        if name != "train":
            kind = type(getattr(defaults, name))
            lines += [f"## --{name}", first_lines(kind), table(kind, f"{name}.")]
    for name, (owner, plugins) in PLUGIN_TABLES.items():
        for plugin in stock(plugins):
            kind = options_type(plugins.find(plugin))
            if dataclasses.fields(kind):
                head = f"## --{name} with --{owner}.{name} {plugin}"
                lines += [head, first_lines(kind), table(kind, f"{name}.")]
    return "\n\n".join(lines) + "\n"


def stock(plugins: Plugins) -> list[str]:
    """The plugins of Shoal itself, without those of other packages."""
    found = []
    for name in plugins.names():
        module = getattr(plugins.find(name), "__module__", "") or ""
        update = getattr(plugins.find(name), "update", None)
        if module.startswith("shoal.") or getattr(update, "__module__", "").startswith("shoal."):
            found.append(name)
    return sorted(found)


def table(kind: type[Any], prefix: str, only: tuple[str, ...] = ()) -> str:
    """A table of the fields of an options dataclass."""
    hints = typing.get_type_hints(kind)
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(kind):
        if "help" not in field.metadata or (only and field.name not in only):
            continue
        flag = f"--{prefix}{field.name}".replace("_", "-")
        rows.append(f"| `{flag}` | {default_text(field)} | {cell(meaning(field, hints[field.name]))} |")
    return "\n".join(rows)


def default_text(field: dataclasses.Field[Any]) -> str:
    """The default as it is written on the command line."""
    value = field.default
    if value is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    if value is None or value == "" or value == ():
        return ""
    text = f"{value:,}".replace(",", "_") if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return f"`{text}`"


def meaning(field: dataclasses.Field[Any], hint: Any) -> str:
    """The help, with the choices, the range and whether it may change."""
    facts = field.metadata
    text = [facts["help"]]
    choices = facts["choices"]() if facts.get("choices") else typing.get_args(hint) if is_literal(hint) else ()
    if choices and not all(str(choice) in facts["help"] for choice in choices):
        text.append(f"one of {', '.join(map(str, choices))}")
    low, high = facts.get("low"), facts.get("high")
    if low is not None and high is not None:
        text.append(f"{number(low)} to {number(high)}")
    elif low is not None:
        text.append(f"at least {number(low)}")
    elif high is not None:
        text.append(f"at most {number(high)}")
    if facts.get("may_change"):
        text.append("*changes*")
    assert hint != NUMBER or facts.get("may_change") is not None
    return "; ".join(text)


def number(value: float) -> str:
    return f"{value:,.10g}"


def is_literal(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Literal


# ---- commands ----


def commands() -> str:
    """Every command with its help, its examples and its flags."""
    found = {verb: find(verb) for verb in verbs()}
    own = {verb: command for verb, command in found.items() if command.run.__module__.startswith("shoal.")}
    ordered = sorted(own.items(), key=lambda item: (item[1].order, item[0]))
    lines = [
        "# Commands",
        "`shoal VERB --help` prints the same. Flags that depend on the env are in `--help` alone.",
        "",
    ]
    rows = ["| command | does |", "|---|---|"]
    rows += [f"| [`shoal {verb}`](#shoal-{verb.replace(' ', '-')}) | {cell(one.summary)} |" for verb, one in ordered]
    lines += ["\n".join(rows)]
    for verb, command in ordered:
        lines += [f"## shoal {verb}", *command_text(command)]
    return "\n\n".join(line for line in lines if line) + "\n"


def command_text(command: Command) -> Iterator[str]:
    """The paragraphs of a command's help, then its flags."""
    text, _, arguments = command.help.partition("\nArgs:\n")
    for paragraph in re.split(r"\n\n", text.strip()):
        lines = paragraph.splitlines()
        if any(line.startswith("    ") for line in lines):
            head = [line for line in lines if not line.startswith("    ")]
            if head and head != ["Try:"]:
                yield escape(" ".join(head))
            code = textwrap.dedent("\n".join(line for line in lines if line.startswith("    ")))
            yield f"```sh\n{code}\n```"
        else:
            yield escape(" ".join(lines))
    if arguments:
        yield flags_table(command.run, arguments)


def flags_table(run: Callable[..., Any], text: str) -> str:
    """The arguments of a command, from its signature and its docstring."""
    helps = arguments_of(text)
    rows = ["| argument | default | meaning |", "|---|---|---|"]
    for name, parameter in inspect.signature(run).parameters.items():
        if name not in helps:
            continue
        is_flag = parameter.kind is inspect.Parameter.KEYWORD_ONLY
        shown = f"--{name.replace('_', '-')}" if is_flag else name.upper()
        value = parameter.default
        plain = value in (None, False, "", ()) or value is inspect.Parameter.empty
        rows.append(f"| `{shown}` | {'' if plain else f'`{value}`'} | {cell(helps[name])} |")
    return "\n".join(rows) if len(rows) > 2 else ""


def arguments_of(text: str) -> dict[str, str]:
    """`name: help` of the lines of an Args section; longer helps continue on indented lines."""
    found: dict[str, str] = {}
    name = ""
    for line in textwrap.dedent(text).splitlines():
        if head := re.match(r"(\w+): (.*)", line):
            name = head[1]
            found[name] = head[2]
        elif name and line.startswith(" "):
            found[name] += f" {line.strip()}"
        elif line.strip():
            break
    return found


# ---- Python ----


def python() -> str:
    """The public names of Shoal, with their signatures and docstrings."""
    lines = [
        "# Python",
        "The public names. `import shoal` takes a moment and does not import torch; `shoal.train` does.",
    ]
    lines.append("## shoal")
    for name in shoal.__all__:
        thing = getattr(shoal, name)
        if callable(thing) and not (inspect.isclass(thing) and thing.__module__ != "shoal"):
            lines += entry(f"shoal.{name}", thing)
    for title, (module, names) in PARTS.items():
        lines.append(f"## {title}")
        for name in names:
            lines += entry(f"{module}.{name}", getattr(importlib.import_module(module), name))
    return "\n\n".join(lines) + "\n"


def entry(name: str, thing: Any) -> list[str]:
    """A function; or a class with its public methods."""
    if not inspect.isclass(thing):
        return [f"### {name}", f"```py\n{signature(name.rpartition('.')[2], thing)}\n```", *paragraphs(thing)]
    lines = [f"### {name}", *paragraphs(thing)]
    rows = []
    for member, value in vars(thing).items():
        plain = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if member.startswith("_") or not inspect.isfunction(plain) or not inspect.getdoc(plain):
            continue
        summary = (inspect.getdoc(plain) or "").partition("\n\n")[0].replace("\n", " ")
        shown = member if isinstance(value, property) else signature(member, plain, short=True)
        rows.append(f"| `{shown}` | {cell(summary)} |")
    return [*lines, "\n".join(["| member | does |", "|---|---|", *rows])] if rows else lines


def signature(name: str, thing: Any, short: bool = False) -> str:
    """`name(a, b=1)`, on several lines where it is long."""
    parameters = [p for p in inspect.signature(thing).parameters.values() if p.name != "self"]
    if short:
        marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
        words = [
            f"{marks.get(p.kind, '')}{p.name}" + ("" if p.default is p.empty else f"={plain_default(p.default)}")
            for p in parameters
        ]
        return f"{name}({', '.join(words)})".replace("|", "\\|")
    words, is_keyword = [], False
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and not is_keyword:
            words.append("*")
            is_keyword = True
        is_keyword |= p.kind is p.VAR_POSITIONAL
        mark = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        kind = "" if p.annotation is p.empty else f": {annotation(p.annotation)}"
        equals = " = " if kind else "="
        words.append(f"{mark}{p.name}{kind}" + ("" if p.default is p.empty else f"{equals}{plain_default(p.default)}"))
    result = inspect.signature(thing).return_annotation
    tail = "" if result is inspect.Signature.empty else f" -> {annotation(result)}"
    line = f"{name}({', '.join(words)}){tail}"
    if len(line) <= 100:
        return line
    return f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){tail}"


def annotation(hint: Any) -> str:
    return hint if isinstance(hint, str) else inspect.formatannotation(hint)


def plain_default(value: Any) -> str:
    """A default without addresses or paths of this machine."""
    text = repr(value)
    return "…" if " at 0x" in text or (text.startswith(("PosixPath", "<")) and "runs" not in text) else text


def paragraphs(thing: Any) -> list[str]:
    """A docstring as Markdown: code that is indented stays code; Args becomes a list."""
    text = inspect.getdoc(thing) or ""
    if inspect.isclass(thing) and "__doc__" not in vars(thing):
        text = ""
    lines = []
    for part in text.split("\n\n"):
        head, _, rest = part.partition("\n")
        if head.rstrip() in ("Args:", "Returns:", "Yields:", "Raises:"):
            found = arguments_of(rest)
            if head.startswith("Args") and found:
                lines.append("\n".join(f"- `{name}`: {escape(words)}" for name, words in found.items()))
            else:
                lines.append(f"{head} {escape(' '.join(textwrap.dedent(rest).split()))}")
        elif all(line.startswith("    ") for line in part.splitlines()) or re.match(r"[├└│@]|class ", head):
            lines.append(f"```text\n{textwrap.dedent(part)}\n```")
        else:
            lines.append(escape(" ".join(part.split())))
    return [line for line in lines if line]


# ---- text ----


def first_lines(kind: type[Any]) -> str:
    """The first paragraph of a class's docstring."""
    return escape((inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " "))


def escape(text: str) -> str:
    """Text whose `<` and `*` mean themselves, outside of code."""
    parts = text.split("`")
    return "`".join(
        part.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_") if k % 2 == 0 else part
        for k, part in enumerate(parts)
    )


def cell(text: str) -> str:
    """Text for a cell of a table. `*changes*` is ours."""
    return escape(text).replace("\\*changes\\*", "*changes*").replace("|", "\\|").replace("\n", " ")
