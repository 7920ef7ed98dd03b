"""One run and its folder: `train` makes it; a session logs, saves checkpoints, evaluates and finishes it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import shoal
from shoal import checkpoint, config, evaluate, runs
from shoal.cores import available_cores
from shoal.errors import CheckpointError, ConfigError, ShoalError, TrainingError
from shoal.log import Loggers, MetricRow, RunFacts, open_all
from shoal.log import check as check_loggers
from shoal.nn.distributions import ActionHead
from shoal.runs import Run
from shoal.train import diagnosis
from shoal.train.envs import device_of, env_seed, make_evaluation_vec
from shoal.train.opponents import seat_opponents
from shoal.train.options import Options, as_tables, options_for, unsaved
from shoal.train.players import check_env_options
from shoal.train.probe import probe
from shoal.train.tally import MAX_LISTED
from shoal.train.trainer import Trainer

LOG_EVERY_S = 0.25  # at first; later 1/200 of the elapsed time, so that a log stays small
EVALUATION_ENVS = 128
BY_TRAINING = "sampled return in training"


def train(
    env: Any,
    /,
    *,
    policy: nn.Module | Callable[..., nn.Module] | None = None,
    config_file: str | Path | None = None,
    resume: str | Path | Run | None = None,
    runs_folder: str | Path = runs.ROOT,
    log: tuple[str, ...] = (),
    log_options: Mapping[str, Mapping[str, Any]] | None = None,
    console: str = "auto",
    options: Options | None = None,
    **tables: Any,
) -> Run:
    """Trains a policy on an env and returns the run. The keyword tables are those of a TOML file.

        train("breakout", seed=3, train={"total_steps": "20M"}, vec={"num_envs": 2048}, nn={"core": "lstm"})

    Args:
        env: what `shoal.make` takes: a name, a header's path, `gymnasium:…`, a function or class.
        policy: your own `nn.Module` that returns (logits, value), or a function of the spaces that makes one.
        config_file: a TOML file that overrides the env's tuned options.
        resume: the run to resume: its folder, id, `last`, or `auto` for this env's newest unfinished run.
        runs_folder: the folder of all runs.
        log: loggers besides metrics.jsonl and the console: `tensorboard`, `wandb`.
        log_options: options of those, by name.
        console: `auto`, `dashboard`, `lines` or `off`.
        options: all options at once, instead of tables.
        **tables: algo, seed, device, opponents, and the tables train, vec, nn, eval, save, env; optimizer, core,
            encoder and backend for plugins that have options of their own.
    """
    root = Path(runs_folder)
    old = run_to_resume(env, resume, root)
    if options is None:
        layers = [config.read_toml(Path(config_file))] if config_file is not None else []
        layers += [old.config] if old is not None else []
        options = options_for(env, *layers, tables)
    _, options = seat_opponents(env, options, root)
    check_loggers(log, log_options, console=console)
    with contextlib.ExitStack() as held:
        loaded = None
        if old is not None:
            held.enter_context(old.lock())
            check_env_options(old, options.env)
            with contextlib.suppress(OSError):
                checkpoint.recover(old.folder / "checkpoints")
            loaded = checkpoint.load_newest(old.checkpoints())
        trainer = Trainer(env, options, policy=policy)
        try:
            run = old if old is not None else runs.create(env_name(env), root)
            if old is None:
                held.enter_context(run.lock())
            if loaded is not None:
                trainer.restore(loaded[1], loaded[2])
            describe(run, trainer, policy, is_new=old is None)
            loggers = open_all(run_facts(run, trainer), log, log_options, console=console)
        except OSError as error:
            trainer.close()
            raise ConfigError(f"{run.folder} cannot be written: {error.strerror or error}.") from None
        except BaseException:
            trainer.close()
            raise
        session = Session(run, trainer, loggers)
        if old is not None and not trainer.exact:
            loggers.note(f"{env_name(env)} cannot give its state: new episodes start, so this resume is not bit-exact")
        return session.train()


class Stopped(KeyboardInterrupt):
    """A signal ended the run after a checkpoint. `run` can be resumed; the exit code is 128 + signal."""

    def __init__(self, number: int, run: Run) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; resume with --resume {run.folder}")
        self.number, self.run = number, run


class Session:
    """Trains in a run's folder."""

    def __init__(self, run: Run, trainer: Trainer, loggers: Loggers) -> None:
        self.run, self.trainer, self.loggers, self.options = run, trainer, loggers, trainer.options
        self.folder = run.folder / "checkpoints"
        self.signal = 0
        now = time.perf_counter()
        self.logged_at = self.saved_at = self.began = now
        self.first_step, self.logged_step = trainer.step, trainer.step
        self.saved_step, self.evaluated_step = trainer.step, trainer.step
        self.score: tuple[float, int] = (0.0, 0)  # sum and count of returns since the last checkpoint
        self.selected_by = _selected_by(trainer.options)
        self.best = _best_score(run, self.selected_by)
        self.usage = _Usage()
        self.records = run.metrics()  # for the diagnosis; a resumed run has earlier ones
        self.is_diagnosed = False  # whether certain faults have been looked for

    def train(self) -> Run:
        """Trains to the end, or until a signal; summary.json says what happened."""
        trainer, status, reason = self.trainer, "failed", ""
        (self.run.folder / "summary.json").unlink(missing_ok=True)
        self._note_overshoot()
        try:
            with self._signals():
                while not trainer.is_done and not self.signal:
                    trainer.iterate()
                    self._after_iteration()
                self._log()
                self._save(must=True)
            status = "interrupted" if self.signal else "finished"
            reason = signal.Signals(self.signal).name if self.signal else ""
        except BaseException as error:
            if isinstance(error, TrainingError):
                error.args = (f"{error} {self._last_checkpoint()}",)
            reason = f"{type(error).__name__}: {error}"
            self._finish("failed", reason, None)
            raise
        try:
            result = None if self.signal or not self.options.eval.episodes else self._evaluate()
        except BaseException as error:  # the training is done and saved
            self._finish(status, f"no evaluation: {type(error).__name__}", None)
            raise
        self._finish(status, reason, result)
        if self.signal:
            raise Stopped(self.signal, self.run)
        return self.run

    def _note_overshoot(self) -> None:
        """Notes when a run will take more steps than `total_steps`: it ends with a whole iteration."""
        trainer, total = self.trainer, self.options.train.total_steps
        steps = trainer.steps_per_iteration
        planned = trainer.step + -(-max(total - trainer.step, 0) // steps) * steps
        if planned > 1.05 * total and not trainer.is_done:
            self.loggers.note(
                f"one iteration is {steps:,} steps ({trainer.num_rows:,} rows x {self.options.train.horizon}), so this "
                f"run ends at {planned:,} steps, not {total:,}; fewer --vec.num-envs make iterations shorter"
            )

    def _last_checkpoint(self) -> str:
        steps = [runs.checkpoint_step(path) for path in self.run.checkpoints()]
        if not steps:
            return "There is no checkpoint."
        return f"The last checkpoint is of step {steps[-1]:,}; --resume continues from it."

    def _after_iteration(self) -> None:
        now, trainer, options = time.perf_counter(), self.trainer, self.options
        # the first iterations are logged at 1, 2, 4, 8 ...: a task that is solved in a second has a learning curve too
        is_early = trainer.iteration & (trainer.iteration - 1) == 0
        if is_early or now - self.logged_at >= max(LOG_EVERY_S, (now - self.began) / 200):
            self._log()
        if options.eval.every and trainer.step - self.evaluated_step >= options.eval.every and not trainer.is_done:
            self._log()
            self._evaluate()
        by_time = options.save.every_s and now - self.saved_at >= options.save.every_s
        by_steps = options.save.every and trainer.step - self.saved_step >= options.save.every
        if (by_time or by_steps) and not trainer.is_done:
            self._log()
            self._save()

    def _log(self) -> None:
        trainer, now = self.trainer, time.perf_counter()
        if trainer.step == self.logged_step:
            return
        for event in trainer.vec.drain_events():
            self.loggers.note(f"warning: {event}")
        record = trainer.drain()
        total = now - self.logged_at
        known = sum(record[f"time/{kind}"] for kind in ("env", "inference", "copy", "learn"))
        record |= {"time/total": total, "time/other": max(0.0, total - known), "time": time.time()}
        record |= {"sps": (trainer.step - self.logged_step) / total, **self.usage.read()}
        record |= probe(trainer.learners)
        if record.get("episode/n"):
            total_return, count = self.score
            n = int(record["episode/n"])
            self.score = total_return + record["episode/return"] * n, count + n
        self.logged_at, self.logged_step = now, trainer.step
        self.loggers.log(record)
        self.records.append(record)
        if not self.is_diagnosed and trainer.step >= self.options.train.total_steps / 2:
            self.is_diagnosed = True
            for finding in self._diagnose():
                if finding.kind in diagnosis.CERTAIN and not trainer.is_done:
                    self.loggers.note(f"warning: {finding.text}")

    def _diagnose(self) -> list[diagnosis.Finding]:
        """Why the run does not learn, judged by the records so far; empty if it does."""
        trainer, options = self.trainer, self.options
        setup = diagnosis.Setup(
            tables=as_tables(options),
            num_envs=trainer.vec.num_envs,
            num_learners=trainer.agents - len(trainer.opponents),
            total_steps=options.train.total_steps,
            device=trainer.device.type,
            random_entropy=min(map(_random_entropy, trainer.learners)),
        )
        return diagnosis.diagnose(self.records, setup)

    def _save(self, must: bool = False) -> None:
        """Writes a checkpoint. Without evaluations during training, the best one has the highest training return."""
        trainer, options = self.trainer, self.options
        total_return, count = self.score
        score = total_return / count if count else None
        try:
            facts = {**trainer.counters(), "score": score}
            path = checkpoint.save(self.folder, trainer.step, trainer.state(), facts, options.save.keep)
            if score is not None and not options.eval.every:
                self._mark_best(path, score)
        except (CheckpointError, OSError) as error:
            if must:
                raise
            self.loggers.note(f"warning: {error}")
        else:
            shown = "" if score is None else f", return {score:.4g}"
            self.loggers.note(f"checkpoint at {trainer.step:,} steps{shown}")
        self.saved_at, self.saved_step, self.score = time.perf_counter(), trainer.step, (0.0, 0)

    def _mark_best(self, path: Path, score: float) -> None:
        if self.best is None or score >= self.best:
            self.best = score
            checkpoint.mark_best(self.folder, path, score, self.selected_by)
            checkpoint.prune(self.folder, self.options.save.keep)  # the best one so far may go now

    def _select(self, score: float) -> None:
        """With evaluations during training: saves and marks this checkpoint if its evaluation is the best so far."""
        trainer = self.trainer
        if not self.options.eval.every or (self.best is not None and score < self.best):
            return
        if self.saved_step != trainer.step or self.run.last is None:
            self._save()
        path = self.folder / runs.checkpoint_name(trainer.step)
        if path.is_dir():  # otherwise it could not be written, which `_save` has reported
            try:
                self._mark_best(path, score)
            except CheckpointError as error:
                self.loggers.note(f"warning: {error}")

    def _evaluate(self) -> evaluate.Evaluation | None:
        """Plays held-out episodes with the current policy, greedily and by sampling."""
        options, trainer = self.options, self.trainer
        make = partial(make_evaluation_vec, trainer.env, options)
        episodes, seed = max(1, options.eval.episodes), env_seed(options.seed)
        chosen = "greedy" if options.eval.greedy else "sampled"
        players = {mode: trainer.player(mode == "greedy") for mode in ("greedy", "sampled")}
        try:
            result = evaluate.play_modes(make, players, episodes, seed, chosen=chosen, num_envs=EVALUATION_ENVS)
        except ShoalError as error:
            self.loggers.note(f"warning: no evaluation: {error}")
            return None
        self.evaluated_step = trainer.step
        self.loggers.note(f"evaluation: return {result.describe()}")
        if (better := result.better()) not in (None, chosen):
            self.loggers.note(f"warning: {better} actions return more than {chosen} ones; see --eval.greedy")
        score = result.score
        record: dict[str, float] = {"step": trainer.step, "iteration": trainer.iteration, "wall_s": trainer.wall_s}
        record |= {"eval/return": score.mean, "eval/return_min": score.min, "eval/return_max": score.max}
        record |= {f"eval/return_{name}": result.scores[name].mean for name in players}
        record |= {f"eval/return/{name}": part for name, part in score.by_name(MAX_LISTED).items()}
        self.loggers.log({**record, "eval/length": score.length, "eval/n": len(score.returns), "time": time.time()})
        self._select(score.mean)
        return result

    def _finish(self, status: str, reason: str, result: evaluate.Evaluation | None) -> None:
        trainer = self.trainer
        trainer.close()
        seconds = time.perf_counter() - self.began
        summary: dict[str, Any] = {"status": status, "step": trainer.step, "wall_s": trainer.wall_s}
        summary |= {"sps": (trainer.step - self.first_step) / max(seconds, 1e-9), "reason": reason}
        summary |= {"eval": None if result is None else result.facts(), "exact": trainer.exact}
        summary |= {"best": self._best_checkpoint(), "selected_by": self.selected_by}
        summary |= {"diagnosis": diagnosis.facts(self._diagnose())}
        with contextlib.suppress(OSError):
            self.run.write("summary.json", summary)
        self.loggers.close(summary)

    def _best_checkpoint(self) -> dict[str, Any] | None:
        """The step and score of the best checkpoint; None if no checkpoint has a score."""
        if self.best is None or (path := self.run.best) is None:
            return None
        return {"step": runs.checkpoint_step(path), "score": self.best}

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT, SIGTERM and SIGUSR1 end the run after this iteration, with a checkpoint; a second SIGINT at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, _frame: Any) -> None:
            if self.signal and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.signal = number
            again = "; press Ctrl-C again to stop immediately" if number == signal.SIGINT else ""
            self.loggers.note(f"{signal.Signals(number).name}: saving a checkpoint after this iteration{again}")

        wanted = [signal.SIGINT, signal.SIGTERM, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else [])]
        before = {number: signal.signal(number, ask) for number in wanted}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Usage:
    """CPU and memory of this process and its workers."""

    def __init__(self) -> None:
        import psutil

        self.process = psutil.Process()
        psutil.cpu_percent(None)
        self._cpu = psutil.cpu_percent

    def read(self) -> dict[str, float]:
        """Percent of all cores, and MB of this process and its children."""
        used = self.process.memory_info().rss
        for child in self.process.children():
            with contextlib.suppress(Exception):
                used += child.memory_info().rss
        return {"cpu_percent": self._cpu(None), "memory_mb": used / 1e6}


def _random_entropy(learner: Any) -> float:
    """The entropy of a uniformly random policy; 0 if unknown: with action masks, with Box actions, in Q-learning."""
    head = learner.head
    if learner.rollout.masks is not None or not isinstance(head, ActionHead) or head.has_box:
        return 0.0
    return sum(math.log(part.count) for part in head.parts)


def _selected_by(options: Options) -> str:
    """What the best checkpoint is chosen by."""
    if not options.eval.every:
        return BY_TRAINING
    return f"{'greedy' if options.eval.greedy else 'sampled'} return in evaluation"


def _best_score(run: Run, selected_by: str) -> float | None:
    """The score of the best checkpoint so far; None if there is none, or if it was selected by another return."""
    with contextlib.suppress(Exception):
        best = json.loads((run.folder / "checkpoints" / "best.json").read_text())
        if (best.get("by") or BY_TRAINING) == selected_by:  # files of older versions do not say
            return float(best["score"])
    return None


# ---- the run's folder ----


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


def describe(run: Run, trainer: Trainer, policy: Any, *, is_new: bool) -> None:
    """Writes config.toml and run.json."""
    env, options = trainer.env, trainer.options
    runs.write_atomic(run.folder / "config.toml", config.write_toml(as_tables(options)).encode())
    facts: dict[str, Any] = dict(run.facts) if not is_new else {"started": time.strftime("%Y-%m-%dT%H:%M:%S")}
    facts |= {"id": run.id, "env": env_name(env), "env_is_a_name": isinstance(env, (str, Path)), "algo": options.algo}
    facts |= {"seed": options.seed, "device": device_of(options), "command": sys.argv, "commit": runs.commit()}
    facts |= {"pid": os.getpid(), "pid_began": runs.process_began(os.getpid())}
    if policy is not None:
        facts["custom_policy"] = env_name(policy)
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
    for name in ("facts", "config"):  # both are read again
        run.__dict__.pop(name, None)


def run_facts(run: Run, trainer: Trainer) -> RunFacts:
    """The facts about a run that loggers get before its first step."""
    options, metrics = trainer.options, trainer.algorithm.metrics
    return RunFacts(
        folder=run.folder,
        id=run.id,
        env=env_name(trainer.env),
        algo=options.algo,
        backend=trainer.vec.backend,
        device=str(trainer.device),
        seed=options.seed,
        num_envs=trainer.vec.num_envs,
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
