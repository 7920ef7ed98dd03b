"""The files of a run that say what it is: config.toml, run.json, policy.json; and the facts that loggers get."""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import shoal
from shoal import config, entry, runs
from shoal.cores import available_cores
from shoal.errors import ConfigError
from shoal.log import MetricRow, RunFacts
from shoal.names import shortened
from shoal.runs import Run
from shoal.train import named, policy_file
from shoal.train.envs import device_of
from shoal.train.options import as_tables, unsaved
from shoal.train.trainer import Trainer


def env_name(env: Any) -> str:
    """The name of an env, or of the function that makes it."""
    return str(env) if isinstance(env, (str, Path)) else getattr(env, "__name__", type(env).__name__)


def run_to_resume(env: Any, resume: Any, root: Path) -> Run | None:
    """The run that `--resume` names; None: a new run."""
    if resume is None or isinstance(resume, Run):
        return resume
    if str(resume) != "auto":
        return runs.find(resume, root)
    return runs.find_unfinished(env_name(env), root)


def check_env(run: Run, env: Any, name: str) -> None:
    """Raises if a run is resumed with a name of another env. Classes and functions may have been renamed or moved."""
    trained = entry.trained_env(str(run.facts.get("env", "")))
    if isinstance(env, (str, Path)) and run.facts.get("env_is_a_name") and name != trained:
        raise ConfigError(
            f"{run.id} is a run of {shortened(trained)}, not of {shortened(name)}, and is resumed with its own env: "
            f"train({trained!r}, resume=...). A new run may start from its weights: train({str(env)!r}, init=...)."
        )


def describe(
    run: Run, trainer: Trainer, places: named.Places, given: Mapping[str, Any] | None = None, *, is_new: bool
) -> None:
    """Writes config.toml, run.json and policy.json. `given` are the policy and reward that were passed from Python."""
    env, options = trainer.env, trainer.options
    runs.write_atomic(run.folder / "config.toml", config.write_toml(as_tables(options)).encode())
    facts: dict[str, Any] = dict(run.facts) if not is_new else {"started": time.strftime("%Y-%m-%dT%H:%M:%S")}
    facts.setdefault("started_s", time.time())  # since 1970; orders runs that start in the same second
    facts |= {"id": run.id, "env": places.env.name or env_name(env), "env_is_a_name": bool(places.env.name)}
    facts |= {"algo": options.algo, "lost": list(places.lost), "lost_to_resume": list(places.lost_to_resume)}
    facts |= {"seed": options.seed, "device": device_of(options), "command": sys.argv, "commit": runs.commit()}
    facts |= {"pid": os.getpid(), "pid_began": runs.process_began(os.getpid())}
    for what, part in (given or {}).items():
        if part is not None and not getattr(places, what).name:
            facts[f"custom_{what}"] = env_name(part)
    if trainer.init is not None:
        facts["init"] = trainer.init.facts()
    facts["unsaved_env_options"] = unsaved(options.env)
    facts["versions"] = {
        "shoal": shoal.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    facts["machine"] = {"system": platform.platform(), "cores": available_cores()}
    known = dataclasses.asdict(run_facts(run, trainer))
    shown = ("backend", "num_envs", "num_rows", "num_threads", "num_params", "horizon", "total_steps")
    facts |= {name: known[name] for name in shown} | agent_facts(trainer)
    run.write("run.json", facts)
    # before the first step: a run that is killed can be loaded
    policy_file.write(run, trainer, (given or {}).get("policy"))
    for name in ("facts", "config"):  # both are read again
        run.__dict__.pop(name, None)


class KeptFiles:
    """What config.toml, run.json and policy.json hold: without them nobody can use the checkpoints of a run."""

    def __init__(self, folder: Path) -> None:
        paths = [folder / name for name in ("config.toml", "run.json", "policy.json")]
        self.contents = {path: path.read_bytes() for path in paths if path.is_file()}

    def restore(self) -> list[str]:
        """Writes those that were deleted again, and returns their names."""
        missing = [path for path in self.contents if not path.exists()]
        for path in missing:
            path.parent.mkdir(parents=True, exist_ok=True)
            runs.write_atomic(path, self.contents[path])
        return [path.name for path in missing]


def run_facts(run: Run, trainer: Trainer) -> RunFacts:
    """The facts about a run that loggers get before its first step."""
    options, metrics = trainer.options, trainer.algorithm.metrics
    return RunFacts(
        folder=run.folder,
        id=run.id,
        env=shortened(env_name(trainer.env)),
        algo=options.algo,
        backend=trainer.vec.backend,
        device=str(trainer.device),
        seed=options.seed,
        num_envs=trainer.num_envs,
        num_rows=trainer.num_rows,
        horizon=options.train.horizon,
        num_threads=trainer.vec.parallelism,
        total_steps=options.train.total_steps,
        num_params=trainer.num_params,
        resumed_from=trainer.step,
        metrics=tuple(MetricRow(name, metric.label, metric.short) for name, metric in metrics.items()),
        config=as_tables(options),
        **agent_facts(trainer),
    )


def agent_facts(trainer: Trainer) -> dict[str, Any]:
    """The names of the agents of an env with several, their groups, and the agents of each policy."""
    if trainer.agents == 1:
        return {}
    names = tuple(str(name) for name in trainer.vec.agent_spaces.agents)
    policies = {role.name: role.agents or tuple(range(trainer.agents)) for role in trainer.roles}
    return {
        "agents": names,
        "groups": trainer.groups,
        "policies": policies if len(policies) > 1 else {},
        "opponents": tuple(names[seat] for seat in sorted(trainer.opponents)),
    }
