"""The hall over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from pipeline.clock import ManualClock
from pipeline.collectors.targets import Target
from pipeline.hall.app import HallApp
from pipeline.hall.fleet import build_fleet
from pipeline.hall.live import LiveHall
from pipeline.hall.names import FABRICS
from pipeline.hall.targets import targets_of
from tests.support.wait import wait_until

_BASE = "http://127.0.0.1"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 3, 2, 8, 0, 3, tzinfo=UTC))


@pytest.fixture
def client(tmp_path: Path, clock: ManualClock) -> Iterator[TestClient]:
    live = LiveHall(build_fleet(4, 5), clock, tmp_path / "state.npz")
    with TestClient(HallApp(live).starlette(), base_url=_BASE) as client:
        wait_until(lambda: client.get("/readyz").status_code == 200, "the hall to be ready")
        yield client


@pytest.mark.parametrize("fabric", FABRICS)
def test_every_target_answers(client: TestClient, fabric: str) -> None:
    targets = targets_of(build_fleet(4, 5), _BASE, fabric=fabric)["targets"]
    # One reader of the fabric only: else every port would have two rows for each sample.
    assert {target["kind"] for target in targets} & set(FABRICS) == {fabric}
    assert len({target["name"] for target in targets}) == len(targets)
    for entry in targets:
        target = Target.model_validate(entry)
        assert target.url is not None
        path = target.url.removeprefix(_BASE)
        answer = client.get(path + "/redfish/v1" if target.kind == "redfish" else path)
        assert answer.status_code == 200, target.name
        if target.kind == "kmsg":
            assert answer.text == ""
        else:
            assert answer.text


def test_a_seed_draws_three_faults_once(client: TestClient) -> None:
    first = client.post("/hall/faults", json={"seed": 3}).json()
    assert len(first["faults"]) == 3
    for fault in first["faults"]:
        assert {"start", "detector", "cause", "entity", "severity", "visible_from"} <= set(fault)
    assert client.post("/hall/faults", json={"seed": 3}).json() == first
    state = client.get("/hall/state").json()
    assert [fault["entity"] for fault in state["faults"]] == [
        fault["entity"] for fault in first["faults"]
    ]
    assert state["ready"]


def test_a_named_fault_begins_and_ends(client: TestClient) -> None:
    asked = {"cause": "supply_drift", "entity": "rack-02", "severity": 8, "minutes": 30}
    fault = client.post("/hall/faults", json=asked).json()["faults"][0]
    assert fault["entity"] == "rack-02"
    assert fault["detector"] == "hot_rack"
    ended = client.delete(f"/hall/faults/{fault['number']}").json()["faults"][0]
    assert ended["end"] < fault["end"]


@pytest.mark.parametrize(
    "body",
    [
        {}, {"cause": "supply_drift"}, {"cause": "bad_luck", "entity": "rack-01"},
        {"cause": "supply_drift", "entity": "rack-99"}, {"seed": "x"}, {"oops": 1},
        {"cause": "supply_drift", "entity": "rack-01", "severity": -1},
        {"cause": "supply_drift", "entity": "rack-01", "ramp_s": 1e308},
        {"cause": "supply_drift", "entity": "rack-01", "minutes": 1e308}, {"seed": -1},
    ],
)  # fmt: skip
def test_a_wrong_request_is_answered_with_the_reason(
    client: TestClient, body: dict[str, object]
) -> None:
    answer = client.post("/hall/faults", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]
    assert client.get("/hall/state").json()["faults"] == []


def test_a_body_that_is_too_deep_is_refused(client: TestClient) -> None:
    answer = client.post("/hall/faults", content="[" * 100_000)
    assert answer.status_code == 400


def test_foreign_hosts_and_origins_are_refused(client: TestClient) -> None:
    assert client.get("/hall/state", headers={"host": "evil.example"}).status_code == 403
    origin = {"origin": "http://evil.example"}
    assert client.post("/hall/faults", json={"seed": 1}, headers=origin).status_code == 403


def test_what_is_not_there_is_not_found(client: TestClient) -> None:
    for path in (
        "/dcgm/rack-77-tray-01/metrics", "/nmxt/rack-01/10/metrics", "/nmxt/rack-01/0/metrics",
        "/ib/rail-9/metrics", "/redfish/rack-01/redfish/v1/Nothing", "/redfish/x/redfish/v1",
        "/kmsg/nobody", "/ufm/rail-9/telemetry",
    ):  # fmt: skip
        assert client.get(path).status_code == 404, path


def test_energy_of_a_page_rises_evenly_between_steps(
    client: TestClient, clock: ManualClock
) -> None:
    def energy() -> int:
        page = client.get("/dcgm/rack-01-tray-01/metrics").text
        line = next(
            line for line in page.splitlines()
            if line.startswith("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu=\"0\"")
        )  # fmt: skip
        return int(line.rsplit(" ", 1)[1])

    clock.advance(10)
    values = []
    for _ in range(30):
        values.append(energy())
        clock.advance(1)
    rises = [b - a for a, b in pairwise(values)]
    # mJ in a second: between an idle GPU's and the power limit, at every second.
    assert min(rises) > 100_000
    assert max(rises) < 1_500_000
