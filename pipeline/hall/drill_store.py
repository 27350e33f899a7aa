"""The real pipeline, as a drill watches it: the store, the live models, the alerts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from pipeline.clock import Clock, SystemClock
from pipeline.errors import RackpulseError
from pipeline.hall.drill import Drill, DrillReport
from pipeline.hall.history import kafka_outlet_maker
from pipeline.settings import Settings
from pipeline.streams import Contracts

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from pipeline.detection.model import Model

# A drill's incidents that are older than this are those of a drill that was killed.
GIVEN_UP = timedelta(hours=2)


class StorePipeline:
    """Looks into ClickHouse, and runs detectors and incidents for the shadow cluster."""

    def __init__(self, client: Client, settings: Settings, contracts: Contracts) -> None:
        self._client = client
        self._settings = settings
        self._contracts = contracts
        self._models: dict[str, Model] = {}

    def stored(self, cluster: str) -> dict[str, int]:
        found = {}
        for stream in self._contracts:
            rows = self._client.query(
                f"SELECT count() FROM telemetry.{stream} WHERE cluster = {{c:String}}"
                " AND ingested_at > now() - INTERVAL 1 DAY",
                parameters={"c": cluster},
            ).result_rows
            found[stream] = int(rows[0][0])
        return found

    def _settings_of(self, cluster: str) -> Settings:
        return self._settings.model_copy(update={"cluster": cluster})

    def commission(self, cluster: str, start: datetime, end: datetime) -> None:
        from pipeline.detection import commissioned

        settings = self._settings_of(cluster)
        self._models = commissioned(self._client, settings, start, end)

    def judge(self, cluster: str, window_end: datetime) -> list[Mapping[str, Any]]:
        from pipeline.detection import score
        from pipeline.incidents import step

        settings = self._settings_of(cluster)
        score(self._client, settings, window_end, models=self._models)
        return [asdict(transition) for transition in step(self._client, settings, window_end)]

    def tidy(self, cluster: str, at: datetime) -> None:
        from pipeline.incidents import table
        from pipeline.incidents.step import resolved

        rows = self._client.query(
            "SELECT DISTINCT cluster FROM telemetry.incident"
            " WHERE state = 'open' AND drill AND opened_at < {before:DateTime64(3, 'UTC')}",
            parameters={"before": at - GIVEN_UP},
        ).result_rows
        for name in sorted({cluster, *(str(row[0]) for row in rows)}):
            left = table.newest(self._client, name, at + timedelta(minutes=1))
            table.insert(self._client, [resolved(incident, at) for incident in left])

    def delivered(self, transition_ids: Iterable[str]) -> bool:
        rows = self._client.query(
            "SELECT count() FROM telemetry.alert_delivery"
            " WHERE outcome = 'delivered' AND transition_id IN {ids:Array(String)}",
            parameters={"ids": list(transition_ids)},
        ).result_rows
        return bool(rows[0][0])


def run_drill(
    settings: Settings,
    contracts: Contracts,
    cause: str,
    entity: str | None = None,
    *,
    severity: float | None = None,
    timeout_s: float = 300.0,
    say: Any = lambda text: None,
    clock: Clock | None = None,
    client: Client | None = None,
) -> DrillReport:
    """Run a fire drill against the pipeline of ``settings``.

    Args:
        client: of the store; by default one of ``settings``, closed at the end.

    Raises:
        RackpulseError: the store or Kafka does not answer, the cause or entity is unknown, or a
            detector has no live model yet.
    """
    from clickhouse_connect.driver.exceptions import ClickHouseError
    from urllib3.exceptions import HTTPError

    from pipeline.store import connect, reason

    clock = clock or SystemClock()
    own = client or connect(settings)
    try:
        _need_live_models(own)
        drill = Drill(
            contracts, clock, kafka_outlet_maker(settings, contracts, clock),
            StorePipeline(own, settings, contracts), timeout_s=timeout_s, say=say,
        )  # fmt: skip
        return drill.run(cause, entity, severity=severity)
    except (ClickHouseError, HTTPError, OSError) as exc:
        raise RackpulseError(
            f"The drill was cut short: the store failed ({reason(exc)}). Start it again when the"
            " store answers; an incident that it left open is closed by a drill two hours later"
        ) from exc
    finally:
        if client is None:
            own.close()


def _need_live_models(client: Client) -> None:
    """Before any row is sent: a drill without a model would only add to a backlog."""
    from pipeline.detection import load_specs
    from pipeline.detection.registry import live_version

    missing = [name for name in load_specs() if live_version(client, name) is None]
    if missing:
        raise RackpulseError(
            f"A drill needs a live model of every detector: {', '.join(missing)} has none yet."
            " Training starts by itself once an hour of telemetry is there; see"
            "  rackpulse detect list"
        )
