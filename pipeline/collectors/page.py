"""What a reader is given and what it gives back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa

from pipeline.errors import RackpulseError


class NothingToReadError(RackpulseError):
    """This host has nothing of the kind: that is said, and is no failure."""


@dataclass(frozen=True, slots=True)
class Page:
    """One answer of one target, as it came.

    Attributes:
        body: the bytes; not decoded, not decompressed by the reader.
        target: name of the scrape target; it stands on every row.
        received_at: when the answer came, aware, UTC; the sample time of readings that
            carry none of their own.
        cluster: cluster that the target belongs to.
        host: host that the target speaks for, from the target list: wins over what the page
            says, since an exporter in a pod names its pod.
        content_type: the answer's content type, where it came over HTTP.
    """

    body: bytes
    target: str
    received_at: datetime
    cluster: str
    host: str | None = None
    content_type: str | None = None

    def __post_init__(self) -> None:
        if self.received_at.tzinfo is None:
            raise ValueError("received_at must be aware")


@dataclass(slots=True)
class Reading:
    """What a reader made of a page.

    Attributes:
        tables: rows by stream name, in columns of that stream's contract with at least its
            identities and ``target``. A stream without rows has no table.
        rejected: what was refused, counted by (reason, column); the column is empty where a
            whole line was refused. Reasons are short, stable words.
        notes: remarks for a person, such as a page that ends in the middle of a line.
    """

    tables: dict[str, pa.Table] = field(default_factory=dict)
    rejected: Counter[tuple[str, str]] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return sum(int(table.num_rows) for table in self.tables.values())

    def reject(self, reason: str, column: str = "", count: int = 1) -> None:
        """Count refused readings."""
        if count:
            self.rejected[reason, column] += count

    def note(self, text: str) -> None:
        """Remark something once."""
        if text not in self.notes:
            self.notes.append(text)

    @classmethod
    def merged(cls, readings: Iterable[Reading]) -> Reading:
        """Several readings as one; tables of one stream may differ in their columns."""
        parts: dict[str, list[pa.Table]] = {}
        merged = cls()
        for reading in readings:
            for name, table in reading.tables.items():
                parts.setdefault(name, []).append(table)
            merged.rejected.update(reading.rejected)
            for text in reading.notes:
                merged.note(text)
        for name, tables in parts.items():
            joined = (
                tables[0]
                if len(tables) == 1
                else pa.concat_tables(tables, promote_options="default").unify_dictionaries()
            )
            merged.tables[name] = joined
        return merged


def whole_lines(body: bytes, reading: Reading) -> str:
    """The text of a page of lines, as far as its last line end.

    What follows is either nothing or the start of a line that the rest of is missing: "170" may
    have been "1700". It is counted as ``truncated_line``. Bytes that are not UTF-8 are replaced.
    """
    whole, end, rest = body.rpartition(b"\n")
    if rest.strip():
        reading.reject("truncated_line")
    return (whole + end).decode("utf-8", "replace")
