"""The spool, against a model of it: killed, cut off from power and full at any time."""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pipeline.bus import spool as spool_module
from pipeline.bus.spool import Item, Spool
from pipeline.bus.spool_file import Record, Segment
from pipeline.errors import RackpulseError, SlowDownError

SEGMENT = 6_000
SMALL = 4 * (SEGMENT + 16_384) + 2_000


def item(body: bytes = b"x" * 100, stream: str = "gpu", key: str = "r1", rows: int = 1) -> Item:
    return Item(stream, key, 1, rows, body)


def open_spool(folder: Path, name: str = "col", **options: Any) -> Spool:
    return Spool(folder, name, **{"max_bytes": SMALL, "segment_bytes": SEGMENT, **options})


def die(spool: Spool) -> None:
    """What the kernel does for a process that was killed: files and lock are let go."""
    spool._release()


def drain(spool: Spool) -> list[Record]:
    return list(iter(spool.read_next, None))


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    made = open_spool(tmp_path / "spool")
    yield made
    made.close()


class SpoolMachine(RuleBasedStateMachine):
    """Any order of appending, sending, acknowledging, trimming and dying."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = TemporaryDirectory(prefix="spool-")
        self.folder = Path(self.temporary.name) / "spool"
        self.random = random.Random(7)  # noqa: S311  # contents only
        self.spool = open_spool(self.folder)
        self.collector = self.spool.collector
        self.spooled: dict[int, Record] = {}  # every record that append answered, by index
        self.sent: dict[tuple[str, str, int], Record] = {}  # handed to Kafka, by number
        self.flying: list[Record] = []
        self.acked: set[int] = set()
        self.last_read = -1

    def teardown(self) -> None:
        die(self.spool)
        self.temporary.cleanup()

    @rule(
        batch=st.lists(
            st.tuples(st.sampled_from("ab"), st.sampled_from(["r1", "r2"]), st.integers(0, 6_000)),
            min_size=1, max_size=6,
        )
    )  # fmt: skip
    def append(self, batch: list[tuple[str, str, int]]) -> None:
        items = [item(self.random.randbytes(size), stream, key, rows=size % 7 + 1)
                 for stream, key, size in batch]  # fmt: skip
        for record in self.spool.append(items):
            # A number that Kafka has seen is never given to other data.
            assert (record.stream, record.key, record.seq) not in self.sent
            self.spooled[record.index] = record

    @rule(count=st.integers(1, 5))
    def send(self, count: int) -> None:
        for _ in range(count):
            record = self.spool.read_next()
            if record is None:
                return
            assert record.index > self.last_read
            self.last_read = record.index
            assert record == self.spooled[record.index]
            self.spool.prepare(record, current=4)
            number = (record.stream, record.key, record.seq)
            assert self.sent.setdefault(number, record).body == record.body
            self.flying.append(record)

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        record = self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))
        self.spool.ack(record)
        self.acked.add(record.index)

    @rule()
    def send_and_acknowledge_all(self) -> None:
        self.send(1_000)
        for record in self.flying:
            self.spool.ack(record)
            self.acked.add(record.index)
        self.flying.clear()
        self.spool.trim()

    @rule()
    def trim(self) -> None:
        self.spool.trim()

    @rule()
    def close_and_open(self) -> None:
        self.spool.close()
        self.reopen()

    @rule(torn=st.integers(0, 60))
    def kill(self, torn: int) -> None:
        """A kill -9, in the middle of writing a frame of which ``torn`` bytes were written."""
        active = self.spool._segments[-1]
        os.pwrite(active.descriptor, self.random.randbytes(torn), active.size)
        die(self.spool)
        self.reopen()

    @rule(data=st.data())
    def power_cut(self, data: st.DataObject) -> None:
        """What was not synced may be gone, from any byte on."""
        synced = self.spool._synced_index
        active = self.spool._segments[-1]
        unsynced = [r for r in self.spooled.values()
                    if r.index >= synced and r.segment == active.number]  # fmt: skip
        if unsynced:
            first = min(record.at for record in unsynced)
            os.truncate(active.path, data.draw(st.integers(first, active.size)))
        die(self.spool)
        self.reopen(lost_from=synced)

    def reopen(self, lost_from: int | None = None) -> None:
        self.flying.clear()
        self.last_read = -1
        self.spool = open_spool(self.folder)
        assert self.spool.collector == self.collector
        if lost_from is not None:
            kept = self.spool._next_index
            for index in [i for i in self.spooled if i >= kept]:
                assert index >= lost_from
                del self.spooled[index]
                self.acked.discard(index)

    def waiting(self) -> set[int]:
        return {
            segment.first_index + place
            for segment in self.spool._segments
            for place, acked in enumerate(segment.acked)
            if not acked
        }

    @invariant()
    def nothing_is_lost_without_being_counted(self) -> None:
        waiting = self.waiting()
        missing: Counter[str] = Counter()
        for index, record in self.spooled.items():
            if index not in waiting and index not in self.acked:
                missing[record.stream] += record.rows
        for stream, rows in missing.items():
            assert rows <= self.spool.dropped[stream]["spool_full"]

    @invariant()
    def it_is_bounded(self) -> None:
        files = sum(path.stat().st_size for path in self.folder.glob("*.segment"))
        assert files == self.spool.disk_bytes
        assert files <= SMALL

    @invariant()
    def its_counts_are_those_of_its_records(self) -> None:
        waiting = [self.spooled[index] for index in self.waiting()]
        rows: Counter[str] = Counter()
        for record in waiting:
            rows[record.stream] += record.rows
        assert self.spool.waiting_rows == rows
        assert self.spool.waiting_bytes == sum(len(record.body) for record in waiting)


SpoolMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, print_blob=True
)
TestSpoolMachine = SpoolMachine.TestCase


def test_numbers_rise_by_one_per_stream_and_key_over_restarts(tmp_path: Path) -> None:
    names = [("gpu", "r1"), ("gpu", "r2"), ("nvlink", "r1")]
    found: dict[tuple[str, str], list[int]] = {name: [] for name in names}
    for _ in range(3):
        spool = open_spool(tmp_path)
        for _ in range(2):
            for record in spool.append([item(stream=s, key=k) for s, k in names]):
                found[record.stream, record.key].append(record.seq)
        die(spool)
    assert all(numbers == [1, 2, 3, 4, 5, 6] for numbers in found.values())


def test_records_come_back_in_order_after_a_kill(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    bodies = [os.urandom(700) for _ in range(20)]
    for body in bodies:
        spool.append([item(body)])
    die(spool)
    spool = open_spool(tmp_path)
    assert [record.body for record in drain(spool)] == bodies
    spool.close()


def test_what_was_acknowledged_before_a_kill_is_not_sent_again(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    spool.append([item(bytes([n])) for n in range(10)])
    for record in drain(spool)[:6]:
        spool.ack(record)
    spool.trim()
    die(spool)
    spool = open_spool(tmp_path)
    assert [record.body for record in drain(spool)] == [bytes([n]) for n in range(6, 10)]
    spool.close()


def test_the_oldest_are_dropped_and_counted_for_good(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    for number in range(100):
        spool.append([item(number.to_bytes(2) + b"x" * 1_000, rows=3)])
        assert sum(path.stat().st_size for path in tmp_path.glob("*.segment")) <= SMALL
    left = drain(spool)
    assert left[-1].body[:2] == (99).to_bytes(2)
    assert [r.seq for r in left] == list(range(left[0].seq, 101))
    dropped = {"gpu": {"spool_full": 3 * (100 - len(left))}}
    assert spool.dropped == dropped
    die(spool)
    spool = open_spool(tmp_path)
    assert spool.dropped == dropped
    assert len(drain(spool)) == len(left)
    spool.close()


class KilledError(BaseException):
    """The process ends here."""


def test_what_is_dropped_is_counted_before_it_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = open_spool(tmp_path)
    oldest = spool._segments[0]
    monkeypatch.setattr(Segment, "remove", _raises(KilledError))
    rows = 0

    def fill() -> None:
        nonlocal rows
        for _ in range(200):
            spool.append([item(b"x" * 1_000, rows=3)])
            rows += 3

    with pytest.raises(KilledError):
        fill()
    monkeypatch.undo()
    lost = oldest.waiting_rows["gpu"]
    die(spool)
    oldest.path.unlink(missing_ok=True)  # the kernel may have done it already
    spool = open_spool(tmp_path)
    assert spool.dropped == {"gpu": {"spool_full": lost}}
    assert spool.waiting_rows["gpu"] == rows - lost
    spool.close()


def _raises(error: type[BaseException]) -> Any:
    def function(*_: Any) -> None:
        raise error

    return function


def test_numbers_go_on_when_every_file_that_gave_them_is_gone(tmp_path: Path) -> None:
    for seq in range(1, 6):
        spool = open_spool(tmp_path)
        (record,) = spool.append([item()])
        assert record.seq == seq
        spool.ack(record)
        spool.trim()
        die(spool)
        open_spool(tmp_path).close()


def test_a_dropped_record_that_arrived_all_the_same_is_not_counted(spool: Spool) -> None:
    spool.append([item(b"x" * 1_000, rows=3)])
    flying = drain(spool)
    for _ in range(100):
        spool.append([item(b"x" * 1_000, rows=3)])
    counted = spool.dropped["gpu"]["spool_full"]
    assert not spool.holds(flying[0])
    spool.ack(flying[0])
    assert spool.dropped["gpu"]["spool_full"] == counted - 3


def test_messages_are_taken_all_or_none(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    spool.append([item(b"first")])

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(spool_module, "create_segment", full)
        patch.setattr(os, "pwrite", full)
        with pytest.raises(SlowDownError, match="spool_disk"):
            spool.append([item(b"a"), item(b"b")])
        with pytest.raises(SlowDownError, match="spool_disk"):
            spool.append([item(b"y" * 9_000)])
    assert [record.seq for record in spool.append([item(b"second")])] == [2]
    assert [record.body for record in drain(spool)] == [b"first", b"second"]


def test_a_disk_that_is_full_gives_the_place_of_the_oldest(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        spool.append([item(bytes([number]) + b"x" * 2_000)])
    files = len(spool._segments)
    make = spool_module.create_segment
    calls = []

    def full_once(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return make(*arguments)

    monkeypatch.setattr(spool_module, "create_segment", full_once)
    spool.append([item(b"z" * 6_000)])
    assert len(calls) == 2
    assert len(spool._segments) == files
    assert spool.dropped["gpu"]["spool_full"] > 0
    assert drain(spool)[-1].body == b"z" * 6_000


def test_a_sync_that_fails_goes_on_in_a_new_file(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (record,) = spool.append([item()])
    sync, failed = os.fsync, []

    def fails_once(descriptor: int) -> None:
        if not failed:
            failed.append(descriptor)
            raise OSError(errno.EIO, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fails_once)
    spool.prepare(record, current=4)
    assert len(spool._segments) == 2
    assert [r.seq for r in spool.append([item()])] == [2]


def test_a_disk_that_loses_a_file_costs_that_file(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    for number in range(12):
        spool.append([item(bytes([number]) + b"x" * 2_000, rows=2)])
    second = spool._segments[1]
    lost = second.records
    middle = second.size // 2
    os.pwrite(second.descriptor, b"\xff" * 200, middle)
    left = drain(spool)
    # Records of that file in front of the damage are read and counted: they may not arrive.
    assert spool.dropped["gpu"]["spool_damaged"] == 2 * lost
    assert 12 - lost <= len(left) < 12
    spool.close()


def test_two_processes_cannot_share_a_spool(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    with pytest.raises(RackpulseError, match="is in use"):
        open_spool(tmp_path)
    spool.close()
    with pytest.raises(RackpulseError, match="belongs to collector col, not other"):
        open_spool(tmp_path, "other")
    open_spool(tmp_path).close()


def test_two_spools_never_share_numbers(tmp_path: Path) -> None:
    first, second = open_spool(tmp_path / "a"), open_spool(tmp_path / "b")
    assert first.collector != second.collector
    assert first.collector.startswith("col~")
    first.close()
    second.close()


def test_a_repeat_goes_to_the_partition_of_its_first_sending(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    spool.append([item() for _ in range(3)])
    records = drain(spool)
    assert spool.prepare(records[0], current=4) == 4
    assert spool.prepare(records[1], current=6) == 6  # partitions were added in between
    assert spool.prepare(records[0], current=6) == 4
    die(spool)
    spool = open_spool(tmp_path)
    records = drain(spool)
    # Nobody knows how far the killed process came: all that it had are repeats.
    assert [spool.prepare(record, current=8) for record in records] == [4, 6, 6]
    (new,) = spool.append([item()])
    assert spool.prepare(new, current=8) == 8
    # A topic that was created again with fewer has none of them.
    assert [spool.prepare(record, current=2) for record in records] == [2, 2, 2]
    spool.close()


def test_it_is_empty_when_all_was_acknowledged(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    for _ in range(30):
        spool.append([item(b"x" * 2_000)])
        for record in drain(spool):
            spool.ack(record)
        spool.trim()
    assert len(spool._segments) == 1
    assert (spool.waiting_bytes, spool.dropped) == (0, {})
    spool.close()
    assert sum(path.stat().st_size for path in tmp_path.glob("*.segment")) < SEGMENT + 16_384
