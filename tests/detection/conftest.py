"""Shared parts: an engine in memory, small rows, and the folder of reference data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from clickhouse_connect.driver.client import Client

from pipeline.incidents.evaluation.labelled import scratch_store
from pipeline.settings import Settings, load_settings
from pipeline.streams import Contracts, load_contracts
from pipeline.streams.arrow import conform

START = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return load_settings(state_dir=tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def store(settings: Settings) -> Iterator[Client]:
    """A ClickHouse engine in memory with all tables."""
    with scratch_store(settings) as client:
        yield client


@pytest.fixture(scope="session")
def reference_data() -> Path:
    """Labelled sets that nobody here made: RACKPULSE_DATA, else shared/data beside the checkout."""
    root = Path(__file__).resolve().parents[2]
    folder = Path(os.environ.get("RACKPULSE_DATA", root.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no reference data at {folder}: set RACKPULSE_DATA")
    return folder


def put_rows(client: Client, stream: str, rows: list[dict[str, Any]]) -> None:
    """Store hand-made rows, in place of all that the table held.

    Missing identity columns are filled in; a row without ``sampled_at`` is one minute in.
    """
    contracts: Contracts = load_contracts()
    contract = contracts[stream]
    full = []
    for row in rows:
        base: dict[str, Any] = {"cluster": "main", "source": "test", "sampled_at": START}
        for column in contract.wire_columns:
            if column.kind == "identity" and column.name not in base:
                base[column.name] = "" if column.type in ("string", "label") else 0
        full.append({**base, **row})
    names = list(dict.fromkeys(name for row in full for name in row))
    table = conform(
        contract, pa.table({name: pa.array([row.get(name) for row in full]) for name in names})
    )
    client.command(f"TRUNCATE TABLE telemetry.{stream}")
    table = table.append_column("ingested_at", table.column("sampled_at"))
    client.insert_arrow(f"telemetry.{stream}", table)


def at(seconds: float) -> datetime:
    """A time after the start of the hand-made rows."""
    return START + timedelta(seconds=seconds)
