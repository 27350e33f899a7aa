"""Pages of infiniband_exporter: the ports of a fabric, switch side and adapter side.

The exporter multiplies data counters by four and asks for the extended counters, so that they
have 64 bits. A node that did not answer has its info and rate but no counters: they are
missing, not 0. Adapter rates come without a port: they belong to the adapter's known ports.
"""

from __future__ import annotations

import re
from functools import partial

import numpy as np

from pipeline.collectors.fabric import as_port, lid, normal_guid, port_number
from pipeline.collectors.fill import fill, parse_into, samples_named
from pipeline.collectors.grid import Grid
from pipeline.collectors.page import Page, Reading
from pipeline.collectors.prometheus_text import Exposition
from pipeline.collectors.values import fields
from pipeline.streams import Contracts

KIND = "ib_exporter"
SOURCE = "ib_exporter"

PREFIX = "infiniband_(switch|hca)_(port_)"
# What is read beside the names in the contracts, by stream: where it stands, and its column.
ALSO = {
    "ib_port": {
        "`guid`": "guid",
        "`port`": "port",
        "`switch` or `hca` in the metric's name": "side",
        "`hca` in the metric's name": "level",
        "`switch`, `hca`": "node_name",
        "`lid` of `info`": "lid",
        "always `InfiniBand`": "link_layer",
        "`uplink_guid` of `uplink_info`": "peer_guid",
        "`uplink_port` of `uplink_info`": "peer_port",
        "`uplink` of `uplink_info`": "peer_name",
        "a register at its maximum": "quality",
    },
    "component": {
        "`guid`": "manager_id",
        "`psu`, `fan`, else `chassis`": "component_id",
        "`psu` or `fan`": "entity_type",
        "`switch`": "name",
        "`firmware_version` of `hardware_info`": "firmware_version",
        "`status` of `power_supply_status_info`": "state",
        "`status` of `fan_status_info`, `power_supply_…_status_info`": "health",
        "which of them is not `OK`": "failed_component",
    },
}
# Lines whose reading is the label "status": what of the part they speak of.
_STATUS = {
    "fan_status_info": "fans",
    "power_supply_status_info": "power_supply",
    "power_supply_dc_power_status_info": "dc_power",
    "power_supply_fan_status_info": "fan",
}
_INFO = frozenset((*_STATUS, "uplink_info", "info", "hardware_info", "rate_bytes_per_second"))
_NAME = re.compile(r"infiniband_(switch|hca)_(?:port_)?(\w+)")


def read(page: Page, contracts: Contracts) -> Reading:
    """Rows of the streams ib_port and component."""
    return _Fabric(page, contracts).read()


class _Fabric:
    def __init__(self, page: Page, contracts: Contracts) -> None:
        self.page = page
        self.reading = Reading()
        self.ports = Grid(
            fields(contracts, "ib_port", SOURCE), page, self.reading, source=SOURCE, wide=True
        )
        self.parts = Grid(fields(contracts, "component", SOURCE), page, self.reading, source=SOURCE)
        # Side and name by GUID, and ports by adapter, gathered before rows are made.
        self.sides: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.ports_of: dict[str, set[int]] = {}

    def read(self) -> Reading:
        text = parse_into(self.reading, self.page.body, self.page.content_type)
        self._survey(text)
        by_suffix = {
            name: found.group(2)
            for name in text.names
            if (found := _NAME.fullmatch(name)) is not None
        }
        port_fields = self.ports.fields.by_name
        fill(
            self.ports,
            text,
            {n: port_fields[s] for n, s in by_suffix.items() if s in port_fields},
            [
                partial(self._port_row, labels) if _has(labels, "guid", "port") else None
                for labels in text.labels
            ],
        )
        part_fields = self.parts.fields.by_name
        fill(
            self.parts,
            text,
            {n: part_fields[s] for n, s in by_suffix.items() if s in part_fields},
            [
                partial(self._part_row, labels) if "port" not in labels else None
                for labels in text.labels
            ],
        )
        self._info(text, by_suffix)
        for stream, grid in (("ib_port", self.ports), ("component", self.parts)):
            table = grid.table()
            if table is not None:
                self.reading.tables[stream] = table
        return self.reading

    def _survey(self, text: Exposition) -> None:
        """Which GUIDs are switches, which adapters, and what they are called."""
        # One line of each label set tells: a GUID is of a switch or of an adapter.
        _, firsts = np.unique(text.labels_of, return_index=True)
        for number in firsts.tolist():
            labels = int(text.labels_of[number])
            found = _NAME.fullmatch(text.names[text.name_of[number]])
            guid = normal_guid(text.labels[labels].get("guid"))
            if found is None or guid is None:
                continue
            self.sides.setdefault(guid, found.group(1))
            called = text.labels[labels].get(found.group(1))
            if called:
                self.names.setdefault(guid, called)
            port = as_port(text.labels[labels].get("port"))
            if port is not None:
                self.ports_of.setdefault(guid, set()).add(port)

    def _guid(self, labels: dict[str, str], column: str) -> str | None:
        guid = normal_guid(labels.get("guid"))
        if guid is None:
            self.reading.reject("bad_label", column)
        return guid

    def _port_row(self, labels: dict[str, str], time_ms: int | None) -> int:
        guid = self._guid(labels, "guid")
        port = port_number(labels["port"], self.reading)
        return -1 if guid is None or port is None else self._row(guid, port, time_ms)

    def _row(self, guid: str, port: int, time_ms: int | None) -> int:
        row = self.ports.row((guid, port), time_ms)
        side = self.sides.get(guid)
        self.ports.label(row, "side", side)
        self.ports.label(row, "level", "hca" if side == "hca" else None)
        self.ports.label(row, "node_name", self.names.get(guid))
        self.ports.label(row, "link_layer", "InfiniBand")
        return row

    def _part_row(self, labels: dict[str, str], time_ms: int | None) -> int:
        """Row of a switch, one of its power supplies or one of its fans."""
        guid = self._guid(labels, "manager_id") if "guid" in labels else None
        if guid is None or self.sides.get(guid) != "switch":
            return -1
        if "psu" in labels:
            part, kind = f"psu{labels['psu']}", "power_supply"
        elif "fan" in labels:
            part, kind = f"fan{labels['fan']}", "fan"
        else:
            part, kind = "chassis", "switch_chassis"
        row = self.parts.row((guid, part), time_ms)
        self.parts.label(row, "entity_type", kind)
        self.parts.label(row, "name", self.names.get(guid))
        return row

    def _info(self, text: Exposition, by_suffix: dict[str, str]) -> None:
        """Lines that say something in their labels, and adapter rates, which lack a port."""
        faults: dict[int, list[str]] = {}
        told: dict[int, None] = {}
        told_of = {name for name, suffix in by_suffix.items() if suffix in _INFO}
        for number in samples_named(text, told_of):
            suffix = by_suffix[text.names[text.name_of[number]]]
            labels = text.labels[text.labels_of[number]]
            guid = normal_guid(labels.get("guid"))
            if guid is None:
                continue
            if suffix == "uplink_info":
                self._uplink(guid, labels)
            elif suffix == "info":
                for port in self.ports_of.get(guid, ()):
                    lid(self.ports, self._row(guid, port, None), labels.get("lid"))
            elif suffix == "rate_bytes_per_second" and "port" not in labels:
                field = self.ports.fields.by_name[suffix]
                for port in sorted(self.ports_of.get(guid, {1})):
                    self.ports.put(self._row(guid, port, None), field, text.raw[number])
            elif suffix == "hardware_info":
                row = self._part_row(labels, None)
                if row >= 0:
                    self.parts.label(row, "firmware_version", labels.get("firmware_version"))
            elif suffix in _STATUS and labels.get("status"):
                row = self._part_row(labels, None)
                if row < 0:
                    continue
                told[row] = None
                if suffix == "power_supply_status_info":
                    self.parts.label(row, "state", labels["status"])
                if labels["status"].upper() != "OK":
                    faults.setdefault(row, []).append(_STATUS[suffix])
        for row in told:
            self.parts.label(row, "health", "Critical" if row in faults else "OK")
            self.parts.label(row, "failed_component", ",".join(sorted(faults.get(row, ()))))

    def _uplink(self, guid: str, labels: dict[str, str]) -> None:
        port = port_number(labels.get("port"), self.reading)
        if port is None:
            return
        row = self._row(guid, port, None)
        self.ports.label(row, "peer_guid", normal_guid(labels.get("uplink_guid")))
        self.ports.label(row, "peer_name", labels.get("uplink"))
        if labels.get("uplink_port"):
            self.ports.number(row, "peer_port", labels["uplink_port"])


def _has(labels: dict[str, str], *names: str) -> bool:
    return all(name in labels for name in names)
