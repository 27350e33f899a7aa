"""Kernel log lines about GPUs and NVSwitches: Xid, SXid, a GPU that fell off the bus.

Read are ``/dev/kmsg`` records (``6,1234,5678,-;text``), ``dmesg`` with and without times, and
``journalctl`` text (short, short-iso, JSON). A first line ``# boot_time=2026-01-01T00:00:00Z``
gives records that count from boot their time; without one they are as old as the page.

A line is one event. That a line was there at the last read already is not known here: the
collecting service keeps the lines that it has seen (:mod:`pipeline.collectors.log_lines`).
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pipeline.collectors.page import Page, Reading
from pipeline.collectors.rows import clean, table_of
from pipeline.collectors.xid import describe
from pipeline.streams import Contracts

KIND = "kmsg"
# What is read of a line: where it stands, and its column.
ALSO = {
    "event": {
        "`Xid`: its GPU; `SXid`: its switch": "entity_kind",
        "`GPU at`: UUID; else host and PCI address": "entity_id",
        "`Xid`, `SXid`, `fallen off the bus`": "kind",
        "the number of the Xid or SXid": "code",
        "catalogue by number; `Fatal` of an SXid": "severity",
        "the line's words": "message",
        "the number again": "current",
        "`PCI:`": "pci_bus_id",
        "catalogue by number": "suggested_action",
    },
}
MAX_LINES = 200_000
MAX_LINE = 8_192
MAX_TAIL = 4_000_000

_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\): (?P<code>\d{1,5}), ?(?P<text>.*)"
)
_SXID = re.compile(
    r"(?P<switch>nvidia-nvswitch\d+): SXid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\): "
    r"(?P<code>\d{1,6}), (?P<fatal>Fatal|Non-fatal),? ?(?P<text>.*)"
)
_GPU_AT = re.compile(r"NVRM: GPU at (?:PCI:)?(?P<pci>[0-9a-fA-F:.]+): (?P<uuid>GPU-[0-9a-f-]{36})")
_OFF_BUS = re.compile(r"NVRM: GPU (?P<pci>[0-9a-fA-F:.]+): GPU has fallen off the bus")
_LINK = re.compile(r"\bLink (?P<link>\d{1,5})\b")
_KMSG = re.compile(r"(?P<prefix>\d+),(?P<seq>\d+),(?P<us>\d+),[^;]*;(?P<text>.*)")
_DMESG = re.compile(r"\[\s*(?P<s>\d+\.\d+)\] ?(?P<text>.*)")
_CTIME = re.compile(r"\[(?P<time>\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4})\] ?(?P<text>.*)")
_ISO = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?(?:Z|[+-]\d\d:?\d\d)?) (?P<text>.*)"
)
_SHORT = re.compile(r"(?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,6})?) (?P<text>.*)")
_PCI = re.compile(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})(?:\.([0-7]))?")
_BOOT = re.compile(r"# boot_time=(?P<time>\S+)")


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One line that is an event.

    Attributes:
        key: what tells the line from all others, also from one with the same words.
        time: when it was logged; None where the line does not tell.
        pci: PCI address in one spelling, such as ``0008:01:00.0``.
        uuid: UUID that the log itself gives for that address.
    """

    key: str
    time: datetime | None
    kind: str
    code: str
    severity: str
    message: str
    action: str
    pci: str | None
    uuid: str | None


def read(page: Page, contracts: Contracts) -> Reading:
    """All events of a page."""
    reading = Reading()
    events = log_events(page, reading)
    rows = [event_row(event, page, event.uuid) for event in events]
    if rows:
        reading.tables["event"] = table_of(contracts["event"], rows)
    return reading


def event_row(event: LogEvent, page: Page, uuid: str | None) -> dict[str, object]:
    """The row of one event.

    Args:
        uuid: of the GPU, where it is known; else the host and the PCI address stand for it.
    """
    host = page.host or page.target
    kind = "gpu" if event.kind in ("xid", "gpu_lost") else "component"
    return {
        "cluster": page.cluster,
        "source": "kmsg",
        "sampled_at": event.time or page.received_at,
        "target": page.target,
        "host": page.host,
        "entity_kind": kind,
        "entity_id": uuid or f"{host}/{event.pci or '?'}",
        "kind": event.kind,
        "code": event.code,
        "severity": event.severity,
        "message": clean(event.message),
        "current": event.code,
        "pci_bus_id": event.pci,
        "suggested_action": event.action,
    }


def log_events(page: Page, reading: Reading) -> list[LogEvent]:
    """The events of a page's lines, in order; what is no event is passed over."""
    lines = page.body.decode("utf-8", "replace").splitlines()
    if len(lines) > MAX_LINES:
        reading.reject("too_many_lines", count=len(lines) - MAX_LINES)
        lines = lines[-MAX_LINES:]
    boot = _boot_time(lines)
    uuids: dict[str, str] = {}
    found: list[LogEvent] = []
    told: set[tuple[object, ...]] = set()
    for line in lines:
        if len(line) > MAX_LINE:
            reading.reject("line_too_long")
            line = line[:MAX_LINE]
        if "NVRM" not in line and "SXid" not in line:
            continue
        text, time = _split(line, boot, page.received_at, reading)
        at = _GPU_AT.search(text)
        if at:
            uuids[pci_address(at["pci"]) or at["pci"]] = at["uuid"]
            continue
        event = _event(line, text, time)
        if event is not None:
            # Several lines of one moment about one thing are one event; the first says most.
            # A moment may be a whole second: another link, or worse news of it, is not the same.
            link = _LINK.search(event.message)
            same = (
                event.kind, event.code, event.pci, event.time, event.severity,
                int(link["link"]) if link else None,
            )  # fmt: skip
            if event.time is None or same not in told:
                found.append(event)
            told.add(same)
        elif "Xid" in text and "SXid" not in text:
            reading.reject("unknown_xid_line")
    lost = {(event.kind, event.code, event.pci) for event in found if event.code == "79"}
    return [
        LogEvent(
            event.key, event.time, event.kind, event.code, event.severity, event.message,
            event.action, event.pci, uuids.get(event.pci or "") if event.kind != "sxid" else None,
        )
        for event in found
        if event.kind != "gpu_lost" or ("xid", "79", event.pci) not in lost
    ]  # fmt: skip


def _event(line: str, text: str, time: datetime | None) -> LogEvent | None:
    match = _XID.search(text)
    if match:
        xid = describe(int(match["code"]), match["text"])
        message = f"{xid.text}: {match['text']}"
        return LogEvent(
            line, time, "xid", str(xid.code), xid.severity, message, xid.action,
            pci_address(match["pci"]), None,
        )  # fmt: skip
    match = _SXID.search(text)
    if match:
        fatal = match["fatal"] == "Fatal"
        message = f"{match['switch']}: {match['fatal']}: {match['text']}"
        action = "Drain the rack and reset its NVSwitches" if fatal else "Look for others beside it"
        return LogEvent(
            line, time, "sxid", match["code"], "critical" if fatal else "warning", message, action,
            pci_address(match["pci"]), None,
        )  # fmt: skip
    match = _OFF_BUS.search(text)
    if match:
        # The driver prints this beside an Xid 79, and without one when it finds the GPU gone.
        xid = describe(79)
        return LogEvent(
            line, time, "gpu_lost", "", xid.severity, f"{xid.text}: {text}", xid.action,
            pci_address(match["pci"]), None,
        )  # fmt: skip
    return None


def pci_address(text: str | None) -> str | None:
    """A PCI address in one spelling: ``PCI:0008:01:00`` and ``00000008:01:00.0`` are the same."""
    match = _PCI.fullmatch(text or "")
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    number = int(domain or "0", 16)
    return f"{number:04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function or '0'}"


def _split(
    line: str, boot: datetime | None, received: datetime, reading: Reading
) -> tuple[str, datetime | None]:
    """The text of a line, and when it was logged."""
    if line.startswith("{"):
        return _journal_json(line, reading)
    match = _KMSG.match(line)
    if match:
        return match["text"], _since_boot(boot, int(match["us"]) / 1e6)
    match = _CTIME.match(line)
    if match:
        return match["text"], _parse("%a %b %d %H:%M:%S %Y", match["time"])
    match = _DMESG.match(line)
    if match:
        return match["text"], _since_boot(boot, float(match["s"]))
    match = _ISO.match(line)
    if match:
        return match["text"], _iso(match["time"])
    match = _SHORT.match(line)
    if match:
        return match["text"], _without_year(match["time"], received)
    return line, None


def _journal_json(line: str, reading: Reading) -> tuple[str, datetime | None]:
    try:
        entry = json.loads(line)
        text = entry.get("MESSAGE")
        stamp = entry.get("__REALTIME_TIMESTAMP") or entry.get("_SOURCE_REALTIME_TIMESTAMP")
        time = datetime.fromtimestamp(int(stamp) / 1e6, UTC) if stamp else None
    except (ValueError, TypeError, AttributeError, OverflowError, OSError, RecursionError):
        reading.reject("not_json")
        return "", None
    return (text if isinstance(text, str) else ""), _believable(time)


def _boot_time(lines: list[str]) -> datetime | None:
    match = _BOOT.match(lines[0]) if lines else None
    return _iso(match["time"]) if match else None


def _since_boot(boot: datetime | None, seconds: float) -> datetime | None:
    try:
        return _believable(boot + timedelta(seconds=seconds)) if boot else None
    except OverflowError:
        return None


def _iso(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text.replace(",", "."))
    except ValueError:
        return None
    return _believable(time if time.tzinfo else time.replace(tzinfo=UTC))


def _parse(form: str, text: str) -> datetime | None:
    try:
        return _believable(datetime.strptime(text, form).replace(tzinfo=UTC))
    except ValueError:
        return None


def _without_year(text: str, received: datetime) -> datetime | None:
    """A time without a year and zone, taken as UTC: the latest such time that is not ahead."""
    form = "%Y %b %d %H:%M:%S.%f" if "." in text else "%Y %b %d %H:%M:%S"
    for year in (received.year, received.year - 1):
        time = _parse(form, f"{year} {text}")
        if time is not None and time <= received + timedelta(days=1):
            return time
    return None


def _believable(time: datetime | None) -> datetime | None:
    if time is None or not 2000 <= time.year < 2100:
        return None
    return time.astimezone(UTC)


def read_file(path: Path) -> bytes:
    """The end of a log file, or all that the kernel's ring holds.

    Raises:
        OSError: it cannot be read; ``/dev/kmsg`` needs the right to read the kernel's log.
    """
    if stat.S_ISCHR(path.stat().st_mode):
        return _ring(path)
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - MAX_TAIL))
        tail = stream.read(MAX_TAIL)
    # The first line is cut in two, unless the file begins with it.
    return tail if size <= MAX_TAIL else tail.partition(b"\n")[2]


def _ring(path: Path) -> bytes:
    """Records of ``/dev/kmsg``: a read gives one, and would wait for the next at the end."""
    records = [_boot_line()]
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while len(records) < MAX_LINES:
            try:
                record = os.read(handle, MAX_LINE)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # overwritten while it was read: the next one is still there
            if not record:
                break
            records.append(record.rstrip(b"\n"))
    finally:
        os.close(handle)
    return b"\n".join(records) + b"\n"


def _boot_line() -> bytes:
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        if line.startswith("btime "):
            boot = datetime.fromtimestamp(int(line.split()[1]), UTC)
            return f"# boot_time={boot.isoformat()}".encode()
    return b"# boot_time=unknown"
