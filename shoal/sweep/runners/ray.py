"""Trains trials on a Ray cluster: each in an actor, which starts and watches a process as the local runner does.

Ray finds a place with the CPUs (and the GPU) of a trial, and says when a node is lost: the driver then runs the trial
again, from its last checkpoint. Where nodes do not share the sweep's folder, a trial trains in a temporary folder of
its node, and the driver gets a copy of the run whenever it has a new checkpoint, and at its end.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import sys
import time
from pathlib import Path
from typing import Any

import cloudpickle

from shoal.errors import ConfigError
from shoal.runs import folder_name
from shoal.sweep.runners import Job, Outcome
from shoal.sweep.runners.remote import Packed, Report, TrialActor, pack_folder, put_back, unpack_folder
from shoal.train.envs import device_of
from shoal.train.run_files import env_name
from shoal.vector import ray_cluster
from shoal.vector.ray_cluster import RayOptions

ASK_S = 0.3  # between two questions to an actor
STOP_S = 75.0  # for trials to save a checkpoint
NEEDS = "--on ray"


class RayRunner:
    """As many trials at a time as `--workers`; 0: as the cluster has CPUs for."""

    def __init__(self, workers: int, logs: Path, cpus: int = 1, where: RayOptions | None = None) -> None:
        self.where, self.cpus, self.logs = where or RayOptions(), cpus, logs
        self._ray = ray_cluster.connect(self.where, workers or None, NEEDS)
        self.size = workers or ray_cluster.most_workers(self._ray, float(cpus))
        self._kind = ray_cluster.remote_class(self._ray, TrialActor, self.where)
        self.trials: dict[str, _Trial] = {}
        logs.mkdir(parents=True, exist_ok=True)
        self.marker = logs / f"shared-{secrets.token_hex(8)}"  # a node that finds it shares the folder
        self.marker.touch()

    @classmethod
    def from_options(cls, options: Any, logs: Path) -> RayRunner:
        """The runner of a sweep."""
        return cls(options.workers, logs, options.cpus, _where(options))

    @staticmethod
    def check(options: Any) -> None:
        """Raises ConfigError if there is no Ray, no cluster, or no node for a trial."""
        ray = ray_cluster.connect(_where(options), options.workers or None, NEEDS)
        if not ray_cluster.has_places(ray, 1, float(options.cpus)):
            largest = max(ray_cluster.cpus_of_nodes(ray), default=0.0)
            raise ConfigError(
                f"--cpus {options.cpus}: no node of the Ray cluster has as many CPUs for a trial; the largest has "
                f"{largest:g}. Use --cpus {max(1, int(largest))}, or add nodes."
            )

    def free(self) -> int:
        """How many more jobs can be started."""
        return self.size - len(self.trials)

    def start(self, job: Job) -> None:
        """Asks Ray for a place and starts the job there."""
        gpus = 1 if device_of(job.options) == "cuda" else 0
        actor = self._kind.options(num_cpus=self.cpus, num_gpus=gpus).remote()
        log = self.logs / f"{job.name.replace(' ', '-').replace(',', '')}.log"
        folder = "" if self.where.working_dir else os.getcwd()
        self.trials[job.name] = _Trial(self._ray, actor, job, log, str(self.marker), self.cpus, folder)

    def poll(self) -> list[tuple[Job, Outcome]]:
        """The jobs that have ended."""
        ended = []
        for name, trial in list(self.trials.items()):
            outcome = trial.follow()
            if outcome is not None:
                ray_cluster.kill(self._ray, trial.actor)
                del self.trials[name]
                ended.append((trial.job, outcome))
        return ended

    def progress(self) -> dict[str, dict[str, Any]]:
        """The latest record of every job that runs."""
        return {name: trial.record for name, trial in self.trials.items()}

    def stop(self, at_once: bool = False) -> None:
        """Stops all trials; they save a checkpoint first, unless at once."""
        if not at_once:
            for trial in self.trials.values():
                trial.ask_to_stop()
            until = time.monotonic() + STOP_S
            while any(trial.is_stopping for trial in self.trials.values()) and time.monotonic() < until:
                for trial in self.trials.values():
                    trial.follow()
                time.sleep(0.1)
        for trial in self.trials.values():
            ray_cluster.kill(self._ray, trial.actor)
        self.trials.clear()
        self.marker.unlink(missing_ok=True)


class _Trial:
    """A job in its actor, seen from the driver. One question to the actor is under way at a time."""

    def __init__(self, ray: Any, actor: Any, job: Job, log: Path, marker: str, cpus: int, folder: str) -> None:
        self._ray, self.actor, self.job, self.log = ray, actor, job, log
        self.folder = job.root / folder_name(env_name(job.env)) / job.run_id
        put_back(self.folder)
        self.record: dict[str, Any] = {}
        self.is_stopping, self._stops = False, False
        self._asked = 0.0
        plain = dataclasses.replace(job, owner=None)
        variables = {name: value for name, value in os.environ.items() if name.startswith("SHOAL_")}
        work = Packed(cloudpickle.dumps(plain), list(sys.path), folder, list(sys.argv), variables)
        self._ref = actor.start.remote(work, marker, cpus, pack_folder(self.folder))

    def follow(self) -> Outcome | None:
        """Takes the actor's last answer and asks again. Returns how the job ended; None while it runs."""
        if self._ref is None:
            if not self._stops and time.monotonic() - self._asked < ASK_S:
                return None
            self._ask()
        if not self._ray.wait([self._ref], timeout=0)[0]:
            return None
        try:
            report: Report = self._ray.get(self._ref)
        except self._ray.exceptions.RayTaskError as error:
            self.is_stopping = False
            return Outcome("lost", f"its actor failed: {str(error).strip().splitlines()[-1]}", self.record.get("step"))
        except self._ray.exceptions.RayError as error:
            self.is_stopping = False
            return Outcome("lost", ray_cluster.reason_of(error), self.record.get("step"))
        self._ref = None
        self.record |= {**report.record, "host": report.host}
        if report.folder:
            unpack_folder(report.folder, self.folder)
        if report.log:
            with self.log.open("ab") as file:
                file.write(report.log)
        if report.is_stopped:
            self.is_stopping = False
        return None if report.outcome is None else Outcome(**report.outcome)

    def ask_to_stop(self) -> None:
        """The next question to the actor is to stop."""
        self._stops = self.is_stopping = True

    def _ask(self) -> None:
        self._asked = time.monotonic()
        self._ref = self.actor.stop.remote() if self._stops else self.actor.look.remote()


def _where(options: Any) -> RayOptions:
    return RayOptions(address=options.address, working_dir=options.working_dir)


RUNNER = RayRunner
