"""``ibnetdiscover`` output: blocks per node, or one line per link (``-p``)."""

from __future__ import annotations

import re
from collections import defaultdict

from pipeline.topology.imports.draft import Draft, NoTopologyError, guid, rate_gbps

AGGREGATION = "Aggregation Node"
# Names that a machine has before anybody gave it one: they name no host.
_NO_HOST = re.compile(
    r"^(?:localhost|ubuntu|debian|rocky|MT\d+|Mellanox|NVIDIA|ConnectX.*)(?:\.|$)"
)
_NODE = re.compile(
    r'(?P<kind>Switch|Ca|Rt)\s+\d+\s+"(?P<id>[SHR]-[0-9a-f]+)"\s*#\s*"(?P<name>[^"]*)"'
)
_LINK = re.compile(
    r'\[(?P<port>\d+)\](?:\[ext \d+\])?(?:\([0-9a-f]+\))?\s+"(?P<far>[SHR]-[0-9a-f]+)"'
    r"\[(?P<far_port>\d+)\].*?(?:(?P<width>\d+)x(?P<speed>\w+))?\s*$"
)
_COMMENT = re.compile(r"(?:#|vendid=|devid=|sysimgguid=|switchguid=|caguid=|rtguid=|$)")
_LINE = re.compile(
    r"(?P<kind>CA|SW|RT)\s+\d+\s+(?P<port>\d+)\s+0x(?P<id>[0-9a-f]+)\s+(?P<width>\d+)x\s+(?P<speed>\S+)"
    r"(?:\s+-\s+(?P<far_kind>CA|SW|RT)\s+\d+\s+(?P<far_port>\d+)\s+0x(?P<far>[0-9a-f]+)\s+"
    r"\(\s*'(?P<name>[^']*)'\s+-\s+'(?P<far_name>[^']*)'\s*\)|\s+'(?P<alone>[^']*)')\s*$"
)
_SWITCH_NAME = re.compile(r"^MF\d+;(?P<name>[^:]+):")
_DEVICE_NUMBER = re.compile(r"(?P<style>[A-Za-z]\w*?[_-])(?P<number>\d+)$")
# Racks whose trays are named c01 to c18, or anything else that an option says.
HOST_PATTERN = r"(?P<rack>.+)-(?:c|tray-?)(?P<tray>\d{1,3})"
_RAIL_OPTIMISED = 0.9


def read(text: str, source: str, host_pattern: str = HOST_PATTERN) -> Draft:
    """Read either form.

    Args:
        host_pattern: regular expression with the groups ``rack`` and ``tray``, for hosts whose
            names say where they stand.

    Raises:
        NoTopologyError: there is no node in it, such as an error message instead of output.
    """
    draft = Draft(source)
    names: dict[str, str] = {}
    kinds: dict[str, str] = {}
    blocks = bool(re.search(r'^(?:Switch|Ca)\s+\d+\s+"', text, re.MULTILINE))
    (_read_blocks if blocks else _read_lines)(text, draft, names, kinds)
    if not kinds:
        raise NoTopologyError(f"{source} holds no node: {text.strip().splitlines()[:1] or 'empty'}")
    _describe(draft, names, kinds, re.compile(host_pattern))
    return draft


def _read_blocks(text: str, draft: Draft, names: dict[str, str], kinds: dict[str, str]) -> None:
    current = ""
    for line in text.splitlines():
        node = _NODE.match(line)
        if node:
            current = _id(node["id"])
            names[current], kinds[current] = node["name"], node["kind"][0].upper()
            continue
        link = _LINK.match(line)
        if link and current:
            rate = rate_gbps(int(link["width"]), link["speed"]) if link["width"] else None
            far = _id(link["far"])
            kinds.setdefault(far, "S" if link["far"][0] == "S" else "C")
            draft.cable("", current, int(link["port"]), far, int(link["far_port"]), rate)
        elif line.startswith("["):
            draft.skipped["link_without_peer_or_shape"] += 1
        elif not _COMMENT.match(line):
            draft.skipped["unknown_line"] += 1


def _read_lines(text: str, draft: Draft, names: dict[str, str], kinds: dict[str, str]) -> None:
    rows = {"CA": 0, "SW": 0, "RT": 0}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            if line.strip() and not line.startswith("#"):
                draft.skipped["unknown_line"] += 1
            continue
        rows[match["kind"]] += 1
        near = _id(match["id"])
        kinds[near] = match["kind"][0]
        names[near] = match["name"] or match["alone"] or ""
        if match["far"] is None:
            draft.skipped["port_without_peer"] += 1
            continue
        draft.facts["rows_with_peer"] = draft.facts.get("rows_with_peer", 0) + 1
        far = _id(match["far"])
        kinds.setdefault(far, match["far_kind"][0])
        names.setdefault(far, match["far_name"])
        rate = rate_gbps(int(match["width"]), match["speed"])
        draft.cable("", near, int(match["port"]), far, int(match["far_port"]), rate)
    draft.facts["ca_rows"], draft.facts["switch_rows"] = rows["CA"], rows["SW"]


def _id(text: str) -> str:
    return guid(text.split("-", 1)[-1]) or text


def _describe(
    draft: Draft, names: dict[str, str], kinds: dict[str, str], pattern: re.Pattern[str]
) -> None:
    switches = {node for node, kind in kinds.items() if kind == "S"}
    hosts = {
        node: _host(names.get(node, ""))
        for node in kinds
        if node not in switches and AGGREGATION not in names.get(node, "")
    }
    aggregation = {node for node in kinds if AGGREGATION in names.get(node, "")}
    ends = [(cable.a, cable.b) for cable in draft.cables.values()]
    leaf_of = {
        near: far
        for pair in ends
        for near, far in (pair, pair[::-1])
        if near in hosts and far in switches
    }
    leaves = set(leaf_of.values())
    draft.cables = {
        key: type(cable)(
            "leaf_spine" if cable.a in switches and cable.b in switches else "host_leaf",
            cable.a, cable.a_port, cable.b, cable.b_port, cable.rate_gbps,
        )
        for key, cable in draft.cables.items()
    }  # fmt: skip
    rails = _rails(names, leaf_of)
    for node in switches:
        name = _switch_name(names.get(node, "")) or None
        level = "leaf" if node in leaves else "spine"
        draft.say("ib_switch", node, name=name, level=level, leaf=name if level == "leaf" else None)
    for node, host in hosts.items():
        leaf = leaf_of.get(node)
        rack, tray = _rack(host, pattern)
        draft.say(
            "hca", node, name=names.get(node) or None, host=host, level="hca", rack=rack, tray=tray,
            leaf=_switch_name(names.get(leaf, "")) or leaf if leaf else None, rail=rails.get(node),
        )  # fmt: skip
        if host:
            draft.say("host", host, host=host, rack=rack, tray=tray)
        if rack:
            draft.say_rack(rack)
    for node in aggregation:
        draft.say("hca", node, name=names[node])
    unnamed = sum(host is None for host in hosts.values())
    if unnamed:
        draft.notes.append(f"{unnamed} HCAs have a name that names no host: they have no host")
    draft.facts |= {
        "switches": len(switches),
        "leaves": len(leaves),
        "spines": len(switches) - len(leaves),
        "cas": len(kinds) - len(switches),
        "aggregation_nodes": len(aggregation),
        "hcas_without_host": unnamed,
        "hosts": len({host for host in hosts.values() if host}),
        "cables": len(draft.cables),
    }


def _host(name: str) -> str | None:
    """The host in ``dgx-01 mlx5_4``; None where the name is a product's or a default."""
    words = name.split()
    if len(words) != 2 or _NO_HOST.match(words[0]):
        return None
    return words[0]


def _switch_name(name: str) -> str:
    match = _SWITCH_NAME.match(name)
    return match["name"] if match else name


def _rack(host: str | None, pattern: re.Pattern[str]) -> tuple[str | None, int | None]:
    match = pattern.fullmatch(host or "")
    if match is None:
        return None, None
    tray = int(match["tray"])
    return match["rack"], tray if tray <= 255 else None


def _rails(names: dict[str, str], leaf_of: dict[str, str]) -> dict[str, int]:
    """Rail of each HCA: the place of its device number among the numbers that there are.

    Said only where the fabric is wired by rail, that is where nearly every leaf serves one.
    """
    numbers: dict[str, set[int]] = defaultdict(set)
    devices: dict[str, tuple[str, int]] = {}
    for node in leaf_of:
        words = names.get(node, "").split()
        match = _DEVICE_NUMBER.fullmatch(words[-1]) if len(words) == 2 else None
        if match and _host(names[node]):
            devices[node] = (match["style"], int(match["number"]))
            numbers[match["style"]].add(int(match["number"]))
    rails = {
        node: sorted(numbers[style]).index(number) for node, (style, number) in devices.items()
    }
    by_leaf: dict[str, list[int]] = defaultdict(list)
    for node, rail in rails.items():
        by_leaf[leaf_of[node]].append(rail)
    pure = sum(max(map(found.count, found)) for found in by_leaf.values())
    if not rails or max(rails.values()) > 15 or pure < _RAIL_OPTIMISED * len(rails):
        return {}
    # One rail alone is a fabric without rails.
    return rails if len(set(rails.values())) > 1 else {}
