"""The InfiniBand lines of a node_exporter page.

The page has no GUIDs: an adapter is its device name on its host. The ``legacy_`` counters repeat
the others in 32 bits and are left out. Whether a port is InfiniBand or RoCE stands in the label
``link_layer`` of ``node_infiniband_port_info`` or of every line, in newer versions; else only the
names of some adapters tell.
"""

from __future__ import annotations

from functools import partial

from pipeline.collectors.fabric import (
    PHYS_STATES,
    PORT_STATES,
    guid_or_device,
    link_layer,
    port_number,
)
from pipeline.collectors.fill import RowOf, fill, parse_into, row_at, sample_time, samples_named
from pipeline.collectors.grid import Grid
from pipeline.collectors.page import Page, Reading
from pipeline.collectors.values import fields
from pipeline.streams import Contracts

KIND = "node_exporter_ib"
SOURCE = "node_exporter"

PREFIX = "node_infiniband_"
# What is read beside the names in the contract: where it stands, and its column.
ALSO = {
    "ib_port": {
        "the host and `device`": "guid",
        "`port`": "port",
        "always `hca`": "side",
        "an adapter is level `hca`": "level",
        "`device`": "device",
        "`link_layer`, of `port_info` or of every line; else the device's name": "link_layer",
        "`state_id`": "port_state",
        "`physical_state_id`": "phys_state",
        "a register at its maximum": "quality",
    },
}
_STATES = {
    f"{PREFIX}state_id": ("port_state", PORT_STATES),
    f"{PREFIX}physical_state_id": ("phys_state", PHYS_STATES),
}


def read(page: Page, contracts: Contracts) -> Reading:
    """Rows of the stream ib_port, adapter side."""
    reading = Reading()
    grid = Grid(fields(contracts, "ib_port", SOURCE), page, reading, source=SOURCE)
    text = parse_into(reading, page.body, page.content_type)
    ours = {int(label) for number, label in enumerate(text.labels_of)
            if text.names[text.name_of[number]].startswith(PREFIX)}  # fmt: skip
    rows: list[RowOf | None] = [
        partial(_row, grid, page, reading, labels)
        if number in ours and "device" in labels and "port" in labels
        else None
        for number, labels in enumerate(text.labels)
    ]
    names = {PREFIX + name: field for name, field in grid.fields.by_name.items()}
    fill(grid, text, names, rows)
    for number in samples_named(text, set(_STATES)):
        column, words = _STATES[text.names[text.name_of[number]]]
        row_of = rows[text.labels_of[number]]
        word = words.get(int(text.values[number])) if abs(text.values[number]) < 99 else None
        if word is None:
            reading.reject("out_of_range", column)
        elif row_of is not None:
            row = row_at(grid, row_of, sample_time(text, number))
            if row >= 0:
                grid.label(row, column, word)
    for number in samples_named(text, {f"{PREFIX}port_info"}):
        row_of = rows[text.labels_of[number]]
        if row_of is not None:
            row_at(grid, row_of, sample_time(text, number))  # its labels are all it says
    table = grid.table()
    if table is not None:
        reading.tables["ib_port"] = table
    return reading


def _row(
    grid: Grid, page: Page, reading: Reading, labels: dict[str, str], time_ms: int | None
) -> int:
    port = port_number(labels["port"], reading)
    if port is None:
        return -1
    row = grid.row((guid_or_device(page, None, labels["device"], reading), port), time_ms)
    grid.label(row, "side", "hca")
    grid.label(row, "level", "hca")
    grid.label(row, "device", labels["device"])
    grid.label(row, "link_layer", link_layer(labels.get("link_layer"), labels["device"]))
    return row
