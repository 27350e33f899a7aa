"""How often the engine writes rows anew when it merges the parts of a stream's table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from clickhouse_connect.driver.client import Client

from pipeline.streams import load_contracts
from pipeline.streams.ddl import MERGED_AT_ONCE, create_table_sql
from tests.support.store import RunningStore
from tests.support.wait import wait_until

_INSERT = (
    "INSERT INTO telemetry.event (cluster, sampled_at, ingested_at, message)"
    " SELECT 'merges', now64(3), now64(3), randomPrintableASCII(100) FROM numbers({rows:UInt32})"
)


@pytest.fixture
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with (
        RunningStore(tmp_path_factory.mktemp("merges")) as store,
        store.client() as connected,
    ):
        connected.command("CREATE DATABASE IF NOT EXISTS telemetry")
        connected.command(create_table_sql(load_contracts()["event"]))
        yield connected


def _at_rest(client: Client) -> bool:
    """Whether no merge runs; each look gives the engine the time to start one."""
    return client.query("SELECT count() FROM system.merges").result_rows[0][0] == 0


def test_a_large_part_is_not_written_anew_with_every_small_insert(client: Client) -> None:
    client.command(_INSERT, parameters={"rows": 50_000})
    for _ in range(MERGED_AT_ONCE + 5):
        client.command(_INSERT, parameters={"rows": 5})
        wait_until(lambda: _at_rest(client), "the merge to end")
    level, rows = client.query(
        "SELECT level, rows FROM system.parts WHERE active AND database = 'telemetry'"
        " AND table = 'event' ORDER BY rows DESC LIMIT 1"
    ).result_rows[0]
    assert rows >= 50_000
    # Level 0 is the insert itself; the small parts that came since make for one merge at most.
    assert level <= 1
