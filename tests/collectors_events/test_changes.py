"""An event is a change, not a level; the first sample is a baseline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pipeline.collectors.changes import LEAK_HOLD_OFF, Changes
from pipeline.collectors.rows import table_of
from pipeline.streams import load_contracts

CONTRACTS = load_contracts()
AT = datetime(2026, 1, 1, tzinfo=UTC)
IDENTITY: dict[str, dict[str, Any]] = {
    "gpu": {"gpu_uuid": "GPU-1", "gpu_instance_id": ""},
    "nvlink": {"device_id": "GPU-1", "link": 3, "side": "gpu"},
    "ib_port": {"guid": "0xa", "port": 7},
    "component": {"manager_id": "cdu-1", "component_id": "/redfish/v1/x", "entity_type": "cdu"},
    "coolant": {"manager_id": "cdu-1", "component_id": "/redfish/v1/p", "component_type": "pump"},
}


class Feed:
    def __init__(self) -> None:
        self.changes = Changes()
        self.time = AT
        self.racks: dict[str, str] = {}

    def __call__(
        self, stream: str, *rows: dict[str, Any], target: str = "t", after_s: float = 10
    ) -> list[dict[str, Any]]:
        self.time += timedelta(seconds=after_s)
        base = {"cluster": "c", "source": "s", "sampled_at": self.time, "target": target}
        full = [{**base, **IDENTITY[stream], **row} for row in rows]
        table = table_of(CONTRACTS[stream], full)
        return self.changes.look(target, stream, table, self.racks.get)


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["kind"] for event in events]


def test_xid_that_stays_for_days_is_one_event() -> None:
    feed = Feed()
    assert feed("gpu", {"xid_last": 31}) == []
    assert feed("gpu", {"xid_last": 31}) == []
    (event,) = feed("gpu", {"xid_last": 79, "host": "h1", "pci_bus_id": "0:1:0"})
    assert (event["kind"], event["code"], event["severity"]) == ("xid", "79", "critical")
    assert (event["previous"], event["current"]) == ("31", "79")
    assert (event["entity_kind"], event["entity_id"], event["host"]) == ("gpu", "GPU-1", "h1")
    assert event["sampled_at"] == feed.time
    for _ in range(5):
        assert feed("gpu", {"xid_last": 79}) == []
    # The exporter was started again: no Xid, then the same one: that is new.
    assert feed("gpu", {"xid_last": 0}) == []
    assert kinds(feed("gpu", {"xid_last": 79})) == ["xid"]


def test_throttle_bits_that_are_faults() -> None:
    feed = Feed()
    assert feed("gpu", {"clocks_event_reasons": 0x1}) == []
    # Power cap and idle come and go all day.
    assert feed("gpu", {"clocks_event_reasons": 0x4}) == []
    (event,) = feed("gpu", {"clocks_event_reasons": 0x44})
    assert (event["kind"], event["code"], event["severity"]) == (
        "clocks_event_change", "0x40", "warning",
    )  # fmt: skip
    assert "HW thermal" in event["message"]
    assert feed("gpu", {"clocks_event_reasons": 0x40}) == []
    (event,) = feed("gpu", {"clocks_event_reasons": 0x80})
    assert (event["previous"], event["current"]) == ("0x40", "0x80")
    (event,) = feed("gpu", {"clocks_event_reasons": 0x4})
    assert (event["code"], event["severity"]) == ("0x0", "info")


def test_missing_readings_change_nothing() -> None:
    feed = Feed()
    feed("gpu", {"xid_last": 31, "clocks_event_reasons": 0})
    assert feed("gpu", {"xid_last": None, "clocks_event_reasons": None}) == []
    assert feed("gpu", {"xid_last": 31, "clocks_event_reasons": 0}) == []
    assert feed("gpu", {"gpu_temp_c": 50.0}) == []
    assert feed("gpu", {"xid_last": 31, "clocks_event_reasons": 0}) == []


@pytest.mark.parametrize(
    ("stream", "column", "kind"),
    [
        ("nvlink", "link_downs", "link_down"),
        ("nvlink", "recovery_events", "link_recovered"),
        ("ib_port", "link_downs", "link_down"),
        ("ib_port", "link_error_recoveries", "link_recovered"),
        ("gpu", "ecc_dbe_volatile", "ecc_uncorrectable"),
    ],
)
def test_counters_tell_their_increase(stream: str, column: str, kind: str) -> None:
    feed = Feed()
    assert feed(stream, {column: 505}) == []
    assert feed(stream, {column: 505}) == []
    (event,) = feed(stream, {column: 508})
    assert (event["kind"], event["previous"], event["current"]) == (kind, "505", "508")
    assert event["message"].endswith(": 3")
    # A reset is a new baseline, not a rise.
    assert feed(stream, {column: 0}) == []
    assert kinds(feed(stream, {column: 1})) == [kind]


def test_link_that_was_taken_down_on_purpose_is_no_event() -> None:
    feed = Feed()
    feed("nvlink", {"link_downs": 11, "link_downs_unintentional": 0})
    assert feed("nvlink", {"link_downs": 12, "link_downs_unintentional": 0}) == []
    assert kinds(feed("nvlink", {"link_downs": 13, "link_downs_unintentional": 1})) == ["link_down"]


def test_link_states() -> None:
    feed = Feed()
    feed("ib_port", {"port_state": "active"})
    (down,) = feed("ib_port", {"port_state": "down"})
    assert (down["kind"], down["entity_id"]) == ("link_down", "0xa/7")
    assert feed("ib_port", {"port_state": "init"}) == []
    assert kinds(feed("ib_port", {"port_state": "active"})) == ["link_up"]


def test_roce_links_are_no_infiniband_links() -> None:
    feed = Feed()
    ethernet = {"guid": "0xb", "link_layer": "Ethernet"}
    fabric = {"guid": "0xa", "link_layer": "InfiniBand"}
    feed("ib_port", {**ethernet, "port_state": "active"}, {**fabric, "port_state": "active"})
    events = feed("ib_port", {**ethernet, "port_state": "down"}, {**fabric, "port_state": "down"})
    assert [event["entity_id"] for event in events] == ["0xa/7"]


def test_entities_are_told_apart_whatever_their_order() -> None:
    feed = Feed()
    feed("gpu", {"gpu_uuid": "GPU-1", "xid_last": 0}, {"gpu_uuid": "GPU-2", "xid_last": 13})
    (event,) = feed(
        "gpu", {"gpu_uuid": "GPU-2", "xid_last": 13}, {"gpu_uuid": "GPU-1", "xid_last": 48}
    )
    assert event["entity_id"] == "GPU-1"
    # A GPU that was not there before begins with a baseline; one that comes back goes on.
    assert feed("gpu", {"gpu_uuid": "GPU-3", "xid_last": 79}) == []
    assert feed("gpu", {"gpu_uuid": "GPU-2", "xid_last": 13}) == []


def test_pages_that_say_the_same_change_nothing_between_two_that_differ() -> None:
    feed = Feed()
    up, down = {"link_state": "up", "link_downs": 1}, {"link_state": "down", "link_downs": None}
    for row in (up, up, down):
        events = feed("nvlink", row)
    assert kinds(events) == ["link_down"]
    assert [feed("nvlink", down) for _ in range(3)] == [[]] * 3
    # What was missing meanwhile goes on from what it was.
    assert kinds(feed("nvlink", {"link_state": "up", "link_downs": 2})) == ["link_up", "link_down"]


def test_targets_do_not_mix_and_are_forgotten() -> None:
    feed = Feed()
    feed("gpu", {"xid_last": 0}, target="a")
    assert feed("gpu", {"xid_last": 79}, target="b") == []
    feed.changes.forget("a")
    assert feed("gpu", {"xid_last": 79}, target="a") == []


def leak(wet: bool | None, manager: str = "tray-1") -> dict[str, Any]:
    return {
        "manager_id": manager, "component_id": "/LeakDetectors/1", "entity_type": "leak_detector",
        "leak": wet,
    }  # fmt: skip


def test_leak_that_clears_within_the_hold_off_is_only_suspected() -> None:
    feed = Feed()
    feed("component", leak(False))
    assert kinds(feed("component", leak(True))) == ["leak_suspected"]
    assert feed("component", leak(True), after_s=60) == []
    assert kinds(feed("component", leak(False))) == ["leak_cleared"]


def test_leak_that_stays_is_one_event() -> None:
    feed = Feed()
    feed("component", leak(False))
    assert kinds(feed("component", leak(True))) == ["leak_suspected"]
    (event,) = feed("component", leak(True), after_s=LEAK_HOLD_OFF.total_seconds())
    assert (event["kind"], event["severity"]) == ("leak", "critical")
    assert feed("component", leak(True)) == []
    # Not knowing is not dry.
    assert feed("component", leak(None)) == []
    assert kinds(feed("component", leak(False))) == ["leak_cleared"]


def test_two_trays_of_a_rack_are_believed_at_once() -> None:
    feed = Feed()
    feed.racks = {"tray-1": "rack-01", "tray-2": "rack-01", "tray-3": "rack-02"}
    for tray in feed.racks:
        feed("component", leak(False, tray))
    assert kinds(feed("component", leak(True, "tray-1"))) == ["leak_suspected"]
    assert kinds(feed("component", leak(True, "tray-3"))) == ["leak_suspected"]
    assert kinds(feed("component", leak(True, "tray-2"))) == ["leak"]
    assert kinds(feed("component", leak(True, "tray-1"))) == ["leak"]


def test_a_leak_at_the_first_sample_waits_too() -> None:
    feed = Feed()
    assert feed("component", leak(True)) == []
    assert kinds(feed("component", leak(True), after_s=100)) == ["leak"]


def test_health() -> None:
    feed = Feed()
    feed("coolant", {"health": "OK"})
    (event,) = feed("coolant", {"health": "Critical"})
    assert (event["kind"], event["severity"]) == ("health_change", "critical")
    assert event["entity_id"] == "cdu-1/redfish/v1/p"
    assert feed("coolant", {"health": None}) == []
    assert kinds(feed("coolant", {"health": "OK"})) == ["health_change"]


def test_profiling_that_went_blank_is_told_for_that_gpu() -> None:
    feed = Feed()
    busy = {"gpu_uuid": "GPU-1", "sm_active_ratio": 0.7, "gpu_temp_c": 60.0}
    blank = {"gpu_uuid": "GPU-1", "sm_active_ratio": None, "gpu_temp_c": 60.0}
    other = {"gpu_uuid": "GPU-2", "sm_active_ratio": 0.7, "gpu_temp_c": 61.0}
    # This one never had any: its exporter does not ask for them.
    never = {"gpu_uuid": "GPU-3", "sm_active_ratio": None, "gpu_temp_c": 62.0}
    feed("gpu", busy, other, never)
    assert feed("gpu", blank, other, never) == []
    assert feed("gpu", blank, other, never) == []
    (event,) = feed("gpu", blank, other, never)
    assert (event["kind"], event["entity_id"]) == ("profiling_lost", "GPU-1")
    assert feed("gpu", blank, other, never) == []
    assert kinds(feed("gpu", busy, other, never)) == ["profiling_returned"]
    # One sample without them is no loss.
    feed("gpu", blank, other, never)
    assert feed("gpu", busy, other, never) == []
