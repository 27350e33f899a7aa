"""JSON rows at the edge: each bad one is answered, and costs no other."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.bus.codec import split
from pipeline.bus.json_edge import BodyError, accept_rows, publish_json, row_model, rows_of
from pipeline.bus.publisher import Publisher
from pipeline.settings import Settings
from pipeline.streams import load_contracts
from pipeline.streams.arrow import wire_schema

CONTRACTS = load_contracts()
GPU = CONTRACTS["gpu"]
MODEL = row_model(GPU)

GOOD: dict[str, Any] = {
    "cluster": "main",
    "source": "dcgm",
    "sampled_at": "2026-11-30T12:00:00.250Z",
    "gpu_uuid": "GPU-1",
    "gpu_instance_id": "",
    "rack": "rack-01",
    "power_w": 704.5,
    "tray": 3,
}


def test_a_good_row_becomes_arrow() -> None:
    accepted = accept_rows(GPU, [GOOD], model=MODEL)
    assert (accepted.rejected, accepted.errors) == (0, ())
    assert accepted.table.schema == wire_schema(GPU)
    (row,) = accepted.table.to_pylist()
    assert row["sampled_at"] == datetime(2026, 11, 30, 12, 0, 0, 250_000, tzinfo=UTC)
    assert (row["power_w"], row["tray"], row["rack"]) == (704.5, 3, "rack-01")
    assert row["leaf"] is None
    assert [key for key, _ in split(GPU, accepted.table)] == ["rack-01"]


@pytest.mark.parametrize(
    ("change", "column", "reason"),
    [
        ({"gpu_uuid": None}, "gpu_uuid", "wrong_type"),
        ({"gpu_uuid": 7}, "gpu_uuid", "wrong_type"),
        ({"power_w": "704.5"}, "power_w", "wrong_type"),
        ({"power_w": True}, "power_w", "wrong_type"),
        ({"power_w": 1e9}, "power_w", "out_of_range"),
        ({"power_w": -5}, "power_w", "out_of_range"),
        ({"tray": 3.5}, "tray", "wrong_type"),
        ({"tray": 256}, "tray", "out_of_range"),
        ({"tray": -1}, "tray", "out_of_range"),
        ({"no_such": 1}, "no_such", "unknown_column"),
        ({"kafka_offset": 1}, "kafka_offset", "unknown_column"),
        ({"sampled_at": "2026-11-30T12:00:00"}, "sampled_at", "bad_time"),
        ({"sampled_at": 1_796_040_000}, "sampled_at", "bad_time"),
        ({"sampled_at": "1796040000"}, "sampled_at", "bad_time"),
        ({"sampled_at": "1999-01-01T00:00:00Z"}, "sampled_at", "bad_time"),
        ({"sampled_at": "yesterday"}, "sampled_at", "bad_time"),
        ({"rack": "\ud800"}, "rack", "wrong_type"),
        ({"rack": "r" * 100_001}, "rack", "too_long"),
    ],
)
def test_a_bad_row_is_answered(change: dict[str, Any], column: str, reason: str) -> None:
    accepted = accept_rows(GPU, [GOOD, {**GOOD, **change}, GOOD], model=MODEL)
    assert accepted.table.num_rows == 2
    assert accepted.rejected == 1
    assert [(e.index, e.column, e.reason) for e in accepted.errors] == [(1, column, reason)]


def test_a_missing_identity_is_named_and_may_have_a_default() -> None:
    without = {name: cell for name, cell in GOOD.items() if name not in ("cluster", "gpu_uuid")}
    accepted = accept_rows(GPU, [without], defaults={"cluster": "main"}, model=MODEL)
    assert [(e.column, e.reason) for e in accepted.errors] == [("gpu_uuid", "missing")]


def test_every_column_of_every_stream_has_a_type() -> None:
    for stream in CONTRACTS.values():
        fields = row_model(stream).model_fields
        assert list(fields) == [column.name for column in stream.wire_columns]
        required = {name for name, field in fields.items() if field.is_required()}
        assert required == {c.name for c in stream.wire_columns if not c.nullable}


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (b"", 0),
        (b"[]", 0),
        (json.dumps([GOOD, GOOD]).encode(), 2),
        (json.dumps(GOOD).encode(), 1),
        (json.dumps(GOOD, indent=2).encode(), 1),
        (f"{json.dumps(GOOD)}\n\n{json.dumps(GOOD)}\r\n".encode(), 2),
        (b"\xef\xbb\xbf" + json.dumps([GOOD]).encode(), 1),
    ],
)
def test_bodies(body: bytes, count: int) -> None:
    assert accept_rows(GPU, rows_of(body), model=MODEL).table.num_rows == count


def test_a_bad_line_costs_that_line() -> None:
    lines = [json.dumps(GOOD), "{broken", '{"power_w": NaN}', "7", '{"a": 1, "a": 2}']
    accepted = accept_rows(GPU, rows_of("\n".join(lines).encode()), model=MODEL)
    assert accepted.table.num_rows == 1
    assert [(e.index, e.reason) for e in accepted.errors] == [
        (1, "not_json"), (2, "not_json"), (3, "not_an_object"), (4, "not_json"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\xff[]", "not_utf8"),
        (b"[1, 2", "not_json"),
        (b"[" * 100_000, "not_json"),
        (b"[" + b" " * 16_000_000 + b"]", "too_large"),
        (b"[" + b"1," * 50_000 + b"1]", "too_large"),
    ],
)
def test_bodies_that_cannot_be_read(body: bytes, reason: str) -> None:
    with pytest.raises(BodyError) as caught:
        rows_of(body)
    assert caught.value.reason == reason


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner,
                                                                max_size=2),
    max_leaves=4,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(JSON | st.dictionaries(st.sampled_from(sorted(GOOD)), JSON, max_size=8).map(
    lambda changes: {**GOOD, **changes}), max_size=4))  # fmt: skip
def test_no_json_breaks_it(rows: list[Any]) -> None:
    accepted = accept_rows(GPU, rows, model=MODEL)
    assert accepted.table.num_rows + accepted.rejected == len(rows)
    assert {error.index for error in accepted.errors} <= set(range(len(rows)))
    assert len({error.index for error in accepted.errors}) == accepted.rejected
    list(split(GPU, accepted.table))


def test_accepted_rows_are_spooled(tmp_path: Path) -> None:
    publisher = Publisher(Settings(state_dir=tmp_path), CONTRACTS, "edge", tmp_path / "spool")
    body = json.dumps([GOOD, {**GOOD, "power_w": "x"}]).encode()
    answer = publish_json(publisher, CONTRACTS, "gpu", body)
    assert (answer["accepted"], answer["rejected"]) == (1, 1)
    assert answer["errors"][0]["column"] == "power_w"
    json.dumps(answer)
    assert publisher.stats.spooled_rows == 1
    with pytest.raises(KeyError):
        publish_json(publisher, CONTRACTS, "no_such", body)
    publisher.close(timeout_s=0)
