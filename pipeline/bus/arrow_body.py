"""Reading the body of a message that anybody may have sent, without trusting it.

A body is looked over before it is decoded: a compressed one could unfold to any size, and
a second batch or stream behind the first would be lost in silence.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from pipeline.errors import PoisonMessageError

# An IPC stream ends with a continuation mark and a length of 0.
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"

# Slots of the flatbuffer tables in Arrow's Message.fbs: 4 + 2 * field number.
_MESSAGE_HEADER = 8
_RECORD_BATCH_COMPRESSION = 10
_DICTIONARY_BATCH_DATA = 6


def write_body(batch: pa.RecordBatch) -> bytes:
    """The IPC stream of one batch, not compressed."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    raw: bytes = sink.getvalue().to_pybytes()
    return raw


def read_body(value: bytes, max_rows: int) -> tuple[pa.RecordBatch, bytes]:
    """Decode a body of exactly one record batch; its columns point into ``value``.

    Returns:
        The batch, and the bytes that describe its schema: bodies with the same bytes have the
        same schema, which is much faster to see than by comparing schemas.

    Raises:
        PoisonMessageError: ``not_arrow``, ``truncated``, ``compressed_body``,
            ``not_one_batch``, ``trailing_bytes``, ``no_rows``, ``too_many_rows``,
            ``duplicate_column`` or ``invalid_values``.
    """
    buffer = pa.py_buffer(value)
    layout = _look_over(buffer)
    if not value.endswith(_END_OF_STREAM):
        raise PoisonMessageError("truncated", "the Arrow stream has no end mark")
    try:
        source = pa.BufferReader(buffer)
        reader = pa.ipc.open_stream(source)
        batch = reader.read_next_batch()
        names = batch.schema.names
        if not batch.num_rows:
            raise PoisonMessageError("no_rows", "the batch is empty")
        if batch.num_rows > max_rows:
            raise PoisonMessageError(
                "too_many_rows", f"{batch.num_rows} rows, {max_rows} are allowed"
            )
        if len(set(names)) != len(names):
            raise PoisonMessageError("duplicate_column", "two columns have the same name")
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as exc:
        raise PoisonMessageError("invalid_values", str(exc)) from exc
    return batch, layout


def _look_over(buffer: pa.Buffer) -> bytes:
    source = pa.BufferReader(buffer)
    kinds: list[str] = []
    layout = b""
    try:
        for message in pa.ipc.MessageReader.open_stream(source):
            kinds.append(message.type)
            metadata = bytes(message.metadata)
            layout = layout or metadata
            if _is_compressed(metadata, message.type):
                raise PoisonMessageError(
                    "compressed_body", "send the Arrow body plain: Kafka's batches are compressed"
                )
    except (pa.ArrowException, OSError, ValueError, struct.error, IndexError) as exc:
        reason = "truncated" if kinds else "not_arrow"
        raise PoisonMessageError(reason, str(exc)) from exc
    if not kinds:
        raise PoisonMessageError("not_arrow", "no Arrow message in the body")
    if kinds[0] != "schema":
        raise PoisonMessageError("not_arrow", f"the body begins with a {kinds[0]}")
    batches = kinds.count("record batch")
    if set(kinds) - {"schema", "dictionary", "record batch"} or kinds.count("schema") > 1:
        raise PoisonMessageError("not_arrow", f"the body holds {sorted(set(kinds))}")
    if batches != 1:
        complete = bytes(buffer[-len(_END_OF_STREAM) :]) == _END_OF_STREAM
        reason = "not_one_batch" if batches or complete else "truncated"
        raise PoisonMessageError(reason, f"the body holds {batches} record batches")
    rest = buffer.size - source.tell()
    if rest:
        raise PoisonMessageError("trailing_bytes", f"{rest} bytes behind the Arrow stream")
    return layout


def _is_compressed(metadata: bytes, kind: str) -> bool:
    """Whether the flatbuffer of an IPC message says that its buffers are compressed."""
    if kind not in ("dictionary", "record batch"):
        return False
    table = _field(metadata, struct.unpack_from("<I", metadata, 0)[0], _MESSAGE_HEADER)
    if table is not None and kind == "dictionary":
        table = _field(metadata, table, _DICTIONARY_BATCH_DATA)
    if table is None:
        raise ValueError("the Arrow message has no header")
    return _field(metadata, table, _RECORD_BATCH_COMPRESSION) is not None


def _field(data: bytes, table: int, slot: int) -> int | None:
    """Position of the table that a field points to; None when the field is absent."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise ValueError("flatbuffer points before its start")
    if slot >= struct.unpack_from("<H", data, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", data, vtable + slot)[0]
    if not offset:
        return None
    position: int = table + offset
    target: int = position + struct.unpack_from("<I", data, position)[0]
    return target
