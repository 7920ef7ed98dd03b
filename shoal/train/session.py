"""One run and its folder: a session trains, logs, saves, evaluates and finishes it. opening.py makes it."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from shoal import checkpoint, evaluate, runs
from shoal.errors import CheckpointError, ConfigError, ShoalError, TrainingError
from shoal.log import Loggers
from shoal.runs import Run
from shoal.train import diagnosis
from shoal.train.callbacks.base import Context, Episodes
from shoal.train.callbacks.group import CallbackGroup
from shoal.train.env_params import settled
from shoal.train.envs import env_seed, make_evaluation_vec
from shoal.train.options import as_tables
from shoal.train.param_changes import check_saveable
from shoal.train.probe import probe
from shoal.train.recent import LEAST, LatestReturns, MergedRecord
from shoal.train.run_files import KeptFiles
from shoal.train.selection import BestCheckpoint, is_compared
from shoal.train.signals import Stopped, handled_signals
from shoal.train.tally import MAX_LISTED
from shoal.train.trainer import Trainer
from shoal.train.usage import Usage

FIRST_SAVE_S = 2.0  # the first checkpoint
LOG_EVERY_S = 0.25  # at first; later 1/200 of the elapsed time, so that a log stays small
EVALUATION_ENVS = 128
EVALUATION_EPISODES = 100  # of each mode
ENDLESS_STEPS = 10_000  # most steps of an episode, where none ended in training and no number of episodes is asked for
EVALUATION_S, EVALUATION_SHARE = 10.0, 0.2  # the last evaluation takes at most the larger: seconds, part of training
READ_EVERY_ON_GPU = 8  # iterations between two reads of metrics for callbacks, loops and comparisons of policies


class Session:
    """Trains in a run's folder: `begin`, `advance` until it returns False, then `finish`; or `fail`."""

    def __init__(
        self,
        run: Run,
        trainer: Trainer,
        loggers: Loggers,
        callbacks: CallbackGroup | None = None,
        env_params: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        self.run, self.trainer, self.loggers, self.options = run, trainer, loggers, trainer.options
        self.folder = run.folder / "checkpoints"
        self.signal, self.handles_signals = 0, True
        self.saves_by_itself = True  # False: a population says when
        self.status, self.reason = "running", ""
        meta = meta or {}  # of the checkpoint from which the run is resumed
        now = time.perf_counter()
        self.logged_at = self.saved_at = self.began = self.left_at = now
        self.save_took_s = 0.0
        self.first_step, self.logged_step, self.saved_step = trainer.step, trainer.step, trainer.step
        self.first_wall_s = trainer.wall_s
        self.evaluated_step, self.latest = trainer.step, LatestReturns(least=LEAST)
        self.has_new_episodes = False  # since policies were compared: their interval in `latest` is still open
        self.step_before = trainer.step  # of the iteration before
        self.compared_step = 0  # when policies were compared
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):  # of an older version, or forged
            self.evaluated_step = int(meta["evaluated_step"])
            self.latest = LatestReturns(least=LEAST, intervals=meta["latest_returns"])
            self.has_new_episodes = bool(meta["has_new_episodes"])
            self.compared_step = int(meta["compared_step"])
        if trainer.step - self.evaluated_step >= self.options.eval.every:  # the last evaluation came after the save
            self.evaluated_step = trainer.step
        self.best = BestCheckpoint(run, trainer.options)
        self.usage = Usage()
        self.records = run.metrics()  # for the diagnosis; a resumed run has earlier ones
        self.is_diagnosed = False  # whether certain faults have been looked for
        self.is_broken = False  # whether training itself raised: its state is not saved
        self._signals = contextlib.ExitStack()
        # what callbacks and loops read and ask for
        self.callbacks, self.context = callbacks or CallbackGroup(), Context(self)
        self.reads = bool(self.callbacks)  # whether metrics are read between logs
        self.read_every = _read_every(trainer)  # iterations
        self.read_at, self.read_step, self.read_iteration = now, trainer.step, trainer.iteration
        self.merged = MergedRecord()
        self.metrics: dict[str, float] = {}
        self.numbers: dict[str, float] = {}  # of `context.log`, for the next record
        self.own_names: set[str] = set()  # of those numbers
        self.episodes: Episodes | None = None
        self.evaluation: evaluate.Evaluation | None = None
        self.env_params = dict(env_params or {})  # set by callbacks
        self.stop_reason = ""
        self.is_save_wanted = False

    # ---- from the first iteration to the summary ----

    def begin(self) -> None:
        """Starts the run."""
        (self.run.folder / "summary.json").unlink(missing_ok=True)
        self.files = KeptFiles(self.run.folder)
        self._note_overshoot()
        for reason in _plain_reasons(self.trainer):
            self.loggers.note(reason)
        if self.handles_signals:
            self._signals.enter_context(handled_signals(self._take_signal))
        self.callbacks.call("on_start", self.context)
        self.save_if_wanted()

    @property
    def is_over(self) -> bool:
        """Whether no iteration follows. A signal waits until metrics are read, so that a resume is exact."""
        return self.trainer.is_done or bool(self.stop_reason) or bool(self.signal and self.is_read)

    def advance(self) -> bool:
        """One iteration, with what follows it; False if the run is over."""
        if self.is_over:
            return False
        try:
            self.trainer.iterate()
            self._after_iteration()
        except BaseException:
            self.is_broken = not self.callbacks.fault
            raise
        return True

    def leave(self) -> None:
        """Logs what is not logged yet: another run uses the trainer next."""
        self._log()
        self.left_at = time.perf_counter()

    def enter(self, trainer: Trainer) -> None:
        """Continues after `leave`, with a trainer that has this run's state. The time between is not the run's."""
        self.trainer, away = trainer, time.perf_counter() - self.left_at
        self.began, self.logged_at, self.read_at = (at + away for at in (self.began, self.logged_at, self.read_at))

    def finish(self, reason: str = "") -> Run:
        """Ends the training: a last checkpoint, the evaluation, the summary. `reason`: why it ended before its end."""
        try:
            self._log()
            if self.trainer.is_done or not self.signal:  # nobody repeats the step at which a signal came
                self._compare()
            self._save(must=True)
        except BaseException as error:
            self.is_broken = not self.callbacks.fault
            self.fail(error)
            raise
        self._signals.close()
        status = "interrupted" if self.signal else "finished"
        reason = signal.Signals(self.signal).name if self.signal else self.stop_reason or reason
        result = None
        try:
            result = None if self.signal or self.options.eval.episodes == 0 else self._evaluate(is_last=True)
            self.status, self.reason = status, reason
            self.callbacks.end(self.context)
        except BaseException as error:  # the training is done and saved
            fault = self.callbacks.fault
            self._finish("failed" if fault else status, fault or f"no evaluation: {type(error).__name__}", result)
            raise
        self._finish(status, reason, result)
        if self.signal:
            raise Stopped(self.signal, self.run)
        return self.run

    def fail(self, error: BaseException) -> None:
        """Ends a run that raised. A checkpoint is saved first, unless training itself raised."""
        if isinstance(error, TrainingError) and self.is_broken:
            error.args = (f"{error} {self._last_checkpoint()}",)
        reason = self.callbacks.fault or f"{type(error).__name__}: {error}"
        if not self.is_broken and self.trainer.step > self.saved_step:
            with contextlib.suppress(Exception):
                self._log()
                self._save(calls=False)
        self._signals.close()
        self.status = "interrupted" if isinstance(error, KeyboardInterrupt) and not self.is_broken else "failed"
        self.reason = reason
        try:
            self.callbacks.end(self.context)
        except Exception as second:
            self.loggers.note(f"warning: on_end raised {type(second).__name__}: {second}")
        self._finish(self.status, reason, None)

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
        steps = [runs.checkpoint_step(path) for path in self.run.resumable()]
        if not steps:
            return "There is no checkpoint."
        return f"The last checkpoint is of step {steps[-1]:,}; --resume continues from it."

    def _after_iteration(self) -> None:
        if self.reads:
            if self.is_read and self._read():
                self.callbacks.call("on_episodes", self.context)
            self.callbacks.call("on_iteration", self.context)
            if not self.is_read:
                return  # logs, evaluations and checkpoints come after a read, so that a resume is exact
        now, trainer, options = time.perf_counter(), self.trainer, self.options
        # the first iterations are logged at 1, 2, 4, 8 ...: a task that is solved in a second has a learning curve too
        is_early = trainer.iteration & (trainer.iteration - 1) == 0
        if is_early or now - self.logged_at >= max(LOG_EVERY_S, (now - self.began) / 200):
            self._log()
        if options.eval.every and trainer.step - self.evaluated_step >= options.eval.every and not trainer.is_done:
            self._log()
            self._evaluate()
        by_time = options.save.every_s and now - self.saved_at >= self._save_interval_s()
        by_steps = options.save.every and trainer.step // options.save.every > self.step_before // options.save.every
        # comparing reads metrics, which waits for a GPU: there only some iterations do
        before = trainer.step - self.read_every * trainer.steps_per_iteration
        is_due = trainer.iteration % self.read_every == 0 and is_compared(before, trainer.step)
        if (by_steps or is_due) and not trainer.is_done:
            self._compare()
        if (by_time or by_steps) and self.saves_by_itself and not trainer.is_done:
            self._log()
            self._save()
        self.step_before = trainer.step
        self.save_if_wanted()

    def _save_interval_s(self) -> float:
        """Seconds between the last checkpoint and the next one: the first ones come after 2, 4, 8 ... s, so that a page
        (`shoal watch`) shows the policy soon. All of them together take at most 1 % of the time."""
        early = max(FIRST_SAVE_S, self.saved_at - self.began, 100 * self.save_took_s)
        return min(self.options.save.every_s, early)

    def save_if_wanted(self) -> None:
        """The checkpoint that a callback or the body of a loop has asked for."""
        if self.is_save_wanted:
            self.is_save_wanted = False
            if self.trainer.step > self.saved_step:
                self._log()
                self._compare()
                self._save()

    @property
    def is_read(self) -> bool:
        """Whether metrics are read after this iteration: on a CPU after each. It depends on the iteration alone."""
        return not self.reads or self.trainer.iteration % self.read_every == 0 or self.trainer.is_done

    def _read(self) -> bool:
        """Reads the metrics since the last read. True if episodes have ended."""
        trainer, now = self.trainer, time.perf_counter()
        record = trainer.drain()
        self.merged.add(record, trainer.iteration - self.read_iteration)
        self.metrics |= {**record, "sps": (trainer.step - self.read_step) / max(now - self.read_at, 1e-9)}
        self.read_at, self.read_step, self.read_iteration = now, trainer.step, trainer.iteration
        if not record.get("episode/n"):
            return False
        count, mean = int(record["episode/n"]), record["episode/return"]
        self.latest.add(count, mean, trainer.step, joins=self.has_new_episodes)
        self.has_new_episodes = True
        self.episodes = Episodes.of(record, None if trainer.has_opponents else trainer.drained_returns)
        return True

    def _log(self) -> None:
        trainer, now = self.trainer, time.perf_counter()
        if trainer.step == self.logged_step:
            return
        if trainer.step != self.read_step:
            self._read()
        record = self.merged.drain()
        for event in trainer.drain_events():
            self.loggers.note(f"warning: {event}")
        total = now - self.logged_at
        known = sum(record[f"time/{kind}"] for kind in ("env", "inference", "copy", "learn"))
        record |= {"time/total": total, "time/other": max(0.0, total - known), "time": time.time()}
        record |= {"sps": (trainer.step - self.logged_step) / total, **self.usage.read()}
        record |= probe(trainer.learners)
        self.logged_at, self.logged_step = now, trainer.step
        self.metrics |= record
        record, self.numbers = {**self.numbers, **record}, {}
        self.loggers.log(record)
        self.records.append(record)
        if not self.is_diagnosed and trainer.step >= self.options.train.total_steps / 2:
            self.is_diagnosed = True
            for finding in self._diagnose():
                if finding.kind in diagnosis.CERTAIN and not trainer.is_done:
                    self.loggers.note(f"warning: {finding.text}")

    def _take_signal(self, number: int) -> None:
        """SIGINT, SIGTERM and SIGUSR1 end the run after this iteration, with a checkpoint; a second SIGINT at once."""
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
        again = "; press Ctrl-C again to stop immediately" if number == signal.SIGINT else ""
        self.loggers.note(f"{signal.Signals(number).name}: saving a checkpoint after this iteration{again}")

    # ---- what callbacks ask for ----

    def set_env_params(self, values: Mapping[str, Any]) -> None:
        """Changes params of the envs. A checkpoint holds them, so that a resumed run has them too."""
        if self.trainer.vec.native_spec is None:
            check_saveable(values)  # the snapshot of a native env has its params, also distributions
        self.trainer.set_env_params(values)
        self.env_params |= values

    def forget_returns(self) -> None:
        """Called when a curriculum goes on: the returns so far cannot be compared with later ones."""
        self.latest, self.has_new_episodes = LatestReturns(least=LEAST), False
        self.best.forget()

    def add_number(self, name: str, value: Any) -> None:
        """Adds a number of a callback to the next record."""
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(f"log({name!r}, ...): the name must be text: log('curriculum/level', 3).")
        if name in self.metrics and name not in self.own_names:
            raise ConfigError(f"log('{name}', ...): Shoal logs a metric of that name. Choose another: 'my/{name}'.")
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ConfigError(f"log('{name}', {value!r}): the value must be a number.") from None
        self.own_names.add(name)
        self.numbers[name] = self.metrics[name] = number

    # ---- diagnosis, checkpoints, evaluation, summary ----

    def _diagnose(self) -> list[diagnosis.Finding]:
        """Why the run does not learn, judged by the records so far; empty if it does."""
        trainer, options = self.trainer, self.options
        setup = diagnosis.Setup(
            tables=as_tables(options),
            num_envs=trainer.num_envs,
            num_learners=trainer.num_learning,
            total_steps=options.train.total_steps,
            device=trainer.device.type,
            random_entropy=min(learner.random_entropy for learner in trainer.learners),
        )
        phase = self.metrics.get("curriculum/phase")  # returns of other phases cannot be compared
        records = [record for record in self.records if record.get("curriculum/phase") == phase]
        return diagnosis.diagnose(records, setup)

    def _compare(self) -> None:
        """Without evaluations during training, the best policy so far is that with the highest training return."""
        trainer = self.trainer
        if trainer.step != self.read_step:
            self._read()
        has_new_episodes, self.has_new_episodes = self.has_new_episodes, False
        before, self.compared_step = self.compared_step, trainer.step
        if (change := settled(self.options.env) * self.options.train.total_steps) and before <= change:
            # until its last change, a scheduled param makes a task of its own in every iteration (docs/schedules.md)
            if trainer.step > change:
                self.latest = LatestReturns(least=LEAST)
            return
        if has_new_episodes and self.latest.count >= LEAST and not self.options.eval.every:
            self.best.compare(trainer.step, self.latest.mean, trainer.weights(), trainer.counters())

    def _save(self, must: bool = False, calls: bool = True) -> None:
        """Writes a checkpoint, and before it that of the best policy so far, if it is an earlier one."""
        trainer, options, began = self.trainer, self.options, time.perf_counter()
        score = self.latest.mean if self.latest.count else None
        try:
            if restored := self.files.restore():
                self.loggers.note(f"warning: {', '.join(restored)} of {self.run.folder} was deleted; written again")
            facts = {**trainer.counters(), "score": score, "evaluated_step": self.evaluated_step}
            facts |= {"latest_returns": list(self.latest.intervals), "has_new_episodes": self.has_new_episodes}
            facts["compared_step"] = self.compared_step
            files = trainer.state()
            files["state"] |= self.callbacks.save(self.env_params)
            with trainer.patient():
                self.best.write(trainer.step)
                path = checkpoint.save(self.folder, trainer.step, files, facts, options.save.keep)
            self.best.mark_saved(path, trainer.step)
        except (CheckpointError, OSError) as error:
            if must:
                raise
            self.loggers.note(f"warning: {error}")
            calls = False
        else:
            shown = "" if score is None else f", return {score:.4g} in the latest {self.latest.count:,} episodes"
            self.loggers.note(f"checkpoint at {trainer.step:,} steps{shown}")
        self.saved_at, self.saved_step = time.perf_counter(), trainer.step
        self.save_took_s = self.saved_at - began
        if calls:
            self.callbacks.call("on_checkpoint", self.context)

    def _select(self, score: float) -> None:
        """With evaluations during training: saves and marks this checkpoint if its evaluation is the best so far."""
        trainer = self.trainer
        if not self.options.eval.every or not self.best.is_reached_by(score):
            return
        if self.saved_step != trainer.step or self.run.last is None:
            self._save()
        path = self.folder / runs.checkpoint_name(trainer.step)
        if path.is_dir():  # otherwise it could not be written, which `_save` has reported
            try:
                self.best.mark(path, score)
            except CheckpointError as error:
                self.loggers.note(f"warning: {error}")

    def _evaluate(self, is_last: bool = False) -> evaluate.Evaluation | None:
        """Plays held-out episodes with the current policy, greedily and by sampling."""
        with self.trainer.patient():
            return self._evaluate_now(is_last)

    def _evaluate_now(self, is_last: bool) -> evaluate.Evaluation | None:
        options, trainer = self.options, self.trainer
        make = partial(make_evaluation_vec, trainer.env, options)
        asked, seed = options.eval.episodes, env_seed(options.seed)
        episodes = EVALUATION_EPISODES if asked is None else max(1, asked)
        # time never decides which checkpoint is the best: with evaluations during training each plays all episodes
        is_bounded = is_last and asked is None and not options.eval.every
        budget_s = max(EVALUATION_S, EVALUATION_SHARE * trainer.wall_s) if is_bounded else None
        # where no episode ended in training, none may end here
        limit = ENDLESS_STEPS if is_bounded and "episode/return" not in self.metrics else evaluate.MAX_STEPS
        chosen = "greedy" if options.eval.greedy else "sampled"
        players = {mode: trainer.player(mode == "greedy") for mode in ("greedy", "sampled")}
        try:
            result = evaluate.play_modes(
                make,
                players,
                episodes,
                seed,
                chosen=chosen,
                num_envs=EVALUATION_ENVS,
                max_steps=limit,
                budget_s=budget_s,
            )
        except ShoalError as error:
            self.loggers.note(f"warning: no evaluation: {error}")
            return None
        self.evaluated_step, self.evaluation = trainer.step, result
        self.loggers.note(f"evaluation: return {result.describe()}")
        counts = {name: len(score.returns) for name, score in result.scores.items()}
        if budget_s is not None and min(counts.values()) < episodes:
            shown = " and ".join(f"{count} {name}" for name, count in counts.items())
            self.loggers.note(
                f"evaluation: {shown} episodes of {episodes} each fit in {budget_s:.0f} s; --eval.episodes {episodes} "
                "plays all"
            )
        for name, played in result.scores.items():
            if played.cut:
                self.loggers.note(
                    f"warning: {played.cut} of {len(played.returns)} {name} episodes did not end in {limit:,} steps "
                    "and count with the return so far. Does the env have a time limit? --wrap time_limit=N sets one"
                )
        if (better := result.better()) not in (None, chosen):
            self.loggers.note(f"warning: {better} actions return more than {chosen} ones; see --eval.greedy")
        score = result.score
        record: dict[str, float] = {"step": trainer.step, "iteration": trainer.iteration, "wall_s": trainer.wall_s}
        record |= {"eval/return": score.mean, "eval/return_min": score.min, "eval/return_max": score.max}
        record |= {f"eval/return_{name}": result.scores[name].mean for name in players}
        record |= {f"eval/return/{name}": part for name, part in score.by_name(MAX_LISTED).items()}
        record |= {"eval/length": score.length, "eval/n": len(score.returns), "time": time.time()}
        self.loggers.log(record)
        self.metrics |= record
        self.callbacks.call("on_evaluation", self.context)  # before a checkpoint, which holds the callbacks' states
        self._select(score.mean)
        return result

    def _finish(self, status: str, reason: str, result: evaluate.Evaluation | None) -> None:
        trainer = self.trainer
        trainer.close()
        self.status, self.reason = status, reason
        if self.numbers:  # of callbacks, after the last record
            counters = {"step": trainer.step, "iteration": trainer.iteration, "wall_s": trainer.wall_s}
            self.loggers.log({**counters, **self.numbers, "time": time.time()})
        seconds = trainer.wall_s - self.first_wall_s  # of training, without evaluations, as the console counts
        summary: dict[str, Any] = {"status": status, "step": trainer.step, "wall_s": trainer.wall_s}
        summary |= {"sps": (trainer.step - self.first_step) / max(seconds, 1e-9), "reason": reason}
        summary |= {"eval": None if result is None else result.facts(), "exact": trainer.exact}
        summary |= {"latest_return": self.latest.mean if self.latest.count else None}
        summary |= {"best": self.best.facts(), "selected_by": self.best.selected_by}
        summary |= {"diagnosis": diagnosis.facts(self._diagnose())}
        with contextlib.suppress(OSError):
            self.run.write("summary.json", summary)
        self.loggers.close(summary)


def _read_every(trainer: Trainer) -> int:
    """Iterations between two reads of metrics. A read waits for the device."""
    return READ_EVERY_ON_GPU if trainer.on_gpu else 1


def _plain_reasons(trainer: Trainer) -> list[str]:
    """Why a run does not use fast code that there is: sentences."""
    reasons = {learner.plain_reason for learner in trainer.learners if learner.plain_reason}
    if trainer.shards is not None and trainer.on_gpu:
        reasons.add("with shards an update is not a CUDA graph: it waits for other shards")
    return sorted(reasons)
