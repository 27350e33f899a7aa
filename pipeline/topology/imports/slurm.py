"""Slurm's topology: ``topology.conf`` (tree and block) and ``topology.yaml``."""

from __future__ import annotations

import re
from typing import Any

from pipeline.errors import ConfigError
from pipeline.topology.imports.draft import Draft, NoTopologyError, host_list

_KEYS = re.compile(r"(\w+)=(\"[^\"]*\"|\S+)")
_DOMAIN = re.compile(r"#\s*(?P<block>[^\s=]+)=(?P<domain>\S+)\s*$")


def read_conf(text: str, source: str) -> Draft:
    """Read ``topology.conf``.

    Raises:
        NoTopologyError: no switch and no block stands in it.
    """
    draft = Draft(source)
    switches: dict[str, tuple[list[str], list[str]]] = {}
    blocks: dict[str, list[str]] = {}
    domains: dict[str, str] = {}
    for raw in _joined_lines(text):
        domain = _DOMAIN.match(raw)
        if domain:
            domains[domain["block"]] = domain["domain"]
        line = raw.split("#", 1)[0].strip()
        if not line:
            continue
        fields = {key.lower(): value.strip('"') for key, value in _KEYS.findall(line)}
        try:
            if "switchname" in fields:
                switches[fields["switchname"]] = (
                    host_list(fields.get("switches", "")), host_list(fields.get("nodes", "")),
                )  # fmt: skip
            elif "blockname" in fields:
                blocks[fields["blockname"]] = host_list(fields.get("nodes", ""))
            elif "blocksizes" in fields:
                draft.notes.append(f"block sizes {fields['blocksizes']}")
            else:
                draft.skipped["unknown_line"] += 1
        except ConfigError:
            draft.skipped["bad_host_list"] += 1
    if not switches and not blocks:
        raise NoTopologyError(f"{source} names no switch and no block")
    _say(draft, switches, blocks)
    for block, domain_name in domains.items():
        if block in blocks:
            draft.notes.append(f"block {block} is NVLink domain {domain_name}")
    return draft


def read_yaml(raw: Any, source: str) -> Draft:
    """Read the parsed ``topology.yaml``: a list of named topologies.

    Raises:
        NoTopologyError: none of them has switches or blocks.
    """
    draft = Draft(source)
    switches: dict[str, tuple[list[str], list[str]]] = {}
    blocks: dict[str, list[str]] = {}
    for entry in raw if isinstance(raw, list) else []:
        if not isinstance(entry, dict):
            draft.skipped["unknown_item"] += 1
            continue
        tree, block = entry.get("tree"), entry.get("block")
        for switch in (tree or {}).get("switches", []) if isinstance(tree, dict) else []:
            switches[str(switch["switch"])] = (
                host_list(str(switch.get("children") or "")),
                host_list(str(switch.get("nodes") or "")),
            )
        for item in (block or {}).get("blocks", []) if isinstance(block, dict) else []:
            blocks[str(item["block"])] = host_list(str(item.get("nodes") or ""))
    if not switches and not blocks:
        raise NoTopologyError(f"{source} names no switch and no block")
    _say(draft, switches, blocks)
    return draft


def _joined_lines(text: str) -> list[str]:
    return text.replace("\\\n", " ").splitlines()


def _say(
    draft: Draft, switches: dict[str, tuple[list[str], list[str]]], blocks: dict[str, list[str]]
) -> None:
    for switch, (_, nodes) in switches.items():
        level = "leaf" if nodes else "spine"
        draft.say("ib_switch", switch, name=switch, level=level, leaf=switch if nodes else None)
        for node in nodes:
            draft.say("host", node, host=node, leaf=switch)
    for block, nodes in blocks.items():
        draft.say_rack(block)
        for node in nodes:
            draft.say("host", node, host=node, rack=block)
    draft.facts |= {
        "switches": len(switches),
        "blocks": len(blocks),
        "nodes": sum(kind == "host" for kind, _ in draft.entities),
    }
