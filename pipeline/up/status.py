"""The state of a run for another terminal: one object, from the run file and the store."""

from __future__ import annotations

from typing import Any

from clickhouse_connect.driver.exceptions import ClickHouseError

from pipeline.clock import Clock
from pipeline.errors import RackpulseError
from pipeline.settings import Settings
from pipeline.store import connect
from pipeline.streams import Contracts
from pipeline.up.observe import Observer, as_json, utc
from pipeline.up.runfile import is_running, read_run

_SAMPLE_S = 5.0


def read_status(settings: Settings, contracts: Contracts, clock: Clock) -> dict[str, Any]:
    """Services, streams, incidents and addresses, as they are now.

    Where ``rackpulse up`` runs, its own counts of the last half minute are used; elsewhere
    the streams are counted twice, five seconds apart.

    Returns:
        ``services`` (name, state), ``streams`` (name, rows, rows_per_second, lag),
        ``incidents`` (id, detector, entity, cause, severity, opened_at), ``scoring``
        (detector, newest window) and ``urls``.

    Raises:
        RackpulseError: nothing runs here and no store answers.
    """
    run = read_run(settings.state_dir)
    running = is_running(run) and run.get("state") in ("starting", "running")
    try:
        with connect(settings) as client:
            observer = Observer(client, settings, contracts, clock)
            streams = observer.streams()
            if running and run.get("streams"):
                rates = {entry["name"]: entry["rows_per_second"] for entry in run["streams"]}
                counted = [
                    {**entry, "rows_per_second": rates.get(entry["name"])}
                    for entry in as_json(streams)
                ]
            else:
                clock.wait(_SAMPLE_S)
                counted = as_json(observer.streams())
            incidents = observer.incidents()
            scoring = observer.scoring()
    except (ClickHouseError, RackpulseError) as exc:
        if not running:
            raise RackpulseError(
                f"Nothing to show: no rackpulse up runs on {settings.state_dir}, "
                f"and the store does not answer ({exc})"
            ) from exc
        counted, incidents, scoring = run.get("streams", []), run.get("incidents", []), None
    return {
        "services": [
            {"name": entry["name"], "state": entry["state"] if running else "stopped"}
            for entry in run.get("services", [])
        ],
        "streams": counted,
        "incidents": incidents,
        "scoring": [
            {"detector": name, "window_end": utc(newest).isoformat()}
            for name, newest in sorted((scoring.newest if scoring else {}).items())
        ],
        "urls": run.get("urls", {}),
    }
