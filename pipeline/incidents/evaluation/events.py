"""Events against pages: found or missed, how fast, with which cause, and what was false."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from pipeline.incidents.evaluation.labelled import Fault

# A page belongs to a fault when it is sent while the fault lasts, or just after.
LATE = timedelta(minutes=5)
HOURS_PER_WEEK = 168.0


@dataclass(frozen=True)
class Page:
    """One page: an incident that opened.

    Attributes:
        ids: everything that it names: its entity, its members, the far end of its cable.
        causes: cause when it opened, and each that it was changed to.
    """

    detector: str
    at: datetime
    ids: frozenset[str]
    causes: tuple[str, ...] = ()
    text: str = ""


@dataclass
class Tally:
    """Counts of one method over one or more sets."""

    faults: int = 0
    found: int = 0
    pages: int = 0
    false_pages: int = 0
    repeated: int = 0
    hours: float = 0.0
    cause_right: int = 0
    cause_known: int = 0
    from_start_min: list[float] = field(default_factory=list)
    from_visible_min: list[float] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    false_texts: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Sum up another set."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def as_json(self) -> dict[str, Any]:
        """Event precision and recall, false pages a week, time to detect, causes."""
        right = self.pages - self.false_pages - self.repeated
        return {
            "faults": self.faults,
            "found": self.found,
            "recall": _ratio(self.found, self.faults),
            "pages": self.pages,
            "false_pages": self.false_pages,
            "repeated_pages": self.repeated,
            "precision": _ratio(right, self.pages),
            "hours": round(self.hours, 2),
            "false_pages_per_week": (
                round(self.false_pages / self.hours * HOURS_PER_WEEK, 1) if self.hours else None
            ),
            "detect_p50_min": _quantile(self.from_start_min, 0.5),
            "detect_p95_min": _quantile(self.from_start_min, 0.95),
            "detect_from_visible_p50_min": _quantile(self.from_visible_min, 0.5),
            "detect_from_visible_p95_min": _quantile(self.from_visible_min, 0.95),
            "cause_right": _ratio(self.cause_right, self.cause_known),
            "missed": self.missed,
            "false": self.false_texts[:20],
        }


def tally(faults: Sequence[Fault], pages: Sequence[Page], begin: datetime, end: datetime) -> Tally:
    """Match pages of one detector with its faults.

    A fault is found by the first page that names it while it lasts: once, however long it
    lasts. Later pages that name it are repeats; all others are false.

    Args:
        faults: of that detector; those that are over before ``begin`` do not count.
        begin, end: time that was judged.
    """
    count = Tally(hours=(end - begin).total_seconds() / 3600, pages=len(pages))
    judged = [fault for fault in faults if fault.end > begin and fault.visible_from < end]
    found: dict[int, Page] = {}
    for page in sorted(pages, key=lambda page: page.at):
        hit = [
            i
            for i, fault in enumerate(judged)
            if page.ids & set(fault.entities) and fault.start <= page.at <= _late(fault.end)
        ]
        fresh = [i for i in hit if i not in found]
        if fresh:
            found[fresh[0]] = page
        elif hit:
            count.repeated += 1
        else:
            count.false_pages += 1
            count.false_texts.append(f"{page.at:%Y-%m-%d %H:%M} {page.text}")
    count.faults, count.found = len(judged), len(found)
    for i, fault in enumerate(judged):
        if i not in found:
            count.missed.append(f"{fault.start:%Y-%m-%d %H:%M} {fault.cause} {fault.entities[0]}")
            continue
        page = found[i]
        count.from_start_min.append((page.at - fault.start).total_seconds() / 60)
        count.from_visible_min.append(
            max(0.0, (page.at - max(fault.visible_from, fault.start)).total_seconds() / 60)
        )
        if fault.cause and page.causes:
            count.cause_known += 1
            count.cause_right += page.causes[-1] == fault.cause
    return count


def _late(end: datetime) -> datetime:
    return end if end > datetime.max.replace(tzinfo=end.tzinfo) - LATE else end + LATE


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 3) if whole else None


def _quantile(values: Sequence[float], q: float) -> float | None:
    return round(float(np.quantile(values, q)), 1) if values else None
