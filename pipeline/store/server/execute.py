"""Runs one statement on one connection: what kind it is decides how."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.store.server.body import Body
from pipeline.store.server.engine import Connection, Done, Engine
from pipeline.store.server.failure import StoreError
from pipeline.store.server.request import Request
from pipeline.store.sql_text import Insert, find_insert, first_word, quote, take_format, tokens

# Statements whose answer is a table that can be long.
ANSWERING = frozenset({"SELECT", "WITH", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "EXISTS", "CHECK"})
# How much of a body is looked at to find where an INSERT's data begins.
HEAD = 1 << 20
MAX_STATEMENT = 16 << 20
QUERY_ID_SETTING = "query_cache_tag"


@dataclass(frozen=True)
class Plan:
    """A statement that is ready to run.

    Attributes:
        sql: the statement without data and without its output format.
        format: output format, or the input format of an insert.
        data_start: where the data begins in the body; None where there is none.
        reads_input: the INSERT selects from ``input(…)``.
        answers: the statement has an answer to be sent as it comes.
    """

    sql: bytes
    format: str
    data_start: int | None = None
    reads_input: bool = False
    answers: bool = False


def plan(engine: Engine, request: Request, body: Body) -> Plan:
    """Find out what a request wants run.

    Args:
        body: what followed the headers, decoded.

    Raises:
        StoreError: there is no statement, or it is too long.
    """
    in_url = request.own.get("query", "")
    prefix = in_url.encode() + b"\n" if in_url.strip() else b""
    head = prefix + body.head(HEAD)
    if not head.strip():
        raise StoreError(62, "Empty query")
    word = first_word(head)
    insert = find_insert(head, engine.input_formats) if word in ("INSERT", "WITH") else None
    if insert is not None and _takes_data(insert):
        return Plan(
            insert.head,
            insert.format,
            data_start=max(0, insert.data_start - len(prefix)),
            reads_input=_input_call(insert.head) is not None,
        )
    if body.size > MAX_STATEMENT:
        raise StoreError(62, f"The statement is longer than {MAX_STATEMENT} bytes")
    sql, format = take_format(prefix + body.joined() if body.descriptor is None else head)
    default = request.own.get("default_format") or "TabSeparated"
    chosen = format or default
    if chosen not in engine.output_formats:
        raise StoreError(73, f"Unknown format {chosen[:100]}")
    return Plan(sql, chosen, answers=word in ANSWERING)


def _takes_data(insert: Insert) -> bool:
    """False for INSERT … SELECT that reads no input: its FORMAT is for an answer."""
    selects = any(t.depth == 0 and t.says("SELECT") for t in tokens(insert.head))
    return not selects or _input_call(insert.head) is not None


def _input_call(head: bytes) -> tuple[int, int, str | None] | None:
    """Where ``input(…)`` stands in a statement, and the text of its structure literal."""
    found = list(tokens(head))
    for index, token in enumerate(found):
        if not token.says("INPUT") or index + 1 >= len(found) or found[index + 1].text != b"(":
            continue
        previous = found[index - 1]
        if not (previous.says("FROM", "JOIN") or previous.text == b","):
            continue
        for end in range(index + 2, len(found)):
            if found[end].text == b")" and found[end].depth == token.depth:
                inner = head[found[index + 1].end : found[end].start].decode().strip()
                return token.start, found[end].end, inner or None
    return None


def apply(connection: Connection, request: Request) -> None:
    """Set what goes for this statement only: database and settings."""
    database = request.own.get("database")
    if database:
        connection.use(database)
    settings = dict(request.settings)
    if request.query_id and QUERY_ID_SETTING not in settings:
        settings[QUERY_ID_SETTING] = request.query_id
    if request.read_only and settings.get("readonly", "0") == "0":
        settings.pop("readonly", None)
        settings["readonly"] = "2"
    connection.set(settings)


def check_single(connection: Connection, sql: bytes) -> None:
    """Refuse a text of several statements.

    Raises:
        StoreError: there is more than one.
    """
    _, count = connection.kind(sql)
    if count > 1:
        raise StoreError(62, "Multi-statements are not allowed")


def run_insert(connection: Connection, request: Request, found: Plan, body: Body) -> Done:
    """Run an INSERT that takes its rows from the body."""
    assert found.data_start is not None
    if found.reads_input:
        return _run_input(connection, request, found, body)
    check_single(connection, found.sql)
    connection.set({f"param_{name}": value for name, value in request.params.items()})
    return connection.insert(found.sql, found.format, body.pieces(found.data_start))


def _run_input(connection: Connection, request: Request, found: Plan, body: Body) -> Done:
    """``INSERT … SELECT … FROM input(…)``: the engine reads the body as a file.

    chDB cannot feed ``input()`` itself. Here it becomes ``file()`` over a descriptor of
    ours that holds the body; structure, format and everything else stay as written.
    """
    assert found.data_start is not None
    call = _input_call(found.sql)
    assert call is not None
    start, end, structure = call
    descriptor = os.memfd_create("insert", os.MFD_CLOEXEC)
    try:
        for piece in body.pieces(found.data_start):
            view = memoryview(piece)
            while view:
                view = view[os.write(descriptor, view) :]
        arguments = f"{quote(f'/proc/self/fd/{descriptor}')}, {quote(found.format)}"
        if structure:
            arguments += f", {structure}"
        sql = found.sql[:start] + f"file({arguments})".encode() + found.sql[end:]
        check_single(connection, sql)
        return connection.run(sql, "Null", request.params)
    finally:
        os.close(descriptor)


def run_answer(
    connection: Connection, request: Request, found: Plan, descriptor: int
) -> Callable[[], Done]:
    """Check a statement with an answer; what is returned runs it, writing to a pipe."""
    check_single(connection, found.sql)
    return lambda: connection.run_into(found.sql, found.format, descriptor, request.params)


def run_other(connection: Connection, request: Request, found: Plan) -> Done:
    """Run a statement without a long answer."""
    check_single(connection, found.sql)
    return connection.run(found.sql, found.format, request.params)
