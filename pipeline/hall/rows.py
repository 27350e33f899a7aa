"""Observations as rows of the contracts' streams.

The rows are those that collectors make of the hall's pages: same ids, same sources, same
targets, same NULLs. Several observations in one table stand entity by entity, in time order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.hall import constants as c
from pipeline.hall import names
from pipeline.hall.fleet import Bools, Fleet, Floats, Ints
from pipeline.hall.observe import Columns, Observation
from pipeline.hall.statics import Static, Statics, coded
from pipeline.streams import Contracts, Stream
from pipeline.streams.arrow import wire_schema

_NUMPY: dict[str, type] = {
    "float32": np.float32, "float64": np.float64, "bool": np.bool_, "uint8": np.uint8,
    "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64,
}  # fmt: skip
_T = TypeVar("_T", bound=np.generic)


@dataclass
class Part:
    """Rows of one kind of entity: the same entities at one or several times.

    Attributes:
        name: names the static columns; parts of that name and of as many times have the same.
        times: rows of each entity.
        changing: readings and labels, as Arrow arrays by column.
        seen: rows that are there; None means all.
    """

    stream: str
    name: str
    times: int
    changing: Static
    seen: Bools | None = None


@dataclass
class RowMaker:
    """Makes rows of one hall's observations.

    Attributes:
        fabric: who reads the fabric, one of :data:`pipeline.hall.names.FABRICS`.
    """

    fleet: Fleet
    contracts: Contracts
    fabric: str = "ib_exporter"
    _statics: dict[tuple[str, int], Static] = field(default_factory=dict)
    _roles: tuple[tuple[int, bytes], Ints, list[str]] = field(
        default_factory=lambda: ((-1, b""), np.zeros(0, dtype=np.int64), [])
    )
    _nulls: dict[tuple[str, int], pa.Array] = field(default_factory=dict)
    _schemas: dict[str, pa.Schema] = field(default_factory=dict)

    def tables(self, seen: Sequence[Observation], *, links: bool = True) -> dict[str, pa.Table]:
        """Tables of all streams that have rows, in the wire schema.

        Args:
            seen: observations of rising times.
            links: whether NVLink rows are wanted; the observations must hold them.
        """
        found: dict[str, list[pa.Table]] = {}
        for part in self.parts(seen, links=links):
            found.setdefault(part.stream, []).append(self._table(part))
        return {name: pa.concat_tables(tables) for name, tables in found.items()}

    def nvlink(self, seen: Sequence[Observation]) -> pa.Table:
        """Rows of both sides of every NVLink."""
        return pa.concat_tables([self._table(part) for part in self.nvlink_parts(seen)])

    def static(self, part: str, times: int) -> Static:
        """Static columns of a part, ``times`` rows per entity."""
        known = self._statics.get((part, times))
        if known is None:
            known = _repeat(Statics(self.fleet).of(part), times)
            for other in [key for key in self._statics if key[0] == part and key[1] != 1]:
                del self._statics[other]  # the last window of a run is shorter: keep few
            self._statics[part, times] = known
        return known

    # --- parts ---
    def parts(self, seen: Sequence[Observation], *, links: bool = True) -> Iterator[Part]:
        """Rows by kind of entity; see :meth:`tables`."""
        times = len(seen)
        yield Part(
            "gpu", "gpu", times,
            {**self._arrays("gpu", seen, [o.gpu for o in seen]), **self._job_labels(seen)},
            _all_or([o.gpu_seen for o in seen]),
        )  # fmt: skip
        if links:
            yield from self.nvlink_parts(seen)
        yield self._fabric_part(seen)
        for name, picked in (
            ("rack_connector", [o.connector for o in seen]),
            ("primary", [_prefixed(o.cdu, "primary_") for o in seen]),
            ("secondary", [_secondary(o.cdu) for o in seen]),
            ("pump", [o.pump for o in seen]),
            ("reservoir", [_only(o.cdu, "level_percent") for o in seen]),
            ("filter", [_only(o.cdu, "filter_pressure_kpa") for o in seen]),
        ):
            yield Part("coolant", name, times, self._arrays("coolant", seen, picked))
        hosts = _all_or([np.repeat(o.host_seen, c.CPUS_PER_TRAY) for o in seen])
        cpus = self._arrays("component", seen, [o.cpu for o in seen])
        yield Part("component", "cpu", times, cpus, hosts)
        parts = {
            "rack": [o.rack for o in seen],
            "cdu": [_only(o.cdu, "power_w") for o in seen],
        }
        if self.fabric == "ib_exporter":
            parts["switch"] = [o.switch for o in seen]  # UFM's telemetry is of ports
        for name, picked in parts.items():
            yield Part("component", name, times, self._arrays("component", seen, picked))
        wet = [names.leak_states(o)[0] for o in seen]
        leaks = self._arrays("component", seen, [{"leak": w.astype(float)} for w in wet])
        leaks["detector_state"] = coded(
            _stack([w.astype(np.int64) for w in wet]), ["OK", "Critical"]
        )
        yield Part("component", "leak", times, leaks)

    def _fabric_part(self, seen: Sequence[Observation]) -> Part:
        """Rows of the fabric's ports, as their reader gives them."""
        ufm = self.fabric == "ufm"
        zero = names.UFM_ZERO_COLUMNS if ufm else names.IB_ZERO_COLUMNS
        ports = [
            {**o.port, **(o.ufm if ufm else {}), **dict.fromkeys(zero, np.zeros(o.port_seen.size))}
            for o in seen
        ]
        if ufm:
            for columns in ports:
                del columns["rate_gbps"]
        return Part(
            "ib_port", "ufm_port" if ufm else "ib_port", len(seen),
            self._arrays("ib_port", seen, ports), _all_or([o.port_seen for o in seen]),
        )  # fmt: skip

    def nvlink_parts(self, seen: Sequence[Observation]) -> Iterator[Part]:
        """Rows of both sides of every NVLink."""
        mask = _all_or([np.repeat(o.gpu_seen, c.NVLINKS) for o in seen])
        own = self._arrays("nvlink", seen, [_flat(o.link) for o in seen])
        yield Part("nvlink", "nvlink_gpu", len(seen), own, mask)
        far = self._arrays("nvlink", seen, [_flat(o.switch_link) for o in seen])
        yield Part("nvlink", "nvlink_switch", len(seen), far)

    def _job_labels(self, seen: Sequence[Observation]) -> Static:
        """Job, role and driver of every row; they change now and then."""
        partition = np.repeat(np.arange(len(seen[0].job_ids)), seen[0].partition_gpus)
        jobs: list[str] = []
        roles: list[str] = []
        job_codes, role_codes, drivers = [], [], []
        for o in seen:
            if o.labels_version != self._roles[0]:
                values = sorted(set(o.roles))
                index = {value: number for number, value in enumerate(values)}
                codes = np.array([index[role] for role in o.roles])
                self._roles = (o.labels_version, codes, values)
            job_codes.append(_extend(jobs, o.job_ids)[partition])
            role_codes.append(_extend(roles, self._roles[2])[self._roles[1]])
            drivers.append(np.repeat(o.driver, c.GPUS_PER_TRAY).astype(np.int64))
        return {
            "job_id": coded(_stack(job_codes), jobs),
            "job_role": coded(_stack(role_codes), roles),
            "driver_version": coded(_stack(drivers), list(names.DRIVERS)),
        }

    # --- arrays ---
    def _arrays(
        self, stream: str, seen: Sequence[Observation], columns: Sequence[Columns]
    ) -> Static:
        contract = self.contracts[stream]
        known = {column.name for column in contract.columns}
        found = {
            name: _array(contract, name, _stack([part[name] for part in columns]))
            for name in columns[0]
            if name in known
        }
        count = next(iter(columns[0].values())).size
        stamps = np.array([round(o.at * 1000) for o in seen], dtype=np.int64)
        found["sampled_at"] = pa.array(np.tile(stamps, count)).cast(pa.timestamp("ms", tz="UTC"))
        return found

    def _table(self, part: Part) -> pa.Table:
        if part.stream not in self._schemas:
            self._schemas[part.stream] = wire_schema(self.contracts[part.stream])
        schema = self._schemas[part.stream]
        rows = len(part.changing["sampled_at"])
        known = {**self.static(part.name, part.times), **part.changing}
        arrays = [
            known[column.name] if column.name in known else self._null(column.type, rows)
            for column in schema
        ]
        table = pa.table(arrays, schema=schema)
        return table if part.seen is None else table.filter(pa.array(part.seen))

    def _null(self, kind: pa.DataType, rows: int) -> pa.Array:
        key = (str(kind), rows)
        if key not in self._nulls:
            if len(self._nulls) > 200:
                self._nulls.clear()
            self._nulls[key] = pa.nulls(rows, kind)
        return self._nulls[key]


def at_time(seconds: float) -> datetime:
    """Seconds since 1970 as a UTC time."""
    return datetime.fromtimestamp(seconds, UTC)


def _stack(arrays: Sequence[NDArray[_T]]) -> NDArray[_T]:
    """Entity by entity, in time order."""
    if len(arrays) == 1:
        return arrays[0]
    return np.stack(arrays, axis=1).reshape(-1)


def _all_or(seen: Sequence[Bools]) -> Bools | None:
    return None if all(mask.all() for mask in seen) else _stack(seen)


def _flat(columns: Columns) -> Columns:
    return {name: values.reshape(-1) for name, values in columns.items()}


def _only(columns: Columns, name: str) -> Columns:
    return {name: columns[name]}


def _prefixed(columns: Columns, prefix: str) -> Columns:
    return {
        name.removeprefix(prefix): values
        for name, values in columns.items()
        if name.startswith(prefix)
    }


def _secondary(columns: Columns) -> Columns:
    return {
        **_prefixed(columns, "secondary_"),
        "supply_temp_setpoint_c": columns["supply_temp_setpoint_c"],
    }


def _extend(known: list[str], values: list[str]) -> Ints:
    """Codes of ``values`` in ``known``, which grows by what it lacks."""
    for value in values:
        if value not in known:
            known.append(value)
    return np.array([known.index(value) for value in values])


def _array(stream: Stream, name: str, values: Floats) -> pa.Array:
    column = stream.column(name)
    if column.none_seen is not None:
        values = np.where(values <= column.none_seen * 1.01, 0.0, values)
    kind = _NUMPY[column.type]
    if column.type.startswith("float"):
        return pa.array(values.astype(kind), from_pandas=True)
    return pa.array(values.astype(kind))


def _repeat(static: Static, times: int) -> Static:
    if times == 1:
        return dict(static)
    found = {}
    for name, array in static.items():
        index = pa.array(np.repeat(np.arange(len(array)), times))
        found[name] = array.take(index)
    return found
