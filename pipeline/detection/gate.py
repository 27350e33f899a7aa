"""The structure gate: which windows can be judged at all, and whose telemetry is lost.

A gap, a frozen source or a vanished entity is a finding of its own; nothing is imputed.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from pipeline.detection.conformal import BoolArray
from pipeline.detection.frame import Frame
from pipeline.detection.spec import DetectorSpec, Rule

_COMPARE = {
    ">": np.greater, ">=": np.greater_equal, "<": np.less, "<=": np.less_equal,
    "==": np.equal, "!=": np.not_equal,
}  # fmt: skip


@dataclass
class Structure:
    """What the gate says.

    Attributes:
        fit: minutes x entities that may be judged and may be peers.
        frozen: minutes x entities whose source repeats itself.
    """

    fit: BoolArray
    frozen: BoolArray


def inspect(frame: Frame, spec: DetectorSpec) -> Structure:
    """Look at presence, freshness and change, not at values."""
    gate = spec.gate
    minutes, entities = frame.shape
    usual = _usual(frame)
    present = (frame.samples >= gate.min_samples) & (frame.samples >= gate.min_share * usual)
    frozen = np.zeros(frame.shape, dtype=bool)
    run = np.zeros(entities, dtype=np.int64)
    for i in range(1, minutes):
        # The same reading all through the minute and the minute before.
        same = (frame.moving[i] <= 1) & (frame.fingerprint[i] == frame.fingerprint[i - 1])
        run = np.where(same, run + 1, np.where(frame.samples[i] > 0, 0, run))
        frozen[i] = run >= gate.frozen_minutes
    fit = present & ~frozen
    for name in gate.settle:
        labels = frame.labels.get(name)
        if labels is None:
            continue
        codes = labels.codes
        changed = np.zeros(frame.shape, dtype=bool)
        changed[1:] = (codes[1:] != codes[:-1]) & (frame.samples[1:] > 0) & (frame.samples[:-1] > 0)
        for back in range(gate.settle_minutes + 1):
            fit[back:] &= ~changed[: minutes - back]
    return Structure(fit, frozen)


def rule_holds(frame: Frame, rule: Rule) -> BoolArray:
    """Minutes x entities in which a hard rule's condition holds; unknown is false."""
    column, operator, number = rule.parsed
    values = frame.value(column)
    with np.errstate(invalid="ignore"):
        found: BoolArray = _COMPARE[operator](values, number) & np.isfinite(values)
    return found


def rule_pages(frame: Frame, rule: Rule) -> BoolArray:
    """Entities for which a rule holds often enough in its last ``n`` minutes."""
    found: BoolArray = rule_holds(frame, rule)[-rule.n :].sum(axis=0) >= rule.k
    return found


def ruled_out(frame: Frame, spec: DetectorSpec) -> BoolArray:
    """Minutes x entities that a hard rule keeps out of training."""
    out = np.zeros(frame.shape, dtype=bool)
    for rule in spec.rule:
        out |= rule_holds(frame, rule)
    return out


def _usual(frame: Frame) -> np.ndarray:
    """Samples per minute that each entity usually has: the median over minutes with any."""
    counted = np.where(frame.samples > 0, frame.samples, np.nan).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # never seen: NaN, taken as 0
        return np.asarray(np.nan_to_num(np.nanmedian(counted, axis=0)))
