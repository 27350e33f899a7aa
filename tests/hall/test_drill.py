"""A drill follows its fault through the pipeline, and says where it was lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pipeline.bus.codec import Header, decode, write_header
from pipeline.clock import ManualClock
from pipeline.errors import RackpulseError
from pipeline.hall.births import draw_births
from pipeline.hall.drill import RACKS, SEED, Drill, DrillReport
from pipeline.hall.fleet import build_fleet
from pipeline.streams import Contracts

_NOW = datetime(2026, 3, 2, 8, 0, 30, tzinfo=UTC)


class _Kafka:
    def __init__(self) -> None:
        self.bodies: list[tuple[str, str, int, bytes]] = []
        self.numbers: dict[str, int] = {}
        self.rows = 0

    def __call__(self, collector_id: str, numbers: dict[str, int]) -> _Kafka:
        assert collector_id.startswith("drill.")
        return self

    def send(self, bodies: Iterable[tuple[str, str, int, bytes]]) -> None:
        self.bodies += list(bodies)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Pipeline:
    """A pipeline that opens its incident three minutes after the fault and closes it later."""

    def __init__(self, contracts: Contracts, kafka: _Kafka, **spoiled: object) -> None:
        self._contracts = contracts
        self._kafka = kafka
        self._spoiled = spoiled
        self.windows: list[datetime] = []
        self.cluster = self._entity = ""

    def stored(self, cluster: str) -> dict[str, int]:
        self.cluster = cluster
        counts: dict[str, int] = {}
        for stream, _, rows, _ in self._kafka.bodies:
            counts[stream] = counts.get(stream, 0) + rows
        return {} if self._spoiled.get("writer") else counts

    def commission(self, cluster: str, start: datetime, end: datetime) -> None:
        assert cluster == self.cluster
        assert not self.windows
        self.healthy = (start, end)

    def judge(self, cluster: str, window_end: datetime) -> list[Mapping[str, Any]]:
        assert cluster == self.cluster
        self.windows.append(window_end)
        if not self._entity:
            rows = _columns(self._contracts, self._kafka, "gpu", "host", "slot", "gpu_uuid")
            self._entity = next(
                str(uuid) for host, slot, uuid in rows if (host, slot) == ("rack-02-tray-05", 1)
            )
        step = {
            "transition_id": f"t{len(self.windows)}", "incident_id": "i1",
            "detector": "straggler_gpu", "entity_id": self._entity, "members": [],
            "cause": self._spoiled.get("cause", "capped_clocks"), "summary": "slow",
        }  # fmt: skip
        if len(self.windows) == 3 and not self._spoiled.get("blind"):
            return [{**step, "transition": "opened"}]
        if len(self.windows) == 4 and self._spoiled.get("nervous"):
            return [{**step, "transition": "opened", "entity_id": "GPU-other"}]
        if len(self.windows) == 18:
            return [{**step, "transition": "resolved"}]
        return []

    def tidy(self, cluster: str, at: datetime) -> None:
        self.tidied = (cluster, at)

    def delivered(self, transition_ids: Iterable[str]) -> bool:
        assert list(transition_ids)
        return not self._spoiled.get("mute")


def _drill(contracts: Contracts, **spoiled: object) -> tuple[DrillReport, _Kafka, _Pipeline]:
    kafka = _Kafka()
    pipeline = _Pipeline(contracts, kafka, **spoiled)
    drill = Drill(contracts, ManualClock(_NOW), kafka, pipeline, timeout_s=20)
    report = drill.run("capped_clocks", "rack-02/tray-05/slot-1", severity=0.2)
    return report, kafka, pipeline


def _columns(
    contracts: Contracts, kafka: _Kafka, stream: str, *names: str
) -> list[tuple[object, ...]]:
    """Some columns of all rows that were sent."""
    found: list[tuple[object, ...]] = []
    for own, _, _, body in kafka.bodies:
        if own == stream:
            header = write_header(Header(stream, 1, "t.1", 1, 1))
            batch = decode(contracts, header, body).batch
            found += zip(*(batch.column(name).to_pylist() for name in names), strict=True)
    return found


def test_a_drill_follows_the_fault_to_the_webhook(contracts: Contracts) -> None:
    report, _, pipeline = _drill(contracts)
    assert report.passed
    assert report.resolved
    assert [stage.name for stage in report.stages] == [
        "sent to Kafka", "stored in ClickHouse", "incident opened", "alert delivered",
        "incident resolved",
    ]  # fmt: skip
    assert 0 < report.minutes_to_detect < 4
    assert pipeline.windows[-1] == datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
    assert report.as_json()["passed"] is True
    # Nobody scores the shadow hall later: what is open there is closed.
    assert pipeline.tidied == (report.cluster, pipeline.windows[-1])
    # The racks are made known from healthy time alone, after the hall has warmed up.
    start = datetime.fromisoformat(report.fault_start)
    assert pipeline.healthy == (start - timedelta(minutes=18), start)


def test_the_shadow_hall_is_a_cluster_of_its_own(contracts: Contracts) -> None:
    report, kafka, _ = _drill(contracts)
    assert report.cluster.startswith("drill-20260302T0800-")
    for stream in {body[0] for body in kafka.bodies}:
        clusters = {cluster for (cluster,) in _columns(contracts, kafka, stream, "cluster")}
        assert clusters == {report.cluster}
    clocks = [
        (at, clock)
        for at, clock, uuid in _columns(
            contracts, kafka, "gpu", "sampled_at", "sm_clock_mhz", "gpu_uuid"
        )
        if uuid == report.entity
    ]
    start = datetime.fromisoformat(report.fault_start.replace("Z", "+00:00"))
    before = [clock for at, clock in clocks if at <= start]
    during = [clock for at, clock in clocks if 60 < (at - start).total_seconds() < 590]
    after = [clock for at, clock in clocks if (at - start).total_seconds() > 700]
    assert min(before) > 1750
    assert max(during) < 1600
    assert min(after) > 1750


@pytest.mark.parametrize(
    ("spoiled", "said"),
    [
        ({"writer": True}, "rackpulse write"),
        ({"blind": True}, "no incident"),
        ({"mute": True}, "rackpulse alerts deliver"),
        ({"cause": "host_interference"}, None),
        ({"nervous": True}, None),
    ],
)
def test_a_drill_fails_where_the_pipeline_does(
    contracts: Contracts, spoiled: dict[str, object], said: str | None
) -> None:
    report, _, _ = _drill(contracts, **spoiled)
    assert not report.passed
    if said:
        assert said in report.failure
    if "nervous" in spoiled:
        assert report.false_pages
    if "cause" in spoiled:
        assert report.found
        assert not report.cause_right


def test_no_gpu_of_the_shadow_hall_was_born_slow() -> None:
    # Live models know no offset of its GPUs: one that is 5 % slow, of which detectors tell, would
    # be a false page in every drill.
    births = draw_births(build_fleet(RACKS, SEED))
    assert births.slow.size == 0
    assert births.boost.min() > 0.96


def test_an_unknown_fault_is_refused_before_anything_is_sent(contracts: Contracts) -> None:
    kafka = _Kafka()
    drill = Drill(contracts, ManualClock(_NOW), kafka, _Pipeline(contracts, kafka))
    with pytest.raises(RackpulseError, match="capped_clocks"):
        drill.run("gremlins")
    with pytest.raises(RackpulseError, match="rack-77"):
        drill.run("capped_clocks", "rack-77/tray-01/slot-0")
    assert not kafka.bodies
