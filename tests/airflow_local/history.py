"""An hour and more of a healthy hall in the store, up to some minutes from now."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from clickhouse_connect.driver.client import Client

from pipeline.hall.record import record
from pipeline.hall.scenario import Scenario
from pipeline.streams import Contracts
from pipeline.streams.arrow import table_schema


def store_history(
    client: Client, folder: Path, contracts: Contracts, now: datetime, *, ahead_minutes: int = 15
) -> None:
    """Record four healthy racks and store the rows as if they had come in as they were taken.

    Args:
        now: the past before it is 75 minutes long.
        ahead_minutes: rows of the time to come, so that the next windows can be scored.
    """
    start = now.replace(second=0, microsecond=0) - timedelta(minutes=75)
    scenario = Scenario.model_validate(
        {
            "hall": {"racks": 4, "seed": 4711},
            "time": {
                "start": start,
                "hours": (75 + ahead_minutes) / 60,
                "sample_s": 30,
                "nvlink_s": 600,
            },
        }
    )
    record(scenario, folder, contracts)
    for name, stream in contracts.items():
        path = folder / f"{name}.parquet"
        if path.exists():
            _store(client, name, pq.read_table(path), table_schema(stream))


def _store(client: Client, name: str, rows: pa.Table, schema: pa.Schema) -> None:
    rows = rows.append_column("ingested_at", rows["sampled_at"])
    for column in schema:
        if column.name not in rows.column_names:
            empty = 0 if pa.types.is_integer(column.type) else ""
            plain = pa.string() if empty == "" else column.type
            filled = pa.array([empty] * len(rows), plain)
            rows = rows.append_column(column.name, filled)
    client.insert_arrow(f"telemetry.{name}", rows.select(schema.names).cast(schema))
