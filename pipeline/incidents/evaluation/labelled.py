"""Labelled sets: a folder with one Parquet file per stream, topology.json and truth.jsonl."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import RackpulseError, missing_extra
from pipeline.settings import Settings
from pipeline.store.migrate import migrate
from pipeline.streams import Contracts, load_contracts
from pipeline.streams.arrow import conform, table_schema

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

# The longest that a Date can hold from today; labelled sets may be of any year.
KEEP_DAYS = 36_000


@dataclass(frozen=True)
class Fault:
    """One line of truth.jsonl.

    Attributes:
        detector: empty for a harmless event that must not page.
        entities: ids that name it rightly; the first one is its own.
        visible_from: when it can be seen at all; the start where the set does not say.
    """

    detector: str
    entity_kind: str
    entities: tuple[str, ...]
    start: datetime
    visible_from: datetime
    end: datetime
    cause: str
    severity: float | None

    @property
    def benign(self) -> bool:
        return not self.detector


@dataclass(frozen=True)
class LabelledSet:
    """A folder that was read.

    Attributes:
        cluster: of its rows.
        first, last: times of its first and last sample.
    """

    folder: Path
    cluster: str
    first: datetime
    last: datetime
    faults: tuple[Fault, ...]

    @property
    def real(self) -> list[Fault]:
        """Faults that must be found."""
        return [fault for fault in self.faults if not fault.benign]


def read_truth(path: Path) -> tuple[Fault, ...]:
    """Read truth.jsonl.

    Raises:
        RackpulseError: a line is no label; the text names it.
    """
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            raw = json.loads(line)
            start = _moment(raw["start"])
            end = raw.get("end")
            found.append(
                Fault(
                    "" if raw.get("benign") else str(raw["detector"]),
                    str(raw.get("entity_kind", "")),
                    (str(raw.get("entity", "")), *map(str, raw.get("also", ()))),
                    start,
                    _moment(raw.get("visible_from") or raw["start"]),
                    _moment(end) if end else datetime.max.replace(tzinfo=UTC),
                    str(raw.get("cause") or raw.get("kind") or ""),
                    raw.get("severity"),
                )
            )
        except (KeyError, ValueError, TypeError, AttributeError) as exc:
            raise RackpulseError(f"{path}, line {number} is no label: {exc!r}") from exc
    return tuple(sorted(found, key=lambda fault: fault.start))


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


@contextmanager
def scratch_store(settings: Settings) -> Iterator[Client]:
    """A ClickHouse engine in memory with this version's tables, gone afterwards.

    One process has one such engine: its tables are emptied first.
    """
    import clickhouse_connect

    try:
        client = clickhouse_connect.get_client(dsn="chdb://:memory:")
    except (ImportError, ModuleNotFoundError) as exc:
        raise missing_extra("chdb", "embedded") from exc
    try:
        client.command("DROP DATABASE IF EXISTS telemetry")
        plain = settings.model_copy(
            update={
                "retention_days": KEEP_DAYS, "table_engine": "MergeTree", "cluster_name": None,
            }
        )  # fmt: skip
        migrate(client, plain, load_contracts())
        # Labelled rows may be old: nothing of them may expire.
        client.command("SYSTEM STOP TTL MERGES")
        yield client
    finally:
        client.close()


def load_set(client: Client, folder: Path, contracts: Contracts) -> LabelledSet:
    """Load a labelled set into a store, in place of what its stream tables held.

    Raises:
        RackpulseError: the folder is not a labelled set; the text says what is missing.
    """
    truth = folder / "truth.jsonl"
    if not truth.is_file():
        raise RackpulseError(
            f"{folder} is no labelled set: truth.jsonl is missing"
            " (make one with  rackpulse hall record)"
        )
    faults = read_truth(truth)
    files = [folder / f"{name}.parquet" for name in contracts]
    present = [path for path in files if path.is_file()]
    if not present:
        raise RackpulseError(f"{folder} is no labelled set: it holds no <stream>.parquet")
    clusters: dict[str, int] = {}
    times: list[datetime] = []
    for path in present:
        stream = contracts[path.stem]
        client.command(f"TRUNCATE TABLE telemetry.{stream.name}")
        wanted = [column.name for column in stream.wire_columns]
        with pq.ParquetFile(path) as file:
            known = [name for name in file.schema_arrow.names if name in wanted]
            for batch in file.iter_batches(batch_size=200_000, columns=known):
                table = pa.Table.from_batches([batch])
                if not table.num_rows:
                    continue
                for pair in pc.value_counts(_plain(table["cluster"])).to_pylist():
                    clusters[pair["values"]] = clusters.get(pair["values"], 0) + pair["counts"]
                ends = pc.min_max(table["sampled_at"]).as_py()
                times += [ends["min"], ends["max"]]
                client.insert_arrow(
                    f"telemetry.{stream.name}", _delivered(conform(stream, table), stream)
                )
    if not clusters:
        raise RackpulseError(f"{folder} is empty")
    return LabelledSet(
        folder, max(clusters, key=lambda name: clusters[name]),
        _aware(min(times)), _aware(max(times)), faults,
    )  # fmt: skip


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _plain(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _delivered(table: pa.Table, stream: object) -> pa.Table:
    """Add the writer's columns: stored at the moment of the sample, of no message."""
    schema = table_schema(stream)  # type: ignore[arg-type]
    columns = []
    count = table.num_rows
    for field in schema:
        if field.name in table.column_names:
            columns.append(table.column(field.name))
        elif field.name == "ingested_at":
            columns.append(table.column("sampled_at"))
        elif pa.types.is_dictionary(field.type):
            codes = pa.array(np.zeros(count, dtype=np.int32))
            columns.append(pa.DictionaryArray.from_arrays(codes, pa.array(["labelled"])))
        else:
            columns.append(pa.array(np.zeros(count), pa.float64()).cast(field.type))
    return pa.table(columns, schema=schema)
