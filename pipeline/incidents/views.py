"""Incidents as people read them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pipeline.errors import RackpulseError

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client
    from clickhouse_connect.driver.query import QueryResult

_JSON = ("location", "evidence", "peers", "members")


def incident_rows(client: Client, cluster: str, *, resolved: bool = False) -> list[dict[str, Any]]:
    """Incidents of a cluster, newest first; the newest 100 with ``resolved``."""
    answer = client.query(
        "SELECT * FROM telemetry.incident WHERE cluster = {c:String}"
        " AND (state = 'open' OR {all:UInt8}) ORDER BY opened_at DESC, id LIMIT {n:UInt32}",
        parameters={"c": cluster, "all": int(resolved), "n": 100 if resolved else 10_000},
    )
    return _readable(answer)


def incident_history(client: Client, incident_id: str) -> list[dict[str, Any]]:
    """All transitions of one incident, oldest first."""
    answer = client.query(
        "SELECT * FROM telemetry.incident_transition WHERE incident_id = {id:String}"
        " ORDER BY window_end, at",
        parameters={"id": incident_id},
    )
    return _readable(answer)


def whole_id(client: Client, beginning: str) -> str:
    """The id of the incident whose id begins so: alerts show the first twelve characters.

    Raises:
        RackpulseError: there is none, or there are several.
    """
    found = [
        str(row[0])
        for row in client.query(
            "SELECT DISTINCT incident_id FROM telemetry.incident_transition"
            " WHERE startsWith(incident_id, {beginning:String}) ORDER BY 1 LIMIT 6",
            parameters={"beginning": beginning},
        ).result_rows
    ]
    if beginning in found or len(found) == 1:
        return beginning if beginning in found else found[0]
    if not found or not beginning:
        raise RackpulseError(f"No incident {beginning}: see  rackpulse incidents list --all")
    more = ", ..." if len(found) > 5 else ""
    raise RackpulseError(f"Several incidents begin with {beginning}: {', '.join(found[:5])}{more}")


def _readable(answer: QueryResult) -> list[dict[str, Any]]:
    found = []
    for values in answer.result_rows:
        row = dict(zip(answer.column_names, values, strict=True))
        for name in _JSON:
            row[name] = json.loads(row[name])
        found.append(row)
    return found
