"""What was produced, and the table of faults that the run prints at its end."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field

FULL = os.environ.get("RACKPULSE_FAULTS") == "full"


def times(short: int, full: int) -> int:
    """How often a fault is made: in every run of the tests, and in ``make test-faults``."""
    return full if FULL else short


@dataclass
class Outcome:
    """One line of the table."""

    fault: str
    times: int
    produced: int
    stored: int
    lost: int
    doubled: int
    note: str = ""


@dataclass
class Ledger:
    """Rows that Kafka acknowledged, by stream, partition and offset."""

    rows: dict[str, Counter[tuple[int, int]]] = field(default_factory=dict)

    def add(self, stream: str, partition: int, offset: int, rows: int) -> None:
        """A message was acknowledged."""
        self.rows.setdefault(stream, Counter())[partition, offset] += rows

    def of(self, stream: str) -> Counter[tuple[int, int]]:
        """Rows of a stream."""
        return self.rows.get(stream, Counter())

    @property
    def total(self) -> int:
        """All rows."""
        return sum(sum(each.values()) for each in self.rows.values())


OUTCOMES: list[Outcome] = []


def table() -> list[str]:
    """The table as Markdown lines."""
    lines = [
        "| fault | times | rows produced | stored | lost | doubled | |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    lines += [
        f"| {each.fault} | {each.times} | {each.produced} | {each.stored} | {each.lost}"
        f" | {each.doubled} | {each.note} |"
        for each in OUTCOMES
    ]
    return lines
