"""dcgm-exporter pages of compute trays: four GPUs, their NVLinks, two Grace CPUs.

Field names are those that dcgm-exporter prints in 4.5: the names before DCGM 4.6 renamed them.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from pipeline.hall import constants as c
from pipeline.hall import names
from pipeline.hall.fleet import Fleet
from pipeline.hall.pages.text import escape, fixed, whole
from pipeline.hall.view import View

# Contract column: (field, counter, fraction), in the exporter's order.
GPU_FIELDS: tuple[tuple[str, str, bool, bool], ...] = (
    ("sm_clock_mhz", "DCGM_FI_DEV_SM_CLOCK", False, False),
    ("mem_clock_mhz", "DCGM_FI_DEV_MEM_CLOCK", False, False),
    ("clocks_event_reasons", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", False, False),
    ("pstate", "DCGM_FI_DEV_PSTATE", False, False),
    ("memory_temp_c", "DCGM_FI_DEV_MEMORY_TEMP", False, False),
    ("gpu_temp_c", "DCGM_FI_DEV_GPU_TEMP", False, False),
    ("gpu_temp_margin_c", "DCGM_FI_DEV_GPU_TEMP_LIMIT", False, False),
    ("gpu_max_op_temp_c", "DCGM_FI_DEV_GPU_MAX_OP_TEMP", False, False),
    ("memory_max_op_temp_c", "DCGM_FI_DEV_MEM_MAX_OP_TEMP", False, False),
    ("power_w", "DCGM_FI_DEV_POWER_USAGE", False, True),
    ("power_instant_w", "DCGM_FI_DEV_POWER_USAGE_INSTANT", False, True),
    ("energy_mj", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", True, False),
    ("power_limit_enforced_w", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", False, True),
    ("pcie_replays", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", True, False),
    ("pcie_link_gen", "DCGM_FI_DEV_PCIE_LINK_GEN", False, False),
    ("pcie_link_width", "DCGM_FI_DEV_PCIE_LINK_WIDTH", False, False),
    ("gpu_util_percent", "DCGM_FI_DEV_GPU_UTIL", False, False),
    ("mem_copy_util_percent", "DCGM_FI_DEV_MEM_COPY_UTIL", False, False),
    ("enc_util_percent", "DCGM_FI_DEV_ENC_UTIL", False, False),
    ("dec_util_percent", "DCGM_FI_DEV_DEC_UTIL", False, False),
    ("xid_last", "DCGM_FI_DEV_XID_ERRORS", False, False),
    ("power_violation_ns", "DCGM_FI_DEV_POWER_VIOLATION", True, False),
    ("thermal_violation_ns", "DCGM_FI_DEV_THERMAL_VIOLATION", True, False),
    ("sw_power_cap_ns", "DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS", True, False),
    ("sw_thermal_slowdown_ns", "DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS", True, False),
    ("hw_thermal_slowdown_ns", "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS", True, False),
    ("hw_power_brake_ns", "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS", True,
     False),
    ("fb_free_mib", "DCGM_FI_DEV_FB_FREE", False, False),
    ("fb_used_mib", "DCGM_FI_DEV_FB_USED", False, False),
    ("fb_reserved_mib", "DCGM_FI_DEV_FB_RESERVED", False, False),
    ("ecc_sbe_volatile", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", True, False),
    ("ecc_dbe_volatile", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", True, False),
    ("ecc_sbe_aggregate", "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", True, False),
    ("ecc_dbe_aggregate", "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", True, False),
    ("row_remap_uncorrectable", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", True, False),
    ("row_remap_correctable", "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", True, False),
    ("row_remap_failed", "DCGM_FI_DEV_ROW_REMAP_FAILURE", False, False),
    ("row_remap_pending", "DCGM_FI_DEV_ROW_REMAP_PENDING", False, False),
    ("nvlink_tx_bytes", "DCGM_FI_DEV_NVLINK_COUNT_TX_BYTES", True, False),
    ("nvlink_rx_bytes", "DCGM_FI_DEV_NVLINK_COUNT_RX_BYTES", True, False),
    ("nvlink_rx_errors", "DCGM_FI_DEV_NVLINK_COUNT_RX_ERRORS", True, False),
    ("nvlink_tx_discards", "DCGM_FI_DEV_NVLINK_COUNT_TX_DISCARDS", True, False),
    ("nvlink_recovery_successful", "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS",
     True, False),
    ("nvlink_recovery_failed", "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", True, False),
    ("nvlink_recovery_events", "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS", True, False),
    ("nvlink_symbol_errors", "DCGM_FI_DEV_NVLINK_COUNT_RX_SYMBOL_ERRORS", True, False),
    ("nvlink_symbol_ber", "DCGM_FI_DEV_NVLINK_COUNT_SYMBOL_BER_FLOAT", False, True),
    ("nvlink_effective_ber", "DCGM_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER_FLOAT", False, True),
    ("nvlink_effective_errors", "DCGM_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS", True, False),
    ("fabric_manager_status", "DCGM_FI_DEV_FABRIC_MANAGER_STATUS", False, False),
    ("fabric_health", "DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY", False, False),
    ("gr_engine_active_ratio", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", False, True),
    ("sm_active_ratio", "DCGM_FI_PROF_SM_ACTIVE", False, True),
    ("sm_occupancy_ratio", "DCGM_FI_PROF_SM_OCCUPANCY", False, True),
    ("tensor_active_ratio", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", False, True),
    ("dram_active_ratio", "DCGM_FI_PROF_DRAM_ACTIVE", False, True),
    ("pcie_tx_bytes_per_s", "DCGM_FI_PROF_PCIE_TX_BYTES", False, False),
    ("pcie_rx_bytes_per_s", "DCGM_FI_PROF_PCIE_RX_BYTES", False, False),
    ("nvlink_tx_bytes_per_s", "DCGM_FI_PROF_NVLINK_TX_BYTES", False, False),
    ("nvlink_rx_bytes_per_s", "DCGM_FI_PROF_NVLINK_RX_BYTES", False, False),
)  # fmt: skip
LINK_FIELDS: tuple[tuple[str, str, bool], ...] = (
    ("tx_bytes_per_s", "DCGM_FI_PROF_NVLINK_TX_BYTES_PER_LINK", False),
    ("rx_bytes_per_s", "DCGM_FI_PROF_NVLINK_RX_BYTES_PER_LINK", False),
    ("tx_wait_ticks", "DCGM_FI_DEV_NVLINK_PPCNT_IBPC_PORT_XMIT_WAIT", True),
    ("recovery_successful", "DCGM_FI_DEV_NVLINK_PPCNT_RECOVERY_TOTAL_SUCCESSFUL_EVENTS", True),
    ("link_downs", "DCGM_FI_DEV_NVLINK_PPCNT_PHYSICAL_LINK_DOWN_COUNTER", True),
    ("plr_rx_errors", "DCGM_FI_DEV_NVLINK_PPCNT_PLR_RCV_CODE_ERR", True),
    ("plr_tx_retries", "DCGM_FI_DEV_NVLINK_PPCNT_PLR_XMIT_RETRY_CODES", True),
)
CPU_FIELDS: tuple[tuple[str, str], ...] = (
    ("power_w", "DCGM_FI_DEV_CPU_POWER_UTIL_CURRENT"),
    ("power_limit_w", "DCGM_FI_DEV_CPU_POWER_LIMIT"),
    ("temp_c", "DCGM_FI_DEV_CPU_TEMP_CURRENT"),
    ("util_ratio", "DCGM_FI_DEV_CPU_UTIL_TOTAL"),
)


class DcgmPages:
    """Renders pages; label blocks are made once and again when a job or driver changes."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._labels: dict[int, tuple[object, list[str]]] = {}
        self._links: dict[int, list[str]] = {}

    @cached_property
    def _heads(self) -> dict[str, str]:
        heads = {}
        for name, counter in (
            *((field, count) for _, field, count, _ in GPU_FIELDS),
            *((field, count) for _, field, count in LINK_FIELDS),
            *((field, False) for _, field in CPU_FIELDS),
        ):
            kind = "counter" if counter else "gauge"
            text = name.removeprefix("DCGM_FI_").replace("_", " ").lower()
            heads[name] = f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
        return heads

    def render(self, view: View, tray: int) -> bytes:
        """The page of one compute tray."""
        o, first = view.after, tray * c.GPUS_PER_TRAY
        gpus = slice(first, first + c.GPUS_PER_TRAY)
        seen = np.flatnonzero(o.gpu_seen[gpus])
        labels = self._gpu_labels(view, tray)
        parts: list[str] = []
        heads = self._heads
        for column, name, counter, fraction in GPU_FIELDS:
            values = (view.counter if counter else view.gauge)("gpu", column, gpus)
            text = (fixed if fraction else _blank_whole)(values[seen])
            parts.append(heads[name])
            parts.extend(
                f"{name}{labels[slot]} {number}\n"
                for slot, number in zip(seen, text, strict=True)
                if number != "nan"
            )
        if o.link:
            links = self._link_labels(tray)
            chosen = [slot * c.NVLINKS + link for slot in seen for link in range(c.NVLINKS)]
            for column, name, counter in LINK_FIELDS:
                values = (view.counter if counter else view.gauge)("link", column, gpus)
                text = whole(values.reshape(-1).tolist())
                parts.append(heads[name])
                parts.extend(f"{name}{links[number]} {text[number]}\n" for number in chosen)
        host = self._fleet.hosts[tray]
        for column, name in CPU_FIELDS:
            cpus = slice(tray * c.CPUS_PER_TRAY, (tray + 1) * c.CPUS_PER_TRAY)
            parts.append(heads[name])
            parts.extend(
                f'{name}{{cpu="{socket}",Hostname="{host}"}} {number}\n'
                for socket, number in enumerate(fixed(view.gauge("cpu", column, cpus)))
            )
        return "".join(parts).encode()

    def _gpu_labels(self, view: View, tray: int) -> list[str]:
        o = view.after
        key = (o.labels_version, float(o.driver[tray]))
        known = self._labels.get(tray)
        if known is not None and known[0] == key:
            return known[1]
        f = self._fleet
        ends = np.cumsum(o.partition_gpus)
        made = []
        for slot in range(c.GPUS_PER_TRAY):
            gpu = tray * c.GPUS_PER_TRAY + slot
            job = o.job_ids[int(np.searchsorted(ends, gpu, side="right"))]
            role = o.roles[gpu]
            labels = {
                "gpu": str(slot),
                "UUID": f.gpu_uuids[gpu],
                "pci_bus_id": f.pci_bus_ids[slot],
                "device": f"nvidia{slot}",
                "modelName": names.MODEL,
                "Hostname": f.hosts[tray],
                "DCGM_FI_DRIVER_VERSION": names.DRIVERS[int(o.driver[tray])],
            }
            if job:
                labels |= {"hpc_job": job, "job_role": role}
            made.append(_block(labels))
        self._labels[tray] = (key, made)
        return made

    def _link_labels(self, tray: int) -> list[str]:
        if tray not in self._links:
            f = self._fleet
            self._links[tray] = [
                _block(
                    {
                        "nvlink": str(link),
                        "gpu": str(slot),
                        "gpu_uuid": f.gpu_uuids[tray * c.GPUS_PER_TRAY + slot],
                        "pci_bus_id": f.pci_bus_ids[slot],
                        "device": f"nvidia{slot}",
                        "model_name": names.MODEL,
                        "hostname": f.hosts[tray],
                    }
                )
                for slot in range(c.GPUS_PER_TRAY)
                for link in range(c.NVLINKS)
            ]
        return self._links[tray]


def _blank_whole(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> list[str]:
    return ["nan" if value != value else str(int(value)) for value in values.tolist()]


def _block(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{escape(text)}"' for name, text in labels.items()) + "}"
