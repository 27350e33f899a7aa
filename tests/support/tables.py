"""Tables of a stream, made comparable."""

from __future__ import annotations

import pyarrow as pa

from pipeline.streams import Stream
from pipeline.streams.arrow import conform


def comparable(stream: Stream, table: pa.Table) -> pa.Table:
    """In the order of identity, labels as text."""
    table = conform(stream, table).unify_dictionaries().combine_chunks()
    columns = [
        column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
        for column in table.columns
    ]
    order = [(name, "ascending") for name in stream.row_identity]
    return pa.table(columns, names=table.column_names).sort_by(order)
