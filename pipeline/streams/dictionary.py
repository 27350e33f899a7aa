"""The data dictionary: one Markdown page made from the contracts."""

from __future__ import annotations

from pipeline.streams.contract import Column, Contracts, Source, Stream
from pipeline.streams.ddl import clickhouse_type

_HEAD = """# Data dictionary

Made from the contracts in `schemas/` by `rackpulse docs data-dictionary`; do not edit.

A missing reading is NULL, never 0 and never a sentinel. Counters are stored as they come;
rates belong in SQL. Times are UTC.
"""


def _source(kind: str, source: Source) -> str:
    number = f" {source.id}" if source.id is not None else ""
    scale = f" x {source.scale:g}" if source.scale != 1.0 else ""
    return f"{kind}{number}: " + ", ".join(f"`{name}`" for name in source.names) + scale


def _row(column: Column) -> str:
    unit = column.unit or ""
    valid = f"{column.range[0]:g} to {column.range[1]:g}" if column.range else ""
    sources = "<br>".join(_source(kind, source) for kind, source in column.sources.items())
    cells = (
        f"`{column.name}`", clickhouse_type(column), column.kind, unit, valid,
        column.description, sources,
    )  # fmt: skip
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _table(stream: Stream) -> str:
    lines = [
        f"## telemetry.{stream.name}",
        "",
        f"{stream.description}. Contract version {stream.version}. "
        f"Entity: {', '.join(f'`{name}`' for name in stream.entity)}. "
        f"Kafka key: the first known of {', '.join(f'`{name}`' for name in stream.key)}.",
        "",
        "| column | type | kind | unit | believed range | meaning | sources |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(_row(column) for column in stream.columns), ""])


def render(contracts: Contracts) -> str:
    """The whole page."""
    return "\n".join([_HEAD, *(_table(stream) for stream in contracts.values())])
