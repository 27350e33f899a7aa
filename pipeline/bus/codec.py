"""The message codec: one Kafka message is one Arrow IPC stream with one record batch.

Everything that a reader must know before it decodes the body stands in the headers. The
body is not compressed: the producer compresses whole Kafka batches with zstd
(docs/decisions/0001-compression-by-the-producer.md), so decoding is zero-copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.bus.arrow_body import read_body, write_body
from pipeline.errors import IncompatibleContractError, PoisonMessageError
from pipeline.streams import Contracts, Stream
from pipeline.streams.arrow import arrow_type, conform, wire_schema

CONTENT_TYPE = "application/vnd.apache.arrow.stream"
MAX_ROWS = 5_000
MAX_BYTES = 800_000
UNPLACED_KEY = "unplaced"

_EARLIEST_MS = round(datetime(2000, 1, 1, tzinfo=UTC).timestamp() * 1000)
_LATEST_MS = round(datetime(2100, 1, 1, tzinfo=UTC).timestamp() * 1000)
_MOST_LAYOUTS = 64
_DICTIONARY_OVERHEAD = 600  # IPC framing of one dictionary batch, rounded up

KafkaHeaders = Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Header:
    """What the headers of a message say.

    Attributes:
        seq: the collector's number for the message, per stream and key, from 1.
        sent_at_ms: when it was handed to Kafka, milliseconds since 1970, UTC.
    """

    stream: str
    version: int
    collector_id: str
    seq: int
    sent_at_ms: int


@dataclass(frozen=True, slots=True)
class Message:
    """What goes to Kafka."""

    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Decoded:
    """A message that was read.

    Attributes:
        batch: its rows in the wire schema of this version's contract.
        unknown_columns: columns of a newer contract that were left out.
    """

    header: Header
    batch: pa.RecordBatch
    unknown_columns: tuple[str, ...]


# ---------------------------------------------------------------- writing


def encode(
    stream: Stream, batch: pa.RecordBatch, *, collector_id: str, seq: int, sent_at: datetime
) -> Message:
    """Make a message of a batch as :func:`split` yields it.

    Args:
        batch: rows of one Kafka key in the wire schema.
        seq: number of the message for this collector, stream and key.
        sent_at: aware time of sending.

    Raises:
        ValueError: the batch is empty, or not in the wire schema.
    """
    if not batch.num_rows:
        raise ValueError(f"{stream.name}: an empty batch is never sent")
    if batch.schema != _schema(stream):
        raise ValueError(f"{stream.name}: the batch is not in the wire schema")
    key = str(_keys(stream, batch.slice(0, 1))[0])
    header = Header(stream.name, stream.version, collector_id, seq, epoch_ms(sent_at))
    return Message(key.encode(), write_body(batch), write_header(header))


def write_header(header: Header) -> list[tuple[str, bytes]]:
    """The headers of a message; see :func:`read_header`."""
    return [
        ("content-type", CONTENT_TYPE.encode()),
        ("rackpulse-stream", header.stream.encode()),
        ("rackpulse-version", str(header.version).encode()),
        ("rackpulse-collector", header.collector_id.encode()),
        ("rackpulse-seq", str(header.seq).encode()),
        ("rackpulse-sent-at", str(header.sent_at_ms).encode()),
    ]


def epoch_ms(moment: datetime) -> int:
    """Milliseconds since 1970, UTC."""
    return round(moment.timestamp() * 1000)


def split(
    stream: Stream,
    table: pa.Table,
    max_rows: int = MAX_ROWS,
    max_bytes: int = MAX_BYTES,
    on_oversize: Callable[[pa.RecordBatch], None] | None = None,
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Cut a table into batches that fit a message, each of one Kafka key.

    Cuts fall between entities; only an entity that alone passes a limit is cut inside.
    Rows keep their order within an entity; dictionaries hold the batch's own values only.

    Args:
        table: rows of the stream, any subset of the wire columns (see ``conform``).
        max_bytes: of the encoded message.
        on_oversize: called with a batch of one row that passes ``max_bytes`` alone, which
            is then left out.

    Yields:
        Key and batch, in the wire schema.

    Raises:
        ValueError: an identity is NULL, or one row is too large and ``on_oversize`` is None.
        KeyError: an identity column is missing, or a column is unknown.
        pa.ArrowInvalid: a value does not fit its column.
    """
    if not table.num_rows:
        return
    whole = _one_batch(_in_wire_schema(stream, table))
    keys = _keys(stream, whole)
    key_codes = _codes(keys)
    if key_codes.max() == 0 and whole.num_rows <= max_rows:
        runs: Iterable[tuple[int, int]] = [(0, whole.num_rows)]
        ordered, entities = whole, None
    else:
        entity_codes = _entity_codes(stream, whole)
        order = np.lexsort((entity_codes, key_codes))
        ordered = whole.take(pa.array(order))
        keys = keys.take(pa.array(order))
        entities = entity_codes[order]
        runs = _runs(key_codes[order])
    for start, end in runs:
        key = str(keys[start])
        part = ordered.slice(start, end - start)
        inner = _entity_codes(stream, part) if entities is None else entities[start:end]
        for piece in _pieces(stream, part, inner, max_rows, max_bytes, on_oversize):
            yield key, piece


def concat(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Put decoded batches of one stream together as one chunk per column.

    Dictionaries are unified by value, never decoded to strings.
    """
    return pa.Table.from_batches(batches).unify_dictionaries().combine_chunks()


def _pieces(
    stream: Stream,
    part: pa.RecordBatch,
    entities: np.ndarray,
    max_rows: int,
    max_bytes: int,
    on_oversize: Callable[[pa.RecordBatch], None] | None,
) -> Iterator[pa.RecordBatch]:
    start, limit = 0, max_rows
    while start < part.num_rows:
        end = _cut(entities, start, limit)
        rows = end - start
        piece = _compact(part.slice(start, rows), _plan(stream).labels)
        size = encoded_size(piece)
        if size > max_bytes and rows > 1:
            limit = max(1, min(rows - 1, int(rows * 0.97 * max_bytes / size)))
            continue
        if size <= max_bytes:
            yield piece
        elif on_oversize is None:
            raise ValueError(
                f"{stream.name}: one row takes {size} bytes, a message holds {max_bytes}"
            )
        else:
            on_oversize(piece)
        start = end
        # Rows differ in size: try for a well-filled message again.
        limit = max(1, min(max_rows, int(rows * 0.97 * max_bytes / size)))


def _cut(entities: np.ndarray, start: int, limit: int) -> int:
    """Where a piece ends: at most ``limit`` rows on, between entities if it can be."""
    cut = start + limit
    if cut >= len(entities):
        return len(entities)
    back = cut
    while back > start and entities[back] == entities[back - 1]:
        back -= 1
    return back if back > start else cut  # one entity fills it: cut inside


def encoded_size(batch: pa.RecordBatch) -> int:
    """Upper bound of the bytes of the batch's message body, without making them."""
    total = _schema_size(batch.schema) + int(pa.ipc.get_record_batch_size(batch)) + 64
    for column in batch.columns:
        if isinstance(column, pa.DictionaryArray):
            total += column.dictionary.nbytes + _DICTIONARY_OVERHEAD
    return total


@lru_cache(maxsize=64)
def _schema_size(schema: pa.Schema) -> int:
    return int(schema.serialize().size)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is looked up for every message of a stream, worked out once.

    Attributes:
        identities: position, name and whether it is a dictionary, of columns without NULL.
        times: position and name of the columns of times.
        labels: positions of the dictionary columns.
        layouts: descriptions of bodies that are known to be in this very schema.
    """

    schema: pa.Schema
    identities: tuple[tuple[int, str, bool], ...]
    times: tuple[tuple[int, str], ...]
    labels: tuple[int, ...]
    layouts: set[bytes] = field(default_factory=set)


_PLANS: dict[tuple[str, str], _Plan] = {}  # a contract never changes in a process


def _plan(stream: Stream) -> _Plan:
    name = (stream.name, stream.digest)
    if name not in _PLANS:
        columns = list(enumerate(stream.wire_columns))
        _PLANS[name] = _Plan(
            schema=wire_schema(stream),
            identities=tuple((i, c.name, c.type == "label") for i, c in columns if not c.nullable),
            times=tuple((i, c.name) for i, c in columns if c.type == "timestamp_ms"),
            labels=tuple(i for i, c in columns if c.type == "label"),
        )
    return _PLANS[name]


def _schema(stream: Stream) -> pa.Schema:
    return _plan(stream).schema


def _in_wire_schema(stream: Stream, table: pa.Table) -> pa.Table:
    plan = _plan(stream)
    if table.schema != plan.schema:
        return conform(stream, table)
    for position, name, _ in plan.identities:
        if table.column(position).null_count:
            raise ValueError(f"{stream.name}: identity column {name} holds NULL")
    return table


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    if any(column.num_chunks > 1 for column in table.columns):
        table = table.unify_dictionaries().combine_chunks()
    (batch,) = table.to_batches()
    return batch


def _keys(stream: Stream, batch: pa.RecordBatch) -> pa.StringArray:
    """Kafka key of each row: the first key column that is known and not empty."""
    keys = pa.nulls(batch.num_rows, pa.string())
    for name in stream.key:
        column = batch.column(name).cast(pa.string())
        known = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
        keys = pc.coalesce(keys, known)
        if not keys.null_count:
            break
    return keys.fill_null(UNPLACED_KEY)


def _codes(column: pa.Array) -> np.ndarray:
    """A small number for each distinct value, by first appearance."""
    if pa.types.is_dictionary(column.type):
        column = column.indices
    encoded = column.dictionary_encode(null_encoding="encode")
    return np.asarray(encoded.indices)


def _entity_codes(stream: Stream, batch: pa.RecordBatch) -> np.ndarray:
    """A number for each entity, by first appearance."""
    codes = np.zeros(batch.num_rows, dtype=np.int64)
    for name in stream.entity:
        own = _codes(batch.column(name))
        codes = _codes(pa.array(codes * (int(own.max()) + 1) + own)).astype(np.int64)
    return codes


def _runs(codes: np.ndarray) -> list[tuple[int, int]]:
    """Start and end of each run of equal codes."""
    edges = np.flatnonzero(np.diff(codes)) + 1
    return list(zip([0, *edges.tolist()], [*edges.tolist(), len(codes)], strict=True))


def _compact(batch: pa.RecordBatch, labels: tuple[int, ...]) -> pa.RecordBatch:
    """The same rows, with dictionaries that hold no other value."""
    columns = batch.columns
    for position in labels:
        column = columns[position]
        if len(column.dictionary) > 1:
            used = column.indices.dictionary_encode()
            columns[position] = pa.DictionaryArray.from_arrays(
                used.indices, column.dictionary.take(used.dictionary)
            )
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


# ---------------------------------------------------------------- reading


def read_header(headers: Iterable[tuple[str, bytes | None]]) -> Header:
    """Read a message's headers, without its body.

    Raises:
        PoisonMessageError: ``no_header``, ``bad_header`` or ``content_type``.
    """
    found = {name: value for name, value in headers if value is not None}

    def text(name: str) -> str:
        if name not in found:
            raise PoisonMessageError("no_header", f"header {name} is missing")
        try:
            return found[name].decode()
        except UnicodeDecodeError as exc:
            raise PoisonMessageError("bad_header", f"header {name} is not UTF-8") from exc

    def number(name: str, least: int) -> int:
        digits = text(name)
        # Not isdecimal() alone: that also takes digits of other scripts.
        if not (digits.isascii() and digits.isdecimal()) or not least <= int(digits) < 2**63:
            raise PoisonMessageError("bad_header", f"header {name} is not a number: {digits[:40]}")
        return int(digits)

    content_type = text("content-type")
    if content_type != CONTENT_TYPE:
        raise PoisonMessageError("content_type", f"{content_type[:80]} is not {CONTENT_TYPE}")
    header = Header(
        stream=text("rackpulse-stream"),
        version=number("rackpulse-version", 1),
        collector_id=text("rackpulse-collector"),
        seq=number("rackpulse-seq", 1),
        sent_at_ms=number("rackpulse-sent-at", 0),
    )
    if not header.collector_id:
        raise PoisonMessageError("bad_header", "header rackpulse-collector is empty")
    return header


def decode(
    contracts: Contracts | Mapping[str, Stream],
    headers: Iterable[tuple[str, bytes | None]],
    value: bytes | None,
) -> Decoded:
    """Read a message into the wire schema of this version's contract.

    Columns that this version does not know are left out and named; columns that the sender
    does not know are NULL. The batch's buffers point into ``value``.

    Raises:
        PoisonMessageError: it can never be read; see also :func:`read_header` and
            :func:`~pipeline.bus.arrow_body.read_body`. Reasons of its own: ``no_value``,
            ``oversize``, ``unknown_stream``, ``wrong_contract``, ``identity_null``,
            ``time_out_of_range``.
        IncompatibleContractError: a known column came with another type.
    """
    header = read_header(headers)
    if header.stream not in contracts:
        raise PoisonMessageError("unknown_stream", f"no contract {header.stream[:80]}")
    if value is None:
        raise PoisonMessageError("no_value", "the message has no body")
    if len(value) > MAX_BYTES:
        raise PoisonMessageError("oversize", f"{len(value)} bytes, {MAX_BYTES} are allowed")
    stream = contracts[header.stream]
    batch, layout = read_body(value, MAX_ROWS)
    unknown: tuple[str, ...] = ()
    plan = _plan(stream)
    if layout not in plan.layouts:
        if batch.schema == plan.schema:
            if len(plan.layouts) < _MOST_LAYOUTS:
                plan.layouts.add(layout)
        else:
            try:
                batch, unknown = _known(stream, batch, header.version)
            except pa.ArrowException as exc:
                raise PoisonMessageError("invalid_values", str(exc)) from exc
    _check_rows(stream, batch)
    return Decoded(header, batch, unknown)


def _known(
    stream: Stream, batch: pa.RecordBatch, version: int
) -> tuple[pa.RecordBatch, tuple[str, ...]]:
    """The columns that the contract knows, in its order and types."""
    schema = _schema(stream)
    sent = set(batch.schema.names)
    missing = [c.name for c in stream.wire_columns if not c.nullable and c.name not in sent]
    if missing:
        raise PoisonMessageError("wrong_contract", f"{stream.name} needs {', '.join(missing)}")
    columns = []
    for column, wanted in zip(stream.wire_columns, schema, strict=True):
        if column.name not in sent:
            columns.append(pa.nulls(batch.num_rows, wanted.type))
            continue
        array = batch.column(column.name)
        if array.type != wanted.type:
            if not _same_meaning(array.type, wanted.type):
                raise IncompatibleContractError(
                    f"Stream {stream.name}, column {column.name}: the sender's contract version "
                    f"{version} has type {array.type}, this process has version {stream.version} "
                    f"with {arrow_type(column)}. Give the column of another type a new name in "
                    f"schemas/{stream.name}.toml, upgrade the sender or this process to that "
                    "contract, and start this process again; nothing was skipped."
                )
            array = _laid_out(array, wanted.type)
        columns.append(array)
    known = set(schema.names)
    unknown = tuple(name for name in batch.schema.names if name not in known)
    return pa.RecordBatch.from_arrays(columns, schema=schema), unknown


def _same_meaning(sent: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether two Arrow types hold the same values, only laid out differently."""
    if pa.types.is_null(sent):
        return True
    if pa.types.is_dictionary(sent):
        sent = sent.value_type
    if pa.types.is_dictionary(wanted):
        wanted = wanted.value_type
    if pa.types.is_large_string(sent) or pa.types.is_string_view(sent):
        sent = pa.string()
    return bool(sent == wanted)


def _laid_out(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), wanted)
    if not pa.types.is_dictionary(wanted):
        return array.cast(wanted)
    return array.cast(wanted.value_type).dictionary_encode().cast(wanted)


def _check_rows(stream: Stream, batch: pa.RecordBatch) -> None:
    plan = _plan(stream)
    for position, name, is_label in plan.identities:
        array = batch.column(position)
        # A dictionary can also hide a NULL among its values.
        if array.null_count or (is_label and array.dictionary.null_count):
            raise PoisonMessageError("identity_null", f"{name} holds NULL")
    for position, name in plan.times:
        array = batch.column(position)
        if len(array) > array.null_count:
            # The store's DateTime64 would refuse or wrap it, and the block with it.
            bounds = pc.min_max(array.cast(pa.int64()))
            if bounds["min"].as_py() < _EARLIEST_MS or bounds["max"].as_py() > _LATEST_MS:
                raise PoisonMessageError(
                    "time_out_of_range", f"{name} lies outside the years 2000 to 2100"
                )
