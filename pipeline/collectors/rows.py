"""Rows made one by one: for sources that give few readings at a time.

Pages with many lines have a vectorised way of their own; resource trees, log lines and
messages come in hundreds, and are clearer row by row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pyarrow as pa

from pipeline.collectors.page import Page, Reading
from pipeline.streams import Column, Stream
from pipeline.streams.arrow import arrow_type

Value = str | int | float | bool | None

MAX_TEXT = 2_000

_LIMITS = {"uint8": 2**8, "uint16": 2**16, "uint32": 2**32, "uint64": 2**64}
# "Not set" and "no limit" in management controllers: all bits of a register.
_NOT_SET = frozenset({2.0**32 - 1, 2.0**64 - 1, 2.0**64, -(2.0**31), 2.0**31 - 1})
_NO_READING = frozenset({"", "n/a", "na", "null", "none", "absent", "unknown", "not available"})


class RefusedError(ValueError):
    """A reading that is not believed.

    Args:
        reason: short, stable word for the counter.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def believed(column: Column, raw: object, scale: float = 1.0) -> Value:
    """A raw reading in the unit and type of its column; None where there is none.

    Args:
        raw: what the source gave: a number, a text, a truth value or nothing.
        scale: factor from the source's unit to the column's.

    Raises:
        RefusedError: the reading is a sentinel, no number, or out of the column's range.
    """
    if raw is None:
        return None
    if column.type in ("string", "label"):
        return _text(raw)
    if column.type == "bool":
        if isinstance(raw, bool):
            return raw
        raise RefusedError("not_a_truth_value")
    number = _number(raw)
    if number is None:
        return None
    if column.saturates is not None and number == column.saturates:
        raise RefusedError("saturated")
    if column.kind == "counter":
        if number >= 2.0**64 - 1:
            raise RefusedError("saturated")
        if number < 0:
            raise RefusedError("out_of_range")
    elif number in _NOT_SET:
        raise RefusedError("not_set")
    if column.none_seen is not None and number == column.none_seen:
        return 0.0
    if scale != 1.0:
        number = number * scale
    if column.range and not column.range[0] <= number <= column.range[1]:
        raise RefusedError("out_of_range")
    if column.type in _LIMITS:
        if number != int(number):
            raise RefusedError("not_whole")
        if not 0 <= number < _LIMITS[column.type]:
            raise RefusedError("out_of_range")
        return int(number)
    if column.type in ("int32", "int64"):
        return int(number)
    return float(number)


def clean(text: str) -> str:
    """Text that any encoder takes: half characters replaced, and no longer than it may be."""
    text = text[:MAX_TEXT]
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _text(raw: object) -> str | None:
    if isinstance(raw, str):
        return clean(raw) or None
    if isinstance(raw, (int, float)) and abs(raw) < 2**64:
        return str(raw)
    raise RefusedError("not_a_text")


def _number(raw: object) -> int | float | None:
    if isinstance(raw, bool):
        raise RefusedError("not_a_number")
    if isinstance(raw, str):
        word = raw.strip().lower()
        if word in _NO_READING:
            return None
        try:
            raw = float(word)
        except ValueError:
            raise RefusedError("not_a_number") from None
    if not isinstance(raw, (int, float)):
        raise RefusedError("not_a_number")
    if isinstance(raw, int) and abs(raw) > 2**64:
        raise RefusedError("out_of_range")
    if not math.isfinite(raw):
        raise RefusedError("not_finite")
    return raw


# Says which kind of thing a row is of, and nothing about it.
_OF_WHAT = frozenset({"component_type"})


class Rows:
    """Rows of one stream under construction, one per entity.

    Args:
        stream: the contract.
        reading: where refusals are counted.
        page: gives cluster, time and target of every row.
        source: value of the ``source`` column.
    """

    def __init__(self, stream: Stream, reading: Reading, page: Page, source: str) -> None:
        self.stream = stream
        self._reading = reading
        self._rows: dict[tuple[str, ...], dict[str, object]] = {}
        self._base = {
            "cluster": page.cluster,
            "source": source,
            "sampled_at": page.received_at,
            "target": page.target,
            "host": page.host,
        }

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, **entity: Value) -> dict[str, object]:
        """The row of an entity, made when it is first asked for."""
        entity = {
            name: clean(value) if isinstance(value, str) else value
            for name, value in entity.items()
        }
        key = tuple(str(entity[name]) for name in self.stream.entity)
        found = self._rows.get(key)
        if found is None:
            found = self._rows[key] = {**self._base, **entity}
        return found

    def put(self, row: dict[str, object], column: str, raw: object, scale: float = 1.0) -> None:
        """Write a reading, unless the row has one already or it is not believed."""
        if raw is None or row.get(column) is not None:
            return
        try:
            value = believed(self.stream.column(column), raw, scale)
        except RefusedError as exc:
            self._reading.reject(exc.reason, column)
            return
        if value is not None:
            row[column] = value

    def table(self) -> pa.Table | None:
        """All rows that say anything beside which entity they are of; None without any."""
        told = [row for row in self._rows.values() if self._says_anything(row)]
        return table_of(self.stream, told) if told else None

    def _says_anything(self, row: dict[str, object]) -> bool:
        return any(
            value is not None
            for name, value in row.items()
            if name not in self._base and name not in _OF_WHAT and self.stream.column(name).nullable
        )


def table_of(stream: Stream, rows: Sequence[Mapping[str, object]]) -> pa.Table:
    """Rows as a table: those columns of the contract that any row has.

    Raises:
        KeyError: a row has a column that the contract does not know.
    """
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    arrays = {}
    for column in stream.wire_columns:
        if column.name in names:
            names.pop(column.name)
            kind = arrow_type(column)
            values = [row.get(column.name) for row in rows]
            if pa.types.is_dictionary(kind):
                arrays[column.name] = pa.array(values, pa.string()).dictionary_encode()
            else:
                arrays[column.name] = pa.array(values, kind)
    if names:
        raise KeyError(f"{stream.name} has no column {sorted(names)}")
    return pa.table(arrays)
