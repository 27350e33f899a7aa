"""Rows as Kafka messages, without the general splitter's work.

The general way (:func:`pipeline.bus.codec.split`) sorts, cuts and compacts every table anew.
Here the same entities come again and again, so how a part is cut into messages, and what its
static columns look like in each, is worked out once. Columns that are NULL throughout are left
out of the message: the reader puts them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.bus.arrow_body import write_body
from pipeline.bus.codec import MAX_BYTES, MAX_ROWS, UNPLACED_KEY
from pipeline.hall.fleet import Ints
from pipeline.hall.rows import Part, RowMaker
from pipeline.hall.statics import Static
from pipeline.streams import Stream
from pipeline.streams.arrow import wire_schema

_FILL = 0.75  # of the largest message: dictionaries and padding come on top of the columns


@dataclass(frozen=True)
class _Run:
    """One message's share of a part: rows ``start`` to ``end`` in key order."""

    key: str
    start: int
    end: int
    static: Static


@dataclass(frozen=True)
class _Plan:
    order: pa.Array | None  # None where the rows stand in key order already
    numbers: Ints
    runs: list[_Run]


class MessageMaker:
    """Cuts parts into message bodies."""

    def __init__(self, rows: RowMaker) -> None:
        self._rows = rows
        self._plans: dict[tuple[str, int], _Plan] = {}
        self._schemas: dict[tuple[str, tuple[str, ...]], pa.Schema] = {}

    def bodies(self, parts: Iterable[Part]) -> Iterator[tuple[str, str, int, bytes]]:
        """Stream, key, rows and body of each message."""
        for part in parts:
            plan = self._plan(part)
            changing = part.changing
            if plan.order is not None:
                changing = {name: array.take(plan.order) for name, array in changing.items()}
            seen = None if part.seen is None else part.seen[plan.numbers]
            schema = self._schema(part)
            for run in plan.runs:
                rows = run.end - run.start
                arrays = [
                    run.static[name]
                    if name in run.static
                    else changing[name].slice(run.start, rows)
                    for name in schema.names
                ]
                batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
                if seen is not None:
                    batch = batch.filter(pa.array(seen[run.start : run.end]))
                    if not batch.num_rows:
                        continue
                yield part.stream, run.key, batch.num_rows, write_body(batch)

    def _schema(self, part: Part) -> pa.Schema:
        known = {**self._rows.static(part.name, part.times), **part.changing}
        key = (part.stream, tuple(sorted(known)))
        if key not in self._schemas:
            whole = wire_schema(self._rows.contracts[part.stream])
            self._schemas[key] = pa.schema([field for field in whole if field.name in known])
        return self._schemas[key]

    def _plan(self, part: Part) -> _Plan:
        name = (part.name, part.times)
        if name not in self._plans:
            for other in [known for known in self._plans if known[0] == part.name]:
                del self._plans[other]
            self._plans[name] = self._make_plan(part)
        return self._plans[name]

    def _make_plan(self, part: Part) -> _Plan:
        stream = self._rows.contracts[part.stream]
        static = self._rows.static(part.name, part.times)
        keys = _keys(stream, static)
        codes = np.asarray(keys.dictionary_encode().indices)
        numbers = np.argsort(codes, kind="stable")
        in_order = bool((np.diff(codes) >= 0).all())
        width = sum(_width(array) for array in [*static.values(), *part.changing.values()])
        limit = max(1, int(min(MAX_ROWS, _FILL * MAX_BYTES / width)) // part.times) * part.times
        if limit > MAX_ROWS:
            limit = MAX_ROWS
        sorted_codes = codes[numbers]
        edges = [0, *(np.flatnonzero(np.diff(sorted_codes)) + 1).tolist(), codes.size]
        order = pa.array(numbers)
        runs = []
        for begin, stop in pairwise(edges):
            for start in range(begin, stop, limit):
                end = min(start + limit, stop)
                where = order.slice(start, end - start)
                own = {name: _compact(array.take(where)) for name, array in static.items()}
                runs.append(_Run(str(keys[int(numbers[start])]), start, end, own))
        return _Plan(None if in_order else order, numbers, runs)


def _keys(stream: Stream, static: Static) -> pa.Array:
    """Kafka key of each row: the first key column that is known."""
    rows = len(static["cluster"])
    keys = pa.nulls(rows, pa.string())
    for name in stream.key:
        if name in static:
            keys = pc.coalesce(keys, static[name].cast(pa.string()))
    return keys.fill_null(UNPLACED_KEY)


def _width(array: pa.Array) -> float:
    """Bytes of one row in a message."""
    if pa.types.is_dictionary(array.type):
        return 4.2
    return 0.2 + float(array.nbytes) / max(len(array), 1)


def _compact(array: pa.Array) -> pa.Array:
    """The same values with a dictionary that holds no other."""
    if not pa.types.is_dictionary(array.type):
        return array
    used = array.indices.dictionary_encode()
    return pa.DictionaryArray.from_arrays(used.indices, array.dictionary.take(used.dictionary))
