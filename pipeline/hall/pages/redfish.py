"""Redfish trees: one manager per CDU, one per rack. Made by hand after DMTF's schemas."""

from __future__ import annotations

from typing import Any

from pipeline.hall import constants as c
from pipeline.hall import names
from pipeline.hall.fleet import Fleet
from pipeline.hall.view import View

Resource = dict[str, Any]
ROOT = "/redfish/v1"
_COOLANT = {
    "CoolantType": "Water",
    "AdditiveName": "Glycol",
    "AdditivePercent": 20,
    "SpecificHeatkJoulesPerKgK": c.SPECIFIC_HEAT,
    "DensityKgPerCubicMeter": 1000 * c.DENSITY,
}
_OK = {"State": "Enabled", "Health": "OK"}
# Contract column: property of a coolant connector.
_CONNECTOR = {
    "supply_temp_c": "SupplyTemperatureCelsius",
    "return_temp_c": "ReturnTemperatureCelsius",
    "delta_temp_k": "DeltaTemperatureCelsius",
    "flow_lpm": "FlowLitersPerMinute",
    "supply_pressure_kpa": "SupplyPressurekPa",
    "return_pressure_kpa": "ReturnPressurekPa",
    "delta_pressure_kpa": "DeltaPressurekPa",
    "heat_removed_kw": "HeatRemovedkW",
    "valve_position_percent": "ValvePositionPercent",
}


class RedfishTrees:
    """Resources of the hall's managers."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def get(self, view: View, manager: str, path: str) -> Resource | None:
        """One resource; None where there is none.

        Args:
            path: ``@odata.id``, without a slash at the end.
        """
        f = self._fleet
        if manager in f.rack_ids:
            found = self._rack(view, f.rack_ids.index(manager), manager, path)
        elif manager in f.cdu_ids:
            found = self._cdu(view, f.cdu_ids.index(manager), manager, path)
        else:
            return None
        return None if found is None else {"@odata.id": path, **found}

    # --- racks ---
    def _rack(self, view: View, number: int, rack: str, path: str) -> Resource | None:
        chassis = names.rack_path(rack)
        thermal = f"{chassis}/ThermalSubsystem"
        connectors = f"{thermal}/CoolantConnectors"
        if path == ROOT:
            return _root(rack, Chassis=f"{ROOT}/Chassis")
        if path == f"{ROOT}/Chassis":
            return _collection("Chassis", [chassis])
        if path == chassis:
            return {
                "@odata.type": "#Chassis.v1_25_0.Chassis",
                "Id": rack, "Name": rack, "ChassisType": "Rack", "Status": _OK,
                "EnvironmentMetrics": _link(f"{chassis}/EnvironmentMetrics"),
                "ThermalSubsystem": _link(thermal),
            }  # fmt: skip
        if path == f"{chassis}/EnvironmentMetrics":
            where = slice(number, number + 1)
            energy = view.counter("rack", "energy_j", where)[0]
            return {
                "@odata.type": "#EnvironmentMetrics.v1_3_0.EnvironmentMetrics",
                "Id": "EnvironmentMetrics", "Name": f"{rack} Environment",
                "PowerWatts": _reading(view, "rack", "power_w", number),
                "EnergyJoules": {"Reading": int(energy)},
                "TemperatureCelsius": _reading(view, "rack", "temp_c", number),
            }  # fmt: skip
        if path == thermal:
            return {
                "@odata.type": "#ThermalSubsystem.v1_4_0.ThermalSubsystem",
                "Id": "ThermalSubsystem", "Name": "Thermal Subsystem", "Status": _OK,
                "CoolantConnectors": _link(connectors),
                "LeakDetection": _link(f"{thermal}/LeakDetection"),
            }  # fmt: skip
        if path == connectors:
            return _collection("CoolantConnector", [f"{connectors}/1"])
        if path == f"{connectors}/1":
            return {
                **_connector("1", names.RACK_CONNECTOR_NAME),
                "Coolant": _COOLANT,
                "RatedFlowLitersPerMinute": c.FLOW_MAX_LPM,
                **_readings(view, "connector", "", number),
            }
        if path == f"{thermal}/LeakDetection":
            return self._leaks(view, number, rack)
        return None

    def _leaks(self, view: View, number: int, rack: str) -> Resource:
        per_rack = c.TRAYS * c.LEAK_DETECTORS_PER_TRAY
        _, states = names.leak_states(view.after)
        own = states[number * per_rack : (number + 1) * per_rack]
        return {
            "@odata.type": "#LeakDetection.v1_2_0.LeakDetection",
            "Id": "LeakDetection", "Name": "Leak Detection", "Status": _OK,
            "LeakDetectorGroups": [
                {
                    "GroupName": "Trays",
                    "Detectors": [
                        {
                            "DeviceName": names.leak_name(detector),
                            "DetectorState": state,
                            "DataSourceUri": names.leak_path(rack, detector),
                        }
                        for detector, state in enumerate(own)
                    ],
                }
            ],
        }  # fmt: skip

    # --- CDUs ---
    def _cdu(self, view: View, number: int, cdu: str, path: str) -> Resource | None:
        unit = names.CDU_PATH
        if path == ROOT:
            return _root(cdu, ThermalEquipment=f"{ROOT}/ThermalEquipment")
        if path == f"{ROOT}/ThermalEquipment":
            return {
                "@odata.type": "#ThermalEquipment.v1_2_0.ThermalEquipment",
                "Id": "ThermalEquipment", "Name": "Cooling Equipment",
                "CDUs": _link(f"{ROOT}/ThermalEquipment/CDUs"),
            }  # fmt: skip
        if path == f"{ROOT}/ThermalEquipment/CDUs":
            return _collection("CoolingUnit", [unit])
        if path == unit:
            return {
                "@odata.type": "#CoolingUnit.v1_5_0.CoolingUnit",
                "Id": "1", "Name": names.cdu_name(cdu), "EquipmentType": "CDU",
                "Status": {**_OK, "HealthRollup": "OK"}, "Coolant": _COOLANT,
                **{
                    part: _link(f"{unit}/{part}")
                    for part in ("PrimaryCoolantConnectors", "SecondaryCoolantConnectors",
                                 "Pumps", "Filters", "Reservoirs", "EnvironmentMetrics")
                },
            }  # fmt: skip
        if path == f"{unit}/EnvironmentMetrics":
            return {
                "@odata.type": "#EnvironmentMetrics.v1_3_0.EnvironmentMetrics",
                "Id": "EnvironmentMetrics", "Name": "CDU Environment",
                "PowerWatts": _reading(view, "cdu", "power_w", number),
            }  # fmt: skip
        return self._cdu_part(view, number, path)

    def _cdu_part(self, view: View, number: int, path: str) -> Resource | None:
        for part, kind, count in (
            ("primary", "CoolantConnector", 1), ("secondary", "CoolantConnector", 1),
            ("pump", "Pump", 2), ("filter", "Filter", 1), ("reservoir", "Reservoir", 1),
        ):  # fmt: skip
            members = [names.cdu_part_path(part, member + 1) for member in range(count)]
            if path == members[0].rsplit("/", 1)[0]:
                return _collection(kind, members)
            if path in members:
                return self._part(view, number, part, members.index(path))
        return None

    def _part(self, view: View, cdu: int, part: str, member: int) -> Resource:
        name, own_id = names.cdu_part_name(part, member + 1), str(member + 1)
        if part in ("primary", "secondary"):
            found = {**_connector(own_id, name), **_readings(view, "cdu", f"{part}_", cdu)}
            if part == "secondary":
                setpoint = float(
                    view.gauge("cdu", "supply_temp_setpoint_c", slice(cdu, cdu + 1))[0]
                )
                found["SupplyTemperatureControlCelsius"] = {"SetPoint": setpoint}
                found["DeltaPressureControlkPa"] = {"SetPoint": c.DP_SET_KPA}
            return found
        if part == "pump":
            pump = 2 * cdu + member
            hours = view.counter("pump", "service_hours", slice(pump, pump + 1))[0]
            asked = float(view.gauge("pump", "pump_setpoint_percent", slice(pump, pump + 1))[0])
            return {
                "@odata.type": "#Pump.v1_2_0.Pump",
                "Id": own_id, "Name": name, "PumpType": "Liquid", "Status": _OK,
                "ServiceHours": int(hours),
                "PumpSpeedPercent": _reading(view, "pump", "pump_speed_percent", pump),
                "SpeedControlPercent": {"ControlMode": "Automatic", "SetPoint": asked},
            }  # fmt: skip
        if part == "filter":
            return {
                "@odata.type": "#Filter.v1_1_0.Filter", "Id": own_id, "Name": name, "Status": _OK,
                "DeltaLiquidPressurekPa": _reading(view, "cdu", "filter_pressure_kpa", cdu),
            }  # fmt: skip
        return {
            "@odata.type": "#Reservoir.v1_1_0.Reservoir", "Id": own_id, "Name": name,
            "Status": _OK,
            "FluidLevelPercent": _reading(view, "cdu", "level_percent", cdu),
        }  # fmt: skip


def _root(manager: str, **services: str) -> Resource:
    return {
        "@odata.type": "#ServiceRoot.v1_17_0.ServiceRoot",
        "Id": "RootService", "Name": manager, "RedfishVersion": "1.21.0",
        **{name: _link(path) for name, path in services.items()},
    }  # fmt: skip


def _collection(kind: str, members: list[str]) -> Resource:
    return {
        "@odata.type": f"#{kind}Collection.{kind}Collection",
        "Name": f"{kind} Collection",
        "Members@odata.count": len(members),
        "Members": [_link(path) for path in members],
    }


def _connector(own_id: str, name: str) -> Resource:
    return {
        "@odata.type": "#CoolantConnector.v1_3_0.CoolantConnector",
        "Id": own_id, "Name": name, "Status": _OK, "CoolantConnectorType": "Pair",
    }  # fmt: skip


def _readings(view: View, part: str, prefix: str, number: int) -> Resource:
    columns = getattr(view.after, part)
    return {
        name: _reading(view, part, prefix + column, number)
        for column, name in _CONNECTOR.items()
        if prefix + column in columns
    }


def _reading(view: View, part: str, column: str, number: int) -> Resource:
    return {"Reading": float(view.gauge(part, column, slice(number, number + 1))[0])}


def _link(path: str) -> Resource:
    return {"@odata.id": path}
