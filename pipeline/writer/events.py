"""What a lane tells the loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.writer.block import Taken
from pipeline.writer.deadletters import Letter
from pipeline.writer.gaps import Gap
from pipeline.writer.state import Owned


@dataclass(frozen=True, slots=True)
class Item:
    """Something that was read and waits in a lane.

    Attributes:
        generation: of the partition's opening under which it was read; an item of an older
            one is dropped.
        what: a message to store, one to set aside, or a gap before the next message.
    """

    partition: int
    generation: int
    what: Taken | Letter | Gap
    offset: int
    leader_epoch: int
    size: int
    read_at: float


@dataclass(frozen=True)
class Opened:
    """A partition was taken over: read on from ``owned.next``."""

    stream: str
    generation: int
    owned: Owned


@dataclass(frozen=True)
class Stored:
    """Everything up to these offsets is settled.

    Attributes:
        upto: offset and leader epoch by partition.
        generations: by partition.
    """

    stream: str
    upto: Mapping[int, tuple[int, int]]
    generations: Mapping[int, int]


@dataclass(frozen=True)
class Reopen:
    """These partitions must be taken over again, with what was read of them dropped."""

    stream: str
    generations: Mapping[int, int]
    why: str


@dataclass(frozen=True)
class Failed:
    """The lane can not go on: a person must act."""

    stream: str
    error: BaseException


Event = Opened | Stored | Reopen | Failed
