"""Segment files of the spool: frames with a length and a checksum.

A frame is ``<length u32> <crc32 u32> <kind u8> <payload>``; the length counts the payload, the
checksum covers kind and payload. Files are allocated when they are made, so that a full disk
is met there and not in the middle of a frame; a length of 0 is the end of what was written.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

_FRAME = struct.Struct("<IIB")
_RECORD = struct.Struct("<QQIIHI")
_INDEX = struct.Struct("<Q")
# A length above this is damage, not a frame.
_LONGEST = 64_000_000


class Kind(IntEnum):
    """What a frame holds."""

    HEADER = 1  # state of the spool when the segment was made, JSON
    RECORD = 2
    ACKED = 3  # every record below this index is acknowledged
    DROPPED = 4  # rows that were dropped so far, JSON
    PINNED = 5  # partition counts from which index on, JSON


@dataclass(frozen=True, slots=True)
class Record:
    """One spooled message.

    Attributes:
        index: number of the record in the spool, rising by one.
        seq: number of the message for its stream and key, rising by one.
        version: contract version that its body was made with.
        segment: number of the file that holds it.
        at: where its frame begins there.
    """

    index: int
    stream: str
    key: str
    seq: int
    version: int
    rows: int
    body: bytes
    segment: int = 0
    at: int = 0


def frame(kind: Kind, payload: bytes) -> bytes:
    """The bytes of one frame."""
    checksum = zlib.crc32(payload, zlib.crc32(bytes([kind])))
    return _FRAME.pack(len(payload), checksum, kind) + payload


def json_frame(kind: Kind, content: Any) -> bytes:
    """A frame of JSON."""
    return frame(kind, json.dumps(content, separators=(",", ":")).encode())


def record_frame(record: Record) -> bytes:
    """The frame of a record."""
    stream, key = record.stream.encode(), record.key.encode()
    head = _RECORD.pack(
        record.index, record.seq, record.version, record.rows, len(stream), len(key)
    )
    return frame(Kind.RECORD, b"".join((head, stream, key, record.body)))


def acked_frame(index: int) -> bytes:
    """The frame that says that every record below ``index`` is acknowledged."""
    return frame(Kind.ACKED, _INDEX.pack(index))


def parse_record(payload: bytes, segment: int, at: int) -> Record:
    """The record of a frame."""
    index, seq, version, rows, stream_size, key_size = _RECORD.unpack_from(payload)
    key_at = _RECORD.size + stream_size
    body_at = key_at + key_size
    return Record(
        index=index,
        stream=payload[_RECORD.size : key_at].decode(),
        key=payload[key_at:body_at].decode(),
        seq=seq,
        version=version,
        rows=rows,
        body=payload[body_at:],
        segment=segment,
        at=at,
    )


def parse_index(payload: bytes) -> int:
    """The index of an ACKED frame."""
    (index,) = _INDEX.unpack(payload)
    return int(index)


def read_frame(descriptor: int, at: int, end: int) -> tuple[Kind, bytes, int] | None:
    """The frame at a position: kind, payload and where the next begins.

    Returns:
        None where no whole, undamaged frame is.
    """
    if at + _FRAME.size > end:
        return None
    try:
        head = os.pread(descriptor, _FRAME.size, at)
        if len(head) < _FRAME.size:
            return None
        length, checksum, kind = _FRAME.unpack(head)
        following = at + _FRAME.size + length
        if not 0 < length <= _LONGEST or following > end:
            return None
        payload = os.pread(descriptor, length, at + _FRAME.size)
    except OSError:
        return None  # the disk cannot read it: the same as damage
    if len(payload) < length or zlib.crc32(payload, zlib.crc32(bytes([kind]))) != checksum:
        return None
    try:
        return Kind(kind), payload, following
    except ValueError:
        return None


@dataclass(slots=True)
class Segment:
    """One file of the spool, and what of it is still needed.

    Attributes:
        size: where the next frame goes.
        allocated: bytes that it takes on disk.
        first_index: index of its first record.
        acked: one byte per record, 1 where it is acknowledged.
        waiting_rows: rows that are not acknowledged, by stream.
    """

    number: int
    path: Path
    descriptor: int
    size: int = 0
    allocated: int = 0
    first_index: int = 0
    acked: bytearray = field(default_factory=bytearray)
    acked_count: int = 0
    waiting_rows: Counter[str] = field(default_factory=Counter)
    waiting_bytes: int = 0

    @property
    def records(self) -> int:
        return len(self.acked)

    @property
    def done(self) -> bool:
        """Whether nothing in it is needed any more."""
        return self.acked_count == len(self.acked)

    def add(self, record: Record) -> None:
        """A record was written."""
        if not self.acked:
            self.first_index = record.index
        self.acked.append(0)
        self.waiting_rows[record.stream] += record.rows
        self.waiting_bytes += len(record.body)

    def ack(self, index: int, stream: str, rows: int, size: int) -> None:
        """A record was acknowledged; again is nothing new."""
        place = index - self.first_index
        if not self.acked[place]:
            self.acked[place] = 1
            self.acked_count += 1
            self.waiting_rows[stream] -= rows
            self.waiting_bytes -= size

    def is_acked(self, index: int) -> bool:
        return bool(self.acked[index - self.first_index])

    def write(self, data: bytes) -> int:
        """Write a frame behind the last one; returns where it begins.

        Raises:
            OSError: it could not be written as a whole; the file is as before.
        """
        at = self.size
        done = 0
        while done < len(data):
            done += os.pwrite(self.descriptor, memoryview(data)[done:], at + done)
        self.size = at + len(data)
        self.allocated = max(self.allocated, self.size)
        return at

    def frames(self) -> Iterator[tuple[Kind, bytes, int]]:
        """Kind, payload and position of every frame; leaves ``size`` behind the last good one."""
        end = os.fstat(self.descriptor).st_size
        self.allocated = end
        self.size = 0
        while (found := read_frame(self.descriptor, self.size, end)) is not None:
            kind, payload, following = found
            yield kind, payload, self.size
            self.size = following

    def damaged_bytes(self) -> int:
        """Bytes behind the last good frame that are not the zeros of the allocation."""
        rest = os.pread(self.descriptor, max(0, self.allocated - self.size), self.size)
        return len(rest.rstrip(b"\0"))

    def seal(self) -> None:
        """Give back what was allocated and not used, and sync."""
        os.ftruncate(self.descriptor, self.size)
        self.allocated = self.size
        os.fsync(self.descriptor)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def remove(self) -> None:
        """Delete the file."""
        self.close()
        self.path.unlink(missing_ok=True)


def create_segment(folder: Path, number: int, allocate: int) -> Segment:
    """Make a file with room for ``allocate`` bytes.

    Raises:
        OSError: there is no room; nothing is left behind.
    """
    path = folder / f"{number:016d}.segment"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, allocate)
    except OSError:
        os.close(descriptor)
        path.unlink(missing_ok=True)
        raise
    return Segment(number, path, descriptor, allocated=allocate)


def open_segments(folder: Path) -> Iterator[Segment]:
    """The files of a spool, in order."""
    for path in sorted(folder.glob("*.segment")):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        yield Segment(int(path.stem), path, descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names of files durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
