"""What a lane works on: everything that was read and is settled together."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.writer.block import Block, Taken
from pipeline.writer.deadletters import Letter
from pipeline.writer.events import Item
from pipeline.writer.gaps import Gap


@dataclass
class Batch:
    """Items of one topic id; its steps are done in order, each again until it succeeds.

    Attributes:
        label: topic id with the mark of its incarnation.
        topic_checked: the messages are known to be of this topic id.
        letters_sent: all dead letters are acknowledged.
        blocks: what is still to be inserted; None until repeats were left out.
        quiet: partitions whose last offset leaves no row: it must be written down.
    """

    label: str
    items: Sequence[Item]
    topic_checked: bool = False
    letters_sent: bool = False
    blocks: deque[Block] | None = None
    quiet: set[int] = field(default_factory=set)

    @property
    def topic_id(self) -> str:
        """Topic id without the mark."""
        return self.label.partition("~")[0]

    @property
    def messages(self) -> list[Taken]:
        """Messages to store."""
        return [item.what for item in self.items if isinstance(item.what, Taken)]

    @property
    def letters(self) -> list[Letter]:
        """Messages to set aside."""
        return [item.what for item in self.items if isinstance(item.what, Letter)]

    @property
    def gaps(self) -> list[Gap]:
        """Gaps that were found while reading."""
        return [item.what for item in self.items if isinstance(item.what, Gap)]

    @property
    def generations(self) -> dict[int, int]:
        """Generation by partition."""
        return {item.partition: item.generation for item in self.items}

    @property
    def upto(self) -> dict[int, tuple[int, int]]:
        """Last offset and its leader epoch, by partition."""
        return {item.partition: (item.offset, item.leader_epoch) for item in self.items}

    @property
    def oldest(self) -> float:
        """When the first item was read, monotonic seconds."""
        return min(item.read_at for item in self.items)

    @property
    def size(self) -> int:
        """Message bytes."""
        return sum(item.size for item in self.items)

    def split_first_block(self) -> bool:
        """Make the next block smaller; False when it is a single message."""
        assert self.blocks
        if len(self.blocks[0].messages) < 2:
            return False
        first, second = self.blocks.popleft().halves()
        self.blocks.extendleft((second, first))
        return True
