"""Building-management points as NVIDIA's DSX exchange publishes them over MQTT.

A page is JSON, one message per line: ``{"topic": …, "payload": {…}, "at_ms": …}``; what the
collecting service holds of all points is such a page. Values come on change and every 100 s,
and some get lost: the last value is carried forward until it is too old
(:data:`STALE_S`). Metadata, which the building management retains, says what a point is of;
a point without it is a sensor of its own. A single payload is read too, with the target's
name as its topic.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pipeline.collectors.page import Page, Reading
from pipeline.collectors.rows import Rows
from pipeline.streams import Contracts

KIND = "bms"
# Published every 100 s at least: one may get lost, two hardly.
STALE_S = 250.0
GOOD = 1
MAX_POINTS = 100_000

_SUPPLY, _RETURN = "supply", "return"
# Point of a CDU or other equipment: column by the side of the loop that it is on.
_BY_SIDE = {
    ("LiquidTemperature", _SUPPLY): "supply_temp_c",
    ("LiquidTemperature", _RETURN): "return_temp_c",
    ("LiquidPressure", _SUPPLY): "supply_pressure_kpa",
    ("LiquidPressure", _RETURN): "return_pressure_kpa",
}
_OF_LOOP = {
    "LiquidFlow": "flow_lpm",
    "LiquidDifferentialPressure": "delta_pressure_kpa",
    "ValvePosition": "valve_position_percent",
}
_SETPOINTS = {
    "LiquidTemperature": "supply_temp_setpoint_c",
    "LiquidTemperatureSp": "supply_temp_setpoint_c",
    "LiquidFlow": "flow_setpoint_lpm",
    "LiquidFlowSp": "flow_setpoint_lpm",
    "LiquidDifferentialPressure": "delta_pressure_setpoint_kpa",
    "LiquidDifferentialPressureSp": "delta_pressure_setpoint_kpa",
}
_LEAKS = ("LeakDetect", "RackLeakDetect")
# A sensor of its own: the column of ``component`` for what it measures.
_ALONE = {"LiquidTemperature": "temp_c", "AirTemperature": "temp_c", "Humidity": "humidity_percent"}


_OBJECT = "`objectId`, `objectName`, of a rack `rackLocationId`; else the tag path"


def _by_column(points: dict[str, str], of: str) -> dict[str, str]:
    """Points of each column as words for a person."""
    return {
        ", ".join(f"`{name}`" for name, to in points.items() if to == column) + of: column
        for column in dict.fromkeys(points.values())
    }


# What is read beside the rack's points in the contracts, by stream: the point, and its column.
ALSO = {
    "coolant": {
        _OBJECT: "manager_id",
        "object type, object and its side or pump": "component_id",
        "object type, side and point type": "component_type",
        **{f"`{point}` of a CDU, {side}": column for (point, side), column in _BY_SIDE.items()},
        **_by_column(_OF_LOOP, " of a CDU"),
        **_by_column(_SETPOINTS, " of a CDU, set point"),
        "`LiquidDifferentialPressure` of a CDU's filter": "filter_pressure_kpa",
        "`PumpSpeed`": "pump_speed_percent",
        "`PumpSpeed`, set point": "pump_setpoint_percent",
    },
    "component": {
        _OBJECT: "manager_id",
        "object type, object and tag path": "component_id",
        "object type and point type": "entity_type",
        "tag path": "name",
        **_by_column(dict.fromkeys(_LEAKS, "leak"), ""),
        **_by_column(_ALONE, " of anything else"),
    },
}


@dataclass(slots=True)
class Point:
    """One point: what was published of it last.

    Attributes:
        at: when it came, or when the building management says that it was taken.
    """

    object_type: str
    point_type: str
    tag_path: str
    value: object = None
    quality: object = GOOD
    at: datetime | None = None
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def object_id(self) -> str:
        """What the point is of: the rack's location, the object, else the path itself."""
        names = ("rackLocationId", "rackLocationName") if self.object_type == "Rack" else ()
        for name in (*names, "objectId", "objectName"):
            found = self.about.get(name)
            if isinstance(found, str) and found:
                return found
        return self.tag_path

    @property
    def areas(self) -> frozenset[str]:
        """Words of ``processArea`` in lower case, such as secondary and supply."""
        raw = self.about.get("processArea")
        words = raw if isinstance(raw, list) else [raw] if raw else []
        return frozenset(part.lower() for word in words for part in str(word).split())


def read(page: Page, contracts: Contracts) -> Reading:
    """Rows of one page."""
    reading = Reading()
    points: dict[tuple[str, str, str], Point] = {}
    own_time: datetime | None = None
    for topic, payload, at in _messages(page, reading):
        kind, key = split_topic(topic)
        if key is None:
            reading.reject("unknown_topic")
            continue
        if len(points) >= MAX_POINTS and key not in points:
            reading.reject("too_many_points")
            continue
        point = points.setdefault(key, Point(*key))
        if kind == "Metadata":
            point.about = payload
            continue
        taken = _time(payload.get("timestamp"))
        if point.at is None or (at or taken or page.received_at) >= point.at:
            point.value, point.quality = payload.get("value"), payload.get("quality", GOOD)
            point.at = at or taken or page.received_at
        if topic == page.target:
            own_time = taken  # a single payload has its own time
    shown = replace(page, received_at=own_time) if own_time else page
    coolant = Rows(contracts["coolant"], reading, shown, KIND)
    component = Rows(contracts["component"], reading, shown, KIND)
    for point in points.values():
        if point.at is None:
            continue
        if own_time is None and page.received_at - point.at > timedelta(seconds=STALE_S):
            reading.reject("stale", point.point_type)
        elif point.quality != GOOD:
            reading.reject("bad_quality", point.point_type)
        elif point.value is not None:
            _row(point, coolant, component, reading)
    for name, rows in (("coolant", coolant), ("component", component)):
        table = rows.table()
        if table is not None:
            reading.tables[name] = table
    return reading


def split_topic(topic: str) -> tuple[str, tuple[str, str, str] | None]:
    """``Value`` or ``Metadata``, and object type, point type and path of a topic."""
    parts = topic.split("/", 6)
    if len(parts) != 7 or parts[:2] != ["BMS", "v1"] or parts[3] not in ("Value", "Metadata"):
        return "", None
    if not all(parts[4:]):
        return "", None
    return parts[3], (parts[4], parts[5], parts[6])


def _messages(
    page: Page, reading: Reading
) -> Iterator[tuple[str, dict[str, Any], datetime | None]]:
    whole = _json(page.body)
    if isinstance(whole, dict) and "topic" not in whole and "value" in whole:
        yield page.target, whole, None
        return
    for line in page.body.splitlines():
        if not line.strip():
            continue
        message = _json(line)
        topic = message.get("topic") if isinstance(message, dict) else None
        payload = message.get("payload") if isinstance(message, dict) else None
        if not isinstance(topic, str) or not isinstance(payload, dict):
            reading.reject("not_a_message")
            continue
        assert isinstance(message, dict)
        yield topic, payload, _time(message.get("at_ms"))


def _json(text: bytes) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _time(millis: object) -> datetime | None:
    if isinstance(millis, bool) or not isinstance(millis, (int, float)):
        return None
    try:
        time = datetime.fromtimestamp(millis / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return time if 2000 <= time.year < 2100 else None


def _row(point: Point, coolant: Rows, component: Rows, reading: Reading) -> None:
    owner = point.object_id
    path = f"BMS/{point.object_type}/{owner}"
    if point.point_type in _LEAKS:
        row = component.row(
            manager_id=owner, component_id=f"{path}/{point.tag_path}", entity_type="leak_detector"
        )
        component.put(row, "name", point.tag_path)
        component.put(row, "leak", _truth(point.value, reading))
        return
    if point.object_type == "Rack":
        _rack(point, owner, path, coolant, component)
    elif point.point_type == "PumpSpeed":
        row = _coolant_row(coolant, owner, f"{path}/pump/{point.tag_path}", "pump")
        asked = point.about.get("isSetpoint")
        coolant.put(row, "pump_setpoint_percent" if asked else "pump_speed_percent", point.value)
    elif point.object_type == "CDU" and (column := _loop_column(point)):
        side = next((name for name in ("primary", "secondary") if name in point.areas), None)
        if "filter" in point.areas:
            row = _coolant_row(coolant, owner, f"{path}/filter", "filter")
            if column == "delta_pressure_kpa":
                column = "filter_pressure_kpa"
        else:
            kind = f"{side}_connector" if side else "secondary_connector"
            row = _coolant_row(coolant, owner, f"{path}/{side or 'secondary'}", kind)
        coolant.put(row, column, point.value)
    elif point.point_type in _ALONE and not point.about.get("isSetpoint"):
        row = component.row(
            manager_id=owner, component_id=f"{path}/{point.tag_path}", entity_type="sensor"
        )
        component.put(row, "name", point.tag_path)
        component.put(row, _ALONE[point.point_type], point.value)


def _rack(point: Point, owner: str, path: str, coolant: Rows, component: Rows) -> None:
    """A rack's points have names of their own, which stand in the contracts."""
    for rows, make in ((coolant, _rack_loop), (component, _rack_itself)):
        for column, source in rows.stream.by_source("bms"):
            if point.point_type in source.names:
                rows.put(make(rows, owner, path), column.name, point.value, source.scale)


def _rack_loop(rows: Rows, owner: str, path: str) -> dict[str, object]:
    return _coolant_row(rows, owner, path, "rack_loop")


def _rack_itself(rows: Rows, owner: str, path: str) -> dict[str, object]:
    return rows.row(manager_id=owner, component_id=path, entity_type="rack")


def _coolant_row(rows: Rows, owner: str, path: str, kind: str) -> dict[str, object]:
    row = rows.row(manager_id=owner, component_id=path)
    row["component_type"] = kind
    return row


def _loop_column(point: Point) -> str | None:
    if point.about.get("isSetpoint") or point.point_type.endswith("Sp"):
        return _SETPOINTS.get(point.point_type)
    for side in (_SUPPLY, _RETURN):
        if side in point.areas and (point.point_type, side) in _BY_SIDE:
            return _BY_SIDE[point.point_type, side]
    return _OF_LOOP.get(point.point_type)


def _truth(value: object, reading: Reading) -> bool | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, float)) and value in (0, 1):
        return bool(value)
    reading.reject("not_a_truth_value", "leak")
    return None
