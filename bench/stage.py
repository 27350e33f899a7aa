"""Broker, store and writer for a measurement, and what each of them cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from clickhouse_connect.driver.client import Client
from kafka import KafkaProducer

from bench.fleet import Encoded
from bench.machine import Cost, cost
from pipeline.bus.endpoint import producer_options
from pipeline.bus.topics import create_topics
from pipeline.settings import Settings
from pipeline.store import connect
from pipeline.streams import Contracts
from tests.support.kafka import RunningKafka
from tests.support.store import RunningStore
from tests.writer.running import RunningWriter, settings_of


class Stage:
    """A fresh broker and a fresh store in a folder."""

    def __init__(self, folder: Path, contracts: Contracts) -> None:
        self.folder = folder
        self.contracts = contracts
        self.store = RunningStore(folder)
        self.kafka = RunningKafka(folder / "kafka")
        self.writer: RunningWriter | None = None
        self._client: Client | None = None

    @property
    def settings(self) -> Settings:
        """Settings that name both."""
        return settings_of(self.store.settings, self.kafka.bootstrap)

    def costs(self) -> dict[str, Cost]:
        """What each process cost so far."""
        found = {"store": cost(self.store.pid)}
        broker = self.kafka.nodes[1].pid
        if broker:
            found["broker"] = cost(broker)
        if self.writer is not None and self.writer.process is not None:
            found["writer"] = cost(self.writer.process.pid)
        return found

    def send(self, messages: Iterable[Encoded]) -> tuple[int, int]:
        """Send messages; rows and values."""
        producer = KafkaProducer(
            **producer_options(self.settings), acks="all", compression_type="zstd", linger_ms=20,
            max_request_size=4_000_000,
        )  # fmt: skip
        rows = values = 0
        for each in messages:
            message = each.message
            producer.send(each.stream, key=message.key, value=message.value,
                          headers=message.headers)  # fmt: skip
            rows += each.rows
            values += each.values
        producer.flush()
        producer.close()
        return rows, values

    def stored(self) -> int:
        """Rows in all tables, from what the store knows of its parts: the question is free."""
        if self._client is None:
            self._client = connect(self.settings)
        rows = self._client.query(
            "SELECT sum(rows) FROM system.parts WHERE active AND database = 'telemetry'"
            " AND table IN {tables:Array(String)}",
            parameters={"tables": list(self.contracts)},
        ).result_rows
        return int(rows[0][0])

    def wait_stored(self, rows: int, timeout_s: float) -> float:
        """Wait until so many rows are stored; seconds that it took."""
        start = time.monotonic()
        while (found := self.stored()) < rows:
            if time.monotonic() - start > timeout_s:
                raise AssertionError(f"{found} of {rows} rows after {timeout_s:g} s")
            time.sleep(0.5)
        if found != rows:
            raise AssertionError(f"{found} rows stored, {rows} sent")
        return time.monotonic() - start

    def wait_merged(self, timeout_s: float = 120) -> None:
        """Wait until the store has nothing to merge: that work belongs to the rows too."""
        assert self._client is not None
        deadline = time.monotonic() + timeout_s
        quiet = 0
        while quiet < 4 and time.monotonic() < deadline:
            running = self._client.query("SELECT count() FROM system.merges").result_rows[0][0]
            quiet = 0 if running else quiet + 1
            time.sleep(0.5)


@contextmanager
def stage(folder: Path, contracts: Contracts) -> Iterator[Stage]:
    """A stage with tables and topics, while the block runs."""
    made = Stage(folder, contracts)
    with made.store, made.kafka:
        made.store.migrate()
        create_topics(made.settings)
        try:
            yield made
        finally:
            if made.writer is not None:
                made.writer.stop()


class Sampler:
    """Looks at the costs while something runs, so that peaks and ends are known."""

    def __init__(self, on: Stage, every_s: float = 0.5) -> None:
        self._stage = on
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.first: dict[str, Cost] = {}
        self.last: dict[str, Cost] = {}

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self.last = self._stage.costs()

    def __enter__(self) -> Sampler:
        self.first = self.last = self._stage.costs()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self.last = self._stage.costs()

    def cpu(self, name: str) -> float:
        """CPU seconds of a process within the block."""
        before = self.first.get(name)
        after = self.last.get(name)
        return 0.0 if after is None else after.cpu_s - (before.cpu_s if before else 0.0)

    def peak_mb(self, name: str) -> float:
        """Peak memory of a process."""
        return self.last[name].peak_mb if name in self.last else 0.0
