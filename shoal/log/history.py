"""What the screen needs of a run's records, and a hint where one phase takes most of the time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

from shoal.log.base import MetricRow, Record, RunFacts

RECENT_S = 10.0  # speed and time split are taken over this long
POINTS = 512  # of a curve on the screen, at most
MOST_ROWS = 12  # of metrics, when undeclared ones are shown too
PHASES = {"env": "green", "inference": "cyan", "copy": "yellow", "learn": "magenta", "other": "bright_black"}
# of algorithms that declare no metrics, in this order where they are logged
USUAL_METRICS = (
    MetricRow("loss/policy", "policy loss"),
    MetricRow("loss/value", "value loss", "value loss"),
    MetricRow("entropy", "entropy", "entropy"),
    MetricRow("kl", "KL", "kl"),
    MetricRow("clip_fraction", "clip fraction"),
    MetricRow("explained_variance", "explained var"),
    MetricRow("loss/q", "Q loss", "loss"),
    MetricRow("q_played", "Q", "Q"),
    MetricRow("epsilon", "epsilon", "eps"),
    MetricRow("replay_fill", "replay fill"),
    MetricRow("grad_norm", "grad norm"),
    MetricRow("learning_rate", "learning rate"),
)
GENERAL = ("step", "iteration", "wall_s", "time", "sps", "loss/total", "cpu_percent", "memory_mb")  # shown elsewhere


class Series:
    """A curve of at most POINTS values: when it is full, neighbours are averaged."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.per_point, self.sum, self.count = 1, 0.0, 0

    def add(self, value: float) -> None:
        """Adds a value. One that is not finite is left out of the curve."""
        if not math.isfinite(value):
            return
        self.sum, self.count = self.sum + value, self.count + 1
        if self.count == self.per_point:
            self.values.append(self.sum / self.count)
            self.sum, self.count = 0.0, 0
        if len(self.values) == POINTS:
            self.values = [(a + b) / 2 for a, b in zip(self.values[::2], self.values[1::2])]
            self.per_point *= 2


class History:
    """What the screen needs of the records so far."""

    def __init__(self, facts: RunFacts) -> None:
        self.facts = facts
        self.latest: dict[str, float] = {"step": facts.resumed_from}
        self.returns, self.speeds = Series(), Series()
        self.notes: deque[str] = deque(maxlen=5)
        self.intervals: deque[tuple[float, float, list[float]]] = deque()  # step, wall_s and phases of the recent ones
        self.recent, self.whole = [0.0] * len(PHASES), [0.0] * len(PHASES)
        self.best = -math.inf
        self.began: tuple[float, float] | None = None  # step and wall_s where the first interval began

    def add(self, record: Record) -> None:
        """Adds one record. None is a NaN that was written as JSON."""
        numbers = {key: math.nan if value is None else float(value) for key, value in record.items()}
        self.latest.update(numbers)
        if "episode/return" in numbers:
            self.returns.add(numbers["episode/return"])
            self.best = max(self.best, numbers["episode/return"])  # a NaN is never greater
        if "sps" in numbers:
            self.speeds.add(numbers["sps"])
        phases = [max(0.0, numbers.get(f"time/{phase}", 0.0)) for phase in PHASES]
        wall = numbers.get("wall_s", math.nan)
        if not self.intervals:  # where the first interval began
            self.began = self.facts.resumed_from, wall - numbers.get("time/total", sum(phases))
            self.intervals.append((*self.began, []))
        self.intervals.append((numbers.get("step", math.nan), wall, phases))
        for k, seconds in enumerate(phases):
            self.recent[k] += seconds
            self.whole[k] += seconds
        while len(self.intervals) > 2 and self.intervals[1][1] < wall - RECENT_S:
            self.intervals.popleft()
            self.recent = [have - gone for have, gone in zip(self.recent, self.intervals[0][2])]

    @property
    def step(self) -> float:
        """Steps done so far."""
        return self.latest["step"]

    def speed(self, whole: bool = False) -> float:
        """Steps per second of the last seconds, or of the whole run, by the step counter itself."""
        if self.began and self.intervals:
            first, began = self.began if whole else self.intervals[0][:2]
            last, ended = self.intervals[-1][:2]
            if ended > began:
                return (last - first) / (ended - began)
        return self.latest.get("sps", math.nan)

    @property
    def sps(self) -> float:
        """Steps per second of the last seconds."""
        return self.speed()

    @property
    def left_s(self) -> float:
        """Seconds to the end at this speed."""
        return max(0.0, self.facts.total_steps - self.step) / self.sps if self.sps > 0 else math.nan

    def split(self, whole: bool = False) -> dict[str, float]:
        """The share of each phase, of the last seconds or of the whole run; empty before the first record."""
        seconds = self.whole if whole else self.recent
        total = sum(seconds)
        return {phase: max(0.0, s) / total for phase, s in zip(PHASES, seconds)} if total > 0 else {}

    def learning(self) -> list[MetricRow]:
        """The metrics of the algorithm that have been logged: those it declares first, then any other by its name."""
        rows = self.facts.metrics or USUAL_METRICS
        declared = {row.name for row in rows}
        elsewhere = ("time/", "episode/", "eval/")
        others = [key for key in self.latest if key not in {*declared, *GENERAL} and not key.startswith(elsewhere)]
        logged = [row for row in rows if row.name in self.latest]
        return logged + [MetricRow(key, key.replace("_", " ")) for key in others[: max(0, MOST_ROWS - len(logged))]]

    def stats(self) -> list[str]:
        """The env's own numbers: `episode/<stat>`, without their ranges."""
        keys = [key for key in self.latest if key.startswith("episode/")]
        known = {"episode/n", "episode/return", "episode/length"}
        ranges = {f"{key}{end}" for key in keys for end in ("_min", "_max")}
        return [key for key in keys if key not in known and key not in ranges]


def hint(facts: RunFacts, split: Mapping[str, float], seconds: float) -> str:
    """What to try when one phase takes most of the time; empty when none does, and in the first seconds."""
    if not split or seconds < 3.0:
        return ""
    phase, share = max(split.items(), key=lambda item: item[1])
    on_cpu = facts.device.startswith("cpu")
    if phase == "env" and share >= 0.6:
        if facts.backend == "process":
            return f"env takes {share:.0%} of the time: try 'shoal tune {facts.env}', or more --vec.num-workers"
        return f"env takes {share:.0%} of the time: try 'shoal tune {facts.env}'"
    if phase == "learn" and share >= 0.7:
        gpu = ", or a GPU: --device cuda" if on_cpu else ""
        return f"learning takes {share:.0%} of the time: fewer --train.epochs, a smaller --nn.hidden{gpu}"
    if phase == "inference" and share >= 0.5:
        if facts.num_rows < 512:
            return f"inference takes {share:.0%} of the time: more --vec.num-envs make larger, cheaper batches"
        gpu = ", or a GPU: --device cuda" if on_cpu else ""
        return f"inference takes {share:.0%} of the time: a smaller --nn.hidden{gpu}"
    if phase == "copy" and share >= 0.3 and not on_cpu:
        return f"copying takes {share:.0%} of the time: more --vec.num-envs move more in each copy"
    if phase == "other" and share >= 0.3:
        return f"{share:.0%} of the time goes to neither env nor learning: log, save and evaluate less often"
    return ""
