"""What a window amounts to: entities with persistent evidence, broken rules, lost telemetry."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np

from pipeline.detection.engine import Judged, Window
from pipeline.detection.explain import (
    RECENT,
    UNKNOWN,
    probable_cause,
    signed_effects,
    summary,
    top_evidence,
)
from pipeline.detection.frame import Frame
from pipeline.detection.gate import rule_pages
from pipeline.detection.persistence import STRONG, Verdicts, judge
from pipeline.detection.spec import DetectorSpec

# Minutes that persistence and the first window are looked for in.
SPAN = 30


@dataclass
class Finding:
    """One entity with persistent evidence in one window; a row of telemetry.finding."""

    detector: str
    window_end: datetime
    entity_kind: str
    entity_id: str
    entity_name: str
    kind: str
    raises: bool
    level: int
    severity: str
    cause: str
    cause_confidence: float
    summary: str
    location: dict[str, Any]
    evidence: list[dict[str, Any]]
    peers: dict[str, Any]
    suggested_action: str
    p_value: float
    score: float
    effect: float
    first_window: datetime
    model_version: str
    features: dict[str, float] = field(default_factory=dict)


def findings_at(
    judged: Judged, spec: DetectorSpec, index: int, model_version: str
) -> list[Finding]:
    """All findings of the window at a frame's index, from it and the windows before it.

    Rules come first: an entity that breaks one has no anomaly beside it. A rule's cause is
    known, an anomaly's is a guess.
    """
    frame = judged.frame
    upto = slice(max(0, index - SPAN + 1), index + 1)
    verdicts = judge(judged.short.level[upto], judged.long.level[upto], spec.decision)
    made: dict[int, Finding] = {}
    view = frame.minutes(np.arange(upto.start, upto.stop))
    for rule in spec.rule:
        if not rule.page:
            continue
        column, _, _ = rule.parsed
        for entity in np.flatnonzero(rule_pages(view, rule)):
            if int(entity) in made:
                continue
            value = _last(frame.value(column)[upto, entity])
            made[int(entity)] = _rule_finding(
                frame, spec, index, int(entity), rule.name, rule.cause, rule.severity,
                column, value, rule.effect, model_version,
            )  # fmt: skip
    lost = lost_entities(view, spec)
    for entity in np.flatnonzero(lost):
        made.setdefault(int(entity), _lost_finding(frame, spec, index, int(entity), model_version))
    for entity in np.flatnonzero(verdicts.raises | verdicts.holds):
        if int(entity) not in made:
            made[int(entity)] = _anomaly(
                judged, spec, index, int(entity), upto, verdicts, model_version
            )
    return [made[entity] for entity in sorted(made)]


def _anomaly(
    judged: Judged, spec: DetectorSpec, index: int, entity: int, upto: slice,
    verdicts: Verdicts, model_version: str,
) -> Finding:  # fmt: skip
    frame = judged.frame
    by_short = bool((judged.short.level[upto, entity][-RECENT:] >= STRONG).any())
    window = judged.short if by_short else judged.long
    # Not further back than the evidence: what was well before says nothing of the cause.
    begin = upto.start + max(int(verdicts.first[entity]), 0)
    recent = slice(max(begin, index - RECENT + 1), index + 1)
    if not _known(window, recent, entity):
        recent = slice(max(0, index - SPAN + 1), index + 1)
    effects = signed_effects(window.residuals, spec, entity, recent)
    evidence = top_evidence(
        window.residuals, {f.name: frame.value(f.name) for f in spec.feature}, spec, entity, recent
    )
    cause, confidence = probable_cause(effects, spec)
    level = int(max(judged.short.level[index, entity], judged.long.level[index, entity]))
    p = _smallest(judged.short.p[index, entity], judged.long.p[index, entity])
    effect = float(max(judged.short.effect[index, entity], judged.long.effect[index, entity]))
    groups = judged.peers_of(evidence[0].feature, spec) if evidence else None
    size = int(groups.size[index, entity]) if groups is not None else 0
    group_level = int(groups.level[index, entity]) if groups is not None else -1
    group = spec.peer_group[group_level].name if group_level >= 0 else ""
    location = location_of(frame, spec, entity)
    name = frame.names[entity]
    first = int(verdicts.first[entity])
    return Finding(
        spec.id, frame.ends[index], spec.entity_kind, frame.entities[entity], name, "anomaly",
        bool(verdicts.raises[entity]), level,
        cause.severity if cause is not None else "warning",
        cause.id if cause is not None else UNKNOWN, confidence,
        summary(spec, name, cause, evidence, group, max(size - 1, 0)), location,
        [item.as_json(spec.by_name[item.feature]) for item in evidence],
        {"group": group, "size": max(size - 1, 0)},
        cause.action if cause is not None else "Look at the evidence; no known signature fits.",
        p, float(-np.log10(p)), effect,
        frame.ends[upto.start + first] if first >= 0 else frame.ends[index], model_version,
        {**_row(frame, entity, index), **_effects(effects)},
    )  # fmt: skip


def _effects(effects: dict[str, float]) -> dict[str, float]:
    """Signed effects beside the readings: grouping asks whose heat it is."""
    return {f"effect:{name}": round(e, 3) for name, e in effects.items() if np.isfinite(e)}


def _rule_finding(
    frame: Frame, spec: DetectorSpec, index: int, entity: int, rule: str, cause_id: str,
    severity: str, column: str, value: float, effect: float, model_version: str,
) -> Finding:  # fmt: skip
    cause = spec.cause_of(cause_id)
    name = frame.names[entity]
    title = cause.title if cause is not None else cause_id.replace("_", " ")
    return Finding(
        spec.id, frame.ends[index], spec.entity_kind, frame.entities[entity], name, "rule",
        True, STRONG, severity, cause_id, 0.95,
        f"{spec.noun.capitalize()} {name}: {title} ({rule}: {column} is {value:g}).",
        location_of(frame, spec, entity),
        [{"feature": column, "label": rule, "value": value, "peer_median": None, "unit": "",
          "direction": "rule", "minutes": 1, "z": None}],
        {"group": "hard rule", "size": 0},
        cause.action if cause is not None else "",
        1e-9, 9.0, effect, frame.ends[index], model_version, _row(frame, entity, index),
    )  # fmt: skip


def _lost_finding(
    frame: Frame, spec: DetectorSpec, index: int, entity: int, model_version: str
) -> Finding:
    cause = spec.cause_of(spec.gate.lost_cause)
    name = frame.names[entity]
    seen = np.flatnonzero(frame.samples[: index + 1, entity] > 0)
    last = frame.ends[int(seen[-1])] if len(seen) else frame.ends[0]
    minutes = index - int(seen[-1]) if len(seen) else index + 1
    title = cause.title if cause is not None else "no telemetry"
    return Finding(
        spec.id, frame.ends[index], spec.entity_kind, frame.entities[entity], name,
        "telemetry_lost", True, STRONG, cause.severity if cause is not None else "warning",
        spec.gate.lost_cause, 0.8,
        f"{spec.noun.capitalize()} {name}: {title}. No sample for {minutes} min,"
        f" the last at {last:%H:%M} UTC, while others of its host report.",
        location_of(frame, spec, entity),
        [{"feature": "samples", "label": "samples", "value": 0, "peer_median": None,
          "unit": "per minute", "direction": "below", "minutes": minutes, "z": None}],
        {"group": "same host", "size": 0},
        cause.action if cause is not None else "Look whether the host and its exporter answer.",
        1e-9, 9.0, 3.0, last, model_version,
    )  # fmt: skip


def lost_entities(view: Frame, spec: DetectorSpec) -> np.ndarray:
    """Entities that are silent while others of their host spoke all the time.

    A host, a rack or a pipeline that is silent as a whole was rebooted, drained or cut off:
    that is no fault of each of its entities, and the collectors' events tell of it.
    """
    gate = spec.gate
    lost = np.zeros(len(view.entities), dtype=bool)
    if not gate.lost_cause or view.shape[0] <= gate.lost_minutes or not view.entities:
        return lost
    recent = view.samples[-gate.lost_minutes :] > 0
    before = np.any(view.samples[: -gate.lost_minutes] > 0, axis=0)
    silent = ~np.any(recent, axis=0) & before
    steady = np.all(recent, axis=0)
    hosts = view.labels.get("host")
    for entity in np.flatnonzero(silent):
        host = hosts.latest(int(entity)) if hosts is not None else None
        if hosts is None or host is None:
            continue
        mates = np.any(hosts.codes == hosts.names.index(host), axis=0)
        lost[entity] = bool(np.any(mates & steady))
    return lost


def location_of(frame: Frame, spec: DetectorSpec, entity: int) -> dict[str, Any]:
    """Where an entity stands, from the newest rows that know it."""
    found: dict[str, Any] = {}
    for name in spec.location:
        if name in frame.labels:
            text = frame.labels[name].latest(entity)
            if text is not None:
                found[name] = text
        else:
            value = _last(frame.value(name)[:, entity])
            if np.isfinite(value):
                found[name] = int(value)
    return found


def _row(frame: Frame, entity: int, index: int) -> dict[str, float]:
    row = {}
    for name, array in frame.values.items():
        value = float(array[index, entity])
        if np.isfinite(value):
            row[name] = round(value, 6)
    return row


def _last(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else float("nan")


def _known(window: Window, minutes: slice, entity: int) -> bool:
    return any(np.isfinite(z[minutes, entity]).any() for z in window.residuals.z.values())


def _smallest(*values: float) -> float:
    known = [value for value in values if np.isfinite(value)]
    return float(min(known)) if known else 1.0


COLUMNS = (
    "cluster", "detector", "window_end", "entity_kind", "entity_id", "entity_name", "kind",
    "raises", "level", "severity", "cause", "cause_confidence", "summary", "location", "evidence",
    "peers", "features", "suggested_action", "p_value", "score", "effect", "first_window",
    "model_version",
)  # fmt: skip
_AS_JSON = ("location", "evidence", "peers", "features")


def as_row(finding: Finding, cluster: str) -> list[Any]:
    """The finding as a row of telemetry.finding."""
    row: list[Any] = []
    for name in COLUMNS:
        value = cluster if name == "cluster" else getattr(finding, name)
        row.append(json.dumps(value, allow_nan=False) if name in _AS_JSON else value)
    return row


def from_row(row: Sequence[Any]) -> Finding:
    """The reverse of :func:`as_row` (the cluster is dropped)."""
    raw = dict(zip(COLUMNS, row, strict=True))
    raw.pop("cluster")
    for name in _AS_JSON:
        raw[name] = json.loads(raw[name])
    return Finding(**raw)
