"""A plain CSV, for what nobody else knows: which rack hangs on which CDU, say.

Columns, any subset: ``kind,id,name,host,rack,row,tray,slot,rail,leaf,cdu,level,links`` and for
cables ``a,a_port,b,b_port,rate_gbps``. A line of kind ``rack`` describes a rack, one of kind
``nvlink``, ``host_leaf`` or ``leaf_spine`` a cable, others an entity.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import get_args

from pipeline.topology.imports.draft import Draft, NoTopologyError, Value, guid
from pipeline.topology.model import CableKind, EntityKind

_NUMBERS = frozenset({"tray", "slot", "rail", "links"})
_TEXTS = ("name", "host", "rack", "leaf", "cdu", "level")
_FABRIC = ("hca", "ib_switch", "nvswitch")


def read(text: str, source: str) -> Draft:
    """Read a table; a line that is wrong costs itself.

    Raises:
        NoTopologyError: it has no line that can be read.
    """
    draft = Draft(source)
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    for line in _lines(reader, source):
        row = {
            str(key).strip().lower(): str(value).strip()
            for key, value in line.items()
            if key is not None and value not in (None, "")
        }
        if not row or row.get("kind", "").startswith("#"):
            continue
        try:
            _line(row, draft)
        except (ValueError, KeyError):
            draft.skipped["bad_line"] += 1
            draft.notes.append(f"line {reader.line_num} is left out")
    if not draft.entities and not draft.racks and not draft.cables:
        raise NoTopologyError(f"{source} has no line that can be read")
    draft.facts |= {"entities": len(draft.entities), "cables": len(draft.cables)}
    return draft


def _lines(reader: csv.DictReader[str], source: str) -> Iterator[dict[str, str]]:
    try:
        yield from reader
    except csv.Error as exc:
        raise NoTopologyError(f"{source} is no CSV: {exc}") from exc


def _line(row: dict[str, str], draft: Draft) -> None:
    kind = row["kind"]
    if kind in get_args(CableKind):
        rate = float(row["rate_gbps"]) if "rate_gbps" in row else None
        draft.cable(kind, row["a"], int(row["a_port"]), row["b"], int(row["b_port"]), rate)
        return
    if kind not in get_args(EntityKind):
        raise ValueError(kind)
    entity_id = row["id"]
    if kind in _FABRIC:
        entity_id = guid(entity_id) or entity_id
    fields: dict[str, Value | None] = {name: row.get(name) for name in _TEXTS}
    for name in _NUMBERS & row.keys():
        fields[name] = int(row[name])
    if kind == "rack":
        draft.say_rack(entity_id, row=row.get("row"), cdu=row.get("cdu"))
        fields["rack"] = entity_id
    elif kind == "host":
        fields["host"] = fields["host"] or entity_id
    if fields.get("rack"):
        draft.say_rack(str(fields["rack"]))
    draft.say(kind, entity_id, **fields)
