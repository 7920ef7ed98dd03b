"""Runs a sweep: chooses trials, gives them to a runner, writes results, then reruns the best on fresh seeds.

Any number of drivers work on one sweep, on one machine or on several that share the folder. Each looks for work in
this order: a trial that a killed driver left, a new trial, a rerun of a finalist. Whoever ends last writes the result.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import time
from pathlib import Path
from typing import IO, Any

from shoal.errors import ConfigError, TrainingError
from shoal.runs import Run, folder_name
from shoal.seed_groups import result_of
from shoal.sweep import curves, report
from shoal.sweep.options import SweepOptions
from shoal.sweep.population import PopulationRunner, as_known, first_of_batch
from shoal.sweep.runners import Job, Outcome, make_runner
from shoal.sweep.store import Sweep, Trial
from shoal.sweep.suggest import suggest
from shoal.train.options import Options
from shoal.train.signals import Stopped, handled_signals

POLL_S = 0.1
FRESH = 100_000  # added to the seed of the sweep: the seeds of finals
HOPELESS = 10  # trials that fail, before any succeeds, end the sweep


@dataclasses.dataclass
class State:
    """What the screen shows."""

    sweep: Sweep
    target: int
    trials: list[Trial] = dataclasses.field(default_factory=list)
    running: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)  # by name: step, total, return, sps
    finals: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    finals_wanted: int = 0
    elapsed_s: float = 0.0
    workers: int = 1
    ended_before: int = 0  # runs that had ended when this process started

    @property
    def seconds_left(self) -> float | None:
        """An estimate: runs go on at the pace since this process started, whoever trains them."""
        ended = self.ended - self.ended_before
        if ended <= 0:
            return None
        return max(0, self.target + self.finals_wanted - self.ended) * self.elapsed_s / ended

    @property
    def ended(self) -> int:
        """Trials and finals that have ended."""
        return sum(trial.is_done for trial in self.trials) + len(self.finals)


@dataclasses.dataclass
class _Work:
    """What this process works on: a trial, or a final (trial and seed). It holds the claim."""

    trial: Trial
    claim: IO[str]
    seed: int
    is_final: bool = False


class Driver:
    """Works on a sweep until it ends."""

    def __init__(
        self, sweep: Sweep, env: Any, base: Options, options: SweepOptions, runner: Any = None, screen: Any = None
    ) -> None:
        self.sweep, self.env, self.base, self.options, self.screen = sweep, env, base, options, screen
        self.working: dict[str, _Work] = {}
        self.population = int(sweep.identity.get("population", 0))
        self.runner = runner or self._make_runner(sweep.folder / "logs")
        workers = getattr(self.runner, "size", options.workers)
        self.state = State(sweep, sweep.target, sweep.trials(), workers=workers)
        self.state.finals_wanted = options.finals * options.final_seeds
        if self.state.trials and all(trial.is_done for trial in self.state.trials):
            self._finals_left()
        self.state.ended_before = self.state.ended
        self.attempts: dict[str, int] = {}
        self.signal, self.is_urgent = 0, False
        self.began = time.monotonic()

    def _make_runner(self, logs: Path) -> Any:
        if self.population:
            return PopulationRunner(self.options.workers, logs, self.population)
        return make_runner(self.options, logs)

    def run(self) -> None:
        """Works until no trial and no final is left. A signal stops it: the same command continues."""
        try:
            with handled_signals(self._take_signal):
                while not self._is_over():
                    self._step()
                    time.sleep(POLL_S)
        finally:
            if self.signal and self.screen is not None:
                self.screen.show(self.state)  # with the note
            self.runner.stop(at_once=self.is_urgent)
            for work in self.working.values():
                work.claim.close()
        if self.signal:
            raise Stopped(self.signal, Run(self.sweep.folder))
        report.write(self.sweep, self.base, self.options)

    def _take_signal(self, number: int) -> None:
        self.is_urgent = bool(self.signal)
        self.signal = number
        again = "; press Ctrl-C again to stop immediately" if number == signal.SIGINT else ""
        self._note(f"{signal.Signals(number).name}: running trials save checkpoints and stop{again}")

    def _note(self, text: str) -> None:
        if self.screen is not None:
            self.screen.note(text)

    def _is_over(self) -> bool:
        if self.signal:
            return True
        trials = self.state.trials
        if self.working or len(trials) < self.state.target or not all(trial.is_done for trial in trials):
            return False
        return not self._finals_left()

    def _step(self) -> None:
        """One round: results, new work, the screen."""
        for job, outcome in self.runner.poll():
            self._take(job.owner, outcome)
        self.state.trials = self.sweep.trials()
        while self.runner.free() and not self.signal:
            work = self._next_work()
            if work is None:
                break
            self._start(work)
        self.state.running = self._progress()
        self.state.elapsed_s = time.monotonic() - self.began
        if self.screen is not None:
            self.screen.show(self.state)

    def _progress(self) -> dict[str, dict[str, Any]]:
        """The latest numbers of this process's trials; of other processes' trials only that they run."""
        shown: dict[str, dict[str, Any]] = {}
        for trial in self.state.trials:
            if not trial.is_done:
                shown[_name(trial.number)] = {"values": trial.actual, "elsewhere": True}
        for name, record in self.runner.progress().items():
            work = self.working[name]
            options = self._options(work.trial, work.seed)
            shown[name] = {"values": work.trial.actual, "total": options.train.total_steps, **record}
        return shown

    # ---- work ----

    def _next_work(self) -> _Work | None:
        """A trial that nobody works on, else a new one, else a final; None: there is nothing to do at present."""
        for trial in self.state.trials:
            if not trial.is_done and _name(trial.number) not in self.working:
                claim = self.sweep.claim(f"trial-{trial.number:04d}")
                if claim is not None:
                    now = {one.number: one for one in self.sweep.trials()}[trial.number]
                    if not now.is_done:
                        return _Work(now, claim, now.seed)
                    claim.close()  # its process ended it a moment ago
        if len(self.state.trials) < self.state.target:
            return self._new_trial()
        if all(trial.is_done for trial in self.state.trials):
            return self._next_final()
        return None

    def _new_trial(self) -> _Work | None:
        with self.sweep.lock():
            trials = self.state.trials = self.sweep.trials()
            number = len(trials)
            first = first_of_batch(number, self.population)
            if number >= self.state.target or not all(trial.is_done for trial in trials[:first]):
                return None
            identity, space = self.sweep.identity, self.sweep.space
            attrs: dict[str, Any] = {"seed": self.base.seed + number}
            if number == 0:
                given = space.values_of(self.base)
                attrs["outside"] = {key: value for key, value in given.items() if not space.ranges[key].holds(value)}
                values = {key: space.ranges[key].nearest(value) for key, value in given.items()}
            else:
                values = suggest(
                    space,
                    as_known(trials, number, self.population) if self.population else trials,
                    number,
                    sampler=identity["sampler"],
                    seed=self.base.seed,
                    goal=identity["goal"],
                    cost_unit=identity["cost"],
                )
            claim = self.sweep.claim(f"trial-{number:04d}")
            if claim is None:  # left by a trial that never reached the journal, and held for a moment
                return None
            trial = self.sweep.add_trial(values, attrs)
        self.state.trials = [*trials, trial]
        return _Work(trial, claim, trial.seed)

    def _options(self, trial: Trial, seed: int) -> Options:
        """The options of a trial's run."""
        changed = self.base if trial.number == 0 else self.sweep.space.apply(self.base, trial.values)
        return dataclasses.replace(changed, seed=seed)

    def _start(self, work: _Work) -> None:
        name = _name(work.trial.number, work.seed if work.is_final else None)
        self.working[name] = work
        callbacks: tuple[Any, ...] = ()
        if not work.is_final:
            identity = self.sweep.identity
            others = [one.curve for one in self._known(work.trial) if one.is_done and one.curve]
            callbacks = (curves.CurveStop(others, identity["early_stop"], identity["cost"]),)
        folder, run_id = ("finals", f"{work.trial.number:04d}-seed{work.seed}") if work.is_final else ("trials", "")
        self.attempts[name] = self.attempts.get(name, 0) + 1
        try:
            options = self._options(work.trial, work.seed)
        except ConfigError as error:  # values that do not fit together
            self._take(work, Outcome("failed", f"ConfigError: {error}", is_config=True))
            return
        job = Job(
            name=name,
            env=self.env,
            options=options,
            root=self.sweep.folder / folder,
            run_id=run_id or f"{work.trial.number:04d}",
            callbacks=callbacks,
            attempt=self.attempts[name],
            owner=work,
        )
        self.runner.start(job)

    def _known(self, trial: Trial) -> list[Trial]:
        """The trials whose results a trial may depend on: of a population, those of earlier ones."""
        first = first_of_batch(trial.number, self.population) if self.population else len(self.state.trials)
        return self.state.trials[:first]

    # ---- results ----

    def _take(self, work: _Work, outcome: Outcome) -> None:
        """Writes how a piece of work ended, or starts it again."""
        name = _name(work.trial.number, work.seed if work.is_final else None)
        if outcome.kind == "stopped" and self.signal:
            return  # the claim is released at the end; the journal says that the trial runs
        if outcome.kind in ("lost", "stopped"):
            if self.attempts[name] <= self.options.retries:
                self._note(f"{name}: {outcome.reason}; run again ({self.attempts[name]} of {self.options.retries})")
                del self.working[name]
                self._start(work)
                return
            outcome = dataclasses.replace(outcome, kind="failed", reason=f"{outcome.reason}, again and again")
        run = self._run_of(work)
        result = result_of(work.seed, run if (run.folder / "run.json").is_file() else None, outcome.reason)
        attrs: dict[str, Any] = {"steps": result["step"] or outcome.step or 0, "reason": result["reason"]}
        if outcome.kind == "finished" and result["score"] is None:
            steps = result["step"]
            reason = f"no episode ended in {steps:,} steps, so it has no score. Use a larger --train.total-steps."
            outcome = Outcome("failed", reason, step=steps)
        if outcome.kind == "failed":
            at = f" at step {outcome.step:,}" if outcome.step is not None else ""
            env_seed = f", env seed {outcome.seed}" if outcome.seed is not None else ""
            attrs |= {"reason": f"{outcome.reason} (seed {work.seed}{env_seed}{at})", "step": outcome.step}
        if work.is_final:
            self._write_final(work, outcome, result, attrs["reason"])
        else:
            self._write_trial(work, outcome, result, {**attrs, "attempts": self.attempts[name]})
        work.claim.close()
        del self.working[name]

    def _run_of(self, work: _Work) -> Run:
        if not work.is_final:
            return self.sweep.trial_run(work.trial.number)
        return Run(self.sweep.folder / "finals" / folder_name(self.sweep.identity["env"]) / _final_id(work))

    def _write_trial(self, work: _Work, outcome: Outcome, result: dict[str, Any], attrs: dict[str, Any]) -> None:
        trial = work.trial
        if outcome.kind == "failed":
            self._check_hope(trial, outcome, attrs["reason"])
            self.sweep.finish_trial(trial, None, attrs)
            return
        attrs |= {"stopped": attrs["reason"].startswith(curves.REASON), "score_by": result["score_by"]}
        attrs["curve"] = curves.read(self._run_of(work).folder)
        self.sweep.finish_trial(trial, (float(result["score"]), float(result["wall_s"])), attrs)
        report.write_best_so_far(self.sweep, self.base)

    def _check_hope(self, trial: Trial, outcome: Outcome, reason: str) -> None:
        """Raises where more trials make no sense: the given options do not fit, or nothing ever works."""
        if trial.number == 0 and outcome.is_config:
            raise ConfigError(outcome.reason.partition(": ")[2] or outcome.reason)
        trials = self.sweep.trials()
        if any(one.status == "finished" for one in trials):
            return
        failed = 1 + sum(one.status == "failed" for one in trials)
        if failed >= min(HOPELESS, self.state.target):
            raise TrainingError(f"all {failed} trials failed, the last one so: {reason} See {self.sweep.folder}.")

    # ---- finals ----

    def finalists(self) -> list[Trial]:
        """The best trials: highest score, then fewest seconds."""
        return report.ranked(self.state.trials)[: self.options.finals]

    def _finals_left(self) -> list[tuple[Trial, int]]:
        self.state.finals, left = [], []
        seeds = [self.base.seed + FRESH + k for k in range(self.options.final_seeds)]
        finalists = self.finalists()
        self.state.finals_wanted = len(seeds) * len(finalists)
        for trial in finalists:
            for seed in seeds:
                done = read_final(self.sweep, trial.number, seed)
                if done is None:
                    left.append((trial, seed))
                else:
                    self.state.finals.append(done)
        return left

    def _next_final(self) -> _Work | None:
        for trial, seed in self._finals_left():
            if _name(trial.number, seed) not in self.working:
                claim = self.sweep.claim(f"final-{trial.number:04d}-{seed}")
                if claim is not None:
                    if read_final(self.sweep, trial.number, seed) is None:
                        return _Work(trial, claim, seed, is_final=True)
                    claim.close()
        return None

    def _write_final(self, work: _Work, outcome: Outcome, result: dict[str, Any], reason: str) -> None:
        facts = {"trial": work.trial.number, "seed": work.seed, "status": outcome.kind, "reason": reason}
        facts |= {"score": result["score"], "seconds": result["wall_s"], "steps": result["step"]}
        (self.sweep.folder / "finals").mkdir(exist_ok=True)
        self.sweep.write(f"finals/{_final_id(work)}.json", facts)


def _final_id(work: _Work) -> str:
    return f"{work.trial.number:04d}-seed{work.seed}"


def _name(number: int, seed: int | None = None) -> str:
    return f"trial {number}" if seed is None else f"trial {number}, seed {seed}"


def read_final(sweep: Sweep, number: int, seed: int) -> dict[str, Any] | None:
    """The outcome of a rerun; None: it has not ended."""
    path = sweep.folder / "finals" / f"{number:04d}-seed{seed}.json"
    try:
        data: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return data
