"""The reader of Prometheus text: legal spacing, escapes, times, and what is refused."""

from __future__ import annotations

import math

import pytest

from pipeline.collectors.prometheus_text import (
    MAX_LINE_BYTES,
    Sample,
    clamp_time,
    is_openmetrics,
    parse,
    value_and_time,
)


def samples(text: str | bytes) -> list[Sample]:
    page = parse(text if isinstance(text, bytes) else text.encode())
    assert not page.rejected
    return list(page)


@pytest.mark.parametrize(
    "line",
    [
        'm{a="1",b="2"} 5',
        'm{a="1", b="2"} 5',
        'm{a="1",b="2",} 5',
        'm{ a = "1" , b = "2" } 5',
        '  m{a="1",b="2"} 5  ',
        '\tm {a="1",b="2"}\t5',
        'm{a="1",b="2"}5',
        'm{a="1",b="2"}  5.0',
        'm{a="1",b="2"} 5\r',
        'm{a="1",b="2"} 0.5e1',
        'm{a="1",b="2"} +05',
    ],
)
def test_legal_spacing(line: str) -> None:
    assert samples(line + "\n") == [Sample("m", {"a": "1", "b": "2"}, 5.0, None)]


def test_labels_keep_what_looks_like_syntax() -> None:
    line = r'm{a="} 1",b="x=\"y\",{z}",c="back\\slash\nline"} 2'
    assert samples(line + "\n")[0].labels == {
        "a": "} 1", "b": 'x="y",{z}', "c": "back\\slash\nline",
    }  # fmt: skip


def test_no_labels_empty_labels_and_no_samples() -> None:
    assert samples("m 1\nm{} 2\n\n# only a comment\n#\n") == [
        Sample("m", {}, 1, None), Sample("m", {}, 2, None),
    ]  # fmt: skip
    assert samples("") == []
    assert samples("\n\n") == []


def test_not_a_number_and_infinities_are_values() -> None:
    values = [sample.value for sample in samples("a NaN\nb +Inf\nc -Inf\nd inf\n")]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf, math.inf]


def test_times_are_milliseconds() -> None:
    found = samples('m{a="1"} 1 1700000000123\nm{a="2"} 2\nm{a="3"} 3\t-5\n')
    assert [sample.time_ms for sample in found] == [1700000000123, None, -5]


def test_a_time_that_does_not_fit_is_the_nearest() -> None:
    assert value_and_time(b"1 99999999999999999999999")[1] == 2**63 - 1
    assert clamp_time(-(10**30)) == -(2**63) + 1


def test_large_integers_keep_their_text() -> None:
    page = parse(b'm{a="1"} 9223372036854775807\n')
    assert page.raw == [b"9223372036854775807"]


def test_quoted_names() -> None:
    assert samples('{"metric.with.dots","label.x"="1",b="2"} 3\n') == [
        Sample("metric.with.dots", {"label.x": "1", "b": "2"}, 3, None)
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("...", "bad_line"),
        ("internal server error", "bad_line"),
        ("* Connection #0 to host x left intact", "bad_line"),
        ('m{a="1"}', "bad_line"),
        ('m{a="1"} ', "bad_line"),
        ('m{a="1"} x', "bad_value"),
        ('m{a="1"} 1_0', "bad_value"),
        ('m{a="1"} 0x1p-3', "bad_value"),
        ('m{a="1"} 1-2', "bad_value"),
        ('m{a="1"} 1 2.5', "bad_line"),
        ('m{a="1"} 1 2 3', "bad_line"),
        ('m{a="1"} 1 # {x="y"} 2', "bad_line"),
        ('m{a="1" 1', "bad_labels"),
        ("m{a=1} 1", "bad_labels"),
        ('m{a="1"b="2"} 1', "bad_labels"),
        ('m{a="1",a="2"} 1', "bad_labels"),
        ('m{__name__="n"} 1', "bad_labels"),
        ('m{1a="1"} 1', "bad_labels"),
        (r'm{a="\t"} 1', "bad_labels"),
        ('m{a="1",,b="2"} 1', "bad_labels"),
        ('{a="1"} 1', "bad_line"),
        ('1m{a="1"} 1', "bad_line"),
        ("m.5", "bad_line"),
        ("# TYPE m strange", "bad_metadata"),
        ("# TYPE m", "bad_metadata"),
        ("# HELP 1m text", "bad_metadata"),
    ],
)
def test_a_bad_line_is_refused_and_the_page_kept(line: str, reason: str) -> None:
    page = parse(f'before{{a="1"}} 1\n{line}\nafter{{a="1"}} 2\n'.encode())
    assert [sample.name for sample in page] == ["before", "after"]
    assert page.rejected == {reason: 1}


def test_a_label_that_is_not_utf8_costs_its_line() -> None:
    page = parse(b'a{b="\xff"} 1\nc{d="ok"} 2\ne{f="\\\\\xff"} 3\n')
    assert [sample.name for sample in page] == ["c"]
    assert page.rejected == {"not_utf8": 2}


def test_the_last_line_without_an_end_may_be_cut() -> None:
    page = parse(b'm{a="1"} 1\nm{a="2"} 17')
    assert [sample.labels["a"] for sample in page] == ["1"]
    assert page.rejected == {"truncated_line": 1}


def test_a_line_that_goes_on_for_ever() -> None:
    long = b'm{a="' + b"x" * MAX_LINE_BYTES + b'\\\\"} 1\n'
    page = parse(long + b"n 1\n")
    assert [sample.name for sample in page] == ["n"]
    assert page.rejected == {"line_too_long": 1}


def test_a_line_that_makes_a_regular_expression_slow() -> None:
    nasty = b"m{" + b'a="' * 20_000 + b"\n" + b"m{" + b"\\" * 60_000 + b'"} 1\n'
    page = parse(nasty + b"n 1\n")
    assert [sample.name for sample in page] == ["n"]


def test_metadata_said_twice() -> None:
    page = parse(b"# HELP m one\n# HELP m one\n# TYPE m gauge\n# TYPE m gauge\nm 1\n")
    assert not page.rejected
    assert page.types == {"m": "gauge"}
    page = parse(b"# HELP m one\n# HELP m two\n# TYPE m gauge\n# TYPE m counter\nm 1\n")
    assert page.rejected == {"second_metadata": 2}
    assert (page.types, len(page)) == ({"m": "gauge"}, 1)
    page = parse(b"m 1\n# TYPE m gauge\n")
    assert page.rejected == {"late_metadata": 1}


def test_thresholds_are_numbers() -> None:
    text = (
        b'# TYPE h histogram\nh_bucket{le="1"} 1\nh_bucket{le="x"} 2\nh_bucket{le="+Inf"} 3\n'
        b'# TYPE s summary\ns{quantile="0.5"} 1\ns{quantile="?"} 2\n'
    )
    page = parse(text)
    assert [sample.value for sample in page] == [1, 3, 1]
    assert page.rejected == {"bad_threshold": 2}


def test_a_page_says_that_it_is_openmetrics() -> None:
    assert is_openmetrics(b"a 1\n", "application/openmetrics-text; version=1.0.0")
    assert is_openmetrics(b"a 1\n# EOF\n", None)
    assert is_openmetrics(b"a 1\n# EOF", "text/plain")
    assert not is_openmetrics(b"a 1\n# EOFX\n", "text/plain; version=0.0.4")


def test_an_openmetrics_page_without_its_end_is_refused() -> None:
    page = parse(b"a 1\n", "application/openmetrics-text")
    assert (len(page), page.rejected) == (0, {"no_eof": 1})
    page = parse(b"a 1\n# EOF\nb 1\n")
    assert (len(page), page.rejected) == (0, {"after_eof": 1})
    page = parse(b"# TYPE a_total counter\na_total 1\n# EOF\nb 1\n")
    assert (len(page), page.rejected) == (0, {"after_eof": 1})


def test_a_bad_openmetrics_line_costs_its_line() -> None:
    page = parse(
        b'# TYPE a gauge\na{b="1"} 1\na{b="2"} x\na{b="3"} 3\n# TYPE c gauge\nc 4\n# EOF\n'
    )
    assert [sample.value for sample in page] == [1, 3, 4]
    assert page.rejected == {"bad_line": 1}
    page = parse(b'a 1\nb{c="\xff"} 2\n# EOF\n')
    assert [sample.name for sample in page] == ["a"]
    assert page.rejected == {"not_utf8": 1}


def test_openmetrics_times_are_seconds() -> None:
    page = parse(b"# TYPE a gauge\na 1 1700000000.123\n# EOF\n")
    assert [sample.time_ms for sample in page] == [1700000000123]


def test_a_large_bad_openmetrics_family_is_given_up_in_time() -> None:
    lines = "".join(f'a{{b="{n}"}} x\n' for n in range(5000))
    page = parse(f"# TYPE a gauge\n{lines}# TYPE c gauge\nc 1\n# EOF\n".encode())
    assert [sample.name for sample in page] == ["c"]
    assert sum(page.rejected.values()) == 5000
