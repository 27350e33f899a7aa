"""``rackpulse docs``: pages that are made from the code."""

from __future__ import annotations

import click

from pipeline.streams import load_contracts
from pipeline.streams.dictionary import render


@click.group()
def docs() -> None:
    """Generated pages of the documentation."""


@docs.command("data-dictionary")
def data_dictionary() -> None:
    """Print docs/data-dictionary.md."""
    click.echo(render(load_contracts()), nl=False)


@docs.command("metrics")
def metrics() -> None:
    """Print docs/metrics.md."""
    from pipeline.metrics import render as render_metrics

    click.echo(render_metrics(), nl=False)


@docs.command("sources")
def sources() -> None:
    """Print the generated part of docs/collectors.md."""
    from pipeline.collectors.reference import render as render_sources

    click.echo(render_sources(load_contracts()), nl=False)
