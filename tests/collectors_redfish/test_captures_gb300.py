"""A GB300 tray's controller gives the values that its page states."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.collectors_redfish.helpers import close, only, read_file, rows


@pytest.fixture
def folder(captures: Path) -> Path:
    return captures / "redfish" / "gb300"


def test_gpu_thermal_metrics_keep_headroom_apart(folder: Path) -> None:
    row = only(read_file(folder / "gpu1_thermal_metrics.json"), "component")
    assert row["entity_type"] == "gpu_bmc"
    assert row["memory_temp_c"] == 33.046875
    assert row["temp_c"] == 33.21875
    assert row["temp_margin_c"] == 53.8125


def test_chassis_thermal_metrics(folder: Path) -> None:
    found = rows(read_file(folder / "chassis_thermal_metrics.json"), "component")
    assert len(found) == 16
    temps = {row["name"]: row["temp_c"] for row in found if row["temp_c"] is not None}
    assert len(temps) == 8
    assert temps["BMC_0_DCSCM_Temp_0"] == 31.625
    adapters = [row["temp_c"] for row in found if row["entity_type"] == "connectx"]
    assert adapters == [48, 49, 51, 50]


def test_cpu_headroom_without_a_basis(folder: Path) -> None:
    row = only(read_file(folder / "cpu0_templimit_sensor.json"), "component")
    assert row["temp_margin_c"] == close(51.313)
    assert row.get("temp_c") is None


def test_gpu_headroom_sensor(folder: Path) -> None:
    row = only(read_file(folder / "gpu1_temp1_headroom_sensor.json"), "component")
    assert row["temp_margin_c"] == 53.78125
    assert row.get("temp_c") is None


def test_clock_limit_that_is_none(folder: Path) -> None:
    reading = read_file(folder / "gpu0_clocklimit_sentinels.json")
    row = only(reading, "component")
    assert row.get("clock_limit_min_mhz") is None
    assert row.get("clock_limit_max_mhz") is None
    assert (row["clock_allowed_min_mhz"], row["clock_allowed_max_mhz"]) == (120, 2070)
    assert reading.rejected["not_set", "clock_limit_max_mhz"] == 1


def test_nvlink_0_metrics(folder: Path) -> None:
    reading = read_file(folder / "gpu0_nvlink0_metrics.json")
    row = only(reading, "nvlink")
    assert (row["link"], row["side"]) == (0, "gpu")
    assert (row["rx_bytes"], row["tx_bytes"]) == (9460179851686, 9386274516626)
    assert row.get("tx_wait_ticks") is None
    assert reading.rejected["saturated", "tx_wait_ticks"] == 1
    assert row["link_downs"] == 12
    assert (row["link_downs_intentional"], row["link_downs_unintentional"]) == (11, 1)
    assert row["effective_ber"] == 0
    assert row["raw_ber"] == 9e-06


def test_nvlink_16_metrics(folder: Path) -> None:
    row = only(read_file(folder / "gpu0_nvlink16_metrics.json"), "nvlink")
    assert (row["link"], row["rx_bytes"], row["link_downs"]) == (16, 9463506293498, 1)
    assert row["raw_ber"] == close(9e-04)


def test_nvlink_port(folder: Path) -> None:
    row = only(read_file(folder / "gpu0_nvlink0_port.json"), "nvlink")
    assert (row["link_state"], row["speed_gbps"], row["max_speed_gbps"]) == ("up", 400, 425)


def test_power_smoothing_that_is_not_set(folder: Path) -> None:
    reading = read_file(folder / "gpu0_power_smoothing_sentinels.json")
    assert reading.tables == {}
    assert sum(n for (why, _), n in reading.rejected.items() if why == "not_set") == 4


def test_processor_metrics(folder: Path) -> None:
    row = only(read_file(folder / "gpu0_processor_metrics.json"), "component")
    assert row["throttle_sw_s"] == 603411.224568128
    assert row["sm_busy_s"] == 9818.016
    assert (row["clock_mhz"], row["pcie_l0_recoveries"]) == (2070, 4)


def test_environment_metrics(folder: Path) -> None:
    row = only(read_file(folder / "gpu1_environment_metrics.json"), "component")
    assert row["energy_j"] == 235209458.569
    assert row["power_w"] == close(238.549)


def test_memory_metrics(folder: Path) -> None:
    row = only(read_file(folder / "gpu1_memory_metrics.json"), "component")
    assert (row["memory_used_percent"], row["row_remap_banks_max"]) == (91, 5952)
    assert row["clock_mhz"] == 3996


def test_leak_detection_alone_tells_no_leak(folder: Path) -> None:
    assert read_file(folder / "leak_detection.json").tables == {}


def test_leak_detector(folder: Path) -> None:
    row = only(read_file(folder / "leak_detector_coldplate.json"), "component")
    assert (row["leak"], row["detector_state"]) == (False, "OK")


def test_collection_of_four_detectors(folder: Path) -> None:
    from pipeline.collectors.redfish.tree import parse
    from pipeline.collectors.redfish.walk import next_paths

    path = folder / "leak_detectors_collection.json"
    (collection,) = parse(path.read_bytes()).fresh.values()
    assert len(list(next_paths(collection))) == 4
    assert read_file(path).tables == {}


def test_leak_policy_is_off(folder: Path) -> None:
    row = only(read_file(folder / "leak_policy.json"), "component")
    assert (row["policy_reaction"], row["policy_enabled"]) == ("HardPowerOff", False)


def test_leak_voltage_inside_its_thresholds(folder: Path) -> None:
    row = only(read_file(folder / "leak_sensor_voltage.json"), "component")
    assert row["entity_type"] == "leak_detector"
    assert row["voltage_v"] == close(1.7265)
    assert row["leak"] is False


def test_absent_sensor_is_not_critical(folder: Path) -> None:
    row = only(read_file(folder / "ssd_sensor_absent.json"), "component")
    assert row["state"] == "Absent"
    assert row.get("health") is None
    assert row.get("temp_c") is None


def test_whole_tray(folder: Path) -> None:
    reading = read_file(folder / "telemetry_tree.tar.gz")
    links = rows(reading, "nvlink")
    assert len(links) == 4 * 18
    assert len({row["device_id"] for row in links}) == 4
    # Metrics of GPU 0's eighteen links and of two of GPU 1; the others' are missing.
    assert sum(row["rx_bytes"] is not None for row in links) == 20
    assert all(row["link_state"] == "up" for row in links)
    component = rows(reading, "component")
    leaks = [row for row in component if row["entity_type"] == "leak_detector"]
    assert len(leaks) == 4
    assert all(row["leak"] is False and 1.3 < row["voltage_v"] < 2.0 for row in leaks)
    gpus = [row for row in component if row["entity_type"] == "gpu_bmc"]
    assert len(gpus) == 4
    for gpu in gpus:
        assert 30 < gpu["temp_c"] < 40 < gpu["temp_margin_c"]
        assert (gpu["clock_mhz"], gpu["power_limit_w"]) == (2070, 1400)
    cpus = [row for row in component if row["entity_type"] == "grace_cpu"]
    # The whole CPU's sensor, not the 6 W of one of its voltage rails.
    assert [round(row["power_w"], 3) for row in cpus] == [86.718, 90.494]
    tray = next(row for row in component if row["component_id"].endswith("/Chassis_0"))
    assert tray["power_w"] == close(1349.263802)


def test_tree_holds_as_many_resources_as_stated(folder: Path) -> None:
    from pipeline.collectors.redfish.tree import parse

    assert len(parse((folder / "telemetry_tree.tar.gz").read_bytes()).fresh) == 853
