"""Readers on broken input: no crash, no hang, nothing in a row that is no reading.

The mutations are drawn from a seed that is printed on failure, so that a failing page can be
made again.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.collectors import Page, Reading, reader
from pipeline.collectors.prometheus_text import Exposition, parse
from pipeline.streams.arrow import conform
from tests.collectors.fixtures import SEEDS
from tests.collectors.helpers import AT, CONTRACTS
from tests.conftest import captures_folder

DCGM_BLANKS = {
    *range(2**63 - 16, 2**63 - 12), *range(2**31 - 16, 2**31 - 12), *range(2**47, 2**47 + 4),
}  # fmt: skip
DCGM_KINDS = ("dcgm", "dcgm_dmon", "nvml")
# CPU time: a page takes a few milliseconds, so this is a hang.
HANG_S = 5.0
ODD = [
    b"9223372036854775794", b"9223372036854775807", b"140737488355328.0", b"2147483632",
    b"4294967295", b"18446744073709551615", b"18446744073709551616", b"1.5e-254", b"NaN", b"+Inf",
    b"-Inf", b"1e999", b"-1", b"1e400", b"0x10", b"1_000", b"", b"N/A", b"\xff\xfe", b"\x00",
    b'"', b"{", b"}", b",", b"=", b"\\", b"\n", b"\r\n", b" ", b"\t", b"#", b"# EOF\n", b"...",
    "\u00e9\u2603".encode(), b'{a="b"}', b"1767268800000", b"99999999999999999999999",
    b"GPU-", b"<<<NULL>>>", b"|", b":", b"[", b"]",
]  # fmt: skip


def seeds() -> list[tuple[str, bytes]]:
    """Our own pages, and the captures where they are."""
    found = list(SEEDS)
    folder = captures_folder()
    kinds: list[tuple[str, str]] = [
        ("dcgm", "dcgm/*.prom"), ("dcgm", "dcgm/issues/*.prom"), ("dcgm_dmon", "dcgm/issues/*.txt"),
        ("nmxt", "nmxt/*.prom"), ("ib_exporter", "ib/infiniband_exporter_page.prom"),
        ("node_exporter_ib", "ib/node_exporter_infiniband.prom"), ("ib_sysfs", "ib/sysfs_*"),
        ("ibstat", "ib/ibstat*"), ("ufm", "ib/ufm/*"),
        ("perfquery", "ib/infiniband_exporter/perfquery*"),
        ("ibswinfo", "ib/infiniband_exporter/ibswinfo*"),
    ]  # fmt: skip
    for kind, pattern in kinds:
        found.extend((kind, path.read_bytes()) for path in sorted(folder.glob(pattern)))
    return found


def mutate(body: bytes, draw: random.Random) -> bytes:
    """One to six small damages of the kinds that disks, networks and programs do."""
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(body) + 1)
        to = min(len(body), at + draw.choice((1, 1, 2, 8, 40, 300)))
        damage = draw.randrange(8)
        if damage == 0:
            body = body[:at] + bytes([draw.randrange(256)]) + body[at + 1 :]
        elif damage == 1:
            body = body[:at] + draw.choice(ODD) + body[at:]
        elif damage == 2:
            body = body[:at] + draw.choice(ODD) + body[to:]
        elif damage == 3:
            body = body[:at] + body[to:]
        elif damage == 4:
            body = body[:at] + body[at:to] + body[at:]
        elif damage == 5:
            body = body[:at]
        elif damage == 6:
            lines = body.split(b"\n")
            one, other = draw.randrange(len(lines)), draw.randrange(len(lines))
            lines[one], lines[other] = lines[other], lines[one]
            body = b"\n".join(lines)
        else:
            digits = [place for place in range(at, min(len(body), at + 200))
                      if body[place : place + 1].isdigit()]  # fmt: skip
            if digits:
                place = draw.choice(digits)
                body = body[:place] + draw.choice(ODD) + body[place + 1 :]
    return body


def check(kind: str, reading: Reading, *, whole: bool = True) -> None:
    """Every row fits its contract, and no cell holds what is no reading.

    Args:
        whole: whether the table is brought into the wire schema too, which takes longer.
    """
    for stream, table in reading.tables.items():
        contract = CONTRACTS[stream]
        assert table.num_rows > 0
        if whole:
            conform(contract, table).validate(full=True)
        keys = table.select(list(contract.row_identity)).to_pylist()
        assert len({tuple(key.values()) for key in keys}) == len(keys), f"{stream}: doubled row"
        for name in table.column_names:
            column = contract.column(name)
            cells = table.column(name)
            assert column.nullable or not cells.null_count
            if cells.null_count == len(cells) or column.type in ("label", "string", "bool"):
                continue
            if column.type == "timestamp_ms":
                assert all(2000 <= time.year < 2100 for time in cells.to_pylist())
                continue
            values = cells.drop_null()
            found = values.to_pylist()
            if pa.types.is_floating(values.type):
                assert np.isfinite(found).all(), name
            if column.range is not None:
                low, high = (_as_stored(values.type, bound) for bound in column.range)
                assert low <= min(found), (name, min(found))
                assert max(found) <= high, (name, max(found))
            if column.saturates is not None and kind not in ("ib_exporter", "ufm", "perfquery"):
                assert column.saturates not in found, name
            if kind in DCGM_KINDS and column.sources:
                assert DCGM_BLANKS.isdisjoint(found), name
            if column.none_seen is not None:
                assert column.none_seen not in found, name
    assert all(count > 0 for count in reading.rejected.values())
    assert all(reason for reason, _ in reading.rejected)


def _as_stored(kind: pa.DataType, bound: float) -> float:
    return float(np.float32(bound)) if pa.types.is_float32(kind) else bound


def run(kind: str, body: bytes) -> Reading:
    started = time.process_time()
    reading = reader(kind).read(Page(body, "t", AT, "test"), CONTRACTS)
    assert time.process_time() - started < HANG_S, "hangs"
    return reading


def storm(count: int, seed: int) -> int:
    pages = seeds()
    refused = 0
    for number in range(count):
        draw = random.Random(f"{seed}/{number}")  # noqa: S311
        kind, body = pages[number % len(pages)]
        damaged = mutate(body, draw)
        try:
            reading = run(kind, damaged)
            check(kind, reading, whole=number % 16 == 0)
        except Exception as exc:
            raise AssertionError(f"{kind}, seed {seed}/{number}: {exc!r}\n{damaged!r}") from exc
        refused += bool(reading.rejected)
    return refused


def test_undamaged_pages_hold_the_rules() -> None:
    for kind, body in seeds():
        check(kind, run(kind, body))


def test_damaged_pages() -> None:
    count = 3000
    refused = storm(count, seed=20260101)
    # Damage is noticed: most of these pages lost a line or a reading, and said so.
    assert refused > count / 4


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_damaged_pages() -> None:
    assert storm(200_000, seed=42) > 50_000


TEXT_KINDS = sorted({kind for kind, _ in SEEDS})


@pytest.mark.parametrize("kind", TEXT_KINDS)
@given(body=st.binary(max_size=400))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_bytes(kind: str, body: bytes) -> None:
    check(kind, run(kind, body))


NAMES = st.sampled_from(
    ["DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_NVLINK_COUNT_TX_BYTES", "DCGM_FI_DEV_XID_ERRORS", "x_y"]
)
LABELS = st.dictionaries(
    st.sampled_from(["gpu", "UUID", "nvlink", "nvswitch", "cpu", "GPU_I_ID", "pod", "hpc_job"]),
    st.text(max_size=6), max_size=5,
)  # fmt: skip
VALUES = st.one_of(
    st.integers(-(2**70), 2**70).map(str), st.floats().map(repr), st.text(max_size=4),
    st.sampled_from([value.decode("latin-1") for value in ODD]),
)  # fmt: skip


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@given(st.lists(st.tuples(NAMES, LABELS, VALUES), max_size=12))
@settings(max_examples=150, deadline=None)
def test_lines_of_the_right_shape(lines: list[tuple[str, dict[str, str], str]]) -> None:
    page = "".join(
        name + "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "} "
        + value + "\n"
        for name, labels, value in lines
    )  # fmt: skip
    check("dcgm", run("dcgm", page.encode("utf-8", "surrogatepass")))


GOOD_VALUES = st.one_of(
    st.integers(-(2**63), 2**63).map(str), st.floats(allow_nan=False).map(repr),
    st.sampled_from(["NaN", "+Inf", "-Inf", "1e5", ".5", "5."]),
)  # fmt: skip


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,9}", fullmatch=True),
            st.dictionaries(
                st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,9}", fullmatch=True), st.text(max_size=8),
                max_size=4,
            ),
            GOOD_VALUES,
            st.one_of(st.none(), st.integers(-(10**15), 10**15)),
        ),
        max_size=10,
    )
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_what_is_written_is_read(
    lines: list[tuple[str, dict[str, str], str, int | None]],
) -> None:
    page = "".join(
        name
        + "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "} "
        + value + ("" if time_ms is None else f" {time_ms}") + "\n"
        for name, labels, value, time_ms in lines
    )  # fmt: skip
    found: Exposition = parse(page.encode())
    assert not found.rejected
    assert [(s.name, s.labels, s.time_ms) for s in found] == [
        (name, labels, time_ms) for name, labels, _, time_ms in lines
    ]
    for sample, (_, _, value, _) in zip(found, lines, strict=True):
        expected = float(value)
        assert sample.value == expected or (math.isnan(sample.value) and math.isnan(expected))


@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_repeated_bytes_do_not_hang(kind: str) -> None:
    pieces: list[Callable[[], bytes]] = [
        lambda: b"\\" * 200_000, lambda: b'a{b="' * 40_000, lambda: b" " * 200_000,
        lambda: b"a" * 200_000, lambda: b"{" * 200_000, lambda: b'"' * 200_000,
        lambda: b"a{" + b'b="c",' * 40_000, lambda: b"GPU 0 " + b"1 " * 100_000,
        lambda: b"=== x ===\n" * 20_000, lambda: b"CA 'x'\n\tPort 1:\n" * 10_000,
        lambda: b"# TYPE a gauge\n" * 10_000 + b"# EOF\n", lambda: b"x 1\n" * 50_000,
        lambda: b"=" * 200_000, lambda: b"=== " + b"=" * 200_000, lambda: b"-" * 200_000,
        lambda: b"a" + b" " * 200_000 + b"|", lambda: b" a:" * 60_000, lambda: b"#" * 200_000,
        lambda: b'x{Port_Number="1",Module_Temperature="1' + b" " * 60_000 + b'x"} 1',
        lambda: b"/" * 200_000, lambda: b"_" * 200_000, lambda: b"1" * 200_000,
        lambda: b"# EOF\n" * 20_000, lambda: b"[" * 100_000, lambda: b"1," * 100_000,
    ]  # fmt: skip
    for piece in pieces:
        body = piece()
        check(kind, run(kind, body))
        check(kind, run(kind, body + b"\n"))


def test_the_captures_are_fuzzed_where_they_are(captures: Path) -> None:
    assert len(seeds()) > len(SEEDS) + 30
