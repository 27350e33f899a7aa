"""``rackpulse sql``: one statement of an analyst, and its answer."""

from __future__ import annotations

import sys

import click
from clickhouse_connect.driver.exceptions import ClickHouseError
from rich.console import Console
from rich.table import Table

from pipeline.errors import RackpulseError
from pipeline.settings import load_settings
from pipeline.store import connect

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
    client = connect(load_settings(), role="analyst")
    try:
        if shape == "table":
            _print_table(client.query(statement))
        else:
            with client.raw_stream(statement, fmt=_WIRE[shape]) as stream:
                while piece := stream.read(1 << 16):
                    sys.stdout.buffer.write(piece)
    except ClickHouseError as exc:
        raise RackpulseError(str(exc)) from exc


def _print_table(result: object) -> None:
    from clickhouse_connect.driver.query import QueryResult

    assert isinstance(result, QueryResult)
    table = Table()
    for name in result.column_names:
        table.add_column(name, overflow="fold")
    rows = result.result_rows
    for row in rows[:_MAX_TABLE_ROWS]:
        table.add_row(*("NULL" if value is None else str(value) for value in row))
    console = Console()
    if not console.is_terminal:
        # In a file or a pipe nothing is folded: a cell stays on one line.
        console = Console(
            width=max(
                80,
                console.measure(table, options=console.options.update(max_width=100_000)).maximum,
            )
        )
    console.print(table)
    if len(rows) > _MAX_TABLE_ROWS:
        click.echo(f"… and {len(rows) - _MAX_TABLE_ROWS} more rows: use --format csv", err=True)
