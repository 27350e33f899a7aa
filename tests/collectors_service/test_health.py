"""States of a target, step by step."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from pipeline.collectors.health import FORGET_AFTER_S, MAX_ABSENT_EVENTS, Limits, TargetHealth
from pipeline.collectors.rows import table_of
from pipeline.collectors.targets import Target
from pipeline.streams import load_contracts

CONTRACTS = load_contracts()
BASE = {
    "cluster": "c",
    "source": "s",
    "sampled_at": datetime(2026, 1, 1, tzinfo=UTC),
    "target": "t",
}


def gpus(*uuids: str, power: float = 100.0) -> dict[str, pa.Table]:
    rows = [{**BASE, "gpu_uuid": u, "gpu_instance_id": "", "power_w": power} for u in uuids]
    return {"gpu": table_of(CONTRACTS["gpu"], rows)}


class Watch:
    """A target that is read every ten seconds."""

    def __init__(self, kind: str = "dcgm", limits: Limits | None = None) -> None:
        target = Target(name="t", kind=kind, url="http://h/", interval_s=10)
        self.health = TargetHealth(target, limits or Limits())
        self.now = 1_000.0

    def ok(self, tables: dict[str, pa.Table], **more: Any) -> list[str]:
        self.now += more.pop("after_s", 10.0)
        changes = self.health.read(tables, truncated=more.pop("truncated", False), now=self.now)
        return [change.kind for change in changes]

    def bad(self, reason: str = "timed_out") -> list[str]:
        self.now += 10
        return [change.kind for change in self.health.failed(reason, self.now)]


def test_one_failure_is_a_row_two_are_an_event_three_are_stale() -> None:
    watch = Watch()
    assert watch.ok(gpus("a")) == []
    assert watch.bad() == []
    assert (watch.health.up, watch.health.state) == (False, "timed_out")
    assert watch.bad() == ["target_down"]
    assert watch.bad("refused") == ["target_stale"]
    assert watch.bad("refused") == []
    assert watch.health.stale(watch.now)
    assert watch.ok(gpus("a", power=101)) == ["target_up"]
    assert watch.bad() == []
    assert watch.ok(gpus("a", power=102)) == []


def test_down_from_the_start_is_no_change() -> None:
    watch = Watch()
    assert [watch.bad() for _ in range(10)] == [[]] * 10
    assert watch.ok(gpus("a")) == []


def test_frozen_needs_reads_and_time() -> None:
    quick = Watch(limits=Limits(frozen_after=5, frozen_after_s=60))
    kinds = [quick.ok(gpus("a"), after_s=2.0) for _ in range(25)]
    assert kinds == [[]] * 25  # many reads, but within 50 s: exporters have intervals too
    assert quick.health.state == "ok"
    slow = Watch()
    kinds = [slow.ok(gpus("a")) for _ in range(9)]
    assert kinds == [[]] * 6 + [["target_frozen"]] + [[]] * 2
    assert slow.health.state == "frozen"
    assert slow.ok(gpus("a", power=100.001)) == ["target_moving"]
    assert slow.health.state == "ok"


def test_coolant_that_is_steady_is_given_more_time() -> None:
    row = {**BASE, "manager_id": "m", "component_id": "c", "flow_lpm": 50.0}
    loop = {"coolant": table_of(CONTRACTS["coolant"], [row])}
    watch = Watch("redfish")
    kinds = [watch.ok(loop) for _ in range(32)]
    assert kinds.index(["target_frozen"]) == 30


@pytest.mark.parametrize("stream", ["nvlink", "ib_port"])
def test_counters_of_idle_links_stand_still_and_nothing_is_frozen(stream: str) -> None:
    ids = {"nvlink": {"device_id": "d", "link": 1, "side": "gpu", "tx_bytes": 5},
           "ib_port": {"guid": "0xa", "port": 1, "xmit_data_bytes": 5}}  # fmt: skip
    tables = {stream: table_of(CONTRACTS[stream], [{**BASE, **ids[stream]}])}
    watch = Watch("nmxt" if stream == "nvlink" else "ib_exporter")
    assert [watch.ok(tables) for _ in range(60)] == [[]] * 60


def test_six_of_eight() -> None:
    watch = Watch()
    names = [f"GPU-{n}" for n in range(8)]
    watch.ok(gpus(*names))
    changes = watch.ok(gpus(*names[:6], power=1))
    assert changes == ["series_absent"] * 2
    health = watch.health
    assert (health.state, health.reporting, health.expected) == ("partial", 6, 8)
    assert watch.ok(gpus(*names[:6], power=2)) == []
    # Cut short, a page says nothing about what it does not hold.
    assert watch.ok(gpus(*names[:3], power=3), truncated=True) == ["target_truncated"]
    assert watch.ok(gpus(*names, power=4)) == ["series_returned"] * 2
    assert health.state == "ok"


def test_a_gpu_that_moved_away_is_forgotten() -> None:
    watch = Watch()
    watch.ok(gpus("a", "b"))
    assert watch.ok(gpus("a", power=1)) == ["series_absent"]
    assert watch.ok(gpus("a", power=2), after_s=FORGET_AFTER_S + 1) == []
    assert (watch.health.state, watch.health.expected) == ("ok", 1)


def test_a_whole_switch_that_vanished_is_not_a_thousand_events() -> None:
    rows = [{**BASE, "device_id": "d", "link": n, "side": "switch"} for n in range(500)]
    watch = Watch("nmxt")
    watch.ok({"nvlink": table_of(CONTRACTS["nvlink"], rows)})
    changes = watch.ok({"nvlink": table_of(CONTRACTS["nvlink"], rows[:1])})
    assert changes == ["series_absent"] * (MAX_ABSENT_EVENTS + 1)
