"""Outlet (c): a labelled set, faster than real time.

A folder: one Parquet file per stream with the contract's wire columns, ``topology.json``,
``truth.jsonl``, ``scenario.json``. NVLinks are sampled at ``nvlink_s``, healthy and faulty ones
alike, so that how often a link is sampled tells a detector nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.hall.engine import Hall
from pipeline.hall.events import EventMaker
from pipeline.hall.faults import Fault
from pipeline.hall.impair import impair
from pipeline.hall.layout import topology_of
from pipeline.hall.observe import Observation, Observer
from pipeline.hall.rows import RowMaker
from pipeline.hall.scenario import Scenario, faults_of, fleet_of
from pipeline.hall.truth import TruthKeeper
from pipeline.streams import Contracts, Stream
from pipeline.streams.arrow import wire_schema

BLOCK = 30  # samples per row group; their rows stand entity by entity, which compresses well


class SetWriter:
    """Writes the Parquet files of one folder."""

    def __init__(self, folder: Path, contracts: Contracts) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._contracts = contracts
        self._writers: dict[str, pq.ParquetWriter] = {}
        self.rows: dict[str, int] = {}

    def write(self, tables: dict[str, pa.Table]) -> None:
        """Append one row group per stream."""
        for name, table in tables.items():
            if name not in self._writers:
                self._writers[name] = _writer(
                    self._folder / f"{name}.parquet", self._contracts[name]
                )
            self._writers[name].write_table(table, row_group_size=max(table.num_rows, 1))
            self.rows[name] = self.rows.get(name, 0) + table.num_rows

    def close(self) -> None:
        """Finish the files; every stream has one, if only an empty one."""
        for name in self._contracts:
            if name not in self._writers:
                self._writers[name] = _writer(
                    self._folder / f"{name}.parquet", self._contracts[name]
                )
                self.rows[name] = 0
        for writer in self._writers.values():
            writer.close()


def _writer(path: Path, stream: Stream) -> pq.ParquetWriter:
    encodings = {}
    dictionary = []
    for column in stream.wire_columns:
        if column.name == "sampled_at":
            encodings[column.name] = "DELTA_BINARY_PACKED"
        elif (
            (column.kind == "counter" and column.type == "uint64")
            or column.type == "float64"
            or (column.type == "float32" and column.unit in ("W", "ratio"))
        ):
            encodings[column.name] = "BYTE_STREAM_SPLIT"
        else:
            dictionary.append(column.name)
    return pq.ParquetWriter(
        path, wire_schema(stream), compression="zstd", compression_level=3,
        use_dictionary=dictionary, column_encoding=encodings, write_statistics=["sampled_at"],
        data_page_version="2.0", dictionary_pagesize_limit=4 << 20,
    )  # fmt: skip


def record(
    scenario: Scenario,
    folder: Path,
    contracts: Contracts,
    *,
    progress: Callable[[float], None] | None = None,
) -> dict[str, int]:
    """Run a scenario and write its labelled set.

    Args:
        folder: made when it is missing; files in it are replaced.
        progress: called with the share that is done.

    Returns:
        Rows per stream.

    Raises:
        ConfigError: the scenario names something that the hall has not.
    """
    fleet = fleet_of(scenario)
    faults = faults_of(scenario, fleet)
    hall = Hall(fleet, scenario.start_s, faults)
    fabric = scenario.hall.fabric
    observer, rows = Observer(hall, ufm=fabric == "ufm"), RowMaker(fleet, contracts, fabric)
    keeper = TruthKeeper(hall)
    writer = SetWriter(folder, contracts)
    (folder / "topology.json").write_text(
        topology_of(fleet).model_dump_json(exclude_none=True) + "\n", encoding="utf-8"
    )
    (folder / "scenario.json").write_text(scenario.model_dump_json() + "\n", encoding="utf-8")
    time = scenario.time
    every = round(time.sample_s / time.step_s)
    links_every = round(time.nvlink_s / time.step_s)
    steps = round(time.hours * 3600.0 / time.step_s)
    events, last = EventMaker(fleet, contracts), hall.at
    pending: list[Observation] = []
    for step in range(1, steps + 1):
        hall.advance(time.step_s)
        keeper.look()
        if step % every:
            continue
        links = bool(links_every) and step % links_every == 0
        seen = observer.observe(links=links)
        found = events.between(faults, last, hall.at)
        last = hall.at
        if found is not None:
            writer.write({"event": found})
        if links:
            writer.write({"nvlink": rows.nvlink([seen])})
        pending.append(seen)
        if len(pending) >= BLOCK:
            _flush(pending, rows, writer, faults)
            if progress is not None:
                progress(step / steps)
    _flush(pending, rows, writer, faults)
    writer.close()
    (folder / "truth.jsonl").write_text(
        "\n".join(keeper.lines(faults, scenario.end_s)) + "\n", encoding="utf-8"
    )
    (folder / "rows.json").write_text(json.dumps(writer.rows) + "\n", encoding="utf-8")
    return writer.rows


def _flush(
    pending: list[Observation], rows: RowMaker, writer: SetWriter, faults: Sequence[Fault]
) -> None:
    if pending:
        writer.write(impair(rows.tables(pending, links=False), faults))
        pending.clear()


def read_truth(folder: Path) -> Sequence[dict[str, object]]:
    """Lines of a set's ``truth.jsonl``."""
    text = (folder / "truth.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line]
