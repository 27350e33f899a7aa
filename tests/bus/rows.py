"""Tables of any stream, for tests of the bus: made from the contract alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from pipeline.streams import Column, Stream
from pipeline.streams.arrow import conform

START = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def value(column: Column, number: int) -> Any:
    """Some value of the column's type that differs with ``number``."""
    if column.type in ("string", "label"):
        return f"{column.name}-{number}"
    if column.type == "timestamp_ms":
        return START + timedelta(milliseconds=number)
    if column.type == "bool":
        return number % 2 == 0
    if column.type.startswith("float"):
        return number + 0.5
    return number % 200


def table(
    stream: Stream,
    rows: int,
    *,
    key: str | None = "rack-01",
    entities: int | None = None,
    **columns: list[Any],
) -> pa.Table:
    """A table in the wire schema: row i is entity ``i % entities`` at its own time.

    Args:
        key: value of the first key column on all rows.
        columns: columns to set as given.
    """
    entities = entities or max(rows, 1)
    data: dict[str, list[Any]] = {}
    for column in stream.wire_columns:
        if column.name in columns:
            data[column.name] = columns[column.name]
        elif column.name == "sampled_at":
            data[column.name] = [START + timedelta(seconds=i // entities) for i in range(rows)]
        elif column.name in stream.entity:
            data[column.name] = [value(column, i % entities) for i in range(rows)]
        elif column.name == stream.key[0]:
            data[column.name] = [key] * rows
        elif column.kind == "identity" or column.group == "identity":
            data[column.name] = [f"{column.name}-x"] * rows
        else:
            # A third of the readings is missing, so that NULL is always on the path.
            data[column.name] = [None if (i + len(data)) % 3 == 0 else value(column, i)
                                 for i in range(rows)]  # fmt: skip
    return conform(stream, pa.table({name: pa.array(cells) for name, cells in data.items()}))
