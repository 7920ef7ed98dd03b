"""train_population: members with other seeds and options, which take turns on one trainer; with PBT they copy others.

    runs/<env>/<time>-population/
      seeds.json         the members, their runs and results (shoal/seed_groups.py)
      population.jsonl   every exchange: who copied whom, and the new options (pbt.py)
    runs/<env>/<time>-member<n>/   an ordinary run for each member

With PBT all members reach the step of an exchange before anyone goes on. Checkpoints are written there, before the
exchange. A killed population goes back to the last such step that all members have, and takes the same way again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal import config, runs, seed_groups
from shoal.errors import ConfigError, TrainingError
from shoal.log import check as check_loggers
from shoal.log.seeds import SeedScreen, print_summary
from shoal.runs import Run, checkpoint_step, write_atomic
from shoal.seed_groups import SeedGroup
from shoal.sweep.api import layers_of, nested
from shoal.sweep.pbt import PBT, Decision, Journal, decide, first_values, recorded
from shoal.sweep.space import Space, make_space
from shoal.train import ranks, swap
from shoal.train.many_seeds import describe_error
from shoal.train.options import Options, as_tables, options_for
from shoal.train.recent import LEAST, LatestReturns
from shoal.train.run_files import env_name
from shoal.train.session import Session
from shoal.train.signals import Stopped
from shoal.train.turns import SHORTEST, Member, Turns

EXCHANGES = 20  # of a run, if `every` is not given
MAY_CHANGE = tuple(f"train.{name}" for name in swap.FREE if name == "learning_rate" or name not in swap.OF_HOST)


def train_population(
    env: Any,
    /,
    members: int = 16,
    *,
    pbt: PBT | bool = False,
    layers: Sequence[Mapping[str, Any]] | None = None,
    ranges: Mapping[str, Any] | None = None,
    replay: str | Path | SeedGroup | None = None,
    resume: SeedGroup | None = None,
    runs_folder: str | Path = runs.ROOT,
    log: tuple[str, ...] = (),
    log_options: Mapping[str, Mapping[str, Any]] | None = None,
    console: str = "auto",
    options: Options | None = None,
    **tables: Any,
) -> SeedGroup:
    """Trains a population and returns it: a group whose runs are the members.

        found = train_population("cartpole", 16, pbt=True, ranges={"train.learning_rate": "log(1e-4, 1e-1)"})
        print(found.facts["best"], found.scores)

    Member 0 starts with the options as given, the others with options drawn from the ranges. Each has a seed of its
    own: that of the options plus its number.

    Args:
        env: a native env, as `shoal.make` takes it.
        members: their number.
        pbt: whether members copy others; `PBT(every=100_000, ...)` says how.
        layers: `[sweep]` tables below `ranges`: those of the env's TOML file, which are the default, and of the user's.
        ranges: by option, as for `sweep`. They must keep the shape of a run.
        replay: a population whose exchanges are repeated, in place of new ones.
        resume: a population to continue.
        options: all options at once, instead of tables.
        **tables: and the other arguments are those of `train`.
    """
    rule = (PBT() if pbt else None) if isinstance(pbt, bool) else pbt
    if resume is not None:
        options = options_for(env, resume.facts["options"])
        rule = PBT(**resume.facts["pbt"]) if resume.facts["pbt"] else None
    options = options_for(env, tables) if options is None else options
    check_loggers(log, log_options, console=console)
    if ranks.join() is not None:
        raise ConfigError(f"--population {members} trains in one process. Leave out torchrun, --gpus and --processes.")
    if resume is None:
        below = layers_of(env, options, {}) if layers is None else list(layers)
        group = _create(env, members, options, rule, [*below, nested(ranges or {})], replay, Path(runs_folder))
    else:
        group = resume
    arguments = {"log": log, "log_options": log_options, "runs_folder": group.folder.parent.parent}
    with Run(group.folder).lock():
        work = _Population(env, group, options, rule, arguments)
        try:
            work.train(console)
        except ConfigError:
            if not group.runs:
                shutil.rmtree(group.folder, ignore_errors=True)
            raise
    return group


def _create(
    env: Any,
    members: int,
    options: Options,
    rule: PBT | None,
    layers: Sequence[Mapping[str, Any]],
    replay: Any,
    root: Path,
) -> SeedGroup:
    """The folder of a new population, once everything is checked."""
    if isinstance(members, bool) or not isinstance(members, int) or not 2 <= members <= 10_000:
        raise ConfigError(f"--population {members} must be a number of members in 2 .. 10000.")
    if reason := swap.not_shared(env, options):
        raise ConfigError(f"--population {members} does not support {reason}. Use --seeds or 'shoal sweep'.")
    if rule is not None:
        config.check(rule, "population")
        if rule.quantile == 0.0:
            raise ConfigError("population.quantile = 0.0: no member would copy another. Use 0.25, or leave out --pbt.")
    if rule is None and replay is not None:
        raise ConfigError("--replay repeats the exchanges of a population. Add --pbt.")
    space = _space(env, options, layers, members)
    saved: dict[str, Any] = json.loads(json.dumps(as_tables(options)))
    facts: dict[str, Any] = {"called": "member", "algo": options.algo, "options": saved}
    facts |= {"ranges": space.as_texts(), "pbt": None if rule is None else dataclasses.asdict(rule)}
    given = space.values_of(options)
    first = first_values(space.ranges, given, members, options.seed)
    if replay is not None:
        source = replay if isinstance(replay, SeedGroup) else seed_groups.find_group(replay, root)
        if source is None:
            raise ConfigError(f"--replay {replay}: {root}/ has no population by that name. 'shoal runs' lists them.")
        recorded(source.folder)
        if len(source.seeds) != members or source.facts["options"] != facts["options"]:
            raise ConfigError(
                f"--replay {source.id} has {len(source.seeds)} members and options of its own. Replay it with the same "
                "ones: --population and all other flags as they were."
            )
        first = [source.facts["first"][str(number)] for number in range(members)]
        facts |= {"pbt": source.facts["pbt"], "replay": str(source.folder.resolve())}
    facts["first"] = {str(number): values for number, values in enumerate(first)}
    return seed_groups.create(env_name(env), range(members), root, "population", **facts)


def _space(env: Any, options: Options, layers: Sequence[Mapping[str, Any]], members: int) -> Space:
    """The ranges of the options that members may have differently. One that the user gives must be one of them."""
    space = make_space(env, options, layers)
    tables = [(table, part) for layer in layers[1:] for table, part in layer.items() if isinstance(part, Mapping)]
    own = [f"{table}.{name}" for table, part in tables for name in part]
    for name in own:
        if name in space.ranges and name not in MAY_CHANGE:
            raise ConfigError(
                f"--sweep.{name} with --population {members}: members share one trainer, and {name} decides its shape. "
                f"They may differ in {', '.join(MAY_CHANGE)}; 'shoal sweep' changes others."
            )
    kept = {name: part for name, part in space.ranges.items() if name in MAY_CHANGE}
    if not kept:
        raise ConfigError(
            f"--population {members} needs a range of an option that members may differ in. Add one: "
            "--sweep.train.learning-rate 'log(1e-4, 1e-2)'."
        )
    return Space(kept)


class _Population:
    """A population in training."""

    def __init__(
        self, env: Any, group: SeedGroup, options: Options, rule: PBT | None, arguments: Mapping[str, Any]
    ) -> None:
        self.env, self.group, self.rule, self.arguments = env, group, rule, dict(arguments)
        self.options = options
        self.space = make_space(env, options, [nested(group.facts["ranges"])])
        self.journal = Journal(group.folder)
        self.replayed = recorded(Path(group.facts["replay"])) if group.facts.get("replay") else None
        self.first = {int(number): values for number, values in group.facts["first"].items()}
        self.reasons: dict[int, str] = {}
        self.began = time.monotonic()

    def options_of(self, number: int, values: Mapping[str, Any]) -> Options:
        """The options of a member with these values."""
        save = dataclasses.replace(self.options.save, keep=max(2, self.options.save.keep))  # see `_go_back`
        return dataclasses.replace(self.space.apply(self.options, values), seed=self.options.seed + number, save=save)

    def train(self, console: str) -> None:
        """Trains all members that have not finished, and writes the result."""
        runs_now = self.group.runs
        step = self._go_back(runs_now)
        values = self.journal.values_at(self.first, step) if self.rule is not None else self.first
        ended = {n: (run.summary or {}).get("status") for n, run in runs_now.items()}
        over = [n for n, status in ended.items() if status == "finished" or (status == "failed" and self.rule)]
        self.reasons |= {n: (runs_now[n].summary or {}).get("reason", "") for n in over if ended[n] == "failed"}
        members = [self._member(n, values[n], runs_now.get(n)) for n in self.group.seeds if n not in over]
        env, count = self.group.facts.get("env"), len(self.group.seeds)
        kind = "population-based training" if self.rule is not None else "by turns"
        display = SeedScreen(console, f"{env}, {self.options.algo}, {count} members, {kind}", "member", True)
        turns = _Turns(self, members, step, show=display.show, note=display.note, ended=self._ended)
        try:
            with contextlib.closing(display):  # before the summary is printed
                turns.run()
        except Stopped as stop:
            self._finish(console, is_complete=False)
            raise Stopped(stop.number, Run(self.group.folder)) from None
        except BaseException:
            self._finish("off", is_complete=False)
            raise
        self._finish(console)

    def _member(self, number: int, values: Mapping[str, Any], run: Run | None) -> Member:
        can_resume = run is not None and bool(run.resumable())
        if run is not None and not can_resume:
            shutil.rmtree(run.folder, ignore_errors=True)
        request = {**self.arguments, "options": self.options_of(number, values)}
        request |= {"resume": run if can_resume else None, "run_id": None if can_resume else self.group.run_id(number)}
        member = Member(number, request)
        member.values = dict(values)
        return member

    def _go_back(self, runs_now: Mapping[int, Run]) -> int:
        """With PBT: the last step that all members have a checkpoint of; later ones are removed.

        Members that have finished go back too: others may copy them on the way. One that failed stays as it is.
        """
        if self.rule is None or self.group.is_finished:
            return 0
        again = [run for run in runs_now.values() if (run.summary or {}).get("status") != "failed"]
        steps = [{_step(path) for path in run.resumable()} for run in again]
        is_complete = len(runs_now) == len(self.group.seeds)
        step = max(set.intersection(*steps), default=0) if steps and is_complete else 0
        for run in again:
            for path in run.checkpoints():
                if _step(path) > step:
                    shutil.rmtree(path)
            (run.folder / "summary.json").unlink(missing_ok=True)
            run.__dict__.pop("summary", None)
        self.journal.rewind(step)
        return step

    def _ended(self, member: Member) -> None:
        if member.failure is not None:
            self.reasons[member.number] = describe_error(member.failure)
        self.group.update("running", self.reasons)

    def _finish(self, console: str, is_complete: bool = True) -> None:
        group = self.group
        status = "finished" if group.is_finished else "failed" if is_complete else "interrupted"
        group.update(status, self.reasons, time.monotonic() - self.began)
        scores = group.scores
        best = max(scores, key=lambda n: scores[n], default=None)
        values = self.journal.values_at(self.first, 1 << 62)
        group.write({**group.facts, "best": best, "values": {str(n): own for n, own in values.items()}})
        if console != "off" and group.runs:
            print_summary(group.facts, group.folder)
        if self.reasons and is_complete:
            failed = ", ".join(f"{n} ({reason.rstrip('.')})" for n, reason in sorted(self.reasons.items()))
            raise TrainingError(f"{len(self.reasons)} of {len(group.seeds)} members failed: {failed}.")


class _Turns(Turns):
    """Turns that end where members exchange."""

    def __init__(self, population: _Population, members: Sequence[Member], step: int, **shown: Any) -> None:
        super().__init__(population.env, members, **shown)
        self.population, self.rule = population, population.rule
        self.exchanged = step  # the step of the last exchange that is over, or that members continue from
        self.saved_at, self.saves = time.monotonic(), False
        for member in members:
            member.row.about = _short(member.values)

    @property
    def stops_at_once(self) -> bool:  # type: ignore[override]
        """With PBT a signal waits for the next exchange: there all members have the same step."""
        return self.rule is None

    def prepare(self, session: Session) -> None:
        """Scores are read where the iterations say, not the clock: the same seeds give the same exchanges."""
        if self.rule is not None:
            session.reads, session.saves_by_itself = True, False

    def _settle_rounds(self, member: Member) -> None:
        super()._settle_rounds(member)
        if self.rule is None:
            return
        trainer = member.opened.trainer
        every = self.rule.every or trainer.options.train.total_steps // EXCHANGES
        iterations = max(1, round(every / trainer.steps_per_iteration))
        if trainer.on_gpu:
            iterations = -(-iterations // SHORTEST) * SHORTEST  # metrics are read every 8th iteration
        self.round_steps = iterations * trainer.steps_per_iteration

    def play_round(self) -> None:
        """One turn of every member, then the exchange."""
        if self.rule is None:
            super().play_round()
            return
        if self.exchanged and any(member.session is None for member in self.active):
            for member in self.active:  # of a population that is resumed
                self.enter(member)
                self.leave(member, saves=False)
            self._exchange(self.exchanged)
        now = time.monotonic()
        self.saves = now - self.saved_at >= self.population.options.save.every_s > 0.0
        super().play_round()
        steps = {member.step for member in self.active}
        if self.signal or not steps:
            return
        if self.saves:
            self.saved_at = now
        self._exchange(min(steps))

    def leave(self, member: Member, saves: bool = True) -> None:
        """With a checkpoint, where one is due: before the exchange."""
        session = member.opened
        session._log()
        if self.saves and saves:
            session._save()
        super().leave(member)

    # ---- exchanges ----

    def _exchange(self, step: int) -> None:
        """The exchange at a step: as the journal says, as the replayed population did, or by the scores."""
        assert self.rule is not None
        journal, population = self.population.journal, self.population
        decisions = journal.read().get(step)
        if decisions is None:
            if population.replayed is not None:
                decisions = population.replayed.get(step, [])
            else:
                scores = {m.number: m.opened.latest.mean for m in self.active if m.opened.latest.count}
                values = {member.number: member.values for member in self.active}
                space, seed = population.space, population.options.seed
                decisions = decide(scores, values, space.ranges, self.rule, seed=seed, step=step)
            journal.add(step, decisions)
        found = {member.number: member for member in self.active}
        states = {number: member.snapshot for number, member in found.items() if member.snapshot is not None}
        # as they are before anyone copies: a source may itself copy another one
        files = {number: {part: dict(x) for part, x in state.files.items()} for number, state in states.items()}
        for one in decisions:
            if one.member in files and one.source in files:
                self._copy(found[one.member], files[one.source], one)
        self.exchanged = step

    def _copy(self, member: Member, state: swap.Files, decision: Decision) -> None:
        """Gives a member the weights, optimizer and normalizers of another one, and new options."""
        snapshot, session = member.snapshot, member.opened
        assert snapshot is not None
        kept = self.pool.kept
        assert kept is not None
        names = {"weights": list(snapshot.files["weights"]), "state": list(kept.trainer._state_tensors())}
        for part, copied in names.items():
            snapshot.files[part] |= {name: state[part][name] for name in copied}  # nobody changes them in place
        member.values = dict(decision.values)
        settled = snapshot.options
        asked = self.population.options_of(member.number, decision.values).train.resolve(kept.trainer.num_rows)
        snapshot.options = session.options = dataclasses.replace(settled, train=asked)
        session.latest, session.has_new_episodes = LatestReturns(least=LEAST), False
        write_atomic(session.run.folder / "config.toml", config.write_toml(as_tables(session.options)).encode())
        numbers = {"population/source": decision.source, **_numbers(decision.values)}
        for name, value in numbers.items():
            with contextlib.suppress(ConfigError):
                session.add_number(name, value)
        session.loggers.note(f"step {session.trainer.step:,}: copied member {decision.source}; {_short(member.values)}")
        member.row.about = _short(member.values)


def _step(path: Path) -> int:
    return checkpoint_step(path) or 0


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {f"population/{name.partition('.')[2]}": float(value) for name, value in values.items()}


def _short(values: Mapping[str, Any]) -> str:
    """`learning_rate 0.003, gamma 0.99`."""
    return ", ".join(f"{name.partition('.')[2]} {value:.4g}" for name, value in values.items())
