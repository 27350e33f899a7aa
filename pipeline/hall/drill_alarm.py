"""A drill that failed becomes an incident of its own, so that someone is told.

It is of no cluster of racks: what is ill is the watching. It stays open until a drill passes.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pipeline.incidents import table
from pipeline.incidents.step import resolved
from pipeline.incidents.table import Transition

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

CLUSTER = "rackpulse"
DETECTOR = "fire_drill"
ENTITY = "pipeline"


def tell(client: Client, cause: str, failure: str | None, at: datetime) -> list[Transition]:
    """Open the alarm after a failed drill, resolve it after one that passed.

    Args:
        cause: fault that was played.
        failure: what went wrong; None when the drill passed.
        at: whole minute of the drill, UTC.

    Returns:
        What was written; nothing when the alarm is open or closed already.
    """
    ringing = table.newest(client, CLUSTER, at + timedelta(minutes=1))
    if failure is None:
        made = [resolved(incident, at) for incident in ringing]
    elif ringing:
        made = []
    else:
        made = [_opened(cause, failure, at)]
    table.insert(client, made)
    return made


def _opened(cause: str, failure: str, at: datetime) -> Transition:
    incident = table.incident_id(CLUSTER, DETECTOR, ENTITY, at)
    return Transition(
        table.transition_id(incident, "opened", at), incident, "opened", datetime.now(UTC), at,
        CLUSTER, DETECTOR, ENTITY, ENTITY, "rackpulse", {}, "critical", "fire_drill_failed", 1.0,
        f"A fire drill ({cause}) failed: {failure}. Real faults may go unseen", [], {},
        "Look at  rackpulse status  and at the log of the Dag fire_drill", opened_at=at,
    )  # fmt: skip
