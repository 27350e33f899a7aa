"""The publisher against real brokers: everything arrives, in order, whatever is killed."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka import TopicPartition

from pipeline.bus.codec import Header, decode
from pipeline.bus.consumer import log_ends, make_consumer
from pipeline.bus.publisher import Publisher, partition_of
from pipeline.bus.topics import create_topics, load_topics
from pipeline.settings import Settings
from pipeline.streams import Contracts, load_contracts
from tests.bus.rows import table
from tests.support.kafka import RunningKafka, running_tansu
from tests.support.wait import wait_until

CONTRACTS = load_contracts()
EVENT = CONTRACTS["event"]


def rows(first: int, count: int, key: str = "rack-01") -> pa.Table:
    """Events whose code tells them apart."""
    return table(EVENT, count, key=key, code=[str(n) for n in range(first, first + count)])


def read_all(settings: Settings, topics: list[str]) -> Iterator[tuple[Any, Header, pa.Table]]:
    """Every message of the topics' logs, decoded."""
    ends = log_ends(settings, topics)
    consumer = make_consumer(settings, None)
    try:
        partitions = [TopicPartition(*at) for at, (start, end) in ends.items() if end > start]
        consumer.assign(partitions)
        for at in partitions:
            consumer.seek(at, ends[at.topic, at.partition][0])
        left = sum(end - start for start, end in ends.values())
        deadline = time.monotonic() + 60
        while left:
            assert time.monotonic() < deadline, f"{left} messages of {ends} do not come"
            for records in consumer.poll(timeout_ms=5_000).values():
                for record in records:
                    left -= 1
                    decoded = decode(CONTRACTS, record.headers, record.value)
                    yield record, decoded.header, decoded.batch
    finally:
        consumer.close()


def first_codes(settings: Settings, collector: str = "col-1") -> list[int]:
    """Codes as a writer would store them: the first arrival of each of a collector's messages."""
    seen: set[tuple[Any, ...]] = set()
    codes: list[int] = []
    order: dict[Any, list[int]] = defaultdict(list)
    for record, header, batch in read_all(settings, ["event"]):
        if header.collector_id.rpartition("~")[0] != collector:
            continue
        number = (header.collector_id, record.key, header.seq)
        if number not in seen:
            seen.add(number)
            codes += [int(code) for code in batch.column("code").to_pylist()]
            order[header.collector_id, record.key].append(header.seq)
    # First arrivals of a key come in the order of its numbers, without a hole.
    for numbers in order.values():
        assert numbers == list(range(1, len(numbers) + 1))
    return codes


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKafka]:
    with RunningKafka(tmp_path_factory.mktemp("kafka") / "kafka") as running:
        create_topics(running.settings())
        yield running


def check_whole_way(settings: Settings, contracts: Contracts, folder: Path) -> None:
    """Codec, spool, publisher, topics and consumer together, on any broker."""
    create_topics(settings)
    publisher = Publisher(settings, contracts, "col-1", folder)
    sent = {name: table(stream, 40, entities=7) for name, stream in contracts.items()}
    for name, rows_of in sent.items():
        publisher.put(name, rows_of)
    assert publisher.flush(60)
    stats = publisher.stats
    assert (stats.spooled_bytes, stats.dropped_rows, stats.last_error) == (0, 0, None)
    assert stats.sent_rows == 40 * len(contracts)
    publisher.close()
    received: dict[str, list[Any]] = defaultdict(list)
    for record, header, batch in read_all(settings, list(contracts)):
        assert header.collector_id == publisher.collector_id
        assert record.partition == partition_of(
            record.key.decode(), load_topics()[record.topic].partitions
        )
        received[record.topic] += batch.to_pylist()
    for name, rows_of in sent.items():
        by_identity = sorted(received[name], key=repr)
        assert by_identity == sorted(rows_of.to_pylist(), key=repr)


@pytest.mark.kafka
def test_everything_arrives_through_apache_kafka(
    kafka: RunningKafka, contracts: Contracts, tmp_path: Path
) -> None:
    check_whole_way(kafka.settings(), contracts, tmp_path / "spool")


def test_everything_arrives_through_the_wheels_broker(contracts: Contracts, tmp_path: Path) -> None:
    with running_tansu(tmp_path / "tansu") as settings:
        check_whole_way(settings, contracts, tmp_path / "spool")


@pytest.mark.kafka
def test_kafka_away_is_said_and_nothing_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="pipeline")
    with RunningKafka(tmp_path / "kafka") as kafka:
        settings = kafka.settings()
        create_topics(settings)
        publisher = Publisher(settings, CONTRACTS, "col-1", tmp_path / "spool")
        publisher.put("event", rows(0, 50))
        assert publisher.flush(30)
        kafka.kill9()
        for first in range(50, 100, 10):
            publisher.put("event", rows(first, 10))
        assert not publisher.flush(0.1)
        wait_until(lambda: publisher.stats.last_error, "the error to be told", 30)
        assert publisher.stats.spooled_rows == 50
        assert publisher.stats.silent_s > 0
        kafka.restart()
        assert publisher.flush(60)
        wait_until(lambda: publisher.stats.last_error is None, "the error to be over")
        publisher.close()
        assert sorted(first_codes(settings)) == list(range(100))
    said = [record.message for record in caplog.records]
    assert any("nothing reaches Kafka" in line for line in said)
    assert any("acknowledges again" in line for line in said)


def test_a_broker_that_comes_later_gets_everything(tmp_path: Path) -> None:
    nowhere = Settings(state_dir=tmp_path)
    publisher = Publisher(nowhere, CONTRACTS, "col-1", tmp_path / "spool")
    publisher.put("event", rows(0, 10))
    error = wait_until(lambda: publisher.stats.last_error, "the error")
    assert "RACKPULSE_BOOTSTRAP_SERVERS" in error
    publisher.close(timeout_s=0)
    with running_tansu(tmp_path / "tansu") as settings:
        create_topics(settings)
        publisher = Publisher(settings, CONTRACTS, "col-1", tmp_path / "spool")
        assert publisher.flush(30)
        publisher.close()
        assert first_codes(settings) == list(range(10))


@pytest.mark.kafka
def test_a_missing_topic_is_said(kafka: RunningKafka, tmp_path: Path) -> None:
    with RunningKafka(tmp_path / "kafka") as empty:
        publisher = Publisher(empty.settings(), CONTRACTS, "col-1", tmp_path / "spool")
        publisher.put("event", rows(0, 10))
        error = wait_until(lambda: publisher.stats.last_error, "the error", 30)
        assert "event" in error
        assert "rackpulse topics create" in error
        create_topics(empty.settings())
        assert publisher.flush(60)
        publisher.close()


@pytest.mark.kafka
def test_a_message_that_kafka_refuses_is_counted_and_holds_nothing_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topics = load_topics()
    small = topics["event"].model_copy(update={"max_message_bytes": 20_000})
    with RunningKafka(tmp_path / "kafka") as kafka:
        create_topics(kafka.settings(), {"event": small})
        publisher = Publisher(kafka.settings(), CONTRACTS, "col-1", tmp_path / "spool")
        noise = [os.urandom(400).hex() for _ in range(200)]
        publisher.put("event", rows(0, 10))
        publisher.put("event", rows(10, 200).set_column(
            EVENT_ID, "entity_id", pa.array(noise)))  # fmt: skip
        publisher.put("event", rows(210, 10))
        assert publisher.flush(30)
        assert publisher.stats.dropped == {"event": {"refused_by_kafka": 200}}
        publisher.close()
        codes = {
            int(code)
            for _, _, batch in read_all(kafka.settings(), ["event"])
            for code in batch.column("code").to_pylist()
        }
        assert codes == {*range(10), *range(210, 220)}


EVENT_ID = [column.name for column in EVENT.wire_columns].index("entity_id")


def test_a_row_that_is_too_large_is_counted(tmp_path: Path) -> None:
    with running_tansu(tmp_path / "tansu") as settings:
        create_topics(settings)
        publisher = Publisher(settings, CONTRACTS, "col-1", tmp_path / "spool")
        names = pa.array(["a", "b" * 900_000, "c"])
        publisher.put("event", rows(0, 3).set_column(EVENT_ID, "entity_id", names))
        assert publisher.stats.dropped == {"event": {"row_too_large": 1}}
        assert publisher.flush(30)
        publisher.close()
        assert sorted(first_codes(settings)) == [0, 2]


_CHILD = """
import os, signal, sys
from pathlib import Path
from pipeline.bus.publisher import Publisher
from pipeline.bus.spool import Spool
from pipeline.settings import Settings
from tests.bus.test_publisher import CONTRACTS, rows

acknowledged, limit = 0, int(sys.argv[3])
ack = Spool.ack

def dies_between(self, record):
    # Kafka has acknowledged; the spool does not know it yet.
    global acknowledged
    acknowledged += 1
    if acknowledged == limit:
        os.kill(os.getpid(), signal.SIGKILL)
    ack(self, record)

Spool.ack = dies_between
publisher = Publisher(
    Settings(bootstrap_servers=sys.argv[1]), CONTRACTS, "killed", Path(sys.argv[2])
)
first = int(sys.argv[4])
for number in range(first, first + 60, 3):
    publisher.put("event", rows(number, 3, key=f"rack-0{number % 4}"))
    print(number, flush=True)
publisher.flush(60)
"""


@pytest.mark.kafka
def test_killed_between_the_acknowledgement_and_the_trim(
    kafka: RunningKafka, tmp_path: Path
) -> None:
    settings = kafka.settings()
    spooled: list[int] = []
    for life, limit in enumerate((1, 2, 7, 13)):
        child = subprocess.run(
            [sys.executable, "-c", _CHILD, kafka.bootstrap, str(tmp_path / "spool"), str(limit),
             str(1_000 * (life + 1))],
            capture_output=True, text=True, timeout=120, check=False, cwd=Path.cwd(),
        )  # fmt: skip
        assert child.returncode == -signal.SIGKILL, child.stderr
        for line in child.stdout.split():
            spooled += range(int(line), int(line) + 3)
    publisher = Publisher(settings, CONTRACTS, "killed", tmp_path / "spool")
    assert publisher.flush(60)
    publisher.close()
    assert publisher.stats.dropped_rows == 0
    codes = first_codes(settings, "killed")
    # A put that was not answered when its process was killed may be there or not.
    assert len(codes) == len(set(codes))
    assert set(spooled) <= set(codes)
    assert len(set(codes) - set(spooled)) <= 4 * 3


@pytest.mark.kafka
@pytest.mark.faults
@pytest.mark.slow
def test_a_leader_killed_in_mid_stream_loses_nothing(tmp_path: Path) -> None:
    with RunningKafka(tmp_path / "kafka", brokers=3) as kafka:
        settings = kafka.settings()
        create_topics(settings)
        publisher = Publisher(settings, CONTRACTS, "col-1", tmp_path / "spool")
        stop = threading.Event()
        produced: list[int] = []

        def produce() -> None:
            first = 0
            while not stop.wait(0.005):
                publisher.put("event", rows(first, 4, key=f"rack-0{first % 3}"))
                produced.extend(range(first, first + 4))
                first += 4

        thread = threading.Thread(target=produce)
        thread.start()

        def more() -> None:
            wanted = len(produced) + 400
            wait_until(lambda: len(produced) > wanted, "rows")

        try:
            for _ in range(2):
                more()
                leader = kafka.leader_of("event")
                kafka.kill9(leader)
                more()
                kafka.restart(leader)
        finally:
            stop.set()
            thread.join()
        assert publisher.flush(120)
        publisher.close()
        assert sorted(first_codes(settings)) == produced


@pytest.mark.kafka
def test_an_abandoned_producer_sends_nothing_any_more(kafka: RunningKafka, tmp_path: Path) -> None:
    settings = kafka.settings()
    publisher = Publisher(settings, CONTRACTS, "col-2", tmp_path / "spool", stuck_after_s=1.0)
    publisher.put("event", rows(0, 1))
    assert publisher.flush(30)
    sender = publisher._flight.producer._sender  # type: ignore[union-attr]
    kafka.nodes[1].signal(signal.SIGSTOP)
    try:
        publisher.put("event", rows(1, 1))
        wait_until(lambda: not sender.is_alive(), "the end of the first producer", 30)
    finally:
        kafka.nodes[1].signal(signal.SIGCONT)
    assert publisher.flush(60)
    publisher.close()
    mine = [h.seq for _, h, _ in read_all(settings, ["event"])
            if h.collector_id == publisher.collector_id]  # fmt: skip
    assert sorted(set(mine)) == [1, 2]
