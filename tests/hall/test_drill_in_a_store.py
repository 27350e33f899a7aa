"""A drill judged by a live model in a running store: one page, about its fault."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from clickhouse_connect.driver.client import Client

from pipeline.bus.codec import Header, decode, write_header
from pipeline.clock import SystemClock
from pipeline.detection import load_specs, train
from pipeline.errors import RackpulseError
from pipeline.hall.drill import Drill
from pipeline.hall.drill_store import StorePipeline, run_drill
from pipeline.hall.record import record
from pipeline.hall.scenario import Scenario
from pipeline.streams import Contracts
from pipeline.streams.arrow import table_schema
from tests.detection.test_end_to_end import put
from tests.support.store import RunningStore


class _Store:
    """Takes messages as the writer would, without Kafka between."""

    def __init__(self, client: Client, contracts: Contracts) -> None:
        self._client, self._contracts = client, contracts
        self.numbers: dict[str, int] = {}
        self.rows = 0

    def send(self, bodies: Iterable[tuple[str, str, int, bytes]]) -> None:
        found: dict[str, list[pa.Table]] = {}
        for stream, _key, _rows, body in bodies:
            header = write_header(Header(stream, 1, "t.1", 1, 1))
            batch = decode(self._contracts, header, body).batch
            found.setdefault(stream, []).append(pa.Table.from_batches([batch]))
        for stream, tables in found.items():
            table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
            names = [
                name
                for name in table_schema(self._contracts[stream]).names
                if name in table.column_names
            ]
            stamp = pa.array([datetime.now(UTC)] * table.num_rows, pa.timestamp("ms", tz="UTC"))
            self._client.insert_arrow(
                f"telemetry.{stream}", table.select(names).append_column("ingested_at", stamp)
            )

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Told(StorePipeline):
    """The real one, but that every alert is delivered at once."""

    def delivered(self, transition_ids: Iterable[str]) -> bool:
        return bool(list(transition_ids))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_live_models_find_the_faults_of_racks_that_they_never_saw_and_nothing_else(
    tmp_path: Path, contracts: Contracts
) -> None:
    """The shadow racks bear names of the cluster that was trained on, and are other racks."""
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    start = now - timedelta(minutes=80)
    scenario = Scenario.model_validate(
        {
            "hall": {"racks": 6, "seed": 1},
            "time": {"start": start, "hours": 1.25, "sample_s": 30, "nvlink_s": 0},
        }
    )
    record(scenario, tmp_path / "set", contracts)
    with RunningStore(tmp_path) as store:
        store.migrate()
        client = store.client()
        for path in (tmp_path / "set").glob("*.parquet"):
            put(client, contracts, path, now)
        end = start + timedelta(minutes=74)
        for detector in load_specs():
            assert train(client, store.settings, detector, end).state == "live"
        for cause in ("capped_clocks", "blocked_quick_disconnect", "bad_cable"):
            drill = Drill(
                contracts, SystemClock(), lambda *_: _Store(client, contracts),
                _Told(client, store.settings, contracts), timeout_s=60,
            )  # fmt: skip
            report = drill.run(cause)
            assert report.passed, report
            assert report.resolved
            assert 0 < (report.minutes_to_detect or 0) < 4
            left = client.query("SELECT count() FROM telemetry.incident WHERE state = 'open'")
            assert left.result_rows == [(0,)]


def test_a_store_that_goes_away_is_said_in_a_sentence(tmp_path: Path, contracts: Contracts) -> None:
    with RunningStore(tmp_path) as store:
        store.migrate()
        client = store.client()
        store.stop()
        with pytest.raises(RackpulseError, match="cut short: the store failed"):
            run_drill(store.settings, contracts, "capped_clocks", client=client)
