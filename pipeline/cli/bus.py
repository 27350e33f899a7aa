"""``rackpulse topics`` and ``rackpulse broker``."""

from __future__ import annotations

import click

from pipeline.service import setup_logging, stop_on_signals
from pipeline.settings import load_settings


@click.group()
def topics() -> None:
    """Kafka topics, declared in schemas/topics.toml."""


@topics.command("create")
def topics_create() -> None:
    """Create missing topics and bring the others up to date."""
    from pipeline.bus.topics import create_topics

    changes = create_topics(load_settings())
    for line in changes or ["every topic is as declared"]:
        click.echo(line)


@topics.command("list")
def topics_list() -> None:
    """Show the declared topics beside what the broker has."""
    from rich.console import Console
    from rich.table import Table

    from pipeline.bus.topics import topic_states

    table = Table("topic", "partitions", "copies", "retention", "topic id", "note")
    for state in topic_states(load_settings()):
        retention = f"{state.topic.retention_hours:g} h"
        table.add_row(
            state.topic.name, str(state.partitions), str(state.copies), retention,
            state.topic_id or "", state.note,
        )  # fmt: skip
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    console.print(table)


@click.group()
def broker() -> None:
    """A Kafka broker for one machine."""


@broker.command("serve")
@click.option("--port", type=click.IntRange(0, 65535), default=19092, show_default=True,
              help="On 127.0.0.1; 0 takes a free one.")  # fmt: skip
def broker_serve(port: int) -> None:
    """Run a broker until SIGTERM or Ctrl-C."""
    from pipeline.bus.broker import serve

    settings = load_settings()
    setup_logging(settings.log_format)
    stop = stop_on_signals()
    serve(settings, port, stop=stop, say=lambda line: click.echo(line, err=True))
