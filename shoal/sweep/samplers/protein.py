"""Protein: cost-aware search around the Pareto front of score and cost, as PufferLib's sweeps do it.

Two Gaussian processes predict the score and the logarithm of the cost. Candidates are drawn around the trials on the
Pareto front and around the best ones. The next trial is the candidate with the highest

    predicted score * (1 - |target - predicted cost|)

with both scaled to 0 .. 1 over the trials so far. The target goes round through TARGETS, from cheap to expensive, so
the sweep learns from cheap trials and keeps improving the expensive ones. The models' means are used, not their
variances.

`ProteinSampler` also works in any Optuna study: with two objectives the second is the cost; with one, the cost is the
duration of a trial.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from optuna.distributions import CategoricalDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import intersection_search_space
from optuna.study import StudyDirection
from optuna.trial import TrialState

from shoal.sweep.samplers import SamplerType, seed_of
from shoal.sweep.samplers.gaussian import Model

TARGETS = (0.16, 0.32, 0.48, 0.64, 0.80, 1.0)  # of the cost, one after the other
TARGET_NOISE = 0.05
STARTUP = 10  # trials of a Sobol sequence
CANDIDATES = 256  # around each centre
RADIUS = 0.25  # of a range: candidates lie within it
TOP = 5  # best trials that are centres, besides the Pareto front
MOST = 750  # observations that the models see
EQUAL_COSTS = 0.1  # costs whose logarithms differ by less than this are taken as equal
CHEAP = 0.25  # the part of the range of COST_PARAM that the first trials use
COST_PARAM = "train.total_steps"  # a longer run costs more
GAIN = 0.5  # least relative gain of score for a relative gain of cost at the expensive end of the front


class ProteinSampler(BaseSampler):
    """Chooses trials by Protein's rule. `distributions`: the space (default: that of the study's finished trials)."""

    def __init__(
        self,
        seed: int = 0,
        distributions: Mapping[str, Any] | None = None,
        *,
        max_cost: float = math.inf,
        cost_param: str = COST_PARAM,
    ) -> None:
        self.seed, self.max_cost, self.cost_param = seed, max_cost, cost_param
        self.distributions = dict(distributions) if distributions is not None else None

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        """All options together."""
        if self.distributions is not None:
            return dict(self.distributions)
        space: dict[str, Any] = intersection_search_space(study.get_trials(deepcopy=False))
        return space

    def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
        """An option that no finished trial has: at random."""
        random = RandomSampler(seed=seed_of(self.seed, trial.number))
        return random.sample_independent(study, trial, name, distribution)

    def sample_relative(self, study: Any, trial: Any, search_space: dict[str, Any]) -> dict[str, Any]:
        """The next trial."""
        if not search_space:
            return {}
        cube = Cube(search_space)
        seen = Observations.of(study, cube, self.cost_param)
        if trial.number <= STARTUP or seen.trials < 3:
            return cube.values(self._start(cube, trial.number))
        rng = np.random.default_rng([self.seed, trial.number])
        return cube.values(self._best(cube, seen, rng, trial.number))

    def _start(self, cube: Cube, number: int) -> Any:
        """A point of a Sobol sequence; the first ones are cheap."""
        engine = torch.quasirandom.SobolEngine(len(cube.names), scramble=True, seed=self.seed)
        point = engine.draw(number + 1, dtype=torch.float64)[number].numpy()
        if self.cost_param in cube.names:
            point[cube.names.index(self.cost_param)] *= CHEAP
        return point

    def _best(self, cube: Cube, seen: Observations, rng: Any, number: int) -> Any:
        """The best of the candidates, by the models."""
        kept = seen.most_useful(MOST, rng)
        scores, costs = seen.scores[kept], seen.costs[kept]
        features = cube.features(seen.points[kept])
        centres = seen.points[seen.centres(TOP)]
        candidates = cube.around(centres, CANDIDATES, RADIUS, rng)
        inputs = cube.features(candidates)
        best = Model(features, scores).mean(inputs)
        score = np.clip((best - scores.min()) / max(float(np.ptp(scores)), 1e-12), 0.0, None)
        weight = np.ones(len(score))
        if np.ptp(costs) > EQUAL_COSTS:
            cost = Model(features, costs).mean(inputs)
            scaled = (cost - costs.min()) / np.ptp(costs)
            target = TARGETS[number % len(TARGETS)] * 1.1 + TARGET_NOISE * rng.standard_normal()
            weight = np.clip(1.0 - np.abs(target - scaled), 1e-6, None)
            weight[np.exp(cost) > self.max_cost] = 0.0
        return candidates[int(np.argmax(score * weight))]


class Cube:
    """The space as a cube: every option from 0 to 1, on its own scale. A choice is a part of 0 .. 1."""

    def __init__(self, distributions: Mapping[str, Any]) -> None:
        self.names = sorted(distributions)
        self.parts = [distributions[name] for name in self.names]

    def point(self, params: Mapping[str, Any]) -> Any:
        """The values of a trial as a point."""
        return np.array([_to_unit(part, params[name]) for name, part in zip(self.names, self.parts)])

    def values(self, point: Sequence[float]) -> dict[str, Any]:
        """A point as the values of a trial."""
        return {name: _from_unit(part, float(x)) for name, part, x in zip(self.names, self.parts, point)}

    def features(self, points: Any) -> Any:
        """What the models see: numbers as they are, choices as one column each."""
        columns = []
        for k, part in enumerate(self.parts):
            if isinstance(part, CategoricalDistribution):
                count = len(part.choices)
                index = np.minimum((points[:, k] * count).astype(int), count - 1)
                columns.append(np.eye(count)[index] * 0.5)
            else:
                columns.append(points[:, k : k + 1])
        return np.concatenate(columns, axis=1)

    def around(self, centres: Any, count: int, radius: float, rng: Any) -> Any:
        """Points around each centre, uniformly within the radius; numbers are snapped to values that exist."""
        shape = (len(centres), count, len(self.names))
        points = centres[:, None, :] + rng.uniform(-radius, radius, shape)
        for k, part in enumerate(self.parts):
            if isinstance(part, CategoricalDistribution):  # neighbours in the list are no neighbours
                fresh = rng.random(shape[:2])
                keep = rng.random(shape[:2]) > radius
                points[:, :, k] = np.where(keep, centres[:, None, k], fresh)
        return np.clip(points.reshape(-1, len(self.names)), 0.0, 1.0)


class Observations:
    """What is known: points, scores (higher is better) and the logarithm of costs."""

    def __init__(self, points: Any, scores: Any, costs: Any, trials: int) -> None:
        self.points, self.scores, self.costs, self.trials = points, scores, costs, trials

    @classmethod
    def of(cls, study: Any, cube: Cube, cost_param: str) -> Observations:
        """The finished trials of a study. A trial's curve adds what shorter runs with its values would have reached."""
        sign = 1.0 if study.directions[0] == StudyDirection.MAXIMIZE else -1.0
        rows: list[tuple[Any, float, float]] = []
        trials = 0
        for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            if any(name not in trial.params for name in cube.names):
                continue
            trials += 1
            if len(trial.values) > 1:
                cost = trial.values[1]
            else:
                cost = trial.duration.total_seconds() if trial.duration is not None else 1.0
            rows.append((cube.point(trial.params), sign * trial.values[0], cost))
            if cost_param in cube.names and study.user_attrs.get("curves", True):
                rows += _earlier(cube, trial, cost_param, sign)
        points = np.array([row[0] for row in rows]).reshape(len(rows), len(cube.names))
        scores, costs = np.array([row[1] for row in rows]), np.array([row[2] for row in rows])
        return cls(points, scores, np.log(np.maximum(costs, 1e-6)), trials)

    def most_useful(self, most: int, rng: Any) -> Any:
        """The indices of at most this many observations: the centres, and others at random."""
        if len(self.scores) <= most:
            return np.arange(len(self.scores))
        first = self.centres(TOP)
        others = np.setdiff1d(np.arange(len(self.scores)), first)
        return np.concatenate([first, rng.choice(others, most - len(first), replace=False)])

    def centres(self, top: int) -> Any:
        """The indices of the pruned Pareto front and of the best observations."""
        best = np.argsort(-self.scores, kind="stable")[:top]
        return np.union1d(prune(self.scores, self.costs, pareto_front(self.scores, self.costs)), best)


def _earlier(cube: Cube, trial: Any, cost_param: str, sign: float) -> list[tuple[Any, float, float]]:
    """The points of a trial's curve as shorter runs: `curve` holds (part of the run, cost, score)."""
    rows = []
    part = cube.parts[cube.names.index(cost_param)]
    for done, cost, score in trial.user_attrs.get("curve", ()):
        shorter = trial.params[cost_param] * done
        if part.low <= shorter < trial.params[cost_param]:
            rows.append((cube.point({**trial.params, cost_param: shorter}), sign * score, cost))
    return rows


def pareto_front(scores: Any, costs: Any) -> Any:
    """The indices of observations that no other beats in score at the same or a lower cost, cheapest first."""
    order = np.lexsort((-scores, costs))
    front, best = [], -math.inf
    for k in order:
        if scores[k] > best:
            front.append(int(k))
            best = scores[k]
    return np.array(front, dtype=int)


def prune(scores: Any, costs: Any, front: Any) -> Any:
    """The front without its expensive end where the score hardly gains by the cost."""
    front = list(front)
    score_range = max(float(np.ptp(scores[front])), 1e-12)
    cost_range = max(float(np.ptp(costs[front])), 1e-12)
    while len(front) > 2:
        before, last = front[-2], front[-1]
        gain = (scores[last] - scores[before]) / score_range
        price = (costs[last] - costs[before]) / cost_range
        if gain >= GAIN * price or gain > 0.02:
            break
        front.pop()
    return np.array(front, dtype=int)


def _to_unit(part: Any, value: Any) -> float:
    if isinstance(part, CategoricalDistribution):
        return (list(part.choices).index(value) + 0.5) / len(part.choices)
    low, high, x = part.low, part.high, value
    if part.log:
        low, high, x = math.log(low), math.log(high), math.log(x)
    return float((x - low) / (high - low)) if high > low else 0.5


def _from_unit(part: Any, x: float) -> Any:
    if isinstance(part, CategoricalDistribution):
        return part.choices[min(int(x * len(part.choices)), len(part.choices) - 1)]
    x = min(max(x, 0.0), 1.0)
    low, high = (math.log(part.low), math.log(part.high)) if part.log else (part.low, part.high)
    value = low + x * (high - low)
    value = math.exp(value) if part.log else value
    value = min(max(value, part.low), part.high)
    return round(value) if isinstance(part.low, int) and isinstance(part.high, int) else float(value)


def make(seed: int, number: int, distributions: Mapping[str, Any]) -> Any:
    """Protein over a sweep's space."""
    return ProteinSampler(seed, distributions)


SAMPLER = SamplerType(make, "score for its cost, around the Pareto front (PufferLib's Protein)", uses_cost=True)
