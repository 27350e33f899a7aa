"""The codec: what is sent is what is read, and nothing else is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.bus.arrow_body import write_body
from pipeline.bus.codec import (
    MAX_BYTES,
    MAX_ROWS,
    Message,
    concat,
    decode,
    encode,
    encoded_size,
    read_header,
    split,
)
from pipeline.errors import IncompatibleContractError, PoisonMessageError
from pipeline.streams import Column, Contracts, Stream, load_contracts
from pipeline.streams.arrow import arrow_type, wire_schema
from tests.bus.rows import table

CONTRACTS = load_contracts()
SENT_AT = datetime(2026, 11, 30, 12, 0, 1, 234_000, tzinfo=UTC)
GPU = CONTRACTS["gpu"]

quick = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def message(stream: Stream, batch: pa.RecordBatch, seq: int = 7) -> Message:
    return encode(stream, batch, collector_id="col-1", seq=seq, sent_at=SENT_AT)


def only(stream: Stream, rows: pa.Table) -> Message:
    ((_, batch),) = split(stream, rows)
    return message(stream, batch)


def headers_with(original: Message, **changes: bytes | None) -> list[tuple[str, bytes]]:
    named = {name.replace("_", "-"): value for name, value in changes.items()}
    kept = [(name, value) for name, value in original.headers if name not in named]
    return kept + [(name, value) for name, value in named.items() if value is not None]


def cells(column: Column) -> st.SearchStrategy[Any]:
    match column.type:
        case "string" | "label":
            return st.text(max_size=12)
        case "bool":
            return st.booleans()
        case "timestamp_ms":
            span = 99 * 365 * 86_400_000
            return st.integers(0, span).map(
                lambda ms: datetime(2000, 1, 2, tzinfo=UTC) + timedelta(milliseconds=ms)
            )
        case "float32" | "float64" as kind:
            return st.floats(width=int(kind[5:]), allow_nan=False)
        case integer:
            bounds = np.iinfo(integer)
            return st.integers(int(bounds.min), int(bounds.max))


@st.composite
def tables(draw: st.DrawFn) -> tuple[Stream, pa.Table]:
    """Up to 12 rows of any stream; few entities and keys, so that they meet."""
    stream = CONTRACTS[draw(st.sampled_from(sorted(CONTRACTS)))]
    rows = draw(st.integers(1, 12))
    arrays = []
    for column in stream.wire_columns:
        cell = cells(column)
        if column.name in stream.entity or column.name in stream.key:
            few = draw(st.lists(cell, min_size=1, max_size=3))
            cell = st.sampled_from(few)
        if column.nullable:
            cell = st.none() | cell
        drawn = draw(st.lists(cell, min_size=rows, max_size=rows))
        arrays.append(pa.array(drawn, arrow_type(column)))
    return stream, pa.table(arrays, schema=wire_schema(stream))


def as_rows(found: Sequence[pa.RecordBatch] | pa.Table) -> Counter[str]:
    listed = found.to_pylist() if isinstance(found, pa.Table) else [
        row for batch in found for row in batch.to_pylist()
    ]  # fmt: skip
    return Counter(repr(row) for row in listed)


# ---------------------------------------------------------------- what is sent is what is read


@quick
@given(tables(), st.integers(1, 5), st.integers(1, 2**63 - 1))
def test_every_row_arrives_once_with_its_key(
    drawn: tuple[Stream, pa.Table], max_rows: int, seq: int
) -> None:
    stream, rows = drawn
    received = []
    for key, batch in split(stream, rows, max_rows=max_rows):
        assert 1 <= batch.num_rows <= max_rows
        sent = message(stream, batch, seq)
        assert sent.key.decode() == key
        assert len(sent.value) <= encoded_size(batch)
        decoded = decode(CONTRACTS, sent.headers, sent.value)
        assert (decoded.header.seq, decoded.header.stream) == (seq, stream.name)
        assert decoded.unknown_columns == ()
        assert decoded.batch.schema == wire_schema(stream)
        for row in decoded.batch.to_pylist():
            known = [row[name] for name in stream.key if row[name]]
            assert (known[0] if known else "unplaced") == key
        received.append(decoded.batch)
    assert as_rows(received) == as_rows(rows)
    assert as_rows(concat(received)) == as_rows(rows)


@quick
@given(tables(), st.integers(1, 6))
def test_an_entity_is_cut_only_when_it_alone_is_too_large(
    drawn: tuple[Stream, pa.Table], max_rows: int
) -> None:
    stream, rows = drawn
    sizes: Counter[tuple[Any, ...]] = Counter()
    pieces: dict[tuple[Any, ...], set[int]] = {}
    for number, (key, batch) in enumerate(split(stream, rows, max_rows=max_rows)):
        for row in batch.select(list(stream.entity)).to_pylist():
            entity = (key, *row.values())
            sizes[entity] += 1
            pieces.setdefault(entity, set()).add(number)
    for entity, numbers in pieces.items():
        assert len(numbers) == 1 or sizes[entity] > max_rows


def test_headers_are_readable_before_the_body() -> None:
    sent = only(GPU, table(GPU, 3))
    header = read_header(sent.headers)
    assert (header.stream, header.version, header.collector_id, header.seq) == (
        "gpu", GPU.version, "col-1", 7,
    )  # fmt: skip
    assert header.sent_at_ms == 1_796_040_001_234  # date -u -d 2026-11-30T12:00:01.234Z +%s%3N
    assert dict(sent.headers)["content-type"] == b"application/vnd.apache.arrow.stream"


def test_rows_keep_their_order_when_nothing_is_cut() -> None:
    rows = table(GPU, 10, entities=3)
    ((key, batch),) = split(GPU, rows)
    assert key == "rack-01"
    assert batch.to_pylist() == rows.to_pylist()


def test_the_first_known_key_column_is_the_key() -> None:
    rows = table(GPU, 4, rack=["r1", None, "", None], host=["h", "h2", "h3", None],
                 target=["t", "t", "t", None])  # fmt: skip
    assert [key for key, _ in split(GPU, rows)] == ["r1", "h2", "h3", "unplaced"]


def test_a_large_table_is_cut_by_rows_and_by_bytes() -> None:
    rows = table(GPU, 12_000, entities=6_000)
    found = list(split(GPU, rows))
    sent = [message(GPU, batch) for _, batch in found]
    assert sum(batch.num_rows for _, batch in found) == 12_000
    assert max(len(each.value) for each in sent) <= MAX_BYTES
    assert max(batch.num_rows for _, batch in found) <= MAX_ROWS
    # Not many more than are needed: a message is well filled.
    assert len(sent) <= 2 * sum(len(each.value) for each in sent) / MAX_BYTES + 1


def test_a_message_carries_only_its_own_labels() -> None:
    rows = table(GPU, 4, rack=["r1", "r1", "r2", "r2"], host=["a", "b", "c", "d"])
    for key, batch in split(GPU, rows):
        hosts = batch.column("host").dictionary.to_pylist()
        assert hosts == {"r1": ["a", "b"], "r2": ["c", "d"]}[key]


def test_labels_stay_dictionaries_and_are_unified() -> None:
    batches = [batch for rack in ("r1", "r2", "r1")
               for _, batch in split(GPU, table(GPU, 2, key=rack))]  # fmt: skip
    joined = concat(batches)
    assert joined.schema == wire_schema(GPU)
    (rack,) = joined.column("rack").chunks
    assert rack.dictionary.to_pylist() == ["r1", "r2"]
    assert rack.to_pylist() == ["r1", "r1", "r2", "r2", "r1", "r1"]


def test_one_row_that_is_too_large_costs_that_row() -> None:
    event = CONTRACTS["event"]
    rows = table(event, 3, entity_id=["a", "b" * 900_000, "c"])
    refused: list[pa.RecordBatch] = []
    kept = [batch for _, batch in split(event, rows, on_oversize=refused.append)]
    assert [name for batch in kept for name in batch["entity_id"].to_pylist()] == ["a", "c"]
    assert [batch.num_rows for batch in refused] == [1]
    with pytest.raises(ValueError, match="one row takes"):
        list(split(event, rows))


def test_an_empty_table_gives_no_message() -> None:
    assert list(split(GPU, table(GPU, 0))) == []
    with pytest.raises(ValueError, match="never sent"):
        message(GPU, table(GPU, 1).to_batches()[0].slice(0, 0))


def test_an_identity_that_is_null_is_refused_before_it_is_sent() -> None:
    rows = pa.table({name: table(GPU, 2).column(name) for name in GPU.row_identity})
    cells = pa.array(["GPU-1", None])
    rows = rows.set_column(rows.column_names.index("gpu_uuid"), "gpu_uuid", cells)
    with pytest.raises(ValueError, match="gpu_uuid holds NULL"):
        list(split(GPU, rows))


# ---------------------------------------------------------------- contract versions


def other_contract(**columns: pa.Array) -> pa.RecordBatch:
    """Two rows of ``gpu`` with columns added, replaced or (None) taken out."""
    batch = table(GPU, 2).to_batches()[0]
    kept = {name: batch.column(name) for name in batch.schema.names}
    kept.update(columns)
    return pa.record_batch({name: array for name, array in kept.items() if array is not None})


def test_a_newer_version_is_taken_as_far_as_it_is_known() -> None:
    body = write_body(other_contract(new_w=pa.array([1.0, 2.0]), newer=pa.array(["a", "b"])))
    sent = headers_with(only(GPU, table(GPU, 2)), rackpulse_version=b"9")
    decoded = decode(CONTRACTS, sent, body)
    assert decoded.unknown_columns == ("new_w", "newer")
    assert decoded.header.version == 9
    assert decoded.batch.to_pylist() == table(GPU, 2).to_pylist()


def test_a_column_that_the_sender_lacks_is_null() -> None:
    body = write_body(other_contract(power_w=None))
    decoded = decode(CONTRACTS, only(GPU, table(GPU, 2)).headers, body)
    assert decoded.batch.column("power_w").to_pylist() == [None, None]
    assert decoded.batch.schema == wire_schema(GPU)


def test_columns_of_the_writer_are_not_taken_from_a_message() -> None:
    body = write_body(other_contract(kafka_offset=pa.array([1, 2], pa.uint64())))
    assert decode(CONTRACTS, only(GPU, table(GPU, 2)).headers, body).unknown_columns == (
        "kafka_offset",
    )


@pytest.mark.parametrize("version", [b"1", b"9"])
def test_a_changed_type_waits_for_a_person(version: bytes) -> None:
    body = write_body(other_contract(power_w=pa.array(["700", "701"])))
    sent = headers_with(only(GPU, table(GPU, 2)), rackpulse_version=version)
    with pytest.raises(IncompatibleContractError, match=r"power_w.*schemas/gpu.toml"):
        decode(CONTRACTS, sent, body)


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["x", "y"]),
        pa.array(["x", "y"], pa.large_string()),
        pa.array(["x", "y"], pa.string_view()),
        pa.array(["x", "y"], pa.dictionary(pa.int8(), pa.string())),
        pa.array(["x", "y"], pa.dictionary(pa.uint16(), pa.large_string())),
    ],
    ids=lambda array: str(array.type),
)
def test_another_layout_of_the_same_values_is_no_other_type(array: pa.Array) -> None:
    body = write_body(other_contract(host=array))
    decoded = decode(CONTRACTS, only(GPU, table(GPU, 2)).headers, body)
    assert decoded.batch.column("host").to_pylist() == ["x", "y"]
    assert decoded.batch.schema == wire_schema(GPU)


def test_a_column_of_type_null_is_a_missing_one() -> None:
    body = write_body(other_contract(host=pa.nulls(2), power_w=pa.nulls(2)))
    decoded = decode(CONTRACTS, only(GPU, table(GPU, 2)).headers, body)
    assert decoded.batch.column("host").to_pylist() == [None, None]
    assert decoded.batch.column("power_w").to_pylist() == [None, None]


# ---------------------------------------------------------------- what can never be read


def poisoned(headers: Any, body: bytes | None, contracts: Contracts = CONTRACTS) -> str:
    with pytest.raises(PoisonMessageError) as caught:
        decode(contracts, headers, body)
    return caught.value.reason


@quick
@given(st.data(), tables())
def test_a_body_cut_anywhere_is_poison(data: st.DataObject, drawn: tuple[Stream, pa.Table]) -> None:
    stream, rows = drawn
    sent = message(stream, next(iter(split(stream, rows)))[1])
    cut = data.draw(st.integers(0, len(sent.value) - 1))
    assert poisoned(sent.headers, sent.value[:cut]) in {
        "truncated", "not_arrow", "invalid_values",
    }  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_damaged_bytes_never_raise_anything_else(data: st.DataObject) -> None:
    sent = only(GPU, table(GPU, 5))
    damaged = bytearray(sent.value)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(damaged) - 1))
        damaged[position] ^= data.draw(st.integers(1, 255))
    try:
        decoded = decode(CONTRACTS, sent.headers, bytes(damaged))
    except (PoisonMessageError, IncompatibleContractError):
        return
    assert decoded.batch.schema == wire_schema(GPU)
    decoded.batch.validate(full=True)


@quick
@given(st.binary(max_size=400))
def test_other_bytes_are_poison(body: bytes) -> None:
    assert poisoned(only(GPU, table(GPU, 1)).headers, body) in {"not_arrow", "truncated"}


def stream_of(*batches: pa.RecordBatch, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)
    ) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def test_each_kind_of_poison_has_its_word() -> None:
    good = only(GPU, table(GPU, 2))
    batch = table(GPU, 2).to_batches()[0]
    plain = good.headers
    assert poisoned(plain, None) == "no_value"
    assert poisoned(plain, b"") == "not_arrow"
    assert poisoned(plain, b'{"gpu_uuid": "GPU-1"}') == "not_arrow"
    assert poisoned(plain, good.value[:-1]) == "truncated"
    assert poisoned(plain, good.value[: len(good.value) // 2]) == "truncated"
    assert poisoned(plain, write_body(batch.slice(0, 0))) == "no_rows"
    assert poisoned(plain, stream_of(batch, batch)) == "not_one_batch"
    assert poisoned(plain, good.value + good.value) == "trailing_bytes"
    assert poisoned(plain, b"\0" * (MAX_BYTES + 1)) == "oversize"
    assert poisoned(plain, stream_of(batch, compression="zstd")) == "compressed_body"
    assert poisoned(plain, stream_of(batch, compression="lz4")) == "compressed_body"
    event = CONTRACTS["event"]
    many = pa.record_batch({"x": pa.nulls(MAX_ROWS + 1, pa.int8())})
    assert poisoned(plain, write_body(many)) == "too_many_rows"
    assert poisoned(plain, write_body(table(event, 2).to_batches()[0])) == "wrong_contract"
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    assert poisoned(plain, write_body(twice)) == "duplicate_column"


def test_identities_and_times_are_checked() -> None:
    plain = only(GPU, table(GPU, 2)).headers
    null = other_contract(gpu_uuid=pa.array(["GPU-1", None]))
    assert poisoned(plain, write_body(null)) == "identity_null"
    hidden = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["dcgm", None]))
    assert poisoned(plain, write_body(other_contract(source=hidden))) == "identity_null"
    for year in (1970, 1999, 2101, 9999):
        far = pa.array([datetime(year, 6, 1, tzinfo=UTC)] * 2, pa.timestamp("ms", tz="UTC"))
        assert poisoned(plain, write_body(other_contract(sampled_at=far))) == "time_out_of_range"
    beyond = pa.array([2**62, 0], pa.int64()).cast(pa.timestamp("ms", tz="UTC"))
    assert poisoned(plain, write_body(other_contract(sampled_at=beyond))) == "time_out_of_range"


def test_values_that_are_not_valid_are_poison() -> None:
    plain = only(GPU, table(GPU, 2)).headers
    offsets = pa.py_buffer(np.array([0, 2, 4], np.int32))
    bad_text = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"\xff\xfeab")])
    assert poisoned(plain, write_body(other_contract(gpu_uuid=bad_text))) == "invalid_values"
    far_index = pa.DictionaryArray.from_arrays(
        pa.array([0, 9], pa.int32()), pa.array(["a"]), safe=False
    )
    assert poisoned(plain, write_body(other_contract(host=far_index))) == "invalid_values"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"content_type": None}, "no_header"),
        ({"content_type": b"application/json"}, "content_type"),
        ({"rackpulse_stream": None}, "no_header"),
        ({"rackpulse_stream": b"\xff"}, "bad_header"),
        ({"rackpulse_stream": b"no_such_stream"}, "unknown_stream"),
        ({"rackpulse_version": b"one"}, "bad_header"),
        ({"rackpulse_version": b"0"}, "bad_header"),
        ({"rackpulse_version": b"-1"}, "bad_header"),
        ({"rackpulse_version": "٣".encode()}, "bad_header"),
        ({"rackpulse_collector": b""}, "bad_header"),
        ({"rackpulse_seq": b"0"}, "bad_header"),
        ({"rackpulse_seq": str(2**63).encode()}, "bad_header"),
        ({"rackpulse_sent_at": None}, "no_header"),
    ],
)
def test_bad_headers(changes: dict[str, bytes | None], reason: str) -> None:
    good = only(GPU, table(GPU, 1))
    assert poisoned(headers_with(good, **changes), good.value) == reason


def test_a_header_without_a_value_is_missing() -> None:
    good = only(GPU, table(GPU, 1))
    assert poisoned([*good.headers[1:], ("content-type", None)], good.value) == "no_header"
