"""A runner of sweeps whose runs end at once, for tests of what a sweep does with their results."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import ClassVar

from shoal.runs import folder_name
from shoal.sweep.runners import Outcome


def score_of(options):
    train = options.train
    return 100.0 - 10 * abs(math.log10(train.learning_rate) + 2.5) - train.epochs + (options.seed % 7) / 10


class MadeUp:
    """A runner whose runs end at once: their folders are written, nothing is trained."""

    plan: ClassVar[dict] = {}  # by (name, attempt): an Outcome in place of success
    polls = 0  # that a job takes
    started: ClassVar[list] = []

    def __init__(self, workers=1, logs=None):
        self.workers, self.jobs = workers, {}

    def free(self):
        return self.workers - len(self.jobs)

    def start(self, job):
        self.jobs[job.name] = [job, self.polls]
        self.started.append((job.name, job.attempt))

    def poll(self):
        ended = []
        for name, slot in list(self.jobs.items()):
            slot[1] -= 1
            if slot[1] < 0:
                del self.jobs[name]
                job = slot[0]
                ended.append((job, self.plan.get((name, job.attempt)) or self.write(job)))
        return ended

    def write(self, job):
        folder = Path(job.root) / folder_name(job.env) / job.run_id
        folder.mkdir(parents=True, exist_ok=True)
        summary = {"status": "finished", "step": 1000, "wall_s": 1.0 + job.options.train.epochs, "reason": ""}
        summary["eval"] = {"return": score_of(job.options), "mode": "greedy"}
        (folder / "run.json").write_text("{}")
        (folder / "summary.json").write_text(json.dumps(summary))
        (folder / "curve.json").write_text(json.dumps([[500.0, 1.0, score_of(job.options) / 2]]))
        return Outcome("finished")

    def progress(self):
        return {name: {"step": 100, "return": 1.0} for name in self.jobs}

    def stop(self, at_once=False):
        pass
