"""Faults and harmless events of a scenario: what, where, when, how bad.

A fault is a label first: which detector should name which entity, with which cause, and from
which moment on it can be seen. What it does to the hall stands in ``effects.py``.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import Any

from pipeline.errors import ConfigError
from pipeline.hall import constants as c
from pipeline.hall.fleet import Fleet


@dataclass(frozen=True)
class Cause:
    """A kind of fault.

    Attributes:
        detector: the detector that should find it.
        entity_kind: what it happens to: gpu, rack, cdu, hca or uplink.
        severity: lowest and highest severity that a draw takes; the meaning is the cause's own
            and stands in docs/hall.md.
        visible_at: share of the severity, on the way up, from which the effect is above the
            detectors' smallest meaningful one (5 % clock, 4 K, 10 % lost bandwidth).
        ramp_s: usual time from start to full severity, seconds.
        settle_s: time that the physics takes to show the severity, seconds.
        drawn: whether a draw for a demonstration may take it.
    """

    detector: str
    entity_kind: str
    severity: tuple[float, float]
    visible_at: float
    ramp_s: float
    settle_s: float = 0.0
    drawn: bool = False
    text: str = ""


CAUSES: dict[str, Cause] = {
    "capped_clocks": Cause(
        "straggler_gpu", "gpu", (0.14, 0.30), 0.35, 20, 10, True,
        "application clocks left low: severity is the share of clock lost",
    ),
    "degrading_cold_plate": Cause(
        "straggler_gpu", "gpu", (1.5, 2.1), 0.35, 60, 30, True,
        "cold plate loses contact: thermal resistance grows by this share",
    ),
    "host_interference": Cause(
        "straggler_gpu", "gpu", (0.22, 0.45), 0.4, 20, 10, True,
        "the host launches late: stalls per unit of compute time",
    ),
    "power_brake": Cause(
        "straggler_gpu", "gpu", (0.25, 0.5), 0.25, 5, 10, False,
        "the board's power brake: share of clock lost",
    ),
    "hbm_error_storm": Cause(
        "straggler_gpu", "gpu", (0.15, 0.4), 0.3, 60, 10, False,
        "correctable memory errors: share of time spent on them; samples get lost",
    ),
    "pcie_downtrain": Cause(
        "straggler_gpu", "gpu", (0.15, 0.35), 0.3, 5, 10, False,
        "PCIe at Gen3 x8: stalls per unit of compute time",
    ),
    "nvlink_flapping": Cause(
        "straggler_gpu", "gpu", (0.1, 0.3), 0.3, 30, 10, False,
        "one NVLink recovers again and again: share of step time lost to it",
    ),
    "gpu_lost": Cause(
        "straggler_gpu", "gpu", (1.0, 1.0), 0.5, 0, 0, False,
        "the GPU falls off the bus: its series end, its job stops",
    ),
    "blocked_quick_disconnect": Cause(
        "hot_rack", "rack", (0.58, 0.70), 0.55, 60, 60, True,
        "share of the rack's flow area that is blocked",
    ),
    "supply_drift": Cause(
        "hot_rack", "rack", (7.0, 11.0), 0.5, 90, 45, True,
        "warm return water leaks into the rack's supply: kelvin on top",
    ),
    "tired_pump": Cause(
        "hot_rack", "cdu", (0.82, 0.90), 0.8, 60, 60, True,
        "share of the pumps' head that is lost; the whole loop gets less flow",
    ),
    "valve_stuck": Cause(
        "hot_rack", "rack", (0.55, 0.72), 0.8, 5, 60, False,
        "share by which the rack's valve stays closed whatever is asked of it",
    ),
    "setpoint_drift": Cause(
        "hot_rack", "cdu", (5.0, 9.0), 0.6, 300, 60, False,
        "supply set-point of the whole CDU drifts up: kelvin",
    ),
    "small_leak": Cause(
        "hot_rack", "rack", (0.2, 0.5), 0.5, 120, 0, False,
        "a detector gets wet; flow and level fall slowly: litres per minute lost",
    ),
    "fouled_filter": Cause(
        "hot_rack", "cdu", (3.0, 5.0), 0.4, 600, 60, False,
        "the loop's flow resistance grows by this share of its own",
    ),
    "lying_flow_meter": Cause(
        "hot_rack", "rack", (0.25, 0.5), 0.5, 10, 0, False,
        "the flow meter reads low by this share: heat balance breaks, nothing is hot",
    ),
    "bad_cable": Cause(
        "congested_link", "uplink", (0.35, 0.60), 0.4, 20, 10, True,
        "share of the line rate lost to retries; symbol errors at the far end",
    ),
    "downed_uplink": Cause(
        "congested_link", "uplink", (2.0, 3.0), 0.5, 0, 10, True,
        "a twin-port module dies: one neighbour gets the load of so many links on top",
    ),
    "slow_receiver": Cause(
        "congested_link", "hca", (0.45, 0.70), 0.4, 20, 10, True,
        "share of the line rate that the host cannot take",
    ),
    "routing_imbalance": Cause(
        "congested_link", "uplink", (2.0, 3.0), 0.6, 20, 10, False,
        "extra share of its leaf's load that the routing gives to this link",
    ),
    "incast": Cause(
        "congested_link", "hca", (0.6, 1.0), 0.5, 20, 10, False,
        "load of many senders on one receiver, in line rates on top of its own",
    ),
}  # fmt: skip

BENIGN_KINDS = {
    "setpoint_change": "the facility raises every loop's supply set-point: level = kelvin",
    "hot_day": "all loops of the row get warmer together: level = kelvin",
    "maintenance": "a rack is drained and powered down: entity = rack",
    "driver_upgrade": "a host reboots with another driver; its counters start again: entity = host",
    "exporter_restart": "a host's exporter is away, comes back without profiling: entity = host",
    "missing_scrapes": "pages of a host are lost: entity = host, level = share of samples",
    "duplicate_scrapes": "pages of a host are read twice: entity = host",
    "frozen_page": "an exporter serves its last page again and again: entity = host",
    "blank_readings": "fields of a host read blank: entity = host, level = share of readings",
    "clock_skew": "a host's page comes late: entity = host, level = seconds",
    "balanced_saturation": "a job fills every uplink evenly: entity = partition, level = line rate",
    "stage_imbalance": "a job's last stage has more to do: entity = partition, level = share",
}


@dataclass(frozen=True)
class Fault:
    """One fault, or one harmless event (``detector`` empty).

    Attributes:
        entity: id that a detector should name: GPU UUID, rack, CDU, or ``guid/port``.
        index: number of the entity in the fleet's arrays.
        start, end: seconds since 1970; ``end`` is infinite while the fault stays.
        also: other ids that name the same fault rightly, such as a cable's far end.
    """

    cause: str
    detector: str
    entity_kind: str
    entity: str
    index: int
    severity: float
    start: float
    end: float = math.inf
    ramp_s: float = 0.0
    also: tuple[str, ...] = ()
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def benign(self) -> bool:
        return not self.detector

    def level(self, at: float) -> float:
        """Severity in force at a time, seconds since 1970."""
        if at < self.start or at >= self.end:
            return 0.0
        if self.ramp_s <= 0:
            return self.severity
        return self.severity * min(1.0, (at - self.start) / self.ramp_s)

    @property
    def visible_from(self) -> float:
        """When the effect is large enough to be judged."""
        cause = CAUSES.get(self.cause)
        if cause is None:
            return self.start
        return self.start + self.ramp_s * cause.visible_at + cause.settle_s

    def ended(self, at: float) -> Fault:
        """The same fault, over from ``at`` on."""
        return replace(self, end=min(self.end, at))


def make_fault(
    fleet: Fleet,
    cause: str,
    entity: str,
    start: float,
    *,
    severity: float | None = None,
    ramp_s: float | None = None,
    end: float = math.inf,
) -> Fault:
    """A fault of ``cause`` at ``entity``.

    Args:
        entity: GPU UUID, rack, CDU, ``guid/port`` of a fabric port, or the position
            ``rack-03/tray-07/slot-1`` of a GPU or its HCA.

    Raises:
        ConfigError: unknown cause or entity; the text lists what there is.
    """
    if cause not in CAUSES:
        raise ConfigError(f"No cause {cause!r}: there are {', '.join(CAUSES)}")
    kind = CAUSES[cause]
    index, name, also = locate(fleet, kind.entity_kind, entity)
    low, high = kind.severity
    if cause == "downed_uplink":
        links = module_of(fleet, index)
        also = tuple(
            end(fleet, link) for link in links for end in (leaf_end, spine_end)
            if end(fleet, link) != name
        )  # fmt: skip
    return Fault(
        cause=cause,
        detector=kind.detector,
        entity_kind={"hca": "ib_port", "uplink": "ib_port"}.get(kind.entity_kind, kind.entity_kind),
        entity=name,
        index=index,
        severity=(low + high) / 2 if severity is None else float(severity),
        start=start,
        end=end,
        ramp_s=kind.ramp_s if ramp_s is None else float(ramp_s),
        also=also,
    )


def make_benign(
    fleet: Fleet, kind: str, entity: str, start: float, end: float, *, level: float = 1.0,
    ramp_s: float = 0.0,
) -> Fault:  # fmt: skip
    """A harmless event.

    Raises:
        ConfigError: unknown kind or entity.
    """
    if kind not in BENIGN_KINDS:
        raise ConfigError(f"No benign event {kind!r}: there are {', '.join(BENIGN_KINDS)}")
    index = -1
    entity_kind = "cluster"
    if kind == "maintenance":
        index, entity_kind = _number(fleet.rack_ids, entity, "rack"), "rack"
    elif kind in ("balanced_saturation", "stage_imbalance"):
        index, entity_kind = int(entity.removeprefix("partition-")), "partition"
    elif kind not in ("setpoint_change", "hot_day"):
        index, entity_kind = _number(fleet.hosts, entity, "host"), "host"
    return Fault(kind, "", entity_kind, entity, index, level, start, end, ramp_s)


def locate(fleet: Fleet, kind: str, entity: str) -> tuple[int, str, tuple[str, ...]]:
    """Number, id and other right ids of an entity of a cause.

    Raises:
        ConfigError: there is no such entity.
    """
    if kind == "rack":
        return _number(fleet.rack_ids, entity, "rack"), entity, ()
    if kind == "cdu":
        return _number(fleet.cdu_ids, entity, "CDU"), entity, ()
    if kind in ("gpu", "hca"):
        number = _gpu_number(fleet, kind, entity)
        if kind == "gpu":
            return number, fleet.gpu_uuids[number], ()
        leaf = fleet.leaf_guids[fleet.gpu_leaf[number]]
        leaf_side = f"{leaf}/{fleet.gpu_leaf_port[number]}"
        return number, f"{fleet.hca_guids[number]}/1", (leaf_side,)
    number = _uplink_number(fleet, entity)
    near = leaf_end(fleet, number)
    return number, near, (spine_end(fleet, number),)


def leaf_end(fleet: Fleet, link: int) -> str:
    """``guid/port`` of a fabric link's leaf side."""
    return f"{fleet.leaf_guids[fleet.up_leaf[link]]}/{fleet.up_port[link]}"


def spine_end(fleet: Fleet, link: int) -> str:
    """``guid/port`` of a fabric link's spine side."""
    return f"{fleet.spine_guids[fleet.up_spine[link]]}/{fleet.spine_port[link]}"


def module_of(fleet: Fleet, link: int) -> tuple[int, int, int]:
    """The two links of a twin-port module, and the neighbour that takes their load."""
    leaf, port = divmod(link, fleet.uplinks)
    first = port - port % 2
    second = min(first + 1, fleet.uplinks - 1)
    base = leaf * fleet.uplinks
    return base + first, base + second, base + (first + 2) % fleet.uplinks


def _number(names: list[str], name: str, what: str) -> int:
    try:
        return names.index(name)
    except ValueError:
        raise ConfigError(f"No {what} {name!r} in this hall: {names[0]} to {names[-1]}") from None


_POSITION = re.compile(r"(?P<rack>.+)/tray-(?P<tray>\d{1,2})/slot-(?P<slot>\d)")


def _gpu_number(fleet: Fleet, kind: str, entity: str) -> int:
    found = _POSITION.fullmatch(entity)
    if found is not None:
        rack = _number(fleet.rack_ids, found["rack"], "rack")
        tray, slot = int(found["tray"]) - 1, int(found["slot"])
        if not (0 <= tray < c.TRAYS and slot < c.GPUS_PER_TRAY):
            raise ConfigError(f"No GPU at {entity}: trays 1 to 18, slots 0 to 3")
        return (rack * c.TRAYS + tray) * c.GPUS_PER_TRAY + slot
    if kind == "gpu":
        return _number(fleet.gpu_uuids, entity, "GPU")
    return _number(fleet.hca_guids, entity.split("/")[0], "HCA")


def _uplink_number(fleet: Fleet, entity: str) -> int:
    """A fabric link by ``guid/port`` or ``leaf-name/port``, from either end."""
    switch, _, port_text = entity.partition("/")
    if port_text.isdigit():
        port = int(port_text)
        for names in (fleet.leaf_guids, fleet.leaf_names):
            if switch in names:
                index = port - c.LEAF_DOWN - 1
                if 0 <= index < fleet.uplinks:
                    return names.index(switch) * fleet.uplinks + index
        for names in (fleet.spine_guids, fleet.spine_names):
            if switch in names:
                spine = names.index(switch)
                found = (fleet.up_spine == spine) & (fleet.spine_port == port)
                if found.any():
                    return int(found.argmax())
    first, last = c.LEAF_DOWN + 1, c.LEAF_DOWN + fleet.uplinks
    raise ConfigError(f"No fabric link {entity!r}: name it as leaf-r1-1/{first} up to /{last}")
