"""How much a writer takes at once, and how long it waits."""

from __future__ import annotations

from dataclasses import dataclass

GROUP = "rackpulse-writer"


@dataclass(frozen=True)
class Options:
    """Bounds of one writer.

    Attributes:
        streams: topics to write; empty means all.
        instance: number of this writer in the group; one that was killed and comes back under
            its number gets its partitions at once.
        max_rows: of a block.
        max_bytes: message bytes of a block.
        linger_s: how long the oldest message of a block waits for more.
        few_longer: how much longer a stream of few rows waits: an insert into a wide table
            costs some 40 ms of the store's CPU, however small it is.
        few_rows: per second, up to which a stream counts as one of few rows.
        behind_linger_s: the same while there is a backlog to read: it is not fresh anyway.
        behind_messages: in the log and not read yet, from which on there is a backlog.
        inserts_at_once: of all streams; each holds a block's memory once more.
        buffer_bytes: message bytes held in all, besides what the Kafka client holds.
        settle_every_s: how often the place is written down where nothing else does.
        drain_s: how long a stop waits for what was read to be stored.
        session_timeout_ms: after which the group gives the partitions to others.
        max_poll_interval_ms: likewise, when the loop hangs.
        bad_ratio: share of bad messages above which the writer stops.
        bad_in_a_row: number of bad messages in a row above which it stops.
    """

    streams: tuple[str, ...] = ()
    instance: int = 1
    group: str = GROUP
    max_rows: int = 150_000
    max_bytes: int = 40_000_000
    linger_s: float = 1.5
    few_longer: float = 4 / 3
    few_rows: int = 30_000
    behind_linger_s: float = 5.0
    behind_messages: int = 100
    buffer_bytes: int = 88_000_000
    inserts_at_once: int = 2
    settle_every_s: float = 600.0
    drain_s: float = 10.0
    session_timeout_ms: int = 15_000
    max_poll_interval_ms: int = 120_000
    bad_ratio: float = 0.5
    bad_in_a_row: int = 200
