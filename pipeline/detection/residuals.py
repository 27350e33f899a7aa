"""Features as signed residuals against peers, in physical units, and their robust z.

residual = (x - peer median) - slope (g - peer median of g) - the entity's commissioning offset,
where g is the feature that x follows (temperature follows power). A feature that is compared
with its ``own`` past has the entity's commissioning value in place of the peer median.
z = residual / max(floor, trained spread of all, trained spread of this entity, spread of the
peers now).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.detection.conformal import BoolArray, FloatArray
from pipeline.detection.frame import Frame
from pipeline.detection.peers import MAD_TO_SIGMA, Peers, group_median, group_spread
from pipeline.detection.spec import DetectorSpec, Feature

# Minutes of training that count as much as the belief that there is no offset.
SHRINK_MINUTES = 10.0


@dataclass
class Baseline:
    """What training learnt about one feature.

    Attributes:
        slope: of the feature on the one that it follows, pooled over the fleet.
        sigma, sigma_long: robust spread of residuals, one-minute and long window.
        offset: commissioning offset by entity, in the feature's unit; for an ``own``
            feature the commissioning value itself.
        spread: spread of each entity's own residual: what serves requests varies by nature.
    """

    slope: float = 0.0
    sigma: float = 0.0
    sigma_long: float = 0.0
    offset: dict[str, float] = field(default_factory=dict)
    spread: dict[str, float] = field(default_factory=dict)

    def scale(self, entities: Sequence[str], floor: float, *, long: bool = False) -> FloatArray:
        """Smallest scale of z of every entity."""
        least = max(floor, self.sigma_long if long else self.sigma)
        return np.array([max(least, self.spread.get(entity, 0.0)) for entity in entities])


@dataclass
class Residuals:
    """Residuals of all features.

    Attributes:
        raw: residual in physical units, by feature, minutes x entities.
        z: robust z.
        median: peer median of the feature as measured (for text).
        effect: signed residual over the smallest effect that matters.
    """

    raw: dict[str, FloatArray]
    z: dict[str, FloatArray]
    median: dict[str, FloatArray]
    effect: dict[str, FloatArray]


def fit_baselines(
    frame: Frame, spec: DetectorSpec, peers: Peers, use: BoolArray,
    frozen: dict[str, Baseline] | None = None,
) -> dict[str, Baseline]:  # fmt: skip
    """Learn slopes, offsets and spreads.

    Args:
        use: minutes x entities to learn from.
        frozen: baselines of an earlier model: offsets in them stay as they are, so that a
            slow fault is never learnt as normal; only unknown entities are learnt.
    """
    found = {}
    for feature in spec.feature:
        base = Baseline()
        group = np.where(use, peers[feature.family].code, -1)
        x = np.where(use, frame.value(feature.name), np.nan)
        centred = _centred(x, group, feature)
        if feature.given:
            g = np.where(use, frame.value(feature.given), np.nan)
            centred_g = _centred(g, group, feature)
            base.slope = _slope(*_within(centred, centred_g, feature))
            centred = centred - base.slope * centred_g
        if feature.offset or feature.compare == "own":
            base.offset = _offsets(centred, frame, feature)
            for entity, value in ((frozen or {}).get(feature.name) or Baseline()).offset.items():
                base.offset[entity] = value
        found[feature.name] = base
        residual = _recentred(centred, base, frame, group, feature)
        base.sigma = _sigma(residual)
        base.spread = _spreads(residual, frame, max(base.sigma, feature.floor))
        base.sigma_long = _sigma(rolling_median(residual, spec.decision.long_minutes))
    return found


def commission(
    frame: Frame, spec: DetectorSpec, peers: Peers, baselines: Mapping[str, Baseline],
    use: BoolArray,
) -> dict[str, Baseline]:  # fmt: skip
    """Baselines for entities that training never saw: slopes and fleet spreads stay, each
    entity's own value and spread are learnt from a frame of its healthy time.

    Args:
        use: minutes x entities to learn from.
    """
    found = {}
    for feature in spec.feature:
        learnt = baselines[feature.name]
        base = Baseline(learnt.slope, learnt.sigma, learnt.sigma_long)
        group = np.where(use, peers[feature.family].code, -1)
        centred = _without_given(frame, feature, group, use, base)
        if feature.offset or feature.compare == "own":
            base.offset = _offsets(centred, frame, feature)
        residual = _recentred(centred, base, frame, group, feature)
        base.spread = _spreads(residual, frame, max(base.sigma, feature.floor))
        found[feature.name] = base
    return found


def residuals(
    frame: Frame, spec: DetectorSpec, peers: Peers, baselines: dict[str, Baseline],
    fit: BoolArray,
) -> Residuals:  # fmt: skip
    """Residuals and z of every fit entity that has peers; NaN elsewhere."""
    out = Residuals({}, {}, {}, {})
    for feature in spec.feature:
        code = peers[feature.family].code
        # Compared with its own past, an entity needs no peers.
        judged = fit if feature.compare == "own" else fit & (code >= 0)
        group = np.where(judged, code, -1)
        base = baselines[feature.name]
        x = np.where(judged, frame.value(feature.name), np.nan)
        centred = _without_given(frame, feature, group, judged, base)
        residual = _recentred(centred, base, frame, group, feature)
        scale: FloatArray = base.scale(frame.entities, feature.floor)
        if feature.compare == "peers":
            scale = np.fmax(scale, group_spread(residual, group))
        out.raw[feature.name] = residual
        out.z[feature.name] = residual / scale
        out.median[feature.name] = x - residual
        out.effect[feature.name] = residual / smallest_effect(feature, x - residual)
    return out


def smallest_effect(feature: Feature, expected: FloatArray) -> FloatArray:
    """The smallest residual that matters, in the feature's unit."""
    share = np.nan_to_num(np.abs(expected)) * feature.min_effect_ratio
    return np.maximum(feature.min_effect, share)


def rolling_median(values: FloatArray, minutes: int) -> FloatArray:
    """Median of the last ``minutes`` rows, per column; NaN where half of them are unknown."""
    out = np.full(values.shape, np.nan)
    if len(values) < minutes:
        return out
    known = np.isfinite(values)
    if not known.any():
        return out
    if bool((values[known] == values[known][0]).all()):
        sorted_windows = None  # the same everywhere: its median needs no sorting
    else:
        windows = np.lib.stride_tricks.sliding_window_view(values, minutes, axis=0)
        sorted_windows = np.sort(windows, axis=-1)  # NaN go last
    count = np.lib.stride_tricks.sliding_window_view(known, minutes, axis=0).sum(axis=-1)
    enough = count * 2 > minutes
    if sorted_windows is None:
        out[minutes - 1 :] = np.where(enough, values[known][0], np.nan)
        return out
    low = np.take_along_axis(sorted_windows, np.maximum((count - 1) // 2, 0)[..., None], axis=-1)
    high = np.take_along_axis(
        sorted_windows, np.minimum(count // 2, minutes - 1)[..., None], axis=-1
    )
    out[minutes - 1 :] = np.where(enough, ((low + high) / 2)[..., 0], np.nan)
    return out


def _centred(x: FloatArray, group: np.ndarray, feature: Feature) -> FloatArray:
    if feature.compare == "own":
        return x
    median, count = group_median(x, group)
    return np.where(count > 1, x - median, np.nan)


def _without_given(
    frame: Frame, feature: Feature, group: np.ndarray, use: BoolArray, base: Baseline
) -> FloatArray:
    """A feature over its peers' median, less what the one that it follows explains."""
    centred = _centred(np.where(use, frame.value(feature.name), np.nan), group, feature)
    if feature.given:
        g = np.where(use, frame.value(feature.given), np.nan)
        centred = centred - base.slope * _centred(g, group, feature)
    return centred


def _recentred(
    centred: FloatArray, base: Baseline, frame: Frame, group: np.ndarray, feature: Feature
) -> FloatArray:
    if not base.offset:
        return centred if feature.compare == "peers" else np.full(centred.shape, np.nan)
    missing = np.nan if feature.compare == "own" else 0.0
    offset = np.array([base.offset.get(entity, missing) for entity in frame.entities])
    residual: FloatArray = centred - offset
    if feature.compare == "peers":
        # The peers' median moves when their own offsets are taken out.
        median, _ = group_median(residual, group)
        residual = residual - median
    return residual


def _within(y: FloatArray, x: FloatArray, feature: Feature) -> tuple[FloatArray, FloatArray]:
    """For an ``own`` feature only changes within an entity tell the slope."""
    if feature.compare == "peers":
        return y, x
    both = np.isfinite(x) & np.isfinite(y)
    y, x = np.where(both, y, np.nan), np.where(both, x, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all-NaN columns stay NaN
        return y - np.nanmedian(y, axis=0), x - np.nanmedian(x, axis=0)


def _slope(y: FloatArray, x: FloatArray) -> float:
    """Robust pooled slope: least squares, then twice more without the outer residuals."""
    known = np.isfinite(x) & np.isfinite(y)
    if known.sum() < 100:
        return 0.0
    a, b = x[known], y[known]
    keep = np.ones(len(a), dtype=bool)
    slope = 0.0
    for _ in range(3):
        u, v = a[keep], b[keep]
        power = float(u @ u)
        if power <= 0:
            return 0.0
        slope = float(u @ v) / power
        rest = b - slope * a
        rest = rest - np.median(rest)
        limit = 3 * max(MAD_TO_SIGMA * float(np.median(np.abs(rest))), 1e-12)
        keep = np.abs(rest) <= limit
        if keep.sum() < 50:
            return slope
    return slope


def _offsets(centred: FloatArray, frame: Frame, feature: Feature) -> dict[str, float]:
    """Commissioning offset of every entity, shrunken and capped.

    The median over training, pulled towards 0 where there are few minutes. A residual that
    drifts through training is a fault in the making: then the early part counts alone.
    """
    found: dict[str, float] = {}
    third = max(1, len(centred) // 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all-NaN columns stay NaN
        whole = np.nanmedian(centred, axis=0) if len(centred) else np.array([])
        early = np.nanmedian(centred[:third], axis=0) if len(centred) else np.array([])
        late = np.nanmedian(centred[-third:], axis=0) if len(centred) else np.array([])
    minutes = np.isfinite(centred).sum(axis=0)
    for i, entity in enumerate(frame.entities):
        if minutes[i] < 5:
            continue
        value = float(whole[i])
        drift = late[i] - early[i]
        if np.isfinite(drift) and abs(drift) > feature.min_effect:
            value = float(early[i])
        if feature.compare == "own":
            found[entity] = value
            continue
        value *= minutes[i] / (minutes[i] + SHRINK_MINUTES)
        found[entity] = float(np.clip(value, -feature.offset_cap, feature.offset_cap))
    return found


def _spreads(residual: FloatArray, frame: Frame, least: float) -> dict[str, float]:
    """Robust spread of each entity's own residual, where it is larger than ``least``: from its
    90 % point, so that what is quiet most of the time and busy at others is seen."""
    size = np.sort(np.abs(residual), axis=0)  # NaN go last
    count = np.isfinite(size).sum(axis=0)
    place = np.maximum(np.floor(0.9 * (count - 1)).astype(np.int64), 0)
    if not size.size:
        return {}
    tops = np.take_along_axis(size, place[None, :], axis=0)[0] / 1.645
    return {
        entity: round(float(top), 9)
        for entity, top, n in zip(frame.entities, tops, count, strict=True)
        if n >= 5 and top > least
    }


def _sigma(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    if not len(known):
        return 0.0
    return MAD_TO_SIGMA * float(np.median(np.abs(known - np.median(known))))
