"""Everything else of a tree as rows of ``component``: power, heat, leaks, health.

Which property fills which column stands in the contract (``sources.redfish``); what a
sensor's reading type fills stands here.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pipeline.collectors.page import Reading
from pipeline.collectors.redfish.owners import Owners
from pipeline.collectors.redfish.tree import Resource, Tree, kind_of, link, normal
from pipeline.collectors.redfish.values import (
    excerpt_source,
    find,
    health,
    in_unit,
    is_headroom,
    reading,
    seconds,
    state,
)
from pipeline.collectors.rows import Rows

# By the sensor's reading type: the column, and the unit in UCUM.
_BY_READING_TYPE = {
    "Power": ("power_w", "W"),
    "EnergyJoules": ("energy_j", "J"),
    "Voltage": ("voltage_v", "V"),
    "Current": ("current_a", "A"),
    "Rotational": ("fan_rpm", "{rev}/min"),
    "Humidity": ("humidity_percent", "%"),
}
# What is read beside the properties in the contract: where it stands, and its column.
ALSO = {
    "`UUID` of the service, unless the target names its manager": "manager_id",
    "`@odata.id` of what a resource speaks of": "component_id",
    "its type": "entity_type",
    "`Name`, `DeviceName`": "name",
    "`Status.State`": "state",
    "`Status.Health`": "health",
    "`Status.HealthRollup`": "health_rollup",
    "`Status.Conditions`: origin of a critical alert": "failed_component",
    "`DetectorState` `Warning` or `Critical`; a detector's voltage outside its limits": "leak",
    "`FanSpeedsPercent`, `SpeedPercent`, `Sensor` of a fan": "fan_percent",
    "`SpeedRPM`": "fan_rpm",
    "`SettingMin` of a `FrequencyMHz` control": "clock_limit_min_mhz",
    "`SettingMax` of a `FrequencyMHz` control": "clock_limit_max_mhz",
    "`AllowableMin` of a `FrequencyMHz` control": "clock_allowed_min_mhz",
    "`AllowableMax` of a `FrequencyMHz` control": "clock_allowed_max_mhz",
    "`PolicyEnabled` of a leak policy": "policy_enabled",
    "`CommonReaction` of a leak policy": "policy_reaction",
    "`TemperatureReadingsCelsius`, `Sensor` `Temperature`": "temp_c",
    "the same of a processor's memory": "memory_temp_c",
    "the same where it is headroom": "temp_margin_c",
    **{f"`Sensor` `{kind}`": column for kind, (column, _) in _BY_READING_TYPE.items()},
}
# Sensors of a processor's chassis that speak of the processor itself, not of a part of it.
_OF_PROCESSOR = re.compile(r"[GC]PU_\d+_(?:Power|Energy|Voltage|TEMP|TempAvg|TempLimit)_\d+$")
_OF_PROCESSOR_MEMORY = re.compile(r"GPU_\d+_DRAM_\d+_Temp_\d+$")
_PART_OF_PROCESSOR = re.compile(r"DRAM|Vreg|Soc", re.IGNORECASE)
_LEAK = {"OK": False, "Warning": True, "Critical": True}
_PROCESSORS = ("gpu_bmc", "grace_cpu")


class Components:
    """Makes the rows of ``component`` of one tree.

    Args:
        rows: where they go.
        manager: id of the management controller.
    """

    def __init__(
        self, tree: Tree, owners: Owners, rows: Rows, reading_: Reading, manager: str
    ) -> None:
        self._tree = tree
        self._owners = owners
        self._rows = rows
        self._reading = reading_
        self._manager = manager
        self._twins = _detector_twins(tree)
        self._detectors = {
            str(resource.get("Id")): self._twins.get(path, path)
            for path, resource in tree.fresh.items()
            if kind_of(resource) == "LeakDetector"
        }
        self._excerpts = _excerpt_sources(tree)
        self._makers: dict[str, Callable[[str, Resource], None]] = {
            "CoolingUnit": self._unit,
            "LeakDetector": self._detector,
            "LeakDetection": self._detection,
            "EnvironmentMetrics": self._environment,
            "ThermalMetrics": self._thermal,
            "ProcessorMetrics": self._properties,
            "MemoryMetrics": self._properties,
            "PowerSupply": self._properties,
            "PowerSupplyMetrics": self._properties,
            "PowerDistribution": self._unit,
            "PowerDistributionMetrics": self._properties,
            "NvidiaPowerSmoothingPresetProfile": self._properties,
            "Control": self._control,
            "NvidiaPolicy": self._policy,
            "Fan": self._fan,
            "Sensor": self._sensor,
        }

    def add(self, path: str, resource: Resource) -> bool:
        """Add what a resource says; False when it is of no type that is read here."""
        maker = self._makers.get(kind_of(resource))
        if maker is None:
            return False
        maker(path, resource)
        return True

    def _row(self, owner: str, entity_type: str | None = None) -> dict[str, object]:
        kind = entity_type or self._owners.type_of(owner)
        return self._rows.row(manager_id=self._manager, component_id=owner, entity_type=kind)

    def _status(self, row: dict[str, object], resource: Resource) -> bool:
        """Write name and status; False when the component is absent."""
        put = self._rows.put
        put(row, "name", resource.get("Name"))
        put(row, "state", state(resource))
        put(row, "health", health(resource))
        put(row, "health_rollup", health(resource, "HealthRollup"))
        return state(resource) != "Absent"

    # ------------------------------------------------------------ whole components

    def _unit(self, path: str, resource: Resource) -> None:
        row = self._row(path)
        self._status(row, resource)
        status = resource.get("Status")
        conditions = status.get("Conditions") if isinstance(status, dict) else None
        for condition in conditions if isinstance(conditions, list) else []:
            if not isinstance(condition, dict) or condition.get("Severity") != "Critical":
                continue
            if condition.get("ConditionType") == "Alert":
                origin = link(condition.get("OriginOfCondition"))
                self._rows.put(row, "failed_component", origin or condition.get("Message"))

    def _properties(self, path: str, resource: Resource) -> None:
        """Properties that the contract names, of the component above the resource."""
        if "/MemorySummary/" in path:
            return  # the sum over memory that speaks for itself
        owner = self._owners.of(path)
        row = self._row(owner)
        if owner == path and not self._status(row, resource):
            return
        for column, source in self._rows.stream.by_source("redfish"):
            for name in source.names:
                value: object = find(resource, name)
                if value is None:
                    continue
                if column.unit == "s" and isinstance(value, str):
                    try:
                        value = seconds(value)
                    except ValueError:
                        self._reading.reject("not_a_duration", column.name)
                        continue
                self._rows.put(row, column.name, reading(value), source.scale)

    def _environment(self, path: str, resource: Resource) -> None:
        owner = self._owners.of(path)
        row = self._row(owner)
        for column, source in self._rows.stream.by_source("redfish"):
            for name in source.names:
                if name not in resource:
                    continue
                value = resource[name]
                sensor = excerpt_source(value)
                entity_type = str(row["entity_type"])
                if entity_type in _PROCESSORS and _PART_OF_PROCESSOR.search(sensor):
                    self._reading.reject("part_of_component", column.name)
                    continue
                target = column.name
                if target == "temp_c" and is_headroom(sensor, self._tree.get(sensor)):
                    target = "temp_margin_c"
                self._rows.put(row, target, reading(value), source.scale)
        fans = resource.get("FanSpeedsPercent")
        for entry in fans if isinstance(fans, list) else []:
            if isinstance(entry, dict):
                self._fan_excerpt(path, entry)

    def _fan_excerpt(self, path: str, entry: Resource) -> None:
        sensor = excerpt_source(entry) or f"{path}#{entry.get('DeviceName')}"
        row = self._row(sensor, "fan")
        self._rows.put(row, "name", entry.get("DeviceName"))
        self._rows.put(row, "fan_percent", entry.get("Reading"))
        # Some controllers print the duty cycle of a PWM output as its speed.
        if "PWM" in sensor:
            self._rows.put(row, "fan_percent", entry.get("SpeedRPM"))
        else:
            self._rows.put(row, "fan_rpm", entry.get("SpeedRPM"))

    def _fan(self, path: str, resource: Resource) -> None:
        row = self._row(path, "fan")
        speed = resource.get("SpeedPercent")
        if self._status(row, resource) and isinstance(speed, dict):
            self._rows.put(row, "fan_percent", speed.get("Reading"))
            self._rows.put(row, "fan_rpm", speed.get("SpeedRPM"))

    def _control(self, path: str, resource: Resource) -> None:
        if resource.get("ControlType") != "FrequencyMHz":
            return
        row = self._row(self._owners.of(path))
        self._rows.put(row, "clock_limit_min_mhz", resource.get("SettingMin"))
        self._rows.put(row, "clock_limit_max_mhz", resource.get("SettingMax"))
        self._rows.put(row, "clock_allowed_min_mhz", resource.get("AllowableMin"))
        self._rows.put(row, "clock_allowed_max_mhz", resource.get("AllowableMax"))

    def _policy(self, path: str, resource: Resource) -> None:
        if "Leak" not in path:
            return
        row = self._row(path, "leak_policy")
        self._status(row, resource)
        self._rows.put(row, "policy_enabled", resource.get("PolicyEnabled"))
        reactions = resource.get("PolicyReactions")
        for reaction in reactions if isinstance(reactions, list) else []:
            if isinstance(reaction, dict):
                self._rows.put(row, "policy_reaction", reaction.get("CommonReaction"))

    # ------------------------------------------------------------ leaks

    def _detector(self, path: str, resource: Resource) -> None:
        row = self._row(self._twins.get(path, path), "leak_detector")
        present = self._status(row, resource)
        self._leak(row, resource.get("DetectorState") if present else "Absent")
        if present:
            self._rows.put(row, "voltage_v", reading(resource.get("Voltage")))
            self._rows.put(row, "current_a", reading(resource.get("CurrentAmps")))

    def _leak(self, row: dict[str, object], detector_state: object) -> None:
        self._rows.put(row, "detector_state", detector_state)
        if isinstance(detector_state, str):
            self._rows.put(row, "leak", _LEAK.get(detector_state))

    def _detection(self, path: str, resource: Resource) -> None:
        """The detectors' states as excerpts; the group's own health says nothing of a leak."""
        groups = resource.get("LeakDetectorGroups")
        for group in groups if isinstance(groups, list) else []:
            entries = group.get("Detectors") if isinstance(group, dict) else None
            for entry in entries if isinstance(entries, list) else []:
                if not isinstance(entry, dict):
                    continue
                source = excerpt_source(entry)
                if not source:
                    source = f"{path}#{entry.get('DeviceName')}"
                elif source in self._tree.fresh:
                    continue  # the detector speaks for itself
                row = self._row(self._twins.get(source, source), "leak_detector")
                self._rows.put(row, "name", entry.get("DeviceName"))
                self._leak(row, entry.get("DetectorState"))

    # ------------------------------------------------------------ sensors

    def _thermal(self, path: str, resource: Resource) -> None:
        entries = resource.get("TemperatureReadingsCelsius")
        owner = self._owners.of(path)
        for entry in entries if isinstance(entries, list) else []:
            if isinstance(entry, dict):
                sensor = excerpt_source(entry) or f"{path}#{entry.get('DeviceName')}"
                # A module's list names its processor's sensors: they are the processor's.
                chassis = sensor.split("/Sensors/")[0] if "/Sensors/" in sensor else ""
                self._temperature(
                    self._owners.of(chassis) if chassis else owner,
                    sensor,
                    entry.get("DeviceName"),
                    entry.get("Reading"),
                )

    def _temperature(self, owner: str, sensor: str, name: object, value: object) -> None:
        column = "temp_margin_c" if is_headroom(sensor, self._tree.get(sensor)) else "temp_c"
        if self._owners.type_of(owner) in _PROCESSORS:
            if _OF_PROCESSOR_MEMORY.search(sensor):
                self._rows.put(self._row(owner), "memory_temp_c", value)
            elif _OF_PROCESSOR.search(sensor):
                self._rows.put(self._row(owner), column, value)
            return
        row = self._row(sensor)
        self._rows.put(row, "name", name)
        self._rows.put(row, column, value)

    def _sensor(self, path: str, resource: Resource) -> None:
        kind = resource.get("ReadingType")
        if state(resource) == "Absent":
            row = self._row(path)
            self._status(row, resource)
            return
        owner = self._owners.of(path.split("/Sensors/", 1)[0])
        value = resource.get("Reading")
        if kind == "Voltage" and "Leak" in path:
            self._leak_sensor(path, resource)
        elif path in self._excerpts:
            return  # the component that it belongs to gives the same reading
        elif kind == "Temperature":
            if resource.get("ReadingBasis") == "Delta":
                return
            celsius = in_unit(value, resource.get("ReadingUnits"), "Cel")
            self._temperature(owner, path, resource.get("Name"), celsius)
            if self._owners.type_of(owner) not in _PROCESSORS:
                self._status(self._row(path), resource)
        elif kind == "Percent" and "FAN" in path.upper():
            row = self._row(path, "fan")
            self._status(row, resource)
            self._rows.put(row, "fan_percent", value)
        elif kind in _BY_READING_TYPE:
            column, unit = _BY_READING_TYPE[str(kind)]
            value = in_unit(value, resource.get("ReadingUnits"), unit)
            if self._owners.type_of(owner) in _PROCESSORS:
                if _OF_PROCESSOR.search(path):
                    self._rows.put(self._row(owner), column, value)
                return
            row = self._row(path)
            self._status(row, resource)
            self._rows.put(row, column, value)

    def _leak_sensor(self, path: str, resource: Resource) -> None:
        """A detector's voltage; the thresholds tell a leak where no detector does."""
        row = self._row(self._detectors.get(str(resource.get("Id")), path), "leak_detector")
        self._status(row, resource)
        units = resource.get("ReadingUnits")
        self._rows.put(row, "voltage_v", in_unit(resource.get("Reading"), units, "V"))
        if resource.get("Id") in self._detectors:
            return
        thresholds, volts = resource.get("Thresholds"), row.get("voltage_v")
        if not isinstance(thresholds, dict) or not isinstance(volts, float):
            return
        low = in_unit(reading(thresholds.get("LowerCritical")), units, "V")
        high = in_unit(reading(thresholds.get("UpperCritical")), units, "V")
        if isinstance(low, (int, float)) and isinstance(high, (int, float)):
            row["leak"] = not low <= volts <= high


def _detector_twins(tree: Tree) -> dict[str, str]:
    """Detectors that stand under the equipment and under its chassis: that path to this.

    One detector of that name, type and label in each of the two places is the same one.
    """
    by_looks: dict[tuple[str, ...], list[str]] = {}
    for path, resource in {**tree.context, **tree.fresh}.items():
        if kind_of(resource) == "LeakDetector":
            looks = tuple(str(resource.get(name)) for name in ("Id", "Name", "LeakDetectorType"))
            by_looks.setdefault(looks, []).append(path)
    twins = {}
    for paths in by_looks.values():
        chassis = [path for path in paths if "/Chassis/" in path]
        others = [path for path in paths if "/Chassis/" not in path]
        if len(chassis) == 1 and len(others) == 1:
            twins[others[0]] = chassis[0]
    return twins


def _excerpt_sources(tree: Tree) -> frozenset[str]:
    """Sensors whose reading a component of the tree gives as an excerpt.

    Lists of readings are left out: their entries are rows of the sensors themselves.
    """
    found: set[str] = set()
    for resource in tree.fresh.values():
        for value in resource.values():
            if isinstance(value, dict) and "Reading" in value:
                found.add(normal(value.get("DataSourceUri")))
    found.discard("")
    return frozenset(found)
