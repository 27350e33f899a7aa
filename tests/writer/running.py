"""A writer as a process of its own, and the log and table it works on, for tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from kafka import KafkaProducer

from pipeline.bus.codec import Message
from pipeline.settings import Settings
from pipeline.store import connect
from tests.support.wait import wait_until

Place = tuple[str, int, int]  # topic id, partition, offset


class RunningWriter:
    """``rackpulse write`` on given settings."""

    def __init__(self, folder: Path, settings: Settings, *args: str, name: str = "writer") -> None:
        self.log = folder / f"{name}.log"
        self._settings = settings
        self._args = args
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> RunningWriter:
        """Start it; does not wait."""
        env = {
            **os.environ,
            "RACKPULSE_STATE_DIR": str(self._settings.state_dir),
            "RACKPULSE_BOOTSTRAP_SERVERS": self._settings.bootstrap_servers or "",
        }
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pipeline", "write", *self._args],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env,
            )  # fmt: skip
        return self

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill9(self) -> None:
        """SIGKILL, and wait for its end."""
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait(timeout=10)
        self.process = None

    def stop(self) -> int:
        """SIGTERM, and the exit code; does nothing when it does not run."""
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)
            raise

    def __enter__(self) -> RunningWriter:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()


def settings_of(store: Settings, bootstrap: str) -> Settings:
    """Settings that name this store and this Kafka."""
    return store.model_copy(update={"bootstrap_servers": bootstrap})


def producer(settings: Settings) -> KafkaProducer:
    """An idempotent producer."""
    assert settings.bootstrap_servers
    return KafkaProducer(
        bootstrap_servers=settings.bootstrap_servers.split(","), acks="all",
        enable_idempotence=True, compression_type="zstd", linger_ms=5, delivery_timeout_ms=60_000,
        request_timeout_ms=10_000, max_block_ms=30_000,
    )  # fmt: skip


def send(
    to: KafkaProducer, topic: str, messages: Sequence[Message], partition: int | None = None
) -> list[tuple[int, int]]:
    """Send messages and wait for the acknowledgements; partition and offset of each."""
    futures = [
        to.send(topic, key=each.key, value=each.value, headers=each.headers, partition=partition)
        for each in messages
    ]
    found = [future.get(timeout=60) for future in futures]
    return [(each.partition, each.offset) for each in found]


def stored(settings: Settings, stream: str) -> Counter[tuple[int, int]]:
    """Rows by partition and offset; the label may carry an incarnation."""
    with connect(settings) as client:
        rows = client.query(
            f"SELECT kafka_partition, kafka_offset, count() FROM telemetry.{stream} GROUP BY ALL"
        ).result_rows
    return Counter({(int(p), int(o)): int(n) for p, o, n in rows})


def wait_stored(
    settings: Settings, stream: str, wanted: Mapping[tuple[int, int], int], timeout_s: float = 60
) -> None:
    """Wait until exactly these rows by partition and offset are stored."""
    last: Counter[tuple[int, int]] = Counter()

    def done() -> bool:
        nonlocal last
        last = stored(settings, stream)
        assert not last - Counter(wanted), f"doubled or unknown: {last - Counter(wanted)}"
        return last == Counter(wanted)

    try:
        wait_until(done, f"{sum(wanted.values())} rows of {stream}", timeout_s, every_s=0.2)
    except AssertionError as exc:
        missing = Counter(wanted) - last
        raise AssertionError(f"{exc}; missing {len(missing)}: {list(missing)[:5]}") from exc
