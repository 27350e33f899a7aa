"""Management controllers and building management."""

from __future__ import annotations

from typing import Any

from tests.collectors.capture_cases.case import Case

SATURATED = "1 x saturated in tx_wait_ticks"


def _one(name: str, stream: str, says: dict[str, Any], **more: Any) -> Case:
    return Case(f"redfish/{name}", "redfish", {stream: 1}, (({}, says),), **more)


REDFISH: tuple[Case, ...] = (
    _one(
        "dmtf/cdu_primary_connector.json",
        "coolant",
        {
            "flow_lpm": 42,
            "supply_temp_c": 30,
            "return_temp_c": 40,
            "delta_temp_k": 10,
            "supply_pressure_kpa": 827,
            "return_pressure_kpa": 965,
            "delta_pressure_kpa": 138,
            "heat_removed_kw": 25.48,
        },
    ),
    _one(
        "dmtf/cdu_secondary_connector.json",
        "coolant",
        {
            "flow_lpm": 42,
            "supply_temp_c": 30,
            "return_temp_c": 48,
            "delta_temp_k": 18,
            "supply_pressure_kpa": 103,
            "return_pressure_kpa": 137,
            "heat_removed_kw": 25.31,
            "quality": "heat_mismatch",
        },
    ),
    _one(
        "dmtf/coolant_connector_example.json",
        "coolant",
        {
            "flow_lpm": 24.3,
            "supply_temp_c": 14.8,
            "return_temp_c": 38.2,
            "delta_pressure_kpa": 31.7,
            "quality": "delta_pressure_mismatch",
        },
    ),
    _one("dmtf/cdu_pump_1.json", "coolant", {"pump_speed_percent": 38.5}),
    # It stands still, which is a reading.
    _one(
        "dmtf/cdu_pump_2.json",
        "coolant",
        {"pump_speed_percent": 0, "state": "UnavailableOffline", "health": "Critical"},
    ),
    _one(
        "dmtf/cdu_unit.json",
        "component",
        {
            "entity_type": "cdu",
            "health": "Warning",
            "health_rollup": "Critical",
            "failed_component": "/redfish/v1/ThermalEquipment/CDUs/1/Pumps/2",
        },
    ),
    _one("dmtf/leak_detector_moisture.json", "component", {"leak": False, "detector_state": "OK"}),
    Case(
        "redfish/dmtf/cooling_unit_tree.tar.gz",
        "redfish",
        {"coolant": 6, "component": 3},
        (
            ({"entity_type": "cdu"}, {"health": "Warning"}),
            ({"component_type": "pump", "rows": 2}, {}),
            # Each stands in two places of the tree.
            ({"entity_type": "leak_detector", "rows": 2}, {"leak": False}),
            ({"name": "Moisture Leak Detector"}, {}),
            ({"name": "Fluid Level Overflow"}, {}),
        ),
    ),
    Case(
        "redfish/gb300/chassis_thermal_metrics.json",
        "redfish",
        {"component": 16},
        (
            ({"name": "BMC_0_DCSCM_Temp_0"}, {"temp_c": 31.625}),
            ({"name": "IO_Board_0_CX8_0_Temp"}, {"temp_c": 48}),
            ({"name": "IO_Board_0_CX8_1_Temp"}, {"temp_c": 49}),
            ({"name": "IO_Board_1_CX8_0_Temp"}, {"temp_c": 51}),
            ({"name": "IO_Board_1_CX8_1_Temp"}, {"temp_c": 50}),
            ({"temp_c": None, "rows": 8}, {}),
        ),
    ),
    _one(
        "gb300/cpu0_templimit_sensor.json",
        "component",
        {"entity_type": "grace_cpu", "temp_margin_c": 51.313},
        lacks=("temp_c",),
    ),
    _one(
        "gb300/gpu0_clocklimit_sentinels.json",
        "component",
        {"clock_allowed_min_mhz": 120, "clock_allowed_max_mhz": 2070},
        lacks=("clock_limit_min_mhz", "clock_limit_max_mhz"),
        refused=("1 x not_set in clock_limit_min_mhz", "1 x not_set in clock_limit_max_mhz"),
    ),
    _one(
        "gb300/gpu0_nvlink0_metrics.json",
        "nvlink",
        {
            "rx_bytes": 9460179851686,
            "tx_bytes": 9386274516626,
            "link_downs": 12,
            "link_downs_intentional": 11,
            "link_downs_unintentional": 1,
            "effective_ber": 0,
            "raw_ber": 9e-06,
        },
        lacks=("tx_wait_ticks",),
        refused=(SATURATED,),
    ),
    _one(
        "gb300/gpu0_nvlink0_port.json",
        "nvlink",
        {"link_state": "up", "speed_gbps": 400, "max_speed_gbps": 425},
    ),
    _one(
        "gb300/gpu0_nvlink16_metrics.json",
        "nvlink",
        {"rx_bytes": 9463506293498, "link_downs": 1, "raw_ber": 9e-04},
        lacks=("tx_wait_ticks",),
        refused=(SATURATED,),
    ),
    Case(
        "redfish/gb300/gpu0_power_smoothing_sentinels.json",
        "redfish",
        refused=(
            "1 x not_set in power_floor_percent",
            "1 x not_set in power_ramp_down_w_per_s",
            "1 x not_set in power_ramp_hysteresis_s",
            "1 x not_set in power_ramp_up_w_per_s",
        ),
    ),
    _one(
        "gb300/gpu0_processor_metrics.json",
        "component",
        {
            "throttle_sw_s": 603411.224568128,
            "sm_busy_s": 9818.016,
            "clock_mhz": 2070,
            "pcie_l0_recoveries": 4,
        },
    ),
    _one(
        "gb300/gpu1_environment_metrics.json",
        "component",
        {"energy_j": 235209458.569, "power_w": 238.549},
    ),
    _one(
        "gb300/gpu1_memory_metrics.json",
        "component",
        {"memory_used_percent": 91, "row_remap_banks_max": 5952, "clock_mhz": 3996},
    ),
    _one(
        "gb300/gpu1_temp1_headroom_sensor.json",
        "component",
        {"temp_margin_c": 53.78125},
        lacks=("temp_c",),
    ),
    _one(
        "gb300/gpu1_thermal_metrics.json",
        "component",
        {"memory_temp_c": 33.046875, "temp_c": 33.21875, "temp_margin_c": 53.8125},
    ),
    # Unknown until its detectors are read.
    Case("redfish/gb300/leak_detection.json", "redfish"),
    _one(
        "gb300/leak_detector_coldplate.json", "component", {"leak": False, "detector_state": "OK"}
    ),
    # Four links and no reading; the whole tray shows the four detectors.
    Case("redfish/gb300/leak_detectors_collection.json", "redfish"),
    _one(
        "gb300/leak_policy.json",
        "component",
        {"policy_reaction": "HardPowerOff", "policy_enabled": False},
    ),
    _one("gb300/leak_sensor_voltage.json", "component", {"voltage_v": 1.7265, "leak": False}),
    _one(
        "gb300/ssd_sensor_absent.json",
        "component",
        {"state": "Absent"},
        lacks=("temp_c", "health"),
    ),
    Case(
        "redfish/gb300/telemetry_tree.tar.gz",
        "redfish",
        {"nvlink": 72, "component": 83},
        (
            ({"entity_type": "gpu_bmc", "rows": 4}, {"power_limit_w": 1400}),
            ({"entity_type": "leak_detector", "rows": 4}, {"leak": False}),
            (
                {"device_id": "GPU-d80babf7-f38b-5e5f-911e-234fff6461f7", "rows": 18},
                {"link_state": "up"},
            ),
            # 52 links answer 404 for their metrics.
            ({"stream": "nvlink", "rx_bytes": None, "rows": 52}, {"link_state": "up"}),
        ),
        lacks=("tx_wait_ticks", "clock_limit_max_mhz"),
        refused=(
            "20 x saturated in tx_wait_ticks",
            "4 x not_set in clock_limit_max_mhz",
            "4 x not_set in clock_limit_min_mhz",
            "4 x out_of_range in raw_ber",
            "2 x part_of_component in power_w",
        ),
    ),
    # The topic says what the value is of; a file has none, so it is given.
    Case(
        "redfish/bms/cdu_value.json",
        "bms",
        {"component": 1},
        (({"sampled_at": "2025-04-02T19:00:23.000Z"}, {"temp_c": 22.96215}),),
        args=("--target", "BMS/v1/PUB/Value/CDU/LiquidTemperature/site1/row3/cdu5"),
    ),
)
