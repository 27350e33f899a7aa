"""One fenced insert: it stores its block if the writer still owns it, else nothing.

The fence stands in the insert's own SQL as two scalar conditions, so the engine judges it
after it has entered the query in ``system.processes``, where a writer that takes over finds
and kills it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from clickhouse_connect.driver.binding import finalize_query
from clickhouse_connect.driver.client import Client

from pipeline.streams import Stream
from pipeline.streams.ddl import DATABASE, clickhouse_type
from pipeline.writer.block import MESSAGE_COLUMNS, Block, Scratch

# Every setting that decides what an insert stores is said: defaults have changed before.
# One insert is one part: one thread, and no cut by bytes or by fewer rows than a block holds.
INSERT_SETTINGS: Mapping[str, str] = {
    "async_insert": "0",
    "wait_for_async_insert": "1",
    "insert_deduplicate": "0",
    "deduplicate_blocks_in_dependent_materialized_views": "0",
    "max_insert_threads": "1",
    "min_insert_block_size_rows": "2000000",
    "min_insert_block_size_bytes": "0",
    "max_partitions_per_insert_block": "1",
    "insert_null_as_default": "0",
    "optimize_use_projections": "1",
    "optimize_use_implicit_projections": "1",
}
REPLICATED_SETTINGS: Mapping[str, str] = {
    "insert_quorum": "auto",
    "insert_quorum_parallel": "0",
    "select_sequential_consistency": "1",
}
LARGEST_BLOCK_ROWS = 1_000_000  # below min_insert_block_size_rows


@dataclass(frozen=True)
class Fence:
    """Who may store: this writer, under these epochs.

    Attributes:
        topic_id: without the mark of an incarnation.
        label: as it stands on the rows.
        epochs: the writer's epoch by partition.
    """

    topic_id: str
    label: str
    writer_id: str
    epochs: Mapping[int, int]


def comment(topic_id: str, partitions: Mapping[int, Any], writer_id: str) -> str:
    """The ``log_comment`` that names an insert: who takes over finds it by its partitions."""
    listed = ",".join(str(partition) for partition in sorted(partitions))
    return f"rackpulse-write/{topic_id}/,{listed},/{writer_id}"


def comment_pattern(topic_id: str, partitions: list[int]) -> str:
    """Regular expression that finds the comments of inserts on any of these partitions."""
    listed = "|".join(str(partition) for partition in sorted(partitions))
    return f"^rackpulse-write/{topic_id}/.*,({listed}),.*/"


def fence_days(ingested_at: datetime) -> list[str]:
    """Ids of the table's partitions that an insert's fence looks into.

    Every part costs a look, so all that is kept is not asked each time. Who takes over asks all
    of it, whenever an outcome is unclear too; what may have come since stands on the day of the
    insert, or beside it where midnight or another writer's clock lies between.
    """
    return [f"{ingested_at + timedelta(days=shift):%Y%m%d}" for shift in (-1, 0, 1)]


_SQL: dict[str, str] = {}  # a contract never changes in a process


def insert_sql(stream: Stream) -> str:
    """The insert of a stream, for any block of it."""
    if stream.digest not in _SQL:
        _SQL[stream.digest] = _insert_sql(stream)
    return _SQL[stream.digest]


def _insert_sql(stream: Stream) -> str:
    wire = [column.name for column in stream.wire_columns]
    sent = [*wire, *MESSAGE_COLUMNS]
    structure = ", ".join(f"`{name}` {clickhouse_type(stream.column(name))}" for name in sent)
    names = ", ".join(f"`{name}`" for name in (*sent, "ingested_at", "kafka_topic_id"))
    quoted = structure.replace("\\", "\\\\").replace("'", "\\'")
    return f"""INSERT INTO {DATABASE}.{stream.name} ({names})
SELECT *, toDateTime64(%(ingested_at)s, 3, 'UTC'), %(label)s
FROM input('{quoted}')
WHERE (
    SELECT countIf(highest >= transform(kafka_partition,
        CAST(%(partitions)s, 'Array(UInt32)'), CAST(%(firsts)s, 'Array(UInt64)'), toUInt64(0)))
    FROM (
        SELECT kafka_partition, max(kafka_offset) AS highest
        FROM {DATABASE}.{stream.name}
        WHERE kafka_topic_id = %(label)s AND kafka_partition IN %(partitions)s
            AND _partition_id IN %(days)s
        GROUP BY kafka_topic_id, kafka_partition
    )
) = 0 AND (
    SELECT countIf(newest = (transform(kafka_partition,
        CAST(%(partitions)s, 'Array(UInt32)'), CAST(%(epochs)s, 'Array(UInt64)'), toUInt64(0)),
        %(writer)s))
    FROM (
        SELECT kafka_partition, max((epoch, writer_id)) AS newest
        FROM {DATABASE}.writer_epoch
        WHERE kafka_topic_id = %(topic_id)s AND kafka_partition IN %(partitions)s
        GROUP BY kafka_partition
    )
) = length(%(partitions)s)
FORMAT ArrowStream
"""


@dataclass(frozen=True)
class Answer:
    """What the store said: rows written, none when the fence held; bytes that were sent."""

    rows: int
    bytes: int


def insert(
    client: Client,
    block: Block,
    fence: Fence,
    ingested_at: datetime,
    settings: Mapping[str, str] = INSERT_SETTINGS,
    scratch: Scratch | None = None,
) -> Answer:
    """Store a block behind its fence.

    Args:
        ingested_at: one time for the whole block, so that it is one part of one day.
        scratch: memory of the caller's, used again for each block.

    Returns:
        All rows of the block, or 0 when the fence held.

    Raises:
        ClickHouseError, OSError, HTTPError: see :func:`pipeline.store.classify`.
        ValueError: the block is empty, or too large to be one part.
    """
    if not 0 < block.rows <= LARGEST_BLOCK_ROWS:
        raise ValueError(f"a block of {block.rows} rows is never sent")
    partitions = sorted(block.firsts)
    # The client's own binding: the statement stands before the data, in one piece with it, and
    # raw_insert sends any bytes-like body as it is, without a copy, and never twice by itself.
    statement = finalize_query(
        insert_sql(block.stream),
        {
            "ingested_at": ingested_at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3],
            "days": fence_days(ingested_at),
            "label": fence.label,
            "topic_id": fence.topic_id,
            "writer": fence.writer_id,
            "partitions": partitions,
            "firsts": [block.firsts[partition] for partition in partitions],
            "epochs": [fence.epochs[partition] for partition in partitions],
        },
    )
    body = (scratch or Scratch()).write(statement.encode(), block.table())
    answer = client.raw_insert(
        "",
        insert_block=cast("bytes", body),
        settings={
            **settings,
            "log_comment": comment(fence.topic_id, block.firsts, fence.writer_id),
        },
    )
    return Answer(answer.written_rows, len(body))
