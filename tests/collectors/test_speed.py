"""The reader is fast enough for the fleet; the figures stand in ``make bench``."""

from __future__ import annotations

from bench.collectors import FIELDS, GPUS, fleet, run
from pipeline.collectors.readers import dcgm
from tests.collectors.helpers import CONTRACTS


def test_the_pages_of_the_bench_are_read_whole() -> None:
    page = fleet(CONTRACTS, trays=1)[0]
    reading = dcgm.read(page, CONTRACTS)
    table = reading.tables["gpu"]
    assert table.num_rows == GPUS
    blanks = sum(reading.rejected.values())
    assert {reason for reason, _ in reading.rejected} <= {"blank", "out_of_range"}
    read = sum(
        len(table.column(column.name)) - table.column(column.name).null_count
        for column, _ in CONTRACTS["gpu"].by_source("dcgm")
        if column.name in table.column_names and column.type not in ("label", "string")
    )
    assert read + blanks == FIELDS * GPUS


def test_faster_than_the_library_and_than_a_model_per_line() -> None:
    ours, parsing, library, models = (float(str(found["lines_per_s"])) for found in run(trays=48))
    # A machine that runs other tests at the same time is slow for all three alike.
    assert parsing > ours > 3 * library
    assert ours > models
