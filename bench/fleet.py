"""Messages of the reference fleet: 64 racks of 72 GPUs, one sample per second.

Values move as readings do (counters rise, gauges wander in steps of their sensors), so that
compression and dictionaries cost what they cost in the field. Columns that the reference
collectors fill are filled; the others are NULL, and are not counted as values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

from pipeline.bus.codec import Message, encode, split
from pipeline.streams import Column, Contracts, Stream
from pipeline.streams.arrow import arrow_type

RACKS = 64
GPUS = 72
LINKS = 18
# Rows per rack and second, and the sources whose columns are filled.
SHAPE: dict[str, tuple[int, tuple[str, ...]]] = {
    "gpu": (GPUS, ("dcgm",)),
    "nvlink": (GPUS * LINKS, ("dcgm", "nmxt")),
    "ib_port": (4 * GPUS, ("ib_exporter",)),
    "component": (40, ("dcgm", "redfish")),
    "coolant": (8, ("redfish",)),
    "event": (1, ("kmsg",)),
}
START = datetime(2026, 6, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Encoded:
    """A message and what it holds."""

    stream: str
    message: Message
    rows: int
    values: int


class Fleet:
    """Makes the fleet's messages, second by second.

    Args:
        size: share of the reference fleet, in racks of 64.
    """

    def __init__(self, contracts: Contracts, size: float = 1.0, seed: int = 1) -> None:
        self.contracts = contracts
        self.racks = max(1, round(RACKS * size))
        self._random = np.random.default_rng(seed)
        self._base = {name: self._table(contracts[name]) for name in SHAPE}
        self._counters = {
            name: [
                column.name
                for column in contracts[name].columns
                if column.kind == "counter" and self._filled(contracts[name], column)
            ]
            for name in SHAPE
        }
        self._seq: dict[tuple[str, str], int] = {}

    def rows_per_second(self) -> int:
        """Rows of one second."""
        return sum(rows for rows, _ in SHAPE.values()) * self.racks

    def second(self, number: int, at: datetime | None = None) -> Iterator[Encoded]:
        """Messages of one second.

        Args:
            at: sample time; counted from a fixed day by default.
        """
        at = at or START + timedelta(seconds=number)
        for name, base in self._base.items():
            stream = self.contracts[name]
            for key, batch in split(stream, self._moved(stream, base, number, at)):
                seq = self._seq[name, key] = self._seq.get((name, key), 0) + 1
                values = batch.num_rows * batch.num_columns - sum(
                    column.null_count for column in batch.columns
                )
                made = encode(stream, batch, collector_id=f"bench~{key}", seq=seq, sent_at=at)
                yield Encoded(name, made, batch.num_rows, values)

    def _filled(self, stream: Stream, column: Column) -> bool:
        sources = SHAPE[stream.name][1]
        return any(source in column.sources for source in sources)

    def _table(self, stream: Stream) -> pa.Table:
        per_rack = SHAPE[stream.name][0]
        rows = per_rack * self.racks
        rack = np.repeat(np.arange(self.racks), per_rack)
        place = np.tile(np.arange(per_rack), self.racks)
        columns: dict[str, pa.Array] = {}
        for column in stream.wire_columns:
            kind = arrow_type(column)
            filled = self._column(stream, column, kind, rows, rack, place)
            if filled is not None:
                columns[column.name] = filled
        return pa.table(columns)

    def _column(
        self, stream: Stream, column: Column, kind: pa.DataType, rows: int,
        rack: np.ndarray, place: np.ndarray,
    ) -> pa.Array | None:  # fmt: skip
        name = column.name
        if name == "rack":
            return _labels(rack, [f"rack-{number:02d}" for number in range(self.racks)])
        if name in ("host", "target"):
            return _labels(rack * 18 + place % 18,
                           [f"host-{number:04d}" for number in range(self.racks * 18)])  # fmt: skip
        if name in ("tray", "slot", "rail"):
            return pa.array((place % (18 if name == "tray" else 4)).astype(np.uint8))
        if name == "sampled_at":
            return pa.array(np.zeros(rows, np.int64)).cast(kind)
        if name in stream.entity:
            return self._identity(name, kind, rack, place)
        if not column.nullable:
            return _labels(np.zeros(rows, np.int64), [f"{name}-1"])
        if name in ("leaf", "cdu", "job_id"):
            return _labels(rack % 8, [f"{name}-{number}" for number in range(8)])
        if not self._filled(stream, column):
            return None
        return self._reading(column, kind, rows)

    def _identity(
        self, name: str, kind: pa.DataType, rack: np.ndarray, place: np.ndarray
    ) -> pa.Array:
        if pa.types.is_integer(kind):
            return pa.array((place % LINKS).astype(kind.to_pandas_dtype()))
        if pa.types.is_dictionary(kind):
            return _labels(np.zeros(len(rack), np.int64), [f"{name}-0"])
        unit = rack * 100_000 + (place // LINKS if name == "device_id" else place)
        return pa.array(
            [f"GPU-{number:08x}-0000-4000-8000-{number:012x}" for number in unit.tolist()]
        )

    def _reading(self, column: Column, kind: pa.DataType, rows: int) -> pa.Array:
        if pa.types.is_floating(kind):
            low, high = column.range or (0.0, 1000.0)
            middle = low + (min(high, low + 1000.0) - low) * 0.6
            noise = self._random.normal(middle, (middle - low) * 0.05 + 0.01, rows)
            return pa.array(np.round(noise, 1)).cast(kind)
        if pa.types.is_dictionary(kind):
            return _labels(np.zeros(rows, np.int64), ["OK"])
        if pa.types.is_boolean(kind):
            return pa.array(np.zeros(rows, bool))
        if pa.types.is_string(kind):
            return pa.array(["text of the source"] * rows)
        if column.kind == "counter":
            return pa.array(self._random.integers(10**9, 10**12, rows).astype(np.uint64))
        return pa.array(self._random.integers(0, 8, rows)).cast(kind)

    def _moved(self, stream: Stream, base: pa.Table, number: int, at: datetime) -> pa.Table:
        """The table at another second: time, counters and gauges moved on."""
        rows = base.num_rows
        table = base
        for index, name in enumerate(base.column_names):
            kind = base.schema.field(name).type
            if name == "sampled_at":
                jitter = self._random.integers(0, 900, rows)
                moved = pa.array(np.int64(at.timestamp() * 1000) + jitter).cast(kind)
            elif name in self._counters[stream.name] and pa.types.is_integer(kind):
                step = self._random.integers(0, 10**6, rows).astype(np.uint64)
                moved = pa.array(base.column(index).to_numpy() + np.uint64(number * 10**6) + step)
            elif pa.types.is_floating(kind):
                steps = np.round(self._random.normal(0, 1.0, rows), 1)
                moved = pa.array((base.column(index).to_numpy() + steps).round(1)).cast(kind)
            else:
                continue
            table = table.set_column(index, name, moved)
        return table


def _labels(codes: np.ndarray, names: list[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(names))
