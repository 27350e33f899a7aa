"""Exporter pages and dcgmi text of GPUs, NVLink pages of switch trays."""

from __future__ import annotations

from tests.collectors.capture_cases.case import Case

NO_SENSOR = "1 x no_sensor in memory_temp_c"

GPU: tuple[Case, ...] = (
    Case(
        "dcgm/a100_mig_indented_block.prom",
        "dcgm",
        {"gpu": 2},
        (
            (
                {"gpu_instance_id": ""},
                {
                    "gr_engine_active_ratio": 0.99563,
                    "energy_mj": 319159391,
                    "power_w": 409.692,
                },
            ),
            # The instance has its own activity, and the energy of the GPU is counted once.
            (
                {"gpu_instance_id": "13"},
                {
                    "gr_engine_active_ratio": 0.995687,
                    "gpu_instance_profile": "1g.5gb",
                    "energy_mj": None,
                },
            ),
        ),
    ),
    Case(
        "dcgm/gb200_nvl_4gpu_drv580.prom",
        "dcgm",
        {"gpu": 4},
        (
            ({"gpu_index": 0}, {"power_w": 170.582, "fb_free_mib": 188399}),
            ({"gpu_index": 1}, {"power_w": 171.187}),
            ({"gpu_index": 2}, {"power_w": 165.866}),
            ({"gpu_index": 3}, {"power_w": 180.378}),
            (
                {"model_name": "NVIDIA GB200", "rows": 4},
                {"mem_clock_mhz": 3996, "xid_last": 0, "driver_version": "580.105.05"},
            ),
        ),
        lacks=("energy_mj", "gr_engine_active_ratio", "sm_active_ratio", "tensor_active_ratio"),
    ),
    Case(
        "dcgm/l40s_drv595.prom",
        "dcgm",
        {"gpu": 1},
        (({}, {"power_w": 35.686, "gpu_temp_c": 32, "energy_mj": 5551899580}),),
        lacks=("nvlink_bandwidth_total", "nvlink_tx_bytes", "nvlink_rx_bytes"),
        refused=(NO_SENSOR,),
    ),
    Case(
        "dcgm/l4_1gpu_drv580_full.prom",
        "dcgm",
        {"gpu": 1},
        (({}, {"energy_mj": 4742776, "power_w": 16.365, "pcie_tx_bytes_per_s": 112603}),),
        lacks=("memory_temp_c",),
        refused=(NO_SENSOR,),
    ),
    Case(
        "dcgm/readme_sentinel_old_style.prom",
        "dcgm",
        {"gpu": 1},
        (({}, {"sm_clock_mhz": 139, "mem_clock_mhz": 405}),),
        lacks=("memory_temp_c",),
        refused=("2 x bad_line", "1 x blank in memory_temp_c"),
    ),
    Case(
        "dcgm/t4_no_help_no_type.prom",
        "dcgm",
        {"gpu": 1},
        (
            (
                {},
                {
                    "gpu_util_percent": 91,
                    "fb_used_mib": 5120,
                    "fb_reserved_mib": 447,
                    "energy_mj": 15152422938,
                },
            ),
        ),
        lacks=("memory_temp_c",),
        refused=(NO_SENSOR,),
    ),
    Case(
        "dcgm/vgpu_grid_a100_40c.prom",
        "dcgm",
        {"gpu": 1},
        (({}, {"fb_free_mib": 37739, "vgpu_license_status": 1}),),
        lacks=("gpu_temp_c", "memory_temp_c", "power_w", "energy_mj"),
        refused=("1 x bad_line", NO_SENSOR),
    ),
    Case(
        "dcgm/issues/dcgm-exporter-581_gb200_nvlink_counts_fragment.prom",
        "dcgm",
        {"gpu": 4},
        (
            ({"gpu_index": 0}, {"nvlink_recovery_successful": 0, "nvlink_effective_ber": None}),
            ({"gpu_index": 1}, {"nvlink_recovery_successful": 0, "nvlink_effective_ber": None}),
            ({"gpu_index": 2}, {"nvlink_recovery_successful": 0, "nvlink_effective_ber": 0}),
            ({"gpu_index": 3}, {"nvlink_recovery_successful": 0, "nvlink_effective_ber": 0}),
        ),
    ),
    Case(
        "dcgm/issues/dcgm-exporter-587_timeslice_same_value.prom",
        "dcgm",
        {"gpu": 1},
        (({}, {"gr_engine_active_ratio": 0.714}),),
        lacks=("pod",),
        refused=("2 x duplicate in gr_engine_active_ratio",),
    ),
    Case(
        "dcgm/issues/dcgm-exporter-68_mig_with_pod.prom",
        "dcgm",
        {"gpu": 1},
        (
            (
                {"gpu_instance_id": "1"},
                {
                    "gr_engine_active_ratio": 0.959228,
                    "gpu_instance_profile": "2g.12gb",
                    "pod": "testest-9sxmd",
                },
            ),
        ),
    ),
    Case(
        "dcgm/issues/exporter_1.x_lowercase_names.prom",
        "dcgm",
        {"gpu": 1},
        (({}, {"gpu_temp_c": 34, "gpu_util_percent": 0}),),
    ),
    Case("dcgm/issues/dcgm-exporter-728_body_http500.txt", "dcgm", refused=("1 x bad_line",)),
    Case(
        "dcgm/issues/DCGM-265_gb200_all_na.txt",
        "dcgm_dmon",
        {"gpu": 3},
        (
            ({"gpu_index": 0}, {}),
            ({"gpu_index": 1}, {}),
            ({"gpu_index": 2}, {}),
        ),
        lacks=("nvlink_tx_bytes", "nvlink_rx_bytes", "nvlink_tx_packets", "ecc_sbe_volatile"),
        refused=tuple(
            f"3 x blank in {column}"
            for column in (
                "ecc_sbe_volatile",
                "nvlink_integrity_errors",
                "nvlink_recovery_successful",
                "nvlink_rx_bytes",
                "nvlink_rx_dropped_packets",
                "nvlink_rx_errors",
                "nvlink_rx_general_errors",
                "nvlink_rx_malformed_packets",
                "nvlink_rx_packets",
                "nvlink_rx_remote_errors",
                "nvlink_tx_bytes",
                "nvlink_tx_discards",
                "nvlink_tx_packets",
            )
        ),
    ),
    # GNVERR, VIUTL and VMUSG (NVLink error, vGPU) have no column.
    Case(
        "dcgm/issues/dcgm-exporter-700_dmon_dcgm4.4.1.txt",
        "dcgm_dmon",
        {"gpu": 3},
        (
            (
                {"gpu_index": 0, "rows": 3},
                {
                    "xid_last": 0,
                    "sw_power_cap_ns": 0,
                    "sync_boost_ns": 0,
                    "sw_thermal_slowdown_ns": 0,
                    "hw_thermal_slowdown_ns": 0,
                    "hw_power_brake_ns": 0,
                },
            ),
        ),
    ),
    Case(
        "dcgm/issues/dcgm-exporter-700_dmon_dcgm4.5.3_truncated.txt",
        "dcgm_dmon",
        {"gpu": 1},
        (({"gpu_index": 0}, {}),),
        lacks=(
            "xid_last",
            "sw_power_cap_ns",
            "sync_boost_ns",
            "sw_thermal_slowdown_ns",
            "hw_thermal_slowdown_ns",
            "hw_power_brake_ns",
        ),
        refused=("1 x blank in xid_last",),
    ),
    Case(
        "dcgm/issues/dcgm-exporter-728_nvswitch_dmon.txt",
        "dcgm_dmon",
        {"component": 4},
        (
            ({"name": "nvswitch0"}, {"temp_c": 40}),
            ({"name": "nvswitch1"}, {"temp_c": 40}),
            ({"name": "nvswitch2"}, {"temp_c": 39}),
            ({"name": "nvswitch3"}, {"temp_c": 39}),
            (
                {"entity_type": "nvswitch", "rows": 4},
                {"temp_slowdown_c": 102, "temp_shutdown_c": 105},
            ),
        ),
        refused=("7 x bad_line",),
    ),
    Case(
        "dcgm/issues/gpu-monitoring-tools-4_dmon_overflow.txt",
        "dcgm_dmon",
        refused=("1 x bad_line",),
    ),
    # A bit error rate of 1.5e-254 says "no errors yet" and is stored as 0.
    Case(
        "nmxt/parser_test_inputs.prom",
        "nmxt",
        {"nvlink": 3},
        (
            ({"device_id": "0x8e2161ddc2b3af64", "link": 2}, {"effective_ber": 0}),
            ({"link": 1}, {"effective_ber": 0, "symbol_errors": 0, "link_downs": 5}),
            ({"device_id": "parser_test_inputs.prom", "link": 2}, {"effective_ber": 1e-10}),
        ),
        refused=("1 x late_metadata",),
    ),
    Case(
        "nmxt/port_state_labels.prom",
        "nmxt",
        {"nvlink": 1},
        (({"link": 11}, {"effective_ber": 0, "down_blame": "remote_phy", "side": "switch"}),),
    ),
)
