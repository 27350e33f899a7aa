"""From feature rows and a model to evidence: the same code trains, scores and evaluates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.detection.conformal import (
    BoolArray,
    FloatArray,
    benjamini_hochberg,
    smallest_p,
)
from pipeline.detection.families import METHODS, Family, bad_z
from pipeline.detection.frame import Frame
from pipeline.detection.gate import Structure, inspect
from pipeline.detection.peers import PeerGroups, Peers, find_peers, group_spread
from pipeline.detection.persistence import HOLD, STRONG, WEAK, Levels
from pipeline.detection.residuals import (
    Baseline,
    Residuals,
    residuals,
    rolling_median,
    smallest_effect,
)
from pipeline.detection.spec import DetectorSpec

# Rows of z that are this ordinary need no score: their p-value is near 1.
ORDINARY_Z = 2.5
ORDINARY_RMS = 1.5
GUARDS = ("pca", "max_z")


@dataclass
class Window:
    """Evidence over one window length; arrays are minutes x entities.

    Attributes:
        residuals: per feature.
        p: smallest p-value over families and methods; NaN without a verdict.
        family: index of the family with the smallest one.
        effect: largest effect in a bad direction among features that stand out.
        candidate: passed Benjamini-Hochberg over the fleet in that minute.
        level: evidence level.
    """

    residuals: Residuals
    p: FloatArray
    family: np.ndarray
    effect: FloatArray
    candidate: BoolArray
    level: Levels


@dataclass
class Judged:
    """A frame with everything that was concluded from it."""

    frame: Frame
    structure: Structure
    peers: Peers
    short: Window
    long: Window

    def peers_of(self, feature: str, spec: DetectorSpec) -> PeerGroups:
        """The groups that a feature was compared within."""
        return self.peers[spec.by_name[feature].family]


def judge_frame(
    frame: Frame, spec: DetectorSpec, baselines: Mapping[str, Baseline],
    short: Sequence[Family], long: Sequence[Family], q: float,
) -> Judged:  # fmt: skip
    """Gate, compare, score and decide every minute of a frame."""
    structure = inspect(frame, spec)
    peers = find_peers(frame, spec, structure.fit)
    found = residuals(frame, spec, peers, dict(baselines), structure.fit)
    lasting = long_residuals(found, spec, peers, baselines, frame.entities)
    return judge_residuals(frame, spec, structure, peers, found, lasting, short, long, q)


def judge_residuals(
    frame: Frame, spec: DetectorSpec, structure: Structure, peers: Peers, found: Residuals,
    lasting: Residuals, short: Sequence[Family], long: Sequence[Family], q: float,
) -> Judged:  # fmt: skip
    """The second half of :func:`judge_frame`, for one who has the residuals already."""
    return Judged(
        frame, structure, peers,
        _window(found, spec, short, q, strong=True),
        _window(lasting, spec, long, q, strong=False),
    )  # fmt: skip


def long_residuals(
    found: Residuals, spec: DetectorSpec, peers: Peers, baselines: Mapping[str, Baseline],
    entities: Sequence[str],
) -> Residuals:  # fmt: skip
    """The same residuals over the long window: rolling medians, with their smaller spread."""
    minutes = spec.decision.long_minutes
    out = Residuals({}, {}, {}, {})
    for feature in spec.feature:
        raw = rolling_median(found.raw[feature.name], minutes)
        # No verdict now, none over the long window either.
        raw = np.where(np.isfinite(found.raw[feature.name]), raw, np.nan)
        base = baselines[feature.name]
        scale = base.scale(entities, feature.floor / 2, long=True)
        if feature.compare == "peers":
            group = np.where(np.isfinite(raw), peers[feature.family].code, -1)
            scale = np.fmax(scale, group_spread(raw, group))
        median = rolling_median(found.median[feature.name], minutes)
        out.raw[feature.name] = raw
        out.z[feature.name] = raw / scale
        out.median[feature.name] = median
        out.effect[feature.name] = raw / smallest_effect(feature, median)
    return out


def _window(
    found: Residuals, spec: DetectorSpec, families: Sequence[Family], q: float, *, strong: bool
) -> Window:
    decision = spec.decision
    shape = next(iter(found.z.values())).shape
    effect = largest_effect(found, spec, decision.min_z)
    near = largest_effect(found, spec, decision.min_z / 2)
    # Whatever a forest says of the others, they are too small to matter.
    matters = near >= decision.hold_effect
    p_family = np.full((max(len(families), 1), *shape), np.nan)
    for index, family in enumerate(families):
        p_family[index] = _family_p(family, found.z, spec, matters)
    p = smallest_p(p_family)
    best = np.argmin(np.where(np.isfinite(p_family), p_family, np.inf), axis=0)
    candidate = np.zeros(shape, dtype=bool)
    for minute in range(shape[0]):
        candidate[minute] = benjamini_hochberg(p[minute], q)
    level = np.zeros(shape, dtype=np.int8)
    with np.errstate(invalid="ignore"):
        level[matters & (p <= decision.hold_p)] = HOLD
        level[candidate & (effect >= decision.weak_effect)] = WEAK
        if strong:
            level[candidate & (effect >= decision.strong_effect)] = STRONG
    return Window(found, p, best, effect, candidate, level)


def _family_p(
    family: Family, z: Mapping[str, FloatArray], spec: DetectorSpec, matters: BoolArray
) -> FloatArray:
    """p-values of one family: all methods where it matters, the guards where z is unusual, and
    1 where nothing is."""
    members = [name for name in dict.fromkeys((*family.features, *family.paging)) if name in z]
    shape = next(iter(z.values())).shape
    out = np.full(shape, np.nan)
    if not members:
        return out
    stacked = np.abs(np.stack([z[name] for name in members]))
    known = np.isfinite(stacked)
    stacked = np.where(known, stacked, 0.0)
    some = known.any(axis=0)
    rms = np.sqrt((stacked**2).sum(axis=0) / np.maximum(known.sum(axis=0), 1))
    odd = some & ((stacked.max(axis=0) >= ORDINARY_Z) | (rms >= ORDINARY_RMS))
    out[some] = 1.0
    for rows, methods in ((odd & ~matters, GUARDS), (odd & matters, METHODS)):
        if rows.any():
            out[rows] = family.p_values({name: z[name][rows] for name in members}, spec, methods)
    return out


def largest_effect(found: Residuals, spec: DetectorSpec, min_z: float) -> FloatArray:
    """Largest effect in a bad direction over the features that may page and stand out.

    Returns:
        In units of the smallest effect that matters; 0 where nothing stands out.
    """
    shape = next(iter(found.z.values())).shape
    out = np.zeros(shape)
    for feature in spec.feature:
        if not feature.page:
            continue
        effect = bad_z(found.effect[feature.name], feature)
        z = bad_z(found.z[feature.name], feature)
        with np.errstate(invalid="ignore"):
            out = np.maximum(out, np.where((z >= min_z) & np.isfinite(effect), effect, 0.0))
    return out
