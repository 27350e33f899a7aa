"""``rackpulse up`` and ``rackpulse status``."""

from __future__ import annotations

import json
import logging
import secrets
from typing import Any

import click
from rich.table import Table

from pipeline.clock import SystemClock
from pipeline.settings import load_settings
from pipeline.streams import load_contracts
from pipeline.up.live import make_console
from pipeline.up.ports import DEFAULT_PORTS
from pipeline.up.run import Run
from pipeline.up.services import Plan
from pipeline.up.status import read_status


def _ports(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    found = {}
    for value in values:
        name, _, number = value.partition("=")
        if name not in DEFAULT_PORTS or not number.isdigit() or not 0 < int(number) < 65536:
            raise click.BadParameter(
                f"{value}: write NAME=PORT with NAME one of {', '.join(DEFAULT_PORTS)}"
            )
        found[name] = int(number)
    return found


@click.command()
@click.option(
    "--racks",
    type=click.IntRange(2, 64),
    help="Of the virtual hall: those of an earlier start, else 8.",
)
@click.option("--seed", type=int, help="Of the virtual hall: that of an earlier start, else 1.")
@click.option(
    "--faults-seed",
    type=int,
    help="Seed that the three faults are drawn from. When not given it is drawn itself, and"
    " faults of an earlier start that still go on stay the only ones.",
)
@click.option("--no-faults", is_flag=True, help="Start no fault.")
@click.option(
    "--history-hours",
    default=3.0,
    show_default=True,
    type=click.FloatRange(1.0, 48.0),
    help="Hours of history that a first start writes, to learn from.",
)
@click.option(
    "--port",
    "ports",
    multiple=True,
    callback=_ports,
    metavar="NAME=PORT",
    help="Port of a service; without it a taken port moves to a free one.",
)
def up(
    racks: int | None,
    seed: int | None,
    faults_seed: int | None,
    no_faults: bool,
    history_hours: float,
    ports: dict[str, int],
) -> None:
    """Start everything on this machine and show it finding three faults."""
    if no_faults and faults_seed is not None:
        raise click.UsageError("give --faults-seed or --no-faults, not both")
    # What the client logs of a store that restarts, the live view says in its own words.
    logging.getLogger("clickhouse_connect").setLevel(logging.CRITICAL)
    drawn = secrets.randbelow(100_000) if faults_seed is None else faults_seed
    Run(
        load_settings(),
        load_contracts(),
        Plan(racks, seed, history_hours),
        None if no_faults else drawn,
        ports,
        make_console(),
        SystemClock(),
        faults_beside_others=faults_seed is not None,
    ).run()


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def status(as_json: bool) -> None:
    """Show services, streams and open incidents."""
    found = read_status(load_settings(), load_contracts(), SystemClock())
    if as_json:
        click.echo(json.dumps(found, indent=2, default=str))
        return
    console = make_console()
    for title, key, columns in (
        ("services", "services", ("name", "state")),
        ("streams", "streams", ("name", "rows", "rows_per_second", "lag")),
        ("open incidents", "incidents",
         ("opened_at", "severity", "detector", "entity_name", "cause", "summary")),
        ("scoring", "scoring", ("detector", "window_end")),
    ):  # fmt: skip
        console.print(_table(title, found[key], columns))
    for name, address in found["urls"].items():
        console.print(f"{name:16} {address}", markup=False)


def _table(title: str, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=None, header_style="dim", pad_edge=False)
    for column in columns:
        numeric = column in ("rows", "rows_per_second", "lag")
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*("" if row.get(column) is None else f"{row[column]}" for column in columns))
    return table
