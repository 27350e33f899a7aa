"""Incidents in ClickHouse: transitions in, newest state out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

COLUMNS = (
    "transition_id", "incident_id", "transition", "at", "window_end", "cluster", "detector",
    "entity_kind", "entity_id", "entity_name", "location", "severity", "cause",
    "cause_confidence", "summary", "evidence", "peers", "suggested_action", "members",
    "model_version", "score", "opened_at", "resolved_at", "drill",
)  # fmt: skip
_AS_JSON = ("location", "evidence", "peers", "members")


@dataclass
class Transition:
    """One row of telemetry.incident_transition."""

    transition_id: str
    incident_id: str
    transition: str
    at: datetime
    window_end: datetime
    cluster: str
    detector: str
    entity_kind: str
    entity_id: str
    entity_name: str
    location: dict[str, Any]
    severity: str
    cause: str
    cause_confidence: float
    summary: str
    evidence: list[dict[str, Any]]
    peers: dict[str, Any]
    suggested_action: str
    members: list[str] = field(default_factory=list)
    model_version: str = ""
    score: float = 0.0
    opened_at: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    resolved_at: datetime | None = None
    drill: bool = False

    @property
    def ids(self) -> set[str]:
        """All ids that the incident is about."""
        peer = self.location.get("peer")
        return {self.entity_id, *self.members} | ({str(peer)} if peer else set())


def incident_id(cluster: str, detector: str, entity_id: str, first_window: datetime) -> str:
    """Follows from what it is about and when it began: a repeat makes the same one."""
    text = f"{cluster}\0{detector}\0{entity_id}\0{first_window.isoformat()}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def transition_id(incident: str, transition: str, window_end: datetime) -> str:
    """Follows from the incident, the kind of change and its window."""
    text = f"{incident}\0{transition}\0{window_end.isoformat()}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def insert(client: Client, transitions: list[Transition]) -> None:
    """Write transitions as one block: all or none."""
    if not transitions:
        return
    rows = [
        [
            json.dumps(value, allow_nan=False) if name in _AS_JSON else value
            for name in COLUMNS
            for value in (getattr(transition, name),)
        ]
        for transition in transitions
    ]
    client.insert("telemetry.incident_transition", rows, column_names=list(COLUMNS))


def newest(client: Client, cluster: str, before: datetime) -> list[Transition]:
    """State of every open incident as of windows before ``before``."""
    columns = ", ".join(f"t.{name}" for name in COLUMNS)
    rows = client.query(
        f"SELECT {columns} FROM telemetry.incident_transition AS t INNER JOIN"
        " (SELECT incident_id, max((window_end, at)) AS newest FROM telemetry.incident_transition"
        "  WHERE cluster = {c:String} AND window_end < {w:DateTime('UTC')} GROUP BY incident_id)"
        " AS n ON t.incident_id = n.incident_id AND (t.window_end, t.at) = n.newest"
        " WHERE t.cluster = {c:String} AND t.transition != 'resolved'"
        " ORDER BY t.opened_at, t.incident_id",
        parameters={"c": cluster, "w": before},
    ).result_rows
    return [_transition(row) for row in rows]


def stored(client: Client, cluster: str, window_end: datetime) -> list[Transition]:
    """Transitions that a window caused."""
    rows = client.query(
        f"SELECT {', '.join(COLUMNS)} FROM telemetry.incident_transition"
        " WHERE cluster = {c:String} AND window_end = {w:DateTime('UTC')} ORDER BY transition_id",
        parameters={"c": cluster, "w": window_end},
    ).result_rows
    return [_transition(row) for row in rows]


def last_window(client: Client, cluster: str) -> datetime | None:
    """The newest window that caused a transition."""
    rows = client.query(
        "SELECT max(window_end), count() FROM telemetry.incident_transition"
        " WHERE cluster = {c:String}",
        parameters={"c": cluster},
    ).result_rows
    return _aware(rows[0][0]) if rows[0][1] else None


def _transition(row: Sequence[Any]) -> Transition:
    raw = dict(zip(COLUMNS, row, strict=True))
    for name in _AS_JSON:
        raw[name] = json.loads(raw[name])
    for name in ("at", "window_end", "opened_at"):
        raw[name] = _aware(raw[name])
    if raw["resolved_at"] is not None:
        raw["resolved_at"] = _aware(raw["resolved_at"])
    raw["drill"] = bool(raw["drill"])
    return Transition(**raw)


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
