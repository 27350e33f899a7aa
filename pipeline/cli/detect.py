"""``rackpulse detect`` and ``rackpulse evaluate``."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from pipeline.clock import SystemClock
from pipeline.errors import RackpulseError
from pipeline.settings import load_settings


class _Moment(click.ParamType[datetime]):
    """A whole minute, ISO 8601; without a zone it is UTC."""

    name = "time"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value} is no time: write 2026-03-02T08:15:00", param, ctx)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


MOMENT = _Moment()


def last_minute() -> datetime:
    """End of the newest whole minute of which half a minute's late rows have come in."""
    now = SystemClock().now() - timedelta(seconds=30)
    return now.replace(second=0, microsecond=0)


@click.group()
def detect() -> None:
    """Train, score, promote and roll back detectors."""


@detect.command()
@click.argument("detector", nargs=-1)
@click.option("--until", type=MOMENT, help="End of the training window; by default now.")
def train(detector: tuple[str, ...], until: datetime | None) -> None:
    """Train DETECTOR (all by default) on what is stored, and promote it if its gates let it."""
    from pipeline import detection
    from pipeline.store.client import connect

    settings = load_settings()
    client = connect(settings)
    failed = []
    for name in detector or tuple(detection.load_specs()):
        try:
            report = detection.train(client, settings, name, until or last_minute())
        except RackpulseError as exc:
            failed.append(f"{name}: {exc}")
            continue
        click.echo(
            f"{name} {report.version}: {report.state}; {report.entities:,} entities,"
            f" {report.rows:,} entity-minutes from {report.trained_from:%Y-%m-%d %H:%M} to"
            f" {report.trained_until:%Y-%m-%d %H:%M} UTC"
        )
        for reason in report.gates:
            click.echo(f"  held back: {reason}")
    if failed:
        raise RackpulseError("\n".join(failed))


@detect.command()
@click.option("--window-end", type=MOMENT, help="End of the minute to score; by default the last.")
@click.option("--detector", "-d", multiple=True, help="May be given more than once.")
@click.option("--incidents/--no-incidents", default=True, help="Open and resolve incidents too.")
def score(window_end: datetime | None, detector: tuple[str, ...], incidents: bool) -> None:
    """Score one minute with the live models."""
    from pipeline import detection
    from pipeline.incidents import step
    from pipeline.store.client import connect

    settings = load_settings()
    client = connect(settings)
    end = window_end or last_minute()
    report = detection.score(client, settings, end, detector or None)
    click.echo(f"window that ends at {end:%Y-%m-%d %H:%M} UTC")
    for item in report.detectors:
        if item.skipped:
            click.echo(f"  {item.detector}: {item.skipped}")
            continue
        click.echo(
            f"  {item.detector}: {item.verdicts:,} verdicts of {item.entities:,} entities,"
            f" {item.candidates} candidates, {item.findings} findings, {item.took_ms} ms"
        )
    if incidents:
        for change in step(client, settings, end):
            click.echo(f"  {change.transition} {change.incident_id}: {change.summary}")


@detect.command("list")
@click.argument("detector", required=False)
def list_models(detector: str | None) -> None:
    """List trained versions, newest first."""
    from pipeline.detection import registry
    from pipeline.store.client import connect

    rows = registry.registered(connect(load_settings()), detector)
    if not rows:
        click.echo("nothing is trained yet: run  rackpulse detect train")
    for row in rows:
        click.echo(
            f"{row.detector:16} {row.version:24} {row.state:9} since {row.since:%Y-%m-%d %H:%M}"
            f"  trained on {row.trained_from:%m-%d %H:%M} to {row.trained_until:%m-%d %H:%M}"
            f"  {row.reason}"
        )


@detect.command()
@click.argument("detector")
@click.argument("version")
@click.option("--reason", default="by hand", show_default=True)
def promote(detector: str, version: str, reason: str) -> None:
    """Make VERSION of DETECTOR live."""
    from pipeline.detection import registry
    from pipeline.store.client import connect

    registry.promote(connect(load_settings()), detector, version, by="operator", reason=reason)
    click.echo(f"{detector} {version} is live")


@detect.command()
@click.argument("detector")
def rollback(detector: str) -> None:
    """Go back to the version that was live before."""
    from pipeline.detection import registry
    from pipeline.store.client import connect

    version = registry.rollback(connect(load_settings()), detector)
    click.echo(f"{detector} {version} is live")


@click.command()
@click.argument("folder", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option(
    "--train", "train_on", multiple=True, type=click.Path(path_type=Path, exists=True),
    help="Labelled set of the same hall to train on; by default each set's own first part.",
)  # fmt: skip
@click.option("--detector", "-d", multiple=True, help="May be given more than once.")
@click.option("--baselines/--no-baselines", default=True, help="Judge the simple methods too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def evaluate(
    folder: tuple[Path, ...], train_on: tuple[Path, ...], detector: tuple[str, ...],
    baselines: bool, as_json: bool,
) -> None:  # fmt: skip
    """Judge detectors on labelled sets: FOLDER holds <stream>.parquet, topology.json and
    truth.jsonl.

    Splits are by time and nothing is point-adjusted: an event counts once, by its first page.
    """
    from pipeline.incidents.evaluation.report import as_text, evaluate_sets

    found = evaluate_sets(
        load_settings(), list(folder), train_on=list(train_on), detectors=list(detector),
        baselines=baselines, say=None if as_json else lambda text: click.echo(text, err=True),
    )  # fmt: skip
    click.echo(json.dumps(found, indent=1) if as_json else as_text(found))
