"""The reference fleet's 1,152 hosts every 10 s, one in five of them sick."""

from __future__ import annotations

import asyncio
import resource
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.collectors.health import Limits
from pipeline.collectors.service import Collector
from pipeline.metrics import Metrics
from tests.collectors_service.helpers import MemorySink, run_service, write_targets
from tests.support.exporters import ExporterProcess

HOSTS = 1_152
INTERVAL_S = 10.0
LINES = 320
# 5 % each: what is served, and what it must be called.
SICK = {"hang": "timed_out", "500": "http_500", "cut": "truncated", "frozen": "frozen"}


class CountingSink(MemorySink):
    """Counts rows by host, and keeps none: memory is what is measured."""

    def __init__(self) -> None:
        super().__init__()
        self.gpus: dict[str, int] = {}
        self.count = 0

    def put(self, stream_name: str, table: Any) -> None:
        self.count += table.num_rows
        if stream_name == "gpu":
            for entry in table.column("host").value_counts().to_pylist():
                host = entry["values"]
                self.gpus[host] = self.gpus.get(host, 0) + entry["counts"]


def mode(number: int) -> str:
    return (list(SICK) * 5)[number % 20] if number % 20 < 4 else "ok"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fleet_with_sick_targets(tmp_path: Path) -> None:
    sink, metrics = CountingSink(), Metrics()
    limits = Limits(frozen_after=5, frozen_after_s=50)
    modes = {f"host-{number:04d}": mode(number) for number in range(HOSTS)}
    with ExporterProcess(extra_lines=LINES - 14) as server:
        rows = [
            {
                "name": f"dcgm/{host}", "kind": "dcgm", "host": host,
                "url": f"http://127.0.0.1:{server.port}/{how}/{host}",
                "interval_s": INTERVAL_S, "timeout_s": 5,
            }
            for host, how in modes.items()
        ]  # fmt: skip
        files = [write_targets(tmp_path / "targets.json", rows)]
        spent = [0.0, 0.0]

        async def script(service: Collector) -> None:
            await asyncio.sleep(2 * INTERVAL_S)  # first contact: connections, imports
            before = {name: _late(metrics, name) for name in ("0.5", "1.0", "+Inf")}
            spent[0] = time.process_time()
            await asyncio.sleep(7 * INTERVAL_S)
            spent[1] = time.process_time()
            late = {name: _late(metrics, name) - before[name] for name in before}
            share = (spent[1] - spent[0]) / (7 * INTERVAL_S)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"\n{HOSTS} targets, {late['+Inf'] / (7 * INTERVAL_S):.0f} reads/s: "
                f"{late['1.0'] / late['+Inf']:.2%} began within 1 s of their time, "
                f"{late['0.5'] / late['+Inf']:.2%} within 0.5 s; "
                f"{share:.2f} of a core; peak memory {peak:.0f} MiB"
            )
            assert late["1.0"] >= 0.99 * late["+Inf"]
            # All others keep their interval: seven reads in seven intervals, give or take one.
            states = {name: health.state for name, health in service.targets.items()}
            for host, how in modes.items():
                assert states[f"dcgm/{host}"] == SICK.get(how, "ok"), (host, how)
            assert peak < 1_000

        run_service(files, sink, script, limits=limits, window_s=1.0, metrics=metrics)
    well = [host for host, how in modes.items() if how == "ok"]
    assert min(sink.gpus.get(host, 0) for host in well) >= 4 * 8
    ill = {host for host, how in modes.items() if how in ("hang", "500", "cut")}
    assert not ill & sink.gpus.keys()


def _late(metrics: Metrics, bound: str) -> float:
    found = metrics.registry.get_sample_value(
        "rackpulse_collector_lateness_seconds_bucket", {"le": bound}
    )
    return found or 0.0
