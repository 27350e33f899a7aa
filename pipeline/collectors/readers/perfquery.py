"""Text of ``perfquery``: the counters of one or more ports.

The text names a LID and a port but no GUID: that is looked for in the target's name, as in
``perfquery-0x506b4b4e74c92740``. Extended counters have 64 bits. No text means that the node did
not answer: no counters, not zeros.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipeline.collectors.fabric import lid, normal_guid
from pipeline.collectors.grid import Grid
from pipeline.collectors.page import Page, Reading, whole_lines
from pipeline.collectors.values import fields
from pipeline.streams import Contracts

KIND = "perfquery"
SOURCE = "perfquery"

# What is read beside the counters that the contract names: where it stands, and its column.
ALSO = {
    "ib_port": {
        "the target's name": "guid",
        "`port` of the head line": "port",
        "`Lid` of the head line": "lid",
        "always `InfiniBand`": "link_layer",
        "a register at its maximum": "quality",
    },
}
_HEAD = re.compile(
    r"#\s*(?P<what>[\w ]+?) counters:.*?\bLid (?P<lid>\d{1,10}) port (?P<port>\d{1,5})\b"
)
_LINE = re.compile(r"(\w+):\.*\s*(\S+)")
_GUID = re.compile(r"0x[0-9a-fA-F]{1,16}")
_ALL_BITS_32 = str(2**32 - 1)
# Lines that say how was asked, not what was counted.
_ASKED = ("PortSelect", "CounterSelect", "CounterSelect2")


def read(page: Page, contracts: Contracts) -> Reading:
    """Rows of the stream ib_port."""
    reading = Reading()
    known = fields(contracts, "ib_port", SOURCE)
    grid = Grid(known, page, reading, source=SOURCE, wide=True)
    if not page.body.strip():
        reading.note("no text: the node did not answer in time")
    counters = list(_counters(page, grid, reading))
    # Extended counters have 64 bits, the others 32 and fewer; of both the wide one is kept.
    for wide in (True, False):
        for of, row, name, value in counters:
            if of is not wide:
                continue
            field = known.by_name.get(name)
            if field is None:
                reading.reject("unknown_counter")
            elif not wide and value in (str(known.columns[field].saturates), _ALL_BITS_32):
                grid.full(row, field)
            else:
                grid.put(row, field, value)
    table = grid.table()
    if table is not None:
        reading.tables["ib_port"] = table
    return reading


def _counters(page: Page, grid: Grid, reading: Reading) -> Iterator[tuple[bool, int, str, str]]:
    """Each counter line: whether it has 64 bits, its port's row, its name and its value."""
    guid, row, wide = guid_of(page), -1, False
    for line in whole_lines(page.body, reading).splitlines():
        head = _HEAD.match(line)
        if head:
            row, wide = _row(grid, page, reading, guid, head), "extended" in head["what"]
            continue
        found = _LINE.fullmatch(line.strip())
        if found is None or row < 0:
            if line.strip():
                reading.reject("bad_line")
        elif found.group(1) not in _ASKED:
            yield wide, row, found.group(1), found.group(2)


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
