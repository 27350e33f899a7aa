"""The counters file that we ship turns on what the readers can store."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.collectors.dcgm_counters import known_fields, left_out, parse_counters
from tests.collectors.helpers import CONTRACTS

FILE = Path(__file__).resolve().parents[2] / "deploy" / "dcgm-counters.csv"


def test_every_line_can_be_read_and_is_known() -> None:
    counters, bad = parse_counters(FILE.read_text(encoding="utf-8"))
    assert bad == []
    fields = [counter.field for counter in counters]
    assert len(fields) == len(set(fields))
    known = known_fields(CONTRACTS)
    assert [field for field in fields if field not in known] == []


def test_every_line_says_why_it_is_on() -> None:
    before = ""
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            assert before.startswith("# "), line
            assert len(before) > 15, line
        before = line


def test_counters_are_counters() -> None:
    counters, _ = parse_counters(FILE.read_text(encoding="utf-8"))
    known = known_fields(CONTRACTS)
    for counter in counters:
        for place in known[counter.field]:
            stream, _, column = place.partition(".")
            kind = CONTRACTS[stream].column(column).kind
            if counter.kind == "counter":
                assert kind == "counter", counter
            elif counter.kind == "gauge":
                assert kind in ("gauge", "state", "bitmask"), counter


@pytest.mark.parametrize(
    "column",
    [
        "gpu.clocks_event_reasons", "gpu.nvlink_recovery_events", "gpu.gpu_temp_margin_c",
        "gpu.sw_power_cap_ns", "gpu.hw_power_brake_ns", "gpu.recovery_action", "gpu.fabric_health",
        "gpu.sm_active_ratio", "nvlink.link_downs", "nvlink.tx_wait_ticks", "nvlink.link_state",
        "component.power_w", "component.temp_c",
    ],
)  # fmt: skip
def test_it_turns_on_what_the_default_leaves_out(column: str) -> None:
    counters, _ = parse_counters(FILE.read_text(encoding="utf-8"))
    assert column not in left_out(counters, CONTRACTS)


def test_lines_that_are_none() -> None:
    counters, bad = parse_counters("A, gauge, x\n\n # off\nB gauge\nC, number, x\n,gauge,x\n")
    assert [counter.field for counter in counters] == ["A"]
    assert bad == ["B gauge", "C, number, x", ",gauge,x"]
