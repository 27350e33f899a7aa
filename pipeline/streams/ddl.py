"""ClickHouse tables of the streams."""

from __future__ import annotations

from pipeline.streams.contract import Column, Stream

DATABASE = "telemetry"

_TYPES = {
    "string": "String",
    "label": "LowCardinality(String)",
    "bool": "Bool",
    "uint8": "UInt8",
    "uint16": "UInt16",
    "uint32": "UInt32",
    "uint64": "UInt64",
    "int32": "Int32",
    "int64": "Int64",
    "float32": "Float32",
    "float64": "Float64",
    "timestamp_ms": "DateTime64(3, 'UTC')",
}
# Deltas make counters and times small; Gorilla does not pay on decimal readings.
_DELTA = "CODEC(Delta, ZSTD(1))"
_PLAIN = "CODEC(ZSTD(1))"


# A wide part is some files per column, each synced by itself. With 70 to 130 columns, compact
# young parts needed a seventh of the syncs at fleet rate.
WIDE_FROM_BYTES = 268_435_456
# By default some five parts are merged as soon as they are there, and a row is merged again at
# every fivefold size: at fleet rate that cost more than twice what all inserts do.
MERGED_AT_ONCE = 100
MERGED_AT_MOST = 200


def clickhouse_type(column: Column) -> str:
    """The ClickHouse type of a column; a reading that may be missing is Nullable."""
    inner = _TYPES[column.type]
    if not column.nullable:
        return inner
    if column.type == "label":
        return "LowCardinality(Nullable(String))"
    return f"Nullable({inner})"


def column_sql(column: Column) -> str:
    """Definition of one column."""
    rising = column.type == "timestamp_ms" or column.kind == "counter"
    rising = rising or column.name in ("kafka_offset", "collector_seq")
    codec = _DELTA if rising and column.type != "float64" else _PLAIN
    unit = f" [{column.unit}]" if column.unit else ""
    comment = _quoted(f"{column.description}{unit}")
    return f"`{column.name}` {clickhouse_type(column)} {codec} COMMENT {comment}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def create_table_sql(stream: Stream, *, engine: str = "MergeTree", retention_days: int = 7) -> str:
    """The stream's table.

    One part per insert and one ingest day per part; the two projections live in the
    same part as the rows, so that what is stored and what the writer believes cannot
    disagree: ``offsets`` answers how far a partition is stored, ``messages`` which messages
    of a collector are. Inserts and merges are synced: a power cut takes nothing that was
    answered.

    A merge takes ``MERGED_AT_ONCE`` parts or more. ClickHouse would choose so many, then leave
    out the small ones at their end, and write the large one anew with each single insert.

    Args:
        engine: table engine with its arguments.
        retention_days: how long rows are kept, by ingest day.
    """
    columns = ",\n    ".join(column_sql(column) for column in stream.columns)
    order = ", ".join(("cluster", *stream.entity, "sampled_at"))
    return f"""CREATE TABLE IF NOT EXISTS {DATABASE}.{stream.name}
(
    {columns},
    PROJECTION offsets (
        SELECT kafka_topic_id, kafka_partition, max(kafka_offset), max(kafka_leader_epoch)
        GROUP BY kafka_topic_id, kafka_partition
    ),
    PROJECTION messages (
        SELECT collector_id, kafka_key, collector_seq,
            kafka_topic_id, kafka_partition, kafka_offset, count()
        GROUP BY collector_id, kafka_key, collector_seq,
            kafka_topic_id, kafka_partition, kafka_offset
    )
)
ENGINE = {engine}
PARTITION BY toDate(ingested_at)
ORDER BY ({order})
TTL toDate(ingested_at) + INTERVAL {retention_days} DAY DELETE
SETTINGS ttl_only_drop_parts = 1, fsync_after_insert = 1, fsync_part_directory = 1,
    min_rows_to_fsync_after_merge = 1, min_compressed_bytes_to_fsync_after_merge = 1,
    non_replicated_deduplication_window = 0, min_bytes_for_wide_part = {WIDE_FROM_BYTES},
    min_parts_to_merge_at_once = {MERGED_AT_ONCE}, max_parts_to_merge_at_once = {MERGED_AT_MOST},
    merge_selector_enable_heuristic_to_remove_small_parts_at_right = 0
COMMENT {_quoted(stream.description)}"""
