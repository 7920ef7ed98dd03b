"""Why a run did not learn, and the option to try next: pure functions of its recorded metrics.

Most findings need two pieces of evidence: a metric that looks bad, and a return that did not rise. Bad metrics alone
prove nothing: the entropy of a solved task is low, and some runs learn well with a high KL divergence. A few faults are
reported whatever the return is: without a reward, or without an update, there is nothing to learn from.

The records are those of metrics.jsonl. Windows of a run are measured in steps, because early records are closer
together than later ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import median
from typing import Any

from shoal.log.base import exact_count, human, short
from shoal.schedules import Schedule, parse

MIN_ITERATIONS = 16  # shorter runs are not judged
MIN_RECORDS = 4
MIN_EPISODES = 20  # of a window whose mean return is compared
WINDOW = 0.2  # of the run's steps: the last window, and those that are searched for the peak
SKIPPED_LENGTHS = 3.0  # mean lengths of an episode: before, mostly short ones have ended
SKIPPED_SHARE = 0.1  # of the steps so far: most that is skipped for that
MIN_SHARE = 0.25  # of the planned steps: before, only facts that do not depend on the return are reported
SIGNIFICANT = 3.0  # standard errors by which a return must rise
LEAST_RISE = 0.05  # of the range of the first returns, by which it must rise at least
CLEAR_RISE = 4.0  # times that, compared with the very first episodes
FALL = 0.67  # of its rise: a return that fell by more has not learned

COLLAPSED = 0.05  # of the first entropy
UNCHANGED = 0.02  # of the first entropy
TINY_STD, COLLAPSED_STD = 0.02, 0.2  # of Box actions in -1 .. 1; of the first one
HUGE_STD, GROWN_STD = 3.0, 2.0
HIGH_KL = 0.1  # usual values are below 0.03
IDLE_KL = 1e-5  # the policy hardly moved
HIGH_CLIP_FRACTION = 0.5  # usual values are below 0.3
EXPLODED_LOSS = 100.0  # times the first value loss, or times the square of the largest return
EXPLODED_Q = 3.0  # times the largest discounted return
HIGH_EPSILON = 0.5
NEGATIVE_VARIANCE = -0.02  # a critic that predicts a constant is at 0, with some noise
NEGATIVE_SHARE = 0.8  # of the records of the second half with an explained variance below 0


@dataclass(frozen=True)
class Setup:
    """Facts about a run that its records do not have."""

    tables: Mapping[str, Any]  # the options, as the tables of a TOML file
    num_envs: int = 1
    num_learners: int = 1  # agents of an env that learn; the return is their mean
    total_steps: int = 0
    device: str = "cpu"
    random_entropy: float = 0.0  # of a uniformly random policy; 0: unknown

    def option(self, name: str) -> Any:
        """The value of an option, `train.gamma`, at the end of its schedule; None if the algorithm does not have it."""
        schedule = self.schedule(name)
        return self._written(name) if schedule is None else schedule.at(1.0)

    def schedule(self, name: str) -> Schedule | None:
        """The schedule of an option; None if it has none."""
        value = self._written(name)
        return parse(value) if isinstance(value, str) else None

    def _written(self, name: str) -> Any:
        table, _, key = name.partition(".")
        return self.tables.get(table, {}).get(key)


@dataclass(frozen=True)
class Finding:
    """One reason why a run did not learn."""

    kind: str
    fact: str  # with the numbers
    advice: str  # the option to try next

    @property
    def text(self) -> str:
        """Fact and advice as two sentences."""
        return f"{self.fact}. {self.advice}".strip()


# kinds that are certain before the end of a run
CERTAIN = ("reward", "advantages", "value loss", "Q values", "action std", "KL")
# kinds that follow from another one, and would distract from it
CONSEQUENCES = {
    "reward": ("advantages", "entropy unchanged", "entropy collapsed", "explained variance", "epsilon"),
    "no updates": ("advantages", "entropy unchanged", "epsilon"),
    "advantages": ("entropy unchanged", "explained variance"),
    "value loss": ("explained variance",),
    "KL": ("clip fraction", "entropy unchanged"),
    "clip fraction": ("entropy unchanged",),
}


def diagnose(records: Iterable[Mapping[str, Any]], setup: Setup) -> list[Finding]:
    """The findings, the most basic first. Empty if the run learned, or is too short to be judged."""
    history = History(records, setup)
    if len(history.records) < MIN_RECORDS or history.iterations < MIN_ITERATIONS:
        return []
    is_failure = history.failed and history.share >= MIN_SHARE
    rules = (*RULES, *RULES_IF_FAILED) if is_failure else RULES
    findings = [finding for rule in rules if (finding := rule(history)) is not None]
    hidden = {kind for finding in findings for kind in CONSEQUENCES.get(finding.kind, ())}
    findings = [finding for finding in findings if finding.kind not in hidden]
    if is_failure and not findings and (finding := no_progress(history)) is not None:
        return [finding]
    return findings


def facts(findings: Sequence[Finding]) -> list[dict[str, str]]:
    """The findings for summary.json."""
    return [asdict(finding) for finding in findings]


# ---- the records of a run ----


@dataclass(frozen=True)
class Window:
    """The returns of successive episodes."""

    mean: float
    low: float
    high: float
    episodes: int
    step: float  # of its last record


class History:
    """The training records of a run, with windows of them and the progress of its return."""

    def __init__(self, records: Iterable[Mapping[str, Any]], setup: Setup) -> None:
        self.setup = setup
        numbers = [_numbers(record) for record in records if "eval/return" not in record]
        self.records = sorted((record for record in numbers if "step" in record), key=lambda record: record["step"])
        last = self.records[-1] if self.records else {}
        self.step, self.iterations = last.get("step", 0.0), last.get("iteration", 0.0)
        self.share = self.step / setup.total_steps if setup.total_steps else 1.0  # of the planned steps

    # ---- metrics ----

    def has(self, name: str) -> bool:
        """Whether any record has a finite value of this metric."""
        return any(name in record for record in self.records)

    def values(self, name: str, begin: float = 0.0, end: float = 1.0) -> list[float]:
        """The values between two fractions of the steps so far."""
        low, high = begin * self.step, end * self.step
        return [r[name] for r in self.records if name in r and low < r["step"] <= high]

    def first(self, name: str) -> float:
        """The first value; NaN if there is none."""
        return next(iter(self.values(name)), math.nan)

    def late(self, name: str) -> float:
        """The median over the second half; NaN if there is none."""
        values = self.values(name, 0.5)
        return median(values) if values else math.nan

    # ---- the return ----

    @cached_property
    def _episodes(self) -> list[dict[str, float]]:
        return [r for r in self.records if r.get("episode/n", 0.0) > 0 and "episode/return" in r]

    @cached_property
    def whole(self) -> Window | None:
        """All episodes; None if none ended."""
        return _window(self._episodes)

    @cached_property
    def start(self) -> Window | None:
        """The returns of the untrained policy: about one episode of each env.

        Where lengths vary, the first episodes to end are the short ones, whose returns differ: they are skipped.
        """
        early = range(len(self._episodes))
        return self._window_from(next((k for k in early if not self._is_too_early(k)), len(early)))

    @cached_property
    def first_episodes(self) -> Window | None:
        """The first episodes that ended, about one of each env. They may be short ones."""
        return self._window_from(0)

    def _window_from(self, begin: int) -> Window | None:
        count, needed = 0.0, max(MIN_EPISODES, self.setup.num_envs)
        for k, record in enumerate(self._episodes[begin:], begin):
            count += record["episode/n"]
            if count >= needed:
                return _window(self._episodes[begin : k + 1])
        return None

    def _is_too_early(self, last: int) -> bool:
        """Whether only the shorter episodes have ended so far, by the record `last`."""
        records, step = self._episodes[: last + 1], self._episodes[last]["step"]
        names = ("episode/length_min", "episode/length_max")
        if len({r[name] for r in records for name in names if name in r}) <= 1 or step > SKIPPED_SHARE * self.step:
            return False
        count = sum(r["episode/n"] for r in records)
        mean_length = sum(r.get("episode/length", 0.0) * r["episode/n"] for r in records) / count
        return step < SKIPPED_LENGTHS * mean_length * self.setup.num_envs * self.setup.num_learners

    @cached_property
    def end(self) -> Window | None:
        """The episodes of the last part of the run."""
        records = [r for r in self._episodes if r["step"] > (1.0 - WINDOW) * self.step]
        records = records or self._episodes[-1:]
        return _window(records) if sum(r["episode/n"] for r in records) >= MIN_EPISODES else None

    @cached_property
    def peak(self) -> Window | None:
        """The part of the run with the highest mean return, as long as `end`."""
        episodes, best, begin = self._episodes, None, 0
        count = total = 0.0
        highest = -math.inf
        for k, record in enumerate(episodes):
            count, total = count + record["episode/n"], total + record["episode/n"] * record["episode/return"]
            while episodes[begin]["step"] <= record["step"] - WINDOW * self.step:
                oldest = episodes[begin]
                count, total = count - oldest["episode/n"], total - oldest["episode/n"] * oldest["episode/return"]
                begin += 1
            is_whole = self.start is not None and record["step"] >= self.start.step + WINDOW * self.step
            if is_whole and count >= MIN_EPISODES and total / count > highest:
                highest, best = total / count, episodes[begin : k + 1]
        return None if best is None else _window(best)

    @cached_property
    def rise(self) -> float | None:
        """The least difference between start and end that is not chance; None if too few episodes ended."""
        if self.start is None or self.end is None or self.start.step >= self.end.step:
            return None
        return _least_rise(self.start, self.end)

    @cached_property
    def fell(self) -> bool:
        """Whether the return rose and then fell again."""
        if self.rise is None or self.start is None or self.end is None or self.peak is None:
            return False
        gain = self.peak.mean - self.start.mean
        return gain > self.rise and self.peak.mean - self.end.mean > FALL * gain

    @cached_property
    def learned(self) -> bool:
        """Whether the return rose, and stayed.

        A task that is solved at once may be solved where `start` begins; then the first episodes tell.
        """
        start, end, first = self.start, self.end, self.first_episodes
        if self.rise is None or start is None or end is None or first is None or self.fell:
            return False
        return end.mean - start.mean > self.rise or end.mean - first.mean > CLEAR_RISE * _least_rise(first, end)

    @property
    def failed(self) -> bool:
        """Whether the return is known not to have risen.

        It is unknown for agents that play each other: their mean return stays the same whatever they learn.
        """
        return self.rise is not None and not self.learned and self.setup.num_learners == 1

    # ---- what is possible ----

    @cached_property
    def largest_reward(self) -> float:
        """The largest absolute reward that was recorded; 0 if none was."""
        names = ("rollout/reward_min", "rollout/reward_max")
        return max((abs(value) for name in names for value in self.values(name)), default=0.0)

    @cached_property
    def largest_return(self) -> float:
        """A bound of discounted returns, from the rewards and the returns that were seen."""
        gamma = self.setup.option("train.gamma")
        by_rewards = self.largest_reward / (1.0 - gamma) if isinstance(gamma, float) and gamma < 1.0 else 0.0
        by_returns = 0.0 if self.whole is None else max(abs(self.whole.low), abs(self.whole.high))
        return max(by_rewards, by_returns)


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a record. JSON has null for the others."""
    return {
        name: float(value) for name, value in record.items() if isinstance(value, (int, float)) and math.isfinite(value)
    }


def _window(records: Sequence[Mapping[str, float]]) -> Window | None:
    count = sum(r["episode/n"] for r in records)
    if not count:
        return None
    mean = sum(r["episode/return"] * r["episode/n"] for r in records) / count
    low = min(r.get("episode/return_min", r["episode/return"]) for r in records)
    high = max(r.get("episode/return_max", r["episode/return"]) for r in records)
    return Window(mean, low, high, int(count), records[-1]["step"])


def _least_rise(start: Window, end: Window) -> float:
    """The least difference of mean returns that is not chance."""
    deviation = (max(start.high, end.high) - min(start.low, end.low)) / 4.0  # a range is about four of them
    error = deviation * math.hypot(start.episodes**-0.5, end.episodes**-0.5)
    return max(SIGNIFICANT * error, LEAST_RISE * (start.high - start.low), 1e-9)


# ---- faults that do not depend on the return ----


def reward(history: History) -> Finding | None:
    """No reward, or the same return in every episode."""
    setup, whole = history.setup, history.whole
    rewards = history.values("rollout/reward_min") + history.values("rollout/reward_max")
    has_reward = any(rewards)
    explore = _try(
        setup,
        ("train.entropy_coef", lambda now: max(10 * now, 0.01)),
        ("train.epsilon_fraction", lambda now: 1.0 if now < 1.0 else None),
    )
    if whole is None:
        if not rewards or has_reward:
            return None
        fact = (
            f"the reward was never seen: no episode ended in {human(history.step)} steps, and all sampled rewards are 0"
        )
        return Finding("reward", fact, f"Check the env's reward and when its episodes end. {explore}".strip())
    if whole.high - whole.low > 1e-6 * abs(whole.high) or whole.episodes < MIN_EPISODES:
        return None
    if setup.num_learners > 1 and (has_reward or not rewards):  # what one agent wins, another may lose
        return None
    if whole.high == 0.0 and not has_reward:
        fact = f"the reward was never seen: all {whole.episodes:,} episodes returned 0"
        return Finding("reward", fact, f"Check the env's reward, or make it less sparse. {explore}".strip())
    fact = f"the return is constant: all {whole.episodes:,} episodes returned {short(whole.high)}"
    advice = "Unless that is the best possible return, check that actions change the env's reward, or explore more."
    return Finding("reward", fact, f"{advice} {explore}".strip())


def no_updates(history: History) -> Finding | None:
    """The replay never had enough transitions to start learning."""
    needed, norms = history.setup.option("train.replay_start"), history.values("grad_norm")
    if not needed or needed <= history.step or not norms or any(norms):
        return None
    fact = f"learning never started: the replay needs {needed:,} transitions first, and the run had {history.step:,.0f}"
    size = max(1, int(history.step) // 10)
    return Finding("no updates", fact, _try(history.setup, ("train.replay_start", lambda _: size), more_steps))


def advantages(history: History) -> Finding | None:
    """The critic predicts every reward: no action is better than another."""
    shares = history.values("rollout/zero_advantages", 0.5)
    if history.learned or not shares or min(shares) < 1.0:
        return None
    fact = f"the advantages are all zero: no action was better or worse than expected in {len(shares)} sampled rollouts"
    return Finding(
        "advantages",
        fact,
        "Check that actions change the env's reward, and that observations show what matters for it.",
    )


def value_loss(history: History) -> Finding | None:
    """The critic diverges."""
    late = history.late("loss/value")
    early = min(history.values("loss/value", 0.0, 0.25), default=history.first("loss/value"))
    if history.learned or not late > 0:
        return None
    bound = history.largest_return
    if history.setup.option("train.normalize_reward"):
        bound = min(bound, 10.0)  # in units of the returns' standard deviation
    has_grown = late > EXPLODED_LOSS * early and late > bound * bound
    if not bound or (not has_grown and late <= EXPLODED_LOSS * bound * bound):
        return None
    fact = f"the value loss exploded: {short(early)} at the start, {short(late)} in the second half"
    return Finding("value loss", fact, _try(history.setup, smaller_rate, normalize_reward, clip_gradients))


def q_values(history: History) -> Finding | None:
    """Q-values beyond what rewards allow."""
    late, bound = history.late("q_played"), history.largest_return * (history.setup.option("train.reward_scale") or 1.0)
    if history.learned or not bound or not abs(late) > EXPLODED_Q * bound:
        return None
    fact = f"the Q-values exploded: {short(late)} on average, though no discounted return exceeds {short(bound)}"
    options = (
        smaller_rate,
        ("train.target_every", lambda now: None if history.setup.option("train.target_tau") else 10 * now),
        ("train.target_tau", lambda now: now / 10 if now else None),
        ("train.layer_norm", lambda now: None if now else True),
    )
    return Finding("Q values", fact, _try(history.setup, *options))


def action_std(history: History) -> Finding | None:
    """Actions are noise: the entropy bonus widens the distribution without limit."""
    first, late = history.first("rollout/action_std"), history.late("rollout/action_std")
    if history.learned or not (late > HUGE_STD and late > GROWN_STD * first):
        return None
    fact = (
        f"the standard deviation of actions exploded: {short(first)} at the start, {short(late)} in the second half, "
        "where the actions' bounds are -1 and 1"
    )
    return Finding("action std", fact, _try(history.setup, less_entropy, smaller_rate))


# ---- faults of a run whose return did not rise ----


def kl(history: History) -> Finding | None:
    """Updates change the policy more than the clipped loss is valid for."""
    fact = "the KL divergence is too high: {} per update (usual: below 0.03)"
    return _too_high(history, "kl", HIGH_KL, "KL", fact, short, (smaller_rate, target_kl, fewer_epochs))


def clip_fraction(history: History) -> Finding | None:
    """Most of the batch is outside the clip range."""
    fact = "the clip fraction is too high: {} of the batch is outside the clip range (usual: below 30 %)"
    advice = wider_clip, smaller_rate, fewer_epochs
    return _too_high(history, "clip_fraction", HIGH_CLIP_FRACTION, "clip fraction", fact, "{:.0%}".format, advice)


def _too_high(
    history: History, metric: str, limit: float, name: str, fact: str, show: Callable[[float], str], advice: Any
) -> Finding | None:
    """A finding if a metric was above its limit late in the run."""
    late = history.late(metric)
    return Finding(name, fact.format(show(late)), _try(history.setup, *advice)) if late > limit else None


def entropy_collapsed(history: History) -> Finding | None:
    """The policy stopped exploring before it found anything."""
    has_std = history.has("rollout/action_std")
    name = "rollout/action_std" if has_std else "entropy"
    late = history.late(name)
    first = history.first(name) if has_std else max(history.first(name), history.setup.random_entropy)
    limit = min(TINY_STD, COLLAPSED_STD * first) if has_std else COLLAPSED * first
    if not first > 0 or not late < limit:
        return None
    step = next(r["step"] for r in history.records if r.get(name, math.inf) < limit)
    what = "the standard deviation of actions" if has_std else "the entropy"
    fact = f"{what} collapsed: {short(first)} at the start, below {short(limit)} since step {human(step)}"
    more_entropy = ("train.entropy_coef", lambda now: max(10 * now, 0.01))
    return Finding("entropy collapsed", fact, _try(history.setup, more_entropy, smaller_rate))


def entropy_unchanged(history: History) -> Finding | None:
    """The policy is still the random one of the start."""
    name = "rollout/action_std" if history.has("rollout/action_std") else "entropy"
    first, late = history.first(name), history.late(name)
    if not first > 0 or not abs(late - first) <= UNCHANGED * first or history.share < 0.5:
        return None
    what = "the entropy" if name == "entropy" else "the standard deviation of actions"
    fact = f"{what} did not change: {short(first)} at the start, {short(late)} in the second half"
    if (moved := history.late("kl")) < IDLE_KL:
        fact += f", with a KL divergence of {moved:.1g} per update"
        return Finding("entropy unchanged", fact, _try(history.setup, larger_rate, more_epochs))
    return Finding("entropy unchanged", fact, _try(history.setup, less_entropy, larger_rate, more_steps))


def explained_variance(history: History) -> Finding | None:
    """The critic is worse than a constant."""
    values = history.values("explained_variance", 0.5)
    if history.late("kl") < IDLE_KL:  # the fault is that updates do nothing
        return None
    negative = sum(value < 0.0 for value in values)
    if len(values) < 2 or negative < NEGATIVE_SHARE * len(values) or median(values) > NEGATIVE_VARIANCE:
        return None
    fact = (
        f"the explained variance is below 0: {short(median(values))} in the second half, so the critic predicts "
        "returns worse than a constant would"
    )
    return Finding(
        "explained variance", fact, _try(history.setup, more_critic, normalize_reward, normalize_obs, smaller_rate)
    )


def epsilon(history: History) -> Finding | None:
    """Actions are still random at the end."""
    values = history.values("epsilon")
    if not values or values[-1] < HIGH_EPSILON or history.share < 0.95:
        return None
    fact = f"epsilon did not decay within the run: {short(values[0])} at the start, {short(values[-1])} at the end"
    decay = ("train.epsilon_decay", lambda now: 0.0 if now else None)  # 0: linear, within the run
    end = ("train.epsilon_end", lambda now: 0.05 if now >= HIGH_EPSILON else None)
    return Finding("epsilon", fact, _try(history.setup, decay, end, more_steps))


def return_fell(history: History) -> Finding | None:
    """The run learned, and then forgot."""
    if not history.fell or history.peak is None or history.end is None:
        return None
    fact = (
        f"the return fell: {short(history.peak.mean)} at step {human(history.peak.step)}, "
        f"{short(history.end.mean)} at the end"
    )
    schedule = ("train.schedule", lambda now: "linear" if now == "constant" else None)
    return Finding("return fell", fact, _try(history.setup, schedule, smaller_rate, clip_gradients))


def no_progress(history: History) -> Finding | None:
    """The return did not rise, and no metric says why."""
    if history.fell or history.start is None or history.end is None or history.rise is None or history.share < 0.5:
        return None
    if history.end.mean - history.start.mean > history.rise / 2:  # it may be slow
        return None
    fact = (
        f"the return did not rise: {short(history.start.mean)} in the first {history.start.episodes:,} episodes, "
        f"{short(history.end.mean)} in the last {history.end.episodes:,}"
    )
    return Finding("no progress", fact, _try(history.setup, other_rate, normalize_obs, more_steps))


Rule = Callable[[History], Finding | None]
RULES: tuple[Rule, ...] = (reward, no_updates, advantages, value_loss, q_values, action_std)
RULES_IF_FAILED: tuple[Rule, ...] = (
    kl,
    clip_fraction,
    entropy_collapsed,
    explained_variance,
    entropy_unchanged,
    epsilon,
    return_fell,
)


# ---- advice ----

Option = tuple[str, Callable[[Any], Any]]  # an option's name, and the value to try; None: nothing to try
smaller_rate: Option = ("train.learning_rate", lambda now: now / 10 if now > 1e-5 else None)
larger_rate: Option = ("train.learning_rate", lambda now: max(10 * now, 3e-4) if now < 1e-3 else None)
other_rate: Option = ("train.learning_rate", lambda now: max(10 * now, 3e-4) if now < 1e-3 else now / 10)
fewer_epochs: Option = ("train.epochs", lambda now: now // 2 if now > 1 else None)
more_epochs: Option = ("train.epochs", lambda now: 4 if now < 4 else None)
more_critic: Option = ("train.value_coef", lambda now: 0.5 if now < 0.5 else None)
wider_clip: Option = ("train.clip", lambda now: 0.2 if now < 0.05 else None)
less_entropy: Option = ("train.entropy_coef", lambda now: 0.0 if 0 < now <= 1e-3 else now / 10 if now else None)
target_kl: Option = ("train.target_kl", lambda now: None if now else 0.02)
normalize_reward: Option = ("train.normalize_reward", lambda now: None if now else True)
normalize_obs: Option = ("train.normalize_obs", lambda now: None if now else True)
separate_networks: Option = ("nn.separate", lambda now: None if now else True)
clip_gradients: Option = ("train.max_grad_norm", lambda now: None if now else 0.5)
more_steps: Option = ("train.total_steps", lambda now: 2 * now)


def _try(setup: Setup, *options: Option) -> str:
    """`Try --train.epochs 2 (now 4), or --train.target-kl 0.02 (now 0).`, of the first two options that apply."""
    tries = []
    for name, next_value in options:
        now = setup.option(name)
        if now is None or (name == "train.target_kl" and setup.device.startswith("cuda")):  # GPUs do not support it
            continue
        if setup.schedule(name) or (name == "train.schedule" and setup.schedule("train.learning_rate")):
            continue  # the user has chosen how it changes
        if (value := next_value(now)) is not None:
            tries.append(f"--{name.replace('_', '-')} {_shown(value)} (now {_shown(now)})")
    return f"Try {', or '.join(tries[:2])}." if tries else ""


def _shown(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return exact_count(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
