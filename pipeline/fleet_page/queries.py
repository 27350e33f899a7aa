"""What the fleet page shows, as plain values: one dictionary, read in a few statements."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from clickhouse_connect.driver.client import Client

STREAMS = ("gpu", "nvlink", "ib_port", "coolant", "component", "event")
# The folders of models/, by name: to load them would load scikit-learn into the API server.
DETECTORS = ("congested_link", "hot_rack", "straggler_gpu")
# A rack whose newest row is older is called silent.
SILENT_AFTER_S = 60
_RANK = {"critical": 0, "warning": 1, "info": 2}


def fleet_state(client: Client, cluster: str, now: datetime) -> dict[str, Any]:
    """Everything on the page.

    Args:
        cluster: whose racks are shown; incidents of drills are shown with their mark.
        now: time of the question; ages are counted from it.
    """
    incidents = open_incidents(client, now)
    silences = current_silences(client, now)
    racks = rack_states(client, cluster, now)
    for rack in racks:
        rack["status"] = _rack_status(rack, incidents)
        rack["silenced"] = any(
            item["scope"] == "all" or (item["scope"] == "rack" and item["entity"] == rack["rack"])
            for item in silences
            if item["active"]
        )
    return {
        "now": _iso(now),
        "cluster": cluster,
        "racks": racks,
        "incidents": incidents,
        "resolved": resolved_incidents(client, now),
        "detectors": detectors(client, cluster),
        "silences": silences,
        "streams": stream_rates(client, cluster, now),
        "alerts": alert_states(client, now),
    }


def _rack_status(rack: Mapping[str, Any], incidents: list[dict[str, Any]]) -> str:
    mine = [
        item["severity"]
        for item in incidents
        if not item["drill"] and item["location"].get("rack") == rack["rack"]
    ]
    if mine:
        return str(min(mine, key=lambda severity: _RANK.get(severity, 3)))
    if rack["age_s"] is None or rack["age_s"] > SILENT_AFTER_S:
        return "silent"
    return "ok"


def rack_states(client: Client, cluster: str, now: datetime) -> list[dict[str, Any]]:
    """One line per rack that was seen in the last hour; numbers of the newest samples."""
    parameters = {"cluster": cluster, "now": now, "recent": now - timedelta(minutes=2),
                  "hour": now - timedelta(hours=1)}  # fmt: skip
    seen = client.query(
        """
        SELECT rack, uniqExact(gpu_uuid) AS gpus, max(sampled_at) AS newest
        FROM telemetry.gpu
        WHERE cluster = {cluster:String} AND rack IS NOT NULL
          AND sampled_at >= {hour:DateTime64(3, 'UTC')}
          AND ingested_at >= {hour:DateTime64(3, 'UTC')}
        GROUP BY rack ORDER BY rack
        """,
        parameters=parameters,
    ).result_rows
    latest = client.query(
        """
        SELECT rack, count() AS gpus, sum(power) AS power_w, max(temp) AS hottest_c,
            avg(active) AS sm_active, arraySort(groupUniqArrayIf(8)(job, job != '')) AS jobs
        FROM
        (
            SELECT rack, gpu_uuid, argMax(power_w, sampled_at) AS power,
                argMax(gpu_temp_c, sampled_at) AS temp,
                argMax(sm_active_ratio, sampled_at) AS active,
                argMax(ifNull(job_id, ''), sampled_at) AS job
            FROM telemetry.gpu
            WHERE cluster = {cluster:String} AND rack IS NOT NULL
              AND sampled_at >= {recent:DateTime64(3, 'UTC')}
              AND ingested_at >= {recent:DateTime64(3, 'UTC')}
            GROUP BY rack, gpu_uuid
        )
        GROUP BY rack
        """,
        parameters=parameters,
    ).named_results()
    by_rack = {row["rack"]: row for row in latest}
    coolant = client.query(
        """
        SELECT rack, avg(supply) AS supply_c, sum(flow) AS flow_lpm, avg(rise) AS delta_k
        FROM
        (
            SELECT rack, component_id, any(component_type) AS kind,
                argMax(supply_temp_c, sampled_at) AS supply,
                argMax(flow_lpm, sampled_at) AS flow,
                argMax(ifNull(delta_temp_k, return_temp_c - supply_temp_c), sampled_at) AS rise
            FROM telemetry.coolant
            WHERE cluster = {cluster:String} AND rack IS NOT NULL
              AND component_type IN ('rack_connector', 'rack_loop')
              AND sampled_at >= {recent:DateTime64(3, 'UTC')}
              AND ingested_at >= {recent:DateTime64(3, 'UTC')}
            GROUP BY rack, component_id
        )
        GROUP BY rack, kind
        -- A rack's connectors (Redfish) and its loop (building management) are two views of the
        -- same water: the loop counts where no connector is read.
        ORDER BY kind = 'rack_loop'
        LIMIT 1 BY rack
        """,
        parameters=parameters,
    ).named_results()
    cooling = {row["rack"]: row for row in coolant}
    racks = []
    for rack, expected, newest in seen:
        values = by_rack.get(rack, {})
        loop = cooling.get(rack, {})
        racks.append(
            {
                "rack": str(rack),
                "gpus": int(values.get("gpus") or 0),
                "gpus_expected": int(expected),
                "age_s": _age(newest, now),
                "gpu_power_kw": _scaled(values.get("power_w"), 1000),
                "hottest_c": _scaled(values.get("hottest_c")),
                "sm_active_percent": _scaled(values.get("sm_active"), 0.01),
                "supply_c": _scaled(loop.get("supply_c")),
                "flow_lpm": _scaled(loop.get("flow_lpm")),
                "delta_k": _scaled(loop.get("delta_k")),
                "jobs": [str(job) for job in values.get("jobs") or []],
            }
        )
    return racks


_INCIDENT_COLUMNS = """id, state, cluster, detector, entity_kind, entity_id, entity_name, location,
    severity, cause, cause_confidence, summary, evidence, peers, suggested_action, members,
    model_version, opened_at, resolved_at, updated_at, drill"""


def open_incidents(client: Client, now: datetime) -> list[dict[str, Any]]:
    """Open incidents, the gravest first, then the newest."""
    rows = client.query(
        f"SELECT {_INCIDENT_COLUMNS} FROM telemetry.incident WHERE state = 'open'"
        " ORDER BY opened_at DESC LIMIT 200"
    ).named_results()
    found = [_incident(row, now) for row in rows]
    return sorted(found, key=lambda item: (item["drill"], _RANK.get(item["severity"], 3)))


def resolved_incidents(client: Client, now: datetime) -> list[dict[str, Any]]:
    """What was resolved during the last day, the newest first."""
    rows = client.query(
        f"SELECT {_INCIDENT_COLUMNS} FROM telemetry.incident WHERE state = 'resolved'"
        " AND resolved_at >= {since:DateTime64(3, 'UTC')} ORDER BY resolved_at DESC LIMIT 20",
        parameters={"since": now - timedelta(days=1)},
    ).named_results()
    return [_incident(row, now) for row in rows]


def incident(client: Client, incident_id: str, now: datetime) -> dict[str, Any] | None:
    """One incident, open or not, with what happened to it; None when there is none."""
    rows = list(
        client.query(
            f"SELECT {_INCIDENT_COLUMNS} FROM telemetry.incident WHERE id = {{id:String}}",
            parameters={"id": incident_id},
        ).named_results()
    )
    if not rows:
        return None
    found = _incident(rows[0], now)
    history = client.query(
        """
        SELECT DISTINCT at, transition, severity, cause, summary, window_end
        FROM telemetry.incident_transition WHERE incident_id = {id:String} ORDER BY window_end, at
        """,
        parameters={"id": incident_id},
    ).named_results()
    found["history"] = [{**row, "at": _iso(row["at"]), "window_end": _iso(row["window_end"])}
                        for row in history]  # fmt: skip
    return found


def _incident(row: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    ended = row["resolved_at"]
    return {
        "id": row["id"],
        "state": row["state"],
        "cluster": row["cluster"],
        "detector": row["detector"],
        "kind": row["entity_kind"],
        "entity": row["entity_id"],
        "name": row["entity_name"] or row["entity_id"],
        "location": _json(row["location"], {}),
        "severity": row["severity"],
        "cause": row["cause"],
        "confidence": round(float(row["cause_confidence"]), 3),
        "summary": row["summary"],
        "evidence": _json(row["evidence"], []),
        "peers": _json(row["peers"], {}),
        "action": row["suggested_action"],
        "members": _json(row["members"], []),
        "model": row["model_version"],
        "opened_at": _iso(row["opened_at"]),
        "resolved_at": _iso(ended) if ended else None,
        "updated_at": _iso(row["updated_at"]),
        "age_s": _age(row["opened_at"], _utc(ended) if ended else now),
        "drill": bool(row["drill"]),
    }


def detectors(client: Client, cluster: str) -> list[dict[str, Any]]:
    """Every detector: its live or newest model, if it has one, and its last scoring run."""
    models = client.query(
        """
        SELECT detector, argMax((version, state, reason, created_at, trained_from, trained_until),
            (m.state = 'live', m.created_at)) AS newest
        FROM telemetry.detector_model AS m GROUP BY detector ORDER BY detector
        """
    ).named_results()
    runs = client.query(
        """
        SELECT detector, max(r.window_end) AS window_end,
            argMax(entities, r.window_end) AS entities, argMax(verdicts, r.window_end) AS verdicts,
            argMax(findings, r.window_end) AS findings, argMax(took_ms, r.window_end) AS took_ms,
            argMax(scored_at, r.window_end) AS scored_at,
            countIf(r.window_end > subtractHours(now(), 1)) AS runs_last_hour
        FROM telemetry.score_run AS r
        WHERE cluster = {cluster:String} AND r.window_end > subtractDays(now(), 7)
        GROUP BY detector
        """,
        parameters={"cluster": cluster},
    ).named_results()
    by_detector = {row["detector"]: row for row in runs}
    found = []
    untrained = set(DETECTORS)
    for row in models:
        version, state, reason, created_at, trained_from, trained_until = row["newest"]
        run = by_detector.get(row["detector"])
        item = {
            "detector": row["detector"],
            "version": version,
            "state": state,
            "reason": reason,
            "trained_at": _iso(created_at),
            "trained_from": _iso(trained_from),
            "trained_until": _iso(trained_until),
            "run": None,
        }
        if run is not None:
            item["run"] = {
                "window_end": _iso(run["window_end"]),
                "lag_s": round((_utc(run["scored_at"]) - _utc(run["window_end"])).total_seconds()),
                "entities": int(run["entities"]),
                "verdicts": int(run["verdicts"]),
                "findings": int(run["findings"]),
                "took_ms": int(run["took_ms"]),
                "runs_last_hour": int(run["runs_last_hour"]),
            }
        found.append(item)
        untrained.discard(row["detector"])
    nothing = {"version": "", "reason": "", "trained_at": None, "trained_from": None,
               "trained_until": None, "run": None}  # fmt: skip
    found += [{"detector": name, "state": "untrained", **nothing} for name in untrained]
    return sorted(found, key=lambda item: str(item["detector"]))


def current_silences(client: Client, now: datetime) -> list[dict[str, Any]]:
    """Silences that are not over."""
    rows = client.query(
        """
        SELECT silence_id, cluster, scope, entity_id, detector, starts_at, ends_at, reason, by
        FROM telemetry.silence_now WHERE ends_at > {now:DateTime64(3, 'UTC')} ORDER BY ends_at
        """,
        parameters={"now": now},
    ).named_results()
    return [
        {
            "id": row["silence_id"],
            "scope": row["scope"],
            "entity": row["entity_id"],
            "detector": row["detector"],
            "starts_at": _iso(row["starts_at"]),
            "ends_at": _iso(row["ends_at"]),
            "active": _utc(row["starts_at"]) <= now,
            "reason": row["reason"],
            "by": row["by"],
        }
        for row in rows
    ]


def stream_rates(client: Client, cluster: str, now: datetime) -> list[dict[str, Any]]:
    """Rows of the last minute and the age of the newest sample, by stream."""
    found = []
    for stream in STREAMS:
        rows, newest = client.query(
            f"""
            SELECT count(), max(sampled_at) FROM telemetry.{stream}
            WHERE cluster = {{cluster:String}} AND ingested_at >= {{since:DateTime64(3, 'UTC')}}
            """,
            parameters={"cluster": cluster, "since": now - timedelta(minutes=1)},
        ).result_rows[0]
        found.append(
            {
                "stream": stream,
                "rows_per_s": round(int(rows) / 60, 1),
                "age_s": _age(newest, now) if rows else None,
            }
        )
    return found


def alert_states(client: Client, now: datetime) -> dict[str, int]:
    """How many alerts of the last day were delivered, wait for a retry, or were given up."""
    rows = client.query(
        """
        SELECT outcome, count() FROM telemetry.alert
        WHERE last_at >= {since:DateTime64(3, 'UTC')} GROUP BY outcome
        """,
        parameters={"since": now - timedelta(days=1)},
    ).result_rows
    counts = {str(outcome): int(number) for outcome, number in rows}
    return {name: counts.get(name, 0) for name in ("delivered", "failed", "gave_up")}


def _json(text: object, empty: Any) -> Any:
    try:
        found = json.loads(str(text), parse_constant=lambda _: None)
    except ValueError:
        return empty
    return found if isinstance(found, type(empty)) else empty


def _scaled(value: object, unit: float = 1.0) -> float | None:
    return None if value is None else round(float(str(value)) / unit, 1)


def _age(moment: datetime, now: datetime) -> float | None:
    return round((now - _utc(moment)).total_seconds(), 1)


def _iso(moment: datetime) -> str:
    return _utc(moment).isoformat().replace("+00:00", "Z")


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
