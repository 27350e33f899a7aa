"""ClickHouse SQL as text: tokens, statements, and where an INSERT's data begins.

This finds its way around a statement; it does not judge it. What an analyst may run is
decided by the engine's own parser (:mod:`pipeline.store.server.policy`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

# Alternatives in the order of ClickHouse's lexer. Possessive: no text makes them slow.
_TOKEN = re.compile(
    rb"""
    (?P<space>(?:[\s\x00]|\xc2\xa0|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80
        |\xef\xbb\xbf|--[^\n]*+|\#[\x20!][^\n]*+|/\*.*?\*/)++)
    |(?P<string>'(?:[^'\\]++|\\.|'')*+'|\xe2\x80\x98.*?\xe2\x80\x99)
    |(?P<heredoc>\$(?P<tag>\w*+)\$.*?\$(?P=tag)\$)
    |(?P<quoted>`(?:[^`\\]++|\\.|``)*+`|"(?:[^"\\]++|\\.|"")*+"|\xe2\x80\x9c.*?\xe2\x80\x9d)
    |(?P<word>[A-Za-z_][A-Za-z0-9_$]*+)
    |(?P<number>[0-9][A-Za-z0-9_.]*+)
    |(?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """A token and where it stands.

    Attributes:
        kind: ``word``, ``string``, ``heredoc``, ``quoted``, ``number`` or ``other``.
        depth: how many brackets are open around it.
    """

    kind: str
    text: bytes
    start: int
    end: int
    depth: int

    def says(self, *words: str) -> bool:
        """Whether it is one of these bare words, in any case."""
        return self.kind == "word" and self.text.upper().decode("ascii", "replace") in words


def tokens(sql: bytes, start: int = 0) -> Iterator[Token]:
    """Tokens of a text without blanks and comments."""
    depth = 0
    position = start
    while (found := _TOKEN.match(sql, position)) is not None:
        position = found.end()
        kind = found.lastgroup or "other"
        if kind == "tag":
            kind = "heredoc"
        if kind == "space":
            continue
        text = found.group()
        if text in (b")", b"]", b"}"):
            depth = max(0, depth - 1)
        yield Token(kind, text, found.start(), found.end(), depth)
        if text in (b"(", b"[", b"{"):
            depth += 1


def statements(sql: str) -> list[str]:
    """The statements of a file, split at ``;`` and without it; empty ones are left out."""
    raw = sql.encode()
    found = []
    start = 0
    last_end: int | None = None
    for token in tokens(raw):
        if token.text == b";" and token.depth == 0:
            if last_end is not None:
                found.append(raw[start:last_end].decode().strip())
            start, last_end = token.end, None
        else:
            last_end = token.end
    if last_end is not None:
        found.append(raw[start:last_end].decode().strip())
    return found


def first_word(sql: bytes) -> str:
    """The first bare word in upper case, behind comments and opening brackets."""
    for token in tokens(sql):
        if token.text == b"(":
            continue
        return token.text.upper().decode("ascii", "replace") if token.kind == "word" else ""
    return ""


class Insert(NamedTuple):
    """An INSERT that takes its rows from the request.

    Attributes:
        head: the statement up to the format clause.
        format: the input format.
        data_start: where the data begins in the text that was looked at.
    """

    head: bytes
    format: str
    data_start: int


def find_insert(sql: bytes, formats: frozenset[str]) -> Insert | None:
    """Split an INSERT from its data; None where it brings no data.

    Args:
        sql: the beginning of the statement; may go on with binary data.
        formats: names of input formats, which tell the clause from a column called format.
    """
    previous: Token | None = None
    inserts = False
    selects = False
    for token in tokens(sql):
        if token.depth == 0:
            inserts = inserts or token.says("INSERT")
            if token.text == b";":
                return None
            if inserts and previous is not None:
                if token.says("INFILE") and previous.says("FROM"):
                    return None
                if token.says("VALUES") and not selects:
                    return Insert(sql[: token.start], "Values", token.end)
                name = token.text.decode("ascii", "replace")
                if previous.depth == 0 and previous.says("FORMAT") and name in formats:
                    head = sql[: previous.start]
                    if selects and reads_input(head) is None:
                        return None
                    return Insert(head, name, skip_newline(sql, token.end))
            selects = selects or token.says("SELECT")
        previous = token
    return None


class InputCall(NamedTuple):
    """Where ``input(…)`` stands in a statement, and the text between its brackets."""

    start: int
    end: int
    arguments: str


def reads_input(sql: bytes) -> InputCall | None:
    """The call of the table function ``input`` of an INSERT … SELECT."""
    found = list(tokens(sql))
    for index, token in enumerate(found[:-1]):
        if not token.says("INPUT") or found[index + 1].text != b"(" or index == 0:
            continue
        if not (found[index - 1].says("FROM", "JOIN") or found[index - 1].text == b","):
            continue
        for close in found[index + 2 :]:
            if close.text == b")" and close.depth == token.depth:
                inner = sql[found[index + 1].end : close.start].decode("utf-8", "replace")
                return InputCall(token.start, close.end, inner.strip())
    return None


def names_file(sql: bytes) -> bool:
    """Whether a statement has INTO OUTFILE or FROM INFILE, which belong to a client."""
    previous: Token | None = None
    for token in tokens(sql):
        if previous is not None and (
            (previous.says("INTO") and token.says("OUTFILE"))
            or (previous.says("FROM") and token.says("INFILE"))
        ):
            return True
        previous = token
    return False


def skip_newline(sql: bytes, position: int) -> int:
    """Skip blanks and exactly one newline: the first byte of binary data may look like one."""
    while position < len(sql) and sql[position : position + 1] in (b" ", b"\t", b"\r"):
        position += 1
    if sql[position : position + 1] == b";":
        position += 1
    if sql[position : position + 1] == b"\n":
        position += 1
    return position


def take_format(sql: bytes) -> tuple[bytes, str | None]:
    """Cut the FORMAT clause and a closing ``;`` off a statement that gives an answer."""
    all_tokens = list(tokens(sql))
    while all_tokens and all_tokens[-1].text == b";":
        sql = sql[: all_tokens[-1].start]
        all_tokens.pop()
    for index in range(len(all_tokens) - 2, 0, -1):
        token, name = all_tokens[index], all_tokens[index + 1]
        if not (token.depth == 0 and token.says("FORMAT") and name.kind == "word"):
            continue
        rest = all_tokens[index + 2 :]
        if rest and not rest[0].says("SETTINGS"):
            continue
        return sql[: token.start] + b" " + sql[name.end :], name.text.decode("ascii", "replace")
    return sql, None


def quote(text: str) -> str:
    """A string literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def quote_name(name: str) -> str:
    """A quoted identifier."""
    escaped = name.replace("\\", "\\\\").replace("`", "\\`")
    return f"`{escaped}`"
