"""An alert in the form that each kind of destination takes: pure functions.

Sources: Standard Webhooks 1.0.0; Alertmanager API v2 (``POST /api/v2/alerts``); PagerDuty
Events API v2; Slack incoming webhooks (Block Kit).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pipeline.alerts.model import Alert, Evidence

MAX_BODY_BYTES = 20_000
_MAX_MEMBERS = 50
# Alertmanager ends what is not sent again; open incidents are sent every minute.
ALERTMANAGER_HOLD = timedelta(minutes=5)
_MARK = {"info": "🔵", "warning": "🟠", "critical": "🔴"}


def iso(moment: datetime) -> str:
    """RFC 3339, UTC, milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def as_bytes(value: Any) -> bytes:
    """JSON as the bytes that are sent and signed; half a character becomes ``?``."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def headline(alert: Alert) -> str:
    """One line that says it all, such as ``rack-03 tray 7 GPU 2: capped clocks``."""
    what = alert.cause_words or alert.detector.replace("_", " ")
    drill = "DRILL: " if alert.drill else ""
    return f"{drill}{alert.entity_name}: {what}"


def _evidence(item: Evidence) -> dict[str, Any]:
    found: dict[str, Any] = {
        "feature": item.feature,
        "label": item.words,
        "value": item.value,
        "peer_median": item.peer_median,
        "unit": item.unit,
        "direction": item.direction,
        "minutes": item.minutes,
        "z": item.z,
    }
    if item.percent is not None:
        found["difference_percent"] = round(item.percent, 1)
    return found


def generic(alert: Alert) -> dict[str, Any]:
    """Standard Webhooks: ``type``, ``timestamp``, ``data``; below 20 kB."""
    members = list(alert.members)
    body: dict[str, Any] = {}
    shown = min(len(members), _MAX_MEMBERS)
    while True:
        body = {
            "type": f"incident.{alert.transition}",
            "timestamp": iso(alert.at),
            "data": {
                "incident_id": alert.incident_id,
                "transition": alert.transition,
                "severity": alert.severity,
                "drill": alert.drill,
                "summary": alert.summary,
                "detector": alert.detector,
                "cluster": alert.cluster,
                "entity": {
                    "kind": alert.entity_kind,
                    "id": alert.entity_id,
                    "name": alert.entity_name,
                },
                "location": dict(alert.location),
                "cause": {"id": alert.cause, "confidence": round(alert.cause_confidence, 3)},
                "suggested_action": alert.suggested_action,
                "evidence": [_evidence(item) for item in alert.evidence],
                "peers": dict(alert.peers),
                "members": members[:shown],
                "members_total": len(members),
                "score": alert.score,
                "model_version": alert.model_version,
                "window_end": iso(alert.window_end),
                "opened_at": iso(alert.opened_at),
                "resolved_at": iso(alert.resolved_at) if alert.resolved_at else None,
                "links": dict(alert.links),
            },
        }
        if shown == 0 or len(as_bytes(body)) < MAX_BODY_BYTES:
            return body
        shown //= 2


def alertmanager(alerts: Sequence[Alert], now: datetime) -> list[dict[str, Any]]:
    """Alertmanager's ``POST /api/v2/alerts``; ``incident_id`` is among the labels."""
    found = []
    for alert in alerts:
        ends = alert.resolved_at or now + ALERTMANAGER_HOLD
        labels = {
            "alertname": alert.detector,
            "cluster": alert.cluster,
            "incident_id": alert.incident_id,
            "entity_kind": alert.entity_kind,
            "entity": alert.entity_name,
            "severity": alert.severity,
        }
        labels |= {
            key: str(value)
            for key, value in alert.location.items()
            if key in ("rack", "host", "leaf", "cdu") and value not in (None, "")
        }
        if alert.drill:
            labels["drill"] = "true"
        item: dict[str, Any] = {
            "labels": labels,
            "annotations": {
                "summary": headline(alert),
                "description": alert.summary,
                "cause": f"{alert.cause_words} ({alert.cause_confidence:.0%})",
                "action": alert.suggested_action,
                "evidence": "; ".join(_sentence(item) for item in alert.evidence),
            },
            "startsAt": iso(alert.opened_at),
            "endsAt": iso(ends),
        }
        if "fleet" in alert.links:
            item["generatorURL"] = alert.links["fleet"]
        found.append(item)
    return found


def _sentence(item: Evidence) -> str:
    text = f"{item.words} {item.amount(item.value)} (peers {item.amount(item.peer_median)})"
    return f"{text} for {item.minutes:.0f} min" if item.minutes else text


def pagerduty(alert: Alert, routing_key: str) -> dict[str, Any]:
    """PagerDuty Events v2; the incident's id is the ``dedup_key``."""
    resolved = alert.transition == "resolved"
    event: dict[str, Any] = {
        "routing_key": routing_key,
        "event_action": "resolve" if resolved else "trigger",
        "dedup_key": alert.incident_id[:255],
    }
    if resolved:
        return event
    event["payload"] = {
        "summary": f"{headline(alert)}. {alert.summary}"[:1024],
        "source": alert.entity_name,
        "severity": alert.severity,
        "timestamp": iso(alert.at),
        "component": alert.entity_kind,
        "group": alert.cluster,
        "class": alert.cause or alert.detector,
        "custom_details": generic(alert)["data"],
    }
    event["client"] = "rackpulse"
    if "fleet" in alert.links:
        event["client_url"] = alert.links["fleet"]
        event["links"] = [{"href": alert.links["fleet"], "text": "Fleet page"}]
    return event


def _slack_text(text: str) -> str:
    """Slack reads &, < and > as its own marks."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def slack(alert: Alert) -> dict[str, Any]:
    """A Slack message: ``text`` for notifications, ``blocks`` for the channel."""
    title = _slack_text(headline(alert))
    if alert.transition == "resolved":
        minutes = alert.duration_s / 60
        text = f"✅ Resolved: {title} (after {minutes:.0f} min)"
        return {"text": text, "blocks": [_section(f"*{text}*")]}
    word = "" if alert.transition == "opened" else "Update: "
    text = f"{_MARK[alert.severity]} {word}{title}"
    lines = [f"*{text}*", _slack_text(alert.summary)]
    if alert.place:
        lines.append(f"*Where* {_slack_text(alert.place)}")
    lines += [f"• {_slack_text(_sentence(item))}" for item in alert.evidence]
    if alert.peer_words:
        lines.append(f"_Compared with {_slack_text(alert.peer_words)}_")
    if alert.suggested_action:
        lines.append(f"*Do* {_slack_text(alert.suggested_action)}")
    blocks = [_section("\n".join(lines)[:3000])]
    if "fleet" in alert.links:
        blocks.append(_section(f"<{alert.links['fleet']}|Open the fleet page>"))
    return {"text": text, "blocks": blocks}


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text}}
