"""GPUs of the host over NVML, with a library that stands in for the driver's."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from pipeline.cli.collect import collect
from pipeline.collectors.readers import nvml
from pipeline.errors import RackpulseError
from tests.collectors.helpers import only, read, rows


class NvmlError(Exception):
    pass


def driver(gpus: int = 1, links: int = 2) -> ModuleType:
    """A library with one odd board: no encoder, no memory sensor, no NVLink beyond ``links``."""
    fake: Any = ModuleType("pynvml")
    fake.NVMLError = NvmlError
    fake.NVML_CLOCK_SM, fake.NVML_CLOCK_MEM, fake.NVML_TEMPERATURE_GPU = 1, 2, 0
    fake.NVML_FI_DEV_MEMORY_TEMP = 82
    fake.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES = 203
    fake.nvmlInit = fake.nvmlShutdown = lambda: None
    fake.nvmlDeviceGetCount = lambda: gpus
    fake.nvmlSystemGetDriverVersion = lambda: b"580.1"
    fake.nvmlDeviceGetHandleByIndex = lambda index: index
    fake.nvmlDeviceGetUUID = lambda handle: f"GPU-{handle}"
    fake.nvmlDeviceGetName = lambda handle: "NVIDIA GB300"
    fake.nvmlDeviceGetPciInfo = lambda handle: SimpleNamespace(busId=b"00000008:01:00.0")
    fake.nvmlDeviceGetClockInfo = lambda handle, kind: 1000 * kind
    fake.nvmlDeviceGetPowerUsage = lambda handle: 170582
    fake.nvmlDeviceGetTotalEnergyConsumption = lambda handle: 2**53 + 1
    fake.nvmlDeviceGetTemperature = lambda handle, kind: 40
    fake.nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(
        total=2**34, free=2**33, used=2**33
    )
    fake.nvmlDeviceGetUtilizationRates = lambda handle: SimpleNamespace(gpu=90, memory=10)
    fake.nvmlDeviceGetRemappedRows = lambda handle: (1, 2, True, False)

    def unsupported(*_args: object) -> None:
        raise NvmlError("Not Supported")

    fake.nvmlDeviceGetEncoderUtilization = unsupported

    def link_state(handle: int, link: int) -> int:
        if link >= links:
            raise NvmlError("Invalid Argument")
        return 1

    def field_values(handle: int, asked: list[Any]) -> list[Any]:
        return [
            SimpleNamespace(nvmlReturn=3, valueType=1, value=None)
            if number == 82
            else SimpleNamespace(
                nvmlReturn=0, valueType=3, value=SimpleNamespace(ullVal=7 + number[1])
            )
            for number in asked
        ]

    fake.nvmlDeviceGetNvLinkState = link_state
    fake.nvmlDeviceGetFieldValues = field_values
    return fake  # type: ignore[no-any-return]


def test_the_same_columns_as_an_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver())
    reading = read("nvml", nvml.read_host(), host="h")
    gpu = only(reading, "gpu")
    assert (gpu["gpu_uuid"], gpu["gpu_index"], gpu["source"]) == ("GPU-0", 0, "nvml")
    assert (gpu["pci_bus_id"], gpu["driver_version"]) == ("00000008:01:00.0", "580.1")
    assert (gpu["sm_clock_mhz"], gpu["mem_clock_mhz"], gpu["gpu_temp_c"]) == (1000, 2000, 40)
    assert gpu["power_w"] == pytest.approx(170.582, rel=1e-6)
    assert gpu["energy_mj"] == 2**53 + 1
    assert (gpu["fb_total_mib"], gpu["fb_used_mib"]) == (16384, 8192)
    assert (gpu["row_remap_correctable"], gpu["row_remap_pending"]) == (1, True)
    # What the board does not support is left out.
    for missing in ("enc_util_percent", "memory_temp_c", "pcie_replays"):
        assert gpu.get(missing) is None
    links = rows(reading, "nvlink")
    assert [(link["link"], link["link_state"], link["rx_bytes"]) for link in links] == [
        (0, "up", 7), (1, "up", 8),
    ]  # fmt: skip
    assert not reading.rejected


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(RackpulseError, match="nvidia-ml-py.*rackpulse\\[nvml\\]"):
        nvml.read_host()


@pytest.mark.parametrize("reason", ["Driver Not Loaded", "NVML Shared Library Not Found"])
def test_no_gpu(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    fake = driver()

    def fail() -> None:
        raise NvmlError(reason)

    fake.nvmlInit = fail  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    with pytest.raises(
        nvml.NoGpuError, match=f"No NVIDIA GPU can be read on this machine: {reason}"
    ):
        nvml.read_host()


def test_a_driver_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver(gpus=0))
    with pytest.raises(nvml.NoGpuError, match="lists none"):
        nvml.read_host()


def test_the_real_library_on_this_machine() -> None:
    """Where no GPU is there it says so, and that is all."""
    real = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    try:
        real.nvmlInit()
    except real.NVMLError:
        with pytest.raises(nvml.NoGpuError, match="No NVIDIA GPU can be read on this machine"):
            nvml.read_host()
    else:
        assert json.loads(nvml.read_host())["gpus"]


@pytest.mark.parametrize("reason", ["Driver Not Loaded"])
def test_the_command_says_so_and_ends_well(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    fake = driver()

    def fail() -> None:
        raise NvmlError(reason)

    fake.nvmlInit = fail  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    ended = CliRunner().invoke(collect, ["nvml"])
    assert ended.exit_code == 0
    assert "No NVIDIA GPU can be read on this machine: Driver Not Loaded" in ended.output


def test_the_command_prints_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver())
    ended = CliRunner().invoke(collect, ["nvml", "--format", "jsonl"])
    assert ended.exit_code == 0
    printed = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [(row["stream"], row["source"]) for row in printed] == [
        ("gpu", "nvml"), ("nvlink", "nvml"), ("nvlink", "nvml"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "body", ["", "{", "[]", '{"gpus":3}', '{"gpus":[1]}', '{"gpus":[{"uuid":""}]}', "null"]
)
def test_pages_of_no_shape(body: str) -> None:
    reading = read("nvml", body)
    assert not reading.tables
    assert sum(reading.rejected.values()) == 1


def test_half_a_character_costs_no_page() -> None:
    said = {"DCGM_FI_DEV_SM_CLOCK": 1965}
    gpus = [
        {"uuid": "GPU-\ud800", "index": 0, "name": "B\udfff", "fields": said},
        {"uuid": "GPU-1", "index": 1, "name": "B", "fields": said},
    ]
    page = json.dumps({"driver_version": "5\ud800", "gpus": gpus})
    first, second = rows(read("nvml", page), "gpu")
    assert (first["gpu_uuid"], first["model_name"], first["driver_version"]) == (
        "GPU-?",
        "B?",
        "5?",
    )
    assert (second["gpu_uuid"], second["model_name"], second["sm_clock_mhz"]) == (
        "GPU-1",
        "B",
        1965,
    )
