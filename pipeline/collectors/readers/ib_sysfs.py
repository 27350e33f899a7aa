"""Trees of ``/sys/class/infiniband``: adapters, their ports and counters.

A page is a tar file of the tree (:func:`read_folder` makes one), or the text of
``grep . -r`` or of files printed behind ``=== name ===`` lines. Counter files have no line end,
hold ``N/A (no PMA)`` on virtual functions, and cannot be read at all on ports that the Fabric
Manager owns: such a counter is missing and the port stays. 32-bit and narrower registers
that stand at their maximum are unknown, not a rate of 0.
"""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from pipeline.collectors.fabric import (
    guid_or_device,
    leading_number,
    lid,
    link_layer,
    port_number,
    state_word,
)
from pipeline.collectors.grid import Grid
from pipeline.collectors.page import Page, Reading, whole_lines
from pipeline.collectors.values import fields
from pipeline.streams import Contracts

KIND = "ib_sysfs"
SOURCE = "ib_sysfs"

# What is read beside the counters that the contract names: the file, and its column.
ALSO = {
    "ib_port": {
        "`node_guid`, else the host and the device": "guid",
        "the folder below `ports`": "port",
        "always `hca`": "side",
        "an adapter is level `hca`": "level",
        "the adapter's folder": "device",
        "`link_layer`; else the device's name": "link_layer",
        "`state`": "port_state",
        "`phys_state`": "phys_state",
        "`lid`": "lid",
        "a register at its maximum": "quality",
    },
}
MAX_FILES = 20_000
MAX_FILE_BYTES = 4_096
MAX_TREE_BYTES = 64 * 2**20
_UNREADABLE = b"!unreadable "
_MISSING = ("", "n/a", "n/a (no pma)")
_GREP = re.compile(r"(?:.*/)?class/infiniband/([^:\s]+):(.*)")
_PORT_FILES = ("state", "phys_state", "rate", "link_layer", "lid")


def read(page: Page, contracts: Contracts) -> Reading:
    """Rows of the stream ib_port, adapter side."""
    reading = Reading()
    grid = Grid(fields(contracts, "ib_port", SOURCE), page, reading, source=SOURCE)
    adapters = _adapters(_files(page.body, reading))
    for device, adapter in sorted(adapters.items()):
        guid = guid_or_device(page, adapter.own.get("node_guid"), device, reading)
        for number, files in sorted(adapter.ports.items()):
            port = port_number(number, reading)
            if port is not None:
                _port(grid, reading, grid.row((guid, port)), device, files)
    table = grid.table()
    if table is not None:
        reading.tables["ib_port"] = table
    return reading


def read_folder(folder: Path) -> bytes:
    """A folder such as ``/sys/class/infiniband`` as a page for :func:`read`.

    A file that cannot be read (EINVAL on ports that the Fabric Manager owns) is marked, and
    the other files of its port's ``counters`` are not tried: each try logs a kernel error.
    """
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for device in sorted(folder.iterdir())[:256]:
            _add(tar, device / "node_guid", f"{device.name}/node_guid")
            for port in sorted(device.glob("ports/*")):
                stem = f"{device.name}/ports/{port.name}"
                for name in _PORT_FILES:
                    _add(tar, port / name, f"{stem}/{name}")
                for file in sorted(port.glob("counters/*")):
                    if not _add(tar, file, f"{stem}/counters/{file.name}"):
                        break
    return out.getvalue()


def _add(tar: tarfile.TarFile, file: Path, name: str) -> bool:
    if not file.is_file():
        return True
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES)
    except OSError as exc:
        content = _UNREADABLE + (exc.strerror or "error").encode()
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))
    return not content.startswith(_UNREADABLE)


class _Adapter:
    def __init__(self) -> None:
        self.own: dict[str, str] = {}
        self.ports: dict[str, dict[str, str]] = {}


def _adapters(files: dict[str, str]) -> dict[str, _Adapter]:
    found: dict[str, _Adapter] = {}
    for path, content in files.items():
        parts = PurePosixPath(path).parts
        if "ports" in parts[1:-2]:
            at = parts.index("ports", 1)
            adapter = found.setdefault(parts[at - 1], _Adapter())
            adapter.ports.setdefault(parts[at + 1], {})["/".join(parts[at + 2 :])] = content
        elif len(parts) >= 2:
            found.setdefault(parts[-2], _Adapter()).own[parts[-1]] = content
    return found


def _port(grid: Grid, reading: Reading, row: int, device: str, files: dict[str, str]) -> None:
    grid.label(row, "side", "hca")
    grid.label(row, "level", "hca")
    grid.label(row, "device", device)
    grid.label(row, "link_layer", link_layer(files.get("link_layer"), device))
    state = state_word(files.get("state", ""))
    grid.label(row, "port_state", state)
    grid.label(row, "phys_state", state_word(files.get("phys_state", "")))
    if state != "down":  # the rate and LID of a port that is down are defaults
        if files.get("rate", "").strip():
            grid.put(row, grid.fields.by_name["rate"], leading_number(files["rate"]))
        lid(grid, row, files.get("lid"))
    for name, content in files.items():
        folder, _, counter = name.rpartition("/")
        if folder != "counters" or counter not in grid.fields.by_name:
            continue
        text = content.strip()
        field = grid.fields.by_name[counter]
        if text.startswith(_UNREADABLE.decode()):
            reading.reject("unreadable", grid.fields.columns[field].name)
            reading.note(f"{device}: counters cannot be read: {text.removeprefix('!unreadable ')}")
        elif text.lower() in _MISSING:
            reading.reject("not_supported", grid.fields.columns[field].name)
        else:
            grid.put(row, field, text)


def _files(body: bytes, reading: Reading) -> dict[str, str]:
    """Content of the files by path, whichever form the page has."""
    if body[:2] == b"\x1f\x8b" or body[257:262] == b"ustar":
        return _tar_files(body, reading)
    text = whole_lines(body, reading)
    if text.lstrip().startswith("=== "):
        return _sections(text)
    files = {}
    for line in text.splitlines():
        found = _GREP.fullmatch(line.strip())
        if found:
            files[found.group(1)] = found.group(2)
        elif line.strip():
            reading.reject("bad_line")
    return files


def _sections(text: str) -> dict[str, str]:
    """Files printed behind lines with their names: those of one port, where it stands."""
    files: dict[str, str] = {}
    path = ""
    for line in text.splitlines():
        if line.startswith("=== ") and line.endswith(" ==="):
            name = PurePosixPath(line[4:-4].strip()[:200]).name
            path = f"device/ports/1/{name if name in _PORT_FILES else 'counters/' + name}"
            files[path] = ""
        elif path and len(files[path]) < MAX_FILE_BYTES:
            files[path] += line + "\n"
    return files


def _tar_files(body: bytes, reading: Reading) -> dict[str, str]:
    files: dict[str, str] = {}
    try:
        if body[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(body)) as packed:
                body = packed.read(MAX_TREE_BYTES)  # a small archive may unpack to anything
        with tarfile.open(fileobj=io.BytesIO(body), mode="r:") as tar:
            for member in tar:
                if len(files) >= MAX_FILES:
                    reading.note("the tree has too many files: the rest is left out")
                    break
                opened = tar.extractfile(member) if member.isfile() else None
                if opened is not None:
                    files[member.name] = opened.read(MAX_FILE_BYTES).decode("utf-8", "replace")
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, KeyError) as exc:
        reading.reject("bad_archive")
        reading.note(f"the archive cannot be read to its end: {exc}"[:200])
    return files
