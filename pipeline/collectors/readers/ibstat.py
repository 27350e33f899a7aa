"""Text of ``ibstat`` and ``ibstatus``: the state of a host's adapters, without counters.

The rate and the LID of a port that is down are defaults, not readings. A RoCE port (link layer
Ethernet) is kept and says so: it is no part of the InfiniBand fabric.
"""

from __future__ import annotations

import re

from pipeline.collectors.fabric import (
    guid_or_device,
    leading_number,
    lid,
    link_layer,
    port_number,
    state_word,
)
from pipeline.collectors.grid import Grid
from pipeline.collectors.page import Page, Reading, whole_lines
from pipeline.collectors.values import fields
from pipeline.streams import Contracts

KIND = "ibstat"
SOURCE = "ibstat"

# What is read beside the names in the contract: where it stands, and its column.
ALSO = {
    "ib_port": {
        "`Node GUID`, `default gid`; else the host and the device": "guid",
        "`Port`, `port`": "port",
        "always `hca`": "side",
        "an adapter is level `hca`": "level",
        "`CA`, `Infiniband device`": "device",
        "`Link layer`, `link_layer`; else the device's name": "link_layer",
        "`State`, `state`": "port_state",
        "`Physical state`, `phys state`": "phys_state",
        "`Base lid`, `base lid`": "lid",
    },
}
_ADAPTER = re.compile(r"CA '([^']{1,64})'")
_PORT = re.compile(r"\s+Port (\d{1,5}):\s*")
_STATUS = re.compile(r"Infiniband device '([^']{1,64})' port (\d{1,5}) status:\s*")
# What stands where a head stands: lines without indent, and ports of an adapter.
_HEAD = re.compile(r"\S|\s+Port(?! GUID\b)")
MAX_LINE = 512


class _Port:
    def __init__(self, device: str, number: str, guid: str | None) -> None:
        self.device = device
        self.number = number
        self.guid = guid
        self.said: dict[str, str] = {}


def read(page: Page, contracts: Contracts) -> Reading:
    """Rows of the stream ib_port, adapter side."""
    reading = Reading()
    grid = Grid(fields(contracts, "ib_port", SOURCE), page, reading, source=SOURCE)
    for port in _ports(whole_lines(page.body, reading), reading):
        number = port_number(port.number, reading)
        if number is None:
            continue
        guid = port.guid or _guid_of_gid(port.said.get("default gid"))
        row = grid.row((guid_or_device(page, guid, port.device, reading), number))
        _fill(grid, row, port)
    table = grid.table()
    if table is not None:
        reading.tables["ib_port"] = table
    return reading


def _ports(text: str, reading: Reading) -> list[_Port]:
    ports: list[_Port] = []
    port: _Port | None = None
    device, guid, begun = "", None, False
    for line in text.splitlines():
        if not line.strip():
            continue
        head = _HEAD.match(line)
        if head:
            # Also one that cannot be read: the lines behind it are not of the port before it.
            port, begun = None, True
            if not line[0].isspace():
                device, guid = "", None
        if len(line) > MAX_LINE:
            reading.reject("line_too_long")
        elif status := _STATUS.fullmatch(line):
            port = _Port(status.group(1), status.group(2), None)
            ports.append(port)
        elif adapter := _ADAPTER.fullmatch(line):
            device = adapter.group(1)
        elif device and (number := _PORT.fullmatch(line)):
            port = _Port(device, number.group(1), guid)
            ports.append(port)
        elif not head and ":" in line and begun:
            name, _, value = (part.strip() for part in line.partition(":"))
            if device and name == "Node GUID":
                guid = value
            elif port is not None:
                port.said[name.lower().replace("_", " ")] = value
        else:
            reading.reject("bad_line")
    return ports


def _fill(grid: Grid, row: int, port: _Port) -> None:
    said = port.said
    grid.label(row, "side", "hca")
    grid.label(row, "level", "hca")
    grid.label(row, "device", port.device)
    grid.label(row, "link_layer", link_layer(said.get("link layer"), port.device))
    state = state_word(said.get("state", ""))
    grid.label(row, "port_state", state)
    grid.label(
        row, "phys_state", state_word(said.get("physical state", said.get("phys state", "")))
    )
    if state != "down":
        if said.get("rate"):
            grid.put(row, grid.fields.by_name["rate"], leading_number(said["rate"]))
        lid(grid, row, said.get("base lid"))


def _guid_of_gid(gid: str | None) -> str | None:
    """The last 64 bits of a GID: the port's GUID, or what stands for it over Ethernet."""
    parts = (gid or "").split(":")
    return "".join(part.rjust(4, "0") for part in parts[4:]) if len(parts) == 8 else None
