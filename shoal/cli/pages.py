"""The documentation of an env, from its header and its spec: as data, and as a page of markdown.

The terminal (`shoal envs NAME`) and the docs (`scripts/docs`) show the same page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from shoal import registry
from shoal.native import lib
from shoal.spec import Array, Const, EnvSpec, Param

SHOWN_BOUNDS = 8  # for more elements than this only the extreme bounds are shown
FIELDS = r"(?:obs|actions?|rewards?|masks?)"  # names that a header's comment explains as `obs: …`


def describe(header: Path) -> dict[str, Any]:
    """Everything about an env as plain data for JSON. An infinite bound is None."""
    spec = lib.spec_of(header)
    first, rest = registry.summary(header)
    observation = {"dtype": str(spec.obs_dtype), "shape": spec.obs_shape}
    action: dict[str, Any] = {"kind": spec.action_kind}
    if spec.has_float_actions:
        action |= {"size": spec.action_dims[0], "low": _plain(spec.action_low), "high": _plain(spec.action_high)}
        action |= {"choices": spec.action_dims[1:]} if spec.action_kind == "mix" else {}
    else:
        action |= {"choices": spec.action_dims if spec.action_kind == "multi" else spec.action_dims[0]}
    return {
        "name": spec.name,
        "summary": first,
        "description": rest,
        "header": str(header),
        "version": spec.version,
        "gymnasium_id": gymnasium_id(header),
        "agents": spec.agents,
        "groups": {name: list(agents) for name, agents in spec.groups},
        "max_steps": spec.max_steps,
        "observation": {**observation, "low": _plain(spec.obs_low), "high": _plain(spec.obs_high)},
        "action": action,
        "action_mask": spec.mask_size > 0,
        "draws": spec.has_draw,
        "params": [
            {"name": p.name, "type": p.kind, "default": _default(p), "help": p.help, **_allowed(p)} for p in spec.params
        ],
        "consts": [{"name": c.name, "default": c.default, "help": c.help, **_allowed(c)} for c in spec.consts],
        "presets": [{"name": p.name, "settings": p.settings, "help": p.help} for p in spec.presets],
        "stats": [{"name": s.name, "kind": s.kind, "help": s.help} for s in spec.stats],
    }


def obs_text(spec: EnvSpec) -> str:
    """One agent's observation in short: `float32 (4,)`."""
    return f"{spec.obs_dtype} {spec.obs_shape}"


def action_text(spec: EnvSpec) -> str:
    """One agent's action in short: `discrete 2`, `multi (5, 2)`, `box 1` or `box 2, choices (3,)`."""
    if spec.action_kind == "mix":
        return f"box {spec.action_dims[0]}, choices {spec.action_dims[1:]}"
    return f"{spec.action_kind} {spec.action_dims if spec.action_kind == 'multi' else spec.action_dims[0]}"


def steps_text(spec: EnvSpec) -> str:
    """The time limit in short."""
    return str(spec.max_steps) if spec.max_steps else "none"


def summary(header: Path) -> str:
    """The first sentence of the header's comment, capitalized."""
    text = registry.summary(header)[0]
    return text[:1].upper() + text[1:]


def gymnasium_id(header: Path) -> str | None:
    """The Gymnasium id of a known env; None for a header that is not registered."""
    name = header.stem
    if name not in registry.known_names() or registry.find(name).resolve() != header.resolve():
        return None
    id = f"shoal/{registry.title(name)}-v{registry.version(header)}"
    return id if id in gymnasium.registry else None


def page(header: Path) -> str:
    """The page of one env, as markdown."""
    spec = lib.spec_of(header)
    _first, rest = registry.summary(header)
    parts = [
        f"# {spec.name}",
        summary(header),
        *_prose(rest),
        _table(("at a glance", ""), _facts(header, spec)),
        "## Params",
        f"Set by name, one value for all envs or an array with one per env: `{_make(header, spec, example=True)}`.",
        _table(("param", "type", "default", "meaning"), _grouped([_param_row(p) for p in spec.params])),
    ]
    if spec.consts:
        parts += [
            "## Consts",
            "Compile-time values, set like params. Another value recompiles the env, which needs a C compiler.",
            _table(
                ("const", "default", "meaning"),
                [(f"`{c.name}`", str(c.default), c.help + _range_text(c)) for c in spec.consts],
            ),
        ]
    if spec.presets:
        name = spec.presets[-1].name
        parts += [
            "## Presets",
            f'Named sets of values: `{_make(header, spec)[:-1]}, preset="{name}")`, or on the command line '
            f"`--env.preset {name}`. Params and consts that are given as well override them.",
            "\n".join(f"- **{p.name}**: {p.help}. ({_settings(p.settings)})" for p in spec.presets),
        ]
    if spec.stats:
        parts += [
            "## Stats",
            'One number per episode, in `infos["final_info"]`; `envs.drain_stats()` summarizes them.',
            _table(
                ("stat", "over the episode", "meaning"),
                _grouped([(s.name, s.kind, s.help) for s in spec.stats]),
            ),
        ]
    parts += [
        "## Use it",
        f"```python\nimport shoal\n\nenvs = {_make(header, spec)}\nobs, infos = envs.reset(seed=0)\n```",
    ]
    return "\n\n".join(parts) + "\n"


def index(headers: Sequence[Path]) -> str:
    """The table of all envs as markdown, each linked to its page."""
    rows = []
    for header in headers:
        spec = lib.spec_of(header)
        cells = (obs_text(spec), action_text(spec), str(spec.agents), steps_text(spec), summary(header))
        rows.append((f"[{spec.name}]({spec.name}.md)", *cells))
    intro = "Every env is one C header in `shoal/envs/`. `shoal envs NAME` shows these pages in the terminal."
    table = _table(("env", "obs", "action", "agents", "max steps", "what it is"), rows)
    return f"# The envs\n\n{intro}\n\n{table}\n"


def _agents_text(agents: Sequence[int]) -> str:
    return f"agent {agents[0]}" if len(agents) == 1 else f"agents {agents[0]} to {agents[-1]}"


def _facts(header: Path, spec: EnvSpec) -> list[tuple[str, str]]:
    low, high = _bounds(spec.obs_low), _bounds(spec.obs_high)
    obs = f"`{obs_text(spec)}`, " + ("unbounded" if (low, high) == ("-inf", "inf") else f"from {low} to {high}")
    if spec.has_float_actions:
        action = f"`{action_text(spec)}`, from {_bounds(spec.action_low)} to {_bounds(spec.action_high)}"
    else:
        action = f"`{action_text(spec)}`: " + ", ".join(f"0 to {n - 1}" for n in spec.action_dims)
    facts = [("observation", obs), ("action", action)]
    if spec.mask_size:
        facts.append(("action mask", f'{spec.mask_size} flags in `infos["action_mask"]`: 1 where a choice is allowed'))
    if spec.groups:
        facts.append(("groups", "; ".join(f"{name}: {_agents_text(agents)}" for name, agents in spec.groups)))
    many = f", so a batch has {spec.agents} rows per env" if spec.agents > 1 else ""
    limit = f"{spec.max_steps} steps, then truncated" if spec.max_steps else "none"
    id = gymnasium_id(header)
    advice = f'none; `shoal.register("{spec.name}", "{_shown(header)}")` gives it one'
    return [
        *facts,
        ("agents", f"{spec.agents}{many}"),
        ("time limit", limit),
        ("pictures", '`render_mode="rgb_array"`' if spec.has_draw else "none"),
        ("Gymnasium id", f"`{id}`" if id else advice),
    ]


def _make(header: Path, spec: EnvSpec, example: bool = False) -> str:
    """A call of shoal.make for this env; with `example`, one that sets a param."""
    name = spec.name if gymnasium_id(header) else _shown(header)
    if not example:
        return f'shoal.make("{name}", num_envs=4096)'
    param = next((p for p in spec.params if p.name != "max_steps"), spec.params[0])
    return f'shoal.make("{name}", {param.name}={_number(param.default, param.kind)})'


def _shown(header: Path) -> str:
    """A header's path, relative to the current folder if it is inside."""
    folder = Path.cwd()
    return f"./{header.relative_to(folder)}" if header.is_relative_to(folder) else str(header)


def _prose(text: str) -> Iterable[str]:
    """The paragraphs of a header's comment; `obs: … action: …` becomes a list."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        if re.match(FIELDS + ":", paragraph):
            items = re.split(rf"(?:\n|(?<=\.) )(?={FIELDS}: )", paragraph)  # at a line or after a sentence
            yield "\n".join(re.sub(rf"^({FIELDS}):", r"- **\1**:", " ".join(item.split())) for item in items)
        elif paragraph:
            yield paragraph


def _param_row(param: Param) -> tuple[str, str, str, str]:
    meaning = param.help
    if param.choices:
        meaning += "; one of " + ", ".join(f"{word} ({number})" for number, word in enumerate(param.choices))
    default = param.choices[int(param.default)] if param.choices else _number(param.default, param.kind)
    return param.name, param.kind, default, meaning + _range_text(param)


def _range_text(entry: Param | Const) -> str:
    if (entry.low, entry.high) in ((-np.inf, np.inf), (0, 1)):  # a flag's help says what 1 means
        return ""
    return f" ({entry.low:,.10g} to {entry.high:,.10g})"


def _allowed(entry: Param | Const) -> dict[str, Any]:
    """The allowed values of a param or const, if they are declared."""
    limits = {"low": entry.low, "high": entry.high} if np.isfinite([entry.low, entry.high]).all() else {}
    return {**limits, **({"choices": entry.choices} if isinstance(entry, Param) and entry.choices else {})}


def _settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"`{name}={value}`" for name, value in settings.items()) or "The defaults."


def _grouped(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """One row for consecutive rows that differ only in their number, `energy_0` to `energy_7`. Names become code.

    The defaults of such a group (the third of four cells) become a list; equal ones at its end are not repeated.
    """
    groups: list[list[tuple[str, ...]]] = []
    for row in rows:
        stem, number = re.fullmatch(r"(.*?)(?:_(\d+))?", row[0]).groups()  # type: ignore[union-attr]
        last = groups[-1][-1] if groups else ("",)
        follows = number and last[0] == f"{stem}_{int(number) - 1}" and (last[1], last[-1]) == (row[1], row[-1])
        if follows:
            groups[-1].append(row)
        else:
            groups.append([row])
    merged: list[tuple[str, ...]] = []
    for group in groups:
        first, last = group[0], group[-1]
        if len(group) == 1:
            merged.append((f"`{first[0]}`", *first[1:]))
            continue
        cells = list(first[1:])
        if len(first) == 4:
            values = [row[2] for row in group]
            while len(values) > 1 and values[-1] == values[-2]:
                values.pop()
            cells[1] = ", ".join(values) + (", …" if 1 < len(values) < len(group) else "")
        merged.append((f"`{first[0]}` to `{last[0]}`", *cells))
    return merged


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(re.sub(r"([|<*])", r"\\\1", cell) for cell in cells) + " |"

    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)])


def _default(param: Param) -> float | int:
    return int(param.default) if param.kind == "int" else float(str(np.float32(param.default)))


def _number(value: float, kind: str = "float") -> str:
    return str(int(value)) if kind == "int" else f"{value:.6g}"


def _bounds(values: Array) -> str:
    """One bound for all elements, one per element in brackets, or the extremes of many."""
    flat = np.unique(values) if values.size > SHOWN_BOUNDS else values.reshape(-1)
    numbers = [_number(float(value)) for value in flat]
    if len(set(numbers)) == 1:
        return numbers[0]
    return f"{numbers[0]} .. {numbers[-1]}" if values.size > SHOWN_BOUNDS else f"({', '.join(numbers)})"


def _plain(values: Array) -> Any:
    """Numbers for JSON: floats as short as float32 allows, None for an infinite one."""
    if values.ndim:
        return [_plain(value) for value in values]
    number = float(str(np.float32(values)))
    return None if not np.isfinite(number) else number
