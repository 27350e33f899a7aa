"""The live status in the terminal: services, streams, scoring, incidents, addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pipeline.up.observe import StreamStatus

_SEVERITY_STYLE = {"critical": "bold red", "warning": "yellow", "info": "cyan"}


def services_line(services: Mapping[str, str]) -> Text:
    """All services on one line; those that do not run stand out."""
    text = Text()
    for name, state in services.items():
        good = state == "running"
        text.append("● " if good else "○ ", style="green" if good else "bold red")
        text.append(name if good else f"{name} ({state})", style="" if good else "bold red")
        text.append("  ")
    return text


def streams_table(streams: Sequence[StreamStatus]) -> Table:
    """Rows, rate and lag of each stream."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("stream")
    for title in ("rows stored", "rows/s", "lag (messages)"):
        table.add_column(title, justify="right")
    for stream in streams:
        rate = "" if stream.rows_per_second is None else f"{stream.rows_per_second:,.0f}"
        lag = "?" if stream.lag is None else f"{stream.lag:,}"
        table.add_row(stream.name, f"{stream.rows:,}", rate, lag)
    return table


def incidents_table(incidents: Sequence[Mapping[str, Any]], now: datetime) -> RenderableType:
    """Open incidents, one line each."""
    if not incidents:
        return Text("no open incident", style="green")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("open for", "severity", "what", "entity", "cause"):
        table.add_column(title, overflow="fold")
    for incident in incidents:
        opened = datetime.fromisoformat(str(incident["opened_at"]))
        minutes = max(0, int((now - opened).total_seconds() // 60))
        severity = str(incident["severity"])
        table.add_row(
            f"{minutes} min",
            Text(severity, style=_SEVERITY_STYLE.get(severity, "")),
            f"{'DRILL ' if incident.get('drill') else ''}{incident['detector']}",
            str(incident["entity_name"] or incident["entity"]),
            str(incident["cause"]).replace("_", " "),
        )
    return table


def screen(
    services: Mapping[str, str],
    streams: Sequence[StreamStatus],
    scoring: str,
    incidents: Sequence[Mapping[str, Any]],
    addresses: Mapping[str, str],
    now: datetime,
) -> Panel:
    """The whole view."""
    where = Table(box=None, pad_edge=False, show_header=False)
    where.add_column(style="dim")
    where.add_column(overflow="fold")
    for name, address in addresses.items():
        where.add_row(name, address)
    body = Group(
        services_line(services),
        Text(),
        streams_table(streams),
        Text(),
        Text.assemble(("scoring  ", "dim"), scoring),
        Text(),
        incidents_table(incidents, now),
        Text(),
        where,
    )
    return Panel(
        body,
        title=f"rackpulse  {now:%Y-%m-%d %H:%M:%S} UTC",
        subtitle="Ctrl-C stops everything",
        border_style="blue",
    )


def plain_line(
    streams: Sequence[StreamStatus], scoring: str, incidents: Sequence[Mapping[str, Any]]
) -> str:
    """The same in one line, for a log or a pipe."""
    rate = sum(stream.rows_per_second or 0 for stream in streams)
    rows = sum(stream.rows for stream in streams)
    lags = [stream.lag for stream in streams]
    lag = "?" if None in lags else sum(value or 0 for value in lags)
    return (
        f"rows {rows:,}  {rate:,.0f} rows/s  lag {lag} messages  scoring: {scoring}  "
        f"open incidents: {len(incidents)}"
    )


def make_console() -> Console:
    """The person's terminal; wide enough for tables where it is a file.

    Names come from machines: nothing in them is markup.
    """
    console = Console(highlight=False, markup=False, emoji=False)
    if console.is_terminal:
        return console
    return Console(highlight=False, markup=False, emoji=False, width=140)
