"""Harmless trouble between page and row: pages read twice, pages that come late.

The page itself is right, so only recorded rows show it; a served hall leaves it to collectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.hall.faults import Fault

_STREAMS = ("gpu", "component")  # what a host's exporter gives


def impair(tables: Mapping[str, pa.Table], events: Iterable[Fault]) -> dict[str, pa.Table]:
    """The tables with doubled and late rows where an event says so."""
    found = dict(tables)
    for event in events:
        if event.cause not in ("duplicate_scrapes", "clock_skew"):
            continue
        for name in _STREAMS:
            if name in found:
                found[name] = _one(found[name], event)
    return found


def _one(table: pa.Table, event: Fault) -> pa.Table:
    at_ms = table["sampled_at"].cast(pa.int64())
    # A host's name is a label: compare the few names, not every row's text.
    hosts = table["host"].combine_chunks()
    mine = pc.equal(hosts.cast(pa.string()), event.entity).fill_null(False)
    within = pc.and_(
        pc.greater_equal(at_ms, round(event.start * 1000)),
        pc.less(at_ms, round(event.end * 1000)),
    )
    hit = pc.and_(mine, within)
    if not pc.any(hit).as_py():
        return table
    if event.cause == "duplicate_scrapes":
        return pa.concat_tables([table, table.filter(hit)])
    late = np.asarray(hit) * round(event.severity * 1000)
    shifted = pa.array(np.asarray(at_ms) + late).cast(pa.timestamp("ms", tz="UTC"))
    where = table.schema.get_field_index("sampled_at")
    return table.set_column(where, table.schema.field(where), shifted)
