"""Why: the features that speak, the likely cause, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.detection.families import bad_z
from pipeline.detection.residuals import Residuals
from pipeline.detection.spec import Cause, DetectorSpec, Feature, parse_condition

TOP = 3
# Recent minutes that the text's numbers are the median of.
RECENT = 3
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Evidence:
    """One feature that speaks.

    Attributes:
        value, peer_median: medians over the minutes looked at, in ``unit``.
        direction: ``above`` or ``below`` the peers (or the entity's own past).
        minutes: minutes in which it stood out by half of the smallest effect that matters.
    """

    feature: str
    label: str
    value: float
    peer_median: float
    unit: str
    direction: str
    minutes: int
    z: float
    effect: float

    def as_json(self, feature: Feature) -> dict[str, Any]:
        """The form in alerts."""
        digits = feature.decimals
        return {
            "feature": self.feature, "label": self.label,
            "value": round(self.value, digits), "peer_median": round(self.peer_median, digits),
            "unit": self.unit, "direction": self.direction, "minutes": self.minutes,
            "z": round(self.z, 1),
        }  # fmt: skip

    def text(self, feature: Feature, versus: str) -> str:
        """``SM clock 1,290 MHz (peers 1,830)``."""
        digits = feature.decimals
        unit = f" {self.unit}" if self.unit and self.unit != "share" else ""
        value, median = self.value, self.peer_median
        if self.unit == "share":
            value, median, digits, unit = 100 * value, 100 * median, 0, " %"
        return f"{self.label} {value:,.{digits}f}{unit} ({versus} {median:,.{digits}f})"


def signed_effects(
    found: Residuals, spec: DetectorSpec, entity: int, minutes: slice
) -> dict[str, float]:
    """Median signed effect of every feature over some minutes; NaN where unknown."""
    out = {}
    for feature in spec.feature:
        values = found.effect[feature.name][minutes, entity]
        values = values[np.isfinite(values)]
        out[feature.name] = float(np.median(values)) if len(values) else float("nan")
    return out


def top_evidence(
    found: Residuals, values: Mapping[str, np.ndarray], spec: DetectorSpec, entity: int,
    minutes: slice,
) -> list[Evidence]:  # fmt: skip
    """The features that stand out most, worst first.

    Ranked by robust z against peers: on labelled server data that ranking was as right as
    SHAP values and costs nothing. Those in their bad direction come first.
    """
    ranked = []
    for feature in spec.feature:
        z = found.z[feature.name][minutes, entity]
        known = np.isfinite(z)
        if not known.any():
            continue
        effect = found.effect[feature.name][minutes, entity][known]
        raw = values[feature.name][minutes, entity][known]
        expected = found.median[feature.name][minutes, entity][known]
        middle = float(np.median(effect))
        bad = float(np.median(bad_z(z[known], feature)))
        whole = found.effect[feature.name][:, entity]
        with np.errstate(invalid="ignore"):
            count = int((bad_z(whole, feature) >= 0.5).sum())
        ranked.append(
            (
                bad if abs(middle) >= 0.5 else bad - 1000,
                Evidence(
                    feature.name, feature.label, float(np.median(raw)),
                    float(np.median(expected)), feature.unit,
                    "above" if middle > 0 else "below", count,
                    float(np.median(z[known])), middle,
                ),
            )
        )  # fmt: skip
    ranked.sort(key=lambda pair: -pair[0])
    clear = [evidence for rank, evidence in ranked if rank > 0]
    return (clear or [evidence for _, evidence in ranked])[:TOP]


def probable_cause(effects: Mapping[str, float], spec: DetectorSpec) -> tuple[Cause | None, float]:
    """The signature that fits best, and how well: 0 to 1.

    All of ``need`` must hold and none of ``refute``; each of ``support`` that holds counts.
    Without a fit the cause is unknown, and said to be so.
    """
    best: tuple[float, Cause] | None = None
    total = 0.0
    for cause in spec.cause:
        if not cause.need or any(_holds(text, effects) for text in cause.refute):
            continue
        if not all(_holds(text, effects) for text in cause.need):
            continue
        held = sum(_holds(text, effects) for text in cause.support)
        score = (
            cause.prior
            * (1 + len(cause.need) + held)
            / (1 + len(cause.need) + len(cause.support))
            * (1 + 0.2 * (len(cause.need) + held))
        )
        total += score
        if best is None or score > best[0]:
            best = (score, cause)
    if best is None:
        return None, 0.0
    # Sure when one signature fits and nothing else comes near it; never certain.
    return best[1], round(min(0.95, 0.5 + 0.45 * best[0] / total if total else 0.0), 2)


def _holds(text: str, effects: Mapping[str, float]) -> bool:
    feature, side, size = parse_condition(text)
    value = effects.get(feature, float("nan"))
    if not np.isfinite(value):
        return False
    return value <= -size if side == "low" else value >= size


def summary(
    spec: DetectorSpec, name: str, cause: Cause | None, evidence: Sequence[Evidence],
    group: str, size: int,
) -> str:  # fmt: skip
    """One sentence: who, what, with which numbers, against whom."""
    what = cause.title if cause is not None else "cause not known"
    parts = []
    for item in evidence:
        feature = spec.by_name[item.feature]
        versus = "peers" if feature.compare == "peers" else "expected"
        parts.append(item.text(feature, versus))
    against = f" against {size} peers ({group})" if size else ""
    return f"{spec.noun.capitalize()} {name}: {what}. {'; '.join(parts)}{against}."
