"""From scores to decisions over the whole fleet: conformal p-values and their correction.

A split-conformal p-value is the share of healthy reference scores that are at least as high
(Bates et al., "Testing for outliers with conformal p-values", arXiv 2104.08279: such p-values
are positively dependent, so that Benjamini-Hochberg still holds its rate). A short reference
cannot give small p-values, so beyond its upper quantile an exponential tail is fitted to the
excesses (peaks over threshold with shape 0); scores without an upper bound are put on a
logarithmic scale first, which makes that tail a power law: the careful choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

GRID = 512
# Scale of the heaviest tail that is believed, on the logarithmic scale: p falls with the cube.
HEAVIEST = 1 / 3
SMALLEST_P = 1e-30


@dataclass(frozen=True)
class Calibration:
    """A healthy reference of one score, as a grid of its quantiles and an upper tail.

    Attributes:
        grid: scores, rising; ``exceed`` is the share of the reference at or above each.
        size: number of reference scores.
        tail_from: score at which the fitted tail begins; ``tail_share`` of the reference
            lies above it.
        tail_scale: mean excess above it, on the scale of the score (logarithmic if ``log``).
    """

    grid: FloatArray
    exceed: FloatArray
    size: int
    tail_from: float
    tail_share: float
    tail_scale: float
    log: bool

    @classmethod
    def fit(cls, scores: FloatArray, *, log: bool) -> Calibration:
        """Learn the reference.

        Args:
            scores: healthy scores, higher is more abnormal; NaN are left out.
            log: the score has no upper bound (and is not negative).

        Raises:
            ValueError: fewer than 50 scores.
        """
        clean = np.sort(scores[np.isfinite(scores)])
        size = len(clean)
        if size < 50:
            raise ValueError(f"a reference needs 50 scores, here are {size}")
        # Dense towards the top, where decisions are made.
        upper = np.geomspace(0.1, 1 / size, GRID)
        share = np.unique(np.concatenate([np.linspace(1, 0.1, 64), upper]))
        positions = np.clip(np.ceil((1 - share) * size).astype(int), 0, size - 1)
        grid = np.unique(clean[positions])
        exceed = (size - np.searchsorted(clean, grid, side="left")) / size
        tail_share = float(np.clip(100 / size, 0.001, 0.1))
        start = float(np.quantile(clean, 1 - tail_share))
        above = clean[clean > start]
        excess = cls._scaled(above, log) - cls._scaled(np.array([start]), log)
        spread = float(np.std(cls._scaled(clean, log)))
        # At least a twentieth of the spread: a reference of equal scores has no excess.
        scale = max(float(np.mean(excess)) if len(excess) else 0.0, spread / 20, 1e-9)
        if log:
            # A few faults in the reference must not make every later one look usual.
            scale = min(scale, HEAVIEST)
        return cls(grid, exceed, size, start, tail_share, scale, log)

    @staticmethod
    def _scaled(scores: FloatArray, log: bool) -> FloatArray:
        return np.log1p(np.maximum(scores, 0.0)) if log else scores

    def p_values(self, scores: FloatArray) -> FloatArray:
        """Conformal p-values; NaN stays NaN. They never rise with the score."""
        p = np.full(scores.shape, np.nan)
        known = np.isfinite(scores)
        values = scores[known]
        # Share of the reference at or above the score: that of the next grid score.
        index = np.searchsorted(self.grid, values, side="left")
        share = np.where(
            index < len(self.grid), self.exceed[np.minimum(index, len(self.grid) - 1)], 0.0
        )
        empirical = (share * self.size + 1) / (self.size + 1)
        beyond = values > self.tail_from
        excess = self._scaled(values, self.log) - self._scaled(np.array([self.tail_from]), self.log)
        tail = (self.tail_share + 1 / (self.size + 1)) * np.exp(
            -np.maximum(excess, 0.0) / self.tail_scale
        )
        p[known] = np.clip(np.where(beyond, tail, empirical), SMALLEST_P, 1.0)
        # The two parts meet near tail_from: the empirical one may not fall below the tail's start.
        floor = self.tail_share + 1 / (self.size + 1)
        inside = known.copy()
        inside[known] = ~beyond
        p[inside] = np.maximum(p[inside], min(floor, 1.0))
        return p

    def to_json(self) -> dict[str, object]:
        """Numbers only, for the model file."""
        return {
            "grid": self.grid.tolist(), "exceed": self.exceed.tolist(), "size": self.size,
            "tail_from": self.tail_from, "tail_share": self.tail_share,
            "tail_scale": self.tail_scale, "log": self.log,
        }  # fmt: skip

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Calibration:
        """The same from the model file."""
        return cls(
            np.asarray(raw["grid"], dtype=float),
            np.asarray(raw["exceed"], dtype=float),
            int(raw["size"]),
            float(raw["tail_from"]),
            float(raw["tail_share"]),
            float(raw["tail_scale"]),
            bool(raw["log"]),
        )


def smallest_p(p_values: FloatArray) -> FloatArray:
    """Bonferroni over the first axis: the smallest p-value times the number of known ones.

    Args:
        p_values: tests x anything; NaN where a test was not made.

    Returns:
        One p-value each; NaN where no test was made.
    """
    known = np.isfinite(p_values)
    count = known.sum(axis=0)
    least = np.min(np.where(known, p_values, 1.0), axis=0)
    return np.where(count > 0, np.minimum(least * count, 1.0), np.nan)


def benjamini_hochberg(p_values: FloatArray, q: float) -> BoolArray:
    """Which of the fleet's p-values are rejected at false-discovery rate ``q``.

    Benjamini and Hochberg (1995): the largest k with p_(k) <= q k / m, all up to it.

    Args:
        p_values: one-dimensional; NaN (no verdict) is no test and never rejected.
    """
    rejected = np.zeros(p_values.shape, dtype=bool)
    known = np.flatnonzero(np.isfinite(p_values))
    if not len(known):
        return rejected
    order = known[np.argsort(p_values[known], kind="stable")]
    limits = q * np.arange(1, len(order) + 1) / len(order)
    passed = np.flatnonzero(p_values[order] <= limits)
    if len(passed):
        rejected[order[: passed[-1] + 1]] = True
    return rejected
