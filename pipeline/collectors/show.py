"""Rows for a terminal: one JSON object per line, or a table per stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import IO, Any

import numpy as np
import pyarrow as pa

FORMATS = ("jsonl", "table")


def write(tables: dict[str, pa.Table], out: IO[str], form: str) -> None:
    """Write all rows; readings that are missing are left out."""
    for stream, table in sorted(tables.items()):
        if form == "table":
            _write_table(stream, table, out)
        else:
            for row in _rows(table):
                out.write(json.dumps({"stream": stream, **row}, ensure_ascii=False) + "\n")
    out.flush()


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    short = {field.name for field in table.schema if pa.types.is_float32(field.type)}
    for row in table.to_pylist():
        yield {
            name: _plain(value, name in short) for name, value in row.items() if value is not None
        }


def _plain(value: object, short: bool) -> object:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if short and isinstance(value, float):
        return float(str(np.float32(value)))  # 25.48, not 25.479999542236328
    return value


def _write_table(stream: str, table: pa.Table, out: IO[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    rows = list(_rows(table))
    constant = {"cluster", "source", "sampled_at", "target"}
    names = [
        name for name in table.column_names
        if name not in constant and any(name in row for row in rows)
    ]  # fmt: skip
    shown = Table(title=f"{stream}: {len(rows)} rows", title_justify="left")
    for name in names:
        shown.add_column(name, overflow="fold")
    for row in rows:
        shown.add_row(*(str(row.get(name, "")) for name in names))
    # Wide enough for all columns: a reader of many columns scrolls or uses jsonl.
    # What a page says is no markup.
    console = Console(
        file=out, width=max(80, 24 * len(names)), highlight=False, markup=False, emoji=False
    )
    console.print(shown)


class StdoutSink:
    """Prints rows instead of sending them."""

    def __init__(self, out: IO[str], form: str = "jsonl") -> None:
        self._out = out
        self._form = form

    def put(self, stream_name: str, table: pa.Table) -> None:
        """Print the rows of one stream."""
        write({stream_name: table}, self._out, self._form)

    def flush(self, timeout_s: float) -> bool:
        """Nothing waits here."""
        del timeout_s
        return True

    def close(self, timeout_s: float) -> None:
        """Nothing to end."""
        del timeout_s
