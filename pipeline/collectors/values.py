"""Which readings are readings: blanks, sentinels, ranges, full registers. Vectorised.

The rules of a column stand in its contract (``range``, ``saturates``, ``none_seen``,
``zero_is_missing``); the blanks of DCGM stand here, since they are the same for every field
(``dcgm_structs.h``: blank, not found, not supported, not permitted).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pipeline.streams import Column, Contracts, Stream

NOT_FINITE, BLANK, SATURATED, NO_SENSOR, OUT_OF_RANGE, NOT_WHOLE = range(1, 7)
# Reason by fault number; 0 is no fault.
REASONS = ("", "not_finite", "blank", "saturated", "no_sensor", "out_of_range", "not_whole")

_INT64_BLANK = float(2**63 - 16)  # in float64 all four read 2**63
_INT32_BLANK = float(2**31 - 16)
_FLOAT64_BLANK = float(2**47)
# Up to here every integer has a float64 of its own.
EXACT_BELOW = float(2**53)
_ALL_BITS_64 = float(2**64)
# A register this narrow counts events that come one by one; wider sources pass it by.
_NARROW = 2**32 - 1

_LIMITS: dict[str, tuple[float, float]] = {
    "uint8": (0.0, 2.0**8 - 1), "uint16": (0.0, 2.0**16 - 1), "uint32": (0.0, 2.0**32 - 1),
    "uint64": (0.0, 2.0**64 - 2**11), "int32": (-(2.0**31), 2.0**31 - 1),
    "int64": (-(2.0**63), 2.0**63 - 2**10), "bool": (0.0, 1.0),
    "float32": (-float(np.finfo(np.float32).max), float(np.finfo(np.float32).max)),
    "float64": (-float(np.finfo(np.float64).max), float(np.finfo(np.float64).max)),
}  # fmt: skip


class Fields:
    """The columns of a stream that a kind of source can fill, and their rules as arrays.

    Args:
        stream: the contract.
        sources: source names in the contract, such as ``("dcgm",)``; where two name the same
            column, the names of both are known.

    Attributes:
        columns: numeric columns; a field's number is its place here.
        by_name: field number by the name that the source prints.
        labels: text columns by the name that the source prints.
        templates: names with a ``{link}`` in them, with their field number.
    """

    def __init__(self, stream: Stream, sources: Sequence[str]) -> None:
        self.stream = stream
        self.tells_quality = any(column.name == "quality" for column in stream.columns)
        self.columns: list[Column] = []
        self.by_name: dict[str, int] = {}
        self.labels: dict[str, str] = {}
        self.templates: dict[str, int] = {}
        scales: list[float] = []
        for kind in sources:
            for column, source in stream.by_source(kind):
                if column.type in ("label", "string"):
                    self.labels.update(dict.fromkeys(source.names, column.name))
                    continue
                number = len(self.columns)
                self.columns.append(column)
                scales.append(source.scale)
                for name in source.names:
                    if "{link}" in name:
                        self.templates[name] = number
                    else:
                        self.by_name.setdefault(name, number)
        self.scale = np.array(scales, dtype=np.float64)
        self.scaled = bool((self.scale != 1).any())
        self.low = np.array([_low(column) for column in self.columns])
        self.high = np.array([_high(column) for column in self.columns])
        self.saturates = _optional(column.saturates for column in self.columns)
        self.none_seen = _optional(column.none_seen for column in self.columns)
        self.zero_is_missing = np.array(
            [column.zero_is_missing for column in self.columns], dtype=bool
        )
        self.whole = np.array(
            [column.type not in ("float32", "float64") for column in self.columns], dtype=bool
        )

    def __len__(self) -> int:
        return len(self.columns)


def _low(column: Column) -> float:
    limit = _LIMITS[column.type][0]
    return max(limit, column.range[0]) if column.range else limit


def _high(column: Column) -> float:
    limit = _LIMITS[column.type][1]
    return min(limit, column.range[1]) if column.range else limit


def _optional(values: object) -> NDArray[np.float64]:
    assert hasattr(values, "__iter__")
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


class _ByIdentity:
    """Contracts as a cache key: they do not change and are made once per process."""

    def __init__(self, contracts: Contracts) -> None:
        self.contracts = contracts

    def __hash__(self) -> int:
        return id(self.contracts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.contracts is self.contracts


@lru_cache(maxsize=64)
def _fields(key: _ByIdentity, stream: str, sources: tuple[str, ...]) -> Fields:
    return Fields(key.contracts[stream], sources)


def fields(contracts: Contracts, stream: str, *sources: str) -> Fields:
    """The fields of a stream and source; made once per contracts."""
    return _fields(_ByIdentity(contracts), stream, sources)


def screen(
    known: Fields,
    field_of: NDArray[np.int64],
    values: NDArray[np.float64],
    *,
    dcgm_blanks: bool = False,
    wide: bool = False,
) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """Tell readings from what only looks like one.

    Args:
        field_of: field number of each value.
        values: as the source prints them, in its unit.
        dcgm_blanks: whether the blanks of DCGM are looked for.
        wide: the source's counters have 64 bits, so that a small one is not full at 15 or 255.

    Returns:
        The values in the units of their columns, and for each the number of its fault in
        :data:`REASONS`, 0 where it has none. A value that means "none seen" becomes 0.
    """
    fault = np.zeros(len(values), dtype=np.uint8)
    values = values.copy()
    finite = np.isfinite(values)
    if not finite.all():
        fault[~finite] = NOT_FINITE
        values[~finite] = 0.0
    if dcgm_blanks:
        fault[_dcgm_blank(values)] = BLANK
    none_seen = known.none_seen[field_of]
    if not np.isnan(none_seen).all():
        values[values == none_seen] = 0.0
    saturates = known.saturates[field_of]
    full = values == saturates
    if wide:
        full &= saturates >= _NARROW
    # All 64 bits set is no count; in float64 it reads 2**64.
    full |= (values >= _ALL_BITS_64) & known.whole[field_of]
    fault[full & (fault == 0)] = SATURATED
    missing = known.zero_is_missing[field_of] & (values == 0)
    fault[missing & (fault == 0)] = NO_SENSOR
    if known.scaled:
        values *= known.scale[field_of]
    outside = (values < known.low[field_of]) | (values > known.high[field_of])
    fault[outside & (fault == 0)] = OUT_OF_RANGE
    broken = known.whole[field_of] & (values != np.floor(values))
    fault[broken & (fault == 0)] = NOT_WHOLE
    return values, fault


def _dcgm_blank(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    blank = values >= _INT64_BLANK
    blank &= values < _ALL_BITS_64
    blank |= (values >= _INT32_BLANK) & (values <= _INT32_BLANK + 3)
    blank |= (values >= _FLOAT64_BLANK) & (values <= _FLOAT64_BLANK + 3)
    return blank


def exact_integer(raw: bytes | str | float, scale: float) -> int | None:
    """An integer that float64 cannot hold, from its text; None where the text is no integer."""
    if isinstance(raw, float) or scale != int(scale):
        return None
    try:
        return int(raw) * int(scale)
    except ValueError:
        return None
