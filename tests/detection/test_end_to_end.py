"""A recorded hall in a running store: trained, scored minute by minute, opened and resolved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from clickhouse_connect.driver.client import Client

from pipeline.cli.detect import evaluate as evaluate_command
from pipeline.detection import registry, score, train
from pipeline.detection.model import digest
from pipeline.errors import RackpulseError
from pipeline.hall.record import record
from pipeline.hall.scenario import Scenario
from pipeline.incidents import Transition, step
from pipeline.incidents.evaluation.labelled import read_truth
from pipeline.incidents.evaluation.report import evaluate_sets
from pipeline.settings import Settings
from pipeline.streams import Contracts
from pipeline.streams.arrow import table_schema
from tests.support.store import RunningStore

# The main job of tests/e2e finds three faults by itself; this one knows each stage.
pytestmark = pytest.mark.slow

MINUTE = timedelta(minutes=1)
TRAINED_MINUTES = 70
FAULT_MINUTE = 75
DETECTORS = ("congested_link", "hot_rack", "straggler_gpu")


@dataclass
class Played:
    """What a recorded hour and a half gave."""

    client: Client
    settings: Settings
    folder: Path
    start: datetime
    changes: list[Transition]

    def window(self, minute: int) -> datetime:
        return self.start + minute * MINUTE


def scenario(start: datetime) -> Scenario:
    """Two racks, one fault of each detector at once, then quiet."""
    faults = [
        {"cause": "capped_clocks", "entity": "rack-01/tray-05/slot-1", "severity": 0.2},
        {"cause": "blocked_quick_disconnect", "entity": "rack-02", "severity": 0.62},
        {"cause": "bad_cable", "entity": "leaf-r2-1/75", "severity": 0.5},
    ]
    return Scenario.model_validate(
        {
            "hall": {"racks": 2, "seed": 5},
            "time": {"start": start, "hours": 1.65, "sample_s": 30, "nvlink_s": 0},
            "fault": [{**f, "at_minute": FAULT_MINUTE, "minutes": 9} for f in faults],
        }
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, contracts: Contracts) -> Iterator[Played]:
    folder = tmp_path_factory.mktemp("hall")
    # Rows must be young, or their tables' retention takes them.
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    start = now - timedelta(hours=2)
    record(scenario(start), folder / "set", contracts)
    with RunningStore(folder) as store:
        store.migrate()
        client = store.client()
        for path in (folder / "set").glob("*.parquet"):
            put(client, contracts, path, now)
        settings = store.settings
        end = start + TRAINED_MINUTES * MINUTE
        for detector in DETECTORS:
            assert train(client, settings, detector, end).state == "live"
        changes = []
        for minute in range(FAULT_MINUTE - 1, 98):
            window = start + minute * MINUTE
            score(client, settings, window)
            changes += step(client, settings, window)
        yield Played(client, settings, folder / "set", start, changes)


def put(client: Client, contracts: Contracts, path: Path, now: datetime) -> None:
    """Store a recorded stream as the writer would."""
    schema = table_schema(contracts[path.stem])
    table = pq.read_table(path)
    if not table.num_rows:
        return
    names = [name for name in schema.names if name in table.column_names]
    table = table.select(names).append_column(
        "ingested_at", pa.array([now] * table.num_rows, pa.timestamp("ms", tz="UTC"))
    )
    client.insert_arrow(f"telemetry.{path.stem}", table.unify_dictionaries().combine_chunks())


def test_all_three_faults_are_found_within_six_minutes_with_their_causes(played: Played) -> None:
    opened = {t.detector: t for t in played.changes if t.transition == "opened"}
    labels = read_truth(played.folder / "truth.jsonl")
    truth = {fault.detector: fault for fault in labels if not fault.benign}
    assert set(opened) == set(truth) == set(DETECTORS)
    for detector, fault in truth.items():
        page = opened[detector]
        assert page.ids & set(fault.entities), detector
        assert page.cause == fault.cause
        assert page.window_end - fault.start <= 6 * MINUTE
        assert page.evidence
        assert page.summary
        assert page.suggested_action


def test_nothing_else_is_opened(played: Played) -> None:
    assert len([t for t in played.changes if t.transition == "opened"]) == 3


def test_all_are_resolved_when_it_is_over(played: Played) -> None:
    resolved = [t for t in played.changes if t.transition == "resolved"]
    assert {t.detector for t in resolved} == set(DETECTORS)
    rows = played.client.query("SELECT state, count() FROM telemetry.incident GROUP BY state")
    assert rows.result_rows == [("resolved", 3)]


def test_a_repeated_window_adds_nothing(played: Played) -> None:
    def counts() -> list[int]:
        return [
            int(played.client.query(f"SELECT count() FROM telemetry.{t}").result_rows[0][0])
            for t in ("score_run", "finding", "incident_transition", "detector_score")
        ]

    before = counts()
    window = played.window(85)
    report = score(played.client, played.settings, window)
    assert {item.skipped for item in report.detectors} == {"already scored"}
    step(played.client, played.settings, window)
    assert counts() == before


def test_every_finding_keeps_its_feature_row(played: Played) -> None:
    rows = played.client.query(
        "SELECT countIf(JSONExtractFloat(features, 'sm_clock_mhz') > 0), count()"
        " FROM telemetry.finding WHERE detector = 'straggler_gpu' AND raises"
    ).result_rows[0]
    assert rows[0] == rows[1] > 0


def test_the_registry_keeps_bytes_with_their_hash_and_goes_back(played: Played) -> None:
    client = played.client
    [row] = registry.registered(client, "hot_rack")
    assert row.state == "live"
    model = registry.fetch(client, "hot_rack", row.version)
    assert model.version == row.version
    with pytest.raises(RackpulseError, match="no earlier"):
        registry.rollback(client, "hot_rack")
    # A second training on more minutes takes over, keeps the commissioning offsets, and one
    # command goes back.
    second = train(client, played.settings, "hot_rack", played.window(74))
    registry.promote(client, "hot_rack", second.version, by="operator", reason="test")
    newer = registry.fetch(client, "hot_rack", second.version)
    for name, base in model.baselines.items():
        assert newer.baselines[name].offset.items() >= base.offset.items()
    assert registry.live_version(client, "hot_rack") == second.version
    assert registry.rollback(client, "hot_rack") == row.version
    assert registry.live_version(client, "hot_rack") == row.version


def test_bytes_that_were_changed_in_the_registry_are_refused(played: Played) -> None:
    client = played.client
    [first, *_] = registry.registered(client, "congested_link")
    client.command(
        "INSERT INTO telemetry.model_version SELECT * REPLACE ('changed' AS version,"
        " base64Encode('something else') AS artefact) FROM (SELECT * FROM telemetry.model_version"
        " WHERE detector = 'congested_link' AND version = {v:String})",
        parameters={"v": first.version},
    )
    with pytest.raises(RackpulseError, match="hash"):
        registry.fetch(client, "congested_link", "changed")
    assert len(digest(b"")) == 64


def test_too_little_history_is_said(played: Played) -> None:
    with pytest.raises(RackpulseError, match="45 minutes"):
        train(played.client, played.settings, "hot_rack", played.window(20))
    with pytest.raises(RackpulseError, match="Nothing of cluster"):
        train(played.client, played.settings, "hot_rack", played.window(-60))


def test_the_recorded_set_is_evaluated_beside_the_simple_methods(played: Played) -> None:
    found = evaluate_sets(played.settings, [played.folder])
    for detector in DETECTORS:
        ours = found["total"][detector]["rackpulse"]
        assert (ours["found"], ours["faults"]) == (1, 1)
        assert ours["false_pages"] == ours["repeated_pages"] == 0
        assert ours["cause_right"] == 1.0
        assert {"static rules", "max |z|", "PCA T2+Q", "ECOD", "default forest"} <= set(
            found["total"][detector]
        )


def test_what_was_trained_on_is_not_judged(played: Played) -> None:
    with pytest.raises(RackpulseError, match="was trained on"):
        evaluate_sets(
            played.settings, [played.folder], train_on=[played.folder], baselines=False,
            detectors=["hot_rack"],
        )  # fmt: skip


def test_a_folder_that_is_no_labelled_set_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(evaluate_command, [str(tmp_path)])
    assert isinstance(result.exception, RackpulseError)
    assert "truth.jsonl is missing" in str(result.exception)
