"""The records of a run for the display, and a hint if one phase takes most of the time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.log.base import MetricRow, Record, RunFacts, number

RECENT_S = 10.0  # speed and the split of time are averaged over this long
POINTS = 512  # most points of a curve on the screen
MOST_AGENTS = 8  # most rows of agents and groups
MOST_ROWS = 12  # most rows of metrics if undeclared ones are shown too
PHASES = {"env": "green", "inference": "cyan", "copy": "yellow", "learn": "magenta", "other": "bright_black"}
# for algorithms that declare no metrics; only those that are logged are shown
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
CURRICULUM = ("curriculum/phase", "curriculum/phases")
# shown elsewhere
GENERAL = ("step", "iteration", "wall_s", "time", "sps", "loss/total", "cpu_percent", "memory_mb", *CURRICULUM)


@dataclass(frozen=True)
class AgentRow:
    """One agent or group on the display."""

    name: str
    mean: float  # return
    remark: str = ""


class Series:
    """A curve of at most POINTS values: when it is full, pairs of neighbours are averaged."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.per_point, self.sum, self.count = 1, 0.0, 0

    def add(self, value: float) -> None:
        """Adds a value, if it is finite."""
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
    """The records so far, summarized for the display."""

    def __init__(self, facts: RunFacts) -> None:
        self.facts = facts
        self.latest: dict[str, float] = {"step": facts.resumed_from}
        self.returns, self.speeds = Series(), Series()
        self.notes: deque[str] = deque(maxlen=5)
        self.intervals: deque[tuple[float, float, list[float]]] = (
            deque()
        )  # step, wall_s and phases of the last RECENT_S
        self.recent, self.totals = [0.0] * len(PHASES), [0.0] * len(PHASES)
        self.best = -math.inf
        self.began: tuple[float, float] | None = None  # step and wall_s at the start of the first interval

    def add(self, record: Record) -> None:
        """Adds one record. None stands for NaN, as in JSON."""
        numbers = {key: math.nan if value is None else float(value) for key, value in record.items()}
        self.latest.update(numbers)
        if "episode/return" in numbers:
            self.returns.add(numbers["episode/return"])
            self.best = max(self.best, numbers["episode/return"])  # a NaN is never greater
        if "sps" in numbers:
            self.speeds.add(numbers["sps"])
        phases = [max(0.0, numbers.get(f"time/{phase}", 0.0)) for phase in PHASES]
        wall = numbers.get("wall_s", math.nan)
        if not self.intervals:  # the start of the first interval
            self.began = self.facts.resumed_from, wall - numbers.get("time/total", sum(phases))
            self.intervals.append((*self.began, []))
        self.intervals.append((numbers.get("step", math.nan), wall, phases))
        for k, seconds in enumerate(phases):
            self.recent[k] += seconds
            self.totals[k] += seconds
        while len(self.intervals) > 2 and self.intervals[1][1] < wall - RECENT_S:
            self.intervals.popleft()
            self.recent = [total - oldest for total, oldest in zip(self.recent, self.intervals[0][2])]

    @property
    def step(self) -> float:
        """Steps done so far."""
        return self.latest["step"]

    def speed(self, whole: bool = False) -> float:
        """Steps per second over the last RECENT_S or the whole run, from the step counter."""
        if self.began and self.intervals:
            first, began = self.began if whole else self.intervals[0][:2]
            last, ended = self.intervals[-1][:2]
            if ended > began:
                return (last - first) / (ended - began)
        return self.latest.get("sps", math.nan)

    @property
    def sps(self) -> float:
        """Steps per second, over the last RECENT_S."""
        return self.speed()

    @property
    def left_s(self) -> float:
        """Seconds to the end at the current speed."""
        return max(0.0, self.facts.total_steps - self.step) / self.sps if self.sps > 0 else math.nan

    def split(self, whole: bool = False) -> dict[str, float]:
        """The share of each phase, over the last RECENT_S or the whole run; empty before the first record."""
        seconds = self.totals if whole else self.recent
        total = sum(seconds)
        return {phase: max(0.0, s) / total for phase, s in zip(PHASES, seconds)} if total > 0 else {}

    def phase(self) -> str:
        """The phase of a curriculum: `2 of 4`; empty without one."""
        number, count = (self.latest.get(name, 0.0) for name in CURRICULUM)
        return f"{number:.0f} of {count:.0f}" if number and count else ""

    def learning(self) -> list[MetricRow]:
        """The logged metrics of the algorithm: first those that it declares, then the others by name."""
        rows = self.facts.metrics or USUAL_METRICS
        declared = {row.name for row in rows}
        elsewhere = ("time/", "episode/", "eval/", "rollout/", "league/")
        general = {*declared, *GENERAL, *(f"{name}/{policy}" for name in declared for policy in self.facts.policies)}
        others = [key for key in self.latest if key not in general and not key.startswith(elsewhere)]
        logged = [row for row in rows if row.name in self.latest]
        return logged + [MetricRow(key, key.replace("_", " ")) for key in others[: max(0, MOST_ROWS - len(logged))]]

    def stats(self) -> list[str]:
        """The keys of the env's stats: `episode/<stat>`, without their ranges."""
        keys = [key for key in self.latest if key.startswith("episode/")]
        known = {"episode/n", "episode/return", "episode/length"}
        ranges = {f"{key}{end}" for key in keys for end in ("_min", "_max")}
        return [key for key in keys if key not in known and key not in ranges and key.count("/") == 1]

    def agents(self, most: int = MOST_AGENTS) -> list[AgentRow]:
        """The groups and agents with their last returns: the groups first, at most `most` rows."""
        facts, prefix = self.facts, "episode/return/"
        alone = {facts.agents[agents[0]] for agents in facts.groups.values() if len(agents) == 1}
        names = [*facts.groups, *(name for name in facts.agents if name not in {*alone, *facts.groups})]
        logged = [name for name in names if prefix + name in self.latest]
        if len(logged) > most and facts.groups:
            logged = [name for name in logged if name in facts.groups]
        rows = [self._agent_row(name) for name in logged]
        if len(rows) > most:
            rest = sorted(rows[most - 1 :], key=lambda row: row.mean)
            remark = f"lowest of {len(rest)} more: {rest[0].name}"
            return [*rows[: most - 1], AgentRow("…", rest[0].mean, remark)]
        ends = [name for name in ("lowest_agent", "highest_agent") if prefix + name in self.latest]  # of very many
        return rows + [AgentRow(name.replace("_", " "), self.latest[prefix + name]) for name in ends]

    def _agent_row(self, name: str) -> AgentRow:
        remarks = []
        if name in self.facts.opponents:
            remarks.append("opponent")
        if (length := self.latest.get(f"episode/length/{name}")) is not None:
            remarks.append(f"length {number(length)}")
        for row in self.facts.metrics or USUAL_METRICS:
            if row.name.startswith("loss/") and (loss := self.latest.get(f"{row.name}/{name}")) is not None:
                remarks.append(f"{row.label} {number(loss)}")
                break
        return AgentRow(name, self.latest[f"episode/return/{name}"], ", ".join(remarks))


def hint(facts: RunFacts, split: Mapping[str, float], seconds: float) -> str:
    """Advice if one phase takes most of the time; empty if none does, and in the first seconds."""
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
        return f"learning takes {share:.0%} of the time: try fewer --train.epochs, a smaller --nn.hidden{gpu}"
    if phase == "inference" and share >= 0.5:
        if facts.num_rows < 512:
            return f"inference takes {share:.0%} of the time: try more --vec.num-envs, for larger batches"
        gpu = ", or a GPU: --device cuda" if on_cpu else ""
        return f"inference takes {share:.0%} of the time: try a smaller --nn.hidden{gpu}"
    if phase == "copy" and share >= 0.3 and not on_cpu:
        return f"copying takes {share:.0%} of the time: try more --vec.num-envs, for larger copies"
    if phase == "other" and share >= 0.3:
        return f"{share:.0%} of the time is neither env nor learning: log, save and evaluate less often"
    return ""
