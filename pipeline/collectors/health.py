"""What state a target is in: up, down, stale, frozen, truncated, partial.

A target is *down* when it cannot be read, *stale* when that has lasted for several
intervals, *frozen* when readings that always move stand still, *truncated* when its page
ends in the middle, *partial* when fewer entities report than are expected. Each state is a
row of ``component`` (``entity_type`` target) at every read; each change is an event.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from pipeline.collectors.targets import Target

# Readings that never stand still on a working source. Counters of idle links do, so links
# and ports are not judged.
NOISY: Mapping[str, tuple[str, ...]] = {
    "gpu": ("power_w", "power_instant_w", "energy_mj", "gpu_temp_c", "sm_clock_mhz"),
    "coolant": (
        "flow_lpm", "supply_temp_c", "return_temp_c", "supply_pressure_kpa",
        "return_pressure_kpa", "delta_pressure_kpa",
    ),
}  # fmt: skip
# Coolant readings are coarse, and a steady loop moves little: they are given more time.
PATIENCE: Mapping[str, float] = {"redfish": 5.0}
# Kinds whose values are carried forward: standing still is nothing odd there.
CARRIED_FORWARD = frozenset({"bms"})
# The stream whose entities are counted, and the column that names one, by kind of target.
COUNTED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "dcgm": ("gpu", ("gpu_uuid",)),
    "dcgm_dmon": ("gpu", ("gpu_uuid",)),
    "nvml": ("gpu", ("gpu_uuid",)),
    "nmxt": ("nvlink", ("device_id", "link")),
    "ib_exporter": ("ib_port", ("guid", "port")),
    "node_exporter_ib": ("ib_port", ("guid", "port")),
    "ib_sysfs": ("ib_port", ("guid", "port")),
    "ufm": ("ib_port", ("guid", "port")),
    "redfish": ("coolant", ("component_id",)),
    "bms": ("coolant", ("component_id",)),
}
ENTITY_KIND = {"gpu": "gpu", "nvlink": "nvlink", "ib_port": "ib_port", "coolant": "coolant"}
FORGET_AFTER_S = 3_600.0
MAX_ABSENT_EVENTS = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """When a state is called so.

    Attributes:
        down_after: failed reads in a row before the event; the row says so at once.
        stale_after: intervals without a good read.
        frozen_after: reads in a row without any move.
        frozen_after_s: and for at least so long: exporters have intervals of their own.
    """

    down_after: int = 2
    stale_after: float = 3.0
    frozen_after: int = 5
    frozen_after_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Change:
    """An event of a target, or of an entity that it reports."""

    kind: str
    severity: str
    message: str
    previous: str = ""
    current: str = ""
    entity_kind: str = "target"
    entity_id: str = ""


@dataclass(slots=True)
class TargetHealth:
    """The state of one target.

    Attributes:
        expected_by_topology: entities that the topology file knows of; None where none.
        state: ``ok``, ``partial``, ``frozen``, ``truncated``, or why it is down.
        late_s: how long after its time the last read began.
    """

    target: Target
    limits: Limits = field(default_factory=Limits)
    expected_by_topology: frozenset[str] | None = None
    up: bool | None = None
    state: str = "unknown"
    expected: int | None = None
    reporting: int | None = None
    scrape_s: float | None = None
    late_s: float = 0.0
    shown_state: str | None = None
    _failures: int = 0
    _announced_down: bool = False
    _announced_stale: bool = False
    _was_up: bool = False
    _last_good: float | None = None
    _digest: bytes = b""
    _unmoved: int = 0
    _unmoved_since: float = 0.0
    _frozen: bool = False
    _seen: dict[str, float] = field(default_factory=dict)
    _absent: set[str] = field(default_factory=set)

    def failed(self, reason: str, now: float) -> list[Change]:
        """A read did not work.

        Args:
            now: monotonic time in seconds.
        """
        self.up = False
        self._failures += 1
        self.reporting = None
        self.state = reason
        changes = []
        if self._was_up and not self._announced_down and self._failures >= self.limits.down_after:
            self._announced_down = True
            text = f"{self.target.name} cannot be read: {reason}"
            changes.append(Change("target_down", "warning", text, "up", reason))
        if self.stale(now) and not self._announced_stale:
            self._announced_stale = True
            text = f"{self.target.name}: no good read for {self.limits.stale_after:g} intervals"
            changes.append(Change("target_stale", "warning", text, "up", "stale"))
        return changes

    def stale(self, now: float) -> bool:
        """Whether what was read last is too old to speak for now."""
        limit = self.limits.stale_after * self.target.interval_s
        return self._last_good is not None and now - self._last_good >= limit

    def read(self, tables: Mapping[str, pa.Table], *, truncated: bool, now: float) -> list[Change]:
        """A read worked.

        Args:
            tables: its rows by stream.
            truncated: the page ends in the middle.
            now: monotonic time in seconds.
        """
        changes = []
        if self._announced_down:
            text = f"{self.target.name} can be read again"
            changes.append(Change("target_up", "info", text, "down", "up"))
        self._failures = 0
        self._announced_down = self._announced_stale = False
        self.up = self._was_up = True
        self._last_good = now
        changes += self._count(tables, truncated, now)
        changes += self._look_frozen(tables, now)
        was = self.state
        if truncated:
            self.state = "truncated"
        elif self._frozen:
            self.state = "frozen"
        elif self.reporting is not None and self.reporting < (self.expected or 0):
            self.state = "partial"
        else:
            self.state = "ok"
        if self.state == "truncated" and was not in ("truncated", "unknown"):
            text = f"{self.target.name}: its page ends in the middle"
            changes.append(Change("target_truncated", "warning", text, was, "truncated"))
        return changes

    # ------------------------------------------------------------ n of m

    def _count(self, tables: Mapping[str, pa.Table], truncated: bool, now: float) -> list[Change]:
        stream, columns = COUNTED.get(self.target.kind, ("", ()))
        if not stream:
            self.expected = self.reporting = None
            return []
        present = _entities(tables.get(stream), columns)
        first = not self._seen
        known = set(self._seen)
        for entity in present:
            self._seen[entity] = now
        for entity in [e for e, at in self._seen.items() if now - at > FORGET_AFTER_S]:
            del self._seen[entity]
            self._absent.discard(entity)
        wanted = set(self.expected_by_topology or ()) | set(self._seen)
        self.expected, self.reporting = len(wanted), len(present)
        if truncated or first:
            return []  # a page that was cut short says nothing about what it does not hold
        return self._absences((known & wanted) - present, present, stream)

    def _absences(self, missing: set[str], present: set[str], stream: str) -> list[Change]:
        kind = ENTITY_KIND[stream]
        new = sorted(missing - self._absent)
        back = sorted(self._absent & present)
        self._absent = (self._absent | missing) - present
        changes = [
            Change(
                "series_absent", "warning", f"{entity} is no longer in the page of "
                f"{self.target.name}", previous="present", current="absent",
                entity_kind=kind, entity_id=entity,
            )
            for entity in new[:MAX_ABSENT_EVENTS]
        ]  # fmt: skip
        if len(new) > MAX_ABSENT_EVENTS:
            text = f"{len(new)} entities are no longer in the page of {self.target.name}"
            changes.append(Change("series_absent", "warning", text, current=str(len(new))))
        changes += [
            Change(
                "series_returned", "info", f"{entity} is in the page of {self.target.name} again",
                previous="absent", current="present", entity_kind=kind, entity_id=entity,
            )
            for entity in back[:MAX_ABSENT_EVENTS]
        ]  # fmt: skip
        return changes

    # ------------------------------------------------------------ frozen

    def _look_frozen(self, tables: Mapping[str, pa.Table], now: float) -> list[Change]:
        digest = b"" if self.target.kind in CARRIED_FORWARD else _noise(tables)
        if not digest or digest != self._digest:
            thawed, self._frozen = self._frozen, False
            self._digest, self._unmoved, self._unmoved_since = digest, 0, now
            if thawed:
                text = f"{self.target.name}: readings move again"
                return [Change("target_moving", "info", text, "frozen", "moving")]
            return []
        self._unmoved += 1
        patience = PATIENCE.get(self.target.kind, 1.0)
        enough = self._unmoved >= self.limits.frozen_after * patience
        long_enough = now - self._unmoved_since >= self.limits.frozen_after_s * patience
        if self._frozen or not enough or not long_enough:
            return []
        self._frozen = True
        text = f"{self.target.name}: no reading moved in {self._unmoved + 1} reads"
        return [Change("target_frozen", "warning", text, "moving", "frozen")]


def _entities(table: pa.Table | None, columns: tuple[str, ...]) -> set[str]:
    if table is None or not table.num_rows:
        return set()
    if len(columns) == 1:
        return {str(value) for value in table.column(columns[0]).unique().to_pylist()}
    parts = [table.column(name).to_pylist() for name in columns]
    return {"/".join(map(str, key)) for key in zip(*parts, strict=True)}


def _noise(tables: Mapping[str, pa.Table]) -> bytes:
    """Digest of the readings that never stand still; empty where the page has none."""
    digest = hashlib.blake2b(digest_size=16)
    any_value = False
    for stream, names in NOISY.items():
        table = tables.get(stream)
        if table is None:
            continue
        for name in names:
            if name in table.column_names and table.column(name).null_count < table.num_rows:
                any_value = True
                digest.update(name.encode())
                digest.update(repr(table.column(name).to_pylist()).encode())
    return digest.digest() if any_value else b""
