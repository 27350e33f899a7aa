"""The spool: what a collector took and Kafka has not acknowledged yet, on disk.

Segment files are written one after the other. A record survives the death of the process
once ``append`` returned, and a power cut once ``sync`` returned; nothing is sent before it is
synced, so a number that reached Kafka is never given to other data. Each segment begins with
the state of the spool (numbers given, rows dropped, partition counts), so files in front of it
can be deleted at any time. One process at a time; used from several threads.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import secrets
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.bus.spool_file import (
    Kind,
    Record,
    Segment,
    acked_frame,
    create_segment,
    json_frame,
    open_segments,
    parse_index,
    parse_record,
    read_frame,
    record_frame,
    sync_folder,
)
from pipeline.errors import RackpulseError, SlowDownError

log = logging.getLogger(__name__)

DEFAULT_MAX_BYTES = 1_073_741_824
SEGMENT_BYTES = 16_000_000
# Kept free at the end of each segment for frames about the spool itself.
_SLACK = 16_384
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})

FULL = "spool_full"
DAMAGED = "spool_damaged"


@dataclass(frozen=True, slots=True)
class Item:
    """A message to be spooled; the spool gives it its number."""

    stream: str
    key: str
    version: int
    rows: int
    body: bytes


class Spool:
    """A bounded, durable queue of messages. When it is full the oldest are dropped and counted.

    Args:
        folder: made where it is missing; one spool each.
        name: collector that it belongs to.
        max_bytes: of all files together; at least four segments.

    Attributes:
        collector: the name with an id of this spool: two spools never share numbers, also when
            one of them was lost, or two collectors were given one name.
        dropped: rows that were dropped, by stream and reason; survives restarts.

    Raises:
        RackpulseError: another process has it, or it belongs to another collector.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        segment_bytes: int | None = None,
    ) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes or min(SEGMENT_BYTES, max_bytes // 8)
        if max_bytes < 4 * (self._segment_bytes + _SLACK):
            raise ValueError("a spool holds at least four segments")
        self._lock = threading.RLock()
        self._segments: list[Segment] = []
        self._sequences: dict[str, dict[str, int]] = {}
        self._pins: dict[str, list[list[int]]] = {}
        self._next_index = 0
        self._synced_index = 0
        self._read_segment = 0
        self._read_at = 0
        self._sent_below = 0
        self._pins_written = True
        self._last_mark = b""
        self.dropped: dict[str, Counter[str]] = {}
        self.collector = ""
        folder.mkdir(parents=True, exist_ok=True)
        self._lock_file = (folder / "lock").open("w")
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            self._lock_file.close()
            raise RackpulseError(
                f"The spool {folder} is in use: another collector {name} runs here. Stop it, or "
                "give this one another id"
            ) from exc
        try:
            self._recover(name)
        except BaseException:
            self._release()
            raise

    # ------------------------------------------------------------ writing

    def append(self, items: Sequence[Item]) -> list[Record]:
        """Spool messages, all of them or none.

        Returns:
            The records, with their numbers.

        Raises:
            SlowDownError: ``spool_disk``: the disk has no room or fails; nothing was taken.
            ValueError: they are larger than the whole spool.
        """
        with self._lock:
            index = self._next_index
            given: dict[tuple[str, str], int] = {}
            records, frames, offsets = [], [], []
            size = 0
            for item in items:
                name = (item.stream, item.key)
                seq = given.get(name, self._sequences.get(item.stream, {}).get(item.key, 0)) + 1
                given[name] = seq
                record = Record(
                    index, item.stream, item.key, seq, item.version, item.rows, item.body
                )
                data = record_frame(record)
                records.append(record)
                frames.append(data)
                offsets.append(size)
                size += len(data)
                index += 1
            if not records:
                return []
            if size > self._max_bytes // 2:
                raise ValueError(f"{size} bytes at once do not fit a spool of {self._max_bytes}")
            segment = self._room_for(size)
            start = self._write(segment, b"".join(frames))
            placed = []
            for record, offset in zip(records, offsets, strict=True):
                record = replace(record, segment=segment.number, at=start + offset)
                segment.add(record)
                placed.append(record)
            for (stream, key), seq in given.items():
                self._sequences.setdefault(stream, {})[key] = seq
            self._next_index = index
            return placed

    def sync(self) -> None:
        """Make everything appended so far survive a power cut.

        Raises:
            SlowDownError: ``spool_disk``: the disk fails; call it again later.
        """
        with self._lock:
            upto = self._next_index
            if upto == self._synced_index:
                return
            active = self._segments[-1]
            descriptor = os.dup(active.descriptor)
        try:
            os.fsync(descriptor)
        except OSError as exc:
            # What the failed sync left in memory cannot be trusted to reach the disk later: a
            # new segment carries the numbers that were given.
            log.error("spool %s: sync failed: %s", self._folder, exc)
            with self._lock:
                self._rotate(0)
        finally:
            os.close(descriptor)
        with self._lock:
            self._synced_index = max(self._synced_index, upto)

    def is_synced(self, record: Record) -> bool:
        """Whether the record survives a power cut, so that it may be sent."""
        return record.index < self._synced_index

    def _write(self, segment: Segment, data: bytes) -> int:
        try:
            return segment.write(data)
        except OSError as exc:
            raise self._disk_error(exc) from exc

    def _disk_error(self, exc: OSError) -> SlowDownError:
        if exc.errno not in _NO_ROOM:
            raise exc
        log.warning("spool %s: the disk takes nothing: %s", self._folder, exc.strerror)
        return SlowDownError("spool_disk")

    def _room_for(self, size: int) -> Segment:
        """The segment that takes ``size`` more bytes; drops the oldest where it must."""
        active = self._segments[-1]
        if active.size + size + _SLACK <= active.allocated:
            return active
        return self._rotate(size)

    def _rotate(self, size: int) -> Segment:
        allocate = max(self._segment_bytes, size + self._header_size()) + _SLACK
        # What is sealed gives its unused bytes back, so this is the most that it will take.
        while self.disk_bytes > self._max_bytes - allocate and self._drop_oldest():
            pass
        freed = 0
        while True:
            try:
                segment = create_segment(self._folder, self._segments[-1].number + 1, allocate)
                break
            except OSError as exc:
                # Others may fill the disk as fast: never drop all for one message.
                oldest = self._segments[0].allocated
                if freed > allocate or not self._drop_oldest():
                    raise self._disk_error(exc) from exc
                freed += oldest
        try:
            segment.write(self._header())
            os.fsync(segment.descriptor)
            sync_folder(self._folder)
            with contextlib.suppress(OSError):  # its records are then as lost as they were
                self._segments[-1].seal()
        except OSError as exc:
            segment.remove()
            raise self._disk_error(exc) from exc
        self._segments.append(segment)
        self._synced_index = self._next_index
        return segment

    def _header_size(self) -> int:
        return len(self._header()) + 64

    def _header(self) -> bytes:
        return json_frame(
            Kind.HEADER,
            {
                "collector": self.collector,
                "next_index": self._next_index,
                "acked_below": self.acked_below,
                "sequences": self._sequences,
                "dropped": self.dropped,
                "pins": self._pins,
            },
        )

    # ------------------------------------------------------------ dropping

    def _drop_oldest(self) -> bool:
        """Delete the oldest file but the active one; False when there is none."""
        if len(self._segments) < 2:
            return False
        oldest = self._segments[0]
        lost = +oldest.waiting_rows
        if lost:
            for stream, rows in lost.items():
                self._count_dropped(stream, FULL, rows)
            self._note_dropped()
            log.warning("spool %s is full: dropped the oldest %s", self._folder, dict(lost))
        self._forget(oldest)
        return True

    def _count_dropped(self, stream: str, reason: str, rows: int) -> None:
        counted = self.dropped.setdefault(stream, Counter())
        counted[reason] += rows
        if not counted[reason]:
            del counted[reason]

    def _note_dropped(self) -> None:
        """Make the counts durable before what they count is deleted."""
        active = self._segments[-1]
        with contextlib.suppress(OSError):  # the next segment's header carries them too
            active.write(json_frame(Kind.DROPPED, self.dropped))
            os.fsync(active.descriptor)

    def count_dropped(self, stream: str, reason: str, rows: int) -> None:
        """Count rows that a caller had to drop."""
        with self._lock:
            self._count_dropped(stream, reason, rows)
            self._note_dropped()

    def _forget(self, segment: Segment) -> None:
        self._segments.remove(segment)
        with contextlib.suppress(OSError):
            segment.remove()

    # ------------------------------------------------------------ reading

    def read_next(self) -> Record | None:
        """The next record that is not acknowledged, in the order of spooling.

        None at the end; records that are appended later follow.

        Raises:
            SlowDownError: ``spool_disk``.
        """
        with self._lock:
            while True:
                segment = self._segment_to_read()
                found = read_frame(segment.descriptor, self._read_at, segment.size)
                if found is None:
                    damaged = self._read_at < segment.size
                    if segment is self._segments[-1]:
                        if not damaged:
                            return None
                        self._rotate(0)
                    if damaged:
                        self._lose_rest(segment)
                    self._read_segment, self._read_at = segment.number + 1, 0
                    continue
                kind, payload, following = found
                at, self._read_at = self._read_at, following
                if kind is Kind.RECORD:
                    record = parse_record(payload, segment.number, at)
                    if not segment.is_acked(record.index):
                        return record

    def _segment_to_read(self) -> Segment:
        for segment in self._segments:
            if segment.number >= self._read_segment:
                if segment.number > self._read_segment:
                    self._read_segment, self._read_at = segment.number, 0
                return segment
        raise AssertionError("the active segment is always there")

    def _lose_rest(self, segment: Segment) -> None:
        """A frame that was good when it was written can not be read: the disk lost it.

        What is in flight from this file is counted as well, and taken off again by its
        acknowledgement.
        """
        log.error("spool file %s is damaged: its rest is dropped", segment.path)
        for stream, rows in (+segment.waiting_rows).items():
            self._count_dropped(stream, DAMAGED, rows)
        self._note_dropped()
        self._forget(segment)

    # ------------------------------------------------------------ acknowledging

    def ack(self, record: Record) -> None:
        """Kafka has the record, or it was dropped and counted by the caller."""
        with self._lock:
            segment = next((s for s in self._segments if s.number == record.segment), None)
            if segment is not None:
                segment.ack(record.index, record.stream, record.rows, len(record.body))
                return
            # Its file was dropped while it was in flight, and it arrived all the same.
            counted = self.dropped.get(record.stream, Counter())
            for reason in (FULL, DAMAGED):
                if counted[reason] >= record.rows:
                    self._count_dropped(record.stream, reason, -record.rows)
                    break

    def holds(self, record: Record) -> bool:
        """Whether the record is still spooled: false once its file was dropped."""
        with self._lock:
            return any(segment.number == record.segment for segment in self._segments)

    @property
    def acked_below(self) -> int:
        """Every record below this index is acknowledged or dropped."""
        for segment in self._segments:
            if not segment.done:
                return segment.first_index + segment.acked.index(0)
        return self._next_index

    def trim(self) -> None:
        """Delete the files that are acknowledged as a whole, and note how far it is."""
        with self._lock:
            active = self._segments[-1]
            mark = acked_frame(self.acked_below)
            if mark != self._last_mark and active.size + len(mark) + _SLACK <= active.allocated:
                with contextlib.suppress(OSError):
                    active.write(mark)
                    self._last_mark = mark
            for segment in self._segments[:-1]:
                if segment.done:
                    self._forget(segment)

    # ------------------------------------------------------------ sending

    def prepare(self, record: Record, current: int) -> int:
        """Make ready to hand a record to Kafka: sync it, and say which partition it belongs to.

        A record that may have been sent before goes to the partition of its first sending,
        also when its topic has more of them now: otherwise the writer of the new partition and
        that of the old one could both store it.

        Args:
            current: partitions that the topic has now.

        Returns:
            The number of partitions that decides.

        Raises:
            SlowDownError: ``spool_disk``: call it again later.
        """
        if record.index >= self._synced_index:
            self.sync()
        with self._lock:
            count = self._pin(record, current)
            if not self._pins_written:
                self._write(self._segments[-1], json_frame(Kind.PINNED, self._pins))
                try:
                    os.fsync(self._segments[-1].descriptor)
                except OSError as exc:
                    raise self._disk_error(exc) from exc
                self._pins_written = True
            self._sent_below = max(self._sent_below, record.index + 1)
            return count

    def _pin(self, record: Record, current: int) -> int:
        pins = self._pins.setdefault(record.stream, [])
        if pins and pins[-1][1] > current:
            pins.clear()  # the topic was created again, with fewer
        pinned = [count for first, count in pins if first <= record.index]
        if pinned and (pinned[-1] == current or record.index < self._sent_below):
            return pinned[-1]
        if pins and record.index < pins[0][0]:
            return pins[0][1]
        pins.append([record.index, current])
        del pins[:-4]
        self._pins_written = False
        return current

    # ------------------------------------------------------------ state

    @property
    def waiting_bytes(self) -> int:
        """Bytes of bodies that are not acknowledged."""
        with self._lock:
            return sum(segment.waiting_bytes for segment in self._segments)

    @property
    def waiting_rows(self) -> Counter[str]:
        """Rows that are not acknowledged, by stream."""
        with self._lock:
            total: Counter[str] = Counter()
            for segment in self._segments:
                total.update(segment.waiting_rows)
            return +total

    def dropped_rows(self) -> dict[str, dict[str, int]]:
        """A copy of ``dropped``."""
        with self._lock:
            return {stream: dict(reasons) for stream, reasons in self.dropped.items()}

    @property
    def disk_bytes(self) -> int:
        """Bytes that the files take."""
        with self._lock:
            return sum(segment.allocated for segment in self._segments)

    @property
    def max_bytes(self) -> int:
        return self._max_bytes

    def close(self) -> None:
        """Sync and let go of the files; what is in them waits for the next start."""
        with self._lock:
            if not self._segments:
                return
            self.trim()
            with contextlib.suppress(OSError):
                self._segments[-1].seal()
            self._release()

    def _release(self) -> None:
        for segment in self._segments:
            segment.close()
        self._segments.clear()
        self._lock_file.close()

    # ------------------------------------------------------------ recovery

    def _recover(self, name: str) -> None:
        acked_below = damaged = highest = 0
        found: list[tuple[Segment, int, str, int, int]] = []
        for segment in open_segments(self._folder):
            highest = segment.number
            usable = False
            for kind, payload, at in segment.frames():
                usable = True
                match kind:
                    case Kind.HEADER:
                        acked_below = max(acked_below, self._take_header(json.loads(payload)))
                    case Kind.RECORD:
                        record = parse_record(payload, segment.number, at)
                        self._take_record(segment, record)
                        size = len(record.body)
                        found.append((segment, record.index, record.stream, record.rows, size))
                    case Kind.ACKED:
                        acked_below = max(acked_below, parse_index(payload))
                    case Kind.DROPPED:
                        self._take_dropped(json.loads(payload))
                    case Kind.PINNED:
                        self._pins = json.loads(payload)
            damaged += segment.damaged_bytes()
            if usable:
                self._segments.append(segment)
            else:
                segment.remove()
        if damaged:
            log.warning("spool %s: %d bytes of torn frames were left out", self._folder, damaged)
        for segment, index, stream, rows, size in found:
            if index < acked_below:
                segment.ack(index, stream, rows, size)
        self._check_name(name)
        self._sent_below = self._next_index  # any of them may have been sent
        self._begin(highest + 1)

    def _take_header(self, header: dict[str, Any]) -> int:
        if self.collector and header["collector"] != self.collector:
            raise RackpulseError(
                f"The spool {self._folder} holds files of two collectors, {self.collector} and "
                f"{header['collector']}: move the files of one away"
            )
        self.collector = header["collector"]
        self._next_index = max(self._next_index, header["next_index"])
        for stream, keys in header["sequences"].items():
            mine = self._sequences.setdefault(stream, {})
            for key, seq in keys.items():
                mine[key] = max(seq, mine.get(key, 0))
        self._take_dropped(header["dropped"])
        self._pins = header["pins"]
        return int(header["acked_below"])

    def _take_record(self, segment: Segment, record: Record) -> None:
        segment.add(record)
        keys = self._sequences.setdefault(record.stream, {})
        keys[record.key] = max(record.seq, keys.get(record.key, 0))
        self._next_index = max(self._next_index, record.index + 1)

    def _take_dropped(self, counts: dict[str, dict[str, int]]) -> None:
        self.dropped = {stream: Counter(reasons) for stream, reasons in counts.items()}

    def _check_name(self, name: str) -> None:
        if not self.collector:
            self.collector = f"{name}~{secrets.token_hex(4)}"
        elif self.collector.rpartition("~")[0] != name:
            raise RackpulseError(
                f"The spool {self._folder} belongs to collector "
                f"{self.collector.rpartition('~')[0]}, not {name}: give each its own folder"
            )

    def _begin(self, number: int) -> None:
        """Go on in a new file, or in the last one where the disk has no room."""
        segment = None
        try:
            segment = create_segment(self._folder, number, self._segment_bytes + _SLACK)
            segment.write(self._header())
            os.fsync(segment.descriptor)
            sync_folder(self._folder)
        except OSError as exc:
            if segment is not None:
                segment.remove()
            if not self._segments:
                raise RackpulseError(
                    f"The spool {self._folder} cannot be made: {exc.strerror}. Free some disk, or "
                    "set RACKPULSE_STATE_DIR to a folder on another one"
                ) from exc
            log.warning("spool %s: the disk has no room: %s", self._folder, exc.strerror)
            segment = self._segments.pop()
        # The process that wrote them may have died before it synced them.
        for earlier in self._segments:
            with contextlib.suppress(OSError):
                earlier.seal()
        self._segments.append(segment)
        self.trim()
