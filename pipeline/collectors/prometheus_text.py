"""A fast reader of Prometheus text and OpenMetrics pages.

The library ``prometheus_client`` raises on the first bad line and so loses the page; this
reader refuses the line and keeps the rest. On well-formed pages the two agree.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/. A page that calls itself
OpenMetrics is read by :mod:`pipeline.collectors.openmetrics`.

How it is fast: most lines of a page are ``name{labels} value``, where the name and the whole
label block were seen before. Such a line costs two splits and two dictionary look-ups; the
values are converted in bulk. Everything else takes the slow way, once per name and block.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# A longer line is an error or an attack: real lines stay under 2 kB.
MAX_LINE_BYTES = 65_536
NO_TIME = np.iinfo(np.int64).min
TYPES = frozenset(
    (b"counter", b"gauge", b"summary", b"histogram", b"untyped", b"unknown", b"info", b"stateset",
     b"gaugehistogram")
)  # fmt: skip
_WITH_THRESHOLDS = frozenset((b"histogram", b"summary"))
# Names and HELP and TYPE lines are the same on every page: short ones are remembered.
_SHORT = 512
_REMEMBERED = 8192

_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*")
_SIMPLE_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="([^"\\]*)",?')
_TERM = re.compile(
    rb'[ \t]*(?:([a-zA-Z_][a-zA-Z0-9_]*)|"((?:[^"\\]|\\[\\n"])*+)")[ \t]*'
    rb'(?:=[ \t]*"((?:[^"\\]|\\[\\n"])*+)"[ \t]*)?(,|(?=\}))'
)
_VALUE = re.compile(
    rb"[+-]?(?:(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?|(?i:inf|infinity|nan))"
)
_VALUE_AND_TIME = re.compile(rb"([^ \t]++)(?:[ \t]++([+-]?[0-9]++))?")
# A counter is named with its _total in the classic format only; see `parse`.
_CLASSIC_COUNTER = re.compile(rb"^# TYPE [a-zA-Z0-9_:]+_total counter$", re.MULTILINE)
_ESCAPE = re.compile(r'\\([\\n"])')
_ESCAPED = {"\\": "\\", "n": "\n", '"': '"'}
_PLAIN_NUMBER_CHARACTERS = b"0123456789.eE+-"


class BadLineError(Exception):
    """A line that is refused; the text is the reason's short word."""


class Sample(NamedTuple):
    """One line of a page."""

    name: str
    labels: dict[str, str]
    value: float
    time_ms: int | None


@dataclass(slots=True)
class Exposition:
    """The samples of a page, column by column, in the order of the page.

    Attributes:
        names: distinct metric names; ``name_of`` gives each sample's place in it.
        labels: distinct label sets as printed; ``labels_of`` gives each sample's place in it.
        values: as float64: an integer above 2**53 is exact only in ``raw``.
        raw: the text of each value.
        times_ms: sample times in ms since 1970, :data:`NO_TIME` where a line has none; None
            when no line has one.
        types: TYPE by metric name; most readers ignore it, since a field table knows better.
        rejected: refused lines by reason.
    """

    names: list[str]
    labels: list[dict[str, str]]
    name_of: NDArray[np.int64]
    labels_of: NDArray[np.int64]
    values: NDArray[np.float64]
    raw: list[bytes]
    times_ms: NDArray[np.int64] | None = None
    types: dict[str, str] = field(default_factory=dict)
    rejected: Counter[str] = field(default_factory=Counter)
    openmetrics: bool = False

    def __len__(self) -> int:
        return len(self.raw)

    def __iter__(self) -> Iterator[Sample]:
        for number, (name, labels, value) in enumerate(
            zip(self.name_of, self.labels_of, self.values, strict=True)
        ):
            time_ms = None
            if self.times_ms is not None and self.times_ms[number] != NO_TIME:
                time_ms = int(self.times_ms[number])
            yield Sample(self.names[name], self.labels[labels], float(value), time_ms)


def is_openmetrics(body: bytes, content_type: str | None) -> bool:
    """Whether a page calls itself OpenMetrics: by its content type or a line ``# EOF``."""
    if content_type and "openmetrics" in content_type.lower():
        return True
    return body.startswith(b"# EOF\n") or b"\n# EOF\n" in body or body.endswith(b"\n# EOF")


def parse(body: bytes, content_type: str | None = None) -> Exposition:
    """Read a page.

    Args:
        body: the page as it came.
        content_type: its content type, where known.

    Returns:
        All samples that could be read; refused lines are counted by reason. It never raises
        for bad input.
    """
    if not is_openmetrics(body, content_type):
        return _Classic().parse(body)
    from pipeline.collectors import openmetrics  # imports this module

    declared = content_type is not None and "openmetrics" in content_type.lower()
    if not declared and _CLASSIC_COUNTER.search(body):
        # Classic lines with a "# EOF" at their end: its promise of a whole page is kept to.
        fault = openmetrics.page_fault(body)
        return _Classic().parse(body) if fault is None else fault
    return openmetrics.parse(body)


def clamp_time(time_ms: int) -> int:
    """A time in ms as int64: one that does not fit becomes the nearest, which nobody believes."""
    return max(NO_TIME + 1, min(time_ms, np.iinfo(np.int64).max))


class _Classic:
    """The state of reading one page of the classic format."""

    def __init__(self) -> None:
        self.names: dict[bytes, int] = {}
        self.name_list: list[str] = []
        self.blocks: dict[bytes, int] = {}
        self.label_list: list[dict[str, str]] = []
        self.types: dict[bytes, bytes] = {}
        self.helps: dict[bytes, bytes] = {}
        self.rejected: Counter[str] = Counter()
        self.name_of: list[int] = []
        self.labels_of: list[int] = []
        self.raw: list[bytes] = []

    def parse(self, body: bytes) -> Exposition:
        lines = body.split(b"\n")
        # What follows the last line end is either nothing or the start of a line that the
        # rest of is missing: "170" may have been "1700".
        if lines.pop().strip():
            self.rejected["truncated_line"] += 1
        names, blocks = self.names, self.blocks
        add_name, add_labels, add_raw = (
            self.name_of.append, self.labels_of.append, self.raw.append,
        )  # fmt: skip
        for line in lines:
            if line[:1] == b"#":
                self._metadata(line)
                continue
            head, _, value = line.rpartition(b"} ")
            name, _, block = head.partition(b"{")
            name_index = names.get(name)
            label_index = blocks.get(block)
            if name_index is None or label_index is None:
                self._slow(line, name, block, value)
            else:
                add_name(name_index)
                add_labels(label_index)
                add_raw(value)
        return self._finish()

    # -- lines that are seen for the first time, and odd ones

    def _slow(self, line: bytes, name: bytes, block: bytes, value: bytes) -> None:
        stripped = line.strip(b" \t\r")
        if not stripped:
            return
        if stripped[:1] == b"#":
            self._metadata(stripped)
            return
        try:
            if len(line) > MAX_LINE_BYTES:
                raise BadLineError("line_too_long")
            if name and block and self._learn(name, block):
                self._append(self.names[name], self.blocks[block], value)
                return
            found, labels, rest = split_line(stripped)
            label_index = self._labels(labels)
            self._append(self._name(found), label_index, rest)
            # Spaced otherwise than most, as a whole page may be: where the line was split as
            # the short way splits it, its label block is known from now on.
            if block and found.encode() == name and rest.strip() == value.strip(b" \t\r"):
                self.blocks[block] = label_index
        except BadLineError as reason:
            self.rejected[str(reason)] += 1

    def _append(self, name: int, labels: int, value: bytes) -> None:
        self.name_of.append(name)
        self.labels_of.append(labels)
        self.raw.append(value)

    def _learn(self, name: bytes, block: bytes) -> bool:
        """Remember a name and a label block that stand as in most lines; False if not so."""
        if block not in self.blocks:
            labels = simple_labels(block)
            if labels is None:
                return False
            self.blocks[block] = len(self.label_list)
            self.label_list.append(labels)
        if name not in self.names:
            known = _bare_name(name) if len(name) < _SHORT else None
            if known is None:
                return False
            self.names[name] = self._name(known)
        return True

    def _name(self, name: str) -> int:
        key = name.encode()
        if key not in self.names:
            self.names[key] = len(self.name_list)
            self.name_list.append(name)
        return self.names[key]

    def _labels(self, labels: dict[str, str]) -> int:
        self.label_list.append(labels)
        return len(self.label_list) - 1

    def _metadata(self, line: bytes) -> None:
        split = _short_metadata if len(line) < _SHORT else _split_metadata
        word, name, rest = split(line)
        if word == "HELP":
            # The text is told apart from a second one only.
            if self.helps.setdefault(name, rest) != rest:
                self.rejected["second_metadata"] += 1
        elif word == "TYPE":
            if name in self.names and name not in self.types:
                self.rejected["late_metadata"] += 1
            elif self.types.setdefault(name, rest) != rest:
                self.rejected["second_metadata"] += 1
        elif word:
            self.rejected["bad_metadata"] += 1

    # -- values

    def _finish(self) -> Exposition:
        page = Exposition(
            names=self.name_list,
            labels=self.label_list,
            name_of=np.array(self.name_of, dtype=np.int64),
            labels_of=np.array(self.labels_of, dtype=np.int64),
            values=np.empty(0),
            raw=self.raw,
            types={name.decode(): kind.decode() for name, kind in self.types.items()},
            rejected=self.rejected,
        )
        self._convert(page)
        if not _WITH_THRESHOLDS.isdisjoint(self.types.values()):
            self._check_thresholds(page)
        return page

    def _convert(self, page: Exposition) -> None:
        if not b"".join(self.raw).translate(None, _PLAIN_NUMBER_CHARACTERS):
            try:
                page.values = np.array(list(map(float, self.raw)), dtype=np.float64)
                return
            except ValueError:
                pass  # "1-2": find it below
        values: list[float] = []
        keep: list[int] = []
        times: list[int] = []
        for number, raw in enumerate(self.raw):
            try:
                text, time_ms = value_and_time(raw)
            except BadLineError as reason:
                self.rejected[str(reason)] += 1
                continue
            keep.append(number)
            values.append(float(text))
            times.append(time_ms)
            self.raw[number] = text
        page.values = np.array(values, dtype=np.float64)
        _keep(page, keep)
        if any(time != NO_TIME for time in times):
            page.times_ms = np.array(times, dtype=np.int64)

    def _check_thresholds(self, page: Exposition) -> None:
        """Refuse buckets and quantiles whose threshold is no number."""
        label_of: dict[int, str] = {}
        for index, name in enumerate(page.names):
            if name.endswith("_bucket") and page.types.get(name[:-7]) == "histogram":
                label_of[index] = "le"
            elif page.types.get(name) == "summary":
                label_of[index] = "quantile"
        keep = []
        for number, name_index in enumerate(page.name_of.tolist()):
            label = label_of.get(name_index)
            if label is not None:
                text = page.labels[page.labels_of[number]].get(label)
                if text is not None and not _VALUE.fullmatch(text.encode()):
                    self.rejected["bad_threshold"] += 1
                    continue
            keep.append(number)
        if len(keep) < len(page.raw):
            page.values = page.values[keep]
            if page.times_ms is not None:
                page.times_ms = page.times_ms[keep]
            _keep(page, keep)


def _keep(page: Exposition, keep: list[int]) -> None:
    if len(keep) < len(page.raw):
        page.name_of = page.name_of[keep]
        page.labels_of = page.labels_of[keep]
        page.raw[:] = [page.raw[number] for number in keep]


@lru_cache(maxsize=_REMEMBERED)
def _bare_name(name: bytes) -> str | None:
    """A metric name without the indent of its line; None where it is none."""
    bare = name.strip(b" \t")  # an indented page is still a page
    return bare.decode("ascii") if _NAME.fullmatch(bare) else None


def _split_metadata(line: bytes) -> tuple[str, bytes, bytes]:
    """Word, metric and text of a line that begins with ``#``; no word for a comment."""
    words = line[1:].split(None, 2)
    if len(words) < 2 or words[0] not in (b"HELP", b"TYPE") or words[1][:1] == b'"':
        return "", b"", b""  # of a quoted name nothing here needs the type
    text = words[2].strip() if len(words) == 3 else b""
    if not _NAME.fullmatch(words[1]):
        return "bad", b"", b""
    if words[0] == b"HELP":
        return ("HELP", words[1], text) if text else ("", b"", b"")
    return ("TYPE", words[1], text) if text in TYPES else ("bad", b"", b"")


_short_metadata = lru_cache(maxsize=_REMEMBERED)(_split_metadata)


def value_and_time(text: bytes) -> tuple[bytes, int]:
    """Split what stands behind the labels: the value's text and its time in ms.

    Raises:
        BadLineError: it is not a number, or not a whole number of milliseconds.
    """
    found = _VALUE_AND_TIME.fullmatch(text.strip(b" \t\r"))
    if found is None:
        raise BadLineError("bad_line")
    value, time = found.groups()
    if not _VALUE.fullmatch(value):
        raise BadLineError("bad_value")
    return value, NO_TIME if time is None else clamp_time(int(time[:20]))


def simple_labels(block: bytes) -> dict[str, str] | None:
    """Labels of a block without escapes and odd spaces; None where it is not that simple.

    Raises:
        BadLineError: a label value is not UTF-8.
    """
    try:
        text = block.decode()
    except UnicodeDecodeError:
        raise BadLineError("not_utf8") from None
    pairs = _SIMPLE_LABEL.findall(text)
    labels = dict(pairs)
    # name="value" and a comma after each but the last: nothing else can add up to the length.
    length = sum(len(name) + len(value) for name, value in pairs) + 4 * len(pairs) - 1
    if len(text) != length or len(labels) != len(pairs) or "__name__" in labels:
        return None
    return labels


def split_line(line: bytes) -> tuple[str, dict[str, str], bytes]:
    """Split a sample line of any legal spacing into name, labels and the rest.

    Raises:
        BadLineError: it is no sample line.
    """
    start = _NAME.match(line)
    name = start.group().decode("ascii") if start else ""
    position = start.end() if start else 0
    bare = line[position:].lstrip(b" \t")
    if bare[:1] != b"{":
        if not name or len(bare) == len(line) - position:
            raise BadLineError("bad_line")
        return name, {}, bare
    labels: dict[str, str] = {}
    position = len(line) - len(bare) + 1
    while True:
        closing = line[position:].lstrip(b" \t")
        if closing[:1] == b"}":
            position = len(line) - len(closing) + 1
            break
        term = _TERM.match(line, position)
        if term is None:
            raise BadLineError("bad_labels")
        position = term.end()
        plain, quoted, value, _ = term.groups()
        if value is None:  # {"name of the metric", ...}
            if plain is not None or name or labels:
                raise BadLineError("bad_labels")
            name = _text(quoted)
            continue
        label = plain.decode("ascii") if plain is not None else _text(quoted)
        if label == "__name__" or label in labels:
            raise BadLineError("bad_labels")
        labels[label] = _text(value)
    if not name:
        raise BadLineError("bad_line")
    return name, labels, line[position:]


def _text(escaped: bytes) -> str:
    try:
        text = escaped.decode()
    except UnicodeDecodeError:
        raise BadLineError("not_utf8") from None
    return _ESCAPE.sub(lambda found: _ESCAPED[found.group(1)], text) if "\\" in text else text
