"""Kernel log lines become events, whatever program printed them."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.collectors.page import Page, Reading
from pipeline.collectors.readers import kmsg
from pipeline.collectors.xid import catalogue, describe
from pipeline.streams import load_contracts

CONTRACTS = load_contracts()
AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
OFF = "NVRM: Xid (PCI:0008:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def read(text: str | bytes, host: str | None = "h1") -> Reading:
    body = text if isinstance(text, bytes) else text.encode()
    return kmsg.read(Page(body, "kmsg/h1", AT, "test", host), CONTRACTS)


def rows(text: str | bytes, host: str | None = "h1") -> list[dict[str, Any]]:
    reading = read(text, host)
    return reading.tables["event"].to_pylist() if "event" in reading.tables else []


@pytest.mark.parametrize(
    ("line", "time"),
    [
        (f"6,1234,5678901234,-;{OFF}", AT),
        (f"# boot_time=2026-03-01T10:00:00Z\n6,12,60000000,-;{OFF}",
         datetime(2026, 3, 1, 10, 1, tzinfo=UTC)),
        (f"[   60.500000] {OFF}", AT),
        (f"[Fri Aug 30 11:43:09 2024] {OFF}", datetime(2024, 8, 30, 11, 43, 9, tzinfo=UTC)),
        (f"Feb 27 09:08:07 h1 kernel: {OFF}", datetime(2026, 2, 27, 9, 8, 7, tzinfo=UTC)),
        # No year is printed: it was last year's.
        (f"Dec 31 23:59:59 h1 kernel: {OFF}", datetime(2025, 12, 31, 23, 59, 59, tzinfo=UTC)),
        (f"2026-02-27T09:08:07+01:00 h1 kernel: {OFF}", datetime(2026, 2, 27, 8, 8, 7, tzinfo=UTC)),
        (f"2026-02-27T09:08:07,123456+00:00 {OFF}",
         datetime(2026, 2, 27, 9, 8, 7, 123000, tzinfo=UTC)),
        (json.dumps({"__REALTIME_TIMESTAMP": "1772182800123456", "MESSAGE": OFF}),
         datetime(2026, 2, 27, 9, 0, 0, 123000, tzinfo=UTC)),
        (OFF, AT),
    ],
)  # fmt: skip
def test_forms_of_a_log(line: str, time: datetime) -> None:
    (row,) = rows(line)
    assert (row["kind"], row["code"], row["severity"]) == ("xid", "79", "critical")
    assert row["pci_bus_id"] == "0008:01:00.0"
    assert (row["entity_kind"], row["entity_id"]) == ("gpu", "h1/0008:01:00.0")
    assert row["sampled_at"] == time
    assert row["source"] == "kmsg"


@pytest.mark.parametrize(
    ("text", "code", "severity"),
    [
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", "14", "warning"),
        ("NVRM: Xid (PCI:0000:cb:00): 13, pid=1, name=x, Graphics Exception: ESR 0x5=0xc", "13",
         "warning"),
        ("NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked", "63", "info"),
        ("NVRM: Xid (PCI:0000:01:00): 144, SAW_MVB Nonfatal XC0 i0 Link 0 (0x1 0x8)", "144",
         "warning"),
        ("NVRM: Xid (PCI:0000:00:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6)",
         "149", "critical"),
        ("NVRM: Xid (PCI:0000:dc:00): 45, pid=9, name=python3, Ch 1 caused by previous Xid 149",
         "45", "info"),
        ("NVRM: Xid (PCI:0000:dc:00): 999, something new", "999", "warning"),
    ],
)  # fmt: skip
def test_codes(text: str, code: str, severity: str) -> None:
    (row,) = rows(text)
    assert (row["kind"], row["code"], row["severity"]) == ("xid", code, severity)
    assert row["message"]
    assert row["suggested_action"]


def test_switch_errors_count_once_with_their_continuation() -> None:
    (row,) = rows(
        "[6781753.400584] nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 30 LTSSM\n"
        "[6781753.400590] nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Severity 1 Engine 30\n"
        "[6781753.400595] nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Data {0x5, 0x0}\n"
    )
    assert (row["kind"], row["code"], row["severity"]) == ("sxid", "20034", "critical")
    (row,) = rows("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress")
    assert (row["severity"], row["pci_bus_id"]) == ("warning", "0000:05:00.0")


def test_the_log_itself_names_the_gpu() -> None:
    uuid = "GPU-b6c3b2be-c55b-d076-fa0e-d464e4c7e08b"
    (row,) = rows(
        f"NVRM: GPU at PCI:0000:91:00: {uuid}\n"
        "NVRM: GPU Board Serial Number: 1653723052734\n"
        "NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', GPU has fallen off the bus.\n"
        "NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.\n"
    )
    assert (row["entity_id"], row["code"]) == (uuid, "79")


def test_a_gpu_that_fell_off_without_an_xid() -> None:
    (row,) = rows("NVRM: GPU 0000:a1:00.0: GPU has fallen off the bus.")
    assert (row["kind"], row["severity"]) == ("gpu_lost", "critical")
    assert row["pci_bus_id"] == "0000:a1:00.0"


def test_lines_of_one_moment_about_one_thing_are_one_event() -> None:
    lines = [
        "[Fri Aug 30 11:43:09 2024] NVRM: Xid (PCI:0000:cb:00): 13, Warp Exception",
        "[Fri Aug 30 11:43:09 2024] NVRM: Xid (PCI:0000:cb:00): 13, Global Exception",
        "[Fri Aug 30 11:43:09 2024] NVRM: Xid (PCI:0000:cc:00): 13, Warp Exception",
        "[Fri Aug 30 11:43:10 2024] NVRM: Xid (PCI:0000:cb:00): 13, Warp Exception",
    ]
    found = rows("\n".join(lines))
    assert [(row["pci_bus_id"], row["sampled_at"].second) for row in found] == [
        ("0000:cb:00.0", 9), ("0000:cc:00.0", 9), ("0000:cb:00.0", 10),
    ]  # fmt: skip


SECOND = (
    "[Fri Aug 30 11:43:09 2024] ",
    "Feb 27 09:08:07 h1 kernel: ",
    "2026-02-27T09:08:07+00:00 h1 kernel: ",
)
SXID = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, "
NETIR = "NVRM: Xid (PCI:0000:01:00): 149, NETIR_LINK_EVT "


@pytest.mark.parametrize("when", SECOND)
@pytest.mark.parametrize(
    ("first", "second", "severities"),
    [
        (f"{SXID}Non-fatal, Link 46", f"{SXID}Fatal, Link 47", ["warning", "critical"]),
        (f"{SXID}Non-fatal, Link 46", f"{SXID}Fatal, Link 46", ["warning", "critical"]),
        (f"{SXID}Fatal, Link 46", f"{SXID}Fatal, Link 47", ["critical", "critical"]),
        (f"{SXID}Non-fatal, LTSSM", f"{SXID}Fatal, LTSSM", ["warning", "critical"]),
        (f"{NETIR}Nonfatal XC0 i0 Link 08 (0x1)", f"{NETIR}Fatal XC0 i0 Link 09 (0x2)",
         ["warning", "critical"]),
        (f"{NETIR}Fatal XC0 i0 Link 08 (0x1)", f"{NETIR}Fatal XC0 i0 Link 09 (0x1)",
         ["critical", "critical"]),
    ],
)  # fmt: skip
def test_other_links_and_severities_of_one_second_are_other_events(
    when: str, first: str, second: str, severities: list[str]
) -> None:
    lines = [when + first, when + second]
    # A line that is repeated is told once, wherever it stands.
    found = rows("\n".join([lines[0], *lines, lines[1], lines[0]]))
    assert [row["severity"] for row in found] == severities
    for row, line in zip(found, lines, strict=True):
        assert row["message"].endswith(line.rpartition(", ")[2])


def test_other_lines_are_no_events() -> None:
    reading = read(
        "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context\n"
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.65.06\n"
        " SUBSYSTEM=pci\n DEVICE=+pci:0000:01:00.0\n"
        "usb 1-1: Xid is not meant here\n"
    )
    assert reading.tables == {}
    assert not reading.rejected


def test_a_line_that_speaks_of_an_xid_otherwise_is_counted() -> None:
    reading = read("NVRM: Xid in a new shape: code=79 device=0000:01:00.0")
    assert reading.tables == {}
    assert reading.rejected["unknown_xid_line", ""] == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [("PCI:0008:01:00", "00000008:01:00.0"), ("0:1:0", "0000:01:00.0"), ("17:00.0", "0000:17:00")],
)
def test_addresses_have_one_spelling(one: str, other: str) -> None:
    assert kmsg.pci_address(one.removeprefix("PCI:")) == kmsg.pci_address(other)


def test_catalogue_knows_what_matters() -> None:
    wanted = [31, 48, 62, 63, 64, 74, 79, 94, 95, 119, 120, *range(144, 151), 154, 156, 157, 158]
    assert all(code in catalogue() for code in wanted)
    assert all(xid.text and xid.action for xid in catalogue().values())
    assert {xid.severity for xid in catalogue().values()} == {"info", "warning", "critical"}
    assert describe(79).severity == "critical"
    assert describe(149, "NETIR_LINK_EVT Nonfatal XC0").severity == "warning"
    assert describe(149, "NETIR_LINK_EVT Fatal XC0").severity == "critical"
    assert describe(45, "Fatal").severity == "info"


def test_only_the_end_of_a_large_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_bytes(b"x" * 99 + b"\n")
    assert kmsg.read_file(path) == b"x" * 99 + b"\n"
    line = b"2026-02-27T09:08:07+00:00 h kernel: " + OFF.encode() + b"\n"
    path.write_bytes(b"y" * 999 + b"\n" + line * (kmsg.MAX_TAIL // len(line) + 10))
    tail = kmsg.read_file(path)
    assert kmsg.MAX_TAIL - len(line) <= len(tail) <= kmsg.MAX_TAIL
    assert set(tail.splitlines(keepends=True)) == {line}


def test_the_kernel_ring_is_read_without_waiting() -> None:
    ring = Path("/dev/kmsg")
    if not ring.exists() or not os.access(ring, os.R_OK):
        pytest.skip("no readable /dev/kmsg here")
    try:
        body = kmsg.read_file(ring)
    except PermissionError:
        pytest.skip("no right to read the kernel's log")
    assert body.startswith(b"# boot_time=20")


@given(st.binary(max_size=200))
def test_any_bytes(noise: bytes) -> None:
    found = rows(noise + b"\n" + OFF.encode() + b"\n" + noise)
    assert "79" in {row["code"] for row in found}
    for row in found:
        assert 2000 <= row["sampled_at"].year < 2100


@given(st.text(alphabet='NVRM: Xid(PC0189,;[].-{}"', max_size=80))
def test_lines_that_look_like_it(line: str) -> None:
    for row in rows(line):
        assert row["kind"] in ("xid", "sxid", "gpu_lost")
