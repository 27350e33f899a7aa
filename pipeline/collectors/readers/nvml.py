"""GPUs of this host over NVML, for hosts without an exporter.

:func:`read_host` asks the driver and makes a page (JSON); :func:`read` makes the same rows of it
as a dcgm-exporter page would give. The library (``nvidia-ml-py``) is imported when it is first
used. What a board does not support is left out of the page, never 0.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from pipeline.collectors.grid import Grid
from pipeline.collectors.page import NothingToReadError, Page, Reading
from pipeline.collectors.rows import clean
from pipeline.collectors.values import fields
from pipeline.errors import missing_extra
from pipeline.streams import Contracts

KIND = "nvml"
SOURCE = "nvml"
MAX_LINKS = 36

Query = Callable[[ModuleType, Any], float]


class NoGpuError(NothingToReadError):
    """This machine has no GPU, or no driver for one."""


def _mib(bytes_: int) -> float:
    return bytes_ / 2**20


# DCGM's name of a field: how NVML is asked for it, in DCGM's unit.
_QUERIES: dict[str, Query] = {
    "DCGM_FI_DEV_SM_CLOCK": lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM),
    "DCGM_FI_DEV_MEM_CLOCK": lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": lambda n, h: n.nvmlDeviceGetCurrentClocksThrottleReasons(h),
    "DCGM_FI_DEV_GPU_PSTATE": lambda n, h: n.nvmlDeviceGetPerformanceState(h),
    "DCGM_FI_DEV_GPU_UTIL_RATIO": lambda n, h: n.nvmlDeviceGetUtilizationRates(h).gpu,
    "DCGM_FI_DEV_MEM_COPY_UTIL": lambda n, h: n.nvmlDeviceGetUtilizationRates(h).memory,
    "DCGM_FI_DEV_ENC_UTIL": lambda n, h: n.nvmlDeviceGetEncoderUtilization(h)[0],
    "DCGM_FI_DEV_DEC_UTIL": lambda n, h: n.nvmlDeviceGetDecoderUtilization(h)[0],
    "DCGM_FI_DEV_BOARD_POWER_WATTS": lambda n, h: n.nvmlDeviceGetPowerUsage(h) / 1000,
    "DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS": lambda n, h: (
        n.nvmlDeviceGetEnforcedPowerLimit(h) / 1000
    ),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": lambda n, h: n.nvmlDeviceGetTotalEnergyConsumption(h),
    "DCGM_FI_DEV_GPU_TEMP_CELSIUS": lambda n, h: n.nvmlDeviceGetTemperature(
        h, n.NVML_TEMPERATURE_GPU
    ),
    "DCGM_FI_DEV_GPU_TEMP_SLOWDOWN_CELSIUS": lambda n, h: n.nvmlDeviceGetTemperatureThreshold(
        h, n.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
    ),
    "DCGM_FI_DEV_GPU_TEMP_SHUTDOWN_CELSIUS": lambda n, h: n.nvmlDeviceGetTemperatureThreshold(
        h, n.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN
    ),
    "DCGM_FI_DEV_FB_TOTAL": lambda n, h: _mib(n.nvmlDeviceGetMemoryInfo(h).total),
    "DCGM_FI_DEV_FB_FREE": lambda n, h: _mib(n.nvmlDeviceGetMemoryInfo(h).free),
    "DCGM_FI_DEV_FB_USED": lambda n, h: _mib(n.nvmlDeviceGetMemoryInfo(h).used),
    "DCGM_FI_DEV_PCIE_REPLAY_TOTAL": lambda n, h: n.nvmlDeviceGetPcieReplayCounter(h),
    "DCGM_FI_DEV_PCIE_LINK_GEN": lambda n, h: n.nvmlDeviceGetCurrPcieLinkGeneration(h),
    "DCGM_FI_DEV_PCIE_LINK_WIDTH": lambda n, h: n.nvmlDeviceGetCurrPcieLinkWidth(h),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": lambda n, h: n.nvmlDeviceGetTotalEccErrors(h, 0, 0),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": lambda n, h: n.nvmlDeviceGetTotalEccErrors(h, 1, 0),
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": lambda n, h: n.nvmlDeviceGetTotalEccErrors(h, 0, 1),
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": lambda n, h: n.nvmlDeviceGetTotalEccErrors(h, 1, 1),
    "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL": lambda n, h: n.nvmlDeviceGetRemappedRows(h)[0],
    "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL": lambda n, h: n.nvmlDeviceGetRemappedRows(h)[1],
    "DCGM_FI_DEV_ROW_REMAP_PENDING": lambda n, h: n.nvmlDeviceGetRemappedRows(h)[2],
    "DCGM_FI_DEV_ROW_REMAP_FAILED": lambda n, h: n.nvmlDeviceGetRemappedRows(h)[3],
}
# DCGM's name: NVML's field number, asked for in one call.
_FIELDS = {
    "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS": "NVML_FI_DEV_MEMORY_TEMP",
    "DCGM_FI_DEV_GPU_RECOVERY_ACTION": "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
    "DCGM_FI_DEV_C2C_LINK_ERROR_INTR": "NVML_FI_DEV_C2C_LINK_ERROR_INTR",
}
# The same for one NVLink, whose number is the field's scope.
_LINK_FIELDS = {
    "DCGM_FI_DEV_NVLINK_COUNT_TX_PACKETS": "NVML_FI_DEV_NVLINK_COUNT_XMIT_PACKETS",
    "DCGM_FI_DEV_NVLINK_COUNT_TX_BYTES": "NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES",
    "DCGM_FI_DEV_NVLINK_COUNT_RX_PACKETS": "NVML_FI_DEV_NVLINK_COUNT_RCV_PACKETS",
    "DCGM_FI_DEV_NVLINK_COUNT_RX_BYTES": "NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES",
    "DCGM_FI_DEV_NVLINK_COUNT_RX_ERRORS": "NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS",
    "DCGM_FI_DEV_NVLINK_COUNT_TX_DISCARDS": "NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS",
    "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS": (
        "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS"
    ),
    "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS": (
        "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS"
    ),
    "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS": (
        "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS"
    ),
    "DCGM_FI_DEV_NVLINK_COUNT_RX_SYMBOL_ERRORS": "NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS",
    "DCGM_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS": "NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS",
}

# The names of the contracts that are asked for, by stream.
NAMES = {"gpu": frozenset({*_QUERIES, *_FIELDS}), "nvlink": frozenset(_LINK_FIELDS)}
CONTRACT_SOURCES = ("dcgm",)
# What is read beside them: where it stands, and its column.
ALSO = {
    "gpu": {
        "`nvmlDeviceGetUUID`": "gpu_uuid",
        "always empty": "gpu_instance_id",
        "the device's index": "gpu_index",
        "`nvmlDeviceGetPciInfo`": "pci_bus_id",
        "`nvmlDeviceGetName`": "model_name",
        "`nvmlSystemGetDriverVersion`": "driver_version",
    },
    "nvlink": {
        "`nvmlDeviceGetUUID`": "device_id",
        "the link's number": "link",
        "always `gpu`": "side",
        "the device's index": "gpu_index",
        "`nvmlDeviceGetNvLinkState`": "link_state",
    },
}


def read_host() -> bytes:
    """Ask the driver of this machine for a page.

    Raises:
        NoGpuError: there is no GPU here, or no driver; the text says so.
        RackpulseError: the Python package is missing; the text says how to get it.
    """
    try:
        nvml = importlib.import_module("pynvml")
    except ModuleNotFoundError as exc:
        raise missing_extra("nvidia-ml-py", "nvml") from exc
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as exc:
        raise NoGpuError(f"No NVIDIA GPU can be read on this machine: {exc}") from exc
    try:
        gpus = [_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        driver = _ask(nvml, lambda: nvml.nvmlSystemGetDriverVersion())
    finally:
        nvml.nvmlShutdown()
    if not gpus:
        raise NoGpuError("No NVIDIA GPU can be read on this machine: the driver lists none")
    return json.dumps({"driver_version": _text(driver), "gpus": gpus}).encode()


def _ask(nvml: ModuleType, query: Callable[[], Any]) -> Any:
    """The answer; None where this board, driver or library does not know it."""
    try:
        return query()
    except (nvml.NVMLError, AttributeError, TypeError):
        return None


def _gpu(nvml: ModuleType, index: int) -> dict[str, Any]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    pci = _ask(nvml, lambda: nvml.nvmlDeviceGetPciInfo(handle).busId)
    said = {
        name: value
        for name, query in _QUERIES.items()
        if (value := _ask(nvml, partial(query, nvml, handle))) is not None
    }
    said.update(_field_values(nvml, handle, _FIELDS, None))
    links = []
    for number in range(MAX_LINKS):
        state = _ask(nvml, partial(nvml.nvmlDeviceGetNvLinkState, handle, number))
        if state is None:
            break
        found = _field_values(nvml, handle, _LINK_FIELDS, number)
        links.append({"link": number, "state": int(state), "fields": found})
    return {
        "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
        "index": index,
        "pci_bus_id": _text(pci),
        "name": _text(_ask(nvml, lambda: nvml.nvmlDeviceGetName(handle))),
        "fields": said,
        "links": links,
    }


def _field_values(
    nvml: ModuleType, handle: Any, names: dict[str, str], scope: int | None
) -> dict[str, float]:
    numbers = {name: getattr(nvml, field) for name, field in names.items() if hasattr(nvml, field)}
    asked = [number if scope is None else (number, scope) for number in numbers.values()]
    answers = _ask(nvml, lambda: nvml.nvmlDeviceGetFieldValues(handle, asked)) or ()
    found: dict[str, float] = {}
    kinds = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}
    for name, answer in zip(numbers, answers, strict=False):
        if answer.nvmlReturn == 0 and answer.valueType in kinds:
            found[name] = getattr(answer.value, kinds[answer.valueType])
    return found


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None


def read(page: Page, contracts: Contracts) -> Reading:
    """Rows of the streams gpu and nvlink of what :func:`read_host` gave."""
    reading = Reading()
    grids = {
        stream: Grid(
            fields(contracts, stream, "dcgm"), page, reading, source=SOURCE, dcgm_blanks=True
        )
        for stream in ("gpu", "nvlink")
    }
    try:
        answer = json.loads(page.body)
        gpus = list(answer["gpus"])
        driver = answer.get("driver_version")
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        reading.reject("bad_json")
        return reading
    for gpu in gpus:
        try:
            _rows(grids, gpu, driver)
        except (TypeError, KeyError, AttributeError, ValueError):
            reading.reject("bad_record")
    for stream, grid in grids.items():
        table = grid.table()
        if table is not None:
            reading.tables[stream] = table
    return reading


def _rows(grids: dict[str, Grid], gpu: dict[str, Any], driver: str | None) -> None:
    uuid = gpu["uuid"]
    if not isinstance(uuid, str) or not uuid:
        raise ValueError("a GPU without UUID")
    uuid = clean(uuid)
    grid = grids["gpu"]
    row = grid.row((uuid, ""))
    grid.number(row, "gpu_index", gpu.get("index"))
    for column, value in (
        ("pci_bus_id", gpu.get("pci_bus_id")), ("model_name", gpu.get("name")),
        ("driver_version", driver),
    ):  # fmt: skip
        grid.label(row, column, value if isinstance(value, str) else None)
    _put(grid, row, gpu.get("fields", {}))
    for link in gpu.get("links", ()):
        number = int(link["link"])
        if not 0 <= number < MAX_LINKS:
            raise ValueError("a link that no GPU has")
        row = grids["nvlink"].row((uuid, number, "gpu"))
        grids["nvlink"].number(row, "gpu_index", gpu.get("index"))
        grids["nvlink"].label(row, "link_state", "up" if link.get("state") == 1 else "down")
        _put(grids["nvlink"], row, link.get("fields", {}))


def _put(grid: Grid, row: int, said: dict[str, Any]) -> None:
    for name, value in said.items():
        field = grid.fields.by_name.get(name)
        if field is not None and isinstance(value, (int, float)):
            grid.put(row, field, int(value) if isinstance(value, bool) else value)
