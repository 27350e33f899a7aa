"""InfiniBand: exporters, sysfs trees, UFM, and text of the diagnostic commands."""

from __future__ import annotations

from typing import Any

from tests.collectors.capture_cases.case import Case

FOLDER = "ib/infiniband_exporter"
SWITCH_4, SWITCH_1 = "0x506b4b4e74c92740", "0x7cfe905fa067e5b0"
HCA_1, HCA_2, HCA_LONELY = "0x7cfe90846ecd4bde", "0x7cfe90846ecd4b96", "0x506b4bbdf71d02a6"
# 4-byte words as the command prints them: bytes.
WORDS = 4

RECEIVE_ERRORS = {
    "rcv_looping_errors": 0, "rcv_vl_mapping_errors": 0, "rcv_dlid_mapping_errors": 0,
    "rcv_buffer_overruns": 0, "rcv_malformed_packets": 0, "rcv_local_physical_errors": 0,
}  # fmt: skip


def _receive_errors(guid: str, port: int) -> Case:
    return Case(
        f"{FOLDER}/perfquery-rcv-error-{guid}-{port}.out",
        "perfquery",
        {"ib_port": 1},
        (({"guid": guid, "port": port}, RECEIVE_ERRORS),),
        lacks=("xmit_data_bytes", "rcv_data_bytes"),
    )


def _ibswinfo(name: str, *says: Any, fans: int, **more: Any) -> Case:
    return Case(
        f"{FOLDER}/ibswinfo-{name}.out",
        "ibswinfo",
        {"component": 3 + fans},
        (({"entity_type": "fan", "rows": fans}, {}), *says),
        **more,
    )


CHASSIS, PSU0, PSU1 = (
    {"component_id": "chassis"},
    {"component_id": "psu0"},
    {"component_id": "psu1"},
)
UPTIME_S = 160 * 86_400 + 10 * 3_600 + 38 * 60 + 53

INFINIBAND: tuple[Case, ...] = (
    Case(
        "ib/infiniband_exporter_page.prom",
        "ib_exporter",
        {"ib_port": 9, "component": 23},
        (
            ({"guid": SWITCH_4, "port": 1}, {"xmit_data_bytes": 715166628708940, "side": "switch"}),
            ({"guid": SWITCH_1, "port": 1}, {"xmit_data_bytes": 145192107443712}),
            ({"guid": SWITCH_1, "port": 2}, {"xmit_data_bytes": 104026280056104}),
            ({"manager_id": SWITCH_4, "component_id": "chassis"}, {"temp_c": 53}),
            ({"manager_id": SWITCH_1, "component_id": "chassis"}, {"temp_c": 45}),
            # 1.25e+10 B/s is 100 Gb/s: 4x EDR.
            ({"guid": HCA_1}, {"rate_gbps": 100, "side": "hca", "peer_guid": SWITCH_1}),
            # The adapter that did not answer: who it is, and no counter.
            (
                {"guid": HCA_LONELY},
                {
                    "rate_gbps": 100,
                    "xmit_data_bytes": None,
                    "rcv_data_bytes": None,
                    "symbol_errors": None,
                    "link_downs": None,
                },
            ),
        ),
    ),
    Case(
        "ib/node_exporter_infiniband.prom",
        "node_exporter_ib",
        {"ib_port": 3},
        (
            # The 32-bit legacy counters are neither stored nor added.
            ({"device": "mlx4_0", "port": 1}, {"rcv_data_bytes": 18527668, "rate_gbps": 40}),
            (
                {"device": "i40iw0"},
                {
                    "rate_gbps": 10,
                    "port_state": "active",
                    "rcv_data_bytes": None,
                    "xmit_data_bytes": None,
                    "link_layer": "Ethernet",
                },
            ),
        ),
        refused=("1 x saturated in xmit_wait_ticks",),
    ),
    Case(
        "ib/sysfs_counters_saturated_dump.txt",
        "ib_sysfs",
        {"ib_port": 1},
        (({}, {"rcv_data_bytes": 205128687774249 * WORDS, "quality": "saturated"}),),
        lacks=("link_downs", "excessive_buffer_overruns", "xmit_discards", "xmit_wait_ticks"),
        refused=(
            "1 x saturated in link_downs",
            "1 x saturated in excessive_buffer_overruns",
            "1 x saturated in xmit_discards",
            "1 x saturated in xmit_wait_ticks",
        ),
    ),
    Case(
        "ib/sysfs_h100_8hca.tar.gz",
        "ib_sysfs",
        {"ib_port": 9},
        (
            ({"link_layer": "InfiniBand", "rows": 8}, {"rate_gbps": 400}),
            ({"device": "mlx5_bond_0"}, {"rate_gbps": 200, "link_layer": "Ethernet"}),
            (
                {"device": "mlx5_1"},
                {
                    "rcv_data_bytes": 205128687774249 * WORDS,
                    "link_downs": None,
                    "quality": "saturated",
                },
            ),
        ),
        lacks=("excessive_buffer_overruns",),
        refused=("9 x saturated in excessive_buffer_overruns", "1 x saturated in link_downs"),
    ),
    Case(
        "ib/sysfs_no_pma_grep.txt",
        "ib_sysfs",
        {"ib_port": 1},
        (({"device": "mlx4_0", "port": 1}, {}),),
        lacks=("rcv_data_bytes", "rcv_packets", "rcv_errors", "link_downs"),
        refused=tuple(
            f"1 x not_supported in {column}"
            for column in (
                "excessive_buffer_overruns",
                "link_downs",
                "link_error_recoveries",
                "local_link_integrity_errors",
                "multicast_rcv_packets",
                "multicast_xmit_packets",
                "rcv_constraint_errors",
                "rcv_data_bytes",
                "rcv_errors",
                "rcv_packets",
            )
        ),
    ),
    Case(
        "ib/ibstat_one_port_down.txt",
        "ibstat",
        {"ib_port": 2},
        (
            ({"device": "mlx5_4"}, {"port_state": "active", "rate_gbps": 200}),
            ({"device": "mlx5_2"}, {"port_state": "down", "rate_gbps": None, "lid": None}),
            ({"link_layer": "InfiniBand", "rows": 2}, {}),
        ),
    ),
    Case(
        "ib/ibstatus_roce_ports.txt",
        "ibstat",
        {"ib_port": 2},
        (
            (
                {"link_layer": "Ethernet", "rows": 2},
                {"port_state": "active", "rate_gbps": 400, "lid": None},
            ),
        ),
    ),
    Case(
        "ib/ufm/rest_topx.json",
        "ufm",
        {"ib_port": 2},
        (
            ({"guid": "0x0c42a14687563bd0"}, {"port": 1, "quality": "bytes_are_4x_packets"}),
            ({"guid": "0x0c42a14687563bd1"}, {"port": 2, "quality": "bytes_are_4x_packets"}),
        ),
    ),
    Case(
        "ib/ufm/tfs_plugin_metrics.prom",
        "ufm",
        {"component": 2},
        (
            ({"scrape_ms": 64.626}, {"entity_type": "ufm_telemetry"}),
            ({"scrape_ms": 25.279}, {"entity_type": "ufm_telemetry"}),
        ),
    ),
    Case(
        "ib/ufm/tfs_small_telemetry.json",
        "ufm",
        {"ib_port": 6},
        (
            ({"sampled_at": "2024-03-05T15:25:47.161Z", "rows": 6}, {}),
            ({"port": 23}, {"link_downs": 3}),
            ({"guid": "0x248a07be8c9d19a0", "port": 1}, {"link_downs": 1}),
        ),
    ),
    Case(
        f"{FOLDER}/perfquery-{SWITCH_4}.out",
        "perfquery",
        {"ib_port": 1},
        (
            (
                {"guid": SWITCH_4, "port": 1},
                {
                    "xmit_data_bytes": 178791657177235 * WORDS,
                    "xmit_discards": 20046,
                    "rcv_switch_relay_errors": 7,
                    "link_downs": 1,
                    "xmit_wait_ticks": 41864608,
                },
            ),
        ),
    ),
    Case(f"{FOLDER}/perfquery-{HCA_LONELY}.out", "perfquery"),
    Case(
        f"{FOLDER}/perfquery-{SWITCH_1}.out",
        "perfquery",
        {"ib_port": 2},
        (
            ({"port": 1}, {"guid": SWITCH_1}),
            ({"port": 2}, {"guid": SWITCH_1, "xmit_data_bytes": 26006570014026 * WORDS}),
        ),
    ),
    Case(
        f"{FOLDER}/perfquery-{HCA_2}.out",
        "perfquery",
        {"ib_port": 1},
        (({"guid": HCA_2}, {"rcv_data_bytes": 148901607811540}),),
    ),
    Case(
        f"{FOLDER}/perfquery-{HCA_1}.out",
        "perfquery",
        {"ib_port": 1},
        (
            (
                {"guid": HCA_1},
                {"xmit_data_bytes": 36198369975904, "rcv_data_bytes": 39009938353200},
            ),
        ),
    ),
    _receive_errors(SWITCH_4, 1),
    _receive_errors(SWITCH_1, 1),
    _receive_errors(SWITCH_1, 2),
    _receive_errors(HCA_2, 1),
    _receive_errors(HCA_1, 1),
    _ibswinfo(
        "test1",
        (
            CHASSIS,
            {"temp_c": 45, "uptime_s": UPTIME_S, "health": "Critical", "failed_component": "fans"},
        ),
        (PSU0, {"power_w": 72}),
        (PSU1, {"power_w": 71}),
        fans=8,
    ),
    _ibswinfo(
        "test2",
        (CHASSIS, {"temp_c": 53}),
        (PSU0, {"power_w": 154}),
        (PSU1, {"power_w": 134}),
        fans=9,
    ),
    _ibswinfo(
        "test3",
        (CHASSIS, {"temp_c": 47}),
        (PSU0, {"power_w": 287, "health": "OK"}),
        (PSU1, {"power_w": None, "health": "Critical", "failed_component": "dc_power,fan"}),
        fans=9,
    ),
    _ibswinfo(
        "test1-missing",
        (CHASSIS, {"temp_c": None}),
        (PSU0, {"power_w": None}),
        ({"component_id": "fan1"}, {"fan_rpm": None}),
        fans=8,
    ),
    _ibswinfo(
        "test-err1",
        (PSU0, {"power_w": None}),
        (PSU1, {"power_w": 71}),
        (CHASSIS, {"temp_c": 45}),
        ({"component_id": "fan1"}, {"fan_rpm": 8493}),
        fans=8,
        refused=("1 x not_a_number in power_w",),
    ),
    _ibswinfo(
        "test-err2",
        (CHASSIS, {"temp_c": None}),
        (PSU0, {"power_w": 72}),
        (PSU1, {"power_w": 71}),
        fans=8,
        refused=("1 x not_a_number in temp_c",),
    ),
    _ibswinfo(
        "test-err3",
        ({"component_id": "fan1"}, {"fan_rpm": None}),
        ({"component_id": "fan2"}, {"fan_rpm": 7349}),
        ({"component_id": "fan6"}, {"fan_rpm": 7156}),
        fans=8,
        refused=("1 x not_a_number in fan_rpm",),
    ),
    _ibswinfo(
        "vitals1",
        (CHASSIS, {"uptime_s": 16982312, "temp_c": 73}),
        (PSU0, {"power_w": 92}),
        (PSU1, {"power_w": 102}),
        fans=9,
    ),
)
