"""Outlet (a) read by the collectors' readers gives the rows of outlet (c), column by column."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
import pytest

from pipeline.bus.codec import Header, concat, decode, split, write_header
from pipeline.collectors.page import Page, Reading
from pipeline.collectors.placement import Placer
from pipeline.collectors.redfish.tree import dump, kind_of
from pipeline.collectors.redfish.walk import CONTEXT, LIVE, next_paths
from pipeline.collectors.registry import reader
from pipeline.hall import names
from pipeline.hall.engine import Hall
from pipeline.hall.events import EventMaker
from pipeline.hall.faults import make_benign, make_fault
from pipeline.hall.fleet import build_fleet
from pipeline.hall.kmsg import page as kmsg_page
from pipeline.hall.layout import topology_of
from pipeline.hall.messages import MessageMaker
from pipeline.hall.observe import Observer
from pipeline.hall.pages.dcgm import DcgmPages
from pipeline.hall.pages.infiniband import InfinibandPages
from pipeline.hall.pages.nmxt import NmxtPages
from pipeline.hall.pages.redfish import RedfishTrees
from pipeline.hall.pages.text import go_whole
from pipeline.hall.pages.ufm import UfmPages
from pipeline.hall.rows import RowMaker, at_time
from pipeline.hall.view import View
from pipeline.streams import Contracts, Stream
from tests.hall.helpers import START
from tests.support.tables import comparable

_FAULTS = {
    "healthy": [],
    "faulty": [
        ("capped_clocks", "rack-01/tray-01/slot-0"),
        ("degrading_cold_plate", "rack-01/tray-02/slot-1"),
        ("nvlink_flapping", "rack-01/tray-03/slot-2"),
        ("gpu_lost", "rack-02/tray-01/slot-3"),
        ("hbm_error_storm", "rack-02/tray-02/slot-3"),
        ("pcie_downtrain", "rack-02/tray-03/slot-0"),
        ("small_leak", "rack-01"),
        ("tired_pump", "cdu-2"),
        ("bad_cable", "leaf-r1-1/73"),
        ("downed_uplink", "leaf-r2-1/75"),
        ("slow_receiver", "rack-01/tray-05/slot-1"),
    ],
}


def _pages(hall: Hall, view: View, fabric: str) -> Iterator[tuple[str, str, str | None, bytes]]:
    """Kind, target, host and body of every page of a hall."""
    f = hall.fleet
    dcgm, nmxt, ports, ufm = DcgmPages(f), NmxtPages(f), InfinibandPages(f), UfmPages(f)
    for tray, host in enumerate(f.hosts):
        if view.after.host_seen[tray]:
            yield "dcgm", names.dcgm_target(host), host, dcgm.render(view, tray)
            log = kmsg_page(f, hall.faults, tray, view.after.at)
            yield "kmsg", names.kmsg_target(host), host, log
    for tray, host in enumerate(f.switch_hosts):
        yield "nmxt", names.nmxt_target(host), host, nmxt.render(view, tray)
    if fabric == "ufm":
        for shard, target in enumerate(names.ufm_targets(f)):
            yield "ufm", target, None, ufm.render(view, shard)
    else:
        for shard, target in enumerate(names.ib_targets(f)):
            yield "ib_exporter", target, None, ports.render(view, shard)
    for manager in [*f.rack_ids, *f.cdu_ids]:
        yield "redfish", names.redfish_target(manager), None, _walk(hall, view, manager)


def _walk(hall: Hall, view: View, manager: str) -> bytes:
    """What the collectors' walk of a manager reads."""
    trees = RedfishTrees(hall.fleet)
    wave, seen = ["/redfish/v1"], {"/redfish/v1"}
    fresh, context = [], []
    while wave:
        path = wave.pop()
        resource = trees.get(view, manager, path)
        assert resource is not None, f"{path} leads nowhere"
        assert json.loads(json.dumps(resource)) == resource
        kind = kind_of(resource)
        if kind in LIVE:
            fresh.append(resource)
        elif kind in CONTEXT:
            context.append(resource)
        for following in next_paths(resource):
            if following not in seen:
                seen.add(following)
                wave.append(following)
    return dump(fresh, context=context, manager_id=manager)


def _assert_same(stream: Stream, got: pa.Table, wanted: pa.Table) -> None:
    a, b = comparable(stream, got), comparable(stream, wanted)
    assert a.num_rows == b.num_rows
    wrong = [name for name in b.column_names if not a[name].equals(b[name])]
    assert not wrong, {name: (a[name].to_pylist()[:3], b[name].to_pylist()[:3]) for name in wrong}


@pytest.mark.parametrize("fabric", names.FABRICS)
@pytest.mark.parametrize("which", list(_FAULTS))
def test_rows_of_the_pages_are_the_rows_of_the_record(
    which: str, fabric: str, contracts: Contracts
) -> None:
    fleet = build_fleet(2, 7)
    faults = [make_fault(fleet, cause, entity, START + 10) for cause, entity in _FAULTS[which]]
    if faults:
        faults.append(
            make_benign(fleet, "blank_readings", "rack-01-tray-09", START, START + 900, level=0.5)
        )
        faults.append(make_benign(fleet, "driver_upgrade", "rack-02-tray-09", START, START + 900))
        faults.append(make_benign(fleet, "exporter_restart", "rack-02-tray-10", START, START + 290))
    hall = Hall(fleet, START, faults)
    observer, rows = Observer(hall, ufm=fabric == "ufm"), RowMaker(fleet, contracts, fabric)
    after = observer.observe()
    for _ in range(30):
        hall.advance(10.0)
        before, after = after, observer.observe()
    view = View.at(before, after, after.at)
    readings = []
    for kind, target, host, body in _pages(hall, view, fabric):
        page = Page(body, target, at_time(after.at), fleet.cluster, host=host)
        reading = reader(kind).read(page, contracts)
        assert not reading.rejected, (target, reading.rejected)
        readings.append(reading)
    got = Reading.merged(readings).tables
    wanted = rows.tables([after])
    events = EventMaker(fleet, contracts).between(faults, after.at - 6 * 3600, after.at)
    if events is not None:
        wanted["event"] = events
    assert set(got) == set(wanted)
    assert ("event" in wanted) == bool(faults)
    placer = Placer(contracts, topology_of(fleet))
    for name, table in wanted.items():
        _assert_same(contracts[name], placer.place(got[name], name), table)


def test_messages_hold_the_rows_of_the_general_splitter(contracts: Contracts) -> None:
    fleet = build_fleet(5, 3)
    faults = [make_fault(fleet, "gpu_lost", "rack-02/tray-01/slot-3", START + 40)]
    hall = Hall(fleet, START, faults)
    observer, rows = Observer(hall), RowMaker(fleet, contracts)
    maker = MessageMaker(rows)
    for _ in range(2):  # the second time by the plan that the first time made
        seen = []
        for _ in range(6):
            hall.advance(10.0)
            seen.append(observer.observe())
        bodies = list(maker.bodies(rows.parts(seen)))
        wanted = rows.tables(seen)
        for name, table in wanted.items():
            stream = contracts[name]
            decoded = [
                (key, decode(contracts, write_header(Header(name, 1, "t.1", 1, 1)), body))
                for own, key, _, body in bodies
                if own == name
            ]
            _assert_same(stream, concat([message.batch for _, message in decoded]), table)
            general = {key for key, _ in split(stream, table)}
            assert {key for key, _ in decoded} == general


def test_counters_lie_between_two_steps_and_reach_the_later_one() -> None:
    fleet = build_fleet(1, 7)
    hall = Hall(fleet, START)
    observer = Observer(hall)
    hall.advance(10.0)
    before = observer.observe()
    hall.advance(10.0)
    after = observer.observe()
    everything = slice(None)
    energies = [
        View.at(before, after, after.at - 10.0 + second).counter("gpu", "energy_mj", everything)
        for second in (0, 2.5, 5, 10, 12)
    ]
    for earlier, later in pairwise(energies):
        assert (later >= earlier).all()
    assert (energies[0] == before.gpu["energy_mj"]).all()
    assert (energies[3] == after.gpu["energy_mj"]).all()
    half = (before.gpu["energy_mj"] + after.gpu["energy_mj"]) / 2
    assert abs(energies[2] - half).max() <= 1


@pytest.mark.parametrize(
    ("number", "text"),
    [
        # As Go prints them on a real infiniband_exporter page.
        (715166628708940.0, "7.1516662870894e+14"),
        (6694940.0, "6.69494e+06"),
        (5584846741.0, "5.584846741e+09"),
        (12.5e9, "1.25e+10"),
        (6125.0, "6125"),
        (0.0, "0"),
        (1e11, "1e+11"),
        (999999.0, "999999"),
        (1000000.0, "1e+06"),
    ],
)
def test_numbers_are_printed_as_go_prints_them(number: float, text: str) -> None:
    assert go_whole(number) == text
    assert float(text) == number
