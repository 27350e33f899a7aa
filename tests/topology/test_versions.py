"""Versions of the topology in a real store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.topology import Cable, Entity, Rack, Topology, versions
from tests.support.store import RunningStore

AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunningStore]:
    with RunningStore(tmp_path) as running:
        running.migrate()
        yield running


def topology(tray: int) -> Topology:
    return Topology(
        cluster="c",
        racks=(Rack(id="r1", cdu="cdu-1"),),
        entities=(
            Entity(kind="gpu", id="GPU-1", host="h", rack="r1", tray=tray, slot=0),
            Entity(kind="ib_switch", id="0xa", name="leaf-1", level="leaf"),
        ),
        cables=(Cable(kind="leaf_spine", a="0xa", a_port=1, b="0xb", b_port=2, rate_gbps=800),),
    )


def test_versions_are_kept_and_the_newest_is_shown(store: RunningStore) -> None:
    client = store.client()
    assert versions.load(client, "c") is None
    assert versions.store(client, topology(1), AT, ["a.csv"], ["odd"]) == (1, True)
    # The same content is not a new version.
    assert versions.store(client, topology(1), AT) == (1, False)
    assert versions.store(client, topology(2), AT) == (2, True)
    shown = client.query("SELECT kind, id, rack, tray, cdu FROM telemetry.topology ORDER BY kind")
    assert shown.result_rows == [
        ("gpu", "GPU-1", "r1", 2, "cdu-1"), ("ib_switch", "0xa", None, None, None),
    ]  # fmt: skip
    links = client.query("SELECT a, a_port, b, b_port, rate_gbps FROM telemetry.topology_link")
    assert links.result_rows == [("0xa", 1, "0xb", 2, 800.0)]
    loaded = versions.load(client, "c")
    assert loaded is not None
    assert loaded.place("gpu", "GPU-1") == topology(2).place("gpu", "GPU-1")
    assert loaded.cables == topology(2).cables
    kept = client.query("SELECT count() FROM telemetry.topology_entity WHERE version = 1")
    assert kept.result_rows == [(2,)]


def test_an_import_that_broke_off_is_not_seen(store: RunningStore) -> None:
    client = store.client()
    versions.store(client, topology(1), AT)
    client.insert(
        "topology_entity", [["c", 2, "gpu", "GPU-half"]], ["cluster", "version", "kind", "id"]
    )
    assert client.query("SELECT count() FROM telemetry.topology").result_rows == [(2,)]
    assert versions.store(client, topology(3), AT) == (3, True)
    ids = client.query("SELECT id FROM telemetry.topology WHERE kind = 'gpu'").result_rows
    assert ids == [("GPU-1",)]
