"""A served hall, read by the collectors' readers, gives the Parquet of a recorded one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

from pipeline.clock import ManualClock
from pipeline.collectors.page import Page, Reading
from pipeline.collectors.placement import Placer
from pipeline.collectors.redfish.tree import dump, kind_of
from pipeline.collectors.redfish.walk import CONTEXT, LIVE, next_paths
from pipeline.collectors.registry import reader
from pipeline.hall.app import HallApp
from pipeline.hall.fleet import build_fleet
from pipeline.hall.live import LiveHall
from pipeline.hall.names import FABRICS
from pipeline.hall.record import record
from pipeline.hall.scenario import Scenario
from pipeline.hall.targets import targets_of
from pipeline.streams import Contracts
from pipeline.topology import load_topology
from tests.support.tables import comparable
from tests.support.wait import wait_until

_BASE = "http://127.0.0.1"
_START = datetime(2026, 3, 2, 8, tzinfo=UTC)
_RACKS, _SEED, _MINUTES = 2, 21, 5
_FAULTS = [
    {"cause": "capped_clocks", "entity": "rack-01/tray-02/slot-1", "minutes": 30.0},
    {"cause": "nvlink_flapping", "entity": "rack-01/tray-03/slot-2", "minutes": 30.0},
    {"cause": "bad_cable", "entity": "leaf-r1-1/75", "minutes": 30.0},
    {"cause": "gpu_lost", "entity": "rack-02/tray-01/slot-3", "minutes": 30.0},
]


def _recorded(folder: Path, fabric: str, contracts: Contracts) -> dict[str, pa.Table]:
    """What the recording holds of its last sample, and all of its events."""
    every = 60.0 * _MINUTES
    scenario = Scenario.model_validate(
        {
            "hall": {"racks": _RACKS, "seed": _SEED, "fabric": fabric},
            "time": {"start": _START, "hours": _MINUTES / 60, "sample_s": every,
                     "nvlink_s": every},
            "fault": [{**fault, "at_minute": 1.0} for fault in _FAULTS],
        }
    )  # fmt: skip
    record(scenario, folder, contracts)
    return {name: pq.read_table(folder / f"{name}.parquet") for name in contracts}


def _served(folder: Path, fabric: str, contracts: Contracts, topology: Path) -> dict[str, pa.Table]:
    """What the readers make of all pages of the served hall at that time."""
    clock = ManualClock(_START)
    fleet = build_fleet(_RACKS, _SEED)
    live = LiveHall(fleet, clock, folder / "state.npz")
    readings = []
    with TestClient(HallApp(live).starlette(), base_url=_BASE) as client:
        wait_until(lambda: client.get("/readyz").status_code == 200, "the hall to be ready")
        for fault in _FAULTS:
            assert client.post("/hall/faults", json={**fault, "delay_s": 60}).status_code == 200
        clock.advance(60 * _MINUTES)
        for target in targets_of(fleet, _BASE, fabric=fabric)["targets"]:
            body = _body(client, target)
            page = Page(body, target["name"], clock.now(), fleet.cluster, host=target.get("host"))
            reading = reader(target["kind"]).read(page, contracts)
            assert not reading.rejected, (target["name"], reading.rejected)
            readings.append(reading)
    placer = Placer(contracts, load_topology(topology))
    return {
        name: placer.place(table, name) for name, table in Reading.merged(readings).tables.items()
    }


def _body(client: TestClient, target: dict[str, Any]) -> bytes:
    path = target["url"].removeprefix(_BASE)
    if target["kind"] != "redfish":
        answer = client.get(path)
        assert answer.status_code == 200, target["name"]
        return answer.content
    fresh, context = [], []
    for resource in _walk(client, path):
        kind = kind_of(resource)
        if kind in LIVE:
            fresh.append(resource)
        elif kind in CONTEXT:
            context.append(resource)
    return dump(fresh, context=context, manager_id=target["manager_id"])


def _walk(client: TestClient, base: str) -> Iterator[dict[str, Any]]:
    """Every resource that links lead to, once."""
    wave, seen = ["/redfish/v1"], {"/redfish/v1"}
    while wave:
        answer = client.get(base + wave.pop())
        assert answer.status_code == 200
        resource = json.loads(answer.content)
        yield resource
        fresh = [path for path in next_paths(resource) if path not in seen]
        seen.update(fresh)
        wave += fresh


@pytest.mark.parametrize("fabric", FABRICS)
def test_the_pages_of_a_served_hall_are_the_rows_of_a_recorded_one(
    tmp_path: Path, fabric: str, contracts: Contracts
) -> None:
    wanted = _recorded(tmp_path / "set", fabric, contracts)
    got = _served(tmp_path, fabric, contracts, tmp_path / "set" / "topology.json")
    assert set(got) == set(wanted)
    for name, table in wanted.items():
        a, b = comparable(contracts[name], got[name]), comparable(contracts[name], table)
        assert b.num_rows, name
        assert a.num_rows == b.num_rows, name
        wrong = {
            column: (a[column].to_pylist()[:3], b[column].to_pylist()[:3])
            for column in b.column_names
            if not a[column].equals(b[column])
        }
        assert not wrong, (name, wrong)
