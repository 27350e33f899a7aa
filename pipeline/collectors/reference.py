"""The table of docs/collectors.md: what is read of each source, and into which column.

Names come from the contracts, as the readers take them; what a reader reads beside them stands
in its module, in ``ALSO``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.collectors.registry import KINDS, reader
from pipeline.streams import Contracts

BEGIN = "<!-- made by `rackpulse docs sources`; do not edit -->"
END = "<!-- end of what is made -->"
HEAD = ("kinds of target", "read", "id", "stream", "column", "unit", "factor")


@dataclass(frozen=True, slots=True)
class Entry:
    """One reading of one kind of source.

    Attributes:
        read: how the source names it, newest name first, as Markdown.
        id: the source's own number for it.
        factor: from the source's unit to the column's.
    """

    read: str
    id: str
    stream: str
    column: str
    unit: str
    factor: str


def entries(kind: str, contracts: Contracts) -> Iterator[Entry]:
    """What the reader of one kind reads."""
    module = reader(kind)
    sources = getattr(module, "CONTRACT_SOURCES", (getattr(module, "SOURCE", kind),))
    form = getattr(module, "NAME_FORM", None)
    asked_for = getattr(module, "NAMES", None)
    also = getattr(module, "ALSO", {})
    prefix = getattr(module, "PREFIX", "")
    for stream in contracts.values():
        if stream.name not in also:
            continue
        for text, column_name in also.get(stream.name, {}).items():
            unit = stream.column(column_name).unit or ""
            yield Entry(text, "", stream.name, column_name, unit, "")
        for source in sources:
            for column, known in stream.by_source(source):
                names = [
                    name
                    for name in known.names
                    if (form is None or form.fullmatch(name))
                    and (asked_for is None or name in asked_for[stream.name])
                ]
                if names:
                    yield Entry(
                        ", ".join(f"`{prefix}{name}`" for name in names),
                        "" if known.id is None else str(known.id),
                        stream.name,
                        column.name,
                        column.unit or "",
                        "" if known.scale == 1.0 else f"{known.scale:g}",
                    )


def render(contracts: Contracts) -> str:
    """The table with its markers; kinds that read the same share a row."""
    kinds_of: dict[Entry, list[str]] = {}
    for kind in KINDS:
        for entry in entries(kind, contracts):
            kinds_of.setdefault(entry, []).append(kind)
    lines = [BEGIN, "", f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    for entry, kinds in kinds_of.items():
        shown = ", ".join(f"`{kind}`" for kind in kinds)
        read = entry.read.replace("|", "\\|")
        lines.append(
            f"| {shown} | {read} | {entry.id} | {entry.stream} | `{entry.column}` | "
            f"{entry.unit} | {entry.factor} |"
        )
    return "\n".join([*lines, "", END, ""])
