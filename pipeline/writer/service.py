"""``rackpulse write``: checks at the start, the loop, and the page about it."""

from __future__ import annotations

import logging
import re
import threading

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from pipeline.clock import Clock, SystemClock
from pipeline.errors import ConfigError, RackpulseError, SlowDownError
from pipeline.memory import keep_large_pieces
from pipeline.metrics import Metrics
from pipeline.service import Health, health_page
from pipeline.settings import Settings
from pipeline.store import classify, reason
from pipeline.store.outcome import Outcome
from pipeline.streams import Contracts
from pipeline.streams.ddl import DATABASE
from pipeline.writer.loop import Writer
from pipeline.writer.options import Options
from pipeline.writer.shared import Shared, StoreClient
from pipeline.writer.topics import Topics

log = logging.getLogger(__name__)

_TTL_DAYS = re.compile(r"toIntervalDay\((\d+)\)")
_DAY_MS = 86_400_000
_WAIT_S = 2.0


def serve(
    settings: Settings,
    contracts: Contracts,
    options: Options,
    stop: threading.Event,
    metrics_port: int | None = None,
    clock: Clock | None = None,
) -> None:
    """Write until ``stop`` is set.

    Args:
        metrics_port: of ``/livez``, ``/readyz`` and ``/metrics``; None serves no page.

    Raises:
        RackpulseError: a person must act; the text says how.
    """
    unknown = [name for name in options.streams if name not in contracts]
    if unknown:
        raise ConfigError(f"No stream {', '.join(unknown)}: there are {', '.join(contracts)}")
    keep_large_pieces()
    clock = clock or SystemClock()
    metrics = Metrics()
    health = Health(clock)
    topics = Topics(settings)
    shared = Shared(settings, contracts, options, clock, metrics, topics)
    if metrics_port is None:
        _run(shared, health, stop)
        return
    host = settings.metrics_host
    with health_page(health, metrics.registry, metrics_port, host) as port:
        log.info("metrics on http://%s:%d/metrics", host, port)
        _run(shared, health, stop)


def _run(shared: Shared, health: Health, stop: threading.Event) -> None:
    if not _wait_for_neighbours(shared, health, stop):
        return
    log.info(
        "writer %s: instance %d of group %s writes %s",
        shared.writer_id[:8], shared.options.instance, shared.options.group,
        ", ".join(shared.options.streams or shared.contracts),
    )  # fmt: skip
    Writer(shared, health).run(stop)
    log.info("stopped")


def _wait_for_neighbours(shared: Shared, health: Health, stop: threading.Event) -> bool:
    """Wait for the store and for Kafka; False when told to stop meanwhile.

    Raises:
        RackpulseError: what is there is not as it must be.
    """
    client = StoreClient(shared)
    said = ""
    while not stop.is_set():
        health.beat()
        try:
            check_tables(client(), shared)
            client.drop()
            return True
        except SlowDownError as exc:
            text = str(exc.__cause__ or exc)
        except ClickHouseError as exc:
            if classify(exc) is Outcome.FATAL:
                raise RackpulseError(
                    f"The store refuses a question ({reason(exc)}): run  rackpulse migrate  and"
                    " start the writer again"
                ) from exc
            text = str(exc)
            client.drop()  # it may come back elsewhere
        health.not_ready(text.splitlines()[0])
        if text != said:
            log.warning("waiting: %s", text)
            said = text
        stop.wait(_WAIT_S)
    return False


def check_tables(client: Client, shared: Shared) -> None:
    """Compare the tables with the contracts, and their retention with Kafka's.

    Raises:
        ConfigError: a table or column is missing, or rows would go before their messages.
        SlowDownError: Kafka is away.
        ClickHouseError: the store's.
    """
    names = list(shared.options.streams or shared.contracts)
    rows = client.query(
        "SELECT table, groupArray(name) FROM system.columns"
        " WHERE database = {database:String} GROUP BY table",
        parameters={"database": DATABASE},
    ).result_rows
    columns = {str(table): set(found) for table, found in rows}
    for name in [*names, "writer_epoch", "ingest_gap"]:
        wanted = {each.name for each in shared.contracts[name].columns} if name in names else set()
        lacking = sorted(wanted - columns.get(name, set()))
        if name not in columns or lacking:
            what = f"column {', '.join(lacking)} of" if name in columns else "table"
            raise ConfigError(
                f"The store lacks {what} {DATABASE}.{name}: run  rackpulse migrate  and start the"
                " writer again"
            )
    engines = client.query(
        "SELECT name, engine_full FROM system.tables WHERE database = {database:String}",
        parameters={"database": DATABASE},
    ).result_rows
    for name, engine in engines:
        days = _TTL_DAYS.search(str(engine))
        if name in names and days:
            _check_retention(shared.topics, str(name), int(days[1]))


def _check_retention(topics: Topics, name: str, days: int) -> None:
    kept_ms = topics.config(name, "retention.ms")
    if kept_ms is None:
        log.info("%s: the broker does not say how long it keeps messages", name)
        return
    # Rows go by ingest day: the first of a day's rows is that day's end old when it goes.
    if not 0 <= int(kept_ms) < days * _DAY_MS:
        raise ConfigError(
            f"Topic {name} keeps messages for {int(kept_ms) / _DAY_MS:.1f} days and table"
            f" {DATABASE}.{name} rows for {days}: a writer could store a message again whose rows"
            " were dropped. Give the topic a shorter retention in schemas/topics.toml and run"
            "  rackpulse topics create , or raise RACKPULSE_RETENTION_DAYS and run"
            "  rackpulse migrate"
        )
