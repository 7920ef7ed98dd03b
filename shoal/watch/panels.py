"""The dashboard's panels of a run as data: those of the terminal (shoal/log), from the last records of its metrics."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from shoal.log.base import RunFacts
from shoal.log.history import History, hint
from shoal.watch.files import Root, number
from shoal.watch.index import Entry, last_records, word

COUNTS = ("num_envs", "num_rows", "num_threads", "num_params", "horizon", "total_steps")


def run_facts(entry: Entry) -> RunFacts:
    """What loggers know of a run, from its run.json. Values of other types are left out."""
    facts, more = entry.facts, {}
    for name in COUNTS:
        if (value := number(facts.get(name))) is not None:
            more[name] = int(value)
    names = facts.get("agents")
    agents = tuple(map(word, names)) if isinstance(names, list) else ()
    groups = {}
    for name, members in (facts.get("groups") or {}).items() if isinstance(facts.get("groups"), dict) else ():
        if isinstance(members, list) and members and all(isinstance(k, int) and 0 <= k < len(agents) for k in members):
            groups[word(name)] = tuple(members)
    return RunFacts(
        folder=entry.path,
        id=entry.path.name,
        env=str(entry.row.get("env", "")),
        algo=str(entry.row.get("algo", "")),
        backend=word(facts.get("backend")),
        device=word(facts.get("device")) or "cpu",
        seed=int(entry.row.get("seed") or 0),
        agents=agents,
        groups=groups,
        **more,  # type: ignore[arg-type]
    )


def panels(root: Root, entry: Entry) -> dict[str, Any]:
    """Progress, time, episodes, learning, agents, league and machine of a run."""
    history = History(run_facts(entry))
    records = last_records(root, entry.path)
    for record in records:
        history.add({key: math.nan if value is None else value for key, value in record.items() if _is_value(value)})
    latest, split = history.latest, history.split()
    step = number(latest.get("step")) or 0.0
    facts = history.facts
    return {
        "facts": {name: getattr(facts, name) for name in (*COUNTS, "backend", "device", "seed", "algo")},
        "step": step,
        "total": facts.total_steps,
        "wall_s": number(latest.get("wall_s")),
        "sps": number(history.speed()),
        "left_s": number(history.left_s) if entry.row.get("status") == "running" else None,
        "update": number(latest.get("iteration")),
        "phase": history.phase(),
        "split": {name: round(share, 4) for name, share in split.items()},
        "hint": hint(facts, split, number(latest.get("wall_s")) or 0.0),
        "episodes": [_ranged(history, key) for key in ["episode/return", "episode/length", *history.stats()]]
        + ([_ranged(history, "eval/return")] if "eval/return" in latest else []),
        "learning": [
            {"key": row.name, "label": row.label, "value": number(latest[row.name])} for row in history.learning()
        ],
        "agents": [{"label": row.name, "value": number(row.mean), "remark": row.remark} for row in history.agents()],
        "league": {
            name: number(latest.get(f"league/{name}"))
            for name in ("rating", "rating_ci95", "win_rate", "members", "games")
        }
        if "league/members" in latest
        else None,
        "machine": {name: number(latest.get(name)) for name in ("cpu_percent", "memory_mb") if name in latest},
        "is_bad": [row.name for row in history.learning() if not math.isfinite(latest[row.name])],
    }


def _is_value(value: Any) -> bool:
    return value is None or number(value) is not None


def _ranged(history: History, key: str) -> dict[str, Any]:
    latest = history.latest
    label = key.removeprefix("episode/").replace("eval/return", "evaluated").replace("_", " ")
    low, high = (number(latest.get(f"{key}{end}")) for end in ("_min", "_max"))
    return {"key": key, "label": label, "value": number(latest.get(key)), "low": low, "high": high}


def checkpoints(root: Root, folder: Path) -> list[int]:
    """The steps of the complete checkpoints, oldest first."""
    from shoal.runs import Run

    inside = folder / "checkpoints"
    return [int(path.name) for path in Run(folder).checkpoints() if root.holds(path)] if root.holds(inside) else []
