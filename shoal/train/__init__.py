"""Training: collect -> update -> log -> checkpoint -> evaluate, in a run's folder, until the steps are done.

    from shoal.train import train

    run = train("cartpole", seed=1, train={"total_steps": "500k"})
    print(run.summary["eval"])

`start` gives the same run as a loop: `with start(...) as trainer: for metrics in trainer: ...`. `Trainer` is for a
training loop without a folder: `trainer.iterate()` is one iteration. Knows everything but the command line.
"""

from __future__ import annotations

from shoal.cores import let_openmp_sleep

let_openmp_sleep()  # before torch is imported

# ruff: noqa: E402
from shoal.train.callbacks import Callback, Context, Episodes
from shoal.train.envs import device_of, env_seed, make_vec
from shoal.train.evaluation import RunEvaluation, evaluate_agent, evaluate_run
from shoal.train.loop import Training, start, train
from shoal.train.many_seeds import train_seeds
from shoal.train.options import TABLES, Eval, Options, Save, Vec, as_tables, merge, options_for, tuned
from shoal.train.phases import Phase
from shoal.train.players import load_player, make_actor
from shoal.train.run_files import run_to_resume
from shoal.train.sharded import make_trainer
from shoal.train.signals import Stopped
from shoal.train.trainer import Trainer

__all__ = [
    "TABLES",
    "Callback",
    "Context",
    "Episodes",
    "Eval",
    "Options",
    "Phase",
    "RunEvaluation",
    "Save",
    "Stopped",
    "Trainer",
    "Training",
    "Vec",
    "as_tables",
    "device_of",
    "env_seed",
    "evaluate_agent",
    "evaluate_run",
    "load_player",
    "make_actor",
    "make_trainer",
    "make_vec",
    "merge",
    "options_for",
    "run_to_resume",
    "start",
    "train",
    "train_seeds",
    "tuned",
]
