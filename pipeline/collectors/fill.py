"""Puts the samples of a Prometheus page into a grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.collectors.grid import Grid
from pipeline.collectors.page import Reading
from pipeline.collectors.prometheus_text import NO_TIME, Exposition, parse

# Row of an entity at a time, or without one of its own; -1 for what is not stored.
RowOf = Callable[[int | None], int]


def no_row(_time_ms: int | None) -> int:
    """For label sets that are no entity of the stream."""
    return -1


def parse_into(reading: Reading, body: bytes, content_type: str | None) -> Exposition:
    """Parse a page and count its refused lines in the reading."""
    text = parse(body, content_type)
    for reason, count in text.rejected.items():
        reading.reject(reason, "", count)
    return text


def fill(
    grid: Grid, text: Exposition, field_of: Mapping[str, int], rows: Sequence[RowOf | None]
) -> None:
    """Put down every sample of a known name.

    Args:
        field_of: field number by metric name; names that are not in it are left out.
        rows: by label set of the page, how to get its row; None where it has none.
    """
    has_row = np.array([row is not None for row in rows], dtype=bool)
    if not len(text) or not has_row.any():
        return
    field_of_name = np.array([field_of.get(name, -1) for name in text.names], dtype=np.int64)
    # Only what has a reading gets a row.
    chosen = np.flatnonzero(has_row[text.labels_of] & (field_of_name[text.name_of] >= 0))
    row_of = rows_of(grid, text, chosen, rows)
    if row_of.size and row_of.min() < 0:
        chosen, row_of = chosen[row_of >= 0], row_of[row_of >= 0]
    field = field_of_name[text.name_of[chosen]]
    grid.extend(row_of, field, text.values[chosen], text.raw, chosen)


def rows_of(
    grid: Grid, text: Exposition, chosen: NDArray[np.int64], rows: Sequence[RowOf | None]
) -> NDArray[np.int64]:
    """Row of each chosen sample: one per label set, and per time where lines have one."""
    label_of = text.labels_of[chosen]
    if text.times_ms is None:
        made = np.full(len(rows), -1, dtype=np.int64)
        for number in np.unique(label_of).tolist():
            made[number] = (rows[number] or no_row)(None)
        return made[label_of]
    known: dict[tuple[int, int], int] = {}
    found = []
    for pair in zip(label_of.tolist(), text.times_ms[chosen].tolist(), strict=True):
        if pair not in known:
            known[pair] = row_at(grid, rows[pair[0]] or no_row, pair[1])
        found.append(known[pair])
    return np.array(found, dtype=np.int64)


def row_at(grid: Grid, row_of: RowOf, time_ms: int) -> int:
    """Row of an entity at a sample's time; -1 and counted where that is no time."""
    if time_ms == NO_TIME:
        return row_of(None)
    return row_of(time_ms) if grid.time_ok(time_ms) else -1


def sample_time(text: Exposition, number: int) -> int:
    """Time of a sample, :data:`NO_TIME` without one."""
    return NO_TIME if text.times_ms is None else int(text.times_ms[number])


def samples_named(text: Exposition, names: set[str]) -> list[int]:
    """Numbers of the samples of these metrics."""
    wanted = [index for index, name in enumerate(text.names) if name in names]
    if not wanted:
        return []
    return [int(number) for number in np.flatnonzero(np.isin(text.name_of, wanted))]
