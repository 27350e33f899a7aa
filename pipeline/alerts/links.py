"""Where a person who reads an alert looks next."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import quote

from pipeline.alerts.model import Alert

FLEET_PATH = "/rackpulse/fleet"


def links_of(alert: Alert, airflow_url: str | None) -> dict[str, str]:
    """``fleet``: the incident's place on the fleet page; ``sql``: the rows behind it."""
    links = {"sql": replay_sql(alert)}
    if airflow_url:
        base = airflow_url.rstrip("/")
        links["fleet"] = f"{base}{FLEET_PATH}?incident={quote(alert.incident_id, safe='')}"
    return links


def replay_sql(alert: Alert) -> str:
    """A statement that shows what the detector saw, window by window, for the analyst."""
    start = min(alert.opened_at, alert.window_end) - timedelta(minutes=15)
    return (
        "SELECT window_end, level, p_value, effect, summary, features"
        " FROM telemetry.finding FINAL"
        f" WHERE cluster = {_text(alert.cluster)} AND detector = {_text(alert.detector)}"
        f" AND entity_id = {_text(alert.entity_id)}"
        f" AND window_end BETWEEN '{start:%Y-%m-%d %H:%M:%S}'"
        f" AND '{alert.window_end:%Y-%m-%d %H:%M:%S}'"
        " ORDER BY window_end"
    )


def _text(value: str) -> str:
    """A SQL string: ids come from machines, and someone will paste this."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
