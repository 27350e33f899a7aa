"""``python -m bench``: what the writer can do here, beside what one might use instead."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click

from bench import machine, report
from bench.peer import NoPeerError, build, collector
from bench.rate import at_rate
from bench.writer import Result, from_full_topic, from_memory, in_child, json_and_pydantic
from pipeline.streams import load_contracts

_SIZES = (0.125, 0.25, 0.5, 1.0, 2.0)


@click.command()
@click.option("--only", default="a,b,c,d,e,f", show_default=True, help="Which measurements.")
@click.option("--runs", default=3, show_default=True, help="Of a, c, d and e, in turn.")
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
    page = report.Page()
    page.head = [f"Measured {datetime.now(UTC):%Y-%m-%d %H:%M} UTC", "", *machine.describe()]
    cases: list[tuple[str, Callable[..., Result], int]] = [
        ("a", from_full_topic, seconds),
        ("c", from_memory, seconds),
        ("d", json_and_pydantic, max(2, seconds // 20)),
    ]
    if "e" in chosen:
        try:
            click.echo(f"(e) {build()}", err=True)
            cases.append(("e", collector, max(2, seconds // 20)))
        except NoPeerError as exc:
            page.notes.append(f"(e) was skipped: {exc}")
            click.echo(page.notes[-1], err=True)
    # In turn, so that a slow minute of the machine meets all of them.
    for number in range(runs):
        for name, case, length in cases:
            if name in chosen:
                click.echo(f"({name}) run {number + 1} of {runs} ...", err=True)
                result = in_child(case, contracts, length)
                page.results.setdefault(name, []).append(result)
                click.echo(f"    {report.short(result)}", err=True)
    if "b" in chosen:
        click.echo(f"(b) {rate_seconds} s at fleet rate ...", err=True)
        page.rates.append(at_rate(contracts, 1.0, rate_seconds))
    if "f" in chosen:
        for size in _SIZES:
            click.echo(f"(f) {size:g} fleets ...", err=True)
            page.growth.append(at_rate(contracts, size, growth_seconds))
    page.head.append(f"- load of the machine at the end: {machine.load():.1f}")
    text = "\n".join(page.lines())
    click.echo(text)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
