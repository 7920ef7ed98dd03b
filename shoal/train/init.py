"""`--init RUN`: a new run starts with the weights and observation normalizers of another run, as far as they fit.

A module (a layer, a recurrent core, a normalizer) is loaded whole or not at all: the weight of a layer without its
bias, or the count of a normalizer without its mean, would be worse than none. The optimizer starts anew. The policies
of two runs are matched by number; a source with one policy initializes every policy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal import checkpoint, config, runs
from shoal.algos.actor import Actor
from shoal.errors import CheckpointError, ConfigError
from shoal.runs import Run
from shoal.train.options import Options

SHOWN = 12  # modules that are listed on the screen; run.json has all
PARTS = "policy"  # tensors that are attributes of the policy itself are modules of their own


@dataclass(frozen=True)
class Skipped:
    """A tensor that was not loaded: its shape here and in the source. None: one of the two does not have it."""

    name: str
    here: tuple[int, ...] | None
    there: tuple[int, ...] | None
    note: str = ""

    def __str__(self) -> str:
        if self.there is None:
            return f"{self.name} {self.here}: the source has none"
        if self.here is None:
            return f"{self.name} {self.there} of the source: this run has none"
        if self.note:
            return f"{self.name} {self.here}: {self.note}"
        return f"{self.name} {self.here}: the source has {self.there}"


@dataclass(frozen=True)
class InitReport:
    """What `--init` loaded."""

    source: str  # RUN@STEP
    loaded: dict[str, tuple[int, ...]] = field(default_factory=dict)  # shapes of the tensors, by name
    skipped: list[Skipped] = field(default_factory=list)
    differing: dict[str, tuple[Any, Any]] = field(default_factory=dict)  # options of the network: here, in the source

    @property
    def is_complete(self) -> bool:
        """Whether every tensor was loaded, and none of the source is unused."""
        return not self.skipped

    def facts(self) -> dict[str, Any]:
        """Plain values for run.json."""
        return {
            "source": self.source,
            "loaded": {name: list(shape) for name, shape in self.loaded.items()},
            "not_loaded": [dataclasses.asdict(part) for part in self.skipped],
            "differing": {name: list(values) for name, values in self.differing.items()},
        }

    def lines(self) -> list[str]:
        """What was loaded and what was not, for the screen."""
        here = len(self.loaded) + sum(part.here is not None for part in self.skipped)
        others = [
            f"  --nn.{name.replace('_', '-')} is {_shown(a)}; the source has {_shown(b)}"
            for name, (a, b) in self.differing.items()
        ]
        if self.is_complete:
            return [f"Initialized from {self.source}: all {here} tensors.", *others]
        lines = [f"Initialized from {self.source}: {len(self.loaded)} of {here} tensors."]
        named = [f"{name} {shape}" for name, shape in self.loaded.items()]
        for title, texts in (("loaded", named), ("not loaded", [str(part) for part in self.skipped])):
            lines.append(f"  {title}:")
            lines += [f"    {text}" for text in texts[:SHOWN]]
            if len(texts) > SHOWN:
                lines.append(f"    and {len(texts) - SHOWN} more, listed under init in run.json")
        return lines + others


def _shown(value: Any) -> str:
    return "none" if value == "" else str(value)


def find_source(source: str | Path | Run, root: str | Path = runs.ROOT) -> tuple[Run, Path]:
    """The run and the checkpoint that RUN, RUN@best, RUN@last, RUN@STEP or the folder of a checkpoint names."""
    text = str(source.folder) if isinstance(source, Run) else str(source)
    if (Path(text) / "meta.json").is_file():
        return Run(Path(text).parent.parent), Path(text)
    name, which = text, ""
    if not (Path(text) / "run.json").is_file() and "@" in text:
        name, _, which = text.rpartition("@")
        if not name or not which:
            raise ConfigError(f"--init {text} is not RUN, RUN@best, RUN@last or RUN@STEP. Try --init last@best.")
    try:
        run = runs.find(name, root)
    except ConfigError as error:
        raise ConfigError(f"--init {text}: {error}") from None
    return run, runs.choose_checkpoint(run, which or "best", f"--init {text}")


def with_init(options: Options, init: str | Path | Run | None) -> Options:
    """The options with another source; None leaves them as they are."""
    if init is None:
        return options
    return dataclasses.replace(options, init=str(init.folder) if isinstance(init, Run) else str(init))


def resolve(options: Options, root: str | Path = runs.ROOT) -> Options:
    """The options with the source of `--init` as the folder of its run and a step, so that config.toml names it."""
    if not options.init:
        return options
    run, path = find_source(options.init, root)
    checkpoint.read_meta(path)  # raises if it is damaged
    return dataclasses.replace(options, init=f"{run.folder.resolve()}@{runs.checkpoint_step(path)}")


def check_resume(given: str, old: Run, is_auto: bool) -> None:
    """Raises for `--init` with a run to resume, which has weights of its own.

    `--resume auto` may have it: it applies where no unfinished run is found.
    """
    if given and not is_auto:
        raise ConfigError(
            f"--init {given} and --resume {old.id} are mutually exclusive: a resumed run has its own weights. Leave "
            f"out --resume to start a new run from {given}, or leave out --init."
        )


def load(actors: Sequence[Actor], options: Options) -> InitReport:
    """Copies the weights and normalizers of the source into the actors, as far as they fit.

    Raises ConfigError, before anything is copied, if nothing fits.
    """
    run, path = find_source(options.init)
    files, meta = checkpoint.load(path, ("weights",))
    report = InitReport(f"{run.folder}@{meta['step']}", differing=_differing(run, options))
    plans = [
        _plan(actor, _policy_weights(files["weights"], k), f"{k}." * (len(actors) > 1))
        for k, actor in enumerate(actors)
    ]
    for fitting, skipped in plans:
        report.loaded.update({name: tuple(value.shape) for name, (_, value) in fitting.items()})
        report.skipped.extend(skipped)
    if not report.loaded:
        raise ConfigError(_nothing_fits(run, options, report))
    with torch.no_grad():
        for fitting, _ in plans:
            for into, value in fitting.values():
                into.copy_(value)
    return report


def _policy_weights(weights: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    """The tensors of one policy of a checkpoint, by their names in it; those of policy 0 if it is the only one."""
    by_policy: dict[str, dict[str, Tensor]] = {}
    for name, value in weights.items():
        policy, _, rest = name.partition(".")
        by_policy.setdefault(policy, {})[rest] = value
    if not by_policy:
        raise CheckpointError("the checkpoint of --init has no weights.")
    return by_policy.get(str(number) if len(by_policy) > 1 else "0", {})


def _plan(
    actor: Actor, there: Mapping[str, Tensor], prefix: str
) -> tuple[dict[str, tuple[Tensor, Tensor]], list[Skipped]]:
    """The tensors to copy (name: into, from), and those that do not fit."""
    here = actor.state_dict()
    problems = {name: problem for name, value in here.items() if (problem := _problem(name, value, there.get(name)))}
    broken = {_module(name) for name in problems}
    fitting: dict[str, tuple[Tensor, Tensor]] = {}
    skipped: list[Skipped] = []
    for name, value in here.items():
        if _module(name) not in broken:
            fitting[prefix + name] = value, there[name]
            continue
        found = problems.get(name) or Skipped(
            name, tuple(value.shape), tuple(there[name].shape), "the rest of its module does not fit"
        )
        skipped.append(dataclasses.replace(found, name=prefix + name))
    unused = [name for name in there if name not in here]
    skipped += [Skipped(prefix + name, None, tuple(there[name].shape)) for name in unused]
    return fitting, skipped


def _problem(name: str, here: Tensor, there: Tensor | None) -> Skipped | None:
    """Why a tensor of the source cannot be copied; None if it can."""
    if there is None:
        return Skipped(name, tuple(here.shape), None)
    if there.shape != here.shape:
        return Skipped(name, tuple(here.shape), tuple(there.shape))
    if there.dtype != here.dtype:
        return Skipped(name, tuple(here.shape), tuple(there.shape), f"the source has {there.dtype}, not {here.dtype}")
    return None


def _module(name: str) -> str:
    """The module that a tensor belongs to."""
    module = name.rpartition(".")[0]
    return name if module == PARTS else module


def _differing(run: Run, options: Options) -> dict[str, tuple[Any, Any]]:
    """The options of the network in which two runs differ: here, there. Weights may fit and still compute another
    function, with another activation.
    """
    theirs = run.config.get("nn", {}) if (run.folder / "config.toml").is_file() else {}
    ours = config.to_dict(options.nn)  # as in a file: tuples are lists there
    names = [name for name in theirs if name in ours and name not in ("policies", "log_std", "mean")]
    return {name: (ours[name], theirs[name]) for name in names if ours[name] != theirs[name]}


def _nothing_fits(run: Run, options: Options, report: InitReport) -> str:
    """The error, with an example and the options of the network in which the two runs differ."""
    example = next((part for part in report.skipped if part.here and part.there), report.skipped[0])
    text = f"--init {report.source}: none of its weights fits this run. For example, {example}."
    flags = [
        f"--nn.{name.replace('_', '-')} {there}" if there != "" else f"no --nn.{name.replace('_', '-')}"
        for name, (_, there) in report.differing.items()
    ]
    algo = run.facts.get("algo")
    if algo is not None and algo != options.algo:
        flags.insert(0, f"--algo {algo}")
    if flags:
        return f"{text} That run has {' '.join(flags)}: use the same."
    return f"{text} Name a run with the same observations and network."
