"""The options of a sweep: flags of `shoal sweep`, and keyword arguments of `shoal.sweep.sweep`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shoal.config import opt
from shoal.sweep.runners import RUNNERS
from shoal.sweep.samplers import SAMPLERS


@dataclass(frozen=True)
class SweepOptions:
    """How a sweep is run. The ranges are apart (shoal/sweep/space.py)."""

    trials: int = opt(40, "trials; trial 0 has the options as they are given", low=1, high=1_000_000, is_count=True)
    workers: int = opt(
        1,
        "trials that run at the same time, each in a process with its own cores; 0: all that --on ray has CPUs for",
        low=0,
    )
    population: int = opt(
        0,
        "trials that are chosen together and use one trainer, which is built once; 0: each trial builds its own",
        low=0,
        high=100_000,
        is_count=True,
    )
    sampler: str = opt(
        "auto", "how trials are chosen; auto: tpe, and gp once the median trial takes 30 s", choices=SAMPLERS.names
    )
    goal: Literal["score", "pareto"] = opt(
        "score", "what tpe and gp look for: the best score, or the front of score and seconds"
    )
    cost: Literal["auto", "steps", "seconds"] = opt(
        "auto", "cost in early stops and for cost-aware samplers; auto: seconds for protein and pareto, else steps"
    )
    early_stop: float = opt(
        0.25, "stop a trial whose curve is below this quantile of the others at equal cost; 0: never", low=0.0, high=0.9
    )
    retries: int = opt(2, "times that a trial is run again after a failure of the machine", low=0, high=100)
    finals: int = opt(3, "best trials that are run again on fresh seeds; 0: none", low=0, high=100)
    final_seeds: int = opt(5, "fresh seeds of each", low=1, high=1000)
    name: str = opt("", "name of the sweep's folder; default: the time", metavar="NAME")
    only: bool = opt(
        False, "sweep only the options that flags and --config give ranges for, not those of the env's file"
    )
    new: bool = opt(False, "start a new sweep, although one of this env is unfinished")
    on: str = opt("local", "where trials run; ray: on a Ray cluster (docs/ray.md)", choices=RUNNERS.names)
    address: str = opt(
        "", "with --on ray: the cluster, HOST:PORT; default: RAY_ADDRESS, a cluster that runs here, or this machine"
    )
    cpus: int = opt(1, "with --on ray: CPUs of each trial", low=1)
    working_dir: str = opt("", "with --on ray: folder with your env's code, copied to every node", metavar="FOLDER")

    @property
    def cost_unit(self) -> str:
        """The cost that early stops and cost-aware samplers see."""
        if self.cost != "auto":
            return self.cost
        return "seconds" if SAMPLERS.find(self.sampler).uses_cost or self.goal == "pareto" else "steps"
