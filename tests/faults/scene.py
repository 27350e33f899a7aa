"""Three brokers, a store and writers, and the load that runs through them while things break."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from clickhouse_connect.driver.client import Client
from kafka import KafkaProducer

from pipeline.bus.codec import Message
from pipeline.bus.endpoint import ask_admin
from pipeline.bus.topics import DEAD_LETTERS, create_topics, load_topics, topic_ids
from pipeline.clock import SystemClock
from pipeline.settings import Settings
from pipeline.store import connect
from pipeline.streams import Contracts
from pipeline.writer.replay import read_letters
from pipeline.writer.verify import Report, Verifier
from tests.faults.ledger import OUTCOMES, Ledger, Outcome
from tests.support.kafka import RunningKafka
from tests.support.store import RunningStore
from tests.support.wait import wait_until
from tests.writer.rows import message
from tests.writer.running import producer, settings_of, stored

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    ["pipeline.cli.write", "pipeline.writer.service", "pipeline.writer.options", "pandas"]
)


def _write(log: str, environment: dict[str, str], args: list[str], ahead_s: float) -> None:
    os.environ.update(environment)
    if ahead_s:
        _move_clock(ahead_s)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # where does it stand still?
    sys.argv = ["rackpulse", "write", *args]
    from pipeline.cli import main

    main()


def _move_clock(ahead_s: float) -> None:
    """Another time of day, in this process and for its rows' ingest times."""
    from pipeline.writer import shared

    now = SystemClock.now
    SystemClock.now = lambda self: now(self) + timedelta(seconds=ahead_s)  # type: ignore[method-assign]
    shared._CLOCK_TOLERANCE_S += abs(ahead_s)  # else it follows the store's clock, as it should


class ForkedWriter:
    """``rackpulse write`` in a process of its own that starts in a moment: the imports are
    done once, in the server that it is forked from."""

    def __init__(self, log: Path, settings: Settings, *args: str, ahead_s: float = 0.0) -> None:
        self.log = log
        self._ahead_s = ahead_s
        self.settings = settings
        self.args = list(args)
        self._process: Any = None

    def start(self) -> ForkedWriter:
        """Start it; does not wait."""
        environment = {
            "RACKPULSE_STATE_DIR": str(self.settings.state_dir),
            "RACKPULSE_BOOTSTRAP_SERVERS": self.settings.bootstrap_servers or "",
            "RACKPULSE_RETENTION_DAYS": str(self.settings.retention_days),
        }
        if self.settings.store_dsn is not None:
            environment["RACKPULSE_STORE_DSN"] = self.settings.store_dsn.get_secret_value()
        self._process = _FORKS.Process(
            target=_write, args=(str(self.log), environment, self.args, self._ahead_s),
            daemon=True,
        )  # fmt: skip
        self._process.start()
        return self

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process is not None and self._process.is_alive()

    @property
    def exit_code(self) -> int | None:
        """Of the ended process."""
        return None if self._process is None else self._process.exitcode

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self._process.pid, number)

    def kill9(self) -> None:
        """SIGKILL, and wait for its end."""
        if self.running:
            self.signal(signal.SIGKILL)
            self._process.join(10)

    def stop(self) -> None:
        """SIGTERM, and wait for its end."""
        if self.running:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            self._process.join(30)
            if self.running:
                self.kill9()
                raise AssertionError(f"the writer did not stop: {self.log.read_text()[-2000:]}")

    def __enter__(self) -> ForkedWriter:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()


class Load:
    """Produces messages until it is told to stop, and notes what was acknowledged."""

    def __init__(
        self, scene: Scene, streams: Sequence[str], per_s: float, rows: tuple[int, int] = (1, 8),
        seed: int = 7,
    ) -> None:  # fmt: skip
        self._scene = scene
        self._streams = streams
        self._pause = 1 / per_s
        self._rows = rows
        self._random = random.Random(seed)  # noqa: S311
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._seq = 0
        self._error: BaseException | None = None

    def _run(self) -> None:
        try:
            sender = producer(self._scene.settings)
            waiting = []
            while not self._stop.is_set():
                self._seq += 1
                stream = self._random.choice(self._streams)
                rack = f"rack-{self._random.randrange(16):02d}"
                rows = self._random.randint(*self._rows)
                # One collector per message stream and key would need numbers of its own.
                made = self._scene.message(stream, rows, rack)
                future = sender.send(stream, key=made.key, value=made.value, headers=made.headers)
                waiting.append((stream, rows, future))
                self._stop.wait(self._pause)
            for stream, rows, future in waiting:
                at = future.get(timeout=90)
                self._scene.ledger.add(stream, at.partition, at.offset, rows)
            sender.close()
        except BaseException as exc:  # raised by __exit__
            self._error = exc

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(120)
        if self._error is not None and exc[0] is None:
            raise AssertionError("the load failed") from self._error


class Scene:
    """Shared by all tests of a run; each begins with empty topics and tables."""

    def __init__(self, folder: Path, contracts: Contracts, kafka: RunningKafka) -> None:
        self.folder = folder
        self.contracts = contracts
        self.kafka = kafka
        self.store = RunningStore(folder)
        self.ledger = Ledger()
        self._numbers: dict[tuple[str, str], int] = {}
        self._test = ""
        self._writers: list[ForkedWriter] = []
        self._client: Client | None = None

    @property
    def settings(self) -> Settings:
        """Settings that name this store and this Kafka."""
        return settings_of(self.store.settings, self.kafka.bootstrap)

    @contextmanager
    def using(self, store: RunningStore) -> Iterator[None]:
        """Work on another store, whose tables are made and empty, while the block runs."""
        usual, self.store = self.store, store
        try:
            yield
        finally:
            self.store = usual

    def begin(self, name: str) -> None:
        """Empty topics and tables for a test."""
        self._test = name
        self.ledger = Ledger()
        self._numbers.clear()
        self.create_topics()
        with connect(self.settings) as client:
            for table in (*self.contracts, "writer_epoch", "ingest_gap", "dead_letter_replay"):
                client.command(f"TRUNCATE TABLE telemetry.{table}")

    def create_topics(self, streams: Sequence[str] = ("gpu", "event"), **changes: object) -> None:
        """Delete the topics and make these anew, with two partitions."""

        ours = {*self.contracts, DEAD_LETTERS}
        old = set().union(*self._ids_by_broker())
        before = ask_admin(self.settings, lambda admin: set(admin.list_topics()) & ours)
        if before:
            ask_admin(self.settings, lambda admin: admin.delete_topics(sorted(before)))
        wait_until(
            lambda: not any(ids & old for ids in self._ids_by_broker()),
            "topics to be deleted on every broker", 30, every_s=0.1,
        )  # fmt: skip
        declared = load_topics()
        topics = {
            name: declared[name].model_copy(update={"partitions": 2, **changes}) for name in streams
        }
        topics[DEAD_LETTERS] = declared[DEAD_LETTERS]
        create_topics(self.settings, topics)
        wait_until(
            lambda: all(len(ids - old) == len(topics) for ids in self._ids_by_broker()),
            "new topics on every broker", 30, every_s=0.1,
        )  # fmt: skip

    def _ids_by_broker(self) -> list[set[str]]:
        """Ids of our topics as each broker knows them: brokers learn of changes one by one."""
        found = []
        for node in self.kafka.nodes.values():
            alone = self.settings.model_copy(update={"bootstrap_servers": node.address})
            ids = topic_ids(alone)
            found.append({ids[name] for name in (*self.contracts, DEAD_LETTERS) if name in ids})
        return found

    def end(self) -> None:
        """Stop what a test left."""
        for each in self._writers:
            each.kill9()
        self._writers.clear()
        if self._client is not None:
            self._client.close()
            self._client = None

    def message(self, stream: str, rows: int, rack: str = "rack-00", **more: Any) -> Message:
        """The next message of a collector for this key."""
        seq = self._numbers.get((stream, rack), 0) + 1
        self._numbers[stream, rack] = seq
        return message(self.contracts[stream], seq, rows, rack=rack, **more)

    def produce(
        self, stream: str, messages: int, rows: int = 4, partition: int | None = None,
        sender: KafkaProducer | None = None, racks: int = 8,
    ) -> list[tuple[int, int]]:  # fmt: skip
        """Produce messages and wait for the acknowledgements."""
        own = sender or producer(self.settings)
        futures = []
        for at in range(messages):
            made = self.message(stream, rows, f"rack-{at % racks:02d}")
            futures.append(
                own.send(stream, key=made.key, value=made.value, headers=made.headers,
                         partition=partition)
            )  # fmt: skip
        places = []
        for future in futures:
            at = future.get(timeout=60)
            self.ledger.add(stream, at.partition, at.offset, rows)
            places.append((at.partition, at.offset))
        if sender is None:
            own.close()
        return places

    def writer(
        self, *args: str, settings: Settings | None = None, name: str = "", ahead_s: float = 0.0
    ) -> ForkedWriter:
        """A writer with short waits, not started; its clock is ``ahead_s`` ahead."""
        log = self.folder / f"{self._test}{name}.log"
        group = f"faults-{self._test}"
        defaults = ["--linger", "0.1", "--session-timeout", "6", "--group", group,
                    "--streams", "gpu,event"]  # fmt: skip
        made = ForkedWriter(log, settings or self.settings, *defaults, *args, ahead_s=ahead_s)
        self._writers.append(made)
        return made

    def log(self, name: str = "") -> str:
        """The tail of a writer's log."""
        path = self.folder / f"{self._test}{name}.log"
        return path.read_text()[-3000:] if path.exists() else ""

    def wait_stored(self, timeout_s: float = 120) -> None:
        """Wait until all that was acknowledged is stored."""
        last = ""

        def done() -> bool:
            nonlocal last
            behind = []
            for stream in self.ledger.rows:
                missing = self.ledger.of(stream) - stored(self.settings, stream)
                if missing:
                    behind.append(f"{stream}: {len(missing)} messages, {list(missing)[:3]}")
            last = "; ".join(behind)
            return not behind

        try:
            wait_until(done, "everything to be stored", timeout_s, every_s=0.25)
        except AssertionError as exc:
            raise AssertionError(f"{exc}: {last}\n{self.log()}") from None

    def check(self, fault: str, count: int, note: str = "", timeout_s: float = 120) -> None:
        """Wait until all is stored, then compare rows and note the outcome.

        Raises:
            AssertionError: rows were lost or doubled.
        """
        failed: AssertionError | None = None
        try:
            self.wait_stored(timeout_s)
        except AssertionError as exc:
            failed = exc
        found_rows = lost = doubled = 0
        for stream in self.ledger.rows:
            found = stored(self.settings, stream)
            wanted = self.ledger.of(stream)
            found_rows += sum(found.values())
            lost += sum((wanted - found).values())
            doubled += sum((found - wanted).values())
            doubled += self._doubled_identities(stream)
        OUTCOMES.append(Outcome(fault, count, self.ledger.total, found_rows, lost, doubled, note))
        if failed is not None:
            raise failed
        assert (lost, doubled) == (0, 0), self.log()

    def _doubled_identities(self, stream: str) -> int:
        names = ", ".join(self.contracts[stream].row_identity)
        with connect(self.settings) as client:
            rows = client.query(
                f"SELECT count() - uniqExact({names}) FROM telemetry.{stream}"
            ).result_rows
        return int(rows[0][0])

    def count(self, table: str) -> int:
        """Rows of a table."""
        return self._number(f"SELECT count() FROM telemetry.{table}")

    def blocks(self, stream: str = "gpu") -> int:
        """How many inserts stored the rows of a stream."""
        return self._number(f"SELECT uniqExact(ingested_at) FROM telemetry.{stream}")

    def _number(self, sql: str) -> int:
        if self._client is None:
            self._client = connect(self.settings)
        return int(self._client.query(sql).result_rows[0][0])

    def verify(self, streams: Sequence[str] = ("gpu", "event"), wait_s: float = 20) -> Report:
        """What ``rackpulse verify`` says."""
        with connect(self.settings) as client:
            return Verifier(self.settings, client, SystemClock()).run(streams, wait_s)

    def letters(self) -> list[str]:
        """Reasons of the dead letters."""
        return [letter.reason for letter in read_letters(self.settings)]

    def gaps(self) -> list[tuple[str, int, int, int]]:
        """Kind, partition, first and last of the recorded gaps."""
        with connect(self.settings) as client:
            rows = client.query(
                "SELECT kind, kafka_partition, first_missing, last_missing"
                " FROM telemetry.ingest_gap FINAL ORDER BY ALL"
            ).result_rows
        return [(str(kind), int(p), int(first), int(last)) for kind, p, first, last in rows]
