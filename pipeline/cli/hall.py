"""``rackpulse hall`` and ``rackpulse drill``."""

from __future__ import annotations

import time
from pathlib import Path

import click

from pipeline.streams import load_contracts


@click.group()
def hall() -> None:
    """The virtual GPU hall: serve it, or record labelled sets from it."""


@hall.command()
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write.")
def record(scenario: Path, out: Path) -> None:
    """Run SCENARIO (TOML) and write a labelled set: Parquet, topology, truth."""
    from pipeline.hall.record import record as run
    from pipeline.hall.scenario import load_scenario

    loaded = load_scenario(scenario)
    begun = time.perf_counter()
    rows = run(loaded, out, load_contracts(), progress=_progress)
    took = time.perf_counter() - begun
    size = sum(path.stat().st_size for path in out.iterdir())
    click.echo(
        f"{out}: {loaded.time.hours:g} h of {loaded.hall.racks} racks in {took:.1f} s "
        f"({loaded.time.hours * 3600 / took:,.0f} times real time), {size / 1e6:,.1f} MB; "
        + ", ".join(f"{name} {count:,}" for name, count in rows.items())
    )


def _progress(share: float) -> None:
    click.echo(f"\r{share:6.1%}", nl=False, err=True)
    if share >= 1.0:
        click.echo("", err=True)
