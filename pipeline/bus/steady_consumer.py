"""kafka-python's consumer, without two of its stalls."""

from __future__ import annotations

from typing import Any

from kafka import KafkaConsumer


class SteadyConsumer(KafkaConsumer):  # type: ignore[misc]  # kafka-python is not typed
    """A consumer whose resumed partitions are always read on.

    kafka-python 3.0.12 parks records that were fetched before a ``pause`` and takes them up
    again only while its place for the partition in turn is ``None``. That place usually holds
    records that are used up instead, so the parked ones stay, and what is parked is never
    fetched again: the partition stands still for ever. Emptying the place before each poll
    lets the parked ones in.

    When topics change, the leader of the group must join again. kafka-python takes that from
    comparing what it assigned with what there is, and what it assigned is replaced while it
    joins: when that one poll is too short for the joining, the next sees nothing to do and
    never takes the answer. Its heartbeat is off by then, so the group drops the member, and
    nobody reads. Here the need is kept until the joining is done.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        coordinator = self._coordinator
        needed = coordinator.need_rejoin

        def need_rejoin() -> bool:
            if needed():
                coordinator.request_rejoin()
                return True
            return False

        coordinator.need_rejoin = need_rejoin

    def poll(self, *args: Any, **kwargs: Any) -> Any:
        """As :meth:`KafkaConsumer.poll`."""
        fetcher = self._fetcher
        waiting = fetcher._next_partition_records
        if waiting is not None and not waiting:
            fetcher._next_partition_records = None
        return super().poll(*args, **kwargs)
