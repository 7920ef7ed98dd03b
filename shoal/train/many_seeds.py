"""train_seeds: the same run with several seeds, by turns or side by side, with one summary.

By turns, all seeds use one trainer (turns.py); where its envs cannot give their state, they train one after the other.
Side by side, each seed has a process of its own, pinned to cores that no other seed uses. The parent draws a table from
the metrics that the runs write, passes signals on, and writes seeds.json (shoal/seed_groups.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import cloudpickle

from shoal import config, runs, seed_groups
from shoal.cores import available_cores
from shoal.errors import ConfigError, ShoalError, TrainingError
from shoal.log import check as check_loggers
from shoal.log import seeds as screen
from shoal.log.seeds import SeedRow
from shoal.runs import Run
from shoal.seed_groups import SeedGroup, parse_seeds
from shoal.train import init as initial_weights
from shoal.train import ranks, swap
from shoal.train.loop import train
from shoal.train.options import Options, options_for
from shoal.train.run_files import env_name
from shoal.train.signals import Stopped, handled_signals
from shoal.train.turns import Member, Turns

POLL_S = 0.25  # between two looks at the processes
WORKER = ("-m", "shoal.train.seed_worker")  # the program of a process
SIZE_BYTES = 8  # of the length before the arguments that a process gets


def train_seeds(
    env: Any,
    /,
    seeds: int | Sequence[int],
    *,
    parallel: int = 1,
    policy: Any = None,
    config_file: str | Path | None = None,
    init: str | Path | Run | None = None,
    resume: str | SeedGroup | None = None,
    runs_folder: str | Path = runs.ROOT,
    log: tuple[str, ...] = (),
    log_options: Mapping[str, Mapping[str, Any]] | None = None,
    console: str = "auto",
    options: Options | None = None,
    **tables: Any,
) -> SeedGroup:
    """Trains one run for each seed and returns the group: its runs, scores, mean and 95 % interval over seeds.

        group = train_seeds("cartpole", [1, 2, 3], parallel=3, train={"total_steps": "500k"})
        print(group.mean, group.ci95, group.scores)

    A seed that fails does not stop the others; at the end TrainingError names it.

    Args:
        env: what `shoal.make` takes.
        seeds: the seeds, or their number: 3 means 1, 2 and 3.
        parallel: seeds that train at the same time, each in a process with cores of its own.
        resume: a group to continue: its folder or id, `last`, or `auto` for the newest unfinished one of this env with
            these seeds, or a new one. Seeds that have finished are kept; new seeds are added.
        options: all options at once, instead of tables.
        **tables: and the other arguments are those of `train`.
    """
    wanted = parse_seeds(seeds)
    root = Path(runs_folder)
    cores = core_shares(parallel, min(parallel, len(wanted)))
    if "seed" in tables:
        raise ConfigError(f"seed={tables['seed']} and seeds={seeds} are mutually exclusive. Give seeds only.")
    group = resume if isinstance(resume, SeedGroup) or resume is None else _find(resume, env, wanted, root)
    if options is None:
        layers = [config.read_toml(Path(config_file))] if config_file is not None else []
        if group is not None:
            layers += [run.config for run in list(group.runs.values())[:1]]
        options = options_for(env, *layers, tables)
    if group is not None and init is not None and resume != "auto":
        initial_weights.check_resume(str(init), Run(group.folder), is_auto=False)
    check_loggers(log, log_options, console=console)
    if group is None:
        options = initial_weights.resolve(initial_weights.with_init(options, init), root)
        group = seed_groups.create(env_name(env), wanted, root, algo=options.algo, parallel=parallel)
    with Run(group.folder).lock():
        busy = [str(seed) for seed, run in group.runs.items() if run.is_running]
        if busy:
            raise ConfigError(
                f"seed {', '.join(busy)} of {group.id} is being trained by another process. Wait, or stop it."
            )
        added = [seed for seed in wanted if seed not in group.seeds]
        group.write({**group.facts, "seeds": [*group.seeds, *added], "status": "running", "parallel": parallel})
        todo = _Work(env, group, options, root, wanted)
        todo.arguments = {"policy": policy, "log": log, "log_options": log_options}
        try:
            if len(cores) > 1:
                todo.side_by_side(console, cores)
            elif todo.can_take_turns:
                todo.by_turns(console)
            else:
                todo.one_by_one(console)
        except BaseException:
            todo.finish(console, is_complete=False)
            raise
        todo.finish(console)
    return group


def _find(resume: str, env: Any, wanted: list[int], root: Path) -> SeedGroup | None:
    return seed_groups.group_to_resume(str(resume), env_name(env), wanted, root)


def core_shares(parallel: int, processes: int, flag: str = "--parallel") -> list[list[int]]:
    """The cores of each process: disjoint and equally many. `flag` is the user's word for `parallel`."""
    if isinstance(parallel, bool) or not isinstance(parallel, int) or parallel < 1:
        raise ConfigError(f"{flag} {parallel} must be an int of at least 1.")
    usable = available_cores()
    if parallel > usable:
        raise ConfigError(f"{flag} {parallel} needs as many cores; this process may use {usable}. Use {flag} {usable}.")
    listed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(usable))
    each = usable // processes
    return [listed[k * each : (k + 1) * each] for k in range(processes)]


class _Work:
    """The seeds that remain to be trained, and how they went."""

    arguments: dict[str, Any]

    def __init__(self, env: Any, group: SeedGroup, options: Options, root: Path, wanted: Sequence[int]) -> None:
        self.env, self.group, self.options, self.root = env, group, options, root
        self.began = time.monotonic()
        self.reasons: dict[int, str] = {}  # why seeds failed
        self.signal = 0
        finished = {seed for seed, run in group.runs.items() if (run.summary or {}).get("status") == "finished"}
        self.seeds = [seed for seed in group.seeds if seed in wanted and seed not in finished]

    def request(self, seed: int) -> dict[str, Any]:
        """The arguments of `train` for a seed: a new run, or the rest of one that has a checkpoint."""
        run = self.group.runs.get(seed)
        can_resume = run is not None and bool(run.resumable())
        if run is not None and not can_resume:
            _remove_empty(run)  # it was stopped before its first checkpoint: it starts again, under the same name
        return {
            **self.arguments,
            "options": dataclasses.replace(self.options, seed=seed),
            "runs_folder": self.root,
            "resume": run if can_resume else None,
            "run_id": None if can_resume else self.group.run_id(seed),
        }

    # ---- by turns, on one trainer ----

    @property
    def can_take_turns(self) -> bool:
        """Whether there are several seeds, and their runs can use one trainer."""
        reason = swap.not_shared(self.env, self.options, self.arguments["policy"])
        return len(self.seeds) > 1 and not reason and ranks.join() is None

    def by_turns(self, console: str) -> None:
        """Trains all seeds together: each takes a few iterations at a time on the same trainer."""
        env, count = self.group.facts.get("env"), len(self.seeds)
        display = screen.SeedScreen(console, f"{env}, {self.options.algo}, {count} seeds, by turns", is_together=True)
        members = [Member(seed, self.request(seed)) for seed in self.seeds]
        shown: dict[str, Any] = {"show": display.show, "note": display.note, "ended": self._member_ended}
        turns = Turns(self.env, members, kind="seed", **shown)
        try:
            turns.run()
        except Stopped as stop:
            self.signal = stop.number
            raise Stopped(stop.number, Run(self.group.folder)) from None
        finally:
            display.close()

    def _member_ended(self, member: Member) -> None:
        if member.failure is not None:
            self.reasons[member.number] = describe_error(member.failure)
        self.group.update("running", self.reasons)

    # ---- one after the other, in this process ----

    def one_by_one(self, console: str) -> None:
        """Trains seed after seed. Each has the display of a single run."""
        for number, seed in enumerate(self.seeds):
            if console != "off":
                print(f"\nSeed {seed}, {number + 1} of {len(self.seeds)}", flush=True)
            try:
                train(self.env, console=console, **self.request(seed))
            except Stopped as stop:
                self.signal = stop.number
                raise Stopped(stop.number, Run(self.group.folder)) from None
            except ConfigError as error:
                if number == 0:  # a mistake in the options: every seed would have it
                    raise
                self.reasons[seed] = describe_error(error)
            except Exception as error:
                self.reasons[seed] = describe_error(error)
            self.group.update("running", self.reasons)

    # ---- side by side, in processes ----

    def side_by_side(self, console: str, cores: list[list[int]]) -> None:
        """Trains as many seeds at a time as there are shares of cores."""
        rows = {seed: SeedRow(seed, total_steps=self.options.train.total_steps) for seed in self.seeds}
        title = f"{self.group.facts.get('env')}, {self.options.algo}, {len(self.seeds)} seeds, {len(cores)} at a time"
        display = screen.SeedScreen(console, title)
        waiting, free = list(self.seeds), list(range(len(cores)))
        children: dict[int, _Child] = {}
        try:
            with self._signals(children, display):
                while waiting or children:
                    while waiting and free and not self.signal:
                        seed, slot = waiting.pop(0), free.pop(0)
                        rows[seed].cores = _as_ranges(cores[slot])
                        rows[seed].status = "starting"
                        children[seed] = _Child(self.env, self.request(seed), cores[slot], self.group, seed, slot)
                    if self.signal:
                        waiting.clear()
                    time.sleep(POLL_S)
                    for seed, child in list(children.items()):
                        child.follow(rows[seed])
                        if (code := child.process.poll()) is not None:
                            free.append(child.slot)
                            del children[seed]
                            rows[seed].status = self._ended(seed, child, code)
                            self.group.update("running", self.reasons)
                    display.show(list(rows.values()))
        finally:
            for child in children.values():
                child.process.kill()
                child.process.wait()
                child.close()
            display.close()
        if self.signal:
            raise Stopped(self.signal, Run(self.group.folder))

    def _ended(self, seed: int, child: _Child, code: int) -> str:
        """The status of a seed whose process has ended. A mistake in the options ends all seeds."""
        child.close()
        if code == 0:
            return "finished"
        stops = {signal.SIGTERM, signal.SIGINT, self.signal}
        if self.signal and (code - 128 in stops or -code in stops):  # the second: while it was starting
            return "interrupted"
        said = child.last_line()
        if code == 2 and seed not in self.group.runs:
            raise ConfigError(said.partition(": ")[2] or said)
        self.reasons[seed] = f"killed by {signal.Signals(-code).name}" if code < 0 else said
        return "failed"

    def _signals(self, children: Mapping[int, _Child], display: screen.SeedScreen) -> AbstractContextManager[None]:
        """Passes signals on to all seeds, which save a checkpoint and stop; a second Ctrl-C stops them at once."""

        def ask(number: int) -> None:
            again = "" if self.signal else "; press Ctrl-C again to stop immediately"
            # a process that is starting may ignore Ctrl-C, as jobs in the background do
            passed_on = number if self.signal else signal.SIGTERM
            self.signal = self.signal or number
            display.note(f"{signal.Signals(number).name}: every seed saves a checkpoint and stops{again}")
            for child in children.values():
                child.process.send_signal(passed_on)

        return handled_signals(ask)

    # ---- the end ----

    def finish(self, console: str, is_complete: bool = True) -> None:
        """Writes and prints the summary. Raises TrainingError if a seed failed; not if training was broken off."""
        if not self.group.runs and not self.reasons:  # a mistake, before any run was made
            _remove_empty(self.group)
            return
        status = "finished" if self.group.is_finished else "failed" if is_complete else "interrupted"
        self.group.update(status, self.reasons, time.monotonic() - self.began)
        if console != "off":
            screen.print_summary(self.group.facts, self.group.folder)
        if self.reasons and is_complete:
            failed = [seed for seed in self.group.seeds if seed in self.reasons]
            reasons = " ".join(f"Seed {seed}: {self.reasons[seed].rstrip('.')}." for seed in failed)
            raise TrainingError(
                f"{len(failed)} of {len(self.group.seeds)} seeds failed: {', '.join(map(str, failed))}. {reasons} "
                f"--resume {shlex.quote(str(self.group.folder))} trains them again."
            )


class _Child:
    """The process of a seed."""

    def __init__(
        self, env: Any, request: dict[str, Any], cores: list[int], group: SeedGroup, seed: int, slot: int
    ) -> None:
        self.slot, self.log = slot, group.folder / f"seed-{seed}.log"
        resumed: Run | None = request["resume"]
        self.folder = resumed.folder if resumed is not None else group.folder.parent / group.run_id(seed)
        payload = cloudpickle.dumps({**request, "env": env, "argv": sys.argv})
        path = os.pathsep.join(part or os.getcwd() for part in sys.path)
        with self.log.open("ab") as log, pinned(cores):
            self.process = subprocess.Popen(
                [sys.executable, *WORKER],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C reaches the parent only, which passes it on
            )
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once: `poll` reports it
            self.process.stdin.write(len(payload).to_bytes(SIZE_BYTES, "little") + payload)
            self.process.stdin.flush()
        self.read_to = 0  # bytes of metrics.jsonl

    def follow(self, row: SeedRow) -> None:
        """Updates a row of the table by the lines that were added to metrics.jsonl."""
        file = self.folder / "metrics.jsonl"
        with contextlib.suppress(OSError), file.open("rb") as metrics:
            metrics.seek(self.read_to)
            text = metrics.read()
            complete = text.rfind(b"\n") + 1
            self.read_to += complete
            for line in text[:complete].splitlines():
                with contextlib.suppress(ValueError):
                    _put_record(row, json.loads(line))
            row.status = "running"

    def last_line(self) -> str:
        """The last line that the process printed."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"its process printed nothing: see {self.log}"

    def close(self) -> None:
        """Closes the pipe to a process that has ended."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()


def _put_record(row: SeedRow, record: Mapping[str, Any]) -> None:
    """Puts one record of metrics.jsonl into a row of the table."""
    row.step = int(record.get("step", row.step))
    row.wall_s = float(record.get("wall_s", row.wall_s))
    row.sps = record.get("sps", row.sps)
    if record.get("episode/return") is not None:
        row.episode_return = float(record["episode/return"])


@contextlib.contextmanager
def pinned(cores: list[int]) -> Iterator[None]:
    """A context in which new processes inherit these cores."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _as_ranges(cores: list[int]) -> str:
    """`0-3` for [0, 1, 2, 3]; a list if the cores are not neighbours."""
    if len(cores) > 1 and cores == list(range(cores[0], cores[-1] + 1)):
        return f"{cores[0]}-{cores[-1]}"
    return ",".join(map(str, cores))


def describe_error(error: BaseException) -> str:
    """An exception in one line. Its traceback is printed if it is not one of Shoal's own."""
    if not isinstance(error, ShoalError):
        import traceback

        traceback.print_exception(error)
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _remove_empty(place: Run | SeedGroup) -> None:
    """Removes the folder of a run without checkpoints, or of a group without runs."""
    import shutil

    shutil.rmtree(place.folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # the env's folder, if it has no other runs
        place.folder.parent.rmdir()
