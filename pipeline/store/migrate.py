"""Brings the database to this version: stream tables from the contracts, then numbered SQL.

Only additions are made. Every statement may run twice, also in two processes at once.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError

from pipeline.errors import ConfigError
from pipeline.settings import Settings
from pipeline.store import rollups
from pipeline.store.sql_text import quote, statements
from pipeline.streams import Contracts, Stream, schemas_folder
from pipeline.streams.ddl import DATABASE, clickhouse_type, column_sql, create_table_sql

# Minutes are kept for longer than the rows that they were made of.
MINUTES_RETENTION_DAYS = 90
_FILE_NAME = re.compile(r"^(\d{4})_([a-z0-9_]+)\.sql$")
_LEDGER = f"""CREATE TABLE IF NOT EXISTS {DATABASE}.schema_migration
(
    name String COMMENT 'File name in schemas/sql',
    checksum String COMMENT 'sha256 of the file when it was applied',
    applied_at DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'When it was applied'
)
ENGINE = MergeTree
ORDER BY name
COMMENT 'Numbered SQL files that were applied'"""


def migrate(client: Client, settings: Settings, contracts: Contracts) -> list[str]:
    """Bring the database to the contracts and numbered SQL files of this version.

    Args:
        client: a client of the owner.

    Returns:
        What was done, one line each; empty when nothing was to do.

    Raises:
        ConfigError: a column's type differs, an identity column is new, or a numbered file
            was changed after it was applied; the text says what to do.
    """
    done: list[str] = []
    adapt = _Adapter(settings)
    client.command(adapt(f"CREATE DATABASE IF NOT EXISTS {DATABASE}"))
    for stream in contracts.values():
        done += _stream_table(client, settings, adapt, stream)
        if stream.name in rollups.ROLLED_UP:
            done += _minutes(client, settings, adapt, stream)
    client.command(adapt(_LEDGER))
    done += _numbered(client, adapt, schemas_folder() / "sql")
    return done


class _Adapter:
    """Writes a statement for the engine and cluster of the settings."""

    _TARGET = re.compile(
        r"^(\s*(?:CREATE\s+(?:OR\s+REPLACE\s+)?(?:DATABASE|TABLE|VIEW|MATERIALIZED\s+VIEW"
        r"|DICTIONARY|FUNCTION)|ALTER\s+TABLE|DROP\s+(?:TABLE|VIEW)|TRUNCATE\s+TABLE)"
        r"(?:\s+IF\s+(?:NOT\s+)?EXISTS)?\s+[\w.`]+)",
        re.IGNORECASE,
    )
    _ENGINE = re.compile(r"(?<=ENGINE\s=\s)(?=\w*MergeTree\b)(?!Replicated)")

    def __init__(self, settings: Settings) -> None:
        self._replicated = settings.table_engine.startswith("Replicated")
        self._cluster = settings.cluster_name

    def __call__(self, sql: str) -> str:
        if self._replicated:
            sql = self._ENGINE.sub("Replicated", sql)
        if self._cluster:
            name = self._cluster.replace("'", "")
            sql = self._TARGET.sub(rf"\1 ON CLUSTER '{name}'", sql, count=1)
        return sql


def _stream_table(client: Client, settings: Settings, adapt: _Adapter, stream: Stream) -> list[str]:
    table = f"{DATABASE}.{stream.name}"
    there = _columns(client, stream.name)
    if not there:
        client.command(adapt(create_table_sql(stream, retention_days=settings.retention_days)))
        return [f"created {table}"]
    done = []
    previous = ""
    for column in stream.columns:
        wanted = clickhouse_type(column)
        if column.name not in there:
            if column.kind == "identity":
                raise ConfigError(
                    f"{table} lacks the identity column {column.name}: identities are part of"
                    " the sorting key and cannot be added. Take it back from the contract, or"
                    " make a new stream"
                )
            after = f" AFTER `{previous}`" if previous else " FIRST"
            client.command(
                adapt(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {column_sql(column)}{after}")
            )
            done.append(f"added {table}.{column.name}")
        elif there[column.name] != wanted:
            raise ConfigError(
                f"{table}.{column.name} is {there[column.name]} in the database and {wanted} in"
                f" schemas/{stream.name}.toml. A type is never changed in place: give the column"
                " a new name in the contract, or put the old type back"
            )
        previous = column.name
    done += _retention(client, settings, adapt, stream.name)
    return done


def _minutes(client: Client, settings: Settings, adapt: _Adapter, stream: Stream) -> list[str]:
    """The table and view of a stream's minutes; they follow the contract's columns."""
    table = rollups.table_name(stream)
    there = _columns(client, table.partition(".")[2])
    done = [] if there else [f"created {table}"]
    days = max(settings.retention_days, MINUTES_RETENTION_DAYS)
    make_table, make_view = rollups.create_sql(stream, days)
    client.command(adapt(make_table))
    missing = [column for column in rollups.rollup_columns(stream) if column[0] not in there]
    for name, kind, text in missing if there else []:
        client.command(
            adapt(
                f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS `{name}` {kind} CODEC(ZSTD(1))"
                f" COMMENT {quote(text)}"
            )
        )
        done.append(f"added {table}.{name}")
    if done:
        client.command(adapt(make_view))
    return done


def _columns(client: Client, table: str) -> dict[str, str]:
    rows = client.query(
        "SELECT name, type FROM system.columns"
        " WHERE database = {database:String} AND table = {table:String} ORDER BY position",
        parameters={"database": DATABASE, "table": table},
    ).result_rows
    return {str(name): str(kind) for name, kind in rows}


def _retention(client: Client, settings: Settings, adapt: _Adapter, table: str) -> list[str]:
    days = settings.retention_days
    engine = client.query(
        "SELECT engine_full FROM system.tables"
        " WHERE database = {database:String} AND name = {table:String}",
        parameters={"database": DATABASE, "table": table},
    ).result_rows
    if not engine or f"toIntervalDay({days})" in str(engine[0][0]):
        return []
    client.command(
        adapt(
            f"ALTER TABLE {DATABASE}.{table} MODIFY TTL"
            f" toDate(ingested_at) + INTERVAL {days} DAY DELETE"
        )
    )
    return [f"set retention of {DATABASE}.{table} to {days} days"]


def sql_files(folder: Path) -> list[Path]:
    """The numbered SQL files in order.

    Raises:
        ConfigError: a name is not ``NNNN_name.sql``, or a number stands twice.
    """
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.sql")):
        match = _FILE_NAME.match(path.name)
        if match is None:
            raise ConfigError(f"{path}: name it NNNN_name.sql")
        if match[1] in found:
            raise ConfigError(f"{path} and {found[match[1]].name} have the same number")
        found[match[1]] = path
    return list(found.values())


def _numbered(client: Client, adapt: _Adapter, folder: Path) -> list[str]:
    rows = client.query(f"SELECT name, checksum FROM {DATABASE}.schema_migration").result_rows
    applied = {str(name): str(checksum) for name, checksum in rows}
    done = []
    for path in sql_files(folder):
        text = path.read_text(encoding="utf-8")
        checksum = hashlib.sha256(text.encode()).hexdigest()
        if path.name in applied:
            if applied[path.name] != checksum:
                raise ConfigError(
                    f"schemas/sql/{path.name} was changed after it was applied: put it back and"
                    " write the change as a new file with the next number"
                )
            continue
        for number, statement in enumerate(statements(text), 1):
            try:
                client.command(adapt(statement))
            except DatabaseError as exc:
                raise ConfigError(
                    f"schemas/sql/{path.name}: statement {number} failed, and will be tried"
                    f" again from the first one: {exc}"
                ) from exc
        client.command(
            f"INSERT INTO {DATABASE}.schema_migration (name, checksum)"
            " SELECT {name:String}, {checksum:String}",
            parameters={"name": path.name, "checksum": checksum},
        )
        done.append(f"applied {path.name}")
    return done
