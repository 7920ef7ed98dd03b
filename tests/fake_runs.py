"""Run folders as a training would leave them, made up."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from shoal.runs import Run
from tests.demo_dashboard import records


def fake_run(root: Path, env: str = "breakout", id: str = "a", *, seed: int = 0, count: int = 100, **more: Any) -> Run:
    """`more`: algo, status (None: no summary), epochs, eval, started, scale (of the return), nan (a record without)."""
    folder = root / env.replace(":", "-") / id
    folder.mkdir(parents=True)
    facts = {"id": id, "env": env, "algo": more.get("algo", "ppo"), "seed": seed, "pid": more.get("pid", os.getpid())}
    facts["started"] = more.get("started", "2026-11-15T12:00:00+00:00")
    (folder / "run.json").write_text(json.dumps(facts))
    (folder / "config.toml").write_text(f"seed = {seed}\n[train]\nepochs = {more.get('epochs', 4)}\n")
    lines = []
    for k, record in enumerate(records(count, seed=seed)):
        record["episode/return"] = None if k == more.get("nan") else record["episode/return"] * more.get("scale", 1.0)
        lines.append(json.dumps(record) + "\n")
    (folder / "metrics.jsonl").write_text("".join(lines))
    status = more.get("status", "finished")
    if status:
        step, wall = record["step"], record["wall_s"]
        summary = {
            "status": status,
            "step": step,
            "wall_s": wall,
            "sps": step / wall,
            "eval": more.get("eval"),
            "reason": "",
        }
        (folder / "summary.json").write_text(json.dumps(summary))
    return Run(folder)
