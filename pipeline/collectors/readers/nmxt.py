"""NMX-T pages of NVLink switch trays: Prometheus text whose labels carry readings.

A port is ``Node_GUID`` and ``Port_Number``. The module temperature is a label (``37C``), and so
is the side that is blamed for the last link down; a change of either starts new series at
the source, but not a new entity here.
"""

from __future__ import annotations

import re
from functools import partial

from pipeline.collectors.fabric import PORT_STATES, normal_guid, port_number, state_word
from pipeline.collectors.fill import fill, parse_into, row_at, sample_time, samples_named
from pipeline.collectors.grid import Grid
from pipeline.collectors.page import Page, Reading
from pipeline.collectors.values import fields
from pipeline.streams import Contracts

KIND = "nmxt"
SOURCE = "nmxt"

# What is read beside the names in the contract: where it stands, and its column.
ALSO = {
    "nvlink": {
        "`Node_GUID`, else the target's name": "device_id",
        "`Port_Number`": "link",
        "always `switch`": "side",
        "`down_blame`": "down_blame",
        "`link_partner_node_guid`": "peer_id",
        "`link_partner_port_num`": "peer_link",
    },
}
_TEMPERATURE = re.compile(r"([+-]?[0-9]+(?:\.[0-9]+)?) ?[Cc]?")
_BLAME = frozenset(("unknown", "local_phy", "remote_phy"))


def module_temperature(text: str | None) -> float | None:
    """Degrees Celsius of a label such as ``37.5C``; None for ``N/A`` and the like."""
    found = _TEMPERATURE.fullmatch((text or "").strip())
    return float(found.group(1)) if found else None


def read(page: Page, contracts: Contracts) -> Reading:
    """Rows of the stream nvlink, side switch."""
    return _Nmxt(page, contracts).read()


class _Nmxt:
    def __init__(self, page: Page, contracts: Contracts) -> None:
        self.page = page
        self.reading = Reading()
        self.grid = Grid(fields(contracts, "nvlink", SOURCE), page, self.reading, source=SOURCE)

    def read(self) -> Reading:
        text = parse_into(self.reading, self.page.body, self.page.content_type)
        rows = [
            partial(self._row, labels) if "Port_Number" in labels else None
            for labels in text.labels
        ]
        fill(self.grid, text, self.grid.fields.by_name, rows)
        for number in samples_named(text, set(self.grid.fields.labels)):
            row_of = rows[text.labels_of[number]]
            state = PORT_STATES.get(int(text.values[number])) if text.values[number] < 9 else None
            if row_of is not None and state is not None:
                row = row_at(self.grid, row_of, sample_time(text, number))
                if row >= 0:
                    self.grid.label(row, "link_state", state)
        table = self.grid.table()
        if table is not None:
            self.reading.tables["nvlink"] = table
        return self.reading

    def _row(self, labels: dict[str, str], time_ms: int | None) -> int:
        link = port_number(labels["Port_Number"], self.reading)
        if link is None:
            return -1
        device = normal_guid(labels.get("Node_GUID"))
        if device is None:
            if labels.get("Node_GUID"):
                self.reading.reject("bad_label", "device_id")
            self.reading.note("switch without Node_GUID: the target's name stands for it")
            device = self.page.target
        grid = self.grid
        row = grid.row((device, link, "switch"), time_ms)
        temperature = module_temperature(labels.get("Module_Temperature"))
        if temperature is not None:
            grid.once(row, grid.fields.by_name["Module_Temperature"], temperature)
        blame = labels.get("down_blame", "").strip().lower()
        if blame:
            grid.label(row, "down_blame", blame if blame in _BLAME else "unknown")
        for name, column in grid.fields.labels.items():
            if column == "link_state" and labels.get(name):
                grid.label(row, column, state_word(labels[name]))
        grid.label(row, "peer_id", normal_guid(labels.get("link_partner_node_guid")))
        if labels.get("link_partner_port_num"):
            grid.number(row, "peer_link", labels["link_partner_port_num"])
        return row
