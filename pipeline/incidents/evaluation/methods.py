"""The simple methods that a detector must beat, on the same windows.

They see the raw features of ``features.sql`` without peers, are fitted on the same training
minutes, and page by the same persistence; nothing is grouped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.stats import skew
from sklearn.ensemble import IsolationForest

from pipeline.detection.conformal import BoolArray, FloatArray
from pipeline.detection.families import Pca
from pipeline.detection.frame import Frame
from pipeline.detection.gate import rule_holds
from pipeline.detection.peers import MAD_TO_SIGMA
from pipeline.detection.spec import DetectorSpec, KofN

# Share of healthy training rows that a method may call abnormal.
ALARM_SHARE = 0.001
PERSISTENCE = KofN(k=2, n=3)
MOST_ROWS = 100_000
SEED = 5


@dataclass
class Ecod:
    """ECOD (Li et al. 2022): empirical tails of every feature, summed on the log scale.

    Of the left tails, the right tails and the tails on the skewed side the largest sum counts.
    Written anew: the reference library scores against training and batch together.
    """

    columns: FloatArray
    skewness: FloatArray

    @classmethod
    def fit(cls, rows: FloatArray) -> Ecod:
        """Keep the sorted training columns."""
        spread = rows.std(axis=0) > 0
        skewness = np.where(spread, skew(rows, axis=0), 0.0)
        return cls(np.sort(rows, axis=0), np.nan_to_num(skewness))

    def score(self, rows: FloatArray) -> FloatArray:
        """Higher is more abnormal."""
        count = len(self.columns)
        left = np.empty(rows.shape)
        right = np.empty(rows.shape)
        for j in range(rows.shape[1]):
            column = self.columns[:, j]
            left[:, j] = np.searchsorted(column, rows[:, j], side="right")
            right[:, j] = count - np.searchsorted(column, rows[:, j], side="left")
        left = -np.log((left + 1) / (count + 1))
        right = -np.log((right + 1) / (count + 1))
        chosen = np.where(self.skewness < 0, left, right)
        sums = np.stack([left.sum(axis=1), right.sum(axis=1), chosen.sum(axis=1)])
        found: FloatArray = sums.max(axis=0)
        return found


def simple_alarms(frame: Frame, spec: DetectorSpec, training: int) -> dict[str, BoolArray]:
    """Alarms of every simple method after persistence, minutes x entities.

    Args:
        training: the first so many minutes are fitted on.
    """
    found = {"static rules": _persist(_static(frame, spec))}
    names = [f.name for f in spec.feature if np.isfinite(frame.value(f.name)).any()]
    if not names or not frame.entities:
        return found
    cube = np.stack([frame.value(name) for name in names], axis=-1)
    present = frame.samples > 0
    known = np.isfinite(cube)
    learn = cube[:training]
    middle = np.array([_median(learn[..., j]) for j in range(len(names))])
    spread = np.array([_spread(learn[..., j], middle[j]) for j in range(len(names))])
    z = np.where(known, (cube - middle) / spread, 0.0)
    rows = z[:training][present[:training]]
    if len(rows) < 100:
        return found
    rng = np.random.default_rng(SEED)
    if len(rows) > MOST_ROWS:
        rows = rows[rng.choice(len(rows), MOST_ROWS, replace=False)]
    pca, ecod = Pca.fit(rows), Ecod.fit(rows)
    forest = IsolationForest(n_estimators=100, random_state=SEED).fit(rows)
    methods: dict[str, Callable[[FloatArray], FloatArray]] = {
        "max |z|": lambda x: np.abs(x).max(axis=1),
        "PCA T2+Q": pca.score,
        "ECOD": ecod.score,
    }
    everything = z[present]
    for name, method in methods.items():
        limit = np.quantile(method(rows), 1 - ALARM_SHARE)
        found[name] = _persist(_spread_out(method(everything) > limit, present))
    # As its users run it: one hundredth of what it was trained on is abnormal by decree.
    scores = -forest.score_samples(everything)
    limit = np.quantile(-forest.score_samples(rows), 0.99)
    found["default forest"] = _persist(_spread_out(scores > limit, present))
    return found


def _static(frame: Frame, spec: DetectorSpec) -> BoolArray:
    out = np.zeros(frame.shape, dtype=bool)
    for rule in spec.static:
        holds = rule_holds(frame, rule).astype(np.int64)
        total = np.cumsum(np.vstack([np.zeros((1, holds.shape[1]), dtype=np.int64), holds]), axis=0)
        for minute in range(len(holds)):
            first = max(0, minute + 1 - rule.n)
            out[minute] |= (total[minute + 1] - total[first]) >= rule.k
    return out


def _persist(alarms: BoolArray) -> BoolArray:
    out = np.zeros_like(alarms)
    for minute in range(len(alarms)):
        recent = alarms[max(0, minute + 1 - PERSISTENCE.n) : minute + 1]
        out[minute] = recent.sum(axis=0) >= PERSISTENCE.k
    return out


def _spread_out(flags: BoolArray, present: BoolArray) -> BoolArray:
    out = np.zeros(present.shape, dtype=bool)
    out[present] = flags
    return out


def _median(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else 0.0


def _spread(values: FloatArray, middle: float) -> float:
    known = values[np.isfinite(values)]
    if not len(known):
        return 1.0
    found = MAD_TO_SIGMA * float(np.median(np.abs(known - middle)))
    return found if found > 0 else max(float(known.std()), 1e-6)
