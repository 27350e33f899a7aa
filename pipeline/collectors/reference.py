"""The table of docs/collectors.md: what is read of each source, and into which column."""

from __future__ import annotations

from pipeline.collectors.registry import KINDS
from pipeline.streams import Contracts

BEGIN = "<!-- made by `rackpulse docs sources`; do not edit -->"
END = "<!-- end of what is made -->"

# Source as it stands on rows: the kinds of target that give it.
SOURCES: dict[str, tuple[str, ...]] = {
    "dcgm": ("dcgm", "dcgm_dmon", "nvml"),
    "nmxt": ("nmxt",),
    "ib_exporter": ("ib_exporter",),
    "node_exporter": ("node_exporter_ib",),
    "ib_sysfs": ("ib_sysfs",),
    "perfquery": ("perfquery",),
    "ufm": ("ufm",),
    "ufm_words": ("ufm",),
    "sharp": ("sharp",),
    "redfish": ("redfish",),
    "bms": ("bms",),
}
# Kinds whose columns do not stand in the contracts as a list of names.
OTHERS: dict[str, str] = {
    "ibstat": "`ib_port`: state, physical state, rate, lid and link layer of each port",
    "ibswinfo": "`component`: temperature, power, fans and faults of a switch chassis",
    "kmsg": "`event`: Xid, SXid and lost GPUs of kernel log lines",
}


def render(contracts: Contracts) -> str:
    """The section with its markers."""
    lines = [BEGIN, ""]
    for source, kinds in SOURCES.items():
        shown = ", ".join(f"`{kind}`" for kind in kinds)
        lines += [f"### {source}", "", f"Kinds of target: {shown}.", ""]
        lines += [
            "| name in the source | id | stream | column | unit | factor |",
            "|---|---|---|---|---|---|",
        ]
        for stream in contracts.values():
            for column, known in stream.by_source(source):
                names = "<br>".join(f"`{name}`" for name in known.names)
                number = known.id if known.id is not None else ""
                factor = f"{known.scale:g}" if known.scale != 1.0 else ""
                lines.append(
                    f"| {names} | {number} | {stream.name} | `{column.name}` | "
                    f"{column.unit or ''} | {factor} |"
                )
        lines.append("")
    lines += ["### others", "", "| kind of target | what is read |", "|---|---|"]
    lines += [f"| `{kind}` | {text} |" for kind, text in OTHERS.items()]
    return "\n".join([*lines, "", END, ""])


def missing_kinds() -> set[str]:
    """Kinds of the registry that the table does not name."""
    return set(KINDS) - {kind for kinds in SOURCES.values() for kind in kinds} - set(OTHERS)
