"""``rackpulse write``, ``verify`` and ``dead-letters``."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.amounts import Amount
from pipeline.errors import ConfigError
from pipeline.service import setup_logging, stop_on_signals
from pipeline.settings import load_settings
from pipeline.streams import load_contracts

if TYPE_CHECKING:
    from pipeline.writer.verify import Report


@click.command()
@click.option("--streams", default="", help="Comma separated; all by default.")
@click.option(
    "--instance",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Number of this writer in the group.",
)
@click.option("--metrics-port", type=click.IntRange(0, 65535),
              help="Of /livez, /readyz and /metrics; 0 takes a free one.")  # fmt: skip
@click.option("--group", help="Consumer group.")
@click.option(
    "--linger", "linger_s", type=Amount(0, 600), help="Seconds that a message waits for more."
)
@click.option("--max-rows", type=click.IntRange(1, 10_000_000), help="Rows of a block, at most.")
@click.option(
    "--buffer-mb",
    type=click.IntRange(1, 1_000_000),
    help="Message megabytes held until they are stored.",
)
@click.option(
    "--session-timeout", type=Amount(1, 1_800), help="Seconds until the group calls this one dead."
)
def write(
    streams: str, instance: int, metrics_port: int | None, group: str | None,
    linger_s: float | None, max_rows: int | None, buffer_mb: int | None,
    session_timeout: float | None,
) -> None:  # fmt: skip
    """Write Kafka messages to ClickHouse, each row once, until SIGTERM or Ctrl-C."""
    from pipeline.writer.options import Options
    from pipeline.writer.service import serve

    settings = load_settings()
    setup_logging(settings.log_format)
    # These repeat whole requests, or say that the machine is busy; the writer tells what matters.
    for noisy in ("urllib3", "clickhouse_connect", "kafka.net"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    chosen: dict[str, Any] = {
        "streams": tuple(name.strip() for name in streams.split(",") if name.strip()),
        "instance": instance,
        "group": group,
        "linger_s": linger_s,
        "max_rows": max_rows,
        "buffer_bytes": buffer_mb * 1_000_000 if buffer_mb else None,
        "session_timeout_ms": round(session_timeout * 1000) if session_timeout else None,
    }
    given = {name: value for name, value in chosen.items() if value is not None}
    options = replace(Options(), **given)
    serve(settings, load_contracts(), options, stop_on_signals(), metrics_port)


@click.command()
@click.option("--streams", default="", help="Comma separated; all by default.")
@click.option(
    "--wait",
    "wait_s",
    type=Amount(0),
    default=0.0,
    help="Seconds to wait for the writer to catch up.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(streams: str, wait_s: float, as_json: bool) -> None:
    """Read the topics again and compare them with what is stored.

    Exit code 1 when rows are missing, doubled or unknown.
    """
    import json
    import sys

    from pipeline.clock import SystemClock
    from pipeline.store import connect
    from pipeline.writer.verify import Verifier

    settings = load_settings()
    contracts = load_contracts()
    names = [name.strip() for name in streams.split(",") if name.strip()] or list(contracts)
    if unknown := [name for name in names if name not in contracts]:
        raise ConfigError(f"No stream {', '.join(unknown)}: there are {', '.join(contracts)}")
    with connect(settings) as client:
        report = Verifier(settings, client, SystemClock()).run(names, wait_s)
    if as_json:
        click.echo(json.dumps(report.as_json(), indent=1))
    else:
        _print_report(report)
    sys.exit(0 if report.ok else 1)


def _print_report(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "stream", "messages", "rows in log", "rows stored", "missing", "doubled", "unknown",
        "set aside", "repeats", "waiting",
    )  # fmt: skip
    for each in report.streams:
        table.add_row(
            each.stream, str(each.messages), str(each.rows_in_log), str(each.rows_stored),
            str(each.missing), str(each.doubled), str(each.unknown), str(each.dead_lettered),
            str(each.repeats), str(each.waiting),
        )  # fmt: skip
    console = Console(markup=False)
    if not console.is_terminal:
        console = Console(markup=False, width=140)
    console.print(table)
    for each in report.streams:
        for example in each.examples:
            click.echo(example)
        if each.before_log or each.expired:
            click.echo(
                f"{each.stream}: {each.before_log} stored messages are older than the log,"
                f" {each.expired} messages of the log are older than the table's rows"
            )
    for gap in report.gaps:
        click.echo(
            f"{gap['stream']}: {gap['gaps']} recorded gaps of kind {gap['kind']},"
            f" {gap['messages']} messages (telemetry.ingest_gap)"
        )
    click.echo("nothing missing, nothing doubled" if report.ok else "NOT as it must be")


@click.group()
def dead_letters() -> None:
    """Messages that could not be read and were set aside."""


@dead_letters.command("list")
@click.option("--reason", help="Only those of this reason.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def dead_letters_list(reason: str | None, as_json: bool) -> None:
    """List them, oldest first."""
    import json

    from pipeline.errors import RackpulseError
    from pipeline.store import connect
    from pipeline.writer.replay import read_letters, replayed

    settings = load_settings()
    try:
        with connect(settings) as client:
            again = replayed(client)
    except RackpulseError as exc:
        click.echo(f"(not known which were sent again: {exc})", err=True)
        again = {}
    for letter in read_letters(settings):
        if reason and letter.reason != reason:
            continue
        entry = {
            "origin": f"{letter.topic_id}/{letter.partition}/{letter.offset}",
            "topic": letter.topic, "reason": letter.reason, "detail": letter.detail,
            "bytes": len(letter.value or b""), "replayed_to": again.get(letter.origin, ""),
        }  # fmt: skip
        if as_json:
            click.echo(json.dumps(entry))
        else:
            note = f"  sent again as {entry['replayed_to']}" if entry["replayed_to"] else ""
            click.echo(
                f"{entry['origin']}  {letter.topic}  {letter.reason}  {entry['bytes']} bytes"
                f"  {letter.detail[:100]}{note}"
            )


@dead_letters.command("show")
@click.argument("origin")
@click.option("--out", type=click.Path(dir_okay=False), help="Write the original bytes here.")
def dead_letters_show(origin: str, out: str | None) -> None:
    """Show one, by its ORIGIN as `list` prints it."""
    from pathlib import Path

    from pipeline.errors import RackpulseError
    from pipeline.writer.replay import read_letters

    for letter in read_letters(load_settings()):
        if f"{letter.topic_id}/{letter.partition}/{letter.offset}" != origin:
            continue
        click.echo(f"topic   {letter.topic}\nreason  {letter.reason}\ndetail  {letter.detail}")
        click.echo(f"key     {letter.key!r}")
        for name, value in letter.headers:
            click.echo(f"header  {name}: {value!r}")
        body = letter.value or b""
        click.echo(f"body    {len(body)} bytes: {body[:64].hex(' ')}{' ...' if body[64:] else ''}")
        if out:
            Path(out).write_bytes(body)
            click.echo(f"written to {out}")
        return
    raise RackpulseError(f"No dead letter {origin}: see  rackpulse dead-letters list")


@dead_letters.command("replay")
@click.argument("origins", nargs=-1)
@click.option("--reason", help="All of this reason.")
@click.option("--all", "every", is_flag=True, help="All of them.")
def dead_letters_replay(origins: tuple[str, ...], reason: str | None, every: bool) -> None:
    """Send some to the topic they came from, each once."""
    from pipeline.errors import RackpulseError
    from pipeline.store import connect
    from pipeline.writer.deadletters import Letter
    from pipeline.writer.replay import replay

    if not (origins or reason or every):
        raise RackpulseError("Say which: origins as `list` prints them, --reason WORD, or --all")

    def wanted(letter: Letter) -> bool:
        name = f"{letter.topic_id}/{letter.partition}/{letter.offset}"
        return every or name in origins or (reason is not None and letter.reason == reason)

    settings = load_settings()
    with connect(settings) as client:
        sent = replay(settings, client, wanted, click.echo)
    click.echo(f"{sent} sent again")
