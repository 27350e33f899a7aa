"""Reading resources in tests."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline.collectors.page import Page, Reading
from pipeline.collectors.readers import redfish
from pipeline.streams import load_contracts

AT = datetime(2026, 1, 1, tzinfo=UTC)
CONTRACTS = load_contracts()


def read(body: bytes | dict[str, Any] | list[Any], target: str = "bmc") -> Reading:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return redfish.read(Page(raw, target, AT, "test"), CONTRACTS)


def read_file(path: Path) -> Reading:
    return read(path.read_bytes())


def rows(reading: Reading, stream: str) -> list[dict[str, Any]]:
    return reading.tables[stream].to_pylist() if stream in reading.tables else []


def only(reading: Reading, stream: str) -> dict[str, Any]:
    """The one row there is, in the one stream that there is."""
    assert list(reading.tables) == [stream]
    found = rows(reading, stream)
    assert len(found) == 1
    return found[0]


def close(value: float) -> Any:
    return pytest.approx(value, rel=1e-6)
