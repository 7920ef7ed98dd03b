"""Pages of frameworks for `shoal envs`: the table of all, the envs of one, and one env."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from shoal import entry
from shoal.errors import ShoalError
from shoal.integrations.framework import FRAMEWORKS, Framework, framework


def all_frameworks() -> list[Framework]:
    """Every framework, those of other packages last."""
    return [framework(prefix) for prefix in FRAMEWORKS.names()]


def describe(one: Framework) -> dict[str, Any]:
    """A framework as plain values."""
    references = [vars(reference) for reference in one.references]
    return {
        "prefix": one.prefix,
        "title": one.title,
        "installed": one.is_installed,
        "problem": one.problem(),
        "install": list(one.commands),
        "example": f"{one.prefix}:{one.example}",
        "preprocessing": one.preprocessing,
        "network": one.network,
        "options": {name: dict(table) for name, table in one.options.items()},
        "references": references,
        "notes": list(one.notes),
    }


def show_all(out: Any) -> None:
    """Prints one row for each framework: whether it is installed, and otherwise the command."""
    from rich.table import Table
    from rich.text import Text

    from shoal.cli.screen import suggest

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("framework", style="cyan", no_wrap=True)
    table.add_column("installed", no_wrap=True)
    table.add_column("envs, and how to install them")
    frameworks = all_frameworks()
    with out.status("looking for packages"):
        problems = {one.prefix: one.problem() for one in frameworks}
    for one in frameworks:
        problem = problems[one.prefix]
        what = Text(one.title)
        if problem:
            what.append(f"\n{one.advice}", "dim")
        table.add_row(f"{one.prefix}:", "no" if problem else "yes", what)
    out.print(table)
    have = [one for one in frameworks if not problems[one.prefix]]
    out.print(f"\n{len(have)} of {len(frameworks)} frameworks can be used here.")
    shown = next((one for one in have if one.prefix == "atari"), have[0])
    suggest(
        out,
        {
            f"shoal envs {shown.prefix}:": "its envs",
            f"shoal train {shown.prefix}:{shown.example}": "train with its network and options",
        },
    )


def show_names(out: Any, one: Framework) -> None:
    """Prints the names of a framework's envs in columns."""
    from rich.columns import Columns

    from shoal.cli.screen import suggest

    one.check()
    names = one.names()
    out.print(f"{one.prefix}: {one.title}\n")
    out.print(Columns(names, padding=(0, 2), column_first=True))
    out.print(f"\n{len(names)} envs." if names else "No envs are installed. " + " ".join(one.notes[:1]))
    example = one.example if one.example in names or not names else names[0]
    suggest(
        out,
        {
            f"shoal envs {one.prefix}:{example}": "the page of one env",
            f"shoal train {one.prefix}:{example}": "train a policy",
        },
    )


def page(env: str) -> str:
    """The page of one env, as Markdown."""
    prefix, _, name = env.partition(":")
    one = framework(prefix)
    lines = [f"# {env}", "", f"{one.title[:1].upper()}{one.title[1:]}.", ""]
    maker = one.find(name)
    shown = getattr(maker, "name", name)
    facts = {"preprocessing": one.preprocessing, "network": one.network, **_spaces(f"{prefix}:{shown}")}
    lines += [f"- **{key}**: {text}" for key, text in facts.items()]
    lines += [f"- **{ref.env}**, published: {ref.score:g} ({ref.what}; {ref.source})" for ref in one.references]
    params = {key: text for key, text in entry.params_of(env).items() if key != "render_mode"}
    if params:
        flags = [f"--env.{key.replace('_', '-')}{f' {text}' if text else ''}" for key, text in params.items()]
        lines += ["", "## Params", "", "```sh", *flags, "```"]
    if options := entry.framework_options(env):
        lines += ["", "## Default options", "", "```toml", *_toml(options), "```"]
    if one.notes:
        lines += ["", "## Notes", "", *(f"- {note}" for note in one.notes)]
    lines += ["", "## Use", "", "```sh", f"shoal train {prefix}:{shown}", f"shoal eval {prefix}:{shown} --agent random"]
    return "\n".join([*lines, "```"])


def _spaces(env: str) -> dict[str, str]:
    """What one env observes and does."""
    try:
        vec = entry.make(env, 1, backend="serial")
    except ShoalError as error:
        return {"cannot be made": str(error).splitlines()[0]}
    agents = vec.agents_per_env
    facts = {"observation": space_text(vec.single_observation_space), "action": space_text(vec.single_action_space)}
    vec.close()
    return {**facts, "agents": str(agents)} if agents > 1 else facts


def space_text(space: Any) -> str:
    """A space as Markdown: the parts of a Dict as a list, equal numbers of choices once."""
    if isinstance(space, spaces.Dict):
        return "".join(f"\n  - `{name}`: {space_text(part)}" for name, part in space.spaces.items())
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.size > 1 and len(np.unique(space.nvec)) == 1:
        return f"MultiDiscrete, {'x'.join(map(str, space.nvec.shape))} choices of {space.nvec.flat[0]} each"
    return " ".join(str(space).split())


def _toml(options: dict[str, Any]) -> list[str]:
    import tomli_w

    return tomli_w.dumps(options).strip().splitlines()
