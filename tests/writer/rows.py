"""Small messages of any stream for tests of the writer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa

from pipeline.bus.codec import Message, decode, encode, split
from pipeline.streams import Contracts, Stream
from pipeline.streams.arrow import arrow_type
from pipeline.writer.block import Taken

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def sample(stream: Stream, rows: int, *, rack: str = "rack-01", at: datetime = START) -> pa.Table:
    """``rows`` entities at one time; only identities, a rack and a few readings."""
    columns: dict[str, pa.Array] = {}
    for column in stream.wire_columns:
        kind = arrow_type(column)
        if column.name == "sampled_at":
            columns[column.name] = pa.array([at] * rows, kind)
        elif column.name in stream.entity and kind in (
            pa.string(),
            arrow_type(stream.column("rack")),
        ):
            columns[column.name] = pa.array([f"{rack}-{i}" for i in range(rows)]).cast(kind)
        elif column.name in stream.entity:
            columns[column.name] = pa.array(range(rows)).cast(kind)
        elif column.name == "rack":
            columns[column.name] = pa.array([rack] * rows).cast(kind)
        elif not column.nullable:
            columns[column.name] = pa.array([f"{column.name}-1"] * rows).cast(kind)
        elif kind == pa.float32():
            columns[column.name] = pa.array([float(i % 7) for i in range(rows)], kind)
    return pa.table(columns)


def message(
    stream: Stream, seq: int, rows: int = 3, *, rack: str = "rack-01", collector: str = "c1"
) -> Message:
    """One encoded message; its samples lie ``seq`` seconds after the start."""
    at = START + timedelta(seconds=seq)
    ((_, batch),) = split(stream, sample(stream, rows, rack=rack, at=at))
    return encode(stream, batch, collector_id=collector, seq=seq, sent_at=at)


def taken(
    contracts: Contracts, stream: str, offset: int, *, seq: int | None = None, rows: int = 3,
    partition: int = 0, rack: str = "rack-01", collector: str = "c1",
) -> Taken:  # fmt: skip
    """A message as the writer holds it."""
    made = message(contracts[stream], seq or offset + 1, rows, rack=rack, collector=collector)
    decoded = decode(contracts, made.headers, made.value)
    return Taken(
        partition, offset, 0, made.key.decode(), decoded.header, decoded.batch, len(made.value), 0.0
    )
