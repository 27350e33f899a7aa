"""Many messages as one Arrow table: what one insert stores. No Python per row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.bus.codec import Header, concat
from pipeline.streams import Stream

# Delivery columns that differ from message to message; the others are one value per block.
MESSAGE_COLUMNS = (
    "kafka_partition", "kafka_offset", "kafka_leader_epoch",
    "kafka_key", "collector_id", "collector_seq",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Taken:
    """A message that was read and waits to be stored.

    Attributes:
        key: its Kafka key as text.
        size: bytes of its body.
        read_at: when it was read, monotonic seconds.
        record: the Kafka record whose body the batch points into.
    """

    partition: int
    offset: int
    leader_epoch: int
    key: str
    header: Header
    batch: pa.RecordBatch
    size: int
    read_at: float
    record: Any = None

    @property
    def pair(self) -> tuple[str, str]:
        """Collector and key: within them messages are numbered."""
        return self.header.collector_id, self.key


@dataclass(frozen=True)
class Block:
    """Messages of one stream and one topic id, stored by one insert or not at all.

    Attributes:
        label: topic id, with the mark of its incarnation.
        messages: rising offsets within each partition.
    """

    stream: Stream
    label: str
    messages: tuple[Taken, ...]

    @cached_property
    def rows(self) -> int:
        """Rows of all messages."""
        return sum(message.batch.num_rows for message in self.messages)

    @cached_property
    def firsts(self) -> dict[int, int]:
        """First offset by partition."""
        firsts: dict[int, int] = {}
        for message in self.messages:
            firsts.setdefault(message.partition, message.offset)
        return firsts

    def halves(self) -> tuple[Block, Block]:
        """Two blocks to be stored one after the other."""
        middle = len(self.messages) // 2
        return (
            Block(self.stream, self.label, self.messages[:middle]),
            Block(self.stream, self.label, self.messages[middle:]),
        )

    def table(self) -> pa.Table:
        """All rows in the wire schema, with where each came from."""
        return build_table(self.messages)


def build_table(messages: Sequence[Taken]) -> pa.Table:
    """Put messages together, one chunk per column, and add the delivery columns.

    Args:
        messages: at least one; all batches in the same wire schema.

    Returns:
        Wire columns, then :data:`MESSAGE_COLUMNS`.
    """
    table = concat([message.batch for message in messages])
    lengths = np.fromiter((m.batch.num_rows for m in messages), np.int64, len(messages))

    def repeated(values: list[int], kind: pa.DataType) -> pa.Array:
        return pa.array(np.repeat(np.array(values, dtype=kind.to_pandas_dtype()), lengths))

    def labels(values: list[str]) -> pa.Array:
        codes: dict[str, int] = {}
        indices = [codes.setdefault(value, len(codes)) for value in values]
        return pa.DictionaryArray.from_arrays(
            repeated(indices, pa.int32()), pa.array(list(codes), pa.string())
        )

    columns = (
        repeated([m.partition for m in messages], pa.uint32()),
        repeated([m.offset for m in messages], pa.uint64()),
        repeated([m.leader_epoch for m in messages], pa.int32()),
        labels([m.key for m in messages]),
        labels([m.header.collector_id for m in messages]),
        repeated([m.header.seq for m in messages], pa.uint64()),
    )
    for name, column in zip(MESSAGE_COLUMNS, columns, strict=True):
        table = table.append_column(name, column)
    return table


class Scratch:
    """Memory that blocks are written into, one after the other: fresh memory for each costs
    more than writing it."""

    def __init__(self) -> None:
        self._buffer: pa.Buffer | None = None

    def write(self, head: bytes, table: pa.Table) -> memoryview:
        """``head``, then the table as an Arrow IPC stream of one record batch.

        What is returned holds until the next call.
        """
        (batch,) = table.to_batches()
        dictionaries = sum(
            column.dictionary.nbytes + 1_000
            for column in batch.columns
            if pa.types.is_dictionary(column.type)
        )
        size = pa.ipc.get_record_batch_size(batch) + table.schema.serialize().size
        size += dictionaries + len(head) + 4_096
        if self._buffer is None or self._buffer.size < size:
            self._buffer = pa.allocate_buffer(size + size // 4)
        sink = pa.FixedSizeBufferWriter(self._buffer)
        sink.write(head)
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_batch(batch)
        return memoryview(self._buffer)[: sink.tell()]


def newest_sample(block: Block) -> datetime:
    """The latest sample time of a block."""
    newest = max(
        pc.max(message.batch.column("sampled_at")).cast(pa.int64()).as_py()
        for message in block.messages
    )
    return datetime.fromtimestamp(newest / 1000, UTC)
