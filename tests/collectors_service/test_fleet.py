"""The reference fleet's 1,152 hosts every 10 s, one in five of them sick."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.clock import SystemClock
from pipeline.collectors.fetch import Fetched, Fetcher, FetcherFactory
from pipeline.collectors.health import Limits, TargetHealth
from pipeline.collectors.service import Collector
from pipeline.collectors.targets import Target
from pipeline.metrics import Metrics
from tests.collectors_service.helpers import MemorySink, run_service, write_targets
from tests.support.sick_hall import SickHall, hosts

# 64 racks are the reference fleet; fewer for a short run, in which nothing else changes.
RACKS = int(os.environ.get("RACKPULSE_TEST_RACKS", "64"))
INTERVAL_S = 10.0
FIRST, INTERVALS = 2, 7
# 5 % each: what is served, and what it must be called.
SICK = {"hang": "timed_out", "500": "http_500", "cut": "truncated", "frozen": "frozen"}
P99_LATE_S = 1.0
PEAK_MIB = 1_000


class CountingSink(MemorySink):
    """Counts rows by host, and keeps none: memory is what is measured."""

    def __init__(self) -> None:
        super().__init__()
        self.gpus: Counter[str] = Counter()
        self.count = 0

    def put(self, stream_name: str, table: Any) -> None:
        self.count += table.num_rows
        if stream_name == "gpu":
            for entry in table.column("host").value_counts().to_pylist():
                self.gpus[entry["values"]] += entry["counts"]


class Watch:
    """How late each read of each target began, as its own fetcher sees it."""

    def __init__(self) -> None:
        self.health: dict[str, TargetHealth] = {}
        self.late: dict[str, list[float]] = {}
        self._factory = FetcherFactory(SystemClock())

    def make(self, target: Target) -> Fetcher:
        return _Watched(self, target.name, self._factory.make(target))


class _Watched:
    def __init__(self, watch: Watch, name: str, fetcher: Fetcher) -> None:
        self._watch, self._name, self._fetcher = watch, name, fetcher

    async def fetch(self) -> Fetched:
        if self._name in self._watch.health:
            late = self._watch.health[self._name].late_s
            self._watch.late.setdefault(self._name, []).append(late)
        return await self._fetcher.fetch()

    async def close(self) -> None:
        await self._fetcher.close()


def cpu_s(pid: int) -> float:
    """Processor time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fleet_with_sick_targets(tmp_path: Path) -> None:
    names = hosts(RACKS)
    kinds = list(SICK)
    modes = {host: kinds[n % 20] for n, host in enumerate(names) if n % 20 < len(kinds)}
    sink, metrics, watch = CountingSink(), Metrics(), Watch()
    limits = Limits(frozen_after=5, frozen_after_s=50)
    seconds = INTERVALS * INTERVAL_S
    used: dict[str, float] = {}
    states: dict[str, str] = {}
    with SickHall(tmp_path, RACKS, modes) as hall:
        rows = [
            {"name": f"dcgm/{host}", "kind": "dcgm", "host": host, "timeout_s": 5,
             "url": f"http://127.0.0.1:{hall.port}/dcgm/{host}/metrics",
             "interval_s": INTERVAL_S}
            for host in names
        ]  # fmt: skip
        files = [write_targets(tmp_path / "targets.json", rows)]

        async def script(service: Collector) -> None:
            await asyncio.sleep(FIRST * INTERVAL_S)  # first contact: connections, imports
            before = time.process_time(), cpu_s(hall.pid)
            watch.health = service.targets
            await asyncio.sleep(seconds)
            used["collector"] = (time.process_time() - before[0]) / seconds
            used["hall"] = (cpu_s(hall.pid) - before[1]) / seconds
            states.update({name: health.state for name, health in service.targets.items()})

        run_service(
            files, sink, script, limits=limits, window_s=1.0, metrics=metrics, fetchers=watch.make
        )
    well = [host for host in names if host not in modes]
    late = np.array([late for host in well for late in watch.late[f"dcgm/{host}"]])
    p99 = float(np.quantile(late, 0.99))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    called = Counter((modes.get(host, "ok"), states[f"dcgm/{host}"]) for host in names)
    print(
        f"\n{len(names)} targets every {INTERVAL_S:g} s, {len(modes)} of them sick, "
        f"{seconds:g} s: {late.size} reads of the {len(well)} healthy began late by p50 "
        f"{np.quantile(late, 0.5) * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, at most "
        f"{late.max() * 1000:.0f} ms; {sink.count} rows; peak memory {peak:.0f} MiB; "
        f"{used['collector']:.2f} of a core for the collector, {used['hall']:.2f} for the hall; "
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    for (mode, state), count in sorted(called.items()):
        print(f"  {count:5d} that serve {mode:6s} are called {state}")
    for host in names:
        assert states[f"dcgm/{host}"] == SICK.get(modes.get(host, ""), "ok"), host
    # The healthy keep their interval: one read in each, of all GPUs.
    reads = {host: len(watch.late[f"dcgm/{host}"]) for host in well}
    assert min(reads.values()) >= INTERVALS - 1, Counter(reads.values())
    assert min(sink.gpus[host] for host in well) >= 4 * (INTERVALS - 1)
    unread = {host for host, mode in modes.items() if mode != "frozen"}
    assert not unread & sink.gpus.keys()
    assert p99 < P99_LATE_S
    assert peak < PEAK_MIB
