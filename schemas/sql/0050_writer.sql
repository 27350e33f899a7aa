-- What the writer keeps beside the rows themselves (docs/exactly-once.md).

CREATE TABLE IF NOT EXISTS telemetry.writer_epoch
(
    kafka_topic_id String COMMENT 'Kafka topic id, without the mark of an incarnation',
    kafka_partition UInt32,
    epoch UInt64 COMMENT 'The newest (epoch, writer_id) owns the partition; inserts of any other store nothing',
    writer_id String COMMENT 'Random id of one start of one writer',
    incarnation UInt32 COMMENT 'Rises when the log was truncated: its offsets are used again',
    settled Int64 COMMENT 'Everything up to this offset is stored, set aside or was a repeat; -1 for nothing',
    settled_leader_epoch Int32 COMMENT 'Leader epoch of the message at that offset, -1 when unknown',
    stream LowCardinality(String),
    at DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = ReplacingMergeTree(settled)
ORDER BY (kafka_topic_id, kafka_partition, epoch, writer_id, incarnation)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1,
    min_rows_to_fsync_after_merge = 1, min_compressed_bytes_to_fsync_after_merge = 1,
    non_replicated_deduplication_window = 0
COMMENT 'Which writer owns which Kafka partition, and up to where the partition is settled';

CREATE TABLE IF NOT EXISTS telemetry.ingest_gap
(
    kind LowCardinality(String) COMMENT 'retention, missing_offsets, truncated, recreated, partitions_added, sequence, sequence_filled',
    stream LowCardinality(String),
    kafka_topic_id String,
    kafka_partition Int32 COMMENT '-1 when it is about the whole topic',
    collector_id String COMMENT 'For gaps in a collector''s numbering, else empty',
    kafka_key String COMMENT 'For gaps in a collector''s numbering, else empty',
    first_missing Int64 COMMENT 'First offset or number that is missing',
    last_missing Int64 COMMENT 'Last offset or number that is missing; -1 when nobody can know',
    detail String,
    seen_at DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = ReplacingMergeTree
ORDER BY (kind, stream, kafka_topic_id, kafka_partition, collector_id, kafka_key, first_missing, last_missing)
COMMENT 'What a writer found missing: never skipped in silence. Read with FINAL: a writer that was killed writes a gap again';

CREATE TABLE IF NOT EXISTS telemetry.dead_letter_replay
(
    kafka_topic_id String COMMENT 'Where the message that was set aside came from',
    kafka_partition Int32,
    kafka_offset Int64,
    replayed_to String COMMENT 'topic/partition/offset of the new copy; empty while it is being sent',
    at DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = ReplacingMergeTree(at)
ORDER BY (kafka_topic_id, kafka_partition, kafka_offset)
COMMENT 'Dead letters that were sent again';
