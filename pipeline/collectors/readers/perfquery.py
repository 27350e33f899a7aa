"""Text of ``perfquery``: the counters of one or more ports.

The text names a LID and a port but no GUID: that is looked for in the target's name, as in
``perfquery-0x506b4b4e74c92740``. Extended counters have 64 bits. No text means that the node did
not answer: no counters, not zeros.
"""

from __future__ import annotations

import re

from pipeline.collectors.fabric import lid, normal_guid
from pipeline.collectors.grid import Grid
from pipeline.collectors.page import Page, Reading
from pipeline.collectors.values import fields
from pipeline.streams import Contracts

KIND = "perfquery"
SOURCE = "perfquery"

_HEAD = re.compile(
    r"#\s*(?P<what>[\w ]+?) counters:.*?\bLid (?P<lid>\d{1,10}) port (?P<port>\d{1,5})\b"
)
_LINE = re.compile(r"(\w+):\.*\s*(\S+)")
_GUID = re.compile(r"0x[0-9a-fA-F]{1,16}")
# Lines that say how was asked, not what was counted.
_ASKED = ("PortSelect", "CounterSelect", "CounterSelect2")


def read(page: Page, contracts: Contracts) -> Reading:
    """Rows of the stream ib_port."""
    reading = Reading()
    known = fields(contracts, "ib_port", SOURCE)
    grids = {wide: Grid(known, page, reading, source=SOURCE, wide=wide) for wide in (True, False)}
    guid = guid_of(page)
    if not page.body.strip():
        reading.note("no text: the node did not answer in time")
    grid, row = grids[False], -1
    for line in page.body.decode("utf-8", "replace").splitlines():
        head = _HEAD.match(line)
        if head:
            # Port counters have 16 bits and fewer, the extended ones 64.
            grid = grids["extended" in head["what"]]
            row = _row(grid, page, reading, guid, head)
            continue
        found = _LINE.fullmatch(line.strip())
        if found is None or row < 0:
            if line.strip():
                reading.reject("bad_line")
            continue
        name, value = found.groups()
        if name in known.by_name:
            grid.put(row, known.by_name[name], value)
        elif name not in _ASKED:
            reading.reject("unknown_counter")
    tables = [table for grid in grids.values() if (table := grid.table()) is not None]
    for table in tables:
        reading = Reading.merged([reading, Reading({"ib_port": table})])
    return reading


def guid_of(page: Page) -> str | None:
    """The GUID in the name of the target, or of the host."""
    for text in (page.target, page.host or ""):
        found = _GUID.search(text)
        if found and normal_guid(found.group()):
            return normal_guid(found.group())
    return None


def _row(grid: Grid, page: Page, reading: Reading, guid: str | None, head: re.Match[str]) -> int:
    port = int(head["port"])
    if port > 65_535:
        reading.reject("bad_label", "port")
        return -1
    if guid is None:
        reading.note("no GUID in the target's name: the LID stands for it, which may move")
    row = grid.row((guid or f"{page.target}/lid-{head['lid']}", port))
    grid.label(row, "link_layer", "InfiniBand")
    lid(grid, row, head["lid"])
    return row
