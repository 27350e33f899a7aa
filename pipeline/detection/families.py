"""One small isolation forest per feature family, and its two guards, on residual z.

A forest on many columns is blind to one feature that stands out far (it splits on a random
column), so a family has at most eight features, and their aggregates go in beside them. PCA
T2+Q sees broken correlations, max z sees single features; both are always computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.detection.conformal import Calibration, FloatArray, smallest_p
from pipeline.detection.spec import DetectorSpec, Feature, Forest

if TYPE_CHECKING:
    from sklearn.ensemble import IsolationForest

# z beyond this is only "very far": forests cast to float32, and sums must not overflow.
CLIP = 50.0
METHODS = ("forest", "pca", "max_z")
# 99 % point of one squared standard normal: no unit of T2 or Q is smaller.
CHI2_99 = 6.63


def aggregates(z: FloatArray) -> FloatArray:
    """Top-3 |z|, root mean square, and number above 3.

    Args:
        z: rows x features, no NaN.

    Returns:
        rows x 5; where there are fewer than three features the missing ranks are 0.
    """
    size = np.abs(z)
    top = np.zeros((len(z), 3))
    ranked = -np.sort(-size, axis=1)[:, :3]
    top[:, : ranked.shape[1]] = ranked
    rms = np.sqrt(np.mean(size**2, axis=1, keepdims=True))
    above = (size > 3).sum(axis=1, keepdims=True).astype(float)
    return np.hstack([top, rms, above])


def bad_z(z: FloatArray, feature: Feature) -> FloatArray:
    """z turned so that higher is worse; the harmless direction is negative."""
    if feature.bad == "both":
        return np.abs(z)
    return -z if feature.bad == "low" else z


@dataclass
class Pca:
    """Hotelling's T2 in the leading components plus Q, the squared rest, each over its own
    99 % point (Jackson and Mudholkar 1979 for Q).

    Attributes:
        mean: by feature; axes: components x features; variance: by component.
        t2_unit, q_unit: 99 % points in training.
    """

    mean: FloatArray
    axes: FloatArray
    variance: FloatArray
    t2_unit: float
    q_unit: float

    @classmethod
    def fit(cls, rows: FloatArray) -> Pca:
        """Keep components up to 90 % of the variance."""
        mean = rows.mean(axis=0)
        centred = rows - mean
        values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(centred, rowvar=False)))
        order = np.argsort(values)[::-1]
        values, vectors = np.maximum(values[order], 0.0), vectors[:, order]
        total = values.sum()
        keep = int(np.searchsorted(np.cumsum(values), 0.9 * total)) + 1 if total > 0 else 1
        keep = min(keep, len(values))
        made = cls(mean, vectors[:, :keep].T, np.maximum(values[:keep], 0.05), 1.0, 1.0)
        t2, q = made.parts(rows)
        return cls(
            mean, made.axes, made.variance,
            max(float(np.quantile(t2, 0.99)), CHI2_99), max(float(np.quantile(q, 0.99)), CHI2_99),
        )  # fmt: skip

    def parts(self, rows: FloatArray) -> tuple[FloatArray, FloatArray]:
        """T2 and Q of every row."""
        centred = rows - self.mean
        scores = centred @ self.axes.T
        rest = centred - scores @ self.axes
        return (scores**2 / self.variance).sum(axis=1), (rest**2).sum(axis=1)

    def score(self, rows: FloatArray) -> FloatArray:
        """T2 and Q in units of their 99 % points, summed."""
        t2, q = self.parts(rows)
        return t2 / self.t2_unit + q / self.q_unit


class LazyForest:
    """A forest that is read from its bytes when it is first needed.

    Most minutes hold nothing that a forest has to look at; then scikit-learn is not even
    imported.
    """

    def __init__(self, load: Callable[[], IsolationForest]) -> None:
        self._load = load
        self._forest: IsolationForest | None = None

    def get(self) -> IsolationForest:
        """The forest."""
        if self._forest is None:
            self._forest = self._load()
        return self._forest


@dataclass
class Family:
    """What is learnt of one family over one window length.

    Attributes:
        name: the family; features: those that the forest takes, in order.
        paging: features that max z looks at.
        forest, pca: None where the family has too little to learn from.
        calibration: healthy reference by method.
    """

    name: str
    features: tuple[str, ...]
    paging: tuple[str, ...]
    forest: LazyForest | None
    pca: Pca | None
    calibration: dict[str, Calibration]

    def scores(
        self, z: Mapping[str, FloatArray], spec: DetectorSpec, *, methods: Sequence[str] = METHODS
    ) -> dict[str, FloatArray]:
        """Scores by method, higher is more abnormal; NaN where one cannot be made.

        Args:
            z: residual z by feature, all of one shape.
        """
        shape = next(iter(z.values())).shape
        out = {method: np.full(shape, np.nan) for method in methods}
        if "max_z" in methods and self.paging:
            stacked = np.stack([bad_z(z[name], spec.by_name[name]) for name in self.paging])
            known = np.isfinite(stacked).any(axis=0)
            worst = np.max(np.where(np.isfinite(stacked), stacked, -np.inf), axis=0)
            out["max_z"] = np.where(known, np.maximum(worst, 0.0), np.nan)
        if self.features:
            stacked = np.stack([z[name] for name in self.features], axis=-1)
            whole = np.isfinite(stacked).all(axis=-1)
            rows = np.clip(stacked[whole], -CLIP, CLIP)
            if len(rows):
                if self.forest is not None and "forest" in methods:
                    out["forest"][whole] = forest_scores(self.forest.get(), rows)
                if self.pca is not None and "pca" in methods:
                    out["pca"][whole] = self.pca.score(rows)
        return out

    def p_values(
        self, z: Mapping[str, FloatArray], spec: DetectorSpec, methods: Sequence[str] = METHODS
    ) -> FloatArray:
        """One conformal p-value of the family: the smallest of its methods, corrected."""
        scores = self.scores(z, spec, methods=[m for m in methods if m in self.calibration])
        if not scores:
            return np.full(next(iter(z.values())).shape, np.nan)
        return smallest_p(
            np.stack([self.calibration[method].p_values(score) for method, score in scores.items()])
        )


def forest_scores(forest: IsolationForest, rows: FloatArray) -> FloatArray:
    """Isolation score of rows of z; higher is more abnormal (turned round here, once)."""
    score: FloatArray = -forest.score_samples(np.hstack([rows, aggregates(rows)]))
    return score


def fit_family(
    name: str, spec: DetectorSpec, z: Mapping[str, FloatArray], learn: np.ndarray,
    reference: np.ndarray, seed: int,
) -> Family:  # fmt: skip
    """Fit, trim the worst, fit again, and calibrate on later time.

    Args:
        z: residual z by feature, minutes x entities.
        learn: mask of the earlier part; reference: mask of the later part.
    """
    members = [feature for feature in spec.feature if feature.family == name]
    # A feature that this fleet does not have says nothing.
    some = bool(learn.any())
    known = [f for f in members if some and np.isfinite(z[f.name][learn]).mean() > 0.5]
    features = tuple(f.name for f in known if f.forest)
    paging = tuple(f.name for f in members if f.page)
    forest, pca = None, None
    if features:
        rows = np.stack([z[name][learn] for name in features], axis=-1)
        rows = np.clip(rows[np.isfinite(rows).all(axis=-1)], -CLIP, CLIP)
        rng = np.random.default_rng(seed)
        if len(rows) > spec.forest.max_rows:
            rows = rows[rng.choice(len(rows), spec.forest.max_rows, replace=False)]
        if len(rows) >= 100:
            fitted, kept = _trimmed_forest(rows, spec.forest, seed)
            forest, pca = LazyForest(lambda: fitted), Pca.fit(kept)
    family = Family(name, features, paging, forest, pca, {})
    held_out = {key: np.where(reference, values, np.nan) for key, values in z.items()}
    for method, score in family.scores(held_out, spec).items():
        try:
            family.calibration[method] = Calibration.fit(score[reference], log=method != "forest")
        except ValueError:
            continue
    return family


def _trimmed_forest(
    rows: FloatArray, settings: Forest, seed: int
) -> tuple[IsolationForest, FloatArray]:
    """Drop the worst share and everything beyond 6 sigma, then fit again: faults that hide in
    the training data would otherwise mask their like."""
    first = _forest(rows, settings, seed)
    scores = forest_scores(first, rows)
    keep = (scores <= np.quantile(scores, 1 - settings.trim)) & (np.abs(rows).max(axis=1) <= 6)
    if keep.sum() < 100:
        keep = scores <= np.quantile(scores, 1 - settings.trim)
    kept = rows[keep]
    return _forest(kept, settings, seed), kept


def _forest(rows: FloatArray, settings: Forest, seed: int) -> IsolationForest:
    from sklearn.ensemble import IsolationForest

    forest = IsolationForest(
        n_estimators=settings.trees, max_samples=min(settings.max_samples, len(rows)),
        contamination="auto", random_state=seed,
    )  # fmt: skip
    return forest.fit(np.hstack([rows, aggregates(rows)]))


def family_json(family: Family) -> dict[str, Any]:
    """All of a family but its forest."""
    pca = family.pca
    return {
        "name": family.name, "features": list(family.features), "paging": list(family.paging),
        "pca": None if pca is None else {
            "mean": pca.mean.tolist(), "axes": pca.axes.tolist(),
            "variance": pca.variance.tolist(), "t2_unit": pca.t2_unit, "q_unit": pca.q_unit,
        },
        "calibration": {name: found.to_json() for name, found in family.calibration.items()},
    }  # fmt: skip


def family_from_json(raw: Mapping[str, Any], forest: LazyForest | None) -> Family:
    """The reverse of :func:`family_json`."""
    pca = raw["pca"]
    return Family(
        raw["name"], tuple(raw["features"]), tuple(raw["paging"]), forest,
        None if pca is None else Pca(
            np.asarray(pca["mean"], dtype=float),
            np.asarray(pca["axes"], dtype=float).reshape(-1, len(pca["mean"])),
            np.asarray(pca["variance"], dtype=float), float(pca["t2_unit"]), float(pca["q_unit"]),
        ),
        {name: Calibration.from_json(found) for name, found in raw["calibration"].items()},
    )  # fmt: skip
