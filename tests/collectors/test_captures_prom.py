"""The fast reader agrees with the library on well-formed pages and refuses lines of the others."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as library_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as library_classic

from pipeline.collectors.prometheus_text import Exposition, parse
from tests.conftest import captures_folder

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
LAST_MS = 2**63 - 1


def cases(name: str) -> list[dict[str, Any]]:
    path = captures_folder() / "prom" / name
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def ours(page: Exposition) -> list[tuple[Any, ...]]:
    return [
        (sample.name, sorted(sample.labels.items()), _value(sample.value), sample.time_ms)
        for sample in page
    ]


def theirs(text: str, names: list[str], *, openmetrics: bool) -> list[tuple[Any, ...]]:
    library = library_openmetrics if openmetrics else library_classic
    found = []
    for family in library(text):
        for sample in family.samples:
            # In classic pages the library adds _total to counters that have none.
            name = sample.name if sample.name in names else sample.name.removesuffix("_total")
            time = sample.timestamp
            time_ms = None if time is None else min(int(float(time) * 1000), LAST_MS)
            found.append((name, sorted(sample.labels.items()), _value(sample.value), time_ms))
    return found


def _value(value: float) -> float | str:
    return "NaN" if math.isnan(value) else float(value)


def test_the_cases_are_all_there(captures: Path) -> None:
    classic, openmetrics = cases("expfmt_cases.jsonl"), cases("openmetrics_cases.jsonl")
    assert [sum(case["should_parse"] for case in group) for group in (classic, openmetrics)] == [
        6,
        44,
    ]
    assert [len(classic), len(openmetrics)] == [26, 211]


@pytest.mark.parametrize("case", cases("expfmt_cases.jsonl"), ids=lambda case: case["name"])
def test_classic_case(captures: Path, case: dict[str, Any]) -> None:
    page = parse(case["text"].encode("latin-1"))
    if case["should_parse"]:
        assert ours(page) == theirs(case["text"], page.names, openmetrics=False)
        assert not page.rejected
    else:
        assert sum(page.rejected.values()) >= 1


@pytest.mark.parametrize("case", cases("expfmt_cases.jsonl"), ids=lambda case: case["name"])
def test_a_bad_line_does_not_lose_the_page(captures: Path, case: dict[str, Any]) -> None:
    """Between two good lines each bad case loses its own lines only."""
    body = b'first{a="1"} 1\n' + case["text"].encode("latin-1") + b'\nlast{a="2"} 2\n'
    page = parse(body)
    samples = list(page)
    assert (samples[0].name, samples[-1].name) == ("first", "last")
    assert bool(page.rejected) is not case["should_parse"] or case["name"].endswith("error_0")


@pytest.mark.parametrize("declared", [True, False], ids=["by content type", "by # EOF"])
@pytest.mark.parametrize("case", cases("openmetrics_cases.jsonl"), ids=lambda case: case["name"])
def test_openmetrics_case(captures: Path, case: dict[str, Any], declared: bool) -> None:
    if not declared and "# EOF" not in case["text"]:
        return  # nothing says that it is OpenMetrics
    page = parse(case["text"].encode(), OPENMETRICS if declared else None)
    if case["should_parse"]:
        assert ours(page) == theirs(case["text"], page.names, openmetrics=True)
        assert not page.rejected
        assert page.openmetrics
    else:
        assert sum(page.rejected.values()) >= 1


def test_large_page_of_all_types(captures: Path) -> None:
    body = (captures / "prom" / "alltypes_237.prom").read_bytes()
    page = parse(body)
    assert len(page) == 1857
    assert not page.rejected
    assert ours(page) == theirs(body.decode(), page.names, openmetrics=False)


def test_openmetrics_page_of_all_types(captures: Path) -> None:
    page = parse((captures / "prom" / "alltypes_5.om.txt").read_bytes())
    assert page.openmetrics
    assert len(page.types) == 5
    assert sorted(page.types.values()) == ["counter", "counter", "gauge", "histogram", "summary"]
    samples = list(page)
    assert len([s for s in samples if s.name == "rpc_durations_histogram_seconds_bucket"]) == 21
    assert [s.value for s in samples if s.name == "rpc_requests_total"] == [22, 15, 11]
    # Its Go client prints sums and quantiles below zero, which the format forbids: those
    # lines are refused, and only those.
    assert sum(page.rejected.values()) == 4
