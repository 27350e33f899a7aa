"""Rows under construction for pages with many readings: a matrix of fields and entities.

Each reading is put down as (row, field, value); what is believed is decided for all of them
at once (:mod:`pipeline.collectors.values`), and each column becomes an Arrow array without
a Python object per cell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.collectors.page import Page, Reading
from pipeline.collectors.rows import clean
from pipeline.collectors.values import (
    EXACT_BELOW,
    REASONS,
    SATURATED,
    Fields,
    exact_integer,
    screen,
)
from pipeline.streams import Column
from pipeline.streams.arrow import arrow_type

# Times that a source may print, in ms: others are mistakes (seconds, nanoseconds, boot time).
FIRST_TIME_MS = 946_684_800_000  # 2000-01-01
LAST_TIME_MS = 4_102_444_800_000  # 2100-01-01
MAX_LABEL = 256
_TIME = pa.timestamp("ms", tz="UTC")
# Label columns of so few rows are remembered: a host has so many GPUs and links.
_FEW_ROWS = 256

Raw = bytes | str | int | float
_T = TypeVar("_T", bound=np.generic)


class Grid:
    """Rows of one stream from one page, one per entity and time.

    Args:
        known: the fields that may be filled.
        page: gives cluster, target, host and the time of rows that have none.
        reading: where refusals are counted.
        source: value of the ``source`` column.
        dcgm_blanks: see :func:`pipeline.collectors.values.screen`.
        wide: see there.
    """

    def __init__(
        self,
        known: Fields,
        page: Page,
        reading: Reading,
        *,
        source: str,
        dcgm_blanks: bool = False,
        wide: bool = False,
    ) -> None:
        self.fields = known
        self._page = page
        self._reading = reading
        self._source = source
        self._dcgm_blanks = dcgm_blanks
        self._wide = wide
        self._received_ms = int(page.received_at.timestamp() * 1000)
        self._rows: dict[Hashable, int] = {}
        self._times: list[int] = []
        self._labels: dict[str, list[str | int | None]] = {}
        self._torn: set[tuple[int, str]] = set()
        self._row_of: list[NDArray[np.int64]] = []
        self._field_of: list[NDArray[np.int64]] = []
        self._values: list[NDArray[np.float64]] = []
        self._texts: list[tuple[Sequence[Raw], NDArray[np.int64] | None]] = []
        self._single: list[tuple[int, int, Raw]] = []
        self._said: set[tuple[int, int]] = set()

    def __len__(self) -> int:
        return len(self._times)

    def row(self, entity: tuple[str | int, ...], time_ms: int | None = None) -> int:
        """Number of the row of an entity, made when it is first asked for.

        Args:
            entity: values of the contract's entity columns, in their order.
            time_ms: the source's own time; None for the time of the page.
        """
        time_ms = self._received_ms if time_ms is None else time_ms
        number = self._rows.get((entity, time_ms))
        if number is None:
            number = self._rows[entity, time_ms] = len(self._times)
            self._times.append(time_ms)
            for values in self._labels.values():
                values.append(None)
            for name, value in zip(self.fields.stream.entity, entity, strict=True):
                self._column(name)[number] = value
        return number

    def _column(self, name: str) -> list[str | int | None]:
        found = self._labels.get(name)
        if found is None:
            found = self._labels[name] = [None] * len(self._times)
        return found

    def label(self, row: int, column: str, value: str | int | None) -> None:
        """Write a label; one that is said twice and differs is no label of the row."""
        if value is None or value == "":
            return
        if isinstance(value, str):
            value = clean(value[:MAX_LABEL])  # JSON may hold half a character
        cells = self._column(column)
        if cells[row] is None:
            if (row, column) not in self._torn:
                cells[row] = value
        elif cells[row] != value:
            cells[row] = None
            self._torn.add((row, column))
            self._reading.note(f"{column}: several values for one entity, none is kept")

    def number(self, row: int, column: str, text: str | int | None) -> None:
        """Write a number that the source prints as a label; refused when it is none."""
        if text is None or text == "":
            return
        try:
            value = int(text)
        except ValueError:
            self._reading.reject("not_a_number", column)
            return
        low, high = _integer_limits(self.fields.stream.column(column))
        if low <= value <= high:
            self.label(row, column, value)
        else:
            self._reading.reject("out_of_range", column)

    def time_ok(self, time_ms: int) -> bool:
        """Whether a source's time is one; counted when it is not."""
        if FIRST_TIME_MS <= time_ms < LAST_TIME_MS:
            return True
        self._reading.reject("time_out_of_range", "sampled_at")
        return False

    def put(self, row: int, field: int, raw: Raw) -> None:
        """Put down one reading: a number, or its text."""
        self._single.append((row, field, raw))

    def once(self, row: int, field: int, raw: Raw) -> None:
        """Put down a reading that the source repeats on many lines."""
        if (row, field) not in self._said:
            self._said.add((row, field))
            self.put(row, field, raw)

    def full(self, row: int, field: int) -> None:
        """Count a reading that stands at the maximum of its register: unknown from there on."""
        name = self.fields.columns[field].name
        self._reading.reject(REASONS[SATURATED], name)
        self._say_full(name)
        if self.fields.tells_quality:
            self.label(row, "quality", "saturated")

    def _say_full(self, name: str) -> None:
        self._reading.note(f"{name}: register is full, no rate can be computed from it")

    def extend(
        self,
        row_of: NDArray[np.int64],
        field_of: NDArray[np.int64],
        values: NDArray[np.float64],
        raw: Sequence[Raw],
        raw_of: NDArray[np.int64] | None = None,
    ) -> None:
        """Put down many readings.

        Args:
            raw: their texts, for integers that float64 cannot hold.
            raw_of: place of each reading's text in ``raw``; None where they stand in order.
        """
        self._row_of.append(row_of)
        self._field_of.append(field_of)
        self._values.append(values)
        self._texts.append((raw, raw_of))

    def table(self) -> pa.Table | None:
        """All rows; None where there is none."""
        if not self._times:
            return None
        self._gather_single()
        rows = len(self._times)
        arrays: dict[str, pa.Array] = {
            "cluster": _constant(self._page.cluster, rows),
            "source": _constant(self._source, rows),
            "sampled_at": pa.array(self._times, _TIME),
            "target": _constant(self._page.target, rows),
        }
        numbers = self._numbers(rows)
        if self._page.host is not None:
            self._labels["host"] = [self._page.host] * rows
        for name, values in self._labels.items():
            array = _labels(self.fields.stream.column(name), values)
            if array is not None:
                arrays[name] = array
        return pa.table({**arrays, **numbers})

    def _gather_single(self) -> None:
        if not self._single:
            return
        row_of, field_of, values, raws = [], [], [], []
        for row, field, raw in self._single:
            value = to_float(raw)
            if value is None:
                self._reading.reject("not_a_number", self.fields.columns[field].name)
                continue
            row_of.append(row)
            field_of.append(field)
            values.append(value)
            raws.append(raw)
        self._single = []
        self.extend(
            np.array(row_of, dtype=np.int64), np.array(field_of, dtype=np.int64),
            np.array(values, dtype=np.float64), raws,
        )  # fmt: skip

    def _numbers(self, rows: int) -> dict[str, pa.Array]:
        if not self._row_of:
            return {}
        row_of, field_of = _joined(self._row_of), _joined(self._field_of)
        values, fault = screen(
            self.fields, field_of, _joined(self._values),
            dcgm_blanks=self._dcgm_blanks, wide=self._wide,
        )  # fmt: skip
        good = fault == 0
        chosen: NDArray[np.int64] | None = None
        if not good.all():
            self._count(field_of, fault)
            if self.fields.tells_quality:
                for row in set(row_of[fault == SATURATED].tolist()):
                    self.label(row, "quality", "saturated")
            chosen = np.flatnonzero(good)
            row_of, field_of, values = row_of[good], field_of[good], values[good]
        cell_of = field_of * rows + row_of
        cells = np.zeros(len(self.fields) * rows, dtype=np.float64)
        filled = np.zeros(len(self.fields) * rows, dtype=bool)
        # Backwards, so that of two readings for one cell the first stays.
        cells[cell_of[::-1]] = values[::-1]
        filled[cell_of] = True
        if int(filled.sum()) < len(cell_of):
            self._count_doubles(cell_of, field_of, values, cells)
        exact = self._exact(cell_of, field_of, values, chosen)
        return _arrays(self.fields.columns, rows, cells, filled, exact)

    def _count(self, field_of: NDArray[np.int64], fault: NDArray[np.uint8]) -> None:
        bad = np.flatnonzero(fault)
        pairs = Counter(zip(fault[bad].tolist(), field_of[bad].tolist(), strict=True))
        for (number, field), count in pairs.items():
            name = self.fields.columns[field].name
            self._reading.reject(REASONS[number], name, count)
            if number == SATURATED:
                self._say_full(name)

    def _count_doubles(
        self,
        cell_of: NDArray[np.int64],
        field_of: NDArray[np.int64],
        values: NDArray[np.float64],
        cells: NDArray[np.float64],
    ) -> None:
        seen: set[int] = set()
        for cell, field, value in zip(
            cell_of.tolist(), field_of.tolist(), values.tolist(), strict=True
        ):
            if cell not in seen:
                seen.add(cell)
                continue
            name = self.fields.columns[field].name
            if value == cells[cell]:
                self._reading.reject("duplicate", name)
            else:
                self._reading.reject("contradiction", name)
                self._reading.note(f"{name}: two values for one entity, the first is kept")

    def _exact(
        self,
        cell_of: NDArray[np.int64],
        field_of: NDArray[np.int64],
        values: NDArray[np.float64],
        chosen: NDArray[np.int64] | None,
    ) -> dict[int, int]:
        """Integers that float64 cannot hold, by cell, from the text that was read."""
        large = np.flatnonzero((values >= EXACT_BELOW) & self.fields.whole[field_of])
        exact: dict[int, int] = {}
        for number in large.tolist():
            raw = self._text(int(chosen[number]) if chosen is not None else number)
            value = exact_integer(raw, float(self.fields.scale[field_of[number]]))
            if value is not None and value < 2**64:
                exact.setdefault(int(cell_of[number]), value)
        return exact

    def _text(self, number: int) -> Raw:
        for values, (raw, raw_of) in zip(self._values, self._texts, strict=True):
            if number < len(values):
                return raw[int(raw_of[number]) if raw_of is not None else number]
            number -= len(values)
        raise IndexError(number)


def to_float(raw: Raw) -> float | None:
    """A number from its text; None where it is none. ``1_0`` is none."""
    if isinstance(raw, bool):
        return None
    if (isinstance(raw, bytes) and b"_" in raw) or (isinstance(raw, str) and "_" in raw):
        return None
    try:
        return float(raw)
    except (ValueError, TypeError):
        return None
    except OverflowError:
        return float("inf")


def _integer_limits(column: Column) -> tuple[float, float]:
    bits = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}.get(column.type, 32)
    low, high = 0.0, 2.0**bits - 1
    if column.range:
        low, high = max(low, column.range[0]), min(high, column.range[1])
    return low, high


def _joined(parts: list[NDArray[_T]]) -> NDArray[_T]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _one_value(value: str, rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, dtype=np.int32)), [value])


def _encode(values: tuple[str | int | None, ...]) -> pa.Array:
    return pa.array(values, pa.string()).dictionary_encode()


# Labels of one host's devices are the same on every page of it.
_remembered_value = lru_cache(maxsize=4096)(_one_value)
_remembered_labels = lru_cache(maxsize=4096)(_encode)


def _constant(value: str, rows: int) -> pa.Array:
    return (_remembered_value if rows <= _FEW_ROWS else _one_value)(value, rows)


def _labels(column: Column, values: list[str | int | None]) -> pa.Array | None:
    first = values[0]
    same = values.count(first) == len(values)
    if same and first is None and column.nullable:
        return None
    if column.type != "label":
        return pa.array(values, arrow_type(column))
    if same and isinstance(first, str):
        return _constant(first, len(values))
    return (_remembered_labels if len(values) <= _FEW_ROWS else _encode)(tuple(values))


def _arrays(
    columns: list[Column],
    rows: int,
    cells: NDArray[np.float64],
    filled: NDArray[np.bool_],
    exact: dict[int, int],
) -> dict[str, pa.Array]:
    """One array per column that has any reading, cut from one block per type."""
    block = cells.reshape(len(columns), rows)
    mask = ~filled.reshape(len(columns), rows)
    used = np.flatnonzero(~mask.all(axis=1)).tolist()
    of_type: dict[str, list[int]] = {}
    for number in used:
        of_type.setdefault(columns[number].type, []).append(number)
    arrays: dict[str, pa.Array] = {}
    for name, numbers in of_type.items():
        kind = arrow_type(columns[numbers[0]])
        values = block[numbers].astype(kind.to_pandas_dtype())
        if exact and name == "uint64":
            place = {number: place for place, number in enumerate(numbers)}
            for cell, value in exact.items():
                if cell // rows in place:
                    values[place[cell // rows], cell % rows] = value
        whole = pa.array(values.ravel(), kind, mask=mask[numbers].ravel())
        for place_, number in enumerate(numbers):
            arrays[columns[number].name] = whole.slice(place_ * rows, rows)
    return arrays
