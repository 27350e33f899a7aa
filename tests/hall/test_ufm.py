"""What UFM shows of the hall's fabric: names as captured, FEC by cable quality, lost bandwidth."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np

from pipeline.hall.engine import Hall
from pipeline.hall.faults import make_fault
from pipeline.hall.fleet import Fleet, build_fleet
from pipeline.hall.observe import Observation, Observer
from pipeline.hall.pages.ufm import UfmPages
from pipeline.hall.view import View
from tests.hall.helpers import START, ports_of

# 800 Gb/s in RS(544,514) code words of 5,440 bits.
_BLOCKS_PER_S = 800e9 / 5440
_CORRECTED = [f"fec_hist_{number}" for number in range(1, 5)]


def _seen(fleet: Fleet, *faults: tuple[str, str], minutes: int = 10) -> list[Observation]:
    hall = Hall(fleet, START, [make_fault(fleet, *fault, START) for fault in faults])
    observer = Observer(hall, ufm=True)
    seen = []
    for _ in range(6 * minutes):
        hall.advance(10.0)
        seen.append(observer.observe(links=False))
    return seen


def _rise(seen: list[Observation], name: str) -> np.ndarray:
    """Of a counter over the second half, per second."""
    a, b = seen[len(seen) // 2], seen[-1]
    return (b.ufm[name] - a.ufm[name]) / (b.at - a.at)


def test_a_record_has_the_names_of_a_captured_one(captures: Path) -> None:
    captured = json.loads((captures / "ib" / "ufm" / "tfs_small_telemetry.json").read_text())
    seen = _seen(build_fleet(1, 7), minutes=1)
    ours = json.loads(UfmPages(build_fleet(1, 7)).render(View.at(*seen[-2:], seen[-1].at), 0))
    assert set(ours) == set(captured)
    assert ours["type"] == captured["type"]
    for record in ours["values"]:
        assert list(record) == [
            *list(captured["values"][0])[:5], "node_description",
            *list(captured["values"][0])[5:],
        ]  # fmt: skip


def test_every_port_is_on_one_page_and_says_its_own_time() -> None:
    fleet = build_fleet(2, 7)
    before, after = _seen(fleet, minutes=1)[-2:]
    pages = UfmPages(fleet)
    view = View.at(before, after, before.at + 2.5)
    records = [
        record for shard in range(5) for record in json.loads(pages.render(view, shard))["values"]
    ]
    ids = [(record["node_guid"], record["port_num"]) for record in records]
    assert len(set(ids)) == len(ids) == after.port_seen.size
    assert {record["timestamp"] for record in records} == {round((before.at + 2.5) * 1e6)}


def test_fec_counts_every_block_once_and_more_corrections_on_a_bad_cable() -> None:
    fleet = build_fleet(4, 11)
    well = _seen(fleet)
    sick = _seen(fleet, ("bad_cable", "leaf-r1-1/75"))
    # All blocks of the line rate, whatever was corrected in them.
    total = sum(_rise(sick, name) for name in ["fec_hist_0", *_CORRECTED])
    np.testing.assert_allclose(total, _BLOCKS_PER_S, rtol=1e-6)
    for earlier, later in pairwise(sick):
        for name in ["fec_hist_0", *_CORRECTED]:
            assert (later.ufm[name] >= earlier.ufm[name]).all(), name
            assert (later.ufm[name] == np.floor(later.ufm[name])).all(), name
    # The fewer the symbols, the more the blocks.
    rates = [_rise(well, name).sum() for name in ["fec_hist_0", *_CORRECTED]]
    assert rates == sorted(rates, reverse=True)
    # Both ends of the cable correct more, the others as before.
    guid = fleet.leaf_guids[0]
    link = next(
        i for i in range(fleet.fabric_links) if fleet.up_leaf[i] == 0 and fleet.up_port[i] == 75
    )
    spine = f"{fleet.spine_guids[fleet.up_spine[link]]}/{fleet.spine_port[link]}"
    ends = ports_of(fleet, [f"{guid}/75", spine])
    more = _rise(sick, "fec_hist_1") / _rise(well, "fec_hist_1")
    assert more[ends].min() > 10
    assert np.delete(more, ends).max() < 3


def test_lost_bandwidth_is_that_of_the_wait_counters() -> None:
    fleet = build_fleet(4, 11)
    seen = _seen(fleet, ("slow_receiver", "rack-01/tray-03/slot-1"), minutes=6)
    a, b = seen[-2:]
    # Ticks of 8 bytes against 100 GB/s.
    lost = (b.port["xmit_wait_ticks"] - a.port["xmit_wait_ticks"]) * 8 / 10.0 / 100e9
    np.testing.assert_allclose(b.ufm["congested_percent"] / 100, lost, atol=1e-5)
    np.testing.assert_allclose(b.ufm["congested_gbps"] / 800, lost, atol=1e-5)
    assert lost.max() > 0.1
