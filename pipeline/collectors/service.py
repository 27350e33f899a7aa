"""The collecting service: many targets, each with its own interval and time-out.

One task per target reads it; parsing runs in one worker thread, so that the event loop
stays free and a slow or broken target delays no other; another thread hands the rows of
each short window to the sink.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import resource
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.clock import Clock, SystemClock
from pipeline.collectors.batches import Batches, Sink
from pipeline.collectors.digest import Digest, Digester
from pipeline.collectors.discovery import Discovery, mark_of
from pipeline.collectors.fetch import Fetched, Fetcher, FetcherFactory, FetchError, LateFetcher
from pipeline.collectors.health import Limits, TargetHealth
from pipeline.collectors.jobs import load_jobs
from pipeline.collectors.log_lines import LogLines
from pipeline.collectors.placement import Placer
from pipeline.collectors.targets import Target
from pipeline.errors import ConfigError, SlowDownError
from pipeline.metrics import (
    COLLECTOR_DROPPED,
    COLLECTOR_LATENESS,
    COLLECTOR_PEAK_MEMORY,
    COLLECTOR_REJECTED,
    COLLECTOR_ROWS,
    COLLECTOR_SCRAPE_SECONDS,
    COLLECTOR_SCRAPES,
    COLLECTOR_SKIPPED,
    COLLECTOR_TARGETS,
    SPOOL_BYTES,
    SPOOL_DROPPED,
    SPOOL_SENT,
    TARGET_EXPECTED,
    TARGET_REPORTING,
    TARGET_STATE,
    TARGET_UP,
    Metrics,
)
from pipeline.service import Health
from pipeline.streams import Contracts
from pipeline.topology import Topology, load_topology

log = logging.getLogger("rackpulse.collect")


@dataclass(frozen=True, slots=True)
class Options:
    """How the service runs.

    Attributes:
        cluster: of targets that name none.
        window_s: pages read within so long become one message per key.
        watch_s: how often files are looked at for changes.
        flush_timeout_s: how long the end waits for Kafka; what is not sent stays spooled.
        log_lines: file that keeps which log lines were told; None keeps them in memory.
    """

    cluster: str
    window_s: float = 1.0
    watch_s: float = 2.0
    flush_timeout_s: float = 10.0
    log_lines: Path | None = None
    limits: Limits = field(default_factory=Limits)


@dataclass(slots=True)
class _Running:
    target: Target
    task: asyncio.Task[None]
    health: TargetHealth


class Collector:
    """Reads all targets until it is told to stop.

    Args:
        discovery: names the targets.
        topology_path: topology file, watched too; None leaves rows unplaced.
        jobs_path: file of the scheduler, watched too.
        sink: where rows go.
        fetchers: makes what reads a target; tests put their own.
    """

    def __init__(
        self,
        contracts: Contracts,
        discovery: Discovery,
        sink: Sink,
        options: Options,
        *,
        topology_path: Path | None = None,
        jobs_path: Path | None = None,
        metrics: Metrics | None = None,
        health: Health | None = None,
        clock: Clock | None = None,
        fetchers: Callable[[Target], Fetcher] | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._contracts = contracts
        self._discovery = discovery
        self._sink = sink
        self._options = options
        self._topology_path = topology_path
        self._topology: Topology | None = None
        self._jobs_path = jobs_path
        self._jobs_mark = (0, 0, 0)
        self._topology_mark: tuple[int, int, int] | None = None
        self._metrics = metrics or Metrics()
        self._health = health or Health()
        self._fetchers = fetchers or FetcherFactory(self._clock).make
        self._batches = Batches()
        self._about: list[dict[str, object]] = []
        self._digester = Digester(contracts, Placer(contracts, None), LogLines(options.log_lines))
        self._running: dict[str, _Running] = {}
        self._parse = ThreadPoolExecutor(1, thread_name_prefix="parse")
        self._store = ThreadPoolExecutor(1, thread_name_prefix="sink")
        # Work that must not be broken off in the middle: rows would be lost.
        self._whole: set[asyncio.Task[None]] = set()
        self._handing_over = asyncio.Lock()
        self._tried: set[str] = set()
        self._dropped_told: dict[str, int] = {}

    @property
    def targets(self) -> dict[str, TargetHealth]:
        """State of each target by name."""
        return {name: running.health for name, running in self._running.items()}

    async def run(self, stop: asyncio.Event) -> None:
        """Read until ``stop`` is set, then hand over what was read and end."""
        self._load_topology(first=True)
        self._load_jobs()
        await self._apply(await self._discovery.first())
        helpers = [
            asyncio.create_task(self._every(self._options.window_s, self._hand_over)),
            asyncio.create_task(self._every(self._options.watch_s, self._look_for_changes)),
        ]
        try:
            await stop.wait()
        finally:
            await self._end(helpers)

    async def _end(self, helpers: list[asyncio.Task[None]]) -> None:
        tasks = [running.task for running in self._running.values()]
        for task in [*tasks, *helpers]:
            task.cancel()
        await asyncio.gather(*tasks, *helpers, return_exceptions=True)
        await asyncio.gather(*self._whole, return_exceptions=True)
        loop = asyncio.get_running_loop()
        await self._hand_over()
        sent = await loop.run_in_executor(
            self._store, self._sink.flush, self._options.flush_timeout_s
        )
        if not sent:
            log.warning("Kafka did not take everything in time: the rest stays in the spool")
        await loop.run_in_executor(self._store, self._sink.close, 5.0)
        self._parse.shutdown()
        self._store.shutdown()

    async def _wholly(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that goes on to its end also when the caller is cancelled."""
        task = asyncio.create_task(work)
        self._whole.add(task)
        task.add_done_callback(self._whole.discard)
        await asyncio.shield(task)

    async def _every(self, seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await self._wholly(work())
            except Exception:
                log.exception("trying again in %g s", seconds)

    # ------------------------------------------------------------ targets

    async def _look_for_changes(self) -> None:
        self._load_topology(first=False)
        self._load_jobs()
        changed = await self._discovery.changed()
        if changed is not None:
            await self._apply(changed)

    async def _apply(self, targets: dict[str, Target]) -> None:
        for name in [n for n, r in self._running.items() if targets.get(n) != r.target]:
            await self._stop_target(name)
        for name, target in targets.items():
            if name not in self._running:
                self._start_target(target)
        self._metrics.gauge(COLLECTOR_TARGETS).set(len(self._running))
        if not targets:
            self._health.ready()

    def _start_target(self, target: Target) -> None:
        fetcher = LateFetcher(target, self._fetchers)
        health = TargetHealth(target, self._options.limits)
        self._expect(health)
        task = asyncio.create_task(self._read_on(target, fetcher, health), name=target.name)
        self._running[target.name] = _Running(target, task, health)

    async def _stop_target(self, name: str) -> None:
        running = self._running.pop(name)
        running.task.cancel()
        await asyncio.gather(running.task, return_exceptions=True)
        self._digester.forget(name)
        self._tried.discard(name)
        self._show_target(running.health, gone=True)

    def _load_topology(self, *, first: bool) -> None:
        if self._topology_path is None:
            return
        mark = mark_of(self._topology_path)
        if mark == self._topology_mark:
            return
        try:
            self._topology = load_topology(self._topology_path)
        except ConfigError as exc:
            if first:
                raise
            log.warning("keeping the topology that was read before: %s", exc)
            self._topology_mark = mark
            return
        self._topology_mark = mark
        self._digester.placer = Placer(self._contracts, self._topology)
        for running in self._running.values():
            self._expect(running.health)

    def _load_jobs(self) -> None:
        """The jobs now; a file that is missing or wrong keeps those read before."""
        if self._jobs_path is None or mark_of(self._jobs_path) == self._jobs_mark:
            return
        self._jobs_mark = mark_of(self._jobs_path)
        try:
            self._digester.jobs = load_jobs(self._jobs_path)
        except ConfigError as exc:
            log.warning("keeping the jobs that were read before: %s", exc)

    def _expect(self, health: TargetHealth) -> None:
        host = health.target.host
        if self._topology is not None and host and health.target.kind == "dcgm":
            gpus = frozenset(
                entity.id
                for entity in self._topology.entities
                if entity.kind == "gpu" and entity.host == host
            )
            health.expected_by_topology = gpus or None

    # ------------------------------------------------------------ reading

    async def _read_on(self, target: Target, fetcher: Fetcher, health: TargetHealth) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._offset(target)
        try:
            while True:
                await asyncio.sleep(due - loop.time())
                health.late_s = max(0.0, loop.time() - due)
                self._metrics.histogram(COLLECTOR_LATENESS).observe(health.late_s)
                await self._read_once(target, fetcher, health)
                self._health.beat()
                due += target.interval_s
                missed = math.ceil((loop.time() - due) / target.interval_s)
                if missed > 0:
                    self._metrics.counter(COLLECTOR_SKIPPED).inc(missed)
                    due += missed * target.interval_s
        finally:
            await fetcher.close()

    def _offset(self, target: Target) -> float:
        """When in the interval a target is read.

        Targets of one rack are read close together, so that their rows share messages;
        racks are spread over the interval.
        """
        place = self._topology.place("host", target.host or "") if self._topology else None
        group = (place.rack if place else None) or target.manager_id or target.name
        spread = max(0.0, target.interval_s - self._options.window_s)
        jitter = min(self._options.window_s, target.interval_s) * 0.8
        return _share(group) * spread + _share(target.name) * jitter

    async def _read_once(self, target: Target, fetcher: Fetcher, health: TargetHealth) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            fetched = await fetcher.fetch()
        except FetchError as exc:
            outcome, page = exc.reason, None
        except Exception as exc:  # one target's surprise must not end its loop
            log.exception("target %s", target.name)
            outcome, page = f"error_{type(exc).__name__}", None
        else:
            outcome, page = "ok", fetched
        health.scrape_s = loop.time() - began
        await self._wholly(self._take(target, health, page, outcome))

    async def _take(
        self, target: Target, health: TargetHealth, page: Fetched | None, outcome: str
    ) -> None:
        """Make rows of what came, and let them wait for the next window's end."""
        received = self._clock.now()
        loop = asyncio.get_running_loop()
        digest = await loop.run_in_executor(
            self._parse, self._digester.digest, target, health, page, outcome, received,
            self._options.cluster, loop.time(),
        )  # fmt: skip
        self._batches.add(digest.tables)
        self._about.append(digest.about)
        self._count(target, health, digest, outcome)
        self._tried.add(target.name)
        if len(self._tried) >= len(self._running):
            self._health.ready()

    def _count(self, target: Target, health: TargetHealth, digest: Digest, outcome: str) -> None:
        metrics = self._metrics
        metrics.counter(COLLECTOR_SCRAPES, target.kind, outcome).inc()
        metrics.histogram(COLLECTOR_SCRAPE_SECONDS, target.kind).observe(health.scrape_s or 0.0)
        for (reason, column), count in digest.rejected.items():
            metrics.counter(COLLECTOR_REJECTED, target.name, reason, column).inc(count)
        self._show_target(health)

    def _show_target(self, health: TargetHealth, *, gone: bool = False) -> None:
        name, kind = health.target.name, health.target.kind
        up = self._metrics.gauge(TARGET_UP, name, kind)
        states = self._metrics.gauge(TARGET_STATE, name, health.state)
        if health.shown_state not in (None, health.state) or gone:
            self._metrics.remove(TARGET_STATE, name, health.shown_state or health.state)
        if gone:
            self._metrics.remove(TARGET_UP, name, kind)
            self._metrics.remove(TARGET_EXPECTED, name)
            self._metrics.remove(TARGET_REPORTING, name)
            return
        health.shown_state = health.state
        up.set(1 if health.up else 0)
        states.set(1)
        if health.expected is not None:
            self._metrics.gauge(TARGET_EXPECTED, name).set(health.expected)
            self._metrics.gauge(TARGET_REPORTING, name).set(health.reporting or 0)

    # ------------------------------------------------------------ handing over

    async def _hand_over(self) -> None:
        async with self._handing_over:
            await self._hand_over_now()

    async def _hand_over_now(self) -> None:
        loop = asyncio.get_running_loop()
        about, self._about = self._about, []
        tables, refused = await loop.run_in_executor(
            self._parse, self._digester.finish, self._batches.take(), about
        )
        self._batches.dropped.update(refused)
        safe = True
        for stream, table in tables.items():
            try:
                await loop.run_in_executor(self._store, self._sink.put, stream, table)
            except (SlowDownError, OSError) as exc:
                log.warning("the spool does not take rows of %s now: %s", stream, exc)
                self._batches.give_back(stream, table)
                safe = False
                continue
            except Exception:
                # Rows that can never be spooled must not stand before all others.
                log.exception("%d rows of %s are dropped", table.num_rows, stream)
                self._batches.dropped[stream] += table.num_rows
                continue
            self._metrics.counter(COLLECTOR_ROWS, stream).inc(table.num_rows)
        if safe:
            await loop.run_in_executor(self._store, self._digester.log_lines.keep)
        for stream, dropped in self._batches.dropped.items():
            new = dropped - self._dropped_told.get(stream, 0)
            if new:
                self._metrics.counter(COLLECTOR_DROPPED, stream).inc(new)
                self._dropped_told[stream] = dropped
        self._show_spool()
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self._metrics.gauge(COLLECTOR_PEAK_MEMORY).set(peak_kib * 1024)
        self._health.beat()

    def _show_spool(self) -> None:
        stats = getattr(self._sink, "stats", None)
        if stats is not None:
            self._metrics.gauge(SPOOL_BYTES).set(stats.spooled_bytes)
            self._metrics.gauge(SPOOL_SENT).set(stats.sent_messages)
            self._metrics.gauge(SPOOL_DROPPED).set(stats.dropped_rows)


def _share(text: str) -> float:
    """A number from 0 to 1 that follows from the text alone."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
