"""Text of ``dcgmi dmon``: a header of short field names, one line per entity and second.

The text has no times and no UUIDs: an entity is its index on its host, and repeated lines of
one entity are taken as one second apart, the tool's default, the last one at the time of the
page. Where two columns ran together nobody can tell which value belongs where, so the line is
refused; a line that is cut short keeps what it has.
"""

from __future__ import annotations

import re

from pipeline.collectors.grid import Grid, to_float
from pipeline.collectors.page import Page, Reading
from pipeline.collectors.values import fields
from pipeline.streams import Contracts

KIND = "dcgm_dmon"
SOURCE = "dcgm"
INTERVAL_MS = 1000
# The form of the tool's own names, of those that the contracts have.
NAME_FORM = re.compile(r"[A-Z0-9]+")
# What is read beside the names in the contracts, by stream: where it stands, and its column.
ALSO = {
    "gpu": {
        "the host and the number behind `GPU`": "gpu_uuid",
        "always empty": "gpu_instance_id",
        "the number behind `GPU`": "gpu_index",
    },
    "component": {
        "the host": "manager_id",
        "`Switch` or `CPU`, and its number": "component_id",
        "`Switch` or `CPU`": "entity_type",
        "`Switch` or `CPU` and its number": "name",
    },
}

_HEADER = re.compile(r"#?\s*Entity\s+(\S.*)")
_LINE = re.compile(r"\s*(?:(GPU|Switch|NvSwitch|CPU)\s+)?(\d{1,5})(?:\s+(\S.*))?")
_NOT_STORED = re.compile(r"\s*(?:GPU-?_?CI|GPU-?_?I|vGPU|CPU-?_?CORE|Link)\b.*", re.IGNORECASE)


def read(page: Page, contracts: Contracts) -> Reading:
    """Rows of the streams gpu and component."""
    return _Dmon(page, contracts).read()


class _Dmon:
    def __init__(self, page: Page, contracts: Contracts) -> None:
        self.page = page
        self.reading = Reading()
        self.grids = {
            stream: Grid(
                fields(contracts, stream, SOURCE), page, self.reading,
                source=SOURCE, dcgm_blanks=True,
            )
            for stream in ("gpu", "component")
        }  # fmt: skip

    def read(self) -> Reading:
        text = self.page.body.decode("utf-8", "replace")
        cut = not text.endswith("\n")
        columns: list[str] | None = None
        lines: list[tuple[str, str, list[str], list[str], bool]] = []
        said = text.splitlines()
        for number, line in enumerate(said):
            header = _HEADER.fullmatch(line.strip())
            if header:
                columns = header.group(1).split()
                continue
            if not line.strip() or line.strip().lower() == "id" or _NOT_STORED.fullmatch(line):
                continue
            found = _LINE.fullmatch(line.rstrip())
            if found is None or columns is None:
                self.reading.reject("bad_line")
                continue
            kind, index, values = found.groups()
            last = cut and number == len(said) - 1
            lines.append((kind or "GPU", index, columns, (values or "").split(), last))
        self._rows(lines)
        for stream, grid in self.grids.items():
            table = grid.table()
            if table is not None:
                self.reading.tables[stream] = table
        return self.reading

    def _rows(self, lines: list[tuple[str, str, list[str], list[str], bool]]) -> None:
        left: dict[tuple[str, str], int] = {}
        for kind, index, *_ in lines:
            left[kind, index] = left.get((kind, index), 0) + 1
        received_ms = int(self.page.received_at.timestamp() * 1000)
        for kind, index, columns, values, cut in lines:
            left[kind, index] -= 1
            if len(values) > len(columns) or not all(_is_value(value) for value in values):
                self.reading.reject("bad_line")
                continue
            if left[kind, index]:
                self.reading.note("repeated lines are taken as one second apart")
            time_ms = received_ms - left[kind, index] * INTERVAL_MS
            grid, row = self._row(kind, index, time_ms)
            if cut and values and values[-1] != "N/A":
                self.reading.reject("truncated_line")  # the number may go on
                values = values[:-1]
            for name, value in zip(columns, values, strict=False):
                field = grid.fields.by_name.get(name)
                if field is None:
                    continue
                if value == "N/A":
                    self.reading.reject("blank", grid.fields.columns[field].name)
                else:
                    grid.put(row, field, value)

    def _row(self, kind: str, index: str, time_ms: int) -> tuple[Grid, int]:
        host = self.page.host or self.page.target
        if kind == "GPU":
            grid = self.grids["gpu"]
            self.reading.note(
                "GPU without UUID: its index on its host stands for it, which may move"
            )
            row = grid.row((f"index:{host}:{index}", ""), time_ms)
            grid.number(row, "gpu_index", index)
            return grid, row
        grid = self.grids["component"]
        name = f"cpu{index}" if kind == "CPU" else f"nvswitch{index}"
        row = grid.row((host, name), time_ms)
        grid.label(row, "entity_type", "grace_cpu" if kind == "CPU" else "nvswitch")
        grid.label(row, "name", name)
        return grid, row


def _is_value(text: str) -> bool:
    return text == "N/A" or to_float(text) is not None
