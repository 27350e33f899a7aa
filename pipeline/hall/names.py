"""Names that pages, rows and targets share."""

from __future__ import annotations

import numpy as np

from pipeline.hall import constants as c
from pipeline.hall.fleet import Bools, Fleet, Ints
from pipeline.hall.observe import Observation

MODEL = "NVIDIA GB300"
DRIVERS = ("580.105.08", "580.126.20")
RACK_CONNECTOR_NAME = "Rack Cooling Loop"
CDU_PATH = "/redfish/v1/ThermalEquipment/CDUs/1"

# Readers of the fabric: the kinds of target that can stand for it.
FABRICS = ("ib_exporter", "ufm")

# Counters that the exporter prints and that stay at zero in this hall.
IB_ZERO_COLUMNS = (
    "xmit_constraint_errors", "rcv_constraint_errors", "rcv_remote_physical_errors",
    "rcv_switch_relay_errors", "local_link_integrity_errors", "excessive_buffer_overruns",
    "vl15_dropped", "qp1_dropped",
)  # fmt: skip
# The same of UFM, which has no general-services queue among its counters.
UFM_ZERO_COLUMNS = tuple(name for name in IB_ZERO_COLUMNS if name != "qp1_dropped")


def dcgm_target(host: str) -> str:
    """Name of a compute tray's exporter."""
    return f"dcgm/{host}"


def nmxt_target(host: str) -> str:
    """Name of an NVLink switch tray's exporter."""
    return f"nmxt/{host}"


def redfish_target(manager: str) -> str:
    """Name of a management controller."""
    return f"redfish/{manager}"


def kmsg_target(host: str) -> str:
    """Name of a compute tray's kernel log."""
    return f"kmsg/{host}"


def ib_targets(fleet: Fleet) -> list[str]:
    """Names of the fabric's exporters: one per rail's leaves with their HCAs, one for spines."""
    return [f"ib/rail-{rail + 1}" for rail in range(c.RAILS)] + ["ib/spines"]


def ufm_targets(fleet: Fleet) -> list[str]:
    """Names of UFM's telemetry instances, which share the fabric as the exporters do."""
    return [name.replace("ib/", "ufm/", 1) for name in ib_targets(fleet)]


def ib_shards(fleet: Fleet) -> Ints:
    """Exporter that reads each switch: leaves, then spines."""
    leaf = np.arange(fleet.leaves) // fleet.leaves_per_rail
    return np.concatenate([leaf, np.full(fleet.spines, c.RAILS)])


def hca_name(fleet: Fleet, number: int) -> str:
    """Node description of an HCA."""
    tray, slot = divmod(number, c.GPUS_PER_TRAY)
    return f"{fleet.hosts[tray]} mlx5_{slot}"


def entity_name(fleet: Fleet, kind: str, entity: str) -> str:
    """How people call an entity, as alerts do: host and GPU number, switch and port."""
    if kind == "gpu":
        tray, slot = divmod(fleet.gpu_uuids.index(entity), c.GPUS_PER_TRAY)
        return f"{fleet.hosts[tray]} GPU {slot}"
    if kind == "ib_port":
        guid, _, port = entity.partition("/")
        for guids, named in ((fleet.leaf_guids, fleet.leaf_names),
                             (fleet.spine_guids, fleet.spine_names)):  # fmt: skip
            if guid in guids:
                return f"{named[guids.index(guid)]} port {port}"
        return f"{hca_name(fleet, fleet.hca_guids.index(guid))} port {port}"
    return entity


def rack_path(rack: str) -> str:
    """Redfish path of a rack."""
    return f"/redfish/v1/Chassis/{rack}"


def rack_connector_path(rack: str) -> str:
    """Redfish path of a rack's coolant connector."""
    return f"/redfish/v1/Chassis/{rack}/ThermalSubsystem/CoolantConnectors/1"


def leak_path(rack: str, number: int) -> str:
    """Redfish path of a leak detector."""
    base = f"/redfish/v1/Chassis/{rack}/ThermalSubsystem/LeakDetection/LeakDetectors"
    return f"{base}/{leak_name(number).replace(' ', '_')}"


def leak_name(number: int) -> str:
    """Name of a rack's leak detector."""
    tray, part = divmod(number, c.LEAK_DETECTORS_PER_TRAY)
    return f"Tray {tray + 1} {('ColdPlate', 'Manifold')[part]}"


def cdu_name(cdu: str) -> str:
    """Name of a CDU."""
    return f"Coolant Distribution Unit {cdu.removeprefix('cdu-')}"


_CDU_PARTS = {
    "primary": ("PrimaryCoolantConnectors", "Main supply from facility"),
    "secondary": ("SecondaryCoolantConnectors", "Supply to racks"),
    "pump": ("Pumps", "CDU Pump {}"),
    "reservoir": ("Reservoirs", "CDU Reservoir {}"),
    "filter": ("Filters", "CDU Filter {}"),
}


def cdu_part_path(part: str, number: int) -> str:
    """Redfish path of a part of a CDU."""
    return f"{CDU_PATH}/{_CDU_PARTS[part][0]}/{number}"


def cdu_part_name(part: str, number: int) -> str:
    """Name of a part of a CDU."""
    return _CDU_PARTS[part][1].format(number)


def leak_states(o: Observation) -> tuple[Bools, list[str]]:
    """Which detectors are wet: outside 1.3 to 2.0 V, as their maker sets it."""
    wet = (o.leak["voltage_v"] < 1.3) | (o.leak["voltage_v"] > 2.0)
    return wet, ["Critical" if bad else "OK" for bad in wet]
