"""The best checkpoint of a run: what selects it, and its score.

Steps alone decide, never the clock, so that a run that repeats has the same best checkpoint. Without evaluations during
training, policies are compared at fixed steps (`is_compared`). The best one so far is a copy in memory until the next
checkpoint is written: comparing costs no time of the disk.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from shoal import checkpoint, runs
from shoal.runs import Run
from shoal.train.league_members import is_self_play
from shoal.train.options import Options

BY_TRAINING = "sampled return in the latest training episodes"
NEWEST = "the newest one: in self-play the return depends on the opponents"
BY_TRAINING_BEFORE = ("", None, "sampled return in training")  # what older versions wrote
RATIO = 1.1  # of the steps at which two policies are compared, one after the other


def is_compared(before: int, step: int) -> bool:
    """Whether a policy is compared at a step: one of 1, 1.1, 1.21 ... lies between it and the step before."""
    return step > 0 and (before <= 0 or math.log(step) // math.log(RATIO) > math.log(before) // math.log(RATIO))


@dataclass(frozen=True)
class Candidate:
    """A policy whose score is the best so far, and which no checkpoint holds yet."""

    step: int
    score: float
    weights: dict[str, Tensor]
    facts: dict[str, Any]  # for its meta.json


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
        self.candidate: Candidate | None = None

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

    def compare(self, step: int, score: float, weights: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Keeps a copy of a policy if its score is the best so far."""
        if self.is_reached_by(score):
            copies = {name: weight.detach().clone() for name, weight in weights.items()}
            self.score, self.candidate = score, Candidate(step, score, copies, {**facts, "score": score})

    def write(self, step: int) -> None:
        """Writes the copy, if there is one of a step before this one, as a checkpoint with weights alone."""
        if (one := self.candidate) is not None and one.step < step:
            path = checkpoint.save(self.folder, one.step, {"weights": one.weights}, one.facts, keep=0)
            self.candidate = None
            self.mark(path, one.score)

    def mark_saved(self, path: Path, step: int) -> None:
        """Makes the checkpoint of a step the best one if the copy is of this step: the checkpoint has it, too."""
        if (one := self.candidate) is not None and one.step == step:
            self.candidate = None
            self.mark(path, one.score)

    def mark(self, path: Path, score: float) -> None:
        """Makes a checkpoint the best one if its score is."""
        if self.is_reached_by(score):
            self.score = score
            checkpoint.mark_best(self.folder, path, score, self.selected_by)
            checkpoint.prune(self.folder, self.keep)  # the best one so far may go now

    def forget(self) -> None:
        """Forgets scores of training that later ones cannot be compared with: the next score is the best."""
        if self.selected_by == BY_TRAINING:
            self.score = self.candidate = None
            with contextlib.suppress(OSError):
                (self.folder / "best.json").unlink()

    def facts(self) -> dict[str, Any] | None:
        """Its step and score; None if no checkpoint has a score."""
        if self.score is None or (path := self.run.best) is None:
            return None
        return {"step": runs.checkpoint_step(path), "score": self.score}
