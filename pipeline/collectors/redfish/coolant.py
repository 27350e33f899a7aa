"""Coolant connectors, pumps, reservoirs and filters as rows of ``coolant``.

Which property fills which column stands in the contract (``sources.redfish``).
"""

from __future__ import annotations

from typing import TypeGuard

from pipeline.collectors.redfish.tree import Resource, Tree, kind_of, link
from pipeline.collectors.redfish.values import health, reading, state
from pipeline.collectors.rows import Rows

KINDS = {
    "CoolantConnector": "",
    "Pump": "pump",
    "Reservoir": "reservoir",
    "Filter": "filter",
}
# What is read beside the properties in the contract: where it stands, and its column.
ALSO = {
    "`UUID` of the service, unless the target names its manager": "manager_id",
    "`@odata.id`": "component_id",
    "type and collection of the resource": "component_type",
    "`Name`": "name",
    "`Status.State`": "state",
    "`Status.Health`": "health",
    "heat, pressures or temperatures that disagree": "quality",
}
# Water at 30 °C (IAPWS tables); used where the unit does not say what it holds.
WATER_HEAT_KJ_PER_KG_K = 4.18
WATER_DENSITY_KG_PER_M3 = 996.0
# Reported heat within this share of the computed heat is not remarkable: flow meters and
# temperature pairs are good for some ten per cent together.
HEAT_TOLERANCE = 0.25
HEAT_SLACK_KW = 1.0
PRESSURE_TOLERANCE = 0.05
PRESSURE_SLACK_KPA = 5.0
TEMP_TOLERANCE = 0.05
TEMP_SLACK_K = 1.0


def add(tree: Tree, path: str, resource: Resource, rows: Rows, manager: str) -> None:
    """Add the row of one resource."""
    row = rows.row(manager_id=manager, component_id=path)
    row["component_type"] = KINDS[kind_of(resource)] or connector_type(path)
    rows.put(row, "name", resource.get("Name"))
    rows.put(row, "state", state(resource))
    rows.put(row, "health", health(resource))
    if state(resource) == "Absent":
        return
    for column, source in rows.stream.by_source("redfish"):
        for name in source.names:
            if name in resource:
                rows.put(row, column.name, reading(resource[name]), source.scale)
    flags = _flags(row, *_coolant(tree, path, resource))
    if flags:
        row["quality"] = ",".join(flags)


def connector_type(path: str) -> str:
    """Type of a connector, by the collection that it stands in."""
    if "/PrimaryCoolantConnectors/" in path:
        return "primary_connector"
    if "/SecondaryCoolantConnectors/" in path:
        return "secondary_connector"
    return "rack_connector"


def _coolant(tree: Tree, path: str, resource: Resource) -> tuple[float, float]:
    """Heat capacity in kJ/(kg K) and density in kg/m3: of the unit, of the connector, of water."""
    unit = tree.get(path.rsplit("/", 2)[0])
    loop = tree.get(link((resource.get("Links") or {}).get("ConnectedCoolingLoop")))
    for owner in (unit, loop, resource):
        coolant = owner.get("Coolant") if owner else None
        if isinstance(coolant, dict):
            heat = coolant.get("SpecificHeatkJoulesPerKgK")
            density = coolant.get("DensityKgPerCubicMeter")
            # Believed within what liquids that cool electronics have.
            if _within(heat, 0.5, 10.0) and _within(density, 500.0, 2_500.0):
                return float(heat), float(density)
    return WATER_HEAT_KJ_PER_KG_K, WATER_DENSITY_KG_PER_M3


def _within(value: object, low: float, high: float) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return low <= value <= high


def _flags(row: dict[str, object], heat_capacity: float, density: float) -> list[str]:
    def value(name: str) -> float | None:
        found = row.get(name)
        return found if isinstance(found, float) else None

    flags = []
    supply, back, delta = value("supply_temp_c"), value("return_temp_c"), value("delta_temp_k")
    if supply is not None and back is not None and delta is not None:
        slack = TEMP_SLACK_K + TEMP_TOLERANCE * abs(delta)
        if abs(abs(delta) - abs(back - supply)) > slack:
            flags.append("delta_temp_mismatch")
    supply_kpa, back_kpa = value("supply_pressure_kpa"), value("return_pressure_kpa")
    delta_kpa = value("delta_pressure_kpa")
    if supply_kpa is not None and back_kpa is not None and delta_kpa is not None:
        slack = PRESSURE_SLACK_KPA + PRESSURE_TOLERANCE * abs(delta_kpa)
        if abs(abs(delta_kpa) - abs(supply_kpa - back_kpa)) > slack:
            flags.append("delta_pressure_mismatch")
    heat, flow = value("heat_removed_kw"), value("flow_lpm")
    rise = delta if delta is not None else (
        back - supply if supply is not None and back is not None else None
    )  # fmt: skip
    if heat is not None and flow is not None and rise is not None:
        # Q [kW] = flow [L/min] / 60 000 [m3/s] x density [kg/m3] x c [kJ/(kg K)] x dT [K]
        computed = flow / 60_000 * density * heat_capacity * rise
        slack = HEAT_SLACK_KW + HEAT_TOLERANCE * max(abs(computed), abs(heat))
        if abs(computed - heat) > slack:
            flags.append("heat_mismatch")
    return flags
