"""``rackpulse store`` and ``rackpulse migrate``."""

from __future__ import annotations

from datetime import timedelta

import click

from pipeline.clock import SystemClock
from pipeline.service import setup_logging
from pipeline.settings import load_settings
from pipeline.streams import load_contracts


@click.group()
def store() -> None:
    """The embedded store: ClickHouse's engine for one machine."""


@store.command()
@click.option("--port", type=click.IntRange(0, 65535), default=18123, show_default=True,
              help="0 takes a free one.")  # fmt: skip
def serve(port: int) -> None:
    """Serve ClickHouse's HTTP interface on 127.0.0.1 until stopped."""
    from pipeline.store.server.serve import serve as run

    settings = load_settings()
    setup_logging(settings.log_format)
    run(settings, port)


@store.command()
@click.option("--hours", default=3.0, show_default=True, help="How far back to look.")
@click.option("--lag", default=60.0, show_default=True, help="Seconds that rows have to come in.")
def minutes(hours: float, lag: float) -> None:
    """Compute the minutes that are missing or out of date, from the stored rows."""
    from pipeline.store import connect, rollups

    settings = load_settings()
    contracts = load_contracts()
    now = SystemClock().now()
    with connect(settings) as client:
        for name in rollups.ROLLED_UP:
            done = rollups.refresh(
                client,
                contracts[name],
                now - timedelta(hours=hours),
                now - timedelta(seconds=lag),
                version=now,
            )
            click.echo(f"{name}: {len(done)} minutes computed")


@click.command()
def migrate() -> None:
    """Bring the database to this version: tables of the contracts, then numbered SQL."""
    from pipeline.store import connect
    from pipeline.store import migrate as run

    settings = load_settings()
    done = run(connect(settings), settings, load_contracts())
    for line in done:
        click.echo(line)
    click.echo("the database is up to date" if not done else f"{len(done)} changes made")
