"""The DMTF mockups give the values that their page states."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.collectors_redfish.helpers import close, only, read_file, rows


@pytest.fixture
def folder(captures: Path) -> Path:
    return captures / "redfish" / "dmtf"


def test_primary_connector(folder: Path) -> None:
    row = only(read_file(folder / "cdu_primary_connector.json"), "coolant")
    assert row["component_type"] == "primary_connector"
    assert row["flow_lpm"] == 42
    assert (row["supply_temp_c"], row["return_temp_c"], row["delta_temp_k"]) == (30, 40, 10)
    assert (row["supply_pressure_kpa"], row["return_pressure_kpa"]) == (827, 965)
    assert row["delta_pressure_kpa"] == 138
    assert row["heat_removed_kw"] == close(25.48)
    assert row.get("quality") is None


def test_secondary_connector(folder: Path) -> None:
    row = only(read_file(folder / "cdu_secondary_connector.json"), "coolant")
    assert row["component_type"] == "secondary_connector"
    assert row["flow_lpm"] == 42
    assert (row["supply_temp_c"], row["return_temp_c"], row["delta_temp_k"]) == (30, 48, 18)
    assert (row["supply_pressure_kpa"], row["return_pressure_kpa"]) == (103, 137)
    # Twice as much heat is carried away as is reported: stored as reported, and flagged.
    assert row["heat_removed_kw"] == close(25.31)
    assert row["quality"] == "heat_mismatch"
    assert (row["flow_setpoint_lpm"], row["supply_temp_setpoint_c"]) == (43, 30)
    assert row["delta_pressure_setpoint_kpa"] == 35


def test_pump_1(folder: Path) -> None:
    row = only(read_file(folder / "cdu_pump_1.json"), "coolant")
    assert (row["component_type"], row["pump_speed_percent"]) == ("pump", 38.5)
    assert (row["pump_setpoint_percent"], row["service_hours"]) == (45, 3571)


def test_pump_2_stands_still(folder: Path) -> None:
    row = only(read_file(folder / "cdu_pump_2.json"), "coolant")
    assert row["pump_speed_percent"] == 0
    assert (row["state"], row["health"]) == ("UnavailableOffline", "Critical")


def test_cooling_unit(folder: Path) -> None:
    row = only(read_file(folder / "cdu_unit.json"), "component")
    assert row["entity_type"] == "cdu"
    assert (row["health"], row["health_rollup"]) == ("Warning", "Critical")
    assert row["failed_component"] == "/redfish/v1/ThermalEquipment/CDUs/1/Pumps/2"


def test_connector_whose_delta_pressure_disagrees(folder: Path) -> None:
    row = only(read_file(folder / "coolant_connector_example.json"), "coolant")
    assert row["flow_lpm"] == close(24.3)
    assert (row["supply_temp_c"], row["return_temp_c"]) == (close(14.8), close(38.2))
    assert row["delta_pressure_kpa"] == close(31.7)
    assert row["quality"] == "delta_pressure_mismatch"


def test_leak_detector(folder: Path) -> None:
    row = only(read_file(folder / "leak_detector_moisture.json"), "component")
    assert (row["entity_type"], row["leak"]) == ("leak_detector", False)
    assert row["detector_state"] == "OK"


def test_whole_tree(folder: Path) -> None:
    reading = read_file(folder / "cooling_unit_tree.tar.gz")
    assert not reading.rejected
    coolant = {row["component_id"]: row for row in rows(reading, "coolant")}
    kinds = sorted(row["component_type"] for row in coolant.values())
    assert kinds == [
        "filter", "primary_connector", "pump", "pump", "reservoir", "secondary_connector",
    ]  # fmt: skip
    component = rows(reading, "component")
    assert [row["entity_type"] for row in component].count("cdu") == 1
    leaks = [row for row in component if row["entity_type"] == "leak_detector"]
    # Each of the two stands in two places of the tree.
    assert sorted(row["component_id"].rsplit("/", 1)[1] for row in leaks) == [
        "Moisture", "Overflow",
    ]  # fmt: skip
    assert all(row["leak"] is False for row in leaks)
    # All rows are of the one manager, named by the service's own UUID.
    assert {row["manager_id"] for row in [*coolant.values(), *component]} == {
        "92384634-2938-2342-8820-489239905423"
    }
    # The coolant of the unit (3.974 kJ/kgK, 1030 kg/m3) makes 51.6 kW of 42 L/min and 18 K.
    path = "/redfish/v1/ThermalEquipment/CDUs/1/SecondaryCoolantConnectors/1"
    assert coolant[path]["quality"] == "heat_mismatch"


def test_tree_holds_as_many_resources_as_stated(folder: Path) -> None:
    from pipeline.collectors.redfish.tree import parse

    assert len(parse((folder / "cooling_unit_tree.tar.gz").read_bytes()).fresh) == 73
