"""Promotion gates: a new model goes live only where it is no worse than what is there.

A gate that fails keeps the model a candidate, with the reason; a person can promote it all
the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipeline.detection.conformal import FloatArray
from pipeline.detection.engine import judge_frame
from pipeline.detection.frame import Frame
from pipeline.detection.persistence import judge
from pipeline.detection.spec import DetectorSpec

if TYPE_CHECKING:
    from pipeline.detection.model import Model

# Population stability index of a feature between two trainings from which it has drifted.
DRIFT = 0.25
# Injected faults are this many smallest effects deep, and this many minutes old.
BANK_DEPTH = 4.0
BANK_MINUTES = 8
BANK_SEED = 7
RECALL_FLOOR = 0.6
RECALL_SLACK = 0.02
REPLAY_MINUTES = 90


def check_gates(frame: Frame, spec: DetectorSpec, model: Model, old: Model | None) -> list[str]:
    """Reasons to hold a model back; empty when it may go live. Fills ``model.metrics``."""
    held = []
    if old is not None and old.contract_digest != model.contract_digest:
        held.append("the contract of its streams changed since the live model")
    if old is not None and old.spec_digest == model.spec_digest:
        for name, index in drift(old, model).items():
            if index > DRIFT:
                held.append(f"spread of {name} changed by {index:.0%} against the live model")
    recall = bank_recall(frame, spec, model)
    model.metrics["bank_recall"] = None if recall is None else round(recall, 3)
    if recall is not None:
        floor = RECALL_FLOOR
        before = old.metrics.get("bank_recall") if old is not None else None
        if isinstance(before, float):
            floor = max(floor, before - RECALL_SLACK)
        if recall < floor:
            held.append(f"finds {recall:.0%} of the injected faults, needs {floor:.0%}")
    pages = int(model.metrics.get("held_out_raises", 0))
    if old is not None:
        allowed = 2 * replay(frame, spec, old) + 1
    else:
        allowed = max(3, len(frame.entities) // 100)
    if pages > allowed:
        held.append(f"would have raised {pages} entities in held-out time, {allowed} allowed")
    held += probe(frame, spec, model)
    return held


def drift(old: Model, new: Model) -> dict[str, float]:
    """Change of every feature's healthy spread, as a share; a coarse stability index."""
    found = {}
    for name, base in new.baselines.items():
        before = old.baselines.get(name)
        if before is None or before.sigma <= 0 or base.sigma <= 0:
            continue
        ratio = abs(np.log(base.sigma / before.sigma))
        # A factor of 3 in spread is index 0.25.
        found[name] = float(DRIFT * ratio / np.log(3))
    return found


def bank_recall(frame: Frame, spec: DetectorSpec, model: Model) -> float | None:
    """Share of injected faults that would be raised.

    The bank is frozen: the same entities and depths for the same fleet. Each fault moves one
    feature in its bad direction for the last minutes of the training window.

    Returns:
        None where nothing can be injected: no feature has readings there.
    """
    span = spec.decision.clear_minutes + spec.decision.long_minutes + BANK_MINUTES
    base = frame.tail(span)
    rng = np.random.default_rng(BANK_SEED)
    entities = len(base.entities)
    if not entities:
        return None
    found = tried = 0
    for feature in spec.feature:
        values = base.value(feature.name)
        if not feature.page or not np.isfinite(values[-BANK_MINUTES:]).any():
            continue
        known = np.flatnonzero(np.isfinite(values[-BANK_MINUTES:]).all(axis=0))
        if not len(known):
            continue
        chosen = rng.choice(known, size=max(1, min(len(known) // 50, 8)), replace=False)
        middle = np.nan_to_num(values[-BANK_MINUTES])
        smallest = np.maximum(feature.min_effect, feature.min_effect_ratio * np.abs(middle))
        sign = -1.0 if feature.bad == "low" else 1.0
        moved: FloatArray = values.copy()
        moved[-BANK_MINUTES:, chosen] += sign * BANK_DEPTH * smallest[chosen]
        trial = Frame(
            base.ends, base.entities, base.names, base.samples, base.moving, base.fingerprint,
            {**base.values, feature.name: moved}, base.labels,
        )  # fmt: skip
        judged = judge_frame(trial, spec, model.baselines, model.short, model.long, model.q)
        raised = judge(judged.short.level, judged.long.level, spec.decision).raises[chosen]
        verdict = judged.peers_of(feature.name, spec).code[-1, chosen] >= 0
        found += int((raised & verdict).sum())
        tried += int(verdict.sum())
    return found / tried if tried else None


def replay(frame: Frame, spec: DetectorSpec, model: Model) -> int:
    """Entities that a model would have raised over the last part of a frame."""
    part = frame.tail(REPLAY_MINUTES)
    judged = judge_frame(part, spec, model.baselines, model.short, model.long, model.q)
    raised = np.zeros(len(part.entities), dtype=bool)
    for minute in range(part.shape[0]):
        upto = slice(max(0, minute - 30), minute + 1)
        raised |= judge(judged.short.level[upto], judged.long.level[upto], spec.decision).raises
    return int(raised.sum())


def probe(frame: Frame, spec: DetectorSpec, model: Model) -> list[str]:
    """Absurd inputs must give no verdict or no page: all missing, all zero, all equal."""
    held = []
    base = frame.tail(spec.decision.long_minutes + 5)
    for name, fill in (("missing", np.nan), ("zero", 0.0), ("constant", 1.0)):
        values = {key: np.full(base.shape, fill) for key in base.values}
        trial = Frame(
            base.ends, base.entities, base.names, base.samples, base.moving, base.fingerprint,
            values, base.labels,
        )  # fmt: skip
        judged = judge_frame(trial, spec, model.baselines, model.short, model.long, model.q)
        p = judged.short.p
        if name == "missing" and np.isfinite(p).any():
            held.append("gives verdicts on rows in which everything is missing")
        peers_only = all(feature.compare == "peers" for feature in spec.feature)
        raised = judge(judged.short.level, judged.long.level, spec.decision).raises
        if peers_only and name != "missing" and raised.sum() > max(3, len(base.entities) // 20):
            held.append(f"raises {int(raised.sum())} entities when every reading is {name}")
    return held
