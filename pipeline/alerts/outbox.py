"""The outbox: transitions of incidents minus what was delivered, in ClickHouse.

Nothing is queued anywhere else, so a crash loses nothing: what has no ``delivered`` row is
still to be sent, under the same id as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from clickhouse_connect.driver.client import Client

from pipeline.alerts.links import links_of
from pipeline.alerts.model import COLUMNS, Alert, from_row

# Older than this is news to nobody; the schedule of attempts ends before it.
MAX_AGE = timedelta(days=4)
# A new destination hears of the last hour, not of the whole past.
REACH_BACK = timedelta(hours=1)


@dataclass(frozen=True)
class Pending:
    """An alert that a destination has not had yet.

    Attributes:
        attempts: that were made so far.
        next_at: not to be tried before; None means at once.
        told_before: something about the same incident was delivered there.
    """

    alert: Alert
    attempts: int
    next_at: datetime | None
    told_before: bool


@dataclass(frozen=True)
class Attempt:
    """A row of ``telemetry.alert_delivery``."""

    transition_id: str
    incident_id: str
    destination: str
    attempt: int
    at: datetime
    outcome: str
    http_status: int = 0
    error: str = ""
    next_at: datetime | None = None
    took_ms: int = 0


class Outbox:
    """One destination's view of what is to be sent.

    Args:
        airflow_url: address of the Airflow UI, for links; None leaves them out.
    """

    def __init__(self, client: Client, destination: str, airflow_url: str | None = None) -> None:
        self._client = client
        self._destination = destination
        self._airflow_url = airflow_url

    def _alert(self, row: Mapping[str, Any]) -> Alert:
        alert = from_row(row)
        return replace(alert, links=links_of(alert, self._airflow_url))

    def enrol(self, now: datetime) -> datetime:
        """Since when this destination is served; a new one starts now.

        Returns:
            Transitions from then on are for it.
        """
        rows = self._client.query(
            "SELECT min(at), count() FROM telemetry.alert_destination"
            " WHERE destination = {destination:String} AND state = 'enabled'",
            parameters={"destination": self._destination},
        ).result_rows
        first, known = rows[0]
        if known:
            return _utc(first) - REACH_BACK
        self.switch("enabled", "first start", now)
        return now - REACH_BACK

    def switch(self, state: str, why: str, now: datetime) -> None:
        """Write down that the destination is ``enabled`` or ``disabled``."""
        self._client.insert(
            "telemetry.alert_destination",
            [[self._destination, now, state, why]],
            column_names=["destination", "at", "state", "reason"],
            settings={"async_insert": 0},
        )

    def disabled_because(self) -> str | None:
        """Why the destination is switched off; None when it is served."""
        rows = self._client.query(
            "SELECT argMax(state, at), argMax(reason, at) FROM telemetry.alert_destination"
            " WHERE destination = {destination:String}",
            parameters={"destination": self._destination},
        ).result_rows
        state, why = rows[0]
        return str(why) if state == "disabled" else None

    def pending(self, since: datetime, now: datetime) -> list[Pending]:
        """What is to be sent, in the order in which it happened."""
        names = ", ".join(f"t.{name} AS {name}" for name in COLUMNS)
        rows = self._client.query(
            f"""
            SELECT {names}, d.attempts AS attempts, d.next_at AS next_at,
                t.incident_id IN (
                    SELECT incident_id FROM telemetry.alert_delivery
                    WHERE destination = {{destination:String}} AND outcome = 'delivered'
                ) AS told_before
            FROM telemetry.incident_transition AS t
            LEFT JOIN
            (
                SELECT
                    transition_id,
                    argMax(outcome, (at, attempt)) AS outcome,
                    -- In a tuple, because argMax passes over rows whose value is NULL.
                    argMax(tuple(next_at), (at, attempt)).1 AS next_at,
                    argMax(attempt, (at, attempt)) AS attempts
                FROM telemetry.alert_delivery
                WHERE destination = {{destination:String}}
                GROUP BY transition_id
            ) AS d ON t.transition_id = d.transition_id
            WHERE t.at >= {{since:DateTime64(3, 'UTC')}}
              AND d.outcome IN ('', 'failed', 'requeued')
            ORDER BY t.window_end, t.at, t.transition_id
            LIMIT 1 BY t.transition_id
            LIMIT 1000
            """,
            parameters={
                "destination": self._destination,
                "since": max(since, now - MAX_AGE),
            },
        )
        found = []
        for row in rows.named_results():
            due = row["next_at"]
            found.append(
                Pending(
                    alert=self._alert(row),
                    attempts=int(row["attempts"] or 0),
                    next_at=_utc(due) if due else None,
                    told_before=bool(row["told_before"]),
                )
            )
        return found

    def open_alerts(self, cluster_drills: bool) -> list[Alert]:
        """The newest transition of every incident that is open.

        Args:
            cluster_drills: whether fire drills are wanted too.
        """
        names = ", ".join(f"t.{name} AS {name}" for name in COLUMNS)
        rows = self._client.query(
            f"""
            SELECT {names} FROM telemetry.incident_transition AS t
            INNER JOIN
            (
                SELECT incident_id, max((window_end, at)) AS newest
                FROM telemetry.incident_transition GROUP BY incident_id
            ) AS n ON t.incident_id = n.incident_id AND (t.window_end, t.at) = n.newest
            WHERE t.transition != 'resolved'
            LIMIT 1 BY t.incident_id
            """
        )
        alerts = [self._alert(row) for row in rows.named_results()]
        return [alert for alert in alerts if cluster_drills or not alert.drill]

    def record(self, attempts: Sequence[Attempt]) -> None:
        """Write down attempts; only then is a delivered alert done."""
        names = [
            "transition_id", "incident_id", "destination", "attempt", "at", "outcome",
            "http_status", "error", "next_at", "took_ms",
        ]  # fmt: skip
        rows: list[list[Any]] = [[getattr(item, name) for name in names] for item in attempts]
        if rows:
            self._client.insert(
                "telemetry.alert_delivery",
                rows,
                column_names=names,
                settings={"async_insert": 0, "insert_deduplicate": 0},
            )


def _utc(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
