"""What is made of pages: a misfit costs its page, and places come for many at once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from pipeline.collectors import registry
from pipeline.collectors.digest import Digester
from pipeline.collectors.fetch import Fetched
from pipeline.collectors.health import TargetHealth
from pipeline.collectors.page import Page, Reading
from pipeline.collectors.placement import Placer
from pipeline.collectors.rows import table_of
from pipeline.collectors.targets import Target
from pipeline.streams import load_contracts
from pipeline.streams.arrow import wire_schema
from pipeline.topology import Entity, Topology
from tests.support.exporters import dcgm_page

CONTRACTS = load_contracts()
AT = datetime(2026, 1, 1, tzinfo=UTC)
TOPOLOGY = Topology(
    cluster="test", entities=(Entity(kind="host", id="h", host="h", rack="rack-03", tray=4),)
)


def digester() -> Digester:
    return Digester(CONTRACTS, Placer(CONTRACTS, TOPOLOGY))


def gpu(uuid: str, **more: Any) -> pa.Table:
    row = {
        "cluster": "test", "source": "dcgm", "sampled_at": AT, "target": "t", "gpu_uuid": uuid,
        "gpu_instance_id": "", **more,
    }  # fmt: skip
    return table_of(CONTRACTS["gpu"], [row])


def test_rows_that_do_not_fit_cost_their_page_alone() -> None:
    unknown = gpu("GPU-2").append_column("no_such_column", pa.array([1]))
    no_identity = gpu("GPU-3").drop_columns(["cluster"])
    null_identity = gpu("GPU-4").set_column(4, "gpu_uuid", pa.array([None], pa.string()))
    other_type = gpu("GPU-5").append_column("power_w", pa.array(["text"]))
    good = [gpu("GPU-1", power_w=5.0), gpu("GPU-6", host="h")]
    parts = [good[0], unknown, no_identity, null_identity, other_type, good[1]]
    tables, refused = digester().finish({"gpu": parts}, [])
    assert tables["gpu"].column("gpu_uuid").to_pylist() == ["GPU-1", "GPU-6"]
    assert tables["gpu"].column("rack").to_pylist() == [None, "rack-03"]
    assert tables["gpu"].schema.names == wire_schema(CONTRACTS["gpu"]).names
    assert refused == {"gpu": 4}


def test_a_reader_that_breaks_costs_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        KIND = "dcgm"

        def read(self, page: Page, contracts: Any) -> Reading:
            raise ZeroDivisionError

    target = Target(name="dcgm/h", kind="dcgm", url="http://h/", host="h")
    health = TargetHealth(target)
    made = digester()

    def digest() -> Any:
        page = Fetched(dcgm_page("h", 1))
        return made.digest(target, health, page, "ok", AT, "test", 0.0)

    assert digest().tables["gpu"][0].num_rows == 4
    monkeypatch.setattr("pipeline.collectors.digest.reader", lambda kind: Broken())
    broken = digest()
    assert broken.tables == {}
    assert (health.state, health.up) == ("reader_failed", False)
    assert broken.about["state"] == "reader_failed"
    monkeypatch.undo()
    assert registry.reader("dcgm").KIND == "dcgm"
    assert digest().tables["gpu"][0].num_rows == 4


def test_xid_line_names_the_gpu_that_its_exporter_named() -> None:
    made = digester()
    page = (
        b'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-abc",pci_bus_id="00000008:01:00.0",'
        b'Hostname="h"} 50\n'
    )
    exporter = Target(name="dcgm/h", kind="dcgm", url="http://h/", host="h")
    made.digest(exporter, TargetHealth(exporter), Fetched(page), "ok", AT, "test", 0.0)
    log = Target(name="kmsg/h", kind="kmsg", url="http://h/", host="h")
    line = b"2026-01-01T00:00:00+00:00 h kernel: NVRM: Xid (PCI:0008:01:00): 79, gone\n"
    found = made.digest(log, TargetHealth(log), Fetched(line), "ok", AT, "test", 0.0)
    tables, _ = made.finish(found.tables, [found.about])
    (event,) = tables["event"].to_pylist()
    assert (event["entity_kind"], event["entity_id"]) == ("gpu", "GPU-abc")
    assert (event["code"], event["rack"], event["tray"]) == ("79", "rack-03", 4)
    (about,) = tables["component"].to_pylist()
    assert (about["entity_type"], about["state"], about["rack"]) == ("target", "ok", "rack-03")
    # The same line at the next read is not new.
    again = made.digest(log, TargetHealth(log), Fetched(line), "ok", AT, "test", 5.0)
    assert again.tables == {}


@pytest.mark.parametrize(
    ("kind", "whole", "cut"),
    [
        ("perfquery", b"# Port counters: Lid 5 port 1\nPortXmitPkts:....1\n", b"PortXmitWait:..1"),
        ("ibstat", b"CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n", b"\t\tRate: 2"),
        ("ibswinfo", b"temperature (C) | 45\n", b"fan#1 (rpm) | 84"),
    ],
)
def test_a_text_that_ends_within_a_line_was_cut(kind: str, whole: bytes, cut: bytes) -> None:
    target = Target(name=f"{kind}/h", kind=kind, url="http://h/", host="h")
    health = TargetHealth(target)
    made = digester()
    states = []
    # No text is no half of one: that is how a node looks that does not answer perfquery.
    for body in (whole, whole + cut, b"", whole):
        made.digest(target, health, Fetched(body), "ok", AT, "test", 0.0)
        states.append(health.state)
    assert states == ["ok", "truncated", "ok", "ok"]
