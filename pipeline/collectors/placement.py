"""Location and wiring of rows, joined from the topology file.

An entity that the file does not know keeps its host's rack and tray, or stays unplaced; it
is ingested all the same. Where a page's host and the file's differ, the entity has moved:
the host that reported it wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.streams import Contracts, Stream
from pipeline.streams.arrow import arrow_type
from pipeline.topology import Place, Topology
from pipeline.topology.model import UNPLACED

_FIELDS = Place._fields
Key = tuple[str | None, ...]


class Placer:
    """Places the rows of all streams by one topology.

    Args:
        topology: the file's content; None leaves all rows unplaced.
    """

    def __init__(self, contracts: Contracts, topology: Topology | None) -> None:
        self._contracts = contracts
        self._topology = topology
        self._rules: dict[str, tuple[tuple[str, ...], Callable[..., Place]]] = {
            "gpu": (("gpu_uuid", "host"), self._gpu),
            "nvlink": (("device_id", "side", "host"), self._nvlink),
            "ib_port": (("guid", "host"), self._ib_port),
            "coolant": (("manager_id", "host"), self._managed),
            "component": (("manager_id", "component_id", "entity_type", "host"), self._component),
            "event": (("entity_kind", "entity_id", "host"), self._event),
        }

    def place(self, table: pa.Table, stream_name: str) -> pa.Table:
        """The same rows with placement, and with their peers where the stream has them."""
        if self._topology is None or not table.num_rows:
            return table
        stream = self._contracts[stream_name]
        names, rule = self._rules[stream_name]
        codes, keys = _distinct(table, names)
        places = [rule(*key) for key in keys]
        for name in _FIELDS:
            values = [getattr(place, name) for place in places]
            table = _fill(table, stream, name, values, codes, prefer_new=True)
        if stream_name == "nvlink":
            table = self._nvlink_peers(table, stream)
        elif stream_name == "ib_port":
            table = self._ib_nodes(table, stream)
            table = self._ib_peers(table, stream)
        return table

    def rack_of_manager(self, manager: str) -> str | None:
        """The rack of a management controller; None where it is not known."""
        return self._managed(manager, None).rack if self._topology is not None else None

    # ------------------------------------------------------------ who stands where

    def _at(self, kind: str, entity_id: str | None, host: str | None) -> Place:
        assert self._topology is not None
        place = self._topology.place(kind, entity_id) if entity_id else UNPLACED
        if host is None or (place.host in (host, None) and place is not UNPLACED):
            return place
        by_host = self._topology.place("host", host)
        if place is UNPLACED or by_host is not UNPLACED:
            return by_host._replace(host=host)
        # The file knows the entity elsewhere, and knows nothing of this host.
        return Place(host=host)

    def _gpu(self, uuid: str | None, host: str | None) -> Place:
        return self._at("gpu", uuid, host)

    def _nvlink(self, device: str | None, side: str | None, host: str | None) -> Place:
        return self._at("nvswitch" if side == "switch" else "gpu", device, host)

    def _ib_port(self, guid: str | None, host: str | None) -> Place:
        assert self._topology is not None
        kind = "hca" if ("hca", guid or "") in self._topology.by_id else "ib_switch"
        return self._at(kind, guid, host)

    def _managed(self, manager: str | None, host: str | None) -> Place:
        """By the manager, by what is named after it, by its host."""
        assert self._topology is not None
        for kind in ("manager", "cdu", "rack", "power_shelf", "nvswitch", "ib_switch", "host"):
            if (kind, manager or "") in self._topology.by_id:
                return self._topology.place(kind, manager or "")
        return self._at("host", host, host)

    def _component(
        self, manager: str | None, component: str | None, kind: str | None, host: str | None
    ) -> Place:
        assert self._topology is not None
        # The file counts a host's sockets; exporters name them cpu0, cpu1.
        socket = (component or "").removeprefix("cpu")
        for entity_id in (component, f"{manager}/{component}", f"{host}/{socket}"):
            if kind and entity_id and (kind, entity_id) in self._topology.by_id:
                return self._at(kind, entity_id, host)
        return self._managed(manager, host)

    def _event(self, kind: str | None, entity_id: str | None, host: str | None) -> Place:
        """An event's entity id is the device's, with the port, link or part behind a slash."""
        device = (entity_id or "").split("/", 1)[0]
        if kind == "gpu":
            return self._gpu(device, host)
        if kind == "nvlink":
            assert self._topology is not None
            side = "switch" if ("nvswitch", device) in self._topology.by_id else "gpu"
            return self._nvlink(device, side, host)
        if kind == "ib_port":
            return self._ib_port(device, host)
        return self._managed(device, host)

    # ------------------------------------------------------------ the other end

    def _nvlink_peers(self, table: pa.Table, stream: Stream) -> pa.Table:
        assert self._topology is not None
        peers = self._topology.peers
        ends = [peers.get(key) for key in _pairs(table, "device_id", "link")]
        if not any(ends):
            return table
        table = _fill(table, stream, "peer_id", [end[0] if end else None for end in ends])
        return _fill(table, stream, "peer_link", [end[1] if end else None for end in ends])

    def _ib_nodes(self, table: pa.Table, stream: Stream) -> pa.Table:
        assert self._topology is not None
        codes, keys = _distinct(table, ("guid",))
        found = [
            self._topology.by_id.get(("ib_switch", guid or ""))
            or self._topology.by_id.get(("hca", guid or ""))
            for (guid,) in keys
        ]
        levels = [entity.level if entity else None for entity in found]
        names = [entity.name if entity else None for entity in found]
        table = _fill(table, stream, "level", levels, codes, prefer_new=True)
        return _fill(table, stream, "node_name", names, codes)

    def _ib_peers(self, table: pa.Table, stream: Stream) -> pa.Table:
        assert self._topology is not None
        peers, by_id = self._topology.peers, self._topology.by_id
        ends = [peers.get(key) for key in _pairs(table, "guid", "port")]
        if not any(ends):
            return table
        guids = [end[0] if end else None for end in ends]
        nodes = {
            guid: by_id.get(("ib_switch", guid)) or by_id.get(("hca", guid))
            for guid in set(guids)
            if guid is not None
        }
        names = [node.name if guid and (node := nodes[guid]) else None for guid in guids]
        table = _fill(table, stream, "peer_guid", guids)
        table = _fill(table, stream, "peer_port", [end[1] if end else None for end in ends])
        table = _fill(table, stream, "peer_name", names)
        # A leaf looks up to spines and down to hosts; a spine only down, a host only up.
        own = table.column("level").to_pylist()
        far = [node.level if guid and (node := nodes[guid]) else None for guid in guids]
        rank = {None: None, "hca": 0, "leaf": 1, "spine": 2}
        looks = [
            None if (a := rank[level]) is None or (b := rank[other]) is None or a == b
            else ("up" if b > a else "down")
            for level, other in zip(own, far, strict=True)
        ]  # fmt: skip
        return _fill(table, stream, "direction", looks)


def _distinct(table: pa.Table, names: Sequence[str]) -> tuple[pa.Array, list[Key]]:
    """The distinct combinations of some columns, and which one each row has."""
    if len(names) == 1 and names[0] in table.column_names:
        column = table.column(names[0]).combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0)
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        if not column.null_count:
            return column.indices, [(value,) for value in column.dictionary.to_pylist()]
    columns = [
        table.column(name).to_pylist() if name in table.column_names else [None] * table.num_rows
        for name in names
    ]
    known: dict[Key, int] = {}
    codes = [known.setdefault(key, len(known)) for key in zip(*columns, strict=True)]
    return pa.array(codes, pa.int32()), list(known)


def _pairs(table: pa.Table, a: str, b: str) -> list[tuple[str, int]]:
    return cast(
        "list[tuple[str, int]]",
        list(zip(table.column(a).to_pylist(), table.column(b).to_pylist(), strict=True)),
    )


def _fill(
    table: pa.Table,
    stream: Stream,
    name: str,
    values: Sequence[object],
    codes: pa.Array | None = None,
    *,
    prefer_new: bool = False,
) -> pa.Table:
    """Set a column where values are known; what the page itself said stays otherwise.

    Args:
        values: one per row, or one per code.
        prefer_new: the values win over what the page said.
    """
    column = stream.column(name)
    kind = arrow_type(column)
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    array = pa.array(values, plain)
    if array.null_count == len(array):
        return table
    if codes is not None:
        array = array.take(codes)
    at = table.column_names.index(name) if name in table.column_names else None
    if at is not None:
        old = table.column(at).combine_chunks()
        if isinstance(old, pa.ChunkedArray):
            old = old.chunk(0) if old.num_chunks else pa.nulls(0, plain)
        if pa.types.is_dictionary(old.type):
            old = old.dictionary_decode()
        if old.null_count < len(old):
            old = old.cast(plain)
            first, second = (array, old) if prefer_new else (old, array)
            array = pc.coalesce(first, second)
    if pa.types.is_dictionary(kind):
        array = array.dictionary_encode()
    field = pa.field(name, array.type)
    return table.append_column(field, array) if at is None else table.set_column(at, field, array)
