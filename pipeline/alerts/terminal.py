"""A received alert in the terminal: readable at three in the morning."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pipeline.alerts.model import Alert, Evidence

_STYLE = {"critical": "bold red", "warning": "bold yellow", "info": "bold cyan"}


def alert_of(body: Mapping[str, Any]) -> Alert:
    """The alert in a webhook's body, as :func:`pipeline.alerts.render.generic` made it.

    Raises:
        ValueError: it has another form.
    """
    try:
        data = body["data"]
        entity = data["entity"]
        resolved = data.get("resolved_at")
        return Alert(
            transition_id="",
            incident_id=data["incident_id"],
            transition=data["transition"],
            at=datetime.fromisoformat(body["timestamp"]),
            window_end=datetime.fromisoformat(data["window_end"]),
            cluster=data["cluster"],
            detector=data["detector"],
            entity_kind=entity["kind"],
            entity_id=entity["id"],
            entity_name=entity["name"],
            location=data["location"],
            severity=data["severity"],
            cause=data["cause"]["id"],
            cause_confidence=float(data["cause"]["confidence"]),
            summary=data["summary"],
            evidence=tuple(
                Evidence(
                    feature=item["feature"],
                    label=item.get("label", ""),
                    value=item["value"],
                    peer_median=item["peer_median"],
                    unit=item["unit"],
                    direction=item["direction"],
                    minutes=item["minutes"],
                    z=item["z"],
                )
                for item in data["evidence"]
            ),
            peers=data["peers"],
            suggested_action=data["suggested_action"],
            members=tuple(data["members"]),
            model_version=data["model_version"],
            score=float(data["score"]),
            opened_at=datetime.fromisoformat(data["opened_at"]),
            resolved_at=datetime.fromisoformat(resolved) if resolved else None,
            drill=bool(data["drill"]),
            links=data["links"],
        )
    except (KeyError, TypeError, AttributeError) as exc:
        raise ValueError(f"no alert of rackpulse: {exc!r}") from exc


def _duration(seconds: float) -> str:
    minutes = max(0, round(seconds / 60))
    if minutes < 1:
        return "less than a minute"
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def _evidence_table(alert: Alert) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=True, header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("peers", justify="right", style="dim", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("for", justify="right", style="dim", no_wrap=True)
    for item in alert.evidence:
        percent = "" if item.percent is None else f"{item.percent:+.0f} %"
        table.add_row(
            Text(item.words),
            Text(item.amount(item.value), style="bold"),
            Text(item.amount(item.peer_median)),
            Text(percent),
            Text(f"{item.minutes:.0f} min" if item.minutes else ""),
        )
    return table


def render_alert(alert: Alert, *, verified: bool = True) -> RenderableType:
    """What the terminal shows."""
    at = f"{alert.at:%H:%M:%S} UTC"
    drill = "DRILL  " if alert.drill else ""
    if alert.transition == "resolved":
        line = Text.assemble(
            ("✔ RESOLVED  ", "bold green"), (drill, "bold magenta"),
            (alert.entity_name, "bold"), f"  {alert.cause_words}  ",
            (f"after {_duration(alert.duration_s)}  ", ""), (at, "dim"),
        )  # fmt: skip
        return line if verified else Group(line, _warning())
    style = _STYLE.get(alert.severity, "bold")
    word = alert.severity.upper() if alert.transition == "opened" else "UPDATE"
    title = Text.assemble((f" {word} ", f"{style} reverse"), (f" {drill}", "bold magenta"),
                          (f"{alert.entity_name} ", "bold"))  # fmt: skip
    sure = f"{alert.cause_words} ({alert.cause_confidence:.0%})"
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")

    def add(name: str, value: str | Table, value_style: str = "") -> None:
        shown = Text(value, style=value_style) if isinstance(value, str) else value
        grid.add_row(Text(name), shown)

    add("cause", sure, style)
    add("where", alert.place or alert.entity_id)
    if alert.evidence:
        add("", "")
        add("proof", _evidence_table(alert))
    else:
        add("what", alert.summary)
    if alert.peer_words:
        add("", f"compared with {alert.peer_words}", "dim")
    if alert.members:
        shown = ", ".join(alert.members[:6])
        more = f" and {len(alert.members) - 6} more" if len(alert.members) > 6 else ""
        add("with", f"{shown}{more}")
    if alert.suggested_action:
        add("", "")
        add("do", alert.suggested_action, "bold")
    if "fleet" in alert.links:
        add("more", alert.links["fleet"], "cyan underline")
    parts: list[RenderableType] = [grid]
    if not verified:
        parts.append(_warning())
    return Panel(
        Group(*parts), title=title, title_align="left", border_style=style,
        subtitle=Text(f"{at}  {alert.detector}  {alert.incident_id[:12]}", style="dim"),
        subtitle_align="right", padding=(0, 1),
    )  # fmt: skip


def _warning() -> Text:
    return Text("the signature is not ours: do not trust this", style="bold white on red")


def make_console(width: int | None = None) -> Console:
    """A console whose text comes from machines: nothing in it is markup."""
    return Console(markup=False, highlight=False, emoji=False, width=width, soft_wrap=False)
