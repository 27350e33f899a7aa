"""Telemetry of the SHARP aggregation manager: Prometheus text, CSV or JSON.

The manager makes it anew every 60 seconds; asking more often gives the same numbers again.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping

from pipeline.collectors.fill import fill, parse_into
from pipeline.collectors.grid import Grid
from pipeline.collectors.page import Page, Reading, whole_lines
from pipeline.collectors.values import fields
from pipeline.streams import Contracts

KIND = "sharp"
SOURCE = "sharp"

# What is read beside the names in the contract: where it stands, and its column.
ALSO = {
    "component": {
        "the target's name": "manager_id",
        "always `sharp_am`": "component_id",
        "it is the aggregation manager": "entity_type",
    },
}


def read(page: Page, contracts: Contracts) -> Reading:
    """One row of the stream component: the aggregation manager."""
    reading = Reading()
    grid = Grid(fields(contracts, "component", SOURCE), page, reading, source=SOURCE)
    body = page.body.lstrip(b"\xef\xbb\xbf \t\r\n")
    head = body[:8_192].split(b"\n", 1)[0]
    if body[:1] in (b"{", b"["):
        _json(grid, page, reading, body)
    elif b"," in head and b"{" not in head:
        _csv(grid, page, reading, body)
    else:
        text = parse_into(reading, page.body, page.content_type)
        fill(
            grid, text, grid.fields.by_name,
            [lambda time_ms: _row(grid, page, time_ms) for _ in text.labels],
        )  # fmt: skip
    table = grid.table()
    if table is not None:
        reading.tables["component"] = table
    return reading


def _row(grid: Grid, page: Page, time_ms: int | None = None) -> int:
    row = grid.row((page.target, "sharp_am"), time_ms)
    grid.label(row, "entity_type", "sharp_am")
    return row


def _record(grid: Grid, page: Page, reading: Reading, record: Mapping[object, object]) -> None:
    for name, value in record.items():
        field = grid.fields.by_name.get(name) if isinstance(name, str) else None
        if field is None or value is None or value == "":
            continue
        if isinstance(value, (int, float, str)):
            grid.put(_row(grid, page), field, value)
        else:
            reading.reject("not_a_number", grid.fields.columns[field].name)


def _json(grid: Grid, page: Page, reading: Reading, body: bytes) -> None:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        reading.reject("bad_json")
        return
    for record in answer if isinstance(answer, list) else [answer]:
        if isinstance(record, dict):
            _record(grid, page, reading, record)
        else:
            reading.reject("bad_record")


def _csv(grid: Grid, page: Page, reading: Reading, body: bytes) -> None:
    try:
        for record in csv.DictReader(io.StringIO(whole_lines(body, reading), newline="")):
            _record(grid, page, reading, record)
    except csv.Error:
        reading.reject("bad_line")
