"""The league of a run, read from its checkpoint: members, results and ratings. `shoal league` shows it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal import checkpoint as checkpoints
from shoal import runs
from shoal.errors import CheckpointError, ConfigError
from shoal.league.league import read_state, table_of
from shoal.league.ratings import Rating, rises
from shoal.league.table import CrossTable
from shoal.runs import Run


@dataclass(frozen=True)
class LeagueReport:
    """The league of a run at one of its checkpoints."""

    run: Run
    checkpoint: Path
    step: int
    members: int  # of the pool, with the learner's latest weights as one of them
    table: CrossTable  # results and ratings of the training games

    def snapshots(self) -> list[Rating]:
        """The ratings of the snapshots of the learner, oldest first."""
        rated = self.table.ratings()
        return [rated[k] for k, about in enumerate(self.table.about) if about["kind"] == "snapshot"]

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        about: dict[str, Any] = {"run": str(self.run.folder), "env": self.run.env, "checkpoint": self.checkpoint.name}
        about |= {"step": self.step, "members": self.members}
        return {**about, "snapshots_rise": rises(self.snapshots()), **self.table.facts()}


def read_league(
    run: str | Path | Run = "last", checkpoint: str = "last", runs_folder: str | Path = runs.ROOT
) -> LeagueReport:
    """The league of a run.

    Args:
        run: its folder, its id, the name of its env, `last`, or what `train` returned.
        checkpoint: last, best, or a step.
        runs_folder: the folder of all runs.
    """
    trained = run if isinstance(run, Run) else runs.find(run, runs_folder)
    chosen = runs.choose_checkpoint(trained, checkpoint, f"--checkpoint {checkpoint}")
    files, meta = checkpoints.load(chosen, ("state",))
    try:
        state = read_state(files["state"])
        table = table_of(files["state"])
    except CheckpointError as error:
        raise ConfigError(f"{trained.folder} has no league to show: {error}") from None
    return LeagueReport(trained, chosen, int(meta["step"]), len(state["members"]) - len(state["retired"]), table)
