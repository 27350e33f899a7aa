"""The publisher against a broker that does its worst, in any order; no Kafka, no threads."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError, UnknownProducerIdError

from pipeline.bus import publisher as publisher_module
from pipeline.bus.codec import Header, read_header
from pipeline.bus.publisher import Publisher, _Flight
from pipeline.clock import ManualClock
from pipeline.settings import Settings
from pipeline.streams import load_contracts
from tests.bus.rows import table

CONTRACTS = load_contracts()
EVENT = CONTRACTS["event"]
REFUSED_KEY = "rack-bad"
KEYS = ["rack-1", "rack-2", "rack-3", REFUSED_KEY]
TABLES = {key: table(EVENT, 1, key=key) for key in KEYS}


@dataclass
class Broker:
    """What reached the log, and how many partitions there are."""

    partitions: int = 4
    log: dict[int, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))


class Future:
    def __init__(self) -> None:
        self.callbacks: list[Any] = []
        self.errbacks: list[Any] = []

    def add_callback(self, function: Any, *arguments: Any) -> None:
        self.callbacks.append(partial(function, *arguments))

    def add_errback(self, function: Any, *arguments: Any) -> None:
        self.errbacks.append(partial(function, *arguments))


class Producer:
    """Holds what it was given until the test says what becomes of it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.held: list[tuple[int, str, Header, Future]] = []
        self.ended = False
        self._sender = SimpleNamespace(force_close=self._end, join=lambda _: None)

    def partitions_for(self, _topic: str) -> set[int]:
        return set(range(self.broker.partitions))

    def send(self, topic: str, *, key: bytes, headers: Any, partition: int, **_: Any) -> Future:
        assert not self.ended
        future = Future()
        self.held.append((partition, key.decode(), read_header(headers), future))
        return future

    def deliver(self, count: int, answered: bool) -> None:
        """The first messages reach the log; their answers may get lost."""
        for partition, key, header, future in self.held[:count]:
            if key == REFUSED_KEY:
                return  # kafka-python sends nothing of a partition behind it
            self.broker.log[partition].append((key, header.seq))
            if answered:
                self.held.pop(0)
                for function in future.callbacks:
                    function(None)

    def fail(self, error: Exception) -> None:
        """All that is held fails, as after an error that is fatal for the producer."""
        held, self.held = self.held, []
        for _, _, _, future in held:
            for function in future.errbacks:
                function(error)

    def _end(self) -> None:
        self.ended = True
        self.fail(KafkaTimeoutError("ended"))

    def close(self, timeout: float) -> None:
        pass


class Bench:
    """A publisher whose thread is the test."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.broker = Broker()
        self.clock = ManualClock()
        self.producers: list[Producer] = []
        thread = SimpleNamespace(start=lambda: None, join=lambda: None)
        monkeypatch.setattr(publisher_module.threading, "Thread", lambda **_: thread)
        monkeypatch.setattr(Publisher, "_take_off", lambda publisher: self._take_off(publisher))
        self.publisher = self.start()
        self.rows = 0

    def start(self) -> Publisher:
        return Publisher(
            Settings(state_dir=self.folder), CONTRACTS, "col", self.folder / "spool", self.clock
        )

    def _take_off(self, publisher: Publisher) -> _Flight:
        self.producers.append(Producer(self.broker))
        publisher._flight = _Flight(self.producers[-1], heard_at=self.clock.monotonic())
        return publisher._flight

    def put(self, key: str, count: int) -> None:
        for _ in range(count):
            self.publisher.put("event", TABLES[key])
        self.rows += count
        self.turn()

    def turn(self) -> None:
        self.clock.advance(self.publisher._turn(0.0))

    def kill(self) -> None:
        """The process dies; what its producer holds may or may not arrive."""
        self.publisher._spool._release()
        self.publisher._flight = None
        self.publisher = self.start()


PUT = st.tuples(st.just("put"), st.tuples(st.sampled_from(KEYS), st.integers(1, 3)))
DELIVER = st.tuples(st.just("deliver"), st.tuples(st.integers(1, 4), st.booleans()))
STEP = st.one_of(
    PUT,
    PUT,
    DELIVER,
    DELIVER,
    st.tuples(st.just("turn"), st.none()),
    st.tuples(st.just("fail"), st.sampled_from([KafkaTimeoutError, UnknownProducerIdError])),
    st.tuples(st.just("refuse"), st.none()),
    st.tuples(st.just("grow"), st.none()),
    st.tuples(st.just("kill"), st.none()),
)


def play(bench: Bench, action: str, how: Any) -> None:
    producer = bench.producers[-1] if bench.producers else None
    if action == "put":
        bench.put(*how)
    elif action == "turn":
        bench.turn()
    elif action == "grow":
        bench.broker.partitions += 2
    elif action == "kill":
        bench.kill()
    elif producer is None or producer.ended:
        return
    elif action == "deliver":
        producer.deliver(*how)
    elif action == "fail":
        producer.fail(how())
    elif action == "refuse" and any(key == REFUSED_KEY for _, key, _, _ in producer.held):
        producer.fail(MessageSizeTooLargeError())


def finish(bench: Bench) -> None:
    """From now on the broker does what it should."""
    for _ in range(400):
        bench.turn()
        producer = bench.producers[-1] if bench.producers else None
        if producer is not None and not producer.ended:
            producer.deliver(100, answered=True)
            if producer.held:
                producer.fail(MessageSizeTooLargeError())
        if not bench.publisher._spool.waiting_bytes:
            return
    raise AssertionError("it does not come to an end")


@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(STEP, min_size=3, max_size=30))
def test_whatever_happens_all_arrives_in_order_or_is_counted(
    steps: list[tuple[str, Any]],
) -> None:
    with TemporaryDirectory(prefix="publisher-") as name, pytest.MonkeyPatch.context() as patch:
        bench = Bench(Path(name), patch)
        for action, how in steps:
            play(bench, action, how)
        finish(bench)
        dropped = bench.publisher.stats.dropped_rows
        bench.publisher.close(0)

    places: dict[tuple[str, int], set[int]] = defaultdict(set)
    for partition, messages in bench.broker.log.items():
        for message in messages:
            places[message].add(partition)
        # The first arrivals of a key are in order, whatever was sent again.
        for key in {key for key, _ in messages}:
            numbers = list(dict.fromkeys(seq for each, seq in messages if each == key))
            assert numbers == sorted(numbers)
    # Nothing but what is refused is dropped.
    refused = sum(how[1] for action, how in steps if action == "put" and how[0] == REFUSED_KEY)
    assert dropped == refused
    assert len(places) + dropped == bench.rows
    # A number never stands in two partitions.
    assert all(len(partitions) == 1 for partitions in places.values())
