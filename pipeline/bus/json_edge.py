"""Rows as JSON from hand-made or third-party producers, checked one by one.

A bad row is answered with its index, the column and a reason, and costs no other row. What is
good becomes Arrow here: behind the edge there is no JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    create_model,
)
from pydantic_core import PydanticCustomError

from pipeline.bus.publisher import Publisher
from pipeline.streams import Column, Contracts, Stream
from pipeline.streams.arrow import arrow_field, wire_schema

MAX_BODY_BYTES = 16_000_000
MAX_ROWS = 50_000
MAX_TEXT = 100_000
_MAX_ERRORS = 1_000

_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
_LATEST = datetime(2100, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class RowError:
    """Why a row was not taken.

    Attributes:
        index: of the row in what was sent, from 0.
        column: that is at fault; empty when it is the row as a whole.
        reason: stable word: ``not_json``, ``not_an_object``, ``missing``, ``unknown_column``,
            ``wrong_type``, ``out_of_range``, ``bad_time`` or ``too_long``.
        detail: text for a person.
    """

    index: int
    column: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """What came of the rows that were sent.

    Attributes:
        table: the good ones in the stream's wire schema.
        errors: one for each fault that was found; a row may have several.
        rejected: rows that were not taken.
    """

    table: pa.Table
    errors: tuple[RowError, ...]
    rejected: int

    def answer(self) -> dict[str, Any]:
        """What the sender is told; at most 1,000 faults are listed."""
        return {
            "accepted": self.table.num_rows,
            "rejected": self.rejected,
            "errors": [asdict(error) for error in self.errors[:_MAX_ERRORS]],
        }


class BodyError(Exception):
    """The body as a whole cannot be read; nothing was taken.

    Args:
        reason: ``too_large``, ``not_utf8`` or ``not_json``.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


# ---------------------------------------------------------------- the model of a row


def _valid_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise PydanticCustomError("not_utf8", "text with half a surrogate pair") from exc
    return text


def _time(raw: Any) -> datetime:
    # A number could be seconds, milliseconds or nanoseconds.
    if not isinstance(raw, str):
        raise PydanticCustomError("bad_time", "write the time as 2026-11-30T12:00:00.000Z")
    try:
        moment = datetime.fromisoformat(raw)
    except ValueError as exc:
        raise PydanticCustomError("bad_time", "not an ISO 8601 time") from exc
    if moment.tzinfo is None:
        raise PydanticCustomError("bad_time", "a time without its zone")
    if not _EARLIEST <= moment <= _LATEST:
        raise PydanticCustomError("bad_time", "time outside the years 2000 to 2100")
    return moment


def _annotation(column: Column) -> Any:
    match column.type:
        case "string" | "label":
            return Annotated[StrictStr, Field(max_length=MAX_TEXT), AfterValidator(_valid_text)]
        case "bool":
            return StrictBool
        case "timestamp_ms":
            return Annotated[datetime, BeforeValidator(_time)]
        case "float32" | "float64":
            low, high = column.range or _float_bounds(column.type)
            return Annotated[float, Field(strict=True, ge=low, le=high, allow_inf_nan=False)]
        case integer:
            bounds = np.iinfo(integer)
            low, high = int(bounds.min), int(bounds.max)
            if column.range:
                low, high = max(low, int(column.range[0])), min(high, int(column.range[1]))
            return Annotated[StrictInt, Field(ge=low, le=high)]


def _float_bounds(kind: str) -> tuple[float, float]:
    bounds = np.finfo(kind)
    return float(bounds.min), float(bounds.max)


def row_model(stream: Stream) -> type[BaseModel]:
    """The pydantic model of one row, made from the contract."""
    fields: dict[str, Any] = {}
    for column in stream.wire_columns:
        kind = _annotation(column)
        fields[column.name] = (kind | None, None) if column.nullable else (kind, ...)
    made: type[BaseModel] = create_model(
        f"{stream.name}_row", __config__=ConfigDict(extra="forbid", strict=True), **fields
    )
    return made


# ---------------------------------------------------------------- rows


def accept_rows(
    stream: Stream,
    rows: Iterable[Any],
    defaults: Mapping[str, Any] | None = None,
    model: type[BaseModel] | None = None,
) -> Accepted:
    """Check rows one by one.

    Args:
        rows: decoded JSON; what is not an object is a bad row.
        defaults: values of columns that a row leaves out, such as ``cluster``.
        model: of :func:`row_model`, where the caller keeps it.
    """
    model = model or row_model(stream)
    good: list[BaseModel] = []
    errors: list[RowError] = []
    rejected = 0
    for index, row in enumerate(rows):
        if isinstance(row, _NotJson):
            errors.append(RowError(index, "", "not_json", row.detail))
        elif not isinstance(row, dict):
            errors.append(RowError(index, "", "not_an_object", f"a {type(row).__name__}"))
        else:
            try:
                good.append(model.model_validate({**(defaults or {}), **row}))
                continue
            except ValidationError as exc:
                errors += [_row_error(index, error) for error in exc.errors(include_url=False)]
        rejected += 1
    return Accepted(_table(stream, good), tuple(errors), rejected)


def _table(stream: Stream, good: list[BaseModel]) -> pa.Table:
    arrays = []
    for column in stream.wire_columns:
        kind = arrow_field(column).type
        cells = [getattr(row, column.name) for row in good]
        arrays.append(pa.array(cells, kind))
    return pa.table(arrays, schema=wire_schema(stream))


_REASONS = {
    "missing": "missing",
    "extra_forbidden": "unknown_column",
    "bad_time": "bad_time",
    "greater_than_equal": "out_of_range",
    "less_than_equal": "out_of_range",
    "finite_number": "out_of_range",
    "string_too_long": "too_long",
}


def _row_error(index: int, error: Any) -> RowError:
    column = str(error["loc"][0]) if error["loc"] else ""
    reason = _REASONS.get(error["type"], "wrong_type")
    return RowError(index, column[:200], reason, str(error["msg"]))


# ---------------------------------------------------------------- bodies


@dataclass(frozen=True, slots=True)
class _NotJson:
    detail: str


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object names a column twice")
    return found


_loads: Callable[[str], Any] = partial(
    json.loads, parse_constant=_refuse_constant, object_pairs_hook=_unique
)


def rows_of(body: bytes) -> list[Any]:
    """The rows of a body: a JSON array, one object, or one object per line.

    Raises:
        BodyError: it is too large, or it is none of these.
    """
    if len(body) > MAX_BODY_BYTES:
        raise BodyError("too_large", f"{len(body)} bytes, {MAX_BODY_BYTES} are allowed")
    try:
        text = body.decode("utf-8-sig").strip()
    except UnicodeDecodeError as exc:
        raise BodyError("not_utf8", str(exc)) from exc
    rows: list[Any]
    if text.startswith("["):
        try:
            rows = _loads(text)
        except (ValueError, RecursionError) as exc:
            raise BodyError("not_json", str(exc)) from exc
    else:
        rows = [_line(line) for line in text.splitlines() if line.strip()]
        if len(rows) > 1 and all(isinstance(row, _NotJson) for row in rows):
            # One object over several lines is no row per line.
            whole = _line(text)
            rows = [whole] if not isinstance(whole, _NotJson) else rows
    if len(rows) > MAX_ROWS:
        raise BodyError("too_large", f"{len(rows)} rows, {MAX_ROWS} are allowed")
    return rows


def _line(text: str) -> Any:
    try:
        return _loads(text)
    except (ValueError, RecursionError) as exc:
        return _NotJson(str(exc))


def publish_json(
    publisher: Publisher,
    contracts: Contracts,
    stream_name: str,
    body: bytes,
    defaults: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Take a body of JSON rows to Kafka: what an HTTP edge calls.

    Returns:
        The answer to the sender: ``accepted``, ``rejected`` and ``errors``. Accepted rows are
        spooled: they survive the end of this process.

    Raises:
        BodyError: nothing of the body can be read.
        KeyError: no such stream.
        SlowDownError: the spool takes nothing now; nothing was taken.
    """
    accepted = accept_rows(contracts[stream_name], rows_of(body), defaults)
    if accepted.table.num_rows:
        publisher.put(stream_name, accepted.table)
    return accepted.answer()
