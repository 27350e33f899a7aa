"""The contract of a stream: its columns, their types, units, ranges and sources.

One TOML file per stream in ``schemas/``, and ``common.toml`` for the columns that
stand on every row. This is the only place where a column is defined.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipeline.errors import ContractError

ColumnType = Literal[
    "string", "label", "bool",
    "uint8", "uint16", "uint32", "uint64", "int32", "int64",
    "float32", "float64", "timestamp_ms",
]  # fmt: skip
Kind = Literal["identity", "label", "gauge", "counter", "bitmask", "state"]
Group = Literal["identity", "placement", "edge", "own", "delivery"]

COMMON_FILE = "common.toml"
STREAM_NAMES = ("gpu", "nvlink", "ib_port", "coolant", "component", "event")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Source(_Model):
    """How one kind of source names a column.

    Attributes:
        names: names, newest first, as the source prints them.
        id: the source's own number for it, such as the DCGM field id.
        scale: factor from the source's unit to the column's.
    """

    names: tuple[str, ...] = Field(min_length=1)
    id: int | None = None
    scale: float = 1.0


class Column(_Model):
    """One column of a stream.

    Attributes:
        range: lowest and highest reading that is believed, inclusive, in ``unit``;
            others are rejected and counted.
        saturates: reading at which the source's register is full: unknown from there on.
        none_seen: reading that means "none seen" and is stored as 0.
        zero_is_missing: the source prints 0 for a sensor that is not there.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    type: ColumnType
    kind: Kind = "label"
    unit: str | None = None
    range: tuple[float, float] | None = None
    saturates: int | None = None
    none_seen: float | None = None
    zero_is_missing: bool = False
    description: str = Field(min_length=1)
    sources: dict[str, Source] = {}
    group: Group = "own"

    @property
    def nullable(self) -> bool:
        """False for identities and for what the writer adds: they are always known."""
        return self.kind != "identity" and self.group not in ("identity", "delivery")

    @model_validator(mode="after")
    def _check(self) -> Column:
        if self.range and self.range[0] > self.range[1]:
            raise ValueError(f"range of {self.name} runs backwards")
        if self.kind == "counter" and self.type not in ("uint64", "float64"):
            raise ValueError(f"counter {self.name} must be uint64 or float64")
        return self


class Stream(_Model):
    """The contract of one stream.

    Attributes:
        entity: columns that name the entity; with cluster, source and time they name a row.
        key: columns of which the first known one is the Kafka key.
        columns: all columns in table order: common identity, own identity, placement,
            edge, own, delivery.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    version: int = Field(ge=1)
    description: str
    entity: tuple[str, ...] = Field(min_length=1)
    entity_kind: str
    key: tuple[str, ...] = Field(min_length=1)
    columns: tuple[Column, ...]

    @model_validator(mode="after")
    def _check(self) -> Stream:
        names = [column.name for column in self.columns]
        doubled = {name for name in names if names.count(name) > 1}
        if doubled:
            raise ValueError(f"columns defined twice: {sorted(doubled)}")
        for name in (*self.entity, *self.key):
            if name not in names:
                raise ValueError(f"entity or key names an unknown column: {name}")
        for name in self.entity:
            if self.column(name).nullable:
                raise ValueError(f"entity column {name} must be of kind identity")
        return self

    def column(self, name: str) -> Column:
        """The column of that name; KeyError where there is none."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    @property
    def wire_columns(self) -> tuple[Column, ...]:
        """Columns that travel in a message: all but those that the writer adds."""
        return tuple(column for column in self.columns if column.group != "delivery")

    @property
    def delivery_columns(self) -> tuple[Column, ...]:
        """Columns that the writer adds."""
        return tuple(column for column in self.columns if column.group == "delivery")

    @property
    def row_identity(self) -> tuple[str, ...]:
        """Columns that name one row."""
        return ("cluster", *self.entity, "source", "sampled_at")

    def by_source(self, source: str) -> Iterator[tuple[Column, Source]]:
        """Columns that this kind of source can fill."""
        for column in self.columns:
            if source in column.sources:
                yield column, column.sources[source]

    @cached_property
    def digest(self) -> str:
        """Hash of what readers and models depend on: names, types and units, in order."""
        shape = [(column.name, column.type, column.kind, column.unit) for column in self.columns]
        return hashlib.sha256(json.dumps(shape).encode()).hexdigest()


class Contracts(Mapping[str, Stream]):
    """All streams, by name."""

    def __init__(self, streams: Mapping[str, Stream]) -> None:
        self._streams = dict(streams)

    def __getitem__(self, name: str) -> Stream:
        return self._streams[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._streams)

    def __len__(self) -> int:
        return len(self._streams)


def schemas_folder() -> Path:
    """The folder of contracts: beside the checkout's package, else inside the wheel."""
    checkout = Path(__file__).resolve().parents[2] / "schemas"
    if (checkout / COMMON_FILE).is_file():
        return checkout
    return Path(str(resources.files("pipeline") / "_data" / "schemas"))


def load_contracts(folder: Path | None = None) -> Contracts:
    """Read the contracts of all streams.

    Args:
        folder: where the TOML files lie; by default the project's ``schemas/``.

    Raises:
        ContractError: a file is missing or wrong; the text names file and column.
    """
    folder = folder or schemas_folder()
    common = _read(folder / COMMON_FILE)
    return Contracts({name: _load(folder / f"{name}.toml", common) for name in STREAM_NAMES})


def _read(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise ContractError(f"Contract file {path} is missing") from exc
    except tomllib.TOMLDecodeError as exc:
        raise ContractError(f"Contract file {path} is not TOML: {exc}") from exc


def _load(path: Path, common: dict[str, object]) -> Stream:
    raw = _read(path)
    own = raw.pop("column", [])
    if not isinstance(own, list):
        raise ContractError(f"{path}: write columns as [[column]]")

    def grouped(group: Group) -> list[dict[str, object]]:
        entries = common.get(group, [])
        assert isinstance(entries, list)
        kind = "identity" if group == "identity" else "label"
        return [{"kind": kind, **entry, "group": group} for entry in entries]

    identities = [column for column in own if column.get("kind") == "identity"]
    others = [column for column in own if column.get("kind") != "identity"]
    columns = [
        *grouped("identity"), *identities, *grouped("placement"), *grouped("edge"),
        *others, *grouped("delivery"),
    ]  # fmt: skip
    try:
        return Stream.model_validate({**raw, "columns": columns})
    except ValidationError as exc:
        raise ContractError(f"{path}: {exc}") from exc
