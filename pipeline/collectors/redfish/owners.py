"""Which component a resource speaks of, and of what type it is."""

from __future__ import annotations

import re

from pipeline.collectors.redfish.tree import Resource, Tree, kind_of, link, links

# Resources that carry the readings of the resource above them.
_OF_PARENT = re.compile(
    r"/(?:EnvironmentMetrics|ThermalSubsystem/ThermalMetrics|ProcessorMetrics|MemoryMetrics"
    r"|MemorySummary/MemoryMetrics|Metrics|Controls/[^/]+|Oem/Nvidia/PowerSmoothing(?:/[^/]+)?"
    r"|Oem/Nvidia/Policies/[^/]+)$"
)
# Ordered: the first pattern that the path fits names the type.
_TYPES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("memory", re.compile(r"/Memory/[^/]+$")),
    ("power_supply", re.compile(r"/PowerSupplies/[^/]+$")),
    ("power_shelf", re.compile(r"/PowerShelves/[^/]+$|/Chassis/[^/]*power_?shelf[^/]*$", re.I)),
    ("fan", re.compile(r"/Fans/[^/]+$|/Sensors/[^/]*FAN[^/]*$")),
    ("leak_detector", re.compile(r"/(?:LeakDetectors|Sensors)/[^/]*Leak[^/]*$|/LeakDetectors/")),
    ("connectx", re.compile(r"/(?:Sensors|NetworkAdapters|Chassis)/[^/]*(?:CX\d|ConnectX)[^/]*$")),
    ("sensor", re.compile(r"/Sensors/[^/]+$|#")),
    ("gpu_bmc", re.compile(r"/(?:Chassis|Processors)/(?:HGX_)?GPU_[^/]*$")),
    ("grace_cpu", re.compile(r"/(?:Chassis|Processors)/(?:HGX_)?CPU_\d+$")),
    ("nvswitch", re.compile(r"/[^/]*NVSwitch[^/]*$", re.I)),
    ("cdu", re.compile(r"/ThermalEquipment/[^/]+/[^/]+$")),
)


class Owners:
    """Owners of one tree, with the aliases that its chassis declare."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._alias: dict[str, str] = {}
        for chassis in tree.every("Chassis"):
            about = chassis.get("Links") or {}
            processors = links(about.get("Processors")) if isinstance(about, dict) else []
            # A chassis around one processor and that processor are one component.
            if len(processors) == 1:
                self._alias[processors[0]] = link(chassis)
        for unit in tree.every("CoolingUnit"):
            about = unit.get("Links") or {}
            chassis_paths = links(about.get("Chassis")) if isinstance(about, dict) else []
            if len(chassis_paths) == 1:
                self._alias[chassis_paths[0]] = link(unit)

    def of(self, path: str) -> str:
        """Path of the component that a resource of readings belongs to."""
        owner = _OF_PARENT.sub("", path) or path
        return self._alias.get(owner, owner)

    def type_of(self, owner: str) -> str:
        """``entity_type`` of a component."""
        for name, pattern in _TYPES:
            if pattern.search(owner):
                return name
        resource: Resource = self._tree.get(owner) or {}
        if kind_of(resource) == "Chassis":
            kind = resource.get("ChassisType")
            if kind == "Rack":
                return "rack"
        return "chassis"
