"""The counters file of dcgm-exporter: which fields a page holds.

One line per field, ``FIELD, type, help``; a line that begins with ``#`` is off. A field that the
file leaves out is not on the page, and nothing downstream can tell that from a broken sensor;
:func:`left_out` says which columns a file can never fill.
"""

from __future__ import annotations

from typing import NamedTuple

from pipeline.streams import Contracts

PROMETHEUS_TYPES = ("gauge", "counter", "histogram", "summary", "untyped", "label")


class Counter(NamedTuple):
    """One line of the file."""

    field: str
    kind: str
    help: str


def parse_counters(text: str) -> tuple[list[Counter], list[str]]:
    """The lines that are on, and those that cannot be read."""
    counters: list[Counter] = []
    bad: list[str] = []
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = [part.strip() for part in line.split(",", 2)]
        if len(parts) == 3 and parts[0] and parts[1] in PROMETHEUS_TYPES:
            counters.append(Counter(*parts))
        else:
            bad.append(line)
    return counters, bad


def known_fields(contracts: Contracts) -> dict[str, list[str]]:
    """Columns by the DCGM field name that fills them, as ``stream.column``."""
    found: dict[str, list[str]] = {}
    for stream in contracts.values():
        for column, source in stream.by_source("dcgm"):
            for name in source.names:
                found.setdefault(name, []).append(f"{stream.name}.{column.name}")
    return found


def left_out(counters: list[Counter], contracts: Contracts) -> list[str]:
    """Columns of the contracts, as ``stream.column``, that this file never fills."""
    known = known_fields(contracts)
    filled = {column for counter in counters for column in known.get(counter.field, ())}
    return sorted({column for columns in known.values() for column in columns} - filled)
