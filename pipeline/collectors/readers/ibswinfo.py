"""Text of ``ibswinfo``: power supplies, fans and temperatures of an unmanaged switch.

Two forms: a table with ``|`` (inventory and vitals) and lines with ``:`` (vitals only). A row that
is missing, empty or no number is a missing reading, and the rest stays.
"""

from __future__ import annotations

import re

from pipeline.collectors.fabric import normal_guid
from pipeline.collectors.grid import Grid
from pipeline.collectors.page import Page, Reading, whole_lines
from pipeline.collectors.readers.perfquery import guid_of
from pipeline.collectors.values import fields
from pipeline.streams import Contracts

KIND = "ibswinfo"
SOURCE = "ibswinfo"

# What is read beside the names in the contract: where it stands, and its column.
ALSO = {
    "component": {
        "`GUID`, else one in the target's name": "manager_id",
        "`PSU`, `fan#`, else `chassis`": "component_id",
        "`PSU` or `fan#`": "entity_type",
        "`product name`": "name",
        "`firmware version`": "firmware_version",
        "`PSU… status`": "state",
        "`PSU… status`, `DC power`, `fan status`": "health",
        "which of them is not `OK`": "failed_component",
    },
}
MAX_LINE = 512
_PSU = re.compile(r"[Pp][Ss][Uu](\d{1,2})(?: status|\.power \(W\))")
_FAN = re.compile(r"fan#(\d{1,2})(?P<unit>(?:\.speed)? \(rpm\))")
_UPTIME = re.compile(r"(?:(\d{1,6})d-)?(\d{1,2}):(\d{2}):(\d{2})")
_OK = ("OK", "")


def read(page: Page, contracts: Contracts) -> Reading:
    """Rows of the stream component: the switch, its power supplies and its fans."""
    return _Switch(page, contracts).read()


class _Switch:
    def __init__(self, page: Page, contracts: Contracts) -> None:
        self.page = page
        self.reading = Reading()
        self.grid = Grid(fields(contracts, "component", SOURCE), page, self.reading, source=SOURCE)
        self.manager = guid_of(page) or page.target
        self.name: str | None = None
        self.psu: str | None = None
        self.faults: dict[int, list[str]] = {}

    def read(self) -> Reading:
        lines = whole_lines(self.page.body, self.reading).splitlines()
        said = [found for line in lines if (found := self._split(line)) is not None]
        for key, value, _ in said:
            if key == "GUID":
                self.manager = normal_guid(value) or self.manager
            elif key == "product name":
                self.name = value
        for key, value, indented in said:
            self._line(key, value, indented)
        for row, faults in self.faults.items():
            self.grid.label(row, "health", "Critical" if faults else "OK")
            self.grid.label(row, "failed_component", ",".join(faults))
        table = self.grid.table()
        if table is not None:
            self.reading.tables["component"] = table
        return self.reading

    def _split(self, line: str) -> tuple[str, str, bool] | None:
        """Key, value and whether the line is indented, as those of a power supply are."""
        bare = line.strip()
        if not bare or not bare.strip("-=") or "Mellanox Technologies" in line:
            return None
        mark = "|" if "|" in line else ":"  # "uptime (d-h:m:s)" has both
        key, found, value = line.partition(mark)
        if len(line) > MAX_LINE or not found or not key.strip():
            self.reading.reject("bad_line")
            return None
        return key.strip(), value.strip(), line[0].isspace()

    def _row(self, part: str, kind: str) -> int:
        row = self.grid.row((self.manager, part))
        self.grid.label(row, "entity_type", kind)
        self.grid.label(row, "name", self.name)
        return row

    def _line(self, key: str, value: str, indented: bool) -> None:
        psu, fan = _PSU.fullmatch(key), _FAN.fullmatch(key)
        if psu:
            self.psu = f"psu{psu.group(1)}"
            if key.endswith("(W)"):
                self._reading(self._row(self.psu, "power_supply"), "power (W)", value)
            else:
                self._status(self._row(self.psu, "power_supply"), "power_supply", value)
                self.grid.label(self._row(self.psu, "power_supply"), "state", value)
        elif fan:
            self._reading(self._row(f"fan{fan.group(1)}", "fan"), f"fan{fan['unit']}", value)
        elif indented and self.psu:
            row = self._row(self.psu, "power_supply")
            if key in ("DC power", "fan status"):
                self._status(row, "dc_power" if key == "DC power" else "fan", value)
            elif key == "power (W)":
                self._reading(row, key, value)
        elif key == "fan status":
            self._status(self._row("chassis", "switch_chassis"), "fans", value)
        elif key.startswith("uptime") and key in self.grid.fields.by_name:
            self._uptime(key, value)
        elif key in self.grid.fields.by_name:
            self._reading(self._row("chassis", "switch_chassis"), key, value)
        elif key == "firmware version":
            self.grid.label(self._row("chassis", "switch_chassis"), "firmware_version", value)

    def _status(self, row: int, part: str, status: str) -> None:
        faults = self.faults.setdefault(row, [])
        if status.upper() not in _OK:
            faults.append(part)

    def _reading(self, row: int, name: str, value: str) -> None:
        if value:
            self.grid.put(row, self.grid.fields.by_name[name], value)

    def _uptime(self, key: str, value: str) -> None:
        row = self._row("chassis", "switch_chassis")
        found = _UPTIME.fullmatch(value)
        if found is None:
            self._reading(row, key, value)
            return
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
        self.grid.put(row, self.grid.fields.by_name[key], total)
