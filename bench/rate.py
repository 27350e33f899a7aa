"""(b) and (f): the whole path at a steady rate, from messages encoded beforehand.

A pool of seconds is encoded; at its time each message is sent with the sample times moved to
now, in place: the bytes of one column are overwritten, nothing is encoded again.
"""

from __future__ import annotations

import re
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
from kafka import KafkaProducer

from bench.fleet import Encoded, Fleet
from bench.stage import Sampler, Stage, stage
from pipeline.bus.endpoint import producer_options
from pipeline.store import connect
from pipeline.streams import Contracts
from tests.support.wait import wait_until
from tests.writer.running import RunningWriter

_POOL_SECONDS = 10
_BUCKET = re.compile(r'rackpulse_writer_delay_seconds_bucket\{le="([^"]+)",stream="(\w+)"\} (\S+)')


class _Template:
    """A message whose sample times can be moved without encoding it again."""

    def __init__(self, encoded: Encoded) -> None:
        self.encoded = encoded
        value = bytearray(encoded.message.value)
        base = np.frombuffer(value, np.uint8).ctypes.data
        with pa.ipc.open_stream(pa.py_buffer(value)) as reader:
            batch = reader.read_next_batch()
        times = batch.column("sampled_at").buffers()[1]
        start = times.address - base
        assert 0 <= start < len(value), "the column must point into the message"
        self._value = value
        self._times = np.frombuffer(value, np.int64, batch.num_rows, start)
        self._first = self._times.copy() - self._times.min()

    def at(self, now_ms: int, seq: int) -> tuple[bytes, list[tuple[str, bytes]]]:
        """Body and headers for this moment."""
        self._times[:] = now_ms - self._first // 10
        changed = {"rackpulse-seq": b"%d" % seq, "rackpulse-sent-at": b"%d" % now_ms}
        headers = [(name, changed.get(name, value)) for name, value in self.encoded.message.headers]
        return bytes(self._value), headers


@dataclass(frozen=True)
class RateResult:
    """One run at a steady rate.

    Attributes:
        cores: CPU seconds per second, by process.
        delay_p50_s, delay_p99_s: from sending a message to the answer that it is stored.
        fresh_p50_s, fresh_p99_s: from the sample's time to the ingest time of its row.
        behind_s: how long the rows still took to be stored after the last was sent.
        late_s: the most that the sender was behind its own clock.
    """

    fleets: float
    seconds: int
    rows: int
    values: int
    cores: dict[str, float]
    peak_mb: dict[str, float]
    delay_p50_s: float
    delay_p99_s: float
    fresh_p50_s: float
    fresh_p99_s: float
    behind_s: float
    late_s: float


def at_rate(contracts: Contracts, fleets: float, seconds: int) -> RateResult:
    """Send ``fleets`` fleets for ``seconds`` seconds, one sample per second."""
    fleet = Fleet(contracts, fleets)
    pool = [[_Template(each) for each in fleet.second(number)] for number in range(_POOL_SECONDS)]
    with (
        tempfile.TemporaryDirectory(prefix="rackpulse-bench-") as folder,
        stage(Path(folder), contracts) as on,
    ):
        port = _start_writer(on)
        with Sampler(on) as seen:
            rows, values, late = _play(on, pool, seconds)
            behind = on.wait_stored(rows, 300)
        page = _page(port)
        fresh = _freshness(on, contracts)
        names = ("writer", "store", "broker")
        return RateResult(
            fleets, seconds, rows, values,
            {name: seen.cpu(name) / seconds for name in names},
            {name: seen.peak_mb(name) for name in names},
            _quantile(page, 0.5), _quantile(page, 0.99), *fresh, behind, late,
        )  # fmt: skip


def _start_writer(on: Stage) -> int:
    on.writer = RunningWriter(on.folder, on.settings, "--metrics-port", "0").start()
    log = on.writer.log

    def port() -> int:
        found = re.search(r"127\.0\.0\.1:(\d+)/metrics", log.read_text())
        return int(found[1]) if found else 0

    number = wait_until(port, "the writer's page", 60)

    def ready() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{number}/readyz", timeout=2) as page:
                return bool(page.status == 200)
        except OSError:
            return False

    wait_until(ready, "the writer to have its partitions", 60)
    return number


def _play(on: Stage, pool: Sequence[Sequence[_Template]], seconds: int) -> tuple[int, int, float]:
    """Send second after second, its messages spread over it; rows, values, largest delay."""
    producer = KafkaProducer(
        **producer_options(on.settings), acks="all", compression_type="zstd", linger_ms=20,
        max_request_size=4_000_000,
    )  # fmt: skip
    numbers: dict[tuple[str, bytes], int] = {}
    rows = values = 0
    late = 0.0
    start = time.monotonic()
    for second in range(seconds):
        templates = pool[second % len(pool)]
        for place, template in enumerate(templates):
            due = start + second + place / len(templates)
            ahead = due - time.monotonic()
            if ahead > 0.002:
                time.sleep(ahead)
            late = max(late, -ahead)
            each = template.encoded
            pair = (each.stream, each.message.key)
            numbers[pair] = numbers.get(pair, 0) + 1
            now_ms = round(datetime.now(UTC).timestamp() * 1000)
            value, headers = template.at(now_ms, numbers[pair])
            producer.send(each.stream, key=each.message.key, value=value, headers=headers)
            rows += each.rows
            values += each.values
    producer.flush()
    producer.close()
    return rows, values, late


def _page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        return str(page.read().decode())


def _quantile(page: str, share: float) -> float:
    """Upper edge of the bucket that holds this share of all messages."""
    counts: dict[float, float] = {}
    for edge, _, count in _BUCKET.findall(page):
        counts[float(edge.replace("+Inf", "inf"))] = counts.get(
            float(edge.replace("+Inf", "inf")), 0.0
        ) + float(count)
    total = max(counts.values())
    return next(edge for edge in sorted(counts) if counts[edge] >= share * total)


def _freshness(on: Stage, contracts: Contracts) -> tuple[float, float]:
    union = " UNION ALL ".join(
        f"SELECT dateDiff('millisecond', sampled_at, ingested_at) AS ms FROM telemetry.{name}"
        for name in contracts
    )
    with connect(on.settings) as client:
        answer = client.query(f"SELECT quantiles(0.5, 0.99)(ms) FROM ({union})").result_rows
    middle, high = answer[0][0]
    return float(middle) / 1000, float(high) / 1000
