"""`--log wandb`: Weights & Biases, online or offline (`wandb sync FOLDER` uploads later)."""

from __future__ import annotations

import importlib
import inspect
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shoal import config
from shoal.config import opt
from shoal.errors import ConfigError
from shoal.log.base import Logger, LoggerType, Record, RunFacts, need

ID_FILE = "wandb-id"


@dataclass(frozen=True)
class Options:
    """Options of `--log wandb`."""

    # online is W&B's default too. Without an account `check` raises and says what to do.
    mode: Literal["online", "offline", "disabled"] = opt(
        "online", "online uploads while training, offline writes to the run's folder, disabled does nothing"
    )
    project: str = opt("shoal", "project that the run belongs to")
    entity: str = opt("", "user or team that owns the project; none: your default")
    name: str = opt("", "name of the run; none: its env and id")


class Wandb(Logger):
    """A run of W&B."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def log(self, record: Record) -> None:
        """Sends the numbers of one interval."""
        self.run.log(dict(record), step=int(record.get("step", 0)))

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Ends the run. One without a summary is marked as failed."""
        is_success = summary is not None and summary.get("status") != "failed"
        if summary:
            self.run.summary.update({f"summary/{key}": value for key, value in summary.items() if value is not None})
        self.run.finish(exit_code=0 if is_success else 1)


def check(options: Options | None = None, **fields: Any) -> None:
    """Raises ConfigError if the package is missing or nobody is logged in: W&B would wait at a prompt."""
    options = options or _from_fields(fields)
    need("wandb", "wandb")
    if options.mode == "online" and not _has_account(importlib.import_module("wandb")):
        raise ConfigError("wandb has no account on this machine. Run 'wandb login', or use --wandb.mode offline.")


def open(facts: RunFacts, options: Options | None = None, **fields: Any) -> Wandb:
    """Starts a run, or after a resume continues the one with the same id. `fields` are single options."""
    options = options or _from_fields(fields)
    check(options)
    wandb = importlib.import_module("wandb")
    run = wandb.init(
        project=options.project,
        entity=options.entity or None,
        name=options.name or f"{facts.env} {facts.id}",
        id=_id(facts),
        group=facts.env,
        dir=str(facts.folder),
        config={**facts.config, "run": {"env": facts.env, "algo": facts.algo, "seed": facts.seed}},
        mode=options.mode,
        resume="allow",
        settings=wandb.Settings(console="off", silent=True),  # the dashboard writes to the screen
    )
    return Wandb(run)


def _id(facts: RunFacts) -> str:
    """W&B's id of a run, which stays in the run's folder for a resume.

    It has a random part: the run of another folder, machine or colleague may have the same name, and W&B would take the
    two for one and drop the steps that it has already.
    """
    path = facts.folder / ID_FILE
    if path.is_file():
        return path.read_text().strip()
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{facts.env}-{facts.id}")[:100]
    is_older = facts.resumed_from and (facts.folder / "wandb").is_dir()  # its id was its name
    chosen = name if is_older else f"{name}-{secrets.token_hex(4)}"
    path.write_text(f"{chosen}\n")
    return chosen


def _has_account(wandb: Any) -> bool:
    """Whether W&B finds credentials. Uses no prompt and no network."""
    if getattr(wandb, "run", None) is not None and hasattr(wandb, "login"):
        return True  # already logged in: login() would do nothing
    login = getattr(wandb, "login", None)
    if (
        login is not None and "prompt" in inspect.signature(login).parameters
    ):  # versions in which wandb.api is deprecated
        return bool(login(prompt=False, verify=False))
    return bool(wandb.api.api_key)


def _from_fields(fields: Mapping[str, Any]) -> Options:
    return config.from_dict(Options, {name: value for name, value in fields.items() if value is not None}, "wandb")


LOGGER = LoggerType(open, Options, check)
