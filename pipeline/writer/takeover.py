"""Opening a partition: own it, compare what is stored with what the log holds, say what is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pipeline import metrics as m
from pipeline.errors import SlowDownError
from pipeline.writer import gaps
from pipeline.writer.gaps import Gap
from pipeline.writer.shared import Shared, StoreClient
from pipeline.writer.state import Owned, Ownership

# A log that looks shorter than what is stored is looked at twice: a new leader may not know
# yet how far its copies are.
_LOOK_AGAIN_S = 2.0


@dataclass(frozen=True)
class Wanted:
    """A partition that the group gave to this writer.

    Attributes:
        generation: of the loop.
        truncated: Kafka said that the log no longer is what was read.
        diverges_at: first offset that is another message now; None when unknown.
    """

    generation: int
    truncated: bool = False
    diverges_at: int | None = None


class Takeover:
    """Opens partitions of one stream."""

    def __init__(
        self, stream: str, ownership: Ownership, shared: Shared, client: StoreClient
    ) -> None:
        self._stream = stream
        self._ownership = ownership
        self._topics = shared.topics
        self._metrics = shared.metrics
        self._client = client
        self._looked_short: set[tuple[str, int]] = set()

    def take(self, wanted: Mapping[int, Wanted]) -> dict[int, Owned]:
        """Own what can be owned now, each with the offset to go on from.

        Raises:
            SlowDownError: Kafka is away, or something has to be looked at again.
            ClickHouseError, OSError, HTTPError: the store's.
        """
        now = self._topics.now(self._stream)
        partitions = sorted(p for p in wanted if p < now.partitions)
        if not partitions:
            raise SlowDownError("partition_missing", 1.0)
        stands = self._ownership.stands(self._stream, now.topic_id, partitions)
        self._recreated([p for p, stand in stands.items() if not stand.epoch], now.topic_id)
        owned = self._ownership.take_over(self._stream, now.topic_id, partitions)
        # Only now: what the owner before stored in the meantime lies before these ends.
        ends = self._topics.ends(self._stream)
        opened = {}
        for partition, each in owned.items():
            if (self._stream, partition) not in ends:
                raise SlowDownError("partition_missing", 1.0)
            begin, end = ends[self._stream, partition]
            want = wanted[partition]
            if want.truncated or each.next > end:
                opened[partition] = self._truncated(each, want, begin, end)
                continue
            self._looked_short.discard((each.topic_id, partition))
            opened[partition] = self._overtaken(each, begin) if each.next < begin else each
        return opened

    def _recreated(self, partitions: list[int], topic_id: str) -> None:
        """Say so where another topic had the name before: what it held and was not stored.

        Written before the first epoch of the new id: a writer that is killed in between finds
        it again.
        """
        if not partitions:
            return
        earlier = self._ownership.earlier_topics(self._stream, topic_id, partitions)
        found = [
            Gap(
                "recreated", self._stream, earlier_id, partition,
                first_missing=settled + 1,
                detail=f"the topic was created again as {topic_id}: messages of the earlier one"
                f" from offset {settled + 1} on, if there were any, are gone",
            )
            for partition, (earlier_id, settled) in sorted(earlier.items())
        ]  # fmt: skip
        self._record(found)

    def _overtaken(self, owned: Owned, begin: int) -> Owned:
        """The log begins behind the place: its retention was faster than the writer."""
        gap = Gap(
            "retention", self._stream, owned.label, owned.partition,
            first_missing=owned.next, last_missing=begin - 1,
            detail=f"partition {owned.partition}: the log begins at {begin}, stored is up to"
            f" {owned.next - 1}: {begin - owned.next} offsets were deleted before they were read",
        )  # fmt: skip
        self._record([gap])
        self._ownership.settle(self._stream, [owned], {owned.partition: (begin - 1, -1)})
        return replace(owned, next=begin, leader_epoch=-1)

    def _truncated(self, owned: Owned, want: Wanted, begin: int, end: int) -> Owned:
        """The log lost messages that are stored: its offsets are used again."""
        name = (owned.topic_id, owned.partition)
        if want.diverges_at is not None and want.diverges_at >= owned.next:
            return owned  # what was lost had not been stored
        if not want.truncated and name not in self._looked_short:
            self._looked_short.add(name)
            raise SlowDownError("log_shorter_than_stored", _LOOK_AGAIN_S)
        self._looked_short.discard(name)
        # Not known from where on it differs: read all of it; repeats are told by their numbers.
        start = begin if want.diverges_at is None else max(begin, want.diverges_at)
        gap = Gap(
            "truncated", self._stream, owned.label, owned.partition,
            first_missing=start, last_missing=owned.next - 1,
            detail=f"partition {owned.partition}: the log ends at {end} and lost messages that"
            f" are stored, up to {owned.next - 1}: its offsets from {start} on are used again",
        )  # fmt: skip
        self._record([gap])
        again = self._ownership.take_over(
            self._stream, owned.topic_id, [owned.partition], {owned.partition: start}
        )
        if owned.partition not in again:
            raise SlowDownError("taken_by_another", 0.5)
        return again[owned.partition]

    def _record(self, found: list[Gap]) -> None:
        gaps.record(self._client, found)
        for gap in found:
            self._metrics.counter(m.WRITER_GAPS, self._stream, gap.kind).inc()
