"""The catalogue of all metrics: name, kind, labels and meaning in one typed place.

A process makes one :class:`Metrics` on its own registry and asks it for the metrics of the
catalogue; an unknown one is an error of the type checker. ``docs/metrics.md`` is made from
the catalogue by ``rackpulse docs metrics``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_ROWS = (1.0, 10.0, 100.0, 1_000.0, 10_000.0, 50_000.0, 100_000.0, 200_000.0, 500_000.0)


@dataclass(frozen=True)
class _Def:
    name: str
    meaning: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class CounterDef(_Def):
    """A number that only rises; its name ends in ``_total``."""


@dataclass(frozen=True)
class GaugeDef(_Def):
    """A number that goes up and down."""


@dataclass(frozen=True)
class HistogramDef(_Def):
    """A distribution, counted in ``buckets``."""

    buckets: tuple[float, ...] = _SECONDS


# ---------------------------------------------------------------- writer
WRITER_ROWS = CounterDef("rackpulse_writer_rows_total", "Rows stored", ("stream",))
WRITER_MESSAGES = CounterDef("rackpulse_writer_messages_total", "Messages stored", ("stream",))
WRITER_BYTES = CounterDef(
    "rackpulse_writer_read_bytes_total", "Message bytes read from Kafka", ("stream",)
)
WRITER_REPEATS = CounterDef(
    "rackpulse_writer_repeated_messages_total",
    "Messages that a collector had sent again and that were stored already",
    ("stream",),
)
WRITER_SEQUENCE_GAPS = CounterDef(
    "rackpulse_writer_sequence_gaps_total",
    "Holes in a collector's numbering; what is missing stands in telemetry.ingest_gap",
    ("stream",),
)
WRITER_UNKNOWN_COLUMNS = CounterDef(
    "rackpulse_writer_unknown_columns_total",
    "Columns left out of messages of a newer contract",
    ("stream", "column"),
)
WRITER_DEAD_LETTERS = CounterDef(
    "rackpulse_writer_dead_letters_total",
    "Messages that could not be read and were set aside",
    ("stream", "reason"),
)
WRITER_BAD_RATIO = GaugeDef(
    "rackpulse_writer_dead_letter_ratio",
    "Share of the latest messages that were set aside; the writer stops above its limit",
    ("stream",),
)
WRITER_GAPS = CounterDef(
    "rackpulse_writer_gaps_total",
    "Stretches of a log that can not be read any more, by kind",
    ("stream", "kind"),
)
WRITER_INSERTS = CounterDef("rackpulse_writer_inserts_total", "Blocks stored", ("stream",))
WRITER_INSERT_SECONDS = HistogramDef(
    "rackpulse_writer_insert_seconds", "Time from sending a block to its answer", ("stream",)
)
WRITER_BLOCK_ROWS = HistogramDef(
    "rackpulse_writer_block_rows", "Rows of a block", ("stream",), _ROWS
)
WRITER_RETRIES = CounterDef(
    "rackpulse_writer_retries_total",
    "Store requests that did not end well, by the store's reason",
    ("stream", "reason"),
)
WRITER_FENCED = CounterDef(
    "rackpulse_writer_fenced_inserts_total",
    "Blocks that stored nothing because another writer or an earlier try was first",
    ("stream",),
)
WRITER_TAKEOVERS = CounterDef(
    "rackpulse_writer_takeovers_total", "Partitions taken over", ("stream",)
)
WRITER_PARTITIONS = GaugeDef(
    "rackpulse_writer_partitions",
    "Partitions of this writer by state: waiting, open, paused, stopped",
    ("stream", "state"),
)
WRITER_LAG_MESSAGES = GaugeDef(
    "rackpulse_writer_lag_messages",
    "Messages in the log that are not stored yet",
    ("stream", "partition"),
)
WRITER_LAG_ROWS = GaugeDef(
    "rackpulse_writer_lag_rows",
    "Rows in the log that are not stored yet, from the rows per message seen lately",
    ("stream",),
)
WRITER_LAG_SECONDS = GaugeDef(
    "rackpulse_writer_lag_seconds",
    "Age of the oldest message that was read and is not stored yet; 0 when there is none",
    ("stream",),
)
WRITER_FRESHNESS = GaugeDef(
    "rackpulse_writer_freshness_seconds", "Now minus the newest stored sample", ("stream",)
)
WRITER_DELAY_SECONDS = HistogramDef(
    "rackpulse_writer_delay_seconds",
    "Time from a message's sending by its collector to the answer that its rows are stored",
    ("stream",),
    (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 10.0, 30.0, 60.0, 600.0),
)
WRITER_BUFFERED = GaugeDef(
    "rackpulse_writer_buffered_bytes", "Message bytes held until they are stored", ("stream",)
)
WRITER_REBALANCES = CounterDef("rackpulse_writer_rebalances_total", "Assignments by the group")
WRITER_PEAK_MEMORY = GaugeDef(
    "rackpulse_writer_peak_memory_bytes", "Highest resident memory of the process so far"
)


# ---------------------------------------------------------------- collector
COLLECTOR_SCRAPES = CounterDef(
    "rackpulse_collector_scrapes_total", "Reads of targets by outcome", ("kind", "outcome")
)
COLLECTOR_ROWS = CounterDef(
    "rackpulse_collector_rows_total", "Rows handed to the spool", ("stream",)
)
COLLECTOR_REJECTED = CounterDef(
    "rackpulse_collector_rejected_total",
    "Readings that were refused; the column is empty where a whole line was",
    ("target", "reason", "column"),
)
COLLECTOR_LATENESS = HistogramDef(
    "rackpulse_collector_lateness_seconds", "How late a read began after it was due"
)
COLLECTOR_SCRAPE_SECONDS = HistogramDef(
    "rackpulse_collector_scrape_seconds", "Time of a read as a whole", ("kind",)
)
COLLECTOR_SKIPPED = CounterDef(
    "rackpulse_collector_skipped_total", "Reads left out because the one before still ran"
)
COLLECTOR_DROPPED = CounterDef(
    "rackpulse_collector_dropped_rows_total",
    "Rows dropped before they were spooled, because too many waited",
    ("stream",),
)
COLLECTOR_TARGETS = GaugeDef("rackpulse_collector_targets", "Targets being read")
COLLECTOR_RELOADS = CounterDef(
    "rackpulse_collector_reloads_total", "Reloads of the target or topology file", ("outcome",)
)
COLLECTOR_PEAK_MEMORY = GaugeDef(
    "rackpulse_collector_peak_memory_bytes", "Highest resident memory of the process so far"
)
SPOOL_BYTES = GaugeDef("rackpulse_spool_bytes", "Bytes spooled and not acknowledged by Kafka")
SPOOL_SENT = GaugeDef("rackpulse_spool_sent_messages", "Messages that Kafka acknowledged")
SPOOL_DROPPED = GaugeDef("rackpulse_spool_dropped_rows", "Rows that a full spool had to drop")
TARGET_UP = GaugeDef(
    "rackpulse_target_up", "1 when the last read of the target worked", ("target", "kind")
)
TARGET_STATE = GaugeDef(
    "rackpulse_target_state",
    "1 for the state of the target: ok, partial, frozen, truncated, stale or why it is down",
    ("target", "state"),
)
TARGET_EXPECTED = GaugeDef(
    "rackpulse_target_entities_expected", "Entities expected of the target", ("target",)
)
TARGET_REPORTING = GaugeDef(
    "rackpulse_target_entities_reporting", "Entities in the target's last page", ("target",)
)


class Metrics:
    """The metrics of one process, on its own registry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._made: dict[str, Counter | Gauge | Histogram] = {}

    def counter(self, definition: CounterDef, *labels: str) -> Counter:
        """The counter, for these label values."""
        made = self._made.get(definition.name)
        if made is None:
            # prometheus_client adds the ending itself.
            name = definition.name.removesuffix("_total")
            made = Counter(name, definition.meaning, definition.labels, registry=self.registry)
            self._made[definition.name] = made
        assert isinstance(made, Counter)
        return made.labels(*labels) if labels else made

    def gauge(self, definition: GaugeDef, *labels: str) -> Gauge:
        """The gauge, for these label values."""
        made = self._made.get(definition.name)
        if made is None:
            made = Gauge(
                definition.name, definition.meaning, definition.labels, registry=self.registry
            )
            self._made[definition.name] = made
        assert isinstance(made, Gauge)
        return made.labels(*labels) if labels else made

    def remove(self, definition: GaugeDef, *labels: str) -> None:
        """Take one set of label values out of a gauge; nothing happens where it is not."""
        made = self._made.get(definition.name)
        if made is not None:
            with contextlib.suppress(KeyError):
                made.remove(*labels)

    def histogram(self, definition: HistogramDef, *labels: str) -> Histogram:
        """The histogram, for these label values."""
        made = self._made.get(definition.name)
        if made is None:
            made = Histogram(
                definition.name,
                definition.meaning,
                definition.labels,
                buckets=definition.buckets,
                registry=self.registry,
            )
            self._made[definition.name] = made
        assert isinstance(made, Histogram)
        return made.labels(*labels) if labels else made


def catalogue() -> Iterator[CounterDef | GaugeDef | HistogramDef]:
    """All metrics, in the order of this file."""
    for value in globals().values():
        if isinstance(value, CounterDef | GaugeDef | HistogramDef):
            yield value


_KINDS = {CounterDef: "counter", GaugeDef: "gauge", HistogramDef: "histogram"}


def render() -> str:
    """The page docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "Made from the catalogue in `pipeline/metrics.py` by `rackpulse docs metrics`; do not"
        " edit.",
        "",
        "`rackpulse collect run`, `write` and `alerts deliver` serve `/metrics`, `/livez` and"
        " `/readyz` on 127.0.0.1; `--metrics-port` names the port (`write` serves them only with"
        " it), `RACKPULSE_METRICS_HOST` another address, for a scraper that comes from outside.",
        "",
        "| metric | kind | labels | meaning |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{each.name}` | {_KINDS[type(each)]} | {', '.join(each.labels)} | {each.meaning} |"
        for each in catalogue()
    ]
    return "\n".join([*lines, ""])
