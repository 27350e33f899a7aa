from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client

from pipeline.detection.spec import models_folder
from pipeline.fleet_page import queries
from tests.alerts.helpers import insert, row
from tests.fleet_page.rows import fill
from tests.support.store import RunningStore

NOW = datetime.now(UTC).replace(microsecond=0)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with RunningStore(tmp_path_factory.mktemp("fleet")) as store:
        store.migrate()
        with store.client() as found:
            yield found


@pytest.fixture(scope="module")
def empty(client: Client) -> dict[str, Any]:
    return queries.fleet_state(client, "main", NOW)


@pytest.fixture(scope="module")
def state(client: Client, empty: dict[str, Any]) -> dict[str, Any]:
    fill(client, NOW)
    # Another cluster's rack is nobody's business here.
    client.insert(
        "telemetry.gpu",
        [["drill", NOW, NOW, "rack-99", "GPU-x"]],
        column_names=["cluster", "sampled_at", "ingested_at", "rack", "gpu_uuid"],
    )
    return queries.fleet_state(client, "main", NOW)


def test_an_empty_store_is_no_error(empty: dict[str, Any]) -> None:
    assert empty["racks"] == empty["incidents"] == []
    assert [(item["detector"], item["state"]) for item in empty["detectors"]] == [
        (path.parent.name, "untrained") for path in sorted(models_folder().glob("*/detector.toml"))
    ]
    assert [item["rows_per_s"] for item in empty["streams"]] == [0.0] * 6
    assert empty["alerts"] == {"delivered": 0, "failed": 0, "gave_up": 0}


def test_racks_say_what_is_there_and_what_is_missing(state: dict[str, Any]) -> None:
    racks = {item["rack"]: item for item in state["racks"]}
    assert list(racks) == [f"rack-{number:02d}" for number in range(1, 9)]
    first = racks["rack-01"]
    assert (first["gpus"], first["gpus_expected"], first["age_s"]) == (72, 72, 4.0)
    assert first["gpu_power_kw"] == 79.3  # 72 x 1101 W
    assert first["hottest_c"] == pytest.approx(50.5, abs=0.06)  # 47 + 71/20
    assert first["sm_active_percent"] == 91.0
    # Of two views of one loop the connector's counts: flows must not be added up.
    for rack in (first, racks["rack-02"]):
        assert (rack["supply_c"], rack["flow_lpm"], rack["delta_k"]) == (32.0, 61.5, 9.1)
    assert first["jobs"] == ["train-1"]
    lost = racks["rack-07"]
    assert (lost["gpus"], lost["gpus_expected"]) == (70, 72)


def test_the_gravest_incident_colours_its_rack(state: dict[str, Any]) -> None:
    status = {item["rack"]: item["status"] for item in state["racks"]}
    assert status["rack-03"] == "warning"
    assert status["rack-05"] == "critical"
    assert status["rack-01"] == "ok"
    silenced = [item["rack"] for item in state["racks"] if item["silenced"]]
    assert silenced == ["rack-08"]


def test_a_rack_without_fresh_rows_is_silent(client: Client, state: dict[str, Any]) -> None:
    later = queries.fleet_state(client, "main", NOW + timedelta(minutes=5))
    status = {item["rack"]: item["status"] for item in later["racks"]}
    assert status["rack-01"] == "silent"
    assert status["rack-05"] == "critical"


def test_incidents_stand_by_gravity_and_drills_last(state: dict[str, Any]) -> None:
    assert [item["id"] for item in state["incidents"]] == ["inc-2", "inc-1", "inc-3"]
    hot = state["incidents"][0]
    assert (hot["name"], hot["severity"], hot["cause"]) == (
        "rack-05", "critical", "blocked_quick_disconnect",
    )  # fmt: skip
    assert hot["evidence"][0]["value"] == 41.0
    assert hot["location"] == {"rack": "rack-05", "cdu": "cdu-2"}
    assert len(hot["members"]) == 11
    assert hot["age_s"] == 540.0
    assert state["incidents"][2]["drill"] is True
    assert [item["id"] for item in state["resolved"]] == ["inc-4"]
    assert state["resolved"][0]["age_s"] == 1800.0
    json.dumps(state, allow_nan=False)


def test_one_incident_has_its_history(client: Client, state: dict[str, Any]) -> None:
    found = queries.incident(client, "inc-4", NOW)
    assert found is not None
    assert [item["transition"] for item in found["history"]] == ["opened", "resolved"]
    assert found["state"] == "resolved"
    assert queries.incident(client, "' OR 1=1 --", NOW) is None


def test_detectors_say_what_was_trained_and_scored(state: dict[str, Any]) -> None:
    by_name = {item["detector"]: item for item in state["detectors"]}
    straggler = by_name["straggler_gpu"]
    assert straggler["state"] == "live"
    assert straggler["run"]["verdicts"] == 570
    assert straggler["run"]["lag_s"] == 17
    link = by_name["congested_link"]
    assert (link["state"], link["run"]) == ("candidate", None)
    assert link["reason"] == "recall 0.71 is below 0.90"


def test_the_live_model_is_shown_even_when_a_newer_one_waits(
    client: Client, state: dict[str, Any]
) -> None:
    newer = NOW - timedelta(minutes=1)
    client.insert(
        "telemetry.model_version",
        [["hot_rack", "newer", newer]],
        column_names=["detector", "version", "created_at"],
    )
    client.insert(
        "telemetry.model_transition",
        [["hot_rack", "newer", "candidate", newer]],
        column_names=["detector", "version", "state", "at"],
    )
    found = {item["detector"]: item for item in queries.detectors(client, "main")}
    assert found["hot_rack"]["version"] == "20261130T0300-1a2b3c"


def test_silences_and_streams(state: dict[str, Any]) -> None:
    (silence,) = state["silences"]
    assert (silence["scope"], silence["entity"], silence["active"], silence["by"]) == (
        "rack", "rack-08", True, "kim",
    )  # fmt: skip
    rates = {item["stream"]: item["rows_per_s"] for item in state["streams"]}
    assert rates["gpu"] == 9.6  # 574 rows in a minute
    assert rates["nvlink"] == 0.0


def test_broken_json_in_an_incident_costs_that_part_only(client: Client) -> None:
    insert(client, row(transition_id="odd", incident_id="odd", evidence="{", location="[]"))
    found = queries.incident(client, "odd", NOW)
    assert found is not None
    assert found["evidence"] == []
    assert found["location"] == {}
