"""Building-management points become rows of what they are of."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.collectors.page import Page, Reading
from pipeline.collectors.readers import bms
from pipeline.streams import load_contracts

CONTRACTS = load_contracts()
AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def read(body: bytes, target: str = "bms") -> Reading:
    return bms.read(Page(body, target, AT, "test"), CONTRACTS)


def rows(reading: Reading, stream: str) -> list[dict[str, Any]]:
    return reading.tables[stream].to_pylist() if stream in reading.tables else []


def message(topic: str, age_s: float = 0.0, **payload: Any) -> dict[str, Any]:
    at = AT - timedelta(seconds=age_s)
    stamp = round(at.timestamp() * 1000)
    full = {"timestamp": stamp, "quality": 1, **payload}
    return {"topic": topic, "payload": full, "at_ms": stamp}


def about(kind: str, point: str, path: str, **fields: Any) -> dict[str, Any]:
    return {"topic": f"BMS/v1/PUB/Metadata/{kind}/{point}/{path}", "payload": fields}


def value(kind: str, point: str, path: str, value: Any, **more: Any) -> dict[str, Any]:
    age = more.pop("age_s", 0.0)
    return message(f"BMS/v1/PUB/Value/{kind}/{point}/{path}", age, value=value, **more)


def page(*messages: dict[str, Any]) -> bytes:
    return "\n".join(map(json.dumps, messages)).encode()


def test_single_payload_of_a_capture(captures: Path) -> None:
    body = (captures / "redfish" / "bms" / "cdu_value.json").read_bytes()
    topic = "BMS/v1/PUB/Value/CDU/LiquidTemperature/site1/row3/cdu5"
    (row,) = rows(read(body, topic), "component")
    assert row["temp_c"] == pytest.approx(22.96215)
    assert row["sampled_at"] == datetime(2025, 4, 2, 19, 0, 23, tzinfo=UTC)
    assert row["name"] == "site1/row3/cdu5"
    assert not read(body, topic).rejected


def rack(point: str, reading: Any, **more: Any) -> list[dict[str, Any]]:
    path = f"site1/r7/{point}"
    return [
        about("Rack", point, path, rackLocationId="rack-07", engUnit="x"),
        value("Rack", point, path, reading, **more),
    ]


def test_a_rack() -> None:
    reading = read(
        page(
            *rack("RackLiquidSupplyTemperature", 32.5),
            *rack("RackLiquidReturnTemperature", 44.0),
            *rack("RackLiquidFlow", 50.2),
            *rack("RackLiquidDifferentialPressure", 79.0),
            *rack("RackLiquidDifferentialPressureSp", 80.0),
            *rack("RackControlValvePosition", 63.0),
            *rack("RackPower", 46.9),
            *rack("RackLeakDetect", 0),
        )
    )
    assert not reading.rejected
    (loop,) = rows(reading, "coolant")
    assert (loop["manager_id"], loop["component_type"]) == ("rack-07", "rack_loop")
    assert (loop["supply_temp_c"], loop["return_temp_c"]) == (32.5, 44.0)
    assert loop["flow_lpm"] == pytest.approx(50.2)
    assert (loop["delta_pressure_kpa"], loop["delta_pressure_setpoint_kpa"]) == (79.0, 80.0)
    assert loop["valve_position_percent"] == 63.0
    assert (loop["source"], loop["sampled_at"]) == ("bms", AT)
    kinds = {row["entity_type"]: row for row in rows(reading, "component")}
    assert kinds["rack"]["power_w"] == pytest.approx(46_900)
    assert kinds["leak_detector"]["leak"] is False


def test_a_cdu_by_process_area() -> None:
    def point(name: str, path: str, areas: list[str], reading: float, **fields: Any) -> Any:
        return [
            about("CDU", name, path, objectId="cdu-5", processArea=areas, **fields),
            value("CDU", name, path, reading),
        ]

    reading = read(
        page(
            *point("LiquidTemperature", "c5/t1", ["Secondary", "Supply"], 31.4),
            *point("LiquidTemperature", "c5/t2", ["Secondary", "Return"], 42.0),
            *point("LiquidTemperature", "c5/t3", ["Primary", "Supply"], 14.1),
            *point("LiquidTemperature", "c5/t4", ["Secondary", "Supply"], 32.0, isSetpoint=True),
            *point("LiquidFlow", "c5/f", ["Secondary"], 500.0),
            *point("LiquidPressure", "c5/p1", ["Secondary", "Supply"], 325.0),
            *point("LiquidDifferentialPressure", "c5/d", ["Secondary"], 90.0),
            *point("LiquidDifferentialPressure", "c5/fd", ["Filter"], 5.6),
            *point("PumpSpeed", "c5/pump1", ["Secondary"], 70.0),
            *point("PumpSpeed", "c5/pump2", ["Secondary"], 0.0),
        )
    )
    assert not reading.rejected
    found = {row["component_id"]: row for row in rows(reading, "coolant")}
    secondary = found["BMS/CDU/cdu-5/secondary"]
    assert secondary["component_type"] == "secondary_connector"
    assert secondary["supply_temp_c"] == pytest.approx(31.4)
    assert (secondary["return_temp_c"], secondary["supply_temp_setpoint_c"]) == (42.0, 32.0)
    assert (secondary["flow_lpm"], secondary["supply_pressure_kpa"]) == (500.0, 325.0)
    assert secondary["delta_pressure_kpa"] == 90.0
    assert found["BMS/CDU/cdu-5/primary"]["supply_temp_c"] == pytest.approx(14.1)
    assert found["BMS/CDU/cdu-5/filter"]["filter_pressure_kpa"] == pytest.approx(5.6)
    speeds = [r["pump_speed_percent"] for r in found.values() if r["component_type"] == "pump"]
    assert sorted(speeds) == [0.0, 70.0]
    assert {row["manager_id"] for row in found.values()} == {"cdu-5"}


def test_last_value_is_carried_forward_until_it_is_too_old() -> None:
    fresh = read(page(*rack("RackLiquidFlow", 50.0, age_s=bms.STALE_S - 1)))
    assert rows(fresh, "coolant")[0]["flow_lpm"] == 50.0
    assert rows(fresh, "coolant")[0]["sampled_at"] == AT
    old = read(page(*rack("RackLiquidFlow", 50.0, age_s=bms.STALE_S + 1)))
    assert old.tables == {}
    assert old.rejected["stale", "RackLiquidFlow"] == 1


def test_newest_value_counts_whatever_the_order() -> None:
    reading = read(
        page(
            *rack("RackLiquidFlow", 50.0, age_s=1),
            *rack("RackLiquidFlow", 40.0, age_s=60),
        )
    )
    assert rows(reading, "coolant")[0]["flow_lpm"] == 50.0


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"value": 50.0, "quality": 0}, "bad_quality"),
        ({"value": None}, None),
        ({"value": "Out of range"}, "not_a_number"),
        ({"value": -5}, "out_of_range"),
        ({"value": 4294967295}, "not_set"),
    ],
)
def test_readings_that_are_none(payload: dict[str, Any], reason: str | None) -> None:
    reading = read(page(*rack("RackLiquidFlow", payload.pop("value"), **payload)))
    assert rows(reading, "coolant") == []
    assert [why for why, _ in reading.rejected] == ([reason] if reason else [])


def test_lines_that_are_no_message_cost_themselves() -> None:
    body = b"\n".join(
        [
            b"{", b"[]", b"5", b'{"topic": 5}', b'{"topic": "other/topic", "payload": {}}',
            b'{"topic": "BMS/v1/PUB/Value/Rack/RackLiquidFlow", "payload": {"value": 1}}',
            page(*rack("RackLiquidFlow", 50.0)),
        ]
    )  # fmt: skip
    reading = read(body)
    assert len(rows(reading, "coolant")) == 1
    assert reading.rejected["not_a_message", ""] == 4
    assert reading.rejected["unknown_topic", ""] == 2


@given(
    st.lists(
        st.builds(
            lambda kind, point, path, payload: {
                "topic": f"BMS/v1/PUB/{kind}/{point}/{path}", "payload": payload,
            },
            st.sampled_from(["Value", "Metadata"]),
            st.sampled_from(
                ["Rack/RackLiquidFlow", "Rack/RackPower", "CDU/PumpSpeed", "CDU/LeakDetect",
                 "CDU/LiquidTemperature", "X/LiquidTemperature", "Rack/RackLeakDetect"]
            ),
            st.text(min_size=1, max_size=4),
            st.dictionaries(
                st.sampled_from(["value", "quality", "timestamp", "processArea", "objectId",
                                 "rackLocationId", "isSetpoint"]),
                st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
                | st.lists(st.text(max_size=9), max_size=2),
            ),
        ),
        max_size=6,
    )
)  # fmt: skip
def test_payloads_of_any_shape(messages: list[dict[str, Any]]) -> None:
    reading = read(page(*messages))
    for table in reading.tables.values():
        for row in table.to_pylist():
            assert 2000 <= row["sampled_at"].year < 2100
