"""``rackpulse collect``: one source once, or all targets until stopped."""

from __future__ import annotations

import asyncio
import re
import resource
import signal
import socket
import sys
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import click

from pipeline.cli.amounts import Amount
from pipeline.collectors.registry import KINDS, OF_HOST


class _ByKind(click.Group):
    """A command per kind of source, made from the registry, and ``run``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *sorted(KINDS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        return found or (_once(cmd_name) if cmd_name in KINDS else None)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    ("run", "Read all targets until stopped."),
                    ("KIND", f"Read one source once. Kinds: {', '.join(sorted(KINDS))}."),
                ]
            )


@click.group(cls=_ByKind)
def collect() -> None:
    """Read sources."""


def _once(kind: str) -> click.Command:
    @click.command(name=kind, help=f"Read one {kind} source once and print its rows.")
    @click.option("--file", "path", type=click.Path(path_type=Path, exists=True, allow_dash=True))
    @click.option("--url", help="Address of the page or controller.")
    @click.option("--sink", type=click.Choice(["stdout"]), default="stdout", show_default=True)
    @click.option("--format", "form", type=click.Choice(["jsonl", "table"]), default="jsonl")
    @click.option("--topology", type=click.Path(path_type=Path, exists=True, dir_okay=False))
    @click.option("--target", "name", help="Name that the rows carry; by default the file's.")
    @click.option("--host", help="Host that the source speaks for.")
    @click.option("--manager-id", help="Id of the management controller.")
    @click.option("--credentials-file", type=click.Path(path_type=Path, exists=True))
    @click.option("--timeout", "timeout_s", type=float, default=10.0, show_default=True)
    def once(
        path: Path | None, url: str | None, sink: str, form: str, topology: Path | None,
        name: str | None, host: str | None, manager_id: str | None,
        credentials_file: Path | None, timeout_s: float,
    ) -> None:  # fmt: skip
        del sink
        if (path is None) == (url is None) and not (path is None and kind in OF_HOST):
            raise click.UsageError("give either --file or --url")
        from pipeline.collectors import show
        from pipeline.collectors.page import NothingToReadError, Page
        from pipeline.collectors.placement import Placer
        from pipeline.collectors.registry import reader
        from pipeline.errors import RackpulseError
        from pipeline.settings import load_settings
        from pipeline.streams import load_contracts
        from pipeline.topology import load_topology

        contracts = load_contracts()
        if name is None:
            name = path.name if path is not None else f"{kind}/{_host_of(url)}"
        content_type: str | None = None
        if path is not None:
            body = _read_file(kind, path)
        elif url is None:
            from pipeline.collectors.fetch import read_host

            try:
                body = read_host(kind)
            except NothingToReadError as exc:
                click.echo(f"rackpulse: {exc}", err=True)
                return
        else:
            body, content_type = _read_url(kind, url, name, manager_id, credentials_file, timeout_s)
        page = Page(body, name, datetime.now(UTC), load_settings().cluster, host, content_type)
        reading = reader(kind).read(page, contracts)
        placer = Placer(contracts, load_topology(topology) if topology else None)
        tables = {stream: placer.place(table, stream) for stream, table in reading.tables.items()}
        show.write(tables, sys.stdout, form)
        _say_what_was_refused(reading.rejected, reading.notes)
        # Readings that are refused by their column stand on a page of the right kind.
        if not tables and any(not column for _, column in reading.rejected):
            raise RackpulseError(f"{name} has no row of a {kind} page: is it of another kind?")
        if not body.strip():
            click.echo(f"note: {name} is empty", err=True)

    return once


def _host_of(url: str | None) -> str:
    from urllib.parse import urlsplit

    try:
        return urlsplit(url or "").hostname or "?"
    except ValueError:  # said where the target is made
        return "?"


def _read_file(kind: str, path: Path) -> bytes:
    from pipeline.collectors.fetch import read_path
    from pipeline.errors import RackpulseError

    if str(path) == "-":
        return sys.stdin.buffer.read()
    try:
        return read_path(kind, path)
    except OSError as exc:
        raise RackpulseError(f"{path} cannot be read: {exc.strerror or exc}") from exc


def _read_url(
    kind: str, url: str, name: str, manager_id: str | None, credentials_file: Path | None,
    timeout_s: float,
) -> tuple[bytes, str | None]:  # fmt: skip
    from pydantic import ValidationError

    from pipeline.clock import SystemClock
    from pipeline.collectors.fetch import FetcherFactory, FetchError
    from pipeline.collectors.targets import Target
    from pipeline.errors import RackpulseError

    try:
        target = Target(
            name=name, kind=kind, url=url, manager_id=manager_id, timeout_s=timeout_s,
            credentials_file=credentials_file,
        )  # fmt: skip
    except ValidationError as exc:
        raise RackpulseError(exc.errors(include_input=False)[0]["msg"]) from exc

    async def read() -> tuple[bytes, str | None]:
        fetcher = FetcherFactory(SystemClock()).make(target)
        try:
            fetched = await fetcher.fetch()
            return fetched.body, fetched.content_type
        finally:
            await fetcher.close()

    try:
        return asyncio.run(read())
    except FetchError as exc:
        raise RackpulseError(f"{name} could not be read: {exc}") from exc


def _say_what_was_refused(rejected: Counter[tuple[str, str]], notes: list[str]) -> None:
    for (reason, column), count in sorted(rejected.items()):
        where = f" in {column}" if column else ""
        click.echo(f"refused {count} x {reason}{where}", err=True)
    for text in notes[:20]:
        click.echo(f"note: {text}", err=True)


def _allow_many_connections() -> None:
    """Every target keeps its connection: open as many files as this process may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def default_collector_id() -> str:
    """The machine's name, in the characters that a collector id may have."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname()).lstrip(".-") or "collector"


def _collector_id(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """Refuse what is no name: it names a folder too."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", value):
        raise click.BadParameter(
            "begin with a letter, digit or _, and go on with these, . and -",
            param_hint="--collector-id",
        )
    return value


@collect.command()
@click.option(
    "--targets", "target_files", multiple=True, type=click.Path(path_type=Path, dir_okay=False),
    help="Target file, ours or Prometheus' file_sd; may be given several times.",
)  # fmt: skip
@click.option("--topology", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--jobs", type=click.Path(path_type=Path, dir_okay=False),
              help="Which job each GPU works for: squeue --json, or a CSV; watched.")  # fmt: skip
@click.option("--collector-id", default=default_collector_id, callback=_collector_id,
              help="Name of this collector.")  # fmt: skip
@click.option("--sink", type=click.Choice(["kafka", "stdout"]), default="kafka", show_default=True)
@click.option("--window", "window_s", type=Amount(0.01, 3_600), default=1.0, show_default=True,
              help="Pages read within so many seconds share messages.")  # fmt: skip
@click.option("--metrics-port", type=click.IntRange(0, 65535), default=18090, show_default=True,
              help="Of /livez, /readyz and /metrics; 0 takes a free one.")  # fmt: skip
def run(
    target_files: tuple[Path, ...], topology: Path | None, jobs: Path | None, collector_id: str,
    sink: str, window_s: float, metrics_port: int,
) -> None:  # fmt: skip
    """Read all targets until stopped."""
    from pipeline.clock import SystemClock
    from pipeline.collectors.batches import Sink
    from pipeline.collectors.discovery import Discovery
    from pipeline.collectors.service import Collector, Options
    from pipeline.collectors.show import StdoutSink
    from pipeline.errors import ConfigError, RackpulseError
    from pipeline.metrics import Metrics
    from pipeline.service import Health, health_page, setup_logging
    from pipeline.settings import load_settings
    from pipeline.streams import load_contracts

    settings = load_settings()
    setup_logging(settings.log_format)
    _allow_many_connections()
    files = target_files or ((settings.targets_file,) if settings.targets_file else ())
    if not files:
        raise ConfigError("Say what to read: --targets targets.json (or RACKPULSE_TARGETS_FILE)")
    contracts, clock = load_contracts(), SystemClock()
    metrics, health = Metrics(), Health(clock)
    where: Sink
    if sink == "stdout":
        where = StdoutSink(sys.stdout)
    else:
        from pipeline.bus.publisher import Publisher

        where = Publisher(
            settings, contracts, collector_id, settings.state_dir / "spool" / collector_id, clock
        )
    service = Collector(
        contracts, Discovery(files), where,
        Options(
            settings.cluster, window_s,
            log_lines=settings.state_dir / "collectors" / collector_id / "log-lines.json",
        ),
        topology_path=topology or settings.topology_file, jobs_path=jobs,
        metrics=metrics, health=health, clock=clock,
    )  # fmt: skip

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await service.run(stop)

    with ExitStack() as stack:
        try:
            stack.enter_context(
                health_page(health, metrics.registry, metrics_port, settings.metrics_host)
            )
        except RackpulseError:
            where.close(0.0)
            raise
        asyncio.run(main())
