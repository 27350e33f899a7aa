"""Where trays stand in their NVLink domain: NMX compute nodes, and DCGM's platform fields."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from pipeline.topology.imports.draft import Draft, NoTopologyError

_LINE = re.compile(r"\s*(?P<name>\w+)\{(?P<labels>.*)\}\s+(?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_SERIAL = "DCGM_FI_DEV_PLATFORM_CHASSIS_SERIAL_NUMBER"
_SLOT = "DCGM_FI_DEV_PLATFORM_CHASSIS_SLOT_NUMBER"
_TRAY = "DCGM_FI_DEV_PLATFORM_TRAY_INDEX"
_MODULE = "DCGM_FI_DEV_PLATFORM_MODULE_ID"


def read_nmx(raw: Any, source: str) -> Draft:
    """Read NMX's answer about compute nodes. The chassis' serial number names the rack.

    Raises:
        NoTopologyError: no node with a place stands in it.
    """
    draft = Draft(source)
    domains: set[str] = set()
    gpus = 0
    for node in raw if isinstance(raw, list) else []:
        place = node.get("LocationInfo") if isinstance(node, dict) else None
        name = node.get("Name") if isinstance(node, dict) else None
        if not isinstance(place, dict) or not name:
            draft.skipped["unknown_item"] += 1
            continue
        rack = place.get("ChassisSerialNumber") or node.get("DomainUUID")
        tray = place.get("TrayIndex")
        draft.say(
            "host", str(name), host=str(name), rack=str(rack) if rack else None,
            tray=_tray(tray),
        )  # fmt: skip
        if rack:
            draft.say_rack(str(rack))
        domain = str(node.get("DomainUUID"))
        domains.add(domain)
        own = node.get("GpuIDList")
        gpus += len(own) if isinstance(own, list) else 0
        draft.notes.append(
            f"{name}: slot {place.get('SlotID')} of chassis {rack}, NVLink domain {domain}, "
            f"{len(own) if isinstance(own, list) else 0} GPUs"
        )
    if not draft.entities:
        raise NoTopologyError(f"{source} names no compute node")
    draft.facts |= {"nodes": len(draft.entities), "domains": len(domains), "gpus": gpus}
    return draft


def read_dcgm(text: str, source: str) -> Draft:
    """Read the platform fields of a dcgm-exporter page: chassis, slot, tray and module.

    Raises:
        NoTopologyError: the page has none of them.
    """
    draft = Draft(source)
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        labels = dict(_LABEL.findall(match["labels"]))
        uuid = labels.get("UUID") or labels.get("gpu_uuid")
        if not uuid:
            continue
        gpu = found[uuid]
        host = labels.get("Hostname") or labels.get("hostname")
        if host:
            gpu["host"] = host
        for name in (_SERIAL, _SLOT, _TRAY, _MODULE):
            if name in labels:
                gpu[name] = labels[name]
            elif match["name"] == name:
                gpu[name] = match["value"]
    for uuid, gpu in found.items():
        rack, tray, module = gpu.get(_SERIAL), _whole(gpu.get(_TRAY)), _whole(gpu.get(_MODULE))
        if rack is None and tray is None:
            continue
        draft.say(
            "gpu", uuid, host=gpu.get("host"), rack=rack, tray=_tray(tray),
            slot=module - 1 if module is not None and 1 <= module <= 256 else None,
        )  # fmt: skip
        if gpu.get("host"):
            draft.say("host", gpu["host"], host=gpu["host"], rack=rack, tray=_tray(tray))
        if rack:
            draft.say_rack(rack)
    if not draft.entities:
        raise NoTopologyError(f"{source} has no platform fields: switch on DCGM fields 572 to 577")
    draft.facts["gpus"] = sum(kind == "gpu" for kind, _ in draft.entities)
    return draft


def _whole(text: str | None) -> int | None:
    try:
        number = float(text) if text is not None else None
    except ValueError:
        return None
    return int(number) if number is not None and 0 <= number < 2**31 else None


def _tray(index: Any) -> int | None:
    """Trays are counted from 1 here, and from 0 by NMX and DCGM."""
    return index + 1 if isinstance(index, int) and 0 <= index < 255 else None
