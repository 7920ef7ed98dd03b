"""Population-based training (Jaderberg et al. 2017): who copies whom, and which options the copies get.

    every `every` steps:
        exploit   the worst quarter copies weights, optimizer and options of members of the best quarter
        explore   each copied option is multiplied or divided by `factor`, or drawn anew from its range

Rules only: evolve.py trains. All choices depend on the seed, the step and the scores. They are written to a journal.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shoal.config import opt
from shoal.errors import ConfigError
from shoal.seeds import stream_seed
from shoal.sweep.ranges import Range

JOURNAL = "population.jsonl"


@dataclass(frozen=True)
class PBT:
    """How members of a population learn from each other: the table `[population]` of a TOML file."""

    every: int = opt(0, "steps of a member between exchanges; 0: a twentieth of the run", low=0, is_count=True)
    quantile: float = opt(0.25, "part of the members that copy, and part that is copied", low=0.0, high=0.5)
    resample: float = opt(0.25, "probability that a copied option is drawn anew from its range", low=0.0, high=1.0)
    factor: float = opt(1.2, "otherwise it is multiplied or divided by this", low=1.0, high=10.0)


@dataclass(frozen=True)
class Decision:
    """One member that copies another, and its options from then on."""

    member: int
    source: int
    score: float  # of the member that copies
    source_score: float
    values: dict[str, Any] = field(default_factory=dict)


def first_values(ranges: Mapping[str, Range], given: Mapping[str, Any], count: int, seed: int) -> list[dict[str, Any]]:
    """The options that members start with: member 0 as given, the others drawn from the ranges."""
    values = [{name: given[name] for name in ranges if name in given}]
    for number in range(1, count):
        rng = random.Random(stream_seed(seed, "population", f"member {number}"))
        values.append({name: draw(part, rng) for name, part in ranges.items()})
    return values


def decide(
    scores: Mapping[int, float],
    values: Mapping[int, Mapping[str, Any]],
    ranges: Mapping[str, Range],
    options: PBT,
    *,
    seed: int,
    step: int,
) -> list[Decision]:
    """Who copies whom at a step. Members without a score neither copy nor are copied."""
    ranked = sorted((number for number in scores if math.isfinite(scores[number])), key=lambda n: (scores[n], n))
    count = min(len(ranked) // 2, math.ceil(len(ranked) * options.quantile))
    rng = random.Random(stream_seed(seed, "population", f"step {step}"))
    found = []
    for member in ranked[:count]:
        source = rng.choice(ranked[-count:])
        # an option that is a schedule for member 0 has no value there
        known = {name: values[source][name] if name in values[source] else draw(ranges[name], rng) for name in ranges}
        changed = {name: perturb(part, known[name], options, rng) for name, part in ranges.items()}
        if scores[member] < scores[source]:
            found.append(Decision(member, source, scores[member], scores[source], changed))
    return found


def draw(part: Range, rng: random.Random) -> Any:
    """A value of a range, uniformly as its kind says."""
    if part.kind == "choice":
        return rng.choice(part.choices)
    low, high = part.inward(part.low), part.inward(part.high)
    if part.kind == "log":
        return part.nearest(math.exp(rng.uniform(math.log(low), math.log(high))))
    return part.nearest(part.outward(rng.uniform(low, high)))


def perturb(part: Range, value: Any, options: PBT, rng: random.Random) -> Any:
    """A value near another one. Of gamma, lambda and others by logit, the distance to 1 is changed."""
    is_new, factor = rng.random() < options.resample, rng.choice((options.factor, 1.0 / options.factor))
    if is_new or part.kind == "choice":
        return draw(part, rng) if is_new else value
    return part.nearest(1.0 - (1.0 - value) * factor if part.kind == "logit" else value * factor)


class Journal:
    """The exchanges of a population, a line of JSON each: the step, and its decisions."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL

    def read(self) -> dict[int, list[Decision]]:
        """The decisions by step. A last line that was not written whole is left out."""
        found: dict[int, list[Decision]] = {}
        for line in self.path.read_text().splitlines() if self.path.is_file() else ():
            try:
                record = json.loads(line)
                found[int(record["step"])] = [Decision(**one) for one in record["decisions"]]
            except (ValueError, KeyError, TypeError):
                continue
        return found

    def add(self, step: int, decisions: Sequence[Decision]) -> None:
        """Adds an exchange."""
        line = json.dumps({"step": step, "decisions": [asdict(one) for one in decisions]})
        with self.path.open("a") as file:
            file.write(line + "\n")

    def rewind(self, step: int) -> None:
        """Removes the exchanges after a step: they happen again."""
        kept = {at: decisions for at, decisions in self.read().items() if at <= step}
        self.path.unlink(missing_ok=True)
        for at, decisions in kept.items():
            self.add(at, decisions)

    def values_at(self, first: Mapping[int, Mapping[str, Any]], step: int) -> dict[int, dict[str, Any]]:
        """The options of every member just before the exchange of a step."""
        values = {number: dict(own) for number, own in first.items()}
        for at, decisions in sorted(self.read().items()):
            for one in decisions if at < step else ():
                values[one.member] = dict(one.values)
        return values


def recorded(folder: Path) -> dict[int, list[Decision]]:
    """The journal of a population that is replayed."""
    if not (folder / JOURNAL).is_file():
        raise ConfigError(f"--replay {folder}: it has no {JOURNAL}, so no exchanges were recorded there.")
    return Journal(folder).read()
