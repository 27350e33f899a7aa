"""Take-over and fenced insert against the real engine."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pyarrow as pa
import pytest
from clickhouse_connect.driver.client import Client

from pipeline.clock import SystemClock
from pipeline.streams import Contracts
from pipeline.writer.block import Block
from pipeline.writer.insert import Fence, insert
from pipeline.writer.state import Owned, Ownership
from tests.support.store import RunningStore
from tests.writer.rows import taken

# The table drops rows that were ingested days ago: the time of the test must be now.
NOW = datetime.now(UTC).replace(microsecond=123_000)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStore]:
    with RunningStore(tmp_path_factory.mktemp("store")) as running:
        running.migrate()
        yield running


@pytest.fixture
def client(store: RunningStore) -> Iterator[Client]:
    with store.client() as client:
        yield client


@pytest.fixture
def topic_id() -> str:
    return str(uuid4())


def ownership(client: Client, writer_id: str) -> Ownership:
    return Ownership(lambda: client, writer_id, SystemClock())


def fence(owned: dict[int, Owned], writer_id: str) -> Fence:
    one = next(iter(owned.values()))
    return Fence(
        one.topic_id, one.label, writer_id, {each.partition: each.epoch for each in owned.values()}
    )


def offsets(client: Client, stream: str, topic_id: str) -> list[tuple[int, int, int]]:
    rows = client.query(
        f"SELECT kafka_partition, kafka_offset, count() FROM telemetry.{stream}"
        " WHERE startsWith(kafka_topic_id, {id:String}) GROUP BY ALL ORDER BY ALL",
        parameters={"id": topic_id},
    ).result_rows
    return [tuple(row) for row in rows]


def block(contracts: Contracts, label: str, *at: tuple[int, int]) -> Block:
    return Block(
        contracts["gpu"],
        label,
        tuple(taken(contracts, "gpu", offset, partition=partition) for partition, offset in at),
    )


def test_a_block_over_partitions_is_stored_once(
    client: Client, contracts: Contracts, topic_id: str
) -> None:
    owned = ownership(client, "a").take_over("gpu", topic_id, [0, 3])
    assert {p: each.next for p, each in owned.items()} == {0: 0, 3: 0}
    first = block(contracts, topic_id, (0, 0), (3, 0), (0, 1))
    assert insert(client, first, fence(owned, "a"), NOW).rows == 9
    assert insert(client, first, fence(owned, "a"), NOW).rows == 0
    assert offsets(client, "gpu", topic_id) == [(0, 0, 3), (0, 1, 3), (3, 0, 3)]
    one_old = block(contracts, topic_id, (0, 2), (3, 0))
    assert insert(client, one_old, fence(owned, "a"), NOW).rows == 0


@pytest.mark.parametrize("apart", [timedelta(days=1), -timedelta(days=1)])
def test_the_fence_sees_over_midnight_and_another_clock(
    client: Client, contracts: Contracts, topic_id: str, apart: timedelta
) -> None:
    owned = ownership(client, "a").take_over("gpu", topic_id, [0])
    held = fence(owned, "a")
    assert insert(client, block(contracts, topic_id, (0, 0)), held, NOW).rows == 3
    assert insert(client, block(contracts, topic_id, (0, 0)), held, NOW + apart).rows == 0


def test_who_takes_over_asks_every_day(client: Client, contracts: Contracts, topic_id: str) -> None:
    owned = ownership(client, "a").take_over("gpu", topic_id, [0])
    days_ago = NOW - timedelta(days=4)
    assert insert(client, block(contracts, topic_id, (0, 0)), fence(owned, "a"), days_ago).rows == 3
    assert ownership(client, "b").take_over("gpu", topic_id, [0])[0].next == 1


@pytest.mark.parametrize("stream", ["gpu", "nvlink", "ib_port", "coolant", "component", "event"])
def test_values_come_back_as_they_were_sent(
    client: Client, contracts: Contracts, topic_id: str, stream: str
) -> None:
    owned = ownership(client, "a").take_over(stream, topic_id, [0])
    messages = tuple(taken(contracts, stream, at, rows=5, rack=f"rack-{at:02d}") for at in range(3))
    sent = Block(contracts[stream], topic_id, messages)
    assert insert(client, sent, fence(owned, "a"), NOW).rows == 15
    names = [column.name for column in contracts[stream].wire_columns]
    found = client.query_arrow(
        f"SELECT {', '.join(names)}, kafka_offset, collector_id, kafka_key, ingested_at"
        f" FROM telemetry.{stream} WHERE kafka_topic_id = {{id:String}}"
        f" ORDER BY kafka_offset, {', '.join(contracts[stream].entity)}",
        parameters={"id": topic_id},
        use_strings=True,
    )
    keys = ("kafka_offset", *contracts[stream].entity)
    wanted = sorted(sent.table().to_pylist(), key=lambda row: [row[key] for key in keys])
    for name in names:
        assert found.column(name).to_pylist() == [row[name] for row in wanted], name
    assert set(found.column("kafka_key").to_pylist()) == {"rack-00", "rack-01", "rack-02"}
    assert found.column("ingested_at").cast(pa.timestamp("ms", "UTC")).to_pylist() == [NOW] * 15


def test_an_older_owner_stores_nothing(client: Client, contracts: Contracts, topic_id: str) -> None:
    paused = ownership(client, "z-paused").take_over("gpu", topic_id, [0])
    newer = ownership(client, "a-newer").take_over("gpu", topic_id, [0])
    assert (
        insert(client, block(contracts, topic_id, (0, 0)), fence(paused, "z-paused"), NOW).rows == 0
    )
    assert (
        insert(client, block(contracts, topic_id, (0, 0)), fence(newer, "a-newer"), NOW).rows == 3
    )
    again = ownership(client, "z-paused").take_over("gpu", topic_id, [0])
    assert again[0].next == 1


def test_one_insert_is_one_part_of_one_day(
    client: Client, contracts: Contracts, topic_id: str
) -> None:
    owned = ownership(client, "a").take_over("nvlink", topic_id, [0])
    client.command("SYSTEM STOP MERGES telemetry.nvlink")
    parts = "SELECT count() FROM system.parts WHERE table = 'nvlink' AND active"
    before = client.command(parts)
    messages = tuple(taken(contracts, "nvlink", at, rows=1_000) for at in range(120))
    big = Block(contracts["nvlink"], topic_id, messages)
    midnight = NOW.replace(hour=23, minute=59, second=59, microsecond=999_000)
    assert insert(client, big, fence(owned, "a"), midnight).rows == 120_000
    assert client.command(parts) == before + 1
    client.command("SYSTEM START MERGES telemetry.nvlink")


def test_the_floor_holds_when_retention_has_dropped_the_rows(
    client: Client, contracts: Contracts, topic_id: str
) -> None:
    first = ownership(client, "a")
    owned = first.take_over("event", topic_id, [0])
    stored = Block(contracts["event"], topic_id, (taken(contracts, "event", 41),))
    assert insert(client, stored, fence(owned, "a"), NOW).rows == 3
    first.settle("event", list(owned.values()), {0: (41, 7)})
    client.command(f"ALTER TABLE telemetry.event DROP PARTITION '{NOW:%Y-%m-%d}'")
    owned = ownership(client, "b").take_over("event", topic_id, [0])
    assert (owned[0].next, owned[0].leader_epoch) == (42, 7)


def test_a_truncated_log_gets_a_new_incarnation(
    client: Client, contracts: Contracts, topic_id: str
) -> None:
    owned = ownership(client, "a").take_over("gpu", topic_id, [0, 1])
    assert insert(client, block(contracts, topic_id, (0, 9), (1, 5)), fence(owned, "a"), NOW).rows
    owned = ownership(client, "a").take_over("gpu", topic_id, [0, 1], {0: 7})
    assert (owned[0].label, owned[0].next) == (f"{topic_id}~1", 7)
    assert (owned[1].label, owned[1].next) == (topic_id, 6)
    cut = block(contracts, f"{topic_id}~1", (0, 7))
    assert insert(client, cut, fence({0: owned[0]}, "a"), NOW).rows == 3
    owned = ownership(client, "b").take_over("gpu", topic_id, [0])
    assert (owned[0].incarnation, owned[0].next) == (1, 8)


def test_two_that_race_are_told_apart_by_their_ids(client: Client, topic_id: str) -> None:
    class Racing(Ownership):
        """Another writer takes the same epoch between the reading and the writing."""

        def _write(self, rows: list[list[object]]) -> None:
            other = Ownership(lambda: client, "z", SystemClock())
            other._write(rows)
            super()._write(rows)

    assert Racing(lambda: client, "a", SystemClock()).take_over("gpu", topic_id, [0]) == {}
