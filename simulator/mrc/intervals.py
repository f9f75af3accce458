"""Intervals of 95 % for totals that are estimated from a sample.

Units (requests, windows of steps) are drawn at random without replacement, in every stratum apart;
misses over accesses are a ratio of totals, with the variance of a ratio estimate. Units of real
traces are not normal, so three things are added to the textbook's interval:

- Student's distribution, of as many degrees of freedom as Satterthwaite's, for several strata;
- half as many: a variance from units with bursts varies more than one from normal units, by as much
  if their excess kurtosis is 2;
- the skewness of the estimate divided by its error, from third moments of the sample: misses have
  rare high values, and a sample without them has too low a mean and too small a variance, at once.
  The end on that side moves outwards; the other one stays, since third moments are rough.

References: Cochran, Sampling Techniques, 3rd ed., chapters 2, 5, 6; Johnson 1978
(doi:10.1080/01621459.1978.10480051) and Hall 1992 (doi:10.1111/j.2517-6161.1992.tb01876.x) for
skewness; Abramowitz and Stegun 26.7.5.
"""

from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.traces.demand import Longs

LEAST_UNITS = 3  # of a stratum: fewer have no third moment

Floats = NDArray[np.float64]


class Estimate(NamedTuple):
    """The total of a stratum by size [S], and moments of its error."""

    total: Floats
    variance: Floats
    third: Floats  # central moment
    with_variance: Floats  # covariance of the total and its estimated variance
    degrees: int


def ratio_estimate(misses: Longs, accesses: Floats, units: int, whole: float) -> Estimate:
    """Estimate the misses of `whole` accesses of so many units from those [n, S] of n of them."""
    count = len(accesses)
    share = count / units
    rate = misses.sum(axis=0) / accesses.sum()
    apart = misses - np.outer(accesses, rate)
    scale = whole / accesses.sum()
    square = count / (count - 1) * (apart**2).sum(axis=0)
    cube = count**2 / ((count - 1) * (count - 2)) * (apart**3).sum(axis=0)
    return Estimate(
        total=rate * whole,
        variance=(1 - share) * square * scale**2,
        third=(1 - share) * (1 - 2 * share) * cube * scale**3,
        with_variance=(1 - share) ** 2 * cube * scale**3,
        degrees=count - 1,
    )


def interval(strata: Sequence[Estimate]) -> tuple[Floats, Floats, Floats]:
    """Return the sum of all strata [S], and both ends of its interval."""

    def summed(name: str) -> Floats:
        found: Floats = np.sum([getattr(each, name) for each in strata], axis=0)
        return found

    total, variance = summed("total"), summed("variance")
    spread = np.sum([each.variance**2 / each.degrees for each in strata], axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):  # a size that nothing misses
        degrees = np.nan_to_num(variance**2 / spread, nan=2.0) / 2
        mean = -summed("with_variance") / 2 / variance**1.5
        third = (summed("third") - 3 * summed("with_variance")) / variance**1.5
    factor = np.array([student(max(1.0, each)) for each in degrees])
    # Cornish and Fisher: a quantile of what is not quite normal.
    shift = np.nan_to_num(mean + third * (factor**2 - 1) / 6, posinf=0.0, neginf=0.0)
    error = np.sqrt(variance)
    low = total - (factor + np.maximum(shift, 0)) * error
    return total, low, total + (factor + np.maximum(-shift, 0)) * error


def student(degrees: float) -> float:
    """Return the 97.5th percentile of Student's distribution."""
    z = NormalDist().inv_cdf(0.975)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum(term / degrees**power for power, term in enumerate(terms))
