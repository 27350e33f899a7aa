"""Real dcgm-exporter pages and dcgmi text give the values that their page states."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.collectors.dcgm_counters import known_fields, left_out, parse_counters
from pipeline.collectors.prometheus_text import parse
from tests.collectors.helpers import CONTRACTS, close, only, read_file, rows, said


@pytest.fixture
def folder(captures: Path) -> Path:
    return captures / "dcgm"


@pytest.fixture
def issues(folder: Path) -> Path:
    return folder / "issues"


def test_gb200_tray(folder: Path) -> None:
    page = parse((folder / "gb200_nvl_4gpu_drv580.prom").read_bytes())
    assert (len(page), len(page.names)) == (76, 19)
    assert not page.rejected
    reading = read_file("dcgm", folder / "gb200_nvl_4gpu_drv580.prom")
    gpus = rows(reading, "gpu")
    assert [gpu["gpu_index"] for gpu in gpus] == [0, 1, 2, 3]
    assert [gpu["power_w"] for gpu in gpus] == [
        close(170.582), close(171.187), close(165.866), close(180.378),
    ]  # fmt: skip
    assert {gpu["mem_clock_mhz"] for gpu in gpus} == {3996}
    assert gpus[0]["fb_free_mib"] == 188399
    assert [gpu["xid_last"] for gpu in gpus] == [0, 0, 0, 0]
    assert [gpu["pci_bus_id"][:8] for gpu in gpus] == [
        "00000008", "00000009", "00000018", "00000019",
    ]  # fmt: skip
    assert {gpu["driver_version"] for gpu in gpus} == {"580.105.05"}
    assert {gpu["model_name"] for gpu in gpus} == {"NVIDIA GB200"}
    # Fields that are not on the page are absent, not 0.
    for missing in ("energy_mj", "gr_engine_active_ratio", "tensor_active_ratio"):
        assert missing not in gpus[0]
    assert not reading.rejected


def test_l40s(folder: Path) -> None:
    assert len(parse((folder / "l40s_drv595.prom").read_bytes())) == 23
    reading = read_file("dcgm", folder / "l40s_drv595.prom")
    gpu = only(reading, "gpu")
    assert gpu["power_w"] == close(35.686)
    assert gpu["gpu_temp_c"] == 32
    assert gpu["energy_mj"] == 5551899580
    assert not [name for name in gpu if name.startswith("nvlink")]
    assert "nvlink" not in reading.tables


def test_l4(folder: Path) -> None:
    page = parse((folder / "l4_1gpu_drv580_full.prom").read_bytes())
    assert (len(page), len(page.names)) == (23, 23)
    reading = read_file("dcgm", folder / "l4_1gpu_drv580_full.prom")
    gpu = only(reading, "gpu")
    assert gpu["energy_mj"] == 4742776
    assert gpu["power_w"] == close(16.365)
    assert gpu["pcie_tx_bytes_per_s"] == 112603
    # The board has no memory sensor: 0 is not a temperature.
    assert "memory_temp_c" not in gpu
    assert reading.rejected == {("no_sensor", "memory_temp_c"): 1}


def test_t4_without_help_and_type(folder: Path) -> None:
    page = parse((folder / "t4_no_help_no_type.prom").read_bytes())
    assert len(page) == 20
    assert not page.types
    gpu = only(read_file("dcgm", folder / "t4_no_help_no_type.prom"), "gpu")
    assert gpu["gpu_util_percent"] == 91
    assert (gpu["fb_used_mib"], gpu["fb_reserved_mib"]) == (5120, 447)
    assert gpu["energy_mj"] == 15152422938


def test_readme_sentinel(folder: Path) -> None:
    reading = read_file("dcgm", folder / "readme_sentinel_old_style.prom")
    assert said(only(reading, "gpu")) == {
        "gpu_uuid": "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52",
        "gpu_instance_id": "",
        "gpu_index": 0,
        "sm_clock_mhz": 139,
        "mem_clock_mhz": 405,
    }
    assert reading.rejected == {("bad_line", ""): 2, ("blank", "memory_temp_c"): 1}
    assert len(parse((folder / "readme_sentinel_old_style.prom").read_bytes())) == 3


def test_a100_mig_indented(folder: Path) -> None:
    assert len(parse((folder / "a100_mig_indented_block.prom").read_bytes())) == 21
    reading = read_file("dcgm", folder / "a100_mig_indented_block.prom")
    whole, instance = rows(reading, "gpu")
    assert whole["gpu_uuid"] == instance["gpu_uuid"]
    assert (whole["gpu_instance_id"], instance["gpu_instance_id"]) == ("", "13")
    assert instance["gpu_instance_profile"] == "1g.5gb"
    assert whole["gr_engine_active_ratio"] == close(0.995630)
    assert instance["gr_engine_active_ratio"] == close(0.995687)
    assert (whole["energy_mj"], instance["energy_mj"]) == (319159391, None)
    assert len(said(instance, "gpu_instance_profile")) == 3 + 4  # identity, index and 4 samples
    assert not reading.rejected


def test_vgpu_with_chatter(folder: Path) -> None:
    assert len(parse((folder / "vgpu_grid_a100_40c.prom").read_bytes())) == 11
    reading = read_file("dcgm", folder / "vgpu_grid_a100_40c.prom")
    gpu = only(reading, "gpu")
    assert gpu["gpu_uuid"].endswith("00000000")
    assert gpu["fb_free_mib"] == 37739
    assert gpu["vgpu_license_status"] == 1
    for missing in ("gpu_temp_c", "memory_temp_c", "power_w", "energy_mj"):
        assert missing not in gpu
    assert reading.rejected["bad_line", ""] == 1


def test_gb200_nvlink_fragment(issues: Path) -> None:
    path = issues / "dcgm-exporter-581_gb200_nvlink_counts_fragment.prom"
    page = parse(path.read_bytes())
    assert (len(page), len(page.names)) == (10, 4)
    reading = read_file("dcgm", path)
    by_index = {gpu["gpu_index"]: gpu for gpu in rows(reading, "gpu")}
    assert sorted(by_index) == [0, 1, 2, 3]
    assert [by_index[n]["nvlink_effective_ber"] for n in range(4)] == [None, None, 0, 0]
    assert {gpu["nvlink_recovery_successful"] for gpu in by_index.values()} == {0}
    assert not reading.rejected


def test_time_slicing_is_one_device_value(issues: Path) -> None:
    reading = read_file("dcgm", issues / "dcgm-exporter-587_timeslice_same_value.prom")
    gpu = only(reading, "gpu")
    assert gpu["gr_engine_active_ratio"] == close(0.714)
    assert "pod" not in said(gpu)  # three pods share it: none of them is its pod
    assert gpu["gpu_uuid"] == "index:dcgm-exporter-587_timeslice_same_value:0"
    assert any("without UUID" in note for note in reading.notes)


def test_mig_with_pod(issues: Path) -> None:
    path = issues / "dcgm-exporter-68_mig_with_pod.prom"
    gpu = only(read_file("dcgm", path, host="real-node"), "gpu")
    assert gpu["gr_engine_active_ratio"] == close(0.959228)
    assert (gpu["gpu_instance_id"], gpu["gpu_instance_profile"]) == ("1", "2g.12gb")
    assert (gpu["namespace"], gpu["pod"]) == ("team-a", "testest-9sxmd")
    assert gpu["container"] == "container-testest-1"
    # The page's Hostname is the exporter's pod; the target list knows better.
    assert gpu["host"] == "real-node"


def test_lower_case_names(issues: Path) -> None:
    gpu = only(read_file("dcgm", issues / "exporter_1.x_lowercase_names.prom"), "gpu")
    assert gpu["gpu_uuid"] == "GPU-9b91ec8e-e162-5f96-924e-6f8e09ce17c2"
    assert (gpu["gpu_temp_c"], gpu["gpu_util_percent"]) == (34, 0)


def test_body_of_http_500(issues: Path) -> None:
    reading = read_file("dcgm", issues / "dcgm-exporter-728_body_http500.txt")
    assert not reading.tables
    assert reading.rejected == {("bad_line", ""): 1}


def test_dmon_all_na(issues: Path) -> None:
    reading = read_file("dcgm_dmon", issues / "DCGM-265_gb200_all_na.txt", host="h")
    gpus = rows(reading, "gpu")
    assert [gpu["gpu_index"] for gpu in gpus] == [0, 1, 2]
    for gpu in gpus:
        assert set(said(gpu)) == {"gpu_uuid", "gpu_instance_id", "gpu_index"}
    assert sum(reading.rejected.values()) == 3 * 13
    assert {reason for reason, _ in reading.rejected} == {"blank"}


def test_dmon_441(issues: Path) -> None:
    reading = read_file("dcgm_dmon", issues / "dcgm-exporter-700_dmon_dcgm4.4.1.txt", host="h")
    gpus = rows(reading, "gpu")
    assert len(gpus) == 3
    assert len({gpu["sampled_at"] for gpu in gpus}) == 3
    for gpu in gpus:  # of the nine fields those that the contract has, all 0
        assert {gpu[name] for name in (
            "xid_last", "sw_power_cap_ns", "sync_boost_ns", "sw_thermal_slowdown_ns",
            "hw_thermal_slowdown_ns", "hw_power_brake_ns",
        )} == {0}  # fmt: skip
    assert not reading.rejected


def test_dmon_453_truncated(issues: Path) -> None:
    path = issues / "dcgm-exporter-700_dmon_dcgm4.5.3_truncated.txt"
    reading = read_file("dcgm_dmon", path, host="h")
    gpu = only(reading, "gpu")
    # The row ends in the middle: nothing is 0.
    assert set(said(gpu)) == {"gpu_uuid", "gpu_instance_id", "gpu_index"}
    assert reading.rejected == {("blank", "xid_last"): 1}


def test_dmon_nvswitches(issues: Path) -> None:
    path = issues / "dcgm-exporter-728_nvswitch_dmon.txt"
    switches = rows(read_file("dcgm_dmon", path, host="h"), "component")
    assert [switch["component_id"] for switch in switches] == [
        "nvswitch0", "nvswitch1", "nvswitch2", "nvswitch3",
    ]  # fmt: skip
    assert [switch["temp_c"] for switch in switches] == [40, 40, 39, 39]
    assert {switch["temp_slowdown_c"] for switch in switches} == {102}
    assert {switch["temp_shutdown_c"] for switch in switches} == {105}


def test_dmon_columns_that_ran_together(issues: Path) -> None:
    path = issues / "gpu-monitoring-tools-4_dmon_overflow.txt"
    reading = read_file("dcgm_dmon", path)
    assert not reading.tables
    assert reading.rejected == {("bad_line", ""): 1}


@pytest.mark.parametrize(
    ("name", "active"),
    [
        ("1.x-compatibility-metrics.csv", 22),
        ("dcp-metrics-included.csv", 26),
        ("default-counters.csv", 26),
    ],
)
def test_counter_files(folder: Path, name: str, active: int) -> None:
    counters, bad = parse_counters((folder / name).read_text())
    assert (len(counters), bad) == (active, [])


def test_types_in_counter_files(folder: Path) -> None:
    def kinds(name: str) -> dict[str, str]:
        counters, _ = parse_counters((folder / name).read_text())
        return {counter.field: counter.kind for counter in counters}

    # The same stem is a total in the old file and a rate in the new ones, so the old name
    # fills no column of rates.
    assert kinds("1.x-compatibility-metrics.csv")["dcgm_fi_prof_pcie_tx_bytes"] == "counter"
    assert kinds("dcp-metrics-included.csv")["DCGM_FI_PROF_PCIE_TX_BYTES"] == "gauge"
    known = known_fields(CONTRACTS)
    assert "dcgm_fi_prof_pcie_tx_bytes" not in known
    assert known["DCGM_FI_PROF_PCIE_TX_BYTES"] == ["gpu.pcie_tx_bytes_per_s"]
    default = kinds("default-counters.csv")
    assert default["DCGM_FI_DEV_XID_ERRORS"] == "gauge"
    assert default["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] == "counter"


def test_the_default_file_leaves_nvlink5_out(folder: Path) -> None:
    counters, _ = parse_counters((folder / "default-counters.csv").read_text())
    missing = left_out(counters, CONTRACTS)
    assert "gpu.nvlink_recovery_events" in missing
    assert "nvlink.link_downs" in missing
    assert "gpu.power_w" not in missing
