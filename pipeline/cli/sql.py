"""``rackpulse sql``: one statement of an analyst, and its answer."""

from __future__ import annotations

import re
import sys

import click
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError
from rich.console import Console
from rich.table import Table
from urllib3.exceptions import HTTPError

from pipeline.errors import RackpulseError
from pipeline.settings import load_settings
from pipeline.store import connect
from pipeline.store.sql_text import tokens

_WIRE = {"json": "JSONEachRow", "csv": "CSVWithNames"}
_MAX_TABLE_ROWS = 10_000


@click.command()
@click.argument("statement")
@click.option(
    "--format", "shape", type=click.Choice(["table", "json", "csv"]), default="table",
    show_default=True, help="json is one object per line.",
)  # fmt: skip
def sql(statement: str, shape: str) -> None:
    """Run STATEMENT as the analyst, who can read but not write, and print the answer."""
    _check(statement)
    client = connect(load_settings(), role="analyst")
    try:
        if shape == "table":
            _print_table(client.query(statement, settings=_no_more_than_shown(client)))
        else:
            with client.raw_stream(statement, fmt=_WIRE[shape]) as stream:
                while piece := stream.read(1 << 16):
                    sys.stdout.buffer.write(piece)
    except ClickHouseError as exc:
        raise RackpulseError(plain(str(exc))) from exc
    except HTTPError as exc:
        raise RackpulseError(
            "The answer broke off: what was printed is not all of it, and may end with the reason"
        ) from exc


def plain(text: str) -> str:
    """The part of a server's error that is about the statement: without the address, without
    the statement itself, and without the list of all words that could have come next."""
    body = text.split("DB::Exception: ", 1)[-1]
    body = re.sub(r"\s*\(for url [^)]*\)\s*$", "", body, flags=re.DOTALL)
    name = re.search(r"\s*\([A-Z][A-Z0-9_]+\)\s*$", body)
    hint = re.search(r"Maybe you meant: \[[^\]]*\]", body)
    said = re.split(r"\.? [Ii]n scope |\. Expected one of: ", body)[0]
    parts = [said[: name.start()] if name and said.endswith(name[0]) else said]
    parts += [hint[0]] if hint and hint[0] not in said else []
    return ". ".join(parts) + (f" {name[0].strip()}" if name else "")


def _check(statement: str) -> None:
    try:
        text = statement.encode()
    except UnicodeEncodeError as exc:
        raise RackpulseError("The statement is not UTF-8") from exc
    words = [token for token in tokens(text) if token.text != b";"]
    if not words:
        raise RackpulseError('Write a statement, such as  rackpulse sql "SHOW TABLES"')
    if len(words) > 1 and words[-2].says("FORMAT") and words[-1].kind == "word":
        raise RackpulseError("Leave FORMAT out: the option --format says how to print the answer")


def _no_more_than_shown(client: Client) -> dict[str, int]:
    """A limit for tables, whose rows are held in memory, where the server lets us set one."""
    known = client.server_settings.get("limit")
    return {"limit": _MAX_TABLE_ROWS + 1} if known and not known.readonly else {}


def _print_table(result: object) -> None:
    from clickhouse_connect.driver.query import QueryResult

    assert isinstance(result, QueryResult)
    table = Table()
    for name in result.column_names:
        table.add_column(name, overflow="fold")
    rows = result.result_rows
    for row in rows[:_MAX_TABLE_ROWS]:
        table.add_row(*("NULL" if value is None else str(value) for value in row))
    # What stands in a table is no markup.
    console = Console(markup=False, emoji=False)
    if not console.is_terminal:
        # In a file or a pipe nothing is folded: a cell stays on one line.
        console = Console(
            markup=False,
            emoji=False,
            width=max(
                80,
                console.measure(table, options=console.options.update(max_width=100_000)).maximum,
            ),
        )
    console.print(table)
    if len(rows) > _MAX_TABLE_ROWS:
        click.echo("… there are more rows: use --format csv", err=True)
