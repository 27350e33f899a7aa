from __future__ import annotations

from collections.abc import Iterator

import pytest
from clickhouse_connect.driver.client import Client

from tests.support.store import RunningStore


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStore]:
    with RunningStore(tmp_path_factory.mktemp("alerts")) as running:
        running.migrate()
        yield running


@pytest.fixture
def client(store: RunningStore) -> Iterator[Client]:
    """A client on empty tables."""
    with store.client() as found:
        for table in ("incident_transition", "alert_delivery", "alert_destination"):
            found.command(f"TRUNCATE TABLE telemetry.{table}")
        yield found
