"""Silences: nothing opens and nothing is learnt while something is under maintenance."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pipeline.detection.findings import Finding
from pipeline.errors import RackpulseError

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

SCOPES = ("gpu", "rack", "ib_port", "cdu", "ib_switch", "host", "job", "all")
_COLUMNS = (
    "silence_id", "at", "cluster", "scope", "entity_id", "detector", "starts_at", "ends_at",
    "reason", "by",
)  # fmt: skip


@dataclass(frozen=True)
class Silence:
    """One silence as it stands now."""

    silence_id: str
    cluster: str
    scope: str
    entity_id: str
    detector: str
    starts_at: datetime
    ends_at: datetime
    reason: str
    by: str

    def covers(self, finding: Finding, at: datetime) -> bool:
        """Whether a finding of a window that ends at ``at`` falls under it."""
        if not (self.starts_at < at <= self.ends_at):
            return False
        if self.detector and self.detector != finding.detector:
            return False
        if self.scope == "all":
            return True
        ids = (
            {finding.entity_id, finding.entity_name} if finding.entity_kind == self.scope else set()
        )
        place = finding.location
        named = {
            "rack": ("rack",), "cdu": ("cdu",), "host": ("host",), "job": ("job",),
            "ib_switch": ("node", "switch_name", "leaf"), "ib_port": ("peer",),
        }.get(self.scope, ())  # fmt: skip
        ids |= {str(place[key]) for key in named if place.get(key)}
        return self.entity_id in ids


def silence(
    client: Client, cluster: str, scope: str, entity_id: str, *, starts_at: datetime,
    ends_at: datetime, reason: str, by: str, detector: str = "",
) -> str:  # fmt: skip
    """Silence something.

    Returns:
        The silence's id.

    Raises:
        RackpulseError: the scope is unknown, or it ends before it starts.
    """
    if scope not in SCOPES:
        raise RackpulseError(f"No scope {scope}: there are {', '.join(SCOPES)}")
    if ends_at <= starts_at:
        raise RackpulseError("A silence must end after it starts")
    found = uuid.uuid4().hex[:12]
    client.insert(
        "telemetry.silence",
        [[found, datetime.now(UTC), cluster, scope, entity_id, detector, starts_at, ends_at,
          reason, by]],
        column_names=list(_COLUMNS),
    )  # fmt: skip
    return found


def unsilence(client: Client, silence_id: str, *, by: str) -> Silence:
    """End a silence now.

    Raises:
        RackpulseError: there is none of that id.
    """
    old = next((s for s in silences(client) if s.silence_id == silence_id), None)
    if old is None:
        raise RackpulseError(f"No silence {silence_id}: see  rackpulse incidents list --silences")
    now = datetime.now(UTC)
    client.insert(
        "telemetry.silence",
        [[old.silence_id, now, old.cluster, old.scope, old.entity_id, old.detector,
          min(old.starts_at, now), min(old.ends_at, now), old.reason, by]],
        column_names=list(_COLUMNS),
    )  # fmt: skip
    return old


def silences(client: Client, *, since: datetime | None = None) -> list[Silence]:
    """Silences that end after ``since`` (all by default)."""
    rows = client.query(
        "SELECT silence_id, cluster, scope, entity_id, detector, starts_at, ends_at, reason, by"
        " FROM telemetry.silence_now ORDER BY starts_at"
    ).result_rows
    found = [
        Silence(a, b, c, d, e, _aware(start), _aware(end), reason, by)
        for a, b, c, d, e, start, end, reason, by in rows
    ]
    return [s for s in found if since is None or s.ends_at >= since]


def unsilenced(findings: Iterable[Finding], quiet: list[Silence], at: datetime) -> list[Finding]:
    """Findings that no silence covers."""
    return [f for f in findings if not any(silence.covers(f, at) for silence in quiet)]


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
