"""One alert: a transition of an incident, in the words that a person reads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, cast

Transition = Literal["opened", "updated", "resolved"]
Severity = Literal["info", "warning", "critical"]

COLUMNS = (
    "transition_id", "incident_id", "transition", "at", "window_end", "cluster", "detector",
    "entity_kind", "entity_id", "entity_name", "location", "severity", "cause",
    "cause_confidence", "summary", "evidence", "peers", "suggested_action", "members",
    "model_version", "score", "opened_at", "resolved_at", "drill",
)  # fmt: skip


@dataclass(frozen=True)
class Evidence:
    """One feature that speaks for the incident.

    Attributes:
        label: the feature in words for people.
        value, peer_median: in ``unit``; None when it is not known.
        direction: ``above`` or ``below`` the peers.
        minutes: for how long; z: robust z-score against the peers.
    """

    feature: str
    label: str = ""
    value: float | None = None
    peer_median: float | None = None
    unit: str = ""
    direction: str = ""
    minutes: float | None = None
    z: float | None = None

    @property
    def words(self) -> str:
        """What was measured, for people."""
        return self.label or self.feature.replace("_", " ")

    def amount(self, value: float | None) -> str:
        """A value with its unit: ``1,290 MHz``, ``37 %``."""
        if value is None:
            return "–"
        unit = self.unit
        if unit == "share":
            value, unit = 100 * value, "%"
        digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
        text = f"{value:,.{digits}f}"
        if "." in text:
            text = text.rstrip("0").rstrip(".")
        return f"{text} {unit}".strip()

    @property
    def percent(self) -> float | None:
        """Difference from the peers' median in percent; None where that says nothing: beside
        shares, and beside differences of temperature, whose zero is a choice."""
        if self.value is None or not self.peer_median or self.unit in ("share", "%", "K"):
            return None
        return 100.0 * (self.value - self.peer_median) / abs(self.peer_median)


@dataclass(frozen=True)
class Alert:
    """A transition of an incident; the columns of ``telemetry.incident_transition``."""

    transition_id: str
    incident_id: str
    transition: Transition
    at: datetime
    window_end: datetime
    cluster: str
    detector: str
    entity_kind: str
    entity_id: str
    entity_name: str
    location: Mapping[str, Any]
    severity: Severity
    cause: str
    cause_confidence: float
    summary: str
    evidence: tuple[Evidence, ...]
    peers: Mapping[str, Any]
    suggested_action: str
    members: tuple[str, ...]
    model_version: str
    score: float
    opened_at: datetime
    resolved_at: datetime | None = None
    drill: bool = False
    links: Mapping[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """Where to walk to, such as ``rack-03 · tray 7 · GPU 2``."""
        words = []
        for key, value in self.location.items():
            if value in (None, "", []) or key in _TOLD_BY_THE_NAME:
                continue
            words.append(str(value) if key in _SPEAK_FOR_THEMSELVES else f"{key} {value}")
        return " · ".join(words)

    @property
    def cause_words(self) -> str:
        """The cause as words: ``capped clocks``."""
        return self.cause.replace("_", " ")

    @property
    def peer_words(self) -> str:
        """With whom it was compared, such as ``71 peers: same job and role``; may be empty."""
        size, group = self.peers.get("size"), self.peers.get("group")
        if not size:
            return str(group or "")
        return f"{size} peers: {group}" if group else f"{size} peers"

    @property
    def duration_s(self) -> float:
        """From the opening to the end, or to this transition, in seconds."""
        return ((self.resolved_at or self.at) - self.opened_at).total_seconds()


# An alert's name holds the switch; the node and the fan-out are ids, for programs.
_TOLD_BY_THE_NAME = {"switch_name", "node", "fan", "peer"}
# Values that say by themselves what they are.
_SPEAK_FOR_THEMSELVES = ("rack", "host", "leaf", "cdu", "spine", "switch")


def from_row(row: Mapping[str, Any]) -> Alert:
    """An alert from a row of ``telemetry.incident_transition``.

    JSON that cannot be read costs that part, not the alert: someone has to be told.
    """
    members = _json(row["members"], [])
    return Alert(
        transition_id=str(row["transition_id"]),
        incident_id=str(row["incident_id"]),
        transition=cast("Transition", str(row["transition"])),
        at=_utc(row["at"]),
        window_end=_utc(row["window_end"]),
        cluster=str(row["cluster"]),
        detector=str(row["detector"]),
        entity_kind=str(row["entity_kind"]),
        entity_id=str(row["entity_id"]),
        entity_name=str(row["entity_name"]) or str(row["entity_id"]),
        location=_json(row["location"], {}),
        severity=cast("Severity", str(row["severity"])),
        cause=str(row["cause"]),
        cause_confidence=float(row["cause_confidence"]),
        summary=str(row["summary"]),
        evidence=tuple(_evidence(item) for item in _json(row["evidence"], [])),
        peers=_json(row["peers"], {}),
        suggested_action=str(row["suggested_action"]),
        members=tuple(_member(item) for item in members),
        model_version=str(row["model_version"]),
        score=float(row["score"]),
        opened_at=_utc(row["opened_at"]),
        resolved_at=_utc(row["resolved_at"]) if row["resolved_at"] else None,
        drill=bool(row["drill"]),
    )


def _json(value: object, empty: Any) -> Any:
    try:
        found = json.loads(value) if isinstance(value, str | bytes) else value
    except ValueError:
        return empty
    return found if isinstance(found, type(empty)) else empty


def _member(item: object) -> str:
    if isinstance(item, Mapping):
        return str(item.get("name") or item.get("entity_name") or item.get("id") or "?")
    return str(item)


def _evidence(item: object) -> Evidence:
    if not isinstance(item, Mapping):
        return Evidence(feature=str(item))
    return Evidence(
        feature=str(item.get("feature", "?")),
        label=str(item.get("label") or ""),
        value=_number(item.get("value")),
        peer_median=_number(item.get("peer_median")),
        unit=str(item.get("unit") or ""),
        direction=str(item.get("direction") or ""),
        minutes=_number(item.get("minutes")),
        z=_number(item.get("z")),
    )


def _number(value: object) -> float | None:
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None


def _utc(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
