"""Who owns a partition, and how far it is stored: asked of the table, never of a log beside it.

Taking over (the model of tests/writer/protocol_model.py walks every interleaving of it):
write a higher epoch under this writer's random id, read back that it is the newest, kill the
inserts still in flight and wait until they are gone, then read the highest stored offset.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clickhouse_connect.driver.client import Client

from pipeline.clock import Clock
from pipeline.errors import SlowDownError
from pipeline.streams.ddl import DATABASE
from pipeline.writer.insert import comment_pattern

KILL_TIMEOUT_S = 30.0
_TOPIC_ID = re.compile(r"^[0-9a-f-]{36}$")


@dataclass(frozen=True)
class Stand:
    """What the table says of a partition.

    Attributes:
        epoch: newest epoch, 0 when there is none.
        writer_id: who wrote it.
        incarnation: of the log.
        settled: highest offset that needs no more work, -1 for none.
        leader_epoch: of the message at ``settled``; -1 when unknown.
    """

    epoch: int = 0
    writer_id: str = ""
    incarnation: int = 0
    settled: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True)
class Owned:
    """A partition that this writer has taken over.

    Attributes:
        epoch: its own, the newest when it was written.
        next: offset to go on from.
        leader_epoch: of the message before ``next``; -1 when unknown.
    """

    partition: int
    topic_id: str
    incarnation: int
    epoch: int
    next: int
    leader_epoch: int

    @property
    def label(self) -> str:
        """Topic id as it stands on the rows."""
        return label(self.topic_id, self.incarnation)


def label(topic_id: str, incarnation: int) -> str:
    """Topic id with the mark of an incarnation."""
    return f"{topic_id}~{incarnation}" if incarnation else topic_id


class Ownership:
    """Epochs of one writer.

    Args:
        client: gives a client of the store.
        writer_id: random, new at each start.
        settings: of all statements.
        cluster: name of a ClickHouse cluster, whose servers are all asked for inserts in flight.
    """

    def __init__(
        self,
        client: Callable[[], Client],
        writer_id: str,
        clock: Clock,
        settings: Mapping[str, str] | None = None,
        cluster: str | None = None,
    ) -> None:
        self._client = client
        self._writer_id = writer_id
        self._clock = clock
        self._settings = dict(settings or {})
        name = (cluster or "").replace("'", "")
        self._processes = (
            f"clusterAllReplicas('{name}', system.processes)" if name else "system.processes"
        )
        self._kill = f"KILL QUERY ON CLUSTER '{name}'" if name else "KILL QUERY"

    def take_over(
        self,
        stream: str,
        topic_id: str,
        partitions: Sequence[int],
        new_incarnations: Mapping[int, int] | None = None,
    ) -> dict[int, Owned]:
        """Take partitions over, whoever had them.

        Args:
            new_incarnations: partitions whose log was truncated, with the offset from which
                its offsets are used again.

        Returns:
            The partitions that are now this writer's; one that another writer took in the
            same moment is not among them.

        Raises:
            SlowDownError: inserts in flight did not end in time.
            ClickHouseError, OSError, HTTPError: the store's; nothing was decided then.
        """
        _check(topic_id)
        restarts = dict(new_incarnations or {})
        before = self.stands(stream, topic_id, partitions)
        rows = []
        epochs = {}
        for partition in partitions:
            stand = before[partition]
            epochs[partition] = stand.epoch + 1
            if partition in restarts:
                floor = (stand.incarnation + 1, restarts[partition] - 1, -1)
            else:
                floor = (stand.incarnation, stand.settled, stand.leader_epoch)
            rows.append([stream, topic_id, partition, epochs[partition], *floor])
        self._write(rows)

        mine = [
            partition
            for partition, stand in self.stands(stream, topic_id, partitions).items()
            if (stand.epoch, stand.writer_id) == (epochs[partition], self._writer_id)
        ]
        if not mine:
            return {}
        self.end_in_flight(topic_id, mine)
        # Only now, when nothing of an older epoch can be stored any more.
        owned = {}
        for partition, stand in self.stands(stream, topic_id, mine).items():
            owned[partition] = Owned(
                partition, topic_id, stand.incarnation, epochs[partition],
                stand.settled + 1, stand.leader_epoch,
            )  # fmt: skip
        return owned

    def stands(self, stream: str, topic_id: str, partitions: Sequence[int]) -> dict[int, Stand]:
        """What the table says of these partitions: epochs, and rows of the newest incarnation."""
        _check(topic_id)
        wanted = {"topic_id": topic_id, "partitions": list(partitions)}
        epochs = self._rows(
            f"""SELECT kafka_partition, max((epoch, writer_id)) AS newest, max(incarnation) AS now,
                argMax(settled, (incarnation, settled)),
                argMax(settled_leader_epoch, (incarnation, settled))
            FROM {DATABASE}.writer_epoch
            WHERE kafka_topic_id = {{topic_id:String}}
                AND kafka_partition IN {{partitions:Array(UInt32)}}
            GROUP BY kafka_partition""",
            wanted,
        )
        found = {
            partition: Stand(newest[0], newest[1], incarnation, settled, leader_epoch)
            for partition, newest, incarnation, settled, leader_epoch in epochs
        }
        labels = sorted({label(topic_id, stand.incarnation) for stand in found.values()})
        labels = labels or [topic_id]
        stored = self._rows(
            f"""SELECT kafka_topic_id, kafka_partition,
                max(kafka_offset), max(kafka_leader_epoch)
            FROM {DATABASE}.{stream}
            WHERE kafka_topic_id IN {{labels:Array(String)}}
                AND kafka_partition IN {{partitions:Array(UInt32)}}
            GROUP BY kafka_topic_id, kafka_partition""",
            {"labels": labels, "partitions": list(partitions)},
        )
        highest = {(name, partition): (at, epoch) for name, partition, at, epoch in stored}
        stands = {}
        for partition in partitions:
            stand = found.get(partition, Stand())
            at, leader_epoch = highest.get(
                (label(topic_id, stand.incarnation), partition), (-1, -1)
            )
            if at > stand.settled:
                stand = Stand(stand.epoch, stand.writer_id, stand.incarnation, at, leader_epoch)
            stands[partition] = stand
        return stands

    def earlier_topics(
        self, stream: str, topic_id: str, partitions: Sequence[int]
    ) -> dict[int, tuple[str, int]]:
        """The topic that had the name before: its id and how far it was settled, by partition."""
        rows = self._rows(
            f"""SELECT kafka_partition, argMax(kafka_topic_id, at), argMax(settled, at)
            FROM {DATABASE}.writer_epoch
            WHERE stream = {{stream:String}} AND kafka_topic_id != {{topic_id:String}}
                AND kafka_partition IN {{partitions:Array(UInt32)}}
            GROUP BY kafka_partition""",
            {"stream": stream, "topic_id": topic_id, "partitions": list(partitions)},
        )
        earlier = {}
        for partition, earlier_id, settled in rows:
            stand = self.stands(stream, earlier_id, [partition])[partition]
            earlier[partition] = (str(earlier_id), max(int(settled), stand.settled))
        return earlier

    def end_in_flight(self, topic_id: str, partitions: Sequence[int]) -> None:
        """Kill the inserts on these partitions, and wait until they are gone.

        Raises:
            SlowDownError: some were still there after :data:`KILL_TIMEOUT_S`.
        """
        _check(topic_id)
        # Made of digits, commas and a checked id: nothing in it comes from outside.
        pattern = comment_pattern(topic_id, list(partitions))
        where = f"match(Settings['log_comment'], '{pattern}')"
        deadline = self._clock.monotonic() + KILL_TIMEOUT_S
        pause = 0.02
        while True:
            running = self._rows(f"SELECT count() FROM {self._processes} WHERE {where}", {})
            if not running[0][0]:
                return
            if self._clock.monotonic() > deadline:
                raise SlowDownError("insert_in_flight", 1.0)
            self._client().command(f"{self._kill} WHERE {where} ASYNC")
            self._clock.wait(pause)
            pause = min(1.0, pause * 2)

    def settle(
        self, stream: str, owned: Sequence[Owned], settled: Mapping[int, tuple[int, int]]
    ) -> None:
        """Write down that everything up to these offsets needs no more work.

        True whoever owns the partition by now, so it needs no fence. It keeps the place when
        retention drops a quiet partition's last rows, and of messages that left no row.

        Args:
            settled: offset and leader epoch by partition.
        """
        self._write(
            [
                [stream, each.topic_id, each.partition, each.epoch, each.incarnation,
                 *settled[each.partition]]
                for each in owned
                if each.partition in settled
            ]
        )  # fmt: skip

    def _write(self, rows: list[list[object]]) -> None:
        if not rows:
            return
        names = ["stream", "kafka_topic_id", "kafka_partition", "epoch", "incarnation",
                 "settled", "settled_leader_epoch", "writer_id"]  # fmt: skip
        self._client().insert(
            f"{DATABASE}.writer_epoch",
            [[*row, self._writer_id] for row in rows],
            column_names=names,
            settings={"async_insert": "0", "insert_deduplicate": "0", **self._settings},
        )

    def _rows(self, sql: str, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
        answer = self._client().query(sql, parameters=parameters, settings=self._settings)
        return answer.result_rows


def _check(topic_id: str) -> None:
    if not _TOPIC_ID.match(topic_id):
        raise ValueError(f"not a topic id: {topic_id}")
