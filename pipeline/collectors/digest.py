"""A page to rows in the wire schema: read, place, see what changed, say how the target is."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa

from pipeline.collectors.changes import Changes
from pipeline.collectors.fetch import Fetched
from pipeline.collectors.health import COUNTED, Change, TargetHealth
from pipeline.collectors.jobs import Jobs
from pipeline.collectors.log_lines import LogLines
from pipeline.collectors.page import Page, Reading
from pipeline.collectors.placement import Placer
from pipeline.collectors.readers import kmsg
from pipeline.collectors.registry import reader
from pipeline.collectors.rows import clean, table_of
from pipeline.collectors.targets import Target
from pipeline.streams import Contracts
from pipeline.streams.arrow import conform

log = logging.getLogger("rackpulse.collect")

# Kinds whose page is text of whole lines: one that ends in the middle of a line was cut.
# Not so the others: JSON needs no line end, and a log may be read while a line is written.
TEXT_KINDS = frozenset(
    {"dcgm", "nmxt", "ib_exporter", "node_exporter_ib", "perfquery", "ibstat", "ibswinfo"}
)


MAX_ADDRESSES = 200_000
_MISFITS = (KeyError, ValueError, TypeError, pa.ArrowException)


@dataclass(slots=True)
class Digest:
    """What became of one read.

    Attributes:
        tables: rows by stream, as the readers made them.
        about: row of ``component`` about the target; many of them become one table
            (:meth:`Digester.finish`), for a table of one row costs as much.
        rejected: refused readings by reason and column.
    """

    about: dict[str, object] = field(default_factory=dict)
    tables: dict[str, list[pa.Table]] = field(default_factory=dict)
    rejected: Counter[tuple[str, str]] = field(default_factory=Counter)


class Digester:
    """Makes rows of pages. Called from one thread at a time.

    Attributes:
        placer: may be exchanged when the topology file changes.
        jobs: may be exchanged when the job file changes.
    """

    def __init__(
        self, contracts: Contracts, placer: Placer, log_lines: LogLines | None = None
    ) -> None:
        self._contracts = contracts
        self.placer = placer
        self.log_lines = log_lines or LogLines()
        self.jobs = Jobs()
        self._changes = Changes()
        self._gpu_at: dict[tuple[str, str], str] = {}
        # Where a target's last page said that its GPUs are.
        self._addresses: dict[str, pa.Table] = {}

    def forget(self, target_name: str) -> None:
        """Drop what is kept about a target."""
        self._changes.forget(target_name)
        self._addresses.pop(target_name, None)
        self.log_lines.forget(target_name)

    def digest(
        self,
        target: Target,
        health: TargetHealth,
        fetched: Fetched | None,
        outcome: str,
        received: datetime,
        cluster: str,
        now: float,
    ) -> Digest:
        """Make rows of one read.

        Args:
            fetched: None where the read did not work.
            outcome: why, in that case.
            received: when it ended, aware.
            now: monotonic time in seconds.
        """
        cluster = target.cluster or cluster
        reading = Reading()
        if fetched is not None:
            page = Page(
                fetched.body, target.name, received, cluster, target.host, fetched.content_type
            )
            try:
                reading = self._read(target, page)
            except Exception:  # a reader's bug costs this page, not the collector
                log.exception("the reader of %s", target.name)
                outcome = "reader_failed"
                fetched = None
        if fetched is not None and not reading.rows and target.kind in COUNTED:
            # It answers, but with nothing that the reader knows: as good as no answer.
            fetched, outcome = None, "no_readings"
        if fetched is None:
            changes = health.failed(outcome, now)
        else:
            # A node that does not answer perfquery leaves no text, which is not half a text.
            cut = target.kind in TEXT_KINDS and fetched.body[-1:] not in (b"", b"\n")
            changes = health.read(reading.tables, truncated=cut, now=now)
        digest = Digest(rejected=reading.rejected)
        digest.about = self._health_row(target, health, received, cluster)
        for stream, table in reading.tables.items():
            self._look(digest, target, stream, table)
        if changes:
            self._add(digest, "event", self._events(target, changes, received, cluster))
        return digest

    def _look(self, digest: Digest, target: Target, stream: str, table: pa.Table) -> None:
        """Keep a page's rows of one stream, and see what changed in them."""
        try:
            if stream == "gpu":
                self._learn_addresses(target.name, table)
            events = self._changes.look(target.name, stream, table, self._rack_of)
        except (KeyError, ValueError, TypeError, pa.ArrowException) as exc:
            # Seen before the rows are checked against the contract, which costs them below.
            log.error("changes in rows of %s from %s: %s", stream, target.name, exc)
            events = []
        self._add(digest, stream, table)
        if events:
            self._add(digest, "event", table_of(self._contracts["event"], events))

    def _rack_of(self, manager: str) -> str | None:
        return self.placer.rack_of_manager(manager)

    def finish(
        self, parts: Mapping[str, list[pa.Table]], about: list[dict[str, object]]
    ) -> tuple[dict[str, pa.Table], Counter[str]]:
        """Rows of many pages as one table per stream: jobs, places, wire schema.

        Done for a window's pages together, for a table of few rows costs nearly as much as one
        of many. Rows of a page that does not fit the contract cost that page.

        Args:
            about: rows about targets.

        Returns:
            The tables, and the rows that did not fit by stream.
        """
        whole = {stream: list(tables) for stream, tables in parts.items()}
        if about:
            own = table_of(self._contracts["component"], about)
            whole.setdefault("component", []).append(own)
        refused: Counter[str] = Counter()
        finished = {}
        for stream, tables in whole.items():
            try:
                finished[stream] = self._whole(stream, tables)
            except _MISFITS:
                good = []
                for table in tables:
                    try:
                        good.append(self._whole(stream, [table]))
                    except _MISFITS as exc:
                        refused[stream] += table.num_rows
                        log.error("rows of %s do not fit the contract: %s", stream, exc)
                if good:
                    finished[stream] = pa.concat_tables(good).unify_dictionaries()
        return finished, refused

    def _whole(self, stream: str, tables: list[pa.Table]) -> pa.Table:
        table = tables[0]
        if len(tables) > 1:
            table = pa.concat_tables(tables, promote_options="default").unify_dictionaries()
        table = table.combine_chunks()
        if stream == "gpu":
            table = self.jobs.fill(table)
        return conform(self._contracts[stream], self.placer.place(table, stream))

    def _read(self, target: Target, page: Page) -> Reading:
        if target.kind != kmsg.KIND:
            return reader(target.kind).read(page, self._contracts)
        reading = Reading()
        events = kmsg.log_events(page, reading)
        fresh = self.log_lines.new(target.name, events, page.received_at)
        rows = [
            kmsg.event_row(event, page, event.uuid or self._gpu(page, event)) for event in fresh
        ]
        if rows:
            reading.tables["event"] = table_of(self._contracts["event"], rows)
        return reading

    def _gpu(self, page: Page, event: kmsg.LogEvent) -> str | None:
        """The GPU at a PCI address, as its exporter told it."""
        return self._gpu_at.get((page.host or page.target, event.pci or ""))

    def _learn_addresses(self, target: str, table: pa.Table) -> None:
        if "pci_bus_id" not in table.column_names or "host" not in table.column_names:
            return
        said = table.select(["host", "pci_bus_id", "gpu_uuid"])
        if target in self._addresses and said.equals(self._addresses[target]):
            return
        self._addresses[target] = said
        for host, address, uuid in zip(*(c.to_pylist() for c in said.columns), strict=True):
            pci = kmsg.pci_address(address)
            if host and pci:
                if len(self._gpu_at) > MAX_ADDRESSES:
                    self._gpu_at.clear()
                    self._addresses.clear()
                self._gpu_at[host, pci] = uuid

    def _add(self, digest: Digest, stream: str, table: pa.Table) -> None:
        digest.tables.setdefault(stream, []).append(table)

    def _health_row(
        self, target: Target, health: TargetHealth, received: datetime, cluster: str
    ) -> dict[str, object]:
        return {
            "cluster": cluster,
            "source": "collector",
            "sampled_at": received,
            "target": target.name,
            "host": target.host,
            "manager_id": target.manager_id or target.host or target.name,
            "component_id": f"target/{clean(target.name)}",
            "entity_type": "target",
            "name": target.name,
            "state": health.state,
            "up": bool(health.up),
            "entities_expected": health.expected,
            "entities_reporting": health.reporting,
            "scrape_ms": (health.scrape_s or 0.0) * 1000,
        }

    def _events(
        self, target: Target, changes: Sequence[Change], received: datetime, cluster: str
    ) -> pa.Table:
        rows = [
            {
                "cluster": cluster,
                "source": "collector",
                "sampled_at": received,
                "target": target.name,
                "host": target.host,
                "entity_kind": change.entity_kind,
                "entity_id": change.entity_id or target.name,
                "kind": change.kind,
                "code": "",
                "severity": change.severity,
                "message": clean(change.message),
                "previous": change.previous,
                "current": change.current,
            }
            for change in changes
        ]
        return table_of(self._contracts["event"], rows)
