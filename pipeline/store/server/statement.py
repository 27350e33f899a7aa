"""Runs one statement on one connection: what kind it is decides how."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pipeline.store.local import Role
from pipeline.store.server.engine import Connection, Done, Engine
from pipeline.store.server.failure import StoreError
from pipeline.store.server.incoming import Incoming
from pipeline.store.server.policy import Policy
from pipeline.store.server.request import Request
from pipeline.store.sql_text import (
    Token,
    first_word,
    names_file,
    quote,
    reads_input,
    take_format,
    tokens,
)

# The engine gives statements ids of its own; the client's id travels as this setting.
QUERY_ID_SETTING = "query_cache_tag"
_OF_THE_CONNECTION = f"Settings['{QUERY_ID_SETTING}']"


@dataclass(frozen=True)
class Plan:
    """A statement that is ready to run.

    Attributes:
        sql: the statement without data and without its output format.
        format: output format, or the input format of an insert.
        answers: the statement has an answer to be sent as it comes.
    """

    sql: bytes
    format: str
    answers: bool = False


@contextmanager
def applied(connection: Connection, request: Request, *, keep: bool) -> Iterator[None]:
    """Set database and settings of this statement alone.

    Args:
        keep: the connection lives on in a session, so everything is put back afterwards.
    """
    settings = dict(request.settings)
    settings.pop("readonly", None)
    tag = request.query_id
    if tag and QUERY_ID_SETTING not in settings and settings.get("use_query_cache", "0") == "0":
        settings[QUERY_ID_SETTING] = tag
    database = request.own.get("database")
    before: dict[str, str | None] = {}
    database_before = ""
    if keep:
        before = _current(connection, settings)
        if database:
            database_before = connection.rows("SELECT currentDatabase()")[0][0]
    if database:
        connection.use(database)
    try:
        connection.set(settings)
        yield
    finally:
        if keep:
            connection.restore(before)
            if database_before:
                connection.use(database_before)


def _current(connection: Connection, settings: dict[str, str]) -> dict[str, str | None]:
    """Values to put back; None is the default."""
    if not settings:
        return {}
    names = ", ".join(quote(name) for name in settings)
    answer = connection.run(
        f"SELECT name, value, changed FROM system.settings WHERE name IN ({names})",
        "JSONCompactEachRow",
    ).answer
    rows = [json.loads(line) for line in answer.splitlines()]
    return {name: str(value) if int(changed) else None for name, value, changed in rows}


def plan(
    engine: Engine,
    policy: Policy,
    connection: Connection,
    role: Role,
    request: Request,
    incoming: Incoming,
) -> Plan:
    """Find out how to run a statement, and whether this user may.

    Raises:
        StoreError: it is not one statement, or not allowed.
    """
    if names_file(incoming.sql):
        raise StoreError(344, "INTO OUTFILE and FROM INFILE are for clients, not for the store")
    if incoming.insert is not None:
        if role != "owner" or request.read_only:
            raise StoreError(164, "This user or this way of asking may only read")
        _single(connection, incoming.sql)
        return Plan(incoming.sql, incoming.insert.format)
    sql, clause = take_format(incoming.sql)
    chosen = clause or request.own.get("default_format") or "TabSeparated"
    if chosen not in engine.output_formats:
        raise StoreError(73, f"Unknown format {chosen[:100]}")
    kind = _single(connection, sql)
    reads = kind == "READ_ONLY"
    if role == "analyst":
        sql = policy.allowed(connection, sql, request.params)
    elif request.read_only and not reads:
        raise StoreError(164, "Cannot execute query in readonly mode: use POST to write")
    word = first_word(sql)
    if word == "KILL":
        sql = by_client_id(sql)
    if word in ("CREATE", "DROP") and any(token.says("FUNCTION") for token in tokens(sql)):
        policy.forget()
    return Plan(sql, chosen, answers=reads)


def _single(connection: Connection, sql: bytes) -> str:
    kind, count = connection.kind(sql)
    if count > 1:
        raise StoreError(62, "Syntax error (Multi-statements are not allowed)")
    return kind


def by_client_id(sql: bytes) -> bytes:
    """Let KILL QUERY find a statement by the id that its client gave it."""
    found = list(tokens(sql))
    pieces, position = [], 0
    for index, token in enumerate(found):
        if token.text.strip(b'`"') != b"query_id" or index + 2 >= len(found):
            continue
        operator, start = found[index + 1], index + 2
        if operator.text != b"=" and not operator.says("IN"):
            continue
        end = _operand_end(found, start)
        condition = sql[token.start : found[end].end]
        theirs = _OF_THE_CONNECTION.encode() + sql[token.end : found[end].end]
        pieces += [sql[position : token.start], b"(" + condition + b" OR " + theirs + b")"]
        position = found[end].end
    return b"".join([*pieces, sql[position:]])


def _operand_end(found: list[Token], start: int) -> int:
    if found[start].text not in (b"(", b"{"):
        return start
    for index in range(start + 1, len(found)):
        if found[index].text in (b")", b"}") and found[index].depth == found[start].depth:
            return index
    return len(found) - 1


def run_insert(connection: Connection, request: Request, found: Plan, incoming: Incoming) -> Done:
    """Run an INSERT that takes its rows from the body.

    chDB cannot feed ``input()`` itself. It becomes ``file()`` over a descriptor of ours that
    holds the body; structure, format and everything else stay as written, so the engine does
    all of it: reading, conditions, and being seen in ``system.processes`` from its start.
    """
    assert incoming.data is not None
    call = reads_input(found.sql)
    if call is None:
        connection.set({f"param_{name}": value for name, value in request.params.items()})
        return connection.insert(found.sql, found.format, incoming.data.pieces())
    arguments = f"{quote(f'/proc/self/fd/{incoming.data.descriptor}')}, {quote(found.format)}"
    if call.arguments:
        arguments += f", {call.arguments}"
    sql = found.sql[: call.start] + f"file({arguments})".encode() + found.sql[call.end :]
    return connection.run(sql, "Null", request.params)


def run_other(connection: Connection, request: Request, found: Plan) -> Done:
    """Run a statement whose answer, if any, is short."""
    return connection.run(found.sql, found.format, request.params)


def run_answer(connection: Connection, request: Request, found: Plan, descriptor: int) -> Done:
    """Run a statement whose answer is written to a pipe as it comes."""
    return connection.run_into(found.sql, found.format, descriptor, request.params)


def cancel(engine: Engine, query_id: str) -> None:
    """Stop a statement whose client has gone."""
    connection = engine.connection("owner")
    try:
        connection.run(
            f"KILL QUERY WHERE {_OF_THE_CONNECTION} = {{id:String}} ASYNC",
            params={"id": query_id.replace("\\", "\\\\")},
        )
    finally:
        connection.close()
