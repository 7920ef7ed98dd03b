"""Means and confidence intervals. Knows nothing of what the numbers are."""

from __future__ import annotations

import math
from collections.abc import Sequence


def mean(values: Sequence[float]) -> float:
    """The mean. The sum is exact, so the order does not matter."""
    return math.fsum(values) / len(values)


def ci95(values: Sequence[float]) -> float:
    """Half the width of the 95 % confidence interval of the mean, by Student's t: t s / sqrt(n). One value: infinite.

    Not by bootstrap: Student's t needs no random numbers, so the same values give the same interval, and bootstrap
    intervals of few values are too narrow.
    """
    count = len(values)
    if count < 2:
        return math.inf
    middle = mean(values)
    variance = math.fsum((value - middle) ** 2 for value in values) / (count - 1)
    return t_975(count - 1) * math.sqrt(variance / count)


def t_975(freedom: int) -> float:
    """The 97.5 % point of Student's t: a table, then Fisher's expansion in 1 / freedom (4 correct digits)."""
    table = (12.7062, 4.30265, 3.18245, 2.77645, 2.57058, 2.44691, 2.36462, 2.30600, 2.26216)
    if freedom <= len(table):
        return table[freedom - 1]
    z, v = 1.959963984540054, float(freedom)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3


def wilson(count: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a probability of which `count` of `trials` are seen, by Wilson's score. No trials: (0, 1).

    Unlike mean +- 1.96 s it stays within 0 and 1, and is not empty where all or none are seen.
    """
    if trials < 1:
        return 0.0, 1.0
    z = 1.959963984540054
    share, scale = count / trials, 1.0 + z * z / trials
    middle = (share + z * z / (2.0 * trials)) / scale
    width = z / scale * math.sqrt(share * (1.0 - share) / trials + z * z / (4.0 * trials * trials))
    low, high = max(0.0, middle - width), min(1.0, middle + width)
    return (0.0 if count == 0 else low), (1.0 if count == trials else high)
