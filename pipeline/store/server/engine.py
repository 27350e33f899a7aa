"""chDB: the one place that touches it.

A connection runs one statement at a time and isolates SET, USE and temporary tables; each
request has one to itself, and each HTTP session keeps one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import RackpulseError
from pipeline.store.local import Role
from pipeline.store.server.failure import StoreError
from pipeline.store.sql_text import quote, quote_name
from pipeline.streams.ddl import DATABASE

# How long an analyst's statement may take.
ANALYST_SECONDS = 300


@dataclass(frozen=True)
class Done:
    """What a statement did: rows and bytes read, answered, written; seconds; its answer."""

    rows_read: int = 0
    bytes_read: int = 0
    rows_answered: int = 0
    bytes_answered: int = 0
    rows_written: int = 0
    bytes_written: int = 0
    elapsed_s: float = 0.0
    answer: bytes = b""


class Connection:
    """One chDB connection."""

    def __init__(self, folder: str) -> None:
        from chdb.state import connect

        self._connection: Any = connect(folder)

    def close(self) -> None:
        """Close it; what it was doing is cancelled."""
        self._connection.close()

    def run(
        self, sql: str | bytes, format: str = "Null", params: Mapping[str, str] | None = None
    ) -> Done:
        """Run one statement and hold its answer in memory.

        Raises:
            StoreError: the engine refused it.
        """
        try:
            result = self._connection.query(sql, format, params=dict(params or {}))
        except Exception as exc:
            raise StoreError.of_engine(str(exc)) from None
        if result.has_error():
            raise StoreError.of_engine(result.error_message())
        return Done(
            rows_read=result.storage_rows_read(),
            bytes_read=result.storage_bytes_read(),
            rows_answered=result.rows_read(),
            bytes_answered=result.bytes_read(),
            rows_written=result.rows_written(),
            bytes_written=result.bytes_written(),
            elapsed_s=result.elapsed(),
            answer=result.bytes(),
        )

    def run_into(
        self, sql: bytes, format: str, descriptor: int, params: Mapping[str, str] | None = None
    ) -> Done:
        """Run one statement and let the engine write its answer to an open pipe.

        The engine formats the whole answer as one, as a server would, whatever the format.
        """
        target = f"\nINTO OUTFILE '/proc/self/fd/{descriptor}' TRUNCATE FORMAT {format}"
        # SHOW and its like are written anew inside the engine and lose the FORMAT clause: they
        # take the format that is named here.
        return self.run(sql + target.encode(), format, params)

    def insert(self, sql: bytes, format: str, pieces: Iterable[bytes]) -> Done:
        """Run an INSERT with its data.

        Raises:
            StoreError: the engine refused it, or the data is not what it is said to be.
        """
        try:
            inserter = self._connection.send_insert(sql, format)
            try:
                for piece in pieces:
                    inserter.append(piece)
                result = inserter.finish()
            finally:
                inserter.close()
        except RuntimeError as exc:
            raise StoreError.of_engine(str(exc)) from None
        return Done(
            rows_written=result.rows_written,
            bytes_written=result.bytes_written,
            elapsed_s=result.elapsed,
        )

    def set(self, settings: Mapping[str, str]) -> None:
        """Set settings; the names must have been checked."""
        if settings:
            pairs = ", ".join(f"{name} = {quote(value)}" for name, value in settings.items())
            self.run(f"SET {pairs}")

    def restore(self, settings: Mapping[str, str | None]) -> None:
        """Put settings back; None is the default."""
        for name, value in settings.items():
            self.run(f"SET {name} = {'DEFAULT' if value is None else quote(value)}")

    def use(self, database: str) -> None:
        """Make a database the current one."""
        self.run(f"USE {quote_name(database)}")

    def rows(self, sql: str, params: Mapping[str, str] | None = None) -> list[list[str]]:
        """The answer to a small question of our own, as texts."""
        answer = self.run(sql, "TabSeparatedRaw", params).answer.decode()
        return [line.split("\t") for line in answer.splitlines()]

    def kind(self, sql: bytes) -> tuple[str, int]:
        """What the engine's parser says of a text: class of statement, number of statements."""
        found = self._connection._conn.classify_query(sql)
        return found["query_class"].name, found["statement_count"]


class Engine:
    """The opened data folder.

    Raises:
        RackpulseError: it cannot be opened; the text says why.
    """

    def __init__(self, folder: Path) -> None:
        # The zone in which times are shown: UTC, as on a server.
        os.environ["TZ"] = "UTC"
        if "?" in str(folder):
            raise RackpulseError(f"The folder's name {folder} must not contain '?'")
        folder.mkdir(parents=True, exist_ok=True)
        memory = _memory() // 2
        self._folder = f"{folder}?max_server_memory_usage={memory}&mark_cache_size={memory // 8}"
        self._analyst = {
            "max_memory_usage": str(memory // 2),
            "max_execution_time": str(ANALYST_SECONDS),
        }
        try:
            self._keeper = Connection(self._folder)
            self._keeper.run(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
        except Exception as exc:
            raise RackpulseError(
                f"The data folder {folder} cannot be opened: {exc}. When another process holds"
                " it, stop that one first"
            ) from exc
        self.settings = frozenset(
            row[0] for row in self._keeper.rows("SELECT name FROM system.settings")
        )
        self.input_formats = frozenset(
            row[0] for row in self._keeper.rows("SELECT name FROM system.formats WHERE is_input")
        )
        self.output_formats = frozenset(
            row[0] for row in self._keeper.rows("SELECT name FROM system.formats WHERE is_output")
        )
        version, zone, host = self._keeper.rows("SELECT version(), timezone(), hostName()")[0]
        self.version = version
        self.timezone = zone
        self.host_name = host

    def connection(self, role: Role) -> Connection:
        """A fresh connection with what holds for that role."""
        connection = Connection(self._folder)
        # The engine's default changed to on in 26.3; what a client wants it says itself.
        connection.set({"async_insert": "0"})
        if role == "analyst":
            # Bare names in `default` are files to chDB, so an analyst never stands there.
            connection.use(DATABASE)
            connection.set({**self._analyst, "readonly": "2"})
        return connection

    def stop_all(self) -> None:
        """Cancel every statement that still runs."""
        # It finds itself as well, and is told so.
        with suppress(StoreError):
            self._keeper.run("KILL QUERY WHERE query_kind != 'KillQuery' ASYNC")

    def close(self) -> None:
        """Close the folder."""
        self._keeper.close()


def _memory() -> int:
    """Bytes of memory that this machine, or this container, has."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            found.append(int(Path(path).read_text(encoding="ascii")))
    return min(found)
