"""The measurements as one Markdown table, and what is wanted of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bench.rate import RateResult
from bench.writer import Result, median

_TITLES = {
    "a": "(a) writer alone, from full topics",
    "c": "(c) the same blocks from memory: no Kafka, no fence",
    "d": "(d) JSON, pydantic per row, `client.insert`",
    "e": "(e) OpenTelemetry collector 0.165, from a full topic, GPU readings as OTLP",
}
# Measured in November 2026 on JSON rows of 40 values, broker included; the collector against
# the same engine over HTTP. They are not run here.
_DATE = "measured November 2026, not here"
_ELSEWHERE = (
    ("OpenTelemetry collector 0.165", "47,000",
     "with its default queue it lost 3.7 % in one run of four"),
    ("Kafka Connect's ClickHouse sink", "150,000", ""),
    ("Bento, clickhouse_sinker: the best peers", "1,000,000 to 1,200,000", ""),
)  # fmt: skip
_PROCESSES = ("writer", "store", "broker")


@dataclass
class Page:
    """What was measured so far."""

    head: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    results: dict[str, list[Result]] = field(default_factory=dict)
    rates: list[RateResult] = field(default_factory=list)
    growth: list[RateResult] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The page."""
        table = [
            "| | runs | rows | rows per CPU s of writer and store | values per CPU s of all"
            " processes | CPU s: writer / store / broker | peak MB: writer / store / broker"
            " | freshness p50 / p99 s | |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---|",
        ]
        table += [_measured(_TITLES[name], runs) for name, runs in self.results.items()]
        table += [_at_rate("(b)", each) for each in self.rates]
        table += [_at_rate("(f)", each) for each in self.growth]
        table += [
            f"| {name} | | | | {values} | | | | {f'{note}; ' if note else ''}{_DATE} |"
            for name, values, note in _ELSEWHERE
        ]
        return [*self.head, "", *table, "", *self._wanted(), *self.notes]

    def _wanted(self) -> list[str]:
        lines: list[tuple[str, str, str]] = []
        rows = {name: median(runs, _rows)[0] for name, runs in self.results.items()}
        if "a" in rows and "c" in rows:
            lines.append(("(a) / (c)", f"{rows['a'] / rows['c']:.2f}", "at least 0.6"))
        if "a" in rows and "d" in rows:
            lines.append(("(a) / (d)", f"{rows['a'] / rows['d']:.1f}", "at least 8"))
        if "a" in rows:
            values = median(self.results["a"], _values)[0]
            lines.append(
                ("(a) values per CPU s of all", f"{values / 1e6:.2f} million", "at least 5 million")
            )
        for each in self.rates:
            both = each.cores["writer"] + each.cores["store"]
            lines += [
                ("(b) cores of writer and store", f"{both:.2f}", "under 1"),
                ("(b) freshness p99", f"{each.fresh_p99_s:.2f} s", "under 3 s"),
                ("(b) peak memory of the writer", f"{each.peak_mb['writer']:.0f} MB",
                 "under 600 MB"),
            ]  # fmt: skip
        kept = [each.fleets for each in (*self.rates, *self.growth) if _sustained(each)]
        if self.growth:
            lines.append(
                ("highest rate sustained", f"{max(kept, default=0):g} fleets", "at least 2")
            )
            lines += _fit(self.growth)
        return [f"- {what}: **{found}** (wanted: {wanted})" for what, found, wanted in lines]


def short(result: Result) -> str:
    """One run in a line, while the others go on."""
    cpu = ", ".join(f"{name} {seconds:.1f}" for name, seconds in result.cpu.items())
    return (
        f"{result.rows:,} rows in {result.wall_s:.1f} s; CPU s: {cpu};"
        f" {result.rows_per_cpu_s:,.0f} rows, {result.values_per_cpu_s:,.0f} values per CPU s"
    )


def _sustained(each: RateResult) -> bool:
    """Nothing piled up: fresh to the end, and little left when the last was sent."""
    return each.fresh_p99_s < 3 and each.behind_s < 3 and each.late_s < 3


def _measured(title: str, runs: list[Result]) -> str:
    notes = "; ".join(sorted({run.note for run in runs if run.note}))
    return (
        f"| {title} | {len(runs)} | {runs[0].rows:,} | {_spread(runs, _rows)}"
        f" | {_spread(runs, _values)} | {_parts(runs)} | {_peaks(runs)} | | {notes} |"
    )


def _at_rate(mark: str, each: RateResult) -> str:
    cpu = {name: each.cores[name] * each.seconds for name in _PROCESSES}
    both = cpu["writer"] + cpu["store"]
    note = (
        f"{each.rows / each.seconds:,.0f} rows/s, {both / each.seconds:.2f} cores of writer and"
        f" store; {each.behind_s:.1f} s to store the rest; sender at most {each.late_s:.1f} s late;"
        f" sent to stored p99 {each.delay_p99_s:g} s"
    )
    return (
        f"| {mark} {each.fleets:g} fleets for {each.seconds} s | 1 | {each.rows:,}"
        f" | {each.rows / both:,.0f} | {each.values / sum(cpu.values()):,.0f}"
        f" | {' / '.join(f'{cpu[name]:.1f}' for name in _PROCESSES)}"
        f" | {' / '.join(f'{each.peak_mb[name]:.0f}' for name in _PROCESSES)}"
        f" | {each.fresh_p50_s:.2f} / {each.fresh_p99_s:.2f} | {note} |"
    )


def _rows(result: Result) -> float:
    return result.rows_per_cpu_s


def _values(result: Result) -> float:
    return result.values_per_cpu_s


def _spread(runs: list[Result], of: Callable[[Result], float]) -> str:
    middle, low, high = median(runs, of)
    return f"{middle:,.0f} ({low:,.0f} to {high:,.0f})"


def _parts(runs: list[Result]) -> str:
    found = []
    for name in _PROCESSES:
        other = "client" if name == "writer" else name
        seconds = sorted(run.cpu.get(name, run.cpu.get(other, 0.0)) for run in runs)
        found.append(f"{seconds[len(seconds) // 2]:.1f}")
    return " / ".join(found)


def _peaks(runs: list[Result]) -> str:
    return " / ".join(
        f"{max(run.peak_mb.get(name, 0.0) for run in runs):.0f}" for name in _PROCESSES
    )


def _fit(results: list[RateResult]) -> list[tuple[str, str, str]]:
    """Cores of writer and store as a fixed cost and a cost per row."""
    rates = np.array([each.rows / each.seconds for each in results])
    cores = np.array([each.cores["writer"] + each.cores["store"] for each in results])
    slope, fixed = np.polyfit(rates, cores, 1)
    found = f"{fixed:.2f} cores + {slope * 1e6:.2f} CPU s per million rows"
    lines = [("(f) fitted", found, "a line")]
    per_row = {each.fleets: cost / rate for each, cost, rate in zip(results, cores, rates,
                                                                    strict=True)}  # fmt: skip
    if 0.5 in per_row and 2.0 in per_row:
        ratio = per_row[2.0] / per_row[0.5]
        lines.append(("(f) cost per row, 2 fleets / half a fleet", f"{ratio:.2f}", "0.8 to 1.2"))
    return lines
