"""`--log wandb`: Weights & Biases, also offline (`wandb sync FOLDER` uploads later)."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import Any

from shoal.errors import ConfigError, did_you_mean
from shoal.log.base import Record, RunFacts, need

MODES = ("online", "offline", "disabled")


class Wandb:
    """A run of W&B."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def log(self, record: Record) -> None:
        """Sends the numbers of one interval."""
        self.run.log(dict(record), step=int(record.get("step", 0)))

    def note(self, text: str) -> None:
        """Numbers only."""

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Ends the run; one that broke off is marked as failed."""
        good = summary is not None and summary.get("status") != "failed"
        if summary:
            self.run.summary.update({f"summary/{key}": value for key, value in summary.items() if value is not None})
        self.run.finish(exit_code=0 if good else 1)


def check(project: str = "shoal", entity: str | None = None, name: str | None = None, mode: str = "online") -> None:
    """Raises where the package is missing, the mode is unknown, or nobody is logged in: W&B would ask at the prompt."""
    if mode not in MODES:
        raise ConfigError(f"wandb mode '{mode}'.{did_you_mean(mode, MODES)} It is one of {', '.join(MODES)}.")
    need("wandb", "wandb")
    if mode == "online" and not importlib.import_module("wandb").api.api_key:
        raise ConfigError("wandb has no account on this machine. Run 'wandb login', or use the mode offline.")


def open(
    facts: RunFacts,
    *,
    project: str = "shoal",
    entity: str | None = None,
    name: str | None = None,
    mode: str = "online",
) -> Wandb:
    """Begins a run, or goes on with the one of the same id after a resume."""
    check(project, entity, name, mode)
    wandb = importlib.import_module("wandb")
    run = wandb.init(
        project=project,
        entity=entity,
        name=name or f"{facts.env} {facts.id}",
        id=re.sub(r"[^A-Za-z0-9_-]+", "-", f"{facts.env}-{facts.id}"),
        group=facts.env,
        dir=str(facts.folder),
        config={**facts.config, "run": {"env": facts.env, "algo": facts.algo, "seed": facts.seed}},
        mode=mode,
        resume="allow",
        settings=wandb.Settings(console="off", silent=True),  # the screen is the dashboard's
    )
    return Wandb(run)
