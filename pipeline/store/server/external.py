"""External data: tables that come with a request and live for it alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import IO

from pipeline.store.server.engine import Connection
from pipeline.store.server.failure import StoreError
from pipeline.store.server.incoming import PIECE
from pipeline.store.sql_text import quote, quote_name, tokens

_NAME = re.compile(r"^[A-Za-z_]\w{0,127}$")


@contextmanager
def tables(
    connection: Connection,
    files: Mapping[str, IO[bytes]],
    about: Mapping[str, str],
    formats: frozenset[str],
) -> Iterator[None]:
    """Make temporary tables of a request's files, and drop them afterwards.

    Args:
        files: table name: its data.
        about: ``<name>_structure`` or ``<name>_types``, and ``<name>_format``.

    Raises:
        StoreError: a name, structure or format is wrong, or the data is not what it says.
    """
    made: list[str] = []
    try:
        for name, file in files.items():
            if not _NAME.match(name):
                raise StoreError(36, f"{name[:60]!r} is no name for an external table")
            format = about.get(f"{name}_format", "TabSeparated")
            if format not in formats:
                raise StoreError(73, f"Unknown format {format[:60]}")
            columns = _columns(connection, name, about)
            connection.run(f"CREATE TEMPORARY TABLE {quote_name(name)} ({columns})")
            made.append(name)
            pieces = iter(partial(file.read, PIECE), b"")
            connection.insert(f"INSERT INTO {quote_name(name)}".encode(), format, pieces)
        yield
    finally:
        for name in made:
            connection.run(f"DROP TEMPORARY TABLE IF EXISTS {quote_name(name)}")


def _columns(connection: Connection, name: str, about: Mapping[str, str]) -> str:
    """Column definitions, written anew from what the engine makes of the client's text."""
    structure = about.get(f"{name}_structure")
    if structure is None:
        types = about.get(f"{name}_types")
        if types is None:
            raise StoreError(36, f"External table {name} has neither structure nor types")
        structure = _named(types)
    rows = connection.rows(f"DESCRIBE TABLE null({quote(structure)})")
    return ", ".join(f"{quote_name(row[0])} {row[1]}" for row in rows)


def _named(types: str) -> str:
    raw = types.encode()
    cuts = [token for token in tokens(raw) if token.text == b"," and token.depth == 0]
    starts = [0, *(cut.end for cut in cuts)]
    ends = [*(cut.start for cut in cuts), len(raw)]
    parts = [raw[start:end].decode().strip() for start, end in zip(starts, ends, strict=True)]
    return ", ".join(f"_{number} {part}" for number, part in enumerate(parts, 1))
