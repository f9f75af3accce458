"""How certain a mean over layers and requests is, or a difference between two policies.

Layers of a request are alike, and requests are few. So requests are drawn with replacement, then
layers within each that was drawn (the bootstrap of clusters: Davison and Hinkley 1997, section
3.8). With one request only layers are drawn, and the interval says nothing about other
requests; a single part has none.
"""

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_TESTED = 10_000  # changes of sign, at most
_LEVEL = 95  # per cent


class Interval(NamedTuple):
    low: float
    high: float


def draws(requests: npt.NDArray[np.int64], count: int, seed: int) -> Floats:
    """Return how often each part counts in each resample, [count, parts]; `requests` [parts]
    numbers the request of each."""
    random = np.random.default_rng(seed)
    _, cluster, sizes = np.unique(requests, return_inverse=True, return_counts=True)
    drawn = random.multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)), count)
    found = np.zeros((count, len(requests)))
    for each, size in enumerate(sizes):
        times = drawn[:, each] * size
        found[:, cluster == each] = random.multinomial(times, np.full(size, 1 / size))
    return found


def interval_of_ratio(
    weights: Floats, above: npt.NDArray[Any], below: npt.NDArray[Any]
) -> Interval:
    """Return where 95 % of the resampled ratios of two sums lie; nan if a lower one is 0, and for
    a single part, which is the same in every resample."""
    lower = weights @ below
    if len(below) < 2 or not lower.all():
        return Interval(float("nan"), float("nan"))
    ratios = (weights @ above) / lower
    tail = (100 - _LEVEL) / 2
    low, high = np.percentile(ratios, (tail, 100 - tail))
    return Interval(float(low), float(high))


def paired_p_value(differences: Floats, seed: int) -> float:
    """Return the probability of a mean at least so far from 0 if the signs of the differences were
    chance (Fisher's randomization test: all changes of sign up to 13 differences, of more 10,000
    random ones); nan for a single one."""
    count = len(differences)
    if count < 2:
        return float("nan")
    rounding = 1e-12 * np.abs(differences).sum()
    observed = abs(differences.sum()) - rounding
    if 2**count <= _TESTED:
        signs = np.array(list(product((-1.0, 1.0), repeat=count)))
        return float((np.abs(signs @ differences) >= observed).mean())
    signs = np.random.default_rng(seed).integers(0, 2, (_TESTED, count)) * 2.0 - 1
    return float((1 + (np.abs(signs @ differences) >= observed).sum()) / (1 + _TESTED))
