"""Readings that are not readings, in the shapes that management controllers print."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.collectors.redfish.values import is_headroom, seconds
from tests.collectors_redfish.helpers import close, only, read, rows

CONNECTOR = {
    "@odata.id": "/redfish/v1/ThermalEquipment/CDUs/1/SecondaryCoolantConnectors/1",
    "@odata.type": "#CoolantConnector.v1_3_0.CoolantConnector",
    "Name": "loop",
}


@pytest.mark.parametrize(
    ("value", "expected", "reason"),
    [
        ({"Reading": 42}, 42.0, None),
        (42, 42.0, None),
        ("42.5", 42.5, None),
        (None, None, None),
        ({"Reading": None}, None, None),
        ({"DataSourceUri": "/redfish/v1/x"}, None, None),
        ({"Reading": "N/A"}, None, None),
        ({"Reading": "Out of range"}, None, "not_a_number"),
        ({"Reading": 4294967295}, None, "not_set"),
        ({"Reading": 4294967295.0}, None, "not_set"),
        ({"Reading": float("nan")}, None, "not_finite"),
        ({"Reading": float("inf")}, None, "not_finite"),
        ({"Reading": 10**400}, None, "out_of_range"),
        ({"Reading": -3}, None, "out_of_range"),
        ({"Reading": True}, None, "not_a_number"),
        ({"Reading": [42]}, None, "not_a_number"),
        ({"Reading": {"Reading": 42}}, None, "not_a_number"),
    ],
)
def test_flow(value: Any, expected: float | None, reason: str | None) -> None:
    reading = read({**CONNECTOR, "FlowLitersPerMinute": value})
    assert only(reading, "coolant").get("flow_lpm") == expected
    assert dict(reading.rejected) == ({(reason, "flow_lpm"): 1} if reason else {})


@pytest.mark.parametrize("heat", [10**400, float("nan"), 0, -1, True, "3.9", None])
def test_coolant_that_is_none_counts_as_water(heat: Any) -> None:
    # 60 L/min of water and 10 K are 41.6 kW, of oil (1.9 kJ/kgK) about half.
    unit = {
        "@odata.id": "/redfish/v1/ThermalEquipment/CDUs/1",
        "@odata.type": "#CoolingUnit.v1_5_0.CoolingUnit",
        "Coolant": {"SpecificHeatkJoulesPerKgK": heat, "DensityKgPerCubicMeter": 1000},
    }
    loop = {
        **CONNECTOR,
        "FlowLitersPerMinute": 60,
        "DeltaTemperatureCelsius": 10,
        "HeatRemovedkW": 41.6,
    }
    (row,) = rows(read([unit, loop]), "coolant")
    assert row.get("quality") is None


def test_counter_below_zero_is_refused() -> None:
    processor = {
        "@odata.id": "/redfish/v1/Systems/1/Processors/GPU_0/ProcessorMetrics",
        "@odata.type": "#ProcessorMetrics.v1_6_1.ProcessorMetrics",
        "ThermalLimitThrottleDuration": "-PT5S",
        "PowerLimitThrottleDuration": -1e308,
        "OperatingSpeedMHz": 2070,
    }
    reading = read(processor)
    row = only(reading, "component")
    assert (row.get("throttle_thermal_s"), row.get("throttle_power_s")) == (None, None)
    assert reading.rejected.total() == 2


def test_one_bad_reading_costs_itself() -> None:
    reading = read(
        {
            **CONNECTOR,
            "FlowLitersPerMinute": {"Reading": "Out of range"},
            "SupplyTemperatureCelsius": {"Reading": 31.5},
        }
    )
    row = only(reading, "coolant")
    assert (row.get("flow_lpm"), row["supply_temp_c"]) == (None, 31.5)


def test_heat_is_flagged_only_where_it_is_far_off() -> None:
    # 60 L/min of water and 10 K: 60 / 60 000 x 996 x 4.18 x 10 = 41.6 kW.
    def flags(kw: float) -> Any:
        return only(
            read(
                {
                    **CONNECTOR,
                    "FlowLitersPerMinute": 60,
                    "SupplyTemperatureCelsius": 30,
                    "ReturnTemperatureCelsius": 40,
                    "HeatRemovedkW": kw,
                }
            ),
            "coolant",
        ).get("quality")

    assert flags(41.6) is None
    assert flags(35.0) is None
    assert flags(20.0) == "heat_mismatch"
    assert flags(83.0) == "heat_mismatch"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("P6DT23H36M51.224568128S", 603411.224568128),
        ("PT2H43M38.016000000S", 9818.016),
        ("PT0S", 0.0),
        ("P1D", 86400.0),
        ("-PT1M", -60.0),
    ],
)
def test_durations(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "P", "PT", "1h", 5, "P1Y", "PT1.S0", "PT" + "9" * 100 + "S"])
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        seconds(text)


def test_headroom_by_basis_thresholds_or_name() -> None:
    lower = {"LowerCaution": {"Reading": 0.0}, "LowerFatal": {"Reading": -5.0}}
    assert is_headroom("x", {"ReadingBasis": "Headroom"})
    assert is_headroom("x", {"Thresholds": lower})
    assert is_headroom("/redfish/v1/Chassis/HGX_GPU_1/Sensors/HGX_GPU_1_TEMP_1")
    assert is_headroom("/redfish/v1/Chassis/HGX_CPU_0/Sensors/ProcessorModule_0_CPU_0_TempLimit_0")
    assert not is_headroom("/redfish/v1/Chassis/HGX_GPU_1/Sensors/HGX_GPU_1_TEMP_0")
    assert not is_headroom("x", {"Thresholds": {"UpperCaution": {"Reading": 87}}})
    # Coolant may freeze: a lower limit beside an upper one is a temperature.
    assert not is_headroom("x", {"Thresholds": {**lower, "UpperCaution": {"Reading": 87}}})


@pytest.mark.parametrize(
    ("state", "leak"),
    [
        ("OK", False), ("Warning", True), ("Critical", True),
        ("Unavailable", None), ("Absent", None), (None, None),
    ],
)  # fmt: skip
def test_leak_by_detector_state(state: str | None, leak: bool | None) -> None:
    detector = {
        "@odata.id": "/redfish/v1/Chassis/1/LeakDetectors/1",
        "@odata.type": "#LeakDetector.v1_6_0.LeakDetector",
        "Name": "rope",
        "DetectorState": state,
    }
    assert only(read(detector), "component").get("leak") is leak


@pytest.mark.parametrize(("volts", "leak"), [(1.7, False), (1.2, True), (2.1, True)])
def test_leak_by_voltage(volts: float, leak: bool) -> None:
    sensor = {
        "@odata.id": "/redfish/v1/Chassis/1/Sensors/LeakDetector_0",
        "@odata.type": "#Sensor.v1_7_0.Sensor",
        "Id": "LeakDetector_0",
        "ReadingType": "Voltage",
        "Reading": volts,
        "Thresholds": {"LowerCritical": {"Reading": 1.3}, "UpperCritical": {"Reading": 2.0}},
    }
    assert only(read(sensor), "component")["leak"] is leak


# DMTF's schema Sensor prescribes W, J, V, A and Cel; controllers send other multiples as well.
@pytest.mark.parametrize(
    ("kind", "units", "sent", "column", "stored"),
    [
        ("Power", "W", 12.5, "power_w", 12.5),
        ("Power", "kW", 12.5, "power_w", 12_500.0),
        ("Power", "mW", 12_500, "power_w", 12.5),
        ("Power", "watts", 12.5, "power_w", 12.5),
        ("Power", None, 12.5, "power_w", 12.5),
        ("EnergyJoules", "kW.h", 2, "energy_j", 7_200_000.0),
        ("EnergyJoules", "kJ", 2, "energy_j", 2_000.0),
        ("Voltage", "mV", 11_950, "voltage_v", 11.95),
        ("Current", "mA", 850, "current_a", 0.85),
        ("Temperature", "Cel", 41.0, "temp_c", 41.0),
        ("Temperature", "[degF]", 105.8, "temp_c", 41.0),
        ("Temperature", "K", 314.15, "temp_c", 41.0),
        ("Rotational", "{rev}/min", 9_000, "fan_rpm", 9_000.0),
    ],
)
def test_a_sensor_in_another_unit(
    kind: str, units: str | None, sent: float, column: str, stored: float
) -> None:
    sensor = {
        "@odata.id": "/redfish/v1/Chassis/PowerShelf_0/Sensors/Out",
        "@odata.type": "#Sensor.v1_7_0.Sensor",
        "Id": "Out",
        "ReadingType": kind,
        "Reading": sent,
        **({} if units is None else {"ReadingUnits": units}),
    }
    assert only(read(sensor), "component")[column] == close(stored)


def test_leak_by_voltage_in_millivolts() -> None:
    sensor = {
        "@odata.id": "/redfish/v1/Chassis/1/Sensors/LeakDetector_0",
        "@odata.type": "#Sensor.v1_7_0.Sensor",
        "Id": "LeakDetector_0",
        "ReadingType": "Voltage",
        "ReadingUnits": "mV",
        "Reading": 1_200,
        "Thresholds": {"LowerCritical": {"Reading": 1_300}, "UpperCritical": {"Reading": 2_000}},
    }
    row = only(read(sensor), "component")
    assert row["voltage_v"] == close(1.2)
    assert row["leak"] is True


def test_detectors_of_two_chassis_are_two() -> None:
    def detector(chassis: str) -> dict[str, Any]:
        return {
            "@odata.id": f"/redfish/v1/Chassis/{chassis}/LeakDetectors/Rope",
            "@odata.type": "#LeakDetector.v1_6_0.LeakDetector",
            "Id": "Rope",
            "DetectorState": "OK",
        }

    assert len(rows(read([detector("A"), detector("B")]), "component")) == 2


def test_half_characters_are_replaced() -> None:
    body = json.dumps({**CONNECTOR, "Name": "\ud800loop", "FlowLitersPerMinute": 1}).encode()
    body = body.replace(b"Connectors/1", rb"Connectors/\udfff")
    row = only(read(body), "coolant")
    assert row["name"] == "?loop"
    assert row["component_id"].endswith("Connectors/?")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\x00\xff", b"[1, 2]", b"null", b'"x"', b"{}", b"\x1f\x8b\x08broken",
     b"[" * 100_000, b'{"@odata.id": 5, "@odata.type": []}'],
)  # fmt: skip
def test_what_is_no_resource_gives_no_row(body: bytes) -> None:
    reading = read(body)
    assert reading.tables == {}
    assert reading.rejected.total() >= 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["Reading", "SetPoint", "DataSourceUri", "@odata.id", "DeviceName"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)
PROPERTIES = [
    "FlowLitersPerMinute", "SupplyTemperatureCelsius", "HeatRemovedkW", "Coolant", "Links",
    "Status", "Name", "Thresholds", "Reading", "ReadingType", "ReadingBasis", "DetectorState",
    "TemperatureReadingsCelsius", "FanSpeedsPercent", "PowerWatts", "Oem", "LeakDetectorGroups",
    "PolicyReactions", "SettingMax", "ControlType", "TXBytes", "Networking", "UUID", "Id",
]  # fmt: skip
KINDS = [
    "CoolantConnector", "Pump", "CoolingUnit", "LeakDetector", "LeakDetection", "Sensor",
    "EnvironmentMetrics", "ThermalMetrics", "ProcessorMetrics", "Control", "NvidiaPolicy", "Fan",
    "Port", "PortMetrics", "Chassis", "ServiceRoot",
]  # fmt: skip
PATHS = [
    "/redfish/v1/Chassis/HGX_GPU_0", "/redfish/v1/Chassis/1/Sensors/Leak",
    "/redfish/v1/Systems/1/Processors/GPU_0/Ports/NVLink_0/Metrics", "/redfish/v1",
]  # fmt: skip


@given(
    st.lists(
        st.builds(
            lambda kind, path, rest: {
                **rest, "@odata.type": f"#{kind}.v1_0_0.{kind}", "@odata.id": path,
            },
            st.sampled_from(KINDS),
            st.sampled_from(PATHS),
            st.dictionaries(st.sampled_from(PROPERTIES), JSON, max_size=6),
        ),
        max_size=4,
    )
)  # fmt: skip
def test_properties_of_any_shape(resources: list[dict[str, Any]]) -> None:
    reading = read(json.dumps(resources).encode())
    for table in reading.tables.values():
        for row in table.to_pylist():
            for value in row.values():
                assert not isinstance(value, float) or abs(value) < 1e30
