"""``python -m bench``: what the writer can do here, beside what one might use instead."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click
import numpy as np

from bench import machine
from bench.rate import RateResult, at_rate
from bench.writer import Result, from_full_topic, from_memory, in_child, json_and_pydantic, median
from pipeline.streams import load_contracts

# Measured by others on JSON rows of 40 values, broker included, in November 2026; the first
# against the same engine over HTTP. They are not run here.
PEERS = (
    ("OpenTelemetry collector 0.165 (Kafka receiver, ClickHouse exporter)", 47_000,
     "with its default queue it lost 3.7 % in one run of four"),
    ("Kafka Connect's ClickHouse sink", 150_000, ""),
    ("Bento, clickhouse_sinker (the best)", 1_200_000, "1.0 to 1.2 million"),
)  # fmt: skip
_SIZES = (0.125, 0.25, 0.5, 1.0, 2.0)


@click.command()
@click.option("--only", default="a,b,c,d,f", show_default=True, help="Which measurements.")
@click.option("--runs", default=3, show_default=True, help="Of a, c and d, in turn.")
@click.option("--seconds", default=60, show_default=True, help="Fleet seconds in a and c.")
@click.option("--rate-seconds", default=600, show_default=True, help="Length of b.")
@click.option("--growth-seconds", default=60, show_default=True, help="Length of each size in f.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the page here too.")
def main(
    only: str, runs: int, seconds: int, rate_seconds: int, growth_seconds: int, out: Path | None
) -> None:
    """Measure the writer and print a page of Markdown."""
    chosen = {name.strip() for name in only.split(",")}
    contracts = load_contracts()
    lines = [f"# Measured {datetime.now(UTC):%Y-%m-%d %H:%M} UTC", "", *machine.describe()]

    def add(*more: str) -> None:
        for line in more:
            click.echo(line)
        lines.extend(more)

    click.echo("\n".join(lines))
    results: dict[str, list[Result]] = {}
    # In turn, so that a slow minute of the machine meets all of them.
    for number in range(runs):
        for name, case, length in (
            ("a", from_full_topic, seconds),
            ("c", from_memory, seconds),
            ("d", json_and_pydantic, max(2, seconds // 20)),
        ):
            if name in chosen:
                click.echo(f"({name}) run {number + 1} of {runs} ...", err=True)
                results.setdefault(name, []).append(in_child(case, contracts, length))
    if results:
        add("", "## From a full topic, and the limits", "", *_table(results))
    if "b" in chosen:
        click.echo(f"(b) {rate_seconds} s at fleet rate ...", err=True)
        add("", "## (b) At fleet rate", "", *_rates([at_rate(contracts, 1.0, rate_seconds)]))
    if "f" in chosen:
        grown = []
        for size in _SIZES:
            click.echo(f"(f) {size:g} fleets ...", err=True)
            grown.append(at_rate(contracts, size, growth_seconds))
        add("", "## (f) Growth", "", *_rates(grown), "", *_fit(grown))
    add("", "## Others, as published", "", *_peers())
    add("", f"load of the machine at the end: {machine.load():.1f}")
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("\n".join(lines) + "\n", encoding="utf-8")


_TITLES = {
    "a": "(a) writer alone, full topics",
    "c": "(c) same blocks from memory, no Kafka, no fence",
    "d": "(d) JSON, pydantic per row, client.insert",
}


def _table(results: dict[str, list[Result]]) -> list[str]:
    lines = [
        "| | runs | rows | rows per CPU s of writer and store | values per CPU s of all"
        " | CPU s: writer / store / broker | peak MB: writer / store |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, runs in results.items():
        lines.append(
            f"| {_TITLES[name]} | {len(runs)} | {runs[0].rows} | {_spread(runs, _rows)}"
            f" | {_spread(runs, _values)} | {_parts(runs, ('writer', 'store', 'broker'))}"
            f" | {_peaks(runs)} |"
        )
    rows = {name: median(runs, _rows)[0] for name, runs in results.items()}
    lines.append("")
    if "a" in rows and "c" in rows:
        lines.append(f"(a) / (c) = {rows['a'] / rows['c']:.2f} (wanted: at least 0.6)")
    if "a" in rows and "d" in rows:
        lines.append(f"(a) / (d) = {rows['a'] / rows['d']:.1f} (wanted: at least 8)")
    if "a" in results:
        values = median(results["a"], _values)[0]
        lines.append(f"(a): {values / 1e6:.2f} million values per CPU s (wanted: at least 5)")
    return lines


def _rows(result: Result) -> float:
    return result.rows_per_cpu_s


def _values(result: Result) -> float:
    return result.values_per_cpu_s


def _spread(runs: list[Result], of: Callable[[Result], float]) -> str:
    middle, low, high = median(runs, of)
    return f"{middle:,.0f} ({low:,.0f} to {high:,.0f})"


def _parts(runs: list[Result], names: tuple[str, ...]) -> str:
    found = []
    for name in names:
        other = "client" if name == "writer" else name
        seconds = sorted(run.cpu.get(name, run.cpu.get(other, 0.0)) for run in runs)
        found.append(f"{seconds[len(seconds) // 2]:.1f}")
    return " / ".join(found)


def _peaks(runs: list[Result]) -> str:
    return " / ".join(
        f"{max(run.peak_mb.get(name, 0.0) for run in runs):.0f}" for name in ("writer", "store")
    )


def _rates(results: list[RateResult]) -> list[str]:
    lines = [
        "| fleets | seconds | rows/s | cores: writer / store / broker | delay p50 / p99 s"
        " | freshness p50 / p99 s | stored after the last was sent, s | sender late, s"
        " | peak MB: writer / store |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for each in results:
        cores = " / ".join(f"{each.cores[name]:.2f}" for name in ("writer", "store", "broker"))
        lines.append(
            f"| {each.fleets:g} | {each.seconds} | {each.rows / each.seconds:,.0f} | {cores}"
            f" | {each.delay_p50_s:g} / {each.delay_p99_s:g}"
            f" | {each.fresh_p50_s:.2f} / {each.fresh_p99_s:.2f} | {each.behind_s:.1f}"
            f" | {each.late_s:.1f} | {each.peak_mb['writer']:.0f} / {each.peak_mb['store']:.0f} |"
        )
    return lines


def _fit(results: list[RateResult]) -> list[str]:
    rates = np.array([each.rows / each.seconds for each in results])
    cores = np.array([each.cores["writer"] + each.cores["store"] for each in results])
    slope, fixed = np.polyfit(rates, cores, 1)
    by_size = {each.fleets: core / rate for each, core, rate in zip(results, cores, rates,
                                                                    strict=True)}  # fmt: skip
    lines = [
        f"writer and store together: {fixed:.2f} cores + {slope * 1e6:.2f} CPU s per million rows",
    ]
    if 0.5 in by_size and 2.0 in by_size:
        ratio = by_size[2.0] / by_size[0.5]
        lines.append(f"cost per row at 2 fleets / at 1/2 fleet = {ratio:.2f} (wanted: 0.8 to 1.2)")
    return lines


def _peers() -> list[str]:
    lines = ["| | values per CPU s | |", "|---|---:|---|"]
    lines += [f"| {name} | {values:,} | {note} |" for name, values, note in PEERS]
    lines += ["", "Measured in November 2026 on JSON rows of 40 values; not run here."]
    return lines


if __name__ == "__main__":
    main()
