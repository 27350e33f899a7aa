"""What is a reading and what only looks like one."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.collectors.grid import Grid
from pipeline.collectors.page import Page, Reading
from pipeline.collectors.values import REASONS, Fields, fields, screen
from pipeline.streams import Column, Contracts, Stream
from tests.collectors.helpers import AT, CONTRACTS

COLUMNS = {
    "plain_w": {"type": "float32", "kind": "gauge", "range": (0, 100)},
    "temp_c": {"type": "float32", "kind": "gauge", "range": (-20, 100), "zero_is_missing": True},
    "ber": {"type": "float64", "kind": "gauge", "range": (0, 1), "none_seen": 1.5e-254},
    "wait": {"type": "uint64", "kind": "counter", "saturates": 4294967295},
    "downs": {"type": "uint64", "kind": "counter", "saturates": 255},
    "words": {"type": "uint64", "kind": "counter", "scale": 4},
    "flag": {"type": "bool", "kind": "state"},
    "code": {"type": "uint8", "kind": "state"},
    "free": {"type": "float64", "kind": "gauge"},
}


def stream() -> Stream:
    columns = [
        Column(name="id", type="string", kind="identity", description="x"),
        *(
            Column.model_validate({
                "name": name, "description": "x",
                "sources": {"s": {"names": [name], "scale": spec.get("scale", 1)}},
                **{key: value for key, value in spec.items() if key != "scale"},
            })
            for name, spec in COLUMNS.items()
        ),
    ]  # fmt: skip
    common = [
        Column(name="cluster", type="label", kind="identity", description="x", group="identity"),
        Column(name="source", type="label", kind="identity", description="x", group="identity"),
        Column(name="sampled_at", type="timestamp_ms", kind="identity", description="x",
               group="identity"),
        Column(name="target", type="label", description="x", group="edge"),
        Column(name="host", type="label", description="x", group="placement"),
    ]  # fmt: skip
    return Stream(
        name="s", version=1, description="x", entity=("id",), entity_kind="s", key=("id",),
        columns=(*common, *columns),
    )  # fmt: skip


KNOWN = Fields(stream(), ("s",))


def judged(column: str, value: float, **how: bool) -> tuple[float, str]:
    values, fault = screen(
        KNOWN, np.array([KNOWN.by_name[column]]), np.array([value], dtype=np.float64), **how
    )
    return float(values[0]), REASONS[fault[0]]


INT64 = [float(2**63 - 16 + k) for k in range(4)]
INT32 = [float(2**31 - 16 + k) for k in range(4)]
FLOAT64 = [float(2**47 + k) for k in range(4)]


@pytest.mark.parametrize("column", ["plain_w", "wait", "words", "free", "code"])
@pytest.mark.parametrize("blank", INT64 + INT32 + FLOAT64 + [9.223372036854775807e18])
def test_dcgm_blanks(column: str, blank: float) -> None:
    assert judged(column, blank, dcgm_blanks=True)[1] == "blank"


@pytest.mark.parametrize("beside", [2**31 - 17, 2**31 - 12, 2**47 - 1, 2**47 + 4, 2**53, 2**62])
def test_beside_a_blank_is_a_reading(beside: int) -> None:
    assert judged("wait", float(beside), dcgm_blanks=True) == (float(beside), "")


def test_blanks_of_dcgm_are_readings_elsewhere() -> None:
    assert judged("wait", float(2**47)) == (float(2**47), "")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("column", COLUMNS)
def test_not_finite(column: str, value: float) -> None:
    assert judged(column, value)[1] == "not_finite"


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("plain_w", 0, ""), ("plain_w", 100, ""), ("plain_w", 100.1, "out_of_range"),
        ("plain_w", -0.1, "out_of_range"), ("plain_w", 187000, "out_of_range"),
        ("plain_w", 4294967295, "out_of_range"),
        ("temp_c", 0, "no_sensor"), ("temp_c", 0.1, ""), ("temp_c", -20, ""),
        ("wait", 4294967295, "saturated"), ("wait", 4294967294, ""), ("wait", 4294967296, ""),
        ("downs", 255, "saturated"), ("downs", 254, ""), ("downs", 256, ""),
        ("wait", 2.0**64, "saturated"), ("wait", -1, "out_of_range"),
        ("wait", 0.5, "not_whole"), ("wait", 2.0**63 + 2.0**60, ""),
        ("flag", 0, ""), ("flag", 1, ""), ("flag", 2, "out_of_range"), ("flag", 0.5, "not_whole"),
        ("code", 255, ""), ("code", 256, "out_of_range"), ("code", -1, "out_of_range"),
        ("free", 1e300, ""), ("ber", 1.1, "out_of_range"), ("ber", 1, ""),
        ("words", 2.0**62, "out_of_range"),  # times 4 it does not fit 64 bits
    ],
)  # fmt: skip
def test_rules_of_the_contract(column: str, value: float, reason: str) -> None:
    assert judged(column, value)[1] == reason


def test_none_seen_is_zero() -> None:
    assert judged("ber", 1.5e-254) == (0.0, "")


def test_scale_comes_last() -> None:
    assert judged("words", 178791657177235) == (715166628708940, "")


def test_a_wide_counter_is_not_full_at_a_narrow_maximum() -> None:
    assert judged("downs", 255, wide=True) == (255, "")
    assert judged("wait", 4294967295, wide=True)[1] == "saturated"


def test_fields_are_made_once() -> None:
    assert fields(CONTRACTS, "gpu", "dcgm") is fields(CONTRACTS, "gpu", "dcgm")
    assert fields(CONTRACTS, "gpu", "dcgm") is not fields(CONTRACTS, "nvlink", "dcgm")


def test_adding_one_line_to_a_contract_makes_a_reader_pick_it_up() -> None:
    from pipeline.collectors.readers import dcgm

    extra = Column.model_validate({
        "name": "fan_percent", "type": "float32", "kind": "gauge", "unit": "%",
        "range": [0, 100], "description": "Fan speed",
        "sources": {"dcgm": {"id": 191, "names": ["DCGM_FI_DEV_FAN_SPEED"]}},
    })  # fmt: skip
    gpu = CONTRACTS["gpu"]
    wider = gpu.model_copy(update={"columns": (*gpu.columns, extra)})
    contracts = Contracts({**CONTRACTS, "gpu": wider})
    page = Page(b'DCGM_FI_DEV_FAN_SPEED{gpu="0",UUID="GPU-1"} 41\n', "t", AT, "test")
    assert dcgm.read(page, contracts).tables["gpu"].to_pylist()[0]["fan_percent"] == 41
    assert "gpu" not in dcgm.read(page, CONTRACTS).tables


# -- the grid


def grid(**how: bool) -> tuple[Grid, Reading]:
    reading = Reading()
    return Grid(KNOWN, Page(b"", "t", AT, "test"), reading, source="s", **how), reading


def test_integers_beyond_float64_are_exact() -> None:
    found, _ = grid()
    exact = 2**53 + 1
    for number, raw in enumerate([str(exact).encode(), str(exact + 2), exact + 4]):
        found.put(found.row((f"e{number}",)), KNOWN.by_name["wait"], raw)
    found.put(found.row(("e0",)), KNOWN.by_name["words"], str(exact).encode())
    table = found.table()
    assert table is not None
    assert table["wait"].to_pylist() == [exact, exact + 2, exact + 4]
    assert table["words"].to_pylist()[0] == exact * 4


def test_the_first_of_two_values_stays() -> None:
    found, reading = grid()
    row = found.row(("e",))
    for value in (5, 5, 7):
        found.put(row, KNOWN.by_name["plain_w"], value)
    table = found.table()
    assert table is not None
    assert table["plain_w"].to_pylist() == [5]
    assert reading.rejected == {("duplicate", "plain_w"): 1, ("contradiction", "plain_w"): 1}


def test_a_blank_gives_way_to_a_reading() -> None:
    found, reading = grid(dcgm_blanks=True)
    row = found.row(("e",))
    found.put(row, KNOWN.by_name["plain_w"], b"9223372036854775794")
    found.put(row, KNOWN.by_name["plain_w"], b"5")
    table = found.table()
    assert table is not None
    assert table["plain_w"].to_pylist() == [5]
    assert reading.rejected == {("blank", "plain_w"): 1}


def test_rows_at_different_times() -> None:
    found, reading = grid()
    field = KNOWN.by_name["plain_w"]
    for time_ms, value in ((1_700_000_000_100, 1), (1_700_000_000_100, 2), (1_700_000_000_090, 3)):
        found.put(found.row(("e",), time_ms), field, value)
    table = found.table()
    assert table is not None
    # Same time, other value: the first wins; an older time is a row of its own.
    stored = [(row["sampled_at"].microsecond // 1000, row["plain_w"]) for row in table.to_pylist()]
    assert stored == [(100, 1), (90, 3)]
    assert reading.rejected == {("contradiction", "plain_w"): 1}


def test_a_time_of_its_own_that_is_the_time_of_the_page() -> None:
    found, _ = grid()
    received_ms = int(AT.timestamp() * 1000)
    assert found.row(("e",)) == found.row(("e",), received_ms)
    assert found.row(("e",), received_ms + 1) != found.row(("e",))


@pytest.mark.parametrize("raw", ["x", b"1_0", "", None, [1], True])
def test_what_is_no_number(raw: object) -> None:
    found, reading = grid()
    found.put(found.row(("e",)), KNOWN.by_name["plain_w"], raw)  # type: ignore[arg-type]
    table = found.table()
    assert table is not None
    assert "plain_w" not in table.column_names
    assert reading.rejected == {("not_a_number", "plain_w"): 1}


def test_a_number_too_large_for_a_float() -> None:
    found, reading = grid()
    found.put(found.row(("e",)), KNOWN.by_name["wait"], 10**400)
    found.table()
    assert reading.rejected == {("not_finite", "wait"): 1}
