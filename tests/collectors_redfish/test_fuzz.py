"""Trees, log lines and messages mutated by the ten thousand: no crash, no hang, no nonsense."""

from __future__ import annotations

import copy
import json
import math
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.collectors.page import Page, Reading
from pipeline.collectors.registry import reader
from pipeline.streams.arrow import conform
from tests.collectors_redfish.helpers import AT, CONTRACTS
from tests.conftest import captures_folder

ROUNDS = int(os.environ.get("RACKPULSE_FUZZ_ROUNDS", "80000"))
HANG_S = 5.0
ODD: list[Any] = [
    None, True, False, 0, -1, 1e308, -1e308, float("nan"), float("inf"), 2**32 - 1, 2**64 - 1,
    2**64, 10**400, 1.5e-254, "", "N/A", "Out of range", "1e999", "\ud800", "\x00", [], {}, [None],
    {"Reading": None}, {"Reading": {}}, {"SetPoint": "x"}, [[[]]], {"@odata.id": 5}, "/redfish/v1",
    "#Sensor.v1_0_0.Sensor", "#", "P1Y", "PT" + "9" * 30 + "S", "x" * 5_000,
]  # fmt: skip
BYTES = [b"", b"\x00", b"\xff\xfe", b'"', b"{", b"}", b"\n", b";", b"Xid", b"NVRM: ", b"PCI:", b":",
         b"(", b")", b", ", b"[", b"]", b"99999999999", b"-", b"\xe2\x98\x83"]  # fmt: skip

CONNECTOR = {
    "@odata.id": "/redfish/v1/ThermalEquipment/CDUs/1/SecondaryCoolantConnectors/1",
    "@odata.type": "#CoolantConnector.v1_3_0.CoolantConnector",
    "FlowLitersPerMinute": {"Reading": 42}, "SupplyTemperatureCelsius": {"Reading": 30},
    "HeatRemovedkW": {"Reading": 25.31}, "Status": {"State": "Enabled", "Health": "OK"},
}  # fmt: skip
LINES = (
    b"6,1,5,-;NVRM: Xid (PCI:0008:01:00): 79, pid=1, GPU has fallen off the bus.\n"
    b"Feb 27 09:08:07 h kernel: NVRM: Xid (PCI:0000:01:00): 149, NETIR_LINK_EVT Fatal XC0\n"
    b"[6781753.400584] nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 30\n"
    b'{"__REALTIME_TIMESTAMP": "1772182800123456", "MESSAGE": "NVRM: Xid (PCI:1:2:3): 48, x"}\n'
)
MESSAGE = {
    "topic": "BMS/v1/PUB/Value/Rack/RackLiquidFlow/s/r7", "at_ms": 1767225600000,
    "payload": {"value": 50.0, "timestamp": 1767225600000, "quality": 1},
}  # fmt: skip


def seeds() -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = [("redfish", CONNECTOR), ("bms", MESSAGE)]
    for path in sorted((captures_folder() / "redfish").glob("*/*.json")):
        kind = "bms" if path.parent.name == "bms" else "redfish"
        found.append((kind, json.loads(path.read_text())))
    return found


def mutated(draw: random.Random, value: Any) -> Any:
    """A copy with one to three places changed."""
    whole = [copy.deepcopy(value)]
    for _ in range(draw.randint(1, 3)):
        holder: Any = whole
        key: Any = 0
        for _ in range(draw.randint(0, 6)):
            inner = holder[key]
            if isinstance(inner, dict) and inner:
                holder, key = inner, draw.choice(list(inner))
            elif isinstance(inner, list) and inner:
                holder, key = inner, draw.randrange(len(inner))
            else:
                break
        if isinstance(holder, dict) and draw.random() < 0.2:
            holder[draw.choice(["Reading", "Status", "Links", "Oem", "Id", key])] = holder.pop(key)
        elif isinstance(holder, list) and holder is not whole and draw.random() < 0.2:
            holder.append(copy.deepcopy(holder[key]))
        else:
            holder[key] = copy.deepcopy(draw.choice(ODD))
    return whole[0]


def damaged(draw: random.Random, body: bytes) -> bytes:
    """Bytes cut, doubled or written over at one to four places."""
    raw = bytearray(body)
    for _ in range(draw.randint(1, 4)):
        at = draw.randint(0, len(raw))
        raw[at : at + draw.choice([0, 1, 1, 3, 40])] = draw.choice(BYTES)
    return bytes(raw)


def check(kind: str, body: bytes, say: Callable[[], str]) -> None:
    began = time.process_time()
    try:
        reading: Reading = reader(kind).read(Page(body, "t", AT, "test", "h"), CONTRACTS)
        assert time.process_time() - began < HANG_S, "hangs"
        for stream, table in reading.tables.items():
            whole = conform(CONTRACTS[stream], table)
            for field in whole.schema:
                if pa.types.is_floating(field.type):
                    column = CONTRACTS[stream].column(field.name)
                    low, high = column.range or (0 if column.kind == "counter" else -1e30, 1e30)
                    for value in whole.column(field.name).drop_null().to_pylist():
                        assert math.isfinite(value)
                        slack = 1e-6 * max(abs(low), abs(high))
                        assert low - slack <= value <= high + slack, (field.name, value)
            for time_ in whole.column("sampled_at").to_pylist():
                assert 2000 <= time_.year < 2100
    except BaseException as exc:
        raise AssertionError(f"{say()}: {exc!r}") from exc


def run(rounds: int) -> None:
    trees = seeds()
    for number in range(rounds):
        draw = random.Random(number)  # noqa: S311
        kind, seed = draw.choice(trees)
        what = draw.random()
        if what < 0.55:
            raw = json.dumps(mutated(draw, seed)).encode()
        elif what < 0.7:
            raw = damaged(draw, json.dumps(seed).encode())
        elif what < 0.75:
            parts = [mutated(draw, draw.choice(trees)[1]) for _ in range(3)]
            raw = b"\n".join(json.dumps(part).encode() for part in parts)
        else:
            kind, raw = "kmsg", damaged(draw, LINES)
        check(kind, raw, lambda: f"seed {number} {kind} {raw[:3000]!r}")  # noqa: B023


def test_a_few_mutations() -> None:
    run(1_500)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_many_mutations() -> None:
    run(ROUNDS)


def test_whole_trees_damaged(captures: Path) -> None:
    for name in ("dmtf/cooling_unit_tree.tar.gz", "gb300/telemetry_tree.tar.gz"):
        body = (captures / "redfish" / name).read_bytes()
        for number in range(12):
            draw = random.Random(number)  # noqa: S311
            raw = damaged(draw, body) if number else body[: len(body) // 2]
            check("redfish", raw, lambda: f"{name} seed {number}")  # noqa: B023
