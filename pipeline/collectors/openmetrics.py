"""Pages that call themselves OpenMetrics, held to that format's page rules.

Format: https://prometheus.io/docs/specs/om/open_metrics_spec/. The rules of a family (order,
groups, histograms that add up) are the library's; what this module adds is that a bad line
costs its line, and a family that contradicts itself costs its family. A page without its
``# EOF``, or with text behind it, is refused whole: the format says so, because it was cut.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_fd_to_metric_families

from pipeline.collectors.prometheus_text import (
    MAX_LINE_BYTES,
    NO_TIME,
    Exposition,
    clamp_time,
)

_EOF = "# EOF"
# Each line of a bad family is tried as the bad one only where that stays cheap.
_FEW_LINES = 64
_MOST_LINES_READ = 20_000
_SUFFIXES = {
    "counter": ("_total", "_created"),
    "summary": ("", "_count", "_sum", "_created"),
    "histogram": ("_count", "_sum", "_bucket", "_created", ""),
    "gaugehistogram": ("_gcount", "_gsum", "_bucket"),
    "info": ("_info",),
}
_NAME_OF = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*|\{"((?:[^"\\]|\\.)*+)"')
_METADATA = re.compile(r'# (HELP|TYPE|UNIT) ([a-zA-Z_:][a-zA-Z0-9_:]*|"(?:[^"\\]|\\.)*+") (.*)')


@dataclass(slots=True)
class _Family:
    name: str
    kind: str = "unknown"
    metadata: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def holds(self, sample: str) -> bool:
        suffixes = _SUFFIXES.get(self.kind, ("",))
        return sample.startswith(self.name) and sample[len(self.name) :] in suffixes

    def claims(self) -> set[str]:
        """Names that no other family of the page may use."""
        return {self.name + suffix for suffix in (*_SUFFIXES.get(self.kind, ()), "")}

    def text(self) -> list[str]:
        return [*self.metadata, *self.lines, _EOF]


def parse(body: bytes) -> Exposition:
    """Read a page; refused lines, families and pages are counted by reason."""
    fault = page_fault(body)
    if fault is not None:
        return fault
    rejected: Counter[str] = Counter()
    lines = _lines(body, rejected)
    if not rejected:
        whole, _ = _library(lines)
        if whole is not None:
            return _exposition(whole, rejected)
    metrics: list[Metric] = []
    claimed: set[str] = set()
    for family in _families(lines[:-1], rejected):
        if claimed & family.claims():
            rejected["family_twice"] += max(1, len(family.lines))
            continue
        claimed |= family.claims()
        metrics.extend(_family(family, rejected))
    return _exposition(metrics, rejected)


def page_fault(body: bytes) -> Exposition | None:
    """An empty page with the reason where the page must be refused whole, else None."""
    lines = body.removesuffix(b"\n").split(b"\n")
    if b"# EOF" not in lines:
        return _exposition([], Counter({"no_eof": 1}))
    if lines.index(b"# EOF") != len(lines) - 1:
        return _exposition([], Counter({"after_eof": 1}))
    return None


def _lines(body: bytes, rejected: Counter[str]) -> list[str]:
    raw = body.split(b"\n")
    if not raw[-1]:
        raw.pop()
    lines = []
    for line in raw:
        if len(line) > MAX_LINE_BYTES:
            rejected["line_too_long"] += 1
            continue
        try:
            lines.append(line.decode())
        except UnicodeDecodeError:
            rejected["not_utf8"] += 1
    return lines


def _library(lines: list[str]) -> tuple[list[Metric] | None, int]:
    """What the library makes of lines; None and the line that it stopped at where it refuses."""
    reached = -1

    def feed() -> Iterator[str]:
        nonlocal reached
        for reached, line in enumerate(lines):  # noqa: B007  # read after the loop
            yield line + "\n"

    try:
        return list(text_fd_to_metric_families(feed())), reached  # type: ignore[no-untyped-call]  # not typed
    except Exception:
        # It says "bad page" with ValueError, KeyError, IndexError and others.
        return None, reached


def _families(lines: list[str], rejected: Counter[str]) -> list[_Family]:
    families: list[_Family] = []
    current: _Family | None = None
    for line in lines:
        metadata = _METADATA.fullmatch(line)
        if metadata:
            word, name, rest = metadata.groups()
            if current is None or current.name != name:
                current = _Family(name)
                families.append(current)
            if current.lines or any(known.startswith(f"# {word} ") for known in current.metadata):
                rejected["second_metadata"] += 1
                continue
            if word == "TYPE":
                current.kind = rest
            current.metadata.append(line)
            continue
        start = _NAME_OF.match(line)
        if start is None:
            rejected["bad_metadata" if line.startswith("#") else "bad_line"] += 1
            continue
        name = start.group(1) or start.group()
        if current is None or not current.holds(name):
            current = _Family(name)
            families.append(current)
        current.lines.append(line)
    return families


def _family(family: _Family, rejected: Counter[str]) -> list[Metric]:
    """What can be kept of a family, at the price of as few lines as possible."""
    for _ in range(min(_FEW_LINES, 1 + _MOST_LINES_READ // (1 + len(family.lines)))):
        found, reached = _library(family.text())
        if found is not None:
            return found
        number = reached - len(family.metadata)
        if not 0 <= number < len(family.lines):
            break  # it is not one line, or it is the metadata
        del family.lines[number]
        rejected["bad_line"] += 1
    for keep in _attempts(family):
        found, _ = _library([*family.metadata, *keep, _EOF])
        if found is not None:
            rejected["bad_family"] += len(family.lines) - len(keep)
            return found
    rejected["bad_family"] += max(1, len(family.lines))
    return []


def _attempts(family: _Family) -> Iterator[list[str]]:
    lines = family.lines
    if len(lines) <= _FEW_LINES:
        for number in reversed(range(len(lines))):  # what came first is kept
            yield lines[:number] + lines[number + 1 :]
    if family.kind in ("histogram", "gaugehistogram"):
        # Go clients print a sum beside buckets below zero, which the format forbids.
        yield [line for line in lines if line.startswith(f"{family.name}_bucket")]


def _exposition(metrics: list[Metric], rejected: Counter[str]) -> Exposition:
    names: dict[str, int] = {}
    labels: list[dict[str, str]] = []
    name_of: list[int] = []
    values: list[float] = []
    raw: list[bytes] = []
    times: list[int] = []
    types: dict[str, str] = {}
    for metric in metrics:
        types[metric.name] = metric.type
        for sample in metric.samples:
            if sample.value is None:
                rejected["native_histogram"] += 1
                continue
            try:
                value = float(sample.value)
            except OverflowError:
                rejected["bad_value"] += 1
                continue
            time_ms = NO_TIME
            if sample.timestamp is not None:
                time_ms = clamp_time(int(float(sample.timestamp) * 1000))
            name_of.append(names.setdefault(sample.name, len(names)))
            labels.append(dict(sample.labels or {}))
            values.append(value)
            raw.append(repr(sample.value).encode())
            times.append(time_ms)
    timed = any(time != NO_TIME for time in times)
    return Exposition(
        names=list(names),
        labels=labels,
        name_of=np.array(name_of, dtype=np.int64),
        labels_of=np.arange(len(labels), dtype=np.int64),
        values=np.array(values, dtype=np.float64),
        raw=raw,
        times_ms=np.array(times, dtype=np.int64) if timed else None,
        types=types,
        rejected=rejected,
        openmetrics=True,
    )
