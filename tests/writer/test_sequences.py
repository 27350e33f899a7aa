"""Repeats are told by their number, asked of the table and not of a memory that may be stale."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pipeline.clock import ManualClock
from pipeline.metrics import Metrics
from pipeline.settings import Settings
from pipeline.streams import Contracts
from pipeline.writer.lane import Lane
from pipeline.writer.options import Options
from pipeline.writer.sequences import Sequences
from pipeline.writer.shared import Shared
from pipeline.writer.state import Owned
from pipeline.writer.takeover import Wanted
from pipeline.writer.topics import Topics
from tests.writer.rows import taken


@dataclass
class FakeTable:
    """Answers the two questions that Sequences asks."""

    stored: set[tuple[str, str, int]] = field(default_factory=set)

    def query(self, sql: str, parameters: dict[str, Any], **_: object) -> FakeTable:
        found = [
            (collector, key, seq)
            for collector, key, seq in self.stored
            if collector in parameters["collectors"]
            and key in parameters["keys"]
            and seq in parameters.get("numbers", [seq])
        ]
        if "max(collector_seq)" in sql:
            highest: dict[tuple[str, str], int] = {}
            for collector, key, seq in found:
                highest[collector, key] = max(seq, highest.get((collector, key), 0))
            self.result_rows = [(*pair, seq) for pair, seq in highest.items()]
        else:
            self.result_rows = list(found)
        return self


def test_gaps_repeats_and_late_ones(contracts: Contracts) -> None:
    table = FakeTable({("c1", "rack-01", seq) for seq in (1, 2, 4)})
    sequences = Sequences("gpu", lambda: table)  # type: ignore[arg-type, return-value]
    messages = [
        taken(contracts, "gpu", offset, seq=seq)
        for offset, seq in enumerate([4, 3, 5, 5, 8, 1, 7], start=10)
    ]
    sifted = sequences.sift(messages)
    assert [m.header.seq for m in sifted.fresh] == [3, 5, 8, 7]
    assert [m.header.seq for m in sifted.repeats] == [4, 5, 1]
    assert sifted.gaps == [("c1", "rack-01", 6, 7)]
    assert sifted.filled == [("c1", "rack-01", 3), ("c1", "rack-01", 7)]


def test_the_first_message_of_a_collector_is_no_gap(contracts: Contracts) -> None:
    sequences = Sequences("gpu", FakeTable)  # type: ignore[arg-type]
    sifted = sequences.sift([taken(contracts, "gpu", 0, seq=40)])
    assert (len(sifted.fresh), sifted.gaps) == (1, [])


def test_a_partition_that_comes_back_is_asked_for_anew(contracts: Contracts) -> None:
    """Meanwhile another writer had it, and may have stored higher numbers."""
    table = FakeTable({("c1", "rack-01", 6)})
    shared = Shared(
        Settings(bootstrap_servers="127.0.0.1:1"), contracts, Options(), ManualClock(), Metrics(),
        Topics(Settings(bootstrap_servers="127.0.0.1:1")),
    )  # fmt: skip
    lane = Lane(contracts["gpu"], shared)
    lane._sequences = Sequences("gpu", lambda: table)  # type: ignore[arg-type, return-value]
    assert lane._sequences.sift([taken(contracts, "gpu", 5, seq=6)]).fresh == []
    table.stored.add(("c1", "rack-01", 7))  # by the other writer
    owned = Owned(0, "5e0b8d5e-0000-4000-8000-000000000000", 0, 3, 7, 0)
    lane._takeover.take = lambda wanted: {0: owned}  # type: ignore[method-assign]
    lane.open({0: Wanted(1)})
    lane._open_wanted()
    sifted = lane._sequences.sift([taken(contracts, "gpu", 7, seq=7)])
    assert (sifted.fresh, len(sifted.repeats)) == ([], 1)
