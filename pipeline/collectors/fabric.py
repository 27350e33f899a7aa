"""What the InfiniBand and NVLink readers share: GUIDs, port states, line rates."""

from __future__ import annotations

import re

from pipeline.collectors.grid import Grid
from pipeline.collectors.page import Page, Reading

_HEX = re.compile(r"[0-9a-f]{1,16}")
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")

# Numbers that the kernel and exporters print for a state.
PORT_STATES = {1: "down", 2: "init", 3: "armed", 4: "active", 5: "active_defer"}
PHYS_STATES = {
    1: "sleep", 2: "polling", 3: "disabled", 4: "portconfigurationtraining", 5: "linkup",
    6: "linkerrorrecovery", 7: "phytest",
}  # fmt: skip
# Adapters that know Ethernet only, by the name that udev or their driver gives them. A ConnectX
# called mlx5_0 may be either; a bond of two is made for RoCE alone.
_ETHERNET_ONLY = re.compile(
    r"(?:roce|iwp|i40iw|irdma|bnxt_re|cxgb[34]|qedr|hns_|erdma|mana_|rxe|siw|mlx5_bond_?)[\w.]*"
)
# A base LID that stands for none.
NO_LID = frozenset((0, 0xFFFF, 0xFFFFFFFF))


def normal_guid(text: str | None) -> str | None:
    """A GUID as ``0x`` and sixteen lower-case digits; None where the text is none.

    ``0c42:a103:00d9:c078``, ``c42a10300d9c078`` and ``0x0C42A10300D9C078`` are the same.
    """
    if not text:
        return None
    bare = text.strip().lower().removeprefix("0x").replace(":", "")
    if not _HEX.fullmatch(bare) or not bare.strip("0"):
        return None
    return "0x" + bare.rjust(16, "0")


def guid_or_device(page: Page, guid: str | None, device: str, reading: Reading) -> str:
    """The GUID of an adapter, else its name on its host, which a new host name changes."""
    found = normal_guid(guid)
    if found is not None:
        return found
    reading.note("adapter without GUID: its device name on its host stands for it")
    return f"{page.host or page.target}/{device}"


def state_word(text: str) -> str:
    """The word of a state such as ``4: ACTIVE`` or ``LinkUp``, in lower case."""
    return text.rpartition(":")[2].strip().lower()


def link_layer(said: str | None, device: str) -> str | None:
    """``InfiniBand`` or ``Ethernet``: what the source says, else what the device's name tells.

    A RoCE port stands among the InfiniBand ports of its host, with the same counters and a rate
    in InfiniBand's words; it is no part of the fabric. None where nobody can tell.
    """
    if said and said.strip():
        return said.strip()
    return "Ethernet" if _ETHERNET_ONLY.fullmatch(device) else None


def as_port(text: str | None) -> int | None:
    """A port number; None where the text is none."""
    if text is None or len(text) > 5 or not text.isascii() or not text.isdigit():
        return None
    return int(text) if int(text) <= 65_535 else None


def port_number(text: str | None, reading: Reading) -> int | None:
    """A port number; None and counted where the text is none."""
    port = as_port(text)
    if port is None:
        reading.reject("bad_label", "port")
    return port


def leading_number(text: str) -> str:
    """The number that a text such as ``400 Gb/sec (4X NDR)`` begins with; else the text."""
    number = _NUMBER.match(text.strip())
    return number.group() if number else text


def lid(grid: Grid, row: int, text: str | None) -> None:
    """Write a local identifier, decimal or ``0x`` hexadecimal, unless it stands for none."""
    if not text:
        return
    try:
        number = int(text.strip(), 0)
    except ValueError:
        grid.number(row, "lid", text)  # counts it
        return
    if number not in NO_LID:
        grid.number(row, "lid", number)
