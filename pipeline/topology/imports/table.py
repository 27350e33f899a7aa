"""A plain CSV, for what nobody else knows: which rack hangs on which CDU, say.

Columns, any subset: ``kind,id,name,host,rack,row,tray,slot,rail,leaf,cdu,level,links`` and for
cables ``a,a_port,b,b_port,rate_gbps``. A line of kind ``rack`` describes a rack, one of kind
``nvlink``, ``host_leaf`` or ``leaf_spine`` a cable, others an entity.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import get_args

from pydantic import ValidationError

from pipeline.topology.imports.draft import Draft, NoTopologyError, Value, guid
from pipeline.topology.model import Cable, CableKind, Entity, EntityKind

_NUMBERS = ("tray", "slot", "rail", "links")
_CABLE = ("a", "a_port", "b", "b_port", "rate_gbps")
_TEXTS = ("name", "host", "rack", "leaf", "cdu", "level")
_FABRIC = ("hca", "ib_switch", "nvswitch")


def read(text: str, source: str) -> Draft:
    """Read a table; a line that is wrong costs itself, and a note says why.

    Where two lines differ on something the first one counts, as it does between sources.

    Raises:
        NoTopologyError: it has no line that can be read, or no column ``kind``.
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
            differing = _line(row, draft)
        except ValueError as exc:
            draft.skipped["bad_line"] += 1
            draft.notes.append(f"line {reader.line_num} is left out: {_why(exc)}")
            continue
        for name, taken, left in differing:
            draft.skipped["contradiction"] += 1
            draft.notes.append(
                f"line {reader.line_num}: {name} is {left} here and {taken} in an earlier line,"
                " which is taken"
            )
    if not draft.entities and not draft.racks and not draft.cables:
        named = ",".join(reader.fieldnames or ())
        hint = "" if "kind" in named.lower() else ": its first line must name a column kind"
        first = f": {draft.notes[0]}" if draft.notes and not hint else hint
        raise NoTopologyError(f"{source} has no line that can be read{first}")
    draft.facts |= {"entities": len(draft.entities), "cables": len(draft.cables)}
    return draft


def _why(exc: ValueError) -> str:
    if isinstance(exc, ValidationError):
        first = exc.errors()[0]
        return f"{first['loc'][-1]} {first.get('input')!r}: {first['msg']}"
    return str(exc)


def _lines(reader: csv.DictReader[str], source: str) -> Iterator[dict[str, str]]:
    try:
        yield from reader
    except csv.Error as exc:
        raise NoTopologyError(f"{source} is no CSV: {exc}") from exc


def _line(row: dict[str, str], draft: Draft) -> list[tuple[str, Value, Value]]:
    """State what a line says; returns what an earlier line said otherwise: name, that, this.

    Raises:
        ValueError: the line is wrong.
    """
    kind = row.get("kind", "")
    if kind in get_args(CableKind):
        cable = Cable.model_validate({name: row[name] for name in ("kind", *_CABLE) if name in row})
        draft.cable(cable.kind, cable.a, cable.a_port, cable.b, cable.b_port, cable.rate_gbps)
        return []
    if kind not in get_args(EntityKind):
        known = ", ".join((*get_args(EntityKind), *get_args(CableKind)))
        raise ValueError(f"kind {kind!r} is none of {known}")
    entity_id = row.get("id", "")
    if not entity_id:
        raise ValueError("it has no id")
    if kind in _FABRIC:
        entity_id = guid(entity_id) or entity_id
    said = {name: row[name] for name in (*_TEXTS, *_NUMBERS) if name in row}
    fields = Entity.model_validate({"kind": kind, "id": entity_id, **said}).model_dump(
        exclude_none=True, exclude={"kind", "id"}
    )
    of_rack: dict[str, Value] = {}
    if kind == "rack":
        of_rack |= {name: row[name] for name in ("row", "cdu") if name in row}
        fields["rack"] = entity_id
    elif kind == "host":
        fields.setdefault("host", entity_id)
    differing = _first_counts(fields, draft.entities.get((kind, entity_id), {}))
    if kind == "rack":
        seen = {name for name, _, _ in differing}
        more = _first_counts(of_rack, draft.racks.get(entity_id, {}))
        differing += [item for item in more if item[0] not in seen]
        draft.say_rack(entity_id, **of_rack)
    if fields.get("rack"):
        draft.say_rack(str(fields["rack"]))
    draft.say(kind, entity_id, **fields)
    return differing


def _first_counts(
    fields: dict[str, Value], known: Mapping[str, Value]
) -> list[tuple[str, Value, Value]]:
    """Take out of ``fields`` what is known otherwise, and return that."""
    differing = [
        (name, known[name], value)
        for name, value in fields.items()
        if name in known and known[name] != value
    ]
    for name, _, _ in differing:
        del fields[name]
    return differing
