"""Changes between two samples of an entity, as events.

An event is a change, not a level: the first sample of an entity is a baseline, a reading
that is missing changes nothing, and a counter that fell was reset and begins anew. What is
watched stands in :data:`WATCHED`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa

from pipeline.collectors.xid import describe

# Clock reasons that are faults. Idle, power cap and application clocks come and go all day.
FAULT_REASONS = {
    0x08: "HW slowdown", 0x20: "SW thermal", 0x40: "HW thermal", 0x80: "HW power brake",
}  # fmt: skip
# Readings of DCGM's profiling module, and samples without all of them until it is called lost.
PROFILING = (
    "gr_engine_active_ratio",
    "sm_active_ratio",
    "tensor_active_ratio",
    "dram_active_ratio",
)
PROFILING_LOST_AFTER = 3
LEAK_HOLD_OFF = timedelta(seconds=90)
# Detectors of so many managers of one rack that see a leak at once are believed at once.
LEAK_AT_ONCE = 2
MAX_ENTITIES = 100_000

Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to an entity between two samples."""

    kind: str
    severity: str
    message: str
    code: str = ""
    previous: str = ""
    current: str = ""
    action: str | None = None


Rule = Callable[[object, object], Event | None]


def _xid(before: object, now: object) -> Event | None:
    code = _int(now)
    if not code or code == before:
        return None
    known = describe(code)
    text = f"{known.text} (last Xid of the GPU; the same one again cannot be seen here)"
    return Event("xid", known.severity, text, str(code), str(before), str(code), known.action)


def _clock_reasons(before: object, now: object) -> Event | None:
    faults = sum(FAULT_REASONS)
    old, new = _int(before) & faults, _int(now) & faults
    if old == new:
        return None
    came = [name for bit, name in FAULT_REASONS.items() if new & ~old & bit]
    went = [name for bit, name in FAULT_REASONS.items() if old & ~new & bit]
    parts = ["clocks held down by " + ", ".join(came)] if came else []
    parts += ["no longer by " + ", ".join(went)] if went else []
    severity = "warning" if came else "info"
    code = f"0x{new:x}"
    return Event("clocks_event_change", severity, "; ".join(parts), code, f"0x{old:x}", code)


def _rise(kind: str, severity: str, text: str) -> Rule:
    def rule(before: object, now: object) -> Event | None:
        old, new = _int(before), _int(now)
        if new <= old:
            return None
        return Event(kind, severity, f"{text}: {new - old}", "", str(old), str(new))

    return rule


def _differs(kind: str, severity: str, text: str) -> Rule:
    def rule(before: object, now: object) -> Event | None:
        if now == before:
            return None
        return Event(kind, severity, f"{text}: {before} to {now}", "", str(before), str(now))

    return rule


def _becomes_true(kind: str, severity: str, text: str) -> Rule:
    def rule(before: object, now: object) -> Event | None:
        if not now or before:
            return None
        return Event(kind, severity, text, "", "0", "1")

    return rule


def _link_state(before: object, now: object) -> Event | None:
    up = {"up", "active", "linkup"}
    if (before in up) == (now in up):
        return None
    if now in up:
        return Event("link_up", "info", "link is up", "state", str(before), str(now))
    return Event("link_down", "warning", f"link is {now}", "state", str(before), str(now))


def _health(before: object, now: object) -> Event | None:
    if now == before:
        return None
    severity = {"OK": "info", "Warning": "warning", "Critical": "critical"}.get(str(now), "info")
    return Event("health_change", severity, f"health: {before} to {now}", "", str(before), str(now))


WATCHED: Mapping[str, Mapping[str, Rule]] = {
    "gpu": {
        "xid_last": _xid,
        "clocks_event_reasons": _clock_reasons,
        "ecc_dbe_volatile": _rise("ecc_uncorrectable", "critical", "uncorrectable memory errors"),
        "row_remap_failed": _becomes_true("row_remap_failed", "critical", "row remapping failed"),
        "recovery_action": _differs("recovery_action_change", "warning", "recovery action"),
        "fabric_health": _differs("fabric_health_change", "warning", "fabric health"),
    },
    "nvlink": {
        "link_state": _link_state,
        "link_downs": _rise("link_down", "warning", "link downs since the last sample"),
        "recovery_events": _rise("link_recovered", "warning", "link recoveries"),
        "recovery_successful": _rise("link_recovered", "warning", "link recoveries"),
    },
    "ib_port": {
        "port_state": _link_state,
        "link_downs": _rise("link_down", "warning", "link downs since the last sample"),
        "link_error_recoveries": _rise("link_recovered", "warning", "link recoveries"),
    },
    "coolant": {"health": _health},
    "component": {"health": _health},
}
# Not every change of a link's counter is a fault: one that was asked for is none.
_INSTEAD = {"link_downs": "link_downs_unintentional"}
_ID_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "gpu": ("gpu_uuid", "gpu_instance_id"),
    "nvlink": ("device_id", "link", "side"),
    "ib_port": ("guid", "port"),
    "coolant": ("manager_id", "component_id"),
    "component": ("manager_id", "component_id"),
}


class Changes:
    """Remembers the last sample of each entity, and tells what changed."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], dict[tuple[object, ...], tuple[object, ...]]] = {}
        # What was watched in the last page, by target and stream.
        self._pages: dict[tuple[str, str], pa.Table] = {}
        self._leaks = Leaks()
        self._profiling = Profiling()

    def forget(self, target: str) -> None:
        """Drop what is kept of a target."""
        for key in [key for key in self._last if key[0] == target]:
            del self._last[key]
            self._pages.pop(key, None)
        self._leaks.forget(target)
        self._profiling.forget(target)

    def look(
        self,
        target: str,
        stream: str,
        table: pa.Table,
        rack_of: Callable[[str], str | None] = lambda manager: None,
    ) -> list[Row]:
        """Event rows of one page's rows of a stream.

        Args:
            rack_of: rack of a management controller, for leaks that several of a rack see.
        """
        if stream == "ib_port":
            table = _of_the_fabric(table)
        rules = WATCHED.get(stream)
        if rules is None or not table.num_rows:
            return []
        there = set(table.column_names)
        names = [name for name in rules if name in there]
        found: list[Row] = []
        if names:
            found = self._compare(target, stream, table, names)
        if stream == "component" and "leak" in table.column_names:
            found += self._leaks.look(target, table, rack_of)
        if stream == "gpu":
            found += self._profiling.look(target, table)
        return found

    def _compare(self, target: str, stream: str, table: pa.Table, names: list[str]) -> list[Row]:
        there = set(table.column_names)
        columns = [_INSTEAD[name] if _INSTEAD.get(name) in there else name for name in names]
        # Most pages say what the one before said: comparing whole columns is cheap.
        watched = table.select([*_ID_COLUMNS[stream], *columns])
        before_all = self._pages.get((target, stream))
        self._pages[target, stream] = watched
        if before_all is not None and watched.equals(before_all):
            return []
        ids = list(zip(*(_values(table, name) for name in _ID_COLUMNS[stream]), strict=True))
        readings = list(zip(*(_values(table, name) for name in columns), strict=True))
        last = self._last.setdefault((target, stream), {})
        if len(last) > MAX_ENTITIES:
            last.clear()
        found: list[Row] = []
        for number, (entity, now) in enumerate(zip(ids, readings, strict=True)):
            before = last.get(entity)
            if before is None or len(before) != len(now):
                last[entity] = now
                continue
            if now == before:
                continue
            merged = tuple(b if n is None else n for b, n in zip(before, now, strict=True))
            last[entity] = merged
            for name, old, new in zip(names, before, merged, strict=True):
                event = WATCHED[stream][name](old, new) if old is not None else None
                if event is not None:
                    found.append(_row(stream, entity, event, table, number))
        return found


class Profiling:
    """GPUs whose profiling readings went away while the others go on (DCGM issue 202).

    After some Xids they stay blank until profiling is resumed, although the GPU is healthy.
    """

    def __init__(self) -> None:
        # Samples without them since the last with them, by target and GPU.
        self._missing: dict[str, dict[tuple[object, ...], int]] = {}

    def forget(self, target: str) -> None:
        """Drop what is kept of a target."""
        self._missing.pop(target, None)

    def look(self, target: str, table: pa.Table) -> list[Row]:
        """Event rows of one page's GPUs."""
        there = set(table.column_names)
        columns = [_values(table, name) for name in PROFILING if name in there]
        missing = self._missing.setdefault(target, {})
        ids = zip(*(_values(table, name) for name in _ID_COLUMNS["gpu"]), strict=True)
        found: list[Row] = []
        for number, entity in enumerate(ids):
            present = any(column[number] is not None for column in columns)
            event = None
            if present:
                if missing.get(entity, 0) >= PROFILING_LOST_AFTER:
                    text = "profiling readings are there again"
                    event = Event("profiling_returned", "info", text, "", "lost", "present")
                missing[entity] = 0
            elif entity in missing:
                missing[entity] += 1
                if missing[entity] == PROFILING_LOST_AFTER:
                    text = "profiling readings are blank while the others go on"
                    action = "Resume profiling (dcgmi profile --resume) or restart the exporter"
                    event = Event("profiling_lost", "warning", text, "", "present", "lost", action)
            if event is not None:
                found.append(_row("gpu", entity, event, table, number))
        return found


class Leaks:
    """Leak detectors with a hold-off: many leaks that are told clear within a minute.

    A detector that sees a leak is suspected; it is believed when it sees it for
    :data:`LEAK_HOLD_OFF`, or when another manager of the rack sees one too.
    """

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], tuple[datetime, str, str]] = {}
        self._told: set[tuple[str, str]] = set()
        self._known: dict[tuple[str, str], str] = {}

    def forget(self, target: str) -> None:
        """Drop the detectors of a target."""
        for key in [key for key, owner in self._known.items() if owner == target]:
            self._known.pop(key)
            self._since.pop(key, None)
            self._told.discard(key)

    def look(self, target: str, table: pa.Table, rack_of: Callable[[str], str | None]) -> list[Row]:
        """Event rows of the detectors in a page."""
        found: list[Row] = []
        managers, ids = _values(table, "manager_id"), _values(table, "component_id")
        times, leaks = _values(table, "sampled_at"), _values(table, "leak")
        for number, leak in enumerate(leaks):
            if leak is None:
                continue
            key = (str(managers[number]), str(ids[number]))
            first = key not in self._known
            self._known[key] = target
            time = times[number]
            assert isinstance(time, datetime)
            rack = rack_of(key[0]) or key[0]
            event = self._wet(key, time, rack, first=first) if leak else self._dry(key)
            if event is not None:
                found.append(_row("component", key, event, table, number))
        return found

    def _wet(self, key: tuple[str, str], time: datetime, rack: str, *, first: bool) -> Event | None:
        if key not in self._since:
            self._since[key] = (time, rack, key[0])
            if not self._believed(key, time):
                text = "a leak detector sees a leak; waiting whether it stays"
                return None if first else Event("leak_suspected", "warning", text, "", "0", "1")
        if key in self._told or not self._believed(key, time):
            return None
        self._told.add(key)
        text = "leak: the detector has seen it for long, or several of the rack see it"
        return Event("leak", "critical", text, "", "0", "1", "Isolate the rack's loop and look")

    def _believed(self, key: tuple[str, str], time: datetime) -> bool:
        since, rack, _ = self._since[key]
        managers = {owner for _, other, owner in self._since.values() if other == rack}
        return time - since >= LEAK_HOLD_OFF or len(managers) >= LEAK_AT_ONCE

    def _dry(self, key: tuple[str, str]) -> Event | None:
        suspected = self._since.pop(key, None) is not None
        told = key in self._told
        self._told.discard(key)
        if not suspected:
            return None
        text = "the leak detector is dry again" if told else "the leak that was suspected is gone"
        return Event("leak_cleared", "info", text, "", "1", "0")


def _row(
    stream: str, entity: tuple[object, ...], event: Event, table: pa.Table, number: int
) -> Row:
    parts = [str(part) for part in entity]
    if stream == "gpu":
        entity_id = "/".join(part for part in parts if part)
    elif stream in ("nvlink", "ib_port"):
        entity_id = f"{parts[0]}/{parts[1]}"
    else:
        entity_id = "".join(parts) if parts[1].startswith("/") else "/".join(parts)
    row: Row = {
        "entity_kind": stream,
        "entity_id": entity_id,
        "kind": event.kind,
        "code": event.code,
        "severity": event.severity,
        "message": event.message,
        "previous": event.previous,
        "current": event.current,
        "suggested_action": event.action,
    }
    for name in ("cluster", "source", "sampled_at", "target", "host", "pci_bus_id"):
        if name in table.column_names:
            row[name] = table.column(name)[number].as_py()
    return row


def _of_the_fabric(table: pa.Table) -> pa.Table:
    """Without RoCE ports: their links are no InfiniBand links."""
    if "link_layer" not in table.column_names:
        return table
    return table.filter(pa.array([said != "Ethernet" for said in _values(table, "link_layer")]))


def _values(table: pa.Table, name: str) -> list[object]:
    values: list[object] = table.column(name).to_pylist()
    return values


def _int(value: object) -> int:
    return int(value) if isinstance(value, (int, float)) else 0
