"""The store as other parts use it: start, migrate, read, write, stop."""

from __future__ import annotations

from pathlib import Path

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from pipeline.streams import Contracts
from tests.support.store import RunningStore


def test_migrates_and_keeps_rows_over_a_restart(tmp_path: Path, contracts: Contracts) -> None:
    store = RunningStore(tmp_path)
    with store:
        done = store.migrate()
        assert {f"created telemetry.{name}" for name in contracts} <= set(done)
        assert store.migrate() == []
        with store.client() as client:
            client.command("CREATE TABLE t (a UInt64) ENGINE = MergeTree ORDER BY a")
            written = client.insert("t", [[1], [2]], column_names=["a"]).written_rows
            assert written == 2
    with store, store.client() as client:
        assert client.query("SELECT a FROM t ORDER BY a").result_rows == [(1,), (2,)]


def test_analyst_reads_and_may_not_write(tmp_path: Path) -> None:
    with RunningStore(tmp_path) as store, store.client(role="analyst") as client:
        assert client.query("SELECT 1").result_rows == [(1,)]
        with pytest.raises(DatabaseError):
            client.command("CREATE TABLE t (a UInt64) ENGINE = Memory")
