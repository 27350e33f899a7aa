"""Minutes: computed from raw rows, replaced as a whole, also for late rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from clickhouse_connect.driver.client import Client

from pipeline.store import rollups
from pipeline.streams import Contracts, Stream
from tests.support.store import RunningStore

START = datetime(2027, 1, 1, tzinfo=UTC)
END = START + timedelta(hours=1)
CLUSTER = "minutes"


@pytest.fixture
def gpu(contracts: Contracts) -> Stream:
    return contracts["gpu"]


@pytest.fixture(scope="module")
def migrated(store: RunningStore) -> RunningStore:
    store.migrate()
    return store


@pytest.fixture
def raw(migrated: RunningStore, gpu: Stream) -> Iterator[Client]:
    with migrated.client() as client:
        client.command("TRUNCATE TABLE telemetry.gpu")
        client.command(f"TRUNCATE TABLE {rollups.table_name(gpu)}")
        yield client
        client.command("TRUNCATE TABLE telemetry.gpu")


def _rows(client: Client, rows: list[tuple[object, ...]], uuid: str = "GPU-1") -> None:
    """Rows of (second, power, energy in mJ, rack)."""
    client.insert(
        "telemetry.gpu",
        [
            [CLUSTER, "dcgm", START + timedelta(seconds=second), uuid, "", rack, power, energy,
             datetime.now(UTC)]
            for second, power, energy, rack in rows  # type: ignore[misc]
        ],
        column_names=["cluster", "source", "sampled_at", "gpu_uuid", "gpu_instance_id", "rack",
                      "power_w", "energy_mj", "ingested_at"],
    )  # fmt: skip


def _minutes(client: Client) -> list[tuple[object, ...]]:
    return list(
        client.query(
            "SELECT gpu_uuid, toUnixTimestamp(minute) - {start:UInt32}, samples, rack, power_w_avg,"
            " power_w_min, power_w_max, energy_mj_increase, gpu_temp_c_avg"
            " FROM telemetry.gpu_minute ORDER BY gpu_uuid, minute",
            parameters={"start": int(START.timestamp())},
        ).result_rows
    )


def _refresh(client: Client, gpu: Stream, second: int = 0) -> list[datetime]:
    version = END + timedelta(seconds=second)
    return rollups.refresh(client, gpu, START, END, version=version)


def test_minutes_of_gauges_and_counters(raw: Client, gpu: Stream) -> None:
    _rows(raw, [(0, 100.0, 1000, "r1"), (30, 300.0, 4000, "r1"), (60, 500.0, 9000, "r2")])
    assert _refresh(raw, gpu) == [START, START + timedelta(minutes=1)]
    # The first increase of the second minute goes from the last row of the first one; a
    # reading that never came is NULL.
    assert _minutes(raw) == [
        ("GPU-1", 0, 2, "r1", 200.0, 100.0, 300.0, 3000.0, None),
        ("GPU-1", 60, 1, "r2", 500.0, 500.0, 500.0, 5000.0, None),
    ]


def test_nothing_is_computed_twice_and_a_late_row_replaces_its_minute(
    raw: Client, gpu: Stream
) -> None:
    _rows(raw, [(0, 100.0, 0, "r1"), (60, 100.0, 0, "r1")])
    assert len(_refresh(raw, gpu)) == 2
    assert _refresh(raw, gpu, 1) == []
    _rows(raw, [(30, 400.0, 0, "r1")])
    assert _refresh(raw, gpu, 2) == [START]
    assert [row[:5] for row in _minutes(raw)] == [
        ("GPU-1", 0, 2, "r1", 250.0),
        ("GPU-1", 60, 1, "r1", 100.0),
    ]


def test_an_entity_that_comes_late_joins_its_minute(raw: Client, gpu: Stream) -> None:
    _rows(raw, [(0, 100.0, 0, "r1")])
    _refresh(raw, gpu)
    _rows(raw, [(1, 900.0, 0, "r1")], "GPU-2")
    assert _refresh(raw, gpu, 1) == [START]
    assert [(row[0], row[4]) for row in _minutes(raw)] == [("GPU-1", 100.0), ("GPU-2", 900.0)]


def test_computing_a_minute_twice_is_as_once(raw: Client, gpu: Stream) -> None:
    _rows(raw, [(0, 100.0, 0, "r1"), (10, 200.0, 7, "r1")])
    _refresh(raw, gpu)
    once = _minutes(raw)
    rollups._compute(raw, gpu, [START], END)
    rollups._compute(raw, gpu, [START], END + timedelta(seconds=5))
    assert _minutes(raw) == once


def test_a_killed_computation_leaves_nothing_of_a_minute(raw: Client, gpu: Stream) -> None:
    """One minute is one part, so it is there whole or not at all."""
    raw.command(
        "INSERT INTO telemetry.gpu (cluster, source, sampled_at, gpu_uuid, gpu_instance_id,"
        " ingested_at) SELECT 'minutes', 'dcgm', '2027-01-01 00:00:05', toString(number), '',"
        " now() FROM numbers(100000)"
    )
    _refresh(raw, gpu)
    parts = raw.query(
        f"SELECT countDistinct(_part), count() FROM {rollups.table_name(gpu)}"
    ).result_rows
    assert parts == [(1, 100_000)]


def test_rows_that_retention_took_do_not_empty_their_minute(raw: Client, gpu: Stream) -> None:
    _rows(raw, [(0, 100.0, 0, "r1")])
    _refresh(raw, gpu)
    raw.command("TRUNCATE TABLE telemetry.gpu")
    assert _refresh(raw, gpu, 1) == []
    assert [row[:3] for row in _minutes(raw)] == [("GPU-1", 0, 1)]


def test_reset_and_misreading_are_those_of_the_rate_views(raw: Client, gpu: Stream) -> None:
    energies = [1000, 5000, 200, 190, 400]
    _rows(raw, [(10 * i, 1.0, energy, "r1") for i, energy in enumerate(energies)])
    _refresh(raw, gpu)
    # 4000 more, a reset that counts 200, a misreading that counts nothing, 210 more.
    assert [row[7] for row in _minutes(raw)] == [4410.0]


@pytest.mark.parametrize("name", rollups.ROLLED_UP)
def test_every_rolled_up_stream_computes(raw: Client, contracts: Contracts, name: str) -> None:
    assert rollups.refresh(raw, contracts[name], START, END, version=END) == []
    rollups._compute(raw, contracts[name], [START], END)


def test_the_analyst_reads_minutes(raw: Client, store: RunningStore, gpu: Stream) -> None:
    _rows(raw, [(0, 100.0, 0, "r1")])
    _refresh(raw, gpu)
    with store.client(role="analyst") as analyst:
        assert analyst.query("SELECT count() FROM gpu_minute").result_rows == [(1,)]
