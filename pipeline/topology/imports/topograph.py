"""Models of NVIDIA topograph: switches over switches, blocks of nodes below a switch."""

from __future__ import annotations

from typing import Any

from pipeline.errors import ConfigError
from pipeline.topology.imports.draft import Draft, NoTopologyError, host_list


def read(raw: Any, source: str) -> Draft:
    """Read a parsed model. A block's accelerator sub-domain, else its domain, is its rack.

    Raises:
        NoTopologyError: it has neither switches nor blocks.
    """
    draft = Draft(source)
    switches = raw.get("switches") if isinstance(raw, dict) else None
    blocks = raw.get("blocks") if isinstance(raw, dict) else None
    if not isinstance(switches, dict) or not isinstance(blocks, list):
        raise NoTopologyError(f"{source} has no switches and blocks")
    leaves: set[str] = set()
    nodes = 0
    for block in blocks:
        if not isinstance(block, dict):
            draft.skipped["unknown_item"] += 1
            continue
        switch = block.get("switch")
        rack = _rack(block.get("annotations"))
        for entry in block.get("nodes") or []:
            try:
                found = host_list(str(entry))
            except ConfigError:
                draft.skipped["bad_host_list"] += 1
                continue
            nodes += len(found)
            for node in found:
                draft.say("host", node, host=node, leaf=str(switch) if switch else None, rack=rack)
        if switch:
            leaves.add(str(switch))
        if rack:
            draft.say_rack(rack)
    for name in {*map(str, switches), *leaves}:
        is_leaf = name in leaves
        draft.say(
            "ib_switch", name, name=name, level="leaf" if is_leaf else "spine",
            leaf=name if is_leaf else None,
        )  # fmt: skip
    draft.facts |= {"switches": len(switches), "blocks": len(blocks), "nodes": nodes}
    return draft


def _rack(annotations: Any) -> str | None:
    if not isinstance(annotations, dict):
        return None
    by_end = {str(key).rsplit("/", 1)[-1]: str(value) for key, value in annotations.items()}
    return by_end.get("sub-domain") or by_end.get("domain")
