"""(e) A real peer: an OpenTelemetry collector with its Kafka receiver and ClickHouse exporter.

It is built from Go modules in a folder outside the project, and gets the GPU readings of the
same fleet as OTLP metrics: one data point per reading, with the GPU, its host and rack as
attributes. Its queue is told to wait when it is full; by default it drops.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from kafka import KafkaProducer
from kafka.admin import NewTopic
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from bench.fleet import Fleet
from bench.stage import Sampler, Stage, stage
from bench.writer import Result
from pipeline.bus.codec import decode
from pipeline.bus.endpoint import ask_admin, producer_options
from pipeline.streams import Contracts
from tests.writer.running import RunningWriter

VERSION = "0.165.0"
_TOPIC = "otlp_metrics"
_DATABASE = "otel"
_METRICS_PER_MESSAGE = 20
_QUIET_S = 30.0
_CONTRIB = "github.com/open-telemetry/opentelemetry-collector-contrib"
_BUILD = {
    "dist": {"name": "otelcol", "output_path": "./dist"},
    "receivers": [{"gomod": f"{_CONTRIB}/receiver/kafkareceiver v{VERSION}"}],
    "exporters": [{"gomod": f"{_CONTRIB}/exporter/clickhouseexporter v{VERSION}"}],
}


class NoPeerError(Exception):
    """The collector cannot be had here; the text says why."""


def build() -> Path:
    """The collector's program, built once in a temporary folder.

    Raises:
        NoPeerError: there is no Go, or it could not be built.
    """
    folder = Path(tempfile.gettempdir()) / f"rackpulse-otelcol-{VERSION}"
    program = folder / "dist" / "otelcol"
    if program.exists():
        return program
    if not shutil.which("go"):
        raise NoPeerError("Go is not on PATH")
    folder.mkdir(exist_ok=True)
    (folder / "build.yaml").write_text(json.dumps(_BUILD), encoding="utf-8")
    builder = f"go.opentelemetry.io/collector/cmd/builder@v{VERSION}"
    env = {**os.environ, "GOBIN": str(folder / "bin")}
    for command in (["go", "install", builder], ["bin/builder", "--config", "build.yaml"]):
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True,
                              check=False)  # fmt: skip
        if done.returncode:
            raise NoPeerError(f"{' '.join(command)} failed: {done.stderr.strip()[-300:]}")
    return program


class _Collector(RunningWriter):
    """The collector, where a stage expects a writer."""

    def __init__(self, on: Stage, program: Path) -> None:
        super().__init__(on.folder, on.settings, name="otelcol")
        self._program = program
        self._config = on.folder / "otelcol.yaml"
        self._config.write_text(json.dumps(_config(on)), encoding="utf-8")

    def start(self) -> _Collector:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [str(self._program), "--config", str(self._config)],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        return self


def _config(on: Stage) -> dict[str, Any]:
    owner = on.store.users.owner
    return {
        "receivers": {"kafka": {
            "brokers": [on.kafka.bootstrap],
            "initial_offset": "earliest",
            "metrics": {"topics": [_TOPIC], "encoding": "otlp_proto"},
            "message_marking": {"after": True},
        }},
        "exporters": {"clickhouse": {
            "endpoint": on.store.url,
            "username": owner.user,
            "password": owner.password,
            "database": _DATABASE,
            "async_insert": False,
            "timeout": "60s",
            "sending_queue": {"block_on_overflow": True, "batch": {}},
        }},
        "service": {
            "pipelines": {"metrics": {"receivers": ["kafka"], "exporters": ["clickhouse"]}},
            "telemetry": {"metrics": {"level": "none"}},
        },
    }  # fmt: skip


def collector(contracts: Contracts, seconds: int, size: float = 1.0) -> Result:
    """From a full topic into the embedded store over HTTP, as (a) is for ours.

    Raises:
        NoPeerError: it cannot be built here.
    """
    program = build()
    with (
        tempfile.TemporaryDirectory(prefix="rackpulse-bench-") as folder,
        stage(Path(folder), contracts) as on,
    ):
        ask_admin(on.settings, lambda admin: admin.create_topics([NewTopic(_TOPIC, 4, 1)]))
        points = _fill(on, contracts, Fleet(contracts, size), seconds)
        on.stored()  # a client for wait_merged
        on.writer = _Collector(on, program).start()
        with Sampler(on) as seen:
            wall, stored = _wait(on, points)
            on.wait_merged()
        names = ("writer", "store", "broker")
        note = "" if stored == points else f"{points - stored} of {points} values lost"
        return Result(
            "e", points, stored, wall,
            {name: seen.cpu(name) for name in names},
            {name: seen.peak_mb(name) for name in names}, note,
        )  # fmt: skip


def _wait(on: Stage, points: int) -> tuple[float, int]:
    """Wait until all are stored or nothing more comes; seconds to the last, values stored."""
    start = last_at = time.monotonic()
    last = 0
    with on.store.client() as client:
        while last < points and time.monotonic() - last_at < _QUIET_S:
            time.sleep(0.5)
            rows = client.query(
                "SELECT sum(rows) FROM system.parts WHERE active AND database = {name:String}",
                parameters={"name": _DATABASE},
            ).result_rows
            if int(rows[0][0]) > last:
                last, last_at = int(rows[0][0]), time.monotonic()
    return last_at - start, last


def _fill(on: Stage, contracts: Contracts, fleet: Fleet, seconds: int) -> int:
    producer = KafkaProducer(
        **producer_options(on.settings), acks="all", compression_type="zstd", linger_ms=20,
    )  # fmt: skip
    points = 0
    for number in range(seconds):
        for each in fleet.second(number):
            if each.stream != "gpu":
                continue
            batch = decode(contracts, each.message.headers, each.message.value).batch
            for body, count in _as_otlp(batch):
                producer.send(_TOPIC, key=each.message.key, value=body)
                points += count
    producer.flush()
    producer.close()
    return points


def _as_otlp(batch: pa.RecordBatch) -> Iterator[tuple[bytes, int]]:
    """A batch of GPU rows as OTLP messages, and the data points of each."""
    names = [
        field.name for field in batch.schema
        if field.name != "sampled_at" and batch.column(field.name).null_count < batch.num_rows
        and (pa.types.is_floating(field.type) or pa.types.is_integer(field.type))
    ]  # fmt: skip
    labels = {name: batch.column(name).to_pylist() for name in ("gpu_uuid", "host", "rack")}
    times = batch.column("sampled_at").cast(pa.int64()).to_pylist()
    for start in range(0, len(names), _METRICS_PER_MESSAGE):
        request = ExportMetricsServiceRequest()
        resource = request.resource_metrics.add()
        attribute = resource.resource.attributes.add()
        attribute.key, attribute.value.string_value = "service.name", "dcgm"
        scope = resource.scope_metrics.add()
        count = 0
        for name in names[start : start + _METRICS_PER_MESSAGE]:
            metric = scope.metrics.add()
            metric.name = name
            for row, value in enumerate(batch.column(name).to_pylist()):
                if value is None:
                    continue
                point = metric.gauge.data_points.add()
                point.time_unix_nano = times[row] * 1_000_000
                point.as_double = float(value)
                for label, texts in labels.items():
                    mark = point.attributes.add()
                    mark.key, mark.value.string_value = label, str(texts[row])
                count += 1
        yield request.SerializeToString(), count
