"""Runs side by side: which belong to one line, what their options are, and in which they differ."""

from __future__ import annotations

from typing import Any

from shoal.plot import NOT_COMPARED, group_key, group_labels
from shoal.stats import t_975
from shoal.watch.index import Entry, Index


def compare(index: Index, named: dict[str, Entry]) -> dict[str, Any]:
    """Groups of runs that differ in their seed alone, the options of all, and the names of those that differ."""
    options = {name: _options(index, entry) for name, entry in named.items()}
    groups: dict[tuple[str, str, str], list[str]] = {}
    for name, entry in named.items():
        key = group_key(str(entry.row.get("env")), str(entry.row.get("algo")), options[name])
        groups.setdefault(key, []).append(name)
    labels = group_labels(list(groups))
    all_names = dict.fromkeys(key for table in options.values() for key in table if key not in NOT_COMPARED)
    table = {key: [options[name].get(key) for name in named] for key in all_names}
    return {
        "runs": {name: entry.row for name, entry in named.items()},
        "groups": [{"label": label, "runs": members} for label, members in zip(labels, groups.values())],
        "options": table,
        "differing": [key for key, values in table.items() if any(value != values[0] for value in values)],
        "t": [t_975(freedom) for freedom in range(1, 61)],  # for intervals over seeds
    }


def _options(index: Index, entry: Entry) -> dict[str, Any]:
    options = dict(index.options.of(entry.path))
    envs = entry.facts.get("num_envs")
    if isinstance(envs, int):
        options["vec.num_envs"] = envs  # 0 in config.toml: Shoal chose
    return options
