"""dcgm-exporter pages: every entity, every naming, and the faults of the field."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pipeline.detection.spec import get_spec
from tests.collectors.helpers import close, only, read, rows

A, B = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"


def line(field: str, value: object, uuid: str = A, index: int = 0, more: str = "") -> str:
    return (
        f'{field}{{gpu="{index}",UUID="{uuid}",pci_bus_id="00000008:0{index}:00.0",'
        f'device="nvidia{index}",modelName="NVIDIA GB300",Hostname="h1"{more}}} {value}\n'
    )


@pytest.mark.parametrize(
    "name",
    [
        "DCGM_FI_DEV_BOARD_POWER_WATTS", "DCGM_FI_DEV_POWER_USAGE", "dcgm_power_usage",
    ],
)  # fmt: skip
def test_every_name_of_a_field(name: str) -> None:
    assert only(read("dcgm", line(name, "170.582000")), "gpu")["power_w"] == close(170.582)


def test_gpu_links_as_new_exporters_print_them() -> None:
    labels = f'nvlink="{{n}}",gpu="2",gpu_uuid="{A}",device="nvidia2",model_name="m",hostname="h1"'
    page = "".join(
        f"DCGM_FI_DEV_NVLINK_PPCNT_PHYSICAL_LINK_DOWN_COUNTER{{{labels.format(n=n)}}} {n}\n"
        f"DCGM_FI_DEV_NVLINK_PPCNT_IBPC_PORT_XMIT_WAIT{{{labels.format(n=n)}}} {10 * n}\n"
        f"DCGM_FI_DEV_NVLINK_GET_STATE{{{labels.format(n=n)}}} {n % 2}\n"
        for n in range(3)
    )
    reading = read("dcgm", page)
    links = rows(reading, "nvlink")
    assert [(link["device_id"], link["link"], link["side"]) for link in links] == [
        (A, n, "gpu") for n in range(3)
    ]
    assert [link["link_downs"] for link in links] == [0, 1, 2]
    assert [link["tx_wait_ticks"] for link in links] == [0, 10, 20]
    assert [link["link_state"] for link in links] == ["down", "up", "down"]
    assert {link["gpu_index"] for link in links} == {2}
    assert {link["host"] for link in links} == {"h1"}
    assert "gpu" not in reading.tables
    assert not reading.rejected


def test_switch_links() -> None:
    page = (
        'DCGM_FI_DEV_NVSWITCH_LINK_FLIT_ERRORS{nvlink="4",nvswitch="nvswitch1",Hostname="h1"} 7\n'
        'DCGM_FI_DEV_NVSWITCH_LINK_FLIT_ERROR_TOTAL{nvlink="5",nvswitch="1",hostname="h1"} 8\n'
    )
    links = rows(read("dcgm", page), "nvlink")
    assert [(link["device_id"], link["link"], link["side"]) for link in links] == [
        ("h1/nvswitch1", 4, "switch"), ("h1/nvswitch1", 5, "switch"),
    ]  # fmt: skip
    assert [link["crc_flit_errors"] for link in links] == [7, 8]


def test_fields_with_the_link_in_their_name() -> None:
    page = (
        line("DCGM_FI_PROF_NVLINK_L0_TX_BYTES", 100)
        + line("DCGM_FI_PROF_NVLINK_L17_TX_BYTES", 200)
        + line("DCGM_FI_PROF_NVLINK_L17_RX_BYTES", 300)
        + line("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L3", 4)
        + line("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_L3_TOTAL", 4)
    )
    links = {link["link"]: link for link in rows(read("dcgm", page), "nvlink")}
    assert links[0]["tx_bytes_per_s"] == 100
    assert (links[17]["tx_bytes_per_s"], links[17]["rx_bytes_per_s"]) == (200, 300)
    assert links[3]["crc_flit_errors"] == 4


def test_switches_and_grace_cpus() -> None:
    page = (
        'DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT{nvswitch="nvswitch0",Hostname="h1"} 41\n'
        'DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS{nvswitch="nvswitch0",Hostname="h1"} 12028\n'
        'DCGM_FI_DEV_CPU_UTIL_TOTAL{cpu="0",Hostname="h1"} 0.75\n'
        'DCGM_FI_DEV_CPU_POWER_UTIL_CURRENT{cpu="0",Hostname="h1"} 212.5\n'
        'DCGM_FI_DEV_CPU_TEMP_CELSIUS{cpu="1",Hostname="h1"} 51\n'
        'DCGM_FI_DEV_CPU_CLOCK_CURRENT{cpu="1",Hostname="h1"} 3200000\n'
        'DCGM_FI_DEV_CPU_UTIL_TOTAL{cpucore="3",cpu="0",Hostname="h1"} 0.5\n'
    )
    reading = read("dcgm", page)
    parts = {part["component_id"]: part for part in rows(reading, "component")}
    assert sorted(parts) == ["cpu0", "cpu1", "nvswitch0"]
    assert {part["manager_id"] for part in parts.values()} == {"h1"}
    assert (parts["nvswitch0"]["temp_c"], parts["nvswitch0"]["sxid_fatal"]) == (41, 12028)
    assert (parts["cpu0"]["util_percent"], parts["cpu0"]["power_w"]) == (75, 212.5)
    assert (parts["cpu1"]["temp_c"], parts["cpu1"]["clock_mhz"]) == (51, 3200)
    assert parts["cpu0"]["entity_type"] == "grace_cpu"
    assert not reading.rejected


def test_four_switches_under_one_name() -> None:
    page = "".join(
        f'DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT{{nvswitch="nvswitch0",Hostname="h1"}} {value}\n'
        for value in (40, 40, 39, 39)
    )
    reading = read("dcgm", page)
    assert only(reading, "component")["temp_c"] == 40
    assert reading.rejected == {("duplicate", "temp_c"): 1, ("contradiction", "temp_c"): 2}


def test_labels_of_jobs_pods_and_platform() -> None:
    more = (
        ',hpc_job="4711",job_role="pp-3",namespace="n",pod="p",container="c",'
        'DCGM_FI_DRIVER_VERSION="580.1",DCGM_FI_DEV_PLATFORM_TRAY_INDEX="7",'
        'DCGM_FI_DEV_PLATFORM_CHASSIS_SLOT_NUMBER="12",DCGM_FI_DEV_FABRIC_CLUSTER_UUID="u",'
        'DCGM_FI_DEV_PLATFORM_CHASSIS_SERIAL_NUMBER="<<<NULL>>>"'
    )
    gpu = only(read("dcgm", line("DCGM_FI_DEV_SM_CLOCK", 1000, more=more)), "gpu")
    assert (gpu["job_id"], gpu["job_role"]) == ("4711", "pp-3")
    assert (gpu["namespace"], gpu["pod"], gpu["container"]) == ("n", "p", "c")
    assert gpu["driver_version"] == "580.1"
    assert (gpu["tray_index"], gpu["chassis_slot"]) == (7, 12)
    assert gpu["fabric_cluster_uuid"] == "u"
    assert gpu.get("chassis_serial") is None


def test_the_type_on_the_page_does_not_matter() -> None:
    page = "# TYPE DCGM_FI_DEV_POWER_USAGE counter\n" + line("DCGM_FI_DEV_POWER_USAGE", 5)
    assert only(read("dcgm", page), "gpu")["power_w"] == 5


# -- faults of the field


@pytest.mark.parametrize(
    "blank", ["9223372036854775794", "9.223372036854775807e+18", "140737488355328.0", "2147483634"]
)
def test_one_blank_field_loses_nothing_else(blank: str) -> None:
    page = line("DCGM_FI_PROF_SM_ACTIVE", blank) + line("DCGM_FI_DEV_GPU_TEMP", 40)
    page += line("DCGM_FI_PROF_SM_ACTIVE", "0.5", B, 1)
    reading = read("dcgm", page)
    first, second = rows(reading, "gpu")
    assert (first["sm_active_ratio"], first["gpu_temp_c"]) == (None, 40)
    assert second["sm_active_ratio"] == 0.5
    assert reading.rejected == {("blank", "sm_active_ratio"): 1}


@pytest.mark.parametrize("spike", ["4294967295", "187000", "1000", "-1", "100.5"])
def test_utilisation_out_of_range(spike: str) -> None:
    page = line("DCGM_FI_DEV_GPU_UTIL", spike) + line("DCGM_FI_DEV_GPU_UTIL", 0, B, 1)
    reading = read("dcgm", page)
    assert [gpu["gpu_util_percent"] for gpu in rows(reading, "gpu")] == [None, 0]
    assert reading.rejected == {("out_of_range", "gpu_util_percent"): 1}


def test_nvlink_traffic_of_zero_while_busy_is_stored_and_pages_nobody() -> None:
    """Some drivers print 0 under full load, and a job of one GPU sends nothing: nobody can tell."""
    page = line("DCGM_FI_PROF_NVLINK_TX_BYTES", 0) + line("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.9)
    reading = read("dcgm", page)
    gpu = only(reading, "gpu")
    assert (gpu["nvlink_tx_bytes_per_s"], gpu["gr_engine_active_ratio"]) == (0, close(0.9))
    assert not reading.rejected
    features = {feature.name: feature for feature in get_spec("straggler_gpu").feature}
    assert not features["nvlink_gb_per_s"].page


def test_profiling_lost_is_not_utilisation_zero() -> None:
    page = line("DCGM_FI_DEV_XID_ERRORS", 31) + line("DCGM_FI_DEV_GPU_UTIL", 100)
    page += "".join(
        line(f"DCGM_FI_PROF_{name}", "9223372036854775792")
        for name in ("SM_ACTIVE", "PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE")
    )
    reading = read("dcgm", page)
    gpu = only(reading, "gpu")
    assert (gpu["xid_last"], gpu["gpu_util_percent"]) == (31, 100)
    for name in ("sm_active_ratio", "tensor_active_ratio", "dram_active_ratio"):
        assert gpu.get(name) is None
        assert reading.rejected["blank", name] == 1


def test_a_line_printed_twice() -> None:
    reading = read("dcgm", line("DCGM_FI_DEV_GPU_TEMP", 40) * 2)
    assert only(reading, "gpu")["gpu_temp_c"] == 40
    assert reading.rejected == {("duplicate", "gpu_temp_c"): 1}


def test_a_job_mapping_that_names_two_jobs() -> None:
    page = line("DCGM_FI_DEV_GPU_TEMP", 40, more=',hpc_job="1"')
    page += line("DCGM_FI_DEV_GPU_TEMP", 40, more=',hpc_job="2"')
    gpu = only(read("dcgm", page), "gpu")
    assert gpu["gpu_temp_c"] == 40
    assert gpu.get("job_id") is None


def test_identity_is_the_uuid_when_indices_move() -> None:
    before = line("DCGM_FI_DEV_GPU_TEMP", 40, A, 0) + line("DCGM_FI_DEV_GPU_TEMP", 50, B, 1)
    after = line("DCGM_FI_DEV_GPU_TEMP", 51, B, 0)
    first = {gpu["gpu_uuid"]: gpu["gpu_temp_c"] for gpu in rows(read("dcgm", before), "gpu")}
    second = {gpu["gpu_uuid"]: gpu["gpu_temp_c"] for gpu in rows(read("dcgm", after), "gpu")}
    assert (first, second) == ({A: 40, B: 50}, {B: 51})


def test_without_uuid_the_pci_address_stands_for_it() -> None:
    page = 'DCGM_FI_DEV_GPU_TEMP{gpu="0",pci_bus_id="00000008:01:00.0",Hostname="h1"} 40\n'
    reading = read("dcgm", page)
    assert only(reading, "gpu")["gpu_uuid"] == "pci:h1:00000008:01:00.0"
    assert reading.notes == ["GPU without UUID: its PCI address on its host stands for it"]


def test_counters_are_stored_as_they_come() -> None:
    values = [
        only(read("dcgm", line("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", value)), "gpu")
        for value in (57, 21)
    ]
    assert [gpu["nvlink_bandwidth_total"] for gpu in values] == [57, 21]


def test_exact_counters() -> None:
    large = 2**53 + 1
    page = line("DCGM_FI_DEV_NVLINK_COUNT_TX_BYTES", large)
    assert only(read("dcgm", page), "gpu")["nvlink_tx_bytes"] == large


def test_a_label_that_is_not_utf8() -> None:
    good = line("DCGM_FI_DEV_GPU_TEMP", 40).encode()
    bad = line("DCGM_FI_DEV_GPU_TEMP", 41, B, 1).encode().replace(b"h1", b"\xff")
    reading = read("dcgm", bad + good)
    assert only(reading, "gpu")["gpu_uuid"] == A
    assert reading.rejected == {("not_utf8", ""): 1}


def test_samples_with_times_of_their_own() -> None:
    one, two = 1_767_225_600_000, 1_767_225_610_000
    page = line("DCGM_FI_DEV_GPU_TEMP", f"40 {one}") + line("DCGM_FI_DEV_GPU_TEMP", f"41 {two}")
    page += line("DCGM_FI_DEV_SM_CLOCK", f"900 {two}")
    page += line("DCGM_FI_DEV_MEM_CLOCK", "1 1234567890")  # 1970
    page += line("DCGM_FI_DEV_FB_USED", "1 1767225600000000000")  # nanoseconds
    reading = read("dcgm", page)
    found = {gpu["sampled_at"]: gpu for gpu in rows(reading, "gpu")}
    assert sorted(found) == [datetime.fromtimestamp(ms / 1000, UTC) for ms in (one, two)]
    latest = found[datetime.fromtimestamp(two / 1000, UTC)]
    assert (latest["gpu_temp_c"], latest["sm_clock_mhz"]) == (41, 900)
    assert reading.rejected == {("time_out_of_range", "sampled_at"): 2}


def test_one_time_twice_and_a_sample_older_than_the_last() -> None:
    first, earlier = 1_767_225_610_000, 1_767_225_600_000
    page = (
        line("DCGM_FI_DEV_GPU_TEMP", f"41 {first}")
        + line("DCGM_FI_DEV_GPU_TEMP", f"42 {first}")
        + line("DCGM_FI_DEV_GPU_TEMP", f"43 {earlier}")
    )
    reading = read("dcgm", page)
    found = {gpu["sampled_at"]: gpu["gpu_temp_c"] for gpu in rows(reading, "gpu")}
    # The first of two values of one time stays; what is late stands at its own time.
    assert found == {
        datetime.fromtimestamp(first / 1000, UTC): 41,
        datetime.fromtimestamp(earlier / 1000, UTC): 43,
    }
    assert reading.rejected == {("contradiction", "gpu_temp_c"): 1}


def test_link_labels_that_are_none() -> None:
    page = f'DCGM_FI_DEV_NVLINK_COUNT_TX_BYTES{{nvlink="x",gpu="0",gpu_uuid="{A}"}} 1\n'
    page += 'DCGM_FI_DEV_NVLINK_COUNT_TX_BYTES{nvlink="1"} 1\n'
    reading = read("dcgm", page)
    assert not reading.tables
    assert reading.rejected == {("bad_label", "link"): 1, ("no_identity", "device_id"): 1}


def test_pages_that_are_no_pages() -> None:
    for body in (
        b"",
        b"\n",
        b"\x1f\x8b\x08\x00junk",
        b"<html><body>502</body></html>\n",
        b"\xff" * 99,
    ):
        reading = read("dcgm", body)
        assert not reading.tables
        assert bool(reading.rejected) is bool(body.strip())


def test_what_is_not_ours_is_left_out() -> None:
    page = 'go_goroutines 8\npromhttp_metric_handler_requests_total{code="200"} 5\n'
    page += line("DCGM_FI_DEV_SOMETHING_NEW", 3) + line("DCGM_FI_DEV_GPU_TEMP", 40, B, 1)
    reading = read("dcgm", page)
    assert only(reading, "gpu")["gpu_uuid"] == B  # the other GPU has no reading that we know
    assert not reading.rejected
