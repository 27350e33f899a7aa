"""Running the collecting service in tests."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.collectors.discovery import Discovery
from pipeline.collectors.health import Limits
from pipeline.collectors.service import Collector, Options
from pipeline.metrics import Metrics
from pipeline.service import Health
from pipeline.streams import load_contracts

CONTRACTS = load_contracts()
QUICK = Limits(down_after=2, stale_after=3.0, frozen_after=3, frozen_after_s=0.0)


class MemorySink:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.tables: dict[str, list[pa.Table]] = {}
        self.flushed = self.closed = False
        self.broken: Exception | None = None

    def put(self, stream_name: str, table: pa.Table) -> None:
        if self.broken is not None:
            raise self.broken
        with self._lock:
            self.tables.setdefault(stream_name, []).append(table)

    def flush(self, timeout_s: float) -> bool:
        self.flushed = True
        return True

    def close(self, timeout_s: float) -> None:
        self.closed = True

    def rows(self, stream: str) -> list[dict[str, Any]]:
        with self._lock:
            tables = list(self.tables.get(stream, []))
        return [row for table in tables for row in table.to_pylist()]


def write_targets(path: Path, targets: list[dict[str, Any]]) -> Path:
    """Replace a target file in one step, as one should."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"targets": targets}))
    new.replace(path)
    return path


def run_service(
    files: list[Path],
    sink: MemorySink,
    script: Callable[[Collector], Awaitable[None]],
    *,
    topology: Path | None = None,
    limits: Limits = QUICK,
    window_s: float = 0.05,
    metrics: Metrics | None = None,
    **kwargs: Any,
) -> Collector:
    """Run the service until ``script`` has ended, then stop it in order."""

    async def main() -> Collector:
        options = Options("test", window_s=window_s, watch_s=0.05, limits=limits)
        service = Collector(
            CONTRACTS, Discovery(files), sink, options,
            topology_path=topology, metrics=metrics, health=Health(), **kwargs,
        )  # fmt: skip
        stop = asyncio.Event()
        running = asyncio.create_task(service.run(stop))
        try:
            await asyncio.wait_for(script(service), 300)
        finally:
            stop.set()
            await running
        return service

    return asyncio.run(main())


async def until(check: Callable[[], Any], what: str, timeout_s: float = 20.0) -> Any:
    """Poll until ``check`` answers something true."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not (found := check()):
        assert loop.time() < deadline, f"waited {timeout_s:g} s for: {what}"
        await asyncio.sleep(0.02)
    return found
