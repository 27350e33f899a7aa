"""The collector killed at random moments, and Kafka away for minutes: nothing is lost twice.

A sample counts as taken when it is in the spool. Each is stored once, or counted as dropped;
the writer's own check agrees.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.bus.topics import create_topics
from pipeline.settings import Settings
from tests.collectors_service.helpers import write_targets
from tests.support.exporters import ExporterProcess
from tests.support.kafka import RunningKafka
from tests.support.store import RunningStore
from tests.support.wait import wait_until
from tests.writer.running import RunningWriter

HOSTS = 24
KILLS = int(os.environ.get("RACKPULSE_TEST_KILLS", "50"))
KAFKA_AWAY_S = float(os.environ.get("RACKPULSE_TEST_KAFKA_AWAY_S", "180"))


class RunningCollector:
    """``rackpulse collect run`` as a process of its own."""

    def __init__(self, folder: Path, settings: Settings, targets: Path) -> None:
        self._folder = folder
        self._settings = settings
        self._targets = targets
        self.process: subprocess.Popen[bytes] | None = None
        self.peak_kib = 0

    @property
    def spool(self) -> Path:
        return self._settings.state_dir / "spool" / "c1"

    def start(self) -> None:
        env = {
            **os.environ,
            "RACKPULSE_STATE_DIR": str(self._settings.state_dir),
            "RACKPULSE_BOOTSTRAP_SERVERS": self._settings.bootstrap_servers or "",
        }
        command = [
            sys.executable, "-m", "pipeline", "collect", "run", "--targets", str(self._targets),
            "--collector-id", "c1", "--window", "0.2", "--metrics-port", "0",
        ]  # fmt: skip
        with (self._folder / "collector.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=env)

    def end(self) -> None:
        """Leave nothing running, also when the test failed."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)

    def wait_for_samples(self) -> None:
        """Until the spool was written to since the start."""
        began = time.time()
        wait_until(
            lambda: any(path.stat().st_mtime > began for path in self.spool.rglob("*")),
            "samples in the spool", 120,
        )  # fmt: skip

    def stays_alive(self, seconds: float) -> None:
        """It must not end by itself within so long."""
        assert self.process is not None
        with pytest.raises(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                self.peak_kib = max(self.peak_kib, int(line.split()[1]))
        self.process.send_signal(number)
        return self.process.wait(60)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunningStore]:
    with RunningStore(tmp_path) as running:
        running.migrate()
        yield running


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.kafka
@pytest.mark.timeout(3_000)
def test_killed_and_without_kafka(
    tmp_path: Path, store: RunningStore, request: pytest.FixtureRequest
) -> None:
    draw = random.Random(7)  # noqa: S311
    with RunningKafka(tmp_path / "kafka") as kafka, ExporterProcess(extra_lines=40) as server:
        settings = store.settings.model_copy(update={"bootstrap_servers": kafka.bootstrap})
        create_topics(settings)
        rows = [
            {"name": f"dcgm/h{n}", "kind": "dcgm", "host": f"h{n}", "interval_s": 0.5,
             "timeout_s": 0.5, "url": f"http://127.0.0.1:{server.port}/ok/h{n}"}
            for n in range(HOSTS)
        ]  # fmt: skip
        collector = RunningCollector(
            tmp_path, settings, write_targets(tmp_path / "targets.json", rows)
        )
        request.addfinalizer(collector.end)
        client = store.client()

        def stored() -> int:
            return int(client.query("SELECT count() FROM telemetry.gpu").result_rows[0][0])

        with RunningWriter(tmp_path, settings, "--metrics-port", "0"):
            for number in range(KILLS):
                collector.start()
                if number == KILLS // 2:
                    wait_until(lambda: stored() > 0, "the first rows", 120)
                    kafka.stop()
                    away = time.monotonic()
                # Random moments: within the start, or around and after the first samples.
                if number % 4:
                    collector.wait_for_samples()
                    collector.stays_alive(draw.uniform(0.0, 2.0))
                else:
                    collector.stays_alive(draw.uniform(0.1, 3.0))
                collector.kill()
                if number == min(KILLS // 2 + 3, KILLS - 1):
                    collector.start()
                    collector.stays_alive(max(0.0, away + KAFKA_AWAY_S - time.monotonic()))
                    collector.kill()
                    kafka.start()
            collector.start()
            collector.wait_for_samples()  # else it may not know yet how to end in order
            before = stored()
            wait_until(lambda: stored() > before, "rows to flow again", 120)
            assert collector.kill(signal.SIGTERM) == 0
            report = _verify(settings)
        dropped = _nothing_waits(settings, collector.spool)
        print(
            f"\n{KILLS} kills, Kafka away for {KAFKA_AWAY_S:g} s: "
            f"{report['messages']} messages with "
            f"{report['rows_in_log']} rows in the log, {report['rows_stored']} rows stored, "
            f"{report['missing']} missing, {report['doubled']} doubled, {dropped} dropped by the "
            f"spool, which is empty; {stored()} of the rows are of GPUs; "
            f"peak memory of the collector {collector.peak_kib / 1024:.0f} MiB"
        )
        assert dropped == 0
        assert report["missing"] == 0, report
        assert report["doubled"] == 0, report
        for stream, entity in (("gpu", "gpu_uuid"), ("component", "component_id")):
            _check(client, stream, entity)
        assert collector.peak_kib < 600 * 1024


def _verify(settings: Settings) -> dict[str, Any]:
    env = {
        **os.environ,
        "RACKPULSE_STATE_DIR": str(settings.state_dir),
        "RACKPULSE_BOOTSTRAP_SERVERS": settings.bootstrap_servers or "",
    }
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "verify", "--json", "--wait", "180"],
        env=env, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _check(client: Any, stream: str, entity: str) -> None:
    """No sample twice, no number missing, and the numbers of a key in the order of the log."""
    ((rows, samples),) = client.query(
        f"SELECT count(), uniqExact(cluster, {entity}, source, sampled_at) FROM telemetry.{stream}"
    ).result_rows
    assert rows == samples > 0
    lanes = client.query(
        "SELECT collector_id, kafka_key, max(collector_seq), uniqExact(collector_seq), "
        "arraySort(groupUniqArray((kafka_offset, collector_seq))) "
        f"FROM telemetry.{stream} GROUP BY collector_id, kafka_key"
    ).result_rows
    assert len(lanes) == HOSTS
    for collector_id, key, highest, distinct, order in lanes:
        assert distinct == highest, (stream, collector_id, key)
        numbers = [seq for _, seq in order]
        assert numbers == sorted(numbers), (stream, collector_id, key)


def _nothing_waits(settings: Settings, spool: Path) -> int:
    """Wait until the spool is empty; how many rows it ever had to drop."""
    from pipeline.bus.publisher import Publisher
    from pipeline.streams import load_contracts

    publisher = Publisher(settings, load_contracts(), "c1", spool)
    try:
        wait_until(lambda: publisher.stats.spooled_bytes == 0, "the spool to drain")
        return publisher.stats.dropped_rows
    finally:
        publisher.close(5)
