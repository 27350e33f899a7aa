"""What can not be read any more is written down, never skipped in silence."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields

from clickhouse_connect.driver.client import Client

from pipeline.streams.ddl import DATABASE

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Gap:
    """One row of ``telemetry.ingest_gap``; see the column comments there."""

    kind: str
    stream: str
    kafka_topic_id: str = ""
    kafka_partition: int = -1
    collector_id: str = ""
    kafka_key: str = ""
    first_missing: int = -1
    last_missing: int = -1
    detail: str = ""


def record(client: Callable[[], Client], gaps: Sequence[Gap]) -> None:
    """Write gaps down; the same gap written twice is one.

    Raises:
        ClickHouseError, OSError, HTTPError: the store's.
    """
    if not gaps:
        return
    for gap in gaps:
        if not gap.kind.startswith("sequence"):
            log.warning("gap in %s: %s: %s", gap.stream, gap.kind, gap.detail)
    client().insert(
        f"{DATABASE}.ingest_gap",
        [list(astuple(gap)) for gap in gaps],
        column_names=[field.name for field in fields(Gap)],
        settings={"async_insert": "0", "insert_deduplicate": "0"},
    )
