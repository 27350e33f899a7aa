"""Feature rows of a span of time as dense arrays: minutes x entities, NaN where unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.detection.conformal import BoolArray, FloatArray
from pipeline.errors import RackpulseError

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from pipeline.detection.spec import DetectorSpec

MINUTE = timedelta(minutes=1)
# Columns that every features.sql gives beside its own.
STRUCTURE = ("window_end", "entity_id", "entity_name", "samples", "moving", "fingerprint")


@dataclass
class Labels:
    """One text column: codes into ``names``, -1 where unknown; minutes x entities."""

    codes: NDArray[np.int32]
    names: list[str]

    def text(self, minute: int, entity: int) -> str | None:
        """The text at one place."""
        code = int(self.codes[minute, entity])
        return self.names[code] if code >= 0 else None

    def latest(self, entity: int) -> str | None:
        """The newest known text of an entity."""
        known = np.flatnonzero(self.codes[:, entity] >= 0)
        return self.names[int(self.codes[known[-1], entity])] if len(known) else None


@dataclass
class Frame:
    """Feature rows of one detector.

    Attributes:
        ends: end of each window, rising by a minute.
        entities, names: ids and names for people.
        samples: samples per minute; 0 where there was none.
        moving: distinct readings of the noisy fields per minute.
        fingerprint: hash of the last reading of each minute.
        values: numeric columns by name, minutes x entities.
        labels: text columns by name.
    """

    ends: list[datetime]
    entities: list[str]
    names: list[str]
    samples: NDArray[np.int32]
    moving: FloatArray
    fingerprint: FloatArray
    values: dict[str, FloatArray] = field(default_factory=dict)
    labels: dict[str, Labels] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """Minutes and entities."""
        return len(self.ends), len(self.entities)

    def value(self, name: str) -> FloatArray:
        """A numeric column; all NaN where the SQL gave none."""
        found = self.values.get(name)
        return np.full(self.shape, np.nan) if found is None else found

    def tail(self, minutes: int) -> Frame:
        """The last minutes only."""
        return self.minutes(np.arange(max(0, len(self.ends) - minutes), len(self.ends)))

    def minutes(self, index: NDArray[np.int64]) -> Frame:
        """Only these minutes, in this order."""
        return Frame(
            [self.ends[i] for i in index], self.entities, self.names,
            self.samples[index], self.moving[index], self.fingerprint[index],
            {name: array[index] for name, array in self.values.items()},
            {name: Labels(found.codes[index], found.names) for name, found in self.labels.items()},
        )  # fmt: skip


def whole_minute(moment: datetime) -> datetime:
    """Check that a window's end is a whole minute, UTC.

    Raises:
        RackpulseError: it is not.
    """
    if moment.tzinfo is None or moment.utcoffset() != timedelta(0):
        raise RackpulseError(f"window_end {moment} has no UTC zone: give an aware UTC time")
    if moment.second or moment.microsecond:
        raise RackpulseError(f"window_end {moment.isoformat()} is not a whole minute")
    return moment


def read_frame(
    client: Client, spec: DetectorSpec, cluster: str, start: datetime, end: datetime,
    *, step: timedelta = timedelta(hours=2),
) -> Frame:  # fmt: skip
    """Run a detector's ``features.sql`` over ``[start, end)``, in steps.

    Args:
        start, end: whole minutes.
    """
    tables = []
    at = start
    while at < end:
        upto = min(at + step, end)
        tables.append(
            client.query_arrow(
                spec.sql, parameters={"cluster": cluster, "start": at, "end": upto},
                settings={"max_threads": 2},
            )
        )  # fmt: skip
        at = upto
    table = pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
    return frame_of(table, start, end)


def frame_of(table: pa.Table, start: datetime, end: datetime) -> Frame:
    """Pivot feature rows.

    Args:
        table: one row per entity and minute: :data:`STRUCTURE` and the detector's columns.
    """
    count = int((end - start) / MINUTE)
    ends = [start + MINUTE * (i + 1) for i in range(count)]
    if not table.num_rows:
        empty: NDArray[np.int32] = np.zeros((count, 0), dtype=np.int32)
        return Frame(ends, [], [], empty, np.zeros((count, 0)), np.zeros((count, 0)))
    encoded = table.column("entity_id").combine_chunks().dictionary_encode()
    ids = encoded.dictionary.to_pylist()
    order = np.argsort(np.array(ids, dtype=object))
    place = np.empty(len(ids), dtype=np.int64)
    place[order] = np.arange(len(ids))
    column = place[encoded.indices.to_numpy(zero_copy_only=False)]
    seconds = _seconds(table.column("window_end"))
    row = ((seconds - int(start.timestamp())) // 60 - 1).astype(np.int64)
    inside = (row >= 0) & (row < count)
    row, column = row[inside], column[inside]
    shape = (count, len(ids))

    def spread(name: str) -> FloatArray:
        out = np.full(shape, np.nan)
        array = table.column(name).combine_chunks()
        numbers = array.cast(pa.float64()).to_numpy(zero_copy_only=False)[inside]
        out[row, column] = numbers
        return out

    entities = [ids[i] for i in order]
    names = list(entities)
    texts = table.column("entity_name").combine_chunks().filter(pa.array(inside)).to_pylist()
    for entity, name in zip(column, texts, strict=True):
        names[entity] = name or names[entity]
    samples = np.nan_to_num(spread("samples")).astype(np.int32)
    frame = Frame(ends, entities, names, samples, spread("moving"), spread("fingerprint"))
    for name in table.column_names:
        if name in STRUCTURE:
            continue
        kind = table.schema.field(name).type
        if pa.types.is_null(kind):
            continue
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            frame.labels[name] = _labels(table.column(name), row, column, inside, shape)
        else:
            frame.values[name] = spread(name)
    return frame


def _seconds(column: pa.ChunkedArray) -> NDArray[np.int64]:
    array = column.combine_chunks()
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("s", tz=array.type.tz), safe=False).cast(pa.int64())
    found: NDArray[np.int64] = array.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return found


def _labels(
    column: pa.ChunkedArray, row: NDArray[np.int64], place: NDArray[np.int64],
    inside: BoolArray, shape: tuple[int, int],
) -> Labels:  # fmt: skip
    array = column.combine_chunks()
    array = array.dictionary_encode()
    names = [name or "" for name in array.dictionary.to_pylist()]
    index = array.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    # Empty text is as unknown as NULL.
    known = np.array([bool(name) for name in names] or [False])
    index = np.where((index >= 0) & known[np.maximum(index, 0)], index, -1).astype(np.int32)
    codes = np.full(shape, -1, dtype=np.int32)
    codes[row, place] = index[inside]
    return Labels(codes, names)


def joined_codes(frame: Frame, columns: Sequence[str]) -> NDArray[np.int64]:
    """One code per combination of text columns; -1 where one of them is unknown.

    Returns:
        minutes x entities. A numeric column counts by its whole number.
    """
    out = np.zeros(frame.shape, dtype=np.int64)
    unknown = np.zeros(frame.shape, dtype=bool)
    for name in columns:
        if name in frame.labels:
            codes = frame.labels[name].codes.astype(np.int64)
            size = len(frame.labels[name].names)
        else:
            numbers = frame.value(name)
            codes = np.where(np.isfinite(numbers), np.nan_to_num(numbers), -1).astype(np.int64)
            size = int(codes.max(initial=0)) + 1
        unknown |= codes < 0
        out = out * (size + 1) + np.maximum(codes, 0)
    return np.where(unknown, -1, out)


def utc(seconds: float) -> datetime:
    """A moment from epoch seconds."""
    return datetime.fromtimestamp(seconds, UTC)
