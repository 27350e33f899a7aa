"""``rackpulse incidents``: list and show incidents, silence and unsilence."""

from __future__ import annotations

import getpass
import json
import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click

from pipeline.clock import SystemClock
from pipeline.errors import RackpulseError
from pipeline.settings import load_settings

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def duration(text: str) -> timedelta:
    """Read ``90m``, ``2h`` or ``1d``.

    Raises:
        RackpulseError: it is not of that form.
    """
    found = re.fullmatch(r"(\d+)([mhd])", text)
    if not found or int(found[1]) == 0:
        raise RackpulseError(f'"{text}" is no duration: write 90m, 2h or 1d')
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


@click.group()
def incidents() -> None:
    """Incidents and silences."""


@incidents.command("list")
@click.option("--all", "everything", is_flag=True, help="Resolved ones too, newest 100.")
@click.option("--silences", "quiet", is_flag=True, help="Silences in place of incidents.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array on stdout.")
def list_incidents(everything: bool, quiet: bool, as_json: bool) -> None:
    """List open incidents."""
    from pipeline.incidents.views import incident_rows
    from pipeline.store.client import connect

    settings = load_settings()
    client = connect(settings)
    if quiet:
        _list_silences(as_json)
        return
    rows = incident_rows(client, settings.cluster, resolved=everything)
    if as_json:
        click.echo(json.dumps(rows, default=_text, indent=1))
        return
    if not rows:
        click.echo("no incident" if everything else "no open incident")
    for row in rows:
        until = f" to {row['resolved_at']:%H:%M}" if row["resolved_at"] else ""
        click.echo(
            f"{row['id']}  {row['state']:8} {row['severity']:8} {row['opened_at']:%Y-%m-%d %H:%M}"
            f"{until}  {row['cause']}  {row['summary']}"
        )


@incidents.command()
@click.argument("incident_id")
@click.option("--json", "as_json", is_flag=True, help="All that is stored, as one JSON object.")
def show(incident_id: str, as_json: bool) -> None:
    """Show one incident with its history; the first characters of its id are enough."""
    from pipeline.alerts.model import from_row
    from pipeline.alerts.terminal import make_console, render_alert
    from pipeline.incidents.views import incident_history, whole_id
    from pipeline.store.client import connect

    client = connect(load_settings())
    rows = incident_history(client, whole_id(client, incident_id))
    if as_json:
        newest = dict(rows[-1])
        newest["history"] = [
            {key: row[key] for key in ("transition", "window_end", "at", "cause", "severity")}
            for row in rows
        ]
        click.echo(json.dumps(newest, default=_text, indent=1))
        return
    console = make_console()
    alerts = [from_row(row) for row in rows]
    # Who opens it reads what it was about; that it is over stands in the history.
    told = [alert for alert in alerts if alert.transition != "resolved"] or alerts
    console.print(render_alert(told[-1]))
    for alert in alerts:
        console.print(
            f"{alert.at:%Y-%m-%d %H:%M:%S} UTC  {alert.transition:8}  {alert.severity:8}"
            f"  {alert.cause_words}"
        )
    console.print(f"id {alerts[-1].incident_id}")


@incidents.command()
@click.argument("scope")
@click.argument("entity", required=False, default="")
@click.option("--for", "length", default="2h", show_default=True, help="Such as 90m, 2h, 1d.")
@click.option("--detector", "-d", default="", help="Only this detector.")
@click.option("--reason", required=True)
def silence(scope: str, entity: str, length: str, detector: str, reason: str) -> None:
    """Let nothing open for SCOPE ENTITY: gpu, rack, ib_port, cdu, ib_switch, host, job; or all.

    Example: rackpulse incidents silence rack rack-03 --for 2h --reason "pump swap"
    """
    from pipeline.incidents import silence as put
    from pipeline.store.client import connect

    if scope != "all" and not entity:
        raise RackpulseError(f"Name the {scope} to silence")
    settings = load_settings()
    now = SystemClock().now()
    client = connect(settings)
    if scope in _COLUMN_OF and not _reports(client, settings.cluster, _COLUMN_OF[scope], entity):
        click.echo(f"note: no GPU of the last day names {scope} {entity}", err=True)
    found = put(
        client, settings.cluster, scope, entity, starts_at=now,
        ends_at=now + duration(length), reason=reason, by=getpass.getuser(), detector=detector,
    )  # fmt: skip
    click.echo(f"{found}: {scope} {entity} is silent until {now + duration(length):%H:%M} UTC")


# Scopes that GPUs' rows name.
_COLUMN_OF = {"rack": "rack", "host": "host", "cdu": "cdu", "job": "job_id"}


def _reports(client: Client, cluster: str, column: str, entity: str) -> bool:
    """Whether a row of the last day names the entity: a typo would silence nothing."""
    rows = client.query(
        f"SELECT 1 FROM telemetry.gpu WHERE cluster = {{c:String}} AND {column} = {{e:String}}"
        " AND ingested_at > now() - INTERVAL 1 DAY LIMIT 1",
        parameters={"c": cluster, "e": entity},
    ).result_rows
    return bool(rows)


@incidents.command()
@click.argument("silence_id")
def unsilence(silence_id: str) -> None:
    """End a silence now."""
    from pipeline.incidents import unsilence as lift
    from pipeline.store.client import connect

    old = lift(connect(load_settings()), silence_id, by=getpass.getuser())
    click.echo(f"{silence_id}: {old.scope} {old.entity_id} is no longer silent")


def _list_silences(as_json: bool) -> None:
    from pipeline.incidents import silences
    from pipeline.store.client import connect

    now = SystemClock().now()
    found = silences(connect(load_settings()), since=now)
    if as_json:
        click.echo(json.dumps([vars(item) for item in found], default=_text, indent=1))
        return
    if not found:
        click.echo("no silence")
    for item in found:
        what = f" for {item.detector}" if item.detector else ""
        click.echo(
            f"{item.silence_id}  {item.scope} {item.entity_id}{what}"
            f"  {item.starts_at:%m-%d %H:%M} to {item.ends_at:%m-%d %H:%M} UTC"
            f"  {item.reason} ({item.by})"
        )


def _text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
