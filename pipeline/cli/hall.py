"""``rackpulse hall`` and ``rackpulse drill``."""

from __future__ import annotations

import time
from pathlib import Path

import click

from pipeline.cli.amounts import Amount
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


@hall.command()
@click.option("--racks", type=click.IntRange(1, 144),
              help="Those of the hall in the state folder, else 8.")  # fmt: skip
@click.option("--seed", type=int,
              help="Of identities, jobs and noise; that of the hall there, else 1.")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65535), default=18080, show_default=True,
              help="0 takes a free one.")  # fmt: skip
@click.option(
    "--history-hours",
    type=Amount(0, 168),
    default=0.0,
    show_default=True,
    help="Hours of history that a first start writes straight to Kafka.",
)
@click.option(
    "--fabric",
    default="ib_exporter",
    show_default=True,
    help="Who reads the fabric.",
    type=click.Choice(["ib_exporter", "ufm"]),
)
@click.option("--faults", "faults_seed", type=int, help="Draw three faults from this seed.")
@click.option("--no-faults", is_flag=True, help="Draw none (the default).")
def serve(
    racks: int | None, seed: int | None, port: int, history_hours: float, fabric: str,
    faults_seed: int | None, no_faults: bool,
) -> None:  # fmt: skip
    """Serve the hall in the wire formats of real exporters."""
    from pipeline.hall import serve as serving
    from pipeline.hall.fleet import build_fleet
    from pipeline.hall.snapshot import hall_to_serve
    from pipeline.service import setup_logging
    from pipeline.settings import load_settings

    settings = load_settings()
    setup_logging(settings.log_format)
    racks, seed = hall_to_serve(serving.state_file(settings), racks, seed)
    fleet = build_fleet(racks, seed, cluster=settings.cluster)
    serving.serve(
        settings, load_contracts(), fleet, port=port, history_hours=history_hours,
        faults_seed=None if no_faults else faults_seed, fabric=fabric, say=click.echo,
    )  # fmt: skip


def _progress(share: float) -> None:
    click.echo(f"\r{share:6.1%}", nl=False, err=True)
    if share >= 1.0:
        click.echo("", err=True)


@hall.command()
@click.option("--racks", default=64, show_default=True, type=click.IntRange(1, 144))
@click.option("--seed", default=1, show_default=True)
@click.option("--seconds", default=60.0, show_default=True, help="Time in the hall.")
@click.option("--hz", default=1.0, show_default=True, help="Samples per second.")
@click.option("--paced", is_flag=True, help="No faster than time passes.")
def load(racks: int, seed: int, seconds: float, hz: float, paced: bool) -> None:
    """Send a fleet's samples straight to Kafka, for load."""
    from pipeline.clock import SystemClock
    from pipeline.hall.fleet import build_fleet
    from pipeline.hall.history import kafka_outlet_maker
    from pipeline.hall.load import generate
    from pipeline.settings import load_settings

    settings, contracts, clock = load_settings(), load_contracts(), SystemClock()
    report = generate(
        build_fleet(racks, seed, cluster=f"load-{seed}"), contracts, clock,
        kafka_outlet_maker(settings, contracts, clock),
        seconds=seconds, hz=hz, paced=paced, progress=_progress,
    )  # fmt: skip
    click.echo(
        f"{report.rows:,} rows of {report.simulated_s:g} s in {report.wall_s:.1f} s "
        f"({report.acknowledged_s:.1f} s until acknowledged); {report.cpu_s:.1f} s of one core: "
        f"{report.times_real_time:.1f} times real time"
    )


@hall.command()
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write.")
def plots(out: Path) -> None:
    """Draw what each fault looks like beside its peers (SVG)."""
    from pipeline.hall.plots import write_plots

    for path in write_plots(out):
        click.echo(path)


@click.group()
def drill() -> None:
    """Fire drills: prove that the pipeline sees a fault and says so."""


@drill.command()
@click.option("--fault", "cause", default="capped_clocks", show_default=True, help="Its cause.")
@click.option("--entity", help="In the shadow hall, such as rack-02/tray-05/slot-1; else drawn.")
@click.option("--severity", type=float)
@click.option("--timeout", "timeout_s", default=300.0, show_default=True, help="Of each stage.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def start(
    cause: str, entity: str | None, severity: float | None, timeout_s: float, as_json: bool
) -> None:
    """Inject a labelled fault into a shadow hall and follow it through to the webhook."""
    import json

    from pipeline.errors import RackpulseError
    from pipeline.hall.drill_store import run_drill
    from pipeline.settings import load_settings

    report = run_drill(
        load_settings(), load_contracts(), cause, entity, severity=severity, timeout_s=timeout_s,
        say=lambda text: click.echo(text, err=as_json),
    )  # fmt: skip
    if as_json:
        click.echo(json.dumps(report.as_json()))
    else:
        click.echo(
            f"drill in cluster {report.cluster}: {report.cause} on {report.entity} "
            f"({'passed' if report.passed else 'FAILED'})"
        )
        if report.minutes_to_detect is not None:
            click.echo(f"detected {report.minutes_to_detect:g} min after it could be seen")
    if not report.passed:
        pages = f"; false pages: {report.false_pages}" if report.false_pages else ""
        cause_text = "" if report.cause_right or not report.found else "; its cause was wrong"
        raise RackpulseError(
            f"The drill failed: {report.failure or 'see above'}{cause_text}{pages}"
        )
