"""Labelled sets: a folder with one Parquet file per stream, topology.json and truth.jsonl."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import RackpulseError, missing_extra
from pipeline.settings import Settings
from pipeline.store.migrate import migrate
from pipeline.streams import Contracts, load_contracts

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


def purpose_of(folder: Path) -> str | None:
    """What a recorded set is for: train, validation, test or reserve; None where none says so."""
    try:
        found = json.loads((folder / "scenario.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return str(found["purpose"]) if isinstance(found, dict) and "purpose" in found else None


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


def load_set(
    client: Client, folder: Path, contracts: Contracts, streams: Collection[str] | None = None
) -> LabelledSet:
    """Load a labelled set into a store, in place of what its stream tables held.

    Args:
        streams: those that are wanted; by default all.

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
    files = [folder / f"{name}.parquet" for name in streams or contracts]
    present = [path for path in files if path.is_file()]
    if not present:
        raise RackpulseError(f"{folder} is no labelled set: it holds no <stream>.parquet")
    clusters: dict[str, int] = {}
    times: list[datetime] = []
    for path in present:
        stream = contracts[path.stem]
        client.command(f"TRUNCATE TABLE telemetry.{stream.name}")
        try:
            names = set(pq.read_schema(path).names)
        except (OSError, pa.ArrowException) as exc:
            raise RackpulseError(f"{path} cannot be read as Parquet: {exc}") from exc
        known = [column.name for column in stream.wire_columns if column.name in names]
        missing = [name for name in stream.row_identity if name not in names]
        if missing:
            raise RackpulseError(f"{path} lacks the identity columns {', '.join(missing)}")
        columns = ", ".join(f"`{name}`" for name in known)
        # Stored at the moment of the sample, of no message.
        client.command(
            f"INSERT INTO telemetry.{stream.name} ({columns}, ingested_at)"
            f" SELECT {columns}, sampled_at FROM file({_quoted(path)}, 'Parquet')"
        )
        rows = client.query(
            "SELECT cluster, count(), min(sampled_at), max(sampled_at)"
            f" FROM telemetry.{stream.name} GROUP BY cluster"
        ).result_rows
        for cluster, count, first, last in rows:
            clusters[cluster] = clusters.get(cluster, 0) + count
            times += [_aware(first), _aware(last)]
    if not clusters:
        raise RackpulseError(f"{folder} is empty")
    return LabelledSet(
        folder, max(clusters, key=lambda name: clusters[name]), min(times), max(times), faults
    )


def _quoted(path: Path) -> str:
    text = str(path.resolve()).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
