"""Readings as Redfish writes them: bare numbers, sensor excerpts, set-points, durations."""

from __future__ import annotations

import re

from pipeline.collectors.redfish.tree import Resource, normal

_DURATION = re.compile(
    r"(?P<sign>-)?P(?:(?P<days>\d+)D)?"
    r"(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d*)?)S)?)?"
)
_HEADROOM = re.compile(r"GPU_\d+_TEMP_1$|t_?limit|templimit|headroom|margin", re.IGNORECASE)

# Factor to the unit in which Redfish prescribes a reading (schema Sensor, ``ReadingUnits``, in
# UCUM), from others that controllers use. A spelling that is not here means the prescribed unit.
_FACTORS = {
    "W": {"mW": 1e-3, "kW": 1e3, "MW": 1e6},
    "J": {"kJ": 1e3, "MJ": 1e6, "W.h": 3.6e3, "Wh": 3.6e3, "kW.h": 3.6e6, "kWh": 3.6e6},
    "V": {"uV": 1e-6, "mV": 1e-3, "kV": 1e3},
    "A": {"uA": 1e-6, "mA": 1e-3, "kA": 1e3},
}


def in_unit(value: object, units: object, wanted: str) -> object:
    """A sensor's reading in the wanted unit.

    Args:
        value: anything but a number comes back as it is.
        units: the sensor's ``ReadingUnits``; None where it gives none.
        wanted: ``W``, ``J``, ``V``, ``A`` or ``Cel``; other readings come in one unit only.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    if not isinstance(units, str):
        return value
    if wanted == "Cel":
        if units in ("K", "Kelvin"):
            return value - 273.15
        return (value - 32.0) / 1.8 if units in ("[degF]", "degF", "F") else value
    return value * _FACTORS.get(wanted, {}).get(units, 1.0)


def reading(value: object) -> object:
    """The number in a property: the set-point of a control, the reading of an excerpt.

    Nothing is checked here; a property without a reading gives None.
    """
    if isinstance(value, dict):
        found = value.get("SetPoint")
        return value.get("Reading") if found is None else found
    return value


def excerpt_source(value: object) -> str:
    """Path of the sensor behind an excerpt; empty where it is not named."""
    if not isinstance(value, dict):
        return ""
    return normal(value.get("DataSourceUri")) or normal(value.get("@odata.id"))


def find(resource: Resource, name: str) -> object:
    """A property of the resource itself, or of its vendor part or its ``Networking`` part."""
    if name in resource:
        return resource[name]
    places: list[object] = [resource.get("Networking"), resource.get("LifeTime")]
    places.append(resource.get("PCIeErrors"))
    oem = resource.get("Oem")
    if isinstance(oem, dict):
        for vendor in oem.values():
            places.append(vendor)
            if isinstance(vendor, dict):
                places.append(vendor.get("RowRemapping"))
    for place in places:
        if isinstance(place, dict) and name in place:
            return place[name]
    return None


def seconds(text: object) -> float | None:
    """An ISO 8601 duration in seconds.

    Months and years have no fixed length and do not stand in telemetry.

    Raises:
        ValueError: the text is no such duration.
    """
    if text is None:
        return None
    match = _DURATION.fullmatch(text) if isinstance(text, str) and len(text) < 64 else None
    if match is None or not any(match.group(n) for n in ("days", "hours", "minutes", "seconds")):
        raise ValueError("not a duration")
    total = (
        int(match["days"] or 0) * 86_400
        + int(match["hours"] or 0) * 3_600
        + int(match["minutes"] or 0) * 60
        + float(match["seconds"] or 0)
    )
    return -total if match["sign"] else total


def state(resource: Resource) -> str | None:
    """``Status.State``."""
    status = resource.get("Status")
    found = status.get("State") if isinstance(status, dict) else None
    return found if isinstance(found, str) else None


def health(resource: Resource, name: str = "Health") -> str | None:
    """``Status.Health``; a component that is absent has none, whatever it says."""
    status = resource.get("Status")
    if not isinstance(status, dict) or status.get("State") == "Absent":
        return None
    found = status.get(name)
    return found if isinstance(found, str) else None


def is_headroom(name: str, sensor: Resource | None = None) -> bool:
    """Whether a "temperature" is the distance to a limit.

    The sensor says so itself, or only its lower thresholds alarm, or its name does: on
    GB300 ``TEMP_1`` of a GPU is headroom in a list of temperatures.
    """
    if sensor is not None:
        basis = sensor.get("ReadingBasis")
        if isinstance(basis, str) and basis != "Zero":
            return basis == "Headroom"
        thresholds = sensor.get("Thresholds")
        if isinstance(thresholds, dict) and any(k.startswith("Upper") for k in thresholds):
            return False
        if isinstance(thresholds, dict) and isinstance(
            lowest := thresholds.get("LowerFatal"), dict
        ):
            value = lowest.get("Reading")
            # A lower limit below zero on a part that runs hot is an overshoot past a limit.
            if isinstance(value, (int, float)) and value < 0:
                return True
    return bool(_HEADROOM.search(name))
