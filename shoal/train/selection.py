"""The best checkpoint of a run: what selects it, and its score."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from shoal import checkpoint, runs
from shoal.runs import Run
from shoal.train.league_members import is_self_play
from shoal.train.options import Options

BY_TRAINING = "sampled return in the latest training episodes"
NEWEST = "the newest one: in self-play the return depends on the opponents"
BY_TRAINING_BEFORE = ("", None, "sampled return in training")  # what older versions wrote


class BestCheckpoint:
    """The checkpoint with the highest score so far; also that of a run that is resumed."""

    def __init__(self, run: Run, options: Options) -> None:
        self.run, self.keep = run, options.save.keep
        self.folder = run.folder / "checkpoints"
        self.selected_by = BY_TRAINING
        if options.eval.every:
            self.selected_by = f"{'greedy' if options.eval.greedy else 'sampled'} return in evaluation"
        if is_self_play(options):  # no checkpoint is marked: the best one of a run without a mark is the newest
            self.selected_by = NEWEST
        self.score = self._score_before()

    def _score_before(self) -> float | None:
        """The score of the best checkpoint so far; None if there is none, or if another return selected it."""
        with contextlib.suppress(Exception):
            best = json.loads((self.folder / "best.json").read_text())
            by = best.get("by")
            if (BY_TRAINING if by in BY_TRAINING_BEFORE else by) == self.selected_by:
                return float(best["score"])
        return None

    def is_reached_by(self, score: float) -> bool:
        """Whether a score is at least the best one. In self-play none is."""
        if self.selected_by == NEWEST:
            return False
        return self.score is None or score >= self.score

    def mark(self, path: Path, score: float) -> None:
        """Makes a checkpoint the best one if its score is."""
        if self.is_reached_by(score):
            self.score = score
            checkpoint.mark_best(self.folder, path, score, self.selected_by)
            checkpoint.prune(self.folder, self.keep)  # the best one so far may go now

    def forget(self) -> None:
        """Forgets scores of training that later ones cannot be compared with: the next score is the best."""
        if self.selected_by == BY_TRAINING:
            self.score = None
            with contextlib.suppress(OSError):
                (self.folder / "best.json").unlink()

    def facts(self) -> dict[str, Any] | None:
        """Its step and score; None if no checkpoint has a score."""
        if self.score is None or (path := self.run.best) is None:
            return None
        return {"step": runs.checkpoint_step(path), "score": self.score}
