"""Reading a source of any form, told by its content where nobody says."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.errors import ConfigError, missing_extra
from pipeline.topology.imports import (
    ibnetdiscover,
    nvlink_domains,
    slurm,
    table,
    topograph,
)
from pipeline.topology.imports.draft import Draft, NoTopologyError
from pipeline.topology.model import Topology

MAX_BYTES = 512_000_000
FORMS = ("ibnetdiscover", "slurm", "topograph", "nmx", "dcgm", "csv", "topology")


def read_source(
    path: Path, form: str | None = None, host_pattern: str = ibnetdiscover.HOST_PATTERN
) -> Draft:
    """Read one source.

    Args:
        path: a file, also compressed with gzip.
        form: one of :data:`FORMS`; by default the content tells.

    Raises:
        ConfigError: it cannot be read, or holds no topology.
    """
    text = _text(path)
    name = path.name
    chosen = form or guess(text, name)
    if chosen == "ibnetdiscover":
        return ibnetdiscover.read(text, name, host_pattern)
    if chosen == "csv":
        return table.read(text, name)
    if chosen == "dcgm":
        return nvlink_domains.read_dcgm(text, name)
    if chosen == "slurm":
        if re.search(r"^\s*(?:SwitchName|BlockName)=", text, re.MULTILINE | re.IGNORECASE):
            return slurm.read_conf(text, name)
        return _parsed(slurm.read_yaml, _yaml(text, name), name)
    if chosen == "topograph":
        return _parsed(topograph.read, _yaml(text, name), name)
    if chosen == "nmx":
        return _parsed(nvlink_domains.read_nmx, _json(text, name), name)
    if chosen == "topology":
        return _of_topology(_json(text, name), name)
    raise NoTopologyError(f"{path}: its form is not known; say one of {', '.join(FORMS)}")


def guess(text: str, name: str) -> str:
    """The form of a source, by what stands in it; empty where nothing fits."""
    head = text[:200_000]
    if re.search(r'^(?:Switch|Ca)\s+\d+\s+"[SHR]-', head, re.MULTILINE) or re.search(
        r"^(?:CA|SW)\s+\d+\s+\d+\s+0x", head, re.MULTILINE
    ):
        return "ibnetdiscover"
    if "ibnetdiscover" in head or "Topology file: generated" in head:
        return "ibnetdiscover"
    if re.search(r"^\s*(?:SwitchName|BlockName)=", head, re.MULTILINE | re.IGNORECASE):
        return "slurm"
    stripped = head.lstrip()
    if stripped.startswith("[") and '"LocationInfo"' in head:
        return "nmx"
    if stripped.startswith("{") and '"cluster"' in head:
        return "topology"
    if "DCGM_FI_DEV_" in head:
        return "dcgm"
    if re.search(r"^-\s+topology:", head, re.MULTILINE):
        return "slurm"
    if re.search(r"^blocks:", head, re.MULTILINE) and re.search(r"^switches:", head, re.MULTILINE):
        return "topograph"
    first = stripped.splitlines()[0] if stripped else ""
    if name.endswith(".csv") or ("," in first and "kind" in first.lower()):
        return "csv"
    return ""


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_BYTES} bytes")
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            with gzip.open(path) as stream:
                raw = stream.read(MAX_BYTES)
        return raw.decode("utf-8", "replace")
    except (OSError, EOFError) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}") from exc


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{name} is not JSON: {exc}") from exc


def _yaml(text: str, name: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError as exc:
        raise missing_extra("pyyaml", "all") from exc
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as exc:
        raise ConfigError(f"{name} is not YAML: {exc}") from exc


def _parsed(read: Callable[[Any, str], Draft], raw: Any, name: str) -> Draft:
    try:
        return read(raw, name)
    except (KeyError, TypeError, AttributeError) as exc:
        raise ConfigError(f"{name} has a shape that was not expected: {exc!r}") from exc


def _of_topology(raw: Any, name: str) -> Draft:
    try:
        topology = Topology.model_validate(raw)
    except ValidationError as exc:
        first = exc.errors(include_input=False)[0]
        raise ConfigError(f"{name}: {first['loc']}: {first['msg']}") from exc
    draft = Draft(name)
    for rack in topology.racks:
        draft.say_rack(rack.id, row=rack.row, cdu=rack.cdu)
    for entity in topology.entities:
        fields = entity.model_dump(exclude={"kind", "id"}, exclude_none=True)
        draft.say(entity.kind, entity.id, **fields)
    for cable in topology.cables:
        draft.cable(cable.kind, cable.a, cable.a_port, cable.b, cable.b_port, cable.rate_gbps)
    draft.facts |= {"entities": len(topology.entities), "cables": len(topology.cables)}
    return draft
