"""Reading pages in tests."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline.collectors import Page, Reading, reader
from pipeline.streams import load_contracts
from pipeline.streams.arrow import conform

AT = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
CONTRACTS = load_contracts()


def read(
    kind: str, body: bytes | str, *, target: str = "t", host: str | None = None, at: datetime = AT
) -> Reading:
    """What the reader of a kind makes of a page; every table fits its contract."""
    raw = body if isinstance(body, bytes) else body.encode()
    page = Page(raw, target, at, "test", host=host)
    reading = reader(kind).read(page, CONTRACTS)
    for stream, table in reading.tables.items():
        conformed = conform(CONTRACTS[stream], table)
        conformed.validate(full=True)
        keys = [CONTRACTS[stream].column(name).name for name in CONTRACTS[stream].row_identity]
        found = [tuple(row.values()) for row in conformed.select(keys).to_pylist()]
        assert len(found) == len(set(found)), f"{stream}: two rows of one identity"
    return reading


def read_file(kind: str, path: Path, **more: Any) -> Reading:
    more.setdefault("target", path.stem)
    return read(kind, path.read_bytes(), **more)


def rows(reading: Reading, stream: str) -> list[dict[str, Any]]:
    return reading.tables[stream].to_pylist() if stream in reading.tables else []


def only(reading: Reading, stream: str) -> dict[str, Any]:
    found = rows(reading, stream)
    assert len(found) == 1
    return found[0]


def said(row: dict[str, Any], *without: str) -> dict[str, Any]:
    """What a row says beside when, where and of whom."""
    base = {"cluster", "source", "sampled_at", "target", "host", *without}
    return {name: value for name, value in row.items() if name not in base and value is not None}


def close(value: float) -> Any:
    """Equal as a float32."""
    return pytest.approx(value, rel=1e-6)
