"""``rackpulse alerts``: deliver, receive, list, retry and test webhooks."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import click
from prometheus_client import CollectorRegistry
from pydantic import SecretStr, ValidationError
from rich.table import Table

from pipeline.alerts import signing
from pipeline.alerts.destinations import Destination, load_destinations, signing_keys
from pipeline.alerts.outbox import Attempt, Outbox
from pipeline.alerts.receiver import Received, receiving
from pipeline.alerts.sender import Sender
from pipeline.alerts.service import Deliveries
from pipeline.alerts.terminal import alert_of, make_console, render_alert
from pipeline.clock import SystemClock
from pipeline.errors import ConfigError, RackpulseError
from pipeline.service import Health, health_page, setup_logging, stop_on_signals
from pipeline.settings import Settings, load_settings
from pipeline.store import connect

_DEFAULT_NAME = "webhook"
_destinations_option = click.option(
    "--destinations",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML file with [[destination]] tables.",
)
_url_option = click.option("--url", help="One webhook; by default RACKPULSE_WEBHOOK_URL.")


@click.group()
def alerts() -> None:
    """Deliver and receive webhooks."""


def _destinations(settings: Settings, url: str | None, file: Path | None) -> list[Destination]:
    if file is not None:
        if url is not None:
            raise ConfigError("Give --url or --destinations, not both")
        return load_destinations(file)
    url = url or settings.webhook_url
    if not url:
        raise ConfigError(
            "Where to? Give --url, set RACKPULSE_WEBHOOK_URL, or name a file with --destinations"
        )
    try:
        return [Destination(name=_DEFAULT_NAME, url=SecretStr(url))]
    except ValidationError as exc:
        first = exc.errors(include_input=False)[0]
        raise ConfigError(f"The webhook's address: {first['msg']}") from exc


def _airflow_url(settings: Settings) -> str | None:
    """Address of the Airflow UI of this state folder, for links."""
    try:
        found = json.loads((settings.state_dir / "airflow" / "login.json").read_text("utf-8"))
        return str(found["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


@alerts.command()
@_url_option
@_destinations_option
@click.option("--airflow-url", help="Address of the Airflow UI, for links.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), default=0,
              help="Port of /livez, /readyz and /metrics; 0 takes a free one.")  # fmt: skip
def deliver(url: str | None, file: Path | None, airflow_url: str | None, metrics_port: int) -> None:
    """Send what the outbox holds, until Ctrl-C."""
    settings = load_settings()
    setup_logging(settings.log_format)
    destinations = _destinations(settings, url, file)
    secrets_file = signing.secret_file(settings)
    for destination in destinations:
        signing_keys(destination, secrets_file)
        destination.address()
    stop = stop_on_signals()
    clock = SystemClock()
    registry = CollectorRegistry()
    health = Health(clock, stuck_after_s=90.0)
    service = Deliveries(
        lambda: connect(settings),
        destinations,
        secrets_file,
        lambda: airflow_url or _airflow_url(settings),
        clock,
        registry,
    )
    with health_page(health, registry, metrics_port, settings.metrics_host) as port:
        for destination in destinations:
            click.echo(f"alerts go to {destination.name} ({destination.shown()})")
        click.echo(f"health: http://{settings.metrics_host}:{port}/readyz")
        service.run(stop, health)


@alerts.command()
@click.option("--port", type=click.IntRange(0, 65535), default=18082, show_default=True)
@click.option("--format", "form", type=click.Choice(["pretty", "jsonl"]), default="pretty",
              show_default=True, help="How alerts are printed.")  # fmt: skip
def receive(port: int, form: str) -> None:
    """Receive webhooks, check their signatures and print them, until Ctrl-C."""
    settings = load_settings()
    setup_logging(settings.log_format)
    secrets_file = signing.secret_file(settings)
    signing.load_secrets(secrets_file, create=True)
    stop = stop_on_signals()
    console = make_console()

    def take(received: Received) -> None:
        if received.repeat:
            return
        if form == "jsonl":
            click.echo(json.dumps({"webhook_id": received.message_id, **received.body}))
            return
        try:
            console.print(render_alert(alert_of(received.body)))
        except ValueError:
            text = received.body.get("data", {})
            console.print(f"{received.body.get('type', '?')}: {text}")

    with receiving(port, lambda: signing.load_secrets(secrets_file), take) as used:
        if form == "pretty":
            click.echo(f"waiting for alerts on http://127.0.0.1:{used}")
        stop.wait()


@alerts.command("list")
@click.option("--state", type=click.Choice(["all", "delivered", "failed", "gave_up"]),
              default="all", show_default=True)  # fmt: skip
@click.option("--limit", type=click.IntRange(1, 10_000), default=30, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_(state: str, limit: int, as_json: bool) -> None:
    """Show what was sent, newest first."""
    with closing(connect(load_settings())) as client:
        rows = list(
            client.query(
                """
                SELECT a.last_at AS at, a.destination AS destination, a.outcome AS outcome,
                    a.attempts AS attempts, t.transition AS transition,
                    t.entity_name AS entity, t.severity AS severity, t.cause AS cause,
                    a.error AS error, a.next_at AS next_at, a.transition_id AS transition_id
                FROM telemetry.alert AS a
                LEFT JOIN
                (
                    SELECT DISTINCT transition_id, transition, entity_name, severity, cause
                    FROM telemetry.incident_transition
                ) AS t ON a.transition_id = t.transition_id
                WHERE {state:String} = 'all' OR a.outcome = {state:String}
                ORDER BY at DESC LIMIT {limit:UInt32}
                """,
                parameters={"state": state, "limit": limit},
            ).named_results()
        )
    if as_json:
        for row in rows:
            click.echo(json.dumps(row, default=lambda value: value.isoformat()))
        return
    if not rows:
        click.echo("nothing was sent yet")
        return
    table = Table(box=None, header_style="dim")
    for name in ("at (UTC)", "to", "outcome", "tries", "alert", "transition id"):
        table.add_column(name)
    for row in rows:
        what = f"{row['severity']} {row['transition']} {row['entity']}: {row['cause']}"
        outcome = f"{row['outcome']} ({row['error']})" if row["error"] else str(row["outcome"])
        table.add_row(f"{row['at']:%m-%d %H:%M:%S}", row["destination"], outcome,
                      str(row["attempts"]), what, row["transition_id"])  # fmt: skip
    # A pipe has no width; lines for grep should not be broken.
    make_console(None if sys.stdout.isatty() else 250).print(table)


@alerts.command()
@click.argument("transition_ids", nargs=-1)
@click.option("--failed", is_flag=True, help="All that were given up or wait for a retry.")
def retry(transition_ids: Sequence[str], failed: bool) -> None:
    """Send alerts again at once; receivers know a repeat by its webhook-id."""
    if failed == bool(transition_ids):
        raise ConfigError("Give transition ids (see  rackpulse alerts list) or --failed")
    now = datetime.now(UTC)
    with closing(connect(load_settings())) as client:
        rows = client.query(
            """
            SELECT transition_id, incident_id, destination, attempts FROM telemetry.alert
            WHERE if({failed:Bool}, outcome IN ('failed', 'gave_up'),
                has({ids:Array(String)}, transition_id))
            """,
            parameters={"failed": failed, "ids": list(transition_ids)},
        ).result_rows
        missing = set(transition_ids) - {str(row[0]) for row in rows}
        if missing:
            raise RackpulseError(f"Nothing was sent under {', '.join(sorted(missing))}")
        for transition_id, incident_id, destination, _ in rows:
            # Attempts count from 1 again: the schedule starts anew.
            again = Attempt(transition_id, incident_id, destination, 0, now, "requeued")
            Outbox(client, destination).record([again])
    click.echo(f"{len(rows)} will be sent again")


@alerts.command()
@click.argument("name", default=_DEFAULT_NAME)
def enable(name: str) -> None:
    """Serve a destination again that was switched off."""
    with closing(connect(load_settings())) as client:
        outbox = Outbox(client, name)
        if outbox.disabled_because() is None:
            click.echo(f"{name} is not switched off")
            return
        outbox.switch("enabled", "by hand", datetime.now(UTC))
    click.echo(f"{name} is served again")


@alerts.command("test")
@_url_option
@_destinations_option
def test_(url: str | None, file: Path | None) -> None:
    """Send a signed test message and say what came back."""
    settings = load_settings()
    bad = []
    for destination in _destinations(settings, url, file):
        sender = Sender(destination, signing.secret_file(settings), SystemClock())
        answer = sender.test(f"test_{uuid.uuid4().hex}")
        said = f"HTTP {answer.status}" if answer.delivered else answer.error
        click.echo(f"{destination.name} ({destination.shown()}): {said}, {answer.took_ms} ms")
        if not answer.delivered:
            bad.append(destination.name)
    if bad:
        raise RackpulseError(f"not taken by {', '.join(bad)}")


@alerts.command("rotate-secret")
@click.option("--drop-old", is_flag=True, help="Keep the newest secret only.")
def rotate_secret(drop_old: bool) -> None:
    """Add a fresh signing secret; messages carry signatures of all until --drop-old."""
    path = signing.secret_file(load_settings())
    count = signing.rotate(path, drop_old=drop_old)
    click.echo(f"{path} holds {count} secret{'s' if count > 1 else ''}, the newest first")
