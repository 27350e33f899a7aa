"""Arrow schemas of the streams."""

from __future__ import annotations

import pyarrow as pa

from pipeline.streams.contract import Column, Stream

_TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "label": pa.dictionary(pa.int32(), pa.string()),
    "bool": pa.bool_(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "timestamp_ms": pa.timestamp("ms", tz="UTC"),
}


def arrow_type(column: Column) -> pa.DataType:
    """The Arrow type that a column has on the wire."""
    return _TYPES[column.type]


def arrow_field(column: Column) -> pa.Field:
    """The Arrow field of a column."""
    return pa.field(column.name, arrow_type(column), nullable=column.nullable)


def wire_schema(stream: Stream) -> pa.Schema:
    """Schema of a message: all columns but those that the writer adds."""
    return pa.schema([arrow_field(column) for column in stream.wire_columns])


def table_schema(stream: Stream) -> pa.Schema:
    """Schema of the stored table, in column order."""
    return pa.schema([arrow_field(column) for column in stream.columns])


def conform(stream: Stream, table: pa.Table) -> pa.Table:
    """Bring a table into the wire schema: columns in order, missing ones NULL.

    Args:
        table: any subset of the wire columns, of castable types.

    Returns:
        The same rows in the wire schema.

    Raises:
        pa.ArrowInvalid: a value does not fit its column's type.
        KeyError: an identity column is missing, or a column is unknown.
        ValueError: an identity column holds NULL.
    """
    known = {column.name for column in stream.wire_columns}
    sent = set(table.column_names)
    unknown = sent - known
    if unknown:
        raise KeyError(f"{stream.name} has no column {sorted(unknown)}")
    arrays = []
    for column in stream.wire_columns:
        kind = arrow_type(column)
        if column.name not in sent:
            if not column.nullable:
                raise KeyError(f"{stream.name}: identity column {column.name} is missing")
            arrays.append(pa.nulls(table.num_rows, kind))
            continue
        array = table.column(column.name)
        if not column.nullable and array.null_count:
            raise ValueError(f"{stream.name}: identity column {column.name} holds NULL")
        arrays.append(array if array.type == kind else array.cast(kind))
    return pa.table(arrays, schema=wire_schema(stream))
